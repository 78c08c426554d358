"""Plots on the page: marks lie where their values say, and the script's data belong to them."""

from __future__ import annotations

import base64
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.report.figures.axes import make_axis, make_name_axis, plot_curve, plot_heat_map
from flows.report.figures.colours import COLOURS, ColourScale
from flows.report.figures.marks import (
    Figure,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RasterMark,
    RuleMark,
    TextMarks,
)
from flows.report.figures.row_plots import plot_plane
from flows.report.figures.rows import CodedRows
from flows.report.svg import RenderedPlot, render_plot
from tests.flows.hostile import HOSTILE


class Elements(HTMLParser):
    """The elements of a plot: tag, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_data(self, data: str) -> None:
        self.found[-1][2].append(data)

    def of(self, tag: str) -> list[dict[str, str]]:
        return [given for name, given, _ in self.found if name == tag]

    def texts(self, tag: str) -> list[str]:
        return ["".join(words) for name, _, words in self.found if name == tag]


def rendered(plot: Plot, **more: Any) -> tuple[Elements, RenderedPlot]:
    drawn = render_plot(Figure("Title", "", plot, **more), "p")
    return Elements(drawn.html), drawn


def square(*marks: Mark, low: float = 0, high: float = 10) -> Plot:
    return Plot(make_axis(low, high, "across"), make_axis(low, high, "up"), marks)


def percent(text: str) -> float:
    assert text.endswith("%")
    return float(text[:-1])


def decode(uri: str) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_points_lie_where_they_should_and_have_their_size() -> None:
    x, y, sizes = np.array([0.0, 2.5, 10.0]), np.array([0.0, 5.0, 10.0]), np.array([6.0, 6.0, 26.0])
    points = PointMarks(x, y, COLOURS[2], "square", sizes, facts=[("row", ["1", "2", "3"])])
    page, drawn = rendered(square(points))
    uses = page.of("use")
    assert [(percent(use["x"]), percent(use["y"])) for use in uses] == [
        (0, 100),
        (25, 50),
        (100, 0),
    ]
    shapes = {path["id"]: path["transform"] for path in page.of("path")}
    assert [shapes[use["href"][1:]] for use in uses] == ["scale(3)", "scale(3)", "scale(13)"]
    assert drawn.data["facts"] == {0: (["row"], [["1", "2", "3"]])}
    (group,) = (given for given in page.of("g") if "data-mark" in given)
    assert group["fill"] == COLOURS[2]


def test_lines_and_rules_go_through_their_points() -> None:
    line = LineMarks([np.array([[0.0, 0.0], [5.0, 2.5], [10.0, 10.0]])], [COLOURS[1]], dash=(6, 6))
    page, _ = rendered(square(RuleMark("x", 2.0), line))
    (path,) = page.of("path")
    assert path["d"] == "M0 1000 500 750 1000 0"
    assert path["stroke"] == COLOURS[1]
    assert next(g for g in page.of("svg") if "data-mark" in g)["stroke-dasharray"] == "6 6"
    rule = page.of("line")[-1]
    assert (rule["x1"], rule["x2"], rule["y1"], rule["y2"]) == ("20.00%", "20.00%", "0", "100%")


def test_ticks_and_names_stand_at_their_places() -> None:
    page, _ = rendered(Plot(make_axis(0, 10), make_name_axis("abcd", is_down=True), (), 300))
    names = [words[0] for tag, given, words in page.found if tag == "span" and "style" in given]
    styles = [given["style"] for given in page.of("span") if "style" in given]
    assert dict(zip(names, styles, strict=True)) == {
        "a": "top:12.50%",
        "b": "top:37.50%",
        "c": "top:62.50%",
        "d": "top:87.50%",
        **{str(k): f"left:{10 * k}.00%" for k in range(0, 11, 2)},
    }


def test_cells_have_the_colours_and_facts_of_their_values() -> None:
    values = np.array([[1.0, -0.5], [0.0, -1.0], [0.25, np.nan]])
    given = plot_heat_map(values[:, :1], ["a", "b", "c"], ["1"], ("row", "column"), is_signed=True)
    scale = ColourScale(1.0, is_signed=True)
    cells = replace(given["plot"].marks[0], values=values, scale=scale)
    page, drawn = rendered(replace(given["plot"], marks=(cells,)))
    rows = [decode(image["href"]) for image in page.of("image")]
    np.testing.assert_array_equal(np.concatenate(rows), scale.paint(values))
    assert [percent(image["y"]) for image in page.of("image")] == pytest.approx([0, 33.333, 66.667])
    assert rows[0][0, 0].tolist() == [0xD5, 0x5E, 0x00, 255]
    assert rows[0][0, 1].tolist() == [0x00, 0x72, 0xB2, 128]
    assert rows[1][0, 0, 3] == 0
    assert rows[2][0, 1].tolist() == [128, 128, 128, 255]
    assert drawn.data["facts"][0][0] == ["row", "column", "value"]


def test_the_first_row_of_a_raster_is_at_the_top() -> None:
    values, scale = np.array([[0.0, 0.5], [1.0, 0.0]]), ColourScale(1.0, is_signed=False)
    page, _ = rendered(square(RasterMark(values, scale)))
    (image,) = page.of("image")
    np.testing.assert_array_equal(decode(image["href"]), scale.paint(values))


def test_a_curve_is_read_anywhere_above_a_value() -> None:
    page, drawn = rendered(plot_curve(np.array([3.0, 2.0, 1.5]), ("pass", "objective")))
    columns = [(percent(r["x"]), percent(r["width"])) for r in page.of("rect")]
    assert columns[0][0] == 0
    assert columns[-1][0] + columns[-1][1] == pytest.approx(100, abs=0.02)
    assert drawn.data["facts"] == {2: (["pass", "objective"], [["1", "2", "3"], ["3", "2", "1.5"]])}


def test_rows_of_a_heat_map_can_be_put_in_another_order() -> None:
    values = np.array([[0.0], [1.0], [0.1], [0.9]])
    given = plot_heat_map(values, list("abcd"), ["1"], ("feature", "component"), is_signed=False)
    assert given["width"] == 520
    _, drawn = rendered(given["plot"], choices=given["choices"])
    (choice,) = drawn.data["choices"]
    as_given, similar = choice["options"]
    assert [text for _, text in as_given["ticks"]] == list("abcd")
    order = "".join(text for _, text in similar["ticks"])
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset("ac"), frozenset("bd")}
    # Places are steps of the upper edges from the bottom: each row moves to its name.
    tops = {name: 9999 - place for name, place in zip("abcd", similar["places"][0], strict=True)}
    assert "".join(sorted(tops, key=tops.__getitem__)) == order
    assert sorted(tops.values()) == pytest.approx([0, 2500, 5000, 7499], abs=1)


def test_every_component_can_be_chosen_for_either_axis() -> None:
    codes = np.random.default_rng(0).normal(size=(50, 3))
    coded = CodedRows(
        codes, np.zeros((50, 2), np.float32), np.arange(50), np.full(50, "all", object), {}, codes
    )
    figure = plot_plane(coded, None)
    assert figure.plot is not None
    _, drawn = rendered(figure.plot, choices=figure.choices)
    assert drawn.data["equal"]
    assert [choice["axis"] for choice in drawn.data["choices"]] == ["x", "y"]
    for k, option in enumerate(drawn.data["choices"][0]["options"]):
        (places,) = option["places"]
        span = option["high"] - option["low"]
        found = option["low"] + span * np.array(places) / 9999
        np.testing.assert_allclose(sorted(found), sorted(codes[:, k]), atol=span / 9999)
        assert option["label"] == f"component {k + 1}"


def test_names_are_no_markup() -> None:
    names = [*HOSTILE, "$x$"]
    values = np.linspace(-1, 1, len(names))[:, None]
    given = plot_heat_map(values, names, names[:1], ("row", "column"), is_signed=True)
    texts = TextMarks(np.zeros(len(names)), np.arange(len(names)), names, [COLOURS[1]] * len(names))
    plot = replace(given["plot"], marks=(*given["plot"].marks, texts))
    page, _ = rendered(plot)
    known = {"div", "span", "svg", "defs", "g", "path", "image", "text", "line"}
    assert {tag for tag, _, _ in page.found} <= known
    assert not any(name.startswith("on") for _, found, _ in page.found for name in found)
    assert [" ".join(text.split()) for text in page.texts("text")] == [
        " ".join(name.split()) for name in names
    ]


def test_a_mark_that_is_not_known_is_an_error() -> None:
    unknown: Any = object()
    with pytest.raises(AssertionError):
        rendered(square(unknown))
