"""When binary ICA is identifiable: figure 3 of the paper, on infinitely many rows.

A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component Analysis: A
Non-stationarity-based Approach", UAI 2022.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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
    draw_truth,
    print_summary,
    run_shape_trials,
)
from flows.experiments.binary_ica_trials import run_exact_trial
from flows.experiments.drawing import open_figure
from flows.running.flow import make_lazy_flow, run_task
from pipeline.models.binary_ica.moment_matching.matching import count_surplus_equations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "identifiability"
OUTPUT = "runs/experiments/blica-identifiability"
HELP = """Show when binary ICA is identifiable: Hyttinen et al. (2022), figure 3.

Draws models with as many components as features, takes the exact probabilities of every pair of
features instead of counts, and fits them to rounding error: the mixing is either found or not
identifiable. Writes tables of all models and of medians (CSV and JSON) and a figure (PNG and SVG)
of 1 − MCS, where MCS is the mean cosine similarity between the fitted and the true mixing.
"""
EXAMPLES = """Examples:

    python -m flows.experiments blica-identifiability --quick
    python -m flows.experiments blica-identifiability --workers 2
"""
_FEATURES, _SEGMENTS, _MODELS = range(2, 11), range(2, 7), 10
_QUICK_FEATURES, _QUICK_SEGMENTS, _QUICK_MODELS = (2, 3, 5, 7, 10), (2, 3, 4), 3
_FLOOR = 1e-16
_AXES = ("features", "segments")
_LINE, _HATCH = "#D55E00", "#7f7f7f"


@Option(name="*")
@dataclass(frozen=True)
class IdentifiabilityOptions(base.ExperimentOptions):
    """Options of `blica-identifiability`."""

    output: base.Output = OUTPUT


@make_lazy_flow("experiment-blica-identifiability", IdentifiabilityOptions)
def blica_identifiability(options: IdentifiabilityOptions) -> dict[str, Any]:
    """Fit all models; `python -m flows.experiments blica-identifiability --help` says more."""
    begun, quick = time.perf_counter(), options.quick
    features, segments = (_QUICK_FEATURES, _QUICK_SEGMENTS) if quick else (_FEATURES, _SEGMENTS)
    shapes = [ProblemShape(n, n, n_segments) for n_segments in segments for n in features]
    n_models = _QUICK_MODELS if quick else _MODELS
    given = (run_exact_trial, draw_truth, shapes, n_models, options.seed, options.where)
    trials = run_task("trials", partial(run_shape_trials, *given))
    middle = group_medians(trials, (*_AXES, "surplus"), ("distance",))
    _plot_distances(write_results(options.output, NAME, trials, middle), middle, n_models)
    return summarize_run(options.output, NAME, middle, begun)


def _plot_distances(paths: tuple[Path, Path], middle: Sequence[TableRow], n_models: int) -> None:
    note = (
        f"Large: 1 − MCS, median of {n_models} models; 0: up to rounding errors. "
        "Small: the surplus of pairwise correlations over mixing coefficients and source "
        "variances, as the paper counts; hatched where it is negative. That count takes the "
        "length of every column for an unknown, though the variances of its source can make up "
        "for any. Counted without lengths, the surplus is larger by the number of components, "
        "and it is negative on the lower left of the line alone."
    )
    title = "Binary ICA of infinitely many rows: distance of the mixing found from the true one"
    features, segments = (sorted({row[name] for row in middle}) for name in _AXES)
    with open_figure(*paths, size=(9, 4.8), title=title, note=note) as figure:
        axes = figure.add_subplot()
        for row in middle:
            _plot_cell(axes, row, features.index(row["features"]), segments.index(row["segments"]))
        _plot_line(
            axes,
            np.array([[count_surplus_equations(n, n, u) + n for n in features] for u in segments]),
        )
        axes.set(xlabel="features = components", ylabel="segments")
        axes.set_xticks(np.arange(len(features)) + 0.5, features)
        axes.set_yticks(np.arange(len(segments)) + 0.5, segments)
        axes.set(xlim=(0, len(features)), ylim=(0, len(segments)))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _plot_scale(axes)


def _plot_cell(axes: Axes, row: TableRow, x: int, y: int) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    share = 1 - np.log10(max(row["distance"], _FLOOR)) / np.log10(_FLOOR)
    fill, ink = colormaps["cividis"](share), "black" if share > 0.5 else "white"
    hatch = "///" if row["surplus"] < 0 else ""
    axes.add_patch(Rectangle((x, y), 1, 1, fc=fill, ec=_HATCH, hatch=hatch, lw=0))
    axes.add_patch(Rectangle((x, y), 1, 1, fill=False, ec="white", lw=1.5))
    halo = [withStroke(linewidth=3, foreground=fill)]
    style: Any = {"color": ink, "ha": "center", "va": "center", "path_effects": halo}
    axes.text(x + 0.5, y + 0.6, _format_distance(row["distance"]), size=11, **style)
    axes.text(x + 0.5, y + 0.25, f"{row['surplus']}".replace("-", "−"), size=8, **style)


def _plot_line(axes: Axes, surplus: NDArray[np.int64]) -> None:
    """Draw the border between cells with a negative and a non-negative surplus of equations."""
    negative = surplus < 0
    y, x = np.nonzero(negative[:, 1:] != negative[:, :-1])
    axes.vlines(x + 1, y, y + 1, color=_LINE, linewidth=3, capstyle="projecting")
    y, x = np.nonzero(negative[1:] != negative[:-1])
    axes.hlines(y + 1, x, x + 1, color=_LINE, linewidth=3, capstyle="projecting")


def _format_distance(distance: float) -> str:
    if distance < _FLOOR:
        return "0"
    return f"{distance:.2f}" if distance >= 0.01 else f"{distance:.0e}"


def _plot_scale(axes: Axes) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    colours = ScalarMappable(LogNorm(_FLOOR, 1), "cividis")
    bar = axes.figure.colorbar(colours, ax=axes, ticks=[1e-16, 1e-12, 1e-8, 1e-4, 1])
    bar.set_label("1 − MCS")
    bar.ax.set_yticklabels(["0", "10⁻¹²", "10⁻⁸", "10⁻⁴", "1"])


def main(*, options: IdentifiabilityOptions = IdentifiabilityOptions(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    run_experiment(blica_identifiability, options, json, print_summary)
