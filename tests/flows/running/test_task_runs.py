"""A run is a few Prefect tasks, however many chunks the data has."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.client.schemas.sorting import FlowRunSort

from tests.support.data import draw_probit_rows, write_arrays

MOST = 20


async def read_task_runs_of_last_flow(n_least: int = 1) -> list[TaskRun]:
    """Read the task runs, which the server records in batches, about once a second."""
    async with get_client() as client:
        runs = await client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=1)
        only = FlowRunFilter(id=FlowRunFilterId(any_=[runs[0].id]))
        for _ in range(10):
            await asyncio.sleep(2.0)
            task_runs = await client.read_task_runs(flow_run_filter=only, limit=200)
            are_final = [run.state is not None and run.state.is_final() for run in task_runs]
            if len(are_final) >= n_least and all(are_final):
                break
    return task_runs


def find_inputs(task_runs: list[TaskRun]) -> dict[str, set[str]]:
    """Name the stages whose task runs are inputs of each task run, as Prefect draws them."""
    names = {run.id: run.name.rpartition("-")[0] for run in task_runs}
    return {
        names[run.id]: {
            names[source.id] for sources in run.task_inputs.values() for source in sources
        }
        for run in task_runs
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "model", ["clipped-pca", pytest.param("latent-trait", marks=pytest.mark.matrix)]
)
def test_a_fit_to_many_chunks_has_few_task_runs(cli, prefect_server, tmp_path, model):
    X, _ = draw_probit_rows(100 * 64, 6, 2, seed=1)
    path = write_arrays(tmp_path / "d.zarr", X, words_per_chunk=1).path
    done = cli("fit", "--dataset", path, "--model", model, "--components", 2, "--report")
    assert done.code == 0, done.err
    task_runs = asyncio.run(read_task_runs_of_last_flow())
    assert 5 <= len(task_runs) <= MOST
    inputs = find_inputs(task_runs)
    assert inputs["open"] == set()
    assert inputs["write artifact"] == {"fit", "drift"}
    assert inputs["report"] == {"write artifact"}
    (first,) = (name for name, sources in inputs.items() if sources == {"open"})
    assert all(inputs[name] for name in inputs.keys() - {"open"})
    reached, unread = set[str](), ["report"]
    while unread:
        reached.add(name := unread.pop())
        unread.extend(inputs[name] - reached)
    assert {first, "open", "fit"} <= reached


GRAPHS: dict[tuple[str, ...], dict[str, set[str]]] = {
    ("transform", "--dataset", "d.zarr", "--artifact", "f", "--output", "codes.zarr"): {
        "count rows": set(),
        "transform": {"count rows"},
        "write codes": {"transform"},
    },
    ("neighbours", "--dataset", "d.zarr", "--output", "nearest.zarr"): {
        "find neighbours": set(),
        "write neighbours": {"find neighbours"},
    },
    ("evaluate", "--dataset", "d.zarr", "--artifact", "f"): {
        "draw rows": set(),
        "pair counts": set(),
        "baselines": set(),
        "score": {"baselines"},
        **{
            f"evaluate {name}": {"draw rows", "pair counts", "score"}
            for name in ("f", "independent features", "mixture of 20")
        },
    },
    ("evaluate", "--dataset", "d.zarr", "--artifact", "f", "--folds", "2", "--no-baselines"): {
        "fold 1 of f": set(),
        "score fold 1": {"fold 1 of f"},
        "fold 2 of f": set(),
        "score fold 2": {"fold 2 of f"},
    },
    ("ingest", "x.npy", "--dataset", "other.zarr"): {"write dataset": set()},
    ("sample", "--artifact", "f", "--rows", "100", "--output", "s.zarr"): {"write dataset": set()},
}
"""The stages of each command, and the stages that each one uses."""


@pytest.mark.few(1)
@pytest.mark.parametrize("command", GRAPHS, ids=lambda command: "".join(command[:1] + command[5:7]))
def test_a_run_is_a_graph_of_its_stages(cli, prefect_server, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    X, _ = draw_probit_rows(200, 6, 2, seed=1)
    write_arrays(tmp_path / "d.zarr", X)
    np.save("x.npy", X)
    fitted = cli("fit", "--dataset", "d.zarr", "--output", "f", "--no-report")
    assert fitted.code == 0, fitted.err
    done = cli(*command)
    assert done.code == 0, done.err
    graph = GRAPHS[command]
    assert find_inputs(asyncio.run(read_task_runs_of_last_flow(len(graph)))) == graph
