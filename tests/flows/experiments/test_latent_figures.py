"""Figures of two latent dimensions: glyphs and their areas, lines, outlines, images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.path import Path

from flows.experiments.tipping_figures import (
    MAX_LABEL_STYLES,
    add_posterior_legend,
    plot_codes,
    plot_image_grid,
    plot_images_at,
    plot_item_lines,
    plot_posteriors,
)
from pipeline.errors import FitError

RNG = np.random.default_rng(7)


@pytest.fixture
def axes() -> Iterator[Axes]:
    figure = Figure(figsize=(6, 5), layout="compressed")
    axes = figure.subplots()
    yield axes
    figure.draw_without_rendering()  # whatever was drawn can be


def legend_texts(axes: Axes) -> list[str]:
    legends = [child for child in axes.get_children() if type(child).__name__ == "Legend"]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


# Codes


def test_rows_with_one_code_are_one_glyph_of_their_number(axes: Axes) -> None:
    places = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])
    codes = np.repeat(places, [1, 9, 4], axis=0)
    plot_codes(axes, RNG.permutation(codes))
    (glyphs,) = axes.collections
    np.testing.assert_array_equal(glyphs.get_offsets(), places[[1, 2, 0]])  # large ones below
    areas = glyphs.get_sizes()
    np.testing.assert_allclose(areas / areas[-1], [9, 4, 1])
    assert legend_texts(axes) == ["1 row", "3 rows", "9 rows"]


def test_areas_in_the_legend_are_those_of_the_glyphs(axes: Axes) -> None:
    plot_codes(axes, np.repeat([[0.0, 0.0], [1.0, 1.0]], [1, 25], axis=0))
    (glyphs,) = axes.collections
    marks = axes.get_legend().legend_handles
    found = {round(mark.get_markersize() ** 2, 6) for mark in marks}
    assert {round(area, 6) for area in glyphs.get_sizes()} < found


def test_coinciding_rows_of_two_labels_are_two_glyphs(axes: Axes) -> None:
    plot_codes(axes, [[0, 0], [0, 0], [0, 0], [1, 1]], ["a", "b", "a", "b"])
    a, b = axes.collections
    assert (len(a.get_offsets()), len(b.get_offsets())) == (1, 2)
    assert a.get_sizes()[0] == pytest.approx(2 * b.get_sizes()[0])
    assert set(legend_texts(axes)) == {"a (n = 2)", "b (n = 2)", "1 row", "2 rows"}


def test_without_labels_or_coincidence_there_is_no_legend(axes: Axes) -> None:
    plot_codes(axes, RNG.normal(size=(20, 2)))
    assert legend_texts(axes) == []


def test_a_million_rows_at_one_place_leave_a_single_row_visible(axes: Axes) -> None:
    plot_codes(axes, np.vstack([np.zeros((100_000, 2)), np.ones((1, 2))]))
    (glyphs,) = axes.collections
    large, small = glyphs.get_sizes()
    assert large < 500
    assert small >= 3


def test_every_label_has_a_look_of_its_own_and_the_rest_is_grey(axes: Axes) -> None:
    n_labels = MAX_LABEL_STYLES + 3
    names = [f"{k:02}" for k in range(n_labels) for _ in range(n_labels - k)]
    plot_codes(axes, RNG.normal(size=(len(names), 2)), names)
    grey, *others = axes.collections
    looks = {(to_hex(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes()) for c in others}
    assert len(looks) == len(others) == MAX_LABEL_STYLES
    texts = legend_texts(axes)
    assert texts[0] == f"00 (n = {n_labels})"
    assert texts[MAX_LABEL_STYLES] == "3 other labels (n = 6)"
    assert to_hex(grey.get_facecolor()[0]) == "#999999"
    assert len(grey.get_offsets()) == 6
    assert sum(len(c.get_offsets()) for c in axes.collections) == len(names)


@pytest.mark.parametrize("codes", [RNG.normal(size=(50, 2)) * [9, 0.1], np.zeros((3, 2))])
def test_both_dimensions_have_one_scale_and_all_codes_are_in_view(
    axes: Axes, codes: np.ndarray
) -> None:
    plot_codes(axes, codes)
    view = np.array([axes.get_xlim(), axes.get_ylim()])
    assert axes.get_aspect() == 1
    assert np.ptp(view[0]) == pytest.approx(np.ptp(view[1]))
    assert ((codes > view[:, 0]) & (codes < view[:, 1])).all()


def test_legends_have_room(axes: Axes) -> None:
    plot_codes(
        axes, np.repeat(RNG.normal(size=(8, 2)), 3, axis=0), list("aaabbbcccdddeeefffggghhh")
    )
    axes.figure.draw_without_rendering()
    inside = axes.figure.bbox
    for child in axes.get_children():
        if type(child).__name__ == "Legend":
            assert child.get_window_extent().x1 <= inside.x1


@pytest.mark.parametrize(
    ("codes", "labels", "said"),
    [
        (np.zeros((4, 3)), None, r"codes have shape \(4, 3\), not \(n_rows, 2\)"),
        (np.zeros((0, 2)), None, r"shape \(0, 2\)"),
        ([[0, 0], [np.nan, 1]], None, "code of row 1 is"),
        (np.zeros((4, 2)), ["a"], "1 labels for 4 rows"),
    ],
)
def test_codes_that_cannot_be_drawn(axes: Axes, codes: Any, labels: Any, said: str) -> None:
    with pytest.raises(FitError, match=said):
        plot_codes(axes, codes, labels)


# Lines

number = st.floats(-5, 5).filter(lambda x: x == 0 or abs(x) > 1e-3)


@given(w=st.tuples(number, number), b=number)
def test_a_line_is_where_both_values_are_as_likely(w: tuple[float, float], b: float) -> None:
    axes = Figure().subplots()
    axes.set(xlim=(-1, 2), ylim=(-3, 1))
    weights = np.array([w])
    drawn = plot_item_lines(axes, weights, np.array([b]))
    corners = np.array([[-1, -3], [-1, 1], [2, -3], [2, 1]]) @ weights[0] + b
    if not len(drawn):
        assert (corners >= -1e-9).all() or (corners <= 1e-9).all()
        return
    (line,) = axes.lines
    ends = np.column_stack(line.get_data())
    np.testing.assert_allclose(ends @ weights[0] + b, 0, atol=1e-9)
    on_edge = np.isclose(ends[:, 0, None], [-1, 2]) | np.isclose(ends[:, 1, None], [-3, 1])
    assert on_edge.any(axis=1).all()
    assert (axes.get_xlim(), axes.get_ylim()) == ((-1, 2), (-3, 1))


def test_only_lines_in_view_are_drawn_and_named(axes: Axes) -> None:
    axes.set(xlim=(-1, 1), ylim=(-1, 1))
    weights = np.array([[1.0, 0], [1, 1], [0, 0], [0, 2], [1e-200, 0]])
    offsets = np.array([0.5, 9, 0, 0, 1])
    assert plot_item_lines(axes, weights, offsets, list("abcde")).tolist() == [0, 3]
    assert [text.get_text() for text in axes.texts] == ["a", "d"]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), -0.5)
    np.testing.assert_allclose(axes.lines[1].get_ydata(), 0)


def test_names_stand_on_the_side_of_ones(axes: Axes) -> None:
    axes.set(xlim=(-2, 2), ylim=(-2, 2))
    axes.set_aspect("equal")
    weights, offsets = RNG.normal(size=(8, 2)), RNG.normal(size=8) * 0.3
    drawn = plot_item_lines(axes, weights, offsets, [str(i) for i in range(8)])
    axes.figure.draw_without_rendering()
    for i, text in zip(drawn, axes.texts, strict=True):
        box = text.get_window_extent()
        middle = axes.transData.inverted().transform([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
        assert weights[i] @ middle + offsets[i] > 0
        assert weights[i] @ np.array(text.xy) + offsets[i] == pytest.approx(0, abs=1e-9)


def test_many_lines_have_no_names(axes: Axes) -> None:
    axes.set(xlim=(-2, 2), ylim=(-2, 2))
    names = [str(i) for i in range(60)]
    assert len(plot_item_lines(axes, RNG.normal(size=(60, 2)), np.zeros(60), names)) == 60
    assert not axes.texts


# Posteriors


def gaussian_grid(mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, ...]:
    x, y = np.linspace(-5, 6, 221), np.linspace(-6, 5, 201)
    points = np.stack(np.meshgrid(x, y), axis=-1) - mean
    return (
        x,
        y,
        np.exp(-0.5 * np.einsum("yxi,ij,yxj->yx", points, np.linalg.inv(covariance), points)),
    )


def test_outlines_of_a_gaussian_are_its_ellipses(axes: Axes) -> None:
    mean, covariance = np.array([0.4, -0.7]), np.array([[0.9, 0.4], [0.4, 0.5]])
    x, y, density = gaussian_grid(mean, covariance)
    plot_posteriors(axes, x, y, 3 * density, mean, covariance)
    (contours,) = (c for c in axes.collections if isinstance(c, QuadContourSet))
    *outlines, exact, gaussian = axes.lines
    np.testing.assert_allclose(exact.get_xydata()[0], mean, atol=1e-3)
    np.testing.assert_allclose(gaussian.get_xydata()[0], mean)
    precision = np.linalg.inv(covariance)
    shares = [
        [1 - np.exp(-0.5 * np.einsum("ni,ij,nj->n", p, precision, p)) for p in found]
        for found in (
            [line.get_xydata() - mean for line in outlines],
            [path.vertices - mean for path in contours.get_paths()][::-1],
        )
    ]
    for drawn in shares:
        assert len(drawn) == 3
        for share, values in zip((0.5, 0.9, 0.99), drawn, strict=True):
            np.testing.assert_allclose(values, share, atol=4e-3)


def test_outlines_lie_around_the_mode_and_in_view(axes: Axes) -> None:
    x, y = np.linspace(-4, 4, 161), np.linspace(-3, 5, 161)
    across, up = np.meshgrid(x, y)
    density = np.exp(-(across**2) - up**2) / (1 + np.exp(-6 * across + 3 * up))  # skewed
    i, j = np.unravel_index(density.argmax(), density.shape)
    plot_posteriors(axes, x, y, density, np.zeros(2), np.eye(2) * 0.1)
    (contours,) = (c for c in axes.collections if isinstance(c, QuadContourSet))
    for path in contours.get_paths():
        assert Path(path.vertices).contains_point((x[j], y[i]))
        view = axes.viewLim
        assert view.containsx(path.vertices[:, 0].max())
        assert view.containsy(path.vertices[:, 1].min())


def test_both_posteriors_are_named(axes: Axes) -> None:
    add_posterior_legend(axes)
    assert legend_texts(axes) == ["exact", "variational"]


# Images


def test_images_lie_over_their_latent_points(axes: Axes) -> None:
    images = RNG.random((2, 3, 4, 5))
    images[0, 0, 1, 2] = np.nan
    plot_image_grid(axes, images, [-1.5, 0, 1.5], [0.25, 4])
    (drawn,) = axes.images
    tiled = np.ma.filled(drawn.get_array(), np.nan)
    np.testing.assert_array_equal(tiled[7:11, 1:6], images[0, 0])
    np.testing.assert_array_equal(tiled[1:5, 15:20], images[1, 2])
    assert np.isfinite(tiled).sum() == images.size - 1
    assert drawn.get_extent() == [0, 3, 0, 2]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["−1.5", "0", "1.5"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0.25", "4"]
    # A pixel is as high as it is wide.
    axes.figure.draw_without_rendering()
    box = axes.get_window_extent()
    assert box.height / 12 == pytest.approx(box.width / 21)


@pytest.mark.parametrize("shape", [(8, 8), (4, 8), (8, 4)])
def test_images_at_codes_do_not_overlap(axes: Axes, shape: tuple[int, int]) -> None:
    codes, images = RNG.normal(size=(300, 2)), RNG.random((300, *shape))
    axes.set(xlim=(-4, 4), ylim=(-4, 4))
    chosen = plot_images_at(axes, images, codes)
    assert (axes.get_xlim(), axes.get_ylim()) == ((-4, 4), (-4, 4))
    boxes = np.array([image.get_extent() for image in axes.images])
    assert 20 < len(chosen) == len(boxes) < 150
    assert chosen[0] == 0
    middles = np.column_stack([boxes[:, :2].mean(axis=1), boxes[:, 2:].mean(axis=1)])
    np.testing.assert_allclose(middles, codes[chosen])
    width, height = np.ptp(boxes[:, :2], axis=1), np.ptp(boxes[:, 2:], axis=1)
    np.testing.assert_allclose(height / width, shape[0] / shape[1])
    apart = np.abs(middles[:, None] - middles)
    overlap = (apart[..., 0] < width[0]) & (apart[..., 1] < height[0])
    assert overlap.sum() == len(chosen)
