"""The only training loop: passes over all rows, until the model's last stage has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pipeline.data.blocks import BinaryBlock, CanCountOnes, RowSource
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import Executor, MapFunction, limit_blas_threads
from pipeline.executors.central_work import NO_KEPT_RESULTS, KeptResults, open_central_work
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.fit_pass import (
    PassRun,
    collect_information,
    collect_pass_statistics,
    end_fit,
    estimate_counting,
    fit_pass,
    format_pass_label,
)
from pipeline.fitting.independence import compute_independent_log_likelihood
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
from pipeline.fitting.sample_start import start_on_sample
from pipeline.learning.convergence import is_stage_over
from pipeline.models.base import Model
from pipeline.models.capabilities import CanPrepare, CanWarmStart, HasInformationPass
from pipeline.models.state import FitState
from pipeline.params import convert_to_c_order, get_named_arrays, replace_arrays
from pipeline.passes.map_reduce import NO_KEPT_SUMS, KeptSums, collect_statistics
from pipeline.passes.row_ranges import RangeResults
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.linkage import Linkage
from pipeline.statistics.sums import Statistics


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


def initialize_fit(
    model: Model, first: Statistics, seed: int, map_items: MapFunction = map
) -> FitState:
    """Check the seed and the data, and create the model's initial state."""
    check_seed(seed)
    rng = np.random.default_rng(seed)
    with limit_blas_threads():
        return model.find_start(model.initialize(first, rng), first, map_items, rng)


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
    kept_results: KeptResults = NO_KEPT_RESULTS,
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
    kept_results
        As for `fit_model`.

    Raises
    ------
    FitError
        If the seed is out of range, or the model cannot use the data.
    """
    with open_central_work(executor.map, progress, kept_results, "start") as map_items:
        state = initialize_fit(model, first, seed, map_items)
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
        state = state_from_results(model, state, results, executor, seed, progress, kept_results)
    run = PassRun(rows, executor, seed, progress)
    return start_on_sample(model, state.with_warnings(unlinked), run)


def check_seed(seed: int) -> None:
    """Refuse a seed that the random generators cannot use."""
    if not 0 <= seed < 2**63:
        raise FitError(f"{{seed}} must be 0 to 2**63 - 1, but is {seed}.", parameter="seed")


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
    kept_results: KeptResults = NO_KEPT_RESULTS,
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
    kept_results
        Results of central work of an interrupted fit, and where to keep new ones.

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
        state = end_fit(model, state, convergence, state.history)  # it only needed its pair work
    has_fixed_statistics = model.counts_key(rows.n_features) is not None
    while not state.done:
        if statistics is None:
            statistics = collect_pass_statistics(model, state, rows, executor, seed, progress)
        elif has_fixed_statistics and state.history:
            progress(format_pass_label(model, state), 1, 1, statistics.n_rows)
        run = (rows, executor, seed, statistics, progress, kept_results)
        state = fit_pass(model, state, *run)
        statistics = statistics if has_fixed_statistics else None
        checkpoint(state)
    state = _run_information_pass(model, state, PassRun(rows, executor, seed, progress))
    with open_central_work(executor.map, progress, kept_results, "prepare") as map_items:
        return _prepare_params(model, state, map_items, seed)


def _run_information_pass(model: Any, state: FitState, run: PassRun) -> FitState:
    working = model.begin_information_pass(state) if isinstance(model, HasInformationPass) else None
    if working is None:
        return state
    statistics = collect_information(model, state, working, run, "errors")
    with limit_blas_threads():
        finished: FitState = model.finish_information_pass(state, statistics)
    finished = _clear_unidentified_errors(model, finished)
    return replace(finished, params=convert_to_c_order(finished.params))


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


def _prepare_params(model: Model, state: FitState, map_items: MapFunction, seed: int) -> FitState:
    """Prepare the parameters of a finished fit for use."""
    if not isinstance(model, CanPrepare):
        return state
    rng = np.random.default_rng([seed, state.iteration])
    with limit_blas_threads():
        prepared = convert_to_c_order(model.prepare(state.params, rng, map_items))
    return replace(state, params=prepared)
