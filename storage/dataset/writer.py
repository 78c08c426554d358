"""Create datasets and append to them, chunk by chunk; a failed attempt changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset.chunks import list_occupied_slots, pack_rows, transpose_bits
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.levels import Codebook, LevelsWriter, encode_texts, make_codebook
from storage.dataset.tables import make_damaged_dataset_error
from storage.errors import DataError
from storage.format.manifests import write_manifest
from storage.format.schema import (
    BITS,
    BLOCKS,
    CHECKSUMS,
    CHUNKS,
    DATASET_FORMAT,
    DATASET_VERSION,
    MIN_CHUNK_BYTES,
    OBSERVED,
    ONES,
    ORDER,
    ArraySpec,
    create_array,
    format_array_path,
    list_stored_arrays,
    make_column_spec,
    open_checked_array,
)
from storage.stores.locations import (
    AnyPath,
    check_folder_name,
    checksum,
    clear_folder,
    delete_tree,
    has_format,
    is_unfinished,
    list_children,
    lock_folder,
    open_group,
    parse_path,
    replace_folder,
    to_zarr_store,
)
from storage.stores.object_store import translate_store_errors

# Smaller chunks cost too much overhead, larger ones too much memory per task.
_CHUNK_BYTES = 8 << 20
_MAX_CHUNK_BYTES, _TARGET_CHUNKS = 32 << 20, 64
_DEFAULT_SEGMENT = "all"
_MAX_INT64 = np.iinfo(np.int64).max


@contextmanager
def create_dataset(
    path: str | AnyPath,
    feature_names: Sequence[str],
    *,
    columns: Sequence[str] = (),
    expected_rows: int | None = None,
    words_per_chunk: int | None = None,
    ingest: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Write a new dataset; an error inside the `with` block leaves nothing behind.

    Parameters
    ----------
    path
        Folder of the dataset. The remains of an interrupted ingest are replaced.
    feature_names
        Names of the features; at least two, all different.
    columns
        Per-row columns to store; one named `split` defines the splits.
    expected_rows
        Number of rows to come, if known; it determines the chunk size.
    words_per_chunk
        Chunk size in words of 64 rows, instead of the derived one.
    ingest
        Options to store for a later append.
    attributes
        JSON values to store with the data; see `BinaryDataset.attributes`.
    overwrite
        Replace an existing dataset once the new one is complete.

    Raises
    ------
    DataError
        If the path is taken, or the features or attributes are invalid.
    """
    names = check_feature_names(feature_names)
    json_attributes = _copy_as_json(attributes or {})
    target = parse_path(path).resolve()  # replace the dataset, not a link to it
    check_dataset_target(target, overwrite)  # before locking, which would fail on a file
    with lock_folder(target) as holds, translate_store_errors(target):
        replaces = check_dataset_target(target, overwrite)
        folder = target.with_name(f".{target.name}.replacing") if replaces else target
        folder.mkdir(exist_ok=True)
        try:
            clear_folder(folder)
            writer = DatasetWriter(
                folder,
                zarr.create_group(to_zarr_store(folder), attributes={"format": DATASET_FORMAT}),
                names,
                words_per_chunk or _choose_chunk_words(len(names), expected_rows),
                {name: {} for name in columns},
                ingest=ingest or {},
                attributes=json_attributes,
            )
            yield writer
            if holds():
                writer.finish()
        except BaseException:
            with suppress(DataError):
                if holds():
                    delete_tree(folder)
            raise
        if replaces and holds():
            replace_folder(folder, target)


def check_dataset_target(path: AnyPath, overwrite: bool) -> bool:
    """Return whether a new dataset would replace one; refuse a path that is taken.

    Raises `DataError` if the path may not be replaced, or has the suffix of a file.
    """
    check_folder_name(path)
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise _make_taken_error(target, overwrite)
    replaces = bool(list_children(target)) and not is_unfinished(target, DATASET_FORMAT)
    if replaces and not (overwrite and has_format(target, DATASET_FORMAT)):
        raise _make_taken_error(target, overwrite)
    return replaces


def _copy_as_json(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy attributes by way of JSON, so that invalid values are refused immediately."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(attributes, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Attributes must be JSON values ({error}). "
            "Use finite numbers, text, lists and mappings."
        ) from None
    return copied


def _make_taken_error(target: AnyPath, overwrite: bool) -> DataError:
    if overwrite:
        return DataError(f"{target} is not a dataset, so it is not replaced. Choose another path.")
    return DataError(
        f"{target} already exists. Use {{append}} to add rows or {{overwrite}} to replace it."
    )


@contextmanager
def append_dataset(path: str | AnyPath, feature_names: Sequence[str]) -> Iterator[DatasetWriter]:
    """Append rows to a dataset as new chunks; readers see the old dataset until the end.

    Raises `DataError` if the features differ from the dataset's, or their order does.
    """
    folder = open_dataset(path).path
    with lock_folder(folder) as holds, translate_store_errors(folder):
        base = open_dataset(path)
        _check_same_features(base, tuple(feature_names))
        _check_arrays(base)
        _drop_unfinished(base)
        group = open_group(base.path, "r+")
        writer = DatasetWriter(
            base.path,
            group,
            base.feature_names,
            int(base.manifest["words_per_chunk"]),
            json.loads(json.dumps(base.manifest["columns"])),
            make_codebook(base.segment_names),
            {
                name: LevelsWriter.continue_levels(levels, group)
                for name, levels in base.levels.items()
            },
            base.manifest["ingest"],
            base,
            base.n_rows,
            base.attributes,
        )
        try:
            yield writer
            if holds():
                writer.finish()
        except BaseException:
            # The next append deletes what cannot be deleted now.
            with suppress(OSError, DataError):
                if holds():
                    _drop_unfinished(open_dataset(base.path))
            raise


def _check_arrays(base: BinaryDataset) -> None:
    """Check what an append builds on, before changing anything.

    These are the metadata of the arrays and the last page of texts of each column.
    """
    base.ones()
    for name, recorded in zip(base.manifest["stored"], base.checksums.T, strict=True):
        try:
            if (recorded >= 0).any():
                base.open_array(name)
        except Exception as error:
            raise make_damaged_dataset_error(base.path, error) from error
    for levels in base.levels.values():
        levels.read_page(-1)


def _drop_unfinished(dataset: BinaryDataset) -> None:
    """Delete what an interrupted append wrote beyond the manifest: other clients would read it."""
    group = open_group(dataset.path, "r+")
    for name, recorded in zip(dataset.manifest["stored"], dataset.checksums.T, strict=True):
        if (recorded < 0).all():
            delete_tree(dataset.path / format_array_path(name))
    resize_arrays(group, dataset.manifest["stored"], dataset.n_chunks)
    for levels in dataset.levels.values():
        levels.truncate(group)
    for spec in (CHUNKS, BLOCKS, ONES, CHECKSUMS):
        table: Any = group[spec.name]
        length = len(dataset.blocks) if spec is BLOCKS else dataset.n_chunks
        table.resize((length, *table.shape[1:]))
    # Only local files: objects are always complete.
    for file in dataset.path.rglob("*.partial") if isinstance(dataset.path, Path) else ():
        if file.is_file():
            file.unlink()


def check_feature_names(names: Sequence[str]) -> tuple[str, ...]:
    """Raise `DataError` if there are fewer than two features, or two with the same name."""
    if len(names) < 2:
        raise DataError(f"A dataset needs at least 2 features, but the sources have {len(names)}.")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"Several features are named {repeated[0]!r}. Rename them.")
    return tuple(names)


def _check_same_features(base: BinaryDataset, names: tuple[str, ...]) -> None:
    if names == base.feature_names:
        return
    if len(names) != base.n_features:
        raise DataError(
            f"{base.path} has {base.n_features} features, but the new rows have {len(names)}.",
            parameter="append",
        )
    i = next(i for i, name in enumerate(names) if name != base.feature_names[i])
    raise DataError(
        f"Feature {i + 1} is {names[i]!r}, but {base.feature_names[i]!r} in {base.path}. "
        "Give the features in the dataset's order.",
        parameter="append",
    )


def _choose_chunk_words(n_features: int, expected_rows: int | None) -> int:
    size = _CHUNK_BYTES
    if expected_rows is not None:
        even = expected_rows * n_features // 8 // _TARGET_CHUNKS
        size = min(max(even, MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    return max(1, size // (8 * n_features))


@dataclass
class PendingRows:
    """Bit-packed rows, in arrival order, that wait for their chunk to fill up."""

    values: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    segments: NDArray[np.int32]
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.values)

    def slice_rows(self, rows: slice) -> PendingRows:
        """Return a range of the rows."""
        observed = None if self.observed is None else self.observed[rows]
        columns = {name: values[rows] for name, values in self.columns.items()}
        return PendingRows(self.values[rows], observed, self.segments[rows], columns)


def concatenate_rows(parts: list[PendingRows]) -> PendingRows:
    """Concatenate pending rows."""
    if len(parts) == 1:
        return parts[0]
    observed = None
    if any(part.observed is not None for part in parts):
        observed = np.concatenate(
            [np.full_like(p.values, 255) if p.observed is None else p.observed for p in parts]
        )
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
    values = np.concatenate([part.values for part in parts])
    return PendingRows(values, observed, np.concatenate([part.segments for part in parts]), columns)


def count_fitting_rows(segments: NDArray[np.int32], n_words: int) -> int:
    """Count the leading rows that fit into a chunk when every block starts on a word boundary."""
    segments = segments[: 64 * n_words]
    opens_word = _rank_within_segments(segments) % 64 == 0
    return int(np.searchsorted(np.cumsum(opens_word), n_words, side="right"))


def _rank_within_segments(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    order = np.argsort(segments, kind="stable")
    _, starts, sizes = np.unique(segments[order], return_index=True, return_counts=True)
    rank = np.empty(len(segments), np.int64)
    rank[order] = np.arange(len(segments)) - np.repeat(starts, sizes)
    return rank


def lay_out_blocks(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    """Place segments in index order: (segment, first word, number of rows) per block."""
    names, sizes = np.unique(segments, return_counts=True)
    n_words = -(-sizes // 64)
    return np.column_stack([names, np.cumsum(n_words) - n_words, sizes]).astype(np.int64)


class RowBatch(Protocol):
    """A batch of rows to write, such as `storage.sources.SourceBatch`."""

    @property
    def X(self) -> NDArray[np.uint8]:
        """Values, (n_rows, n_features)."""

    @property
    def observed(self) -> NDArray[np.uint8] | None:
        """Mask of the same shape, 1 = observed; None if all are observed."""

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Per-row columns."""


@dataclass
class DatasetWriter:
    """Collects batches and writes every chunk as soon as it is full."""

    folder: AnyPath
    group: zarr.Group
    feature_names: tuple[str, ...]
    words_per_chunk: int
    columns: dict[str, dict[str, Any]]
    segments: Codebook = field(default_factory=make_codebook)
    levels: dict[str, LevelsWriter] = field(default_factory=dict)
    ingest: Mapping[str, Any] = field(default_factory=dict)
    base: BinaryDataset | None = None
    n_rows: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    _pending: list[PendingRows] = field(default_factory=list)
    _chunks: list[tuple[int, int, int]] = field(default_factory=list)
    _blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    _ones: list[NDArray[np.int64]] = field(default_factory=list)
    _checksums: list[list[int]] = field(default_factory=list)
    _arrays: dict[str, Any] = field(default_factory=dict)

    def add(self, batch: RowBatch, segments: NDArray[Any] | None = None) -> None:
        """Append rows in arrival order.

        `segments` are the segment names of the rows, (n_rows,); None puts all into one segment.
        Raises `DataError` if the number of features differs from earlier batches, or a column
        changes its type.
        """
        if not len(batch.X):
            return
        if batch.X.shape[1] != len(self.feature_names):
            raise DataError(
                f"A batch has {batch.X.shape[1]} features, but earlier ones have "
                f"{len(self.feature_names)}. Check the sources."
            )
        values, observed = pack_rows(batch.X), None
        if batch.observed is not None and not batch.observed.all():
            observed = pack_rows(batch.observed)
            values &= observed
        rows = PendingRows(
            values,
            observed,
            self._encode_segments(segments, len(batch.X)),
            {name: self._encode_column(name, batch.columns[name]) for name in self.columns},
        )
        self._pending.append(rows)
        waiting = sum(map(len, self._pending))
        if waiting >= 64 * self.words_per_chunk:
            self._write_full_chunks()

    def finish(self) -> BinaryDataset:
        """Write the pending rows, the tables and the manifest, and open the dataset."""
        if self._pending:
            self._write_full_chunks()
            if self._pending:
                self._write_chunk(self._pending.pop())
        self._check_row_count()
        resize_arrays(self.group, self._array_names, self._n_chunks)
        self._write_tables()
        for name, levels in self.levels.items():
            self.columns[name] = {"kind": "category", "levels": levels.finish()}
        write_manifest(self.folder, self._build_manifest())
        return open_dataset(self.folder)

    @property
    def _n_chunks(self) -> int:
        return (self.base.n_chunks if self.base else 0) + len(self._chunks)

    @property
    def _array_names(self) -> list[str]:
        return list_stored_arrays(self.columns)

    def _encode_segments(self, segments: NDArray[Any] | None, n_rows: int) -> NDArray[np.int32]:
        if segments is None:
            return np.full(n_rows, self.segments[_DEFAULT_SEGMENT], np.int32)
        return encode_texts(segments, self.segments)

    def _encode_column(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Encode integers as int64, floats as float64, and everything else as codes of texts."""
        spec = self.columns[name]
        kind = {"b": "int", "i": "int", "u": "int", "f": "float"}.get(values.dtype.kind, "category")
        # Splits are named by text, even if a source numbers them.
        first_kind = spec.setdefault("kind", "category" if name == "split" else kind)
        if first_kind == "category":
            return self._get_levels_writer(name).encode(values)
        if kind != first_kind and (kind, first_kind) != ("int", "float"):
            raise DataError(
                f"Column {name!r} has {kind} values, but {first_kind} values in the first rows. "
                "Give the column the same type in every source."
            )
        if first_kind == "int" and (values > _MAX_INT64).any():
            raise DataError(
                f"Column {name!r} contains {values.max()}, but integers may be at most "
                f"{_MAX_INT64}. Write the column as text."
            )
        return values.astype(np.int64 if first_kind == "int" else np.float64)

    def _get_levels_writer(self, name: str) -> LevelsWriter:
        if name not in self.levels:
            self.levels[name] = LevelsWriter(self.group, name)
        return self.levels[name]

    def _write_full_chunks(self) -> None:
        rows = concatenate_rows(self._pending)
        while (n_rows := count_fitting_rows(rows.segments, self.words_per_chunk)) < len(rows):
            self._write_chunk(rows.slice_rows(slice(n_rows)))
            rows = rows.slice_rows(slice(n_rows, None))
        self._pending = [rows]

    def _write_chunk(self, rows: PendingRows) -> None:
        key = self._n_chunks
        order = np.argsort(rows.segments, kind="stable")
        blocks = lay_out_blocks(rows.segments)
        slots = list_occupied_slots(blocks)
        n_words = int(sum(-(-blocks[:, 2] // 64)))
        words = self._lay_out_bits(rows.values[order], slots)
        stored: dict[str, NDArray[Any] | None] = {
            "bits": words,
            "observed": self._lay_out_mask(rows, order, slots),
            "order": None if len(blocks) == 1 else self._lay_out_column(ORDER, order, slots),
        }
        for name, values in rows.columns.items():
            spec = make_column_spec(name, self.columns[name]["kind"])
            stored[f"columns/{name}"] = self._lay_out_column(spec, values[order], slots)
        self._checksums.append(
            [self._write_array_chunk(name, key, a) for name, a in stored.items()]
        )
        self._ones.append(np.bitwise_count(words.view("<u8")).sum(axis=1, dtype=np.int64))
        self._blocks += [(key, int(a), int(b), int(c)) for a, b, c in blocks]
        self._chunks.append((self.n_rows, len(rows), n_words))
        self.n_rows += len(rows)

    def _lay_out_mask(
        self, rows: PendingRows, order: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> NDArray[np.uint8] | None:
        """Place the mask; return None if this chunk has no missing value."""
        if rows.observed is None:
            return None
        mask = self._lay_out_bits(rows.observed[order], slots)
        n_observed = np.bitwise_count(mask).sum(dtype=np.int64)
        return None if n_observed == len(rows) * len(self.feature_names) else mask

    def _lay_out_bits(self, rows: NDArray[np.uint8], slots: NDArray[np.int64]) -> NDArray[np.uint8]:
        placed = np.zeros((64 * self.words_per_chunk, rows.shape[1]), np.uint8)
        placed[slots] = rows
        return transpose_bits(placed)[: len(self.feature_names)]

    def _lay_out_column(
        self, spec: ArraySpec, values: NDArray[Any], slots: NDArray[np.int64]
    ) -> NDArray[Any]:
        placed = np.full(64 * self.words_per_chunk, spec.fill_value, spec.dtype)
        placed[slots] = values
        return placed

    def _write_array_chunk(self, name: str, key: int, values: NDArray[Any] | None) -> int:
        if values is None:
            return -1
        width = values.shape[-1]
        array = self._get_array(name, values.shape[:-1], width)
        array.resize((*values.shape[:-1], (key + 1) * width))
        array[..., key * width : (key + 1) * width] = values
        return checksum(values)

    def _get_array(self, name: str, lead: tuple[int, ...], width: int) -> Any:
        if name not in self._arrays:
            self._arrays[name] = self._open_array(name, lead, width)
        return self._arrays[name]

    def _open_array(self, name: str, lead: tuple[int, ...], width: int) -> Any:
        if format_array_path(name) in self.group:
            array = open_checked_array(self.group, format_array_path(name))
            return array.with_config({"write_empty_chunks": True})
        specs = {spec.name: spec for spec in (BITS, OBSERVED, ORDER)}
        column = name.removeprefix("columns/")
        spec = specs.get(name) or make_column_spec(column, self.columns[column]["kind"])
        return create_array(self.group, spec, (*lead, width), (*lead, width))

    def _check_row_count(self) -> None:
        if not self._chunks:
            raise DataError("The sources contain no rows.")
        if self.n_rows < 2:
            raise DataError("The sources contain only one row; a dataset needs at least two.")

    def _build_table(self, spec: ArraySpec) -> NDArray[np.int64]:
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
            table = self._build_table(spec)
            if spec.name not in self.group:
                rows = max(1, MIN_CHUNK_BYTES // (8 * table.shape[1]))
                create_array(self.group, spec, table.shape, (rows, table.shape[1]))
            array: Any = self.group[spec.name]
            array.resize(table.shape)
            # Rows counted by the old manifest keep their values: it stays valid until replaced.
            array[:] = table

    def _build_manifest(self) -> dict[str, Any]:
        tables = {spec.name: self._build_table(spec) for spec in (CHUNKS, BLOCKS, ONES, CHECKSUMS)}
        content = {
            "feature_names": list(self.feature_names),
            "segment_names": list(self.segments),
            "words_per_chunk": self.words_per_chunk,
            "columns": self.columns,
            "n_rows": self.n_rows,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for table in tables.values():
            digest.update(table.tobytes())
        return {
            "format": DATASET_FORMAT,
            "format_version": DATASET_VERSION,
            "digest": digest.hexdigest(),
            "n_chunks": self._n_chunks,
            "n_blocks": len(tables["blocks"]),
            "stored": self._array_names,
            "tables": {name: checksum(table) for name, table in tables.items()},
            "ingest": dict(self.ingest),
            "attributes": dict(self.attributes),
            **content,
        }


def resize_arrays(group: zarr.Group, names: Sequence[str], n_chunks: int) -> None:
    """Resize all arrays to this number of chunks; later chunks are deleted."""
    for name in names:
        if format_array_path(name) in group:
            array: Any = group[format_array_path(name)]
            array.resize((*array.shape[:-1], n_chunks * array.chunks[-1]))
