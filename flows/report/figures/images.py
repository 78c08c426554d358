"""Images of features as PNG; zero is transparent."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture

from flows.report.figures.colours import ColourScale
from flows.report.figures.marks import CaptionedImage

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
    drawn = []
    for image, caption, top in zip(images, captions, tops, strict=True):
        pixels = ColourScale(float(top), is_signed).paint(np.nan_to_num(image))
        drawn.append(CaptionedImage(encode_png(pixels.repeat(times, 0).repeat(times, 1)), caption))
    return tuple(drawn)


def encode_png(pixels: NDArray[np.uint8]) -> str:
    """Return red, green, blue and opacity, (height, width, 4), as a data URI."""
    file = BytesIO()
    Picture.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
