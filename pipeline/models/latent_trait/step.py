"""The M-step for items of any kind; a binary item has one plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.design import LevelDesign
from pipeline.models.latent_trait.item_priors import PlacedPrior, differentiate_log_prior
from pipeline.numerics.logistic.asymptotes import MAX_LOGIT, Asymptotes
from pipeline.numerics.logistic.asymptotes import (
    compute_log_probabilities as compute_asymptote_probabilities,
)
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    compute_log_probabilities,
    count_levels_at_nodes,
    iter_alike,
)
from pipeline.numerics.logistic.categories.gaussian_items import expect_log_likelihood
from pipeline.numerics.logistic.categories.scores import (
    LevelSums,
    extend_points,
    sum_form_curvature,
    sum_form_gradient,
)
from pipeline.numerics.logistic.newton_step import differentiate_on_nodes

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_MAX_STEPS, _MAX_HALVINGS = 4, 20
_MIN_RANGE = 1e-3  # of a curve with asymptotes: 1 − s − g
_MAX_LENGTH = 50.0  # of the weights of an item; on nodes, longer ones are steps
_MAX_SLOPE = 22.0  # of baseline forms; beyond `stages.MAX_SLOPE`, no lattice resolves them
_MAX_CHANGE = 1.0  # of a form, in a step by a quadratic function
_LONGEST_STEP = 1e100  # so that its length does not overflow
_MIN_STEP = 1e-5  # shorter steps end the M-step; the next pass goes on
_RIDGE = 1e-9  # of the diagonal; gives a solution to items with hardly any curvature
_TOLERATED_LOSS = 1e-12


class ItemGroup(NamedTuple):
    """Items of a group of rows, nodes, (n_nodes, q), and sums over these rows at the nodes."""

    items: LevelItems
    points: Array
    sums: LevelSums

    @classmethod
    def transform(
        cls, items: LevelItems, points: Array, sums: LevelSums, matrix: Array
    ) -> ItemGroup:
        """Return the group for A x̂ instead of x̂ = (x, 1); `items` are those of A x̂."""
        return cls(items, extend_points(points) @ matrix[:-1].T, sums.transform(matrix))

    def count_levels(self) -> list[Array]:
        """Return the expected numbers of levels at the nodes, as `iter_alike` has the items."""
        return [
            count_levels_at_nodes(self.sums.ones, self.sums.mass, alike)
            for alike in iter_alike(self.items.n_planes)
        ]

    def expect_log_likelihood(self, counts: Sequence[Array]) -> Array:
        """Return the expected log-likelihood of each item, (n_features,), up to constants.

        `counts` is the result of `count_levels`.
        """
        items, eta = self.items, self.items.compute_forms(self.points)
        if items.asymptotes is not None:
            return _expect_with_asymptotes(eta, items.asymptotes, self.sums)
        by_item = np.zeros(len(items.n_planes))
        for alike, own in zip(iter_alike(items.n_planes), counts, strict=True):
            log_p = compute_log_probabilities(eta[alike.planes], items.is_cumulative)
            nats = np.multiply(own, log_p, where=own > 0, out=np.zeros_like(own))
            by_item[alike.features] = nats.sum(axis=(1, 2))
        forms = np.column_stack([items.weights, items.offsets])
        own = (
            self.sums.linear - 0.5 * np.einsum("jab,jb->ja", self.sums.curvatures, forms)
        ) * forms
        np.add.at(by_item, np.repeat(np.arange(len(by_item)), items.n_planes), own.sum(axis=1))
        if items.gaussians is not None:
            of_numbers = expect_log_likelihood(items.gaussians, self.sums.gaussians)
            by_item[items.n_planes == 0] = of_numbers
        return by_item


def take_level_steps(
    design: LevelDesign,
    groups: Sequence[ItemGroup],
    prior_precision: float,
    priors: Sequence[PlacedPrior] = (),
) -> Array:
    """Take up to four steps of Fisher scoring for all free parameters of items.

    Items that share no parameter with others are independent. The step of each such set of items is
    halved until their expected log-likelihood plus log prior does not fall.

    Parameters
    ----------
    design
        How weights and offsets depend on the free parameters.
    groups
        Items and sums of each group of rows; one without groups.
    prior_precision
        Precision of the normal priors of slopes, see `LevelDesign.n_priors`.
    priors
        Further priors.

    Returns
    -------
    ndarray
        The new weights and offsets of all forms of all groups, (n_groups n_forms, q + 1).
    """
    forms = np.concatenate([group.items.to_forms() for group in groups])
    if not design.n_free:
        return design.fill(np.zeros(0))
    free = design.collect(forms)
    prior = prior_precision * design.n_priors
    n_sets, set_of_item, set_of_parameter = design.independent_sets
    if not any(len(group.points) for group in groups):
        return design.fill(free + _solve_quadratic(design, groups, free, prior))
    counts = [group.count_levels() for group in groups]

    def move(free: Array) -> list[ItemGroup]:
        """Return the groups with other parameters of items."""
        by_group = np.split(design.fill(free), len(groups))
        return [
            group._replace(items=group.items.with_forms(own))
            for group, own in zip(groups, by_group, strict=True)
        ]

    def score(free: Array) -> Array:
        """Return the objective of each set of items."""
        by_item = np.zeros(len(design.n_planes))
        for group, own in zip(move(free), counts, strict=True):
            by_item += group.expect_log_likelihood(own)
        of_items = np.bincount(set_of_item, by_item, n_sets)
        penalty = 0.5 * prior * free**2
        for places, own_prior in priors:
            penalty[places] -= own_prior.compute_log_density(free[places])
        return np.asarray(of_items - np.bincount(set_of_parameter, penalty, n_sets))

    limit = np.full(design.n_free, np.inf)
    if not groups[0].items.is_cumulative:
        limit[design.is_slope] = _MAX_SLOPE
    if design.has_asymptotes:
        for name in ("guessing", "slipping"):
            limit[design.find_offsets(name)] = MAX_LOGIT
    best = score(free)
    # Curves with asymptotes cost more than the passes that further steps would save.
    for _ in range(1 if design.has_asymptotes else _MAX_STEPS):
        own_gradient, own_curvature = differentiate_log_prior(free, priors)
        curvature = prior + np.maximum(own_curvature, 0.0)
        step = _solve_for_step(design, move(free), own_gradient - prior * free, curvature)
        step = _limit_step(step)
        scale = np.ones(n_sets)
        for _ in range(_MAX_HALVINGS):
            moved = np.clip(free + scale[set_of_parameter] * step, -limit, limit)
            reached = score(moved)
            is_worse = ~(reached >= best - _TOLERATED_LOSS * np.abs(best))
            if not is_worse.any():
                break
            scale[is_worse] *= 0.5
        scale[is_worse] = 0.0
        free = np.clip(free + scale[set_of_parameter] * step, -limit, limit)
        best = np.where(is_worse, best, reached)
        if np.abs(step).max() < _MIN_STEP:
            break
    if design.separate_items is not None:
        forms = free.reshape(-1, design.n_components + 1)
        length = np.linalg.norm(forms[:, :-1], axis=1, keepdims=True)
        free = (forms * (_MAX_LENGTH / np.maximum(length, _MAX_LENGTH))).ravel()
    return design.fill(free)


def _limit_step(step: Array) -> Array:
    """Return a step whose length does not overflow, and which is 0 without curvature."""
    return np.clip(np.nan_to_num(step), -_LONGEST_STEP, _LONGEST_STEP)


def _expect_with_asymptotes(eta: Array, asymptotes: Asymptotes, sums: LevelSums) -> Array:
    """Return the expected log-likelihood of each item; −∞ if its asymptotes exceed 1 together."""
    is_valid = 1 - asymptotes.guessing - asymptotes.slipping >= _MIN_RANGE
    valid = Asymptotes(*(np.where(is_valid, p, 0.0) for p in asymptotes))
    log_one, log_zero = compute_asymptote_probabilities(eta, valid.by_item)
    by_node = sums.ones * log_one + (sums.mass - sums.ones) * log_zero
    return np.where(is_valid, by_node.sum(axis=1), -np.inf)


def _solve_for_step(
    design: LevelDesign, groups: Sequence[ItemGroup], prior_gradient: Array, prior_curvature: Array
) -> Array:
    """Return a step of Fisher scoring for all free parameters, (n_free,)."""
    if (items := design.separate_items) is not None:
        return _solve_by_item(items, groups[0], prior_gradient, prior_curvature)
    J = design.matrix
    gradient = np.concatenate([sum_form_gradient(*group) for group in groups])
    blocks = [sum_form_curvature(*group, is_expected=True) for group in groups]
    curvature = blocks[0] if len(blocks) == 1 else scipy.sparse.block_diag(blocks, format="csc")
    hessian = J.T @ curvature @ J
    ridge = prior_curvature + _RIDGE * hessian.diagonal() + np.finfo(float).tiny
    hessian = (hessian + scipy.sparse.diags_array(ridge)).tocsc()
    slope = J.T @ gradient + prior_gradient
    return np.atleast_1d(scipy.sparse.linalg.spsolve(hessian, slope))


def _solve_by_item(
    items: Indices, group: ItemGroup, prior_gradient: Array, prior_curvature: Array
) -> Array:
    """Return the step of these items of one plane each, which share no parameter: much faster."""
    (own, points, sums), width = group, group.items.weights.shape[1] + 1
    forms, hessian = own.to_forms(), sums.curvatures[items]
    slope = sums.linear[items] - np.einsum("jab,jb->ja", hessian, forms[items])
    if len(points):
        derivatives = differentiate_on_nodes(
            points, sums.ones[items], sums.mass[items], forms[items]
        )
        slope, hessian = slope + derivatives[0], hessian + derivatives[1]
    slope = slope + prior_gradient.reshape(-1, width)
    trace = np.einsum("jaa->j", hessian)[:, None]
    ridge = prior_curvature.reshape(-1, width) + _RIDGE * trace + np.finfo(float).tiny
    hessian = hessian + ridge[:, :, None] * np.eye(width)
    return np.asarray(np.linalg.solve(hessian, slope[:, :, None]).ravel())


def _solve_quadratic(
    design: LevelDesign, groups: Sequence[ItemGroup], free: Array, prior: Array
) -> Array:
    """Return the step to the maximum of a quadratic function, shortened where it is long."""
    step = _limit_step(_solve_for_step(design, groups, -prior * free, prior))
    width = design.n_components + 1
    n_sets, set_of_item, set_of_parameter = design.independent_sets
    change = np.linalg.norm((design.matrix @ step).reshape(-1, width), axis=1)
    scale = np.ones(n_sets)
    limits = np.minimum(1.0, _MAX_CHANGE / np.maximum(change, _MAX_CHANGE))
    np.minimum.at(scale, set_of_item[design.item_of_row[::width]], limits)
    return np.asarray(scale[set_of_parameter] * step)
