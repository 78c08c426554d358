"""Datasets: the protocols that `storage` implements, and datasets in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import AnnotatedChunk, PackedChunk, RowSource, Words, iter_blocks
from pipeline.data.display import DisplayItems, ResultDisplayMixin
from pipeline.data.features import (
    count_planes,
    find_continuous,
    join_values,
    list_features,
    parse_number,
    split_values,
)
from pipeline.data.row_columns import NO_COLUMNS, RowColumns
from pipeline.data.tables import BinaryTable, join_tables
from pipeline.data.weights import ColumnPart, RowWeights, weigh_rows
from pipeline.errors import FitError
from pipeline.numerics.bits import kernels
from pipeline.words import is_missing_word

IN_MEMORY = "<memory>"
"""Path of datasets in memory in manifests."""
_CHUNK_BYTES = 1 << 20
"""Size of a chunk's bits: large enough for a task, small enough to give work to every thread."""
_MAX_GROUPS = 1000
PlaneSource = int | tuple[str, float]
"""A row of bits, the opposite of one (`~row`), or a continuous feature and the lowest of its values
that count as 1."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
_ONLY_SEGMENT = "all"
_SPLIT = "split"


class ReadChunk(Protocol):
    """Reads chunks by key."""

    def __call__(self, key: int) -> PackedChunk:
        """Read a chunk."""


class Dataset(Protocol):
    """A dataset on disk (`storage.open_dataset`) or in memory (`MemoryDataset`)."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""

    @property
    def feature_levels(self) -> Mapping[str, tuple[str, ...]]:
        """Levels of each feature that is not binary, or has level names other than 0 and 1."""

    @property
    def nominal_features(self) -> frozenset[str]:
        """Names of the features whose levels are categories without an order."""

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the per-row columns."""

    @property
    def levels(self) -> Mapping[str, Iterable[str]]:
        """Texts of the per-row columns that are stored as codes, in the order of the codes."""

    @property
    def rows_per_chunk(self) -> Sequence[int]:
        """Number of rows of each chunk, (n_chunks,)."""

    @property
    def row_columns(self) -> RowColumns | None:
        """Per-row columns that passes read with the rows; see `with_row_columns`."""

    def with_row_columns(self, row_columns: RowColumns) -> Self:
        """Return the dataset with per-row columns of its rows, as a fit uses them."""

    def make_reader(
        self,
        split: str | None = None,
        memory: int = 0,
        *,
        columns: tuple[str, ...] = (),
        number_columns: tuple[str, ...] = (),
    ) -> ReadChunk:
        """Return a function that reads chunks, or their rows of a split, with per-row columns.

        The texts of `number_columns` are parsed as numbers.
        """

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise an error if there is no per-row column of one of these names."""

    def iter_numbers(self, name: str, split: str | None = None) -> Iterator[ColumnPart]:
        """Yield the original rows and the numbers of a per-row column, in order; parse texts."""

    def iter_codes(self, name: str, split: str | None = None) -> Iterator[ColumnPart]:
        """Yield the original rows and the values of a per-row column, in order, texts as codes."""

    def iter_segments(self, split: str | None = None) -> Iterator[ColumnPart]:
        """Yield the original rows and the index of their segments, in order."""

    def view_planes(
        self,
        names: Sequence[str],
        feature_levels: Mapping[str, Sequence[str]],
        planes: Sequence[PlaneSource],
        negatives: Mapping[str, str] = NO_NAMES,
    ) -> Self:
        """Return the dataset with these features, and the planes that make them up, in order.

        `negatives` has the new names of continuous features whose values change their sign, and
        their present names.
        """

    def segment_by(self, column: str) -> Self:
        """Return the dataset with the values of a per-row column as segments.

        The segments are in the order of their first rows. An error is raised if there is no such
        column, a row has no value, numbers are not whole, or more than 1,000 values differ.
        """

    def describe(self) -> dict[str, Any]:
        """Identify the dataset by its path and by digests of its rows, as manifests record it."""


def get_row_columns(dataset: Dataset) -> RowColumns:
    """Return the per-row columns of a dataset that passes read with the rows."""
    return dataset.row_columns or NO_COLUMNS


def make_row_source(
    dataset: Dataset,
    split: str | None = None,
    memory: int = 0,
    skipped: Sequence[int] = (),
    columns: tuple[str, ...] = (),
    weights: RowWeights | None = None,
    number_columns: tuple[str, ...] = (),
    ahead: int | None = None,
) -> RowSource:
    """Make the rows of a dataset or split readable by passes.

    Every process may keep `memory` bytes of chunks. Skipped chunks, which only datasets on disk
    have, are left out, and each thread reads `ahead` bytes of the others ahead, if given. The
    per-row columns are read as well; the texts of `number_columns` are parsed as numbers. Rows have
    `weights`, if given, and the row columns of the dataset.
    """
    row_columns = get_row_columns(dataset)
    own_columns, own_numbers = row_columns.list_columns()
    columns, number_columns = (*columns, *own_columns), (*number_columns, *own_numbers)
    if weights is not None:
        number_columns = (*number_columns, weights.column)
        columns = columns if weights.psu is None else (*columns, weights.psu)
    options: dict[str, Any] = {"skipped": skipped} if skipped else {}
    options |= {} if ahead is None else {"ahead": ahead}
    options |= {"columns": columns, "number_columns": number_columns}
    read = dataset.make_reader(split, memory, **options)
    shape = count_planes(dataset), len(dataset.segment_names)
    rows = RowSource(read, dataset.rows_per_chunk, *shape)
    rows = rows if weights is None else weigh_rows(rows, weights)
    return row_columns.add_to_rows(rows, dataset.levels)


class StoredArtifact(Protocol):
    """A fitted model on disk, from `storage.load_artifact`: arrays by name, and a manifest."""

    @property
    def path(self) -> Any:
        """Its folder."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Settings, names, results and warnings of the fit."""

    def __getitem__(self, name: str) -> NDArray[Any]: ...


@dataclass(frozen=True)
class MemoryReader:
    """Reads chunks by key, with the chosen per-row columns and split.

    `number_columns` has the columns of texts to read as numbers, and the numbers of their codes.
    """

    chunks: tuple[AnnotatedChunk, ...]
    columns: tuple[str, ...]
    split: int | None
    number_columns: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __call__(self, key: int) -> AnnotatedChunk:
        """Return a chunk."""
        chunk = self.chunks[key]
        columns = {name: chunk.columns[name] for name in self.columns}
        columns |= {name: numbers[columns[name]] for name, numbers in self.number_columns.items()}
        keep = None if self.split is None else chunk.columns[_SPLIT] == self.split
        return replace(chunk, columns=columns, keep=keep)


@dataclass(frozen=True, repr=False)
class MemoryDataset(ResultDisplayMixin):
    """A dataset in memory, created by `make_memory_dataset`; implements `Dataset`.

    Segments are in the order of their first rows. `levels` has the texts of the per-row columns
    that are stored as codes, in the order of the codes. `feature_levels` has the levels of the
    features that are not binary, or have level names other than 0 and 1, and `nominal_features` the
    names of those with categories; chunks have a row of bits for each plane of a feature, see
    `pipeline.data.features`.
    """

    feature_names: tuple[str, ...]
    segment_names: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]
    chunks: tuple[AnnotatedChunk, ...]
    row_columns: RowColumns | None = None
    feature_levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nominal_features: frozenset[str] = frozenset()

    def with_row_columns(self, row_columns: RowColumns) -> MemoryDataset:
        """Return the dataset with per-row columns of its rows, as a fit uses them."""
        return replace(self, row_columns=row_columns)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the per-row columns."""
        return tuple(self.chunks[0].columns)

    @property
    def rows_per_chunk(self) -> list[int]:
        """Number of rows of each chunk, (n_chunks,)."""
        return [len(chunk.row_numbers) for chunk in self.chunks]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(self.rows_per_chunk)

    def make_reader(
        self,
        split: str | None = None,
        memory: int = 0,
        *,
        columns: tuple[str, ...] = (),
        number_columns: tuple[str, ...] = (),
    ) -> MemoryReader:
        """Return a function that reads chunks, or their rows of a split, with per-row columns.

        The texts of `number_columns` are parsed as numbers.
        """
        columns = (*columns, *number_columns)
        self.check_columns(columns)
        numbers = {name: self._parse_levels(name) for name in number_columns if name in self.levels}
        return MemoryReader(self.chunks, columns, self._find_split_code(split), numbers)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise `FitError` if there is no per-row column of one of these names."""
        own_columns = self.chunks[0].columns
        for name in names:
            if name not in own_columns:
                choices = ", ".join(own_columns) or "none"
                raise FitError(f"There is no per-row column {name!r}. It has: {choices}.")

    def iter_numbers(self, name: str, split: str | None = None) -> Iterator[ColumnPart]:
        """Yield the original rows and the numbers of a per-row column, in order; parse texts.

        Raises
        ------
        FitError
            If a text is not a number.
        """
        numbers = self._parse_levels(name) if name in self.levels else None
        for rows, values in self.iter_codes(name, split):
            yield rows, values if numbers is None else numbers[values]

    def iter_codes(self, name: str, split: str | None = None) -> Iterator[ColumnPart]:
        """Yield the original rows and the values of a per-row column, in order, texts as codes.

        Missing texts have code -1.
        """
        for chunk, order in self._iter_chunks(split):
            yield chunk.rows[order], chunk.columns[name][order]

    def iter_segments(self, split: str | None = None) -> Iterator[ColumnPart]:
        """Yield the original rows and the index of their segments, in order."""
        for chunk, order in self._iter_chunks(split):
            yield chunk.rows[order], np.repeat(chunk.blocks[:, 0], chunk.blocks[:, 2])[order]

    def _iter_chunks(self, split: str | None) -> Iterator[tuple[AnnotatedChunk, NDArray[np.intp]]]:
        """Yield the chunks, with the places of the rows of a split in their original order."""
        code = self._find_split_code(split)
        for chunk in self.chunks:
            order = np.argsort(chunk.rows)
            yield chunk, order if code is None else order[chunk.columns[_SPLIT][order] == code]

    def view_planes(
        self,
        names: Sequence[str],
        feature_levels: Mapping[str, Sequence[str]],
        planes: Sequence[PlaneSource],
        negatives: Mapping[str, str] = NO_NAMES,
    ) -> Self:
        """Return the dataset with these features, and the planes that make them up, in order."""
        features = list_features(self)
        continuous = [features[index].name for index in find_continuous(features)]
        kept = [name for name in names if feature_levels.get(name) == ()]
        numbers = [continuous.index(negatives.get(name, name)) for name in kept]
        signs = np.array([[-1 if name in negatives else 1] for name in kept], np.float32)
        chunks = []
        for chunk in self.chunks:
            own = None if chunk.numbers is None or not kept else signs * chunk.numbers[numbers]
            chunks.append(replace(_select_planes(chunk, planes, continuous), numbers=own))
        levels = {name: tuple(own) for name, own in feature_levels.items()}
        nominal = self.nominal_features & {*names}
        return replace(
            self,
            feature_names=tuple(names),
            feature_levels=levels,
            nominal_features=nominal,
            chunks=tuple(chunks),
        )

    def segment_by(self, column: str) -> MemoryDataset:
        """Return the dataset with the values of a per-row column as segments.

        The segments are in the order of their first rows.

        Raises
        ------
        FitError
            If there is no such column, a row has no value, numbers are not whole, or more than
            1,000 values differ.
        """
        self.check_columns([column])
        _check_groups(column, column in self.levels, self.iter_codes(column))
        tables = (
            replace(table, segments=_name_groups(table.columns[column]))
            for table in self.iter_tables()
        )
        return make_memory_dataset(tables, (), int(self.chunks[0].rows.min()))

    def _parse_levels(self, name: str) -> NDArray[np.float64]:
        """Return the number of each text of a column, and NaN for code -1, (n_texts + 1,)."""
        numbers = []
        for text in self.levels[name]:
            number = np.nan if is_missing_word(text) else parse_number(text)
            if number is None:
                raise FitError(
                    f"Column {name!r} contains the text {text!r}, which is not a number. Choose a "
                    "column of numbers, or ingest it again with empty cells where values are "
                    "missing."
                )
            numbers.append(number)
        return np.array([*numbers, np.nan])

    def _find_split_code(self, split: str | None) -> int | None:
        splits = self.levels.get(_SPLIT, ())
        if split is None:
            return None
        if split not in splits:
            choices = ", ".join(splits) or "none"
            raise FitError(
                f"The dataset has no split {split!r}. It has: {choices}.", parameter="split"
            )
        return splits.index(split)

    def iter_tables(self) -> Iterator[BinaryTable]:
        """Unpack the rows, chunk by chunk, in their original order."""
        features = list_features(self)
        for chunk in self.chunks:
            blocks = [*iter_blocks(chunk)]
            order = np.argsort(chunk.rows)
            masks = [mask for block in blocks if (mask := block.unpack_mask()) is not None]
            texts = {
                name: np.array([*self.levels[name], ""], object)[values]
                if name in self.levels
                else values
                for name, values in chunk.columns.items()
            }
            sizes = [block.n_samples for block in blocks]
            names = [self.segment_names[block.segment] for block in blocks]
            X = np.concatenate([block.unpack_values() for block in blocks])[order]
            observed = np.concatenate(masks)[order] if masks else None
            numbers = None if chunk.numbers is None else chunk.numbers[:, order].T
            yield BinaryTable(
                *join_values(X, observed, features),
                self.feature_names,
                np.repeat(np.array(names, object), sizes)[order],
                {name: values[order] for name, values in texts.items()},
                self.feature_levels,
                numbers,
                self.nominal_features,
            )

    def describe(self) -> dict[str, Any]:
        """Identify the dataset by digests of its rows."""
        names: list[Any] = [self.feature_names, self.segment_names]
        names += [dict(self.feature_levels)] if self.feature_levels else []
        names += [sorted(self.nominal_features)] if self.nominal_features else []
        digest = hashlib.sha256(json.dumps(names).encode())
        for chunk in self.chunks:
            for table in (chunk.words, chunk.observed, chunk.blocks, chunk.rows, chunk.numbers):
                digest.update(b"" if table is None else table.tobytes())
        return {
            "path": IN_MEMORY,
            "digest": digest.hexdigest(),
            "chunks_digest": digest.hexdigest(),
            "n_rows": self.n_rows,
            "n_chunks": len(self.chunks),
            "words_per_chunk": max(self.rows_per_chunk) // 64 + 1,
        }

    def _iter_display_items(self) -> DisplayItems:
        yield "rows", f"{self.n_rows:,}"
        yield "features", f"{len(self.feature_names):,}"
        if self.nominal_features:
            yield "nominal", f"{len(self.nominal_features):,} features with categories"
        if n_ordinal := sum(feature.kind == "ordinal" for feature in list_features(self)):
            yield "ordinal", f"{n_ordinal:,} features with more than two levels"
        if n_continuous := len(find_continuous(list_features(self))):
            yield "continuous", f"{n_continuous:,} features"
        yield "segments", f"{len(self.segment_names):,}"
        if columns := self.chunks[0].columns:
            yield "columns", ", ".join(columns)
        is_complete = all(
            chunk.observed is None and (chunk.numbers is None or not np.isnan(chunk.numbers).any())
            for chunk in self.chunks
        )
        yield "missing values", "none" if is_complete else "some"


def make_memory_dataset(
    tables: Iterable[BinaryTable], segment_names: Sequence[str] = (), first_row: int = 0
) -> MemoryDataset:
    """Pack tables with the same columns, at least 1 row and 2 features in all, into chunks.

    If the rows continue a dataset, `segment_names` are its segments and `first_row` is its number
    of rows.
    """
    chunks: list[AnnotatedChunk] = []
    per_row: list[Mapping[str, NDArray[Any]]] = []
    segments = {name: code for code, name in enumerate(segment_names)}
    feature_names: tuple[str, ...] = ()
    feature_levels: Mapping[str, tuple[str, ...]] = {}
    nominal_features: frozenset[str] = frozenset()
    n_rows = 0
    for table in _divide_into_chunks(tables):
        feature_names, feature_levels = table.feature_names, table.feature_levels
        nominal_features = table.nominal_features
        if table.segments is None:
            codes = np.full(len(table.X), segments.setdefault(_ONLY_SEGMENT, len(segments)), "i4")
        else:
            codes = _encode_texts(table.segments, segments)
        chunks.append(_make_chunk(table, codes, n_rows))
        per_row.append(table.columns)
        n_rows += len(table.X)
    if not n_rows or len(feature_names) < 2:
        size = f"{len(feature_names):,} feature{'s' * (len(feature_names) != 1)}"
        raise FitError(
            f"The data have {size if n_rows else 'no rows'}. At least 1 row and 2 features are "
            "needed."
        )
    columns, levels = {}, {}
    for name in per_row[0]:
        columns[name] = np.concatenate([part[name] for part in per_row])
        if columns[name].dtype.kind == "O":
            texts: dict[str, int] = {}
            columns[name] = _encode_texts(columns[name], texts)
            levels[name] = tuple(texts)
    chunks = [
        replace(
            chunk,
            row_numbers=first_row + chunk.rows,
            columns={name: values[chunk.rows] for name, values in columns.items()},
        )
        for chunk in chunks
    ]
    return MemoryDataset(
        feature_names,
        tuple(segments),
        levels,
        tuple(chunks),
        feature_levels=feature_levels,
        nominal_features=nominal_features,
    )


def _check_groups(column: str, is_text: bool, parts: Iterable[ColumnPart]) -> None:
    """Check the values of a column that becomes the segments; texts are codes, -1 if missing."""
    known: set[Any] = set()
    for rows, values in parts:
        is_missing = values < 0 if is_text else np.isnan(values)
        if is_missing.any():
            row = rows[np.argmax(is_missing)] + 1
            raise FitError(f"Row {row} has no value in column {column!r}. Give every row a group.")
        if values.dtype.kind == "f":
            is_fraction = ~np.isfinite(values) | (values != np.rint(values))
            if is_fraction.any():
                k = int(np.argmax(is_fraction))
                raise FitError(
                    f"Row {rows[k] + 1} has {values[k]:g} in column {column!r}, which is no whole "
                    "number. Choose a column of texts or whole numbers."
                )
        known.update(np.unique(values).tolist())
        if len(known) > _MAX_GROUPS:
            raise FitError(
                f"Column {column!r} has more than {_MAX_GROUPS:,} different values, which are too "
                "many groups. Choose another column."
            )


def _name_groups(values: NDArray[Any]) -> NDArray[Any]:
    """Return texts as they are, and whole numbers as texts, (n_rows,)."""
    if values.dtype.kind == "O":
        return values
    return np.array([str(int(value)) for value in values.tolist()], object)


def _divide_into_chunks(tables: Iterable[BinaryTable]) -> Iterator[BinaryTable]:
    """Divide and join tables, so that all but the last have the same number of rows."""
    parts: list[BinaryTable] = []
    n_waiting = 0
    for table in tables:
        # A continuous feature has 32 bits per value.
        n_bits = count_planes(table) + 32 * len(find_continuous(list_features(table)))
        size = 64 * max(1, _CHUNK_BYTES // (8 * max(1, n_bits)))
        first = 0
        while first < len(table.X):
            part = table.take_rows(slice(first, first + size - n_waiting))
            parts.append(part)
            n_waiting += len(part.X)
            first += len(part.X)
            if n_waiting == size:
                yield join_tables(parts)
                parts, n_waiting = [], 0
    if parts:
        yield join_tables(parts)


def _encode_texts(texts: NDArray[Any], codes: dict[str, int]) -> NDArray[np.int32]:
    """Replace texts by codes in order of first appearance, and empty texts by −1.

    `codes` holds those of earlier texts, and receives new ones.
    """
    for text in dict.fromkeys(filter(None, texts)):
        codes.setdefault(text, len(codes))
    return np.fromiter((codes.get(text, -1) for text in texts), np.int32, len(texts))


def _make_chunk(table: BinaryTable, codes: NDArray[np.int32], first: int) -> AnnotatedChunk:
    """Pack a chunk's rows, sorted by segment; each segment starts at a word boundary.

    `first` is the number of rows before the chunk. Per-row columns are added later.
    """
    places = np.argsort(codes, kind="stable")
    segments, sizes = np.unique(codes, return_counts=True)
    n_words = -(-sizes // 64)
    blocks = np.column_stack([segments, np.cumsum(n_words) - n_words, sizes]).astype(np.int64)
    parts = np.split(places, np.cumsum(sizes)[:-1])
    X, observed = table.X, table.observed
    if table.feature_levels:
        X, observed = split_values(X, observed, list_features(table))
    return AnnotatedChunk(
        _pack_parts(X, parts),
        None if observed is None else _pack_parts(observed, parts),
        blocks,
        first + places,
        {},
        numbers=None if table.numbers is None else np.ascontiguousarray(table.numbers[places].T),
    )


def _select_planes(
    chunk: AnnotatedChunk, planes: Sequence[PlaneSource], continuous: Sequence[str]
) -> AnnotatedChunk:
    """Return a chunk with some planes, some of which are cut from continuous features."""
    words, observed = chunk.words, chunk.observed
    places = [plane for plane in planes if isinstance(plane, int)]
    cuts = [plane for plane in planes if not isinstance(plane, int)]
    if cuts:
        assert chunk.numbers is not None
        values = chunk.numbers[[continuous.index(name) for name, _ in cuts]].T
        parts = np.split(np.arange(len(values)), np.cumsum(chunk.blocks[:-1, 2]))
        thresholds = np.array([threshold for _, threshold in cuts])
        bits = _pack_parts((values >= thresholds).view(np.uint8), parts)
        masks = _pack_parts((~np.isnan(values)).view(np.uint8), parts)
        if observed is None and np.isnan(values).any():
            full = _pack_parts(np.ones((len(values), 1), np.uint8), parts)
            observed = np.repeat(full, len(words), axis=0)
        numbered = iter(range(len(words), len(words) + len(cuts)))
        places = [plane if isinstance(plane, int) else next(numbered) for plane in planes]
        words = np.concatenate([words, bits])
        observed = None if observed is None else np.concatenate([observed, masks])
    chosen = np.array(places, np.int64)
    is_opposite, rows = chosen < 0, np.where(chosen < 0, ~chosen, chosen)
    words, observed = words[rows], None if observed is None else observed[rows]
    if observed is not None or is_opposite.any():
        parts = np.split(np.arange(len(chunk.rows)), np.cumsum(chunk.blocks[:-1, 2]))
        occupied = _pack_parts(np.ones((len(chunk.rows), 1), np.uint8), parts)
        full = occupied if observed is None else observed[is_opposite]
        words[is_opposite] = full & ~words[is_opposite]
        observed = None if observed is None or (observed == occupied).all() else observed
    return replace(chunk, words=words, observed=observed)


def _pack_parts(bits: NDArray[np.uint8], parts: list[NDArray[np.int64]]) -> Words:
    return np.concatenate([kernels.pack_rows(bits[rows]) for rows in parts], axis=1)
