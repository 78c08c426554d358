"""Binary ICA by likelihood of features with several levels: scores, probabilities, recovery."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.binary_ica import BLICA, BinaryICALikelihood
from pipeline.models.binary_ica.level_gaps import join_level_offsets, split_level_offsets
from pipeline.models.binary_ica.likelihood import sum_scores
from pipeline.models.binary_ica.scoring_steps import BinaryICALikelihoodParams
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.numerics.probit.probit_scores import quadrature_scores
from pipeline.random import RowRandom
from storage.examples import NonstationaryTruth, draw_nonstationary_truth
from tests.pipeline.models.binary_ica.test_blica_levels import (
    SHARES,
    Floats,
    Levels,
    cut,
    draw_outputs,
)
from tests.support.derivatives import differentiate
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_model

N_LEVELS = np.array([4, 2, 3])
COUNTS = [5] * 6


def make_params() -> BinaryICALikelihoodParams:
    level_offsets = np.array([1.3, 0.2, -0.4, 0.5, 0.6, -0.9])
    rng = np.random.default_rng(0)
    return BinaryICALikelihoodParams(
        rng.normal(size=(3, 2)),
        split_level_offsets(level_offsets, N_LEVELS)[0],
        rng.normal(size=(2, 2)),
        rng.uniform(0.5, 2, (2, 2)),
        np.zeros((3, 2)),
        np.zeros(3),
        np.zeros((2, 2)),
        np.array([0, 1]),
        np.array([10, 10]),
        N_LEVELS,
        level_offsets,
    )


def make_block(levels: Levels, observed: Levels | None = None, segment: int = 1) -> BinaryBlock:
    return make_data(levels, N_LEVELS.tolist(), observed).pack(segment)


def test_offsets_are_means_and_gaps_and_back() -> None:
    n_levels = np.array([2, 4, 3, 2])
    offsets = np.array([0.3, 2.0, 1.0, -0.5, 0.7, 0.1, -2.0])
    means, log_gaps = split_level_offsets(offsets, n_levels)
    assert_allclose(means, [0.3, 2.5 / 3, 0.4, -2.0])
    assert_allclose(np.exp(log_gaps), [1.0, 1.5, 0.6])
    assert_allclose(join_level_offsets(means, log_gaps, n_levels), offsets)


def test_sums_of_scores_are_derivatives() -> None:
    params, rng = make_params(), np.random.default_rng(1)
    levels = rng.integers(0, N_LEVELS, (12, 3)).astype(np.uint8)
    observed = (rng.random(levels.shape) < 0.8).astype(np.uint8)
    block = make_block(levels * observed, observed)

    def total(vector: Floats) -> float:
        moved = params.with_point(params.point.from_vector(vector))
        return sum_scores(moved, block, quadrature_scores).log_likelihood

    slopes = differentiate(total, params.point.to_vector(), 1e-4)
    sums = sum_scores(params, block, quadrature_scores)
    n_shared = len(sums.gradient)
    assert n_shared == 3 * 2 + 3 + 3
    assert_allclose(sums.gradient, slopes[:n_shared], atol=1e-4)
    assert_allclose(slopes[n_shared : n_shared + 4], 0)  # of the other segment
    assert_allclose(sums.own_gradient[0], slopes[n_shared + 4 :], atol=1e-4)


def test_probabilities_are_those_of_rectangles_and_add_up() -> None:
    params = make_params()
    levels = np.array([[0, 1, 2], [1, 1, 2], [2, 1, 2], [3, 1, 2]], np.uint8)
    rows = [make_block(row[None]) for row in levels]
    nats = np.array([sum_scores(params, row, quadrature_scores).log_likelihood for row in rows])
    found = BinaryICALikelihood().log_likelihood(params, make_block(levels), RowRandom(0))
    assert_allclose(found.nats, nats, atol=3e-3)
    observed = np.array([[0, 1, 1]], np.uint8)
    without = sum_scores(params, make_block(levels[:1], observed), quadrature_scores)
    assert logsumexp(nats) == pytest.approx(without.log_likelihood, abs=1e-5)


class Example(NamedTuple):
    truth: NonstationaryTruth
    level_offsets: Floats
    levels: Levels
    segments: NDArray[np.int64]
    state: FitState


def make_likelihood(**settings: Any) -> Any:
    settings = {"n_components": 2, "likelihood": "ep", "starts": 1, **settings}
    return make_model(BinaryICALikelihood, COUNTS, **settings)


def make_rows(levels: Levels, segments: NDArray[np.int64]) -> RowSource:
    return make_memory_rows(make_data(levels, COUNTS, segments=segments))


@cache
def fit_example() -> Example:
    truth = draw_nonstationary_truth(6, 2, 10, seed=1)
    outputs, segments = draw_outputs(truth, 200, seed=1)
    levels = cut(outputs)
    cuts = norm.ppf(SHARES) * outputs.std(axis=0)[:, None]
    state = fit_model(make_likelihood(), make_rows(levels, segments), SerialExecutor())
    return Example(truth, -cuts.ravel(), levels, segments, state)


def test_fits_are_closer_to_the_truth_than_blica_and_more_likely() -> None:
    truth, level_offsets, levels, segments, state = fit_example()
    rows = make_rows(levels, segments)
    blica = make_model(BLICA, COUNTS, n_components=2, regularization=20.0, starts=1)
    start = fit_model(blica, rows, SerialExecutor()).params.mixing
    losses = [
        1 - mean_cosine_similarity(mixing, truth.mixing) for mixing in (state.params.mixing, start)
    ]
    assert losses[0] < min(losses[1], 0.01)
    assert state.history[-1] > state.history[0] + 0.005
    true_params = replace(
        state.params,
        mixing=truth.mixing,
        offsets=np.zeros(6),
        source_means=truth.source_means,
        source_variances=truth.source_variances,
        level_offsets=level_offsets,
    )
    model, totals = make_likelihood(), []
    for params in (state.params, true_params):
        blocks = [make_data(levels[segments == u], COUNTS).pack(u) for u in range(10)]
        nats = [model.summarize(params, {}, b, RowRandom(0)).log_likelihood for b in blocks]
        totals.append(sum(nats))
    assert totals[0] > totals[1]
    assert totals[0] == pytest.approx(state.history[-1] * len(levels), abs=1e-3)


def test_true_offsets_are_within_standard_errors() -> None:
    example = fit_example()
    params = example.state.params
    assert params.level_offsets is not None
    assert params.level_offsets_error is not None
    errors = (params.level_offsets - example.level_offsets) / params.level_offsets_error
    assert 0.4 < np.sqrt((errors**2).mean()) < 1.8
    assert_allclose(params.level_offsets.reshape(6, 4).mean(axis=1), params.offsets)


def test_messages_name_features_and_not_planes() -> None:
    example = fit_example()
    levels = example.levels.copy()
    levels[levels[:, 4] == 2, 4] = 1
    model = make_likelihood(max_iter=1)
    rows = make_rows(levels, example.segments)
    state = fit_model(model, rows, SerialExecutor())
    assert [w.features for w in state.warnings if "no row has some levels" in w.text] == [("q4",)]
    levels[:, 4] = 2
    with pytest.raises(FitError, match=r"within no usable segment: 'q4'"):
        fit_model(model, make_rows(levels, example.segments), SerialExecutor())


def test_three_components_have_no_exact_likelihood_of_levels() -> None:
    example = fit_example()
    model = make_likelihood(n_components=3, likelihood="exact")
    rows = make_rows(example.levels, example.segments)
    first = collect_first_statistics(model, rows, SerialExecutor(), 0)
    with pytest.raises(FitError, match="at most 2 components if some features are not binary"):
        initialize_fit(model, first, 0)
