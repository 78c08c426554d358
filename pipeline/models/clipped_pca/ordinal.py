"""Clipped PCA of features with several ordered levels: polychoric correlations.

Model: x = W y + ε as in `model`, and feature i has level c or higher iff x_i > t_ic. A plane is the
indicator of a level c and all higher ones, so the thresholds are those of planes, from their
margins, and the counts of pairs of planes are the joint tables of features.

Correlations are two-step estimates (Olsson 1979): thresholds from the margins of the rows that
observe both features, then maximum likelihood, see `numerics.gaussian.polychoric`. All that follows
is as for binary features. A level without rows has no table entries; its two thresholds are equal.

Wide data are computed in strips, as binary ones, and strips have whole features. Only correlations
and statuses are stored, but no counts of pairs of planes.

Cost per block: n_planes² / 2 · n_samples / 64 word operations. One pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import Feature, find_first_planes
from pipeline.executors.base import MapFunction
from pipeline.models.clipped_pca.model import ClippedPCA, ClippedPCAParams
from pipeline.models.state import FitState
from pipeline.passes.row_ranges import RangeResults
from pipeline.statistics.correlations import CorrelationEstimator, estimate_polychoric
from pipeline.statistics.counts import (
    FeatureCounts,
    PairCounts,
    count_level_rows,
    make_empty_level_warnings,
)
from pipeline.statistics.level_null_spectrum import PlaneMargins, estimate_level_null_quantiles

Array = NDArray[np.float64]

MAX_PLANES = 8000
"""Maximum number of planes of one square of counts; wider data use strips."""


@dataclass(frozen=True)
class OrdinalClippedPCA(ClippedPCA):
    """Clipped PCA of features with several levels."""

    pair_counts: ClassVar[tuple[str, ...]] = ()  # they would have a row per plane

    @property
    def first_planes(self) -> NDArray[np.int64]:
        """First plane of each feature with levels, and the number of planes, (n_ordinal + 1,)."""
        return find_first_planes(self._ordinal_features)

    @property
    def _ordinal_features(self) -> tuple[Feature, ...]:
        """The features that have levels."""
        return self.structure.features

    @property
    def _estimator_function(self) -> CorrelationEstimator:
        return partial(estimate_polychoric, self.empty_cells, self.first_planes)

    def count_columns(self, n_planes: int) -> NDArray[np.int64]:
        """Return the number of planes of each feature, 1 if it is continuous, (n_features,)."""
        return np.array([max(1, feature.n_planes) for feature in self.structure.features], np.int64)

    def has_pair_tables(self, n_features: int) -> bool:
        """Return whether there are too many features or columns for one square."""
        columns = self.count_columns(n_features)
        return super().has_pair_tables(len(columns)) or int(columns.sum()) > self._max_columns

    @property
    def _max_columns(self) -> int:
        return MAX_PLANES

    def _describe_size(self, n_features: int) -> tuple[str, str]:
        (limit, size), n_planes = super()._describe_size(n_features), self.first_planes[-1]
        levels = "levels above the lowest ones"
        return (
            f"{limit} with {MAX_PLANES} {levels}",
            f"{size} features with {n_planes} {levels}",
        )

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of squares of planes and of features, given the number of planes."""
        if self.has_pair_tables(n_features):
            return super().estimate_memory(n_features, n_segments, n_threads)
        pairs = 8 * n_features**2 * (6 + 5 * n_threads)
        return pairs + super().estimate_memory(len(self.structure.features), n_segments, n_threads)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the margins and fix the thresholds; report levels without rows."""
        level_rows = count_level_rows(first, self._ordinal_features)
        state = super().initialize(first, rng)
        consequence = "the fit gives these levels a probability of 0 or nearly 0"
        warnings = make_empty_level_warnings(level_rows, consequence)
        state = replace(state, warnings=state.warnings + warnings)
        return state.with_feature_names([feature.name for feature in self._ordinal_features])

    def _make_first_params(self, thresholds: Array) -> ClippedPCAParams:
        n_levels = np.diff(self.first_planes) + 1
        loadings = np.zeros((len(n_levels), 0))
        return replace(super()._make_first_params(thresholds), loadings=loadings, n_levels=n_levels)

    def _find_constant_features(
        self, first: FeatureCounts, is_constant: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Return the features of which all planes are constant."""
        return np.flatnonzero(np.logical_and.reduceat(is_constant, self.first_planes[:-1]))

    def _name_features(self, features: NDArray[np.intp]) -> tuple[str, ...]:
        """Return the names of features: an index in a message would stand for a plane."""
        return tuple(self.structure.features[feature].name for feature in features.tolist())

    def update(
        self,
        state: FitState,
        statistics: PairCounts,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Compute the correlations, their spectrum, and the loadings."""
        state = super().update(state, statistics, map_items, rng)
        return state.with_feature_names(self.structure.feature_names)

    def update_from_pairs(
        self,
        state: FitState,
        results: RangeResults,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Compute the spectrum of the strips by products, and the loadings."""
        state = super().update_from_pairs(state, results, map_items, rng)
        return state.with_feature_names(self.structure.feature_names)

    def _estimate_null_quantiles(
        self, state: FitState, n_leading: int, map_items: MapFunction, rng: np.random.Generator
    ) -> Array:
        """Compute the 95 % quantile of each leading eigenvalue from the margins alone."""
        total, observed, ones = (state.working[name] for name in ("total", "observed", "ones"))
        margins = PlaneMargins(int(total), observed, ones, self.first_planes)
        numbers = self._count_numbers(state)
        return estimate_level_null_quantiles(
            margins, numbers, self.empty_cells, n_leading, map_items, rng
        )

    def _count_numbers(self, state: FitState) -> NDArray[np.int64]:
        """Count the values of each continuous feature that varies, (n_varying,)."""
        return np.zeros(0, np.int64)
