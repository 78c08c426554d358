"""Fixed groups of chunks and the fixed tree of merges."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Barrier
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.blocks import PackedChunk, RowSource
from pipeline.executors.base import ThreadsExecutor
from pipeline.passes.map_reduce import (
    CHUNKS_PER_GROUP,
    collect_statistics,
    split_chunks_into_groups,
    tree_merge,
)
from pipeline.statistics.counts import FeatureCounts
from tests.support.strategies import DenseData, make_memory_rows


@dataclass(frozen=True)
class Word:
    """Merging writes the tree down: order and brackets can be read off."""

    text: str

    def merge(self, other: Word) -> Word:
        return Word(f"({self.text} {other.text})")


class Sum:
    """An integer that can be watched being freed."""

    alive: ClassVar[weakref.WeakSet[Sum]] = weakref.WeakSet()

    def __init__(self, value: int) -> None:
        self.value = value
        self.alive.add(self)

    def merge(self, other: Sum) -> Sum:
        return Sum(self.value + other.value)


@given(st.integers(0, 500))
def test_groups_hold_every_chunk_once_and_in_order(n_chunks: int) -> None:
    cut = split_chunks_into_groups(n_chunks)
    assert [key for group in cut for key in group] == list(range(n_chunks))
    assert {len(group) for group in cut[:-1]} <= {CHUNKS_PER_GROUP}
    assert all(cut)


@given(st.integers(0, 200), st.integers(0, 200))
def test_appended_chunks_change_only_the_open_group(n_chunks: int, n_more: int) -> None:
    closed = n_chunks // CHUNKS_PER_GROUP
    assert (
        split_chunks_into_groups(n_chunks + n_more)[:closed]
        == split_chunks_into_groups(n_chunks)[:closed]
    )


@pytest.mark.parametrize(
    ("n_parts", "tree"),
    [
        (1, "0"),
        (2, "(0 1)"),
        (3, "((0 1) 2)"),
        (4, "((0 1) (2 3))"),
        (5, "(((0 1) (2 3)) 4)"),
        (7, "(((0 1) (2 3)) ((4 5) 6))"),
        (8, "(((0 1) (2 3)) ((4 5) (6 7)))"),
    ],
)
def test_the_tree_is_fixed(n_parts: int, tree: str) -> None:
    assert tree_merge(Word(str(part)) for part in range(n_parts)).text == tree


def test_no_more_partial_results_are_held_than_the_tree_is_high() -> None:
    most = 0

    def parts() -> Iterator[Sum]:
        nonlocal most
        for value in range(1000):
            most = max(most, len(Sum.alive))
            yield Sum(value)

    assert tree_merge(parts()).value == 1000 * 999 // 2
    assert most <= 11


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="There are no parts"):
        tree_merge([])


@dataclass
class PacedReader:
    """Reads a chunk in each thread at the same time, and records what is read ahead too late."""

    rows: RowSource
    pace: Barrier
    read: set[int] = field(default_factory=set)
    too_late: list[int] = field(default_factory=list)

    def __call__(self, key: int) -> PackedChunk:
        self.pace.wait(timeout=60)
        self.read.add(key)
        return self.rows.read(key)

    def read_ahead(self, keys: Iterable[int]) -> None:
        self.too_late += [key for key in islice(keys, 5) if key in self.read]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_read_ahead_only_chunks_that_no_thread_has_summed(n_threads: int) -> None:
    X = np.random.default_rng(0).integers(0, 2, (64 * 64, 3), np.uint8)
    rows = make_memory_rows(DenseData(X), [64] * 64)
    reader = PacedReader(rows, Barrier(n_threads))
    rows = replace(rows, read=reader)
    executor = ThreadsExecutor(n_threads)
    counts = collect_statistics(FeatureCounts.from_block, rows, executor, "ones")
    assert counts.ones[0].tolist() == X.sum(axis=0).tolist()
    assert reader.too_late == []
    assert reader.read == {*range(64)}
