"""Text files of numbers: MatrixMarket and baskets.

MatrixMarket has coordinate and array files (Boisvert, Pozo and Remington 1996, NISTIR 5935). In
files of FIMI, each line lists the item numbers of one basket; a blank line is an empty basket.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch
from storage.errors import DataError
from storage.sources.base import Source, make_feature_names, translate_read_errors
from storage.sources.derived import open_local_copy
from storage.sources.spool import Entries, spool_entries
from storage.sources.text import NUMBER_BLOCK_BYTES, iter_line_blocks, open_text, parse_numbers
from storage.sources.value_codes import ReadOptions, check_implicit_zeros, encode_numbers

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

    def _read_batches(self) -> Generator[RowBatch]:
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


@dataclass(frozen=True, kw_only=True)
class BasketSource(Source):
    """A `.dat` file of baskets; an item listed twice counts once."""

    def _read_batches(self) -> Generator[RowBatch]:
        """Read ranges of baskets."""
        feature_items = np.array([_parse_item(name) for name in self.feature_names])
        order = np.argsort(feature_items)
        first_row = 0
        for items, counts in _iter_baskets(self.path, self.options.encoding):
            nearest = np.searchsorted(feature_items, items, sorter=order)
            features = order[nearest.clip(max=len(order) - 1)]
            unknown = feature_items[features] != items
            if unknown.any():
                raise self._make_unknown_item_error(items, counts, int(unknown.argmax()), first_row)
            yield from self._iter_dense_batches(features, counts, first_row)
            first_row += len(counts)

    def _iter_dense_batches(
        self, features: NDArray[np.int64], counts: NDArray[np.int64], first_row: int
    ) -> Iterator[RowBatch]:
        ends = np.concatenate([[0], np.cumsum(counts)])
        one = encode_numbers(np.ones(1), self.options)[0]
        for first, n_rows in self.iter_row_ranges(len(counts)):
            codes = np.zeros((n_rows, self.n_features), np.uint8)
            rows = np.repeat(np.arange(n_rows), counts[first : first + n_rows])
            codes[rows, features[ends[first] : ends[first + n_rows]]] = one
            yield self.make_batch(codes, first_row + first, lambda rows, feature: ["1"])

    def _make_unknown_item_error(
        self, items: NDArray[np.int64], counts: NDArray[np.int64], number: int, first_row: int
    ) -> DataError:
        line = first_row + int(np.searchsorted(np.cumsum(counts), number, side="right")) + 1
        return DataError(
            f"{self.path}: line {line}: item {items[number]} is not one of the {self.n_features} "
            "features. Ingest all files together."
        )


def open_baskets(
    path: str, options: ReadOptions, items: Sequence[str] | None = None
) -> BasketSource:
    """Open a `.dat` file whose features are `items`, by default the items found in a first pass."""
    check_implicit_zeros(path, options)
    names = find_basket_items([path], options.encoding) if items is None else tuple(items)
    return BasketSource(path=path, options=options, feature_names=names)


def find_basket_items(paths: Sequence[str], encoding: str | None = None) -> tuple[str, ...]:
    """Find the items of basket files, in numeric order; this reads all files once."""
    all_items = np.empty(0, np.int64)
    for path in paths:
        with open_local_copy(path) as (copy, _), translate_read_errors(copy):
            for items, _ in _iter_baskets(copy, encoding):
                all_items = np.union1d(all_items, items)
    return tuple(str(item) for item in all_items.tolist())


def _iter_baskets(
    path: str, encoding: str | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the items of a block of lines, and the number of items per line."""
    first_line = 0
    with open_text(path, encoding) as stream:
        for block in iter_line_blocks(stream, NUMBER_BLOCK_BYTES):
            items, counts = parse_numbers(path, block, first_line, np.int64)
            if items.min(initial=0) < 0:
                number = int((items < 0).argmax())
                line = int(np.searchsorted(np.cumsum(counts), number, side="right")) + 1
                raise DataError(
                    f"{path}: line {first_line + line}: item number {items[number]} is negative. "
                    "Correct the line."
                )
            yield items, counts
            first_line += len(counts)
    if not first_line:
        raise DataError(f"{path}: the file is empty.")


def _parse_item(name: str) -> int:
    """Return the item that a feature is named after, or -1 if there is none."""
    fits = name.isdecimal() and len(name) < 19 and str(int(name)) == name
    return int(name) if fits else -1
