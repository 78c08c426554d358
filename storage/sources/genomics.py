"""Biological data: cell matrices (`.h5ad` of AnnData) and genotypes (`.bed` of PLINK)."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch
from storage.errors import DataError
from storage.extras import check_installed
from storage.sources.arrays import check_pointers, make_number_batch, make_sparse_batch
from storage.sources.arrow_columns import convert_row_column
from storage.sources.base import Source, translate_read_errors
from storage.sources.spool import Entries, spool_entries
from storage.sources.value_codes import ReadOptions, check_implicit_zeros, check_numeric

# Every range of individuals is spread over the whole file, so few long ranges are faster.
_READ_CELLS = 1 << 27
_FAM_COLUMNS = ("fid", "iid", "father", "mother", "sex", "pheno")
_MISSING_COUNT = -127
_CELL_NAMES = "obs_names"
"""Column of the cell names."""
_WRITE_AGAIN = "Write the file again with anndata."


@dataclass(frozen=True, kw_only=True)
class AnnDataSource(Source):
    """The matrix X of an `.h5ad` file: cells are rows, measurements are features.

    `encoding` states how X is stored: "array", "csr_matrix" or "csc_matrix". `columns` has the
    requested per-row columns, (n_rows,) each.
    """

    is_streaming = True
    can_be_continuous = True  # sparse matrices are refused when they are opened

    n_rows: int
    encoding: str
    columns: Mapping[str, pa.Array] = field(repr=False)

    def _read_batches(self) -> Generator[RowBatch]:
        """Read ranges of cells; a column-major matrix is reordered on disk first."""
        import h5py

        with h5py.File(self.path) as file:
            X = file["X"]
            if self.encoding == "csc_matrix":
                first = 0
                for batch in spool_entries(self, self.n_rows, _iter_column_entries(X)):
                    columns = self._slice_columns(first, len(batch))
                    yield replace(batch, columns=columns)
                    first += len(batch)
                return
            for first, n_rows in self.iter_row_ranges(self.n_rows):
                columns = self._slice_columns(first, n_rows)
                if self.encoding == "array":
                    yield make_number_batch(self, X[first : first + n_rows], first, columns)
                else:
                    entries = _read_row_entries(X, first, n_rows)
                    yield make_sparse_batch(self, first, n_rows, *entries, row_columns=columns)

    def _slice_columns(self, first: int, n_rows: int) -> dict[str, NDArray[Any]]:
        return {
            name: convert_row_column(self, name, column.slice(first, n_rows), first)
            for name, column in self.columns.items()
        }


def _read_row_entries(X: Any, first: int, n_rows: int) -> Entries:
    """Return the entries of compressed rows."""
    pointers = X["indptr"][first : first + n_rows + 1]
    part = slice(int(pointers[0]), int(pointers[-1]))
    rows = np.repeat(np.arange(n_rows), np.diff(pointers))
    return rows, X["indices"][part], X["data"][part]


def _iter_column_entries(X: Any) -> Iterator[Entries]:
    """Yield the entries of compressed columns, a range of entries at a time."""
    pointers = X["indptr"][:]
    step = 1 << 20
    for start in range(0, int(pointers[-1]), step):
        rows, values = X["indices"][start : start + step], X["data"][start : start + step]
        columns = np.searchsorted(pointers, np.arange(start, start + len(rows)), side="right") - 1
        yield rows, columns, values


def open_anndata(path: str, options: ReadOptions) -> AnnDataSource:
    """Open an `.h5ad` file; this reads the names and the requested per-row columns."""
    check_installed(path, "anndata")
    import h5py
    from anndata.io import read_elem

    with h5py.File(path) as file:
        for name in ("X", "obs", "var"):
            if name not in file:
                raise DataError(f"{path}: there is no {name!r}. {_WRITE_AGAIN}")
            _check_stored_inside(path, file, file[name])
        names = tuple(map(str, read_elem(file["var"]).index))
        obs = read_elem(file["obs"])
        encoding = _check_matrix(path, file["X"], (len(obs), len(names)), options)
    cell_columns, columns = {_CELL_NAMES: obs.index, **obs}, {}
    for name in (name for name in options.row_columns if name in cell_columns):
        with translate_read_errors(f"{path}: column {name!r}"):
            columns[name] = pa.Array.from_pandas(cell_columns[name])
    return AnnDataSource(
        path=path,
        options=options,
        feature_names=names,
        n_rows=len(obs),
        column_names=tuple(columns),
        encoding=encoding,
        columns=columns,
    )


def _check_stored_inside(path: str, file: Any, node: Any) -> None:
    """Refuse values that are in another file, or that were never written and would read as 0."""
    import h5py

    if node.file.filename != file.filename:
        raise DataError(f"{path}: {node.name!r} is a link to another file. {_WRITE_AGAIN}")
    if isinstance(node, h5py.Group):
        for child in node.values():
            _check_stored_inside(path, file, child)
        return
    if node.is_virtual or node.external:
        raise DataError(f"{path}: the values of {node.name!r} are in another file. {_WRITE_AGAIN}")
    if node.chunks is None:
        is_complete = node.id.get_storage_size() >= node.nbytes
    else:
        n_chunks = math.prod(-(-n // m) for n, m in zip(node.shape, node.chunks, strict=True))
        is_complete = node.id.get_num_chunks() == n_chunks
    if not is_complete:
        raise DataError(f"{path}: {node.name!r} was not written completely. {_WRITE_AGAIN}")


def _check_matrix(path: str, X: Any, shape: tuple[int, int], options: ReadOptions) -> str:
    """Check X against its attributes and the shape of the tables; return its encoding."""
    import h5py

    encoding = X.attrs.get("encoding-type", "array")
    encoding = encoding.decode() if isinstance(encoding, bytes) else str(encoding)
    is_sparse = encoding in ("csr_matrix", "csc_matrix")
    if isinstance(X, h5py.Group) != is_sparse or not (is_sparse or encoding == "array"):
        raise DataError(
            f"{path}: X is a {type(X).__name__.lower()} of type {encoding!r}, but must be a dense "
            "array, or a matrix of type 'csr_matrix' or 'csc_matrix'. Convert it with anndata."
        )
    check_numeric(path, (X["data"] if is_sparse else X).dtype)
    X_shape = tuple(map(int, X.attrs["shape"] if is_sparse else X.shape))
    if X_shape != shape:
        raise DataError(
            f"{path}: X is {' x '.join(map(str, X_shape))}, but 'obs' has {shape[0]} rows and "
            f"'var' has {shape[1]}. {_WRITE_AGAIN}"
        )
    if is_sparse:
        check_implicit_zeros(path, options)
        n_runs = shape[0 if encoding == "csr_matrix" else 1]
        if X["indices"].shape != X["data"].shape or X["indices"].dtype.kind not in "iu":
            raise ValueError("the entries of X need one whole number each as index")
        check_pointers(X["indptr"][:], n_runs, X["data"].size)
    return encoding


@dataclass(frozen=True, kw_only=True)
class BedSource(Source):
    """Counts of the first allele, 0 to 2: individuals are rows and variants are features."""

    n_rows: int

    @property
    def files(self) -> tuple[str, ...]:
        """The three files."""
        return tuple(str(Path(self.path).with_suffix(s)) for s in (".bed", ".bim", ".fam"))

    def _read_batches(self) -> Generator[RowBatch]:
        """Read long ranges of individuals and yield them as short ones."""
        step = max(self.batch_rows, _READ_CELLS // self.n_features)
        with _open_bed_reader(self.path) as bed:
            columns = {name: _read_fam_column(bed, name) for name in self.column_names}
            for start in range(0, self.n_rows, step):
                counts = bed.read(np.s_[start : start + step, :], dtype="int8", order="C")
                for first, n_rows in self.iter_row_ranges(len(counts)):
                    values = counts[first : first + n_rows]
                    rows = slice(start + first, start + first + n_rows)
                    row_values = {name: column[rows] for name, column in columns.items()}
                    observed = (values != _MISSING_COUNT).view(np.uint8)
                    yield make_number_batch(self, values, start + first, row_values, observed)


def open_bed(path: str, options: ReadOptions) -> BedSource:
    """Open a `.bed` file; this reads the names in the other two files."""
    check_installed(path, "bed_reader")
    if options.threshold is None and not (options.maps or options.feature_maps):
        raise DataError(
            f"{path}: choose which allele counts are 1: {{genotypes=dominant}} (one or two) or "
            "{genotypes=recessive} (two); or keep the counts as levels: {genotypes=additive}."
        )
    with _open_bed_reader(path) as bed:
        return BedSource(
            path=path,
            options=options,
            feature_names=tuple(bed.sid.tolist()),
            n_rows=bed.iid_count,
            column_names=tuple(name for name in _FAM_COLUMNS if name in options.row_columns),
        )


def _open_bed_reader(path: str) -> Any:
    import bed_reader

    return bed_reader.open_bed(path)


def _read_fam_column(bed: Any, name: str) -> Any:
    """Return a column of the `.fam` file; missing entries are empty.

    PLINK reads every sex but 1 and 2 as missing.
    """
    values = getattr(bed, name)
    if name == "sex":
        return np.select([values == 1, values == 2], ["1", "2"], "")
    return values.astype(str)
