"""Clipped PCA with levels and continuous features, against R's lavaan, polycor and brute force."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import ClippedPCA, ClippedPCAParams
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_model

Floats = NDArray[np.float64]
COUNTS = [0, 2, 3, 0, 4, 2, 0, 3]  # numbers of levels, 0 of continuous features


def fit_rows(X: Floats, counts: Sequence[int] = COUNTS, **settings: Any) -> FitState:
    sizes = [len(part) for part in np.array_split(X, 3)]
    rows = make_memory_rows(make_data(X, counts), sizes)
    return fit_model(make_model(ClippedPCA, counts, **settings), rows, SerialExecutor())


def compute_codes(
    params: ClippedPCAParams, X: Floats, counts: Sequence[int] = COUNTS
) -> dict[str, NDArray[Any]]:
    return dict(ClippedPCA().transform(params, make_data(X, counts).pack(), RowRandom(0)))


def draw_rows(
    n_rows: int, seed: int, missing: float = 0.0, counts: Sequence[int] = COUNTS
) -> tuple[Floats, Floats]:
    """Draw rows of two factors, and return them with the loadings."""
    rng, n = np.random.default_rng(seed), len(counts)
    loadings = np.column_stack([np.linspace(0.5, 0.75, n), 0.4 * (-1.0) ** np.arange(n)])
    X = rng.standard_normal((n_rows, 2)) @ loadings.T
    X += np.sqrt(1 - (loadings**2).sum(axis=1)) * rng.standard_normal(X.shape)
    for i, k in enumerate(counts):
        if k:
            X[:, i] = np.searchsorted(np.linspace(-1, 1.2, k + 1)[1:-1], X[:, i])
    X[rng.random(X.shape) < missing] = np.nan
    return X, loadings


def read_mixed8() -> tuple[list[str], Floats]:
    with find_reference("data/hs_mixed8.csv").open() as file:
        header, *lines = csv.reader(file)
    return header, np.array(lines, np.float64)


def test_correlations_agree_with_r() -> None:
    names, X = read_mixed8()
    counts = [0, 0, 4, 3, 5, 2, 2, 0]
    params = fit_rows(X, counts, n_components=2).params
    with find_reference("08_polychoric_mixed/hs_mixed8_mixed.csv").open() as file:
        pairs = list(csv.DictReader(file))
    assert len(pairs) == 28
    for row in pairs:
        pair = names.index(row["i"]), names.index(row["j"])
        assert params.correlation[pair] == pytest.approx(float(row["exact_two_step"]), abs=1e-7)
    assert_array_equal(params.n_levels, [1, 1, 4, 3, 5, 2, 2, 1])
    is_continuous = np.array(counts) == 0
    assert_allclose(params.means, np.where(is_continuous, X.mean(axis=0), 0.0), rtol=1e-6)
    assert_allclose(params.scales, np.where(is_continuous, X.std(axis=0), 1.0), rtol=1e-6)


def test_missing_values_leave_out_rows_pair_by_pair() -> None:
    X, _ = draw_rows(500, 0, missing=0.2)
    correlation = fit_rows(X, n_components=1).params.correlation
    for i, j in [(0, 3), (0, 4), (3, 1), (2, 4), (6, 7)]:
        own = X[~np.isnan(X[:, [i, j]]).any(axis=1)][:, [i, j]]
        counts = [COUNTS[i], COUNTS[j]]
        if not any(counts):
            assert correlation[i, j] == pytest.approx(np.corrcoef(own.T)[0, 1], abs=1e-6)
            continue
        pair = fit_rows(own, counts, n_components=1).params.correlation
        assert correlation[i, j] == pytest.approx(pair[0, 1], abs=1e-9)


def test_a_large_mean_costs_no_digits() -> None:
    X, _ = draw_rows(800, 2)
    X[:, 0] = np.round(X[:, 0] * 16) / 16
    moved = X.copy()
    moved[:, 0] += 1e6  # exact in 32 bits
    near, far = (fit_rows(values, n_components=2) for values in (X, moved))
    assert_allclose(far.params.correlation, near.params.correlation, atol=1e-11)
    assert_allclose(far.params.scales, near.params.scales, rtol=1e-11)
    codes = [compute_codes(fit.params, values) for fit, values in ((near, X), (far, moved))]
    assert_allclose(codes[0]["mean"], codes[1]["mean"], atol=1e-8)


def test_units_do_not_matter_and_reversed_values_reverse_signs() -> None:
    X, _ = draw_rows(600, 15, missing=0.1)
    turned = X.copy()
    turned[:, 0] *= 0.25
    turned[:, 3] *= -8.0
    params, other = (fit_rows(values, n_components=2).params for values in (X, turned))
    signs = np.where(np.arange(len(COUNTS)) == 3, -1.0, 1.0)
    assert_allclose(other.correlation, params.correlation * np.outer(signs, signs), atol=1e-9)
    assert_allclose(other.scales[[0, 3]], params.scales[[0, 3]] * [0.25, 8.0], rtol=1e-12)
    assert_allclose(other.means[[0, 3]], params.means[[0, 3]] * [0.25, -8.0], rtol=1e-9)


def test_a_fit_continues_from_each_of_its_passes() -> None:
    X, _ = draw_rows(400, 17, missing=0.1)
    model, rows = make_model(ClippedPCA, COUNTS), make_memory_rows(make_data(X, COUNTS))
    states: list[FitState] = []
    whole = fit_model(model, rows, SerialExecutor(), checkpoint=states.append)
    assert 3 <= len(states) <= 6  # a pass for moments, and steps of Newton's method
    for state in states[:-1]:
        again = fit_model(model, rows, SerialExecutor(), state=state)
        for name, values in vars(whole.params).items():
            assert_array_equal(getattr(again.params, name), values, err_msg=name)


def test_loadings_and_their_number_are_those_of_the_factors() -> None:
    rng = np.random.default_rng(4)
    X, _ = draw_rows(3000, 4)
    state = fit_rows(X)
    assert state.params.loadings.shape == (8, 2)
    assert state.warnings == ()
    independent = rng.permuted(X, axis=0)
    assert fit_rows(independent).params.loadings.shape == (8, 0)


def test_standard_errors_are_the_spread_over_samples() -> None:
    n_rows, n_samples = 600, 60
    X, _ = draw_rows(n_rows * n_samples, 18, missing=0.2)
    whole = fit_rows(X, n_components=2).params
    parts = [
        fit_rows(part, n_components=2, errors="none").params
        for part in X.reshape(n_samples, n_rows, -1)
    ]
    correlations = np.std([part.correlation for part in parts], axis=0)
    loadings = np.std(
        [p.loadings * np.sign((p.loadings * whole.loadings).sum(axis=0)) for p in parts], axis=0
    )
    scale = np.sqrt(n_samples)
    off = ~np.eye(len(COUNTS), dtype=bool)
    ratio = correlations[off] / (scale * whole.correlation_error[off])
    # A standard deviation of 60 values is off by 9 %.
    assert_allclose(ratio, 1, atol=0.36)
    assert np.median(ratio) == pytest.approx(1, abs=0.06)
    ratio = loadings / (scale * whole.loadings_error)
    assert_allclose(ratio, 1, atol=0.36)
    assert np.median(ratio) == pytest.approx(1, abs=0.08)


def test_standard_errors_of_levels_are_those_of_fits_without_numbers() -> None:
    X, _ = draw_rows(500, 19, missing=0.1)
    own = np.array(COUNTS) > 0
    counts = [k for k in COUNTS if k]
    mixed = fit_rows(X, n_components=1).params
    levels = fit_rows(X[:, own], counts, n_components=1).params
    assert_allclose(mixed.correlation_error[np.ix_(own, own)], levels.correlation_error, rtol=1e-12)
    assert_allclose(mixed.thresholds_error, levels.thresholds_error, rtol=1e-12)


def test_features_without_information_have_no_standard_errors() -> None:
    X, _ = draw_rows(300, 20)
    X[:, 3], X[:, 4] = 7.1, 1
    X[:150, 0], X[150:, 1] = np.nan, np.nan
    params = fit_rows(X, n_components=1, constant_features="keep").params
    is_unknown = np.isnan(params.correlation_error)
    assert is_unknown[3].sum() == is_unknown[4].sum() == 7
    assert is_unknown[0, 1]
    assert not is_unknown[0, [2, 5, 6, 7]].any()
    assert_array_equal(np.isnan(params.loadings_error[:, 0]), np.isin(np.arange(8), [0, 1, 3, 4]))


@pytest.mark.matrix
def test_null_spectra_are_those_of_permuted_rows() -> None:
    rng = np.random.default_rng(5)
    X, _ = draw_rows(300, 5)
    drawn = fit_rows(X, null_draws=300).params.null_eigenvalues
    permuted = [
        fit_rows(rng.permuted(X, axis=0), n_components=3).params.eigenvalues[:3] for _ in range(150)
    ]
    assert_allclose(drawn[:3], np.quantile(permuted, 0.95, axis=0), rtol=0.05)


def test_codes_are_posterior_means_and_variances() -> None:
    X, loadings = draw_rows(60, 6, missing=0.2)
    params = replace(fit_rows(draw_rows(500, 7)[0], n_components=2).params, loadings=loadings)
    codes = compute_codes(params, X)
    assert codes["converged"].all()
    axis = np.linspace(-6, 6, 241)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    at_least = ClippedPCA().reconstruct(params, grid)
    noise = np.sqrt(1 - (loadings**2).sum(axis=1))
    logs, first = np.tile(-0.5 * (grid**2).sum(axis=1), (len(X), 1)), 0
    for i, k in enumerate(COUNTS):
        is_seen = ~np.isnan(X[:, i])
        if k:
            own = np.pad(at_least[:, first : first + k - 1], ((0, 0), (1, 0)), constant_values=1.0)
            chances = -np.diff(np.pad(own, ((0, 0), (0, 1))), axis=1)
            logs[is_seen] += np.log(chances + 1e-300).T[X[is_seen, i].astype(int)]
            first += k - 1
        else:
            z = (np.float32(X[is_seen, i]) - params.means[i]) / params.scales[i]
            logs[is_seen] -= 0.5 * ((z[:, None] - grid @ loadings[i]) / noise[i]) ** 2
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ grid
    assert_allclose(codes["mean"], mean, atol=3e-3)
    assert_allclose(codes["variance"], weights @ grid**2 - mean**2, atol=4e-3)


def test_codes_of_values_alone_are_exact() -> None:
    X, loadings = draw_rows(50, 8)
    X[:, np.array(COUNTS) > 0] = np.nan
    params = replace(fit_rows(draw_rows(500, 9)[0], n_components=2).params, loadings=loadings)
    codes = compute_codes(params, X)
    own = np.flatnonzero(np.array(COUNTS) == 0)
    noise = 1 - (loadings[own] ** 2).sum(axis=1)
    covariance = np.linalg.inv(np.eye(2) + (loadings[own].T / noise) @ loadings[own])
    z = (np.float32(X[:, own]) - params.means[own]) / params.scales[own]
    assert_allclose(codes["mean"], (z / noise) @ loadings[own] @ covariance, atol=1e-9)
    assert_allclose(codes["variance"], np.tile(np.diag(covariance), (50, 1)), atol=1e-9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.inf, "These features have infinite values: 'q3'"),
        (np.nan, "These features have no observed value: 'q3'. Leave them out"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_name(values: float, message: str) -> None:
    X, _ = draw_rows(100, 10)
    X[:, 3] = values
    with pytest.raises(FitError, match=message):
        fit_rows(X, n_components=1, constant_features="keep")


def test_continuous_features_alone_have_ordinary_components() -> None:
    X, _ = draw_rows(500, 21)
    X = X[:, np.array(COUNTS) == 0]
    params = fit_rows(X, [0] * 3, n_components=1).params
    expected = np.corrcoef(X.T)
    assert_allclose(params.correlation, expected, atol=1e-6)
    assert_allclose(params.correlation_error, (1 - expected**2) / np.sqrt(500), atol=1e-6)
    values, vectors = np.linalg.eigh(expected)
    loadings = vectors[:, -1] * np.sqrt(values[-1])
    assert_allclose(np.abs(params.loadings[:, 0]), np.abs(loadings), atol=1e-6)
    assert np.isfinite(params.loadings_error).all()
    assert fit_rows(X, [0] * 3).params.loadings.shape == (3, 1)


def test_arcsine_is_refused_for_continuous_features() -> None:
    X, _ = draw_rows(100, 11)
    with pytest.raises(FitError, match="takes binary features only"):
        fit_rows(X, correlation="arcsine")


def test_constant_features_are_named_and_kept_on_request() -> None:
    X, _ = draw_rows(300, 12)
    X[:, 3], X[:, 4] = 7.1, 1
    with pytest.raises(FitError, match="These features are constant: 'q3', 'q4'"):
        fit_rows(X, n_components=1)
    state = fit_rows(X, n_components=1, constant_features="keep", errors="none")
    assert_array_equal(state.params.loadings[[3, 4]], 0)
    assert_array_equal(state.params.correlation[[3, 4]], np.arange(8) == [[3], [4]])
    assert [warning.features for warning in state.warnings] == [("q3", "q4")]
    _, numbers = ClippedPCA().sample_numbers(state.params, 50, np.random.default_rng(0))
    assert_allclose(numbers[:, 1], 7.1, rtol=1e-6)
    X[:, 3] += 1  # other values of a feature without loadings say nothing
    codes = compute_codes(state.params, X)["mean"]
    X[:, 3] = np.nan
    missing = compute_codes(state.params, X)["mean"]
    assert_allclose(codes, missing, atol=1e-12)


def test_correlations_thresholds_and_errors_agree_with_lavaan() -> None:
    with find_reference("data/bfi6_complete.csv").open() as file:
        header, *lines = csv.reader(file)
    X = np.array(lines, np.float64) - 1
    params = fit_rows(X, [6] * 6, n_components=2).params
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


def test_binary_features_among_others_have_the_numbers_of_binary_data() -> None:
    counts = [2, 2, 2, 2, 3]
    X, _ = draw_rows(700, 22, 0.2, counts)
    mixed = fit_rows(X, counts, n_components=1).params
    binary = fit_rows(X[:, :4], [2] * 4, n_components=1).params
    assert binary.n_levels is None
    for name in ("correlation", "correlation_error"):
        assert_allclose(getattr(mixed, name)[:4, :4], getattr(binary, name), atol=1e-10)
    assert_array_equal(mixed.thresholds[:4], binary.thresholds)
    plain = replace(binary, loadings=np.linspace(0.3, 0.8, 4)[:, None])
    leveled = replace(plain, n_levels=np.full(4, 2))
    codes = [compute_codes(params, X[:, :4], [2] * 4) for params in (plain, leveled)]
    for name in ("mean", "variance", "converged"):
        assert_allclose(codes[1][name], codes[0][name], atol=1e-9)


def test_merged_levels_are_fitted_as_levels_that_never_were_apart() -> None:
    """An empty level is one that was merged: it changes the thresholds' number only."""
    counts = [2, 3, 4, 5, 3, 2, 4, 3]
    X, _ = draw_rows(900, 6, counts=counts)
    merged = X.copy()
    merged[:, 2] -= X[:, 2] >= 2  # the second and third level
    apart = merged.copy()
    apart[:, 2] += merged[:, 2] >= 2  # as if a level between them were empty
    fewer = [3 if i == 2 else k for i, k in enumerate(counts)]
    plain = fit_rows(merged, fewer, n_components=2)
    empty = fit_rows(apart, counts, n_components=2)
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
    codes = compute_codes(empty.params, row, counts)
    assert codes["converged"].all()
    assert np.isfinite(codes["mean"]).all()
