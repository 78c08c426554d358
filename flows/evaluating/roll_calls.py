"""Tables of how well models classify roll calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.summary import make_table

_MAX_LINES = 10
_NOTES = (
    "correct: share of votes on the side that the position of the member makes more probable",
    "APRE: share of the minority votes that positions explain, (minority − errors) / minority; GMP:"
    " geometric mean of the probabilities of the votes",
)
_MEMBER_NOTE = "minority: votes against the majority of a roll call"


def print_roll_calls(models: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a line per model, then the roll calls and members that the first model fits worst."""
    if not models:
        return
    table = make_table("roll calls", "votes", "minority", "errors", "correct", "APRE", "GMP")
    for model in models:
        counts = (f"{model[name]:,}" for name in ("votes", "minority", "errors"))
        shares = (_format(model[name]) for name in ("correct", "apre", "gmp"))
        table.add_row(escape(model["name"]), *counts, *shares)
    console.print(table)
    for note in _NOTES:
        console.print(note, markup=False)
    first = models[0]
    if n_unanimous := first["unanimous"]:
        text = f"{n_unanimous:,} of {len(first['by_feature']):,} roll calls have no minority"
        console.print(f"{text}, and so no PRE", markup=False)
    console.print()
    console.print(_make_table("roll call", first["by_feature"], "feature", "pre"))
    if first["by_row"] is not None:
        console.print()
        console.print(_make_table("member", first["by_row"], "name", "correct"))
        console.print(_MEMBER_NOTE, markup=False)
    else:
        console.print("members are not listed, as there are too many rows", markup=False)
    console.print("--tables FOLDER writes all", markup=False)
    console.print()


def _make_table(heading: str, lines: Sequence[Mapping[str, Any]], name: str, order: str) -> Table:
    """Return the lines with the lowest values of `order`."""
    judged = [line for line in lines if line[order] is not None]
    shown = sorted(judged, key=lambda line: line[order])[:_MAX_LINES]
    title = f"{heading}, the {len(shown):,} worst of {len(lines):,}"
    table = make_table(title, "votes", "minority", "errors", "correct", "PRE", "GMP")
    for line in shown:
        label = line[name] if line[name] is not None else f"row {line['row'] + 1:,}"
        counts = (f"{line[key]:,}" for key in ("votes", "minority", "errors"))
        shares = (_format(line[key]) for key in ("correct", "pre", "gmp"))
        table.add_row(escape(str(label)), *counts, *shares)
    return table


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
