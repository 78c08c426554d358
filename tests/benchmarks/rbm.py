"""One pass of the RBM model against one epoch of scikit-learn's BernoulliRBM.

python -m tests.benchmarks rbm

Prints median CPU seconds for rows in memory; the ratio is scikit-learn's time divided by ours. Both
use the same batch sizes and one step of persistent chains. Our model holds out a twentieth of the
rows, which it scores instead of training on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from sklearn.neural_network import BernoulliRBM

from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import collect_first_statistics, collect_pass_statistics, initialize_fit
from pipeline.models.rbm import RestrictedBoltzmannMachine
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS, N_FEATURES, N_HIDDEN, BATCHES = 100_000, 200, 50, (10, 100, 1000)
REPEATS = 5


def draw_rows(rng: np.random.Generator) -> np.ndarray:
    """Draw rows that depend on ten factors."""
    z = rng.standard_normal((N_ROWS, 10)).astype(np.float32)
    noise = rng.standard_normal((N_ROWS, N_FEATURES), dtype=np.float32)
    mixing = rng.standard_normal((10, N_FEATURES)).astype(np.float32)
    return (0.5 * z @ mixing + noise > 0.7).astype(np.uint8)


def measure_cpu(function: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Print one line per batch size."""
    X, serial = draw_rows(np.random.default_rng(0)), SerialExecutor()
    rows, floats = make_memory_rows(DenseData(X), [N_ROWS // 10] * 10), X.astype(np.float32)
    print(f"{'batch size':>10} {'scikit-learn CPU s':>18} {'rbm CPU s':>9} {'ratio':>6}")
    with limit_blas_threads():
        for batch in BATCHES:
            model = RestrictedBoltzmannMachine(n_components=N_HIDDEN, batch=batch)
            state = initialize_fit(model, collect_first_statistics(model, rows, serial, 0), 0)
            sklearn_model = BernoulliRBM(N_HIDDEN, batch_size=batch, n_iter=1, random_state=0)
            pairs = []
            for _ in range(REPEATS):
                sklearn_seconds = measure_cpu(lambda m=sklearn_model: m.fit(floats))
                pass_seconds = measure_cpu(
                    lambda m=model, s=state: collect_pass_statistics(m, s, rows, serial, 0)
                )
                pairs.append((sklearn_seconds, pass_seconds))
            sklearn_seconds, pass_seconds = np.median(pairs, axis=0)
            ratio = sklearn_seconds / pass_seconds
            print(
                f"{batch:10d} {sklearn_seconds:18.2f} {pass_seconds:9.2f} {ratio:6.2f}", flush=True
            )


if __name__ == "__main__":
    main()
