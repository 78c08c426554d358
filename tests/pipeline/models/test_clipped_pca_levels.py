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
from scipy.special import ndtr

from pipeline.data.blocks import pack_block
from pipeline.data.features import Feature, split_levels, split_values, sum_planes
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import DenseData, make_memory_rows

Levels = NDArray[np.uint8]
Floats = NDArray[np.float64]
COUNTS = [2, 3, 4, 5, 3, 2, 4, 3]


def make_features(counts: Sequence[int]) -> tuple[Feature, ...]:
    return tuple(Feature(f"q{i}", tuple(map(str, range(k)))) for i, k in enumerate(counts))


def fit_levels(
    X: Levels, counts: Sequence[int], mask: Levels | None = None, seed: int = 0, **settings: Any
) -> FitState:
    features = make_features(counts)
    model = ClippedPCA(**settings).with_structure(Structure(features=features))
    planes, observed = split_values(X, mask, features)
    rows = make_memory_rows(DenseData(planes, observed))
    return fit_model(model, rows, SerialExecutor(), seed)


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


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_standard_errors_are_the_spread_of_estimates(missing: float) -> None:
    rng = np.random.default_rng(3)
    estimates = []
    for _ in range(40):
        X, _ = draw_levels(800, rng)
        mask = (rng.random(X.shape) >= missing).astype(np.uint8) if missing else None
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


def test_the_ring_with_three_levels_has_the_eigenvalues_of_the_paper() -> None:
    """The eigenvalues of 256 units are 128 up to sampling errors, as of two levels."""
    angles = 2 * np.pi * np.arange(256) / 256
    y = np.random.default_rng(0).standard_normal((60_000, 2)) @ [np.cos(angles), np.sin(angles)]
    X = (y > -0.5).astype(np.uint8) + (y > 0.5)
    params = fit_levels(X, [3] * 256, n_components=2, errors="none").params
    assert_allclose(params.eigenvalues[:2], [128.1, 127.9], rtol=0.01)


def test_the_number_of_components_is_that_of_the_factors() -> None:
    rng = np.random.default_rng(1)
    counts = COUNTS * 3
    state = fit_levels(draw_levels(1500, rng, counts)[0], counts)
    assert state.params.loadings.shape == (24, 2)
    assert state.warnings == ()
    independent = np.column_stack([rng.choice(k, 1500) for k in counts]).astype(np.uint8)
    assert fit_levels(independent, counts).params.loadings.shape == (24, 0)


@pytest.mark.matrix
def test_null_spectra_are_those_of_permuted_rows() -> None:
    rng = np.random.default_rng(2)
    counts = COUNTS * 2
    X = np.column_stack([rng.binomial(k - 1, 0.2, 300) for k in counts]).astype(np.uint8)
    drawn = fit_levels(X, counts, null_draws=400).params.null_eigenvalues
    permuted = [
        fit_levels(rng.permuted(X, axis=0), counts, n_components=3, errors="none").params
        for _ in range(400)
    ]
    expected = np.quantile([params.eigenvalues for params in permuted], 0.95, axis=0)
    assert_allclose(drawn[:3], expected[:3], rtol=0.04)


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


def test_reversed_levels_reverse_signs() -> None:
    X, _ = draw_levels(900, np.random.default_rng(5))
    turned = X.copy()
    turned[:, 3] = COUNTS[3] - 1 - X[:, 3]
    params, other = (fit_levels(levels, COUNTS, n_components=2).params for levels in (X, turned))
    signs = np.where(np.arange(len(COUNTS)) == 3, -1.0, 1.0)
    assert_allclose(other.correlation, params.correlation * np.outer(signs, signs), atol=1e-9)
    assert_allclose(other.correlation_error, params.correlation_error, rtol=1e-7)
    own = slice(sum(COUNTS[:3]) - 3, sum(COUNTS[:4]) - 4)
    assert_allclose(other.thresholds[own], -params.thresholds[own][::-1], atol=1e-12)
    expected = params.loadings * signs[:, None]
    expected *= np.sign((expected * other.loadings).sum(axis=0))
    assert_allclose(other.loadings, expected, atol=1e-8)


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
    codes = ClippedPCA().transform(
        empty.params, pack_block(split_levels(row, make_features(COUNTS))), RowRandom(0)
    )
    assert codes["converged"].all()
    assert np.isfinite(codes["mean"]).all()


def test_codes_are_posterior_means_and_variances() -> None:
    X, loadings = draw_levels(60, np.random.default_rng(7))
    mask = (np.random.default_rng(8).random(X.shape) < 0.8).astype(np.uint8)
    features = make_features(COUNTS)
    params = fit_levels(X, COUNTS, n_components=2, errors="none").params
    params = replace(params, loadings=loadings)
    block = pack_block(*split_values(X, mask, features))
    codes = ClippedPCA().transform(params, block, RowRandom(0))
    axis = np.linspace(-6, 6, 161)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    at_least = ClippedPCA().reconstruct(params, grid)
    logs = np.tile(-0.5 * (grid**2).sum(axis=1), (len(X), 1))
    first = 0
    for i, k in enumerate(COUNTS):
        own = np.pad(at_least[:, first : first + k - 1], ((0, 0), (1, 0)), constant_values=1.0)
        chances = -np.diff(np.pad(own, ((0, 0), (0, 1))), axis=1)
        logs += np.where(mask[:, [i]] == 1, np.log(chances + 1e-300).T[X[:, i]], 0.0)
        first += k - 1
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ grid
    assert_allclose(codes["mean"], mean, atol=3e-3)
    assert_allclose(codes["variance"], weights @ grid**2 - mean**2, atol=4e-3)


def test_samples_have_the_margins_and_correlations_of_the_fit() -> None:
    X, _ = draw_levels(20_000, np.random.default_rng(9))
    params = fit_levels(X, COUNTS, n_components=2, errors="none").params
    drawn = ClippedPCA().sample(params, 40_000, np.random.default_rng(0))
    assert_allclose(drawn.mean(axis=0), ndtr(-params.thresholds), atol=0.012)
    again = fit_levels(sum_planes(drawn, make_features(COUNTS)), COUNTS, n_components=2).params
    expected = params.loadings @ params.loadings.T
    np.fill_diagonal(expected, 1.0)
    assert_allclose(again.correlation, expected, atol=0.04)


def test_constant_features_are_named_and_kept_on_request() -> None:
    X, _ = draw_levels(300, np.random.default_rng(10))
    X[:, 4] = 1
    with pytest.raises(FitError, match="These features are constant: 'q4'"):
        fit_levels(X, COUNTS, n_components=1)
    state = fit_levels(X, COUNTS, n_components=1, constant_features="keep")
    assert_array_equal(state.params.loadings[4], 0)
    assert all(warning.features == ("q4",) for warning in state.warnings)
    assert len(state.warnings) == 1


def test_arcsine_is_refused_for_levels() -> None:
    X, _ = draw_levels(50, np.random.default_rng(11))
    with pytest.raises(FitError, match='estimator="arcsine" takes binary features only'):
        fit_levels(X, COUNTS, estimator="arcsine")


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_weighted_rows_in_segments_are_repeated_rows(missing: float) -> None:
    rng = np.random.default_rng(12)
    X, _ = draw_levels(400, rng)
    mask = (rng.random(X.shape) >= missing).astype(np.uint8) if missing else None
    features = make_features(COUNTS)
    planes, observed = split_values(X, mask, features)
    times, segments = rng.integers(0, 4, 400), rng.integers(0, 3, 400)
    data = DenseData(planes, observed, segments, weights=times)
    model = ClippedPCA().with_structure(Structure(features=features))
    weighted = fit_model(model, make_memory_rows(data, [150, 250]), SerialExecutor())
    rows = np.repeat(np.arange(400), times)
    repeated = fit_levels(X[rows], COUNTS, None if mask is None else mask[rows])
    for name, expected in vars(repeated.params).items():
        assert_array_equal(getattr(weighted.params, name), expected, err_msg=name)
    survey = fit_model(
        replace(model, n_components=2),
        make_memory_rows(replace(data, weights=times / 7), kind="sampling"),
        SerialExecutor(),
    )
    for name in ("correlation", "thresholds"):  # weights are rounded to 2**-20
        expected = getattr(repeated.params, name)
        assert_allclose(getattr(survey.params, name), expected, atol=1e-4, err_msg=name)
    assert survey.params.correlation_error is None
