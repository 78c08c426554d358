"""The latent-trait model with groups, known items or a pattern, and items of several levels.

Model: that of `levels.model`, but in group g, x ~ N(μ_g, Σ_g), as in
`latent_trait.confirmatory`. Slopes and offsets may be equal in all groups. A pattern sets slopes to
0, or equal, and so fixes the axes. The first group has μ = 0 and Σ = I, or with a pattern,
correlations that are estimated; with known items, μ and Σ of all groups may be estimated.

E-step: with Σ_g = L_g L_gᵀ, x = μ_g + L_g u and u ~ N(0, I), the forms are

    a_j·x + d_j = (L_gᵀ a_j)·u + (d_j + a_j·μ_g),

so each group has the E-step of the model without groups, at other slopes and offsets, on nodes.

M-step: as without groups for all slopes and offsets, at the points μ_g + L_g u_l, and the moments
of x for μ_g and Σ_g. `latent_trait.confirmatory` explains the parameter expansion.

Standard errors: as in `group_errors`, with the free slopes and offsets φ and the entries of μ_g and
L_g as parameters. With v_g the slopes and offsets of forms as functions of u, and s_g the score in
them, the observed information is

    Σ_g J_gᵀ I_g J_g − Σ_g Σ_k s_gk ∂²v_gk / ∂φ ∂(μ_g, L_g),   J_g = ∂v_g / ∂(φ, μ_g, L_g).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.known_levels import standardize_forms
from pipeline.models.latent_trait.confirmatory import (
    NOT_WITH_STRUCTURE,
    adapt_to_pattern,
    choose_group_axes,
    convert_code_moments,
    describe_traits,
    find_features_by_group,
    find_free_items,
    get_traits,
)
from pipeline.models.latent_trait.em import LatentTraitParams, represents_all_scales
from pipeline.models.latent_trait.group_design import (
    GroupDesign,
    compose_covariances,
    convert_to_correlation,
    factorize,
    list_changes,
    make_group_design,
    update_traits,
)
from pipeline.models.latent_trait.group_errors import (
    TraitPlaces,
    compute_covariance_errors,
    list_variance_constraints,
    place_traits,
    sum_multipliers,
)
from pipeline.models.latent_trait.identification import check_identification
from pipeline.models.latent_trait.known_values import (
    check_free_items,
    check_known_levels,
    check_known_slopes,
    warn_about_known_offsets,
)
from pipeline.models.latent_trait.levels.design import (
    LevelDesign,
    OwnParameters,
    make_level_design,
)
from pipeline.models.latent_trait.levels.model import LAST_STRETCH, OrdinalTrait
from pipeline.models.latent_trait.levels.params import Matrix, with_forms
from pipeline.models.latent_trait.levels.step import ItemGroup, take_level_steps
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.wide_errors import (
    ItemCovariance,
    SharedDirections,
    list_shared_directions,
)
from pipeline.models.loading_pattern import LoadingPattern
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    choose_level_lattice,
    count_item_levels,
)
from pipeline.numerics.logistic.categories.scores import (
    LevelSums,
    sum_form_gradient,
    sum_shift_scores,
)
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, count_group_level_rows
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_COVARIATE_SUMS = ("covariate_codes", "covariate_products")
_BY_GROUP = (*LevelSums._fields, "moments", *_COVARIATE_SUMS)


@dataclass(frozen=True)
class ConfirmatoryOrdinalTrait(OrdinalTrait):
    """The latent-trait model of items with levels, or continuous, and groups or other structure."""

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add the features and the structure.

        Raises
        ------
        FitError
            If the settings or the structure cannot be combined with it, or the pattern does not
            identify the slopes.
        """
        others = {
            "pattern": structure.pattern,
            "covariates": structure.covariates,
            "group": structure.groups or None,
        }
        name = next((name for name, value in others.items() if value is not None), "items")
        if model.items == "nominal" and name == "pattern":
            raise FitError(
                "Nominal items have a slope per level, which {pattern} cannot describe. Leave it "
                "out, or choose graded or partial-credit items.",
                parameter="pattern",
            )
        if not structure.groups:
            model.check_unused_settings("invariance", "free")
        if (pattern := structure.pattern) is not None:
            if (q := len(pattern.traits)) > MAX_COMPONENTS:
                raise FitError(
                    f"{{pattern}} has {q} traits, but features that have several levels or are "
                    f"continuous take at most {MAX_COMPONENTS}. Leave out some of them, or cut the "
                    "features in two by {cut=NAME>=VALUE}.",
                    parameter="pattern",
                )
            model = adapt_to_pattern(model, structure, pattern)
            if model.items == "rating-scale":
                _check_rating_scale(pattern, structure.features)
        if model.n_components is None:
            raise FitError(
                f"{{{name}}} needs 1 to {MAX_COMPONENTS} components. Set {{components=1}}.",
                parameter="components",
            )
        adapted = super().from_model(model, structure)
        if structure.known_items is not None:
            check_known_slopes(adapted._known_values)
            check_free_items(model.free, structure.feature_names, adapted._known_values)
        return adapted

    def find_features_by_group(self) -> NDArray[np.intp]:
        """Return the items whose slopes differ by group."""
        return find_features_by_group(self, self.structure)

    @property
    def n_groups(self) -> int:
        """Number of groups; 1 without groups."""
        return max(len(self.structure.groups), 1)

    @property
    def _slopes(self) -> Indices | None:
        """Number of each slope, see `LoadingPattern.slopes`; None without a pattern."""
        pattern = self.structure.pattern
        return None if pattern is None else pattern.slopes

    @property
    def _known_values(self) -> Array:
        """Slopes and offset of the last form of each item, (n_features, q + 1), NaN if unknown."""
        n_planes, known = self.n_planes, self.structure.known_items
        if known is None:
            return np.full((len(n_planes), (self.n_components or 1) + 1), np.nan)
        last = np.cumsum(n_planes) - 1
        is_continuous = n_planes == 0
        last[is_continuous] = n_planes.sum() + 2 * np.arange(np.count_nonzero(is_continuous))
        return known[last]

    @cached_property
    def _trait_design(self) -> GroupDesign:
        """What is estimated of the distribution of the traits."""
        return make_group_design(
            self.n_groups,
            self._known_values,
            find_free_items(self.free, self.structure),
            self.invariance,
            self.traits,
            equal_slopes=self._has_equal_slopes,
            prior_precision=self.prior_precision,
            slopes=self._slopes,
            is_correlated=self.correlations == "free",
        )

    @cached_property
    def _own_parameters(self) -> OwnParameters | None:
        """Which parameters differ by group; None without groups."""
        if not self.structure.groups:
            return None
        n_features = len(self.structure.features)
        is_free = np.isin(np.arange(n_features), find_free_items(self.free, self.structure))
        has_slopes = is_free & (not self._has_equal_slopes)
        has_own_offsets = self.invariance in ("configural", "metric")
        return OwnParameters(
            has_slopes | (self.invariance == "configural"),
            (is_free | has_own_offsets) & np.isnan(self._known_values[:, -1]),
            has_own_offsets,
            self.invariance != "strict",
        )

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the tables over nodes of all tasks, and sums of all groups."""
        return self.n_groups * super().estimate_memory(n_features, n_segments, n_threads)

    def _make_design(
        self, counts: Array, params: LatentTraitParams, own: OwnParameters | None = None
    ) -> LevelDesign:
        """Return the design without groups, or given which parameters differ by group."""
        known = self.structure.known_items
        return make_level_design(
            counts,
            self.n_planes,
            params.weights.shape[1],
            self.items,
            self._has_equal_slopes,
            self._slopes,
            own,
            None if known is None else standardize_forms(known, params.means, params.scales),
        )

    def _get_design(self, arrays: Arrays, params: LatentTraitParams) -> LevelDesign:
        return self._make_design(arrays["group_level_counts"], params, self._own_parameters)

    @property
    def _are_items_known(self) -> NDArray[np.bool_]:
        return np.asarray(~np.isnan(self._known_values).any(axis=1))

    def _count_start_segments(self) -> int | None:
        return self.n_groups if self.structure.groups else None

    def _get_start_pattern(self) -> NDArray[np.bool_] | None:
        return None if self._slopes is None else self._slopes >= 0

    def _get_known_slopes(self) -> Array | None:
        return None if self.structure.known_items is None else self._known_values[:, :-1]

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the levels, also within groups, and that the varying items identify the slopes."""
        state = super()._start_from(first, loadings, seed)
        if (known := self.structure.known_items) is not None:
            items = standardize_forms(known, state.params.means, state.params.scales)
            counts = state.auxiliary["level_counts"]
            is_graded, names = self.items == "graded", self.structure.feature_names
            check_known_levels(items, self.n_planes, is_graded, counts, names)
            state = replace(state, params=replace(state.params, is_known=~np.isnan(known)))
        if (constant := state.auxiliary["constant"]).size and self.structure.pattern is not None:
            varying = self.structure.pattern.without_loadings(constant)
            check_identification(varying, self.structure.feature_names, self.correlations == "free")
        counts = state.auxiliary["level_counts"][None]
        if self.structure.groups:
            counts = count_group_level_rows(first, self.structure.features)
            self._check_own_offsets(counts, constant)
            warnings = (*state.warnings, *self._warn_about_empty_levels(counts))
            state = replace(state, warnings=warnings)
        state = replace(state, auxiliary={**state.auxiliary, "group_level_counts": counts})
        params, q = state.params, state.params.weights.shape[1]
        if self.structure.groups:
            params = replace(params, segments=first.segments, segment_rows=first.rows)
        forms = np.tile(self._stack_forms(params), (self.n_groups, 1, 1))
        return replace(
            state,
            params=self._with_groups(
                params,
                forms,
                np.zeros((self.n_groups, q)),
                np.tile(np.eye(q), (self.n_groups, 1, 1)),
            ),
        )

    def _check_own_offsets(self, counts: Array, constant: Indices) -> None:
        """Refuse items that have offsets of their own in a group where they are constant."""
        assert self._own_parameters is not None
        n_levels = count_item_levels(self.n_planes)
        owners = np.repeat(np.arange(len(n_levels)), n_levels)
        is_own = self._own_parameters.offsets & (n_levels > 0)
        is_own[constant] = False
        for group, own in enumerate(counts):
            n_present = np.bincount(owners[own > 0], minlength=len(n_levels))
            for item in np.flatnonzero(is_own & (n_present < 2)).tolist():
                state = "constant" if n_present[item] else "never observed"
                raise FitError(
                    f"{{group}}: {{features}} is {state} in the group "
                    f"{self.structure.groups[group]!r}, so its own parameters there cannot be "
                    "estimated. Leave out the feature or the group, or use {invariance=scalar}.",
                    self._name_items(np.array([item])),
                    parameter="group",
                )

    def _warn_about_empty_levels(self, counts: Array) -> list[FitWarning]:
        """Warn about levels that only rows of other groups have, of items with own offsets."""
        assert self._own_parameters is not None
        n_levels, warnings = count_item_levels(self.n_planes), []
        is_own = np.repeat(self._own_parameters.offsets & (n_levels > 0), n_levels)
        owners = np.repeat(np.arange(len(n_levels)), n_levels)
        for group, own in enumerate(counts):
            is_empty = is_own & (own == 0) & (counts.sum(axis=0) > 0)
            if (items := np.unique(owners[is_empty])).size:
                text = (
                    f"no row of the group {self.structure.groups[group]!r} has some levels of "
                    "these features, so these levels count as improbable there: {features}"
                )
                warnings.append(FitWarning(text, self._name_items(items)))
        return warnings

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit with items of the same kind, with or without groups."""
        traits, q = self._trait_design, params.weights.shape[1]
        groups, axes = [params.get_group(group) for group in range(self.n_groups)], params.axes
        covariance = np.stack([axes @ group.root @ group.root.T @ axes.T for group in groups])
        if traits.is_orthogonal:
            covariance = covariance * np.eye(q)
        has_correlation = traits.has_free_correlation[:, None, None]
        other = np.where(has_correlation, convert_to_correlation(covariance), np.eye(q))
        covariance = np.where(traits.has_free_covariance[:, None, None], covariance, other)
        mean = np.stack([group.mean for group in groups]) @ axes.T
        mean = np.where(traits.has_free_mean[:, None], mean, 0.0)
        selected = [params.select_items(group) for group in range(self.n_groups)]
        forms = np.stack([self._convert_forms(own, state.params) for own in selected])
        design = self._get_design(state.auxiliary, params)
        own = self._with_groups(state.params, self._apply_design(design, forms), mean, covariance)
        state = replace(state, params=own, working={"held_out": np.array(0.0)})
        return self._choose_nodes(state, LAST_STRETCH[q])

    def _apply_design(self, design: LevelDesign, forms: Array) -> Array:
        """Return the forms, (n_groups, n_forms, q + 1), that the design allows."""
        return design.fill(design.collect(forms)).reshape(forms.shape)

    def _with_groups(
        self, params: LatentTraitParams, forms: Array, mean: Array, covariance: Array
    ) -> LatentTraitParams:
        """Return the parameters with forms of items, (n_groups, n_forms, q + 1), and traits."""
        groups = [
            with_forms(params.select_items(group), own, self.items)
            for group, own in enumerate(forms)
        ]
        names = ("weights", "offsets", "level_offsets", "level_weights", "deviations")
        first = {name: getattr(groups[0], name) for name in names}
        covariance = covariance.copy()
        if self.structure.pattern is not None:
            covariance[:1] = _round_variances(covariance[:1])
        params = replace(params, **first, trait_mean=mean, trait_covariance=covariance)
        if params.segments is None:
            return params
        by_group = {
            f"group_{name}": np.stack([getattr(own, name) for own in groups])
            for name in names
            if first[name] is not None
        }
        return replace(params, **by_group)

    def _get_block_items(self, params: LatentTraitParams, block: BinaryBlock) -> LevelItems:
        return self._get_items(params, self._get_group_index(block))

    def _get_group_index(self, block: BinaryBlock) -> int:
        return block.segment if self.structure.groups else 0

    def _find_steepest_items(self, params: LatentTraitParams, stretch: float) -> LevelItems:
        groups = [self._get_items(params, group) for group in range(self.n_groups)]
        return min(groups, key=lambda items: choose_level_lattice(items, stretch).spacing)

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step of the block's group, and put its sums at the place of the group."""
        sums = super().summarize(params, working, block, rng)
        names = [name for name in _BY_GROUP if name in sums.values]
        return replace(sums, values=self._place_values(sums.values, names, block))

    def _place_values(
        self, values: Arrays, names: Sequence[str], block: BinaryBlock
    ) -> dict[str, NDArray[Any]]:
        """Put the sums of some names at the place of the block's group, along a first axis."""
        placed = dict(values)
        for name in names:
            placed[name] = np.zeros((self.n_groups, *values[name].shape))
            placed[name][self._get_group_index(block)] = values[name]
        return placed

    def _get_penalized_weights(self, params: LatentTraitParams) -> Array:
        """Return the slopes that have a prior: equal ones have one together."""
        if self.structure.groups or self.structure.known_items is not None:
            none = np.ones((self.n_groups, int(count_item_levels(self.n_planes).sum())))
            design = self._get_design({"group_level_counts": none}, params)
            forms = np.stack([own.to_forms() for own in self._list_items(params)])
            return design.collect(forms)[design.is_slope]
        if self._slopes is None:
            return super()._get_penalized_weights(params)
        loads = (self._slopes >= 0) & (params.weights != 0)
        _, places = np.unique(self._slopes[loads], return_index=True)
        return np.asarray(params.weights[loads][places])

    def _list_items(self, params: LatentTraitParams) -> list[LevelItems]:
        """Return the items of each group as functions of x."""
        return [params.get_level_items(self.items, group) for group in range(self.n_groups)]

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step for items and traits; constant features keep their parameters."""
        params, sums = state.params, statistics.values
        design, (mean, covariance) = self._get_design(state.auxiliary, params), get_traits(params)
        traits, forms = self._update_forms(design, params, state.working["points"], sums)
        is_resolved = not self.nodes or represents_all_scales(params, state.working, statistics)
        forms, mean, covariance = update_traits(
            traits, forms, mean, covariance, sums["moments"], is_resolved
        )
        forms = self._apply_design(design, forms)
        return self._finish_update(state, self._with_groups(params, forms, mean, covariance))

    def _update_forms(
        self, design: LevelDesign, params: LatentTraitParams, points: Array, sums: Arrays
    ) -> tuple[GroupDesign, Array]:
        """Run the M-step for items, given the traits; return (n_groups, n_forms, q + 1).

        Return also the design of the traits. When their scale is estimated, items stay.
        """
        if params.log_prior is not None:
            without_prior = replace(self, prior_precision=0.0)
            forms = np.stack([items.to_forms() for items in self._list_items(params)])
            return without_prior._trait_design, forms
        mean, covariance = get_traits(params)
        changes = list_changes(mean, factorize(covariance))
        groups = [
            ItemGroup.transform(
                items,
                points,
                LevelSums(*(sums[name][group] for name in LevelSums._fields)),
                changes[group].T,
            )
            for group, items in enumerate(self._list_items(params))
        ]
        forms = take_level_steps(design, groups, self.prior_precision)
        return self._trait_design, np.stack(np.split(forms, self.n_groups))

    def _measure_slopes(self, params: LatentTraitParams) -> Array:
        """Return the length of each item's slopes, (n_features,), the largest of all groups."""
        groups = [params.get_group(group) for group in range(self.n_groups)]
        slopes = np.linalg.norm([group.items.weights for group in groups], axis=2)
        return np.asarray(slopes.max(axis=0))

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return forms of items, means and Cholesky factors of all groups as a vector."""
        mean, covariance = get_traits(params)
        parts = [own.to_forms() for own in self._list_items(params)]
        return np.concatenate([part.ravel() for part in (*parts, mean, factorize(covariance))])

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        n, q = self.n_groups, params.weights.shape[1]
        n_forms = len(params.get_level_items(self.items).to_forms())
        ends = np.cumsum([n * n_forms * (q + 1), n * q])
        forms, mean, root = np.split(packed, ends)
        n_standard = 0
        if self._trait_design.has_free_correlation.any():
            n_standard = n if self.invariance == "configural" else 1
        covariance = compose_covariances(root.reshape(n, q, q), n_standard)
        shape = (n, n_forms, q + 1)
        return self._with_groups(params, forms.reshape(shape), mean.reshape(n, q), covariance)

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Turn the traits to the principal axes of the first group, or with positive slopes."""
        params = choose_group_axes(state.params, self._trait_design, self.structure.pattern)
        if params.level_weights is None:
            return params
        # The only trait of nominal items may have another direction, in each group by itself.
        turned = {
            name: getattr(params, name)
            * _compare_signs(getattr(params, own), getattr(state.params, own))
            for name, own in (
                ("level_weights", "weights"),
                ("group_level_weights", "group_weights"),
            )
            if getattr(params, own) is not None
        }
        return replace(params, **turned)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Add difficulties, diagnostics and warnings; traits of a pattern keep correlations."""
        state = super().finish(state, statistics)
        if self.structure.pattern is None:
            return state
        correlation = convert_to_correlation(get_traits(state.params)[1])[0]
        return replace(state, params=replace(state.params, component_correlation=correlation))

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters, the residuals and the score."""
        sums = super().summarize_information(params, working, block, rng)
        group = self._get_group_index(block)
        own = self.summarize(params, working, block, rng).values
        node_sums = LevelSums(*(own[name][group] for name in LevelSums._fields))
        items = self._get_block_items(params, block)
        values = {**sums.values, "score": sum_form_gradient(items, working["points"], node_sums)}
        values |= {name: own[name] for name in _COVARIATE_SUMS if name in own}
        if self.structure.known_items is not None:
            shift = sum_shift_scores(items, working["points"], node_sums)
            values["shift_score"], values["shift_information"] = shift
        if self.structure.pattern is not None:
            values |= convert_code_moments(values, params.get_group(group).root)
        by_group = ["score", *(("curvature", "item_variance") if "directions" in working else ())]
        return replace(sums, values=self._place_values(values, by_group, block))

    def _place_traits(self, design: LevelDesign) -> TraitPlaces:
        return place_traits(self._trait_design, design.n_free)

    def _differentiate_block_forms(
        self, design: LevelDesign, params: LatentTraitParams, block: BinaryBlock
    ) -> Matrix:
        return self._differentiate_group_forms(design, params, self._get_group_index(block))

    def _differentiate_group_forms(
        self, design: LevelDesign, params: LatentTraitParams, group: int
    ) -> Matrix:
        """Return J_g: the derivatives of the items of u by φ, μ_g and L_g, (n_forms (q + 1), p)."""
        places, (mean, covariance) = self._place_traits(design), get_traits(params)
        root = factorize(covariance)
        slopes = params.get_level_items(self.items, group).to_forms()[:, :-1]
        to_u = scipy.sparse.kron(
            scipy.sparse.eye_array(len(slopes)), list_changes(mean, root)[group], format="csr"
        )
        n_forms, q = slopes.shape
        by_trait = np.zeros((n_forms, q + 1, places.n_parameters - design.n_free + 1))
        for m in range(q):  # -1, of what is not free, is the last place
            by_trait[:, q, max(places.mean[group, m] - design.n_free, -1)] = slopes[:, m]
            for a in range(q):
                by_trait[:, a, max(places.root[group, m, a] - design.n_free, -1)] = slopes[:, m]
        by_trait = by_trait[:, :, :-1].reshape(n_forms * (q + 1), -1)
        parts = [to_u @ design.select_group(group).matrix, scipy.sparse.csr_array(by_trait)]
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts))

    def _differentiate_forms(self, design: LevelDesign, params: LatentTraitParams) -> Matrix:
        """Return J_g of all groups, one below the other."""
        parts = [
            self._differentiate_group_forms(design, params, group) for group in range(self.n_groups)
        ]
        return scipy.sparse.csr_array(scipy.sparse.vstack(parts))

    def _count_parameters(self, design: LevelDesign) -> int:
        traits, q = self._trait_design, design.n_components
        n_axes = (1 if traits.are_axes_shared else self.n_groups) if traits.is_rotatable else 0
        n_variances = q * int(np.count_nonzero(traits.has_free_correlation))
        return self._place_traits(design).n_parameters - n_axes * math.comb(q, 2) - n_variances

    def _list_constraints(self, design: LevelDesign, params: LatentTraitParams) -> Array:
        """Return the gradients of what identifies axes or scales, (n_constraints, p)."""
        traits, places = self._trait_design, self._place_traits(design)
        if not traits.is_rotatable:
            root = factorize(get_traits(params)[1])
            return list_variance_constraints(traits, places, root)
        n_trait_parameters = places.n_parameters - design.n_free
        parts = [
            self._list_axis_constraints(design.select_group(group), params.select_items(group))
            for group in range(1 if traits.are_axes_shared else self.n_groups)
        ]
        return np.pad(np.concatenate(parts), ((0, 0), (0, n_trait_parameters)))

    def _list_directions(self, design: LevelDesign, params: LatentTraitParams) -> SharedDirections:
        """Return directions that items share in each group, and those of the traits."""
        forms = np.stack([items.to_forms() for items in self._list_items(params)])
        places, parts = self._place_traits(design), []
        for group, own in enumerate(forms):
            found = np.concatenate(list_shared_directions(own[:, :-1]), axis=2)
            moved = np.zeros((*forms.shape, found.shape[2]))
            moved[group] = found
            parts.append(design.collect_changes(moved.reshape(-1, found.shape[2])))
        parts.append(np.eye(design.n_free)[:, design.is_common])
        n_traits = places.n_parameters - design.n_free
        directions = scipy.linalg.block_diag(np.column_stack(parts), np.eye(n_traits))
        return SharedDirections(directions, np.zeros((len(directions), 0)))

    def _sum_corrections(
        self, design: LevelDesign, state: FitState, statistics: Sums, n_parameters: int
    ) -> Any:
        """Return what adds to the information about φ, μ_g and L_g, (p, p), sparse."""
        total = super()._sum_corrections(design, state, statistics, n_parameters)
        score, params = statistics.values["score"], state.params
        if self._trait_design.has_free_correlation.any():
            slope = self._differentiate_forms(design, params).T @ score.ravel()
            multipliers = sum_multipliers(self._list_constraints(design, params), slope)
            total = total + scipy.sparse.diags_array(multipliers)
        return total - sum_second_derivatives(design, self._place_traits(design), score)

    def _collect_errors(
        self,
        design: LevelDesign,
        state: FitState,
        covariance: ItemCovariance,
        is_unknown: NDArray[np.bool_],
    ) -> tuple[dict[str, Array], Indices]:
        """Return arrays of standard errors, and the features that have none for lack of data."""
        of_items, unknown = covariance.take_first(design.n_free), np.zeros(0, np.int64)
        by_group = []
        for group in range(self.n_groups):
            own = replace(state, params=state.params.select_items(group))
            arrays, missing = super()._collect_errors(
                design.select_group(group),
                own,
                of_items,
                is_unknown[: design.n_free],
            )
            if self._slopes is not None:
                arrays["weights_error"][self._slopes < 0] = 0.0
            by_group.append(arrays)
            unknown = np.union1d(unknown, missing)
        arrays = by_group[0]
        if self.structure.groups:
            names = ("weights", "offsets", "level_offsets", "level_weights", "deviations")
            arrays |= {
                f"group_{name}_error": np.stack([own[f"{name}_error"] for own in by_group])
                for name in names
                if f"{name}_error" in arrays
            }
        places = place_traits(self._trait_design, 0)
        of_traits = covariance.take_blocks(design.n_free + np.arange(places.n_parameters)[None])[0]
        is_unknown = is_unknown[design.n_free :]
        variance = np.append(np.where(is_unknown, np.nan, np.diag(of_traits)), 0.0)
        root = factorize(get_traits(state.params)[1])
        arrays["trait_mean_error"] = np.sqrt(np.maximum(variance[places.mean], 0.0))
        arrays["trait_covariance_error"] = compute_covariance_errors(
            self._trait_design, places, root, of_traits, is_unknown
        )
        return arrays, unknown

    @property
    def _missing_fit_reason(self) -> str:
        if self.structure.groups or self.structure.known_items is not None:
            return NOT_WITH_STRUCTURE
        return super()._missing_fit_reason

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, likelihood and fit statistics."""
        state = super().finish_information_pass(state, statistics)
        if self.structure.known_items is not None:
            values, is_known = statistics.values, ~np.isnan(self._known_values[:, -1])
            shift = values["shift_score"], values["shift_information"]
            warnings = warn_about_known_offsets(*shift, is_known, self.structure.feature_names)
            state = state.with_warnings(warnings)
        found = dict(state.diagnostics["fit_statistics"])
        if self.structure.groups or self.structure.known_items is not None:
            found.pop("marginal_reliability", None)  # it is for standard normal traits
        if not self.structure.groups:
            found |= describe_traits(state.params)
        return replace(state, diagnostics={**state.diagnostics, "fit_statistics": found})


def _check_rating_scale(pattern: LoadingPattern, features: tuple[Feature, ...]) -> None:
    """Refuse a pattern in which the items of a trait, apart from continuous ones, differ."""
    has_levels = np.array([feature.n_planes > 0 for feature in features])
    for k, trait in enumerate(pattern.traits):
        slopes = pattern.slopes[:, k]
        items = np.flatnonzero((slopes >= 0) & has_levels)
        others = items[slopes[items] != slopes[items[:1]]]
        if len(others):
            one, other = (features[own[0]].name for own in (items, others))
            raise FitError(
                "{pattern}: items of a rating scale have the same slope on a trait, but "
                f"{one} and {other} have different entries for {trait!r}. Write "
                "the same label, such as a, for all items of the trait.",
                parameter="pattern",
            )


def _compare_signs(weights: Array, before: Array) -> Array:
    """Return −1 where weights, (…, n_features, 1), were reversed and 1 elsewhere, (…, 1, 1)."""
    product = (weights * before).sum(axis=(-2, -1), keepdims=True)
    return np.where(product < 0, -1.0, 1.0)


def _round_variances(correlation: Array) -> Array:
    """Return correlations, (n_groups, q, q), with a diagonal without rounding errors."""
    exact = correlation.copy()
    places = np.arange(correlation.shape[1])
    exact[:, places, places] = 1.0
    return exact


def sum_second_derivatives(design: LevelDesign, places: TraitPlaces, score: Array) -> Matrix:
    """Return Σ_g Σ_k s_gk ∂²v_gk / ∂φ ∂(μ_g, L_g), (p, p), given s_g, (n_groups, n_forms (q + 1)).

    v_gja = Σ_m L_gma a_jm and v_gj,q+1 = d_j + Σ_m μ_gm a_jm, so the derivatives by L_gma and μ_gm
    are linear in the parameters of a_jm.
    """
    q, n_traits = design.n_components, places.n_parameters - design.n_free
    across = np.zeros((design.n_free, n_traits + 1))  # the last place is of what is not free
    mean, root = (np.where(p >= 0, p - design.n_free, -1) for p in (places.mean, places.root))
    for group, own in enumerate(score):
        matrix, by_form = design.select_group(group).matrix, own.reshape(-1, q + 1)
        for m in range(q):
            by_slope = matrix[m :: q + 1]
            across[:, mean[group, m]] += by_form[:, q] @ by_slope
            for a in range(m + 1):
                across[:, root[group, m, a]] += by_form[:, a] @ by_slope
    padded = scipy.sparse.csr_array(np.pad(across[:, :-1], ((0, n_traits), (design.n_free, 0))))
    return padded + padded.T
