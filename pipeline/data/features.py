"""Features of a fitted model and those of other data: the same ones, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from pipeline.errors import FitError


def check_same_features(
    expected: Sequence[str],
    got: Sequence[str],
    fit: str = "the fit",
    remedy: str = "Give the features of the fit in its order, or fit again.",
) -> None:
    """Refuse features that are not those of a fit, or of other data, in its order.

    Parameters
    ----------
    expected, got
        Names of the features that were fitted, and of those that came.
    fit
        What messages call the fit.
    remedy
        What to do, in their words.

    Raises
    ------
    FitError
        Naming the first that differs, its position, and what came.
    """
    for position, (known, name) in enumerate(zip_longest(expected, got), start=1):
        if known != name:
            raise FitError(
                f"Expected {_format_feature(known)} of {fit} at position {position}, got "
                f"{_format_feature(name)}. {remedy}"
            )


def _format_feature(name: str | None) -> str:
    return "no more feature" if name is None else f"feature {name!r}"
