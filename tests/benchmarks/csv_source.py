"""Reading the rows of a CSV file against pyarrow's read of the same file.

python -m tests.benchmarks csv_source

Prints wall seconds, the best of several runs.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.csv

from storage.sources import open_source
from tests.benchmarks._measure import measure_best

N_ROWS, N_FEATURES, REPEATS = 200_000, 512, 3


def write_csv(path: Path) -> None:
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write((",".join(f"f{j}" for j in range(N_FEATURES)) + "\n").encode())
        for _ in range(0, N_ROWS, 20_000):
            text = np.full((20_000, 2 * N_FEATURES), ord(","), np.uint8)
            text[:, 0::2] = ord("0") + (rng.random((20_000, N_FEATURES)) < 0.3)
            text[:, -1] = ord("\n")
            file.write(text.tobytes())


def read_batches(path: Path) -> int:
    return sum(int(batch.X.sum()) for batch in open_source(str(path)).iter_batches())


def compare_with_pyarrow(name: str, read: Callable[[], object], path: Path) -> None:
    """Print the seconds of reading a file and of pyarrow's read, and their ratio."""
    seconds, pyarrow_seconds = (
        measure_best(work, REPEATS) for work in (read, lambda: pyarrow.csv.read_csv(path))
    )
    print(f"{N_ROWS:,} rows x {N_FEATURES} features, best of {REPEATS} runs")
    print(f"{name}: {seconds:.2f} s")
    print(f"pyarrow.csv.read_csv: {pyarrow_seconds:.2f} s")
    print(f"ratio: {seconds / pyarrow_seconds:.2f}")


def main() -> None:
    """Compare the source with pyarrow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        write_csv(path)
        compare_with_pyarrow("iter_batches", lambda: read_batches(path), path)


if __name__ == "__main__":
    main()
