"""The latent-trait model on fixed nodes: sums for its M-step, posteriors, log-likelihoods.

x ~ N(0, I_q) and P(t_i = 1 | x) = σ(w_iᵀ x + b_i), independent given x. The prior is replaced by
weights π_l at nodes x_l. These are a Gauss–Hermite rule (Bock & Aitkin, Psychometrika 1981), whose
sums converge to the integrals over x, or random draws of weight 1 / L, the sampling approximation
with which Tipping (NIPS 1998) compares his bound. With η_il = w_iᵀ x_l + b_i, and m_ni = 1 if t_ni
is observed, else 0,

    log P(t_n | x_l) = Σ_i m_ni (t_ni η_il − log(1 + exp η_il)),
    R_nl = π_l P(t_n | x_l) / P(t_n),   P(t_n) = Σ_l π_l P(t_n | x_l),

are the responsibilities and the likelihood of a model whose x takes only the values x_l. Rows are
processed in batches that fit in the cache; a batch costs one exponential per responsibility and two
matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Values = NDArray[Any]  # bits, uint8, or any numbers

MAX_COMPONENTS = 3
MAX_NODES_PER_AXIS = 300
"""Above about 370 nodes, the outer weights would underflow."""

_BATCH_ENTRIES = 2**16  # responsibilities: 512 KiB, which fit in the L2 cache
_BATCH_STEP = 64  # rows; a multiple of the tiles of any BLAS
_TILE = 8  # nodes, or powers of x, in a tile of BLAS
_NEGLIGIBLE_MASS = 1e-7
_NO_ROWS, _NO_ERRORS = np.zeros(0, np.bool_), np.zeros(0)
_MAX_EDGE_SHARE, _MAX_EDGE_SHARE_OF_SET_NODES = 1e-5, 0.5  # of a row's posterior
_LOG_ZERO = -1e300  # log weight of padding nodes; unlike −inf, it keeps zero rows at zero


class Nodes(NamedTuple):
    """Points x_l, (n_nodes, n_components), that represent the prior, and log π_l, (n_nodes,)."""

    points: Floats
    log_weights: Floats


class NodeCurves(NamedTuple):
    """log P(t_n | x) at nodes: the sum of `constants` plus the `slopes` of the bits that are 1.

    Both are (n_features, n_nodes); the constants of values that are missing are left out.
    """

    slopes: Floats
    constants: Floats


class HasCurves(Protocol):
    """Items for whose values log P(t_n | x) is linear in the values, which need not be bits."""

    def tabulate(self, points: Floats) -> NodeCurves:
        """Return the curves at points, (n_nodes, n_components)."""


class NodeChecks(NamedTuple):
    """What finds rows that nodes do not suit, see `check_nodes`.

    Attributes
    ----------
    is_edge
        Whether a node lies at the edge of all nodes, (n_nodes,).
    is_odd
        Whether a node belongs to every second one, as on a chessboard, (n_nodes,); None if nodes
        are not equally spaced.
    max_edge_share
        Largest posterior mass at the edge.
    """

    is_edge: NDArray[np.bool_]
    is_odd: NDArray[np.bool_] | None
    max_edge_share: float


class NodeStatistics(NamedTuple):
    """Sums of the M-step over rows; the sums of several blocks can be added."""

    ones: Floats  # Σ_n t_ni R_nl, (n_features, n_nodes): expected number of ones at each node
    mass: Floats  # Σ_n m_ni R_nl, (n_features, n_nodes): expected number of observed values
    rows: Floats  # Σ_n R_nl, (n_nodes,): expected number of rows
    log_likelihood: float  # Σ_n log P(t_n), nats
    # Σ_n max_l R_nl. It is near the number of rows if posteriors are narrower than the distance of
    # the nodes, so that sums over nodes do not approximate integrals.
    peak: float
    codes: Floats  # mean of x in each row with `row_means`, (n_samples, n_components); else empty
    error: float = 0.0  # Σ_n of the estimated errors of log P(t_n), with checks
    # Rows whose posteriors lie outside the nodes, (n_samples,), with checks. No sum has them.
    is_outside: NDArray[np.bool_] = _NO_ROWS


class RowPosterior(NamedTuple):
    """Moments of x given each row, and log P(t_n) in nats.

    Attributes
    ----------
    mean, covariance
        (n_samples, q) and (n_samples, q, q).
    log_likelihood
        log P(t_n), (n_samples,).
    standard_error
        Its error, (n_samples,), if it is estimated; else empty.
    is_own
        Rows that do not share nodes, (n_samples,), if others do; else empty.
    """

    mean: Floats
    covariance: Floats
    log_likelihood: Floats
    standard_error: Floats = _NO_ERRORS
    is_own: NDArray[np.bool_] = _NO_ROWS

    @classmethod
    def make_empty(cls, n_samples: int, q: int) -> RowPosterior:
        """Return arrays to be filled, without errors."""
        return cls(np.empty((n_samples, q)), np.empty((n_samples, q, q)), np.empty(n_samples))

    def take_rows(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> RowPosterior:
        """Return the rows of a mask, (n_samples,), with some indices, or of a slice."""
        taken: list[Any] = [part[rows] if len(part) else part for part in self]
        return RowPosterior(*taken)

    def put_rows(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice, other: Self) -> None:
        """Replace these rows by those of another posterior."""
        for part, new in zip(self, other, strict=True):
            if len(part) and len(new):
                part[rows] = new


class _Batch(NamedTuple):
    """Rows of a slice, padded by zero rows to the height of all batches."""

    rows: slice
    design: Floats  # (height, n_columns): t_n, m_n if values are missing, means of priors, 1
    scores: Floats  # (height, n_nodes), R_nl times a factor per row; the next batch overwrites it
    log_scale: Floats  # (height,), log P(t_n) minus the log of the row's sum of scores


def gauss_hermite(n_per_axis: int, n_components: int) -> Nodes:
    """Return the nodes of the Gauss–Hermite product rule for N(0, I).

    Along each of 1 to 3 axes, the rule has 2 to 300 nodes and is exact for polynomials up to degree
    2 n_per_axis − 1. Nodes are in ascending order; the first axis varies slowest.
    """
    if n_components > MAX_COMPONENTS:
        raise FitError(
            f"{{components}} is {n_components}, but quadrature takes at most {MAX_COMPONENTS}. "
            "Use {estimator=auto}.",
            parameter="components",
        )
    if not 2 <= n_per_axis <= MAX_NODES_PER_AXIS:
        raise FitError(
            f"{{nodes}} is {n_per_axis} per axis. Choose from 2 to {MAX_NODES_PER_AXIS}; 21 are "
            "usual, and steep slopes need more.",
            parameter="nodes",
        )
    return make_hermite_nodes(n_per_axis, n_components)


def make_hermite_nodes(n_per_axis: int, n_components: int) -> Nodes:
    """Return the nodes of `gauss_hermite` along any number of axes."""
    axis, weights = _find_hermite_roots(n_per_axis)
    log_weights = np.log(weights / weights.sum())
    return Nodes(
        _cartesian_power(axis, n_components),
        _cartesian_power(log_weights, n_components).sum(axis=1),
    )


# All passes of a fit ask for the same.
_find_hermite_roots = lru_cache(maxsize=32)(scipy.special.roots_hermitenorm)


def drop_light_nodes(nodes: Nodes, negligible_mass: float = _NEGLIGIBLE_MASS) -> Nodes:
    """Remove the lightest nodes, together 1e-7 of the prior: most nodes of a grid of many axes."""
    order = np.argsort(nodes.log_weights)
    light = np.cumsum(np.exp(nodes.log_weights[order])) < negligible_mass
    heavy = np.sort(order[~light])
    return Nodes(nodes.points[heavy], nodes.log_weights[heavy])


def check_nodes(nodes: Nodes, spacing: float | None) -> NodeChecks:
    """Return what finds rows that these nodes do not suit.

    The posteriors of some rows may lie beyond the nodes, because of outliers, priors or known
    items. Such a row has much of its mass at the edge, as its posterior has a single peak. A node
    is at the edge if it has no neighbour on one side. If the nodes are `spacing` apart, half of
    them, as on a chessboard, estimate the error of all.
    """
    ranks = np.stack([np.unique(axis, return_inverse=True)[1] for axis in nodes.points.T], axis=1)
    sizes = ranks.max(axis=0) + 3
    strides = np.cumprod(sizes) // sizes
    keys = (ranks + 1) @ strides
    is_edge = np.zeros(len(keys), np.bool_)
    if len(keys) > 1:
        for step in (*strides, *-strides):
            is_edge |= ~np.isin(keys + step, keys)
    if spacing is None:
        return NodeChecks(is_edge, None, _MAX_EDGE_SHARE_OF_SET_NODES)
    return NodeChecks(is_edge, ranks.sum(axis=1) % 2 == 1, _MAX_EDGE_SHARE)


def draw_nodes(n_nodes: int, n_components: int, rng: np.random.Generator) -> Nodes:
    """Draw at least 2 nodes of equal weight from N(0, I)."""
    if n_nodes < 2:
        raise FitError(
            f"{{nodes}} is {n_nodes}. Choose hundreds, and at least 2.", parameter="nodes"
        )
    points = rng.standard_normal((n_nodes, n_components))
    return Nodes(points, np.full(n_nodes, -np.log(n_nodes)))


def node_statistics(
    X: Values,
    observed: Bits | None,
    items: HasCurves,
    nodes: Nodes,
    row_weights: Floats | None = None,
    row_means: Floats | None = None,
    checks: NodeChecks | None = None,
) -> NodeStatistics:
    """Sum responsibilities over rows: the E-step of EM.

    Parameters
    ----------
    X
        Values, such as 0 and 1, (n_samples, n_features); any value where missing.
    observed
        Mask of the same shape; None if all values are observed. A row without any value adds only
        to `rows` and `peak`.
    items
        The items.
    nodes
        Nodes and weights of the prior.
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    row_means
        Mean of the prior of each row, (n_samples, n_components), if `nodes` represent N(0, I) but
        the prior of row n is N(m_n, I); None if all are 0.
    checks
        With these, rows outside the nodes are left out, and errors are estimated.
    """
    n_features, n_nodes = X.shape[1], len(nodes.points)
    padded = _pad_nodes(nodes)
    coefficients = _design_coefficients(items, padded, observed is not None, row_means)
    codes = np.empty((0, nodes.points.shape[1]) if row_means is None else row_means.shape)
    sums, log_likelihood, peak, error = np.zeros_like(coefficients), 0.0, 0.0, 0.0
    is_outside = np.zeros(0 if checks is None else len(X), np.bool_)
    probe = None if checks is None else _make_probe(checks, len(padded.points))
    for batch in _iter_batches(X, observed, coefficients, row_means):
        totals = batch.scores.sum(axis=1)
        n_rows = batch.rows.stop - batch.rows.start
        errors = np.zeros(n_rows)
        if checks is not None and probe is not None:
            found = (batch.scores @ probe)[:n_rows] / totals[:n_rows, None]
            is_outside[batch.rows] = found[:, 0] > checks.max_edge_share
            errors = _estimate_errors(found, nodes.points.shape[1], checks)
        if row_means is not None:
            codes[batch.rows] = (batch.scores @ padded.points / totals[:, None])[:n_rows]
            batch.log_scale[:n_rows] -= 0.5 * (row_means[batch.rows] ** 2).sum(axis=1)
        shares, nats = batch.design / totals[:, None], (batch.log_scale + np.log(totals))[:n_rows]
        peaks = 1 / totals[:n_rows]  # the largest score is 1
        if (left_out := is_outside[batch.rows]).any():
            shares[:n_rows][left_out] = 0.0
            nats, peaks, errors = (np.where(left_out, 0.0, v) for v in (nats, peaks, errors))
        if row_weights is not None:
            own_weights = row_weights[batch.rows]
            shares[:n_rows] *= own_weights[:, None]
            nats, peaks, errors = (own_weights * v for v in (nats, peaks, errors))
        sums += shares.T @ batch.scores
        error += float(errors.sum())
        log_likelihood += float(nats.sum())
        peak += float(peaks.sum())
    # Without missing values, every feature has the mass of the column of ones.
    mass = (
        np.tile(sums[-1], (n_features, 1))
        if observed is None
        else sums[n_features : 2 * n_features]
    )
    return NodeStatistics(
        sums[:n_features, :n_nodes],
        mass[:, :n_nodes],
        sums[-1, :n_nodes],
        log_likelihood,
        peak,
        codes,
        error,
        is_outside,
    )


def _make_probe(checks: NodeChecks, n_nodes: int) -> Floats:
    """Return columns that sum the scores at the edge, and at odd nodes, of padded nodes."""
    probe = np.zeros((n_nodes, _TILE))
    probe[: len(checks.is_edge), 0] = checks.is_edge
    if checks.is_odd is not None:
        probe[: len(checks.is_odd), 1] = checks.is_odd
    return probe


def _estimate_errors(shares: Floats, q: int, checks: NodeChecks) -> Floats:
    """Return the estimated error of log P(t_n) of rows, given their shares, (n_rows, 2).

    The error of a sum over a lattice falls exponentially with its shortest frequency, which for
    every second node, as on a chessboard, is √q / 2 times as long. So the error of all nodes is the
    power 2 / √q of that of half of them, or less.
    """
    if checks.is_odd is None:
        return np.zeros(len(shares))
    return np.asarray(np.abs(2 * shares[:, 1] - 1) ** (2 / math.sqrt(q)))


def node_posterior(
    X: Values,
    observed: Bits | None,
    items: HasCurves,
    nodes: Nodes,
    row_means: Floats | None = None,
    checks: NodeChecks | None = None,
) -> RowPosterior:
    """Compute the moments of x given each row; with `checks`, tell which lie outside the nodes.

    With a single BLAS thread, the bits of a row's result depend on that row alone.

    Parameters
    ----------
    X, observed, items, nodes, row_means, checks
        As for `node_statistics`. A row without any value has the moments of the nodes.
    """
    n_components, is_outside = nodes.points.shape[1], np.zeros(len(X), np.bool_)
    mean, covariance, log_likelihood, *_ = RowPosterior.make_empty(len(X), n_components)
    j, k = np.tril_indices(n_components)
    nodes = _pad_nodes(nodes)
    coefficients = _design_coefficients(items, nodes, observed is not None, row_means)
    powers = _design_columns(nodes.points)
    probe = None if checks is None else _make_probe(checks, len(nodes.points))
    for batch in _iter_batches(X, observed, coefficients, row_means):
        rows, n_rows = batch.rows, batch.rows.stop - batch.rows.start
        moments = (batch.scores @ powers)[:n_rows]
        if checks is not None and probe is not None:
            at_edge = (batch.scores @ probe)[:n_rows, 0]
            is_outside[rows] = at_edge > checks.max_edge_share * moments[:, 0]
        log_likelihood[rows] = batch.log_scale[:n_rows] + np.log(moments[:, 0])
        if row_means is not None:
            log_likelihood[rows] -= 0.5 * (row_means[rows] ** 2).sum(axis=1)
        moments /= moments[:, :1]
        mean[rows] = moments[:, 1 : n_components + 1]
        products = moments[:, n_components + 1 :][:, : len(j)] - mean[rows, j] * mean[rows, k]
        # If one node has all mass, rounding would decide the sign of a variance.
        products[:, j == k] = np.maximum(products[:, j == k], 0.0)
        covariance[rows, j, k] = covariance[rows, k, j] = products
    is_own = is_outside if checks is not None else _NO_ROWS
    return RowPosterior(mean, covariance, log_likelihood, is_own=is_own)


def iter_responsibilities(
    X: Values,
    observed: Bits | None,
    items: HasCurves,
    nodes: Nodes,
    row_means: Floats | None = None,
) -> Iterator[tuple[slice, Floats]]:
    """Yield R_nl in batches: a slice of rows, and their responsibilities, (n_rows, n_nodes).

    Parameters are as for `node_statistics`.
    """
    n_nodes, padded = len(nodes.points), _pad_nodes(nodes)
    coefficients = _design_coefficients(items, padded, observed is not None, row_means)
    for rows, _, scores, _ in _iter_batches(X, observed, coefficients, row_means):
        scores = scores[: rows.stop - rows.start, :n_nodes]
        yield rows, scores / scores.sum(axis=1, keepdims=True)


def _cartesian_power(entries: Floats, length: int) -> Floats:
    """Return all tuples of entries, (n_entries ** length, length), the first place slowest."""
    grid = np.meshgrid(*[entries] * length, indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, length)


def _pad_nodes(nodes: Nodes) -> Nodes:
    """Pad with nodes of no weight to whole tiles."""
    n_padding = -len(nodes.points) % _TILE
    return Nodes(
        np.pad(nodes.points, ((0, n_padding), (0, 0))),
        np.pad(nodes.log_weights, (0, n_padding), constant_values=_LOG_ZERO),
    )


def _design_columns(points: Floats) -> Floats:
    """Return the columns 1, x and the distinct products x_j x_k, padded with zeros to tiles."""
    j, k = np.tril_indices(points.shape[1])
    powers = np.column_stack([np.ones(len(points)), points, points[:, j] * points[:, k]])
    return np.pad(powers, ((0, 0), (0, -powers.shape[1] % _TILE)))


def _design_coefficients(
    items: HasCurves, nodes: Nodes, masked: bool, row_means: Floats | None
) -> Floats:
    """Return the coefficient of each design column at each node, (n_columns, n_nodes)."""
    slopes, constants = items.tabulate(nodes.points)
    # The log density of the prior N(m, I) is that of N(0, I) plus m·x − ½ m·m.
    own = [slopes] if row_means is None else [slopes, nodes.points.T]
    if masked:
        return np.vstack([slopes, constants, *own[1:], nodes.log_weights])
    return np.vstack([*own, constants.sum(axis=0) + nodes.log_weights])


def _iter_batches(
    X: Values, observed: Bits | None, coefficients: Floats, row_means: Floats | None = None
) -> Iterator[_Batch]:
    """Yield batches of one height.

    BLAS sums in another order for other shapes. Products of one shape, of whole tiles, give a row
    the same bits wherever it is in a batch.
    """
    n_columns, n_nodes = coefficients.shape
    n_features = X.shape[1]
    height = max(_BATCH_ENTRIES // n_nodes // _BATCH_STEP, 1) * _BATCH_STEP
    design, scores = np.zeros((height, n_columns)), np.empty((height, n_nodes))
    for start in range(0, len(X), height):
        check_cancelled()
        rows = slice(start, min(start + height, len(X)))
        n_rows = rows.stop - start
        design[n_rows:] = 0.0
        design[:n_rows, -1] = 1.0
        if observed is None:
            design[:n_rows, :n_features] = X[rows]
        else:
            np.multiply(X[rows], observed[rows], out=design[:n_rows, :n_features])
            design[:n_rows, n_features : 2 * n_features] = observed[rows]
        if row_means is not None:
            design[:n_rows, -1 - row_means.shape[1] : -1] = row_means[rows]
        np.matmul(design, coefficients, out=scores)
        log_scale = scores.max(axis=1)
        scores -= log_scale[:, None]
        yield _Batch(rows, design, np.exp(scores, out=scores), log_scale)
