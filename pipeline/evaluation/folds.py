"""Folds of rows for cross-validation, dealt by seed and original row: the same wherever rows are.

Every `n_folds` rows that follow each other are dealt one to each fold, in an order drawn for them:
folds are of one size, and rows that lie together do not fall to one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk, RowSource
from pipeline.random import RowRandom


def assign_folds(rows: NDArray[np.int64], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Give the fold of each original row, (n_rows,)."""
    hands, places = np.divmod(rows, n_folds)
    draws = RowRandom(seed).stream("folds").uniform(hands, n_folds)
    own = np.take_along_axis(draws, places[:, None], axis=1)
    folds: NDArray[np.int64] = (draws < own).sum(axis=1)
    return folds


@dataclass(frozen=True)
class RowFold:
    """One fold of several.

    Attributes
    ----------
    index, n_folds
        Which of how many.
    seed
        Of the deal.
    """

    index: int
    n_folds: int
    seed: int

    def select_held_out(self, rows: RowSource) -> RowSource:
        """Give the rows of the fold."""
        return replace(rows, read=_FoldReader(rows.read, self, held_out=True))

    def select_training(self, rows: RowSource) -> RowSource:
        """Give all other rows."""
        return replace(rows, read=_FoldReader(rows.read, self, held_out=False))


@dataclass(frozen=True)
class _FoldReader:
    """Reads chunks in any process, and keeps the rows of a fold, or all others."""

    read: Callable[[int], PackedChunk]
    fold: RowFold
    held_out: bool

    def __call__(self, key: int) -> PackedChunk:
        chunk = self.read(key)
        of_fold = assign_folds(chunk.rows, self.fold.n_folds, self.fold.seed) == self.fold.index
        keep = of_fold == self.held_out
        if chunk.keep is not None:
            keep &= chunk.keep
        return replace(chunk, keep=keep)  # type: ignore[type-var]
