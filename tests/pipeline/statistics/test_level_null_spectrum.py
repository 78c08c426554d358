"""Eigenvalues of independent features with levels, against permuted rows and binary features."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from pipeline.data.features import Feature, split_values
from pipeline.statistics import level_null_spectrum, null_spectrum
from pipeline.statistics.correlations import estimate_polychoric, estimate_tetrachoric
from pipeline.statistics.counts import PairTable
from pipeline.statistics.level_null_spectrum import (
    PlaneMargins,
    estimate_level_null_quantiles,
    score_levels,
)
from pipeline.statistics.null_spectrum import estimate_null_quantiles

NONE = np.zeros(0, np.int64)


@pytest.fixture(autouse=True)
def few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null_spectrum, "_MAX_GROUPS", 10)


def draw_planes(
    n_rows: int, counts: list[int], share: float, missing: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Draw independent features; return bits and masks of planes, and the first planes."""
    levels = np.column_stack([rng.binomial(k - 1, share, n_rows) for k in counts])
    mask = (rng.random(levels.shape) >= missing).astype(np.uint8)
    features = [Feature(f"q{i}", tuple(map(str, range(k)))) for i, k in enumerate(counts)]
    bits, observed = split_values(levels.astype(np.uint8), mask, features)
    first_planes = np.cumsum([0, *(k - 1 for k in counts)])
    return (bits & observed).astype(float), observed.astype(float), first_planes


def count_margins(
    bits: NDArray[np.float64], observed: NDArray[np.float64], first_planes: NDArray[np.int64]
) -> PlaneMargins:
    ones, totals = (values.sum(axis=0).astype(np.int64) for values in (bits, observed))
    return PlaneMargins(len(bits), totals, ones, first_planes)


@pytest.mark.parametrize(
    ("n_rows", "share", "missing"), [(2000, 0.4, 0.0), (1500, 0.3, 0.4), (1000, 0.05, 0.0)]
)
def test_quantiles_are_those_of_independent_rows(n_rows: int, share: float, missing: float) -> None:
    rng = np.random.default_rng(0)
    counts = [3, 4, 6] * 20
    spectra = []
    for _ in range(8):
        bits, observed, first_planes = draw_planes(n_rows, counts, share, missing, rng)
        ones = bits.T @ observed
        table = PairTable(observed.T @ observed, ones, ones.T, bits.T @ bits)
        correlation, _ = estimate_polychoric("half", first_planes, table)
        correlation = np.triu(correlation, 1)
        spectra.append(np.linalg.eigvalsh(correlation + correlation.T + np.eye(len(counts)))[::-1])
    margins = count_margins(bits, observed, first_planes)
    medians = estimate_level_null_quantiles(margins, NONE, "half", 8, map, rng, quantile=0.5)
    assert_allclose(medians, np.median(spectra, axis=0)[:8], rtol=0.02)


def test_binary_features_have_the_quantiles_of_binary_data() -> None:
    rng = np.random.default_rng(1)
    bits, observed, first_planes = draw_planes(300, [2] * 150, 0.05, 0.0, rng)
    margins = count_margins(bits, observed, first_planes)
    found = estimate_level_null_quantiles(margins, NONE, "half", 8, map, rng)
    expected = estimate_null_quantiles(
        300, margins.observed, margins.ones, lambda t: estimate_tetrachoric("half", t), 8, rng
    )
    assert_allclose(found, expected, rtol=0.03)


def test_constant_features_do_not_count() -> None:
    rng = np.random.default_rng(2)
    bits, observed, first_planes = draw_planes(200, [3] * 20, 0.4, 0.0, rng)
    bits[:, 4:8] = [1, 0, 0, 0]  # features 2 and 3
    margins = count_margins(bits, observed, first_planes)
    fewer = margins.select(np.delete(np.arange(20), [2, 3]))
    assert len(fewer.ones) == 36
    one, other = (
        estimate_level_null_quantiles(m, NONE, "half", 99, map, np.random.default_rng(3))
        for m in (margins, fewer)
    )
    assert len(one) == 18
    assert_allclose(one, other)


def test_scores_are_means_of_the_normal_within_levels() -> None:
    thresholds = [-0.7, 0.2, 1.1]
    n = 10**7
    ones = np.rint(n * norm.sf(thresholds)).astype(np.int64)
    # A second feature has an empty level in the middle, and an empty one at the top.
    ones = np.concatenate([ones, ones[[0, 0]], [0]])
    margins = PlaneMargins(n, np.full(6, n), ones, np.array([0, 3, 6]))
    scores = score_levels(margins)

    def find_mean(low: float, high: float) -> float:
        return quad(lambda x: x * norm.pdf(x), low, high)[0] / (norm.cdf(high) - norm.cdf(low))

    edges = [-np.inf, *thresholds, np.inf]
    means = np.array([find_mean(*edges[k : k + 2]) for k in range(4)])
    assert_allclose(scores.steps[:3], np.diff(means), atol=1e-5)
    shares = np.diff(norm.cdf(edges))
    assert scores.variances[0] == pytest.approx(shares @ means**2, abs=1e-6)
    below, above = find_mean(-np.inf, -0.7), find_mean(-0.7, np.inf)
    assert scores.steps[3] + scores.steps[4] == pytest.approx(above - below, abs=1e-5)
    share = norm.cdf(-0.7)
    expected = share * below**2 + (1 - share) * above**2
    assert scores.variances[1] == pytest.approx(expected, abs=1e-6)


def test_the_order_of_features_does_not_matter_much(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    margins = count_margins(*draw_planes(800, [2, 5, 3] * 40, 0.3, 0.0, rng))
    order = rng.permutation(120)
    monkeypatch.setattr(level_null_spectrum, "_DRAWS", 4)
    one, other = (
        estimate_level_null_quantiles(m, NONE, "half", 5, map, rng)
        for m in (margins, margins.select(order))
    )
    assert_allclose(one, other, rtol=0.02)
