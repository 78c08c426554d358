"""Items with several levels, or continuous: CPU seconds of whole latent-trait fits.

python -m tests.benchmarks level_items

Fits one trait to 20 items of 100,000 rows in memory, with standard errors and fit statistics. The
ratio compares each fit with that of the same items cut in two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import latentbits as lb
from tests.benchmarks._measure import Table

N_ITEMS, N_LEVELS, SIZES = 20, 5, (2_000, 100_000)
Floats = NDArray[np.float64]


def draw_values(n_rows: int) -> Floats:
    """Draw a trait with logistic noise of each item, (n_rows, n_items)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_rows, 1)) * rng.uniform(0.8, 2.0, N_ITEMS)
    return np.asarray(x + rng.logistic(size=(n_rows, N_ITEMS)) + rng.uniform(-1, 1, N_ITEMS))


def cut(values: Floats, n_levels: int) -> pd.DataFrame:
    """Cut values into levels, equally spaced from −2 to 2."""
    edges = np.linspace(-2, 2, n_levels + 1)[1:-1]
    levels = pd.DataFrame(np.digitize(values, edges))
    levels.columns = [f"item{k}" for k in range(N_ITEMS)]
    return levels.astype(pd.CategoricalDtype(range(n_levels), ordered=True))


def hide(table: pd.DataFrame) -> pd.DataFrame:
    """Remove 5 % of the values."""
    return table.mask(np.random.default_rng(1).random(table.shape) < 0.05)


def measure_half(values: Floats) -> Any:
    """Return a dataset whose second half of the items is continuous."""
    table = cut(values, N_LEVELS)
    names = list(table.columns[N_ITEMS // 2 :])
    table[names] = values[:, N_ITEMS // 2 :].astype(np.float32)
    return lb.from_dataframe(table, continuous=names)


CASES: dict[str, tuple[Callable[[Floats], Any], dict[str, Any]]] = {
    "binary": (lambda values: lb.from_dataframe(cut(values, 2)), {}),
    "graded": (lambda values: lb.from_dataframe(cut(values, N_LEVELS)), {}),
    "graded, 5 % missing": (lambda values: lb.from_dataframe(hide(cut(values, N_LEVELS))), {}),
    "partial credit": (
        lambda values: lb.from_dataframe(cut(values, N_LEVELS)),
        {"items": "partial-credit"},
    ),
    "nominal": (lambda values: lb.from_dataframe(cut(values, N_LEVELS)), {"items": "nominal"}),
    "half continuous": (measure_half, {}),
}


def measure(dataset: Any, settings: dict[str, Any]) -> tuple[float, int]:
    """Return CPU seconds and the number of passes."""
    clock = time.process_time()
    fitted = lb.fit(dataset, "latent-trait", components=1, **settings)
    return time.process_time() - clock, fitted.manifest["iterations"]


def main() -> None:
    """Print the table."""
    table = Table("items:<20", "rows:8,d", "passes:d", "CPU s:6.1f", "ratio to binary:.2f")
    for n_rows in SIZES:
        values, binary = draw_values(n_rows), 0.0
        for name, (make_dataset, settings) in CASES.items():
            dataset = make_dataset(values)
            seconds, n_passes = measure(dataset, settings)
            binary = binary or seconds
            if n_rows > SIZES[0]:  # the first size imports and compiles
                table.add(name, n_rows, n_passes, seconds, seconds / binary)


if __name__ == "__main__":
    main()
