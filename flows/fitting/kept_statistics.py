"""Sums over the leading chunks of a dataset, kept beside them: a refit reads only what is new."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from flows.data.datasets import digest_leading_chunks
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
"""Of the dataset's packed bits: what is kept takes no more."""
_COUNTING_ALIKE = {
    "fdf32214acdea51075d412588bcfabc0b80a30293325b6bc670f49358afefab6": (
        "49ef5bfea84b683c1d7dc3fe32887051ddc26faafc68ae3074b0acdf26f9042f"
    )
}
"""Digest of the code that counts, and the one that sums were named by while it was of all code."""
log = logging.getLogger("latentbits")


def open_kept_statistics(
    dataset: BinaryDataset, split: str | None, kind: type[Statistics], counted: str | None
) -> KeptSums[Any]:
    """Keep sums of a kind of statistics in the dataset's folder.

    Parameters
    ----------
    dataset, split
        The rows.
    kind
        What is summed.
    counted
        What of each block is summed; None where that depends on parameters, and is not kept.
    """
    if counted is None:
        return KeptSums()
    sums = _KeptSums(dataset, split, kind, counted)
    return KeptSums(sums.load, sums.save)


@dataclass(frozen=True)
class _KeptSums:
    """Sums of one kind over the rows of one split."""

    dataset: BinaryDataset
    split: str | None
    kind: type[Statistics]
    counts_key: str

    def load(self, tile: Tile | None) -> MergedChunks[Any]:
        """Give what was kept, if it is of these rows and whole."""
        found = self._load_by_code(tile, self._code_digest)
        if not found.n_chunks and self._code_digest in _COUNTING_ALIKE:
            return self._load_by_code(tile, _COUNTING_ALIKE[self._code_digest])
        return found

    def _load_by_code(self, tile: Tile | None, code: str) -> MergedChunks[Any]:
        try:
            found = load_packed(folder := self._find_folder(tile, code))
            check_schema(str(folder), _SumsRecord, found.manifest, "Delete it.")
            n_chunks = found.manifest["n_chunks"]
            if found.manifest["rows"] != digest_leading_chunks(self.dataset, n_chunks):
                return MergedChunks()
            return self._rebuild_sums(found)
        except (DataError, KeyError):  # damaged, or of arrays that are not there
            return MergedChunks()

    def save(self, tile: Tile | None, folded: MergedChunks[Any]) -> None:
        """Keep sums in the place of those before; that it cannot be done does no harm."""
        folder = self._find_folder(tile, self._code_digest)
        try:
            arrays = dict(_iter_arrays(folded))
            if self._is_kept(folder, folded) or not self._has_room(folder, arrays):
                return
            with lock_folder(folder.parent):
                _delete_outdated(folder.parent)
                write_packed(folder, arrays, self._describe_sums(folded, arrays))
        except (DataError, OSError) as error:
            log.debug("statistics of %s are not kept: %s", self.dataset.path, error)

    def _find_folder(self, tile: Tile | None, code: str) -> AnyPath:
        what = json.dumps([self.kind.__name__, self.counts_key, self.split, tile, code])
        return (
            self.dataset.path / STATISTICS_FOLDER / hashlib.sha256(what.encode()).hexdigest()[:24]
        )

    def _rebuild_sums(self, found: PackedArrays) -> MergedChunks[Any]:
        arrays, manifest = found
        heights, from_arrays = manifest["heights"], self.kind.from_arrays
        stack = [from_arrays(select_prefix(arrays, f"{k}-")) for k in range(len(heights))]
        still_open = from_arrays(select_prefix(arrays, "open-")) if manifest["open"] else None
        pairs = tuple(zip(heights, stack, strict=True))
        return MergedChunks(int(manifest["n_chunks"]), pairs, still_open)

    def _describe_sums(
        self, folded: MergedChunks[Any], arrays: Mapping[str, NDArray[Any]]
    ) -> dict[str, Any]:
        return {
            "n_chunks": folded.n_chunks,
            "heights": [height for height, _ in folded.stack],
            "open": folded.open_group is not None,
            "rows": digest_leading_chunks(self.dataset, folded.n_chunks),
            "bytes": _count_bytes(arrays),
            "modules": self._modules,
            "code": self._code_digest,
        }

    def _is_kept(self, folder: AnyPath, folded: MergedChunks[Any]) -> bool:
        found = _read_sums_manifest(folder)
        return found.get("n_chunks") == folded.n_chunks and (
            found.get("rows") == digest_leading_chunks(self.dataset, folded.n_chunks)
        )

    def _has_room(self, folder: AnyPath, arrays: Mapping[str, NDArray[Any]]) -> bool:
        kept = (
            _read_sums_manifest(other) for other in list_children(folder.parent) if other != folder
        )
        others = sum(m["bytes"] for m in kept if not _is_outdated(m))
        return others + _count_bytes(arrays) <= _MAX_SHARE * self._dataset_bytes

    @cached_property
    def _modules(self) -> tuple[str, str]:
        """What decides the sums: the kind of statistics, and how they are merged."""
        return self.kind.__module__, "pipeline.passes.map_reduce"

    @cached_property
    def _code_digest(self) -> str:
        return digest_modules(*self._modules)

    @cached_property
    def _dataset_bytes(self) -> int:
        return int(8 * self.dataset.chunks[:, 2].sum()) * self.dataset.n_features


class _SumsRecord(TypedDict):
    """What is recorded beside sums."""

    n_chunks: int
    heights: list[int]
    open: bool
    rows: str
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
    """Delete what was written by other code, which nobody will read again."""
    for other in list_children(folder):
        if _is_outdated(_read_sums_manifest(other)):
            delete_tree(other)


def _is_outdated(manifest: Mapping[str, Any]) -> bool:
    """Tell whether other code than that of now summed."""
    try:
        return manifest.get("code") != digest_modules(*manifest["modules"])
    except (KeyError, ModuleNotFoundError, ValueError):  # a name that none can have
        return True


def _iter_arrays(folded: MergedChunks[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    parts = {str(k): summed for k, (_, summed) in enumerate(folded.stack)}
    if folded.open_group is not None:
        parts["open"] = folded.open_group
    for prefix, summed in parts.items():
        for name, array in summed.to_arrays().items():
            yield f"{prefix}-{name}", np.asarray(array)


def _count_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays.values())
