"""Expectation propagation for items with several levels, or continuous, and any number of traits.

Items whose slopes have the same direction e depend on x through v = e·x alone. Together they are a
site, P(t_s | v), a function of one variable: with a simple structure, all items of a trait are one.
The posterior of a row is that of N(μ_n, P_n⁻¹), which priors and continuous values leave, times its
sites. Expectation propagation (T. P. Minka, UAI 2001) replaces each site by exp(−½ τ v² + ν v),
such that the normal posterior has the mean and variance of v under the tilted distribution

    q_s(x) ∝ N(x; cavity) P(t_s | e·x),

where the cavity is the normal posterior without the site. Tilted moments are sums over equally
spaced nodes v_l. Given v, x is normal with a mean ẑ₀ + ẑ₁ v and a covariance that v does not
change, so that the scores of items under q_s are exact for it. They are the gradient of the
approximate log-likelihood

    log ∫ N(x; μ_n, P_n⁻¹) Π_s exp(−½ τ_s v_s² + ν_s v_s) dx + Σ_s log (Z_s / Z̃_s),

with Z_s and Z̃_s the integrals over the cavity of a site and of what replaces it. With one site, or
sites along orthogonal directions, the approximation is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.categories.curves import (
    Answers,
    LevelItems,
    choose_level_lattice,
    compute_expected_curvature,
    compute_log_probabilities,
    differentiate_levels,
    iter_alike,
)
from pipeline.numerics.logistic.categories.e_step import FarRows, LevelStatistics
from pipeline.numerics.logistic.categories.gaussian_items import (
    ConditionalGaussians,
    sum_gaussian_moments,
)
from pipeline.numerics.logistic.categories.row_posteriors import (
    condition_on_numbers,
    split_answers,
)
from pipeline.numerics.logistic.categories.scores import LevelSums
from pipeline.numerics.logistic.centred_points import (
    RowGaussians,
    draw_points,
)
from pipeline.numerics.logistic.latent_nodes import RowPosterior
from pipeline.numerics.logistic.parameter_expansion import sum_trait_moments
from pipeline.random import RowRandom

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_SAME_DIRECTION = 1e-9  # largest difference of the coordinates of directions
_REACH = 6.5  # of the nodes, in standard deviations of the traits
_FAR = 2.0  # standard deviations of v between its mean and the last node, at least
_MAX_NODES, _FINE = 2**10, 0.5  # _FINE scales the distance of nodes of rows' posteriors
_BATCH_ENTRIES = 2**18  # responsibilities of rows: 2 MiB
_DRAWS_PER_ROW, _DRAW_ENTRIES = 200, 2**19  # curves of rows at their draws: 4 MiB
_BATCH_STEP = 64  # rows; a multiple of the tiles of any BLAS
_MAX_ROUNDS, _TOLERANCE = 100, 1e-8  # of the moments of v, in standard deviations
_MIN_VARIANCE = 1e-8


class Site(NamedTuple):
    """Items with slopes of the same direction.

    Attributes
    ----------
    direction
        e, (q,), of length 1.
    features, planes
        Their places among all features, and of their planes among all planes.
    items
        The items as functions of v, without continuous ones.
    """

    direction: Floats
    features: Indices
    planes: Indices
    items: LevelItems


def list_sites(items: LevelItems) -> list[Site]:
    """Return the sites of items with levels; items without slopes belong to the first."""
    owners = np.repeat(np.arange(len(items.n_planes)), items.n_planes)
    last = np.cumsum(items.n_planes) - 1
    left = np.flatnonzero(items.n_planes > 0)
    slopes = items.weights[last[left]]
    length = np.linalg.norm(slopes, axis=1)
    directions = slopes / np.where(length > 0, length, 1.0)[:, None]
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.where(directions[np.arange(len(left)), largest] < 0, -1.0, 1.0)[:, None]
    if length.any():
        directions[length == 0] = directions[np.argmax(length > 0)]
    else:
        directions[:, 0] = 1.0
    sites = []
    while left.size:
        is_same = (np.abs(directions - directions[0]) < _SAME_DIRECTION).all(axis=1)
        features, direction = left[is_same], directions[0]
        planes = np.flatnonzero(np.isin(owners, features))
        own = LevelItems(
            (items.weights[planes] @ direction)[:, None],
            items.offsets[planes],
            items.n_planes[features],
            items.is_cumulative,
        )
        sites.append(Site(direction, features, planes, own))
        left, directions = left[~is_same], directions[~is_same]
    return sites


def choose_site_spacing(items: LevelItems, stretch: float = 1.0) -> float:
    """Return a distance of nodes v_l that suits all sites; infinite without sites."""
    spacing = math.inf
    for site in list_sites(items):  # items of other sites make the distribution of v narrower too
        own = items._replace(weights=(items.weights @ site.direction)[:, None])
        if (numbers := items.gaussians) is not None:
            along = (numbers.weights @ site.direction)[:, None]
            own = own._replace(gaussians=numbers._replace(weights=along))
        spacing = min(spacing, choose_level_lattice(own, stretch).spacing)
    return max(spacing, 2 * _REACH / _MAX_NODES)


def list_line_nodes(spacing: float) -> Floats:
    """Return the nodes v_l that all sites have, (n_nodes,)."""
    if math.isinf(spacing):
        return np.zeros(1)
    reach = math.ceil(_REACH / spacing)
    return spacing * np.arange(-reach, reach + 1.0)


def list_plane_points(items: LevelItems, line: Floats) -> Floats:
    """Return the points v_l e on the line of each plane's site, (n_planes, n_nodes, q)."""
    points = np.empty((len(items.offsets), len(line), items.weights.shape[1]))
    for site in list_sites(items):
        points[site.planes] = line[:, None] * site.direction
    return points


class _SiteBatch(NamedTuple):
    """Some rows and their approximate posteriors.

    Attributes
    ----------
    rows
        The rows.
    bits, mask
        Bits of planes, 0 where missing, and mask, (n_rows, n_planes).
    mean, covariance, log_likelihood
        Of the rows, (n_rows, q), (n_rows, q, q) and (n_rows,).
    shares
        Tilted distribution of v at the nodes for each site, (n_rows, n_nodes).
    """

    rows: slice
    bits: Floats
    mask: Floats
    mean: Floats
    covariance: Floats
    log_likelihood: Floats
    shares: list[Floats]

    def regress(self, direction: Floats) -> tuple[Floats, Floats, Floats]:
        """Return ẑ₀ and ẑ₁ with E[x̂ | v] = ẑ₀ + ẑ₁ v, (n_rows, q + 1), and Cov[x̂ | v]."""
        along = (self.covariance * direction).sum(axis=2)
        variance = (along * direction).sum(axis=1)
        slope = along / variance[:, None]
        constant = self.mean - slope * (self.mean * direction).sum(axis=1)[:, None]
        left = self.covariance - along[:, :, None] * slope[:, None]
        return (
            np.pad(constant, ((0, 0), (0, 1)), constant_values=1.0),
            np.pad(slope, ((0, 0), (0, 1))),
            np.pad(left, ((0, 0), (0, 1), (0, 1))),
        )


def _iter_batches(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    sites: list[Site],
    near: ConditionalGaussians,
    line: Floats,
) -> Iterator[_SiteBatch]:
    """Yield batches of one height, so that the bits of a row's result depend on that row alone."""
    n, line_nodes = len(items.offsets), line[:, None]
    curves = [site.items.tabulate(line_nodes) for site in sites]
    size = max(len(line) * len(sites), n, 1)
    height = max(_BATCH_ENTRIES // size // _BATCH_STEP, 1) * _BATCH_STEP
    bits, mask = np.zeros((2, height, n))
    for start in range(0, len(X), height):
        check_cancelled()
        rows = slice(start, min(start + height, len(X)))
        n_rows = rows.stop - start
        mask[:n_rows] = 1.0 if observed is None else observed[rows, :n]
        bits[:n_rows] = X[rows, :n] * mask[:n_rows]
        bits[n_rows:] = mask[n_rows:] = 0.0
        tables = [
            (bits[:, own.planes] @ table.slopes + mask[:, own.planes] @ table.constants)[:n_rows]
            for own, table in zip(sites, curves, strict=True)
        ]
        directions = [site.direction for site in sites]
        own = ConditionalGaussians(*(part[rows] for part in near))
        found = _match_sites(tables, directions, own, line)
        yield _SiteBatch(rows, bits[:n_rows], mask[:n_rows], *found)


class _Rows(NamedTuple):
    """Normal posteriors of rows, (n_rows, q) and (n_rows, q, q), and τ and ν, (n_rows, n_sites)."""

    mean: Floats
    covariance: Floats
    precisions: Floats
    shifts: Floats


class _Tilted(NamedTuple):
    """The cavity of v in each row, the tilted moments, log Z_s, and shares of nodes."""

    cavity_mean: Floats
    cavity_variance: Floats
    mean: Floats
    variance: Floats
    log_total: Floats
    shares: Floats


def _match_sites(
    tables: list[Floats], directions: list[Floats], near: ConditionalGaussians, line: Floats
) -> tuple[Floats, Floats, Floats, list[Floats]]:
    """Match all sites of rows whose log P(t_s | v_l) are `tables`, see `_SiteBatch`."""
    n = len(near.mean)
    prior = np.linalg.inv(near.precision).astype(np.float64)
    rows = _Rows(near.mean.copy(), prior, *np.zeros((2, n, len(tables))))
    active = np.arange(n if tables else 0)
    for _ in range(_MAX_ROUNDS):
        own = _Rows(*(part[active] for part in rows))
        change = np.zeros(len(active))
        for s, (table, direction) in enumerate(zip(tables, directions, strict=True)):
            moved = _match_site(own, s, table[active], direction, line)
            change = np.maximum(change, moved)
        for part, new in zip(rows, own, strict=True):
            part[active] = new
        active = active[change > _TOLERANCE]
        if not active.size:
            break
    squares = (rows.mean * (near.precision * rows.mean[:, None]).sum(axis=2)).sum(axis=1)
    squares -= (near.mean * (near.precision * near.mean[:, None]).sum(axis=2)).sum(axis=1)
    log_det = np.linalg.slogdet(rows.covariance)[1] + np.linalg.slogdet(near.precision)[1]
    nats, shares = near.log_density + 0.5 * log_det, []
    for s, (table, direction) in enumerate(zip(tables, directions, strict=True)):
        found = _tilt(rows, s, table, direction, line)
        tau, nu = rows.precisions[:, s], rows.shifts[:, s]
        m, c = found.cavity_mean, found.cavity_variance
        along = (rows.mean * direction).sum(axis=1)
        squares += tau * along**2
        nats += found.log_total + 0.5 * np.log1p(tau * c)
        nats -= (nu**2 * c + 2 * nu * m - tau * m**2) / (2 * (1 + tau * c))
        shares.append(found.shares)
    return rows.mean, rows.covariance, nats + 0.5 * squares, shares


def _tilt(rows: _Rows, s: int, table: Floats, direction: Floats, line: Floats) -> _Tilted:
    along = (rows.covariance * direction).sum(axis=2)
    variance, mean = (along * direction).sum(axis=1), (rows.mean * direction).sum(axis=1)
    left = 1.0 - rows.precisions[:, s] * variance
    c = variance / np.maximum(left, _MIN_VARIANCE)
    m = (mean - rows.shifts[:, s] * variance) / np.maximum(left, _MIN_VARIANCE)
    log_shares = table - (line - m[:, None]) ** 2 / (2 * c[:, None])
    largest = log_shares.max(axis=1)
    shares = np.exp(log_shares - largest[:, None])
    total = shares.sum(axis=1)
    shares /= total[:, None]
    tilted_mean = (shares * line).sum(axis=1)
    tilted_variance = (shares * (line - tilted_mean[:, None]) ** 2).sum(axis=1)
    spacing = line[1] - line[0]
    log_total = largest + np.log(total) + math.log(spacing) - 0.5 * np.log(2 * math.pi * c)
    tilted_variance = np.maximum(tilted_variance, _MIN_VARIANCE)
    for end, inner in ((0, 1), (-1, -2)):  # beyond the nodes, log P is nearly linear in v
        slope = (table[:, end] - table[:, inner]) / (line[end] - line[inner])
        moved, deviation = m + c * slope, np.sqrt(np.minimum(c, 1.0))
        is_far = np.sign(line[end]) * moved > abs(line[end]) - _FAR * deviation
        nats = table[:, end] + slope * (m - line[end]) + 0.5 * c * slope**2
        tilted_mean = np.where(is_far, moved, tilted_mean)
        tilted_variance = np.where(is_far, c, tilted_variance)
        log_total = np.where(is_far, nats, log_total)
    return _Tilted(m, c, tilted_mean, tilted_variance, log_total, shares)


def _match_site(rows: _Rows, s: int, table: Floats, direction: Floats, line: Floats) -> Floats:
    """Replace a site by that with the tilted moments; return how far v moved, (n_rows,)."""
    found = _tilt(rows, s, table, direction, line)
    # The curves are log-concave, so that the variance is at most that of the cavity.
    tau = np.maximum(1 / found.variance - 1 / found.cavity_variance, 0.0)
    nu = found.mean * (tau + 1 / found.cavity_variance) - found.cavity_mean / found.cavity_variance
    more, shift = tau - rows.precisions[:, s], nu - rows.shifts[:, s]
    rows.precisions[:, s], rows.shifts[:, s] = tau, nu
    along = (rows.covariance * direction).sum(axis=2)
    variance, mean = (along * direction).sum(axis=1), (rows.mean * direction).sum(axis=1)
    scale = 1 + more * variance
    step = (shift - more * mean) / scale
    rows.mean[:] += along * step[:, None]
    rows.covariance[:] -= along[:, :, None] * (along * (more / scale)[:, None])[:, None]
    moved = np.abs(step) * np.sqrt(variance) + np.abs(more) * variance / scale
    return np.asarray(moved)


def compute_site_posterior(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    row_means: Floats | None = None,
    spacing: float | None = None,
) -> RowPosterior:
    """Compute the moments of the traits of each row, and the approximate log-likelihood.

    Parameters
    ----------
    X, observed, items, row_means
        As for `compute_row_posterior`.
    spacing
        Distance of the nodes; by default one that suits the items.
    """
    near, sites = condition_on_numbers(X, observed, items, row_means), list_sites(items)
    line = list_line_nodes(choose_site_spacing(items, _FINE) if spacing is None else spacing)
    posterior = RowPosterior.make_empty(*near.mean.shape)
    for batch in _iter_batches(X, observed, items, sites, near, line):
        own = RowPosterior(batch.mean, batch.covariance, batch.log_likelihood)
        posterior.put_rows(batch.rows, own)
    return posterior


def sum_site_statistics(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    line: Floats,
    row_weights: Floats | None = None,
    row_means: Floats | None = None,
) -> LevelStatistics:
    """Run the E-step; parameters as for `sum_level_statistics`, with nodes v_l, (n_nodes,).

    The counts of planes are at `list_plane_points`. What E[x̂ x̂ᵀ | v] is more than at these points
    is in `linear` and `curvatures`. It matters for items that load on several traits.
    """
    near, sites = condition_on_numbers(X, observed, items, row_means), list_sites(items)
    (n_planes, q), width = items.weights.shape, items.weights.shape[1] + 1
    weights = np.ones(len(X)) if row_weights is None else row_weights
    answers = split_answers(X, observed, items)
    ones, mass = np.zeros((2, n_planes, len(line)))
    linear, curvatures = np.zeros((n_planes, width)), np.zeros((n_planes, width, width))
    mean, covariance, nats = RowPosterior.make_empty(len(X), q)[:3]
    for batch in _iter_batches(X, observed, items, sites, near, line):
        mean[batch.rows], covariance[batch.rows] = batch.mean, batch.covariance
        nats[batch.rows] = batch.log_likelihood
        own, levels = weights[batch.rows], answers.levels[batch.rows]
        for site, shares in zip(sites, batch.shares, strict=True):
            planes, weighted = site.planes, own[:, None] * shares
            ones[planes] += batch.bits[:, planes].T @ weighted
            mass[planes] += batch.mask[:, planes].T @ weighted
            z = batch.regress(site.direction)
            on_line = np.eye(width)[-1], np.append(site.direction, 0.0), np.zeros((width, width))
            scores = _score_planes(site, items, levels, weighted, line)
            for score, part, point in zip(scores, z[:2], on_line[:2], strict=True):
                linear[planes] += score.T @ (part - point)
            present = batch.mask[:, planes]
            for power, part, point in zip(
                _weigh_curvature(site, weighted, line), _square(*z), _square(*on_line), strict=True
            ):
                by_row = (present * power).T @ (part - point).reshape(len(part), -1)
                curvatures[planes] += by_row.reshape(-1, width, width)
    linear += np.einsum("jab,jb->ja", curvatures, np.column_stack([items.weights, items.offsets]))
    of_numbers = sum_gaussian_moments(answers.values, answers.mask, mean, covariance, weights)
    sums = LevelSums(ones, mass, linear, curvatures, *of_numbers)
    moments = sum_trait_moments(mean, covariance, weights)
    none = FarRows(np.zeros(0, np.intp), np.empty((0, q)), np.empty((0, q, q)))
    return LevelStatistics(sums, moments, float(weights @ nats), 0.0, 0.0, mean, none)


def _square(constant: Floats, slope: Floats, covariance: Floats) -> list[Floats]:
    """Return the factors of 1, v and v² in E[x̂ x̂ᵀ | v], (…, q + 1, q + 1) each."""
    across = constant[..., :, None] * slope[..., None, :]
    return [
        constant[..., :, None] * constant[..., None, :] + covariance,
        across + np.swapaxes(across, -1, -2),
        slope[..., :, None] * slope[..., None, :],
    ]


def _score_planes(
    site: Site, items: LevelItems, levels: Floats, shares: Floats, line: Floats
) -> tuple[Floats, Floats]:
    """Return E[∂ log P / ∂η_j] and E[v ∂ log P / ∂η_j] of planes, (n_rows, n_planes of the site).

    `levels` are the indicators of all items, and the shares those of nodes.
    """
    eta, places = site.items.compute_forms(line[:, None]), _place_levels(site, items)
    found = np.zeros((2, len(shares), len(eta)))
    by_power = shares, shares * line
    for alike in iter_alike(site.items.n_planes):
        n, m = alike.planes.shape
        first = differentiate_levels(eta[alike.planes], items.is_cumulative)
        own = levels[:, places[alike.levels]]
        for c in range(m + 1):
            table = first[:, c].reshape(n * m, -1).T
            for total, part in zip(found, by_power, strict=True):
                by_plane = (part @ table).reshape(-1, n, m)
                total[:, alike.planes] += own[:, :, c, None] * by_plane
    return found[0], found[1]


def _place_levels(site: Site, items: LevelItems) -> Indices:
    """Return the places of the site's levels among those of all items."""
    n_levels = np.where(items.n_planes > 0, items.n_planes + 1, 0)
    owners = np.repeat(np.arange(len(n_levels)), n_levels)
    return np.flatnonzero(np.isin(owners, site.features))


def _weigh_curvature(site: Site, shares: Floats, line: Floats) -> list[Floats]:
    """Return E[v^p κ_j(v)] for p = 0, 1, 2, (n_rows, n_planes of the site) each.

    κ_j = Σ_k F_jk r_k / r_j with the Fisher information F of an item's forms, η_j = r_j v + d_j. As
    its slopes stay in proportion to r, this is all of the information about other directions.
    """
    eta, lengths = site.items.compute_forms(line[:, None]), site.items.weights[:, 0]
    curvature = np.zeros_like(eta)
    for alike in iter_alike(site.items.n_planes):
        own, r = eta[alike.planes], lengths[alike.planes]
        first = differentiate_levels(own, site.items.is_cumulative)
        log_p = compute_log_probabilities(own, site.items.is_cumulative)
        information = compute_expected_curvature(log_p, first)
        along = np.einsum("ijkl,ik->ijl", information, r)
        curvature[alike.planes] = np.divide(
            along, r[:, :, None], out=np.zeros_like(along), where=r[:, :, None] != 0
        )
    return [(shares * line**power) @ curvature.T for power in range(3)]


def score_site_rows(
    X: Answers, observed: Bits | None, items: LevelItems, jacobian: Any, line: Floats
) -> Floats:
    """Return the scores s_n of rows in free parameters, (n_rows, n_free).

    Parameters
    ----------
    X, observed, items
        As for `compute_row_posterior`.
    jacobian
        Derivatives of all forms, (n_forms (q + 1), n_free), sparse.
    line
        The nodes v_l, (n_nodes,).
    """
    near, sites = condition_on_numbers(X, observed, items, None), list_sites(items)
    n_planes, width = len(items.offsets), items.weights.shape[1] + 1
    answers, scores = split_answers(X, observed, items), np.zeros((len(X), jacobian.shape[1]))
    for batch in _iter_batches(X, observed, items, sites, near, line):
        by_form = np.zeros((len(batch.mean), n_planes, width))
        for site, shares in zip(sites, batch.shares, strict=True):
            found = _score_planes(site, items, answers.levels[batch.rows], shares, line)
            constant, slope, _ = batch.regress(site.direction)
            by_form[:, site.planes] = (
                found[0][:, :, None] * constant[:, None] + found[1][:, :, None] * slope[:, None]
            )
        flat = by_form.reshape(len(by_form), -1)
        if items.gaussians is not None:
            values, mask = answers.values[batch.rows], answers.mask[batch.rows]
            of_numbers = items.gaussians.score_rows(values, mask, batch.mean, batch.covariance)
            flat = np.column_stack([flat, of_numbers])
        scores[batch.rows] = (jacobian.T @ flat.T).T
    return scores


def sample_log_likelihood(
    X: Answers, observed: Bits | None, items: LevelItems, rng: RowRandom, rows: NDArray[np.int64]
) -> RowPosterior:
    """Estimate the log-likelihood of each row by importance sampling; `rows` are their numbers.

    Draws come from the approximate posteriors, made wider, and some from the prior.
    """
    near = compute_site_posterior(X, observed, items)
    nats, errors = near.log_likelihood, np.empty(len(X))
    answers, n = split_answers(X, observed, items), len(items.offsets)
    mask = np.ones(X.shape) if observed is None else observed.astype(np.float64)
    height = max(1, _DRAW_ENTRIES // (_DRAWS_PER_ROW * X.shape[1]))
    for start in range(0, len(X), height):
        check_cancelled()
        batch = slice(start, start + height)
        gaussians = RowGaussians(near.mean[batch], near.covariance[batch])
        points = draw_points(gaussians, rng, rows[batch], _DRAWS_PER_ROW)
        flat = points.x.reshape(-1, points.x.shape[2])
        curves = items.tabulate(flat)
        of_row = [part.reshape(len(part), *points.x.shape[:2]) for part in curves]
        own = np.hstack([X[batch, :n], answers.values[batch]]) * mask[batch]
        log_p = np.einsum("jnk,nj->nk", of_row[0], own)
        log_p += np.einsum("jnk,nj->nk", of_row[1], mask[batch]) + points.log_weights
        nats[batch] = logsumexp(log_p, axis=1)
        shares = np.exp(log_p - nats[batch, None])
        variance = ((shares - 1 / shares.shape[1]) ** 2).sum(axis=1)
        errors[batch] = np.sqrt(variance * shares.shape[1] / (shares.shape[1] - 1))
        if items.gaussians is not None:
            observed_numbers = mask[batch, n:].astype(np.uint8)
            nats[batch] += items.gaussians.sum_common_terms(answers.values[batch], observed_numbers)
    return near._replace(log_likelihood=nats, standard_error=errors)
