"""Moments of the traits of each row on a fine lattice of nodes, in microseconds per row.

Model and lattice are described in `lattice_nodes`. The moments of a row without missing values
depend on its sums s_n of slopes alone. With one or two traits, they are interpolated between those
at points of a grid of sums, which are computed once a row needs them. A missing value i multiplies
the likelihood of a row by 1 + exp(η_i). This curve is computed for each missing value, at the nodes
near the row's mode. The lattice is finer than in a pass, because a single row can have a larger
error than the mean of all rows.

The error of a row is estimated from halves of its nodes: every second one along an axis, or as on a
chessboard. If a half is off by a share ε, all nodes are off by less than ε², because the error
falls exponentially with the density of nodes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.numerics.intrinsics import wide_vectors
from pipeline.numerics.logistic.centred_points import (
    TraitItems,
    find_posterior_modes,
    posterior_by_quadrature,
)
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS, RowPosterior
from pipeline.numerics.logistic.lattice_nodes import (
    MAX_MEAN_REACH,
    SLOPE_SPACING,
    add_row_means,
    choose_lattice,
    climb,
    collect_chunks,
    exponentiate,
    find_mean_reach,
    pad_axes,
    tabulate_nodes,
)
from pipeline.numerics.logistic.logistic_lanes import (
    FACTORS_PER_LOG,
    VECTOR,
    add_multiple,
    copy,
    exp_minus,
    fill,
    inlined,
)

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MAX_TABLE_NODES = 2**20
_MAX_TABLE_WORK = 2**28  # curves at the nodes of a table for codes: about a second
_N_KEPT_TABLES = 2
_TABLE_STRETCH = {1: 0.5, 2: 0.7, 3: 0.75}  # of the spacing, if the table may have as many nodes
_MAX_LOSS = 20.0  # nats below the maximum where a row's nodes end
_MAX_ERROR = 1e-4  # nats; rows above it are integrated otherwise
_BOX_REACH = 8.0  # of the nodes of a row with missing values, in standard deviations at its mode
# Curves of missing values at these nodes that cost as much as points of a row's own: for up to two
# components per feature, for three components in all.
_MAX_BOX_WORK, _MAX_BOX_WORK_OF_3 = 300, 2**20
# Of interpolations, by the number of components: the largest error at probes, and how many there
# are along an axis. Nats below the maximum where the nodes of a point of the grid end.
_MAX_GRID_ERROR, _GRID_LOSS = {1: 1e-10, 2: 1e-8}, 36.0
_N_PROBES, _PROBE_REACH = {1: 65, 2: 5}, 4.0
_GRID_STEPS = 1.6, 0.8, 0.56, 0.4, 0.28, 0.2, 0.14, 0.1, 0.05
_MAX_GRID_POINTS, _N_KEPT_GRIDS = 2**17, 32
_WIDTH = 8  # points along an axis that a row is interpolated between
_SHARE_FACTORS = np.array(
    [1 / math.prod(j - k for k in range(_WIDTH) if k != j) for j in range(_WIDTH)]
)
_FACE, _HALVES, _N_SUMS = 10, 11, 15  # places of the sums of a row


def posterior_on_lattice(
    X: Bits, observed: Bits | None, items: TraitItems, row_means: Floats | None = None
) -> RowPosterior:
    """Integrate over x on a lattice, for up to 3 components.

    A row's result depends on that row alone, and the reach of the nodes on the largest of all
    `row_means`. Its error is estimated from sums over halves of its nodes. Rows with an error above
    1e-4 nats or many missing values are integrated by `posterior_by_quadrature`. So are all rows if
    an item is too steep, or a lattice would be too large.

    Parameters
    ----------
    X, observed, items, row_means
        As for `posterior_by_quadrature`.
    """
    weights, offsets = (np.ascontiguousarray(part, np.float64) for part in items)
    mean_reach = min(find_mean_reach(row_means), MAX_MEAN_REACH)
    key = (weights.tobytes(), offsets.tobytes(), len(offsets), mean_reach)
    means = np.zeros((len(X), weights.shape[1])) if row_means is None else row_means
    if (table := _make_table(*key)) is None:
        return posterior_by_quadrature(X, observed, items, means)
    mask = np.ones_like(X) if observed is None else observed
    if (grid := _make_grid(*key)) is None:
        posterior = _sum_rows(X, mask, items, means, table)
    else:
        posterior = _interpolate_rows(X, means, table, grid)
        incomplete = np.flatnonzero([] if observed is None else ~observed.all(axis=1))
        if incomplete.size:
            own = X[incomplete], mask[incomplete], items, means[incomplete], table
            posterior.put_rows(incomplete, _sum_rows(*own))
    is_outside = (np.abs(means) > mean_reach).any(axis=1)
    difficult = np.flatnonzero((posterior.standard_error > _MAX_ERROR) | is_outside)
    if difficult.size:
        others = posterior_by_quadrature(X[difficult], mask[difficult], items, means[difficult])
        posterior.put_rows(difficult, others)
    return posterior


def _sum_rows(
    X: Bits, mask: Bits, items: TraitItems, row_means: Floats, table: _Table
) -> RowPosterior:
    """Sum over the nodes of the lattice for each row."""
    (n, q), first = row_means.shape, 3 - row_means.shape[1]  # the first axis in use
    mean, log_likelihood, error = np.empty((n, 3)), np.zeros(n), np.full(n, np.inf)
    covariance, priors = np.empty((n, 3, 3)), np.zeros((n, 4))
    boxes = _find_boxes(X, mask, items, row_means, table)
    add_row_means(priors, row_means)
    fill_row_posteriors(X, mask, boxes, priors, *table, mean, covariance, log_likelihood, error)
    log_likelihood += q * (math.log(table.spacing) - 0.5 * math.log(2 * math.pi))
    return RowPosterior(
        mean[:, first:].copy(), covariance[:, first:, first:].copy(), log_likelihood, error
    )


def _interpolate_rows(X: Bits, row_means: Floats, table: _Table, grid: _Grid) -> RowPosterior:
    """Interpolate the moments of complete rows, for one or two traits."""
    (n, q), (j, k) = row_means.shape, np.triu_indices(row_means.shape[1])
    places, found, priors = np.empty((n, 3)), np.empty((7, n)), np.zeros((n, 4))
    add_row_means(priors, row_means)
    is_needed, items = np.zeros_like(grid.is_known), np.ascontiguousarray(table.free[:, 1:].T)
    locate_rows(X, priors, items, grid.first, grid.step, places, is_needed)
    with grid.lock:  # threads share the grid
        b, c = np.nonzero(is_needed & ~grid.is_known)
        if b.size:
            sums = grid.first + grid.step * np.stack([b, c], axis=1)
            points = _sum_points(sums[:, 2 - q :], table)
            grid.moments[b, c, 0] = points.log_likelihood
            grid.moments[b, c, 3 - q : 3] = points.mean
            grid.moments[b, c, 6 - len(j) : 6] = points.covariance[:, j, k]
            grid.moments[b, c, 6] = points.standard_error
            grid.is_known[b, c] = True
    interpolate_moments(places, grid.moments, found)
    mean, covariance = np.ascontiguousarray(found[3 - q : 3].T), np.empty((n, q, q))
    covariance[:, j, k] = covariance[:, k, j] = found[6 - len(j) : 6].T
    return RowPosterior(mean, covariance, found[0], found[6])


class _Table(NamedTuple):
    """Items, and −A(x) − ½ xᵀx at the nodes of their lattice; unused axes come first."""

    free: Floats  # w and b side by side, (n_features, 4)
    log_joint: Floats
    spacing: float
    max_loss: float = _MAX_LOSS  # nats below the maximum where a row's nodes end


@lru_cache(_N_KEPT_TABLES)
def _make_table(
    weight_bytes: bytes, offset_bytes: bytes, n_features: int, mean_reach: float
) -> _Table | None:
    """Compute the table of items once for all calls; None if codes should do without."""
    weights, offsets = np.frombuffer(weight_bytes), np.frombuffer(offset_bytes)
    weights = weights.reshape(n_features, -1)
    if (q := weights.shape[1]) > MAX_COMPONENTS:
        return None
    lattice = choose_lattice(weights, offsets, _MAX_TABLE_NODES, mean_reach)
    if lattice is None:
        return None
    steepest = float(np.linalg.norm(weights, axis=1).max(initial=0.0))
    if steepest * lattice.spacing > SLOPE_SPACING * (1 + 1e-9):
        return None
    reach = lattice.spacing * lattice.reach
    most = min(_MAX_TABLE_NODES, _MAX_TABLE_WORK // n_features)
    spacing = max(_TABLE_STRETCH[q] * lattice.spacing, 2 * reach / (most ** (1 / q) - 1))
    if spacing > lattice.spacing:
        return None
    lattice = lattice.stretch(spacing / lattice.spacing)
    log_joint = tabulate_nodes(weight_bytes, offset_bytes, lattice)
    return _Table(pad_axes(weights, offsets), log_joint.reshape(lattice.shape), lattice.spacing)


class _Grid(NamedTuple):
    """Moments of complete rows at sums of slopes first, first + step, … along two axes.

    Points are computed once a row needs them, each by itself, so that the order does not matter.
    The first axis of one trait has a single point.
    """

    first: Floats
    step: float
    moments: Floats  # log-likelihood, two means, three covariances, error, 0; (n_b, n_c, _WIDTH)
    is_known: NDArray[np.bool_]
    lock: Lock


@lru_cache(_N_KEPT_GRIDS)
def _make_grid(
    weight_bytes: bytes, offset_bytes: bytes, n_features: int, mean_reach: float
) -> _Grid | None:
    """Choose the step of the grid for the rows of these items; None if there are more traits.

    The largest step is chosen with which rows with modes all over the traits are interpolated well;
    None if there would be too many points.
    """
    table = _make_table(weight_bytes, offset_bytes, n_features, mean_reach)
    offsets = np.frombuffer(offset_bytes)
    weights = np.frombuffer(weight_bytes).reshape(n_features, -1)
    if table is None or (q := weights.shape[1]) > 2:
        return None
    low, high = (f(weights, 0.0).sum(axis=0) for f in (np.minimum, np.maximum))
    axis = np.linspace(-1, 1, _N_PROBES[q]) * (_PROBE_REACH + mean_reach)
    modes = np.stack(np.meshgrid(*[axis] * q), axis=-1).reshape(-1, q)
    probes = np.clip(modes + expit(modes @ weights.T + offsets) @ weights, low, high)
    exact, none = _sum_points(probes, table), np.empty((len(probes), 0), np.uint8)
    for step in _GRID_STEPS:
        margin = mean_reach + (_WIDTH // 2) * step
        first, shape = np.zeros(2), np.ones(2, np.int64)
        first[2 - q :] = low - margin
        shape[2 - q :] = np.ceil((high - low + 2 * margin) / step) + 1
        if math.prod(shape) > _MAX_GRID_POINTS:
            return None
        moments = np.zeros((*shape, _WIDTH))
        grid = _Grid(first, step, moments, np.zeros(shape, np.bool_), Lock())
        found = _interpolate_rows(none, probes, table._replace(free=np.empty((0, 4))), grid)
        found.log_likelihood[:] += 0.5 * (probes**2).sum(axis=1)
        is_used = exact.standard_error <= _MAX_ERROR
        error = max(
            np.abs(own - others)[is_used].max(initial=0.0)
            for own, others in zip(found[:3], exact[:3], strict=True)
        )
        is_resolved = (found.standard_error[is_used] <= _MAX_ERROR).all()
        if is_resolved and error <= _MAX_GRID_ERROR[q]:
            return grid
    return None


def _sum_points(sums: Floats, table: _Table) -> RowPosterior:
    """Sum over the nodes for sums of slopes, (n, q)."""
    q, none = sums.shape[1], np.empty((len(sums), 0), np.uint8)
    items = TraitItems(np.empty((0, q)), np.empty(0))
    table = table._replace(free=np.empty((0, 4)), max_loss=_GRID_LOSS)
    found = _sum_rows(none, none, items, np.ascontiguousarray(sums), table)
    found.log_likelihood[:] += 0.5 * (sums**2).sum(axis=1)  # they are no means of priors
    return found


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})
def locate_rows(
    X: Bits,
    priors: Floats,
    items: Floats,
    first: Floats,
    step: float,
    places: Floats,
    is_needed: NDArray[np.bool_],
) -> None:
    """Compute the places of rows on the grid, and mark the points that they need.

    `places` receives places along two axes, and the part of the log-likelihood beside the grid's,
    (n_rows, 3). `priors` is what the means of the priors add to s_n, (n_rows, 4). `items` are two
    weights and the offset, (3, n_features).
    """
    height = min(_WIDTH, len(is_needed))
    for n in range(len(X)):
        row, y, z, constant = X[n], priors[n, 1], priors[n, 2], priors[n, 3]
        for i in range(len(row)):
            bit = float(row[i])
            y += bit * items[0, i]
            z += bit * items[1, i]
            constant += bit * items[2, i]
        places[n, 0], places[n, 1] = (y - first[0]) / step, (z - first[1]) / step
        places[n, 2] = constant
        b = find_first_point(places[n, 0], is_needed.shape[0])
        c = find_first_point(places[n, 1], is_needed.shape[1])
        for j in range(b, b + height):
            marks = is_needed[j, c : c + _WIDTH]
            for k in range(_WIDTH):
                marks[k] = True


@inlined
def find_first_point(place: float, n_points: int) -> int:
    """Return the first of the points along an axis that a row is interpolated between."""
    return max(min(int(place) - (_WIDTH // 2 - 1), n_points - _WIDTH), 0)


@inlined
def fill_shares(u: float, shares: Floats) -> None:
    """Compute Lagrange polynomials of points 0, 1, … at u."""
    for j in range(_WIDTH):
        shares[j] = _SHARE_FACTORS[j]
    for k in range(_WIDTH):
        for j in range(_WIDTH):
            shares[j] *= 1.0 if j == k else u - k


@njit(nogil=True, cache=True, error_model="numpy")
def interpolate_moments(places: Floats, moments: Floats, found: Floats) -> None:
    """Interpolate by polynomials of degree 7; `found` is (7, n_rows), see `_Grid`.

    The error is the largest one of the points.
    """
    wide_vectors()
    height, width = min(_WIDTH, len(moments)), moments.shape[1]
    points, line = moments.reshape(-1), np.empty(_WIDTH * _WIDTH)
    shares, errors, sums = np.ones((2, _WIDTH)), np.empty(_WIDTH), np.empty(_WIDTH)
    for n in range(len(places)):
        b = find_first_point(places[n, 0], len(moments))
        c = find_first_point(places[n, 1], width)
        if height > 1:
            fill_shares(places[n, 0] - b, shares[0])
        fill_shares(places[n, 1] - c, shares[1])
        fill(line, 0.0)
        fill(errors, 0.0)
        for j in range(height):
            start = _WIDTH * (width * (b + j) + c)
            near = points[start : start + _WIDTH * _WIDTH]
            add_multiple(shares[0, j], near, line)
            for k in range(_WIDTH):
                error = near[_WIDTH * k + 6]
                errors[k] = error if error > errors[k] else errors[k]
        fill(sums, 0.0)
        for k in range(_WIDTH):
            add_multiple(shares[1, k], line[_WIDTH * k : _WIDTH * (k + 1)], sums)
        for m in range(6):
            found[m, n] = sums[m]
        found[0, n] += places[n, 2]
        for k in range(_WIDTH // 2):
            errors[k] = max(errors[k], errors[k + _WIDTH // 2])
        found[6, n] = max(max(errors[0], errors[1]), max(errors[2], errors[3]))


def _find_boxes(
    X: Bits, mask: Bits, items: TraitItems, row_means: Floats, table: _Table
) -> Integers:
    """Return the first nodes of rows along three axes, and those after the last, (n_rows, 2, 3).

    Rows with missing values get the chunks of nodes near their mode, all others the whole lattice.
    """
    shape, q = np.array(table.log_joint.shape), items.weights.shape[1]
    boxes = np.zeros((len(X), 2, 3), np.int64)
    boxes[:, 1] = shape
    chunk = np.array([1, 1, VECTOR])[3 - q :]
    rows = np.flatnonzero(~mask.all(axis=1))
    if rows.size:
        near = find_posterior_modes(X[rows], mask[rows], items, row_means[rows])
        reach = _BOX_REACH * np.sqrt(np.diagonal(near.covariance, axis1=1, axis2=2))
        ends = np.stack([near.mean - reach, near.mean + reach], axis=1) / table.spacing
        size = shape[3 - q :]
        ends += np.array([[0.0], [2.0]]) + size // 2
        ends = np.clip(np.floor(ends), [[0], [1]], [size - 1, size])
        boxes[rows, 0, 3 - q :] = ends[:, 0] // chunk * chunk
        boxes[rows, 1, 3 - q :] = -(-ends[:, 1] // chunk) * chunk
    return boxes


@njit(nogil=True, cache=True, error_model="numpy")
def fill_row_posteriors(
    X: Bits,
    observed: Bits,
    boxes: Integers,
    priors: Floats,
    free: Floats,
    log_joint: Floats,
    spacing: float,
    max_loss: float,
    mean: Floats,
    covariance: Floats,
    log_likelihood: Floats,
    error: Floats,
) -> None:
    """Compute the moments of x given each row, log P(t_n) and its error.

    `mean` is (n_rows, 3) and `covariance` (n_rows, 3, 3); unused axes come first. `log_likelihood`
    is without the volume of a node and the constant of the prior. `_find_boxes` computes `boxes`.
    `priors` is what the means of the priors add to s_n, (n_rows, 4).
    Rows with too many missing values keep their error.
    """
    wide_vectors()
    shape = log_joint.shape
    chunks, values = np.empty((log_joint.size // VECTOR, 3), np.int64), np.empty(log_joint.size)
    at, middle = np.empty(3, np.int64), np.empty(3)
    slope, sums, missing = np.empty(3), np.empty(_N_SUMS), np.empty(len(free), np.int64)
    max_work = _MAX_BOX_WORK_OF_3 if shape[0] > 1 else _MAX_BOX_WORK * len(free)
    for n in range(len(X)):
        copy(priors[n, :3], slope)
        constant, n_missing = priors[n, 3], 0
        for i in range(len(free)):
            bit = float(X[n, i] & observed[n, i])
            for axis in range(3):
                slope[axis] += bit * free[i, axis]
            constant += bit * free[i, 3]
            missing[n_missing] = i
            n_missing += 1 - observed[n, i]
        first, box = boxes[n, 0], log_joint
        if n_missing > 0:
            size = boxes[n, 1] - first
            if n_missing * size[0] * size[1] * size[2] > max_work:
                continue
            box = np.empty((size[0], size[1], size[2]))
            _fill_box(log_joint, first, missing[:n_missing], free, spacing, box)
        for axis in range(3):
            middle[axis] = shape[axis] // 2 - first[axis]
            constant -= slope[axis] * spacing * middle[axis]
            slope[axis] *= spacing
            at[axis] = box.shape[axis] // 2  # whatever the row before
        best = climb(slope, box, at)
        n_chunks = collect_chunks(slope, box, at, best - max_loss, chunks, values)
        exponentiate(values[: VECTOR * n_chunks], best)
        _sum_chunks(box.shape, chunks[:n_chunks], at, values, sums)
        total, entry = sums[0], 4
        for j in range(3):
            sums[1 + j] /= total
            mean[n, j] = spacing * (at[j] - middle[j] + sums[1 + j])
            for k in range(j + 1):
                moment = sums[entry] / total - sums[1 + j] * sums[1 + k]
                covariance[n, j, k] = covariance[n, k, j] = spacing**2 * moment
                entry += 1
        log_likelihood[n] = constant + best + math.log(total)
        error[n] = sums[_FACE] / total
        for parity in range(4 if shape[0] > 1 else 3 if shape[1] > 1 else 1):
            half = sums[_HALVES + parity]
            is_spread = 0.0 < half < total
            error[n] += math.log(2 * half / total) ** 2 if is_spread else np.inf


@inlined
def _fill_box(
    log_joint: Floats,
    first: Integers,
    missing: Integers,
    free: Floats,
    spacing: float,
    box: Floats,
) -> None:
    """Copy nodes from `first` on, and add log(1 + exp(η_i)) of missing values to them."""
    shape, width = log_joint.shape, box.shape[2]
    product = np.empty(width)
    for a in range(box.shape[0]):
        x = spacing * (first[0] + a - shape[0] // 2)
        for b in range(box.shape[1]):
            y = spacing * (first[1] + b - shape[1] // 2)
            row = box[a, b]
            for c in range(width):
                row[c] = log_joint[first[0] + a, first[1] + b, first[2] + c]
            fill(product, 1.0)
            for m in range(len(missing)):
                i = missing[m]
                base = free[i, 3] + free[i, 0] * x + free[i, 1] * y
                base += free[i, 2] * spacing * (first[2] - shape[2] // 2)
                step = free[i, 2] * spacing
                for c in range(width):
                    eta = base + step * c
                    row[c] += max(eta, 0.0)
                    product[c] *= 1.0 + exp_minus(abs(eta))
                if m % FACTORS_PER_LOG == FACTORS_PER_LOG - 1 or m == len(missing) - 1:
                    for c in range(width):
                        row[c] += math.log(product[c])
                        product[c] = 1.0


@inlined
def _sum_chunks(
    shape: tuple[int, int, int], chunks: Integers, at: Integers, values: Floats, sums: Floats
) -> None:
    """Sum the values of a row's nodes with powers of their places relative to `at`.

    The sums are: of all nodes, with three first and six second powers; of the nodes on the faces of
    the lattice; of the odd places along the last axis, along all axes together (as on a
    chessboard), and along the other two axes.
    """
    fill(sums, 0.0)
    for n in range(len(chunks)):
        a, b, c = chunks[n, 0], chunks[n, 1], chunks[n, 2]
        shares = values[VECTOR * n : VECTOR * (n + 1)]
        total, power_1, power_2, odd = 0.0, 0.0, 0.0, 0.0
        for k in range(VECTOR):
            place = float(c + k - at[2])
            total += shares[k]
            power_1 += shares[k] * place
            power_2 += shares[k] * place * place
            odd += shares[k] * (k & 1)
        is_face = (shape[0] > 1 and (a == 0 or a == shape[0] - 1)) or (
            shape[1] > 1 and (b == 0 or b == shape[1] - 1)
        )
        if is_face:
            sums[_FACE] += total
        else:
            sums[_FACE] += shares[0] if c == 0 else 0.0
            sums[_FACE] += shares[VECTOR - 1] if c + VECTOR == shape[2] else 0.0
        x, y = float(a - at[0]), float(b - at[1])
        sums[0] += total
        sums[1] += total * x
        sums[2] += total * y
        sums[3] += power_1
        sums[4] += total * x * x
        sums[5] += total * x * y
        sums[6] += total * y * y
        sums[7] += power_1 * x
        sums[8] += power_1 * y
        sums[9] += power_2
        sums[_HALVES] += odd
        sums[_HALVES + 1] += total - odd if (a + b) & 1 else odd
        sums[_HALVES + 2] += total if b & 1 else 0.0
        sums[_HALVES + 3] += total if a & 1 else 0.0
