"""How many rows binary ICA needs: figure 4 of the paper.

A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from cyclopts import Parameter
from prefect import flow

from flows.cli.options import Json
from flows.experiments.base import (
    DEFAULTS,
    Options,
    Row,
    Where,
    medians,
    summary_of,
    write_results,
)
from flows.experiments.blica_common import Shape, drawn, launch, trials_stage
from flows.report.figures import draw_ranges, drawing
from flows.running.clusters import ExecutorName
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


@flow(name="experiment-blica-samples", validate_parameters=False)
def blica_samples(
    output: str = OUTPUT,
    quick: bool = False,
    seed: int = 0,
    executor: ExecutorName = "dask",
    workers: int | None = None,
    cluster: str | None = None,
) -> dict[str, Any]:
    """Fit all data; `python -m flows.experiments blica-samples --help` says more."""
    begun = time.perf_counter()
    where = Where(name=executor, workers=workers, cluster=cluster)
    plan = (_QUICK_SHAPES, _QUICK_ROWS, _QUICK_MODELS) if quick else (_SHAPES, _ROWS, _MODELS)
    kinds, sizes, n_models = plan
    shapes = [Shape(n, k, _SEGMENTS, rows) for n, k in kinds for rows in sizes]
    trials = trials_stage(sample_trial, drawn, shapes, n_models, seed, where)
    middle = medians(trials, Shape._fields, _METHODS)
    _draw(write_results(output, NAME, trials, middle), trials, n_models)
    return summary_of(output, NAME, middle, begun)


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


def main(
    *,
    output: Annotated[str, Parameter(help="Folder of tables and figures.")] = OUTPUT,
    options: Options = DEFAULTS,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    launch(blica_samples, output, options, json)
