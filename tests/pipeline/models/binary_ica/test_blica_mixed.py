"""BLICA with continuous features: correlations, units, densities and codes against integration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import integrate
from scipy.stats import norm

from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica import BLICA
from pipeline.models.binary_ica.blica import BLICAParams
from pipeline.models.binary_ica.probit_ica import SegmentModel
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.random import RowRandom
from storage.examples import draw_nonstationary_truth
from tests.pipeline.models.binary_ica.test_blica_levels import draw_outputs
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_model

Floats = NDArray[np.float64]
COUNTS = [0, 3, 0, 2, 4, 0]  # numbers of levels, 0 of continuous features
CONTINUOUS = np.array([0, 2, 5])
SCALES, MEANS = np.array([0.1, 1.0, 30.0]), np.array([5.0, 0.0, -200.0])
N_SEGMENTS = 8
ONE: dict[str, Any] = {"n_components": 1, "regularization": 100.0, "starts": 1}


def make_rows(X: Floats, counts: Sequence[int] = COUNTS) -> RowSource:
    """Make a chunk of each segment, which have equally many rows, one after the other."""
    segments = np.repeat(np.arange(N_SEGMENTS), len(X) // N_SEGMENTS)
    data = make_data(X, counts, segments=segments)
    return make_memory_rows(data, np.bincount(segments).tolist())


def fit_rows(X: Floats, counts: Sequence[int] = COUNTS, **settings: Any) -> FitState:
    model = make_model(BLICA, counts, **{**ONE, **settings})
    return fit_model(model, make_rows(X, counts), SerialExecutor())


def draw_rows(n_components: int, seed: int, n_rows: int = 400, missing: float = 0.0) -> Any:
    """Return rows of values and levels, and the true mixing."""
    truth = draw_nonstationary_truth(6, n_components, N_SEGMENTS, seed)
    outputs, _ = draw_outputs(truth, n_rows, seed)
    X = np.empty_like(outputs)
    for i, k in enumerate(COUNTS):
        cuts = np.linspace(-0.8, 0.8, k - 1) * outputs[:, i].std() if k > 2 else [0.0]
        X[:, i] = np.searchsorted(cuts, outputs[:, i])
    X[:, CONTINUOUS] = MEANS + SCALES * outputs[:, CONTINUOUS]
    X[np.random.default_rng(seed).random(X.shape) < missing] = np.nan
    return X, truth.mixing


def make_params() -> BLICAParams:
    X, _ = draw_rows(1, 3)
    params: BLICAParams = fit_rows(X).params
    return replace(params, source_variances=np.minimum(params.source_variances, 3.0))


def test_correlations_are_those_of_values_and_segments_have_their_means() -> None:
    X, _ = draw_rows(2, 1, n_rows=1000)
    params = fit_rows(X, n_components=2).params
    for u in range(N_SEGMENTS):
        values = X[1000 * u : 1000 * (u + 1), CONTINUOUS]
        own = params.correlations[u][np.ix_(CONTINUOUS, CONTINUOUS)]
        assert_allclose(own, np.corrcoef(values.T), atol=0.04)
        continuous = params.segment_model(u).continuous
        means = continuous.means + continuous.scales * continuous.shifts
        assert_allclose(means, values.mean(axis=0), rtol=1e-5, atol=1e-5)
    assert_array_equal(params.n_levels, [1, 3, 1, 2, 4, 1])
    assert params.level_thresholds.shape == (N_SEGMENTS, 6)
    assert_allclose(params.number_means, X[:, CONTINUOUS].mean(axis=0), rtol=1e-5, atol=1e-5)


def test_values_are_better_than_bits() -> None:
    counts, losses, errors = [0, 0, 0, 0, 0, 2], [], []
    for seed in (1, 2, 3):
        truth = draw_nonstationary_truth(6, 3, N_SEGMENTS, seed)
        outputs, _ = draw_outputs(truth, 400, seed)
        bits = (outputs > 0).astype(np.float64)
        values = np.where(np.array(counts) == 0, outputs, bits)
        own, other = (
            fit_rows(X, kinds, n_components=3).params
            for X, kinds in ((values, counts), (bits, [2] * 6))
        )
        losses.append([1 - mean_cosine_similarity(p.mixing, truth.mixing) for p in (own, other)])
        errors.append(np.abs(np.log(own.number_scales)).mean())
    assert np.mean(losses, axis=0)[0] < 0.7 * np.mean(losses, axis=0)[1]
    assert np.mean(errors) < 0.2


def integrate_rows(model: SegmentModel, rows: Floats) -> tuple[Floats, Floats]:
    """Return the log density of rows, and the mean of the only source, by sums over a grid."""
    assert model.continuous is not None
    z = model.means[0] + np.sqrt(model.variances[0]) * np.linspace(-9, 9, 2001)
    latents = (z[:, None] - model.means) @ model.weights.T  # (n_points, n_features)
    offsets, nats, means = np.split(model.offsets, [2, 3]), [], []
    for row in rows:
        weights = norm.pdf(z, model.means[0], np.sqrt(model.variances[0]))
        for k, i in enumerate([1, 3, 4]):
            if not np.isnan(row[i]):
                reached = norm.cdf(latents[:, [i]] + offsets[k])
                reached = np.pad(reached, ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
                level = int(row[i])
                weights *= reached[:, level] - reached[:, level + 1]
        for k, i in enumerate(CONTINUOUS):
            if not np.isnan(row[i]):
                shift, centre, scale = (part[k] for part in model.continuous)
                value = centre + scale * (latents[:, i] + shift)
                weights *= norm.pdf(np.float32(row[i]), value, scale)
        total = integrate.simpson(weights, x=z)
        nats.append(np.log(total))
        means.append(integrate.simpson(weights * z, x=z) / total)
    return np.array(nats), np.array(means)


def test_codes_and_densities_are_those_of_integration_over_the_source() -> None:
    params = make_params()
    rows = draw_rows(1, 4, n_rows=10, missing=0.2)[0]
    block = make_data(rows, COUNTS).pack(2)
    codes = BLICA().transform(params, block, RowRandom(0))
    nats = BLICA().log_likelihood(params, block, RowRandom(0)).nats
    model = params.segment_model(2)
    expected, means = integrate_rows(model, rows)
    assert_allclose(nats, expected, atol=1e-3)
    assert_allclose(codes["mean"][:, 0], means, atol=0.02 * np.sqrt(model.variances[0]))


def test_the_composite_likelihood_sums_the_densities_of_pairs() -> None:
    params, model = make_params(), BLICA()
    rows = draw_rows(1, 4, n_rows=2, missing=0.1)[0]
    block = make_data(rows, COUNTS).pack()
    expected = np.zeros(len(rows))
    for i, j in itertools.combinations(range(6), 2):
        pair = np.full_like(rows, np.nan)
        pair[:, [i, j]] = rows[:, [i, j]]
        is_known = ~np.isnan(rows[:, [i, j]]).any(axis=1)
        nats = model.log_likelihood(params, make_data(pair, COUNTS).pack(), RowRandom(0)).nats
        expected += np.where(is_known, nats, 0)
    found = model.composite_log_likelihood(params, block, RowRandom(0))
    assert_allclose(found, expected, atol=2e-3)


def test_samples_and_reconstructions_have_the_moments_of_the_model() -> None:
    params, segments = make_params(), np.full(20_000, 2)
    bits, numbers = BLICA().sample_numbers(params, 20_000, np.random.default_rng(0), segments)
    assert bits.shape == (20_000, 6)
    model = params.segment_model(2)
    shifts, means, scales = model.continuous
    deviations = scales * model.deviations[CONTINUOUS]
    errors = (numbers.mean(axis=0) - means - scales * shifts) / deviations
    assert_allclose(errors, 0, atol=0.03)
    assert_allclose(numbers.std(axis=0), deviations, rtol=0.03)
    correlation = model.correlation()[np.ix_(CONTINUOUS, CONTINUOUS)]
    assert_allclose(np.corrcoef(numbers.T), correlation, atol=0.03)
    codes = np.stack([model.means, model.means + 1])
    found = BLICA().reconstruct_numbers(params, codes, np.array([2, 2]))
    assert_allclose(found[0], means + scales * shifts)
    assert_allclose(found[1] - found[0], scales * model.weights[CONTINUOUS, 0])


def test_units_do_not_matter() -> None:
    X, _ = draw_rows(2, 5)
    params = fit_rows(X, n_components=2).params
    factors = np.array([4.0, -0.5, 2.0])
    other = X.copy()
    other[:, CONTINUOUS] *= factors
    changed = fit_rows(other, n_components=2).params
    signs = np.ones((6, 1))
    signs[CONTINUOUS, 0] = np.sign(factors)
    assert mean_cosine_similarity(changed.mixing * signs, params.mixing) > 1 - 1e-6
    assert_allclose(changed.number_scales, params.number_scales * np.abs(factors), rtol=1e-3)
    assert_allclose(changed.number_means, params.number_means * factors, rtol=1e-5, atol=1e-5)


def test_missing_values_leave_the_mixing_right() -> None:
    X, mixing = draw_rows(2, 6, n_rows=600, missing=0.2)
    params = fit_rows(X, n_components=2).params
    assert mean_cosine_similarity(params.mixing, mixing) > 0.98


def test_features_that_cannot_be_fitted_are_refused_by_name() -> None:
    X, _ = draw_rows(1, 9)
    X[:, 2] = 7.0
    with pytest.raises(FitError, match="These features are constant: 'q2'"):
        fit_rows(X)
    with pytest.raises(FitError, match="All features are continuous"):
        make_model(BLICA, [0, 0])
    X, _ = draw_rows(1, 9)
    X[:, 2] = np.arange(len(X)) // (len(X) // N_SEGMENTS)
    with pytest.raises(FitError, match="within no usable segment: 'q2'"):
        fit_rows(X)
