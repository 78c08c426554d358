"""What benchmarks share: clocks, tables, and rows that depend on factors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from tests.support.data import ArrayBatch

Work = Callable[[], object]
Clock = Callable[[], float]


class Table:
    """Columns, each `"heading:format"`; the header is printed at once, and each line when known."""

    def __init__(self, *columns: str) -> None:
        pairs = [column.rpartition(":")[::2] for column in columns]
        self._formats = [spec for _, spec in pairs]
        widths = [re.sub(r"\D.*", "", spec.lstrip("<")) for spec in self._formats]
        self._widths = [
            max(len(name), int(width or 0)) for (name, _), width in zip(pairs, widths, strict=True)
        ]
        self.add(*(name for name, _ in pairs))

    def add(self, *values: Any) -> None:
        """Print a line; texts need no format."""
        cells = []
        for value, spec, width in zip(values, self._formats, self._widths, strict=True):
            text = value if isinstance(value, str) else format(value, spec)
            cells.append(text.ljust(width) if spec.startswith("<") else text.rjust(width))
        print("  ".join(cells), flush=True)


def measure(work: Work, repeats: int = 3, clock: Clock = time.perf_counter) -> list[float]:
    """Return the seconds of each of several runs."""
    return alternate({"": work}, repeats, clock)[""]


def measure_best(work: Work, repeats: int = 3, clock: Clock = time.perf_counter) -> float:
    """Return the seconds of the fastest of several runs."""
    return min(measure(work, repeats, clock))


def measure_median(work: Work, repeats: int = 5) -> float:
    """Return the median seconds of several runs after one that is not counted."""
    return median(measure(work, 1 + repeats)[1:])


def alternate(
    calls: Mapping[str, Work], repeats: int = 5, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of each call; calls alternate, so that all meet the same load."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return seconds


def draw_factor_rows(
    n_rows: int, n_features: int, rng: np.random.Generator | None = None
) -> NDArray[np.uint8]:
    """Draw rows that depend on ten factors."""
    rng = rng or np.random.default_rng(0)
    mixing = np.random.default_rng(0).standard_normal((10, n_features), np.float32)
    inputs = 0.5 * rng.standard_normal((n_rows, 10), np.float32) @ mixing
    return (inputs + rng.standard_normal((n_rows, n_features), np.float32) > 0.7).view(np.uint8)


def write_rows(
    path: Path, n_features: int, batches: Iterable[NDArray[np.uint8]], **options: Any
) -> BinaryDataset:
    """Write batches of rows as a dataset, and open it."""
    with create_dataset(path, [f"f{i}" for i in range(n_features)], **options) as writer:
        for X in batches:
            writer.add(ArrayBatch(X))
    return open_dataset(path)
