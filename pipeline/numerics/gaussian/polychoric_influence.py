"""How a row moves polychoric correlations, and the correlations' standard errors.

With s_ab the slope of log P_ab by ρ, h_p the thresholds of feature i, k_q those of j, and shares of
rows n_ab / n in place of P_ab in expectations E, a row moves the two-step estimate of ρ by

    IF = (s_ab − Σ_p J_p dh_p − Σ_q J_q dk_q) / E s²,   dh_p = −(x_p − E x_p) / φ(h_p),
    J_p = E s ∂ log P / ∂h_p,   ∂P_ab / ∂h_a = −φ(h_a) (Φ_ab − Φ_a,b+1),
    Φ_aq = P(x_j > k_q | x_i = h_a) = Φ((ρ h_a − k_q) / √(1 − ρ²)),

where x_p and x_q are the bits of planes. The standard error is √(E IF² / n): the two-step error of
lavaan (its `robust.sem`, up to n − 1 for n). IF is a sum over products of bits:

    IF = Σ_pq A_pq x_p x_q − Σ_p B_p x_p − Σ_q B_q x_q − constant.

Olsson (1979), Psychometrika 44; Muthén (1984), A general structural equation model with
dichotomous, ordered categorical, and continuous latent variable indicators, Psychometrika 49.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from pipeline.numerics.compilation import callee
from pipeline.numerics.gaussian.bivariate_normal import norm_cdf
from pipeline.numerics.gaussian.pair_tables import PairStatus
from pipeline.numerics.gaussian.polychoric import (
    LevelTable,
    add_to_cells,
    allocate_table,
    cell_derivatives,
    move_corners,
    read_table,
    start_corners,
    subtract_corners,
)

_MIN_CELL = 1e-9  # Below, a cell is a difference without digits; it has too few rows to matter.
_PLAIN, _EMPTY_CELL = int(PairStatus.PLAIN), int(PairStatus.EMPTY_CELL)

_Floats = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int64]
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_callee = callee(**_OPTIONS)


class PolychoricInfluence(NamedTuple):
    """Influence of bits on correlations, 0 for pairs without information.

    Attributes
    ----------
    joint
        A of each pair of planes, (n_planes, n_planes).
    single
        B of each plane for each other feature, (n_planes, n_features).
    constant
        The constant, (n_features, n_features).
    error
        Standard errors of the correlations, (n_features, n_features): NaN without information and
        for tables with an empty cell, 0 on the diagonal.
    """

    joint: _Floats
    single: _Floats
    constant: _Floats
    error: _Floats


def polychoric_influence(
    n: npt.ArrayLike,
    ones_i: npt.ArrayLike,
    ones_j: npt.ArrayLike,
    joint: npt.ArrayLike,
    correlation: _Floats,
    first_planes: npt.ArrayLike,
    *,
    empty_cells: Literal["none", "half"] = "none",
) -> PolychoricInfluence:
    """Compute the influence of a row that observes both features of a pair, for all pairs.

    The first four arguments and `empty_cells` are those of `polychoric`, (n_planes, n_planes) each;
    `correlation` is its result, (n_features, n_features). `first_planes` are the first plane of
    each feature and the number of planes. A correlation at the boundary has no influence.
    """
    first = np.asarray(first_planes, np.int64)
    n_planes, n_features = int(first[-1]), len(first) - 1
    tables = [
        np.broadcast_to(np.asarray(x, np.float64), (n_planes, n_planes))
        for x in (n, ones_i, ones_j, joint)
    ]
    influence = PolychoricInfluence(
        np.zeros((n_planes, n_planes)),
        np.zeros((n_planes, n_features)),
        np.zeros((n_features, n_features)),
        np.full((n_features, n_features), np.nan),
    )
    size = 2 + int(np.diff(first).max(initial=0))
    _fill_influence(empty_cells == "half", size, first, *tables, correlation, influence)
    np.fill_diagonal(influence.error, 0.0)
    return influence


@njit(**_OPTIONS, cache=True)
def _fill_influence(
    add_half: bool,
    size: int,
    first: _Places,
    n: _Floats,
    ones_i: _Floats,
    ones_j: _Floats,
    joint: _Floats,
    correlation: _Floats,
    influence: PolychoricInfluence,
) -> None:
    table = allocate_table(size)
    scores, left, right = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    for i in range(first.size - 1):
        for j in range(i + 1, first.size - 1):
            own, other = slice(first[i], first[i + 1]), slice(first[j], first[j + 1])
            rows, columns, code = read_table(
                n[first[i], first[j]],
                ones_i[own, first[j]],
                ones_j[first[i], other],
                joint[own, other],
                table,
            )
            if code == _EMPTY_CELL and add_half:
                add_to_cells(rows, columns, table)
            elif code != _PLAIN:
                continue
            scale = _fill_scores(rows, columns, correlation[i, j], table, scores)
            _fill_threshold_effects(rows, columns, correlation[i, j], table, scores, left, right)
            total, mean = table.counts[0, 0], 0.0
            for a in range(1, rows):
                mean += left[a] * table.counts[a, 0] / total
            for b in range(1, columns):
                mean += right[b] * table.counts[0, b] / total
            variance, left_sum = 0.0, 0.0
            for a in range(rows):
                left_sum += left[a]
                moved = mean - left_sum
                for b in range(columns):
                    moved -= right[b]
                    variance += table.cells[a, b] / total * (scores[a, b] + moved) ** 2
            if code == _PLAIN:  # an empty cell says nothing about the error
                influence.error[i, j] = influence.error[j, i] = scale * math.sqrt(variance / total)
            constant = -scale * (scores[0, 0] + mean)
            influence.constant[i, j] = influence.constant[j, i] = constant
            for a in range(1, rows):
                p = first[i] + table.planes_i[a]
                influence.single[p, j] = scale * (left[a] - scores[a, 0] + scores[a - 1, 0])
                for b in range(1, columns):
                    q = first[j] + table.planes_j[b]
                    step = scores[a, b] - scores[a - 1, b] - scores[a, b - 1] + scores[a - 1, b - 1]
                    influence.joint[p, q] = influence.joint[q, p] = scale * step
            for b in range(1, columns):
                q = first[j] + table.planes_j[b]
                influence.single[q, i] = scale * (right[b] - scores[0, b] + scores[0, b - 1])


@_callee
def _fill_scores(rows: int, columns: int, rho: float, table: LevelTable, scores: _Floats) -> float:
    """Fill the slopes of log P by z = atanh ρ; return the factor from slopes to IF."""
    z, information = math.atanh(rho), 0.0
    start_corners(rows, columns, table)
    move_corners(rows, columns, 0.0, z, table)
    for a in range(rows):
        for b in range(columns):
            scores[a, b], _ = cell_derivatives(a, b, rows, columns, z, table)
            information += table.cells[a, b] / table.counts[0, 0] * scores[a, b] ** 2
    return (1.0 - rho) * (1.0 + rho) / information


@_callee
def _fill_threshold_effects(
    rows: int,
    columns: int,
    rho: float,
    table: LevelTable,
    scores: _Floats,
    left: _Floats,
    right: _Floats,
) -> None:
    """Fill −J_p / φ(h_p) and −J_q / φ(k_q), by the level that a plane begins; level 0 has none."""
    spread = math.sqrt((1.0 - rho) * (1.0 + rho))
    for a in range(rows):
        left[a] = 0.0
    for b in range(columns):
        right[b] = 0.0
    for a in range(1, rows):
        for b in range(columns):
            share = _share_of_level(table.h[a], rho, spread, table.k, b, columns)
            left[a] += share * (_ratio(a, b, table, scores) - _ratio(a - 1, b, table, scores))
    for b in range(1, columns):
        for a in range(rows):
            share = _share_of_level(table.k[b], rho, spread, table.h, a, rows)
            right[b] += share * (_ratio(a, b, table, scores) - _ratio(a, b - 1, table, scores))


@_callee
def _share_of_level(
    x: float, rho: float, spread: float, thresholds: _Floats, level: int, n_levels: int
) -> float:
    """Return the probability of a level of a feature if the other feature's latent is `x`."""
    from_next = 0.0
    from_level = norm_cdf((rho * x - thresholds[level]) / spread) if level > 0 else 1.0
    if level + 1 < n_levels:
        from_next = norm_cdf((rho * x - thresholds[level + 1]) / spread)
    return from_level - from_next


@_callee
def _ratio(a: int, b: int, table: LevelTable, scores: _Floats) -> float:
    """Return the score of a cell, times its share of rows over its probability."""
    probability = subtract_corners(table.corners, a, b)
    if probability < _MIN_CELL:
        return 0.0
    ratio: float = table.cells[a, b] / table.counts[0, 0] / probability * scores[a, b]
    return ratio
