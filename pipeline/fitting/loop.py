"""The only training loop: sum statistics over all rows, `update`, judge, until the last stage ends.

A pass with several starts sums the statistics of all of them while it reads the rows once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pipeline.data.blocks import BinaryBlock, Rows
from pipeline.errors import FitError, Notice
from pipeline.executors.base import Executor, Map, one_blas_thread
from pipeline.executors.progress import Progress, ToldMap, silent
from pipeline.fitting.pair_work import in_memory, taken_up, work_label, work_of
from pipeline.learning.acceleration import Step, squarem_step
from pipeline.learning.convergence import ended, kept_objective, stop_warning
from pipeline.models.base import Model
from pipeline.models.capabilities import Accelerates, Informs, LearnsLocally, Prepares
from pipeline.models.state import Arrays, FitState
from pipeline.params import in_c_order
from pipeline.passes.collect import (
    NOTHING_KEPT,
    TASK_MEMORY,
    Blocks,
    Kept,
    collect,
    collect_groups,
    n_parts,
    sum_blocks,
)
from pipeline.random import RowRandom
from pipeline.statistics.base import Statistics
from pipeline.statistics.several_starts import Together


class Point(NamedTuple):
    """What tasks of a pass are given of a state: parameters, working state, and draws."""

    params: Any
    working: Arrays
    rng: RowRandom


def collect_first(
    model: Model,
    rows: Rows,
    executor: Executor,
    seed: int,
    progress: Progress = silent,
    kept: Kept[Any] = NOTHING_KEPT,
) -> Statistics:
    """Sum what `model.initialize` needs."""
    summarize, label = partial(_first_of, model, RowRandom(seed)), model.first.label
    first: Statistics
    first = collect(summarize, rows, executor, label, progress=progress, kept=kept)
    return first


def _first_of(model: Model, rng: RowRandom, block: BinaryBlock) -> Statistics:
    return model.first_of(block, rng)


def start(model: Model, first: Statistics, seed: int) -> FitState:
    """Make the state before the first pass.

    Raises
    ------
    FitError
        If the seed is out of range, or the model cannot use the data.
    """
    check_seed(seed)
    with one_blas_thread():
        return model.initialize(first, np.random.default_rng(seed))


def check_seed(seed: int) -> None:
    """Refuse a seed that the random generators do not take."""
    if not 0 <= seed < 2**63:
        raise FitError(f"--seed: Expected 0 to 2**63 - 1, got {seed}. Choose another.")


def collect_pass(
    model: Model,
    state: FitState,
    rows: Rows,
    executor: Executor,
    seed: int,
    progress: Progress = silent,
    kept: Kept[Any] = NOTHING_KEPT,
) -> Statistics:
    """Sum the statistics of one pass with the parameters of the state, or of its starts."""
    statistics: Statistics = collect_groups(
        partial(_sum_group, model, _points(state, seed)),
        rows,
        executor,
        _pass_label(model, state),
        model.tiles(rows.n_features, rows.n_segments, TASK_MEMORY),
        progress,
        kept,
        n_parts(rows.n_chunks) if model.blocks_apart else 1,
    )
    return statistics


def _points(state: FitState, seed: int) -> tuple[Point, ...]:
    """Name what tasks need; starts draw from streams of their own."""
    rng = RowRandom(seed, state.iteration)
    if not state.starts:
        return (Point(state.params, state.working, rng),)
    numbered = enumerate(state.starts)
    return tuple(
        Point(s.params, s.working, rng.stream(f"start {k}")) for k, s in numbered if not s.done
    )


def _pass_label(model: Model, state: FitState) -> str:
    """Name what is counted; of a model that iterates also the pass, and the objective so far."""
    if model.convergence(state).max_iter == 1:
        return model.statistics.label
    reached = max((s.history[-1] for s in state.running if s.history), default=None)
    told = "" if reached is None else f", {reached:.6f}"
    return f"{model.statistics.label}, pass {state.iteration + 1}{told}"


def _sum_group(
    model: Model, points: tuple[Point, ...], blocks: Blocks, before: Any
) -> Statistics | None:
    """Sum a group of chunks for every start, or let the model learn from it."""
    if isinstance(model, LearnsLocally):
        parts = [model.learn(p.params, p.working, blocks, p.rng) for p in points]
        learnt = tuple(part for part in parts if part is not None)
        return learnt[0] if len(learnt) == 1 else Together(learnt) if learnt else None
    add = partial(_added, model, points[0]) if len(points) == 1 else None
    return sum_blocks(partial(_summarize, model, points), blocks, before, add)


def _added(model: Model, point: Point, sum: Any, block: BinaryBlock) -> Statistics:
    return model.added(sum, point.params, point.working, block, point.rng)


def _summarize(model: Model, points: tuple[Point, ...], block: BinaryBlock) -> Statistics:
    parts = [model.summarize(p.params, p.working, block, p.rng) for p in points]
    return parts[0] if len(parts) == 1 else Together(tuple(parts))


def fit_pass(
    model: Model,
    state: FitState,
    rows: Rows,
    executor: Executor,
    seed: int,
    statistics: Statistics | None = None,
    progress: Progress = silent,
) -> FitState:
    """Do one pass; `statistics` are the pass's own, where they were collected before."""
    if statistics is None:
        statistics = collect_pass(model, state, rows, executor, seed, progress)
    parts = iter(statistics.parts if isinstance(statistics, Together) else (statistics,))
    map_items = ToldMap(executor.map, progress)
    with one_blas_thread():
        if not state.starts:
            return _stepped(model, state, next(parts), seed, map_items)
        return _raced(model, state, parts, seed, map_items)


def _raced(
    model: Model, state: FitState, parts: Iterator[Statistics], seed: int, map_items: Map
) -> FitState:
    """Step every start that is under way; once all have ended go on with the best."""
    starts = tuple(
        s if s.done else _stepped(model, s, next(parts), seed, map_items, k)
        for k, s in enumerate(state.starts)
    )
    iteration = state.iteration + 1
    if not all(s.done for s in starts):
        return replace(state, starts=starts, iteration=iteration)
    best = max(starts, key=lambda s: kept_objective(model.convergence(s), s.history))
    return _begun(replace(model.chosen(best), iteration=iteration))


def _stepped(
    model: Model,
    state: FitState,
    statistics: Statistics,
    seed: int,
    map_items: Map,
    start: int = -1,
) -> FitState:
    """Update one state by its statistics, and end its stage where that is time."""
    rng = np.random.default_rng([seed, state.iteration, start + 1])
    mapped = model.update(state, statistics, map_items, rng)
    objective = _objective(model, state, statistics)
    step = _accelerated(model, state, mapped, objective, statistics.n_samples)
    ahead = in_c_order(step.parameters)
    moved = replace(mapped, iteration=state.iteration + 1, acceleration=step.memory)
    if not step.accepted:
        return replace(moved, params=ahead)
    history = (*state.history, objective)
    convergence = model.convergence(state)
    is_best = convergence.keeps_best and objective >= max(history)
    moved = replace(moved, history=history, best=state.params if is_best else state.best)
    if not ended(convergence, history):
        return replace(moved, params=ahead)
    at = moved.best if convergence.keeps_best else mapped.params
    last = replace(moved, params=at, best=None)
    return replace(last, done=True) if start >= 0 else _after_stage(model, last, statistics)


def _objective(model: Model, state: FitState, statistics: Statistics) -> float:
    objective = model.objective(state.params, statistics)
    if not np.isfinite(objective):
        raise FitError(
            f"Expected a finite objective in pass {state.iteration + 1}, got {objective}. "
            "Fit with other settings or another --seed."
        )
    return objective


def _accelerated(
    model: Model, state: FitState, mapped: FitState, objective: float, n_samples: int
) -> Step:
    """Choose the parameters of the next pass: those of `update`, or further along its way."""
    if not isinstance(model, Accelerates) or model.acceleration == "none":
        return Step(mapped.params, {}, True)
    at, to = model.packed(state.params), model.packed(mapped.params)
    step = squarem_step(at, to, objective, state.acceleration)
    return step._replace(parameters=model.unpacked(mapped.params, step.parameters, n_samples))


def _after_stage(model: Model, state: FitState, statistics: Statistics) -> FitState:
    following = model.next_stage(state, statistics)
    if following is not None:
        return _begun(following)
    finished = model.finish(state, statistics)
    return replace(finished, params=in_c_order(finished.params), done=True)


def _begun(state: FitState) -> FitState:
    """Begin a stage: its history is its own, and nothing is extrapolated from the one before."""
    starts = tuple(_begun(start) for start in state.starts)
    fresh = replace(state, history=(), acceleration={}, best=None, done=False, starts=starts)
    return replace(fresh, params=in_c_order(state.params))


def fit(
    model: Model,
    rows: Rows,
    executor: Executor,
    seed: int = 0,
    *,
    state: FitState | None = None,
    statistics: Statistics | None = None,
    checkpoint: Callable[[FitState], None] = lambda state: None,
    progress: Progress = silent,
) -> FitState:
    """Fit a model.

    Parameters
    ----------
    model
        Hyperparameters.
    rows
        The rows.
    executor
        Where tasks run; the result does not depend on it.
    seed
        Seed of every random draw.
    state
        Continue from here instead of from the start.
    statistics
        Statistics of the pass that comes next, where they were collected before.
    checkpoint
        Is given the state after every pass.
    progress
        Is told after every task.

    Raises
    ------
    FitError
        If the data or the hyperparameters cannot be used.
    """
    if state is None:
        state = start(model, collect_first(model, rows, executor, seed, progress), seed)
        if work_label(model, rows.n_features):
            found = in_memory(work_of(model, state, rows), executor, progress)
            state = taken_up(model, state, found, executor, seed)
    if ended(model.convergence(state), state.history):
        state = replace(state, done=True)  # pair work was all that it needed
    counted = model.counted(rows.n_features) is not None
    while not state.done:
        if statistics is None:
            statistics = collect_pass(model, state, rows, executor, seed, progress)
        elif counted and state.history:
            progress(_pass_label(model, state), 1, 1, statistics.n_samples)
        state = fit_pass(model, state, rows, executor, seed, statistics, progress)
        statistics = statistics if counted else None
        checkpoint(state)
    state = _informed(model, state, rows, executor, seed, progress)
    return _completed(model, state, executor, seed)


def _informed(
    model: Any, state: FitState, rows: Rows, executor: Executor, seed: int, progress: Progress
) -> FitState:
    """Do the pass after the fit, where the model has one."""
    working = model.informing(state) if isinstance(model, Informs) else None
    if working is None:
        return state
    summarize = partial(_inform, model, Point(state.params, working, RowRandom(seed)))
    statistics: Statistics = collect(summarize, rows, executor, "errors", progress=progress)
    with one_blas_thread():
        done: FitState = model.informed(state, statistics)
    return replace(done, params=in_c_order(done.params))


def _inform(model: Any, point: Point, block: BinaryBlock) -> Statistics:
    told: Statistics = model.inform(point.params, point.working, block, point.rng)
    return told


def _completed(model: Model, state: FitState, executor: Executor, seed: int) -> FitState:
    """Prepare the parameters for use, and say so where the fit did not converge."""
    if isinstance(model, Prepares):
        rng = np.random.default_rng([seed, state.iteration])
        with one_blas_thread():
            prepared = in_c_order(model.prepare(state.params, rng, executor.map))
        state = replace(state, params=prepared)
    warning = stop_warning(model.convergence(state), state.history)
    return replace(state, warnings=(*state.warnings, *([Notice(warning)] if warning else [])))
