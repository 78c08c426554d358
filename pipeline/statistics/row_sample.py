"""Some rows drawn from all, beside the counts of all: for what needs real rows, and not many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts

_PER_ROW = ("draws", "rows", "X", "observed", "segments", "labels")


@dataclass(frozen=True)
class RowSample:
    """The rows whose keyed draws are the smallest: a sample without replacement.

    Attributes
    ----------
    counts
        Of all rows.
    size
        Rows to keep at the most.
    draws
        Draws of the rows kept, rising, (n_kept,).
    rows
        Their original rows, (n_kept,).
    X, observed
        Their values and mask, (n_kept, n_features).
    segments
        Indices of their segments, (n_kept,).
    labels
        Their labels as numbers, 0 where none were given, (n_kept,).
    """

    label: ClassVar[str] = "row sample"
    counts: FeatureCounts
    size: int
    draws: NDArray[np.float64]
    rows: NDArray[np.int64]
    X: NDArray[np.uint8]
    observed: NDArray[np.uint8]
    segments: NDArray[np.int64]
    labels: NDArray[np.float64]

    @classmethod
    def from_block(
        cls,
        block: BinaryBlock,
        size: int,
        rng: RowRandom,
        labels: NDArray[np.float64] | None = None,
    ) -> Self:
        """Draw from one block, by the stream `sample`; labels of its rows go along."""
        draws = rng.stream("sample").uniform(block.rows, 1)[:, 0]
        at = np.argsort(draws, kind="stable")[:size]
        taken = block.take_rows(at)
        X, mask = taken.unpack_values(), taken.unpack_mask()
        observed = np.ones_like(X) if mask is None else mask
        segments = np.full(len(at), block.segment, np.int64)
        drawn = np.zeros(len(at)) if labels is None else labels[at]
        counts = FeatureCounts.from_block(block)
        return cls(counts, size, draws[at], taken.rows, X, observed, segments, drawn)

    @property
    def n_samples(self) -> int:
        """Number of all rows."""
        return self.counts.n_samples

    @property
    def objective(self) -> float:
        """None: 0."""
        return 0.0

    def merge(self, other: Self) -> Self:
        """Keep the smallest draws of both."""
        both = {n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in _PER_ROW}
        at = np.lexsort((both["rows"], both["draws"]))[: self.size]
        kept = {name: values[at] for name, values in both.items()}
        return type(self)(self.counts.merge(other.counts), self.size, **kept)

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Give the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Give all arrays by name."""
        own = {f"sample_{name}": getattr(self, name) for name in _PER_ROW}
        return {**self.counts.to_arrays(), "sample_size": np.array(self.size), **own}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        own = {n.removeprefix("sample_"): a for n, a in arrays.items() if n.startswith("sample_")}
        counted = {n: a for n, a in arrays.items() if not n.startswith("sample_")}
        size = int(own.pop("size"))
        return cls(FeatureCounts.from_arrays(counted), size, **own)
