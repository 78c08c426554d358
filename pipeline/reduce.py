"""Which chunks are folded together, and in which order partial results merge.

Neither depends on the number of workers, so sums of floats have the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self, TypeVar

GROUP_CHUNKS = 8
"""Chunks a group: long enough that results are few, short enough that work spreads evenly."""


class Mergeable(Protocol):
    """Anything with an associative `merge`."""

    def merge(self, other: Self) -> Self:
        """Combine with the partial result that follows."""


M = TypeVar("M", bound=Mergeable)


def groups(n_chunks: int) -> list[range]:
    """Cut the chunks into fixed runs; appended chunks change only the last."""
    return [
        range(start, min(start + GROUP_CHUNKS, n_chunks))
        for start in range(0, n_chunks, GROUP_CHUNKS)
    ]


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
        height, merged = 0, part
        while stack and stack[-1][0] == height:
            merged = stack.pop()[1].merge(merged)
            height += 1
        stack.append((height, merged))
    if not stack:
        raise ValueError("Expected at least one part, got none.")
    _, merged = stack.pop()
    while stack:
        merged = stack.pop()[1].merge(merged)
    return merged
