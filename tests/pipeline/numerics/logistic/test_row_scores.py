"""Scores of rows against a maximization per row by SciPy, and values of mirt."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import scipy

from pipeline.numerics.logistic.asymptotes import Asymptotes
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    compute_item_information,
    compute_level_probabilities,
)
from pipeline.numerics.logistic.categories.gaussian_items import GaussianItems
from pipeline.numerics.logistic.categories.row_scores import compute_row_scores, sum_answers
from tests.support.data import find_reference

RNG = np.random.default_rng(5)


def make_items(kind: str, q: int = 1) -> LevelItems:
    n_planes = np.array([1, 2, 3, 1, 2, 4])
    if kind in ("binary", "guessing"):
        n_planes = np.ones(7, np.int64)
    n = len(n_planes)
    slopes = np.where(np.arange(n) == 2, -1, 1)[:, None] * RNG.uniform(0.7, 2, (n, q))
    steps = [np.sort(RNG.normal(0, 1, m))[::-1] for m in n_planes]
    weights = np.repeat(slopes, n_planes, axis=0)
    if kind == "baseline":
        weights *= np.concatenate([np.arange(1, m + 1) for m in n_planes])[:, None]
    asymptotes = None
    if kind == "guessing":
        asymptotes = Asymptotes(np.full(n, 0.2), np.full(n, 0.05))
    is_cumulative = kind != "baseline"
    return LevelItems(weights, np.concatenate(steps), n_planes, is_cumulative, None, asymptotes)


def draw_bits(items: LevelItems, n_rows: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows at random levels, and a mask."""
    levels = np.array([RNG.integers(0, m + 1, n_rows) for m in items.n_planes]).T
    numbers = np.concatenate([np.arange(1, m + 1) for m in items.n_planes])
    X = (np.repeat(levels, items.n_planes, axis=1) >= numbers).astype(np.uint8)
    mask = (RNG.random((n_rows, len(items.n_planes))) < share).astype(np.uint8)
    mask = np.repeat(mask, items.n_planes, axis=1)
    return X * mask, mask


def compute_log_likelihood(
    items: LevelItems, points: np.ndarray, row: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """Return log P of a row's answers at points, (n_points, q)."""
    log_p, place, first = np.log(compute_level_probabilities(items, points)), 0, 0
    total = np.zeros(len(points))
    for m in items.n_planes:
        if mask[first]:
            total += log_p[:, place + int(row[first : first + m].sum())]
        place, first = place + m + 1, first + m
    return total


def find_maximum(function: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the highest point of a function of points, (n, 1), by a grid and then SciPy."""
    grid = np.linspace(-8, 8, 321)
    best = grid[function(grid[:, None]).argmax()]
    end = scipy.optimize.minimize_scalar(
        lambda x: -function(np.array([[x]]))[0],
        bounds=(best - 0.05, best + 0.05),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(end.x)


def compute_bend(items: LevelItems, x: float) -> float:
    """Return Σ P′ P″ / P by differences."""
    h = 1e-4
    below, at, above = (compute_level_probabilities(items, np.array([[x + d]])) for d in (-h, 0, h))
    return float(((above - below) / (2 * h) * (above - 2 * at + below) / h**2 / at).sum())


@pytest.mark.parametrize("kind", ["binary", "cumulative", "baseline", "guessing"])
def test_scores_of_one_trait_are_roots(kind: str) -> None:
    items = make_items(kind)
    X, mask = draw_bits(items, 12, 0.85)
    means = RNG.normal(0, 0.5, (12, 1))
    found = compute_row_scores(X, mask, items, "map", means)
    ml, wle = (compute_row_scores(X, mask, items, name) for name in ("ml", "wle"))
    for row in range(12):
        likelihood = partial(compute_log_likelihood, items, row=X[row], mask=mask[row])
        mean = means[row, 0]
        end = find_maximum(lambda x, f=likelihood, m=mean: f(x) - 0.5 * (x[:, 0] - m) ** 2)
        assert found.scores[row, 0] == pytest.approx(end, abs=1e-5)
        if ml.is_finite[row] and abs(ml.scores[row, 0]) < 7.9:
            assert ml.scores[row, 0] == pytest.approx(find_maximum(likelihood), abs=1e-5)
    if kind == "guessing":
        return
    assert wle.is_finite.all()
    complete = compute_row_scores(X, None, items, "wle")
    for row in range(12):
        x = complete.scores[row, 0]
        total = compute_item_information(items, np.array([[x]])).sum()
        points = np.array([[x - 1e-5], [x + 1e-5]])
        values = compute_log_likelihood(items, points, X[row], np.ones(X.shape[1]))
        slope = (values[1] - values[0]) / 2e-5
        assert slope + compute_bend(items, x) / (2 * total) == pytest.approx(0, abs=1e-5)
        assert complete.covariance[row, 0, 0] == pytest.approx(1 / total)


def test_rows_without_a_maximum_are_not_finite() -> None:
    """All answers at an end, with a reversed item, or none at all."""
    items = make_items("cumulative")
    X = np.ones((4, len(items.offsets)), np.uint8)
    is_reversed = np.repeat(np.arange(6) == 2, items.n_planes)
    X[0, is_reversed], X[1] = 0, is_reversed
    mask = np.ones_like(X)
    mask[3] = 0
    found = compute_row_scores(X * mask, mask, items, "ml")
    assert found.is_finite.tolist() == [False, False, True, False]
    assert np.isnan(found.scores[:2]).all()
    wle = compute_row_scores(X * mask, mask, items, "wle")
    assert wle.is_finite.tolist() == [True, True, True, False]
    assert wle.scores[0, 0] > 1.5 > -1.5 > wle.scores[1, 0]
    assert compute_row_scores(X * mask, mask, items, "map").scores[3, 0] == 0


def test_several_traits_and_continuous_items_are_maximized() -> None:
    items = make_items("cumulative", 2)
    gaussians = GaussianItems(RNG.normal(0, 1, (2, 2)), np.zeros(2), np.ones(2), np.ones(2))
    items = items._replace(n_planes=np.append(items.n_planes, [0, 0]), gaussians=gaussians)
    bits, mask = draw_bits(items._replace(n_planes=items.n_planes[:-2]), 8, 0.9)
    y = RNG.normal(0, 1, (8, 2))
    X, mask = np.hstack([bits, y]), np.hstack([mask, np.ones((8, 2), np.uint8)])
    discrete = items._replace(n_planes=items.n_planes[:-2], gaussians=None)
    for kind in ("map", "ml"):
        found = compute_row_scores(X, mask, items, kind)
        assert found.is_finite.all()  # two measurements determine two traits
        for row in range(8):

            def loss(x: np.ndarray, row=row, kind=kind) -> float:
                own = compute_log_likelihood(discrete, x[None], bits[row], mask[row])[0]
                own -= 0.5 * ((y[row] - gaussians.weights @ x) ** 2).sum()
                return -own + 0.5 * (kind == "map") * (x**2).sum()

            end = scipy.optimize.minimize(loss, np.zeros(2), options={"gtol": 1e-8}).x
            np.testing.assert_allclose(found.scores[row], end, atol=2e-4)


def test_scores_are_those_of_mirt() -> None:
    """mirt (R): `fscores` of rows with missing answers by known items.

    Its steps end early, and its errors of WLE are those of the curvature, not of the information.
    """
    folder, tables = "04_fixed_calibration/verbal_aggression", []
    names = (f"{folder}_fixed_values", f"{folder}_scores_prior_0.0_1.0")
    for name in ("data/verbal_aggression_score_rows", *names):
        with find_reference(f"{name}.csv").open() as file:
            tables.append([*csv.DictReader(file)])
    answers, known, expected = tables
    slopes, offsets = (np.array([float(line[key]) for line in known]) for key in ("a1", "d"))
    texts = np.array([[line[item["item"]] for item in known] for line in answers])
    mask = (texts != "NA").astype(np.uint8)
    X = (texts == "1").astype(np.uint8)
    items = LevelItems.from_binary(slopes[:, None], offsets)
    for kind in ("map", "ml", "wle"):
        found = compute_row_scores(X, mask, items, kind)
        errors = np.sqrt(found.covariance[:, 0, 0])
        columns = [f"mirt_{kind.upper()}{end}" for end in ("", "_SE")]
        values = [[float(line[name].replace("NA", "nan")) for name in columns] for line in expected]
        for row, (score, error) in enumerate(values):
            assert found.is_finite[row] == np.isfinite(score)
            if np.isfinite(score):
                assert found.scores[row, 0] == pytest.approx(score, abs=1e-4)
                if kind != "wle":
                    assert errors[row] == pytest.approx(error, abs=1e-4)


def test_sums_reverse_items_and_expect_missing_answers() -> None:
    items = make_items("cumulative")
    X, mask = draw_bits(items, 6, 0.7)
    codes = RNG.normal(0, 1, (6, 1))
    is_reversed = np.arange(6) == 2
    score, variance = sum_answers(X, mask, items, codes, is_reversed)
    P = compute_level_probabilities(items, codes)
    for row in range(6):
        total, spread, place, first = 0.0, 0.0, 0, 0
        for item, m in enumerate(items.n_planes):
            p, levels = P[row, place : place + m + 1], np.arange(m + 1)
            answer = X[row, first : first + m].sum() if mask[row, first] else p @ levels
            total += m - answer if is_reversed[item] else answer
            spread += p @ levels**2 - (p @ levels) ** 2
            place, first = place + m + 1, first + m
        assert score[row] == pytest.approx(total)
        assert variance[row] == pytest.approx(spread)
