"""Steps of Newton's method in the packed parameters of the mixture, see `learning.convergence`.

The M-step moves from θ to M(θ), and the gradient is about J (M(θ) − θ), where J is the information
if the classes were known. Unlike the gradient, this stays accurate if a probability is far from its
optimum because a sample has no rows there. J is diagonal for log-odds, means and log-deviations.

Parameters are scaled by the root of J, computed from the parameters: then their information is I −
R, where R is the rate matrix of EM, and a step of EM is that of the information I. A sample can
tell R better than J, which is another one for all rows. Directions whose information is small, or
negative by chance, are taken to have the least information.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.models.bernoulli_mixture.gaussians import find_bounded
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams

_LEAST_INFORMATION = 0.03  # of a direction, compared with that if the classes were known


def compute_scales(params: BernoulliMixtureParams, weight: float, pseudo_counts: Array) -> Array:
    """Return the root of J of the packed parameters, (p,), if no values are missing.

    `weight` is that of all rows, and `pseudo_counts` are those of each score, (n_scores,).
    """
    n_planes = params.probabilities.shape[1]
    mass, p = weight * params.weights[:, None], params.continuation
    reached = params.probabilities / p
    parts = [(mass * reached + pseudo_counts[:n_planes]) * p * (1 - p)]
    if params.gaussians is not None:
        total = mass + pseudo_counts[n_planes : n_planes + params.n_numbers]
        overall = params.gaussians.overall_deviations
        parts += [total * (overall / params.gaussians.deviations) ** 2, 2 * total]
    if params.groups is not None:
        own = params.groups.group_class_weights
        parts.append(weight * own / len(own))
    else:
        n_predictors = 1 if params.regression is None else 1 + len(params.regression.coefficients)
        parts.append(np.tile(mass.T, (n_predictors, 1)))
    scales: Array = np.sqrt(np.concatenate([part.ravel() for part in parts]))
    return scales


def pack_information(
    information: Array, params: BernoulliMixtureParams, predictor_units: Array
) -> Array:
    """Return the information about packed parameters, (p, p).

    Parameters
    ----------
    information
        The result of `compute_information`.
    params
        Parameters.
    predictor_units
        Units of the predictors that the packed coefficients are for, (n_predictors,).
    """
    n_components, n_planes = params.probabilities.shape
    n_numbers, n_predictors = params.n_numbers, len(predictor_units)
    units = np.ones((n_components, n_planes + 2 * n_numbers + n_predictors))
    if params.gaussians is not None:
        ratio = params.gaussians.overall_deviations / params.gaussians.deviations
        units[:, n_planes : n_planes + n_numbers] = ratio
    units[:, n_planes + 2 * n_numbers :] = 1 / predictor_units
    places = np.arange(units.size).reshape(units.shape)
    cuts = [n_planes, n_planes + n_numbers, n_planes + 2 * n_numbers]
    *by_component, of_predictors = np.split(places, cuts, axis=1)
    order = np.concatenate([*(part.ravel() for part in by_component), of_predictors.T.ravel()])
    factors = units.ravel()[order]
    packed: Array = information[np.ix_(order, order)] * factors * factors[:, None]
    return packed


def invert_scaled_information(
    information: Array, params: BernoulliMixtureParams, scales: Array
) -> Array:
    """Return the inverse of the information about packed parameters times their scales, (p, p)."""
    scaled = information / scales / scales[:, None]
    is_fixed = _find_fixed(params)
    scaled[is_fixed], scaled[:, is_fixed] = 0.0, 0.0
    scaled[is_fixed, is_fixed] = 1.0
    values, vectors = scipy.linalg.eigh(scaled)
    root = vectors / np.sqrt(np.maximum(values, _LEAST_INFORMATION))
    inverse: Array = root @ root.T
    return inverse


def _find_fixed(params: BernoulliMixtureParams) -> NDArray[np.intp]:
    """Return the places of packed deviations at their bound, which only EM moves."""
    if params.gaussians is None:
        return np.empty(0, np.intp)
    first = params.probabilities.size + params.gaussians.means.size
    places: NDArray[np.intp] = first + np.flatnonzero(find_bounded(params.gaussians))
    return places
