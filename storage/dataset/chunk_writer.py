"""Takes batches of rows and writes them as chunks, then the tables and the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset import bits
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.layout import PackedRows, blocks_of, joined, occupied_slots, rows_that_fit
from storage.dataset.levels import Codebook, LevelsWriter, codebook, codes_of
from storage.errors import DataError
from storage.format.manifests import write_manifest
from storage.format.schema import (
    BITS,
    BLOCKS,
    CHECKSUMS,
    CHUNKS,
    DATASET_FORMAT,
    DATASET_VERSION,
    OBSERVED,
    ONES,
    ORDER,
    SMALLEST_CHUNK,
    ArraySpec,
    array_path,
    column_spec,
    create_array,
    open_own,
    stored_names,
)
from storage.stores.locations import Place, checksum

_NO_SEGMENT = "all"
_LARGEST_INT = np.iinfo(np.int64).max


class RowBatch(Protocol):
    """What the writer needs of a batch: `storage.sources.Batch` is one."""

    @property
    def X(self) -> NDArray[np.uint8]:
        """Values, (n_rows, n_features)."""

    @property
    def observed(self) -> NDArray[np.uint8] | None:
        """Mask of the same shape."""

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Per-row columns."""


@dataclass
class DatasetWriter:
    """Takes batches and writes full chunks as they come."""

    folder: Place
    group: zarr.Group
    feature_names: tuple[str, ...]
    words_per_chunk: int
    columns: dict[str, dict[str, Any]]
    segments: Codebook = field(default_factory=codebook)
    levels: dict[str, LevelsWriter] = field(default_factory=dict)
    ingest: Mapping[str, Any] = field(default_factory=dict)
    base: BinaryDataset | None = None
    n_rows: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    _waiting: list[PackedRows] = field(default_factory=list)
    _chunks: list[tuple[int, int, int]] = field(default_factory=list)
    _blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    _ones: list[NDArray[np.int64]] = field(default_factory=list)
    _checksums: list[list[int]] = field(default_factory=list)
    _arrays: dict[str, Any] = field(default_factory=dict)

    def add(self, batch: RowBatch, segments: NDArray[Any] | None = None) -> None:
        """Append rows in arrival order.

        Parameters
        ----------
        batch
            The rows.
        segments
            Name of each row's segment, (n_rows,); None puts all in one.

        Raises
        ------
        DataError
            If the batch has another number of features, or a per-row column changes its type.
        """
        if not len(batch.X):
            return
        if batch.X.shape[1] != len(self.feature_names):
            raise DataError(
                f"Expected {len(self.feature_names)} features in every batch, "
                f"got {batch.X.shape[1]}. Check the sources."
            )
        values, observed = bits.pack_rows(batch.X), None
        if batch.observed is not None and not batch.observed.all():
            observed = bits.pack_rows(batch.observed)
            values &= observed
        rows = PackedRows(
            values,
            observed,
            self._segment_codes(segments, len(batch.X)),
            {name: self._encode(name, batch.columns[name]) for name in self.columns},
        )
        self._waiting.append(rows)
        waiting = sum(map(len, self._waiting))
        if waiting >= 64 * self.words_per_chunk:
            self._write_full_chunks()

    def finish(self) -> BinaryDataset:
        """Write what waits, the tables and the manifest, and open the result.

        Raises
        ------
        DataError
            If there are no rows, or one alone.
        """
        if self._waiting:
            self._write_full_chunks()
            if self._waiting:
                self._write_chunk(self._waiting.pop())
        self._check_rows()
        resize(self.group, self._stored, self._n_chunks)
        self._write_tables()
        for name, levels in self.levels.items():
            self.columns[name] = {"kind": "category", "levels": levels.finish()}
        write_manifest(self.folder, self._manifest())
        return open_dataset(self.folder)

    @property
    def _n_chunks(self) -> int:
        return (self.base.n_chunks if self.base else 0) + len(self._chunks)

    @property
    def _stored(self) -> list[str]:
        return stored_names(self.columns)

    def _segment_codes(self, segments: NDArray[Any] | None, n_rows: int) -> NDArray[np.int32]:
        if segments is None:
            return np.full(n_rows, self.segments[_NO_SEGMENT], np.int32)
        return codes_of(segments, self.segments)

    def _encode(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Store whole numbers as int64, numbers as float64, all else as codes of texts."""
        spec = self.columns[name]
        kind = {"b": "int", "i": "int", "u": "int", "f": "float"}.get(values.dtype.kind, "category")
        # A split is named by text, also where a source numbers it.
        wanted = spec.setdefault("kind", "category" if name == "split" else kind)
        if wanted == "category":
            return self._levels(name).codes_of(values)
        if kind != wanted and (kind, wanted) != ("int", "float"):
            raise DataError(
                f"column {name!r}: Expected {wanted} values as in the first rows, got {kind}. "
                "Give the column one type in every source."
            )
        if wanted == "int" and (values > _LARGEST_INT).any():
            raise DataError(
                f"column {name!r}: Expected whole numbers up to {_LARGEST_INT}, "
                f"got {values.max()}. Write the column as text."
            )
        return values.astype(np.int64 if wanted == "int" else np.float64)

    def _levels(self, name: str) -> LevelsWriter:
        if name not in self.levels:
            self.levels[name] = LevelsWriter(self.group, name)
        return self.levels[name]

    def _write_full_chunks(self) -> None:
        rows = joined(self._waiting)
        while (n_rows := rows_that_fit(rows.segments, self.words_per_chunk)) < len(rows):
            self._write_chunk(rows.part(slice(n_rows)))
            rows = rows.part(slice(n_rows, None))
        self._waiting = [rows]

    def _write_chunk(self, rows: PackedRows) -> None:
        key = self._n_chunks
        order = np.argsort(rows.segments, kind="stable")
        blocks = blocks_of(rows.segments)
        slots = occupied_slots(blocks)
        n_words = int(sum(-(-blocks[:, 2] // 64)))
        words = self._feature_major(rows.values[order], slots)
        stored: dict[str, NDArray[Any] | None] = {
            "bits": words,
            "observed": self._mask(rows, order, slots),
            "order": None if len(blocks) == 1 else self._per_slot(ORDER, order, slots),
        }
        for name, values in rows.columns.items():
            spec = column_spec(name, self.columns[name]["kind"])
            stored[f"columns/{name}"] = self._per_slot(spec, values[order], slots)
        self._checksums.append([self._store(name, key, a) for name, a in stored.items()])
        self._ones.append(np.bitwise_count(words.view("<u8")).sum(axis=1, dtype=np.int64))
        self._blocks += [(key, int(a), int(b), int(c)) for a, b, c in blocks]
        self._chunks.append((self.n_rows, len(rows), n_words))
        self.n_rows += len(rows)

    def _mask(
        self, rows: PackedRows, order: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> NDArray[np.uint8] | None:
        """Place the mask, or None when this chunk has no missing value, wherever its batch has."""
        if rows.observed is None:
            return None
        mask = self._feature_major(rows.observed[order], slots)
        n_observed = np.bitwise_count(mask).sum(dtype=np.int64)
        return None if n_observed == len(rows) * len(self.feature_names) else mask

    def _feature_major(
        self, rows: NDArray[np.uint8], slots: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        placed = np.zeros((64 * self.words_per_chunk, rows.shape[1]), np.uint8)
        placed[slots] = rows
        return bits.transpose(placed)[: len(self.feature_names)]

    def _per_slot(
        self, spec: ArraySpec, values: NDArray[Any], slots: NDArray[np.int64]
    ) -> NDArray[Any]:
        placed = np.full(64 * self.words_per_chunk, spec.fill_value, spec.dtype)
        placed[slots] = values
        return placed

    def _store(self, name: str, key: int, values: NDArray[Any] | None) -> int:
        if values is None:
            return -1
        width = values.shape[-1]
        array = self._array(name, values.shape[:-1], width)
        array.resize((*values.shape[:-1], (key + 1) * width))
        array[..., key * width : (key + 1) * width] = values
        return checksum(values)

    def _array(self, name: str, lead: tuple[int, ...], width: int) -> Any:
        if name not in self._arrays:
            self._arrays[name] = self._opened(name, lead, width)
        return self._arrays[name]

    def _opened(self, name: str, lead: tuple[int, ...], width: int) -> Any:
        if array_path(name) in self.group:
            found = open_own(self.group, array_path(name))
            return found.with_config({"write_empty_chunks": True})
        known = {spec.name: spec for spec in (BITS, OBSERVED, ORDER)}
        spec = known.get(name) or column_spec(
            name.removeprefix("columns/"), self.columns[name.removeprefix("columns/")]["kind"]
        )
        return create_array(self.group, spec, (*lead, width), (*lead, width))

    def _check_rows(self) -> None:
        if not self._chunks:
            raise DataError("Expected at least one row, got none. Check the sources.")
        if self.n_rows < 2:
            raise DataError("Expected at least 2 rows, got 1. Check the sources.")

    def _all(self, spec: ArraySpec) -> NDArray[np.int64]:
        """The whole of a table: what the base has, then what was added."""
        added = {
            CHUNKS.name: self._chunks,
            BLOCKS.name: self._blocks,
            ONES.name: self._ones,
            CHECKSUMS.name: self._checksums,
        }[spec.name]
        if self.base is None:
            return np.array(added, np.int64)
        length = len(self.base.blocks) if spec is BLOCKS else self.base.n_chunks
        before: Any = self.base.group[spec.name]
        return np.concatenate([before[:length], np.array(added, np.int64)])

    def _write_tables(self) -> None:
        for spec in (CHUNKS, BLOCKS, ONES, CHECKSUMS):
            table = self._all(spec)
            if spec.name not in self.group:
                rows = max(1, SMALLEST_CHUNK // (8 * table.shape[1]))
                create_array(self.group, spec, table.shape, (rows, table.shape[1]))
            array: Any = self.group[spec.name]
            array.resize(table.shape)
            # Rows that the old manifest counts keep their values, so it stays true until replaced.
            array[:] = table

    def _manifest(self) -> dict[str, Any]:
        tables = {spec.name: self._all(spec) for spec in (CHUNKS, BLOCKS, ONES, CHECKSUMS)}
        described = {
            "feature_names": list(self.feature_names),
            "segment_names": list(self.segments),
            "words_per_chunk": self.words_per_chunk,
            "columns": self.columns,
            "n_rows": self.n_rows,
        }
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for table in tables.values():
            digest.update(table.tobytes())
        return {
            "format": DATASET_FORMAT,
            "format_version": DATASET_VERSION,
            "digest": digest.hexdigest(),
            "n_chunks": self._n_chunks,
            "n_blocks": len(tables["blocks"]),
            "stored": self._stored,
            "tables": {name: checksum(table) for name, table in tables.items()},
            "ingest": dict(self.ingest),
            "attributes": dict(self.attributes),
            **described,
        }


def resize(group: zarr.Group, names: Sequence[str], n_chunks: int) -> None:
    """Give all arrays with data of chunks the same length; chunks beyond it are deleted."""
    for name in names:
        if array_path(name) in group:
            array: Any = group[array_path(name)]
            array.resize((*array.shape[:-1], n_chunks * array.chunks[-1]))
