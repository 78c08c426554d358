"""The latent-trait model with covariates of rows: latent regression.

Model: in group g, x_n ~ N(μ_g + Γᵀz_n, Σ_g), and items depend on x as in `confirmatory` (R. J.
Mislevy, "Exploiting auxiliary information about examinees in the estimation of item parameters",
Applied Psychological Measurement 11, 1987). Γ is common to all groups. The first group has μ = 0
and Σ = I, unless items are known.

E-step: with x = μ_g + L_g u, rows have the priors u ~ N(m_n, I) with m_n = L_g⁻¹ Γᵀ z_n.

M-step: Γ and all free μ_g follow from the normal equations of generalized least squares,
Σ_n (1, z_n)(1, z_n)ᵀ B Σ_g⁻¹ = Σ_n (1, z_n) ⟨x_n⟩ᵀ Σ_g⁻¹, then Σ_g from the residuals.

The fit works with covariates (z − c) / s of mean 0 and variance 1, as nodes and steps suit rows
near the mean best. Its parameters are those of the covariates as they are: μ_g and offsets hold
where z = 0.

=======  ==================  ============================
symbol   field               shape
=======  ==================  ============================
Γ        coefficients        (n_covariates, n_components)
s.e.     coefficients_error  (n_covariates, n_components)
c        covariate_center    (n_covariates,)
=======  ==================  ============================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.covariates import MAX_FIRST_COVARIATE, Covariates
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.models.latent_trait.confirmatory import (
    ConfirmatoryTrait,
    get_items,
    get_traits,
    with_groups,
)
from pipeline.models.latent_trait.em import (
    LatentTraitParams,
    e_step,
    represents_all_scales,
    sum_far_rows,
)
from pipeline.models.latent_trait.group_design import GroupDesign, absorb_traits, factorize
from pipeline.models.latent_trait.group_errors import GroupErrors
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.regression_design import (
    Regression,
    estimate_regression,
    find_origin,
    find_unidentified_covariate,
    move_origin,
)
from pipeline.models.latent_trait.regression_errors import (
    compute_regression_errors,
    differentiate_regression,
)
from pipeline.models.latent_trait.standard_errors import summarize_regression_scores
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.lattice_nodes import MAX_MEAN_REACH
from pipeline.numerics.logistic.trait_scores import RowRegression
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_BY_GROUP = ("covariate_codes", "covariate_products")
_MAX_CONTRADICTION = 300.0  # nats that rows of high leverage may cost


class LatentRegression(ConfirmatoryTrait):
    """Hyperparameters of the latent-trait model, and the structure with the covariates."""

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
        return super().from_model(model, structure)

    @property
    def _covariates(self) -> Covariates:
        assert self.structure.covariates is not None
        return self.structure.covariates

    @property
    def _scale(self) -> Array:
        return np.array(self._covariates.deviations)

    def _get_design(self, state: FitState) -> GroupDesign:
        design = super()._get_design(state)
        check_shared_axes(design)
        return design

    def _start_from(
        self, first: FeatureCounts, loadings: Array, seed: NDArray[np.int64]
    ) -> FitState:
        """Check the margins, and start from equal groups and coefficients of 0."""
        state = super()._start_from(first, loadings, seed)
        center = np.array(self._covariates.means)
        if find_origin(self._get_design(state)) is None:
            center[:] = 0.0
        coefficients = np.zeros((len(center), state.params.weights.shape[1]))
        params = replace(state.params, coefficients=coefficients, covariate_center=center)
        warnings = (*state.warnings, *self._covariates.make_warnings())
        return limit_covariates(replace(state, params=params, warnings=warnings), self._covariates)

    def warm_start(self, state: FitState, params: LatentTraitParams) -> FitState:
        """Start from an earlier fit, with or without groups and covariates."""
        own = state.params
        coefficients = own.coefficients if params.coefficients is None else params.coefficients
        started = super().warm_start(state, replace(params, coefficients=None))
        return replace(started, params=replace(started.params, coefficients=coefficients))

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with more nodes if they are needed."""
        unlimited = end_limited_stage(state, statistics)
        return super().next_stage(state, statistics) if unlimited is None else unlimited

    def _get_rows(
        self, params: LatentTraitParams, block: BinaryBlock, max_covariate: float = math.inf
    ) -> RowRegression:
        """Return standardized covariates, limited to a size, and the priors of a block's rows."""
        group = self._get_group_index(block)
        return make_row_regression(params, group, block, self._scale, max_covariate)

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step of the block's group."""
        sums = super().summarize(params, working, block, rng)
        return replace(sums, values=self._place_values(dict(sums.values), _BY_GROUP, block))

    def _run_e_step(self, params: LatentTraitParams, working: Arrays, block: BinaryBlock) -> Sums:
        own = self._get_group_params(params, block)
        rows = self._get_rows(params, block, float(working.get("max_covariate", np.inf)))
        is_far = np.asarray((np.abs(rows.means) > MAX_MEAN_REACH).any(axis=1))
        if not is_far.any():
            return e_step(own, working, block, rows, may_leave_nodes=True)
        near, far = (block.take_rows(np.flatnonzero(part)) for part in (~is_far, is_far))
        sums = e_step(own, working, near, rows.take_rows(~is_far), may_leave_nodes=True)
        others = sum_far_rows(own, far, rows.take_rows(is_far))
        return replace(
            sums,
            n_rows=sums.n_rows + others.n_rows,
            weight=sums.weight + others.weight,
            objective=sums.objective + others.objective,
            values={name: v + others.values.get(name, 0) for name, v in sums.values.items()},
        )

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step for items, traits and coefficients."""
        if (restarted := find_contradiction(state, statistics, self._covariates)) is not None:
            return restarted
        design, values = self._get_design(state), statistics.values
        check_covariates(design, values["covariate_products"], self._covariates.names)
        params, before = self._center(design, state.params)
        design, items = self._update_items(replace(state, params=params), statistics)
        regression = Regression(*get_traits(params), before)
        is_resolved = represents_all_scales(params, state.working, statistics)
        if is_resolved or not design.is_expanded:
            regression = estimate_regression(design, regression, values)
        mean, covariance, coefficients = regression
        if design.is_expanded and is_resolved:
            root = factorize(covariance[:1])[0]
            coefficients = np.linalg.solve(root, coefficients.T).T
            items, mean, covariance = absorb_traits(design, items, mean, covariance)
            items = design.fill(design.collect(items))
        coefficients = limit_crossing(before, coefficients, self._covariates)
        params = with_groups(params, items, mean, covariance)
        return self._finish_update(design, state, self._uncenter(design, params, coefficients))

    def _center(
        self, design: GroupDesign, params: LatentTraitParams
    ) -> tuple[LatentTraitParams, Array]:
        """Return items and traits for standardized covariates, and their coefficients."""
        (coefficients, center), (mean, covariance) = get_coefficients(params), get_traits(params)
        items, mean = move_origin(design, get_items(params), mean, center @ coefficients)
        centred = with_groups(params, items, mean, covariance)
        return centred, coefficients * self._scale[:, None]

    def _uncenter(
        self, design: GroupDesign, params: LatentTraitParams, coefficients: Array
    ) -> LatentTraitParams:
        """Undo `_center`."""
        own, (mean, covariance) = coefficients / self._scale[:, None], get_traits(params)
        shift = -(get_coefficients(params)[1] @ own)
        items, mean = move_origin(design, get_items(params), mean, shift)
        return replace(with_groups(params, items, mean, covariance), coefficients=own)

    def _make_packing_design(self, params: LatentTraitParams) -> GroupDesign:
        """Return the design without margins, which packing does not need."""
        none = np.empty(0, np.int64)
        return self._make_design(none, np.zeros(len(params.offsets)))

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return parameters for standardized covariates as a vector."""
        centred, coefficients = self._center(self._make_packing_design(params), params)
        return np.concatenate([super().pack_params(centred), coefficients.ravel()])

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        own, _ = get_coefficients(params)
        coefficients = packed[-own.size :].reshape(own.shape)
        centred = super().unpack_params(params, packed[: -own.size], weight)
        return self._uncenter(self._make_packing_design(params), centred, coefficients)

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Turn the traits to the principal axes of the first group, unless slopes are known."""
        params = super().choose_axes(state)
        if not self._get_design(state).is_rotatable:
            return params
        coefficients, _ = get_coefficients(params)
        return replace(params, coefficients=coefficients @ params.axes)

    def finish(self, state: FitState, statistics: Sums) -> FitState:
        """Choose the axes, and describe the traits over the fitted rows."""
        return add_population(super().finish(state, statistics), statistics, self._scale)

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum scores, information and residuals of the block's group."""
        summed = self.summarize(params, working, block, rng)
        own, rows = self._get_group_params(params, block), self._get_rows(params, block)
        share = float(working["share"])
        sums = summarize_regression_scores(own, share, block, rng, rows)
        root = params.get_group(self._get_group_index(block)).root
        sums = replace(sums, objective=summed.objective)
        sums = self._place_information(sums, summed.values["gradient"], root, block)
        by_group = {name: summed.values[name] for name in _BY_GROUP}
        return replace(sums, values={**sums.values, **by_group})

    def _count_parameters(self, design: GroupDesign) -> int:
        n_coefficients = len(self._covariates.names) * design.n_components
        return super()._count_parameters(design) + n_coefficients

    def _join_curvatures(self, values: Arrays) -> Array:
        q = values["covariate_codes"].shape[-1]
        return np.stack(
            [
                scipy.linalg.block_diag(*items, np.kron(products, np.eye(q)))
                for items, products in zip(
                    values["curvature"], values["covariate_curvature"], strict=True
                )
            ]
        )

    def _differentiate(self, design: GroupDesign, params: LatentTraitParams) -> list[Array]:
        centred, coefficients = self._center(design, params)
        regression = Regression(*get_traits(centred), coefficients)
        return differentiate_regression(design, get_items(centred), regression)

    def _compute_errors(
        self, design: GroupDesign, state: FitState, statistics: Sums, form: str
    ) -> GroupErrors:
        information, score, products = self._scale_information(design, state, statistics, form)
        centred, coefficients = self._center(design, state.params)
        return compute_regression_errors(
            design,
            get_items(centred),
            Regression(*get_traits(centred), coefficients),
            information,
            score,
            statistics.values,
            products,
            self._compute_prior_curvature(design, centred),
            self._scale,
            get_coefficients(state.params)[1] / self._scale,
        )


def get_coefficients(params: LatentTraitParams) -> tuple[Array, Array]:
    """Return Γ, (n_covariates, q), and the center of the covariates, (n_covariates,)."""
    assert params.coefficients is not None
    assert params.covariate_center is not None
    return params.coefficients, params.covariate_center


def check_covariate_settings(model: LatentTrait, structure: Structure) -> None:
    """Refuse settings and structures that cannot be combined with covariates."""
    for name, is_other in (
        ("guessing", model.guessing != "none"),
        ("slipping", model.slipping != "none"),
    ):
        if is_other:
            raise FitError(
                f"{{covariates}} cannot be combined with {{{name}}}. Leave out one of them.",
                parameter="covariates",
            )
    if structure.groups and model.invariance == "configural":
        raise FitError(
            "{covariates} cannot be combined with {invariance=configural}, as their "
            "coefficients need traits of one scale in all groups. Use {invariance=metric}.",
            parameter="covariates",
        )


def check_shared_axes(design: GroupDesign) -> None:
    """Refuse groups that have no item in common."""
    if not design.are_axes_shared:
        raise FitError(
            "{covariates} need items that all groups share. Name fewer items in {free}.",
            parameter="covariates",
        )


def check_covariates(design: GroupDesign, products: Array, names: Sequence[str]) -> None:
    """Refuse a covariate that groups and other covariates explain, given Σ_n ẑ ẑᵀ of the groups."""
    if (place := find_unidentified_covariate(design, products)) is not None:
        raise FitError(
            f"{{covariates}}: {names[place]} has hardly any differences "
            "within groups that other covariates do not explain. Leave it out.",
            parameter="covariates",
        )


def make_row_regression(
    params: LatentTraitParams,
    group: int,
    block: BinaryBlock,
    scale: Array,
    max_covariate: float = math.inf,
) -> RowRegression:
    """Return standardized covariates, limited to a size, and the priors of the rows of a block."""
    assert block.covariates is not None
    center = get_coefficients(params)[1]
    z = np.clip((block.covariates - center) / scale, -max_covariate, max_covariate)
    means = params.get_group(group).compute_row_means(center + z * scale)
    assert means is not None
    return RowRegression(z, means)


def limit_covariates(state: FitState, covariates: Covariates) -> FitState:
    """Begin with limited covariates if some rows have high leverage.

    From coefficients of 0, such rows would hold them there, whatever all others tell.
    """
    if not covariates.leverages:
        return state
    working = {**state.working, "max_covariate": np.array(MAX_FIRST_COVARIATE)}
    return replace(state, working=working)


def end_limited_stage(state: FitState, statistics: Sums) -> FitState | None:
    """Go on with the covariates as they are; None if they already are."""
    if "max_covariate" not in state.working:
        return None
    working = {name: own for name, own in state.working.items() if name != "max_covariate"}
    working["limited_objective"] = np.array(statistics.objective)
    return replace(state, working=working)


def find_contradiction(
    state: FitState, statistics: Sums, covariates: Covariates
) -> FitState | None:
    """Return to coefficients of 0 if rows of high leverage contradict those of the other rows.

    None if they do not.
    """
    reached = float(state.working.get("limited_objective", -np.inf))
    if statistics.objective >= reached - _MAX_CONTRADICTION:
        return None
    coefficients, _ = get_coefficients(state.params)
    names = {leverage.name for leverage in covariates.leverages}
    is_far = np.array([name in names for name in covariates.names])
    own = np.where(is_far[:, None], 0.0, coefficients)
    working = {name: v for name, v in state.working.items() if name != "limited_objective"}
    return replace(state, params=replace(state.params, coefficients=own), working=working)


def limit_crossing(before: Array, after: Array, covariates: Covariates) -> Array:
    """Return coefficients of standardized covariates that take no row of high leverage too far.

    The values of such a row say nothing about its traits while these are certain. If a step of the
    coefficients reverses them, it ends where they are uncertain again, as the row may object.
    """
    limited = after.copy()
    for leverage in covariates.leverages:
        k = covariates.names.index(leverage.name)
        z = (leverage.value - covariates.means[k]) / covariates.deviations[k]
        reach = MAX_MEAN_REACH / abs(z)
        is_crossing = before[k] * limited[k] < 0
        limited[k] = np.where(is_crossing, np.clip(limited[k], -reach, reach), limited[k])
    return limited


def add_population(state: FitState, statistics: Sums, scale: Array) -> FitState:
    """Describe the traits over the fitted rows; `scale` has the deviations of the covariates."""
    (coefficients, center), (mean, covariance) = (
        get_coefficients(state.params),
        get_traits(state.params),
    )
    products = statistics.values["covariate_products"]
    n_rows = products[:, -1:, -1]
    z_mean = products[:, :-1, -1] / n_rows
    z_covariance = products[:, :-1, :-1] / n_rows[:, :, None]
    z_covariance -= z_mean[:, :, None] * z_mean[:, None]
    own = coefficients * scale[:, None]
    explained = own.T @ z_covariance @ own
    population = {
        "population_mean": mean + center @ coefficients + z_mean @ own,
        "population_covariance": covariance + explained,
    }
    shares = n_rows[:, 0] / n_rows.sum()
    variances = [np.diag(np.tensordot(shares, part, 1)) for part in (explained, covariance)]
    share = (variances[0] / (variances[0] + variances[1])).tolist()
    return replace(
        state,
        params=replace(state.params, **population),
        diagnostics={**state.diagnostics, "explained_variance": share},
    )
