"""How many nodes an axis quadrature needs: enough for the steepest item and for narrow posteriors.

Near 0 the nodes of a Gauss–Hermite rule with n of an axis lie h = π / √n apart. A sum over points h
apart is off from the integral of a logistic curve of slope a by a share of about exp(−2π² / (a h)),
as its poles lie π / a beside the axis (L. N. Trefethen, J. A. C. Weideman, SIAM Review 56 (2014)).
Where that is no longer small an item falls between two nodes: they see no maximum where there is
one, or another. Here a h ≤ 2.5 counts as fine, a share of 4e-4. Likewise where a row's posterior is
not wider than h, which the likeliest node tells: it has nearly all of it.
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
"""Nodes of an axis that a fit begins with, by the number of components.

With 20 items of slopes up to 1.5, more of them change the mean log-likelihood of a row by less than
1e-4 nats, and that of a single row by up to 2e-5, 4e-3 and 3e-2 for 1, 2 and 3 components.
"""
NODES_PER_AXIS_LIMITS = {1: MAX_NODES_PER_AXIS, 2: 61, 3: 21}
"""Nodes of an axis that a fit goes up to by itself, by the number of components."""

_MAX_SLOPE_STEP = 2.5  # a h
_MAX_SLOPE = 20.0  # beyond what the most nodes tell, a step
# Share of an axis that the likeliest node has in a mean row. Objectives of fits (survey, test and
# simulated data) were off by up to 0.02 nats a row where it was above 0.6, 5e-3 above 0.5, and 1e-3
# at 0.45; slopes of one component by up to 5e-3 at 0.65, 1e-3 at 0.55 and 3e-4 below 0.45, or 1e-3
# with 100 items. It falls with the root of the number of nodes, or more slowly: hence the aim.
_WARNED_PEAK_SHARE, _MAX_PEAK_SHARE, _TARGET_PEAK_SHARE = 0.6, 0.45, 0.4


@dataclass(frozen=True)
class NodeGrid:
    """Nodes of an axis, and how many components there are."""

    nodes_per_axis: int
    n_components: int

    @property
    def max_slope(self) -> float:
        """The steepest slope along an axis that the nodes tell from a step."""
        return _MAX_SLOPE_STEP * math.sqrt(self.nodes_per_axis) / math.pi

    def find_steep_features(self, weights: Array) -> Indices:
        """Find the features that the nodes lie too far apart for."""
        return np.flatnonzero(abs(weights).max(axis=1) > self.max_slope)

    def refine(self, weights: Array, peak: float = 0.0) -> NodeGrid | None:
        """Take more nodes where weights, or else posteriors, need them and may have them.

        For weights twice as many: those that the nodes do not hold run away, so that no more can be
        told of them at once. `peak` is the share that the likeliest node has of a mean row.
        """
        more, most = self.nodes_per_axis, NODES_PER_AXIS_LIMITS[self.n_components]
        if self.nodes_per_axis < min(count_nodes_for_slopes(weights), most):
            more = 2 * self.nodes_per_axis
        elif self._axis_share(peak) > _MAX_PEAK_SHARE:
            more = self._count_nodes_for_peak(peak)
        more = min(more, most)
        return NodeGrid(more, self.n_components) if more > self.nodes_per_axis else None

    def _axis_share(self, peak: float) -> float:
        return float(peak ** (1 / self.n_components))

    def _count_nodes_for_peak(self, peak: float) -> int:
        return math.ceil(self.nodes_per_axis * (self._axis_share(peak) / _TARGET_PEAK_SHARE) ** 2)

    def limit_slopes(self, weights: Array, offsets: Array) -> tuple[Array, Array]:
        """Scale items back to what the nodes tell; their thresholds stay."""
        size = abs(weights).max(axis=1)
        factor = self.max_slope / np.maximum(size, self.max_slope)
        return weights * factor[:, None], offsets * factor

    def working(self) -> Arrays:
        """Give the nodes as working state."""
        nodes = gauss_hermite(self.nodes_per_axis, self.n_components)
        return {**nodes._asdict(), "nodes_an_axis": np.array(self.nodes_per_axis)}

    def is_diverging(self, weights: Array) -> NDArray[np.bool_]:
        """Tell which weights are beyond what any number of nodes would hold, (n_features,)."""
        is_finest = self.nodes_per_axis >= NODES_PER_AXIS_LIMITS[self.n_components]
        return np.asarray(is_finest & (np.linalg.norm(weights, axis=1) > _MAX_SLOPE))

    def warn_about_nodes(
        self, weights: Array, diverging: Indices, peak: float, prior: str
    ) -> list[FitWarning]:
        """Warn of features too steep for the nodes, and of rows whose posterior is too narrow.

        `peak` is the share that the likeliest node has of a mean row, `prior` a setting that keeps
        weights smaller.
        """
        steep = np.setdiff1d(self.find_steep_features(weights), diverging)
        enough = count_nodes_for_slopes(weights[steep])
        if steep.size:
            remedy = f"nodes={enough}, or " if enough > self.nodes_per_axis else ""
            text = (
                "weights of these features may be far off, or have no bound as the data separate "
                f"them: {{features}} are too steep for {self.nodes_per_axis} nodes an axis; "
                f"--set {remedy}{prior}"
            )
            return [FitWarning(text, tuple(steep.tolist()))]
        if self._axis_share(peak) <= _WARNED_PEAK_SHARE:
            return []
        enough = self._count_nodes_for_peak(peak)
        remedy = (
            f"nodes={enough}" if enough <= MAX_NODES_PER_AXIS else "estimator=ep, which has none"
        )
        text = (
            f"{self.nodes_per_axis} nodes an axis lie farther apart than many rows' posteriors are wide: "
            f"the objective may be off by 0.01 nats a row; --set {remedy}"
        )
        return [FitWarning(text)]


def count_nodes_for_slopes(weights: Array) -> int:
    """Nodes of an axis for these weights, (n_features, n_components)."""
    steepest = float(abs(weights).max(initial=0.0))
    return min(math.ceil((math.pi * steepest / _MAX_SLOPE_STEP) ** 2), MAX_NODES_PER_AXIS)


def choose_first_grid(weights: Array) -> NodeGrid:
    """Begin with the usual number, or with what weights of an earlier fit or stage lead to."""
    q = weights.shape[1]
    grid = NodeGrid(NODES_PER_AXIS[q], q)
    while (finer := grid.refine(weights)) is not None:
        grid = finer
    return grid


def grid_from_working(working: Arrays) -> NodeGrid | None:
    """Give the grid that a stage works on, if it does."""
    if "nodes_an_axis" not in working:
        return None
    return NodeGrid(int(working["nodes_an_axis"]), working["points"].shape[1])


def begin_finer_stage(state: FitState, statistics: Sums) -> FitState | None:
    """Go on with more nodes where that is needed, steep items scaled back; None else."""
    if (grid := grid_from_working(state.working)) is None:
        return None
    peak = float(statistics.values["peak"]) / statistics.n_samples
    if (finer := grid.refine(state.params.weights, peak)) is None:
        return None
    weights, offsets = grid.limit_slopes(state.params.weights, state.params.offsets)
    params = replace(state.params, weights=weights, offsets=offsets)
    return replace(state, params=params, working={**state.working, **finer.working()})


def nodes_from_working(working: Arrays) -> Nodes | None:
    """Give what the E-step sums over; None for the variational one and for sites."""
    return Nodes(working["points"], working["log_weights"]) if "points" in working else None


def is_variational(working: Arrays) -> bool:
    """Tell whether a stage's E-step is the variational one."""
    return nodes_from_working(working) is None and "by_sites" not in working


def has_likelihood(working: Arrays) -> bool:
    """Tell whether what a stage maximizes is the likelihood, or nearly."""
    return grid_from_working(working) is not None or "by_sites" in working
