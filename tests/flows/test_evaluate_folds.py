"""Cross-validation: what refits say of the rows that they had no part in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.evaluating.tables import print_evaluation
from pipeline.data.blocks import pack_block
from pipeline.evaluation.evaluate import assign_folds
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.registry import find_models
from pipeline.random import RowRandom
from storage.dataset.dataset import BinaryDataset, open_dataset
from tests.support.data import (
    draw_probit_rows,
    find_shared_data,
    make_test_row_source,
    write_arrays,
)
from tests.support.fits import write_fit

FOLDS = 5


@pytest.fixture
def evaluated(cli):
    def call(*arguments: object) -> dict:
        done = cli("evaluate", *arguments, "--json")
        assert done.code == 0, done.err
        return done.json

    return call


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return draw_probit_rows(403, 6, 2, seed=3)[0]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, rows: np.ndarray) -> BinaryDataset:
    """Seven chunks."""
    path = tmp_path_factory.mktemp("folds") / "d.zarr"
    return write_arrays(path, rows, words_per_chunk=1, columns={"kind": rows[:, 0].astype(str)})


def fitted(dataset: BinaryDataset, name: str, **settings: object) -> Path:
    model = find_models()[name](**settings)  # type: ignore[call-arg]
    return write_fit(dataset.path.parent / f"{name}-{dataset.path.stem}", model, dataset)


def test_rows_are_judged_by_fits_to_the_others(evaluated, dataset, rows, tmp_path):
    model = BernoulliMixture(n_components=2)
    artifact = fitted(dataset, "bernoulli-mixture", n_components=2)
    command = ("--dataset", dataset.path, "--artifact", artifact, "--folds", FOLDS)
    found = evaluated(*command, "--seed", 4)
    assert (found["folds"], found["n_samples"], found["split"]) == (FOLDS, len(rows), None)
    told = found["models"][0]

    folds, nats = assign_folds(np.arange(len(rows)), FOLDS, 4), np.empty(len(rows))
    flat = np.empty(len(rows))  # the baseline of independent features
    for k in range(FOLDS):  # rows without the fold, as a dataset of their own
        apart = folds == k
        others = write_arrays(tmp_path / f"{k}.zarr", rows[~apart], words_per_chunk=1)
        state = fit_model(model, make_test_row_source(others), SerialExecutor(), 0)
        judged = pack_block(rows[apart])
        nats[apart] = model.log_likelihood(state.params, judged, RowRandom(0)).nats
        p = (rows[~apart].sum(axis=0) + 1) / ((~apart).sum() + 2)
        flat[apart] = np.where(rows[apart], np.log(p), np.log(1 - p)).sum(axis=1)
        assert told["folds"][k]["rows"] == apart.sum()
    assert told["log_likelihood"] == pytest.approx(nats.mean(), abs=0.01)
    assert told["standard_error"] == pytest.approx(nats.std() / np.sqrt(len(nats)), rel=0.02)
    names = [str(artifact), "independent features"]
    (pair,) = (one for one in found["differences"] if one["models"] == names)
    assert pair["nats_per_row"]["difference"] == pytest.approx((nats - flat).mean(), abs=0.01)
    error = (nats - flat).std() / np.sqrt(len(nats))
    assert pair["nats_per_row"]["standard_error"] == pytest.approx(error, rel=0.02)
    whole = evaluated("--dataset", dataset.path, "--artifact", artifact, "--no-baselines")
    assert told["log_likelihood"] < whole["models"][0]["log_likelihood"]


@pytest.mark.matrix
def test_every_executor_gives_the_same_numbers(evaluated, dataset, cluster):
    artifact = fitted(dataset, "latent-trait", n_components=1, max_iter=4)
    command = ("--dataset", dataset.path, "--artifact", artifact, "--folds", 3)
    serial = evaluated(*command, "--executor", "serial")["models"]
    assert [model["name"] for model in serial] == [
        *(str(artifact), "independent features", "mixture of 20")
    ]
    assert all("log_likelihood" in model and "wrong_bits" in model for model in serial)
    for options in (("--executor", "threads"), ("--cluster", cluster)):
        assert evaluated(*command, *options)["models"] == serial


@pytest.mark.matrix
def test_the_rows_are_those_that_a_fit_takes(evaluated, rows, tmp_path):
    split = {"split": np.where(np.arange(len(rows)) < 200, "train", "test")}
    dataset = write_arrays(tmp_path / "d.zarr", rows, columns=split)
    artifact = fitted(dataset, "clipped-pca", n_components=1)
    command = ("--dataset", dataset.path, "--artifact", artifact, "--folds", 2)
    found = evaluated(*command, "--no-baselines")
    assert (found["split"], found["n_samples"]) == ("train", 200)
    assert found["models"][0]["kind"] == "none"
    assert 0 < found["models"][0]["wrong_bits"] < 0.5
    for name, n in (("test", 203), ("all", 403)):
        assert evaluated(*command, "--no-baselines", "--split", name)["n_samples"] == n


@pytest.mark.matrix
def test_segments_keep_their_parameters(evaluated, tmp_path):
    X, _ = draw_probit_rows(900, 6, 2, seed=1)
    segments = np.repeat(["a", "b", "c"], 300)
    dataset = write_arrays(tmp_path / "d.zarr", X, segments=segments)
    artifact = fitted(dataset, "blica", n_components=1, regularization=20.0)
    command = ("--dataset", dataset.path, "--artifact", artifact, "--folds", 2)
    found = {one["name"]: one for one in evaluated(*command)["models"]}
    blica, flat = found[str(artifact)], found["independent features"]
    assert blica["log_likelihood"] > flat["log_likelihood"] + 0.05


@pytest.mark.matrix
def test_the_order_in_sample_is_not_the_order_of_held_out_rows(evaluated, cli, tmp_path, capsys):
    """A mixture of five knows the 316 persons of a questionnaire better than the next ones."""
    source = str(find_shared_data("verbal_aggression.npz"))
    done = cli("ingest", source, "--dataset", tmp_path / "anger.zarr")
    assert done.code == 0, done.err
    dataset = open_dataset(tmp_path / "anger.zarr")
    trait = str(fitted(dataset, "latent-trait", n_components=1))
    mixture = str(fitted(dataset, "bernoulli-mixture", n_components=5))
    command = ("--dataset", dataset.path, "--artifact", trait, "--artifact", mixture)

    def nats(summary: dict) -> dict[str, float]:
        return {model["name"]: model["log_likelihood"] for model in summary["models"]}

    seen = nats(evaluated(*command, "--no-baselines"))
    found = evaluated(*command, "--folds", FOLDS)
    held_out = nats(found)
    assert seen[mixture] > seen[trait] + 0.3
    assert held_out[trait] > held_out[mixture] + 0.02
    assert held_out[trait] > held_out["independent features"] + 1

    capsys.readouterr()
    print_evaluation(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "rows: 316 (all)",
        "cross-validation: 5 folds, each evaluated by models fitted to the others",
    ]
    assert "pairs" not in lines[2]
    assert lines[3].startswith(trait)
    error = next(one for one in found["models"] if one["name"] == trait)["standard_error"]
    assert f"{held_out[trait]:.4f} ± {error:.4f}" in lines[3]
    assert not any("in-sample" in line or "implied" in line for line in lines)


def test_a_fold_without_which_nothing_can_be_fitted_is_named(cli, rows, tmp_path):
    """A feature that is observed in one row alone cannot be fitted without that row."""
    observed = np.ones_like(rows)
    observed[1:, 2] = 0
    dataset = write_arrays(tmp_path / "d.zarr", rows, observed)
    artifact = fitted(dataset, "bernoulli-mixture", n_components=2)
    fold = int(assign_folds(np.arange(1), 2, 0)[0]) + 1
    command = ("--dataset", dataset.path, "--artifact", artifact, "--folds", 2)
    message = cli("evaluate", *command).check_refused()
    assert f"{artifact}: fold {fold}: " in message
    assert "'f2'" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--folds", 1), "--folds is 1. Choose at least 2."),
        (("--folds", 2.5), "'2.5' is not a whole number."),
        (("--folds", 2, "--label", "kind"), "--folds and --label cannot be combined."),
        (("--folds", 500), "--folds is 500, but there are only 403 rows. Choose at most 403."),
    ],
)
def test_what_cannot_be_done_is_refused(cli, dataset, options, message):
    artifact = fitted(dataset, "bernoulli-mixture", n_components=2)
    assert (
        message
        in cli(
            "evaluate", "--dataset", dataset.path, "--artifact", artifact, *options
        ).check_refused()
    )


def test_models_of_labels_are_refused(cli, dataset):
    artifact = fitted(dataset, "bottleneck", column="kind")
    command = ("--dataset", dataset.path, "--artifact", artifact, "--folds", 2)
    assert "bottleneck, which predicts labels" in cli("evaluate", *command).check_refused()
