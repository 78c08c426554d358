"""S-X² of items.

With N_k rows of the sum score k, of which O_ikc are observed and E_ikc expected to have level c of
item i,

    S-X²_i = Σ_k Σ_c (O_ikc − E_ikc)² / E_ikc

(T. Kang, T. T. Chen, Journal of Educational Measurement 45 (2008), eq. 4). If all items are binary,
a score with fewer than one expected row in a cell is merged with the next (M. Orlando, D. Thissen,
Applied Psychological Measurement 24 (2000)). Otherwise cells are merged as in R's mirt, so that the
results agree:

1. Scores at which some level is impossible are merged with the nearest at which all are possible.
   Those of no row are left out, and one of a single row is merged with the next, or if it is the
   last, with the one before.
2. At a score with a level of less than one expected row, the rarest level is merged with its rarer
   neighbour until all have one, or two cells are left. The cells of a score are then numbered.
3. A last number that is rare at all scores is merged with the one before.
4. Scores that still have less than one expected row in a cell are merged with the neighbour that
   has fewer rows.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.models.latent_trait.fit_statistics import (
    FittedItems,
    explain_missing_s_x2,
)
from pipeline.numerics.intrinsics import wide_vectors
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    compute_level_probabilities,
    count_levels_at_nodes,
    iter_alike,
)
from pipeline.numerics.logistic.latent_nodes import Nodes
from pipeline.numerics.logistic.logistic_lanes import inlined
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_MIN_EXPECTED = 1.0  # expected rows in a cell
_LANES = 32  # frequencies at a time
_MAX_LOSS = 50.0  # nats; smaller products are left out
_RARE_SHARE, _EMPTY_SHARE = 0.1, 0.05  # of scores with expected rows in a cell of this number


def compute_item_fit(
    model: FittedItems, sums: Sums, is_reversed: NDArray[np.bool_]
) -> dict[str, Array]:
    """Return S-X² with its degrees of freedom and p-value, (n_features,) each.

    Sum scores count the items in `is_reversed`, (n_features,), in reverse. `sums` is the result of
    the information pass over all rows. There are no results with too many or too few items.
    S-X² is NaN for constant items, and for those without degrees of freedom.

    Estimating the r parameters of an item from the rows without missing values costs r degrees of
    freedom. If only a share s of the item's answers are in these rows, the estimates follow the
    rows less. Then the r directions that are fitted have variance 1 − s instead of 0, so that the
    mean of S-X² is the number of free cells minus s r, which is taken as its degrees of freedom.
    """
    values, n_features = sums.values, len(is_reversed)
    if explain_missing_s_x2(values, model.features):
        return {}
    n_planes = model.items.n_planes
    n_complete, ones = int(values["score_rows"].sum()), values["score_ones"]
    # The levels of constant items raise all scores alike.
    n_always = int((np.delete(ones, model.planes, axis=1).sum(axis=0) == n_complete).sum())
    scores = slice(n_always, n_always + int(n_planes.sum()) + 1)
    rows = values["score_rows"][scores].astype(np.float64)
    ones = ones[scores][:, model.planes].T.astype(np.float64)
    is_reversed = is_reversed[model.features]
    expected = compute_shares_by_score(model.items, model.nodes, is_reversed)
    # Of each item's answers, the share in complete rows; `observed` is of a sample of the rows.
    answers = sums.weight * np.maximum(values["observed"][model.features], 1)
    shares = n_complete * float(values["weight_informing"]) / answers
    compare = compare_cells if (n_planes > 1).any() else compare_binary_cells
    n_parameters = _count_parameters(model)
    s_x2, df = np.full((2, n_features), np.nan)
    for alike in iter_alike(n_planes):
        counts = count_levels_at_nodes(ones, np.broadcast_to(rows, ones.shape), alike)
        for item, own, levels in zip(alike.features, counts, alike.levels, strict=True):
            step = -1 if is_reversed[item] else 1  # the first level has the lowest score
            expected_rows = expected[:, levels[::step]] * rows[:, None]
            value, n_cells = compare(own.T[:, ::step], expected_rows)
            if n_cells > n_parameters[item]:
                feature = model.features[item]
                s_x2[feature], df[feature] = value, n_cells - shares[item] * n_parameters[item]
    return {"s_x2": s_x2, "s_x2_df": df, "s_x2_p": scipy.special.chdtrc(df, s_x2)}


def _count_parameters(model: FittedItems) -> Indices:
    """Return how many free parameters each item has, (n,), including those shared with others."""
    width = model.n_parameters_per_plane
    owners = np.repeat(np.arange(len(model.features)), model.items.n_planes * width)
    rows, columns = model.jacobian[:, : model.n_item_parameters].nonzero()
    pairs = np.unique(np.stack([owners[rows], columns]), axis=1)
    return np.bincount(pairs[0], minlength=len(model.features))


def compute_shares_by_score(
    items: LevelItems, nodes: Nodes, is_reversed: NDArray[np.bool_]
) -> Array:
    """Return P(level | sum score) of all levels of all items, (n_scores, n_levels).

    Sum scores count the items in `is_reversed`, (n_items,), in reverse.
    Given a node, the characteristic function of the score is a product with one factor per item,
    and that of the other items' score is the product of the factors before and after an item.
    """
    n_scores = int(items.n_planes.sum()) + 1
    P = compute_level_probabilities(items, nodes.points)
    ends = np.cumsum(items.n_planes + 1)
    levels = [np.arange(end - m - 1, end) for end, m in zip(ends, items.n_planes, strict=True)]
    by_item = [
        np.arange(m, -1, -1) if turned else np.arange(m + 1)
        for m, turned in zip(items.n_planes, is_reversed, strict=True)
    ]
    n_frequencies = -(-(n_scores // 2 + 1) // _LANES) * _LANES  # those above the half are not used
    phases = np.outer(np.concatenate(by_item), np.arange(n_frequencies))
    phases = np.exp(-2j * math.pi * (phases % n_scores) / n_scores)
    by_level, total = np.empty(phases.shape, np.complex128), np.empty(n_frequencies, np.complex128)
    shares = np.exp(nodes.log_weights)
    # The product over items is at most exp(−(1 − cos ω) Σ P_c P_c+1) at the frequency ω.
    spread = (P[:, 1:] * P[:, :-1]) @ ~np.isin(np.arange(1, P.shape[1]), ends)
    for start in range(0, n_frequencies, _LANES):
        check_cancelled()
        part, loss = slice(start, start + _LANES), 1 - math.cos(2 * math.pi * start / n_scores)
        used = loss * (spread - 0.25) < _MAX_LOSS
        own = np.hstack([phases[:, part].real, phases[:, part].imag])
        sums, product = np.zeros_like(own), np.zeros(2 * _LANES)
        sum_score_products(P[used], shares[used], ends, own, sums, product)
        by_level[:, part] = sums[:, :_LANES] + 1j * sums[:, _LANES:]
        total[part] = product[:_LANES] + 1j * product[_LANES:]
    of_others = np.fft.irfft(by_level[:, : n_scores // 2 + 1], n_scores)
    expected = np.zeros((n_scores, P.shape[1]))
    for places, scores in zip(levels, by_item, strict=True):
        for score, place in zip(scores.tolist(), places.tolist(), strict=True):
            n_possible = n_scores - len(places) + 1
            expected[score : score + n_possible, place] = of_others[place, :n_possible]
    positive = np.maximum(np.fft.irfft(total[: n_scores // 2 + 1], n_scores), np.finfo(float).tiny)
    return np.clip(expected / positive[:, None], 0.0, 1.0)


@njit(nogil=True, cache=True, error_model="numpy")
def sum_score_products(
    P: Array, shares: Array, ends: Indices, phases: Array, by_level: Array, total: Array
) -> None:
    """Sum products of the characteristic functions of items over nodes, at some frequencies.

    Rows of complex numbers hold _LANES real and then as many imaginary parts.

    Parameters
    ----------
    P, shares
        P(level) of all levels at the nodes, (n_nodes, n_levels), and the weights of the nodes.
    ends
        The place after the last level of each item, (n_items,).
    phases
        Characteristic functions of the score of each level, (n_levels, 2 _LANES).
    by_level, total
        To the first, (n_levels, 2 _LANES), P times the product over the other items is added; to
        the second, (2 _LANES,), the product over all items.
    """
    wide_vectors()
    n_items = len(ends)
    factors, before = np.empty((2, n_items, 2 * _LANES))
    after, others = np.empty((2, 2 * _LANES))
    for node in range(len(P)):
        for k in range(_LANES):
            after[k], after[_LANES + k] = shares[node], 0.0
        for i in range(n_items):
            factor, own = factors[i], before[i]
            for k in range(2 * _LANES):
                own[k], factor[k] = after[k], 0.0
            for level in range(ends[i - 1] if i else 0, ends[i]):
                p, phase = P[node, level], phases[level]
                for k in range(2 * _LANES):
                    factor[k] += p * phase[k]
            _multiply(own, factor, after)
        for k in range(_LANES):
            total[k] += after[k]
            total[_LANES + k] += after[_LANES + k]
            after[k], after[_LANES + k] = 1.0, 0.0
        for i in range(n_items - 1, -1, -1):
            _multiply(before[i], after, others)
            for level in range(ends[i - 1] if i else 0, ends[i]):
                p, out = P[node, level], by_level[level]
                for k in range(2 * _LANES):
                    out[k] += p * others[k]
            for k in range(2 * _LANES):
                others[k] = after[k]
            _multiply(others, factors[i], after)


@inlined
def _multiply(left: Array, right: Array, out: Array) -> None:
    """Multiply complex numbers."""
    for k in range(_LANES):
        a, b, c, d = left[k], left[_LANES + k], right[k], right[_LANES + k]
        out[k] = a * c - b * d
        out[_LANES + k] = a * d + b * c


def compare_binary_cells(observed: Array, expected: Array) -> tuple[float, int]:
    """Return S-X² of a binary item and its number of scores as `compare_cells`."""
    return sum_merged_scores(observed[1:-1], expected[1:-1])


@njit(nogil=True, cache=True, error_model="numpy")
def sum_merged_scores(observed: Array, expected: Array) -> tuple[float, int]:
    """Merge scores with fewer than one expected row in a cell, and return S-X² and their number."""
    total, n_scores = 0.0, 0
    cells, last = np.zeros((2, 2)), np.zeros((2, 2))  # the last merged score may get more
    for k in range(len(expected)):
        for level in range(2):
            cells[0, level] += observed[k, level]
            cells[1, level] += expected[k, level]
        if min(cells[1, 0], cells[1, 1]) >= _MIN_EXPECTED:
            for level in range(2):
                if n_scores > 0:
                    total += (last[0, level] - last[1, level]) ** 2 / last[1, level]
                last[0, level], last[1, level] = cells[0, level], cells[1, level]
                cells[0, level] = cells[1, level] = 0.0
            n_scores += 1
    for level in range(2):
        if n_scores > 0:
            own, rows = last[0, level] + cells[0, level], last[1, level] + cells[1, level]
            total += (own - rows) ** 2 / rows
    return total, n_scores


def compare_cells(observed: Array, expected: Array) -> tuple[float, int]:
    """Return S-X² of an item, and the number of its cells that are free given the scores.

    Parameters
    ----------
    observed, expected
        Number of rows with each score and level, (n_scores, n_levels).
    """
    n_levels = observed.shape[1]
    if len(observed) < 2 * n_levels - 1:  # no score allows all levels
        return 0.0, 0
    cells = np.stack([observed, expected])[:, 1:-1]
    cells = _merge_ends(cells, n_levels - 1)
    cells = cells[:, cells[0].sum(axis=1) > 0]
    if not cells.shape[1]:
        return 0.0, 0
    # As in mirt, scores are selected for step 2 before single rows are merged.
    has_few = (cells[1] < _MIN_EXPECTED).any(axis=1)
    cells = _merge_single_rows(cells)
    if n_levels > 2:
        for k in np.flatnonzero(has_few[: cells.shape[1]]):
            cells[:, k] = _merge_levels(cells[:, k])
        cells = _merge_columns(cells)
    cells = _merge_scores(cells)
    is_cell = cells[1] > 0
    o, e = cells[0][is_cell], cells[1][is_cell]
    return float(((o - e) ** 2 / e).sum()), int(is_cell.sum()) - cells.shape[1]


# Cells are observed and expected numbers of rows, (2, n_scores, n_cells).


def _merge_ends(cells: Array, m: int) -> Array:
    """Merge the scores below m, and as many at the other end, with their neighbours inside."""
    cells = cells.copy()
    n = cells.shape[1]
    cells[:, m - 1] = cells[:, :m].sum(axis=1)
    cells[:, n - m] = cells[:, n - m :].sum(axis=1)
    return cells[:, m - 1 : n - m + 1]


def _merge_single_rows(cells: Array) -> Array:
    """Merge scores of a single row with the next, and the last with the one before."""
    starts, is_single = [], False
    for k, n_rows in enumerate(cells[0].sum(axis=1).tolist()):
        if not is_single:
            starts.append(k)
        is_single = n_rows == 1 and not is_single
    if is_single and len(starts) > 1:
        starts.pop()
    return np.asarray(np.add.reduceat(cells, starts, axis=1))


def _merge_levels(cells: Array) -> Array:
    """Merge levels at a score; the cells left come first, (2, n_levels)."""
    observed, expected = cells.tolist()
    while len(expected) > 2:
        rarest = len(expected) - 1 - expected[::-1].index(min(expected))
        into = _choose_neighbour(expected, rarest)
        for values in (observed, expected):
            values[into] += values[rarest]
            del values[rarest]
        if min(expected) >= _MIN_EXPECTED:
            break
    merged = np.zeros_like(cells)
    merged[:, : len(expected)] = observed, expected
    return merged


def _choose_neighbour(sizes: list[float], k: int) -> int:
    """Return the neighbour of k with the smaller size."""
    if k in (0, len(sizes) - 1):
        return 1 if k == 0 else k - 1
    return k - 1 if sizes[k - 1] <= sizes[k + 1] else k + 1


def _merge_columns(cells: Array) -> Array:
    """Merge the cells of rare last numbers with those before, at all scores."""
    n_scores = cells.shape[1]
    while cells.shape[2] > 2 and cells[1, :, -1].sum() < _MIN_EXPECTED * math.ceil(
        _RARE_SHARE * n_scores
    ):
        cells[:, :, -2] += cells[:, :, -1]
        cells = cells[:, :, :-1]
    for j in range(cells.shape[2] - 1, 0, -1):
        if (cells[1, :, j] > 0).mean() < _EMPTY_SHARE:
            cells[:, :, j - 1] += cells[:, :, j]
            cells = np.delete(cells, j, axis=2)
    return cells


def _merge_scores(cells: Array) -> Array:
    """Merge scores with too few expected rows in a cell with a neighbour."""
    while cells.shape[1] > 1:
        has_few = ((cells[1] < _MIN_EXPECTED) & (cells[1] > 0)).any(axis=1)
        if not has_few.any():
            break
        k = int(np.argmax(has_few))
        cells[:, _choose_neighbour(cells[0].sum(axis=1).tolist(), k)] += cells[:, k]
        cells = np.delete(cells, k, axis=1)
    return cells
