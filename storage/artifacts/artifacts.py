"""Named arrays with dimensions and a manifest: fitted parameters, statistics, fit states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.codes.codes import Codes, open_codes
from storage.display import (
    Facts,
    StorageReprMixin,
    build_xarray,
    format_array_type,
    list_artifact_facts,
)
from storage.errors import DataError
from storage.format.manifests import read_manifest, write_manifest
from storage.format.schema import (
    ARTIFACT_FORMAT,
    FORMAT_VERSION,
    ArraySpec,
    create_array,
    open_checked_array,
)
from storage.stores.locations import (
    LATEST_NAME,
    AnyPath,
    checksum,
    delete_tree,
    open_group,
    parse_path,
    to_zarr_store,
)
from storage.stores.object_path import CONCURRENT_REQUESTS
from storage.stores.object_store import make_store_error, translate_store_errors

if TYPE_CHECKING:
    import xarray


PAIRS_FOLDER = "pairs"
"""Folder of an artifact's arrays of all pairs of features."""
_CHUNK_BYTES = 32 << 20
A = TypeVar("A")
B = TypeVar("B")


class NamedArray(NamedTuple):
    """An array and the names of its dimensions."""

    dims: tuple[str, ...]
    values: NDArray[Any]


@dataclass(frozen=True, repr=False)
class Artifact(StorageReprMixin, Mapping[str, NDArray[Any]]):
    """A mapping of named arrays, with `.dims(name)` and `.manifest`; `load_artifact` makes it."""

    path: AnyPath
    manifest: Mapping[str, Any]
    _arrays: Mapping[str, NamedArray]

    @cached_property
    def pairs(self) -> Codes | None:
        """Arrays of all pairs of features of wide data, such as `correlation`; else None.

        They are read when asked for, whole or a strip of features at a time, by `read_chunk`. A
        row is a feature; what lies left of its strip is 0, and stands in the strips before.

        Raises
        ------
        DataError
            If they are not those of this artifact.
        """
        if (digest := self.manifest.get("pairs")) is None:
            return None
        pairs = open_codes(self.path / PAIRS_FOLDER, "Fit again.")
        if pairs.manifest["manifest_digest"] != digest:
            raise DataError(f"{pairs.path}: Expected the pairs of this fit, got others. Fit again.")
        return pairs

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name].values

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def dims(self, name: str) -> tuple[str, ...]:
        """Name the dimensions of an array."""
        return self._arrays[name].dims

    def _iter_display_items(self) -> Facts:
        arrays = {
            name: format_array_type(self.dims(name), values.shape, str(values.dtype))
            for name, values in self.items()
        }
        return list_artifact_facts(str(self.path), self.manifest, arrays)

    def to_xarray(self) -> xarray.Dataset:
        """Give all arrays with the names of features and segments."""
        segments = self.manifest.get("segment_names", ())
        if "segments" in self:
            segments = [segments[k] for k in self["segments"].tolist() if 0 <= k < len(segments)]
        names = {"feature": self.manifest.get("feature_names", ()), "segment": segments}
        return build_xarray(self._arrays, names, {"path": str(self.path), **self.manifest})


def write_artifact(
    path: str | AnyPath, arrays: Mapping[str, NamedArray], manifest: Mapping[str, Any]
) -> AnyPath:
    """Write arrays, then the manifest that makes them an artifact.

    Parameters
    ----------
    path
        Folder; what lies there is replaced.
    arrays
        Named arrays with dimensions.
    manifest
        What to record beside them, as JSON.

    Raises
    ------
    DataError
        If an array holds anything but finite numbers.
    """
    folder = parse_path(path)
    arrays = {
        name: NamedArray(a.dims, prepare_for_storage(folder, name, a.values))
        for name, a in arrays.items()
    }
    with translate_store_errors(folder):
        delete_tree(folder)
        group = zarr.create_group(to_zarr_store(folder), attributes={"format": ARTIFACT_FORMAT})
        _map_in_threads(lambda item: _write_array(group, item[0], *item[1]), arrays.items())
    described = {
        name: {"dims": list(dims), "shape": list(values.shape), "checksum": checksum(values)}
        for name, (dims, values) in arrays.items()
    }
    body = {"format": ARTIFACT_FORMAT, "format_version": FORMAT_VERSION, "arrays": described}
    write_manifest(folder, {**manifest, **body})
    return folder


def load_artifact(path: str | AnyPath) -> Artifact:
    """Load an artifact, or the latest of a folder of runs.

    Raises
    ------
    DataError
        If there is no whole artifact of a known version.
    """
    folder = _resolve_latest(parse_path(path))
    manifest = read_manifest(folder, ARTIFACT_FORMAT, FORMAT_VERSION)
    described = manifest["arrays"]
    group = _open_artifact_group(folder)
    values = _map_in_threads(lambda item: _read_array(folder, group, *item), described.items())
    arrays = {
        name: NamedArray(tuple(described[name]["dims"]), array)
        for name, array in zip(described, values, strict=True)
    }
    return Artifact(folder, manifest, arrays)


def _map_in_threads(each: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Take several arrays at a time: each waits for a store or for its compression."""
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        return list(pool.map(each, items))


def _resolve_latest(path: AnyPath) -> AnyPath:
    pointer = path / LATEST_NAME
    if not pointer.is_file():
        return path
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise DataError(f"{pointer}: Expected the name of an artifact beside it, got {name!r:.60}.")
    return path / name


def _write_array(group: zarr.Group, name: str, dims: tuple[str, ...], values: NDArray[Any]) -> None:
    row_bytes = max(1, values.nbytes // max(1, len(values)) if values.ndim else 1)
    rows = max(1, min(len(values), _CHUNK_BYTES // row_bytes)) if values.ndim else 1
    chunks = (rows, *(max(1, size) for size in values.shape[1:])) if values.ndim else ()
    spec = ArraySpec(name, dims, str(values.dtype), name)
    array = create_array(group, spec, values.shape, chunks)
    if values.size:
        array[...] = values


def _open_artifact_group(folder: AnyPath) -> zarr.Group:
    try:
        return open_group(folder)
    except Exception as error:
        raise _make_damage_error(folder, "the group", error) from error


def _make_damage_error(folder: AnyPath, what: str, error: Exception) -> DataError:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    damaged = DataError(f"{folder}: {what} is damaged ({reason}). Fit again.")
    return make_store_error(str(folder), error) or damaged


def _read_array(
    folder: AnyPath, group: zarr.Group, name: str, described: Mapping[str, Any]
) -> NDArray[Any]:
    try:
        array = open_checked_array(group, name, described["shape"])
        values = np.asarray(array[...])
    except DataError as error:
        raise DataError(f"{folder}: {error} Fit again.") from error
    except Exception as error:
        raise _make_damage_error(folder, name, error) from error
    if checksum(values) != described["checksum"]:
        raise DataError(f"{folder}: {name} is damaged or missing (checksum). Fit again.")
    return values


def prepare_for_storage(folder: AnyPath, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Give an array in the byte order that comes back.

    Standard errors, whose name ends in `_error`, are not a number where data tell nothing.

    Raises
    ------
    DataError
        If anything else is not a finite number.
    """
    if values.dtype.kind not in "biuf":
        raise DataError(f"{folder}: {name}: Expected an array of numbers, got {values.dtype}.")
    may_lack = np.isnan(values) if name.endswith("_error") else np.False_
    if not (np.isfinite(values) | may_lack).all():
        raise DataError(
            f"{folder}: {name}: Expected finite values, got {_format_first_nonfinite(values)}."
        )
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def _format_first_nonfinite(values: NDArray[Any]) -> str:
    at = np.argwhere(~np.isfinite(values))[0]
    return f"{values[tuple(at)]} at {tuple(int(i) for i in at)}"


@dataclass(frozen=True)
class ArtifactReader:
    """Gives arrays in any process, which keeps them; small enough to send with every task.

    Attributes
    ----------
    path, digest
        The artifact, and what it must be.
    """

    path: str
    digest: str

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ArtifactReader:
        """Read this artifact again."""
        return cls(str(artifact.path.resolve()), artifact.manifest["manifest_digest"])

    def __call__(self) -> Mapping[str, NDArray[Any]]:
        """Give the arrays by name.

        Raises
        ------
        DataError
            If the artifact is not what it was.
        """
        return _load_cached(self.path, self.digest)


@lru_cache(maxsize=1)
def _load_cached(path: str, digest: str) -> Artifact:
    artifact = load_artifact(path)
    if artifact.manifest["manifest_digest"] != digest:
        raise DataError(f"{path}: Expected the artifact as it was at the start, got another.")
    return artifact


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
