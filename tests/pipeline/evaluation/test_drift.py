"""Which rows are new, how far their correlations lie apart by chance, and which pairs moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multivariate_normal, norm

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.data.features import Feature
from pipeline.evaluation.calibration import ShareComparison
from pipeline.evaluation.drift import (
    compare_correlations,
    compare_loadings,
    find_largest_move,
    find_new_constants,
    match_features,
    pool_counts,
    select_appended_rows,
    subtract_counts,
    tetrachoric_variance,
)
from pipeline.models.stack import StackParams
from pipeline.numerics.gaussian.pair_tables import tetrachoric
from pipeline.params import array_field, get_named_arrays
from pipeline.statistics.counts import PairCounts, PairTable
from tests.support.strategies import (
    Bits,
    DenseData,
    chunkings,
    make_memory_blocks,
    make_memory_rows,
    tables,
)

Floats = NDArray[np.float64]


def counts_of(data: DenseData, sizes: Sequence[int] | None = None) -> PairCounts:
    parts = [PairCounts.from_block(b, pooled=True) for b in make_memory_blocks(data, sizes)]
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    return total


# --- rows ----------------------------------------------------------------------------------------


def row_numbers(rows: RowSource) -> list[int]:
    blocks = (block for key in range(rows.n_chunks) for block in iter_blocks(rows.read(key)))
    return sorted(int(row) for block in blocks for row in block.rows)


def test_later_rows_are_those_of_the_chunks_from_there_on() -> None:
    data = DenseData(np.zeros((100, 2), np.uint8))
    assert row_numbers(select_appended_rows(make_memory_rows(data, [30, 30, 40]), 1)) == [
        *range(30, 100)
    ]


def test_a_share_of_rows_is_the_same_one_however_chunks_are_cut() -> None:
    X = np.zeros((4000, 2), np.uint8)
    keep = np.arange(4000) % 2 == 0
    chosen = []
    for sizes in ([1000, 3000], [1000, 1700, 1300]):
        rows = make_memory_rows(DenseData(X, None, None, keep), sizes)
        chosen.append(row_numbers(select_appended_rows(rows, 1, 0.25, seed=3)))
    assert chosen[0] == chosen[1]
    assert all(row >= 1000 and row % 2 == 0 for row in chosen[0])
    assert abs(len(chosen[0]) - 375) < 80
    assert row_numbers(select_appended_rows(rows, 1, 0.25, seed=4)) != chosen[0]


@given(data=tables(), draw=st.data())
def test_counts_without_a_part_are_those_of_the_rest(data: DenseData, draw: st.DataObject) -> None:
    sizes = draw.draw(chunkings(len(data.X)))
    first = sizes[0]
    if first == len(data.X):
        return
    if draw.draw(st.booleans()):
        data = replace(data, weights=1 + np.arange(len(data.X)) % 5)
    part, rest = data.take_rows(slice(0, first)), data.take_rows(slice(first, None))
    found, expected = subtract_counts(counts_of(data, sizes), counts_of(part)), counts_of(rest)
    for got, wanted in zip(found.table(0), expected.table(0), strict=True):
        np.testing.assert_array_equal(*np.broadcast_arrays(got, wanted))
    assert (found.n_rows, found.weight) == (len(rest.X), expected.weight)


@given(data=tables())
def test_pooled_counts_are_those_of_one_segment(data: DenseData) -> None:
    apart = [PairCounts.from_block(b, pooled=False) for b in make_memory_blocks(data)]
    total = apart[0]
    for part in apart[1:]:
        total = total.merge(part)
    for got, wanted in zip(pool_counts(total).table(0), counts_of(data).table(0), strict=True):
        np.testing.assert_array_equal(*np.broadcast_arrays(got, wanted))


# --- correlations --------------------------------------------------------------------------------


def cells(t_i: float, t_j: float, r: float) -> Floats:
    """Probabilities of (1, 1), (1, 0), (0, 1), (0, 0)."""
    both = multivariate_normal(cov=[[1, r], [r, 1]]).cdf([-t_i, -t_j])
    p_i, p_j = norm.sf(t_i), norm.sf(t_j)
    return np.array([both, p_i - both, p_j - both, 1 - p_i - p_j + both])


@pytest.mark.parametrize(
    ("t_i", "t_j", "r"), [(0, 0, 0), (0.5, -0.8, 0.3), (1.0, 0.7, 0.6), (-0.3, 0.9, -0.7)]
)
def test_the_variance_is_that_of_many_tables(t_i: float, t_j: float, r: float) -> None:
    n, p = 20_000, cells(t_i, t_j, r)
    drawn = np.random.default_rng(1).multinomial(n, p, size=6000)
    found = tetrachoric(n, drawn[:, 0] + drawn[:, 1], drawn[:, 0] + drawn[:, 2], drawn[:, 0])
    table = PairTable(*(np.array([v]) for v in (1.0, p[0] + p[1], p[0] + p[2], p[0])))
    (expected,) = tetrachoric_variance(table, np.array([r]))
    assert n * found.correlation.var() == pytest.approx(expected, rel=0.08)


def clipped(n_rows: int, correlation: Floats, seed: int) -> Bits:
    # By its Cholesky factor, which is one alone: eigenvectors of equal eigenvalues are not.
    noise = np.random.default_rng(seed).standard_normal((n_rows, len(correlation)))
    x = noise @ np.linalg.cholesky(correlation).T
    return (x > np.linspace(-0.8, 0.8, len(correlation))).astype(np.uint8)


def equicorrelated(n_features: int) -> Floats:
    return 0.6 * np.eye(n_features) + 0.4


def compared(before: Bits, new: Bits) -> ShareComparison:
    whole = counts_of(DenseData(np.vstack([before, new])))
    return compare_correlations(whole, counts_of(DenseData(new)), map)


def test_rows_of_the_same_model_move_by_chance() -> None:
    before, new = (clipped(n, equicorrelated(20), seed) for seed, n in enumerate((20_000, 3000)))
    moved = compared(before, new)
    assert len(moved.z) == 190
    assert moved.rmse == pytest.approx(moved.chance_rmse, rel=0.15)
    assert np.abs(moved.z).max() < 4
    assert 0.85 < moved.z.std() < 1.15


def test_pairs_that_changed_are_the_largest() -> None:
    changed = equicorrelated(20)
    changed[3, 7] = changed[7, 3] = -0.1
    before, new = clipped(20_000, equicorrelated(20), 0), clipped(3000, changed, 1)
    moved = compared(before, new)
    assert moved.features[moved.find_largest(1)].tolist() == [[3, 7]]
    at = moved.find_largest(1)[0]
    assert moved.implied[at] == pytest.approx(0.4, abs=0.04)
    assert moved.observed[at] == pytest.approx(-0.1, abs=0.1)
    assert moved.z[at] < -10
    others = np.delete(moved.z, at)
    assert np.abs(others).max() < 4


def test_pairs_with_too_few_rows_are_left_out() -> None:
    before, new = clipped(20_000, equicorrelated(4), 0), clipped(1000, equicorrelated(4), 1)
    before[:, 1], new[:, 1] = np.arange(20_000) < 80, np.arange(1000) < 3  # 4 of 1000 are ones
    new[:, 2] = 1  # so new rows have no correlations of this feature
    assert compared(before, new).features.tolist() == [[0, 3]]
    assert len(compared(before, new[:20]).z) == 0


def test_features_that_became_constant_are_found_unless_they_are_rare() -> None:
    before, new = clipped(20_000, equicorrelated(5), 0), clipped(1000, equicorrelated(5), 1)
    before[:, 1] = np.arange(20_000) < 20  # 1 of 1000 rows is a one, and maybe none
    new[:, 1], new[:, 2], new[:, 3] = 0, 1, 0
    whole = counts_of(DenseData(np.vstack([before, new])))
    assert find_new_constants(whole, counts_of(DenseData(new))).tolist() == [2, 3]
    before[:, 2] = 1  # as before
    whole = counts_of(DenseData(np.vstack([before, new])))
    assert find_new_constants(whole, counts_of(DenseData(new))).tolist() == [3]


# --- parameters ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Params:
    tilted: Floats = array_field("component", "feature")
    other: Floats = array_field("feature", "component")
    offsets: Floats = array_field("feature")


def params_of(tilted: Floats, offsets: Floats) -> Params:
    return Params(tilted, np.zeros((3, 2)), offsets)


def test_the_first_arrays_by_feature_are_compared() -> None:
    before = params_of(np.array([[1.0, 0, 0], [0, 1, 0]]), np.array([0.0, 1, 2]))
    turned = params_of(np.array([[0, -2.0, 0], [3.0, 0, 3]]), np.array([0.1, 0.5, 2]))
    name, alike = compare_loadings(get_named_arrays(before), get_named_arrays(turned)) or ("", 0.0)
    assert name == "tilted"
    assert alike == pytest.approx((1 + np.sqrt(0.5)) / 2)
    move = find_largest_move(get_named_arrays(before), get_named_arrays(turned))
    assert move == ("offsets", 1, 1.0, 0.5)


def test_biases_below_a_stack_are_compared() -> None:
    before = StackParams((np.ones((2, 1)),), (np.zeros(2),), (np.zeros(1),), np.zeros(2))
    now = replace(before, visible_biases=(np.array([0.0, 3.0]),))
    move = find_largest_move(get_named_arrays(before), get_named_arrays(now))
    assert move == ("visible_biases_0", 1, 0.0, 3.0)


def test_features_with_other_levels_are_not_shared() -> None:
    old = (Feature("a"), Feature("b", ("0", "1", "2")), Feature("c", ("x", "y", "z")), Feature("d"))
    new = (Feature("c", ("x", "y", "z")), Feature("b", ("2", "1", "0")), Feature("a"))
    shared = match_features(old, new)
    assert {dim: own.tolist() for dim, own in shared.old.items()} == {
        "feature": [2, 0],
        "plane": [3, 4, 0],
    }
    assert {dim: own.tolist() for dim, own in shared.new.items()} == {
        "feature": [0, 2],
        "plane": [0, 1, 4],
    }
    assert (shared.new_names, shared.absent_names) == (["b"], ["b", "d"])
