"""Joint counts of independent features: their law, and the spectra that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import hypergeom, mannwhitneyu

from pipeline.data.blocks import pack_block
from pipeline.numerics.gaussian.pair_tables import arcsine_correlation, tetrachoric
from pipeline.statistics import correlations as independence
from pipeline.statistics.correlations import (
    draw_independent_pairs,
    draw_null_spectra,
    estimate_correlations,
    estimate_tetrachoric,
    find_common_rows,
    find_null_thresholds,
)
from pipeline.statistics.counts import PairCounts, PairTable
from tests.support.designs import link_by_rows

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]


def table_of(X: Bits, observed: Bits | None = None) -> PairTable:
    return PairCounts.from_block(pack_block(X, observed), pooled=True).table(0)


def independent_bits(shares: Floats, n_samples: int, rng: np.random.Generator) -> Bits:
    return (rng.random((n_samples, len(shares))) < shares).astype(np.uint8)


def margins_of(n: int, ones: list[int]) -> PairTable:
    columns = np.array(ones)
    return PairTable(np.int64(n), columns[:, None], columns[None], np.zeros(0))


def test_pairs_come_with_their_own_margins() -> None:
    rng = np.random.default_rng(0)
    X, mask = (rng.integers(0, 2, (90, 5), dtype=np.uint8) for _ in "Xm")
    table = table_of(X, mask)
    pairs = draw_independent_pairs(table, rng)
    i, j = np.triu_indices(5, 1)
    for part, whole in zip(pairs[:3], table[:3], strict=True):
        np.testing.assert_array_equal(part, whole[i, j])
    assert np.all(pairs.joint >= np.maximum(0, pairs.ones_i + pairs.ones_j - pairs.n))
    assert np.all(pairs.joint <= np.minimum(pairs.ones_i, pairs.ones_j))


def test_counts_are_quantiles_of_the_exact_law(monkeypatch: pytest.MonkeyPatch) -> None:
    table = margins_of(3000, [3, 40, 150, 2700, 2990, 20, 99, 310])
    found = draw_independent_pairs(table, np.random.default_rng(1)).joint

    def exact(n: Floats, ones_i: Floats, ones_j: Floats, z: Floats) -> Any:
        return hypergeom(n, ones_i, ones_j).ppf(ndtr(z))

    monkeypatch.setattr(independence, "joint_count_quantiles", exact)
    expected = draw_independent_pairs(table, np.random.default_rng(1)).joint
    assert len(np.unique(expected)) > 10
    np.testing.assert_array_equal(found, expected)


def tetrachoric_of(pairs: PairTable, empty_cells: Any) -> Floats:
    return np.nan_to_num(tetrachoric(*pairs, empty_cells=empty_cells).correlation)


def arcsine_of(pairs: PairTable, empty_cells: Any) -> Floats:
    n, a, b, joint = (np.asarray(part, np.float64) for part in pairs)
    clipped = (n * joint - a * b) / np.sqrt(a * (n - a) * b * (n - b))
    return arcsine_correlation(clipped)


def leading(correlations: Floats, n_features: int) -> float:
    matrix = np.eye(n_features)
    i, j = np.triu_indices(n_features, 1)
    matrix[i, j] = matrix[j, i] = correlations
    return float(np.linalg.eigvalsh(matrix)[-1])


Estimator = Callable[[PairTable, Any], Floats]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("n_samples", "n_features", "shares", "missing", "estimate", "empty_cells"),
    [
        pytest.param(2000, 40, (0.3, 0.7), 0.0, tetrachoric_of, "none", id="dense"),
        pytest.param(2000, 40, (0.01, 0.05), 0.0, tetrachoric_of, "half", id="sparse, half"),
        pytest.param(300, 150, (0.3, 0.7), 0.5, tetrachoric_of, "none", id="wide and missing"),
        pytest.param(1000, 40, (0.5, 0.5), 0.0, arcsine_of, "none", id="arcsine"),
    ],
)
def test_the_leading_null_eigenvalue_is_that_of_independent_data(
    n_samples: int,
    n_features: int,
    shares: tuple[float, float],
    missing: float,
    estimate: Estimator,
    empty_cells: str,
) -> None:
    """Medians over 40 draws of the excess over 1 agree within 5 %, spreads within a factor 2."""
    rng = np.random.default_rng(4)
    of_features = rng.uniform(*shares, n_features)
    upper = np.triu_indices(n_features, 1)
    real, null = np.empty(40), np.empty(40)
    for k in range(40):
        X = independent_bits(of_features, n_samples, rng)
        mask = (rng.random(X.shape) >= missing).astype(np.uint8) if missing else None
        table = table_of(X, mask)
        pairs = PairTable(*(np.broadcast_to(a, [n_features] * 2)[upper] for a in table))
        real[k] = leading(estimate(pairs, empty_cells), n_features)
        null[k] = leading(estimate(draw_independent_pairs(table, rng), empty_cells), n_features)
    assert np.median(null) - 1 == pytest.approx(np.median(real) - 1, rel=0.05)
    assert 0.5 < null.std() / real.std() < 2.0


def test_rows_without_any_value_change_nothing() -> None:
    rng = np.random.default_rng(5)
    X = independent_bits(np.full(30, 0.5), 100, rng)
    mask = np.repeat([[0], [1]], 50, axis=0).astype(np.uint8) * np.ones_like(X)
    with_them = draw_independent_pairs(table_of(X, mask), np.random.default_rng(6))
    without = draw_independent_pairs(table_of(X[50:]), np.random.default_rng(6))
    np.testing.assert_array_equal(with_them.joint, without.joint)


def test_features_never_seen_together_share_nothing() -> None:
    X = independent_bits(np.full(4, 0.5), 100, np.random.default_rng(7))
    mask = np.zeros_like(X)
    mask[:50, :2] = mask[50:, 2:] = 1
    pairs = draw_independent_pairs(table_of(X, mask), np.random.default_rng(8))
    np.testing.assert_array_equal(pairs.n, [50, 0, 0, 0, 0, 50])
    np.testing.assert_array_equal(pairs.joint[1:5], 0)
    assert 0 < pairs.joint[0] < 50


@pytest.mark.parametrize(("n_samples", "n_features"), [(1, 1), (1, 3), (2, 3), (5, 1), (3, 3)])
def test_the_smallest_tables(n_samples: int, n_features: int) -> None:
    X = np.ones((n_samples, n_features), np.uint8)
    pairs = draw_independent_pairs(table_of(X), np.random.default_rng(0))
    np.testing.assert_array_equal(
        pairs.joint, np.full(n_features * (n_features - 1) // 2, n_samples)
    )


@pytest.mark.parametrize(("n_draws", "rank"), [(20, 1), (39, 2), (60, 3), (99, 5), (300, 15)])
def test_independent_features_exceed_the_threshold_in_five_percent(n_draws: int, rank: int) -> None:
    drawn = np.random.default_rng(n_draws).permuted(np.tile(np.arange(n_draws), (3, 1)), axis=1)
    thresholds = find_null_thresholds(drawn.T.astype(np.float64))
    np.testing.assert_array_equal(thresholds, n_draws - rank)
    assert rank / (n_draws + 1) <= 0.05  # the chance to rank among the first so many of n + 1


def test_rows_of_linked_forms_are_found_from_the_counts_of_pairs() -> None:
    mask = link_by_rows(500, 12, np.random.default_rng(0), 0.1).astype(np.int64)
    row_sets, remaining = find_common_rows(mask.T @ mask)
    first, second = range(6), range(6, 12)
    sizes = {tuple(own.features.tolist()): own.n_rows for own in row_sets}
    assert sizes == {(*first, *second): 50, tuple(first): 225, tuple(second): 225}
    assert not remaining.any()


@pytest.mark.parametrize("share", [0.08, 0.01])
def test_null_eigenvalues_of_forms_are_those_of_independent_data(share: float) -> None:
    """The forms are answered by other rows; their pairs are coupled by few common rows."""
    rng = np.random.default_rng(1)
    estimate, largest, null = partial(estimate_tetrachoric, "half"), [], []
    mask = link_by_rows(600, 12, rng, share).astype(np.uint8)
    for _ in range(60):
        block = pack_block((rng.random(mask.shape) < 0.4).astype(np.uint8), mask)
        counts = PairCounts.from_block(block, pooled=True)
        (correlation,), _ = estimate_correlations(counts, estimate, map)
        largest.append(np.linalg.eigvalsh(correlation)[-1])
        seeds = rng.integers(2**63, size=2)
        null += draw_null_spectra(counts, 0, estimate, seeds, 1, map)[:, 0].tolist()
    assert mannwhitneyu(largest, null).pvalue > 0.01
