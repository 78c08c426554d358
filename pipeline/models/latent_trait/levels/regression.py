"""The latent-trait model with covariates of rows, and items of several levels, or continuous.

Model: in group g, x_n ~ N(μ_g + Γᵀz_n, Σ_g) as in `latent_trait.latent_regression`, and items as in
`confirmatory`. With x = μ_g + L_g u, rows have the priors u ~ N(m_n, I) with m_n = L_g⁻¹ Γᵀ z_n, so
the nodes of all rows reach farther than without covariates.

The fit works with covariates of mean 0 and variance 1. Its parameters are for the covariates as
they are: μ_g and offsets hold where z = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.covariates import Covariates
from pipeline.executors.base import MapFunction
from pipeline.models.latent_trait.confirmatory import get_traits
from pipeline.models.latent_trait.em import LatentTraitParams, represents_all_scales
from pipeline.models.latent_trait.group_design import absorb_traits, factorize
from pipeline.models.latent_trait.latent_regression import (
    add_population,
    check_covariate_settings,
    check_covariates,
    check_shared_axes,
    end_limited_stage,
    find_contradiction,
    get_coefficients,
    limit_covariates,
    limit_crossing,
    make_row_regression,
)
from pipeline.models.latent_trait.levels.confirmatory import (
    ConfirmatoryOrdinalTrait,
    sum_second_derivatives,
)
from pipeline.models.latent_trait.levels.design import LevelDesign
from pipeline.models.latent_trait.levels.model import OrdinalTrait
from pipeline.models.latent_trait.levels.params import Matrix
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.regression_design import (
    Regression,
    estimate_regression,
    find_origin,
    move_origin,
)
from pipeline.models.latent_trait.regression_errors import (
    differentiate_theta,
    sum_theta_derivatives,
)
from pipeline.models.latent_trait.wide_errors import ItemCovariance
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.lattice_nodes import MAX_MEAN_REACH
from pipeline.numerics.logistic.trait_scores import RowRegression
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class OrdinalRegression(ConfirmatoryOrdinalTrait):
    """The latent-trait model of items with levels, or continuous, with covariates and groups."""

    mean_reach: ClassVar[float] = MAX_MEAN_REACH

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add a structure to it.

        Raises
        ------
        FitError
            If the settings cannot be combined with it.
        """
        check_covariate_settings(model, structure)
        adapted = super().from_model(model, structure)
        check_shared_axes(adapted._trait_design)
        return adapted

    @property
    def _covariates(self) -> Covariates:
        assert self.structure.covariates is not None
        return self.structure.covariates

    @property
    def _scale(self) -> Array:
        return np.array(self._covariates.deviations)

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the levels, and start from equal groups and coefficients of 0."""
        state, center = super()._start_from(first, loadings, seed), np.array(self._covariates.means)
        if find_origin(self._trait_design) is None:
            center[:] = 0.0
        coefficients = np.zeros((len(center), state.params.weights.shape[1]))
        params = replace(state.params, coefficients=coefficients, covariate_center=center)
        warnings = (*state.warnings, *self._covariates.make_warnings())
        return limit_covariates(replace(state, params=params, warnings=warnings), self._covariates)

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit, with or without groups and covariates."""
        started = super().warm_start(state, replace(params, coefficients=None))
        if params.coefficients is None:
            return started
        coefficients = params.coefficients @ params.axes.T
        return replace(started, params=replace(started.params, coefficients=coefficients))

    def _get_rows(
        self, params: LatentTraitParams, block: BinaryBlock, max_covariate: float = math.inf
    ) -> RowRegression:
        group = self._get_group_index(block)
        return make_row_regression(params, group, block, self._scale, max_covariate)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with covariates as they are, or more nodes."""
        unlimited = end_limited_stage(state, statistics)
        return super().next_stage(state, statistics) if unlimited is None else unlimited

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step for items, traits and coefficients."""
        if (restarted := find_contradiction(state, statistics, self._covariates)) is not None:
            return restarted
        sums = statistics.values
        check_covariates(self._trait_design, sums["covariate_products"], self._covariates.names)
        params, before = self._center(state.params)
        design = self._get_design(state.auxiliary, params)
        traits, forms = self._update_forms(design, params, state.working["points"], sums)
        regression = Regression(*get_traits(params), before)
        is_resolved = not self.nodes or represents_all_scales(params, state.working, statistics)
        if is_resolved or not traits.is_expanded:
            regression = estimate_regression(traits, regression, sums)
        mean, covariance, coefficients = regression
        if traits.is_expanded and is_resolved:
            root = factorize(covariance[:1])[0]
            coefficients = np.linalg.solve(root, coefficients.T).T
            forms, mean, covariance = absorb_traits(traits, forms, mean, covariance)
        coefficients = limit_crossing(before, coefficients, self._covariates)
        params = self._with_groups(params, self._apply_design(design, forms), mean, covariance)
        return self._finish_update(state, self._uncenter(params, coefficients))

    def _center(self, params: LatentTraitParams) -> tuple[LatentTraitParams, Array]:
        """Return items and traits for standardized covariates, and their coefficients."""
        coefficients, center = get_coefficients(params)
        return self._move_origin(params, center @ coefficients), coefficients * self._scale[:, None]

    def _uncenter(self, params: LatentTraitParams, coefficients: Array) -> LatentTraitParams:
        """Undo `_center`."""
        own = coefficients / self._scale[:, None]
        moved = self._move_origin(params, -(get_coefficients(params)[1] @ own))
        return replace(moved, coefficients=own)

    def _move_origin(self, params: LatentTraitParams, shift: Array) -> LatentTraitParams:
        mean, covariance = get_traits(params)
        forms = np.stack([items.to_forms() for items in self._list_items(params)])
        forms, mean = move_origin(self._trait_design, forms, mean, shift)
        return self._with_groups(params, forms, mean, covariance)

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return parameters for standardized covariates as a vector."""
        centred, coefficients = self._center(params)
        return np.concatenate([super().pack_params(centred), coefficients.ravel()])

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        own, _ = get_coefficients(params)
        coefficients = packed[-own.size :].reshape(own.shape)
        centred = super().unpack_params(params, packed[: -own.size], weight)
        return self._uncenter(centred, coefficients)

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Turn the traits to the principal axes of the first group."""
        params = super().choose_axes(state)
        return replace(params, coefficients=get_coefficients(params)[0] @ params.axes)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Choose the axes, and describe the traits over the fitted rows."""
        return add_population(super().finish(state, statistics), statistics, self._scale)

    def _get_centred_regression(
        self, params: LatentTraitParams
    ) -> tuple[LatentTraitParams, Regression]:
        centred, coefficients = self._center(params)
        return centred, Regression(*get_traits(centred), coefficients)

    def _differentiate_group_forms(
        self, design: LevelDesign, params: LatentTraitParams, group: int
    ) -> Matrix:
        """Return J_g, with columns of 0 for Γ."""
        centred, regression = self._get_centred_regression(params)
        own = super()._differentiate_group_forms(design, centred, group)
        none = scipy.sparse.csr_array((own.shape[0], regression.coefficients.size))
        return scipy.sparse.csr_array(scipy.sparse.hstack([own, none]))

    def _differentiate_block_forms(
        self, design: LevelDesign, params: LatentTraitParams, block: BinaryBlock
    ) -> Matrix:
        """Return J_g of the block's group, and below it the derivatives of Θ_g."""
        group = self._get_group_index(block)
        _, regression = self._get_centred_regression(params)
        of_theta = differentiate_theta(self._place_traits(design), regression, group)
        of_forms = self._differentiate_group_forms(design, params, group)
        parts = [of_forms, scipy.sparse.csr_array(of_theta)]
        return scipy.sparse.csr_array(scipy.sparse.vstack(parts))

    @property
    def _n_coefficients(self) -> int:
        return len(self._covariates.names) * (self.n_components or 1)

    def _count_parameters(self, design: LevelDesign) -> int:
        return super()._count_parameters(design) + self._n_coefficients

    def _list_constraints(self, design: LevelDesign, params: LatentTraitParams) -> Array:
        constraints = super()._list_constraints(design, params)
        return np.pad(constraints, ((0, 0), (0, self._n_coefficients)))

    def _explain_missing_errors(self, state: FitState) -> str:
        return super()._explain_missing_errors(state) or "covariates"

    def _sum_corrections(
        self, design: LevelDesign, state: FitState, statistics: Sums, n_parameters: int
    ) -> Any:
        """Return what adds to the information about φ, μ_g, L_g and Γ, (p, p).

        The covariates are standardized.
        """
        places, values = self._place_traits(design), statistics.values
        second = sum_second_derivatives(design, places, values["score"]).toarray()
        _, regression = self._get_centred_regression(state.params)
        total = OrdinalTrait._sum_corrections(self, design, state, statistics, n_parameters)
        total = total - np.pad(second, (0, n_parameters - places.n_parameters))
        return total - sum_theta_derivatives(places, regression, values)

    def _collect_errors(
        self,
        design: LevelDesign,
        state: FitState,
        covariance: ItemCovariance,
        is_unknown: NDArray[np.bool_],
    ) -> tuple[dict[str, Array], Indices]:
        """Return arrays of standard errors, for the covariates as they are."""
        coefficients, _ = get_coefficients(state.params)
        n = self._place_traits(design).n_parameters
        moved = self._differentiate_origin(design, state.params)
        covariance = ItemCovariance.from_array(moved @ covariance.blocks @ moved.T)
        arrays, unknown = super()._collect_errors(
            design, state, covariance.take_first(n), is_unknown[:n]
        )
        variance = np.where(is_unknown, np.nan, np.diag(covariance.blocks))[n:]
        errors = np.sqrt(variance).reshape(coefficients.shape)
        return {**arrays, "coefficients_error": errors}, unknown

    def _differentiate_origin(self, design: LevelDesign, params: LatentTraitParams) -> Array:
        """Return the derivatives of all parameters by those for standardized covariates."""
        (coefficients, center), n = (
            get_coefficients(params),
            self._place_traits(design).n_parameters,
        )
        width, moved = design.n_components + 1, np.eye(n + coefficients.size)
        moved[n:, n:] = np.kron(np.diag(1 / self._scale), np.eye(design.n_components))
        if find_origin(self._trait_design) == "means":
            by_trait = n + np.arange(coefficients.size).reshape(coefficients.shape).T
            for place in self._place_traits(design).mean:
                moved[place[:, None], by_trait] = -center / self._scale
            return moved
        # d_j without covariates is d_j + a_j·shift minus a_j·shift.
        rows, shift = (
            design.matrix.toarray().reshape(-1, width, design.n_free),
            center @ coefficients,
        )
        changed = rows.copy()
        changed[:, -1] -= np.einsum("jmf,m->jf", rows[:, :-1], shift)
        moved[: design.n_free, : design.n_free] = design.collect_changes(
            changed.reshape(-1, design.n_free)
        )
        forms = np.concatenate([items.to_forms() for items in self._list_items(params)])
        by_coefficient = np.zeros((*forms.shape, coefficients.size))
        by_coefficient[:, -1] = -np.einsum(
            "c,jm->jcm", center / self._scale, forms[:, :-1]
        ).reshape(len(forms), -1)
        moved[: design.n_free, n:] = design.collect_changes(
            by_coefficient.reshape(-1, coefficients.size)
        )
        return moved
