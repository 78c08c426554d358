"""Annotated matrices of cells: `.h5ad` files of AnnData."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.sources.arrays import number_batch
from storage.sources.arrow_columns import row_column
from storage.sources.base import Batch, Source, needed, reading
from storage.sources.spool import Entries, spooled_batches
from storage.sources.value_codes import ReadOptions, check_implicit_zeros, check_numeric

_NAMES = "obs_names"
"""Column of the cells' own names."""


@dataclass(frozen=True, kw_only=True)
class CellSource(Source):
    """The matrix X: cells are rows, and what was measured of them features.

    Attributes
    ----------
    encoding
        How X is stored: "array", "csr_matrix" or "csc_matrix".
    columns
        The per-row columns wanted, (n_rows,) each.
    """

    streams = True

    n_rows: int
    encoding: str
    columns: Mapping[str, pa.Array] = field(repr=False)

    def batches(self) -> Iterator[Batch]:
        """Read runs of cells; values that do not come by cells are put in order on disk."""
        import h5py

        with reading(self.path), h5py.File(self.path) as file:
            X = file["X"]
            if self.encoding != "csc_matrix":
                take = _dense_rows if self.encoding == "array" else _sparse_rows
                for first, n_rows in self.row_runs(self.n_rows):
                    values = take(X, first, n_rows, self.n_features)
                    yield number_batch(self, values, first, self._columns(first, n_rows))
                return
            first = 0
            for batch in spooled_batches(self, self.n_rows, _entries(X)):
                yield Batch(batch.X, batch.observed, self._columns(first, len(batch.X)))
                first += len(batch.X)

    def _columns(self, first: int, n_rows: int) -> dict[str, NDArray[Any]]:
        return {
            name: row_column(self, name, column.slice(first, n_rows), first)
            for name, column in self.columns.items()
        }


def _dense_rows(X: Any, first: int, n_rows: int, n_features: int) -> NDArray[Any]:
    rows: NDArray[Any] = X[first : first + n_rows]
    return rows


def _sparse_rows(X: Any, first: int, n_rows: int, n_features: int) -> NDArray[Any]:
    from scipy.sparse import csr_array

    pointers = X["indptr"][first : first + n_rows + 1]
    part = slice(int(pointers[0]), int(pointers[-1]))
    found = (X["data"][part], X["indices"][part], pointers - pointers[0])
    matrix = csr_array(found, shape=(n_rows, n_features))
    matrix.check_format()
    rows: NDArray[Any] = matrix.toarray()
    return rows


def _entries(X: Any) -> Iterator[Entries]:
    """Give the entries of compressed columns, a run of columns at a time."""
    pointers = X["indptr"][:]
    step = 1 << 20
    for start in range(0, int(pointers[-1]), step):
        rows, values = X["indices"][start : start + step], X["data"][start : start + step]
        columns = np.searchsorted(pointers, np.arange(start, start + len(rows)), side="right") - 1
        yield rows, columns, values


def open_cells(path: str, options: ReadOptions) -> CellSource:
    """Open an `.h5ad` file: reads the names of cells and features, and the columns wanted."""
    needed(path, "anndata", "cells")
    import h5py
    from anndata.io import read_elem

    with reading(path), h5py.File(path) as file:
        X = file["X"]
        encoding = str(X.attrs.get("encoding-type", "array"))
        names = tuple(map(str, read_elem(file["var"]).index))
        obs = read_elem(file["obs"])
        check_numeric(path, (X if encoding == "array" else X["data"]).dtype)
        if encoding != "array":
            check_implicit_zeros(path, options)
    known = {_NAMES: obs.index, **obs}
    columns = {n: pa.Array.from_pandas(known[n]) for n in options.row_columns if n in known}
    return CellSource(
        path=path,
        options=options,
        feature_names=names,
        n_rows=len(obs),
        column_names=tuple(columns),
        encoding=encoding,
        columns=columns,
    )
