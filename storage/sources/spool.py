"""Order entries by row in a temporary file, which holds a packed bit matrix."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.base import Source, SourceBatch
from storage.sources.temporary import TemporaryFolder
from storage.sources.value_codes import INVALID, MISSING, ValueCodes, encode_numbers

DuplicateRule = Literal["last", "any"]
"""How duplicate entries count: the last one, or 1 if any is 1, else 0 if any is 0."""
# Ranks of the codes 0, 1 and MISSING; with "any", the highest one counts. 0 means no entry.
_CODE_RANKS = np.array([2, 3, 1], np.uint8)
# Up to this many cells per entry, the whole range of cells is unpacked.
_DENSE_CELLS_PER_ENTRY = 16
# Rows, columns and values of some entries, (n_entries,) each; rows and columns count from 0.
Entries = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class _BitPlanes:
    """The lower and the higher bit of each cell's rank."""

    low: NDArray[np.uint8]
    high: NDArray[np.uint8]

    def add(
        self, cells: NDArray[np.int64], codes: ValueCodes, duplicates: DuplicateRule | None = None
    ) -> int | None:
        """Store codes; without a rule for duplicates, return a cell with two entries, if any."""
        if duplicates == "last":
            cells, codes = _keep_last_entries(cells, codes)
        part, places = _locate_cells(cells)
        ranks = self._read_ranks(part)
        n_before = np.count_nonzero(ranks)
        if duplicates == "any":
            np.maximum.at(ranks, places, _CODE_RANKS[codes])
        else:
            ranks[places] = _CODE_RANKS[codes]
        if duplicates is None and np.count_nonzero(ranks) < n_before + len(cells):
            return _find_duplicate(cells, self._read_ranks(part)[places] > 0)
        self.low[part], self.high[part] = np.packbits(ranks & 1), np.packbits(ranks & 2)
        return None

    def _read_ranks(self, part: slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.unpackbits(self.low[part]) | np.unpackbits(self.high[part]) << np.uint8(1)

    def read_updates(
        self, part: slice, n_rows: int, n_features: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield ones, values and explicitly missing values of the rows in a range of bytes."""
        low, high = (plane[part].reshape(n_rows, -1) for plane in (self.low, self.high))
        for bits in (low & high, high, low & ~high):
            yield np.unpackbits(bits, 1, n_features)

    def read_codes(self, part: slice, n_rows: int, n_features: int, absent: int) -> ValueCodes:
        """Return the codes of the rows in a range of bytes."""
        low, high = (plane[part].reshape(n_rows, -1) for plane in (self.low, self.high))
        ones, missing = low & high, ~high if absent == MISSING else low & ~high
        codes = np.unpackbits(ones, 1, n_features)
        if missing.any():
            codes |= np.unpackbits(missing, 1, n_features) << 1
        return codes


def _locate_cells(cells: NDArray[np.int64]) -> tuple[slice | NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes of a plane that contain the cells, and the positions of the cells in them.

    The bytes are the whole range from first to last, unless that is much larger than needed.
    """
    numbers = cells >> 3
    first, stop = int(numbers.min()), int(numbers.max()) + 1
    if 8 * (stop - first) <= _DENSE_CELLS_PER_ENTRY * len(cells):
        return slice(first, stop), cells - 8 * first
    distinct, places = np.unique(numbers, return_inverse=True)
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


def spool_entries(source: Source, n_rows: int, entries: Iterable[Entries]) -> Iterator[SourceBatch]:
    """Spool all entries, then read the rows; a cell without an entry is 0.

    Raises `DataError` if an entry lies outside the matrix, is not binary, or is a duplicate.
    """
    coded = (
        (rows, columns, _encode_entries(source, n_rows, rows, columns, values))
        for rows, columns, values in entries
    )
    return spool_codes(source, n_rows, coded)


def spool_codes(
    source: Source,
    n_rows: int,
    entries: Iterable[tuple[NDArray[Any], NDArray[Any], ValueCodes]],
    absent: int = 0,
    duplicates: DuplicateRule | None = None,
) -> Iterator[SourceBatch]:
    """Spool value codes, then read the rows.

    Parameters
    ----------
    source
        The source of the entries.
    n_rows
        Number of rows.
    entries
        Rows, columns and valid codes.
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
    entries: Iterable[tuple[NDArray[Any], NDArray[Any], ValueCodes]],
    duplicates: DuplicateRule | None,
) -> Iterator[tuple[slice, NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]]:
    """Spool value codes, then read the rows: their range, ones, values and missing values.

    Values and missing values are told from cells without an entry, which are 0 in both.
    """
    with _spool(source, n_rows, entries, duplicates) as (planes, row_bytes):
        for first, count in source.iter_row_ranges(n_rows):
            part = slice(first * row_bytes, (first + count) * row_bytes)
            ones, values, missing = planes.read_updates(part, count, source.n_features)
            yield slice(first, first + count), ones, values, missing


@contextmanager
def _spool(
    source: Source,
    n_rows: int,
    entries: Iterable[tuple[NDArray[Any], NDArray[Any], ValueCodes]],
    duplicates: DuplicateRule | None,
) -> Iterator[tuple[_BitPlanes, int]]:
    """Spool value codes; yield the planes and the number of bytes per row."""
    row_bytes = -(-source.n_features // 8)
    with _open_temporary_planes(source.path, n_rows * row_bytes) as planes:
        for rows, columns, codes in entries:
            cells = rows.astype(np.int64) * (8 * row_bytes) + columns.astype(np.int64)
            twice = planes.add(cells, codes, duplicates) if len(cells) else None
            if twice is not None:
                row, column = divmod(twice, 8 * row_bytes)
                raise DataError(format_duplicate(source, row, column))
        yield planes, row_bytes


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
def _open_temporary_planes(path: str, n_bytes: int) -> Iterator[_BitPlanes]:
    parent, needed = tempfile.gettempdir(), 2 * n_bytes
    free = shutil.disk_usage(parent).free
    # A full disk would kill the process at the next write to the mapped file.
    if free < needed:
        raise DataError(
            f"{path}: ordering the entries needs {needed / 1e9:.1f} GB in {parent}, but only "
            f"{free / 1e9:.1f} GB are free. Set TMPDIR to a larger disk."
        )
    with TemporaryFolder() as folder:
        low, high = (
            np.memmap(Path(folder) / name, np.uint8, mode="w+", shape=(max(1, n_bytes),))
            for name in ("low", "high")
        )
        yield _BitPlanes(low.view(np.ndarray), high.view(np.ndarray))


_ENTRY_DTYPES = (np.int32, np.int32, np.uint8)


class EntryFile:
    """Entries of a matrix in a temporary file, which is deleted with the object.

    Attributes
    ----------
    rows, columns
        New numbers of all rows and columns, or None; entries of columns numbered -1 are left out.
    """

    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None

    def __init__(self) -> None:
        self._folder = TemporaryFolder()
        self._portions: list[tuple[str, int, int]] = []

    @property
    def _path(self) -> Path:
        return Path(self._folder.name) / "entries"

    def add(
        self, path: str, first: int, rows: NDArray[Any], columns: NDArray[Any], codes: ValueCodes
    ) -> None:
        """Add rows, columns and codes of the lines of a file from `first` on, (n_lines,) each."""
        try:
            with self._path.open("ab") as file:
                for values, kind in zip((rows, columns, codes), _ENTRY_DTYPES, strict=True):
                    file.write(np.ascontiguousarray(values, kind).data)
        except OSError as error:
            n_entries = sum(count for *_, count in self._portions) + len(rows)
            raise DataError(
                f"{tempfile.gettempdir()}: the entries need at least {9 * n_entries / 1e9:.1f} GB "
                f"({error.strerror}). Set TMPDIR to a larger disk."
            ) from error
        self._portions.append((path, first, len(rows)))

    def iter_rows(self, rows: range) -> Iterator[tuple[NDArray[Any], NDArray[Any], ValueCodes]]:
        """Yield the entries of a range of rows, which are numbered from 0, in order."""
        for _, (numbers, columns, codes) in self._iter_portions():
            own = (numbers >= rows.start) & (numbers < rows.stop) & (columns >= 0)
            if own.all():
                yield numbers - rows.start, columns, codes
            elif own.any():
                yield numbers[own] - rows.start, columns[own], codes[own]

    def find_line(
        self, row: int | None = None, column: int | None = None, code: int | None = None
    ) -> str:
        """Describe the position of the first line with these values; None is any."""
        for (path, first), portion in self._iter_portions():
            pairs = zip(portion, (row, column, code), strict=True)
            matches = [values == value for values, value in pairs if value is not None]
            if (is_match := np.logical_and.reduce(matches)).any():
                return f"{path}: row {first + is_match.argmax() + 1} (data rows counted from 1)"
        raise ValueError(f"There is no entry in row {row}, column {column}.")

    def _iter_portions(
        self,
    ) -> Iterator[tuple[tuple[str, int], tuple[NDArray[Any], NDArray[Any], ValueCodes]]]:
        """Yield the entries in the portions that were added, each with its file and first line."""
        if not self._portions:
            return
        with self._path.open("rb") as file:
            for path, first, count in self._portions:
                rows, columns = (np.fromfile(file, np.int32, count) for _ in range(2))
                codes = np.fromfile(file, np.uint8, count)
                renumbered = _renumber(rows, self.rows), _renumber(columns, self.columns)
                yield (path, first), (*renumbered, codes)


def _renumber(numbers: NDArray[Any], renumbered: NDArray[np.int64] | None) -> NDArray[Any]:
    return numbers if renumbered is None else renumbered[numbers]
