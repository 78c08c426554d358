"""Scales: groups of items that each measure something of their own, and are fitted one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flows.cli.options import parse_local_path
from flows.cli.summary import join_names
from flows.data.datasets import COMBINED, load_fitted_model, open_dataset_or_example
from flows.data.parameter_tables import read_parameter_table
from flows.fitting.drift import check_drift_limit
from flows.fitting.job import FitPlan, prepare_fit
from flows.fitting.options import FitOptions
from flows.fitting.provenance import compute_fingerprint
from pipeline.errors import FitError, format_suggestion
from storage.errors import DataError
from storage.sources.base import choose_features
from storage.sources.value_codes import MISSING_TOKENS, ReadOptions, parse_bit
from storage.stores.locations import LATEST_NAME

_OTHER_CHOICES = ("features", "pattern", "items")


class Scale(NamedTuple):
    """A scale: its name, its items, and those of them that are reversed."""

    name: str
    items: tuple[str, ...]
    reversed_items: tuple[str, ...]


class ScalePlan(NamedTuple):
    """A scale and its checked fit."""

    scale: Scale
    fit: FitPlan


def prepare_scales(options: FitOptions) -> tuple[Path, list[ScalePlan]]:
    """Check everything that can be checked before the first fit.

    Returns the folder of all scales, and their fits: each has a folder of runs in it.
    """
    for name in _OTHER_CHOICES:
        if getattr(options, name):
            raise FitError(f"{{scales}} and {{{name}}} cannot be combined. Leave out one of them.")
    dataset = open_dataset_or_example(options.dataset)
    table = parse_local_path(str(options.scales))
    names, place = dataset.feature_names, f"{{scales}}: {table}"
    scales = parse_scales(read_parameter_table(table, "scales"), place, names, str(dataset.path))
    default_output = f"runs/{dataset.path.resolve().stem}-scales"
    output = parse_local_path(options.output or default_output)
    items = [name for name in dataset.feature_names if any(name in s.items for s in scales)]
    kept, also_reversed = choose_features(
        "the scales", items, ReadOptions(drop=options.drop), options.reverse
    )
    plans = []
    for scale in scales:
        marked = {*scale.reversed_items, *also_reversed}
        own_items = tuple(name for name in scale.items if name in kept)
        if not own_items:
            raise FitError(f"{{drop}} leaves no item of scale {scale.name!r}. Keep one or more.")
        scale = Scale(scale.name, own_items, tuple(name for name in own_items if name in marked))
        own = replace(
            options,
            scales=None,
            drop=(),
            features=scale.items,
            reverse=scale.reversed_items,
            components=1 if options.components is None else options.components,
            output=str(output / scale.name),
        )
        with name_scale(scale.name):
            plan = prepare_fit(own)
            check_drift_limit(options.drift_limit, plan.dataset.n_features)
        plans.append(ScalePlan(scale, plan))
    return output, plans


def parse_scales(
    table: Mapping[str, Sequence[Any]], place: str, names: Sequence[str], owner: str
) -> list[Scale]:
    """Parse a table with the columns `item` and `scale`, and perhaps `reversed`.

    `place` and `owner` are the table and the owner of the features `names`, for errors.

    Raises
    ------
    DataError
        If the table lacks a column or a name, it has other columns but not `reversed`, an item is
        no feature or twice in a scale, a value of `reversed` is neither yes nor no, or a scale
        cannot be the name of a folder.
    """
    for column in ("item", "scale"):
        if column not in table:
            have = ", ".join(map(repr, table)) or "none"
            raise DataError(f"{place} has no column {column!r}. It has: {have}.")
    others = [name for name in table if name not in ("item", "scale")]
    if others and "reversed" not in table:
        raise DataError(
            f"{place} has no column 'reversed', but has: {', '.join(map(repr, others))}. Rename "
            "the column that marks reversed items, or add an empty column 'reversed'."
        )
    known = {*names}
    items: dict[str, dict[str, bool]] = {}
    marks = table.get("reversed", [None] * len(table["item"]))
    for item, scale, mark in zip(table["item"], table["scale"], marks, strict=True):
        if scale in (None, ""):
            raise DataError(f"{place}: item {item!r} has no scale. Name one, or delete the line.")
        item, scale = str(item), str(scale)
        if item not in known:
            hint = format_suggestion(item, names) or (
                f" Correct the name, or delete the line. Features: {join_names(names)}."
            )
            raise DataError(
                f"{place}: {owner} has no feature {item!r}, an item of scale {scale!r}.{hint}"
            )
        own = items.setdefault(scale, {})
        if item in own:
            raise DataError(f"{place}: item {item!r} is twice in scale {scale!r}. Delete a line.")
        own[item] = _parse_mark(place, item, mark)
    if not items:
        raise DataError(f"{place} has no items. Write a line for each item.")
    for name in items:
        if name.startswith(".") or {*name} & {*'/\\:*?"<>|\n'} or name == COMBINED:
            raise DataError(
                f"{place}: scale {name!r} cannot be the name of a folder. Give it another name."
            )
    return [
        Scale(name, tuple(own), tuple(item for item in own if own[item]))
        for name, own in items.items()
    ]


def _parse_mark(place: str, item: str, mark: Any) -> bool:
    if mark is None or str(mark).strip().lower() in MISSING_TOKENS:
        return False
    if (bit := parse_bit(str(mark))) is None:
        raise DataError(
            f"{place}: {mark!r} is in the column 'reversed' of item {item!r}. Write yes or no."
        )
    return bool(bit)


@contextmanager
def name_scale(name: str) -> Iterator[None]:
    """Begin errors with the name of a scale."""
    try:
        yield
    except FitError as error:
        raise error.with_prefix(f"scale {name}") from error
    except DataError as error:
        raise DataError(f"scale {name}: {error.text}", parameter=error.parameter) from error


def find_finished_fit(plan: FitPlan) -> str | None:
    """Return the latest fit in the folder of runs if it is the planned one."""
    if not (plan.run_folder.output / LATEST_NAME).is_file():
        return None
    latest = load_fitted_model(plan.run_folder.output).artifact
    recorded = {name: latest.manifest.get(name) for name in plan.provenance}
    is_same = compute_fingerprint(recorded) == plan.run_folder.fingerprint
    return str(latest.path) if is_same else None
