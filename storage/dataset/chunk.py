"""A chunk of a dataset, as it is read at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.dataset.levels import Levels

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Chunk:
    """One contiguous range of original rows, stably sorted by segment.

    Attributes
    ----------
    key
        Index of the chunk.
    words
        Packed values, (n_features, n_words); padding bits are 0.
    observed
        Packed mask of the same shape, or None when every value is there.
    blocks
        One row a segment, (n_blocks, 3): segment, first word, number of rows.
    rows
        Original row of every stored row, (n_rows,), padding left out.
    columns
        Per-row columns asked for, each (n_rows,) in stored order.
    keep
        Rows of the split asked for, (n_rows,), or None for all.
    """

    key: int
    words: Words
    observed: Words | None
    blocks: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    keep: NDArray[np.bool_] | None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.words, self.observed, self.blocks, self.rows, self.keep)
        held = [array for array in (*arrays, *self.columns.values()) if array is not None]
        return sum(array.nbytes for array in held)


def mark_missing_texts(chunk: Chunk, levels: Mapping[str, Levels]) -> Chunk:
    """Give the columns of a chunk with -1 for the codes of empty texts."""
    coded = {name: a for name, a in chunk.columns.items() if name in levels}
    marked = {name: levels[name].mark_missing(codes) for name, codes in coded.items()}
    return replace(chunk, columns={**chunk.columns, **marked})


def make_empty_chunk(key: int) -> Chunk:
    """Stand in for a chunk that is not read."""
    words, rows = np.empty((0, 0), np.uint64), np.empty(0, np.int64)
    return Chunk(key, words, None, np.empty((0, 3), np.int64), rows, {}, None)
