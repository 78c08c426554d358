"""Turns files into a dataset: `python -m flows.ingest SOURCE... --dataset PATH`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.options import Json, Switch, Whole, command, local_path, run
from flows.progress import reporting
from flows.readahead import batches_in_order
from flows.roles import Roles, check_stored, remembered, segmenter
from flows.server import with_server
from flows.summary import print_ingest, print_json
from pipeline.progress import Progress, silent
from storage.dataset import BinaryDataset, open_dataset
from storage.errors import DataError
from storage.examples import PREFIX, open_example
from storage.sources import (
    basket_items,
    expand_sources,
    is_baskets,
    open_source,
)
from storage.writer import append_dataset, create_dataset

HELP = """Read binary data and write it bit-packed, ready for `flows.fit`.

Sources: .npy, .npz, .csv, .tsv, .parquet, .mtx, .dat (baskets: item numbers a line), Zarr arrays;
several files or a quoted glob are read in parallel and stored in the order given.

Values are 0, 1, true, false or missing; anything else is refused with its row and column.
"""
EXAMPLES = """Examples:

    python -m flows.ingest votes.csv --dataset votes.zarr --segment-by year --keep party
    python -m flows.ingest 'clicks/2026-*.parquet' --dataset clicks.zarr --segments 24
    python -m flows.ingest tonight.parquet --dataset clicks.zarr --append

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = command("ingest", HELP, EXAMPLES)
_MOST_PADDING = 0.1
_NO_ROLES = Roles()


def ingest_sources(
    patterns: Sequence[str],
    path: Path,
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
    base = open_dataset(path) if append else None
    if base is not None:
        roles = remembered(roles, base)
    opened = _open_sources(patterns, roles, base)
    roles = roles.completed(opened[0])
    if base is not None:
        check_stored(roles, base)
    totals = [source.n_rows for source in opened]
    expected = None if None in totals else sum(totals)
    n_rows = _count_rows(opened, expected) if roles.segments else expected
    names = opened[0].feature_names
    attributes = _attributes(opened, base)
    if base is None:
        writing = create_dataset(
            path,
            names,
            columns=list(roles.stored),
            expected_rows=n_rows,
            ingest=asdict(roles),
            attributes=attributes,
            overwrite=overwrite,
        )
    else:
        writing = append_dataset(path, names)
    with writing as writer:
        segment = segmenter(roles, n_rows, base)
        done = 0
        progress("ingest", done, n_rows or 0, done)
        for batch in batches_in_order(opened):
            columns = {stored: batch.columns[name] for stored, name in roles.stored.items()}
            writer.add(replace(batch, columns=columns), segment(batch, done))
            done += len(batch.X)
            progress("ingest", done, n_rows or 0, done)
    return open_dataset(path)


def _open_sources(patterns: Sequence[str], roles: Roles, base: BinaryDataset | None) -> list[Any]:
    names = [name for pattern in patterns for name in _expanded(pattern)]
    if not names:
        raise DataError("Expected at least one source, got none.")
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


@task(name="write dataset", cache_policy=NO_CACHE)
def write_stage(
    sources: list[str], dataset: str, roles: Mapping[str, Any], append: bool, overwrite: bool
) -> dict[str, Any]:
    """Read the sources and write the dataset."""
    begun = time.perf_counter()
    with reporting() as progress:
        written = ingest_sources(
            sources,
            local_path(dataset),
            Roles(**roles),
            append=append,
            overwrite=overwrite,
            progress=progress,
        )
    return ingest_summary(written, time.perf_counter() - begun)


@flow(name="ingest", validate_parameters=False)
def ingest(
    sources: list[str],
    dataset: str,
    roles: Mapping[str, Any] | None = None,
    append: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Run the stage; `python -m flows.ingest --help` explains the parameters."""
    return write_stage(sources, dataset, roles or {}, append, overwrite)


@app.default
def main(
    *sources: Annotated[str, Parameter(help="Files, quoted globs, or example:NAME.")],
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
    overwrite: Annotated[
        bool, Switch, Parameter(help="Replace the dataset once the new one is whole.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    if append and overwrite:
        raise DataError("--append: Expected no --overwrite beside it, got both.")
    roles = Roles(segments, segment_by, split_by, keep, missing, threshold)
    summary = with_server(lambda: ingest(list(sources), dataset, asdict(roles), append, overwrite))
    if json:
        print_json(summary)
    else:
        print_ingest(summary)


if __name__ == "__main__":
    run(app)
