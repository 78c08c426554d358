"""Inverting information matrices, some of whose directions the data may not tell."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SINGULAR_SHARE = 1e-9  # of the largest eigenvalue of the information, its diagonal brought to 1
_INVOLVED_SHARE = 0.1  # a parameter's share of directions that rows tell nothing of


class InformationInverse(NamedTuple):
    """Covariance of estimates, and which of them the data tell.

    Attributes
    ----------
    covariance
        (p, p).
    lost
        Share of each parameter in directions without information, (p,).
    """

    covariance: Array
    unidentified_share: Array

    def find_unidentified(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Tell which groups of parameters have no standard error, `shape` without its last axis."""
        shares = self.unidentified_share.reshape(shape).sum(axis=-1)
        return np.asarray(shares > _INVOLVED_SHARE)


def invert_information(information: Array, directions: Array) -> InformationInverse:
    """Invert information within the directions that parameters may take.

    Parameters
    ----------
    information
        (p, p).
    directions
        A basis of these directions, (p, n_directions).
    """
    along = directions.T @ information @ directions
    scale = 1 / np.sqrt(np.maximum(np.diag(along), 1e-300))
    values, vectors = scipy.linalg.eigh(scale[:, None] * along * scale)
    known = values > _SINGULAR_SHARE * values.max(initial=0.0)
    root = directions @ (scale[:, None] * vectors[:, known]) / np.sqrt(values[known])
    lost = ((directions @ vectors[:, ~known]) ** 2).sum(axis=1)
    return InformationInverse(root @ root.T, lost)
