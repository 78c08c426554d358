"""The evaluate command: what it says of each kind of model, and what it refuses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.evaluating import stages
from flows.evaluating.tables import print_evaluation
from pipeline.evaluation.records import describe_outcome, describe_provenance
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.registry import find_models
from pipeline.params import get_named_arrays
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import append_dataset
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth
from tests.support.data import ArrayBatch, draw_probit_rows, make_test_row_source, write_arrays

NAMES = [f"item {i}" for i in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluate")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Path:
    """Sixteen chunks, half of the rows to train on."""
    X, _ = draw_probit_rows(1000, 8, 2, seed=4)
    split = np.where(np.arange(len(X)) % 2, "test", "train")
    columns = {"split": split, "kind": kinds(X, "", ""), "score": X.sum(axis=1) / 2}
    path = folder / "d.zarr"
    return write_arrays(path, X, words_per_chunk=1, columns=columns, names=NAMES).path


def kinds(X: np.ndarray, *first: str) -> np.ndarray:
    """Whether rows have many ones in the last places; the first as told, an empty text is none."""
    found = np.where(X[:, 3:].sum(axis=1) > 2, "many", "few")
    found[: len(first)] = first
    return found


def fitted(dataset: Path, name: str, split: str | None = None, **settings: Any) -> str:
    """An artifact beside the dataset, as a fit would leave it."""
    model, opened = find_models()[name](**settings), open_dataset(dataset)  # type: ignore[call-arg]
    state = fit_model(model, make_test_row_source(opened, split), SerialExecutor())
    arrays = {key: NamedArray(*a) for key, a in get_named_arrays(state.params).items()}
    described = {
        **describe_provenance(model, opened, split, 0),
        **describe_outcome(model, opened, state),
    }
    return str(write_artifact(dataset.parent / f"{dataset.stem}-{name}", arrays, described))


@pytest.fixture(scope="module")
def mixture(dataset: Path) -> str:
    return fitted(dataset, "bernoulli-mixture", "train", n_components=4)


@pytest.fixture(scope="module")
def trait(dataset: Path) -> str:
    return fitted(dataset, "latent-trait", "train", n_components=4, max_iter=5)


def evaluated(cli, *arguments: object) -> dict:
    done = cli("evaluate", *arguments, "--json")
    assert done.code == 0, done.err
    return done.json


def test_models_are_compared_with_each_other_and_with_simple_ones(
    cli, dataset, mixture, trait, capsys
):
    pca = fitted(dataset, "clipped-pca", "train", n_components=2)
    command = ["--dataset", dataset, "--label", "kind"]
    command += [word for name in (pca, trait, mixture) for word in ("--artifact", name)]
    found = evaluated(cli, *command)
    assert (found["n_samples"], found["split"]) == (500, "test")
    assert (found["baselines"]["split"], found["baselines"]["as_artifact"]) == ("train", True)
    assert {model["rows_fitted"] for model in found["models"]} == {"none"}
    by_name = {model["name"]: model for model in found["models"]}
    assert [m["kind"] for m in found["models"]] == ["none", "estimate", "exact", "exact", "exact"]
    assert "log_likelihood" not in by_name[pca]
    flat = by_name["independent features"]
    assert by_name["mixture of 20"]["log_likelihood"] > flat["log_likelihood"]
    for name in (mixture, trait):
        assert by_name[name]["log_likelihood"] > flat["log_likelihood"] + 0.1
    for name in (mixture, trait, pca):
        assert by_name[name]["wrong_bits"] < flat["wrong_bits"]
        assert by_name[name]["pairs"]["rmse"] < 0.75 * flat["pairs"]["rmse"]
        assert by_name[name]["artifact"] == name
        near, told = by_name[name]["neighbourhoods"], by_name[name]["neighbour_labels"]
        assert 0.6 < min(near["trustworthiness"], near["continuity"]) < 1
        assert (told["rows"], told["rows_without"], told["neighbours"]) == (499, 1, 499)
        assert told["commonest"] < min(told["accuracy"], told["accuracy_by_values"]) - 0.1
    held_out = {name: model["held_out"] for name, model in by_name.items() if "held_out" in model}
    assert {*held_out} == {mixture, "independent features", "mixture of 20"}
    assert held_out[mixture]["wrong_values"] < flat["held_out"]["wrong_values"] - 0.05
    # Independent features are predicted in the same way from the code of their own row.
    assert flat["held_out"]["wrong_values"] == pytest.approx(flat["wrong_bits"])
    assert flat["held_out"]["nll_per_value"] == pytest.approx(flat["nll_per_bit"])
    assert by_name[mixture]["wrong_bits"] < held_out[mixture]["wrong_values"]
    assert not {"neighbourhoods", "neighbour_labels"} & {*flat}  # one code for all rows
    worst = flat["pairs"]["largest"][0]
    assert set(worst["features"]) < set(NAMES)
    assert abs(worst["z"]) > 5

    print_evaluation(found)
    table = capsys.readouterr().out
    lines = table.splitlines()
    ranks = [next(i for i, line in enumerate(lines) if line.startswith(name)) for name in by_name]
    order = [name for _, name in sorted(zip(ranks, by_name, strict=True))]
    assert order[-2:] == ["independent features", pca]
    assert f"{by_name[mixture]['log_likelihood']:.4f} ± " in table
    assert "none: the model has no likelihood" in table
    assert {"held-out wrong", "held-out nats"} <= {*re.split("  +", lines[2])}
    assert f"{held_out[mixture]['wrong_values']:.2%}" in table
    assert (
        "\nheld-out: each value is predicted from all other values of its row, in 500 rows" in table
    )
    assert "held-out R²" not in table
    assert "in-sample" not in table
    assert f"baselines: fitted to split train of {dataset}, like the" in lines[1]
    assert "\nkind of 499 rows: predicted by the 5 nearest of 499 rows fitted\n" in table
    assert "\nkind: 1 rows without a label are left out\n" in table
    told = by_name[mixture]["neighbour_labels"]
    assert f"{told['accuracy']:.1%} ± {told['standard_error']:.1%}" in table
    gap = by_name[mixture]["pairs"]["largest"][0]
    text = f"pairs: {', '.join(gap['features'])}: observed {gap['observed']:.4f}"
    assert text not in table
    pair = next(one for one in found["differences"] if {*one["models"]} == {trait, mixture})
    difference = pair["nats_per_row"]
    assert 0 < difference["standard_error"] < 0.5 * by_name[trait]["standard_error"]
    gain = by_name[trait]["log_likelihood"] - by_name[mixture]["log_likelihood"]
    assert difference["difference"] == pytest.approx(gain)
    (line,) = (line for line in lines if line.startswith("independent features"))
    assert re.search(r" -\d\.\d{4} ± \d\.\d{4} \*", line)  # worse than all
    print_evaluation(found, details=True)
    assert text in capsys.readouterr().out


def test_baselines_that_saw_the_rows_do_not_rank_first(cli, dataset):
    """A mixture of twenty knows the rows that it was fitted to better than a weak model."""
    weak = fitted(dataset, "bernoulli-mixture", n_components=1)
    command = (
        "--dataset",
        dataset,
        "--artifact",
        weak,
        "--split",
        "all",
        "--dif",
        "split",
        "--all",
    )
    done = cli("evaluate", *command)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("model "))
    tests = next(k for k, line in enumerate(lines) if line.startswith("split: "))
    assert tests < first  # the test that was asked for comes before the comparison
    ranked = [line.split("  ")[0] for line in lines[first + 1 : first + 4]]
    assert ranked == [
        *(f"{name} (in-sample)" for name in (weak, "mixture of 20", "independent features"))
    ]
    assert "implied" not in done.out


def nats_of_independent_features(train: np.ndarray, X: np.ndarray) -> float:
    """With a pseudo-count of ones and of zeros each, by hand."""
    p = (train.sum(axis=0) + 1) / (len(train) + 2)
    return float((X * np.log(p) + (1 - X) * np.log1p(-p)).sum(axis=1).mean())


@pytest.mark.matrix
def test_rows_of_a_dataset_of_their_own_are_judged_by_what_was_fitted_to_others(
    cli, tmp_path, capsys
):
    """Of two datasets with other margins, so that baselines of the wrong one would show."""
    X, _ = draw_probit_rows(1200, 8, 2, seed=4)
    old, new = X[:600], np.where(np.arange(8) < 3, 1 - X[600:], X[600:]).astype(np.uint8)
    kind = [{"kind": kinds(part, name)} for part, name in ((old, "few"), (new, "many"))]
    train = write_arrays(tmp_path / "train.zarr", old, None, None, 1, kind[0], NAMES)
    test = write_arrays(tmp_path / "test.zarr", new, None, None, 1, kind[1], NAMES).path
    model = fitted(train.path, "bernoulli-mixture", n_components=3)

    def judged(dataset: Path) -> tuple[dict[str, Any], list[str], float]:
        found = evaluated(cli, "--dataset", dataset, "--artifact", model, "--label", "kind")
        by_name = {one["name"]: one for one in found["models"]}
        capsys.readouterr()
        print_evaluation(found)
        fitted_rows = {name: one["rows_fitted"] for name, one in by_name.items()}
        head = capsys.readouterr().out.split("\nmodel ")[0].splitlines()[1:]
        told = by_name[model]["neighbour_labels"]
        assert told["accuracy_by_values"] > 0.8  # the texts are the same, their codes are not
        elsewhere = f"so neighbours come from {dataset}" in str(by_name[model]["warnings"])
        assert elsewhere == (fitted_rows[model] == "unknown")
        return fitted_rows, head, by_name["independent features"]["log_likelihood"]

    simple = ("independent features", "mixture of 20")
    others, head, nats = judged(test)
    assert others == dict.fromkeys((model, *simple), "none")
    (line,) = head
    assert line == f"baselines: fitted to all rows of {train.path}, like the artifact"
    assert nats == pytest.approx(nats_of_independent_features(old, new))

    own, head, nats = judged(train.path)
    assert own == dict.fromkeys((model, *simple), "all")
    assert head[0].startswith("in-sample, fitted to these rows: ")
    assert set(head[0].partition(": ")[2].split(", ")) == {model, *simple}
    assert nats == pytest.approx(nats_of_independent_features(old, old))

    with append_dataset(train.path, NAMES) as writer:  # the rows fitted are the leading ones
        writer.add(ArrayBatch(new, None, kind[1]))
    grown, head, nats = judged(train.path)
    assert grown == dict.fromkeys((model, *simple), "some")
    assert head[0].startswith("partly in-sample, fitted to some of these rows: ")
    assert f"to all rows of the first 10 chunks of {train.path}," in head[1]
    assert nats == pytest.approx(nats_of_independent_features(old, np.concatenate([old, new])))

    shutil.rmtree(train.path)
    gone, head, nats = judged(test)
    assert gone == {model: "unknown", **dict.fromkeys(simple, "all")}
    assert [line.partition(",")[0] for line in head[:2]] == ["in-sample", "perhaps in-sample"]
    assert head[2].endswith(f"all rows of {test}, because the artifact's rows no longer exist")
    assert nats == pytest.approx(nats_of_independent_features(new, new))


@pytest.mark.matrix
def test_every_executor_gives_the_same_numbers(cli, dataset, mixture, trait, cluster):
    command = ("--dataset", dataset, "--artifact", mixture, "--artifact", trait, "--no-baselines")
    command += ("--label", "kind", "--split", "all")
    serial = evaluated(cli, *command, "--executor", "serial")
    assert serial["n_samples"] == 1000
    assert 0 < serial["models"][1]["estimation_error"] < 0.01
    for options in (("--executor", "threads"), ("--cluster", cluster)):
        assert evaluated(cli, *command, *options)["models"] == serial["models"]


@pytest.mark.matrix
def test_baselines_of_many_rows_start_from_a_sample(cli, dataset, mixture, monkeypatch):
    command = ("--dataset", dataset, "--artifact", mixture)
    found = []
    for n_rows in (100, 10_000):
        monkeypatch.setattr(stages, "_MAX_START_ROWS", n_rows)
        models = evaluated(cli, *command)["models"]
        found.append({model["name"]: model for model in models})
    sampled, full = (models["mixture of 20"] for models in found)
    difference = abs(sampled["log_likelihood"] - full["log_likelihood"])
    assert 0 < difference < full["standard_error"]
    assert found[0]["independent features"] == found[1]["independent features"]


def test_baselines_can_be_left_out_or_fail_alone(cli, folder, dataset, mixture):
    alone = evaluated(cli, "--dataset", dataset, "--artifact", mixture, "--no-baselines")
    assert [model["name"] for model in alone["models"]] == [mixture]
    X, _ = draw_probit_rows(200, 8, 2, seed=5)
    other = write_arrays(folder / "other.zarr", X, names=NAMES).path
    orphan = fitted(other, "bernoulli-mixture", n_components=4)
    shutil.rmtree(other)
    observed = np.ones_like(X)
    observed[:, 3] = 0
    path = write_arrays(folder / "gone.zarr", X * observed, observed, names=NAMES).path
    found = evaluated(cli, "--dataset", path, "--artifact", orphan)
    assert [model["name"] for model in found["models"]] == [orphan]
    assert len(found["warnings"]) == 2
    assert "'item 3'" in found["warnings"][0]
    assert found["models"][0]["pairs"]["number"] == 21


def segmented(path: Path, n_features: int, order: list[int], extra: bool = False) -> Path:
    """Rows of three segments, in this order; the names stay with their rows."""
    truth = draw_nonstationary_truth(n_features, 2, 3, seed=3)
    (batch,) = draw_nonstationary_rows(truth, 400, seed=3)
    labels = batch.columns["segment"]
    at = np.concatenate([np.flatnonzero(labels == name) for name in np.unique(labels)[order]])
    labels = np.where((labels == labels[-1]) & extra, "new", labels)
    return write_arrays(path, batch.X[at], segments=labels[at]).path


@pytest.mark.matrix
def test_segments_are_found_by_name(cli, tmp_path):
    first = segmented(tmp_path / "first.zarr", 6, [0, 1, 2])
    blica = fitted(first, "blica", n_components=2, regularization=20.0)
    other = segmented(tmp_path / "other.zarr", 6, [2, 0, 1])
    command = ("--artifact", blica, "--no-baselines", "--dataset")
    (here,), (there,) = (evaluated(cli, *command, path)["models"] for path in (first, other))
    assert here["kind"] == "estimate"
    for name in ("log_likelihood", "nll_per_bit"):
        assert there[name] == pytest.approx(here[name], abs=1e-4)
    new = segmented(tmp_path / "new.zarr", 6, [0, 1, 2], extra=True)
    (elsewhere,) = evaluated(cli, *command, new)["models"]
    assert elsewhere["log_likelihood"] < here["log_likelihood"] - 1e-3
    assert any("'new'" in warning for warning in elsewhere["warnings"])


@pytest.mark.matrix
def test_blica_is_ranked_by_its_likelihood_however_many_features(cli, tmp_path):
    path = segmented(tmp_path / "wide.zarr", 22, [0, 1, 2])
    blica = fitted(path, "blica", n_components=2, regularization=20.0)
    models = evaluated(cli, "--dataset", path, "--artifact", blica)["models"]
    found, *simple = (model for model in models if "log_likelihood" in model)
    assert [found["name"], found["kind"], len(simple)] == [blica, "estimate", 2]
    assert 0 < found["estimation_error"] < 0.02


# --- what is refused -----------------------------------------------------------------------------


@pytest.fixture
def refused(cli):
    def call(*arguments: object) -> str:
        return cli("evaluate", *arguments).check_refused()

    return call


def test_other_features_are_refused_by_name(refused, mixture, tmp_path):
    X, _ = draw_probit_rows(50, 8, 2, seed=4)
    path = write_arrays(tmp_path / "o.zarr", X, names=[*NAMES[:5], "other", *NAMES[6:]]).path
    message = refused("--dataset", path, "--artifact", mixture)
    assert "'item 5'" in message
    assert "'other'" in message


def test_what_is_not_there_is_refused(refused, dataset, mixture):
    here = ("--dataset", dataset, "--artifact", mixture)
    assert "--split: there is no split 'valid'" in refused(*here, "--split", "valid")
    assert "nowhere" in refused("--dataset", dataset, "--artifact", "nowhere")
    assert "--artifact" in refused("--dataset", dataset)
    message = "has no such per-row column. Choose one of: split, kind, score, segment."
    assert refused(*here, "--label", "knd").endswith(message)
    fractions = "--label: Column 'score' holds fractions, but labels must be text or whole numbers."
    assert fractions in refused(*here, "--label", "score")
    assert "--seed" in refused(*here, "--seed", -1)
