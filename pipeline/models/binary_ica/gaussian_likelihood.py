"""The scaled Gaussian likelihood of segments' correlations, its gradient, and its maximisation.

Segment u has correlations C and the model Σ = Q (I + A S Aᵀ) Q. A (n_features, n_components) is the
same in all segments; S = diag(σ²) and the positive diagonal Q differ (Hyttinen, Barin-Pacela,
Hyvärinen, "Binary Independent Component Analysis: A Non-stationarity-based Approach", UAI 2022,
section 5 and algorithm 1; π/8 is absorbed in σ²). With D = Q⁻¹, L = A S^½, B = D L and G = I + LᵀL,
the determinant lemma and Woodbury's identity give

    −log det Σ − tr(C Σ⁻¹) = 2 log det D − log det G − Σ_i D_i² + tr(G⁻¹ Bᵀ C B),

which costs n² K per segment; no n × n matrix is inverted.

The matched matrix is (C + δ I) / (1 + δ). If the model is ridged too, it is (Σ + δ I) / (1 + δ)
with Σ = Q (I + L Lᵀ) Q of unit diagonal: that has the same form, with rows of L divided by √(1 + δ
+ δ ‖L_i‖²) and another Q. L-BFGS maximises the likelihood from several starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.errors import FitError
from pipeline.executors.base import MapFunction, limit_blas_threads
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.central_work import make_local_map
from pipeline.numerics.compilation import callee

R = TypeVar("R")

TOLERANCE = 1e-7
"""Tolerance of the stopping rule, far below the sampling error of any data."""
LBFGS_MEMORY = 20
_CHECK_INTERVAL = 10
_MAX_ITERATIONS = 20_000
_MAX_TRIALS = 20  # of the length of a step
_SUFFICIENT_DECREASE, _MAX_SLOPE = 1e-3, 0.9  # of the Wolfe conditions
# Limits far outside sensible solutions; they keep exponentials finite during early steps.
_MAX_LOG_VARIANCE, _MAX_LOG_PRECISION = 25.0, 12.0
_MAX_CORRELATION = 0.999  # limit of unshrunk correlations, which could otherwise exceed 1
_SLICE_BYTES = 4 << 20
_MAX_BYTES_TO_SEND = 16 << 20
_MIN_VALUE, _RELATIVE_VARIANCES = 0.05, (0.1, 5.0)
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}
_callee = callee(**_OPTIONS)


class ScaleMoments(NamedTuple):
    """What the levels of a feature tell about the scale of its latent variable in each segment.

    Attributes
    ----------
    log_scales
        log of the latent's standard deviation, up to a constant per feature,
        (n_segments, n_features).
    information
        Their precision per row, 0 where they are unknown, (n_segments, n_features).
    """

    log_scales: Array
    information: Array

    def select(self, segments: NDArray[Any]) -> ScaleMoments:
        """Return the scales of some segments, given a mask or indices."""
        return ScaleMoments(self.log_scales[segments], self.information[segments])


@dataclass(frozen=True)
class SegmentMoments:
    """Correlations to match."""

    correlation: Array  # unit diagonal, (n_matrices, n_features, n_features)
    varies: NDArray[np.bool_]  # whether each feature is used in a segment, (n_segments, n_features)
    weights: Array  # share of each segment in the objective, (n_segments,)
    # δ of the correlations and of the model in each segment, (n_segments,).
    ridge: Array
    model_ridge: Array
    # Index of each segment's matrix, ascending, (n_segments,); None if all are in order.
    places: NDArray[np.int64] | None = None
    scales: ScaleMoments | None = None

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        return len(self.weights)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.correlation.shape[1])

    def matrices(self, part: slice) -> Array:
        """Return the correlations of a range of segments, copied only if it is not contiguous."""
        if self.places is None:
            return self.correlation[part]
        places = self.places[part]
        is_contiguous = places[-1] + 1 - places[0] == len(places)
        return self.correlation[slice(places[0], places[-1] + 1) if is_contiguous else places]

    def mean(self) -> Array:
        """Return the weighted mean of the correlations, (n_features, n_features)."""
        shares = np.zeros(len(self.correlation))
        shares[slice(None) if self.places is None else self.places] = self.weights
        mean: Array = np.tensordot(shares, self.correlation, axes=1)
        return mean

    def slices(self) -> Iterator[slice]:
        """Split the segments into ranges that depend only on the shape."""
        step = max(1, _SLICE_BYTES // (8 * self.n_features**2))
        for first in range(0, self.n_segments, step):
            yield slice(first, min(first + step, self.n_segments))


class MatchSolution(NamedTuple):
    """Unknowns of the likelihood.

    `mixing` is A, (n_features, n_components), `log_variances` is log σ², (n_segments,
    n_components), and `log_precisions` is log D = −log Q, (n_segments, n_features).
    """

    mixing: Array
    log_variances: Array
    log_precisions: Array

    def to_vector(self) -> Array:
        """Return all unknowns in one vector."""
        return np.concatenate([part.ravel() for part in self])

    def model_correlation(self, segment: int) -> Array:
        """Return the correlations of a segment under the model, (n_features, n_features)."""
        signal = self.mixing * np.exp(0.5 * self.log_variances[segment])
        signal /= np.sqrt(1 + (signal**2).sum(axis=1, keepdims=True))
        implied: Array = signal @ signal.T
        np.fill_diagonal(implied, 1.0)
        return implied

    def unshrink_correlation(self, segment: int, ridge: float) -> Array:
        """Return the model's correlations as they would be without the shrinkage by the ridge."""
        implied = self.model_correlation(segment)
        implied *= 1 + ridge
        return np.clip(implied, -_MAX_CORRELATION, _MAX_CORRELATION, out=implied)


def solution_from_vector(
    flat: Array, n_segments: int, n_features: int, n_components: int
) -> MatchSolution:
    """Invert `MatchSolution.to_vector`."""
    n_entries = n_features * n_components
    n_shared = n_entries + n_segments * n_components
    return MatchSolution(
        flat[:n_entries].reshape(n_features, n_components),
        flat[n_entries:n_shared].reshape(n_segments, n_components),
        flat[n_shared:].reshape(n_segments, n_features),
    )


def likelihood_and_gradient(
    moments: SegmentMoments, solution: MatchSolution, map_parts: MapFunction = map
) -> tuple[float, MatchSolution]:
    """Compute the mean log-likelihood per row at a solution, up to a constant, and its gradient.

    The value is in nats; the gradient has the shape of the solution. `map_parts` maps over ranges
    of segments and does not change the result.
    """
    mixing, log_variances, log_precisions = solution
    by_variances, by_precisions = np.empty_like(log_variances), np.empty_like(log_precisions)
    mixing_rows, roots = mixing.T.copy(), np.exp(0.5 * log_variances)

    def fill_terms(part: slice) -> tuple[float, Array]:
        """Fill the gradients of some segments, and return their value and that by the mixing."""
        matrices, by_mixing = moments.matrices(part), np.zeros_like(mixing_rows)
        value = _sum_segment_terms(
            matrices if matrices.flags.c_contiguous else matrices.copy(),
            moments.varies[part],
            moments.weights[part],
            moments.ridge[part],
            moments.model_ridge[part],
            mixing_rows,
            roots[part],
            log_precisions[part],
            by_mixing,
            by_variances[part],
            by_precisions[part],
        )
        return value, by_mixing

    values, by_mixing = zip(*map_parts(fill_terms, moments.slices()), strict=True)
    value, gradient = sum(values), MatchSolution(sum(by_mixing).T, by_variances, by_precisions)
    if moments.scales is None:
        return value, gradient
    penalty, by_unknowns = _penalize_scales(moments, moments.scales, solution)
    added = (a - b for a, b in zip(gradient, by_unknowns, strict=True))
    return value - penalty, MatchSolution(*added)


def _penalize_scales(
    moments: SegmentMoments, scales: ScaleMoments, solution: MatchSolution
) -> tuple[float, MatchSolution]:
    """Return −log-likelihood of the scales, for the best constant of each feature, and gradients.

    D of the unridged model is the standard deviation of a latent with a noise of 1.
    """
    mixing, log_variances, log_precisions = solution
    variances, ridge = np.exp(log_variances), moments.model_ridge[:, None]
    power = variances @ mixing.T**2
    shift = 0.5 * np.log((1 + ridge * (1 + power)) / (1 + ridge))
    weights = moments.weights[:, None] * scales.information
    differences = log_precisions + shift - scales.log_scales
    total = weights.sum(axis=0)
    means = (weights * differences).sum(axis=0) / np.where(total > 0, total, 1.0)
    residuals = differences - means
    by_precision = weights * residuals
    by_power = by_precision * 0.5 * ridge / (1 + ridge * (1 + power))
    return 0.5 * float((by_precision * residuals).sum()), MatchSolution(
        2 * mixing * (by_power.T @ variances), variances * (by_power @ mixing**2), by_precision
    )


@_callee
def _multiply_rows(a: Array, b: Array, product: Array) -> None:
    """Fill the product a bᵀ, two rows of each at once, so that rows are read half as often."""
    for m in range(0, len(b), 2):
        next_m = min(m + 1, len(b) - 1)
        c, d = b[m], b[next_m]
        for k in range(0, len(a), 2):
            next_k = min(k + 1, len(a) - 1)
            e, f = a[k], a[next_k]
            ce = cf = de = df = 0.0
            for i in range(a.shape[1]):
                ce += c[i] * e[i]
                cf += c[i] * f[i]
                de += d[i] * e[i]
                df += d[i] * f[i]
            product[k, m], product[next_k, m] = ce, cf
            product[k, next_m], product[next_k, next_m] = de, df


@_callee
def _add_rows(weights: Array, rows: Array, total: Array) -> None:
    """Add weighted rows to a total, two at once."""
    for m in range(0, len(rows), 2):
        next_m = min(m + 1, len(rows) - 1)
        weight, next_weight = weights[m], weights[next_m] if next_m > m else 0.0
        row, next_row = rows[m], rows[next_m]
        for i in range(total.size):
            total[i] += weight * row[i] + next_weight * next_row[i]


@_callee
def _invert(G: Array, inverse: Array) -> float:
    """Fill the inverse of a positive definite matrix, and return log det; changes `G`."""
    n, log_det = len(G), 0.0
    for k in range(n):  # Cholesky factor, in the lower triangle
        for m in range(k):
            for i in range(k, n):
                G[i, k] -= G[i, m] * G[k, m]
        pivot = np.sqrt(G[k, k])
        log_det += 2.0 * np.log(pivot)
        for i in range(k, n):
            G[i, k] /= pivot
    for m in range(n):  # its inverse, in the rows of the upper triangle
        inverse[m, m] = 1.0 / G[m, m]
        for k in range(m + 1, n):
            total = 0.0
            for i in range(m, k):
                total -= G[k, i] * inverse[m, i]
            inverse[m, k] = total / G[k, k]
    for k in range(n):
        for m in range(k, n):
            total = 0.0
            for i in range(m, n):
                total += inverse[k, i] * inverse[m, i]
            inverse[k, m] = total
            inverse[m, k] = total
    return log_det


@njit(**_OPTIONS, cache=True)
def _sum_segment_terms(
    correlation: Array,
    varies: NDArray[np.bool_],
    weights: Array,
    ridges: Array,
    model_ridges: Array,
    mixing: Array,
    roots: Array,
    log_precisions: Array,
    by_mixing: Array,
    by_variances: Array,
    by_precisions: Array,
) -> float:
    """Return the value of some segments, add to the gradient of the mixing, and fill the others.

    Here `mixing` and its gradient are (n_components, n_features), so that inner loops run over
    features. `roots` are σ. With a ridge in the model, L has the rows of A S^½, `signal`, divided
    by `norms`.
    """
    k_all, n = mixing.shape
    shape = (k_all, n)
    # Numba compiles loops over parts of one larger array to code that is four times slower.
    signal, L, B = np.empty(shape), np.empty(shape), np.empty(shape)
    CB, by_L = np.empty(shape), np.empty(shape)
    norms, D, along = np.empty(n), np.empty(n), np.empty(n)
    G, inverse = np.empty((k_all, k_all)), np.empty((k_all, k_all))
    explained, weighted = np.empty((k_all, k_all)), np.empty((k_all, k_all))
    total = 0.0
    for u in range(len(weights)):
        for i in range(n):
            D[i] = np.exp(log_precisions[u, i]) if varies[u, i] else 0.0
            norms[i] = 0.0
        for k in range(k_all):
            for i in range(n):
                signal[k, i] = mixing[k, i] * roots[u, k] if varies[u, i] else 0.0
                norms[i] += signal[k, i] * signal[k, i]
        for i in range(n):
            norms[i] = np.sqrt(1.0 + model_ridges[u] * (1.0 + norms[i]))
        for k in range(k_all):
            for i in range(n):
                L[k, i] = signal[k, i] / norms[i]
                B[k, i] = D[i] * L[k, i]
        _multiply_rows(B, correlation[u], CB)
        for k in range(k_all):
            for i in range(n):
                CB[k, i] = (CB[k, i] + ridges[u] * B[k, i]) / (1.0 + ridges[u])
        _multiply_rows(L, L, G)
        for k in range(k_all):
            G[k, k] += 1.0
        log_det = _invert(G, inverse)
        _multiply_rows(B, CB, explained)

        value = -0.5 * log_det
        for i in range(n):
            if varies[u, i]:
                value += log_precisions[u, i] - 0.5 * D[i] * D[i]
                by_precisions[u, i] = 1.0 - D[i] * D[i]
            else:
                by_precisions[u, i] = 0.0
            along[i] = 0.0
        for k in range(k_all):
            for m in range(k_all):
                value += 0.5 * inverse[k, m] * explained[k, m]
        total += weights[u] * value

        # The gradient by L is D C B G⁻¹ − L (G⁻¹ + G⁻¹ Bᵀ C B G⁻¹).
        _multiply_rows(inverse, explained, G)
        _multiply_rows(G, inverse, weighted)
        for k in range(k_all):
            row = by_L[k]
            for i in range(n):
                row[i] = 0.0
            _add_rows(inverse[k], CB, row)
            for i in range(n):
                by_precisions[u, i] += B[k, i] * row[i]
                row[i] *= D[i]
            for m in range(k_all):
                weighted[k, m] = -(inverse[k, m] + weighted[k, m])
            _add_rows(weighted[k], L, row)
            for i in range(n):
                along[i] += model_ridges[u] * row[i] * L[k, i]
        for k in range(k_all):
            by_variance = 0.0
            for i in range(n):
                by_signal = weights[u] * (by_L[k, i] - along[i] * L[k, i]) / norms[i]
                by_mixing[k, i] += by_signal * roots[u, k]
                by_variance += by_signal * signal[k, i]
            by_variances[u, k] = 0.5 * by_variance
        for i in range(n):
            by_precisions[u, i] *= weights[u]
    return total


class Optimum(NamedTuple):
    """Result of one start.

    `objective` is the mean log-likelihood per row in nats, up to a constant, `iterations` the
    number of L-BFGS iterations, and `converged` whether the stopping rule was met.
    """

    solution: MatchSolution
    objective: float
    iterations: int
    converged: bool


def maximise_from_seeds(
    moments: SegmentMoments,
    n_components: int,
    seeds: Iterable[int],
    map_items: MapFunction,
    tol: float = TOLERANCE,
    extra_starts: Sequence[MatchSolution] = (),
    is_rough: bool = False,
) -> list[Optimum]:
    """Maximise from random starts, one per seed, and from `extra_starts`; return the best first.

    Results that did not stay finite are left out. `tol` and `is_rough` are those of `maximise`.
    `map_items` maps over starts. Large moments would have to be sent with every start, so then the
    starts run one after the other in this process, each on all its cores.
    """
    starts = [*extra_starts, *(draw_start(moments, n_components, seed) for seed in seeds)]
    fit = partial(maximise, moments, tol=tol, is_rough=is_rough)
    optima = map_or_thread(fit, starts, moments.correlation.nbytes, map_items)
    finite = [optimum for optimum in optima if np.isfinite(optimum.objective)]
    if not finite:
        raise FitError(
            "Every start of the search diverged. Use a smaller {regularization}.",
            parameter="regularization",
        )
    return sorted(finite, key=lambda optimum: -optimum.objective)


def map_or_thread(
    function: Callable[..., R], items: Iterable[Any], n_bytes: int, map_items: MapFunction
) -> list[R]:
    """Map if correlations of this size can be sent; otherwise run here, with threads inside."""
    if n_bytes <= _MAX_BYTES_TO_SEND:
        return list(map_items(function, items))
    # One pool for all evaluations: a new one for each would take a tenth of the time.
    with limit_blas_threads(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:

        def map_parts(terms: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
            check_cancelled()
            return pool.map(terms, parts)

        return list(make_local_map(map_items)(partial(function, map_parts=map_parts), items))


def draw_start(moments: SegmentMoments, n_components: int, seed: int) -> MatchSolution:
    """Return the leading eigenvectors of the mean correlation, rotated at random."""
    rng = np.random.default_rng(seed)
    n, mean = moments.n_features, moments.mean()
    values, vectors = scipy.linalg.eigh(mean, subset_by_index=(n - n_components, n - 1))
    turn = np.linalg.qr(rng.standard_normal((n_components, n_components)))[0]
    mixing = (vectors * np.sqrt(np.maximum(values, 0.1))) @ turn
    spread = 0.5 * rng.standard_normal((moments.n_segments, n_components))
    precision = np.tile(0.5 * np.log1p((mixing**2).sum(axis=1)), (moments.n_segments, 1))
    return MatchSolution(mixing, spread, precision)


def add_component(moments: SegmentMoments, solution: MatchSolution) -> MatchSolution:
    """Add a component along the leading eigenvector of the unexplained correlations."""
    n, mean = moments.n_features, np.zeros((moments.n_features,) * 2)
    for part in moments.slices():
        residual = _residual_correlation(moments, solution, part)
        mean += np.tensordot(moments.weights[part], residual, axes=1)
    (value,), vectors = scipy.linalg.eigh(mean, subset_by_index=(n - 1, n - 1))
    column = vectors[:, 0] * np.exp(solution.log_precisions).mean(axis=0)
    # The residuals are computed a second time, because storing them all takes too much memory.
    residuals = (_residual_correlation(moments, solution, part) for part in moments.slices())
    along = [
        np.einsum("i,uij,j->u", vectors[:, 0], residual, vectors[:, 0]) for residual in residuals
    ]
    variances = np.concatenate(along)
    # A start need not be exact, but variances must be positive.
    relative = np.log(np.clip(variances / max(value, _MIN_VALUE), *_RELATIVE_VARIANCES))
    return MatchSolution(
        np.column_stack([solution.mixing, np.sqrt(max(value, _MIN_VALUE)) * column]),
        np.column_stack([solution.log_variances, relative]),
        solution.log_precisions,
    )


def _residual_correlation(moments: SegmentMoments, solution: MatchSolution, part: slice) -> Array:
    """Return the correlations of some segments minus the solution's; 0 on the diagonal."""
    residuals: Array = moments.matrices(part) / (1 + moments.ridge[part, None, None])
    for matrix, segment in zip(residuals, range(part.start, part.stop), strict=True):
        matrix -= solution.model_correlation(segment)
        np.fill_diagonal(matrix, 0.0)
    return residuals


def maximise(
    moments: SegmentMoments,
    start: MatchSolution,
    tol: float = TOLERANCE,
    map_parts: MapFunction = map,
    is_rough: bool = False,
) -> Optimum:
    """Maximise the likelihood from one start.

    Stop if, over ten iterations, the objective rose by less than `tol` of its size (or of 1) and no
    column of the mixing turned by more than 1 − cosine = `tol`. If `is_rough`, the mean turn of the
    columns counts, weighted by the variance that they explain. A component that only fits noise
    turns for a thousand iterations, in which nothing changes that held-out rows could tell.
    `map_parts` maps over ranges of segments.
    """
    return _run_lbfgs(
        lambda point: likelihood_and_gradient(moments, point, map_parts),
        start,
        moments.weights,
        tol,
        is_rough,
    )


def maximise_variances(
    moments: SegmentMoments, n_rows: float, start: MatchSolution, map_parts: MapFunction = map
) -> Optimum:
    """Maximise the likelihood over variances and scales, with the mixing fixed.

    The log variances of a source have a normal prior about their mean over segments, with a
    standard deviation of 1 and the weight of one of the `n_rows` rows. It keeps a variance finite
    and positive if the correlations hardly determine it. `start` provides the mixing.
    """

    def posterior(point: MatchSolution) -> tuple[float, MatchSolution]:
        value, gradient = likelihood_and_gradient(moments, point, map_parts)
        deviations = point.log_variances - point.log_variances.mean(axis=0)
        return value - 0.5 * (deviations**2).sum() / n_rows, gradient._replace(
            mixing=np.zeros_like(point.mixing),
            log_variances=gradient.log_variances - deviations / n_rows,
        )

    return _run_lbfgs(posterior, start, moments.weights, TOLERANCE)


def _run_lbfgs(
    objective: Callable[[MatchSolution], tuple[float, MatchSolution]],
    start: MatchSolution,
    weights: Array,
    tol: float,
    is_rough: bool = False,
) -> Optimum:
    """Maximise an objective in units in which its curvature is similar along all unknowns.

    The Fisher information of a segment's log D is at least twice the weight of the segment, and
    that of log σ² at most half; it is the sum of all segments' for the mixing. Without these units
    the search takes two to four times as many iterations.
    """
    shape = (*start.log_precisions.shape, start.mixing.shape[1])
    roots = np.sqrt(weights)[:, None]
    units = MatchSolution(
        np.ones_like(start.mixing),
        np.broadcast_to(np.sqrt(2) / roots, start.log_variances.shape),
        np.broadcast_to(np.sqrt(0.5) / roots, start.log_precisions.shape),
    ).to_vector()

    # Clipped here, because the search has no bounds; they are hardly ever reached.
    limits = np.repeat(
        [np.inf, _MAX_LOG_VARIANCE, _MAX_LOG_PRECISION], [part.size for part in start]
    )

    def to_solution(x: Array) -> MatchSolution:
        flat = x * units
        if (np.abs(flat) > limits).any():
            flat = np.clip(flat, -limits, limits)
        return solution_from_vector(flat, *shape)

    def loss(x: Array) -> tuple[float, Array]:
        value, gradient = objective(to_solution(x))
        slopes = gradient.to_vector()
        slopes *= -units
        slopes[np.abs(x * units) > limits] = 0.0
        return -value, slopes

    stopping_rule = _StoppingRule(tol, start.mixing, to_solution, weights if is_rough else None)
    end, n_steps, is_lowest = _minimise(loss, start.to_vector() / units, stopping_rule)
    is_finite = bool(np.isfinite(end.x).all() and np.isfinite(end.value))
    return Optimum(
        to_solution(end.x),
        -end.value if is_finite else -np.inf,
        n_steps,
        # Rounding errors can end the search before the next check.
        is_lowest or stopping_rule.is_met(end),
    )


class _Point(NamedTuple):
    """Point of a search, with the value and the gradient there."""

    x: Array
    value: float
    gradient: Array


def _minimise(
    loss: Callable[[Array], tuple[float, Array]], x: Array, stopping_rule: _StoppingRule
) -> tuple[_Point, int, bool]:
    """Minimise by L-BFGS (Nocedal & Wright 2006, algorithm 7.5).

    Return the last point, the number of steps, and whether no step led lower. SciPy's L-BFGS-B
    takes the same steps, but needs as much time for them as the likelihood does.
    """
    point = _Point(x, *loss(x))
    # In single precision: reading the history takes most of the time, and it need not be exact.
    steps, changes = np.empty((2, LBFGS_MEMORY, x.size), np.float32)
    products, direction, n_stored = np.empty(LBFGS_MEMORY), np.empty(x.size), 0
    for n_steps in range(_MAX_ITERATIONS):
        slope = _find_direction(point.gradient, steps, changes, products, n_stored, direction)
        following = None
        if slope < 0:
            first_length = 1.0 if n_stored else 1 / np.sqrt(-slope)
            following = _search_line(loss, point, direction, slope, first_length)
        if following is None and n_stored:
            n_stored = 0  # The search goes on along the gradient.
            continue
        if following is None or following.value >= point.value:
            return point, n_steps, slope == 0 or following is not None
        row = n_stored % LBFGS_MEMORY
        steps[row], changes[row] = following.x - point.x, following.gradient - point.gradient
        products[row] = np.multiply(steps[row], changes[row], dtype=np.float64).sum()
        n_stored += int(products[row] > 0)
        point = following
        if stopping_rule.check(point, n_steps + 1):
            break
    return point, n_steps + 1, False


class _Trial(NamedTuple):
    """Length of a step that was tried, and the value and the slope along the direction there."""

    length: float
    value: float
    slope: float


def _search_line(
    loss: Callable[[Array], tuple[float, Array]],
    point: _Point,
    direction: Array,
    slope: float,
    length: float,
) -> _Point | None:
    """Search for a step that meets the strong Wolfe conditions; None if there is none.

    The best step and another one enclose a minimum, once there is another one (Moré, Thuente, ACM
    Transactions on Mathematical Software 20, 1994; without the auxiliary function).
    """
    best, widths = _Trial(0.0, point.value, slope), [np.inf, np.inf]
    other: _Trial | None = None
    for _ in range(_MAX_TRIALS):
        if length == best.length:
            break
        x = point.x + length * direction
        end = _Point(x, *loss(x))
        trial = _Trial(length, end.value, float((end.gradient * direction).sum()))
        is_narrow = other is not None and widths[-1] <= 0.1 * max(best.length, other.length)
        if trial.value <= point.value + _SUFFICIENT_DECREASE * length * slope and (
            is_narrow or abs(trial.slope) <= _MAX_SLOPE * abs(slope)
        ):
            return end
        if not np.isfinite(trial.value):
            length = 0.5 * (best.length + length)
            continue
        length = _choose_length(best, other, trial)
        if trial.value > best.value:
            other = trial
        else:
            best, other = trial, best if trial.slope * best.slope < 0 else other
        if other is not None:
            widths.append(abs(other.length - best.length))
            if widths[-1] >= 0.66 * widths[-3]:
                length = 0.5 * (best.length + other.length)
    return None


def _choose_length(best: _Trial, other: _Trial | None, trial: _Trial) -> float:
    """Choose the next length by interpolation (section 4 of the paper)."""
    ahead = trial.length - best.length
    cubic = _find_cubic_minimum(best, trial)
    if trial.value > best.value:
        bend = (best.value - trial.value) / ahead + best.slope
        quadratic = best.length + 0.5 * best.slope / bend * ahead
        is_nearer = abs(cubic - best.length) <= abs(quadratic - best.length)
        return cubic if is_nearer else 0.5 * (cubic + quadratic)
    change = trial.slope - best.slope
    secant = trial.length - trial.slope / change * ahead if change else np.inf
    if trial.slope * best.slope < 0:
        return max(cubic, secant, key=lambda length: abs(length - trial.length))
    longest = trial.length + 4.0 * ahead
    if abs(trial.slope) >= abs(best.slope):
        return longest if other is None else _find_cubic_minimum(other, trial)
    if (cubic - trial.length) * ahead <= 0:
        cubic = np.copysign(np.inf, ahead)  # It has no minimum ahead.
    by_distance = sorted((cubic, secant), key=lambda length: abs(length - trial.length))
    if other is None:
        return min(max(by_distance[1], trial.length + 1.1 * ahead if best.length else 0.0), longest)
    limit = trial.length + 0.66 * (other.length - trial.length)
    return min(by_distance[0], limit) if ahead > 0 else max(by_distance[0], limit)


def _find_cubic_minimum(a: _Trial, b: _Trial) -> float:
    """Return the minimum of the cubic with the values and slopes of two trials."""
    ahead = b.length - a.length
    theta = 3 * (a.value - b.value) / ahead + a.slope + b.slope
    root = -np.copysign(np.sqrt(max(theta * theta - a.slope * b.slope, 0.0)), ahead)
    denominator = 2 * root - b.slope + a.slope
    share = (root - b.slope + theta) / denominator if denominator else 0.5
    return float(b.length - share * ahead)


@njit(**_OPTIONS, cache=True)
def _find_direction(
    gradient: Array, steps: Array, changes: Array, products: Array, n_stored: int, direction: Array
) -> float:
    """Fill the direction −H g by the two-loop recursion; return its product with the gradient.

    `steps` and `changes` of the gradient are in the order of the steps, modulo their number, and
    `products` are their inner products.
    """
    n_rows, n = steps.shape
    first = max(0, n_stored - n_rows)
    shares = np.empty(n_rows)
    for i in range(n):
        direction[i] = -gradient[i]
    for place in range(n_stored - 1, first - 1, -1):
        row = place % n_rows
        step, change, share = steps[row], changes[row], 0.0
        for i in range(n):
            share += step[i] * direction[i]
        share /= products[row]
        for i in range(n):
            direction[i] -= share * change[i]
        shares[row] = share
    if n_stored:
        row, square = (n_stored - 1) % n_rows, 0.0
        change = changes[row]
        for i in range(n):
            square += change[i] * change[i]
        scale = products[row] / square
        for i in range(n):
            direction[i] *= scale
    for place in range(first, n_stored):
        row = place % n_rows
        step, change, share = steps[row], changes[row], 0.0
        for i in range(n):
            share += change[i] * direction[i]
        share = shares[row] - share / products[row]
        for i in range(n):
            direction[i] += share * step[i]
    slope = 0.0
    for i in range(n):
        slope += gradient[i] * direction[i]
    return slope


class _StoppingRule:
    """Stops L-BFGS once the solution no longer changes.

    With the weights of segments, columns count by the variance that they explain.
    """

    def __init__(
        self,
        tol: float,
        mixing: Array,
        to_solution: Callable[[Array], MatchSolution],
        weights: Array | None,
    ) -> None:
        self.tol, self.to_solution, self.weights = tol, to_solution, weights
        self.mixing, self.loss = mixing, np.inf

    def check(self, point: _Point, n_steps: int) -> bool:
        """Return at every tenth step whether the rule is met."""
        if n_steps % _CHECK_INTERVAL:
            return False
        if self.is_met(point):
            return True
        self.loss, self.mixing = point.value, self.to_solution(point.x).mixing.copy()
        return False

    def is_met(self, point: _Point) -> bool:
        """Return whether the solution has hardly changed since the last check."""
        is_flat = self.loss - point.value <= self.tol * max(1.0, abs(point.value))
        mixing, log_variances, _ = self.to_solution(point.x)
        turns = 1 - _column_cosines(mixing, self.mixing)
        if self.weights is None:
            return bool(is_flat and (turns <= self.tol).all())
        power = self.weights @ np.exp(log_variances) * (mixing**2).sum(axis=0)
        return bool(is_flat and power @ turns <= self.tol * power.sum())


def _column_cosines(a: Array, b: Array) -> Array:
    """Return the cosine of each pair of columns."""
    cosines: Array = (a * b).sum(axis=0) / np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
    return cosines
