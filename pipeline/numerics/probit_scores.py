"""Log-likelihoods of rows of a probit factor model and their derivatives, whatever found them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ProbitScores(NamedTuple):
    """Log P(x) of every row and its derivatives.

    `log_likelihood` (n_samples,) in nats; `error` (n_samples,), what it may be off by; `offsets`
    (n_samples, n_features), ∂ log P / ∂b_i of each row; `weights` (n_samples, n_features,
    n_components), ∂ log P / ∂w_ik of each row; `settled` (n_samples,), whether the row was solved
    to tolerance.
    """

    log_likelihood: Floats
    error: Floats
    offsets: Floats
    weights: Floats
    settled: NDArray[np.bool_]
