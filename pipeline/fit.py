"""The only training loop: map `summarize` over groups of chunks, merge, `update`, until done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock, Chunk, Rows, Tile, blocks_of
from pipeline.errors import FitError, Notice
from pipeline.executors.base import Executor, one_blas_thread
from pipeline.learning.convergence import ConvergenceMonitor
from pipeline.params import in_c_order
from pipeline.progress import Progress, silent
from pipeline.random import RowRandom
from pipeline.reduce import Folded, groups
from pipeline.statistics.base import Statistics
from pipeline.wanted import check_wanted

if TYPE_CHECKING:
    from pipeline.models.base import Model

S = TypeVar("S", bound=Statistics)

TASK_MEMORY = 256 << 20
"""Bytes of statistics that one task may hold; wider data is counted in tiles of features."""


@dataclass(frozen=True)
class FitState:
    """Where a fit is: everything that a resumed run needs.

    Attributes
    ----------
    params
        The model's parameters, a frozen dataclass of arrays.
    auxiliary
        Arrays of the optimiser or the acceleration.
    iteration
        Passes done.
    history
        Objective per row after each pass.
    diagnostics
        Small values for the artifact, by name.
    warnings
        What the user must be told.
    accepted
        False where the pass is no part of the history: `update` took back the step that led to
        it, or began a new history.
    """

    params: Any
    auxiliary: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    iteration: int = 0
    history: tuple[float, ...] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[Notice, ...] = ()
    accepted: bool = True


@dataclass(frozen=True)
class Kept(Generic[S]):
    """Where sums over leading chunks are kept between fits, so that only new chunks are read.

    Attributes
    ----------
    load
        Gives what was kept of a tile, of leading chunks of the same rows; empty if nothing was.
    save
        Keeps what a tile sums to now.
    """

    load: Callable[[Tile | None], Folded[S]] = lambda tile: Folded()
    save: Callable[[Tile | None, Folded[S]], None] = lambda tile, folded: None


NOTHING_KEPT: Kept[Any] = Kept()


class GroupTask(NamedTuple, Generic[S]):
    """Chunks to sum, and what comes before them in their group, if that was kept."""

    tile: Tile | None
    keys: range
    before: S | None = None


def collect(
    summarize: Callable[[BinaryBlock], S],
    rows: Rows,
    executor: Executor,
    label: str,
    tiles: Sequence[Tile | None] = (None,),
    progress: Progress = silent,
    kept: Kept[S] = NOTHING_KEPT,
) -> S:
    """Sum a statistic over all rows: one task a tile and group of chunks.

    Parameters
    ----------
    summarize
        Summarizes one block; it is sent to the workers.
    rows
        The rows.
    executor
        Where tasks run.
    label
        What the pass is called.
    tiles
        Parts of the pairs of features, each a sweep of its own.
    progress
        Is told after every task.
    kept
        Sums over leading chunks.

    Raises
    ------
    FitError
        If there are no rows.
    """
    known = [kept.load(tile) for tile in tiles]
    by_tile = [_tasks(*pair, rows.n_chunks) for pair in zip(tiles, known, strict=True)]
    tasks = [task for of_tile in by_tile for task in of_tile]
    fold = partial(fold_group, summarize, rows.read)
    parts = []
    with closing(executor.map(fold, tasks)) as found:
        results = _counted(found, len(tasks), label, progress)
        for tile, before, of_tile in zip(tiles, known, by_tile, strict=True):
            # The tasks come first: when they end no further result is taken.
            done = zip((task.keys for task in of_tile), results, strict=False)
            folded = before.extended(done)
            kept.save(tile, folded)
            parts.append(_merged(folded))
    return type(parts[0]).stitch(parts)


def _tasks(tile: Tile | None, known: Folded[S], n_chunks: int) -> list[GroupTask[S]]:
    cut = groups(n_chunks, known.n_chunks)
    return [GroupTask(tile, keys, None if k else known.open) for k, keys in enumerate(cut)]


def _merged(folded: Folded[S]) -> S:
    merged = folded.merged()
    if merged is None:
        raise FitError("Expected at least one row, got none. Choose another --split.")
    return merged


def _counted(
    results: Iterator[S | None], total: int, label: str, progress: Progress
) -> Iterator[S | None]:
    rows = 0
    progress(label, 0, total, rows)
    for done, part in enumerate(results, start=1):
        rows += 0 if part is None else part.n_samples
        progress(label, done, total, rows)
        yield part


def fold_group(
    summarize: Callable[[BinaryBlock], S], read: Callable[[int], Chunk], task: GroupTask[S]
) -> S | None:
    """Read a group's chunks one by one and sum them; None when no row is of the chosen split."""
    blocks = (replace(b, tile=task.tile) for key in task.keys for b in blocks_of(read(key)))
    parts = (_while_wanted(summarize, block) for block in blocks if block.n_samples)
    return reduce(lambda sum, part: part if sum is None else sum.merge(part), parts, task.before)


def _while_wanted(summarize: Callable[[BinaryBlock], S], block: BinaryBlock) -> S:
    check_wanted()
    return summarize(block)


def collect_first(
    model: Model,
    rows: Rows,
    executor: Executor,
    progress: Progress = silent,
    kept: Kept[Any] = NOTHING_KEPT,
) -> Statistics:
    """Sum what `model.initialize` needs."""
    kind = model.first
    first: Statistics
    first = collect(kind.of_block, rows, executor, kind.label, progress=progress, kept=kept)
    return first


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
    """Sum the statistics of one pass with the parameters of the state."""
    rng = RowRandom(seed, state.iteration)
    statistics: Statistics = collect(
        partial(_summarize, model, state.params, rng),
        rows,
        executor,
        _pass_label(model, state),
        model.tiles(rows.n_features, rows.n_segments, TASK_MEMORY),
        progress,
        kept,
    )
    return statistics


def _pass_label(model: Model, state: FitState) -> str:
    """Name what is counted; of a model that iterates also the pass, and the objective so far."""
    if model.max_iter == 1:
        return model.statistics.label
    reached = f", {state.history[-1]:.6f}" if state.history else ""
    return f"{model.statistics.label}, pass {state.iteration + 1}{reached}"


def _summarize(model: Model, params: Any, rng: RowRandom, block: BinaryBlock) -> Statistics:
    return model.summarize(params, block, rng)


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
    with one_blas_thread():
        updated = model.update(state, statistics, executor.map)
    objective = model.objective(state.params, statistics)
    if not np.isfinite(objective):
        raise FitError(
            f"Expected a finite objective in pass {state.iteration + 1}, got {objective}. "
            "Fit with other settings or another --seed."
        )
    # A model that enters another stage has begun a new history, without this pass.
    history = (*updated.history, objective) if updated.accepted else updated.history
    return replace(
        updated,
        params=in_c_order(updated.params),
        iteration=state.iteration + 1,
        history=history,
        accepted=True,
    )


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
        state = start(model, collect_first(model, rows, executor, progress), seed)
    monitor = ConvergenceMonitor(model.max_iter, model.tol)
    while not (monitor.converged(state.history) or monitor.stopped(state.history)):
        state = fit_pass(model, state, rows, executor, seed, statistics, progress)
        statistics = None
        checkpoint(state)
    warning = monitor.warning(state.history)
    return replace(state, warnings=(*state.warnings, *([Notice(warning)] if warning else [])))
