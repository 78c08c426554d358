"""A bit-packed binary dataset: open it, read its chunks, verify it."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset.chunks import (
    Chunk,
    Words,
    add_feature_words,
    cut_numbers,
    get_or_read_chunk,
    list_occupied_slots,
    make_empty_chunk,
    mark_missing_texts,
    pack_slots,
    read_chunks_ahead,
    sort_by_segment,
    take_occupied_slots,
    unpack_slots,
)
from storage.dataset.feature_levels import Planes
from storage.dataset.levels import PAGE_TEXTS, Levels
from storage.dataset.tables import (
    check_chunk_shape,
    check_tables,
    make_damaged_dataset_error,
    make_unreadable_error,
    read_positions,
    read_table,
)
from storage.display import (
    Facts,
    StorageReprMixin,
    build_row_variables,
    build_xarray,
    list_dataset_facts,
)
from storage.errors import (
    DamagedChunkError,
    DataChangedError,
    DataError,
    StoreUnreachableError,
)
from storage.format.manifests import read_manifest
from storage.format.schema import (
    BITS,
    DATASET_VERSION,
    FEATURES,
    LEVELS_VERSION,
    MISSING_INTEGER,
    NOMINAL_VERSION,
    format_array_path,
    open_checked_array,
    read_chunk,
)
from storage.stores.locations import DATASET_FORMAT, AnyPath, checksum, open_group, parse_path
from storage.stores.object_store import make_store_error

if TYPE_CHECKING:
    import dask.array
    import xarray


Array = NDArray[Any]
Ints = NDArray[np.int64]
PlaneSource = int | tuple[str, float]
"""A row of bits, the opposite of one (`~row`), or a continuous feature and the lowest of its values
that count as 1."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
_VERSIONS = (DATASET_VERSION, LEVELS_VERSION, NOMINAL_VERSION)
_MAX_GROUPS = 1000
_CHUNKS_AHEAD_ON_STORES, MAX_BYTES_AHEAD = 12, 1 << 28
"""What each thread reads ahead: a request gives some 40 MB/s, but a core counts 400 MB/s."""


@dataclass(frozen=True)
class RowGroups:
    """The different values of a column; small enough to send with every task.

    Attributes
    ----------
    column
        The per-row column.
    values
        Its whole numbers or codes of texts, in the order of their first rows.
    """

    column: str
    values: tuple[float, ...]

    def find_indices(self, values: NDArray[Any]) -> Ints:
        """Return the position in `self.values` of each value, (n_rows,)."""
        order, values_in_order = self._value_order
        return order[np.searchsorted(values_in_order, values)]

    @cached_property
    def _value_order(self) -> tuple[Ints, NDArray[Any]]:
        values = np.array(self.values)
        order = np.argsort(values)
        return order, values[order]


class GroupTable(NamedTuple):
    """The groups of all rows, and the number of rows per chunk and group, (n_chunks, n_groups)."""

    groups: RowGroups
    n_rows: Ints


def count_groups(
    place: str, column: str, is_text: bool, parts: Iterable[tuple[Ints, NDArray[Any]]]
) -> GroupTable:
    """Find the groups in a column, and count their rows in each chunk.

    Parameters
    ----------
    place, column
        The dataset and the column, for errors.
    is_text
        Whether the values are codes of texts, -1 if missing.
    parts
        Original rows and values, chunk by chunk.

    Raises
    ------
    DataError
        If a value is missing or a fraction, or more than `_MAX_GROUPS` values differ.
    """
    known: dict[float, int] = {}
    counts: list[dict[int, int]] = []
    for rows, values in parts:
        _check_values(place, column, is_text, rows, values)
        distinct, sizes = np.unique(values, return_counts=True)
        new = [value for value in distinct.tolist() if value not in known]
        if len(known) + len(new) > _MAX_GROUPS:
            raise DataError(
                f"{place}: column {column!r} has more than {_MAX_GROUPS:,} different values, which "
                "are too many groups. Choose another column."
            )
        for value in sorted(new, key=lambda value: int(np.argmax(values == value))):
            known[value] = len(known)
        counts.append(dict(zip(map(known.__getitem__, distinct.tolist()), sizes, strict=True)))
    n_rows = np.zeros((len(counts), len(known)), np.int64)
    for key, sizes_by_group in enumerate(counts):
        n_rows[key, [*sizes_by_group]] = [*sizes_by_group.values()]
    return GroupTable(RowGroups(column, tuple(known)), n_rows)


def _check_values(place: str, column: str, is_text: bool, rows: Ints, values: NDArray[Any]) -> None:
    def refuse(is_wrong: NDArray[np.bool_], describe: Callable[[Any], str]) -> None:
        if is_wrong.any():
            k = int(np.argmax(is_wrong))
            raise DataError(f"{place}: row {rows[k] + 1} has {describe(values[k])}")

    is_missing = values < 0 if is_text else np.isnan(values)
    refuse(is_missing, lambda _: f"no value in column {column!r}. Give every row a group.")
    if values.dtype.kind == "f":
        refuse(
            ~np.isfinite(values) | (values != np.rint(values)),
            lambda value: (
                f"{value:g} in column {column!r}, which is no whole number. Choose a column of "
                "texts or whole numbers."
            ),
        )


class PlaneView(NamedTuple):
    """Features made of some planes of the stored ones; see `BinaryDataset.view_planes`.

    `levels` has the levels of the features that are not plain 0 and 1, `planes` the row of `bits`
    of each plane, or what it is cut from. `negatives` has the continuous features whose values
    change their sign, and their stored names.
    """

    names: tuple[str, ...]
    levels: tuple[tuple[str, tuple[str, ...]], ...]
    planes: tuple[PlaneSource, ...]
    negatives: tuple[tuple[str, str], ...] = ()

    @property
    def has_stored_planes(self) -> bool:
        """Whether every plane is stored as it is."""
        return all(isinstance(plane, int) and plane >= 0 for plane in self.planes)


def _compose(own: Sequence[PlaneSource], plane: PlaneSource) -> PlaneSource:
    """Return a plane of a view of a view, given the planes of the first one."""
    if not isinstance(plane, int):
        return plane
    source = own[plane if plane >= 0 else ~plane]
    if plane >= 0:
        return source
    assert isinstance(source, int), "a cut of a continuous feature has no opposite"
    return ~source


@dataclass(frozen=True, repr=False)
class BinaryDataset(StorageReprMixin):
    """An opened dataset; see `open_dataset`."""

    path: AnyPath
    manifest: Mapping[str, Any]
    group: zarr.Group
    chunks: NDArray[np.int64]
    blocks: NDArray[np.int64]
    checksums: NDArray[np.int64]
    row_columns: Any = field(default=None, kw_only=True)
    view: PlaneView | None = field(default=None, kw_only=True)

    def with_row_columns(self, row_columns: Any) -> Self:
        """Return the dataset with columns of its rows; see `pipeline.data.row_columns`."""
        return replace(self, row_columns=row_columns)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.manifest["n_rows"])

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.feature_names)

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunks)

    @property
    def rows_per_chunk(self) -> list[int]:
        """Number of rows of each chunk, (n_chunks,)."""
        rows: list[int] = self.chunks[:, 1].tolist()
        return rows

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        return len(self.segment_names)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in column order."""
        return self.view.names if self.view else tuple(self.manifest["feature_names"])

    @cached_property
    def feature_levels(self) -> Mapping[str, tuple[str, ...]]:
        """Levels of each feature that is not plain 0 and 1; a continuous one has none."""
        stored = self.manifest.get("feature_levels", {})
        own = dict(self.view.levels) if self.view else stored
        return {name: tuple(levels) for name, levels in own.items()}

    @cached_property
    def nominal_features(self) -> frozenset[str]:
        """Names of the features whose levels are categories without an order."""
        return frozenset(self.manifest.get("nominal_features", ())) & {*self.feature_names}

    @cached_property
    def planes(self) -> Planes:
        """The planes of the features: their rows of bits in a chunk."""
        return Planes.of_features(self.feature_names, self.feature_levels)

    @cached_property
    def stored_planes(self) -> Planes:
        """The planes of the stored features, in the order of the rows of `bits`."""
        return Planes.of_manifest(self.manifest)

    @property
    def n_planes(self) -> int:
        """Number of rows of bits in a chunk; that of features if all are binary."""
        return len(self.planes)

    @cached_property
    def continuous_features(self) -> tuple[str, ...]:
        """Names of the continuous features."""
        return tuple(self.feature_names[index] for index in self.planes.continuous)

    def view_planes(
        self,
        names: Sequence[str],
        feature_levels: Mapping[str, Sequence[str]],
        planes: Sequence[PlaneSource],
        negatives: Mapping[str, str] = NO_NAMES,
    ) -> Self:
        """Return the dataset with other features, made of some of its planes.

        Parameters
        ----------
        names, feature_levels
            The features, and levels of those that are not plain 0 and 1. Continuous features have
            no levels, and the names that they have now, unless they are among `negatives`.
        planes
            Rows of bits of the present features that become those of the new ones, (n_planes,), or
            cuts of continuous features.
        negatives
            New names of continuous features whose values change their sign, and the present names.
        """
        if self.view is not None:
            own_planes = self.view.planes
            planes = [_compose(own_planes, plane) for plane in planes]
            negatives = {**dict(self.view.negatives), **negatives}
        own = [name for name in names if name in feature_levels]
        levels = tuple((name, tuple(feature_levels[name])) for name in own)
        view = PlaneView(tuple(names), levels, tuple(planes), (*negatives.items(),))
        return replace(self, view=view)

    @cached_property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments, in order of first appearance."""
        return tuple(self.manifest["segment_names"])

    @property
    def digest(self) -> str:
        """SHA-256 of names, layout and chunk checksums: equal digests mean equal data."""
        return str(self.manifest["digest"])

    def describe(self) -> dict[str, Any]:
        """Identify the dataset by its path and by digests of its rows."""
        return {
            "path": str(self.path.resolve()),
            "digest": self.digest,
            "chunks_digest": self.digest_leading_chunks(self.n_chunks),
            "rows_digest": self.digest_leading_rows(self.n_chunks),
            "n_rows": self.n_rows,
            "n_chunks": self.n_chunks,
            "words_per_chunk": self.manifest["words_per_chunk"],
        }

    def digest_leading_chunks(self, n_chunks: int) -> str:
        """Digest the leading chunks: equal digests mean equal rows, features and segments."""
        layout: list[Any] = [self.manifest["stored"], self.feature_names]
        layout += [self._list_leading_segments(n_chunks)]
        if self.feature_levels or self.view:
            layout += [dict(self.feature_levels), self.view and self.view.planes]
        if nominal := sorted(self.nominal_features):
            layout += [nominal]
        if added := self.manifest.get("added_features"):
            layout += [added, self.chunk_features[:n_chunks].tolist()]
        return self._digest_leading(n_chunks, layout)

    def digest_leading_rows(self, n_chunks: int) -> str:
        """Digest the leading chunks as they are stored, whatever features are chosen or added.

        Equal digests mean equal rows in equal segments.
        """
        names, n_features = self._list_leading_segments(n_chunks), self.chunk_features[:n_chunks]
        return self._digest_leading(n_chunks, [self.manifest["stored"], names, n_features.tolist()])

    def _list_leading_segments(self, n_chunks: int) -> tuple[str, ...]:
        blocks = self.blocks[self.blocks[:, 0] < n_chunks]
        return self.segment_names[: int(blocks[:, 1].max(initial=-1)) + 1]

    def _digest_leading(self, n_chunks: int, layout: list[Any]) -> str:
        """Digest the layout and the tables of the leading chunks."""
        blocks = self.blocks[self.blocks[:, 0] < n_chunks]
        digest = hashlib.sha256(json.dumps(layout).encode())
        for table in (self.chunks[:n_chunks], blocks, self.checksums[:n_chunks]):
            digest.update(np.ascontiguousarray(table).tobytes())
        return digest.hexdigest()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Facts about the data, such as the true parameters of simulated data."""
        return dict(self.manifest.get("attributes", {}))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the per-row columns."""
        return tuple(self.manifest["columns"])

    @cached_property
    def levels(self) -> Mapping[str, Levels]:
        """The texts of the per-row columns that store codes of texts, by column."""
        return {
            name: Levels(self.path, self.group, name, entry["levels"])
            for name, entry in self.manifest["columns"].items()
            if entry["kind"] == "category"
        }

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.levels.get("split", ()))

    def decode_texts(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of a per-row column as ingested: codes become their texts."""
        return self.levels[name].decode(values) if name in self.levels else values

    def parse_numbers(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of a per-row column as numbers, also if it stores codes of texts."""
        return self.levels[name].parse_numbers(values) if name in self.levels else values

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Position of each chunk in the arrays, (n_chunks,); updated chunks change theirs."""
        return read_positions(self.manifest)

    @property
    def n_positions(self) -> int:
        """Number of positions in the arrays; those that no chunk has are free."""
        return 1 + int(self.positions.max())

    @cached_property
    def chunk_features(self) -> NDArray[np.int64]:
        """Number of leading features that each chunk stores, (n_chunks,).

        The others were added later. `zero_features` tells what they are in the chunk's rows.
        """
        default = np.full(self.n_chunks, len(self.manifest["feature_names"]))
        return np.array(self.manifest.get("chunk_features", default), np.int64)

    @cached_property
    def zero_features(self) -> NDArray[np.bool_]:
        """Whether each stored feature, if it was added, is 0 in earlier rows, (n_features,)."""
        added, names = self.manifest.get("added_features", {}), self.manifest["feature_names"]
        return np.array([added.get(name) == "zero" for name in names], np.bool_)

    @cached_property
    def has_missing(self) -> NDArray[np.bool_]:
        """Whether each chunk has missing values, (n_chunks,)."""
        lacks = np.array([not self.zero_features[n:].all() for n in self.chunk_features], np.bool_)
        return lacks | (self.checksums[:, self.manifest["stored"].index("observed")] >= 0)

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of the bits and masks of the largest chunk."""
        n_arrays = 1 + int(self.has_missing.any())
        return 8 * n_arrays * self.n_planes * int(self.chunks[:, 2].max(initial=0))

    def _iter_display_items(self) -> Facts:
        tables = (self.chunks[:, 2], self.blocks, self.has_missing)
        names, nominal = self.manifest["feature_names"], self.manifest.get("nominal_features", ())
        planes = self.stored_planes.name_planes(names, nominal)
        about = (str(self.path), self.manifest, *tables, planes)
        return list_dataset_facts(*about, self._read_stored_ones, lambda: self.splits)

    def read_chunk(
        self, key: int, split: str | None = None, columns: tuple[str, ...] = ()
    ) -> Chunk:
        """Read one chunk and check it against the manifest.

        Parameters
        ----------
        key
            Index of the chunk.
        split
            Split whose rows `Chunk.keep` marks.
        columns
            Per-row columns to read.

        Raises
        ------
        DataError
            If the chunk is missing or damaged, or the split or a column is unknown.
        """
        n_words = int(self.chunks[key, 2])
        blocks = self._find_blocks(key)
        words = self._read_words("bits", key, n_words)
        has_mask = self._get_checksum("observed", key) >= 0
        observed = self._read_words("observed", key, n_words) if has_mask else None
        if observed is not None and not self.stored_planes.are_features:
            observed = observed[self.stored_planes.features[: len(words)]]
        zeros = self.zero_features[self.stored_planes.features[len(words) :]]
        words, observed = add_feature_words(words, observed, blocks, zeros)
        if self.view is not None:
            words, observed = self._select_planes(self.view, key, blocks, words, observed)
        numbers = [self._read_numbers(name, key, blocks) for name in self.continuous_features]
        return Chunk(
            key=key,
            words=words,
            observed=observed,
            blocks=blocks,
            row_numbers=self._read_row_numbers(key, blocks),
            columns={name: self._read_column(name, key, blocks) for name in columns},
            keep=None if split is None else self._read_split_mask(split, key, blocks),
            numbers=np.stack(numbers) if numbers else None,
        )

    def _select_planes(
        self,
        view: PlaneView,
        key: int,
        blocks: Ints,
        words: Words,
        observed: Words | None,
    ) -> tuple[Words, Words | None]:
        """Return the planes of a view and their mask, given those of the stored features."""
        occupied = pack_slots(list_occupied_slots(blocks), words.shape[1])
        places = list[int]()
        bits, masks = list[Words](), list[Words]()
        for plane in view.planes:
            if isinstance(plane, int):
                places.append(plane)
                continue
            name, threshold = plane
            numbers = self._read_numbers(name, key, blocks)
            ones, present = cut_numbers(numbers, threshold, blocks, words.shape[1])
            places.append(len(words) + len(bits))
            bits.append(ones)
            masks.append(present)
        if bits:
            if observed is None and any((mask != occupied).any() for mask in masks):
                observed = np.repeat(occupied[None], len(words), axis=0)
            words = np.concatenate([words, bits])
            observed = None if observed is None else np.concatenate([observed, masks])
        chosen = np.array(places, np.int64)
        is_opposite, rows = chosen < 0, np.where(chosen < 0, ~chosen, chosen)
        words, observed = words[rows], None if observed is None else observed[rows]
        full = occupied if observed is None else observed[is_opposite]
        words[is_opposite] = full & ~words[is_opposite]
        return words, None if observed is None or (observed == occupied).all() else observed

    def _read_numbers(self, name: str, key: int, blocks: Ints) -> Array:
        """Read the values of a continuous feature, (n_rows,)."""
        negatives = dict(self.view.negatives) if self.view else NO_NAMES
        values = self._read_slots(f"values/{negatives.get(name, name)}", key, blocks)
        return -values if name in negatives else values

    def _find_blocks(self, key: int) -> NDArray[np.int64]:
        first, last = np.searchsorted(self.blocks[:, 0], [key, key + 1])
        return self.blocks[first:last, 1:]

    def read_row_labels(self, key: int, names: Sequence[str]) -> tuple[Ints, dict[str, Array]]:
        """Read a chunk's segments and per-row columns in original row order, but not its bits."""
        blocks, first = self._find_blocks(key), self.chunks[key, 0]
        order = self._read_row_numbers(key, blocks)
        places: Any = slice(None)
        if not isinstance(order, range):
            places = np.empty_like(order)
            places[order - first] = np.arange(len(order))
        columns = {name: self._read_column(name, key, blocks)[places] for name in names}
        return np.repeat(blocks[:, 0], blocks[:, 2])[places], columns

    def iter_numbers(
        self, name: str, split: str | None = None, n_chunks: int | None = None
    ) -> Iterator[tuple[Ints, Array]]:
        """Yield the original rows and the numbers of a per-row column, chunk by chunk in order.

        Texts are parsed; empty ones become NaN. Only the leading `n_chunks` are read, if given.

        Raises
        ------
        DataError
            If a text is not a number.
        """
        for rows, _, columns in self._iter_labels([name], split, n_chunks):
            yield rows, self.parse_numbers(name, columns[name])

    def iter_codes(self, name: str, split: str | None = None) -> Iterator[tuple[Ints, Array]]:
        """Yield the original rows and the values of a per-row column, chunk by chunk in order.

        Texts are represented by their codes; missing ones have code -1.

        Raises
        ------
        DataError
            If there are so many texts that one text may have several codes.
        """
        levels = self.levels.get(name)
        if levels is not None and len(levels.pages) > 1:
            raise DataError(
                f"{self.path}: column {name!r} has more than {PAGE_TEXTS:,} different texts. "
                "Replace them by whole numbers."
            )
        for rows, _, columns in self._iter_labels([name], split):
            values = columns[name]
            yield rows, values if levels is None else levels.mark_missing(values)

    def iter_segments(self, split: str | None = None) -> Iterator[tuple[Ints, Ints]]:
        """Yield the original rows and the index of their segments, chunk by chunk in order."""
        for rows, segments, _ in self._iter_labels([], split):
            yield rows, segments

    def _iter_labels(
        self, names: Sequence[str], split: str | None, n_chunks: int | None = None
    ) -> Iterator[tuple[Ints, Ints, dict[str, Array]]]:
        """Yield the original rows, their segments and per-row columns, chunk by chunk in order."""
        for key in range(self.n_chunks if n_chunks is None else n_chunks):
            segments, columns = self.read_row_labels(
                key, names if split is None else [*names, "split"]
            )
            own: Any = slice(None)
            if split is not None:
                own = columns["split"] == self.find_split_code(split)
            rows = self.chunks[key, 0] + np.arange(len(segments))
            yield rows[own], segments[own], {name: columns[name][own] for name in names}

    def column(self, name: str) -> Array:
        """Read a per-row column in original row order, (n_rows,)."""
        values = np.concatenate(
            [self.read_row_labels(k, [name])[1][name] for k in range(self.n_chunks)]
        )
        return self.decode_texts(name, values).astype(str) if name in self.levels else values

    def segments(self) -> NDArray[Any]:
        """Return the segment name of every row in original row order, (n_rows,)."""
        codes = np.concatenate([segments for _, segments in self.iter_segments()])
        return np.asarray(np.array(self.segment_names)[codes], str)

    def ones(self) -> NDArray[np.int64]:
        """Read the number of ones per chunk and row of bits, (n_chunks, n_planes)."""
        ones = self._read_stored_ones()
        if self.view is None:
            return ones
        if self.view.has_stored_planes:
            return ones[:, np.array(self.view.planes, np.int64)]
        chunks = (self.read_chunk(key).words for key in range(self.n_chunks))
        return np.stack([np.bitwise_count(w).sum(axis=1, dtype=np.int64) for w in chunks])

    def _read_stored_ones(self) -> NDArray[np.int64]:
        try:
            return read_table(self.path, self.manifest, self.group, "ones")
        except DataError:
            self._check_unchanged()
            raise

    def to_xarray(self) -> xarray.Dataset:
        """Return `values` and `observed` as lazy arrays, with segments and per-row columns."""
        bits = {name: self.to_dask(name) for name in ("values", "observed")}
        columns = {name: self.column(name) for name in self.column_names}
        names = {"feature": self.feature_names}
        about = {"path": str(self.path), "digest": self.digest}
        if self.feature_levels:  # `values` are levels counted from 0, and numbers
            about["feature_levels"] = json.dumps(dict(self.feature_levels))
        if self.nominal_features:
            about["nominal_features"] = json.dumps(sorted(self.nominal_features))
        return build_xarray(build_row_variables(bits, self.segments(), columns), names, about)

    def segment_by(self, column: str) -> BinaryDataset:
        """Return the dataset with the values of a per-row column as segments.

        The segments are in the order of their first rows. Nothing is written: chunks are sorted
        when they are read.

        Raises
        ------
        DataError
            If there is no such column, a row has no value, numbers are not whole, or more than
            1,000 values differ.
        """
        self.check_columns([column])
        is_text = column in self.levels
        groups, n_rows = count_groups(str(self.path), column, is_text, self.iter_codes(column))
        values = np.array(groups.values)
        names = self.levels[column].decode(values) if is_text else map(str, map(int, groups.values))
        n_words = -(-n_rows // 64)
        first_words = np.cumsum(n_words, axis=1) - n_words
        keys, segments = np.nonzero(n_rows)
        at = keys, segments
        return RegroupedDataset(
            self.path,
            {**self.manifest, "segment_names": [*names]},
            self.group,
            np.column_stack([self.chunks[:, :2], n_words.sum(axis=1)]),
            np.column_stack([keys, segments, first_words[at], n_rows[at]]),
            self.checksums,
            self,
            groups,
            view=self.view,
        )

    def with_stored_segments(self) -> BinaryDataset:
        """Return the dataset with the segments that it was stored with."""
        return self

    def make_reader(
        self,
        split: str | None = None,
        memory: int = 0,
        skipped: Sequence[int] = (),
        columns: tuple[str, ...] = (),
        number_columns: tuple[str, ...] = (),
        ahead: int = MAX_BYTES_AHEAD,
    ) -> ChunkReader:
        """Return a `ChunkReader` of this dataset, which works in any process."""
        path, skips = str(self.path.resolve()), frozenset(skipped)
        rows = (path, self.digest, split, columns, memory, skips, number_columns)
        return ChunkReader(*rows, self._row_groups, self.view, ahead)

    @property
    def _row_groups(self) -> RowGroups | None:
        """The segments, if they are not the stored ones."""
        return None

    def dense(self, key: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Unpack a chunk to values and mask, each (n_rows, n_features), in original row order.

        The value of a feature with several levels is its level, counted from 0. If there are
        continuous features, values are float32, and NaN where a continuous one is missing.
        """
        chunk, planes = self.read_chunk(key), self.planes
        slots, places = list_occupied_slots(chunk.blocks), chunk.rows - self.chunks[key, 0]
        X = np.empty((len(places), self.n_features), self._dense_dtype)
        X[places] = planes.sum_planes(unpack_slots(chunk.words, slots))
        observed = np.ones(X.shape, np.uint8)
        has_planes = np.flatnonzero(np.diff(planes.firsts))
        if chunk.observed is not None:
            firsts = chunk.observed[planes.firsts[has_planes]]
            observed[np.ix_(places, has_planes)] = unpack_slots(firsts, slots)
        if chunk.numbers is not None:
            own = np.ix_(places, planes.continuous)
            X[own], observed[own] = chunk.numbers.T, ~np.isnan(chunk.numbers.T)
        return X, observed

    @property
    def _dense_dtype(self) -> type[np.uint8 | np.float32]:
        return np.float32 if self.continuous_features else np.uint8

    def to_dask(self, name: str = "values") -> dask.array.Array:
        """Return `values` or `observed` as a lazy array, (n_rows, n_features), in row order."""
        import dask
        import dask.array

        which = {"values": 0, "observed": 1}[name]
        read_delayed = dask.delayed(_read_dense)
        parts = [
            dask.array.from_delayed(
                read_delayed(str(self.path), self.digest, self.view, key, which),
                shape=(int(self.chunks[key, 1]), self.n_features),
                dtype=np.uint8 if which else self._dense_dtype,
            )
            for key in range(self.n_chunks)
        ]
        return dask.array.concatenate(parts)

    def verify(self) -> None:
        """Read every chunk of every array and check it.

        Raises
        ------
        DataError
            If a chunk is missing, damaged or inconsistent; the message names the first one.
        """
        recorded = self.ones()
        self._check_features()
        for key in range(self.n_chunks):
            chunk = self.read_chunk(key, columns=self.column_names)
            ones = np.bitwise_count(chunk.words).sum(axis=1, dtype=np.int64)
            if not np.array_equal(ones, recorded[key]):
                raise DataError(
                    f"{self.path}: chunk {key}: the counts of ones per feature do not match the "
                    "recorded counts. Ingest the dataset again."
                )
        for levels in self.levels.values():
            deque(levels, maxlen=0)

    def _check_features(self) -> None:
        """Check the table for other clients; this package reads the levels in the manifest."""
        if FEATURES.name not in self.manifest["tables"]:
            return
        table = read_table(self.path, self.manifest, self.group, FEATURES.name)
        names, nominal = self.manifest["feature_names"], self.manifest.get("nominal_features", ())
        if not np.array_equal(table, self.stored_planes.tabulate(names, nominal)):
            raise DataError(
                f"{self.path}: the table {FEATURES.name} does not match the manifest. Ingest the "
                "dataset again."
            )

    def _read_words(self, name: str, key: int, n_words: int) -> Words:
        if name == BITS.name and not len(self.stored_planes):
            return np.empty((0, n_words), np.uint64)
        packed = self._read_checked(name, key)
        return packed.view("<u8").astype(np.uint64, copy=False)[:, :n_words]

    def _read_slots(self, name: str, key: int, blocks: Ints) -> Array:
        return take_occupied_slots(self._read_checked(name, key), blocks)

    def read_stored(self, name: str, key: int) -> NDArray[Any] | None:
        """Read a whole chunk of one array of `stored`, with padding; None if it is not stored."""
        return self._read_checked(name, key) if self._get_checksum(name, key) >= 0 else None

    def _read_row_numbers(self, key: int, blocks: Ints) -> Ints | range:
        first, n_rows = self.chunks[key, :2].tolist()
        if self._get_checksum("order", key) < 0:
            return range(first, first + n_rows)
        return self._read_slots("order", key, blocks) + np.int64(first)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise `DataError` if there is no per-row column of one of these names."""
        for name in names:
            if name not in self.column_names:
                have = ", ".join(self.column_names) or "none"
                raise DataError(
                    f"{self.path}: there is no per-row column {name!r}. It has: {have}."
                )

    def _read_column(self, name: str, key: int, blocks: Ints) -> Array:
        self.check_columns([name])
        values = self._read_slots(f"columns/{name}", key, blocks)
        if self.manifest["columns"][name]["kind"] == "nullable-int":
            return np.where(values == MISSING_INTEGER, np.nan, values)
        return values

    def _read_split_mask(self, split: str, key: int, blocks: Ints) -> NDArray[np.bool_]:
        code = self.find_split_code(split)
        return np.asarray(self._read_column("split", key, blocks) == code, np.bool_)

    def find_split_code(self, split: str) -> int:
        """Return the code of a split; raise `DataError` if there is no such split."""
        if split not in self.splits:
            have = ", ".join(self.splits) or "none"
            raise DataError(f"{self.path}: {{split}}: there is no split {split!r}. It has: {have}.")
        return self.splits.index(split)

    def _get_checksum(self, name: str, key: int) -> int:
        return int(self.checksums[key, self.manifest["stored"].index(name)])

    def open_array(self, name: str) -> Any:
        """Open an array listed in `stored`, once: its metadata are a separate object."""
        if name not in self._arrays:
            array = open_checked_array(self.group, format_array_path(name))
            check_chunk_shape(name, array, self.manifest)
            self._arrays[name] = array
        return self._arrays[name]

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        return {}

    def _read_checked(self, name: str, key: int) -> NDArray[Any]:
        """Read a chunk of one array, and check that it exists and is intact."""
        position, n_lead = int(self.positions[key]), int(self.chunk_features[key])
        if name == BITS.name:
            n_lead = int(self.stored_planes.firsts[n_lead])
        try:
            array = self.open_array(name)
            # Features that were added later are in chunks of their own.
            n_parts = -(-n_lead // array.chunks[0]) if array.ndim == 2 else 1
            coordinates = ((k, position)[-array.ndim :] for k in range(n_parts))
            stored = [read_chunk(self.path, array, *place) for place in coordinates]
        except StoreUnreachableError:
            raise
        except DataError as error:
            raise DataError(f"{self.path}: {error} Ingest the dataset again.") from error
        except Exception as error:
            store_error = make_store_error(str(self.path), error)
            raise store_error or make_unreadable_error(
                f"{self.path}: {name}: chunk {key}", error
            ) from error
        parts = [part for part in stored if part is not None]
        if not (is_missing := len(parts) < len(stored)):
            values = parts[0] if len(parts) == 1 else np.concatenate(parts)
            values = values[:n_lead] if array.ndim == 2 else values
            if checksum(values) == self._get_checksum(name, key):
                return values
        self._check_unchanged()
        state = "missing" if is_missing else "damaged (checksum)"
        raise DamagedChunkError(
            f"{self.path}: {name}: chunk {key} is {state}. Ingest the dataset again."
        )

    def _check_unchanged(self) -> None:
        """Raise `DataChangedError` if the dataset was updated since it was opened."""
        manifest = read_manifest(self.path, DATASET_FORMAT, *_VERSIONS)
        if manifest["digest"] != self.digest:
            raise DataChangedError(
                f"{self.path}: the dataset has changed since the start. Run again."
            )


@dataclass(frozen=True, repr=False)
class RegroupedDataset(BinaryDataset):
    """A dataset with other segments than the stored ones; see `BinaryDataset.segment_by`.

    `stored` is the dataset as it is stored.
    """

    stored: BinaryDataset
    groups: RowGroups

    def _digest_leading(self, n_chunks: int, layout: list[Any]) -> str:
        rows = super()._digest_leading(n_chunks, layout)
        return hashlib.sha256(f"{rows} {self.groups.column}".encode()).hexdigest()

    def segment_by(self, column: str) -> BinaryDataset:
        """Return the dataset with the values of a per-row column as segments."""
        return self if column == self.groups.column else self.stored.segment_by(column)

    def view_planes(
        self,
        names: Sequence[str],
        feature_levels: Mapping[str, Sequence[str]],
        planes: Sequence[PlaneSource],
        negatives: Mapping[str, str] = NO_NAMES,
    ) -> Self:
        """Return the dataset with other features, made of some of its planes."""
        stored = self.stored.view_planes(names, feature_levels, planes, negatives)
        return replace(self, stored=stored, view=stored.view)

    def with_stored_segments(self) -> BinaryDataset:
        """Return the dataset with the segments that it was stored with."""
        return self.stored

    def read_chunk(
        self, key: int, split: str | None = None, columns: tuple[str, ...] = ()
    ) -> Chunk:
        """Read one chunk as `BinaryDataset.read_chunk` does, and sort it by the segments."""
        return _read_regrouped_chunk(self.stored, self.groups, key, split, columns)

    def read_row_labels(self, key: int, names: Sequence[str]) -> tuple[Ints, dict[str, Array]]:
        """Read a chunk's segments and per-row columns in original row order, but not its bits."""
        column = self.groups.column
        _, columns = self.stored.read_row_labels(key, [*names, column])
        segments = self.groups.find_indices(columns[column])
        return segments, {name: columns[name] for name in names}

    @property
    def _row_groups(self) -> RowGroups:
        return self.groups


def _read_regrouped_chunk(
    dataset: BinaryDataset, groups: RowGroups, key: int, split: str | None, columns: tuple[str, ...]
) -> Chunk:
    chunk = dataset.read_chunk(key, split, (*dict.fromkeys((*columns, groups.column)),))
    own_columns = {name: chunk.columns[name] for name in columns}
    segments = groups.find_indices(chunk.columns[groups.column])
    return sort_by_segment(replace(chunk, columns=own_columns), segments)


def open_dataset(path: str | AnyPath) -> BinaryDataset:
    """Open a dataset after checking its manifest.

    Raises
    ------
    DataError
        If the path holds no complete dataset of a known version.
    """
    folder = parse_path(path)
    while True:
        manifest = read_manifest(folder, DATASET_FORMAT, *_VERSIONS)
        try:
            return _open_version(folder, manifest)
        except DataError:
            if read_manifest(folder, DATASET_FORMAT, *_VERSIONS) == manifest:
                raise  # otherwise it was updated or replaced meanwhile


def _open_version(folder: AnyPath, manifest: Mapping[str, Any]) -> BinaryDataset:
    try:
        group = open_group(folder)
    except Exception as error:
        raise make_damaged_dataset_error(folder, error) from error
    names = ("chunks", "blocks", "checksums")
    tables = {name: read_table(folder, manifest, group, name) for name in names}
    check_tables(folder, manifest, **tables)
    return BinaryDataset(folder, manifest, group, *(tables[name] for name in names))


@dataclass(frozen=True)
class ChunkReader:
    """Reads chunks by key in any process; small enough to send with every task.

    Attributes
    ----------
    path, digest
        The dataset, and the digest it must have.
    split, columns
        As for `BinaryDataset.read_chunk`, but empty texts, which mean missing, have code -1.
    memory
        Maximum size of the chunks that a process caches, in bytes.
    skipped
        Chunks to replace by empty ones.
    number_columns
        Further columns, whose texts are numbers; see `BinaryDataset.parse_numbers`.
    groups
        The segments, if they are not the stored ones; see `BinaryDataset.segment_by`.
    view
        The features, if they are not the stored ones; see `BinaryDataset.view_planes`.
    ahead
        Maximum size of the chunks that each thread reads ahead, in bytes.
    """

    path: str
    digest: str
    split: str | None = None
    columns: tuple[str, ...] = ()
    memory: int = 0
    skipped: frozenset[int] = frozenset()
    number_columns: tuple[str, ...] = ()
    groups: RowGroups | None = None
    view: PlaneView | None = None
    ahead: int = MAX_BYTES_AHEAD

    def __call__(self, key: int) -> Chunk:
        """Return a chunk, from the cache if possible."""
        if key in self.skipped:
            return make_empty_chunk(key)
        return get_or_read_chunk(self._rows, key, self.memory, lambda: self._read(key))

    @property
    def _rows(self) -> Hashable:
        columns = (self.columns, self.number_columns)
        return (self.path, self.digest, self.split, *columns, self.groups, self.view)

    def read_ahead(self, keys: Iterable[int]) -> None:
        """Start to read the chunk that the calling thread asks for next, and some after it."""
        dataset = _open_cached(self.path, self.digest, self.view)
        n_ahead = 1 if isinstance(dataset.path, Path) else _CHUNKS_AHEAD_ON_STORES
        n_ahead = min(n_ahead, self.ahead // max(1, dataset.chunk_bytes))
        if n_ahead:
            readable = (key for key in keys if key not in self.skipped)
            n_chunks = 1 + n_ahead
            read_chunks_ahead(self._rows, [*islice(readable, n_chunks)], n_chunks, self._read)

    def count_ones(self) -> tuple[int, Ints] | None:
        """Return the numbers of rows and of ones per plane, (n_planes,), without reading chunks.

        None if a split or segments are read, a value is missing, or a plane is not a stored one.
        """
        dataset = _open_cached(self.path, self.digest, self.view)
        has_others = self.view is not None and not self.view.has_stored_planes
        is_split = self.split is not None or self.groups is not None or dataset.n_segments > 1
        keys = [key for key in range(dataset.n_chunks) if key not in self.skipped]
        if is_split or has_others or dataset.has_missing[keys].any():
            return None
        return int(dataset.chunks[keys, 1].sum()), dataset.ones()[keys].sum(axis=0)

    def is_readable(self, key: int) -> bool:
        """Return whether a chunk is intact; errors other than damage are raised."""
        try:
            self(key)
        except DamagedChunkError:
            return False
        return True

    def _read(self, key: int) -> Chunk:
        dataset = _open_cached(self.path, self.digest, self.view)
        names = tuple(dict.fromkeys([*self.columns, *self.number_columns]))
        if self.groups is None:
            chunk = dataset.read_chunk(key, self.split, names)
        else:
            chunk = _read_regrouped_chunk(dataset, self.groups, key, self.split, names)
        numbers = {n: dataset.parse_numbers(n, chunk.columns[n]) for n in self.number_columns}
        marked = mark_missing_texts(chunk, dataset.levels)
        return replace(marked, columns={**marked.columns, **numbers})


@lru_cache(maxsize=8)
def _open_cached(path: str, digest: str, view: PlaneView | None) -> BinaryDataset:
    dataset = replace(open_dataset(path), view=view)
    if dataset.digest != digest:
        raise DataChangedError(f"{path}: the dataset has changed since the start. Run again.")
    return dataset


def _read_dense(
    path: str, digest: str, view: PlaneView | None, key: int, which: int
) -> NDArray[Any]:
    return _open_cached(path, digest, view).dense(key)[which]
