"""Writes a dataset from a stream of row batches: chunks first, manifest last."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr
from numpy.typing import NDArray

from storage import bits
from storage.dataset import BinaryDataset, occupied_slots, open_dataset
from storage.errors import DataError
from storage.locations import checksum, is_unfinished, replace_folder, write_manifest
from storage.schema import (
    BITS,
    BLOCKS,
    CHECKSUMS,
    CHUNKS,
    DATASET_FORMAT,
    FORMAT_VERSION,
    OBSERVED,
    ONES,
    ORDER,
    ArraySpec,
    array_path,
    column_spec,
    create_array,
)

# Below 8 MiB a chunk's own cost starts to show, above 32 MiB a task's memory does.
_CHUNK_BYTES = 8 << 20
_SMALLEST_CHUNK, _LARGEST_CHUNK, _CHUNKS_WANTED = 1 << 20, 32 << 20, 64
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
class _Rows:
    """Row-packed rows that wait for their chunk."""

    values: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    segments: NDArray[np.int32]
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.values)

    def part(self, rows: slice) -> _Rows:
        observed = None if self.observed is None else self.observed[rows]
        columns = {name: values[rows] for name, values in self.columns.items()}
        return _Rows(self.values[rows], observed, self.segments[rows], columns)


@dataclass
class DatasetWriter:
    """Takes batches and writes full chunks as they come."""

    folder: Path
    feature_names: tuple[str, ...]
    words_per_chunk: int
    columns: dict[str, dict[str, Any]]
    segment_names: list[str] = field(default_factory=list)
    ingest: Mapping[str, Any] = field(default_factory=dict)
    base: BinaryDataset | None = None
    n_rows: int = 0
    _group: zarr.Group = field(init=False)
    _waiting: list[_Rows] = field(default_factory=list)
    _chunks: list[tuple[int, int, int]] = field(default_factory=list)
    _blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    _ones: list[NDArray[np.int64]] = field(default_factory=list)
    _checksums: list[list[int]] = field(default_factory=list)

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
        rows = _Rows(
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
            If there are no rows, or a segment has fewer than two.
        """
        if self._waiting:
            self._write_full_chunks()
            if self._waiting:
                self._write_chunk(self._waiting.pop())
        self._check_rows()
        _resize(self._group, self._stored, self._n_chunks)
        self._write_tables()
        write_manifest(self.folder, self._manifest())
        return open_dataset(self.folder)

    @property
    def _n_chunks(self) -> int:
        return (self.base.n_chunks if self.base else 0) + len(self._chunks)

    @property
    def _stored(self) -> list[str]:
        return ["bits", "observed", "order", *(f"columns/{name}" for name in self.columns)]

    def _segment_codes(self, segments: NDArray[Any] | None, n_rows: int) -> NDArray[np.int32]:
        names = np.full(n_rows, _NO_SEGMENT) if segments is None else segments.astype(str)
        return _codes(names, self.segment_names)

    def _encode(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Store whole numbers as int64, numbers as float64, all else as codes of categories."""
        spec = self.columns[name]
        kind = {"b": "int", "i": "int", "u": "int", "f": "float"}.get(values.dtype.kind, "category")
        wanted = spec.setdefault("kind", kind)
        if wanted == "category":
            return _codes(values.astype(str), spec.setdefault("categories", []))
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

    def _write_full_chunks(self) -> None:
        rows = _joined(self._waiting)
        while (n_rows := _rows_that_fit(rows.segments, self.words_per_chunk)) < len(rows):
            self._write_chunk(rows.part(slice(n_rows)))
            rows = rows.part(slice(n_rows, None))
        self._waiting = [rows]

    def _write_chunk(self, rows: _Rows) -> None:
        key = self._n_chunks
        order = np.argsort(rows.segments, kind="stable")
        blocks = _blocks(rows.segments)
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
        self, rows: _Rows, order: NDArray[np.int64], slots: NDArray[np.int64]
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
        if array_path(name) in self._group:
            found: Any = self._group[array_path(name)]
            return found.with_config({"write_empty_chunks": True})
        known = {spec.name: spec for spec in (BITS, OBSERVED, ORDER)}
        spec = known.get(name) or column_spec(
            name.removeprefix("columns/"), self.columns[name.removeprefix("columns/")]["kind"]
        )
        return create_array(self._group, spec, (*lead, width), (*lead, width))

    def _check_rows(self) -> None:
        if not self._chunks:
            raise DataError("Expected at least one row, got none. Check the sources.")
        rows = np.zeros(len(self.segment_names), np.int64)
        blocks = self._all(BLOCKS)
        np.add.at(rows, blocks[:, 1], blocks[:, 3])
        if (rows < 2).any():
            segment = int(np.argmax(rows < 2))
            raise DataError(
                f"segment {self.segment_names[segment]!r}: Expected at least 2 rows in every "
                f"segment, got {rows[segment]}. Check --segment-by or --segments."
            )

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
            if spec.name not in self._group:
                rows = max(1, _SMALLEST_CHUNK // (8 * table.shape[1]))
                create_array(self._group, spec, table.shape, (rows, table.shape[1]))
            array: Any = self._group[spec.name]
            array.resize(table.shape)
            # Rows that the old manifest counts keep their values, so it stays true until replaced.
            array[:] = table

    def _manifest(self) -> dict[str, Any]:
        tables = {spec.name: self._all(spec) for spec in (CHUNKS, BLOCKS, ONES, CHECKSUMS)}
        described = {
            "feature_names": list(self.feature_names),
            "segment_names": self.segment_names,
            "words_per_chunk": self.words_per_chunk,
            "columns": self.columns,
            "n_rows": self.n_rows,
        }
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for table in tables.values():
            digest.update(table.tobytes())
        return {
            "format": DATASET_FORMAT,
            "format_version": FORMAT_VERSION,
            "digest": digest.hexdigest(),
            "n_chunks": self._n_chunks,
            "n_blocks": len(tables["blocks"]),
            "stored": self._stored,
            "tables": {name: checksum(table) for name, table in tables.items()},
            "ingest": dict(self.ingest),
            **described,
        }


@contextmanager
def create_dataset(
    path: str | Path,
    feature_names: Sequence[str],
    *,
    columns: Sequence[str] = (),
    expected_rows: int | None = None,
    words_per_chunk: int | None = None,
    ingest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Write a new dataset; an error inside the `with` leaves nothing behind.

    Parameters
    ----------
    path
        Folder of the dataset. An interrupted ingest found there is replaced.
    feature_names
        Names of the features; at least two, all different.
    columns
        Per-row columns to keep; one named `split` gives the splits.
    expected_rows
        Number of rows to come, if known: it sets the chunk size.
    words_per_chunk
        Chunk size in words of 64 rows, instead of the one derived.
    ingest
        Options to remember for a later append.
    overwrite
        Replace a dataset that is there, once the new one is whole.

    Raises
    ------
    DataError
        If the path is taken or the features cannot be used.
    """
    names = check_feature_names(feature_names)
    target = Path(path)
    holds_something = target.exists() and (not target.is_dir() or any(target.iterdir()))
    taken = holds_something and not is_unfinished(target, DATASET_FORMAT)
    if taken and not overwrite:
        raise DataError(
            f"{target}: Expected a new path, got one that exists. "
            "Use --append to add rows or --overwrite to replace it."
        )
    if taken:
        open_dataset(target)  # only a dataset is ever replaced, never another folder
    folder = target.with_name(f".{target.name}.replacing") if taken else target
    shutil.rmtree(folder, ignore_errors=True)
    writer = DatasetWriter(
        folder,
        names,
        words_per_chunk or _chunk_words(len(names), expected_rows),
        {name: {} for name in columns},
        ingest=ingest or {},
    )
    try:
        writer._group = zarr.create_group(folder, attributes={"format": DATASET_FORMAT})
        yield writer
        writer.finish()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if taken:
        replace_folder(folder, target)


@contextmanager
def append_dataset(path: str | Path, feature_names: Sequence[str]) -> Iterator[DatasetWriter]:
    """Add rows to a dataset as new chunks; until the end it stays what it was.

    Raises
    ------
    DataError
        If the features are not those of the dataset, in its order.
    """
    base = open_dataset(path)
    _check_same_features(base, tuple(feature_names))
    _drop_unfinished(base)
    columns = json.loads(json.dumps(base.manifest["columns"]))
    writer = DatasetWriter(
        base.path,
        base.feature_names,
        int(base.manifest["words_per_chunk"]),
        columns,
        list(base.segment_names),
        base.manifest["ingest"],
        base,
        base.n_rows,
    )
    writer._group = zarr.open_group(base.path, mode="r+")
    try:
        yield writer
        writer.finish()
    except BaseException:
        # What cannot be dropped now, the next append drops.
        with suppress(OSError, DataError):
            _drop_unfinished(open_dataset(base.path))
        raise


def _drop_unfinished(dataset: BinaryDataset) -> None:
    """Delete what an interrupted append left beyond the manifest: other clients would read it."""
    group = zarr.open_group(dataset.path, mode="r+")
    for name, recorded in zip(dataset.manifest["stored"], dataset.checksums.T, strict=True):
        if (recorded < 0).all() and array_path(name) in group:
            del group[array_path(name)]
    _resize(group, dataset.manifest["stored"], dataset.n_chunks)
    for spec in (CHUNKS, BLOCKS, ONES, CHECKSUMS):
        table: Any = group[spec.name]
        length = len(dataset.blocks) if spec is BLOCKS else dataset.n_chunks
        table.resize((length, *table.shape[1:]))
    for part in dataset.path.rglob("*.partial"):
        if part.is_file():
            part.unlink()


def _resize(group: zarr.Group, names: Sequence[str], n_chunks: int) -> None:
    """Give all arrays with data of chunks the same length; chunks beyond it are deleted."""
    for name in names:
        if array_path(name) in group:
            array: Any = group[array_path(name)]
            array.resize((*array.shape[:-1], n_chunks * array.chunks[-1]))


def check_feature_names(names: Sequence[str]) -> tuple[str, ...]:
    """Refuse fewer than two features and names that stand twice.

    Raises
    ------
    DataError
        Saying which.
    """
    if len(names) < 2:
        raise DataError(f"Expected at least 2 features, got {len(names)}. Check the sources.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Expected different feature names, got {name!r} twice. Rename one.")
        seen.add(name)
    return tuple(names)


def _check_same_features(base: BinaryDataset, names: tuple[str, ...]) -> None:
    if names == base.feature_names:
        return
    if len(names) != base.n_features:
        raise DataError(
            f"--append: Expected the {base.n_features} features of {base.path}, got {len(names)}."
        )
    at = next(i for i, name in enumerate(names) if name != base.feature_names[i])
    raise DataError(
        f"--append: Expected feature {base.feature_names[at]!r} of {base.path} at position "
        f"{at + 1}, got {names[at]!r}. Give the features in the dataset's order."
    )


def _chunk_words(n_features: int, expected_rows: int | None) -> int:
    size = _CHUNK_BYTES
    if expected_rows is not None:
        even = expected_rows * n_features // 8 // _CHUNKS_WANTED
        size = min(max(even, _SMALLEST_CHUNK), _LARGEST_CHUNK)
    return max(1, size // (8 * n_features))


def _codes(values: NDArray[Any], names: list[str]) -> NDArray[np.int32]:
    """Code values by their place in `names`, which grows by new ones in order of appearance."""
    found, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    place = {name: i for i, name in enumerate(names)}
    for i in np.argsort(first):
        if (name := str(found[i])) not in place:
            place[name] = len(names)
            names.append(name)
    return np.array([place[str(name)] for name in found], np.int32)[inverse]


def _joined(parts: list[_Rows]) -> _Rows:
    if len(parts) == 1:
        return parts[0]
    observed = None
    if any(part.observed is not None for part in parts):
        observed = np.concatenate(
            [np.full_like(p.values, 255) if p.observed is None else p.observed for p in parts]
        )
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
    values = np.concatenate([part.values for part in parts])
    return _Rows(values, observed, np.concatenate([part.segments for part in parts]), columns)


def _rows_that_fit(segments: NDArray[np.int32], n_words: int) -> int:
    """Count the leading rows whose blocks, each from a word boundary, fit into a chunk."""
    segments = segments[: 64 * n_words]
    opens_word = _rank_in_segment(segments) % 64 == 0
    return int(np.searchsorted(np.cumsum(opens_word), n_words, side="right"))


def _rank_in_segment(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    order = np.argsort(segments, kind="stable")
    _, starts, sizes = np.unique(segments[order], return_index=True, return_counts=True)
    rank = np.empty(len(segments), np.int64)
    rank[order] = np.arange(len(segments)) - np.repeat(starts, sizes)
    return rank


def _blocks(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    """Lay out segments in index order: (segment, first word, number of rows) each."""
    names, sizes = np.unique(segments, return_counts=True)
    n_words = -(-sizes // 64)
    return np.column_stack([names, np.cumsum(n_words) - n_words, sizes]).astype(np.int64)
