"""Fit several models in shared passes over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.fit_pass import fit_pass
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.passes.map_reduce import collect_statistics
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.sums import JointStatistics

_NANOSECONDS_PER_TASK = 1e6  # of each model, besides those for its rows


def fit_in_shared_passes(
    models: Sequence[Model],
    states: Sequence[FitState],
    rows: RowSource,
    executor: Executor,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> list[FitState]:
    """Fit models that differ only in their central step; each pass reads the rows once for all.

    `states` are their initial states. The result has the final state of each model. Its last
    objective is that of parameters which differ from the final ones by one converged step.
    """
    fits, n_passes = list(states), 0
    while running := [k for k, state in enumerate(fits) if not state.done]:
        n_passes += 1
        inputs = tuple(state for k in running for state in fits[k].running_states)
        sums = collect_statistics(
            partial(_summarize_block, models[0], inputs, RowRandom(seed, n_passes)),
            rows,
            executor,
            f"{models[0].statistics.label}, pass {n_passes}, fits: {len(running)}",
            progress=progress,
            work=_estimate_work(models[0], inputs, rows),
        )
        parts = iter(sums.parts)
        for k in running:
            own = JointStatistics(tuple(next(parts) for _ in fits[k].running_states))
            fits[k] = fit_pass(models[k], fits[k], rows, executor, seed, own, progress)
    return fits


def _summarize_block(
    model: Model, states: Sequence[FitState], rng: RowRandom, block: BinaryBlock
) -> JointStatistics:
    parts = [model.summarize(state.params, state.working, block, rng) for state in states]
    return JointStatistics(tuple(parts))


def _estimate_work(model: Model, states: Sequence[FitState], rows: RowSource) -> WorkEstimate:
    n_rows = max(rows.rows_per_chunk, default=0)
    works = [model.estimate_work(s.params, s.working, rows.n_features, n_rows) for s in states]
    return WorkEstimate(
        sum(work.nanoseconds for work in works),
        sum(work.result_bytes for work in works),
        _NANOSECONDS_PER_TASK * len(works),
    )
