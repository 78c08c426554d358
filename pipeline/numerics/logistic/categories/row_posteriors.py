"""Posteriors of the traits of rows whose items have several levels, or are continuous.

Most rows share nodes. The others are

- exact, if they have continuous values only: their posterior is normal (`gaussian_items`);
- on points of their own, if their posterior lies outside the shared nodes, or is too narrow for
  them. Priors and continuous values leave a normal distribution N(μ_n, P_n⁻¹), and the points are
  those of a Gauss–Hermite rule, placed by the mode and curvature of its product with the
  probabilities of the levels (J. C. Naylor, A. F. M. Smith, Applied Statistics 31 (1982)).

So outliers of continuous values, priors far from 0, and known items far from all others do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.categories.curves import (
    Answers,
    LevelItems,
    choose_level_lattice,
    compute_item_information,
    count_item_levels,
    iter_alike,
    make_level_nodes,
)
from pipeline.numerics.logistic.categories.gaussian_items import ConditionalGaussians
from pipeline.numerics.logistic.centred_nodes import fill_row_curves
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    NodeChecks,
    Nodes,
    RowPosterior,
    check_nodes,
    gauss_hermite,
    node_posterior,
)
from pipeline.numerics.logistic.lattice_nodes import MAX_MEAN_REACH, find_mean_reach
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_FINE = {1: 0.5, 2: 0.75, 3: 1.0}  # distance of the nodes of rows' posteriors; see `stretch`
_COARSE = 1.0 / 0.75  # distance of the nodes that check the result
_OWN_POINTS = {1: 31, 2: 17, 3: 9}  # per axis, by the number of components
_MAX_WIDTH_RATIO = 1.05  # of the distance of nodes to that which a row's posterior needs
_MAX_STEPS, _MIN_GAIN = 100, 1e-10  # of Newton's method; nats
_BATCH_ENTRIES = 2**19  # derivatives of rows at their points: 4 MiB


def indicate_levels(X: Bits, observed: Bits | None, n_planes: Indices) -> Floats:
    """Return the indicators of the levels of rows, (n_samples, n_levels); 0 if missing."""
    mask = np.ones_like(X) if observed is None else observed
    bits = X & mask
    indicators = np.zeros((len(X), count_item_levels(n_planes).sum()))
    for alike in iter_alike(n_planes):
        first = mask[:, alike.planes[:, :1]]
        cumulative = np.concatenate([first, bits[:, alike.planes]], axis=2).astype(np.float64)
        cumulative[:, :, :-1] -= cumulative[:, :, 1:]
        indicators[:, alike.levels] = cumulative
    return indicators


class RowAnswers(NamedTuple):
    """Indicators of levels, (n_rows, n_levels), and values of continuous items with their mask."""

    levels: Floats
    values: Floats
    mask: Floats


def split_answers(X: Answers, observed: Bits | None, items: LevelItems) -> RowAnswers:
    """Split the columns of rows; `X` and `observed` are as for `compute_row_posterior`."""
    n = len(items.offsets)
    mask = np.ones(X.shape, np.uint8) if observed is None else observed
    levels = indicate_levels(X[:, :n].astype(np.uint8), mask[:, :n], items.n_planes)
    return RowAnswers(levels, X[:, n:].astype(np.float64), mask[:, n:].astype(np.float64))


def differentiate_rows(levels: Floats, items: LevelItems, x: Floats) -> tuple[Floats, Floats]:
    """Return ∂ log P(t_n | x) / ∂η_j, (n_rows, n_planes, n_points), and log P, (n_rows, n_points).

    `levels` are the indicators of the rows, and x their points, (n_rows, n_points, q).
    """
    if items.is_binary and items.asymptotes is None:  # much faster
        return _differentiate_binary_rows(levels, items, x)
    n_rows, n_points = x.shape[:2]
    eta = items.compute_forms(x.reshape(n_rows * n_points, -1))
    residual, log_joint = np.empty((n_rows, len(eta), n_points)), np.zeros((n_rows, n_points))
    for alike in iter_alike(items.n_planes):
        present, log_p = levels[:, alike.levels], items.compute_log_probabilities(eta, alike)
        log_p = log_p.reshape(*log_p.shape[:2], n_rows, n_points)
        is_present = present.transpose(1, 2, 0)[..., None] > 0
        log_joint += np.where(is_present, log_p, 0.0).sum(axis=(0, 1))
        first = items.differentiate(eta, alike)
        first = first.reshape(*first.shape[:3], n_rows, n_points)
        residual[:, alike.planes] = np.einsum("nic,icjnk->nijk", present, first)
    return residual, log_joint


def _differentiate_binary_rows(
    levels: Floats, items: LevelItems, x: Floats
) -> tuple[Floats, Floats]:
    ones, present = levels[:, 1::2], levels[:, ::2] + levels[:, 1::2]
    weights, offsets = (np.ascontiguousarray(part) for part in items[:2])
    other, log_joint = np.empty((*ones.shape, x.shape[1])), np.empty(x.shape[:2])
    # Values may be fractions: with y = r + d and r = 0 or 1, log P = log P(r) + d η.
    nearest = np.where(2 * ones > present, present, 0.0)
    rest, points = ones - nearest, np.swapaxes(x, 1, 2).copy()
    fill_row_curves(nearest, present, weights, offsets, points, other, log_joint)
    z = np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)
    log_joint += (z @ (rest @ np.column_stack([weights, offsets]))[:, :, None])[:, :, 0]
    return rest[:, :, None] + (2 * nearest - 1)[:, :, None] * other, log_joint


class SharedNodes(NamedTuple):
    """Nodes that rows share if they suit them.

    Attributes
    ----------
    nodes, checks
        The nodes, and what finds rows that they do not suit.
    spacing
        Their distance; None if it differs.
    """

    nodes: Nodes
    checks: NodeChecks
    spacing: float | None

    @classmethod
    def from_lattice(cls, nodes: Nodes, spacing: float) -> SharedNodes:
        """Return nodes that are equally spaced along the axes."""
        return cls(nodes, check_nodes(nodes, spacing), spacing)


class OwnPoints(NamedTuple):
    """Points of some rows.

    Attributes
    ----------
    rows
        Which rows they are.
    x, distance, shares
        The points, (n_rows, n_points, q), how far they are from μ_n, and their posterior mass,
        (n_rows, n_points).
    log_likelihood
        log P(t_n), (n_rows,).
    derivatives
        ∂ log P(t_n | x) / ∂η_j, (n_rows, n_planes, n_points).
    """

    rows: slice
    x: Floats
    distance: Floats
    shares: Floats
    log_likelihood: Floats
    derivatives: Floats

    def extend(self) -> Floats:
        """Return x̂ = (x, 1), (n_rows, n_points, q + 1)."""
        return np.concatenate([self.x, np.ones((*self.x.shape[:2], 1))], axis=2)

    def compute_moments(self) -> tuple[Floats, Floats]:
        """Return the mean minus μ_n, (n_rows, q), and the covariance, (n_rows, q, q)."""
        mean = (self.shares[:, :, None] * self.distance).sum(axis=1)
        centred = self.distance - mean[:, None]
        weighted = self.shares[:, :, None] * centred
        return mean, np.einsum("nka,nkb->nab", weighted, centred)


def condition_on_numbers(
    X: Answers, observed: Bits | None, items: LevelItems, row_means: Floats | None
) -> ConditionalGaussians:
    """Return the posterior of x given the continuous values of rows, with the priors N(m_n, I)."""
    q, n = items.weights.shape[1], len(items.offsets)
    means = np.zeros((len(X), q)) if row_means is None else row_means
    if items.gaussians is None:
        precision = np.broadcast_to(np.eye(q), (len(X), q, q))
        return ConditionalGaussians(means, precision, np.zeros(len(X)))
    mask = np.ones(X.shape, np.uint8) if observed is None else observed
    return items.gaussians.condition(
        X[:, n:].astype(np.float64), mask[:, n:].astype(np.float64), means
    )


def find_own_rows(
    observed: Bits | None,
    items: LevelItems,
    near: ConditionalGaussians,
    spacing: float | None,
) -> NDArray[np.bool_]:
    """Return the rows that cannot share nodes with these distances, (n_rows,).

    They have continuous values only, or these leave a posterior that is too narrow for the nodes.
    """
    if items.gaussians is None:
        return np.zeros(len(near.mean), np.bool_)
    n = len(items.offsets)
    is_own = np.full(len(near.mean), n == 0)
    if observed is not None:
        is_own |= ~observed[:, :n].any(axis=1) & observed[:, n:].any(axis=1)
    if spacing is None or n == 0:
        return is_own
    largest = np.linalg.eigvalsh(near.precision)[:, -1]
    # The narrowest posterior that levels alone leave has a precision of about 1 / needed².
    needed = choose_level_lattice(_select_levels(items)).spacing
    width = needed / np.sqrt(needed**2 * np.maximum(largest - 1.0, 0.0) + 1.0)
    return np.asarray(is_own | (spacing > _MAX_WIDTH_RATIO * width))


def iter_own_points(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    near: ConditionalGaussians,
    n_per_axis: int | None = None,
) -> Iterator[OwnPoints]:
    """Yield points of rows, some rows at a time.

    Parameters
    ----------
    X, observed, items
        As for `compute_row_posterior`.
    near
        The posterior given priors and continuous values.
    n_per_axis
        Number of points per axis, by default many.
    """
    q, items = items.weights.shape[1], _select_levels(items)
    n = len(items.offsets)
    z, log_v = gauss_hermite(n_per_axis or _OWN_POINTS[q], q)
    log_v = log_v + 0.5 * (z**2).sum(axis=1)
    size = len(z) * (len(items.offsets) + len(items.n_planes)) * int(items.n_planes.max(initial=1))
    n_rows = max(1, _BATCH_ENTRIES // max(size, 1))
    for start in range(0, len(X), n_rows):
        check_cancelled()
        rows = slice(start, min(start + n_rows, len(X)))
        mask = None if observed is None else observed[rows, :n]
        levels = indicate_levels(X[rows, :n].astype(np.uint8), mask, items.n_planes)
        mean, precision, log_density = (part[rows] for part in near)
        mode, curvature = _find_modes(levels, items, mean, precision)
        lower = np.linalg.cholesky(curvature)
        distance = mode[:, None] + np.linalg.solve(
            np.swapaxes(lower, 1, 2)[:, None], np.broadcast_to(z, (len(mode), *z.shape))[..., None]
        ).squeeze(-1)
        x = mean[:, None] + distance
        derivatives, log_p = differentiate_rows(levels, items, x)
        log_p -= 0.5 * np.einsum("nka,nab,nkb->nk", distance, precision, distance)
        log_p += log_v
        largest = log_p.max(axis=1)
        shares = np.exp(log_p - largest[:, None])
        totals = shares.sum(axis=1)
        nats = log_density + largest + np.log(totals)
        nats += 0.5 * np.linalg.slogdet(precision)[1]
        nats -= np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        yield OwnPoints(rows, x, distance, shares / totals[:, None], nats, derivatives)


def _select_levels(items: LevelItems) -> LevelItems:
    """Return the items without the continuous ones."""
    return items._replace(n_planes=items.n_planes[items.n_planes > 0], gaussians=None)


def _find_modes(
    levels: Floats, items: LevelItems, mean: Floats, precision: Floats
) -> tuple[Floats, Floats]:
    """Return the mode of each row's posterior minus μ_n, (n_rows, q), and its curvature.

    Newton's method with expected curvatures, (n_rows, q, q), from the mean of N(μ_n, P_n⁻¹); a step
    that leads downhill is halved.
    """
    present = np.empty((len(levels), len(items.n_planes)))
    for alike in iter_alike(items.n_planes):
        present[:, alike.features] = levels[:, alike.levels].sum(axis=2)

    def evaluate(distance: Floats) -> tuple[Floats, Floats, Floats]:
        x = mean + distance
        derivatives, log_p = differentiate_rows(levels, items, x[:, None])
        pull = np.einsum("nab,nb->na", precision, distance)
        gradient = derivatives[:, :, 0] @ items.weights - pull
        information = compute_item_information(items, x)
        curvature = precision + np.einsum("nf,fnab->nab", present, information)
        return log_p[:, 0] - 0.5 * (distance * pull).sum(axis=1), gradient, curvature

    distance = np.zeros_like(mean)
    value, gradient, curvature = evaluate(distance)
    scale = np.ones(len(mean))
    for _ in range(_MAX_STEPS):
        step = scale[:, None] * np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        is_active = (step * gradient).sum(axis=1) > _MIN_GAIN
        if not is_active.any():
            break
        reached = evaluate(distance + step)
        is_better = is_active & (reached[0] >= value)
        distance[is_better] += step[is_better]
        for own, other in zip((value, gradient, curvature), reached, strict=True):
            own[is_better] = other[is_better]
        scale = np.where(is_better, np.minimum(2 * scale, 1.0), 0.5 * scale)
    return distance, curvature


def compute_own_posterior(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    near: ConditionalGaussians,
    n_per_axis: int | None = None,
) -> RowPosterior:
    """Compute the moments of rows that do not share nodes; parameters as for `iter_own_points`."""
    mean: Floats = near.mean.copy()
    covariance = np.linalg.inv(near.precision).astype(np.float64)
    log_likelihood = near.log_density.copy()
    rows = find_level_rows(X, observed, items)
    for points in iter_own_points(*take_rows(rows, X, observed, items, near), n_per_axis):
        places = rows[points.rows]
        distance, covariance[places] = points.compute_moments()
        mean[places] += distance
        log_likelihood[places] = points.log_likelihood
    return RowPosterior(mean, covariance, log_likelihood)


def find_level_rows(X: Answers, observed: Bits | None, items: LevelItems) -> NDArray[np.intp]:
    """Return the rows with a value with levels."""
    n = len(items.offsets)
    if observed is None:
        return np.arange(len(X) if n else 0)
    return np.flatnonzero(observed[:, :n].any(axis=1))


def take_rows(
    rows: NDArray[Any],
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    near: ConditionalGaussians,
) -> tuple[Answers, Bits | None, LevelItems, ConditionalGaussians]:
    """Return the arguments of functions of rows for some of the rows."""
    masked = None if observed is None else observed[rows]
    return X[rows], masked, items, ConditionalGaussians(*(part[rows] for part in near))


def compute_level_node_posterior(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    shared: SharedNodes,
    row_means: Floats | None = None,
    n_per_axis: int | None = None,
) -> RowPosterior:
    """Compute the moments of the traits of each row, and its log-likelihood.

    Parameters
    ----------
    X, observed, items, row_means
        As for `compute_row_posterior`.
    shared
        The nodes of rows that they suit.
    n_per_axis
        Number of points of rows that have their own.
    """
    near = condition_on_numbers(X, observed, items, row_means)
    is_own = find_own_rows(observed, items, near, shared.spacing)
    result = RowPosterior.make_empty(*near.mean.shape)._replace(is_own=is_own)
    if (rows := np.flatnonzero(~is_own)).size:
        own_X, own_mask, *_ = take_rows(rows, X, observed, items, near)
        means = None if row_means is None else row_means[rows]
        posterior = node_posterior(own_X, own_mask, items, shared.nodes, means, shared.checks)
        result.put_rows(rows, posterior)
        result.log_likelihood[rows] += sum_common_terms(own_X, own_mask, items)
    if (rows := np.flatnonzero(is_own)).size:
        taken = take_rows(rows, X, observed, items, near)
        result.put_rows(rows, compute_own_posterior(*taken, n_per_axis))
    return result


def sum_common_terms(X: Answers, observed: Bits | None, items: LevelItems) -> Floats:
    """Return the terms of log p of each row that `LevelItems.tabulate` leaves out, (n_samples,)."""
    if items.gaussians is None:
        return np.zeros(len(X))
    n = len(items.offsets)
    mask = None if observed is None else observed[:, n:]
    return items.gaussians.sum_common_terms(np.asarray(X[:, n:], np.float64), mask)


def compute_row_posterior(
    X: Answers, observed: Bits | None, items: LevelItems, row_means: Floats | None = None
) -> RowPosterior:
    """Integrate over the traits of each row, for up to 3 traits.

    Binary items have a faster way, see `posterior_on_lattice`. Otherwise, the error is estimated by
    nodes that are farther apart. A row's result depends on that row alone.

    Parameters
    ----------
    X, observed
        Bits of the planes with values of continuous items, 0 where missing, and mask, (n_samples,
        n_columns); None if all values are observed.
    items
        The items.
    row_means
        Row n has the prior N(m_n, I) with these m_n, (n_samples, q), or N(0, I) if it is None.
    """
    if items.is_binary and items.asymptotes is None:
        return posterior_on_lattice(X, observed, TraitItems(*items[:2]), row_means)
    q, reach = items.weights.shape[1], min(find_mean_reach(row_means), MAX_MEAN_REACH)
    posteriors = []
    for stretch, n_fewer in ((_FINE[q], 0), (_FINE[q] * _COARSE, 2)):
        shared = SharedNodes.from_lattice(*make_level_nodes(items, stretch, reach))
        n_per_axis = _OWN_POINTS[q] - n_fewer
        posteriors.append(
            compute_level_node_posterior(X, observed, items, shared, row_means, n_per_axis)
        )
    error = np.abs(posteriors[0].log_likelihood - posteriors[1].log_likelihood)
    return posteriors[0]._replace(standard_error=error)
