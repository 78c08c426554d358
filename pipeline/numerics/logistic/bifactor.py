"""Sums over the traits of a bifactor model, by quadrature over few traits at a time.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_i·x + b_i), items independent given x. Every item may depend on
the general traits, g, but only on one of the others, the specific trait s of its block. Given g,
blocks are independent, so that

    P(t_n) = ∫ N(g; 0, I) Π_blocks P(t_n,block | g) dg,
    P(t_n,block | g) = ∫ N(s; 0, 1) P(t_n,block | g, s) ds

needs only nodes for g and one specific trait, however many there are (R. D. Gibbons, D. R. Hedeker,
"Full-information item bi-factor analysis", Psychometrika 57, 1992). Nodes are equally spaced, so
that errors fall exponentially with their density, as in `lattice_nodes`.

The integral over s depends on a row only through its values in the block. It is computed once for
all rows of a batch with the same values: a block of 12 items has at most 4,096 of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.latent_nodes import RowPosterior, gauss_hermite
from pipeline.numerics.logistic.newton_step import NewtonStatistics, unpack_triangles

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]

_MAX_GENERAL = 2
_REACH = 6.5  # of the nodes along each axis
# Of nodes, in standard deviations, and times the steepest slope: see `lattice_nodes`. The error of
# second moments is larger than that of the likelihood, so they are closer here.
_SPACING, _SLOPE_SPACING = 1.0, 1.25
_MAX_SLOPE = 20.0
_MAX_NODES_PER_AXIS = {0: 1, 1: 401, 2: 61}  # of general traits, by their number
_MAX_SPECIFIC_NODES = 201
_LIGHTEST_NODE = 1e-12  # share of the prior of a node of two general traits
_PROBES_PER_AXIS = 9
_MAX_ENTRIES = 2**20  # of a table: 8 MiB
_MAX_ROWS, _MAX_SCORE_ROWS = 2**13, 2**10


class TraitBlocks(NamedTuple):
    """Items of a bifactor model.

    Attributes
    ----------
    general
        General traits.
    specific
        Trait of each block; -1 for a block whose items depend on general traits only.
    items
        Items of each block; every item is in one block.
    """

    general: tuple[int, ...]
    specific: tuple[int, ...]
    items: tuple[Indices, ...]


def find_trait_blocks(loads: Flags) -> TraitBlocks | None:
    """Find the general traits and the blocks, given which items depend on which traits.

    Parameters
    ----------
    loads
        Whether the slope of an item on a trait may differ from 0, (n_features, q).

    Returns
    -------
    TraitBlocks or None
        None if more than two general traits would be needed.
    """
    q = loads.shape[1]
    for n_general in range(_MAX_GENERAL + 1):
        for general in combinations(range(q), n_general):
            others = np.delete(np.arange(q), general)
            if (loads[:, others].sum(axis=1) <= 1).all():
                return _split_items(loads, general, others.tolist())
    return None


def _split_items(loads: Flags, general: tuple[int, ...], others: list[int]) -> TraitBlocks:
    blocks = {k: np.flatnonzero(loads[:, k]) for k in others}
    blocks[-1] = np.flatnonzero(~loads[:, others].any(axis=1))
    blocks = {k: items for k, items in blocks.items() if items.size}
    return TraitBlocks(general, tuple(blocks), tuple(blocks.values()))


class _Nodes(NamedTuple):
    """Nodes of the general traits, (n, n_general), of a specific trait, (m,), and log weights."""

    general: Floats
    log_general: Floats
    specific: Floats
    log_specific: Floats


class _Block(NamedTuple):
    """A block of items, and the distinct values of rows in it.

    Attributes
    ----------
    items, trait
        The items, and the specific trait, or -1.
    nodes, log_weights
        Nodes of the specific trait, (m,), with the log of their weights.
    logits, P
        η and σ(η) at the nodes, (n_items, n, m), n nodes of general traits.
    ones, mask
        Distinct values of rows, (n_values, n_items); no mask if all are observed.
    places
        Which of them each row has, (n_rows,).
    """

    items: Indices
    trait: int
    nodes: Floats
    log_weights: Floats
    logits: Floats
    P: Floats
    ones: Floats
    mask: Floats | None
    places: Indices

    def iter_posteriors(self) -> Iterator[tuple[slice, Floats, Floats]]:
        """Yield parts of the values, log P(values | g), (n_part, n), and P(s | values, g).

        The last has the shape (n_part, n, m).
        """
        n_items, n, m = self.P.shape
        logits = self.logits.reshape(n_items, -1)
        costs = np.logaddexp(0.0, logits)  # −log P(0)
        size = max(_MAX_ENTRIES // (n * m), 1)
        for start in range(0, len(self.ones), size):
            check_cancelled()
            part = slice(start, min(start + size, len(self.ones)))
            table = self.ones[part] @ logits
            if self.mask is None:
                table -= costs.sum(axis=0)
            else:
                table -= self.mask[part] @ costs
            table = table.reshape(-1, n, m)
            table += self.log_weights
            top = table.max(axis=2)
            table -= top[:, :, None]
            np.exp(table, out=table)
            total = table.sum(axis=2)
            table /= total[:, :, None]
            yield part, top + np.log(total), table


class _GeneralPosterior(NamedTuple):
    """log P(t_n), (n_rows,), and the posterior of the general nodes, (n_rows, n)."""

    log_likelihood: Floats
    shares: Floats


def bifactor_e_step(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats | None = None,
    *,
    blocks: TraitBlocks,
    stretch: float = 1.0,
) -> NewtonStatistics:
    """E-step of a bifactor model.

    Parameters
    ----------
    X
        Values 0 and 1, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    weights, offsets
        w, (n_features, q), and b, (n_features,).
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    blocks
        General traits and blocks of items.
    stretch
        Factor of the distances of nodes.

    Returns
    -------
    NewtonStatistics
        Derivatives of slopes that are 0 are left at 0, and so are second moments of two different
        traits, unless both are general.
    """
    nodes = _choose_nodes(weights, offsets, blocks, stretch)
    own_weights = np.ones(len(X)) if row_weights is None else row_weights
    tables = _tabulate_blocks(X, observed, weights, offsets, blocks, nodes)
    log_likelihood, masses = 0.0, [np.zeros((len(t.ones), len(nodes.general))) for t in tables]
    for rows, posterior in _iter_row_posteriors(tables, nodes, len(X)):
        log_likelihood += float(own_weights[rows] @ posterior.log_likelihood)
        posterior.shares[:] *= own_weights[rows, None]
        for table, mass in zip(tables, masses, strict=True):
            mass += _sum_by_place(table.places[rows], len(mass), posterior.shares)
    n_features, q = weights.shape
    gradient = np.zeros((n_features, q + 1))
    curvature = np.zeros((n_features, q + 1, q + 1))
    moments = np.zeros((q + 1, q + 1))
    for table, mass in zip(tables, masses, strict=True):
        _add_derivatives(table, mass, nodes, blocks, gradient, curvature, moments)
    _add_general_moments(masses[0].sum(axis=0), nodes, blocks, moments)
    j, k = np.triu_indices(q + 1)
    return NewtonStatistics(gradient, curvature[:, j, k], moments, log_likelihood, 0)


def estimate_bifactor_e_step(
    weights: Floats, offsets: Floats, blocks: TraitBlocks, n_rows: int, stretch: float = 1.0
) -> tuple[float, float]:
    """Return the nanoseconds of `bifactor_e_step` per row, and those for all rows together.

    `n_rows` is the number of rows of a chunk. If a block has more possible values, rows hardly
    share any.
    """
    nodes = _choose_nodes(weights, offsets, blocks, stretch)
    n = len(nodes.general)
    by_row, shared = 500.0 + 4 * len(offsets) + 20 * n * len(blocks.items), 0.0
    for items in blocks.items:
        by_value = n * len(nodes.specific) * (30.0 + 2 * len(items))
        if len(items) < math.log2(max(n_rows, 1)):
            shared += 2 ** len(items) * by_value
        else:
            by_row += by_value
    return by_row, shared


def estimate_bifactor_scores(weights: Floats, offsets: Floats, blocks: TraitBlocks) -> float:
    """Return the nanoseconds per row of `compute_bifactor_scores`."""
    nodes = _choose_nodes(weights, offsets, blocks)
    by_row = sum(len(items) * (len(items) + 10) for items in blocks.items)
    n_vectors = 2 * len(offsets)
    return float(len(nodes.general) * (by_row * len(nodes.specific) + 0.3 * n_vectors**2))


def _choose_nodes(
    weights: Floats, offsets: Floats, blocks: TraitBlocks, stretch: float = 1.0
) -> _Nodes:
    """Return nodes that resolve all posteriors if `stretch` is 1 and no item is very steep.

    `stretch` multiplies the distance between nodes.
    """
    slopes = np.minimum(np.abs(weights), _MAX_SLOPE)  # steeper items have no smooth integrals
    n_general = len(blocks.general)
    probes = gauss_hermite(_PROBES_PER_AXIS, 1).points[:, 0]
    general = _make_grid(probes, n_general)
    of_general = np.zeros((n_general, len(general)))
    narrowest = 1.0
    for k, items in zip(blocks.specific, blocks.items, strict=True):
        eta = weights[items][:, blocks.general] @ general.T + offsets[items, None]
        specific = weights[items, k] if k >= 0 else np.zeros(len(items))
        P = expit(eta[:, :, None] + specific[:, None, None] * probes)
        spread = P * (1 - P)
        if k >= 0:
            information = np.einsum("i,ign->gn", slopes[items, k] ** 2, spread)
            narrowest = min(narrowest, 1 / math.sqrt(1 + information.max()))
        for a, trait in enumerate(blocks.general):
            by_node = np.einsum("i,ign->gn", slopes[items, trait] ** 2, spread)
            of_general[a] += by_node.max(axis=1)
    steepest = max(float(np.linalg.norm(slopes, axis=1).max(initial=0.0)), 1e-3)
    limit = _SLOPE_SPACING / min(steepest, _MAX_SLOPE)
    axis = _make_axis(stretch * min(_SPACING * narrowest, limit), _MAX_SPECIFIC_NODES)
    log_specific = -0.5 * axis**2
    of_specific = axis, log_specific - scipy.special.logsumexp(log_specific)
    narrowest = 1 / math.sqrt(1 + float(of_general.max(initial=0.0)))
    spacing = stretch * min(_SPACING * narrowest, limit)
    axis = _make_axis(spacing, _MAX_NODES_PER_AXIS[n_general])
    points = _make_grid(axis, n_general)
    log_general = -0.5 * (points**2).sum(axis=1)
    log_general -= scipy.special.logsumexp(log_general)
    if n_general > 1:
        is_kept = log_general > math.log(_LIGHTEST_NODE)
        points, log_general = points[is_kept], log_general[is_kept]
    return _Nodes(points, log_general, *of_specific)


def _make_grid(axis: Floats, n_axes: int) -> Floats:
    """Return the points of a grid with equal axes, (n_points, n_axes); without axes, one point."""
    points = [*product(axis.tolist(), repeat=n_axes)]
    return np.array(points).reshape(len(points), n_axes)


def _make_axis(spacing: float, max_nodes: int) -> Floats:
    """Return nodes around 0, of at most this distance unless there would be too many."""
    n = min(math.ceil(_REACH / spacing), (max_nodes - 1) // 2)
    return np.linspace(-_REACH, _REACH, 2 * n + 1)


def _tabulate_blocks(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    blocks: TraitBlocks,
    nodes: _Nodes,
) -> list[_Block]:
    tables = []
    for k, items in zip(blocks.specific, blocks.items, strict=True):
        values = X[:, items] if observed is None else X[:, items] & observed[:, items]
        words = _pack_rows(values)
        if observed is not None:
            words = np.column_stack([words, _pack_rows(observed[:, items])])
        rows, places = _find_distinct_rows(words)
        own_nodes = nodes.specific if k >= 0 else np.zeros(1)
        eta = weights[items][:, blocks.general] @ nodes.general.T + offsets[items, None]
        slopes = weights[items, k] if k >= 0 else np.zeros(len(items))
        logits = eta[:, :, None] + slopes[:, None, None] * own_nodes
        tables.append(
            _Block(
                items,
                k,
                own_nodes,
                nodes.log_specific if k >= 0 else np.zeros(1),
                logits,
                expit(logits),
                values[rows].astype(np.float64),
                None if observed is None else observed[np.ix_(rows, items)].astype(np.float64),
                places,
            )
        )
    return tables


def _pack_rows(bits: Bits) -> NDArray[np.uint64]:
    """Pack bits of rows into words, (n_rows, n_words)."""
    packed = np.packbits(bits, axis=1)
    words = np.zeros((len(bits), 8 * math.ceil(bits.shape[1] / 64)), np.uint8)
    words[:, : packed.shape[1]] = packed
    return words.view(np.uint64)


def _find_distinct_rows(words: NDArray[np.uint64]) -> tuple[Indices, Indices]:
    """Return a row for each distinct value, and the place of each row's value among them."""
    order = np.lexsort(words.T)
    is_new = np.ones(len(words), np.bool_)
    is_new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    places = np.empty(len(words), np.int64)
    places[order] = np.cumsum(is_new) - 1
    return order[is_new], places


def _iter_row_posteriors(
    tables: list[_Block], nodes: _Nodes, n_rows: int, size: int = _MAX_ROWS
) -> Iterator[tuple[slice, _GeneralPosterior]]:
    """Yield slices of rows, and what follows from the general nodes for them."""
    of_values = []
    for table in tables:
        log_likelihood = np.empty((len(table.ones), len(nodes.general)))
        for part, given_general, _ in table.iter_posteriors():
            log_likelihood[part] = given_general
        of_values.append(log_likelihood)
    for start in range(0, n_rows, size):
        check_cancelled()
        rows = slice(start, min(start + size, n_rows))
        joint = np.tile(nodes.log_general, (rows.stop - start, 1))
        for table, log_likelihood in zip(tables, of_values, strict=True):
            joint += log_likelihood[table.places[rows]]
        top = joint.max(axis=1)
        joint -= top[:, None]
        np.exp(joint, out=joint)
        total = joint.sum(axis=1)
        joint /= total[:, None]
        yield rows, _GeneralPosterior(top + np.log(total), joint)


def _sum_by_place(places: Indices, n_places: int, values: Floats) -> Floats:
    """Sum the rows of `values` with the same place, (n_places, …)."""
    n = len(places)
    entries = (np.ones(n), (places, np.arange(n)))
    total: Any = scipy.sparse.csr_array(entries, shape=(n_places, n)) @ values
    return np.asarray(total)


def _add_derivatives(
    table: _Block,
    mass: Floats,
    nodes: _Nodes,
    blocks: TraitBlocks,
    gradient: Floats,
    curvature: Floats,
    moments: Floats,
) -> None:
    """Add the sums of a block; `mass` is the posterior mass of rows by value and general node."""
    n_items, n, m = table.P.shape
    ones, present = np.zeros((2, n_items, n * m))
    at_nodes = np.zeros((n, m))
    for part, _, shares in table.iter_posteriors():
        shares *= mass[part, :, None]
        by_node = shares.reshape(len(shares), -1)
        ones += table.ones[part].T @ by_node
        if table.mask is not None:
            present += table.mask[part].T @ by_node
        at_nodes += shares.sum(axis=0)
    if table.mask is None:
        present[:] = at_nodes.reshape(-1)
    P = table.P.reshape(n_items, -1)
    columns, z = _list_extended_nodes(table, nodes, blocks, gradient.shape[1] - 1)
    gradient[np.ix_(table.items, columns)] = (ones - present * P) @ z
    products = (z[:, :, None] * z[:, None]).reshape(len(z), -1)
    own = ((present * P * (1 - P)) @ products).reshape(n_items, len(columns), len(columns))
    curvature[np.ix_(table.items, columns, columns)] = own
    if table.trait >= 0:
        k, mass_by_node = table.trait, at_nodes.sum(axis=0)
        moments[k, k] += mass_by_node @ table.nodes**2
        moments[k, -1] += mass_by_node @ table.nodes
        moments[-1, k] = moments[k, -1]


def _list_extended_nodes(
    table: _Block, nodes: _Nodes, blocks: TraitBlocks, q: int
) -> tuple[Indices, Floats]:
    """Return the parameters of the block's items, and (x, 1) at its nodes, (n m, n_columns)."""
    n, m = len(nodes.general), len(table.nodes)
    z = [np.repeat(axis, m) for axis in nodes.general.T]
    columns = [*blocks.general]
    if table.trait >= 0:
        columns.append(table.trait)
        z.append(np.tile(table.nodes, n))
    return np.array([*columns, q]), np.column_stack([*z, np.ones(n * m)])


def _add_general_moments(mass: Floats, nodes: _Nodes, blocks: TraitBlocks, moments: Floats) -> None:
    columns = np.array([*blocks.general, len(moments) - 1])
    z = np.column_stack([nodes.general, np.ones(len(mass))])
    moments[np.ix_(columns, columns)] = z.T @ (mass[:, None] * z)


def bifactor_posterior(
    X: Bits, observed: Bits | None, weights: Floats, offsets: Floats, blocks: TraitBlocks
) -> RowPosterior:
    """Return the posterior moments of all traits, and log P(t_n) with its error.

    The error of log P(t_n) is estimated from nodes at twice the distance. If these are off by ε,
    the error is less than ε², because it falls exponentially with the density of nodes. Parameters
    are as in `bifactor_e_step`.
    """
    nodes = _choose_nodes(weights, offsets, blocks)
    tables = _tabulate_blocks(X, observed, weights, offsets, blocks, nodes)
    n_rows, q, general = len(X), weights.shape[1], [*blocks.general]
    mean, second = np.zeros((n_rows, q)), np.zeros((n_rows, q, q))
    log_likelihood = np.empty(n_rows)
    of_values = [_sum_specific_moments(table) for table in tables if table.trait >= 0]
    specific = [table for table in tables if table.trait >= 0]
    for rows, posterior in _iter_row_posteriors(tables, nodes, n_rows):
        log_likelihood[rows] = posterior.log_likelihood
        shares = posterior.shares
        mean[rows, general] = shares @ nodes.general
        products = nodes.general[:, :, None] * nodes.general[:, None]
        n_general = len(general)
        second[rows][np.ix_(range(len(shares)), general, general)] = (
            shares @ products.reshape(len(products), -1)
        ).reshape(len(shares), n_general, n_general)
        first: list[tuple[int, Floats]] = []
        for table, (own, own_second) in zip(specific, of_values, strict=True):
            k, places = table.trait, table.places[rows]
            given_general = own[places]
            weighted = shares * given_general
            mean[rows, k] = weighted.sum(axis=1)
            second[rows, k, k] = (shares * own_second[places]).sum(axis=1)
            second[rows, k, general] = second[rows, general, k] = weighted @ nodes.general
            for other, given_other in first:
                both = (weighted * given_other).sum(axis=1)
                second[rows, k, other] = second[rows, other, k] = both
            first.append((k, given_general))
    covariance = second - mean[:, :, None] * mean[:, None]
    coarse = _choose_nodes(weights, offsets, blocks, 2.0)
    coarse_tables = _tabulate_blocks(X, observed, weights, offsets, blocks, coarse)
    error = np.empty(n_rows)
    for rows, posterior in _iter_row_posteriors(coarse_tables, coarse, n_rows):
        error[rows] = (posterior.log_likelihood - log_likelihood[rows]) ** 2
    return RowPosterior(mean, covariance, log_likelihood, error)


def _sum_specific_moments(table: _Block) -> tuple[Floats, Floats]:
    """Return E[s | values, g] and E[s² | values, g], (n_values, n) each."""
    first, second = np.empty((2, len(table.ones), table.P.shape[1]))
    for part, _, shares in table.iter_posteriors():
        first[part] = shares @ table.nodes
        second[part] = shares @ table.nodes**2
    return first, second


class BifactorScores(NamedTuple):
    """Scores and information about the slopes and offsets that may differ from 0.

    With z = (x, 1), the score of item i given x is s_i = m_ni (t_ni − σ(η_i)) z.

    Attributes
    ----------
    parameters
        Places of these p parameters among all, (p,): item times (q + 1), plus trait, or q.
    scores
        E[s | t_n], (n_rows, p).
    spread
        Σ_n r_n E[s sᵀ | t_n] with row weights r_n, (p, p).
    curvature
        Σ_n r_n E[m_ni σ(1 − σ) z zᵀ | t_n], (n_features, q + 1, q + 1).
    """

    parameters: Indices
    scores: Floats
    spread: Floats
    curvature: Floats


def compute_bifactor_scores(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats | None,
    blocks: TraitBlocks,
) -> BifactorScores:
    """Compute the scores of rows, and what the observed information needs (T. A. Louis 1982).

    Given g, scores of different blocks are independent: E[s_i s_jᵀ | t_n] is the posterior mean of
    E[s_i | g, t_n] E[s_j | g, t_n]ᵀ. Parameters are as in `bifactor_e_step`.
    """
    own_weights = np.ones(len(X)) if row_weights is None else row_weights
    nodes, q = _choose_nodes(weights, offsets, blocks), weights.shape[1]
    curvature = bifactor_e_step(X, observed, weights, offsets, row_weights, blocks=blocks).curvature
    # V holds E[m (t − σ) | g] of all items, then E[m (t − σ) s | g] of those with a specific trait.
    of_items = np.concatenate(blocks.items)
    is_specific = np.array([k >= 0 for k in blocks.specific])
    traits = np.repeat(blocks.specific, [len(items) for items in blocks.items])
    has_trait = np.flatnonzero(traits >= 0)
    n_items, n_vectors = len(of_items), len(of_items) + len(has_trait)
    columns = (*blocks.general, q)
    places = [of_items * (q + 1) + column for column in columns]
    places.append(of_items[has_trait] * (q + 1) + traits[has_trait])
    scores = np.zeros((len(X), sum(map(len, places))))
    z = np.column_stack([nodes.general, np.ones(len(nodes.general))])
    totals = np.zeros((len(columns), len(columns), n_vectors, n_vectors))
    for start in range(0, len(X), _MAX_SCORE_ROWS):
        rows = slice(start, start + _MAX_SCORE_ROWS)
        part_observed = None if observed is None else observed[rows]
        tables = _tabulate_blocks(X[rows], part_observed, weights, offsets, blocks, nodes)
        ((_, posterior),) = _iter_row_posteriors(tables, nodes, len(X[rows]))
        residuals = [_sum_residuals(table) for table in tables]
        first = [of_block[0] for of_block in residuals]
        second = [r[1] for r, has in zip(residuals, is_specific, strict=True) if has]
        at = [table.places for table in tables]
        at += [table.places for table in tables if table.trait >= 0]
        sums = np.zeros((len(columns), len(X[rows]), n_vectors))
        for node, share in enumerate(posterior.shares.T):
            vectors = [values[node][own] for values, own in zip([*first, *second], at, strict=True)]
            V = np.concatenate(vectors, axis=1)
            weighted = share[:, None] * V
            sums += z[node][:, None, None] * weighted
            weighted *= own_weights[rows, None]
            totals += (z[node][:, None] * z[node])[:, :, None, None] * (V.T @ weighted)
        scores[rows] = np.concatenate([*sums[:, :, :n_items], sums[-1][:, n_items:]], axis=1)
    # The last of z is 1.
    above = [[totals[a, b][:n_items, :n_items] for b in range(len(z.T))] for a in range(len(z.T))]
    mixed = [totals[a, -1][:n_items, n_items:] for a in range(len(z.T))]
    rows_of = [[*own, other] for own, other in zip(above, mixed, strict=True)]
    last = [*(other.T for other in mixed), totals[-1, -1][n_items:, n_items:]]
    spread = np.block([*rows_of, last])
    parameters = np.concatenate(places)
    _replace_own_blocks(
        X, observed, weights, offsets, own_weights, blocks, nodes, parameters, spread
    )
    return BifactorScores(parameters, scores, spread, unpack_triangles(curvature, q + 1))


def _sum_residuals(table: _Block) -> tuple[Floats, Floats]:
    """Return E[m (t − σ) | values, g] and E[m (t − σ) s | values, g], (n, n_values, n_items)."""
    n_items, n, _ = table.P.shape
    first, second = np.empty((2, n, len(table.ones), n_items))
    P = np.ascontiguousarray(table.P.transpose(1, 2, 0))
    P_times_s = P * table.nodes[:, None]
    for part, _, shares in table.iter_posteriors():
        by_node = shares.transpose(1, 0, 2)
        present = 1.0 if table.mask is None else table.mask[part]
        ones = table.ones[part]
        first[:, part] = ones - present * (by_node @ P)
        second[:, part] = ones * (by_node @ table.nodes)[:, :, None] - present * (
            by_node @ P_times_s
        )
    return first, second


def _replace_own_blocks(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats,
    blocks: TraitBlocks,
    nodes: _Nodes,
    parameters: Indices,
    spread: Floats,
) -> None:
    """Compute the entries of `spread` for two items of the same block, which depend on s."""
    q = weights.shape[1]
    tables = _tabulate_blocks(X, observed, weights, offsets, blocks, nodes)
    masses = [np.zeros((len(t.ones), len(nodes.general))) for t in tables]
    for rows, posterior in _iter_row_posteriors(tables, nodes, len(X)):
        posterior.shares[:] *= row_weights[rows, None]
        for table, mass in zip(tables, masses, strict=True):
            mass += _sum_by_place(table.places[rows], len(mass), posterior.shares)
    place = np.full(len(offsets) * (q + 1), -1)
    place[parameters] = np.arange(len(parameters))
    for table, mass in zip(tables, masses, strict=True):
        columns, z = _list_extended_nodes(table, nodes, blocks, q)
        products = (z[:, :, None] * z[:, None]).reshape(len(z), -1)
        pairs = _sum_residual_pairs(table, mass)
        n_items, size = len(table.items), len(columns)
        own = (pairs @ products).reshape(n_items, n_items, size, size).transpose(0, 2, 1, 3)
        at = place[(table.items[:, None] * (q + 1) + columns).reshape(-1)]
        spread[np.ix_(at, at)] = own.reshape(len(at), len(at))


def _sum_residual_pairs(table: _Block, mass: Floats) -> Floats:
    """Return Σ_n m_ni m_nj (t_ni − σ_i)(t_nj − σ_j) at the nodes, (n_items, n_items, n m)."""
    n_items, n, m = table.P.shape
    P = table.P.reshape(n_items, -1)
    both, one, present = np.zeros((3, n_items * n_items, n * m))
    for part, _, shares in table.iter_posteriors():
        shares *= mass[part, :, None]
        by_node = shares.reshape(len(shares), -1)
        ones = table.ones[part]
        mask = np.ones_like(ones) if table.mask is None else table.mask[part]
        for total, left, right in ((both, ones, ones), (one, ones, mask), (present, mask, mask)):
            total += (left[:, :, None] * right[:, None]).reshape(len(ones), -1).T @ by_node
    both, one, present = (total.reshape(n_items, n_items, -1) for total in (both, one, present))
    pairs: Floats = both - one * P - one.transpose(1, 0, 2) * P[:, None] + present * P[:, None] * P
    return pairs
