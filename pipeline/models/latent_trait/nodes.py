"""Number of quadrature nodes per axis: enough for the steepest item and for narrow posteriors.

Near 0, the nodes of a Gauss–Hermite rule with n nodes per axis are h = π / √n apart. A sum over
points h apart differs from the integral of a logistic curve of slope a by a relative error of about
exp(−2π² / (a h)), because the poles of the curve are π / a away from the axis (L. N. Trefethen, J.
A. C. Weideman, SIAM Review 56 (2014)). If this error is not small, an item falls between two nodes,
and the sum misses or misplaces the maximum of the likelihood. Here a h ≤ 2.5 is accepted, an error
of 4e-4. The same happens if a row's posterior is narrower than h; then its likeliest node has
nearly all of the posterior mass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FitWarning
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.latent_nodes import MAX_NODES_PER_AXIS, Nodes, gauss_hermite
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

NODES_PER_AXIS = {1: 41, 2: 21, 3: 15}
"""Initial number of nodes per axis, by the number of components.

With 20 items of slopes up to 1.5, more nodes change the mean log-likelihood per row by less than
1e-4 nats, and that of a single row by up to 2e-5, 4e-3 and 3e-2 for 1, 2 and 3 components.
"""
NODES_PER_AXIS_LIMITS = {1: MAX_NODES_PER_AXIS, 2: 61, 3: 21}
"""Largest number of nodes per axis that a fit chooses, by the number of components."""

_MAX_SLOPE_STEP = 2.5  # a h
_MAX_SLOPE = 20.0  # steeper curves look like steps to any number of nodes
# Posterior mass of the likeliest node along one axis, averaged over rows. In fits of survey, test
# and simulated data, the objective was off by up to 0.02 nats per row if this share was above 0.6,
# by 5e-3 above 0.5 and by 1e-3 at 0.45; slopes of one component by up to 5e-3 at 0.65, 1e-3 at 0.55
# and 3e-4 below 0.45 (1e-3 with 100 items). The share falls with the root of the number of nodes or
# more slowly, so the target is below the maximum.
_WARNED_PEAK_SHARE, _MAX_PEAK_SHARE, _TARGET_PEAK_SHARE = 0.6, 0.45, 0.4


@dataclass(frozen=True)
class NodeGrid:
    """A grid with the same number of nodes along each component."""

    nodes_per_axis: int
    n_components: int

    @property
    def max_slope(self) -> float:
        """The steepest slope along an axis that the nodes can resolve."""
        return _MAX_SLOPE_STEP * math.sqrt(self.nodes_per_axis) / math.pi

    def find_steep_features(self, weights: Array) -> Indices:
        """Return the features that are too steep for the nodes."""
        return np.flatnonzero(abs(weights).max(axis=1) > self.max_slope)

    def refine(self, weights: Array, peak: float = 0.0) -> NodeGrid | None:
        """Return a finer grid if the weights or the posteriors need one, else None.

        For steep weights the number of nodes is only doubled: weights that the nodes cannot resolve
        diverge, so their size does not show how many nodes are needed. `peak` is the mean posterior
        mass of the likeliest node.
        """
        n_nodes, limit = self.nodes_per_axis, NODES_PER_AXIS_LIMITS[self.n_components]
        if self.nodes_per_axis < min(count_nodes_for_slopes(weights), limit):
            n_nodes = 2 * self.nodes_per_axis
        elif self._axis_share(peak) > _MAX_PEAK_SHARE:
            n_nodes = self._count_nodes_for_peak(peak)
        n_nodes = min(n_nodes, limit)
        return NodeGrid(n_nodes, self.n_components) if n_nodes > self.nodes_per_axis else None

    def _axis_share(self, peak: float) -> float:
        return float(peak ** (1 / self.n_components))

    def _count_nodes_for_peak(self, peak: float) -> int:
        return math.ceil(self.nodes_per_axis * (self._axis_share(peak) / _TARGET_PEAK_SHARE) ** 2)

    def limit_slopes(self, weights: Array, offsets: Array) -> tuple[Array, Array]:
        """Scale steep items back to what the nodes can resolve, with the same thresholds."""
        slopes = abs(weights).max(axis=1)
        factor = self.max_slope / np.maximum(slopes, self.max_slope)
        return weights * factor[:, None], offsets * factor

    def make_working_state(self) -> Arrays:
        """Return the nodes as working state."""
        nodes = gauss_hermite(self.nodes_per_axis, self.n_components)
        return {**nodes._asdict(), "nodes_an_axis": np.array(self.nodes_per_axis)}

    def is_diverging(self, weights: Array) -> NDArray[np.bool_]:
        """Return which weights no allowed number of nodes can resolve, (n_features,)."""
        is_finest = self.nodes_per_axis >= NODES_PER_AXIS_LIMITS[self.n_components]
        return np.asarray(is_finest & (np.linalg.norm(weights, axis=1) > _MAX_SLOPE))

    def warn_about_nodes(
        self, weights: Array, diverging: Indices, peak: float, prior: str
    ) -> list[FitWarning]:
        """Warn about features too steep for the nodes, or posteriors too narrow for them.

        `peak` is the mean posterior mass of the likeliest node; `prior` is a setting that keeps the
        weights smaller.
        """
        steep = np.setdiff1d(self.find_steep_features(weights), diverging)
        enough = count_nodes_for_slopes(weights[steep])
        if steep.size:
            remedy = f"{{nodes={enough}}} or " if enough > self.nodes_per_axis else ""
            text = (
                f"features too steep for {self.nodes_per_axis} nodes per axis: {{features}}. Their "
                "weights may be far off, or diverge because the data separate them; use "
                f"{remedy}{prior}"
            )
            return [FitWarning(text, tuple(steep.tolist()))]
        if self._axis_share(peak) <= _WARNED_PEAK_SHARE:
            return []
        enough = self._count_nodes_for_peak(peak)
        remedy = (
            f"{{nodes={enough}}}"
            if enough <= MAX_NODES_PER_AXIS
            else "{estimator=ep}, which needs none"
        )
        text = (
            f"the posteriors of many rows are narrower than the distance of {self.nodes_per_axis} "
            f"nodes per axis: the objective may be off by 0.01 nats per row; use {remedy}"
        )
        return [FitWarning(text)]


def count_nodes_for_slopes(weights: Array) -> int:
    """Return the nodes per axis that these weights need, (n_features, n_components)."""
    steepest = float(abs(weights).max(initial=0.0))
    return min(math.ceil((math.pi * steepest / _MAX_SLOPE_STEP) ** 2), MAX_NODES_PER_AXIS)


def choose_first_grid(weights: Array) -> NodeGrid:
    """Return the default grid, refined for the weights of an earlier fit or stage."""
    q = weights.shape[1]
    grid = NodeGrid(NODES_PER_AXIS[q], q)
    while (finer := grid.refine(weights)) is not None:
        grid = finer
    return grid


def grid_from_working(working: Arrays) -> NodeGrid | None:
    """Return the grid of a stage, or None if it uses none."""
    if "nodes_an_axis" not in working:
        return None
    return NodeGrid(int(working["nodes_an_axis"]), working["points"].shape[1])


def begin_finer_stage(state: FitState, statistics: Sums) -> FitState | None:
    """Start a stage with more nodes, steep items scaled back; None if no more are needed."""
    if (grid := grid_from_working(state.working)) is None:
        return None
    peak = float(statistics.values["peak"]) / statistics.n_samples
    if (finer := grid.refine(state.params.weights, peak)) is None:
        return None
    weights, offsets = grid.limit_slopes(state.params.weights, state.params.offsets)
    params = replace(state.params, weights=weights, offsets=offsets)
    return replace(state, params=params, working={**state.working, **finer.make_working_state()})


def nodes_from_working(working: Arrays) -> Nodes | None:
    """Return the nodes of the E-step, or None if it uses none."""
    return Nodes(working["points"], working["log_weights"]) if "points" in working else None


def is_variational(working: Arrays) -> bool:
    """Return whether the E-step of a stage is variational."""
    return nodes_from_working(working) is None and "by_sites" not in working


def has_likelihood(working: Arrays) -> bool:
    """Return whether a stage maximizes the likelihood, exactly or by expectation propagation."""
    return grid_from_working(working) is not None or "by_sites" in working
