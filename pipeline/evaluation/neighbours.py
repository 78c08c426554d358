"""The nearest neighbours of rows, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.graphs.nearest_rows import (
    Metric,
    NearestRows,
    NumberedRows,
    empty_nearest,
    merge_nearest,
)
from pipeline.passes.row_ranges import Arrays

NO_PART = -1
"""Part of rows that may have any neighbour."""


@dataclass(frozen=True)
class NearestRowSearch:
    """Folds one more block into the nearest neighbours of rows, for `pair_work.RowPairJob`.

    Attributes
    ----------
    metric
        How far apart two rows are.
    k
        Neighbours of a row.
    itself
        Whether a row of the same number may be a neighbour: where the two blocks are of different
        data.
    """

    metric: Metric
    k: int
    include_self: bool

    def __call__(self, left: BinaryBlock, right: BinaryBlock, before: Arrays | None) -> Arrays:
        """Give `distances` and `indices`, (n rows on the left, k), nearest first."""
        if before is None:
            found = empty_nearest(left.n_samples, self.k)
        else:
            found = NearestRows(before["distances"], before["indices"])
        own = left.rows if not self.include_self else np.full(left.n_samples, NO_PART)
        rows = NumberedRows(left.to_packed_rows(), left.rows, own)
        others = NumberedRows(right.to_packed_rows(), right.rows, right.rows)
        merge_nearest(self.metric, rows, others, found)
        return found._asdict()
