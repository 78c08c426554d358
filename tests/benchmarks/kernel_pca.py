"""Kernel PCA: exact and by landmarks, against scikit-learn on one core, and on workers.

python -m tests.benchmarks.kernel_pca [ROWS]

ROWS are those of the fit by landmarks on two cores.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.decomposition import KernelPCA as Peer
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


def drawn(n_rows: int, n_features: int) -> NDArray[np.uint8]:
    """Rows that depend on ten factors."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((10, n_features), np.float32)
    inputs = 0.5 * rng.standard_normal((n_rows, 10), np.float32) @ mixing
    return (inputs + rng.standard_normal((n_rows, n_features), np.float32) > 0.7).view(np.uint8)


def own(X: NDArray[np.uint8], **settings: Any) -> Any:
    model = KernelPCA(n_components=N_COMPONENTS, width=WIDTH, **settings)
    return fit_model(model, make_memory_rows(DenseData(X)), SerialExecutor())


def told(title: str, seconds: dict[str, list[float]]) -> None:
    """Print medians of seconds, and how many times the first the others take."""
    print(title)
    first = median(next(iter(seconds.values())))
    for name, taken in seconds.items():
        print(f"  {name:28} {median(taken):6.2f} s, {median(taken) / first:5.2f} times as long")


def compare_exact() -> None:
    """Print how much longer scikit-learn takes for all pairs."""
    X = drawn(N_EXACT, 256)
    floats = X.astype(np.float64)
    peer = Peer(N_COMPONENTS, kernel="rbf", gamma=0.5 / WIDTH**2, eigen_solver="arpack")
    with threadpool_limits(1):
        values = own(X).params.eigenvalues
        np.testing.assert_allclose(values, peer.fit(floats).eigenvalues_, rtol=1e-6)
        found = alternate({"packed bits": lambda: own(X), "scikit-learn": lambda: peer.fit(floats)})
    told(f"{N_EXACT:,} rows x 256 features, exact, one core", found)


def compare_landmarks() -> None:
    """Print how much longer scikit-learn takes by as many random landmarks and PCA of its map."""
    X, n_landmarks = drawn(N_ROWS, 64), 500
    floats = X.astype(np.float64)

    def by_scikit_learn() -> Any:
        mapped = Nystroem(gamma=0.5 / WIDTH**2, n_components=n_landmarks, random_state=0)
        return PCA(N_COMPONENTS, svd_solver="covariance_eigh").fit(mapped.fit_transform(floats))

    with threadpool_limits(1):
        found = alternate(
            {"packed bits": lambda: own(X, landmarks=n_landmarks), "scikit-learn": by_scikit_learn}
        )
    told(f"{N_ROWS:,} rows x 64 features, {n_landmarks} landmarks, one core", found)


def compare_workers(n_rows: int) -> None:
    """Print seconds of threads and worker processes."""
    with tempfile.TemporaryDirectory() as folder:
        path, names = Path(folder) / "d.zarr", [f"f{i}" for i in range(64)]
        with create_dataset(path, names, words_per_chunk=n_rows // 1024) as writer:
            writer.add(ArrayBatch(drawn(n_rows, 64)))
        rows = make_test_row_source(open_dataset(path))
        model = KernelPCA(n_components=N_COMPONENTS, width=WIDTH, landmarks=1000)

        def fitted(executor: Executor) -> Any:
            return fit_model(model, rows, executor)

        with worker_processes(1) as one, worker_processes(2) as two:
            found = alternate(
                {
                    "2 worker processes": lambda: fitted(two),
                    "1 worker process": lambda: fitted(one),
                    "2 threads": lambda: fitted(ThreadsExecutor(2)),
                }
            )
    told(f"{n_rows:,} stored rows x 64 features, 1,000 landmarks", found)


def main() -> None:
    """Print seconds and ratios."""
    compare_exact()
    compare_landmarks()
    compare_workers(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)


if __name__ == "__main__":
    main()
