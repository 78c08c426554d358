"""Maximise the scaled Gaussian likelihood by L-BFGS from several starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import MapFunction
from pipeline.executors.progress import make_local_map
from pipeline.executors.threads import ThreadsExecutor
from pipeline.models.binary_ica.moment_matching.objective import (
    MatchSolution,
    SegmentMoments,
    likelihood_and_gradient,
    solution_from_vector,
)

Array = NDArray[np.float64]
R = TypeVar("R")

TOLERANCE = 1e-7
"""Tolerance of the stopping rule, far below the sampling error of any data."""
_CHECK_INTERVAL = 10
_MAX_ITERATIONS = 20_000
LBFGS_MEMORY = 20
# Bounds far outside sensible solutions; they keep exponentials finite during early steps.
_MAX_LOG_VARIANCE, _MAX_LOG_PRECISION = 25.0, 12.0
_MAX_BYTES_TO_SEND = 8 << 20
_MIN_VALUE, _RELATIVE_VARIANCES = 0.05, (0.1, 5.0)


class Optimum(NamedTuple):
    """Result of one start.

    Attributes
    ----------
    solution
        The unknowns.
    objective
        Mean log-likelihood of a row in nats, up to a constant.
    iterations
        Number of L-BFGS iterations.
    converged
        Whether the stopping rule was met.
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
    also: Sequence[MatchSolution] = (),
) -> list[Optimum]:
    """Maximise from random starts and from given starts.

    Parameters
    ----------
    moments
        Correlations to match.
    n_components
        Number of components.
    seeds
        One per random start.
    map_items
        Map over starts. With large moments, which would have to be sent with every start, starts
        run one after the other in this process instead, each on all its cores.
    tol
        Tolerance of the stopping rule, see `maximise`.
    also
        Further starts.

    Returns
    -------
    list of Optimum
        Results that stayed finite, best first.

    Raises
    ------
    FitError
        If no result stayed finite.
    """
    starts = [*also, *(draw_start(moments, n_components, seed) for seed in seeds)]
    fit = partial(maximise, moments, tol=tol)
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
    threads = ThreadsExecutor(os.cpu_count() or 1)
    return list(make_local_map(map_items)(partial(function, spread=threads.map), items))


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
    # Computed a second time, instead of storing them for all segments.
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
    """Return the correlations of some segments minus those of the solution; 0 on the diagonal."""
    residuals: Array = moments.matrices(part) / (1 + moments.ridge[part, None, None])
    for matrix, segment in zip(residuals, range(part.start, part.stop), strict=True):
        matrix -= solution.model_correlation(segment)
        np.fill_diagonal(matrix, 0.0)
    return residuals


def maximise(
    moments: SegmentMoments, start: MatchSolution, tol: float = TOLERANCE, spread: MapFunction = map
) -> Optimum:
    """Maximise the likelihood from one start.

    Parameters
    ----------
    moments
        Correlations to match.
    start
        Starting point.
    tol
        Stop if, over ten iterations, the objective rose by less than `tol` of its size (or of 1)
        and no column of the mixing turned by more than 1 − cosine = `tol`.
    spread
        Map over ranges of segments.
    """
    return _run_lbfgs(lambda at: likelihood_and_gradient(moments, at, spread), start, tol)


def maximise_variances(
    moments: SegmentMoments, n_rows: float, start: MatchSolution, spread: MapFunction = map
) -> Optimum:
    """Maximise the likelihood over variances and scales, with the mixing fixed.

    The log variances of a source have a normal prior about their mean over segments, with a
    standard deviation of 1. It keeps a variance finite and positive if the correlations hardly
    determine it.

    Parameters
    ----------
    moments
        Correlations to match.
    n_rows
        Number of rows; the prior counts as one row.
    start
        Starting point, and the mixing.
    spread
        Map over ranges of segments.
    """

    def posterior(at: MatchSolution) -> tuple[float, MatchSolution]:
        value, gradient = likelihood_and_gradient(moments, at, spread)
        deviations = at.log_variances - at.log_variances.mean(axis=0)
        return value - 0.5 * (deviations**2).sum() / n_rows, gradient._replace(
            mixing=np.zeros_like(at.mixing),
            log_variances=gradient.log_variances - deviations / n_rows,
        )

    return _run_lbfgs(posterior, start, TOLERANCE)


def _run_lbfgs(
    objective: Callable[[MatchSolution], tuple[float, MatchSolution]],
    start: MatchSolution,
    tol: float,
) -> Optimum:
    """Run L-BFGS until the stopping rule is met."""
    shape = (*start.log_precisions.shape, start.mixing.shape[1])

    def loss(flat: Array) -> tuple[float, Array]:
        value, gradient = objective(solution_from_vector(flat, *shape))
        return -value, -gradient.to_vector()

    stopping_rule = _StoppingRule(
        tol, start.mixing, lambda flat: solution_from_vector(flat, *shape).mixing
    )
    result = scipy.optimize.minimize(
        loss,
        start.to_vector(),
        jac=True,
        method="L-BFGS-B",
        bounds=_bounds(start),
        callback=stopping_rule,
        options={
            "maxiter": _MAX_ITERATIONS,
            "maxfun": 2 * _MAX_ITERATIONS,
            "maxcor": LBFGS_MEMORY,
            "ftol": 0.0,
            "gtol": 0.0,
        },
    )
    finite = bool(np.isfinite(result.x).all())
    return Optimum(
        solution_from_vector(result.x, *shape),
        -float(result.fun) if finite else -np.inf,
        int(result.nit),
        stopping_rule.reached or bool(result.success),
    )


def _bounds(start: MatchSolution) -> scipy.optimize.Bounds:
    limit = np.repeat(
        [np.inf, _MAX_LOG_VARIANCE, _MAX_LOG_PRECISION], [part.size for part in start]
    )
    return scipy.optimize.Bounds(-limit, limit)


class _StoppingRule:
    """Stops L-BFGS once the solution no longer changes."""

    def __init__(self, tol: float, mixing: Array, mixing_of: Callable[[Array], Array]) -> None:
        self.tol, self.mixing_of = tol, mixing_of
        self.mixing, self.loss, self.iterations = mixing, np.inf, 0
        self.reached = False

    def __call__(self, intermediate_result: scipy.optimize.OptimizeResult) -> None:
        self.iterations += 1
        if self.iterations % _CHECK_INTERVAL:
            return
        loss = intermediate_result.fun
        mixing = self.mixing_of(intermediate_result.x).copy()
        risen = self.loss - loss <= self.tol * max(1.0, abs(loss))
        if risen and (_column_cosines(mixing, self.mixing) >= 1 - self.tol).all():
            self.reached = True
            raise StopIteration
        self.loss, self.mixing = loss, mixing


def _column_cosines(a: Array, b: Array) -> Array:
    """Return the cosine of each pair of columns."""
    cosines: Array = (a * b).sum(axis=0) / np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
    return cosines
