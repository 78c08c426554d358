"""Writes results as tables for other programs: `python -m flows.export --artifact RUN ...`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console

from flows.cli.app import make_app, run_app
from flows.cli.options import DATA, MODEL, OUTPUT, Json, Option, Overwrite
from flows.cli.progress import report_progress
from flows.cli.startup import pause_garbage_collection
from flows.cli.summary import print_json
from flows.data.datasets import open_dataset_or_example
from flows.data.fitted import LoadedModel, load_fitted_model
from flows.exporting.formats import check_table_file, check_table_size
from flows.running.flow import make_flow
from pipeline.errors import FitError
from storage.codes.codes import Codes, open_codes
from storage.errors import DataError
from storage.stores.locations import parse_path

if TYPE_CHECKING:
    from flows.exporting.files import BatchedTable
    from pipeline.executors.progress import Progress
    from storage.artifacts.artifacts import Artifact

HELP = """Write results as a table that R, pandas or Excel reads: .csv, .parquet or .xlsx.

`--what items` has a line for each feature: its name, and whatever the model has of each, such as
loadings, thresholds or probabilities, a column a component; standard errors and the ends of
intervals stand beside, where there are some.

`--what codes` has a line for each row that `flows.transform` coded: `row`, counted from 0, its
segment, the columns that were kept, its codes, and `sd`, their standard errors, where the model
gives variances.

`--what correlations` has a line for each pair of features: their tetrachoric correlation, in every
segment if there are several, and its status; it is missing where the data say nothing of it.

`--what fit` has two columns, `name` and `value`: the key numbers of the fit, and its warnings.
"""
EXAMPLES = """Examples:

    python -m flows.export --artifact runs/votes --what items --output loadings.csv
    python -m flows.export --codes codes.zarr --what codes --output codes.parquet
    python -m flows.export --artifact runs/votes --what fit --output fit.xlsx

`.xlsx` needs `pip install 'latentbits[excel]'`. Exit codes: 0 done, 2 bad arguments or input, 1
failure, 130 interrupted.
"""
app = make_app("export", HELP, EXAMPLES)
ExportKind = Literal["items", "codes", "correlations", "fit"]


@Option(name="*")
@dataclass(frozen=True)
class ExportOptions:
    """The options of the command, and the parameters of the flow."""

    what: Annotated[ExportKind, Option(group=OUTPUT, help="What to write.")]
    output: Annotated[str, Option(group=OUTPUT, help="File to write: .csv, .parquet or .xlsx.")]
    artifact: Annotated[
        str | None,
        Option(
            group=MODEL,
            help="Artifact of a fit, or a folder of runs for the latest; codes need none.",
        ),
    ] = None
    codes: Annotated[
        str | None, Option(group=DATA, help="What `flows.transform` wrote; for --what codes.")
    ] = None
    dataset: Annotated[
        str | None,
        Option(
            group=DATA, help="Dataset of the codes' rows. [default: where it lay, if it is there]"
        ),
    ] = None
    overwrite: Overwrite = False


@dataclass(frozen=True)
class ExportJob:
    """An export that can be done: of what, and to where."""

    options: ExportOptions
    output: Path
    fitted: LoadedModel | None
    codes: Codes | None


def prepare_export(options: ExportOptions) -> ExportJob:
    """Refuse what can be refused at once: options, a place that is taken, codes of other fits."""
    output = check_table_file(options.output, options.overwrite)
    _check_options(options)
    fitted = None if options.artifact is None else load_fitted_model(parse_path(options.artifact))
    codes = None if options.codes is None else open_codes(parse_path(options.codes))
    if codes is not None:
        check_table_size(output, codes.n_rows)
        _check_same_fit(fitted, codes)
    return ExportJob(options, output, fitted, codes)


def _check_options(options: ExportOptions) -> None:
    """Refuse what lacks the option that it is of, and options that are of no use to it."""
    needed = "codes" if options.what == "codes" else "artifact"
    if getattr(options, needed) is None:
        raise FitError(
            f"--{needed}: Expected a path for --what {options.what}, got none. Give one."
        )
    for name in ("codes", "dataset"):
        if options.what != "codes" and (value := getattr(options, name)) is not None:
            raise FitError(
                f"--{name}: Expected none for --what {options.what}, got {value!r}. Leave it out."
            )


def _check_same_fit(fitted: LoadedModel | None, codes: Codes) -> None:
    recorded = codes.manifest.get("artifact")
    if fitted is not None and recorded != fitted.digest:
        raise DataError(
            f"{codes.path}: Expected codes by {fitted.artifact.path}, got those of another fit. "
            "Give the one, or leave out --artifact."
        )


@make_flow("export", ExportOptions)
def export(options: ExportOptions) -> dict[str, Any]:
    """Write results as a table."""
    return run_export(prepare_export(options))


def run_export(job: ExportJob) -> dict[str, Any]:
    """Write the table of an export that was checked."""
    with pause_garbage_collection():
        from flows.exporting.files import write_table
    with report_progress() as progress:
        table = _make_table(job, progress)
        write_table(table, job.output, job.options.overwrite)
    return {
        "output": str(job.output),
        "what": job.options.what,
        "n_rows": table.n_rows,
        "columns": table.schema.names,
    }


def _make_table(job: ExportJob, progress: Progress) -> BatchedTable:
    """Give the table that is asked for; what makes tables takes its time to be imported."""
    if job.codes is not None:
        from flows.exporting.codes import find_coded_dataset, make_code_table

        given = job.options.dataset
        dataset = find_coded_dataset(
            job.codes, None if given is None else open_dataset_or_example(given)
        )
        return make_code_table(job.codes, dataset, progress)
    from flows.exporting.artifacts import make_correlation_table, make_fit_table, make_item_table

    made: dict[ExportKind, Callable[[Artifact], BatchedTable]] = {
        "items": make_item_table,
        "correlations": make_correlation_table,
        "fit": make_fit_table,
    }
    assert job.fitted is not None
    return made[job.options.what](job.fitted.artifact)


@app.default
def main(*, options: ExportOptions, json: Json = False) -> None:
    """Write, and say what; no server is needed for that."""
    summary = run_export(prepare_export(options))
    if json:
        print_json(summary)
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{summary['n_rows']:,} rows, {len(summary['columns']):,} columns")
    console.print(f"{summary['what']}: {summary['output']}", markup=False)


if __name__ == "__main__":
    run_app(app)
