"""One pass of EM for the latent-trait model: parameters, E-steps, M-step, rotations and nodes.

Number of quadrature nodes per axis: near 0, the nodes of a Gauss–Hermite rule with n nodes per axis
are h = π / √n apart. A sum over points h apart differs from the integral of a logistic curve of
slope a by a relative error of about exp(−2π² / (a h)), because the poles of the curve are π / a
away from the axis (L. N. Trefethen, J. A. C. Weideman, SIAM Review 56 (2014)). If this error is not
small, an item falls between two nodes, and the sum misses or misplaces the maximum of the
likelihood. Here a h ≤ 2.5 is accepted, an error of 4e-4. The same happens if a row's posterior is
narrower than h; then its likeliest node has nearly all of the posterior mass. If the finest grid is
too coarse for the posteriors, each row gets nodes of its own; without missing values, it always
does, unless the number of nodes is set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.logistic.asymptotes import Asymptotes, join_asymptotes
from pipeline.numerics.logistic.bifactor import TraitBlocks, bifactor_e_step, find_trait_blocks
from pipeline.numerics.logistic.categories.curves import Answers, Bits, LevelItems, number_planes
from pipeline.numerics.logistic.categories.e_step import LevelStatistics, sum_level_statistics
from pipeline.numerics.logistic.categories.gaussian_items import GaussianItems
from pipeline.numerics.logistic.categories.row_posteriors import SharedNodes
from pipeline.numerics.logistic.categories.scores import RowRegression
from pipeline.numerics.logistic.centred_nodes import CENTRED_NODES_PER_AXIS, centred_e_step
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
    MAX_NODES_PER_AXIS,
    NodeChecks,
    Nodes,
    NodeStatistics,
    check_nodes,
    drop_light_nodes,
    gauss_hermite,
    node_statistics,
)
from pipeline.numerics.logistic.lattice_nodes import (
    choose_lattice,
    lattice_e_step,
    list_even_nodes,
)
from pipeline.numerics.logistic.logistic_bound import (
    VariationalPosterior,
    variational_e_step,
    variational_m_step,
    variational_row_posterior,
)
from pipeline.numerics.logistic.logistic_regression import logistic_m_step
from pipeline.numerics.logistic.logistic_sites import ep_e_step
from pipeline.numerics.logistic.newton_step import (
    NewtonStatistics,
    differentiate_on_nodes,
    take_newton_step,
)
from pipeline.numerics.logistic.parameter_expansion import TraitGaussian, estimate_trait_gaussian
from pipeline.numerics.spectra.linalg import fix_signs
from pipeline.params import NumberRange, array_field, optional_array_field
from pipeline.statistics.measurements import standardize_numbers
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
ItemKind = Literal["graded", "partial-credit", "rating-scale", "nominal"]

PROMAX_POWER = 4
NODES_PER_AXIS = {1: 41, 2: 21, 3: 15}
"""Initial number of nodes per axis, by the number of components.

With 20 items of slopes up to 1.5, more nodes change the mean log-likelihood per row by less than
1e-4 nats, and the log-likelihood of one row by up to 2e-5, 4e-3 and 3e-2 for 1, 2 and 3 components.
"""
NODES_PER_AXIS_LIMITS = {1: MAX_NODES_PER_AXIS, 2: 61, 3: 21}
"""Largest number of nodes per axis that a fit chooses, by the number of components."""

_MAX_SHARED_NODES = {1: 2000, 2: 2**14, 3: 2**14}  # equally spaced
_MAX_COUNTS = 2**22  # expected counts of features at nodes: 32 MiB
_MAX_SLOPE_STEP = 2.5  # a h
MAX_INTEGRATION_ERROR = 1e-3
"""Of the log-likelihood of all rows in a fit that chooses its nodes, nats."""
# −log of the largest error per row on the whole lattice among 60 and 30 sets of items, by the
# number of components; with three, errors are not larger than with two.
_LATTICE_DECAY = {1: 12.7, 2: 14.5}
_MIN_SHARE = 1e-9  # of the information that a row's values leave; below, it is rounding
_EVEN_STRETCH, _MAX_EVEN_STRETCH = 0.9, 1.4  # of the distances of equally spaced nodes
_MIN_RATIO = 0.6  # of them to those before, in a stage with more nodes
# Of the error of fewer centred nodes; of one stage, and at most if the changes fall that slowly.
_ERROR_RATIO, _MAX_ERROR_RATIO = 1 / 11, 0.9
MAX_SLOPE = 20.0  # longer weights count as diverging: such steep curves look like steps
# Posterior mass of the likeliest node along one axis, averaged over rows. In fits of survey, test
# and simulated data, the objective was off by up to 0.02 nats per row if this share was above 0.6,
# by 5e-3 above 0.5 and by 1e-3 at 0.45; slopes of one component by up to 5e-3 at 0.65, 1e-3 at 0.55
# and 3e-4 below 0.45 (1e-3 with 100 items). The share falls with the root of the number of nodes or
# more slowly, so the target is below the maximum.
_WARNED_PEAK_SHARE, _MAX_PEAK_SHARE, _TARGET_PEAK_SHARE = 0.6, 0.45, 0.4
_MAX_VARIMAX_ROUNDS, _VARIMAX_TOLERANCE = 1000, 1e-13
MAX_PARAMETER = 1e4  # a curve this steep is a step
# Beyond it, the information of two components is singular to machine precision.
_STORED_RANGE = NumberRange(minimum=-1e6, maximum=1e6)


ITEM_ARRAYS = (
    *("weights", "offsets", "level_offsets", "level_weights", "deviations"),
    *("guessing", "slipping"),
)
"""Names of arrays that may differ by group; then `group_NAME` has those of all groups."""


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
class LatentTraitParams:
    """Parameters; the table in `model.py` gives the shapes of weights and offsets.

    Attributes
    ----------
    rotated, component_correlation
        Weights after the rotation of the setting `rotation`, and the correlations of the rotated
        components.
    axes
        Orthogonal matrix that turned the weights of the last pass to their principal axes. A warm
        start turns them back to the axes of the quadrature nodes.
    weights_error, offsets_error
        Standard errors; NaN if the data do not determine them, None if they were not computed.
    difficulty, difficulty_error
        Position −b / w on the only component where P is one half, and its standard error.
    infit, outfit
        Mean squared residuals at the codes, weighted by information and unweighted.
    s_x2, s_x2_df, s_x2_p
        Misfit by sum score (S-X²), its degrees of freedom and p-value; NaN for constant items and
        those without degrees of freedom.
    segments, segment_rows
        Indices of the groups of rows, in the order of their names, and their numbers of rows. All
        arrays of groups are None without groups. Otherwise `weights` and `offsets` have the values
        of the first group.
    trait_mean, trait_covariance
        Distribution of the traits in each group, or of all rows in a fit with known items or a
        loading pattern.
    group_weights, group_offsets
        Weights and offsets of the items in each group.
    is_known
        Which weights and offsets (side by side) were known before the fit, for items with several
        levels those of all forms, see `levels.design`; None if it estimated all of them.
    trait_mean_error, trait_covariance_error, group_weights_error, group_offsets_error
        Standard errors; 0 for parameters that were not estimated.
    guessing, slipping, guessing_error, slipping_error
        Lower asymptote of each item's curve, and 1 minus its upper asymptote, with standard errors;
        None if they are 0. `group_guessing` and the like have them by group.
    coefficients, coefficients_error
        Change of the traits' mean per unit of each covariate, and standard errors. `trait_mean` and
        offsets are those where all covariates are 0.
    covariate_center
        Means of the covariates in the fitted rows, where nodes are centred; 0 if known items and
        traits leave no parameter to shift.
    population_mean, population_covariance
        Distribution of the traits over the fitted rows of each group, with their covariates.
    n_levels
        Number of levels of each item; None, as all arrays of levels, if all items are binary.
        `offsets` are then the means of an item's `level_offsets` if it is graded, else its last one
        divided by the number of planes, and `difficulty` is −b / w.
    level_offsets, level_offsets_error
        Offset of each plane, see `numerics.logistic.categories.curves`, and standard errors.
    level_weights, level_weights_error
        Weights of each plane of nominal items, and standard errors. `weights` are those of the last
        plane divided by the number of planes.
    level_difficulty, level_difficulty_error
        Position on the only component where P(y ≥ level) is one half, if items are graded, or where
        a level and the one below are equally likely, and standard errors.
    means, scales
        Mean and standard deviation of each continuous item in the fitted rows; None, as all arrays
        of continuous items, if there are none. A continuous item has one level, which is in no
        array, no plane and no difficulty (NaN). Its weights and offset are of (value − mean) /
        scale.
    deviations, deviations_error
        Standard deviation of a continuous item given the traits, in units of its scale, and
        standard errors.
    group_level_offsets, group_level_weights, group_deviations
        Those of each group, with standard errors; None without groups.
    log_prior
        Logarithm of the prior of slopes, nats, before the scale of the traits was estimated; None
        if it was not, because the prior hardly moved the traits.
    """

    weights: Array = array_field("feature", "component", allowed=_STORED_RANGE)
    offsets: Array = array_field("feature", allowed=_STORED_RANGE)
    rotated: Array = array_field("feature", "component")
    component_correlation: Array = array_field("component", "component_j")
    axes: Array = array_field("component", "component_j")
    weights_error: Array | None = optional_array_field("feature", "component")
    offsets_error: Array | None = optional_array_field("feature")
    difficulty: Array | None = optional_array_field("feature", may_be_nan=True)
    difficulty_error: Array | None = optional_array_field("feature")
    infit: Array | None = optional_array_field("feature")
    outfit: Array | None = optional_array_field("feature")
    s_x2: Array | None = optional_array_field("feature", may_be_nan=True)
    s_x2_df: Array | None = optional_array_field("feature", may_be_nan=True)
    s_x2_p: Array | None = optional_array_field("feature", may_be_nan=True)
    segments: NDArray[np.int64] | None = optional_array_field("segment")
    segment_rows: NDArray[np.int64] | None = optional_array_field("segment")
    trait_mean: Array | None = optional_array_field("segment", "component")
    trait_mean_error: Array | None = optional_array_field("segment", "component")
    trait_covariance: Array | None = optional_array_field("segment", "component", "component_j")
    trait_covariance_error: Array | None = optional_array_field(
        "segment", "component", "component_j"
    )
    group_weights: Array | None = optional_array_field("segment", "feature", "component")
    group_weights_error: Array | None = optional_array_field("segment", "feature", "component")
    group_offsets: Array | None = optional_array_field("segment", "feature")
    group_offsets_error: Array | None = optional_array_field("segment", "feature")
    is_known: NDArray[np.bool_] | None = optional_array_field("item", "parameter")
    guessing: Array | None = optional_array_field("feature")
    guessing_error: Array | None = optional_array_field("feature")
    slipping: Array | None = optional_array_field("feature")
    slipping_error: Array | None = optional_array_field("feature")
    group_guessing: Array | None = optional_array_field("segment", "feature")
    group_guessing_error: Array | None = optional_array_field("segment", "feature")
    group_slipping: Array | None = optional_array_field("segment", "feature")
    group_slipping_error: Array | None = optional_array_field("segment", "feature")
    coefficients: Array | None = optional_array_field("covariate", "component")
    coefficients_error: Array | None = optional_array_field("covariate", "component")
    covariate_center: Array | None = optional_array_field("covariate")
    population_mean: Array | None = optional_array_field("segment", "component")
    population_covariance: Array | None = optional_array_field(
        "segment", "component", "component_j"
    )
    n_levels: NDArray[np.int64] | None = optional_array_field("feature")
    level_offsets: Array | None = optional_array_field("plane")
    level_offsets_error: Array | None = optional_array_field("plane")
    level_weights: Array | None = optional_array_field("plane", "component")
    level_weights_error: Array | None = optional_array_field("plane", "component")
    level_difficulty: Array | None = optional_array_field("plane")
    level_difficulty_error: Array | None = optional_array_field("plane")
    means: Array | None = optional_array_field("continuous")
    scales: Array | None = optional_array_field("continuous", allowed=NumberRange(above=0))
    deviations: Array | None = optional_array_field("continuous", allowed=NumberRange(above=0))
    deviations_error: Array | None = optional_array_field("continuous")
    group_level_offsets: Array | None = optional_array_field("segment", "plane")
    group_level_offsets_error: Array | None = optional_array_field("segment", "plane")
    group_level_weights: Array | None = optional_array_field("segment", "plane", "component")
    group_level_weights_error: Array | None = optional_array_field("segment", "plane", "component")
    group_deviations: Array | None = optional_array_field(
        "segment", "continuous", allowed=NumberRange(above=0)
    )
    group_deviations_error: Array | None = optional_array_field("segment", "continuous")
    log_prior: Array | None = optional_array_field()

    @property
    def free_parameters(self) -> Array:
        """Weights and offsets side by side, (n_features, n_components + 1)."""
        return np.column_stack([self.weights, self.offsets])

    @property
    def items(self) -> TraitItems:
        """Weights and offsets, as the kernels take them."""
        return TraitItems(self.weights, self.offsets)

    @property
    def asymptotes(self) -> Asymptotes | None:
        """Guessing and slipping, (n_features,) each; None if all curves range from 0 to 1."""
        return join_asymptotes(self.guessing, self.slipping)

    def get_level_items(self, kind: ItemKind, segment: int | None = None) -> LevelItems:
        """Return the items of the rows of a segment by planes; a binary item has one plane.

        Without segment they are the items of the first group; see `get_group` for other segments.
        """
        if segment is not None and self.group_weights is not None:
            return self.select_items(segment).get_level_items(kind)
        if self.n_levels is None:
            return LevelItems.from_binary(*self.items, self.asymptotes)
        assert self.level_offsets is not None
        n_planes = self.n_levels - 1
        items = np.repeat(np.arange(len(n_planes)), n_planes)
        is_rising = (np.diff(self.level_offsets) >= 0) & (np.diff(items) == 0)
        if kind == "graded" and is_rising.any():
            raise FitError("The offsets of graded levels must fall, but some rise. Fit again.")
        weights = self.level_weights
        if weights is None:
            scores = np.ones(int(n_planes.sum())) if kind == "graded" else number_planes(n_planes)
            weights = np.repeat(self.weights, n_planes, axis=0) * scores[:, None]
        return LevelItems(weights, self.level_offsets, n_planes, kind == "graded", self.gaussians)

    @property
    def gaussians(self) -> GaussianItems | None:
        """The continuous items as the kernels take them; None if there are none."""
        if self.deviations is None or self.scales is None or self.n_levels is None:
            return None
        own = self.n_levels == 1
        return GaussianItems(self.weights[own], self.offsets[own], self.deviations, self.scales)

    def select_items(self, segment: int) -> LatentTraitParams:
        """Return the items of a segment as if there were no groups.

        Those of other segments are the mean over the fitted ones.
        """
        if self.group_weights is None:
            return self
        shares = self._get_shares(segment)
        by_group = {name: getattr(self, f"group_{name}") for name in ITEM_ARRAYS}
        own: Any = {
            name: _pool(shares, array) for name, array in by_group.items() if array is not None
        }
        return replace(self, **own)

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
        if self.trait_mean is None:
            q = self.weights.shape[1]
            return TraitGroup(self.weights, self.offsets, np.zeros(q), np.eye(q), self.asymptotes)
        assert self.trait_covariance is not None
        shift = np.zeros(self.weights.shape[1])
        if self.coefficients is not None and self.covariate_center is not None:
            shift = self.covariate_center @ self.coefficients
        regression = self.coefficients, self.covariate_center
        if self.segments is None:
            root = np.linalg.cholesky(self.trait_covariance[0])
            mean = self.trait_mean[0] + shift
            return TraitGroup(self.weights, self.offsets, mean, root, self.asymptotes, *regression)
        assert self.group_weights is not None
        assert self.group_offsets is not None
        shares = self._get_shares(segment)
        mean = shares @ self.trait_mean
        distance = self.trait_mean - mean
        spread = self.trait_covariance + distance[:, :, None] * distance[:, None]
        covariance = np.asarray(np.tensordot(shares, spread, 1), np.float64)
        if len(mean) > MAX_COMPONENTS:  # only uncorrelated traits can be integrated out
            covariance = covariance * np.eye(len(mean))
        return TraitGroup(
            _pool(shares, self.group_weights),
            _pool(shares, self.group_offsets),
            mean + shift,
            np.asarray(np.linalg.cholesky(covariance), np.float64),
            join_asymptotes(
                None if self.group_guessing is None else _pool(shares, self.group_guessing),
                None if self.group_slipping is None else _pool(shares, self.group_slipping),
            ),
            *regression,
        )

    def get_population(self, segment: int) -> TraitGroup:
        """Return items and traits as `get_group`, but of rows whose covariates are unknown."""
        if self.population_mean is None:
            return self.get_group(segment)
        population = replace(
            self,
            trait_mean=self.population_mean,
            trait_covariance=self.population_covariance,
            coefficients=None,
            covariate_center=None,
        )
        return population.get_group(segment)

    def with_free_parameters(self, values: Array) -> LatentTraitParams:
        """Return a copy with other weights and offsets, side by side.

        Weights that diverge, because the data separate their items, are limited. Otherwise the next
        pass would overflow.
        """
        limited = np.clip(values, -MAX_PARAMETER, MAX_PARAMETER)
        return replace(self, weights=limited[:, :-1].copy(), offsets=limited[:, -1].copy())


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
    params = LatentTraitParams(weights, offsets, weights, axes, axes.copy())
    return params if asymptotes is None else replace(params, **asymptotes._asdict())


def unpack_answers(params: LatentTraitParams, block: BinaryBlock) -> tuple[Answers, Bits | None]:
    """Return the bits of a block with the values of continuous items next to them, and the mask.

    The values are standardized, and 0 where missing. With continuous items there always is a mask,
    as otherwise the last bits of a row's results could depend on other rows.
    """
    X, observed = block.unpack_values(), block.unpack_mask()
    if params.means is None or params.scales is None:
        return X, observed
    y = standardize_numbers(block, params.means, params.scales).T
    has_value = ~np.isnan(y)
    mask = np.ones_like(X) if observed is None else observed
    return (
        np.hstack([X.astype(np.float64), np.where(has_value, y, 0.0)]),
        np.hstack([mask, has_value.astype(np.uint8)]),
    )


def e_step(
    params: LatentTraitParams,
    working: Arrays,
    block: BinaryBlock,
    regression: RowRegression | None = None,
    may_leave_nodes: bool = False,
) -> Sums:
    """Compute the sums of the M-step by the estimator of the stage.

    With a regression, which quadrature alone can have, they include those of `sum_regression`. If
    rows `may_leave_nodes` that do not suit them, the sums have gradients instead of counts.
    """
    if "has_own_nodes" in working:
        run = partial(
            lattice_e_step,
            stretch=float(working.get("stretch", 1.0)),
            nodes_per_axis=count_own_nodes(params, working),
        )
        if regression is not None:
            run = partial(run, row_means=regression.means)
        return _e_step_with_gradient(run, params, block, regression)
    if "by_sites" in working:
        return _e_step_with_gradient(ep_e_step, params, block)
    if (blocks := blocks_from_working(working)) is not None:
        stretch = float(working.get("stretch", 1.0))
        kernel = partial(bifactor_e_step, blocks=blocks, stretch=stretch)
        return _e_step_with_gradient(kernel, params, block)
    if (nodes := nodes_from_working(working)) is not None:
        return _e_step_on_nodes(params, nodes, working, block, regression, may_leave_nodes)
    bits = (block.words, block.observed_words, block.n_samples)
    moments = variational_e_step(*bits, params.weights, params.offsets, block.row_weights)
    values = {
        "curvature": moments.curvature,
        "target": moments.target,
        "moments": moments.moments,
        "rounds": np.array(moments.rounds),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }
    return Sums.from_block(block, moments.bound, values)


def _e_step_on_nodes(
    params: LatentTraitParams,
    nodes: Nodes,
    working: Arrays,
    block: BinaryBlock,
    regression: RowRegression | None,
    may_leave_nodes: bool,
) -> Sums:
    X, observed = block.unpack_values(), block.unpack_mask()
    checks = checks_from_working(working)
    if checks is not None and not may_leave_nodes:
        checks = checks._replace(max_edge_share=1.0)
    row_means = None if regression is None else regression.means
    items = LevelItems.from_binary(*params.items, params.asymptotes)
    counts = node_statistics(X, observed, items, nodes, block.row_weights, row_means, checks)
    values = name_node_sums(counts, nodes, block)
    log_likelihood, codes = counts.log_likelihood, counts.codes
    if may_leave_nodes:
        ones, mass = values.pop("ones"), values.pop("mass")
        derivatives = differentiate_on_nodes(nodes.points, ones, mass, *params.items)
        values["gradient"], values["curvature"] = derivatives
        if (rows := np.flatnonzero(counts.is_outside)).size:
            others = centred_e_step(
                X[rows],
                None if observed is None else observed[rows],
                *params.items,
                None if block.row_weights is None else block.row_weights[rows],
                None if row_means is None else row_means[rows],
                CENTRED_NODES_PER_AXIS[params.weights.shape[1]][-1],
            )
            for name in ("gradient", "curvature", "moments"):
                values[name] = values[name] + getattr(others, name)
            log_likelihood += others.log_likelihood
            if row_means is not None:
                codes[rows] = others.codes
    values |= sum_regression(regression, codes, block.row_weights)
    return Sums.from_block(block, log_likelihood, values)


def name_node_sums(counts: NodeStatistics, nodes: Nodes, block: BinaryBlock) -> dict[str, Any]:
    """Return the sums of an E-step on nodes by name."""
    extended = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    return {
        "ones": counts.ones,
        "mass": counts.mass,
        "moments": extended.T @ (counts.rows[:, None] * extended),
        "peak": np.array(counts.peak),
        "error": np.array(counts.error),
        "empty_rows": np.array(block.count_unobserved_rows()),
    }


def _e_step_with_gradient(
    e_step: Callable[..., NewtonStatistics],
    params: LatentTraitParams,
    block: BinaryBlock,
    regression: RowRegression | None = None,
) -> Sums:
    X, observed = block.unpack_values(), block.unpack_mask()
    moments = e_step(X, observed, params.weights, params.offsets, block.row_weights)
    values = {
        "gradient": moments.gradient,
        "curvature": moments.curvature,
        "moments": moments.moments,
        "rounds": np.array(moments.rounds),
        "empty_rows": np.array(block.count_unobserved_rows()),
        **sum_regression(regression, moments.codes, block.row_weights),
    }
    return Sums.from_block(block, moments.log_likelihood, values)


def sum_regression(
    regression: RowRegression | None, codes: Array, row_weights: Array | None
) -> dict[str, Array]:
    """Return Σ_n r_n z_n ⟨u_n⟩ᵀ, (p, q), and Σ_n r_n ẑ_n ẑ_nᵀ with ẑ = (z, 1), (p + 1, p + 1).

    `codes` are ⟨u_n⟩, (n_samples, q), and `row_weights` r_n, (n_samples,), or all 1.
    """
    if regression is None:
        return {}
    z = np.column_stack([regression.covariates, np.ones(len(codes))])
    weighted = z if row_weights is None else z * row_weights[:, None]
    return {"covariate_codes": weighted[:, :-1].T @ codes, "covariate_products": weighted.T @ z}


def sum_level_regression(
    found: LevelStatistics, regression: RowRegression | None, row_weights: Array | None
) -> dict[str, Array]:
    """Return the moments of the traits, and the sums of `sum_regression`.

    A row whose prior mean m_n is far from 0 may decide Γ nearly alone, but only as far as its
    values inform about x: then ordinary EM hardly moves. Its step is that of Newton's method, with
    the curvature (1 − v) ẑ ẑᵀ of the log-likelihood of its values instead of ẑ ẑᵀ, where v is the
    smallest variance of its posterior, and 1 that of its prior. For that, the row has the weight
    1 − v, and its code the same distance from m_n divided by 1 − v.
    """
    if regression is None:
        return {"moments": found.moments}
    rows, d, covariance = found.far
    is_near = np.ones(len(regression.means), np.bool_)
    is_near[rows] = False
    weights = np.ones(len(is_near)) if row_weights is None else row_weights
    near = sum_regression(regression.take_rows(is_near), found.codes[is_near], weights[is_near])
    if not rows.size:
        return {"moments": found.moments, **near}
    r, (z, m) = weights[rows], regression.take_rows(rows)
    z = np.column_stack([z, np.ones(len(z))])
    share = 1 - np.linalg.eigvalsh(covariance)[:, 0]
    share = np.where(share > _MIN_SHARE, np.minimum(share, 1.0), 0.0)
    codes = share[:, None] * m + d
    moments = found.moments.copy()
    across = d[:, :, None] * m[:, None]
    squares = covariance + d[:, :, None] * d[:, None] + across + across.transpose(0, 2, 1)
    squares += share[:, None, None] * m[:, :, None] * m[:, None]
    moments[:-1, :-1] += np.tensordot(r, squares, 1)
    moments[-1, :-1] += r @ codes
    moments[:-1, -1] += r @ codes
    moments[-1, -1] += r.sum()
    return {
        "moments": moments,
        "covariate_codes": near["covariate_codes"] + (z[:, :-1] * r[:, None]).T @ codes,
        "covariate_products": near["covariate_products"] + (z * (r * share)[:, None]).T @ z,
    }


def sum_far_rows(params: LatentTraitParams, block: BinaryBlock, regression: RowRegression) -> Sums:
    """Compute the sums of `e_step` for rows whose prior means are far from 0."""
    (n_features, q), forms = params.weights.shape, params.free_parameters
    items = LevelItems(*params.items, np.ones(n_features, np.int64), True)
    nodes = Nodes(np.zeros((1, q)), np.zeros(1))
    found = sum_level_statistics(
        block.unpack_values(),
        block.unpack_mask(),
        items,
        SharedNodes(nodes, check_nodes(nodes, None), None),
        block.row_weights,
        regression.means,
    )
    j, k = np.triu_indices(q + 1)
    values = {
        "gradient": found.sums.slopes - np.einsum("iab,ib->ia", found.sums.curvatures, forms),
        "curvature": found.sums.curvatures[:, j, k],
        "empty_rows": np.array(block.count_unobserved_rows()),
        **sum_level_regression(found, regression, block.row_weights),
    }
    return Sums.from_block(block, found.log_likelihood, values)


def m_step(
    params: LatentTraitParams,
    nodes: Nodes | None,
    sums: Sums,
    prior_precision: float,
    equal_slopes: bool,
    is_expanded: bool,
) -> tuple[Array, NDArray[np.bool_]]:
    """Maximize over weights and offsets.

    If `is_expanded`, the distribution of the traits is also estimated, and absorbed in them.

    Return them side by side, (n_features, n_components + 1), and whether the weights of each
    feature grow without bound, (n_features,).
    """
    values, q = sums.values, params.weights.shape[1]
    traits = TraitGaussian(np.zeros(q), np.eye(q))
    if is_expanded:
        traits = estimate_trait_gaussian(values["moments"], params.weights, prior_precision)
    if "ones" in values:
        assert nodes is not None
        fit = logistic_m_step(
            traits.standardize(nodes.points),
            values["ones"],
            values["mass"],
            *traits.absorb(params.weights, params.offsets),
            prior_precision=prior_precision,
            equal_slopes=equal_slopes,
        )
        return np.column_stack([fit.weights, fit.offsets]), fit.diverged
    precision = prior_precision * traits.covariance
    if "gradient" in values:
        gradient, curvature = values["gradient"], values["curvature"]
        free = take_newton_step(
            gradient, curvature, params.free_parameters, precision, equal_slopes
        )
        weights, offsets = free[:, :-1], free[:, -1]
    else:
        weights, offsets = variational_m_step(values["curvature"], values["target"], precision)
    weights, offsets = traits.absorb(weights, offsets)
    return np.column_stack([weights, offsets]), np.linalg.norm(weights, axis=1) > MAX_SLOPE


def variational_posterior(params: LatentTraitParams, block: BinaryBlock) -> VariationalPosterior:
    """Compute the variational posterior of each row."""
    words, observed = block.words, block.observed_words
    return variational_row_posterior(
        words, observed, block.n_samples, params.weights, params.offsets
    )


def turn_to_principal_axes(params: LatentTraitParams) -> LatentTraitParams:
    """Rotate the weights to their principal axes, and record the rotation in `axes`."""
    weights = principal_axes(params.weights)
    left, _, right = np.linalg.svd(params.weights.T @ weights)
    return replace(params, weights=weights, axes=left @ right)


def rotate_weights(weights: Array, rotation: str) -> tuple[Array, Array]:
    """Rotate weights by `principal`, `varimax` or `promax`; also return component correlations."""
    if rotation == "promax":
        return promax(weights)
    rotated = varimax(weights) if rotation == "varimax" else weights
    return rotated, np.eye(weights.shape[1])


def principal_axes(loadings: Array) -> Array:
    """Rotate loadings, (n_features, n_components), so that columns are orthogonal, longest first.

    The largest loadings of a column have a positive sum; those of an only column, all of them.
    """
    left, lengths, _ = np.linalg.svd(loadings, full_matrices=False)
    return fix_signs(left * lengths, power=1 if loadings.shape[1] == 1 else 3)


def varimax(loadings: Array) -> Array:
    """Rotate loadings to maximize the variance of their squares within columns.

    H. F. Kaiser, "The varimax criterion for analytic rotation in factor analysis", Psychometrika
    23, 1958, with rows scaled to length 1. Columns are ordered by their sum of squares.
    """
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    scaled = loadings / np.where(lengths > 0, lengths, 1.0)
    rotation, criterion = np.eye(loadings.shape[1]), 0.0
    for _ in range(_MAX_VARIMAX_ROUNDS):
        rotated = scaled @ rotation
        target = rotated**3 - rotated * (rotated**2).mean(axis=0)
        left, values, right = np.linalg.svd(scaled.T @ target)
        rotation = left @ right
        if values.sum() <= criterion * (1 + _VARIMAX_TOLERANCE):
            break
        criterion = values.sum()
    rotated = loadings @ rotation
    ordered = rotated[:, np.argsort(-(rotated**2).sum(axis=0), kind="stable")]
    return fix_signs(ordered, power=1 if loadings.shape[1] == 1 else 3)


def promax(loadings: Array) -> tuple[Array, Array]:
    """Simplify varimax loadings by letting the components correlate.

    A. E. Hendrickson, P. O. White, "Promax: a quick method for rotation to oblique simple
    structure", British Journal of Statistical Psychology 17, 1964, with power 4.

    Return the loadings, (n_features, n_components), and the correlations of the components,
    (n_components, n_components).
    """
    start = varimax(loadings)
    target = start * np.abs(start) ** (PROMAX_POWER - 1)
    transform = np.linalg.lstsq(start, target, rcond=None)[0]
    # Scale the columns of the transform so that all components have variance 1.
    transform = transform * np.sqrt(np.diag(np.linalg.inv(transform.T @ transform)))
    inverse = np.linalg.inv(transform)
    return start @ transform, inverse @ inverse.T


@dataclass(frozen=True)
class NodeGrid:
    """A grid with the same number of nodes along each component."""

    nodes_per_axis: int
    n_components: int

    @property
    def max_slope(self) -> float:
        """The steepest slope along an axis that the nodes can resolve."""
        return _MAX_SLOPE_STEP * math.sqrt(self.nodes_per_axis) / math.pi

    def find_steep_features(self, weights: Array) -> Indices:
        """Return the features that are too steep for the nodes."""
        return np.flatnonzero(abs(weights).max(axis=1) > self.max_slope)

    def refine(self, weights: Array, peak: float = 0.0) -> NodeGrid | None:
        """Return a finer grid if the weights or the posteriors need one, else None.

        For steep weights the number of nodes is only doubled: weights that the nodes cannot resolve
        diverge, so their size does not show how many nodes are needed. `peak` is the mean posterior
        mass of the likeliest node.
        """
        n_nodes, limit = self.nodes_per_axis, NODES_PER_AXIS_LIMITS[self.n_components]
        if self.nodes_per_axis < min(count_nodes_for_slopes(weights), limit):
            n_nodes = 2 * self.nodes_per_axis
        elif self._axis_share(peak) > _MAX_PEAK_SHARE:
            n_nodes = self._count_nodes_for_peak(peak)
        n_nodes = min(n_nodes, limit)
        return NodeGrid(n_nodes, self.n_components) if n_nodes > self.nodes_per_axis else None

    def is_too_coarse(self, peak: float) -> bool:
        """Return whether the posteriors are too narrow for these nodes, see `refine`."""
        return self._axis_share(peak) > _WARNED_PEAK_SHARE

    def _axis_share(self, peak: float) -> float:
        return float(peak ** (1 / self.n_components))

    def _count_nodes_for_peak(self, peak: float) -> int:
        return math.ceil(self.nodes_per_axis * (self._axis_share(peak) / _TARGET_PEAK_SHARE) ** 2)

    def limit_slopes(self, weights: Array, offsets: Array) -> tuple[Array, Array]:
        """Scale steep items back to what the nodes can resolve, with the same thresholds."""
        slopes = abs(weights).max(axis=1)
        factor = self.max_slope / np.maximum(slopes, self.max_slope)
        return weights * factor[:, None], offsets * factor

    def make_working_state(self, has_row_means: bool = False) -> Arrays:
        """Return the nodes as working state, without those that hardly count.

        All of them count if rows have priors with means of their own.
        """
        nodes = gauss_hermite(self.nodes_per_axis, self.n_components)
        nodes = nodes if has_row_means else drop_light_nodes(nodes)
        return {**store_nodes(nodes, None), "nodes_an_axis": np.array(self.nodes_per_axis)}

    def is_diverging(self, weights: Array) -> NDArray[np.bool_]:
        """Return which weights no allowed number of nodes can resolve, (n_features,)."""
        is_finest = self.nodes_per_axis >= NODES_PER_AXIS_LIMITS[self.n_components]
        return np.asarray(is_finest & (np.linalg.norm(weights, axis=1) > MAX_SLOPE))

    def warn_about_nodes(
        self, weights: Array, diverging: Indices, peak: float, prior: str
    ) -> list[FitWarning]:
        """Warn about features too steep for the nodes, or posteriors too narrow for them.

        `peak` is the mean posterior mass of the likeliest node; `prior` is a setting that keeps the
        weights smaller.
        """
        steep = np.setdiff1d(self.find_steep_features(weights), diverging)
        enough = count_nodes_for_slopes(weights[steep])
        if steep.size:
            remedy = f"{{nodes={enough}}} or " if enough > self.nodes_per_axis else ""
            text = (
                f"features too steep for {self.nodes_per_axis} nodes per axis: {{features}}. Their "
                "weights may be far off, or diverge because the data separate them; use "
                f"{remedy}{prior}"
            )
            return [FitWarning(text, tuple(steep.tolist()))]
        if not self.is_too_coarse(peak):
            return []
        enough = self._count_nodes_for_peak(peak)
        remedy = (
            f"{{nodes={enough}}}"
            if enough <= MAX_NODES_PER_AXIS
            else "{estimator=ep}, which needs none"
        )
        text = (
            f"the posteriors of many rows are narrower than the distance of {self.nodes_per_axis} "
            f"nodes per axis: the objective may be off by 0.01 nats per row; use {remedy}"
        )
        return [FitWarning(text)]


@dataclass(frozen=True)
class EvenGrid(NodeGrid):
    """A grid of equally spaced nodes, chosen for the items."""

    spacing: float

    @property
    def max_slope(self) -> float:
        """The steepest slope along an axis that the nodes can resolve."""
        return _MAX_SLOPE_STEP / self.spacing

    def is_diverging(self, weights: Array) -> NDArray[np.bool_]:
        """Return which weights are too large to be estimates, (n_features,)."""
        return np.asarray(np.linalg.norm(weights, axis=1) > MAX_SLOPE)

    def warn_about_nodes(
        self, weights: Array, diverging: Indices, peak: float, prior: str
    ) -> list[FitWarning]:
        """Warn if the number of nodes that was set is too small."""
        steep = np.setdiff1d(self.find_steep_features(weights), diverging)
        if not steep.size and not self.is_too_coarse(peak):
            return []
        text = f"{self.nodes_per_axis} nodes are too few for these items; leave out {{nodes}}"
        return [FitWarning(text)]


def count_nodes_for_slopes(weights: Array) -> int:
    """Return the nodes per axis that these weights need, (n_features, n_components)."""
    steepest = float(abs(weights).max(initial=0.0))
    return min(math.ceil((math.pi * steepest / _MAX_SLOPE_STEP) ** 2), MAX_NODES_PER_AXIS)


def choose_first_grid(weights: Array) -> NodeGrid:
    """Return the default grid, refined for the weights of an earlier fit or stage."""
    q = weights.shape[1]
    grid = NodeGrid(NODES_PER_AXIS[q], q)
    while (finer := grid.refine(weights)) is not None:
        grid = finer
    return grid


def needs_own_nodes(weights: Array, offsets: Array, is_complete: bool) -> bool:
    """Return whether each row should have its own nodes.

    Without missing values, a lattice is as fast as a grid, and more exact. Otherwise, rows have
    their own nodes if posteriors are probably too narrow for any grid: the likeliest node of a
    normal posterior with standard deviation s has a mass of about h / (s √2π) along an axis, if the
    nodes are h apart. s is that of a row at the origin.
    """
    if is_complete and choose_lattice(weights, offsets) is not None:
        return True
    q = weights.shape[1]
    information = weights.T @ (weights * (expit(offsets) * expit(-offsets))[:, None])
    log_precision = float(np.linalg.slogdet(np.eye(q) + information)[1]) / q
    grid = NodeGrid(NODES_PER_AXIS_LIMITS[q], q)
    spacing = math.pi / math.sqrt(grid.nodes_per_axis)
    share = spacing * math.exp(0.5 * log_precision) / math.sqrt(2 * math.pi)
    return grid.is_too_coarse(share**q)


def count_own_nodes(params: LatentTraitParams, working: Arrays) -> int:
    """Return the number per axis of nodes that are centred at each row."""
    first = CENTRED_NODES_PER_AXIS[params.weights.shape[1]][0]
    return int(working.get("own_nodes", first))


def describe_own_nodes(
    params: LatentTraitParams, working: Arrays, is_complete: bool
) -> dict[str, Any]:
    """Describe the nodes of rows that have their own."""
    if is_complete and (lattice := choose_lattice(params.weights, params.offsets)) is not None:
        return {"node_spacing": lattice.stretch(float(working.get("stretch", 1.0))).spacing}
    return {
        "nodes_an_axis": count_own_nodes(params, working),
        "nodes_are_centred": True,
    }


def find_steep_features(params: LatentTraitParams, working: Arrays, is_complete: bool) -> Indices:
    """Return the features that are too steep for the nodes of the last pass.

    Nodes centred at each row are used if posteriors are narrower than the distance of the finest
    grid. So they resolve at least the slopes that this grid resolves.
    """
    if "spacing" in working:  # of items with several levels
        max_slope = _MAX_SLOPE_STEP / float(working["spacing"])
        return np.flatnonzero(np.linalg.norm(params.get_group(0).items.weights, axis=1) > max_slope)
    if (grid := grid_from_working(working)) is None:
        return np.empty(0, np.intp)
    has_lattice = "has_own_nodes" in working and is_complete
    lattice = choose_lattice(params.weights, params.offsets) if has_lattice else None
    if lattice is None:
        return grid.find_steep_features(params.weights @ params.axes.T)
    max_slope = _MAX_SLOPE_STEP / lattice.spacing
    return np.flatnonzero(np.linalg.norm(params.weights, axis=1) > max_slope)


def grid_from_working(working: Arrays) -> NodeGrid | None:
    """Return the grid of a stage, or None if it uses none."""
    if "nodes_an_axis" not in working:
        return None
    if "node_spacing" in working:
        n_nodes, q = working["points"].shape
        return EvenGrid(n_nodes, q, float(working["node_spacing"]))
    return NodeGrid(int(working["nodes_an_axis"]), working["points"].shape[1])


def begin_finer_stage(
    state: FitState, statistics: Sums, items: Sequence[TraitItems], has_row_means: bool
) -> FitState | None:
    """Start a stage with more nodes, or other ones; None if the integrals are exact enough.

    Steep items are scaled back to what the nodes of this stage resolve. Once Gauss–Hermite nodes
    resolve the items, equally spaced ones follow, as far apart as the items of all groups allow.
    Half of them estimate the error, which decides whether more are needed. If they would be too
    many, rows have their own nodes, more of them in each stage until it changes the log-likelihood
    little.
    """
    if float(state.working.get("stretch", 1.0)) > 1:
        return use_last_lattice(state)
    grid = grid_from_working(state.working)
    if grid is None:
        return None
    if "has_own_nodes" in state.working:
        return _add_own_nodes(state, statistics, items)
    if isinstance(grid, EvenGrid):
        return _add_even_nodes(state, statistics, items)
    peak = float(statistics.values["peak"]) / statistics.weight
    if (finer := grid.refine(state.params.weights, peak)) is None:
        if (even := _begin_even_stage(state, items, _EVEN_STRETCH)) is not None:
            return even
        return _begin_own_stage(state)
    weights, offsets = grid.limit_slopes(state.params.weights, state.params.offsets)
    params = replace(state.params, weights=weights, offsets=offsets)
    nodes = finer.make_working_state(has_row_means)
    return replace(state, params=params, working={**state.working, **nodes})


def count_max_nodes(n_features: int, n_components: int) -> int:
    """Return the largest number of nodes that all rows share in a fit that chooses them."""
    return min(_MAX_SHARED_NODES[n_components], max(_MAX_COUNTS // n_features, 1))


def _begin_even_stage(
    state: FitState, items: Sequence[TraitItems], stretch: float
) -> FitState | None:
    most = count_max_nodes(*state.params.weights.shape)
    while (found := list_even_nodes(items, stretch, most)) is None:
        stretch *= 1.1
        if stretch > _MAX_EVEN_STRETCH:
            return None
    nodes, spacing = found
    working = {
        **state.working,
        **store_nodes(nodes, spacing),
        "nodes_an_axis": np.array(len(nodes.points)),
        "node_spacing": np.array(spacing),
        "node_stretch": np.array(stretch),
    }
    return replace(state, working=working)


def _add_even_nodes(
    state: FitState, statistics: Sums, items: Sequence[TraitItems]
) -> FitState | None:
    """Start a stage with more equally spaced nodes if the error is too large."""
    error, stretch = float(statistics.values["error"]), float(state.working["node_stretch"])
    if error <= MAX_INTEGRATION_ERROR:
        return None
    # The logarithm of the error of a row is proportional to the density of nodes, or its square.
    ratio = math.log(error / statistics.weight) / math.log(
        MAX_INTEGRATION_ERROR / statistics.weight
    )
    # Posteriors that are still far too narrow would need more and more nodes.
    is_hopeless = ratio < _MIN_RATIO and stretch < _EVEN_STRETCH
    finer = None
    if not is_hopeless or state.auxiliary["diverging"].size:
        finer = _begin_even_stage(state, items, stretch * min(max(ratio, _MIN_RATIO), 0.95))
    if finer is None or finer.working["node_spacing"] >= 0.99 * state.working["node_spacing"]:
        # Few nodes of its own do not suit a row whose curves are steps.
        return None if state.auxiliary["diverging"].size else _begin_own_stage(state)
    return finer


def _begin_own_stage(state: FitState) -> FitState:
    """Start a stage with nodes that are centred at each row."""
    first = CENTRED_NODES_PER_AXIS[state.params.weights.shape[1]][0]
    own = {"has_own_nodes": np.array(1), "own_nodes": np.array(first)}
    return replace(state, working={**state.working, **own})


def _add_own_nodes(
    state: FitState, statistics: Sums, items: Sequence[TraitItems]
) -> FitState | None:
    """Start a stage with more nodes per row unless fewer have given the same log-likelihood.

    Equally spaced ones come first if they are possible, because they cost less than many per row.
    """
    params, working = state.params, state.working
    if working.get("is_complete", False) and choose_lattice(params.weights, params.offsets):
        return None
    if "own_nodes" not in working:
        shared = {name: value for name, value in working.items() if name != "has_own_nodes"}
        even = _begin_even_stage(replace(state, working=shared), items, _EVEN_STRETCH)
        if even is not None:
            return even
    numbers = CENTRED_NODES_PER_AXIS[params.weights.shape[1]]
    place = numbers.index(count_own_nodes(params, working))
    error = estimate_integration_error(state, statistics)
    if place == len(numbers) - 1 or error <= MAX_INTEGRATION_ERROR:
        return None
    own = {
        "own_nodes": np.array(numbers[place + 1]),
        "coarse": np.array(statistics.objective),
        "change": np.array(statistics.objective - float(working.get("coarse", np.nan))),
    }
    return replace(state, working={**working, **own})


def estimate_integration_error(state: FitState, statistics: Sums) -> float:
    """Return the estimated error of the log-likelihood of all rows, nats; NaN if unknown.

    Errors of centred nodes shrink by a ratio with every stage, so that what is left is a geometric
    series.
    """
    working = state.working
    if "is_odd" in working and "has_own_nodes" not in working:
        return float(statistics.values["error"])
    change = abs(statistics.objective - float(working.get("coarse", np.nan)))
    before = abs(float(working.get("change", np.nan)))
    ratio = np.clip(change / before, _ERROR_RATIO, _MAX_ERROR_RATIO) if before else _ERROR_RATIO
    ratio = float(np.nan_to_num(ratio, nan=_ERROR_RATIO))
    return change * ratio / (1 - ratio)


def use_last_lattice(state: FitState) -> FitState:
    """Use a lattice whose error of the log-likelihood of all rows is small, if there is one.

    At a stretch s, the error per row is at most about exp(−c / s^1.3): that of a logistic curve
    falls with exp(−1 / s), and that of a Gaussian with exp(−1 / s²).
    """
    if "stretch" not in state.working:
        return state
    decay = _LATTICE_DECAY[min(state.params.weights.shape[1], 2)]
    needed = math.log(float(state.auxiliary["weight"]) / MAX_INTEGRATION_ERROR)
    stretch = (decay / max(decay, needed)) ** (1 / 1.3)
    return replace(state, working={**state.working, "stretch": np.array(stretch)})


def nodes_from_working(working: Arrays) -> Nodes | None:
    """Return the nodes of the E-step, or None if it uses none."""
    return Nodes(working["points"], working["log_weights"]) if "points" in working else None


def store_nodes(nodes: Nodes, spacing: float | None) -> Arrays:
    """Return nodes, and what `check_nodes` finds for them, as working state.

    It is found before the nodes are turned to other axes.
    """
    is_edge, is_odd, max_edge_share = check_nodes(nodes, spacing)
    checks = {"is_edge": is_edge, "max_edge_share": np.array(max_edge_share)}
    if is_odd is not None:
        checks["is_odd"] = is_odd
    return {**nodes._asdict(), **checks}


def checks_from_working(working: Arrays) -> NodeChecks | None:
    """Return what finds rows that the nodes do not suit; None for nodes without it."""
    if "is_edge" not in working:
        return None
    return NodeChecks(working["is_edge"], working.get("is_odd"), float(working["max_edge_share"]))


def blocks_from_working(working: Arrays) -> TraitBlocks | None:
    """Return the blocks of items of a bifactor model, or None if the E-step uses none."""
    return find_trait_blocks(working["loads"]) if "loads" in working else None


def represents_all_scales(params: LatentTraitParams, working: Arrays, sums: Sums) -> bool:
    """Return whether the estimate of the likelihood does not depend on the scale of the traits.

    It does for random draws, and for a grid that does not resolve the items or the posteriors.
    Parameter expansion would then lower the estimate.
    """
    if not sums.values.get("ones", np.zeros(0)).size:
        return True
    if (grid := grid_from_working(working)) is None:
        return False
    is_resolved = not len(grid.find_steep_features(params.weights))
    return is_resolved and not grid.is_too_coarse(float(sums.values["peak"]) / sums.weight)


def is_variational(working: Arrays) -> bool:
    """Return whether the E-step of a stage is variational."""
    return nodes_from_working(working) is None and not {"by_sites", "loads"} & {*working}


def has_likelihood(working: Arrays) -> bool:
    """Return whether a stage maximizes the likelihood, exactly or by expectation propagation."""
    return grid_from_working(working) is not None or bool({"by_sites", "loads"} & {*working})
