"""Hypothesis strategies of binary data, and data in memory that a pass can go over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource, iter_blocks, pack_block
from pipeline.data.weights import WeightKind, measure_weights, weigh_rows

Bits = NDArray[np.uint8]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class DenseData:
    """Rows as a person sees them.

    Attributes
    ----------
    X
        Values, (n_samples, n_features); what lies under a missing value is arbitrary.
    observed
        Mask of the same shape, or None.
    segments
        Segment of each row, (n_samples,), or None where all are in segment 0.
    keep
        Rows of the chosen split, (n_samples,), or None.
    weights, clusters
        Weight and cluster of each row, (n_samples,), or None.
    numbers
        Values of continuous features, (n_samples, n_continuous), NaN where missing, or None.
    """

    X: Bits
    observed: Bits | None = None
    segments: NDArray[np.int64] | None = None
    keep: NDArray[np.bool_] | None = None
    weights: NDArray[Any] | None = None
    clusters: NDArray[np.int64] | None = None
    numbers: NDArray[np.float32] | None = None

    @property
    def mask(self) -> Bits:
        """The mask, written out."""
        return np.ones_like(self.X) if self.observed is None else self.observed

    @property
    def labels(self) -> NDArray[np.int64]:
        """The segments, written out."""
        return np.zeros(len(self.X), np.int64) if self.segments is None else self.segments

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        return int(self.labels.max(initial=0)) + 1

    def take_rows(self, at: Any) -> DenseData:
        """Some of the rows."""
        columns = (
            *(self.observed, self.segments, self.keep),
            *(self.weights, self.clusters, self.numbers),
        )
        return DenseData(
            self.X[at], *(None if column is None else column[at] for column in columns)
        )

    def pack(self, segment: int = 0, first_row: int = 0) -> BinaryBlock:
        """Pack the rows into one block."""
        numbers = None if self.numbers is None else np.ascontiguousarray(self.numbers.T)
        return pack_block(self.X, self.observed, segment, first_row, numbers)


@dataclass(frozen=True)
class StrategyChunk:
    """A chunk as storage gives it."""

    words: Words
    observed: Words | None
    blocks: NDArray[np.int64]
    row_numbers: NDArray[np.int64] | range
    columns: Mapping[str, NDArray[Any]]
    keep: NDArray[np.bool_] | None
    numbers: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class StrategyReader:
    """Reads chunks that are held in memory."""

    chunks: tuple[StrategyChunk, ...]

    def __call__(self, key: int) -> StrategyChunk:
        return self.chunks[key]


def make_memory_rows(
    data: DenseData, chunk_sizes: Sequence[int] | None = None, kind: WeightKind = "frequency"
) -> RowSource:
    """Cut rows into chunks of these sizes, one by default, and lay them out as storage does."""
    sizes = [len(data.X)] if chunk_sizes is None else chunk_sizes
    assert sum(sizes) == len(data.X)
    spans = pairwise(np.cumsum([0, *sizes]).tolist())
    chunks = tuple(_make_chunk(data.take_rows(slice(a, b)), a) for a, b in spans)
    rows = RowSource(StrategyReader(chunks), sizes, data.X.shape[1], data.n_segments)
    if data.weights is None:
        return rows
    parts = [(chunk.row_numbers, chunk.columns["weight"]) for chunk in chunks]
    weights = measure_weights("weight", kind, lambda: parts)
    psu = None if data.clusters is None else "cluster"
    return weigh_rows(rows, replace(weights, psu=psu))


def make_memory_blocks(
    data: DenseData, chunk_sizes: Sequence[int] | None = None
) -> list[BinaryBlock]:
    """All blocks of rows cut into chunks of these sizes."""
    rows = make_memory_rows(data, chunk_sizes)
    return [block for key in range(rows.n_chunks) for block in iter_blocks(rows.read(key))]


def _make_chunk(data: DenseData, first_row: int) -> StrategyChunk:
    order = np.argsort(data.labels, kind="stable")
    parts = [order[data.labels[order] == s] for s in np.unique(data.labels)]
    n_words = [-(-len(part) // 64) for part in parts]
    first_words = np.cumsum([0, *n_words])[:-1]
    seen = [data.labels[part[0]] for part in parts]
    blocks = np.array([*zip(seen, first_words, map(len, parts), strict=True)], np.int64)
    masked = not data.mask.all()
    return StrategyChunk(
        _pack_side_by_side([data.X[part] & data.mask[part] for part in parts], data.X.shape[1]),
        _pack_side_by_side([data.mask[part] for part in parts], data.X.shape[1])
        if masked
        else None,
        blocks.reshape(-1, 3),
        range(first_row, first_row + len(order)) if len(parts) == 1 else first_row + order,
        {
            "position": first_row + order,
            "label": _label_rows(data)[order],
            **({} if data.weights is None else {"weight": data.weights[order]}),
            **({} if data.clusters is None else {"cluster": data.clusters[order]}),
        },
        None if data.keep is None else data.keep[order],
        None if data.numbers is None else np.ascontiguousarray(data.numbers[order].T),
    )


def _label_rows(data: DenseData) -> NDArray[np.int64]:
    """Say which rows have ones in more than half of their places."""
    return ((data.X & data.mask).sum(axis=1) > data.X.shape[1] / 2).astype(np.int64)


def _pack_side_by_side(parts: Sequence[Bits], n_features: int) -> Words:
    return np.hstack([np.zeros((n_features, 0), np.uint64), *map(pack_matrix, parts)])


def pack_matrix(X: Bits) -> Words:
    """Pack as the documentation of the dataset tells any reader to unpack."""
    n_samples, n_features = X.shape
    in_bytes = np.packbits(X, axis=0, bitorder="little").T
    padded = np.zeros((n_features, 8 * -(-n_samples // 64)), np.uint8)
    padded[:, : in_bytes.shape[1]] = in_bytes
    return padded.view(np.uint64)


def count_dense_pairs(data: DenseData) -> list[NDArray[np.int64]]:
    """n, ones_i, ones_j and joint of every pair, over the rows where both are observed."""
    mask = data.mask.astype(np.int64)
    ones = (data.X & data.mask).astype(np.int64)
    return [mask.T @ mask, ones.T @ mask, mask.T @ ones, ones.T @ ones]


def bit_matrices(n_samples: st.SearchStrategy[int], n_features: st.SearchStrategy[int]) -> Any:
    """0/1 matrices of these sizes."""
    zero_or_one = st.integers(0, 1)
    shapes = st.tuples(n_samples, n_features)
    return hnp.arrays(np.uint8, shapes, elements=zero_or_one, fill=zero_or_one)


@st.composite
def tables(
    draw: st.DrawFn,
    n_features: st.SearchStrategy[int] = st.integers(1, 6),  # noqa: B008
    n_samples: st.SearchStrategy[int] = st.integers(1, 150),  # noqa: B008
    *,
    splits: bool = False,
) -> DenseData:
    """Rows with or without missing values, in up to three segments, in a split or not."""
    X = draw(bit_matrices(n_samples, n_features))
    observed = draw(st.none() | bit_matrices(st.just(len(X)), st.just(X.shape[1])))
    segments = draw(hnp.arrays(np.int64, len(X), elements=st.integers(0, 2)))
    keep = draw(st.none() | hnp.arrays(np.bool_, len(X))) if splits else None
    return DenseData(X, observed, segments, keep)


@st.composite
def chunkings(draw: st.DrawFn, n_rows: int, max_chunks: int = 20) -> list[int]:
    """Sizes of consecutive chunks, none of them empty."""
    edges = draw(st.sets(st.integers(0, n_rows), max_size=max_chunks - 1))
    return np.diff(sorted({0, *edges, n_rows})).tolist()


def draw_probit_data(
    n_samples: int,
    n_features: int,
    n_factors: int,
    rng: np.random.Generator,
    communality: tuple[float, float] = (0.3, 0.9),
    max_threshold: float = 1.0,
) -> tuple[Bits, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Draw x = W y + ε > t: the rows, W, t and y; the rows of W have these squared lengths."""
    x, loadings, thresholds, y = draw_gaussians(
        n_samples, n_features, n_factors, rng, communality, max_threshold
    )
    return (x > thresholds).astype(np.uint8), loadings, thresholds, y


def draw_gaussians(
    n_samples: int,
    n_features: int,
    n_factors: int,
    rng: np.random.Generator,
    communality: tuple[float, float],
    max_threshold: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Draw x, W, t and y of `draw_probit_data`."""
    loadings = rng.standard_normal((n_features, n_factors))
    share = rng.uniform(*communality, n_features)
    loadings *= np.sqrt(share / (loadings**2).sum(axis=1))[:, None]
    thresholds = rng.uniform(-max_threshold, max_threshold, n_features)
    y = rng.standard_normal((n_samples, n_factors))
    noise = np.sqrt(1 - share) * rng.standard_normal((n_samples, n_features))
    return y @ loadings.T + noise, loadings, thresholds, y
