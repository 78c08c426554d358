"""Matches correlations to rounding error, where they are known rather than estimated.

The likelihood is flat near its maximum, so that climbing it gives half of the digits. Differences
of the correlations themselves, squared, give all: C_ij = L_i·L_j / √((1 + ‖L_i‖²) (1 + ‖L_j‖²)),
L = A S^½, in every segment (see `objective` for the symbols).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.models.binary_ica.moment_matching.objective import MatchSolution, SegmentMoments
from pipeline.models.binary_ica.moment_matching.optimiser import draw_start, maximise

Array = NDArray[np.float64]

EXACT_RESIDUAL = 1e-20
"""Sum of squared differences that only rounding errors are below."""
_START_TOLERANCE = 1e-5
_ROUNDING = 1e-15
_MAX_EVALUATIONS = 200


class ExactMatch(NamedTuple):
    """What matches best.

    Attributes
    ----------
    solution
        The unknowns.
    residual
        Sum of the squared differences of correlations, over pairs i < j and segments.
    """

    solution: MatchSolution
    residual: float


def match_exactly(correlation: Array, n_components: int, seeds: Iterable[int]) -> ExactMatch:
    """Find a mixing and variances that give these correlations.

    From each start the likelihood is climbed until it is nearly flat, then the squared differences
    are brought down by a trust-region Gauss-Newton method.

    Parameters
    ----------
    correlation
        Correlations of each segment, unit diagonal, (n_segments, n_features, n_features).
    n_components
        Number of components, from 1 to n_features.
    seeds
        One a start; they end with the first that leaves no more than `EXACT_RESIDUAL`.

    Returns
    -------
    ExactMatch
        Of the start with the least residual. Where the model is not identifiable this is one of
        many with none.

    Raises
    ------
    FitError
        If the number of components is out of range.
    """
    n_segments, n_features, _ = correlation.shape
    if not 1 <= n_components <= n_features:
        raise FitError(
            f"Expected 1 to {n_features} components, got {n_components}. Choose another number."
        )
    flat = np.zeros(n_segments)
    counts = np.ones((n_segments, n_features), bool)
    moments = SegmentMoments(correlation, counts, flat + 1 / n_segments, flat, flat)
    found: list[ExactMatch] = []
    for seed in seeds:
        near = maximise(moments, draw_start(moments, n_components, seed), _START_TOLERANCE).solution
        found.append(_polish(correlation, near))
        if found[-1].residual <= EXACT_RESIDUAL:
            break
    return min(found, key=lambda match: match.residual)


def _polish(correlation: Array, start: MatchSolution) -> ExactMatch:
    n_components = start.mixing.shape[1]
    # A step too far overflows and is taken back.
    with np.errstate(over="ignore", invalid="ignore"):
        result = scipy.optimize.least_squares(
            residuals,
            np.concatenate([start.mixing.ravel(), start.log_variances.ravel()]),
            jacobian,
            args=(correlation, n_components),
            x_scale="jac",
            ftol=_ROUNDING,
            xtol=_ROUNDING,
            gtol=_ROUNDING,
            max_nfev=_MAX_EVALUATIONS,
        )
    mixing, log_variances = _unpack_unknowns(result.x, correlation, n_components)
    precisions = 0.5 * np.log1p(np.exp(log_variances) @ mixing.T**2)
    return ExactMatch(MatchSolution(mixing, log_variances, precisions), 2 * float(result.cost))


def residuals(flat: Array, correlation: Array, n_components: int) -> Array:
    """Subtract given correlations from those of the model.

    Parameters
    ----------
    flat
        The mixing, then the log variances, row by row.
    correlation
        Given, (n_segments, n_features, n_features).
    n_components
        Number of components.

    Returns
    -------
    ndarray
        Of the pairs i < j of each segment, (n_segments · n_pairs,).
    """
    i, j = np.triu_indices(correlation.shape[1], 1)
    _, _, _, directions = _signal_terms(flat, correlation, n_components)
    implied = (directions[:, i] * directions[:, j]).sum(axis=2)
    differences: Array = (implied - correlation[:, i, j]).ravel()
    return differences


def jacobian(flat: Array, correlation: Array, n_components: int) -> Array:
    """Differentiate `residuals` by the unknowns, (n_segments · n_pairs, n_unknowns)."""
    n_segments, n_features, _ = correlation.shape
    i, j = np.triu_indices(n_features, 1)
    pairs, each = np.arange(len(i)), np.arange(n_segments)
    roots, signal, norms, directions = _signal_terms(flat, correlation, n_components)
    left, right = directions[:, i], directions[:, j]
    implied = (left * right).sum(axis=2, keepdims=True)
    by_left = (right - implied * left) / norms[:, i]
    by_right = (left - implied * right) / norms[:, j]
    by_mixing = np.zeros((n_segments, len(i), n_features, n_components))
    by_mixing[:, pairs, i] = by_left * roots
    by_mixing[:, pairs, j] = by_right * roots
    by_variances = np.zeros((n_segments, len(i), n_segments, n_components))
    by_variances[each, :, each] = 0.5 * (by_left * signal[:, i] + by_right * signal[:, j])
    n_rows = n_segments * len(i)
    return np.hstack([by_mixing.reshape(n_rows, -1), by_variances.reshape(n_rows, -1)])


def _unpack_unknowns(flat: Array, correlation: Array, n_components: int) -> tuple[Array, Array]:
    n_segments, n_features, _ = correlation.shape
    mixing, log_variances = np.split(flat, [n_features * n_components])
    return (
        mixing.reshape(n_features, n_components),
        log_variances.reshape(n_segments, n_components),
    )


def _signal_terms(
    flat: Array, correlation: Array, n_components: int
) -> tuple[Array, Array, Array, Array]:
    """S^½, L, √(1 + ‖L_i‖²) and their ratio, by segment, feature and component."""
    mixing, log_variances = _unpack_unknowns(flat, correlation, n_components)
    roots = np.exp(0.5 * log_variances)[:, None, :]
    signal = mixing * roots
    norms = np.sqrt(1 + (signal**2).sum(axis=2, keepdims=True))
    return roots, signal, norms, signal / norms
