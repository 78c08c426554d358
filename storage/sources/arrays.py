"""NumPy arrays: `.npy`, and `.npz` with a dense matrix or one packed eight values per byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.base import Source, SourceBatch, make_feature_names, translate_read_errors
from storage.sources.value_codes import MISSING, ReadOptions, check_numeric, encode_features

ReadRows = Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True)
class NpyHeader:
    """Shape, order and dtype of a stored array."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def read_member_headers(archive: ZipFile) -> dict[str, NpyHeader]:
    """Read the header of every array in an `.npz` archive, by array name."""
    headers = {}
    for member in archive.namelist():
        if member.endswith(".npy"):
            with archive.open(member) as stream:
                headers[member.removesuffix(".npy")] = read_header(stream)
    return headers


def read_header(stream: IO[bytes]) -> NpyHeader:
    """Read the header of a `.npy` file or member; the stream is then at the values."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return NpyHeader(*read(stream))


def read_member(archive: ZipFile, name: str) -> NDArray[Any]:
    """Read a small array as a whole."""
    with archive.open(name + ".npy") as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


@contextmanager
def open_member_rows(archive: ZipFile, name: str) -> Iterator[ReadRows]:
    """Open an array for reading consecutive ranges of rows: `take(first, n_rows)`.

    A Fortran-ordered matrix cannot be streamed by rows, so it is extracted to a temporary file.
    """
    with archive.open(name + ".npy") as stream:
        header = read_header(stream)
        if header.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects")
        if not header.fortran_order:
            yield lambda first, n_rows: _read_rows(stream, name, header, first, n_rows)
            return
    with TemporaryDirectory() as folder:
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


_SPLIT_LABELS = ("train", "valid", "test")
# Arrays of the packed form that are never per-row columns.
_RESERVED_ARRAYS = ("X", "M", "G", "shape", "cols", "segnames")


@dataclass(frozen=True, kw_only=True)
class NpySource(Source):
    """A `.npy` matrix."""

    is_streaming = True

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read the rows of the memory-mapped array."""
        if not self.n_rows:
            return
        with translate_read_errors(self.path):
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

    array: str
    packed: bool
    masked: bool
    labels: Mapping[str, tuple[str, ...]]

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Stream the matrix and the columns in parallel."""
        if not self.n_rows:
            return
        with translate_read_errors(self.path), ZipFile(self.path) as archive, ExitStack() as stack:
            streams = {
                name: stack.enter_context(open_member_rows(archive, name))
                for name in (self.array, *self.column_names, *(["M"] if self.masked else []))
            }
            for first, n_rows in self.iter_row_ranges(self.n_rows):
                parts = {name: take(first, n_rows) for name, take in streams.items()}
                yield self._make_batch(parts, first)

    def _make_batch(self, parts: Mapping[str, NDArray[Any]], first_row: int) -> SourceBatch:
        columns = {
            name: self._decode_column(name, parts[name], first_row) for name in self.column_names
        }
        values = self._unpack(parts[self.array])
        observed = self._unpack(parts["M"]) if self.masked else None
        return make_number_batch(self, values, first_row, columns, observed)

    def _unpack(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.unpackbits(values, axis=1, count=self.n_features) if self.packed else values

    def _decode_column(self, name: str, values: NDArray[Any], first_row: int) -> NDArray[Any]:
        if values.dtype.kind == "b":
            return values.astype(np.int8)
        if values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8")
        labels = self.labels.get(name)
        if labels is None or values.dtype.kind not in "iu":
            return values
        outside = (values < 0) | (values >= len(labels))
        if outside.any():
            row = int(outside.argmax())
            raise DataError(
                f"{self.format_row_place(first_row + row)}: Expected {name} from 0 to "
                f"{len(labels) - 1}, got {values[row]}. Correct the array {name!r}."
            )
        named: NDArray[np.str_] = np.array(labels)[values]
        return named


def make_number_batch(
    source: Source,
    values: NDArray[Any],
    first_row: int,
    columns: Mapping[str, NDArray[Any]] | None = None,
    observed: NDArray[np.uint8] | None = None,
) -> SourceBatch:
    """Make a batch from numbers, (n_rows, n_features), and an optional mask of the same shape."""
    codes = encode_features(values, source.options, source.feature_names)
    if observed is not None:
        codes[observed == 0] = MISSING

    def texts(rows: slice, feature: int) -> list[str]:
        return [str(value) for value in values[rows, feature]]

    return source.make_batch(codes, first_row, texts, columns)


def open_npy(path: str, options: ReadOptions) -> NpySource:
    """Open a `.npy` file; this reads its header."""
    with translate_read_errors(path), open(path, "rb") as stream:
        header = read_header(stream)
    if len(header.shape) != 2:
        raise DataError(f"{path}: Expected a matrix (2 dimensions), got {len(header.shape)}.")
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
            f"{path}: Expected an array 'X' or a single matrix, got "
            f"{', '.join(map(repr, matrices)) or 'no matrix'}. Name the matrix 'X'."
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
                f"{path}: Expected packed {name!r} of uint8 {expected}, got {header.dtype} "
                f"{header.shape}. Write it with numpy.packbits(axis=1)."
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
        f"{path}: Expected numbers or text in array {name!r}, got {header.dtype}. "
        f"Store it as text: {name}.astype(str)."
    )


def _read_texts(
    path: str, archive: ZipFile, headers: Mapping[str, NpyHeader], name: str
) -> tuple[str, ...]:
    """Read an array of names."""
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
            f"{path}: Expected {n_features} names in array 'cols', got {len(names)}. "
            "Name every feature, or leave 'cols' out."
        )
    return names


def _read_labels(
    path: str, archive: ZipFile, headers: Mapping[str, NpyHeader]
) -> dict[str, tuple[str, ...]]:
    if "segnames" not in headers:
        return {"split": _SPLIT_LABELS}
    return {"split": _SPLIT_LABELS, "seg": _read_texts(path, archive, headers, "segnames")}
