"""Read arrays and data frames in batches of rows, so that large ones are never all in memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError

if TYPE_CHECKING:
    import narwhals as nw

_CELLS_AT_ONCE = 1 << 22
_FRAME = "The data frame"
_MAX_REASON_LENGTH = 300


@dataclass(frozen=True)
class RowBatches:
    """Rows of an array or a data frame, which can be read more than once.

    Attributes
    ----------
    feature_names
        Names of the columns of a data frame; None for arrays.
    n_features
        Number of columns.
    n_rows
        Number of rows.
    iter_batches
        Reads the rows in order: arrays, (n, n_features), masked if some values are, or data frames.
    """

    feature_names: tuple[str, ...] | None
    n_features: int
    n_rows: int
    iter_batches: Callable[[], Iterator[NDArray[Any] | nw.DataFrame[Any]]]


def is_read_in_batches(X: Any) -> bool:
    """Return whether X is not in memory as a dense array: sparse, lazy, or like a Zarr array."""
    if isinstance(X, np.ndarray | list | tuple):
        return False
    with translate_read_errors("X"):
        return is_sparse(X) or is_lazy_frame(X) or _is_chunked(X)


def is_sparse(X: Any) -> bool:
    """Return whether X is a sparse matrix or array of SciPy."""
    return hasattr(X, "tocsr")


def is_lazy_frame(X: Any) -> bool:
    """Return whether X is a lazy data frame of Polars."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(X, polars.LazyFrame)


def _is_chunked(X: Any) -> bool:
    """Return whether X is like an array of Dask, Zarr or HDF5."""
    return all(hasattr(X, name) for name in ("shape", "dtype", "chunks", "__getitem__"))


def open_array(X: ArrayLike) -> RowBatches:
    """Prepare to read the rows of an array, or of a sparse, Dask, Zarr or HDF5 one.

    Raises
    ------
    FitError
        If X does not have two dimensions of known length.
    """
    if is_lazy_frame(X):
        raise FitError("X is a data frame, not an array. Use `from_dataframe`.")
    with translate_read_errors("X"):
        array: Any = X if is_read_in_batches(X) else _convert_to_array(X)
        shape: tuple[Any, ...] = tuple(array.shape)
        if is_sparse(array):
            if hasattr(array, "check_format"):  # wrong indices would end the process
                array.check_format()
            array = array.tocsr()
    if len(shape) != 2:
        raise FitError(
            f"X has {len(shape)} dimensions instead of two: rows and features. "
            "Pass a matrix with one row per observation."
        )
    if any(math.isnan(size) for size in shape):
        raise FitError("The length of X is unknown. Call X.compute_chunk_sizes() first.")

    def read() -> Iterator[NDArray[Any]]:
        for index, (first, last) in enumerate(pairwise(_find_edges(array))):
            with translate_read_errors(_format_block(index, first, last)):
                rows = _read_rows(array, index, first, last)
            if rows.shape != (last - first, shape[1]):
                raise FitError(
                    f"{_format_block(index, first, last)} has the shape {rows.shape}, but the "
                    f"array declares {(last - first, shape[1])}. Correct the function that "
                    "makes the block, or its `chunks`."
                )
            yield rows

    return RowBatches(None, int(shape[1]), int(shape[0]), read)


@contextmanager
def translate_read_errors(subject: str) -> Iterator[None]:
    """Turn any exception of a library that reads data into a one-line `FitError`.

    Only calls of methods of the user's objects belong into it, so that mistakes of this program are
    not taken for damaged data.
    """
    try:
        yield
    except (FitError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")[:_MAX_REASON_LENGTH]
        raise FitError(f"{subject} cannot be read: {reason or type(error).__name__}.") from error


def _read_rows(array: Any, index: int, first: int, last: int) -> NDArray[Any]:
    """Read a batch of rows; blocks of Dask are read whole, and may differ from what they declare.

    Dask would cut a block that is longer than declared without a word.
    """
    rows = array.blocks[index].compute() if hasattr(array, "compute") else array[first:last]
    return _as_array(rows.toarray() if hasattr(rows, "toarray") else rows)


def _as_array(rows: Any) -> NDArray[Any]:
    """Return an array, which may be masked, but is no matrix."""
    is_masked = isinstance(rows, np.ma.MaskedArray)
    return decode_bytes(np.asanyarray(rows) if is_masked else np.asarray(rows))


def decode_bytes(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of which those that are bytes, as HDF5 stores texts, are texts.

    Raises `FitError` if they are not UTF-8.
    """
    if values.dtype.kind not in "SO":
        return values
    cells = np.ma.getdata(values).ravel().tolist()
    if bytes not in {*map(type, cells)}:
        return values
    texts = np.empty(len(cells), object)
    try:
        texts[:] = [cell.decode() if isinstance(cell, bytes) else cell for cell in cells]
    except UnicodeDecodeError as error:
        raise FitError(
            f"The bytes {error.object[:40]!r} are not UTF-8. Decode them to texts."
        ) from None
    decoded: NDArray[Any] = texts.reshape(values.shape)
    is_masked = isinstance(values, np.ma.MaskedArray)
    return np.ma.masked_array(decoded, np.ma.getmaskarray(values)) if is_masked else decoded


def _format_block(index: int, first: int, last: int) -> str:
    return f"Block {index + 1} of X (rows {first + 1} to {last}, counted from 1)"


def open_frame(frame: Any, columns: Sequence[str]) -> RowBatches:
    """Prepare to read columns of a data frame of Narwhals, or of a lazy one of Polars."""
    height = max(1, _CELLS_AT_ONCE // max(1, len(columns)))
    rows = _select(frame, columns)
    with translate_read_errors(_FRAME):
        n_rows = _count_rows(frame)

    def read() -> Iterator[nw.DataFrame[Any]]:
        with translate_read_errors(_FRAME):
            yield from read_frames()

    def read_frames() -> Iterator[nw.DataFrame[Any]]:
        if not is_lazy_frame(rows):
            yield from (rows[first : first + height] for first in range(0, len(rows), height))
            return
        n_read = 0
        for batch in map(_wrap, rows.collect_batches(chunk_size=height, maintain_order=True)):
            n_read += len(batch)
            yield batch
        if n_read != n_rows:
            raise FitError(
                f"The lazy frame has {n_read:,} rows, but had {n_rows:,} when it was counted. "
                "Collect it first."
            )

    return RowBatches(tuple(columns), len(columns), n_rows, read)


def _count_rows(frame: Any) -> int:
    if not is_lazy_frame(frame):
        return len(frame)
    return int(frame.select(sys.modules["polars"].len()).collect().item())


def list_columns(frame: Any) -> list[str]:
    """Return the names of all columns of such a frame."""
    with translate_read_errors(_FRAME):
        names = frame.collect_schema().names() if is_lazy_frame(frame) else frame.columns
    return list(names)


def read_columns(frame: Any, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read all rows of some columns of such a frame."""
    rows = _select(frame, columns)
    with translate_read_errors(_FRAME):
        table = _wrap(rows.collect()) if is_lazy_frame(rows) else rows
        named = zip(columns, table.iter_columns(), strict=True)
        return {name: _read_exactly(column) for name, column in named}


def _read_exactly(column: nw.Series[Any]) -> NDArray[Any]:
    """Return the values of a column; missing integers and booleans are None."""
    is_exact = column.dtype.is_integer() or column.dtype == "Boolean"
    if is_exact and column.null_count():
        return np.array(column.to_list(), object)
    return read_column(column)


def read_column(column: nw.Series[Any]) -> NDArray[Any]:
    """Return the values of a column.

    Raises
    ------
    FitError
        If each value is several, as in a column of structures.
    """
    with translate_read_errors(f"Column {column.name!r}"):
        values = decode_bytes(column.to_numpy())
    if values.ndim != 1:
        raise FitError(
            f"Column {column.name!r} has the type {column.dtype}, which is several values per row. "
            "Make columns of them, or leave it out."
        )
    return values


def _select(frame: Any, columns: Sequence[Any]) -> Any:
    """Select columns by name; those of pandas need not be texts."""
    if is_lazy_frame(frame) or frame.implementation.is_polars():
        for name in columns:
            if name == "*" or (name.startswith("^") and name.endswith("$")):
                raise FitError(f"Column {name!r}: Polars takes this name for a pattern. Rename it.")
    if is_lazy_frame(frame):
        return frame.select(columns)
    import narwhals as nw

    with translate_read_errors(_FRAME):
        return frame.select([nw.col(name) for name in columns])


def _wrap(frame: Any) -> nw.DataFrame[Any]:
    import narwhals as nw  # only data frames need it

    return nw.from_native(frame, eager_only=True)


def _find_edges(array: Any) -> list[int]:
    """Return the first row of each batch, and the end: whole chunks, if there are any."""
    n_rows, n_features = array.shape
    height = max(1, _CELLS_AT_ONCE // max(1, n_features))
    chunks = getattr(array, "chunks", None)
    if chunks is not None and not isinstance(chunks[0], int):  # of Dask: the sizes of all chunks
        return [0, *np.cumsum(chunks[0]).tolist()]
    if chunks is not None:
        height = chunks[0] * max(1, height // chunks[0])
    return [*range(0, n_rows, height), n_rows]


def _convert_to_array(X: ArrayLike) -> NDArray[Any]:
    try:
        return _as_array(X)
    except FitError:
        raise
    except ValueError as error:
        raise FitError(f"The rows of X have different lengths ({error}).") from None
