"""Stages of a fit: the nodes of its E-steps, and when finer ones follow.

Keys of the working state of a stage, all optional but `held_out`:

=====================  =========================================================================
key                    meaning
=====================  =========================================================================
held_out               share of rows that only score the number of components
points, log_weights    nodes, (n_nodes, q) and (n_nodes,): shared nodes, or random draws
is_edge, is_odd,       what finds rows that shared nodes do not suit, and estimates the error,
max_edge_share         see `check_nodes`; random draws, and nodes for asymptotes, have none
nodes_an_axis          number of nodes per axis of a grid, see `NodeGrid`
node_spacing,          distance of equally spaced nodes, and how many times as far apart they are
node_stretch           as the items need them (binary items)
spacing, stretch       likewise for items with levels; `stretch` alone: of a lattice, or of a
                       bifactor pattern
has_own_nodes          rows have nodes of their own: on a lattice, or `own_nodes` per axis
own_nodes              number per axis of nodes that are centred at each row
coarse, change         log-likelihood of the stage before with fewer of them, and its change
sample_error           error of the log-likelihood with these nodes, found on a sample of the rows
is_complete            no value is missing
by_sites, line         expectation propagation, and the nodes of items with levels on its lines
loads                  which items load on which traits of a bifactor pattern
max_covariate          limit of covariates of the first stage, see `limit_covariates`
limited_objective      log-likelihood at its end
share, directions,     of the pass for standard errors: share of rows, see `wide_errors`, and rows
level_counts, ...      with each level
=====================  =========================================================================

Without points, sites and loads, the E-step is variational. Stages of items with levels are in
`model`; what follows is about binary items.

Number of quadrature nodes per axis: near 0, the nodes of a Gauss–Hermite rule with n nodes per axis
are h = π / √n apart. A sum over points h apart differs from the integral of a logistic curve of
slope a by a relative error of about exp(−2π² / (a h)), because the poles of the curve are π / a
away from the axis (L. N. Trefethen, J. A. C. Weideman, SIAM Review 56 (2014)). If this error is not
small, an item falls between two nodes, and the sum misses or misplaces the maximum of the
likelihood. Here a h ≤ 2.5 is accepted, an error of 4e-4. The same happens if a row's posterior is
narrower than h; then its likeliest node has nearly all of the posterior mass. If the finest grid is
too coarse for the posteriors, each row gets nodes of its own; without missing values, it always
does, unless the number of nodes is set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.errors import FitWarning
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.bifactor import TraitBlocks, find_trait_blocks
from pipeline.numerics.logistic.centred_nodes import CENTRED_NODES_PER_AXIS
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    MAX_NODES_PER_AXIS,
    NodeChecks,
    Nodes,
    check_nodes,
    drop_light_nodes,
    gauss_hermite,
)
from pipeline.numerics.logistic.lattice_nodes import (
    choose_lattice,
    list_even_nodes,
)
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
NODES_PER_AXIS = {1: 41, 2: 21, 3: 15}
"""Initial number of nodes per axis, by the number of components.

With 20 items of slopes up to 1.5, more nodes change the mean log-likelihood per row by less than
1e-4 nats, and the log-likelihood of one row by up to 2e-5, 4e-3 and 3e-2 for 1, 2 and 3 components.
"""
NODES_PER_AXIS_LIMITS = {1: MAX_NODES_PER_AXIS, 2: 61, 3: 21}
"""Largest number of nodes per axis that a fit chooses, by the number of components."""
_MAX_SHARED_NODES = {1: 2000, 2: 2**14, 3: 2**14}  # equally spaced
_MAX_COUNTS = 2**22  # expected counts of features at nodes: 32 MiB
_MAX_SLOPE_STEP = 2.5  # a h
MAX_INTEGRATION_ERROR = 1e-3
"""Of the log-likelihood of all rows in a fit that chooses its nodes, nats."""
# −log of the largest error per row on the whole lattice among 60 and 30 sets of items, by the
# number of components; with three, errors are not larger than with two.
_LATTICE_DECAY = {1: 12.7, 2: 14.5}
_EVEN_STRETCH, _MAX_EVEN_STRETCH = 0.9, 1.4  # of the distances of equally spaced nodes
_MIN_RATIO = 0.6  # of them to those before, in a stage with more nodes
# Of the error of fewer centred nodes; of one stage, and at most if the changes fall that slowly.
_ERROR_RATIO, _MAX_ERROR_RATIO = 1 / 11, 0.9
MAX_SLOPE = 20.0  # longer weights count as diverging: such steep curves look like steps
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

    def is_too_coarse(self, peak: float) -> bool:
        """Return whether the posteriors are too narrow for these nodes, see `refine`."""
        return self._axis_share(peak) > _WARNED_PEAK_SHARE

    def _axis_share(self, peak: float) -> float:
        return float(peak ** (1 / self.n_components))

    def _count_nodes_for_peak(self, peak: float) -> int:
        return math.ceil(self.nodes_per_axis * (self._axis_share(peak) / _TARGET_PEAK_SHARE) ** 2)

    def limit_slopes(self, weights: Array, offsets: Array) -> tuple[Array, Array]:
        """Scale steep items back to what the nodes can resolve, with the same thresholds."""
        slopes = abs(weights).max(axis=1)
        factor = self.max_slope / np.maximum(slopes, self.max_slope)
        return weights * factor[:, None], offsets * factor

    def make_working_state(self, has_row_means: bool = False) -> Arrays:
        """Return the nodes as working state, without those that hardly count.

        All of them count if rows have priors with means of their own.
        """
        nodes = gauss_hermite(self.nodes_per_axis, self.n_components)
        nodes = nodes if has_row_means else drop_light_nodes(nodes)
        return {**store_nodes(nodes, None), "nodes_an_axis": np.array(self.nodes_per_axis)}

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
                f"items too steep for {self.nodes_per_axis} nodes per axis: {{features}}. Their "
                "weights may be far off, or diverge because the data separate them; use "
                f"{remedy}{prior}"
            )
            return [FitWarning(text, tuple(steep.tolist()))]
        if not self.is_too_coarse(peak):
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


@dataclass(frozen=True)
class EvenGrid(NodeGrid):
    """A grid of equally spaced nodes, chosen for the items."""

    spacing: float

    @property
    def max_slope(self) -> float:
        """The steepest slope along an axis that the nodes can resolve."""
        return _MAX_SLOPE_STEP / self.spacing

    def warn_about_nodes(
        self, weights: Array, diverging: Indices, peak: float, prior: str
    ) -> list[FitWarning]:
        """Warn if the number of nodes that was set is too small."""
        steep = np.setdiff1d(self.find_steep_features(weights), diverging)
        if not steep.size and not self.is_too_coarse(peak):
            return []
        text = f"{self.nodes_per_axis} nodes are too few for these items; leave out {{nodes}}"
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


def needs_own_nodes(weights: Array, offsets: Array, is_complete: bool) -> bool:
    """Return whether each row should have its own nodes.

    Without missing values, a lattice is as fast as a grid, and more exact. Otherwise, rows have
    their own nodes if posteriors are probably too narrow for any grid: the likeliest node of a
    normal posterior with standard deviation s has a mass of about h / (s √2π) along an axis, if the
    nodes are h apart. s is that of a row at the origin.
    """
    if is_complete and choose_lattice(weights, offsets) is not None:
        return True
    q = weights.shape[1]
    information = weights.T @ (weights * (expit(offsets) * expit(-offsets))[:, None])
    log_precision = float(np.linalg.slogdet(np.eye(q) + information)[1]) / q
    grid = NodeGrid(NODES_PER_AXIS_LIMITS[q], q)
    spacing = math.pi / math.sqrt(grid.nodes_per_axis)
    share = spacing * math.exp(0.5 * log_precision) / math.sqrt(2 * math.pi)
    return grid.is_too_coarse(share**q)


def count_own_nodes(n_components: int, working: Arrays) -> int:
    """Return the number per axis of nodes that are centred at each row."""
    first = CENTRED_NODES_PER_AXIS[n_components][0]
    return int(working.get("own_nodes", first))


def describe_own_nodes(
    params: LatentTraitParams, working: Arrays, is_complete: bool
) -> dict[str, Any]:
    """Describe the nodes of rows that have their own."""
    if is_complete and (lattice := choose_lattice(params.weights, params.offsets)) is not None:
        return {"node_spacing": lattice.stretch(float(working.get("stretch", 1.0))).spacing}
    return {
        "nodes_an_axis": count_own_nodes(params.weights.shape[1], working),
        "nodes_are_centred": True,
    }


def find_steep_features(params: LatentTraitParams, working: Arrays, is_complete: bool) -> Indices:
    """Return the features that are too steep for the nodes of the last pass.

    Nodes centred at each row are used if posteriors are narrower than the distance of the finest
    grid. So they resolve at least the slopes that this grid resolves.
    """
    if "spacing" in working:  # of items with several levels
        max_slope = _MAX_SLOPE_STEP / float(working["spacing"])
        return np.flatnonzero(np.linalg.norm(params.get_group(0).items.weights, axis=1) > max_slope)
    if (grid := grid_from_working(working)) is None:
        return np.empty(0, np.intp)
    has_lattice = "has_own_nodes" in working and is_complete
    lattice = choose_lattice(params.weights, params.offsets) if has_lattice else None
    if lattice is None:
        return grid.find_steep_features(params.weights @ params.axes.T)
    max_slope = _MAX_SLOPE_STEP / lattice.spacing
    return np.flatnonzero(np.linalg.norm(params.weights, axis=1) > max_slope)


def grid_from_working(working: Arrays) -> NodeGrid | None:
    """Return the grid of a stage, or None if it uses none."""
    if "nodes_an_axis" not in working:
        return None
    if "node_spacing" in working:
        n_nodes, q = working["points"].shape
        return EvenGrid(n_nodes, q, float(working["node_spacing"]))
    return NodeGrid(int(working["nodes_an_axis"]), working["points"].shape[1])


def begin_finer_stage(
    state: FitState, statistics: Sums, items: Sequence[TraitItems], has_row_means: bool
) -> FitState | None:
    """Start a stage with more nodes, or other ones; None if the integrals are exact enough.

    Steep items are scaled back to what the nodes of this stage resolve. Once Gauss–Hermite nodes
    resolve the items, equally spaced ones follow, as far apart as the items of all groups allow.
    Half of them estimate the error, which decides whether more are needed. If they would be too
    many, rows have their own nodes, more of them in each stage until it changes the log-likelihood
    little.
    """
    if float(state.working.get("stretch", 1.0)) > 1:
        return use_last_lattice(state)
    grid = grid_from_working(state.working)
    if grid is None:
        return None
    if "has_own_nodes" in state.working:
        return _add_own_nodes(state, statistics, items)
    if isinstance(grid, EvenGrid):
        return _add_even_nodes(state, statistics, items)
    peak = float(statistics.values["peak"]) / statistics.weight
    if (finer := grid.refine(state.params.weights, peak)) is None:
        if (even := _begin_even_stage(state, items, _EVEN_STRETCH)) is not None:
            return even
        return _begin_own_stage(state)
    weights, offsets = grid.limit_slopes(state.params.weights, state.params.offsets)
    params = state.params.with_items(weights=weights, offsets=offsets)
    nodes = finer.make_working_state(has_row_means)
    return replace(state, params=params, working={**state.working, **nodes})


def count_max_nodes(n_features: int, n_components: int) -> int:
    """Return the largest number of nodes that all rows share in a fit that chooses them."""
    return min(_MAX_SHARED_NODES[n_components], max(_MAX_COUNTS // n_features, 1))


def _begin_even_stage(
    state: FitState, items: Sequence[TraitItems], stretch: float
) -> FitState | None:
    most = count_max_nodes(*state.params.weights.shape)
    while (found := list_even_nodes(items, stretch, most)) is None:
        stretch *= 1.1
        if stretch > _MAX_EVEN_STRETCH:
            return None
    nodes, spacing = found
    working = {
        **state.working,
        **store_nodes(nodes, spacing),
        "nodes_an_axis": np.array(len(nodes.points)),
        "node_spacing": np.array(spacing),
        "node_stretch": np.array(stretch),
    }
    return replace(state, working=working)


def _add_even_nodes(
    state: FitState, statistics: Sums, items: Sequence[TraitItems]
) -> FitState | None:
    """Start a stage with more equally spaced nodes if the error is too large."""
    error, stretch = float(statistics.values["error"]), float(state.working["node_stretch"])
    if error <= MAX_INTEGRATION_ERROR:
        return None
    # The logarithm of the error of a row is proportional to the density of nodes, or its square.
    ratio = math.log(error / statistics.weight) / math.log(
        MAX_INTEGRATION_ERROR / statistics.weight
    )
    # Posteriors that are still far too narrow would need more and more nodes.
    is_hopeless = ratio < _MIN_RATIO and stretch < _EVEN_STRETCH
    finer = None
    if not is_hopeless or state.auxiliary["diverging"].size:
        finer = _begin_even_stage(state, items, stretch * min(max(ratio, _MIN_RATIO), 0.95))
    if finer is None or finer.working["node_spacing"] >= 0.99 * state.working["node_spacing"]:
        # Few nodes of its own do not suit a row whose curves are steps.
        return None if state.auxiliary["diverging"].size else _begin_own_stage(state)
    return finer


def _begin_own_stage(state: FitState) -> FitState:
    """Start a stage with nodes that are centred at each row."""
    first = CENTRED_NODES_PER_AXIS[state.params.weights.shape[1]][0]
    own = {"has_own_nodes": np.array(1), "own_nodes": np.array(first)}
    return replace(state, working={**state.working, **own})


def _add_own_nodes(
    state: FitState, statistics: Sums, items: Sequence[TraitItems]
) -> FitState | None:
    """Start a stage with more nodes per row unless fewer have given the same log-likelihood.

    Equally spaced ones come first if they are possible, because they cost less than many per row.
    """
    params, working = state.params, state.working
    if working.get("is_complete", False) and choose_lattice(params.weights, params.offsets):
        return None
    if "own_nodes" not in working:
        shared = {name: value for name, value in working.items() if name != "has_own_nodes"}
        even = _begin_even_stage(replace(state, working=shared), items, _EVEN_STRETCH)
        if even is not None:
            return even
    numbers = CENTRED_NODES_PER_AXIS[params.weights.shape[1]]
    place = numbers.index(count_own_nodes(params.weights.shape[1], working))
    error = estimate_integration_error(state, statistics)
    if place == len(numbers) - 1 or error <= MAX_INTEGRATION_ERROR:
        return None
    own = {
        "own_nodes": np.array(numbers[place + 1]),
        "coarse": np.array(statistics.objective),
    }
    if "coarse" in working:
        own["change"] = np.array(statistics.objective - float(working["coarse"]))
    return replace(state, working={**working, **own})


def estimate_integration_error(state: FitState, statistics: Sums) -> float:
    """Return the estimated error of the log-likelihood of all rows, nats; NaN if unknown.

    Errors of centred nodes shrink by a ratio with every stage, so that what is left is a geometric
    series.
    """
    working = state.working
    if "sample_error" in working:
        return float(working["sample_error"])
    if "is_odd" in working and "has_own_nodes" not in working:
        return float(statistics.values["error"])
    change = abs(statistics.objective - float(working.get("coarse", np.nan)))
    before = abs(float(working.get("change", np.nan)))
    ratio = np.clip(change / before, _ERROR_RATIO, _MAX_ERROR_RATIO) if before else _ERROR_RATIO
    ratio = float(np.nan_to_num(ratio, nan=_ERROR_RATIO))
    return change * ratio / (1 - ratio)


def keep_integration_error(state: FitState, statistics: Sums) -> Arrays:
    """Return the working state for other rows, whose centred nodes have the error of these."""
    if "coarse" not in state.working:
        return state.working
    kept = {k: v for k, v in state.working.items() if k not in ("coarse", "change")}
    return {**kept, "sample_error": np.array(estimate_integration_error(state, statistics))}


def use_last_lattice(state: FitState) -> FitState:
    """Use a lattice whose error of the log-likelihood of all rows is small, if there is one.

    At a stretch s, the error per row is at most about exp(−c / s^1.3): that of a logistic curve
    falls with exp(−1 / s), and that of a Gaussian with exp(−1 / s²).
    """
    if "stretch" not in state.working:
        return state
    decay = _LATTICE_DECAY[min(state.params.weights.shape[1], 2)]
    needed = math.log(float(state.auxiliary["weight"]) / MAX_INTEGRATION_ERROR)
    stretch = (decay / max(decay, needed)) ** (1 / 1.3)
    return replace(state, working={**state.working, "stretch": np.array(stretch)})


def nodes_from_working(working: Arrays) -> Nodes | None:
    """Return the nodes of the E-step, or None if it uses none."""
    return Nodes(working["points"], working["log_weights"]) if "points" in working else None


def store_nodes(nodes: Nodes, spacing: float | None) -> Arrays:
    """Return nodes, and what `check_nodes` finds for them, as working state.

    It is found before the nodes are turned to other axes.
    """
    is_edge, is_odd, max_edge_share = check_nodes(nodes, spacing)
    checks = {"is_edge": is_edge, "max_edge_share": np.array(max_edge_share)}
    if is_odd is not None:
        checks["is_odd"] = is_odd
    return {**nodes._asdict(), **checks}


def checks_from_working(working: Arrays) -> NodeChecks | None:
    """Return what finds rows that the nodes do not suit; None for nodes without it."""
    if "is_edge" not in working:
        return None
    return NodeChecks(working["is_edge"], working.get("is_odd"), float(working["max_edge_share"]))


def blocks_from_working(working: Arrays) -> TraitBlocks | None:
    """Return the blocks of items of a bifactor model, or None if the E-step uses none."""
    return find_trait_blocks(working["loads"]) if "loads" in working else None


def represents_all_scales(weights: Array, working: Arrays, sums: Sums) -> bool:
    """Return whether the estimate of the likelihood does not depend on the scale of the traits.

    That of random draws depends on it, and that on a grid which does not resolve the items or the
    posteriors. Parameter expansion would then lower the estimate.
    """
    if not sums.values["ones"].shape[-1]:  # sums that are quadratic in the forms
        return True
    if (grid := grid_from_working(working)) is None:
        return not {"is_edge", "by_sites"}.isdisjoint(working)  # draws have neither
    is_resolved = not len(grid.find_steep_features(weights))
    return is_resolved and not grid.is_too_coarse(float(sums.values["peak"]) / sums.weight)


def is_variational(working: Arrays) -> bool:
    """Return whether the E-step of a stage is variational."""
    return nodes_from_working(working) is None and not {"by_sites", "loads"} & {*working}


def has_likelihood(working: Arrays) -> bool:
    """Return whether a stage maximizes the likelihood, exactly or by expectation propagation."""
    return bool({"nodes_an_axis", "is_edge", "by_sites", "loads"} & {*working})
