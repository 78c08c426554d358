"""The 2 × 2 tables of pairs of bits of latent normals: correlations, likelihoods, independence.

x_i = 1 iff a standard normal latent exceeds its threshold h, x_j = 1 iff another one exceeds k; ρ
is their correlation. Swapping 0 and 1 in a feature flips the signs of its threshold and of ρ, so
each table is first turned until ρ ≤ 0. `bivariate_normal` defines a, b and τ, and computes the
integrals.

Tetrachoric correlation. The margins of a table fix both thresholds, −Φ⁻¹(p_i) and −Φ⁻¹(p_j). The
pairwise maximum-likelihood correlation is the ρ that reproduces the observed share of (1, 1): the
table has three degrees of freedom and the model three parameters. The table is turned so that
(1, 1) is the smaller cell of its diagonal. With z = atanh ρ and e^z = τ, that cell has the
probability

    P(z) = p_i p_j − ∫_z^0 g = ∫_−∞^z g,   g(y) ∝ exp(−a² e^{2y} − b² e^{−2y}) sech y.

log g is concave, and therefore log P is too. Newton's method on log P(z) = log p11 reaches the root
from any start; Halley's correction makes it cubic. Weak correlations take a tenth of the time: they
solve Pearson's series

    (P11 − p_i p_j) / (φ(h) φ(k)) = Σ_m He_{m−1}(h) He_{m−1}(k) ρ^m / m!

by Newton's method, many tables at once. Its terms are below 1.2 exp((h² + k²) / 4) |ρ|^m / m, so 24
terms reach rounding error up to |ρ| = 0.25, or less if margins are extreme. If all thresholds are
zero, there is a closed form, the arcsine law: the signs s = ±1 of normals with correlation ρ have
correlation c = (2/π) arcsin ρ (D. D. Lee, H. Sompolinsky, NIPS 11, 1999).

Likelihood. The table is turned until ρ ≤ 0 ≤ h + k. Then (1, 1) is a smaller cell than (0, 0), and
both are smaller than under independence by the same I = ∫_ρ^0 φ2(h, k; r) dr:

    P11 = Φ(−h) Φ(−k) − I,  P10 = Φ(−h) Φ(k) + I,  P01 = Φ(h) Φ(−k) + I,
    P00 = P11 + Φ(h) − Φ(−k).

Only the first is a difference. Where it would lose digits, `lower_corner_tail` computes P11
directly, and I follows from P11. Each probability therefore has a relative error of about 1e-12,
however small it is. The exception is P00 for |ρ| between 1 − 1e-6 and 1, whose error grows to 1e-8
if h is almost −k. Up to |ρ| = 0.8, P11 − p_i p_j is Pearson's series with up to 160 terms, which
takes a third of the time: it needs no integrals, and tails only once for each feature.

Pearson (1900), Mathematical contributions to the theory of evolution VII. Olsson (1979), Maximum
likelihood estimation of the polychoric correlation coefficient, Psychometrika 44.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from pipeline.errors import FitError
from pipeline.numerics.compilation import callee
from pipeline.numerics.gaussian.bivariate_normal import (
    integrate_density,
    is_far_corner,
    lower_corner_tail,
    norm_cdf,
    norm_pdf,
    norm_ppf,
)

MAX_CORRELATION = 1.0 - 1e-6
# A little beyond the limit: the final `min` then returns MAX_CORRELATION exactly.
_MIN_TAU = 0.999 * math.sqrt((1.0 - MAX_CORRELATION) / (1.0 + MAX_CORRELATION))
_TOLERANCE = 1e-5  # Step size relative to τ. Convergence is cubic: the error left is below 1e-12.
_HALLEY_STEPS = 10
_MAX_STEPS = 100
_LANES = 64  # Tables of weak correlations that are solved together.
_N_TERMS = 24
_WEAK_STEPS = 3  # Newton steps; the error of the last one is squared.
_MAX_LAST_STEP = 1e-7  # Relative to ρ.
_MAX_NEGLECTED = 1e-27  # 2π (exp((h² + k²) / 4) |ρ|^(_N_TERMS − 1))²
_MIN_SLOPE = 0.05  # Of the series, which would lose digits below.
_ROUNDING = 1e-12  # Cells of float tables above −1e-12 n count as empty: rounded differences.
_TABLES_AT_ONCE = 1 << 14
_READ: Any = ["readonly", "contig"]  # NumPy's type stubs misspell "contig".
_WRITE: Any = ["writeonly", "allocate", "contig"]
_INVALID = 255
_ROUNDING_MARGIN = 1e-9
MAX_THRESHOLD = 10.0  # Φ(−10) < 1e-23 is rarer than any data show. From 12 on, digits are lost.
_ALLOWED_RANGES = f"thresholds lie within ±{MAX_THRESHOLD:g} and correlations strictly within ±1"
_CANCELLATION_LIMIT = 1e-3  # A difference this much smaller than its terms has lost 3 digits.
# Changes P11 by a relative 1e-12, and gives `lower_corner_tail` a place to start.
_NEARLY_ZERO = 1e-24
_STEEP = 1e12  # For b² / τ²: from here on only its rounding limits the precision of log P11.
_Corner = tuple[float, float, float]
_Cells = tuple[float, float, float, float]
_Floats = npt.NDArray[np.float64]
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_kernel = njit(**_OPTIONS, cache=True)
_callee = callee(**_OPTIONS)
# From this variance on, the rounded normal quantile differs from the exact one by at most 1.
_NORMAL_VARIANCE = 36.0


# Of the series in likelihoods: the bound of the neglected terms holds from 5 terms on.
_MIN_TERMS, _MAX_TERMS, _MAX_SERIES_RHO = 5, 160, 0.8
_NEGLECTED = 5e-13  # neglected terms over the smallest cell of independent features, times 2π / 1.2
_MAX_GAIN = 0.95  # of a cell; what remains of it has a relative error of 20 times _NEGLECTED
# x_m = He_m(h) / √(m + 1)! has x_{m+1} = _RISE[m] h x_m − _FALL[m] x_{m−1}.
_ORDERS = np.arange(_MAX_TERMS)
_RISE = 1.0 / np.sqrt(_ORDERS + 2.0)
_FALL = _ORDERS / np.sqrt((_ORDERS + 1.0) * (_ORDERS + 2.0))
# Rows of the memory of `_solve_weak_tables`; the coefficients of the series follow.
_TARGET, _SCALE, _RHO, _SUM, _SLOPE, _LAST_STEP, _X, _PREVIOUS_X, _Y, _PREVIOUS_Y, _FIRST_TERM = (
    _LANES * row for row in range(11)
)


class PairStatus(IntEnum):
    """Kind of table behind a tetrachoric correlation."""

    PLAIN = 0
    EMPTY_CELL = 1
    CONSTANT_FEATURE = 2
    NO_OBSERVATIONS = 3


_PLAIN, _EMPTY_CELL, _CONSTANT_FEATURE, _NO_OBSERVATIONS = map(int, PairStatus)


class TetrachoricResult(NamedTuple):
    """Correlations and their `PairStatus`, both in the broadcast shape of the arguments."""

    correlation: npt.NDArray[np.float64]
    status: npt.NDArray[np.uint8]


@_callee
def _compute_threshold(ones: float, zeros: float) -> float:
    """Return −Φ⁻¹(share of ones), from the rarer value: swapping 0 and 1 changes only the sign."""
    rarer = norm_ppf(min(ones, zeros) / (ones + zeros))
    return -rarer if ones <= zeros else rarer


@_callee
def describe_margin(ones: float, zeros: float) -> tuple[float, float]:
    """Return the threshold of a feature, and p (1 − p) / (√(2π) φ(threshold))."""
    n, threshold = ones + zeros, _compute_threshold(ones, zeros)
    return threshold, ones / n * (zeros / n) * math.exp(0.5 * threshold * threshold)


@_kernel
def _fill_margins(n: _Floats, ones: _Floats, threshold: _Floats, factor: _Floats) -> None:
    """Describe flat contiguous arrays of margins; NaN or infinity if one is empty or invalid."""
    for t in range(n.size):
        threshold[t], factor[t] = describe_margin(ones[t], n[t] - ones[t])


@_callee
def _log_ratio(p: float, excess: float, a2: float, b2: float, tau: float) -> float:
    """Return log P(log τ) − log p, where p + excess is the cell under independence."""
    if is_far_corner(b2, tau):
        scaled, log_scale = lower_corner_tail(a2, b2, tau)
        return math.log(scaled) + log_scale - math.log(p)
    return math.log1p((excess - integrate_density(a2, b2, tau, 1.0, -(a2 + b2))) / p)


@_callee
def _solve_tau(p: float, excess: float, a2: float, b2: float, tau: float) -> float:
    """Find the τ in [_MIN_TAU, 1] with P(log τ) = p, or the nearest end of that range."""
    for step_number in range(_MAX_STEPS):
        tau2 = tau * tau
        log_ratio = _log_ratio(p, excess, a2, b2, tau)
        log_density = -(a2 + b2 + a2 * tau2 + b2 / tau2) + math.log(tau / (1.0 + tau2) / math.pi)
        slope = math.exp(log_density - log_ratio - math.log(p))
        step = -log_ratio / slope
        if step_number < _HALLEY_STEPS:  # Only plain Newton is certain to converge.
            density_slope = 2.0 * (b2 / tau2 - a2 * tau2) + (1.0 - tau2) / (1.0 + tau2)
            step /= max(1.0 - 0.5 * log_ratio * (density_slope / slope - 1.0), 0.5)
        previous = tau
        tau = min(max(tau * math.exp(step), _MIN_TAU), 1.0)
        if abs(tau - previous) <= _TOLERANCE * tau:
            break
    return tau


@_callee
def solve_correlation(
    n11: float, n10: float, n01: float, n00: float, h: float, k: float, exponent: float
) -> float:
    """Return the correlation of a table without empty cells, within ±MAX_CORRELATION.

    `h` and `k` are its thresholds, and `exponent` is 8 times the product of their factors.
    """
    n = (n11 + n00) + (n10 + n01)
    diagonal = n11 * n00
    opposite = n10 * n01
    if diagonal == opposite:
        return 0.0
    a2 = (h - k) ** 2 / 8.0
    b2 = (h + k) ** 2 / 8.0
    corner = min(n11, n00)
    if diagonal > opposite:
        a2, b2 = b2, a2
        corner = min(n10, n01)
    # Pearson's cos(π / (1 + √odds ratio)) is exact if both margins are ½. This exponent, instead of
    # ½, makes it exact to first order in ρ for all margins.
    power = (min(diagonal, opposite) / max(diagonal, opposite)) ** exponent
    start = max(math.tan(0.5 * math.pi * power / (1.0 + power)), _MIN_TAU)
    excess = abs(diagonal - opposite) / (n * n)
    tau = _solve_tau(corner / n, excess, a2, b2, start)
    size = min((1.0 - tau) * (1.0 + tau) / (1.0 + tau * tau), MAX_CORRELATION)
    return math.copysign(size, diagonal - opposite)


@_callee
def classify_table(n11: float, n10: float, n01: float, n00: float, slack: float) -> int:
    """Return the `PairStatus` of a table; _INVALID if a cell is NaN, infinite or below −slack."""
    if not math.isfinite(n11 + n10 + n01 + n00) or min(n11, n10, n01, n00) < -slack:
        return _INVALID
    if max(n11, n10, n01, n00) <= 0.0:
        return _NO_OBSERVATIONS
    if max(n11, n10) <= 0.0 or max(n01, n00) <= 0.0:
        return _CONSTANT_FEATURE
    if max(n11, n01) <= 0.0 or max(n10, n00) <= 0.0:
        return _CONSTANT_FEATURE
    return _EMPTY_CELL if min(n11, n10, n01, n00) <= 0.0 else _PLAIN


@_callee
def _solve_weak_tables(
    n: _Floats,
    ones_i: _Floats,
    ones_j: _Floats,
    joint: _Floats,
    h: _Floats,
    factor_i: _Floats,
    k: _Floats,
    factor_j: _Floats,
    lanes: _Floats,
    correlation: _Floats,
    is_solved: npt.NDArray[np.bool_],
) -> None:
    """Solve up to _LANES tables without empty cells by Pearson's series, if it is precise enough.

    `lanes` is memory for _FIRST_TERM + _N_TERMS _LANES numbers. Loops over lanes have no branches,
    so that LLVM vectorizes them; a table has the same bits in every lane.
    """
    for lane in range(n.size):
        n11 = joint[lane]
        n10 = ones_i[lane] - n11
        n01 = ones_j[lane] - n11
        n00 = (n[lane] - max(ones_i[lane], ones_j[lane])) - (min(ones_i[lane], ones_j[lane]) - n11)
        total = (n11 + n00) + (n10 + n01)
        share_i = (n11 + n10) / total * ((n01 + n00) / total)
        share_j = (n11 + n01) / total * ((n10 + n00) / total)
        scale = 2.0 * math.pi * ((factor_i[lane] / share_i) * (factor_j[lane] / share_j))
        target = scale * ((n11 * n00 - n10 * n01) / (total * total))
        second = 0.5 * (h[lane] * k[lane])
        third = (h[lane] * h[lane] - 1.0) * (k[lane] * k[lane] - 1.0) / 6.0
        lanes[_SCALE + lane] = scale
        lanes[_TARGET + lane] = target
        inverse = second - (2.0 * second * second - third) * target
        lanes[_RHO + lane] = target * (1.0 - target * inverse)
        lanes[_X + lane] = lanes[_Y + lane] = 1.0
        lanes[_PREVIOUS_X + lane] = lanes[_PREVIOUS_Y + lane] = 0.0
        is_solved[lane] = min(min(n11, n10), min(n01, n00)) > 0.0
    for m in range(_N_TERMS):
        rise, fall = _RISE[m], _FALL[m]
        for lane in range(n.size):
            x, y = lanes[_X + lane], lanes[_Y + lane]
            lanes[_FIRST_TERM + _LANES * m + lane] = x * y
            lanes[_X + lane] = rise * h[lane] * x - fall * lanes[_PREVIOUS_X + lane]
            lanes[_Y + lane] = rise * k[lane] * y - fall * lanes[_PREVIOUS_Y + lane]
            lanes[_PREVIOUS_X + lane], lanes[_PREVIOUS_Y + lane] = x, y
    for _ in range(_WEAK_STEPS):
        for lane in range(n.size):
            lanes[_SUM + lane] = lanes[_SLOPE + lane] = 0.0
        for m in range(_N_TERMS - 1, -1, -1):
            for lane in range(n.size):
                rho, value = lanes[_RHO + lane], lanes[_SUM + lane]
                lanes[_SLOPE + lane] = lanes[_SLOPE + lane] * rho + value
                lanes[_SUM + lane] = value * rho + lanes[_FIRST_TERM + _LANES * m + lane]
        for lane in range(n.size):
            rho, value = lanes[_RHO + lane], lanes[_SUM + lane]
            slope = value + rho * lanes[_SLOPE + lane]
            step = (lanes[_TARGET + lane] - rho * value) / slope
            lanes[_LAST_STEP + lane], lanes[_SLOPE + lane] = step, slope
            lanes[_RHO + lane] = rho + step
    for lane in range(n.size):
        rho = lanes[_RHO + lane]
        correlation[lane] = rho
        neglected = lanes[_SCALE + lane] * rho ** (2 * _N_TERMS - 2)
        is_precise = neglected <= _MAX_NEGLECTED and lanes[_SLOPE + lane] >= _MIN_SLOPE
        is_converged = abs(lanes[_LAST_STEP + lane]) <= _MAX_LAST_STEP * abs(rho)
        is_solved[lane] = is_solved[lane] and is_precise and is_converged


@_kernel
def _fill_correlations(
    add_half: bool,
    n: _Floats,
    ones_i: _Floats,
    ones_j: _Floats,
    joint: _Floats,
    h: _Floats,
    factor_i: _Floats,
    k: _Floats,
    factor_j: _Floats,
    correlation: _Floats,
    status: npt.NDArray[np.uint8],
) -> None:
    """Solve flat contiguous arrays of tables, whose margins `_fill_margins` described."""
    lanes = np.empty(_FIRST_TERM + _N_TERMS * _LANES)
    is_solved = np.empty(n.size, np.bool_)
    for start in range(0, n.size, _LANES):
        part = slice(start, min(start + _LANES, n.size))
        _solve_weak_tables(
            n[part], ones_i[part], ones_j[part], joint[part], h[part], factor_i[part], k[part],
            factor_j[part], lanes, correlation[part], is_solved[part],
        )  # fmt: skip
    for t in range(n.size):
        if is_solved[t]:
            status[t] = _PLAIN
            continue
        n11 = joint[t]
        n10 = ones_i[t] - n11
        n01 = ones_j[t] - n11
        # In this order each difference of floats is exact or relative to the cell.
        n00 = (n[t] - max(ones_i[t], ones_j[t])) - (min(ones_i[t], ones_j[t]) - n11)
        status[t] = classify_table(n11, n10, n01, n00, _ROUNDING * n[t])
        correlation[t] = math.nan
        if status[t] == _PLAIN:
            exponent = 8.0 * factor_i[t] * factor_j[t]
            correlation[t] = solve_correlation(n11, n10, n01, n00, h[t], k[t], exponent)
        elif status[t] == _EMPTY_CELL and add_half:
            n11, n10 = max(n11, 0.0) + 0.5, max(n10, 0.0) + 0.5
            n01, n00 = max(n01, 0.0) + 0.5, max(n00, 0.0) + 0.5
            h_half, half_i = describe_margin(n11 + n10, n01 + n00)
            k_half, half_j = describe_margin(n11 + n01, n10 + n00)
            exponent = 8.0 * half_i * half_j
            correlation[t] = solve_correlation(n11, n10, n01, n00, h_half, k_half, exponent)
        elif status[t] == _EMPTY_CELL:
            negative = min(n11, n00) <= 0.0
            correlation[t] = -MAX_CORRELATION if negative else MAX_CORRELATION


def tetrachoric(
    n: npt.ArrayLike,
    ones_i: npt.ArrayLike,
    ones_j: npt.ArrayLike,
    joint: npt.ArrayLike,
    *,
    empty_cells: Literal["none", "half"] = "none",
) -> TetrachoricResult:
    """Compute the maximum-likelihood tetrachoric correlation of every pair, elementwise.

    Arguments broadcast together and are never expanded in memory. With missing values each pair has
    its own table, counted over the rows where both features are observed.

    Parameters
    ----------
    n
        Rows where both features are observed; 1.0 if the other arguments are probabilities.
    ones_i, ones_j, joint
        Rows among them with x_i = 1, with x_j = 1, and with both. Counts up to 2⁵³, or floats.
    empty_cells
        "none": a table with an empty cell gets the boundary estimate, −MAX_CORRELATION if (1, 1) or
        (0, 0) is empty and +MAX_CORRELATION if (1, 0) or (0, 1) is. "half": ½ is added to all four
        cells of a table with an empty cell before thresholds and correlation are computed; use it
        for counts only, not for probabilities. The status is EMPTY_CELL in both cases.

    Returns
    -------
    TetrachoricResult
        Correlations within ±MAX_CORRELATION = ±(1 − 10⁻⁶); NaN exactly where the status is
        CONSTANT_FEATURE (a margin is empty) or NO_OBSERVATIONS (n = 0). In tables of floats a
        cell below zero by less than 10⁻¹² n counts as empty.
    """
    if empty_cells not in ("none", "half"):
        raise FitError(
            f"`empty_cells` is {empty_cells!r}, which is unknown. Choose 'none' or 'half'."
        )
    counts = (n, ones_i, ones_j, joint)
    margins = (*_describe_margins(n, ones_i), *_describe_margins(n, ones_j))
    with _iter_buffers((*counts, *margins), (None, None), (np.float64, np.uint8)) as tables:
        for buffers in tables:
            _fill_correlations(empty_cells == "half", *buffers)
        result = TetrachoricResult(*tables.operands[8:])
    _check_tables(result.status, *counts)
    return result


def _describe_margins(n: npt.ArrayLike, ones: npt.ArrayLike) -> tuple[_Floats, _Floats]:
    """Return thresholds and factors in the broadcast shape of `n` and `ones`, often a vector."""
    with _iter_buffers((n, ones), (None, None), (np.float64, np.float64)) as margins:
        for buffers in margins:
            _fill_margins(*buffers)
        threshold, factor = margins.operands[2:]
    return threshold, factor


def _iter_buffers(
    inputs: Iterable[npt.ArrayLike], outputs: Iterable[_Floats | None], types: Sequence[type]
) -> np.nditer:
    """Iterate over inputs and outputs (None: allocated) of these types, in flat buffers."""
    operands: list[Any] = [*inputs, *outputs]
    n_inputs = len(operands) - len(types)
    return np.nditer(
        operands,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[_READ] * n_inputs + [_WRITE] * len(types),
        op_dtypes=[np.float64] * n_inputs + [*types],
        casting="same_kind",
        order="C",
        buffersize=_TABLES_AT_ONCE,
    )


def _check_tables(status: npt.NDArray[np.uint8], *counts: npt.ArrayLike) -> None:
    if not (status == _INVALID).any():
        return
    index = np.unravel_index(int(np.argmax(status)), status.shape)
    values = [np.broadcast_to(x, status.shape)[index].item() for x in counts]
    n, ones_i, ones_j, joint = values
    raise FitError(
        f"The 2 x 2 table at {tuple(map(int, index))} has a cell that is negative or not finite: "
        f"n={n}, ones_i={ones_i}, ones_j={ones_j}, joint={joint}. "
        "Count all four over the rows where both features are observed."
    )


def arcsine_correlation(clipped: npt.ArrayLike) -> _Floats:
    """Return the correlation ρ = sin(π c / 2) of normals whose signs have correlation c."""
    return np.asarray(np.sin(0.5 * np.pi * _clip_rounding(clipped)))


def sign_correlation(correlation: npt.ArrayLike) -> _Floats:
    """Return the correlation c = (2/π) arcsin ρ of the signs of normals with correlation ρ."""
    return np.asarray(2.0 / np.pi * np.arcsin(_clip_rounding(correlation)))


def _clip_rounding(values: npt.ArrayLike) -> _Floats:
    """Return the values as floats; values a rounding error outside [−1, 1] move to its ends."""
    array = np.asarray(values, dtype=np.float64)
    inside = np.abs(array) <= 1.0 + _ROUNDING_MARGIN
    if not inside.all():
        index = np.unravel_index(int(np.argmin(inside)), array.shape)
        raise FitError(
            f"The correlation at {tuple(map(int, index))} is {array[index]}, outside [-1, 1]. "
            "Leave out features that are constant or never observed together."
        )
    return np.clip(array, -1.0, 1.0)


@_callee
def _both_tails(threshold: float) -> tuple[float, float]:
    """Return Φ(−threshold) and Φ(threshold), both to full relative precision."""
    tail = norm_cdf(-abs(threshold))
    return (tail, 1.0 - tail) if threshold > 0.0 else (1.0 - tail, tail)


@_callee
def _smallest_cell(h: float, k: float, rho: float, independent: float) -> _Corner:
    """Return P11, log P11 and I for ρ ≤ 0 ≤ h + k; `independent` is P11 at ρ = 0."""
    a2 = (h - k) ** 2 / 8.0
    b2 = (h + k) ** 2 / 8.0
    tau = math.sqrt((1.0 + rho) / (1.0 - rho))
    if not is_far_corner(b2, tau):
        loss = integrate_density(a2, b2, tau, 1.0, -(a2 + b2))
        cell = independent - loss
        if cell > _CANCELLATION_LIMIT * independent:
            return cell, math.log(cell), loss
    if b2 > _STEEP * tau * tau:
        # Laplace's method: for such slopes the quadrature interval would be empty.
        scaled = tau**3 / (2.0 * math.pi * b2)
        log_scale = -(a2 + b2 + b2 / (tau * tau))
    else:
        scaled, log_scale = lower_corner_tail(a2, max(b2, _NEARLY_ZERO * tau * tau), tau)
    cell = scaled * math.exp(log_scale)
    return cell, math.log(scaled) + log_scale, independent - cell


@_callee
def _log_cells_in_corner(h: float, k: float, rho: float) -> _Cells:
    """Return log P11, log P10, log P01 and log P00 for ρ ≤ 0 ≤ h + k."""
    p_i, q_i = _both_tails(h)
    p_j, q_j = _both_tails(k)
    smallest, log_smallest, loss = _smallest_cell(h, k, rho, p_i * p_j)
    # Both differences are equal; this one subtracts small tails if there are any.
    gap = q_i - p_j if h < k else q_j - p_i
    return (
        log_smallest,
        math.log(p_i * q_j + loss),
        math.log(q_i * p_j + loss),
        math.log(smallest + gap),
    )


@_callee
def _log_cells(h: float, k: float, rho: float) -> _Cells:
    """Return log P11, log P10, log P01 and log P00; NaN unless the arguments are in range."""
    if not (abs(h) <= MAX_THRESHOLD and abs(k) <= MAX_THRESHOLD and abs(rho) < 1.0):
        return math.nan, math.nan, math.nan, math.nan
    turned = -k if rho > 0.0 else k
    if h + turned < 0.0:
        c00, c01, c10, c11 = _log_cells_in_corner(-h, -turned, -abs(rho))
    else:
        c11, c10, c01, c00 = _log_cells_in_corner(h, turned, -abs(rho))
    return (c10, c11, c00, c01) if rho > 0.0 else (c11, c10, c01, c00)


@_kernel
def _fill_cells(
    h: _Floats, k: _Floats, rho: _Floats, c11: _Floats, c10: _Floats, c01: _Floats, c00: _Floats
) -> None:
    for t in range(h.size):
        c11[t], c10[t], c01[t], c00[t] = _log_cells(h[t], k[t], rho[t])


@_callee
def _log_likelihood(n11: float, n10: float, n01: float, n00: float, cells: _Cells) -> float:
    """Sum count · log P; cells below zero by rounding count as empty."""
    total = max(n11, 0.0) * cells[0] + max(n10, 0.0) * cells[1]
    return total + (max(n01, 0.0) * cells[2] + max(n00, 0.0) * cells[3])


@_callee
def _fill_terms(thresholds: _Floats, terms: _Floats) -> None:
    """Fill φ(h) x_m of all features; products for two features are the terms of their series."""
    for feature in range(thresholds.size):
        terms[0, feature] = norm_pdf(thresholds[feature])
    for m in range(_MAX_TERMS - 1):
        x, previous_x, next_x = terms[m], terms[max(m - 1, 0)], terms[m + 1]
        for feature in range(thresholds.size):
            risen = _RISE[m] * thresholds[feature] * x[feature]
            next_x[feature] = risen - _FALL[m] * previous_x[feature]


@callee(**_OPTIONS, fastmath={"contract"})
def _add_terms(x: float, y: _Floats, rho: _Floats, total: _Floats) -> None:
    """Multiply sums by ρ and add x y, for pairs of one feature with several others."""
    for lane in range(rho.size):
        total[lane] = total[lane] * rho[lane] + x * y[lane]


@_callee
def _count_terms(rho: _Floats, shares: _Floats) -> int:
    """Return how many terms of the series these pairs need; 0 if more than _MAX_TERMS.

    `shares` are the smallest cells of independent features, times exp((h² + k²) / 4). Pairs with
    strong correlations do not count.
    """
    largest, least = 0.0, math.inf
    for lane in range(rho.size):
        if abs(rho[lane]) <= _MAX_SERIES_RHO:
            largest, least = max(largest, abs(rho[lane])), min(least, shares[lane])
    if largest == 0.0 or not least > 0.0:
        return _MIN_TERMS if least > 0.0 else 0
    needed = math.log(_NEGLECTED * least) / math.log(largest)
    return max(_MIN_TERMS, math.ceil(needed)) if needed <= _MAX_TERMS else 0


@_kernel
def _fill_likelihood(
    n: _Floats,
    ones_i: _Floats,
    ones_j: _Floats,
    joint: _Floats,
    thresholds: _Floats,
    i: npt.NDArray[np.int64],
    j: npt.NDArray[np.int64],
    rho: _Floats,
    log_likelihood: _Floats,
) -> None:
    """Fill flat contiguous arrays; NaN where a table or an argument is not in range."""
    terms = np.empty((_MAX_TERMS, thresholds.size))
    tails, shares = np.empty((thresholds.size, 2)), np.empty(thresholds.size)
    _fill_terms(thresholds, terms)
    for feature in range(thresholds.size):
        p, q = _both_tails(thresholds[feature])
        tails[feature, 0], tails[feature, 1] = p, q
        # NaN if the threshold is not finite: then there is no series.
        shares[feature] = min(p, q) * math.exp(0.25 * thresholds[feature] ** 2)
    sums, start = np.empty(_LANES), 0
    while start < n.size:
        left, first, stop = i[start], j[start], start + 1
        while (
            stop < min(n.size, start + _LANES)
            and i[stop] == left
            and j[stop] == first + stop - start
        ):
            stop += 1
        own, others = rho[start:stop], slice(first, first + stop - start)
        n_terms = _count_terms(own, shares[left] * shares[others])
        sums[:] = 0.0
        for m in range(n_terms - 1, -1, -1):
            _add_terms(terms[m, left], terms[m, others], own, sums)
        for t in range(start, stop):
            n11 = joint[t]
            n10 = ones_i[t] - n11
            n01 = ones_j[t] - n11
            # In this order each difference of floats is exact or relative to the cell.
            n00 = (n[t] - max(ones_i[t], ones_j[t])) - (min(ones_i[t], ones_j[t]) - n11)
            least = min(min(n11, n10), min(n01, n00))
            if not (least >= -_ROUNDING * n[t] and math.isfinite(n11 + n10 + n01 + n00)):
                log_likelihood[t] = math.nan
                continue
            p_i, q_i, p_j, q_j = tails[left, 0], tails[left, 1], tails[j[t], 0], tails[j[t], 1]
            c11, c10, c01, c00 = p_i * p_j, p_i * q_j, q_i * p_j, q_i * q_j
            gain = rho[t] * sums[t - start]
            smallest = min(c11, c00) if gain < 0.0 else min(c10, c01)
            if n_terms and abs(rho[t]) <= _MAX_SERIES_RHO and abs(gain) <= _MAX_GAIN * smallest:
                cells = (
                    math.log(c11 + gain),
                    math.log(c10 - gain),
                    math.log(c01 - gain),
                    math.log(c00 + gain),
                )
            else:
                cells = _log_cells(thresholds[left], thresholds[j[t]], rho[t])
            log_likelihood[t] = _log_likelihood(n11, n10, n01, n00, cells)
        start = stop


def log_cells(h: npt.ArrayLike, k: npt.ArrayLike, rho: npt.ArrayLike) -> _Floats:
    """Compute the log probabilities of the four cells of a table, elementwise.

    Parameters
    ----------
    h, k
        Thresholds of x_i and x_j, within ±MAX_THRESHOLD = ±10.
    rho
        Correlation of the latents, strictly within ±1.

    Returns
    -------
    array of (..., 4)
        log P(1, 1), log P(1, 0), log P(0, 1) and log P(0, 0) of (x_i, x_j), all of them finite.
    """
    cells = np.empty((*np.broadcast_shapes(np.shape(h), np.shape(k), np.shape(rho)), 4))
    with _iter_buffers((h, k, rho), (cells[..., c] for c in range(4)), [np.float64] * 4) as pairs:
        for buffers in pairs:
            _fill_cells(*buffers)
    _check_values(cells[..., 0], _ALLOWED_RANGES, {"h": h, "k": k, "rho": rho})
    return cells


def pair_log_likelihood(
    table: Sequence[npt.ArrayLike],
    thresholds: npt.ArrayLike,
    i: npt.ArrayLike,
    j: npt.ArrayLike,
    rho: npt.ArrayLike,
) -> _Floats:
    """Compute the log-likelihood Σ count · log P(cell) of every pair, in nats.

    The binomial coefficient is left out, because it depends on no parameter.

    Parameters
    ----------
    table
        Rows where both features are observed, and those with x_i = 1, with x_j = 1, with both,
        (n_pairs,) each. Counts up to 2⁵³, or floats.
    thresholds
        Thresholds of all features, within ±MAX_THRESHOLD = ±10, (n_features,).
    i, j, rho
        Features of each pair, and the correlations of their latents, strictly within ±1,
        (n_pairs,). Pairs of one feature i with successive j take the least time.

    Returns
    -------
    array of (n_pairs,)
        Log-likelihoods, all of them finite. An empty cell adds nothing, however unlikely it is;
        in tables of floats a cell below zero by less than 10⁻¹² n counts as empty.
    """
    floats = [np.ascontiguousarray(x, np.float64) for x in (*table, thresholds, rho)]
    features = [np.ascontiguousarray(x, np.int64) for x in (i, j)]
    log_likelihood = np.empty(len(floats[-1]))
    _fill_likelihood(*floats[:5], *features, floats[-1], log_likelihood)
    if np.isnan(log_likelihood).any():
        names = ("n", "ones_i", "ones_j", "joint", "h", "k", "rho")
        h, k = (floats[4][own] for own in features)
        rule = f"cells are finite and not negative, {_ALLOWED_RANGES}"
        arguments = dict(zip(names, (*floats[:4], h, k, floats[-1]), strict=True))
        _check_values(log_likelihood, rule, arguments)
    return log_likelihood


def _check_values(values: _Floats, rule: str, arguments: Mapping[str, npt.ArrayLike]) -> None:
    missing = np.isnan(values)
    if not missing.any():
        return
    index = np.unravel_index(int(np.argmax(missing)), values.shape)
    values_at_index = {
        name: np.broadcast_to(x, values.shape)[index].item() for name, x in arguments.items()
    }
    raise FitError(
        f"The pair at {tuple(map(int, index))} has "
        f"{', '.join(f'{name}={x}' for name, x in values_at_index.items())}, but {rule}. "
        "Leave out missing values and keep rho from reaching ±1."
    )


def joint_count_quantiles(n: _Floats, ones_i: _Floats, ones_j: _Floats, z: _Floats) -> _Floats:
    """Return the joint count of independent features at a normal score: F⁻¹(Φ(z)).

    F is the hypergeometric law given the margins.

    All arrays are (n_pairs,). The result is exact for variances below 36, else the rounded normal
    quantile, clipped to the possible range.
    """
    return _quantiles(n, ones_i, ones_j, z)


@njit(nogil=True, cache=True)
def _quantiles(n: _Floats, ones_i: _Floats, ones_j: _Floats, z: _Floats) -> _Floats:
    joint = np.empty(len(z))
    for k in range(len(z)):
        joint[k] = _quantile(n[k], ones_i[k], ones_j[k], z[k])
    return joint


@callee(nogil=True)
def _quantile(n: float, a: float, b: float, z: float) -> float:
    if n < 2 or a == 0 or b == 0:
        return max(0.0, a + b - n)
    mean = a * b / n
    variance = mean * (n - a) * (n - b) / (n * (n - 1))
    if variance >= _NORMAL_VARIANCE:
        near: float = np.rint(mean + math.sqrt(variance) * z)
        return min(max(near, max(0.0, a + b - n)), min(a, b))
    # Count the rarer value of each feature: the walk from zero then takes few steps.
    rare_a, rare_b = 2 * a > n, 2 * b > n
    fewer_a, fewer_b = n - a if rare_a else a, n - b if rare_b else b
    count = _walk_to_quantile(n, fewer_a, fewer_b, -z if rare_a != rare_b else z)
    if rare_a and rare_b:
        return n - fewer_a - fewer_b + count
    if rare_a:
        return b - count
    return a - count if rare_b else count


@callee(nogil=True)
def _walk_to_quantile(n: float, a: float, b: float, z: float) -> float:
    """Sum probabilities from a count of zero until they reach Φ(z)."""
    target = 0.5 * math.erfc(-z / math.sqrt(2.0))
    probability = math.exp(
        math.lgamma(n - a + 1) + math.lgamma(n - b + 1)
        - math.lgamma(n + 1) - math.lgamma(n - a - b + 1)
    )  # fmt: skip
    total, count = probability, 0.0
    while total < target and count < min(a, b):
        probability *= (a - count) * (b - count) / ((count + 1) * (n - a - b + count + 1))
        count += 1
        total += probability
    return count
