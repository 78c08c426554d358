"""The latent-trait model with groups of rows, known items and loading patterns.

Model: in group g, x ~ N(μ_g, Σ_g) and P(t_i = 1 | x) = σ(w_gi·x + b_gi), items independent given x
(R. D. Bock, M. F. Zimowski, "Multiple group IRT", Handbook of modern item response theory, 1997).
Slopes and offsets may be equal in all groups, or known. The first group has μ = 0 and Σ = I unless
items are known.

E-step: with Σ_g = L_g L_gᵀ, x = μ_g + L_g u and u ~ N(0, I),

    w·x + b = (L_gᵀ w)·u + (b + w·μ_g),

so each group has the E-step of the model without groups, at other slopes and offsets. The chain
rule adds up the sums of the groups.

M-step: one step of Newton for all slopes and offsets, and the moments of x for μ_g and Σ_g. If no
item is known, the M-step also estimates μ and Σ of the first group, and absorbs them in the items
(parameter expansion, see `numerics.logistic.parameter_expansion`).

A loading pattern sets slopes to 0, or equal, and so fixes the axes. All traits of the first group
have variance 1; their correlations are estimated, or 0. If a pattern of uncorrelated traits is a
bifactor pattern, its E-step is that of `numerics.logistic.bifactor`.

=======  ================  ========================================
symbol   field             shape
=======  ================  ========================================
w_gi     group_weights     (n_segments, n_features, n_components)
b_gi     group_offsets     (n_segments, n_features)
μ_g      trait_mean        (n_segments, n_components)
Σ_g      trait_covariance  (n_segments, n_components, n_components)
=======  ================  ========================================

Cost per block: that of the model without groups. Not identifiable: rotations of x, unless slopes
are known. The axes are the principal axes of the slopes of the first group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.latent_trait.bifactor_information import summarize_bifactor_information
from pipeline.models.latent_trait.em import (
    MAX_PARAMETER,
    MAX_SLOPE,
    LatentTraitParams,
    TraitGroup,
    e_step,
    grid_from_working,
    make_params,
    represents_all_scales,
    turn_to_principal_axes,
)
from pipeline.models.latent_trait.fit_statistics import compute_reliability, compute_residual_fit
from pipeline.models.latent_trait.group_design import (
    GroupDesign,
    compose_covariances,
    convert_to_correlation,
    factorize,
    has_equal_slopes_across_traits,
    make_group_design,
    take_group_step,
    update_traits,
)
from pipeline.models.latent_trait.group_errors import (
    GroupErrors,
    compute_group_errors,
    count_group_parameters,
    differentiate_items,
    place_traits,
)
from pipeline.models.latent_trait.identification import (
    check_group_means,
    check_identification,
)
from pipeline.models.latent_trait.known_values import (
    check_free_items,
    check_known_answers,
    check_known_slopes,
    warn_about_known_offsets,
)
from pipeline.models.latent_trait.model import LatentTrait, warn_about_reversed_items
from pipeline.models.latent_trait.standard_errors import (
    MAX_PARAMETERS,
    ItemErrors,
    choose_error_form,
)
from pipeline.models.loading_pattern import LoadingPattern
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure, add_structure
from pipeline.numerics.logistic.asymptotes import from_logits, join_asymptotes, to_logits
from pipeline.numerics.logistic.bifactor import (
    TraitBlocks,
    estimate_bifactor_e_step,
    estimate_bifactor_scores,
    find_trait_blocks,
)
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, pool_margins
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]

_STRETCH = 1.5  # of the first stage of a bifactor pattern
_BY_GROUP = ("gradient", "curvature", "moments")
_INFORMATION = (
    *("curvature", "spread", "products", "weighted_products"),
    *("group_weight", "group_informing", "covariate_curvature"),
)
_RESIDUALS = (
    *("weight_informing", "codes", "codes_squared", "codes_variance"),
    *("observed", "squares", "variances", "squares_standardized"),
)
_COUNTS = ("both", "score_rows", "score_ones")
NOT_WITH_STRUCTURE = "the fit has groups, covariates, known items or a loading pattern"


@dataclass(frozen=True)
class ConfirmatoryTrait(LatentTrait):
    """The latent-trait model with groups of rows, known items or a loading pattern."""

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add a structure to it.

        Raises
        ------
        FitError
            If the settings cannot be combined with it.
        """
        if structure.pattern is not None:
            model = adapt_to_pattern(model, structure, structure.pattern)
        what = "{items}" if structure.pattern is None else "{pattern}"
        what = "{group}" if structure.groups else what
        what = what if structure.covariates is None else "{covariates}"
        if not structure.groups:
            model.check_unused_settings("invariance", "free")
        is_reduced = _reduce_pattern(structure, model.correlations) is not None
        if not is_reduced and (model.n_components or MAX_COMPONENTS + 1) > MAX_COMPONENTS:
            raise FitError(
                f"{what} needs 1 to {MAX_COMPONENTS} components. Set {{components=1}}.",
                parameter="components",
            )
        if model.estimator not in ("auto", "quadrature"):
            raise FitError(
                f"{what} cannot be combined with {{estimator={model.estimator}}}. It needs "
                "{estimator=quadrature}.",
                parameter="estimator",
            )
        if structure.known_items is not None:
            check_known_slopes(structure.known_items)
            check_free_items(model.free, structure.feature_names, structure.known_items)
        # `quadrature` is for up to 3 components, and a pattern may have more.
        model = replace(model, estimator="auto" if is_reduced else "quadrature")
        return add_structure(cls, model, structure)

    @cached_property
    def _blocks(self) -> TraitBlocks | None:
        """The blocks of items of a bifactor pattern, or None if they save no integrals."""
        return _reduce_pattern(self.structure, self.correlations)

    def _last_estimator(self, n_components: int) -> str:
        return "quadrature"

    def _begin_stage(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> FitState:
        """Start the first stage of a bifactor pattern on nodes that are farther apart."""
        if self._blocks is None:
            return super()._begin_stage(state, weights, held_out, estimator)
        assert self.structure.pattern is not None
        working = {
            "held_out": np.array(0.0),
            "loads": self.structure.pattern.slopes >= 0,
            "stretch": np.array(_STRETCH),
        }
        return replace(state, params=make_params(weights, state.params.offsets), working=working)

    def _get_error_shape(self, params: LatentTraitParams) -> tuple[int, int]:
        n_features, q = params.weights.shape
        return n_features, q if self._blocks is None else len(self._blocks.general) + 1

    def estimate_work(
        self, params: LatentTraitParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step, and of the scores in the pass for errors."""
        if self._blocks is None:
            return super().estimate_work(params, working, n_features, n_rows)
        items, stretch = params.get_group(0).items, float(working.get("stretch", 1.0))
        by_row, shared = estimate_bifactor_e_step(*items, self._blocks, n_rows, stretch)
        n_sums = params.weights.size * (params.weights.shape[1] + 3)
        if "share" in working:
            share = float(working["share"])
            by_row += share * estimate_bifactor_scores(*items, self._blocks)
            n_sums += 2 * params.free_parameters.size**2
        return WorkEstimate(by_row, 8 * n_sums * self.n_groups, shared)

    def find_features_by_group(self) -> NDArray[np.intp]:
        """Return the items whose slopes differ by group."""
        return find_features_by_group(self, self.structure)

    @property
    def n_groups(self) -> int:
        """Number of groups; 1 without groups."""
        return max(len(self.structure.groups), 1)

    def _make_design(self, constant: NDArray[np.int64], margins: Array) -> GroupDesign:
        """Return which parameters are estimated; constant features are pinned at their margins."""
        q = self.n_components or 1
        known = self.structure.known_items
        items = np.full((len(margins), q + 1), np.nan) if known is None else known.copy()
        items[constant] = 0.0
        items[constant, -1] = margins[constant]
        return make_group_design(
            self.n_groups,
            items,
            find_free_items(self.free, self.structure),
            self.invariance,
            self.traits,
            self._has_equal_slopes,
            self.prior_precision,
            None if self.structure.pattern is None else self.structure.pattern.slopes,
            self.correlations == "free",
        )

    def _get_design(self, state: FitState) -> GroupDesign:
        return self._make_design(state.auxiliary["constant"], state.auxiliary["margins"])

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the sums of all groups."""
        return self.n_groups * super().estimate_memory(n_features, n_segments, n_threads)

    def _count_start_segments(self) -> int | None:
        return self.n_groups if self.structure.groups else None

    def _get_start_pattern(self) -> NDArray[np.bool_] | None:
        pattern = self.structure.pattern
        return None if pattern is None else pattern.slopes >= 0

    def _get_known_slopes(self) -> Array | None:
        known = self.structure.known_items
        return None if known is None else known[:, :-1]

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the margins, also within groups, and start from equal groups."""
        state = super()._start_from(first, loadings, seed)
        design = self._get_design(state)
        known = self.structure.known_items
        if known is not None:
            check_known_answers(known, *pool_margins(first))
            state = replace(state, params=replace(state.params, is_known=~np.isnan(known)))
        if (constant := state.auxiliary["constant"]).size and self.structure.pattern is not None:
            varying = self.structure.pattern.without_loadings(constant)
            check_identification(varying, self.structure.feature_names, self.correlations == "free")
        if self.structure.groups:
            self._check_own_offsets(first, design)
        weights, offsets = state.params.weights, state.params.offsets
        items = np.tile(self._make_first_items(weights, offsets), (self.n_groups, 1, 1))
        items = design.fill(design.collect(items))
        params = state.params
        if self.structure.groups:
            params = replace(params, segments=first.segments, segment_rows=first.rows)
        q = weights.shape[1]
        mean, covariance = np.zeros((self.n_groups, q)), np.tile(np.eye(q), (self.n_groups, 1, 1))
        return replace(state, params=with_groups(params, items, mean, covariance))

    def _make_first_items(self, weights: Array, offsets: Array) -> Array:
        """Return the parameters of items at the start, (n_features, width)."""
        return np.column_stack([weights, offsets])

    def _find_constant_features(
        self, observed: NDArray[np.int64], ones: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """Return the constant features without those whose slope and offset are known."""
        constant = super()._find_constant_features(observed, ones)
        if (known := self.structure.known_items) is None:
            return constant
        return constant[np.isnan(known[constant]).any(axis=1)]

    def _check_own_offsets(self, first: FeatureCounts, design: GroupDesign) -> None:
        """Refuse items that have an offset of their own in a group where they are constant."""
        uses = np.bincount(design.index[design.index >= 0], minlength=design.n_free)
        offsets = design.index[:, :, design.n_components]
        is_own = (offsets >= 0) & (np.append(uses, 0)[offsets] < self.n_groups)
        is_constant = (first.ones == 0) | (first.ones == first.observed)
        for group, item in np.argwhere(is_own & is_constant).tolist():
            state = "constant" if first.observed[group, item] else "never observed"
            raise FitError(
                f"{{group}}: {{features}} is {state} in the group "
                f"{self.structure.groups[group]!r}, so its own parameters there cannot be "
                "estimated. Leave out the feature or the group, or use {invariance=scalar}.",
                (item,),
                parameter="group",
            )

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit, with or without groups."""
        design, own = self._get_design(state), state.params
        groups = [params.get_group(g) for g in range(self.n_groups)]
        items = np.stack([self._join_items(g) for g in groups])
        covariance = np.stack([g.root @ g.root.T for g in groups])
        mean = np.stack([g.mean for g in groups])
        is_free = design.has_free_covariance[:, None, None]
        if design.is_orthogonal:
            covariance = covariance * np.eye(own.weights.shape[1])
        has_correlation = design.has_free_correlation[:, None, None]
        other = np.where(has_correlation, convert_to_correlation(covariance), np.eye(mean.shape[1]))
        covariance = np.where(is_free, covariance, other)
        mean = np.where(design.has_free_mean[:, None], mean, 0.0)
        items = design.fill(design.collect(items))
        return replace(state, params=with_groups(own, items, mean, covariance))

    def _join_items(self, group: TraitGroup) -> Array:
        """Return the parameters of items of an earlier fit, (n_features, width)."""
        return np.column_stack([group.weights, group.offsets])

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step of the block's group."""
        sums = self._run_e_step(params, working, block)
        return replace(sums, values=self._place_values(dict(sums.values), _BY_GROUP, block))

    def _run_e_step(self, params: LatentTraitParams, working: Arrays, block: BinaryBlock) -> Sums:
        own = self._get_group_params(params, block)
        return e_step(own, working, block, may_leave_nodes=True)

    def _list_group_items(self, params: LatentTraitParams) -> list[TraitItems]:
        """Return the items of all groups as functions of standard normal traits."""
        return [params.get_group(group).items for group in range(self.n_groups)]

    def _get_group_params(self, params: LatentTraitParams, block: BinaryBlock) -> LatentTraitParams:
        """Return slopes and offsets of u in the block's group."""
        group = params.get_group(self._get_group_index(block))
        return make_params(*group.items, group.asymptotes)

    def _get_group_index(self, block: BinaryBlock) -> int:
        return block.segment if self.structure.groups else 0

    def _place_values(
        self, values: Arrays, names: tuple[str, ...], block: BinaryBlock
    ) -> dict[str, NDArray[Any]]:
        """Put the sums of some names at the place of the block's group, along a first axis."""
        placed = dict(values)
        for name in names:
            if name in values:
                placed[name] = np.zeros((self.n_groups, *values[name].shape))
                placed[name][self._get_group_index(block)] = values[name]
        return placed

    def objective(self, params: LatentTraitParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior of all free slopes, nats."""
        return super().objective(params, statistics)

    def _sum_squared_slopes(self, params: LatentTraitParams) -> float:
        """Return Σ w² of the distinct slopes that are estimated."""
        none = np.empty(0, np.int64)
        design = self._make_design(none, np.zeros(len(params.offsets)))
        slopes = get_items(params)
        slopes[:, :, params.weights.shape[1] :] = 0.0
        return float((design.collect(slopes) ** 2).sum())

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step for items and traits."""
        params, values = state.params, statistics.values
        design, items = self._update_items(state, statistics)
        mean, covariance = get_traits(params)
        is_resolved = represents_all_scales(params, state.working, statistics)
        items, mean, covariance = update_traits(
            design, items, mean, covariance, values["moments"], is_resolved
        )
        items = design.fill(design.collect(items))
        return self._finish_update(design, state, with_groups(params, items, mean, covariance))

    def _finish_update(
        self, design: GroupDesign, state: FitState, params: LatentTraitParams
    ) -> FitState:
        """Return the state with new parameters, and the features whose slopes diverge."""
        diverging = np.zeros(len(params.offsets), np.bool_)
        grid = grid_from_working(state.working)
        for group in range(self.n_groups):
            weights = params.get_group(group).items.weights
            if grid is not None:
                diverging |= grid.is_diverging(weights)
            elif self._blocks is not None:
                diverging |= np.linalg.norm(weights, axis=1) > MAX_SLOPE
        diverging &= (design.index >= 0).any(axis=(0, 2))
        auxiliary = {**state.auxiliary, "diverging": np.flatnonzero(diverging)}
        return replace(state, params=params, auxiliary=auxiliary)

    def _update_items(self, state: FitState, statistics: Sums) -> tuple[GroupDesign, Array]:
        """Run the M-step for items, given the traits of the last pass; return also the design.

        When the scale of the traits is estimated, items stay.
        """
        if state.params.log_prior is not None:
            without_prior = replace(self, prior_precision=0.0)
            return without_prior._get_design(state), get_items(state.params)
        design = self._get_design(state)
        return design, self._take_item_step(design, state, statistics)

    def _take_item_step(self, design: GroupDesign, state: FitState, statistics: Sums) -> Array:
        mean, covariance = get_traits(state.params)
        return take_group_step(
            design,
            get_items(state.params),
            mean,
            factorize(covariance),
            statistics.values["gradient"],
            statistics.values["curvature"],
            self.prior_precision,
        )

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return slopes, offsets, means and Cholesky factors of all groups as a vector."""
        mean, covariance = get_traits(params)
        parts = (get_items(params), mean, factorize(covariance))
        return np.concatenate([part.ravel() for part in parts])

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        n, (n_features, q) = self.n_groups, params.weights.shape
        ends = np.cumsum([get_items(params).size, n * q])
        items, mean, root = np.split(packed.copy(), ends)
        items, mean, root = (
            items.reshape(n, n_features, -1),
            mean.reshape(n, q),
            root.reshape(n, q, q),
        )
        n_standard = 0
        if self.structure.pattern is not None and self.correlations == "free":
            n_standard = n if self.invariance == "configural" else 1
        return with_groups(params, items, mean, compose_covariances(root, n_standard))

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with more nodes if they are needed."""
        following = super().next_stage(state, statistics)
        if following is None or following.params.log_prior is not None:
            return following
        return replace(following, params=state.params)  # slopes are not scaled back

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Turn the traits to the principal axes of the first group, unless slopes fix them.

        With a loading pattern, only the signs of the traits are free.
        """
        return choose_group_axes(state.params, self._get_design(state), self.structure.pattern)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Add diagnostics and warnings; the traits of a loading pattern keep their correlations."""
        state = super().finish(state, statistics)
        if self.structure.pattern is None:
            return state
        correlation = convert_to_correlation(get_traits(state.params)[1])[0]
        return replace(state, params=replace(state.params, component_correlation=correlation))

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum scores, information and residuals of the block's group."""
        own = self._get_group_params(params, block)
        gradient = self._sum_gradient(params, working, block, rng)
        if self._blocks is None:
            sums = super().summarize_information(own, working, block, rng)
        else:
            share = float(working["share"])
            sums = summarize_bifactor_information(own, self._blocks, share, block, rng)
        root = params.get_group(self._get_group_index(block)).root
        return self._place_information(sums, gradient, root, block)

    def _place_information(
        self, sums: Sums, gradient: Array, root: Array, block: BinaryBlock
    ) -> Sums:
        """Put scores and information at the place of the block's group; add the gradient.

        `root` is the Cholesky factor of the covariance of the group's traits.
        """
        names = (*_INFORMATION, *_RESIDUALS, *(() if self.structure.groups else _COUNTS))
        kept = {name: v for name, v in sums.values.items() if name in names}
        if self.structure.pattern is not None:
            kept |= convert_code_moments(kept, root)
        kept["group_informing"] = sums.values["weight_informing"]
        kept["group_weight"] = np.array(block.weight)
        values = {**self._place_values(kept, _INFORMATION, block), "gradient": gradient}
        if not isinstance(sums, ClusteredSums):
            return replace(sums, values=values)
        scores = np.zeros((len(sums.scores), self.n_groups, sums.scores.shape[1]))
        scores[:, self._get_group_index(block)] = sums.scores
        return replace(sums, values=values, scores=scores.reshape(len(scores), -1))

    def _sum_gradient(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Array:
        """Return the gradient in the items of u in each group, (n_groups, n_features, width)."""
        gradient: Array = self.summarize(params, working, block, rng).values["gradient"]
        return gradient

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors of items and traits, likelihood and information criteria."""
        params, design = state.params, self._get_design(state)
        q = params.weights.shape[1]
        is_sampled = bool(state.auxiliary["has_sampling_weights"])
        form = choose_error_form(self.errors, self._get_error_shape(params), is_sampled)
        n_parameters = self._count_parameters(design)
        if form == "none" or max(n_parameters, design.index[0].size) > MAX_PARAMETERS:
            text = f"no standard errors: more than {MAX_PARAMETERS} parameters"
            state = replace(state, warnings=(*state.warnings, FitWarning(text)))
            return self._add_likelihood(state, statistics, n_parameters)
        state = self._warn_about_known_offsets(state, statistics)
        errors = self._compute_errors(design, state, statistics, form)
        items = errors.items.copy()
        items[:, state.auxiliary["diverging"]] = np.nan
        arrays = {
            "weights_error": items[0, :, :q],
            "offsets_error": items[0, :, q],
            "trait_mean_error": errors.mean,
            "trait_covariance_error": errors.covariance,
            **compute_residual_fit(statistics),
            **self._list_other_errors(params, items),
        }
        if self.structure.groups:
            arrays |= {
                "group_weights_error": items[:, :, :q],
                "group_offsets_error": items[:, :, q],
            }
        if errors.coefficients is not None:
            arrays["coefficients_error"] = errors.coefficients
        if q == 1:
            first_items = errors.first_items[:, : q + 1, : q + 1]
            of_items = ItemErrors(first_items, np.empty(0, np.intp))
            slopes = params.weights[:, 0]
            arrays["difficulty_error"] = of_items.difficulties(slopes, params.offsets)
        warnings = state.warnings
        unknown = np.flatnonzero(np.isnan(errors.items).any(axis=(0, 2)))
        if unknown.size:
            text = "the data do not determine these features' parameters; no standard errors: "
            text += "{features}"
            warnings = (*warnings, FitWarning(text, tuple(unknown.tolist())))
        params = replace(params, **arrays)
        state = replace(
            state,
            params=params,
            diagnostics={**state.diagnostics, "errors": form},
            warnings=(*warnings, *warn_about_reversed_items(params)),
        )
        return self._add_likelihood(state, statistics, n_parameters)

    def _warn_about_known_offsets(self, state: FitState, statistics: Sums) -> FitState:
        if self.structure.known_items is None:
            return state
        values, q = statistics.values, state.params.weights.shape[1]
        share = values["group_informing"] / np.maximum(values["group_weight"], 1.0)
        curvature = values["curvature"][:, :, q, q] / np.maximum(share, 1e-300)[:, None]
        is_known = ~np.isnan(self.structure.known_items[:, -1])
        score = values["gradient"][:, :, q].sum(axis=0)
        return state.with_warnings(warn_about_known_offsets(score, curvature.sum(axis=0), is_known))

    def _list_other_errors(self, params: LatentTraitParams, errors: Array) -> dict[str, Array]:
        """Return further arrays of standard errors, given those of items in each group."""
        return {}

    def _compute_prior_curvature(self, design: GroupDesign, params: LatentTraitParams) -> Array:
        """Return minus the second derivatives of the log prior, (n_free,)."""
        slopes = design.index[:, :, : design.n_components]
        curvature = np.zeros(design.n_free)
        curvature[slopes[slopes >= 0]] = self._get_precision(params)
        return curvature

    def _count_parameters(self, design: GroupDesign) -> int:
        return count_group_parameters(design)

    def _compute_errors(
        self, design: GroupDesign, state: FitState, statistics: Sums, form: str
    ) -> GroupErrors:
        information, score, products = self._scale_information(design, state, statistics, form)
        return compute_group_errors(
            design,
            get_items(state.params),
            *get_traits(state.params),
            information,
            score,
            products,
            self._compute_prior_curvature(design, state.params),
        )

    def _scale_information(
        self, design: GroupDesign, state: FitState, statistics: Sums, form: str
    ) -> tuple[Array, Array, Array | None]:
        """Return information and score of each group, and the products of scores if needed."""
        values = statistics.values
        share = values["group_informing"] / np.maximum(values["group_weight"], 1.0)
        by_group = 1 / np.maximum(share, np.finfo(float).tiny)[:, None, None]
        products = by_group * values["products"]
        curvature = self._join_curvatures(values)
        information = by_group * (curvature - values["spread"] + values["products"])
        if form == "crossproduct":
            information = products
        if form != "sandwich":
            return information, values["gradient"], None
        derivatives = self._differentiate(design, state.params)
        if isinstance(statistics, ClusteredSums):
            mapped = replace(statistics, scores=statistics.scores @ np.concatenate(derivatives))
            return information, values["gradient"], mapped.sum_score_products()
        outer = values.get("weighted_products", values["products"]) * by_group
        pairs = zip(derivatives, outer, strict=True)
        return information, values["gradient"], sum(J.T @ own @ J for J, own in pairs)

    def _join_curvatures(self, values: Arrays) -> Array:
        """Return the curvature of all parameters of each group, (n_groups, p, p)."""
        return np.stack([scipy.linalg.block_diag(*own) for own in values["curvature"]])

    def _differentiate(self, design: GroupDesign, params: LatentTraitParams) -> list[Array]:
        """Return J_g of each group, see `group_errors`."""
        items, (mean, covariance) = get_items(params), get_traits(params)
        root, places = factorize(covariance), place_traits(design)
        return [
            differentiate_items(design, places, items, mean, root, group)
            for group in range(self.n_groups)
        ]

    def _add_likelihood(self, state: FitState, statistics: Sums, n_parameters: int) -> FitState:
        log_likelihood, weight = statistics.objective, statistics.weight
        found: dict[str, Any] = {
            "log_likelihood": log_likelihood,
            "n_parameters": n_parameters,
            "reliability": compute_reliability(statistics).tolist(),
            "m2_missing": NOT_WITH_STRUCTURE,
            "s_x2_missing": NOT_WITH_STRUCTURE,
        }
        if not self.structure.groups:
            found |= describe_traits(state.params)
        if state.auxiliary["has_sampling_weights"]:
            found["aic_missing"] = "the rows have sampling weights"
        else:
            found["aic"] = 2 * n_parameters - 2 * log_likelihood
            found["bic"] = n_parameters * float(np.log(weight)) - 2 * log_likelihood
        return replace(state, diagnostics={**state.diagnostics, "fit_statistics": found})


def find_features_by_group(model: LatentTrait, structure: Structure) -> NDArray[np.intp]:
    """Return the items whose slopes differ by group; none without groups."""
    if not structure.groups:
        return np.zeros(0, np.intp)
    if model.invariance == "configural":
        return np.arange(len(structure.features))
    return find_free_items(model.free, structure)


def find_free_items(free: str, structure: Structure) -> NDArray[np.intp]:
    """Return the items that the setting `free` names."""
    names = [name.strip() for name in free.split(",") if name.strip()]
    features = structure.feature_names
    if unknown := [name for name in names if name not in features]:
        raise FitError(
            f"{{free}} names {unknown[0]!r}, but the dataset has no such feature. "
            "Separate names of features by commas.",
            parameter="free",
        )
    return np.array([features.index(name) for name in names], np.intp)


def choose_group_axes(
    params: LatentTraitParams, design: GroupDesign, pattern: LoadingPattern | None
) -> LatentTraitParams:
    """Turn the traits to the principal axes of the first group, unless slopes fix them.

    With a loading pattern, only the signs of the traits are free. Groups with axes of their own
    have the signs with which their slopes agree best with those of the first group.
    """
    if pattern is not None and not has_equal_slopes_across_traits(pattern.slopes):
        return _choose_signs(params, design)
    if not design.is_rotatable:
        return params
    items, (mean, covariance) = get_items(params), get_traits(params)
    q = mean.shape[1]
    axes = np.stack(
        [
            turn_to_principal_axes(make_params(own[:, :q], own[:, q])).axes
            for own in (items[:1] if design.are_axes_shared else items)
        ]
    )
    axes = axes * _compare_with_first(items[:, :, :q] @ axes)[: len(axes), None]
    items[:, :, :q] = items[:, :, :q] @ axes
    mean = (mean[:, None] @ axes)[:, 0]
    covariance = axes.transpose(0, 2, 1) @ covariance @ axes
    return replace(with_groups(params, items, mean, covariance), axes=axes[0])


def describe_traits(params: LatentTraitParams) -> dict[str, list[float]]:
    """Return mean and covariance of the traits of all rows, and their standard errors."""
    names = ("trait_mean", "trait_covariance")
    values = {name: getattr(params, name)[0].ravel() for name in names}
    if params.trait_mean_error is not None:
        values |= {f"{name}_error": getattr(params, f"{name}_error")[0].ravel() for name in names}
    return {name: array.tolist() for name, array in values.items() if np.isfinite(array).all()}


def get_items(params: LatentTraitParams) -> Array:
    """Return slopes, offsets and logits of asymptotes, (n_groups, n_features, width)."""
    if params.group_weights is None:
        asymptotes = params.asymptotes
        own = [] if asymptotes is None else [to_logits(values) for values in asymptotes]
        return np.column_stack([params.free_parameters, *own])[None]
    assert params.group_offsets is not None
    parts = [params.group_weights, params.group_offsets[:, :, None]]
    asymptotes = join_asymptotes(params.group_guessing, params.group_slipping)
    if asymptotes is not None:
        parts += [to_logits(values)[:, :, None] for values in asymptotes]
    return np.concatenate(parts, axis=2)


def get_traits(params: LatentTraitParams) -> tuple[Array, Array]:
    """Return μ_g, (n_groups, q), and Σ_g, (n_groups, q, q)."""
    if params.trait_mean is None:
        q = params.weights.shape[1]
        return np.zeros((1, q)), np.eye(q)[None]
    assert params.trait_covariance is not None
    return params.trait_mean, params.trait_covariance


def with_groups(
    params: LatentTraitParams, items: Array, mean: Array, covariance: Array
) -> LatentTraitParams:
    """Return the parameters with these items and traits; diverging items are limited."""
    items, q = np.clip(items, -MAX_PARAMETER, MAX_PARAMETER), mean.shape[1]
    asymptotes = [from_logits(items[:, :, column]) for column in range(q + 1, items.shape[2])]
    named = dict(zip(("guessing", "slipping"), asymptotes, strict=False))
    by_item: dict[str, Any] = {name: p[0].copy() for name, p in named.items()}
    by_group: dict[str, Any] = {f"group_{name}": p for name, p in named.items()}
    params = replace(
        params,
        weights=items[0, :, :q].copy(),
        offsets=items[0, :, q].copy(),
        trait_mean=mean,
        trait_covariance=covariance,
        **by_item,
    )
    if params.segments is None:
        return params
    return replace(
        params,
        group_weights=items[:, :, :q].copy(),
        group_offsets=items[:, :, q].copy(),
        **by_group,
    )


def adapt_to_pattern(
    model: LatentTrait, structure: Structure, pattern: LoadingPattern
) -> LatentTrait:
    """Set the number of traits and the kind of correlations, and check that all are identified."""
    slopes = pattern.slopes
    for name, is_other in (
        ("equal_slopes", model.equal_slopes == "yes"),
        ("rotation", model.rotation != "principal"),
    ):
        if is_other:
            raise FitError(
                f"{{{name}={getattr(model, name)}}} cannot be combined with {{pattern}}. Leave out "
                "one of them.",
                parameter=name,
            )
    has_general = bool(((slopes >= 0).all(axis=0)).any())
    correlations = model.correlations
    if correlations == "auto":
        correlations = "none" if has_general else "free"
    if (q := len(pattern.traits)) > MAX_COMPONENTS and correlations == "free":
        raise FitError(
            f"{{pattern}} has {q} traits, but only up to {MAX_COMPONENTS} can be correlated. Use "
            "{correlations=none}, or leave out some of them.",
            parameter="pattern",
        )
    if q > MAX_COMPONENTS and _reduce_pattern(structure, correlations) is None:
        raise FitError(
            f"{{pattern}} has {q} traits, but is not a bifactor pattern, and at most "
            f"{MAX_COMPONENTS} other traits can be fitted. Let each item load on at most one trait "
            "besides one or two general ones.",
            parameter="pattern",
        )
    if correlations == "free" and structure.groups and model.traits != "free":
        raise FitError(
            f"{{traits={model.traits}}} cannot be combined with {{group}} and correlated traits. "
            "Use {traits=free} or {correlations=none}.",
            parameter="traits",
        )
    check_identification(pattern, structure.feature_names, correlations == "free")
    has_means = model.invariance in ("scalar", "strict") and model.traits != "standard"
    if structure.groups and has_means:
        check_group_means(pattern)
    return replace(model, n_components=len(pattern.traits), correlations=correlations)


def _reduce_pattern(structure: Structure, correlations: str) -> TraitBlocks | None:
    """Return the blocks of a bifactor pattern, or None if they save no integrals."""
    if structure.pattern is None or correlations == "free":
        return None
    loads = structure.pattern.slopes >= 0
    blocks = find_trait_blocks(loads)
    is_smaller = blocks is not None and len(blocks.general) + 1 < loads.shape[1]
    return blocks if is_smaller else None


def convert_code_moments(sums: Arrays, root: Array) -> Arrays:
    """Convert sums of the codes of u to those of the traits x = L u."""
    return {
        "codes": root @ sums["codes"],
        "codes_squared": root @ sums["codes_squared"] @ root.T,
        "codes_variance": root @ sums["codes_variance"] @ root.T,
    }


def _choose_signs(params: LatentTraitParams, design: GroupDesign) -> LatentTraitParams:
    """Reverse traits whose slopes in the first group have a negative sum."""
    items, (mean, covariance) = get_items(params), get_traits(params)
    q = params.weights.shape[1]
    signs = np.where(params.weights.sum(axis=0) < 0, -1.0, 1.0) * np.ones((len(mean), 1))
    if not design.are_axes_shared:
        signs *= _compare_with_first(items[:, :, :q])
    items[:, :, :q] *= signs[:, None]
    covariance = covariance * signs[:, :, None] * signs[:, None]
    reversed_traits = with_groups(params, items, mean * signs, covariance)
    return replace(reversed_traits, axes=np.diag(signs[0]))


def _compare_with_first(slopes: Array) -> Array:
    """Return −1 for traits whose slopes in a group oppose those in the first, (n_groups, q)."""
    return np.where((slopes * slopes[:1]).sum(axis=1) < 0, -1.0, 1.0)
