"""A pass of the restricted Boltzmann machine, against an epoch of scikit-learn's.

`python -m tests.benchmarks.rbm`. Both take the same batches of one step of persistent chains over
rows in memory; ours packed, with a tenth of the rows left out and judged by.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from sklearn.neural_network import BernoulliRBM

from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import collect_first_statistics, collect_pass_statistics, initialize_fit
from pipeline.models.rbm import RestrictedBoltzmannMachine
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS, N_FEATURES, N_HIDDEN, BATCH = 100_000, 200, 50, 100
_ROUNDS = 5


def rows_of_factors(rng: np.random.Generator) -> np.ndarray:
    """Rows that depend on ten factors."""
    z = rng.standard_normal((N_ROWS, 10)).astype(np.float32)
    noise = rng.standard_normal((N_ROWS, N_FEATURES), dtype=np.float32)
    mixing = rng.standard_normal((10, N_FEATURES)).astype(np.float32)
    return (0.5 * z @ mixing + noise > 0.7).astype(np.uint8)


def core_seconds(function: Callable[[], object]) -> float:
    """Take the time of one call."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def main() -> None:
    """Print core seconds of an epoch, and the ratio of medians."""
    X = rows_of_factors(np.random.default_rng(0))
    model = RestrictedBoltzmannMachine(n_components=N_HIDDEN, batch=BATCH)
    rows, serial = make_memory_rows(DenseData(X), [N_ROWS // 10] * 10), SerialExecutor()
    state = initialize_fit(model, collect_first_statistics(model, rows, serial, 0), 0)
    theirs = BernoulliRBM(N_HIDDEN, batch_size=BATCH, n_iter=1, random_state=0)
    floats = X.astype(np.float32)
    ways: dict[str, Callable[[], object]] = {
        "scikit-learn": lambda: theirs.fit(floats),
        "rbm": lambda: collect_pass_statistics(model, state, rows, serial, 0),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with limit_blas_threads():
        for name in [*ways] * _ROUNDS:
            taken[name].append(core_seconds(ways[name]))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    for name, seconds in medians.items():
        print(f"{name:13s} {seconds:.2f} core s an epoch, {seconds / medians['scikit-learn']:.2f}")


if __name__ == "__main__":
    main()
