"""Trials of binary ICA on rows drawn from a known mixing: all models, or BLICA part by part.

Results are measured by the mean cosine similarity (MCS) between the fitted and the true mixing
(A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022, section 6). Times are CPU seconds of the thread
that runs the trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from flows.experiments.binary_ica_trials import SimulatedRows, pack_rows_in_memory
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import (
    collect_first_statistics,
    collect_pass_statistics,
    fit_model,
    initialize_fit,
)
from pipeline.models.base import Model
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.fastica import FastICA
from pipeline.models.binary_ica.likelihood import BinaryICALikelihood
from pipeline.models.binary_ica.linear_ivae import LinearIVAE
from pipeline.models.binary_ica.moment_matching.matching import calibrate_variances, fill_gaps
from pipeline.models.binary_ica.moment_matching.optimiser import maximise_from_seeds
from pipeline.models.binary_ica.moment_matching.segments import estimate_segments
from pipeline.models.binary_ica.moment_matching.selection import (
    RIDGE_GRID,
    choose_setting,
    split_into_folds,
)
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.statistics.counts import PairCounts

TrialValues = dict[str, float | bool | None]


class ICAMethod(NamedTuple):
    """A model to compare.

    Attributes
    ----------
    model
        Makes the model for a number of components.
    most
        Largest `features`, `segments` and `components` that can be fitted in minutes; dimensions
        that are not listed do not matter.
    """

    model: Callable[[int], Model]
    size_limits: Mapping[str, int] = MappingProxyType({})

    def can_fit(self, sizes: Mapping[str, int]) -> bool:
        """Return whether data of this shape can be fitted in minutes."""
        return all(sizes[name] <= most for name, most in self.size_limits.items())


METHODS = {
    "BLICA": ICAMethod(BLICA),
    "likelihood": ICAMethod(BinaryICALikelihood, MappingProxyType({"features": 20})),
    "linear iVAE": ICAMethod(LinearIVAE),
    "FastICA": ICAMethod(FastICA),
}
"""All methods, keyed by their names in tables and figures."""


def run_sample_trial(drawn: SimulatedRows) -> TrialValues:
    """Fit all models, each with its own settings.

    Parameters
    ----------
    drawn
        The data. The true number of components is fitted.

    Returns
    -------
    dict
        For each name in `METHODS`: the MCS under the name itself, `NAME_seconds`, and
        `NAME_converged` (None if the model does not report it). All are None if the data are too
        large for the method.
    """
    _warm_up()
    return _run_methods(drawn, METHODS)


def _run_methods(drawn: SimulatedRows, methods: Mapping[str, ICAMethod]) -> TrialValues:
    n_features, n_components = drawn.mixing.shape
    n_segments, found = drawn.rows.n_segments, TrialValues()
    sizes = {"features": n_features, "segments": n_segments, "components": n_components}
    for name, method in methods.items():
        made = _time_fit(drawn, method.model(n_components)) if method.can_fit(sizes) else [None] * 3
        found |= zip((name, f"{name}_seconds", f"{name}_converged"), made, strict=True)
    return found


def _time_fit(drawn: SimulatedRows, model: Model) -> tuple[float, float, bool | None]:
    """Return the MCS of a fit, its CPU seconds and whether it converged."""
    seconds = dict[str, float]()
    with _measure_seconds(seconds, "fit"):
        done = fit_model(model, drawn.rows, SerialExecutor(), drawn.seed)
    converged = done.diagnostics.get("optimiser_converged")
    mcs = mean_cosine_similarity(done.params.mixing, drawn.mixing)
    return mcs, seconds["fit"], None if converged is None else bool(converged)


def run_timed_trial(drawn: SimulatedRows) -> TrialValues:
    """Fit all models as `run_sample_trial` does, and time the parts of BLICA's fit.

    Run nothing else at the same time: caches and memory bandwidth are shared.

    Parameters
    ----------
    drawn
        The data. The true number of components is fitted.

    Returns
    -------
    dict
        As in `run_sample_trial`. The seconds of BLICA are the sum of its parts: `counts` (pair
        counts), `correlations` (of all rows and of the halves), `selection` (of the ridge),
        `starts` (maximisation from all starts) and `refinement` (of gaps and variances).
        `iterations` counts those of all starts.
    """
    _warm_up()
    others = {name: method for name, method in METHODS.items() if name != "BLICA"}
    return {**_time_blica_parts(drawn), **_run_methods(drawn, others)}


@cache
def _warm_up() -> None:
    """Import and compile everything that fits need, once per process."""
    X = np.random.default_rng(0).integers(2, size=(600, 3), dtype=np.uint8)
    _run_methods(SimulatedRows(np.eye(3)[:, :2], pack_rows_in_memory(X, 3), 0), METHODS)


def _time_blica_parts(drawn: SimulatedRows) -> TrialValues:
    """Run the parts of a BLICA fit one by one."""
    n_components, executor = drawn.mixing.shape[1], SerialExecutor()
    model, seconds = BLICA(n_components), dict[str, float]()
    with _measure_seconds(seconds, "counts"):
        state = initialize_fit(
            model, collect_first_statistics(model, drawn.rows, executor, drawn.seed), drawn.seed
        )
        counts = collect_pass_statistics(model, state, drawn.rows, executor, drawn.seed)
    assert isinstance(counts, PairCounts)
    seeds = {name: values.tolist() for name, values in state.auxiliary.items()}
    with _measure_seconds(seconds, "correlations"):
        n_groups = model.count_groups(counts.n_features)
        every = np.ones((drawn.rows.n_segments, n_groups), np.int64)
        segments = estimate_segments(
            counts.sum_weighted_groups(n_groups, every), model.min_rows, executor.map
        )
        folds = split_into_folds(counts, n_groups, model.min_rows, executor.map)
    with _measure_seconds(seconds, "selection"):
        choice = choose_setting(segments, folds, [n_components], RIDGE_GRID, executor.map)
    with _measure_seconds(seconds, "starts"):
        r = choice.candidate.regularization
        climb = partial(maximise_from_seeds, segments.moments(r), n_components, seeds["starts"])
        optima = climb(executor.map, also=[choice.solution])
    with _measure_seconds(seconds, "refinement"):
        best, segments, _ = fill_gaps(optima[0], segments, r, executor.map)
        found = calibrate_variances(best.solution, segments, r, executor.map)
    return {
        "BLICA": mean_cosine_similarity(found.mixing, drawn.mixing),
        "BLICA_seconds": sum(seconds.values()),
        "BLICA_converged": bool(best.converged),
        **seconds,
        "iterations": sum(optimum.iterations for optimum in optima),
    }


@contextmanager
def _measure_seconds(seconds: dict[str, float], part: str) -> Iterator[None]:
    begun = time.thread_time()
    yield
    seconds[part] = time.thread_time() - begun
