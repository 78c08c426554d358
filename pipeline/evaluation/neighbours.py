"""The nearest neighbours of rows, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.graphs.nearest_rows import (
    Metric,
    Nearest,
    NumberedRows,
    none_found,
    take_nearer,
)
from pipeline.passes.row_ranges import Arrays

NO_PART = -1
"""Part of rows that may have any neighbour."""


@dataclass(frozen=True)
class FindNearest:
    """Folds one more block into the nearest neighbours of rows, for `pair_work.Pairs`.

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
    itself: bool

    def __call__(self, left: BinaryBlock, right: BinaryBlock, before: Arrays | None) -> Arrays:
        """Give `distances` and `indices`, (n rows on the left, k), nearest first."""
        if before is None:
            found = none_found(left.n_samples, self.k)
        else:
            found = Nearest(before["distances"], before["indices"])
        own = left.rows if not self.itself else np.full(left.n_samples, NO_PART)
        rows = NumberedRows(left.packed_rows(), left.rows, own)
        others = NumberedRows(right.packed_rows(), right.rows, right.rows)
        take_nearer(self.metric, rows, others, found)
        return found._asdict()
