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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, PackedChunk, Tile
from pipeline.data.features import Feature, find_continuous
from pipeline.executors.base import MapFunction
from pipeline.models.clipped_pca.mixed_errors import MixedCounts, add_mixed_errors
from pipeline.models.clipped_pca.mixed_pairs import (
    MAX_PASSES,
    estimate_pearson,
    make_bounds,
    start_pairs,
    sum_derivatives,
)
from pipeline.models.clipped_pca.mixed_strips import estimate_mixed_strip
from pipeline.models.clipped_pca.model import (
    MAX_SQUARE_FEATURES,
    N_LEADING,
    ClippedPCAParams,
)
from pipeline.models.clipped_pca.ordinal import OrdinalClippedPCA
from pipeline.models.clipped_pca.standard_errors import (
    compute_level_influence,
    compute_threshold_errors,
)
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.polyserial import (
    NewtonBounds,
    PolyserialPairs,
    step_polyserial,
)
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.correlations import estimate_correlations, find_null_thresholds
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.measurements import (
    FIRST_KEY,
    MeasuredCounts,
    MixedStatistics,
    check_numbers,
    describe_level_steps,
    draw_mixed_null_spectrum,
    sum_moments,
)
from pipeline.statistics.nested_features import warn_about_nested_features
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_NANOSECONDS_PER_PROBABILITY = 40.0
_CONSTANT_SCALE = 1e-7  # of a value; samples then equal it as numbers of 32 bits


@dataclass(frozen=True)
class MixedClippedPCA(OrdinalClippedPCA):
    """Hyperparameters of clipped PCA with continuous features."""

    first_statistics: ClassVar[type[FeatureCounts]] = MeasuredCounts
    statistics: ClassVar[type[Any]] = MixedStatistics
    cell_bytes: ClassVar[int] = 160

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
            "number_weights": first.number_weights,
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

    @property
    def _max_columns(self) -> int:
        return MAX_SQUARE_FEATURES

    def _describe_size(self, n_features: int) -> tuple[str, str]:
        limit, n_columns = MAX_SQUARE_FEATURES, self.count_columns(0).sum()
        return f"{limit} continuous features and levels above the lowest ones", str(n_columns)

    def tabulate(
        self,
        params: ClippedPCAParams,
        working: Arrays,
        features: slice,
        chunks: Iterable[PackedChunk],
        counts: Arrays | None,
    ) -> Mapping[str, NDArray[Any]]:
        """Estimate the pairs of a strip of features."""
        correlation, status = estimate_mixed_strip(
            self._estimator_function, self.first_planes, self.continuous, working, features, chunks
        )
        return {"correlation": correlation, "status": status}

    def _count_numbers(self, state: FitState) -> NDArray[np.int64]:
        is_varying = ~np.isin(self.continuous, state.auxiliary["constant"])
        return np.rint(state.working["number_weights"][is_varying]).astype(np.int64)

    def summarize(  # type: ignore[override]
        self, params: ClippedPCAParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> MixedStatistics:
        """Count pairs and sum products, or sum the derivatives of polyserial likelihoods."""
        moments = working["number_means"], working["number_scales"]
        if "z" not in working:
            sums = Sums.from_block(block, 0.0, sum_moments(block, *moments))
            return MixedStatistics(sums, PairCounts.from_block(block, pooled=True))
        n_levels = np.diff(self.first_planes) + 1
        derivatives = sum_derivatives(block, _get_pairs(working), *moments, n_levels)
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
            names = [feature.name for feature in self._ordinal_features]
            nested = warn_about_nested_features(statistics.pairs, self.first_planes)
            state = state.with_warnings([warning.with_names(names) for warning in nested])
        else:
            bounds = NewtonBounds(state.auxiliary["lower"], state.auxiliary["upper"])
            derivatives = statistics.sums.values["derivatives"]
            pairs, bounds = step_polyserial(_get_pairs(state.working), bounds, derivatives)
            if state.iteration >= MAX_PASSES:
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
        left = {name: sums[name][:, :n] for name in ("rows", "values", "squares", "products")}
        correlation[places], status[places] = estimate_pearson(
            left, {name: values.T for name, values in left.items()}
        )
        correlation[continuous, continuous] = 1.0
        status[continuous, continuous] = PairStatus.PLAIN
        right = {name: sums[name][:, n:] for name in ("rows", "values", "squares", "products")}
        polyserial, polyserial_status = start_pairs(right, sums["ones"], firsts)
        status[np.ix_(continuous, ordinal)] = polyserial_status
        status[np.ix_(ordinal, continuous)] = polyserial_status.T
        rows = sums["rows"][:, np.concatenate([np.arange(n), n + firsts[:-1]])]
        auxiliary = {
            **state.auxiliary,
            **make_bounds(polyserial)._asdict(),
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
        return find_null_thresholds(spectra)


def _get_pairs(working: Arrays) -> PolyserialPairs:
    return PolyserialPairs(*(working[name] for name in PolyserialPairs._fields))
