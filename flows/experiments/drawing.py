"""Figures of the experiments, described as those of the report: images, curves over x.

The renderer of pictures is imported only when a figure is written, because Matplotlib is slow to
import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flows.report.figures.axes import fit_axis, fit_log_axis
from flows.report.figures.colours import COLOURS, GREY, MARKERS, ColourScale
from flows.report.figures.marks import (
    AreaMark,
    Axis,
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RasterMark,
    TextMarks,
)
from pipeline.errors import FitError

Array = NDArray[np.float64]
Series = Mapping[str, tuple[ArrayLike, ArrayLike]]
"""x, (n,), and values, (n,) or (n, n_repeats), by name."""

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
PAGE_WIDTH = 1060
_FRAME_COLOUR = "#dde1e5"
_GAP = 0.12  # between images; lengths are in widths of an image
_CAPTION_HEIGHT, _CAPTION_PLACE, _LABEL_WIDTH = 0.42, 0.2, 2.3
_IMAGE_SIZE, _IMAGE_PIXELS = 82, 120  # width of an image on the page, and in the picture
_PANEL_HEIGHT, _TOP_MARGIN = 300, 8


def check_figure_suffix(path: Path) -> None:
    """Raise FitError if the suffix is not one of `FIGURE_SUFFIXES`."""
    if path.suffix not in FIGURE_SUFFIXES:
        raise FitError(
            f"{{output}} is {str(path)!r}, but must end in {', '.join(FIGURE_SUFFIXES)}."
        )


def figure_paths(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a figure as PNG and as SVG."""
    return folder / f"{name}.png", folder / f"{name}.svg"


def write_figure(
    *paths: Path,
    panels: Sequence[Sequence[Figure]],
    title: str,
    note: str,
    width: float = PAGE_WIDTH,
) -> None:
    """Write rows of panels with a title above and a note below; suffixes are the formats."""
    for path in paths:
        check_figure_suffix(path)
    from flows.report.pictures import render_panels

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        kind: Any = path.suffix[1:]
        path.write_bytes(render_panels(panels, title, note, width, kind))


def make_panel(
    title: str,
    x: Axis,
    y: Axis,
    marks: Sequence[Mark],
    keys: Sequence[LegendKey] = (),
    height: int | None = _PANEL_HEIGHT,
) -> Figure:
    """Describe a panel of a figure; without a height, it is square."""
    return Figure(title, "", Plot(x, y, tuple(marks), height), keys=tuple(keys))


def plot_series(
    title: str,
    series: Series,
    labels: tuple[str, str],
    *,
    more: Series | None = None,
    logs: tuple[bool, bool] = (False, False),
    y_values: ArrayLike | None = None,
    first: int = 0,
    has_lines: bool = True,
    has_keys: bool = True,
) -> Figure:
    """Plot series of values over x, each in its own colour and with its own marker.

    Of several values at an x, the median is plotted, on a band from the smallest to the largest.

    Parameters
    ----------
    title, labels
        Title of the panel and labels of the axes.
    series
        The series; a key of the legend without a name belongs to the series before it.
    more
        Further lines, which are grey and dashed.
    logs
        Whether the axes are logarithmic.
    y_values
        Values that the axis of the values shows; those of the series if it is None.
    first
        Index of the first colour and marker.
    has_lines, has_keys
        Whether the markers are joined, and whether there is a legend.
    """
    scales = [_SCALES[is_log] for is_log in logs]
    marks: list[Mark] = []
    keys = []
    for k, (name, (x, values)) in enumerate(series.items(), first):
        colour, marker = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
        repeats = np.asarray(values, np.float64).reshape(len(np.asarray(x)), -1)
        across = scales[0](np.asarray(x, np.float64))
        y = scales[1](np.median(repeats, axis=1))
        if repeats.shape[1] > 1:
            low, high = repeats.min(axis=1), repeats.max(axis=1)
            marks.append(AreaMark(across, scales[1](low), scales[1](high), colour))
        if has_lines:
            marks.append(LineMarks([np.column_stack([across, y])], [colour]))
        marks.append(PointMarks(across, y, colour, marker))
        keys.append(LegendKey(name, colour, marker))
    for name, (x, values) in (more or {}).items():
        places = [
            scale(np.asarray(v, np.float64)) for scale, v in zip(scales, (x, values), strict=True)
        ]
        marks.append(LineMarks([np.column_stack(places)], [GREY], dash=(6, 4)))
        keys.append(LegendKey(name, GREY, "dash"))
    lines = [*series.values(), *(more or {}).values()]
    all_x = np.concatenate([np.ravel(x) for x, _ in lines]).astype(np.float64)
    all_y = np.concatenate([np.ravel(values) for _, values in lines]).astype(np.float64)
    all_y = all_y if y_values is None else np.ravel(np.asarray(y_values, np.float64))
    x_axis, y_axis = (
        fit_log_axis(values, label) if is_log else fit_axis(values, label)
        for values, label, is_log in zip((all_x, all_y), labels, logs, strict=True)
    )
    return make_panel(title, x_axis, y_axis, marks, keys if has_keys else ())


def _take_logarithm(values: Array) -> Array:
    """Return log₁₀, NaN where it is not finite."""
    return np.log10(values, out=np.full(values.shape, np.nan), where=values > 0)


_SCALES: tuple[Callable[[Array], Array], Callable[[Array], Array]] = (np.asarray, _take_logarithm)


class ImageRow(NamedTuple):
    """A row of images, (n, height, width), with a label and captions; NaN is left blank."""

    label: str
    images: Array
    captions: Sequence[str] = ()


def save_images(
    *paths: Path, rows: Sequence[ImageRow], title: str, note: str, signed: bool = False
) -> None:
    """Draw rows of images, with text above and below.

    If `signed`, each image has its own scale around zero; else opaque blue is 1.
    """
    height = rows[0].images.shape[1] / rows[0].images.shape[2]
    step = height + (_CAPTION_HEIGHT if any(row.captions for row in rows) else _GAP)
    if any(np.isnan(row.images).any() for row in rows):
        note += " Grey: no value."
    left = _LABEL_WIDTH if any(row.label for row in rows) else 0.0
    size = left + max(len(row.images) for row in rows) * (1 + _GAP), len(rows) * step
    corners = [
        (left + c * (1 + _GAP), r * step) for r, row in enumerate(rows) for c in range(len(row[1]))
    ]
    labels = {(0.0, r * step + height / 2): row.label for r, row in enumerate(rows) if row.label}
    captions = {
        (left + c * (1 + _GAP) + 0.5, r * step + height + _CAPTION_PLACE): text
        for r, row in enumerate(rows)
        for c, text in enumerate(row.captions)
    }
    images = np.concatenate([row.images for row in rows])
    marks: list[Mark] = [*mark_images(images, np.array(corners), size, signed)]
    marks += [mark_texts(labels, "right"), mark_texts(captions)]
    width = max(size[0] * _IMAGE_SIZE, 360.0)
    panel = plot_canvas(size, marks, width / size[0])
    write_figure(*paths, panels=[[panel]], title=title, note=note, width=width)


def plot_canvas(size: tuple[float, float], marks: Sequence[Mark], scale: float) -> Figure:
    """Describe a panel without axes; marks have places from the upper left corner.

    `scale` is the width of an image on the page.
    """
    width, height = size
    axes = Axis(0.0, width, has_lines=False), Axis(height, 0.0, has_lines=False)
    return make_panel("", *axes, marks, height=round(scale * height) + _TOP_MARGIN)


def mark_images(
    images: Array, corners: Array, size: tuple[float, float], signed: bool = False
) -> tuple[RasterMark, LineMarks]:
    """Draw images of width 1, with frames, on an area that they share.

    Parameters
    ----------
    images
        (n, height, width); NaN is grey.
    corners
        Upper left corner of each image, from the upper left one of the area, (n, 2).
    size
        Width and height of the area, in widths of an image.
    signed
        Whether each image has its own scale around zero; else opaque blue is 1.
    """
    n, height, width = images.shape
    down = round(_IMAGE_PIXELS * height / width)
    rows = np.arange(down) * height // down
    columns = np.arange(_IMAGE_PIXELS) * width // _IMAGE_PIXELS
    area = np.zeros([round(_IMAGE_PIXELS * length) for length in size[::-1]])
    for image, (x, y) in zip(images, np.rint(corners * _IMAGE_PIXELS).astype(int), strict=True):
        top = max(float(np.nanmax(np.abs(image))), 1e-12) if signed else 1.0
        area[y : y + down, x : x + _IMAGE_PIXELS] = (image / top)[np.ix_(rows, columns)]
    frame = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]) * [1, height / width]
    frames = LineMarks([corner + frame for corner in corners], [_FRAME_COLOUR] * n, 1.0)
    return RasterMark(area, ColourScale(1.0, signed, missing_opacity=77)), frames


def mark_texts(texts: Mapping[tuple[float, float], str], side: Any = "centre") -> TextMarks:
    """Write texts at places."""
    places = np.array([*texts], np.float64).reshape(-1, 2)
    return TextMarks(places[:, 0], places[:, 1], [*texts.values()], side=side)
