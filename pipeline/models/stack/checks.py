"""Settings of the stack within their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pipeline.errors import FitError
from pipeline.learning.layered import check_noise

_MAX_GROWTH = 10


def check_settings(model: Any) -> None:
    """Refuse settings out of range.

    Raises
    ------
    FitError
        Naming the first.
    """
    if model.layers is not None:
        _check_layers(model.layers, model.n_components)
    if model.pretrain < 0:
        raise FitError(f"pretrain: Expected at least 0, got {model.pretrain}. Give more.")
    check_noise(model.noise)


def _check_layers(layers: tuple[int, ...], n_components: int | None) -> None:
    if min(layers, default=0) < 1:
        raise FitError(f"layers: Expected at least one unit in each, got {layers}. Give more.")
    check_growth(layers)
    if n_components not in (None, layers[-1]):
        raise FitError(
            f"--components: Expected {layers[-1]}, the last of layers, got {n_components}. "
            "Leave out one of the two."
        )


def check_growth(sizes: Sequence[int]) -> None:
    """Refuse a layer far wider than the one below.

    Raises
    ------
    FitError
        Naming both.
    """
    for below, above in pairwise(sizes):
        if above > _MAX_GROWTH * below:
            raise FitError(
                f"layers: Expected at most {_MAX_GROWTH} times the {below} units below, got "
                f"{above}. Give fewer."
            )
