"""Read files into a dataset: `python -m flows.ingest SOURCE... --dataset PATH`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.errors import format_warnings
from flows.cli.options import OUTPUT, ExampleValue, Json, Option, Switch
from flows.cli.progress import report_progress, warn_on_error
from flows.cli.summary import print_ingest
from flows.data.columns import RoleOptions, parse_roles
from flows.data.ingest import (
    AppendRules,
    IngestJob,
    list_source_warnings,
    list_words_read,
    open_new_sources,
    open_sources,
    summarize_append,
    summarize_dataset,
    warn_about_far_levels,
    write_rows,
)
from flows.report.lineage import publish_dataset
from flows.running.flow import make_flow, run_command, run_task
from storage.errors import DataError
from storage.sources import AbsentFeatures, NewFeatures
from storage.stores.locations import parse_path

HELP = """Read binary or ordered data and write it bit-packed, ready for `flows.fit`.

File formats: .npy, .npz, .csv, .tsv, .parquet, .mtx, .dat (baskets: the item numbers of one basket
per line), Zarr arrays, and bits or levels written by `flows.transform --reconstruct` or `--impute`.
With optional dependencies: .xlsx, .sav (SPSS), .dta (Stata), .bed (PLINK) and .h5ad (AnnData).

Several files, or a quoted glob, are read in parallel and stored in the given order. A folder may
contain folders called NAME=VALUE; NAME becomes a column of their rows. Files in an object store,
such as s3://BUCKET/PATH, are downloaded to temporary files.

Values must be 0, 1, true, false, yes, no or missing. Other values are refused with their row and
column, unless --map, --yes, --no or --threshold defines their meaning, or they are ordered:
--levels and --ordinal keep up to 16 levels, as do ordered categoricals in .parquet and ordinal
columns in .sav. Categories without an order are nominal: --nominal, other categoricals, and nominal
columns in .sav.
"""
EXAMPLES = f"""Examples:

    python -m flows.ingest v.csv --dataset v.zarr --segment-by year --keep party
    python -m flows.ingest '2026-*.parquet' --dataset d.zarr --segments 24
    python -m flows.ingest v.csv --dataset v.zarr --yes yea,paired --no nay
    python -m flows.ingest v.csv --dataset v.zarr --map '1=1,6=0' --missing 9
    python -m flows.ingest q.csv --dataset q.zarr --levels 'no<perhaps<yes'
    python -m flows.ingest q.csv --dataset q.zarr --ordinal 'mood*:0-4'
    python -m flows.ingest q.csv --dataset q.zarr --nominal 'media:tv,radio,web'
    python -m flows.ingest l.csv --dataset v.zarr --long row=r,feature=f,value=v
    python -m flows.ingest m.csv --dataset v.zarr --append --merge-by r --new-features add
    python -m flows.ingest new.parquet --dataset d.zarr --append
    python -m flows.ingest s3://bucket/in --dataset s3://bucket/d.zarr --new

--new adds the files in folders or prefixes that the dataset does not contain yet, in name order,
all or none. A dataset records its files by full path and content tag (size and modification time,
or the store's tag). If a recorded file has changed, the command refuses to continue. Paths with a
part that begins with . or _ are ignored. Local files modified within the last minute wait for the
next run.

{EXIT_CODES}"""
log = logging.getLogger("latentbits")
app = make_app("ingest", HELP, EXAMPLES)


SourcePattern = Annotated[
    str, Option(help="Files, URLs, quoted globs or example:NAME. With --new: folders.")
]
DatasetFolder = Annotated[
    str, Option(group=OUTPUT, help="Dataset folder to write."), ExampleValue("data/votes.zarr")
]
AppendFlag = Annotated[bool, Switch, Option(group=OUTPUT, help="Append the rows to the dataset.")]
NewFlag = Annotated[
    bool,
    Switch,
    Option(
        group=OUTPUT,
        help="Append the files in the source folders that the dataset does not contain yet. "
        "Creates the dataset if needed.",
    ),
]
NewFeaturesOption = Annotated[
    NewFeatures,
    Option(
        group=OUTPUT,
        help="Features in appended files that the dataset does not have: add them (missing in "
        "earlier rows, or 0 if --long has no value), leave them out, or refuse the file.",
    ),
]
AbsentFeaturesOption = Annotated[
    AbsentFeatures,
    Option(
        group=OUTPUT,
        help="Features of the dataset that an appended wide file does not have: missing in its "
        "rows, or refuse the file.",
    ),
]
MergeByOption = Annotated[
    str | None,
    Option(
        group=OUTPUT,
        metavar="COLUMN",
        help="Add values in appended long tables to rows of the dataset with the same value in "
        "COLUMN, the row column of --long (several: COLUMN,COLUMN). [default: refuse such rows]",
    ),
    ExampleValue("voter"),
]
ReplaceFlag = Annotated[
    bool, Switch, Option(group=OUTPUT, help="Replace an existing dataset once the new one is done.")
]


@dataclass(frozen=True)
class IngestOptions:
    """The options of the command, and the parameters of the flow."""

    sources: Annotated[
        Sequence[str],
        Option(help="Files, URLs or globs. With new: folders."),
        ExampleValue(["incoming/2026-01.csv", "incoming/2026-02.csv"]),
    ]
    dataset: DatasetFolder
    roles: Annotated[
        RoleOptions,
        ExampleValue({"long": {"row": "user", "feature": "item"}, "segment_by": "year"}),
    ] = field(default_factory=RoleOptions)
    append: AppendFlag = False
    overwrite: ReplaceFlag = False
    new: NewFlag = False
    new_features: NewFeaturesOption = "refuse"
    absent_features: AbsentFeaturesOption = "refuse"
    merge_by: MergeByOption = None


@make_flow("ingest", IngestOptions)
def ingest(options: IngestOptions) -> dict[str, Any]:
    """Read files into a dataset; a retry opens the sources again."""
    return run_task("write dataset", lambda: _write_dataset(prepare_ingest(options)))


def prepare_ingest(options: IngestOptions) -> IngestJob:
    """Check options and sources, and that the dataset can be written."""
    if options.append + options.overwrite + options.new > 1:
        raise DataError("{append}, {overwrite} and {new} cannot be combined. Choose one of them.")
    path, roles = parse_path(options.dataset), parse_roles(options.roles)
    append_rules = AppendRules(options.new_features, options.merge_by, options.absent_features)
    if options.new:
        return open_new_sources(options.sources, path, roles, append_rules)
    if append_rules != AppendRules() and not options.append:
        raise DataError("{new_features}, {absent_features} and {merge_by} need {append} or {new}.")
    flags = options.append, options.overwrite
    return open_sources(options.sources, path, roles, *flags, append_rules)


def _write_dataset(job: IngestJob) -> dict[str, Any]:
    """Write the dataset, and summarize it and the new files."""
    start, dataset, summary = time.perf_counter(), job.base, {}
    if job.sources:
        with report_progress() as progress:
            dataset = write_rows(job, progress)
        n_old = job.base.n_rows if job.base else 0
        with warn_on_error("The dataset could not be recorded by Prefect", "dataset"):
            publish_dataset(dataset, dataset.n_rows - n_old)
    if dataset is not None:
        seconds = round(time.perf_counter() - start, 3)
        added = summarize_append(job, dataset)
        summary = {**summarize_dataset(dataset), **added, **list_words_read(job)}
        summary["seconds"] = seconds
        summary["warnings"] += format_warnings(list_source_warnings(job))
        summary["warnings"] += warn_about_far_levels(job)
    if (files := job.new_files) is None:
        return summary
    n_new = len(files.new)
    counts = (n_new, "s" * (n_new != 1), files.n_known, len(files.waiting))
    log.info("%s: %d new file%s, %d known, %d still being written", job.path, *counts)
    return {**summary, **files._asdict()}


def _print_summary(summary: Mapping[str, Any]) -> None:
    if "dataset" in summary:  # with --new there may be no file yet
        print_ingest(summary)


@app.default
def main(
    *sources: SourcePattern,
    dataset: DatasetFolder,
    roles: RoleOptions | None = None,
    append: AppendFlag = False,
    new: NewFlag = False,
    new_features: NewFeaturesOption = "refuse",
    absent_features: AbsentFeaturesOption = "refuse",
    merge_by: MergeByOption = None,
    overwrite: ReplaceFlag = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    flags = append, overwrite, new, new_features, absent_features, merge_by
    options = IngestOptions(list(sources), dataset, roles or {}, *flags)
    write = partial(_write_dataset, prepare_ingest(options))
    work = partial(run_task, "write dataset", write)
    run_command("ingest", options, work, json, _print_summary)


if __name__ == "__main__":
    run_app(app)
