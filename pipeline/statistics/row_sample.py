"""Some rows drawn from all, beside the counts of all: for starts that need real rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts


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
    """

    label: ClassVar[str] = "row sample"
    counts: FeatureCounts
    size: int
    draws: NDArray[np.float64]
    rows: NDArray[np.int64]
    X: NDArray[np.uint8]
    observed: NDArray[np.uint8]

    @classmethod
    def of_block(cls, block: BinaryBlock, size: int, rng: RowRandom) -> Self:
        """Draw from one block, by the stream `sample`."""
        draws = rng.stream("sample").uniform(block.rows, 1)[:, 0]
        at = np.argsort(draws, kind="stable")[:size]
        taken = block.taken(at)
        X, mask = taken.dense(), taken.observed()
        observed = np.ones_like(X) if mask is None else mask
        return cls(FeatureCounts.of_block(block), size, draws[at], taken.rows, X, observed)

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
        names = ("draws", "rows", "X", "observed")
        both = {n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in names}
        at = np.lexsort((both["rows"], both["draws"]))[: self.size]
        kept = {name: values[at] for name, values in both.items()}
        return type(self)(self.counts.merge(other.counts), self.size, **kept)

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Give the only part."""
        (part,) = parts
        return part

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Give all arrays by name."""
        names = ("draws", "rows", "X", "observed")
        own = {f"sample_{name}": getattr(self, name) for name in names}
        return {**self.counts.arrays(), "sample_size": np.array(self.size), **own}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        own = {n.removeprefix("sample_"): a for n, a in arrays.items() if n.startswith("sample_")}
        counted = {n: a for n, a in arrays.items() if not n.startswith("sample_")}
        size = int(own.pop("size"))
        return cls(FeatureCounts.from_arrays(counted), size, **own)
