"""Which chunks are folded together, and in which order partial results merge.

Neither depends on the number of workers, so sums of floats have the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, Self, TypeVar

CHUNKS_PER_GROUP = 8
"""Chunks a group: long enough that results are few, short enough that work spreads evenly."""


class Mergeable(Protocol):
    """Anything with an associative `merge`."""

    def merge(self, other: Self) -> Self:
        """Combine with the partial result that follows."""


M = TypeVar("M", bound=Mergeable)


def split_chunks_into_groups(n_chunks: int, first: int = 0) -> list[range]:
    """Cut the chunks from the first into fixed runs; appended chunks change only the last."""
    cuts = range((first // CHUNKS_PER_GROUP + 1) * CHUNKS_PER_GROUP, n_chunks, CHUNKS_PER_GROUP)
    edges = [first, *cuts, n_chunks]
    return [range(*pair) for pair in pairwise(edges)] if first < n_chunks else []


@dataclass(frozen=True)
class MergedChunks(Generic[M]):
    """The leading chunks, merged as far as the fixed tree goes whatever chunks are to come.

    Attributes
    ----------
    n_chunks
        How many they are.
    stack
        Merged groups, and the height of each in the tree.
    open
        Merged chunks of a group that is not full, or None.
    """

    n_chunks: int = 0
    stack: tuple[tuple[int, M], ...] = ()
    open_group: M | None = None

    def add_groups(self, parts: Iterable[tuple[range, M | None]]) -> MergedChunks[M]:
        """Add groups: their chunks, and what these sum to with `open` in it; None is nothing."""
        n_chunks, stack, still_open = self.n_chunks, list(self.stack), self.open_group
        for keys, part in parts:
            n_chunks = keys.stop
            is_full = n_chunks % CHUNKS_PER_GROUP == 0
            still_open = None if is_full else part
            if is_full and part is not None:
                _push_part(stack, part)
        return MergedChunks(n_chunks, tuple(stack), still_open)

    def merge_all(self) -> M | None:
        """Merge all; None where there is nothing."""
        stack = list(self.stack)
        if self.open_group is not None:
            _push_part(stack, self.open_group)
        return _merge_stack(stack) if stack else None


def tree_merge(parts: Iterable[M]) -> M:
    """Merge partial results in order along a fixed binary tree.

    Holds no more than log2(number of parts) of them at a time.

    Raises
    ------
    ValueError
        If there are none.
    """
    stack: list[tuple[int, M]] = []
    for part in parts:
        _push_part(stack, part)
    if not stack:
        raise ValueError("Expected at least one part, got none.")
    return _merge_stack(stack)


def _push_part(stack: list[tuple[int, M]], part: M) -> None:
    """Add a part, and merge what is of one height."""
    height = 0
    while stack and stack[-1][0] == height:
        part = stack.pop()[1].merge(part)
        height += 1
    stack.append((height, part))


def _merge_stack(stack: list[tuple[int, M]]) -> M:
    _, merged = stack[-1]
    for _, earlier in reversed(stack[:-1]):
        merged = earlier.merge(merged)
    return merged
