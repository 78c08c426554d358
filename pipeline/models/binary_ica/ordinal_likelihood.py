"""Binary ICA by likelihood of features with several ordered levels.

Model: as in `likelihood`, and feature i has level c or higher iff √(π/8) a_i·z + c_ic + ε > 0, with
ε ~ N(0, 1). A plane is the indicator of a level c and all higher ones. The c_ic are common to all
segments and decrease in c; their mean over c is c_i. P(x) is the probability of a rectangle.
`numerics.probit.probit_scores` integrates it over z for one or two components, and approximates
it by expectation propagation for more.

The fit starts from BLICA of levels and takes the same steps, with the log gaps between neighbouring
c_ic as further shared parameters; see `level_gaps`. Their prior is N(0, 4).

Cost per distinct row of a block: about three times as many operations as for binary features.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.errors import FitError
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.likelihood import BinaryICALikelihood, ScoreMethod
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.numerics.probit.probit_scores import MAX_COMPONENTS
from pipeline.statistics.sums import ScoreSums


@dataclass(frozen=True)
class OrdinalBinaryICALikelihood(BinaryICALikelihood):
    """Hyperparameters of binary ICA by likelihood of features with several levels.

    Attributes
    ----------
    structure
        The features.
    """

    structure: Structure = field(default_factory=Structure, metadata={"is_setting": False})

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

    def finish(self, state: FitState, statistics: ScoreSums) -> FitState:
        """Finish the fit, and name the features of warnings."""
        state = super().finish(state, statistics)
        return state.with_feature_names(self.structure.feature_names)
