"""Likelihood-ratio tests of item bias, against direct maximisation and data of known bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from flows.data.datasets import make_row_source
from pipeline.evaluation.item_bias import GroupTestResults, run_group_tests
from pipeline.executors.base import SerialExecutor
from pipeline.executors.progress import ignore_progress
from tests.support.data import write_arrays

Array = NDArray[np.float64]
X_NODES = np.linspace(-6, 6, 121)
BIASED = 2


def two_groups(n_rows: int, bias: float, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of six items, of which one favours the reference group; the focal trait is shifted."""
    rng = np.random.default_rng(seed)
    group = (rng.random(n_rows) < 0.4).astype(np.int64)
    x = np.where(group == 1, 0.5 + 0.8 * rng.standard_normal(n_rows), rng.standard_normal(n_rows))
    slopes, offsets = np.linspace(0.8, 1.6, 6), np.linspace(-1, 1, 6)
    eta = x[:, None] * slopes + offsets
    eta[:, BIASED] -= bias * group
    return (rng.random(eta.shape) < expit(eta)).astype(np.uint8), group


def log_likelihood(theta: Array, X: NDArray[np.uint8], group: Array, item: int | None) -> float:
    """Integrate by the trapezoidal rule; `theta` is slopes, offsets, then μ, log σ and the item's
    own slope and offset in the focal group."""
    n = X.shape[1]
    total = 0.0
    for g, (mean, sd) in enumerate([(0.0, 1.0), (theta[2 * n], np.exp(theta[2 * n + 1]))]):
        slopes, offsets = theta[:n].copy(), theta[n : 2 * n].copy()
        if g and item is not None:
            slopes[item], offsets[item] = theta[2 * n + 2 :]
        eta = (mean + sd * X_NODES)[:, None] * slopes + offsets
        rows = X[group == g]
        of_nodes = rows @ log_expit(eta).T + (1 - rows) @ log_expit(-eta).T - X_NODES**2 / 2
        step = (X_NODES[1] - X_NODES[0]) / np.sqrt(2 * np.pi)
        total += float((scipy.special.logsumexp(of_nodes, axis=1) + np.log(step)).sum())
    return total


def maximum(X: NDArray[np.uint8], group: Array, item: int | None) -> tuple[float, Array]:
    n = X.shape[1]
    start = np.r_[np.ones(n), np.zeros(n), 0.0, 0.0, [1.0, 0.0] if item is not None else []]
    found = scipy.optimize.minimize(lambda t: -log_likelihood(t, X, group, item), start)
    return -float(found.fun), found.x


def found(
    path: Path, X: NDArray[np.uint8], group: Array, observed: NDArray[np.uint8] | None = None
) -> tuple[GroupTestResults, Array]:
    dataset = write_arrays(path, X, observed, columns={"group": group}, words_per_chunk=2)
    rows = make_row_source(dataset, columns=("group",))
    return run_group_tests("group", (0, 1), rows, SerialExecutor(), ignore_progress)


@pytest.mark.matrix
def test_twice_the_gain_is_that_of_direct_maximisation(tmp_path: Path) -> None:
    X, group = two_groups(400, 1.0, 1)
    tests, focal = found(tmp_path / "d.zarr", X, group)
    (least, shared), (most, own) = (maximum(X, group, item) for item in (None, BIASED))
    chi2 = 2 * (most - least)
    assert tests.chi2[BIASED] == pytest.approx(chi2, abs=2e-3)
    assert tests.p[BIASED] == pytest.approx(scipy.stats.chi2.sf(chi2, 2), rel=2e-3)
    assert tests.p[BIASED] == tests.p.min()
    assert focal == pytest.approx([shared[12], np.exp(shared[13])], abs=5e-3)
    in_focal = [tests.slopes[BIASED, 1], tests.offsets[BIASED, 1]]
    assert in_focal == pytest.approx(own[14:], abs=2e-2)


@pytest.mark.matrix
def test_rows_of_neither_group_and_missing_values_count_for_nothing(tmp_path: Path) -> None:
    X, group = two_groups(300, 1.0, 2)
    few, _ = found(tmp_path / "few.zarr", X, group)
    more = np.vstack([X, X[:20], np.ones((1, 6), np.uint8)])
    observed = np.ones_like(more)
    observed[-1] = 0
    of_none = np.r_[group, np.full(20, 7), 1]
    again, _ = found(tmp_path / "more.zarr", more, of_none, observed)
    np.testing.assert_allclose(again.chi2, few.chi2, atol=1e-3)
