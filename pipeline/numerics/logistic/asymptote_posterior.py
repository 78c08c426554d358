"""Nodes of the trait that suit items with asymptotes.

The lattice is that of items without asymptotes and of the same slopes. It suffices, because
asymptotes only make an item less informative, and log P and log Q have their singularities at the
same distance π / slope from the axis (where σ(η) is negative, exp(η) is, so that Im η = π).
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.logistic.latent_nodes import Nodes
from pipeline.numerics.logistic.lattice_nodes import choose_lattice

_REACH = 8.0  # of nodes whose number is set, in standard deviations


def make_shared_nodes(
    weights: NDArray[np.float64], offsets: NDArray[np.float64], stretch: float = 1.0
) -> Nodes:
    """Return equally spaced nodes that resolve all posteriors given these items.

    No node is left out: rows may be far from the mean. `stretch` is a factor of the distances.

    Raises
    ------
    FitError
        If there would be too many nodes.
    """
    lattice = choose_lattice(weights, offsets)
    if lattice is None:
        raise FitError("The items are too steep for the nodes of the trait.")
    points = np.ascontiguousarray(lattice.stretch(stretch).list_points().T)
    log_density = -0.5 * (points**2).sum(axis=1)
    return Nodes(points, log_density - scipy.special.logsumexp(log_density))


def make_even_nodes(n_nodes: int) -> Nodes:
    """Return equally spaced nodes of one trait within 8 standard deviations."""
    points = np.linspace(-_REACH, _REACH, n_nodes)[:, None]
    log_density = -0.5 * points[:, 0] ** 2
    return Nodes(points, log_density - scipy.special.logsumexp(log_density))
