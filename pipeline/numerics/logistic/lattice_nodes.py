"""The sums of an EM pass for rows without missing values, on a fine lattice of nodes.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_iᵀ x + b_i), independent given x. Without missing values,

    log P(t_n | x) = s_nᵀ x̂ − A(x),   s_n = Σ_i t_ni (w_i, b_i),   A(x) = Σ_i log(1 + exp(η_i)),

with x̂ = (x, 1) and η_i = w_iᵀ x + b_i. So a row costs q + 1 multiplications per node, however many
features there are, if A is computed once for all rows. Nodes at distance h approximate integrals
over x by the trapezoid rule, whose error falls exponentially with 1 / h (L. N. Trefethen, J. A. C.
Weideman, SIAM Review 56 (2014)). log P(t_n | x) N(x; 0, I) is concave, so the nodes where it is
within some nats of its maximum are neighbours, and a row visits only these, in chunks of
`VECTOR` nodes along the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.intrinsics import wide_vectors
from pipeline.numerics.logistic.centred_nodes import (
    centred_e_step,
    fill_node_curves,
    weigh_node_curves,
)
from pipeline.numerics.logistic.latent_nodes import Nodes, drop_light_nodes, gauss_hermite
from pipeline.numerics.logistic.logistic_lanes import VECTOR, exp_minus, fma, inlined
from pipeline.numerics.logistic.newton_step import NewtonStatistics

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_MEAN_REACH = 4.0
"""How much farther nodes reach at most because rows have priors with other means."""
_MAX_NODES = 2**18
_MAX_SHARED_NODES, _SHARED_STRETCH = 3000, 1.5
_MAX_SLOPE = 20.0
_NEGLIGIBLE_MASS = 1e-9  # of shared nodes
_REACH = {1: 8.0, 2: 8.0, 3: 6.5}  # of the lattice along each axis, by the number of components
# With these, the error of the trapezoid rule is about exp(−2π² / 1.15²) = 3e-7 for a Gaussian, and
# exp(−2π² / 1.4) = 8e-7 for a logistic curve, whose poles are π / slope away from the axis.
_SPACING, SLOPE_SPACING = 1.15, 1.4  # in standard deviations; times the steepest slope
_PROBES_PER_AXIS, _PROBE_REACH = 9, 4.5
_MARGIN = 3.0  # between the posterior mean of a row and the end of the lattice, likewise
_MEAN_STEP = 2.0  # means of priors extend a lattice by multiples of it, so that few tables differ
_BATCH_ENTRIES = 2**16  # features and nodes of a table: 512 KiB
_FIRST_STRIDE = 16
_MAX_BATCH_ROWS, _MAX_BATCH_VALUES = 4096, 2**20  # 8 MiB


class Lattice(NamedTuple):
    """Nodes h k, with integers k along each of three axes; unused axes have a single node."""

    spacing: float
    reach: int  # k is −reach to reach; along the last axis, nodes are added to fill the vectors
    n_components: int
    max_loss: float = 17.0  # nats below a row's maximum where its nodes end

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of nodes along three axes. The origin is at place `size // 2` of each."""
        size, q = 2 * self.reach + 1, self.n_components
        n_chunks = math.ceil((self.reach + 1) / (VECTOR // 2))
        return (size if q == 3 else 1, size if q >= 2 else 1, VECTOR * n_chunks)

    def stretch(self, factor: float) -> Lattice:
        """Return a lattice with other distances, and nodes of rows that end accordingly.

        For a normal posterior, the logarithms of both errors are proportional to 1 / factor².
        """
        return Lattice(
            factor * self.spacing,
            int(self.reach / factor),
            self.n_components,
            self.max_loss / factor**2,
        )

    def list_points(self) -> Floats:
        """Return the nodes, (q, n_nodes), the last axis fastest."""
        sizes = self.shape[3 - self.n_components :]
        axes = [self.spacing * (np.arange(size) - size // 2) for size in sizes]
        return np.stack([a.reshape(-1) for a in np.meshgrid(*axes, indexing="ij")])


def find_mean_reach(row_means: Floats | None) -> float:
    """Return how much farther than for N(0, I) the nodes must reach for priors with these means."""
    largest = 0.0 if row_means is None else float(np.abs(row_means).max(initial=0.0))
    return _MEAN_STEP * math.ceil(largest / _MEAN_STEP)


def add_row_means(linear: Floats, row_means: Floats) -> None:
    """Turn the priors N(0, I) of rows into N(m_n, I), given s_n, (n_rows, 4), and m_n.

    The log density of the prior changes by m_nᵀ x − ½ m_nᵀ m_n.
    """
    q = row_means.shape[1]
    linear[:, 3 - q : 3] += row_means
    linear[:, 3] -= 0.5 * (row_means**2).sum(axis=1)


def choose_lattice(
    weights: Floats, offsets: Floats, max_nodes: int = _MAX_NODES, mean_reach: float = 0.0
) -> Lattice | None:
    """Return a lattice that resolves all posteriors, or None if it would have too many nodes.

    The narrowest posterior is that of a row where the items inform most. Items that are too steep
    for the finest lattice count as the steepest that it resolves. `mean_reach` is that of
    `find_mean_reach`.
    """
    q, reach = weights.shape[1], _REACH[weights.shape[1]] + mean_reach
    finest = 2 * reach / (max_nodes ** (1 / q) - 1)
    limit = min(_MAX_SLOPE, SLOPE_SPACING / finest)
    slopes = np.linalg.norm(weights, axis=1)
    factor = limit / np.maximum(slopes, limit)
    w, b = weights * factor[:, None], offsets * factor
    probes = gauss_hermite(_PROBES_PER_AXIS, q).points
    if mean_reach:
        probes = np.vstack([probes, (1 + mean_reach / _PROBE_REACH) * probes])
    p = expit(probes @ w.T + b)
    products = (w[:, :, None] * w[:, None]).reshape(len(w), -1)
    information = ((p * (1 - p)) @ products).reshape(-1, q, q)
    largest = float(np.linalg.eigvalsh(information)[:, -1].max())
    narrowest = _SPACING / math.sqrt(1.0 + largest)
    if narrowest < finest:
        return None
    return make_lattice(largest, min(float(slopes.max(initial=1.0)), limit), q, reach)


def make_lattice(
    information: float, steepest: float, n_components: int, reach: float | None = None
) -> Lattice:
    """Return a lattice that resolves posteriors up to an information, and slopes up to a size.

    `reach` is in standard deviations of the traits; by default that of `choose_lattice`.
    """
    reach = _REACH[n_components] if reach is None else reach
    spacing = min(_SPACING / math.sqrt(1.0 + information), SLOPE_SPACING / steepest)
    return Lattice(spacing, math.floor(reach / spacing), n_components)


def weigh_points(points: Floats) -> Nodes:
    """Return points, (n_nodes, q), with weights in proportion to the density of N(0, I)."""
    log_density = -0.5 * (points**2).sum(axis=1)
    return Nodes(points, log_density - scipy.special.logsumexp(log_density))


def list_shared_nodes(weights: Floats, offsets: Floats) -> Nodes:
    """Return all nodes of the lattice of these items: rows may be far from the mean.

    They suit items with asymptotes too. Asymptotes only make an item less informative, and log P
    and log Q have their singularities at the same distance π / slope from the axis (where σ(η) is
    negative, exp(η) is, so that Im η = π).

    Raises
    ------
    FitError
        If there would be too many nodes.
    """
    lattice = choose_lattice(weights, offsets)
    if lattice is None:
        raise FitError("The items are too steep for the nodes of the trait.")
    return weigh_points(np.ascontiguousarray(lattice.list_points().T))


def make_even_nodes(n_nodes: int) -> Nodes:
    """Return equally spaced nodes of one trait within 8 standard deviations."""
    return weigh_points(np.linspace(-_REACH[1], _REACH[1], n_nodes)[:, None])


def list_lattice_nodes(weights: Floats, offsets: Floats) -> Nodes | None:
    """Return nodes shared by all rows, or None if there would be many.

    Their distance is up to `_SHARED_STRETCH` times that of the lattice, which suffices for moments.
    """
    if (lattice := choose_lattice(weights, offsets)) is None:
        return None
    for stretch in (1.0, _SHARED_STRETCH):
        points = np.ascontiguousarray(lattice.stretch(stretch).list_points().T)
        nodes = drop_light_nodes(weigh_points(points))
        if len(nodes.points) <= _MAX_SHARED_NODES:
            return nodes
    return None


def list_even_nodes(
    items: Sequence[tuple[Floats, Floats]], stretch: float, max_nodes: int
) -> tuple[Nodes, float] | None:
    """Return nodes shared by all rows, and their distance; None if there would be too many.

    They resolve the items of all groups, given by weights and offsets; `stretch` is a factor of
    the distances that `choose_lattice` chooses.
    """
    lattices = [choose_lattice(*own, max_nodes=_MAX_NODES) for own in items]
    found = [lattice for lattice in lattices if lattice is not None]
    if len(found) < len(lattices):
        return None
    lattice = min(found, key=lambda lattice: lattice.spacing).stretch(stretch)
    if (2 * lattice.reach) ** lattice.n_components > 4 * max_nodes:
        return None
    nodes = weigh_points(np.ascontiguousarray(lattice.list_points().T))
    if lattice.n_components > 1:
        nodes = drop_light_nodes(nodes, _NEGLIGIBLE_MASS)
    return (nodes, lattice.spacing) if len(nodes.points) <= max_nodes else None


def lattice_e_step(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats | None = None,
    stretch: float = 1.0,
    row_means: Floats | None = None,
    nodes_per_axis: int | None = None,
) -> NewtonStatistics:
    """E-step on a lattice; rows with missing values have nodes centred at their posteriors.

    So do rows whose posteriors lie outside the lattice, and all rows if it would be too large.

    Parameters
    ----------
    X
        Values 0 and 1, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    weights, offsets
        w, (n_features, q), for 1 to 3 components, and b, (n_features,).
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    stretch
        Factor of the distances of the lattice. At 1.3 and with 20 items, the log-likelihood is off
        by up to 1e-4 nats per row, and 3 components take a third of the time.
    row_means
        Mean of the prior of each row, (n_samples, q); None if all are 0.
    nodes_per_axis
        Number of nodes centred at a row, see `centred_e_step`.
    """
    reach = min(find_mean_reach(row_means), MAX_MEAN_REACH)
    lattice = choose_lattice(weights, offsets, mean_reach=reach)
    run_centred = partial(
        centred_e_step, weights=weights, offsets=offsets, nodes_per_axis=nodes_per_axis
    )
    if lattice is None:
        return run_centred(X, observed, row_weights=row_weights, row_means=row_means)
    lattice = lattice.stretch(stretch)
    own_weights = np.ones(len(X)) if row_weights is None else row_weights
    is_complete = np.ones(len(X), np.bool_)
    if observed is not None:
        is_complete &= observed.all(axis=1)
    if row_means is not None:
        is_complete &= (np.abs(row_means) <= reach).all(axis=1)
    means = row_means
    if not is_complete.all():
        means = None if row_means is None else row_means[is_complete]
        X_complete, complete_weights = X[is_complete], own_weights[is_complete]
    else:
        X_complete, complete_weights = X, own_weights
    complete, is_outside = _sum_on_lattice(
        X_complete, weights, offsets, complete_weights, lattice, means
    )
    is_complete[np.flatnonzero(is_complete)[is_outside]] = False
    if is_complete.all():
        return complete
    is_masked = ~is_complete
    others = run_centred(
        X[is_masked],
        None if observed is None else observed[is_masked],
        row_weights=own_weights[is_masked],
        row_means=None if row_means is None else row_means[is_masked],
    )
    codes = np.empty((0, 0) if row_means is None else row_means.shape)
    if row_means is not None:
        codes[is_complete], codes[is_masked] = complete.codes[~is_outside], others.codes
    nats = np.empty(len(X))
    nats[is_complete] = complete.row_log_likelihoods[~is_outside]
    nats[is_masked] = others.row_log_likelihoods
    return NewtonStatistics(
        complete.gradient + others.gradient,
        complete.curvature + others.curvature,
        complete.moments + others.moments,
        complete.log_likelihood + others.log_likelihood,
        0,
        codes,
        row_log_likelihoods=nats,
    )


def estimate_lattice_e_step(
    weights: Floats, offsets: Floats, is_complete: bool, n_rows: int, nodes_per_axis: int
) -> float:
    """Return the nanoseconds per row of `lattice_e_step` for a block of `n_rows` rows.

    `is_complete` tells whether no value is missing.
    """
    n_features, q = weights.shape
    lattice = choose_lattice(weights, offsets) if is_complete else None
    if lattice is None:
        return float((20 + 10 * nodes_per_axis**q) * n_features)
    curves = 2 * math.prod(lattice.shape) * n_features  # once per block
    return float(500 + 4 * n_features + 6 * 15**q + curves / max(n_rows, 1))


def pad_axes(weights: Floats, offsets: Floats) -> Floats:
    """Return w and b side by side, (n_features, 4), after zeros for unused axes."""
    free = np.zeros((len(offsets), 4))
    free[:, 3 - weights.shape[1] :] = np.column_stack([weights, offsets])
    return free


def _sum_on_lattice(
    X: Bits,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats,
    lattice: Lattice,
    row_means: Floats | None,
) -> tuple[NewtonStatistics, NDArray[np.bool_]]:
    """Return the sums over rows, and the rows that are left out: those outside the lattice."""
    is_outside, limit = np.zeros(len(X), np.bool_), lattice.spacing * lattice.reach - _MARGIN
    (n_features, q), shape = weights.shape, lattice.shape
    points = lattice.list_points()
    log_joint = tabulate_nodes(weights.tobytes(), offsets.tobytes(), lattice)
    free = pad_axes(weights, offsets)
    gradient, mass, log_likelihood = np.zeros((n_features, q + 1)), np.zeros(len(log_joint)), 0.0
    codes = np.empty((0, 0) if row_means is None else row_means.shape)
    nats = np.empty(len(X))
    n_rows = max(min(_MAX_BATCH_ROWS, _MAX_BATCH_VALUES // n_features), 1)
    for start in range(0, len(X), n_rows):
        check_cancelled()
        rows = slice(start, start + n_rows)
        bits = X[rows].astype(np.float64)
        own_weights, linear = row_weights[rows], bits @ free
        if row_means is not None:
            add_row_means(linear, row_means[rows])
        mean = np.empty((len(bits), 3))
        table, masses = log_joint.reshape(shape), mass.reshape(shape)
        steps = lattice.spacing, lattice.max_loss
        sums = mean, masses, nats[rows]
        log_likelihood += sum_row_nodes(linear, own_weights, table, *steps, *sums)
        outside = (np.abs(mean[:, 3 - q :]) > limit).any(axis=1)
        if outside.any():  # take them back
            n_outside = np.count_nonzero(outside)
            unused = np.empty((n_outside, 3)), masses, np.empty(n_outside)
            taken = linear[outside], -own_weights[outside]
            log_likelihood += sum_row_nodes(*taken, table, *steps, *unused)
            is_outside[rows] = outside
            own_weights = np.where(outside, 0.0, own_weights)
        if row_means is not None:
            codes[rows] = mean[:, 3 - q :]
        mean *= own_weights[:, None]
        gradient[:, :q] += bits.T @ mean[:, 3 - q :]
        gradient[:, q] += own_weights @ bits
    log_scale = math.log(lattice.spacing) - 0.5 * math.log(2 * math.pi)
    log_likelihood += float(row_weights[~is_outside].sum()) * q * log_scale
    curvature = np.zeros((n_features, (q + 1) * (q + 2) // 2))
    moments = np.zeros((q + 1, q + 1))
    by_row = codes, np.empty((0, 0)), nats + q * log_scale
    found = NewtonStatistics(gradient, curvature, moments, log_likelihood, 0, *by_row)
    _add_curves(weights, offsets, points, mass, found)
    return found, is_outside


def _add_curves(
    weights: Floats,
    offsets: Floats,
    points: Floats,
    mass: Floats,
    sums: NewtonStatistics,
) -> None:
    """Complete the sums by those over nodes, each with the mass of all rows."""
    q = weights.shape[1]
    j, k = np.triu_indices(q + 1)
    used = np.flatnonzero(mass)
    for part in _iter_tables(weights, len(used)):
        nodes = used[part]
        x = np.vstack([points[:, nodes], np.ones(len(nodes))])
        sigma, slopes = np.empty((2, len(weights), len(nodes)))
        all_present, reached = np.ones((len(weights), 1)), np.empty(len(nodes))
        fill_node_curves(all_present, weights, offsets, x[:q], sigma, reached)
        weigh_node_curves(mass[nodes], sigma, slopes)
        products = x[j] * x[k]
        sums.gradient[:] -= sigma @ x.T
        sums.curvature[:] += slopes @ products.T
        sums.moments[j, k] += products @ mass[nodes]
    sums.moments[k, j] = sums.moments[j, k]


@lru_cache(16)  # tasks of a pass need the same: one, or several if the means of their rows' priors
# differ much, or if there is a mixture
def tabulate_nodes(weight_bytes: bytes, offset_bytes: bytes, lattice: Lattice) -> Floats:
    """Return −A(x) − ½ xᵀx at the nodes, (n_nodes,), for the bytes of weights and offsets."""
    offsets = np.frombuffer(offset_bytes).copy()  # kernels would compile anew for constants
    weights = np.frombuffer(weight_bytes).reshape(len(offsets), -1).copy()
    points = lattice.list_points()
    log_joint: Floats = _sum_curves(weights, offsets, points) - 0.5 * (points**2).sum(axis=0)
    return log_joint


def _sum_curves(weights: Floats, offsets: Floats, points: Floats) -> Floats:
    """Return −A(x) at points, (q, n_points)."""
    total = np.empty(points.shape[1])
    for part in _iter_tables(weights, len(total)):
        x = np.ascontiguousarray(points[:, part])
        sigma = np.empty((len(weights), x.shape[1]))
        all_present = np.ones((len(weights), 1))
        fill_node_curves(all_present, weights, offsets, x, sigma, total[part])
    return total


def _iter_tables(weights: Floats, n_points: int) -> Iterator[slice]:
    width = max(_BATCH_ENTRIES // len(weights), 8)
    for start in range(0, n_points, width):
        check_cancelled()
        yield slice(start, min(start + width, n_points))


@njit(nogil=True, cache=True, error_model="numpy")
def sum_row_nodes(
    linear: Floats,
    row_weights: Floats,
    log_joint: Floats,
    spacing: float,
    max_loss: float,
    mean: Floats,
    mass: Floats,
    nats: Floats,
) -> float:
    """Add each row's posterior to the mass of the nodes, and return Σ_n r_n log Σ_l P(t_n, x_l).

    `linear` is s_n, (n_rows, 4), and `mean` receives the posterior means, (n_rows, 3); unused axes
    come first. `nats` receives log Σ_l P(t_n, x_l), (n_rows,). `row_weights` are r_n, (n_rows,).
    `log_joint` and `mass` are those of the nodes, along three axes.
    """
    wide_vectors()
    shape = log_joint.shape
    chunks = np.empty((log_joint.size // VECTOR, 3), np.int64)
    values = np.empty(log_joint.size)
    at = np.array([size // 2 for size in shape])
    slope, total = np.empty(3), 0.0
    for n in range(len(linear)):
        for axis in range(3):
            slope[axis] = linear[n, axis] * spacing
        best = climb(slope, log_joint, at)
        n_chunks = collect_chunks(slope, log_joint, at, best - max_loss, chunks, values)
        weight = row_weights[n]
        own = _add_chunks(chunks[:n_chunks], values, best, weight, mean[n], mass)
        total += weight * own
        # Places along an axis are counted from its first node, not from the origin.
        total += weight * linear[n, 3]
        nats[n] = own + linear[n, 3]
        for axis in range(3):
            to_origin = slope[axis] * (shape[axis] // 2)
            total -= weight * to_origin
            nats[n] -= to_origin
            mean[n, axis] = spacing * (mean[n, axis] - shape[axis] // 2)
    return total


@inlined
def _get_value(slope: Floats, log_joint: Floats, a: int, b: int, c: int) -> float:
    return float(slope[0] * a + slope[1] * b + slope[2] * c + log_joint[a, b, c])


@inlined
def climb(slope: Floats, log_joint: Floats, at: Integers) -> float:
    """Move to a node that is better than its neighbours, and return its value."""
    best = _get_value(slope, log_joint, at[0], at[1], at[2])
    size = _FIRST_STRIDE
    while size >= 1:
        best, has_moved = _move(slope, log_joint, at, size, 0, best)
        if not has_moved:
            size //= 2
    return float(best)


@inlined
def _move(
    slope: Floats, log_joint: Floats, at: Integers, size: int, first_axis: int, best: float
) -> tuple[float, bool]:
    """Move to the best neighbour at a distance of `size` along the axes from `first_axis`."""
    shape, start = log_joint.shape, (at[0], at[1], at[2])
    width = 0 if first_axis > 0 or shape[0] == 1 else size
    height = 0 if first_axis > 1 or shape[1] == 1 else size
    has_moved = False
    for a in range(start[0] - width, start[0] + width + 1, size):
        for b in range(start[1] - height, start[1] + height + 1, size):
            for c in range(start[2] - size, start[2] + size + 1, size):
                if 0 <= a < shape[0] and 0 <= b < shape[1] and 0 <= c < shape[2]:
                    value = _get_value(slope, log_joint, a, b, c)
                    if value > best:
                        best, has_moved = value, True
                        at[0], at[1], at[2] = a, b, c
    return best, has_moved


@inlined
def collect_chunks(
    slope: Floats,
    log_joint: Floats,
    at: Integers,
    lowest: float,
    chunks: Integers,
    values: Floats,
) -> int:
    """List the chunks of nodes that reach the lowest value, and compute the values of their nodes.

    A chunk has the places (a, b, c) to (a, b, c + VECTOR − 1). `at` is the best node.
    """
    shape, n_chunks = log_joint.shape, 0
    plane = np.empty(3, np.int64)
    for turn in range(2):
        plane[0], plane[1], plane[2] = at[0] - turn, at[1], at[2]
        while 0 <= plane[0] < shape[0] and _reaches(slope, log_joint, plane, lowest):
            for side in range(2):
                b, peak, n_before = plane[1] - side, plane[2], -1
                while 0 <= b < shape[1] and n_chunks > n_before:
                    n_before = n_chunks
                    peak, n_chunks = _collect_line(
                        slope, log_joint, plane[0], b, peak, lowest, chunks, values, n_chunks
                    )
                    b += 1 - 2 * side
            plane[0] += 1 - 2 * turn
    return n_chunks


@inlined
def _reaches(slope: Floats, log_joint: Floats, plane: Integers, lowest: float) -> bool:
    """Climb along the last two axes, and return whether the lowest value is reached."""
    best = _get_value(slope, log_joint, plane[0], plane[1], plane[2])
    has_moved = True
    while has_moved:
        best, has_moved = _move(slope, log_joint, plane, 1, 1, best)
    return bool(best >= lowest)


@inlined
def _collect_line(
    slope: Floats,
    log_joint: Floats,
    a: int,
    b: int,
    peak: int,
    lowest: float,
    chunks: Integers,
    values: Floats,
    n_chunks: int,
) -> tuple[int, int]:
    """Add the chunks of a line, and return the first place of its best chunk and their number.

    The search for the best chunk starts from that of place `peak`.
    """
    row, base, step = log_joint[a, b], slope[0] * a + slope[1] * b, slope[2]
    c = peak // VECTOR * VECTOR
    while c > 0 and row[c - 1] - row[c] > step:
        c -= VECTOR
    while c + VECTOR < len(row) and row[c + VECTOR] - row[c + VECTOR - 1] > -step:
        c += VECTOR
    best, first, last = c, c, c + VECTOR
    if _fill_chunk(base, step, row, c, values[VECTOR * n_chunks :]) < lowest:
        return best, n_chunks
    while first > 0 and base + step * (first - 1) + row[first - 1] >= lowest:
        first -= VECTOR
    while last < len(row) and base + step * last + row[last] >= lowest:
        last += VECTOR
    for c in range(first, last, VECTOR):
        _fill_chunk(base, step, row, c, values[VECTOR * n_chunks :])
        chunks[n_chunks, 0], chunks[n_chunks, 1], chunks[n_chunks, 2] = a, b, c
        n_chunks += 1
    return best, n_chunks


@inlined
def _fill_chunk(base: float, step: float, row: Floats, c: int, values: Floats) -> float:
    """Compute the values of a chunk, and return the largest."""
    start, chunk = base + step * c, row[c : c + VECTOR]
    for k in range(VECTOR):
        values[k] = fma(step, float(k), start) + chunk[k]
    left, right = max(values[0], values[1]), max(values[2], values[3])
    for k in range(4, VECTOR, 2):
        left, right = max(left, values[k]), max(right, values[k + 1])
    return float(max(left, right))


@inlined
def exponentiate(values: Floats, largest: float) -> None:
    """Replace values by exp(value − largest)."""
    for k in range(len(values)):
        values[k] = exp_minus(largest - values[k])


@inlined
def _sum_chunk(values: Floats) -> tuple[float, float]:
    """Return Σ v_k and Σ k v_k."""
    total, moment = 0.0, 0.0
    for k in range(0, VECTOR, 2):
        pair = values[k] + values[k + 1]
        total += pair
        moment += values[k + 1] + k * pair
    return total, moment


@inlined
def _add_chunks(
    chunks: Integers, values: Floats, best: float, weight: float, mean: Floats, mass: Floats
) -> float:
    """Add a row's weighted shares to the mass, fill in its mean place, and return its log sum."""
    exponentiate(values[: VECTOR * len(chunks)], best)
    total, x, y, z = 0.0, 0.0, 0.0, 0.0
    for n in range(len(chunks)):
        part, moment = _sum_chunk(values[VECTOR * n : VECTOR * (n + 1)])
        total += part
        x += part * chunks[n, 0]
        y += part * chunks[n, 1]
        z += moment + part * chunks[n, 2]
    scale = 1.0 / total
    mean[0], mean[1], mean[2] = scale * x, scale * y, scale * z
    scale *= weight
    for n in range(len(chunks)):
        a, b, c = chunks[n, 0], chunks[n, 1], chunks[n, 2]
        shares = values[VECTOR * n : VECTOR * (n + 1)]
        row = mass[a, b, c : c + VECTOR]
        for k in range(VECTOR):
            row[k] += scale * shares[k]
    return float(best + math.log(total))
