"""Check that data have the features of a fit, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from pipeline.errors import FitError


def check_same_features(
    expected: Sequence[str],
    got: Sequence[str],
    fit: str = "the fit",
    remedy: str = "Use the features of the fit in the same order, or fit again.",
) -> None:
    """Refuse features that differ from those of a fit, or are in another order.

    Parameters
    ----------
    expected, got
        Names of the features of the fit and of the data.
    fit
        What the message calls the fit.
    remedy
        The last sentence of the message.

    Raises
    ------
    FitError
        Naming the first feature that differs, and its position.
    """
    for position, (known, name) in enumerate(zip_longest(expected, got), start=1):
        if known != name:
            raise FitError(
                f"Feature {position} is {_format_name(name)}, but {_format_name(known)} in {fit}. "
                f"{remedy}"
            )


def _format_name(name: str | None) -> str:
    return "missing" if name is None else repr(name)
