"""Turns files into a dataset: `python -m flows.ingest SOURCE... --dataset PATH`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any

from cyclopts import Parameter
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.cli.options import Json, Switch, Whole, command, run
from flows.cli.progress import reporting
from flows.cli.roles import SOURCES, Roles, check_stored, remembered, segmenter
from flows.cli.summary import print_ingest, print_json
from flows.data.readahead import batches_in_order
from flows.running.retries import RETRIES
from flows.running.server import check_schedule, with_server
from pipeline.progress import Progress, silent
from storage.chunk_writer import DatasetWriter
from storage.dataset import BinaryDataset, open_dataset
from storage.errors import Busy, DataError
from storage.examples import PREFIX, open_example
from storage.locations import MANIFEST, Place, place
from storage.sources import (
    Arrivals,
    basket_items,
    expand_sources,
    is_baskets,
    new_files,
    open_source,
    tags_of,
)
from storage.writer import append_dataset, create_dataset

HELP = """Read binary data and write it bit-packed, ready for `flows.fit`.

Sources: .npy, .npz, .csv, .tsv, .parquet, .mtx, .dat (baskets: item numbers a line), Zarr arrays;
several files or a quoted glob are read in parallel and stored in the order given. Files in an
object store, such as s3://BUCKET/PATH or a quoted glob, are downloaded to temporary files.

Values are 0, 1, true, false or missing; anything else is refused with its row and column.
"""
EXAMPLES = """Examples:

    python -m flows.ingest votes.csv --dataset votes.zarr --segment-by year --keep party
    python -m flows.ingest 'clicks/2026-*.parquet' --dataset clicks.zarr --segments 24
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
_MOST_PADDING = 0.1
_NO_ROLES = Roles()


def ingest_sources(
    patterns: Sequence[str],
    path: Place,
    roles: Roles = _NO_ROLES,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> BinaryDataset:
    """Read sources and write them as a dataset, or as further rows of one.

    Parameters
    ----------
    patterns
        Paths, globs, or `example:NAME`.
    path
        The dataset's folder.
    roles
        What the columns are for; an append takes what it is not told from the dataset.
    append, overwrite
        Add to the dataset, or replace it once the new one is whole.
    progress
        Is told after every batch.

    Raises
    ------
    DataError
        If a source cannot be used; nothing is left behind then.
    """
    names = [name for pattern in patterns for name in _expanded(pattern)]
    if not names:
        raise DataError("Expected at least one source, got none.")
    base = open_dataset(path) if append else None
    return _ingest(names, path, roles, base, overwrite, progress)


def ingest_new(
    folders: Sequence[str], path: Place, roles: Roles = _NO_ROLES, progress: Progress = silent
) -> tuple[BinaryDataset | None, Arrivals]:
    """Append the files that arrived below folders since; the first make the dataset.

    All are appended at once, or none: which they were is part of the manifest.

    Raises
    ------
    DataError
        If a file cannot be used, or one that was read before has changed.
    """
    base = open_dataset(path) if (path / MANIFEST).exists() else None
    found = new_files(folders, base.manifest["ingest"].get(SOURCES, {}) if base else {})
    if found.new:
        base = _ingest(found.new, path, roles, base, False, progress)
    return base, found


def _ingest(
    names: Sequence[str],
    path: Place,
    roles: Roles,
    base: BinaryDataset | None,
    overwrite: bool,
    progress: Progress,
) -> BinaryDataset:
    """Write sources as a dataset, or as further rows of the one that is the base."""
    if base is not None:
        roles = remembered(roles, base)
    opened = _open_sources(names, roles, base)
    roles = roles.completed(opened[0])
    if base is not None:
        check_stored(roles, base)
    totals = [source.n_rows for source in opened]
    expected = None if None in totals else sum(totals)
    n_rows = _count_rows(opened, expected) if roles.segments else expected
    with _writing(opened, path, roles, base, n_rows, overwrite) as writer:
        segment = segmenter(roles, n_rows, base)
        done = 0
        progress("ingest", done, n_rows or 0, done)
        for batch in batches_in_order(opened):
            columns = {stored: batch.columns[name] for stored, name in roles.stored.items()}
            writer.add(replace(batch, columns=columns), segment(batch, done))
            done += len(batch.X)
            progress("ingest", done, n_rows or 0, done)
    return open_dataset(path)


@contextmanager
def _writing(
    sources: Sequence[Any],
    path: Place,
    roles: Roles,
    base: BinaryDataset | None,
    n_rows: int | None,
    overwrite: bool,
) -> Iterator[DatasetWriter]:
    """Write a new dataset or to the base, which then remembers the files among the sources."""
    names, attributes, tags = sources[0].feature_names, _attributes(sources, base), tags_of(sources)
    if base is None:
        with create_dataset(
            path,
            names,
            columns=list(roles.stored),
            expected_rows=n_rows,
            ingest={**asdict(roles), SOURCES: tags},
            attributes=attributes,
            overwrite=overwrite,
        ) as writer:
            yield writer
        return
    with append_dataset(path, names) as writer:
        if writer.ingest != base.manifest["ingest"]:
            raise Busy(f"{path}: Expected no other writer, got one in between. Run it again.")
        writer.ingest = {**writer.ingest, SOURCES: {**writer.ingest.get(SOURCES, {}), **tags}}
        yield writer


def _open_sources(names: Sequence[str], roles: Roles, base: BinaryDataset | None) -> list[Any]:
    items = base.feature_names if base else basket_items(list(filter(is_baskets, names)))
    opened = [
        open_example(name)
        if name.startswith(PREFIX)
        else open_source(name, roles.options, items=items)
        for name in names
    ]
    for source in opened[1:]:
        _check_same_columns(opened[0], source)
    return opened


def _expanded(pattern: str) -> list[str]:
    return [pattern] if pattern.startswith(PREFIX) else expand_sources([pattern])


def _check_same_columns(first: Any, other: Any) -> None:
    for what in ("feature_names", "column_names"):
        expected, got = getattr(first, what), getattr(other, what)
        if expected != got:
            differ = sorted(set(expected) ^ set(got)) or ["their order"]
            raise DataError(
                f"{other.path}: Expected the columns of {first.path}, got others: "
                f"{', '.join(map(str, differ[:5]))}. Give all sources the same columns."
            )


def _attributes(sources: Sequence[Any], base: BinaryDataset | None) -> Mapping[str, Any]:
    """Give the dataset's attributes: a source may state none, but no others than those before."""
    stated = {s.path: s.attributes for s in sources if getattr(s, "attributes", None)}
    expected: Mapping[str, Any] = base.attributes if base else next(iter(stated.values()), {})
    for path, attributes in stated.items():
        if attributes != expected:
            raise DataError(
                f"{path}: Expected the {' and '.join(attributes)} of the rows before it, "
                "got another. Write it to a dataset of its own."
            )
    return expected


def _count_rows(sources: Sequence[Any], known: int | None) -> int:
    """Equal time bins need the number of rows; a source that does not know is read for it."""
    if known is not None:
        return known
    return sum(
        source.n_rows if source.n_rows is not None else sum(len(b.X) for b in source.batches())
        for source in sources
    )


def ingest_summary(dataset: BinaryDataset, seconds: float) -> dict[str, Any]:
    """Describe a dataset in small values."""
    words = int(dataset.chunks[:, 2].sum())
    padding = 1 - dataset.n_rows / (64 * words)
    warned = dataset.n_segments > 1 and padding > _MOST_PADDING
    text = f"padding takes {padding:.0%} of the bits: segments have few rows within a chunk"
    return {
        "dataset": str(dataset.path),
        "n_rows": dataset.n_rows,
        "n_features": dataset.n_features,
        "n_segments": dataset.n_segments,
        "n_chunks": dataset.n_chunks,
        "columns": list(dataset.column_names),
        "warnings": [text] if warned else [],
        "seconds": round(seconds, 3),
    }


@task(name="write dataset", cache_policy=NO_CACHE, **RETRIES)
def write_stage(
    sources: list[str], dataset: str, roles: Roles, append: bool, overwrite: bool
) -> dict[str, Any]:
    """Read the sources and write the dataset."""
    begun = time.perf_counter()
    with reporting() as progress:
        written = ingest_sources(
            sources, place(dataset), roles, append=append, overwrite=overwrite, progress=progress
        )
    return ingest_summary(written, time.perf_counter() - begun)


@task(name="write what is new", cache_policy=NO_CACHE, **RETRIES)
def write_new_stage(folders: list[str], dataset: str, roles: Roles) -> dict[str, Any]:
    """Read the files that arrived since and append them."""
    begun = time.perf_counter()
    with reporting() as progress:
        written, found = ingest_new(folders, place(dataset), roles, progress)
    log.info(
        "%s: %d new files, %d known, %d still written to",
        *(dataset, len(found.new), found.n_known, len(found.waiting)),
    )
    summary = ingest_summary(written, time.perf_counter() - begun) if written else {}
    return {**summary, **found._asdict()}


@flow(name="ingest", validate_parameters=False)
def ingest(
    sources: list[str],
    dataset: str,
    roles: Mapping[str, Any] | None = None,
    append: bool = False,
    overwrite: bool = False,
    new: bool = False,
) -> dict[str, Any]:
    """Run the stage; `python -m flows.ingest --help` explains the parameters."""
    check_schedule()
    told = Roles.of(roles or {})
    if new:
        return write_new_stage(sources, dataset, told)
    return write_stage(sources, dataset, told, append, overwrite)


@app.default
def main(
    *sources: Annotated[
        str, Parameter(help="Files or URLs, quoted globs, or example:NAME; with --new, folders.")
    ],
    dataset: Annotated[str, Parameter(help="Folder of the dataset to write.")],
    segments: Annotated[
        Whole | None, Parameter(help="Cut the rows into N equal time bins.")
    ] = None,
    segment_by: Annotated[
        str | None, Parameter(help="Column whose value is the row's segment.")
    ] = None,
    split_by: Annotated[
        str | None, Parameter(help="Column whose value is the row's split, such as train or test.")
    ] = None,
    keep: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            show_default=False,
            help="Column to store, such as a label.",
        ),
    ] = (),
    missing: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", help="Further token that means missing, beside empty, NA, NaN, null."
        ),
    ] = (),
    threshold: Annotated[
        float | None, Parameter(help="Binarise: 1 where the value is greater than T.")
    ] = None,
    append: Annotated[bool, Switch, Parameter(help="Add rows to the dataset.")] = False,
    new: Annotated[
        bool,
        Switch,
        Parameter(
            help="Add the files below the folders that were not read yet; the first make the "
            "dataset."
        ),
    ] = False,
    overwrite: Annotated[
        bool, Switch, Parameter(help="Replace the dataset once the new one is whole.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    if append + overwrite + new > 1:
        raise DataError("Expected one of --append, --overwrite and --new, got several.")
    roles = asdict(Roles(segments, segment_by, split_by, keep, missing, threshold))
    summary = with_server(lambda: ingest(list(sources), dataset, roles, append, overwrite, new))
    if json:
        print_json(summary)
    elif "dataset" in summary:
        print_ingest(summary)


if __name__ == "__main__":
    run(app)
