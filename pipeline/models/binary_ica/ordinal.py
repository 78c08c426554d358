"""BLICA of features with several ordered levels: polychoric correlations and scales.

Model: as in `blica`, and feature i has level c or higher iff √(π/8) a_i·z + ε > τ_ic. A plane is
the indicator of a level c and all higher ones. The τ are common to all segments and have a mean of
0 in each feature, as the threshold of a binary feature is 0.

The fit differs in two ways:

1. Correlations are polychoric: two-step estimates by maximum likelihood (Olsson 1979), see
   `numerics.gaussian.polychoric`.
2. The thresholds of a feature are equally far apart in all segments, so the levels of a segment
   measure the standard deviation s_ui of its latent, up to a constant of the feature; see
   `level_margins`. Step 3, which fits the variances of the sources, matches them too: log Q_ui =
   constant_i − log s_ui, with an error that depends on the rows at each level. Step 2 does not: in
   simulated data, the errors of the s_ui made the mixing worse.

Held-out rows are scored by the likelihood of all pairs of planes of two features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import Feature, find_first_planes, select_with_levels
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.state import FitState
from pipeline.statistics.counts import (
    FeatureCounts,
    PairCounts,
    count_level_rows,
    make_empty_level_warnings,
)


@dataclass(frozen=True)
class OrdinalBLICA(BLICA):
    """BLICA of features with several levels."""

    @property
    def first_planes(self) -> NDArray[np.int64]:
        """First plane of each feature, and the number of planes, (n_features + 1,)."""
        return find_first_planes(self.structure.features)

    @property
    def _ordinal_features(self) -> tuple[Feature, ...]:
        """The features that have levels."""
        return select_with_levels(self.structure.features)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the margins, and report levels without rows."""
        level_rows = count_level_rows(first, self._ordinal_features)
        try:
            state = super().initialize(first, rng)
        except FitError as error:
            raise error.with_names(self.structure.feature_names) from None
        consequence = "the fit gives these levels a probability of nearly 0"
        warnings = make_empty_level_warnings(level_rows, consequence)
        state = replace(state, warnings=state.warnings + warnings)
        return state.with_feature_names([feature.name for feature in self._ordinal_features])

    def update(
        self,
        state: FitState,
        statistics: PairCounts,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Match the correlations and scales of the segments, and add warnings."""
        try:
            state = super().update(state, statistics, map_items, rng)
        except FitError as error:
            raise error.with_names(self.structure.feature_names) from None
        return state.with_feature_names(self.structure.feature_names)
