"""Statistics: merged, tiled and stored without loss, and counted right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.fitting.loop import collect_first, collect_pass, start
from pipeline.passes.map_reduce import tree_merge
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, PairCounts
from tests.conformance.checks import assert_same, has_sums
from tests.conformance.facts import Facts
from tests.conformance.rows import (
    N_FEATURES,
    SERIAL,
    fitted,
    probit,
    small_tables,
    with_column,
)
from tests.support.strategies import (
    Data,
    chunkings,
    dense_pair_table,
    memory_blocks,
    memory_rows,
)

Arrays = Mapping[str, NDArray[Any]]


RECOUNTS: Mapping[type, Callable[[Data], list[NDArray[np.int64]]]] = {
    FeatureCounts: lambda data: [data.mask.sum(axis=0), (data.X & data.mask).sum(axis=0)],
    PairCounts: dense_pair_table,
}


def summaries(facts: Facts, blocks: Sequence[BinaryBlock]) -> Iterator[list[Any]]:
    """First statistics of blocks, then those of a pass."""
    model, at = facts.make(), fitted(facts)
    yield [model.first_of(block, RowRandom(0)) for block in blocks]
    if has_sums(facts):
        yield [model.summarize(at.params, at.working, block, RowRandom(0)) for block in blocks]


@settings(deadline=None, max_examples=30)
@given(data=small_tables, draw=st.data())
def test_merging_is_a_sum(facts: Facts, data: Data, draw: st.DataObject) -> None:
    blocks = memory_blocks(data, draw.draw(chunkings(len(data.X), max_chunks=6)))
    for parts in summaries(facts, blocks):
        before = [dict(part.arrays()) for part in parts]
        copies = [{key: values.copy() for key, values in part.items()} for part in before]
        left = reduce(lambda a, b: a.merge(b), parts)
        right = reduce(lambda b, a: a.merge(b), parts[::-1])
        backwards = reduce(lambda a, b: a.merge(b), parts[::-1])
        for other in (right, backwards, tree_merge(parts)):
            assert_same(other.arrays(), left.arrays(), rtol=1e-9)
            assert other.objective == pytest.approx(left.objective, rel=1e-9)
        assert left.n_samples == sum(part.n_samples for part in parts) == len(data.X)
        for part, copy in zip(before, copies, strict=True):
            assert_same(part, copy)


@settings(deadline=None, max_examples=20)
@given(data=small_tables)
def test_statistics_survive_storage(facts: Facts, data: Data) -> None:
    for parts in summaries(facts, memory_blocks(data)):
        for part in parts:
            restored = type(part).from_arrays(dict(part.arrays()))
            assert_same(restored.arrays(), part.arrays())
            assert (restored.n_samples, restored.objective) == (part.n_samples, part.objective)


@settings(deadline=None, max_examples=20)
@given(data=small_tables, budget=st.integers(1, 2000))
def test_tiles_stitch_to_the_whole(facts: Facts, data: Data, budget: int) -> None:
    model, (block,) = facts.make(), memory_blocks(replace(data, segments=None))
    cut, at, rng = model.tiles(N_FEATURES, 1, budget), fitted(facts), RowRandom(0)
    if not has_sums(facts):
        assert cut == (None,)
        return
    tiles = [replace(block, tile=tile) for tile in cut]
    parts = [model.summarize(at.params, at.working, tile, rng) for tile in tiles]
    whole = model.summarize(at.params, at.working, block, rng)
    assert_same(model.statistics.stitch(parts).arrays(), whole.arrays())


@settings(deadline=None, max_examples=30)
@given(data=small_tables)
def test_counts_are_those_of_the_dense_matrix(facts: Facts, data: Data) -> None:
    for (part,) in summaries(facts, memory_blocks(replace(data, segments=None))):
        if type(part) not in RECOUNTS:
            continue
        found = part.table(0) if isinstance(part, PairCounts) else (part.observed[0], part.ones[0])
        for counts, expected in zip(found, RECOUNTS[type(part)](data), strict=True):
            np.testing.assert_array_equal(np.broadcast_to(counts, expected.shape), expected)


@settings(deadline=None, max_examples=25)
@given(data=small_tables, draw=st.data())
def test_statistics_do_not_depend_on_chunks(facts: Facts, data: Data, draw: st.DataObject) -> None:
    model, state = facts.make(), fitted(facts)
    whole, cut = (memory_rows(data, draw.draw(chunkings(len(data.X)))) for _ in "ab")
    first, other = (collect_first(model, rows, SERIAL, 0) for rows in (whole, cut))
    assert_same(meaning(first), meaning(other), rtol=1e-9)
    if not has_sums(facts):
        return  # the steps of a task depend on the rows that it has
    first, other = (collect_pass(model, state, rows, SERIAL, 0) for rows in (whole, cut))
    assert_same(meaning(first), meaning(other), rtol=1e-9)


def meaning(statistics: Any) -> Arrays:
    """What statistics say; pair counts hold rows of chunks with and without a mask apart."""
    if not isinstance(statistics, PairCounts):
        return statistics.arrays()
    table = statistics.table(0)
    parts = np.broadcast_arrays(*table)
    return {**dict(zip(table._fields, parts, strict=True)), "rows": statistics.rows}


def test_what_is_counted_does_not_depend_on_parameters(facts: Facts) -> None:
    data = probit()
    mask = (np.random.default_rng(7).random(data.X.shape) < 0.8).astype(np.uint8)
    for settings_ in ({}, *facts.variants):
        model = facts.make(**settings_)
        first = collect_first(model, memory_rows(data), SERIAL, 0)
        states = [*(start(model, first, seed) for seed in (0, 1)), fitted(facts, **settings_)]
        blocks = memory_blocks(data) + memory_blocks(replace(data, observed=mask))
        if not has_sums(facts):
            assert model.counted(N_FEATURES) is None
            continue
        rng = RowRandom(0)
        found = [[model.summarize(s.params, s.working, b, rng) for b in blocks] for s in states]
        pairs = [(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)]
        if model.counted(N_FEATURES) is None:
            # Else sums could be kept that are not.
            assert any(differ(a.arrays(), b.arrays()) for a, b in pairs)
            continue
        for a, b in pairs:
            assert_same(a.arrays(), b.arrays())


def differ(one: Arrays, other: Arrays) -> bool:
    return any(not np.array_equal(one[name], other[name]) for name in one)


def test_statistics_survive_artifacts(facts: Facts, tmp_path: Path) -> None:
    from flows.fitting.checkpoints import load_statistics, save_statistics

    blocks = memory_blocks(Data(probit().X[:400], with_column("observed once").mask))
    for k, (part,) in enumerate(summaries(facts, blocks)):
        save_statistics(tmp_path / str(k), part)
        loaded = load_statistics(type(part), tmp_path / str(k))
        assert_same(loaded.arrays(), part.arrays())


__all__ = [name for name in globals() if name.startswith("test_")]
