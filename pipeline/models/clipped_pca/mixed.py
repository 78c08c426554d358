"""Clipped PCA with continuous features: polyserial and Pearson correlations too.

Model: x = W y + ε as in `model`. A continuous feature is μ_i + σ_i x_i; all others show levels of
x_i. Correlations of two continuous features are Pearson's, and those of a
continuous feature with levels are two-step polyserial estimates, see
`numerics.gaussian.polyserial`.
Means, variances and thresholds of a pair are those of the rows that observe both features.

Passes: one counts levels and sums means and variances; one counts pairs and sums products; each
further one is a step of Newton's method for all polyserial correlations at once, mostly three.
Cost per block: as of levels in the second pass; n_continuous · n_ordinal · n_samples
probabilities in each further one.
Codes: given the values of continuous features, y is exactly Gaussian; expectation propagation adds
the levels. Standard errors: see `mixed_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature, find_continuous
from pipeline.executors.base import MapFunction
from pipeline.executors.central_work import label_map
from pipeline.models.clipped_pca.mixed_errors import MixedCounts, add_mixed_errors
from pipeline.models.clipped_pca.mixed_pairs import (
    MAX_PASSES,
    estimate_pearson,
    make_bounds,
    start_pairs,
    sum_derivatives,
)
from pipeline.models.clipped_pca.standard_errors import (
    compute_level_influence,
    compute_threshold_errors,
)
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.polyserial import NewtonBounds, PolyserialPairs, step_polyserial
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.statistics.correlations import (
    CorrelationEstimator,
    estimate_correlations,
    find_null_thresholds,
)
from pipeline.statistics.counts import PairCounts
from pipeline.statistics.measurements import (
    MixedStatistics,
    describe_level_steps,
    draw_mixed_null_spectrum,
    sum_moments,
)
from pipeline.statistics.sums import Sums

_NANOSECONDS_PER_PROBABILITY = 40.0


@dataclass(frozen=True)
class MixedPairs:
    """Estimates the correlations of data with continuous features, pass by pass.

    Attributes
    ----------
    features
        All features.
    first_planes
        First plane of each feature with levels, and the number of planes, (n_ordinal + 1,).
    estimate, empty_cells
        Estimator of the correlations of features with levels, and how it treats empty cells.
    """

    features: tuple[Feature, ...]
    first_planes: NDArray[np.int64]
    estimate: CorrelationEstimator
    empty_cells: Literal["half", "none"]

    @property
    def continuous(self) -> NDArray[np.int64]:
        """Indices of the continuous features."""
        return np.array(find_continuous(self.features), np.int64)

    @property
    def ordinal(self) -> NDArray[np.int64]:
        """Indices of the features that have levels."""
        return np.setdiff1d(np.arange(len(self.features)), self.continuous)

    def estimate_work(self, n_features: int) -> WorkEstimate:
        """Return the work of a step of Newton's method, per row."""
        n_pairs = len(self.continuous) * len(self.ordinal)
        return WorkEstimate(_NANOSECONDS_PER_PROBABILITY * n_pairs, 8 * 4 * n_features**2)

    def summarize(self, working: Arrays, block: BinaryBlock) -> MixedStatistics:
        """Count pairs and sum products, or sum the derivatives of polyserial likelihoods."""
        moments = working["number_means"], working["number_scales"]
        if "z" not in working:
            sums = Sums.from_block(block, 0.0, sum_moments(block, *moments))
            return MixedStatistics(sums, PairCounts.from_block(block, pooled=True))
        n_levels = np.diff(self.first_planes) + 1
        derivatives = sum_derivatives(block, _get_pairs(working), *moments, n_levels)
        return MixedStatistics(Sums.from_block(block, 0.0, {"derivatives": derivatives}))

    def step(self, state: FitState, derivatives: Array) -> FitState:
        """Move the polyserial correlations by a step of Newton's method."""
        bounds = NewtonBounds(state.auxiliary["lower"], state.auxiliary["upper"])
        pairs, bounds = step_polyserial(_get_pairs(state.working), bounds, derivatives)
        if state.iteration >= MAX_PASSES:
            pairs = pairs._replace(is_active=np.zeros_like(pairs.is_active))
        working = {**state.working, **pairs._asdict()}
        return replace(state, working=working, auxiliary={**state.auxiliary, **bounds._asdict()})

    def collect_correlations(self, state: FitState) -> tuple[Array, NDArray[np.uint8]]:
        """Return all correlations and statuses, given the last polyserial ones."""
        correlation, polyserial = state.auxiliary["correlation"].copy(), np.tanh(state.working["z"])
        correlation[np.ix_(self.continuous, self.ordinal)] = polyserial
        correlation[np.ix_(self.ordinal, self.continuous)] = polyserial.T
        return correlation, state.auxiliary["status"]

    def add_errors(self, state: FitState) -> FitState:
        """Add standard errors to a fit."""
        counts = MixedCounts(**{n: state.auxiliary[n] for n in MixedCounts._fields})
        # Rounding may decide how many passes there are, so that this does not use their generator.
        rng = np.random.default_rng(state.auxiliary["null_seeds"])
        return add_mixed_errors(state, counts, _get_pairs(state.working), self.continuous, rng)

    def start(
        self,
        state: FitState,
        pairs: PairCounts,
        sums: Mapping[str, Array],
        map_items: MapFunction,
        n_leading: int,
        *,
        has_errors: bool,
    ) -> FitState:
        """Estimate all correlations, the polyserial ones from moments.

        `n_leading` is the number of eigenvalues of independent features to draw.
        """
        continuous, ordinal, firsts = self.continuous, self.ordinal, self.first_planes
        n, n_features = len(continuous), len(self.features)
        correlation, status = np.eye(n_features), np.zeros((n_features, n_features), np.uint8)
        (own,), (own_status,) = estimate_correlations(pairs, self.estimate, map_items, firsts)
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
            "common_rows": self._count_common_rows(pairs, rows),
            "null_quantiles": self._find_null_quantiles(state, pairs, rows, map_items, n_leading),
        }
        if has_errors:
            auxiliary |= self._collect_counts(pairs, own, rows, state.params.n_levels)._asdict()
            thresholds_error = compute_threshold_errors(*(a[0] for a in pairs.margins()))
            state = replace(state, params=replace(state.params, thresholds_error=thresholds_error))
        working = {**state.working, **polyserial._asdict()}
        return replace(state, working=working, auxiliary=auxiliary)

    def _count_common_rows(self, pairs: PairCounts, rows: Array) -> Array:
        """Return the number of rows that observe both features, (n_features, n_features).

        `rows` has those of continuous features and all others, continuous features first.
        """
        continuous, ordinal, firsts = self.continuous, self.ordinal, self.first_planes
        counts = np.zeros((len(self.features), len(self.features)))
        counts[np.ix_(continuous, np.concatenate([continuous, ordinal]))] = rows
        counts[np.ix_(ordinal, continuous)] = rows[:, len(continuous) :].T
        n = np.broadcast_to(pairs.table(0).n, (firsts[-1], firsts[-1]))
        counts[np.ix_(ordinal, ordinal)] = n[np.ix_(firsts[:-1], firsts[:-1])]
        return counts

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
        self,
        state: FitState,
        pairs: PairCounts,
        rows: Array,
        map_items: MapFunction,
        n_leading: int,
    ) -> Array:
        """Compute the 95 % quantile of each leading eigenvalue for independent features."""
        if not n_leading:
            return np.zeros(0)
        draw = partial(
            draw_mixed_null_spectrum,
            self.estimate,
            pairs.table(0)._replace(joint=np.zeros(0)),
            self.first_planes,
            describe_level_steps(state.params.thresholds, self.first_planes),
            rows,
            n_leading,
        )
        seeds = state.auxiliary["null_seeds"]
        spectra = np.array([*label_map(map_items, "null draws", len(seeds))(draw, seeds)])
        return find_null_thresholds(spectra)


def _get_pairs(working: Arrays) -> PolyserialPairs:
    return PolyserialPairs(*(working[name] for name in PolyserialPairs._fields))
