"""Which features rows link: an exact statistic of the mask alone, merged without the rows.

Columns are the planes of a block, followed by its continuous features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from pipeline.arrays import Counts
from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.bits.kernels import pack_rows
from pipeline.numerics.bits.linked_features import link_features, merge_parts
from pipeline.statistics.sums import CountStatistics


@dataclass(frozen=True)
class Linkage(CountStatistics):
    """Parts of the columns that rows link, by segment or over all of them.

    Attributes
    ----------
    n_rows
        Number of rows read.
    segments
        Indices of the segments seen, sorted, (n_seen,); 0 if they are pooled.
    parts
        The smallest column that each column is linked with in the rows of a segment, by any chain
        of rows and columns, (n_seen, n_columns); −1 where it was never observed.
    """

    label: ClassVar[str] = "links of features"
    n_rows: int
    segments: Counts
    parts: Counts

    @classmethod
    def from_block(cls, block: BinaryBlock, *, by_segment: bool = False) -> Self:
        """Link the columns of one block."""
        mask, numbers = block.observed_words, block.numbers
        if numbers is not None:
            if mask is None:
                full = pack_rows(np.ones((block.n_samples, 1), np.uint8))
                mask = np.repeat(full, len(block.words), axis=0)
            own = pack_rows((~np.isnan(numbers)).astype(np.uint8).T)
            mask = np.concatenate([mask, own])
        if mask is None:
            parts = np.full(len(block.words), 0 if block.n_samples else -1)
        else:
            parts = np.full(len(mask), -1)
            link_features(mask, parts)
        segment = np.array([block.segment if by_segment else 0])
        return cls(block.n_samples, segment, parts[None])

    @property
    def weight(self) -> float:
        """Number of rows: weights do not matter."""
        return float(self.n_rows)

    @property
    def is_linked(self) -> bool:
        """Whether all columns are linked in every segment seen, so that no row can add a link."""
        return bool((self.parts == 0).all())

    def split_by_segment(self) -> list[Self]:
        """Return the linkage of each segment."""
        pairs = zip(self.segments, self.parts, strict=True)
        return [replace(self, segments=s[None], parts=p[None]) for s, p in pairs]

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        segments = np.union1d(self.segments, other.segments)
        parts = np.full((len(segments), self.parts.shape[1]), -1)
        for part in (self, other):
            for place, own in zip(
                np.searchsorted(segments, part.segments), part.parts, strict=True
            ):
                parts[place] = merge_parts(parts[place], own)
        return replace(self, n_rows=self.n_rows + other.n_rows, segments=segments, parts=parts)
