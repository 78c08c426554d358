"""Likelihood-ratio tests of item bias, against direct maximisation and data of known bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from flows.data.datasets import make_row_source
from flows.evaluating.dif import DifGroups, compute_item_bias
from pipeline.data.blocks import iter_blocks
from pipeline.evaluation.item_bias import GroupParams, GroupTraits
from pipeline.executors.base import SerialExecutor
from pipeline.executors.progress import ignore_progress
from pipeline.random import RowRandom
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


def compute_bias(
    path: Path,
    X: NDArray[np.uint8],
    group: Array,
    observed: NDArray[np.uint8] | None = None,
    test: str = "likelihood-ratio",
) -> dict[str, Any]:
    dataset = write_arrays(path, X, observed, columns={"group": group}, words_per_chunk=2)
    rows = make_row_source(dataset, columns=("group",))
    groups, names = DifGroups("group", test, (0, 1), ("a", "b")), dataset.feature_names
    bias = compute_item_bias(groups, rows, names, 0, SerialExecutor(), ignore_progress)
    items = sorted(bias["items"], key=lambda item: names.index(item["feature"]))
    return {**bias, **{name: np.array([item[name] for item in items]) for name in items[0]}}


@pytest.mark.matrix
def test_twice_the_gain_is_that_of_direct_maximisation(tmp_path: Path) -> None:
    X, group = two_groups(400, 1.0, 1)
    bias = compute_bias(tmp_path / "d.zarr", X, group)
    (least, shared), (most, own) = (maximum(X, group, item) for item in (None, BIASED))
    chi2 = 2 * (most - least)
    assert bias["chi2"][BIASED] == pytest.approx(chi2, abs=2e-3)
    assert bias["p"][BIASED] == pytest.approx(scipy.stats.chi2.sf(chi2, 2), rel=2e-3)
    assert bias["p"][BIASED] == bias["p"].min()
    assert bias["p_adjusted"][BIASED] == pytest.approx(6 * bias["p"][BIASED])
    focal = bias["focal_trait"]
    assert (focal["mean"], focal["sd"]) == pytest.approx((shared[12], np.exp(shared[13])), abs=5e-3)
    in_focal = [bias["slopes"][BIASED, 1], bias["offsets"][BIASED, 1]]
    assert in_focal == pytest.approx(own[14:], abs=2e-2)
    x = own[12] + np.exp(own[13]) * X_NODES
    gap = expit(own[BIASED] * x + own[BIASED + 6]) - expit(own[14] * x + own[15])
    density = scipy.special.softmax(-(X_NODES**2) / 2)
    assert bias["difference"][BIASED] == pytest.approx(density @ gap, abs=5e-3)
    assert bias["area"][BIASED] == pytest.approx(density @ abs(gap), abs=5e-3)


@pytest.mark.matrix
def test_rows_of_neither_group_and_missing_values_count_for_nothing(tmp_path: Path) -> None:
    X, group = two_groups(300, 1.0, 2)
    few = compute_bias(tmp_path / "few.zarr", X, group)
    more = np.vstack([X, X[:20], np.ones((1, 6), np.uint8)])
    observed = np.ones_like(more)
    observed[-1] = 0
    of_none = np.r_[group, np.full(20, 7), 1]
    again = compute_bias(tmp_path / "more.zarr", more, of_none, observed)
    np.testing.assert_allclose(again["chi2"], few["chi2"], atol=1e-3)
    assert again["rows"] == few["rows"]


@pytest.mark.matrix
def test_rows_with_missing_answers_are_used(tmp_path: Path) -> None:
    X, group = two_groups(300, 1.0, 3)
    observed = (np.random.default_rng(4).random(X.shape) >= 0.1).astype(np.uint8)
    for test in ("likelihood-ratio", "mantel-haenszel"):
        bias = compute_bias(tmp_path / f"{test}.zarr", X, group, observed, test)
        assert bias["rows"] == np.bincount(group).tolist()
    assert bias["has_drawn_answers"]
    assert bias["p"].argmin() == BIASED


def test_missing_answers_are_drawn_from_their_distribution(tmp_path: Path) -> None:
    """Over many rows with the same answers, against the posterior by the trapezoidal rule."""
    slopes, offsets = np.array([1.5, 0.8, 2.0]), np.array([0.3, -0.5, 0.2])
    X = np.tile(np.uint8([1, 0, 1]), (20_000, 1))
    observed = np.tile(np.uint8([1, 1, 0]), (20_000, 1))
    group = np.arange(20_000) % 2
    dataset = write_arrays(tmp_path / "d.zarr", X, observed, columns={"group": group})
    (block,) = iter_blocks(make_row_source(dataset, columns=("group",)).read(0))
    params = GroupParams(np.column_stack([slopes, offsets]), np.array([0.8, np.log(0.5)]))
    drawn = GroupTraits("group", (0, 1)).draw_missing(params, block, RowRandom(0))
    assert (drawn[:, :2] == X[:, :2]).all()
    for g, (mean, sd) in enumerate([(0.0, 1.0), (0.8, 0.5)]):
        P = expit((mean + sd * X_NODES)[:, None] * slopes + offsets)
        posterior = np.exp(-(X_NODES**2) / 2) * P[:, 0] * (1 - P[:, 1])
        expected = posterior @ P[:, 2] / posterior.sum()
        assert drawn[group == g, 2].mean() == pytest.approx(expected, abs=0.02)
