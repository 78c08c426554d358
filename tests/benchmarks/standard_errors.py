"""Standard errors of latent-trait models against one pass of the fit.

python -m tests.benchmarks standard_errors

Prints CPU seconds for rows in memory, on two threads. A pass is one E-step and M-step. `errors`
covers everything after the last pass: standard errors and fit statistics. The first table shows
fits by quadrature; the second shows fits by expectation propagation (EP), and also how long an EP
pass takes relative to a variational pass.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit

from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.fit_pass import (
    collect_pass_statistics,
    fit_pass,
)
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.latent_trait.model import LatentTrait
from tests.benchmarks._measure import Table
from tests.support.strategies import DenseData, make_memory_rows

SIZES = ((20, 1, 200_000), (24, 3, 100_000), (100, 1, 200_000), (250, 2, 100_000))
LARGEST = (500, 1, 1_000_000)
EP_SIZES = ((100, 5, 20_000), (500, 5, 20_000))


def measure(
    n_features: int, q: int, n_rows: int, estimator: str = "quadrature"
) -> tuple[float, float]:
    """Return the CPU seconds of one pass, and of everything after the last pass."""
    rng = np.random.default_rng(0)
    weights, offsets = rng.uniform(0.5, 1.5, (n_features, q)), rng.uniform(-1.5, 1.5, n_features)
    X = np.empty((n_rows, n_features), np.uint8)
    for at in np.array_split(np.arange(n_rows), max(1, n_rows // 50_000)):
        probabilities = expit(rng.standard_normal((len(at), q)) @ weights.T + offsets)
        X[at] = rng.random(probabilities.shape, np.float32) < probabilities
    rows = make_memory_rows(DenseData(X), [n_rows // 20] * 20)
    settings: dict[str, Any] = {"estimator": estimator}
    model, executor = LatentTrait(n_components=q, **settings), ThreadsExecutor(2)
    initial_state = initialize_fit(model, collect_first_statistics(model, rows, executor, 0), 0)
    state = model.warm_start(
        initial_state, initial_state.params.with_items(weights=weights, offsets=offsets)
    )
    for _ in range(2):  # the first pass compiles the kernels
        clock = time.process_time()
        statistics = collect_pass_statistics(model, state, rows, executor, 0)
        next_state = fit_pass(model, state, rows, executor, 0, statistics)
        pass_seconds = time.process_time() - clock
    final_state = replace(
        model.finish(replace(state, auxiliary=next_state.auxiliary), statistics), done=True
    )
    clock = time.process_time()
    fit_model(model, rows, executor, 0, state=final_state)
    return pass_seconds, time.process_time() - clock


def main() -> None:
    """Print both tables."""
    measure(5, 1, 2000)  # import and compile
    columns = (
        *("items:d", "traits:d", "rows:10,d", "pass CPU s:.2f", "errors CPU s:.2f"),
        "errors / pass:.1f",
    )
    print("quadrature")
    table = Table(*columns)
    for size in (*SIZES, LARGEST):
        pass_seconds, error_seconds = measure(*size)
        table.add(*size, pass_seconds, error_seconds, error_seconds / pass_seconds)
    print("expectation propagation")
    table = Table(*columns, "EP / variational:.1f")
    for size in EP_SIZES:
        variational_seconds, _ = measure(*size, "variational")
        pass_seconds, error_seconds = measure(*size, "ep")
        ratios = error_seconds / pass_seconds, pass_seconds / variational_seconds
        table.add(*size, pass_seconds, error_seconds, *ratios)


if __name__ == "__main__":
    main()
