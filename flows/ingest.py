"""Turns files into a dataset: `python -m flows.ingest SOURCE... --dataset PATH`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from flows.cli.app import make_app, run_app
from flows.cli.options import OUTPUT, Json, Option, Switch
from flows.cli.progress import report_progress
from flows.cli.summary import print_ingest, print_json
from flows.data.columns import RoleOptions, parse_roles
from flows.data.ingest import (
    IngestJob,
    open_new_sources,
    open_sources,
    summarize_dataset,
    write_rows,
)
from flows.running.flow import make_flow, run_flow, run_task
from storage.errors import DataError
from storage.stores.locations import parse_path

HELP = """Read binary data and write it bit-packed, ready for `flows.fit`.

Sources: .npy, .npz, .csv, .tsv, .parquet, .mtx, .dat (baskets: item numbers a line), Zarr arrays,
bits that `flows.transform --reconstruct` wrote; with an extra of the package .xlsx, .sav and .dta
(SPSS, Stata), .bed (PLINK) and .h5ad (AnnData). Several files, a quoted glob or a folder whose
folders are called NAME=VALUE are read in parallel and stored in the order given; NAME is a column
of the rows there. Files in an object store, such as s3://BUCKET/PATH or a quoted glob, are
downloaded to temporary files.

Values are 0, 1, true, false or missing; anything else is refused with its row and column, unless
--map or --threshold says what it is.
"""
EXAMPLES = """Examples:

    python -m flows.ingest votes.csv --dataset votes.zarr --segment-by year --keep party
    python -m flows.ingest 'clicks/2026-*.parquet' --dataset clicks.zarr --segments 24
    python -m flows.ingest calls.csv --dataset calls.zarr --yes yea,paired-yea --no nay --keep id
    python -m flows.ingest codes.csv --dataset calls.zarr --map '1=1,6=0' --missing 9
    python -m flows.ingest votes.csv --dataset calls.zarr --long row=call,feature=voter,value=vote
    python -m flows.ingest tonight.parquet --dataset clicks.zarr --append
    python -m flows.ingest s3://bucket/incoming --dataset s3://bucket/clicks.zarr --new

--new takes the files below folders or prefixes in name order, all or none. A dataset remembers the
files it was made from by full path and content (size and time of the last write, or the store's
tag): one that changed later is refused. Names of which a part begins with . or _, and local files
that were written to within the last minute, are left for later.

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
log = logging.getLogger("latentbits")
app = make_app("ingest", HELP, EXAMPLES)


SourcePattern = Annotated[
    str, Option(help="Files or URLs, quoted globs, or example:NAME; with --new, folders.")
]
DatasetFolder = Annotated[str, Option(group=OUTPUT, help="Folder of the dataset to write.")]
AppendFlag = Annotated[bool, Switch, Option(group=OUTPUT, help="Add rows to the dataset.")]
NewFlag = Annotated[
    bool,
    Switch,
    Option(
        group=OUTPUT,
        help="Add the files below the folders that were not read yet; the first make the dataset.",
    ),
]
ReplaceFlag = Annotated[
    bool, Switch, Option(group=OUTPUT, help="Replace the dataset once the new one is whole.")
]


@dataclass(frozen=True)
class IngestOptions:
    """The parameters of the flow, and of the command line."""

    sources: Annotated[Sequence[str], Option(help="Files, URLs or globs; with new, folders.")]
    dataset: DatasetFolder
    roles: RoleOptions = field(default_factory=RoleOptions)
    append: AppendFlag = False
    overwrite: ReplaceFlag = False
    new: NewFlag = False


@make_flow("ingest", IngestOptions)
def ingest(options: IngestOptions) -> dict[str, Any]:
    """Run the stage; what it opens is opened again where it is tried again."""
    return run_task("write dataset", lambda: _write_dataset(prepare_ingest(options)))


def prepare_ingest(options: IngestOptions) -> IngestJob:
    """Refuse what can be refused at once: options, sources, a place that is taken."""
    if options.append + options.overwrite + options.new > 1:
        raise DataError("Expected one of --append, --overwrite and --new, got several.")
    path, roles = parse_path(options.dataset), parse_roles(options.roles)
    if options.new:
        return open_new_sources(options.sources, path, roles)
    return open_sources(options.sources, path, roles, options.append, options.overwrite)


def _write_dataset(intake: IngestJob) -> dict[str, Any]:
    """Write what was opened, and sum up the dataset and what arrived."""
    begun, arrivals, written = time.perf_counter(), intake.arrivals, intake.base
    if intake.sources:
        with report_progress() as progress:
            written = write_rows(intake, progress)
    summary = summarize_dataset(written, time.perf_counter() - begun) if written else {}
    if arrivals is None:
        return summary
    counts = (len(arrivals.new), arrivals.n_known, len(arrivals.waiting))
    log.info("%s: %d new files, %d known, %d still written to", intake.path, *counts)
    return {**summary, **arrivals._asdict()}


@app.default
def main(
    *sources: SourcePattern,
    dataset: DatasetFolder,
    roles: RoleOptions | None = None,
    append: AppendFlag = False,
    new: NewFlag = False,
    overwrite: ReplaceFlag = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    options = IngestOptions(list(sources), dataset, roles or {}, append, overwrite, new)
    write = partial(_write_dataset, prepare_ingest(options))
    summary = run_flow("ingest", options, partial(run_task, "write dataset", write))
    if json:
        print_json(summary)
    elif "dataset" in summary:
        print_ingest(summary)


if __name__ == "__main__":
    run_app(app)
