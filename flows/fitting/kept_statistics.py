"""Statistics of the leading chunks, kept in the dataset, so that a refit reads only new chunks."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import Tile
from pipeline.executors.code_digest import digest_modules
from pipeline.passes.map_reduce import KeptSums, MergedChunks
from pipeline.statistics.sums import Statistics
from storage.artifacts.artifacts import PackedArrays, load_packed, select_prefix, write_packed
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.manifest_schemas import check_schema
from storage.format.manifests import read_manifest
from storage.format.schema import ARTIFACT_FORMAT, FORMAT_VERSION
from storage.stores.locations import AnyPath, delete_tree, list_children, lock_folder

STATISTICS_FOLDER = "statistics"
_MAX_SHARE = 0.1
"""Kept statistics take at most this share of the size of the dataset's packed bits."""
log = logging.getLogger("latentbits")


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

    def save(self, tile: Tile | None, folded: MergedChunks[Any]) -> None:
        """Replace the kept statistics; a failure is only logged."""
        folder = self._find_folder(tile)
        try:
            arrays = dict(_iter_arrays(folded))
            if self._is_kept(folder, folded) or not self._has_room(folder, arrays):
                return
            with lock_folder(folder.parent):
                _delete_outdated(folder.parent)
                write_packed(folder, arrays, self._describe_sums(folded, arrays))
        except (DataError, OSError) as error:
            log.debug("statistics of %s could not be kept: %s", self.dataset.path, error)

    def _find_folder(self, tile: Tile | None) -> AnyPath:
        key = json.dumps([self.kind.__name__, self.key, self.split, tile, self._code_digest])
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        return self.dataset.path / STATISTICS_FOLDER / name

    def _rebuild_sums(self, packed: PackedArrays) -> MergedChunks[Any]:
        arrays, manifest = packed
        n_chunks, heights = manifest["n_chunks"], manifest["heights"]
        from_arrays = self.kind.from_arrays
        is_whole = manifest["rows"] == self.dataset.digest_leading_chunks(n_chunks)
        if not is_whole:
            ends = zip(manifest.get("ends", ()), manifest.get("rows_to_ends", ()), strict=True)
            same = [n for n, rows in ends if rows == self.dataset.digest_leading_chunks(n)]
            heights, n_chunks = heights[: len(same)], max(same, default=0)
        stack = [from_arrays(select_prefix(arrays, f"{k}-")) for k in range(len(heights))]
        has_open_group = is_whole and manifest["open"]
        open_group = from_arrays(select_prefix(arrays, "open-")) if has_open_group else None
        pairs = tuple(zip(heights, stack, strict=True))
        return MergedChunks(n_chunks, pairs, open_group)

    def _describe_sums(
        self, folded: MergedChunks[Any], arrays: Mapping[str, NDArray[Any]]
    ) -> dict[str, Any]:
        return {
            "n_chunks": folded.n_chunks,
            "heights": [height for height, _ in folded.stack],
            "open": folded.open_group is not None,
            "rows": self.dataset.digest_leading_chunks(folded.n_chunks),
            "ends": (ends := folded.list_ends()),
            "rows_to_ends": [self.dataset.digest_leading_chunks(n) for n in ends],
            "bytes": _count_bytes(arrays),
            "modules": self._modules,
            "code": self._code_digest,
        }

    def _is_kept(self, folder: AnyPath, folded: MergedChunks[Any]) -> bool:
        manifest = _read_sums_manifest(folder)
        return bool(
            manifest.get("n_chunks") == folded.n_chunks
            and manifest.get("rows") == self.dataset.digest_leading_chunks(folded.n_chunks)
        )

    def _has_room(self, folder: AnyPath, arrays: Mapping[str, NDArray[Any]]) -> bool:
        manifests = (
            _read_sums_manifest(other) for other in list_children(folder.parent) if other != folder
        )
        n_bytes: int = sum(m["bytes"] for m in manifests if not _is_outdated(m))
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

    n_chunks: int
    heights: list[int]
    open: bool
    rows: str
    ends: NotRequired[list[int]]
    rows_to_ends: NotRequired[list[str]]
    bytes: int
    modules: list[str]
    code: str


def _read_sums_manifest(folder: AnyPath) -> dict[str, Any]:
    try:
        manifest = read_manifest(folder, ARTIFACT_FORMAT, FORMAT_VERSION)
        check_schema(str(folder), _SumsRecord, manifest, "Delete it.")
    except DataError:
        return {}
    return manifest


def _delete_outdated(folder: AnyPath) -> None:
    """Delete statistics written by other versions of the code, which are never read again."""
    for other in list_children(folder):
        if _is_outdated(_read_sums_manifest(other)):
            delete_tree(other)


def _is_outdated(manifest: Mapping[str, Any]) -> bool:
    """Return whether another version of the code wrote the statistics."""
    try:
        return manifest.get("code") != digest_modules(*manifest["modules"])
    except (KeyError, ModuleNotFoundError, ValueError):  # the module no longer exists
        return True


def _iter_arrays(folded: MergedChunks[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    parts = {str(k): statistics for k, (_, statistics) in enumerate(folded.stack)}
    if folded.open_group is not None:
        parts["open"] = folded.open_group
    for prefix, statistics in parts.items():
        for name, array in statistics.to_arrays().items():
            yield f"{prefix}-{name}", np.asarray(array)


def _count_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays.values())
