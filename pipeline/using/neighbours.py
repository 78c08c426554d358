"""The nearest neighbours of rows, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.blocks import BinaryBlock
from pipeline.numerics.nearest_rows import (
    Metric,
    Nearest,
    RowBits,
    none_found,
    take_nearer,
    transposed,
)
from pipeline.runs import Arrays

NO_PART = -1
"""Part of rows that may have any neighbour."""


@dataclass(frozen=True)
class FindNearest:
    """Folds one more block into the nearest neighbours of rows, as `pipeline.pairs.Pairs` wants.

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
        own = row_bits(left)
        if self.itself:
            own = own._replace(parts=np.full(left.n_samples, NO_PART))
        take_nearer(self.metric, left.n_features, own, row_bits(right), found)
        return found._asdict()


def row_bits(block: BinaryBlock) -> RowBits:
    """Lay the bits of each row of a block side by side; each is a part of its own."""
    mask, n = block.observed_words, block.n_samples
    observed = None if mask is None else transposed(mask, n)
    return RowBits(transposed(block.words, n), observed, block.rows, block.rows)
