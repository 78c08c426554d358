"""A bifactor fit: one general and five specific traits of 60 items.

python -m tests.benchmarks bifactor [ROWS]

Prints the CPU seconds of the fit with standard errors, and how far slopes are from those that
generated the rows, in standard errors. Default: 100,000 rows.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd

import latentbits as lb

N_BLOCKS, BLOCK_SIZE = 5, 12
TARGET = 60.0


def main(n_rows: int = 100_000) -> None:
    """Simulate rows, and fit the pattern that generated them."""
    rng = np.random.default_rng(0)
    n_items, n_traits = N_BLOCKS * BLOCK_SIZE, 1 + N_BLOCKS
    pattern = np.zeros((n_items, n_traits), np.int64)
    pattern[:, 0] = 1
    pattern[np.arange(n_items), 1 + np.arange(n_items) // BLOCK_SIZE] = 1
    slopes = pattern * rng.uniform(0.6, 1.5, pattern.shape)
    logits = rng.standard_normal((n_rows, n_traits)) @ slopes.T + rng.normal(0, 0.8, n_items)
    items = [f"item{k}" for k in range(n_items)]
    X = (rng.logistic(size=logits.shape) < logits).astype(np.uint8)
    dataset = lb.from_numpy(X, feature_names=items)
    columns = {f"trait{k}": values for k, values in enumerate(pattern.T)}
    start = time.process_time()
    fitted = lb.fit(
        dataset, "latent-trait", pattern=pd.DataFrame({"item": items, **columns}), n_jobs=1
    )
    seconds = time.process_time() - start
    target = f", target {TARGET:.0f} s at 100,000 rows"
    n_passes = fitted.manifest["iterations"]
    print(f"{n_rows:,} rows: {seconds:.1f} CPU s, {n_passes} passes{target}")
    loads = pattern == 1
    z = (fitted.params.weights - slopes)[loads] / fitted.params.weights_error[loads]
    print(f"slopes minus true slopes, in standard errors: {z.std():.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
