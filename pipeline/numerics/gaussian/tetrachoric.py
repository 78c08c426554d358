"""Correlations of two latent normals from their bits: tetrachoric, and the arcsine law.

x_i = 1 iff a standard normal latent exceeds the threshold −Φ⁻¹(p_i). The margins of a table fix
both thresholds, and the pairwise maximum-likelihood correlation is the ρ that reproduces the
observed share of (1, 1): the table has three degrees of freedom and the model three parameters.

Flipping a feature flips the sign of ρ, so each table is first turned until ρ ≤ 0 and (1, 1) is the
smaller cell of its diagonal. With z = atanh ρ that cell has the probability

    P(z) = p_i p_j − ∫_z^0 g = ∫_−∞^z g,   g(y) ∝ exp(−a² e^{2y} − b² e^{−2y}) sech y,

with a and b as in `bivariate_normal` and e^z = τ. log g is concave, hence so is log P, and Newton's
method on log P(z) = log p11 reaches the root from any start. Halley's correction makes it cubic.

If all thresholds are zero there is a closed form, the arcsine law: the signs s = ±1 of normals with
correlation ρ have correlation c = (2/π) arcsin ρ (D. D. Lee, H. Sompolinsky, NIPS 11, 1999).

Pearson (1900), Mathematical contributions to the theory of evolution VII. Olsson (1979), Maximum
likelihood estimation of the polychoric correlation coefficient, Psychometrika 44.
"""

import math
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from pipeline.errors import FitError
from pipeline.numerics.gaussian.bivariate_normal import (
    integrate_density,
    is_far_corner,
    lower_corner_tail,
    norm_ppf,
)

MAX_CORRELATION = 1.0 - 1e-6
# A little beyond the limit: the final `min` then returns MAX_CORRELATION exactly.
_MIN_TAU = 0.999 * math.sqrt((1.0 - MAX_CORRELATION) / (1.0 + MAX_CORRELATION))
_TOLERANCE = 1e-5  # Step size relative to τ. Convergence is cubic: the error left is below 1e-12.
_HALLEY_STEPS = 10
_MAX_STEPS = 100
_ROUNDING = 1e-12  # Cells of float tables above −1e-12 n count as empty: rounded differences.
_TABLES_AT_ONCE = 1 << 14
_READ: Any = ["readonly", "contig"]  # NumPy's type stubs misspell "contig".
_WRITE: Any = ["writeonly", "allocate", "contig"]
_INVALID = 255
_ROUNDING_MARGIN = 1e-9


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


@njit(nogil=True, cache=True, error_model="numpy")
def _threshold(ones: float, zeros: float) -> float:
    """Return −Φ⁻¹(share of ones), from the rarer value: swapping 0 and 1 changes only the sign."""
    rarer = norm_ppf(min(ones, zeros) / (ones + zeros))
    return -rarer if ones <= zeros else rarer


@njit(nogil=True, cache=True, error_model="numpy")
def _margin_factor(ones: float, zeros: float, threshold: float) -> float:
    """Return p (1 − p) / (√(2π) φ(threshold))."""
    n = ones + zeros
    return ones / n * (zeros / n) * math.exp(0.5 * threshold * threshold)


@njit(nogil=True, cache=True, error_model="numpy")
def _log_ratio(p: float, excess: float, a2: float, b2: float, tau: float) -> float:
    """Return log P(log τ) − log p, where p + excess is the cell under independence."""
    if is_far_corner(b2, tau):
        scaled, log_scale = lower_corner_tail(a2, b2, tau)
        return math.log(scaled) + log_scale - math.log(p)
    return math.log1p((excess - integrate_density(a2, b2, tau, 1.0, -(a2 + b2))) / p)


@njit(nogil=True, cache=True, error_model="numpy")
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


@njit(nogil=True, cache=True, error_model="numpy")
def _solve_correlation(n11: float, n10: float, n01: float, n00: float) -> float:
    """Return the correlation of a table without empty cells, within ±MAX_CORRELATION."""
    n = (n11 + n00) + (n10 + n01)
    diagonal = n11 * n00
    opposite = n10 * n01
    if diagonal == opposite:
        return 0.0
    h = _threshold(n11 + n10, n01 + n00)
    k = _threshold(n11 + n01, n10 + n00)
    a2 = (h - k) ** 2 / 8.0
    b2 = (h + k) ** 2 / 8.0
    corner = min(n11, n00)
    if diagonal > opposite:
        a2, b2 = b2, a2
        corner = min(n10, n01)
    # Pearson's cos(π / (1 + √odds ratio)) is exact if both margins are ½. This exponent, instead of
    # ½, makes it exact to first order in ρ for all margins.
    exponent = 8.0 * _margin_factor(n11 + n10, n01 + n00, h)
    exponent *= _margin_factor(n11 + n01, n10 + n00, k)
    power = (min(diagonal, opposite) / max(diagonal, opposite)) ** exponent
    start = max(math.tan(0.5 * math.pi * power / (1.0 + power)), _MIN_TAU)
    excess = abs(diagonal - opposite) / (n * n)
    tau = _solve_tau(corner / n, excess, a2, b2, start)
    size = min((1.0 - tau) * (1.0 + tau) / (1.0 + tau * tau), MAX_CORRELATION)
    return math.copysign(size, diagonal - opposite)


@njit(nogil=True, cache=True, error_model="numpy")
def _classify_table(n11: float, n10: float, n01: float, n00: float, slack: float) -> int:
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


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_correlations(
    n: npt.NDArray[np.float64],
    ones_i: npt.NDArray[np.float64],
    ones_j: npt.NDArray[np.float64],
    joint: npt.NDArray[np.float64],
    correlation: npt.NDArray[np.float64],
    status: npt.NDArray[np.uint8],
    add_half: bool,
) -> None:
    """Solve flat contiguous arrays of tables."""
    for t in range(n.size):
        n11 = joint[t]
        n10 = ones_i[t] - n11
        n01 = ones_j[t] - n11
        # In this order each difference of floats is exact or relative to the cell.
        n00 = (n[t] - max(ones_i[t], ones_j[t])) - (min(ones_i[t], ones_j[t]) - n11)
        status[t] = _classify_table(n11, n10, n01, n00, _ROUNDING * n[t])
        correlation[t] = math.nan
        if status[t] == _PLAIN:
            correlation[t] = _solve_correlation(n11, n10, n01, n00)
        elif status[t] == _EMPTY_CELL and add_half:
            n11, n10, n01, n00 = max(n11, 0.0), max(n10, 0.0), max(n01, 0.0), max(n00, 0.0)
            correlation[t] = _solve_correlation(n11 + 0.5, n10 + 0.5, n01 + 0.5, n00 + 0.5)
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
    ones_i, ones_j
        Rows among them with x_i = 1, and with x_j = 1. Counts up to 2⁵³, or floats.
    joint
        Rows among them with x_i = x_j = 1.
    empty_cells
        "none": a table with an empty cell gets the boundary estimate, −MAX_CORRELATION if (1, 1) or
        (0, 0) is empty and +MAX_CORRELATION if (1, 0) or (0, 1) is. "half": ½ is added to all four
        cells of such a table, and of no other, before thresholds and correlation are computed. The
        status is EMPTY_CELL in both cases. "half" is meant for counts, not for probabilities.

    Returns
    -------
    TetrachoricResult
        Correlations within ±MAX_CORRELATION = ±(1 − 10⁻⁶); NaN exactly where the status is
        CONSTANT_FEATURE (a margin is empty) or NO_OBSERVATIONS (n = 0). In tables of floats a
        cell below zero by less than 10⁻¹² n counts as empty.

    Raises
    ------
    FitError
        If a table has a negative, infinite or NaN cell, or `empty_cells` is unknown.
    """
    if empty_cells not in ("none", "half"):
        raise FitError(
            f"`empty_cells` is {empty_cells!r}, which is unknown. Choose 'none' or 'half'."
        )
    tables = np.nditer(
        [n, ones_i, ones_j, joint, None, None],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[_READ] * 4 + [_WRITE] * 2,
        op_dtypes=[np.float64] * 5 + [np.uint8],
        casting="same_kind",
        order="C",
        buffersize=_TABLES_AT_ONCE,
    )
    with tables:
        for n_, i, j, both, correlation, status in tables:
            _fill_correlations(n_, i, j, both, correlation, status, empty_cells == "half")
        result = TetrachoricResult(*tables.operands[4:])
    _check_tables(result.status, n, ones_i, ones_j, joint)
    return result


def _check_tables(status: npt.NDArray[np.uint8], *counts: npt.ArrayLike) -> None:
    """Raise an error for the first invalid table."""
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


def arcsine_correlation(clipped: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the correlation ρ = sin(π c / 2) of normals whose signs have correlation c.

    Raises
    ------
    FitError
        If a value is NaN or outside [−1, 1] by more than rounding.
    """
    return np.asarray(np.sin(0.5 * np.pi * _clip_rounding(clipped)))


def sign_correlation(correlation: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the correlation c = (2/π) arcsin ρ of the signs of normals with correlation ρ.

    Raises
    ------
    FitError
        If a value is NaN or outside [−1, 1] by more than rounding.
    """
    return np.asarray(2.0 / np.pi * np.arcsin(_clip_rounding(correlation)))


def _clip_rounding(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
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
