"""Clipped PCA of wide data: the whole command, and counts of a pass, against what else there is.

python -m tests.benchmarks.wide [FEATURES [ROWS]]

Each side is a process of its own, whose seconds and peak memory are told with those of all its
children: the command reads packed bits from disk, its peers are given an unpacked matrix in a file.
`dask.array` computes the same arcsine correlations and `svd_compressed` their leading eigenvectors;
scikit-learn's TruncatedSVD factors the bits themselves.
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


def measured(*words: str) -> tuple[float, float]:
    """Seconds, and peak bytes of a process and its children."""
    begun, peak = time.perf_counter(), 0
    process = psutil.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            everyone = [process, *process.children(recursive=True)]
            peak = max(peak, sum(one.memory_info().rss for one in everyone))
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{words[:3]} ended with {process.returncode}")
    return time.perf_counter() - begun, peak


def compare_commands(folder: Path) -> None:
    """Print seconds and memory, and ratios to the first."""
    fit = ("-m", "flows.fit", "--dataset", str(folder / "d.zarr"), "--no-report")
    where = ("--components", str(N_COMPONENTS), "--output", str(folder / "runs"))
    unpacked = str(folder / "X.npy")
    sides = {
        "latentbits": (*fit, *where),
        "latentbits, arcsine": (*fit, *where, "--set", "estimator=arcsine"),
        "latentbits, auto": (*fit, "--components", "auto", *where[2:]),
        "dask.array, arcsine": ("-c", DASK_ARRAY, unpacked),
        "TruncatedSVD": ("-c", TRUNCATED_SVD, unpacked),
    }
    found = {name: measured(*words) for name, words in sides.items()}
    seconds, peak = found["latentbits"]
    for name, (taken, held) in found.items():
        ratios = f"{taken / seconds:5.2f} and {held / peak:5.2f} times as much"
        print(f"  {name:22} {taken:7.1f} s {held / 1e9:6.2f} GB, {ratios}")


def compare_counting(folder: Path) -> None:
    """Print what counting all strips takes beside reading and the bare kernel, on one core."""
    rows = make_test_row_source(open_dataset(folder / "d.zarr"))
    rows = replace(rows, read=replace(rows.read, memory=1 << 30))  # as fits keep chunks
    chunks = [rows.read(key) for key in range(rows.n_chunks)]
    words = np.concatenate([chunk.words for chunk in chunks], axis=1)
    symmetric_joint_counts(words[:64])

    n, n_samples = rows.n_features, sum(len(chunk.rows) for chunk in chunks)
    height = choose_strip_height(n, 1, None)

    def counted() -> None:
        for first in range(0, n, height):
            strip = slice(first, min(first + height, n))
            count_strip(strip, n, n_samples, False, map(rows.read, range(rows.n_chunks)))

    parts: dict[str, Callable[[], object]] = {
        "reading": lambda: [rows.read(key) for key in range(rows.n_chunks)],
        "bare kernel": lambda: symmetric_joint_counts(words),
        "pair counts": counted,
    }
    taken = {}
    for name, part in parts.items():
        begun = time.process_time()
        part()
        taken[name] = time.process_time() - begun
    least = taken["reading"] + taken["bare kernel"]
    told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in taken.items())
    print(f"  CPU: {told}: {taken['pair counts'] / least:.2f} times reading and the kernel")


def main() -> None:
    """Print seconds, memory and ratios."""
    given = [int(word) for word in sys.argv[1:]]
    n_features, n_rows = [*given, *(4000, 50_000)[len(given) :]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, n_rows, n_features)
        print(f"{n_features:,} features x {n_rows:,} rows, {N_COMPONENTS} components")
        compare_commands(folder)
        compare_counting(folder)


if __name__ == "__main__":
    main()
