import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from numba import njit
from scipy.special import ndtr, owens_t

from pipeline.errors import FitError
from pipeline.numerics.gaussian import bivariate_normal as module
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array

# Only compiled functions can call those of the module.
norm_cdf = njit(lambda x: module.norm_cdf(x))
norm_pdf = njit(lambda x: module.norm_pdf(x))
norm_ppf = njit(lambda p: module.norm_ppf(p))
bivariate_normal_cdf = njit(lambda h, k, rho: module.bivariate_normal_cdf(h, k, rho))

DIGITS = 40
limits = st.floats(-8, 8)
correlations = st.floats(-1, 1)


def precise_cdf(h, k, rho):
    """∫ φ(x) Φ((k − ρ x) / √(1 − ρ²)) dx up to h."""
    with mp.workdps(DIGITS):
        h, k, rho = mpf(h), mpf(k), mpf(rho)
        scale = mp.sqrt(1 - rho * rho)
        turn = [(k + step * scale) / rho for step in (-12, -6, -3, -1, 0, 1, 3, 6, 12)]
        ends = [h - step for step in (0, 1, 3, 6, 10, 16, 45)]
        cuts = sorted(cut for cut in {*turn, *ends} if h - 45 <= cut <= h)

        def integrand(x):
            return mp.npdf(x) * mp.ncdf((k - rho * x) / scale)

        peak = max(integrand(cut) for cut in cuts)
        return peak * mp.quad(lambda x: integrand(x) / peak, cuts)


def owen_cdf(h, k, rho):
    """Owen (1956), eq. 2.1."""
    scale = np.sqrt((1 - rho) * (1 + rho))
    apart = np.where(h * k < 0, 0.5, 0.0)
    terms = owens_t(h, (k - rho * h) / (h * scale)) + owens_t(k, (h - rho * k) / (k * scale))
    return 0.5 * (ndtr(h) + ndtr(k)) - terms - apart


def test_norm_cdf_is_relatively_precise():
    with mp.workdps(DIGITS):
        for x in [*np.linspace(-37.5, 8, 120), -1.4142, -1.4143, 0.0]:
            assert abs(mpf(norm_cdf(x)) / mp.ncdf(mpf(x)) - 1) < 1e-15, x


def test_norm_ppf_is_relatively_precise():
    with mp.workdps(DIGITS):
        for p in [*np.logspace(-300, -1, 120), *np.linspace(0.01, 0.99, 50)]:
            x = mpf(norm_ppf(p))
            exact = x
            for _ in range(3):
                exact -= (mp.ncdf(exact) - mpf(p)) / mp.npdf(exact)
            assert abs(x - exact) <= 1e-15 * abs(exact), p


def test_norm_ppf_at_and_beyond_its_ends():
    assert [norm_ppf(0.0), norm_ppf(0.5), norm_ppf(1.0)] == [-np.inf, 0.0, np.inf]
    assert np.isnan([norm_ppf(-0.1), norm_ppf(1.1), norm_ppf(np.nan)]).all()


def test_cdf_agrees_with_owens_t():
    rng = np.random.default_rng(0)
    h, k = rng.normal(0, 2.5, (2, 5000))
    rho = np.tanh(rng.normal(0, 2, 5000))
    np.testing.assert_allclose(
        bivariate_normal_cdf_array(h, k, rho), owen_cdf(h, k, rho), rtol=0, atol=1e-15
    )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("h", "k", "rho"),
    [
        (-3.0, -2.5, -0.7),
        (-5.0, -4.0, -0.95),
        (-1.0, -0.5, -0.999),
        (-2.0, 1.999, -0.9999),
        (2.0, -1.999, -0.9),
        (4.9, -4.9, -0.5),
        (0.5, -0.5, -0.999),
        (-6.0, -6.0, 0.5),
        (-6.0, -5.9, 0.9999),
        (-9.0, 3.0, -0.2),
        (-20.0, -20.0, -0.3),
        (-0.01, -0.01, -0.9999),
    ],
)
def test_small_corners_are_relatively_precise(h, k, rho):
    exact = precise_cdf(h, k, rho)
    assert abs(mpf(bivariate_normal_cdf(h, k, rho)) / exact - 1) < 1e-12


@given(limits, limits, correlations)
def test_cells_add_up_to_a_margin(h, k, rho):
    cells = bivariate_normal_cdf(h, k, rho) + bivariate_normal_cdf(h, -k, -rho)
    assert cells == pytest.approx(ndtr(h), abs=4e-16)


@pytest.mark.parametrize(
    ("h", "k", "rho", "expected"),
    [
        (np.inf, 0.3, -0.4, ndtr(0.3)),
        (-np.inf, 0.3, 0.4, 0.0),
        (np.inf, np.inf, -1.0, 1.0),
        (np.inf, -np.inf, 0.5, 0.0),
        (1.0, 0.5, 1.0, ndtr(0.5)),
        (1.0, 0.5, -1.0, ndtr(0.5) - ndtr(-1.0)),
        (-1.0, 0.5, -1.0, 0.0),
    ],
)
def test_infinite_limits_and_perfect_correlation(h, k, rho, expected):
    assert bivariate_normal_cdf(h, k, rho) == pytest.approx(expected, rel=1e-15, abs=0)


@pytest.mark.parametrize("bad", [(np.nan, 0, 0), (0, np.nan, 0), (0, 0, np.nan), (0, 0, 1.5)])
def test_cdf_array_names_the_invalid_element(bad):
    h, k, rho = np.transpose([(0, 0, 0.5), bad])
    with pytest.raises(FitError, match="flat index 1"):
        bivariate_normal_cdf_array(h, k, rho)
