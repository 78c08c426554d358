"""The M-step for the distribution of traits that depend on covariates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.covariates import MAX_FIRST_COVARIATE, Covariates, find_collinear
from pipeline.errors import FitError
from pipeline.models.latent_trait.group_design import (
    MIN_VARIANCE,
    GroupDesign,
    factorize,
    get_traits,
)
from pipeline.models.latent_trait.params import LatentTraitParams, Traits
from pipeline.models.state import FitState
from pipeline.numerics.logistic.categories.scores import RowRegression
from pipeline.numerics.logistic.lattice_nodes import MAX_MEAN_REACH
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

_MAX_CONTRADICTION = 300.0  # nats that rows of high leverage may cost
_MIN_VARIANCE_SHARE = 0.1  # of a variance before a step


class Regression(NamedTuple):
    """The traits in group g, N(μ_g + Γᵀz, Σ_g).

    Attributes
    ----------
    mean, covariance
        μ_g, (n_groups, q), and Σ_g, (n_groups, q, q).
    coefficients
        Γ, (n_covariates, q).
    """

    mean: Array
    covariance: Array
    coefficients: Array


def move_origin(
    design: GroupDesign, items: Array, mean: Array, shift: Array
) -> tuple[Array, Array]:
    """Return items and means of the same model where the covariates' effect is less by `shift`.

    Offsets take the effect up, w·shift, or the means do if offsets are known; with neither, `shift`
    must be 0.
    """
    if design.origin == "offsets":
        q, items = design.n_components, items.copy()
        items[:, :, q] += items[:, :, :q] @ shift
        return items, mean
    return items, mean + shift


def _list_places(design: GroupDesign, n_groups: int) -> NDArray[np.int64]:
    """Return the number of the free mean of each group, -1 where it is known, (n_groups,)."""
    is_free = design.has_free_mean
    if not design.is_expanded:
        return np.where(is_free, np.cumsum(is_free) - 1, -1)
    if design.are_means_absorbed or is_free.any():
        return np.arange(n_groups)
    return np.zeros(n_groups, np.int64)


def find_unidentified_covariate(design: GroupDesign, products: Array) -> int | None:
    """Return a covariate whose coefficient the groups' means determine, if there is one.

    `products` are Σ_n ẑ ẑᵀ of each group with ẑ = (z, 1), (n_groups, p + 1, p + 1).
    """
    places = _list_places(design, len(products))
    scatter = products[places < 0].sum(axis=0)[:-1, :-1]
    for place in range(places.max(initial=-1) + 1):
        own = products[places == place].sum(axis=0)
        scatter = scatter + own[:-1, :-1] - np.outer(own[:-1, -1], own[-1, :-1]) / own[-1, -1]
    total = products.sum(axis=0)[:-1, :-1]
    lost = np.flatnonzero(np.diag(scatter) < 1e-9 * np.diag(total))
    return int(lost[0]) if lost.size else find_collinear(scatter)


def estimate_regression(
    design: GroupDesign, old: Regression, sums: Mapping[str, NDArray[Any]]
) -> Regression:
    """M-step for the distribution of the traits.

    Parameters
    ----------
    design
        Which parameters are estimated.
    old
        The traits before the step.
    sums
        Of each group: `moments`, Σ_n ⟨û ûᵀ⟩ with û = (u, 1); `covariate_codes`, Σ_n z ⟨u⟩ᵀ; and
        `covariate_products`, Σ_n ẑ ẑᵀ with ẑ = (z, 1).

    Returns
    -------
    Regression
        The new traits. If the model is expanded, they are estimated in all groups; see
        `absorb_traits`.
    """
    moments, products = sums["moments"], sums["covariate_products"]
    (n_groups, q), p = old.mean.shape, len(old.coefficients)
    root, precision = factorize(old.covariance), np.linalg.inv(old.covariance)
    back = root.transpose(0, 2, 1)
    # Sums of d = x − μ_g before the step.
    targets = np.concatenate([sums["covariate_codes"], moments[:, None, -1, :-1]], axis=1) @ back
    squares = root @ moments[:, :-1, :-1] @ back
    # B has the lines of Γ, then the changes of the free means.
    places = _list_places(design, n_groups)
    size = p + places.max(initial=-1) + 1
    left, right, traits = np.zeros((size, q, size, q)), np.zeros((size, q)), np.arange(q)
    for group, place in enumerate(places):
        used = np.append(np.arange(p), [] if place < 0 else p + place).astype(np.int64)
        own = products[group, : len(used), : len(used)]
        left[np.ix_(used, traits, used, traits)] += np.einsum("ij,kl->ikjl", own, precision[group])
        right[used] += targets[group, : len(used)] @ precision[group]
    flat = left.reshape(size * q, -1)
    scale = 1 / np.sqrt(np.maximum(np.diag(flat), np.finfo(float).tiny))
    solved = scale * np.linalg.solve(scale[:, None] * flat * scale, scale * right.ravel())
    effects = np.append(solved.reshape(size, q), np.zeros((1, q)), axis=0)  # -1 is the last place
    shift = effects[np.where(places < 0, size, p + places)]
    rows = np.concatenate([np.tile(effects[:p], (n_groups, 1, 1)), shift[:, None]], axis=1)
    cross = rows.transpose(0, 2, 1) @ targets
    scatter = squares - cross - cross.transpose(0, 2, 1)
    scatter += rows.transpose(0, 2, 1) @ products @ rows
    n = moments[:, -1, -1]
    has_free = design.has_free_covariance
    if design.is_expanded and not has_free.any():
        pooled = scatter.sum(axis=0) / n.sum()
        covariance = np.tile(pooled, (n_groups, 1, 1))
    else:
        covariance = scatter / n[:, None, None]
    covariance = _limit_shrinkage(covariance + MIN_VARIANCE * np.eye(q), root)
    if not design.is_expanded:
        covariance = np.where(has_free[:, None, None], covariance, old.covariance)
    return Regression(old.mean + shift, covariance, effects[:p])


def _limit_shrinkage(covariance: Array, root: Array) -> Array:
    """Keep the variances of groups, (n_groups, q, q), from falling below a share of those before.

    `root` are the Cholesky factors before the step. Rows whose prior means are far from 0 have
    weights of Newton's method, so that far from the optimum the step may pass 0.
    """
    inverse = np.linalg.inv(root)
    variances, axes = np.linalg.eigh(inverse @ covariance @ inverse.transpose(0, 2, 1))
    if (variances > _MIN_VARIANCE_SHARE).all():
        return covariance
    axes = root @ axes
    kept = np.maximum(variances, _MIN_VARIANCE_SHARE)
    return np.asarray((axes * kept[:, None]) @ axes.transpose(0, 2, 1))


def get_coefficients(params: LatentTraitParams) -> tuple[Array, Array]:
    """Return Γ, (n_covariates, q), and the center of the covariates, (n_covariates,)."""
    assert params.regression is not None
    return params.regression.coefficients, params.regression.covariate_center


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
    return replace(state, params=state.params.with_coefficients(own), working=working)


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


def describe_population(
    params: LatentTraitParams, statistics: Sums, scale: Array
) -> tuple[Traits, list[float]]:
    """Return the traits over the fitted rows, and the shares of variance that covariates explain.

    `scale` has the deviations of the covariates.
    """
    (coefficients, center), (mean, covariance) = get_coefficients(params), get_traits(params)
    products = statistics.values["covariate_products"]
    n_rows = products[:, -1:, -1]
    z_mean = products[:, :-1, -1] / n_rows
    z_covariance = products[:, :-1, :-1] / n_rows[:, :, None]
    z_covariance -= z_mean[:, :, None] * z_mean[:, None]
    own = coefficients * scale[:, None]
    explained = own.T @ z_covariance @ own
    population = Traits(mean + center @ coefficients + z_mean @ own, covariance + explained)
    shares = n_rows[:, 0] / n_rows.sum()
    variances = [np.diag(np.tensordot(shares, part, 1)) for part in (explained, covariance)]
    return population, (variances[0] / (variances[0] + variances[1])).tolist()
