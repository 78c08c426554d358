"""Where features lie in an image."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ImageLayout:
    """Where every feature lies in an image.

    Attributes
    ----------
    height, width
        Size of the image in pixels.
    pixels
        Flat pixel index of each feature, (n_features,).
    """

    height: int
    width: int
    pixels: NDArray[np.intp]

    def arrange_images(self, rows: ArrayLike) -> Array:
        """Lay out rows of features, (n, n_features), as images, (n, height, width).

        Pixels without a feature are NaN.
        """
        values = np.asarray(rows, np.float64)
        flat = np.full((len(values), self.height * self.width), np.nan)
        flat[:, self.pixels] = values
        return flat.reshape(-1, self.height, self.width)


def find_image_layout(feature_names: Sequence[str], shape: str | None) -> ImageLayout:
    """Place features named r{row}c{column} by name, others row by row.

    Parameters
    ----------
    feature_names
        Names, in column order.
    shape
        `HEIGHTxWIDTH`; None takes the size from the names.

    Raises
    ------
    FitError
        If the shape cannot be read or does not hold the features.
    """
    size = None if shape is None else _parse_shape(shape)
    found = [re.fullmatch(r"r(\d+)c(\d+)", name) for name in feature_names]
    places = np.array([[int(m[1]), int(m[2])] for m in found if m], np.intp).reshape(-1, 2)
    if len(places) == len(feature_names):
        return _place_by_name(places, size)
    n_features = len(feature_names)
    if size is None:
        raise FitError(
            f"--image-shape: Expected HEIGHTxWIDTH for {n_features} features not named "
            f"r0c0, r0c1 and so on, got none. {_suggest_shape(n_features)}"
        )
    if size[0] * size[1] != n_features:
        raise FitError(
            f"--image-shape: Expected a height times width of the {n_features} features, "
            f"got {shape} = {size[0] * size[1]}. {_suggest_shape(n_features)}"
        )
    return ImageLayout(*size, np.arange(n_features))


def _suggest_shape(n_features: int) -> str:
    """Name the shape that is nearest to a square."""
    height = next(n for n in range(math.isqrt(n_features), 0, -1) if n_features % n == 0)
    return f"Give that of the images, such as {height}x{n_features // height}."


def _parse_shape(shape: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", shape)
    if match is None:
        raise FitError(f"--image-shape: Expected HEIGHTxWIDTH such as 16x16, got {shape!r}.")
    return int(match[1]), int(match[2])


def _place_by_name(places: NDArray[np.intp], size: tuple[int, int] | None) -> ImageLayout:
    height, width = (int(n) + 1 for n in places.max(axis=0))
    if size is None:
        size = (height, width)
    if size[0] < height or size[1] < width:
        raise FitError(
            f"--image-shape: Expected at least {height}x{width}, the pixels named by the "
            f"features, got {size[0]}x{size[1]}."
        )
    return ImageLayout(*size, places[:, 0] * size[1] + places[:, 1])
