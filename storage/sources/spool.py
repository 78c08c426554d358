"""Entries in arbitrary order become rows by way of a packed bit matrix in a temporary file."""

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
from storage.sources.base import Batch, Source
from storage.sources.value_codes import BAD, MISSING, Codes, encode_numbers

Duplicates = Literal["last", "any"]
"""Which entry of several counts: the last, or 1 if any is 1, else 0 if any is 0."""
# Ranks of the codes 0, 1 and MISSING, of which the greatest counts under "any"; 0 is no entry.
_RANKS = np.array([2, 3, 1], np.uint8)
# Cells an entry, up to which all cells between the entries of a run are laid out.
_DENSE = 16
# Rows, columns and values of a run of entries, each (n_entries,); rows and columns from 0.
Entries = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class _Planes:
    """The lower and the higher bit of each cell's rank."""

    low: NDArray[np.uint8]
    high: NDArray[np.uint8]

    def add(
        self, cells: NDArray[np.int64], codes: Codes, duplicates: Duplicates | None = None
    ) -> int | None:
        """Enter codes; gives a cell that has two entries by now.

        Where `duplicates` says which entry of several counts, none is given.
        """
        if duplicates == "last":
            cells, codes = _last_of_each(cells, codes)
        part, places = _laid_out(cells)
        ranks = self._ranks(part)
        n_before = np.count_nonzero(ranks)
        if duplicates == "any":
            np.maximum.at(ranks, places, _RANKS[codes])
        else:
            ranks[places] = _RANKS[codes]
        if duplicates is None and np.count_nonzero(ranks) < n_before + len(cells):
            return _twice(cells, self._ranks(part)[places] > 0)
        self.low[part], self.high[part] = np.packbits(ranks & 1), np.packbits(ranks & 2)
        return None

    def _ranks(self, part: slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.unpackbits(self.low[part]) | np.unpackbits(self.high[part]) << np.uint8(1)

    def codes(self, part: slice, n_rows: int, n_features: int, absent: int) -> Codes:
        """Give the codes of rows, which lie in a part of the bytes."""
        low, high = (plane[part].reshape(n_rows, -1) for plane in (self.low, self.high))
        ones, missing = low & high, ~high if absent == MISSING else low & ~high
        found = np.unpackbits(ones, 1, n_features)
        if missing.any():
            found |= np.unpackbits(missing, 1, n_features) << 1
        return found


def _laid_out(
    cells: NDArray[np.int64],
) -> tuple[slice | NDArray[np.int64], NDArray[np.int64]]:
    """Give the bytes of a plane that have some cells, and where in them the cells are.

    They are all bytes from the first to the last unless these are too many.
    """
    numbers = cells >> 3
    first, stop = int(numbers.min()), int(numbers.max()) + 1
    if 8 * (stop - first) <= _DENSE * len(cells):
        return slice(first, stop), cells - 8 * first
    distinct, places = np.unique(numbers, return_inverse=True)
    return distinct, 8 * places + (cells & 7)


def _twice(cells: NDArray[np.int64], before: NDArray[np.bool_]) -> int:
    """Give a cell that had an entry before, or has two of these."""
    if before.any():
        return int(cells[before.argmax()])
    ordered = np.sort(cells)
    return int(ordered[np.flatnonzero(ordered[1:] == ordered[:-1])[0]])


def _last_of_each(cells: NDArray[np.int64], codes: Codes) -> tuple[NDArray[np.int64], Codes]:
    order = np.argsort(cells, kind="stable")
    cells, codes = cells[order], codes[order]
    last = np.flatnonzero(np.diff(cells, append=-1))
    return cells[last], codes[last]


def spooled_batches(source: Source, n_rows: int, entries: Iterable[Entries]) -> Iterator[Batch]:
    """Spool all entries, then read the rows; a cell without an entry is 0.

    Raises
    ------
    DataError
        If an entry lies outside the matrix, is not binary, or is given twice.
    """
    coded = (
        (rows, columns, _checked_codes(source, n_rows, rows, columns, values))
        for rows, columns, values in entries
    )
    return coded_batches(source, n_rows, coded)


def coded_batches(
    source: Source,
    n_rows: int,
    entries: Iterable[tuple[NDArray[Any], NDArray[Any], Codes]],
    absent: int = 0,
    duplicates: Duplicates | None = None,
) -> Iterator[Batch]:
    """Spool codes, then read the rows.

    Parameters
    ----------
    source
        Whose rows they are.
    n_rows
        How many.
    entries
        Rows, columns and codes, none of them bad.
    absent
        Code of a cell without an entry.
    duplicates
        Which of several entries of a cell counts; without it they are refused.

    Raises
    ------
    DataError
        If an entry is given twice.
    """
    row_bytes = -(-source.n_features // 8)
    with _temporary_planes(n_rows * row_bytes) as planes:
        for rows, columns, codes in entries:
            cells = rows.astype(np.int64) * (8 * row_bytes) + columns.astype(np.int64)
            twice = planes.add(cells, codes, duplicates) if len(cells) else None
            if twice is not None:
                row, column = divmod(twice, 8 * row_bytes)
                raise DataError(given_twice(source, row, column))
        for first, count in source.row_runs(n_rows):
            part = slice(first * row_bytes, (first + count) * row_bytes)
            found = planes.codes(part, count, source.n_features, absent)
            # Bad values were refused on entry, so there is none to show.
            yield source.batch(found, first, lambda rows, feature: [])


def given_twice(source: Source, row: int, column: int) -> str:
    """Say that a sparse format gives a cell twice: SciPy would add the two."""
    return f"{source.place(row, column)}: Expected one entry, got two. {source.one_entry}"


def _checked_codes(
    source: Source,
    n_rows: int,
    rows: NDArray[Any],
    columns: NDArray[Any],
    values: NDArray[Any],
) -> Codes:
    inside = (rows >= 0) & (rows < n_rows) & (columns >= 0) & (columns < source.n_features)
    if not inside.all():
        entry = int((~inside).argmax())
        row, column = int(rows[entry]) + 1, int(columns[entry]) + 1
        raise DataError(
            f"{source.path}: Expected entries in rows 1 to {n_rows} and columns 1 to "
            f"{source.n_features}, got row {row}, column {column}. "
            "Check the shape."
        )
    codes = encode_numbers(values, source.options)
    if codes.max(initial=0) == BAD:
        entry = int((codes == BAD).argmax())
        others = [str(value) for value in values[columns == columns[entry]]]
        row, feature, value = int(rows[entry]), int(columns[entry]), str(values[entry])
        raise source.not_binary(row, feature, value, others)
    return codes


@contextmanager
def _temporary_planes(n_bytes: int) -> Iterator[_Planes]:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    # A full disk would kill the process at the next write to the mapped file.
    if free < 2 * n_bytes:
        raise DataError(
            f"Expected {2 * n_bytes / 1e9:.1f} GB free in {tempfile.gettempdir()} to order the "
            f"entries, got {free / 1e9:.1f} GB. Set TMPDIR to a larger disk."
        )
    with tempfile.TemporaryDirectory() as folder:
        low, high = (
            np.memmap(Path(folder) / name, np.uint8, mode="w+", shape=(max(1, n_bytes),))
            for name in ("low", "high")
        )
        yield _Planes(low.view(np.ndarray), high.view(np.ndarray))
