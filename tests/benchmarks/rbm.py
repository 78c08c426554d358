"""One pass of the RBM model against one epoch of scikit-learn's BernoulliRBM.

python -m tests.benchmarks rbm

Prints median CPU seconds for rows in memory; the ratio is scikit-learn's time divided by ours. Both
use the same batch sizes and one step of persistent chains. Our model holds out a twentieth of the
rows, which it scores instead of training on them.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from sklearn.neural_network import BernoulliRBM

from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, initialize_fit
from pipeline.models.rbm import RestrictedBoltzmannMachine
from tests.benchmarks._measure import Table, alternate, draw_factor_rows
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS, N_FEATURES, N_HIDDEN, BATCHES = 100_000, 200, 50, (10, 100, 1000)


def main() -> None:
    """Print one line per batch size."""
    X, serial = draw_factor_rows(N_ROWS, N_FEATURES), SerialExecutor()
    rows, floats = make_memory_rows(DenseData(X), [N_ROWS // 10] * 10), X.astype(np.float32)
    table = Table("batch size:d", "scikit-learn CPU s:.2f", "rbm CPU s:.2f", "ratio:6.2f")
    with limit_blas_threads():
        for batch in BATCHES:
            model = RestrictedBoltzmannMachine(n_components=N_HIDDEN, batch=batch)
            state = initialize_fit(model, collect_first_statistics(model, rows, serial, 0), 0)
            sklearn_model = BernoulliRBM(N_HIDDEN, batch_size=batch, n_iter=1, random_state=0)
            calls = {
                "scikit-learn": partial(sklearn_model.fit, floats),
                "rbm": partial(collect_pass_statistics, model, state, rows, serial, 0),
            }
            seconds = alternate(calls, clock=time.process_time)
            sklearn_seconds, pass_seconds = map(np.median, seconds.values())
            table.add(batch, sklearn_seconds, pass_seconds, sklearn_seconds / pass_seconds)


if __name__ == "__main__":
    main()
