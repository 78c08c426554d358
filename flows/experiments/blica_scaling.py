"""How long binary ICA takes: figure 5 of the paper, and more.

A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.options import Json, Option
from flows.experiments import base
from flows.experiments.base import Row, launch, medians, summary_of, write_results
from flows.experiments.blica_common import Shape, drawn, print_summary, trials_stage
from flows.report.figures import draw_ranges, drawing
from flows.running.flow import late_flow_of
from flows.running.stages import run_task
from pipeline.trials.blica import timed_trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

NAME = "scaling"
OUTPUT = "runs/experiments/blica-scaling"
HELP = """Show how long binary ICA takes, and how accurate it is (Hyttinen et al. 2022, figure 5).

Draws models and data of 1000 rows a segment and fits BLICA with its own settings, told the number
of components, over the number of features, of segments and of components. Takes the CPU time of
the parts of a fit, one fit at a time. Leaves tables of all models and of medians (CSV and JSON) and
a figure (PNG and SVG).
"""
EXAMPLES = """Examples:

    python -m flows.experiments blica-scaling --quick
    python -m flows.experiments blica-scaling --executor serial
"""
_BASE = Shape(features=20, components=10, segments=40, rows_per_segment=1000)
_FEATURES, _SEGMENTS, _COMPONENTS = (5, 10, 20, 50, 100, 200), (10, 20, 40, 80), (2, 5, 10, 20)
_QUICK_FEATURES, _QUICK_SEGMENTS, _QUICK_COMPONENTS = (5, 10, 20), (10, 20, 40), (2, 5, 10)
_MODELS, _QUICK_MODELS = 5, 1
_POWERS = {"features": 2, "segments": 1, "components": 1}
"""How the cost of one evaluation of the likelihood grows."""
_TIMES = ("total", "selection", "starts", "correlations")


@Option(name="*")
@dataclass(frozen=True)
class Options(base.Options):
    """Where the results go by themselves."""

    output: base.Output = OUTPUT


@late_flow_of("experiment-blica-scaling", Options)
def blica_scaling(options: Options) -> dict[str, Any]:
    """Time all fits; `python -m flows.experiments blica-scaling --help` says more."""
    begun, seed, where = time.perf_counter(), options.seed, options.where
    sweeps, n_models = _sweeps(options.quick), _QUICK_MODELS if options.quick else _MODELS
    shapes = list(dict.fromkeys(chain.from_iterable(sweeps.values())))
    work = partial(trials_stage, timed_trial, drawn, shapes, n_models, seed, where, alone=True)
    trials = run_task("trials", work)
    middle = medians(trials, Shape._fields[:3], (*_TIMES, "mcs"))
    _draw(write_results(options.output, NAME, trials, middle), trials, sweeps, n_models)
    return summary_of(options.output, NAME, middle, begun)


def _sweeps(quick: bool) -> dict[str, list[Shape]]:
    """List the shapes over which each dimension is varied; some are in several."""
    features = _QUICK_FEATURES if quick else _FEATURES
    segments = _QUICK_SEGMENTS if quick else _SEGMENTS
    components = _QUICK_COMPONENTS if quick else _COMPONENTS
    most = _BASE.components
    return {
        "features": [_BASE._replace(features=n, components=min(n, most)) for n in features],
        "segments": [_BASE._replace(segments=n) for n in segments],
        "components": [_BASE._replace(components=n) for n in components],
    }


def _draw(
    paths: tuple[Path, Path],
    trials: Sequence[Row],
    sweeps: Mapping[str, Sequence[Shape]],
    n_models: int,
) -> None:
    note = (
        f"What is not varied: {_BASE.features} features, {_BASE.components} components, or as many "
        f"as features if these are fewer, {_BASE.segments} segments; {_BASE.rows_per_segment} rows "
        f"a segment. Models of each shape: {n_models}; marks are medians, areas ranges. "
        "Total: with counts, gaps and variances. Selection: of the ridge, on two halves. "
        "Correlations: of all rows and of the halves. Dashed: as one evaluation of the likelihood "
        "grows; how many are needed differs. MCS: mean cosine similarity of the mixing found to "
        "the true one."
    )
    title = "Time that binary ICA takes, and its accuracy"
    with drawing(*paths, size=(11, 6.6), title=title, note=note) as figure:
        columns = figure.subplots(2, 3, sharex="col", sharey="row", height_ratios=(2, 1)).T
        for (times, accuracy), (dimension, shapes) in zip(columns, sweeps.items(), strict=True):
            x = [getattr(shape, dimension) for shape in shapes]
            found = {name: (x, _values(trials, shapes, name)) for name in (*_TIMES, "mcs")}
            _draw_accuracy(accuracy, dimension, found.pop("mcs"))
            _draw_times(times, dimension, found)
        figure.legend(*times.get_legend_handles_labels(), loc="outside right upper")
        for axes in columns.flat:
            axes.label_outer()


def _values(trials: Sequence[Row], shapes: Sequence[Shape], name: str) -> Array:
    """Values of a column, (n_shapes, n_models)."""
    by_shape = [[t for t in trials if shape.columns().items() <= t.items()] for shape in shapes]
    return np.array([[trial[name] for trial in found] for found in by_shape])


def _draw_times(
    axes: Axes, dimension: str, found: Mapping[str, tuple[Sequence[int], Array]]
) -> None:
    power = _POWERS[dimension]
    name = dimension + ("²" if power == 2 else "")
    draw_ranges(axes, found, ("", "CPU seconds"), f"over {dimension}; dashed: ∝ {name}")
    axes.get_legend().remove()
    x, total = found["total"]
    growth = 2 * np.median(total[-1]) * (np.array(x) / x[-1]) ** power
    axes.plot(x, growth, color="black", linestyle="--", linewidth=0.8)
    axes.set_yscale("log")


def _draw_accuracy(axes: Axes, dimension: str, found: tuple[Sequence[int], Array]) -> None:
    draw_ranges(axes, {"mcs": found}, (dimension, "MCS"), "")
    axes.get_legend().remove()
    axes.set(xscale="log", ylim=(min(0.9, found[1].min()), 1.002))
    axes.set_xticks(found[0], found[0])
    axes.xaxis.minorticks_off()


def main(*, options: Options = Options(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    launch(blica_scaling, options, json, print_summary)
