"""Maximum likelihood of the couplings of given edges: the moments of the model become the data's.

The gradient by h_i and J_ij is the difference of the means of x_i and of x_i x_j in the data and in
the model. Of few features, all states are enumerated, and Newton's method with the exact
information converges in a few steps. Of more, Gibbs chains that continue from step to step estimate
the moments. Steps match the covariances, which hardly depend on the thresholds, and the margins;
each is scaled by the variances of its features. Step sizes decrease, and the result is the mean of
the second half (B. T. Polyak, A. B. Juditsky, SIAM J. Control Optim. 30, 1992).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.networks.ising_states import run_chains
from pipeline.numerics.networks.unit_states import list_states

MAX_NEWTON_FEATURES = 16
MAX_FEATURES = 200
"""Most features whose moments Gibbs chains match."""
_NEWTON_STEPS, _SETTLED = 100, 1e-12
_LEAST_RIDGE = 1e-8
_CHAINS, _STEPS, _SWEEPS = 2000, 500, 2
_FIRST_STEP, _LAST_STEP = 0.3, 0.02


class MatchedMoments(NamedTuple):
    """Parameters whose moments are those of the data.

    Attributes
    ----------
    thresholds, couplings
        (n_features,) and (n_features, n_features).
    covariance
        Inverse of the information of one row about the thresholds and then the edges, in the order
        of `numpy.triu_indices`; None if it is not known.
    largest_difference
        Largest difference of a mean or of a covariance of an edge from that of the data.
    """

    thresholds: Array
    couplings: Array
    covariance: Array | None
    largest_difference: float


def match_moments(
    thresholds: Array,
    couplings: Array,
    is_edge: NDArray[np.bool_],
    joint: Array,
    rng: np.random.Generator,
) -> MatchedMoments:
    """Return the maximum of the likelihood, from a start near it.

    `is_edge` is symmetric, and `joint` has the shares of rows in which both features are 1, on the
    diagonal those in which a feature is; both (n_features, n_features). No feature is constant.
    """
    if len(thresholds) <= MAX_NEWTON_FEATURES:
        return _enumerate(thresholds, couplings, is_edge, joint)
    return _follow_chains(thresholds, couplings, is_edge, joint, rng)


def _enumerate(
    thresholds: Array, couplings: Array, is_edge: NDArray[np.bool_], joint: Array
) -> MatchedMoments:
    n = len(thresholds)
    left, right = np.nonzero(np.triu(is_edge))
    X = list_states(n).astype(np.float64)
    T = np.hstack([X, X[:, left] * X[:, right]])
    target = np.concatenate([np.diagonal(joint), joint[left, right]])
    theta = np.concatenate([thresholds, couplings[left, right]])
    objective, change, size = -np.inf, np.zeros_like(theta), 1.0
    covariance, mean = np.eye(len(theta)), target
    for _ in range(_NEWTON_STEPS):
        nats = T @ theta
        log_z = np.logaddexp.reduce(nats)
        found = target @ theta - log_z - _LEAST_RIDGE / 2 * theta @ theta
        if found < objective - 1e-12 * abs(objective):
            size /= 2
            theta = theta - size * change
            continue
        objective, size = found, 1.0
        shares = np.exp(nats - log_z)
        mean = shares @ T
        information = (T * shares[:, None]).T @ T - np.outer(mean, mean)
        information += _LEAST_RIDGE * np.eye(len(theta))
        gradient = target - mean - _LEAST_RIDGE * theta
        covariance = np.linalg.inv(information)
        change = covariance @ gradient
        theta = theta + change
        if gradient @ change < _SETTLED:
            break
    matched = np.zeros((n, n))
    matched[left, right] = matched[right, left] = theta[n:]
    return MatchedMoments(theta[:n], matched, covariance, float(np.abs(target - mean).max()))


def _follow_chains(
    thresholds: Array,
    couplings: Array,
    is_edge: NDArray[np.bool_],
    joint: Array,
    rng: np.random.Generator,
) -> MatchedMoments:
    n, margins = len(thresholds), np.diagonal(joint).copy()
    covariance, variances = joint - np.outer(margins, margins), margins * (1 - margins)
    scales = np.where(is_edge, np.outer(variances, variances), np.inf)
    start, key = np.log(margins / (1 - margins)), np.uint64(rng.integers(2**63))
    chains = (rng.random((_CHAINS, n)) < margins).astype(np.uint8)
    nothing, draw = np.zeros(_CHAINS), 0
    betas = np.minimum(np.linspace(0, 2, 101), 1.0)
    sums, off = (np.zeros(n), np.zeros((n, n))), np.zeros((n, n))
    for step in range(_STEPS):
        check_cancelled()
        run_chains(thresholds, couplings, start, key, draw, betas, chains, nothing)
        draw += n * (len(betas) - 1)
        betas = np.ones(_SWEEPS + 1)
        X = chains.astype(np.float64)
        means = X.mean(axis=0)
        found = X.T @ X / _CHAINS - np.outer(means, means)
        size = _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** (step / _STEPS)
        change = size * (covariance - found) / scales
        couplings = couplings + change
        # The margins stay about as they are while couplings change.
        thresholds = thresholds + size * (margins - means) / variances - change @ margins
        if step >= _STEPS // 2:
            sums = sums[0] + thresholds, sums[1] + couplings
            off += np.where(is_edge, covariance - found, 0.0) + np.diag(margins - means)
    n_kept = _STEPS - _STEPS // 2
    largest = float(np.abs(off).max()) / n_kept
    return MatchedMoments(sums[0] / n_kept, sums[1] / n_kept, None, largest)
