"""One trial of the latent-trait model: a fit by one estimator, its errors and its time.

M. E. Tipping, "Probabilistic visualisation of high-dimensional binary data" (NIPS 1998), compares
the variational fit with one over 500 random draws of x. Quadrature is added as a third estimator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.experiments.base import Array, Bits, pack_rows_in_memory
from pipeline.data.blocks import BinaryBlock, RowSource, pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.numerics.logistic.centred_points import TraitItems, posterior_by_quadrature
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    draw_nodes,
    drop_light_nodes,
    gauss_hermite,
    node_posterior,
)

Estimator = Literal["variational", "sampling", "quadrature"]

ESTIMATORS: tuple[Estimator, ...] = ("variational", "sampling", "quadrature")
N_DRAWS, NODES_PER_AXIS = 500, 41
NEAR_NATS = 0.01
"""Nats per row: a fit is timed until its objective is this close to its final value."""
_N_NODES: Mapping[Estimator, int | None] = {
    "variational": None,
    "sampling": N_DRAWS,
    "quadrature": NODES_PER_AXIS,
}
_TOL, _MAX_ITER = 1e-8, 2000
_STEP, _REACH = 0.05, 6.0
_N_PIECES = 16  # of the grid, so that the densities of one piece fit in memory
_REACH_IN_DEVIATIONS, _POINTS_PER_AXIS = 6.0, 161


class FinePosterior(NamedTuple):
    """E(x | t) of each row, (n_rows, 2), and log P(t) in nats, (n_rows,)."""

    mean: Array
    log_likelihood: Array


class PlanePosterior(NamedTuple):
    """Posterior of x given one row, on the part of the plane where it is not negligible.

    `density` is p(x | t) on the grid, (n_y, n_x), with integral 1; `mean` and `covariance` have
    shapes (2,) and (2, 2).
    """

    x: Array
    y: Array
    density: Array
    mean: Array
    covariance: Array


def make_fine_nodes() -> Nodes:
    """Make nodes from −6 to 6 along both axes, weighted by the density of N(0, I)."""
    axis = np.arange(-_REACH, _REACH + _STEP / 2, _STEP)
    points = _grid_points(axis, axis)
    log_weights = -(points**2).sum(axis=1) / 2
    return Nodes(points, log_weights - scipy.special.logsumexp(log_weights))


def fine_posterior(block: BinaryBlock, weights: Array, offsets: Array) -> FinePosterior:
    """Integrate over the fine grid for each row; w (n_features, 2) and b (n_features,)."""
    X, observed, nodes = block.unpack_values(), block.unpack_mask(), make_fine_nodes()
    pieces = map(Nodes, *(np.array_split(array, _N_PIECES) for array in nodes))
    with limit_blas_threads():
        posteriors = [node_posterior(X, observed, weights, offsets, piece) for piece in pieces]
    logs = np.array([posterior.log_likelihood for posterior in posteriors])
    total = scipy.special.logsumexp(logs, axis=0)
    means = np.array([posterior.mean for posterior in posteriors])
    return FinePosterior((np.exp(logs - total)[:, :, None] * means).sum(axis=0), total)


def plane_posterior(
    row: Bits, observed: Bits | None, weights: Array, offsets: Array
) -> PlanePosterior:
    """Compute the posterior of x under P(t_i = 1 | x) = σ(w_i·x + b_i) and x ~ N(0, I).

    Parameters
    ----------
    row, observed
        Values and mask, 1 = observed, (n_features,); None if no value is missing.
    weights, offsets
        w (n_features, 2) and b (n_features,).
    """
    if weights.ndim != 2 or weights.shape[1] != 2:
        raise FitError(
            f"The weights have shape {weights.shape}, not (n_features, 2). Fit two components."
        )
    mask = None if observed is None else observed[None]
    near = posterior_by_quadrature(row[None], mask, TraitItems(weights, offsets))
    reach = _REACH_IN_DEVIATIONS * np.sqrt(np.diagonal(near.covariance[0]))
    x, y = np.linspace(near.mean[0] - reach, near.mean[0] + reach, _POINTS_PER_AXIS).T
    points = _grid_points(x, y)
    mask_row = np.ones(len(row)) if observed is None else observed
    eta = points @ weights.T + offsets
    logs = scipy.special.log_expit((2.0 * row - 1) * eta) @ mask_row - (points**2).sum(axis=1) / 2
    shares = np.exp(logs - scipy.special.logsumexp(logs))
    mean = shares @ points
    covariance = (points - mean).T @ (shares[:, None] * (points - mean))
    density = shares.reshape(_POINTS_PER_AXIS, _POINTS_PER_AXIS).T / ((x[1] - x[0]) * (y[1] - y[0]))
    return PlanePosterior(x, y, density, mean, covariance)


def _grid_points(x: Array, y: Array) -> Array:
    """List all points of a grid, (n_x n_y, 2); x varies slowest."""
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)


class NoisyPrototypes(NamedTuple):
    """Noisy copies of random prototypes, (n_rows, n_features), and the prototype of each row."""

    X: Bits
    prototype: NDArray[np.intp]


class TippingTrial(NamedTuple):
    """One fit; `seed` is for the initial weights and all draws."""

    block: BinaryBlock
    estimator: Estimator
    seed: int


class TippingResult(NamedTuple):
    """Results of a trial.

    Attributes
    ----------
    values
        `objective` in nats per row; `error_shared`, `error_fresh`, `error_quadrature` and
        `error_grid`, the mean negative log-likelihood of a row in nats: on the 500 draws that
        sampling is fitted with, on 500 others, by 41 x 41 Gauss–Hermite nodes and on a fine grid;
        `passes` of the fit; `cpu_seconds` and `wall_seconds` until the objective is within
        `NEAR_NATS` of its end; `converged`; `pinned`, the number of constant features;
        `steepest`, the largest absolute weight.
    params
        Final parameters, rotated to principal axes.
    """

    values: Mapping[str, float | int | bool]
    params: LatentTraitParams


class _TimedPass(NamedTuple):
    """CPU and wall seconds at the end of a pass, and the state at that time."""

    cpu: float
    wall: float
    state: FitState


def draw_noisy_prototypes(
    flip: float, n_copies: int, seed: int, n_prototypes: int = 3, n_features: int = 16
) -> NoisyPrototypes:
    """Draw prototypes of fair bits and noisy copies, with bits flipped at random.

    The same seed gives the same prototypes; a larger `flip` flips the same bits and more.
    """
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(2, size=(n_prototypes, n_features), dtype=np.uint8)
    prototype = np.repeat(np.arange(n_prototypes), n_copies)
    flipped = rng.random((len(prototype), n_features)) < flip
    return NoisyPrototypes(prototypes[prototype] ^ flipped.astype(np.uint8), prototype)


def check_rows(block: BinaryBlock) -> None:
    """Raise FitError if a feature is never observed, or there are fewer than three features."""
    model = make_trial_model("variational")
    initialize_fit(model, model.first_statistics.from_block(block), 0)


def run_tipping_trial(trial: TippingTrial) -> TippingResult:
    """Fit two components in memory until convergence; measure errors and time.

    CPU seconds are of this thread, which does all the work. Kernels are already compiled.
    """
    _warm_up()
    return _run_trial(trial)


@cache
def _warm_up() -> None:
    """Compile the kernels of all fits, once per process."""
    block = pack_block(draw_noisy_prototypes(0.1, 20, 0).X)
    for estimator in ESTIMATORS:
        _run_trial(TippingTrial(block, estimator, 0))


def _run_trial(trial: TippingTrial) -> TippingResult:
    block, estimator, seed = trial
    model, rows, executor = make_trial_model(estimator), _pack_block(block), SerialExecutor()
    first = collect_first_statistics(model, rows, executor, seed)
    passes: list[_TimedPass] = []
    state = initialize_fit(model, first, seed)
    cpu, wall = time.thread_time(), time.perf_counter()

    def record(state: FitState) -> None:
        passes.append(_TimedPass(time.thread_time() - cpu, time.perf_counter() - wall, state))

    end = fit_model(model, rows, executor, seed, state=state, checkpoint=record)
    near_end = next(p for p in passes if p.state.history[-1] >= end.history[-1] - NEAR_NATS)
    # The last objective belongs to these parameters. Afterwards the axes are rotated, which would
    # change the fixed draws of x.
    last = passes[-2].state.params if len(passes) > 1 else state.params
    shared = initialize_fit(make_trial_model("sampling"), first, seed).working
    values = {
        "objective": end.history[-1],
        **_integration_errors(block, last, Nodes(shared["points"], shared["log_weights"]), seed),
        "passes": end.iteration,
        "cpu_seconds": near_end.cpu,
        "wall_seconds": near_end.wall,
        "converged": end.converged,
        "pinned": len(state.auxiliary["constant"]),
        "steepest": float(np.abs(end.params.weights).max()),
    }
    return TippingResult(values, end.params)


def make_trial_model(estimator: Estimator) -> LatentTrait:
    """Make the model of a trial."""
    return LatentTrait(
        n_components=2,
        estimator=estimator,
        nodes=_N_NODES[estimator],
        constant_features="pin",
        max_iter=_MAX_ITER,
        tol=_TOL,
    )


def _pack_block(block: BinaryBlock) -> RowSource:
    rows = pack_rows_in_memory(block.unpack_values(), 1)
    if block.observed_words is None:
        return rows
    chunk: Any = rows.read(0)
    masked = chunk._replace(observed=block.observed_words)
    return replace(rows, read=(masked,).__getitem__)


def _integration_errors(
    block: BinaryBlock, params: LatentTraitParams, shared: Nodes, seed: int
) -> dict[str, float]:
    nodes = {
        "error_shared": shared,
        "error_fresh": draw_nodes(N_DRAWS, 2, np.random.default_rng([seed, 1])),
        "error_quadrature": drop_light_nodes(gauss_hermite(NODES_PER_AXIS, 2)),
    }
    model = (params.weights, params.offsets)
    X, observed = block.unpack_values(), block.unpack_mask()
    with limit_blas_threads():
        likelihoods = {
            name: node_posterior(X, observed, *model, points).log_likelihood
            for name, points in nodes.items()
        }
    likelihoods["error_grid"] = fine_posterior(block, *model).log_likelihood
    return {name: -float(values.mean()) for name, values in likelihoods.items()}
