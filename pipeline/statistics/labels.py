"""Labels of rows, counted beside their features: what a model that predicts them starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.statistics.counts import FeatureCounts

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SEGMENT = "segment"
"""What the segments are called where they are taken for a column."""
MAX_CATEGORIES = 1000


def list_columns_to_read(column: str) -> tuple[str, ...]:
    """Name the per-row columns that a block must have for `get_labels`."""
    return () if column == SEGMENT else (column,)


def get_labels(block: BinaryBlock, column: str) -> NDArray[Any]:
    """Return the labels of a block: a per-row column, or the index of its segment, (n_samples,)."""
    if column == SEGMENT:
        return np.full(block.n_samples, block.segment, np.int32)
    return block.column(column)


def convert_labels_to_numbers(labels: NDArray[Any]) -> Array:
    """Return labels as numbers; missing labels (text codes below 0, or NaN) become NaN."""
    numbers = labels.astype(np.float64)
    return np.where(labels < 0, np.nan, numbers) if labels.dtype == np.int32 else numbers


@dataclass(frozen=True)
class LabelCounts:
    """Labels, and counts of every feature.

    Attributes
    ----------
    counts
        Of the features, of all rows.
    values, rows
        Different labels, rising, and the rows of each; of more than `MAX_CATEGORIES` the smallest,
        one more than these.
    moments
        Rows with a label, mean of the labels, and sum of their squared deviations from it, (3,).
    kinds
        Rows whose label is a text (or segment), and whose label is a fraction, (2,).
    """

    label: ClassVar[str] = "label counts"
    counts: FeatureCounts
    values: Array
    rows: Counts
    moments: Array
    kinds: Counts

    @classmethod
    def from_block(cls, block: BinaryBlock, column: str) -> Self:
        """Count one block."""
        labels = get_labels(block, column)
        numbers = convert_labels_to_numbers(labels)
        known = numbers[np.isfinite(numbers)]
        values, rows = np.unique(known, return_counts=True)
        mean = known.mean() if len(known) else 0.0
        moments = np.array([len(known), mean, ((known - mean) ** 2).sum()])
        n_texts = len(known) if labels.dtype == np.int32 else 0
        kinds = np.array([n_texts, (known != np.floor(known)).sum()])
        return cls(
            FeatureCounts.from_block(block), *_keep_smallest_values(values, rows), moments, kinds
        )

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.counts.n_samples

    @property
    def objective(self) -> float:
        """Counts have none."""
        return 0.0

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        both, places = np.unique(np.append(self.values, other.values), return_inverse=True)
        rows = np.zeros(len(both), np.int64)
        np.add.at(rows, places, np.append(self.rows, other.rows))
        values, rows = _keep_smallest_values(both, rows)
        return replace(
            self,
            counts=self.counts.merge(other.counts),
            values=values,
            rows=rows,
            moments=_pool_moments(self.moments, other.moments),
            kinds=self.kinds + other.kinds,
        )

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Return the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        own = {name: getattr(self, name) for name in _LABEL_ARRAYS}
        return {**self.counts.to_arrays(), **{f"label_{name}": a for name, a in own.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        counted = {name: a for name, a in arrays.items() if not name.startswith("label_")}
        own = {name: arrays[f"label_{name}"] for name in _LABEL_ARRAYS}
        return cls(FeatureCounts.from_arrays(counted), **own)


_LABEL_ARRAYS = ("values", "rows", "moments", "kinds")


def _keep_smallest_values(values: Array, rows: Counts) -> tuple[Array, Counts]:
    """Keep the smallest values, so that what is kept does not depend on the order of merging."""
    return values[: MAX_CATEGORIES + 1], rows[: MAX_CATEGORIES + 1].astype(np.int64)


def _pool_moments(a: Array, b: Array) -> Array:
    """Pool rows, mean and sum of squared deviations (Chan, Golub & LeVeque 1983, eq. 1.5)."""
    n = a[0] + b[0]
    apart = b[1] - a[1]
    share = b[0] / n if n else 0.0
    return np.array([n, a[1] + share * apart, a[2] + b[2] + a[0] * share * apart**2])
