"""NumPy files: `.npy`, and `.npz` with a dense, bit-packed or SciPy sparse matrix."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch
from storage.dataset.chunks import Bytes, transpose_packed
from storage.errors import DataError
from storage.sources.base import Source, check_integers, make_feature_names
from storage.sources.spool import Entries, TemporaryFolder, format_duplicate, spool_entries
from storage.sources.value_codes import (
    PackedValues,
    ReadOptions,
    check_implicit_zeros,
    check_numeric,
    encode_features,
    encode_numbers,
    mark_missing,
    merge_bitmaps,
    store_numbers,
)

_SPLIT_LABELS = ("train", "valid", "test")
# Arrays of the packed form that are never per-row columns.
_RESERVED_ARRAYS = ("X", "M", "G", "shape", "cols", "segnames")
_ENTRIES_AT_ONCE = 1 << 20
ReadRows = Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True)
class NpyHeader:
    """Shape, order and dtype of a stored array."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def read_member_headers(archive: ZipFile) -> dict[str, NpyHeader]:
    """Read the header of every array in an `.npz` archive, by array name."""
    headers: dict[str, NpyHeader] = {}
    for member in archive.namelist():
        if member.endswith(".npy"):
            name = member.removesuffix(".npy")
            if name in headers:
                raise DataError(
                    f"{archive.filename}: the archive has two arrays named {name!r}. "
                    "Write it again with one."
                )
            with archive.open(member) as stream:
                headers[name] = read_header(stream)
    return headers


def read_header(stream: IO[bytes]) -> NpyHeader:
    """Read the header of a `.npy` file or member; the stream is then at the values."""
    version = npy.read_magic(stream)
    read_array_header = (
        npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    )
    return NpyHeader(*read_array_header(stream))


def read_member(archive: ZipFile, name: str) -> NDArray[Any]:
    """Read a small array as a whole."""
    with archive.open(name + ".npy") as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


@contextmanager
def open_member_rows(archive: ZipFile, name: str) -> Iterator[ReadRows]:
    """Yield a function `take(first, n_rows)` that reads the next rows of an array.

    A Fortran-ordered matrix cannot be streamed by rows, so it is extracted to a temporary file.
    """
    with archive.open(name + ".npy") as stream:
        header = read_header(stream)
        if header.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects")
        if not header.fortran_order:
            yield lambda first, n_rows: _read_rows(stream, name, header, first, n_rows)
            return
    with TemporaryFolder() as folder:
        path = archive.extract(name + ".npy", folder)
        array = np.load(path, mmap_mode="r")
        yield lambda first, n_rows: array[first : first + n_rows]


def _read_rows(
    stream: IO[bytes], name: str, header: NpyHeader, first: int, n_rows: int
) -> NDArray[Any]:
    """Read the next rows; after the last one, the archive's checksum is checked."""
    shape = (n_rows, *header.shape[1:])
    n_bytes = int(np.prod(shape, dtype=np.int64)) * header.dtype.itemsize
    data = stream.read(n_bytes)
    is_last = first + n_rows == header.shape[0]
    if len(data) != n_bytes or (is_last and stream.read(1)):
        raise ValueError(f"array {name!r} is not as long as its header says")
    return np.frombuffer(data, header.dtype).reshape(shape)


@dataclass(frozen=True, kw_only=True)
class NpySource(Source):
    """A `.npy` matrix."""

    is_streaming = True
    can_be_continuous = True

    def _read_batches(self) -> Generator[RowBatch]:
        """Read the rows of the memory-mapped array."""
        if not self.n_rows:
            return
        array = np.load(self.path, mmap_mode="r")
        for first, n_rows in self.iter_row_ranges(self.n_rows):
            yield make_number_batch(self, array[first : first + n_rows], first)


@dataclass(frozen=True, kw_only=True)
class NpzSource(Source):
    """A dense or packed matrix in an `.npz` archive.

    Attributes
    ----------
    array
        Name of the matrix.
    packed
        Whether it was packed by `numpy.packbits(X, axis=1)`.
    masked
        Whether the archive contains a packed mask `M`, 1 = observed.
    labels
        Names of the values 0, 1, … of a column, by column.
    """

    is_streaming = True
    can_be_continuous = True

    array: str
    packed: bool
    masked: bool
    labels: Mapping[str, tuple[str, ...]]

    def _read_batches(self) -> Generator[RowBatch]:
        """Stream the matrix and the columns in parallel."""
        if not self.n_rows:
            return
        with ZipFile(self.path) as archive, ExitStack() as stack:
            streams = {
                name: stack.enter_context(open_member_rows(archive, name))
                for name in (self.array, *self.column_names, *(["M"] if self.masked else []))
            }
            for first, n_rows in self.iter_row_ranges(self.n_rows):
                parts = {name: take(first, n_rows) for name, take in streams.items()}
                yield self._make_batch(parts, first)

    def _make_batch(self, parts: Mapping[str, NDArray[Any]], first_row: int) -> RowBatch:
        columns = {
            name: self._decode_column(name, parts[name], first_row) for name in self.column_names
        }
        packed = self._pack(parts) if self.packed else None
        if packed is not None:
            return RowBatch(len(parts[self.array]), *packed, columns)
        values = self._unpack(parts[self.array])
        observed = self._unpack(parts["M"]) if self.masked else None
        return make_number_batch(self, values, first_row, columns, observed)

    def _pack(self, parts: Mapping[str, NDArray[Any]]) -> PackedValues | None:
        """Pack packed rows by feature; None if features differ in meaning, or 0 or 1 is invalid."""
        is_common, value_map = self.options.find_common_map(self.feature_names)
        if not is_common or self.continuous_features:
            return None
        bits = _transpose_rows(parts[self.array], self.n_features)
        mask = _transpose_rows(parts["M"], self.n_features) if self.masked else None
        return merge_bitmaps(
            encode_numbers(np.arange(2), self.options, value_map),
            lambda value: bits if value else ~bits,
            (self.n_features,),
            len(parts[self.array]),
            mask,
        )

    def _unpack(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.unpackbits(values, axis=1, count=self.n_features) if self.packed else values

    def _decode_column(self, name: str, values: NDArray[Any], first_row: int) -> NDArray[Any]:
        if values.dtype.kind == "b":
            return values.astype(np.int8)
        if values.dtype.kind in "iu":
            values = check_integers(
                values, name, lambda row: self.format_row_place(first_row + row)
            )
        if values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8")
        labels = self.labels.get(name)
        if labels is None or values.dtype.kind not in "iu":
            return values
        outside = (values < 0) | (values >= len(labels))
        if outside.any():
            row = int(outside.argmax())
            raise DataError(
                f"{self.format_row_place(first_row + row)}: {name} is {values[row]}, but must be "
                f"from 0 to {len(labels) - 1}. Correct the array {name!r}."
            )
        texts: NDArray[np.str_] = np.array(labels)[values]
        return texts


def _transpose_rows(rows: NDArray[np.uint8], n_features: int) -> Bytes:
    """Transpose rows from `numpy.packbits`, whose first bit is the highest one of a byte."""
    bits = transpose_packed(rows, 8 * rows.shape[1])
    ordered = bits.reshape(rows.shape[1], 8, -1)[:, ::-1].reshape(bits.shape)
    return ordered[:n_features]


def make_number_batch(
    source: Source,
    values: NDArray[Any],
    first_row: int,
    columns: Mapping[str, NDArray[Any]] | None = None,
    observed: NDArray[np.uint8] | None = None,
) -> RowBatch:
    """Make a batch from numbers, (n_rows, n_features), and an optional mask of the same shape."""
    codes = encode_features(values, source.options, source.feature_names)
    if observed is not None:
        codes = mark_missing(codes, observed == 0)

    def texts(rows: slice, feature: int) -> list[str]:
        return [str(value) for value in values[rows, feature]]

    def read(feature: int) -> NDArray[np.float32]:
        own = values[:, feature]
        if observed is not None:
            own = np.where(observed[:, feature] == 0, np.nan, own)
        return store_numbers(
            own,
            source.options,
            lambda row: str(values[row, feature]),
            lambda row: source.format_place(first_row + row, feature),
        )

    return source.make_batch(codes, first_row, texts, columns, source.stack_numbers(read))


def make_dimensions_error(path: str, n_dimensions: int) -> DataError:
    """Return the error about an array that is not a matrix."""
    return DataError(f"{path}: the array has {n_dimensions} dimensions, but a matrix has 2.")


def open_npy(path: str, options: ReadOptions) -> NpySource:
    """Open a `.npy` file; this reads its header."""
    with open(path, "rb") as stream:
        header = read_header(stream)
    if len(header.shape) != 2:
        raise make_dimensions_error(path, len(header.shape))
    check_numeric(path, header.dtype)
    n_rows, n_features = header.shape
    return NpySource(
        path=path, options=options, feature_names=make_feature_names(n_features), n_rows=n_rows
    )


def open_dense(
    path: str, options: ReadOptions, archive: ZipFile, headers: Mapping[str, NpyHeader]
) -> NpzSource:
    """Open an `.npz` archive with a dense or packed matrix."""
    packed = {"X", "shape"} <= headers.keys() and headers["shape"].shape == (2,)
    array = "X" if packed else _find_matrix_name(path, headers)
    check_numeric(path, headers[array].dtype)
    n_rows, n_features = read_member(archive, "shape") if packed else headers[array].shape
    if packed:
        _check_packed(path, headers, int(n_rows), int(n_features))
    columns = _list_column_names(
        path, headers, int(n_rows), _RESERVED_ARRAYS if packed else ("cols",)
    )
    return NpzSource(
        path=path,
        options=options,
        feature_names=_read_feature_names(path, archive, headers, int(n_features)),
        n_rows=int(n_rows),
        column_names=columns,
        default_segment="seg" if packed and "seg" in columns else None,
        default_split="split" if packed and "split" in columns else None,
        array=array,
        packed=packed,
        masked=packed and "M" in headers,
        labels=_read_labels(path, archive, headers) if packed else {},
    )


def _find_matrix_name(path: str, headers: Mapping[str, NpyHeader]) -> str:
    matrices = [name for name, header in headers.items() if len(header.shape) == 2]
    if "X" in matrices:
        return "X"
    if len(matrices) != 1:
        raise DataError(
            f"{path}: the archive must have one matrix, or one named 'X', but has "
            f"{', '.join(map(repr, matrices)) or 'none'}. Name the matrix 'X'."
        )
    return matrices[0]


def _check_packed(
    path: str, headers: Mapping[str, NpyHeader], n_rows: int, n_features: int
) -> None:
    expected = (n_rows, -(-n_features // 8))
    for name in ("X", "M"):
        header = headers.get(name)
        if header and (header.shape != expected or header.dtype != np.uint8):
            raise DataError(
                f"{path}: the packed array {name!r} is {header.dtype} {header.shape}, but must be "
                f"uint8 {expected}. Write it with numpy.packbits(axis=1)."
            )


def _list_column_names(
    path: str, headers: Mapping[str, NpyHeader], n_rows: int, reserved: tuple[str, ...]
) -> tuple[str, ...]:
    names = [
        name
        for name, header in headers.items()
        if header.shape == (n_rows,) and name not in reserved
    ]
    for name in names:
        if headers[name].dtype.kind not in "biufUS":
            raise DataError(_format_column_type_error(path, name, headers[name]))
    return tuple(names)


def _format_column_type_error(path: str, name: str, header: NpyHeader) -> str:
    return (
        f"{path}: the array {name!r} holds {header.dtype}, not numbers or text. "
        f"Store it as text: {name}.astype(str)."
    )


def _read_texts(
    path: str, archive: ZipFile, headers: Mapping[str, NpyHeader], name: str
) -> tuple[str, ...]:
    if headers[name].dtype.kind not in "iuUS":
        raise DataError(_format_column_type_error(path, name, headers[name]))
    values = read_member(archive, name).ravel()
    return tuple(
        value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()
    )


def _read_feature_names(
    path: str, archive: ZipFile, headers: Mapping[str, NpyHeader], n_features: int
) -> tuple[str, ...]:
    if "cols" not in headers:
        return make_feature_names(n_features)
    names = _read_texts(path, archive, headers, "cols")
    if len(names) == 1 < n_features:
        names = tuple(names[0].rstrip(",").split(","))
    if len(names) != n_features:
        raise DataError(
            f"{path}: the array 'cols' has {len(names)} names for {n_features} features. "
            "Name every feature, or leave 'cols' out."
        )
    return names


def _read_labels(
    path: str, archive: ZipFile, headers: Mapping[str, NpyHeader]
) -> dict[str, tuple[str, ...]]:
    if "segnames" not in headers:
        return {"split": _SPLIT_LABELS}
    return {"split": _SPLIT_LABELS, "seg": _read_texts(path, archive, headers, "segnames")}


@dataclass(frozen=True, kw_only=True)
class RowSparseSource(Source):
    """Compressed rows (CSR) or rows of blocks (BSR), read in file order.

    `block` has the rows and columns of a stored block: (1, 1) for CSR.
    """

    is_streaming = True

    n_rows: int
    block: tuple[int, int]

    def _read_batches(self) -> Generator[RowBatch]:
        """Stream pointers, column indices and values in parallel."""
        with (
            ZipFile(self.path) as archive,
            open_member_rows(archive, "indptr") as take_pointers,
            open_member_rows(archive, "indices") as take_indices,
            open_member_rows(archive, "data") as take_data,
        ):
            n_entries = read_member_headers(archive)["data"].shape[0]
            if start := int(take_pointers(0, 1)[0]):
                raise ValueError(f"the pointers start at {start} instead of 0")
            for first, n_rows in self._iter_block_row_ranges():
                ends = take_pointers(first + 1, n_rows)
                counts = np.diff(ends, prepend=start)
                if not 0 <= counts.min() <= counts.max() <= self.n_features // self.block[1]:
                    raise ValueError("row pointers decrease, or leap beyond a full row")
                rows = np.repeat(np.arange(n_rows), counts)
                columns = take_indices(start, len(rows))
                values, height = take_data(start, len(rows)), self.block[0]
                yield make_sparse_batch(
                    self, first * height, n_rows * height, rows, columns, values
                )
                start = int(ends[-1])
            if start != n_entries:
                raise ValueError(f"the pointers end at {start}, but there are {n_entries} entries")

    def _iter_block_row_ranges(self) -> Iterator[tuple[int, int]]:
        step = max(1, self.batch_rows // self.block[0])
        n_block_rows = self.n_rows // self.block[0]
        for first in range(0, n_block_rows, step):
            yield first, min(step, n_block_rows - first)


def make_sparse_batch(
    source: Source,
    first_row: int,
    n_rows: int,
    rows: NDArray[Any],
    columns: NDArray[Any],
    values: NDArray[Any],
    *,
    row_columns: Mapping[str, NDArray[Any]] | None = None,
) -> RowBatch:
    """Make a batch from the entries of consecutive rows; cells without an entry are 0.

    Parameters
    ----------
    source
        The source of the rows.
    first_row, n_rows
        The rows of the source.
    rows, columns
        Rows, counted from `first_row`, and columns of the entries, (n_entries,). If the entries are
        blocks, rows and columns of blocks.
    values
        The entries, (n_entries,), or blocks, (n_entries, height, width).
    row_columns
        Per-row columns of the same rows.

    Raises
    ------
    DataError
        If a cell has two entries, or a value is not binary.
    ValueError
        If a column is outside the matrix.
    """
    height, width = values.shape[1:] or (1, 1)
    values = values.reshape(-1, height, width)
    n_block_rows, n_columns = n_rows // height, source.n_features // width
    if len(columns) and not 0 <= columns.min() <= columns.max() < n_columns:
        raise ValueError(f"a column index lies outside 0 to {n_columns - 1}")
    repeated = _find_repeated(rows * n_columns + columns.astype(np.int64), n_block_rows * n_columns)
    if repeated is not None:
        row, column = divmod(repeated, n_columns)
        raise DataError(format_duplicate(source, first_row + row * height, column * width))
    codes = np.zeros((n_block_rows, height, n_columns, width), np.uint8)
    codes[rows, :, columns, :] = encode_numbers(values, source.options)

    def texts(part: slice, feature: int) -> list[str]:
        column = np.zeros(n_rows, values.dtype).reshape(n_block_rows, height)
        entries = columns == feature // width
        column[rows[entries]] = values[entries, :, feature % width]
        return [str(value) for value in column.reshape(-1)[part]]

    return source.make_batch(codes.reshape(n_rows, -1), first_row, texts, row_columns)


def _find_repeated(cells: NDArray[np.int64], n_cells: int) -> int | None:
    """Return a cell that occurs twice, or None."""
    present = np.zeros(n_cells, np.bool_)
    present[cells] = True
    if np.count_nonzero(present) == len(cells):
        return None
    ordered = np.sort(cells)
    return int(ordered[1:][ordered[1:] == ordered[:-1]][0])


@dataclass(frozen=True, kw_only=True)
class UnorderedSparseSource(Source):
    """A sparse matrix whose entries are not ordered by row: CSC, COO or DIA."""

    n_rows: int
    entries: Callable[[ZipFile, tuple[int, int]], Iterator[Entries]]

    def _read_batches(self) -> Generator[RowBatch]:
        """Order the entries on disk, then read the rows."""
        with ZipFile(self.path) as archive:
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
        raise make_dimensions_error(path, len(shape))
    check_numeric(path, headers["data"].dtype)
    check_implicit_zeros(path, options)
    n_rows, n_features = int(shape[0]), int(shape[1])
    names = make_feature_names(n_features)
    if kind in ("csr", "bsr"):
        block = headers["data"].shape[1:] or (1, 1)
        _check_blocks(headers, n_rows, n_features, block)
        return RowSparseSource(
            path=path,
            options=options,
            feature_names=names,
            n_rows=n_rows,
            block=(block[0], block[1]),
        )
    if kind not in _UNORDERED_FORMATS:
        raise DataError(
            f"{path}: the sparse format {kind!r} is not one of bsr, coo, csc, csr, dia. "
            "Convert the matrix with .tocsr()."
        )
    return UnorderedSparseSource(
        path=path,
        options=options,
        feature_names=names,
        n_rows=n_rows,
        entries=_UNORDERED_FORMATS[kind],
    )


def _check_blocks(
    headers: Mapping[str, NpyHeader], n_rows: int, n_features: int, block: tuple[int, ...]
) -> None:
    """Check the sizes of compressed rows; the pointers themselves are checked as they are read."""
    height, width = block
    if n_rows % height or n_features % width:
        raise ValueError(f"blocks of {height} x {width} do not tile the matrix")
    if headers["indptr"].shape != (n_rows // height + 1,):
        raise ValueError(f"expected {n_rows // height + 1} row pointers")
    _check_same_length(headers, "data", "indices")


def _check_same_length(headers: Mapping[str, NpyHeader], *names: str) -> None:
    lengths = {name: headers[name].shape[0] for name in names}
    if len({*lengths.values()}) > 1:
        shown = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise ValueError(f"the numbers of entries differ: {shown}")


def check_pointers(pointers: NDArray[Any], n_runs: int, n_entries: int) -> None:
    """Raise `ValueError` unless pointers divide all entries into runs, one per row or column."""
    if pointers.dtype.kind not in "iu" or pointers.shape != (n_runs + 1,):
        raise ValueError(f"expected {n_runs + 1} whole numbers as pointers")
    if pointers[0] != 0:
        raise ValueError(f"the pointers start at {pointers[0]} instead of 0")
    if pointers[-1] != n_entries:
        raise ValueError(f"the pointers end at {pointers[-1]}, but there are {n_entries} entries")
    if (pointers[1:] < pointers[:-1]).any():
        raise ValueError("pointers decrease")


def _iter_entry_ranges(n_entries: int) -> Iterator[tuple[int, int]]:
    for first in range(0, n_entries, _ENTRIES_AT_ONCE):
        yield first, min(_ENTRIES_AT_ONCE, n_entries - first)


def _iter_coo_entries(archive: ZipFile, shape: tuple[int, int]) -> Iterator[Entries]:
    headers = read_member_headers(archive)
    _check_same_length(headers, "data", "row", "col")
    with (
        open_member_rows(archive, "row") as take_rows,
        open_member_rows(archive, "col") as take_columns,
        open_member_rows(archive, "data") as take_data,
    ):
        for first, count in _iter_entry_ranges(headers["data"].shape[0]):
            yield take_rows(first, count), take_columns(first, count), take_data(first, count)


def _iter_csc_entries(archive: ZipFile, shape: tuple[int, int]) -> Iterator[Entries]:
    headers, pointers = read_member_headers(archive), read_member(archive, "indptr")
    _check_same_length(headers, "data", "indices")
    check_pointers(pointers, shape[1], headers["data"].shape[0])
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
    _check_same_length(read_member_headers(archive), "data", "offsets")
    with open_member_rows(archive, "data") as take_diagonals:
        for number, offset in enumerate(read_member(archive, "offsets").tolist()):
            values = take_diagonals(number, 1)[0]
            columns = np.arange(max(0, offset), min(len(values), n_columns, n_rows + offset))
            yield columns - offset, columns, values[columns]


_UNORDERED_FORMATS = {"coo": _iter_coo_entries, "csc": _iter_csc_entries, "dia": _iter_dia_entries}
