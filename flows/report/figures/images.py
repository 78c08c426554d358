"""Features as images: their positions, and PNG files in which zero is transparent."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flows.report.figures.colours import ColourScale
from flows.report.figures.marks import CaptionedImage
from pipeline.errors import FitError

Array = NDArray[np.float64]

MAX_IMAGES = 64
_MIN_PIXELS = 112
"""Minimum size of an image: browsers blur smaller ones when they print."""


def render_images(
    images: Array, captions: Sequence[str], tops: Array, is_signed: bool
) -> tuple[CaptionedImage, ...]:
    """Encode images as PNG.

    Parameters
    ----------
    images
        (n, height, width); NaN is left blank.
    captions
        Text below each image.
    tops
        Absolute value of each image with full opacity, (n,).
    is_signed
        Whether some values are negative.
    """
    times = max(1, _MIN_PIXELS // max(images.shape[1:]))
    encoded_images = []
    for image, caption, top in zip(images, captions, tops, strict=True):
        pixels = ColourScale(float(top), is_signed).paint(np.nan_to_num(image))
        uri = encode_png(pixels.repeat(times, 0).repeat(times, 1))
        encoded_images.append(CaptionedImage(uri, caption))
    return tuple(encoded_images)


def encode_png(pixels: NDArray[np.uint8]) -> str:
    """Return red, green, blue and opacity, (height, width, 4), as a data URI."""
    from PIL import Image  # optional

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class ImageLayout:
    """Positions of features in an image: the flat pixel index of each feature, (n_features,)."""

    height: int
    width: int
    pixels: NDArray[np.intp]

    def arrange_images(self, rows: ArrayLike) -> Array:
        """Arrange rows of features, (n, n_features), as images, (n, height, width).

        Pixels without a feature are NaN.
        """
        values = np.asarray(rows, np.float64)
        flat = np.full((len(values), self.height * self.width), np.nan)
        flat[:, self.pixels] = values
        return flat.reshape(-1, self.height, self.width)


def find_image_layout(feature_names: Sequence[str], shape: str | None) -> ImageLayout:
    """Place features named r{row}c{column} by name, and others row by row.

    `shape` is `HEIGHTxWIDTH`; None takes the size from the names.
    """
    size = None if shape is None else _parse_shape(shape)
    matches = [re.fullmatch(r"r(\d+)c(\d+)", name) for name in feature_names]
    places = np.array([[int(m[1]), int(m[2])] for m in matches if m], np.intp).reshape(-1, 2)
    if len(places) == len(feature_names):
        return _place_by_name(places, size)
    n_features = len(feature_names)
    if size is None:
        raise FitError(
            f"The {n_features} features are not named r0c0, r0c1, …, so the shape of the images "
            f"is unknown. Set {_suggest_shape(n_features)}."
        )
    if size[0] * size[1] != n_features:
        raise FitError(
            f"{{image_shape}} is {shape}, which has {size[0] * size[1]} pixels, but there are "
            f"{n_features} features. Use the shape of the images, such as "
            f"{_suggest_shape(n_features)}."
        )
    return ImageLayout(*size, np.arange(n_features))


def _suggest_shape(n_features: int) -> str:
    """Suggest the shape that is nearest to a square."""
    height = next(n for n in range(math.isqrt(n_features), 0, -1) if n_features % n == 0)
    return f"{{image_shape={height}x{n_features // height}}}"


def _parse_shape(shape: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", shape)
    if match is None:
        raise FitError(
            f"{{image_shape}} is {shape!r}. Write it as HEIGHTxWIDTH, such as "
            "{image_shape=16x16}."
        )
    return int(match[1]), int(match[2])


def _place_by_name(places: NDArray[np.intp], size: tuple[int, int] | None) -> ImageLayout:
    height, width = (int(n) + 1 for n in places.max(axis=0))
    if size is None:
        size = (height, width)
    if size[0] < height or size[1] < width:
        raise FitError(
            f"{{image_shape}} is {size[0]}x{size[1]}, but the names of the features need at least "
            f"{{image_shape={height}x{width}}}."
        )
    return ImageLayout(*size, places[:, 0] * size[1] + places[:, 1])
