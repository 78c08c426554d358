"""Order entries by row in a temporary file, which holds packed bit matrices."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch
from storage.errors import DataError
from storage.read_ahead import read_ahead
from storage.sources.base import Source
from storage.sources.value_codes import INVALID, MISSING, ValueCodes, encode_numbers
from storage.stores.leases import Lock, LockedError
from storage.stores.locations import LOCK_SUFFIX

_PREFIX = f"latentbits-{socket.gethostname()}-"
"""Machines may share the parent folder, but perhaps not their locks."""

DuplicateRule = Literal["last", "any"]
"""How duplicate entries count: the last one, or the highest; 1 if any is 1, else 0 if any is 0."""
# Up to this many cells per entry, the whole range of cells is unpacked.
_DENSE_CELLS_PER_ENTRY = 16
# Rows, columns and values of some entries, (n_entries,) each; rows and columns count from 0.
Entries = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
# Cells and valid codes of some entries, (n_entries,) each. Cells are numbered row by row, with
# `count_row_cells` per row.
CellCodes = tuple[NDArray[np.int64], ValueCodes]
# Cells of some entries, and the values of those of continuous features, (n_entries,) each.
CellNumbers = tuple[NDArray[np.int64], NDArray[np.float32]]


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder; if its process is killed, a later one on this machine deletes it."""

    def __init__(self) -> None:
        _delete_abandoned_folders()
        while True:
            super().__init__(prefix=_PREFIX)
            try:
                lock = _lock_folder(Path(self.name))
            except (LockedError, FileNotFoundError):
                continue  # another process found it without a lock, and deletes or deleted it
            except OSError:
                return  # a file system without locks, where folders are never found abandoned
            # The system releases the lock when the process dies, however that happens.
            self._release = weakref.finalize(self, lock.release)
            if Path(self.name).exists():
                return
            self._release()

    def cleanup(self) -> None:
        """Delete the folder, and release its lock."""
        super().cleanup()
        if (release := getattr(self, "_release", None)) is not None:
            release()


def _lock_folder(folder: Path) -> Lock:
    """Lock a folder of this user.

    Raises `OSError` if it is another user's, another process has locked it, or there are no locks.
    """
    if folder.is_symlink() or (hasattr(os, "getuid") and folder.lstat().st_uid != os.getuid()):
        raise PermissionError(str(folder))
    return Lock(folder.with_name(folder.name + LOCK_SUFFIX))


def _delete_abandoned_folders() -> None:
    """Delete the folders of processes that were killed: they exist, but nobody holds the lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.suffix != LOCK_SUFFIX:
                lock = _lock_folder(folder)
                try:
                    shutil.rmtree(folder)
                finally:
                    lock.release()


@dataclass(frozen=True)
class _BitPlanes:
    """The bits of each cell's rank, from the lowest to the highest; two suffice for 0 and 1."""

    planes: tuple[NDArray[np.uint8], ...]

    def add(
        self, cells: NDArray[np.int64], codes: ValueCodes, duplicates: DuplicateRule | None = None
    ) -> int | None:
        """Store codes; without a rule for duplicates, return a cell with two entries, if any."""
        if duplicates == "last":
            cells, codes = _keep_last_entries(cells, codes)
        part, places = _locate_cells(cells)
        new = _rank_codes(codes, len(self.planes))
        ranks = self._read_ranks(part)
        n_before = np.count_nonzero(ranks)
        if duplicates == "any":
            np.maximum.at(ranks, places, new)
        else:
            ranks[places] = new
        if duplicates is None and np.count_nonzero(ranks) < n_before + len(cells):
            return _find_duplicate(cells, self._read_ranks(part)[places] > 0)
        for k, plane in enumerate(self.planes):
            plane[part] = np.packbits(ranks & ranks.dtype.type(1 << k))
        return None

    def _read_ranks(self, part: slice | NDArray[np.int64]) -> NDArray[Any]:
        ranks = np.unpackbits(self.planes[0][part])
        if len(self.planes) > 8:
            ranks = ranks.astype(np.uint16)
        for k, plane in enumerate(self.planes[1:], start=1):
            ranks |= np.unpackbits(plane[part]).astype(ranks.dtype, copy=False) << k
        return ranks

    def read_updates(
        self, part: slice, n_rows: int, n_features: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield levels, values and explicitly missing values of the rows in a range of bytes."""
        low, high, *more = (plane[part].reshape(n_rows, -1) for plane in self.planes)
        yield _unpack_levels(low & high, more, n_features)
        for bits in (high, low & ~high):
            yield np.unpackbits(bits, 1, n_features)

    def read_codes(self, part: slice, n_rows: int, n_features: int, absent: int) -> ValueCodes:
        """Return the codes of the rows in a range of bytes."""
        low, high, *more = (plane[part].reshape(n_rows, -1) for plane in self.planes)
        missing = ~high if absent == MISSING else low & ~high
        codes = _unpack_levels(low & high, more, n_features)
        if missing.any():
            codes[np.unpackbits(missing, 1, n_features) != 0] = MISSING
        return codes


def _unpack_levels(
    ones: NDArray[np.uint8], more: Sequence[NDArray[np.uint8]], n_features: int
) -> NDArray[np.uint8]:
    """Return levels, given their lowest and their further bits, packed by row."""
    levels = np.unpackbits(ones, 1, n_features)
    for k, bits in enumerate(more, start=1):
        levels |= np.unpackbits(bits, 1, n_features) << k
    return levels


def _count_planes(highest_level: int) -> int:
    """Return the number of bits of a rank; see `_rank_codes`."""
    return 2 + (highest_level >> 1).bit_length()


def _rank_codes(codes: ValueCodes, n_planes: int) -> NDArray[Any]:
    """Return the ranks of codes: 2 of 0, 3 of 1, and 1 of MISSING; 0 means no entry.

    From the lowest bit up, a rank is the lowest bit of the level, a 1, and the other bits of the
    level. With the rule "any", the highest rank counts.
    """
    if n_planes > 8:
        codes = codes.astype(np.uint16)
    ranks = codes + 2
    if n_planes > 2:
        ranks += codes & ~np.array(1, codes.dtype)
    ranks[codes == MISSING] = 1
    return ranks


def _locate_cells(cells: NDArray[np.int64]) -> tuple[slice | NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes of a plane that contain the cells, and the positions of the cells in them.

    The bytes are the whole range from first to last, unless that is much larger than needed.
    """
    first, stop = int(cells.min()) >> 3, (int(cells.max()) >> 3) + 1
    if 8 * (stop - first) <= _DENSE_CELLS_PER_ENTRY * len(cells):
        return slice(first, stop), cells - 8 * first
    distinct, places = np.unique(cells >> 3, return_inverse=True)
    return distinct, 8 * places + (cells & 7)


def _find_duplicate(cells: NDArray[np.int64], before: NDArray[np.bool_]) -> int:
    """Return a cell with an earlier entry, or with two of these entries."""
    if before.any():
        return int(cells[before.argmax()])
    ordered = np.sort(cells)
    return int(ordered[np.flatnonzero(ordered[1:] == ordered[:-1])[0]])


def _keep_last_entries(
    cells: NDArray[np.int64], codes: ValueCodes
) -> tuple[NDArray[np.int64], ValueCodes]:
    order = np.argsort(cells, kind="stable")
    cells, codes = cells[order], codes[order]
    last = np.flatnonzero(np.diff(cells, append=-1))
    return cells[last], codes[last]


def spool_entries(source: Source, n_rows: int, entries: Iterable[Entries]) -> Iterator[RowBatch]:
    """Spool all entries, then read the rows; a cell without an entry is 0.

    Raises `DataError` if an entry lies outside the matrix, is not binary, or is a duplicate.
    """
    n_cells = count_row_cells(source)
    coded = (
        (
            rows.astype(np.int64) * n_cells + columns.astype(np.int64),
            _encode_entries(source, n_rows, rows, columns, values),
        )
        for rows, columns, values in entries
    )
    return spool_codes(source, n_rows, coded)


def count_row_cells(source: Source) -> int:
    """Return the number of cells per row, a multiple of 8."""
    return 8 * -(-source.n_features // 8)


def spool_codes(
    source: Source,
    n_rows: int,
    entries: Iterable[CellCodes],
    absent: int = 0,
    duplicates: DuplicateRule | None = None,
) -> Iterator[RowBatch]:
    """Spool value codes, then read the rows.

    Parameters
    ----------
    source
        The source of the entries.
    n_rows
        Number of rows.
    entries
        Cells and their codes.
    absent
        Code of a cell without an entry.
    duplicates
        Which of several entries of a cell counts; None refuses them.
    """
    with _spool(source, n_rows, entries, duplicates) as (planes, row_bytes):
        for first, count in source.iter_row_ranges(n_rows):
            part = slice(first * row_bytes, (first + count) * row_bytes)
            codes = planes.read_codes(part, count, source.n_features, absent)
            # Invalid values were refused before, so there are none to show.
            yield source.make_batch(codes, first, lambda rows, feature: [])


def spool_updates(
    source: Source,
    n_rows: int,
    entries: Iterable[CellCodes],
    duplicates: DuplicateRule | None,
) -> Iterator[tuple[slice, NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]]:
    """Spool value codes, then read the rows: their range, levels, values and missing values.

    Values and missing values are told from cells without an entry, which are 0 in both.
    """
    with _spool(source, n_rows, entries, duplicates) as (planes, row_bytes):
        for first, count in source.iter_row_ranges(n_rows):
            part = slice(first * row_bytes, (first + count) * row_bytes)
            levels, values, missing = planes.read_updates(part, count, source.n_features)
            yield slice(first, first + count), levels, values, missing


@contextmanager
def _spool(
    source: Source,
    n_rows: int,
    entries: Iterable[CellCodes],
    duplicates: DuplicateRule | None,
) -> Iterator[tuple[_BitPlanes, int]]:
    """Spool value codes; yield the planes and the number of bytes per row."""
    n_cells = count_row_cells(source)
    n_planes = _count_planes(max([2, *map(len, source.feature_levels.values())]) - 1)
    n_bytes = n_rows * n_cells // 8
    with _open_temporary_arrays(source.path, n_bytes, n_planes) as arrays:
        planes = _BitPlanes(arrays)
        for cells, codes in read_ahead(entries):
            twice = planes.add(cells, codes, duplicates) if len(cells) else None
            if twice is not None:
                raise DataError(format_duplicate(source, *divmod(twice, n_cells)))
        yield planes, n_cells // 8


@contextmanager
def spool_numbers(
    source: Source,
    n_rows: int,
    entries: Iterable[CellNumbers],
    duplicates: DuplicateRule | None,
) -> Iterator[NDArray[np.float32]]:
    """Spool the values of continuous features; yield them as an array on disk.

    The array is (n_rows, n_continuous), and NaN where there is no entry. The parameters are as for
    `spool_codes`, which finds duplicates; of several entries, the last or the highest counts.
    """
    n_cells, continuous = count_row_cells(source), source.continuous_features
    shape = n_rows, len(continuous)
    places = np.full(n_cells, -1)
    places[continuous] = np.arange(len(continuous))
    with _open_temporary_arrays(source.path, 4 * n_rows * len(continuous), 1) as (array,):
        numbers = array[: 4 * n_rows * len(continuous)].view(np.float32)
        numbers[:] = np.nan
        for cells, values in read_ahead(entries):
            rows, columns = np.divmod(cells, n_cells)
            own = places[columns] >= 0
            cells, values = rows[own] * len(continuous) + places[columns[own]], values[own]
            if duplicates == "any":
                np.fmax.at(numbers, cells, values)
            else:
                numbers[cells] = values  # of equal cells, the last counts
        yield numbers.reshape(shape)


def format_duplicate(source: Source, row: int, column: int) -> str:
    """Return the message about a duplicate entry, which SciPy would add to the first."""
    place = source.format_place(row, column)
    return f"{place}: there are two entries. {source.duplicate_remedy}"


def _encode_entries(
    source: Source, n_rows: int, rows: NDArray[Any], columns: NDArray[Any], values: NDArray[Any]
) -> ValueCodes:
    inside = (rows >= 0) & (rows < n_rows) & (columns >= 0) & (columns < source.n_features)
    if not inside.all():
        entry = int((~inside).argmax())
        row, column = int(rows[entry]) + 1, int(columns[entry]) + 1
        raise DataError(
            f"{source.path}: there is an entry in row {row}, column {column}, but the matrix is "
            f"{n_rows} x {source.n_features}. Check the shape."
        )
    codes = encode_numbers(values, source.options)
    if codes.max(initial=0) == INVALID:
        entry = int((codes == INVALID).argmax())
        nearby = [str(value) for value in values[columns == columns[entry]]]
        row, feature, value = int(rows[entry]), int(columns[entry]), str(values[entry])
        raise source.make_not_binary_error(row, feature, value, nearby)
    return codes


@contextmanager
def _open_temporary_arrays(
    path: str, n_bytes: int, n_arrays: int
) -> Iterator[tuple[NDArray[np.uint8], ...]]:
    parent, needed = tempfile.gettempdir(), n_arrays * n_bytes
    free = shutil.disk_usage(parent).free
    # A full disk would kill the process at the next write to the mapped file.
    if free < needed:
        raise DataError(
            f"{path}: ordering the entries needs {needed / 1e9:.1f} GB in {parent}, but only "
            f"{free / 1e9:.1f} GB are free. Set TMPDIR to a larger disk."
        )
    with TemporaryFolder() as folder:
        arrays = (
            np.memmap(Path(folder) / f"array {k}", np.uint8, mode="w+", shape=(max(1, n_bytes),))
            for k in range(n_arrays)
        )
        yield tuple(array.view(np.ndarray) for array in arrays)


@contextmanager
def translate_full_disk(folder: Path, n_bytes: int = 0) -> Iterator[None]:
    """Turn errors of writing `n_bytes` more to a temporary folder into one `DataError`."""
    try:
        yield
    except OSError as error:
        n_bytes += sum(path.stat().st_size for path in folder.rglob("*"))
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DataError(
            f"{tempfile.gettempdir()}: the entries and the names of rows need at least "
            f"{n_bytes / 1e9:.1f} GB ({reason}). Set TMPDIR to a larger disk."
        ) from error


class ArrayFile:
    """Arrays of one dimension in a temporary file, in the order in which they were added."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._layout: list[tuple[np.dtype[Any], int]] = []

    def add(self, arrays: Iterable[NDArray[Any]]) -> None:
        """Append arrays."""
        for values in arrays:
            with (
                translate_full_disk(self._path.parent, values.nbytes),
                self._path.open("ab") as file,
            ):
                file.write(np.ascontiguousarray(values).data)
            self._layout.append((values.dtype, len(values)))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Read the arrays in order."""
        if not self._layout:
            return
        with self._path.open("rb") as file:
            for kind, count in self._layout:
                yield np.fromfile(file, kind, count)

    def read_ranges(self, starts: Sequence[int], sizes: Sequence[int]) -> NDArray[Any]:
        """Read ranges of the values of all arrays, which have the same type, as one array."""
        values = np.memmap(self._path, self._layout[0][0], "r").view(np.ndarray)
        ranges = zip(starts, sizes, strict=True)
        return np.concatenate([values[start : start + size] for start, size in ranges])


class _Portion(NamedTuple):
    """Consecutive lines of a file: the file and the first line, and their entries.

    Rows and columns of the entries are places in `row_numbers` and `column_numbers`. They have
    codes, and numbers if a feature is continuous; else `numbers` is empty.
    """

    place: tuple[str, int]
    row_numbers: NDArray[Any]
    column_numbers: NDArray[Any]
    rows: NDArray[Any]
    columns: NDArray[Any]
    codes: ValueCodes
    numbers: NDArray[np.float32]

    def locate(
        self, rows: range, row_cells: int
    ) -> tuple[NDArray[np.int64], slice | NDArray[np.bool_]]:
        """Return the cells of the entries in a range of rows, and which entries these are."""
        is_own = (self.row_numbers >= rows.start) & (self.row_numbers < rows.stop)
        is_used = self.column_numbers >= 0
        own: slice | NDArray[np.bool_] = slice(None)
        if not (is_own.all() and is_used.all()):
            own = is_own[self.rows] & is_used[self.columns]
        first_cells = (self.row_numbers.astype(np.int64) - rows.start) * row_cells
        cells = np.take(first_cells, self.rows[own])  # indexing by narrow integers is slower
        cells += np.take(self.column_numbers, self.columns[own])
        return cells, own


class EntryFile:
    """Entries of a matrix in temporary files, which are deleted with the object.

    Attributes
    ----------
    folder
        The folder of the files.
    row_numbers, column_numbers
        The numbers of the rows and columns of each portion.
    rows, columns
        New numbers of all rows and columns, or None; entries of columns numbered -1 are left out.
    """

    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None

    def __init__(self) -> None:
        self._folder = TemporaryFolder()
        self.folder = Path(self._folder.name)
        names = ("entries", "rows", "columns")
        files = (ArrayFile(self.folder / name) for name in names)
        self._entries, self.row_numbers, self.column_numbers = files
        self._portions: list[tuple[str, int]] = []

    def add(
        self,
        place: tuple[str, int],
        rows: NDArray[Any],
        columns: NDArray[Any],
        codes: ValueCodes,
        numbers: NDArray[np.float32],
    ) -> None:
        """Add rows, columns and values of lines, (n_lines,) each; see `_Portion`.

        `place` has the file and the first line. Rows and columns are places in the next arrays of
        `row_numbers` and `column_numbers`.
        """
        narrow = (
            numbers.astype(np.min_scalar_type(numbers.max(initial=0)))
            for numbers in (rows, columns)
        )
        self._entries.add((*narrow, codes, numbers))
        self._portions.append(place)

    def iter_cells(self, rows: range, row_cells: int) -> Iterator[CellCodes]:
        """Yield the entries of a range of rows, which are numbered from 0, in order.

        A row has `row_cells` cells.
        """
        for portion in self._iter_portions():
            cells, own = portion.locate(rows, row_cells)
            yield cells, portion.codes[own]

    def iter_numbers(self, rows: range, row_cells: int) -> Iterator[CellNumbers]:
        """Yield the same entries with their numbers, which features must have."""
        for portion in self._iter_portions():
            cells, own = portion.locate(rows, row_cells)
            yield cells, portion.numbers[own]

    def find_line(
        self, row: int | None = None, column: int | None = None, code: int | None = None
    ) -> str:
        """Describe the position of the first line with these values; None is any."""
        for portion in self._iter_portions():
            rows = portion.row_numbers[portion.rows]
            columns = portion.column_numbers[portion.columns]
            pairs = ((rows, row), (columns, column), (portion.codes, code))
            matches = [values == value for values, value in pairs if value is not None]
            if (is_match := np.logical_and.reduce(matches)).any():
                path, first = portion.place
                return f"{path}: row {first + is_match.argmax() + 1} (data rows counted from 1)"
        raise ValueError(f"There is no entry in row {row}, column {column}.")

    def find_added_row(self, portion: int, row: int) -> str:
        """Describe the position of the first line of a row, given its number within a portion."""
        path, first = self._portions[portion]
        rows = next(islice(self._entries, 4 * portion, None))
        return f"{path}: row {first + (rows == row).argmax() + 1} (data rows counted from 1)"

    def _iter_portions(self) -> Iterator[_Portion]:
        """Yield the portions that were added."""
        entries = iter(self._entries)
        numbers = zip(self.row_numbers, self.column_numbers, strict=True)
        for place, (rows, columns) in zip(self._portions, numbers, strict=True):
            renumbered = _renumber(rows, self.rows), _renumber(columns, self.columns)
            yield _Portion(place, *renumbered, *islice(entries, 4))


def _renumber(numbers: NDArray[Any], renumbered: NDArray[np.int64] | None) -> NDArray[Any]:
    return numbers if renumbered is None else renumbered[numbers]
