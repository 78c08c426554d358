"""Passes and codes by quadrature on a lattice, against other nodes.

`python -m tests.benchmarks.quadrature` prints two tables. Passes: CPU microseconds per row, and the
mean error of log P(t) over 300 rows, nats, against integration around each row's posterior. Codes:
CPU microseconds per row on the lattice and by that integration, for several shares of missing
values, and the largest difference of a mean, in standard deviations.
"""

import time
from collections.abc import Callable

import numpy as np
from scipy.special import expit

from pipeline.numerics.logistic.centred_nodes import centred_e_step
from pipeline.numerics.logistic.centred_points import TraitItems, posterior_by_quadrature
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    drop_light_nodes,
    gauss_hermite,
    node_statistics,
)
from pipeline.numerics.logistic.lattice_nodes import lattice_e_step
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice

SHAPES = ((20_000, 20, 1), (20_000, 20, 2), (20_000, 100, 2), (20_000, 500, 2), (5000, 20, 3))
NODES_PER_AXIS, REPEATS, N_CHECKED = {1: 60, 2: 61, 3: 21}, 3, 300


def draw_rows(n_rows: int, n_features: int, q: int) -> tuple[np.ndarray, TraitItems]:
    """Items whose slopes are 1.5 in root mean square."""
    rng = np.random.default_rng(1)
    weights = 1.5 / np.sqrt(q) * rng.standard_normal((n_features, q))
    offsets = rng.standard_normal(n_features)
    p = expit(rng.standard_normal((n_rows, q)) @ weights.T + offsets)
    return (rng.random(p.shape) < p).astype(np.uint8), TraitItems(weights, offsets)


def measure_cpu(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of some runs."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def print_passes() -> None:
    """Print the table of passes."""
    print(f"{'rows x items, traits':>22}{'nodes':>10}{'us per row':>12}{'error':>10}")
    for n_rows, n_features, q in SHAPES:
        X, items = draw_rows(n_rows, n_features, q)
        nodes: Nodes = drop_light_nodes(gauss_hermite(NODES_PER_AXIS[q], q))
        checked = X[:N_CHECKED]
        exact = posterior_by_quadrature(checked, None, items).log_likelihood.mean()
        methods: dict[str, Callable[[np.ndarray], float]] = {
            "lattice": lambda X, items=items: lattice_e_step(X, None, *items).log_likelihood,
            f"grid {NODES_PER_AXIS[q]}": lambda X, items=items, nodes=nodes: (
                node_statistics(X, None, *items, nodes).log_likelihood
            ),
            "centred": lambda X, items=items: centred_e_step(X, None, *items).log_likelihood,
        }
        for name, method in methods.items():
            error = method(checked) / len(checked) - exact
            seconds = measure_cpu(lambda method=method, X=X: method(X))
            shape = f"{n_rows:,} x {n_features}, {q}"
            print(f"{shape:>22}{name:>10}{1e6 * seconds / n_rows:>12.2f}{error:>10.0e}", flush=True)


def print_codes() -> None:
    """Print the table of codes."""
    print(f"{'items, traits, missing':>24}{'lattice':>10}{'own points':>12}{'difference':>12}")
    for n_features, q in ((20, 1), (200, 1), (20, 2), (200, 2), (20, 3), (200, 3)):
        X, items = draw_rows(N_CHECKED, n_features, q)
        for share in (0.0, 0.05, 0.3):
            observed = (np.random.default_rng(0).random(X.shape) >= share).astype(np.uint8)
            arguments = (X, observed, items)
            found, exact = posterior_on_lattice(*arguments), posterior_by_quadrature(*arguments)
            deviations = np.sqrt(np.diagonal(exact.covariance, axis1=1, axis2=2))
            difference = abs((found.mean - exact.mean) / deviations).max()
            times = [
                1e6 * measure_cpu(lambda f=f, arguments=arguments: f(*arguments)) / N_CHECKED
                for f in (posterior_on_lattice, posterior_by_quadrature)
            ]
            shape = f"{n_features}, {q}, {share:.0%}"
            print(f"{shape:>24}{times[0]:>10.1f}{times[1]:>12.1f}{difference:>12.0e}", flush=True)


def main() -> None:
    """Print both tables."""
    print_passes()
    print_codes()


if __name__ == "__main__":
    main()
