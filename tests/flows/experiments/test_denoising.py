"""The experiment on denoising: noise, trials, tables, pictures, and refused options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from flows.data import datasets
from flows.experiments import denoising
from flows.experiments.base import pack_rows_in_memory
from flows.experiments.denoising import DenoisingTrial, add_noise, run_denoising_trial, split_images
from flows.experiments.tipping import draw_noisy_prototypes, open_images
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.registry import find_model_class
from pipeline.random import RowRandom
from tests.flows.experiments.tables import check_picture, run_experiment, table
from tests.support.data import draw_probit_rows, write_arrays

Call = Callable[..., Any]
FEW = (("mixture", "bernoulli-mixture", {}), ("RBM", "rbm", {"max_iter": 5}))
REAL = denoising._MODELS
NAMES = ("noisy", "linear PCA", "mixture", "RBM")


@pytest.fixture(autouse=True, scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make quick runs quicker still."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(datasets, "find_examples_folder", lambda: folder)
        patched.setattr(denoising, "_MODELS", FEW)
        patched.setattr(denoising, "_QUICK_SEEDS", 3)
        patched.setattr(denoising, "_QUICK_ROWS", 90)
        patched.setattr(denoising, "_N_TRAIN_IMAGES", 40)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of one quick run, and what it printed."""
    output = tmp_path_factory.mktemp("denoising") / "output"
    printed = run_experiment("denoising", output, "--seed", "3", "--components", "4", "--json")
    (output.parent / "summary.json").write_text(printed, encoding="utf-8")
    return output


@pytest.mark.matrix
def test_every_model_is_fitted_to_few_and_to_all_from_every_seed(finished: Path) -> None:
    rows = table(finished / "denoising")
    assert [(row["images"], row["model"], row["seed"]) for row in rows] == [
        (images, name, seed) for images in (40, 60) for name in NAMES for seed in (3, 4, 5)
    ]
    assert all(0 < row["wrong_bits_weighed"] < 0.5 for row in rows)
    middle = table(finished / "denoising_medians")
    assert [(row["images"], row["model"]) for row in middle] == [
        (images, name) for images in (40, 60) for name in NAMES
    ]
    for k, row in enumerate(middle):
        shares = [one["wrong_bits"] for one in rows[3 * k : 3 * k + 3]]
        assert row["wrong_bits"] == np.median(shares)


@pytest.mark.matrix
def test_errors_are_those_of_rows_that_no_model_saw(finished: Path) -> None:
    """Of the noisy rows as they are, and of linear PCA of all rows, by another's projection."""
    train, test = split_images(open_images(None, None, None, 90))
    assert (len(train), len(test)) == (60, 30)
    rows = [row for row in table(finished / "denoising") if row["images"] == 60]
    for seed, as_it_is, linear in zip((3, 4, 5), rows[:3], rows[3:6], strict=True):
        noisy = add_noise(test, seed)
        assert as_it_is["wrong_bits"] == (noisy != test).mean()
        found = PCA(4).fit(train.astype(float))
        back = found.inverse_transform(found.transform(noisy.astype(float)))
        by_threshold = [((back > t) != test).mean() for t in np.linspace(0.05, 0.95, 91)]
        assert min(by_threshold) <= linear["wrong_bits"] < min(by_threshold) + 0.02


def test_the_models_are_there_and_their_settings_too() -> None:
    names = [name for name, *_ in REAL]
    assert len({*names}) == len(names)
    for _, kind, settings in REAL:
        assert find_model_class(kind)(n_components=3, **settings).n_components == 3


@pytest.mark.parametrize("name", ["errors", "images_40", "images_60"])
def test_the_picture_can_be_read(finished: Path, name: str) -> None:
    path = finished / f"denoising_{name}.png"
    check_picture(path, 500)
    text = path.with_suffix(".svg").read_text(encoding="utf-8")
    assert all(f">{label}<" in text for label in NAMES[1:])


def test_json_and_the_table_say_what_was_found(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((finished.parent / "summary.json").read_text())
    assert summary["medians"] == table(finished / "denoising_medians")
    assert summary["files"] == sorted(map(str, finished.iterdir()))
    denoising.print_summary(summary)
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("medians")
    assert head.split() == ["images", "model", "from", "codes", "weighed"]
    assert lines[0].split()[:2] == ["40", "noisy"]
    assert lines[1].split()[3] == f"{summary['medians'][1]['wrong_bits']:.2%}"
    assert lines[8:] == summary["files"]


def test_features_that_make_no_image_are_refused(call: Call, tmp_path: Path) -> None:
    X, _ = draw_probit_rows(40, 12, 2, seed=1)
    path = write_arrays(tmp_path / "d.zarr", X).path
    said = call("denoising", "--dataset", path).check_refused()
    assert "The 12 features are not named r0c0, r0c1, …," in said
    assert said.endswith("Set --image-shape 3x4.")
    said = call("denoising", "--dataset", path, "--image-shape", "4x4").check_refused()
    assert "--image-shape is 4x4, which has 16 pixels" in said


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(100, 12, 2, seed=1)
    observed = np.ones_like(X)
    observed[3, 5] = 0
    path = str(write_arrays(tmp_path / "d.zarr", X, observed).path)
    with pytest.raises(FitError, match="have missing values"):
        split_images(open_images(path, None, "3x4", None))
    with pytest.raises(FitError, match="only 5 images; at least 6"):
        split_images(open_images(path, None, "3x4", None)._replace(block=pack_block(X[:5])))


def rows() -> np.ndarray:
    """Copies of three prototypes of 40 bits, 2 % of them flipped, in random order."""
    X = draw_noisy_prototypes(0.02, 100, 0, n_features=40).X
    return X[np.random.default_rng(0).permutation(len(X))]


def trial(model: object, seed: int = 1) -> DenoisingTrial:
    train, test = np.split(rows(), [200])
    return DenoisingTrial(model, train, test, add_noise(test, seed), seed)  # type: ignore[arg-type]


def test_noise_sets_a_tenth_of_each_row_and_clears_another() -> None:
    zeros, ones = np.zeros((500, 40), np.uint8), np.ones((500, 40), np.uint8)
    of_zeros, of_ones = add_noise(zeros, 3), add_noise(ones, 3)
    np.testing.assert_array_equal(of_zeros.sum(axis=1), 4)
    np.testing.assert_array_equal(of_ones.sum(axis=1), 36)
    # The same draws: no bit is among both tenths.
    assert not (of_zeros & (1 - of_ones)).any()
    np.testing.assert_allclose(of_zeros.mean(axis=0), 0.1, atol=0.06)
    assert (add_noise(zeros, 4) != of_zeros).any()
    assert not zeros.any()


def test_a_model_that_suits_the_rows_cleans_them() -> None:
    """Three kinds of rows: what a kind does not explain is 2 % of the bits."""
    found, tried = run_denoising_trial(trial(BernoulliMixture(3))), trial(None)
    assert (tried.noisy != tried.test).mean() == pytest.approx(0.1, abs=0.02)
    assert found.wrong_bits == (found.bits != tried.test).mean()
    assert found.wrong_bits < 0.03
    assert found.wrong_bits_weighed == (found.weighed != tried.test).mean() < 0.03


def test_bits_are_those_of_the_models_own_codes() -> None:
    model, tried = BernoulliMixture(2), trial(None)
    params = fit_model(
        model, pack_rows_in_memory(tried.train, 1), SerialExecutor(), tried.seed
    ).params
    codes = model.transform(params, pack_block(tried.noisy), RowRandom(0))["mean"]
    expected = model.reconstruct(params, codes) > 0.5
    np.testing.assert_array_equal(run_denoising_trial(trial(model)).bits, expected)


def test_linear_pca_projects_and_cuts_where_training_rows_come_back_best() -> None:
    tried = trial(2)
    mean = tried.train.mean(axis=0)
    leading = np.linalg.svd(tried.train - mean, full_matrices=False)[2][:2]

    def projected(X: np.ndarray) -> np.ndarray:
        return mean + (X - mean) @ leading.T @ leading

    again = projected(add_noise(tried.train, tried.seed + 1))
    wrong = {t: ((again > t) != tried.train).mean() for t in np.linspace(0.05, 0.95, 91)}
    best = min(wrong, key=lambda t: wrong[t])
    found = run_denoising_trial(tried)
    np.testing.assert_array_equal(found.bits, projected(tried.noisy) > best)
    assert found.wrong_bits < 0.1


def test_weighing_keeps_a_noisy_bit_where_codes_say_little() -> None:
    """A model of one kind of rows knows margins alone: below 9 to 1 the noisy bit counts for more.

    Margins of these prototypes are a third, two thirds, or nearly 0 or 1.
    """
    tried = trial(BernoulliMixture(1))
    found, share = run_denoising_trial(tried), tried.train.mean(axis=0)
    unsure = (share > 0.15) & (share < 0.85)
    assert unsure.any()
    assert not unsure.all()
    np.testing.assert_array_equal(found.weighed[:, unsure], tried.noisy[:, unsure])
    sure = (share[~unsure] > 0.5).astype(np.uint8)
    np.testing.assert_array_equal(found.weighed[:, ~unsure], np.tile(sure, (len(tried.test), 1)))


def test_a_model_without_probabilities_is_refused() -> None:
    model = find_model_class("tests.models.neighbours:Neighbours")(n_components=2)
    with pytest.raises(FitError, match="cannot reconstruct features from codes"):
        run_denoising_trial(trial(model))
