"""Compare fits by their statistics: `python -m flows.compare RUN RUN ...`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import MODEL, OUTPUT, Json, Option, Overwrite, check_table_file
from flows.cli.summary import format_p, join_tables, make_table, print_json
from flows.data.datasets import load_fitted_model, split_scales
from pipeline.errors import FitError
from pipeline.evaluation.model_comparison import compare_fits
from pipeline.models.capabilities import FitRecord
from storage.stores.locations import parse_path

HELP = """Compare fits to the same rows: log-likelihood, AIC, BIC and likelihood-ratio tests.

No data are read. Each fit is tested against the largest smaller one of which it is a
generalization. If the smaller model holds, twice the gain in log-likelihood follows a χ²
distribution. Where there is no test, the reason is given, such as other rows or features, another
model, a prior, or another number of classes.

Folders of `fit --scales` are compared scale by scale, in one table.

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


def compare(paths: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Compare the fits at these paths, by scale; see `compare_fits`.

    Other fits than those of scales are those of a scale without a name.
    """
    if len({*paths}) < len(paths):
        raise FitError("A fit is named twice. Name each fit once.")
    found = {}
    for scale, own_paths in split_scales(paths).items():
        fits = {}
        for path, own_path in zip(paths, own_paths, strict=True):
            fitted = load_fitted_model(parse_path(own_path))
            fits[path] = FitRecord(fitted.model, fitted.params, fitted.artifact.manifest)
        found[scale] = compare_fits(fits)
    return found


@app.default
def main(
    *runs: Annotated[
        str,
        Option(
            group=MODEL,
            help="Folder of a fitted model, of runs (the latest is used), or of scales.",
        ),
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
    by_scale = compare(runs)
    has_scales = "" not in by_scale
    if target is not None:
        from flows.exporting.files import collect_columns, write_table  # slow to import

        lines = [
            {"scale": scale, **line} if has_scales else line
            for scale, own in by_scale.items()
            for line in own
        ]
        columns = {name: [line[name] for line in lines] for name in lines[0]}
        write_table(collect_columns(columns), target, overwrite)
    if json:
        print_json({"scales": by_scale} if has_scales else {"fits": by_scale[""]})
        return
    names = [*runs] if has_scales else [line["fit"] for line in by_scale[""]]
    tables = {scale: make_comparison_table(own, names) for scale, own in by_scale.items()}
    console = Console(width=_CONSOLE_WIDTH, soft_wrap=True, highlight=False, emoji=False)
    console.print(join_tables(tables))
    for text in iter_notes(by_scale, names):
        console.print(text, markup=False)
    if output is not None:
        console.print(f"table: {output}", markup=False)


def make_comparison_table(lines: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    """Make a table with one line per fit, whose number is its place in `names`."""
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
    for line in lines:
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
        number = f"{names.index(line['fit']) + 1}"
        table.add_row(number, escape(line["model"]), *cells, against)
    return table


def iter_notes(
    by_scale: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str]
) -> Iterator[str]:
    """Name the fits, and say why fits have no test and which ones cannot be compared."""
    lines = {(scale, line["fit"]): line for scale, own in by_scale.items() for line in own}
    for number, name in enumerate(names, start=1):
        unfinished, others = list[str](), list[str]()
        reasons: dict[str, list[str]] = {}
        for scale in by_scale:
            line = lines[scale, name]
            unfinished += [scale] * (not line["converged"])
            others += [scale] * (not line["is_comparable"])
            if line["no_test"]:
                reasons.setdefault(line["no_test"], []).append(scale)
        ending = f" (not converged{_format_scales(unfinished, ': ')})" if unfinished else ""
        yield f"{number}: {name}{ending}"
        for reason, scales in reasons.items():
            yield f"   no test{_format_scales(scales, ' of ')} against {reason}"
        if others:
            first = names.index(by_scale[others[0]][0]["fit"]) + 1
            yield (
                f"warning: AIC and BIC of {number}{_format_scales(others, ' for ')} cannot be "
                f"compared with those of {first}, which was fitted to other rows or features"
            )


def _format_scales(scales: Sequence[str], prefix: str) -> str:
    """List scales after a prefix; nothing for fits without scales."""
    return "" if "" in scales else f"{prefix}{', '.join(scales)}"


if __name__ == "__main__":
    run_app(app)
