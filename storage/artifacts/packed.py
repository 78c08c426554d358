"""Artifacts of many small arrays, which lie in one: each takes milliseconds, however small."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.artifacts.artifacts import (
    NamedArray,
    load_artifact,
    prepare_for_storage,
    write_artifact,
)
from storage.errors import DataError
from storage.stores.locations import AnyPath

_MAX_SMALL_BYTES = 1 << 16
_PACKED_NAME = "packed"


class PackedArrays(NamedTuple):
    """Arrays by name, and what was recorded beside them."""

    arrays: Mapping[str, NDArray[Any]]
    manifest: Mapping[str, Any]


def write_packed(
    folder: AnyPath, arrays: Mapping[str, NDArray[Any]], manifest: Mapping[str, Any]
) -> None:
    """Write arrays that nobody reads by their names in Zarr, the small ones behind each other.

    Raises
    ------
    DataError
        If an array holds anything but finite numbers.
    """
    values = {name: np.asarray(a) for name, a in arrays.items()}
    little = (name for name, a in values.items() if a.nbytes <= _MAX_SMALL_BYTES)
    small = {name: prepare_for_storage(folder, name, values[name]) for name in little}
    layout = [[name, str(a.dtype), list(a.shape)] for name, a in small.items()]
    alone = {name: _make_named_array(name, a) for name, a in values.items() if name not in small}
    packed = {_PACKED_NAME: NamedArray(("byte",), _concatenate_bytes(small.values()))}
    write_artifact(folder, {**packed, **alone}, {**manifest, _PACKED_NAME: layout})


def load_packed(folder: AnyPath) -> PackedArrays:
    """Load what `write_packed` wrote.

    Raises
    ------
    DataError
        If it is not there, not whole or of an older layout.
    """
    found = load_artifact(folder)
    if _PACKED_NAME not in found:
        raise DataError(f"{folder}: Expected arrays packed in one, got an older layout.")
    layout = found.manifest.get(_PACKED_NAME, [])
    if sum(_count_bytes(dtype, shape) for _, dtype, shape in layout) != found[_PACKED_NAME].nbytes:
        raise DataError(f"{folder}: Expected arrays as long as their layout says, got others.")
    small = dict(_iter_arrays(found[_PACKED_NAME], layout))
    return PackedArrays(
        {**small, **{n: found[n] for n in found if n != _PACKED_NAME}}, found.manifest
    )


def select_prefix(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Give the arrays whose names begin so, by the rest of their names."""
    names = (name for name in arrays if name.startswith(prefix))
    return {name.removeprefix(prefix): arrays[name] for name in names}


def _make_named_array(name: str, values: NDArray[Any]) -> NamedArray:
    return NamedArray(tuple(f"{name}_{axis}" for axis in range(values.ndim)), values)


def _concatenate_bytes(arrays: Iterable[NDArray[Any]]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(a.tobytes() for a in arrays), np.uint8)


def _iter_arrays(
    values: NDArray[np.uint8], layout: Iterable[Sequence[Any]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    start = 0
    for name, dtype, shape in layout:
        stop = start + _count_bytes(dtype, shape)
        yield name, values[start:stop].copy().view(dtype).reshape(shape)
        start = stop


def _count_bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
