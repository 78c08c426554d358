"""Datasets: the protocols that `storage` implements, and datasets in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk, Words
from pipeline.data.display import DisplayItems, ResultDisplayMixin
from pipeline.data.tables import BinaryTable
from pipeline.errors import FitError
from pipeline.numerics.bits import kernels

_CHUNK_BYTES = 1 << 20
"""Size of a chunk's bits: large enough for a task, small enough to give work to every thread."""
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
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments."""

    @property
    def levels(self) -> Mapping[str, Iterable[str]]:
        """Texts of the per-row columns that are stored as codes, in the order of the codes."""

    @property
    def rows_per_chunk(self) -> Sequence[int]:
        """Number of rows of each chunk, (n_chunks,)."""

    def make_reader(
        self, split: str | None = None, memory: int = 0, *, columns: tuple[str, ...] = ()
    ) -> ReadChunk:
        """Return a function that reads chunks, or their rows of a split, with per-row columns."""


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
class MemoryChunk:
    """A range of rows, stably sorted by segment; implements `PackedChunk`."""

    words: Words
    observed: Words | None
    blocks: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    keep: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class MemoryReader:
    """Reads chunks by key, with the chosen per-row columns and split."""

    chunks: tuple[MemoryChunk, ...]
    columns: tuple[str, ...]
    split: int | None

    def __call__(self, key: int) -> MemoryChunk:
        """Return a chunk."""
        chunk = self.chunks[key]
        columns = {name: chunk.columns[name] for name in self.columns}
        keep = None if self.split is None else chunk.columns[_SPLIT] == self.split
        return replace(chunk, columns=columns, keep=keep)


@dataclass(frozen=True, repr=False)
class MemoryDataset(ResultDisplayMixin):
    """A dataset in memory, created by `make_memory_dataset`; implements `Dataset`.

    Segments are in the order of their first rows. `levels` has the texts of the per-row columns
    that are stored as codes, in the order of the codes.
    """

    feature_names: tuple[str, ...]
    segment_names: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]
    chunks: tuple[MemoryChunk, ...]

    @property
    def rows_per_chunk(self) -> list[int]:
        """Number of rows of each chunk, (n_chunks,)."""
        return [len(chunk.rows) for chunk in self.chunks]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(self.rows_per_chunk)

    def make_reader(
        self, split: str | None = None, memory: int = 0, *, columns: tuple[str, ...] = ()
    ) -> MemoryReader:
        """Return a function that reads chunks, or their rows of a split, with per-row columns."""
        own_columns = self.chunks[0].columns
        for name in columns:
            if name not in own_columns:
                choices = ", ".join(own_columns) or "none"
                raise FitError(f"There is no per-row column {name!r}, only: {choices}.")
        splits = self.levels.get(_SPLIT, ())
        if split is not None and split not in splits:
            choices = ", ".join(splits) or "none"
            raise FitError(
                f"The dataset has no split {split!r}. It has: {choices}.", parameter="split"
            )
        return MemoryReader(self.chunks, columns, None if split is None else splits.index(split))

    def _iter_display_items(self) -> DisplayItems:
        yield "rows", f"{self.n_rows:,}"
        yield "features", f"{len(self.feature_names):,}"
        yield "segments", f"{len(self.segment_names):,}"
        if columns := self.chunks[0].columns:
            yield "columns", ", ".join(columns)
        is_complete = all(chunk.observed is None for chunk in self.chunks)
        yield "missing values", "none" if is_complete else "some"


def make_memory_dataset(table: BinaryTable) -> MemoryDataset:
    """Pack a table, which must have at least 1 row and 2 features, into chunks."""
    n_rows, n_features = table.X.shape
    if n_features < 2 or not n_rows:
        raise FitError(
            f"The data have {n_rows:,} rows and {n_features:,} features. At least 1 row and 2 "
            "features are needed."
        )
    columns, levels = {}, {}
    for name, values in table.columns.items():
        columns[name] = values
        if values.dtype.kind == "O":
            columns[name], levels[name] = _encode_texts(values)
    only_segment = np.full(n_rows, _ONLY_SEGMENT, object)
    codes, segment_names = _encode_texts(only_segment if table.segments is None else table.segments)
    size = 64 * max(1, _CHUNK_BYTES // (8 * n_features))
    edges = [*range(0, n_rows, size), n_rows]
    spans = [slice(first, last) for first, last in pairwise(edges)]
    chunks = tuple(_make_chunk(table, codes, columns, span) for span in spans)
    return MemoryDataset(table.feature_names, segment_names, levels, chunks)


def _encode_texts(texts: NDArray[Any]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Replace texts by codes in order of first appearance, and empty texts by -1."""
    code_by_text = {text: code for code, text in enumerate(dict.fromkeys(filter(None, texts)))}
    codes = np.fromiter((code_by_text.get(text, -1) for text in texts), np.int32, len(texts))
    return codes, tuple(code_by_text)


def _make_chunk(
    table: BinaryTable, codes: NDArray[np.int32], columns: Mapping[str, NDArray[Any]], span: slice
) -> MemoryChunk:
    """Pack consecutive rows, sorted by segment; each segment starts at a word boundary."""
    rows = span.start + np.argsort(codes[span], kind="stable")
    segments, sizes = np.unique(codes[span], return_counts=True)
    n_words = -(-sizes // 64)
    blocks = np.column_stack([segments, np.cumsum(n_words) - n_words, sizes]).astype(np.int64)
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    return MemoryChunk(
        _pack_parts(table.X, parts),
        None if table.observed is None else _pack_parts(table.observed, parts),
        blocks,
        rows,
        {name: values[rows] for name, values in columns.items()},
    )


def _pack_parts(bits: NDArray[np.uint8], parts: list[NDArray[np.int64]]) -> Words:
    return np.concatenate([kernels.pack_rows(bits[rows]) for rows in parts], axis=1)
