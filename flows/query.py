"""Compute conditional probabilities: `python -m flows.query --artifact RUN --given A=1 --of B`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isnan
from pathlib import Path
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
    Option,
    Overwrite,
    Repeatable,
    Switch,
    check_table_file,
)
from flows.cli.summary import make_table, print_json, print_summary
from flows.data.datasets import load_fitted_model
from pipeline.data.matching import find_segment_index
from pipeline.errors import FitError
from pipeline.inference.query import SEGMENT_REMEDY, QueryAnswer, answer_query, make_query
from storage.named_values import collect_values
from storage.quoting import split_names, split_quoted, unquote
from storage.stores.locations import parse_path

HELP = """Compute probabilities of features, given the values of other features.

Each line has the probability of a level given the evidence, its marginal probability without
evidence, and the lift, which is their ratio. Features that are not named may have any value. The
probabilities follow from the likelihood of the model; a model without an accurate likelihood is
refused.
"""
EXAMPLES = f"""Examples:

    python -m flows.query --artifact runs/v --given milk=1 --of bread,butter
    python -m flows.query --artifact runs/v --given mood=often,age=40 --of sleep

{EXIT_CODES}"""
app = make_app("query", HELP, EXAMPLES)
_SMALLEST_ERROR = 1e-6
"""Errors of log-probabilities that are worth a line, in nats."""


@app.default
def main(
    *,
    artifact: ArtifactPath,
    of: Annotated[
        Repeatable, Option(group=FEATURES, help="Features whose probabilities to compute: A,B.")
    ],
    given: Annotated[
        Repeatable,
        Option(
            group=FEATURES,
            help="Evidence: A=1,B=often. Values are levels or, of measurements, numbers.",
        ),
    ] = (),
    joint: Annotated[
        bool,
        Switch,
        Option(group=FEATURES, help="Compute all combinations of levels, in one table."),
    ] = False,
    segment: Annotated[
        str | None,
        Option(group=MODEL, help="Segment or group. [default: all, by their fitted rows]"),
    ] = None,
    output: Annotated[
        str | None,
        Option(group=OUTPUT, help="Also write the table to a file: .csv, .parquet or .xlsx."),
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Print the probabilities, and write them to a file if one is named."""
    target = None if output is None else check_table_file(output, overwrite)
    fitted = load_fitted_model(parse_path(artifact))
    evidence = parse_evidence(given, fitted.feature_names)
    query = make_query(
        fitted.features, evidence, split_names(of, fitted.feature_names), joint=joint
    )
    index = None
    if segment is not None:
        index = find_segment_index(fitted.segments, segment, SEGMENT_REMEDY)
    answer = answer_query(fitted.model, fitted.params, query, index)
    if target is not None:
        _write_answer(answer, target, overwrite)
    if json:
        print_json(_summarize_answer(answer, evidence, segment, target))
    else:
        _print_answer(answer, evidence, segment, target)


def parse_evidence(texts: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """Parse texts such as `A=1,B=often`; a text with one `NAME=VALUE` may have commas in its name.

    Raises
    ------
    FitError
        If a part is not `NAME=VALUE`.
    DataError
        If a feature is named twice.
    """
    parts = (
        part
        for text in texts
        for part in ([text] if text.rpartition("=")[0] in names else split_quoted(text, ","))
    )
    return collect_values("{given}", map(_split_evidence, parts))


def _split_evidence(part: str) -> tuple[str, str]:
    *names, value = split_quoted(part, "=")
    if not names:
        raise FitError(f"{part!r} has no value. Write {part or 'NAME'}=VALUE.", parameter="given")
    return unquote("=".join(names)), unquote(value)


def _write_answer(answer: QueryAnswer, target: Path, overwrite: bool) -> None:
    from flows.exporting.files import collect_columns, write_table  # imports Arrow, which is slow

    write_table(collect_columns(answer), target, overwrite)


def _summarize_answer(
    answer: QueryAnswer, evidence: Mapping[str, str], segment: str | None, target: Path | None
) -> dict[str, Any]:
    names, columns = list(answer), (values.tolist() for values in answer.values())
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    for row in rows:
        row["lift"] = None if isnan(row["lift"]) else row["lift"]
    return {
        "given": dict(evidence),
        "segment": segment,
        "log_evidence": answer.log_evidence,
        "error": answer.error,
        "probabilities": rows,
        "output": None if target is None else str(target),
    }


def _print_answer(
    answer: QueryAnswer, evidence: Mapping[str, str], segment: str | None, target: Path | None
) -> None:
    given = ", ".join(f"{name}={value}" for name, value in evidence.items())
    facts = [("given", given or "nothing")]
    if segment is not None:
        facts.append(("segment", segment))
    facts.append(("log-probability of the evidence", f"{answer.log_evidence:.6g}"))
    if answer.error > _SMALLEST_ERROR:
        facts.append(("error", f"at most {answer.error:.1g} nats"))
    print_summary(facts, {})
    table = make_table("", "probability", "marginal", "lift", left=("",))
    for event, probability, marginal, lift in answer.iter_lines():
        ratio = "" if isnan(lift) else f"{lift:.2f}"
        table.add_row(escape(event), f"{probability:.4g}", f"{marginal:.4g}", ratio)
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    console.print(table)
    if target is not None:
        console.print(f"table: {target}", markup=False)


if __name__ == "__main__":
    run_app(app)
