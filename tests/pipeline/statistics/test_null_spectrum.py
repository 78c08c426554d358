"""Null eigenvalues from margins alone: against drawn matrices, against data, and what holds."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.statistics.correlations import (
    CorrelationEstimator,
    draw_null_spectra,
    estimate_arcsine,
    estimate_tetrachoric,
)
from pipeline.statistics.counts import PairCounts
from pipeline.statistics.null_spectrum import estimate_null_quantiles
from tests.support.traced_memory import measure_peak_memory, start_tracing_process

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Bits = NDArray[np.uint8]

TETRACHORIC = partial(estimate_tetrachoric, "half")
KEPT = np.array([0, 1, 4, 19])


def bits(shares: Array, n_rows: int, rng: np.random.Generator) -> Bits:
    return (rng.random((n_rows, len(shares))) < shares).astype(np.uint8)


def count(X: Bits, observed: Bits | None = None) -> PairCounts:
    return PairCounts.from_block(pack_block(X, observed), pooled=True)


def rare_shares(n_features: int) -> Array:
    return np.geomspace(0.004, 0.3, n_features)


def drawn_margins(shares: Array, n_rows: int, seed: int) -> tuple[Counts, Counts]:
    rng = np.random.default_rng(seed)
    return np.full(len(shares), n_rows), rng.binomial(n_rows, shares)


def quantiles(
    n_rows: int,
    observed: Counts,
    ones: Counts,
    seed: int = 0,
    estimate: CorrelationEstimator = estimate_arcsine,
) -> Array:
    return estimate_null_quantiles(
        n_rows, observed, ones, estimate, 20, np.random.default_rng(seed)
    )


@pytest.mark.parametrize(
    ("n_rows", "n_features", "shares", "missing", "estimate"),
    [
        pytest.param(800, 150, (0.5, 0.5), 0.0, estimate_arcsine, id="arcsine"),
        pytest.param(120, 160, (0.4, 0.6), 0.0, TETRACHORIC, id="more features than rows"),
        *(
            pytest.param(*case, TETRACHORIC, id=name, marks=pytest.mark.matrix)
            for name, case in {
                "tetrachoric": (800, 150, (0.1, 0.9), 0.0),
                "many rows": (6000, 150, (0.1, 0.9), 0.0),
                "missing": (1000, 150, (0.2, 0.6), 0.2),
            }.items()
        ),
    ],
)
def test_drawn_matrices_have_these_eigenvalues(
    n_rows: int,
    n_features: int,
    shares: tuple[float, float],
    missing: float,
    estimate: CorrelationEstimator,
) -> None:
    """Medians agree well within what the 95 % quantile of 20 draws is uncertain by."""
    rng, n_draws = np.random.default_rng(0), 40
    X = bits(rng.uniform(*shares, n_features), n_rows, rng)
    mask = (rng.random(X.shape) >= missing).astype(np.uint8)
    counts = count(X * mask, mask if missing else None)
    drawn = draw_null_spectra(counts, 0, estimate, np.arange(n_draws), 20, map)[:, :20]
    median = estimate_null_quantiles(
        n_rows, mask.sum(0, np.int64), (X * mask).sum(0, np.int64), estimate, 20, rng, 0.5
    )
    spread = drawn.std(axis=0)
    # Of normal draws the median has 1.25, the 95 % quantile of 20 about 2.1 standard errors.
    bound = 3.5 * 1.25 * spread / n_draws**0.5 + 0.5 * 2.1 * spread / 20**0.5
    assert (np.abs(median - np.median(drawn, axis=0)) < bound)[KEPT].all()


@pytest.mark.matrix
def test_empty_cells_lift_the_first_eigenvalue() -> None:
    margins = drawn_margins(rare_shares(300), 2000, 0)
    found = quantiles(2000, *margins, estimate=TETRACHORIC)
    assert found[0] > 2 * found[1]
    without = quantiles(2000, *margins)
    assert without[0] < 2 * without[1]


@pytest.mark.matrix
def test_the_order_of_features_does_not_matter() -> None:
    observed, ones = drawn_margins(rare_shares(200), 1000, 2)
    observed -= np.arange(200) % 7
    order = np.random.default_rng(0).permutation(200)
    np.testing.assert_array_equal(
        quantiles(1000, observed[order], ones[order]), quantiles(1000, observed, ones)
    )


def test_constant_features_change_nothing() -> None:
    observed, ones = drawn_margins(np.full(100, 0.3), 500, 4)
    more = np.append(ones, [0, 0, 500])
    np.testing.assert_array_equal(
        quantiles(500, np.full(103, 500), more), quantiles(500, observed, ones)
    )


def test_equal_margins_are_one_group() -> None:
    found = quantiles(1000, np.full(400, 1000), np.full(400, 500))
    # Half of ones: arcsine turns a small correlation c of the bits into π c / 2.
    edge = 1 + np.pi / 2 * ((1 + (400 / 1000) ** 0.5) ** 2 - 1)
    assert found[0] == pytest.approx(edge, rel=0.02)
    assert (np.diff(found) < 0).all()


@pytest.mark.parametrize("ones", [[], [0], [3], [3, 10], [3, 4], [1, 9, 5], [1, 1, 1, 1]])
def test_the_fewest_features(ones: list[int]) -> None:
    found = quantiles(10, np.full(len(ones), 10), np.array(ones, np.int64))
    assert len(found) == sum(0 < k < 10 for k in ones)
    assert np.isfinite(found).all()


@pytest.mark.matrix
def test_memory_does_not_grow_with_pairs_of_features() -> None:
    margins = drawn_margins(rare_shares(50_000), 20_000, 5)
    with start_tracing_process() as process:
        _, peak = process.submit(measure_peak_memory, quantiles, 20_000, *margins).result()
    assert peak < 100 << 20
