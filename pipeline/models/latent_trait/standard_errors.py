"""Standard errors of the latent-trait model, from scores and information summed over rows.

`louis`: the inverse of the observed information (T. A. Louis, JRSS B 44 (1982)). `crossproduct`:
that of the products of scores. `sandwich`: the first around the second (H. White, Econometrica 50
(1982)), which is right also where the model is not. With two or more components the weights are on
their principal axes, Σ_i w_ia w_ib = 0: errors are those under this constraint (R. I. Jennrich,
Psychometrika 39 (1974)).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.numerics.information import invert_information

Array = NDArray[np.float64]


class ItemErrors(NamedTuple):
    """Covariances of estimates, not a number for items whose information is singular.

    Attributes
    ----------
    covariance
        Of each item's weights and offset, (n_features, q + 1, q + 1).
    unknown
        Features that have none.
    """

    covariance: Array
    unknown: NDArray[np.intp]

    @property
    def weights(self) -> Array:
        """Standard errors of weights, (n_features, q)."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))[:, :-1]

    @property
    def offsets(self) -> Array:
        """Standard errors of offsets, (n_features,)."""
        return np.sqrt(self.covariance[:, -1, -1])

    def difficulties(self, slopes: Array, offsets: Array) -> Array:
        """Give standard errors of −b / w of one component by the delta method, (n_features,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            gradient = np.stack([offsets / slopes**2, -1 / slopes], axis=1)
        found = np.sqrt(np.einsum("ij,ijk,ik->i", gradient, self.covariance, gradient))
        return np.asarray(found)


def standard_errors(
    weights: Array,
    sums: Mapping[str, NDArray[Any]],
    form: str,
    prior_precision: float,
    fixed: NDArray[np.bool_],
    equal_slopes: bool,
) -> ItemErrors:
    """Invert the information.

    Parameters
    ----------
    weights
        On their principal axes, (n_features, q).
    sums
        Of all rows: `curvature`, `spread` and `products` of `numerics.logistic.trait_scores`.
    form
        `louis`, `sandwich` or `crossproduct`.
    prior_precision
        Of the weights' prior, whose share is added.
    fixed
        Features whose parameters were not estimated, or without bound, (n_features,).
    equal_slopes
        Whether all items have one weight.
    """
    n_features, q = weights.shape
    prior = np.tile(np.append(np.full(q, prior_precision), 0.0), n_features)
    information = _compute_information(sums, form) + np.diag(prior)
    directions = _free_directions(weights, fixed, equal_slopes)
    found = invert_information(information, directions)
    covariance = found.covariance
    if form == "sandwich":
        covariance = covariance @ sums["products"] @ covariance
    of_items = covariance.reshape(n_features, q + 1, n_features, q + 1)
    unknown = fixed | found.find_unidentified((n_features, q + 1))
    own = of_items[np.arange(n_features), :, np.arange(n_features)]
    own[unknown] = np.nan
    return ItemErrors(own, np.flatnonzero(unknown & ~fixed))


def _compute_information(sums: Mapping[str, NDArray[Any]], form: str) -> Array:
    products: Array = sums["products"]
    if form == "crossproduct":
        return products
    whole: Array = scipy.linalg.block_diag(*sums["curvature"]) - sums["spread"] + products
    return whole


def _free_directions(weights: Array, fixed: NDArray[np.bool_], equal_slopes: bool) -> Array:
    """Give a basis of the directions that parameters may take, (p, n_directions).

    Fixed ones take none, equal slopes one together, and axes stay principal.
    """
    n_features, q = weights.shape
    free = np.repeat(~fixed, q + 1)
    if equal_slopes:
        offsets = np.zeros((n_features, q + 1, n_features))
        offsets[np.arange(n_features), q, np.arange(n_features)] = 1.0
        slope = np.tile([1.0, 0.0], n_features)[:, None]
        basis = np.hstack([slope, offsets.reshape(-1, n_features)])
        return basis[:, (basis[free] != 0).any(axis=0)] * free[:, None]
    basis = np.eye(len(free))[:, free]
    pairs = list(combinations(range(q), 2))
    bound = np.zeros((len(pairs), n_features, q + 1))
    for k, (a, b) in enumerate(pairs):
        bound[k, :, a], bound[k, :, b] = weights[:, b], weights[:, a]
    if not pairs:
        return basis
    within: Array = basis @ scipy.linalg.null_space(bound.reshape(len(pairs), -1)[:, free])
    return within
