"""Figures 1 to 4 of Tipping (1998), from fits of other data.

M. E. Tipping, "Probabilistic visualisation of high-dimensional binary data", NIPS 1998.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.experiments.base import Array
from flows.experiments.drawing import figure_paths, make_panel, write_figure
from flows.experiments.tipping_trial import fine_posterior, make_trial_model, plane_posterior
from flows.report.figures.axes import fit_square_axes
from flows.report.figures.colours import COLOURS
from flows.report.figures.images import ImageLayout
from flows.report.figures.latent import SHARES, mark_even_odds_lines, plot_image_mosaic
from flows.report.figures.marks import (
    Axis,
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    PointMarks,
    RasterMark,
)
from flows.report.figures.row_plots import ColourLabels, group_rows_by_label, mark_rows
from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.em import LatentTraitParams, variational_posterior

_VARIATIONAL, _SAMPLING = "variational", "sampling"
_LABELS = ("latent dimension 1", "latent dimension 2")
_ROOM = 0.06  # around all codes, as a share of the view
_GRID_SIZE = 61
_EXTENT, _IMAGES_PER_AXIS = 2.0, 9  # of the grid of images
_IMAGES_ACROSS, _PIXELS_ACROSS = 14, 1400  # of a plot with images at their codes
_MASS_SHARES = (0.5, 0.9, 0.99)


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

    def _write(
        self, name: str, panels: Sequence[Sequence[Figure]], title: str, note: str, width: int
    ) -> None:
        paths = figure_paths(self.folder, f"tipping_{name}")
        write_figure(*paths, panels=panels, title=title, note=note, width=width)

    def plot_synthetic_codes(self, data: Sequence[SyntheticRows]) -> None:
        """Plot figure 1: codes of the synthetic data by the variational fit and by sampling."""
        note = (
            "Posterior means of all rows; areas are numbers of rows. Lines: where a bit is 1 with "
            "probability ½; the number of the bit is on the side of 1. Variational: means of the "
            "Gaussian approximations. Sampling: exact means, with axes rotated to match."
        )
        title = "Noisy copies of three prototypes in the latent plane"
        panels = [self._plot_synthetic_panels(rows) for rows in data]
        self._write("synthetic", panels, title, note, 1060)

    def _plot_synthetic_panels(self, data: SyntheticRows) -> list[Figure]:
        variational = self.params[data.name, _VARIATIONAL]
        sampling = self.params[data.name, _SAMPLING]
        rotation, _ = scipy.linalg.orthogonal_procrustes(sampling.weights, variational.weights)
        exact = fine_posterior(data.block, sampling.weights, sampling.offsets)
        gaussian = variational_posterior(variational, data.block)
        fits = {
            _VARIATIONAL: (gaussian.mean, variational.weights, variational.offsets),
            _SAMPLING: (exact.mean @ rotation, sampling.weights @ rotation, sampling.offsets),
        }
        prototypes = ColourLabels("prototype", data.prototype + 1)
        names = [str(i + 1) for i in range(data.block.n_features)]
        return [
            plot_codes(codes, f"{data.name}, {name}", prototypes, (weights, offsets, names))
            for name, (codes, weights, offsets) in fits.items()
        ]

    def plot_expected_images(self, images: BinaryImages) -> None:
        """Plot figure 2: P(t = 1 | x) over the plane."""
        axis = np.linspace(-_EXTENT, _EXTENT, _IMAGES_PER_AXIS)
        points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        model, params = make_trial_model("variational"), self.params[images.name, _VARIATIONAL]
        expected = images.layout.arrange_images(model.reconstruct(params, points))
        note = (
            "Probability that a pixel is 1 at points of the plane; variational fit. Latent "
            "dimensions have mean 0 and variance 1."
        )
        title = f"Images that the model of {images.name} expects over the latent plane"
        plot = plot_image_mosaic(expected, axis, axis, _LABELS)
        self._write("expected", [[Figure("", "", plot, ramp=SHARES.make_ramp())]], title, note, 640)

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
        panels = [plot_codes(codes, "all images"), plot_images_at(pictures, codes)]
        self._write("codes", [panels], title, note, 1060)

    def plot_posteriors(self, data: Sequence[SyntheticRows | BinaryImages]) -> None:
        """Plot figure 4: exact posteriors of single rows and their variational Gaussians."""
        note = (
            "Outlines hold 50, 90 and 99 % of the posterior of one row, under the weights of the "
            "variational fit; marks are means. Exact: prior times likelihood on a grid. Gap: log "
            "P(t) minus its bound, in nats. Above: the row with the median gap; below: the row "
            "with the largest gap."
        )
        title = "Posteriors in the latent plane, exact and variational"
        columns = [self._plot_posterior_panels(rows) for rows in data]
        self._write("posteriors", [*zip(*columns, strict=True)], title, note, 340 * len(data))

    def _plot_posterior_panels(self, data: SyntheticRows | BinaryImages) -> list[Figure]:
        params, block = self.params[data.name, _VARIATIONAL], data.block
        bound = variational_posterior(params, block)
        exact = fine_posterior(block, params.weights, params.offsets)
        gaps = exact.log_likelihood - bound.bound
        order = np.argsort(gaps, kind="stable")
        X, observed = block.unpack_values(), block.unpack_mask()
        panels = []
        for row in (order[len(order) // 2], order[-1]):
            mask = None if observed is None else observed[row]
            posterior = plane_posterior(X[row], mask, params.weights, params.offsets)
            title = f"{data.name}, row {row + 1}: gap {gaps[row]:.2g}"
            grid = (posterior.x, posterior.y, posterior.density)
            panels.append(plot_posteriors(*grid, bound.mean[row], bound.covariance[row], title))
        return panels


def plot_codes(
    codes: Array,
    title: str,
    labels: ColourLabels | None = None,
    items: tuple[Array, Array, Sequence[str]] | None = None,
) -> Figure:
    """Plot latent codes, (n_rows, 2), one mark per distinct code and label, as the report does.

    `items` are weights, (n_features, 2), offsets and names of items with P(1 | x) = σ(w·x + b).
    Their lines with probability ½ are drawn too.
    """
    groups, _ = group_rows_by_label(labels, len(codes))
    x, y = fit_square_axes(codes, _LABELS, _ROOM)
    marks = [mark_rows(codes[group.rows], (), group.key)[0] for group in groups]
    keys = () if labels is None else [group.key for group in groups]
    if labels is not None:
        keys = [
            key._replace(name=f"{labels.name} {key.name} (n = {len(group.rows):,})")
            for key, group in zip(keys, groups, strict=True)
        ]
    if items is not None:
        weights, offsets, names = items
        across, up = (np.linspace(axis.low, axis.high, _GRID_SIZE) for axis in (x, y))
        points = np.stack(np.meshgrid(across, up), axis=-1)
        probabilities = scipy.special.expit(np.moveaxis(points @ weights.T + offsets, -1, 0))
        marks += mark_even_odds_lines(across, up, probabilities, names)[0]
    return make_panel(title, x, y, marks, keys, height=None)


def plot_images_at(images: Array, codes: Array) -> Figure:
    """Plot images, (n_rows, height, width), at their codes, (n_rows, 2), the first ones first.

    Images that would overlap earlier ones are left out.
    """
    x, y = fit_square_axes(codes, _LABELS, _ROOM)
    _, height, width = images.shape
    size = _PIXELS_ACROSS // _IMAGES_ACROSS * np.array([height, width]) // max(height, width)
    rows, columns = (np.arange(n) * m // n for n, m in zip(size, (height, width), strict=True))
    share = (codes - [x.low, y.low]) / (x.high - x.low)
    corners = np.rint(_PIXELS_ACROSS * np.column_stack([1 - share[:, 1], share[:, 0]]) - size / 2)
    corners = np.clip(corners.astype(np.intp), 0, _PIXELS_ACROSS - size)
    chosen = _choose_separate_rows(corners, 1.05 * size)
    area = np.zeros((_PIXELS_ACROSS, _PIXELS_ACROSS))
    for row in chosen:
        (top, left), (down, across) = corners[row], size
        area[top : top + down, left : left + across] = images[row][np.ix_(rows, columns)]
    return make_panel(
        f"{len(chosen)} of them", x, y, [RasterMark(np.nan_to_num(area), SHARES)], height=None
    )


def _choose_separate_rows(points: NDArray[Any], distance: Array) -> list[int]:
    """Choose rows in order, each `distance` from all earlier ones along at least one axis."""
    chosen: list[int] = []
    for row, point in enumerate(points):
        if (np.abs(points[chosen] - point) >= distance).any(axis=1).all():
            chosen.append(row)
    return chosen


def plot_posteriors(
    x: Array, y: Array, density: Array, mean: Array, covariance: Array, title: str = ""
) -> Figure:
    """Plot the 50, 90 and 99 % regions of a row's posterior and of its Gaussian approximation.

    Parameters
    ----------
    x, y, density
        Coordinates of a grid with equal steps, (n_x,) and (n_y,), and the exact density there,
        (n_y, n_x), up to a factor; the mass outside the grid must be negligible.
    mean, covariance
        Mean and covariance of the Gaussian, (2,) and (2, 2).
    """
    from contourpy import contour_generator  # of the extra `report`

    exact, gaussian = COLOURS[:2]
    generator: Any = contour_generator(x, y, density)
    outlines = [line for level in _compute_levels(density) for line in generator.lines(level)]
    ellipses = [_compute_ellipse(mean, covariance, share) for share in _MASS_SHARES]
    shares = density / density.sum()
    means = np.array([[shares.sum(axis=0) @ x, shares.sum(axis=1) @ y], mean])
    marks: list[Mark] = [
        LineMarks(outlines, [exact] * len(outlines)),
        LineMarks(ellipses, [gaussian] * len(ellipses), dash=(5, 3)),
        PointMarks(means[:1, 0], means[:1, 1], exact, size=6.0),
        PointMarks(means[1:, 0], means[1:, 1], gaussian, "plus", size=6.0),
    ]
    axes: tuple[Axis, Axis] = fit_square_axes(np.vstack([*outlines, *ellipses]), _LABELS, _ROOM)
    keys = [LegendKey("exact", exact), LegendKey("variational", gaussian, "plus")]
    return make_panel(title, *axes, marks, keys, height=None)


def _compute_levels(density: Array) -> list[float]:
    """Compute the densities above which the given shares of the mass lie, ascending."""
    falling = np.sort(density.ravel())[::-1]
    sums = np.cumsum(falling) / falling.sum()
    indices = np.searchsorted(sums, _MASS_SHARES[::-1])
    # A posterior that the grid hardly resolves has fewer levels.
    return sorted(set(falling[np.minimum(indices, falling.size - 1)].tolist()))


def _compute_ellipse(mean: Array, covariance: Array, share: float) -> Array:
    """Compute the ellipse that contains a share of a Gaussian's mass, (n, 2)."""
    angles = np.linspace(0, 2 * np.pi, 181)
    circle = np.sqrt(-2 * np.log(1 - share)) * np.column_stack([np.cos(angles), np.sin(angles)])
    outline: Array = mean + circle @ np.linalg.cholesky(covariance).T
    return outline


def _values_with_gaps(block: BinaryBlock) -> Array:
    """Convert bits to numbers; missing values become NaN."""
    X, observed = block.unpack_values().astype(np.float64), block.unpack_mask()
    return X if observed is None else np.where(observed == 1, X, np.nan)
