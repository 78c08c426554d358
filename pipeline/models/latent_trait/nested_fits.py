"""Which latent-trait fits are special cases of others, for likelihood-ratio tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.models.capabilities import FitRecord
from pipeline.models.known_items import find_known_values
from pipeline.models.loading_pattern import LoadingPattern, read_loading_pattern

_INVARIANCE = ("configural", "metric", "scalar", "strict")  # each is a special case of the last
_TRAITS = ("standard", "mean", "free")
_ASYMPTOTES = ("none", "common", "item")
_ITEMS = ("rating-scale", "partial-credit", "nominal")


def explain_not_nested(small: FitRecord, large: FitRecord) -> str:
    """Return why a fit is no special case of a larger one; empty if it is."""
    a, b = small.manifest["hyperparameters"], large.manifest["hyperparameters"]
    checks = {
        "the curves of items are of other kinds": _are_items_nested(a["items"], b["items"]),
        "the larger fit has equal slopes": b["equal_slopes"] in ("no", a["equal_slopes"]),
        "the smaller fit has guessing or slipping that the larger one has not": all(
            _ASYMPTOTES.index(a[name]) <= _ASYMPTOTES.index(b[name])
            for name in ("guessing", "slipping")
        ),
        "the larger fit knows items that the smaller one estimates": _are_known_items_nested(
            small, large
        ),
        "the groups of one are not a special case of those of the other": _are_groups_nested(
            small.manifest, large.manifest
        ),
        "the larger fit lacks covariates of the smaller one": _list_covariates(small)
        <= _list_covariates(large),
        "loadings that are free in the smaller fit are not in the larger one": _are_loadings_nested(
            small, large
        ),
    }
    return next((reason for reason, is_nested in checks.items() if not is_nested), "")


def _are_items_nested(small: str, large: str) -> bool:
    if small == large:
        return True
    is_ordered = small in _ITEMS and large in _ITEMS
    return is_ordered and _ITEMS.index(small) < _ITEMS.index(large)


def _are_known_items_nested(small: FitRecord, large: FitRecord) -> bool:
    """Return whether the smaller fit knows all that the larger one knows about its items."""
    known = find_known_values(large.model, large.params)
    if known is None:
        return True
    own = find_known_values(small.model, small.params)
    if own is None or own.shape != known.shape:
        return False
    is_same = np.isclose(own, known, rtol=1e-12, atol=0) | np.isnan(known)
    a, b = (fit.manifest["hyperparameters"]["traits"] for fit in (small, large))
    return bool(is_same.all()) and (a == b or b == "free")


def _are_groups_nested(small: Mapping[str, Any], large: Mapping[str, Any]) -> bool:
    """Return whether everything that differs by group in the smaller fit does so in the other.

    With `configural` items, the distribution of the traits in each group is that of the items.
    """
    if small.get("group") is None:
        return True
    if small["group"] != large.get("group"):
        return False
    a, b = small["hyperparameters"], large["hyperparameters"]
    levels = [_INVARIANCE.index(settings["invariance"]) for settings in (a, b)]
    if levels[0] < levels[1]:
        return False
    if b["invariance"] == "configural":
        return True
    free = [{*filter(None, map(str.strip, own["free"].split(",")))} for own in (a, b)]
    return free[0] <= free[1] and _TRAITS.index(a["traits"]) <= _TRAITS.index(b["traits"])


def _list_covariates(fit: FitRecord) -> set[str]:
    """Return the covariates of a fit; levels of texts are covariates of their own."""
    return {*(fit.manifest.get("covariates") or {"names": ()})["names"]}


def _are_loadings_nested(small: FitRecord, large: FitRecord) -> bool:
    """Return whether the loadings of the smaller fit are a special case of those of the other."""
    own, other = (read_loading_pattern(fit.manifest) for fit in (small, large))
    q_own, q_other = (len(fit.params.weights.T) for fit in (small, large))
    if other is None:  # any loadings, in any rotation
        return q_own <= q_other
    slopes = other.slopes
    if own is None:  # one trait is a column without zeros and without equal slopes
        columns = (column for column in slopes.T if (column >= 0).all())
        return q_own == 1 and any(len({*column.tolist()}) == len(column) for column in columns)
    are_correlated = [
        f.manifest["hyperparameters"]["correlations"] != "none" for f in (small, large)
    ]
    if q_own != q_other or (are_correlated[0] and not are_correlated[1]):
        return False
    return _is_special_case(_arrange_traits(own, other), slopes)


def _arrange_traits(own: LoadingPattern, other: LoadingPattern) -> NDArray[np.int64]:
    """Return the slopes of a pattern with its traits in the order of those of another one."""
    if {*own.traits} != {*other.traits}:
        return own.slopes
    return own.slopes[:, [own.traits.index(name) for name in other.traits]]


def _is_special_case(small: NDArray[np.int64], large: NDArray[np.int64]) -> bool:
    """Return whether slopes that are 0, or equal, in `large` are so in `small`."""
    if ((large < 0) & (small >= 0)).any():
        return False
    return all(
        len({*small[large == slope].tolist()}) == 1 for slope in np.unique(large[large >= 0])
    )
