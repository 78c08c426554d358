"""Figures of two latent dimensions: rows, lines of items, outlines of posteriors, images."""

from __future__ import annotations

import numpy as np
import pytest

from flows.experiments.tipping import plot_codes, plot_images_at, plot_posteriors
from flows.report.figures.latent import plot_image_mosaic
from flows.report.figures.marks import Figure, LineMarks, Mark, PointMarks, RasterMark, TextMarks
from flows.report.figures.row_plots import ColourLabels
from flows.report.pictures import render_panels

RNG = np.random.default_rng(7)


def list_marks(figure: Figure) -> tuple[Mark, ...]:
    assert figure.plot is not None
    return figure.plot.marks


def test_rows_with_one_code_are_one_mark_whose_area_is_their_number() -> None:
    places = np.array([[0.0, 1.0], [0.5, 0.5], [2.0, -1.0]])
    (mark,) = list_marks(plot_codes(RNG.permutation(np.repeat(places, [1, 4, 9], axis=0)), ""))
    assert isinstance(mark, PointMarks)
    np.testing.assert_array_equal(np.column_stack([mark.x, mark.y]), places)
    np.testing.assert_allclose((mark.size / np.min(mark.size)) ** 2, [1, 4, 9])


def test_labels_have_their_own_colours_and_numbers_of_rows() -> None:
    labels = ColourLabels("prototype", np.array([2, 1, 2, 2]))
    figure = plot_codes(RNG.normal(size=(4, 2)), "codes", labels)
    assert [key.name for key in figure.keys] == ["prototype 1 (n = 1)", "prototype 2 (n = 3)"]
    assert len({key.colour for key in figure.keys}) == 2


def test_both_dimensions_have_one_scale_and_all_codes_are_in_view() -> None:
    codes = RNG.normal(size=(30, 2)) * [1.0, 20.0]
    plot = plot_codes(codes, "").plot
    assert plot is not None
    assert plot.x.high - plot.x.low == pytest.approx(plot.y.high - plot.y.low)
    for axis, values in zip((plot.x, plot.y), codes.T, strict=True):
        assert axis.low < values.min() <= values.max() < axis.high


def test_lines_are_where_both_values_are_as_likely_and_named_on_the_side_of_ones() -> None:
    weights, offsets = np.array([[2.0, 1.0], [-1.0, 3.0], [0.1, 0.0]]), np.array([0.2, -0.4, 9.0])
    codes = RNG.uniform(-1, 1, size=(40, 2))
    items = (weights, offsets, ["first", "second", "outside"])
    _, lines, names = list_marks(plot_codes(codes, "", items=items))
    assert isinstance(lines, LineMarks)
    assert isinstance(names, TextMarks)
    drawn = dict(lines.facts)["feature"]
    assert {*drawn} == {*names.texts} == {"first", "second"}
    for name, line in zip(drawn, lines.points, strict=True):
        item = items[2].index(name)
        # The grid interpolates probabilities.
        np.testing.assert_allclose(line @ weights[item] + offsets[item], 0, atol=0.02)
    for x, y, name in zip(names.x, names.y, names.texts, strict=True):
        item = items[2].index(name)
        assert weights[item] @ [x, y] + offsets[item] > 0


def test_outlines_of_a_gaussian_are_its_ellipses() -> None:
    mean, covariance = np.array([0.5, -1.0]), np.array([[0.5, 0.2], [0.2, 0.3]])
    x, y = (np.linspace(m - 4, m + 4, 401) for m in mean)
    apart = np.stack(np.meshgrid(x, y), axis=-1) - mean
    distances = np.einsum("yxi,ij,yxj->yx", apart, np.linalg.inv(covariance), apart)
    figure = plot_posteriors(x, y, np.exp(-distances / 2), mean, covariance)
    outlines, ellipses, exact_mean, gaussian_mean = list_marks(figure)
    assert isinstance(outlines, LineMarks)
    assert isinstance(ellipses, LineMarks)
    for share, lines in ((0.99, outlines.points[0]), (0.5, ellipses.points[0])):
        apart = lines - mean
        squares = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(covariance), apart)
        np.testing.assert_allclose(squares, -2 * np.log(1 - share), rtol=0.02)
    for mark in (exact_mean, gaussian_mean):
        assert isinstance(mark, PointMarks)
        np.testing.assert_allclose([mark.x[0], mark.y[0]], mean, atol=1e-6)
    assert [key.name for key in figure.keys] == ["exact", "variational"]


def test_images_lie_over_their_latent_points() -> None:
    images = np.arange(6.0).reshape(6, 1, 1) / 6  # two rows of three images, the first row below
    plot = plot_image_mosaic(images, np.arange(3.0), np.arange(2.0), ("x", "y"))
    (mark,) = plot.marks
    assert isinstance(mark, RasterMark)
    np.testing.assert_allclose(mark.values[::2, ::2] * 6, [[3, 4, 5], [0, 1, 2]])
    assert (plot.x.low, plot.x.high) == (-0.5, 2.5)


def test_images_at_codes_do_not_overlap() -> None:
    codes = np.array([[0.0, 0.0], [0.01, 0.0], [1.0, 1.0]])
    figure = plot_images_at(np.ones((3, 4, 2)), codes)
    (mark,) = list_marks(figure)
    assert isinstance(mark, RasterMark)
    assert figure.title == "2 of them"
    assert mark.values.sum() == 2 * 100 * 50


def test_panels_are_beside_and_below_each_other_in_equal_bytes() -> None:
    panel = plot_codes(RNG.normal(size=(9, 2)), "panel")
    one, two = (
        render_panels([[panel] * n, [panel]], "A title", "A note.", 600, "svg") for n in (1, 2)
    )
    assert [text.count(b">panel<") for text in (one, two)] == [2, 3]
    assert two == render_panels([[panel] * 2, [panel]], "A title", "A note.", 600, "svg")
    assert b">A title<" in two
    assert b">A note.<" in two
