"""Binary ICA by likelihood of features with several ordered levels.

Model: as in `likelihood`, and feature i has level c or higher iff √(π/8) a_i·z + c_ic + ε > 0, with
ε ~ N(0, 1). A plane is the indicator of a level c and all higher ones. The c_ic are common to all
segments and decrease in c; their mean over c is c_i. P(x) is the probability of a rectangle.
`numerics.probit.interval_scores` integrates it over z for one or two components, and approximates
it by expectation propagation for more.

The fit starts from BLICA of levels and takes the same steps, with the log gaps between neighbouring
c_ic as further shared parameters; see `level_gaps`. Their prior is N(0, 4).

Cost per distinct row of a block: about three times as many operations as for binary features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.likelihood import (
    BinaryICALikelihood,
    ScoreFunction,
    ScoreMethod,
)
from pipeline.models.binary_ica.scoring_steps import BinaryICALikelihoodParams
from pipeline.models.state import FitState
from pipeline.numerics.probit.interval_scores import (
    interval_ep_scores,
    interval_quadrature_scores,
)
from pipeline.numerics.probit.probit_scores import MAX_COMPONENTS, ProbitScores
from pipeline.statistics.sums import ScoreSums

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]


@dataclass(frozen=True)
class OrdinalBinaryICALikelihood(BinaryICALikelihood):
    """Binary ICA by likelihood of features with several levels."""

    def _make_start_model(self) -> BLICA:
        model: BLICA = super()._make_start_model().with_structure(self.structure)
        return model

    def _count_features(self, n_planes: int) -> int:
        return len(self.structure.features)

    def _estimate_nanoseconds(self, n_features: int, n_components: int) -> float:
        if self._choose_method(n_features, n_components) == "ep":
            return 450.0 * n_components
        return 4200.0 if n_components == 1 else 23_000.0

    def _choose_method(self, n_features: int, n_components: int) -> ScoreMethod | None:
        method = super()._choose_method(n_features, n_components)
        return None if method == "orthant" else method

    def _check_exact(self, n_features: int, n_components: int) -> None:
        if self._choose_method(n_features, n_components) is None:
            raise FitError(
                f"{{likelihood=exact}} takes at most {MAX_COMPONENTS} components if some features "
                f"are not binary, but there are {n_components}. Use {{likelihood=ep}}, or fewer "
                "components.",
                parameter="likelihood",
            )

    def _find_score_function(self, params: BinaryICALikelihoodParams) -> ScoreFunction:
        is_ep = self._choose_method(*params.mixing.shape) == "ep"
        score_levels = interval_ep_scores if is_ep else interval_quadrature_scores
        n_planes = np.array([feature.n_planes for feature in self.structure.features])
        return partial(score_planes, score_levels, n_planes)

    def finish(self, state: FitState, statistics: ScoreSums) -> FitState:
        """Finish the fit, and name the features of warnings."""
        state = super().finish(state, statistics)
        return state.with_feature_names(self.structure.feature_names)


def score_planes(
    score_levels: Callable[..., ProbitScores],
    n_planes: NDArray[np.int64],
    X: Bits,
    weights: Array,
    offsets: Array,
    observed: Bits,
    values: Array | None = None,
) -> ProbitScores:
    """Score rows of planes, (n_samples, n_planes), by a function of levels.

    `n_planes` are the numbers of planes of the features, 0 of continuous ones, (n_features,), and
    `values` those of the continuous features, see `interval_codes`.
    """
    has_levels = n_planes > 0
    own = n_planes[has_levels]
    firsts, order = np.cumsum(own) - own, np.argsort(~has_levels, kind="stable")
    levels = np.add.reduceat(X, firsts, axis=1, dtype=np.uint8)
    scores = score_levels(levels, weights[order], offsets, own + 1, observed[:, firsts], values)
    by_weight = np.empty_like(scores.weights)
    by_weight[:, order] = scores.weights
    return scores._replace(weights=by_weight)
