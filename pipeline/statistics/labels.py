"""Counts of labels and features, from which a model that predicts the labels starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock
from pipeline.statistics.counts import CountsAndMore, FeatureCounts

SEGMENT = "segment"
"""Column name that stands for the segments."""
MAX_CATEGORIES = 1000


def list_columns_to_read(column: str) -> tuple[str, ...]:
    """List the per-row columns that `get_labels` needs in a block."""
    return () if column == SEGMENT else (column,)


def get_labels(block: BinaryBlock, column: str) -> NDArray[Any]:
    """Return a per-row column, or the segment's index for each row, (n_samples,)."""
    if column == SEGMENT:
        return np.full(block.n_samples, block.segment, np.int32)
    return block.column(column)


def convert_labels_to_numbers(labels: NDArray[Any]) -> Array:
    """Return labels as numbers; missing labels (text codes below 0, or NaN) become NaN."""
    numbers = labels.astype(np.float64)
    return np.where(labels < 0, np.nan, numbers) if labels.dtype == np.int32 else numbers


@dataclass(frozen=True)
class LabelCounts(CountsAndMore):
    """Counts of labels, and of every feature.

    Attributes
    ----------
    values, rows
        Distinct labels, rising, and the number of rows of each; at most the `MAX_CATEGORIES` + 1
        smallest labels.
    moments
        Number of rows with a label, mean of the labels, and sum of their squared deviations, (3,).
    kinds
        Number of rows whose label is a text (or segment), and whose label is a fraction, (2,).
    """

    label: ClassVar[str] = "label counts"
    values: Array
    rows: Counts
    moments: Array
    kinds: Counts

    @classmethod
    def from_block(cls, block: BinaryBlock, column: str) -> Self:
        """Count one block."""
        labels = get_labels(block, column)
        numbers = convert_labels_to_numbers(labels)
        present = numbers[np.isfinite(numbers)]
        values, rows = np.unique(present, return_counts=True)
        mean = present.mean() if len(present) else 0.0
        moments = np.array([len(present), mean, ((present - mean) ** 2).sum()])
        n_texts = len(present) if labels.dtype == np.int32 else 0
        kinds = np.array([n_texts, (present != np.floor(present)).sum()])
        return cls(
            FeatureCounts.from_block(block), *_keep_smallest_values(values, rows), moments, kinds
        )

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        values, places = np.unique(np.append(self.values, other.values), return_inverse=True)
        rows = np.zeros(len(values), np.int64)
        np.add.at(rows, places, np.append(self.rows, other.rows))
        values, rows = _keep_smallest_values(values, rows)
        return replace(
            self,
            counts=self.counts.merge(other.counts),
            values=values,
            rows=rows,
            moments=_pool_moments(self.moments, other.moments),
            kinds=self.kinds + other.kinds,
        )


def _keep_smallest_values(values: Array, rows: Counts) -> tuple[Array, Counts]:
    """Keep the smallest values, so that the result does not depend on the order of merging."""
    return values[: MAX_CATEGORIES + 1], rows[: MAX_CATEGORIES + 1].astype(np.int64)


def _pool_moments(a: Array, b: Array) -> Array:
    """Pool rows, mean and sum of squared deviations (Chan, Golub & LeVeque 1983, eq. 1.5)."""
    n = a[0] + b[0]
    difference = b[1] - a[1]
    share = b[0] / n if n else 0.0
    return np.array([n, a[1] + share * difference, a[2] + b[2] + a[0] * share * difference**2])
