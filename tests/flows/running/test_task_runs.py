"""A run is a few Prefect tasks, however many chunks the data has."""

from __future__ import annotations

import asyncio

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import FlowRunSort

from tests.support.data import draw_probit_rows, write_arrays

MOST = 20


async def task_runs_of_the_last_flow() -> list[str]:
    async with get_client() as client:
        runs = await client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=1)
        only = FlowRunFilter(id=FlowRunFilterId(any_=[runs[0].id]))
        found = await client.read_task_runs(flow_run_filter=only, limit=200)
    return [task.name for task in found]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "model", ["latent-trait", pytest.param("clipped-pca", marks=pytest.mark.matrix)]
)
def test_a_fit_to_many_chunks_has_few_task_runs(cli, tmp_path, model):
    X, _ = draw_probit_rows(100 * 64, 6, 2, seed=1)
    path = write_arrays(tmp_path / "d.zarr", X, words_per_chunk=1).path
    done = cli("fit", "--dataset", path, "--model", model, "--components", 2, "--report")
    assert done.code == 0, done.err
    names = asyncio.run(task_runs_of_the_last_flow())
    assert 5 <= len(names) <= MOST, names
