"""Trials of binary ICA: exact matching of infinitely many rows, and fits of simulated rows.

A trial returns the mean cosine similarity (MCS) between the fitted and the true mixing, as
Hyttinen, Barin-Pacela and Hyvärinen do in "Binary Independent Component Analysis: A
Non-stationarity-based Approach" (UAI 2022, section 6). Times are CPU seconds of the thread that
runs the trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.experiments.base import pack_rows_in_memory
from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
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
from pipeline.models.binary_ica.gaussian_likelihood import (
    MatchSolution,
    SegmentMoments,
    draw_start,
    maximise,
    maximise_from_seeds,
)
from pipeline.models.binary_ica.likelihood import BinaryICALikelihood
from pipeline.models.binary_ica.linear_ivae import LinearIVAE
from pipeline.models.binary_ica.moment_matching import (
    calibrate_variances,
    count_surplus_equations,
    fill_gaps,
)
from pipeline.models.binary_ica.probit_ica import PROBIT_SCALE, SegmentModel
from pipeline.models.binary_ica.segment_correlations import estimate_segments
from pipeline.models.binary_ica.selection import RIDGE_GRID, choose_setting, split_into_folds
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.pair_tables import tetrachoric
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.statistics.counts import PairCounts
from storage.examples import NonstationaryTruth

Array = NDArray[np.float64]

EXACT_RESIDUAL = 1e-20
"""A sum of squared differences below this is due to rounding errors alone."""
_START_TOLERANCE = 1e-5
_ROUNDING = 1e-15
_MAX_EVALUATIONS = 200
_N_EXACT_STARTS = 12


class ExactMatch(NamedTuple):
    """The best match, and its sum of squared differences over pairs i < j and segments."""

    solution: MatchSolution
    residual: float


def match_exactly(correlation: Array, n_components: int, seeds: Iterable[int]) -> ExactMatch:
    """Find a mixing and source variances that reproduce the correlations.

    From each start, maximise the likelihood until it is nearly flat, then minimise the squared
    differences by a trust-region Gauss-Newton method.

    Parameters
    ----------
    correlation
        Correlations of each segment, unit diagonal, (n_segments, n_features, n_features).
    n_components
        Number of components, from 1 to n_features.
    seeds
        One seed per start; stops at the first start with a residual of at most `EXACT_RESIDUAL`.

    Returns
    -------
    ExactMatch
        The start with the smallest residual. If the model is not identifiable, it is one of many
        exact solutions.
    """
    n_segments, n_features, _ = correlation.shape
    if not 1 <= n_components <= n_features:
        raise FitError(
            f"{{components}} is {n_components}, but must lie between 1 and the number of features "
            f"({n_features})."
        )
    flat = np.zeros(n_segments)
    counts = np.ones((n_segments, n_features), bool)
    moments = SegmentMoments(correlation, counts, flat + 1 / n_segments, flat, flat)
    matches: list[ExactMatch] = []
    for seed in seeds:
        start = draw_start(moments, n_components, seed)
        near = maximise(moments, start, _START_TOLERANCE).solution
        matches.append(_polish(correlation, near))
        if matches[-1].residual <= EXACT_RESIDUAL:
            break
    return min(matches, key=lambda match: match.residual)


def _polish(correlation: Array, start: MatchSolution) -> ExactMatch:
    n_components = start.mixing.shape[1]
    # A step that is too long overflows and is undone.
    with np.errstate(over="ignore", invalid="ignore"):
        result = scipy.optimize.least_squares(
            residuals,
            np.concatenate([start.mixing.ravel(), start.log_variances.ravel()]),
            jacobian,
            args=(correlation, n_components),
            x_scale="jac",
            ftol=_ROUNDING,
            xtol=_ROUNDING,
            gtol=_ROUNDING,
            max_nfev=_MAX_EVALUATIONS,
        )
    mixing, log_variances = _unpack_unknowns(result.x, correlation, n_components)
    precisions = 0.5 * np.log1p(np.exp(log_variances) @ mixing.T**2)
    return ExactMatch(MatchSolution(mixing, log_variances, precisions), 2 * float(result.cost))


def residuals(flat: Array, correlation: Array, n_components: int) -> Array:
    """Subtract given correlations, (n_segments, n_features, n_features), from the model's.

    `flat` has the mixing, then the log variances, row by row. The result has the differences for
    the pairs i < j of each segment, (n_segments · n_pairs,).
    """
    i, j = np.triu_indices(correlation.shape[1], 1)
    _, _, _, directions = _signal_terms(flat, correlation, n_components)
    implied = (directions[:, i] * directions[:, j]).sum(axis=2)
    differences: Array = (implied - correlation[:, i, j]).ravel()
    return differences


def jacobian(flat: Array, correlation: Array, n_components: int) -> Array:
    """Differentiate `residuals` by the unknowns, (n_segments · n_pairs, n_unknowns)."""
    n_segments, n_features, _ = correlation.shape
    i, j = np.triu_indices(n_features, 1)
    pairs, segments = np.arange(len(i)), np.arange(n_segments)
    roots, signal, norms, directions = _signal_terms(flat, correlation, n_components)
    left, right = directions[:, i], directions[:, j]
    implied = (left * right).sum(axis=2, keepdims=True)
    by_left = (right - implied * left) / norms[:, i]
    by_right = (left - implied * right) / norms[:, j]
    by_mixing = np.zeros((n_segments, len(i), n_features, n_components))
    by_mixing[:, pairs, i] = by_left * roots
    by_mixing[:, pairs, j] = by_right * roots
    by_variances = np.zeros((n_segments, len(i), n_segments, n_components))
    by_variances[segments, :, segments] = 0.5 * (by_left * signal[:, i] + by_right * signal[:, j])
    n_rows = n_segments * len(i)
    return np.hstack([by_mixing.reshape(n_rows, -1), by_variances.reshape(n_rows, -1)])


def _unpack_unknowns(flat: Array, correlation: Array, n_components: int) -> tuple[Array, Array]:
    n_segments, n_features, _ = correlation.shape
    mixing, log_variances = np.split(flat, [n_features * n_components])
    return (
        mixing.reshape(n_features, n_components),
        log_variances.reshape(n_segments, n_components),
    )


def _signal_terms(
    flat: Array, correlation: Array, n_components: int
) -> tuple[Array, Array, Array, Array]:
    """Return S^½, L, √(1 + ‖L_i‖²) and L_i / √(1 + ‖L_i‖²) by segment, feature and component."""
    mixing, log_variances = _unpack_unknowns(flat, correlation, n_components)
    roots = np.exp(0.5 * log_variances)[:, None, :]
    signal = mixing * roots
    norms = np.sqrt(1 + (signal**2).sum(axis=2, keepdims=True))
    return roots, signal, norms, signal / norms


class SimulatedRows(NamedTuple):
    """Rows drawn from a known mixing, (n_features, n_components), and the seed of the fits."""

    mixing: Array
    rows: RowSource
    seed: int


def population_correlations(truth: NonstationaryTruth) -> Array:
    """Compute the tetrachoric correlations of infinitely many rows, by exact pair probabilities.

    The result has shape (n_segments, n_features, n_features).
    """
    weights = PROBIT_SCALE * truth.mixing
    sources = zip(truth.source_means, truth.source_variances, strict=True)
    return np.array([_population_correlation(weights, *moments) for moments in sources])


def _population_correlation(weights: Array, means: Array, variances: Array) -> Array:
    deviations = np.sqrt(1 + weights**2 @ variances)
    n_levels = np.full(len(weights), 2)
    model = SegmentModel(weights, -(weights @ means) / deviations, means, variances, n_levels)
    h = -model.thresholds
    joint = bivariate_normal_cdf_array(h[:, None], h, np.clip(model.correlation(), -1, 1))
    ones = scipy.special.ndtr(h)
    correlation = tetrachoric(1.0, ones[:, None], ones, joint).correlation
    np.fill_diagonal(correlation, 1.0)
    return correlation


def run_exact_trial(truth: NonstationaryTruth) -> dict[str, float]:
    """Fit the correlations of infinitely many rows.

    Returns `surplus` (equations minus unknowns), `distance` (1 − MCS) and the `residual` of
    `match_exactly`.
    """
    n_features, n_components = truth.mixing.shape
    correlation = population_correlations(truth)
    match = match_exactly(correlation, n_components, range(_N_EXACT_STARTS))
    similarity = mean_cosine_similarity(match.solution.mixing, truth.mixing)
    return {
        "surplus": count_surplus_equations(n_features, n_components, len(correlation)),
        "distance": 1 - similarity,
        "residual": match.residual,
    }


TrialValues = dict[str, float | bool | None]


class ICAMethod(NamedTuple):
    """A model to compare, made for a number of components.

    `size_limits` are the largest `features`, `segments` and `components` that can be fitted in
    minutes; dimensions that are not listed do not matter.
    """

    model: Callable[[int], Model]
    size_limits: Mapping[str, int] = MappingProxyType({})

    def can_fit(self, sizes: Mapping[str, int]) -> bool:
        """Return whether data of this shape can be fitted in minutes."""
        return all(sizes[name] <= limit for name, limit in self.size_limits.items())


METHODS = {
    "BLICA": ICAMethod(BLICA),
    "likelihood": ICAMethod(BinaryICALikelihood, MappingProxyType({"features": 20})),
    "linear iVAE": ICAMethod(LinearIVAE),
    "FastICA": ICAMethod(FastICA),
}
"""All methods, keyed by their names in tables and figures."""


def run_sample_trial(data: SimulatedRows) -> TrialValues:
    """Fit all models, each with its own settings and the true number of components.

    Returns
    -------
    dict
        For each name in `METHODS`: the MCS under the name itself, `NAME_seconds`, and
        `NAME_converged` (None if the model does not report it). All are None if the data are too
        large for the method.
    """
    _warm_up()
    return _run_methods(data, METHODS)


def _run_methods(data: SimulatedRows, methods: Mapping[str, ICAMethod]) -> TrialValues:
    n_features, n_components = data.mixing.shape
    n_segments, values = data.rows.n_segments, TrialValues()
    sizes = {"features": n_features, "segments": n_segments, "components": n_components}
    for name, method in methods.items():
        result: tuple[float | bool | None, ...] = (None, None, None)
        if method.can_fit(sizes):
            result = _time_fit(data, method.model(n_components))
        values |= zip((name, f"{name}_seconds", f"{name}_converged"), result, strict=True)
    return values


def _time_fit(data: SimulatedRows, model: Model) -> tuple[float, float, bool | None]:
    """Return the MCS of a fit, its CPU seconds and whether it converged."""
    seconds = dict[str, float]()
    with _measure_seconds(seconds, "fit"):
        state = fit_model(model, data.rows, SerialExecutor(), data.seed)
    converged = state.diagnostics.get("optimiser_converged")
    mcs = mean_cosine_similarity(state.params.mixing, data.mixing)
    return mcs, seconds["fit"], None if converged is None else bool(converged)


def run_timed_trial(data: SimulatedRows) -> TrialValues:
    """Fit all models as `run_sample_trial` does, and time the parts of BLICA's fit.

    Run nothing else at the same time: caches and memory bandwidth are shared.

    Returns
    -------
    dict
        As in `run_sample_trial`. The seconds of BLICA are the sum of its parts: `counts` (pair
        counts), `correlations` (of all rows and of the halves), `selection` (of the ridge),
        `starts` (maximisation from all starts) and `refinement` (of gaps and variances).
        `iterations` are summed over all starts.
    """
    _warm_up()
    others = {name: method for name, method in METHODS.items() if name != "BLICA"}
    return {**_time_blica_parts(data), **_run_methods(data, others)}


@cache
def _warm_up() -> None:
    """Import and compile everything that fits need, once per process."""
    X = np.random.default_rng(0).integers(2, size=(600, 3), dtype=np.uint8)
    _run_methods(SimulatedRows(np.eye(3)[:, :2], pack_rows_in_memory(X, 3), 0), METHODS)


def _time_blica_parts(data: SimulatedRows) -> TrialValues:
    n_components, executor = data.mixing.shape[1], SerialExecutor()
    model, seconds = BLICA(n_components), dict[str, float]()
    with _measure_seconds(seconds, "counts"):
        state = initialize_fit(
            model, collect_first_statistics(model, data.rows, executor, data.seed), data.seed
        )
        counts = collect_pass_statistics(model, state, data.rows, executor, data.seed)
    assert isinstance(counts, PairCounts)
    seeds = {name: values.tolist() for name, values in state.auxiliary.items()}
    with _measure_seconds(seconds, "correlations"):
        n_groups = model.count_groups(counts.n_features)
        weights = np.ones((data.rows.n_segments, n_groups), np.int64)
        segments = estimate_segments(
            counts.sum_weighted_groups(n_groups, weights), model.min_rows, executor.map
        )
        folds = split_into_folds(counts, n_groups, model.min_rows, executor.map)
    with _measure_seconds(seconds, "selection"):
        choice = choose_setting(segments, folds, [n_components], RIDGE_GRID, executor.map)
    with _measure_seconds(seconds, "starts"):
        r = choice.candidate.regularization
        climb = partial(maximise_from_seeds, segments.moments(r), n_components, seeds["starts"])
        optima = climb(executor.map, extra_starts=[choice.solution])
    with _measure_seconds(seconds, "refinement"):
        best, segments, _ = fill_gaps(optima[0], segments, r, executor.map)
        solution = calibrate_variances(best.solution, segments, r, executor.map)
    return {
        "BLICA": mean_cosine_similarity(solution.mixing, data.mixing),
        "BLICA_seconds": sum(seconds.values()),
        "BLICA_converged": bool(best.converged),
        **seconds,
        "iterations": sum(optimum.iterations for optimum in optima),
    }


@contextmanager
def _measure_seconds(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.thread_time()
    yield
    seconds[part] = time.thread_time() - start
