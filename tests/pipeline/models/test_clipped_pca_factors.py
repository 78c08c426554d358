"""Exploratory factors of clipped PCA: rows against R's psych, and their codes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.base import reverse_components
from pipeline.models.clipped_pca import ClippedPCA, ClippedPCAParams
from pipeline.models.clipped_pca.factors import (
    correlate_features,
    differentiate_factors,
    fit_loadings,
    rotate,
)
from pipeline.models.clipped_pca.model import probit_weights
from pipeline.models.state import FitState
from pipeline.numerics.metrics import match_columns
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_model

Floats = NDArray[np.float64]
LEVELS = [3, 2, 4, 3, 0, 2, 0, 3]  # numbers of levels, 0 of continuous features


def fit_rows(X: Floats, counts: Sequence[int], **settings: Any) -> FitState:
    sizes = [len(part) for part in np.array_split(X, 3)]
    rows = make_memory_rows(make_data(X, counts), sizes)
    return fit_model(make_model(ClippedPCA, counts, **settings), rows, SerialExecutor())


@cache
def read_csv(name: str, skipped: int = 0) -> Floats:
    with find_reference(name).open() as file:
        return np.array([line[skipped:] for line in csv.reader(file)][1:], np.float64)


def read_expected(name: str) -> Floats:
    return read_csv(f"11_factor_analysis/bfi25_{name}.csv", 1)


def draw_rows(n_rows: int, counts: Sequence[int], seed: int) -> tuple[Floats, Floats]:
    """Draw rows of two correlated factors, each of half the features; return their loadings too."""
    rng, n = np.random.default_rng(seed), len(counts)
    loadings = np.zeros((n, 2))
    loadings[: n // 2, 0] = np.linspace(0.5, 0.8, n // 2)
    loadings[n // 2 :, 1] = np.linspace(0.8, 0.5, n - n // 2)
    codes = rng.multivariate_normal([0, 0], [[1, 0.4], [0.4, 1]], n_rows)
    X = codes @ loadings.T
    X += np.sqrt(1 - (loadings**2).sum(axis=1)) * rng.standard_normal(X.shape)
    for i, k in enumerate(counts):
        if k:
            X[:, i] = np.searchsorted(np.linspace(-1, 1.2, k + 1)[1:-1], X[:, i])
    return X, loadings


@pytest.mark.parametrize("estimator", ["minres", "ml"])
def test_factors_of_a_questionnaire_agree_with_psych(estimator: Any) -> None:
    X = read_csv("data/bfi25.csv")
    settings: Any = {"estimator": estimator, "empty_cells": "none", "errors": "none"}
    state = fit_rows(X, [6] * 25, n_components=5, rotation="oblimin", **settings)
    params, expected = state.params, read_expected(f"{estimator}_oblimin_loadings")
    assert_allclose(params.correlation, read_expected("correlations"), atol=5e-5)
    matched = match_columns(params.loadings, expected)
    assert_allclose(matched, expected, atol=5e-4)
    turn = np.rint(np.linalg.lstsq(params.loadings, matched, rcond=None)[0])
    correlation = turn.T @ params.component_correlation @ turn
    assert_allclose(correlation, read_expected(f"{estimator}_oblimin_phi"), atol=5e-4)
    communality = read_expected(f"{estimator}_none_communality")[:, 0]
    assert_allclose(params.communality, communality, atol=2e-4)
    assert_allclose(params.uniqueness, 1 - params.communality)
    with find_reference("11_factor_analysis/bfi25_summary.csv").open() as file:
        lines = [line for line in csv.reader(file) if line[0] == f"bfi25_{estimator}_none"]
    psych = {line[1]: float(line[2]) for line in lines}
    found = state.diagnostics["fit_statistics"]
    assert found["rmsr"] == pytest.approx(psych["rms"], abs=5e-4)
    assert found["normal_tli"] == pytest.approx(psych["TLI"], abs=5e-4)
    assert found["normal_rmsea"] == pytest.approx(psych["RMSEA"], abs=5e-4)
    assert found["map_components"] == 5


@pytest.mark.parametrize("counts", [[2] * 8, LEVELS])
@pytest.mark.parametrize("estimator", ["minres", "ml"])
def test_factors_have_the_loadings_that_drew_the_rows(counts: list[int], estimator: Any) -> None:
    X, loadings = draw_rows(20_000, counts, 5)
    state = fit_rows(X, counts, n_components=2, estimator=estimator, rotation="oblimin")
    found = match_columns(state.params.loadings, loadings)
    assert_allclose(found, loadings, atol=0.05)
    assert abs(state.params.component_correlation[0, 1]) == pytest.approx(0.4, abs=0.05)
    order = np.argmax(abs(found.T @ state.params.loadings), axis=1)
    z = (found - loadings) / state.params.loadings_error[:, order]
    assert 0.5 < np.sqrt((z**2).mean()) < 1.6  # 1 by chance
    assert state.params.correlation_error is not None
    assert state.diagnostics["fit_statistics"]["normal_rmsea"] < 0.03


@pytest.mark.parametrize("rotation", ["none", "varimax", "oblimin", "promax"])
@pytest.mark.parametrize("estimator", ["pca", "minres", "ml"])
def test_derivatives_of_loadings_are_those_of_a_new_fit(estimator: str, rotation: str) -> None:
    """The correlations are those of two factors, or of rows for `pca`.

    With factors of different sizes, the principal axes are not halfway between them, which is where
    varimax and oblimin would stay.
    """
    X, loadings = draw_rows(300, [0] * 8, 5)
    correlation = np.corrcoef(X.T)
    if estimator != "pca":
        loadings[4:] *= 0.8
        correlation = loadings @ [[1, 0.4], [0.4, 1]] @ loadings.T
        np.fill_diagonal(correlation, 1.0)
    is_known = np.zeros((8, 8), bool)

    def fit(own: Floats) -> Any:
        values, vectors = np.linalg.eigh(own)
        found = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1])
        if estimator != "pca":
            found = fit_loadings(own, found, estimator, is_known)
        return rotate(ClippedPCAParams(found, values, np.zeros(8), values, own), rotation)

    params = fit(correlation)
    found = differentiate_factors(params, np.arange(8), estimator, rotation)
    change = np.random.default_rng(2).standard_normal((8, 8))
    change = 1e-4 * np.triu(change, 1)
    ends = (fit(correlation + sign * (change + change.T)).loadings for sign in (1, -1))
    above, below = (match_columns(end, params.loadings) for end in ends)
    expected = (above - below) / 2
    moved = (found @ change[np.triu_indices(8, 1)]).reshape(8, 2)
    assert_allclose(moved, expected, atol=0.01 * abs(expected).max())


@pytest.mark.parametrize("rotation", ["varimax", "oblimin", "promax"])
def test_a_rotation_changes_neither_correlations_nor_predictions(rotation: Any) -> None:
    X, _ = draw_rows(2_000, LEVELS, 6)
    plain, turned = (
        fit_rows(X, LEVELS, n_components=2, estimator="minres", rotation=name).params
        for name in ("none", rotation)
    )
    assert_allclose(correlate_features(turned), correlate_features(plain), atol=1e-10)
    assert (turned.component_correlation is None) == (rotation == "varimax")
    block = make_data(X[:40], LEVELS).pack()
    model = ClippedPCA()
    codes = [model.transform(p, block, RowRandom(0)) for p in (plain, turned)]
    # Predictions from the codes are those of the rotated codes, as E(y) turns with the axes.
    one, other = (
        model.reconstruct(p, c["mean"]) for p, c in zip((plain, turned), codes, strict=True)
    )
    assert_allclose(one, other, atol=1e-6)


def test_codes_of_correlated_components_are_exact_for_continuous_features() -> None:
    counts = [0] * 6
    X, _ = draw_rows(500, counts, 7)
    params = fit_rows(X, counts, n_components=2, estimator="ml", rotation="oblimin").params
    codes = ClippedPCA().transform(params, make_data(X, counts).pack(), RowRandom(0))
    # Regression scores, by the joint Gaussian of codes and values (Thurstone 1935).
    z = (X - params.means) / params.scales
    structure = params.loadings @ params.component_correlation
    weights = np.linalg.solve(correlate_features(params), structure)
    covariance = params.component_correlation - structure.T @ weights
    assert_allclose(codes["mean"], z @ weights, atol=1e-5)
    assert_allclose(codes["variance"], np.tile(np.diag(covariance), (500, 1)), atol=1e-5)
    assert codes["converged"].all()


def test_drawn_rows_have_the_correlations_of_the_model() -> None:
    X, _ = draw_rows(5_000, [0] * 8, 8)
    params = fit_rows(X, [0] * 8, n_components=2, estimator="minres", rotation="promax").params
    _, numbers = ClippedPCA().sample_numbers(params, 50_000, np.random.default_rng(0))
    assert_allclose(np.corrcoef(numbers.T), correlate_features(params), atol=0.02)


def test_a_reversed_component_says_the_same() -> None:
    X, _ = draw_rows(1_000, [3] * 8, 9)
    params = fit_rows(X, [3] * 8, n_components=2, estimator="minres", rotation="oblimin").params
    arrays = reverse_components(ClippedPCA(), params, np.array([1.0, -1.0]))
    assert_array_equal(arrays["loadings"][:, 1], -params.loadings[:, 1])
    assert arrays["component_correlation"][0, 1] == -params.component_correlation[0, 1]


def test_heywood_cases_are_named() -> None:
    X, _ = draw_rows(800, [0] * 6, 10)
    X[:, 1] = X[:, 0] + 1e-3 * X[:, 2]  # nearly the same
    state = fit_rows(X, [0] * 6, n_components=2, estimator="ml")
    (warning,) = [w for w in state.warnings if "Heywood" in w.text]
    assert "{features}" in warning.text
    assert {*warning.features} == {"q0", "q1"}


def test_features_that_are_constant_have_no_loadings() -> None:
    X, _ = draw_rows(800, [3] * 7, 11)
    X[:, 3] = 1
    settings: Any = {"estimator": "minres", "rotation": "promax", "constant_features": "keep"}
    params = fit_rows(X, [3] * 7, n_components=2, **settings).params
    assert_array_equal(params.loadings[3], 0.0)
    assert params.uniqueness[3] == 1.0


def test_minimum_residuals_leave_out_pairs_that_no_row_observes() -> None:
    X, loadings = draw_rows(20_000, [3] * 12, 12)
    X[:10_000, 9:] = np.nan
    X[10_000:, :3] = np.nan  # two forms, linked by six features
    settings: Any = {"n_components": 2, "rotation": "oblimin", "errors": "none"}
    state = fit_rows(X, [3] * 12, estimator="minres", **settings)
    assert "never observed together, left out" in "".join(w.text for w in state.warnings)
    statistics = state.diagnostics["fit_statistics"]
    assert statistics["normal_missing"] == "some pairs of features have no correlation"
    assert statistics["rmsr"] < 0.02
    assert "map_components" not in statistics
    matched = match_columns(state.params.loadings, loadings)
    assert_allclose(matched, loadings, atol=0.04)
    taken = fit_rows(X, [3] * 12, estimator="ml", **settings)
    assert "taken as uncorrelated" in "".join(w.text for w in taken.warnings)
    assert abs(match_columns(taken.params.loadings, loadings) - matched).max() > 0.05


def test_indefinite_correlations_are_refused_by_maximum_likelihood_alone() -> None:
    rng = np.random.default_rng(13)
    X = rng.standard_normal((60, 1)) + 0.3 * rng.standard_normal((60, 12))
    X[rng.random(X.shape) < 0.6] = np.nan
    settings: Any = {"n_components": 1, "errors": "none"}
    with pytest.raises(FitError, match=r"positive definite.*minres.*nearest"):
        fit_rows(X, [0] * 12, estimator="ml", **settings)
    state = fit_rows(X, [0] * 12, estimator="minres", **settings)
    assert "not positive" in state.diagnostics["fit_statistics"]["normal_missing"]
    repaired = fit_rows(X, [0] * 12, estimator="ml", repair="nearest", **settings)
    assert np.isfinite(repaired.params.loadings).all()


def test_more_factors_than_correlations_determine_are_refused() -> None:
    X, _ = draw_rows(300, [2] * 6, 14)
    with pytest.raises(FitError, match="at most 3 factors"):
        fit_rows(X, [2] * 6, n_components=4, estimator="minres")
    state = fit_rows(X, [2] * 6, n_components=3, estimator="minres", errors="none")
    assert "no degrees of freedom" in state.diagnostics["fit_statistics"]["normal_missing"]


def test_principal_components_stay_as_they_are() -> None:
    X, _ = draw_rows(500, [2] * 8, 15)
    params: ClippedPCAParams = fit_rows(X, [2] * 8, n_components=2).params
    assert params.component_correlation is None
    assert params.communality is None
    weights, _ = probit_weights(params)
    rotated = fit_rows(X, [2] * 8, n_components=2, rotation="varimax").params
    assert_allclose(rotated.communality, (params.loadings**2).sum(axis=1))
    assert_allclose(weights @ weights.T, probit_weights(rotated)[0] @ probit_weights(rotated)[0].T)


def test_errors_of_measured_values_are_those_of_normal_theory() -> None:
    X, _ = draw_rows(1_000, [0] * 8, 16)
    found = fit_rows(X, [0] * 8, n_components=2, estimator="ml").diagnostics["fit_statistics"]
    # The sum of eigenvalues of U Γ has a mean of the degrees of freedom.
    assert found["chi2_df"] == found["normal_chi2_df"]
    assert found["chi2"] == pytest.approx(found["normal_chi2"], rel=0.05)
    assert found["tli"] == pytest.approx(found["normal_tli"], abs=0.01)


@pytest.mark.parametrize("estimator", ["minres", "ml"])
def test_indices_allow_for_the_errors_of_polychoric_correlations(estimator: Any) -> None:
    chi2 = []
    for seed in range(12):
        X, _ = draw_rows(600, [3] * 7, seed)
        state = fit_rows(X, [3] * 7, n_components=2, estimator=estimator)
        found = state.diagnostics["fit_statistics"]
        chi2.append([found["chi2"], found["normal_chi2"]])
    mean, normal = np.mean(chi2, axis=0)
    df, error = found["chi2_df"], np.sqrt(2 * found["chi2_df"] / len(chi2))
    assert abs(mean - df) < 2.5 * error
    assert normal > df + 4 * error


def test_indices_are_left_out_with_the_reason() -> None:
    X, _ = draw_rows(400, [2] * 8, 17)
    X[X[:, 0] == 1, 1] = 1  # an empty cell
    found = fit_rows(X, [2] * 8, n_components=1, estimator="minres").diagnostics["fit_statistics"]
    assert found["rmsea_missing"] == "some correlations have no standard error"
    assert "normal_chi2" in found
    X[:, 1] = X[::-1, 1]
    settings: Any = {"n_components": 1, "estimator": "minres", "errors": "none"}
    found = fit_rows(X, [2] * 8, **settings).diagnostics["fit_statistics"]
    assert found["rmsea_missing"] == "the fit has no standard errors of correlations"
