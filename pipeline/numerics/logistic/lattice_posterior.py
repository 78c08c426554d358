"""Moments of the traits of each row on a fine lattice of nodes, in microseconds per row.

Model and lattice are described in `lattice_nodes`. With one trait, the moments of a row without
missing values depend on its sum s_n of slopes alone, so they are interpolated between those of a
fine grid of sums, to 1e-10. A missing value i multiplies the likelihood of a
row by 1 + exp(η_i). This curve is computed for each missing value, at the nodes near the row's
mode. The lattice is finer than in a pass, because a single row can have a larger error than the
mean of all rows.

The error of a row is estimated from halves of its nodes: every second one along an axis, or as on a
chessboard. If a half is off by a share ε, all nodes are off by less than ε², because the error
falls exponentially with the density of nodes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
_N_KEPT_TABLES, _N_KEPT_CURVES = 2, 64
_TABLE_STRETCH = {1: 0.5, 2: 0.7, 3: 0.75}  # of the spacing, if the table may have as many nodes
_MAX_LOSS = 20.0  # nats below the maximum where a row's nodes end
_MAX_ERROR = 1e-4  # nats; rows above it are integrated otherwise
_BOX_REACH = 8.0  # of the nodes of a row with missing values, in standard deviations at its mode
# Curves of missing values at these nodes that cost as much as points of a row's own: for up to two
# components per feature, for three components in all.
_MAX_BOX_WORK, _MAX_BOX_WORK_OF_3 = 300, 2**20
_MAX_CURVE_ERROR, _CURVE_STEPS = 1e-10, (1 << 8, 1 << 14)  # of an interpolation; least and most
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
    if (curve := _make_curve(*key)) is None:
        posterior = _sum_rows(X, mask, items, means, table)
    else:
        posterior = _interpolate_rows(X, means[:, 0], table, curve)
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


def _interpolate_rows(X: Bits, row_means: Floats, table: _Table, curve: _Curve) -> RowPosterior:
    """Interpolate the moments of complete rows, for one trait."""
    found, priors = np.empty((4, len(X))), np.column_stack([row_means, -0.5 * row_means**2])
    items = np.ascontiguousarray(table.free[:, 2:].T)
    interpolate_moments(X, priors, items, *curve, found)
    log_likelihood, mean, variance, error = found
    return RowPosterior(mean[:, None], variance[:, None, None], log_likelihood, error)


class _Table(NamedTuple):
    """Items, and −A(x) − ½ xᵀx at the nodes of their lattice; unused axes come first."""

    free: Floats  # w and b side by side, (n_features, 4)
    log_joint: Floats
    spacing: float


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


class _Curve(NamedTuple):
    """Log-likelihood, mean, variance and error of rows whose sums of slopes are on a grid."""

    first: float
    step: float
    moments: Floats  # (n_steps + 1, 4)


@lru_cache(_N_KEPT_CURVES)
def _make_curve(
    weight_bytes: bytes, offset_bytes: bytes, n_features: int, mean_reach: float
) -> _Curve | None:
    """Compute the moments at the sums of slopes of all possible rows of one trait.

    Steps are halved until moments between them are interpolated well; None if they never are, or
    if there are several traits.
    """
    table = _make_table(weight_bytes, offset_bytes, n_features, mean_reach)
    weights, (n_steps, most) = np.frombuffer(weight_bytes), _CURVE_STEPS
    if table is None or len(weights) > n_features:
        return None
    low, high = (f(weights, 0.0).sum() for f in (np.minimum, np.maximum))
    margin = mean_reach + 4 * max(high - low, 1.0) / n_steps
    low, high = low - margin, high + margin
    moments = _compute_moments(np.linspace(low, high, n_steps + 1), table)
    while n_steps <= most:
        step = (high - low) / n_steps
        middles = low + step * (0.5 + np.arange(n_steps))
        exact = _compute_moments(middles, table)
        found, none = np.empty((4, n_steps)), np.empty((n_steps, 0), np.uint8)
        priors = np.pad(middles[:, None], ((0, 0), (0, 1)))
        interpolate_moments(none, priors, np.empty((2, 0)), low, step, moments, found)
        is_used = np.maximum(found[3], exact[:, 3]) <= _MAX_ERROR
        if np.abs(found[:3].T - exact[:, :3])[is_used].max(initial=0.0) <= _MAX_CURVE_ERROR:
            return _Curve(low, step, moments)
        merged = np.empty((2 * n_steps + 1, 4))
        merged[::2], merged[1::2] = moments, exact
        moments, n_steps = merged, 2 * n_steps
    return None


def _compute_moments(slopes: Floats, table: _Table) -> Floats:
    """Return log-likelihood, mean, variance and error for sums of slopes, (n, 4)."""
    log_joint = table.log_joint.ravel()
    places = np.arange(len(log_joint)) - len(log_joint) // 2
    scores = np.outer(slopes, table.spacing * places) + log_joint
    best = scores.max(axis=1)
    shares = np.exp(scores - best[:, None])
    total, odd = shares.sum(axis=1), shares[:, 1::2].sum(axis=1)
    shares /= total[:, None]
    mean, square = table.spacing * (shares @ places), table.spacing**2 * (shares @ places**2)
    with np.errstate(divide="ignore"):  # all nodes but one may be far below
        error = shares[:, 0] + shares[:, -1] + np.log(2 * odd / total) ** 2
    volume = math.log(table.spacing) - 0.5 * math.log(2 * math.pi)
    return np.column_stack([best + np.log(total) + volume, mean, square - mean**2, error])


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})
def interpolate_moments(
    X: Bits,
    priors: Floats,
    items: Floats,
    first: float,
    step: float,
    moments: Floats,
    found: Floats,
) -> None:
    """Interpolate the moments of rows by polynomials of degree 5; `found` is (4, n_rows).

    `priors` is what the means of the priors add to s_n, (n_rows, 2). `items` are weights and
    offsets, (2, n_features), and `moments` those at the sums of slopes first, first + step, ….
    The error is the larger one of two neighbours.
    """
    weights, offsets, shares = items[0], items[1], np.empty(6)
    for n in range(len(X)):
        row, slope, constant = X[n], 0.0, 0.0
        for i in range(len(row)):
            bit = float(row[i])
            slope += bit * weights[i]
            constant += bit * offsets[i]
        place = (slope + priors[n, 0] - first) / step
        k = min(max(int(place), 2), len(moments) - 4)
        u = place - k
        shares[0] = (u + 1) * u * (u - 1) * (u - 2) * (u - 3) / -120
        shares[1] = (u + 2) * u * (u - 1) * (u - 2) * (u - 3) / 24
        shares[2] = (u + 2) * (u + 1) * (u - 1) * (u - 2) * (u - 3) / -12
        shares[3] = (u + 2) * (u + 1) * u * (u - 2) * (u - 3) / 12
        shares[4] = (u + 2) * (u + 1) * u * (u - 1) * (u - 3) / -24
        shares[5] = (u + 2) * (u + 1) * u * (u - 1) * (u - 2) / 120
        found[0, n] = constant + priors[n, 1]
        found[1, n] = found[2, n] = 0.0
        for m in range(6):
            for j in range(3):
                found[j, n] += shares[m] * moments[k - 2 + m, j]
        found[3, n] = max(moments[k, 3], moments[k + 1, 3])


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
        n_chunks = collect_chunks(slope, box, at, best - _MAX_LOSS, chunks, values)
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
