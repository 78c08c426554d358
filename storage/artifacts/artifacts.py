"""Artifacts: named arrays with a manifest, for fitted models and fit states; folders of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
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
    list_trait_names,
)
from storage.errors import DataChangedError, DataError, FolderInUseError
from storage.format.manifests import read_manifest, write_manifest
from storage.format.schema import (
    ARTIFACT_FORMAT,
    FORMAT_VERSION,
    REMEDIES,
    ArraySpec,
    create_array,
    open_checked_array,
)
from storage.stores.leases import check_leases, lock_folder, lock_work_folder
from storage.stores.locations import (
    LATEST_NAME,
    LOCK_SUFFIX,
    UNFINISHED_NAME,
    AnyPath,
    checksum,
    clear_folder,
    delete_tree,
    list_children,
    open_group,
    parse_path,
    to_zarr_store,
    write_text,
)
from storage.stores.object_path import CONCURRENT_REQUESTS
from storage.stores.object_store import make_damage_error, translate_store_errors

if TYPE_CHECKING:
    import xarray

_DATASET_RECORD = "dataset.json"
"""File, inside a work folder, with the path and digest of the fitted dataset."""
PAIRS_FOLDER = "pairs"
"""Folder, inside an artifact, of the arrays over all pairs of features."""
_CHUNK_BYTES = 32 << 20
# Beginnings of names: not of continuous, nominal or constant items, and not of sources that may be
# rotated.
_MAY_BE_NAN = (
    *("s_x2", "difficulty", "infit", "outfit", "mixing_interval"),
    *("auxiliary-item_covariance", "auxiliary-plane_covariance"),  # as standard errors
)
_MAX_SMALL_BYTES = 1 << 16
_PACKED_NAME = "packed"
_REMEDY = REMEDIES[ARTIFACT_FORMAT]
A = TypeVar("A")
B = TypeVar("B")


class NamedArray(NamedTuple):
    """An array and the names of its dimensions."""

    dims: tuple[str, ...]
    values: NDArray[Any]


@dataclass(frozen=True, repr=False)
class Artifact(StorageReprMixin, Mapping[str, NDArray[Any]]):
    """A mapping from names to arrays, with `.dims(name)` and `.manifest`; see `load_artifact`."""

    path: AnyPath
    manifest: Mapping[str, Any]
    _arrays: Mapping[str, NamedArray]

    @cached_property
    def pairs(self) -> Codes | None:
        """Arrays over all pairs of features, such as `correlation`; None unless the data are wide.

        Each row belongs to a feature. Arrays are read on access, as a whole or one strip of
        features at a time (`read_chunk`). Entries that an earlier strip holds are 0.
        """
        if (digest := self.manifest.get("pairs")) is None:
            return None
        pairs = open_codes(self.path / PAIRS_FOLDER, "Fit again.")
        if pairs.manifest["manifest_digest"] != digest:
            raise DataError(f"{pairs.path}: the pairs belong to another fit. Fit again.")
        return pairs

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name].values

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of an array's dimensions."""
        return self._arrays[name].dims

    def replace_arrays(self, values: Mapping[str, NDArray[Any]]) -> Artifact:
        """Return the artifact with other values of some arrays, in memory only."""
        named = {name: NamedArray(self.dims(name), array) for name, array in values.items()}
        return Artifact(self.path, self.manifest, {**self._arrays, **named})

    def _iter_display_items(self) -> Facts:
        arrays = {
            name: format_array_type(self.dims(name), values.shape, str(values.dtype))
            for name, values in self.items()
        }
        return list_artifact_facts(str(self.path), self.manifest, arrays)

    def to_xarray(self) -> xarray.Dataset:
        """Return all arrays, labelled with the names of features and segments."""
        segments = self.manifest.get("segment_names", ())
        if "segments" in self:
            segments = [segments[k] for k in self["segments"].tolist() if 0 <= k < len(segments)]
        names = {
            "feature": self.manifest.get("feature_names", ()),
            "segment": segments,
            **list_trait_names(self.manifest),
        }
        return build_xarray(self._arrays, names, {"path": str(self.path), **self.manifest})


def write_artifact(
    path: str | AnyPath, arrays: Mapping[str, NamedArray], manifest: Mapping[str, Any]
) -> AnyPath:
    """Write arrays, then the manifest that makes them an artifact.

    Parameters
    ----------
    path
        Folder of the artifact; an existing one is replaced.
    arrays
        Named arrays with dimensions.
    manifest
        Further entries of the manifest, as JSON values.

    Raises
    ------
    DataError
        If an array contains values other than finite numbers.
    """
    folder = parse_path(path)
    arrays = {
        name: NamedArray(a.dims, prepare_for_storage(folder, name, a.values))
        for name, a in arrays.items()
    }
    with translate_store_errors(folder):
        check_leases()
        delete_tree(folder)
        group = zarr.create_group(to_zarr_store(folder), attributes={"format": ARTIFACT_FORMAT})
        _map_in_threads(lambda item: _write_array(group, item[0], *item[1]), arrays.items())
    entries = {
        name: {"dims": list(dims), "shape": list(values.shape), "checksum": checksum(values)}
        for name, (dims, values) in arrays.items()
    }
    body = {"format": ARTIFACT_FORMAT, "format_version": FORMAT_VERSION, "arrays": entries}
    write_manifest(folder, {**manifest, **body})
    return folder


def load_artifact(path: str | AnyPath) -> Artifact:
    """Load an artifact, or the latest one in a folder of runs.

    Raises
    ------
    DataError
        If the path holds no complete artifact of a known version.
    """
    folder = _resolve_latest(parse_path(path))
    manifest = read_manifest(folder, ARTIFACT_FORMAT, FORMAT_VERSION)
    entries = manifest["arrays"]
    try:
        group = open_group(folder)
    except Exception as error:
        raise make_damage_error(folder, "the group", error, _REMEDY) from error
    values = _map_in_threads(lambda item: _read_array(folder, group, *item), entries.items())
    arrays = {
        name: NamedArray(tuple(entries[name]["dims"]), array)
        for name, array in zip(entries, values, strict=True)
    }
    return Artifact(folder, manifest, arrays)


def _map_in_threads(function: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Apply a function to items in threads, so that compression overlaps waiting for a store."""
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        return list(pool.map(function, items))


def _resolve_latest(path: AnyPath) -> AnyPath:
    pointer = path / LATEST_NAME
    if not pointer.is_file():
        return path
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise DataError(f"{pointer}: {name!r:.60} is not the name of an artifact in this folder.")
    return path / name


def _write_array(group: zarr.Group, name: str, dims: tuple[str, ...], values: NDArray[Any]) -> None:
    row_bytes = max(1, values.nbytes // max(1, len(values)) if values.ndim else 1)
    rows = max(1, min(len(values), _CHUNK_BYTES // row_bytes)) if values.ndim else 1
    chunks = (rows, *(max(1, size) for size in values.shape[1:])) if values.ndim else ()
    spec = ArraySpec(name, dims, str(values.dtype), name)
    array = create_array(group, spec, values.shape, chunks)
    if values.size:
        array[...] = values


def _read_array(
    folder: AnyPath, group: zarr.Group, name: str, entry: Mapping[str, Any]
) -> NDArray[Any]:
    try:
        array = open_checked_array(group, name, entry["shape"])
        values = np.asarray(array[...])
    except DataError as error:
        raise DataError(f"{folder}: {error} {_REMEDY}") from error
    except Exception as error:
        raise make_damage_error(folder, name, error, _REMEDY) from error
    if checksum(values) != entry["checksum"]:
        raise DataError(f"{folder}: {name} is damaged or missing (checksum). {_REMEDY}")
    return values


def prepare_for_storage(folder: AnyPath, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Convert an array of finite numbers to little-endian byte order, as it will be read back.

    Standard errors, whose names end in `_error`, may be NaN if the data do not determine them, and
    so may covariances, tests and difficulties of items, and intervals of mixings. Raises
    `DataError` if any other value is not a finite number.
    """
    if values.dtype.kind not in "biuf":
        raise DataError(f"{folder}: {name} is an array of {values.dtype}, not of numbers.")
    is_optional = name.endswith("_error") or name.removeprefix("params-").startswith(_MAY_BE_NAN)
    may_be_nan = np.isnan(values) if is_optional else np.False_
    if not (np.isfinite(values) | may_be_nan).all():
        place = tuple(np.argwhere(~np.isfinite(values))[0].tolist())
        raise DataError(f"{folder}: {name} is not finite: {values[place]} at {place}.")
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


@dataclass(frozen=True)
class ArtifactReader:
    """Reads and caches an artifact's arrays in any process; small enough to send with every task.

    `digest` is the digest that the manifest at `path` must have.
    """

    path: str
    digest: str

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ArtifactReader:
        """Make a reader of this artifact."""
        return cls(str(artifact.path.resolve()), artifact.manifest["manifest_digest"])

    def __call__(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays by name; raise `DataError` if the artifact has changed."""
        return _load_cached(self.path, self.digest)


@lru_cache(maxsize=1)
def _load_cached(path: str, digest: str) -> Artifact:
    artifact = load_artifact(path)
    if artifact.manifest["manifest_digest"] != digest:
        raise DataChangedError(f"{path}: the artifact has changed since the start. Run again.")
    return artifact


class PackedArrays(NamedTuple):
    """Arrays by name, and the manifest stored with them."""

    arrays: Mapping[str, NDArray[Any]]
    manifest: Mapping[str, Any]


def write_packed(
    folder: AnyPath, arrays: Mapping[str, NDArray[Any]], manifest: Mapping[str, Any]
) -> None:
    """Write an artifact whose small arrays are packed into one, because each costs milliseconds."""
    values = {name: np.asarray(a) for name, a in arrays.items()}
    little = (name for name, a in values.items() if a.nbytes <= _MAX_SMALL_BYTES)
    small = {name: prepare_for_storage(folder, name, values[name]) for name in little}
    layout = [[name, str(a.dtype), list(a.shape)] for name, a in small.items()]
    alone = {name: _make_named_array(name, a) for name, a in values.items() if name not in small}
    content = np.frombuffer(b"".join(a.tobytes() for a in small.values()), np.uint8)
    packed = {_PACKED_NAME: NamedArray(("byte",), content)}
    write_artifact(folder, {**packed, **alone}, {**manifest, _PACKED_NAME: layout})


def load_packed(folder: AnyPath) -> PackedArrays:
    """Load an artifact that `write_packed` wrote."""
    artifact = load_artifact(folder)
    if _PACKED_NAME not in artifact:
        raise DataError(f"{folder}: the artifact holds no packed arrays.")
    layout = artifact.manifest.get(_PACKED_NAME, [])
    n_bytes = sum(_count_bytes(dtype, shape) for _, dtype, shape in layout)
    if n_bytes != artifact[_PACKED_NAME].nbytes:
        raise DataError(f"{folder}: the packed arrays are not as long as their layout says.")
    small = dict(_iter_arrays(artifact[_PACKED_NAME], layout))
    return PackedArrays(
        {**small, **{n: artifact[n] for n in artifact if n != _PACKED_NAME}}, artifact.manifest
    )


def select_prefix(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names start with a prefix, keyed by the rest of the name."""
    names = (name for name in arrays if name.startswith(prefix))
    return {name.removeprefix(prefix): arrays[name] for name in names}


def _make_named_array(name: str, values: NDArray[Any]) -> NamedArray:
    return NamedArray(tuple(f"{name}_{axis}" for axis in range(values.ndim)), values)


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


@dataclass(frozen=True)
class RunFolder:
    """The paths of one fit in a folder of runs, which holds finished and unfinished fits.

    Attributes
    ----------
    output
        The folder of runs.
    model
        Name of the model.
    fingerprint
        Digest of everything that determines the result; equal fits have equal fingerprints.
    dataset, dataset_digest
        Path and digest of the dataset.
    """

    output: AnyPath
    model: str
    fingerprint: str
    dataset: str = ""
    dataset_digest: str = ""

    @property
    def work_folder(self) -> AnyPath:
        """Folder for the statistics and states of the unfinished fit."""
        return self.output / UNFINISHED_NAME / f"{self.model}-{self.fingerprint[:12]}"

    @property
    def states_folder(self) -> AnyPath:
        """Folder for the state of the unfinished fit after its last pass."""
        return self.work_folder / "states"

    @contextmanager
    def claim_work(self, resume: bool) -> Iterator[None]:
        """Lock the work folder; with `resume`, keep what an interrupted fit left there.

        What a fit left whose process died without releasing the folder is always kept, except work
        on the dataset before it changed, which no fit can continue.
        """
        try:
            with lock_work_folder(self.work_folder) as lease:
                if not (resume or lease.took_over):
                    clear_folder(self.work_folder)
                record = self.work_folder / _DATASET_RECORD
                write_text(record, self._describe_dataset())
                self._delete_outdated_work()
                try:
                    yield
                finally:
                    if list_children(self.work_folder) == [record]:  # nothing to resume
                        record.unlink()
        finally:
            with suppress(OSError):  # another fit may be using it
                self.work_folder.parent.rmdir()

    def _describe_dataset(self) -> str:
        return json.dumps({"path": self.dataset, "digest": self.dataset_digest})

    def _delete_outdated_work(self) -> None:
        """Delete the work folders and locks of fits to the dataset before it changed."""
        names = {
            path.name.removeprefix(".").partition(LOCK_SUFFIX)[0]
            for path in list_children(self.work_folder.parent)
        }
        for name in sorted(names - {self.work_folder.name}):
            folder = self.work_folder.with_name(name)
            with suppress(FolderInUseError):
                if self._is_outdated(folder):
                    with lock_folder(folder):
                        delete_tree(folder)

    def _is_outdated(self, folder: AnyPath) -> bool:
        """Return whether a work folder has no record, or that of another state of the dataset."""
        try:
            record = json.loads((folder / _DATASET_RECORD).read_text(encoding="utf-8"))
            path, digest = record["path"], record["digest"]
        except FileNotFoundError:  # a fit was killed before it began, or after it had ended
            return True
        except (ValueError, KeyError, TypeError):  # damaged; it may be of another dataset
            return False
        return bool(path == self.dataset and digest != self.dataset_digest)

    def has_states(self) -> bool:
        """Return whether the unfinished fit has completed a pass."""
        return bool(list_children(self.states_folder))

    def delete_work(self) -> None:
        """Delete the work folder of a finished fit."""
        delete_tree(self.work_folder)

    def make_artifact_path(self) -> AnyPath:
        """Return a path for the artifact, named after the model and the current time."""
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        return self.output / f"{self.model}-{time}"

    def set_latest(self, artifact: AnyPath) -> None:
        """Point `latest` at a complete artifact."""
        write_text(self.output / LATEST_NAME, artifact.name + "\n")
