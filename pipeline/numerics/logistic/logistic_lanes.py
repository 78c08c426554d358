"""Arithmetic of the logistic bound on the 64 rows of a word, with one row per lane.

Loops over lanes have no branches, so that LLVM vectorizes them. Fused multiply-add is called
explicitly and no sum is reordered, so that a row has the same bits whatever its lane, the other
rows and the width of the vectors.

With x̂ = (x, 1) and ŵ_i = (w_i, b_i), the bound on the factor of feature i is a quadratic form in
x̂. A symmetric matrix of that size is stored as its upper triangle, row by row, padded with zeros
and cut into tiles of TILE entries. The memory of the lanes is flat, with row r at LANES r, so that
the compiler knows the distance between rows.
"""

import math
from typing import Any

import numpy as np
from numba import njit, types
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from pipeline.numerics.intrinsics import make_fma, make_power_of_two

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

LANES = 64
TILE = 6  # all entries for one or two components
VECTOR = 8  # lanes of the widest vectors
FACTORS_PER_LOG = 512  # factors of at most 2: 2**512 does not overflow

# Rows in the memory of the lanes: first the rows that all features share,
PRODUCT = 0  # product of 1 + exp(−ξ) since the last logarithm
GAP = 1  # terms subtracted from twice the bound, by features and the determinant
PRESENT = 2  # 1 if the current feature is observed, else 0
SIGN = 3  # 1 − 2 t, or 0 if not observed
# then for each tile its entries of ⟨x̂ x̂ᵀ⟩, its entries of the system, and two rows that pass sums
# from tile to tile. Neighbouring rows are at fixed distances, so loops need no test for overlap.
HEAD = 4
SYSTEM = TILE
SQUARE = 2 * TILE  # part of ξ² from the later tiles
CURVATURE = 2 * TILE + 1  # −2 λ(ξ), or 0 if not observed
TILE_ROWS = 2 * TILE + 2

_LN_2 = math.log(2)
_TO_INTEGER = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits

LANE_KERNEL_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# For functions that only other kernels call.
kernel = njit(**LANE_KERNEL_OPTIONS, **_NO_WRAPPERS)  # type: ignore[call-overload]
inlined = njit(**LANE_KERNEL_OPTIONS, **_NO_WRAPPERS, forceinline=True)  # type: ignore[call-overload]


def _expm1_coefficients(degree: int = 9) -> tuple[float, ...]:
    """Return coefficients of (exp(r) − 1) / r for |r| <= log(2) / 2; relative error 2e-15."""
    t = chebyshev.chebpts1(2 * degree)
    r = _LN_2 / 2 * t
    powers = chebyshev.cheb2poly(chebyshev.chebfit(t, np.expm1(r) / r, degree))
    return tuple(float(c) for c in powers / (_LN_2 / 2) ** np.arange(degree + 1))


_EXPM1 = _expm1_coefficients()


fma = make_fma(types.float64)
# Returns 2**k, given _TO_INTEGER + k.
_power_of_two = make_power_of_two(types.float64, 52, 1023)


@inlined
def get_lane_row(lanes: Floats, r: int) -> Floats:
    """Return row r of the memory."""
    return lanes[LANES * r : LANES * (r + 1)]


@inlined
def get_moment(lanes: Floats, s: int) -> Floats:
    """Return entry s of ⟨x̂ x̂ᵀ⟩ in all lanes."""
    start = LANES * (HEAD + TILE_ROWS * (s // TILE) + s % TILE)
    return lanes[start : start + LANES]


@inlined
def get_system_entry(lanes: Floats, s: int) -> Floats:
    """Return entry s of the system in all lanes."""
    start = LANES * (HEAD + TILE_ROWS * (s // TILE) + SYSTEM + s % TILE)
    return lanes[start : start + LANES]


@inlined
def fill(out: Floats, value: float) -> None:
    """Fill a row. Assigning to a slice would take a second to compile."""
    for lane in range(len(out)):
        out[lane] = value


@inlined
def copy(source: Floats, out: Floats) -> None:
    """Copy a row."""
    for lane in range(len(out)):
        out[lane] = source[lane]


@inlined
def set_present(mask: int, rows: Integers, lanes: Floats, width: int) -> None:
    """Set PRESENT for a feature."""
    for lane in range(width):
        bit = (mask >> np.uint64(rows[lane])) & np.uint64(1)
        lanes[LANES * PRESENT + lane] = 1.0 if bit else 0.0


@inlined
def set_signs(ones: int, lanes: Floats) -> None:
    """Set SIGN for a feature, with each row in the lane of its number."""
    for lane in range(LANES):
        bit = (ones >> np.uint64(lane)) & np.uint64(1)
        present = lanes[LANES * PRESENT + lane]
        lanes[LANES * SIGN + lane] = -present if bit else present


@kernel
def add_features(
    observed: Words, forms: Floats, start: int, stop: int, rows: Integers, lanes: Floats, width: int
) -> None:
    """Set ξ² = ŵᵀ⟨x̂ x̂ᵀ⟩ŵ of each feature, and add its factor to the system and the gap."""
    n_tiles = forms.shape[1] // TILE
    for i in range(start, stop):
        if len(observed) > 0:
            set_present(observed[i], rows, lanes, width)
        for tile in range(n_tiles - 1, 0, -1):
            before = LANES * (HEAD + TILE_ROWS * (tile - 1))
            _add_square(_get_tile(forms[i, TILE * tile :]), lanes[before:], width)
        _add_feature(_get_tile(forms[i]), lanes, width)
        for tile in range(1, n_tiles):
            before = LANES * (HEAD + TILE_ROWS * (tile - 1))
            _add_curvature(_get_tile(forms[i, TILE * tile :]), lanes[before:], width)


@inlined
def _get_tile(form: Floats) -> Any:
    return form[0], form[1], form[2], form[3], form[4], form[5]


@inlined
def _add_square(form: Any, lanes: Floats, width: int) -> None:
    """Add this tile's part of ξ² and pass the sum to the tile before."""
    for lane in range(width):
        square = lanes[LANES * (TILE_ROWS + SQUARE) + lane]
        square = _evaluate_form(form, lanes, LANES * TILE_ROWS + lane, square)
        lanes[LANES * SQUARE + lane] = square


@inlined
def _add_feature(form: Any, lanes: Floats, width: int) -> None:
    """Complete ξ², and add the factor to the gap and to the first tile of the system."""
    for lane in range(width):
        square = lanes[LANES * (HEAD + SQUARE) + lane]
        square = _evaluate_form(form, lanes, LANES * HEAD + lane, square)
        xi, change = _root_and_expm1(square)
        present = lanes[LANES * PRESENT + lane]
        curvature = -0.5 * present * change / (xi * (2.0 + change))
        gap = lanes[LANES * GAP + lane]
        lanes[LANES * GAP + lane] = fma(xi, fma(-curvature, xi, present), gap)
        lanes[LANES * PRODUCT + lane] *= fma(present, 1.0 + change, 1.0)
        lanes[LANES * (HEAD + CURVATURE) + lane] = curvature
        _add_form(form, curvature, lanes, LANES * (HEAD + SYSTEM) + lane)


@inlined
def _add_curvature(form: Any, lanes: Floats, width: int) -> None:
    """Take −2 λ(ξ) from the tile before, and add the factor to this tile of the system."""
    for lane in range(width):
        curvature = lanes[LANES * CURVATURE + lane]
        lanes[LANES * (TILE_ROWS + CURVATURE) + lane] = curvature
        _add_form(form, curvature, lanes, LANES * (TILE_ROWS + SYSTEM) + lane)


@inlined
def _evaluate_form(form: Any, lanes: Floats, at: int, start: float) -> float:
    """Return `start` plus a tile of a form, with the moments of a lane for x̂ x̂ᵀ."""
    total = fma(form[0], lanes[at], start)
    total = fma(form[1], lanes[at + LANES], total)
    total = fma(form[2], lanes[at + 2 * LANES], total)
    total = fma(form[3], lanes[at + 3 * LANES], total)
    total = fma(form[4], lanes[at + 4 * LANES], total)
    return float(fma(form[5], lanes[at + 5 * LANES], total))


@inlined
def _add_form(form: Any, factor: float, lanes: Floats, at: int) -> None:
    """Add a multiple of a tile of a form to the system of a lane."""
    lanes[at] = fma(form[0], factor, lanes[at])
    lanes[at + LANES] = fma(form[1], factor, lanes[at + LANES])
    lanes[at + 2 * LANES] = fma(form[2], factor, lanes[at + 2 * LANES])
    lanes[at + 3 * LANES] = fma(form[3], factor, lanes[at + 3 * LANES])
    lanes[at + 4 * LANES] = fma(form[4], factor, lanes[at + 4 * LANES])
    lanes[at + 5 * LANES] = fma(form[5], factor, lanes[at + 5 * LANES])


@inlined
def _root_and_expm1(square: float) -> tuple[float, float]:
    """Return ξ = √square, and exp(−ξ) − 1 accurately for small ξ."""
    xi = math.sqrt(square if square > 1e-200 else 1e-200)
    return xi, expm1_minus(xi)


@inlined
def expm1_minus(xi: float) -> float:
    """Return exp(−ξ) − 1 for ξ >= 0."""
    scale, change = _split_exp(xi)
    return float(fma(scale, change, scale - 1.0))


@inlined
def exp_minus(xi: float) -> float:
    """Return exp(−ξ) for ξ >= −700, and exp(−700) if ξ > 700."""
    scale, change = _split_exp(xi)
    return float(fma(scale, change, scale))


@inlined
def add_multiple(factor: float, values: Floats, out: Floats) -> None:
    """Add a multiple of a row to another."""
    for lane in range(len(out)):
        out[lane] = fma(factor, values[lane], out[lane])


@inlined
def subtract_logarithms(product: Floats, out: Floats) -> None:
    """Subtract the logarithms of products of factors, and begin new products."""
    for lane in range(len(product)):
        out[lane] -= math.log(product[lane])
        product[lane] = 1.0


@inlined
def exp_small(x: float) -> float:
    """Return exp(x) for |x| <= log(2) / 2."""
    return float(fma(x, _expm1_ratio(x), 1.0))


@inlined
def _split_exp(xi: float) -> tuple[float, float]:
    """Split exp(−ξ) into 2**k and 1 + change."""
    capped = xi if xi < 700.0 else 700.0  # exp(−700) is negligible, but not yet subnormal
    shifted = fma(capped, -1.0 / _LN_2, _TO_INTEGER)
    k = shifted - _TO_INTEGER
    r = fma(k, -_LN_2, -capped)  # the rounding error of _LN_2, times k, is negligible
    return _power_of_two(shifted), r * _expm1_ratio(r)


@inlined
def _expm1_ratio(r: float) -> float:
    """Return (exp(r) − 1) / r for |r| <= log(2) / 2."""
    p = _EXPM1[-1]
    for power in range(len(_EXPM1) - 2, -1, -1):
        p = fma(p, r, _EXPM1[power])
    return float(p)


@inlined
def dot_lanes(a: Floats, b: Floats, folded: Floats) -> float:
    """Return the inner product of two rows, summed within vector lanes, then across them."""
    for j in range(len(folded)):
        total = 0.0
        for first in range(0, LANES, VECTOR):
            total = fma(a[first + j], b[first + j], total)
        folded[j] = total
    even = (folded[0] + folded[4]) + (folded[2] + folded[6])
    odd = (folded[1] + folded[5]) + (folded[3] + folded[7])
    return float(even + odd)
