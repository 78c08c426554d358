"""Latent regression in groups: CPU seconds of whole fits.

python -m tests.benchmarks latent_regression

Fits the latent-trait model to 40 items of rows in memory, with five groups and three covariates,
and to the same rows without covariates. The seconds include checks of the columns, grouping,
standard errors and fit statistics.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy.special import expit

import latentbits as lb
from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.tables import BinaryTable
from tests.benchmarks._measure import Table

N_FEATURES, N_GROUPS, SIZES = 40, 5, (100_000, 1_000_000)
EFFECTS = np.array([0.3, -0.4, 0.5])


def make_dataset(n_rows: int) -> MemoryDataset:
    """Draw rows in groups, with a continuous covariate, a binary one and a level of texts."""
    rng = np.random.default_rng(0)
    weights, offsets = rng.uniform(0.7, 1.8, N_FEATURES), rng.uniform(-1.5, 1.5, N_FEATURES)
    group, age = np.arange(n_rows) % N_GROUPS, rng.normal(40, 10, n_rows)
    sex, school = rng.integers(0, 2, n_rows), rng.integers(0, 2, n_rows)
    x = np.column_stack([(age - 40) / 10, sex, school]) @ EFFECTS + 0.3 * group
    x += rng.standard_normal(n_rows) * (1 + 0.1 * group)
    X = np.empty((n_rows, N_FEATURES), np.uint8)
    for at in np.array_split(np.arange(n_rows), max(1, n_rows // 50_000)):
        probabilities = expit(x[at, None] * weights + offsets)
        X[at] = rng.random(probabilities.shape, np.float32) < probabilities
    columns = {
        "group": np.array([f"g{k}" for k in range(N_GROUPS)], object)[group],
        "age": age,
        "sex": sex,
        "school": np.array(["North", "South"], object)[school],
    }
    names = tuple(f"i{k}" for k in range(N_FEATURES))
    return make_memory_dataset([BinaryTable(X, None, names, None, columns)])


def measure(dataset: MemoryDataset, **arguments: Any) -> tuple[float, int, lb.Fitted]:
    """Return CPU seconds, number of passes, and the fit."""
    clock = time.process_time()
    fitted = lb.fit(dataset, "latent-trait", components=1, group="group", **arguments)
    return time.process_time() - clock, fitted.manifest["iterations"], fitted


def main() -> None:
    """Print the table."""
    covariates = ["age", "sex", "school"]
    measure(make_dataset(2000), covariates=covariates)  # import and compile
    table = Table(
        *("rows:10,d", "covariates:d", "passes:d", "CPU s:7.1f", "coefficients / error:30"),
    )
    for n_rows in SIZES:
        dataset = make_dataset(n_rows)
        for own in (None, covariates):
            seconds, n_passes, fitted = measure(dataset, covariates=own)
            text = ""
            if own is not None:
                z = (fitted.params.coefficients - (EFFECTS / [10, 1, 1])[:, None])[:, 0]
                errors = fitted.params.coefficients_error[:, 0]
                text = ", ".join(f"{value:.2f}" for value in z / errors)
            n_covariates = 0 if own is None else len(own)
            table.add(n_rows, n_covariates, n_passes, seconds, text)


if __name__ == "__main__":
    main()
