"""Fits that begin where the last one ended."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from flows.data.datasets import load_fitted_model
from flows.fitting.provenance import compute_fingerprint, describe_artifact
from pipeline.evaluation.records import describe_provenance
from storage import load_artifact
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import append_dataset
from tests.support.data import ArrayBatch, draw_probit_rows, write_arrays
from tests.support.processes import kill_fit_at

N_ROWS, N_NEW, N_FEATURES = 8000, 400, 10
X, _ = draw_probit_rows(N_ROWS + N_NEW, N_FEATURES, 2, seed=3)
OPTIONS = ("--executor", "serial", "--no-report")
SETTINGS = {
    "latent-trait": ("--components", "3", "--set", "estimator=variational"),
    "bernoulli-mixture": ("--components", "3", "--set", "starts=1"),
}
# Cold fits of latent-trait start near their end, from the correlations of pairs.
LARGEST_SHARES = {"latent-trait": 0.75, "bernoulli-mixture": 0.6}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_arrays(tmp_path / "d.zarr", X[:N_ROWS], words_per_chunk=50).path


def append(dataset: Path) -> None:
    with append_dataset(dataset, [f"f{i}" for i in range(N_FEATURES)]) as writer:
        writer.add(ArrayBatch(X[N_ROWS:]))


@pytest.mark.parametrize(
    "name", [pytest.param("latent-trait", marks=pytest.mark.matrix), "bernoulli-mixture"]
)
def test_a_warm_start_ends_where_a_cold_one_does_in_fewer_passes(cli, dataset, name: str) -> None:
    command = ("fit", "--dataset", dataset, "--model", name, *SETTINGS[name], *OPTIONS)
    before = cli(*command, "--json")
    assert before.code == 0, before.err
    append(dataset)
    cold = cli(*command, "--json", "--output", "cold").json
    shutil.copytree("runs/d", "again")
    warm = cli(*command, "--json", "--warm-start").json
    assert warm["converged"]
    assert warm["iterations"] <= LARGEST_SHARES[name] * cold["iterations"]
    assert warm["objective"] == pytest.approx(cold["objective"], abs=1e-5)
    told = load_artifact(warm["artifact"]).manifest["warm_start"]
    assert told == {
        "path": str(Path(before.json["artifact"]).resolve()),
        "digest": load_artifact(before.json["artifact"]).manifest["manifest_digest"],
    }
    assert load_artifact(cold["artifact"]).manifest["warm_start"] is None
    threads = ["threads" if word == "serial" else word for word in command]
    repeated = cli(*threads, "--warm-start", "--output", "again")
    assert "started" in repeated.out
    once, twice = load_artifact(warm["artifact"]), load_artifact("again")
    assert {n: once[n].tobytes() for n in once} == {n: twice[n].tobytes() for n in twice}


def test_features_that_an_append_added_make_a_fit_start_anew(cli, dataset) -> None:
    model = ("--model", "bernoulli-mixture", "--set", "starts=1", "--set", "max_iter=2")
    command = ("fit", "--dataset", dataset, *model, *OPTIONS)
    before = cli(*command, "--components", "3", "--json").json["artifact"]
    names = [*(f"f{i}" for i in range(N_FEATURES)), "new"]
    with append_dataset(dataset, names, "missing") as writer:
        writer.add(ArrayBatch(np.column_stack([X[N_ROWS:], X[N_ROWS:, 0]])))
    done = cli(*command, "--warm-start", "--json")
    assert done.code == 0, done.err
    assert f"{before}, because features were added since: new\n" in done.err
    manifest = load_artifact(done.json["artifact"]).manifest
    assert (manifest["warm_start"], manifest["n_components"]) == (None, 3)
    assert "started" in cli(*command, "--warm-start").out


@pytest.mark.matrix
def test_the_number_of_components_is_kept_unless_another_is_asked_for(cli, dataset) -> None:
    command = ("fit", "--dataset", dataset, "--model", "latent-trait", *OPTIONS)
    short = ("--set", "max_iter=3", "--set", "nodes=5")
    cli(*command, *short, "--components", "3")
    for asked in ((), ("--components", "auto")):
        done = cli(*command, *short, *asked, "--warm-start", "--json")
        assert done.json["n_components"] == 3
        manifest = load_artifact(done.json["artifact"]).manifest
        assert manifest["hyperparameters"]["n_components"] == 3
    done = cli(*command, *short, "--components", "2", "--warm-start")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "Set --components 3, or leave out --warm-start" in done.message
    # other settings may differ: a start decides where passes begin alone
    exact = ("--set", "estimator=quadrature")
    assert cli(*command, *short, *exact, "--warm-start").code == 0
    done = cli(*command, *short, "--set", "prior_precision=1", "--warm-start", "--json")
    assert done.json["diagnostics"]["estimator"] == "quadrature"
    assert done.json["iterations"] <= 3


def test_a_start_with_several_trees_is_refused_for_a_single_tree(cli, dataset) -> None:
    command = ("fit", "--dataset", dataset, *OPTIONS, "--model")
    cli(*command, "tree-mixture", "--components", "2", "--set", "max_iter=2")
    refused = cli(*command, "chow-liu", "--warm-start").check_refused()
    assert refused.endswith("has 2 components, not 1. Leave out --warm-start.")


def test_what_cannot_be_a_start_is_refused_before_any_work(cli, dataset, tmp_path) -> None:
    command = ("fit", "--dataset", dataset, *OPTIONS, "--warm-start")
    trait, mixture = ("--model", "latent-trait"), ("--model", "bernoulli-mixture")
    cli("fit", "--dataset", dataset, *trait, "--set", "max_iter=2", *OPTIONS)
    renamed = write_arrays(
        tmp_path / "e.zarr", X, names=[f"f{i}" for i in range(N_FEATURES)][::-1]
    ).path
    refusals = [
        (command, "clipped-pca does not iterate and needs no start, unlike"),
        ((*command, "--model", "blica"), "blica does not iterate and needs no start"),
        ((*command, *mixture), "is of latent-trait, not of bernoulli-mixture"),
        (
            ("fit", "--dataset", renamed, *trait, *command[3:], "--output", "runs/d"),
            ". Fit once without --",
        ),
    ]
    for refused, text in refusals:
        done = cli(*refused)
        assert done.code == 2
        assert done.err.count("\n") == 1, done.err
        assert text in done.message
    first = cli(*command, *trait, "--set", "max_iter=2", "--output", "new")
    assert "warning: the fit starts anew, because new contains no latest artifact" in first.err
    assert Path("new/latest").exists()


def test_an_alias_with_another_number_of_components_is_refused(cli, dataset) -> None:
    command = ("fit", "--dataset", dataset, *OPTIONS, "--set", "max_iter=2")
    cli(*command, "--model", "tree-mixture", "--components", "2", "--set", "starts=1")
    done = cli(*command, "--model", "chow-liu", "--warm-start")
    assert done.code == 2
    assert "has 2 components, not 1" in done.message


def test_a_start_with_other_hidden_states_is_refused(cli, dataset) -> None:
    command = ("fit", "--dataset", dataset, *OPTIONS, "--model", "hidden-tree")
    command += ("--set", "max_iter=2")
    cli(*command, "--set", "states=2", "--set", "trees=2")
    done = cli(*command, "--set", "states=3", "--warm-start")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "has 4 components, which the settings of this fit do not allow" in done.message
    done = cli(*command, "--set", "states=4", "--warm-start")
    assert done.code == 2
    assert "continues a fit with --set states=2 and --set trees=2. Use these" in done.message
    done = cli(*command, "--set", "states=2", "--set", "trees=2", "--warm-start")
    assert done.code == 0


@pytest.mark.matrix
def test_the_artifact_to_begin_at_makes_another_fit_wherever_it_lies(cli, dataset) -> None:
    command = ("fit", "--dataset", dataset, "--model", "latent-trait", *OPTIONS)
    for n_passes in (2, 3):
        cli(*command, "--set", f"max_iter={n_passes}", "--output", f"runs/{n_passes}")
    shutil.copytree("runs/2", "elsewhere")
    starts = [load_fitted_model(path) for path in ("runs/2", "elsewhere", "runs/3")]
    model, opened = starts[0].model, open_dataset(dataset)
    names = [
        compute_fingerprint(describe_provenance(model, opened, None, 0, warm_start=start))
        for start in (*map(describe_artifact, starts), None)
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


@pytest.mark.matrix
def test_an_interrupted_warm_start_goes_on(cli, dataset) -> None:
    slow = ("--set", "estimator=sampling", "--set", "nodes=1000", "--components", "2")
    command = ("fit", "--dataset", dataset, "--model", "latent-trait", *slow, *OPTIONS)
    assert cli(*command, "--set", "max_iter=2").code == 0
    shutil.copytree("runs/d", "undisturbed")
    warm = (*command, "--set", "max_iter=5", "--warm-start", "--json")
    expected = load_artifact(cli(*warm, "--output", "undisturbed").json["artifact"])
    kill_fit_at("states/000002/manifest.json", [str(word) for word in warm[1:]])
    done = cli(*warm, "--resume")
    assert done.code == 0, done.err
    found = load_artifact(done.json["artifact"])
    assert found.manifest["iterations"] == 5
    assert {n: found[n].tobytes() for n in found} == {n: expected[n].tobytes() for n in expected}


@pytest.mark.matrix
def test_a_warm_start_refuses_an_artifact_with_arrays_of_another_version(cli, dataset) -> None:
    model = ("--model", "latent-trait", "--components", "2", "--set", "estimator=quadrature")
    command = ("fit", "--dataset", dataset, *model, *OPTIONS)
    before = load_artifact(cli(*command, "--json").json["artifact"])
    other = {"node_log_weights": NamedArray(("node",), np.zeros(0))}
    kept = {name: NamedArray(before.dims(name), before[name]) for name in before if name != "axes"}
    write_artifact(before.path, {**kept, **other}, before.manifest)
    refused = cli(*command, "--warm-start")
    assert refused.code != 0
    assert "axes, node_log_weights" in refused.err
    assert "Fit again." in refused.err
