"""Clipped PCA of wide data against dask.array and scikit-learn.

python -m tests.benchmarks wide [FEATURES [ROWS]]

Prints wall seconds and peak memory of whole processes including their children, and the ratios to
the first line. The fit command reads packed bits from disk; the others read an unpacked matrix from
a file. dask.array computes the same arcsine correlations, and `svd_compressed` their leading
eigenvectors; scikit-learn's TruncatedSVD factors the bits themselves. The last line compares the
CPU seconds of a pass that counts pairs with reading and counting alone. Defaults: 4,000 features,
50,000 rows.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from pipeline.numerics.bits.kernels import symmetric_joint_counts
from pipeline.passes.feature_strips import choose_strip_height
from pipeline.statistics.counts import count_strip
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import create_dataset
from tests.benchmarks._measure import Table, measure_best
from tests.support.data import ArrayBatch, make_test_row_source

N_COMPONENTS, ROWS_AT_ONCE = 20, 4096

DASK_ARRAY = f"""
import sys, numpy as np, dask.array as da
X = da.from_array(np.load(sys.argv[1], mmap_mode="r"), chunks=(20_000, -1)).astype(np.float32)
X = (X - X.mean(axis=0)) / X.std(axis=0)
C = da.sin(np.pi / 2 * (X.T @ X) / len(X)).rechunk((1000, -1))
u, s, v = da.linalg.svd_compressed(C, {N_COMPONENTS}, seed=0, n_power_iter=2)
s.compute()
"""
TRUNCATED_SVD = f"""
import sys, numpy as np
from sklearn.decomposition import TruncatedSVD
X = np.load(sys.argv[1]).astype(np.float32)
TruncatedSVD({N_COMPONENTS}, random_state=0).fit(X)
"""


def draw_rows(n_rows: int, mixing: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw rows that depend on factors, with weights (n_factors, n_features)."""
    inputs = rng.standard_normal((n_rows, len(mixing)), np.float32) @ mixing
    inputs += rng.standard_normal(inputs.shape, np.float32)
    return (inputs > 0.7).view(np.uint8)


def write(folder: Path, n_rows: int, n_features: int) -> None:
    """Write the same rows packed and unpacked."""
    rng, names = np.random.default_rng(0), [f"f{i}" for i in range(n_features)]
    mixing = rng.standard_normal((N_COMPONENTS, n_features), np.float32) / 5
    unpacked = np.lib.format.open_memmap(folder / "X.npy", "w+", np.uint8, (n_rows, n_features))
    with create_dataset(folder / "d.zarr", names) as writer:
        for first in range(0, n_rows, ROWS_AT_ONCE):
            X = draw_rows(min(ROWS_AT_ONCE, n_rows - first), mixing, rng)
            unpacked[first : first + len(X)] = X
            writer.add(ArrayBatch(X))


def measure_process(*arguments: str) -> tuple[float, float]:
    """Run Python; return its wall seconds, and the peak memory of it and its children in bytes."""
    start, peak = time.perf_counter(), 0
    process = psutil.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            processes = [process, *process.children(recursive=True)]
            peak = max(peak, sum(one.memory_info().rss for one in processes))
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{arguments[:3]} failed with exit code {process.returncode}")
    return time.perf_counter() - start, peak


def compare_commands(folder: Path) -> None:
    """Print the seconds and memory of each process, and the ratios to the first."""
    fit = ("-m", "flows.fit", "--dataset", str(folder / "d.zarr"), "--no-report")
    where = ("--components", str(N_COMPONENTS), "--output", str(folder / "runs"))
    unpacked = str(folder / "X.npy")
    commands = {
        "latentbits": (*fit, *where),
        "latentbits, arcsine": (*fit, *where, "--set", "correlation=arcsine"),
        "latentbits, auto": (*fit, "--components", "auto", *where[2:]),
        "dask.array, arcsine": ("-c", DASK_ARRAY, unpacked),
        "TruncatedSVD": ("-c", TRUNCATED_SVD, unpacked),
    }
    results = {name: measure_process(*arguments) for name, arguments in commands.items()}
    first_seconds, first_peak = results["latentbits"]
    table = Table(
        *("method:<22", "wall s:8.1f", "peak GB:8.2f", "time ratio:.2f", "memory ratio:.2f"),
    )
    for name, (seconds, peak) in results.items():
        table.add(name, seconds, peak / 1e9, seconds / first_seconds, peak / first_peak)


def compare_counting(folder: Path) -> None:
    """Compare a pass that counts all strips with reading and the kernel, on one core."""
    rows = make_test_row_source(open_dataset(folder / "d.zarr"))
    rows = replace(rows, read=replace(rows.read, memory=1 << 30))  # cache chunks, as fits do
    chunks = [rows.read(key) for key in range(rows.n_chunks)]
    words = np.concatenate([chunk.words for chunk in chunks], axis=1)
    symmetric_joint_counts(words[:64])

    n, n_samples = rows.n_features, sum(len(chunk.rows) for chunk in chunks)
    height = choose_strip_height(n, 1, None)

    def count_strips() -> None:
        for first in range(0, n, height):
            strip = slice(first, min(first + height, n))
            count_strip(strip, n, n_samples, False, map(rows.read, range(rows.n_chunks)))

    parts: dict[str, Callable[[], object]] = {
        "reading": lambda: [rows.read(key) for key in range(rows.n_chunks)],
        "kernel": lambda: symmetric_joint_counts(words),
        "pair counts": count_strips,
    }
    seconds = {name: measure_best(part, 1, time.process_time) for name, part in parts.items()}
    baseline = seconds["reading"] + seconds["kernel"]
    times = ", ".join(f"{name} {value:.2f} CPU s" for name, value in seconds.items())
    ratio = seconds["pair counts"] / baseline
    print(f"  {times}; pair counts / (reading + kernel): {ratio:.2f}")


def main() -> None:
    """Run both comparisons."""
    arguments = [int(argument) for argument in sys.argv[1:]]
    n_features, n_rows = [*arguments, *(4000, 50_000)[len(arguments) :]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, n_rows, n_features)
        print(f"{n_features:,} features x {n_rows:,} rows, {N_COMPONENTS} components")
        compare_commands(folder)
        compare_counting(folder)


if __name__ == "__main__":
    main()
