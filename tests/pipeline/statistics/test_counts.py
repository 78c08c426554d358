"""Counts, weighted or not, against the dense matrix, counted by NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.errors import FitError
from pipeline.statistics.counts import (
    FeatureCounts,
    PairCounts,
    _choose_count_type,
    count_strip,
    make_strip_table,
    make_tiles,
)
from tests.support.strategies import (
    DenseData,
    chunkings,
    count_dense_pairs,
    make_memory_blocks,
    make_memory_rows,
    tables,
)

Counts = Mapping[str, NDArray[Any]]
any_weight = st.integers(0, 3) | st.integers(0, 1 << 40)


def dense_feature_counts(data: DenseData) -> Counts:
    seen = np.unique(data.labels)
    parts = [data.take_rows(data.labels == s) for s in seen]
    return {
        "segments": seen,
        "rows": np.array([len(part.X) for part in parts]),
        "observed": np.array([part.mask.sum(axis=0, dtype=np.int64) for part in parts]),
        "ones": np.array([(part.X & part.mask).sum(axis=0, dtype=np.int64) for part in parts]),
    }


def draw_row_weights(
    draw: st.DataObject, n_rows: int, weight: st.SearchStrategy[int] = any_weight
) -> NDArray[np.int64]:
    return draw.draw(hnp.arrays(np.int64, n_rows, elements=weight))


def weigh(block: BinaryBlock, draw: st.DataObject) -> BinaryBlock:
    """Draw weights of the rows of a block, or none."""
    if not draw.draw(st.booleans()):
        return block
    return replace(block, weights=draw_row_weights(draw, block.n_samples), weight_unit=0.5)


def count_weighted_pairs(data: DenseData, weights: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The tables of all pairs, in which rows count as many times as their weight."""
    assert weights.sum() < 2**53  # so products of floats, which are quick, are exact
    mask = data.mask.astype(np.float64)
    ones = (data.X & data.mask).astype(np.float64)
    pairs = ((mask, mask), (ones, mask), (mask, ones), (ones, ones))
    return [((weights * a.T) @ b).astype(np.int64) for a, b in pairs]


def merged(parts: list[Any]) -> Any:
    return reduce(lambda a, b: a.merge(b), parts)


def assert_same(a: Counts, b: Counts) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name, strict=True)


@given(tables(), st.data())
def test_feature_counts_are_those_of_the_dense_matrix(data: DenseData, draw: st.DataObject) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X))))
    counts = merged([FeatureCounts.from_block(block) for block in blocks])
    assert_same(counts.to_arrays(), dense_feature_counts(data))
    assert counts.n_rows == len(data.X)


@given(tables(), st.data())
def test_pooled_pair_tables_are_those_of_the_dense_matrix(
    data: DenseData, draw: st.DataObject
) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X))))
    counts = merged([PairCounts.from_block(block, pooled=True) for block in blocks])
    assert (counts.n_rows, counts.n_features) == data.X.shape
    assert counts.segments.tolist() == [0]
    square = np.ones((data.X.shape[1],) * 2, np.int64)
    for part, expected in zip(counts.table(0), count_dense_pairs(data), strict=True):
        np.testing.assert_array_equal(part * square, expected)


@given(tables(st.integers(1, 9)), st.data())
def test_a_table_of_some_pairs_is_part_of_the_whole(data: DenseData, draw: st.DataObject) -> None:
    n = data.X.shape[1]
    counts = PairCounts.from_block(pack_block(data.X, data.observed), pooled=True)
    left, right = (slice(*sorted(draw.draw(st.tuples(*[st.integers(0, n)] * 2)))) for _ in "ij")
    shape = (left.stop - left.start, right.stop - right.start)
    for part, dense in zip(counts.table(0, left, right), count_dense_pairs(data), strict=True):
        np.testing.assert_array_equal(np.broadcast_to(part, shape), dense[left, right])


@given(tables(st.integers(1, 9)), st.integers(1, 10), st.booleans(), st.data())
def test_tiles_stitch_to_the_whole(
    data: DenseData, side: int, pooled: bool, draw: st.DataObject
) -> None:
    block = weigh(pack_block(data.X, data.observed, segment=1), draw)
    whole = PairCounts.from_block(block, pooled=pooled)
    cut = make_tiles(data.X.shape[1], 1, 64 * side**2)
    assert (cut == (None,)) == (side >= data.X.shape[1])
    parts = [PairCounts.from_block(replace(block, tile=tile), pooled=pooled) for tile in cut]
    assert_same(PairCounts.stitch(parts).to_arrays(), whole.to_arrays())


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 1 << 20))
def test_tiles_cover_the_upper_triangle_within_the_budget(
    n_features: int, n_segments: int, budget: int
) -> None:
    cut = make_tiles(n_features, n_segments, budget)
    covered = np.zeros((n_features, n_features), int)
    for tile in cut:
        left, right = ((0, n_features),) * 2 if tile is None else tile
        covered[slice(*left), slice(*right)] += 1
        cells = (left[1] - left[0]) * (right[1] - right[0])
        assert cells == 1 or 8 * 4 * 2 * n_segments * cells <= budget
    assert np.all(covered[np.triu_indices(n_features)] == 1)


@given(tables(), st.booleans(), st.data())
def test_weighted_counts_are_those_of_repeated_rows(
    data: DenseData, pooled: bool, draw: st.DataObject
) -> None:
    weights = draw_row_weights(draw, len(data.X), st.integers(0, 4))
    assume(weights.any())
    chunks = draw.draw(chunkings(len(data.X)))
    blocks = make_memory_blocks(replace(data, weights=weights), chunks)
    copies = make_memory_blocks(data.take_rows(np.repeat(np.arange(len(weights)), weights)))
    for count in (FeatureCounts.from_block, partial(PairCounts.from_block, pooled=pooled)):
        found, expected = (merged([count(block) for block in some]) for some in (blocks, copies))
        assert (found.n_rows, found.weight) == (np.count_nonzero(weights), weights.sum())
        assert expected.weight == expected.n_rows == weights.sum()
        # A segment whose rows all have weight 0 is seen, but has no rows.
        is_seen = found.rows > 0
        np.testing.assert_array_equal(found.segments[is_seen], expected.segments)
        np.testing.assert_array_equal(found.weights[is_seen], expected.rows)
        if isinstance(found, FeatureCounts):
            np.testing.assert_array_equal(found.observed[is_seen], expected.observed)
            np.testing.assert_array_equal(found.ones[is_seen], expected.ones)
            assert found.is_complete == expected.is_complete
            continue
        square = np.ones((found.n_features,) * 2, np.int64)
        for place, other in enumerate(np.flatnonzero(is_seen)):
            for part, dense in zip(found.table(other), expected.table(place), strict=True):
                np.testing.assert_array_equal(part * square, dense * square)
        for margin, dense in zip(found.margins(), expected.margins(), strict=True):
            np.testing.assert_array_equal(margin[is_seen], dense)


@given(tables(), st.data())
def test_large_weights_are_summed_exactly(data: DenseData, draw: st.DataObject) -> None:
    weights = draw_row_weights(draw, len(data.X))
    block = replace(pack_block(data.X, data.observed), weights=weights)
    first, counts = FeatureCounts.from_block(block), PairCounts.from_block(block, pooled=False)
    n, _, _, joint = expected = count_weighted_pairs(data, weights)
    np.testing.assert_array_equal(first.observed[0], n.diagonal())
    np.testing.assert_array_equal(first.ones[0], joint.diagonal())
    assert first.weight == counts.weight == block.weight == weights.sum()
    square = np.ones_like(joint)
    for part, dense in zip(counts.table(0), expected, strict=True):
        np.testing.assert_array_equal(part * square, dense)
    added = PairCounts.from_block(block, pooled=False).add_block(block, pooled=False)
    assert_same(added.to_arrays(), counts.merge(counts).to_arrays())


@pytest.mark.parametrize("n_features", [70, 200])
def test_weighted_counts_across_words_and_blocks(n_features: int) -> None:
    rng = np.random.default_rng(0)
    data = DenseData(*rng.integers(0, 2, (2, 9_000, n_features), np.uint8))
    # Most of the higher bit planes have words without any row.
    weights = np.where(rng.random(9_000) < 0.01, rng.integers(0, 1 << 30, 9_000), 1)
    weights[:200] = 0
    for mask in (None, data.observed):
        block = replace(pack_block(data.X, mask), weights=weights)
        counts = PairCounts.from_block(block, pooled=True)
        expected = count_weighted_pairs(replace(data, observed=mask), weights)
        for part, dense in zip(counts.table(0), expected, strict=True):
            np.testing.assert_array_equal(np.broadcast_to(part, dense.shape), dense)


group_numbers = st.integers(1, 5)
long_tables = tables(st.integers(1, 4), st.integers(1, 400))


def drawn_weights(draw: st.DataObject, n_segments: int, n_groups: int) -> NDArray[np.int64]:
    shape = (n_segments, n_groups)
    return draw.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 3)))


def rows_by_group(blocks: list[BinaryBlock], n_groups: int) -> dict[int, list[int]]:
    """Original rows under each key segment · n_groups + group."""
    rows: dict[int, list[int]] = {}
    for block in blocks:
        for g, group in enumerate(block.split_into_groups(n_groups)):
            if group.n_samples:
                rows.setdefault(block.segment * n_groups + g, []).extend(group.rows.tolist())
    return dict(sorted(rows.items()))


@given(long_tables, group_numbers, st.data())
def test_groups_of_weighted_rows_are_counted_by_weight(
    data: DenseData, n_groups: int, draw: st.DataObject
) -> None:
    weights = draw_row_weights(draw, len(data.X))
    block = replace(pack_block(data.X, data.observed, segment=2), weights=weights)
    counts = PairCounts.from_groups(block, n_groups)
    rows = rows_by_group([block], n_groups)
    assert counts.segments.tolist() == [*rows]
    assert counts.weights.tolist() == [weights[some].sum() for some in rows.values()]
    square = np.ones((data.X.shape[1],) * 2, np.int64)
    for place, some in enumerate(rows.values()):
        expected = count_weighted_pairs(data.take_rows(some), weights[some])
        for part, dense in zip(counts.table(place), expected, strict=True):
            np.testing.assert_array_equal(part * square, dense)
    once = counts.sum_weighted_groups(n_groups, np.ones((1, n_groups), np.int64))
    assert_same(once.to_arrays(), PairCounts.from_block(block, pooled=False).to_arrays())


@given(long_tables, group_numbers, st.data())
def test_weights_say_how_often_a_group_counts(
    data: DenseData, n_groups: int, draw: st.DataObject
) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X), 3)))
    counts = merged([PairCounts.from_groups(block, n_groups) for block in blocks])
    weights = drawn_weights(draw, data.n_segments, n_groups)
    seen = np.unique(data.labels)
    sums = counts.sum_weighted_groups(n_groups, weights[seen])
    assert sums.segments.tolist() == seen.tolist()
    rows = rows_by_group(blocks, n_groups)
    square = np.ones((data.X.shape[1],) * 2, np.int64)
    for place, segment in enumerate(seen):
        often = [
            row
            for g in range(n_groups)
            for row in rows.get(segment * n_groups + g, [])
            for _ in range(weights[segment, g])
        ]
        some = data.take_rows(np.array(often, np.int64))
        assert sums.rows[place] == len(some.X)
        for part, dense in zip(sums.table(place), count_dense_pairs(some), strict=True):
            np.testing.assert_array_equal(part * square, dense)


@given(long_tables, group_numbers, st.data())
def test_weighting_and_merging_may_change_places(
    data: DenseData, n_groups: int, draw: st.DataObject
) -> None:
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X), 4)))
    parts = [PairCounts.from_groups(block, n_groups) for block in blocks]
    weights = drawn_weights(draw, data.n_segments, n_groups)

    def weighted(counts: PairCounts) -> PairCounts:
        return counts.sum_weighted_groups(n_groups, weights[counts.list_grouped_segments(n_groups)])

    assert_same(weighted(merged(parts)).to_arrays(), merged([*map(weighted, parts)]).to_arrays())


@given(tables(st.integers(2, 7)), st.integers(1, 6), group_numbers, st.data())
def test_tiles_of_groups_stitch_to_the_whole(
    data: DenseData, side: int, n_groups: int, draw: st.DataObject
) -> None:
    block = weigh(pack_block(data.X, data.observed, segment=1), draw)
    whole = PairCounts.from_groups(block, n_groups)
    cut = make_tiles(data.X.shape[1], 1, 64 * side**2)
    parts = [PairCounts.from_groups(replace(block, tile=tile), n_groups) for tile in cut]
    assert_same(PairCounts.stitch(parts).to_arrays(), whole.to_arrays())
    weights = drawn_weights(draw, 1, n_groups)
    sums = PairCounts.stitch([part.sum_weighted_groups(n_groups, weights) for part in parts])
    assert_same(sums.to_arrays(), whole.sum_weighted_groups(n_groups, weights).to_arrays())


@pytest.mark.parametrize("observed", [None, np.empty((0, 3), np.uint8)])
def test_a_block_without_rows_still_names_its_segment(observed: Any) -> None:
    block = pack_block(np.empty((0, 3), np.uint8), observed, segment=2)
    counts = PairCounts.from_groups(block, 4)
    assert (counts.segments.tolist(), counts.rows.tolist()) == ([8], [0])
    sums = counts.sum_weighted_groups(4, np.ones((1, 4), np.int64))
    assert_same(sums.to_arrays(), PairCounts.from_block(block, pooled=False).to_arrays())


@pytest.mark.parametrize("weights", [np.ones((1, 3), int), np.ones((2, 2), int), [[1, -1]]])
def test_wrong_weights_are_refused(weights: Any) -> None:
    counts = PairCounts.from_groups(pack_block(np.ones((9, 2), np.uint8)), 2)
    with pytest.raises(FitError, match=r"each group of each segment: \(1, 2\)"):
        counts.sum_weighted_groups(2, np.array(weights))


@given(data=tables(splits=True), draw=st.data())
def test_a_strip_has_the_pairs_of_all_rows_of_the_split(
    data: DenseData, draw: st.DataObject
) -> None:
    if draw.draw(st.booleans()):
        data = replace(data, weights=draw_row_weights(draw, len(data.X)))
        assume(data.weights.any())
    kept = data if data.keep is None else data.take_rows(data.keep)
    weights = np.ones(len(kept.X), np.int64) if kept.weights is None else kept.weights
    is_counted, total, n = weights > 0, int(weights.sum()), data.X.shape[1]
    first = draw.draw(st.integers(0, n - 1))
    features = slice(first, draw.draw(st.integers(first + 1, n)))
    rows = make_memory_rows(data, draw.draw(chunkings(len(data.X))))
    chunks = map(rows.read, range(rows.n_chunks))
    masked = bool((kept.mask[is_counted] == 0).any())
    strip = count_strip(features, n, total, masked, chunks)
    expected = count_weighted_pairs(kept, weights)
    table = make_strip_table(strip, features, total, expected[-1].diagonal())
    for got, square in zip(table, expected, strict=True):
        wanted = square[features, first:]
        np.testing.assert_array_equal(np.broadcast_to(got, wanted.shape), wanted)


@given(data=tables(splits=True), draw=st.data())
def test_earlier_counts_are_added_to(data: DenseData, draw: st.DataObject) -> None:
    if draw.draw(st.booleans()):
        weights = draw_row_weights(draw, len(data.X), st.integers(1, 400))
        data = replace(data, weights=weights)
    rows = make_memory_rows(data, draw.draw(chunkings(len(data.X))))
    n, n_samples = data.X.shape[1], draw.draw(st.sampled_from([65_535, 65_536, 2**32]))
    chunks = [rows.read(key) for key in range(rows.n_chunks)]
    cut, masked = draw.draw(st.integers(0, len(chunks))), bool((data.mask == 0).any())
    earlier = count_strip(
        slice(0, n), n, draw.draw(st.integers(1, n_samples)), masked, chunks[:cut]
    )
    found = count_strip(slice(0, n), n, n_samples, masked, chunks[cut:], earlier)
    assert_same(found, count_strip(slice(0, n), n, n_samples, masked, chunks))


@pytest.mark.parametrize(
    ("n_samples", "least", "expected"),
    [(9, np.uint16, np.uint16), (65535, np.uint16, np.uint16), (65536, np.uint16, np.uint32)]
    + [(9, np.uint32, np.uint32), (2**32 - 1, np.uint32, np.uint32), (2**32, np.uint16, np.int64)],
)
def test_counts_are_kept_in_what_holds_all_rows(n_samples, least, expected) -> None:
    assert _choose_count_type(n_samples, least) is expected
