"""Clipped PCA: principal components of the Gaussians behind clipped (binary) variables.

Model: x = W y + ε, y ~ N(0, I), s_i = 1 iff x_i > t_i; every x_i has variance 1 (D. D. Lee,
H. Sompolinsky, "Learning a continuous hidden variable model for binary data", NIPS 1998 (1999);
there without ε, with t = 0 and s = ±1).

Fit: turn the correlation of each pair of s into the correlation C of the pair of x. The leading
eigenvectors of C, each scaled by the square root of its eigenvalue, are the columns of W. There are
two estimators of C: `tetrachoric`, the pairwise maximum likelihood with thresholds from the
margins; and `arcsine` of the paper, C = sin(π C_ss / 2), exact if all thresholds are zero. All
segments are pooled.

Exploratory factors: `estimator=minres` and `estimator=ml` replace the eigenvectors by loadings that
fit the correlations off the diagonal, and `rotation` turns the columns of W; see `factors`. After
an oblique rotation, the components have correlations, y ~ N(0, Φ).

=========  =====================  ================================
symbol     field                  shape
=========  =====================  ================================
W          loadings               (n_features, n_components)
t          thresholds             (n_planes,)
C          correlation            (n_features, n_features)
λ          eigenvalues            (n_eigenvalues,)
Φ          component_correlation  (n_components, n_components)
=========  =====================  ================================

An ordinal feature with k levels has k − 1 thresholds, one per plane: s_i ≥ c iff x_i > t_ic. The
correlations are then polychoric: two-step estimates (Olsson 1979) with thresholds from the margins
of the rows that observe both features, then maximum likelihood; see `numerics.gaussian.polychoric`.
A plane is the indicator of a level c and all higher ones, so the counts of pairs of planes are the
joint tables of features. A level without rows has no table entries; its two thresholds are equal. A
continuous feature shows x_i itself, up to mean and scale; see `mixed`.

Wide data, of more than 2,000 features or 8,000 planes (2,000 with the continuous features, if there
are any): correlations are computed in strips of
features, and their spectrum by products with the strips. No task and no central step holds a square
of all features. With levels, strips have whole features, and no counts of pairs are stored.
Correlations are stored as float32: this rounds them by at most 3e-8, far below their sampling
errors, and changes leading eigenvalues by less than a relative 1e-8.

A fitted model uses ψ_i = max(1 − w_i·Φ w_i, 0.001) and shortens a row of W that is longer than
that.
Cost per block: n_planes² / 2 · n_samples / 64 word operations, times the number of bits of the
largest weight. One pass.
Weights of rows: every count is weighted. With sampling weights, correlations and thresholds
estimate those of the population. There are neither standard errors nor a choice of the number of
components: both would take the rows for independent draws from the population.
Missing values: margins and pairs are counted where they are observed, which is right if values are
missing completely at random. If other items decide which values are missing, thresholds and
correlations are biased; use the latent-trait model by quadrature instead.
Not identifiable: the sign of a column (large entries have a positive sum), and rotations among
columns of equal eigenvalue, or of all columns of factors.
Accuracy: principal components attribute some of the noise to the loadings, so with few features
communalities are too high, unless `estimator` is `minres` or `ml`. A fit to rows of the model finds
the components of W Wᵀ + ψ, not W: with 10 features of communalities 0.6 to 0.7, loadings are 0.01
to 0.05 too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, PackedChunk, Tile, unpack_levels
from pipeline.data.features import (
    MAX_LEVELS,
    Feature,
    are_binary,
    find_first_planes,
    select_with_levels,
)
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.clipped_pca.factors import (
    check_number_of_factors,
    correlate_features,
    find_most_factors,
    find_orthogonal_loadings,
    fit_loadings,
    measure_fit,
    rotate,
    warn_about_uniqueness,
)
from pipeline.models.clipped_pca.mixed import MixedPairs
from pipeline.models.clipped_pca.standard_errors import MAX_PLANES, add_standard_errors
from pipeline.models.clipped_pca.strips import (
    count_all_pair_statuses,
    estimate_mixed_strip,
    estimate_strip,
    find_lowest_eigenvalue,
    find_strip_spectrum,
)
from pipeline.models.settings import setting
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.models.support import Support
from pipeline.models.vocabulary import FACTORS, PLAIN, Vocabulary
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.predictive import compute_predictive_probabilities
from pipeline.numerics.probit.wide_rows import probit_codes
from pipeline.numerics.spectra.lanczos import max_basis_columns, max_leading_pairs
from pipeline.numerics.spectra.linalg import (
    leading_eigenpairs,
    min_shrinkage,
    nearest_correlation,
    negative_share,
    shrink_eigenvalues,
)
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.passes.feature_strips import CELL_BYTES, MIN_STRIP_HEIGHT, estimate_strip_memory
from pipeline.passes.row_ranges import RangeResults
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.correlations import (
    CorrelationEstimator,
    PairStatusCounts,
    count_pair_statuses,
    draw_null_spectra,
    estimate_arcsine,
    estimate_correlations,
    estimate_polychoric,
    estimate_tetrachoric,
    find_null_thresholds,
)
from pipeline.statistics.counts import (
    POOLED_KEY,
    STRIP_COUNTS,
    FeatureCounts,
    PairCounts,
    count_level_rows,
    make_empty_level_warnings,
    make_tiles,
    pool_margins,
)
from pipeline.statistics.level_null_spectrum import PlaneMargins, estimate_level_null_quantiles
from pipeline.statistics.measurements import (
    MeasuredCounts,
    MixedStatistics,
    check_numbers,
)
from pipeline.statistics.nested_features import warn_about_nested_features
from pipeline.statistics.null_spectrum import estimate_null_quantiles

_CONSTANT_SCALE = 1e-7  # of a value; samples then equal it as numbers of 32 bits
MIN_NOISE = 1e-3
"""Smallest ψ. Below it, one feature would determine a combination of the components exactly."""
MAX_SQUARE_FEATURES = 2000
"""Maximum number of features of one square matrix; wider data use strips.

If some features are continuous, it limits continuous features and planes together.
"""
MAX_SQUARE_PLANES = 8000
"""Maximum number of planes of one square of counts; wider data use strips."""
_MIXED_CELL_BYTES = 160
N_LEADING = 64
_MAX_NEGATIVE_SHARE = 0.02
_MAX_NULL_RATIO = 2.0
_PAIR_STATUS_TEXTS = {
    PairStatus.EMPTY_CELL: "with an empty cell",
    PairStatus.CONSTANT_FEATURE: "that do not vary where both are observed, {effect}",
    PairStatus.NO_OBSERVATIONS: "never observed together, {effect}",
}

FitWarnings = tuple[FitWarning, ...]


@dataclass(frozen=True)
class ClippedPCAParams:
    """Parameters; the module's table gives shapes.

    `status` is the `PairStatus` of every pair. `null_eigenvalues` are the 95 % quantiles of the
    null spectra, empty unless they chose `n_components`. Standard errors are NaN where the data do
    not determine them. `n_levels` is None if all features are binary, and 1 of a continuous
    feature. `communality` and `uniqueness`, the shares of variance that the components explain and
    leave, are None with the default estimator and rotation, `component_correlation` without an
    oblique rotation. `means` and `scales` are the mean and standard deviation of each continuous
    feature, and 0 and 1 of the x of all others; None if no feature is continuous.
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
    component_correlation: Array | None = optional_array_field("component", "component_j")
    communality: Array | None = optional_array_field("feature")
    uniqueness: Array | None = optional_array_field("feature")
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
        Estimator of the loadings: principal components (`pca`), or factors by minimum residuals
        (`minres`) or maximum likelihood (`ml`), with indices of fit.
    rotation
        Rotation of the loadings: `none`, `varimax`, or for correlated components `oblimin` or
        `promax`.
    correlation
        Estimator of the correlations of binary features: `tetrachoric` or `arcsine`.
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
        `none` omits them. Rotated loadings and those of factors have none.
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
    params: ClassVar[type[ClippedPCAParams]] = ClippedPCAParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("loadings", "component_correlation")
    codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("component",),
        "variance": ("component",),
        "converged": (),
    }
    n_components: int | None = None
    estimator: Literal["pca", "minres", "ml"] = "pca"
    rotation: Literal["none", "varimax", "oblimin", "promax"] = "none"
    correlation: Literal["tetrachoric", "arcsine"] = "tetrachoric"
    empty_cells: Literal["half", "none"] = "half"
    constant_features: Literal["refuse", "keep"] = "refuse"
    repair: Literal["none", "nearest", "shrink"] = "none"
    errors: Literal["model", "none"] = "model"
    null_draws: int = setting(20, minimum=20)
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def with_structure(self, structure: Structure) -> Self:
        """Return the model of these features.

        Raises
        ------
        FitError
            If the correlations are those of binary features only.
        """
        if self.correlation == "arcsine" and not are_binary(structure.features):
            raise FitError(
                "{correlation=arcsine} takes binary features only. Leave it out, or cut the "
                "features in two by {cut=NAME>=VALUE}.",
                parameter="correlation",
            )
        return super().with_structure(structure)

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        """The words of factor analysis, unless the fit has plain principal components."""
        has_factors = self.estimator != "pca" or self.rotation != "none"
        return FACTORS if has_factors else PLAIN

    @property
    def indeterminacy(self) -> str:  # type: ignore[override]
        """Signs and axes."""
        if self.vocabulary == FACTORS:
            return "the signs of the factors, and their axes, which the rotation chooses"
        return "the signs of components, and rotations among those of equal eigenvalue"

    @property
    def first_planes(self) -> NDArray[np.int64] | None:
        """First plane of each feature with levels, and the number of planes, (n_ordinal + 1,).

        None if all features are binary.
        """
        if are_binary(self.structure.features):
            return None
        return find_first_planes(self._ordinal_features)

    @property
    def _ordinal_features(self) -> tuple[Feature, ...]:
        """The features that have levels."""
        return select_with_levels(self.structure.features)

    @property
    def _mixed(self) -> MixedPairs | None:
        """Pairs with continuous features; None if there are none."""
        if not self.structure.continuous.size or (firsts := self.first_planes) is None:
            return None
        features = self.structure.features
        return MixedPairs(features, firsts, self._estimator_function, self.empty_cells)

    @property
    def statistics(self) -> type[Any]:  # type: ignore[override]
        """Counts of pairs, with sums over continuous features."""
        return MixedStatistics if self.structure.continuous.size else PairCounts

    @property
    def pair_counts(self) -> tuple[str, ...]:
        """Counts that strips store; those of levels would have a row per plane."""
        return STRIP_COUNTS if self.first_planes is None else ()

    @property
    def cell_bytes(self) -> int:
        """Bytes per pair of a strip."""
        return _MIXED_CELL_BYTES if self.structure.continuous.size else CELL_BYTES

    def make_tiles(self, n_features: int, n_segments: int, budget: int) -> Sequence[Tile | None]:
        """Split the pairs of features so that a task's counts stay within a budget."""
        if self.structure.continuous.size:
            return (None,)
        return make_tiles(n_features, 1, budget)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of 18 square matrices in the central step and 7 per null draw.

        With levels, there are 6 and 5 more of planes, of which `n_features` is the number.
        For wide data, return the bytes of the basis, its products, and the smallest strips of all
        threads.
        """
        if self.has_pair_tables(n_features):
            columns, n_leading = self.count_columns(n_features), self.n_components or N_LEADING
            n_vectors = max_basis_columns(len(columns), n_leading) + 8 * n_leading
            strip = estimate_strip_memory(MIN_STRIP_HEIGHT, int(columns.sum()), self.cell_bytes)
            return 8 * len(columns) * n_vectors + n_threads * strip
        if self.first_planes is None:
            return 8 * n_features**2 * (18 + 7 * n_threads)
        pairs = 8 * n_features**2 * (6 + 5 * n_threads)
        return pairs + 8 * len(self.structure.features) ** 2 * (18 + 7 * n_threads)

    def estimate_work(
        self, params: Any, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of a step of Newton's method, per row, if there are such steps."""
        if (mixed := self._mixed) is None:
            return super().estimate_work(params, working, n_features, n_rows)
        return mixed.estimate_work(n_features)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check margins, and fix thresholds, means and variances; report levels without rows.

        Constant features are refused unless kept.
        """
        if isinstance(first, MeasuredCounts):
            check_numbers(first, self.structure.features, accept_constant=True)
        level_rows = None
        if self.first_planes is not None:  # refuses a feature without values, by its name
            level_rows = count_level_rows(first, self._ordinal_features)
        observed, ones = pool_margins(first)
        params = self._make_first_params(first, _compute_thresholds(observed, ones))
        self._check_size(len(params.loadings))
        if first.has_sampling_weights and self.n_components is None:
            raise FitError(
                "The number of components cannot be chosen with sampling weights. "
                "Set {components}.",
                parameter="components",
            )
        constant = self._find_constant_features(first, (ones == 0) | (ones == observed))
        working = {
            "total": np.array(first.total),
            "weight_unit": np.array(first.weight_unit),
            "observed": first.observed.sum(axis=0),  # in units, as `ones`
            "ones": first.ones.sum(axis=0),
        }
        if isinstance(first, MeasuredCounts):
            assert params.means is not None
            assert params.scales is not None
            working |= {
                "number_weights": first.number_weights,
                "number_means": params.means[self.structure.continuous],
                "number_scales": params.scales[self.structure.continuous],
            }
        if self.estimator != "pca" and self.n_components is not None:
            n_varying = len(params.loadings) - len(constant)
            check_number_of_factors(self.n_components, n_varying, self.estimator)
        state = FitState(
            params,
            working=working,
            auxiliary={
                "has_sampling_weights": np.array(first.has_sampling_weights),
                "null_seeds": rng.integers(2**63, size=self.null_draws),
                "constant": constant,
            },
            warnings=self._warn_about_constants(constant)
            + warn_about_margins(self.correlation, ones / observed),
        )
        if level_rows is None:
            return state
        consequence = "the fit gives these levels a probability of 0 or nearly 0"
        state = state.with_warnings(make_empty_level_warnings(level_rows, consequence))
        return state.with_feature_names([feature.name for feature in self._ordinal_features])

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
        limit_text, size_text = self._describe_size(n_features)
        if is_wide and self.estimator != "pca":
            raise FitError(
                f"{{estimator={self.estimator}}} takes at most {limit_text}, because it needs all "
                f"correlations at once, but there are {size_text}. Use {{estimator=pca}}.",
                parameter="estimator",
            )
        if is_wide and self.repair == "nearest":
            raise FitError(
                f"{{repair=nearest}} takes at most {limit_text}, because it computes all "
                f"eigenvectors many times, but there are {size_text}. Use {{repair=shrink}}.",
                parameter="repair",
            )

    def _describe_size(self, n_features: int) -> tuple[str, str]:
        """Return the largest size of data that are not wide, and the size of these data."""
        levels, limit = "levels above the lowest ones", MAX_SQUARE_FEATURES
        if self.structure.continuous.size:
            n_columns = int(self.count_columns(0).sum())
            return f"{limit} continuous features and {levels}", str(n_columns)
        if (firsts := self.first_planes) is None:
            return f"{limit} features", str(n_features)
        return (
            f"{limit} features with {MAX_SQUARE_PLANES} {levels}",
            f"{n_features} features with {firsts[-1]} {levels}",
        )

    def _make_first_params(self, first: FeatureCounts, thresholds: Array) -> ClippedPCAParams:
        if self.correlation == "arcsine":
            thresholds = np.zeros_like(thresholds)
        n_levels, n_features, none = None, len(thresholds), np.zeros(0)
        if (firsts := self.first_planes) is not None:
            n_features = len(self.structure.features)
            n_levels = np.ones(n_features, np.int64)
            n_levels[self._ordinal] = np.diff(firsts) + 1
        params = ClippedPCAParams(
            np.zeros((n_features, 0)), none, thresholds, none, n_levels=n_levels
        )
        if not isinstance(first, MeasuredCounts):
            return params
        means, scales = np.zeros(n_features), np.ones(n_features)
        means[self.structure.continuous] = first.means
        scales[self.structure.continuous] = np.where(
            first.is_constant,
            _CONSTANT_SCALE * np.maximum(np.abs(first.means), 1.0),
            np.sqrt(first.squares / first.number_weights),
        )
        return replace(params, means=means, scales=scales)

    @property
    def _ordinal(self) -> NDArray[np.int64]:
        """Indices of the features that have levels."""
        return np.setdiff1d(np.arange(len(self.structure.features)), self.structure.continuous)

    def _find_constant_features(
        self, first: FeatureCounts, is_constant: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Return the constant features, given whether each plane is constant."""
        if (firsts := self.first_planes) is None:
            return np.flatnonzero(is_constant)
        ordinal = self._ordinal[np.logical_and.reduceat(is_constant, firsts[:-1])]
        if not isinstance(first, MeasuredCounts):
            return ordinal
        return np.sort(np.concatenate([ordinal, self.structure.continuous[first.is_constant]]))

    def _name_features(self, features: NDArray[np.intp]) -> tuple[int, ...] | tuple[str, ...]:
        """Return features for messages: indices, or names if an index stands for a plane."""
        names = self.structure.feature_names
        if not names:
            return tuple(features.tolist())
        return tuple(names[feature] for feature in features.tolist())

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
    ) -> Any:
        """Count the pairs of a block, with all segments pooled, and sum over continuous features.

        Passes after the first one sum derivatives of polyserial likelihoods instead.
        """
        if (mixed := self._mixed) is not None:
            return mixed.summarize(working, block)
        return PairCounts.from_block(block, pooled=True)

    def add_to(
        self,
        statistics: Any,
        params: ClippedPCAParams,
        working: Arrays,
        block: BinaryBlock,
        rng: RowRandom,
    ) -> Any:
        """Add the statistics of a block; counts of pairs in place."""
        if (mixed := self._mixed) is not None:
            return statistics.merge(mixed.summarize(working, block))
        return statistics.add_block(block, pooled=True)

    def counts_key(self, n_features: int) -> str | None:
        """Return a key of the pair counts with all segments pooled.

        None with continuous features: sums depend on the parameters.
        """
        return None if self.structure.continuous.size else POOLED_KEY

    def update(
        self, state: FitState, statistics: Any, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Compute the correlations, their spectrum, and the loadings.

        With continuous features, start the polyserial correlations, or move them, first.
        """
        if (mixed := self._mixed) is not None:
            return self._update_mixed(mixed, state, statistics, map_items)
        (correlation,), (status,) = estimate_correlations(
            statistics, self._estimator_function, map_items, self.first_planes
        )
        null_quantiles = self._null_quantiles(statistics, state.auxiliary["null_seeds"], map_items)
        common_rows = self._count_common_rows(statistics, len(correlation))
        fitted = self._fit_correlation(state, correlation, status, null_quantiles, common_rows)
        fitted = fitted.with_warnings(warn_about_nested_features(statistics, self.first_planes))
        if self._has_errors(state):
            fitted = add_standard_errors(fitted, statistics, self.empty_cells, rng)
        return self._with_feature_names(fitted)

    def _update_mixed(
        self,
        mixed: MixedPairs,
        state: FitState,
        statistics: MixedStatistics,
        map_items: MapFunction,
    ) -> FitState:
        has_errors = self._has_errors(state)
        if statistics.pairs is None:
            state = mixed.step(state, statistics.sums.values["derivatives"])
        else:
            n_leading = 0 if self.n_components is not None else N_LEADING
            pairs, sums = statistics.pairs, statistics.sums.values
            state = mixed.start(state, pairs, sums, map_items, n_leading, has_errors=has_errors)
            names = [feature.name for feature in self._ordinal_features]
            nested = warn_about_nested_features(pairs, self.first_planes)
            state = state.with_warnings([warning.with_names(names) for warning in nested])
        if state.working["is_active"].any():
            return state
        quantiles, common_rows = state.auxiliary["null_quantiles"], state.auxiliary["common_rows"]
        correlations = mixed.collect_correlations(state)
        fitted = self._fit_correlation(state, *correlations, quantiles, common_rows)
        if has_errors:
            fitted = mixed.add_errors(fitted)
        return self._with_feature_names(fitted)

    def next_stage(self, state: FitState, statistics: Any) -> FitState | None:
        """Return the state for another step of Newton's method, if some pairs need one."""
        return state if "is_active" in state.working and state.working["is_active"].any() else None

    def _with_feature_names(self, state: FitState) -> FitState:
        """Name features in warnings if an index could be that of a plane."""
        names = self.structure.feature_names
        return state.with_feature_names(names) if names else state

    def _has_errors(self, state: FitState) -> bool:
        """Return whether the fit gets standard errors, given its settings, planes and weights."""
        return self._needs_errors(state) and not state.auxiliary["has_sampling_weights"]

    def _needs_errors(self, state: FitState) -> bool:
        is_plain = self.correlation == "tetrachoric" and self.repair == "none"
        return self.errors != "none" and is_plain and len(state.params.thresholds) <= MAX_PLANES

    def _count_common_rows(self, counts: PairCounts, n_features: int) -> NDArray[Any]:
        """Return the number of rows that observe both features of each pair."""
        n = np.asarray(counts.table(0).n)
        if n.ndim == 2 and (firsts := self.first_planes) is not None:
            n = n[np.ix_(firsts[:-1], firsts[:-1])]
        return np.broadcast_to(n, (n_features, n_features))

    def _fit_correlation(
        self,
        state: FitState,
        correlation: Array,
        status: NDArray[np.uint8],
        null_quantiles: Array,
        common_rows: NDArray[Any],
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
        if self.estimator != "pca":
            diagnostics["estimator"] = self.estimator
            diagnostics["fit_statistics"] = self._measure_fit(fitted, common_rows)
        if self.rotation != "none":
            diagnostics["rotation"] = self.rotation
        fitted = replace(fitted, diagnostics=diagnostics)
        if self._needs_errors(state) and state.auxiliary["has_sampling_weights"]:
            return fitted.with_warning("there are no standard errors for sampling weights")
        return fitted

    def _measure_fit(self, state: FitState, common_rows: NDArray[Any]) -> dict[str, Any]:
        """Return the indices of fit of the factors of the features that vary."""
        params, constant = state.params, state.auxiliary["constant"]
        varying = np.setdiff1d(np.arange(len(params.loadings)), constant)
        own = np.ix_(varying, varying)
        fitted = correlate_features(params)
        return measure_fit(
            params.correlation[own],
            fitted[own],
            params.loadings.shape[1],
            np.where(find_unknown_pairs(params), 0, common_rows)[own],
            has_sampling_weights=bool(state.auxiliary["has_sampling_weights"]),
        )

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
        warnings: FitWarnings = ()
        if self.estimator != "pca" and self.n_components is None:
            limit = find_most_factors(len(vectors) - len(constant))
            if n_components > limit:
                text = f"{n_components} components stand out, but the features determine at most "
                warnings = (FitWarning(f"{text}{limit} factors; set {{components}} to fewer"),)
                n_components = limit
        loadings = vectors[:, :n_components] * np.sqrt(np.maximum(values[:n_components], 0.0))
        loadings[constant] = 0.0
        params = self._find_factors(replace(params, loadings=loadings), constant)
        warnings += warn_about_spectrum(params, n_components, is_chosen=self.n_components is None)
        warnings += warn_about_indefinite(
            negative, self._suggest_repair(len(loadings))
        ) + warn_about_pairs(pair_statuses, self.estimator)
        if self.estimator == "pca" or params.uniqueness is None:
            warnings += warn_about_noise(communalities(params))
        else:
            warnings += warn_about_uniqueness(params.uniqueness)
        return replace(
            state,
            params=params,
            diagnostics={**pair_statuses.count_by_status(), "n_components": n_components},
            warnings=state.warnings + warnings,
        )

    def _find_factors(
        self, params: ClippedPCAParams, constant: NDArray[np.intp]
    ) -> ClippedPCAParams:
        """Replace principal components by factors, and rotate them, if the settings say so."""
        if self.estimator != "pca":
            varying = np.setdiff1d(np.arange(len(params.loadings)), constant)
            assert params.correlation is not None
            own = params.correlation[np.ix_(varying, varying)]
            loadings = np.zeros_like(params.loadings)
            is_unknown = find_unknown_pairs(params)[np.ix_(varying, varying)]
            loadings[varying] = fit_loadings(
                own, params.loadings[varying], self.estimator, is_unknown
            )
            params = replace(params, loadings=loadings)
        is_default = self.estimator == "pca" and self.rotation == "none"
        return params if is_default else rotate(params, self.rotation)

    def _suggest_repair(self, n_features: int) -> str:
        if self.empty_cells == "none":
            return "consider {empty_cells=half}"
        repair = "shrink" if self.has_pair_tables(n_features) else "nearest"
        return f"consider {{repair={repair}}}"

    def count_columns(self, n_planes: int) -> NDArray[np.int64]:
        """Return the number of planes of each feature, 1 if it is continuous, (n_features,)."""
        if not self.structure.features:
            return np.ones(n_planes, np.int64)
        return np.array([max(1, feature.n_planes) for feature in self.structure.features], np.int64)

    def has_pair_tables(self, n_features: int) -> bool:
        """Return whether data are so wide that pairs are counted in strips."""
        columns = self.count_columns(n_features)
        limit = MAX_SQUARE_FEATURES if self.structure.continuous.size else MAX_SQUARE_PLANES
        return len(columns) > MAX_SQUARE_FEATURES or int(columns.sum()) > limit

    def tabulate(
        self,
        params: ClippedPCAParams,
        working: Arrays,
        features: slice,
        chunks: Iterable[PackedChunk],
        counts: Arrays | None,
    ) -> Mapping[str, NDArray[Any]]:
        """Count and estimate the pairs of a strip of features."""
        if (mixed := self._mixed) is not None:
            correlation, status = estimate_mixed_strip(
                mixed.estimate, mixed.first_planes, mixed.continuous, working, features, chunks
            )
            return {"correlation": correlation, "status": status}
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
        null_quantiles = None
        if self.n_components is None:
            null_quantiles = self._estimate_null_quantiles(state, n_leading, map_items, rng)
        spectrum = find_strip_spectrum(
            results, constant, n_features, n_leading, map_items, null_quantiles
        )
        shrinkage = 0.0
        if self.repair == "shrink":
            shrinkage = min_shrinkage(
                find_lowest_eigenvalue(results, constant, n_features, map_items)
            )
        if null_quantiles is None:
            null_quantiles = np.zeros(0)
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
        residual = float(spectrum.residuals[: fitted.params.loadings.shape[1]].max(initial=0.0))
        diagnostics = {
            **fitted.diagnostics,
            "eigenvalue_residual": residual,
            "shrinkage": shrinkage,
        }
        fitted = replace(fitted, diagnostics=diagnostics, history=(0.0,), iteration=1, done=True)
        return self._with_feature_names(fitted)

    @property
    def _estimator_function(self) -> CorrelationEstimator:
        if self.correlation == "arcsine":
            return estimate_arcsine
        if (firsts := self.first_planes) is None:
            return partial(estimate_tetrachoric, self.empty_cells)
        return partial(estimate_polychoric, self.empty_cells, firsts)

    def _estimate_null_quantiles(
        self, state: FitState, n_leading: int, map_items: MapFunction, rng: np.random.Generator
    ) -> Array:
        """Compute the 95 % quantile of each leading eigenvalue from the margins alone."""
        total, observed, ones = (state.working[name] for name in ("total", "observed", "ones"))
        if (firsts := self.first_planes) is None:
            return estimate_null_quantiles(
                int(total), observed, ones, self._estimator_function, n_leading, rng
            )
        n_values = np.zeros(0, np.int64)  # of each continuous feature that varies
        if (continuous := self.structure.continuous).size:
            is_varying = ~np.isin(continuous, state.auxiliary["constant"])
            n_values = np.rint(state.working["number_weights"][is_varying]).astype(np.int64)
        margins = PlaneMargins(int(total), observed, ones, firsts)
        return estimate_level_null_quantiles(
            margins, n_values, self.empty_cells, n_leading, map_items, rng
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
        levels, observed, values = block.unpack_values(), block.unpack_mask(), None
        if params.n_levels is not None:
            levels, observed = unpack_levels(block, params.n_levels[params.n_levels > 1] - 1)
            if params.means is not None and params.scales is not None:
                assert block.numbers is not None
                own = params.n_levels == 1
                values = (block.numbers.T - params.means[own]) / params.scales[own]
                values = values / np.sqrt(find_noise(params)[own])

        def code(weights: Array) -> dict[str, NDArray[Any]]:
            return probit_codes(levels, weights, offsets, observed, params.n_levels, values)

        if params.component_correlation is None:
            return code(weights)
        return code_correlated_components(code, weights, params.component_correlation)

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
        if params.component_correlation is not None:
            codes = codes @ np.linalg.cholesky(params.component_correlation).T
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
    communalities: Array = (find_orthogonal_loadings(params) ** 2).sum(axis=1)
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


def code_correlated_components(
    code: Callable[[Array], Mapping[str, NDArray[Any]]], weights: Array, correlation: Array
) -> dict[str, NDArray[Any]]:
    """Return the codes of correlated components, from those of independent ones.

    `code` computes the codes of y ~ N(0, I) given weights. With Φ = T Tᵀ, y = T u. As codes have no
    covariances, the variance of a component is that of the first of several independent ones, with
    row k of T as the first axis.
    """
    root = np.linalg.cholesky(correlation)
    identity = np.eye(len(root))
    means, variances, converged = [], [], []
    for row in root:
        # The reflection that maps the row, of length 1, to the first axis or its opposite. The one
        # that is farther keeps all digits.
        sign = 1.0 if row[0] < 0 else -1.0
        normal = row - sign * identity[0]
        axes = identity - 2 / float(normal @ normal) * np.outer(normal, normal)
        own = code(weights @ root @ axes)
        means.append(sign * own["mean"][:, 0])
        variances.append(own["variance"][:, 0])
        converged.append(own["converged"])
    return {
        "mean": np.stack(means, axis=1),
        "variance": np.stack(variances, axis=1),
        "converged": np.all(converged, axis=0),
    }


def warn_about_margins(correlation: str, shares: Array) -> FitWarnings:
    """Warn about features for which the arcsine estimator is biased, given their shares of ones."""
    uneven = np.flatnonzero(np.abs(shares - 0.5) > 0.1)
    if correlation == "tetrachoric" or not uneven.size:
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


def find_unknown_pairs(params: ClippedPCAParams) -> NDArray[np.bool_]:
    """Return which pairs have a correlation that the data do not determine."""
    assert params.status is not None
    is_unknown: NDArray[np.bool_] = params.status >= PairStatus.CONSTANT_FEATURE
    np.fill_diagonal(is_unknown, False)
    return is_unknown


def warn_about_pairs(pair_statuses: PairStatusCounts, estimator: str) -> FitWarnings:
    """Warn about pairs whose estimate is a guess; constant features have their own warning."""
    effect = "left out of the fit" if estimator == "minres" else "taken as uncorrelated"
    warnings = []
    for code, text in _PAIR_STATUS_TEXTS.items():
        if n_remaining := pair_statuses.n_remaining[code]:
            features = tuple(np.flatnonzero(pair_statuses.involved[code]).tolist())
            message = f"pairs {text.format(effect=effect)}: {n_remaining}, among {{features}}"
            warnings.append(FitWarning(message, features))
    return tuple(warnings)


def warn_about_noise(communalities: Array) -> FitWarnings:
    """Warn about features that leave no room for noise."""
    floored = np.flatnonzero(communalities > 1 - MIN_NOISE)
    if not floored.size:
        return ()
    text = "features with a communality of 1 or more, whose noise is set to 0.001: {features}"
    return (FitWarning(text, tuple(floored.tolist())),)
