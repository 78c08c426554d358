"""The likelihood of a 2 × 2 table, given the thresholds and the correlation of two latent normals.

x_i = 1 iff a standard normal latent exceeds its threshold h, x_j = 1 iff another one exceeds k.
Swapping 0 and 1 in a feature flips the signs of its threshold and of ρ, so each table is first
turned until ρ ≤ 0 ≤ h + k. Then (1, 1) is a smaller cell than (0, 0), and both are smaller than
they would be under independence, by the same I = ∫_ρ^0 φ2(h, k; r) dr:

    P11 = Φ(−h) Φ(−k) − I,  P10 = Φ(−h) Φ(k) + I,  P01 = Φ(h) Φ(−k) + I,
    P00 = P11 + Φ(h) − Φ(−k).

Only the first is a difference. Where it would lose digits, `lower_corner_tail` gives P11 directly,
and I follows from P11. Each probability therefore has a relative error of about 1e-12, however
small it is. The exception is P00 for |ρ| between 1 − 1e-6 and 1, whose error grows to 1e-8 if h is
almost −k.

Pearson (1900), Mathematical contributions to the theory of evolution VII. `bivariate_normal`
computes I and the corner.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from pipeline.errors import FitError
from pipeline.numerics.gaussian.bivariate_normal import (
    integrate_density,
    is_far_corner,
    lower_corner_tail,
    norm_cdf,
)

MAX_THRESHOLD = 10.0  # Φ(−10) < 1e-23 is rarer than any data show. From 12 on, digits are lost.
_ALLOWED_RANGES = f"thresholds lie within ±{MAX_THRESHOLD:g} and correlations strictly within ±1"
_CANCELLATION_LIMIT = 1e-3  # A difference this much smaller than its terms has lost 3 digits.
# Changes P11 by a relative 1e-12, and gives `lower_corner_tail` a place to start.
_NEARLY_ZERO = 1e-24
_STEEP = 1e12  # For b² / τ²: from here on only its rounding limits the precision of log P11.
_ROUNDING = 1e-12  # Cells of float tables above −1e-12 n count as empty: rounded differences.
_PAIRS_AT_ONCE = 1 << 14
_READ: Any = ["readonly", "contig"]  # NumPy's type stubs misspell "contig".
_WRITE: Any = ["writeonly", "allocate", "contig"]

_Corner = tuple[float, float, float]
_Cells = tuple[float, float, float, float]
_Floats = npt.NDArray[np.float64]


@njit(nogil=True, cache=True, error_model="numpy")
def _both_tails(threshold: float) -> tuple[float, float]:
    """Return Φ(−threshold) and Φ(threshold), both to full relative precision."""
    tail = norm_cdf(-abs(threshold))
    return (tail, 1.0 - tail) if threshold > 0.0 else (1.0 - tail, tail)


@njit(nogil=True, cache=True, error_model="numpy")
def _smallest_cell(h: float, k: float, rho: float, independent: float) -> _Corner:
    """Return P11, log P11 and I for ρ ≤ 0 ≤ h + k; `independent` is P11 at ρ = 0."""
    a2 = (h - k) ** 2 / 8.0
    b2 = (h + k) ** 2 / 8.0
    tau = math.sqrt((1.0 + rho) / (1.0 - rho))
    if not is_far_corner(b2, tau):
        lost = integrate_density(a2, b2, tau, 1.0, -(a2 + b2))
        cell = independent - lost
        if cell > _CANCELLATION_LIMIT * independent:
            return cell, math.log(cell), lost
    if b2 > _STEEP * tau * tau:
        # Laplace's method: for such slopes the quadrature interval would be empty.
        scaled = tau**3 / (2.0 * math.pi * b2)
        log_scale = -(a2 + b2 + b2 / (tau * tau))
    else:
        scaled, log_scale = lower_corner_tail(a2, max(b2, _NEARLY_ZERO * tau * tau), tau)
    cell = scaled * math.exp(log_scale)
    return cell, math.log(scaled) + log_scale, independent - cell


@njit(nogil=True, cache=True, error_model="numpy")
def _log_cells_in_corner(h: float, k: float, rho: float) -> _Cells:
    """Return log P11, log P10, log P01 and log P00 for ρ ≤ 0 ≤ h + k."""
    p_i, q_i = _both_tails(h)
    p_j, q_j = _both_tails(k)
    smallest, log_smallest, lost = _smallest_cell(h, k, rho, p_i * p_j)
    # Both differences are equal; this one subtracts small tails if there are any.
    gap = q_i - p_j if h < k else q_j - p_i
    return (
        log_smallest,
        math.log(p_i * q_j + lost),
        math.log(q_i * p_j + lost),
        math.log(smallest + gap),
    )


@njit(nogil=True, cache=True, error_model="numpy")
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


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_cells(
    h: _Floats, k: _Floats, rho: _Floats, c11: _Floats, c10: _Floats, c01: _Floats, c00: _Floats
) -> None:
    """Apply `_log_cells` to flat contiguous arrays."""
    for t in range(h.size):
        c11[t], c10[t], c01[t], c00[t] = _log_cells(h[t], k[t], rho[t])


@njit(nogil=True, cache=True, error_model="numpy")
def _log_likelihood(n11: float, n10: float, n01: float, n00: float, cells: _Cells) -> float:
    """Sum count · log P; cells below zero by rounding count as empty."""
    total = max(n11, 0.0) * cells[0] + max(n10, 0.0) * cells[1]
    return total + (max(n01, 0.0) * cells[2] + max(n00, 0.0) * cells[3])


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_likelihood(
    n: _Floats,
    ones_i: _Floats,
    ones_j: _Floats,
    joint: _Floats,
    h: _Floats,
    k: _Floats,
    rho: _Floats,
    log_likelihood: _Floats,
) -> None:
    """Fill flat contiguous arrays; NaN where a table or an argument is not in range."""
    for t in range(n.size):
        n11 = joint[t]
        n10 = ones_i[t] - n11
        n01 = ones_j[t] - n11
        # In this order each difference of floats is exact or relative to the cell.
        n00 = (n[t] - max(ones_i[t], ones_j[t])) - (min(ones_i[t], ones_j[t]) - n11)
        least = min(min(n11, n10), min(n01, n00))
        if least >= -_ROUNDING * n[t] and math.isfinite(n11 + n10 + n01 + n00):
            cells = _log_cells(h[t], k[t], rho[t])
            log_likelihood[t] = _log_likelihood(n11, n10, n01, n00, cells)
        else:
            log_likelihood[t] = math.nan


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

    Raises
    ------
    FitError
        If an argument is NaN or out of range.
    """
    cells = np.empty((*np.broadcast_shapes(np.shape(h), np.shape(k), np.shape(rho)), 4))
    write: Any = ["writeonly", "contig"]
    pairs = np.nditer(
        [h, k, rho, *(cells[..., c] for c in range(4))],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[_READ] * 3 + [write] * 4,
        op_dtypes=[np.float64] * 7,
        casting="same_kind",
        order="C",
        buffersize=_PAIRS_AT_ONCE,
    )
    with pairs:
        for arguments in pairs:
            _fill_cells(*arguments)
    _check_values(cells[..., 0], _ALLOWED_RANGES, {"h": h, "k": k, "rho": rho})
    return cells


def pair_log_likelihood(
    n: npt.ArrayLike,
    ones_i: npt.ArrayLike,
    ones_j: npt.ArrayLike,
    joint: npt.ArrayLike,
    h: npt.ArrayLike,
    k: npt.ArrayLike,
    rho: npt.ArrayLike,
) -> _Floats:
    """Compute the log-likelihood Σ count · log P(cell) of every pair, in nats, elementwise.

    Arguments broadcast together and are never expanded in memory. The binomial coefficient is left
    out, because it depends on no parameter.

    Parameters
    ----------
    n, ones_i, ones_j, joint
        Rows where both features are observed, and those with x_i = 1, with x_j = 1, with both.
        Counts up to 2⁵³, or floats.
    h, k, rho
        As in `log_cells`.

    Returns
    -------
    array
        Log-likelihoods, all of them finite. An empty cell adds nothing, however unlikely it is;
        in tables of floats a cell below zero by less than 10⁻¹² n counts as empty.

    Raises
    ------
    FitError
        If a table has a negative, infinite or NaN cell, or an argument is NaN or out of range.
    """
    arguments = {"n": n, "ones_i": ones_i, "ones_j": ones_j, "joint": joint}
    arguments |= {"h": h, "k": k, "rho": rho}
    pairs = np.nditer(
        [*arguments.values(), None],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[_READ] * 7 + [_WRITE],
        op_dtypes=[np.float64] * 8,
        casting="same_kind",
        order="C",
        buffersize=_PAIRS_AT_ONCE,
    )
    with pairs:
        for buffers in pairs:
            _fill_likelihood(*buffers)
        log_likelihood: _Floats = pairs.operands[-1]
    rule = f"cells are finite and not negative, {_ALLOWED_RANGES}"
    _check_values(log_likelihood, rule, arguments)
    return log_likelihood


def _check_values(values: _Floats, rule: str, arguments: dict[str, npt.ArrayLike]) -> None:
    """Raise an error for the first pair without a value."""
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
