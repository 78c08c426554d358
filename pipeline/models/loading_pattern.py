"""Loading patterns: which items load on which traits, and which slopes are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import parse_number
from pipeline.errors import FitError

_NO_LOADING, _FREE = "0", "1"
_MAX_NAMES = 5
_ITEM_COLUMN = "item"
_REMEDY = (
    "A pattern has a column item and a column for each trait, with 0 (no loading), 1 (a slope of "
    "its own) or a label (equal labels are equal slopes)."
)


@dataclass(frozen=True)
class LoadingPattern:
    """Which items load on which traits.

    Attributes
    ----------
    traits
        Names of the traits.
    entries
        Entry of each trait for each item: `0` for no loading, `1` for a slope of its own, and the
        same label for equal slopes.
    """

    traits: tuple[str, ...]
    entries: tuple[tuple[str, ...], ...]

    @property
    def slopes(self) -> NDArray[np.int64]:
        """Number of each slope, (n_items, n_traits); equal numbers are equal slopes, -1 is 0."""
        entries = np.array(self.entries, np.str_).reshape(-1)
        places: NDArray[np.int64] = np.arange(entries.size)
        for label in set(entries.tolist()) - {_NO_LOADING, _FREE}:
            places[entries == label] = np.flatnonzero(entries == label)[0]
        places[entries == _NO_LOADING] = -1
        return places.reshape(len(self.entries), len(self.traits))

    def without_loadings(self, items: NDArray[np.int64]) -> LoadingPattern:
        """Return the pattern in which some items load on no trait."""
        nothing, entries = (_NO_LOADING,) * len(self.traits), list(self.entries)
        for item in items.tolist():
            entries[item] = nothing
        return LoadingPattern(self.traits, tuple(entries))

    def describe(self) -> dict[str, Any]:
        """Return the traits and, for each item, its entries, as the manifest records them."""
        return {"traits": list(self.traits), "entries": [list(row) for row in self.entries]}


def read_loading_pattern(manifest: Mapping[str, Any]) -> LoadingPattern | None:
    """Return the loading pattern that a manifest records, None if the fit had none."""
    if (recorded := manifest.get("pattern")) is None:
        return None
    return LoadingPattern(tuple(recorded["traits"]), tuple(map(tuple, recorded["entries"])))


def read_trait_names(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the traits that a manifest records; none without a pattern."""
    return tuple((manifest.get("pattern") or {}).get("traits", ()))


def make_loading_pattern(
    columns: Mapping[str, Sequence[Any]], features: Sequence[str], source: str
) -> LoadingPattern:
    """Check a table with one row per item, and bring it into the order of the features.

    Parameters
    ----------
    columns
        Names of the items in the column `item`, or else in the first one. Every other column is a
        trait.
    features
        Names of the features of the dataset.
    source
        Where the table is from, for errors.

    Raises
    ------
    FitError
        If the table has other items than the dataset, no trait, or an entry that is neither 0, 1
        nor a label.
    """
    item_column = _ITEM_COLUMN if _ITEM_COLUMN in columns else next(iter(columns), "")
    traits = tuple(str(name) for name in columns if name != item_column)
    if not traits:
        raise _refuse(source, f"has no column for a trait. {_REMEDY}")
    if len(set(traits)) < len(traits) or not all(map(str.strip, traits)):
        raise _refuse(source, "has traits without a name, or with the same name. Rename them.")
    items = [str(name) for name in columns[item_column]]
    if twice := [name for name, count in Counter(items).items() if count > 1]:
        raise _refuse(source, f"has items twice: {_join(twice)}. Keep one row for each.")
    rows = dict(zip(items, range(len(items)), strict=True))
    if missing := [name for name in features if name not in rows]:
        raise _refuse(
            source,
            f"lacks features of the dataset: {_join(missing)}. Add their rows; an item that loads "
            "on no trait has only zeros.",
        )
    if unknown := sorted(set(items) - set(features)):
        raise _refuse(
            source,
            f"has items that the dataset lacks: {_join(unknown)}. Leave out their rows, or write "
            "the names of the features.",
        )
    entries = tuple(
        tuple(_read_entry(columns[trait][rows[name]], name, trait, source) for trait in traits)
        for name in features
    )
    return LoadingPattern(traits, entries)


def match_traits(model: Any, pattern: LoadingPattern, components: int | str | None) -> Any:
    """Return the model with as many components as the pattern has traits.

    Parameters
    ----------
    model, pattern
        The model, which knows patterns.
    components
        The number that the user set; None if there is none.

    Raises
    ------
    FitError
        If the user set another number.
    """
    q = len(pattern.traits)
    if components is not None and model.n_components != q:
        raise FitError(
            f"{{components={components}}} contradicts {{pattern}}, which has {q} traits: "
            f"{_join(pattern.traits)}. Leave out {{components}}.",
            parameter="components",
        )
    return replace(model, n_components=q)


def _read_entry(value: Any, item: str, trait: str, source: str) -> str:
    text = "" if value is None else str(value).strip()
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = None
    if number in (0.0, 1.0) and (isinstance(value, bool) or parse_number(value) is not None):
        return _FREE if number else _NO_LOADING
    if not text or number is not None:
        shown = f"is {text}" if text else "is empty"
        raise _refuse(
            source,
            f"is not a pattern: the entry of {item} for the trait {trait!r} {shown}. Write 0, 1, "
            "or a label that is not a number.",
        )
    return text


def _refuse(source: str, problem: str) -> FitError:
    return FitError(f"{{pattern}}: {source} {problem}", parameter="pattern")


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
