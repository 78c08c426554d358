"""Noise, and how rows are cleaned of it."""

from __future__ import annotations

import numpy as np
import pytest

from flows.experiments.base import pack_rows_in_memory
from flows.experiments.denoising import DenoisingTrial, add_noise, run_denoising_trial
from flows.experiments.tipping_trial import draw_noisy_prototypes
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.registry import find_model_class
from pipeline.random import RowRandom


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
