"""Compare fits by their statistics: `python -m flows.compare RUN RUN ...`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import MODEL, OUTPUT, Json, Option, Overwrite, check_table_file
from flows.cli.summary import format_p, make_table, print_json
from flows.data.datasets import load_fitted_model
from pipeline.errors import FitError
from pipeline.evaluation.model_comparison import compare_fits
from pipeline.models.capabilities import FitRecord
from storage.stores.locations import parse_path

HELP = """Compare fits to the same rows: log-likelihood, AIC, BIC and likelihood-ratio tests.

No data are read. Each fit is tested against the largest smaller one of which it is a
generalization. If the smaller model holds, twice the gain in log-likelihood follows a χ²
distribution. Where there is no test, the reason is given, such as other rows or features, another
model, a prior, or another number of classes.

AIC and BIC compare fits to the same features of the same rows; lower is better, and * marks the
lowest. Neither they nor the log-likelihood include terms of a prior.
"""
EXAMPLES = f"""Examples:

    python -m flows.compare runs/one runs/two
    python -m flows.compare runs/scalar runs/metric runs/configural --output table.csv

{EXIT_CODES}"""
app = make_app("compare", HELP, EXAMPLES)
_CONSOLE_WIDTH = 400  # wide enough not to break lines of the table
_FORMATS = {
    "rows": ("n_rows", ",.10g"),
    "log-likelihood": ("log_likelihood", ",.2f"),
    "parameters": ("n_parameters", ","),
    "AIC": ("aic", ",.1f"),
    "BIC": ("bic", ",.1f"),
    "adjusted BIC": ("adjusted_bic", ",.1f"),
    "entropy R²": ("entropy_r2", ".3f"),
    "χ²": ("chi2", ",.2f"),
    "df": ("df", ","),
    "p": ("p", ".4f"),
}
"""Entry and number format of each column; empty columns are left out."""


def compare(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Compare the fits at these paths; see `compare_fits`."""
    if len({*paths}) < len(paths):
        raise FitError("A fit is named twice. Name each fit once.")
    fits = {}
    for path in paths:
        fitted = load_fitted_model(parse_path(path))
        fits[path] = FitRecord(fitted.model, fitted.params, fitted.artifact.manifest)
    return compare_fits(fits)


@app.default
def main(
    *runs: Annotated[
        str, Option(group=MODEL, help="Folder of a fitted model, or of runs (the latest is used).")
    ],
    output: Annotated[
        str | None,
        Option(group=OUTPUT, help="File to write the table to: .csv, .parquet or .xlsx."),
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Print a table of the fits, or one JSON object."""
    target = None if output is None else check_table_file(output, overwrite)
    lines = compare(runs)
    if target is not None:
        from flows.exporting.files import collect_columns, write_table  # slow to import

        columns = {name: [line[name] for line in lines] for name in lines[0]}
        write_table(collect_columns(columns), target, overwrite)
    if json:
        print_json({"fits": lines})
        return
    console = Console(width=_CONSOLE_WIDTH, soft_wrap=True, highlight=False)
    console.print(make_comparison_table(lines))
    for text in iter_notes(lines):
        console.print(text, markup=False)
    if output is not None:
        console.print(f"table: {output}", markup=False)


def make_comparison_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table with one line per fit, which tests name by its number."""
    names = [fit["fit"] for fit in lines]
    shown = {
        title: own
        for title, own in _FORMATS.items()
        if any(line[own[0]] is not None for line in lines)
    }
    table = make_table("fit", "model", *shown, "against", left=("fit", "model"))
    lowest = {
        name: min((line[name] for line in lines if line[name] is not None), default=None)
        for name in ("aic", "bic", "adjusted_bic")
        if all(line["is_comparable"] for line in lines)
    }
    for number, line in enumerate(lines, start=1):
        cells = []
        for name, form in shown.values():
            value = line[name]
            mark = "*" if value is not None and value == lowest.get(name) else ""
            if value is None:
                cells.append("")
            elif name == "p":
                cells.append(format_p(value).removeprefix("= "))
            else:
                cells.append(mark + f"{value:{form}}".replace("-", "−"))
        against = "" if line["against"] is None else f"{names.index(line['against']) + 1}"
        table.add_row(f"{number}", escape(line["model"]), *cells, against)
    return table


def iter_notes(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Name the fits, and say why fits have no test and which ones cannot be compared."""
    for number, line in enumerate(lines, start=1):
        ending = "" if line["converged"] else " (not converged)"
        yield f"{number}: {line['fit']}{ending}"
        if line["no_test"]:
            yield f"   no test against {line['no_test']}"
    others = [f"{k}" for k, line in enumerate(lines, start=1) if not line["is_comparable"]]
    if others:
        yield (
            f"warning: AIC and BIC of {', '.join(others)} cannot be compared with those of 1, "
            "which was fitted to other rows or features"
        )


if __name__ == "__main__":
    run_app(app)
