"""The M-step for items with several levels, on expected counts at nodes."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.levels.design import LevelDesign
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    compute_expected_curvature,
    compute_log_probabilities,
    count_levels_at_nodes,
    differentiate_levels,
    iter_alike,
)
from pipeline.numerics.logistic.categories.scores import join_curvatures, sum_form_gradient

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_MAX_STEPS, _MAX_HALVINGS = 4, 20
_MIN_STEP = 1e-5  # shorter steps end the M-step; the next pass goes on
_RIDGE = 1e-9  # of the diagonal; gives a solution to items with hardly any curvature
_TOLERATED_LOSS = 1e-12


def take_level_steps(
    design: LevelDesign,
    forms: Array,
    is_cumulative: bool,
    points: Array,
    ones: Array,
    mass: Array,
    prior_precision: float,
) -> Array:
    """Take up to four steps of Fisher scoring for all free parameters of items.

    Items that share no parameter with others are independent. The step of each such set of items is
    halved until their expected log-likelihood plus log prior does not fall.

    Parameters
    ----------
    design
        How weights and offsets depend on the free parameters.
    forms
        Weights and offsets of planes side by side, (n_planes, q + 1).
    is_cumulative
        As in `LevelItems`.
    points
        Nodes, (n_nodes, q).
    ones, mass
        Expected numbers of ones and of values of all planes at the nodes, (n_planes, n_nodes).
    prior_precision
        Precision of the normal prior of every slope of every item.

    Returns
    -------
    ndarray
        The new weights and offsets, (n_planes, q + 1).
    """
    if not design.n_free:
        return forms
    J, free = design.matrix, design.collect(forms)
    prior = prior_precision * design.n_items_of_slope
    n_sets, set_of_item, set_of_parameter = _find_independent_sets(design)
    counts = [count_levels_at_nodes(ones, mass, alike) for alike in iter_alike(design.n_planes)]

    def make_items(free: Array) -> LevelItems:
        filled = design.fill(free)
        return LevelItems(filled[:, :-1], filled[:, -1], design.n_planes, is_cumulative)

    def score(free: Array) -> Array:
        """Return the objective of each set of items."""
        items = make_items(free)
        eta = items.compute_forms(points)
        by_item = np.zeros(len(design.n_planes))
        for alike, own in zip(iter_alike(design.n_planes), counts, strict=True):
            log_p = compute_log_probabilities(eta[alike.planes], is_cumulative)
            by_item[alike.features] = np.where(own > 0, own * log_p, 0.0).sum(axis=(1, 2))
        of_items = np.bincount(set_of_item, by_item, n_sets)
        penalty = np.bincount(set_of_parameter, 0.5 * prior * free**2, n_sets)
        return np.asarray(of_items - penalty)

    best = score(free)
    for _ in range(_MAX_STEPS):
        items = make_items(free)
        slope = J.T @ sum_form_gradient(items, points, ones, mass) - prior * free
        hessian = J.T @ _sum_expected_curvature(items, points, mass) @ J
        ridge = prior + _RIDGE * hessian.diagonal() + np.finfo(float).tiny
        hessian = (hessian + scipy.sparse.diags_array(ridge)).tocsc()
        step = np.atleast_1d(scipy.sparse.linalg.spsolve(hessian, slope))
        scale = np.ones(n_sets)
        for _ in range(_MAX_HALVINGS):
            moved = free + scale[set_of_parameter] * step
            reached = score(moved)
            is_worse = ~(reached >= best - _TOLERATED_LOSS * np.abs(best))
            if not is_worse.any():
                break
            scale[is_worse] *= 0.5
        scale[is_worse] = 0.0
        free = free + scale[set_of_parameter] * step
        best = np.where(is_worse, best, reached)
        if np.abs(step).max() < _MIN_STEP:
            break
    return design.fill(free)


def _sum_expected_curvature(
    items: LevelItems, points: Array, mass: Array
) -> scipy.sparse.csc_array:
    """Return the Fisher information about all weights and offsets, sparse."""
    eta = items.compute_forms(points)
    parts = []
    for alike in iter_alike(items.n_planes):
        own = eta[alike.planes]
        log_p = compute_log_probabilities(own, items.is_cumulative)
        first = differentiate_levels(own, items.is_cumulative)
        curvature = compute_expected_curvature(log_p, first)
        parts.append((alike.planes, curvature * mass[alike.planes[:, 0], None, None]))
    return join_curvatures(iter(parts), points, len(eta))


def _find_independent_sets(design: LevelDesign) -> tuple[int, Indices, Indices]:
    """Return the number of sets of items without common parameters, and who is in which.

    The sets are those of each item, (n_features,), and of each free parameter, (n_free,).
    """
    n_features = len(design.n_planes)
    rows, columns = design.matrix.nonzero()
    edges = (np.ones(len(rows)), (design.item_of_row[rows], n_features + columns))
    size = n_features + design.n_free
    graph = scipy.sparse.coo_array(edges, shape=(size, size))
    n_sets, labels = scipy.sparse.csgraph.connected_components(graph, directed=False)
    sets = labels.astype(np.int64)
    return int(n_sets), sets[:n_features], sets[n_features:]
