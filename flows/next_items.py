"""Choose the items to ask next: `python -m flows.next_items --artifact RUN --given A=1,B=0`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import (
    FEATURES,
    MODEL,
    OUTPUT,
    ArtifactPath,
    Json,
    Number,
    Option,
    Repeatable,
    WholeNumber,
    parse_local_path,
)
from flows.cli.summary import make_table, print_json, print_summary
from flows.data.datasets import load_fitted_model
from flows.data.parameter_tables import read_parameter_table
from flows.query import parse_evidence
from pipeline.data.matching import find_segment_index
from pipeline.errors import FitError
from pipeline.inference.next_items import (
    ItemLimits,
    choose_next_items,
    make_item_bank,
)
from pipeline.inference.query import SEGMENT_REMEDY
from storage.named_values import collect_values
from storage.quoting import parse_float, split_names
from storage.stores.locations import parse_path

HELP = """Choose the items to ask next in an adaptive test, given the answers so far.

The items are those with the largest expected information about the trait under its posterior. The
posterior mean and its standard error are printed as well. For a latent-trait fit with one
component.
"""
EXAMPLES = f"""Examples:

    python -m flows.next_items --artifact runs/v --given q1=1,q7=0 --items 3
    python -m flows.next_items --artifact runs/v --max-error 0.3 --limits l.csv

{EXIT_CODES}"""
app = make_app("next-items", HELP, EXAMPLES)


@app.default
def main(
    *,
    artifact: ArtifactPath,
    given: Annotated[
        Repeatable,
        Option(
            group=FEATURES,
            help="Answers so far: A=1,B=often. Values are levels or, of measurements, numbers.",
        ),
    ] = (),
    items: Annotated[WholeNumber, Option(group=OUTPUT, help="Number of items.")] = 1,
    exclude: Annotated[
        Repeatable,
        Option(group=FEATURES, help="Items that are not asked: a name or a quoted pattern."),
    ] = (),
    limits: Annotated[
        str | None,
        Option(
            group=FEATURES,
            help="Table (.csv or .parquet) with the column item, and content (group of the item) "
            "or exposure (share of earlier tests that had it).",
        ),
    ] = None,
    shares: Annotated[
        Repeatable,
        Option(
            group=FEATURES,
            help="Shares of the content groups in a test: algebra=2,geometry=1. [default: their "
            "shares in the fit]",
        ),
    ] = (),
    max_exposure: Annotated[
        Number, Option(group=FEATURES, help="Items with this exposure or more are not asked.")
    ] = 1.0,
    max_error: Annotated[
        Number,
        Option(group=OUTPUT, help="Stop once the standard error is at most this."),
    ] = 0.0,
    segment: Annotated[
        str | None,
        Option(group=MODEL, help="Segment or group. [default: all, by their fitted rows]"),
    ] = None,
    json: Json = False,
) -> None:
    """Print the next items, and the trait given the answers so far."""
    fitted = load_fitted_model(parse_path(artifact))
    evidence = parse_evidence(given, fitted.feature_names)
    index = None
    if segment is not None:
        index = find_segment_index(fitted.segments, segment, SEGMENT_REMEDY)
    bank = make_item_bank(fitted.model, fitted.params, fitted.features, index)
    answers = bank.find_answers(evidence)
    excluded = _match_items(split_names(exclude, fitted.feature_names), fitted.feature_names)
    by_item = {} if limits is None else _read_limits(limits)
    own = ItemLimits(excluded, shares=_parse_shares(shares), max_exposure=max_exposure, **by_item)
    found = choose_next_items(bank, answers, items, own, max_error)
    if json:
        print_json({"given": dict(evidence), "segment": segment, **found._asdict()})
        return
    facts = [
        ("answers", f"{len(answers):,}"),
        ("trait", f"{found.mean:.4g} (standard error {found.error:.4g})"),
    ]
    print_summary(facts, {})
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    if found.is_done:
        reached = found.error <= max_error
        console.print("done: " + ("the error is small enough" if reached else "no item is left"))
        return
    table = make_table("next item", "information", left=("next item",))
    for name, information in zip(found.items, found.information, strict=True):
        table.add_row(escape(name), f"{information:.4g}")
    console.print(table)


def _match_items(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the items that patterns match; a pattern that matches none stays as it is."""
    found: list[str] = []
    for pattern in patterns:
        found += [name for name in names if fnmatchcase(name, pattern)] or [pattern]
    return found


def _read_limits(path: str) -> dict[str, Mapping[str, Any]]:
    """Read content groups and exposures by item."""
    columns = read_parameter_table(parse_local_path(path), "limits")
    names = [str(name) for name in columns.pop("item", ())]
    if not names or not columns or not {*columns} <= {"content", "exposure"}:
        raise FitError(
            f"{{limits}}: {path} needs lines and the columns item, and content or exposure. It has "
            f"{', '.join(columns) or 'no other column'}."
        )
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FitError(f"{{limits}}: {path} has several lines of item {twice!r}. Keep one.")
    found: dict[str, Mapping[str, Any]] = {}
    for column, values in columns.items():
        texts = {name: str(v) for name, v in zip(names, values, strict=True) if v not in (None, "")}
        found[column] = texts
        if column == "exposure":
            found[column] = {n: _parse_number(t, n, "limits") for n, t in texts.items()}
    return found


def _parse_shares(texts: Sequence[str]) -> dict[str, float] | None:
    pairs = (part for text in texts for part in text.split(","))
    named = collect_values("{shares}", ((n, v) for n, _, v in (p.rpartition("=") for p in pairs)))
    return {name: _parse_number(text, name, "shares") for name, text in named.items()} or None


def _parse_number(text: str, name: str, parameter: str) -> float:
    number = parse_float(text)
    if number is None:
        raise FitError(f"{name!r}: {text!r} is not a number.", parameter=parameter)
    return number


if __name__ == "__main__":
    run_app(app)
