"""Known items: parameters of a test that was calibrated elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from typing import Any

import numpy as np

from pipeline.arrays import Array
from pipeline.data.features import Feature, are_binary, parse_number
from pipeline.errors import FitError
from pipeline.models.known_levels import KnownLevels, find_different_levels, measure_forms
from pipeline.numerics.logistic.asymptotes import Asymptotes

_MAX_NAMES = 5
_MAX_VALUE = 1e4  # a curve this steep is a step
_REMEDY = (
    "A table of items has the columns feature, slope (or weights_1, weights_2, …) and offset (or "
    "offsets, or level_offsets_1, level_offsets_2, …), as an export with {what=items} writes it."
)


@dataclass(frozen=True)
class KnownItems:
    """Items by name: P(item = 1 | x) = g + (1 − s − g) σ(w·x + b), if they are binary.

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
    levels
        What is known of items that are not binary; None if all are binary.
    categories
        Categories of nominal items in their order, as `Feature.list_categories` writes them, by the
        name of the item.
    """

    source: str
    digest: str
    features: tuple[str, ...]
    weights: Array
    offsets: Array
    asymptotes: Asymptotes | None = None
    levels: KnownLevels | None = None
    categories: Mapping[str, str] = field(default_factory=dict)

    def align(self, features: Sequence[Feature], kind: str, dataset: str) -> Array:
        """Return weights and offsets of the forms of all features, see `Structure.known_items`.

        They are NaN for features that are no known items. `kind` is the setting `items` of the
        model.

        Raises
        ------
        FitError
            If an item is no feature of the dataset, has other levels, lacks some of its thresholds,
            or has guessing or slipping.
        """
        self.check_has_no_asymptotes("a fit")
        return self._align(features, kind, dataset)

    def check_has_no_asymptotes(self, user: str) -> None:
        """Refuse items with guessing or slipping for a user that needs slopes and offsets only."""
        if self.asymptotes is not None:
            raise FitError(
                f"{self.source} has items with guessing or slipping, but {user} takes only known "
                "slopes and offsets. Give items without."
            )

    def check_is_binary(self, user: str) -> None:
        """Refuse items with several levels, or continuous ones, for a user of binary items."""
        if self.levels is not None and not self.levels.are_binary:
            raise FitError(
                f"{self.source} has items with several levels or continuous ones, but {user} takes "
                "only binary items. Leave them out."
            )

    def _align(self, features: Sequence[Feature], kind: str, dataset: str) -> Array:
        places = {feature.name: place for place, feature in enumerate(features)}
        if unused := sorted(set(self.features) - set(places)):
            raise FitError(
                f"{{items}}: {self.source} has items that {dataset} lacks: "
                f"{_join_names(unused)}. Leave them out, or correct their names."
            )
        values, width = self._stack_values(), self.weights.shape[1] + 1
        if self.levels is None and are_binary(features):
            forms = np.full((len(features), width), np.nan)
            forms[[places[name] for name in self.features]] = values
            return forms
        levels = self.levels or KnownLevels.make_unknown(len(self.features))
        by_feature = [np.full((feature.n_planes or 2, width), np.nan) for feature in features]
        for item, name in enumerate(self.features):
            place = places[name]
            own = features[place].list_categories()
            if (known := self.categories.get(name, own)) != own:
                raise FitError(
                    f"{{items}}: {self.source}: {name} has the categories {known}, but in "
                    f"{dataset} {own or 'it is not nominal'}. Ingest the data with the categories "
                    "of the calibration, in their order."
                )
            by_feature[place] = levels.list_forms(
                item, values[item], features[place], kind, self.source, dataset
            )
        return np.concatenate([by_feature[place] for place in _list_form_order(features)])

    def align_all(
        self, features: Sequence[Feature], kind: str, dataset: str
    ) -> tuple[Array, Asymptotes | None]:
        """Return weights and offsets of the forms as `align`, and asymptotes of all features.

        Raises
        ------
        FitError
            If items and features differ, or a value is not known.
        """
        names = [feature.name for feature in features]
        known = set(self.features)
        if missing := [name for name in names if name not in known]:
            raise FitError(
                f"{{items}}: {self.source} lacks items of {dataset}: {_join_names(missing)}. "
                "Give all features of the dataset."
            )
        if not are_binary(features):
            self.check_has_no_asymptotes("a transform of items that are not binary")
        forms = self._align(features, kind, dataset)
        is_empty = np.isnan(forms)
        n_planes = sum(feature.n_planes for feature in features)
        is_empty[n_planes + 1 :: 2, :-1] = False  # deviations have no slopes
        if is_empty.any():
            form, column = np.argwhere(is_empty)[0].tolist()
            owners = [
                names[place]
                for place in _list_form_order(features)
                for _ in range(features[place].n_planes or 2)
            ]
            value = "offset" if column == forms.shape[1] - 1 else "slope"
            value = "deviation" if form > n_planes and (form - n_planes) % 2 else value
            raise FitError(
                f"{{items}}: {self.source} has no {value} of {owners[form]}, but scores need all "
                "parameters."
            )
        asymptotes = self.asymptotes
        if asymptotes is not None:
            places = [self.features.index(name) for name in names]
            asymptotes = Asymptotes(*(part[places] for part in asymptotes))
        return forms, asymptotes

    def describe(self) -> dict[str, Any]:
        """Describe the items as a manifest records them."""
        is_known = ~np.isnan(self._stack_values()).all(axis=1)
        if self.levels is not None:
            is_known |= self.levels.are_items_known
        return {"path": self.source, "digest": self.digest, "n_items": int(is_known.sum())}

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
        and `guessing` and `slipping` if items have them. Of items that are not binary, see
        `KnownLevels`: `n_levels`, `curves` (the kind), `level_offsets_1`, `level_offsets_2`, …,
        `level_weights_1_1`, `level_weights_2_1`, …, `means`, `scales` and `deviations`; and
        `categories` of nominal ones. Others are ignored. None and NaN stand for values that are
        not known, and for guessing and slipping of 0.
    source, digest
        See `KnownItems`. None is the digest of names and values.

    Raises
    ------
    FitError
        If a column is missing, an item occurs twice, or a value is not a finite number.
    """
    slopes = ["slope"] if "slope" in table else _list_numbered(table, "weights_{}")
    offset = "offset" if "offset" in table else "offsets"
    level_columns = {
        name: _list_numbered(table, f"{name}{suffix}")
        for name, suffix in (("level_offsets", "_{}"), ("level_weights", "_{}_1"))
    }
    needed_offset = level_columns["level_offsets"] or [offset]
    for name in ("feature", *(slopes or ["slope"]), *needed_offset):
        if name not in table:
            raise FitError(f"{{items}}: {source} has no column {name!r}. {_REMEDY}")
    features = tuple(str(name) for name in table["feature"])
    if not features:
        raise FitError(f"{{items}}: {source} has no items.")
    if "" in features or None in table["feature"]:
        raise FitError(f"{{items}}: {source} has a line without a feature.")
    if twice := sorted(name for name, n in Counter(features).items() if n > 1):
        raise FitError(f"{{items}}: {source} has items twice: {_join_names(twice)}.")
    asymptotes = _parse_asymptotes(source, table, features)
    if asymptotes is not None and len(slopes) > 1:
        raise FitError(
            f"{{items}}: {source} has guessing or slipping with several slopes per item."
        )
    weights, offsets = (
        _parse_columns(source, table, names, features) for names in (slopes, [offset])
    )
    values = {
        name: _parse_columns(source, table, names, features)
        for name, names in level_columns.items()
    }
    values |= {
        name: _parse_columns(source, table, [name], features, limit=np.inf)[:, 0]
        for name in ("n_levels", "means", "scales", "deviations")
    }
    kinds = {str(kind) for kind in table.get("curves", ()) if kind}
    levels = KnownLevels.parse(values, kinds, features, source)
    texts = zip(features, table.get("categories", ()), strict=False)
    categories = {name: str(text) for name, text in texts if text}
    parts = (weights, offsets[:, 0], asymptotes, levels, categories)
    items = KnownItems(source, digest or "", features, *parts)
    return items if digest else replace(items, digest=_digest_values(items))


def get_fitted_items(
    model: Any, params: Any, features: Sequence[Feature], source: str, digest: str | None = None
) -> KnownItems:
    """Return the items of a fitted latent-trait model, for other fits.

    Raises
    ------
    FitError
        If the parameters are of another model, or an item differs between groups.
    """
    if not hasattr(params, "group_items"):
        raise FitError(f"{source} is not of latent-trait, so it has no slopes and offsets.")
    if (own := params.group_items) is not None:
        columns = [a[..., None] for a in (own.offsets, own.guessing, own.slipping) if a is not None]
        by_group = np.concatenate([own.weights, *columns], axis=2)
        differs = (by_group != by_group[0]).any(axis=(0, 2))
        differs |= find_different_levels(params)
        if differs.any():
            names = [features[item].name for item in np.flatnonzero(differs).tolist()]
            raise FitError(
                f"{source} has items that differ between its groups: "
                f"{_join_names(names)}. Give a table with the items of one group."
            )
    parts = (params.weights, params.offsets, params.asymptotes)
    levels = None if params.n_levels is None else KnownLevels.from_fit(params, model.items)
    categories = {own.name: own.list_categories() for own in features if own.kind == "nominal"}
    own_names = tuple(feature.name for feature in features)
    items = KnownItems(source, digest or "", own_names, *parts, levels, categories)
    return items if digest else replace(items, digest=_digest_values(items))


def find_known_values(model: Any, params: Any) -> Array | None:
    """Return what a fit knew, see `Structure.known_items`, or None if it knew nothing.

    Values are NaN where the fit estimated them.
    """
    is_known = getattr(params, "is_known", None)
    if is_known is None:
        return None
    forms = params.get_level_items(model.items).to_forms()
    if params.units is not None:
        forms = measure_forms(forms, params.units.means, params.units.scales)
    return np.where(is_known, forms, np.nan)


def match_items(model: Any, items: KnownItems, are_components_set: bool) -> Any:
    """Return the model with as many components as the items have slopes, and items of their kind.

    Raises
    ------
    FitError
        If the user set another number of components, or another kind.
    """
    kind = None if items.levels is None else items.levels.kind
    if kind not in (None, model.items):
        if model.items != type(model).items:
            raise FitError(
                f"{{items}}: {items.source} has {kind} items, but {{items={model.items}}} is set. "
                "Leave it out.",
                parameter="items",
            )
        try:
            model = replace(model, items=kind)
        except FitError as error:
            raise error.with_prefix(f"{items.source}, column curves") from None
    q, n = items.weights.shape[1], model.n_components
    if n is None or n == q:
        return model
    if are_components_set:
        raise FitError(
            f"{{items}}: {items.source} has {q} slope{'s' * (q != 1)} per item, but {{components}} "
            f"is {n}. Set {{components={q}}}, or give the columns weights_1 to weights_{n}."
        )
    return replace(model, n_components=q)


def _list_form_order(features: Sequence[Feature]) -> list[int]:
    """Return the places of the features in the order of their forms: continuous ones are last."""
    return sorted(range(len(features)), key=lambda place: features[place].n_planes == 0)


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


def _list_numbered(table: Mapping[str, Any], pattern: str) -> list[str]:
    """Return the columns that a pattern such as `weights_{}` names, numbered 1, 2, …."""
    names = map(pattern.format, count(1))
    return [*takewhile(lambda name: name in table, names)]


def _parse_columns(
    source: str,
    table: Mapping[str, Sequence[Any]],
    names: Sequence[str],
    features: Sequence[str],
    limit: float = _MAX_VALUE,
) -> Array:
    """Return columns of numbers side by side, (n_items, n_columns), NaN if there is no column."""
    columns = [
        _parse_numbers(source, table, name, features, limit)
        if name in table
        else np.full(len(features), np.nan)
        for name in names
    ]
    return np.column_stack([np.empty((len(features), 0)), *columns])


def _parse_numbers(
    source: str,
    table: Mapping[str, Sequence[Any]],
    column: str,
    features: Sequence[str],
    limit: float = _MAX_VALUE,
) -> Array:
    if len(table[column]) != len(features):
        raise FitError(
            f"{{items}}: {source} has {len(features)} features, but {len(table[column])} values in "
            f"the column {column}."
        )
    values = np.empty(len(features))
    for k, value in enumerate(table[column]):
        number = np.nan if value is None else parse_number(value)
        if number is None:
            raise FitError(
                f"{{items}}: {source}: {column} of {features[k]} is {str(value)[:20]!r}, which is "
                "not a number."
            )
        values[k] = number
        if abs(values[k]) > limit or np.isinf(values[k]):
            largest = f"number up to {limit:,.0f}" if np.isfinite(limit) else "finite number"
            raise FitError(
                f"{{items}}: {source}: {column} of {features[k]} is {values[k]:g}. Give a "
                f"{largest}, or leave the cell empty."
            )
    return values


def _digest_values(items: KnownItems) -> str:
    digest = hashlib.sha256(json.dumps(items.features).encode())
    digest.update(np.ascontiguousarray(items._stack_values()).tobytes())
    if items.asymptotes is not None:
        digest.update(np.stack(items.asymptotes).tobytes())
    if items.levels is not None:
        digest.update(items.levels.to_bytes())
    return digest.hexdigest()


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
