"""The report's figures as still pictures, PNG, SVG or PDF, by Matplotlib and without a browser.

Every picture is drawn from the same `Figure` that the page shows: title, plot or images, what
colours stand for, and how to read it, one below the other on white. Lengths are pixels of the page.
SVG and PDF are as wide as a column of a journal, or as two; their text is text.
"""

from __future__ import annotations

import base64
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
from bokeh.models import Text
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import Op, PdfFile, RendererPdf
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure as Sheet
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from PIL import Image as Picture

from flows.report.figures.plots import CaptionedImage, ColourRamp, Figure, LegendKey
from flows.report.print.redraw import INK, MARKERS, RULE, SOFT, draw_plot

_STYLE: Any = {
    "axes.formatter.limits": (-4, 9),
    "axes.formatter.useoffset": False,
    "axes.labelsize": 12,
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same picture everywhere
    "font.size": 12,
    "lines.scale_dashes": False,
    "pdf.fonttype": 42,  # whole letters, which other programs can edit
    "svg.fonttype": "none",
    "svg.hashsalt": "latentbits",
    "text.parse_math": False,  # names are names, whatever they look like
}
_SCALE = 1.75  # pixels of a picture a pixel of the page
_MARGIN = 16.0
_TITLE, _TEXT, _CAPTION = 17.0, 14.0, 12.0  # sizes of letters
_LINE, _ABOVE = 20.0, 8.0
_TEXT_WIDTH = 704.0
_KEY, _KEY_GAP, _LONGEST_KEY = 18.0, 18.0, 60
_TILE, _TILE_GAP = 104.0, 14.0
_NARROW = 520.0
_FEW = 4  # so few images stand in a narrow picture
_ONE_COLUMN, _TWO_COLUMNS = 89.0, 183.0  # mm, of Nature and Science
_PIXEL = 7 / 12  # points of print, so that the smallest letters are of 7
_POINTS = 72 / 25.4  # of a mm
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_FALLBACK = "'DejaVu Sans', Verdana, sans-serif"  # Verdana's letters are as wide
_RAMP = (160.0, 10.0)


class _Part(NamedTuple):
    """What stands below one thing and above the next; `draw` takes the paper and the top edge."""

    height: float
    draw: Callable[[Axes, float], None]


Kind = Literal["png", "svg", "pdf"]


def still(figure: Figure, kind: Kind = "png") -> bytes:
    """Draw a figure of the report; the same figure gives the same bytes.

    Raises
    ------
    FitError
        If its plot holds what cannot be drawn.
    """
    with rc_context(_STYLE), _no_words_on_fonts():
        width = _NARROW if 0 < len(figure.images) <= _FEW else figure.width
        if kind == "png":
            return _png(_drawn(figure, width))
        columns = _TWO_COLUMNS if width > _NARROW or _has_names(figure.plot) else _ONE_COLUMN
        return _VECTORS[kind](_drawn(figure, columns * _POINTS / _PIXEL - 2 * _MARGIN))


def _has_names(plot: Any) -> bool:
    """Tell whether names stand among what is drawn, which a narrow picture has no room for."""
    return plot is not None and any(isinstance(r.glyph, Text) for r in plot.renderers)


def _drawn(figure: Figure, width: float) -> Sheet:
    """Draw a figure so many pixels wide, with a margin around it."""
    parts = [*_parts(figure, width)]
    paper = _paper(width, sum(part.height for part in parts))
    top = 0.0
    for part in parts:
        part.draw(paper, top)
        top += part.height
    return _sheet(paper)


def _png(sheet: Sheet) -> bytes:
    file = BytesIO()
    sheet.savefig(file, format="png")
    return file.getvalue()


def _svg(sheet: Sheet) -> bytes:
    """Give a drawing whose size is that in print, whatever the units within."""
    file = BytesIO()
    sheet.savefig(file, format="svg", metadata={"Date": None})
    width, height = (72 * _PIXEL * inches for inches in sheet.get_size_inches())
    size = f'<svg \\1width="{width:.2f}pt" height="{height:.2f}pt"'
    text = re.sub(r'<svg ([^>]*?)width="\S+" height="\S+"', size, file.getvalue().decode(), count=1)
    text = text.replace("family: 'DejaVu Sans'", f"family: {_FALLBACK}")
    return _NO_XML.sub("\ufffd", text).encode()


def _pdf(sheet: Sheet) -> bytes:
    """Give a page on which all is drawn smaller: Matplotlib's own pages have a pixel to a point."""
    file, (width, height) = BytesIO(), sheet.get_size_inches()
    page = PdfFile(file, metadata={"CreationDate": None})
    page.newPage(width * _PIXEL, height * _PIXEL)
    page.width, page.height = width, height  # beyond which it draws nothing
    page.output(_PIXEL, 0, 0, _PIXEL, 0, 0, Op.concat_matrix)
    sheet.set_dpi(72)
    renderer = RendererPdf(page, 72, height, width)
    sheet.draw(renderer)
    renderer.finalize()
    page.finalize()
    page.close()
    return file.getvalue()


_VECTORS = {"svg": _svg, "pdf": _pdf}


@contextmanager
def _no_words_on_fonts() -> Iterator[None]:
    """Names may have letters that the font has not: these become boxes, which says enough."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _paper(width: float, height: float) -> Axes:
    """Make invisible axes in pixels of the page, from the top left, within a margin."""
    sizes = (width + 2 * _MARGIN) / 72, (height + 2 * _MARGIN) / 72
    sheet = Sheet(figsize=sizes, dpi=72 * _SCALE, facecolor="white")
    paper = sheet.add_axes((0, 0, 1, 1))
    paper.set(xlim=(-_MARGIN, width + _MARGIN), ylim=(height + _MARGIN, -_MARGIN))
    paper.set_autoscale_on(False)
    paper.axis("off")
    return paper


def _sheet(paper: Axes) -> Sheet:
    sheet = paper.get_figure(root=True)
    assert sheet is not None
    return sheet


def _parts(figure: Figure, width: float) -> Iterator[_Part]:
    yield _words(figure.title, width, _TITLE, INK, "bold")
    yield _images(figure.images, width) if figure.images else _plot(figure.plot, width)
    if figure.keys:
        yield _keys(figure.keys, width)
    if figure.ramp:
        yield _ramp(figure.ramp)
    if figure.note:
        yield _words(figure.note, min(width, _TEXT_WIDTH), _TEXT, SOFT)


def _width(text: str, size: float, weight: str = "normal") -> float:
    font = FontProperties(family=_STYLE["font.family"], size=size, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def _flowed(widths: Sequence[float], gap: float, room: float) -> list[tuple[int, float]]:
    """Place things side by side in rows no wider than the room: row and left edge of each."""
    places, row, x = [], 0, 0.0
    for width in widths:
        if x and x + width > room:
            row, x = row + 1, 0.0
        places.append((row, x))
        x += width + gap
    return places


def _words(text: str, room: float, size: float, colour: str, weight: str = "normal") -> _Part:
    words = text.split()
    places = _flowed([_width(word, size, weight) for word in words], 0.32 * size, room)
    lines = [""] * (places[-1][0] + 1)
    for word, (row, _) in zip(words, places, strict=True):
        lines[row] += f" {word}" if lines[row] else word
    step = 1.43 * size

    def draw(paper: Axes, top: float) -> None:
        style: Any = {"size": size, "color": colour, "weight": weight}
        for row, line in enumerate(lines):
            paper.text(0, top + _ABOVE + row * step + 0.8 * size, line, **style)

    return _Part(_ABOVE + len(lines) * step, draw)


def _plot(plot: Any, width: float) -> _Part:
    grown = width / plot.width if plot.sizing_mode == "scale_width" else 1.0
    height = plot.height * grown

    def draw(paper: Axes, top: float) -> None:
        corners = [(0, top + height), (width, top + _ABOVE)]
        place = Bbox(paper.transData.transform(corners))
        axes = _sheet(paper).add_axes((0, 0, 1, 1), facecolor="none")
        _put(axes, place)
        draw_plot(axes, plot)
        # Names of ticks depend on the size, which depends on them.
        for _ in range(2):
            _put(axes, _shrunk(axes, place))

    return _Part(height, draw)


def _put(axes: Axes, place: Bbox) -> None:
    sheet = axes.get_figure(root=True)
    assert sheet is not None
    axes.set_position(place.transformed(sheet.transFigure.inverted()).bounds)


def _shrunk(axes: Axes, place: Bbox) -> Bbox:
    """Leave room within a place, in pixels of the picture, for what stands beside the axes."""
    axes.apply_aspect()
    drawn = [axis.get_tightbbox() for axis in (axes.xaxis, axes.yaxis) if axis.get_visible()]
    own, whole = axes.bbox, Bbox.union([axes.bbox, *(box for box in drawn if box is not None)])
    left, below = place.p0 + own.p0 - whole.p0
    right, above = place.p1 + own.p1 - whole.p1
    return Bbox.from_extents(left, below, right, above)


def _keys(keys: Sequence[LegendKey], room: float) -> _Part:
    names = [_cut(key.name) for key in keys]
    places = _flowed([_KEY + _width(name, _TEXT) for name in names], _KEY_GAP, room)

    def draw(paper: Axes, top: float) -> None:
        for key, name, (row, x) in zip(keys, names, places, strict=True):
            middle = top + _ABOVE + (row + 0.5) * _LINE
            if key.marker == "dash":
                ends = ([x, x + 12], [middle, middle])
                paper.plot(*ends, color=key.colour, linewidth=2, linestyle=(0, (4, 4)))
            else:
                style: Any = {"color": key.colour, "ms": 8, "mew": 2 if key.marker == "plus" else 1}
                paper.plot(x + 6, middle, MARKERS[key.marker], **style)
            paper.text(x + _KEY, middle, name, size=_TEXT, color=INK, va="center_baseline")

    return _Part(_ABOVE + (places[-1][0] + 1) * _LINE, draw)


def _cut(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= _LONGEST_KEY else name[: _LONGEST_KEY - 1] + "…"


def _ramp(ramp: ColourRamp) -> _Part:
    def draw(paper: Axes, top: float) -> None:
        middle, (width, height) = top + _ABOVE + _LINE / 2, _RAMP
        low, high = _cut(ramp.low), _cut(ramp.high)
        left = _width(low, _TEXT) + 10
        style: Any = {"size": _TEXT, "color": INK, "va": "center_baseline"}
        paper.text(0, middle, low, **style)
        paper.text(left + width + 10, middle, high, **style)
        colours = _on_white(to_rgba_array(ramp.colours))
        shares = np.linspace(0, len(colours) - 1, 256)
        shades = [np.interp(shares, np.arange(len(colours)), part) for part in colours.T]
        _tile(paper, np.stack(shades, axis=-1)[None], (left, middle - height / 2), (width, height))

    return _Part(_ABOVE + _LINE, draw)


def _on_white(rgba: NDArray[np.float64]) -> NDArray[np.float64]:
    opacity = rgba[..., 3:]
    return rgba[..., :3] * opacity + 1 - opacity


def _tile(
    paper: Axes,
    pixels: NDArray[np.float64],
    corner: tuple[float, float],
    size: tuple[float, float],
) -> None:
    """Draw pixels with a thin line around them."""
    (x, y), (width, height) = corner, size
    place = (x, x + width, y + height, y)
    paper.imshow(pixels, extent=place, aspect="auto", interpolation="nearest")
    paper.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=RULE, linewidth=1))


def _images(images: Sequence[CaptionedImage], room: float) -> _Part:
    pixels = [_decoded(image.uri) for image in images]
    n_columns = _n_columns(len(images), room)
    width = (room + _TILE_GAP) / n_columns - _TILE_GAP
    height = width * pixels[0].shape[0] / pixels[0].shape[1]
    step = height + _LINE + _TILE_GAP

    def draw(paper: Axes, top: float) -> None:
        for k, (picture, image) in enumerate(zip(pixels, images, strict=True)):
            row, column = divmod(k, n_columns)
            x, y = column * (width + _TILE_GAP), top + _ABOVE + row * step
            _tile(paper, picture, (x, y), (width, height))
            below: Any = {"size": _CAPTION, "color": SOFT, "ha": "center", "va": "top"}
            paper.text(x + width / 2, y + height + 4, image.caption, **below)

    return _Part(_ABOVE + -(-len(images) // n_columns) * step - _TILE_GAP, draw)


def _n_columns(n_images: int, room: float) -> int:
    """Fill as few rows as may be, all but the last alike."""
    most = int((room + _TILE_GAP) // (_TILE + _TILE_GAP))
    n_rows = -(-n_images // most)
    return -(-n_images // n_rows)


def _decoded(uri: str) -> NDArray[np.float64]:
    """Read a picture from a data URI, on white: red, green and blue from 0 to 1."""
    file = BytesIO(base64.b64decode(uri.partition(",")[2]))
    return _on_white(np.asarray(Picture.open(file).convert("RGBA"), np.float64) / 255)
