"""Writes results as tables for other programs: `python -m flows.export --artifact RUN ...`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console

from flows.cli.imports import importing
from flows.cli.options import DATA, MODEL, OUTPUT, Json, Option, Overwrite, command, run
from flows.cli.progress import reporting
from flows.cli.summary import print_json
from flows.data.datasets import open_named
from flows.data.fitted import Fitted, load_fitted
from flows.exporting.formats import check_size, table_file
from flows.running.flow import flow_of
from pipeline.errors import FitError
from storage.codes.codes import Codes, open_codes
from storage.errors import DataError
from storage.stores.locations import place

if TYPE_CHECKING:
    from flows.exporting.files import Table
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
app = command("export", HELP, EXAMPLES)
What = Literal["items", "codes", "correlations", "fit"]


@Option(name="*")
@dataclass(frozen=True)
class Options:
    """The options of the command, and the parameters of the flow."""

    what: Annotated[What, Option(group=OUTPUT, help="What to write.")]
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
class Job:
    """An export that can be done: of what, and to where."""

    options: Options
    output: Path
    fitted: Fitted | None
    codes: Codes | None


def check(options: Options) -> Job:
    """Refuse what can be refused at once: options, a place that is taken, codes of other fits."""
    output = table_file(options.output, options.overwrite)
    _check_given(options)
    fitted = None if options.artifact is None else load_fitted(place(options.artifact))
    codes = None if options.codes is None else open_codes(place(options.codes))
    if codes is not None:
        check_size(output, codes.n_rows)
        _check_same(fitted, codes)
    return Job(options, output, fitted, codes)


def _check_given(options: Options) -> None:
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


def _check_same(fitted: Fitted | None, codes: Codes) -> None:
    recorded = codes.manifest.get("artifact")
    if fitted is not None and recorded != fitted.digest:
        raise DataError(
            f"{codes.path}: Expected codes by {fitted.artifact.path}, got those of another fit. "
            "Give the one, or leave out --artifact."
        )


@flow_of("export", Options)
def export(options: Options) -> dict[str, Any]:
    """Write results as a table."""
    return run_export(check(options))


def run_export(job: Job) -> dict[str, Any]:
    """Write the table of an export that was checked."""
    with importing():
        from flows.exporting.files import write_table
    with reporting() as progress:
        table = _table(job, progress)
        write_table(table, job.output, job.options.overwrite)
    return {
        "output": str(job.output),
        "what": job.options.what,
        "n_rows": table.n_rows,
        "columns": table.schema.names,
    }


def _table(job: Job, progress: Progress) -> Table:
    """Give the table that is asked for; what makes tables takes its time to be imported."""
    if job.codes is not None:
        from flows.exporting.codes import code_table, dataset_of

        given = job.options.dataset
        dataset = dataset_of(job.codes, None if given is None else open_named(given))
        return code_table(job.codes, dataset, progress)
    from flows.exporting.correlations import correlation_table
    from flows.exporting.facts import fit_table
    from flows.exporting.items import item_table

    made: dict[What, Callable[[Artifact], Table]] = {
        "items": item_table,
        "correlations": correlation_table,
        "fit": fit_table,
    }
    assert job.fitted is not None
    return made[job.options.what](job.fitted.artifact)


@app.default
def main(*, options: Options, json: Json = False) -> None:
    """Write, and say what; no server is needed for that."""
    summary = run_export(check(options))
    if json:
        print_json(summary)
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{summary['n_rows']:,} rows, {len(summary['columns']):,} columns")
    console.print(f"{summary['what']}: {summary['output']}", markup=False)


if __name__ == "__main__":
    run(app)
