"""Render figures as PNG, SVG or PDF with Matplotlib.

A picture has the plot or images of a figure on the page, and its legend, on white. Titles and notes
are left to the caption in the paper. Lengths are pixels of the page; in a plot, one pixel is one
point of Matplotlib. SVG and PDF are as wide as one or two columns of a journal, and their text
stays text.
"""

from __future__ import annotations

import base64
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple, assert_never

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.backends.backend_pdf import Op, PdfFile, RendererPdf
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure as Sheet
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Stroke
from matplotlib.textpath import text_to_path
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Bbox, ScaledTranslation
from numpy.typing import NDArray
from PIL import Image as Picture

from flows.report.figures.colours import GREY, ColourRamp
from flows.report.figures.marks import (
    AreaMark,
    Axis,
    BarMarks,
    CaptionedImage,
    CellMarks,
    Figure,
    HoverColumns,
    LegendKey,
    LineMarks,
    Mark,
    PictureFormat,
    Plot,
    PointMarks,
    RasterMark,
    RuleMark,
    TextMarks,
)
from flows.report.figures.text import shorten_texts

_RC_PARAMS: Any = {
    "axes.formatter.limits": (-4, 9),
    "axes.formatter.useoffset": False,
    "axes.labelsize": 12,
    "font.family": "DejaVu Sans",  # part of Matplotlib, so pictures are the same everywhere
    "font.size": 12,
    "lines.scale_dashes": False,
    "pdf.fonttype": 42,  # TrueType, which other programs can edit
    "svg.fonttype": "none",
    "svg.hashsalt": "latentbits",
    "text.parse_math": False,  # a name may look like TeX
}
_RESOLUTION = 1.75  # pixels of a PNG per pixel of the page
_MARGIN = 16.0
_TITLE_SIZE, _KEY_SIZE, _CAPTION_SIZE = 17.0, 14.0, 12.0  # font sizes
_PANEL_GAP = 24.0
_LINE_HEIGHT, _GAP_ABOVE = 20.0, 8.0
_KEY_WIDTH, _KEY_GAP, _MAX_KEY_LENGTH = 18.0, 18.0, 60
_TILE_WIDTH, _TILE_GAP = 104.0, 14.0
_NARROW_WIDTH = 520.0
_MAX_NARROW_IMAGES = 4  # images that fit in a narrow picture
_ONE_COLUMN_MM, _TWO_COLUMNS_MM = 89.0, 183.0  # as in Nature and Science
_POINTS_PER_PIXEL = 7 / 12  # the smallest letters have 7 points in print
_POINTS_PER_MM = 72 / 25.4
_INVALID_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_FONT_FALLBACK = "'DejaVu Sans', Verdana, sans-serif"  # Verdana has the same widths
_RAMP_SIZE = (160.0, 10.0)
# Colours of the page's style sheet on light paper.
TEXT_COLOUR, SOFT_TEXT_COLOUR, RULE_COLOUR, GRID_COLOUR = "#1d2329", "#5b6570", "#dde1e5", "#eceff1"
MATPLOTLIB_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "d",
    "inverted_triangle": "v",
    "plus": "+",
}
_MAX_NAME_LENGTHS = {"bottom": 18, "left": 40}  # letters next to an axis
# A name on a line is drawn above white letters, so that it stays text.
_HALO = Stroke(linewidth=3, foreground="white")
_CELL_GAP = 1.5
_TEXT_SIZE, _TEXT_SHIFT = 11, 6
_TEXT_ROOM = 0.6  # of a name's width, on either side; names closer to an edge are aligned with it


class _SheetPart(NamedTuple):
    """A part of the picture; `draw` takes the paper, the left edge and the upper edge."""

    height: float
    draw: Callable[[Axes, float, float], None]


def render_picture(figure: Figure, kind: PictureFormat = "png") -> bytes:
    """Render a figure; equal figures give equal bytes."""
    with rc_context(_RC_PARAMS), _ignore_missing_glyphs():
        width = _NARROW_WIDTH if 0 < len(figure.images) <= _MAX_NARROW_IMAGES else figure.width
        if kind == "png":
            return _encode_png(_render_sheet(figure, width))
        columns = (
            _TWO_COLUMNS_MM if width > _NARROW_WIDTH or _has_names(figure.plot) else _ONE_COLUMN_MM
        )
        return _VECTORS[kind](
            _render_sheet(figure, columns * _POINTS_PER_MM / _POINTS_PER_PIXEL - 2 * _MARGIN)
        )


def _has_names(plot: Plot | None) -> bool:
    """Return whether a plot has names among its marks, which need a wide picture."""
    return plot is not None and any(isinstance(mark, TextMarks) for mark in plot.marks)


def render_panels(
    rows: Sequence[Sequence[Figure]],
    title: str,
    note: str,
    width: float,
    kind: PictureFormat = "png",
) -> bytes:
    """Render figures side by side in rows, with a title above and a note below all of them.

    `width` is that of the picture, which the figures of a row share. Unlike in other pictures, the
    title of a figure is written above it; its own note is not.
    """
    with rc_context(_RC_PARAMS), _ignore_missing_glyphs():
        parts = [_make_text_part(title, width, _TITLE_SIZE, TEXT_COLOUR)]
        for figures in rows:
            room = (width + _PANEL_GAP) / len(figures) - _PANEL_GAP
            panels = [_stack_parts(_iter_panel_parts(figure, room)) for figure in figures]
            parts.append(_place_side_by_side(panels, room + _PANEL_GAP))
        parts.append(_make_text_part(note, width, _CAPTION_SIZE, SOFT_TEXT_COLOUR))
        sheet = _draw_part(_stack_parts(parts), width)
        return _encode_png(sheet) if kind == "png" else _VECTORS[kind](sheet)


def _iter_panel_parts(figure: Figure, width: float) -> Iterator[_SheetPart]:
    if figure.title:
        yield _make_text_part(figure.title, width, _KEY_SIZE, TEXT_COLOUR)
    yield from _iter_parts(figure, width)


def _stack_parts(parts: Iterable[_SheetPart]) -> _SheetPart:
    """Join parts, one below the other."""
    parts = [*parts]

    def draw(paper: Axes, left: float, top: float) -> None:
        for part in parts:
            part.draw(paper, left, top)
            top += part.height

    return _SheetPart(sum(part.height for part in parts), draw)


def _place_side_by_side(parts: Sequence[_SheetPart], step: float) -> _SheetPart:
    def draw(paper: Axes, left: float, top: float) -> None:
        for k, part in enumerate(parts):
            part.draw(paper, left + k * step, top)

    return _SheetPart(max(part.height for part in parts) + _GAP_ABOVE, draw)


def _make_text_part(text: str, room: float, size: float, colour: str) -> _SheetPart:
    """Write a text in as many lines as it needs."""
    n_letters = int(0.95 * room * len(text) / max(_measure_text(text, size), 1.0))
    lines = textwrap.wrap(text, max(10, n_letters))

    def draw(paper: Axes, left: float, top: float) -> None:
        style: Any = {"size": size, "color": colour, "va": "top", "linespacing": 1.3}
        paper.text(left, top + _GAP_ABOVE, "\n".join(lines), **style)

    return _SheetPart(_GAP_ABOVE + 1.5 * size * len(lines) if lines else 0.0, draw)


def _render_sheet(figure: Figure, width: float) -> Sheet:
    return _draw_part(_stack_parts(_iter_parts(figure, width)), width)


def _draw_part(part: _SheetPart, width: float) -> Sheet:
    paper = _make_paper(width, part.height)
    part.draw(paper, 0.0, 0.0)
    return _get_sheet(paper)


def _encode_png(sheet: Sheet) -> bytes:
    file = BytesIO()
    sheet.savefig(file, format="png")
    return file.getvalue()


def _encode_svg(sheet: Sheet) -> bytes:
    """Return an SVG with its size in print."""
    file = BytesIO()
    sheet.savefig(file, format="svg", metadata={"Date": None})
    width, height = (72 * _POINTS_PER_PIXEL * inches for inches in sheet.get_size_inches())
    size = f'<svg \\1width="{width:.2f}pt" height="{height:.2f}pt"'
    text = re.sub(r'<svg ([^>]*?)width="\S+" height="\S+"', size, file.getvalue().decode(), count=1)
    text = text.replace("family: 'DejaVu Sans'", f"family: {_FONT_FALLBACK}")
    return _INVALID_XML.sub("\ufffd", text).encode()


def _encode_pdf(sheet: Sheet) -> bytes:
    """Return a PDF page on which a pixel is `_POINTS_PER_PIXEL` points, not one as usual."""
    file, (width, height) = BytesIO(), sheet.get_size_inches()
    page = PdfFile(file, metadata={"CreationDate": None})
    page.newPage(width * _POINTS_PER_PIXEL, height * _POINTS_PER_PIXEL)
    page.width, page.height = width, height  # clips the drawing
    page.output(_POINTS_PER_PIXEL, 0, 0, _POINTS_PER_PIXEL, 0, 0, Op.concat_matrix)
    sheet.set_dpi(72)
    renderer = RendererPdf(page, 72, height, width)
    sheet.draw(renderer)
    renderer.finalize()
    page.finalize()
    page.close()
    return file.getvalue()


_VECTORS = {"svg": _encode_svg, "pdf": _encode_pdf}


@contextmanager
def _ignore_missing_glyphs() -> Iterator[None]:
    """Silence warnings about letters that the font lacks; they become boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _make_paper(width: float, height: float) -> Axes:
    """Create invisible axes in pixels of the page, with the origin at the top left."""
    sizes = (width + 2 * _MARGIN) / 72, (height + 2 * _MARGIN) / 72
    sheet = Sheet(figsize=sizes, dpi=72 * _RESOLUTION, facecolor="white")
    paper = sheet.add_axes((0, 0, 1, 1))
    paper.set(xlim=(-_MARGIN, width + _MARGIN), ylim=(height + _MARGIN, -_MARGIN))
    paper.set_autoscale_on(False)
    paper.axis("off")
    return paper


def _get_sheet(axes: Axes) -> Sheet:
    sheet = axes.get_figure(root=True)
    assert sheet is not None
    return sheet


def _iter_parts(figure: Figure, width: float) -> Iterator[_SheetPart]:
    yield (
        _make_plot_part(figure.plot, width)
        if figure.plot
        else _make_images_part(figure.images, width)
    )
    if figure.keys:
        yield _make_keys_part(figure.keys, width)
    if figure.ramp:
        yield _make_ramp_part(figure.ramp)


def _measure_text(text: str, size: float) -> float:
    font = FontProperties(family=_RC_PARAMS["font.family"], size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def _flow_items(widths: Sequence[float], gap: float, room: float) -> list[tuple[int, float]]:
    """Lay out items in rows no wider than `room`; return row and left edge of each."""
    places, row, x = [], 0, 0.0
    for width in widths:
        if x and x + width > room:
            row, x = row + 1, 0.0
        places.append((row, x))
        x += width + gap
    return places


def _make_plot_part(plot: Plot, width: float) -> _SheetPart:
    height = plot.height or width

    def draw(paper: Axes, left: float, top: float) -> None:
        corners = [(left, top + height), (left + width, top + _GAP_ABOVE)]
        place = Bbox(paper.transData.transform(corners))
        axes = _get_sheet(paper).add_axes((0, 0, 1, 1), facecolor="none")
        _set_position(axes, place)
        render_plot_in_axes(axes, plot)
        # The size depends on the tick labels, which depend on the size.
        for _ in range(2):
            _set_position(axes, _leave_room_for_ticks(axes, place))

    return _SheetPart(height, draw)


def _set_position(axes: Axes, place: Bbox) -> None:
    axes.set_position(place.transformed(_get_sheet(axes).transFigure.inverted()).bounds)


def _leave_room_for_ticks(axes: Axes, place: Bbox) -> Bbox:
    """Shrink a place, in pixels of the picture, by the room that tick labels need."""
    axes.apply_aspect()
    boxes = [axis.get_tightbbox() for axis in (axes.xaxis, axes.yaxis) if axis.get_visible()]
    inner, outer = axes.bbox, Bbox.union([axes.bbox, *(box for box in boxes if box is not None)])
    lower_corner = place.p0 + inner.p0 - outer.p0
    upper_corner = place.p1 + inner.p1 - outer.p1
    return Bbox.from_extents(*lower_corner, *upper_corner)


def _make_keys_part(keys: Sequence[LegendKey], room: float) -> _SheetPart:
    names = [_shorten_key(key.name) for key in keys]
    places = _flow_items(
        [_KEY_WIDTH + _measure_text(name, _KEY_SIZE) for name in names], _KEY_GAP, room
    )

    def draw(paper: Axes, left: float, top: float) -> None:
        for key, name, (row, x) in zip(keys, names, places, strict=True):
            x, middle = left + x, top + _GAP_ABOVE + (row + 0.5) * _LINE_HEIGHT
            if key.marker in ("dash", "line"):
                style: Any = {"color": key.colour, "linewidth": 2}
                style["linestyle"] = (0, (4, 4)) if key.marker == "dash" else "solid"
                paper.plot([x, x + 12], [middle, middle], **style)
            else:
                style = {"color": key.colour, "ms": 8, "mew": 2 if key.marker == "plus" else 1}
                paper.plot(x + 6, middle, MATPLOTLIB_MARKERS[key.marker], **style)
            text_style: Any = {"size": _KEY_SIZE, "color": TEXT_COLOUR, "va": "center_baseline"}
            paper.text(x + _KEY_WIDTH, middle, name, **text_style)

    return _SheetPart(_GAP_ABOVE + (places[-1][0] + 1) * _LINE_HEIGHT, draw)


def _shorten_key(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= _MAX_KEY_LENGTH else name[: _MAX_KEY_LENGTH - 1] + "…"


def _make_ramp_part(ramp: ColourRamp) -> _SheetPart:
    def draw(paper: Axes, left: float, top: float) -> None:
        middle, (width, height) = top + _GAP_ABOVE + _LINE_HEIGHT / 2, _RAMP_SIZE
        low, high = _shorten_key(ramp.low), _shorten_key(ramp.high)
        style: Any = {"size": _KEY_SIZE, "color": TEXT_COLOUR, "va": "center_baseline"}
        paper.text(left, middle, low, **style)
        left += _measure_text(low, _KEY_SIZE) + 10
        paper.text(left + width + 10, middle, high, **style)
        colours = _blend_on_white(to_rgba_array(ramp.colours))
        shares = np.linspace(0, len(colours) - 1, 256)
        shades = [np.interp(shares, np.arange(len(colours)), channel) for channel in colours.T]
        _render_tile(
            paper, np.stack(shades, axis=-1)[None], (left, middle - height / 2), (width, height)
        )

    return _SheetPart(_GAP_ABOVE + _LINE_HEIGHT, draw)


def _blend_on_white(rgba: NDArray[np.float64]) -> NDArray[np.float64]:
    opacity = rgba[..., 3:]
    return rgba[..., :3] * opacity + 1 - opacity


def _render_tile(
    paper: Axes, pixels: NDArray[np.float64], corner: tuple[float, float], size: tuple[float, float]
) -> None:
    (x, y), (width, height) = corner, size
    place = (x, x + width, y + height, y)
    paper.imshow(pixels, extent=place, aspect="auto", interpolation="nearest")
    paper.add_patch(
        Rectangle(corner, width, height, fill=False, edgecolor=RULE_COLOUR, linewidth=1)
    )


def _make_images_part(images: Sequence[CaptionedImage], room: float) -> _SheetPart:
    pixels = [_decode_data_uri(image.uri) for image in images]
    n_columns = _count_columns(len(images), room)
    width = (room + _TILE_GAP) / n_columns - _TILE_GAP
    height = width * pixels[0].shape[0] / pixels[0].shape[1]
    step = height + _LINE_HEIGHT + _TILE_GAP

    def draw(paper: Axes, left: float, top: float) -> None:
        for k, (picture, image) in enumerate(zip(pixels, images, strict=True)):
            row, column = divmod(k, n_columns)
            x, y = left + column * (width + _TILE_GAP), top + _GAP_ABOVE + row * step
            _render_tile(paper, picture, (x, y), (width, height))
            style: Any = {"size": _CAPTION_SIZE, "color": SOFT_TEXT_COLOUR}
            middle, below = x + width / 2, y + height + 4
            paper.text(middle, below, image.caption, ha="center", va="top", **style)

    return _SheetPart(_GAP_ABOVE + -(-len(images) // n_columns) * step - _TILE_GAP, draw)


def _count_columns(n_images: int, room: float) -> int:
    """Return the number of columns that fills as few rows as possible, as evenly as possible."""
    max_columns = int((room + _TILE_GAP) // (_TILE_WIDTH + _TILE_GAP))
    n_rows = -(-n_images // max_columns)
    return -(-n_images // n_rows)


def _decode_data_uri(uri: str) -> NDArray[np.float64]:
    """Read a picture from a data URI, on white: red, green and blue from 0 to 1."""
    file = BytesIO(base64.b64decode(uri.partition(",")[2]))
    return _blend_on_white(np.asarray(Picture.open(file).convert("RGBA"), np.float64) / 255)


def render_plot_in_axes(axes: Axes, plot: Plot) -> None:
    """Draw a plot into empty axes."""
    for order, mark in enumerate(plot.marks, 3):
        _render_mark(axes, plot, mark, order)
    axes.set(xlim=(plot.x.low, plot.x.high), ylim=(plot.y.low, plot.y.high))
    axes.set_axisbelow(True)
    _format_axis(axes, axes.xaxis, plot.x, "bottom")
    _format_axis(axes, axes.yaxis, plot.y, "left")
    axes.spines[["top", "right"]].set_visible(False)
    if plot.height is None:
        axes.set_box_aspect(1)


def _render_mark(axes: Axes, plot: Plot, mark: Mark, order: int) -> None:
    match mark:
        case PointMarks():
            sizes = np.broadcast_to(np.asarray(mark.size, np.float64), len(mark.x))
            style: Any = {"marker": MATPLOTLIB_MARKERS[mark.marker], "zorder": order}
            marks = axes.scatter(mark.x, mark.y, sizes**2, **style)
            marks.set(color=(mark.colour, mark.opacity))
            marks.set_linewidth(2 if mark.marker == "plus" else 0)
        case LineMarks():
            style = {
                "linewidths": mark.width,
                "linestyles": [_make_line_style(mark.dash)],
                "zorder": order,
            }
            axes.add_collection(LineCollection(mark.points, colors=mark.colours, **style))
        case AreaMark():
            style = {"color": mark.colour, "alpha": mark.opacity, "linewidth": 0, "zorder": order}
            axes.fill_between(mark.x, mark.low, mark.high, **style)
        case BarMarks():
            style = {"color": mark.colours, "linewidth": 0, "zorder": order}
            axes.barh(mark.y, mark.right - mark.left, mark.height, mark.left, **style)
        case HoverColumns():
            pass
        case CellMarks():
            n_rows, n_columns = mark.values.shape
            edges = np.arange(n_columns + 1) - 0.5, np.arange(n_rows + 1) - 0.5
            style = {"edgecolor": "white", "linewidth": _CELL_GAP, "zorder": order}
            axes.pcolormesh(*edges, mark.scale.paint(mark.values) / 255, **style)
        case RasterMark():
            extent = (plot.x.low, plot.x.high, plot.y.low, plot.y.high)
            style = {"aspect": "auto", "interpolation": "nearest", "zorder": order}
            axes.imshow(mark.scale.paint(mark.values), extent=extent, **style)
        case TextMarks():
            style = {"clip_on": True, "size": _TEXT_SIZE, "zorder": order}
            style["va"] = "bottom" if mark.side == "above" else "center"
            if mark.side == "right":
                shift = ScaledTranslation(_TEXT_SHIFT / 72, 0, _get_sheet(axes).dpi_scale_trans)
                style["transform"] = axes.transData + shift
            colours = mark.colours or [TEXT_COLOUR] * len(mark.texts)
            for x, y, text, colour in zip(mark.x, mark.y, mark.texts, colours, strict=True):
                share = (x - plot.x.low) / (plot.x.high - plot.x.low)
                half = _TEXT_ROOM * _measure_text(text, _TEXT_SIZE) / _measure_width(axes)
                is_left, is_right = share < half, share > 1 - half
                style["ha"] = "right" if is_right else "left" if is_left else "center"
                if mark.side == "right":
                    style["ha"] = "left"
                axes.text(x, y, text, path_effects=[_HALO], **style)
                axes.text(x, y, text, color=colour, **style)
        case RuleMark():
            across = axes.axvline if mark.axis == "x" else axes.axhline
            across(mark.place, color=GREY, linewidth=1, linestyle=_make_line_style(mark.dash))
        case _:
            assert_never(mark)


def _measure_width(axes: Axes) -> float:
    """Return the width of the axes in points; tick labels may still make them narrower."""
    return float(72 * axes.bbox.width / _get_sheet(axes).dpi)


def _make_line_style(lengths: tuple[int, ...]) -> Any:
    return (0.0, lengths) if lengths else "solid"


def _format_axis(axes: Axes, side: MatplotlibAxis, axis: Axis, spine: str) -> None:
    """Label an axis, with its ticks and lines across the plot."""
    side.set_label_text(axis.label, color=SOFT_TEXT_COLOUR)
    side.set_ticks([tick.place for tick in axis.ticks])
    texts = [tick.text for tick in axis.ticks]
    side.set_ticklabels(shorten_texts(texts, _MAX_NAME_LENGTHS[spine]))
    side.set_minor_locator(NullLocator())
    length = 5 if axis.has_lines else 0
    side.set_tick_params(length=length, color=RULE_COLOUR, labelcolor=TEXT_COLOUR)
    if axis.has_lines:
        side.grid(color=GRID_COLOUR, linewidth=1)
    axes.spines[spine].set_visible(axis.has_lines)
    axes.spines[spine].set_color(RULE_COLOUR)
