"""Noisy-OR networks: Gibbs sweeps, and passes on two workers against one.

python -m tests.benchmarks noisy_or

Prints median wall seconds for 100,000 rows (sweeps) and 200,000 rows (passes) of 64 features and 16
hidden units.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.models.noisy_or import NoisyOr, NoisyOrParams
from pipeline.models.noisy_or.gibbs import sample_states
from pipeline.models.state import FitState
from storage.dataset.dataset import BinaryDataset
from tests.benchmarks._measure import measure_median
from tests.support.data import make_test_row_source, write_arrays
from tests.support.worker_processes import worker_processes

N_ROWS, N_FEATURES, N_UNITS, N_CHUNKS = 100_000, 64, 16, 16
MODEL = NoisyOr(n_components=N_UNITS)


def draw_network(rng: np.random.Generator) -> NoisyOrParams:
    """Draw a network whose units each turn on about a third of the features."""
    f = rng.random((N_FEATURES, N_UNITS)) * (rng.random((N_FEATURES, N_UNITS)) < 0.3)
    return NoisyOrParams.from_probabilities([f], [np.full(N_FEATURES, 1e-3), np.full(N_UNITS, 0.2)])


def main() -> None:
    """Print the seconds of sweeps and of passes."""
    rng = np.random.default_rng(0)
    params = draw_network(rng)
    X = MODEL.sample(params, 2 * N_ROWS, rng)
    sweeps = [measure_median(partial(sweep, params, X[:n])) for n in (N_ROWS, 2 * N_ROWS)]
    print(f"share of ones: {X.mean():.0%}")
    print(f"sweep over {N_ROWS:,} rows: {sweeps[0]:.2f} s")
    print(f"sweep over {2 * N_ROWS:,} rows: {sweeps[1]:.2f} s, ratio {sweeps[1] / sweeps[0]:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        words = -(-len(X) // (64 * N_CHUNKS))
        dataset = write_arrays(Path(folder) / "data.zarr", X, words_per_chunk=words)
        passes = [pass_seconds(dataset, params, n) for n in (1, 2)]
    print(f"pass on 1 worker process: {passes[0]:.2f} s")
    print(f"pass on 2 worker processes: {passes[1]:.2f} s, speed-up {passes[0] / passes[1]:.2f}")


def sweep(params: NoisyOrParams, X: np.ndarray) -> None:
    """Sample all hidden units once."""
    states = np.zeros((len(X), N_UNITS), np.uint8)
    rows = np.arange(len(X))
    sample_states(params.network, X, states, np.uint64(1), rows, 0.0, np.ones(1))


def pass_seconds(dataset: BinaryDataset, params: NoisyOrParams, n_workers: int) -> float:
    """Return the median seconds of a training pass."""
    values = {"searching": False, "apart": True, "judged": 0.0, "seed": 0}
    working = {name: np.array(value) for name, value in values.items()}
    state = FitState(params, working)
    with worker_processes(n_workers) as executor:
        return measure_median(
            partial(
                collect_pass_statistics, MODEL, state, make_test_row_source(dataset), executor, 0
            )
        )


if __name__ == "__main__":
    main()
