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
# By rank the greatest code counts under "any": missing, 0, 1.
_RANK, _OF_RANK = np.array([1, 2, 0], np.uint8), np.array([MISSING, 0, 1], np.uint8)
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
        order = np.argsort(bits, kind="stable")
        bits, codes = bits[order], codes[order]
        if duplicates is not None:
            bits, codes = self._settled(bits, codes, duplicates)
        twice = np.flatnonzero(bits[1:] == bits[:-1])
        if len(twice):
            return int(bits[twice[0]])
        numbers = bits >> 3
        masks = np.right_shift(128, bits & 7).astype(np.uint8)
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        touched = numbers[firsts]
        entered = np.bitwise_or.reduceat(masks, firsts)
        before = self.ones[touched] | self.zeros[touched]
        if (before & entered).any():
            clash = int((before & entered).astype(bool).argmax())
            return int(touched[clash] * 8 + np.unpackbits((before & entered)[clash]).argmax())
        self.ones[touched] |= np.bitwise_or.reduceat(np.where(codes != 0, masks, 0), firsts)
        if (codes != 1).any():
            self.zeros[touched] |= np.bitwise_or.reduceat(np.where(codes != 1, masks, 0), firsts)
        return None

    def _settled(
        self, bits: NDArray[np.int64], codes: Codes, duplicates: Duplicates
    ) -> tuple[NDArray[np.int64], Codes]:
        """Keep one entry of each bit, and take back what was entered there before."""
        first = np.flatnonzero(np.diff(bits, prepend=-1))
        last = np.append(first[1:], len(bits)) - 1
        kept = codes[last]
        bits = bits[last]
        if duplicates == "any":
            kept = np.maximum.reduceat(_RANK[codes], first) if len(first) else codes
            numbers, masks = bits >> 3, np.right_shift(128, bits & 7).astype(np.uint8)
            ones, zeros = ((plane[numbers] & masks) != 0 for plane in (self.ones, self.zeros))
            before = np.select([ones & zeros, ones, zeros], [MISSING, 1, 0], MISSING)
            kept = _OF_RANK[np.maximum(kept, _RANK[before])]
        masks = np.right_shift(128, bits & 7).astype(np.uint8)
        for plane in (self.ones, self.zeros):
            np.bitwise_and.at(plane, bits >> 3, ~masks)
        return bits, kept


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
        ones, zeros = (
            np.memmap(Path(folder) / name, np.uint8, mode="w+", shape=(max(n_bytes, 1),))
            for name in ("ones", "zeros")
        )
        yield _Planes(ones, zeros)
