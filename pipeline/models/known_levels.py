"""Known items with several levels, or continuous: from tables and fits to their linear forms.

`numerics.logistic.categories` explains the forms of items, (n_forms, q + 1): weights and offsets
side by side, of all planes and then two of each continuous item.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.features import Feature
from pipeline.errors import FitError


class KnownLevels(NamedTuple):
    """Parameters of items that are not binary, as a fit or its table has them.

    NaN stands for a parameter that is not known, or that an item does not have.

    Attributes
    ----------
    kind
        What the levels are: `graded`, `partial-credit`, `rating-scale` or `nominal`; None if that
        is not known.
    n_levels
        Number of levels, 1 of continuous items, (n_items,).
    offsets
        Offset of each plane, (n_items, n_most).
    weights
        Weight of each plane of nominal items, which depend on one trait, (n_items, n_most).
    means, scales
        Weight, offset and deviation of a continuous item are of (value − mean) / scale, (n_items,)
        each.
    deviations
        Standard deviation of a continuous item given the traits, (n_items,).
    """

    kind: str | None
    n_levels: Array
    offsets: Array
    weights: Array
    means: Array
    scales: Array
    deviations: Array

    @classmethod
    def make_unknown(cls, n_items: int) -> KnownLevels:
        """Return items of which only slopes and one offset are known."""
        unknown, none = np.full(n_items, np.nan), np.empty((n_items, 0))
        return cls(None, unknown, none, none, unknown, unknown, unknown)

    @classmethod
    def parse(
        cls, columns: Mapping[str, Array], kinds: Collection[str], items: Sequence[str], source: str
    ) -> KnownLevels | None:
        """Return the levels in columns of a table; None if it has none.

        `columns` has `level_offsets` and `level_weights`, (n_items, n_columns) each, and
        `n_levels`, `means`, `scales` and `deviations`, (n_items,) each.

        Raises
        ------
        FitError
            If items have several kinds, or a scale or deviation is not positive.
        """
        if len(kinds) > 1:
            raise FitError(
                f"{{items}}: {source} has items of several kinds: {', '.join(sorted(kinds))}. Give "
                "items of one kind."
            )
        for name in ("scales", "deviations"):
            if (is_bad := columns[name] <= 0).any():
                item = int(is_bad.argmax())
                raise FitError(
                    f"{{items}}: {source}: {name} of {items[item]} is {columns[name][item]:g}. "
                    "Give a number above 0, or leave the cell empty."
                )
        if all(np.isnan(values).all() for values in columns.values()):
            return None
        offsets, deviations = columns["level_offsets"], columns["deviations"]
        n_offsets = (~np.isnan(offsets) * np.arange(1, offsets.shape[1] + 1)).max(axis=1, initial=0)
        apparent = np.where(n_offsets > 0, n_offsets + 1.0, np.nan)
        apparent = np.where(np.isnan(deviations), apparent, 1.0)
        stated = columns["n_levels"]
        return cls(
            next(iter(kinds), None),
            np.where(np.isnan(stated), apparent, stated),
            offsets,
            columns["level_weights"],
            columns["means"],
            columns["scales"],
            deviations,
        )

    @classmethod
    def from_fit(cls, params: Any, kind: str) -> KnownLevels:
        """Return the levels of a latent-trait fit with items that are not binary."""
        n_levels = params.n_levels
        owners = np.repeat(np.arange(len(n_levels)), n_levels - 1)
        numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)
        shape = len(n_levels), int(n_levels.max()) - 1
        offsets, weights = np.full((2, *shape), np.nan)
        items, units = params.items, params.units
        offsets[owners, numbers] = items.level_offsets
        if items.level_weights is not None:
            weights[owners, numbers] = items.level_weights[:, 0]
        own = np.full((3, len(n_levels)), np.nan)
        if units is not None:
            own[:, n_levels == 1] = units.means, units.scales, items.deviations
        own_kind = kind if (n_levels > 2).any() else None
        return cls(own_kind, n_levels.astype(np.float64), offsets, weights, *own)

    @property
    def are_binary(self) -> bool:
        """Whether no item is known to have other than two levels."""
        return bool(np.isin(self.n_levels[~np.isnan(self.n_levels)], 2).all())

    @property
    def are_items_known(self) -> NDArray[np.bool_]:
        """Whether anything of each item is known, (n_items,)."""
        known = ~np.isnan(np.column_stack([self.offsets, self.weights, self.deviations]))
        return np.asarray(known.any(axis=1))

    def to_bytes(self) -> bytes:
        """Return all values, for a digest."""
        arrays = (np.ascontiguousarray(values).tobytes() for values in self[1:])
        return b"".join([str(self.kind).encode(), *arrays])

    def list_forms(
        self,
        item: int,
        values: Array,
        feature: Feature,
        kind: str,
        source: str,
        dataset: str,
    ) -> Array:
        """Return weights and offsets of the forms of an item, (n_forms, q + 1).

        Parameters
        ----------
        item
            Its place among the known items.
        values
            Its slopes and offset, (q + 1,).
        feature
            The feature of the dataset.
        kind
            What the levels of the fit are.
        source, dataset
            Names of the table and of the dataset, for errors.

        Raises
        ------
        FitError
            If the item has other levels than the feature, or lacks thresholds.
        """
        name, n_levels = feature.name, max(len(feature.levels), 1)
        place = f"{{items}}: {source}: {name}"
        if not np.isnan(known := self.n_levels[item]) and known != n_levels:
            raise FitError(
                f"{place} {_describe_levels(known)}, but in {dataset} it "
                f"{_describe_levels(n_levels)}. Leave it out, or ingest the data with the levels "
                "of the calibration."
            )
        if n_levels == 1:
            spread = np.full_like(values, np.nan)
            spread[-1] = np.log(self.deviations[item])
            mean = np.nan_to_num(self.means[item : item + 1])
            scale = np.nan_to_num(self.scales[item : item + 1], nan=1.0)
            return measure_forms(np.stack([values, spread]), mean, scale)
        offsets = self._take_complete(self.offsets, item, feature, "level_offsets_{}", place)
        if n_levels == 2:
            own = values.copy()
            own[-1:] = np.where(np.isnan(offsets), own[-1:], offsets)
            return own[None]
        if np.isnan(offsets[0]) and not np.isnan(values[-1]):
            raise FitError(
                f"{place} has {n_levels} levels, but only one offset. Give level_offsets_1 to "
                f"level_offsets_{n_levels - 1}, or leave the offset empty."
            )
        weights = self._take_complete(self.weights, item, feature, "level_weights_{}_1", place)
        is_nominal, has_weights = kind == "nominal", not np.isnan(weights[0])
        if has_weights != is_nominal and (has_weights or not np.isnan(values[0])):
            raise FitError(
                f"{place} has {'no ' * is_nominal}level_weights_1_1 to "
                f"level_weights_{n_levels - 1}_1, but items are {kind}. Name the kind "
                "of the calibration in the column curves."
            )
        if is_nominal:
            return np.column_stack([weights, offsets])
        if kind == "graded" and (np.diff(offsets) >= 0).any():
            raise FitError(
                f"{place}: the offsets level_offsets_1, level_offsets_2, … of graded items must "
                "fall, but do not. Correct them, or name another kind in the column curves."
            )
        scores = np.arange(1.0, n_levels) if kind != "graded" else np.ones(n_levels - 1)
        return np.column_stack([np.outer(scores, values[:-1]), offsets])

    def _take_complete(
        self, table: Array, item: int, feature: Feature, column: str, place: str
    ) -> Array:
        """Return the values of an item's planes, (n_planes,), all of them or none."""
        m = feature.n_planes
        padded = np.pad(table[item], (0, m), constant_values=np.nan)
        is_known = ~np.isnan(padded)
        if is_known[m:].any() or is_known[:m].any() != is_known[:m].all():
            first, last = column.format(1), column.format(m)
            raise FitError(
                f"{place} has {m + 1} levels, so it needs {first} to {last} and no others. Give "
                "all of them, or leave all empty."
            )
        return padded[:m]


def measure_forms(forms: Array, means: Array | None, scales: Array | None) -> Array:
    """Return forms of continuous values as they are, given those of (value − mean) / scale.

    Parameters
    ----------
    forms
        (n_forms, q + 1); the forms of continuous items are the last ones.
    means, scales
        Of the continuous items, (n_continuous,) each; None if there are none.
    """
    if means is None or scales is None:
        return forms
    measured = forms.copy()
    curves, spreads = _select_continuous(measured, len(means))
    curves *= scales[:, None]
    curves[:, -1] += means
    spreads[:, -1] += np.log(scales)
    return measured


def standardize_forms(forms: Array, means: Array | None, scales: Array | None) -> Array:
    """Undo `measure_forms`."""
    if means is None or scales is None:
        return forms
    standardized = forms.copy()
    curves, spreads = _select_continuous(standardized, len(means))
    curves[:, -1] -= means
    curves /= scales[:, None]
    spreads[:, -1] -= np.log(scales)
    return standardized


def _select_continuous(forms: Array, n_continuous: int) -> tuple[Array, Array]:
    """Return views of the forms of means and of deviations, (n_continuous, q + 1) each."""
    own = forms[len(forms) - 2 * n_continuous :]
    return own[::2], own[1::2]


def find_different_levels(params: Any) -> NDArray[np.bool_]:
    """Return which items of a fit with groups have other levels or deviations in some groups."""
    items = params.group_items
    differs = np.zeros(items.offsets.shape[1], np.bool_)
    if params.n_levels is None:
        return differs
    owners = np.repeat(np.arange(len(differs)), params.n_levels - 1)
    for values, own in (
        (items.level_offsets, owners),
        (items.level_weights, owners),
        (items.deviations, np.flatnonzero(params.n_levels == 1)),
    ):
        if values is not None:
            by_part = values.reshape(*values.shape[:2], -1)
            differs[own[(by_part != by_part[0]).any(axis=(0, 2))]] = True
    return differs


def _describe_levels(n_levels: float) -> str:
    return "is continuous" if n_levels == 1 else f"has {n_levels:g} levels"
