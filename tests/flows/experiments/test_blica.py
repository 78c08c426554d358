"""Experiments on binary ICA: trials, the numbers in their tables, pictures, what is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.decomposition

from flows.cli.options import ExecutorOptions
from flows.experiments import binary_ica
from flows.experiments.base import group_medians, pack_rows_in_memory
from flows.experiments.binary_ica import (
    METHODS,
    ICAMethod,
    ProblemShape,
    describe_left_out,
    draw_simulated_rows,
    draw_truth,
    print_summary,
    run_exact_trial,
    run_sample_trial,
    run_shape_trials,
    run_timed_trial,
)
from pipeline.data.blocks import iter_blocks
from pipeline.executors.base import limit_blas_threads
from pipeline.models.binary_ica.fastica import FastICA
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth
from tests.flows.experiments.tables import check_picture, run_experiment, table

Call = Callable[..., Any]
SMALL = ProblemShape(features=4, components=2, segments=5, rows_per_segment=100)
NAMES = ("identifiability", "samples", "scaling")


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Make quick runs quicker still."""
    with pytest.MonkeyPatch.context() as patched, limit_blas_threads():
        patched.setattr(binary_ica, "_QUICK_EXACT_FEATURES", (2, 7))
        patched.setattr(binary_ica, "_QUICK_EXACT_SEGMENTS", (4,))
        patched.setattr(binary_ica, "_QUICK_SAMPLE_MODELS", 1)
        patched.setattr(binary_ica, "_QUICK_SAMPLE_SHAPES", ((5, 2),))
        patched.setattr(binary_ica, "_SAMPLE_SEGMENTS", 6)
        patched.setattr(binary_ica, "_QUICK_SAMPLE_ROWS", (64, 2000))
        patched.setattr(binary_ica, "_BASE", SMALL)
        patched.setattr(binary_ica, "_QUICK_FEATURES", (4, 8))
        patched.setattr(binary_ica, "_QUICK_SEGMENTS", (5, 10))
        patched.setattr(binary_ica, "_QUICK_COMPONENTS", (1, 2))
        patched.setitem(METHODS, "FastICA", ICAMethod(FastICA, {"features": 6}))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of quick runs of all three commands, with what they printed."""
    folder = tmp_path_factory.mktemp("experiments")
    for name in NAMES:
        json = ("--json",) if name == "scaling" else ()
        printed = run_experiment(f"blica-{name}", folder / name, *json)
        (folder / f"{name}.out").write_text(printed, encoding="utf-8")
    return folder


# Trials


def test_rows_in_memory_are_those_given():
    X = np.random.default_rng(0).integers(2, size=(3 * 70, 5), dtype=np.uint8)
    rows = pack_rows_in_memory(X, 3)
    blocks = list(iter_blocks(rows.read(0)))
    assert (rows.n_chunks, rows.n_features, rows.n_segments) == (1, 5, 3)
    assert [block.segment for block in blocks] == [0, 1, 2]
    np.testing.assert_array_equal(np.concatenate([block.unpack_values() for block in blocks]), X)


def test_seeds_do_not_share_models():
    (a, b, c) = (draw_truth(SMALL, model, seed).mixing for model, seed in [(0, 0), (1, 0), (0, 1)])
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert not np.array_equal(b, c)


def test_a_trial_has_the_rows_of_its_truth():
    data, truth = draw_simulated_rows(SMALL, 3, 0), draw_nonstationary_truth(4, 2, 5, 3)
    np.testing.assert_array_equal(data.mixing, truth.mixing)
    (batch,) = draw_nonstationary_rows(truth, 100, 3)
    X = np.concatenate([block.unpack_values() for block in iter_blocks(data.rows.read(0))])
    np.testing.assert_array_equal(X, batch.X)


@pytest.mark.matrix
def test_the_timed_parts_are_the_fit():
    found, expected = (
        run_timed_trial(draw_simulated_rows(SMALL, 0, 0)),
        run_sample_trial(draw_simulated_rows(SMALL, 0, 0)),
    )
    for name in METHODS:
        assert found[name] == pytest.approx(expected[name], abs=1e-12)
        assert 0 < found[name] <= 1
        assert found[f"{name}_converged"] == expected[f"{name}_converged"]
        assert min(found[f"{name}_seconds"], expected[f"{name}_seconds"]) > 0
    parts = ("counts", "correlations", "selection", "starts", "refinement")
    assert min(found[part] for part in parts) >= 0
    assert found["BLICA_seconds"] == pytest.approx(sum(found[part] for part in parts))


@pytest.mark.matrix
def test_a_model_is_left_out_where_it_would_take_too_long():
    large = SMALL._replace(features=7)
    found = run_sample_trial(draw_simulated_rows(large, 0, 0))
    missing = [name for name, value in found.items() if value is None]
    assert missing == [
        "likelihood_converged",
        "linear iVAE_converged",
        "FastICA",
        "FastICA_seconds",
        "FastICA_converged",
    ]
    assert describe_left_out([SMALL]) == ""
    assert describe_left_out([SMALL, large]).endswith(": FastICA of more than 6 features.")
    (middle,) = group_medians([found, found], [], list(METHODS))
    assert middle == {name: found[name] for name in METHODS}


@pytest.mark.matrix
def test_linear_ica_may_fail_to_converge(monkeypatch):
    hasty = partial(sklearn.decomposition.FastICA, max_iter=1, tol=1e-12)
    monkeypatch.setattr(sklearn.decomposition, "FastICA", hasty)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run_sample_trial(draw_simulated_rows(SMALL, 0, 0))
    assert not found["FastICA_converged"]
    assert found["BLICA_converged"]
    assert 0 < found["FastICA"] <= 1


@pytest.mark.matrix
def test_trials_are_the_same_everywhere(cluster):
    def found(name: str, address: str | None = None, alone: bool = False) -> list[Any]:
        where = ExecutorOptions(name=name, workers=None, cluster=address)
        return run_shape_trials(run_exact_trial, draw_truth, [SMALL], 2, 7, where, alone)

    expected = found("serial")
    assert [row["model"] for row in expected] == [0, 1]
    assert len({row["residual"] for row in expected}) == 2
    assert found("threads", alone=True) == expected
    assert found("dask", cluster) == expected


def test_medians_are_of_each_group():
    trials = [{"a": 1, "b": x, "c": 0} for x in (5, 1, 3)] + [{"a": 2, "b": 7.5, "c": 0}]
    assert group_medians(trials, ["a"], ["b"]) == [{"a": 1, "b": 3.0}, {"a": 2, "b": 7.5}]


# Commands


@pytest.mark.matrix
def test_identifiability(finished):
    folder = finished / "identifiability"
    trials, middle = table(folder / "identifiability"), table(folder / "identifiability_medians")
    assert [(row["features"], row["components"], row["model"]) for row in trials] == [
        (n, n, model) for n in (2, 7) for model in range(3)
    ]
    assert max(row["residual"] for row in trials) < 1e-20
    assert [row["surplus"] for row in middle] == [-8, 7]
    too_few, enough = (row["distance"] for row in middle)
    assert enough < 1e-12
    assert too_few > 1e-2
    assert too_few == np.median([row["distance"] for row in trials[:3]])


@pytest.mark.matrix
def test_samples(finished):
    folder = finished / "samples"
    trials, middle = table(folder / "samples"), table(folder / "samples_medians")
    assert len(trials) == 2
    shapes = [(row["features"], row["rows_per_segment"]) for row in middle]
    assert shapes == [(5, 64), (5, 2000)]
    assert all(row["BLICA"] > 0.95 > row["FastICA"] for row in middle[1::2])
    for name in METHODS:
        assert all(0 < row[name] <= 1 and row[f"{name}_seconds"] > 0 for row in middle)
    assert {type(row["FastICA_converged"]) for row in trials} == {bool}
    assert {row["linear iVAE_converged"] for row in trials} == {None}


@pytest.mark.matrix
def test_scaling(finished):
    folder = finished / "scaling"
    rows, middle = table(folder / "scaling"), table(folder / "scaling_medians")
    shapes = [(4, 2, 5), (8, 2, 5), (4, 2, 10), (4, 1, 5)]
    assert [(r["features"], r["components"], r["segments"]) for r in rows] == shapes
    assert [tuple(row.values())[:3] for row in middle] == shapes
    assert all(row["BLICA_seconds"] > row["starts"] > 0 < row["iterations"] for row in rows)
    for name in ("BLICA", "linear iVAE"):
        assert all(0 < row[name] <= 1 and row[f"{name}_seconds"] > 0 for row in middle)
    assert [row["FastICA"] is None for row in middle] == [False, True, False, False]


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_the_picture_can_be_read(finished, name):
    (path,) = (finished / name).glob("*.png")
    check_picture(path, 300)


@pytest.mark.matrix
def test_json_is_one_object(finished):
    summary = json.loads((finished / "scaling.out").read_text())
    assert summary["medians"] == table(finished / "scaling/scaling_medians")
    assert summary["files"] == sorted(map(str, (finished / "scaling").iterdir()))


@pytest.mark.matrix
def test_the_table_is_printed(finished):
    lines = (finished / "samples.out").read_text().splitlines()
    assert lines[2].split()[:4] == ["features", "components", "segments", "segment"]
    assert lines[3].split()[:4] == ["5", "2", "6", "64"]
    assert lines[-1] == str(finished / "samples/samples_medians.json")


def test_what_is_missing_is_printed_as_a_dash(capsys):
    print_summary({"medians": [{"rows_per_segment": 1000, "BLICA": None}], "files": []})
    assert capsys.readouterr().out.split() == ["rows", "per", "segment", "BLICA", "1,000", "–"]


# What is refused


def test_a_trial_that_cannot_be_is_refused_in_one_line(call, monkeypatch):
    monkeypatch.setattr(binary_ica, "_SAMPLE_SEGMENTS", 2)
    done = call("blica-samples", "--quick", "--executor", "serial")
    assert done.check_refused().startswith(
        "error: BLICA needs at least 3 segments, but there are 2."
    )
    assert not Path("runs").exists()
