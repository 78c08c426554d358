"""How many rows binary ICA needs: figure 4 of the paper.

A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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
from flows.experiments.binary_ica_methods import METHODS, run_sample_trial
from flows.experiments.drawing import open_figure, plot_ranges
from flows.running.flow import make_lazy_flow, run_task
from pipeline.models.binary_ica.fastica import MAX_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "samples"
OUTPUT = "runs/experiments/blica-samples"
HELP = """Show how many rows binary ICA needs (Hyttinen et al. 2022, figure 4).

Draws models and data in 40 segments, and fits all models of binary ICA with their own settings:
BLICA, the same model by full likelihood, the linear iVAE and, for comparison, linear FastICA of all
segments together, on at most 50,000 rows. All know the number of components. Writes tables of all
trials and of medians (CSV and JSON) and a figure (PNG and SVG) over the rows per segment: MCS, the
mean cosine similarity between the fitted and the true mixing, and the CPU seconds of a fit. Takes
more than an hour of CPU time, or some minutes with `--quick`. Worker processes (`--workers`) share
the work better than threads.
"""
EXAMPLES = """Examples:

    python -m flows.experiments blica-samples --quick
    python -m flows.experiments blica-samples --workers 2
"""
_SHAPES, _QUICK_SHAPES = ((6, 2), (10, 10)), ((6, 2), (10, 5))
_SEGMENTS = 40
_ROWS, _MODELS = (50, 100, 200, 500, 1000, 2000, 5000), 10
_QUICK_ROWS, _QUICK_MODELS = (100, 500, 2000), 3


@Option(name="*")
@dataclass(frozen=True)
class SampleSizeOptions(base.ExperimentOptions):
    """Options of `blica-samples`."""

    output: base.Output = OUTPUT


@make_lazy_flow("experiment-blica-samples", SampleSizeOptions)
def blica_samples(options: SampleSizeOptions) -> dict[str, Any]:
    """Fit all data; `python -m flows.experiments blica-samples --help` says more."""
    begun, quick = time.perf_counter(), options.quick
    plan = (_QUICK_SHAPES, _QUICK_ROWS, _QUICK_MODELS) if quick else (_SHAPES, _ROWS, _MODELS)
    kinds, sizes, n_models = plan
    shapes = [ProblemShape(n, k, _SEGMENTS, rows) for n, k in kinds for rows in sizes]
    given = (run_sample_trial, draw_simulated_rows, shapes, n_models, options.seed, options.where)
    trials = run_task("trials", partial(run_shape_trials, *given))
    seconds = [f"{name}_seconds" for name in METHODS]
    middle = group_medians(trials, ProblemShape._fields, (*METHODS, *seconds))
    _plot_similarity(write_results(options.output, NAME, trials, middle), trials, shapes, n_models)
    return summarize_run(options.output, NAME, middle, begun)


def _plot_similarity(
    paths: tuple[Path, Path],
    trials: Sequence[TableRow],
    shapes: Sequence[ProblemShape],
    n_models: int,
) -> None:
    note = (
        f"{_SEGMENTS} segments. Lines: medians of {n_models} models; areas: from the least to the "
        "largest. MCS: mean cosine similarity of the mixing found to the true one. CPU seconds: of "
        "a fit while others may run. FastICA is linear ICA, here of the bits of all segments "
        f"together, of {MAX_ROWS:,} rows at most.{describe_left_out(shapes)}"
    )
    title = "Accuracy and time of binary ICA over the amount of data"
    kinds = [list(found) for _, found in groupby(shapes, lambda shape: shape[:2])]
    with open_figure(*paths, size=(9, 8.4), title=title, note=note) as figure:
        layout: Any = {"sharex": True, "sharey": "row", "height_ratios": (3, 2, 2)}
        columns = figure.subplots(3, len(kinds), **layout).T
        for column, found in zip(columns, kinds, strict=True):
            _plot_shapes(column, found, trials)
        figure.legend(*columns[0, 0].get_legend_handles_labels(), loc="outside right upper")
        columns[0, 0].set_ylim(top=1.02)
        for axes in columns.flat:
            axes.get_legend().remove()
            axes.label_outer()


def _plot_shapes(
    column: Iterable[Axes], shapes: Sequence[ProblemShape], trials: Sequence[TableRow]
) -> None:
    """Plot the similarity (1 − MCS on a logarithmic scale) and the time."""
    similarity, distance, time = column
    rows = np.array([shape.rows_per_segment for shape in shapes])
    mcs = {name: (rows, column_values(trials, shapes, name)) for name in METHODS}
    seconds = {name: (rows, column_values(trials, shapes, f"{name}_seconds")) for name in METHODS}
    title = f"{shapes[0].features} features, {shapes[0].components} components"
    plot_ranges(similarity, mcs, ("", "MCS"), title)
    lacking = {name: (rows, 1 - found) for name, (_, found) in mcs.items()}
    plot_ranges(distance, lacking, ("", "1 − MCS"), "")
    plot_ranges(time, seconds, ("rows per segment", "CPU seconds"), "")
    distance.set_yscale("log")
    time.set(xscale="log", yscale="log")
    time.set_xticks(rows, [f"{n:,}" for n in rows])
    time.xaxis.minorticks_off()
    time.yaxis.set_major_formatter("{x:g}")


def main(*, options: SampleSizeOptions = SampleSizeOptions(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    run_experiment(blica_samples, options, json, print_summary)
