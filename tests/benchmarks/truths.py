"""How many default fits are below the parameters that sampled their rows, by model and design.

python -m tests.benchmarks truths [MODEL ...] [--seeds N]

For each number of components and kind of features, rows are drawn from a fitted model, values are
removed by each design of `tests/support/designs.py`, and the model is fitted with its default
settings. Prints the number of fits whose log-likelihood is below that of the parameters that drew
the rows, and the lowest difference of all seeds in nats.
"""

from __future__ import annotations

import argparse
import time

from pipeline.errors import FitError
from pipeline.fitting.loop import fit_model
from tests.benchmarks._measure import Table
from tests.conformance.facts import Facts, list_facts, widen
from tests.conformance.models import FACTS
from tests.conformance.rows import SERIAL
from tests.conformance.truths import (
    N_FEATURES,
    TOLERANCE,
    draw_rows,
    find_truth,
    make_default,
    sum_log_likelihood,
)
from tests.support.designs import DESIGNS
from tests.support.strategies import make_memory_rows

MODELS = ("latent-trait", "bernoulli-mixture", "tree-mixture", "hidden-tree", "noisy-or", "rbm")


def compare_fits(facts: Facts, design: str, n_components: int, n_seeds: int) -> list[float]:
    """Return by how many nats each fit exceeds the truth; refused fits are left out."""
    truth, differences = find_truth(facts, n_components), []
    for seed in range(1, n_seeds + 1):
        data = draw_rows(facts, truth, design, n_components, seed)
        model = make_default(facts, n_components)
        try:
            params = fit_model(model, make_memory_rows(data), SERIAL, seed).params
        except FitError as error:
            print(f"refused: {error}")
            continue
        fitted, expected = (sum_log_likelihood(facts, model, p, data) for p in (params, truth))
        differences.append(fitted - expected)
    return differences


def main() -> None:
    """Print one line per model, kind of features, number of components and design."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks truths")
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    table = Table(
        *("model:<18", "features:<10", "components:d", "design:<28", "fits:d", "below:d"),
        *("lowest:9.2f", "CPU s:6.1f"),
    )
    for name in options.models:
        for kind, facts in list_facts(FACTS[name]).items():
            facts, fits, below = widen(facts, N_FEATURES), 0, 0
            for n_components in (1, 2, 4):
                for design in DESIGNS:
                    start = time.process_time()
                    found = compare_fits(facts, design, n_components, options.seeds)
                    n_below = sum(difference < -TOLERANCE for difference in found)
                    fits, below = fits + len(found), below + n_below
                    lowest, seconds = min(found, default=0.0), time.process_time() - start
                    table.add(
                        name, kind, n_components, design, len(found), n_below, lowest, seconds
                    )
            table.add(name, kind, "all", "all", fits, below, "", "")


if __name__ == "__main__":
    main()
