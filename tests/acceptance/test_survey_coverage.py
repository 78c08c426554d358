"""Estimates and intervals of the latent-trait model from simulated surveys.

The trait of the population is standard normal, so the population follows the model with known
slopes and offsets. Strata are cut along a variable that correlates with the trait, and the upper
strata are drawn more often. Each survey is drawn anew. `-s` shows the numbers.

Shares of covered parameters are pooled over the items. Their Monte Carlo error is the standard
error of the mean over sets, because parameters of one set depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm, t

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]

pytestmark = pytest.mark.slow

N_SETS, N_ROWS, N_CLUSTERED_ROWS = 200, 1000, 600
TRUTH = np.array(
    [np.linspace(0.7, 1.6, 10), [0.9, -1.2, 0.3, -0.6, 1.2, 0.0, -0.9, 0.6, -0.3, 0.8]]
)
"""Slopes and offsets, (2, n_items)."""
CORRELATION = 0.7  # of the trait, or of the clusters' part of it, with the variable of the strata
CLUSTER_SHARE = 0.5  # of the variance of the trait
ROW_STRATA = np.array([[0.5, 0.35, 0.15], [0.25, 0.25, 0.5]])
CLUSTER_STRATA = np.array([[0.5, 0.5], [0.3, 0.7]])
"""Shares of the strata in the population and in the sample, (2, n_strata)."""


class Survey(NamedTuple):
    """Estimates and standard errors of slopes and offsets, (n_sets, 2, n_items) each."""

    estimates: Floats
    errors: Floats

    def measure_coverage(self, quantile: float = 1.96) -> Floats:
        """Return the shares of 95 % intervals that cover the slopes and the offsets, (2,)."""
        assert np.isfinite(self.errors).all()
        is_inside = np.abs(self.estimates - TRUTH) < quantile * self.errors
        by_set = is_inside.mean(axis=2)
        shares: Floats = by_set.mean(axis=0)
        chance = by_set.std(axis=0, ddof=1) / np.sqrt(len(by_set))
        ratio = np.sqrt((self.errors**2).mean(axis=0)) / self.estimates.std(axis=0, ddof=1)
        print(
            f"\ncovered: slopes {shares[0]:.1%} ± {chance[0]:.1%}, offsets {shares[1]:.1%} ± "
            f"{chance[1]:.1%}; errors / scatter: {ratio.mean(axis=1).round(3)}"
        )
        return shares

    def measure_bias(self) -> Floats:
        """Return the bias of each parameter in standard errors, (2, n_items)."""
        scatter = self.estimates.std(axis=0, ddof=1)
        bias: Floats = (self.estimates.mean(axis=0) - TRUTH) / scatter
        print(f"\nbias in standard errors ± {N_SETS**-0.5:.2f}:\n{bias.round(2)}")
        return bias


def draw_units(
    strata: Floats, n_units: int, is_fixed: bool, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Draw units of the population by strata.

    Parameters
    ----------
    strata
        Shares of the strata in the population and in the sample, (2, n_strata).
    is_fixed
        Whether the sample has fixed numbers of units per stratum. Otherwise, units are drawn one by
        one, and the numbers vary by chance.

    Returns
    -------
    values, weights
        Standard normal values, (n_units,), and 1 divided by the relative chances to be drawn.
    """
    in_population, in_sample = strata
    values = rng.standard_normal(50 * n_units)
    noise = rng.standard_normal(50 * n_units)
    position = CORRELATION * values + np.sqrt(1 - CORRELATION**2) * noise
    edges = norm.ppf(np.cumsum(in_population)[:-1])
    stratum = np.digitize(position, edges)
    expected = n_units * in_sample
    numbers = np.rint(expected).astype(int) if is_fixed else rng.multinomial(n_units, in_sample)
    rows = np.concatenate(
        [np.flatnonzero(stratum == h)[:number] for h, number in enumerate(numbers)]
    )
    return values[rows], (in_population / in_sample)[stratum[rows]]


def answer_items(
    traits: Floats, share_missing: float, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Draw answers to all items, and which of them are observed."""
    chances = expit(np.outer(traits, TRUTH[0]) + TRUTH[1])
    X = (rng.random(chances.shape) < chances).astype(np.uint8)
    if share_missing == 0:
        return X, None
    return X, (rng.random(X.shape) >= share_missing).astype(np.uint8)


def draw_rows(
    rng: np.random.Generator, share_missing: float = 0.0, is_fixed: bool = False
) -> DenseData:
    """Draw a survey of persons."""
    traits, weights = draw_units(ROW_STRATA, N_ROWS, is_fixed, rng)
    return DenseData(*answer_items(traits, share_missing, rng), weights=weights)


def draw_clusters(
    rng: np.random.Generator, n_clusters: int = 60, share_missing: float = 0.0
) -> DenseData:
    """Draw a survey of equally large clusters, whose persons share a part of their trait."""
    shared, weights = draw_units(CLUSTER_STRATA, n_clusters, False, rng)
    clusters = np.repeat(np.arange(n_clusters), N_CLUSTERED_ROWS // n_clusters)
    own = rng.standard_normal(len(clusters))
    traits = np.sqrt(CLUSTER_SHARE) * shared[clusters] + np.sqrt(1 - CLUSTER_SHARE) * own
    X, observed = answer_items(traits, share_missing, rng)
    return DenseData(X, observed, weights=weights[clusters], clusters=clusters)


def fit_surveys(draw: Callable[[np.random.Generator], DenseData]) -> Survey:
    """Draw surveys, and fit each with its weights and clusters."""
    estimates, errors = [], []
    for seed in range(N_SETS):
        rows = make_memory_rows(draw(np.random.default_rng(seed)), kind="sampling")
        params = fit_model(LatentTrait(n_components=1), rows, SerialExecutor()).params
        assert params.weights_error is not None
        sign = np.sign(params.weights.sum())
        estimates.append([sign * params.weights[:, 0], params.offsets])
        errors.append([params.weights_error[:, 0], params.offsets_error])
    return Survey(np.array(estimates), np.array(errors))


@cache
def fit_clusters(n_clusters: int) -> Survey:
    return fit_surveys(partial(draw_clusters, n_clusters=n_clusters))


def test_intervals_of_unequal_probabilities_cover() -> None:
    shares = fit_surveys(draw_rows).measure_coverage()
    assert ((shares > 0.93) & (shares < 0.97)).all()


def test_intervals_of_unequal_probabilities_and_missing_values_cover() -> None:
    shares = fit_surveys(partial(draw_rows, share_missing=0.1)).measure_coverage()
    assert ((shares > 0.93) & (shares < 0.97)).all()


@pytest.mark.parametrize("n_clusters", [60, 200])
def test_intervals_of_many_clusters_cover(n_clusters: int) -> None:
    shares = fit_clusters(n_clusters).measure_coverage()
    assert ((shares > 0.93) & (shares < 0.97)).all()


def test_intervals_of_60_clusters_and_missing_values_cover() -> None:
    shares = fit_surveys(partial(draw_clusters, share_missing=0.1)).measure_coverage()
    assert ((shares > 0.93) & (shares < 0.97)).all()


def test_intervals_of_offsets_without_clusters_are_too_short() -> None:
    alone = fit_surveys(lambda rng: replace(draw_clusters(rng), clusters=None))
    clustered = fit_clusters(60)
    np.testing.assert_array_equal(alone.estimates, clustered.estimates)
    assert alone.measure_coverage()[1] < 0.9


@pytest.mark.parametrize(("n_clusters", "lowest"), [(20, 0.89), (10, 0.84)])
def test_intervals_of_few_clusters_are_too_short(n_clusters: int, lowest: float) -> None:
    survey = fit_clusters(n_clusters)
    shares = survey.measure_coverage()
    assert ((shares > lowest) & (shares < 0.94)).all()
    by_t = survey.measure_coverage(t.ppf(0.975, n_clusters - 1))
    assert (by_t > 0.9).all()


def test_only_weights_make_estimates_of_a_stratified_sample_unbiased() -> None:
    stratified = partial(draw_rows, is_fixed=True)
    weighted = fit_surveys(stratified)
    bias = weighted.measure_bias()
    assert (np.abs(bias.mean(axis=1)) < 0.2).all()
    assert (np.abs(bias) < 0.2 + 2 / np.sqrt(N_SETS)).all()
    assert (weighted.measure_coverage() > 0.93).all()
    unweighted = fit_surveys(lambda rng: replace(stratified(rng), weights=None))
    assert (unweighted.measure_bias()[1] > 0.5).all()
    assert unweighted.measure_coverage()[1] < 0.5
