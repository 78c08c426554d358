"""Lattice quadrature for latent traits against other quadrature rules.

python -m tests.benchmarks quadrature

The first table shows CPU microseconds per row of an E-step and the mean error of log P(x) in nats,
over 300 rows, relative to integration around each row's posterior. The second table shows CPU
microseconds per row of codes on the lattice and by that integration (`centred`), for several shares
of missing values, and the largest difference between the posterior means, in standard deviations.
"""

import time
from collections.abc import Callable

import numpy as np
from scipy.special import expit

from pipeline.numerics.logistic.categories.curves import LevelItems
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
from tests.benchmarks._measure import Table, Work, measure_best

SHAPES = ((20_000, 20, 1), (20_000, 20, 2), (20_000, 100, 2), (20_000, 500, 2), (5000, 20, 3))
NODES_PER_AXIS, N_CHECKED = {1: 60, 2: 61, 3: 21}, 300


def draw_rows(n_rows: int, n_features: int, q: int) -> tuple[np.ndarray, TraitItems]:
    """Draw rows of items whose slopes have a root mean square of 1.5 per item."""
    rng = np.random.default_rng(1)
    weights = 1.5 / np.sqrt(q) * rng.standard_normal((n_features, q))
    offsets = rng.standard_normal(n_features)
    p = expit(rng.standard_normal((n_rows, q)) @ weights.T + offsets)
    return (rng.random(p.shape) < p).astype(np.uint8), TraitItems(weights, offsets)


def measure_cpu(work: Work) -> float:
    """Return the CPU time of the fastest of several runs."""
    return measure_best(work, clock=time.process_time)


def print_passes() -> None:
    """Print the table of passes."""
    table = Table("rows x items, traits:", "rule:8", "CPU us/row:.2f", "error, nats:.0e")
    for n_rows, n_features, q in SHAPES:
        X, items = draw_rows(n_rows, n_features, q)
        nodes: Nodes = drop_light_nodes(gauss_hermite(NODES_PER_AXIS[q], q))
        checked = X[:N_CHECKED]
        exact = posterior_by_quadrature(checked, None, items).log_likelihood.mean()
        methods: dict[str, Callable[[np.ndarray], float]] = {
            "lattice": lambda X, items=items: lattice_e_step(X, None, *items).log_likelihood,
            f"grid {NODES_PER_AXIS[q]}": lambda X, items=items, nodes=nodes: (
                node_statistics(X, None, LevelItems.from_binary(*items), nodes).log_likelihood
            ),
            "centred": lambda X, items=items: centred_e_step(X, None, *items).log_likelihood,
        }
        for name, method in methods.items():
            error = method(checked) / len(checked) - exact
            seconds = measure_cpu(lambda method=method, X=X: method(X))
            shape = f"{n_rows:,} x {n_features}, {q}"
            table.add(shape, name, 1e6 * seconds / n_rows, error)


def print_codes() -> None:
    """Print the table of codes."""
    table = Table(
        *("items, traits, missing:", "lattice us:.1f", "centred us:.1f", "difference, SD:.0e"),
    )
    for n_features, q in ((20, 1), (200, 1), (20, 2), (200, 2), (20, 3), (200, 3)):
        X, items = draw_rows(N_CHECKED, n_features, q)
        for share in (0.0, 0.05, 0.3):
            observed = (np.random.default_rng(0).random(X.shape) >= share).astype(np.uint8)
            arguments = (X, observed, items)
            lattice, exact = posterior_on_lattice(*arguments), posterior_by_quadrature(*arguments)
            deviations = np.sqrt(np.diagonal(exact.covariance, axis1=1, axis2=2))
            difference = abs((lattice.mean - exact.mean) / deviations).max()
            times = [
                1e6 * measure_cpu(lambda f=f, arguments=arguments: f(*arguments)) / N_CHECKED
                for f in (posterior_on_lattice, posterior_by_quadrature)
            ]
            shape = f"{n_features}, {q}, {share:.0%}"
            table.add(shape, *times, difference)


def main() -> None:
    """Print both tables."""
    print_passes()
    print_codes()


if __name__ == "__main__":
    main()
