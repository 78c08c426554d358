"""Artifacts of many small arrays, which lie in one: each takes milliseconds, however small."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.artifacts.artifacts import NamedArray, load_artifact, storable, write_artifact
from storage.errors import DataError
from storage.stores.locations import Place

_SMALL_BYTES = 1 << 16
_PACKED = "packed"


class Packed(NamedTuple):
    """Arrays by name, and what was recorded beside them."""

    arrays: Mapping[str, NDArray[Any]]
    manifest: Mapping[str, Any]


def write_packed(
    folder: Place, arrays: Mapping[str, NDArray[Any]], manifest: Mapping[str, Any]
) -> None:
    """Write arrays that nobody reads by their names in Zarr, the small ones behind each other.

    Raises
    ------
    DataError
        If an array holds anything but finite numbers.
    """
    values = {name: np.asarray(a) for name, a in arrays.items()}
    little = (name for name, a in values.items() if a.nbytes <= _SMALL_BYTES)
    small = {name: storable(folder, name, values[name]) for name in little}
    layout = [[name, str(a.dtype), list(a.shape)] for name, a in small.items()]
    alone = {name: _named(name, a) for name, a in values.items() if name not in small}
    packed = {_PACKED: NamedArray(("byte",), _joined(small.values()))}
    write_artifact(folder, {**packed, **alone}, {**manifest, _PACKED: layout})


def load_packed(folder: Place) -> Packed:
    """Load what `write_packed` wrote.

    Raises
    ------
    DataError
        If it is not there, not whole or of an older layout.
    """
    found = load_artifact(folder)
    if _PACKED not in found:
        raise DataError(f"{folder}: Expected arrays packed in one, got an older layout.")
    layout = found.manifest.get(_PACKED, [])
    if sum(_size(dtype, shape) for _, dtype, shape in layout) != found[_PACKED].nbytes:
        raise DataError(f"{folder}: Expected arrays as long as their layout says, got others.")
    small = dict(_cut(found[_PACKED], layout))
    return Packed({**small, **{n: found[n] for n in found if n != _PACKED}}, found.manifest)


def part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Give the arrays whose names begin so, by the rest of their names."""
    names = (name for name in arrays if name.startswith(prefix))
    return {name.removeprefix(prefix): arrays[name] for name in names}


def _named(name: str, values: NDArray[Any]) -> NamedArray:
    return NamedArray(tuple(f"{name}_{axis}" for axis in range(values.ndim)), values)


def _joined(arrays: Iterable[NDArray[Any]]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(a.tobytes() for a in arrays), np.uint8)


def _cut(
    values: NDArray[np.uint8], layout: Iterable[Sequence[Any]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    start = 0
    for name, dtype, shape in layout:
        stop = start + _size(dtype, shape)
        yield name, values[start:stop].copy().view(dtype).reshape(shape)
        start = stop


def _size(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
