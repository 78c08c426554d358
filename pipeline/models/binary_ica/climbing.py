"""Steps up the posterior of binary ICA by scoring, and what is known about where they end.

The information is that of the products of scores (Berndt, Hall, Hall & Hausman 1974), with the
precision of the priors. Parameters of single segments meet those of others only through the shared
ones, so that they are eliminated segment by segment. Priors are normal with variances found from
the data (empirical Bayes by Laplace's approximation, a step of EM a pass).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.models.binary_ica.likelihood_params import Point
from pipeline.statistics.scores import ScoreSums

Array = NDArray[np.float64]

_LEAST_VARIANCE = 1e-4
_UNIFORM_ENTRIES = 0.2
_LONGEST = 1.0  # change of a log variance, or of A by its largest entry


class Priors(NamedTuple):
    """Variances of normal priors.

    Attributes
    ----------
    norms
        Of log ‖a_i‖ about its mean over features. Its own prior holds it near that of rows whose
        K entries are uniform, 0.2 / K: at as many components as features the data say next to
        nothing of it.
    offsets, means, log_variances
        Of c, μ and log σ² about 0.
    """

    norms: float
    offsets: float
    means: float
    log_variances: float


class Summit(NamedTuple):
    """What the scores at a point say of the summit of its posterior.

    Attributes
    ----------
    step
        The way there.
    gain
        What it should add to the log posterior, nats.
    covariance
        Of A and c, (n_shared, n_shared).
    own_covariance, mixed_covariance
        Of μ and log σ² in each segment, (n_segments, n_own, n_own), and with A and c,
        (n_segments, n_own, n_shared).
    """

    step: Point
    gain: float
    covariance: Array
    own_covariance: Array
    mixed_covariance: Array


def first_priors(point: Point) -> Priors:
    """Priors to begin with."""
    spread = float((point.offsets**2).mean())
    return Priors(_UNIFORM_ENTRIES / point.mixing.shape[1], max(spread, 0.25), 0.25, 1.0)


def log_prior(point: Point, priors: Priors) -> float:
    """Log density of a point under the priors, up to a constant."""
    logs = (
        (value**2).sum() / variance + value.size * np.log(variance)
        for value, variance in zip(_values(point), priors, strict=True)
    )
    return float(-0.5 * sum(logs))


def _values(point: Point) -> tuple[Array, ...]:
    """Give what the priors are of, in their order."""
    return _log_norms(point.mixing), *point[1:]


def _log_norms(mixing: Array) -> Array:
    """Give log ‖a_i‖ less its mean, (n_features,)."""
    logs = np.log(np.linalg.norm(mixing, axis=1))
    return np.asarray(logs - logs.mean())


def summit(sums: ScoreSums, point: Point, priors: Priors) -> Summit:
    """Find the summit of the posterior's quadratic approximation.

    Raises
    ------
    FitError
        If the scores are not finite.
    """
    if not (np.isfinite(sums.gradient).all() and np.isfinite(sums.own_gradient).all()):
        raise FitError(
            "Expected finite derivatives of the likelihood, got NaN or infinity. "
            "Fit fewer components, or start from another --seed."
        )
    gradient, precision = _shared_prior(point, priors)
    gradient += sums.gradient
    own_gradient, own_precision = _own_prior(point, priors)
    own_gradient += sums.own_gradient
    own = np.linalg.inv(sums.own_information + own_precision)
    taken = own @ sums.mixed_information  # (n_segments, n_own, n_shared)
    flat = (-1, len(gradient))
    precision += sums.information - sums.mixed_information.reshape(flat).T @ taken.reshape(flat)
    covariance = _inverse(precision)
    step = covariance @ (gradient - np.einsum("uap,ua->p", taken, own_gradient))
    own_step = np.einsum("uab,ub->ua", own, own_gradient) - taken @ step
    mixed = -taken @ covariance
    return Summit(
        _as_point(step, own_step, point),
        0.5 * float(gradient @ step + (own_gradient * own_step).sum()),
        covariance,
        own - mixed @ taken.transpose(0, 2, 1),
        mixed,
    )


def _shared_prior(point: Point, priors: Priors) -> tuple[Array, Array]:
    """Gradient of the log prior by A and c, and its precision."""
    mixing, n_entries = point.mixing, point.mixing.size
    # d log ‖a‖ / da; what a row's norm moves the mean of all by is left out of the precision.
    slopes = mixing / (mixing**2).sum(axis=1, keepdims=True)
    pull = -_log_norms(mixing)[:, None] * slopes / priors.norms
    blocks = slopes[:, :, None] * slopes[:, None] / priors.norms
    n_offsets = len(point.offsets)
    precision = np.zeros((n_entries + n_offsets,) * 2)
    precision[:n_entries, :n_entries] = scipy.linalg.block_diag(*blocks)
    precision[n_entries:, n_entries:] = np.eye(n_offsets) / priors.offsets
    return np.concatenate([pull.ravel(), -point.offsets / priors.offsets]), precision


def _own_prior(point: Point, priors: Priors) -> tuple[Array, Array]:
    """Gradient of the log prior by μ and log σ² of each segment, and its precision."""
    variances = np.repeat([priors.means, priors.log_variances], point.means.shape[1])
    values = np.hstack([point.means, point.log_variances])
    return -values / variances, np.diag(1 / variances)


def _inverse(precision: Array) -> Array:
    """Invert a positive definite matrix, all but singular where a direction has no information."""
    scale = np.sqrt(np.diag(precision))
    factor = scipy.linalg.cho_factor(precision / np.outer(scale, scale) + 1e-9 * np.eye(len(scale)))
    inverse = scipy.linalg.cho_solve(factor, np.eye(len(scale)))
    return np.asarray(inverse / np.outer(scale, scale))


def _as_point(step: Array, own_step: Array, like: Point) -> Point:
    n_entries, n_components = like.mixing.size, like.mixing.shape[1]
    return Point(
        step[:n_entries].reshape(like.mixing.shape),
        step[n_entries:],
        own_step[:, :n_components],
        own_step[:, n_components:],
    )


def refreshed(point: Point, found: Summit) -> Priors:
    """Give the variances of priors that the point and what is not known of it ask for."""
    n_entries, n_components = point.mixing.size, point.mixing.shape[1]
    slopes = point.mixing / (point.mixing**2).sum(axis=1, keepdims=True)
    blocks = found.covariance[:n_entries, :n_entries].reshape(2 * point.mixing.shape)
    norms = np.einsum("ik,ikil,il->i", slopes, blocks, slopes)
    own = np.diagonal(found.own_covariance, axis1=1, axis2=2)
    unknown = (
        norms,
        np.diag(found.covariance)[n_entries:],
        own[:, :n_components],
        own[:, n_components:],
    )
    asked = zip(_values(point), unknown, strict=True)
    variances = Priors(*(max(float((v**2 + u).mean()), _LEAST_VARIANCE) for v, u in asked))
    # The prior of the first weighs as much as all rows of A.
    return variances._replace(norms=(variances.norms + _UNIFORM_ENTRIES / n_components) / 2)


def share_of(step: Point, point: Point) -> float:
    """Give the share of a step beyond which the quadratic approximation is not to be trusted."""
    longest = max(
        float(np.abs(step.log_variances).max()),
        float(np.abs(step.mixing).max() / np.abs(point.mixing).max()),
    )
    return min(1.0, _LONGEST / longest) if longest > 0 else 1.0


def standard_errors(point: Point, found: Summit) -> tuple[Array, Array, Array]:
    """Standard errors of A with columns of length 1, of c, and of log σ² at that length.

    By the delta method: of a column a of length l the entries of a / l move by (I − a aᵀ / l²) / l
    times the change of a, and log σ² by 2 aᵀ / l² times it.
    """
    n_features, n_components = point.mixing.shape
    n_entries = point.mixing.size
    errors = np.empty((n_features, n_components))
    log_variances = np.empty(point.log_variances.shape)
    own = np.diagonal(found.own_covariance, axis1=1, axis2=2)[:, n_components:]
    for k, column in enumerate(point.mixing.T):
        at = np.arange(k, n_entries, n_components)
        covariance, along = found.covariance[np.ix_(at, at)], column / (column @ column)
        across = (np.eye(n_features) - np.outer(column, along)) / np.linalg.norm(column)
        errors[:, k] = np.einsum("ij,jl,il->i", across, covariance, across)
        mixed = found.mixed_covariance[:, n_components + k, at]
        log_variances[:, k] = own[:, k] + 4 * along @ covariance @ along + 4 * mixed @ along
    offsets = np.diag(found.covariance)[n_entries:]
    return _root(errors), _root(offsets), _root(log_variances)


def _root(variances: Array) -> Array:
    """Give standard errors; a variance is below 0 by rounding alone."""
    return np.asarray(np.sqrt(np.maximum(variances, 0)))
