"""BLICA of features with several levels: margins, likelihoods and codes against SciPy, recovery."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy import optimize
from scipy.stats import multivariate_normal, norm

from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.gaussian_likelihood import (
    MatchSolution,
    ScaleMoments,
    SegmentMoments,
    likelihood_and_gradient,
    solution_from_vector,
)
from pipeline.models.binary_ica.level_margins import fit_level_margins
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.numerics.probit.interval_probability import log_interval_probability
from storage.examples import NonstationaryTruth, draw_nonstationary_truth
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_model

Floats = NDArray[np.float64]
Levels = NDArray[np.uint8]
SHARES = (0.15, 0.35, 0.65, 0.85)


def draw_outputs(
    truth: NonstationaryTruth, n_rows: int, seed: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Draw √(π/8) A z + ε, `n_rows` rows per segment."""
    rng = np.random.default_rng(seed)
    segments = np.repeat(np.arange(len(truth.source_means)), n_rows)
    z = rng.standard_normal((len(segments), truth.mixing.shape[1]))
    z = truth.source_means[segments] + np.sqrt(truth.source_variances[segments]) * z
    outputs = np.sqrt(np.pi / 8) * z @ truth.mixing.T
    return outputs + rng.standard_normal(outputs.shape), segments


def cut(outputs: Floats, shares: Sequence[float] = SHARES) -> Levels:
    """Cut outputs at normal quantiles times their standard deviations."""
    cuts = norm.ppf(shares)[:, None, None] * outputs.std(axis=0)
    return (outputs > cuts).sum(axis=0).astype(np.uint8)


def fit_levels(
    levels: Levels,
    segments: NDArray[np.int64],
    n_levels: Sequence[int],
    observed: Levels | None = None,
    **settings: Any,
) -> FitState:
    data = make_data(levels, n_levels, observed, segments=segments)
    return fit_model(
        make_model(BLICA, n_levels, **settings), make_memory_rows(data), SerialExecutor()
    )


def test_margins_are_fitted_by_maximum_likelihood() -> None:
    counts = np.array([[30, 50, 15, 5], [10, 20, 40, 30], [0, 60, 40, 0], [5, 5, 5, 85]])

    def loss(flat: Floats) -> float:
        cuts, places = np.cumsum([flat[0], *np.exp(flat[1:3])]), flat[3:].reshape(4, 2)
        z = (cuts - places[:, :1]) * np.exp(-places[:, 1:])
        shares = np.diff(norm.cdf(z), axis=1, prepend=0, append=1)
        prior = (places**2 @ [0.1, 1.0]).sum() / 2
        return float(prior - (counts * np.log(np.maximum(shares, 1e-300))).sum())

    best = optimize.minimize(loss, np.zeros(11), options={"gtol": 1e-7})
    cuts, places = np.cumsum([best.x[0], *np.exp(best.x[1:3])]), best.x[3:].reshape(4, 2)
    margins = fit_level_margins(counts)
    assert_allclose(margins.thresholds, (cuts - places[:, :1]) * np.exp(-places[:, 1:]), atol=1e-4)
    assert_allclose(margins.log_scales, places[:, 1], atol=1e-4)


def test_errors_of_scales_and_centres_are_their_spread() -> None:
    rng = np.random.default_rng(0)
    scales, centres, fits = np.array([0.6, 1.0, 1.7]), np.array([0.3, 0.0, -0.4]), []
    edges = (norm.ppf(SHARES) - centres[:, None]) / scales[:, None]
    shares = np.diff(norm.cdf(edges), axis=1, prepend=0, append=1)
    for _ in range(300):
        fits.append(fit_level_margins(np.array([rng.multinomial(4000, p) for p in shares])))
    contrasts = np.array([fit.log_scales[0] - fit.log_scales[2] for fit in fits])
    errors = [1 / np.sqrt(fit.information[[0, 2]]) for fit in fits]
    assert contrasts.mean() == pytest.approx(np.log(scales[0] / scales[2]), abs=0.01)
    expected = np.sqrt((np.array(errors) ** 2).sum(axis=1)).mean()
    assert contrasts.std() == pytest.approx(expected, rel=0.15)
    spread = np.array([fit.thresholds.mean(axis=1) for fit in fits]).std(axis=0)
    assert_allclose(spread, np.mean([fit.centre_errors for fit in fits], axis=0), rtol=0.25)


@pytest.mark.parametrize("model_ridge", [0.0, 0.2])
def test_the_gradient_with_scales_is_that_of_the_likelihood(model_ridge: float) -> None:
    rng = np.random.default_rng(1)
    correlation = np.array([np.corrcoef(rng.standard_normal((4, 9))) for _ in range(3)])
    moments = SegmentMoments(
        correlation,
        np.ones((3, 4), np.bool_),
        np.array([0.2, 0.5, 0.3]),
        np.full(3, 0.2),
        np.full(3, model_ridge),
        scales=ScaleMoments(rng.normal(size=(3, 4)), rng.uniform(0, 3, (3, 4))),
    )
    shapes = ((4, 2), (3, 2), (3, 4))
    point = MatchSolution(*(rng.normal(size=shape) for shape in shapes)).to_vector()

    def value(flat: Floats) -> float:
        return likelihood_and_gradient(moments, solution_from_vector(flat, 3, 4, 2))[0]

    gradient = likelihood_and_gradient(moments, solution_from_vector(point, 3, 4, 2))[1]
    numeric = optimize.approx_fprime(point, value, 1e-6)
    assert_allclose(gradient.to_vector(), numeric, atol=1e-4, rtol=1e-4)


def test_probabilities_of_rows_are_those_of_scipy() -> None:
    n_levels = np.array([3, 2, 4])
    correlation = np.array([[1, 0.6, -0.3], [0.6, 1, 0.2], [-0.3, 0.2, 1]])
    thresholds = np.array([-0.5, 0.8, 0.2, -1.0, 0.0, 1.5])
    levels = np.array([*itertools.product(range(3), range(2), range(4))], np.uint8)
    nats, errors = log_interval_probability(levels, correlation, thresholds, n_levels)
    assert np.exp(nats).sum() == pytest.approx(1, abs=2e-3)
    edges = [[-12, -0.5, 0.8, 12], [-12, 0.2, 12], [-12, -1, 0, 1.5, 12]]
    normal = multivariate_normal(np.zeros(3), correlation)
    for row, log_probability, error in zip(levels, nats, errors, strict=True):
        lower, upper = np.array([edges[i][c : c + 2] for i, c in enumerate(row)]).T
        expected = normal.cdf(upper, lower_limit=lower, rng=np.random.default_rng(0))
        assert log_probability == pytest.approx(np.log(expected), abs=5 * error + 1e-4)
    observed = np.ones_like(levels)
    observed[:, 1] = 0
    nats, _ = log_interval_probability(levels, correlation, thresholds, n_levels, observed)
    first = multivariate_normal(np.zeros(2), correlation[np.ix_([0, 2], [0, 2])])
    expected = first.cdf([12, 0.0], lower_limit=[0.8, -1])
    assert nats[(levels == [2, 0, 1]).all(axis=1)] == pytest.approx(np.log(expected), abs=3e-3)


def test_probabilities_of_many_features_do_not_underflow() -> None:
    n_features = 900
    levels = np.random.default_rng(0).integers(0, 3, (2, n_features), np.uint8)
    thresholds, n_levels = np.tile([-0.5, 0.7], n_features), np.full(n_features, 3)
    nats, errors = log_interval_probability(levels, np.eye(n_features), thresholds, n_levels)
    shares = np.diff(norm.cdf([-np.inf, -0.5, 0.7, np.inf]))
    assert_allclose(nats, np.log(shares[levels]).sum(axis=1), rtol=1e-9)
    assert (nats < -900).all()
    assert (errors == 0).all()


def test_four_cuts_are_better_than_one() -> None:
    truth = draw_nonstationary_truth(6, 3, 12, seed=1)
    outputs, segments = draw_outputs(truth, 500, seed=1)
    settings = {"n_components": 3, "regularization": 100.0, "starts": 1}
    losses = []
    for levels, n_levels in ((cut(outputs), 5), (cut(outputs, [0.5]), 2)):
        params = fit_levels(levels, segments, [n_levels] * 6, **settings).params
        losses.append(1 - mean_cosine_similarity(params.mixing, truth.mixing))
    assert losses[0] < 0.01
    assert losses[0] < 0.7 * losses[1]


def test_messages_name_features_and_not_planes() -> None:
    truth = draw_nonstationary_truth(4, 1, 4, seed=6)
    outputs, segments = draw_outputs(truth, 100, seed=6)
    levels = cut(outputs)
    levels[segments == 1, 3] = 2
    state = fit_levels(levels, segments, [5] * 4, n_components=1, regularization=20.0)
    assert [w.features for w in state.warnings if "never vary" in w.text] == [("q3",)]
    levels[:, 3] = 2
    with pytest.raises(FitError, match=r"within no usable segment: 'q3'"):
        fit_levels(levels, segments, [5] * 4, n_components=1, regularization=20.0)
