"""Read sources and write them as a dataset, or append them to one."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.cli.summary import join_names
from flows.data.collapse import FREQUENCY, collapse_rows
from flows.data.columns import (
    SOURCES_KEY,
    WARNINGS_KEY,
    ColumnRoles,
    check_stored_columns,
    make_segmenter,
    merge_with_stored_roles,
    read_known_sources,
    read_row_names,
)
from flows.running.resources import keep_freed_memory
from pipeline.executors.base import iter_results_in_order
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.words import BITS_BY_WORD
from storage.dataset.batches import RowBatch, count_bits
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.feature_levels import BINARY_LEVELS, MAX_LEVELS, format_levels
from storage.dataset.updates import check_same_labels, find_rows
from storage.dataset.writer import (
    DatasetWriter,
    append_dataset,
    check_dataset_target,
    check_feature_names,
    create_dataset,
)
from storage.errors import DataError, FolderInUseError
from storage.examples import EXAMPLE_PREFIX, open_example
from storage.quoting import quote, quote_raw, split_quoted, unquote
from storage.read_ahead import read_ahead
from storage.sources import (
    AbsentFeatures,
    NewFeatures,
    NewFiles,
    ReadOptions,
    Source,
    SourceUpdates,
    arrange_features,
    check_same_levels,
    collect_tags,
    expand_sources,
    find_basket_items,
    find_far_levels,
    find_new_files,
    format_plain_map,
    is_basket_file,
    make_feature_maps,
    open_long_tables,
    open_source,
    select_occurring_levels,
)
from storage.sources.value_codes import MISSING, ValueMap
from storage.stores.locations import MANIFEST_NAME, AnyPath

_DEFAULT_ROLES = ColumnRoles()
_MAX_PADDING = 0.1
_MAX_NAMES = 5
_SPOOL_BYTES = 64 << 20  # of sources that are read ahead
_MIN_DISTINCT_SHARE = 0.9
"""A column names the rows if at least this share of its values are distinct."""
_MIN_ROWS, _MAX_ROWS_SEARCHED = 20, 200_000


class AppendRules(NamedTuple):
    """What happens to features of only the dataset or the files, and to known rows.

    `merge_by` are the columns that identify rows, joined by commas, if lines of a long table may
    add values to rows of the dataset; else None.
    """

    new_features: NewFeatures = "refuse"
    merge_by: str | None = None
    absent_features: AbsentFeatures = "refuse"


_DEFAULT_RULES = AppendRules()


@dataclass(frozen=True)
class IngestJob:
    """Opened sources, and the dataset to make of them.

    Attributes
    ----------
    sources
        The sources in the order of their rows; empty if there is nothing new.
    base
        The dataset to append to, or None.
    new_files
        The files found in watched folders, or None.
    append_rules
        What happens to features of only the dataset or the files, and to known rows.
    ignored_features
        New features of wide tables that are left out.
    """

    sources: Sequence[Any]
    path: AnyPath
    roles: ColumnRoles
    base: BinaryDataset | None = None
    overwrite: bool = False
    new_files: NewFiles | None = None
    append_rules: AppendRules = _DEFAULT_RULES
    ignored_features: tuple[str, ...] = ()


def ingest_sources(
    patterns: Sequence[str],
    path: AnyPath,
    roles: ColumnRoles = _DEFAULT_ROLES,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Progress = ignore_progress,
) -> BinaryDataset:
    """Read sources and write them as a dataset, or append them to one.

    `patterns` are paths, globs, or `example:NAME`; an append completes `roles` with the recorded
    ones. Raises `DataError` if a source cannot be used; nothing is written then.
    """
    return write_rows(open_sources(patterns, path, roles, append, overwrite), progress)


def open_sources(
    patterns: Sequence[str],
    path: AnyPath,
    roles: ColumnRoles,
    append: bool,
    overwrite: bool,
    append_rules: AppendRules = _DEFAULT_RULES,
) -> IngestJob:
    """Open sources, and check everything that can be checked before reading rows."""
    names = [name for pattern in patterns for name in _expand_pattern(pattern)]
    if not names:
        raise DataError("There is no source. Name at least one file.")
    base = open_dataset(path) if append else None
    job = IngestJob((), path, roles, base, overwrite, append_rules=append_rules)
    return _open_job(names, job)


def open_new_sources(
    folders: Sequence[str],
    path: AnyPath,
    roles: ColumnRoles,
    append_rules: AppendRules = _DEFAULT_RULES,
) -> IngestJob:
    """Open the files in watched folders that the dataset does not contain yet.

    If there is no dataset yet, one is created.
    """
    base = open_dataset(path) if (path / MANIFEST_NAME).exists() else None
    files = find_new_files(folders, read_known_sources(base))
    job = IngestJob((), path, roles, base, new_files=files, append_rules=append_rules)
    return _open_job(files.new, job) if files.new else job


def _open_job(names: Sequence[str], job: IngestJob) -> IngestJob:
    """Open sources, and complete the roles from the sources and the base dataset."""
    roles, base = job.roles, job.base
    if base is not None:
        roles = merge_with_stored_roles(roles, base)
    _check_long_options(job, roles)
    levels = {} if base is None else _find_stored_levels(roles, base)
    sources = _open_sources(names, roles, base, job.append_rules, levels)
    if ignored := () if roles.long else _find_ignored_features(sources, job):
        roles = replace(roles, drop=(*roles.drop, *ignored))
        sources = _open_sources(names, roles, base, job.append_rules, levels)
    if roles.drop_constant and base is None:
        roles = replace(roles, drop=(*roles.drop, *find_constant_features(sources)))
        sources = _open_sources(names, roles, base, job.append_rules, levels)
    if (name := _find_feature_without_levels(sources[0])) is not None:
        if base is not None:
            raise DataError(
                f"{{new_features=add}}: feature {name!r} is new, and its levels are not known, "
                "because {ordinal} was used without a range. Ingest all rows again with "
                "{overwrite} and {ordinal=FEATURES:LOW-HIGH}."
            )
        levels = {**levels, **_find_occurring_levels(sources)}
        if roles.collapse and (continuous := [n for n, own in levels.items() if not own]):
            raise DataError(
                f"{{collapse}}: feature {continuous[0]!r} has more than {MAX_LEVELS} values, so it "
                "is continuous, and few rows with measurements are equal. Leave out {collapse}, "
                f"or leave the feature out with {{drop={quote_raw(continuous[0])}}}."
            )
        sources = _open_sources(names, roles, base, job.append_rules, levels)
    check_feature_names(sources[0].feature_names)
    if isinstance(sources[0], Source):
        sources[0].check_first_rows()
    roles = roles.with_source_columns(sources[0])
    if base is not None:
        check_stored_columns(roles, base)
    else:
        check_dataset_target(job.path, job.overwrite)
    return replace(job, sources=sources, roles=roles, ignored_features=ignored)


def _find_ignored_features(sources: Sequence[Any], job: IngestJob) -> tuple[str, ...]:
    """Return the new features of wide tables, if they are to be left out.

    Raises `DataError` if they are refused.
    """
    base, rule = job.base, job.append_rules.new_features
    if base is None or not isinstance(sources[0], Source) or rule == "add":
        return ()
    known = {*base.feature_names}
    new = tuple(name for name in sources[0].feature_names if name not in known)
    if new and rule == "refuse":
        many = f" (in all, {len(new):,} are not)" if len(new) > 1 else ""
        # Aligned sources have the features of all.
        owner = next(s for s in sources if new[0] in getattr(s, "source", s).feature_names)
        raise DataError(
            f"{owner.path}: {new[0]!r} is not a feature of "
            f"{base.path}{many}. Use {{new_features=add}} or {{new_features=ignore}}, or leave it "
            f"out with {{drop={quote_raw(new[0])}}}."
        )
    return new


def _find_stored_levels(roles: ColumnRoles, base: BinaryDataset) -> dict[str, tuple[str, ...]]:
    """Return the levels of a dataset's features, unless they are binary without such an option.

    Raises `DataError` if the options define other levels.
    """
    options = roles.read_options
    known = base.feature_names, base.feature_levels, base.nominal_features
    check_same_levels(*known, options, str(base.path))
    maps = ((name, options.find_map(name)) for name in base.feature_names)
    declared = [name for name, own in maps if own is not None and (own.levels or own.is_auto)]
    return {**dict.fromkeys(declared, BINARY_LEVELS), **base.feature_levels}


def _find_feature_without_levels(source: Any) -> str | None:
    """Return the first feature whose levels are still to be found, or None."""
    if not isinstance(source, Source):
        return None
    return next(iter(_find_open_maps(source)), None)


def _find_open_maps(source: Source) -> dict[str, ValueMap]:
    """Return the maps of the features whose levels are still to be found, by name."""
    maps = ((name, source.options.find_map(name)) for name in source.feature_names)
    return {n: m for n, m in maps if m is not None and (m.has_candidates or m.is_auto)}


def _find_occurring_levels(sources: Sequence[Source]) -> dict[str, tuple[str, ...]]:
    """Find the levels of ordinal features in all rows of all sources."""
    names, maps = sources[0].feature_names, _find_open_maps(sources[0])
    occurs = np.zeros((len(names), MISSING + 1), np.bool_)
    continuous = [name for name in names if sources[0].options.is_continuous(name)]
    numbers: dict[str, NDArray[np.float32]] = {
        name: np.zeros(0, np.float32) for name, option in maps.items() if option.is_auto
    }
    for batch in iter_batches_in_order(sources):
        codes = batch.X if batch.observed is None else np.where(batch.observed, batch.X, MISSING)
        occurs[np.arange(len(names)), codes] = True
        for name, known in numbers.items():
            if len(known) <= MAX_LEVELS:
                assert batch.numbers is not None
                own = batch.numbers[:, continuous.index(name)]
                numbers[name] = np.union1d(known, own[~np.isnan(own)] + 0)  # −0 becomes 0
    values = {name: [*map(_format_number, known)] for name, known in numbers.items()}
    for name, option in maps.items():
        if not option.is_auto:
            has_code = occurs[names.index(name), : len(option.levels)]
            values[name] = [option.levels[code] for code in np.flatnonzero(has_code)]
    return select_occurring_levels(values, sources[0].options)


def _format_number(number: np.float32) -> str:
    """Return the shortest text of a number in 32 bits; whole numbers have no decimal point."""
    return np.format_float_positional(number, trim="-")


def _check_long_options(job: IngestJob, roles: ColumnRoles) -> None:
    """Check the options of long tables, which may be those recorded in the dataset."""
    append, long = job.append_rules, roles.long
    options = {"duplicates": roles.duplicates, "merge_by": append.merge_by}
    for name, value in options.items():
        if long is None and value is not None:
            raise DataError(f"{{{name}}} needs {{long}}.")
    if long is not None and append.merge_by is not None:
        from storage.sources.long_tables import parse_long_columns  # imports Arrow

        columns = parse_long_columns(long).row
        if sorted(map(unquote, split_quoted(append.merge_by, ","))) != sorted(columns):
            raise DataError(
                f"{{merge_by={append.merge_by}}}: rows are identified by {', '.join(columns)}. "
                f"Use {{merge_by={','.join(map(quote, columns))}}}."
            )


def write_rows(job: IngestJob, progress: Progress) -> BinaryDataset:
    """Write the rows of all sources, or none; the manifest records the sources."""
    keep_freed_memory()
    sources, roles = job.sources, job.roles
    totals = [source.n_rows for source in sources]
    expected = None if None in totals else sum(totals)
    n_rows = _count_rows(sources, expected) if roles.segments else expected
    batches: Iterable[tuple[Any, NDArray[Any] | None]]
    with closing(_iter_labelled_batches(job, n_rows, progress)) as batches:
        if roles.collapse:
            distinct = collapse_rows(batches, sources[0].feature_levels)
            if len(distinct) == 1 and job.base is None:
                raise DataError("{collapse}: all rows are equal, so that only one would be stored.")
            batches, n_rows = distinct.iter_batches(), len(distinct)
        with _open_writer(job, n_rows) as writer:
            if (source := _find_updates(sources)) is not None:
                cells = _iter_updates(job, source), source.duplicates
                writer.update(*cells, source.format_known_row)
            for batch, segments in batches:
                writer.add(batch, segments)
    return open_dataset(job.path)


def _iter_labelled_batches(
    job: IngestJob, n_rows: int | None, progress: Progress
) -> Generator[tuple[RowBatch, NDArray[Any] | None]]:
    """Read the rows of all sources, with their stored columns and the names of their segments."""
    roles = job.roles
    segment = make_segmenter(roles, n_rows, job.base) if n_rows != 0 else None
    done = n_ones = n_observed = 0
    progress("ingest", done, n_rows or 0, done)
    for batch in iter_batches_in_order(job.sources):
        columns = {stored: batch.columns[name] for stored, name in roles.per_row_columns.items()}
        if roles.split_by:
            columns["split"] = read_row_names("split_by", roles.split_by, batch, done)
        yield replace(batch, columns=columns), None if segment is None else segment(batch, done)
        done += len(batch)
        if roles.maps:
            n_ones += count_bits(np.bitwise_or.reduce(batch.levels))
            n_cells = len(batch) * batch.levels.shape[1]
            n_observed += n_cells if batch.mask is None else count_bits(batch.mask)
        progress("ingest", done, n_rows or 0, done)
    if roles.maps and job.base is None and n_ones in (0, n_observed):
        raise DataError(
            f"{{map}}, {{yes}}: all {n_observed:,} values mean {int(n_ones > 0)}, none means "
            f"{int(n_ones == 0)}. Check the map: "
            f"{'; '.join(map(format_plain_map, roles.maps))}."
        )


def _find_updates(sources: Sequence[Any]) -> Any:
    """Return the long table with lines about rows of the dataset, or None."""
    return next((s for s in sources if len(getattr(s, "known_rows", ()))), None)


def _iter_updates(job: IngestJob, source: Any) -> Iterator[SourceUpdates]:
    """Yield values for rows of the dataset; segments and per-row columns must be as stored."""
    roles, base = job.roles, job.base
    assert base is not None
    for batch in source.iter_updates():
        columns = {stored: batch.columns[name] for stored, name in roles.per_row_columns.items()}
        segments = batch.columns[roles.segment_by] if roles.segment_by else None
        check_same_labels(base, batch.rows, columns, segments, source.format_known_row)
        yield batch


@contextmanager
def _open_writer(job: IngestJob, n_rows: int | None) -> Iterator[DatasetWriter]:
    """Create a dataset or append to the base; either way it records the source files."""
    sources, path, roles, base = job.sources, job.path, job.roles, job.base
    names, tags = sources[0].feature_names, collect_tags(sources)
    attributes, listed = _merge_attributes(sources, base), list_source_warnings(job)
    known = base.manifest["ingest"].get(WARNINGS_KEY, []) if base else []
    warnings = {WARNINGS_KEY: [*known, *listed]} if listed else {}
    if base is None:
        with create_dataset(
            path,
            names,
            feature_levels=sources[0].feature_levels,
            nominal_features=sources[0].nominal_features,
            columns=roles.stored_columns,
            expected_rows=n_rows,
            ingest={**roles.to_json(), SOURCES_KEY: tags, **warnings},
            attributes=attributes,
            overwrite=job.overwrite,
        ) as writer:
            yield writer
        return
    in_old_rows: Literal["missing", "zero"] | None = None
    if job.append_rules.new_features == "add":
        columns = sources[0].columns if job.roles.long else None
        in_old_rows = "zero" if columns and columns.value is None else "missing"
    levels = {**base.feature_levels, **sources[0].feature_levels}
    nominal = sources[0].nominal_features
    with append_dataset(path, names, in_old_rows, levels, nominal) as writer:
        if writer.base is None or writer.base.manifest != base.manifest:
            raise FolderInUseError(
                f"{path}: another writer changed the dataset in between. Run the command again."
            )
        known_tags = {**read_known_sources(base), **tags}
        writer.ingest = {**writer.ingest, SOURCES_KEY: known_tags, **warnings}
        yield writer


def _open_sources(
    names: Sequence[str],
    roles: ColumnRoles,
    base: BinaryDataset | None,
    append: AppendRules,
    levels: Mapping[str, tuple[str, ...]],
) -> list[Any]:
    """Open sources; `levels` are those of features that are known before reading."""
    options = roles.read_options
    stated = ((name, options.find_map(name)) for name in levels)
    nominal = {name for name, own in stated if own is not None and own.is_nominal}
    nominal |= base.nominal_features if base else frozenset()
    maps = make_feature_maps(levels, nominal)
    options = replace(options, is_append=base is not None, feature_maps=maps)
    baskets = list(filter(is_basket_file, names))
    items = base.feature_names if base else find_basket_items(baskets, options.encoding)
    _check_example_options(names, options)
    if roles.long:
        target = {}
        if base is not None:
            target = {
                "features": base.feature_names,
                "find_rows": partial(find_rows, base),
                "new_features": append.new_features,
                "can_update": append.merge_by is not None,
            }
        return [open_long_tables(names, roles.long, roles.duplicates, options, **target)]
    sources: list[Any] = []
    for name in names:
        is_example = name.startswith(EXAMPLE_PREFIX)
        source = open_example(name) if is_example else open_source(name, options, items=items)
        if not sources and isinstance(source, Source):  # its levels are those of all sources
            known = source.options.feature_maps.items()
            own = {n: m.levels for n, m in known if m.levels or m.is_continuous}
            maps = make_feature_maps(own, source.nominal_features)
            options = replace(options, feature_maps=maps)
        sources.append(source)
    sources = _align_features(sources, base, append)
    for source in sources:
        _check_same_columns(sources[0], source)
    return sources


def _align_features(
    sources: Sequence[Any], base: BinaryDataset | None, append: AppendRules
) -> list[Any]:
    """Return sources with the same features in one order: those of the dataset, then new ones.

    Raises `DataError` if a source lacks features of the dataset, or of others, that it may not.
    """
    names = dict.fromkeys(base.feature_names if base else sources[0].feature_names)
    if base is not None:
        names |= dict.fromkeys(name for source in sources for name in source.feature_names)
    aligned = []
    for source in sources:
        own = {*source.feature_names}
        absent = [name for name in names if name not in own]
        if base is not None and own.isdisjoint(base.feature_names):
            raise DataError(
                f"{source.path} has no column of a feature of {base.path}, such as "
                f"{base.feature_names[0]!r}. Check the names in its first line."
            )
        if base is not None and append.new_features != "add":  # new ones are refused or left out
            absent = [name for name in base.feature_names if name not in own]
        if base is not None and absent and append.absent_features == "refuse":
            many = f" (in all, {len(absent):,} are absent)" if len(absent) > 1 else ""
            place = base.path if absent[0] in base.feature_names else "the other files"
            raise DataError(
                f"{source.path}: there is no column for the feature {absent[0]!r} of "
                f"{place}{many}. Add it; its values may be missing. Or use "
                "{absent_features=missing}."
            )
        is_alike = base is not None or own == names.keys()
        is_source = isinstance(source, Source)
        aligned.append(arrange_features(source, [*names]) if is_alike and is_source else source)
    return aligned


def _check_example_options(names: Sequence[str], options: ReadOptions) -> None:
    example = next((name for name in names if name.startswith(EXAMPLE_PREFIX)), None)
    kinds = {"continuous": options.has_continuous}
    kinds |= {"levels": any(m.levels for m in options.maps), "map": bool(options.maps)}
    values = {**kinds, "features": options.features, "drop": options.drop}
    for name, value in values.items():
        if value and example:
            raise DataError(f"{{{name}}} cannot be used with {example}, only with files.")


def find_constant_features(sources: Sequence[Any]) -> tuple[str, ...]:
    """Find the features with at most one distinct value in all rows of all sources."""
    names = sources[0].feature_names
    levels = sources[0].feature_levels
    continuous = [k for k, name in enumerate(names) if levels.get(name) == ()]
    highest, lowest = np.zeros(len(names), np.uint8), np.full(len(names), MISSING, np.uint8)
    largest, least = np.full(len(continuous), -np.inf), np.full(len(continuous), np.inf)
    for batch in iter_batches_in_order(sources):
        if batch.numbers is not None:
            np.fmax(largest, np.fmax.reduce(batch.numbers, axis=0, initial=-np.inf), out=largest)
            np.fmin(least, np.fmin.reduce(batch.numbers, axis=0, initial=np.inf), out=least)
        np.maximum(highest, batch.X.max(axis=0, initial=0), out=highest)
        values = batch.X if batch.observed is None else np.where(batch.observed, batch.X, MISSING)
        np.minimum(lowest, values.min(axis=0, initial=MISSING), out=lowest)
    is_constant = lowest >= highest
    is_constant[continuous] = least >= largest
    return tuple(names[k] for k in np.flatnonzero(is_constant))


def _expand_pattern(pattern: str) -> list[str]:
    return [pattern] if pattern.startswith(EXAMPLE_PREFIX) else expand_sources([pattern])


def _check_same_columns(first: Any, other: Any) -> None:
    for attribute in ("feature_names", "column_names"):
        names, other_names = getattr(first, attribute), getattr(other, attribute)
        if differ := sorted(set(names) ^ set(other_names)):
            more = f" and {len(differ) - 5:,} more" if len(differ) > 5 else ""
            raise DataError(
                f"{other.path}: the columns are not the same as in {first.path}: "
                f"{', '.join(map(str, differ[:5]))}{more}. All sources must have the same columns. "
                "If each has features of its own, ingest one, and the next with --append "
                "--new-features add --absent-features missing."
            )
    levels, other_levels = first.feature_levels, other.feature_levels
    if levels != other_levels:
        name = next(n for n in first.feature_names if levels.get(n) != other_levels.get(n))
        own, before = (stated.get(name, BINARY_LEVELS) for stated in (other_levels, levels))
        raise DataError(
            f"{other.path}: feature {name!r} has {format_levels(own)}, but {format_levels(before)} "
            f"in {first.path}. Name them for all sources: "
            f"{{levels={quote(name)}:LOW<MIDDLE<HIGH}}."
        )


def _merge_attributes(sources: Sequence[Any], base: BinaryDataset | None) -> Mapping[str, Any]:
    """Merge the attributes of sources; all attributes must agree with those of earlier rows."""
    stated = {s.path: s.attributes for s in sources if getattr(s, "attributes", None)}
    expected: Mapping[str, Any] = base.attributes if base else next(iter(stated.values()), {})
    for path, attributes in stated.items():
        if attributes != expected:
            raise DataError(
                f"{path}: its attributes ({', '.join(attributes)}) differ from earlier rows. "
                "Write this source to a separate dataset."
            )
    return expected


def _count_rows(sources: Sequence[Any], known_rows: int | None) -> int:
    """Count the rows, for equal time bins; read sources of unknown length for it."""
    if known_rows is not None:
        return known_rows
    return sum(
        source.n_rows if source.n_rows is not None else sum(map(len, source.iter_batches()))
        for source in sources
    )


def summarize_append(job: IngestJob, dataset: BinaryDataset) -> dict[str, Any]:
    """Summarize what a long table, or new features of other files, added to the base dataset."""
    if job.base is None or not job.sources:
        return {}
    source, added = job.sources[0], list(dataset.feature_names[job.base.n_features :])
    if not job.roles.long:
        features = {"added": added, "ignored": [*job.ignored_features]}
        return {f"features_{action}": names for action, names in features.items() if names}
    return {
        "n_rows_added": source.n_rows,
        "n_rows_updated": len(source.known_rows),
        "features_added": added,
        "features_ignored": list(source.ignored_features),
    }


def list_source_warnings(job: IngestJob) -> list[str]:
    """List the warnings of the readers of all sources."""
    sources = (source for source in job.sources if isinstance(source, Source))
    return [warning for source in sources for warning in source.list_warnings()]


def list_words_read(job: IngestJob) -> dict[str, list[str]]:
    """List the words that were read as bits, such as `yes=1`, and texts of columns as missing.

    All sources share their options.
    """
    if not (job.sources and isinstance(job.sources[0], Source)):
        return {"words": [], "missing_texts": []}
    options = job.sources[0].options
    words = [f"{word}={bit}" for word, bit in BITS_BY_WORD.items() if word in options.words_read]
    texts = [f"{name}={text}" for name, text in sorted(options.missing_texts)]
    return {"words": words, "missing_texts": texts}


def warn_about_far_levels(job: IngestJob) -> list[str]:
    """Warn about levels of a new dataset, found or declared by a file, that may mean missing."""
    source = job.sources[0] if job.sources and job.base is None else None
    maps = source.options.feature_maps if isinstance(source, Source) else {}
    far_levels = {id(value_map): find_far_levels(value_map) for value_map in maps.values()}
    found = [(name, far_levels[id(value_map)]) for name, value_map in maps.items()]
    names = [f"{name}={level}" for name, own in found for level in own.values()]
    codes = dict.fromkeys(code for _, own in found for code in own)
    listed = join_names([repr(name) for name in names], _MAX_NAMES)
    options = " ".join(f"--missing {code}" for code in codes)
    text = f"levels that are far from the others: {listed}; if they mean missing, use {options}"
    return [text] * bool(names)


def summarize_dataset(dataset: BinaryDataset) -> dict[str, Any]:
    """Summarize a new dataset, with warnings about its contents."""
    words = int(dataset.chunks[:, 2].sum())
    padding = 1 - dataset.n_rows / (64 * words)
    warnings = []
    if dataset.n_segments > 1 and padding > _MAX_PADDING:
        warnings.append(
            f"padding takes {padding:.0%} of the bits, because segments have few rows per chunk"
        )
    return {
        "dataset": str(dataset.path),
        "n_rows": dataset.n_rows,
        "n_equal_rows": _count_equal_rows(dataset),
        "n_features": dataset.n_features,
        "n_features_with_levels": _count_features_with_levels(dataset),
        "n_nominal_features": len(dataset.nominal_features),
        "n_continuous_features": len(dataset.continuous_features),
        "found_levels": _list_found_levels(dataset),
        "n_segments": dataset.n_segments,
        "n_chunks": dataset.n_chunks,
        "columns": list(dataset.column_names),
        "left_out": list(dataset.manifest["ingest"].get("drop", ())),
        "warnings": [
            *warnings,
            *_warn_about_empty_levels(dataset),
            *_warn_about_constant_numbers(dataset),
            *_warn_about_single_row_segments(dataset),
            *_warn_about_duplicate_names(dataset),
        ],
    }


def _list_found_levels(dataset: BinaryDataset) -> list[dict[str, Any]]:
    """List levels that have no order or were found by `auto`, with the features that have them."""
    options = ColumnRoles(ordinal=tuple(dataset.manifest["ingest"].get("ordinal", ()))).read_options
    found: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for name in dataset.feature_names:
        option, is_nominal = options.find_map(name), name in dataset.nominal_features
        levels = dataset.feature_levels.get(name, BINARY_LEVELS)
        has_words = len(levels) == 2 and levels != BINARY_LEVELS
        if is_nominal or has_words or (option is not None and option.is_auto):
            found.setdefault((is_nominal, levels), []).append(name)
    return [
        {"levels": [*levels], "features": names, "is_nominal": is_nominal}
        for (is_nominal, levels), names in found.items()
    ]


def _count_features_with_levels(dataset: BinaryDataset) -> int:
    """Return the number of features with three or more levels."""
    return sum(len(levels) > len(BINARY_LEVELS) for levels in dataset.feature_levels.values())


def _count_equal_rows(dataset: BinaryDataset) -> int | None:
    """Return the number of rows before equal ones were collapsed; None if they were not."""
    if not dataset.manifest["ingest"].get("collapse"):
        return None
    return int(dataset.column(FREQUENCY).sum())


def _warn_about_empty_levels(dataset: BinaryDataset) -> list[str]:
    """Warn about levels that no row has, although some rows have higher ones."""
    if not _count_features_with_levels(dataset):
        return []
    planes, ones = dataset.planes, dataset.ones().sum(axis=0)
    is_nominal = np.array([name in dataset.nominal_features for name in dataset.feature_names])
    is_empty = (np.diff(planes.features) == 0) & (np.diff(ones) == 0)
    is_empty &= (ones[1:] > 0) & ~is_nominal[planes.features[1:]]
    steps = np.flatnonzero(is_empty)
    features = planes.features[steps]
    names = [
        f"{dataset.feature_names[feature]}={planes.levels[feature][level]}"
        for feature, level in zip(features, steps - planes.firsts[features] + 1, strict=True)
    ]
    listed = join_names([repr(name) for name in names], _MAX_NAMES)
    return [f"no row has these levels, but some rows have higher ones: {listed}"] * bool(names)


def _warn_about_constant_numbers(dataset: BinaryDataset) -> list[str]:
    """Warn about continuous features with at most one value; chunks are read until all have two."""
    features = np.array(dataset.continuous_features)
    least, largest = np.full(len(features), np.inf), np.full(len(features), -np.inf)
    for key in range(dataset.n_chunks):
        if (least < largest).all():
            return []
        numbers = dataset.read_chunk(key).numbers
        assert numbers is not None
        np.fmin(least, np.fmin.reduce(numbers, axis=1, initial=np.inf), out=least)
        np.fmax(largest, np.fmax.reduce(numbers, axis=1, initial=-np.inf), out=largest)
    names = features[least >= largest].tolist()
    listed = join_names([repr(name) for name in names], _MAX_NAMES)
    text = f"models cannot use measurements with a single value or none: {listed}; "
    return [text + "--drop-constant leaves them out"] * bool(names)


def _warn_about_single_row_segments(dataset: BinaryDataset) -> list[str]:
    """Warn about segments of one row, which models of segments cannot use."""
    _, segments, _, rows = dataset.blocks.T
    lone = np.flatnonzero(np.bincount(segments, rows, dataset.n_segments) == 1)
    if not len(lone):
        return []
    names = join_names([repr(dataset.segment_names[segment]) for segment in lone], _MAX_NAMES)
    return [f"segments with a single row: {names}; models that need segments leave them out"]


def _warn_about_duplicate_names(dataset: BinaryDataset) -> list[str]:
    """Warn about columns that name the rows but contain duplicates."""
    duplicates = {name: _find_duplicate_names(dataset, name) for name in dataset.column_names}
    return [
        f"values of {name} that occur in several rows: {join_names(values, _MAX_NAMES)}; correct "
        "them if they name the rows"
        for name, values in duplicates.items()
        if values
    ]


def _find_duplicate_names(dataset: BinaryDataset, name: str) -> list[str]:
    """Find duplicate values, quoted, if a column names the rows: nearly all values are distinct."""
    if not _can_be_names(dataset, name):
        return []
    counts = Counter(
        value
        for key in range(1 + int(np.searchsorted(dataset.chunks[1:, 0], _MAX_ROWS_SEARCHED)))
        for value in dataset.decode_texts(
            name, dataset.read_row_labels(key, [name])[1][name]
        ).tolist()
    )
    duplicates = [repr(str(value)) for value, n in counts.items() if n > 1 and value != ""]
    return duplicates if len(counts) > _MIN_DISTINCT_SHARE * counts.total() else []


def _can_be_names(dataset: BinaryDataset, name: str) -> bool:
    """Return whether a column may name the rows: not for measurements, nor for few texts."""
    if dataset.n_rows < _MIN_ROWS:
        return False
    if name in dataset.levels:
        return dataset.levels[name].pages[-1][0] > _MIN_DISTINCT_SHARE * dataset.n_rows
    return str(dataset.manifest["columns"][name]["kind"]) == "int"


def iter_batches_in_order(sources: Sequence[Any]) -> Iterator[RowBatch]:
    """Yield the batches of all sources in order.

    Sources are read in parallel; those ahead of their turn wait, bit-packed, in temporary files. Of
    a single source, the next batch is read while one is written.
    """
    if len(sources) == 1:
        yield from read_ahead(sources[0].iter_batches())
        return
    from dask.system import CPU_COUNT

    with ThreadPoolExecutor(CPU_COUNT) as pool:
        waiting = iter_results_in_order(
            lambda source: pool.submit(_spool_source, source),
            lambda done: done.result(),
            sources,
            CPU_COUNT + 1,
        )
        for source, spool in zip(sources, waiting, strict=True):
            with spool:
                yield from _iter_spool(source, spool)


def _spool_source(source: Any) -> IO[bytes]:
    """Read a whole source into a temporary file, as a sequence of NumPy arrays."""
    spool = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 (the reader closes it)
    for batch in source.iter_batches():
        columns = (_convert_objects_to_text(batch.columns[name]) for name in source.column_names)
        header = np.array([len(batch), batch.mask is not None, batch.numbers is not None])
        for values in (header, batch.levels, batch.mask, batch.numbers, *columns):
            if values is not None:
                np.save(spool, values, allow_pickle=False)
    return spool


def _iter_spool(source: Any, spool: IO[bytes]) -> Iterator[RowBatch]:
    end = spool.tell()
    spool.seek(0)
    while spool.tell() < end:
        n_rows, has_mask, has_numbers = np.load(spool).tolist()
        levels = np.load(spool)
        mask, numbers = (np.load(spool) if has else None for has in (has_mask, has_numbers))
        columns = {name: np.load(spool) for name in source.column_names}
        yield RowBatch(n_rows, levels, mask, columns, numbers)


def _convert_objects_to_text(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(str) if values.dtype.kind == "O" else values
