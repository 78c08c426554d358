"""What a reader sees at once: no holes on the page, names that do not lie on names, fair scales."""

from __future__ import annotations

import numpy as np
import pytest

from flows.report.figures.axes import fit_axis, make_axis, place_ticks
from flows.report.figures.colours import choose_scale
from flows.report.figures.marks import Figure, Plot, TextMarks
from flows.report.figures.parameters import plot_intervals
from flows.report.figures.row_plots import choose_labels, plot_plane
from flows.report.figures.rows import CodedRows
from flows.report.page import NARROW_WIDTH, arrange_figures


@pytest.mark.parametrize("widths", [(520, 520, 1060, 520), (1060, 520, 520, 520), (520,)])
def test_no_narrow_figure_stands_beside_nothing(widths: tuple[int, ...]) -> None:
    axis = make_axis(0, 1)
    plots = [Plot(axis, axis, (), 300 + 40 * k) for k in range(len(widths))]
    figures = [
        Figure(str(k), "", p, width=w) for k, (p, w) in enumerate(zip(plots, widths, strict=True))
    ]
    groups = list(arrange_figures(figures))
    shown = [place for group in groups for column in group.columns for place, _ in column]
    assert sorted(shown) == list(range(len(widths)))
    for group in groups:
        assert all(group.columns)
        narrow = {figure.width == NARROW_WIDTH for column in group.columns for _, figure in column}
        assert narrow == {group.kind == "pair"}
        assert len(group.columns) == (2 if group.kind == "pair" else 1)


def test_no_figure_is_above_an_earlier_one() -> None:
    axis = make_axis(0, 1)
    figures = [
        Figure(str(k), "", Plot(axis, axis, (), height), width=NARROW_WIDTH)
        for k, height in enumerate((300, 320, 120, 120, 120, 500))
    ]
    (group,) = arrange_figures(figures)
    assert [[k for k, _ in column] for column in group.columns] == [[0, 2, 4], [1, 3, 5]]


def test_names_of_many_labels_are_written_where_they_have_room() -> None:
    rng = np.random.default_rng(0)
    names = np.array([f"animal {k}" for k in range(40)], object)
    codes = rng.normal(size=(40, 3))
    codes[1] = codes[0]
    values, segments = np.zeros((40, 2), np.float32), np.full(40, "all", object)
    coded = CodedRows(codes, values, np.arange(40), segments, {"a": names}, codes)
    labels = choose_labels(coded, ("all",), None, (), ())
    assert labels is not None
    assert labels.name == "a"
    figure = plot_plane(coded, labels)
    assert figure.plot is not None
    (names_mark,) = (mark for mark in figure.plot.marks if isinstance(mark, TextMarks))
    assert "animal 0" in names_mark.texts
    assert "animal 1" not in names_mark.texts
    assert f"{len(names_mark.texts)} of 40 names have room" in figure.note
    assert figure.keys == ()


def test_an_outlier_leaves_the_scales_to_the_others() -> None:
    values = np.linspace(-1, 1, 12)[:, None]
    values[3] = 50.0
    scale = choose_scale(values, is_signed=True)
    assert choose_scale(np.append(values, np.nan), is_signed=True).top == scale.top
    assert (scale.make_ramp().high, scale.top) == ("1 or more", 1.0)
    ends = np.stack([values - 0.2, values + 0.2])
    figure = plot_intervals("Weights", values, ends, [str(k) for k in range(12)])
    assert figure.plot is not None
    assert figure.plot.x.high < 5
    assert "1 of 12 extend beyond the axis" in figure.note


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (-2.4, 2.4, ["−2", "−1", "0", "1", "2"]),
        (0.13, 0.27, ["0.14", "0.16", "0.18", "0.2", "0.22", "0.24", "0.26"]),
        (
            -12.71024,
            -12.71019,
            ["−12.71024", "−12.71023", "−12.71022", "−12.71021", "−12.7102", "−12.71019"],
        ),
        (0, 8_000, ["0", "1,000", "2,000", "3,000", "4,000", "5,000", "6,000", "7,000", "8,000"]),
        (0, 3e-9, ["0", "5e−10", "1e−09", "1.5e−09", "2e−09", "2.5e−09", "3e−09"]),
    ],
)
def test_ticks_are_round_and_told_apart(low: float, high: float, texts: list[str]) -> None:
    ticks = place_ticks(low, high)
    assert [tick.text for tick in ticks] == texts
    assert all(low - 1e-9 <= tick.place <= high + 1e-9 for tick in ticks)


def test_ticks_of_passes_are_whole() -> None:
    assert [tick.text for tick in place_ticks(0.9, 4.1, is_whole=True)] == ["1", "2", "3", "4"]


def test_values_that_are_equal_or_missing_still_have_an_axis() -> None:
    assert fit_axis(np.full(3, 2.0)).ticks
    assert fit_axis(np.array([np.nan, np.inf])).ticks
    assert make_axis(1.0, 1.0).low < 1.0 < make_axis(1.0, 1.0).high
    assert make_axis(np.nan, 3.0).ticks


@pytest.mark.parametrize("spread", [1e-3, 1e-7, 1e-9, 1e-13, 0.0])
def test_ticks_of_nearly_equal_values_differ(spread):
    """As of a fit that starts close to its end."""
    texts = [tick.text for tick in fit_axis(np.array([-1556.060213, -1556.060213 + spread])).ticks]
    assert 2 <= len(texts) == len({*texts})
    ones = np.ones((3, 1))
    figure = plot_intervals("Weights", ones, np.stack([ones, ones]), ["a", "b", "c"])
    assert figure.plot is not None
    assert figure.plot.x.low < 1.0 < figure.plot.x.high
