"""Draws images, 0 white to 1 black, into given axes over a plane of two latent dimensions.

All take arrays, so any model's can be drawn. The first latent dimension is drawn to the right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_STYLE: Any = {"cmap": "Greys", "vmin": 0, "vmax": 1, "interpolation": "nearest"}


def plot_image_grid(axes: Axes, images: Array, x: ArrayLike, y: ArrayLike, title: str = "") -> None:
    """Draw images over a grid of latent points.

    Parameters
    ----------
    axes
        Where to draw.
    images
        (n_y, n_x, height, width), the first row of them below; NaN is left blank.
    x, y
        Latent coordinates of the columns, (n_x,), and rows, (n_y,), ascending.
    title
        What stands above.
    """
    # Strokes that reach the edge must not run into the next image.
    framed = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
    n_y, n_x, height, width = framed.shape
    tiled = framed[::-1].transpose(0, 2, 1, 3).reshape(n_y * height, n_x * width)
    axes.imshow(tiled, extent=(0, n_x, 0, n_y), **_STYLE)
    axes.set_aspect(height / width)
    axes.hlines(np.arange(n_y + 1), 0, n_x, color="#999999", linewidth=0.5)
    axes.vlines(np.arange(n_x + 1), 0, n_y, color="#999999", linewidth=0.5)
    for ticks, values in ((axes.set_xticks, x), (axes.set_yticks, y)):
        named = [f"{value:.2g}".replace("-", "−") for value in np.asarray(values)]
        ticks(np.arange(len(named)) + 0.5, named)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(title=title, xlabel="latent dimension 1", ylabel="latent dimension 2")


def plot_images_at(axes: Axes, images: Array, codes: ArrayLike, across: int = 14) -> Indices:
    """Draw images at their codes, as many as do not overlap, into a view that is set and square.

    Parameters
    ----------
    axes
        Where to draw.
    images
        (n_rows, height, width); NaN is left blank.
    codes
        (n_rows, 2).
    across
        Images that would fit side by side.

    Returns
    -------
    ndarray
        The rows drawn; those before others are preferred.
    """
    points = np.asarray(codes, np.float64)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    _, height, width = images.shape
    half = (right - left) / across / 2 * np.array([width, height]) / max(width, height)
    chosen = _choose_separate_rows(points, 2.1 * half)
    for row in chosen:
        (x0, y0), (x1, y1) = points[row] - half, points[row] + half
        axes.imshow(images[row], extent=(x0, x1, y0, y1), **_STYLE)
    axes.set(xlim=(left, right), ylim=(bottom, top))
    return chosen


def _choose_separate_rows(points: Array, apart: Array) -> Indices:
    """Choose rows one by one, each apart from all chosen before along at least one axis."""
    chosen: list[int] = []
    for row, point in enumerate(points):
        if (np.abs(points[chosen] - point) >= apart).any(axis=1).all():
            chosen.append(row)
    return np.array(chosen, np.intp)
