"""Figures in print: what is in the pictures is what the figures say."""

from __future__ import annotations

import base64
import re
import warnings
import zlib
from colorsys import rgb_to_hsv
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Sheet
from PIL import Image as Picture

from flows.report.figures.axes import (
    fit_axis,
    make_axis,
    make_name_axis,
    plot_curve,
    plot_heat_map,
)
from flows.report.figures.colours import COLOURS, ColourRamp, ColourScale
from flows.report.figures.images import render_images
from flows.report.figures.marks import (
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RasterMark,
    TextMarks,
)
from flows.report.figures.text import make_slug, make_unique_slugs
from flows.report.inputs import FigureOptions
from flows.report.page import build_report_from_artifact
from flows.report.pictures import render_picture, render_plot_in_axes
from pipeline.models.registry import find_models
from storage import load_artifact
from storage.dataset.dataset import open_dataset
from tests.flows.hostile import HOSTILE
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import build_model, mark_models, write_fit

SIZE = 400


def drawn(plot: Any) -> Axes:
    """A plot alone, in axes that fill the picture."""
    axes = Sheet(figsize=(SIZE / 100, SIZE / 100), dpi=100).add_axes((0, 0, 1, 1))
    render_plot_in_axes(axes, plot)
    return axes


def square(*marks: Mark, low: float = -1, high: float = 1) -> Plot:
    """A plot whose axes are drawn without lines, so that marks alone have colours."""
    axis = replace(make_axis(low, high), has_lines=False)
    return Plot(axis, axis, marks)


def pixels(axes: Axes) -> np.ndarray:
    """Red, green, blue of every pixel, from the bottom: (SIZE, SIZE, 3)."""
    file = BytesIO()
    axes.figure.savefig(file)
    return decoded(file.getvalue())[::-1]


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Picture.open(BytesIO(png)).convert("RGB"), int)


def on_white(colour: str, share: float) -> np.ndarray:
    return 255 - share * (255 - np.array([*bytes.fromhex(colour[1:])]))


def at(axes: Axes, image: np.ndarray, x: float, y: float) -> np.ndarray:
    """The pixel at a point of the data."""
    column, row = axes.transData.transform((x, y)).astype(int)
    return image[row, column]


def shown(image: np.ndarray, colour: np.ndarray) -> int:
    """How many pixels have a colour, give or take rounding."""
    return int((np.abs(image - colour).max(axis=-1) <= 2).sum())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(900, 9, 2, seed=3)
    segments = np.array(["a", "b", "c"])[np.arange(900) * 3 // 900]
    group = np.where(X.sum(axis=1) > 4, "high", "low")
    path = tmp_path_factory.mktemp("print") / "probit.zarr"
    write_arrays(path, X, segments=segments, columns={"group": group})
    return path


@pytest.mark.parametrize(
    "model",
    mark_models(
        [*sorted(find_models()), "latent-trait:1"],
        "",
        "blica clipped-pca hidden-tree latent-trait latent-trait:1 noisy-or tree-mixture",
    ),
)
def test_every_figure_of_every_model_is_drawn(data, tmp_path, model):
    name, _, n_components = model.partition(":")
    built = build_model(name, n_components or "2", [])
    artifact = write_fit(tmp_path / "artifact", built, open_dataset(data))
    figures = build_report_from_artifact(artifact).figures
    assert len(figures) > 2
    for figure in figures:
        image = decoded(render_picture(figure))
        assert image.shape[1] >= 900
        border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert (border == 255).all()
        assert (image < 200).any(axis=-1).mean() > 0.005


def test_pixels_are_drawn(data, tmp_path):
    built = build_model("clipped-pca", "2", [])
    artifact = write_fit(tmp_path / "artifact", built, open_dataset(data))
    figures = build_report_from_artifact(artifact, FigureOptions(image_shape="3x3")).figures
    assert [bool(figure.images) for figure in figures].count(True) == 1
    assert "Images over latent space" in [figure.title for figure in figures]
    assert all(render_picture(figure).startswith(b"\x89PNG") for figure in figures)


@pytest.mark.parametrize(
    ("figure", "millimetres"),
    [
        (Figure("Narrow", "", plot_curve(np.array([0.0, 1.0]), ("x", "y"))), 89),
        (Figure("Wide", "", plot_curve(np.array([0.0, 1.0]), ("x", "y")), width=1060), 183),
    ],
)
def test_print_is_as_wide_as_columns_of_a_journal(figure, millimetres):
    points = millimetres / 25.4 * 72
    svg, pdf = (render_picture(figure, kind).decode("latin-1") for kind in ("svg", "pdf"))
    width, inside = re.search(r'<svg [^>]*width="([0-9.]+)pt"[^>]*viewBox="0 0 (\S+)', svg).groups()
    assert float(width) == pytest.approx(points, abs=0.01)
    box = re.search(r"/MediaBox \[ 0 0 ([0-9.]+)", pdf)
    assert float(box[1]) == pytest.approx(points, abs=0.01)
    smallest = min(map(float, re.findall(r"font-size: ([0-9.]+)px", svg)))
    assert smallest * float(width) / float(inside) == pytest.approx(7, abs=0.01)


def test_names_in_a_plot_have_two_columns(data, tmp_path):
    built = build_model("latent-trait", "1", [])
    figures = build_report_from_artifact(
        write_fit(tmp_path / "a", built, open_dataset(data))
    ).figures
    (lines,) = [figure for figure in figures if figure.title == "Features over the component"]
    svg = render_picture(lines, "svg").decode()
    assert 'width="518.7' in svg
    for name in load_artifact(tmp_path / "a").manifest["feature_names"]:
        assert f">{name}</text>" in svg
    assert "Verdana" in svg


def test_a_page_of_print_is_drawn_to_its_edges_in_fonts_of_its_own():
    plot = plot_curve(np.array([0.0, 1.0]), ("x", "y"))
    pdf = render_picture(Figure("A title", "", plot), "pdf")
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    (page,) = [
        text
        for stream in streams
        if b" cm\n" in (text := zlib.decompress(stream)) and b" l\n" in text
    ]
    ends = [float(x) for x in re.findall(rb"([0-9.]+) [0-9.]+ l\n", page)]
    width = 89 / 25.4 * 72 / (7 / 12)
    assert 0.94 * width < max(ends) < width
    assert render_picture(Figure("A title", "", plot), "pdf") == pdf


def test_cells_of_a_heat_map_have_the_colours_of_their_values():
    values = np.array([[1.0, -0.5], [0.0, -1.0], [0.25, 0.75]])
    plot = plot_heat_map(values, ["a", "b", "c"], ["1", "2"], ("row", "column"), is_signed=True)[
        "plot"
    ]
    axes = drawn(plot)
    image = pixels(axes)
    for (row, column), value in np.ndenumerate(values):
        expected = on_white(COLOURS[1 if value > 0 else 0], abs(value))
        # A palette of 101 steps.
        np.testing.assert_allclose(at(axes, image, column, row), expected, atol=3)
    # The first row is at the top, and names are where their rows are.
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.transData.transform((0, 0))[1] > axes.transData.transform((0, 2))[1]


def test_a_value_that_is_not_there_is_grey():
    axes = drawn(square(RasterMark(np.array([[1.0, np.nan]]), ColourScale(1.0, False))))
    assert at(axes, pixels(axes), 0.5, 0).tolist() == [128, 128, 128]


def test_the_first_row_of_a_raster_is_at_the_top():
    values = np.array([[0.0, 0.5], [1.0, 0.0]])
    axes = drawn(square(RasterMark(values, ColourScale(1.0, False)), low=0, high=4))
    image = pixels(axes)
    for place, share in {(1, 1): 1, (3, 1): 0, (1, 3): 0, (3, 3): 0.5}.items():
        expected = on_white(COLOURS[0], share)
        np.testing.assert_allclose(at(axes, image, *place), expected, atol=3)


def test_marks_lie_where_they_should_and_have_their_size():
    x, y, sizes = np.array([0.0, 10.0, 4.0]), np.array([-2.0, 3.0, 0.5]), np.array([6.0, 6.0, 30.0])
    points = PointMarks(x, y, COLOURS[2], "square", sizes)
    axes = drawn(Plot(fit_axis(x), fit_axis(y), (points,), height=SIZE))
    # A twentieth of the range of the values is left free at either end.
    np.testing.assert_allclose(axes.get_xlim(), [-0.5, 10.5])
    np.testing.assert_allclose(axes.get_ylim(), [-2.25, 3.25])
    image = pixels(axes)
    colour = on_white(COLOURS[2], 1)
    assert all((at(axes, image, *place) == colour).all() for place in zip(x, y, strict=True))
    side = 30 * 100 / 72  # a pixel of the page is a point
    row = image[int(axes.transData.transform((4, 0.5))[1])]
    assert abs(shown(row, colour) - side) <= 2


def test_marks_are_as_opaque_as_in_the_page():
    points = PointMarks(np.zeros(1), np.zeros(1), COLOURS[0], size=30, opacity=0.4)
    axes = drawn(square(points))
    np.testing.assert_allclose(at(axes, pixels(axes), 0, 0), on_white(COLOURS[0], 0.4), atol=2)


def test_what_comes_later_lies_above():
    line = LineMarks([np.array([[-1.0, 0.0], [1.0, 0.0]])], [COLOURS[1]], 20.0)
    point = PointMarks(np.zeros(1), np.zeros(1), COLOURS[2], size=30)
    axes = drawn(square(line, point))
    assert (at(axes, pixels(axes), 0, 0) == on_white(COLOURS[2], 1)).all()


def test_a_square_has_axes_of_one_length():
    axes = Sheet(figsize=(6, 3), dpi=100).add_axes((0, 0, 1, 1))
    render_plot_in_axes(axes, square())
    axes.apply_aspect()
    assert axes.bbox.width == pytest.approx(axes.bbox.height)


def test_names_near_an_edge_stay_within_the_plot():
    x = np.array([-1.0, 0.0, 1.0, -0.7, 0.7])
    texts = ["first name", "middle", "last name", *["a name of twenty letters"] * 2]
    names = TextMarks(x, np.zeros(5), texts, [COLOURS[1]] * 5)
    axes = drawn(square(names))
    ends = [text.get_window_extent().extents[[0, 2]] for text in axes.texts]
    assert all(left >= -1 and right <= SIZE + 1 for left, right in ends)


def test_names_are_no_markup():
    rows = [*HOSTILE, "$x$", "$\\frac$"]
    values = np.linspace(-1, 1, len(rows))[:, None]
    drawn = plot_heat_map(values, rows, rows[:1], ("row", "column"), is_signed=True)
    plot, keys = drawn["plot"], tuple(LegendKey(name, COLOURS[0]) for name in rows)
    drawn["ramp"] = drawn["ramp"]._replace(low="$\\low$", high="$\\high$")
    texts: Any = {"title": "$\\title$", "note": "$\\note$", "keys": keys}
    whole = Figure(alt="", **drawn, **texts)
    assert render_picture(whole).startswith(b"\x89PNG")
    plain = render_picture(Figure("Names", "", plot), "svg").decode()
    assert ">$x$</text>" in plain
    odd_keys = (LegendKey("\x00 \x02 <&>", COLOURS[0]),)
    ElementTree.fromstring(render_picture(replace(whole, keys=odd_keys), "svg"))
    assert ">$\\frac$</text>" in plain


def test_letters_that_the_font_has_not_are_no_trouble():
    drawn = plot_heat_map(np.ones((1, 1)), ["日本"], ["語"], ("行", "列"), is_signed=False)
    drawn["ramp"] = ColourRamp("低", "高", drawn["ramp"].colours)
    texts: Any = {"title": "図", "note": "注", "keys": (LegendKey("漢字", COLOURS[0]),)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        render_picture(Figure(alt="", **drawn, **texts))


def test_the_same_figure_gives_the_same_bytes():
    def figure() -> Figure:
        return Figure("Curve", "", plot_curve(np.array([2.0, 1.0]), ("x", "y")), note="Down.")

    assert render_picture(figure()) == render_picture(figure())
    assert render_picture(figure(), "svg") == render_picture(figure(), "svg")


def test_images_and_what_colours_stand_for():
    images = np.array([[[1.0, -1.0], [0.5, np.nan]]])
    tiles = render_images(images, ["first"], np.ones(1), is_signed=True)
    keys = (LegendKey("green", COLOURS[2]), LegendKey("pink", COLOURS[3], "dash"))
    image = decoded(render_picture(Figure("Images", "", images=tiles, keys=keys)))
    quarter = shown(image, on_white(COLOURS[1], 1))
    assert quarter > 1000
    assert shown(image, on_white(COLOURS[0], 1)) == pytest.approx(quarter, rel=0.1)
    assert shown(image, on_white(COLOURS[1], 0.5)) == pytest.approx(quarter, rel=0.1)
    assert all(shown(image, on_white(key.colour, 1)) > 20 for key in keys)


def test_texts_for_the_caption_are_left_out():
    plot = plot_curve(np.array([2.0, 1.0]), ("x", "y"))
    plain = render_picture(Figure("Curve", "", plot))
    assert render_picture(Figure("Title", "", plot, note="Down.", hint="Point at it.")) == plain


def test_long_names_beside_a_plot_are_whole():
    names = ["Representative 001 of the House", "x" * 40, "y" * 41]
    plot = Plot(make_axis(0, 1), make_name_axis(names), (), 200)
    svg = render_picture(Figure("Names", "", plot), "svg").decode()
    assert all(f">{name}</text>" in svg for name in names[:2])
    assert f">{'y' * 39}…</text>" in svg


def test_few_images_make_a_narrow_picture():
    few, many = (
        Figure(
            "I",
            "",
            images=render_images(np.ones((n, 2, 2)), "a" * n, np.ones(n), is_signed=True),
            width=1060,
        )
        for n in (2, 10)
    )
    images = [decoded(render_picture(figure)) for figure in (few, many)]
    assert images[0].shape[1] < 1000 < images[1].shape[1]
    lines = [(image == on_white(COLOURS[1], 1)).all(axis=-1) for image in images]
    rows = [np.diff(drawn.any(axis=1).astype(int)).clip(0).sum() for drawn in lines]
    columns = [np.diff(drawn.any(axis=0).astype(int)).clip(0).sum() for drawn in lines]
    assert (rows, columns) == ([1, 2], [2, 5])


def test_long_texts_stay_within_the_picture():
    keys = tuple(LegendKey(f"a rather long name {k} " * 5, COLOURS[k % 6]) for k in range(12))
    plot = plot_curve(np.array([2.0, 1.0]), ("x", "y"))
    image = decoded(render_picture(Figure("T " * 99, "", plot, note="many words " * 60, keys=keys)))
    assert (image[:, -8:] == 255).all()
    assert (image[-8:] == 255).all()


def test_a_mark_that_is_not_known_is_an_error():
    unknown: Any = object()
    with pytest.raises(AssertionError):
        render_picture(Figure("Unknown", "", square(unknown)))


def test_files_have_names_of_their_own():
    assert make_slug("Rows in latent space") == "rows-in-latent-space"
    assert make_slug("Votes_2026 / Café") == "votes-2026-cafe"
    assert make_slug("…") == "unnamed"
    assert make_unique_slugs(["A b", "a_b", "c"]) == ["a-b", "a-b-2", "c"]


def test_many_curves_have_their_names_beside_them_in_their_colours(tmp_path):
    names = [f"item {k}" for k in range(12)]
    X, _ = draw_probit_rows(900, 12, 1, seed=3)
    dataset = write_arrays(tmp_path / "d.zarr", X, names=names)
    artifact = write_fit(tmp_path / "a", build_model("latent-trait", "1", []), dataset)
    (figure,) = (
        f
        for f in build_report_from_artifact(artifact).figures
        if f.title.startswith("Features over")
    )
    axes = drawn(figure.plot)
    (curves,) = axes.collections
    colours = np.array(curves.get_colors())[:, :3]
    told = {text.get_text(): text for text in axes.texts}
    # A name that has no room is left out.
    assert set(told) <= set(names)
    assert len(told) > 8
    for name, line, colour in zip(names, curves.get_segments(), colours, strict=True):
        if name not in told:
            continue
        (x, y), text = told[name].get_position(), told[name]
        np.testing.assert_allclose(to_rgb(text.get_color()), colour)
        assert abs(np.interp(x, *line.T) - y) < 0.1


def test_words_on_signs_name_the_colours_of_the_pictures(data, tmp_path):
    artifact = write_fit(tmp_path / "a", build_model("clipped-pca", "2", []), open_dataset(data))
    figures = build_report_from_artifact(artifact, FigureOptions(image_shape="3x3")).figures
    (figure,) = (figure for figure in figures if figure.images)
    assert "orange is positive, blue negative" in figure.note
    loadings = load_artifact(artifact)["loadings"].T.reshape(2, 3, 3)
    hues = {"orange": (0.05, 0.12), "blue": (0.5, 0.7)}  # red is at 0
    for image, values in zip(figure.images, loadings, strict=True):
        file = BytesIO(base64.b64decode(image.uri.partition(",")[2]))
        picture = np.asarray(Picture.open(file))
        step = picture.shape[0] // 3
        for (row, column), value in np.ndenumerate(values):
            red, green, blue, _ = picture[row * step, column * step] / 255
            low, high = hues["orange" if value > 0 else "blue"]
            assert low < rgb_to_hsv(red, green, blue)[0] < high
