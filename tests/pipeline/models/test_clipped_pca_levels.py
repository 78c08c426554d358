"""Clipped PCA of features with several levels, against R's lavaan and simulations."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_model

Levels = NDArray[np.uint8]
Floats = NDArray[np.float64]
COUNTS = [2, 3, 4, 5, 3, 2, 4, 3]


def fit_levels(
    X: Levels, counts: Sequence[int], mask: Levels | None = None, seed: int = 0, **settings: Any
) -> FitState:
    rows = make_memory_rows(make_data(X, counts, mask))
    return fit_model(make_model(ClippedPCA, counts, **settings), rows, SerialExecutor(), seed)


def draw_levels(
    n_rows: int, rng: np.random.Generator, counts: Sequence[int] = COUNTS
) -> tuple[Levels, Floats]:
    """Draw levels of two factors, and return them with the loadings."""
    n = len(counts)
    loadings = np.column_stack([np.linspace(0.5, 0.75, n), 0.4 * (-1.0) ** np.arange(n)])
    x = rng.standard_normal((n_rows, 2)) @ loadings.T
    x += np.sqrt(1 - (loadings**2).sum(axis=1)) * rng.standard_normal(x.shape)
    cuts = (np.linspace(-1, 1.2, k + 1)[1:-1] for k in counts)
    columns = [np.searchsorted(c, x[:, i]) for i, c in enumerate(cuts)]
    return np.column_stack(columns).astype(np.uint8), loadings


def test_correlations_thresholds_and_errors_agree_with_lavaan() -> None:
    with find_reference("data/bfi6_complete.csv").open() as file:
        header, *lines = csv.reader(file)
    X = np.array(lines, np.uint8) - 1
    params = fit_levels(X, [6] * 6, n_components=2).params
    with find_reference("08_polychoric_mixed/bfi6_polychoric.csv").open() as file:
        pairs = list(csv.DictReader(file))
    assert len(pairs) == 15
    for row in pairs:
        pair = header.index(row["i"]), header.index(row["j"])
        assert params.correlation[pair] == pytest.approx(float(row["exact_two_step"]), abs=1e-7)
        # lavaan divides by n − 1.
        error = float(row["lavaan_se"]) * np.sqrt(1 - 1 / len(X))
        assert params.correlation_error[pair] == pytest.approx(error, rel=2e-6)
    with find_reference("08_polychoric_mixed/bfi6_thresholds.csv").open() as file:
        thresholds = list(csv.DictReader(file))
    assert_allclose(params.thresholds, [float(row["est"]) for row in thresholds], atol=1e-9)
    assert_allclose(params.thresholds_error, [float(row["se"]) for row in thresholds], rtol=2e-4)


def test_standard_errors_are_the_spread_of_estimates() -> None:
    rng = np.random.default_rng(3)
    estimates = []
    for _ in range(40):
        X, _ = draw_levels(800, rng)
        mask = (rng.random(X.shape) >= 0.3).astype(np.uint8)
        estimates.append(fit_levels(X, COUNTS, mask, n_components=2).params)
    first = estimates[0].loadings
    for name in ("loadings", "correlation", "thresholds"):
        values = np.array([getattr(params, name) for params in estimates])
        if name == "loadings":  # up to signs
            values *= np.sign((values * first).sum(axis=1, keepdims=True))
        spread = values.std(axis=0, ddof=1)
        errors = np.mean([getattr(params, f"{name}_error") for params in estimates], axis=0)
        ratio = spread[errors > 0] / errors[errors > 0]
        assert ratio.mean() == pytest.approx(1, abs=0.12), name
        assert (np.abs(ratio - 1) < 0.4).all(), name


def test_binary_features_among_others_have_the_numbers_of_binary_data() -> None:
    rng = np.random.default_rng(4)
    X, _ = draw_levels(700, rng, [2, 2, 2, 2, 3])
    mask = (rng.random(X.shape) < 0.8).astype(np.uint8)
    mixed = fit_levels(X, [2, 2, 2, 2, 3], mask, n_components=1).params
    binary = fit_levels(X[:, :4], [2] * 4, mask[:, :4], n_components=1).params
    assert binary.n_levels is None
    for name in ("correlation", "correlation_error"):
        assert_allclose(getattr(mixed, name)[:4, :4], getattr(binary, name), atol=1e-10)
    assert_array_equal(mixed.thresholds[:4], binary.thresholds)
    loadings = np.linspace(0.3, 0.8, 4)[:, None]
    plain = replace(binary, loadings=loadings)
    leveled = replace(plain, n_levels=np.full(4, 2))
    block = pack_block(X[:, :4], mask[:, :4])
    codes = [ClippedPCA().transform(p, block, RowRandom(0)) for p in (plain, leveled)]
    for name in ("mean", "variance", "converged"):
        assert_allclose(codes[1][name], codes[0][name], atol=1e-9)


def test_merged_levels_are_fitted_as_levels_that_never_were_apart() -> None:
    """An empty level is one that was merged: it changes the thresholds' number only."""
    X, _ = draw_levels(900, np.random.default_rng(6))
    merged = X.copy()
    merged[:, 2] -= X[:, 2] >= 2  # the second and third level
    apart = merged.copy()
    apart[:, 2] += merged[:, 2] >= 2  # as if a level between them were empty
    fewer = [3 if i == 2 else k for i, k in enumerate(COUNTS)]
    plain = fit_levels(merged, fewer, n_components=2)
    empty = fit_levels(apart, COUNTS, n_components=2)
    assert plain.warnings == ()
    (warning,) = empty.warnings
    assert warning.render() == (
        "no row has some levels of these features, so the fit gives these levels a probability of "
        "0 or nearly 0: 'q2'"
    )
    for name in ("correlation", "correlation_error", "loadings", "eigenvalues"):
        expected = getattr(plain.params, name)
        assert_allclose(getattr(empty.params, name), expected, atol=1e-12, err_msg=name)
    start = sum(fewer[:2]) - 2
    twice = np.insert(plain.params.thresholds, start + 1, plain.params.thresholds[start + 1])
    assert_array_equal(empty.params.thresholds, twice)
    # A row with the empty level tells that the latent is at the threshold.
    row = apart[:1].copy()
    row[0, 2] = 2
    codes = ClippedPCA().transform(empty.params, make_data(row, COUNTS).pack(), RowRandom(0))
    assert codes["converged"].all()
    assert np.isfinite(codes["mean"]).all()
