"""Statistics: merged, tiled and stored without loss, and counted right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, initialize_fit
from pipeline.models.state import FitState
from pipeline.passes.map_reduce import tree_merge
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.measurements import MixedStatistics
from pipeline.statistics.pair_moments import PairMoments
from tests.conformance.checks import assert_same, has_sums
from tests.conformance.facts import Facts
from tests.conformance.rows import (
    SERIAL,
    fitted,
    masked_probit,
    probit,
    small_tables,
)
from tests.support.strategies import (
    DenseData,
    chunkings,
    count_dense_pairs,
    make_memory_blocks,
    make_memory_rows,
)

Arrays = Mapping[str, NDArray[Any]]


Count = NDArray[np.int64]


def recount(part: Any, data: DenseData) -> tuple[Sequence[Count], Sequence[Count]]:
    """Counts of a statistic, and the same from the dense matrix; none if it has other sums.

    These may be counts of planes that the model itself cuts continuous features into.
    """
    pairs = part.pairs if isinstance(part, MixedStatistics) else part
    if isinstance(pairs, PairCounts) and pairs.n_features == data.X.shape[1]:
        return pairs.table(0), count_dense_pairs(data)
    part = part.counts if isinstance(part, PairMoments) else part
    if isinstance(part, FeatureCounts):
        found = [part.observed[0], part.ones[0]]
        return found, [data.mask.sum(axis=0), (data.X & data.mask).sum(axis=0)]
    return [], []


def summaries(facts: Facts, blocks: Sequence[BinaryBlock]) -> Iterator[list[Any]]:
    """First statistics of blocks, then those of a pass, or of each kind of passes."""
    model = facts.make()
    yield [model.summarize_first(block, RowRandom(0)) for block in blocks]
    for state in list_states(facts) if has_sums(facts) else ():
        found = [model.summarize(state.params, state.working, b, RowRandom(0)) for b in blocks]
        yield found


@lru_cache
def list_states(facts: Facts) -> list[FitState]:
    """The state after a fit, and that before it if its passes have other sums."""
    after, rows = fitted(facts), make_memory_rows(probit(facts))
    before = initialize_fit(
        facts.make(), collect_first_statistics(facts.make(), rows, SERIAL, 0), 0
    )
    return [after] if before.working.keys() == after.working.keys() else [before, after]


@given(draw=st.data())
def test_merging_is_a_sum(facts: Facts, draw: st.DataObject) -> None:
    data = draw.draw(small_tables(facts))
    blocks = make_memory_blocks(data, draw.draw(chunkings(len(data.X), max_chunks=6)))
    for parts in summaries(facts, blocks):
        before = [dict(part.to_arrays()) for part in parts]
        copies = [{key: values.copy() for key, values in part.items()} for part in before]
        left = reduce(lambda a, b: a.merge(b), parts)
        right = reduce(lambda b, a: a.merge(b), parts[::-1])
        backwards = reduce(lambda a, b: a.merge(b), parts[::-1])
        for other in (right, backwards, tree_merge(parts)):
            assert_same(other.to_arrays(), left.to_arrays(), rtol=1e-9)
            assert other.objective == pytest.approx(left.objective, rel=1e-9)
        assert left.n_rows == sum(part.n_rows for part in parts) == len(data.X)
        for part, copy in zip(before, copies, strict=True):
            assert_same(part, copy)


@given(draw=st.data())
def test_statistics_survive_storage(facts: Facts, draw: st.DataObject) -> None:
    blocks = make_memory_blocks(draw.draw(small_tables(facts)))
    for parts in summaries(facts, blocks):
        for part in parts:
            restored = type(part).from_arrays(dict(part.to_arrays()))
            assert_same(restored.to_arrays(), part.to_arrays())
            assert (restored.n_rows, restored.objective) == (part.n_rows, part.objective)


@given(draw=st.data(), budget=st.integers(1, 2000))
def test_tiles_stitch_to_the_whole(facts: Facts, draw: st.DataObject, budget: int) -> None:
    data = replace(draw.draw(small_tables(facts)), segments=None)
    model, (block,) = facts.make(), make_memory_blocks(data)
    cut, at, rng = model.make_tiles(data.X.shape[1], 1, budget), fitted(facts), RowRandom(0)
    if not has_sums(facts):
        assert cut == (None,)
        return
    tiles = [replace(block, tile=tile) for tile in cut]
    parts = [model.summarize(at.params, at.working, tile, rng) for tile in tiles]
    whole = model.summarize(at.params, at.working, block, rng)
    assert_same(model.statistics.stitch(parts).to_arrays(), whole.to_arrays())


@given(draw=st.data())
def test_counts_are_those_of_the_dense_matrix(facts: Facts, draw: st.DataObject) -> None:
    data = replace(draw.draw(small_tables(facts)), segments=None)
    for (part,) in summaries(facts, make_memory_blocks(data)):
        found, expected = recount(part, data)
        for counts, own in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.broadcast_to(counts, own.shape), own)


@given(draw=st.data())
def test_statistics_do_not_depend_on_chunks(facts: Facts, draw: st.DataObject) -> None:
    data = draw.draw(small_tables(facts))
    model = facts.make()
    whole, cut = (make_memory_rows(data, draw.draw(chunkings(len(data.X)))) for _ in "ab")
    first, other = (collect_first_statistics(model, rows, SERIAL, 0) for rows in (whole, cut))
    assert_same(meaning(first), meaning(other), rtol=1e-9)
    if not has_sums(facts):
        return  # the steps of a task depend on the rows that it has
    for state in list_states(facts):
        first, other = (
            collect_pass_statistics(model, state, rows, SERIAL, 0) for rows in (whole, cut)
        )
        assert_same(meaning(first), meaning(other), rtol=1e-9)


def meaning(statistics: Any) -> Arrays:
    """What statistics say; pair counts hold rows of chunks with and without a mask apart."""
    if isinstance(statistics, MixedStatistics) and statistics.pairs is not None:
        return {**statistics.sums.to_arrays(), **meaning(statistics.pairs)}
    if not isinstance(statistics, PairCounts):
        return statistics.to_arrays()
    table = statistics.table(0)
    parts = np.broadcast_arrays(*table)
    return {**dict(zip(table._fields, parts, strict=True)), "rows": statistics.rows}


def test_what_is_counted_does_not_depend_on_parameters(facts: Facts) -> None:
    data, masked = probit(facts), masked_probit(facts, facts.n_rows, seed=7)
    for settings_ in ({}, *facts.variants):
        model = facts.make(**settings_)
        first = collect_first_statistics(model, make_memory_rows(data), SERIAL, 0)
        states = [
            *(initialize_fit(model, first, seed) for seed in (0, 1)),
            fitted(facts, **settings_),
        ]
        blocks = make_memory_blocks(data) + make_memory_blocks(masked)
        if not has_sums(facts):
            assert model.counts_key(data.X.shape[1]) is None
            continue
        rng = RowRandom(0)
        found = [[model.summarize(s.params, s.working, b, rng) for b in blocks] for s in states]
        pairs = [(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)]
        if model.counts_key(data.X.shape[1]) is None:
            # Else sums could be kept that are not.
            assert any(differ(a.to_arrays(), b.to_arrays()) for a, b in pairs)
            continue
        for a, b in pairs:
            assert_same(a.to_arrays(), b.to_arrays())


def differ(one: Arrays, other: Arrays) -> bool:
    return one.keys() != other.keys() or any(
        not np.array_equal(one[name], other[name]) for name in one
    )
