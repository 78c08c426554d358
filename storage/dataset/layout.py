"""Where rows go within a chunk: sorted by segment, each segment from a word boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class PendingRows:
    """Row-packed rows that wait for their chunk."""

    values: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    segments: NDArray[np.int32]
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.values)

    def slice_rows(self, rows: slice) -> PendingRows:
        """Cut out consecutive rows."""
        observed = None if self.observed is None else self.observed[rows]
        columns = {name: values[rows] for name, values in self.columns.items()}
        return PendingRows(self.values[rows], observed, self.segments[rows], columns)


def concatenate_rows(parts: list[PendingRows]) -> PendingRows:
    """Put parts one behind the other."""
    if len(parts) == 1:
        return parts[0]
    observed = None
    if any(part.observed is not None for part in parts):
        observed = np.concatenate(
            [np.full_like(p.values, 255) if p.observed is None else p.observed for p in parts]
        )
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
    values = np.concatenate([part.values for part in parts])
    return PendingRows(values, observed, np.concatenate([part.segments for part in parts]), columns)


def count_fitting_rows(segments: NDArray[np.int32], n_words: int) -> int:
    """Count the leading rows whose blocks, each from a word boundary, fit into a chunk."""
    segments = segments[: 64 * n_words]
    opens_word = _rank_within_segments(segments) % 64 == 0
    return int(np.searchsorted(np.cumsum(opens_word), n_words, side="right"))


def _rank_within_segments(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    order = np.argsort(segments, kind="stable")
    _, starts, sizes = np.unique(segments[order], return_index=True, return_counts=True)
    rank = np.empty(len(segments), np.int64)
    rank[order] = np.arange(len(segments)) - np.repeat(starts, sizes)
    return rank


def lay_out_blocks(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    """Lay out segments in index order: (segment, first word, number of rows) each."""
    names, sizes = np.unique(segments, return_counts=True)
    n_words = -(-sizes // 64)
    return np.column_stack([names, np.cumsum(n_words) - n_words, sizes]).astype(np.int64)


def list_occupied_slots(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """List the slots of a chunk that hold rows, given its (segment, first_word, n_rows) blocks."""
    return np.concatenate([64 * first + np.arange(rows) for _, first, rows in blocks])
