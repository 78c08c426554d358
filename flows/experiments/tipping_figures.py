"""Figures 1 to 4 of Tipping (1998), from fits of other data.

M. E. Tipping, "Probabilistic visualisation of high-dimensional binary data", NIPS 1998.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from flows.experiments.base import Array
from flows.experiments.drawing import COLOURS, MARKERS, figure_paths, open_figure
from flows.experiments.tipping_trial import fine_posterior, make_trial_model, plane_posterior
from flows.report.figures.images import ImageLayout
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.models.latent_trait.em import LatentTraitParams, variational_posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Indices = NDArray[np.intp]

_GREY, _LINE, _PALE = "#999999", "#777777", "#bbbbbb"
MAX_LABEL_STYLES = 2 * len(COLOURS)
"""Number of labels with their own colour and marker."""
_ROW_AREA, _MAX_AREA, _MIN_AREA = 18.0, 450.0, 3.0  # square points: area of one row, and bounds
_MAX_NAMED_LINES = 24
_NAME_POSITIONS = np.linspace(0.04, 0.96, 47)
_MASS_SHARES = (0.5, 0.9, 0.99)


class _RowGroup(NamedTuple):
    """Rows with the same colour and marker."""

    name: str
    rows: Indices
    colour: str
    marker: str


class _Glyphs(NamedTuple):
    """Positions of the rows of a group, (n, 2), and the number of rows at each, (n,)."""

    places: Array
    counts: NDArray[np.intp]


def plot_codes(
    axes: Axes, codes: ArrayLike, labels: Sequence[str] | None = None, title: str = ""
) -> None:
    """Plot latent codes. Rows with the same code share one glyph; its area is their number.

    The `MAX_LABEL_STYLES` most frequent labels have their own colour and marker; others are grey.
    The view is square and contains all codes.

    Parameters
    ----------
    codes
        (n_rows, 2).
    labels
        Name of each row's label or segment, (n_rows,).
    """
    points = _check_codes(codes)
    groups = _group_rows(labels, len(points))
    glyphs = [_merge_points(points[group.rows]) for group in groups]
    max_count = max(int(glyph.counts.max()) for glyph in glyphs)
    for group, glyph in zip(groups, glyphs, strict=True):
        areas = _compute_areas(glyph.counts, max_count)
        # An outline would hide small glyphs.
        widths = np.where(areas < _ROW_AREA / 2, 0.0, 0.4).tolist()
        style: Any = {"c": group.colour, "marker": group.marker, "label": group.name}
        outline: Any = {"alpha": 0.75, "edgecolors": "white", "linewidths": widths}
        x, y = glyph.places.T
        axes.scatter(x, y, s=areas, **style, **outline)
    _set_square_view(axes, points)
    axes.set(title=title, xlabel="latent dimension 1", ylabel="latent dimension 2")
    _add_legends(axes, groups, max_count)


def _check_codes(codes: ArrayLike) -> Array:
    points = np.asarray(codes, np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        raise FitError(f"The codes have shape {points.shape}, not (n_rows, 2). Fit two components.")
    if not np.isfinite(points).all():
        row = int(np.argmin(np.isfinite(points).all(axis=1)))
        raise FitError(
            f"The code of row {row} is {points[row]}, which is not finite. Check the fit."
        )
    return points


def _group_rows(labels: Sequence[str] | None, n_rows: int) -> list[_RowGroup]:
    """Group rows by label in order of first appearance; grey groups come first and lie below."""
    if labels is None:
        return [_RowGroup("", np.arange(n_rows), COLOURS[0], MARKERS[0])]
    if len(labels) != n_rows:
        raise FitError(f"There are {len(labels)} labels for {n_rows} rows. Pass one label per row.")
    names = np.asarray(labels).astype(str)
    counts = Counter(names.tolist())
    frequent = {name for name, _ in counts.most_common(MAX_LABEL_STYLES)}
    others = sorted(set(counts) - frequent)
    groups = [
        _RowGroup(name, np.flatnonzero(names == name), *_choose_style(k))
        for k, name in enumerate(name for name in counts if name in frequent)
    ]
    if others:
        rows = np.flatnonzero(np.isin(names, others))
        groups.insert(0, _RowGroup(f"{len(others)} other labels", rows, _GREY, MARKERS[0]))
    return groups


def _choose_style(k: int) -> tuple[str, str]:
    """Return the k-th colour and marker; each round pairs the colours with other markers."""
    n, turn = len(COLOURS), k // len(COLOURS)
    return COLOURS[k % n], MARKERS[(k + 3 * turn) % n]


def _merge_points(points: Array) -> _Glyphs:
    """Merge coinciding rows; large glyphs come first, so that small ones lie on top."""
    places, counts = np.unique(points, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return _Glyphs(places[order], counts[order])


def _compute_areas(counts: ArrayLike, max_count: int) -> Array:
    """Compute areas in square points; glyphs that are too small to see are enlarged."""
    unit = min(_ROW_AREA, _MAX_AREA / max_count)
    return np.maximum(unit * np.asarray(counts), _MIN_AREA)


def _set_square_view(axes: Axes, points: Array) -> None:
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.56 * max(float((high - low).max()), 1e-3)
    middle = (low + high) / 2
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    axes.set_aspect("equal")


def _add_legends(axes: Axes, groups: Sequence[_RowGroup], max_count: int) -> None:
    """Add legends for labels (top) and areas (bottom) to the right of the view."""
    if groups[0].name:
        # In the legend, grey comes last.
        ordered = sorted(groups, key=lambda group: group.colour == _GREY)
        marks = [_make_mark(group.colour, group.marker, _ROW_AREA * 2) for group in ordered]
        names = [f"{group.name} (n = {len(group.rows):,})" for group in ordered]
        legend = axes.legend(marks, names, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.add_artist(legend)
        # The layout makes room for everything that the axes do not clip.
        legend.set_clip_on(False)
    if max_count > 1:
        counts = sorted({1, round(max_count**0.5), max_count})
        marks = [_make_mark(_GREY, "o", area) for area in _compute_areas(counts, max_count)]
        names = [f"{count:,} row{'s' * (count > 1)}" for count in counts]
        style: Any = {"labelspacing": 1.1, "handletextpad": 1.0, "borderpad": 0.8}
        axes.legend(marks, names, loc="lower left", bbox_to_anchor=(1.0, 0.0), **style)


def _make_mark(colour: str, marker: str, area: float) -> Any:
    from matplotlib.lines import Line2D

    size = float(np.sqrt(area))
    style: Any = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.4}
    return Line2D([], [], color=colour, marker=marker, markersize=size, alpha=0.75, **style)


def plot_item_lines(
    axes: Axes, weights: Array, offsets: Array, names: Sequence[str] | None = None
) -> Indices:
    """Plot the lines w_i·x + b_i = 0, where P(t_i = 1 | x) = ½, of all items in view.

    Each name is on the side where 1 is more likely. If there are more than 24 lines, they are paler
    and have no names. The view of the axes must be set before, and does not change.

    Parameters
    ----------
    weights, offsets
        w (n_features, 2) and b (n_features,).
    names
        Names of the items, (n_features,).

    Returns
    -------
    ndarray
        Indices of the plotted items.
    """
    view = np.array([axes.get_xlim(), axes.get_ylim()])
    ends = [_clip_line(w, float(b), view) for w, b in zip(weights, offsets, strict=True)]
    plotted = np.array([i for i, pair in enumerate(ends) if pair is not None], np.intp)
    are_few = len(plotted) <= _MAX_NAMED_LINES
    style: Any = {"color": _LINE if are_few else _PALE, "linewidth": 0.7 if are_few else 0.5}
    for i in plotted:
        axes.plot(*ends[i].T, **style, zorder=0.5, scalex=False, scaley=False)
    if names is not None and are_few and len(plotted):
        plotted_names = [names[i] for i in plotted]
        _label_lines(axes, np.array([ends[i] for i in plotted]), weights[plotted], plotted_names)
    return plotted


def _clip_line(weight: Array, offset: float, view: Array) -> Array | None:
    """Cut the line w·x + b = 0 to a view [[left, right], [bottom, top]]: two ends, (2, 2)."""
    length = float(np.linalg.norm(weight))
    distance = -offset / length if length else np.inf
    if not np.isfinite(distance):
        return None
    unit = weight / length
    point, along = distance * unit, np.array([-unit[1], unit[0]])
    moving = along != 0
    if ((point < view[:, 0]) | (point > view[:, 1]))[~moving].any():
        return None
    times = (view[moving] - point[moving, None]) / along[moving, None]
    first, last = times.min(axis=1).max(), times.max(axis=1).min()
    return None if first >= last else point + np.array([[first], [last]]) * along


def _label_lines(axes: Axes, ends: Array, weights: Array, names: Sequence[str]) -> None:
    """Put each name next to its line, far from other names and lines."""
    from matplotlib.patheffects import withStroke

    earlier = np.zeros((0, 2))
    units = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    shifts = (units * ends[:, 0]).sum(axis=1)
    for k, (first, last) in enumerate(ends):
        places = first + _NAME_POSITIONS[:, None] * (last - first)
        to_names = np.linalg.norm(places[:, None] - earlier, axis=2).min(axis=1, initial=np.inf)
        to_lines = np.abs(places @ units.T - shifts)
        to_lines[:, k] = np.inf
        place = places[np.argmax(np.minimum(to_names, 3 * to_lines.min(axis=1)))]
        earlier = np.vstack([earlier, place])
        style: Any = {"ha": "center", "va": "center", "size": 7, "color": "#333333"}
        style["path_effects"] = [withStroke(linewidth=1.6, foreground="white")]
        axes.annotate(names[k], place, xytext=7 * units[k], textcoords="offset points", **style)


def plot_posteriors(
    axes: Axes, x: Array, y: Array, density: Array, mean: Array, covariance: Array, title: str = ""
) -> None:
    """Plot the 50, 90 and 99 % regions of a row's posterior and of its Gaussian approximation.

    Parameters
    ----------
    x, y, density
        Coordinates of a grid with equal steps, (n_x,) and (n_y,), and the exact density there,
        (n_y, n_x), up to a factor; the mass outside the grid must be negligible.
    mean, covariance
        Mean and covariance of the Gaussian, (2,) and (2, 2).
    """
    exact, gaussian = COLOURS[:2]
    levels = _compute_levels(density)
    ellipses = [_compute_ellipse(mean, covariance, share) for share in _MASS_SHARES]
    axes.contour(x, y, density, levels, colors=exact, linewidths=(0.9, 1.3, 1.8))
    for outline in ellipses:
        axes.plot(*outline, color=gaussian, ls="--", lw=1.2)
    shares = density / density.sum()
    axes.plot(shares.sum(axis=0) @ x, shares.sum(axis=1) @ y, "o", color=exact, ms=5)
    axes.plot(*mean, "x", color=gaussian, ms=7, mew=1.8)
    rows, columns = np.nonzero(density >= levels[0])
    _set_square_view(axes, np.vstack([np.column_stack([x[columns], y[rows]]), ellipses[-1].T]))
    axes.set(title=title, xlabel="latent dimension 1", ylabel="latent dimension 2")


def _compute_levels(density: Array) -> list[float]:
    """Compute the densities above which the given shares of the mass lie, ascending."""
    falling = np.sort(density.ravel())[::-1]
    sums = np.cumsum(falling) / falling.sum()
    indices = np.searchsorted(sums, _MASS_SHARES[::-1])
    # A posterior that the grid hardly resolves has fewer levels.
    return sorted(set(falling[np.minimum(indices, falling.size - 1)].tolist()))


def _compute_ellipse(mean: Array, covariance: Array, share: float) -> Array:
    """Compute the ellipse that contains a share of a Gaussian's mass, (2, n)."""
    angles = np.linspace(0, 2 * np.pi, 181)
    circle = np.sqrt(-2 * np.log(1 - share)) * np.array([np.cos(angles), np.sin(angles)])
    outline: Array = mean[:, None] + np.linalg.cholesky(covariance) @ circle
    return outline


def add_posterior_legend(axes: Axes) -> None:
    """Add the legend of `plot_posteriors`."""
    from matplotlib.lines import Line2D

    exact, gaussian = COLOURS[:2]
    marks = [
        Line2D([], [], color=exact, marker="o", ms=5, lw=1.3),
        Line2D([], [], color=gaussian, marker="x", ms=7, mew=1.8, ls="--", lw=1.2),
    ]
    axes.legend(marks, ["exact", "variational"], loc="upper left", bbox_to_anchor=(1.0, 1.0))


_STYLE: Any = {"cmap": "Greys", "vmin": 0, "vmax": 1, "interpolation": "nearest"}


def plot_image_grid(axes: Axes, images: Array, x: ArrayLike, y: ArrayLike, title: str = "") -> None:
    """Plot images over a grid of latent points.

    Parameters
    ----------
    images
        (n_y, n_x, height, width), the first row at the bottom; NaN is left blank.
    x, y
        Latent coordinates of the columns, (n_x,), and rows, (n_y,), ascending.
    """
    # Leave a gap between images, so that strokes at the edge stay separate.
    framed = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
    n_y, n_x, height, width = framed.shape
    tiled = framed[::-1].transpose(0, 2, 1, 3).reshape(n_y * height, n_x * width)
    axes.imshow(tiled, extent=(0, n_x, 0, n_y), **_STYLE)
    axes.set_aspect(height / width)
    axes.hlines(np.arange(n_y + 1), 0, n_x, color="#999999", linewidth=0.5)
    axes.vlines(np.arange(n_x + 1), 0, n_y, color="#999999", linewidth=0.5)
    for ticks, values in ((axes.set_xticks, x), (axes.set_yticks, y)):
        texts = [f"{value:.2g}".replace("-", "−") for value in np.asarray(values)]
        ticks(np.arange(len(texts)) + 0.5, texts)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(title=title, xlabel="latent dimension 1", ylabel="latent dimension 2")


def plot_images_at(axes: Axes, images: Array, codes: ArrayLike, n_across: int = 14) -> Indices:
    """Plot images, (n_rows, height, width), at their codes, (n_rows, 2), in the axes' square view.

    Images that would overlap earlier ones are left out; `n_across` of them fit side by side.
    Returns the indices of the plotted rows.
    """
    points = np.asarray(codes, np.float64)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    _, height, width = images.shape
    half = (right - left) / n_across / 2 * np.array([width, height]) / max(width, height)
    chosen = _choose_separate_rows(points, 2.1 * half)
    for row in chosen:
        (x0, y0), (x1, y1) = points[row] - half, points[row] + half
        axes.imshow(images[row], extent=(x0, x1, y0, y1), **_STYLE)
    axes.set(xlim=(left, right), ylim=(bottom, top))
    return chosen


def _choose_separate_rows(points: Array, distance: Array) -> Indices:
    """Choose rows in order, each `distance` from all earlier ones along at least one axis."""
    chosen: list[int] = []
    for row, point in enumerate(points):
        if (np.abs(points[chosen] - point) >= distance).any(axis=1).all():
            chosen.append(row)
    return np.array(chosen, np.intp)


_VARIATIONAL, _SAMPLING = "variational", "sampling"
_EXTENT, _IMAGES_PER_AXIS = 2.0, 9  # of the grid of images


class SyntheticRows(NamedTuple):
    """Noisy copies of prototypes, and the prototype of each row."""

    name: str
    block: BinaryBlock
    prototype: NDArray[np.intp]


class BinaryImages(NamedTuple):
    """Rows that are images, and their layout."""

    name: str
    block: BinaryBlock
    layout: ImageLayout


@dataclass(frozen=True)
class TippingFigures:
    """The figures of the experiment, in a folder; parameters are keyed by data and estimator."""

    folder: Path
    params: Mapping[tuple[str, str], LatentTraitParams]

    def _paths(self, name: str) -> tuple[Path, Path]:
        return figure_paths(self.folder, f"tipping_{name}")

    def plot_synthetic_codes(self, data: Sequence[SyntheticRows]) -> None:
        """Plot figure 1: codes of the synthetic data by the variational fit and by sampling."""
        note = (
            "Posterior means of all rows; areas are numbers of rows. Lines: where a bit is 1 with "
            "probability ½; the number of the bit is on the side of 1. Variational: means of the "
            "Gaussian approximations. Sampling: exact means, with axes rotated to match."
        )
        title = "Noisy copies of three prototypes in the latent plane"
        size = (12, 4.9 * len(data))
        with open_figure(*self._paths("synthetic"), size=size, title=title, note=note) as figure:
            figure.set_layout_engine("compressed")
            panels = figure.subplots(len(data), 2, squeeze=False)
            for row, rows in zip(panels, data, strict=True):
                self._plot_synthetic_panels(row, rows)

    def _plot_synthetic_panels(self, row: Sequence[Axes], data: SyntheticRows) -> None:
        variational = self.params[data.name, _VARIATIONAL]
        sampling = self.params[data.name, _SAMPLING]
        rotation, _ = scipy.linalg.orthogonal_procrustes(sampling.weights, variational.weights)
        exact = fine_posterior(data.block, sampling.weights, sampling.offsets)
        gaussian = variational_posterior(variational, data.block)
        panels = {
            _VARIATIONAL: (gaussian.mean, variational.weights, variational.offsets),
            _SAMPLING: (exact.mean @ rotation, sampling.weights @ rotation, sampling.offsets),
        }
        labels = [f"prototype {k + 1}" for k in data.prototype]
        names = [str(i + 1) for i in range(data.block.n_features)]
        for axes, (name, (codes, weights, offsets)) in zip(row, panels.items(), strict=True):
            plot_codes(axes, codes, labels, f"{data.name}, {name}")
            plot_item_lines(axes, weights, offsets, names)

    def plot_expected_images(self, images: BinaryImages) -> None:
        """Plot figure 2: P(t = 1 | x) over the plane."""
        axis = np.linspace(-_EXTENT, _EXTENT, _IMAGES_PER_AXIS)
        points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        model, params = make_trial_model("variational"), self.params[images.name, _VARIATIONAL]
        expected = images.layout.arrange_images(model.reconstruct(params, points))
        note = (
            "Probability that a pixel is 1 at points of the plane, white 0, black 1; variational "
            "fit. Latent dimensions have mean 0 and variance 1."
        )
        title = f"Images that the model of {images.name} expects over the latent plane"
        with open_figure(*self._paths("expected"), size=(7.5, 8), title=title, note=note) as figure:
            grid = expected.reshape(_IMAGES_PER_AXIS, _IMAGES_PER_AXIS, *expected.shape[1:])
            plot_image_grid(figure.subplots(), grid, axis, axis)

    def plot_image_codes(self, images: BinaryImages) -> None:
        """Plot figure 3: the codes of images, and some of the images at their codes."""
        params, block = self.params[images.name, _VARIATIONAL], images.block
        codes = variational_posterior(params, block).mean
        pictures = images.layout.arrange_images(_values_with_gaps(block))
        note = (
            f"Left: posterior means of {block.n_samples:,} images, variational fit. Right: some of "
            "the images, centred on their means; the first ones that fit without overlap."
        )
        title = f"Images of {images.name} in the latent plane"
        with open_figure(*self._paths("codes"), size=(12, 6.9), title=title, note=note) as figure:
            left, right = figure.subplots(1, 2, sharex=True, sharey=True)
            plot_codes(left, codes, title="all images")
            right.set_aspect("equal")
            plotted = plot_images_at(right, pictures, codes)
            right.set(title=f"{len(plotted)} of them", xlabel="latent dimension 1")

    def plot_posteriors(self, data: Sequence[SyntheticRows | BinaryImages]) -> None:
        """Plot figure 4: exact posteriors of single rows and their variational Gaussians."""
        note = (
            "Outlines hold 50, 90 and 99 % of the posterior of one row, under the weights of the "
            "variational fit; marks are means. Exact: prior times likelihood on a grid. Gap: log "
            "P(t) minus its bound, in nats. Above: the row with the median gap; below: the row "
            "with the largest gap."
        )
        title = "Posteriors in the latent plane, exact and variational"
        size = (4 * len(data) + 1.2, 8.2)
        with open_figure(*self._paths("posteriors"), size=size, title=title, note=note) as figure:
            figure.set_layout_engine("compressed")
            panels = figure.subplots(2, len(data), squeeze=False)
            for column, rows in zip(panels.T, data, strict=True):
                self._plot_posterior_panels(column, rows)
            add_posterior_legend(panels[0, -1])

    def _plot_posterior_panels(
        self, column: Sequence[Axes], data: SyntheticRows | BinaryImages
    ) -> None:
        params, block = self.params[data.name, _VARIATIONAL], data.block
        bound = variational_posterior(params, block)
        exact = fine_posterior(block, params.weights, params.offsets)
        gaps = exact.log_likelihood - bound.bound
        order = np.argsort(gaps, kind="stable")
        X, observed = block.unpack_values(), block.unpack_mask()
        for axes, row in zip(column, (order[len(order) // 2], order[-1]), strict=True):
            mask = None if observed is None else observed[row]
            posterior = plane_posterior(X[row], mask, params.weights, params.offsets)
            title = f"{data.name}, row {row + 1}: gap {gaps[row]:.2g}"
            grid = (posterior.x, posterior.y, posterior.density)
            plot_posteriors(axes, *grid, bound.mean[row], bound.covariance[row], title)


def _values_with_gaps(block: BinaryBlock) -> Array:
    """Convert bits to numbers; missing values become NaN."""
    X, observed = block.unpack_values().astype(np.float64), block.unpack_mask()
    return X if observed is None else np.where(observed == 1, X, np.nan)
