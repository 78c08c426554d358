"""Parameters of items of any kind: from and to their linear forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.features import Feature, find_nominal
from pipeline.models.known_levels import standardize_forms
from pipeline.models.latent_trait.design import LevelDesign, find_margin_offsets
from pipeline.models.latent_trait.params import (
    MAX_PARAMETER,
    ItemKind,
    LatentTraitParams,
    Units,
    make_params,
)
from pipeline.models.latent_trait.starts import stretch_offsets
from pipeline.numerics.logistic.asymptotes import from_logits
from pipeline.numerics.logistic.categories.curves import iter_alike, number_planes

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Matrix = scipy.sparse.csr_array


def with_forms(params: LatentTraitParams, forms: Array, kind: ItemKind) -> LatentTraitParams:
    """Return the parameters with these forms, (n_forms, q + 1); large ones are limited.

    Forms of graded items that are not in decreasing order keep their offsets.
    """
    forms = np.clip(forms, -MAX_PARAMETER, MAX_PARAMETER)
    if params.n_levels is None:
        n = len(params.offsets)
        own = {"weights": forms[:n, :-1].copy(), "offsets": forms[:n, -1].copy()}
        logits = forms[n:, -1].reshape(-1, 2).T
        for name, values in zip(("guessing", "slipping"), logits, strict=False):
            if getattr(params.items, name) is not None:
                own[name] = from_logits(values)
        return params.with_items(**own)
    n_planes = params.n_levels - 1
    n = int(n_planes.sum())
    of_planes = forms[:n]
    if kind == "graded" and params.items.level_offsets is not None:
        items = np.repeat(np.arange(len(n_planes)), n_planes)
        is_disordered = (np.diff(of_planes[:, -1]) >= 0) & (np.diff(items) == 0)
        is_kept = np.isin(items, items[1:][is_disordered])
        of_planes[is_kept, -1] = params.items.level_offsets[is_kept]
    q = forms.shape[1] - 1
    flat = forms.reshape(-1)
    to_weights, to_offsets = map_to_items(n_planes, q, kind, len(flat))
    gaussians = params.make_gaussians(params.items)
    if gaussians is not None:
        gaussians = gaussians.with_forms(forms[n:])
    return params.with_items(
        weights=np.asarray(to_weights @ flat).reshape(-1, q),
        offsets=np.asarray(to_offsets @ flat),
        level_offsets=of_planes[:, -1].copy(),
        level_weights=of_planes[:, :-1].copy() if kind == "nominal" else None,
        deviations=None if gaussians is None else gaussians.deviations,
    )


def stack_forms(params: LatentTraitParams, kind: ItemKind, n_groups: int) -> Array:
    """Return the forms of all groups as functions of x, (n_groups, n_forms, q + 1)."""
    groups = range(n_groups)
    return np.stack([params.get_level_items(kind, group).to_forms() for group in groups])


def make_level_params(
    forms: Array, features: Sequence[Feature], kind: ItemKind
) -> LatentTraitParams:
    """Make parameters of items whose forms are all known, for traits N(0, I).

    `forms` are as in `Structure.known_items`, (n_forms, q + 1).
    """
    n_planes = np.array([feature.n_planes for feature in features])
    weights = np.zeros((len(features), forms.shape[1] - 1))
    params = replace(
        make_params(weights, np.zeros(len(features))),
        n_levels=n_planes + 1,
        is_nominal=find_nominal(features),
    )
    curves, spreads = forms[n_planes.sum() :: 2], forms[n_planes.sum() + 1 :: 2]
    if len(curves):
        # With these standard units, offsets and deviations are within the limits of fits.
        means, scales = curves[:, -1], np.exp(spreads[:, -1])
        params = replace(params, units=Units(means, scales))
        params = params.with_items(deviations=np.ones(len(curves)))
    return with_forms(params, standardize_items(forms, params), kind)


def standardize_items(forms: Array, params: LatentTraitParams) -> Array:
    """Return known forms; continuous items get the units of the parameters."""
    units = params.units
    means, scales = (None, None) if units is None else (units.means, units.scales)
    return standardize_forms(forms, means, scales)


def map_to_items(
    n_planes: Indices, q: int, kind: ItemKind, n_entries: int
) -> tuple[Matrix, Matrix]:
    """Return the matrices that turn the entries of forms, (n_entries,), into those of items.

    The first has the weights, (n_features q, n_entries), the second the offsets. Continuous items
    have the entries of their mean.
    """
    n_features, width = len(n_planes), q + 1
    n, is_continuous = int(n_planes.sum()), n_planes == 0
    n_continuous = np.count_nonzero(is_continuous)
    last = np.cumsum(n_planes) - 1
    last[is_continuous] = n + 2 * np.arange(n_continuous)
    n_shared = np.maximum(n_planes, 1)
    share = np.ones(n_features) if kind == "graded" else 1 / n_shared
    columns = (last[:, None] * width + np.arange(q)).reshape(-1)
    places = (np.arange(n_features * q), columns)
    to_weights = scipy.sparse.csr_array(
        (np.repeat(share, q), places), shape=(n_features * q, n_entries)
    )
    if kind == "graded":
        rows = np.repeat(np.arange(n_features), n_shared)
        first = last - n_shared + 1
        places = np.arange(len(rows)) - np.repeat(np.cumsum(n_shared) - n_shared, n_shared)
        columns = (np.repeat(first, n_shared) + places) * width + q
        entries = np.repeat(1 / n_shared, n_shared)
    else:
        rows, columns, entries = np.arange(n_features), last * width + q, share
    return to_weights, scipy.sparse.csr_array(
        (entries, (rows, columns)), shape=(n_features, n_entries)
    )


def map_to_thresholds(design: LevelDesign, kind: ItemKind) -> Matrix:
    """Return the matrix that turns forms into offsets between levels, (n_planes, n_entries).

    With one trait, a threshold is minus such an offset divided by the item's weight.
    """
    n_planes, width = design.n_planes, design.n_components + 1
    n = int(n_planes.sum())
    own = np.arange(n) * width + width - 1
    rows, columns, entries = np.arange(n), own, np.ones(n)
    if kind != "graded":
        later = np.flatnonzero(number_planes(n_planes) > 1)
        rows = np.concatenate([rows, later])
        columns = np.concatenate([columns, own[later - 1]])
        entries = np.concatenate([entries, -np.ones(len(later))])
    shape = (n, design.matrix.shape[0])
    return scipy.sparse.csr_array((entries, (rows, columns)), shape=shape)


def make_first_forms(
    params: LatentTraitParams, weights: Array, level_counts: Array | None, kind: ItemKind
) -> Array:
    """Return forms of items with these weights, (n_forms, q + 1).

    Offsets are those of the parameters, or follow from the counts of levels.
    """
    own = params.items
    offsets = own.offsets if own.level_offsets is None else own.level_offsets
    if level_counts is not None:
        offsets = _make_first_offsets(level_counts, params.n_planes, kind)
        offsets = offsets * np.repeat(stretch_offsets(weights), params.n_planes)
    by_item = offsets if params.n_levels is None else own.offsets
    levels = params.with_items(
        weights=weights, offsets=by_item, level_offsets=offsets, level_weights=None
    )
    # Nominal items start as partial credit.
    return levels.get_level_items("partial-credit" if kind == "nominal" else kind).to_forms()


def convert_forms(params: LatentTraitParams, own: LatentTraitParams, kind: ItemKind) -> Array:
    """Return the forms of an earlier fit on the axes of its last pass, (n_forms, q + 1).

    `own` are the parameters of this fit, whose measurements are standardized by themselves.
    """
    forms = _move_measurements(params, own).get_level_items(kind).to_forms()
    forms[:, :-1] = forms[:, :-1] @ params.axes.T
    return forms


def _move_measurements(params: LatentTraitParams, own: LatentTraitParams) -> LatentTraitParams:
    """Return the same items for continuous values that are standardized as in another fit."""
    if params.units is None or params.items.deviations is None:
        return params
    assert own.units is not None
    assert own.n_levels is not None
    is_own, ratio = own.n_levels == 1, params.units.scales / own.units.scales
    weights, offsets = params.weights.copy(), params.offsets.copy()
    weights[is_own] *= ratio[:, None]
    shift = (params.units.means - own.units.means) / own.units.scales
    offsets[is_own] = ratio * offsets[is_own] + shift
    moved = params.with_items(
        weights=weights, offsets=offsets, deviations=params.items.deviations * ratio
    )
    return replace(moved, units=own.units)


def _make_first_offsets(level_counts: Array, n_planes: Indices, kind: ItemKind) -> Array:
    """Return offsets that have nearly the margins of the data, (n_planes,)."""
    offsets = np.zeros(int(n_planes.sum()))
    for alike in iter_alike(n_planes):
        offsets[alike.planes] = find_margin_offsets(level_counts[alike.levels], kind)
    return offsets
