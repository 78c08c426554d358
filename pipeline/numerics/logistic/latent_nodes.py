"""The latent-trait model on fixed nodes: sums for its M-step, posteriors, log-likelihoods.

x ~ N(0, I_q) and P(t_i = 1 | x) = σ(w_iᵀ x + b_i), independent given x. The prior is replaced by
weights π_l at nodes x_l: those of a Gauss–Hermite rule (Bock & Aitkin, Psychometrika 1981), whose
sums converge to the integrals over x, or random draws of weight 1 / L, the sampling approximation
that Tipping (NIPS 1998) sets his bound against. With η_il = w_iᵀ x_l + b_i, and m_ni = 1 where t_ni
is observed and 0 elsewhere,

    log P(t_n | x_l) = Σ_i m_ni (t_ni η_il − log(1 + exp η_il)),
    R_nl = π_l P(t_n | x_l) / P(t_n),   P(t_n) = Σ_l π_l P(t_n | x_l),

the responsibilities and the likelihood of the model whose x takes the values x_l alone. Rows are
worked on in batches that stay in cache; a batch costs an exponential for each responsibility and
two matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

MAX_COMPONENTS = 3
MAX_NODES_PER_AXIS = 300
"""Beyond some 370 the outer weights are below the smallest normal number."""

_BATCH_ENTRIES = 2**16  # responsibilities: 512 KiB, which the L2 cache holds
_BATCH_STEP = 64  # rows; whole tiles of any BLAS
_TILE = 8  # nodes, or powers of x, that a BLAS works on side by side
_NEGLIGIBLE_MASS = 1e-7
_LOG_ZERO = -1e300  # log weight of a node that is not there; unlike −inf, zero rows stay zero


class Nodes(NamedTuple):
    """Points x_l (n_nodes, n_components) that stand for the prior, and log π_l (n_nodes,)."""

    points: Floats
    log_weights: Floats


class NodeStatistics(NamedTuple):
    """What the M-step needs of some rows; those of more rows are sums of these.

    Attributes
    ----------
    ones
        Σ_n t_ni R_nl, (n_features, n_nodes): expected ones of a feature at a node.
    mass
        Σ_n m_ni R_nl, (n_features, n_nodes): expected observed values.
    log_likelihood
        Σ_n log P(t_n), nats.
    peak
        Σ_n max_l R_nl: near the number of rows where posteriors are narrower than the nodes lie
        apart, so that sums over nodes are no integrals.
    """

    ones: Floats
    mass: Floats
    log_likelihood: float
    peak: float


class NodePosterior(NamedTuple):
    """Moments of x given each row, and log P(t_n) in nats.

    Attributes
    ----------
    mean
        (n_samples, n_components).
    covariance
        (n_samples, n_components, n_components).
    log_likelihood
        (n_samples,).
    """

    mean: Floats
    covariance: Floats
    log_likelihood: Floats


class _Batch(NamedTuple):
    """Rows of a slice, then zero rows up to the height that all batches have."""

    rows: slice
    design: Floats  # (height, n_columns): t_n, then m_n if values are missing, then 1
    scores: Floats  # (height, n_nodes), R_nl times a factor of the row; the next batch overwrites
    log_scale: Floats  # (height,), log P(t_n) less the log of the row's sum of scores


def gauss_hermite(n_per_axis: int, n_components: int) -> Nodes:
    """Place nodes of the Gauss–Hermite product rule for N(0, I).

    Along each axis, polynomials up to degree 2 n_per_axis − 1 are integrated exactly.

    Parameters
    ----------
    n_per_axis
        Nodes along each axis, 2 to 300.
    n_components
        Dimension of x, 1 to 3.

    Returns
    -------
    Nodes
        n_per_axis ** n_components of them, ascending, the first axis slowest.

    Raises
    ------
    FitError
        If a number is out of range.
    """
    if n_components > MAX_COMPONENTS:
        raise FitError(
            f"Expected at most {MAX_COMPONENTS} components for quadrature, got {n_components}. "
            "Use estimator=auto."
        )
    if not 2 <= n_per_axis <= MAX_NODES_PER_AXIS:
        raise FitError(
            f"Expected 2 to {MAX_NODES_PER_AXIS} nodes an axis, got {n_per_axis}. "
            "21 are usual, more the steeper the slopes."
        )
    axis, weights = scipy.special.roots_hermitenorm(n_per_axis)
    log_weights = np.log(weights / weights.sum())
    return Nodes(
        _cartesian_power(axis, n_components),
        _cartesian_power(log_weights, n_components).sum(axis=1),
    )


def drop_light_nodes(nodes: Nodes) -> Nodes:
    """Leave out nodes that have 1e-7 of the prior together: most of a grid of many axes."""
    order = np.argsort(nodes.log_weights)
    light = np.cumsum(np.exp(nodes.log_weights[order])) < _NEGLIGIBLE_MASS
    kept = np.sort(order[~light])
    return Nodes(nodes.points[kept], nodes.log_weights[kept])


def draw_nodes(n_nodes: int, n_components: int, rng: np.random.Generator) -> Nodes:
    """Draw nodes of equal weight from N(0, I).

    Parameters
    ----------
    n_nodes
        Number of nodes, at least 2.
    n_components
        Dimension of x.
    rng
        Source of the draws.

    Raises
    ------
    FitError
        If there are fewer than 2 nodes.
    """
    if n_nodes < 2:
        raise FitError(f"Expected at least 2 nodes, got {n_nodes}. Draw hundreds.")
    points = rng.standard_normal((n_nodes, n_components))
    return Nodes(points, np.full(n_nodes, -np.log(n_nodes)))


def node_statistics(
    X: Bits, observed: Bits | None, weights: Floats, offsets: Floats, nodes: Nodes
) -> NodeStatistics:
    """Sum responsibilities over rows: the E-step of EM.

    Parameters
    ----------
    X
        (n_samples, n_features) of 0 and 1; what lies under a missing value does not matter.
    observed
        Same shape, 1 = observed; None when every value is there. A row without any value adds
        only a peak.
    weights, offsets
        Slopes w (n_features, n_components) and offsets b (n_features,).
    nodes
        Nodes and weights of the prior.
    """
    n_features, n_nodes = X.shape[1], len(nodes.points)
    coefficients = _design_coefficients(weights, offsets, _pad_nodes(nodes), observed is not None)
    sums, log_likelihood, peak = np.zeros_like(coefficients), 0.0, 0.0
    for batch in _iter_batches(X, observed, coefficients):
        totals = batch.scores.sum(axis=1)
        sums += (batch.design / totals[:, None]).T @ batch.scores
        n_rows = batch.rows.stop - batch.rows.start
        log_likelihood += float((batch.log_scale + np.log(totals))[:n_rows].sum())
        peak += float((1 / totals[:n_rows]).sum())  # the largest score is 1
    # Without missing values every feature has the mass of the column of ones.
    mass = np.tile(sums[-1], (n_features, 1)) if observed is None else sums[n_features:-1]
    return NodeStatistics(sums[:n_features, :n_nodes], mass[:, :n_nodes], log_likelihood, peak)


def node_mass(
    X: Bits, observed: Bits | None, weights: Floats, offsets: Floats, nodes: Nodes
) -> tuple[Floats, float]:
    """Give `mass` and `log_likelihood` of `node_statistics` alone, in half its time.

    Parameters
    ----------
    X, observed, weights, offsets, nodes
        As for `node_statistics`.
    """
    n_features, n_nodes = X.shape[1], len(nodes.points)
    coefficients = _design_coefficients(weights, offsets, _pad_nodes(nodes), observed is not None)
    sums, log_likelihood = np.zeros_like(coefficients[n_features:]), 0.0
    for rows, design, scores, log_scale in _iter_batches(X, observed, coefficients):
        totals = scores.sum(axis=1)
        sums += (design[:, n_features:] / totals[:, None]).T @ scores
        log_likelihood += float((log_scale + np.log(totals))[: rows.stop - rows.start].sum())
    mass = np.tile(sums[-1], (n_features, 1)) if observed is None else sums[:-1]
    return mass[:, :n_nodes], log_likelihood


def node_posterior(
    X: Bits, observed: Bits | None, weights: Floats, offsets: Floats, nodes: Nodes
) -> NodePosterior:
    """Moments of x given each row.

    The result for a row depends on that row alone, to the last bit, while BLAS has one thread.

    Parameters
    ----------
    X, observed, weights, offsets, nodes
        As for `node_statistics`. A row without any value has the moments of the nodes.
    """
    n_samples, n_components = len(X), nodes.points.shape[1]
    mean = np.empty((n_samples, n_components))
    covariance = np.empty((n_samples, n_components, n_components))
    log_likelihood = np.empty(n_samples)
    j, k = np.tril_indices(n_components)
    nodes = _pad_nodes(nodes)
    coefficients = _design_coefficients(weights, offsets, nodes, observed is not None)
    powers = _design_columns(nodes.points)
    for batch in _iter_batches(X, observed, coefficients):
        rows, n_rows = batch.rows, batch.rows.stop - batch.rows.start
        moments = (batch.scores @ powers)[:n_rows]
        log_likelihood[rows] = batch.log_scale[:n_rows] + np.log(moments[:, 0])
        moments /= moments[:, :1]
        mean[rows] = moments[:, 1 : n_components + 1]
        products = moments[:, n_components + 1 :][:, : len(j)] - mean[rows, j] * mean[rows, k]
        # Where one node takes all, rounding alone would decide on the sign of a variance.
        products[:, j == k] = np.maximum(products[:, j == k], 0.0)
        covariance[rows, j, k] = covariance[rows, k, j] = products
    return NodePosterior(mean, covariance, log_likelihood)


def iter_responsibilities(
    X: Bits, observed: Bits | None, weights: Floats, offsets: Floats, nodes: Nodes
) -> Iterator[tuple[slice, Floats]]:
    """Give R_nl in batches: which rows, and theirs, (n_rows, n_nodes).

    Parameters
    ----------
    X, observed, weights, offsets, nodes
        As for `node_statistics`.
    """
    n_nodes = len(nodes.points)
    coefficients = _design_coefficients(weights, offsets, _pad_nodes(nodes), observed is not None)
    for rows, _, scores, _ in _iter_batches(X, observed, coefficients):
        found = scores[: rows.stop - rows.start, :n_nodes]
        yield rows, found / found.sum(axis=1, keepdims=True)


def _cartesian_power(entries: Floats, length: int) -> Floats:
    """All tuples of entries, the first place slowest: (n_entries ** length, length)."""
    grid = np.meshgrid(*[entries] * length, indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, length)


def _pad_nodes(nodes: Nodes) -> Nodes:
    """Add nodes of no weight up to whole tiles."""
    n_more = -len(nodes.points) % _TILE
    return Nodes(
        np.pad(nodes.points, ((0, n_more), (0, 0))),
        np.pad(nodes.log_weights, (0, n_more), constant_values=_LOG_ZERO),
    )


def _design_columns(points: Floats) -> Floats:
    """Columns 1, x and the distinct products x_j x_k, and zeros up to whole tiles."""
    j, k = np.tril_indices(points.shape[1])
    powers = np.column_stack([np.ones(len(points)), points, points[:, j] * points[:, k]])
    return np.pad(powers, ((0, 0), (0, -powers.shape[1] % _TILE)))


def _design_coefficients(weights: Floats, offsets: Floats, nodes: Nodes, masked: bool) -> Floats:
    """What the columns of a design count for at each node: (n_columns, n_nodes)."""
    eta = weights @ nodes.points.T + offsets[:, None]
    log_zero = scipy.special.log_expit(-eta)
    if masked:
        return np.vstack([eta, log_zero, nodes.log_weights])
    return np.vstack([eta, log_zero.sum(axis=0) + nodes.log_weights])


def _iter_batches(X: Bits, observed: Bits | None, coefficients: Floats) -> Iterator[_Batch]:
    """Cut rows into batches of one height.

    BLAS takes other paths for other shapes, with sums in another order. Products of one shape,
    of whole tiles, give a row the same bytes wherever in a batch it is.
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
            design[:n_rows, :n_features] = X[rows] & observed[rows]
            design[:n_rows, n_features:-1] = observed[rows]
        np.matmul(design, coefficients, out=scores)
        log_scale = scores.max(axis=1)
        scores -= log_scale[:, None]
        yield _Batch(rows, design, np.exp(scores, out=scores), log_scale)
