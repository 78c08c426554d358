"""MatrixMarket: coordinate and array files (Boisvert, Pozo and Remington 1996, NISTIR 5935)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.base import Source, SourceBatch, make_feature_names
from storage.sources.spool import Entries, spool_entries
from storage.sources.text import NUMBER_BLOCK_BYTES, iter_line_blocks, open_text, parse_numbers
from storage.sources.value_codes import ReadOptions, check_implicit_zeros

_LAYOUTS = ("coordinate", "array")
_FIELDS = ("pattern", "integer", "unsigned-integer", "real", "double")
_SYMMETRIES = ("general", "symmetric")


@dataclass(frozen=True)
class _Header:
    """The first `n_lines` lines, up to and including the size line."""

    layout: str
    field: str
    symmetry: str
    sizes: tuple[int, ...]
    n_lines: int


@dataclass(frozen=True, kw_only=True)
class MatrixMarketSource(Source):
    """A MatrixMarket file."""

    header: _Header

    def _read_batches(self) -> Generator[SourceBatch]:
        """Order the entries on disk, then read the rows."""
        n_rows = self.header.sizes[0]
        with open_text(self.path, self.options.encoding) as stream:
            for _ in range(self.header.n_lines):
                stream.readline()
            is_array = self.header.layout == "array"
            entries = self._iter_array(stream) if is_array else self._iter_coordinates(stream)
            if self.header.symmetry == "symmetric":
                entries = _mirror_entries(entries)
            yield from spool_entries(self, n_rows, entries)

    def _iter_coordinates(self, stream: BinaryIO) -> Iterator[Entries]:
        """Parse lines `row column [value]`, counted from 1."""
        n_words = 2 if self.header.field == "pattern" else 3
        n_entries = 0
        for values, counts, first_line in self._iter_numbers(stream):
            wrong = (counts != n_words) & (counts != 0)
            if wrong.any():
                line = int(wrong.argmax())
                raise DataError(
                    f"{self.path}: line {first_line + line + 1}: the line must have {n_words} "
                    f"numbers, but has {counts[line]}. Correct the line."
                )
            table = values.reshape(-1, n_words)
            n_entries += len(table)
            self._check_integers(table[:, :2])
            ones = np.ones(len(table))
            yield table[:, 0] - 1, table[:, 1] - 1, ones if n_words == 2 else table[:, 2]
        self._check_count(self.header.sizes[2], n_entries)

    def _iter_array(self, stream: BinaryIO) -> Iterator[Entries]:
        """Parse values column by column; for a symmetric matrix only the lower triangle."""
        n_rows, n_columns = self.header.sizes
        columns = np.arange(n_columns)
        skipped = columns if self.header.symmetry == "symmetric" else 0 * columns
        starts = np.concatenate([[0], np.cumsum(n_rows - skipped)])
        n_values = 0
        for values, _, _ in self._iter_numbers(stream):
            place = np.arange(n_values, n_values + len(values))
            n_values += len(values)
            if n_values > starts[-1]:
                break
            column = np.searchsorted(starts, place, side="right") - 1
            yield place - starts[column] + skipped[column], column, values
        self._check_count(int(starts[-1]), n_values)

    def _iter_numbers(
        self, stream: BinaryIO
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], int]]:
        """Yield blocks of numbers, the counts per line, and the number of lines before it."""
        first_line = self.header.n_lines
        for block in iter_line_blocks(stream, NUMBER_BLOCK_BYTES):
            values, counts = parse_numbers(self.path, block, first_line, np.float64)
            yield values, counts, first_line
            first_line += len(counts)

    def _check_integers(self, places: NDArray[Any]) -> None:
        fraction = ~(places == np.floor(places)) | np.isinf(places)
        if fraction.any():
            raise DataError(
                f"{self.path}: the row or column number {places[fraction][0]} is not a whole "
                "number. Check the file."
            )

    def _check_count(self, n_stated: int, n_entries: int) -> None:
        if n_entries != n_stated:
            count = f"only {n_entries}" if n_entries < n_stated else "more"
            raise DataError(
                f"{self.path}: the size line states {n_stated} entries, but the file has {count}. "
                "Check that the file is complete."
            )


def open_matrix_market(path: str, options: ReadOptions) -> MatrixMarketSource:
    """Open a `.mtx` file; this reads its first lines."""
    with open_text(path, options.encoding) as stream:
        header = _read_header(path, stream)
    if header.layout == "coordinate":
        check_implicit_zeros(path, options)
    n_rows, n_features = header.sizes[:2]
    return MatrixMarketSource(
        path=path,
        options=options,
        feature_names=make_feature_names(n_features),
        n_rows=n_rows,
        header=header,
    )


def _read_header(path: str, stream: BinaryIO) -> _Header:
    banner = stream.readline().decode(errors="replace").lower().split()
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"]:
        raise DataError(
            f"{path}: the first line is {' '.join(banner)[:60]!r}, but must have the form "
            "'%%MatrixMarket matrix LAYOUT FIELD SYMMETRY'. Check the file."
        )
    for word, readable in zip(banner[2:], (_LAYOUTS, _FIELDS, _SYMMETRIES), strict=True):
        if word not in readable:
            raise DataError(
                f"{path}: {word!r} matrices cannot be read, only {' or '.join(readable)}. "
                "Convert the matrix."
            )
    layout, field, symmetry = banner[2:]
    line, n_lines = stream.readline(), 2
    while line.startswith(b"%") or (line and not line.strip()):
        line, n_lines = stream.readline(), n_lines + 1
    sizes = tuple(int(word) for word in line.split() if word.isdigit())
    if len(sizes) != len(line.split()) or len(sizes) != (3 if layout == "coordinate" else 2):
        shown = line[:60].decode(errors="replace").strip()
        raise DataError(f"{path}: line {n_lines}: {shown!r} is not a size line. Check the file.")
    if symmetry == "symmetric" and sizes[0] != sizes[1]:
        raise DataError(
            f"{path}: a symmetric matrix must be square, but this one is {sizes[0]} x {sizes[1]}. "
            "Check the file."
        )
    return _Header(layout, field, symmetry, sizes, n_lines)


def _mirror_entries(entries: Iterator[Entries]) -> Iterator[Entries]:
    """Yield each off-diagonal entry twice."""
    for rows, columns, values in entries:
        yield rows, columns, values
        off_diagonal = rows != columns
        yield columns[off_diagonal], rows[off_diagonal], values[off_diagonal]
