"""Reliability of sum scores: what to compute, and the tables of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.summary import join_names, join_tables, make_table

_COEFFICIENTS = {
    "alpha": "alpha",
    "standardized_alpha": "standardized",
    "ordinal_alpha": "ordinal alpha",
    "omega": "omega",
}
_TRAIT_NAMES = {
    "marginal": "marginal",
    "omega": "omega of traits",
    "omega_hierarchical": "hierarchical",
}
_TRAIT_NOTES = {
    "marginal": "marginal: of the trait, as a latent-trait fit estimates it from all answers",
    "omega": "omega of traits: share of the variance of the sum that is due to all traits of a fit",
    "omega_hierarchical": "hierarchical: the share that is due to the general trait alone",
}
_MAX_ITEMS = 30


def print_reliability(
    by_scale: Mapping[str, Sequence[Mapping[str, Any]]], console: Console
) -> None:
    """Print the coefficients of all rows and of each group, and the items of all rows, by scale."""
    by_scale = {scale: own for scale, own in by_scale.items() if own}
    if not by_scale:
        return
    groups = [group for own in by_scale.values() for group in own]
    names = [key for key in _TRAIT_NAMES if any(key in own for _, own in _iter_traits(groups))]
    tables = {scale: _make_coefficient_table(own, names) for scale, own in by_scale.items()}
    console.print(join_tables(tables))
    notes = (line for own in by_scale.values() for line in _iter_notes(own, names))
    for line in dict.fromkeys(notes):
        console.print(line, markup=False)
    items = {scale: own[0]["by_item"] for scale, own in by_scale.items() if "by_item" in own[0]}
    if items:
        console.print()
        console.print(join_tables({scale: _make_item_table(own) for scale, own in items.items()}))
        is_reversed = any(own[0]["reversed"] for own in by_scale.values())
        turned = ", with the items marked − reversed" if is_reversed else ""
        console.print(f"rest: the sum of the other items{turned}", markup=False)
        if (n_more := sum(max(len(own) - _MAX_ITEMS, 0) for own in items.values())) > 0:
            console.print(f"{n_more:,} more items: --json lists all", markup=False)
    console.print()


def _iter_traits(
    reliability: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, float]]]:
    for group in reliability:
        yield from group["traits"].items()


def _make_coefficient_table(
    reliability: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Table:
    headings = [*_COEFFICIENTS.values(), *(_TRAIT_NAMES[name] for name in names)]
    table = make_table("reliability", "rows", "items", *headings, left=("reliability",))
    for group in reliability:
        shown = "all rows" if group["group"] is None else group["group"]
        counts = f"{group['rows']:,.6g}", f"{len(group['items']):,}"
        traits = [_format_traits(group["traits"], name) for name in names]
        if "missing" in group:
            table.add_row(escape(shown), *counts, *[""] * len(_COEFFICIENTS), *traits)
            continue
        cells = [_format_coefficient(group["coefficients"][key]) for key in _COEFFICIENTS]
        table.add_row(escape(shown), *counts, *cells, *traits)
        if group["reversed"]:
            cells = [_format_coefficient(group["turned"][key]) for key in _COEFFICIENTS]
            label = f"  with {join_names(group['reversed'])} reversed"
            table.add_row(escape(label), "", "", *cells)
    return table


def _format_coefficient(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "-"
    if entry["interval"] is None:
        return f"{entry['value']:.3f}"
    low, high = entry["interval"]
    return f"{entry['value']:.3f} \\[{low:.3f}, {high:.3f}]"


def _format_traits(traits: Mapping[str, Mapping[str, float]], name: str) -> str:
    return ", ".join(f"{own[name]:.3f}" for own in traits.values() if name in own)


def _iter_notes(reliability: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    yield (
        "alpha, standardized: of the sum of the scores, and of the sum of scores of equal variance;"
        " ordinal alpha, omega: of the normal variables behind the items (polychoric correlations)"
    )
    yield (
        "omega: total, by one factor (maximum likelihood); [ ]: intervals of 95 %, by the influence"
        " of each row"
    )
    yield from (_TRAIT_NOTES[name] for name in names)
    if not all(group["is_complete"] for group in reliability):
        yield (
            "with missing values, each covariance and correlation is of the rows that have both "
            "values"
        )
    if names_reversed := reliability[0].get("reversed"):
        verb = "points" if len(names_reversed) == 1 else "point"
        yield (
            f"{join_names(names_reversed)} {verb} the other way than most items, which lowers the "
            "coefficients of the sum; reverse such items before you add scores"
        )
    entries = [entry for group in reliability for entry in group.get("coefficients", {}).values()]
    if any(entry is not None and entry["interval"] is None for entry in entries):
        yield "no interval: two items never contradict each other, so no error is known"
    if any(entry is None for entry in entries):
        yield "-: fewer than three items for omega, or their sum does not vary"
    for group in reliability:
        where = "" if group["group"] is None else f"{group['group']}: "
        if group["constant"]:
            yield f"{where}constant and left out: {join_names(group['constant'])}"
        if "missing" in group:
            yield f"{where}no coefficients: {group['missing']}"


def _make_item_table(items: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table("item", "", "correlation with rest", "alpha without", left=("item", ""))
    for item in items[:_MAX_ITEMS]:
        values = (item["rest_correlation"], item["alpha_without"])
        cells = ("-" if value is None else f"{value:.3f}" for value in values)
        table.add_row(escape(item["feature"]), "−" if item["is_reversed"] else "", *cells)
    return table
