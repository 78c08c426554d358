"""The only training loop: sum statistics over all rows, update, and check convergence.

The loop ends after the model's last stage. A pass with several starts reads the rows once and sums
the statistics of every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pipeline.data.blocks import BinaryBlock, CanCountOnes, RowSource
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import Executor, MapFunction, limit_blas_threads
from pipeline.executors.progress import Progress, ProgressMap, ignore_progress
from pipeline.fitting.independence import (
    compute_independent_log_likelihood,
    warn_about_independence,
)
from pipeline.fitting.linkage import (
    collect_linkage,
    has_every_value,
    warn_about_unlinked_features,
)
from pipeline.fitting.pair_work import (
    PairJob,
    get_pair_job_label,
    make_pair_job,
    run_in_memory,
    state_from_results,
)
from pipeline.fitting.sample_start import draw_sample
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
    is_stage_over,
    warn_about_ending,
    warn_about_starts,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import (
    CanAccelerate,
    CanLearnLocally,
    CanPrepare,
    CanStartOnSample,
    CanTakeNewtonSteps,
    CanWarmStart,
    HasInformationPass,
)
from pipeline.models.state import Arrays, FitState
from pipeline.params import convert_to_c_order, get_named_arrays, replace_arrays
from pipeline.passes.map_reduce import (
    NO_KEPT_SUMS,
    TASK_MEMORY,
    KeptSums,
    ReadBlocks,
    collect_groups,
    collect_statistics,
    sum_blocks,
)
from pipeline.passes.row_ranges import RangeResults
from pipeline.passes.task_sizes import CHUNKS_PER_GROUP, WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.linkage import Linkage
from pipeline.statistics.sums import JointStatistics, Statistics

_SAMPLE_TOL, _MAX_SAMPLE_TOL = 10.0, 1e-3
"""Tolerance on a sample: a multiple of that of so few rows, and its limit per row, nats."""
_MOST_STARTS, _SAMPLE_DIFFERENCE = 3, 0.02
"""Starts that continue on all rows, and how much worse they may be on a sample, nats per row."""
_HOPELESS_GAIN = 4.0  # times the expected gain of a step, by which a start ends below the best


class PassInputs(NamedTuple):
    """Parameters, working state and random draws that the tasks of a pass need."""

    params: Any
    working: Arrays
    rng: RowRandom


def collect_first_statistics(
    model: Model,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
    kept: KeptSums[Any] = NO_KEPT_SUMS,
) -> Statistics:
    """Sum the statistics that `model.initialize` needs."""
    summarize = partial(_summarize_first, model, RowRandom(seed))
    label = model.first_statistics.label
    first: Statistics | None = _find_feature_counts(model, rows)
    if first is None:
        work = estimate_counting(model, rows)
        first = collect_statistics(
            summarize, rows, executor, label, progress=progress, kept=kept, work=work
        )
    else:
        progress(label, 1, 1, first.n_rows)
    return first


def _find_feature_counts(model: Model, rows: RowSource) -> FeatureCounts | None:
    """Return counts of features that the dataset stores, if these are what the model needs."""
    if model.first_statistics is not FeatureCounts or not isinstance(rows.read, CanCountOnes):
        return None
    n_rows, ones = rows.read.count_ones() or (0, np.empty(0, np.int64))
    observed = np.full_like(ones, n_rows)
    one_segment = (np.array([0]), np.array([n_rows]))
    return FeatureCounts(*one_segment, observed[None], ones[None]) if n_rows else None


def _summarize_first(model: Model, rng: RowRandom, block: BinaryBlock) -> Statistics:
    return model.summarize_first(block, rng)


def initialize_fit(model: Model, first: Statistics, seed: int) -> FitState:
    """Check the seed and the data, and create the model's initial state."""
    check_seed(seed)
    with limit_blas_threads():
        return model.initialize(first, np.random.default_rng(seed))


def start_fit(
    model: Model,
    first: Statistics,
    rows: RowSource,
    executor: Executor,
    seed: int,
    *,
    initial_params: Any = None,
    run_pairs: Callable[[PairJob], RangeResults] | None = None,
    spare_memory: int | None = None,
    progress: Progress = ignore_progress,
    linkage: Linkage | None = None,
    kept_linkage: KeptSums[Any] = NO_KEPT_SUMS,
) -> FitState:
    """Create the state before the first pass over all rows.

    If the model has pair work, it is done; if it can start on a sample of the rows, it does.
    Features that no row links are named in a warning.

    Parameters
    ----------
    model, rows, executor, seed, progress
        As for `fit_model`.
    first
        The model's first statistics, of all rows.
    initial_params
        Parameters of an earlier fit to start from, if the model supports that.
    run_pairs
        Runs pair work and returns its results. By default they stay in this process's memory.
    spare_memory
        Bytes that tasks of pair work may use beyond `model.estimate_memory`; None for no limit.
    linkage
        Which features all rows link, if it has been found before.
    kept_linkage
        Stored linkage of leading chunks.

    Raises
    ------
    FitError
        If the seed is out of range, or the model cannot use the data.
    """
    state = initialize_fit(model, first, seed)
    independent = compute_independent_log_likelihood(model, first)
    starts = tuple(replace(start, independent=independent) for start in state.starts)
    state = replace(state, independent=independent, starts=starts)
    if linkage is None and not has_every_value(model, first):
        linkage = collect_linkage(model, rows, executor, progress, kept_linkage)
    unlinked = () if linkage is None else warn_about_unlinked_features(model, linkage)
    if initial_params is not None and isinstance(model, CanWarmStart):
        state = model.warm_start(replace(state, starts=()), initial_params)
        state = replace(state, acceleration={"is_warm": np.array(1)})
    if get_pair_job_label(model, rows.n_features):
        job = make_pair_job(model, state, rows, spare_memory)
        results = run_pairs(job) if run_pairs else run_in_memory(job, executor, progress)
        state = state_from_results(model, state, results, executor, seed)
    return _start_on_sample(model, state.with_warnings(unlinked), rows, executor, seed, progress)


def check_seed(seed: int) -> None:
    """Refuse a seed that the random generators cannot use."""
    if not 0 <= seed < 2**63:
        raise FitError(f"{{seed}} must be 0 to 2**63 - 1, but is {seed}.", parameter="seed")


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
    inputs = _make_pass_inputs(state, seed)
    statistics: Statistics = collect_groups(
        partial(_sum_group, model, inputs),
        rows,
        executor,
        _format_pass_label(model, state),
        model.make_tiles(rows.n_features, rows.n_segments, TASK_MEMORY),
        progress,
        kept,
        _estimate_work(model, inputs, rows),
    )
    return statistics


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


def _format_pass_label(model: Model, state: FitState) -> str:
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


def fit_pass(
    model: Model,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    statistics: Statistics | None = None,
    progress: Progress = ignore_progress,
) -> FitState:
    """Do one pass, with `statistics` if they have already been collected."""
    if statistics is None:
        statistics = collect_pass_statistics(model, state, rows, executor, seed, progress)
    parts = iter(statistics.parts if isinstance(statistics, JointStatistics) else (statistics,))
    map_items = ProgressMap(executor.map, progress)
    with limit_blas_threads():
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
        memory = start.acceleration
        if "remaining" not in memory:
            return False
        gain = float(memory["gain"]) / float(start.auxiliary["weight"])
        return start.history[-1] + _HOPELESS_GAIN * gain < best

    return tuple(replace(s, done=s.done or is_hopeless(s)) for s in starts)


def _rank_starts(model: Model, starts: Sequence[FitState]) -> list[FitState]:
    """Sort starts, the best first; add how many reached the best, unless it is known already."""
    endings = [(model.get_convergence_criterion(s), s.history) for s in starts]
    objectives = np.array([find_final_objective(*ending) for ending in endings])
    found = describe_starts(
        objectives.tolist(),
        [find_reachable_objective(*ending) for ending in endings],
        [criterion.has_converged(history) for criterion, history in endings],
    )
    order = np.argsort(-objectives, kind="stable")
    return [replace(starts[k], diagnostics={**found, **starts[k].diagnostics}) for k in order]


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
    if "remaining" in step.memory and convergence.has_converged(history):
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
    return _end_fit(model, finished, convergence, history)


def _end_fit(
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


def fit_model(
    model: Model,
    rows: RowSource,
    executor: Executor,
    seed: int = 0,
    *,
    state: FitState | None = None,
    statistics: Statistics | None = None,
    checkpoint: Callable[[FitState], None] = lambda state: None,
    progress: Progress = ignore_progress,
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
        Seed of all random draws.
    state
        Continue from this state instead of starting a new fit.
    statistics
        Statistics of the next pass, if they have been collected before.
    checkpoint
        Called with the state after every pass.
    progress
        Called after every task.

    Raises
    ------
    FitError
        If the data or the hyperparameters cannot be used.
    """
    if state is None:
        first = collect_first_statistics(model, rows, executor, seed, progress)
        state = start_fit(model, first, rows, executor, seed, progress=progress)
    convergence = model.get_convergence_criterion(state)
    if not (state.done or state.iteration) and is_stage_over(convergence, state.history):
        state = _end_fit(model, state, convergence, state.history)  # it only needed its pair work
    has_fixed_statistics = model.counts_key(rows.n_features) is not None
    while not state.done:
        if statistics is None:
            statistics = collect_pass_statistics(model, state, rows, executor, seed, progress)
        elif has_fixed_statistics and state.history:
            progress(_format_pass_label(model, state), 1, 1, statistics.n_rows)
        state = fit_pass(model, state, rows, executor, seed, statistics, progress)
        statistics = statistics if has_fixed_statistics else None
        checkpoint(state)
    state = _run_information_pass(model, state, rows, executor, seed, progress)
    return _prepare_params(model, state, executor, seed)


def _start_on_sample(
    model: Model,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> FitState:
    """Run the stages of a fit that has not begun on a sample of its rows, if that is possible.

    The result is the start of the passes over all rows, in the last stage. A start from an earlier
    fit stays where it is, and only gets the information of the sample. Of several starts, the best
    ones remain as far as the sample cannot tell which is the best for all rows.
    """
    if state.iteration or state.done or not isinstance(model, CanStartOnSample):
        return state
    is_plain = isinstance(model, CanAccelerate) and model.acceleration == "none"
    n_needed = 0 if is_plain else model.count_sample_rows(state)
    sample = draw_sample(model, rows, executor, seed, n_needed, progress) if n_needed else None
    if sample is None:
        return state
    factor = sample.weight / sum(block.weight for block in sample.blocks)
    tol = max(model.tol, min(_SAMPLE_TOL * factor * model.tol, _MAX_SAMPLE_TOL))
    own_model: Any = replace(model, tol=tol)  # type: ignore[call-arg]
    run = sample.make_row_source(rows), executor, seed, progress
    starts = [model.select_starts({model.get_start_kind(s): [s]}) for s in state.starts] or [state]
    try:
        ended = [_run_on_sample(own_model, start, factor, *run) for start in starts]
        places = _choose_starts(own_model, ended)
        if state.starts:
            found = _rank_starts(own_model, ended)[0].diagnostics
            ended = [replace(own, diagnostics={**own.diagnostics, **found}) for own in ended]
        prepared = [_prepare_passes(model, ended[k], factor, *run) for k in places]
    except FitError:
        return state  # all rows may do, or tell more about the reason
    chosen = [own for own in prepared if own is not None]
    if len(chosen) < len(prepared):
        return state
    if len(chosen) == 1:
        return chosen[0]
    names = "params", "acceleration", "diagnostics"
    moved = (
        replace(state.starts[k], **{name: getattr(own, name) for name in names})
        for k, own in zip(places, chosen, strict=True)
    )
    return replace(state, starts=tuple(moved))


def _run_on_sample(
    model: Model,
    state: FitState,
    factor: float,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> FitState:
    """Run the stages of a fit on a sample, whose rows count `factor` times."""
    is_warm = "is_warm" in state.acceleration
    own = replace(state, is_on_sample=True, acceleration={}, done=is_warm)
    while not own.done:
        statistics: Any = collect_pass_statistics(model, own, rows, executor, seed, progress)
        own = fit_pass(model, own, rows, executor, seed, statistics.multiply(factor))
    return own


def _prepare_passes(
    model: Model,
    state: FitState,
    factor: float,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> FitState | None:
    """Return the start of the passes over all rows, with the information of a sample if needed."""
    (n_rows,) = rows.rows_per_chunk
    acceleration = {}
    if isinstance(model, CanTakeNewtonSteps):
        working = model.begin_newton_steps(state, n_rows)
        if working is None:
            return None
        statistics: Any = _collect_information(
            model, state, working, rows, executor, seed, "information", progress
        )
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


def _choose_starts(model: Model, ended: Sequence[FitState]) -> list[int]:
    """Return the place of the best start on a sample, and of others that may be better on all rows.

    These have ended at another optimum, which is hardly worse on the sample.
    """
    if len(ended) == 1:
        return [0]
    objectives = [state.history[-1] for state in ended]
    chosen: list[int] = []
    for k in np.argsort(-np.array(objectives), kind="stable").tolist():
        criterion = model.get_convergence_criterion(ended[k])
        reachable = find_reachable_objective(criterion, ended[k].history)
        is_close = max(objectives) - objectives[k] <= _SAMPLE_DIFFERENCE
        is_other = not chosen or reachable < objectives[chosen[-1]]
        if is_close and is_other and len(chosen) < _MOST_STARTS:
            chosen.append(k)
    return chosen


def _run_information_pass(
    model: Any, state: FitState, rows: RowSource, executor: Executor, seed: int, progress: Progress
) -> FitState:
    working = model.begin_information_pass(state) if isinstance(model, HasInformationPass) else None
    if working is None:
        return state
    statistics = _collect_information(
        model, state, working, rows, executor, seed, "errors", progress
    )
    with limit_blas_threads():
        finished: FitState = model.finish_information_pass(state, statistics)
    finished = _clear_unidentified_errors(model, finished)
    return replace(finished, params=convert_to_c_order(finished.params))


def _collect_information(
    model: Any,
    state: FitState,
    working: Arrays,
    rows: RowSource,
    executor: Executor,
    seed: int,
    label: str,
    progress: Progress,
) -> Statistics:
    inputs = PassInputs(state.params, working, RowRandom(seed))
    summarize = partial(_summarize_information, model, inputs)
    work = _estimate_work(model, [inputs], rows)
    statistics: Statistics
    statistics = collect_statistics(summarize, rows, executor, label, progress=progress, work=work)
    return statistics


def _clear_unidentified_errors(model: Model, state: FitState) -> FitState:
    """Replace standard errors by NaN, and warn, if the data cannot determine all parameters.

    The information is singular then, but rounding and the tolerance of the fit may hide it.
    """
    counts = model.count_parameters(state)
    if counts is None or counts[0] <= counts[1]:
        return state
    n_parameters, n_determined = counts
    text = (
        f"not identified: the fit has {n_parameters:,} free parameters, but these features can "
        f"determine at most {n_determined:,} of them, so other parameters fit equally well; no "
        "standard errors. Use more features, or fewer parameters, for example fewer {components}"
    )
    arrays = {name: values for name, (_, values) in get_named_arrays(state.params).items()}
    errors = {
        name: np.full_like(values, np.nan)
        for name, values in arrays.items()
        if name.endswith("_error")
    }
    if "probabilities_interval" in arrays:
        interval = np.zeros_like(arrays["probabilities_interval"])
        interval[1] = 1.0  # any probability
        errors["probabilities_interval"] = interval
    params = replace_arrays(state.params, errors)
    return replace(state, params=params, warnings=(*state.warnings, FitWarning(text)))


def _summarize_information(model: Any, inputs: PassInputs, block: BinaryBlock) -> Statistics:
    part: Statistics = model.summarize_information(inputs.params, inputs.working, block, inputs.rng)
    return part


def _prepare_params(model: Model, state: FitState, executor: Executor, seed: int) -> FitState:
    """Prepare the parameters of a finished fit for use."""
    if not isinstance(model, CanPrepare):
        return state
    rng = np.random.default_rng([seed, state.iteration])
    with limit_blas_threads():
        prepared = convert_to_c_order(model.prepare(state.params, rng, executor.map))
    return replace(state, params=prepared)
