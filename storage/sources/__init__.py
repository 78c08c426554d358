"""Readers of binary data: each opens cheaply and streams batches of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from glob import glob, has_magic
from importlib import import_module
from pathlib import Path

from storage.errors import DataError
from storage.sources.arrays import open_npy, open_npz
from storage.sources.base import Batch, Source
from storage.sources.baskets import basket_items, open_baskets
from storage.sources.columns import with_choice
from storage.sources.folders import folder_columns, is_partitioned, with_folder_columns
from storage.sources.matrix_market import open_matrix_market
from storage.sources.new_files import Arrivals, arrivals, tags_of
from storage.sources.remote import matching, open_remote
from storage.sources.spool import Duplicates
from storage.sources.value_codes import ReadOptions
from storage.sources.value_maps import map_text, parse_map, plain_map
from storage.sources.zarr_arrays import is_zarr, open_zarr
from storage.stores.object_path import is_url, object_path

__all__ = [
    "Arrivals",
    "Batch",
    "Duplicates",
    "ReadOptions",
    "Source",
    "basket_items",
    "expand_sources",
    "is_baskets",
    "map_text",
    "new_files",
    "open_long",
    "open_source",
    "parse_map",
    "plain_map",
    "tags_of",
]


def _opener(module: str, function: str) -> Callable[[str, ReadOptions], Source]:
    """Open by a module that is imported when it is needed: what it imports takes its time."""

    def opened(path: str, options: ReadOptions) -> Source:
        found = getattr(import_module(f"storage.sources.{module}"), function)
        source: Source = found(path, options)
        return source

    return opened


_CSV = _opener("csv", "open_csv")
_STATISTICS = _opener("records", "open_statistics")
_OPENERS: dict[str, Callable[[str, ReadOptions], Source]] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".csv": _CSV,
    ".csv.gz": _CSV,
    ".tsv": _CSV,
    ".tsv.gz": _CSV,
    ".parquet": _opener("records", "open_parquet"),
    ".mtx": open_matrix_market,
    ".mtx.gz": open_matrix_market,
    ".dat": open_baskets,
    ".dat.gz": open_baskets,
    ".xlsx": _opener("records", "open_excel"),
    ".sav": _STATISTICS,
    ".zsav": _STATISTICS,
    ".dta": _STATISTICS,
    ".bed": _opener("genotypes", "open_bed"),
    ".h5ad": _opener("cells", "open_cells"),
}
# Whose names lie in files beside them.
_LOCAL = (".bed",)


def open_source(
    path: str, options: ReadOptions | None = None, items: Sequence[str] | None = None
) -> Source:
    """Open a source by its suffix: reads headers only, of baskets without `items` all.

    Parameters
    ----------
    path
        A file or its URL, or the directory of a Zarr array.
    options
        How values become bits and which columns are not features.
    items
        The common items of several basket files, see `basket_items`; other formats name
        their own features and leave it aside.

    Raises
    ------
    DataError
        If the path cannot be read, or its kind is unknown.
    """
    options = options or ReadOptions()
    values = {n: v for n, v in folder_columns(path).items() if n in options.row_columns}
    columns = tuple(name for name in options.row_columns if name not in values)
    opened = _open(path, replace(options, row_columns=columns), items)
    return with_folder_columns(opened if opened.chooses else with_choice(opened), values)


def _open(path: str, options: ReadOptions, items: Sequence[str] | None) -> Source:
    if is_url(path) and _suffix(path) in _LOCAL:
        raise DataError(f"{path}: Expected a file of this machine, got a URL. Download it.")
    if is_url(path) and _suffix(path):
        return open_remote(path, partial(open_source, options=options, items=items))
    place = Path(path)
    if is_url(path):
        raise _unknown(path)
    if not place.exists():
        raise DataError(f"{path}: Expected a file or a Zarr array, got nothing there.")
    if place.is_dir():
        if is_zarr(path):
            return open_zarr(path, options)
        raise _a_folder(place)
    if is_baskets(path):
        return open_baskets(path, options, items)
    suffix = _suffix(path)
    if suffix is None:
        raise _unknown(path)
    return _OPENERS[suffix](path, options)


def open_long(
    paths: Sequence[str],
    long: str,
    duplicates: Duplicates | None,
    options: ReadOptions,
    features: Sequence[str] | None = None,
) -> Source:
    """Open long tables together; see `long_tables.open_long`.

    Raises
    ------
    DataError
        If a file or a line cannot be used.
    """
    from storage.sources import long_tables  # Arrow takes its time to be imported
    from storage.sources.long_lines import parse_long

    columns = parse_long(long)
    return with_choice(long_tables.open_long(paths, columns, options, duplicates, features))


def _a_folder(folder: Path) -> DataError:
    """Say of a folder how to name the files in it, by the kind that most of them are."""
    found = Counter(filter(None, (_suffix(entry.name) for entry in folder.iterdir())))
    hint = f"No file in it ends in {', '.join(_OPENERS)}."
    if found:
        hint = f"Name its files, for example '{folder}/*{found.most_common(1)[0][0]}'."
    return DataError(f"{folder}: Expected a file or a Zarr array, got a directory. {hint}")


def _unknown(path: str) -> DataError:
    return DataError(
        f"{path}: Expected a suffix of {', '.join(_OPENERS)} or a Zarr directory, got "
        f"{Path(path).suffix or 'none'!r}. Convert the file, or rename it."
    )


def is_baskets(path: str) -> bool:
    """Tell whether a path names FIMI baskets, which need a common list of items."""
    return _suffix(path) in (".dat", ".dat.gz")


def expand_sources(patterns: Sequence[str]) -> list[str]:
    """Expand wildcards of paths and URLs, each in sorted order; the arguments keep theirs.

    Raises
    ------
    DataError
        If a path does not exist or a pattern matches nothing.
    """
    return [path for pattern in patterns for path in _expand(pattern)]


def new_files(folders: Sequence[str], known: Mapping[str, str]) -> Arrivals:
    """Find the files below folders or prefixes whose tags are not known yet; see `arrivals`."""
    return arrivals(folders, known, _OPENERS)


def _expand(pattern: str) -> list[str]:
    if is_url(pattern):
        return _expand_url(pattern)
    if Path(pattern).is_dir() and not is_zarr(pattern) and is_partitioned(Path(pattern)):
        return _below(Path(pattern))
    if Path(pattern).exists():
        return [pattern]
    found = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else []
    if found:
        return found
    parent = Path(pattern).parent
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    near = get_close_matches(Path(pattern).name, names, n=1)
    hint = f"Did you mean {str(parent / near[0])!r}?" if near else "Check the path."
    raise DataError(f"{pattern}: Expected an existing path, got nothing there. {hint}")


def _below(folder: Path) -> list[str]:
    """Give the files of a partitioned folder, as arrivals would come."""
    found = new_files([str(folder)], {})
    if not (found.new or found.waiting):
        raise _a_folder(folder)
    return sorted([*found.new, *found.waiting])


def _expand_url(pattern: str) -> list[str]:
    if has_magic(pattern):
        if found := matching(pattern):
            return found
    elif object_path(pattern).is_file():
        return [pattern]
    raise DataError(
        f"{pattern}: Expected a file of the store, got nothing there. "
        f"Name files, for example '{object_path(pattern).root}/folder/*.parquet'."
    )


def _suffix(path: str) -> str | None:
    return next((suffix for suffix in _OPENERS if path.lower().endswith(suffix)), None)
