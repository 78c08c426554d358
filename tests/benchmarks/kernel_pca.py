"""Exact and landmark kernel PCA against scikit-learn, and on two workers.

python -m tests.benchmarks kernel_pca [ROWS]

Prints median wall seconds, and the ratio to the first line of each table. Both comparisons with
scikit-learn run on one core. ROWS is the number of stored rows for the comparison of threads and
worker processes (default 200,000).
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.decomposition import KernelPCA as SklearnKernelPCA
from sklearn.kernel_approximation import Nystroem
from threadpoolctl import threadpool_limits

from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.kernel_pca import KernelPCA
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import create_dataset
from tests.benchmarks.neighbours import alternate
from tests.support.data import ArrayBatch, make_test_row_source
from tests.support.strategies import DenseData, make_memory_rows
from tests.support.worker_processes import worker_processes

N_EXACT, N_ROWS, N_COMPONENTS, WIDTH = 5000, 50_000, 10, 6.0


def draw_rows(n_rows: int, n_features: int) -> NDArray[np.uint8]:
    """Draw rows that depend on ten factors."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((10, n_features), np.float32)
    inputs = 0.5 * rng.standard_normal((n_rows, 10), np.float32) @ mixing
    return (inputs + rng.standard_normal((n_rows, n_features), np.float32) > 0.7).view(np.uint8)


def fit_in_memory(X: NDArray[np.uint8], **settings: Any) -> Any:
    model = KernelPCA(n_components=N_COMPONENTS, width=WIDTH, **settings)
    return fit_model(model, make_memory_rows(DenseData(X)), SerialExecutor())


def print_medians(title: str, seconds: dict[str, list[float]]) -> None:
    """Print the median seconds of each method, and their ratios to the first method."""
    print(title)
    first = median(next(iter(seconds.values())))
    print(f"  {'method':28} {'seconds':>8} {'ratio':>6}")
    for name, runs in seconds.items():
        print(f"  {name:28} {median(runs):8.2f} {median(runs) / first:6.2f}")


def compare_exact() -> None:
    """Compare the exact fit with scikit-learn's."""
    X = draw_rows(N_EXACT, 256)
    floats = X.astype(np.float64)
    sklearn_model = SklearnKernelPCA(
        N_COMPONENTS, kernel="rbf", gamma=0.5 / WIDTH**2, eigen_solver="arpack"
    )
    with threadpool_limits(1):
        values = fit_in_memory(X).params.eigenvalues
        np.testing.assert_allclose(values, sklearn_model.fit(floats).eigenvalues_, rtol=1e-6)
        seconds = alternate(
            {
                "packed bits": lambda: fit_in_memory(X),
                "scikit-learn": lambda: sklearn_model.fit(floats),
            }
        )
    print_medians(f"{N_EXACT:,} rows x 256 features, exact, one core", seconds)


def compare_landmarks() -> None:
    """Compare the fit with landmarks with scikit-learn's Nystroem approximation and PCA."""
    X, n_landmarks = draw_rows(N_ROWS, 64), 500
    floats = X.astype(np.float64)

    def fit_nystroem() -> Any:
        nystroem = Nystroem(gamma=0.5 / WIDTH**2, n_components=n_landmarks, random_state=0)
        return PCA(N_COMPONENTS, svd_solver="covariance_eigh").fit(nystroem.fit_transform(floats))

    with threadpool_limits(1):
        seconds = alternate(
            {
                "packed bits": lambda: fit_in_memory(X, landmarks=n_landmarks),
                "scikit-learn": fit_nystroem,
            }
        )
    print_medians(f"{N_ROWS:,} rows x 64 features, {n_landmarks} landmarks, one core", seconds)


def compare_workers(n_rows: int) -> None:
    """Compare threads and worker processes."""
    with tempfile.TemporaryDirectory() as folder:
        path, names = Path(folder) / "d.zarr", [f"f{i}" for i in range(64)]
        with create_dataset(path, names, words_per_chunk=n_rows // 1024) as writer:
            writer.add(ArrayBatch(draw_rows(n_rows, 64)))
        rows = make_test_row_source(open_dataset(path))
        model = KernelPCA(n_components=N_COMPONENTS, width=WIDTH, landmarks=1000)

        def fit(executor: Executor) -> Any:
            return fit_model(model, rows, executor)

        with worker_processes(1) as one, worker_processes(2) as two:
            seconds = alternate(
                {
                    "2 worker processes": lambda: fit(two),
                    "1 worker process": lambda: fit(one),
                    "2 threads": lambda: fit(ThreadsExecutor(2)),
                }
            )
    print_medians(f"{n_rows:,} stored rows x 64 features, 1,000 landmarks", seconds)


def main() -> None:
    """Run all comparisons."""
    compare_exact()
    compare_landmarks()
    compare_workers(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)


if __name__ == "__main__":
    main()
