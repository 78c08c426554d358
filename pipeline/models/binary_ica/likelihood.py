"""Binary ICA by full likelihood: the model of BLICA, with all that rows say of it.

Model, in segment u: z ~ N(μ, diag σ²), y = A z, P(x_i = 1 | z) = Φ(√(π/8) y_i + c_i); A and c are
the same in all segments (A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent Component
Analysis: A Non-stationarity-based Approach", UAI 2022, eqs 2–7, whose c is 0). Other than to BLICA,
the means of the features tell something of A too.

Fit: log P(x), an orthant probability (eq. 7), is climbed from where BLICA ends at a ridge of 20, by
scoring (`climbing`): a pass sums the scores of all rows and their products, each distinct row of a
block once. P(x) is integrated over z where there are one or two components
(`numerics.probit_quadrature`), and approximated by expectation propagation where there are more
(`numerics.probit_scores`). The maximum is that of the posterior under priors whose variances are
found from the data: log σ² about 0 for the mean over segments, μ and c about 0, the lengths of the
rows of A about a common one.

==========  ====================  ==============================================
symbol      field                 shape
==========  ====================  ==============================================
A           mixing                (n_features, n_components)
c           offsets               (n_features,)
μ           source_means          (n_segments, n_components)
σ²          source_variances      (n_segments, n_components)
s.e. of A   mixing_error          (n_features, n_components)
s.e. of c   offsets_error         (n_features,)
of log σ²   log_variances_error   (n_segments, n_components)
==========  ====================  ==============================================

Missing values are left out of P(x): right where they are missing at random.
Cost a distinct row of a block: that of its scores, and (n_features n_components)² for their
products. Passes: 10 to 30, and one that counts pairs.
Not identifiable: order, signs and lengths of columns (by explained variance, the entry of largest
size positive, length 1); sources whose means and variances change alike; all but the prior's word
on how long a row of A is beside the noise, where there are as many components as features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock
from pipeline.errors import Notice
from pipeline.executors.base import Map
from pipeline.executors.serial import SerialExecutor
from pipeline.learning.convergence import ByExpectedGain
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.climbing import (
    Priors,
    first_priors,
    log_prior,
    refreshed,
    share_of,
    standard_errors,
    summit,
)
from pipeline.models.binary_ica.likelihood_params import BinaryICALikelihoodParams, Point
from pipeline.models.binary_ica.moment_matching.notices import judge_mixing
from pipeline.models.binary_ica.params import BLICAParams
from pipeline.models.binary_ica.probit_ica import ProbitICA
from pipeline.models.binary_ica.scoring import Score, score_sums
from pipeline.models.settings import check_choices, check_components
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.orthant_scores import orthant_scores
from pipeline.numerics.probit_quadrature import MAX_COMPONENTS, quadrature_scores
from pipeline.numerics.probit_scores import propagation_scores
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.scores import ScoreSums

Array = NDArray[np.float64]

_RIDGE = 20.0
_LEAST_SHARE = 1 / 32
_LARGEST_DEVIATION = 3.0  # of a log variance to begin with


@dataclass(frozen=True)
class BinaryICALikelihood(ProbitICA):
    """Hyperparameters of binary ICA by likelihood.

    Attributes
    ----------
    n_components
        Number of components; None takes as many as BLICA finds.
    likelihood
        How log P(x) is found: `exact` integrates it, which takes at most 20 features or 2
        components; `ep` approximates it by expectation propagation; `auto` is exact up to 2
        components.
    starts
        Random starts of the BLICA fit that this one starts from.
    max_iter
        Passes at the most.
    tol
        Nats that a further step should gain, in all rows together, below which the fit ends.
    """

    name: ClassVar[str] = "binary-ica-likelihood"
    first: ClassVar[type[PairCounts]] = PairCounts
    statistics: ClassVar[type[ScoreSums]] = ScoreSums
    params: ClassVar[type[BinaryICALikelihoodParams]] = BinaryICALikelihoodParams
    shown: ClassVar[tuple[str, ...]] = ("likelihood", "likelihood_error")
    n_components: int | None = None
    likelihood: Literal["auto", "exact", "ep"] = "auto"
    starts: int = 3
    max_iter: int = 100
    tol: float = 0.01

    def __post_init__(self) -> None:
        check_components(self)
        check_choices(self)
        check_passes(self)
        self._start()

    def _start(self) -> BLICA:
        """Give the model whose fit this one begins at."""
        ridge = None if self.n_components is None else _RIDGE
        return BLICA(self.n_components, ridge, starts=self.starts)

    def memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Bytes of the products of scores, and of what the start needs."""
        n_components = self.n_components or n_features
        n_shared, n_own = n_features * (n_components + 1), 2 * n_components
        products = n_shared**2 + n_segments * n_own * n_shared
        start = self._start().memory(n_features, n_segments, n_threads)
        return max(start, 8 * products * (2 * n_threads + 4))
