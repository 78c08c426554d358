"""Factors, their rotations and indices of fit against R's psych."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from pipeline.numerics.metrics import match_columns
from pipeline.numerics.spectra.factor_analysis import (
    compute_average_partials,
    compute_discrepancy,
    compute_normal_fit,
    fit_factors,
    fit_minimum_residuals,
)
from pipeline.numerics.spectra.linalg import leading_eigenpairs
from pipeline.numerics.spectra.rotations import oblimin, promax, rotate_loadings, varimax
from tests.support.data import find_reference

Floats = NDArray[np.float64]
FOLDER = "11_factor_analysis"
N_ROWS, N_FACTORS = 1000, 5


def read_matrix(name: str) -> Floats:
    with find_reference(f"{FOLDER}/bfi25_{name}.csv").open() as file:
        return np.array([line[1:] for line in csv.reader(file)][1:], np.float64)


def read_summary(case: str) -> dict[str, float]:
    with find_reference(f"{FOLDER}/bfi25_summary.csv").open() as file:
        lines = [line for line in csv.reader(file) if line[0] == case]
    return {",".join(line[1:-1]): float(line[-1]) for line in lines}


def fit_loadings(estimator: str) -> tuple[Floats, Floats]:
    R = read_matrix("correlations")
    values, vectors = leading_eigenpairs(R, N_FACTORS)
    start = vectors[:, :N_FACTORS] * np.sqrt(values[:N_FACTORS])
    function = fit_factors if estimator == "ml" else fit_minimum_residuals
    return R, function(R, start, 0.005)


def rotate_as_in_r(loadings: Floats) -> Floats:
    """Do as `stats::varimax`, which ends once the criterion gains less than 1e-5."""
    scaled = loadings / np.linalg.norm(loadings, axis=1, keepdims=True)
    turn, before, now = np.eye(loadings.shape[1]), 0.0, 0.0
    while before == 0.0 or now >= before * (1 + 1e-5):
        Z = scaled @ turn
        left, values, right = np.linalg.svd(scaled.T @ (Z**3 - Z * (Z**2).mean(axis=0)))
        turn, before, now = left @ right, now, float(values.sum())
    return loadings @ turn


def compute_varimax_criterion(loadings: Floats) -> float:
    squares = loadings**2 / (loadings**2).sum(axis=1, keepdims=True)
    return float(squares.var(axis=0).sum())


@pytest.mark.parametrize("estimator", ["minres", "ml"])
def test_loadings_and_communalities_agree_with_psych(estimator: str) -> None:
    _, loadings = fit_loadings(estimator)
    expected = read_matrix(f"{estimator}_none_loadings")
    assert_allclose(match_columns(loadings, expected), expected, atol=2e-5)
    communality = read_matrix(f"{estimator}_none_communality")[:, 0]
    assert_allclose((loadings**2).sum(axis=1), communality, atol=1e-5)


@pytest.mark.parametrize("estimator", ["minres", "ml"])
def test_oblimin_agrees_with_psych(estimator: str) -> None:
    _, loadings = fit_loadings(estimator)
    # The axes to start from matter, as oblimin has several minima.
    start = match_columns(loadings, read_matrix(f"{estimator}_none_loadings"))
    check_oblique(oblimin(start), f"{estimator}_oblimin", 1e-4)


@pytest.mark.parametrize("estimator", ["minres", "ml"])
def test_varimax_and_promax_agree_with_psych(estimator: str) -> None:
    _, loadings = fit_loadings(estimator)
    start = match_columns(loadings, read_matrix(f"{estimator}_none_loadings"))
    expected = read_matrix(f"{estimator}_varimax_loadings")
    # R stops early; where it does, it has psych's values, and further on the criterion is larger.
    assert_allclose(match_columns(rotate_as_in_r(start), expected), expected, atol=1e-4)
    rotated = varimax(loadings)
    assert_allclose(match_columns(rotated, expected), expected, atol=2.5e-3)
    assert compute_varimax_criterion(rotated) > compute_varimax_criterion(expected)
    check_oblique(promax(loadings, normalize=True), f"{estimator}_promax", 2e-3)


def check_oblique(found: tuple[Floats, Floats], name: str, atol: float) -> None:
    (loadings, correlation), expected = found, read_matrix(f"{name}_loadings")
    matched = match_columns(loadings, expected)
    assert_allclose(matched, expected, atol=atol)
    turn = np.rint(np.linalg.lstsq(loadings, matched, rcond=None)[0])  # order and signs
    assert_allclose(turn.T @ correlation @ turn, read_matrix(f"{name}_phi"), atol=atol)


@pytest.mark.parametrize("estimator", ["minres", "ml"])
def test_indices_of_fit_agree_with_psych(estimator: str) -> None:
    R, loadings = fit_loadings(estimator)
    fitted = loadings @ loadings.T
    np.fill_diagonal(fitted, 1.0)
    expected = read_summary(f"bfi25_{estimator}_none")
    discrepancy = compute_discrepancy(R, fitted)
    assert discrepancy is not None
    found = compute_normal_fit(R, discrepancy, N_FACTORS, N_ROWS)
    assert discrepancy == pytest.approx(expected["objective"], abs=1e-6)
    assert found["chi2"] == pytest.approx(expected["STATISTIC"], abs=1e-3)
    assert found["chi2_df"] == expected["dof"]
    assert found["chi2_p"] == pytest.approx(expected["PVAL"], rel=1e-3)
    assert found["bic"] == pytest.approx(expected["BIC"], abs=1e-3)
    assert found["tli"] == pytest.approx(expected["TLI"], abs=1e-6)
    rmsea = [found["rmsea"], *found["rmsea_interval"]]
    names = ("RMSEA", "RMSEA_lower", "RMSEA_upper")
    assert_allclose(rmsea, [expected[name] for name in names], atol=1e-6)


def test_average_partials_agree_with_psych() -> None:
    found = compute_average_partials(read_matrix("correlations"), 8)
    assert_allclose(found, read_matrix("map")[:, 0], atol=1e-8)
    assert np.argmin(found) + 1 == read_summary("bfi25")["factors by MAP"]


@pytest.mark.parametrize("rotation", ["varimax", "oblimin", "promax"])
@pytest.mark.parametrize("shape", [(4, 0), (4, 1), (5, 2)])
def test_rotations_keep_the_correlations_of_the_model(rotation: str, shape: Any) -> None:
    loadings = np.random.default_rng(1).normal(0, 0.4, shape)
    loadings[-1] = 0.0  # of a constant feature
    rotated, correlation = rotate_loadings(loadings, rotation, normalize=True)
    assert_allclose(rotated @ correlation @ rotated.T, loadings @ loadings.T, atol=1e-12)
    assert_allclose(np.diag(correlation), 1.0)


def test_minimum_residuals_leave_no_gradient() -> None:
    rng = np.random.default_rng(3)
    truth = rng.uniform(-0.7, 0.7, (8, 2))
    R = truth @ truth.T
    np.fill_diagonal(R, 1.0)
    found = fit_minimum_residuals(R, truth + rng.normal(0, 0.1, truth.shape), 0.005)
    assert_allclose(found @ found.T, truth @ truth.T, atol=1e-6)


def test_discrepancies_of_singular_correlations_are_unknown() -> None:
    assert compute_discrepancy(np.ones((2, 2)), np.eye(2)) is None
    assert compute_average_partials(np.ones((2, 2)), 1).size == 0
