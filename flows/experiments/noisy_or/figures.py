"""Figures of noisy-OR networks: bits over epochs, and what units turn on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.experiments.drawing import COLOURS, open_figure
from flows.experiments.noisy_or.problems import CauseProblem, average_top_units
from flows.experiments.noisy_or.trial import NoisyOrResult
from pipeline.inference.hidden_causes import feature_probabilities_by_unit
from pipeline.models.noisy_or import NoisyOrParams

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

# The unit is the width of an image.
_INCHES, _GAP, _SQUARE, _CAPTION = 0.62, 0.2, 0.6, 1.1
_LEFT, _COLUMN_GAP = 1.7, 0.5
_TICKS = (5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 40)


class LearningCurves(NamedTuple):
    """Starts of a problem, and the fewest bits a row: of any model, of a network built by hand."""

    name: str
    starts: Sequence[NoisyOrResult]
    entropy: float
    built: float


def _paths(stem: Path, name: str) -> tuple[Path, Path]:
    path = stem.with_name(f"{stem.name}_{name}.png")
    return path, path.with_suffix(".svg")


def plot_bits(stem: Path, problems: Sequence[LearningCurves]) -> None:
    """Draw bits a row over epochs, a line a start (figure 4)."""
    note = (
        "Mean of −log₂ P over fresh rows, exact for each row. Epochs learn from 200 rows each: the "
        "lower layer first, then the upper, then both; the last learns from all rows. Dotted: the "
        "entropy of a row, which no model can go below. Dashed: a network of as many layers that "
        "was built by hand."
    )
    title = "Noisy-OR networks: bits a row while they learn"
    with open_figure(*_paths(stem, "bits"), size=(10, 4.6), title=title, note=note) as figure:
        for axes, found in zip(figure.subplots(1, len(problems)), problems, strict=True):
            _plot_curves(axes, found)


def _plot_curves(axes: Axes, found: LearningCurves) -> None:
    for start in found.starts:
        style: Any = {"color": COLOURS[0], "marker": "o", "markersize": 2.5, "linewidth": 1}
        axes.plot(start.epochs, start.bits, alpha=0.6, **style)
    label = f"built by hand, {found.built:.2f}"
    axes.axhline(found.built, color=COLOURS[1], ls="--", lw=1, label=label)
    axes.axhline(found.entropy, color="black", ls=":", lw=1, label=f"entropy, {found.entropy:.2f}")
    axes.set(title=f"{found.name}, {len(found.starts)} starts", xlabel="epoch", ylabel="bits a row")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([bits for bits in _TICKS if low <= bits <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.legend()


def plot_network(stem: Path, problem: CauseProblem, learnt: NoisyOrResult, start: int) -> None:
    """Draw what units of both layers turn on (figures 2 and 3b)."""
    params, (n_lower, n_upper) = learnt.params, problem.layers
    height, n_columns = problem.shape[0] / problem.shape[1], n_lower + 1 + len(problem.labels)
    step = max(height, _SQUARE) + _GAP
    ends = (n_columns * (1 + _GAP) + _COLUMN_GAP, height + _CAPTION + n_upper * step)
    note = (
        "Top: pixels that a lower unit alone turns on, black with probability f = 1. Below: a row "
        "an upper unit; the area of a square is f for the lower unit above it. Right: the pixels "
        "that an upper unit alone turns on through lower ones, and squares for how likely it is on "
        "in rows of each kind. Percent: rows that a unit is on in."
    )
    title = f"Noisy-OR network of the {problem.name}: "
    title += f"start {start}, the best, with {learnt.bits_at_end:.2f} bits a row"
    size = ((ends[0] + _LEFT) * _INCHES, ends[1] * _INCHES + 1.4)
    paths = _paths(stem, f"{problem.name}_network")
    with open_figure(*paths, size=size, title=title, note=note) as figure:
        axes = figure.add_subplot()
        _plot_layers(axes, problem, params, average_top_units(learnt.means, problem).T)
        axes.set(xlim=(-_LEFT, ends[0]), ylim=(ends[1], -_GAP))
        axes.set_aspect("equal")
        axes.axis("off")


def _plot_layers(axes: Axes, problem: CauseProblem, params: NoisyOrParams, on: Array) -> None:
    """Draw lower units side by side, and below them a row for each upper one.

    `on` is how likely upper units are on in rows of each label, (n_upper, n_labels).
    """
    (n_lower, n_upper), order = problem.layers, _order_lower_units(params.f)
    height = problem.shape[0] / problem.shape[1]
    lower, upper = (
        f.T.reshape(-1, *problem.shape) for f in feature_probabilities_by_unit(params.f)
    )
    activity = np.zeros(n_lower + n_upper) if params.activity is None else params.activity
    shares = [f"{share:.0%}" for share in activity]
    for column, unit in enumerate(order):
        _plot_image(axes, lower[unit], column, 0)
        _plot_text(axes, f"1.{unit + 1}\n{shares[unit]}", column, height + 0.05)
    top = height + _CAPTION
    for column, label in enumerate(("turns on", *problem.labels)):
        _plot_text(axes, label, _column_position(n_lower, column), top - 0.32)
    for unit in range(n_upper):
        middle = top + max(height, _SQUARE) / 2
        name = f"2.{unit + 1}, {shares[n_lower + unit]}"
        axes.text(-0.2, middle, name, ha="right", va="center")
        for column, f in enumerate(params.f[1][order, unit]):
            _plot_square(axes, f, column, middle)
        _plot_image(axes, upper[unit], _column_position(n_lower, 0), middle - height / 2)
        for column, mean in enumerate(on[unit]):
            _plot_square(axes, mean, _column_position(n_lower, column + 1), middle)
        top += max(height, _SQUARE) + _GAP


def _column_position(n_lower: int, column: int) -> float:
    """Give the place of a column to the right of all lower units."""
    return n_lower + column + _COLUMN_GAP / (1 + _GAP)


def _plot_image(axes: Axes, image: Array, column: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    left, height = column * (1 + _GAP), image.shape[0] / image.shape[1]
    place = (left, left + 1, top + height, top)
    axes.imshow(image, extent=place, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    frame: Any = {"fill": False, "edgecolor": "#999999", "linewidth": 0.5}
    axes.add_patch(Rectangle((left, top), 1, height, **frame))


def _plot_square(axes: Axes, share: float, column: float, middle: float) -> None:
    """Draw a share as a square within a frame, which is 1."""
    from matplotlib.patches import Rectangle

    centre = column * (1 + _GAP) + 0.5
    frame: Any = {"fill": False, "edgecolor": "#cccccc", "linewidth": 0.5}
    filled: Any = {"facecolor": "black", "linewidth": 0}
    for side, style in ((_SQUARE, frame), (_SQUARE * float(np.sqrt(share)), filled)):
        axes.add_patch(Rectangle((centre - side / 2, middle - side / 2), side, side, **style))


def _plot_text(axes: Axes, text: str, column: float, top: float) -> None:
    axes.text(column * (1 + _GAP) + 0.5, top, text, ha="center", va="top", size=8)


def _order_lower_units(f: Sequence[Array]) -> NDArray[np.intp]:
    """Put lower units of the same upper unit together, by the first feature that they turn on."""
    most = f[0].max(axis=0)
    first = (f[0] > 0.5 * most).argmax(axis=0)
    return np.lexsort([first, f[1].argmax(axis=1), most < 0.5])
