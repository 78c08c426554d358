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

from pipeline.errors import Notice
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.latent_nodes import MAX_PER_AXIS, Nodes, gauss_hermite
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

NODES_AN_AXIS = {1: 41, 2: 21, 3: 15}
"""Nodes of an axis that a fit begins with, by the number of components.

With 20 items of slopes up to 1.5, more of them change the mean log-likelihood of a row by less than
1e-4 nats, and that of a single row by up to 2e-5, 4e-3 and 3e-2 for 1, 2 and 3 components.
"""
MOST_AN_AXIS = {1: MAX_PER_AXIS, 2: 61, 3: 21}
"""Nodes of an axis that a fit goes up to by itself, by the number of components."""

_FINE_STEP = 2.5  # a h
_STEEP = 20.0  # beyond what the most nodes tell, a step
# Share of an axis that the likeliest node has in a mean row. Objectives of fits (survey, test and
# simulated data) were off by up to 0.02 nats a row where it was above 0.6, 5e-3 above 0.5, and 1e-3
# at 0.45; slopes of one component by up to 5e-3 at 0.65, 1e-3 at 0.55 and 3e-4 below 0.45, or 1e-3
# with 100 items. It falls with the root of the number of nodes, or more slowly: hence the aim.
_COARSE, _FINE, _AIM = 0.6, 0.45, 0.4


@dataclass(frozen=True)
class Grid:
    """Nodes of an axis, and how many components there are."""

    an_axis: int
    n_components: int

    @property
    def steepest(self) -> float:
        """The steepest slope along an axis that the nodes tell from a step."""
        return _FINE_STEP * math.sqrt(self.an_axis) / math.pi

    def too_steep(self, weights: Array) -> Indices:
        """Find the features that the nodes lie too far apart for."""
        return np.flatnonzero(abs(weights).max(axis=1) > self.steepest)

    def finer(self, weights: Array, peak: float = 0.0) -> Grid | None:
        """Take more nodes where weights, or else posteriors, need them and may have them.

        For weights twice as many: those that the nodes do not hold run away, so that no more can be
        told of them at once. `peak` is the share that the likeliest node has of a mean row.
        """
        more, most = self.an_axis, MOST_AN_AXIS[self.n_components]
        if self.an_axis < min(needed(weights), most):
            more = 2 * self.an_axis
        elif self._share(peak) > _FINE:
            more = self._enough(peak)
        more = min(more, most)
        return Grid(more, self.n_components) if more > self.an_axis else None

    def _share(self, peak: float) -> float:
        return float(peak ** (1 / self.n_components))

    def _enough(self, peak: float) -> int:
        return math.ceil(self.an_axis * (self._share(peak) / _AIM) ** 2)

    def flattened(self, weights: Array, offsets: Array) -> tuple[Array, Array]:
        """Scale items back to what the nodes tell; their thresholds stay."""
        size = abs(weights).max(axis=1)
        factor = self.steepest / np.maximum(size, self.steepest)
        return weights * factor[:, None], offsets * factor

    def working(self) -> Arrays:
        """Give the nodes as working state."""
        nodes = gauss_hermite(self.an_axis, self.n_components)
        return {**nodes._asdict(), "nodes_an_axis": np.array(self.an_axis)}

    def diverging(self, weights: Array) -> NDArray[np.bool_]:
        """Tell which weights are beyond what any number of nodes would hold, (n_features,)."""
        is_finest = self.an_axis >= MOST_AN_AXIS[self.n_components]
        return np.asarray(is_finest & (np.linalg.norm(weights, axis=1) > _STEEP))

    def doubts(self, weights: Array, diverging: Indices, peak: float, prior: str) -> list[Notice]:
        """Warn of features too steep for the nodes, and of rows whose posterior is too narrow.

        `peak` is the share that the likeliest node has of a mean row, `prior` a setting that keeps
        weights smaller.
        """
        steep = np.setdiff1d(self.too_steep(weights), diverging)
        enough = needed(weights[steep])
        if steep.size:
            remedy = f"nodes={enough}, or " if enough > self.an_axis else ""
            text = (
                "weights of these features may be far off, or have no bound as the data separate "
                f"them: {{features}} are too steep for {self.an_axis} nodes an axis; "
                f"--set {remedy}{prior}"
            )
            return [Notice(text, tuple(steep.tolist()))]
        if self._share(peak) <= _COARSE:
            return []
        enough = self._enough(peak)
        remedy = f"nodes={enough}" if enough <= MAX_PER_AXIS else "estimator=ep, which has none"
        text = (
            f"{self.an_axis} nodes an axis lie farther apart than many rows' posteriors are wide: "
            f"the objective may be off by 0.01 nats a row; --set {remedy}"
        )
        return [Notice(text)]


def needed(weights: Array) -> int:
    """Nodes of an axis for these weights, (n_features, n_components)."""
    steepest = float(abs(weights).max(initial=0.0))
    return min(math.ceil((math.pi * steepest / _FINE_STEP) ** 2), MAX_PER_AXIS)


def first_grid(weights: Array) -> Grid:
    """Begin with the usual number, or with what weights of an earlier fit or stage lead to."""
    q = weights.shape[1]
    grid = Grid(NODES_AN_AXIS[q], q)
    while (finer := grid.finer(weights)) is not None:
        grid = finer
    return grid


def grid_of(working: Arrays) -> Grid | None:
    """Give the grid that a stage works on, if it does."""
    if "nodes_an_axis" not in working:
        return None
    return Grid(int(working["nodes_an_axis"]), working["points"].shape[1])


def finer_stage(state: FitState, statistics: Sums) -> FitState | None:
    """Go on with more nodes where that is needed, steep items scaled back; None else."""
    if (grid := grid_of(state.working)) is None:
        return None
    peak = float(statistics.values["peak"]) / statistics.n_samples
    if (finer := grid.finer(state.params.weights, peak)) is None:
        return None
    weights, offsets = grid.flattened(state.params.weights, state.params.offsets)
    params = replace(state.params, weights=weights, offsets=offsets)
    return replace(state, params=params, working={**state.working, **finer.working()})


def nodes_of(working: Arrays) -> Nodes | None:
    """Give what the E-step sums over; None for the variational one and for sites."""
    return Nodes(working["points"], working["log_weights"]) if "points" in working else None


def is_bound(working: Arrays) -> bool:
    """Tell whether a stage's E-step is the variational one."""
    return nodes_of(working) is None and "by_sites" not in working


def has_likelihood(working: Arrays) -> bool:
    """Tell whether what a stage maximizes is the likelihood, or nearly."""
    return grid_of(working) is not None or "by_sites" in working
