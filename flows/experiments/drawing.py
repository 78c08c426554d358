"""Matplotlib figures of the experiments: images of features, spectra, curves.

Matplotlib is imported only when a figure is drawn, because its import is slow.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, safe for colour-blind readers; markers distinguish series in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_NOTE_COLOUR = "#555555"
_MISSING_COLOUR = "#d9d9d9"
_STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "figure.titlesize": 12,
    "font.size": 9,
    "legend.frameon": False,
    "savefig.dpi": 160,
    # Makes equal figures equal files.
    "svg.hashsalt": "latentbits",
}
# Inches per unit; the unit is the width of an image, used for all other lengths.
_INCHES_PER_UNIT, _GAP, _CAPTION_HEIGHT, _LABEL_WIDTH = 0.72, 0.12, 0.42, 1.7


def check_figure_suffix(path: Path) -> None:
    """Raise FitError if the suffix is not one of `FIGURE_SUFFIXES`."""
    if path.suffix not in FIGURE_SUFFIXES:
        raise FitError(
            f"{{output}} is {str(path)!r}, but must end in {', '.join(FIGURE_SUFFIXES)}."
        )


def figure_paths(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a figure as PNG and as SVG."""
    return folder / f"{name}.png", folder / f"{name}.svg"


@contextmanager
def open_figure(
    *paths: Path, size: tuple[float, float], title: str, note: str = ""
) -> Iterator[Figure]:
    """Open an empty figure and save it on exit.

    Parameters
    ----------
    paths
        Files to write; the suffix is the format.
    size
        Width and height in inches.
    title, note
        Text above the figure and, smaller, below it.
    """
    for path in paths:
        check_figure_suffix(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        figure.suptitle(title, x=0.01, ha="left")
        if note:
            figure.supxlabel(
                textwrap.fill(note, int(15.5 * size[0])),
                x=0.01,
                ha="left",
                size=8,
                color=_NOTE_COLOUR,
            )
        yield figure
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without the date, equal figures are equal files.
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


class ImageRow(NamedTuple):
    """A row of images, (n, height, width), with a label and captions; NaN is left blank."""

    label: str
    images: Array
    captions: Sequence[str] = ()


def save_images(
    *paths: Path, rows: Sequence[ImageRow], title: str, note: str, signed: bool = False
) -> None:
    """Draw rows of images, with text above and below.

    If `signed`, colours are blue, white and red around zero, scaled per image; otherwise white is 0
    and black is 1.
    """
    height = rows[0].images.shape[1] / rows[0].images.shape[2]
    step = height + (_CAPTION_HEIGHT if any(row.captions for row in rows) else _GAP)
    if any(np.isnan(row.images).any() for row in rows):
        note += " Grey: no value."
    left = _LABEL_WIDTH if any(row.label for row in rows) else _GAP
    right = max(len(row.images) for row in rows) * (1 + _GAP)
    size = (max((left + right) * _INCHES_PER_UNIT, 4.5), len(rows) * step * _INCHES_PER_UNIT + 1.1)
    with open_figure(*paths, size=size, title=title, note=note) as figure:
        axes = figure.add_subplot()
        for r, row in enumerate(rows):
            _plot_image_row(axes, row, r * step, height, signed)
        axes.set(xlim=(-left, right), ylim=(len(rows) * step, -_GAP))
        axes.set_aspect("equal")
        axes.axis("off")


def _plot_image_row(axes: Axes, row: ImageRow, top: float, height: float, signed: bool) -> None:
    axes.text(-_GAP, top + height / 2, row.label, ha="right", va="center")
    for c, image in enumerate(row.images):
        plot_image(axes, image, (c * (1 + _GAP), top), signed)
    for c, caption in enumerate(row.captions):
        middle = c * (1 + _GAP) + 0.5
        axes.text(middle, top + height + 0.04, caption, ha="center", va="top", size=8)


def plot_image(axes: Axes, image: Array, corner: tuple[float, float], signed: bool = False) -> None:
    """Plot an image of unit width, with a thin frame, below and to the right of a corner."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    (x, y), height = corner, image.shape[0] / image.shape[1]
    colours = colormaps["RdBu_r" if signed else "Greys"].with_extremes(bad=_MISSING_COLOUR)
    top = max(float(np.nanmax(np.abs(image))), 1e-12) if signed else 1.0
    axes.imshow(
        image,
        extent=(x, x + 1, y + height, y),
        cmap=colours,
        vmin=-top if signed else 0.0,
        vmax=top,
        interpolation="nearest",
    )
    axes.add_patch(Rectangle((x, y), 1, height, fill=False, edgecolor="#999999", linewidth=0.5))


def plot_strips(axes: Axes, X: NDArray[np.uint8], title: str) -> None:
    """Plot binary rows (n_rows, n_features) as strips; 1 is black."""
    # White lines separate neighbouring rows.
    axes.pcolormesh(X[::-1], cmap="Greys", vmin=0, vmax=1, rasterized=True)
    axes.hlines(np.arange(len(X) + 1), 0, X.shape[1], color="white", linewidth=1.5)
    axes.set(title=title, xlabel="feature", yticks=[])
    axes.spines[:].set_visible(False)


def plot_bars(axes: Axes, series: Mapping[str, Array], label: str, title: str) -> None:
    """Plot the leading values of several series as grouped bars over their rank."""
    width = 0.8 / len(series)
    for k, (name, values) in enumerate(series.items()):
        ranks = np.arange(1, len(values) + 1)
        places = ranks + (k - (len(series) - 1) / 2) * width
        axes.bar(places, values, width, color=COLOURS[k], label=name)
    axes.set(title=title, xlabel="rank", ylabel=label, xticks=ranks)
    axes.legend()


def plot_curves(
    axes: Axes,
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    labels: tuple[str, str],
    title: str,
    lines: bool = True,
    first: int = 0,
) -> None:
    """Plot several series of (x, y) as markers, optionally joined; `labels` name the axes.

    Colours and markers start at index `first`.
    """
    width = 1.2 if lines else 0.0
    for k, (name, (x, y)) in enumerate(series.items(), first):
        colour, marker = COLOURS[k], MARKERS[k]
        axes.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=width, label=name)
    axes.set(title=title, xlabel=labels[0], ylabel=labels[1])
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend()


def plot_ranges(
    axes: Axes,
    series: Mapping[str, tuple[ArrayLike, Array]],
    labels: tuple[str, str],
    title: str,
    first: int = 0,
) -> None:
    """Plot medians over x as `plot_curves` does, on bands from the smallest to the largest value.

    The series are (x, values): (n,) and (n, n_repeats); NaN leaves a gap.
    """
    medians = {name: (x, np.median(values, axis=1)) for name, (x, values) in series.items()}
    plot_curves(axes, medians, labels, title, first=first)
    for colour, (x, values) in zip(COLOURS[first:], series.values(), strict=False):
        low, high = values.min(axis=1), values.max(axis=1)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def set_log_scales(axes: Axes, last: int) -> None:
    """Make both axes logarithmic; the lower axis covers ranks up to the last."""
    axes.set(xscale="log", yscale="log")
    ticks = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
    axes.set_xticks([tick for tick in ticks if tick <= last])
    axes.xaxis.set_major_formatter("{x:g}")
