"""Save statistics and fit states, so that an interrupted fit can resume, and a refit is quick.

Statistics of leading chunks are kept in the dataset, so that a refit reads only new chunks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import Tile
from pipeline.errors import FitWarning
from pipeline.executors.base import Node
from pipeline.executors.central_work import KeptResult, KeptResults
from pipeline.executors.code_digest import digest_modules
from pipeline.models.base import Model
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays, params_from_arrays
from pipeline.passes.map_reduce import KeptSums, MergedChunks
from pipeline.statistics.sums import Statistics, pass_statistics_from_arrays
from storage.artifacts.artifacts import PackedArrays, load_packed, select_prefix, write_packed
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError, StoreUnreachableError
from storage.format.manifest_schemas import check_schema
from storage.format.manifests import read_manifest
from storage.format.schema import ARTIFACT_FORMAT, FORMAT_VERSION
from storage.stores.leases import lock_folder
from storage.stores.locations import (
    MANIFEST_NAME,
    AnyPath,
    delete_tree,
    list_children,
    measure_tree,
)

_ARRAY_FIELDS = ("working", "auxiliary", "acceleration")
STATISTICS_FOLDER = "statistics"
_MAX_SHARE = 0.1
"""Kept statistics take at most this share of the size of the dataset's packed bits."""
_KEPT_SECONDS = 90 * 86_400.0
"""Statistics that were not written for so long make room for others."""
log = logging.getLogger("latentbits")


@dataclass
class CheckpointStore:
    """Keeps the latest state of a fit: in memory for a retry, on disk for `--resume`."""

    folder: AnyPath
    latest: FitState | None = None

    def save(self, state: FitState) -> None:
        """Save the state after a pass."""
        save_state(self.folder, state)
        self.latest = state


def collect_or_load(
    kind: type[Statistics], folder: AnyPath, collect: Callable[[], Statistics]
) -> Statistics:
    """Load the statistics that an interrupted fit saved, or collect and save them."""
    if (folder / MANIFEST_NAME).exists():
        try:
            return load_statistics(kind, folder)
        except StoreUnreachableError:
            raise
        except DataError:
            pass  # the interrupted fit had not saved all of them
    statistics = collect()
    save_statistics(folder, statistics)
    # The memory layout after loading: sums of another layout differ in the last bits.
    arrays = {name: np.asarray(a, order="C") for name, a in statistics.to_arrays().items()}
    return pass_statistics_from_arrays(kind, arrays)


def save_statistics(folder: AnyPath, statistics: Statistics) -> None:
    """Save statistics."""
    write_packed(folder, statistics.to_arrays(), {})


def load_statistics(kind: type[Statistics], folder: AnyPath) -> Statistics:
    """Load statistics from `save_statistics`."""
    return pass_statistics_from_arrays(kind, load_packed(folder).arrays)


def save_state(folder: AnyPath, state: FitState) -> None:
    """Save the state after a pass, then remove the previous one."""
    target = folder / f"{state.iteration:06d}"
    write_packed(target, _collect_arrays(state), _describe_state(state))
    for older in list_children(folder):
        if older != target:
            delete_tree(older)


def _collect_arrays(state: FitState) -> dict[str, NDArray[Any]]:
    """Collect all arrays of a state and of its starts, named `GROUP-NAME`."""
    params = {"params": state.params} | ({} if state.best is None else {"best": state.best})
    groups: dict[str, Mapping[str, NDArray[Any]]] = {
        group: {name: a for name, (_, a) in get_named_arrays(values).items()}
        for group, values in params.items()
    }
    groups |= {name: getattr(state, name) for name in _ARRAY_FIELDS}
    groups |= {f"start{k}": _collect_arrays(start) for k, start in enumerate(state.starts)}
    return {f"{group}-{name}": a for group, arrays in groups.items() for name, a in arrays.items()}


def _describe_state(state: FitState) -> dict[str, Any]:
    return {
        "iteration": state.iteration,
        "history": state.history,
        "diagnostics": state.diagnostics,
        "warnings": [asdict(warning) for warning in state.warnings],
        "starts": [_describe_state(start) for start in state.starts],
        "done": state.done,
        "independent": state.independent,
        "converged": state.converged,
    }


class _WarningRecord(TypedDict):
    text: str
    features: list[int] | list[str]
    segments: list[int] | list[str]
    parameter: str | None


class _StateRecord(TypedDict):
    """The values that `_describe_state` records."""

    iteration: int
    history: list[float]
    diagnostics: dict[str, Any]
    warnings: list[_WarningRecord]
    starts: list[_StateRecord]
    done: bool
    independent: float | None
    converged: bool


def load_state(model: Model, folder: AnyPath) -> FitState | None:
    """Load the latest complete state, or return None if there is none."""
    for path in reversed(list_children(folder)):
        try:
            arrays, meta = load_packed(path)
            check_schema(str(path), _StateRecord, meta, "Fit again.")
            return _rebuild_state(model, arrays, meta)
        except StoreUnreachableError:
            raise  # the state may be intact, so do not fit again and replace it
        except (DataError, KeyError):  # damaged, or without some arrays
            continue
    return None


def _rebuild_state(
    model: Model, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]
) -> FitState:
    best, starts = select_prefix(arrays, "best-"), enumerate(record["starts"])
    fields: dict[str, Any] = {n: select_prefix(arrays, f"{n}-") for n in _ARRAY_FIELDS}
    return FitState(
        params_from_arrays(model.params, select_prefix(arrays, "params-")),
        **fields,
        iteration=record["iteration"],
        history=tuple(record["history"]),
        best=params_from_arrays(model.params, best) if best else None,
        diagnostics=record["diagnostics"],
        warnings=tuple(_make_warning(w) for w in record["warnings"]),
        starts=tuple(
            _rebuild_state(model, select_prefix(arrays, f"start{k}-"), d) for k, d in starts
        ),
        done=record["done"],
        independent=record["independent"],
        converged=record["converged"],
    )


def _make_warning(record: Mapping[str, Any]) -> FitWarning:
    """Restore a warning, whose features and segments JSON keeps as lists."""
    features, segments = tuple(record["features"]), tuple(record["segments"])
    return FitWarning(record["text"], features, segments, record["parameter"])


class _ResultsRecord(TypedDict):
    """The manifest of results of central work: label and layout of each."""

    results: list[list[Any]]


def open_kept_results(folder: AnyPath) -> KeptResults:
    """Open the results of central work that are kept in a folder."""
    return KeptResults(partial(_load_results, folder), partial(_save_results, folder))


def _save_results(folder: AnyPath, key: str, number: int, part: Sequence[KeptResult]) -> None:
    content = np.frombuffer(b"".join(result.content for result in part), np.uint8)
    record = {"results": [[result.label, result.layout] for result in part]}
    write_packed(folder / key / f"{number:06d}", {"content": content}, record)


def _load_results(folder: AnyPath, key: str) -> list[list[KeptResult]]:
    """Load the parts that were saved with a key, up to the first that is damaged."""
    parts: list[list[KeptResult]] = []
    for path in list_children(folder / key):
        try:
            arrays, manifest = load_packed(path)
            check_schema(str(path), _ResultsRecord, manifest, "Fit again.")
            content, part = arrays["content"].tobytes(), []
            for label, layout in manifest["results"]:
                size = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in layout)
                part.append(KeptResult(label, layout, content[:size]))
                content = content[size:]
        except StoreUnreachableError:
            raise
        except (DataError, KeyError):  # damaged, or not written as a whole
            break
        parts.append(part)
    return parts


def open_kept_statistics(
    dataset: BinaryDataset, split: str | None, kind: type[Statistics], key: str | None
) -> KeptSums[Any]:
    """Open the statistics of one kind that are kept in the dataset's folder.

    `key` identifies how they are computed from a block; None if they depend on parameters and so
    cannot be kept.
    """
    if key is None:
        return KeptSums()
    sums = _KeptSums(dataset, split, kind, key)
    return KeptSums(sums.load, sums.save)


@dataclass(frozen=True)
class _KeptSums:
    """Statistics of one kind over the rows of one split."""

    dataset: BinaryDataset
    split: str | None
    kind: type[Statistics]
    key: str

    def load(self, tile: Tile | None) -> MergedChunks[Any]:
        """Load the kept statistics of the chunks before the first one that changed.

        They are empty if they are damaged, or of other rows.
        """
        try:
            packed = load_packed(folder := self._find_folder(tile))
            check_schema(str(folder), _SumsRecord, packed.manifest, "Delete it.")
            return self._rebuild_sums(packed)
        except (DataError, KeyError):  # damaged, or without some arrays
            return MergedChunks()

    def save(self, tile: Tile | None, merged: MergedChunks[Any]) -> None:
        """Replace the kept statistics; a failure is only logged."""
        folder = self._find_folder(tile)
        try:
            arrays = dict(_iter_arrays(merged))
            if self._is_kept(folder, merged) or not self._has_room(folder, arrays):
                return
            with lock_folder(folder.parent):
                _delete_outdated(folder.parent)
                write_packed(folder, arrays, self._describe_sums(merged, arrays))
        except (DataError, OSError) as error:
            log.debug("statistics of %s could not be kept: %s", self.dataset.path, error)

    def _find_folder(self, tile: Tile | None) -> AnyPath:
        key = json.dumps([self.kind.__name__, self.key, self.split, tile, self._code_digest])
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        return self.dataset.path / STATISTICS_FOLDER / name

    def _rebuild_sums(self, packed: PackedArrays) -> MergedChunks[Any]:
        arrays, manifest = packed
        ends = zip(manifest["ends"], manifest["rows_to_ends"], strict=True)
        n_same = sum(rows == self.dataset.digest_leading_chunks(n) for n, rows in ends)
        nodes = []
        for k, height in enumerate(manifest["heights"][:n_same]):
            own = select_prefix(arrays, f"{k}-")
            nodes.append(Node(height, self.kind.from_arrays(own) if own else None))
        return MergedChunks(manifest["chunks_per_piece"], tuple(nodes))

    def _describe_sums(
        self, merged: MergedChunks[Any], arrays: Mapping[str, NDArray[Any]]
    ) -> dict[str, Any]:
        ends = merged.list_ends()
        return {
            "chunks_per_piece": merged.chunks_per_piece,
            "heights": [node.height for node in merged.nodes],
            "ends": ends,
            "rows_to_ends": [self.dataset.digest_leading_chunks(n) for n in ends],
            "bytes": _count_bytes(arrays),
            "modules": self._modules,
            "code": self._code_digest,
        }

    def _is_kept(self, folder: AnyPath, merged: MergedChunks[Any]) -> bool:
        manifest, ends = _read_sums_manifest(folder), merged.list_ends()
        rows = [self.dataset.digest_leading_chunks(n) for n in ends]
        return manifest.get("ends") == ends and manifest.get("rows_to_ends") == rows

    def _has_room(self, folder: AnyPath, arrays: Mapping[str, NDArray[Any]]) -> bool:
        manifests = (
            _read_sums_manifest(other) for other in list_children(folder.parent) if other != folder
        )
        n_bytes: int = sum(manifest.get("bytes", 0) for manifest in manifests)
        return n_bytes + _count_bytes(arrays) <= _MAX_SHARE * self._dataset_bytes

    @cached_property
    def _modules(self) -> tuple[str, str]:
        """The modules that determine the sums: the kind of statistics, and how they are merged."""
        return self.kind.__module__, "pipeline.passes.map_reduce"

    @cached_property
    def _code_digest(self) -> str:
        return digest_modules(*self._modules)

    @cached_property
    def _dataset_bytes(self) -> int:
        return int(8 * self.dataset.chunks[:, 2].sum()) * self.dataset.n_planes


class _SumsRecord(TypedDict):
    """The manifest of kept statistics."""

    chunks_per_piece: int
    heights: list[int]
    ends: list[int]
    rows_to_ends: list[str]
    bytes: int
    modules: list[str]
    code: str


def _read_sums_manifest(folder: AnyPath) -> dict[str, Any]:
    """Read the manifest of kept statistics; empty if it is damaged or they are outdated.

    They are if another version of the code wrote them, or if they were not written for so long that
    fits of this kind are probably not made any more.
    """
    try:
        manifest = read_manifest(folder, ARTIFACT_FORMAT, FORMAT_VERSION)
        check_schema(str(folder), _SumsRecord, manifest, "Delete it.")
        is_same_code = manifest["code"] == digest_modules(*manifest["modules"])
    except (DataError, ModuleNotFoundError, ValueError, TypeError):  # the module no longer exists
        return {}
    is_old = time.time() - measure_tree(folder).modified > _KEPT_SECONDS
    return manifest if is_same_code and not is_old else {}


def _delete_outdated(folder: AnyPath) -> None:
    """Delete statistics that other versions of the code wrote, or that nobody wrote for long."""
    for other in list_children(folder):
        if not _read_sums_manifest(other):
            delete_tree(other)


def _iter_arrays(merged: MergedChunks[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    for k, (_, statistics) in enumerate(merged.nodes):
        for name, array in ({} if statistics is None else statistics.to_arrays()).items():
            yield f"{k}-{name}", np.asarray(array)


def _count_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays.values())
