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

from flows.data.datasets import leading_digest
from pipeline.data.blocks import Tile
from pipeline.executors.code_digest import code_digest
from pipeline.passes.collect import Kept
from pipeline.passes.map_reduce import Folded
from pipeline.statistics.base import Statistics
from storage.artifacts.packed import Packed, load_packed, part, write_packed
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.manifest_schemas import check_parts
from storage.format.manifests import read_manifest
from storage.format.schema import ARTIFACT_FORMAT, FORMAT_VERSION
from storage.stores.locations import Place, children, claimed, delete_tree

FOLDER = "statistics"
_LARGEST_SHARE = 0.1
"""Of the dataset's packed bits: what is kept takes no more."""
_COUNTING_ALIKE = {
    "fdf32214acdea51075d412588bcfabc0b80a30293325b6bc670f49358afefab6": (
        "49ef5bfea84b683c1d7dc3fe32887051ddc26faafc68ae3074b0acdf26f9042f"
    )
}
"""Digest of the code that counts, and the one that sums were named by while it was of all code."""
log = logging.getLogger("latentbits")


def kept_statistics(
    dataset: BinaryDataset, split: str | None, kind: type[Statistics], counted: str | None
) -> Kept[Any]:
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
        return Kept()
    sums = _Sums(dataset, split, kind, counted)
    return Kept(sums.load, sums.save)


@dataclass(frozen=True)
class _Sums:
    """Sums of one kind over the rows of one split."""

    dataset: BinaryDataset
    split: str | None
    kind: type[Statistics]
    counted: str

    def load(self, tile: Tile | None) -> Folded[Any]:
        """Give what was kept, if it is of these rows and whole."""
        found = self._loaded(tile, self._code)
        if not found.n_chunks and self._code in _COUNTING_ALIKE:
            return self._loaded(tile, _COUNTING_ALIKE[self._code])
        return found

    def _loaded(self, tile: Tile | None, code: str) -> Folded[Any]:
        try:
            found = load_packed(folder := self._folder(tile, code))
            check_parts(str(folder), _Described, found.manifest, "Delete it.")
            n_chunks = found.manifest["n_chunks"]
            if found.manifest["rows"] != leading_digest(self.dataset, n_chunks):
                return Folded()
            return self._folded(found)
        except (DataError, KeyError):  # damaged, or of arrays that are not there
            return Folded()

    def save(self, tile: Tile | None, folded: Folded[Any]) -> None:
        """Keep sums in the place of those before; that it cannot be done does no harm."""
        folder = self._folder(tile, self._code)
        try:
            arrays = dict(_arrays(folded))
            if self._is_kept(folder, folded) or not self._has_room(folder, arrays):
                return
            with claimed(folder.parent):
                _drop_outdated(folder.parent)
                write_packed(folder, arrays, self._described(folded, arrays))
        except (DataError, OSError) as error:
            log.debug("statistics of %s are not kept: %s", self.dataset.path, error)

    def _folder(self, tile: Tile | None, code: str) -> Place:
        what = json.dumps([self.kind.__name__, self.counted, self.split, tile, code])
        return self.dataset.path / FOLDER / hashlib.sha256(what.encode()).hexdigest()[:24]

    def _folded(self, found: Packed) -> Folded[Any]:
        arrays, manifest = found
        heights, from_arrays = manifest["heights"], self.kind.from_arrays
        stack = [from_arrays(part(arrays, f"{k}-")) for k in range(len(heights))]
        still_open = from_arrays(part(arrays, "open-")) if manifest["open"] else None
        pairs = tuple(zip(heights, stack, strict=True))
        return Folded(int(manifest["n_chunks"]), pairs, still_open)

    def _described(self, folded: Folded[Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        return {
            "n_chunks": folded.n_chunks,
            "heights": [height for height, _ in folded.stack],
            "open": folded.open is not None,
            "rows": leading_digest(self.dataset, folded.n_chunks),
            "bytes": _size(arrays),
            "modules": self._modules,
            "code": self._code,
        }

    def _is_kept(self, folder: Place, folded: Folded[Any]) -> bool:
        found = _manifest(folder)
        return found.get("n_chunks") == folded.n_chunks and (
            found.get("rows") == leading_digest(self.dataset, folded.n_chunks)
        )

    def _has_room(self, folder: Place, arrays: Mapping[str, NDArray[Any]]) -> bool:
        kept = (_manifest(other) for other in children(folder.parent) if other != folder)
        others = sum(m["bytes"] for m in kept if not _is_outdated(m))
        return others + _size(arrays) <= _LARGEST_SHARE * self._packed_bytes

    @cached_property
    def _modules(self) -> tuple[str, str]:
        """What decides the sums: the kind of statistics, and how they are merged."""
        return self.kind.__module__, "pipeline.passes.collect"

    @cached_property
    def _code(self) -> str:
        return code_digest(*self._modules)

    @cached_property
    def _packed_bytes(self) -> int:
        return int(8 * self.dataset.chunks[:, 2].sum()) * self.dataset.n_features


class _Described(TypedDict):
    """What is recorded beside sums."""

    n_chunks: int
    heights: list[int]
    open: bool
    rows: str
    bytes: int
    modules: list[str]
    code: str


def _manifest(folder: Place) -> dict[str, Any]:
    try:
        manifest = read_manifest(folder, ARTIFACT_FORMAT, FORMAT_VERSION)
        check_parts(str(folder), _Described, manifest, "Delete it.")
    except DataError:
        return {}
    return manifest


def _drop_outdated(folder: Place) -> None:
    """Delete what was written by other code, which nobody will read again."""
    for other in children(folder):
        if _is_outdated(_manifest(other)):
            delete_tree(other)


def _is_outdated(manifest: Mapping[str, Any]) -> bool:
    """Tell whether other code than that of now summed."""
    try:
        return manifest.get("code") != code_digest(*manifest["modules"])
    except (KeyError, ModuleNotFoundError, ValueError):  # a name that none can have
        return True


def _arrays(folded: Folded[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    parts = {str(k): summed for k, (_, summed) in enumerate(folded.stack)}
    if folded.open is not None:
        parts["open"] = folded.open
    for prefix, summed in parts.items():
        for name, array in summed.arrays().items():
            yield f"{prefix}-{name}", np.asarray(array)


def _size(arrays: Mapping[str, NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays.values())
