"""Figure 3 of Lee & Sompolinsky (1999): the ring's two eigenvalues, hidden in a continuum.

For translation-invariant spins of a two-dimensional Gaussian on a ring of N features the Gaussians'
correlation cos(θ_i − θ_j) has two eigenvalues N / 2; the spins' own, 1 − 2 |θ_i − θ_j| / π, has
pairs of eigenvalues 4 N / (π k)², k = 1, 3, 5, … (its Fourier series).
"""

from __future__ import annotations

import numpy as np
import pytest

from flows.data.datasets import open_dataset_or_example
from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from pipeline.statistics.counts import PairCounts
from tests.support.data import make_test_row_source

N_FEATURES = 256


def spin_eigenvalues(counts: PairCounts) -> np.ndarray:
    n, ones_i, ones_j, joint = counts.table(0)
    spins = (4 * joint - 2 * ones_i - 2 * ones_j + n) / n
    return np.linalg.eigvalsh(spins)[::-1]


@pytest.mark.matrix
def test_two_eigenvalues_stand_out_at_a_million_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dataset = open_dataset_or_example("example:ring:rows=1000000")
    rows, executor, model = make_test_row_source(dataset), ThreadsExecutor(2), ClippedPCA()
    fitted = fit_model(model, rows, executor)
    values = fitted.params.eigenvalues
    np.testing.assert_allclose(values[:2], N_FEATURES / 2, rtol=0.02)
    assert np.abs(values[2:]).max() <= 0.01 * N_FEATURES / 2
    assert fitted.params.loadings.shape == (N_FEATURES, 2)

    counts = collect_pass_statistics(model, FitState(None), rows, executor, seed=0)
    continuum = 4 * N_FEATURES / (np.pi * np.repeat([1, 3, 5, 7, 9], 2)) ** 2
    np.testing.assert_allclose(spin_eigenvalues(counts)[:10], continuum, rtol=0.02)
