"""The latent-trait model at size: what it recovers, and what it needs.

R's mirt (EM, two factors, 20 items, 10^5 rows) takes 109 CPU seconds and leaves a root mean square
error of slopes of 0.0126; `python -m tests.benchmarks.latent_trait` measures this package's time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from storage.dataset.writer import create_dataset
from tests.acceptance.test_memory import watched
from tests.support.data import ArrayBatch
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]
N_ROWS, N_FEATURES = 2_000_000, 128


def drawn(
    weights: Floats, offsets: Floats, n_rows: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    chances = expit(rng.standard_normal((n_rows, weights.shape[1])) @ weights.T + offsets)
    return (rng.random(chances.shape) < chances).astype(np.uint8)


def turned(found: Floats, truth: Floats) -> Floats:
    """Rotate as near to the truth as can be (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(found.T @ truth)
    return found @ left @ right


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_two_factors_behind_twenty_items_are_recovered(seed: int) -> None:
    """The bound has another optimum: its slopes are too small, by a fifth here."""
    rng = np.random.default_rng(seed)
    weights, offsets = rng.uniform(0.4, 1.4, (20, 2)), rng.uniform(-1, 1, 20)
    weights *= rng.choice([-1, 1], weights.shape)
    rows = make_memory_rows(DenseData(drawn(weights, offsets, 100_000, rng)), [10_000] * 10)
    exact = fit_model(LatentTrait(estimator="quadrature"), rows, ThreadsExecutor(2)).params.weights
    bound = fit_model(LatentTrait(estimator="variational"), rows, ThreadsExecutor(2)).params.weights
    assert np.sqrt(((turned(exact, weights) - weights) ** 2).mean()) <= 0.014
    assert 0.75 < np.linalg.norm(bound) / np.linalg.norm(weights) < 0.95


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights, offsets = rng.standard_normal((N_FEATURES, 2)), rng.standard_normal(N_FEATURES)
    path = tmp_path_factory.mktemp("large") / "d.zarr"
    names = [f"f{i}" for i in range(N_FEATURES)]
    with create_dataset(path, names, expected_rows=N_ROWS) as writer:
        for _ in range(0, N_ROWS, 50_000):
            writer.add(ArrayBatch(drawn(weights, offsets, 50_000, rng)))
    return path


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]], ids=["in process", "2 workers"])
def test_2_million_rows_fit_into_1_5_gb_a_process(large: Path, tmp_path: Path, workers: list[str]):
    options = ["--model", "latent-trait", "--output", str(tmp_path / "runs")]
    summary, peaks = watched("fit", "--dataset", str(large), *workers, *options)
    assert summary["converged"]
    assert max(peaks.values()) < 1_500_000_000
