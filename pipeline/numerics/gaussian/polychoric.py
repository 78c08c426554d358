"""Polychoric correlations: the correlations of latent normals behind features of ordered levels.

A feature has level p or higher iff a standard normal latent exceeds its threshold h_p. The cells
P_ab of the table of two features are differences of the corners

    C_pq = P(x_i > h_p, x_j > k_q) = C_p0 C_0q + ∫_0^ρ φ2(h_p, k_q; r) dr.

The margins of each table fix its thresholds, h_p = −Φ⁻¹(C_p0). Given them, ρ maximizes
Σ n_ab log P_ab: the two-step estimate of Olsson (1979). With z = atanh ρ and g_ab = ∂P_ab / ∂z, a
difference of densities at corners, the likelihood has the slope Σ n_ab g_ab / P_ab. Newton's method
on z, within bounds that it narrows, finds where the slope is 0. Each step integrates φ2 from the
last z only. `bivariate_normal` computes the integral, with τ = e^−|z|.

Planes p and q of the features are 1 for level p or higher, and level q or higher. Levels without
rows in a table have no threshold there. If two levels of each feature remain, this is the
tetrachoric correlation. The likelihood is greatest at ρ = ±1 iff the orders of the two features
never contradict each other; in a 2 × 2 table, iff a cell is empty. Other empty cells do no harm.

Olsson (1979), Maximum likelihood estimation of the polychoric correlation coefficient,
Psychometrika 44.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from pipeline.errors import FitError
from pipeline.numerics.compilation import callee
from pipeline.numerics.gaussian.bivariate_normal import (
    integrate_density,
    lower_corner_tail,
    norm_pdf,
)
from pipeline.numerics.gaussian.pair_tables import (
    MAX_CORRELATION,
    PairStatus,
    describe_margin,
    solve_correlation,
)

_MAX_Z = math.atanh(MAX_CORRELATION)
_MAX_START = 1.5
_TOLERANCE = 1e-6  # Of the last step in z. Its square is the order of the error left.
_MAX_STEPS = 100
_ROUNDING = 1e-12  # As in `pair_tables`.
_FAR_CELL = 1e-9  # Differences of corners would lose digits of less likely cells.
_LEAST_CELL = 1e-240
_NEARLY_ZERO = 1e-24
_MEDIAN_VARIANCE = 2.0 / math.pi
_ADDED_ROWS = 2.0  # To a table at the boundary: ½ to each cell of a 2 × 2 table.
_PLAIN, _EMPTY_CELL, _CONSTANT_FEATURE, _NO_OBSERVATIONS = map(int, PairStatus)
_INVALID = 255

_Floats = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int64]
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_kernel = njit(**_OPTIONS, cache=True)
_callee = callee(**_OPTIONS)


class PolychoricResult(NamedTuple):
    """Correlations and their `PairStatus`, (..., n_left, n_right) each."""

    correlation: _Floats
    status: npt.NDArray[np.uint8]


class LevelTable(NamedTuple):
    """Memory for a table of the levels that occur.

    Row a of a square stands for level a or higher of the left feature in `counts`, `corners`,
    `densities` and `slopes`, and for level a in `cells`. After the last level comes a border of 0.
    """

    counts: _Floats
    cells: _Floats
    corners: _Floats
    densities: _Floats  # ∂/∂z of the corners, 0 at the margins
    slopes: _Floats  # ∂/∂z of the densities
    h: _Floats  # thresholds of the left feature; the first level has none
    k: _Floats
    planes_i: _Places  # the plane that begins a level
    planes_j: _Places


@_callee
def allocate_table(size: int) -> LevelTable:
    """Allocate memory for tables of up to `size` − 1 levels."""
    shape = (size, size)
    return LevelTable(
        np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape),
        np.zeros(size), np.zeros(size), np.zeros(size, np.int64), np.zeros(size, np.int64),
    )  # fmt: skip


@_callee
def _find_levels(ones: _Floats, total: float, planes: _Places) -> int:
    """List the planes that begin a level with rows; return the number of levels with rows."""
    n_levels, last = 1, total
    for p in range(ones.size):
        if 0.0 < ones[p] < last:
            planes[n_levels], last = p, ones[p]
            n_levels += 1
    return n_levels


@_callee
def read_table(
    n: float, ones_i: _Floats, ones_j: _Floats, joint: _Floats, table: LevelTable
) -> tuple[int, int, int]:
    """Fill counts and cells; return the numbers of levels with rows, and the status."""
    if not n > 0.0:
        return 0, 0, _NO_OBSERVATIONS if n == 0.0 else _INVALID
    rows = _find_levels(ones_i, n, table.planes_i)
    columns = _find_levels(ones_j, n, table.planes_j)
    counts = table.counts
    counts[0, 0] = n
    for a in range(1, rows):
        counts[a, 0] = ones_i[table.planes_i[a]]
        for b in range(1, columns):
            counts[a, b] = joint[table.planes_i[a], table.planes_j[b]]
    for b in range(1, columns):
        counts[0, b] = ones_j[table.planes_j[b]]
    for a in range(rows + 1):
        counts[a, columns] = 0.0
    for b in range(columns + 1):
        counts[rows, b] = 0.0
    positive, negative = True, True
    for a in range(rows):
        for b in range(columns):
            # In this order each difference of floats is exact or relative to the cell.
            cell = (counts[a, b] - counts[a + 1, b]) - (counts[a, b + 1] - counts[a + 1, b + 1])
            if not cell >= -_ROUNDING * n or not math.isfinite(cell):
                return rows, columns, _INVALID
            table.cells[a, b] = max(cell, 0.0)
            most = min(counts[a, 0], counts[0, b])
            least = max(0.0, counts[a, 0] - (n - counts[0, b]))
            positive = positive and counts[a, b] >= most
            negative = negative and counts[a, b] <= least
    if rows == 1 or columns == 1:
        return rows, columns, _CONSTANT_FEATURE
    return rows, columns, _EMPTY_CELL if positive or negative else _PLAIN


@_callee
def add_to_cells(rows: int, columns: int, table: LevelTable) -> None:
    """Spread `_ADDED_ROWS` evenly over the cells, and count again."""
    added = _ADDED_ROWS / (rows * columns)
    for a in range(rows - 1, -1, -1):
        row = 0.0
        for b in range(columns - 1, -1, -1):
            table.cells[a, b] += added
            row += table.cells[a, b]
            table.counts[a, b] = table.counts[a + 1, b] + row


@_callee
def start_corners(rows: int, columns: int, table: LevelTable) -> None:
    """Fill thresholds, and corners for z = 0."""
    counts, corners = table.counts, table.corners
    n = counts[0, 0]
    for a in range(1, rows):
        table.h[a], _ = describe_margin(counts[a, 0], n - counts[a, 0])
    for b in range(1, columns):
        table.k[b], _ = describe_margin(counts[0, b], n - counts[0, b])
    for a in range(rows + 1):
        for b in range(columns + 1):
            corners[a, b] = counts[a, 0] / n * (counts[0, b] / n)
            table.densities[a, b] = table.slopes[a, b] = 0.0


@_callee
def _choose_start(rows: int, columns: int, table: LevelTable) -> float:
    """Return a first z, from the covariance of the latents' means within levels."""
    counts = table.counts
    n, variance_i, variance_j, covariance = counts[0, 0], 0.0, 0.0, 0.0
    for b in range(columns):
        _, variance = _describe_level(table.k, counts[0], b, columns)
        variance_j += variance
    for a in range(rows):
        mean_i, variance = _describe_level(table.h, counts[:, 0], a, rows)
        variance_i += variance
        for b in range(columns):
            mean_j, _ = _describe_level(table.k, counts[0], b, columns)
            covariance += table.cells[a, b] / n * mean_i * mean_j
    # Exact to first order in ρ, for many levels, and for two features that are cut at the median.
    ratio = covariance / (variance_i * variance_j)
    lost = 1.0 - math.sqrt(variance_i * variance_j)
    bend = math.sqrt(min(max(lost / (1.0 - _MEDIAN_VARIANCE), 1e-4), 1.0))
    rho = math.sin(min(max(bend * ratio, -0.5 * math.pi), 0.5 * math.pi)) / bend
    return min(max(math.atanh(min(max(rho, -0.99), 0.99)), -_MAX_START), _MAX_START)


@_callee
def _describe_level(
    thresholds: _Floats, counts: _Floats, level: int, n_levels: int
) -> tuple[float, float]:
    """Return the latent's mean within a level, and its part of the variance of these means."""
    lower = norm_pdf(thresholds[level]) if level > 0 else 0.0
    upper = norm_pdf(thresholds[level + 1]) if level + 1 < n_levels else 0.0
    share = (counts[level] - counts[level + 1]) / counts[0]
    return (lower - upper) / share, (lower - upper) ** 2 / share


@_callee
def _integrate_step(h: float, k: float, start: float, stop: float) -> float:
    """Integrate φ2(h, k; r) from r = tanh(start) to tanh(stop), which have the same sign."""
    a2, b2 = (h - k) ** 2 / 8.0, (h + k) ** 2 / 8.0
    near, far = min(abs(start), abs(stop)), max(abs(start), abs(stop))
    if start + stop > 0.0:
        a2, b2 = b2, a2
    integral = integrate_density(a2, b2, math.exp(-far), math.exp(-near), -(a2 + b2))
    return integral if stop > start else -integral


@_callee
def move_corners(rows: int, columns: int, start: float, stop: float, table: LevelTable) -> None:
    """Move the corners from z = start to z = stop, and compute their derivatives there."""
    rho = math.tanh(stop)
    rest = (1.0 - rho) * (1.0 + rho)
    scale = math.sqrt(rest) / (2.0 * math.pi)
    middle = 0.0 if start * stop < 0.0 else stop
    for a in range(1, rows):
        h = table.h[a]
        for b in range(1, columns):
            k = table.k[b]
            for part in range(1 if middle == stop else 2):
                table.corners[a, b] += _integrate_step(
                    h, k, middle if part else start, stop if part else middle
                )
            if rho < 0.0:
                exponent = (h + k) ** 2 / rest - 2.0 * h * k / (1.0 - rho)
            else:
                exponent = (h - k) ** 2 / rest + 2.0 * h * k / (1.0 + rho)
            density = scale * math.exp(-0.5 * exponent)
            table.densities[a, b] = density
            table.slopes[a, b] = density * (h * k - rho * (1.0 + exponent))


@_callee
def subtract_corners(corners: _Floats, a: int, b: int) -> float:
    """Return the cell a, b of a table, given its corners."""
    lower: float = corners[a, b] - corners[a + 1, b]
    upper: float = corners[a, b + 1] - corners[a + 1, b + 1]
    return lower - upper


@_callee
def cell_derivatives(
    a: int, b: int, rows: int, columns: int, z: float, table: LevelTable
) -> tuple[float, float]:
    """Return the first two derivatives of P_ab by z, each divided by P_ab."""
    probability = subtract_corners(table.corners, a, b)
    if probability < _FAR_CELL:
        h0 = table.h[a] if a > 0 else -math.inf
        h1 = table.h[a + 1] if a + 1 < rows else math.inf
        k0 = table.k[b] if b > 0 else -math.inf
        k1 = table.k[b + 1] if b + 1 < columns else math.inf
        if z < 0.0:
            k0, k1 = -k1, -k0
        if h0 < k1:
            h0, h1, k0, k1 = k0, k1, h0, h1
        if h0 >= k1:
            score, bend = _far_cell_derivatives(h0, h1, k0, k1, abs(z))
            return -score if z < 0.0 else score, bend
    probability = max(probability, _LEAST_CELL)
    return (
        subtract_corners(table.densities, a, b) / probability,
        subtract_corners(table.slopes, a, b) / probability,
    )


@_callee
def _far_cell_derivatives(
    h0: float, h1: float, k0: float, k1: float, z: float
) -> tuple[float, float]:
    """Compute `cell_derivatives` of the cell h0 < x < h1, k0 < y < k1 for z ≥ 0 and h0 ≥ k1.

    The cell is a difference of corners P(x > h, y < k), of which the one at h0 and k1 is by far the
    largest. All are relative to it, so that none underflows.
    """
    rho, tau = math.tanh(z), math.exp(-z)
    rest = (1.0 - rho) * (1.0 + rho)
    probability = density = slope = largest = 0.0
    for corner in range(4):
        h, k = h0 if corner < 2 else h1, k1 if corner % 2 == 0 else k0
        if h == math.inf or k == -math.inf:
            continue
        sign = 1.0 if corner % 3 == 0 else -1.0
        b2 = max((h - k) ** 2 / 8.0, _NEARLY_ZERO * tau * tau)
        scaled, log_scale = lower_corner_tail((h + k) ** 2 / 8.0, b2, tau)
        if corner == 0:
            largest = log_scale
        exponent = (h - k) ** 2 / rest + 2.0 * h * k / (1.0 + rho)
        own_density = math.sqrt(rest) / (2.0 * math.pi) * math.exp(-0.5 * exponent - largest)
        probability += sign * scaled * math.exp(log_scale - largest)
        density += sign * own_density
        slope += sign * own_density * (h * k - rho * (1.0 + exponent))
    return -density / probability, -slope / probability


@_callee
def _solve_table(rows: int, columns: int, table: LevelTable) -> float:
    """Return the correlation of a table that is not at the boundary, within ±MAX_CORRELATION."""
    if rows == 2 and columns == 2:
        cells, counts = table.cells, table.counts
        h, factor_i = describe_margin(counts[1, 0], counts[0, 0] - counts[1, 0])
        k, factor_j = describe_margin(counts[0, 1], counts[0, 0] - counts[0, 1])
        return solve_correlation(
            cells[1, 1], cells[1, 0], cells[0, 1], cells[0, 0], h, k, 8.0 * factor_i * factor_j
        )
    start_corners(rows, columns, table)
    lower, upper, last = -_MAX_Z, _MAX_Z, 0.0
    z = _choose_start(rows, columns, table)
    for _ in range(_MAX_STEPS):
        move_corners(rows, columns, last, z, table)
        slope = curvature = information = 0.0
        for a in range(rows):
            for b in range(columns):
                count = table.cells[a, b]
                if count > 0.0:
                    score, bend = cell_derivatives(a, b, rows, columns, z, table)
                    slope += count * score
                    information += count * score * score
                    curvature += count * bend
        curvature -= information
        if slope > 0.0:
            lower = z
        else:
            upper = z
        last = z
        # Where the likelihood is not concave, the scores' squares stand for its curvature.
        z -= slope / (curvature if curvature < 0.0 else -information)
        if abs(z - last) <= _TOLERANCE:
            break
        if not lower < z < upper:
            z = 0.5 * (lower + upper)
            if upper - lower <= _TOLERANCE:
                break
    rho = math.tanh(min(max(z, -_MAX_Z), _MAX_Z))
    return min(max(rho, -MAX_CORRELATION), MAX_CORRELATION)


@_kernel
def _fill_correlations(
    add_half: bool,
    size: int,
    first_left: _Places,
    first_right: _Places,
    n: _Floats,
    ones_i: _Floats,
    ones_j: _Floats,
    joint: _Floats,
    correlation: _Floats,
    status: npt.NDArray[np.uint8],
) -> None:
    """Fill the pairs i < j."""
    table = allocate_table(size)
    for i in range(first_left.size - 1):
        left = slice(first_left[i], first_left[i + 1])
        for j in range(i + 1, first_right.size - 1):
            right = slice(first_right[j], first_right[j + 1])
            p, q = left.start, right.start
            rows, columns, code = read_table(
                n[p, q], ones_i[left, q], ones_j[p, right], joint[left, right], table
            )
            status[i, j], correlation[i, j] = code, math.nan
            if code == _EMPTY_CELL and not add_half:
                is_positive = table.counts[1, 1] >= min(table.counts[1, 0], table.counts[0, 1])
                correlation[i, j] = MAX_CORRELATION if is_positive else -MAX_CORRELATION
            elif code in (_PLAIN, _EMPTY_CELL):
                if code == _EMPTY_CELL:
                    add_to_cells(rows, columns, table)
                correlation[i, j] = _solve_table(rows, columns, table)


def polychoric(
    n: npt.ArrayLike,
    ones_i: npt.ArrayLike,
    ones_j: npt.ArrayLike,
    joint: npt.ArrayLike,
    first_left: npt.ArrayLike,
    first_right: npt.ArrayLike,
    *,
    empty_cells: Literal["none", "half"] = "none",
) -> PolychoricResult:
    """Compute the polychoric correlation of the pairs i < j of some features.

    The first four arguments broadcast to (..., n_planes_left, n_planes_right). The left features
    are the first ones of the right features. With missing values each pair has its own table,
    counted over the rows where both features are observed.

    Parameters
    ----------
    n
        Rows where both features are observed; 1.0 if the other arguments are probabilities.
    ones_i, ones_j, joint
        Rows among them with a 1 in the left plane, in the right plane, and in both. Counts up to
        2⁵³, or floats.
    first_left, first_right
        First plane of each feature, counted from 0, and the number of planes: (n_left + 1,) and
        (n_right + 1,).
    empty_cells
        For tables whose likelihood is greatest at ±1. "none": the correlation is ±MAX_CORRELATION.
        "half": two rows, spread evenly over the cells, are added before thresholds and correlation
        are computed, so ½ per cell of a 2 × 2 table. The status is EMPTY_CELL in both cases.

    Returns
    -------
    PolychoricResult
        Correlations within ±MAX_CORRELATION = ±(1 − 10⁻⁶), and statuses as of `tetrachoric`. Where
        i ≥ j, they are NaN and PLAIN.

    Raises
    ------
    FitError
        If a cell is negative or not finite.
    """
    firsts = [np.asarray(first, np.int64) for first in (first_left, first_right)]
    counts = [np.asarray(x, np.float64) for x in (n, ones_i, ones_j, joint)]
    shape = np.broadcast_shapes(*(x.shape for x in counts))
    n_pairs = tuple(first.size - 1 for first in firsts)
    correlation = np.full((*shape[:-2], *n_pairs), np.nan)
    status = np.zeros(correlation.shape, np.uint8)
    tables = [np.broadcast_to(x, shape) for x in counts]
    size = 2 + max(int(np.diff(first).max(initial=0)) for first in firsts)
    for index in np.ndindex(*shape[:-2]):
        parts = (x[index] for x in (*tables, correlation, status))
        _fill_correlations(empty_cells == "half", size, *firsts, *parts)
    _check_status(status)
    return PolychoricResult(correlation, status)


def _check_status(status: npt.NDArray[np.uint8]) -> None:
    if (status == _INVALID).any():
        index = np.unravel_index(int(np.argmax(status)), status.shape)
        raise FitError(
            f"The table of the pair {tuple(map(int, index))} has a cell that is negative or not "
            "finite. Count all planes over the rows where both features are observed."
        )
