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
from storage.sources.codes import BAD, MISSING, Codes, encode_numbers

Duplicates = Literal["last", "any"]
"""Which entry of several counts: the last, or 1 if any is 1, else 0 if any is 0."""
# Under "any" the greatest rank counts: nothing (-1), missing, 0, 1, by bits of ones and of zeros.
_BY_RANK = (MISSING, 0, 1)
_RANK_OF = np.array([[-1, 1], [2, 0]])
# Bytes of a plane an entry, up to which a run of entries is dense.
_DENSE = 8
# Rows, columns and values of a run of entries, each (n_entries,); rows and columns from 0.
Entries = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class _Planes:
    """Two bits a cell: neither = no entry, `ones` = 1, `zeros` = 0 given, both = missing."""

    ones: NDArray[np.uint8]
    zeros: NDArray[np.uint8]

    def add(
        self, bits: NDArray[np.int64], codes: Codes, duplicates: Duplicates | None = None
    ) -> int | None:
        """Enter codes at bit numbers; gives the bit of an entry that was there already.

        Where `duplicates` says which entry of several counts, none is given.
        """
        if duplicates == "any":
            for rank, code in enumerate(_BY_RANK):
                self._replace(bits, codes, code, rank)
            return None
        if duplicates == "last":
            bits, codes = _last_of_each(bits, codes)
            self._clear(bits)
        elif (twice := self._twice(bits)) is not None:
            return twice
        self._enter(bits, codes)
        return None

    def _enter(self, bits: NDArray[np.int64], codes: Codes) -> None:
        numbers, masks = _places(bits)
        for plane, other in ((self.ones, 0), (self.zeros, 1)):
            at = codes != other
            part = (numbers, masks) if at.all() else (numbers[at], masks[at])
            np.bitwise_or.at(plane, *part)

    def _clear(self, bits: NDArray[np.int64]) -> None:
        numbers, masks = _places(bits)
        for plane in (self.ones, self.zeros):
            np.bitwise_and.at(plane, numbers, ~masks)

    def _replace(self, bits: NDArray[np.int64], codes: Codes, code: int, rank: int) -> None:
        """Enter one code wherever what stands there, if anything, counts for less."""
        bits = bits[codes == code]
        numbers, masks = _places(bits)
        is_one, is_zero = ((plane[numbers] & masks) != 0 for plane in (self.ones, self.zeros))
        bits = bits[_RANK_OF[is_one.view(np.uint8), is_zero.view(np.uint8)] < rank]
        self._clear(bits)
        self._enter(bits, np.full(len(bits), code, np.uint8))

    def _twice(self, bits: NDArray[np.int64]) -> int | None:
        """Find a bit that has an entry, or is there twice."""
        numbers, masks = _places(bits)
        before = (self.ones[numbers] | self.zeros[numbers]) & masks
        if before.any():
            return int(bits[before.argmax()])
        if self.ones.size <= _DENSE * len(bits):  # to count bits is far faster than to sort them
            found = np.zeros(self.ones.size, np.uint8)
            np.bitwise_or.at(found, numbers, masks)
            if int(np.bitwise_count(found.view(np.uint64)).sum()) == len(bits):
                return None
        ordered = np.sort(bits)
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        return int(ordered[twice[0]]) if len(twice) else None


def _places(bits: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Give the byte of each bit, and the bit in it."""
    return bits >> 3, np.right_shift(128, bits & 7).astype(np.uint8)


def _last_of_each(bits: NDArray[np.int64], codes: Codes) -> tuple[NDArray[np.int64], Codes]:
    order = np.argsort(bits, kind="stable")
    bits, codes = bits[order], codes[order]
    last = np.flatnonzero(np.diff(bits, append=-1))
    return bits[last], codes[last]


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
            bits = rows.astype(np.int64) * (8 * row_bytes) + columns.astype(np.int64)
            twice = planes.add(bits, codes, duplicates) if len(bits) else None
            if twice is not None:
                row, column = divmod(twice, 8 * row_bytes)
                raise DataError(given_twice(source, row, column))
        for first, count in source.row_runs(n_rows):
            part = slice(first * row_bytes, (first + count) * row_bytes)
            ones, zeros = (
                np.unpackbits(plane[part].reshape(count, row_bytes), 1, source.n_features)
                for plane in (planes.ones, planes.zeros)
            )
            found = ones + (ones & zeros)
            if absent:
                found[(ones | zeros) == 0] = absent
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
        shape = (8 * max(1, -(-n_bytes // 8)),)  # whole words
        ones, zeros = (
            np.memmap(Path(folder) / name, np.uint8, mode="w+", shape=shape).view(np.ndarray)
            for name in ("ones", "zeros")
        )
        yield _Planes(ones, zeros)
