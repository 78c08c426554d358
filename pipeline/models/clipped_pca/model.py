"""Clipped PCA: principal components of the Gaussians behind clipped (binary) variables.

Model: x = W y + ε, y ~ N(0, I), s_i = 1 iff x_i > t_i; every x_i has variance 1 (D. D. Lee,
H. Sompolinsky, "Learning a continuous hidden variable model for binary data", NIPS 1998 (1999);
there without ε, with t = 0 and s = ±1).

Fit: turn the correlation of each pair of s into the correlation C of the pair of x. The leading
eigenvectors of C, each scaled by the square root of its eigenvalue, are the columns of W. There are
two estimators of C: `tetrachoric`, the pairwise maximum likelihood with thresholds from the
margins; and `arcsine` of the paper, C = sin(π C_ss / 2), exact if all thresholds are zero. All
segments are pooled.

=========  ==============  ================================
symbol     field           shape
=========  ==============  ================================
W          loadings        (n_features, n_components)
t          thresholds      (n_planes,)
C          correlation     (n_features, n_features)
λ          eigenvalues     (n_eigenvalues,)
=========  ==============  ================================

An ordinal feature with k levels has k − 1 thresholds, one per plane: s_i ≥ c iff x_i > t_ic. The
correlations are then polychoric; see `ordinal`. A continuous feature shows x_i itself, up to mean
and scale; see `mixed`.

Wide data, of more than 2,000 features or 8,000 planes (2,000 with the continuous features, if there
are any): correlations are computed in strips of
features, and their spectrum by products with the strips. No task and no central step holds a square
of all features.
Correlations are stored as float32: this rounds them by at most 3e-8, far below their sampling
errors, and changes leading eigenvalues by less than a relative 1e-8.

A fitted model uses ψ_i = max(1 − ‖w_i‖², 0.001) and shortens a row of W that is longer than that.
Cost per block: n_features² / 2 · n_samples / 64 word operations, times the number of bits of the
largest weight. One pass.
Weights of rows: every count is weighted. With sampling weights, correlations and thresholds
estimate those of the population. There are neither standard errors nor a choice of the number of
components: both would take the rows for independent draws from the population.
Missing values: margins and pairs are counted where they are observed, which is right if values are
missing completely at random. If other items decide which values are missing, thresholds and
correlations are biased; use the latent-trait model by quadrature instead.
Not identifiable: the sign of a column (large entries have a positive sum), and rotations among
columns of equal eigenvalue.
Accuracy: principal components attribute some of the noise to the loadings, so with few features
communalities are too high. A fit to rows of the model finds the components of W Wᵀ + ψ, not W: with
10 features of communalities 0.6 to 0.7, loadings are 0.01 to 0.05 too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, PackedChunk, Tile, unpack_levels
from pipeline.data.features import MAX_LEVELS, are_binary, find_continuous
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.clipped_pca.standard_errors import MAX_PLANES, add_standard_errors
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure, add_structure
from pipeline.models.support import Support
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.predictive import compute_predictive_probabilities
from pipeline.numerics.probit.interval_sites import interval_codes
from pipeline.numerics.probit.wide_rows import probit_codes
from pipeline.numerics.spectra.lanczos import (
    LeadingSpectrum,
    Product,
    compute_leading_spectrum,
    max_basis_columns,
    max_leading_pairs,
)
from pipeline.numerics.spectra.linalg import (
    leading_eigenpairs,
    min_shrinkage,
    nearest_correlation,
    negative_share,
    shrink_eigenvalues,
)
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.feature_strips import CELL_BYTES, MIN_STRIP_HEIGHT, estimate_strip_memory
from pipeline.passes.row_ranges import RangeResults, ReadRange
from pipeline.random import RowRandom
from pipeline.statistics.correlations import (
    CorrelationEstimator,
    PairStatusCounts,
    count_pair_statuses,
    draw_null_spectra,
    estimate_arcsine,
    estimate_correlations,
    estimate_tetrachoric,
    find_null_thresholds,
    mirror_upper_triangle,
)
from pipeline.statistics.counts import (
    POOLED_KEY,
    STRIP_COUNTS,
    FeatureCounts,
    PairCounts,
    StripCounts,
    count_strip,
    make_strip_table,
    make_tiles,
    pool_margins,
)
from pipeline.statistics.nested_features import warn_about_nested_features
from pipeline.statistics.null_spectrum import estimate_null_quantiles

Array = NDArray[np.float64]

_ORDINAL_CLASS = "pipeline.models.clipped_pca.ordinal:OrdinalClippedPCA"  # it imports this file
_MIXED_CLASS = "pipeline.models.clipped_pca.mixed:MixedClippedPCA"
MIN_NOISE = 1e-3
"""Smallest ψ. Below it, one feature would determine a combination of the components exactly."""
MAX_SQUARE_FEATURES = 2000
"""Maximum number of features of one square matrix; wider data use strips.

If some features are continuous, it limits continuous features and planes together.
"""
_MAX_PARTS = 32
_ROWS_AT_ONCE = 64  # of a strip, so that arrays of float64 stay small
N_LEADING = 64
_MAX_NEGATIVE_SHARE = 0.02
_MAX_NULL_RATIO = 2.0
_PAIR_STATUS_TEXTS = {
    PairStatus.EMPTY_CELL: "with an empty cell",
    PairStatus.CONSTANT_FEATURE: "that do not vary where both are observed, taken as uncorrelated",
    PairStatus.NO_OBSERVATIONS: "never observed together, taken as uncorrelated",
}

FitWarnings = tuple[FitWarning, ...]


@dataclass(frozen=True)
class ClippedPCAParams:
    """Parameters; the module's table gives shapes.

    `status` is the `PairStatus` of every pair. `null_eigenvalues` are the 95 % quantiles of the
    null spectra, empty unless they chose `n_components`. Standard errors are NaN where the data do
    not determine them. `n_levels` is None if all features are binary, and 1 of a continuous
    feature. `means` and `scales` are the mean and standard deviation of each continuous feature,
    and 0 and 1 of the x of all others; None if no feature is continuous.
    """

    loadings: Array = array_field("feature", "component")
    eigenvalues: Array = array_field("eigenvalue")
    thresholds: Array = array_field("plane")
    null_eigenvalues: Array = array_field("null_eigenvalue")
    correlation: Array | None = optional_array_field("feature", "feature_j")
    status: NDArray[np.uint8] | None = optional_array_field("feature", "feature_j")
    loadings_error: Array | None = optional_array_field("feature", "component")
    thresholds_error: Array | None = optional_array_field("plane")
    correlation_error: Array | None = optional_array_field("feature", "feature_j")
    n_levels: NDArray[np.int64] | None = optional_array_field(
        "feature", allowed=NumberRange(minimum=1, maximum=MAX_LEVELS)
    )
    means: Array | None = optional_array_field("feature")
    scales: Array | None = optional_array_field("feature", allowed=NumberRange(above=0))

    def repeat_for_planes(self, values: Array) -> Array:
        """Repeat values of features, (..., n_features), for each of their planes."""
        return values if self.n_levels is None else np.repeat(values, self.n_levels - 1, axis=-1)


@dataclass(frozen=True)
class ClippedPCA(Model):
    """Hyperparameters of clipped PCA.

    Attributes
    ----------
    n_components
        Number of components; None chooses it by parallel analysis.
    estimator
        `tetrachoric` or `arcsine`.
    empty_cells
        How the tetrachoric estimator treats a table with an empty cell: `half` adds ½ to all its
        cells, `none` uses the boundary estimate ±(1 − 1e-6). If ones are rare, `none` makes the
        correlations indefinite, and the parallel analysis then finds spurious components.
    constant_features
        `refuse` them, or `keep` them with loadings of zero.
    repair
        Treatment of indefinite correlations before the eigenvectors are computed: `nearest` uses
        the nearest correlation matrix, `shrink` uses (1 − τ) C + τ I with the least sufficient τ.
    errors
        `model` computes standard errors under the fitted Gaussians, for unrepaired correlations
        of up to 1,000 planes that are not arcsine estimates, unless rows have sampling weights;
        `none` omits them.
    null_draws
        Number of null spectra for the parallel analysis, at least 20.
    """

    name: ClassVar[str] = "clipped-pca"
    support: ClassVar[Support] = Support(
        ("binary", "ordinal", "continuous"), ("frequency", "sampling")
    )
    unlinked_effect: ClassVar[str] = (
        "correlations between them are taken as 0, and each component may belong to one part"
    )
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[PairCounts]] = PairCounts
    pair_counts: ClassVar[tuple[str, ...]] = STRIP_COUNTS
    cell_bytes: ClassVar[int] = CELL_BYTES
    params: ClassVar[type[ClippedPCAParams]] = ClippedPCAParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("loadings",)
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
        "converged": (),
    }
    n_components: int | None = None
    estimator: Literal["tetrachoric", "arcsine"] = "tetrachoric"
    empty_cells: Literal["half", "none"] = "half"
    constant_features: Literal["refuse", "keep"] = "refuse"
    repair: Literal["none", "nearest", "shrink"] = "none"
    errors: Literal["model", "none"] = "model"
    null_draws: int = setting(20, minimum=20)
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def with_structure(self, structure: Structure) -> Any:
        """Return the model of ordinal or mixed features, or this model if all are binary."""
        plain = super().with_structure(structure)
        if are_binary(structure.features):
            return plain
        kind = resolve_name(_MIXED_CLASS if find_continuous(structure.features) else _ORDINAL_CLASS)
        if self.estimator == "arcsine":
            raise FitError(
                "{estimator=arcsine} takes binary features only. Leave it out, or cut the features "
                "in two by {cut=NAME>=VALUE}.",
                parameter="estimator",
            )
        return add_structure(kind, plain, structure)

    @property
    def first_planes(self) -> NDArray[np.int64] | None:
        """First plane of each feature, and the number of planes; None if all are binary."""
        return None

    def make_tiles(self, n_features: int, n_segments: int, budget: int) -> Sequence[Tile | None]:
        """Split the pairs of features so that a task's counts stay within a budget."""
        return make_tiles(n_features, 1, budget)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of 18 square matrices in the central step and 7 per null draw.

        For wide data, return the bytes of the basis, its products, and the smallest strips of all
        threads.
        """
        if self.has_pair_tables(n_features):
            columns, n_leading = self.count_columns(n_features), self.n_components or N_LEADING
            n_vectors = 2 * max_basis_columns(len(columns), n_leading) + 8 * n_leading
            strip = estimate_strip_memory(MIN_STRIP_HEIGHT, int(columns.sum()), self.cell_bytes)
            return 8 * len(columns) * n_vectors + n_threads * strip
        return 8 * n_features**2 * (18 + 7 * n_threads)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the margins and fix the thresholds; refuse constant features unless kept."""
        observed, ones = pool_margins(first)
        params = self._make_first_params(_compute_thresholds(observed, ones))
        self._check_size(len(params.loadings))
        if first.has_sampling_weights and self.n_components is None:
            raise FitError(
                "The number of components cannot be chosen with sampling weights. "
                "Set {components}.",
                parameter="components",
            )
        constant = self._find_constant_features(first, (ones == 0) | (ones == observed))
        return FitState(
            params,
            working={
                "total": np.array(first.total),
                "weight_unit": np.array(first.weight_unit),
                "observed": first.observed.sum(axis=0),  # in units, as `ones`
                "ones": first.ones.sum(axis=0),
            },
            auxiliary={
                "has_sampling_weights": np.array(first.has_sampling_weights),
                "null_seeds": rng.integers(2**63, size=self.null_draws),
                "constant": constant,
            },
            warnings=self._warn_about_constants(constant)
            + warn_about_margins(self.estimator, ones / observed),
        )

    def _check_size(self, n_features: int) -> None:
        """Refuse too many components, and settings that wide data do not allow."""
        is_wide = self.has_pair_tables(n_features)
        limit = max_leading_pairs(n_features) if is_wide else n_features
        if self.n_components is not None and self.n_components > limit:
            reason = "about an eighth of the features" if is_wide else "the number of features"
            raise FitError(
                f"{{components}} is {self.n_components}, but the limit is {limit}, {reason}.",
                parameter="components",
            )
        if is_wide and self.repair == "nearest":
            limit_text, size_text = self._describe_size(n_features)
            raise FitError(
                f"{{repair=nearest}} takes at most {limit_text}, because it computes all "
                f"eigenvectors many times, but there are {size_text}. Use {{repair=shrink}}.",
                parameter="repair",
            )

    def _describe_size(self, n_features: int) -> tuple[str, str]:
        """Return the largest size of data that are not wide, and the size of these data."""
        return f"{MAX_SQUARE_FEATURES} features", str(n_features)

    def _make_first_params(self, thresholds: Array) -> ClippedPCAParams:
        if self.estimator == "arcsine":
            thresholds = np.zeros_like(thresholds)
        none = np.zeros(0)
        return ClippedPCAParams(np.zeros((len(thresholds), 0)), none, thresholds, none)

    def _find_constant_features(
        self, first: FeatureCounts, is_constant: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Return the constant features, given whether each plane is constant."""
        return np.flatnonzero(is_constant)

    def _name_features(self, features: NDArray[np.intp]) -> tuple[int, ...] | tuple[str, ...]:
        """Return features for messages: indices, or names if an index stands for a plane."""
        return tuple(features.tolist())

    def _warn_about_constants(self, constant: NDArray[np.intp]) -> tuple[FitWarning, ...]:
        if not constant.size:
            return ()
        features = self._name_features(constant)
        if self.constant_features == "refuse":
            raise FitError(
                f"These features are constant: {{features}}. {LEAVE_OUT}, "
                "or keep them with loadings of zero by {constant_features=keep}.",
                features=features,
            )
        return (FitWarning("constant features, kept with loadings of zero: {features}", features),)

    def summarize(
        self, params: ClippedPCAParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> PairCounts:
        """Count the pairs of a block, with all segments pooled."""
        return PairCounts.from_block(block, pooled=True)

    def add_to(
        self,
        statistics: PairCounts,
        params: ClippedPCAParams,
        working: Arrays,
        block: BinaryBlock,
        rng: RowRandom,
    ) -> PairCounts:
        """Add the pairs of a block in place."""
        return statistics.add_block(block, pooled=True)

    def counts_key(self, n_features: int) -> str:
        """Return a key of the pair counts with all segments pooled."""
        return POOLED_KEY

    def update(
        self,
        state: FitState,
        statistics: PairCounts,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Compute the correlations, their spectrum, and the loadings."""
        (correlation,), (status,) = estimate_correlations(
            statistics, self._estimator_function, map_items, self.first_planes
        )
        null_quantiles = self._null_quantiles(statistics, state.auxiliary["null_seeds"], map_items)
        fitted = self._fit_correlation(state, correlation, status, null_quantiles)
        fitted = fitted.with_warnings(warn_about_nested_features(statistics, self.first_planes))
        if self._has_errors(state):
            return add_standard_errors(fitted, statistics, self.empty_cells, rng)
        return fitted

    def _has_errors(self, state: FitState) -> bool:
        """Return whether the fit gets standard errors, given its settings, planes and weights."""
        return self._needs_errors(state) and not state.auxiliary["has_sampling_weights"]

    def _needs_errors(self, state: FitState) -> bool:
        is_plain = self.estimator == "tetrachoric" and self.repair == "none"
        return self.errors != "none" and is_plain and len(state.params.thresholds) <= MAX_PLANES

    def _fit_correlation(
        self, state: FitState, correlation: Array, status: NDArray[np.uint8], null_quantiles: Array
    ) -> FitState:
        """Repair the correlations, and compute their spectrum and the loadings."""
        repaired, shrinkage, repair_distance = self._repair(correlation)
        varying, constant = repaired.copy(), state.auxiliary["constant"]
        varying[constant, constant] = 0.0  # with 1, the feature could appear as a component
        values, vectors = leading_eigenpairs(varying, self.n_components or N_LEADING)
        params = replace(
            state.params,
            eigenvalues=values,
            correlation=repaired,
            status=status,
            null_eigenvalues=shrink_eigenvalues(null_quantiles, shrinkage),
        )
        pair_statuses = count_pair_statuses(status, constant, len(status))
        negative = negative_share(repaired, values)
        fitted = self._make_loadings(
            replace(state, params=params), vectors, pair_statuses, negative
        )
        diagnostics = {
            **fitted.diagnostics,
            "repair_distance": repair_distance,
            "shrinkage": shrinkage,
        }
        fitted = replace(fitted, diagnostics=diagnostics)
        if self._needs_errors(state) and state.auxiliary["has_sampling_weights"]:
            return fitted.with_warning("there are no standard errors for sampling weights")
        return fitted

    def _repair(self, correlation: Array) -> tuple[Array, float, float]:
        """Return the repaired correlations, their shrinkage τ, and the distance of the repair."""
        if self.repair == "nearest":
            nearest, distance = nearest_correlation(correlation)
            return nearest, 0.0, distance
        if self.repair == "none":
            return correlation, 0.0, 0.0
        shrinkage = min_shrinkage(
            float(scipy.linalg.eigvalsh(correlation, subset_by_index=[0, 0])[0])
        )
        repaired = (1 - shrinkage) * correlation
        np.fill_diagonal(repaired, 1.0)
        return repaired, shrinkage, float(np.linalg.norm(repaired - correlation))

    def _make_loadings(
        self, state: FitState, vectors: Array, pair_statuses: PairStatusCounts, negative: float
    ) -> FitState:
        """Choose the components and compute loadings from the leading eigenpairs, with warnings."""
        params, constant = state.params, state.auxiliary["constant"]
        values = params.eigenvalues
        n_components = self.n_components or _count_above_null(values, params.null_eigenvalues)
        loadings = vectors[:, :n_components] * np.sqrt(np.maximum(values[:n_components], 0.0))
        loadings[constant] = 0.0
        params = replace(params, loadings=loadings)
        warnings = warn_about_spectrum(params, n_components, is_chosen=self.n_components is None)
        warnings += warn_about_indefinite(
            negative, self._suggest_repair(len(loadings))
        ) + warn_about_pairs(pair_statuses)
        warnings += warn_about_noise(communalities(params))
        return replace(
            state,
            params=params,
            diagnostics={**pair_statuses.count_by_status(), "n_components": n_components},
            warnings=state.warnings + warnings,
        )

    def _suggest_repair(self, n_features: int) -> str:
        if self.empty_cells == "none":
            return "consider {empty_cells=half}"
        repair = "shrink" if self.has_pair_tables(n_features) else "nearest"
        return f"consider {{repair={repair}}}"

    def count_columns(self, n_planes: int) -> NDArray[np.int64]:
        """Return the number of planes of each feature, (n_features,)."""
        return np.ones(n_planes, np.int64)

    def has_pair_tables(self, n_features: int) -> bool:
        """Return whether data are so wide that pairs are counted in strips."""
        return n_features > MAX_SQUARE_FEATURES

    def tabulate(
        self,
        params: ClippedPCAParams,
        working: Arrays,
        features: slice,
        chunks: Iterable[PackedChunk],
        counts: Arrays | None,
    ) -> Mapping[str, NDArray[Any]]:
        """Count and estimate the pairs of a strip of features."""
        correlation, status, sums = estimate_strip(
            self._estimator_function, self.first_planes, working, features, chunks, counts
        )
        stored = {name: sums[name] for name in self.pair_counts if name in sums}
        return {"correlation": correlation, "status": status, **stored}

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Compute the spectrum of the strips by products, and the loadings."""
        constant, n_features = state.auxiliary["constant"], len(state.params.loadings)
        n_leading = self.n_components or min(N_LEADING, max_leading_pairs(n_features))
        spectrum = find_strip_spectrum(results, constant, n_features, n_leading, map_items)
        shrinkage = 0.0
        if self.repair == "shrink":
            shrinkage = min_shrinkage(
                find_lowest_eigenvalue(results, constant, n_features, map_items)
            )
        null_quantiles = np.zeros(0)
        if self.n_components is None:
            null_quantiles = self._estimate_null_quantiles(state, n_leading, map_items, rng)
        values = shrink_eigenvalues(spectrum.values, shrinkage)
        params = replace(
            state.params,
            eigenvalues=values,
            null_eigenvalues=shrink_eigenvalues(null_quantiles, shrinkage),
        )
        pair_statuses = count_all_pair_statuses(results, constant, n_features, map_items)
        negative = 0.0 if shrinkage else -spectrum.negative / n_features
        fitted = self._make_loadings(
            replace(state, params=params), spectrum.vectors, pair_statuses, negative
        )
        residual = float(spectrum.residuals.max())
        diagnostics = {
            **fitted.diagnostics,
            "eigenvalue_residual": residual,
            "shrinkage": shrinkage,
        }
        return replace(fitted, diagnostics=diagnostics, history=(0.0,), iteration=1, done=True)

    @property
    def _estimator_function(self) -> CorrelationEstimator:
        if self.estimator == "arcsine":
            return estimate_arcsine
        return partial(estimate_tetrachoric, self.empty_cells)

    def _estimate_null_quantiles(
        self, state: FitState, n_leading: int, map_items: MapFunction, rng: np.random.Generator
    ) -> Array:
        """Compute the 95 % quantile of each leading eigenvalue from the margins alone."""
        total, observed, ones = (state.working[name] for name in ("total", "observed", "ones"))
        return estimate_null_quantiles(
            int(total), observed, ones, self._estimator_function, n_leading, rng
        )

    def _null_quantiles(self, counts: PairCounts, seeds: Any, map_items: MapFunction) -> Array:
        """Compute the 95 % quantile of each leading eigenvalue for independent features."""
        if self.n_components is not None:
            return np.zeros(0)
        spectra = draw_null_spectra(
            counts, 0, self._estimator_function, seeds, N_LEADING, map_items, self.first_planes
        )
        return find_null_thresholds(spectra)

    def transform(
        self, params: ClippedPCAParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute the posterior mean and variance of y, (n_samples, n_components) each.

        `converged` (n_samples,) is false if expectation propagation did not converge.
        """
        weights, offsets = probit_weights(params)
        if params.n_levels is not None:
            is_continuous = params.n_levels == 1
            n_levels, own = params.n_levels[~is_continuous], weights[~is_continuous]
            levels, observed = unpack_levels(block, n_levels - 1)
            if params.means is None or params.scales is None:
                return interval_codes(levels, own, offsets, n_levels, observed)
            assert block.numbers is not None
            values = (block.numbers.T - params.means[is_continuous]) / params.scales[is_continuous]
            values = values / np.sqrt(find_noise(params)[is_continuous])
            weights = np.concatenate([own, weights[is_continuous]])
            return interval_codes(levels, weights, offsets, n_levels, observed, values)
        n_components = weights.shape[1]
        return probit_codes(
            block.unpack_values(),
            weights,
            offsets,
            np.zeros(n_components),
            np.ones(n_components),
            block.unpack_mask(),
        )

    def sample(
        self,
        params: ClippedPCAParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint8]:
        """Draw rows, (n_samples, n_planes); segments do not matter."""
        return self.sample_numbers(params, n_samples, rng)[0]

    def sample_numbers(
        self,
        params: ClippedPCAParams,
        n_samples: int,
        rng: np.random.Generator,
        segments: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.uint8], Array]:
        """Draw rows with values of continuous features; segments do not matter."""
        weights, offsets = probit_weights(params)
        codes = rng.standard_normal((n_samples, weights.shape[1]))
        noise = rng.standard_normal((n_samples, len(weights)))
        means, own_noise = (params.repeat_for_planes(a) for a in (codes @ weights.T, noise))
        bits = (means + offsets + own_noise > 0).astype(np.uint8)
        return bits, _find_numbers(params, codes @ weights.T + noise)

    def reconstruct(
        self, params: ClippedPCAParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return P(s = 1 | y) of each plane, (n_samples, n_planes); segments do not matter."""
        weights, offsets = probit_weights(params)
        means = params.repeat_for_planes(codes @ weights.T)
        probabilities: Array = scipy.special.ndtr(means + offsets)
        return probabilities

    def reconstruct_numbers(
        self, params: ClippedPCAParams, codes: Array, segments: NDArray[np.int64] | None = None
    ) -> Array:
        """Return the expected values of continuous features; segments do not matter."""
        weights, _ = probit_weights(params)
        return _find_numbers(params, codes @ weights.T)

    def number_probabilities(
        self,
        params: ClippedPCAParams,
        codes: Mapping[str, Array],
        numbers: Array,
        segments: NDArray[np.int64] | None = None,
    ) -> Array:
        """Return P(x ≤ number) of continuous features, given the codes as if independent."""
        residuals = numbers - self.reconstruct_numbers(params, codes["mean"])
        weights, _ = probit_weights(params)
        assert params.n_levels is not None
        assert params.scales is not None
        own = params.n_levels == 1
        noise = params.scales[own] * np.sqrt(find_noise(params)[own])
        slopes = noise[:, None] * weights[own]
        return compute_predictive_probabilities(residuals, slopes, noise, codes["variance"])


def _find_numbers(params: ClippedPCAParams, scaled: Array) -> Array:
    """Return values of continuous features, given x / √ψ of all, (n_samples, n_features)."""
    if params.n_levels is None or params.means is None or params.scales is None:
        return np.zeros((len(scaled), 0))
    own = params.n_levels == 1
    standard = scaled[:, own] * np.sqrt(find_noise(params)[own])
    numbers: Array = params.means[own] + params.scales[own] * standard
    return numbers


def _compute_thresholds(observed: NDArray[np.int64], ones: NDArray[np.int64]) -> Array:
    """Return t = −Φ⁻¹(p); a count of 0 is replaced by ½, so that t is finite."""
    thresholds: Array = -scipy.special.ndtri(np.clip(ones, 0.5, observed - 0.5) / observed)
    return thresholds


def _count_above_null(values: Array, null: Array) -> int:
    above = values[: len(null)] > null[: len(values)]
    return len(above) if above.all() else int(np.argmin(above))


def communalities(params: ClippedPCAParams) -> Array:
    """Return the share of each feature's variance explained by the components, (n_features,)."""
    communalities: Array = (params.loadings**2).sum(axis=1)
    return communalities


def find_noise(params: ClippedPCAParams) -> Array:
    """Return ψ, the variance of each feature that the components do not explain, (n_features,)."""
    return np.maximum(1 - communalities(params), MIN_NOISE)


def probit_weights(params: ClippedPCAParams) -> tuple[Array, Array]:
    """Return weights and offsets of P(s_i = 1 | y) = Φ(w_i·y + b_i), with the noise divided out.

    Weights have a row per feature, offsets an entry per plane.
    """
    communality = communalities(params)
    shrink = np.sqrt(np.minimum(1.0, (1 - MIN_NOISE) / np.maximum(communality, MIN_NOISE)))
    noise = np.sqrt(find_noise(params))
    weights = params.loadings * (shrink / noise)[:, None]
    return weights, -params.thresholds / params.repeat_for_planes(noise)


def warn_about_margins(estimator: str, shares: Array) -> FitWarnings:
    """Warn about features for which the arcsine estimator is biased, given their shares of ones."""
    uneven = np.flatnonzero(np.abs(shares - 0.5) > 0.1)
    if estimator == "tetrachoric" or not uneven.size:
        return ()
    text = "arcsine assumes that half of the values are ones; biased for: {features}"
    return (FitWarning(text, tuple(uneven.tolist())),)


def warn_about_spectrum(
    params: ClippedPCAParams, n_components: int, *, is_chosen: bool
) -> FitWarnings:
    """Warn about a doubtful number of components."""
    texts, null_eigenvalues = [], params.null_eigenvalues
    if n_components == 0:
        texts.append("no eigenvalue stands out from those of independent features")
    if len(null_eigenvalues) > 1 and null_eigenvalues[0] > _MAX_NULL_RATIO * null_eigenvalues[1]:
        text = f"empty cells alone give an eigenvalue of {null_eigenvalues[0]:.4g}; "
        texts.append(text + "leave out rare features, or set {components}")
    if is_chosen and 0 < n_components == len(null_eigenvalues):
        texts.append(f"{n_components} or more components stand out; set {{components}}")
    if (params.eigenvalues[:n_components] < 0).any():
        texts.append("some components have a negative eigenvalue: loadings of zero")
    return tuple(map(FitWarning, texts))


def warn_about_indefinite(negative: float, remedy: str) -> FitWarnings:
    """Warn if the negative eigenvalues' share of the trace is too large."""
    if negative <= _MAX_NEGATIVE_SHARE:
        return ()
    text = f"correlations are indefinite: negative eigenvalues are at least {negative:.0%}"
    return (FitWarning(f"{text} of the variance; {remedy}"),)


def warn_about_pairs(pair_statuses: PairStatusCounts) -> FitWarnings:
    """Warn about pairs whose estimate is a guess; constant features have their own warning."""
    return tuple(
        FitWarning(
            f"pairs {text}: {pair_statuses.n_remaining[code]}, among {{features}}",
            tuple(np.flatnonzero(pair_statuses.involved[code]).tolist()),
        )
        for code, text in _PAIR_STATUS_TEXTS.items()
        if pair_statuses.n_remaining[code]
    )


def warn_about_noise(communalities: Array) -> FitWarnings:
    """Warn about features that leave no room for noise."""
    floored = np.flatnonzero(communalities > 1 - MIN_NOISE)
    if not floored.size:
        return ()
    text = "features with a communality of 1 or more, whose noise is set to 0.001: {features}"
    return (FitWarning(text, tuple(floored.tolist())),)


def estimate_strip(
    estimate: CorrelationEstimator,
    first_planes: NDArray[np.int64] | None,
    margins: Arrays,
    features: slice,
    chunks: Iterable[PackedChunk],
    earlier: StripCounts | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.uint8], StripCounts]:
    """Count and estimate the pairs of a strip with all features from its first one on.

    `first_planes` is None if all features are binary. `earlier` are the counts of rows that are not
    in `chunks`.

    Returns
    -------
    correlation, status
        Of the pairs of features, (n_strip, n_features − first).
    counts
        Of the pairs of their planes.
    """
    total, unit, ones = int(margins["total"]), float(margins["weight_unit"]), margins["ones"]
    masked = bool((margins["observed"] < total).any())
    firsts = np.arange(len(ones) + 1) if first_planes is None else first_planes
    strip = slice(*firsts[[features.start, features.stop]].tolist())
    counts = count_strip(strip, len(ones), total, masked, chunks, earlier)
    n_strip = features.stop - features.start
    shape = n_strip, len(firsts) - 1 - features.start
    correlation, status = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    n_at_once = max(1, _ROWS_AT_ONCE // int(np.diff(firsts).max(initial=1)))
    for first in range(0, n_strip, n_at_once):
        pairs = slice(first, first + n_at_once), slice(first, None)
        own = features.start + first, min(features.start + pairs[0].stop, features.stop)
        planes = slice(*firsts[[*own]].tolist())
        places = slice(planes.start - strip.start, planes.stop - strip.start)
        part = {name: values[places, places.start :] for name, values in counts.items()}
        table = make_strip_table(part, planes, total, ones).scale(unit)
        correlation[pairs], status[pairs] = estimate(table)
    mirror_upper_triangle(correlation[:, :n_strip], status[:, :n_strip])
    return correlation, status, counts


def find_strip_spectrum(
    results: RangeResults,
    constant: NDArray[np.int64],
    n_features: int,
    n_leading: int,
    map_items: MapFunction,
) -> LeadingSpectrum:
    """Find the `n_leading` leading eigenpairs of the correlations in `results`.

    The eigenvalues of `constant` features count as 0. `map_items` maps over strips; the order of
    sums does not depend on it.
    """
    multiply = _make_product(results, constant, map_items)
    # A fixed start makes the result reproducible; any start finds the same eigenvectors.
    return compute_leading_spectrum(multiply, n_features, n_leading, np.random.default_rng(0))


def find_lowest_eigenvalue(
    results: RangeResults, constant: NDArray[np.int64], n_features: int, map_items: MapFunction
) -> float:
    """Find the lowest eigenvalue; at most 0, the eigenvalue of constant features."""
    multiply = _make_product(results, constant, map_items)
    spectrum = compute_leading_spectrum(
        lambda v: -multiply(v), n_features, 1, np.random.default_rng(0)
    )
    return -float(spectrum.values[0] + spectrum.residuals[0])


def _make_product(
    results: RangeResults, constant: NDArray[np.int64], map_items: MapFunction
) -> Product:
    parts = _deal_strips(results.n_ranges)

    def multiply(vectors: Array) -> Array:
        product = np.zeros_like(vectors)
        for part in map_items(partial(_multiply_strips, results.read, vectors), parts):
            product[len(product) - len(part) :] += part
        product[constant] -= vectors[constant]  # with 1, a feature could appear as a component
        return product

    return multiply


def count_all_pair_statuses(
    results: RangeResults, excluded: NDArray[np.int64], n_features: int, map_items: MapFunction
) -> PairStatusCounts:
    """Count the statuses of all pairs."""
    count = partial(_count_strip_statuses, results.read, excluded, n_features)
    pair_statuses: PairStatusCounts = reduce(
        PairStatusCounts.merge, map_items(count, range(results.n_ranges))
    )
    return pair_statuses


def _deal_strips(n_strips: int) -> list[range]:
    """Deal strips to partial sums so that each sum has long and short strips."""
    return [range(k, n_strips, _MAX_PARTS) for k in range(min(_MAX_PARTS, n_strips))]


def _multiply_strips(read: ReadRange, vectors: Array, keys: range) -> Array:
    """Multiply vectors by some strips of the square and by their mirror image.

    Return the product from the first row of the first strip on; rows before it are zero.
    """
    product, n_rows = np.zeros_like(vectors), 0
    for key in keys:
        strip = read(key, ["correlation"])["correlation"]
        n_strip, n_right = strip.shape
        n_rows, first = max(n_rows, n_right), len(vectors) - n_right
        for row in range(0, n_strip, _ROWS_AT_ONCE):
            part = strip[row : row + _ROWS_AT_ONCE].astype(np.float64)
            own = slice(first + row, first + row + len(part))
            product[own] += part @ vectors[first:]
            product[first + n_strip :] += part[:, n_strip:].T @ vectors[own]
    return product[len(product) - n_rows :]


def _count_strip_statuses(
    read: ReadRange, excluded: NDArray[np.int64], n_features: int, key: int
) -> PairStatusCounts:
    return count_pair_statuses(read(key, ["status"])["status"], excluded, n_features)
