"""Turns files into a dataset: `python -m flows.ingest SOURCE... --dataset PATH`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from flows.cli.options import OUTPUT, Json, Option, Switch, command, run
from flows.cli.progress import reporting
from flows.cli.summary import print_ingest, print_json
from flows.data.ingested import ingest_summary
from flows.data.ingesting import Intake, open_new, open_sources, write_rows
from flows.data.role_options import RoleOptions, roles_of
from flows.running.flow import flow_of, run_flow
from flows.running.stages import run_task
from storage.errors import DataError
from storage.stores.locations import place

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
app = command("ingest", HELP, EXAMPLES)


Source = Annotated[
    str, Option(help="Files or URLs, quoted globs, or example:NAME; with --new, folders.")
]
Dataset = Annotated[str, Option(group=OUTPUT, help="Folder of the dataset to write.")]
Append = Annotated[bool, Switch, Option(group=OUTPUT, help="Add rows to the dataset.")]
New = Annotated[
    bool,
    Switch,
    Option(
        group=OUTPUT,
        help="Add the files below the folders that were not read yet; the first make the dataset.",
    ),
]
Replace = Annotated[
    bool, Switch, Option(group=OUTPUT, help="Replace the dataset once the new one is whole.")
]


@dataclass(frozen=True)
class Options:
    """The parameters of the flow, and of the command line."""

    sources: Annotated[Sequence[str], Option(help="Files, URLs or globs; with new, folders.")]
    dataset: Dataset
    roles: RoleOptions = field(default_factory=RoleOptions)
    append: Append = False
    overwrite: Replace = False
    new: New = False


@flow_of("ingest", Options)
def ingest(options: Options) -> dict[str, Any]:
    """Run the stage; what it opens is opened again where it is tried again."""
    return run_task("write dataset", lambda: _written(check(options)))


def check(options: Options) -> Intake:
    """Refuse what can be refused at once: options, sources, a place that is taken."""
    if options.append + options.overwrite + options.new > 1:
        raise DataError("Expected one of --append, --overwrite and --new, got several.")
    path, roles = place(options.dataset), roles_of(options.roles)
    if options.new:
        return open_new(options.sources, path, roles)
    return open_sources(options.sources, path, roles, options.append, options.overwrite)


def _written(intake: Intake) -> dict[str, Any]:
    """Write what was opened, and sum up the dataset and what arrived."""
    begun, arrivals, written = time.perf_counter(), intake.arrivals, intake.base
    if intake.sources:
        with reporting() as progress:
            written = write_rows(intake, progress)
    summary = ingest_summary(written, time.perf_counter() - begun) if written else {}
    if arrivals is None:
        return summary
    counts = (len(arrivals.new), arrivals.n_known, len(arrivals.waiting))
    log.info("%s: %d new files, %d known, %d still written to", intake.path, *counts)
    return {**summary, **arrivals._asdict()}


@app.default
def main(
    *sources: Source,
    dataset: Dataset,
    roles: RoleOptions | None = None,
    append: Append = False,
    new: New = False,
    overwrite: Replace = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    options = Options(list(sources), dataset, roles or {}, append, overwrite, new)
    write = partial(_written, check(options))
    summary = run_flow("ingest", options, partial(run_task, "write dataset", write))
    if json:
        print_json(summary)
    elif "dataset" in summary:
        print_ingest(summary)


if __name__ == "__main__":
    run(app)
