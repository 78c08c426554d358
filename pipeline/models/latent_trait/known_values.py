"""Check the known slopes and offsets of a fit before it starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.models.structure import Structure

Array = NDArray[np.float64]

_TRAIT = np.linspace(-40.0, 40.0, 161)
_LOG_PRIOR = -0.5 * _TRAIT**2 - scipy.special.logsumexp(-0.5 * _TRAIT**2)
_IMPOSSIBLE = -230.0  # a probability of 1e-100, nats


def check_known_slopes(known_items: Array) -> None:
    """Refuse a trait whose slopes are known to be 0 in all items.

    `known_items` are slopes and offsets, (n_features, q + 1), NaN where they are estimated.
    """
    slopes = known_items[:, :-1]
    for component in np.flatnonzero((slopes == 0).all(axis=0)).tolist():
        which = "" if slopes.shape[1] == 1 else f" of component {component + 1}"
        raise FitError(
            f"{{items}}: all slopes{which} are known to be 0, so no item depends on the trait. "
            "Leave some of them empty."
        )


def check_free_items(free: str, structure: Structure) -> None:
    """Refuse items that are known and should differ by group; `free` names them."""
    assert structure.known_items is not None
    is_known = ~np.isnan(structure.known_items).any(axis=1)
    known = {structure.feature_names[item] for item in np.flatnonzero(is_known)}
    for name in (name.strip() for name in free.split(",")):
        if name in known:
            raise FitError(
                f"{{free}} names {name!r}, whose slope and offset are known by {{items}}. "
                "Leave it out of one of them."
            )


def check_known_answers(known_items: Array, observed: NDArray[Any], ones: NDArray[Any]) -> None:
    """Refuse items whose known values give answers in the data the probability 0.

    Parameters
    ----------
    known_items
        Slopes and offsets, (n_features, q + 1), NaN where they are estimated.
    observed, ones
        Numbers of values and of ones of each feature, (n_features,) each.
    """
    spread = np.linalg.norm(known_items[:, :-1], axis=1)
    logits = known_items[:, -1:] + spread[:, None] * _TRAIT
    for answer, sign, n_rows in ((1, 1, ones), (0, -1, observed - ones)):
        log_share = scipy.special.logsumexp(
            scipy.special.log_expit(sign * logits) + _LOG_PRIOR, axis=1
        )
        impossible = np.flatnonzero((log_share < _IMPOSSIBLE) & (n_rows > 0))
        if impossible.size:
            raise FitError(
                f"{{items}}: the known slopes and offsets give the answer {answer} to {{features}} "
                "the probability 0, but it is in the data. Correct them, or leave them empty.",
                impossible.tolist(),
                parameter="items",
            )
