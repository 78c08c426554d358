"""The latent-trait model with guessing and slipping: items with three and four parameters.

Model: the one of `confirmatory` with a single trait, and

    P(t_i = 1 | x) = g_i + (1 − s_i − g_i) σ(w_i x + b_i)

(A. Birnbaum 1968; M. A. Barton, F. M. Lord 1981). Guessing g and slipping s are estimated as
logits, for each item or the same for all. They have priors, because data hardly determine them.

E-step: on equally spaced nodes shared by all rows, fine enough for the items (Bock & Aitkin 1981).
A new stage begins if items become too steep for them.

M-step: one step of Fisher scoring for the parameters of each item on the expected counts at the
nodes, halved until it raises their expected log-likelihood and log prior.

======  ========  =============
symbol  field     shape
======  ========  =============
g       guessing  (n_features,)
s       slipping  (n_features,)
======  ========  =============

Cost per block: n_samples n_features n_nodes, with about 50 to 300 nodes. Standard errors are those
of the observed information plus the curvature of the log prior. g + s < 1 excludes the same curve
with the opposite slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.models.latent_trait.confirmatory import (
    ConfirmatoryTrait,
    find_free_items,
    get_items,
    get_traits,
    with_groups,
)
from pipeline.models.latent_trait.em import (
    LatentTraitParams,
    TraitGroup,
    e_step,
    make_params,
    nodes_from_working,
)
from pipeline.models.latent_trait.group_design import (
    GroupDesign,
    factorize,
    list_changes,
    shorten_step,
    solve_for_step,
)
from pipeline.models.latent_trait.item_fit import add_fit_statistics, make_binary_items
from pipeline.models.latent_trait.item_priors import PRIOR_FAMILIES, ItemPrior, parse_prior
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.standard_errors import choose_asymptote_row_share
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.asymptote_posterior import make_even_nodes, make_shared_nodes
from pipeline.numerics.logistic.asymptotes import (
    MAX_LOGIT,
    Asymptotes,
    compute_log_probabilities,
    differentiate_curves,
    from_logits,
    sum_expected_curvature,
    sum_item_scores,
    to_logits,
)
from pipeline.numerics.logistic.latent_nodes import Nodes
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_NAMES = ("guessing", "slipping")
_START = {"guessing": 0.15, "slipping": 0.05}  # without a prior
_MAX_START = 0.25
_NODE_MARGIN, _MAX_SPACING_RATIO = 1.5, 1.2  # of slopes when nodes are chosen; before new ones
_LEAST_SLOPE = 0.3  # at the start, if slopes are positive
_MIN_RANGE = 1e-3  # of a curve: 1 − s − g
_MAX_SUM = 0.95  # of g + s after an extrapolation
_MAX_HALVINGS, _TOLERATED_LOSS = 12, 1e-12
_BOUNDARY = 1e-3  # smaller asymptotes without a prior count as 0
_MAX_SCALE_CHANGE = 0.02
_MAX_ERROR = 0.3  # of an asymptote; larger ones mean that the data do not determine it


class PlacedPrior(NamedTuple):
    """A prior, and the places of the free parameters that have it."""

    places: Indices
    prior: ItemPrior


@dataclass(frozen=True)
class AsymptoteTrait(ConfirmatoryTrait):
    """Hyperparameters of the latent-trait model with guessing or slipping."""

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add a structure to it.

        Raises
        ------
        FitError
            If the settings cannot be combined with guessing or slipping.
        """
        name = "guessing" if model.guessing != "none" else "slipping"
        what = f"{{{name}={getattr(model, name)}}}"
        if structure.pattern is not None:
            raise FitError(
                f"{what} cannot be combined with {{pattern}}. Leave out one of them.",
                parameter=name,
            )
        if model.n_components != 1:
            raise FitError(
                f"{what} needs one component. Set {{components=1}}.", parameter="components"
            )
        if model.estimator not in ("auto", "quadrature"):
            raise FitError(
                f"{what} cannot be combined with {{estimator={model.estimator}}}. It needs "
                "{estimator=quadrature}.",
                parameter="estimator",
            )
        for name in _NAMES:
            prior = getattr(model, f"{name}_prior")
            if getattr(model, name) == "none" and prior != getattr(LatentTrait, f"{name}_prior"):
                raise FitError(
                    f"{{{name}_prior={prior}}} needs {{{name}=item}} or {{{name}=common}}.",
                    parameter=f"{name}_prior",
                )
        if model.prior_precision and model.slope_prior != "none":
            raise FitError(
                f"{{prior_precision}} and {{slope_prior={model.slope_prior}}} are both priors of "
                "slopes. Leave out one of them.",
                parameter="slope_prior",
            )
        return super().from_model(model, structure)

    def _make_design(self, constant: NDArray[np.int64], margins: Array) -> GroupDesign:
        """Return which parameters are estimated; known items have no asymptotes."""
        design = super()._make_design(constant, margins)
        logits = np.full((len(margins), 2), np.nan)
        logits[(design.index < 0).all(axis=(0, 2))] = -MAX_LOGIT
        for column, name in enumerate(_NAMES):
            if getattr(self, name) == "none":
                logits[:, column] = -MAX_LOGIT
        is_common = np.array([getattr(self, name) == "common" for name in _NAMES])
        is_own = np.full(len(margins), design.are_means_absorbed)
        if not design.are_means_absorbed:
            is_own[find_free_items(self.free, self.structure)] = True
        widened = add_asymptotes(design, logits, is_common, is_own)
        has_priors = self.slope_prior != "none" or self.offset_prior != "none"
        return replace(widened, is_expanded=design.is_expanded and not has_priors)

    def _list_priors(self, design: GroupDesign, precision: float = 0.0) -> list[PlacedPrior]:
        """Return all priors of parameters of items; `precision` is that of normal slopes."""
        q = design.n_components
        columns = (slice(0, q), slice(q, q + 1), slice(q + 1, q + 2), slice(q + 2, q + 3))
        priors = []
        for name, column in zip(PRIOR_FAMILIES, columns, strict=True):
            prior = self._get_prior(name)
            if name == "slope_prior" and precision:
                prior = ItemPrior("normal", 0.0, precision**-0.5)
            index = design.index[:, :, column]
            places = np.unique(index[index >= 0])
            if prior is not None and places.size:
                priors.append(PlacedPrior(places, prior))
        return priors

    def _get_prior(self, name: str) -> ItemPrior | None:
        return parse_prior(getattr(self, name), name, PRIOR_FAMILIES[name])

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the margins, and start from equal groups."""
        return self._choose_nodes(super()._start_from(first, loadings, seed))

    def _begin_stage(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> FitState:
        """Start a stage; `initialize` and `next_stage` choose its nodes."""
        return replace(
            state,
            params=make_params(weights, state.params.offsets),
            working={"held_out": np.array(held_out)},
        )

    def _choose_nodes(self, state: FitState) -> FitState:
        """Begin a stage with nodes that resolve the items."""
        nodes = self._make_nodes(state.params, _NODE_MARGIN)
        working = {
            **state.working,
            **nodes._asdict(),
            "nodes_an_axis": np.array(len(nodes.points)),
            "node_spacing": np.array(nodes.points[1, 0] - nodes.points[0, 0]),
        }
        return replace(state, working=working)

    def _make_nodes(self, params: LatentTraitParams, margin: float) -> Nodes:
        """Return the nodes of the group with the narrowest posteriors, for steeper slopes."""
        if self.nodes:
            return make_even_nodes(self.nodes)
        groups = (params.get_group(group).items for group in range(self.n_groups))
        all_nodes = (make_shared_nodes(margin * w, margin * b) for w, b in groups)
        return max(all_nodes, key=lambda nodes: len(nodes.points))

    def _make_first_items(self, weights: Array, offsets: Array) -> Array:
        """Return slopes, offsets and asymptotes that have the margins of the data."""
        starts = []
        for name in _NAMES:
            prior = self._get_prior(f"{name}_prior")
            start = _START[name] if prior is None else min(prior.probability, _MAX_START)
            starts.append(0.0 if getattr(self, name) == "none" else start)
        g, s = starts
        share = np.clip((expit(offsets) - g) / (1 - s - g), 0.05, 0.95)
        logits = np.tile(to_logits(np.array(starts)), (len(offsets), 1))
        if self.slope_prior.startswith("lognormal"):
            weights = np.maximum(np.abs(weights), _LEAST_SLOPE)
        return np.column_stack([weights, scipy.special.logit(share), logits])

    def _join_items(self, group: TraitGroup) -> Array:
        """Return slopes, offsets and asymptotes of an earlier fit, which may have none."""
        first = self._make_first_items(group.weights, group.offsets)
        if group.asymptotes is None:
            return first
        logits = np.column_stack([to_logits(values) for values in group.asymptotes])
        logits = np.where(logits <= -MAX_LOGIT, first[:, -2:], logits)
        return np.column_stack([group.weights, group.offsets, logits])

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit, with or without asymptotes."""
        return self._choose_nodes(super().warm_start(state, params))

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step of the block's group; the counts at the nodes go to the M-step."""
        sums = e_step(self._get_group_params(params, block), working, block)
        placed = self._place_values(sums.values, ("ones", "mass", "moments"), block)
        return replace(sums, values=placed)

    def objective(self, params: LatentTraitParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior of all items, nats."""
        constant = np.flatnonzero((params.weights == 0).all(axis=1))
        design = self._make_design(constant, params.offsets)
        log_prior = self._sum_log_prior(design, params)
        return (statistics.objective + log_prior) / statistics.weight

    def _sum_log_prior(self, design: GroupDesign, params: LatentTraitParams) -> float:
        free = design.collect(get_items(params))
        return sum_log_prior(free, self._list_priors(design)) + self._get_log_prior(params)

    def _take_item_step(self, design: GroupDesign, state: FitState, statistics: Sums) -> Array:
        mean, covariance = get_traits(state.params)
        nodes = nodes_from_working(state.working)
        assert nodes is not None
        counts = NodeCounts(nodes.points, statistics.values["ones"], statistics.values["mass"])
        priors = self._list_priors(design, self.prior_precision)
        items = get_items(state.params)
        return take_scoring_step(design, items, mean, factorize(covariance), counts, priors)

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`, and keep extrapolated parameters where the model is defined."""
        unpacked = super().unpack_params(params, packed, weight)
        items, q = get_items(unpacked), unpacked.weights.shape[1]
        if self.slope_prior.startswith("lognormal"):
            before = get_items(params)[:, :, :q]
            items[:, :, :q] = np.where(items[:, :, :q] > 0, items[:, :, :q], before)
        p = from_logits(items[:, :, q + 1 :])
        total = p.sum(axis=2, keepdims=True)
        items[:, :, q + 1 :] = to_logits(
            p * np.minimum(1.0, _MAX_SUM / np.maximum(total, _MAX_SUM))
        )
        return with_groups(unpacked, items, *get_traits(unpacked))

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with more nodes if the items became too steep for those of this stage."""
        if not self.nodes:
            nodes = self._make_nodes(state.params, 1.0)
            spacing = float(nodes.points[1, 0] - nodes.points[0, 0])
            if float(state.working["node_spacing"]) > _MAX_SPACING_RATIO * spacing:
                return self._choose_nodes(state)
        return self._begin_scaling(state, statistics)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Add diagnostics and warnings, and leave out what was not estimated."""
        state = super().finish(state, statistics)
        unused = [name for name in _NAMES if getattr(self, name) == "none"]
        names = [f"{prefix}{name}" for name in unused for prefix in ("", "group_")]
        priors = [n for n in ("slope_prior", "offset_prior") if getattr(self, n) != "none"]
        if priors and self.structure.known_items is None:
            state = replace(
                state, warnings=(*state.warnings, *_warn_about_scale(statistics, priors))
            )
        if not self._has_structure:
            names += ["trait_mean", "trait_covariance"]
        return replace(state, params=replace(state.params, **dict.fromkeys(names)))

    @property
    def _has_structure(self) -> bool:
        return bool(self.structure.groups) or self.structure.known_items is not None

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors and fit statistics."""
        working = super().begin_information_pass(state)
        if working is None or state.auxiliary["has_sampling_weights"]:
            return working
        n_features, n_nodes = len(state.params.offsets), len(state.working["points"])
        n_rows = int(state.auxiliary["n_rows"])
        share = choose_asymptote_row_share(n_rows, n_features, n_nodes, self.errors)
        return {**working, "share": np.array(share)}

    def _sum_gradient(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Array:
        """Return the gradient in the items of u in each group, (n_groups, n_features, q + 3)."""
        values = self.summarize(params, working, block, rng).values
        own = self._get_group_params(params, block)
        assert own.asymptotes is not None
        eta = own.weights @ working["points"].T + own.offsets[:, None]
        derivatives = differentiate_curves(eta, own.asymptotes.by_item)
        place = self._get_group_index(block)
        gradient = np.zeros((self.n_groups, len(own.offsets), own.weights.shape[1] + 3))
        counts = (values["ones"][place], values["mass"][place])
        gradient[place] = sum_item_scores(working["points"], *counts, derivatives)
        return gradient

    def _compute_prior_curvature(self, design: GroupDesign, params: LatentTraitParams) -> Array:
        """Return minus the second derivatives of the log prior, (n_free,).

        Asymptotes at 0 without a prior are given one, so that they count as known: otherwise no
        parameter of their items would have an error.
        """
        free = design.collect(get_items(params))
        priors = self._list_priors(design, self._get_precision(params))
        curvature = differentiate_log_prior(free, priors)[1]
        logits = design.index[:, :, -2:]
        is_asymptote = np.isin(np.arange(design.n_free), logits)
        is_at_boundary = is_asymptote & (curvature == 0) & (expit(free) < _BOUNDARY)
        return np.where(is_at_boundary, 1.0, curvature)

    def _list_other_errors(self, params: LatentTraitParams, errors: Array) -> dict[str, Array]:
        """Return standard errors of asymptotes, as probabilities, by the delta method."""
        arrays = {}
        for column, name in enumerate(_NAMES, params.weights.shape[1] + 1):
            if getattr(self, name) == "none":
                continue
            p = from_logits(get_items(params)[:, :, column])
            by_group = p * (1 - p) * errors[:, :, column]
            if self._get_prior(f"{name}_prior") is None:
                is_at_boundary = (p < _BOUNDARY) & (errors[:, :, column] > 0)
                by_group = np.where(is_at_boundary, np.nan, by_group)
            arrays[f"{name}_error"] = by_group[0]
            if self.structure.groups:
                arrays[f"group_{name}_error"] = by_group
        return arrays

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, likelihood and fit statistics."""
        state = super().finish_information_pass(state, statistics)
        params, warnings = state.params, [*state.warnings]
        is_free = self._get_design(state).index[0, :, -2:].T >= 0
        for name, is_estimated in zip(_NAMES, is_free, strict=True):
            if is_estimated.any() and self._get_prior(f"{name}_prior") is None:
                warnings += _warn_about_asymptotes(params, name, is_estimated)
        if not self._has_structure:
            params = replace(params, trait_mean_error=None, trait_covariance_error=None)
        return replace(state, params=params, warnings=tuple(warnings))

    def _add_likelihood(self, state: FitState, statistics: Sums, n_parameters: int) -> FitState:
        design, params = self._get_design(state), state.params
        found: dict[str, Any] = {"log_prior": self._sum_log_prior(design, params)}
        if self._has_structure:
            state = super()._add_likelihood(state, statistics, n_parameters)
            found |= state.diagnostics["fit_statistics"]
        else:
            nodes = nodes_from_working(state.working)
            assert nodes is not None
            varying = np.setdiff1d(np.arange(len(params.offsets)), state.auxiliary["constant"])
            is_common = [getattr(self, name) == "common" for name in _NAMES]
            derivatives = _differentiate_items(design, np.array(is_common))
            model = make_binary_items(params, nodes, varying, *derivatives)
            state = add_fit_statistics(state, statistics, model, n_parameters)
            params, found = state.params, found | state.diagnostics["fit_statistics"]
        diagnostics = {**state.diagnostics, "fit_statistics": found}
        return replace(state, params=params, diagnostics=diagnostics)


def add_asymptotes(
    design: GroupDesign,
    logits: Array,
    is_common: NDArray[np.bool_],
    is_own: NDArray[np.bool_],
) -> GroupDesign:
    """Add the columns of guessing and slipping to a design of slopes and offsets.

    Parameters
    ----------
    logits
        Known logits, (n_features, 2), NaN where the fit estimates them.
    is_common
        Whether guessing, and slipping, is the same for all items, (2,).
    is_own
        Items with asymptotes of their own in each group, (n_features,). Common asymptotes differ by
        group only if those of all items do.
    """
    n_groups, n_features, _ = design.index.shape
    key = np.arange(2 * n_features).reshape(n_features, 2)
    key[:, is_common] = key[0, is_common]
    has_own = np.where(is_common, is_own.all(), is_own[:, None])
    keys = np.where(has_own, key + key.size * np.arange(n_groups)[:, None, None], key)
    is_free = np.broadcast_to(np.isnan(logits), keys.shape)
    index = np.full(keys.shape, -1)
    index[is_free] = design.n_free + np.unique(keys[is_free], return_inverse=True)[1]
    known = np.broadcast_to(np.nan_to_num(logits), keys.shape)
    return replace(
        design,
        index=np.concatenate([design.index, index], axis=2),
        known=np.concatenate([design.known, known], axis=2),
        n_asymptotes=2,
    )


def sum_log_prior(free: Array, priors: list[PlacedPrior]) -> float:
    """Return the log prior of the free parameters, (n_free,)."""
    return float(sum(prior.compute_log_density(free[k]).sum() for k, prior in priors))


def differentiate_log_prior(free: Array, priors: list[PlacedPrior]) -> tuple[Array, Array]:
    """Return gradient and minus the second derivatives of the log prior, (n_free,) each."""
    gradient, curvature = np.zeros((2, len(free)))
    for places, prior in priors:
        own_gradient, own_curvature = prior.differentiate(free[places])
        gradient[places] += own_gradient
        curvature[places] += own_curvature
    return gradient, curvature


class NodeCounts(NamedTuple):
    """Nodes of u, (n_nodes, q), and expected ones and values, (n_groups, n_features, n_nodes)."""

    points: Array
    ones: Array
    mass: Array


def take_scoring_step(
    design: GroupDesign,
    items: Array,
    mean: Array,
    root: Array,
    counts: NodeCounts,
    priors: list[PlacedPrior],
) -> Array:
    """Take a step of Fisher scoring for all free parameters of items.

    Items that share no parameter with others are independent. The step of each such set of items is
    halved until their expected log-likelihood plus log prior does not fall.

    Parameters
    ----------
    items
        Slopes, offsets and logits of asymptotes, (n_groups, n_features, q + 3).
    mean, root
        μ_g, (n_groups, q), and L_g, (n_groups, q, q).

    Returns
    -------
    ndarray
        The new parameters of the items of all groups.
    """
    points, ones, mass = counts
    free, change = design.collect(items), list_changes(mean, root, design.n_asymptotes)
    derivatives = differentiate_curves(*_evaluate_curves(items, change, points))
    gradient = np.einsum("gab,gia->gib", change, sum_item_scores(points, ones, mass, derivatives))
    curvature = sum_expected_curvature(points, mass, derivatives)
    curvature = np.einsum("gab,giac,gcd->gibd", change, curvature, change)
    prior_gradient, prior_curvature = differentiate_log_prior(free, priors)
    prior_curvature = np.maximum(prior_curvature, 0.0)
    step = solve_for_step(design, gradient, curvature, prior_gradient, prior_curvature)
    step = shorten_step(design, change, step)

    n_sets, set_of_item, set_of_parameter = _find_independent_sets(design)
    is_asymptote = np.zeros(design.n_free, np.bool_)
    is_asymptote[design.index[:, :, -2:][design.index[:, :, -2:] >= 0]] = True

    def score(values: Array) -> Array:
        """Return the objective of each set of items."""
        by_item = _sum_by_item(design.fill(values), change, counts)
        by_parameter = np.zeros(len(values))
        for places, prior in priors:
            by_parameter[places] += prior.compute_log_density(values[places])
        of_items = np.bincount(set_of_item, by_item, n_sets)
        return np.asarray(of_items + np.bincount(set_of_parameter, by_parameter, n_sets))

    start, scale = score(free), np.ones(n_sets)
    least = start - _TOLERATED_LOSS * np.abs(start)
    for _ in range(_MAX_HALVINGS):
        moved = free + scale[set_of_parameter] * step
        limit = np.where(is_asymptote, MAX_LOGIT, np.inf)
        moved = np.clip(moved, -limit, limit)
        is_worse = ~(score(moved) >= least)
        if not is_worse.any():
            break
        scale[is_worse] *= 0.5
    return design.fill(np.where(is_worse[set_of_parameter], free, moved))


def _evaluate_curves(items: Array, change: Array, points: Array) -> tuple[Array, Asymptotes]:
    """Return η at nodes of u, and asymptotes, (n_groups, n_features, n_nodes) and (..., 1)."""
    q = points.shape[1]
    own = np.einsum("gab,gib->gia", change, items)
    eta = own[:, :, :q] @ points.T + own[:, :, q : q + 1]
    g, s = from_logits(items[:, :, q + 1 : q + 2]), from_logits(items[:, :, q + 2 :])
    return eta, Asymptotes(g, s)


def _sum_by_item(items: Array, change: Array, counts: NodeCounts) -> Array:
    """Return the expected log-likelihood of each item; −∞ if its asymptotes exceed 1 together."""
    eta, asymptotes = _evaluate_curves(items, change, counts.points)
    ranges = 1 - asymptotes.guessing - asymptotes.slipping
    is_valid = (ranges >= _MIN_RANGE).all(axis=(0, 2))
    asymptotes = Asymptotes(*(np.where(ranges >= _MIN_RANGE, p, 0.0) for p in asymptotes))
    log_one, log_zero = compute_log_probabilities(eta, asymptotes)
    by_node = counts.ones * log_one + (counts.mass - counts.ones) * log_zero
    return np.where(is_valid, by_node.sum(axis=(0, 2)), -np.inf)


def _find_independent_sets(design: GroupDesign) -> tuple[int, Indices, Indices]:
    """Return the number of sets of items without common parameters, and who is in which.

    The sets are those of each item, (n_features,), and of each free parameter, (n_free,).
    """
    _, n_features, _ = design.index.shape
    size = n_features + design.n_free
    _, items, _ = np.nonzero(design.index >= 0)
    edges = (np.ones(len(items)), (items, n_features + design.index[design.index >= 0]))
    graph = scipy.sparse.coo_array(edges, shape=(size, size))
    n_sets, labels = scipy.sparse.csgraph.connected_components(graph, directed=False)
    sets = labels.astype(np.int64)
    return int(n_sets), sets[:n_features], sets[n_features:]


def _differentiate_items(
    design: GroupDesign, is_common: NDArray[np.bool_]
) -> tuple[scipy.sparse.csr_array, int]:
    """Return the derivatives of the first group's items, (n_features width, n_free).

    Also return the number of parameters without the last ones: asymptotes that all items share.
    """
    index = design.index[0]
    shared = np.unique(index[:, -2:][:, is_common])
    shared = shared[shared >= 0]
    order = np.concatenate([np.setdiff1d(np.arange(design.n_free), shared), shared])
    rows, free = np.flatnonzero(index >= 0), index[index >= 0]
    entries = (np.ones(len(rows)), (rows, np.argsort(order)[free]))
    shape = (index.size, design.n_free)
    return scipy.sparse.csr_array(entries, shape=shape), design.n_free - len(shared)


def _warn_about_scale(statistics: Sums, names: Sequence[str]) -> list[FitWarning]:
    """Warn if priors of items moved the mean or the scale of the trait in the first group."""
    second, first, n_rows = (statistics.values["moments"][0].ravel()[k] for k in (0, 1, 3))
    mean = first / n_rows
    deviation = math.sqrt(second / n_rows - mean**2)
    if max(abs(mean), abs(deviation - 1)) <= _MAX_SCALE_CHANGE:
        return []
    subject = " and ".join(f"{{{name}}}" for name in names)
    text = (
        f"{subject} {'outweighs' if len(names) == 1 else 'outweigh'} the rows: the trait has the "
        f"mean {mean:.2f} and the standard deviation {deviation:.2f} in them instead of 0 and 1, "
        "and scores of other rows are on another scale; use wider priors, or {prior_precision}, "
        "which keeps the scale"
    )
    return [FitWarning(text)]


def _warn_about_asymptotes(
    params: LatentTraitParams, name: str, is_estimated: NDArray[np.bool_]
) -> list[FitWarning]:
    """Warn about asymptotes without a prior that are 0, or that the data do not determine."""
    values, errors = getattr(params, name), getattr(params, f"{name}_error")
    is_zero = is_estimated & (values < _BOUNDARY)
    texts = [
        (is_zero, f"the {name} of these features is 0 and has no standard error: {{features}}"),
    ]
    if errors is not None:
        is_vague = is_estimated & ~is_zero & ~(errors < _MAX_ERROR)
        text = f"the data hardly determine the {name} of these features: {{features}}; a prior"
        texts.append((is_vague, f"{text} such as {{{name}_prior=beta(5,17)}} helps"))
    found = [(text, np.flatnonzero(which).tolist()) for which, text in texts if which.any()]
    return [FitWarning(text, tuple(features)) for text, features in found]
