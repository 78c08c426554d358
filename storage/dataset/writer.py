"""Create datasets and append to them, chunk by chunk; a failed attempt changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset.batches import (
    DenseBatch,
    RowBatch,
    concatenate_bits,
    count_bits,
    make_full_mask,
    pack_batch,
    pack_features,
    slice_bits,
)
from storage.dataset.chunks import (
    Bytes,
    Words,
    add_feature_words,
    lay_out_blocks,
    list_occupied_slots,
    move_bits,
    pack_slots,
    transpose_bits,
)
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.feature_levels import (
    BINARY_LEVELS,
    Planes,
    check_feature_levels,
    compare_levels,
    format_levels,
)
from storage.dataset.levels import Codebook, LevelsWriter, encode_texts, make_codebook
from storage.dataset.tables import make_damaged_dataset_error, place_rows, write_table
from storage.dataset.updates import (
    CellWords,
    ChunkUpdates,
    DuplicateRule,
    RowUpdates,
    find_contradiction,
    iter_chunk_updates,
    merge_cells,
)
from storage.errors import DataError
from storage.format.manifests import write_manifest
from storage.format.schema import (
    BITS,
    BLOCKS,
    CHECKSUMS,
    CHUNKS,
    DATASET_VERSION,
    FEATURES,
    LEVELS_VERSION,
    MAX_EXACT_INTEGER,
    MIN_CHUNK_BYTES,
    MISSING_INTEGER,
    NOMINAL_VERSION,
    OBSERVED,
    ONES,
    ORDER,
    ArraySpec,
    create_array,
    delete_chunks,
    format_array_path,
    list_stored_arrays,
    make_column_spec,
    make_values_spec,
    name_planes,
    open_checked_array,
    write_chunk,
)
from storage.quoting import parse_integer, quote_raw
from storage.stores.leases import check_leases, keep_leases, lock_folder
from storage.stores.locations import (
    DATASET_FORMAT,
    AnyPath,
    check_folder_name,
    check_outside_datasets,
    checksum,
    clear_folder,
    delete_tree,
    has_format,
    is_free_target,
    open_group,
    parse_path,
    replace_folder,
    to_zarr_store,
)
from storage.stores.object_store import translate_store_errors

# Smaller chunks cost too much overhead, larger ones too much memory per task.
_CHUNK_BYTES = 8 << 20
_MAX_CHUNK_BYTES, _TARGET_CHUNKS = 32 << 20, 64
_RESIZE_STEP = 8
"""Arrays with many chunks grow by so many at a time, as each time their metadata is written."""
_DEFAULT_SEGMENT = "all"
_MAX_INT64 = np.iinfo(np.int64).max
Places = slice | NDArray[np.int64]
"""Rows or slots of a chunk; a slice if all rows keep their order."""


@contextmanager
def create_dataset(
    path: str | AnyPath,
    feature_names: Sequence[str],
    *,
    feature_levels: Mapping[str, Sequence[str]] | None = None,
    nominal_features: Collection[str] = (),
    columns: Sequence[str] = (),
    expected_rows: int | None = None,
    words_per_chunk: int | None = None,
    ingest: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Write a new dataset; an error inside the `with` block leaves nothing behind.

    An interrupt leaves the mark of an unfinished dataset, which the next writer replaces.

    Parameters
    ----------
    path
        Folder of the dataset. The remains of an interrupted ingest are replaced.
    feature_names
        Names of the features; at least two, all different.
    feature_levels
        Names of the levels, in increasing order, of the features that are not plain 0 and 1. The
        values in batches are then levels, counted from 0. A continuous feature has no levels, and
        the values are in `numbers` of batches.
    nominal_features
        Names of the features with more than two levels that are categories without an order.
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
    levels = check_feature_levels(names, feature_levels or {})
    json_attributes = _copy_as_json(attributes or {})
    target = parse_path(path).resolve()  # replace the dataset, not a link to it
    check_dataset_target(target, overwrite)  # before locking, which would fail on a file
    with lock_folder(target) as lease, translate_store_errors(target):
        replaces = check_dataset_target(target, overwrite)
        folder = target.with_name(f".{target.name}.replacing") if replaces else target
        folder.mkdir(exist_ok=True)
        try:
            clear_folder(folder)
            writer = DatasetWriter(
                folder,
                zarr.create_group(to_zarr_store(folder), attributes={"format": DATASET_FORMAT}),
                names,
                words_per_chunk
                or _choose_chunk_words(
                    _count_row_bits(Planes.of_features(names, levels)), expected_rows
                ),
                {name: {} for name in columns},
                feature_levels=levels,
                nominal_features=frozenset(nominal_features),
                ingest=ingest or {},
                attributes=json_attributes,
            )
            yield writer
            writer.finish()
        except BaseException as error:
            with suppress(OSError, DataError):
                if lease.is_lost():
                    pass  # the folder belongs to another process
                elif isinstance(error, Exception):
                    delete_tree(folder)
                else:
                    # Zarr may still be writing after an interrupt; the mark tells what it leaves.
                    clear_folder(folder, keep_mark=True)
            raise
        if replaces:
            with keep_leases():
                replace_folder(folder, target)


def check_dataset_target(path: AnyPath, overwrite: bool) -> bool:
    """Return whether a new dataset would replace one; refuse a path that is taken.

    Raises `DataError` if the path may not be replaced, is inside a dataset, or has the suffix of a
    file.
    """
    check_folder_name(path)
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise _make_taken_error(target, overwrite)
    check_outside_datasets(target)
    replaces = not is_free_target(target, DATASET_FORMAT)
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
def append_dataset(
    path: str | AnyPath,
    feature_names: Sequence[str],
    value_in_old_rows: Literal["missing", "zero"] | None = None,
    feature_levels: Mapping[str, Sequence[str]] | None = None,
    nominal_features: Collection[str] = (),
) -> Iterator[DatasetWriter]:
    """Append rows to a dataset as new chunks; readers see the old dataset until the end.

    The writer can also update existing rows. `feature_names` begin with the dataset's
    features; further features are added if `value_in_old_rows` is `"missing"` or `"zero"`.
    `feature_levels` has the levels of features that are not plain 0 and 1; by default those of the
    dataset, and added features are binary. `nominal_features` are those of added features. Raises
    `DataError` if the features differ from the dataset's, or their order or levels do.
    """
    folder = open_dataset(path).path
    with lock_folder(folder) as lease, translate_store_errors(folder):
        base, names = open_dataset(path), tuple(feature_names)
        n_compared = len(names) if value_in_old_rows is None else base.n_features
        _check_same_features(base, names[:n_compared])
        levels = check_feature_levels(names, feature_levels or base.feature_levels)
        _check_same_levels(base, levels)
        _check_added_features(names[n_compared:], levels)
        _check_arrays(base)
        _drop_unfinished(base)
        group = open_group(base.path, "r+")
        added = dict.fromkeys(check_feature_names(names)[n_compared:], value_in_old_rows)
        writer = DatasetWriter(
            base.path,
            group,
            names,
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
            {**base.manifest.get("added_features", {}), **added},
            feature_levels=levels,
            nominal_features=base.nominal_features.union(nominal_features),
        )
        try:
            yield writer
            dataset = writer.finish()
            if writer.has_updates:
                with suppress(OSError, DataError):  # the next append tries again
                    check_leases()
                    _drop_unfinished(dataset)
        except BaseException:
            # The next append deletes what cannot be deleted now.
            with suppress(OSError, DataError):
                if not lease.is_lost():
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
    """Delete what the manifest does not list: other clients would read it.

    These are the remains of an interrupted append, and chunks that an update replaced.
    """
    group = open_group(dataset.path, "r+")
    for name, recorded in zip(dataset.manifest["stored"], dataset.checksums.T, strict=True):
        if (recorded < 0).all() and not (name == OBSERVED.name and dataset.has_missing.any()):
            delete_tree(dataset.path / format_array_path(name))
    resize_arrays(group, dataset.manifest["stored"], dataset.n_positions, dataset.planes)
    free = np.setdiff1d(np.arange(dataset.n_positions), dataset.positions)
    for name in dataset.manifest["stored"] if len(free) else ():
        if format_array_path(name) in group:
            delete_chunks(dataset.path, group[format_array_path(name)], free.tolist())
    for levels in dataset.levels.values():
        levels.truncate(group)
    by_chunk = {CHUNKS: dataset.chunks, ONES: dataset.ones(), CHECKSUMS: dataset.checksums}
    tables = {spec: place_rows(spec, rows, dataset.positions) for spec, rows in by_chunk.items()}
    for spec, rows in {**tables, BLOCKS: dataset.blocks}.items():
        if not rows.shape[1]:  # no feature has bits
            continue
        table: Any = group[spec.name]
        if len(free) or table.shape != rows.shape:
            write_table(group, spec, rows)
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
    if absent := [name for name in base.feature_names if name not in names]:
        raise DataError(
            f"The new rows have no feature {absent[0]!r}, but {base.path} has it. Add the column; "
            "its values may be missing.",
            parameter="append",
        )
    if added := [name for name in names if name not in base.feature_names]:
        raise DataError(
            f"The new rows have the feature {added[0]!r}, but {base.path} does not. Leave it out "
            f"with {{drop={quote_raw(added[0])}}}.",
            parameter="append",
        )
    i = next(i for i, name in enumerate(names) if name != base.feature_names[i])
    raise DataError(
        f"Feature {i + 1} is {names[i]!r}, but {base.feature_names[i]!r} in {base.path}. "
        "Give the features in the dataset's order.",
        parameter="append",
    )


def _check_same_levels(base: BinaryDataset, feature_levels: Mapping[str, Sequence[str]]) -> None:
    new = Planes.of_features(base.feature_names, feature_levels).levels
    for name, levels, own in zip(base.feature_names, new, base.planes.levels, strict=True):
        if levels != own:
            raise DataError(
                f"Feature {name!r} has {format_levels(levels)}, but {format_levels(own)} in "
                f"{base.path}. Use the levels of the dataset.",
                parameter="append",
            )


def _check_added_features(
    names: Sequence[str], feature_levels: Mapping[str, Sequence[str]]
) -> None:
    if added := [name for name in names if not feature_levels.get(name, BINARY_LEVELS)]:
        raise DataError(
            f"{{new_features=add}}: {added[0]!r} is continuous. To add such a feature, ingest all "
            "rows again with {overwrite}."
        )


def _count_row_bits(planes: Planes) -> int:
    return len(planes) + 32 * len(planes.continuous)  # a number has 32 bits


def _choose_chunk_words(row_bits: int, expected_rows: int | None) -> int:
    size = _CHUNK_BYTES
    if expected_rows is not None:
        even = expected_rows * row_bits // 8 // _TARGET_CHUNKS
        size = min(max(even, MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    return max(1, size // (8 * row_bits))


@dataclass
class PendingRows:
    """Bit-packed rows, in arrival order, that wait for their chunk to fill up.

    `values` has the bits of each plane, (n_planes, n_bytes), and `observed` those of the mask of
    each feature. `arrays` are the others with an entry per row, by name: per-row columns and
    continuous features.
    """

    values: Bytes
    observed: Bytes | None
    segments: NDArray[np.int32]
    arrays: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.segments)

    def slice_rows(self, start: int, stop: int) -> PendingRows:
        """Return a range of the rows."""
        observed = None if self.observed is None else slice_bits(self.observed, start, stop)
        arrays = {name: values[start:stop] for name, values in self.arrays.items()}
        values = slice_bits(self.values, start, stop)
        return PendingRows(values, observed, self.segments[start:stop], arrays)


def concatenate_rows(parts: list[PendingRows]) -> PendingRows:
    """Concatenate pending rows."""
    if len(parts) == 1:
        return parts[0]
    observed, n_rows = None, [*map(len, parts)]
    if any(part.observed is not None for part in parts):
        height = next(len(part.observed) for part in parts if part.observed is not None)
        masks = [
            make_full_mask((height,), len(part)) if part.observed is None else part.observed
            for part in parts
        ]
        observed = concatenate_bits(masks, n_rows)
    arrays = {name: np.concatenate([p.arrays[name] for p in parts]) for name in parts[0].arrays}
    values = concatenate_bits([part.values for part in parts], n_rows)
    return PendingRows(values, observed, np.concatenate([part.segments for part in parts]), arrays)


def count_fitting_rows(segments: NDArray[np.int32], n_words: int) -> int:
    """Count the leading rows that fit into a chunk when every block starts on a word boundary."""
    segments = segments[: 64 * n_words]
    if (segments == segments[0]).all():
        return len(segments)
    opens_word = _rank_within_segments(segments) % 64 == 0
    return int(np.searchsorted(np.cumsum(opens_word), n_words, side="right"))


def _rank_within_segments(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    order = np.argsort(segments, kind="stable")
    _, starts, sizes = np.unique(segments[order], return_index=True, return_counts=True)
    rank = np.empty(len(segments), np.int64)
    rank[order] = np.arange(len(segments)) - np.repeat(starts, sizes)
    return rank


class StoredChunk(NamedTuple):
    """A written chunk: its position, the ones of each plane, and checksums of `stored`."""

    position: int
    ones: NDArray[np.int64]
    checksums: list[int]


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
    added_features: Mapping[str, str | None] = field(default_factory=dict)
    feature_levels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nominal_features: frozenset[str] = frozenset()
    n_updated_rows: int = 0
    _pending: list[PendingRows] = field(default_factory=list)
    _chunks: list[tuple[int, int, int]] = field(default_factory=list)
    _blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    _stored: dict[int, StoredChunk] = field(default_factory=dict)
    _arrays: dict[str, Any] = field(default_factory=dict)
    _largest: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = set(self.base.positions.tolist()) if self.base else set()
        self._free_positions = (place for place in count() if place not in taken)

    @cached_property
    def planes(self) -> Planes:
        """The planes of the features."""
        return Planes.of_features(self.feature_names, self.feature_levels)

    def add(self, batch: RowBatch | DenseBatch, segments: NDArray[Any] | None = None) -> None:
        """Append rows in arrival order.

        `segments` are the segment names of the rows, (n_rows,); None puts all into one segment.
        Raises `DataError` if the number of features differs from earlier batches, or a column
        changes its type.
        """
        if not isinstance(batch, RowBatch):
            batch = pack_batch(batch.X, batch.observed, batch.columns, batch.numbers)
        if not (n_rows := len(batch)):
            return
        n_features = len(self.feature_names)
        if batch.levels.shape[1] != n_features:
            raise DataError(
                f"A batch has {batch.levels.shape[1]} features, but earlier ones have "
                f"{n_features}. Check the sources."
            )
        self._check_levels(batch)
        numbers, mask = self._get_numbers(batch), batch.mask
        if len(self.planes.continuous):
            mask = make_full_mask((n_features,), n_rows) if mask is None else mask.copy()
            mask[self.planes.continuous] = pack_features(~np.isnan(numbers))
        if mask is not None and count_bits(mask) == n_rows * n_features:
            mask = None
        values = self.planes.split_levels(batch.levels)
        if mask is not None:
            values = values & self.planes.repeat_mask(mask)
        arrays = {
            f"columns/{name}": self._encode_column(name, batch.columns[name])
            for name in self.columns
        }
        names = (f"values/{name}" for name in self._continuous)
        arrays |= dict(zip(names, numbers.T, strict=True))
        segment_codes = self._encode_segments(segments, n_rows)
        self._pending.append(PendingRows(values, mask, segment_codes, arrays))
        waiting = sum(map(len, self._pending))
        if waiting >= 64 * self.words_per_chunk:
            self._write_full_chunks()

    @property
    def _continuous(self) -> list[str]:
        return [self.feature_names[index] for index in self.planes.continuous]

    def _get_numbers(self, batch: RowBatch) -> NDArray[np.float32]:
        """Check and return the values of continuous features, (n_rows, n_continuous)."""
        shape = len(batch), len(self.planes.continuous)
        numbers = np.empty((len(batch), 0), np.float32) if batch.numbers is None else batch.numbers
        if numbers.shape != shape or np.isinf(numbers).any():
            raise DataError(
                f"A batch has values of continuous features of shape {numbers.shape}, which must "
                f"be {shape} and finite. Check the sources."
            )
        return numbers.astype(np.float32, copy=False)

    def _check_levels(self, batch: RowBatch) -> None:
        if self.planes.are_features:
            return
        n_levels = np.array([len(levels) or 1 for levels in self.planes.levels])
        if compare_levels(batch.levels, n_levels - 1).any():
            X = batch.X
            row, feature = np.argwhere(n_levels <= X)[0].tolist()
            raise DataError(
                f"Row {row + 1} of a batch has level {X[row, feature]} of feature "
                f"{self.feature_names[feature]!r}, which has {n_levels[feature]} levels, counted "
                "from 0. Check the sources."
            )

    def update(
        self,
        batches: Iterable[RowUpdates],
        duplicates: DuplicateRule | None,
        format_cell: Callable[[int, int, int], str],
    ) -> None:
        """Add values to existing rows; their chunks are written anew to other positions.

        Parameters
        ----------
        batches
            Values for rows of the dataset, in increasing order of rows.
        duplicates
            Which of several values of a cell counts: the new one (`last`), or 1 if any is 1
            (`any`).
        format_cell
            Describes row, feature and new value of a cell.

        Raises
        ------
        DataError
            If a value differs from that in the dataset, and there is no rule for duplicates.
        """
        assert self.base is not None
        for updates in iter_chunk_updates(self.base, self.planes, batches):
            self._update_chunk(self.base, updates, duplicates, format_cell)
            self.n_updated_rows += len(updates.rows)

    def _update_chunk(
        self,
        base: BinaryDataset,
        updates: ChunkUpdates,
        duplicates: DuplicateRule | None,
        format_cell: Callable[[int, int, int], str],
    ) -> None:
        chunk = base.read_chunk(updates.key)
        slots = list_occupied_slots(chunk.blocks)
        ones, mask = add_feature_words(
            chunk.words,
            chunk.observed,
            chunk.blocks,
            self._zero_features[self.planes.features[len(chunk.words) :]],
        )
        n_words, n_cells = ones.shape[1], len(slots) * len(ones)
        if mask is None:
            mask = np.broadcast_to(pack_slots(slots, n_words), ones.shape)
        slot_by_row = np.empty_like(slots)
        slot_by_row[chunk.rows - base.chunks[updates.key, 0]] = slots
        places = slot_by_row[updates.rows - base.chunks[updates.key, 0]]
        new = CellWords(
            *(
                self._lay_out_rows(cells, places)[: len(ones)].view("<u8")[:, :n_words]
                for cells in (updates.ones, updates.values, updates.missing)
            )
        )
        found = None if duplicates else find_contradiction(ones, mask, new)
        if found is not None:
            plane, slot = found
            row, feature = int(updates.rows[places == slot][0]), int(self.planes.features[plane])
            own = slice(*self.planes.firsts[[feature, feature + 1]].tolist())
            value, stored = (
                int((words[own, slot // 64] >> np.uint64(slot % 64) & np.uint64(1)).sum())
                for words in (new.ones, ones)
            )
            levels = self.planes.levels[feature]
            raise DataError(
                f"{format_cell(row, feature, value)}, feature {self.feature_names[feature]!r}: "
                f"the value is {levels[value]}, but {levels[stored]} in the dataset. Correct the "
                "line, or use {duplicates=last} or {duplicates=any}."
            )
        values, observed = merge_cells(ones, mask, new, duplicates)
        if np.array_equal(values, ones) and np.array_equal(observed, mask):
            return
        is_complete = np.bitwise_count(observed).sum(dtype=np.int64) == n_cells
        self._store_chunk(
            updates.key,
            {
                **{name: base.read_stored(name, updates.key) for name in self._array_names},
                BITS.name: self._pad_words(values),
                OBSERVED.name: None
                if is_complete
                else self._pad_words(observed[self.planes.firsts[:-1]]),
            },
        )

    def _pad_words(self, words: Words) -> NDArray[np.uint8]:
        """Return the bytes of a whole chunk of words."""
        padded = np.zeros((len(words), self.words_per_chunk), "<u8")
        padded[:, : words.shape[1]] = words
        return padded.view(np.uint8)

    @property
    def has_updates(self) -> bool:
        """Whether chunks of the dataset were replaced."""
        return self.base is not None and any(key < self.base.n_chunks for key in self._stored)

    @property
    def _zero_features(self) -> NDArray[np.bool_]:
        added = self.added_features
        return np.array([added.get(name) == "zero" for name in self.feature_names], np.bool_)

    def finish(self) -> BinaryDataset:
        """Write the pending rows, the tables and the manifest, and open the dataset."""
        if self._pending:
            self._write_full_chunks()
            if self._pending:
                self._write_chunk(self._pending.pop())
        self._check_row_count()
        # Positions of updated chunks remain until the new manifest is written.
        used = [*self._positions.tolist(), *(self.base.positions.tolist() if self.base else ())]
        resize_arrays(self.group, self._array_names, 1 + max(used), self.planes)
        self._arrays.clear()  # opened with other shapes
        self._mark_missing_features()
        tables = self._build_tables()
        self._write_tables(tables)
        for name, levels in self.levels.items():
            self.columns[name] = {"kind": "category", "levels": levels.finish()}
        write_manifest(self.folder, self._build_manifest(tables))
        return open_dataset(self.folder)

    @property
    def _n_chunks(self) -> int:
        return (self.base.n_chunks if self.base else 0) + len(self._chunks)

    @property
    def _array_names(self) -> list[str]:
        return list_stored_arrays(self.columns, self._continuous)

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
            return self._get_levels_writer(name).encode(_name_missing(values))
        if kind == "category" and (values.astype(str) == "").all():  # all are missing
            kind, values = "float", np.full(len(values), np.nan)
        if first_kind in ("int", "nullable-int") and kind == "category":
            kind, values = "int", _parse_integers(name, values)
        if first_kind == "float" and kind == "int":
            self._check_exact(name, values)
            return np.where(values == MISSING_INTEGER, np.nan, values)
        if first_kind != "float" and kind == "float" and _are_exact_integers(values):
            kind, missing = "int", np.isnan(values)
            values = np.where(missing, 0, values).astype(np.int64)
            values[missing] = MISSING_INTEGER
        if kind != first_kind.removeprefix("nullable-"):
            raise DataError(
                f"Column {name!r} has {kind} values, but {first_kind} values in the first rows. "
                "Give the column the same type in every source."
            )
        if kind == "float":
            return values.astype(np.float64)
        if (values > _MAX_INT64).any():
            raise DataError(
                f"Column {name!r} contains {values.max()}, but integers may be at most "
                f"{_MAX_INT64}. Write the column as text."
            )
        return self._mark_nullable(name, values.astype(np.int64))

    def _mark_nullable(self, name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Check integers, which are read as floats as soon as one in the column is missing."""
        spec, is_missing = self.columns[name], values == MISSING_INTEGER
        largest = max(np.abs(values[~is_missing]).max(initial=0), self._largest.get(name, 0))
        self._largest[name] = largest
        if spec["kind"] == "int" and is_missing.any():
            spec["kind"] = "nullable-int"
            for key in range(self.base.n_chunks if self.base else 0):
                assert self.base is not None
                self._check_exact(name, self.base.read_row_labels(key, [name])[1][name])
        if spec["kind"] == "nullable-int":
            self._check_exact(name, np.array([largest]))
        return values

    def _check_exact(self, name: str, values: NDArray[Any]) -> None:
        """Raise `DataError` if floats cannot represent an integer, (n,)."""
        is_large = (values != MISSING_INTEGER) & (np.abs(values) > MAX_EXACT_INTEGER)
        if is_large.any():
            raise DataError(
                f"Column {name!r} contains {values[is_large][0]} and missing values, or fractions. "
                "Such columns may have integers up to 2**53. Write the column as text."
            )

    def _get_levels_writer(self, name: str) -> LevelsWriter:
        if name not in self.levels:
            self.levels[name] = LevelsWriter(self.group, name)
        return self.levels[name]

    def _write_full_chunks(self) -> None:
        rows = concatenate_rows(self._pending)
        while (n_rows := count_fitting_rows(rows.segments, self.words_per_chunk)) < len(rows):
            self._write_chunk(rows.slice_rows(0, n_rows))
            rows = rows.slice_rows(n_rows, len(rows))
        self._pending = [rows]

    def _write_chunk(self, rows: PendingRows) -> None:
        key = self._n_chunks
        blocks = lay_out_blocks(rows.segments)
        order: Places = slice(len(rows))
        slots: Places = order
        if len(blocks) > 1:
            order = np.argsort(rows.segments, kind="stable")
            slots = list_occupied_slots(blocks)
        n_words = int(sum(-(-blocks[:, 2] // 64)))
        mask = rows.observed
        if mask is not None and count_bits(mask) == len(rows) * len(self.feature_names):
            mask = None
        stored: dict[str, NDArray[Any] | None] = {
            "bits": self._lay_out_bits(rows.values, order, slots),
            "observed": None if mask is None else self._lay_out_bits(mask, order, slots),
            "order": None
            if isinstance(order, slice)
            else self._lay_out_column(ORDER, order, slots),
        }
        for name, values in rows.arrays.items():
            spec = self._make_row_spec(name)
            stored[name] = self._lay_out_column(spec, values[order], slots)
        self._store_chunk(key, stored)
        self._blocks += [(key, int(a), int(b), int(c)) for a, b, c in blocks]
        self._chunks.append((self.n_rows, len(rows), n_words))
        self.n_rows += len(rows)

    def _store_chunk(self, key: int, stored: Mapping[str, NDArray[Any] | None]) -> None:
        """Write the arrays of a chunk to a position that the manifest does not list yet."""
        check_leases()
        position, bits = next(self._free_positions), np.asarray(stored[BITS.name])
        checksums = [
            self._write_array_chunk(name, position, stored[name]) for name in self._array_names
        ]
        ones = np.bitwise_count(bits.view("<u8")).sum(axis=1, dtype=np.int64)
        self._stored[key] = StoredChunk(position, ones, checksums)

    def _mark_missing_features(self) -> None:
        """Store the mask of features that are added now for chunks that are not written anew.

        Readers of this package do not need it; others read what the chunk does not store as 1.
        """
        if self.base is None or len(self.feature_names) == self.base.n_features:
            return
        is_zero, width = self._zero_features, 8 * self.words_per_chunk
        for key, first in enumerate(self.base.chunk_features.tolist()):
            if key in self._stored or is_zero[first:].all():
                continue
            array = self._get_array(OBSERVED.name, (len(is_zero),), width)
            start = int(self.base.positions[key]) * width
            array.resize((len(is_zero), max(array.shape[1], start + width)))
            mask = np.where(is_zero[first:, None], np.uint8(255), np.uint8(0))
            array[first:, start : start + width] = np.broadcast_to(mask, (len(mask), width))

    def _lay_out_bits(self, bits: Bytes, order: Places, slots: Places) -> Bytes:
        """Place the bits of rows, (n, n_bytes)."""
        if isinstance(order, slice) or isinstance(slots, slice):  # all rows keep their order
            return np.pad(bits, ((0, 0), (0, 8 * self.words_per_chunk - bits.shape[1])))
        return move_bits(bits, order, slots, self.words_per_chunk)

    def _lay_out_rows(self, rows: Bytes, slots: NDArray[np.int64]) -> Bytes:
        """Place packed rows, (n_rows, n_bytes)."""
        placed = np.zeros((64 * self.words_per_chunk, rows.shape[1]), np.uint8)
        placed[slots] = rows
        return transpose_bits(placed)

    def _lay_out_column(self, spec: ArraySpec, values: NDArray[Any], slots: Places) -> NDArray[Any]:
        placed = np.full(64 * self.words_per_chunk, spec.fill_value, spec.dtype)
        placed[slots] = values
        return placed

    def _make_row_spec(self, array: str) -> ArraySpec:
        """Return the array of a per-row column or a continuous feature."""
        folder, _, name = array.partition("/")
        if folder == "values":
            return make_values_spec(name)
        return make_column_spec(name, self.columns[name]["kind"])

    def _write_array_chunk(self, name: str, position: int, values: NDArray[Any] | None) -> int:
        if values is None or not values.size:  # no feature has bits
            return -1
        lead, width = values.shape[:-1], values.shape[-1]
        array = self._get_array(name, lead, width)
        # What is written beyond the shape would not be deleted after an interruption.
        n_positions = position + 1
        if n_positions > _RESIZE_STEP:
            n_positions += -n_positions % _RESIZE_STEP
        if (shape := (*lead, max(array.shape[-1], n_positions * width))) != array.shape:
            array.resize(shape)
        if array.ndim == 1:
            write_chunk(self.folder, array, values, position)
        else:  # features that were added have chunks of their own
            for k, first in enumerate(range(0, len(values), array.chunks[0])):
                part = values[first : first + array.chunks[0]]
                write_chunk(self.folder, array, part, k, position)
        return checksum(values)

    def _get_array(self, name: str, lead: tuple[int, ...], width: int) -> Any:
        if name not in self._arrays:
            self._arrays[name] = self._open_array(name, lead, width)
        return self._arrays[name]

    def _open_array(self, name: str, lead: tuple[int, ...], width: int) -> Any:
        if format_array_path(name) in self.group:
            array = open_checked_array(self.group, format_array_path(name))
            return array.with_config({"write_empty_chunks": True})
        bits = BITS if self.planes.are_features else name_planes(BITS)
        specs = {spec.name: spec for spec in (bits, OBSERVED, ORDER)}
        spec = specs.get(name) or self._make_row_spec(name)
        n_original = len(self.feature_names) - len(self.added_features)
        original = {
            BITS.name: (int(self.planes.firsts[n_original]),),
            OBSERVED.name: (n_original,),
        }.get(name, ())
        return create_array(self.group, spec, (*lead, width), (*original, width))

    def _check_row_count(self) -> None:
        if not (self._chunks or self.n_updated_rows):
            raise DataError("The sources contain no rows.")
        if self.n_rows < 2:
            raise DataError("The sources contain only one row; a dataset needs at least two.")

    @property
    def _positions(self) -> NDArray[np.int64]:
        """Position of each chunk, (n_chunks,)."""
        before = self.base.positions.tolist() if self.base else []
        positions = dict(enumerate(before)) | {k: c.position for k, c in self._stored.items()}
        return np.array([positions[key] for key in range(self._n_chunks)], np.int64)

    @cached_property
    def _base_ones(self) -> NDArray[np.int64]:
        return self.base.ones() if self.base else np.empty((0, 0), np.int64)

    def _build_tables(self) -> dict[str, NDArray[np.int64]]:
        """Build the tables, in the order of chunks."""
        base, n_before, n_chunks = self.base, self.base.n_chunks if self.base else 0, self._n_chunks
        chunks, blocks = np.array(self._chunks, np.int64), np.array(self._blocks, np.int64)
        ones = np.zeros((n_chunks, len(self.planes)), np.int64)
        checksums = np.empty((n_chunks, len(self._array_names)), np.int64)
        if base is not None:
            chunks = np.concatenate([base.chunks, chunks.reshape(-1, 3)])
            blocks = np.concatenate([base.blocks, blocks.reshape(-1, 4)])
            ones[:n_before, : base.n_planes] = self._base_ones
            checksums[:n_before] = base.checksums
        for key, chunk in self._stored.items():
            ones[key], checksums[key] = chunk.ones, chunk.checksums
        tables = {CHUNKS: chunks, BLOCKS: blocks, ONES: ones, CHECKSUMS: checksums}
        if self.feature_levels:
            tables[FEATURES] = self.planes.tabulate(self.feature_names, self.nominal_features)
        return {spec.name: table for spec, table in tables.items()}

    def _write_tables(self, tables: Mapping[str, NDArray[np.int64]]) -> None:
        """Write the tables, in the order of positions except for blocks.

        Rows that the old manifest lists keep their values: it stays valid until it is replaced.
        """
        for spec in (BLOCKS, FEATURES):
            if spec.name in tables:
                write_table(self.group, spec, tables[spec.name])
        positions, base = self._positions, self.base
        for spec in (CHUNKS, ONES, CHECKSUMS):
            rows = tables[spec.name]
            if base is not None:
                old = {CHUNKS: base.chunks, ONES: self._base_ones, CHECKSUMS: base.checksums}[spec]
                old = np.pad(old, ((0, 0), (0, rows.shape[1] - old.shape[1])))
                rows = np.concatenate([old, rows])
            places = np.concatenate([base.positions, positions]) if base else positions
            if spec == ONES and not self.planes.are_features:
                spec = name_planes(ONES)
            write_table(self.group, spec, place_rows(spec, rows, places))

    @property
    def _format_version(self) -> int:
        """The oldest version that can read the dataset."""
        if self.nominal_features:
            return NOMINAL_VERSION
        return LEVELS_VERSION if self.feature_levels else DATASET_VERSION

    def _build_manifest(self, tables: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        positions = self._positions
        content = {
            "feature_names": list(self.feature_names),
            "segment_names": list(self.segments),
            "words_per_chunk": self.words_per_chunk,
            "columns": self.columns,
            "n_rows": self.n_rows,
        }
        if self.added_features:
            n_features = dict(enumerate(self.base.chunk_features.tolist() if self.base else ()))
            n_features |= dict.fromkeys(self._stored, len(self.feature_names))
            content["added_features"] = dict(self.added_features)
            content["chunk_features"] = [n_features[key] for key in range(self._n_chunks)]
        if self.feature_levels:
            content["feature_levels"] = {name: [*own] for name, own in self.feature_levels.items()}
        if self.nominal_features:
            content["nominal_features"] = sorted(self.nominal_features)
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for table in tables.values():
            digest.update(table.tobytes())
        places = (
            {} if (np.diff(positions, prepend=-1) == 1).all() else {"positions": positions.tolist()}
        )
        return {
            "format": DATASET_FORMAT,
            "format_version": self._format_version,
            "digest": digest.hexdigest(),
            "n_chunks": self._n_chunks,
            "n_blocks": len(tables["blocks"]),
            "stored": self._array_names,
            "tables": {name: checksum(table) for name, table in tables.items()},
            "ingest": dict(self.ingest),
            "attributes": dict(self.attributes),
            **places,
            **content,
        }


def _name_missing(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as texts, which are empty where a number is missing."""
    if values.dtype.kind not in "if":
        return values
    is_missing = np.isnan(values) | (values == MISSING_INTEGER)
    return np.where(is_missing, "", values.astype(str)) if is_missing.any() else values


def _parse_integers(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Parse texts, (n,), for a column of integers; empty ones are missing."""
    texts = values.astype(str).tolist()
    integers = [parse_integer(text) if text else MISSING_INTEGER for text in texts]
    if None in integers:
        raise DataError(
            f"Column {name!r} has integers in the first rows, but now also the text "
            f"{texts[integers.index(None)]!r}. Give the column the same type in every source, or "
            "ingest all rows again with {overwrite}."
        )
    return np.array(integers, np.int64)


def _are_exact_integers(values: NDArray[Any]) -> bool:
    """Return whether floats are whole numbers without rounding, or NaN."""
    present = values[~np.isnan(values)]
    is_exact = (present == np.rint(present)) & (np.abs(present) <= MAX_EXACT_INTEGER)
    return bool(is_exact.all())


def resize_arrays(
    group: zarr.Group, names: Sequence[str], n_positions: int, planes: Planes
) -> None:
    """Resize all arrays to this number of chunks and these planes; what lies beyond is deleted."""
    leads = {BITS.name: (len(planes),), OBSERVED.name: (len(planes.levels),)}
    for name in names:
        if format_array_path(name) in group:
            array: Any = group[format_array_path(name)]
            array.resize((*leads.get(name, ()), n_positions * array.chunks[-1]))
