"""The likelihood against n × n inverses, its gradient against finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.executors.threads import ThreadsExecutor
from pipeline.models.binary_ica.moment_matching import objective
from pipeline.models.binary_ica.moment_matching.objective import (
    MatchSolution,
    SegmentMoments,
    likelihood_and_gradient,
    solution_from_vector,
)
from tests.pipeline.models.binary_ica.moment_matching import (
    Floats,
    correlations_of,
    moments_of,
    planted,
    solution_of,
)

RIDGES = (0.0, 0.3, 4.0)


def somewhere(shape: tuple[int, int, int], rng: np.random.Generator) -> MatchSolution:
    """Unknowns that have nothing to do with any data."""
    n_features, n_components, n_segments = shape
    return MatchSolution(
        rng.standard_normal((n_features, n_components)),
        rng.standard_normal((n_segments, n_components)),
        0.5 * rng.standard_normal((n_segments, n_features)),
    )


def anything(
    shape: tuple[int, int, int], rng: np.random.Generator, ridges: tuple[float, float]
) -> SegmentMoments:
    """Correlations of another model, weights and masks at random."""
    moments = moments_of(planted(*shape, seed=int(rng.integers(99))), *ridges)
    n_segments, weights = shape[2], rng.uniform(0.1, 1, shape[2])
    return replace(
        moments,
        varies=rng.random(moments.varies.shape) < 0.7,
        weights=weights / weights.sum(),
        ridge=moments.ridge * rng.uniform(0.5, 1, n_segments),
        model_ridge=moments.model_ridge * rng.uniform(0.5, 1, n_segments),
    )


def dense_likelihood(moments: SegmentMoments, at: MatchSolution) -> float:
    """½ Σ_u w_u (−log det Σ − tr(C Σ⁻¹)) over the features that vary, by n × n inverses."""
    total = 0.0
    for u, seen in enumerate(moments.varies):
        model = correlations_of(at._replace(mixing=at.mixing[seen]))[u]
        identity = np.eye(seen.sum())
        ridge, model_ridge = moments.ridge[u], moments.model_ridge[u]
        C = (moments.correlation[u][np.ix_(seen, seen)] + ridge * identity) / (1 + ridge)
        ridged = (model + model_ridge * identity) / (1 + model_ridge)
        # In units of its noise the ridged model is I + L Lᵀ; the scales Q come on top.
        power = np.exp(at.log_variances[u]) @ at.mixing[seen].T ** 2
        noise = (1 / (1 + power) + model_ridge) / (1 + model_ridge)
        scales = np.exp(-at.log_precisions[u, seen]) / np.sqrt(noise)
        covariance = ridged * scales * scales[:, None]
        _, log_det = np.linalg.slogdet(covariance)
        trace = np.trace(C @ np.linalg.inv(covariance))
        total += 0.5 * moments.weights[u] * (-log_det - trace)
    return total


def finite_differences(moments: SegmentMoments, at: MatchSolution, step: float = 1e-5) -> Floats:
    shape = (*at.log_precisions.shape, at.mixing.shape[1])
    flat, slopes = at.to_vector(), []
    for k in range(len(flat)):
        ends = [flat + sign * step * (np.arange(len(flat)) == k) for sign in (1, -1)]
        up, down = (
            likelihood_and_gradient(moments, solution_from_vector(end, *shape))[0] for end in ends
        )
        slopes.append((up - down) / (2 * step))
    return np.array(slopes)


shapes = st.tuples(st.integers(2, 6), st.integers(1, 6), st.integers(1, 4)).map(
    lambda shape: (shape[0], min(shape[:2]), shape[2])
)
ridges = st.tuples(st.sampled_from(RIDGES), st.sampled_from(RIDGES))
seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=80)
@given(shapes, ridges, seeds)
def test_the_value_is_that_of_dense_inverses(
    shape: tuple[int, int, int], ridge: tuple[float, float], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    moments, at = anything(shape, rng, ridge), somewhere(shape, rng)
    value, _ = likelihood_and_gradient(moments, at)
    assert value == pytest.approx(dense_likelihood(moments, at), rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(shapes, ridges, seeds)
def test_the_gradient_is_that_of_finite_differences(
    shape: tuple[int, int, int], ridge: tuple[float, float], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    moments, at = anything(shape, rng, ridge), somewhere(shape, rng)
    _, gradient = likelihood_and_gradient(moments, at)
    slopes = finite_differences(moments, at)
    np.testing.assert_allclose(gradient.to_vector(), slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ridge", RIDGES)
def test_the_truth_is_at_rest_with_the_same_ridge_on_both_sides(ridge: float) -> None:
    """The ridged model of the true variances is the ridged correlation, up to known scales."""
    truth = planted(5, 2, 4)
    power = np.exp(truth.log_variances) @ truth.mixing.T**2
    scales = 0.5 * np.log((1 + ridge) * (1 + power) / (1 + ridge * (1 + power)))
    _, gradient = likelihood_and_gradient(
        moments_of(truth, ridge, ridge), truth._replace(log_precisions=scales)
    )
    np.testing.assert_allclose(gradient.to_vector(), 0.0, atol=1e-12)


def test_a_ridge_on_the_data_alone_pulls_at_the_variances() -> None:
    truth = planted(5, 2, 4)
    _, gradient = likelihood_and_gradient(moments_of(truth, 1.0), truth)
    assert gradient.log_variances.max() < -1e-3


def test_a_feature_that_does_not_count_leaves_no_trace() -> None:
    rng = np.random.default_rng(0)
    moments, at = moments_of(planted(5, 2, 3), 0.3, 0.3), somewhere((5, 2, 3), rng)
    moments.varies[:, 3] = False
    value, gradient = likelihood_and_gradient(moments, at)
    changed = [part.copy() for part in at]
    changed[0][3], changed[2][:, 3] = 7.0, -3.0
    assert likelihood_and_gradient(moments, MatchSolution(*changed))[0] == value
    np.testing.assert_array_equal(gradient.mixing[3], 0.0)
    np.testing.assert_array_equal(gradient.log_precisions[:, 3], 0.0)


def test_slices_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    moments, at = anything((6, 3, 11), rng, (0.3, 0.3)), somewhere((6, 3, 11), rng)
    value, gradient = likelihood_and_gradient(moments, at)
    assert len(list(moments.slices())) == 1
    for segments_a_slice in (1, 3, 11):
        monkeypatch.setattr(objective, "_SLICE_BYTES", 8 * 6**2 * segments_a_slice)
        assert len(list(moments.slices())) == -(-11 // segments_a_slice)
        cut, cut_gradient = likelihood_and_gradient(moments, at)
        assert cut == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(
            cut_gradient.to_vector(), gradient.to_vector(), rtol=1e-12, atol=1e-14
        )
        threaded, threaded_gradient = likelihood_and_gradient(moments, at, ThreadsExecutor(3).map)
        assert threaded == cut
        assert threaded_gradient.to_vector().tobytes() == cut_gradient.to_vector().tobytes()


@given(shapes, seeds)
def test_unknowns_survive_as_one_vector(shape: tuple[int, int, int], seed: int) -> None:
    at = somewhere(shape, np.random.default_rng(seed))
    again = solution_from_vector(at.to_vector(), shape[2], shape[0], shape[1])
    for part, restored in zip(at, again, strict=True):
        np.testing.assert_array_equal(part, restored)


def test_implied_correlations_are_those_of_the_model() -> None:
    rng = np.random.default_rng(2)
    at = solution_of(rng.standard_normal((5, 3)), rng.uniform(0.1, 9, (4, 3)))
    for u, expected in enumerate(correlations_of(at)):
        np.testing.assert_allclose(at.model_correlation(u), expected, rtol=1e-12)
