"""Rows in the order in which they arrived, cut into small chunks, for models of sequences.

A model of sequences handles the rows of a block together, so blocks must be small. Chunks of the
dataset, whose rows are sorted by segment, are therefore read as several chunks of neighbouring
rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipeline.data.blocks import (
    BinaryBlock,
    PackedChunk,
    RowSource,
    concatenate_blocks,
    iter_blocks,
    join_segments,
    start_reading,
)

BLOCK_WORDS = 512
"""Words of 64 rows of the largest block."""


@dataclass(frozen=True)
class ReadInOrder:
    """Reads parts of the chunks that another function reads, by their index.

    Attributes
    ----------
    read
        The other function.
    parts
        Chunk and first row of each part.
    condition
        Changes the block of each part; None leaves it as it is.
    """

    read: Callable[[int], PackedChunk]
    parts: tuple[tuple[int, int], ...]
    condition: Callable[[BinaryBlock], BinaryBlock] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to workers, without the last chunk."""
        return {name: getattr(self, name) for name in ("read", "parts", "condition")}

    @cached_property
    def _last(self) -> threading.local:
        """The last chunk that a thread has read: its next part is most likely of the same."""
        return threading.local()

    def __call__(self, key: int) -> PackedChunk:
        """Return a part as a chunk with a single block."""
        chunk, first = self.parts[key]
        if getattr(self._last, "chunk", None) != chunk:
            self._last.block = concatenate_blocks([*iter_blocks(self.read(chunk))])
            self._last.chunk = chunk
        block: BinaryBlock = self._last.block
        # Rows of other splits are left out, so that the last parts may have none.
        first, last = (min(edge, block.n_samples) for edge in (first, first + 64 * BLOCK_WORDS))
        part = block.take_rows(range(first, last))
        return join_segments([part if self.condition is None else self.condition(part)])

    def read_ahead(self, keys: Iterable[int]) -> None:
        """Start to read the chunks of these parts."""
        start_reading(self.read, dict.fromkeys(self.parts[key][0] for key in keys))


def cut_in_arrival_order(rows: RowSource) -> RowSource:
    """Return the same rows in chunks of neighbouring rows, in the order in which they arrived."""
    if isinstance(rows.read, ReadInOrder):
        return rows
    parts = [
        (chunk, first, min(64 * BLOCK_WORDS, n_rows - first))
        for chunk, n_rows in enumerate(rows.rows_per_chunk)
        for first in range(0, n_rows, 64 * BLOCK_WORDS)
    ]
    read = ReadInOrder(rows.read, tuple((chunk, first) for chunk, first, _ in parts))
    return replace(rows, read=read, rows_per_chunk=[n_rows for _, _, n_rows in parts], n_segments=1)
