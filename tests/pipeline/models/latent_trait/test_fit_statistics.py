"""M₂ and S-X² against their definitions, with all patterns of few features written out."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.models.latent_trait import standard_errors
from pipeline.models.latent_trait.fit_statistics import (
    compute_independence_fit,
    compute_m2_fit,
    item_fit_statistics,
    item_probabilities_by_score,
    make_equal_slope_directions,
)
from pipeline.numerics.logistic.latent_nodes import Nodes, gauss_hermite
from tests.pipeline.models.latent_trait.test_model import fitted

Floats = NDArray[np.float64]


def moments(n: int) -> Floats:
    """Which patterns have each feature, and each pair, (n_patterns, n + n (n − 1) / 2)."""
    patterns = np.array([*product([0, 1], repeat=n)], float)
    pairs = [patterns[:, a] * patterns[:, b] for a, b in combinations(range(n), 2)]
    return np.column_stack([patterns, *pairs])


def shares(packed: Floats, n: int, nodes: Nodes) -> Floats:
    """P of every pattern."""
    patterns = moments(n)[:, :n]
    w = packed.reshape(n, -1)
    P = expit(nodes.points @ w[:, :-1].T + w[:, -1])
    given = np.prod(np.where(patterns[:, None] == 1, P, 1 - P), axis=2)
    return given @ np.exp(nodes.log_weights)


@pytest.mark.parametrize(
    ("n", "q", "has_equal_slopes"), [(5, 1, False), (7, 1, False), (6, 2, False), (6, 1, True)]
)
def test_it_is_the_definition(n: int, q: int, has_equal_slopes: bool) -> None:
    rng = np.random.default_rng([n, q])
    packed = rng.normal(0, 0.7, n * (q + 1))
    if has_equal_slopes:
        packed[::2] = 0.8
    nodes, n_rows, chosen = gauss_hermite(41, q), 700, moments(n)
    counts = rng.multinomial(n_rows, rng.dirichlet(np.ones(2**n)))
    P = shares(packed, n, nodes)
    pi = P @ chosen
    xi = (chosen.T * P) @ chosen - np.outer(pi, pi)
    h = 1e-6
    at = [packed + h * step for step in np.eye(len(packed))]
    back = [packed - h * step for step in np.eye(len(packed))]
    delta = np.stack(
        [
            (shares(a, n, nodes) - shares(b, n, nodes)) @ chosen / (2 * h)
            for a, b in zip(at, back, strict=True)
        ],
        axis=1,
    )
    rank, directions = n * (q + 1) - q * (q - 1) // 2, None
    if has_equal_slopes:
        rank, directions = n + 1, make_equal_slope_directions(n)
        delta = np.column_stack([delta[:, ::2].sum(axis=1), delta[:, 1::2]])
    delta = np.linalg.svd(delta)[0][:, :rank]  # without rotations of the components
    inverse = np.linalg.inv(xi)
    C = inverse - inverse @ delta @ np.linalg.inv(delta.T @ inverse @ delta) @ delta.T @ inverse
    e = counts @ chosen / n_rows - pi
    both = (chosen[:, :n].T * counts) @ chosen[:, :n]
    w = packed.reshape(n, -1)
    arguments = (both.astype(np.int64), n_rows, w[:, :-1], w[:, -1], nodes, rank)
    found = compute_m2_fit(*arguments, directions=directions)
    assert found.m2 == pytest.approx(n_rows * e @ C @ e, rel=1e-4)
    assert found.df == chosen.shape[1] - rank


def test_equal_slopes_do_not_fit_items_with_other_slopes() -> None:
    rng = np.random.default_rng(3)
    x, slopes = rng.normal(size=(2000, 1)), np.array([0.3, 0.5, 1.0, 1.5, 2.5, 3.0])
    X = (rng.random((2000, 6)) < expit(x * slopes)).astype(np.uint8)
    p = [
        fitted(X, n_components=1, equal_slopes=equal).diagnostics["fit_statistics"]["m2_p"]
        for equal in ("yes", "no")
    ]
    assert p[0] < 1e-10 < 0.01 < p[1]


def test_independent_features_fit_independence() -> None:
    """Over many samples M₂ has the mean and the variance of χ²."""
    rng = np.random.default_rng(3)
    chances, values = rng.uniform(0.2, 0.8, 8), []
    for _ in range(400):
        X = (rng.random((2000, 8)) < chances).astype(np.int64)
        found = compute_independence_fit(X.T @ X, len(X))
        values.append(found.m2)
    assert found.df == 28
    assert np.mean(values) == pytest.approx(28, rel=0.05)
    assert np.var(values) == pytest.approx(56, rel=0.25)


@pytest.mark.parametrize(("n", "q"), [(3, 1), (6, 1), (5, 2)])
def test_shares_are_those_of_all_patterns(n: int, q: int) -> None:
    rng = np.random.default_rng([n, q])
    weights, offsets, nodes = rng.normal(size=(n, q)), rng.normal(size=n), gauss_hermite(9, q)
    patterns = np.array([*product([0, 1], repeat=n)])
    P = expit(nodes.points @ weights.T + offsets)
    chance = np.prod(np.where(patterns[:, None] == 1, P, 1 - P), axis=2) @ np.exp(nodes.log_weights)
    score = patterns.sum(axis=1)
    expected = [
        (chance[score == k] @ patterns[score == k]) / chance[score == k].sum() for k in range(n + 1)
    ]
    np.testing.assert_allclose(
        item_probabilities_by_score(weights, offsets, nodes), expected, atol=1e-12
    )


def test_many_even_items_stay_precise() -> None:
    """Items of P = 1/2 bring the characteristic function next to 0."""
    nodes = gauss_hermite(5, 1)
    found = item_probabilities_by_score(np.zeros((301, 1)), np.zeros(301), nodes)
    np.testing.assert_allclose(
        found[130:170], (np.arange(130, 170) / 301)[:, None] + np.zeros(301), atol=1e-9
    )


def test_what_fits_has_no_misfit() -> None:
    weights, offsets, nodes = np.ones((6, 1)), np.linspace(-1, 1, 6), gauss_hermite(21, 1)
    rows = np.full(7, 10_000)
    ones = np.rint(rows[:, None] * item_probabilities_by_score(weights, offsets, nodes)).astype(
        np.int64
    )
    found = item_fit_statistics(rows, ones, weights, offsets, nodes, np.ones(6))
    assert (found.df == 3).all()
    assert (found.s_x2 < 1e-3).all()


def test_cells_with_too_few_rows_are_put_together() -> None:
    weights, offsets, nodes = np.ones((4, 1)), np.zeros(4), gauss_hermite(21, 1)
    rows, ones = np.array([0, 3, 2, 3, 0]), np.zeros((5, 4), np.int64)
    found = item_fit_statistics(rows, ones, weights, offsets, nodes, np.ones(4))
    assert np.isnan(found).all()


def simulate_items(seed: int, missing: float, n_items: int = 10) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    slopes, offsets = rng.uniform(0.7, 2, n_items), rng.normal(size=n_items)
    chances = expit(np.outer(rng.normal(size=1000), slopes) + offsets)
    return rng.random(chances.shape) < chances, rng.random(chances.shape) >= missing


def test_degrees_of_freedom_follow_the_share_of_complete_rows() -> None:
    X, observed = simulate_items(0, 0.1)
    state = fitted(X.astype(np.uint8), observed.astype(np.uint8), n_components=1)
    n_complete = observed.all(axis=1).sum()
    lost = state.params.s_x2_df - np.ceil(state.params.s_x2_df)
    np.testing.assert_allclose(lost % 1, -2 * n_complete / observed.sum(axis=0) % 1, atol=1e-9)
    assert state.diagnostics["fit_statistics"]["s_x2_rows"] == n_complete


def test_constant_items_do_not_change_the_misfit_of_others() -> None:
    X = simulate_items(1, 0.0)[0].astype(np.uint8)
    constant = np.column_stack([np.ones((1000, 2), np.uint8), X, np.zeros((1000, 1), np.uint8)])
    alone = fitted(X, n_components=1).params
    among = fitted(constant, n_components=1, constant_features="pin").params
    np.testing.assert_allclose(among.s_x2[2:-1], alone.s_x2, rtol=1e-3)
    assert np.isnan(among.s_x2_p[[0, 1, -1]]).all()


def test_misfit_of_too_many_items_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_errors, "MAX_ITEMS", 9)
    state = fitted(simulate_items(2, 0.0)[0].astype(np.uint8), n_components=1)
    assert state.params.s_x2 is None
    assert "too many items" in state.diagnostics["fit_statistics"]["s_x2_missing"]


@pytest.mark.matrix
@pytest.mark.parametrize("missing", [0.03, 0.2])
def test_true_items_are_rejected_at_the_nominal_rate(missing: float) -> None:
    p = []
    for seed in range(60):
        X, observed = simulate_items(seed, missing)
        p.extend(
            fitted(X.astype(np.uint8), observed.astype(np.uint8), n_components=1).params.s_x2_p
        )
    # 600 tests: a standard error of 0.009 at 5 %
    assert 0.025 < np.mean(np.array(p) < 0.05) < 0.075
