"""A pass of the restricted Boltzmann machine, against an epoch of scikit-learn's.

`python -m tests.benchmarks rbm`. Both take the same batches of one step of persistent chains over
rows in memory. Ours are packed; a twentieth of them is held out, takes no steps and is scored.
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
    """Print core seconds of an epoch, medians of some rounds, and their ratio."""
    X, serial = rows_of_factors(np.random.default_rng(0)), SerialExecutor()
    rows, floats = make_memory_rows(DenseData(X), [N_ROWS // 10] * 10), X.astype(np.float32)
    print("batch  scikit-learn  rbm   ratio")
    with limit_blas_threads():
        for batch in BATCHES:
            model = RestrictedBoltzmannMachine(n_components=N_HIDDEN, batch=batch)
            state = initialize_fit(model, collect_first_statistics(model, rows, serial, 0), 0)
            theirs = BernoulliRBM(N_HIDDEN, batch_size=batch, n_iter=1, random_state=0)
            pairs = []
            for _ in range(_ROUNDS):
                peer = core_seconds(lambda peer=theirs: peer.fit(floats))
                own = core_seconds(
                    lambda m=model, s=state: collect_pass_statistics(m, s, rows, serial, 0)
                )
                pairs.append((peer, own))
            peer, own = np.median(pairs, axis=0)
            print(f"{batch:5d}  {peer:12.2f}  {own:.2f}  {peer / own:5.2f}", flush=True)


if __name__ == "__main__":
    main()
