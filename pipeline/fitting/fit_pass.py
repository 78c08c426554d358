"""One pass of a fit: sum statistics over all rows, update the state, and check convergence.

A pass with several starts reads the rows once and sums the statistics of every start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.errors import FitError
from pipeline.executors.base import Executor, MapFunction, limit_blas_threads
from pipeline.executors.central_work import NO_KEPT_RESULTS, KeptResults, open_central_work
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.independence import warn_about_independence
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    SquaremStep,
    adapt_to_newton_steps,
    choose_newton_step,
    choose_squarem_step,
    describe_starts,
    find_final_objective,
    find_reachable_objective,
    is_newton_step,
    is_stage_over,
    warn_about_ending,
    warn_about_starts,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import (
    CanAccelerate,
    CanLearnLocally,
    CanStartOnSample,
    CanTakeNewtonSteps,
    HasSequences,
)
from pipeline.models.state import Arrays, FitState
from pipeline.params import convert_to_c_order
from pipeline.passes.arrival_order import cut_in_arrival_order
from pipeline.passes.map_reduce import (
    NO_KEPT_SUMS,
    TASK_MEMORY,
    KeptSums,
    ReadBlocks,
    collect_groups,
    collect_statistics,
    sum_blocks,
)
from pipeline.passes.task_sizes import CHUNKS_PER_GROUP, WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.sums import JointStatistics, Statistics

_HOPELESS_GAIN = 4.0  # times the expected gain of a step, by which a start ends below the best


class PassRun(NamedTuple):
    """The rows that passes read, where their tasks run, the seed of draws, and what is told."""

    rows: RowSource
    executor: Executor
    seed: int
    progress: Progress = ignore_progress


class PassInputs(NamedTuple):
    """Parameters, working state and random draws that the tasks of a pass need."""

    params: Any
    working: Arrays
    rng: RowRandom


def collect_pass_statistics(
    model: Model,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
    kept: KeptSums[Any] = NO_KEPT_SUMS,
) -> Statistics:
    """Sum the statistics of one pass at the parameters of the state, or of each of its starts."""
    inputs, label = _make_pass_inputs(state, seed), format_pass_label(model, state)
    if isinstance(model, HasSequences):
        rows = cut_in_arrival_order(rows)
        work = _estimate_work(model, inputs, rows)
        inputs = _connect_blocks(model, inputs, rows, executor, label, progress, work)
    statistics: Statistics = collect_groups(
        partial(_sum_group, model, inputs),
        rows,
        executor,
        label,
        model.make_tiles(rows.n_features, rows.n_segments, TASK_MEMORY),
        progress,
        kept,
        _estimate_work(model, inputs, rows),
    )
    return statistics


def _connect_blocks(
    model: HasSequences,
    inputs_by_start: tuple[PassInputs, ...],
    rows: RowSource,
    executor: Executor,
    label: str,
    progress: Progress,
    work: WorkEstimate,
) -> tuple[PassInputs, ...]:
    """Add to the inputs of every start what all rows say about each block."""
    summarize = partial(_summarize_links, model, inputs_by_start)
    links: JointStatistics = collect_statistics(
        summarize, rows, executor, f"{label}, links", progress=progress, work=work
    )
    return tuple(
        inputs._replace(working={**inputs.working, **model.connect_links(inputs.params, own)})
        for inputs, own in zip(inputs_by_start, links.parts, strict=True)
    )


def _summarize_links(
    model: HasSequences, inputs_by_start: tuple[PassInputs, ...], block: BinaryBlock
) -> JointStatistics:
    return JointStatistics(
        tuple(model.summarize_links(p.params, p.working, block, p.rng) for p in inputs_by_start)
    )


def _estimate_work(
    model: Model, inputs_by_start: Sequence[PassInputs], rows: RowSource
) -> WorkEstimate:
    """Estimate the work of a pass, by which chunks are cut into pieces."""
    if isinstance(model, CanLearnLocally):  # the number of pieces is part of the method
        return WorkEstimate(0, n_chunks=CHUNKS_PER_GROUP)
    if model.counts_key(rows.n_features) is not None:
        return estimate_counting(model, rows)
    n_rows = max(rows.rows_per_chunk, default=0)
    estimates = [
        model.estimate_work(p.params, p.working, rows.n_features, n_rows) for p in inputs_by_start
    ]
    return WorkEstimate(*(sum(values) for values in zip(*estimates, strict=True)))


def estimate_work(model: Model, state: FitState, rows: RowSource) -> WorkEstimate:
    """Estimate the work of a pass with the parameters of a state."""
    return _estimate_work(model, [PassInputs(state.params, state.working, RowRandom(0))], rows)


def estimate_counting(model: Model, rows: RowSource) -> WorkEstimate:
    """Return the size of counts, half of the memory of a thread: they are held twice."""
    one, two = (model.estimate_memory(rows.n_features, rows.n_segments, n) for n in (1, 2))
    return WorkEstimate(0, (two - one) / 2)


def _make_pass_inputs(state: FitState, seed: int) -> tuple[PassInputs, ...]:
    """Return the inputs of the state, or of each running start; each start has its own stream."""
    rng = RowRandom(seed, state.iteration)
    if not state.starts:
        return (PassInputs(state.params, state.working, rng),)
    numbered = enumerate(state.starts)
    return tuple(
        PassInputs(s.params, s.working, rng.stream(f"start {k}")) for k, s in numbered if not s.done
    )


def format_pass_label(model: Model, state: FitState) -> str:
    """Return the label of a pass; for iterative models, with its number and the last objective."""
    label = model.statistics.label + (" on a sample" if state.is_on_sample else "")
    if model.get_convergence_criterion(state).max_iter == 1:
        return label
    objective = max((s.history[-1] for s in state.running_states if s.history), default=None)
    objective_text = "" if objective is None else f", {objective:.6f}"
    return f"{label}, pass {state.iteration + 1}{objective_text}"


def _sum_group(
    model: Model, inputs_by_start: tuple[PassInputs, ...], blocks: ReadBlocks
) -> Statistics | None:
    """Sum a group of chunks for every start, or let the model take its own steps through them."""
    if isinstance(model, CanLearnLocally):
        results = [model.learn(p.params, p.working, blocks, p.rng) for p in inputs_by_start]
        parts = tuple(part for part in results if part is not None)
        return parts[0] if len(parts) == 1 else JointStatistics(parts) if parts else None
    add = partial(_add_block, model, inputs_by_start[0]) if len(inputs_by_start) == 1 else None
    return sum_blocks(partial(_summarize_block, model, inputs_by_start), blocks, add)


def _add_block(model: Model, inputs: PassInputs, sum: Any, block: BinaryBlock) -> Statistics:
    return model.add_to(sum, inputs.params, inputs.working, block, inputs.rng)


def _summarize_block(
    model: Model, inputs_by_start: tuple[PassInputs, ...], block: BinaryBlock
) -> Statistics:
    parts = [model.summarize(p.params, p.working, block, p.rng) for p in inputs_by_start]
    return parts[0] if len(parts) == 1 else JointStatistics(tuple(parts))


def collect_information(
    model: Any,
    state: FitState,
    working: Arrays,
    run: PassRun,
    label: str,
) -> Statistics:
    """Sum the information of the rows about the parameters of the state."""
    inputs = PassInputs(state.params, working, RowRandom(run.seed))
    summarize = partial(_summarize_information, model, inputs)
    work = _estimate_work(model, [inputs], run.rows)
    statistics: Statistics = collect_statistics(
        summarize, run.rows, run.executor, label, progress=run.progress, work=work
    )
    return statistics


def _summarize_information(model: Any, inputs: PassInputs, block: BinaryBlock) -> Statistics:
    part: Statistics = model.summarize_information(inputs.params, inputs.working, block, inputs.rng)
    return part


def fit_pass(
    model: Model,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    statistics: Statistics | None = None,
    progress: Progress = ignore_progress,
    kept_results: KeptResults = NO_KEPT_RESULTS,
) -> FitState:
    """Do one pass, with `statistics` if they have already been collected."""
    if statistics is None:
        statistics = collect_pass_statistics(model, state, rows, executor, seed, progress)
    parts = iter(statistics.parts if isinstance(statistics, JointStatistics) else (statistics,))
    work = open_central_work(executor.map, progress, kept_results, f"pass-{state.iteration:06d}")
    with limit_blas_threads(), work as map_items:
        if not state.starts:
            return _update_state(model, state, next(parts), seed, map_items)
        return _update_starts(model, state, parts, seed, map_items)


def _update_starts(
    model: Model, state: FitState, parts: Iterator[Statistics], seed: int, map_items: MapFunction
) -> FitState:
    """Update every running start; once all have ended, let the model select the best."""
    starts = tuple(
        s if s.done else _update_state(model, s, next(parts), seed, map_items, k)
        for k, s in enumerate(state.starts)
    )
    starts = _end_hopeless_starts(starts)
    iteration = state.iteration + 1
    if not all(s.done for s in starts):
        return replace(state, starts=starts, iteration=iteration)
    kinds: dict[str, list[FitState]] = {}
    for start in starts:
        kinds.setdefault(model.get_start_kind(start), []).append(start)
    ranked = {kind: _rank_starts(model, own) for kind, own in kinds.items()}
    return _begin_stage(replace(model.select_starts(ranked), iteration=iteration))


def _end_hopeless_starts(starts: tuple[FitState, ...]) -> tuple[FitState, ...]:
    """End starts that take Newton's steps and will hardly reach the best."""
    best = max(start.history[-1] for start in starts)

    def is_hopeless(start: FitState) -> bool:
        if not is_newton_step(start.acceleration):
            return False
        gain = float(start.acceleration["gain"]) / float(start.auxiliary["weight"])
        return start.history[-1] + _HOPELESS_GAIN * gain < best

    return tuple(replace(s, done=s.done or is_hopeless(s)) for s in starts)


def _rank_starts(model: Model, starts: Sequence[FitState]) -> list[FitState]:
    """Sort starts, the best first; add how many reached the best, unless it is known already."""
    found, known = count_starts(model, starts), starts[0].diagnostics
    if "sample_rows" in known:  # each is one of those that ended at its optimum on the sample
        found = {**found, "starts": known["starts"]}
        ranked = ((s, {**s.diagnostics, **found}) for s in sort_starts(model, starts))
    else:
        ranked = ((s, {**found, **s.diagnostics}) for s in sort_starts(model, starts))
    return [replace(start, diagnostics=diagnostics) for start, diagnostics in ranked]


def sort_starts(model: Model, starts: Sequence[FitState]) -> list[FitState]:
    """Sort starts by their final objective, the best first."""

    def find_objective(start: FitState) -> float:
        return find_final_objective(model.get_convergence_criterion(start), start.history)

    return sorted(starts, key=find_objective, reverse=True)


def count_starts(model: Model, starts: Sequence[FitState]) -> dict[str, int | float]:
    """Return the diagnostics of starts: how many there are, and how many reached the best.

    After passes over a sample, a start counts as often as its diagnostics tell.
    """
    endings = [(model.get_convergence_criterion(s), s.history) for s in starts]
    return describe_starts(
        [find_final_objective(*ending) for ending in endings],
        [find_reachable_objective(*ending) for ending in endings],
        [criterion.has_converged(history) for criterion, history in endings],
        [s.diagnostics["starts_at_best"] if "sample_rows" in s.diagnostics else 1 for s in starts],
    )


def _update_state(
    model: Model,
    state: FitState,
    statistics: Statistics,
    seed: int,
    map_items: MapFunction,
    start: int = -1,
) -> FitState:
    """Update one state by its statistics, and end its stage if it is over."""
    rng = np.random.default_rng([seed, state.iteration, start + 1])
    with np.errstate(all="ignore"):  # it is checked below
        objective = model.objective(state.params, statistics)
    if not np.isfinite(objective) and "fallback" in state.acceleration:
        mapped, objective = state, -np.inf  # the step was too long, and is rejected
    else:
        mapped = model.update(state, statistics, map_items, rng)
        _check_objective(state, objective)
    step = _accelerate(model, state, mapped, objective, statistics)
    next_params = convert_to_c_order(step.parameters)
    updated = replace(mapped, iteration=state.iteration + 1, acceleration=step.memory)
    if not step.accepted:
        return replace(updated, params=next_params)
    history = (*state.history, objective)
    convergence = adapt_to_newton_steps(model.get_convergence_criterion(state), step.memory)
    is_best = convergence.keeps_best and objective >= max(history)
    updated = replace(updated, history=history, best=state.params if is_best else state.best)
    if not is_stage_over(convergence, history):
        return replace(updated, params=next_params)
    final_params = updated.best if convergence.ends_with_best(history) else mapped.params
    if is_newton_step(step.memory) and convergence.has_converged(history):
        final_params = next_params
    last = replace(updated, params=final_params, best=None)
    if start >= 0:
        return replace(last, done=True)
    next_stage = model.next_stage(last, statistics)
    if next_stage is not None:
        return _begin_stage(next_stage)
    if state.is_on_sample and isinstance(model, CanStartOnSample):
        return replace(model.leave_sample(last, statistics), done=True)
    finished = model.finish(last, statistics)
    finished = replace(
        finished,
        params=convert_to_c_order(finished.params),
        diagnostics={**last.diagnostics, **finished.diagnostics},
    )
    kept_objective = max(history) if convergence.ends_with_best(history) else None
    independence = warn_about_independence(model, state, statistics, kept_objective)
    finished = replace(finished, warnings=(*finished.warnings, *independence))
    return end_fit(model, finished, convergence, history)


def end_fit(
    model: Model, state: FitState, convergence: ConvergenceCriterion, history: Sequence[float]
) -> FitState:
    """End a fit: record whether its last stage converged, and warn about how the fit ended.

    The criterion and the history are the ones by which the stage ended.
    """
    ending = warn_about_ending(convergence, history)
    starts = warn_about_starts(state.diagnostics, getattr(model, "starts", None))
    warnings = (*state.warnings, *ending, *starts)
    converged = convergence.has_converged(history)
    return replace(state, done=True, converged=converged, warnings=warnings)


def _check_objective(state: FitState, objective: float) -> None:
    if not np.isfinite(objective):
        raise FitError(
            f"The objective of pass {state.iteration + 1} is {objective}. "
            "Choose other settings or another {seed}."
        )


def _accelerate(
    model: Model, state: FitState, mapped: FitState, objective: float, statistics: Statistics
) -> SquaremStep:
    """Choose the parameters of the next pass: the result of `update`, or a longer step.

    Only stages that end on the change of their objective are extrapolated: steps of others do not
    always raise it.
    """
    is_em = isinstance(model.get_convergence_criterion(state), ObjectiveCriterion)
    if not is_em or not isinstance(model, CanAccelerate) or model.acceleration == "none":
        return SquaremStep(mapped.params, {}, True)
    memory, weight = state.acceleration, statistics.weight
    start, end = model.pack_params(state.params), model.pack_params(mapped.params)
    if "inverse" in memory and isinstance(model, CanTakeNewtonSteps):
        is_possible = np.isfinite(objective)
        gradient = model.differentiate(state, statistics) if is_possible else memory["gradient"]
        if gradient is not None:
            newton = choose_newton_step(gradient, end, objective, memory)
            if newton.change is None:
                params = model.unpack_params(mapped.params, memory["fallback"], weight)
                return SquaremStep(params, newton.memory, False)
            params = model.move_params(state, newton.change, weight)
            return SquaremStep(params, newton.memory, True)
        memory = {}
    step = choose_squarem_step(start, end, objective, memory)
    return step._replace(parameters=model.unpack_params(mapped.params, step.parameters, weight))


def _begin_stage(state: FitState) -> FitState:
    """Begin a stage with an empty history; of the acceleration, only an inverse is kept."""
    starts = tuple(_begin_stage(start) for start in state.starts)
    memory = {name: own for name, own in state.acceleration.items() if name == "inverse"}
    fresh = replace(state, history=(), acceleration=memory, best=None, done=False, starts=starts)
    return replace(fresh, params=convert_to_c_order(state.params))
