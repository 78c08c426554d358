"""Figures 3 to 5 of Hyttinen et al. on binary ICA: identifiability, sample size and time.

A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain, groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.cli.options import ExecutorOptions
from flows.cli.summary import make_table
from flows.experiments.base import (
    Experiment,
    ExperimentOptions,
    TableRow,
    group_medians,
    pack_rows_in_memory,
    print_results,
    run_trials,
    summarize_run,
    write_results,
)
from flows.experiments.drawing import make_panel, mark_texts, plot_series, write_figure
from flows.report.figures.axes import make_name_axis
from flows.report.figures.colours import COLOURS, GREY, ColourScale
from flows.report.figures.marks import CellMarks, Figure, LineMarks, Mark
from flows.running.flow import run_task
from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.base import Model
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.fastica import MAX_ROWS, FastICA
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
from storage.examples import NonstationaryTruth, draw_nonstationary_rows, draw_nonstationary_truth

Array = NDArray[np.float64]

EXACT_RESIDUAL = 1e-20
"""A sum of squared differences below this is due to rounding errors alone."""
_START_TOLERANCE = 1e-5
_ROUNDING = 1e-15
_MAX_EVALUATIONS = 200
_N_EXACT_STARTS = 12

_MODELS_PER_SEED = 1000


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
_SECONDS = [f"{name}_seconds" for name in METHODS]


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


class ProblemShape(NamedTuple):
    """Shape of a model and of its data."""

    features: int
    components: int
    segments: int
    rows_per_segment: int | None = None

    def columns(self) -> dict[str, int]:
        """Return the known dimensions, keyed by table column."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def draw_truth(shape: ProblemShape, model: int, seed: int) -> NonstationaryTruth:
    """Draw a model; all seeds give different models."""
    return draw_nonstationary_truth(*shape[:3], _MODELS_PER_SEED * seed + model)


def draw_simulated_rows(shape: ProblemShape, model: int, seed: int) -> SimulatedRows:
    """Draw a model and rows from it."""
    assert shape.rows_per_segment is not None
    truth = draw_truth(shape, model, seed)
    batches = draw_nonstationary_rows(
        truth, shape.rows_per_segment, _MODELS_PER_SEED * seed + model
    )
    X = np.concatenate([batch.X for batch in batches])
    return SimulatedRows(truth.mixing, pack_rows_in_memory(X, shape.segments), seed)


def run_shape_trials(
    trial: Callable[[Any], TableRow],
    draw: Callable[[ProblemShape, int, int], Any],
    shapes: Sequence[ProblemShape],
    n_models: int,
    seed: int,
    where: ExecutorOptions,
    one_at_a_time: bool = False,
) -> list[TableRow]:
    """Run trials for models of each shape, optionally one at a time.

    Data are drawn in this process, as late as possible, and sent to the workers.
    """
    cells = [(shape, model) for shape in shapes for model in range(n_models)]
    items = (draw(shape, model, seed) for shape, model in cells)
    results = run_trials(trial, items, len(cells), "trials", where, one_at_a_time)
    return [
        {**shape.columns(), "model": model, **result}
        for (shape, model), result in zip(cells, results, strict=True)
    ]


def column_values(
    trials: Sequence[TableRow], shapes: Sequence[ProblemShape], column: str
) -> NDArray[np.float64]:
    """Return the values of a column, (n_shapes, n_models); NaN where a value is missing."""
    by_shape = [[t for t in trials if shape.columns().items() <= t.items()] for shape in shapes]
    return np.array([[t[column] for t in group] for group in by_shape], np.float64)


def describe_left_out(shapes: Sequence[ProblemShape]) -> str:
    """Describe, for the note of a figure, which models are not fitted to all shapes."""
    limits = {
        name: " or ".join(f"more than {limit} {size}" for size, limit in m.size_limits.items())
        for name, m in METHODS.items()
        if not all(m.can_fit(shape.columns()) for shape in shapes)
    }
    text = "; ".join(f"{name} of {limit}" for name, limit in limits.items())
    return f" Omitted, because a fit would take more than a few minutes: {text}." if text else ""


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the medians and the paths."""
    columns = (name.replace("_", " ").replace(" ", "\n") for name in summary["medians"][0])
    table = make_table(*columns)
    for row in summary["medians"]:
        table.add_row(*map(_format_cell, row.values()))
    print_results(summary, table)


def _format_cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


# Identifiability

_EXACT_FEATURES, _EXACT_SEGMENTS, _EXACT_MODELS = range(2, 11), range(2, 7), 10
_QUICK_EXACT_FEATURES, _QUICK_EXACT_SEGMENTS = (2, 3, 5, 7, 10), (2, 3, 4)
_QUICK_EXACT_MODELS = 3
_EXACT_AXES = ("features", "segments")
_FLOOR = 1e-16


def run_identifiability(options: ExperimentOptions) -> dict[str, Any]:
    """Fit exact correlations for all shapes."""
    features: Sequence[int] = _EXACT_FEATURES
    segments: Sequence[int] = _EXACT_SEGMENTS
    n_models = _EXACT_MODELS
    if options.quick:
        features, segments = _QUICK_EXACT_FEATURES, _QUICK_EXACT_SEGMENTS
        n_models = _QUICK_EXACT_MODELS
    shapes = [ProblemShape(n, n, n_segments) for n_segments in segments for n in features]
    arguments = (run_exact_trial, draw_truth, shapes, n_models, options.seed, options.where)
    trials = run_task("trials", partial(run_shape_trials, *arguments))
    medians = group_medians(trials, (*_EXACT_AXES, "surplus"), ("distance",))
    paths = write_results(options.output, "identifiability", trials, medians)
    _plot_distances(paths, medians, n_models)
    return summarize_run(options.output, "identifiability", medians)


def _plot_distances(paths: tuple[Path, Path], medians: Sequence[TableRow], n_models: int) -> None:
    note = (
        f"Large numbers: 1 − MCS, median of {n_models} models; 0 means equal up to rounding. Small "
        "numbers: pairwise correlations minus mixing coefficients and source variances, as in the "
        "paper; orange if it is negative. This count treats the length of every column "
        "as an unknown, although source variances can compensate for any length. Without lengths, "
        "it is larger by the number of components, and negative only on the lower left of the line."
    )
    title = "Binary ICA of infinitely many rows: distance of the fitted mixing from the true one"
    features, segments = (sorted({row[name] for row in medians}) for name in _EXACT_AXES)
    surplus = np.array(
        [
            [count_surplus_equations(n, n, n_segments) + n for n in features]
            for n_segments in segments
        ]
    )
    places = {
        (float(features.index(row["features"])), float(segments.index(row["segments"]))): row
        for row in medians
    }
    shares = np.full(surplus.shape, np.nan)
    for (x, y), row in places.items():
        size = np.log10(max(row["distance"], _FLOOR))
        shares[int(y), int(x)] = 1 - size / np.log10(_FLOOR)
    scale = ColourScale(1.0, is_signed=False)
    distances = {(x, y + 0.1): _format_distance(row["distance"]) for (x, y), row in places.items()}
    counts = {
        (x, y - 0.25): str(row["surplus"]).replace("-", "−") for (x, y), row in places.items()
    }
    colours = [COLOURS[1] if row["surplus"] < 0 else GREY for row in places.values()]
    borders = _find_border(surplus)
    marks: list[Mark] = [
        CellMarks(shares, scale, ()),
        LineMarks(borders, [COLOURS[1]] * len(borders), 3.0),
        mark_texts(distances),
        replace(mark_texts(counts), colours=colours),
    ]
    axes = (
        make_name_axis([*map(str, features)], "features = components"),
        make_name_axis([*map(str, segments)], "segments"),
    )
    panel = make_panel("", *axes, marks, height=90 + 64 * len(segments))
    ramp = scale.make_ramp()._replace(low="1 − MCS: 0, 10⁻¹⁶ or less", high="1")
    panels = [[replace(panel, ramp=ramp)]]
    write_figure(*paths, panels=panels, title=title, note=note, width=900)


def _find_border(surplus: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Find the sides between cells with a negative and a non-negative surplus of equations."""
    negative = surplus < 0
    y, x = np.nonzero(negative[:, 1:] != negative[:, :-1])
    ends = [np.array([[a + 0.5, b - 0.5], [a + 0.5, b + 0.5]]) for a, b in zip(x, y, strict=True)]
    y, x = np.nonzero(negative[1:] != negative[:-1])
    return ends + [
        np.array([[a - 0.5, b + 0.5], [a + 0.5, b + 0.5]]) for a, b in zip(x, y, strict=True)
    ]


def _format_distance(distance: float) -> str:
    if distance < _FLOOR:
        return "0"
    return f"{distance:.2f}" if distance >= 0.01 else f"{distance:.0e}"


IDENTIFIABILITY = Experiment(
    """Show when binary ICA is identifiable (Hyttinen et al. 2022, figure 3).

Draws models with as many components as features, and fits the exact probabilities of every pair of
features instead of counts. The fits match them up to rounding errors, so the mixing is either
recovered or not identifiable. Writes tables of all models and of medians (CSV and JSON) and a
figure (PNG and SVG) of 1 − MCS, where MCS is the mean cosine similarity between the fitted and the
true mixing.
""",
    """Examples:

    python -m flows.experiments blica-identifiability --quick
    python -m flows.experiments blica-identifiability --workers 2
""",
    ExperimentOptions,
    run_identifiability,
    print_summary,
)


# Sample size

_SAMPLE_SHAPES, _QUICK_SAMPLE_SHAPES = ((6, 2), (10, 10)), ((6, 2), (10, 5))
_SAMPLE_SEGMENTS, _SAMPLE_MODELS, _QUICK_SAMPLE_MODELS = 40, 10, 3
_SAMPLE_ROWS, _QUICK_SAMPLE_ROWS = (50, 100, 200, 500, 1000, 2000, 5000), (100, 500, 2000)


def run_samples(options: ExperimentOptions) -> dict[str, Any]:
    """Fit all models to more and more rows."""
    sizes, n_models = _SAMPLE_SHAPES, _SAMPLE_MODELS
    row_numbers: Sequence[int] = _SAMPLE_ROWS
    if options.quick:
        sizes, row_numbers = _QUICK_SAMPLE_SHAPES, _QUICK_SAMPLE_ROWS
        n_models = _QUICK_SAMPLE_MODELS
    shapes = [ProblemShape(n, k, _SAMPLE_SEGMENTS, rows) for n, k in sizes for rows in row_numbers]
    arguments = (
        *(run_sample_trial, draw_simulated_rows, shapes),
        *(n_models, options.seed, options.where),
    )
    trials = run_task("trials", partial(run_shape_trials, *arguments))
    medians = group_medians(trials, ProblemShape._fields, (*METHODS, *_SECONDS))
    paths = write_results(options.output, "samples", trials, medians)
    _plot_similarity(paths, trials, shapes, n_models)
    return summarize_run(options.output, "samples", medians)


def _plot_similarity(
    paths: tuple[Path, Path],
    trials: Sequence[TableRow],
    shapes: Sequence[ProblemShape],
    n_models: int,
) -> None:
    note = (
        f"{_SAMPLE_SEGMENTS} segments. Lines: medians of {n_models} models; areas: from the "
        "smallest to the largest value. MCS: mean cosine similarity between the fitted and the "
        "true mixing. CPU seconds: of a fit while others may run. FastICA is linear ICA of the "
        f"bits of all segments together, on at most {MAX_ROWS:,} rows.{describe_left_out(shapes)}"
    )
    title = "Accuracy and time of binary ICA over the amount of data"
    groups = [list(group) for _, group in groupby(shapes, lambda shape: shape[:2])]
    columns = [_plot_shapes(group, trials, k == 0) for k, group in enumerate(groups)]
    panels = [*zip(*columns, strict=True)]
    write_figure(*paths, panels=panels, title=title, note=note)


def _plot_shapes(
    shapes: Sequence[ProblemShape], trials: Sequence[TableRow], has_keys: bool
) -> tuple[Figure, Figure, Figure]:
    """Plot the similarity, its distance from 1 on a logarithmic scale, and the time."""
    rows = [shape.rows_per_segment or 0 for shape in shapes]
    title = f"{shapes[0].features} features, {shapes[0].components} components"
    mcs = _list_series(METHODS, rows, trials, shapes)
    distances = {name: (rows, 1 - values) for name, (_, values) in mcs.items()}
    seconds = _list_series(METHODS, rows, trials, shapes, "_seconds")
    names, label = (*METHODS, *_SECONDS), "rows per segment"
    limits = {name: [t[name] for t in trials if t[name] is not None] for name in names}
    all_mcs, all_seconds = (
        np.concatenate([limits[name] for name in group]) for group in (METHODS, _SECONDS)
    )
    return (
        plot_series(
            title, mcs, ("", "MCS"), logs=(True, False), y_values=all_mcs, has_keys=has_keys
        ),
        plot_series(
            "", distances, ("", "1 − MCS"), logs=(True, True), y_values=1 - all_mcs, has_keys=False
        ),
        plot_series(
            "",
            seconds,
            (label, "CPU seconds"),
            logs=(True, True),
            y_values=all_seconds,
            has_keys=False,
        ),
    )


def _list_series(
    names: Iterable[str],
    x: Sequence[int],
    trials: Sequence[TableRow],
    shapes: Sequence[ProblemShape],
    suffix: str = "",
) -> dict[str, Series]:
    """Return x and the values of columns, (n_shapes, n_models), by name."""
    return {name: (x, column_values(trials, shapes, f"{name}{suffix}")) for name in names}


SAMPLES = Experiment(
    """Show how many rows binary ICA needs (Hyttinen et al. 2022, figure 4).

Draws models and data in 40 segments, and fits all models of binary ICA with their own settings and
the true number of components: BLICA, the same model by full likelihood, the linear iVAE and, for
comparison, linear FastICA of all segments together, on at most 50,000 rows. Writes tables of all
trials and of medians (CSV and JSON) and a figure (PNG and SVG) over the rows per segment: MCS, the
mean cosine similarity between the fitted and the true mixing, and the CPU seconds of a fit. Takes
more than an hour of CPU time, or some minutes with `--quick`. Worker processes (`--workers`) share
the work better than threads.
""",
    """Examples:

    python -m flows.experiments blica-samples --quick
    python -m flows.experiments blica-samples --workers 2
""",
    ExperimentOptions,
    run_samples,
    print_summary,
)


# Scaling

_BASE = ProblemShape(features=20, components=10, segments=40, rows_per_segment=1000)
_FEATURES, _SEGMENTS, _COMPONENTS = (5, 10, 20, 50, 100, 200), (10, 20, 40, 80), (2, 5, 10, 20)
_QUICK_FEATURES, _QUICK_SEGMENTS, _QUICK_COMPONENTS = (5, 10, 20), (10, 20, 40), (2, 5, 10)
_SCALING_MODELS, _QUICK_SCALING_MODELS = 5, 1
_POWERS = {"features": 2, "segments": 1, "components": 1}
"""Growth of the cost of one likelihood evaluation."""
_PARTS = ("selection", "starts", "correlations")
Series = tuple[Sequence[int], NDArray[np.float64]]


def run_scaling(options: ExperimentOptions) -> dict[str, Any]:
    """Time the fits of all models to data of many shapes, one fit at a time."""
    sweeps = _make_sweeps(options.quick)
    n_models = _QUICK_SCALING_MODELS if options.quick else _SCALING_MODELS
    shapes = list(dict.fromkeys(chain.from_iterable(sweeps.values())))
    arguments = (
        *(run_timed_trial, draw_simulated_rows, shapes),
        *(n_models, options.seed, options.where),
    )
    trials = run_task("trials", partial(run_shape_trials, *arguments, one_at_a_time=True))
    medians = group_medians(trials, ProblemShape._fields[:3], (*METHODS, *_SECONDS, *_PARTS))
    paths = write_results(options.output, "scaling", trials, medians)
    _plot_sweeps(paths, trials, sweeps, n_models)
    return summarize_run(options.output, "scaling", medians)


def _make_sweeps(quick: bool) -> dict[str, list[ProblemShape]]:
    """List the shapes of each sweep. Some shapes are part of several sweeps."""
    features = _QUICK_FEATURES if quick else _FEATURES
    segments = _QUICK_SEGMENTS if quick else _SEGMENTS
    components = _QUICK_COMPONENTS if quick else _COMPONENTS
    return {
        "features": [
            _BASE._replace(features=n, components=min(n, _BASE.components)) for n in features
        ],
        "segments": [_BASE._replace(segments=n) for n in segments],
        "components": [_BASE._replace(components=n) for n in components],
    }


def _plot_sweeps(
    paths: tuple[Path, Path],
    trials: Sequence[TableRow],
    sweeps: Mapping[str, Sequence[ProblemShape]],
    n_models: int,
) -> None:
    note = (
        f"Unless varied: {_BASE.features} features, {_BASE.components} components (at most one per "
        f"feature), {_BASE.segments} segments, {_BASE.rows_per_segment:,} rows per segment. Models "
        f"of each shape: {n_models}; marks are medians, areas ranges. MCS: mean cosine similarity "
        "between the fitted and the true mixing. FastICA is linear ICA on at most "
        f"{MAX_ROWS:,} rows. Parts: selection of the ridge, on two halves; maximisation from all "
        "starts; correlations of all rows and of the halves. The total also includes counts, gaps "
        "and variances. Dashed: growth of the cost of one evaluation of BLICA's likelihood; the "
        "number of evaluations differs. In the paper, full maximum likelihood did not finish 6 "
        "observed variables in two hours."
        + describe_left_out(list(chain.from_iterable(sweeps.values())))
    )
    title = "Time and accuracy of binary ICA"
    columns = [
        _plot_sweep(dimension, shapes, trials, k == 0)
        for k, (dimension, shapes) in enumerate(sweeps.items())
    ]
    panels = [*zip(*columns, strict=True)]
    write_figure(*paths, panels=panels, title=title, note=note)


def _plot_sweep(
    dimension: str, shapes: Sequence[ProblemShape], trials: Sequence[TableRow], has_keys: bool
) -> tuple[Figure, Figure, Figure]:
    """Plot the time and accuracy of all models, and the parts of BLICA's time."""
    x = [getattr(shape, dimension) for shape in shapes]
    mcs = _list_series(METHODS, x, trials, shapes)
    seconds = _list_series(METHODS, x, trials, shapes, "_seconds")
    total = seconds["BLICA"]
    parts = {"total": total, **_list_series(_PARTS, x, trials, shapes)}
    power = _POWERS[dimension]
    growth = 2 * np.median(total[1][-1]) * (np.array(x) / x[-1]) ** power
    title = f"over {dimension}"
    more = {f"∝ {dimension}" + ("²" if power == 2 else ""): (x, growth)}
    labels = (dimension, "CPU seconds of BLICA")
    return (
        plot_series(title, seconds, ("", "CPU seconds"), logs=(True, True), has_keys=False),
        plot_series("", mcs, ("", "MCS"), logs=(True, False), has_keys=has_keys),
        plot_series("", parts, labels, logs=(True, True), more=more, first=len(METHODS)),
    )


SCALING = Experiment(
    """Show how long binary ICA takes, and how accurate it is (Hyttinen et al. 2022, figure 5).

Draws models and data with 1000 rows per segment, for more and more features, segments and
components. Fits all models of binary ICA with their own settings and the true number of components:
BLICA, the same model by full likelihood (up to 20 features), the linear iVAE and, for comparison,
linear FastICA. Measures the CPU time of each fit and of the parts of BLICA's, one fit at a time. In
the paper, full maximum likelihood did not finish 6 observed variables in two hours. Writes tables
of all trials and of medians (CSV and JSON) and a figure (PNG and SVG). Takes more than half an hour
of CPU time, or some minutes with `--quick`.
""",
    """Examples:

    python -m flows.experiments blica-scaling --quick
    python -m flows.experiments blica-scaling --executor serial
""",
    ExperimentOptions,
    run_scaling,
    print_summary,
)
