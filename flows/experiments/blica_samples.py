"""How many rows binary ICA needs: figure 4 of the paper.

A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.cli.options import Json, Option
from flows.experiments import base
from flows.experiments.base import Row, launch, medians, summary_of, write_results
from flows.experiments.blica_common import Shape, drawn, print_summary, trials_stage
from flows.report.figures import draw_ranges, drawing
from flows.running.flow import late_flow_of
from flows.running.stages import run_task
from pipeline.trials.blica import sample_trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "samples"
OUTPUT = "runs/experiments/blica-samples"
HELP = """Show how many rows binary ICA needs (Hyttinen et al. 2022, figure 4).

Draws models and data in 40 segments, and fits BLICA with its own settings and, for comparison,
linear FastICA to the bits of all segments together. Both are told the number of components. Leaves
tables of all models and of medians (CSV and JSON) and a figure (PNG and SVG) of MCS, the mean
cosine similarity of the mixing found to the true one, over the rows per segment. Takes minutes;
worker processes (`--workers`) share the work better than threads do.
"""
EXAMPLES = """Examples:

    python -m flows.experiments blica-samples --quick
    python -m flows.experiments blica-samples --workers 2
"""
_SHAPES, _QUICK_SHAPES = ((6, 2), (10, 10)), ((6, 2), (10, 5))
_SEGMENTS = 40
_ROWS, _MODELS = (50, 100, 200, 500, 1000, 2000, 5000), 10
_QUICK_ROWS, _QUICK_MODELS = (200, 1000, 5000), 3
_METHODS = ("BLICA", "FastICA")


@Option(name="*")
@dataclass(frozen=True)
class Options(base.Options):
    """Where the results go by themselves."""

    output: base.Output = OUTPUT


@late_flow_of("experiment-blica-samples", Options)
def blica_samples(options: Options) -> dict[str, Any]:
    """Fit all data; `python -m flows.experiments blica-samples --help` says more."""
    begun, quick = time.perf_counter(), options.quick
    plan = (_QUICK_SHAPES, _QUICK_ROWS, _QUICK_MODELS) if quick else (_SHAPES, _ROWS, _MODELS)
    kinds, sizes, n_models = plan
    shapes = [Shape(n, k, _SEGMENTS, rows) for n, k in kinds for rows in sizes]
    given = (sample_trial, drawn, shapes, n_models, options.seed, options.where)
    trials = run_task("trials", partial(trials_stage, *given))
    middle = medians(trials, Shape._fields, _METHODS)
    _draw(write_results(options.output, NAME, trials, middle), trials, n_models)
    return summary_of(options.output, NAME, middle, begun)


def _draw(paths: tuple[Path, Path], trials: Sequence[Row], n_models: int) -> None:
    note = (
        f"{_SEGMENTS} segments. Lines: medians of {n_models} models; areas: from the least to the "
        "largest. MCS: mean cosine similarity of the mixing found to the true one. FastICA is "
        "linear ICA, here of the bits of all segments together."
    )
    title = "Accuracy of binary ICA over the amount of data"
    with drawing(*paths, size=(9, 6.4), title=title, note=note) as figure:
        columns = figure.subplots(2, 2, sharex=True, sharey="row").T
        for (above, below), (_, found) in zip(columns, groupby(trials, _kind), strict=True):
            _draw_kind(above, below, list(found))
        for axes in columns.flat:
            axes.label_outer()


def _kind(trial: Row) -> tuple[int, int]:
    return trial["features"], trial["components"]


def _draw_kind(above: Axes, below: Axes, trials: Sequence[Row]) -> None:
    """Draw the similarity, and on a logarithmic scale what it lacks."""
    sizes = sorted({row["rows_per_segment"] for row in trials})
    by_size = [[row for row in trials if row["rows_per_segment"] == size] for size in sizes]
    found = {name: np.array([[row[name] for row in rows] for rows in by_size]) for name in _METHODS}
    similarity = {name: (sizes, values) for name, values in found.items()}
    distance = {name: (sizes, 1 - values) for name, values in found.items()}
    title = "{features} features, {components} components".format(**trials[0])
    draw_ranges(above, similarity, ("", "MCS"), title)
    draw_ranges(below, distance, ("rows per segment", "1 − MCS"), "")
    above.set_ylim(0, 1.02)
    above.legend(loc="lower right")
    below.get_legend().remove()
    below.set(xscale="log", yscale="log")
    below.set_xticks(sizes, [f"{size:,}" for size in sizes])
    below.xaxis.minorticks_off()


def main(*, options: Options = Options(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    launch(blica_samples, options, json, print_summary)
