"""Clipped PCA with continuous features: polyserial and Pearson correlations too.

Model: x = W y + ε as in `model`. A continuous feature is μ_i + σ_i x_i; all others show levels of
x_i, as in `ordinal`. Correlations of two continuous features are Pearson's, and those of a
continuous feature with levels are two-step polyserial estimates, see
`numerics.gaussian.polyserial`.
Means, variances and thresholds of a pair are those of the rows that observe both features.

Passes: one counts levels and sums means and variances; one counts pairs and sums products; each
further one is a step of Newton's method for all polyserial correlations at once, mostly three.
Cost per block: as of `ordinal` in the second pass; n_continuous · n_ordinal · n_samples
probabilities in each further one.
Codes: given the values of continuous features, y is exactly Gaussian; expectation propagation adds
the levels. Standard errors: see `mixed_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, Tile, unpack_levels
from pipeline.data.features import Feature, find_continuous
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.models.clipped_pca.mixed_errors import MixedCounts, add_mixed_errors
from pipeline.models.clipped_pca.model import (
    MAX_SQUARE_FEATURES,
    N_LEADING,
    ClippedPCA,
    ClippedPCAParams,
)
from pipeline.models.clipped_pca.ordinal import OrdinalClippedPCA
from pipeline.models.clipped_pca.standard_errors import (
    compute_level_influence,
    compute_threshold_errors,
)
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.polyserial import (
    MAX_Z,
    NOT_OBSERVED,
    NewtonBounds,
    PolyserialPairs,
    start_polyserial,
    step_polyserial,
    sum_polyserial_derivatives,
)
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.correlations import estimate_correlations
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.measurements import (
    FIRST_KEY,
    MeasuredCounts,
    MixedStatistics,
    check_numbers,
    describe_level_steps,
    draw_mixed_null_spectrum,
    standardize_numbers,
    sum_moments,
)
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MAX_PASSES = 100
_NANOSECONDS_PER_PROBABILITY = 40.0
_BEYOND = 1e6
_CONSTANT_SCALE = 1e-7  # of a value; samples then equal it as numbers of 32 bits
_MIN_VARIANCE = 1e-12  # of standardized values; less is rounding


@dataclass(frozen=True)
class MixedClippedPCA(OrdinalClippedPCA):
    """Hyperparameters of clipped PCA with continuous features."""

    first_statistics: ClassVar[type[FeatureCounts]] = MeasuredCounts
    statistics: ClassVar[type[Any]] = MixedStatistics

    @classmethod
    def from_model(cls, model: ClippedPCA, structure: Structure) -> Self:
        """Check the settings of a model, and add the features.

        Raises
        ------
        FitError
            If the settings or the features cannot be combined with continuous features.
        """
        mixed = super().from_model(model, structure)
        n_columns = int(mixed.first_planes[-1]) + len(mixed.continuous)
        if n_columns > MAX_SQUARE_FEATURES:
            raise FitError(
                f"There are {n_columns:,} levels above the lowest ones and continuous features. "
                f"clipped-pca takes at most {MAX_SQUARE_FEATURES:,} if some features are "
                "continuous. Leave out features."
            )
        return mixed

    @property
    def continuous(self) -> NDArray[np.int64]:
        """Indices of the continuous features."""
        return np.array(find_continuous(self.structure.features), np.int64)

    @property
    def ordinal(self) -> NDArray[np.int64]:
        """Indices of the features that have levels."""
        return np.setdiff1d(np.arange(len(self.structure.features)), self.continuous)

    @property
    def _ordinal_features(self) -> tuple[Feature, ...]:
        return tuple(self.structure.features[k] for k in self.ordinal)

    def make_tiles(self, n_features: int, n_segments: int, budget: int) -> tuple[Tile | None, ...]:
        """Return that a task takes all pairs."""
        return (None,)

    def estimate_work(
        self, params: Any, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of a step of Newton's method, per row."""
        n_pairs = len(self.continuous) * len(self.ordinal)
        return WorkEstimate(_NANOSECONDS_PER_PROBABILITY * n_pairs, 8 * 4 * n_features**2)

    def first_key(self, seed: int) -> str:
        """Return a key of the counts with moments of continuous features."""
        return FIRST_KEY

    def counts_key(self, n_features: int) -> str | None:  # type: ignore[override]
        """Return None: the sums depend on the parameters."""
        return None

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check margins and moments, fix thresholds, means and variances."""
        assert isinstance(first, MeasuredCounts)
        check_numbers(first, self.structure.features, accept_constant=True)
        state = super().initialize(first, rng)
        n_features = len(self.structure.features)
        n_levels = np.ones(n_features, np.int64)
        n_levels[self.ordinal] = state.params.n_levels
        means, scales = np.zeros(n_features), np.ones(n_features)
        means[self.continuous] = first.means
        scales[self.continuous] = np.where(
            first.is_constant,
            _CONSTANT_SCALE * np.maximum(np.abs(first.means), 1.0),
            np.sqrt(first.squares / first.number_weights),
        )
        params = replace(
            state.params,
            loadings=np.zeros((n_features, 0)),
            n_levels=n_levels,
            means=means,
            scales=scales,
        )
        moments = {
            "number_means": means[self.continuous],
            "number_scales": scales[self.continuous],
        }
        return replace(state, params=params, working={**state.working, **moments})

    def _find_constant_features(
        self, first: FeatureCounts, is_constant: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Return the constant features, with levels or continuous."""
        assert isinstance(first, MeasuredCounts)
        ordinal = self.ordinal[super()._find_constant_features(first, is_constant)]
        return np.sort(np.concatenate([ordinal, self.continuous[first.is_constant]]))

    def _check_size(self, n_features: int) -> None:
        super()._check_size(len(self.structure.features))

    def summarize(  # type: ignore[override]
        self, params: ClippedPCAParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> MixedStatistics:
        """Count pairs and sum products, or sum the derivatives of polyserial likelihoods."""
        moments = working["number_means"], working["number_scales"]
        if "z" not in working:
            sums = Sums.from_block(block, 0.0, sum_moments(block, *moments))
            return MixedStatistics(sums, PairCounts.from_block(block, pooled=True))
        n_levels = np.diff(self.first_planes) + 1
        levels, observed = unpack_levels(block, n_levels - 1)
        if observed is not None:
            levels = np.where(observed.astype(np.bool_), levels, np.uint8(NOT_OBSERVED))
        weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
        derivatives = sum_polyserial_derivatives(
            _get_pairs(working), standardize_numbers(block, *moments), levels.T, weights, n_levels
        )
        return MixedStatistics(Sums.from_block(block, 0.0, {"derivatives": derivatives}))

    def add_to(  # type: ignore[override]
        self,
        statistics: MixedStatistics,
        params: ClippedPCAParams,
        working: Arrays,
        block: BinaryBlock,
        rng: RowRandom,
    ) -> MixedStatistics:
        """Add the statistics of a block."""
        return statistics.merge(self.summarize(params, working, block, rng))

    def update(  # type: ignore[override]
        self,
        state: FitState,
        statistics: MixedStatistics,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Start the polyserial correlations, or move them; compute the loadings from the last."""
        if statistics.pairs is not None:
            state = self._start_pairs(state, statistics.pairs, statistics.sums.values, map_items)
        else:
            bounds = NewtonBounds(state.auxiliary["lower"], state.auxiliary["upper"])
            derivatives = statistics.sums.values["derivatives"]
            pairs, bounds = step_polyserial(_get_pairs(state.working), bounds, derivatives)
            if state.iteration >= _MAX_PASSES:
                pairs = pairs._replace(is_active=np.zeros_like(pairs.is_active))
            working = {**state.working, **pairs._asdict()}
            state = replace(
                state, working=working, auxiliary={**state.auxiliary, **bounds._asdict()}
            )
        if state.working["is_active"].any():
            return state
        correlation, status = state.auxiliary["correlation"].copy(), state.auxiliary["status"]
        polyserial = np.tanh(state.working["z"])
        correlation[np.ix_(self.continuous, self.ordinal)] = polyserial
        correlation[np.ix_(self.ordinal, self.continuous)] = polyserial.T
        quantiles = state.auxiliary["null_quantiles"]
        fitted = self._fit_correlation(state, correlation, status, quantiles)
        if self._has_errors(state):
            counts = MixedCounts(**{n: state.auxiliary[n] for n in MixedCounts._fields})
            pairs = _get_pairs(state.working)
            # Rounding may decide how many passes there are, so that `rng` is not used.
            own_rng = np.random.default_rng(state.auxiliary["null_seeds"])
            fitted = add_mixed_errors(fitted, counts, pairs, self.continuous, own_rng)
        return fitted.with_feature_names(self.structure.feature_names)

    def next_stage(self, state: FitState, statistics: Any) -> FitState | None:
        """Return the state for another step of Newton's method, if some pairs need one."""
        return state if state.working["is_active"].any() else None

    def _start_pairs(
        self, state: FitState, pairs: PairCounts, sums: Mapping[str, Array], map_items: MapFunction
    ) -> FitState:
        """Estimate all correlations, the polyserial ones from moments."""
        continuous, ordinal, firsts = self.continuous, self.ordinal, self.first_planes
        n, n_features = len(continuous), len(self.structure.features)
        correlation, status = np.eye(n_features), np.zeros((n_features, n_features), np.uint8)
        (own,), (own_status,) = estimate_correlations(
            pairs, self._estimator_function, map_items, firsts
        )
        correlation[np.ix_(ordinal, ordinal)] = own
        status[np.ix_(ordinal, ordinal)] = own_status
        places = np.ix_(continuous, continuous)
        correlation[places], status[places] = _estimate_pearson(
            {name: sums[name][:, :n] for name in ("rows", "values", "squares", "products")}
        )
        right = {name: sums[name][:, n:] for name in ("rows", "values", "squares", "products")}
        polyserial, polyserial_status = _start_polyserial(right, sums["ones"], firsts)
        status[np.ix_(continuous, ordinal)] = polyserial_status
        status[np.ix_(ordinal, continuous)] = polyserial_status.T
        bound = np.full(polyserial.z.shape, MAX_Z)
        rows = sums["rows"][:, np.concatenate([np.arange(n), n + firsts[:-1]])]
        auxiliary = {
            **state.auxiliary,
            **NewtonBounds(-bound, bound)._asdict(),
            "correlation": correlation,
            "status": status,
            "null_quantiles": self._find_null_quantiles(state, pairs, rows, map_items),
        }
        if self._has_errors(state):
            auxiliary |= self._collect_counts(pairs, own, rows, state.params.n_levels)._asdict()
            thresholds_error = compute_threshold_errors(*(a[0] for a in pairs.margins()))
            state = replace(state, params=replace(state.params, thresholds_error=thresholds_error))
        working = {**state.working, **polyserial._asdict()}
        return replace(state, working=working, auxiliary=auxiliary)

    def _collect_counts(
        self, pairs: PairCounts, own: Array, rows: Array, n_levels: NDArray[np.int64]
    ) -> MixedCounts:
        """Keep what standard errors need; `own` are the correlations of features with levels."""
        continuous, ordinal = self.continuous, self.ordinal
        influence, errors = compute_level_influence(
            own, n_levels[ordinal], pairs.table(0), pairs.weight, self.empty_cells
        )
        shares = np.empty(len(n_levels))
        shares[continuous] = rows[:, : len(continuous)].diagonal()
        shares[ordinal] = pairs.margins()[0][0][self.first_planes[:-1]]
        return MixedCounts(np.array(pairs.weight), rows, shares / pairs.weight, *influence, errors)

    def _find_null_quantiles(
        self, state: FitState, pairs: PairCounts, rows: Array, map_items: MapFunction
    ) -> Array:
        """Compute the 95 % quantile of each leading eigenvalue for independent features."""
        if self.n_components is not None:
            return np.zeros(0)
        draw = partial(
            draw_mixed_null_spectrum,
            self._estimator_function,
            pairs.table(0)._replace(joint=np.zeros(0)),
            self.first_planes,
            describe_level_steps(state.params.thresholds, self.first_planes),
            rows,
            N_LEADING,
        )
        spectra = np.array([*map_items(draw, state.auxiliary["null_seeds"])])
        quantiles: Array = np.quantile(spectra, 0.95, axis=0)
        return quantiles


def _get_pairs(working: Arrays) -> PolyserialPairs:
    return PolyserialPairs(*(working[name] for name in PolyserialPairs._fields))


def _divide(a: Array, b: Array) -> Array:
    quotient: Array = np.divide(
        a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape)), where=b > 0
    )
    return quotient


def _classify(rows: Array, is_constant: NDArray[np.bool_]) -> NDArray[np.uint8]:
    status = np.where(is_constant, PairStatus.CONSTANT_FEATURE, PairStatus.PLAIN)
    return np.where(rows > 0, status, PairStatus.NO_OBSERVATIONS).astype(np.uint8)


def _estimate_pearson(sums: Mapping[str, Array]) -> tuple[Array, NDArray[np.uint8]]:
    """Return correlations of continuous features, over the rows where both are observed."""
    rows = sums["rows"]
    means = _divide(sums["values"], rows)
    variances = _divide(sums["squares"], rows) - means**2
    covariances = _divide(sums["products"], rows) - means * means.T
    is_constant = (variances <= _MIN_VARIANCE) | (variances.T <= _MIN_VARIANCE)
    spread = np.where(is_constant, 0.0, np.sqrt(np.maximum(variances * variances.T, 0.0)))
    correlation = np.clip(_divide(covariances, spread), -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    status = _classify(rows, is_constant)
    np.fill_diagonal(status, PairStatus.PLAIN)
    return correlation, status


def _start_polyserial(
    sums: Mapping[str, Array], ones: Array, first_planes: NDArray[np.int64]
) -> tuple[PolyserialPairs, NDArray[np.uint8]]:
    """Return the pairs of continuous features with levels, and their statuses.

    `sums` and `ones` are those of `sum_moments` with planes on the right, (n_continuous, n_planes).
    """
    firsts = first_planes[:-1]
    n_planes = np.diff(first_planes)
    rows, centers, squares = (sums[name][:, firsts] for name in ("rows", "values", "squares"))
    centers = _divide(centers, rows)
    variances = _divide(squares, rows) - centers**2
    rows_by_plane = sums["rows"]
    shares = _divide(ones, rows_by_plane)
    # A threshold that no row, or every row, exceeds is beyond all values.
    thresholds = np.clip(-scipy.special.ndtri(shares), -_BEYOND, _BEYOND)
    covariances = _divide(
        sums["products"] - np.repeat(centers, n_planes, axis=1) * ones, rows_by_plane
    )
    densities = np.exp(-0.5 * thresholds**2) / np.sqrt(2 * np.pi)
    covariance, density = (
        np.add.reduceat(values, firsts, axis=1) for values in (covariances, densities)
    )
    is_constant = (variances <= _MIN_VARIANCE) | (density <= 0)
    status = _classify(rows, is_constant)
    is_active = status == PairStatus.PLAIN
    scales = np.where(is_active, np.sqrt(np.maximum(variances, _MIN_VARIANCE)), 1.0)
    z = np.where(is_active, start_polyserial(covariance / scales, density), 0.0)
    return PolyserialPairs(thresholds, centers, scales, z, is_active), status
