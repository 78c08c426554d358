"""Time of reading a CSV source against pyarrow's own read of the same file."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.csv

from storage.sources import open_source

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


def seconds(read: Callable[[], object]) -> float:
    start = time.perf_counter()
    read()
    return time.perf_counter() - start


def read_batches(path: Path) -> int:
    return sum(int(batch.X.sum()) for batch in open_source(str(path)).iter_batches())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        write_csv(path)
        own = min(seconds(lambda: read_batches(path)) for _ in range(REPEATS))
        arrow = min(seconds(lambda: pyarrow.csv.read_csv(path)) for _ in range(REPEATS))
    print(f"{N_ROWS} rows x {N_FEATURES} features, best of {REPEATS}")
    print(f"batches() {own:.2f} s, pyarrow.csv.read_csv {arrow:.2f} s, ratio {own / arrow:.2f}")


if __name__ == "__main__":
    main()
