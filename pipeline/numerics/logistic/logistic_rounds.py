"""Rounds of the logistic bound on packed rows, a word of each feature at a time.

The bound on log p(t, x) is −½ x̂ᵀ S x̂ − ½ gap. The triangle of S, the system, is collected from
the features and then solved where it is. A row whose bound rests leaves its lane, and the others
move up, so that the lanes in use are full. See `logistic_lanes`, where the arithmetic is.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from pipeline.numerics.logistic.logistic_lanes import (
    CURVATURE,
    GAP,
    HEAD,
    LANE_KERNEL_OPTIONS,
    LANES,
    PRESENT,
    PRODUCT,
    SIGN,
    TILE,
    TILE_ROWS,
    VECTOR,
    Floats,
    Integers,
    Words,
    add_features,
    copy,
    dot_lanes,
    fill,
    fma,
    get_lane_row,
    get_moment,
    get_system_entry,
    kernel,
    set_present,
    set_signs,
)

_FACTORS_PER_LOG = 1000  # features; the product of as many 1 + exp(−ξ) <= 2 does not overflow


class InterleavedRows(NamedTuple):
    """Packed rows, the words of all features side by side."""

    values: Words  # (n_words, n_features)
    observed: Words  # (n_words, n_features), or (n_words, 0) when every value is there
    n_samples: int


class LogisticParameters(NamedTuple):
    """Parameters, and where entry (k, l) is in a packed triangle."""

    weights: Floats  # (n_features, q + 1), ŵ_i
    forms: Floats  # (n_features, padded), coefficients of (ŵ_iᵀ x̂)² in x̂_k x̂_l, k <= l
    place: Integers  # (q + 1, q + 1)


class LanePosteriors(NamedTuple):
    """Posteriors, those of row l of word w at [w, ..., l]."""

    system: Floats  # (n_words, packed, LANES): −C, −μ and a rest
    bound: Floats  # (n_words, LANES)
    rounds: Integers  # (n_words, LANES)


class _LaneWorkspace(NamedTuple):
    """What is in the lanes."""

    rows: Integers  # (LANES,), which row of the word
    bound: Floats  # (LANES,), of the round before
    signs: Floats  # (q + 1, LANES), Σ_i (1 − 2 t_i) ŵ_i
    lanes: Floats  # the rows above


@njit(**LANE_KERNEL_OPTIONS, cache=True)
def estimate_posteriors(
    bits: InterleavedRows,
    model: LogisticParameters,
    tol: float,
    max_rounds: int,
    found: LanePosteriors,
) -> None:
    """Write posteriors to `found`: each row has rounds until its own bound rests."""
    work = _allocate(model)
    for w in range(len(bits.values)):
        n_active, rounds = min(LANES, bits.n_samples - LANES * w), 0
        _start_word(bits.values[w], bits.observed[w], model, work)
        while n_active > 0:
            rounds += 1
            width = -(-n_active // VECTOR) * VECTOR
            _collect_system(bits.observed[w], model, work, width)
            _solve_system(model.place, work.lanes, width)
            n_active = _retire_lanes(n_active, rounds, tol, rounds == max_rounds, work, found, w)
            _set_moments(model.place, work.lanes, width)


@njit(**LANE_KERNEL_OPTIONS, cache=True)
def add_statistics(
    bits: InterleavedRows,
    model: LogisticParameters,
    found: LanePosteriors,
    curvature: Floats,
    target: Floats,
) -> None:
    """Add what the M-step needs to (n_features, packed) and (n_features, q + 1).

    Each ξ is set from the posterior found.
    """
    work, place, folded = _allocate(model), model.place, np.empty(VECTOR)
    rows, lanes, q = work.rows, work.lanes, len(model.place) - 1
    _number_lanes(rows, lanes)
    for w in range(len(bits.values)):
        for s in range(curvature.shape[1]):
            copy(found.system[w, s], get_system_entry(lanes, s))
        _set_moments(place, lanes, len(rows))
        for s in range(curvature.shape[1]):
            fill(get_moment(lanes, s)[bits.n_samples - LANES * w :], 0.0)
        for i in range(len(target)):
            add_features(bits.observed[w], model.forms, i, i + 1, rows, lanes, len(rows))
            set_signs(bits.values[w, i], lanes)
            for s in range(curvature.shape[1]):
                factor = get_lane_row(lanes, HEAD + CURVATURE)
                curvature[i, s] += dot_lanes(factor, get_moment(lanes, s), folded)
            for k in range(q + 1):
                mean = get_moment(lanes, place[k, q])
                target[i, k] -= 0.5 * dot_lanes(get_lane_row(lanes, SIGN), mean, folded)


@kernel
def _allocate(model: LogisticParameters) -> _LaneWorkspace:
    n_tiles = model.forms.shape[1] // TILE
    return _LaneWorkspace(
        np.empty(LANES, np.int64),
        np.empty(LANES),
        np.empty((len(model.place), LANES)),
        np.zeros(LANES * (HEAD + TILE_ROWS * n_tiles)),
    )


@kernel
def _number_lanes(rows: Integers, lanes: Floats) -> None:
    """Give each row of a word the lane of its own number."""
    for lane in range(LANES):
        rows[lane] = lane
        lanes[LANES * PRESENT + lane] = 1.0


@kernel
def _start_word(
    values: Words, observed: Words, model: LogisticParameters, work: _LaneWorkspace
) -> None:
    """Give each row its lane, the sum of its signs, and the moments of the prior."""
    lanes, place = work.lanes, model.place
    _number_lanes(work.rows, lanes)
    fill(work.bound, -np.inf)
    for k in range(len(place)):
        fill(work.signs[k], 0.0)
        for j in range(k + 1):
            fill(get_moment(lanes, place[j, k]), 1.0 if j == k else 0.0)
    for i in range(len(values)):
        if len(observed) > 0:
            set_present(observed[i], work.rows, lanes, LANES)
        set_signs(values[i], lanes)
        for k in range(len(place)):
            weight, total = model.weights[i, k], work.signs[k]
            for lane in range(LANES):
                total[lane] = fma(weight, lanes[LANES * SIGN + lane], total[lane])


@kernel
def _collect_system(
    observed: Words, model: LogisticParameters, work: _LaneWorkspace, width: int
) -> None:
    """Sum up the system and the gap from prior and features.

    The blocks of S are I − 2 Σ λ w wᵀ, Σ (½ − t − 2 λ b) w and Σ (1 − 2 t) b − 2 λ b².
    """
    lanes, place, n_features = work.lanes, model.place, len(model.forms)
    q = len(place) - 1
    for k in range(q + 1):
        for j in range(k + 1):
            fill(get_system_entry(lanes, place[j, k]), 1.0 if j == k else 0.0)
    for k in range(q + 1):
        copy(work.signs[k], get_system_entry(lanes, place[k, q]))
    fill(get_lane_row(lanes, GAP), 0.0)
    for start in range(0, n_features, _FACTORS_PER_LOG):
        stop = min(start + _FACTORS_PER_LOG, n_features)
        fill(get_lane_row(lanes, PRODUCT), 1.0)
        add_features(observed, model.forms, start, stop, work.rows, lanes, width)
        for lane in range(width):
            lanes[LANES * GAP + lane] += 2.0 * math.log(lanes[LANES * PRODUCT + lane])
    for k in range(q + 1):
        for j in range(k):
            twice = get_system_entry(lanes, place[j, k])  # as a form has 2 S_jk x̂_j x̂_k
            for lane in range(width):
                twice[lane] *= 0.5


@kernel
def _solve_system(place: Integers, lanes: Floats, width: int) -> None:
    """Sweep all columns but the last: the system becomes −C, −μ and c − μᵀ C⁻¹ μ.

    The sweep operator on packed triangles. −log det C goes to the gap.
    """
    m = len(place)
    scaled, gap = get_lane_row(lanes, SIGN), get_lane_row(lanes, GAP)
    for k in range(m - 1):
        pivot = get_system_entry(lanes, place[k, k])
        for lane in range(width):
            value = pivot[lane] if pivot[lane] > 1.0 else 1.0  # S >= I, so below is rounding
            gap[lane] += math.log(value)
            pivot[lane] = -1.0 / value
        for i in range(m):
            if i != k:
                left = get_system_entry(lanes, place[i, k])
                for lane in range(width):
                    scaled[lane] = left[lane] * pivot[lane]
                for j in range(i, m):
                    if j != k:
                        right, out = (
                            get_system_entry(lanes, place[j, k]),
                            get_system_entry(lanes, place[i, j]),
                        )
                        for lane in range(width):
                            out[lane] = fma(scaled[lane], right[lane], out[lane])
                for lane in range(width):
                    left[lane] = -scaled[lane]


@kernel
def _retire_lanes(
    n_active: int,
    rounds: int,
    tol: float,
    is_last: bool,
    work: _LaneWorkspace,
    found: LanePosteriors,
    w: int,
) -> int:
    """Write down rows whose bound rests, and move the others up; their number."""
    lanes, packed = work.lanes, found.system.shape[1]
    rest, gap = get_system_entry(lanes, packed - 1), get_lane_row(lanes, GAP)
    kept = 0
    for lane in range(n_active):
        row, bound = work.rows[lane], -0.5 * (rest[lane] + gap[lane])
        if is_last or abs(bound - work.bound[lane]) < tol:
            found.bound[w, row], found.rounds[w, row] = bound, rounds
            for s in range(packed):
                found.system[w, s, row] = get_system_entry(lanes, s)[lane]
        else:
            work.rows[kept], work.bound[kept] = row, bound
            for k in range(len(work.signs)):
                work.signs[k, kept] = work.signs[k, lane]
            for s in range(packed):
                get_system_entry(lanes, s)[kept] = get_system_entry(lanes, s)[lane]
            kept += 1
    return kept


@kernel
def _set_moments(place: Integers, lanes: Floats, width: int) -> None:
    """Set ⟨x̂ x̂ᵀ⟩ from a solved system."""
    q = len(place) - 1
    for k in range(q):
        mean, first = get_system_entry(lanes, place[k, q]), get_moment(lanes, place[k, q])
        for lane in range(width):
            first[lane] = -mean[lane]
        for j in range(k + 1):
            other, covariance = (
                get_system_entry(lanes, place[j, q]),
                get_system_entry(lanes, place[j, k]),
            )
            second = get_moment(lanes, place[j, k])
            for lane in range(width):
                second[lane] = fma(mean[lane], other[lane], -covariance[lane])
    fill(get_moment(lanes, place[q, q]), 1.0)
