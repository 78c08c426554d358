"""What standard errors and fit statistics of the latent-trait model cost, in passes of its fit.

`python -m tests.benchmarks.standard_errors`: rows in memory, CPU seconds; a pass is one E-step and
M-step. The fits by quadrature come first, then those by expectation propagation, with a variational
pass for comparison.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit

from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.loop import (
    collect_first_statistics,
    collect_pass_statistics,
    fit_model,
    fit_pass,
    initialize_fit,
)
from pipeline.models.latent_trait.model import LatentTrait
from tests.support.strategies import DenseData, make_memory_rows

SIZES = ((20, 1, 200_000), (24, 3, 100_000), (100, 1, 200_000), (250, 2, 100_000))
LARGEST = (500, 1, 1_000_000)
BY_SITES = ((100, 5, 20_000), (500, 5, 20_000))


def measured(
    n_features: int, q: int, n_rows: int, estimator: str = "quadrature"
) -> tuple[float, float]:
    """CPU seconds of a pass, and of all that follows the last."""
    rng = np.random.default_rng(0)
    weights, offsets = rng.uniform(0.5, 1.5, (n_features, q)), rng.uniform(-1.5, 1.5, n_features)
    X = np.empty((n_rows, n_features), np.uint8)
    for at in np.array_split(np.arange(n_rows), max(1, n_rows // 50_000)):
        chances = expit(rng.standard_normal((len(at), q)) @ weights.T + offsets)
        X[at] = rng.random(chances.shape, np.float32) < chances
    rows = make_memory_rows(DenseData(X), [n_rows // 20] * 20)
    settings: dict[str, Any] = {"estimator": estimator}
    model, executor = LatentTrait(n_components=q, **settings), ThreadsExecutor(2)
    begun = initialize_fit(model, collect_first_statistics(model, rows, executor, 0), 0)
    state = model.warm_start(begun, replace(begun.params, weights=weights, offsets=offsets))
    for _ in range(2):  # the first compiles
        clock = time.process_time()
        statistics = collect_pass_statistics(model, state, rows, executor, 0)
        moved = fit_pass(model, state, rows, executor, 0, statistics)
        a_pass = time.process_time() - clock
    done = replace(model.finish(replace(state, auxiliary=moved.auxiliary), statistics), done=True)
    clock = time.process_time()
    fit_model(model, rows, executor, 0, state=done)
    return a_pass, time.process_time() - clock


def main() -> None:
    """Print a line a size."""
    measured(5, 1, 2000)  # imports
    for size in (*SIZES, LARGEST):
        a_pass, after = measured(*size)
        n_features, q, n_rows = size
        print(
            f"{n_features} items, {q} traits, {n_rows:,} rows: a pass {a_pass:.2f} CPU s, errors "
            f"and fit statistics {after:.2f} CPU s, {after / a_pass:.1f} passes"
        )
    for n_features, q, n_rows in BY_SITES:
        peer, _ = measured(n_features, q, n_rows, "variational")
        a_pass, after = measured(n_features, q, n_rows, "ep")
        print(
            f"{n_features} items, {q} traits, {n_rows:,} rows, by expectation propagation: a pass "
            f"{a_pass:.2f} CPU s, {a_pass / peer:.1f} variational passes; errors {after:.2f} CPU "
            f"s, {after / a_pass:.1f} passes"
        )


if __name__ == "__main__":
    main()
