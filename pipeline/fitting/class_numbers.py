"""Compare the numbers of classes that a mixture was fitted with.

The table of a fit with `max_components` has a line per number K of components:

======================  ========================================================================
entry                   meaning
======================  ========================================================================
log_likelihood, …       see `pipeline.statistics.information_criteria`
smallest_class          least class weight
starts, starts_at_best  number of starts that were not stopped early, and of those at the best
blrt_statistic          2 (log L_K − log L_{K−1})
blrt_p                  its p-value
======================  ========================================================================

The bootstrap likelihood-ratio test draws datasets from the fit with K − 1 classes, and fits both
models to each (G. J. McLachlan, Applied Statistics 36, 1987). With B draws, of which r have at
least the statistic of the data, p = (r + 1) / (B + 1). Values are missing where they are in the
data, and groups have their sizes there. A refit with K − 1 classes starts from the parameters that
the rows were drawn from, one with K classes from these with one class split in two. Every draw has
random numbers of its own, so results do not depend on where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import scipy

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.executors.base import Executor, MapFunction, SerialExecutor
from pipeline.executors.central_work import (
    NO_KEPT_RESULTS,
    KeptResults,
    label_map,
    open_central_work,
)
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.fitting.loop import fit_model
from pipeline.fitting.sample_start import BlockSample, make_block_source
from pipeline.models.capabilities import CanBootstrap, HasContinuousFeatures
from pipeline.models.mixture import Mixture
from pipeline.models.state import FitState
from pipeline.numerics.bits import kernels
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.information_criteria import compute_criteria, describe_entropy
from pipeline.statistics.sums import Sums

_MIN_SPLITS = 3  # starts of a refit with one more class
_REFIT_TOLERANCE = 0.05  # of the log-likelihood of all rows, nats
_STREAM = 0x626C7274  # of random numbers


def add_class_numbers(
    model: Any,
    state: FitState,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
    kept_results: KeptResults = NO_KEPT_RESULTS,
) -> FitState:
    """Add the table of numbers of components that a finished fit has tried, if it has any."""
    if not isinstance(model, Mixture) or model.n_compared is None:
        return state
    by_number = model.get_compared_params(state)
    if len(by_number) < model.n_compared:
        return state.with_warning(
            "a fit that starts from an earlier one has its number of components, so "
            "{max_components} and {blrt} have no effect"
        )
    by_number[len(state.params.weights)] = state.params
    summarize = partial(_summarize_block, model, by_number)
    sums = collect_statistics(summarize, rows, executor, "numbers of classes", progress=progress)
    table = _make_table(model, state, by_number, sums)
    if isinstance(model, CanBootstrap) and model.blrt:
        design = _collect_design(rows, executor, progress)
        with open_central_work(executor.map, progress, kept_results, "blrt") as map_items:
            tests = _run_tests(model, state, by_number, table, rows, design, seed, map_items)
        table = [{**line, **test} for line, test in zip(table, tests, strict=True)]
    diagnostics = {**state.diagnostics, "class_numbers": table}
    return _warn_about_local_maxima(replace(state, diagnostics=diagnostics), table)


def _summarize_block(model: Any, by_number: Mapping[int, Any], block: BinaryBlock) -> Sums:
    """Sum the log-likelihood, the posterior and its entropy under each fit."""
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    values = dict[str, Any]()
    for n, params in by_number.items():
        posterior, nats = model.compute_posterior(params, block)
        entropy = weights @ scipy.special.entr(posterior).sum(axis=1)
        values |= {f"nats_{n}": np.asarray(weights @ nats), f"mass_{n}": weights @ posterior}
        values[f"entropy_{n}"] = np.asarray(entropy)
    return Sums.from_block(block, 0.0, values)


def _make_table(
    model: Mixture, state: FitState, by_number: Mapping[int, Any], sums: Sums
) -> list[dict[str, Any]]:
    """Return a line per number; criteria need rows without sampling weights."""
    has_sampling_weights = bool(state.auxiliary.get("has_sampling_weights", False))
    table, values = list[dict[str, Any]](), sums.values
    starts = model.get_compared_starts(state)
    for (n, params), own_starts in zip(by_number.items(), starts, strict=True):
        likelihood = compute_criteria(
            float(values[f"nats_{n}"]),
            model.count_free_parameters(replace(state, params=params)),
            sums.weight,
            has_sampling_weights=has_sampling_weights,
        )
        n_starts, n_at_best = own_starts or (1, 1)
        table.append(
            {
                "components": n,
                "is_chosen": n == len(state.params.weights),
                **likelihood,
                **describe_entropy(float(values[f"entropy_{n}"]), values[f"mass_{n}"]),
                "smallest_class": float(params.weights.min()),
                "starts": n_starts,
                "starts_at_best": n_at_best,
            }
        )
    return table


def _warn_about_local_maxima(state: FitState, table: Sequence[Mapping[str, Any]]) -> FitState:
    """Warn if a class more made the rows less likely."""
    nats = [line["log_likelihood"] for line in table]
    worse = [n for n in range(1, len(nats)) if nats[n] < nats[n - 1] - _REFIT_TOLERANCE]
    if not worse:
        return state
    numbers = ", ".join(f"{n + 1}" for n in worse)
    return state.with_warning(
        f"the fit with {numbers} components is less likely than the one with one fewer, so a "
        "better fit exists; set more {starts}"
    )


def _run_tests(
    model: Any,
    state: FitState,
    by_number: Mapping[int, Any],
    table: Sequence[Mapping[str, Any]],
    rows: RowSource,
    design: tuple[BinaryBlock, ...],
    seed: int,
    map_items: MapFunction,
) -> list[dict[str, Any]]:
    """Test each number of components against one fewer; there is no test of one."""
    auxiliary = {n: a for n, a in state.auxiliary.items() if not n.startswith("tried_")}
    plain = FitState(None, auxiliary=auxiliary)
    bootstrap = _Bootstrap(model, plain, by_number, rows, design, seed)
    keys = [*product([*by_number][1:], range(model.blrt))]
    statistics = np.array([*label_map(map_items, "bootstrap", len(keys))(bootstrap, keys)])
    tests: list[dict[str, Any]] = [{"blrt_statistic": None, "blrt_p": None}]
    for n, drawn in enumerate(statistics.reshape(-1, model.blrt), start=1):
        observed = 2 * (table[n]["log_likelihood"] - table[n - 1]["log_likelihood"])
        n_as_large = int((drawn >= observed).sum())
        tests.append({"blrt_statistic": observed, "blrt_p": (n_as_large + 1) / (model.blrt + 1)})
    return tests


def _collect_design(
    rows: RowSource, executor: Executor, progress: Progress
) -> tuple[BinaryBlock, ...]:
    """Return which values of the rows are missing, and their groups, as a block per group.

    A row with a frequency stands there as often as it counts.
    """
    collect = partial(BlockSample.from_block, share=1.0, rng=RowRandom(0))
    sample = collect_statistics(collect, rows, executor, "missing values", progress=progress)
    return tuple(map(_repeat_rows, sample.blocks))


def _repeat_rows(block: BinaryBlock) -> BinaryBlock:
    if block.weights is not None:
        repeated = np.repeat(np.arange(block.n_samples), block.weights)
        block = replace(block.take_rows(repeated), weights=None)
    plain = replace(block, row_numbers=range(block.n_samples), columns={})
    if block.observed_words is None:  # nothing but the number of rows matters
        return replace(plain, words=plain.words[:, :0])
    return plain


@dataclass(frozen=True)
class _Bootstrap:
    """Draws rows from the fit with one component fewer, and fits both models to them.

    Attributes
    ----------
    model, state, by_number
        The model, a state with what refits need to know about the rows, and the parameters of all
        numbers of components.
    rows
        The rows, for their numbers of planes and groups.
    design
        The missing values of each group.
    seed
        Seed of the fit.
    """

    model: Any
    state: FitState
    by_number: Mapping[int, Any]
    rows: RowSource
    design: tuple[BinaryBlock, ...]
    seed: int

    def __call__(self, key: tuple[int, int]) -> float:
        """Return the likelihood-ratio statistic of a number of components and a draw."""
        n, draw = key
        rng = np.random.default_rng([self.seed, _STREAM, n, draw])
        smaller = self.by_number[n - 1]
        blocks = [_draw_values(self.model, smaller, block, rng) for block in self.design]
        n_splits = max(n - 1, _MIN_SPLITS)
        starts = [self.model.split_component(smaller, k % (n - 1), rng) for k in range(n_splits)]
        before, after = self._refit(n - 1, [smaller], blocks), self._refit(n, starts, blocks)
        return 2 * (after - before)

    def _refit(self, n: int, starts: Sequence[Any], blocks: Sequence[BinaryBlock]) -> float:
        """Return the log-likelihood of a refit with n components."""
        tol = max(self.model.tol, _REFIT_TOLERANCE / sum(block.n_samples for block in blocks))
        model = self.model.make_refit_model(n, tol)
        state = model.warm_start(self.state, starts[0])
        if len(starts) > 1:
            state = model.begin_short_runs(state, starts)
        rows = make_block_source(blocks, self.rows)
        fitted = fit_model(model, rows, SerialExecutor(), self.seed, state=state)
        rng = RowRandom(self.seed)
        return float(
            sum(model.log_likelihood(fitted.params, block, rng).nats.sum() for block in blocks)
        )


def _draw_values(
    model: Any, params: Any, block: BinaryBlock, rng: np.random.Generator
) -> BinaryBlock:
    """Draw the values of the rows of a group."""
    segments = np.full(block.n_samples, block.segment)
    numbers = None
    if block.numbers is not None and isinstance(model, HasContinuousFeatures):
        bits, drawn = model.sample_numbers(params, block.n_samples, rng, segments)
        numbers = np.where(np.isnan(block.numbers), np.nan, drawn.T).astype(np.float32)
    else:
        bits = model.sample(params, block.n_samples, rng, segments)
    words = kernels.pack_rows(bits)
    if block.observed_words is not None:
        words &= block.observed_words
    return replace(block, words=words, numbers=numbers)
