"""Laplacian eigenmap: codes that vary least between neighbouring rows.

Model: none of how rows came about. The distinct rows are the vertices of a graph with weights w_ij
of 0 where neither of two is among the k nearest of the other by Hamming distance d_ij, else 1 or
exp(−d_ij / 2ω²). Codes minimise Σ_ij w_ij ‖α_i − α_j‖²: with D the degrees, L = D − W, they solve
L α = λ D α for the smallest λ, the constant one left out (Sugiyama 2016, section 36.1; M. Belkin,
P. Niyogi, "Laplacian eigenmaps for dimensionality reduction and data representation", Neural
Computation 15, 2003). Means, weighted by degrees, are 0, and mean squares 1.

Rows that are alike are one vertex: else they would be each other's only neighbours. Ties go by a
random order of the rows. Of missing values d_ij is the share that differs of those observed in
both, times the number of features. Parts of a graph that hold together by no link are joined by
the shortest ones between them, which the fit says.

A vertex has its own code; any other row the mean of its k nearest vertices', by their weights, over
1 − λ, which is what L α = λ D α says of a vertex (Y. Bengio et al., "Out-of-sample extensions for
LLE, Isomap, MDS, eigenmaps, and spectral clustering", NIPS 2003). 1 − λ counts as 0.1 at the least.
A row without an observed value, or none in common with its vertices, has the code 0, the mean.

======  ===========  =========================================================
symbol  field        shape
======  ===========  =========================================================
x_i     rows         (n_vertices, n_bytes), eight features a byte, little bit order
        observed     the same, of their masks; absent where nothing is missing
α       embedding    (n_vertices, n_components)
λ       eigenvalues  (n_components,), rising
ω       width        a number; absent where weights are 0 and 1
======  ===========  =========================================================

Cost: comparing all vertices with each other, n_vertices² · n_features / 64 word operations, then
some thousand products of the sparse W with a vector; of a block n_samples · n_vertices ·
n_features / 64. Two passes, of distinct rows and of counts.
Not identifiable: the sign of a column (the entry of largest size is made positive), and rotations
among columns of equal eigenvalue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.bits.packed_rows import BitRows, find_equal_rows, unpack_bytes
from pipeline.numerics.graphs.nearest_rows import (
    NearestRows,
    NumberedRows,
    empty_nearest,
    merge_nearest,
)
from pipeline.numerics.graphs.neighbour_graph import (
    connect_components,
    find_nearest_vertices,
    label_connected_components,
    laplacian_eigenvectors,
    neighbour_edges,
)
from pipeline.params import array_field, optional_array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import DistinctRows, make_unobserved_row_warnings

Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
RowIndices = NDArray[np.int64]

MAX_ROWS = 200_000
"""Vertices of a graph at the most."""
_MIN_WEIGHT = 1e-4  # of a link: below it the graph would fall apart in the last digits
_MIN_EIGENVALUE = 0.1
_PAIRS_PER_SECOND = 6e9  # of words, one core
_MAX_NAMED_PARTS = 5


@dataclass(frozen=True)
class LaplacianEigenmapParams:
    """Parameters; the module's table gives shapes."""

    rows: Bytes = array_field("row", "byte")
    embedding: Array = array_field("row", "component")
    eigenvalues: Array = array_field("eigenvalue")
    observed: Bytes | None = optional_array_field("row", "byte")
    width: Array | None = optional_array_field()

    def vertices(self, n_features: int) -> NumberedRows:
        """Give the vertices, each a part of its own."""
        numbers = np.arange(len(self.rows))
        return NumberedRows(unpack_bytes(n_features, self.rows, self.observed), numbers, numbers)


@dataclass(frozen=True)
class LaplacianEigenmap(Model):
    """Hyperparameters of the Laplacian eigenmap.

    Attributes
    ----------
    n_components
        Number of components; None takes 2.
    k
        Neighbours of a row.
    weights
        Of links: 1 (binary), or exp(−d / 2 width²) for a Hamming distance d (heat).
    width
        Of the heat kernel, a root of a number of features; None takes the root of the median
        distance to the k-th neighbour.
    landmarks
        Distinct rows that the graph is of, drawn at random; None takes all, 200,000 at the most.
    """

    name: ClassVar[str] = "laplacian-eigenmap"
    first_statistics: ClassVar[type[DistinctRows]] = DistinctRows
    statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    params: ClassVar[type[LaplacianEigenmapParams]] = LaplacianEigenmapParams
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("vertices", "parts", "width")
    n_components: int | None = None
    k: int = setting(10, minimum=1)
    weights: Literal["binary", "heat"] = "binary"
    width: float | None = setting(None, above=0)
    landmarks: int | None = setting(None, maximum=MAX_ROWS)
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.landmarks is not None and self.landmarks <= self.k:
            raise FitError(f"landmarks: Expected more than k, {self.k}, got {self.landmarks}.")

    @property
    def _dimension(self) -> int:
        return self.n_components or 2

    @property
    def _max_vertices(self) -> int:
        return self.landmarks or MAX_ROWS

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of as many vertices as there may be, their links and their eigenvectors."""
        a_vertex = 80 * -(-n_features // 64) + 150 * self.k + 8 * (8 * self._dimension + 80)
        return self._max_vertices * a_vertex

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> DistinctRows:
        """MAP: find the distinct rows."""
        return DistinctRows.from_block(block, self._max_vertices, rng)

    def first_key(self, seed: int) -> str:
        """Name the distinct rows, which the seed draws and orders."""
        return f"{self._max_vertices} distinct rows by seed {seed}"

    def initialize(self, first: DistinctRows, rng: np.random.Generator) -> FitState:
        """Take the rows of which something was observed for vertices.

        Raises
        ------
        FitError
            If there are too many, or too few for so many neighbours or components.
        """
        if self.landmarks is None and not first.is_whole:
            raise self._make_size_error(first)
        rows, _ = first.rows_with_values
        n = rows.n_rows
        if n < 2:
            raise FitError(
                f"Expected rows that differ, got {first.n_samples} that are all the same. "
                "Fit other rows."
            )
        told = f"the number of {'landmarks' if self.landmarks else 'distinct rows'}"
        if self.k >= n:
            raise FitError(f"k: Expected below {n}, {told}, got {self.k}. Give fewer by --set k.")
        if self._dimension >= n:
            raise FitError(
                f"--components: Expected below {n}, {told}, got {self._dimension}. Give fewer."
            )
        values, mask = rows.pack_bytes()
        return FitState(
            LaplacianEigenmapParams(values, np.zeros((n, 0)), np.zeros(0), mask),
            warnings=make_unobserved_row_warnings(first),
        )

    def _make_size_error(self, first: DistinctRows) -> FitError:
        n = first.n_distinct
        seconds = n**2 * first.words.shape[1] / _PAIRS_PER_SECOND
        size = n / self._max_vertices * self.estimate_memory(64 * first.words.shape[1], 1, 1)
        return FitError(
            f"Expected at most {self._max_vertices:,} distinct rows, got about {n:,}, which a core would "
            f"compare in {seconds / 60:,.0f} minutes, within {size / 1e9:,.1f} GB. Draw some of "
            "them by --set landmarks=20000."
        )

    def summarize(
        self,
        params: LaplacianEigenmapParams,
        working: Arrays,
        block: BinaryBlock,
        rng: RowRandom,
    ) -> FeatureCounts:
        """Count the features of a block."""
        return FeatureCounts.from_block(block)

    def counts_key(self, n_features: int) -> str:
        """Name the counts of features."""
        return "features"

    def update(
        self,
        state: FitState,
        statistics: FeatureCounts,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Find the neighbours, join what does not hold together, and solve for the codes.

        Raises
        ------
        FitError
            If a feature was never observed, or rows cannot be compared with the others.
        """
        observed, ones = pool_margins(statistics)
        vertices = state.params.vertices(len(ones))
        n = vertices.bits.n_rows
        nearest = find_nearest_vertices(vertices, vertices.numbers, self.k, map_items)
        links = neighbour_edges(nearest)
        sizes = np.sort(np.bincount(label_connected_components(links, n)))[::-1]
        links = connect_components(links, vertices, map_items)
        width = self._choose_width(nearest)
        weights = np.maximum(_heat_weights(links.distances, width), _MIN_WEIGHT)
        eigenvalues, vectors = laplacian_eigenvectors(links, weights, n, self._dimension)
        params = replace(
            state.params,
            embedding=vectors,
            eigenvalues=eigenvalues,
            width=None if width is None else np.array(width),
        )
        told: dict[str, float] = {"vertices": n, "parts": len(sizes)}
        if width is not None:
            told["width"] = width
        noted = (
            *make_constant_feature_warnings(observed, ones),
            *_warn_about_graph(sizes, eigenvalues),
        )
        return replace(
            state,
            params=params,
            diagnostics={"n_components": self._dimension, **told},
            warnings=(*state.warnings, *noted),
        )

    def _choose_width(self, nearest: NearestRows) -> float | None:
        """Give the width of the heat kernel: by default of the median of the k-th distances.

        Raises
        ------
        FitError
            If it is so small that links have no weight.
        """
        if self.weights == "binary":
            return None
        farthest = nearest.distances[:, -1]
        positive = farthest[np.isfinite(farthest) & (farthest > 0)]
        usual = float(np.sqrt(np.median(positive))) if positive.size else 1.0
        if self.width is not None and _heat_weights(np.array(usual**2), self.width) < _MIN_WEIGHT:
            raise FitError(
                f"width: Expected about {usual:.2g}, the root of the median distance to the "
                f"neighbour number {self.k}, got {self.width}. Give more, or leave it out."
            )
        return self.width or usual

    def transform(
        self, params: LaplacianEigenmapParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Give the codes: a vertex's own, else by the nearest vertices."""
        vertices, nowhere = params.vertices(block.n_features), np.full(block.n_samples, -1)
        rows = NumberedRows(block.to_packed_rows(), nowhere, nowhere)
        nearest = empty_nearest(block.n_samples, self.k)
        merge_nearest("hamming", rows, vertices, nearest)
        codes = _average_codes(params, nearest)
        same, at = _find_vertices(rows.bits, vertices.bits, nearest)
        codes[same] = params.embedding[at]
        return {"mean": codes}


def _heat_weights(distances: Array, width: float | None) -> Array:
    if width is None:
        return np.ones_like(distances)
    weights: Array = np.exp(-distances / (2 * width**2))
    return weights


def _warn_about_graph(sizes: NDArray[np.int64], eigenvalues: Array) -> tuple[FitWarning, ...]:
    """Say where the graph fell apart, and which components neighbours do not share."""
    found = []
    if len(sizes) > 1:
        told = ", ".join(f"{size:,}" for size in sizes[:_MAX_NAMED_PARTS])
        more = ", …" if len(sizes) > _MAX_NAMED_PARTS else ""
        text = f"neighbours fall into {len(sizes):,} parts, of {told}{more} distinct rows, which "
        text += "the shortest links join; codes may tell little but these parts: give more "
        found.append(FitWarning(text + "neighbours by --set k"))
    rough = int((eigenvalues > 1 - _MIN_EIGENVALUE).sum())
    if rough:
        text = f"components that differ between neighbours as between any rows: the last {rough}; "
        found.append(FitWarning(text + "give fewer by --components"))
    return tuple(found)


def _average_codes(params: LaplacianEigenmapParams, nearest: NearestRows) -> Array:
    """Average the codes of neighbours by their weights, over 1 − λ."""
    distances, width = nearest.distances, params.width
    there = np.isfinite(distances)
    beyond = np.where(there, distances - np.where(there, distances, 0)[:, :1], np.inf)
    weights = np.where(there, _heat_weights(beyond, None if width is None else float(width)), 0.0)
    at = np.where(there, nearest.indices, 0)
    total = np.zeros((len(at), len(params.eigenvalues)))
    for one, weight in zip(at.T, weights.T, strict=True):
        total += weight[:, None] * params.embedding[one]
    share = np.maximum(1 - params.eigenvalues, _MIN_EIGENVALUE)
    codes: Array = total / np.maximum(weights.sum(axis=1), 1.0)[:, None] / share
    return codes


def _find_vertices(
    rows: BitRows, vertices: BitRows, nearest: NearestRows
) -> tuple[RowIndices, RowIndices]:
    """Find the rows that are vertices, and which these are."""
    if rows.observed is None and vertices.observed is None:
        near = np.flatnonzero(nearest.distances[:, 0] == 0)
        return near, nearest.indices[near, 0]
    # Rows may differ, and yet nowhere that both were observed.
    return find_equal_rows(rows, vertices)
