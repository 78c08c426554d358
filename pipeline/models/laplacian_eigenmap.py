"""Laplacian eigenmap: codes that vary least between neighbouring rows.

Model: codes α minimise Σ_ij w_ij ‖α_i − α_j‖². The vertices of the graph are the distinct rows.
w_ij is 0 unless one of the two is among the k nearest of the other by Hamming distance d_ij;
otherwise it is 1 or exp(−d_ij / 2ω²). With D the degrees and L = D − W, the codes solve L α = λ D α
for the smallest λ, without the constant solution (Sugiyama 2016, section 36.1; M. Belkin, P.
Niyogi, "Laplacian eigenmaps for dimensionality reduction and data representation", Neural
Computation 15, 2003). There is no generative model of rows. Weighted by degrees, codes have mean 0
and mean square 1.

Equal rows are one vertex; otherwise they would be each other's only neighbours. Ties are broken by
a random order of the rows. With missing values, d_ij is the differing share of the features
observed in both, times the number of features. Disconnected parts of the graph are joined by the
shortest links between them, and the fit warns about it.

The code of a vertex is its row of α. Any other row has the weighted mean code of its k nearest
vertices, divided by 1 − λ but at least by 0.1, because L α = λ D α implies the same for vertices
(Y. Bengio et al., "Out-of-sample extensions for LLE, Isomap, MDS, eigenmaps, and spectral
clustering", NIPS 2003).
A row without an observed value, or with none in common with its vertices, has the code 0, the mean.

======  ===========  =========================================================
symbol  field        shape
======  ===========  =========================================================
x_i     rows         (n_vertices, n_bytes), eight features per byte, little bit order
        observed     the same shape, masks; absent if nothing is missing
α       embedding    (n_vertices, n_components)
λ       eigenvalues  (n_components,), rising
ω       width        (); absent if weights are 0 and 1
======  ===========  =========================================================

Cost: comparing all vertices with each other, n_vertices² · n_features / 64 word operations, then
some thousand products of the sparse W with a vector. Per block: n_samples · n_vertices ·
n_features / 64. Two passes: one for distinct rows, one for counts.
Not identifiable: the sign of a column (large entries have a positive sum), and rotations among
columns of equal eigenvalue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Indices
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.bits.packed_rows import BitRows, find_equal_rows, unpack_bytes
from pipeline.numerics.graphs.neighbours import (
    NearestRows,
    NumberedRows,
    connect_components,
    empty_nearest,
    find_nearest_vertices,
    label_connected_components,
    laplacian_eigenvectors,
    merge_nearest,
    neighbour_edges,
)
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import DistinctRows, make_unobserved_row_warnings

Bytes = NDArray[np.uint8]

MAX_ROWS = 200_000
"""Maximum number of vertices."""
_MIN_WEIGHT = 1e-4  # weights below it would disconnect the graph within rounding
_MIN_EIGENVALUE = 0.1
_PAIRS_PER_SECOND = 6e9  # pairs of words compared by one core
_MAX_NAMED_PARTS = 5


@dataclass(frozen=True)
class LaplacianEigenmapParams:
    """Parameters; the module's table gives shapes."""

    rows: Bytes = array_field("row", "byte")
    embedding: Array = array_field("row", "component")
    eigenvalues: Array = array_field("eigenvalue")
    observed: Bytes | None = optional_array_field("row", "byte")
    width: Array | None = optional_array_field(allowed=NumberRange(above=0))

    def vertices(self, n_features: int) -> NumberedRows:
        """Return the vertices, each as a separate part of the graph."""
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
        Number of neighbours of each row.
    weights
        Weights of links: 1 (`binary`), or exp(−d / 2 width²) for a Hamming distance d (`heat`).
    width
        Width of the heat kernel, in square roots of a number of features; None takes the square
        root of the median distance to the k-th neighbour.
    landmarks
        Number of distinct rows in the graph, drawn at random; None takes all, at most 200,000.
    """

    name: ClassVar[str] = "laplacian-eigenmap"
    indeterminacy: ClassVar[str] = (
        "the signs of components, and rotations among those of equal eigenvalue"
    )
    support: ClassVar[Support] = Support(("binary", "ordinal"), splits_levels=True)
    unlinked_effect: ClassVar[str] = "no path of neighbours joins their rows"
    needs_linked_features: ClassVar[bool] = True
    first_statistics: ClassVar[type[DistinctRows]] = DistinctRows
    statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    params: ClassVar[type[LaplacianEigenmapParams]] = LaplacianEigenmapParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("embedding",)
    summary_diagnostics: ClassVar[tuple[str, ...]] = ("vertices", "parts", "width")
    n_components: int | None = None
    k: int = setting(10, minimum=1)
    weights: Literal["binary", "heat"] = "binary"
    width: float | None = setting(None, above=0)
    landmarks: int | None = setting(None, minimum=1, maximum=MAX_ROWS)
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.landmarks is not None and self.landmarks <= self.k:
            raise FitError(
                f"{{landmarks}} is {self.landmarks}, but must be above {{k}}, {self.k}.",
                parameter="landmarks",
            )

    @property
    def _dimension(self) -> int:
        return self.n_components or 2

    @property
    def _max_vertices(self) -> int:
        return self.landmarks or MAX_ROWS

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the largest number of vertices, their links and eigenvectors."""
        bytes_per_vertex = 80 * -(-n_features // 64) + 150 * self.k + 8 * (8 * self._dimension + 80)
        return self._max_vertices * bytes_per_vertex

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> DistinctRows:
        """Find the distinct rows."""
        return DistinctRows.from_block(block, self._max_vertices, rng)

    def first_key(self, seed: int) -> str:
        """Return a key of the distinct rows; the seed draws and orders them."""
        return f"{self._max_vertices} distinct rows by seed {seed}"

    def initialize(self, first: DistinctRows, rng: np.random.Generator) -> FitState:
        """Make the rows with observed values the vertices, if their number is suitable."""
        if self.landmarks is None and not first.is_whole:
            raise self._make_size_error(first)
        rows, _ = first.rows_with_values
        n = rows.n_rows
        if n < 2:
            raise FitError(
                f"All {first.n_rows} rows are the same, but a graph needs rows that differ. "
                "Fit other rows."
            )
        limit = f"there are only {n} {'landmarks' if self.landmarks else 'distinct rows'}"
        if self.k >= n:
            raise FitError(
                f"{{k}} is {self.k}, but {limit}. Choose fewer neighbours.", parameter="k"
            )
        if self._dimension >= n:
            raise FitError(
                f"{{components}} is {self._dimension}, but {limit}. Choose fewer.",
                parameter="components",
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
            f"There are about {n:,} distinct rows, but a graph takes at most "
            f"{self._max_vertices:,}. One core would take {seconds / 60:,.0f} minutes and "
            f"{size / 1e9:,.1f} GB for all. Draw some of them with {{landmarks=20000}}.",
            parameter="landmarks",
        )

    def summarize(
        self, params: LaplacianEigenmapParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> FeatureCounts:
        """Count the features of a block."""
        return FeatureCounts.from_block(block)

    def counts_key(self, n_features: int) -> str:
        """Return a key of the counts of features."""
        return "features"

    def update(
        self,
        state: FitState,
        statistics: FeatureCounts,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Find the neighbours, connect the graph, and solve for the codes."""
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
        diagnostics: dict[str, float] = {"vertices": n, "parts": len(sizes)}
        if width is not None:
            diagnostics["width"] = width
        new_warnings = make_constant_feature_warnings(observed, ones)
        new_warnings += _warn_about_graph(sizes, eigenvalues)
        return replace(
            state,
            params=params,
            diagnostics={"n_components": self._dimension, **diagnostics},
            warnings=state.warnings + new_warnings,
        )

    def _choose_width(self, nearest: NearestRows) -> float | None:
        """Return the width of the heat kernel, by default from the median of the k-th distances.

        A width so small that links have no weight is refused.
        """
        if self.weights == "binary":
            return None
        farthest = nearest.distances[:, -1]
        positive = farthest[np.isfinite(farthest) & (farthest > 0)]
        default = float(np.sqrt(np.median(positive))) if positive.size else 1.0
        if self.width is not None and _heat_weights(np.array(default**2), self.width) < _MIN_WEIGHT:
            raise FitError(
                f"{{width}} is {self.width}, so small that links have no weight. Choose about "
                f"{default:.2g}, the square root of the median distance to neighbour {self.k}, or "
                "leave it out.",
                parameter="width",
            )
        return self.width or default

    def transform(
        self, params: LaplacianEigenmapParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute the codes: a vertex's own, or the mean code of the nearest vertices."""
        vertices, unnumbered = params.vertices(block.n_features), np.full(block.n_samples, -1)
        rows = NumberedRows(block.to_packed_rows(), unnumbered, unnumbered)
        nearest = empty_nearest(block.n_samples, self.k)
        merge_nearest("hamming", rows, vertices, nearest)
        codes = _average_codes(params, nearest)
        vertex_rows, places = _find_vertices(rows.bits, vertices.bits, nearest)
        codes[vertex_rows] = params.embedding[places]
        return {"mean": codes}


def _heat_weights(distances: Array, width: float | None) -> Array:
    if width is None:
        return np.ones_like(distances)
    weights: Array = np.exp(-distances / (2 * width**2))
    return weights


def _warn_about_graph(sizes: NDArray[np.int64], eigenvalues: Array) -> tuple[FitWarning, ...]:
    """Warn if the graph was disconnected, or if components do not vary smoothly over it."""
    warnings = []
    if len(sizes) > 1:
        sizes_text = ", ".join(f"{size:,}" for size in sizes[:_MAX_NAMED_PARTS])
        ellipsis = ", …" if len(sizes) > _MAX_NAMED_PARTS else ""
        text = f"the graph has {len(sizes):,} unconnected parts ({sizes_text}{ellipsis} distinct "
        text += "rows), which the shortest links join; codes may show only these parts. Use more "
        warnings.append(FitWarning(text + "neighbours, {k}"))
    n_rough = int((eigenvalues > 1 - _MIN_EIGENVALUE).sum())
    if n_rough:
        text = f"the last {n_rough} components differ as much between neighbours as between any "
        warnings.append(FitWarning(text + "rows; choose fewer {components}"))
    return tuple(warnings)


def _average_codes(params: LaplacianEigenmapParams, nearest: NearestRows) -> Array:
    """Average the codes of neighbours by their weights, and divide by 1 − λ."""
    distances, width = nearest.distances, params.width
    is_found = np.isfinite(distances)
    excess = np.where(is_found, distances - np.where(is_found, distances, 0)[:, :1], np.inf)
    weights = np.where(
        is_found, _heat_weights(excess, None if width is None else float(width)), 0.0
    )
    indices = np.where(is_found, nearest.indices, 0)
    total = np.zeros((len(indices), len(params.eigenvalues)))
    for column, weight in zip(indices.T, weights.T, strict=True):
        total += weight[:, None] * params.embedding[column]
    share = np.maximum(1 - params.eigenvalues, _MIN_EIGENVALUE)
    codes: Array = total / np.maximum(weights.sum(axis=1), 1.0)[:, None] / share
    return codes


def _find_vertices(
    rows: BitRows, vertices: BitRows, nearest: NearestRows
) -> tuple[Indices, Indices]:
    """Return the places of the rows that are vertices, and the vertex of each."""
    if rows.observed is None and vertices.observed is None:
        places = np.flatnonzero(nearest.distances[:, 0] == 0)
        return places, nearest.indices[places, 0]
    # With missing values, rows at distance 0 may still differ.
    return find_equal_rows(rows, vertices)
