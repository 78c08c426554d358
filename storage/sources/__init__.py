"""Readers of binary and ordered data: each opens quickly and streams batches of rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from glob import glob, has_magic
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import ZipFile

from storage.errors import DataError
from storage.sources.arrays import open_dense, open_npy, open_sparse, read_member_headers
from storage.sources.base import (
    AbsentFeatures,
    NewFeatures,
    Source,
    SourceUpdates,
    compute_file_tag,
    translate_read_errors,
)
from storage.sources.derived import (
    add_folder_columns,
    arrange_features,
    find_matching_urls,
    is_partitioned,
    open_remote,
    parse_folder_columns,
    select_features,
)
from storage.sources.number_texts import find_basket_items, open_baskets, open_matrix_market
from storage.sources.ordered_levels import (
    check_same_levels,
    find_far_levels,
    make_feature_maps,
    parse_levels,
    parse_nominal,
    parse_ordinal,
    select_occurring_levels,
)
from storage.sources.spool import DuplicateRule
from storage.sources.value_codes import (
    AbsentChunks,
    ReadOptions,
    format_map,
    format_plain_map,
    parse_continuous,
    parse_map,
)
from storage.sources.zarr_arrays import is_zarr, open_zarr
from storage.stores.local_path import check_is_no_pipe, check_local_path
from storage.stores.object_path import is_url, parse_object_url

if TYPE_CHECKING:
    from storage.sources.long_tables import LongTableSource

__all__ = [
    "AbsentChunks",
    "AbsentFeatures",
    "DuplicateRule",
    "NewFeatures",
    "NewFiles",
    "ReadOptions",
    "Source",
    "SourceUpdates",
    "arrange_features",
    "check_same_levels",
    "collect_tags",
    "expand_sources",
    "find_basket_items",
    "find_far_levels",
    "find_new_files",
    "format_map",
    "format_plain_map",
    "is_basket_file",
    "make_feature_maps",
    "open_long_tables",
    "open_source",
    "parse_continuous",
    "parse_levels",
    "parse_map",
    "parse_nominal",
    "parse_ordinal",
    "select_occurring_levels",
]

SETTLE_SECONDS = 60.0
"""A local file counts as complete this long after the last write; objects appear complete."""


def _make_lazy_opener(module: str, function: str) -> Callable[[str, ReadOptions], Source]:
    """Return an opener whose module is imported on first use, because its imports are slow."""

    def open_lazily(path: str, options: ReadOptions) -> Source:
        opener = getattr(import_module(f"storage.sources.{module}"), function)
        source: Source = opener(path, options)
        return source

    return open_lazily


def _open_npz(path: str, options: ReadOptions) -> Source:
    """Open an `.npz` archive: sparse, packed or dense."""
    with ZipFile(path) as archive:
        headers = read_member_headers(archive)
        if "format" in headers:
            return open_sparse(path, options, archive, headers)
        return open_dense(path, options, archive, headers)


_OPEN_CSV = _make_lazy_opener("csv", "open_csv")
_OPEN_STATISTICS = _make_lazy_opener("record_tables", "open_statistics")
_OPENERS: dict[str, Callable[[str, ReadOptions], Source]] = {
    ".npy": open_npy,
    ".npz": _open_npz,
    ".csv": _OPEN_CSV,
    ".csv.gz": _OPEN_CSV,
    ".tsv": _OPEN_CSV,
    ".tsv.gz": _OPEN_CSV,
    ".parquet": _make_lazy_opener("record_tables", "open_parquet"),
    ".mtx": open_matrix_market,
    ".mtx.gz": open_matrix_market,
    ".dat": open_baskets,
    ".dat.gz": open_baskets,
    ".xlsx": _make_lazy_opener("record_tables", "open_excel"),
    ".sav": _OPEN_STATISTICS,
    ".zsav": _OPEN_STATISTICS,
    ".dta": _OPEN_STATISTICS,
    ".bed": _make_lazy_opener("genomics", "open_bed"),
    ".h5ad": _make_lazy_opener("genomics", "open_anndata"),
}
_READ_AS_FRAME = (
    "Read it in Python and pass it on: latentbits.from_dataframe(pandas.READ, path={1!r})."
)
_OTHER_FORMATS = {
    (".h5", ".hdf5", ".hdf", ".he5"): "Open it with h5py in Python and pass one of its arrays on: "
    "latentbits.from_numpy(h5py.File({0!r})[NAME], path={1!r}).",
    (".feather", ".arrow", ".ipc"): _READ_AS_FRAME.replace("READ", "read_feather({0!r})"),
    (".json",): _READ_AS_FRAME.replace("READ", "read_json({0!r})"),
    (".jsonl", ".jsonlines", ".ndjson"): _READ_AS_FRAME.replace(
        "READ", "read_json({0!r}, lines=True)"
    ),
    (".orc",): _READ_AS_FRAME.replace("READ", "read_orc({0!r})"),
    (".sas7bdat", ".xpt"): _READ_AS_FRAME.replace("READ", "read_sas({0!r})"),
    (".por",): _READ_AS_FRAME.replace("READ", "read_spss({0!r})"),
    (".mat",): "Read it in Python and pass a matrix on: "
    "latentbits.from_numpy(scipy.io.loadmat({0!r})[NAME], path={1!r}).",
    (".nc", ".nc4"): "Read it in Python and pass it on: "
    "latentbits.from_dataframe(xarray.open_dataarray({0!r}), path={1!r}).",
    (".rds", ".rda", ".rdata"): "Write the data frame in R with write.csv(DATA, 'data.csv', "
    "row.names = FALSE), and read that file.",
    (".xls", ".xlsb", ".xlsm", ".ods", ".numbers"): "Open it in a spreadsheet program, save it as "
    ".xlsx or .csv, and read that file.",
    (".vcf", ".vcf.gz", ".bcf", ".bgen", ".pgen", ".ped"): "Convert it to .bed with PLINK, and "
    "read the .bed file.",
    (".loom",): "Convert it with anndata.read_loom({0!r}).write_h5ad('data.h5ad'), and read that.",
    (".db", ".sqlite", ".duckdb"): "Export the table to a .parquet or .csv file, and read that.",
    (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".bz2", ".xz", ".zst"): "Unpack it, or compress a "
    "text file with gzip.",
    (".txt", ".tab", ".data", ".asc"): "If it is a table separated by commas or tabs, rename it to "
    ".csv or .tsv.",
    (".parq", ".pq"): "Rename it to .parquet.",
}
"""Ways to read files of formats that have no reader here, by suffix."""
# Formats with names in separate files, which a single download would miss.
_LOCAL_SUFFIXES = (".bed",)


def open_source(
    path: str, options: ReadOptions | None = None, items: Sequence[str] | None = None
) -> Source:
    """Open a source by its suffix; this reads headers only, except for baskets without `items`.

    Parameters
    ----------
    path
        A file or its URL, or the directory of a Zarr array.
    options
        How values become bits, and which columns are not features.
    items
        The common items of several basket files, from `find_basket_items`; other formats ignore it.

    Raises
    ------
    DataError
        If the path cannot be read, or its format is unknown.
    """
    options = options or ReadOptions()
    values = {n: v for n, v in parse_folder_columns(path).items() if n in options.row_columns}
    columns = tuple(name for name in options.row_columns if name not in values)
    with translate_read_errors(path):
        source = _open(path, replace(options, row_columns=columns), items)
    return add_folder_columns(
        source if source.can_select_columns else select_features(source), values
    )


def _open(path: str, options: ReadOptions, items: Sequence[str] | None) -> Source:
    if is_url(path) and _find_suffix(path) in _LOCAL_SUFFIXES:
        raise DataError(f"{path}: this format cannot be read from a URL. Download the file.")
    if is_url(path) and _find_suffix(path):
        return open_remote(path, partial(open_source, options=options, items=items))
    place = Path(path)
    if is_url(path):
        raise _make_unknown_error(path)
    if not check_local_path(place).exists():
        raise DataError(f"{path}: there is no such file or Zarr array.")
    if place.is_dir():
        if is_zarr(path):
            return open_zarr(path, options)
        raise _make_folder_error(place)
    if is_basket_file(path):
        return open_baskets(path, options, items)
    suffix = _find_suffix(path)
    if suffix is None:
        raise _make_unknown_error(path)
    return _OPENERS[suffix](path, options)


def open_long_tables(
    paths: Sequence[str],
    long: str,
    duplicates: DuplicateRule | None,
    options: ReadOptions,
    **target: Any,
) -> LongTableSource:
    """Open long tables together; see `long_tables.open_tables`.

    `target` are the fields of a `long_tables.LongTableTarget`, if lines are added to a dataset.
    """
    from storage.sources import long_tables  # importing Arrow is slow

    columns = long_tables.parse_long_columns(long)
    to = long_tables.LongTableTarget(**target) if target else None
    return long_tables.open_tables(paths, columns, options, duplicates, to)


def _make_folder_error(folder: Path) -> DataError:
    """Return the error for a folder; it suggests a pattern for the most common kind of file."""
    suffixes = Counter(filter(None, (_find_suffix(entry.name) for entry in folder.iterdir())))
    hint = f"No file in it ends in {', '.join(_OPENERS)}."
    if suffixes:
        hint = f"Name its files, for example '{folder}/*{suffixes.most_common(1)[0][0]}'."
    return DataError(f"{folder}: this is a folder, not a file or a Zarr array. {hint}")


def _make_unknown_error(path: str) -> DataError:
    if (way := _explain_other_format(path)) is not None:
        return DataError(f"{path}: this format has no reader here. {way}")
    return DataError(
        f"{path}: the suffix {Path(path).suffix or 'none'!r} is unknown. Convert the file to a "
        f"Zarr array or one of {', '.join(_OPENERS)}, or rename it."
    )


def _explain_other_format(path: str) -> str | None:
    """Return how to read a file of a known format without a reader; None if it is not known."""
    name = path.lower()
    for suffixes, way in _OTHER_FORMATS.items():
        if name.endswith(suffixes):
            return way.format(path, "data.zarr")
    return None


def is_basket_file(path: str) -> bool:
    """Return whether a path names FIMI baskets, which need a common list of items."""
    return _find_suffix(path) in (".dat", ".dat.gz")


def expand_sources(patterns: Sequence[str]) -> list[str]:
    """Expand wildcards of paths and URLs; the matches of each pattern are sorted.

    Raises `DataError` if a path does not exist or a pattern matches nothing.
    """
    return [path for pattern in patterns for path in _expand(pattern)]


def _expand(pattern: str) -> list[str]:
    if is_url(pattern):
        return _expand_url(pattern)
    check_is_no_pipe(check_local_path(Path(pattern)))
    if Path(pattern).is_dir() and not is_zarr(pattern) and is_partitioned(Path(pattern)):
        return _list_partitioned_files(Path(pattern))
    if Path(pattern).exists():
        return [pattern]
    matches = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else []
    if matches:
        return matches
    parent = Path(pattern).parent
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    near = get_close_matches(Path(pattern).name, names, n=1)
    hint = f"Did you mean {str(parent / near[0])!r}?" if near else "Check the path."
    raise DataError(f"{pattern}: there is no such path. {hint}")


def _list_partitioned_files(folder: Path) -> list[str]:
    """List the files of a partitioned folder, in the order of new files."""
    files = find_new_files([str(folder)], {})
    if not (files.new or files.waiting):
        raise _make_folder_error(folder)
    return sorted([*files.new, *files.waiting])


def _expand_url(pattern: str) -> list[str]:
    if has_magic(pattern):
        if matches := find_matching_urls(pattern):
            return matches
    elif parse_object_url(pattern).is_file():
        return [pattern]
    raise DataError(
        f"{pattern}: the store has no such file. "
        f"Name files, for example '{parse_object_url(pattern).root}/folder/*.parquet'."
    )


def _find_suffix(path: str) -> str | None:
    return next((suffix for suffix in _OPENERS if path.lower().endswith(suffix)), None)


class SourceFile(NamedTuple):
    """A file by its absolute path or URL, and a tag that changes with its content.

    `written` is the time of the last write, in seconds since 1970; 0 for an object.
    """

    path: str
    tag: str
    written: float = 0.0


class NewFiles(NamedTuple):
    """New files below some folders, sorted by name; files in `waiting` may still be written to.

    `n_known` is the number of files read before.
    """

    new: list[str]
    waiting: list[str]
    n_known: int


def find_new_files(folders: Sequence[str], known_tags: Mapping[str, str]) -> NewFiles:
    """Find the files below folders, or prefixes such as `s3://bucket/in`, that are new.

    `known_tags` are the tags of the files read before, by path. Other suffixes, and paths with a
    part that starts with `.` or `_`, are ignored. Raises `DataError` if a folder does not exist, or
    a file that was read before has changed.
    """
    files = [file for folder in folders for file in _list_data_files(folder)]
    for file in files:
        if known_tags.get(file.path, file.tag) != file.tag:
            raise DataError(
                f"{file.path}: the file has changed since it was ingested. Write new rows to "
                "another file, or ingest all files again with {overwrite}."
            )
    new = [file for file in files if file.path not in known_tags]
    settled = time.time() - SETTLE_SECONDS
    return NewFiles(
        [file.path for file in new if file.written <= settled],
        [file.path for file in new if file.written > settled],
        len(files) - len(new),
    )


def collect_tags(sources: Iterable[Source]) -> dict[str, str]:
    """Return the tags of the files of opened sources, by absolute path or URL."""
    tags = (getattr(source, "tags", {}) for source in sources)  # examples have none
    return {path: tag for by_path in tags for path, tag in by_path.items()}


def _list_data_files(folder: str) -> list[SourceFile]:
    """List the data files below a folder, sorted by name."""
    files = _list_objects(folder) if is_url(folder) else _list_local_files(Path(folder))
    by_name = {name: file for name, file in files if _find_suffix(name)}
    hidden = {name for name in by_name if any(part[:1] in "._" for part in name.split("/"))}
    return [by_name[name] for name in sorted(by_name.keys() - hidden)]


def _list_objects(url: str) -> list[tuple[str, SourceFile]]:
    folder = parse_object_url(url)
    start = len(folder.key) + 1
    files = [
        (key[start:], SourceFile(f"{folder.root}/{key}", tag))
        for key, tag in folder.list_tags().items()
    ]
    if not files and folder.is_file():
        raise _make_no_folder_error(url)
    return files


def _list_local_files(folder: Path) -> list[tuple[str, SourceFile]]:
    if not folder.is_dir():
        raise _make_no_folder_error(str(folder))
    files = (path for path in folder.rglob("*") if path.is_file())
    return [
        (
            path.relative_to(folder).as_posix(),
            SourceFile(str(path.resolve()), compute_file_tag(path), path.stat().st_mtime),
        )
        for path in files
    ]


def _make_no_folder_error(path: str) -> DataError:
    return DataError(
        f"{path}: this is not a folder. Check the path, or leave out {{new}} to read one file."
    )
