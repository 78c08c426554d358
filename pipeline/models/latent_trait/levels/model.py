"""The latent-trait model with items of several levels, and continuous items.

Model: x ~ N(0, I_q), and the levels of an item depend on x through one linear form per plane, see
`numerics.logistic.categories.curves` and `design`. A binary item is as in `latent_trait.model`. A
continuous item is normal given x, see `numerics.logistic.categories.gaussian_items`.

E-step: on equally spaced nodes shared by all rows, fine enough for the items (Bock & Aitkin 1981).
A block has one bit per plane, and log P of a row is linear in its bits, so it costs two matrix
products. The first stage has fewer nodes, and another begins if items become too steep for them.
Rows that have only continuous values are integrated exactly, and those whose posterior lies outside
the nodes on points of their own, see `numerics.logistic.categories.row_posteriors`.

M-step: steps of Fisher scoring on the expected counts at the nodes, and parameter expansion.

=======  =============  =========================
symbol   field          shape
=======  =============  =========================
w_i      weights        (n_features, n_components)
d_j      level_offsets  (n_planes,)
a_j      level_weights  (n_planes, n_components)
σ_i      deviations     (n_continuous,)
=======  =============  =========================

Cost per block: n_samples n_nodes for each plane and continuous item, with about 40 to 100 nodes for
one trait, 1,000 for two and up to 8,000 for three. Not identifiable: rotations of x, as in `model`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import find_first_planes
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import (
    ConvergenceCriterion,
    ObjectiveCriterion,
    PassCountCriterion,
)
from pipeline.learning.held_out import HELD_OUT_SHARE, run_e_step_with_held_out
from pipeline.models.latent_trait.em import (
    MAX_INTEGRATION_ERROR,
    MAX_SLOPE,
    ItemKind,
    LatentTraitParams,
    NodeGrid,
    checks_from_working,
    make_params,
    nodes_from_working,
    represents_all_scales,
    store_nodes,
    sum_level_regression,
    unpack_answers,
)
from pipeline.models.latent_trait.fit_statistics import (
    FittedItems,
    compute_fit_statistics,
    compute_likelihood_statistics,
    compute_residual_fit,
)
from pipeline.models.latent_trait.group_errors import invert_group_information
from pipeline.models.latent_trait.item_fit import compute_item_fit
from pipeline.models.latent_trait.levels.design import (
    LevelDesign,
    find_margin_offsets,
    make_level_design,
)
from pipeline.models.latent_trait.levels.params import (
    Matrix,
    map_to_items,
    map_to_thresholds,
    with_forms,
)
from pipeline.models.latent_trait.levels.step import ItemGroup, take_level_steps
from pipeline.models.latent_trait.model import (
    SEARCH_TOL,
    SHORT_RUN_TOL,
    LatentTrait,
    compute_difficulties,
    warn_about_reversed_items,
)
from pipeline.models.latent_trait.standard_errors import (
    MAX_ITEMS,
    MAX_PARAMETERS,
    MAX_ROWS,
    choose_level_row_share,
    count_complete_rows,
    draw_rows,
)
from pipeline.models.latent_trait.starts import convert_to_slopes, stretch_offsets
from pipeline.models.latent_trait.wide_errors import (
    ItemCovariance,
    ItemInformation,
    SharedDirections,
    join_blocks,
    list_shared_directions,
)
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure, add_structure
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    choose_level_lattice,
    iter_alike,
    make_level_nodes,
)
from pipeline.numerics.logistic.categories.e_step import sum_level_statistics
from pipeline.numerics.logistic.categories.fit import sum_residuals
from pipeline.numerics.logistic.categories.gaussian_items import MIN_DEVIATION
from pipeline.numerics.logistic.categories.row_posteriors import (
    SharedNodes,
    compute_level_node_posterior,
)
from pipeline.numerics.logistic.categories.scores import (
    LevelSums,
    count_score_products,
    list_form_places,
    sum_level_blocks,
    sum_level_scores,
)
from pipeline.numerics.logistic.information import find_reversed_items
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
    Nodes,
)
from pipeline.numerics.logistic.parameter_expansion import estimate_trait_gaussian
from pipeline.numerics.logistic.trait_scores import (
    RowRegression,
    choose_point_rule,
    leave_out_saturated,
)
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
    count_level_rows,
    make_empty_level_warnings,
)
from pipeline.statistics.measurements import MeasuredCounts, check_numbers
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_START_SLOPE = 1.0  # if all are equal
_STRETCH, _STRETCHED_TOL = 1.3, 1e-4  # of the nodes of the first stage
LAST_STRETCH = {
    1: 0.85,
    2: 0.75,
    3: 0.75,
}  # of the nodes of the last stage; flat optima need fine ones
_NANOSECONDS = 60.0  # per level and point of a row, of scores of many items
_FINER = 0.8  # of the distances of nodes, if they are too far apart
_MAX_SPACING_RATIO = 1.2  # of the nodes before a stage with new ones
_STOPPING_RATIO = 1.5  # likewise, but the stage does not go on until it has converged


@dataclass(frozen=True)
class OrdinalTrait(LatentTrait):
    """The latent-trait model with items of several levels, or continuous."""

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add the features.

        Raises
        ------
        FitError
            If the settings or the structure cannot be combined with such items.
        """
        for name in ("guessing", "slipping", "estimator"):
            value = getattr(model, name)
            if value not in (getattr(LatentTrait, name), "quadrature"):
                raise _refuse(f"{{{name}={value}}}", name)
        if (model.n_components or 1) > MAX_COMPONENTS:
            raise FitError(
                f"{{components}} is {model.n_components}, but features with several levels take at "
                f"most {MAX_COMPONENTS}.",
                parameter="components",
            )
        has_pattern = structure.pattern is not None
        if model.items == "rating-scale" and model.equal_slopes == "no" and not has_pattern:
            raise FitError(
                "Items of a rating scale have the same slope. Set {equal_slopes=yes}.",
                parameter="equal_slopes",
            )
        if model.items == "nominal" and model.n_components != 1:
            raise FitError(
                "Nominal items need one component. Set {components=1}.", parameter="components"
            )
        if model.items == "nominal" and model.equal_slopes == "yes":
            raise FitError(
                "Nominal items have slopes of their own. Leave out {equal_slopes=yes}.",
                parameter="equal_slopes",
            )
        return add_structure(cls, replace(model, estimator="quadrature"), structure)

    @property
    def n_planes(self) -> Indices:
        """Number of planes of each feature, (n_features,), 0 of a continuous one."""
        return np.diff(find_first_planes(self.structure.features))

    @property
    def _has_continuous(self) -> bool:
        return bool((self.n_planes == 0).any())

    def _list_n_planes(self) -> Indices:
        return self.n_planes

    def _name_items(self, items: Indices) -> tuple[str, ...]:
        """Return the names of items: an index in a message would stand for a plane."""
        return tuple(self.structure.features[item].name for item in items.tolist())

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the tables over nodes of all tasks."""
        n_nodes = {1: 250, 2: 2500, 3: 8500}[self.n_components or MAX_COMPONENTS]
        return 8 * self._n_columns * 8 * n_nodes * n_threads

    @property
    def _n_columns(self) -> int:
        """Number of planes and of continuous features."""
        return int(np.maximum(self.n_planes, 1).sum())

    def estimate_work(
        self, params: LatentTraitParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step, and of the scores in the pass for errors."""
        n_columns, n_nodes = self._n_columns, len(working["points"])
        nanoseconds = (3 + 0.3 * n_nodes) * n_columns + 15 * n_nodes + 500
        n_sums = 2 * n_columns * n_nodes
        if "share" in working:
            n_levels, q = n_columns + len(self.n_planes), params.weights.shape[1]
            if "directions" in working:
                n_points = len(choose_point_rule(n_columns, q).points)
                nanoseconds += float(working["share"]) * _NANOSECONDS * n_points * n_levels
                n_sums += 2 * sum(
                    own.size * own.shape[1] for own in list_form_places(self.n_planes, q)
                )
            else:
                nanoseconds += float(working["share"]) * 0.15 * n_nodes * n_levels**2
                n_sums += 3 * (n_columns * (q + 1)) ** 2
        return WorkEstimate(nanoseconds, 8 * n_sums)

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the levels, and start from these loadings and the margins of the levels."""
        n_planes = self.n_planes
        n_features, q = len(n_planes), self.n_components or 1
        if q >= n_features:
            raise FitError(
                f"{{components}} is {q}, but the dataset has only {n_features} features. Choose at "
                f"most {n_features - 1}.",
                parameter="components",
            )
        level_rows = count_level_rows(first, self.structure.features)
        n_present = np.array([np.count_nonzero(rows) for rows in level_rows])
        constant = np.flatnonzero((n_present == 1) & ~self._are_items_known)
        if constant.size and self.constant_features == "refuse":
            raise FitError(
                f"These features are constant: {{features}}. {LEAVE_OUT}, or use "
                "{constant_features=pin}.",
                self._name_items(constant),
                parameter="constant_features",
            )
        weights = convert_to_slopes(loadings, n_planes)
        # Slopes of steps between levels are smaller than those of their normals.
        if self.items != "graded":
            weights /= np.sqrt(np.maximum(n_planes, 1))[:, None]
        if self._has_equal_slopes:
            weights[n_planes > 0] = _START_SLOPE
        weights[constant] = 0.0
        params = replace(make_params(weights, np.zeros(n_features)), n_levels=n_planes + 1)
        if isinstance(first, MeasuredCounts):
            check_numbers(first, self.structure.features)
            scales = np.sqrt(first.squares / first.number_weights)
            # One row of outliers can make correlations larger than the variances allow.
            explained = (weights[n_planes == 0] ** 2).sum(axis=1)
            unique = np.maximum(1.0 - explained, MIN_DEVIATION**2)
            params = replace(params, means=first.means, scales=scales, deviations=np.sqrt(unique))
        auxiliary = {
            "constant": constant,
            "diverging": np.zeros(0, np.int64),
            "level_counts": np.concatenate(level_rows),
            "seed": seed,
            "n_rows": np.array(first.n_rows),
            "weight": np.array(first.weight),
            "is_complete": np.array(first.is_complete),
            "has_sampling_weights": np.array(first.has_sampling_weights),
        }
        estimated = [
            np.ones(len(rows)) if is_known else rows
            for rows, is_known in zip(level_rows, self._are_items_known, strict=True)
        ]
        warnings = make_empty_level_warnings(estimated, "these levels count as improbable")
        if constant.size:
            text = "constant features, pinned at their margins: {features}"
            warnings = (FitWarning(text, tuple(constant.tolist())), *warnings)
        state = FitState(params, auxiliary=auxiliary, warnings=warnings)
        state = state.with_feature_names(self.structure.feature_names)
        held_out = HELD_OUT_SHARE if self.n_components is None else 0.0
        return self._begin_stage(state, weights, held_out, "quadrature")

    @property
    def _are_items_known(self) -> NDArray[np.bool_]:
        """Which items have no free weights and offsets, (n_features,)."""
        return np.zeros(len(self.structure.features), np.bool_)

    def _make_design(self, counts: Array, params: LatentTraitParams) -> LevelDesign:
        q = params.weights.shape[1]
        return make_level_design(counts, self.n_planes, q, self.items, self._has_equal_slopes)

    def _get_design(self, arrays: Arrays, params: LatentTraitParams) -> LevelDesign:
        """Return the design, given arrays of the state with the counts of levels."""
        return self._make_design(arrays["level_counts"], params)

    def _begin_stage(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> FitState:
        """Start a stage with these weights; offsets are those before, or follow from margins."""
        params = _replace_weights(state.params, weights, state.params.offsets)
        offsets = state.params.level_offsets
        if offsets is None:
            offsets = _make_first_offsets(
                state.auxiliary["level_counts"], self.n_planes, self.items
            ) * np.repeat(stretch_offsets(weights), self.n_planes)
        levels = replace(params, level_offsets=offsets)
        if self.items == "nominal":  # starts as partial credit
            items = levels.get_level_items("partial-credit")
        else:
            items = levels.get_level_items(self.items)
        design = self._make_design(state.auxiliary["level_counts"], params)
        forms = design.fill(design.collect(items.to_forms()))
        params = with_forms(params, forms, self.items)
        working = {"held_out": np.array(held_out)}
        return self._choose_nodes(replace(state, params=params, working=working), _STRETCH)

    def _choose_nodes(self, state: FitState, stretch: float) -> FitState:
        """Begin a stage with nodes that resolve the items, their distances times `stretch`."""
        if self.nodes and self.n_planes.any():
            grid = NodeGrid(self.nodes, state.params.weights.shape[1])
            own = grid.make_working_state(self.mean_reach > 0)
            return replace(state, working={**state.working, **own})
        items = self._find_steepest_items(state.params, stretch)
        nodes, spacing = make_level_nodes(items, stretch, self.mean_reach)
        if not self.n_planes.any():  # rows are integrated exactly
            return replace(state, working={**state.working, **store_nodes(nodes, None)})
        own = {"spacing": np.array(spacing), "stretch": np.array(stretch)}
        return replace(
            state,
            working={**state.working, **store_nodes(nodes, spacing), **own},
            auxiliary={**state.auxiliary, "needed_spacing": np.array(spacing)},
        )

    def _get_items(self, params: LatentTraitParams, group: int = 0) -> LevelItems:
        """Return the items as functions of the standard traits, which the nodes are of."""
        return params.get_group(group).standardize(params.get_level_items(self.items, group))

    def _get_block_items(self, params: LatentTraitParams, block: BinaryBlock) -> LevelItems:
        """Return the items of the group of a block, as functions of the standard traits."""
        return self._get_items(params)

    def _find_steepest_items(self, params: LatentTraitParams, stretch: float) -> LevelItems:
        """Return the items of the group that needs the finest nodes."""
        return self._get_items(params)

    def _choose_spacing(self, params: LatentTraitParams, stretch: float) -> float:
        items = self._find_steepest_items(params, stretch)
        return choose_level_lattice(items, stretch, self.mean_reach).spacing

    def _has_coarse_nodes(self, state: FitState, max_ratio: float) -> bool:
        """Return whether the nodes are farther apart than the items allow, by more than a ratio."""
        if "spacing" not in state.working:
            return False
        needed = float(state.auxiliary["needed_spacing"])
        return float(state.working["spacing"]) > max_ratio * needed

    def get_convergence_criterion(self, state: FitState) -> ConvergenceCriterion:
        """Stop on the change of the objective, or at once if items are too steep for the nodes.

        Coarse nodes overestimate the likelihood of steep items.
        """
        is_short = "is_short" in state.auxiliary
        if not is_short and self._has_coarse_nodes(state, _STOPPING_RATIO):
            return PassCountCriterion(1)
        is_first = float(state.working.get("stretch", 0.0)) == _STRETCH
        tol = max(self.tol, is_first * _STRETCHED_TOL)
        tol = max(tol, is_short * SHORT_RUN_TOL)
        tol = max(tol, (float(state.working.get("held_out", 0.0)) > 0) * SEARCH_TOL)
        return ObjectiveCriterion(self.max_iter, tol, float(state.auxiliary.get("weight", 1)))

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit with items of the same kind, on the axes of its last pass."""
        forms, q = self._convert_forms(params, state.params), params.weights.shape[1]
        own = _replace_weights(state.params, params.weights, params.offsets)
        design = self._make_design(state.auxiliary["level_counts"], own)
        own = with_forms(own, design.fill(design.collect(forms)), self.items)
        state = replace(state, params=own, working={"held_out": np.array(0.0)})
        return self._choose_nodes(state, LAST_STRETCH[q])

    def _convert_forms(self, params: LatentTraitParams, own: LatentTraitParams) -> Array:
        """Return the forms of an earlier fit on the axes of its last pass, (n_forms, q + 1)."""
        forms = _move_measurements(params, own).get_level_items(self.items).to_forms()
        forms[:, :-1] = forms[:, :-1] @ params.axes.T
        return forms

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step on the rows of a block, and score the held-out rows."""
        run = partial(self._run_e_step, params, working)
        return run_e_step_with_held_out(run, float(working["held_out"]), block, rng)

    def _run_e_step(self, params: LatentTraitParams, working: Arrays, block: BinaryBlock) -> Sums:
        (X, observed), row_weights = unpack_answers(params, block), block.row_weights
        limit = float(working.get("max_covariate", np.inf))
        items = self._get_block_items(params, block)
        regression = self._get_rows(params, block, limit)
        found = sum_level_statistics(
            X,
            observed,
            items,
            _get_nodes(working),
            row_weights,
            None if regression is None else regression.means,
        )
        sums = {
            **found.sums._asdict(),
            "peak": np.array(found.peak),
            "error": np.array(found.error),
            "empty_rows": np.array(block.count_unobserved_rows()),
            **sum_level_regression(found, regression, row_weights),
        }
        return Sums.from_block(block, found.log_likelihood, sums)

    def _get_rows(
        self, params: LatentTraitParams, block: BinaryBlock, max_covariate: float = math.inf
    ) -> RowRegression | None:
        """Return the priors of the rows of a block; None if all are standard normal.

        Standardized covariates are limited to `max_covariate`.
        """
        return None

    def _get_penalized_weights(self, params: LatentTraitParams) -> Array:
        """Return the weights that have a prior."""
        if params.level_weights is None:
            return params.weights
        return np.concatenate([params.level_weights, params.weights[self.n_planes == 0]])

    def objective(self, params: LatentTraitParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior, nats."""
        return LatentTrait.objective(self, params, statistics)

    def _sum_squared_slopes(self, params: LatentTraitParams) -> float:
        """Return Σ w² of the slopes that have a prior."""
        return float((self._get_penalized_weights(params) ** 2).sum())

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step; constant features keep their parameters."""
        params, sums, points = state.params, statistics.values, state.working["points"]
        if params.log_prior is not None:
            forms = self._stack_forms(params)
            traits = estimate_trait_gaussian(sums["moments"], params.weights)
            forms = np.column_stack(traits.absorb(forms[:, :-1], forms[:, -1]))
            return self._finish_update(state, with_forms(params, forms, self.items))
        design = self._get_design(state.auxiliary, params)
        items, matrix = params.get_level_items(self.items), np.eye(points.shape[1] + 1)
        if not self.nodes or represents_all_scales(params, state.working, statistics):
            penalized = self._get_penalized_weights(params)
            traits = estimate_trait_gaussian(sums["moments"], penalized, self.prior_precision)
            forms = items.to_forms()
            items = items.with_forms(np.column_stack(traits.absorb(forms[:, :-1], forms[:, -1])))
            matrix = traits.standardization
        level_sums = LevelSums(*(sums[name] for name in LevelSums._fields))
        group = ItemGroup.transform(items, points, level_sums, matrix)
        forms = take_level_steps(design, [group], self.prior_precision)
        return self._finish_update(state, with_forms(params, forms, self.items))

    def _finish_update(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Return the state with new parameters, and the features whose slopes diverge."""
        diverging = np.flatnonzero(self._measure_slopes(params) > MAX_SLOPE)
        auxiliary = {**state.auxiliary, "diverging": diverging}
        if "spacing" in state.working:
            spacing = self._choose_spacing(params, float(state.working["stretch"]))
            auxiliary["needed_spacing"] = np.array(spacing)
        return replace(state, params=params, auxiliary=auxiliary)

    def _measure_slopes(self, params: LatentTraitParams) -> Array:
        """Return the length of each item's slopes, (n_features,)."""
        return np.asarray(np.linalg.norm(params.get_group(0).items.weights, axis=1))

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return weights and offsets of all forms side by side, (n_forms, n_components + 1)."""
        return self._stack_forms(params)

    def _stack_forms(self, params: LatentTraitParams) -> Array:
        return params.get_level_items(self.items).to_forms()

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Return the parameters with these weights and offsets of forms."""
        return with_forms(params, packed, self.items)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with more components, or with nodes for items that became too steep."""
        if state.working["held_out"] > 0:
            return self._add_component(state, statistics)
        last = LAST_STRETCH[state.params.weights.shape[1]]
        stretch = float(state.working.get("stretch", 0.0))
        if stretch > last or self._has_coarse_nodes(state, _MAX_SPACING_RATIO):
            return self._choose_nodes(state, min(stretch, last))
        if stretch and float(statistics.values["error"]) > MAX_INTEGRATION_ERROR:
            finer = self._choose_nodes(state, _FINER * stretch)
            if finer.working["spacing"] < 0.99 * state.working["spacing"]:
                return finer
        return self._begin_scaling(state, statistics)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Rotate the weights, and add difficulties, diagnostics and warnings."""
        state = super().finish(state, statistics)
        state = state.with_feature_names(self.structure.feature_names)
        params, diagnostics = state.params, dict(state.diagnostics)
        if "spacing" in state.working:
            diagnostics["node_spacing"] = float(state.working["spacing"])
        if params.weights.shape[1] == 1 and self.items != "nominal":
            thresholds = map_to_thresholds(
                self._get_design(state.auxiliary, params).select_group(0), self.items
            )
            slopes = np.repeat(params.weights[:, 0], self.n_planes)
            offsets = thresholds @ self._stack_forms(params).reshape(-1)
            params = replace(params, level_difficulty=compute_difficulties(slopes, offsets))
        if params.difficulty is not None and self._has_continuous:
            difficulty = np.where(self.n_planes > 0, params.difficulty, np.nan)
            params = replace(params, difficulty=difficulty)
        warnings = state.warnings
        if (bounded := self._find_bounded(params)).size:
            text = (
                "continuous features that the traits explain nearly completely, so that their "
                f"deviation is at its lower bound, {MIN_DEVIATION} of their scale: {{features}}; "
                "they have no standard errors"
            )
            warnings = (*warnings, FitWarning(text, self._name_items(bounded)))
        return replace(state, params=params, diagnostics=diagnostics, warnings=warnings)

    def _find_bounded(self, params: LatentTraitParams) -> Indices:
        """Return the continuous features whose deviation is at its lower bound."""
        if params.deviations is None:
            return np.zeros(0, np.int64)
        is_bounded = params.deviations <= 1.0001 * MIN_DEVIATION
        return np.flatnonzero(self.n_planes == 0)[is_bounded]

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Return the parameters on the principal axes of the weights."""
        params = super().choose_axes(state)
        if params.level_weights is None:
            return params
        return replace(params, level_weights=params.level_weights @ params.axes)

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors and fit statistics."""
        if self.errors == "none":
            return None
        design = self._get_design(state.auxiliary, state.params)
        n_free, n_rows = design.n_free, int(state.auxiliary["n_rows"])
        n_products = count_score_products(self.n_planes, n_free, *state.working["points"].shape)
        share = choose_level_row_share(n_rows, n_free, n_products, self._choose_form(state))
        if state.auxiliary["has_sampling_weights"]:  # scores are summed by cluster
            share = 1.0
        names = ("level_counts", "group_level_counts")
        further = {name: state.auxiliary[name] for name in names if name in state.auxiliary}
        if design.n_free > MAX_PARAMETERS and not self._explain_missing_errors(state):
            share = min(1.0, MAX_ROWS / max(n_rows, 1))
            further["directions"] = self._list_directions(design, state.params).scales
        return {**state.working, "share": np.array(share), **further}

    def _explain_missing_errors(self, state: FitState) -> str:
        """Return why there are no standard errors of many parameters; empty if there are."""
        return "sampling weights" if state.auxiliary["has_sampling_weights"] else ""

    def _list_directions(self, design: LevelDesign, params: LatentTraitParams) -> SharedDirections:
        """Return directions that items share, in all parameters, (p, n_directions) each."""
        found = list_shared_directions(self._stack_forms(params)[:, :-1])
        by_form, n_scales = np.concatenate(found, axis=2), found.scales.shape[2]
        moved = design.collect_changes(by_form.reshape(-1, by_form.shape[2]))
        common = np.eye(design.n_free)[:, design.is_common]
        scales, rotations = moved[:, :n_scales], moved[:, n_scales:]
        return SharedDirections(np.column_stack([scales, common]), rotations)

    def _choose_form(self, state: FitState) -> str:
        return "sandwich" if state.auxiliary["has_sampling_weights"] else self.errors

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters, and the residuals."""
        items, shared = self._get_block_items(params, block), _get_nodes(working)
        X, observed = unpack_answers(params, block)
        regression = self._get_rows(params, block)
        row_means = None if regression is None else regression.means
        of_all = compute_level_node_posterior(X, observed, items, shared, row_means)
        row_weights = np.ones(len(X)) if block.row_weights is None else block.row_weights
        log_likelihood = float((row_weights * of_all.log_likelihood).sum())
        values: dict[str, NDArray[Any]] = {}
        has_fit = not (self._missing_fit_reason or block.has_sampling_weights)
        if block.n_features <= MAX_ITEMS and has_fit:
            planes = np.repeat(find_reversed_items(params.weights), self.n_planes)
            values |= count_complete_rows(block, block.unpack_values(), observed, planes)
        is_taken = draw_rows(float(working["share"]), block, rng)
        X, row_weights = X[is_taken], row_weights[is_taken]
        observed = None if observed is None else observed[is_taken]
        regression = None if regression is None else regression.take_rows(is_taken)
        posterior = of_all.take_rows(is_taken)
        if regression is not None:
            regression = leave_out_saturated(regression, posterior)
        values |= sum_residuals(X, observed, items, posterior, row_weights)
        design = self._get_design(working, params)
        if "directions" in working:
            jacobian = self._differentiate_block_forms(design, params, block)
            along = jacobian @ working["directions"]
            blocks = sum_level_blocks(X, observed, items, posterior, along, row_weights)
            return Sums.from_block(block, log_likelihood, {**values, **blocks._asdict()})
        if design.n_free > MAX_PARAMETERS:
            return Sums.from_block(block, log_likelihood, values)
        clusters, places = None, None
        if block.clusters is not None and block.has_sampling_weights:
            clusters, places = np.unique(block.clusters, return_inverse=True)
        jacobian = self._differentiate_block_forms(design, params, block)
        scores = sum_level_scores(
            X, observed, items, shared.nodes, posterior, jacobian, row_weights, places, regression
        )
        names = ["spread", "products", "curvature"]
        names += ["weighted_products"] * block.has_sampling_weights
        sums = Sums.from_block(
            block, log_likelihood, {**values, **{name: getattr(scores, name) for name in names}}
        )
        if clusters is None:
            return sums
        return ClusteredSums.from_sums(sums, clusters, scores.cluster_scores)

    def _count_parameters(self, design: LevelDesign) -> int:
        """Count the identifiable parameters, that is, without rotations of the traits."""
        return max(design.n_free - math.comb(design.n_components, 2), 0)

    def _differentiate_forms(self, design: LevelDesign, params: LatentTraitParams) -> Matrix:
        """Return the derivatives of the items of u by all parameters, (n_forms (q + 1), p)."""
        return design.matrix

    def _differentiate_block_forms(
        self, design: LevelDesign, params: LatentTraitParams, block: BinaryBlock
    ) -> Matrix:
        """Return these derivatives for the group of a block."""
        return self._differentiate_forms(design, params)

    def _list_constraints(self, design: LevelDesign, params: LatentTraitParams) -> Array | None:
        """Return the gradients of what stays 0, (n_constraints, p); None if these are the axes."""
        return None

    @property
    def _missing_fit_reason(self) -> str:
        """Why C₂ and S-X² are not defined; empty if they are."""
        return "some items are continuous" if self._has_continuous else ""

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, likelihood and fit statistics."""
        design, params = self._get_design(state.auxiliary, state.params), state.params
        nodes = nodes_from_working(state.working)
        assert nodes is not None
        params = replace(params, **compute_residual_fit(statistics))
        rank, items = self._count_parameters(design), params.get_level_items(self.items)
        is_sampled = bool(state.auxiliary["has_sampling_weights"])
        found = compute_likelihood_statistics(items, statistics, rank, is_sampled)
        if reason := self._missing_fit_reason:
            found |= dict.fromkeys(("m2_missing", "s_x2_missing"), reason)
        else:
            model = FittedItems.from_jacobian(
                self._differentiate_forms(design, params),
                self._get_items(params),
                nodes,
                state.auxiliary["level_counts"],
                design.n_free,
                self._list_constraints(design, params),
            )
            is_reversed = find_reversed_items(params.weights)
            params = replace(params, **compute_item_fit(model, statistics, is_reversed))
            found |= compute_fit_statistics(model, statistics, rank, is_sampled)
        diagnostics = {**state.diagnostics, "fit_statistics": found}
        state = replace(state, params=params, diagnostics=diagnostics)
        form = self._choose_form(state)
        if design.n_free > MAX_PARAMETERS:
            if reason := self._explain_missing_errors(state):
                text = f"no standard errors: more than {MAX_PARAMETERS} parameters and {reason}"
                return state.with_warnings([FitWarning(text)])
            form = "louis"
        state = replace(state, diagnostics={**state.diagnostics, "errors": form})
        covariance, is_unknown = self._invert(design, state, statistics, form)
        arrays, unknown = self._collect_errors(design, state, covariance, is_unknown)
        warnings = state.warnings
        if unknown.size:
            text = "the data do not determine these features' parameters; no standard errors: "
            text += "{features}"
            warnings = (*warnings, FitWarning(text, self._name_items(unknown)))
        params = replace(params, **arrays)
        names = self._name_items(np.arange(len(self.n_planes)))
        warnings = (*warnings, *warn_about_reversed_items(params, names))
        return replace(state, params=params, warnings=warnings)

    def _invert(
        self, design: LevelDesign, state: FitState, statistics: Sums, form: str
    ) -> tuple[ItemCovariance, NDArray[np.bool_]]:
        """Return the covariance of all parameters, and which the data do not determine."""
        constraints = self._list_constraints(design, state.params)
        if constraints is None:
            constraints = self._list_axis_constraints(design, state.params)
        # Items whose weights diverge have no errors, and must not spoil those of others.
        is_left_out = np.isin(design.item_of_row, self._find_without_errors(state))
        jacobian = abs(self._differentiate_forms(design, state.params))
        is_bound, is_used = (
            np.asarray(jacobian[rows].sum(axis=0)) > 0 for rows in (is_left_out, ~is_left_out)
        )
        is_free = is_used | ~is_bound
        if design.n_free > MAX_PARAMETERS:
            own = self._sum_item_information(design, state, statistics, constraints)
            found, is_free_unknown = own.take(is_free).invert()
            to_all = scipy.sparse.eye_array(len(is_free), format="csr")[:, np.flatnonzero(is_free)]
            is_unknown = ~is_free
            is_unknown[is_free] = is_free_unknown
            return found.transform(to_all), is_unknown
        information = self._sum_information(design, state, statistics, form)
        covariance = np.zeros_like(information)
        is_unknown = np.ones(len(information), np.bool_)
        places = np.ix_(is_free, is_free)
        covariance[places], is_unknown[is_free] = invert_group_information(
            information[places], constraints[:, is_free]
        )
        if form == "sandwich":
            sums = statistics.values
            products = sums.get("weighted_products", sums["products"])
            middle = _compute_scale(statistics) * products
            if isinstance(statistics, ClusteredSums):
                middle = statistics.sum_score_products()
            covariance = covariance @ middle @ covariance
        return ItemCovariance.from_array(covariance), is_unknown

    def _sum_item_information(
        self, design: LevelDesign, state: FitState, statistics: Sums, constraints: Array
    ) -> ItemInformation:
        """Return the information of each item, and along directions that items share."""
        values, scale = statistics.values, _compute_scale(statistics)
        jacobian = self._differentiate_forms(design, state.params)
        n_parameters = jacobian.shape[1]
        known = own = self._sum_corrections(design, state, statistics, n_parameters)
        n_forms = jacobian.shape[0] // design.n_groups
        for group in range(design.n_groups):
            J = jacobian[group * n_forms : (group + 1) * n_forms]
            curvature, variance = (
                self._join_items(design, np.reshape(values[name], (design.n_groups, -1))[group])
                for name in ("curvature", "item_variance")
            )
            known = known + scale * (J.T @ curvature @ J)
            own = own + scale * (J.T @ (curvature - variance) @ J)
        scales, rotations = self._list_directions(design, state.params)
        shared = scales.T @ (known @ scales) - scale * values["shared_variance"]
        return ItemInformation(
            known.diagonal(),
            own.tocsr(),
            np.column_stack([scales, rotations]),
            np.pad(shared, (0, rotations.shape[1])),  # there is none about rotations
            np.append(design.is_common, np.ones(n_parameters - design.n_free, np.bool_)),
            constraints,
        )

    def _join_items(self, design: LevelDesign, flat: Array) -> Matrix:
        """Return the matrix with the blocks of items, which follow each other in `flat`."""
        places = list_form_places(self.n_planes, design.n_components)
        shapes = [(*own.shape, own.shape[1]) for own in places]
        parts = np.split(flat, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        blocks = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        return join_blocks(blocks, places, len(design.constant) // design.n_groups)

    def _find_without_errors(self, state: FitState) -> Indices:
        """Return the features that have no standard errors because of their estimates."""
        return np.union1d(state.auxiliary["diverging"], self._find_bounded(state.params))

    def _sum_information(
        self, design: LevelDesign, state: FitState, statistics: Sums, form: str
    ) -> Array:
        """Return the information of all rows and of the prior about all parameters, (p, p)."""
        sums, scale = statistics.values, _compute_scale(statistics)
        information = scale * sums["products"]
        if form != "crossproduct":
            information = scale * (sums["curvature"] - sums["spread"]) + information
            corrections = self._sum_corrections(design, state, statistics, len(information))
        else:
            corrections = self._sum_prior_information(design, state.params, len(information))
        return np.asarray(information + corrections)

    def _sum_corrections(
        self, design: LevelDesign, state: FitState, statistics: Sums, n_parameters: int
    ) -> Any:
        """Return what adds to the information of the rows about the forms, (p, p), sparse."""
        return self._sum_prior_information(design, state.params, n_parameters)

    def _sum_prior_information(
        self, design: LevelDesign, params: LatentTraitParams, n_parameters: int
    ) -> Any:
        prior = np.zeros(n_parameters)
        prior[: design.n_free] = self._get_precision(params) * design.n_priors
        return scipy.sparse.diags_array(prior, format="csr")

    def _list_axis_constraints(self, design: LevelDesign, params: LatentTraitParams) -> Array:
        """Return the gradients of Σ_i w_ia w_ib for a < b, (q (q − 1) / 2, n_free)."""
        q = design.n_components
        to_weights, _ = map_to_items(self.n_planes, q, self.items)
        jacobian = (to_weights @ design.matrix).toarray()
        constraints = [
            params.weights[:, b] @ jacobian[a::q] + params.weights[:, a] @ jacobian[b::q]
            for a, b in combinations(range(q), 2)
        ]
        return np.reshape(constraints, (len(constraints), design.n_free))

    def _collect_errors(
        self,
        design: LevelDesign,
        state: FitState,
        covariance: ItemCovariance,
        is_unknown: NDArray[np.bool_],
    ) -> tuple[dict[str, Array], Indices]:
        """Return arrays of standard errors, and the features that have none for lack of data."""
        params, q, J = state.params, design.n_components, design.matrix
        n_features, n_planes = params.weights.shape[0], self.n_planes
        to_weights, to_offsets = map_to_items(n_planes, q, self.items)
        is_left_out = np.isin(np.arange(n_features), self._find_without_errors(state))

        def compute_errors(linear: Matrix, items: Indices) -> Array:
            """Return the standard errors of linear functions of weights and offsets of forms."""
            free = linear @ J
            variance, size = covariance.compute_variances(free), abs(free)
            is_fixed = (size.sum(axis=1) == 0) | (size @ is_unknown > 0) | is_left_out[items]
            errors = np.where(is_fixed, np.nan, np.sqrt(np.maximum(variance, 0.0)))
            return np.where(abs(linear) @ ~design.is_known, errors, 0.0)

        items = np.arange(n_features)
        of_planes = np.repeat(items, n_planes)
        all_entries = scipy.sparse.eye_array(J.shape[0], format="csr")
        by_form = compute_errors(all_entries, design.item_of_row).reshape(-1, q + 1)
        arrays = {
            "weights_error": compute_errors(to_weights, np.repeat(items, q)).reshape(-1, q),
            "offsets_error": compute_errors(to_offsets, items),
            "level_offsets_error": by_form[: len(of_planes), -1],
        }
        if self.items == "nominal":
            arrays["level_weights_error"] = by_form[: len(of_planes), :-1]
        if params.deviations is not None:
            arrays["deviations_error"] = params.deviations * by_form[len(of_planes) + 1 :: 2, -1]
        if q == 1:
            # The derivatives of −b / w.
            flat, slopes = self._stack_forms(params).reshape(-1), params.weights[:, 0]
            slopes = np.where(slopes == 0, np.finfo(float).tiny, slopes)

            def differentiate_ratio(to_form: Any, owners: Indices) -> Any:
                w = scipy.sparse.diags_array(1 / slopes[owners])
                ratio = scipy.sparse.diags_array((to_form @ flat) / slopes[owners])
                return w @ (ratio @ to_weights[owners] - to_form)

            own = differentiate_ratio(to_offsets, items)
            arrays["difficulty_error"] = np.where(n_planes > 0, compute_errors(own, items), np.nan)
            if self.items != "nominal":
                thresholds = map_to_thresholds(design, self.items)
                own = differentiate_ratio(thresholds, of_planes)
                arrays["level_difficulty_error"] = compute_errors(own, of_planes)
        is_estimated = np.asarray(abs(to_weights @ J).sum(axis=1)).reshape(-1, q) > 0
        is_missing = (np.isnan(arrays["weights_error"]) & is_estimated).any(axis=1) & ~is_left_out
        return arrays, np.flatnonzero(is_missing)


def _get_nodes(working: Arrays) -> SharedNodes:
    """Return the nodes that rows share."""
    spacing, checks = working.get("spacing"), checks_from_working(working)
    assert checks is not None
    nodes = Nodes(working["points"], working["log_weights"])
    return SharedNodes(nodes, checks, None if spacing is None else float(spacing))


def _refuse(what: str, parameter: str) -> FitError:
    return FitError(
        f"{what} cannot be combined with features that have several levels or are continuous yet. "
        "Leave it out, or cut the features in two by {cut=NAME>=VALUE}.",
        parameter=parameter,
    )


def _compute_scale(statistics: Sums) -> float:
    """Return the number of rows per row whose scores are summed."""
    return statistics.weight / max(float(statistics.values["weight_informing"]), 1.0)


def _replace_weights(params: LatentTraitParams, weights: Array, offsets: Array) -> Any:
    """Return unrotated parameters with these weights and offsets, without offsets of levels."""
    names = ("n_levels", "means", "scales", "deviations")
    return replace(make_params(weights, offsets), **{name: getattr(params, name) for name in names})


def _move_measurements(params: LatentTraitParams, own: LatentTraitParams) -> LatentTraitParams:
    """Return the same items for continuous values that are standardized as in another fit."""
    if params.means is None or params.scales is None or params.deviations is None:
        return params
    assert own.means is not None
    assert own.scales is not None
    assert own.n_levels is not None
    is_own, ratio = own.n_levels == 1, params.scales / own.scales
    weights, offsets = params.weights.copy(), params.offsets.copy()
    weights[is_own] *= ratio[:, None]
    offsets[is_own] = ratio * offsets[is_own] + (params.means - own.means) / own.scales
    return replace(
        params,
        weights=weights,
        offsets=offsets,
        means=own.means,
        scales=own.scales,
        deviations=params.deviations * ratio,
    )


def _make_first_offsets(level_counts: Array, n_planes: Indices, kind: ItemKind) -> Array:
    """Return offsets that have nearly the margins of the data, (n_planes,)."""
    offsets = np.zeros(int(n_planes.sum()))
    for alike in iter_alike(n_planes):
        offsets[alike.planes] = find_margin_offsets(level_counts[alike.levels], kind)
    return offsets
