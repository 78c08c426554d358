"""Posteriors of the trait given items with asymptotes, on a lattice shared by all rows.

The lattice is that of items without asymptotes and of the same slopes. It suffices, because
asymptotes only make an item less informative, and log P and log Q have their singularities at the
same distance π / slope from the axis (where σ(η) is negative, exp(η) is, so that Im η = π).
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.logistic.asymptotes import Asymptotes
from pipeline.numerics.logistic.centred_points import RowPosterior, TraitItems
from pipeline.numerics.logistic.latent_nodes import Nodes, node_posterior
from pipeline.numerics.logistic.lattice_nodes import choose_lattice

_REACH = 8.0  # of nodes whose number is set, in standard deviations
_STRETCH = 0.5  # of the lattice; every second node checks the result


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


def posterior_with_asymptotes(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    items: TraitItems,
    asymptotes: Asymptotes,
) -> RowPosterior:
    """Integrate over one trait on twice the nodes that are needed.

    The error is estimated by every second node. Parameters are as for `posterior_on_lattice`; a
    row's result depends on that row alone.
    """
    nodes = make_shared_nodes(items.weights, items.offsets, _STRETCH)
    halved = Nodes(nodes.points[::2], nodes.log_weights[::2] + np.log(2.0))
    fine = node_posterior(X, observed, *items, nodes, asymptotes)
    coarse = node_posterior(X, observed, *items, halved, asymptotes)
    error = np.abs(fine.log_likelihood - coarse.log_likelihood)
    return RowPosterior(*fine, error)


def make_even_nodes(n_nodes: int) -> Nodes:
    """Return equally spaced nodes of one trait within 8 standard deviations."""
    points = np.linspace(-_REACH, _REACH, n_nodes)[:, None]
    log_density = -0.5 * points[:, 0] ** 2
    return Nodes(points, log_density - scipy.special.logsumexp(log_density))
