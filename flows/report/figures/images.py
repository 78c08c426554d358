"""Pictures of features as PNG, by Pillow: what is zero is transparent."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture

from flows.report.figures.plots import NEGATIVE, CaptionedImage

Array = NDArray[np.float64]

_MIN_PIXELS = 112
"""Size of a picture at the least: browsers print small ones blurred."""


def render_images(
    images: Array, captions: Sequence[str], scales: Array, positive: str
) -> tuple[CaptionedImage, ...]:
    """Draw images, negative values in blue.

    Parameters
    ----------
    images
        (n, height, width); NaN is left blank.
    captions
        What stands under each.
    scales
        Largest size of each image's values, (n,).
    positive
        Colour of positive values.
    """
    shares = np.nan_to_num(images) / np.maximum(scales, 1e-12)[:, None, None]
    return tuple(
        CaptionedImage(_encode_data_uri(_convert_to_rgba(share, NEGATIVE, positive)), caption)
        for share, caption in zip(shares, captions, strict=True)
    )


def _convert_to_rgba(share: Array, negative: str, positive: str) -> NDArray[np.uint8]:
    """Turn values from −1 to 1 to red, green, blue and opacity."""
    colours = np.array([_parse_rgb(negative), _parse_rgb(positive)], np.uint8)[
        (share > 0).astype(int)
    ]
    opacity = np.round(255 * np.minimum(np.abs(share), 1)).astype(np.uint8)
    return np.dstack([colours, opacity])


def _parse_rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _encode_data_uri(pixels: NDArray[np.uint8]) -> str:
    times = max(1, _MIN_PIXELS // max(pixels.shape[:2]))
    file = BytesIO()
    Picture.fromarray(pixels.repeat(times, 0).repeat(times, 1)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
