"""Check the known slopes and offsets of a fit before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError, FitWarning
from pipeline.models.latent_trait.params import MAX_PARAMETER
from pipeline.numerics.logistic.categories.curves import compute_log_probabilities, iter_alike
from pipeline.numerics.logistic.categories.gaussian_items import MIN_DEVIATION

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_TRAIT = np.linspace(-40.0, 40.0, 161)
_LOG_PRIOR = -0.5 * _TRAIT**2 - scipy.special.logsumexp(-0.5 * _TRAIT**2)
_MIN_Z, _MIN_CHANGE = 4.0, 0.2  # of a known offset that contradicts the data
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


def check_free_items(free: str, names: Sequence[str], known_items: Array) -> None:
    """Refuse items that are known and should differ by group; `free` names them.

    `names` are the names of all features, and `known_items` is as for `check_known_slopes`.
    """
    is_known = ~np.isnan(known_items).any(axis=1)
    known = {names[item] for item in np.flatnonzero(is_known).tolist()}
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
        impossible = _find_impossible(scipy.special.log_expit(sign * logits), n_rows)
        if impossible.size:
            raise FitError(
                f"{{items}}: the known slopes and offsets give the answer {answer} to {{features}} "
                "the probability 0, but it is in the data. Correct them, or leave them empty.",
                impossible.tolist(),
                parameter="items",
            )


def check_known_levels(
    known_items: Array,
    n_planes: Indices,
    is_cumulative: bool,
    level_counts: Array,
    names: Sequence[str],
) -> None:
    """Refuse items with several levels, or continuous, whose known values do not fit the data.

    Parameters
    ----------
    known_items
        Known weights and offsets of forms of standardized values, (n_forms, q + 1), NaN where they
        are estimated.
    n_planes
        Number of planes of each item, (n_features,), 0 of a continuous one.
    is_cumulative
        Whether the items are graded.
    level_counts
        Number of rows with each level of each item, (n_levels,).
    names
        Names of the features.
    """
    n = int(n_planes.sum())
    for alike in iter_alike(n_planes):
        forms = known_items[alike.planes]
        # Weights of an item's planes differ only in length.
        last = forms[:, -1, :-1]
        length = np.linalg.norm(last, axis=1, keepdims=True)
        slopes = np.einsum("ijq,iq->ij", forms[:, :, :-1], last / np.maximum(length, 1e-300))
        eta = forms[:, :, -1:] + slopes[:, :, None] * _TRAIT
        log_p = compute_log_probabilities(eta, is_cumulative)
        for level in range(log_p.shape[1]):
            rows = level_counts[alike.levels[:, level]]
            impossible = _find_impossible(log_p[:, level], rows)
            if impossible.size:
                raise FitError(
                    f"{{items}}: the known slopes and offsets give level {level + 1} of "
                    "{features} the probability 0, but it is in the data. Correct them, or leave "
                    "them empty.",
                    [names[item] for item in alike.features[impossible].tolist()],
                    parameter="items",
                )
    curves, spreads = known_items[n::2], known_items[n + 1 :: 2, -1]
    is_far = (np.abs(curves) > MAX_PARAMETER).any(axis=1) | (spreads < np.log(MIN_DEVIATION))
    if is_far.any():
        raise FitError(
            "{items}: the known slope, offset or deviation of {features} does not fit the data. "
            "Give it in the units of the data, or leave it empty.",
            [names[item] for item in np.flatnonzero(n_planes == 0)[is_far].tolist()],
            parameter="items",
        )


def warn_about_known_offsets(
    score: Array, information: Array, is_known: NDArray[np.bool_], names: Sequence[str] = ()
) -> list[FitWarning]:
    """Warn about items whose known offset contradicts the data.

    Parameters
    ----------
    score, information
        First derivative of the log-likelihood if all offsets of an item change alike, and its
        information if the traits were known, (n_features,) each. The first has at most the
        second's variance, and is 0 for a right offset but for chance.
    is_known
        Whether the offsets are known, (n_features,).
    names
        Names of the features; empty if the fit names them.
    """
    safe = np.maximum(information, np.finfo(float).tiny)
    change = score / safe
    is_wrong = is_known & (np.abs(change) * np.sqrt(safe) > _MIN_Z) & (np.abs(change) > _MIN_CHANGE)
    if not is_wrong.any():
        return []
    places = np.flatnonzero(is_wrong)
    places = places[np.argsort(-np.abs(change[places]), kind="stable")].tolist()
    direction = "low" if change[places[0]] > 0 else "high"
    text = (
        f"{{items}}: the known offsets of {len(places)} of {int(is_known.sum())} items contradict "
        "the data, so the mean and the variance of the traits, and all scores, are doubtful: "
        f"{{features}}. The worst is the first, whose offset is too {direction}. Correct these "
        "offsets, or leave them empty so that the fit estimates them"
    )
    return [FitWarning(text, tuple(names[i] if names else i for i in places))]


def _find_impossible(log_p: Array, n_rows: NDArray[Any]) -> Indices:
    """Return the items with an answer of probability 0 that some rows have.

    `log_p` is its log-probability at the traits, (n_items, n_traits), and `n_rows` are the rows
    that have it, (n_items,).
    """
    log_share = scipy.special.logsumexp(log_p + _LOG_PRIOR, axis=1)
    return np.flatnonzero((log_share < _IMPOSSIBLE) & (n_rows > 0))
