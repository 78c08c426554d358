"""The Gaussian likelihood against dense inverses, its gradient, and its maximisation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import FitError
from pipeline.executors.base import ThreadsExecutor
from pipeline.models.binary_ica import gaussian_likelihood
from pipeline.models.binary_ica.gaussian_likelihood import (
    MatchSolution,
    Optimum,
    SegmentMoments,
    draw_start,
    likelihood_and_gradient,
    maximise,
    maximise_from_seeds,
    maximise_variances,
    solution_from_vector,
)
from pipeline.numerics.metrics import mean_cosine_similarity
from tests.pipeline.models.binary_ica import (
    compute_correlations,
    draw_solution,
    make_moments,
)
from tests.support.derivatives import differentiate

RIDGES = (0.0, 0.3, 4.0)


def draw_unknowns(shape: tuple[int, int, int], rng: np.random.Generator) -> MatchSolution:
    """Draw unknowns at random, independent of any data."""
    n_features, n_components, n_segments = shape
    return MatchSolution(
        rng.standard_normal((n_features, n_components)),
        rng.standard_normal((n_segments, n_components)),
        0.5 * rng.standard_normal((n_segments, n_features)),
    )


def draw_moments(
    shape: tuple[int, int, int], rng: np.random.Generator, ridges: tuple[float, float]
) -> SegmentMoments:
    """Draw moments of another model, with random weights and masks."""
    moments = make_moments(draw_solution(*shape, seed=int(rng.integers(99))), *ridges)
    n_segments, weights = shape[2], rng.uniform(0.1, 1, shape[2])
    return replace(
        moments,
        varies=rng.random(moments.varies.shape) < 0.7,
        weights=weights / weights.sum(),
        ridge=moments.ridge * rng.uniform(0.5, 1, n_segments),
        model_ridge=moments.model_ridge * rng.uniform(0.5, 1, n_segments),
    )


def compute_dense_likelihood(moments: SegmentMoments, at: MatchSolution) -> float:
    """Return ½ Σ_u w_u (−log det Σ − tr(C Σ⁻¹)) over varying features, by dense inverses."""
    total = 0.0
    for u, varies in enumerate(moments.varies):
        model = compute_correlations(at._replace(mixing=at.mixing[varies]))[u]
        identity = np.eye(varies.sum())
        ridge, model_ridge = moments.ridge[u], moments.model_ridge[u]
        C = (moments.correlation[u][np.ix_(varies, varies)] + ridge * identity) / (1 + ridge)
        ridged = (model + model_ridge * identity) / (1 + model_ridge)
        # In units of its noise the ridged model is I + L Lᵀ, which the scales Q then multiply.
        power = np.exp(at.log_variances[u]) @ at.mixing[varies].T ** 2
        noise = (1 / (1 + power) + model_ridge) / (1 + model_ridge)
        scales = np.exp(-at.log_precisions[u, varies]) / np.sqrt(noise)
        covariance = ridged * scales * scales[:, None]
        _, log_det = np.linalg.slogdet(covariance)
        trace = np.trace(C @ np.linalg.inv(covariance))
        total += 0.5 * moments.weights[u] * (-log_det - trace)
    return total


shapes = st.tuples(st.integers(2, 6), st.integers(1, 6), st.integers(1, 4)).map(
    lambda shape: (shape[0], min(shape[:2]), shape[2])
)
ridges = st.tuples(st.sampled_from(RIDGES), st.sampled_from(RIDGES))
seeds = st.integers(0, 2**32 - 1)


@given(shapes, ridges, seeds)
def test_value_matches_dense_inverses(
    shape: tuple[int, int, int], ridge: tuple[float, float], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    moments, at = draw_moments(shape, rng, ridge), draw_unknowns(shape, rng)
    value, _ = likelihood_and_gradient(moments, at)
    assert value == pytest.approx(compute_dense_likelihood(moments, at), rel=1e-9, abs=1e-9)


@given(shapes, ridges, seeds)
def test_gradient_matches_finite_differences(
    shape: tuple[int, int, int], ridge: tuple[float, float], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    moments, at = draw_moments(shape, rng, ridge), draw_unknowns(shape, rng)
    _, gradient = likelihood_and_gradient(moments, at)
    sizes = (*at.log_precisions.shape, at.mixing.shape[1])
    slopes = differentiate(
        lambda flat: likelihood_and_gradient(moments, solution_from_vector(flat, *sizes))[0],
        at.to_vector(),
    )
    np.testing.assert_allclose(gradient.to_vector(), slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ridge", RIDGES)
def test_gradient_is_zero_at_truth_with_equal_ridges(ridge: float) -> None:
    """The ridged model at the true variances equals the ridged correlation, up to known scales."""
    truth = draw_solution(5, 2, 4)
    power = np.exp(truth.log_variances) @ truth.mixing.T**2
    scales = 0.5 * np.log((1 + ridge) * (1 + power) / (1 + ridge * (1 + power)))
    _, gradient = likelihood_and_gradient(
        make_moments(truth, ridge, ridge), truth._replace(log_precisions=scales)
    )
    np.testing.assert_allclose(gradient.to_vector(), 0.0, atol=1e-12)


def test_constant_feature_has_no_influence() -> None:
    rng = np.random.default_rng(0)
    moments, at = make_moments(draw_solution(5, 2, 3), 0.3, 0.3), draw_unknowns((5, 2, 3), rng)
    moments.varies[:, 3] = False
    value, gradient = likelihood_and_gradient(moments, at)
    changed = [part.copy() for part in at]
    changed[0][3], changed[2][:, 3] = 7.0, -3.0
    assert likelihood_and_gradient(moments, MatchSolution(*changed))[0] == value
    np.testing.assert_array_equal(gradient.mixing[3], 0.0)
    np.testing.assert_array_equal(gradient.log_precisions[:, 3], 0.0)


def test_slices_and_threads_give_identical_results(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    moments, at = draw_moments((6, 3, 11), rng, (0.3, 0.3)), draw_unknowns((6, 3, 11), rng)
    value, gradient = likelihood_and_gradient(moments, at)
    assert len(list(moments.slices())) == 1
    for segments_per_slice in (1, 3, 11):
        monkeypatch.setattr(gaussian_likelihood, "_SLICE_BYTES", 8 * 6**2 * segments_per_slice)
        assert len(list(moments.slices())) == -(-11 // segments_per_slice)
        cut, cut_gradient = likelihood_and_gradient(moments, at)
        assert cut == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(
            cut_gradient.to_vector(), gradient.to_vector(), rtol=1e-12, atol=1e-14
        )
        threaded, threaded_gradient = likelihood_and_gradient(moments, at, ThreadsExecutor(3).map)
        assert threaded == cut
        assert threaded_gradient.to_vector().tobytes() == cut_gradient.to_vector().tobytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(6, 2, 8), (5, 3, 12), (4, 4, 16), (6, 1, 3)])
def test_known_solutions_are_recovered(shape: tuple[int, int, int]) -> None:
    truth = draw_solution(*shape)
    moments = make_moments(truth)
    best, *_ = maximise_from_seeds(moments, shape[1], range(2), map, tol=1e-10)
    assert best.converged
    assert mean_cosine_similarity(best.solution.mixing, truth.mixing) > 1 - 1e-4
    assert best.objective == pytest.approx(likelihood_and_gradient(moments, truth)[0], abs=1e-6)
    np.testing.assert_allclose(compute_correlations(best.solution), moments.correlation, atol=3e-3)


def test_optima_are_sorted_and_diverged_starts_dropped() -> None:
    nothing = draw_solution(2, 1, 1)

    def return_given_optima(function: Any, items: Iterable[Any]) -> Iterator[Optimum]:
        ends = zip(items, (1.0, np.nan, 3.0, -np.inf, 2.0), strict=True)
        return (Optimum(nothing, value, 1, True) for _, value in ends)

    result = maximise_from_seeds(make_moments(nothing), 1, range(5), return_given_optima)
    assert [optimum.objective for optimum in result] == [3.0, 2.0, 1.0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("part", "bad"),
    [("mixing", np.nan), ("mixing", np.inf), ("log_variances", np.nan), ("log_precisions", np.nan)],
)
def test_non_finite_starts_are_dropped(
    part: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw_invalid_start(moments: SegmentMoments, n_components: int, seed: int) -> MatchSolution:
        start = draw_start(moments, n_components, seed)
        if seed % 2:
            getattr(start, part)[:] = bad
        return start

    moments = make_moments(draw_solution(6, 2, 8))
    monkeypatch.setattr(gaussian_likelihood, "draw_start", draw_invalid_start)
    result = maximise_from_seeds(moments, 2, range(4), map)
    assert len(result) == 2
    for optimum in result:
        assert np.isfinite(optimum.objective)
        assert np.isfinite(optimum.solution.to_vector()).all()
    with pytest.raises(FitError, match=r"Every start of the search diverged\. Use a smaller reg"):
        maximise_from_seeds(moments, 2, [1, 3], map)


def test_starts_are_identical_on_all_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = make_moments(draw_solution(6, 3, 8), 0.1)
    serial = maximise_from_seeds(moments, 3, range(3), map)
    threaded = maximise_from_seeds(moments, 3, range(3), ThreadsExecutor(3).map)
    monkeypatch.setattr(gaussian_likelihood, "_MAX_BYTES_TO_SEND", 0)

    def unused(function: Any, items: Iterable[Any]) -> Iterator[Any]:
        raise AssertionError("large moments are not sent")

    large = maximise_from_seeds(moments, 3, range(3), unused)
    for other in (threaded, large):
        for a, b in zip(serial, other, strict=True):
            assert a.solution.to_vector().tobytes() == b.solution.to_vector().tobytes()
            assert a[1:] == b[1:]


@pytest.mark.parametrize("n_components", [1, 5])
def test_identical_features_give_finite_solution(n_components: int) -> None:
    """The likelihood of identical features has no maximum."""
    moments = replace(make_moments(draw_solution(5, 1, 4)), correlation=np.ones((4, 5, 5)))
    result = maximise(moments, draw_start(moments, n_components, 0))
    assert np.isfinite(result.objective)
    assert np.isfinite(result.solution.to_vector()).all()
    assert np.isfinite(likelihood_and_gradient(moments, result.solution)[1].to_vector()).all()


def test_rough_search_waits_only_for_components_that_explain_something() -> None:
    """A third component fits the noise of the correlations; it turns for long."""
    truth = draw_solution(8, 2, 12)
    noise = 0.01 * np.random.default_rng(0).standard_normal((12, 8, 8))
    noise = np.tril(noise, -1) + np.tril(noise, -1).transpose(0, 2, 1)
    moments = make_moments(truth)
    moments = replace(moments, correlation=moments.correlation + noise)
    exact, rough = (
        maximise(moments, draw_start(moments, 3, 0), 1e-5, is_rough=is_rough)
        for is_rough in (False, True)
    )
    assert rough.converged
    assert rough.iterations < exact.iterations / 2
    assert rough.objective > exact.objective - 1e-3
    mixing, log_variances, _ = rough.solution
    power = np.exp(log_variances).mean(axis=0) * (mixing**2).sum(axis=0)
    strongest = mixing[:, np.argsort(power)[1:]]
    assert mean_cosine_similarity(strongest, truth.mixing) > 0.99


# --- variances alone -----------------------------------------------------------------------------


def log_posterior(moments: SegmentMoments, n_rows: float, at: MatchSolution) -> float:
    """Return the likelihood plus a normal prior of log variances around their segment mean."""
    prior = -0.5 * len(at.log_variances) * at.log_variances.var(axis=0).sum()
    return likelihood_and_gradient(moments, at)[0] + prior / n_rows


def test_maximise_variances_finds_posterior_mode_with_fixed_mixing() -> None:
    truth = draw_solution(5, 2, 6)
    moments, n_rows = make_moments(truth, 0.4, 0.4), 30.0
    result = maximise_variances(moments, n_rows, truth)
    assert result.converged
    assert result.solution.mixing.tobytes() == truth.mixing.tobytes()
    highest = log_posterior(moments, n_rows, result.solution)
    assert result.objective == pytest.approx(highest, rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(100):
        step = [0.03 * rng.standard_normal(part.shape) for part in truth]
        _, variances, precisions = (a + b for a, b in zip(result.solution, step, strict=True))
        assert (
            log_posterior(moments, n_rows, MatchSolution(truth.mixing, variances, precisions))
            < highest
        )
