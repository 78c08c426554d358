"""How long binary ICA takes: figure 5 of the paper, and more.

A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.options import Json, Option
from flows.experiments import base
from flows.experiments.base import (
    TableRow,
    group_medians,
    run_experiment,
    summarize_run,
    write_results,
)
from flows.experiments.binary_ica_common import (
    ProblemShape,
    column_values,
    describe_left_out,
    draw_simulated_rows,
    print_summary,
    run_shape_trials,
)
from flows.experiments.binary_ica_methods import METHODS, run_timed_trial
from flows.experiments.drawing import open_figure, plot_ranges
from flows.running.flow import make_lazy_flow, run_task
from pipeline.models.binary_ica.fastica import MAX_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = tuple[Sequence[int], NDArray[np.float64]]

NAME = "scaling"
OUTPUT = "runs/experiments/blica-scaling"
HELP = """Show how long binary ICA takes, and how accurate it is (Hyttinen et al. 2022, figure 5).

Draws models and data with 1000 rows per segment and fits all models of binary ICA with their own
settings and the true number of components, for more and more features, segments and components:
BLICA, the same model by full likelihood (up to 20 features), the linear iVAE and, for comparison,
linear FastICA. Takes the CPU time of each fit, and of the parts of BLICA's, one fit at a time. In
the paper, full maximum likelihood did not finish 6 observed variables in two hours. Writes tables
of all trials and of medians (CSV and JSON) and a figure (PNG and SVG). Takes more than half an hour
of CPU time, or some minutes with `--quick`.
"""
EXAMPLES = """Examples:

    python -m flows.experiments blica-scaling --quick
    python -m flows.experiments blica-scaling --executor serial
"""
_BASE = ProblemShape(features=20, components=10, segments=40, rows_per_segment=1000)
_FEATURES, _SEGMENTS, _COMPONENTS = (5, 10, 20, 50, 100, 200), (10, 20, 40, 80), (2, 5, 10, 20)
_QUICK_FEATURES, _QUICK_SEGMENTS, _QUICK_COMPONENTS = (5, 10, 20), (10, 20, 40), (2, 5, 10)
_MODELS, _QUICK_MODELS = 5, 1
_POWERS = {"features": 2, "segments": 1, "components": 1}
"""Growth of the cost of one likelihood evaluation."""
_PARTS = ("selection", "starts", "correlations")


@Option(name="*")
@dataclass(frozen=True)
class ScalingOptions(base.ExperimentOptions):
    """Options of `blica-scaling`."""

    output: base.Output = OUTPUT


@make_lazy_flow("experiment-blica-scaling", ScalingOptions)
def blica_scaling(options: ScalingOptions) -> dict[str, Any]:
    """Time all fits; `python -m flows.experiments blica-scaling --help` says more."""
    begun, seed, where = time.perf_counter(), options.seed, options.where
    sweeps, n_models = _make_sweeps(options.quick), _QUICK_MODELS if options.quick else _MODELS
    shapes = list(dict.fromkeys(chain.from_iterable(sweeps.values())))
    work = partial(
        run_shape_trials,
        run_timed_trial,
        draw_simulated_rows,
        shapes,
        n_models,
        seed,
        where,
        alone=True,
    )
    trials = run_task("trials", work)
    seconds = [f"{name}_seconds" for name in METHODS]
    middle = group_medians(trials, ProblemShape._fields[:3], (*METHODS, *seconds, *_PARTS))
    _plot_sweeps(write_results(options.output, NAME, trials, middle), trials, sweeps, n_models)
    return summarize_run(options.output, NAME, middle, begun)


def _make_sweeps(quick: bool) -> dict[str, list[ProblemShape]]:
    """List the shapes of each sweep. Some shapes are part of several sweeps."""
    features = _QUICK_FEATURES if quick else _FEATURES
    segments = _QUICK_SEGMENTS if quick else _SEGMENTS
    components = _QUICK_COMPONENTS if quick else _COMPONENTS
    most = _BASE.components
    return {
        "features": [_BASE._replace(features=n, components=min(n, most)) for n in features],
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
        f"What is not varied: {_BASE.features} features, {_BASE.components} components, or as many "
        f"as features if these are fewer, {_BASE.segments} segments; {_BASE.rows_per_segment:,} "
        f"rows a segment. Models of each shape: {n_models}; marks are medians, areas ranges. MCS: "
        "mean cosine similarity of the mixing found to the true one. FastICA is linear ICA of "
        f"{MAX_ROWS:,} rows at most. Parts: selection of the ridge, on two halves; starts from "
        "which the likelihood is climbed; correlations of all rows and of the halves; the total "
        "has counts, gaps and variances besides. Dashed: as one evaluation of BLICA's likelihood "
        "grows; how many are needed differs. In the paper full maximum likelihood did not finish 6 "
        "observed variables in two hours."
        + describe_left_out(list(chain.from_iterable(sweeps.values())))
    )
    title = "Time that binary ICA takes, and its accuracy"
    with open_figure(*paths, size=(11, 9), title=title, note=note) as figure:
        columns = figure.subplots(3, 3, sharex="col", sharey="row").T
        for column, (dimension, shapes) in zip(columns, sweeps.items(), strict=True):
            _plot_sweep(column, dimension, shapes, trials)
        columns[0, 1].set_ylim(top=1.02)
        for axes in columns[:-1].flat:
            axes.get_legend().remove()
        columns[-1, 1].get_legend().remove()
        for axes in columns.flat:
            axes.label_outer()


def _plot_sweep(
    column: Iterable[Axes],
    dimension: str,
    shapes: Sequence[ProblemShape],
    trials: Sequence[TableRow],
) -> None:
    """Plot the time and accuracy of all models, and the parts of BLICA's time."""
    times, accuracy, parts = column
    x = [getattr(shape, dimension) for shape in shapes]
    mcs = {name: (x, column_values(trials, shapes, name)) for name in METHODS}
    seconds = {name: (x, column_values(trials, shapes, f"{name}_seconds")) for name in METHODS}
    shares = {name: (x, column_values(trials, shapes, name)) for name in _PARTS}
    plot_ranges(times, seconds, ("", "CPU seconds"), f"over {dimension}")
    plot_ranges(accuracy, mcs, ("", "MCS"), "")
    _plot_parts(parts, dimension, seconds["BLICA"], shares)
    parts.set(xlabel=dimension, xscale="log")
    parts.set_xticks(x, x)
    parts.xaxis.minorticks_off()
    for axes in (times, parts):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    for axes in (times, accuracy, parts):
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _plot_parts(axes: Axes, dimension: str, total: Series, parts: Mapping[str, Series]) -> None:
    power = _POWERS[dimension]
    name = dimension + ("²" if power == 2 else "")
    plot_ranges(axes, {"total": total}, ("", ""), "")
    labels = ("", "CPU seconds of BLICA")
    plot_ranges(axes, parts, labels, f"dashed: ∝ {name}", first=len(METHODS))
    x, values = total
    growth = 2 * np.median(values[-1]) * (np.array(x) / x[-1]) ** power
    axes.plot(x, growth, color="black", linestyle="--", linewidth=0.8)


def main(*, options: ScalingOptions = ScalingOptions(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    run_experiment(blica_scaling, options, json, print_summary)
