"""Parameters of the latent-trait model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.numerics.logistic.asymptotes import Asymptotes, join_asymptotes
from pipeline.numerics.logistic.categories.curves import Answers, Bits, LevelItems, number_planes
from pipeline.numerics.logistic.categories.gaussian_items import GaussianItems
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
)
from pipeline.params import (
    HasParts,
    NumberRange,
    array_field,
    optional_array_field,
    optional_part_field,
    part_field,
)
from pipeline.statistics.measurements import standardize_numbers

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
ItemKind = Literal["graded", "partial-credit", "rating-scale", "nominal"]
MAX_PARAMETER = 1e4  # a curve this steep is a step
# Beyond it, the information of two components is singular to machine precision.
_STORED_RANGE = NumberRange(minimum=-1e6, maximum=1e6)


class TraitGroup(NamedTuple):
    """Items and traits of one group of rows: x = mean + root u with u ~ N(0, I).

    Attributes
    ----------
    weights, offsets
        Of the items for these rows, (n_features, q) and (n_features,).
    mean, root
        Mean of the traits, (q,), and the Cholesky factor of their covariance, (q, q).
    asymptotes
        Guessing and slipping of the items; None if their curves range from 0 to 1.
    coefficients, center
        Γ, (n_covariates, q), and c, (n_covariates,), if rows have covariates z_n: then
        x = mean + Γᵀ(z_n − c) + root e with e ~ N(0, I).
    """

    weights: Array
    offsets: Array
    mean: Array
    root: Array
    asymptotes: Asymptotes | None = None
    coefficients: Array | None = None
    center: Array | None = None

    @property
    def items(self) -> TraitItems:
        """Weights and offsets of the items as functions of u."""
        return self.standardize_weights(self.weights, self.offsets)

    def standardize_weights(self, weights: Array, offsets: Array) -> TraitItems:
        """Return weights, (n, q), and offsets, (n,), of functions of x as functions of u."""
        return TraitItems(weights @ self.root, offsets + weights @ self.mean)

    def standardize(self, items: LevelItems) -> LevelItems:
        """Return items with several levels, or continuous, as functions of u instead of x."""
        own, gaussians = self.standardize_weights(items.weights, items.offsets), items.gaussians
        if gaussians is not None:
            moved = self.standardize_weights(gaussians.weights, gaussians.offsets)
            gaussians = gaussians._replace(weights=moved.weights, offsets=moved.offsets)
        return items._replace(weights=own.weights, offsets=own.offsets, gaussians=gaussians)

    def to_traits(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Convert means, (n_samples, q), and covariances of u to those of x."""
        return self.mean + mean @ self.root.T, self.root @ covariance @ self.root.T

    def compute_row_means(self, covariates: Array | None) -> Array | None:
        """Return the prior mean of u in each row, (n_samples, q); None if all are 0."""
        if self.coefficients is None or self.center is None:
            return None
        assert covariates is not None
        means = (covariates - self.center) @ self.coefficients
        return np.ascontiguousarray(np.linalg.solve(self.root, means.T).T)


@dataclass(frozen=True)
class Items:
    """Parameters of items.

    Attributes
    ----------
    weights, offsets
        The table in `model.py` gives their shapes. If some items are not binary, `offsets` are the
        means of an item's `level_offsets` if it is graded, else its last one divided by the number
        of planes.
    level_offsets
        Offset of each plane, see `numerics.logistic.categories.curves`; None, as other arrays of
        levels, if all items are binary.
    level_weights
        Weights of each plane of nominal items: those of the first category are 0. `weights` are
        those of the last plane divided by the number of planes.
    deviations
        Standard deviation of a continuous item given the traits, in units of its scale.
    guessing, slipping
        Lower asymptote of each item's curve, and 1 minus its upper asymptote; None if they are 0.
    """

    weights: Array = array_field("feature", "component", allowed=_STORED_RANGE)
    offsets: Array = array_field("feature", allowed=_STORED_RANGE)
    level_offsets: Array | None = optional_array_field("plane")
    level_weights: Array | None = optional_array_field("plane", "component")
    deviations: Array | None = optional_array_field("continuous", allowed=NumberRange(above=0))
    guessing: Array | None = optional_array_field("feature")
    slipping: Array | None = optional_array_field("feature")

    @property
    def asymptotes(self) -> Asymptotes | None:
        """Guessing and slipping, (n_features,) each; None if all curves range from 0 to 1."""
        return join_asymptotes(self.guessing, self.slipping)

    def pool(self, shares: Array) -> Items:
        """Return the mean over groups, given the share of each, (n_groups,).

        The arrays of a group that has all of the share are its own.
        """
        return self.combine([self], lambda arrays: _pool(shares, arrays[0]))

    @staticmethod
    def combine(parts: Sequence[Items], join: Callable[[Sequence[Array]], Array]) -> Items:
        """Return the items whose arrays are those of all parts, joined."""
        arrays: Any = {
            f.name: None
            if getattr(parts[0], f.name) is None
            else join([getattr(part, f.name) for part in parts])
            for f in fields(Items)
        }
        return Items(**arrays)


@dataclass(frozen=True)
class Positions:
    """Positions of items on the only trait, −b / w.

    Attributes
    ----------
    difficulty
        Where P is one half; NaN of continuous items and of items without an order.
    level_difficulty
        Where P(y ≥ level) is one half, if items are graded, or where a level and the one below are
        equally likely; None if all items are binary, or nominal.
    """

    difficulty: Array = array_field("feature", may_be_nan=True)
    level_difficulty: Array | None = optional_array_field("plane")


@dataclass(frozen=True)
class ItemFit:
    """How well items fit.

    Attributes
    ----------
    infit, outfit
        Mean squared residuals at the codes, weighted by information and unweighted; NaN of items
        without an order.
    s_x2, s_x2_df, s_x2_p
        Misfit by sum score (S-X²), its degrees of freedom and p-value; NaN for constant items and
        those without degrees of freedom, None if S-X² is not defined.
    """

    infit: Array = array_field("feature", may_be_nan=True)
    outfit: Array = array_field("feature", may_be_nan=True)
    s_x2: Array | None = optional_array_field("feature", may_be_nan=True)
    s_x2_df: Array | None = optional_array_field("feature", may_be_nan=True)
    s_x2_p: Array | None = optional_array_field("feature", may_be_nan=True)


@dataclass(frozen=True)
class Loadings:
    """Standardized loadings and communalities of items, see `loadings`."""

    loadings: Array = array_field("feature", "component")
    communality: Array = array_field("feature")


@dataclass(frozen=True)
class Traits:
    """Mean and covariance of the traits."""

    mean: Array = array_field("component")
    covariance: Array = array_field("component", "component_j")


@dataclass(frozen=True)
class TraitRegression:
    """How the mean of the traits depends on covariates.

    Attributes
    ----------
    coefficients, coefficients_error
        Change of the mean per unit of each covariate, and standard errors.
    covariate_center
        Means of the covariates in the fitted rows, where nodes are centred; 0 if known items and
        traits leave no parameter to shift.
    """

    coefficients: Array = array_field("covariate", "component")
    covariate_center: Array = array_field("covariate")
    coefficients_error: Array | None = optional_array_field("covariate", "component")


@dataclass(frozen=True)
class Units:
    """Mean and standard deviation of each continuous item in the fitted rows."""

    means: Array = array_field("continuous")
    scales: Array = array_field("continuous", allowed=NumberRange(above=0))


@dataclass(frozen=True)
class LatentTraitParams(HasParts):
    """Parameters.

    Attributes
    ----------
    items, items_error
        Items, those of the first group if there are groups, and standard errors: NaN if the data do
        not determine a parameter, 0 if it was not estimated. Parts with errors are None if these
        were not computed.
    rotated, component_correlation
        Weights after the rotation of the setting `rotation`, and the correlations of the rotated
        components.
    axes
        Orthogonal matrix that turned the weights of the last pass to their principal axes. A warm
        start turns them back to the axes of the quadrature nodes.
    group_items, group_items_error
        Items in each group; None, as all that is by group, without groups.
    positions, positions_error
        Positions of items, with one component.
    standardized, standardized_error
        Standardized loadings of items on the traits of a loading pattern; None without a pattern,
        and of items with several levels that are not graded.
    fit
        Statistics of fit of items.
    traits, traits_error
        Distribution of the traits in each group, or of all rows in a fit with known items, a
        loading pattern or covariates; if there are covariates, where all of them are 0.
    regression
        Coefficients of covariates; None without covariates.
    population
        Distribution of the traits over the fitted rows of each group, with their covariates.
    units
        Units of continuous items; None if there are none. A continuous item has one level, which is
        in no array, no plane and no difficulty. Its weights and offset are of
        (value − mean) / scale.
    segments, segment_rows
        Indices of the groups of rows, in the order of their first rows, and their numbers of rows.
    n_levels
        Number of levels of each item; None if all items are binary.
    is_nominal
        Which items have categories without an order; None if there are none.
    is_known
        Which weights and offsets (side by side) were known before the fit, for items with several
        levels those of all forms, see `design`; None if it estimated all of them.
    log_prior
        Logarithm of the prior of slopes, nats, before the scale of the traits was estimated; None
        if it was not, because the prior hardly moved the traits.
    """

    items: Items = part_field()
    rotated: Array = array_field("feature", "component")
    component_correlation: Array = array_field("component", "component_j")
    axes: Array = array_field("component", "component_j")
    items_error: Items | None = optional_part_field(suffix="_error")
    segments: NDArray[np.int64] | None = optional_array_field("segment")
    segment_rows: NDArray[np.int64] | None = optional_array_field("segment")
    group_items: Items | None = optional_part_field("segment", prefix="group_")
    group_items_error: Items | None = optional_part_field(
        "segment", prefix="group_", suffix="_error"
    )
    positions: Positions | None = optional_part_field()
    positions_error: Positions | None = optional_part_field(suffix="_error")
    standardized: Loadings | None = optional_part_field()
    standardized_error: Loadings | None = optional_part_field(suffix="_error")
    fit: ItemFit | None = optional_part_field()
    traits: Traits | None = optional_part_field("segment", prefix="trait_")
    traits_error: Traits | None = optional_part_field("segment", prefix="trait_", suffix="_error")
    regression: TraitRegression | None = optional_part_field()
    population: Traits | None = optional_part_field("segment", prefix="population_")
    units: Units | None = optional_part_field()
    n_levels: NDArray[np.int64] | None = optional_array_field("feature")
    is_nominal: NDArray[np.bool_] | None = optional_array_field("feature")
    is_known: NDArray[np.bool_] | None = optional_array_field("item", "parameter")
    log_prior: Array | None = optional_array_field()

    def with_items(self, **arrays: Array | None) -> LatentTraitParams:
        """Return the parameters with other arrays of items."""
        changed: Any = arrays
        return replace(self, items=replace(self.items, **changed))

    def with_coefficients(self, coefficients: Array) -> LatentTraitParams:
        """Return the parameters with other coefficients of the covariates."""
        assert self.regression is not None
        return replace(self, regression=replace(self.regression, coefficients=coefficients))

    @property
    def weights(self) -> Array:
        """Weights of the items, (n_features, n_components)."""
        return self.items.weights

    @property
    def offsets(self) -> Array:
        """Offsets of the items, (n_features,)."""
        return self.items.offsets

    @property
    def slopes(self) -> Array:
        """Weights, but NaN of items without an order, which have no direction."""
        return self.leave_out_nominal(self.weights)

    def leave_out_nominal(self, values: Array) -> Array:
        """Return values of items, (n_features, …), but NaN of those without an order."""
        if self.is_nominal is None:
            return values
        values = values.copy()
        values[self.is_nominal] = np.nan
        return values

    @property
    def n_planes(self) -> NDArray[np.int64]:
        """Number of planes of each item, (n_features,), 0 of a continuous one."""
        if self.n_levels is None:
            return np.ones(len(self.offsets), np.int64)
        return self.n_levels - 1

    @property
    def free_parameters(self) -> Array:
        """Weights and offsets side by side, (n_features, n_components + 1)."""
        return np.column_stack([self.weights, self.offsets])

    @property
    def asymptotes(self) -> Asymptotes | None:
        """Those of the items."""
        return self.items.asymptotes

    def get_level_items(self, kind: ItemKind, segment: int | None = None) -> LevelItems:
        """Return the items of the rows of a segment by planes; a binary item has one plane.

        Without segment they are the items of the first group; see `get_group` for other segments.
        """
        own = self.items if segment is None else self.select_group(segment).items
        if self.n_levels is None:
            return LevelItems.from_binary(own.weights, own.offsets, own.asymptotes)
        assert own.level_offsets is not None
        n_planes = self.n_levels - 1
        owners = np.repeat(np.arange(len(n_planes)), n_planes)
        is_rising = (np.diff(own.level_offsets) >= 0) & (np.diff(owners) == 0)
        if kind == "graded" and is_rising.any():
            raise FitError("The offsets of graded levels must fall, but some rise. Fit again.")
        weights = own.level_weights
        if weights is None:
            scores = np.ones(int(n_planes.sum())) if kind == "graded" else number_planes(n_planes)
            weights = np.repeat(own.weights, n_planes, axis=0) * scores[:, None]
        gaussians = self.make_gaussians(own)
        return LevelItems(weights, own.level_offsets, n_planes, kind == "graded", gaussians)

    def make_gaussians(self, items: Items) -> GaussianItems | None:
        """Return the continuous items as the kernels take them; None if there are none."""
        if items.deviations is None or self.units is None or self.n_levels is None:
            return None
        own = self.n_levels == 1
        return GaussianItems(
            items.weights[own], items.offsets[own], items.deviations, self.units.scales
        )

    def select_group(self, segment: int) -> LatentTraitParams:
        """Return the items of a segment as if there were no groups.

        Those of other segments are the mean over the fitted ones.
        """
        if self.group_items is None:
            return self
        return replace(self, items=self.group_items.pool(self._get_shares(segment)))

    def _get_shares(self, segment: int) -> Array:
        """Return the share of each group in the parameters of the rows of a segment."""
        assert self.segments is not None
        assert self.segment_rows is not None
        is_own = self.segments == segment
        weights = is_own if is_own.any() else self.segment_rows
        return np.asarray(weights / weights.sum(), np.float64)

    def get_group(self, segment: int) -> TraitGroup:
        """Return items and traits of the rows of a segment.

        Rows of other segments than the fitted ones have the mean of all groups' parameters.
        """
        q, regression = self.weights.shape[1], self.regression
        if self.traits is None:
            return TraitGroup(self.weights, self.offsets, np.zeros(q), np.eye(q), self.asymptotes)
        shift = np.zeros(q)
        of_covariates: tuple[Array, ...] = ()
        if regression is not None:
            of_covariates = regression.coefficients, regression.covariate_center
            shift = regression.covariate_center @ regression.coefficients
        items, mean, covariance = self.items, self.traits.mean[0], self.traits.covariance[0]
        if self.group_items is not None:
            shares = self._get_shares(segment)
            items, mean = self.group_items.pool(shares), shares @ self.traits.mean
            distance = self.traits.mean - mean
            spread = self.traits.covariance + distance[:, :, None] * distance[:, None]
            covariance = np.asarray(np.tensordot(shares, spread, 1), np.float64)
            is_orthogonal = not (self.traits.covariance * (1 - np.eye(q))).any()
            if q > MAX_COMPONENTS and is_orthogonal:  # as integrals over blocks of items need
                covariance = covariance * np.eye(q)
        root = np.asarray(np.linalg.cholesky(covariance), np.float64)
        own = (items.weights, items.offsets, mean + shift, root, items.asymptotes)
        return TraitGroup(*own, *of_covariates)

    def get_population(self, segment: int) -> TraitGroup:
        """Return items and traits as `get_group`, but of rows whose covariates are unknown."""
        if self.population is None:
            return self.get_group(segment)
        return replace(self, traits=self.population, regression=None).get_group(segment)


def _pool(shares: Array, by_group: Array) -> Array:
    """Return the mean over groups; the array of a group that has all of the share is its own."""
    if shares.max() == 1.0:
        return np.asarray(by_group[int(shares.argmax())])
    return np.asarray(np.tensordot(shares, by_group, 1))


def make_params(
    weights: Array, offsets: Array, asymptotes: Asymptotes | None = None
) -> LatentTraitParams:
    """Make unrotated parameters."""
    axes = np.eye(weights.shape[1])
    items = Items(weights, offsets)
    if asymptotes is not None:
        items = replace(items, guessing=asymptotes.guessing, slipping=asymptotes.slipping)
    return LatentTraitParams(items, weights, axes, axes.copy())


def unpack_answers(params: LatentTraitParams, block: BinaryBlock) -> tuple[Answers, Bits | None]:
    """Return the bits of a block with the values of continuous items next to them, and the mask.

    The values are standardized, and 0 where missing. With continuous items there always is a mask,
    as otherwise the last bits of a row's results could depend on other rows.
    """
    X, observed = block.unpack_values(), block.unpack_mask()
    if params.units is None:
        return X, observed
    y = standardize_numbers(block, params.units.means, params.units.scales).T
    has_value = ~np.isnan(y)
    mask = np.ones_like(X) if observed is None else observed
    return (
        np.hstack([X.astype(np.float64), np.where(has_value, y, 0.0)]),
        np.hstack([mask, has_value.astype(np.uint8)]),
    )
