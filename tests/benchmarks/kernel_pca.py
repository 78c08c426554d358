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
from tests.benchmarks._measure import Table, alternate, draw_factor_rows
from tests.support.data import make_test_row_source, write_arrays
from tests.support.strategies import DenseData, make_memory_rows
from tests.support.worker_processes import worker_processes

N_EXACT, N_ROWS, N_COMPONENTS, WIDTH = 5000, 50_000, 10, 6.0


def fit_in_memory(X: NDArray[np.uint8], **settings: Any) -> Any:
    model = KernelPCA(n_components=N_COMPONENTS, width=WIDTH, **settings)
    return fit_model(model, make_memory_rows(DenseData(X)), SerialExecutor())


def print_medians(title: str, seconds: dict[str, list[float]]) -> None:
    """Print the median seconds of each method, and their ratios to the first method."""
    print(title)
    first = median(next(iter(seconds.values())))
    table = Table("method:<28", "seconds:8.2f", "ratio:6.2f")
    for name, runs in seconds.items():
        table.add(name, median(runs), median(runs) / first)


def compare_exact() -> None:
    """Compare the exact fit with scikit-learn's."""
    X = draw_factor_rows(N_EXACT, 256)
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
    X, n_landmarks = draw_factor_rows(N_ROWS, 64), 500
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
        X = draw_factor_rows(n_rows, 64)
        dataset = write_arrays(Path(folder) / "d.zarr", X, words_per_chunk=n_rows // 1024)
        rows = make_test_row_source(dataset)
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
