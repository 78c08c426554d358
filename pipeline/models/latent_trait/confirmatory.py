"""The latent-trait model with groups of rows and known items.

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

from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.latent_trait.em import (
    MAX_PARAMETER,
    LatentTraitParams,
    e_step,
    grid_from_working,
    make_params,
    nodes_from_working,
    represents_all_scales,
    turn_to_principal_axes,
)
from pipeline.models.latent_trait.fit_statistics import compute_reliability, compute_residual_fit
from pipeline.models.latent_trait.group_design import (
    GroupDesign,
    absorb_traits,
    estimate_traits,
    factorize,
    make_group_design,
    take_group_step,
)
from pipeline.models.latent_trait.group_errors import (
    compute_group_errors,
    count_group_parameters,
    differentiate_items,
    place_traits,
)
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.standard_errors import (
    MAX_PARAMETERS,
    ItemErrors,
    choose_error_form,
)
from pipeline.models.state import Arrays, FitState
from pipeline.models.structure import Structure
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS
from pipeline.numerics.logistic.newton_step import differentiate_on_nodes
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]

_MIN_ROOT = 1e-3  # of the diagonal of a Cholesky factor after an extrapolation
_START_SLOPE = 1.0
_BY_GROUP = ("gradient", "curvature", "moments")
_INFORMATION = (
    *("curvature", "spread", "products", "weighted_products"),
    *("group_weight", "group_informing"),
)
_RESIDUALS = (
    *("weight_informing", "codes", "codes_squared", "codes_variance"),
    *("observed", "squares", "variances", "squares_standardized"),
)
_NOT_WITH_STRUCTURE = "the fit has groups or known items"


@dataclass(frozen=True)
class ConfirmatoryTrait(LatentTrait):
    """Hyperparameters of the latent-trait model, and the structure of its rows and items.

    Attributes
    ----------
    structure
        The groups of the rows, and the known items.
    """

    structure: Structure = field(default_factory=Structure, metadata={"is_setting": False})

    @classmethod
    def from_model(cls, model: LatentTrait, structure: Structure) -> Self:
        """Check the settings of a model, and add a structure to it.

        Raises
        ------
        FitError
            If the settings cannot be combined with it.
        """
        settings = {f.name: getattr(model, f.name) for f in fields(LatentTrait)}
        what = "{group}" if structure.groups else "{items}"
        if model.n_components is None or model.n_components > MAX_COMPONENTS:
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
        return cls(**{**settings, "estimator": "quadrature"}, structure=structure)

    @property
    def n_groups(self) -> int:
        """Number of groups; 1 without groups."""
        return max(len(self.structure.groups), 1)

    def _find_free_items(self) -> NDArray[np.intp]:
        names = [name.strip() for name in self.free.split(",") if name.strip()]
        features = self.structure.features
        if unknown := [name for name in names if name not in features]:
            raise FitError(
                f"{{free}} names {unknown[0]!r}, but the dataset has no such feature. "
                "Separate names of features by commas.",
                parameter="free",
            )
        return np.array([features.index(name) for name in names], np.intp)

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
            self._find_free_items(),
            self.invariance,
            self.traits,
            self._has_equal_slopes,
            self.prior_precision,
        )

    def _get_design(self, state: FitState) -> GroupDesign:
        return self._make_design(state.auxiliary["constant"], state.auxiliary["margins"])

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of the sums of all groups."""
        return self.n_groups * super().estimate_memory(n_features, n_segments, n_threads)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the margins, also within groups, and start from equal groups."""
        state = super().initialize(first, rng)
        design = self._get_design(state)
        if self.structure.groups:
            self._check_own_offsets(first, design)
        weights, offsets = state.params.weights, state.params.offsets
        if weights.shape[1] == 1:
            weights = np.where(weights == 0, 0.0, _START_SLOPE)
        items = np.tile(np.column_stack([weights, offsets]), (self.n_groups, 1, 1))
        items = design.fill(design.collect(items))
        rows = np.array([first.n_rows])
        segments = np.array([0])
        if self.structure.groups:
            segments, rows = first.segments, first.rows
        params = replace(state.params, segments=segments, segment_rows=rows)
        q = weights.shape[1]
        mean, covariance = np.zeros((self.n_groups, q)), np.tile(np.eye(q), (self.n_groups, 1, 1))
        return replace(state, params=_with_groups(params, items, mean, covariance))

    def _check_own_offsets(self, first: FeatureCounts, design: GroupDesign) -> None:
        """Refuse items that have an offset of their own in a group where they are constant."""
        uses = np.bincount(design.index[design.index >= 0], minlength=design.n_free)
        offsets = design.index[:, :, -1]
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
        items = np.stack([np.column_stack([g.weights, g.offsets]) for g in groups])
        covariance = np.stack([g.root @ g.root.T for g in groups])
        mean = np.stack([g.mean for g in groups])
        is_free = design.has_free_covariance[:, None, None]
        covariance = np.where(is_free, covariance, np.eye(own.weights.shape[1]))
        mean = np.where(design.has_free_mean[:, None], mean, 0.0)
        items = design.fill(design.collect(items))
        return replace(state, params=_with_groups(own, items, mean, covariance))

    def summarize(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """Run the E-step of the block's group."""
        own = self._get_group_params(params, block)
        sums = e_step(own, working, block)
        values = dict(sums.values)
        if (nodes := nodes_from_working(working)) is not None and "ones" in values:
            counts = values.pop("ones"), values.pop("mass")
            derivatives = differentiate_on_nodes(nodes.points, *counts, own.weights, own.offsets)
            values["gradient"], values["curvature"] = derivatives
        return replace(sums, values=self._place_values(values, _BY_GROUP, block))

    def _get_group_params(self, params: LatentTraitParams, block: BinaryBlock) -> LatentTraitParams:
        """Return slopes and offsets of u in the block's group."""
        return make_params(*params.get_group(self._get_group_index(block)).items)

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
        penalty = 0.0
        if self.prior_precision:
            none = np.empty(0, np.int64)
            design = self._make_design(none, np.zeros(len(params.offsets)))
            slopes = _get_items(params)
            slopes[:, :, -1] = 0.0
            penalty = 0.5 * self.prior_precision * float((design.collect(slopes) ** 2).sum())
        return (statistics.objective - penalty) / statistics.weight

    def update(
        self, state: FitState, statistics: Sums, map_items: MapFunction, rng: np.random.Generator
    ) -> FitState:
        """Run the M-step for items and traits."""
        design, params, values = self._get_design(state), state.params, statistics.values
        mean, covariance = _get_traits(params)
        items = take_group_step(
            design,
            _get_items(params),
            mean,
            factorize(covariance),
            values["gradient"],
            values["curvature"],
            self.prior_precision,
        )
        is_resolved = represents_all_scales(params, state.working, statistics)
        if is_resolved or not design.is_expanded:
            mean, covariance = estimate_traits(design, mean, covariance, values["moments"])
        if design.is_expanded and is_resolved:
            items, mean, covariance = absorb_traits(design, items, mean, covariance)
            items = design.fill(design.collect(items))
        params = _with_groups(params, items, mean, covariance)
        diverging = np.zeros(len(params.offsets), np.bool_)
        if (grid := grid_from_working(state.working)) is not None:
            for group in range(self.n_groups):
                diverging |= grid.is_diverging(params.get_group(group).items.weights)
        auxiliary = {**state.auxiliary, "diverging": np.flatnonzero(diverging)}
        return replace(state, params=params, auxiliary=auxiliary)

    def pack_params(self, params: LatentTraitParams) -> Array:
        """Return slopes, offsets, means and Cholesky factors of all groups as a vector."""
        mean, covariance = _get_traits(params)
        parts = (_get_items(params), mean, factorize(covariance))
        return np.concatenate([part.ravel() for part in parts])

    def unpack_params(self, params: LatentTraitParams, packed: Array, weight: float) -> Any:
        """Undo `pack_params`."""
        n, (n_features, q) = self.n_groups, params.weights.shape
        ends = np.cumsum([n * n_features * (q + 1), n * q])
        items, mean, root = np.split(packed.copy(), ends)
        items, mean, root = (
            items.reshape(n, n_features, -1),
            mean.reshape(n, q),
            root.reshape(n, q, q),
        )
        root[:, range(q), range(q)] = np.maximum(root[:, range(q), range(q)], _MIN_ROOT)
        covariance = root @ root.transpose(0, 2, 1)
        return _with_groups(params, items, mean.reshape(n, q), covariance)

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Continue with more nodes if they are needed."""
        following = super().next_stage(state, statistics)
        if following is None:
            return None
        return replace(following, params=state.params)  # slopes are not scaled back

    def choose_axes(self, state: FitState) -> LatentTraitParams:
        """Turn the traits to the principal axes of the first group, unless slopes are known."""
        params: LatentTraitParams = state.params
        design = self._get_design(state)
        if not design.is_rotatable:
            return params
        items, (mean, covariance) = _get_items(params), _get_traits(params)
        axes = np.stack(
            [
                turn_to_principal_axes(make_params(own[:, :-1], own[:, -1])).axes
                for own in (items[:1] if design.are_axes_shared else items)
            ]
        )
        items[:, :, :-1] = items[:, :, :-1] @ axes
        mean = (mean[:, None] @ axes)[:, 0]
        covariance = axes.transpose(0, 2, 1) @ covariance @ axes
        return replace(_with_groups(params, items, mean, covariance), axes=axes[0])

    def summarize_information(
        self, params: LatentTraitParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> Sums:
        """MAP: sum scores, information and residuals of the block's group."""
        own = self._get_group_params(params, block)
        sums = super().summarize_information(own, working, block, rng)
        gradient = self.summarize(params, working, block, rng).values["gradient"]
        kept = {name: v for name, v in sums.values.items() if name in (*_INFORMATION, *_RESIDUALS)}
        kept["group_informing"] = sums.values["weight_informing"]
        kept["group_weight"] = np.array(block.weight)
        values = {**self._place_values(kept, _INFORMATION, block), "gradient": gradient}
        if not isinstance(sums, ClusteredSums):
            return replace(sums, values=values)
        scores = np.zeros((len(sums.scores), self.n_groups, sums.scores.shape[1]))
        scores[:, self._get_group_index(block)] = sums.scores
        return replace(sums, values=values, scores=scores.reshape(len(scores), -1))

    def finish_information_pass(self, state: FitState, statistics: Sums) -> FitState:
        """Add standard errors of items and traits, likelihood and information criteria."""
        params, design = state.params, self._get_design(state)
        n_features, q = params.weights.shape
        is_sampled = bool(state.auxiliary["has_sampling_weights"])
        form = choose_error_form(self.errors, (n_features, q), is_sampled)
        n_parameters = count_group_parameters(design)
        if form == "none" or max(n_parameters, n_features * (q + 1)) > MAX_PARAMETERS:
            text = f"no standard errors: more than {MAX_PARAMETERS} parameters"
            state = replace(state, warnings=(*state.warnings, FitWarning(text)))
            return self._add_likelihood(state, statistics, n_parameters)
        information, score, products = self._scale_information(design, state, statistics, form)
        errors = compute_group_errors(
            design,
            _get_items(params),
            *_get_traits(params),
            information,
            score,
            products,
            self.prior_precision,
        )
        items = errors.items.copy()
        items[:, state.auxiliary["diverging"]] = np.nan
        arrays = {
            "weights_error": items[0, :, :-1],
            "offsets_error": items[0, :, -1],
            "group_weights_error": items[:, :, :-1],
            "group_offsets_error": items[:, :, -1],
            "trait_mean_error": errors.mean,
            "trait_covariance_error": errors.covariance,
            **compute_residual_fit(statistics),
        }
        if q == 1:
            of_items = ItemErrors(errors.first_items, np.empty(0, np.intp))
            slopes = params.weights[:, 0]
            arrays["difficulty_error"] = of_items.difficulties(slopes, params.offsets)
        warnings = state.warnings
        unknown = np.flatnonzero(np.isnan(errors.items).any(axis=(0, 2)))
        if unknown.size:
            text = "the data do not determine these features' parameters; no standard errors: "
            text += "{features}"
            warnings = (*warnings, FitWarning(text, tuple(unknown.tolist())))
        state = replace(
            state,
            params=replace(params, **arrays),
            diagnostics={**state.diagnostics, "errors": form},
            warnings=warnings,
        )
        return self._add_likelihood(state, statistics, n_parameters)

    def _scale_information(
        self, design: GroupDesign, state: FitState, statistics: Sums, form: str
    ) -> tuple[Array, Array, Array | None]:
        """Return information and score of each group, and the products of scores if needed."""
        params, values = state.params, statistics.values
        share = values["group_informing"] / np.maximum(values["group_weight"], 1.0)
        by_group = 1 / np.maximum(share, np.finfo(float).tiny)[:, None, None]
        products = by_group * values["products"]
        curvature = np.stack([scipy.linalg.block_diag(*own) for own in values["curvature"]])
        information = by_group * (curvature - values["spread"] + values["products"])
        if form == "crossproduct":
            information = products
        if form != "sandwich":
            return information, values["gradient"], None
        mean, covariance = _get_traits(params)
        root = factorize(covariance)
        places, items = place_traits(design), _get_items(params)
        derivatives = [
            differentiate_items(design, places, items, mean, root, group)
            for group in range(self.n_groups)
        ]
        if isinstance(statistics, ClusteredSums):
            mapped = replace(statistics, scores=statistics.scores @ np.concatenate(derivatives))
            return information, values["gradient"], mapped.sum_score_products()
        outer = values.get("weighted_products", values["products"]) * by_group
        pairs = zip(derivatives, outer, strict=True)
        return information, values["gradient"], sum(J.T @ own @ J for J, own in pairs)

    def _add_likelihood(self, state: FitState, statistics: Sums, n_parameters: int) -> FitState:
        log_likelihood, weight = statistics.objective, statistics.weight
        found: dict[str, Any] = {
            "log_likelihood": log_likelihood,
            "n_parameters": n_parameters,
            "reliability": compute_reliability(statistics).tolist(),
            "m2_missing": _NOT_WITH_STRUCTURE,
            "s_x2_missing": _NOT_WITH_STRUCTURE,
        }
        if state.auxiliary["has_sampling_weights"]:
            found["aic_missing"] = "the rows have sampling weights"
        else:
            found["aic"] = 2 * n_parameters - 2 * log_likelihood
            found["bic"] = n_parameters * float(np.log(weight)) - 2 * log_likelihood
        return replace(state, diagnostics={**state.diagnostics, "fit_statistics": found})


def _get_items(params: LatentTraitParams) -> Array:
    """Return slopes and offsets side by side, (n_groups, n_features, q + 1)."""
    assert params.group_weights is not None
    assert params.group_offsets is not None
    return np.concatenate([params.group_weights, params.group_offsets[:, :, None]], axis=2)


def _get_traits(params: LatentTraitParams) -> tuple[Array, Array]:
    """Return μ_g, (n_groups, q), and Σ_g, (n_groups, q, q)."""
    assert params.trait_mean is not None
    assert params.trait_covariance is not None
    return params.trait_mean, params.trait_covariance


def _with_groups(
    params: LatentTraitParams, items: Array, mean: Array, covariance: Array
) -> LatentTraitParams:
    """Return the parameters with these items and traits; diverging items are limited."""
    items = np.clip(items, -MAX_PARAMETER, MAX_PARAMETER)
    return replace(
        params,
        weights=items[0, :, :-1].copy(),
        offsets=items[0, :, -1].copy(),
        group_weights=items[:, :, :-1].copy(),
        group_offsets=items[:, :, -1].copy(),
        trait_mean=mean,
        trait_covariance=covariance,
    )
