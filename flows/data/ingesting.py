"""Reads sources and writes them as a dataset, or as further rows of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from flows.data.readahead import batches_in_order
from flows.data.roles import SOURCES, Roles, check_stored, known_sources, remembered, segmenter
from pipeline.executors.progress import Progress, silent
from storage.dataset.chunk_writer import DatasetWriter
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import (
    append_dataset,
    check_feature_names,
    create_dataset,
    replaced_dataset,
)
from storage.errors import Busy, DataError
from storage.examples.examples import PREFIX, open_example
from storage.sources import (
    Arrivals,
    ReadOptions,
    Source,
    basket_items,
    expand_sources,
    is_baskets,
    new_files,
    open_long,
    open_source,
    plain_map,
    tags_of,
)
from storage.stores.locations import MANIFEST, Place

_NO_ROLES = Roles()


@dataclass(frozen=True)
class Intake:
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
    path: Place
    roles: Roles
    base: BinaryDataset | None = None
    overwrite: bool = False
    arrivals: Arrivals | None = None


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
    return write_rows(open_sources(patterns, path, roles, append, overwrite), progress)


def open_sources(
    patterns: Sequence[str], path: Place, roles: Roles, append: bool, overwrite: bool
) -> Intake:
    """Refuse what can be refused before a row is read.

    Raises
    ------
    DataError
        If a source cannot be used, or the path is taken.
    """
    names = [name for pattern in patterns for name in _expanded(pattern)]
    if not names:
        raise DataError("Expected at least one source, got none.")
    base = open_dataset(path) if append else None
    return _opened(names, Intake((), path, roles, base, overwrite))


def open_new(folders: Sequence[str], path: Place, roles: Roles) -> Intake:
    """Open the files that arrived below folders since; the first make the dataset.

    Raises
    ------
    DataError
        If a file cannot be used, or one that was read before has changed.
    """
    base = open_dataset(path) if (path / MANIFEST).exists() else None
    found = new_files(folders, known_sources(base))
    intake = Intake((), path, roles, base, arrivals=found)
    return _opened(found.new, intake) if found.new else intake


def _opened(names: Sequence[str], intake: Intake) -> Intake:
    """Open sources and complete the roles by what they and the base say."""
    roles, base = intake.roles, intake.base
    if base is not None:
        roles = remembered(roles, base)
    opened = _open_sources(names, roles, base)
    if roles.drop_constant and base is None:
        roles = replace(roles, drop=(*roles.drop, *constant_features(opened)))
        opened = _open_sources(names, roles, base)
    check_feature_names(opened[0].feature_names)
    if isinstance(opened[0], Source):
        opened[0].check_first()
    roles = roles.completed(opened[0])
    if base is not None:
        check_stored(roles, base)
    else:
        replaced_dataset(intake.path, intake.overwrite)
    return replace(intake, sources=opened, roles=roles)


def write_rows(intake: Intake, progress: Progress) -> BinaryDataset:
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
    with _writing(intake, n_rows) as writer:
        segment = segmenter(roles, n_rows, intake.base)
        done = n_ones = n_seen = 0
        progress("ingest", done, n_rows or 0, done)
        for batch in batches_in_order(opened):
            columns = {stored: batch.columns[name] for stored, name in roles.stored.items()}
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
                f"{'; '.join(map(plain_map, roles.maps))}."
            )
    return open_dataset(intake.path)


@contextmanager
def _writing(intake: Intake, n_rows: int | None) -> Iterator[DatasetWriter]:
    """Write a new dataset or to the base, which then remembers the files among the sources."""
    sources, path, roles, base = intake.sources, intake.path, intake.roles, intake.base
    names, attributes, tags = sources[0].feature_names, _attributes(sources, base), tags_of(sources)
    if base is None:
        with create_dataset(
            path,
            names,
            columns=list(roles.stored),
            expected_rows=n_rows,
            ingest={**asdict(roles), SOURCES: tags},
            attributes=attributes,
            overwrite=intake.overwrite,
        ) as writer:
            yield writer
        return
    with append_dataset(path, names) as writer:
        if writer.ingest != base.manifest["ingest"]:
            raise Busy(f"{path}: Expected no other writer, got one in between. Run it again.")
        writer.ingest = {**writer.ingest, SOURCES: {**known_sources(base), **tags}}
        yield writer


def _open_sources(names: Sequence[str], roles: Roles, base: BinaryDataset | None) -> list[Any]:
    items = base.feature_names if base else basket_items(list(filter(is_baskets, names)))
    options = replace(roles.options, goes_on=base is not None)
    _refuse_for_examples(names, options)
    if roles.long:
        known = base.feature_names if base else None
        return [open_long(names, roles.long, roles.duplicates, options, known)]
    opened = [
        open_example(name) if name.startswith(PREFIX) else open_source(name, options, items=items)
        for name in names
    ]
    for source in opened[1:]:
        _check_same_columns(opened[0], source)
    return opened


def _refuse_for_examples(names: Sequence[str], options: ReadOptions) -> None:
    """Examples are made as they are."""
    told = {"--map": options.maps, "--features": options.features, "--drop": options.drop}
    for option, values in told.items():
        if values and (made := [name for name in names if name.startswith(PREFIX)]):
            raise DataError(f"{option}: Expected a file beside it, got {made[0]}.")


def constant_features(sources: Sequence[Any]) -> tuple[str, ...]:
    """Name the features that have one value alone, or none, in all rows of all sources."""
    names = sources[0].feature_names
    has_one, has_zero = np.zeros((2, len(names)), np.bool_)
    for batch in batches_in_order(sources):
        ones = batch.X != 0
        has_one |= ones.any(axis=0)
        zeros = ~ones if batch.observed is None else ~ones & (batch.observed != 0)
        has_zero |= zeros.any(axis=0)
    return tuple(names[k] for k in np.flatnonzero(~(has_one & has_zero)))


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
