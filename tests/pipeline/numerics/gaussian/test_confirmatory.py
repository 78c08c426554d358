"""Loading patterns fitted to polychoric correlations."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.numerics.gaussian.confirmatory import (
    PairCovariance,
    compute_pattern_indices,
    draw_covariance,
    fit_pattern,
)
from pipeline.numerics.gaussian.polychoric import polychoric
from pipeline.numerics.gaussian.polychoric_influence import polychoric_influence
from tests.support.data import find_reference

Floats = NDArray[np.float64]

NUMBERS = np.array([[0, -1], [2, -1], [4, -1], [6, 7], [-1, 9], [-1, 11], [-1, 13]])
SLOPES = np.array([[1.2, 0], [0.8, 0], [-1.0, 0], [0.7, 0.5], [0, 1.4], [0, 0.6], [0, 0.9]])
PHI = np.array([[1.0, 0.4], [0.4, 1.0]])
UPPER = np.triu_indices(7, 1)


def imply(slopes: Floats = SLOPES) -> Floats:
    covariance = slopes @ PHI @ slopes.T + np.eye(7)
    return covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))


def test_a_pattern_that_holds_leaves_no_residuals() -> None:
    weights = np.random.default_rng(0).uniform(0.5, 2, len(UPPER[0]))
    start = np.where(NUMBERS >= 0, np.sign(SLOPES), 0.0)
    fit = fit_pattern(imply()[UPPER], weights, start, PHI / 2 + np.eye(2) / 2, NUMBERS)
    np.testing.assert_allclose(fit.slopes, SLOPES, atol=1e-5)
    np.testing.assert_allclose(fit.trait_correlation, PHI, atol=1e-5)
    np.testing.assert_allclose(fit.residuals, 0, atol=1e-6)


def test_equal_slopes_and_uncorrelated_traits_stay_so() -> None:
    numbers = np.where(NUMBERS == 2, 0, NUMBERS)
    start = np.where(numbers >= 0, np.sign(SLOPES), 0.0)
    fit = fit_pattern(imply()[UPPER], np.ones(21), start, np.eye(2), numbers)
    assert fit.slopes[0, 0] == fit.slopes[1, 0]
    np.testing.assert_array_equal(fit.trait_correlation, np.eye(2))


def test_indices_of_equally_exact_correlations() -> None:
    """With Γ = I, χ² is the sum of squares, and the indices have their usual formulas."""
    rng = np.random.default_rng(1)
    rho = imply()[UPPER] + 0.1 * rng.standard_normal(21)
    start = np.where(NUMBERS >= 0, np.sign(SLOPES), 0.0)
    fit = fit_pattern(rho, np.ones(21), start, PHI, NUMBERS)
    exact = PairCovariance(np.eye(21), 10**12)
    found = compute_pattern_indices(rho, exact, fit, 7, 501)
    assert found is not None
    chi2, baseline = 500 * (fit.residuals**2).sum(), 500 * (rho**2).sum()
    assert found["chi2_df"] == 21 - 9
    assert found["chi2"] == pytest.approx(chi2)
    assert found["chi2_p"] == pytest.approx(scipy.stats.chi2(12).sf(chi2))
    assert found["rmsea"] == pytest.approx(np.sqrt((chi2 - 12) / (12 * 500)))
    low, high = found["rmsea_interval"]
    for bound, level in ((low, 0.95), (high, 0.05)):
        assert scipy.stats.ncx2(12, bound**2 * 12 * 500).cdf(chi2) == pytest.approx(level)
    assert found["cfi"] == pytest.approx(1 - (chi2 - 12) / (baseline - 21))
    ratio = baseline / 21
    assert found["tli"] == pytest.approx((ratio - chi2 / 12) / (ratio - 1))
    assert found["srmr"] == pytest.approx(np.sqrt(2 * (fit.residuals**2).sum() / (7 * 8)))


def count_planes(levels: NDArray[np.int64], firsts: NDArray[np.int64]) -> tuple[Floats, ...]:
    sizes = np.diff(firsts)
    planes = np.concatenate([np.arange(1, size + 1) for size in sizes])
    bits = (np.repeat(levels, sizes, axis=1) >= planes).astype(np.float64)
    joint, n = bits.T @ bits, np.full((firsts[-1],) * 2, float(len(levels)))
    return n, np.outer(np.diag(joint), np.ones(len(joint))), np.diag(joint) * (n > 0), joint


def test_drawn_errors_are_those_of_polychoric_correlations() -> None:
    """The diagonal of Γ / N, against the errors of each correlation by itself; and with masks."""
    rng, firsts = np.random.default_rng(2), np.array([0, 3, 4, 6])
    x = rng.multivariate_normal(np.zeros(3), [[1, 0.5, 0.2], [0.5, 1, -0.4], [0.2, -0.4, 1]], 3000)
    cuts = [[-1.0, 0, 1.2], [0.3], [-0.5, 0.9]]
    levels = np.stack([np.searchsorted(c, own) for c, own in zip(cuts, x.T, strict=True)]).T
    tables = count_planes(levels, firsts)
    rho = polychoric(*tables, firsts, firsts).correlation
    rho = np.triu(rho, 1) + np.triu(rho, 1).T + np.eye(3)
    influence = polychoric_influence(*tables, rho, firsts)
    thresholds = -scipy.special.ndtri(np.diag(tables[3]) / 3000)
    for share in (1.0, 0.8):
        observed = np.array([1.0, share, share])
        found = draw_covariance(rho, thresholds, firsts[:-1], influence, observed, 20000, rng)
        rows = 3000 * np.array([share, share, share**2])
        expected = influence.error[np.triu_indices(3, 1)] * np.sqrt(3000 / rows)
        np.testing.assert_allclose(np.sqrt(np.diag(found.matrix) / 3000), expected, rtol=0.04)


def test_indices_are_near_those_of_lavaan() -> None:
    """WLSMV of lavaan 0.6-14, `09_lavaan_wlsmv`; it scales χ² by Γ from the rows."""
    levels = np.genfromtxt(find_reference("data/hs_ord4.csv"), delimiter=",", skip_header=1)
    firsts, pairs = np.arange(0, 28, 3), np.triu_indices(9, 1)
    tables = count_planes(levels.astype(np.int64), firsts)
    rho = polychoric(*tables, firsts, firsts).correlation
    rho = np.triu(rho, 1) + np.triu(rho, 1).T + np.eye(9)
    influence = polychoric_influence(*tables, rho, firsts)
    thresholds = -scipy.special.ndtri(np.diag(tables[3]) / 301)
    rng, ones = np.random.default_rng(0), np.ones(9)
    drawn = draw_covariance(rho, thresholds, firsts[:-1], influence, ones, 20000, rng)
    drawn = drawn.rescale(301 * influence.error[pairs] ** 2)
    numbers = np.where(np.kron(np.eye(3), np.ones((3, 1))) > 0, np.arange(27).reshape(9, 3), -1)
    start, phi = 0.8 * (numbers >= 0), 0.7 * np.eye(3) + 0.3
    fit = fit_pattern(rho[pairs], 1 / np.diag(drawn.matrix), start, phi, numbers)
    found = compute_pattern_indices(rho[pairs], drawn, fit, 9, 301)
    assert found is not None
    unscaled = 300 * (fit.residuals**2 / np.diag(drawn.matrix)).sum()
    assert unscaled == pytest.approx(51.53679, abs=1e-4)
    assert found["srmr"] == pytest.approx(0.06564054, abs=1e-6)
    assert found["chi2_df"] == 24
    assert found["chi2"] == pytest.approx(74.1525, rel=0.03)
    assert found["rmsea"] == pytest.approx(0.08346, abs=0.0015)
    assert found["rmsea_interval"] == pytest.approx([0.06229, 0.10540], abs=0.0015)
    assert found["cfi"] == pytest.approx(0.96248, abs=0.003)
    assert found["tli"] == pytest.approx(0.94372, abs=0.004)


@pytest.mark.matrix
def test_chi2_has_its_mean_if_the_pattern_holds_and_rejects_a_missing_loading() -> None:
    rng, firsts = np.random.default_rng(3), np.arange(0, 22, 3)
    root, values = np.linalg.cholesky(imply()), []
    wrong = np.where(NUMBERS == 7, -1, NUMBERS)
    for k in range(30):
        x = rng.standard_normal((600, 7)) @ root.T
        tables = count_planes(np.searchsorted([-1.0, 0.0, 0.8], x), firsts)
        rho = polychoric(*tables, firsts, firsts, empty_cells="half").correlation
        rho = np.triu(rho, 1) + np.triu(rho, 1).T + np.eye(7)
        influence = polychoric_influence(*tables, rho, firsts, empty_cells="half")
        thresholds = -scipy.special.ndtri(np.diag(tables[3]) / 600)
        drawn = draw_covariance(rho, thresholds, firsts[:-1], influence, np.ones(7), 2000, rng)
        for numbers in (NUMBERS, wrong) if k < 2 else (NUMBERS,):
            start, weights = np.where(numbers >= 0, SLOPES, 0.0), 1 / np.diag(drawn.matrix)
            fit = fit_pattern(rho[UPPER], weights, start, PHI, numbers)
            found = compute_pattern_indices(rho[UPPER], drawn, fit, 7, 600)
            assert found is not None
            if numbers is wrong:
                assert found["chi2_p"] < 1e-4
            else:
                values.append(found["chi2"])
    assert abs(np.mean(values) - 12) < 3 * np.sqrt(24 / 30)
    assert 0.5 < np.var(values) / 24 < 2
