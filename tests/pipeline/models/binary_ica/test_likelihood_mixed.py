"""Binary ICA by likelihood with levels and continuous features: scores, densities, recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica import BinaryICALikelihood
from pipeline.models.binary_ica.level_gaps import join_level_offsets, split_level_offsets
from pipeline.models.binary_ica.scoring_steps import BinaryICALikelihoodParams
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.random import RowRandom
from storage.examples import draw_nonstationary_truth
from tests.pipeline.models.binary_ica.test_blica_levels import draw_outputs
from tests.pipeline.models.binary_ica.test_blica_mixed import (
    CONTINUOUS,
    COUNTS,
    MEANS,
    N_SEGMENTS,
    SCALES,
    Floats,
    draw_rows,
    fit_rows,
    integrate_rows,
    make_rows,
)
from tests.support.derivatives import differentiate
from tests.support.values import make_data, make_model


def make_likelihood(**settings: Any) -> Any:
    settings = {"n_components": 2, "likelihood": "ep", "starts": 1, **settings}
    return make_model(BinaryICALikelihood, COUNTS, **settings)


def fit_likelihood(X: Floats, **settings: Any) -> FitState:
    return fit_model(make_likelihood(**settings), make_rows(X), SerialExecutor())


def make_params(n_components: int) -> BinaryICALikelihoodParams:
    rng = np.random.default_rng(0)
    by_segment = (2, n_components)
    return BinaryICALikelihoodParams(
        rng.normal(size=(6, n_components)),
        np.array([0.1, 0.2, -0.3, 0.5, 0.2, 0.4]),
        rng.normal(size=by_segment),
        rng.uniform(0.5, 2, by_segment),
        np.zeros((6, n_components)),
        np.zeros(6),
        np.zeros(by_segment),
        np.array([0, 1]),
        np.array([10, 10]),
        np.array([1, 3, 1, 2, 4, 1]),
        np.array([0.6, -0.2, 0.5, 1.2, 0.2, -0.8]),
        number_means=MEANS,
        number_deviations=2 * SCALES,
        number_scales=SCALES * np.array([0.8, 1.0, 1.5]),
    )


@pytest.mark.parametrize(("likelihood", "error"), [("exact", 1e-4), ("ep", 2e-3)])
def test_sums_of_scores_are_derivatives(likelihood: str, error: float) -> None:
    model, params = make_likelihood(likelihood=likelihood), make_params(2)
    rows = draw_rows(2, 4, n_rows=2, missing=0.2)[0]
    block = make_data(rows, COUNTS).pack(1)

    def total(vector: Floats) -> float:
        moved = params.with_point(params.point.from_vector(vector))
        return float(model.summarize(moved, {}, block, RowRandom(0)).objective)

    slopes = differentiate(total, params.point.to_vector(), 1e-4)
    sums = model.summarize(params, {}, block, RowRandom(0)).part
    n_shared = params.point.n_shared
    assert n_shared == 6 * 2 + 6 + 3 + 3
    assert_allclose(sums.gradient, slopes[:n_shared], rtol=error, atol=error)
    assert_allclose(slopes[n_shared : n_shared + 4], 0)  # of the other segment
    assert_allclose(sums.own_gradient[0], slopes[n_shared + 4 :], rtol=error, atol=error)


def test_log_likelihoods_are_log_densities() -> None:
    params, model = make_params(1), make_likelihood(n_components=1, likelihood="exact")
    rows = draw_rows(1, 4, n_rows=3, missing=0.2)[0]
    block = make_data(rows, COUNTS).pack(1)
    expected, _ = integrate_rows(params.segment_model(1), rows)
    sums = model.summarize(params, {}, block, RowRandom(0))
    assert sums.objective == pytest.approx(expected.sum(), abs=1e-3)
    found = model.log_likelihood(params, block, RowRandom(0))
    assert_allclose(found.nats, expected, atol=1e-4)


def test_fits_are_closer_to_the_truth_than_blica_and_more_likely() -> None:
    losses, errors = [], []
    for seed in (1, 2):
        X, mixing = draw_rows(2, seed, n_rows=200)
        state = fit_likelihood(X)
        start = fit_rows(X, n_components=2, regularization=20.0).params.mixing
        losses.append([1 - mean_cosine_similarity(a, mixing) for a in (state.params.mixing, start)])
        assert state.history[-1] > state.history[0]
        ratios = np.log(state.params.number_scales / SCALES)
        errors += (ratios * state.params.number_scales / state.params.number_scales_error).tolist()
    own, of_start = np.mean(losses, axis=0)
    assert own < min(0.7 * of_start, 0.02)
    assert 0.3 < np.sqrt(np.mean(np.square(errors))) < 1.8


def test_the_fit_is_more_likely_than_the_truth() -> None:
    truth = draw_nonstationary_truth(6, 2, N_SEGMENTS, 3)
    outputs, _ = draw_outputs(truth, 150, 3)
    X = outputs.copy()
    X[:, CONTINUOUS] = MEANS + SCALES * outputs[:, CONTINUOUS]
    cuts = {1: [-0.5, 0.7], 3: [0.2], 4: [-1.0, 0.0, 1.0]}
    for i, thresholds in cuts.items():
        X[:, i] = np.searchsorted(thresholds, outputs[:, i])
    state, model = fit_likelihood(X), make_likelihood()
    offsets = np.zeros(6)
    offsets[list(cuts)] = [-np.mean(thresholds) for thresholds in cuts.values()]
    true_params = replace(
        state.params,
        mixing=truth.mixing,
        offsets=offsets,
        source_means=truth.source_means,
        source_variances=truth.source_variances,
        level_offsets=-np.concatenate([*cuts.values()]),
        number_means=MEANS,
        number_scales=SCALES,
    )
    totals = []
    for params in (state.params, true_params):
        blocks = [make_data(rows, COUNTS).pack(u) for u, rows in enumerate(np.split(X, N_SEGMENTS))]
        sums = [model.summarize(params, {}, block, RowRandom(0)).objective for block in blocks]
        totals.append(sum(sums))
    assert totals[0] > totals[1]
    assert totals[0] == pytest.approx(state.history[-1] * len(X), abs=1e-3)
    errors = state.params.level_offsets - true_params.level_offsets
    errors /= state.params.level_offsets_error
    assert 0.4 < np.sqrt((errors**2).mean()) < 1.8


def test_units_do_not_matter() -> None:
    X, _ = draw_rows(1, 5, n_rows=100, missing=0.1)
    settings = {"n_components": 1, "tol": 1e-3}
    params = fit_likelihood(X, **settings).params
    factors = np.array([4.0, -0.5, 2.0])
    other = X.copy()
    other[:, CONTINUOUS] *= factors
    changed = fit_likelihood(other, **settings).params
    signs = np.ones((6, 1))
    signs[CONTINUOUS, 0] = np.sign(factors)
    assert mean_cosine_similarity(changed.mixing * signs, params.mixing) > 1 - 1e-4
    assert_allclose(changed.number_scales, params.number_scales * np.abs(factors), rtol=1e-2)


def test_features_that_cannot_be_fitted_are_refused_by_name() -> None:
    X, _ = draw_rows(1, 9, n_rows=50)
    with pytest.raises(FitError, match="at most 2 components if some features are not binary"):
        fit_likelihood(X, n_components=3, likelihood="exact")
    X[:, 2] = 7.0
    with pytest.raises(FitError, match="These features are constant: 'q2'"):
        fit_likelihood(X)
    X, _ = draw_rows(1, 9, n_rows=50)
    X[:, 4] = 2
    with pytest.raises(FitError, match="within no usable segment: 'q4'"):
        fit_likelihood(X)


def test_empty_levels_are_warned_of_by_feature() -> None:
    X, _ = draw_rows(2, 9, n_rows=50)
    X[X[:, 4] == 2, 4] = 1
    state = fit_likelihood(X, max_iter=1)
    assert [w.features for w in state.warnings if "no row has some levels" in w.text] == [("q4",)]


def test_offsets_are_means_and_gaps_and_back() -> None:
    n_levels = np.array([2, 4, 3, 2])
    offsets = np.array([0.3, 2.0, 1.0, -0.5, 0.7, 0.1, -2.0])
    means, log_gaps = split_level_offsets(offsets, n_levels)
    assert_allclose(means, [0.3, 2.5 / 3, 0.4, -2.0])
    assert_allclose(np.exp(log_gaps), [1.0, 1.5, 0.6])
    assert_allclose(join_level_offsets(means, log_gaps, n_levels), offsets)
