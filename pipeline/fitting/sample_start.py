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
from typing import Any, ClassVar, Self

import numpy as np

from pipeline.data.blocks import (
    AnnotatedChunk,
    BinaryBlock,
    RowSource,
    concatenate_blocks,
    join_segments,
)
from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.executors.base import limit_blas_threads
from pipeline.fitting.fit_pass import (
    PassRun,
    collect_information,
    collect_pass_statistics,
    count_starts,
    fit_pass,
    sort_starts,
)
from pipeline.learning.convergence import find_reachable_objective
from pipeline.models.base import Model
from pipeline.models.capabilities import CanAccelerate, CanStartOnSample, CanTakeNewtonSteps
from pipeline.models.state import FitState
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
_SAMPLE_TOL, _MAX_SAMPLE_TOL = 10.0, 1e-3
"""Tolerance on a sample: a multiple of that of so few rows, and its limit per row, nats."""
_MOST_STARTS, _SAMPLE_DIFFERENCE = 3, 3.0
"""Starts that continue on all rows, and how much worse they may be on a sample: nats per row, times
the root of its number of rows."""


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
        return make_block_source(self.blocks, rows)

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


def make_block_source(blocks: Sequence[BinaryBlock], rows: RowSource) -> RowSource:
    """Return blocks in memory, each of another segment, as a source with a single chunk."""
    chunk = join_segments(blocks)
    return replace(rows, read=_ChunkReader(chunk), rows_per_chunk=[len(chunk.rows)])


@dataclass(frozen=True)
class _ChunkReader:
    """Reads the only chunk of a source in memory."""

    chunk: AnnotatedChunk

    def __call__(self, key: int) -> AnnotatedChunk:
        return self.chunk


def start_on_sample(model: Model, state: FitState, run: PassRun) -> FitState:
    """Run the stages of a fit that has not begun on a sample of its rows, if that is possible.

    The result is the start of the passes over all rows, in the last stage. A start from an earlier
    fit stays where it is, and only gets the information of the sample. Of several starts, the best
    ones remain as far as the sample cannot tell which is the best for all rows.
    """
    if state.iteration or state.done or not isinstance(model, CanStartOnSample):
        return state
    is_plain = isinstance(model, CanAccelerate) and model.acceleration == "none"
    n_needed = 0 if is_plain else model.count_sample_rows(state)
    sample = _draw_sample(model, n_needed, run) if n_needed else None
    if sample is None:
        return state
    factor = sample.weight / sum(block.weight for block in sample.blocks)
    tol = max(model.tol, min(_SAMPLE_TOL * factor * model.tol, _MAX_SAMPLE_TOL))
    own_model: Any = replace(model, tol=tol)  # type: ignore[call-arg]
    sample_run = run._replace(rows=sample.make_row_source(run.rows))
    try:
        ended = [
            _run_passes(own_model, start, factor, sample_run)
            for start in model.draw_sample_starts(state)
        ]
        chosen = _choose_starts(own_model, ended, sum(sample_run.rows.rows_per_chunk))
        prepared = [_prepare_passes(model, start, factor, sample_run) for start in chosen]
    except FitError:
        return state  # all rows may do, or tell more about the reason
    ready = tuple(start for start in prepared if start is not None)
    if len(ready) < len(chosen):
        return state
    return ready[0] if len(ready) == 1 else replace(state, starts=ready)


def _run_passes(model: Model, state: FitState, factor: float, run: PassRun) -> FitState:
    """Run passes over a sample, whose rows count `factor` times, until the fit has ended."""
    is_warm = "is_warm" in state.acceleration
    own = replace(state, is_on_sample=True, acceleration={}, done=is_warm)
    while not own.done:
        statistics: Any = collect_pass_statistics(model, own, *run)
        own = fit_pass(model, own, *run[:3], statistics.multiply(factor))
    return own


def _choose_starts(model: Model, ended: Sequence[FitState], n_rows: int) -> list[FitState]:
    """Return the best start on a sample, and others that may be better on all rows.

    These have ended at another optimum, which is hardly worse on the sample. Their diagnostics tell
    how many starts ended there.
    """
    if len(ended) == 1:
        return [*ended]
    ranked, difference = sort_starts(model, ended), _SAMPLE_DIFFERENCE / np.sqrt(n_rows)
    chosen: list[FitState] = []
    counts: list[int] = []
    for state in ranked:
        reachable = find_reachable_objective(model.get_convergence_criterion(state), state.history)
        same = [k for k, own in enumerate(chosen) if reachable >= own.history[-1]]
        if same:
            counts[same[0]] += 1
        elif ranked[0].history[-1] - state.history[-1] <= difference and len(chosen) < _MOST_STARTS:
            chosen.append(state)
            counts.append(1)
    found = count_starts(model, ranked)
    return [
        replace(
            own, diagnostics={**own.diagnostics, **found, "starts": len(ended), "starts_at_best": n}
        )
        for own, n in zip(chosen, counts, strict=True)
    ]


def _prepare_passes(model: Model, state: FitState, factor: float, run: PassRun) -> FitState | None:
    """Return the start of the passes over all rows, with the information of a sample if needed."""
    (n_rows,) = run.rows.rows_per_chunk
    acceleration = {}
    if isinstance(model, CanTakeNewtonSteps):
        working = model.begin_newton_steps(state, n_rows)
        if working is None:
            return None
        statistics: Any = collect_information(model, state, working, run, "information")
        with limit_blas_threads():
            inverse = model.invert_information(state, statistics.multiply(factor))
        acceleration = {"inverse": inverse}
    return replace(
        state,
        acceleration=acceleration,
        iteration=0,
        history=(),
        diagnostics={**state.diagnostics, "sample_rows": n_rows},
        done=False,
        converged=False,
        is_on_sample=False,
    )


def _draw_sample(model: Model, n_needed: int, run: PassRun) -> BlockSample | None:
    """Draw a sample of at least about `n_needed` rows.

    None if there are few rows, or no sample has all levels.
    """
    rows, n_rows, growth = run.rows, sum(run.rows.rows_per_chunk), 1.0
    most = max(MIN_SAMPLE, min(_MAX_SAMPLE, _MAX_VALUES // max(rows.n_features, 1)))
    while n_rows >= MIN_ROWS:
        size = growth * max(min(SHARE * n_rows, most), MIN_SAMPLE, n_needed)
        if size > min(_MAX_SHARE * n_rows, _GROWTH**2 * max(most, n_needed)):
            break
        draw = partial(_draw_rows, size / n_rows, RowRandom(run.seed))
        sample = collect_statistics(
            draw, rows, run.executor, BlockSample.label, progress=run.progress
        )
        is_of_all = sample.n_rows > n_rows / 2  # or of a split, which is smaller
        n_rows = sample.n_rows
        has_groups = bool(model.structure.groups)
        if is_of_all and not sample.lacks_levels(model.structure.features, has_groups):
            return sample
        growth *= _GROWTH if is_of_all else 1.0
    return None


def _draw_rows(share: float, rng: RowRandom, block: BinaryBlock) -> BlockSample:
    return BlockSample.from_block(block, share, rng)
