"""Figures 1 to 4 of the paper behind the latent-trait model, from fits of other data.

M. E. Tipping, "Probabilistic visualisation of high-dimensional binary data", NIPS 1998.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.experiments.drawing import open_figure
from flows.experiments.tipping.latent_figures import (
    add_posterior_legend,
    plot_codes,
    plot_item_lines,
    plot_posteriors,
)
from flows.experiments.tipping.latent_images import plot_image_grid, plot_images_at
from flows.experiments.tipping.latent_plane import fine_posterior, plane_posterior
from flows.experiments.tipping.trial import make_trial_model
from flows.report.figures.image_layout import ImageLayout
from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.em import LatentTraitParams, variational_posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_VARIATIONAL, _SAMPLING = "variational", "sampling"
_EXTENT, _IMAGES_PER_AXIS = 2.0, 9  # of the grid of images


class SyntheticRows(NamedTuple):
    """Noisy copies of prototypes, and the prototype of each row."""

    name: str
    block: BinaryBlock
    prototype: NDArray[np.intp]


class BinaryImages(NamedTuple):
    """Rows that are images, and where their features lie."""

    name: str
    block: BinaryBlock
    layout: ImageLayout


@dataclass(frozen=True)
class TippingFigures:
    """Draws into a folder; parameters are by data and estimator."""

    folder: Path
    params: Mapping[tuple[str, str], LatentTraitParams]

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"tipping_{name}.png", self.folder / f"tipping_{name}.svg"

    def plot_synthetic_codes(self, data: Sequence[SyntheticRows]) -> None:
        """Draw figure 1: codes of the synthetic data, variational beside sampling."""
        note = (
            "Posterior means of all rows, their area the number of rows. Lines: where a bit is 0 "
            "or 1 with probability ½; the number of the bit stands on the side of 1. Variational: "
            "means of its own Gaussians; sampling: exact means, axes turned to match."
        )
        title = "Noisy copies of three prototypes in the latent plane"
        size = (12, 4.9 * len(data))
        with open_figure(*self._paths("synthetic"), size=size, title=title, note=note) as figure:
            figure.set_layout_engine("compressed")
            panels = figure.subplots(len(data), 2, squeeze=False)
            for row, found in zip(panels, data, strict=True):
                self._plot_synthetic_panels(row, found)

    def _plot_synthetic_panels(self, row: Sequence[Axes], data: SyntheticRows) -> None:
        variational = self.params[data.name, _VARIATIONAL]
        sampling = self.params[data.name, _SAMPLING]
        turn, _ = scipy.linalg.orthogonal_procrustes(sampling.weights, variational.weights)
        exact = fine_posterior(data.block, sampling.weights, sampling.offsets)
        gaussian = variational_posterior(variational, data.block)
        drawn = {
            _VARIATIONAL: (gaussian.mean, variational.weights, variational.offsets),
            _SAMPLING: (exact.mean @ turn, sampling.weights @ turn, sampling.offsets),
        }
        labels = [f"prototype {k + 1}" for k in data.prototype]
        names = [str(i + 1) for i in range(data.block.n_features)]
        for axes, (name, (codes, weights, offsets)) in zip(row, drawn.items(), strict=True):
            plot_codes(axes, codes, labels, f"{data.name}, {name}")
            plot_item_lines(axes, weights, offsets, names)

    def plot_expected_images(self, images: BinaryImages) -> None:
        """Draw figure 2: P(t = 1 | x) over the plane."""
        axis = np.linspace(-_EXTENT, _EXTENT, _IMAGES_PER_AXIS)
        points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        model, params = make_trial_model("variational"), self.params[images.name, _VARIATIONAL]
        found = images.layout.arrange_images(model.reconstruct(params, points))
        note = (
            "Probability that a pixel is 1 at points of the plane, white 0, black 1; variational "
            "fit. Latent dimensions have mean 0 and variance 1."
        )
        title = f"What the model of {images.name} expects over the latent plane"
        with open_figure(*self._paths("expected"), size=(7.5, 8), title=title, note=note) as figure:
            grid = found.reshape(_IMAGES_PER_AXIS, _IMAGES_PER_AXIS, *found.shape[1:])
            plot_image_grid(figure.subplots(), grid, axis, axis)

    def plot_image_codes(self, images: BinaryImages) -> None:
        """Draw figure 3: the codes of images, and some of the images at their codes."""
        params, block = self.params[images.name, _VARIATIONAL], images.block
        codes = variational_posterior(params, block).mean
        pictures = images.layout.arrange_images(_values_with_gaps(block))
        note = (
            f"Left: posterior means of {block.n_samples:,} images, variational fit. Right: some of "
            "the images, the middle of each at its own mean; the first that found room."
        )
        title = f"Images of {images.name} in the latent plane"
        with open_figure(*self._paths("codes"), size=(12, 6.9), title=title, note=note) as figure:
            left, right = figure.subplots(1, 2, sharex=True, sharey=True)
            plot_codes(left, codes, title="all images")
            right.set_aspect("equal")
            drawn = plot_images_at(right, pictures, codes)
            right.set(title=f"{len(drawn)} of them", xlabel="latent dimension 1")

    def plot_posteriors(self, data: Sequence[SyntheticRows | BinaryImages]) -> None:
        """Draw figure 4: exact posteriors of single rows and their variational Gaussians."""
        note = (
            "Outlines hold 50, 90 and 99 % of the posterior of one row, under the weights of the "
            "variational fit; marks are means. Exact: prior times likelihood on a grid. Above: the "
            "row whose bound on log P(t) is as loose as that of the median row; below: the row "
            "with the loosest bound. Gap: log P(t) less the bound, in nats."
        )
        title = "Posteriors in the latent plane, exact and variational"
        size = (4 * len(data) + 1.2, 8.2)
        with open_figure(*self._paths("posteriors"), size=size, title=title, note=note) as figure:
            figure.set_layout_engine("compressed")
            panels = figure.subplots(2, len(data), squeeze=False)
            for column, found in zip(panels.T, data, strict=True):
                self._plot_posterior_panels(column, found)
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
            found = plane_posterior(X[row], mask, params.weights, params.offsets)
            title = f"{data.name}, row {row + 1}: gap {gaps[row]:.2g}"
            outlines = (found.x, found.y, found.density)
            plot_posteriors(axes, *outlines, bound.mean[row], bound.covariance[row], title)


def _values_with_gaps(block: BinaryBlock) -> Array:
    """Bits as numbers, NaN where none is observed."""
    X, observed = block.unpack_values().astype(np.float64), block.unpack_mask()
    return X if observed is None else np.where(observed == 1, X, np.nan)
