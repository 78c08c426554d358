"""Read sources and write them as a dataset, or append them to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from flows.data.columns import (
    SOURCES_KEY,
    ColumnRoles,
    check_stored_columns,
    make_segmenter,
    merge_with_stored_roles,
    read_known_sources,
)
from flows.data.readahead import iter_batches_in_order
from pipeline.executors.progress import Progress, ignore_progress
from storage.dataset.chunk_writer import DatasetWriter
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import (
    append_dataset,
    check_dataset_target,
    check_feature_names,
    create_dataset,
)
from storage.errors import DataError, FolderInUseError
from storage.examples.examples import EXAMPLE_PREFIX, open_example
from storage.sources import (
    NewFiles,
    ReadOptions,
    Source,
    collect_tags,
    expand_sources,
    find_basket_items,
    find_new_files,
    format_plain_map,
    is_basket_file,
    open_long_tables,
    open_source,
)
from storage.stores.locations import MANIFEST_NAME, AnyPath

_DEFAULT_ROLES = ColumnRoles()


@dataclass(frozen=True)
class IngestJob:
    """Sources that go together, opened, and what is to be made of them.

    Attributes
    ----------
    sources
        In the order of their rows; none if nothing is new.
    path
        The dataset's folder.
    roles
        What the columns are for.
    base
        The dataset to which rows are added.
    overwrite
        Replace a dataset once the new one is whole.
    arrivals
        What was found below folders, if those were searched.
    """

    sources: Sequence[Any]
    path: AnyPath
    roles: ColumnRoles
    base: BinaryDataset | None = None
    overwrite: bool = False
    arrivals: NewFiles | None = None


def ingest_sources(
    patterns: Sequence[str],
    path: AnyPath,
    roles: ColumnRoles = _DEFAULT_ROLES,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Progress = ignore_progress,
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
    return write_rows(open_sources(patterns, path, roles, append, overwrite), progress)


def open_sources(
    patterns: Sequence[str], path: AnyPath, roles: ColumnRoles, append: bool, overwrite: bool
) -> IngestJob:
    """Refuse what can be refused before a row is read.

    Raises
    ------
    DataError
        If a source cannot be used, or the path is taken.
    """
    names = [name for pattern in patterns for name in _expand_pattern(pattern)]
    if not names:
        raise DataError("Expected at least one source, got none.")
    base = open_dataset(path) if append else None
    return _open_job(names, IngestJob((), path, roles, base, overwrite))


def open_new_sources(folders: Sequence[str], path: AnyPath, roles: ColumnRoles) -> IngestJob:
    """Open the files that arrived below folders since; the first make the dataset.

    Raises
    ------
    DataError
        If a file cannot be used, or one that was read before has changed.
    """
    base = open_dataset(path) if (path / MANIFEST_NAME).exists() else None
    found = find_new_files(folders, read_known_sources(base))
    intake = IngestJob((), path, roles, base, arrivals=found)
    return _open_job(found.new, intake) if found.new else intake


def _open_job(names: Sequence[str], intake: IngestJob) -> IngestJob:
    """Open sources and complete the roles by what they and the base say."""
    roles, base = intake.roles, intake.base
    if base is not None:
        roles = merge_with_stored_roles(roles, base)
    opened = _open_sources(names, roles, base)
    if roles.drop_constant and base is None:
        roles = replace(roles, drop=(*roles.drop, *find_constant_features(opened)))
        opened = _open_sources(names, roles, base)
    check_feature_names(opened[0].feature_names)
    if isinstance(opened[0], Source):
        opened[0].check_first_rows()
    roles = roles.with_source_columns(opened[0])
    if base is not None:
        check_stored_columns(roles, base)
    else:
        check_dataset_target(intake.path, intake.overwrite)
    return replace(intake, sources=opened, roles=roles)


def write_rows(intake: IngestJob, progress: Progress) -> BinaryDataset:
    """Write the rows of all sources, at once or not at all: which they were is in the manifest.

    Raises
    ------
    DataError
        If a value cannot be used; nothing is left behind then.
    """
    opened, roles = intake.sources, intake.roles
    totals = [source.n_rows for source in opened]
    expected = None if None in totals else sum(totals)
    n_rows = _count_rows(opened, expected) if roles.segments else expected
    with _open_writer(intake, n_rows) as writer:
        segment = make_segmenter(roles, n_rows, intake.base)
        done = n_ones = n_seen = 0
        progress("ingest", done, n_rows or 0, done)
        for batch in iter_batches_in_order(opened):
            columns = {
                stored: batch.columns[name] for stored, name in roles.per_row_columns.items()
            }
            writer.add(replace(batch, columns=columns), segment(batch, done))
            done += len(batch.X)
            if roles.maps:
                n_ones += int(batch.X.sum())
                n_seen += batch.X.size if batch.observed is None else int(batch.observed.sum())
            progress("ingest", done, n_rows or 0, done)
        if roles.maps and intake.base is None and n_ones in (0, n_seen):
            raise DataError(
                f"--map, --yes: Expected values that are 1 and values that are 0, got {n_seen:,} "
                f"that are all {int(n_ones > 0)}. Check the map: "
                f"{'; '.join(map(format_plain_map, roles.maps))}."
            )
    return open_dataset(intake.path)


@contextmanager
def _open_writer(intake: IngestJob, n_rows: int | None) -> Iterator[DatasetWriter]:
    """Write a new dataset or to the base, which then remembers the files among the sources."""
    sources, path, roles, base = intake.sources, intake.path, intake.roles, intake.base
    names, attributes, tags = (
        sources[0].feature_names,
        _merge_attributes(sources, base),
        collect_tags(sources),
    )
    if base is None:
        with create_dataset(
            path,
            names,
            columns=list(roles.per_row_columns),
            expected_rows=n_rows,
            ingest={**asdict(roles), SOURCES_KEY: tags},
            attributes=attributes,
            overwrite=intake.overwrite,
        ) as writer:
            yield writer
        return
    with append_dataset(path, names) as writer:
        if writer.ingest != base.manifest["ingest"]:
            raise FolderInUseError(
                f"{path}: Expected no other writer, got one in between. Run it again."
            )
        writer.ingest = {**writer.ingest, SOURCES_KEY: {**read_known_sources(base), **tags}}
        yield writer


def _open_sources(
    names: Sequence[str], roles: ColumnRoles, base: BinaryDataset | None
) -> list[Any]:
    items = base.feature_names if base else find_basket_items(list(filter(is_basket_file, names)))
    options = replace(roles.read_options, is_append=base is not None)
    _check_example_options(names, options)
    if roles.long:
        known = base.feature_names if base else None
        return [open_long_tables(names, roles.long, roles.duplicates, options, known)]
    opened = [
        open_example(name)
        if name.startswith(EXAMPLE_PREFIX)
        else open_source(name, options, items=items)
        for name in names
    ]
    for source in opened[1:]:
        _check_same_columns(opened[0], source)
    return opened


def _check_example_options(names: Sequence[str], options: ReadOptions) -> None:
    """Examples are made as they are."""
    told = {"--map": options.maps, "--features": options.features, "--drop": options.drop}
    for option, values in told.items():
        if values and (made := [name for name in names if name.startswith(EXAMPLE_PREFIX)]):
            raise DataError(f"{option}: Expected a file beside it, got {made[0]}.")


def find_constant_features(sources: Sequence[Any]) -> tuple[str, ...]:
    """Name the features that have one value alone, or none, in all rows of all sources."""
    names = sources[0].feature_names
    has_one, has_zero = np.zeros((2, len(names)), np.bool_)
    for batch in iter_batches_in_order(sources):
        ones = batch.X != 0
        has_one |= ones.any(axis=0)
        zeros = ~ones if batch.observed is None else ~ones & (batch.observed != 0)
        has_zero |= zeros.any(axis=0)
    return tuple(names[k] for k in np.flatnonzero(~(has_one & has_zero)))


def _expand_pattern(pattern: str) -> list[str]:
    return [pattern] if pattern.startswith(EXAMPLE_PREFIX) else expand_sources([pattern])


def _check_same_columns(first: Any, other: Any) -> None:
    for what in ("feature_names", "column_names"):
        expected, got = getattr(first, what), getattr(other, what)
        if expected != got:
            differ = sorted(set(expected) ^ set(got)) or ["their order"]
            raise DataError(
                f"{other.path}: Expected the columns of {first.path}, got others: "
                f"{', '.join(map(str, differ[:5]))}. Give all sources the same columns."
            )


def _merge_attributes(sources: Sequence[Any], base: BinaryDataset | None) -> Mapping[str, Any]:
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
        source.n_rows if source.n_rows is not None else sum(len(b.X) for b in source.iter_batches())
        for source in sources
    )


_MAX_PADDING = 0.1
_MAX_NAMES = 5
_MIN_DISTINCT_SHARE = (
    0.9  # share of the rows with values of their own, from which on values are names
)
_MIN_ROWS, _MAX_ROWS_SEARCHED = 20, 200_000  # rows: at least, and about


def summarize_dataset(dataset: BinaryDataset, seconds: float) -> dict[str, Any]:
    """Describe a dataset in small values."""
    words = int(dataset.chunks[:, 2].sum())
    padding = 1 - dataset.n_rows / (64 * words)
    warned = dataset.n_segments > 1 and padding > _MAX_PADDING
    text = f"padding takes {padding:.0%} of the bits: segments have few rows within a chunk"
    warnings = [text] if warned else []
    return {
        "dataset": str(dataset.path),
        "n_rows": dataset.n_rows,
        "n_features": dataset.n_features,
        "n_segments": dataset.n_segments,
        "n_chunks": dataset.n_chunks,
        "columns": list(dataset.column_names),
        "left_out": list(dataset.manifest["ingest"].get("drop", ())),
        "warnings": [
            *warnings,
            *_warn_about_single_row_segments(dataset),
            *_warn_about_duplicate_names(dataset),
        ],
        "seconds": round(seconds, 3),
    }


def _warn_about_single_row_segments(dataset: BinaryDataset) -> list[str]:
    """Name the segments of one row, from which models of segments learn nothing."""
    _, segments, _, rows = dataset.blocks.T
    lone = np.flatnonzero(np.bincount(segments, rows, dataset.n_segments) == 1)
    if not len(lone):
        return []
    shown = _format_names([dataset.segment_names[segment] for segment in lone])
    return [f"segments of one row: {shown}; models that need segments leave them out"]


def _warn_about_duplicate_names(dataset: BinaryDataset) -> list[str]:
    """Tell of columns that name the rows, but several by one value."""
    shared = {name: _find_duplicate_names(dataset, name) for name in dataset.column_names}
    return [
        f"values of {name} that several rows have: {_format_names(values)}; if they name the rows, "
        "correct them"
        for name, values in shared.items()
        if values
    ]


def _find_duplicate_names(dataset: BinaryDataset, name: str) -> list[str]:
    """Give the values of several rows, if nearly all rows have one of their own; by the first."""
    are_names = name == _find_row_column(dataset)
    if not (are_names or _can_be_names(dataset, name)):
        return []
    counts = Counter(
        value
        for key in range(1 + int(np.searchsorted(dataset.chunks[1:, 0], _MAX_ROWS_SEARCHED)))
        for value in dataset.decode_texts(
            name, dataset.read_row_labels(key, [name])[1][name]
        ).tolist()
    )
    shared = [str(value) for value, n in counts.items() if n > 1 and value != ""]
    return shared if are_names or len(counts) > _MIN_DISTINCT_SHARE * counts.total() else []


def _find_row_column(dataset: BinaryDataset) -> str | None:
    """Give the column that a long table calls its row."""
    if not (long := dataset.manifest["ingest"].get("long")):
        return None
    from storage.sources.long_lines import parse_long_columns  # which imports Arrow

    return parse_long_columns(long).row


def _can_be_names(dataset: BinaryDataset, name: str) -> bool:
    """Leave out numbers that were measured, and texts of which there are too few."""
    if dataset.n_rows < _MIN_ROWS:
        return False
    if name in dataset.levels:
        return dataset.levels[name].pages[-1][0] > _MIN_DISTINCT_SHARE * dataset.n_rows
    return str(dataset.manifest["columns"][name]["kind"]) == "int"


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(map(repr, names[:_MAX_NAMES]))}{more}"
