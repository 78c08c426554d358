"""One trial of the latent-trait model: a fit by one estimator, its errors and its time.

M. E. Tipping, "Probabilistic visualisation of high-dimensional binary data" (NIPS 1998), sets the
variational fit against one over 500 random draws of x. Here quadrature is a third.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.experiments.binary_ica.trials import rows_in_memory
from flows.experiments.tipping.latent_plane import fine_posterior
from pipeline.data.blocks import BinaryBlock, Rows, block_of
from pipeline.executors.base import one_blas_thread
from pipeline.executors.serial import SerialExecutor
from pipeline.fitting.loop import collect_first, fit, start
from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    gauss_hermite,
    node_posterior,
    random_nodes,
)

Bits = NDArray[np.uint8]
Estimator = Literal["variational", "sampling", "quadrature"]

ESTIMATORS: tuple[Estimator, ...] = ("variational", "sampling", "quadrature")
DRAWS, NODES_AN_AXIS = 500, 41
NEAR = 0.01
"""Nats a row: a fit is timed until its objective is this near to where it ends."""
_NODES: Mapping[Estimator, int | None] = {
    "variational": None,
    "sampling": DRAWS,
    "quadrature": NODES_AN_AXIS,
}
_TOL, _MAX_ITER = 1e-8, 2000


class Prototypes(NamedTuple):
    """Noisy copies of random prototypes.

    Attributes
    ----------
    X
        (n_prototypes n_copies, n_features).
    prototype
        Of each row, (n_prototypes n_copies,).
    """

    X: Bits
    prototype: NDArray[np.intp]


class Trial(NamedTuple):
    """What to fit.

    Attributes
    ----------
    block
        The rows.
    estimator
        How.
    seed
        Of the weights at the start and of all draws.
    """

    block: BinaryBlock
    estimator: Estimator
    seed: int


class Tried(NamedTuple):
    """What a trial found.

    Attributes
    ----------
    values
        `objective` in nats a row; `error_shared`, `error_fresh`, `error_quadrature` and
        `error_grid`, the mean negative log-likelihood of a row in nats: on the 500 draws that
        sampling is fitted with, on 500 others, by 41 x 41 Gauss–Hermite nodes and on a fine grid;
        `passes` of the fit; `cpu_seconds` and `wall_seconds` until the objective is within `NEAR`
        of its end; `converged`; `pinned`, the number of constant features; `steepest`, the largest
        entry of the weights in size.
    params
        At the end, turned to principal axes.
    """

    values: Mapping[str, float | int | bool]
    params: LatentTraitParams


class _Pass(NamedTuple):
    """CPU and wall seconds at the end of a pass, and the state then."""

    cpu: float
    wall: float
    state: FitState


def noisy_prototypes(
    flip: float, n_copies: int, seed: int, n_prototypes: int = 3, n_features: int = 16
) -> Prototypes:
    """Draw prototypes of fair bits, and copies whose bits are flipped with a probability.

    The same seed gives the same prototypes; a larger `flip` flips more bits beside the same ones.
    """
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(2, size=(n_prototypes, n_features), dtype=np.uint8)
    prototype = np.repeat(np.arange(n_prototypes), n_copies)
    flipped = rng.random((len(prototype), n_features)) < flip
    return Prototypes(prototypes[prototype] ^ flipped.astype(np.uint8), prototype)


def check_rows(block: BinaryBlock) -> None:
    """Refuse rows that cannot be fitted, before any work is spent.

    Raises
    ------
    FitError
        If a feature is never observed, or there are fewer than three features.
    """
    model = latent_trait("variational")
    start(model, model.first.of_block(block), 0)


def tipping_trial(trial: Trial) -> Tried:
    """Fit two components in memory until the objective stands still; take errors and time.

    CPU seconds are those of this thread, which does all the work. Kernels are compiled before.

    Raises
    ------
    FitError
        If the rows cannot be fitted.
    """
    _compiled()
    return _tried(trial)


@cache
def _compiled() -> None:
    """Compile, once a process, every kernel of all fits."""
    block = block_of(noisy_prototypes(0.1, 20, 0).X)
    for estimator in ESTIMATORS:
        _tried(Trial(block, estimator, 0))


def _tried(trial: Trial) -> Tried:
    block, estimator, seed = trial
    model, rows, executor = latent_trait(estimator), _in_memory(block), SerialExecutor()
    first = collect_first(model, rows, executor, seed)
    passes: list[_Pass] = []
    state = start(model, first, seed)
    cpu, wall = time.thread_time(), time.perf_counter()

    def note(state: FitState) -> None:
        passes.append(_Pass(time.thread_time() - cpu, time.perf_counter() - wall, state))

    done = fit(model, rows, executor, seed, state=state, checkpoint=note)
    near = next(p for p in passes if p.state.history[-1] >= done.history[-1] - NEAR)
    # The last objective is of these. Then axes are turned, and fixed draws with other axes are
    # other draws.
    last = passes[-2].state.params if len(passes) > 1 else state.params
    shared = start(latent_trait("sampling"), first, seed).working
    values = {
        "objective": done.history[-1],
        **_errors(block, last, Nodes(shared["points"], shared["log_weights"]), seed),
        "passes": done.iteration,
        "cpu_seconds": near.cpu,
        "wall_seconds": near.wall,
        "converged": model.convergence(done).converged(done.history),
        "pinned": len(state.auxiliary["constant"]),
        "steepest": float(np.abs(done.params.weights).max()),
    }
    return Tried(values, done.params)


def latent_trait(estimator: Estimator) -> LatentTrait:
    """Give the model that a trial fits."""
    return LatentTrait(
        n_components=2,
        estimator=estimator,
        nodes=_NODES[estimator],
        constant_features="pin",
        max_iter=_MAX_ITER,
        tol=_TOL,
    )


def _in_memory(block: BinaryBlock) -> Rows:
    """Rows of one chunk that is the block."""
    rows = rows_in_memory(block.dense(), 1)
    if block.observed_words is None:
        return rows
    chunk: Any = rows.read(0)
    masked = chunk._replace(observed=block.observed_words)
    return replace(rows, read=(masked,).__getitem__)


def _errors(
    block: BinaryBlock, params: LatentTraitParams, shared: Nodes, seed: int
) -> dict[str, float]:
    """Give the mean negative log-likelihood of a row by each way to integrate."""
    nodes = {
        "error_shared": shared,
        "error_fresh": random_nodes(DRAWS, 2, np.random.default_rng([seed, 1])),
        "error_quadrature": gauss_hermite(NODES_AN_AXIS, 2),
    }
    model = (params.weights, params.offsets)
    X, observed = block.dense(), block.observed()
    with one_blas_thread():
        found = {
            name: node_posterior(X, observed, *model, those).log_likelihood
            for name, those in nodes.items()
        }
    found["error_grid"] = fine_posterior(block, *model).log_likelihood
    return {name: -float(values.mean()) for name, values in found.items()}
