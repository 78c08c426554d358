"""The latent-trait model with a loading pattern and items of several levels, or continuous.

Model: that of `levels.model` with x ~ N(0, R). The pattern sets slopes to 0, or equal, and so fixes
the axes. R are the correlations of the traits; they are estimated, or 0.

E-step: with R = L Lᵀ, x = L u and u ~ N(0, I), the linear forms of items are

    a_j·x + d_j = (Lᵀ a_j)·u + d_j,

so the E-step is that of the model without a pattern, at other slopes, on nodes u_l.

M-step: that of the model without a pattern for all slopes and offsets, at the points L u_l, and the
moments of x for R. See `latent_trait.confirmatory` for the expansion by scales of the traits.

Standard errors: as in `group_errors`, with the free slopes and offsets φ and the entries of L as
parameters, and L with rows of length 1. With v the slopes and offsets of forms as functions of u,
and s the score in them, the observed information is

    Jᵀ I J − Σ_k s_k ∂²v_k / ∂φ ∂L,   J = (∂v / ∂φ, ∂v / ∂L).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.models.latent_trait.confirmatory import (
    START_SLOPE,
    START_SPREAD,
    adapt_to_pattern,
    choose_signs,
    convert_code_moments,
    describe_traits,
    get_traits,
)
from pipeline.models.latent_trait.em import LatentTraitParams, represents_all_scales
from pipeline.models.latent_trait.group_design import (
    GroupDesign,
    compose_covariances,
    convert_to_correlation,
    factorize,
    has_equal_slopes_across_traits,
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
from pipeline.models.latent_trait.levels.design import LevelDesign, make_level_design
from pipeline.models.latent_trait.levels.model import LAST_STRETCH, OrdinalTrait
from pipeline.models.latent_trait.levels.params import Matrix, with_forms
from pipeline.models.latent_trait.levels.step import take_level_steps
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.loading_pattern import LoadingPattern
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.categories.scores import LevelSums, sum_form_gradient
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ConfirmatoryOrdinalTrait(OrdinalTrait):
    """The latent-trait model with a loading pattern and items of several levels, or continuous."""

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add the features and the pattern.

        Raises
        ------
        FitError
            If the settings or the structure cannot be combined with it, or the pattern does not
            identify the slopes.
        """
        assert structure.pattern is not None
        if (q := len(structure.pattern.traits)) > MAX_COMPONENTS:
            raise FitError(
                f"{{pattern}} has {q} traits, but features that have several levels or are "
                f"continuous take at most {MAX_COMPONENTS}. Leave out some of them, or cut the "
                "features in two by {cut=NAME>=VALUE}.",
                parameter="pattern",
            )
        if model.items == "nominal":
            raise FitError(
                "Nominal items have a slope per level, which {pattern} cannot describe. Leave it "
                "out, or choose graded or partial-credit items.",
                parameter="pattern",
            )
        for name, is_given in (
            ("group", bool(structure.groups)),
            ("covariates", structure.covariates is not None),
        ):
            if is_given:
                raise FitError(
                    f"{{{name}}} cannot be combined with {{pattern}} for features that have "
                    "several levels or are continuous yet. Leave out one of them.",
                    parameter=name,
                )
        model = adapt_to_pattern(model, structure, structure.pattern)
        if model.items == "rating-scale":
            _check_rating_scale(structure.pattern, structure.features)
        return super().from_model(model, structure)

    @property
    def _slopes(self) -> Indices:
        """Number of each slope, (n_features, n_components), see `LoadingPattern.slopes`."""
        assert self.structure.pattern is not None
        return self.structure.pattern.slopes

    @cached_property
    def _trait_design(self) -> GroupDesign:
        """What is estimated of the distribution of the traits."""
        n_features, q = self._slopes.shape
        return make_group_design(
            1,
            np.full((n_features, q + 1), np.nan),
            np.empty(0, np.int64),
            self.invariance,
            self.traits,
            equal_slopes=False,
            prior_precision=self.prior_precision,
            slopes=self._slopes,
            is_correlated=self.correlations == "free",
        )

    def _make_design(self, counts: Array, n_components: int) -> LevelDesign:
        return make_level_design(
            counts, self.n_planes, n_components, self.items, False, self._slopes
        )

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the levels, and that the items that vary identify the slopes."""
        state = super().initialize(first, rng)
        if (constant := state.auxiliary["constant"]).size:
            assert self.structure.pattern is not None
            varying = self.structure.pattern.without_loadings(constant)
            check_identification(varying, self.structure.feature_names, self.correlations == "free")
        return state

    def _begin_stage(
        self, state: FitState, weights: Array, held_out: float, estimator: str
    ) -> FitState:
        """Start with positive slopes and uncorrelated traits."""
        weights = np.where(weights == 0, 0.0, START_SLOPE + START_SPREAD * weights)
        state = super()._begin_stage(state, weights, held_out, estimator)
        covariance = np.eye(weights.shape[1])[None]
        return replace(state, params=_with_correlations(state.params, covariance))

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit with items of the same kind, and its correlations."""
        state = super().warm_start(state, params)
        _, covariance = get_traits(params)
        q = covariance.shape[1]
        correlation = np.eye(q)[None]
        if self._trait_design.has_free_correlation[0]:
            correlation = convert_to_correlation(params.axes @ covariance[:1] @ params.axes.T)
        state = replace(state, params=_with_correlations(state.params, correlation))
        return self._choose_nodes(state, LAST_STRETCH[q])

    def _get_penalized_weights(self, params: LatentTraitParams) -> Array:
        """Return the slopes that have a prior: equal ones have one together."""
        loads = (self._slopes >= 0) & (params.weights != 0)
        _, places = np.unique(self._slopes[loads], return_index=True)
        return np.asarray(params.weights[loads][places])

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step for items and traits; constant features keep their parameters."""
        design, params, sums = self._get_design(state), state.params, statistics.values
        mean, covariance = get_traits(params)
        forms = take_level_steps(
            design,
            params.get_level_items(self.items),
            state.working["points"] @ factorize(covariance)[0].T,
            LevelSums(sums["ones"], sums["mass"], sums["squares"]),
            self.prior_precision,
        )
        is_resolved = not self.nodes or represents_all_scales(params, state.working, statistics)
        moved, _, covariance = update_traits(
            self._trait_design, forms[None], mean, covariance, sums["moments"][None], is_resolved
        )
        if design.n_free:
            forms = design.fill(design.collect(moved[0]))
        params = with_forms(params, forms, self.items)
        return self._finish_update(state, _with_correlations(params, covariance))

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return weights and offsets of all forms, and the Cholesky factor, as a vector."""
        root = factorize(get_traits(params)[1])
        return np.concatenate([self._stack_forms(params).ravel(), root.ravel()])

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        q = params.weights.shape[1]
        forms, root = np.split(packed, [len(packed) - q * q])
        covariance = compose_covariances(root.reshape(1, q, q), n_standard=1)
        params = with_forms(params, forms.reshape(-1, q + 1), self.items)
        return _with_correlations(params, covariance)

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Return the parameters with positive sums of slopes, unless the signs are fixed."""
        params: LatentTraitParams = state.params
        is_fixed = has_equal_slopes_across_traits(self._slopes)
        return params if is_fixed else choose_signs(params)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Add difficulties, diagnostics and warnings; the traits keep their correlations."""
        state = super().finish(state, statistics)
        correlation = get_traits(state.params)[1][0]
        return replace(state, params=replace(state.params, component_correlation=correlation))

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum the information about the parameters, the residuals and the score."""
        sums = super().summarize_information(params, working, block, rng)
        own = self.summarize(params, working, block, rng).values
        node_sums = LevelSums(own["ones"], own["mass"], own["squares"])
        score = sum_form_gradient(self._get_items(params), working["points"], node_sums)
        codes = convert_code_moments(sums.values, params.get_group(0).root)
        return replace(sums, values={**sums.values, **codes, "score": score})

    def _place_traits(self, design: LevelDesign) -> TraitPlaces:
        return place_traits(self._trait_design, design.n_free)

    def _differentiate_forms(self, design: LevelDesign, params: LatentTraitParams) -> Matrix:
        """Return the derivatives of the items of u by φ and L, (n_forms (q + 1), p)."""
        places = self._place_traits(design)
        mean, covariance = get_traits(params)
        root, slopes = factorize(covariance), self._stack_forms(params)[:, :-1]
        to_u = scipy.sparse.kron(
            scipy.sparse.eye_array(len(slopes)), list_changes(mean, root)[0], format="csr"
        )
        n_forms, q = slopes.shape
        by_root = np.zeros((n_forms, q + 1, places.n_parameters - design.n_free))
        for m, a in zip(*np.nonzero(places.root[0] >= 0), strict=True):
            by_root[:, a, places.root[0, m, a] - design.n_free] = slopes[:, m]
        by_root = by_root.reshape(n_forms * (q + 1), -1)
        parts = [to_u @ design.matrix, scipy.sparse.csr_array(by_root)]
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts))

    def _count_parameters(self, design: LevelDesign) -> int:
        n_variances = design.n_components * int(self._trait_design.has_free_correlation[0])
        return self._place_traits(design).n_parameters - n_variances

    def _list_constraints(self, design: LevelDesign, params: LatentTraitParams) -> Array:
        """Return the gradients of the lengths of the rows of L, (n_constraints, p)."""
        root, places = factorize(get_traits(params)[1]), self._place_traits(design)
        constraints = list_variance_constraints(self._trait_design, places, root)
        return constraints.reshape(-1, places.n_parameters)

    def _sum_information(
        self, design: LevelDesign, state: FitState, statistics: Sums, form: str
    ) -> Array:
        """Return the information about φ and L, (p, p)."""
        information = super()._sum_information(design, state, statistics, form)
        if form == "crossproduct":
            return information
        score, params = statistics.values["score"], state.params
        constraints = self._list_constraints(design, params)
        slope = self._differentiate_forms(design, params).T @ score
        information[np.diag_indices_from(information)] += sum_multipliers(constraints, slope)
        return information - _sum_second_derivatives(design, self._place_traits(design), score)

    def _collect_errors(
        self,
        design: LevelDesign,
        state: FitState,
        covariance: Array,
        is_unknown: NDArray[np.bool_],
    ) -> tuple[dict[str, Array], Indices]:
        """Return arrays of standard errors, and the features that have none for lack of data."""
        own = slice(0, design.n_free)
        arrays, unknown = super()._collect_errors(
            design, state, covariance[own, own], is_unknown[own]
        )
        arrays["weights_error"][self._slopes < 0] = 0.0
        mean, correlation = get_traits(state.params)
        errors = compute_covariance_errors(
            self._trait_design,
            self._place_traits(design),
            factorize(correlation),
            covariance,
            is_unknown,
        )
        of_traits = {"trait_mean_error": np.zeros_like(mean), "trait_covariance_error": errors}
        return {**arrays, **of_traits}, unknown

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors, likelihood and fit statistics."""
        state = super().finish_information_pass(state, statistics)
        found = {**state.diagnostics["fit_statistics"], **describe_traits(state.params)}
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


def _with_correlations(params: LatentTraitParams, correlation: Array) -> LatentTraitParams:
    """Return the parameters with traits of mean 0 and these correlations, (1, q, q)."""
    mean, exact = np.zeros((1, correlation.shape[1])), correlation.copy()
    np.fill_diagonal(exact[0], 1.0)  # without rounding errors
    return replace(params, trait_mean=mean, trait_covariance=exact)


def _sum_second_derivatives(design: LevelDesign, places: TraitPlaces, score: Array) -> Array:
    """Return Σ_k s_k ∂²v_k / ∂φ ∂L, (p, p), given s, (n_forms (q + 1),).

    v_ja = Σ_m L_ma a_jm, so its derivative by L_ma is linear in the parameters of a_jm.
    """
    total = np.zeros((places.n_parameters,) * 2)
    width = design.n_components + 1
    by_form = score.reshape(-1, width)
    for m, a in zip(*np.nonzero(places.root[0] >= 0), strict=True):
        own = by_form[:, a] @ design.matrix[m::width]
        total[: design.n_free, places.root[0, m, a]] = own
    return np.asarray(total + total.T)
