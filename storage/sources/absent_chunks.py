"""Chunks of Zarr and HDF5 arrays that are not stored, which their libraries read as fill values."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError

AbsentChunks = Literal["refuse", "fill", "missing"]
"""What chunks that are not stored mean: an error, the array's fill value, or missing values."""
_ABSENT_PART = 2**64 - 1
"""Offset and length of a part of a shard that is not stored."""


def find_absent_chunks(array: Any) -> NDArray[np.bool_]:
    """Return which chunks of a matrix of Zarr or HDF5 are not stored, (chunk row, chunk column).

    The store is listed once. Of each shard, its index is read.
    """
    if not hasattr(array, "store_path"):
        return _find_absent_hdf5(array)
    from zarr.core.sync import sync  # the public methods count chunks, but do not name them

    return sync(_find_absent_zarr(array))


async def _find_absent_zarr(array: Any) -> NDArray[np.bool_]:
    store, prefix = array.store_path.store, array.store_path.path
    prefix = f"{prefix}/" if prefix else ""
    is_absent = np.ones(_count_chunks(array.shape, array.shards or array.chunks), np.bool_)
    async for key in store.list_prefix(prefix):
        found = re.fullmatch(r"(?:c[./])?(\d+)[./](\d+)", key.removeprefix(prefix))
        place = tuple(map(int, found.groups())) if found else is_absent.shape
        if all(k < n for k, n in zip(place, is_absent.shape, strict=True)):
            is_absent[place] = False
    if array.shards is None:
        return is_absent
    height, width = np.array(array.shards) // array.chunks
    by_part = np.repeat(np.repeat(is_absent, height, axis=0), width, axis=1)
    for row, column in np.argwhere(~is_absent).tolist():
        key = prefix + array.metadata.encode_chunk_key((row, column))
        own = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        by_part[own] = await _read_absent_parts(array, key, (int(height), int(width)))
    n_rows, n_columns = _count_chunks(array.shape, array.chunks)
    return by_part[:n_rows, :n_columns]


async def _read_absent_parts(array: Any, key: str, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Read the index of a shard, and return which of its parts are not stored."""
    from zarr.abc.store import RangeByteRequest, SuffixByteRequest
    from zarr.core.buffer import default_buffer_prototype

    codec = array.metadata.codecs[0]
    names = [type(own).__name__ for own in getattr(codec, "index_codecs", ())]
    if names not in (["BytesCodec"], ["BytesCodec", "Crc32cCodec"]):
        return np.zeros(shape, np.bool_)  # an index that only Zarr can read
    n_bytes = 16 * shape[0] * shape[1]
    whole = n_bytes + 4 * (len(names) - 1)
    is_first = codec.index_location.value == "start"
    request = RangeByteRequest(0, whole) if is_first else SuffixByteRequest(whole)
    content = await array.store_path.store.get(key, default_buffer_prototype(), request)
    order = ">" if codec.index_codecs[0].endian.value == "big" else "<"
    index = np.frombuffer(content.to_bytes()[:n_bytes], f"{order}u8").reshape(*shape, 2)
    return np.asarray((index == _ABSENT_PART).all(axis=2), np.bool_)


def _find_absent_hdf5(array: Any) -> NDArray[np.bool_]:
    if array.chunks is None:  # stored as a whole, or not at all
        is_stored = array.is_virtual or array.external or array.id.get_storage_size()
        return np.full((1, 1), not is_stored and array.size > 0)
    is_absent = np.ones(_count_chunks(array.shape, array.chunks), np.bool_)
    for number in range(array.id.get_num_chunks()):
        offset = np.array(array.id.get_chunk_info(number).chunk_offset)
        is_absent[tuple(offset // array.chunks)] = False
    return is_absent


def _count_chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-n // m) for n, m in zip(shape, chunks, strict=True))


class MaskedChunks:
    """A matrix of Zarr or HDF5 whose absent chunks are masked when rows are read."""

    def __init__(self, array: Any, is_absent: NDArray[np.bool_]) -> None:
        self._array, self._is_absent = array, is_absent
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, array.chunks

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return rows, masked if one of their chunks is absent."""
        values = np.asarray(self._array[rows])
        height, width = self.chunks or self.shape
        first = rows.start // height
        is_absent = self._is_absent[first : -(-rows.stop // height)]
        if not is_absent.any():
            return values
        by_row = is_absent[np.arange(rows.start, rows.start + len(values)) // height - first]
        mask = by_row[:, np.arange(self.shape[1]) // width]
        return np.ma.masked_array(values, mask)


def handle_absent_chunks(
    place: str, array: Any, rule: AbsentChunks | None
) -> tuple[Any, str | None]:
    """Return the array to read, and a warning if fill values are read that no one asked for.

    Raises `DataError` if the rule is to refuse absent chunks and there is one.
    """
    if rule not in (None, *get_args(AbsentChunks)):
        known = ", ".join(get_args(AbsentChunks))
        raise DataError(f"{{absent_chunks}} is {rule!r}. Choose one of {known}.")
    fill = array.fill_value if hasattr(array, "fill_value") else array.fillvalue
    is_nan = fill != fill  # such cells are missing, whether their chunk is absent or not
    if rule == "fill" or len(array.shape) != 2 or (rule is None and is_nan):
        return array, None
    is_absent = find_absent_chunks(array)
    if not is_absent.any():
        return array, None
    if rule == "missing":
        return MaskedChunks(array, is_absent), None
    n_absent = int(is_absent.sum())
    are_absent = "is absent and was" if n_absent == 1 else "are absent and were"
    if rule is None:
        return array, (
            f"{place}: {n_absent:,} of {is_absent.size:,} chunks {are_absent} read as the fill "
            f"value {fill}; {{absent_chunks=missing}} makes these cells missing"
        )
    height, width = array.chunks or array.shape
    row, column = np.argwhere(is_absent)[0] * (height, width)
    raise DataError(
        f"{place}: the chunk of rows {row + 1} to {min(row + height, array.shape[0])} and columns "
        f"{column + 1} to {min(column + width, array.shape[1])} is absent "
        f"(in all, {n_absent:,} of {is_absent.size:,} chunks). Write the array again, or use "
        "{absent_chunks=fill} or {absent_chunks=missing}."
    )
