"""The latent-trait model with a structure: levels, groups, covariates, known items or a pattern.

Model: in group g, x_n ~ N(μ_g + Γᵀz_n, Σ_g), and items depend on x through one linear form per
plane, a_j·x + d_j, see `numerics.logistic.categories.curves` and `design`. A binary item has one
plane. A continuous item is normal given x, see `numerics.logistic.categories.gaussian_items`. Forms
may be equal in all groups, or known (R. D. Bock, M. F. Zimowski, "Multiple group IRT", Handbook of
modern item response theory, 1997; R. J. Mislevy, Applied Psychological Measurement 11, 1987). Γ is
common to all groups. The first group has μ = 0 and Σ = I unless items are known. A loading pattern
sets slopes to 0, or equal, and so fixes the axes: all traits of the first group have variance 1,
and their correlations are estimated, or 0.

E-step: with Σ_g = L_g L_gᵀ, x = μ_g + L_g u and u ~ N(m_n, I) with m_n = L_g⁻¹ Γᵀ z_n,

    a·x + d = (L_gᵀ a)·u + (d + a·μ_g),

so each group has the E-step of the model without groups, at other forms. `integrators` describes
it. All of them give the expected log-likelihood of forms, on nodes or as a quadratic function.

M-step: steps of Fisher scoring for all forms, at the points μ_g + L_g u, and the moments of x for
μ_g and Σ_g. If no item is known, the M-step also estimates μ and Σ of the first group, and absorbs
them in the items (parameter expansion, see `numerics.logistic.parameter_expansion`). With
covariates, Γ and all free μ_g follow from the normal equations of generalized least squares. The
fit works with covariates (z − c) / s of mean 0 and variance 1. Its parameters are those of the
covariates as they are: μ_g and offsets hold where z = 0.

=======  ==================  ========================================
symbol   field               shape
=======  ==================  ========================================
w_i      weights             (n_features, n_components)
d_j      level_offsets       (n_planes,)
a_j      level_weights       (n_planes, n_components)
σ_i      deviations          (n_continuous,)
w_gi     group_weights       (n_segments, n_features, n_components)
μ_g      trait_mean          (n_segments, n_components)
Σ_g      trait_covariance    (n_segments, n_components, n_components)
Γ        coefficients        (n_covariates, n_components)
c        covariate_center    (n_covariates,)
g, s     guessing, slipping  (n_features,)
=======  ==================  ========================================

Binary items of one trait may have guessing g and slipping s, P(t = 1) = g + (1 − s − g) σ(w x + b)
(A. Birnbaum 1968; M. A. Barton, F. M. Lord 1981), whose logits are estimated, for each item or the
same for all. They have priors, because data hardly determine them; g + s < 1 excludes the same
curve with the opposite slope.

Not identifiable: rotations of x, unless slopes are known or a pattern sets them. The axes are the
principal axes of the slopes of the first group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import find_first_planes
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.learning.convergence import ConvergenceCriterion, PassCountCriterion
from pipeline.learning.held_out import HELD_OUT_SHARE, run_e_step_with_held_out
from pipeline.models.known_levels import standardize_forms
from pipeline.models.latent_trait.asymptotes import (
    BOUNDARY,
    choose_first_asymptote,
    warn_about_asymptotes,
    warn_about_prior_scale,
)
from pipeline.models.latent_trait.checks import check_structure, reduce_pattern
from pipeline.models.latent_trait.design import LevelDesign, OwnParameters, make_level_design
from pipeline.models.latent_trait.em import (
    ITEM_ARRAYS,
    MAX_INTEGRATION_ERROR,
    MAX_SLOPE,
    LatentTraitParams,
    NodeGrid,
    grid_from_working,
    make_params,
    nodes_from_working,
    represents_all_scales,
    store_nodes,
    use_last_lattice,
)
from pipeline.models.latent_trait.errors import (
    FitDesign,
    collect_errors,
    differentiate_block,
    differentiate_forms,
    invert,
    list_constraints,
    list_directions,
)
from pipeline.models.latent_trait.fit_statistics import (
    FittedItems,
    compute_fit_statistics,
    compute_likelihood_statistics,
    compute_residual_fit,
)
from pipeline.models.latent_trait.forms import (
    convert_forms,
    make_first_forms,
    map_to_thresholds,
    stack_forms,
    with_forms,
)
from pipeline.models.latent_trait.group_design import (
    GroupDesign,
    absorb_traits,
    choose_group_axes,
    compose_covariances,
    convert_to_correlation,
    describe_traits,
    factorize,
    find_free_items,
    get_traits,
    list_changes,
    make_group_design,
    update_traits,
)
from pipeline.models.latent_trait.identification import check_identification
from pipeline.models.latent_trait.integrators import (
    estimate_integrator,
    run_e_step,
    sum_information,
)
from pipeline.models.latent_trait.item_fit import compute_item_fit
from pipeline.models.latent_trait.item_priors import (
    PRIOR_FAMILIES,
    ItemPrior,
    PlacedPrior,
    differentiate_log_prior,
    parse_prior,
    sum_log_prior,
)
from pipeline.models.latent_trait.known_values import (
    check_known_answers,
    check_known_levels,
    warn_about_known_offsets,
)
from pipeline.models.latent_trait.model import (
    LatentTrait,
    compute_difficulties,
    warn_about_reversed_items,
)
from pipeline.models.latent_trait.regression_design import (
    Regression,
    check_covariates,
    describe_population,
    estimate_regression,
    find_contradiction,
    get_coefficients,
    limit_covariates,
    limit_crossing,
    make_row_regression,
    move_origin,
)
from pipeline.models.latent_trait.standard_errors import (
    MAX_PARAMETERS,
    MAX_ROWS,
    choose_asymptote_row_share,
    choose_level_row_share,
    choose_row_share,
)
from pipeline.models.latent_trait.starts import convert_to_slopes
from pipeline.models.latent_trait.step import ItemGroup, take_level_steps
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure, add_structure
from pipeline.numerics.logistic.asymptotes import MAX_LOGIT, from_logits, to_logits
from pipeline.numerics.logistic.bifactor import TraitBlocks
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    choose_level_lattice,
    count_item_levels,
    make_level_nodes,
)
from pipeline.numerics.logistic.categories.gaussian_items import MIN_DEVIATION
from pipeline.numerics.logistic.categories.scores import (
    LevelSums,
    RowRegression,
    count_score_products,
    place_asymptotes,
    sum_form_gradient,
    sum_shift_scores,
)
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.information import find_reversed_items
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS, Nodes
from pipeline.numerics.logistic.lattice_nodes import (
    MAX_MEAN_REACH,
    list_shared_nodes,
    make_even_nodes,
)
from pipeline.numerics.logistic.parameter_expansion import estimate_trait_gaussian
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import (
    FeatureCounts,
    count_group_level_rows,
    count_level_rows,
    make_empty_level_warnings,
)
from pipeline.statistics.measurements import MeasuredCounts, check_numbers
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_START_SLOPE = 1.0  # if all are equal
_LEAST_SLOPE = 0.3  # at the start, if slopes are positive
_NODE_MARGIN = 1.5  # of slopes when nodes of items with asymptotes are chosen
_MAX_SUM = 0.95  # of g + s after an extrapolation
_STRETCH = 1.3  # of the nodes of the first stage
_BIFACTOR_STRETCH = 1.5  # likewise, of a bifactor pattern
_LAST_STRETCH = {1: 0.85, 2: 0.75, 3: 0.75}  # of the last stage; flat optima need fine nodes
_FINER = 0.8  # of the distances of nodes, if they are too far apart
_MAX_SPACING_RATIO = 1.2  # of the nodes before a stage with new ones
_STOPPING_RATIO = 1.5  # likewise, but the stage does not go on until it has converged
_COVARIATE_SUMS = ("covariate_codes", "covariate_products")
_BY_GROUP = (*LevelSums._fields, "moments", *_COVARIATE_SUMS)
NOT_WITH_STRUCTURE = "the fit has groups, covariates, known items or a loading pattern"


@dataclass(frozen=True)
class StructuredTrait(LatentTrait):
    """The latent-trait model with levels, groups, covariates, known items or a pattern."""

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add the structure.

        Raises
        ------
        FitError
            If the settings or parts of the structure cannot be combined.
        """
        adapted = add_structure(cls, check_structure(model, structure), structure)
        if structure.covariates is not None and not adapted._trait_design.are_axes_shared:
            raise FitError(
                "{covariates} need items that all groups share. Name fewer items in {free}.",
                parameter="covariates",
            )
        return adapted

    @property
    def n_planes(self) -> Indices:
        """Number of planes of each feature, (n_features,), 0 of a continuous one."""
        return np.diff(find_first_planes(self.structure.features))

    @property
    def n_groups(self) -> int:
        """Number of groups; 1 without groups."""
        return max(len(self.structure.groups), 1)

    @property
    def mean_reach(self) -> float:
        """How much farther the nodes reach because rows have means of their own, in deviations."""
        return 0.0 if self.structure.covariates is None else MAX_MEAN_REACH

    @cached_property
    def _is_binary(self) -> bool:
        return bool((self.n_planes == 1).all())

    @property
    def _has_continuous(self) -> bool:
        return bool((self.n_planes == 0).any())

    @property
    def _has_structure(self) -> bool:
        """Whether the distribution of the traits is part of the fit."""
        own = self.structure
        parts = (own.known_items, own.pattern, own.covariates)
        return bool(own.groups) or any(part is not None for part in parts)

    @property
    def _slopes(self) -> Indices | None:
        """Number of each slope, see `LoadingPattern.slopes`; None without a pattern."""
        pattern = self.structure.pattern
        return None if pattern is None else pattern.slopes

    @property
    def _asymptote_kinds(self) -> tuple[str, str]:
        return self.guessing, self.slipping

    @cached_property
    def _blocks(self) -> TraitBlocks | None:
        """The blocks of items of a bifactor pattern, or None if they save no integrals."""
        return reduce_pattern(self.structure, self.correlations) if self._is_binary else None

    @property
    def _scale(self) -> Array | None:
        """Standard deviations of the covariates; None without covariates."""
        own = self.structure.covariates
        return None if own is None else np.array(own.deviations)

    @cached_property
    def _known_values(self) -> Array:
        """Slopes and offset of the last form of each item, (n_features, q + 1), NaN if unknown."""
        n_planes, known = self.n_planes, self.structure.known_items
        if known is None:
            return np.full((len(n_planes), (self.n_components or 1) + 1), np.nan)
        last = np.cumsum(n_planes) - 1
        is_continuous = n_planes == 0
        last[is_continuous] = n_planes.sum() + 2 * np.arange(np.count_nonzero(is_continuous))
        return known[last]

    @property
    def _are_items_known(self) -> NDArray[np.bool_]:
        """Which items have no free weights and offsets, (n_features,)."""
        return np.asarray(~np.isnan(self._known_values).any(axis=1))

    def find_features_by_group(self) -> NDArray[np.intp]:
        """Return the items whose slopes differ by group; none without groups."""
        if not self.structure.groups:
            return np.zeros(0, np.intp)
        if self.invariance == "configural":
            return np.arange(len(self.structure.features))
        return find_free_items(self.free, self.structure.feature_names)

    @cached_property
    def _trait_design(self) -> GroupDesign:
        """What is estimated of the distribution of the traits."""
        return self._make_trait_design(self.prior_precision)

    def _make_trait_design(self, prior_precision: float) -> GroupDesign:
        has_priors = self.slope_prior != "none" or self.offset_prior != "none"
        design = make_group_design(
            self.n_groups,
            self._known_values,
            find_free_items(self.free, self.structure.feature_names),
            self.invariance,
            self.traits,
            equal_slopes=self._has_equal_slopes,
            prior_precision=prior_precision,
            slopes=self._slopes,
            is_correlated=self.correlations == "free",
        )
        return replace(design, is_expanded=design.is_expanded and not has_priors)

    @cached_property
    def _own_parameters(self) -> OwnParameters | None:
        """Which parameters differ by group; None without groups."""
        if not self.structure.groups:
            return None
        free_items = find_free_items(self.free, self.structure.feature_names)
        is_free = np.isin(np.arange(len(self.structure.features)), free_items)
        has_slopes = is_free & (not self._has_equal_slopes)
        has_own_offsets = self.invariance in ("configural", "metric")
        return OwnParameters(
            has_slopes | (self.invariance == "configural"),
            (is_free | has_own_offsets) & np.isnan(self._known_values[:, -1]),
            has_own_offsets,
            self.invariance != "strict",
        )

    @cached_property
    def _kept_designs(self) -> dict[Any, LevelDesign]:
        """Designs of forms: those of all passes are the same."""
        return {}

    def _get_design(self, arrays: Arrays, params: LatentTraitParams) -> FitDesign:
        """Return the design, given arrays of the state with the counts of levels."""
        counts, known = arrays["group_level_counts"], self.structure.known_items
        if known is not None:
            known = standardize_forms(known, params.means, params.scales)
        q = params.weights.shape[1]
        key = (q, counts.tobytes(), None if known is None else known.tobytes())
        if key not in self._kept_designs:
            self._kept_designs[key] = make_level_design(
                counts,
                self.n_planes,
                q,
                self.items,
                self._has_equal_slopes,
                self._slopes,
                self._own_parameters,
                known,
                self._asymptote_kinds,
            )
        forms = self._kept_designs[key]
        traits = replace(self._trait_design, n_components=q)  # which a fit may have chosen
        return FitDesign(forms, traits, self.items, self._scale)

    def _name_items(self, items: Sequence[int] | Indices) -> tuple[str, ...]:
        """Return the names of items: an index in a message would stand for a plane."""
        return tuple(self.structure.feature_names[item] for item in np.asarray(items).tolist())

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the tables over nodes of all tasks, and sums of all groups."""
        if self._is_binary:
            own = super().estimate_memory(n_features, n_segments, n_threads)
        else:
            n_nodes = {1: 250, 2: 2500, 3: 8500}[self.n_components or MAX_COMPONENTS]
            own = 8 * self._n_columns * 8 * n_nodes * n_threads
        return self.n_groups * own

    @property
    def _n_columns(self) -> int:
        """Number of planes and of continuous features."""
        return int(np.maximum(self.n_planes, 1).sum())

    def estimate_work(
        self, params: LatentTraitParams, working: Arrays, n_features: int, n_rows: int
    ) -> WorkEstimate:
        """Return the work of the E-step, and of the scores in the pass for errors."""
        if self._is_binary and self._blocks is None:
            return super().estimate_work(params, working, n_features, n_rows)
        return estimate_integrator(
            params.get_group(0).items, working, self._blocks, self.n_planes, n_rows, self.n_groups
        )

    def _list_n_planes(self) -> Indices:
        return self.n_planes

    def _count_start_segments(self) -> int | None:
        return self.n_groups if self.structure.groups else None

    def _get_start_pattern(self) -> NDArray[np.bool_] | None:
        return None if self._slopes is None else self._slopes >= 0

    def _get_known_slopes(self) -> Array | None:
        return None if self.structure.known_items is None else self._known_values[:, :-1]

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the levels, also within groups, and start from equal groups, and Γ = 0."""
        n_planes, features = self.n_planes, self.structure.features
        n_features, q = len(n_planes), self.n_components or 1
        if q >= n_features:
            raise FitError(
                f"{{components}} is {q}, but the dataset has only {n_features} features. Choose at "
                f"most {n_features - 1}.",
                parameter="components",
            )
        level_rows = count_level_rows(first, features)
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
        if self.slope_prior.startswith("lognormal"):
            weights = np.maximum(np.abs(weights), _LEAST_SLOPE)
        weights[constant] = 0.0
        params = make_params(weights, np.zeros(n_features))
        if not self._is_binary:
            params = replace(params, n_levels=n_planes + 1)
        for name, kind in zip(("guessing", "slipping"), self._asymptote_kinds, strict=True):
            if kind != "none":
                zeros: Any = {name: np.zeros(n_features)}
                params = replace(params, **zeros)
        if isinstance(first, MeasuredCounts):
            check_numbers(first, features)
            scales = np.sqrt(first.squares / first.number_weights)
            # One row of outliers can make correlations larger than the variances allow.
            explained = (weights[n_planes == 0] ** 2).sum(axis=1)
            unique = np.maximum(1.0 - explained, MIN_DEVIATION**2)
            params = replace(params, means=first.means, scales=scales, deviations=np.sqrt(unique))
        counts = np.concatenate(level_rows)
        by_group = (
            count_group_level_rows(first, features) if self.structure.groups else counts[None]
        )
        auxiliary = {
            "constant": constant,
            "diverging": np.zeros(0, np.int64),
            "level_counts": counts,
            "group_level_counts": by_group,
            "seed": seed,
            "n_rows": np.array(first.n_rows),
            "weight": np.array(first.weight),
            "is_complete": np.array(first.is_complete),
            "has_sampling_weights": np.array(first.has_sampling_weights),
        }
        warnings: list[FitWarning] = []
        if constant.size:
            text = "constant features, pinned at their margins: {features}"
            warnings.append(FitWarning(text, tuple(constant.tolist())))
        if not self._is_binary:
            estimated = [
                np.ones(len(rows)) if is_known else rows
                for rows, is_known in zip(level_rows, self._are_items_known, strict=True)
            ]
            warnings += make_empty_level_warnings(estimated, "these levels count as improbable")
        params, own_warnings = self._add_structure(first, params, auxiliary)
        state = FitState(params, auxiliary=auxiliary, warnings=tuple(warnings))
        state = state.with_feature_names(self.structure.feature_names).with_warnings(own_warnings)
        held_out = HELD_OUT_SHARE if self.n_components is None else 0.0
        state = self._begin_stage(state, weights, held_out, "quadrature")
        own = self.structure.covariates
        return state if own is None else limit_covariates(state, own)

    def _add_structure(
        self, first: FeatureCounts, params: LatentTraitParams, auxiliary: Arrays
    ) -> tuple[LatentTraitParams, list[FitWarning]]:
        """Check known items, pattern and groups against the data, and add them to parameters."""
        constant, warnings = auxiliary["constant"], []
        if (known := self.structure.known_items) is not None:
            self._check_known_items(standardize_forms(known, params.means, params.scales), first)
            params = replace(params, is_known=~np.isnan(known))
        if constant.size and self.structure.pattern is not None:
            varying = self.structure.pattern.without_loadings(constant)
            check_identification(varying, self.structure.feature_names, self.correlations == "free")
        if self.structure.groups:
            self._check_own_offsets(auxiliary["group_level_counts"], constant)
            if not self._is_binary:
                warnings += self._warn_about_empty_levels(auxiliary["group_level_counts"])
            params = replace(params, segments=first.segments, segment_rows=first.rows)
        if (own := self.structure.covariates) is not None:
            center = np.array(own.means)
            if self._trait_design.origin is None:
                center[:] = 0.0
            coefficients = np.zeros((len(center), params.weights.shape[1]))
            params = replace(params, coefficients=coefficients, covariate_center=center)
            warnings += own.make_warnings()
        return params, warnings

    def _check_known_items(self, items: Array, first: FeatureCounts) -> None:
        names, counts = (
            self.structure.feature_names,
            count_level_rows(first, self.structure.features),
        )
        if self._is_binary:
            check_known_answers(items, *np.transpose([(own.sum(), own[1]) for own in counts]))
            return
        is_graded = self.items == "graded"
        check_known_levels(items, self.n_planes, is_graded, np.concatenate(counts), names)

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
                    self._name_items([item]),
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

    def _begin_stage(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> FitState:
        """Start a stage with these weights; offsets are those before, or follow from margins."""
        counts = state.auxiliary["level_counts"]
        forms = make_first_forms(state.params, weights, counts, self.n_planes, self.items)
        if self.has_asymptotes:
            forms = self._add_first_asymptotes(forms)
        q = weights.shape[1]
        axes = {"rotated": weights, "axes": np.eye(q), "component_correlation": np.eye(q)}
        params = replace(state.params, weights=weights, **axes)
        mean, covariance = np.zeros((self.n_groups, q)), np.tile(np.eye(q), (self.n_groups, 1, 1))
        design = self._get_design(state.auxiliary, params)
        params = self._with_forms(
            design, params, np.tile(forms, (self.n_groups, 1, 1)), mean, covariance
        )
        working = {"held_out": np.array(held_out)}
        return self._choose_nodes(replace(state, params=params, working=working), _STRETCH)

    def _add_first_asymptotes(self, forms: Array) -> Array:
        """Return forms with asymptotes, and offsets with which items have the margins of before."""
        forms = forms[: len(self.n_planes)]
        g, s = starts = [choose_first_asymptote(self, name) for name in ("guessing", "slipping")]
        share = np.clip((expit(forms[:, -1]) - g) / (1 - s - g), 0.05, 0.95)
        further = np.zeros((2 * len(forms), forms.shape[1]))
        further[:, -1] = np.tile(to_logits(np.array(starts)), len(forms))
        return np.vstack([np.column_stack([forms[:, :-1], logit(share)]), further])

    def _with_forms(
        self,
        design: FitDesign,
        params: LatentTraitParams,
        forms: Array,
        mean: Array,
        covariance: Array,
    ) -> LatentTraitParams:
        """Return the parameters with the nearest forms that the design allows, and traits."""
        forms = design.forms.fill(design.forms.collect(forms)).reshape(forms.shape)
        return self._with_groups(params, forms, mean, covariance)

    def _with_groups(
        self, params: LatentTraitParams, forms: Array, mean: Array, covariance: Array
    ) -> LatentTraitParams:
        """Return the parameters with forms of items, (n_groups, n_forms, q + 1), and traits."""
        groups = [
            with_forms(params.select_items(group), own, self.items)
            for group, own in enumerate(forms)
        ]
        first = {name: getattr(groups[0], name) for name in ITEM_ARRAYS}
        params = replace(params, **first)
        if self._has_structure:
            params = replace(params, trait_mean=mean, trait_covariance=covariance)
        if params.segments is None:
            return params
        by_group = {
            f"group_{name}": np.stack([getattr(own, name) for own in groups])
            for name in ITEM_ARRAYS
            if first[name] is not None
        }
        return replace(params, **by_group)

    def _choose_nodes(self, state: FitState, stretch: float) -> FitState:
        """Begin a stage with nodes that resolve the items, their distances times `stretch`."""
        params = state.params
        if self._blocks is not None:
            loads: Any = {
                "loads": self._get_start_pattern(),
                "stretch": np.array(_BIFACTOR_STRETCH),
            }
            return replace(state, working={**state.working, **loads})
        if self.has_asymptotes:
            nodes = self._make_even_nodes(params, _NODE_MARGIN)
            spacing = nodes.points[1, 0] - nodes.points[0, 0]
            n_nodes, distance = np.array(len(nodes.points)), np.array(spacing)
            shared = {**nodes._asdict(), "nodes_an_axis": n_nodes, "node_spacing": distance}
            return replace(state, working={**state.working, **shared})
        if self._is_binary:
            held_out = float(state.working["held_out"])
            working = self._make_working(state, params.weights, held_out, "quadrature")
            return replace(state, working={**state.working, **working})
        if self.nodes and self.n_planes.any():
            grid = NodeGrid(self.nodes, params.weights.shape[1])
            own = grid.make_working_state(self.mean_reach > 0)
            return replace(state, working={**state.working, **own})
        items = self._find_steepest_items(params, stretch)
        nodes, spacing = make_level_nodes(items, stretch, self.mean_reach)
        if not self.n_planes.any():  # rows are integrated exactly
            return replace(state, working={**state.working, **store_nodes(nodes, None)})
        own = {"spacing": np.array(spacing), "stretch": np.array(stretch)}
        return replace(
            state,
            working={**state.working, **store_nodes(nodes, spacing), **own},
            auxiliary={**state.auxiliary, "needed_spacing": np.array(spacing)},
        )

    def _make_even_nodes(self, params: LatentTraitParams, margin: float) -> Nodes:
        """Return the nodes of the group with the narrowest posteriors, for steeper slopes."""
        if self.nodes:
            return make_even_nodes(self.nodes)
        groups = (group.items for group in map(params.get_group, range(self.n_groups)))
        all_nodes = (list_shared_nodes(margin * w, margin * b) for w, b in groups)
        return max(all_nodes, key=lambda nodes: len(nodes.points))

    def _get_items(self, params: LatentTraitParams, group: int = 0) -> LevelItems:
        """Return the items as functions of the standard traits, which the nodes are of."""
        return params.get_group(group).standardize(params.get_level_items(self.items, group))

    def _stack_forms(self, params: LatentTraitParams) -> Array:
        """Return the forms of all groups as functions of x, (n_groups, n_forms, q + 1)."""
        return stack_forms(params, self.items, self.n_groups)

    def _list_group_items(self, params: LatentTraitParams) -> list[TraitItems]:
        return [params.get_group(group).items for group in range(self.n_groups)]

    def _find_steepest_items(self, params: LatentTraitParams, stretch: float) -> LevelItems:
        """Return the items of the group that needs the finest nodes."""
        groups = [self._get_items(params, group) for group in range(self.n_groups)]
        return min(groups, key=lambda items: choose_level_lattice(items, stretch).spacing)

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
        return super().get_convergence_criterion(state)

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit with items of the same kind, on the axes of its last pass."""
        traits, q, axes = self._trait_design, params.weights.shape[1], params.axes
        without = replace(params, coefficients=None)
        groups = [without.get_group(group) for group in range(self.n_groups)]
        covariance = np.stack([axes @ group.root @ group.root.T @ axes.T for group in groups])
        if traits.is_orthogonal:
            covariance = covariance * np.eye(q)
        has_correlation = traits.has_free_correlation[:, None, None]
        other = np.where(has_correlation, convert_to_correlation(covariance), np.eye(q))
        covariance = np.where(traits.has_free_covariance[:, None, None], covariance, other)
        mean = np.stack([group.mean for group in groups]) @ axes.T
        mean = np.where(traits.has_free_mean[:, None], mean, 0.0)
        selected = [params.select_items(group) for group in range(self.n_groups)]
        forms = np.stack([convert_forms(own, state.params, self.items) for own in selected])
        if self.has_asymptotes:
            forms = np.stack([self._start_asymptotes(own) for own in forms])
        design = self._get_design(state.auxiliary, params)
        own = self._with_forms(design, state.params, forms, mean, covariance)
        if params.coefficients is not None and own.coefficients is not None:
            own = replace(own, coefficients=params.coefficients @ axes.T)
        limit = {k: v for k, v in state.working.items() if k == "max_covariate"}
        working = {"held_out": np.array(0.0), **limit}
        state = self._choose_nodes(
            replace(state, params=own, working=working), _LAST_STRETCH.get(q, 1.0)
        )
        state = replace(state, working={**state.working, **limit})
        return use_last_lattice(state) if self._is_binary else state

    def _start_asymptotes(self, forms: Array) -> Array:
        """Return forms of an earlier fit, and asymptotes where it had none."""
        n = len(self.n_planes)
        first = self._add_first_asymptotes(forms)
        if len(forms) == n:
            return first
        is_new = (forms[n:, -1] <= -MAX_LOGIT)[:, None]
        return np.vstack([forms[:n], np.where(is_new, first[n:], forms[n:])])

    def _get_group_index(self, block: BinaryBlock) -> int:
        return block.segment if self.structure.groups else 0

    def _get_rows(
        self, params: LatentTraitParams, block: BinaryBlock, max_covariate: float = math.inf
    ) -> RowRegression | None:
        """Return standardized covariates, limited to a size, and the priors of the rows of a block.

        None if all priors are standard normal.
        """
        if self._scale is None:
            return None
        group = self._get_group_index(block)
        return make_row_regression(params, group, block, self._scale, max_covariate)

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step of the block's group, and score the held-out rows."""
        run = partial(self._run_e_step, params, working)
        sums = run_e_step_with_held_out(run, float(working["held_out"]), block, rng)
        return replace(sums, values=self._place_values(sums.values, _BY_GROUP, block))

    def _run_e_step(self, params: LatentTraitParams, working: Arrays, block: BinaryBlock) -> Sums:
        regression = self._get_rows(params, block, float(working.get("max_covariate", np.inf)))
        items = self._get_items(params, self._get_group_index(block))
        return run_e_step(params, items, working, block, regression)

    def _place_values(
        self, values: Mapping[str, NDArray[Any]], names: Sequence[str], block: BinaryBlock
    ) -> dict[str, NDArray[Any]]:
        """Put the sums of some names at the place of the block's group, along a first axis."""
        placed = dict(values)
        for name in names:
            if name in values:
                placed[name] = np.zeros((self.n_groups, *values[name].shape))
                placed[name][self._get_group_index(block)] = values[name]
        return placed

    def objective(self, params: LatentTraitParams, statistics: Sums) -> float:
        """Return the mean log-likelihood per row plus the log prior of all parameters, nats."""
        log_prior = self._get_log_prior(params)
        if self.has_asymptotes:
            log_prior += self._sum_log_prior(params)
        return (statistics.objective + log_prior) / statistics.weight

    def _sum_log_prior(self, params: LatentTraitParams) -> float:
        """Return the log prior of items with asymptotes, without that of `prior_precision`."""
        is_constant = (params.weights == 0).all(axis=1)
        present = np.column_stack([np.ones(len(is_constant)), ~is_constant]).ravel()
        none = {"group_level_counts": np.tile(present, (self.n_groups, 1))}
        forms = self._get_design(none, params).forms
        free = forms.collect(self._stack_forms(params))
        return sum_log_prior(free, self._list_priors(forms))

    def _list_priors(self, forms: LevelDesign) -> list[PlacedPrior]:
        """Return the priors of items with asymptotes, and who has them."""
        places = {"slope": np.flatnonzero(forms.is_slope)}
        if not self.has_asymptotes:
            return []
        places |= {kind: forms.find_offsets(kind) for kind in ("offset", "guessing", "slipping")}
        named = {kind: self._get_prior(f"{kind}_prior") for kind in places}
        return [
            PlacedPrior(places[kind], prior)
            for kind, prior in named.items()
            if prior is not None and places[kind].size
        ]

    def _get_prior(self, name: str) -> ItemPrior | None:
        return parse_prior(getattr(self, name), name, PRIOR_FAMILIES[name])

    def _sum_squared_slopes(self, params: LatentTraitParams) -> float:
        """Return Σ w² of the slopes that have a prior."""
        return float((self._get_penalized_weights(params) ** 2).sum())

    def _get_penalized_weights(self, params: LatentTraitParams) -> Array:
        """Return the slopes that have a prior: equal ones have one together."""
        has_items = self.structure.known_items is not None
        if self.structure.groups or has_items or self.has_asymptotes:
            n_levels = int(count_item_levels(self.n_planes).sum())
            none = {"group_level_counts": np.ones((self.n_groups, n_levels))}
            design = self._get_design(none, params).forms
            return design.collect(self._stack_forms(params))[design.is_slope]
        if self._slopes is not None:
            loads = (self._slopes >= 0) & (params.weights != 0)
            _, places = np.unique(self._slopes[loads], return_index=True)
            return np.asarray(params.weights[loads][places])
        if params.level_weights is None:
            return params.weights
        return np.concatenate([params.level_weights, params.weights[self.n_planes == 0]])

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step for items, traits and coefficients; constant features keep theirs."""
        sums, own = statistics.values, self.structure.covariates
        if own is not None:
            if (restarted := find_contradiction(state, statistics, own)) is not None:
                return restarted
            check_covariates(self._trait_design, sums["covariate_products"], own.names)
        design = self._get_design(state.auxiliary, state.params)
        params, before = self._center(design, state.params)
        is_resolved = represents_all_scales(params, state.working, statistics)
        is_resolved |= not (self.nodes or self._is_binary)
        if not (self._has_structure or self.has_asymptotes):
            return self._update_without_structure(design, state, statistics, is_resolved)
        traits, forms = self._trait_design, self._stack_forms(params)
        if params.log_prior is None:
            forms = self._take_steps(design, params, state.working, sums)
        else:  # items stay when the scale of the traits is estimated
            traits = self._make_trait_design(0.0)
        mean, covariance = get_traits(params)
        coefficients = before
        if own is None:
            forms, mean, covariance = update_traits(
                traits, forms, mean, covariance, sums["moments"], is_resolved
            )
        else:
            regression = Regression(mean, covariance, before)
            if is_resolved or not traits.is_expanded:
                regression = estimate_regression(traits, regression, sums)
            mean, covariance, coefficients = regression
            if traits.is_expanded and is_resolved:
                root = factorize(covariance[:1])[0]
                coefficients = np.linalg.solve(root, coefficients.T).T
                forms, mean, covariance = absorb_traits(traits, forms, mean, covariance)
            coefficients = limit_crossing(before, coefficients, own)
        params = self._with_forms(design, params, forms, mean, covariance)
        return self._finish_update(design, state, self._uncenter(design, params, coefficients))

    def _update_without_structure(
        self, design: FitDesign, state: FitState, statistics: Sums, is_resolved: bool
    ) -> FitState:
        """Run the M-step if the traits are standard; a prior of slopes knows of their expansion."""
        params, sums = state.params, statistics.values
        moments, forms = sums["moments"][0], self._stack_forms(params)[0]
        q = params.weights.shape[1]
        if params.log_prior is not None:
            traits = estimate_trait_gaussian(moments, params.weights)
            moved = np.column_stack(traits.absorb(forms[:, :-1], forms[:, -1]))[None]
        else:
            matrix = np.eye(q + 1)
            if is_resolved:
                penalized = self._get_penalized_weights(params)
                traits = estimate_trait_gaussian(moments, penalized, self.prior_precision)
                forms = np.column_stack(traits.absorb(forms[:, :-1], forms[:, -1]))
                matrix = traits.standardization
            items = params.get_level_items(self.items).with_forms(forms)
            level_sums = LevelSums(*(sums[name][0] for name in LevelSums._fields))
            points = get_points(state.working, level_sums)
            group = ItemGroup.transform(items, points, level_sums, matrix)
            moved = take_level_steps(design.forms, [group], self.prior_precision)[None]
        standard = np.zeros((1, q)), np.eye(q)[None]
        return self._finish_update(design, state, self._with_groups(params, moved, *standard))

    def _take_steps(
        self, design: FitDesign, params: LatentTraitParams, working: Arrays, sums: Arrays
    ) -> Array:
        """Run the M-step for items, given the traits; return (n_groups, n_forms, q + 1)."""
        mean, covariance = get_traits(params)
        changes, groups = list_changes(mean, factorize(covariance)), []
        for group, change in enumerate(changes):
            own = LevelSums(*(sums[name][group] for name in LevelSums._fields))
            items, points = params.get_level_items(self.items, group), get_points(working, own)
            groups.append(ItemGroup.transform(items, points, own, change.T))
        priors = self._list_priors(design.forms)
        forms = take_level_steps(design.forms, groups, self.prior_precision, priors)
        return np.stack(np.split(forms, self.n_groups))

    def _finish_update(
        self, design: FitDesign, state: FitState, params: LatentTraitParams
    ) -> FitState:
        """Return the state with new parameters, and the features whose slopes diverge."""
        slopes = np.stack([items.weights for items in self._list_group_items(params)])
        is_diverging = np.linalg.norm(slopes, axis=2).max(axis=0) > MAX_SLOPE
        if self._is_binary:
            if (grid := grid_from_working(state.working)) is not None:
                is_diverging = np.any([grid.is_diverging(own) for own in slopes], axis=0)
            is_diverging[np.setdiff1d(np.flatnonzero(is_diverging), design.forms.free_items)] = (
                False
            )
        auxiliary = {**state.auxiliary, "diverging": np.flatnonzero(is_diverging)}
        if "spacing" in state.working:
            spacing = self._choose_spacing(params, float(state.working["stretch"]))
            auxiliary["needed_spacing"] = np.array(spacing)
        return replace(state, params=params, auxiliary=auxiliary)

    def _center(
        self, design: FitDesign, params: LatentTraitParams
    ) -> tuple[LatentTraitParams, Any]:
        """Return items and traits for standardized covariates, and their coefficients."""
        if design.scale is None:
            return params, None
        coefficients, center = get_coefficients(params)
        moved = self._move_origin(params, center @ coefficients)
        return moved, coefficients * design.scale[:, None]

    def _uncenter(
        self, design: FitDesign, params: LatentTraitParams, coefficients: Any
    ) -> LatentTraitParams:
        """Undo `_center`."""
        if design.scale is None:
            return params
        own = coefficients / design.scale[:, None]
        moved = self._move_origin(params, -(get_coefficients(params)[1] @ own))
        return replace(moved, coefficients=own)

    def _move_origin(self, params: LatentTraitParams, shift: Array) -> LatentTraitParams:
        mean, covariance = get_traits(params)
        forms, mean = move_origin(self._trait_design, self._stack_forms(params), mean, shift)
        return self._with_groups(params, forms, mean, covariance)

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return forms of items and, with a structure, means, Cholesky factors and coefficients.

        Those are for standardized covariates.
        """
        if not self._has_structure:
            forms: Array = self._stack_forms(params)[0]
            return forms
        own, coefficients = self._scale, np.zeros(0)
        if own is not None:
            coefficients, center = get_coefficients(params)
            params = self._move_origin(params, center @ coefficients)
            coefficients = coefficients * own[:, None]
        mean, covariance = get_traits(params)
        parts = (self._stack_forms(params), mean, factorize(covariance), coefficients)
        return np.concatenate([part.ravel() for part in parts])

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        if not self._has_structure:
            return with_forms(params, self._limit_forms(params, packed[None])[0], self.items)
        n, q, shape = self.n_groups, params.weights.shape[1], self._stack_forms(params).shape
        ends = np.cumsum([math.prod(shape), n * q, n * q * q])
        forms, mean, root, coefficients = np.split(packed.copy(), ends)
        n_standard = 0
        if self._trait_design.has_free_correlation.any():
            n_standard = n if self.invariance == "configural" else 1
        covariance = compose_covariances(root.reshape(n, q, q), n_standard)
        limited = self._limit_forms(params, forms.reshape(shape))
        params = self._with_groups(params, limited, mean.reshape(n, q), covariance)
        if (scale := self._scale) is None:
            return params
        own = coefficients.reshape(len(scale), q) / scale[:, None]
        moved = self._move_origin(params, -(get_coefficients(params)[1] @ own))
        return replace(moved, coefficients=own)

    def _limit_forms(self, params: LatentTraitParams, forms: Array) -> Array:
        """Keep extrapolated forms of items with asymptotes where the model is defined."""
        if not self.has_asymptotes:
            return forms
        n, forms = len(self.n_planes), forms.copy()
        if self.slope_prior.startswith("lognormal"):
            slopes, before = forms[:, :n, :-1], self._stack_forms(params)[:, :n, :-1]
            forms[:, :n, :-1] = np.where(slopes > 0, slopes, before)
        p = from_logits(forms[:, n:, -1]).reshape(len(forms), n, 2)
        total = p.sum(axis=2, keepdims=True)
        limited = to_logits(p * np.minimum(1.0, _MAX_SUM / np.maximum(total, _MAX_SUM)))
        forms[:, n:, -1] = limited.reshape(len(forms), -1)
        return forms

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with covariates as they are, more components, or finer nodes."""
        if "max_covariate" in state.working:
            working = {name: own for name, own in state.working.items() if name != "max_covariate"}
            working["limited_objective"] = np.array(statistics.objective)
            return replace(state, working=working)
        if self.has_asymptotes:
            if not self.nodes:
                nodes = self._make_even_nodes(state.params, 1.0)
                spacing = float(nodes.points[1, 0] - nodes.points[0, 0])
                if float(state.working["node_spacing"]) > _MAX_SPACING_RATIO * spacing:
                    return self._choose_nodes(state, 1.0)
            return self._begin_scaling(state, statistics)
        if self._is_binary:
            following = super().next_stage(state, statistics)
            if following is None or following.params.log_prior is not None:
                return following
            return replace(following, params=state.params)  # slopes are not scaled back
        if state.working["held_out"] > 0:
            return self._add_component(state, statistics)
        last = _LAST_STRETCH[state.params.weights.shape[1]]
        stretch = float(state.working.get("stretch", 0.0))
        if stretch > last or self._has_coarse_nodes(state, _MAX_SPACING_RATIO):
            return self._choose_nodes(state, min(stretch, last))
        if stretch and float(statistics.values["error"]) > MAX_INTEGRATION_ERROR:
            finer = self._choose_nodes(state, _FINER * stretch)
            if finer.working["spacing"] < 0.99 * state.working["spacing"]:
                return finer
        return self._begin_scaling(state, statistics)

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Turn the traits to the principal axes of the first group, or with positive slopes."""
        before = state.params
        params = choose_group_axes(before, self._trait_design, self.structure.pattern)
        if params.coefficients is not None:
            params = replace(params, coefficients=params.coefficients @ params.axes)
        if params.level_weights is None:
            return params
        # The only trait of nominal items may have another direction, in each group by itself.
        turned = {
            name: getattr(params, name) * _compare_signs(getattr(params, own), getattr(before, own))
            for name, own in (
                ("level_weights", "weights"),
                ("group_level_weights", "group_weights"),
            )
            if getattr(params, own) is not None
        }
        return replace(params, **turned)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Rotate the weights, add difficulties, diagnostics and warnings; describe the traits."""
        state = super().finish(state, statistics)
        state = state.with_feature_names(self.structure.feature_names)
        params, diagnostics = state.params, dict(state.diagnostics)
        if "spacing" in state.working:
            diagnostics["node_spacing"] = float(state.working["spacing"])
        has_thresholds = params.weights.shape[1] == 1 and self.items != "nominal"
        if has_thresholds and not self._is_binary:
            design = self._get_design(state.auxiliary, params).forms.select_group(0)
            offsets = map_to_thresholds(design, self.items) @ self._stack_forms(params)[0].ravel()
            slopes = np.repeat(params.weights[:, 0], self.n_planes)
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
        priors = [n for n in ("slope_prior", "offset_prior") if getattr(self, n) != "none"]
        if priors and self.structure.known_items is None:
            warnings = (*warnings, *warn_about_prior_scale(statistics, priors))
        if self.structure.pattern is not None:
            correlation = convert_to_correlation(get_traits(params)[1])[0]
            params = replace(params, component_correlation=correlation)
        if self._scale is not None:
            population, share = describe_population(params, statistics, self._scale)
            params, diagnostics["explained_variance"] = replace(params, **population), share
        return replace(state, params=params, diagnostics=diagnostics, warnings=warnings)

    def _find_bounded(self, params: LatentTraitParams) -> Indices:
        """Return the continuous features whose deviation is at its lower bound."""
        if params.deviations is None:
            return np.zeros(0, np.int64)
        is_bounded = params.deviations <= 1.0001 * MIN_DEVIATION
        return np.flatnonzero(self.n_planes == 0)[is_bounded]

    def _get_error_shape(self, params: LatentTraitParams) -> tuple[int, int]:
        n_features, q = params.weights.shape
        return n_features, q if self._blocks is None else len(self._blocks.general) + 1

    def _choose_form(self, state: FitState) -> str:
        return "sandwich" if state.auxiliary["has_sampling_weights"] else self.errors

    def begin_information_pass(self, state: FitState) -> Arrays | None:
        """Request the sums for standard errors and fit statistics."""
        if self.errors == "none":
            return None
        params, is_sampled = state.params, bool(state.auxiliary["has_sampling_weights"])
        design = self._get_design(state.auxiliary, params)
        n_free, n_rows = design.forms.n_free, int(state.auxiliary["n_rows"])
        form = self._choose_form(state)
        if self._is_binary:
            shape = self._get_error_shape(params)
            share = choose_row_share(n_rows, shape, form, is_sampled)
            if self.has_asymptotes:
                n_nodes = len(state.working["points"])
                share = choose_asymptote_row_share(n_rows, shape[0], n_nodes, form)
        else:
            n_products = count_score_products(self.n_planes, n_free, *state.working["points"].shape)
            share = choose_level_row_share(n_rows, n_free, n_products, form)
        if is_sampled:  # scores are summed by cluster
            share = 1.0
        further = {name: state.auxiliary[name] for name in ("level_counts", "group_level_counts")}
        if n_free > MAX_PARAMETERS:
            share = min(1.0, MAX_ROWS / max(n_rows, 1))
            none = np.zeros((len(design.forms.constant), 0))
            is_possible = not self._explain_missing_errors(state)
            further["directions"] = list_directions(design, params).scales if is_possible else none
        return {**state.working, "share": np.array(share), **further}

    def _explain_missing_errors(self, state: FitState) -> str:
        """Return why there are no standard errors of many parameters; empty if there are."""
        if state.auxiliary["has_sampling_weights"]:
            return "sampling weights"
        has_several = state.params.weights.shape[1] > 1
        if has_several and self.n_groups > 1 and self._trait_design.is_rotatable:
            # The rows do not inform about rotations, and errors by item would take noise for that.
            return "groups with several traits"
        if self._blocks is not None:
            return "a bifactor pattern"
        if self.has_asymptotes:
            return "guessing or slipping"
        return "" if self._scale is None else "covariates"

    @property
    def _missing_fit_reason(self) -> str:
        """Why C₂ and S-X² are not defined; empty if they are."""
        has_groups = bool(self.structure.groups) or self.structure.known_items is not None
        if has_groups or (self._is_binary and self._has_structure):
            return NOT_WITH_STRUCTURE
        return "some items are continuous" if self._has_continuous else ""

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters, the residuals and the score."""
        group, regression = self._get_group_index(block), self._get_rows(params, block)
        design, items = self._get_design(working, params), self._get_items(params, group)
        jacobian = differentiate_block(design, params, group)
        is_reversed = None if self._missing_fit_reason else find_reversed_items(params.weights)
        sums = sum_information(
            params, items, working, block, rng, jacobian, regression, is_reversed
        )
        if not (self._has_structure or self.has_asymptotes):
            return sums
        own = self.summarize(params, working, block, rng).values
        level_sums = LevelSums(*(own[name][group] for name in LevelSums._fields))
        points = get_points(working, level_sums)
        values = {**sums.values, "score": sum_form_gradient(items, points, level_sums)}
        values |= {name: own[name] for name in _COVARIATE_SUMS if name in own}
        if self.structure.known_items is not None:
            shift = sum_shift_scores(items, points, level_sums)
            values["shift_score"], values["shift_information"] = shift
        if self.structure.pattern is not None:
            values |= convert_code_moments(values, params.get_group(group).root)
        by_group = ["score", *(("curvature", "item_variance") if "directions" in working else ())]
        return replace(sums, values=self._place_values(values, by_group, block))

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, likelihood and fit statistics."""
        design, params = self._get_design(state.auxiliary, state.params), state.params
        params = replace(params, **compute_residual_fit(statistics))
        rank, items = design.count_parameters(), params.get_level_items(self.items)
        is_sampled = bool(state.auxiliary["has_sampling_weights"])
        found = compute_likelihood_statistics(items, statistics, rank, is_sampled)
        if reason := self._missing_fit_reason:
            found |= dict.fromkeys(("m2_missing", "s_x2_missing"), reason)
        else:
            model = self._select_fitted_items(design, state)
            is_reversed = find_reversed_items(params.weights)
            params = replace(params, **compute_item_fit(model, statistics, is_reversed))
            found |= compute_fit_statistics(model, statistics, rank, is_sampled)
        if self.has_asymptotes:
            found["log_prior"] = self._sum_log_prior(params) + self._get_log_prior(params)
        diagnostics = {**state.diagnostics, "fit_statistics": found}
        state = replace(state, params=params, diagnostics=diagnostics)
        state = self._add_all_errors(design, state, statistics)
        return self._describe_structure(state, statistics)

    def _select_fitted_items(self, design: FitDesign, state: FitState) -> FittedItems:
        """Return the items that vary in the data, as fit statistics take them."""
        nodes, params = nodes_from_working(state.working), state.params
        assert nodes is not None
        jacobian, n_own = differentiate_forms(design, params), design.forms.n_free
        if self.has_asymptotes:  # those that all items share come last
            rows = place_asymptotes(len(self.n_planes), design.forms.n_components)
            asymptotes = [design.forms.find_offsets(name) for name in ("guessing", "slipping")]
            is_shared = np.isin(np.arange(n_own), np.concatenate(asymptotes))
            is_shared &= design.forms.is_common
            order = np.argsort(is_shared, kind="stable")
            jacobian, n_own = jacobian[rows.ravel()][:, order], int((~is_shared).sum())
        return FittedItems.from_jacobian(
            jacobian,
            self._get_items(params),
            nodes,
            state.auxiliary["level_counts"],
            n_own,
            list_constraints(design, params) if self._has_structure else None,
        )

    def _add_all_errors(self, design: FitDesign, state: FitState, statistics: Sums) -> FitState:
        form = self._choose_form(state)
        if design.forms.n_free > MAX_PARAMETERS:
            if reason := self._explain_missing_errors(state):
                text = f"no standard errors: more than {MAX_PARAMETERS} parameters and {reason}"
                return state.with_warnings([FitWarning(text)])
            form = "louis"
        state = replace(state, diagnostics={**state.diagnostics, "errors": form})
        bounded = self._find_bounded(state.params)
        left_out = np.union1d(state.auxiliary["diverging"], bounded)
        curvature = self._compute_prior_curvature(design.forms, state.params)
        found = invert(design, state.params, statistics, form, curvature, left_out)
        arrays, unknown = collect_errors(design, state.params, found, left_out)
        warnings = state.warnings
        if self.has_asymptotes:
            arrays, own_warnings = self._check_asymptotes(design.forms, state.params, arrays)
            warnings = (*warnings, *own_warnings)
        if unknown.size:
            text = "the data do not determine these features' parameters; no standard errors: "
            text += "{features}"
            warnings = (*warnings, FitWarning(text, self._name_items(unknown)))
        params = replace(state.params, **arrays)
        names = self.structure.feature_names
        warnings = (*warnings, *warn_about_reversed_items(params, names))
        return replace(state, params=params, warnings=warnings)

    def _compute_prior_curvature(self, forms: LevelDesign, params: LatentTraitParams) -> Array:
        """Return minus the second derivatives of the log prior, (n_free,).

        Asymptotes at 0 without a prior are given one, so that they count as known: otherwise no
        parameter of their items would have an error.
        """
        curvature = self._get_precision(params) * forms.n_priors
        if not self.has_asymptotes:
            return curvature
        free = forms.collect(self._stack_forms(params))
        curvature = curvature + differentiate_log_prior(free, self._list_priors(forms))[1]
        is_asymptote = np.zeros(forms.n_free, np.bool_)
        for name in ("guessing", "slipping"):
            is_asymptote[forms.find_offsets(name)] = True
        is_at_boundary = is_asymptote & (curvature == 0) & (expit(free) < BOUNDARY)
        return np.where(is_at_boundary, 1.0, curvature)

    def _check_asymptotes(
        self, forms: LevelDesign, params: LatentTraitParams, errors: dict[str, Array]
    ) -> tuple[dict[str, Array], list[FitWarning]]:
        """Return errors without those of asymptotes of 0 that have no prior, and warnings."""
        errors, warnings, n = dict(errors), [], len(self.n_planes)
        is_known = forms.select_group(0).is_known.reshape(3 * n, -1)[n:, -1].reshape(n, 2)
        for name, is_fixed in zip(("guessing", "slipping"), is_known.T, strict=True):
            if getattr(params, name) is None or self._get_prior(f"{name}_prior") is not None:
                continue
            for prefix in ("", "group_"):
                values, own = (
                    getattr(params, f"{prefix}{name}"),
                    errors.get(f"{prefix}{name}_error"),
                )
                if own is not None:
                    is_zero = (values < BOUNDARY) & ~is_fixed
                    errors[f"{prefix}{name}_error"] = np.where(is_zero, np.nan, own)
            if not is_fixed.all():
                found: Any = {f"{name}_error": errors[f"{name}_error"]}
                own_params = replace(params, **found)
                warnings += warn_about_asymptotes(own_params, name, ~is_fixed)
        return errors, warnings

    def _describe_structure(self, state: FitState, statistics: Sums) -> FitState:
        """Warn about known items, and describe the traits of a fit without groups."""
        has_items, groups = self.structure.known_items is not None, self.structure.groups
        if has_items:
            values, is_known = statistics.values, ~np.isnan(self._known_values[:, -1])
            shift = values["shift_score"], values["shift_information"]
            warnings = warn_about_known_offsets(*shift, is_known, self.structure.feature_names)
            state = state.with_warnings(warnings)
        found = dict(state.diagnostics["fit_statistics"])
        if groups or has_items or self._scale is not None:
            found.pop("marginal_reliability", None)  # it is for standard normal traits
        if not groups and self._has_structure:
            found |= describe_traits(state.params)
        return replace(state, diagnostics={**state.diagnostics, "fit_statistics": found})


def get_points(working: Arrays, sums: LevelSums) -> Array:
    """Return the nodes of these sums, (n_nodes, q); none if they are those of other integrators."""
    if sums.ones.shape[-1]:
        return np.asarray(working["points"])
    return np.zeros((0, sums.slopes.shape[-1] - 1))


def convert_code_moments(sums: Mapping[str, NDArray[Any]], root: Array) -> dict[str, Array]:
    """Convert sums of the codes of u to those of the traits x = L u."""
    return {
        "codes": root @ sums["codes"],
        "codes_squared": root @ sums["codes_squared"] @ root.T,
        "codes_variance": root @ sums["codes_variance"] @ root.T,
    }


def _compare_signs(weights: Array, before: Array) -> Array:
    """Return −1 where weights, (…, n_features, 1), were reversed and 1 elsewhere, (…, 1, 1)."""
    product = (weights * before).sum(axis=(-2, -1), keepdims=True)
    return np.where(product < 0, -1.0, 1.0)
