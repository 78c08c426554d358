"""Zarr arrays of version 2 or 3, and the reconstructed rows among latent codes.

Chunks of Zarr and HDF5 arrays may not be stored; their libraries read these as fill values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.codes.codes import Codes, open_codes
from storage.dataset.batches import RowBatch
from storage.errors import DataError
from storage.format.schema import CODES_FORMAT, SAFE_CODECS, check_codecs
from storage.sources.arrays import make_dimensions_error, make_number_batch
from storage.sources.base import Source, make_feature_names
from storage.sources.ordered_levels import make_level_map
from storage.sources.value_codes import AbsentChunks, ReadOptions, check_numeric
from storage.stores.locations import DATASET_FORMAT, MANIFEST_NAME

_ABSENT_PART = 2**64 - 1
"""Offset and length of a part of a shard that is not stored."""


@dataclass(frozen=True, kw_only=True)
class ZarrSource(Source):
    """A Zarr matrix, (n_samples, n_features); `array` is its path inside the store."""

    is_streaming = True
    can_be_continuous = True

    array: str

    def _read_batches(self) -> Generator[RowBatch]:
        """Read whole rows of chunks, so that each chunk is decoded once."""
        array = self._array_and_warning[0]
        n_rows, chunk_rows = array.shape[0], array.chunks[0]
        step = chunk_rows * max(1, self.batch_rows // chunk_rows)
        for first in range(0, n_rows, step):
            values: NDArray[Any] = array[first : min(first + step, n_rows)]
            is_masked = np.ma.isMaskedArray(values)
            observed = (~np.ma.getmaskarray(values)).view(np.uint8) if is_masked else None
            values = np.ma.getdata(values)
            for start, count in self.iter_row_ranges(len(values)):
                own = slice(start, start + count)
                mask = None if observed is None else observed[own]
                yield make_number_batch(self, values[own], first + start, observed=mask)

    def check_first_rows(self) -> None:
        """Check for absent chunks, if they are refused, and read the first rows."""
        _ = self._array_and_warning
        super().check_first_rows()

    def list_warnings(self) -> list[str]:
        """Warn about absent chunks."""
        warning = self._array_and_warning[1]
        return [] if warning is None else [warning]

    @cached_property
    def _array_and_warning(self) -> tuple[Any, str | None]:
        """The array to read, and a warning about absent chunks; the store is listed once."""
        array: zarr.Array[Any] = zarr.open_array(self.path, path=self.array, mode="r")
        return handle_absent_chunks(self.path, array, self.options.absent_chunks)


def is_zarr(path: str) -> bool:
    """Return whether a directory holds Zarr metadata."""
    return any((Path(path) / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def open_zarr(path: str, options: ReadOptions) -> Source:
    """Open a Zarr array, the array `X` of a Zarr group, or reconstructed rows."""
    _check_metadata(path)
    node = zarr.open(path, mode="r")
    if node.attrs.get("format") == CODES_FORMAT:
        return open_reconstructed(path, options)
    array, name = _find_matrix(path, node)
    if array.ndim != 2:
        raise make_dimensions_error(path, array.ndim)
    check_codecs(path, array.metadata.to_dict(), SAFE_CODECS)
    check_numeric(path, array.dtype)
    n_rows, n_features = array.shape
    return ZarrSource(
        path=path,
        options=options,
        feature_names=make_feature_names(n_features),
        n_rows=n_rows,
        array=name,
    )


def _check_metadata(path: str) -> None:
    """Refuse unsafe codecs before Zarr fails to find their data types."""
    for folder in (Path(path), Path(path) / "X"):
        for file in (folder / ".zarray", folder / "zarr.json"):
            if file.is_file():
                check_codecs(path, json.loads(file.read_text(encoding="utf-8")), SAFE_CODECS)


def _find_matrix(path: str, node: zarr.Array[Any] | zarr.Group) -> tuple[zarr.Array[Any], str]:
    if isinstance(node, zarr.Array):
        return node, ""
    if node.attrs.get("format") == DATASET_FORMAT or (Path(path) / MANIFEST_NAME).exists():
        raise DataError(f"{path}: this is already a dataset. Use it with {{dataset}}.")
    names = [name for name, array in node.arrays() if array.ndim == 2]
    if names != ["X"]:
        raise DataError(
            f"{path}: the group must have one matrix, 'X', but has "
            f"{', '.join(map(repr, sorted(names))) or 'none'}. Name the array's own directory."
        )
    array = node["X"]
    assert isinstance(array, zarr.Array)
    return array, "X"


@dataclass(frozen=True, kw_only=True)
class ReconstructedSource(Source):
    """Rows that a transform reconstructed or completed, (row, feature), checked by the manifest.

    `array` is "bits", "levels" or "probabilities", or one of these after "imputed_".
    """

    is_streaming = True

    array: str

    def _read_batches(self) -> Generator[RowBatch]:
        """Read range by range."""
        codes, first = open_codes(self.path), 0
        for key in range(codes.n_chunks):
            values = codes.read_chunk(key, (self.array,))[self.array]
            for start, count in self.iter_row_ranges(len(values)):
                yield make_number_batch(self, values[start : start + count], first + start)
            first += len(values)


def open_reconstructed(path: str, options: ReadOptions) -> ReconstructedSource:
    """Open the reconstructed or imputed bits or levels, or probabilities if there is a threshold.

    Raises
    ------
    DataError
        If there are none, or both reconstructed and imputed ones.
    """
    codes = open_codes(path)
    levels = codes.manifest.get("feature_levels", {})
    has_levels = not {"levels", "imputed_levels"}.isdisjoint(codes) or any(
        len(own) > 2 for own in levels.values()
    )
    array = "levels" if has_levels else "bits"
    if options.threshold is not None:
        array = "probabilities"
    elif has_levels:
        nominal, maps = codes.manifest.get("nominal_features", ()), {}
        for name, own in levels.items():
            places = [(str(code), code) for code in range(len(own))]
            maps[name] = make_level_map(name, own, path, places, is_nominal=name in nominal)
        options = replace(options, feature_maps={**maps, **options.feature_maps})
    if f"imputed_{array}" in codes:
        if array in codes:
            raise DataError(
                f"{path}: the codes have both {array} and imputed_{array}. Transform again with "
                "only one of {reconstruct} and {impute}."
            )
        array = f"imputed_{array}"
    names = tuple(codes.manifest.get("feature_names", ()))
    if array not in codes or codes.manifest["arrays"][array]["shape"][1:] != [len(names)]:
        raise _make_missing_array_error(codes, array.removeprefix("imputed_"), has_levels)
    return ReconstructedSource(
        path=path, options=options, feature_names=names, n_rows=codes.n_rows, array=array
    )


def _make_missing_array_error(codes: Codes, array: str, has_levels: bool) -> DataError:
    option = "impute" if any(name.startswith("imputed_") for name in codes) else "reconstruct"
    remedy = f"Transform again with {{{option}={array}}}."
    if has_levels and array == "probabilities":  # they have a column for each level
        remedy = f"Transform with {{{option}=levels}}, and leave out {{threshold}}."
    return DataError(
        f"{codes.path}: the codes have {', '.join(codes)}, but not the {array} of all features. "
        f"{remedy}"
    )


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
