"""SciPy sparse matrices as `scipy.sparse.save_npz` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.arrays import NpyHeader, open_member_rows, read_member, read_member_headers
from storage.sources.base import Source, SourceBatch, make_feature_names, translate_read_errors
from storage.sources.spool import Entries, format_duplicate, spool_entries
from storage.sources.value_codes import (
    ReadOptions,
    check_implicit_zeros,
    check_numeric,
    encode_numbers,
)

_ENTRIES_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RowSparseSource(Source):
    """Compressed rows (CSR) or rows of blocks (BSR), read in file order.

    Attributes
    ----------
    n_rows
        Number of rows.
    block
        Rows and columns of a stored block; (1, 1) for CSR.
    """

    is_streaming = True

    n_rows: int
    block: tuple[int, int]

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Stream pointers, column indices and values in parallel."""
        with (
            translate_read_errors(self.path),
            ZipFile(self.path) as archive,
            open_member_rows(archive, "indptr") as take_pointers,
            open_member_rows(archive, "indices") as take_indices,
            open_member_rows(archive, "data") as take_data,
        ):
            start = int(take_pointers(0, 1)[0])
            for first, n_rows in self._iter_block_row_ranges():
                ends = take_pointers(first + 1, n_rows)
                counts = np.diff(ends, prepend=start)
                if not 0 <= counts.min() <= counts.max() <= self.n_features // self.block[1]:
                    raise ValueError("row pointers decrease, or leap beyond a full row")
                rows = np.repeat(np.arange(n_rows), counts)
                columns = take_indices(start, len(rows))
                values = take_data(start, len(rows)).reshape(-1, *self.block)
                yield self._make_dense_batch(first, n_rows, rows, columns, values)
                start = int(ends[-1])

    def _iter_block_row_ranges(self) -> Iterator[tuple[int, int]]:
        step = max(1, self.batch_rows // self.block[0])
        n_block_rows = self.n_rows // self.block[0]
        for first in range(0, n_block_rows, step):
            yield first, min(step, n_block_rows - first)

    def _make_dense_batch(
        self,
        first: int,
        n_rows: int,
        rows: NDArray[Any],
        columns: NDArray[Any],
        values: NDArray[Any],
    ) -> SourceBatch:
        """Write the blocks of a range of block rows into a dense batch."""
        height, width = self.block
        n_columns = self.n_features // width
        if len(columns) and not 0 <= columns.min() <= columns.max() < n_columns:
            raise ValueError(f"a column index lies outside 0 to {n_columns - 1}")
        self._refuse_repeated(first, rows * n_columns + columns, n_rows * n_columns)
        codes = np.zeros((n_rows, height, n_columns, width), np.uint8)
        codes[rows, :, columns, :] = encode_numbers(values, self.options)

        def texts(part: slice, feature: int) -> list[str]:
            column = np.zeros(n_rows * height, values.dtype).reshape(n_rows, height)
            entries = columns == feature // width
            column[rows[entries]] = values[entries, :, feature % width]
            return [str(value) for value in column.reshape(-1)[part]]

        dense = codes.reshape(n_rows * height, self.n_features)
        return self.make_batch(dense, first * height, texts)

    def _refuse_repeated(self, first: int, cells: NDArray[Any], n_cells: int) -> None:
        present = np.zeros(n_cells, np.bool_)
        present[cells] = True
        if np.count_nonzero(present) == len(cells):
            return
        ordered = np.sort(cells)
        cell = int(ordered[1:][ordered[1:] == ordered[:-1]][0])
        row, column = divmod(cell, self.n_features // self.block[1])
        row, column = (first + row) * self.block[0], column * self.block[1]
        raise DataError(format_duplicate(self, row, column))


@dataclass(frozen=True, kw_only=True)
class UnorderedSparseSource(Source):
    """A sparse matrix whose entries are not ordered by row: CSC, COO or DIA."""

    n_rows: int
    entries: Callable[[ZipFile, tuple[int, int]], Iterator[Entries]]

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Order the entries on disk, then read the rows."""
        with translate_read_errors(self.path), ZipFile(self.path) as archive:
            entries = self.entries(archive, (self.n_rows, self.n_features))
            yield from spool_entries(self, self.n_rows, entries)


def open_sparse(
    path: str, options: ReadOptions, archive: ZipFile, headers: Mapping[str, NpyHeader]
) -> Source:
    """Open an archive that `scipy.sparse.save_npz` wrote."""
    kind = read_member(archive, "format").item()
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    shape = read_member(archive, "shape")
    if len(shape) != 2:
        raise DataError(f"{path}: Expected a matrix (2 dimensions), got {len(shape)}.")
    check_numeric(path, headers["data"].dtype)
    check_implicit_zeros(path, options)
    n_rows, n_features = int(shape[0]), int(shape[1])
    names = make_feature_names(n_features)
    if kind in ("csr", "bsr"):
        block = headers["data"].shape[1:] or (1, 1)
        _check_pointers(headers, n_rows, n_features, block)
        return RowSparseSource(
            path=path,
            options=options,
            feature_names=names,
            n_rows=n_rows,
            block=(block[0], block[1]),
        )
    if kind not in _UNORDERED_FORMATS:
        raise DataError(
            f"{path}: Expected a sparse format of bsr, coo, csc, csr or dia, got {kind!r}. "
            "Convert the matrix with .tocsr()."
        )
    return UnorderedSparseSource(
        path=path,
        options=options,
        feature_names=names,
        n_rows=n_rows,
        entries=_UNORDERED_FORMATS[kind],
    )


def _check_pointers(
    headers: Mapping[str, NpyHeader], n_rows: int, n_features: int, block: tuple[int, ...]
) -> None:
    height, width = block
    if n_rows % height or n_features % width:
        raise ValueError(f"blocks of {height} x {width} do not tile the matrix")
    if headers["indptr"].shape != (n_rows // height + 1,):
        raise ValueError(f"expected {n_rows // height + 1} row pointers")


def _iter_entry_ranges(n_entries: int) -> Iterator[tuple[int, int]]:
    for first in range(0, n_entries, _ENTRIES_AT_ONCE):
        yield first, min(_ENTRIES_AT_ONCE, n_entries - first)


def _iter_coo_entries(archive: ZipFile, shape: tuple[int, int]) -> Iterator[Entries]:
    with (
        open_member_rows(archive, "row") as take_rows,
        open_member_rows(archive, "col") as take_columns,
        open_member_rows(archive, "data") as take_data,
    ):
        for first, count in _iter_entry_ranges(read_member_headers(archive)["data"].shape[0]):
            yield take_rows(first, count), take_columns(first, count), take_data(first, count)


def _iter_csc_entries(archive: ZipFile, shape: tuple[int, int]) -> Iterator[Entries]:
    pointers = read_member(archive, "indptr")
    with (
        open_member_rows(archive, "indices") as take_rows,
        open_member_rows(archive, "data") as take_data,
    ):
        for first, count in _iter_entry_ranges(int(pointers[-1])):
            entry = np.arange(first, first + count)
            columns = np.searchsorted(pointers, entry, side="right") - 1
            yield take_rows(first, count), columns, take_data(first, count)


def _iter_dia_entries(archive: ZipFile, shape: tuple[int, int]) -> Iterator[Entries]:
    n_rows, n_columns = shape
    with open_member_rows(archive, "data") as take_diagonals:
        for number, offset in enumerate(read_member(archive, "offsets").tolist()):
            values = take_diagonals(number, 1)[0]
            columns = np.arange(max(0, offset), min(len(values), n_columns, n_rows + offset))
            yield columns - offset, columns, values[columns]


_UNORDERED_FORMATS = {"coo": _iter_coo_entries, "csc": _iter_csc_entries, "dia": _iter_dia_entries}
