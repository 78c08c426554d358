"""Exact matches: derivatives, what they recover, and where nothing can be recovered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.experiments.binary_ica import (
    EXACT_RESIDUAL,
    jacobian,
    match_exactly,
    population_correlations,
    residuals,
    run_exact_trial,
)
from pipeline.errors import FitError
from pipeline.executors.base import limit_blas_threads
from pipeline.models.binary_ica.gaussian_likelihood import MatchSolution
from pipeline.numerics.metrics import mean_cosine_similarity
from storage.examples import NonstationaryTruth, draw_nonstationary_truth


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As in every executor: more threads only wait for each other on matrices so small."""
    with limit_blas_threads():
        yield


def correlations(truth: NonstationaryTruth) -> np.ndarray:
    """Correlations of √(π/8) A z + ε, by their formula."""
    A, variances = truth.mixing, truth.source_variances
    covariances = np.eye(len(A)) + np.pi / 8 * np.einsum("ik,uk,jk->uij", A, variances, A)
    deviations = np.sqrt(np.einsum("uii->ui", covariances))
    return covariances / deviations[:, :, None] / deviations[:, None]


@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_derivatives_are_those_of_finite_differences(n, n_components, n_segments, seed):
    rng = np.random.default_rng(seed)
    flat = rng.standard_normal(n * n_components + n_segments * n_components)
    given_ = rng.uniform(-1, 1, (n_segments, n, n))
    steps = 1e-5 * np.eye(len(flat))
    ahead, behind = (
        np.array([residuals(flat + sign * step, given_, n_components) for step in steps])
        for sign in (1, -1)
    )
    numeric = (ahead - behind).T / 2e-5
    np.testing.assert_allclose(jacobian(flat, given_, n_components), numeric, atol=1e-8)


def test_residuals_are_of_the_pairs_of_each_segment():
    rng = np.random.default_rng(0)
    solution = MatchSolution(*(rng.standard_normal(s) for s in ((4, 2), (3, 2), (3, 4))))
    flat = np.concatenate([solution.mixing.ravel(), solution.log_variances.ravel()])
    given_ = rng.uniform(-1, 1, (3, 4, 4))
    i, j = np.triu_indices(4, 1)
    expected = [solution.model_correlation(u)[i, j] - given_[u, i, j] for u in range(3)]
    np.testing.assert_allclose(residuals(flat, given_, 2), np.concatenate(expected), atol=1e-14)


@pytest.mark.parametrize(("n", "n_components"), [(2, 1), (5, 5), (10, 3)])
def test_exact_probabilities_give_the_correlations_of_the_model(n, n_components):
    truth = draw_nonstationary_truth(n, n_components, 4, seed=3)
    found = population_correlations(truth)
    np.testing.assert_allclose(found, correlations(truth), atol=1e-11)
    np.testing.assert_array_equal(np.einsum("uii->ui", found), 1.0)


def test_means_of_sources_do_not_matter():
    truth = draw_nonstationary_truth(5, 3, 4, seed=3)
    centred = truth._replace(source_means=np.zeros_like(truth.source_means))
    found = [population_correlations(t) for t in (truth, centred)]
    np.testing.assert_allclose(*found, atol=1e-11)


@pytest.mark.parametrize(("n", "n_components", "n_segments"), [(5, 5, 5), (6, 2, 3), (10, 3, 2)])
def test_a_match_finds_mixing_and_variances(n, n_components, n_segments):
    truth = draw_nonstationary_truth(n, n_components, n_segments, seed=1)
    (mixing, log_variances, log_precisions), residual = match_exactly(
        correlations(truth), n_components, range(12)
    )
    assert residual < EXACT_RESIDUAL
    assert mean_cosine_similarity(mixing, truth.mixing) > 1 - 1e-12
    signal = np.pi / 8 * (truth.mixing**2).sum(axis=0) * truth.source_variances
    found = (mixing**2).sum(axis=0) * np.exp(log_variances)
    np.testing.assert_allclose(np.sort(found, axis=1), np.sort(signal, axis=1), rtol=1e-6)
    power = 1 + np.exp(log_variances) @ mixing.T**2
    np.testing.assert_allclose(np.exp(-2 * log_precisions) * power, 1)


def test_starts_end_with_the_first_that_matches():
    truth = draw_nonstationary_truth(6, 2, 3, seed=1)
    seeds = iter(range(100))
    match_exactly(correlations(truth), 2, seeds)
    assert next(seeds) < 12


def test_of_starts_that_do_not_match_the_best_is_taken():
    given_ = correlations(draw_nonstationary_truth(5, 3, 4, seed=2))
    alone = [match_exactly(given_, 1, [seed]).residual for seed in range(3)]
    assert min(alone) > 1e-3
    assert match_exactly(given_, 1, range(3)).residual == min(alone)


@pytest.mark.parametrize("n_components", [0, 4])
def test_a_number_of_components_that_cannot_be(n_components):
    with pytest.raises(FitError, match=f"components is {n_components}, but must lie between 1 and"):
        match_exactly(np.ones((2, 3, 3)), n_components, [0])


def distances(n: int, n_segments: int, n_models: int) -> np.ndarray:
    found = [
        run_exact_trial(draw_nonstationary_truth(n, n, n_segments, s)) for s in range(n_models)
    ]
    assert all(one["residual"] < EXACT_RESIDUAL for one in found)
    return np.array([one["distance"] for one in found])


@pytest.mark.parametrize(("n", "n_segments"), [(5, 5), (7, 4)])
def test_with_enough_segments_the_mixing_is_found(n, n_segments):
    assert (distances(n, n_segments, 2) < 1e-12).all()


@pytest.mark.parametrize(("n", "n_segments"), [(2, 4), (5, 2)])
def test_with_too_few_statistics_it_is_not(n, n_segments):
    assert np.median(distances(n, n_segments, 5)) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_segments"), [(5, 5), (6, 4), (7, 4), (9, 3), (10, 3)])
def test_ten_models_that_are_identifiable(n, n_segments):
    found = distances(n, n_segments, 10)
    assert (found <= 1e-4).sum() >= 9
    assert np.median(found) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "n_segments"), [*((2, u) for u in range(2, 7)), *((n, 2) for n in range(3, 11))]
)
def test_ten_models_that_are_not(n, n_segments):
    assert np.median(distances(n, n_segments, 10)) > 1e-2
