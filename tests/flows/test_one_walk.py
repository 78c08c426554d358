"""What a command checked and what a stage made goes on in memory: nothing is read twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from prefect.runtime import deployment

from flows import fit
from flows.fitting import stages
from flows.running import flow as running
from pipeline.errors import ClusterLost
from storage import load_artifact
from storage.artifacts import artifacts
from storage.artifacts.artifacts import ArtifactReader
from storage.dataset import dataset
from tests.support.data import draw_probit_rows, make_test_row_source, write_arrays

SERIAL = ("--executor", "serial", "--no-report")
ITERATIVE = ("--model", "latent-trait", "--components", 1, "--set", "max_iter=6")


@pytest.fixture
def data(cli, tmp_path):
    """A dataset that tasks, which open it for themselves, have seen before."""
    made = write_arrays(
        tmp_path / "d.zarr", draw_probit_rows(600, 8, 2, seed=3)[0], words_per_chunk=4
    )
    make_test_row_source(made).read(0)
    return "d.zarr"


@pytest.fixture
def reads(monkeypatch):
    """Count the manifests that are looked for; sums kept beside the dataset are a fit's own."""
    seen: Counter[str] = Counter()
    for module in (artifacts, dataset):

        def counted(folder, *more, read=module.read_manifest):
            seen[kind_of(Path(str(folder)))] += 1
            return read(folder, *more)

        monkeypatch.setattr(module, "read_manifest", counted)

    def counts():
        found = {kind: n for kind, n in seen.items() if kind != "kept sums"}
        seen.clear()
        return found

    return counts


def kind_of(folder: Path) -> str:
    parts = folder.parts
    if "statistics" in parts:
        return "kept sums"
    if ".unfinished" in parts:
        return parts[parts.index(".unfinished") + 2]
    if folder.suffix == ".zarr":
        return folder.name
    return "artifact"


def bytes_of(done):
    found = load_artifact(done.json["artifact"])
    return {name: found[name].tobytes() for name in found}


@pytest.mark.parametrize("options", [(), ITERATIVE], ids=["one pass", "many"])
def test_a_fresh_fit_opens_the_dataset_and_reads_nothing_else(cli, data, reads, options):
    done = cli("fit", "--dataset", data, *SERIAL, *options)  # the table comes from memory, too
    assert done.code == 0, done.err
    assert reads() == {data: 1}


def test_a_flow_called_by_its_parameters_checks_once(data, reads):
    fit.fit(data, report=False, where={"name": "serial"})
    assert reads() == {data: 1}


@pytest.mark.matrix
def test_a_report_reads_the_artifact_it_lies_in(cli, data, reads):
    assert cli("fit", "--dataset", data, "--report").code == 0
    assert reads() == {data: 1, "artifact": 1}


def test_a_warm_start_loads_the_fit_before_once(cli, data, reads):
    assert cli("fit", "--dataset", data, *SERIAL, *ITERATIVE).code == 0
    reads()
    done = cli("fit", "--dataset", data, *SERIAL, *ITERATIVE, "--warm-start")
    assert done.code == 0, done.err
    assert reads() == {data: 1, "artifact": 1}


@pytest.mark.parametrize(
    ("broken", "needed"),
    [("_save_artifact", {"states": 1, "first": 1}), ("fit_model", {"first": 1, "pass": 1})],
    ids=["after the fit", "before it"],
)
@pytest.mark.parametrize(
    "options",
    [pytest.param((), marks=pytest.mark.matrix), ITERATIVE],
    ids=["one pass", "many"],
)
def test_a_fit_that_goes_on_reads_what_it_needs(
    cli, data, reads, monkeypatch, options, broken, needed
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stages, broken, interrupt)
        assert cli("fit", "--dataset", data, *SERIAL, *options).code == 130
    reads()
    resumed = cli("fit", "--dataset", data, *SERIAL, *options, "--resume", "--json")
    assert resumed.code == 0, resumed.err
    assert reads() == {data: 1, **needed}
    fresh = cli("fit", "--dataset", data, *SERIAL, *options, "--json")
    assert bytes_of(resumed) == bytes_of(fresh)


def test_another_try_goes_on_from_memory(cli, prefect_server, data, reads, monkeypatch):
    """The cluster is lost within the third pass: the first two are not done again."""
    expected = cli("fit", "--dataset", data, *SERIAL, *ITERATIVE, "--json")
    reads()
    passes, lost, run_passes = [], [ClusterLost("gone")], stages.fit_model

    def losing(*arguments, checkpoint, **more):
        def save(state):
            if len(passes) == 2 and lost:
                raise lost.pop()
            checkpoint(state)
            passes.append(state.iteration)

        return run_passes(*arguments, checkpoint=save, **more)

    monkeypatch.setattr(stages, "fit_model", losing)
    monkeypatch.setitem(running.RETRY_OPTIONS, "retry_delay_seconds", [0.1] * 4)
    monkeypatch.setattr(deployment, "id", "scheduled", raising=False)
    got = cli("fit", "--dataset", data, *SERIAL, *ITERATIVE, "--json", "--output", "again")
    assert got.code == 0, got.err
    assert reads() == {data: 1}
    assert passes == list(range(1, expected.json["iterations"] + 1))
    assert len(passes) > 3
    assert bytes_of(got) == bytes_of(expected)


def test_a_cluster_lost_after_the_work_costs_no_work(cli, prefect_server, data, monkeypatch):
    counted, read_usage, collect = [], running.read_usage, stages.collect_pass_statistics

    def losing(executor):
        if counted == ["pass"]:
            counted.append("lost")
            raise ClusterLost("gone")
        return read_usage(executor)

    def collect_pass(*arguments):
        counted.append("pass")
        return collect(*arguments)

    monkeypatch.setattr(running, "read_usage", losing)
    monkeypatch.setattr(stages, "collect_pass_statistics", collect_pass)
    monkeypatch.setitem(running.RETRY_OPTIONS, "retry_delay_seconds", [0.1] * 4)
    monkeypatch.setattr(deployment, "id", "scheduled", raising=False)
    done = cli("fit", "--dataset", data, *SERIAL, "--json")
    assert done.code == 0, done.err
    assert counted == ["pass", "lost"]


@pytest.mark.matrix
def test_artifacts_are_loaded_once(cli, data, reads):
    fitted = cli("fit", "--dataset", data, *SERIAL, "--json").json["artifact"]
    ArtifactReader.from_artifact(load_artifact(fitted))()  # as tasks do, each process once
    here = ("--artifact", "runs/d", "--executor", "serial")
    commands = {
        # What it writes is looked at by the writer, and opened for the summary.
        ("sample", "--rows", 100, "--output", "s.zarr"): {"artifact": 1, "s.zarr": 2},
        ("evaluate", "--dataset", data, "--no-baselines"): {"artifact": 1, data: 1},
        ("transform", "--dataset", data, "--output", "c.zarr"): {"artifact": 1, data: 1},
    }
    for command, expected in commands.items():
        reads()
        done = cli(*command, *here)
        assert done.code == 0, done.err
        assert reads() == expected, command[0]
    assert np.isfinite(load_artifact(fitted)["loadings"]).all()
