"""Kernel PCA: principal components of rows in the space of a Gaussian kernel.

Model: k(x, y) = ⟨φ(x), φ(y)⟩ = exp(−‖x − y‖² / 2 h²); the codes of a row are the principal
components of φ (B. Schölkopf, A. Smola, K.-R. Müller, Neural Computation 10, 1998; M. Sugiyama,
"Introduction to Statistical Machine Learning" (2016), 36.1.1). There is no generative model of
rows. For binary rows ‖x − y‖² is the number of features that differ, counted in packed bits.
The components show structure that is not linear in the features, such as curves and clusters, at
the scale of the width h.

Fit: eigenvectors α of H K H with eigenvalues λ, H = I − 1 1ᵀ / n, scaled by 1 / √λ. Equal rows are
one row weighted by its count, which gives the same components. The fit uses all distinct rows, up
to 20,000, or works in the space spanned by landmarks: rows chosen by k-means++ among 20,000
distinct ones (Nyström; C. Williams, M. Seeger, NIPS 2000). Landmarks take one pass, which sums
products of kernels. Two diagnostics report their loss: the exact share of the kernel matrix's trace
outside their span, and how much of the variance of codes half of the landmarks reproduce.

==========  ===========  ===========================
symbol      field        shape
==========  ===========  ===========================
x_l         landmarks    (n_landmarks, n_bytes), eight features per byte, the first the lowest bit
            observed     the same shape, if values are missing
h           width        ()
α / √λ      directions   (n_landmarks, n_components)
            offsets      (n_components,)
λ           eigenvalues  (n_eigenvalues,)
==========  ===========  ===========================

A code is Σ_l k(x, x_l) directions_l − offsets; squared codes of the fitted rows sum to λ.
Missing values: ‖x − y‖² is the differing share of the features observed in both, times the number
of features. Such a kernel may have negative eigenvalues, which are left out. Rows without any
value are not fitted and have the code 0.
Cost per block with landmarks: n_samples n_landmarks (n_features / 64 words + n_landmarks)
operations. Without: products of the distinct rows' matrix with 50 to 100 vectors. One pass.
Not identifiable: the sign of a column (large entries have a positive sum), and rotations among
columns of equal eigenvalue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning, format_share
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.support import Support
from pipeline.numerics.bits.packed_rows import BitRows, unpack_bytes
from pipeline.numerics.graphs.kernel_components import (
    KernelDecomposition,
    KernelSums,
    choose_landmarks,
    compute_squared_distances,
    decompose_landmarks,
    decompose_rows,
    half_agreement,
    multiply_kernel,
    sum_kernel,
)
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import DistinctRows, make_unobserved_row_warnings
from pipeline.statistics.sums import Sums

Bytes = NDArray[np.uint8]

MAX_ROWS = 20_000
"""Maximum number of distinct rows in an exact fit, and to choose landmarks from."""
MAX_LANDMARKS = 5000
N_EIGENVALUES = 10
"""Minimum number of stored eigenvalues, if there are as many."""
_WIDTH_ROWS = 1000  # rows whose distances choose the width
_MIN_AGREEMENT = 0.9
_MAX_UNRELATED = 0.01  # share of pairs of rows without a common feature
_MINUTES_OF_MAX_FIT = 0.25  # exact fit of MAX_ROWS rows with 256 features


class LandmarkSums(Sums):
    """Counts of features, and sums of kernels with the landmarks, if any."""

    label: ClassVar[str] = "kernel sums"


@dataclass(frozen=True)
class KernelPCAParams:
    """Parameters; the module's table gives shapes."""

    landmarks: Bytes = array_field("landmark", "byte")
    width: Array = array_field(allowed=NumberRange(above=0))
    directions: Array = array_field("landmark", "component")
    offsets: Array = array_field("component")
    eigenvalues: Array = array_field("eigenvalue")
    observed: Bytes | None = optional_array_field("landmark", "byte")

    def landmark_rows(self, n_features: int) -> BitRows:
        """Return the landmarks in the form that kernels take."""
        return unpack_bytes(n_features, self.landmarks, self.observed)


@dataclass(frozen=True)
class KernelPCA(Model):
    """Hyperparameters of kernel PCA.

    Attributes
    ----------
    n_components
        Number of components; None takes 2.
    width
        h, in units of the distance of rows: the square root of the number of features that differ.
        None takes the median distance of distinct rows, of 1,000 drawn at random if there are more.
    landmarks
        Number of rows that span the components; None takes all distinct rows, up to 20,000. Memory
        grows with the square of this number; 1,000 is a good start.
    """

    name: ClassVar[str] = "kernel-pca"
    indeterminacy: ClassVar[str] = (
        "the signs of components, and rotations among those of equal eigenvalue"
    )
    support: ClassVar[Support] = Support(("binary", "ordinal"), splits_levels=True)
    unlinked_effect: ClassVar[str] = "the codes may show only which part a row belongs to"
    first_statistics: ClassVar[type[DistinctRows]] = DistinctRows
    statistics: ClassVar[type[LandmarkSums]] = LandmarkSums
    params: ClassVar[type[KernelPCAParams]] = KernelPCAParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("directions", "offsets")
    summary_diagnostics: ClassVar[tuple[str, ...]] = (
        *("width", "distinct_rows", "landmarks"),
        *("explained", "kernel_lost", "half_agrees"),
    )
    n_components: int | None = 2
    width: float | None = setting(None, above=0)
    landmarks: int | None = setting(None, minimum=2, maximum=MAX_LANDMARKS)
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of distinct rows, the landmarks' matrices, and the Lanczos vectors."""
        n_words = -(-n_features // 64)
        rows = 16 * MAX_ROWS * (n_words + 2)
        matrices = 8 * (self.landmarks or 0) ** 2
        vectors = 8 * MAX_ROWS * (3 * max(N_EIGENVALUES, self.n_components or 2) + 20)
        return (n_threads + 2) * (3 * rows + 4 * matrices) + vectors

    def estimate_work(
        self, params: KernelPCAParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the kernels with all landmarks, and of their products."""
        n_landmarks = len(params.landmarks)
        return WorkEstimate(8 * n_landmarks + 0.025 * n_landmarks**2, 8 * n_landmarks**2)

    def summarize_first(self, block: BinaryBlock, rng: RowRandom) -> DistinctRows:
        """Find the distinct rows."""
        return DistinctRows.from_block(block, MAX_ROWS, rng)

    def first_key(self, seed: int) -> str:
        """Return a key of the sample of distinct rows."""
        return f"{MAX_ROWS} distinct rows by seed {seed}"

    def initialize(self, first: DistinctRows, rng: np.random.Generator) -> FitState:
        """Choose the width and the landmarks; refuse too many or too few distinct rows."""
        if self.landmarks is None:
            _check_distinct_rows(first)
        rows, times = first.rows_with_values
        median_distance, unrelated = _measure_distances(rows)
        width = median_distance if self.width is None else self.width
        if self.landmarks is not None:
            places = choose_landmarks(rows, times, width, self.landmarks, rng)
            rows, times = rows.take(places), times[places]
        q = self.n_components or 2
        if q >= rows.n_rows:
            raise FitError(
                f"{{components}} is {q:,}, but there are only {rows.n_rows:,} "
                f"{'landmarks' if self.landmarks else 'distinct rows'}. Choose fewer than that.",
                parameter="components",
            )
        values, mask = rows.pack_bytes()
        empty = np.zeros(0)
        params = KernelPCAParams(
            values, np.array(width), np.zeros((rows.n_rows, 0)), empty, empty, mask
        )
        warnings = make_unobserved_row_warnings(first) + _warn_about_unrelated_rows(unrelated)
        return FitState(params, auxiliary={"times": times}, warnings=warnings)

    def counts_key(self, n_features: int) -> str | None:
        """Return a key of the counts, the only sums of an exact fit; None with landmarks."""
        return "feature counts" if self.landmarks is None else None

    def summarize(
        self, params: KernelPCAParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> LandmarkSums:
        """Count ones, and sum kernels with the landmarks and their products."""
        counts = FeatureCounts.from_block(block)
        values: dict[str, NDArray[Any]] = {"observed": counts.observed, "ones": counts.ones}
        if self.landmarks is not None:
            rows = block.to_packed_rows()
            observed_rows = rows.take(np.flatnonzero(rows.has_values))
            kernel_sums = sum_kernel(
                observed_rows, params.landmark_rows(block.n_features), float(params.width)
            )
            values |= {name: np.asarray(array) for name, array in kernel_sums._asdict().items()}
        return LandmarkSums.from_block(block, 0.0, values)

    def update(
        self,
        state: FitState,
        statistics: LandmarkSums,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Find the components; refuse more than the rows span."""
        observed, ones = _feature_margins(statistics)
        rows, q = state.params.landmark_rows(len(ones)), self.n_components or 2
        decomposition, diagnostics, warnings = self._find_components(
            state, rows, statistics, map_items
        )
        components, values = decomposition.components, decomposition.components.eigenvalues
        if len(values) < q:
            raise FitError(
                f"{{components}} is {q}, but the rows span only {len(values)} dimensions. "
                "Choose at most that many.",
                parameter="components",
            )
        params = replace(
            state.params,
            directions=components.directions[:, :q],
            offsets=components.offsets[:q],
            eigenvalues=values,
        )
        diagnostics["width"] = float(params.width)
        diagnostics["explained"] = float(values[:q].sum() / decomposition.total)
        warnings = make_constant_feature_warnings(observed, ones, "they move no code") + warnings
        return replace(
            state,
            params=params,
            diagnostics={"n_components": q, **diagnostics},
            warnings=state.warnings + warnings,
        )

    def _find_components(
        self, state: FitState, rows: BitRows, statistics: LandmarkSums, map_items: MapFunction
    ) -> tuple[KernelDecomposition, dict[str, float], tuple[FitWarning, ...]]:
        q, width = self.n_components or 2, float(state.params.width)
        n_leading = min(max(q, N_EIGENVALUES), rows.n_rows - 1)
        if self.landmarks is None:
            times = state.auxiliary["times"]
            decomposition = decompose_rows(rows, times, width, n_leading, map_items)
            return decomposition, {"distinct_rows": rows.n_rows}, ()
        sums = statistics.values
        summed = KernelSums(int(sums["n_rows"]), sums["sums"], sums["products"])
        decomposition = decompose_landmarks(rows, width, summed, n_leading)
        agreement = half_agreement(decomposition.components, rows, width, summed, q)
        losses = {"kernel_lost": decomposition.lost_share, "half_agrees": agreement}
        return (
            decomposition,
            {"landmarks": rows.n_rows, **losses},
            _warn_about_landmarks(rows.n_rows, agreement),
        )

    def transform(
        self, params: KernelPCAParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute `mean`, (n_samples, n_components); rows without any value have the code 0."""
        rows, landmarks = block.to_packed_rows(), params.landmark_rows(block.n_features)
        codes = multiply_kernel(rows, landmarks, float(params.width), params.directions)
        return {"mean": np.where(rows.has_values[:, None], codes - params.offsets, 0.0)}


def _check_distinct_rows(first: DistinctRows) -> None:
    """Refuse more distinct rows than an exact fit can take, with an estimate of its cost."""
    if first.is_whole:
        return
    minutes = _MINUTES_OF_MAX_FIT * (first.n_distinct / MAX_ROWS) ** 2
    raise FitError(
        f"There are about {first.n_distinct:,} distinct rows, but an exact fit takes at most "
        f"{MAX_ROWS:,}; this one would take some {minutes:,.0f} minutes. "
        "Use {landmarks=1000}, which takes one pass, or a {split} with fewer rows.",
        parameter="landmarks",
    )


def _measure_distances(rows: BitRows) -> tuple[float, float]:
    """Return the median distance of distinct rows, and the share of pairs without a common feature.

    The rows are in random order.
    """
    sample = rows.take(slice(_WIDTH_ROWS))
    squared = compute_squared_distances(sample, sample)[np.triu_indices(sample.n_rows, 1)]
    positive = squared[(squared > 0) & (squared < np.inf)]
    if not len(positive):
        raise FitError(
            "No two rows differ in features observed in both, so there is nothing to fit. "
            "Fit other rows."
        )
    return float(np.sqrt(np.median(positive))), float(np.isinf(squared).mean())


def _warn_about_unrelated_rows(share: float) -> tuple[FitWarning, ...]:
    """Warn if many pairs of rows have no feature observed in both."""
    if share <= _MAX_UNRELATED:
        return ()
    text = f"{format_share(share)} of the pairs of rows have no feature observed in both, and a "
    return (FitWarning(text + "kernel of 0, so the codes may show which features a row has"),)


def _feature_margins(statistics: LandmarkSums) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sums, n = statistics.values, np.array([statistics.n_rows])
    return pool_margins(FeatureCounts(np.zeros(1, np.int64), n, sums["observed"], sums["ones"]))


def _warn_about_landmarks(n_landmarks: int, agreement: float) -> tuple[FitWarning, ...]:
    """Warn if half of the landmarks give other codes: more landmarks may then do so, too."""
    if agreement >= _MIN_AGREEMENT:
        return ()
    n_doubled = min(2 * n_landmarks, MAX_LANDMARKS)
    advice = f", {{landmarks={n_doubled}}}" if n_doubled > n_landmarks else ""
    return (
        FitWarning(
            f"codes may change with more landmarks{advice}: the codes of half of the landmarks "
            f"share only {agreement:.0%} of their variance with the codes of all"
        ),
    )
