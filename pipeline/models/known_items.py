"""Known items: slopes and offsets of a test that was calibrated elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import find_models
from pipeline.numerics.logistic.asymptotes import Asymptotes

Array = NDArray[np.float64]

_MAX_NAMES = 5
_MAX_VALUE = 1e4  # a curve this steep is a step
_REMEDY = (
    "A table of items has the columns feature, slope (or weights_1, weights_2, …) and offset (or "
    "offsets), as an export with {what=items} writes it."
)


@dataclass(frozen=True)
class KnownItems:
    """Items by name: P(item = 1 | x) = g + (1 − s − g) σ(w·x + b).

    NaN stands for a slope or offset that is not known.

    Attributes
    ----------
    source, digest
        Where the items come from, such as a path, and the SHA-256 of that.
    features
        Names of the items.
    weights, offsets
        w, (n_items, q), and b, (n_items,).
    asymptotes
        Guessing g and slipping s of items with one component; None if all are 0.
    """

    source: str
    digest: str
    features: tuple[str, ...]
    weights: Array
    offsets: Array
    asymptotes: Asymptotes | None = None

    def align(self, features: Sequence[str], dataset: str) -> Array:
        """Return slopes and offsets of the features of a dataset, (n_features, q + 1).

        They are NaN for features that are no known items.

        Raises
        ------
        FitError
            If an item is no feature of the dataset, or has guessing or slipping.
        """
        self.check_has_no_asymptotes("a fit")
        return self._align(features, dataset)

    def check_has_no_asymptotes(self, user: str) -> None:
        """Refuse items with guessing or slipping for a user that needs slopes and offsets only."""
        if self.asymptotes is not None:
            raise FitError(
                f"{self.source} has items with guessing or slipping, but {user} takes only known "
                "slopes and offsets. Give items without."
            )

    def _align(self, features: Sequence[str], dataset: str) -> Array:
        if unused := sorted(set(self.features) - set(features)):
            raise FitError(
                f"{{items}}: {self.source} has items that {dataset} lacks: "
                f"{_join_names(unused)}. Leave them out, or correct their names."
            )
        places = {name: k for k, name in enumerate(features)}
        values = np.full((len(features), self.weights.shape[1] + 1), np.nan)
        values[[places[name] for name in self.features]] = self._stack_values()
        return values

    def align_all(
        self, features: Sequence[str], dataset: str
    ) -> tuple[Array, Array, Asymptotes | None]:
        """Return weights, offsets and asymptotes of all features.

        Raises
        ------
        FitError
            If items and features differ, or a value is not known.
        """
        if missing := [name for name in features if name not in set(self.features)]:
            raise FitError(
                f"{{items}}: {self.source} lacks items of {dataset}: {_join_names(missing)}. "
                "Give all features of the dataset."
            )
        values = self._align(features, dataset)
        is_empty = np.isnan(values)
        if is_empty.any():
            item, column = np.argwhere(is_empty)[0].tolist()
            name = "offset" if column == values.shape[1] - 1 else "slope"
            raise FitError(
                f"{{items}}: {self.source} has no {name} of {features[item]}, but scores need all "
                "slopes and offsets."
            )
        asymptotes = self.asymptotes
        if asymptotes is not None:
            places = [self.features.index(name) for name in features]
            asymptotes = Asymptotes(*(part[places] for part in asymptotes))
        return values[:, :-1], values[:, -1], asymptotes

    def describe(self) -> dict[str, Any]:
        """Describe the items as a manifest records them."""
        n_items = int((~np.isnan(self._stack_values())).any(axis=1).sum())
        return {"path": self.source, "digest": self.digest, "n_items": n_items}

    def _stack_values(self) -> Array:
        return np.column_stack([self.weights, self.offsets])


def parse_known_items(
    table: Mapping[str, Sequence[Any]], source: str, digest: str | None = None
) -> KnownItems:
    """Read items from the columns of a table with one line per item.

    Parameters
    ----------
    table
        Columns by name: `feature`, `slope` or `weights_1`, `weights_2`, …, `offset` or `offsets`,
        and `guessing` and `slipping` if items have them; others are ignored. None and NaN stand for
        values that are not known, and for guessing and slipping of 0.
    source, digest
        See `KnownItems`. None is the digest of names and values.

    Raises
    ------
    FitError
        If a column is missing, an item occurs twice, or a value is not a finite number.
    """
    slopes = ["slope"] if "slope" in table else _list_weight_columns(table)
    offset = "offset" if "offset" in table else "offsets"
    for name in ("feature", *(slopes or ["slope"]), offset):
        if name not in table:
            raise FitError(f"{{items}}: {source} has no column {name!r}. {_REMEDY}")
    features = tuple(str(name) for name in table["feature"])
    if not features:
        raise FitError(f"{{items}}: {source} has no items.")
    if "" in features or None in table["feature"]:
        raise FitError(f"{{items}}: {source} has a line without a feature.")
    if twice := sorted({name for name in features if features.count(name) > 1}):
        raise FitError(f"{{items}}: {source} has items twice: {_join_names(twice)}.")
    asymptotes = _parse_asymptotes(source, table, features)
    if asymptotes is not None and len(slopes) > 1:
        raise FitError(
            f"{{items}}: {source} has guessing or slipping with several slopes per item."
        )
    columns = [_parse_numbers(source, table, name, features) for name in (*slopes, offset)]
    weights = np.column_stack(columns[:-1])
    items = KnownItems(source, digest or "", features, weights, columns[-1], asymptotes)
    return items if digest else replace(items, digest=_digest_values(items))


def get_fitted_items(
    params: Any, features: Sequence[str], source: str, digest: str | None = None
) -> KnownItems:
    """Return the items of a fitted latent-trait model, for other fits.

    Raises
    ------
    FitError
        If the parameters are of another model, or an item differs between groups.
    """
    if not hasattr(params, "group_offsets"):
        raise FitError(f"{source} is not of latent-trait, so it has no slopes and offsets.")
    if params.group_offsets is not None:
        parts = (params.group_offsets, params.group_guessing, params.group_slipping)
        columns = [part[..., None] for part in parts if part is not None]
        by_group = np.concatenate([params.group_weights, *columns], axis=2)
        differs = (by_group != by_group[0]).any(axis=(0, 2))
        if differs.any():
            names = [features[item] for item in np.flatnonzero(differs).tolist()]
            raise FitError(
                f"{source} has items that differ between its groups: "
                f"{_join_names(names)}. Give a table with the items of one group."
            )
    parts = (params.weights, params.offsets, params.asymptotes)
    items = KnownItems(source, digest or "", tuple(features), *parts)
    return items if digest else replace(items, digest=_digest_values(items))


def find_known_values(params: Any) -> Array | None:
    """Return the slopes and offsets that a fit knew, (n_features, q + 1), or None if it knew none.

    They are NaN where the fit estimated them.
    """
    is_known = getattr(params, "is_known", None)
    if is_known is None:
        return None
    return np.where(is_known, np.column_stack([params.weights, params.offsets]), np.nan)


def check_can_have_known_items(model: Model) -> None:
    """Refuse known items if the model has no items."""
    if not model.can_have_known_items:
        able = [name for name, other in find_models().items() if other.can_have_known_items]
        raise FitError(
            f"{model.name} cannot be fitted with known items. These models can: {', '.join(able)}.",
            parameter="items",
        )


def match_components(model: Any, items: KnownItems, are_components_set: bool) -> Any:
    """Return the model with as many components as the items have slopes.

    Raises
    ------
    FitError
        If the user set another number of components.
    """
    q, n = items.weights.shape[1], model.n_components
    if n is None or n == q:
        return model
    if are_components_set:
        raise FitError(
            f"{{items}}: {items.source} has {q} slope{'s' * (q != 1)} per item, but {{components}} "
            f"is {n}. Set {{components={q}}}, or give the columns weights_1 to weights_{n}."
        )
    return replace(model, n_components=q)


def _parse_asymptotes(
    source: str, table: Mapping[str, Sequence[Any]], features: Sequence[str]
) -> Asymptotes | None:
    """Return guessing and slipping, 0 where they are missing, or None if all are 0."""
    parts = []
    for name in ("guessing", "slipping"):
        values = np.zeros(len(features))
        if name in table:
            values = np.nan_to_num(_parse_numbers(source, table, name, features))
        parts.append(values)
    asymptotes = Asymptotes(*parts)
    is_curve = (asymptotes.guessing >= 0) & (asymptotes.slipping >= 0) & (sum(parts) < 1)
    if not is_curve.all():
        k = int(np.argmin(is_curve))
        raise FitError(
            f"{{items}}: {source}: {features[k]} has guessing {parts[0][k]:g} and slipping "
            f"{parts[1][k]:g}. Both are probabilities, together below 1."
        )
    return asymptotes if np.any(parts) else None


def _list_weight_columns(table: Mapping[str, Any]) -> list[str]:
    """Return weights_1, weights_2, … as far as they go."""
    n = 0
    while f"weights_{n + 1}" in table:
        n += 1
    return [f"weights_{k + 1}" for k in range(n)]


def _parse_numbers(
    source: str, table: Mapping[str, Sequence[Any]], column: str, features: Sequence[str]
) -> Array:
    if len(table[column]) != len(features):
        raise FitError(
            f"{{items}}: {source} has {len(features)} features, but {len(table[column])} values in "
            f"the column {column}."
        )
    values = np.empty(len(features))
    for k, value in enumerate(table[column]):
        try:
            values[k] = np.nan if value is None else float(value)
        except (TypeError, ValueError):
            raise FitError(
                f"{{items}}: {source}: {column} of {features[k]} is {str(value)[:20]!r}, which is "
                "not a number."
            ) from None
        if abs(values[k]) > _MAX_VALUE:
            raise FitError(
                f"{{items}}: {source}: {column} of {features[k]} is {values[k]:g}. Give a number "
                f"up to {_MAX_VALUE:,.0f}, or leave the cell empty."
            )
    return values


def _digest_values(items: KnownItems) -> str:
    digest = hashlib.sha256(json.dumps(items.features).encode())
    digest.update(np.ascontiguousarray(items._stack_values()).tobytes())
    if items.asymptotes is not None:
        digest.update(np.stack(items.asymptotes).tobytes())
    return digest.hexdigest()


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
