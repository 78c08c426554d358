"""Start a fit on a sample of its rows.

Passes over all rows are expensive, and the first ones only find out roughly where the optimum is. A
sample tells that as well. So the first passes of a fit read a sample, whose rows count as many
times as there are rows per row of the sample; nothing else differs. The passes over all rows start
from the optimum of the sample, in the last stage. They take Newton's steps with the information of
the sample, see `learning.convergence`.

The sample must have every level of every feature, in each group, as otherwise some parameters would
be without information: it has more rows if it lacks one. Where that would take too many, the fit
reads all rows from the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import ClassVar, Self

import numpy as np

from pipeline.data.blocks import (
    AnnotatedChunk,
    BinaryBlock,
    RowSource,
    concatenate_blocks,
    join_segments,
)
from pipeline.data.features import Feature
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.models.base import Model
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.counts import CountsAndMore, FeatureCounts, count_group_level_rows

MIN_ROWS = 200_000
"""Fits to fewer rows do not start on a sample."""
SHARE, MIN_SAMPLE = 0.01, 20_000
"""Share of the rows in the sample, and its least number of rows."""
LEAST_COUNT = 10
"""Rows of the sample, or their weight, at each level of a feature; or all rows with it if fewer."""
_GROWTH, _MAX_SHARE = 2.5, 0.25
_MAX_SAMPLE, _MAX_VALUES = 1_000_000, 500_000_000
"""Rows and values beyond which a sample does not grow with the rows."""


@dataclass(frozen=True)
class BlockSample(CountsAndMore):
    """Rows with small keyed draws, as a block per segment; and counts of all rows."""

    label: ClassVar[str] = "sample"
    blocks: tuple[BinaryBlock, ...]

    @classmethod
    def from_block(cls, block: BinaryBlock, share: float, rng: RowRandom) -> Self:
        """Draw rows of one block."""
        draws = rng.stream("sample").uniform(block.rows, 1)[:, 0]
        own = block.take_rows(np.flatnonzero(draws < share))
        return cls(FeatureCounts.from_block(block), (own,) if own.n_samples else ())

    def merge(self, other: Self) -> Self:
        """Add the rows of other blocks."""
        parts: dict[int, list[BinaryBlock]] = {}
        for block in (*self.blocks, *other.blocks):
            parts.setdefault(block.segment, []).append(block)
        joined = (replace(concatenate_blocks(own), segment=k) for k, own in sorted(parts.items()))
        return type(self)(self.counts.merge(other.counts), tuple(joined))

    def make_row_source(self, rows: RowSource) -> RowSource:
        """Return the sampled rows as a source with a single chunk."""
        chunk = join_segments(self.blocks)
        return replace(rows, read=_ChunkReader(chunk), rows_per_chunk=[len(chunk.rows)])

    def lacks_levels(self, features: Sequence[Feature], has_groups: bool) -> bool:
        """Return whether the sample has too few rows at a level that all rows have."""
        if len(self.blocks) < (len(self.counts.segments) if has_groups else 1):
            return True
        found = reduce(FeatureCounts.merge, map(FeatureCounts.from_block, self.blocks))
        features = features or [Feature("")] * found.ones.shape[1]
        needed, present = (
            count_group_level_rows(counts, features) for counts in (self.counts, found)
        )
        if not has_groups:
            needed, present = needed.sum(axis=0), present.sum(axis=0)
        return bool((present < np.minimum(needed, LEAST_COUNT)).any())


@dataclass(frozen=True)
class _ChunkReader:
    """Reads the only chunk of a source in memory."""

    chunk: AnnotatedChunk

    def __call__(self, key: int) -> AnnotatedChunk:
        return self.chunk


def draw_sample(
    model: Model,
    rows: RowSource,
    executor: Executor,
    seed: int,
    n_needed: int,
    progress: Progress,
) -> BlockSample | None:
    """Draw a sample of at least about `n_needed` rows.

    None if there are few rows, or no sample has all levels.
    """
    n_rows, growth = sum(rows.rows_per_chunk), 1.0
    most = max(MIN_SAMPLE, min(_MAX_SAMPLE, _MAX_VALUES // max(rows.n_features, 1)))
    while n_rows >= MIN_ROWS:
        size = growth * max(min(SHARE * n_rows, most), MIN_SAMPLE, n_needed)
        if size > min(_MAX_SHARE * n_rows, _GROWTH**2 * max(most, n_needed)):
            break
        draw = partial(_draw_rows, size / n_rows, RowRandom(seed))
        sample = collect_statistics(draw, rows, executor, BlockSample.label, progress=progress)
        is_of_all = sample.n_rows > n_rows / 2  # or of a split, which is smaller
        n_rows = sample.n_rows
        has_groups = bool(model.structure.groups)
        if is_of_all and not sample.lacks_levels(model.structure.features, has_groups):
            return sample
        growth *= _GROWTH if is_of_all else 1.0
    return None


def _draw_rows(share: float, rng: RowRandom, block: BinaryBlock) -> BlockSample:
    return BlockSample.from_block(block, share, rng)
