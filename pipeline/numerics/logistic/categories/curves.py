"""Probabilities of the levels of ordered or nominal items, their derivatives, and posteriors.

An item with levels 0, …, m has a linear form η_j = a_j·x + d_j for each of its m planes. It has

    cumulative:  P(y ≥ j | x) = σ(η_j),                  η_1 > … > η_m
    baseline:    P(y = j | x) ∝ exp(η_j),                η_0 = 0

The graded response model (F. Samejima, Psychometrika monograph 17, 1969) is cumulative with equal
a_j. The partial credit model (E. Muraki, Applied Psychological Measurement 16, 1992), the rating
scale model (D. Andrich, Psychometrika 43, 1978) and nominal items (R. D. Bock, Psychometrika 37,
1972) have baseline forms; all but nominal ones have a_j = j a. With a single plane, both are the
logistic curve of a binary item.

The indicator of a level is a difference of two bits, so log P(y | x) is linear in the bits of the
planes: log P_0 + Σ_j t_j (log P_j − log P_{j−1}).

With asymptotes, all items are binary, see `asymptotes`.

Items without planes are continuous, see `gaussian_items`. Rows have their standardized values next
to the bits of the planes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from pipeline.numerics.logistic import asymptotes as binary_curves
from pipeline.numerics.logistic.asymptotes import Asymptotes, from_logits, to_logits
from pipeline.numerics.logistic.categories.gaussian_items import GaussianItems
from pipeline.numerics.logistic.latent_nodes import (
    NodeCurves,
    Nodes,
    drop_light_nodes,
    gauss_hermite,
)
from pipeline.numerics.logistic.lattice_nodes import Lattice, make_lattice, weigh_points

Answers = NDArray[Any]
"""Bits of planes, uint8; with continuous items, float64 with their values next to the bits."""
Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_PROBES_PER_AXIS = {1: 41, 2: 13, 3: 9}
_MAX_NODES = 2**13
_BALL_VOLUME = {1: 2.0, 2: math.pi, 3: 4 / 3 * math.pi}
_NEGLIGIBLE_MASS = 1e-9  # of nodes
_RADIUS = 6.5  # of the nodes that are not too light, in standard deviations
_MAX_SLOPE = 20.0
_TINY = np.finfo(np.float64).tiny


class LevelItems(NamedTuple):
    """Items with several levels.

    Attributes
    ----------
    weights, offsets
        a_j and d_j of all planes, (n_planes, q) and (n_planes,).
    n_planes
        Number of planes of each item, (n_features,), 0 if it is continuous.
    is_cumulative
        Whether the forms are cumulative, not baseline.
    gaussians
        The continuous items; None if there are none.
    asymptotes
        Guessing and slipping if all items are binary; None if all curves range from 0 to 1.
    """

    weights: Floats
    offsets: Floats
    n_planes: Indices
    is_cumulative: bool
    gaussians: GaussianItems | None = None
    asymptotes: Asymptotes | None = None

    @classmethod
    def from_binary(
        cls, weights: Floats, offsets: Floats, asymptotes: Asymptotes | None = None
    ) -> LevelItems:
        """Return binary items, which have one plane each."""
        n_planes = np.ones(len(offsets), np.int64)
        return cls(weights, offsets, n_planes, True, asymptotes=asymptotes)

    @property
    def is_binary(self) -> bool:
        """Whether all items have a single plane."""
        return bool((self.n_planes == 1).all())

    def to_forms(self) -> Floats:
        """Return weights and offsets side by side of all planes, then of continuous items.

        With asymptotes, two forms per item follow, whose offsets are their logits.
        """
        own = np.column_stack([self.weights, self.offsets])
        if self.asymptotes is not None:
            logits = np.column_stack([to_logits(values) for values in self.asymptotes])
            further = np.zeros((logits.size, own.shape[1]))
            further[:, -1] = logits.ravel()
            return np.vstack([own, further])
        return own if self.gaussians is None else np.vstack([own, self.gaussians.to_forms()])

    def with_forms(self, forms: Floats) -> LevelItems:
        """Return items with these forms; see `to_forms`."""
        n = len(self.offsets)
        gaussians = None if self.gaussians is None else self.gaussians.with_forms(forms[n:])
        weights, offsets = forms[:n, :-1].copy(), forms[:n, -1].copy()
        items = self._replace(weights=weights, offsets=offsets, gaussians=gaussians)
        if self.asymptotes is None:
            return items
        logits = forms[n:, -1].reshape(-1, 2)
        return items._replace(asymptotes=Asymptotes(*from_logits(logits.T)))

    def compute_forms(self, points: Floats) -> Floats:
        """Return η at points, (n_points, q) or of each plane its own, (n_planes, n_points, q)."""
        if points.ndim == 3:
            return np.asarray((points @ self.weights[:, :, None])[:, :, 0] + self.offsets[:, None])
        eta: Floats = self.weights @ points.T + self.offsets[:, None]
        return eta

    def compute_log_probabilities(self, eta: Floats, alike: ItemsAlike) -> Floats:
        """Return log P of the levels of some items, (n, m + 1, n_points), given η of all."""
        if self.asymptotes is None:
            return compute_log_probabilities(eta[alike.planes], self.is_cumulative)
        log_one, log_zero = binary_curves.compute_log_probabilities(eta, self.asymptotes.by_item)
        return np.stack([log_zero, log_one], axis=1)

    def differentiate(self, eta: Floats, alike: ItemsAlike) -> Floats:
        """Return ∂ log P_c / ∂η_j of some items, (n, m + 1, m, n_points), given η of all."""
        if self.asymptotes is None:
            return differentiate_levels(eta[alike.planes], self.is_cumulative)
        by_one, by_zero = binary_curves.differentiate_curves(eta, self.asymptotes.by_item)
        return np.stack([by_zero[0], by_one[0]], axis=1)[:, :, None]

    def tabulate(self, points: Floats) -> NodeCurves:
        """Return log P of the planes' bits at points: see the module and `NodeCurves`.

        The curves of continuous items, which follow, are without the terms that nodes have in
        common.
        """
        eta = self.compute_forms(points)
        slopes, constants = np.empty_like(eta), np.zeros_like(eta)
        for alike in iter_alike(self.n_planes):
            if alike.planes.shape[1] == 1 and self.asymptotes is None:
                planes = alike.planes[:, 0]
                slopes[planes], constants[planes] = eta[planes], log_expit(-eta[planes])
                continue
            log_p = self.compute_log_probabilities(eta, alike)
            slopes[alike.planes] = np.diff(log_p, axis=1)
            constants[alike.planes[:, 0]] = log_p[:, 0]
        if self.gaussians is None:
            return NodeCurves(slopes, constants)
        own_slopes, own_constants = self.gaussians.tabulate(points)
        return NodeCurves(np.vstack([slopes, own_slopes]), np.vstack([constants, own_constants]))


def number_planes(n_planes: Indices) -> Floats:
    """Return the number of each plane within its item, counted from 1, (n_planes,)."""
    firsts = np.cumsum(n_planes) - n_planes
    numbers: Floats = np.arange(1.0, n_planes.sum() + 1) - np.repeat(firsts, n_planes)
    return numbers


class ItemsAlike(NamedTuple):
    """Items with the same number of levels.

    Attributes
    ----------
    features
        Their indices, (n,).
    planes
        Their planes, (n, m).
    levels
        Places of their levels among the levels of all items, (n, m + 1).
    """

    features: Indices
    planes: Indices
    levels: Indices


def iter_alike(n_planes: Indices) -> Iterator[ItemsAlike]:
    """Yield the items by their number of levels, with which arrays need no padding."""
    return iter(_group_alike(np.asarray(n_planes, np.int64).tobytes()))


@lru_cache(maxsize=16)  # all passes of a fit ask for the same
def _group_alike(n_planes_bytes: bytes) -> tuple[ItemsAlike, ...]:
    n_planes = np.frombuffer(n_planes_bytes, np.int64)
    n_levels, found = count_item_levels(n_planes), []
    first_planes, first_levels = (np.cumsum(n) - n for n in (n_planes, n_levels))
    for m in np.unique(n_planes[n_planes > 0]).tolist():
        features = np.flatnonzero(n_planes == m)
        planes = first_planes[features, None] + np.arange(m)
        levels = first_levels[features, None] + np.arange(m + 1)
        found.append(ItemsAlike(features, planes, levels))
    return tuple(found)


def count_item_levels(n_planes: Indices) -> Indices:
    """Return the number of levels of each item, (n_features,), 0 if it is continuous."""
    return np.where(n_planes > 0, n_planes + 1, 0)


def compute_log_probabilities(eta: Floats, is_cumulative: bool) -> Floats:
    """Return log P of the levels, (n, m + 1, …), given the forms of n items, (n, m, …).

    −∞ for a level whose cumulative forms are not in decreasing order.
    """
    n, m = eta.shape[:2]
    if not is_cumulative:
        forms = np.concatenate([np.zeros((n, 1, *eta.shape[2:])), eta], axis=1)
        forms -= forms.max(axis=1, keepdims=True)  # far from 0, the rest would be rounding
        forms -= np.log(np.exp(forms).sum(axis=1, keepdims=True))  # faster than logsumexp
        return forms
    log_p = np.empty((n, m + 1, *eta.shape[2:]))
    log_p[:, 0], log_p[:, m] = log_expit(-eta[:, 0]), log_expit(eta[:, -1])
    gap = eta[:, :-1] - eta[:, 1:]
    # σ(a) − σ(b) = σ(a) σ(−b) (1 − exp(b − a))
    with np.errstate(divide="ignore"):
        log_p[:, 1:m] = np.log(-np.expm1(-np.maximum(gap, 0.0)))
    log_p[:, 1:m] += log_expit(eta[:, :-1]) + log_expit(-eta[:, 1:])
    return log_p


def differentiate_levels(eta: Floats, is_cumulative: bool) -> Floats:
    """Return ∂ log P_c / ∂η_j, (n, m + 1, m, …), given the forms of n items, (n, m, …)."""
    n, m = eta.shape[:2]
    first = np.zeros((n, m + 1, m, *eta.shape[2:]))
    if not is_cumulative:
        first -= np.exp(compute_log_probabilities(eta, False))[:, None, 1:]
        for j in range(m):
            first[:, j + 1, j] += 1.0
        return first
    ratio = _compute_gap_ratio(eta)
    for j in range(m):
        first[:, j + 1, j] = expit(-eta[:, j])
        first[:, j, j] = -expit(eta[:, j])
        if j + 1 < m:
            first[:, j + 1, j] += ratio[:, j]
        if j > 0:
            first[:, j, j] -= ratio[:, j - 1]
    return first


def _compute_gap_ratio(eta: Floats) -> Floats:
    """Return 1 / (exp(η_j − η_{j+1}) − 1), (n, m − 1, …)."""
    gap = np.maximum(eta[:, :-1] - eta[:, 1:], _TINY)
    return np.asarray(np.exp(-gap) / -np.expm1(-gap))


def sum_form_scores(counts: Floats, first: Floats) -> Floats:
    """Return the gradient of Σ_c N_c log P_c in the forms at each node, (n, m, n_nodes).

    `counts` are N_c, (n, m + 1, n_nodes), and `first` the result of `differentiate_levels`.
    """
    return np.asarray(np.einsum("icl,icjl->ijl", counts, first))


def compute_expected_curvature(log_p: Floats, first: Floats) -> Floats:
    """Return the Fisher information of an answer about the forms, (n, m, m, n_nodes)."""
    return np.asarray(np.einsum("icjl,ickl->ijkl", np.exp(log_p)[:, :, None] * first, first))


def sum_observed_curvature(counts: Floats, eta: Floats, is_cumulative: bool) -> Floats:
    """Return minus the second derivatives of Σ_c N_c log P_c at each node, (n, m, m, n_nodes)."""
    n, m, n_nodes = eta.shape
    if not is_cumulative:
        P = np.exp(compute_log_probabilities(eta, False))[:, 1:]
        curvature = -P[:, :, None] * P[:, None]
        curvature[:, range(m), range(m)] += P
        return np.asarray(curvature * counts.sum(axis=1)[:, None, None])
    curvature = np.zeros((n, m, m, n_nodes))
    slope = expit(eta) * expit(-eta)
    ratio = _compute_gap_ratio(eta)
    bend = ratio * (1 + ratio)
    for j in range(m):
        curvature[:, j, j] = (counts[:, j] + counts[:, j + 1]) * slope[:, j]
        if j + 1 < m:
            shared = counts[:, j + 1] * bend[:, j]
            curvature[:, j, j] += shared
            curvature[:, j + 1, j] -= shared
            curvature[:, j, j + 1] -= shared
        if j > 0:
            curvature[:, j, j] += counts[:, j] * bend[:, j - 1]
    return curvature


def compute_level_probabilities(items: LevelItems, points: Floats) -> Floats:
    """Return P(y = c | x) of all levels of all items, (n_points, n_levels)."""
    eta = items.compute_forms(points)
    P = np.empty((count_item_levels(items.n_planes).sum(), len(points)))
    for alike in iter_alike(items.n_planes):
        P[alike.levels] = np.exp(items.compute_log_probabilities(eta, alike))
    return P.T


def compute_plane_probabilities(items: LevelItems, points: Floats) -> Floats:
    """Return P(y ≥ j | x) of all planes, (n_points, n_planes)."""
    eta = items.compute_forms(points)
    if items.is_cumulative:
        asymptotes = None if items.asymptotes is None else items.asymptotes.by_item
        return binary_curves.compute_probabilities(eta, asymptotes).T
    P = np.empty_like(eta)
    for alike in iter_alike(items.n_planes):
        levels = np.exp(compute_log_probabilities(eta[alike.planes], False))
        P[alike.planes] = np.cumsum(levels[:, :0:-1], axis=1)[:, ::-1]
    return np.minimum(P, 1.0).T


def count_levels_at_nodes(ones: Floats, mass: Floats, alike: ItemsAlike) -> Floats:
    """Return the expected number of each level of items at each node, (n, m + 1, n_nodes).

    `ones` and `mass` are the expected numbers of ones and of values of all planes, (n_planes,
    n_nodes).
    """
    cumulative = np.concatenate([mass[alike.planes[:, :1]], ones[alike.planes]], axis=1)
    counts = cumulative.copy()
    counts[:, :-1] -= cumulative[:, 1:]
    return np.asarray(np.maximum(counts, 0.0))  # differences of rounded sums


def compute_item_information(items: LevelItems, points: Floats) -> Floats:
    """Return the Fisher information of each item about x, (n_features, n_points, q, q)."""
    eta, q = items.compute_forms(points), items.weights.shape[1]
    information = np.empty((len(items.n_planes), len(points), q, q))
    if items.gaussians is not None:
        information[items.n_planes == 0] = items.gaussians.compute_information()[:, None]
    for alike in iter_alike(items.n_planes):
        if alike.planes.shape[1] == 1 and items.asymptotes is None:  # much faster
            own, weights = eta[alike.planes[:, 0]], items.weights[alike.planes[:, 0]]
            products = weights[:, :, None] * weights[:, None]
            curvature = expit(own) * expit(-own)
            information[alike.features] = curvature[:, :, None, None] * products[:, None]
            continue
        log_p, first = items.compute_log_probabilities(eta, alike), items.differentiate(eta, alike)
        curvature = compute_expected_curvature(log_p, first)
        weights = items.weights[alike.planes]
        by_form = np.einsum("ijkl,ikb->ijlb", curvature, weights)
        information[alike.features] = np.einsum("ija,ijlb->ilab", weights, by_form)
    return information


def choose_level_lattice(
    items: LevelItems, stretch: float = 1.0, mean_reach: float = 0.0
) -> Lattice:
    """Return a lattice that resolves the posteriors of all rows; `stretch` scales its distances.

    Rows may have priors N(m, I) with means up to `mean_reach` along each axis. If the nodes would
    be more than about 8,192, they suit rows without continuous values; if still more, they are
    farther apart. The poles of log P are π / slope away from the axis if the forms are cumulative,
    and no nearer than that of the difference of two forms if they are baseline.
    """
    q = items.weights.shape[1]
    probes = gauss_hermite(_PROBES_PER_AXIS[q], q).points
    # Asymptotes make an item less informative, and leave the poles where they are.
    total = compute_item_information(items._replace(asymptotes=None), probes).sum(axis=0)
    largest = float(np.linalg.eigvalsh(total)[:, -1].max())
    steepest = 1.0
    for alike in iter_alike(items.n_planes):
        weights = items.weights[alike.planes]
        highest, lowest = weights.max(axis=1), weights.min(axis=1)
        if not items.is_cumulative:
            highest, lowest = np.maximum(highest, 0.0), np.minimum(lowest, 0.0)
            weights = (highest - lowest)[:, None]
        steepest = max(steepest, float(np.linalg.norm(weights, axis=2).max(initial=0.0)))
    lattice = make_lattice(largest, min(steepest, _MAX_SLOPE), q)
    lattice = lattice._replace(reach=lattice.reach + math.ceil(mean_reach / lattice.spacing))
    n_nodes = _BALL_VOLUME[q] * ((_RADIUS + mean_reach) / (stretch * lattice.spacing)) ** q
    if n_nodes > _MAX_NODES and items.gaussians is not None:
        levels = items._replace(n_planes=items.n_planes[items.n_planes > 0], gaussians=None)
        return choose_level_lattice(levels, stretch, mean_reach)
    return lattice.stretch(stretch * max(1.0, (n_nodes / _MAX_NODES) ** (1 / q)))


def make_level_nodes(
    items: LevelItems, stretch: float = 1.0, mean_reach: float = 0.0
) -> tuple[Nodes, float]:
    """Return the nodes of `choose_level_lattice`, and their distance.

    Nodes too light to matter are left out. Without any item with levels there is a single node.
    """
    if not len(items.offsets):
        return Nodes(np.zeros((1, items.weights.shape[1])), np.zeros(1)), math.inf
    lattice = choose_level_lattice(items, stretch, mean_reach)
    points = np.ascontiguousarray(lattice.list_points().T)
    nodes = weigh_points(points)
    if points.shape[1] == 1:
        return nodes, lattice.spacing
    if not mean_reach:
        return drop_light_nodes(nodes, _NEGLIGIBLE_MASS), lattice.spacing
    distance = np.linalg.norm(np.maximum(np.abs(points) - mean_reach, 0.0), axis=1)
    is_used = distance < _RADIUS
    return Nodes(points[is_used], nodes.log_weights[is_used]), lattice.spacing
