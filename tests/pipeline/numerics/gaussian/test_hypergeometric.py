"""Quantiles of joint counts against SciPy's hypergeometric law."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import hypergeom

from pipeline.numerics.gaussian.pair_tables import joint_count_quantiles

NORMAL_VARIANCE = 36.0


def quantile(n: int, a: int, b: int, z: float) -> float:
    columns = (np.array([float(value)]) for value in (n, a, b, z))
    return float(joint_count_quantiles(*columns)[0])


def variance(n: int, a: int, b: int) -> float:
    return a * b / n * (n - a) * (n - b) / (n * max(n - 1, 1))


@st.composite
def margins(draw: st.DrawFn, max_rows: int = 400) -> tuple[int, int, int]:
    n = draw(st.integers(1, max_rows))
    return n, draw(st.integers(0, n)), draw(st.integers(0, n))


@settings(deadline=None, max_examples=300)
@given(margins(), st.floats(-5, 5))
def test_small_counts_are_exact(of: tuple[int, int, int], z: float) -> None:
    n, a, b = of
    if variance(n, a, b) >= NORMAL_VARIANCE:
        return
    law, found = hypergeom(n, a, b), quantile(n, a, b, z)
    # Rounding of either sum may move a target that hits a step of the law.
    assert law.cdf(found) >= ndtr(z) * (1 - 1e-9) - 1e-12
    assert law.cdf(found - 1) <= ndtr(z) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("n", "a", "b"),
    [(10_000, 30, 5_000), (10_000, 9_990, 4_000), (10**6, 300, 400), (10**6, 999_700, 999_600)]
    + [(10**9, 20, 10**8), (10**7, 10**7 - 20, 5 * 10**6), (10**9, 100, 10**9 - 10**6)],
)  # fmt: skip
def test_rare_and_common_ones_of_many_rows_are_exact(n: int, a: int, b: int) -> None:
    assert variance(n, a, b) < NORMAL_VARIANCE
    z = np.linspace(-4, 4, 41)
    full = np.full(len(z), 1.0)
    found = joint_count_quantiles(n * full, a * full, b * full, z)
    low = max(0, a + b - n)
    steps = np.arange(low, min(a, b, low + 400) + 1)
    expected = steps[np.searchsorted(hypergeom(n, a, b).cdf(steps), ndtr(z))]
    np.testing.assert_array_equal(found, expected)


@settings(deadline=None, max_examples=200)
@given(st.integers(300, 10**9), st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.floats(-4, 4))
def test_large_counts_are_within_a_count_of_the_normal_quantile(
    n: int, share_i: float, share_j: float, z: float
) -> None:
    a, b = round(share_i * n), round(share_j * n)
    mean, spread = a * b / n, variance(n, a, b) ** 0.5
    if spread**2 < NORMAL_VARIANCE:
        return
    found = quantile(n, a, b, z)
    assert found == int(found)
    assert max(0, a + b - n) <= found <= min(a, b)
    clipped = min(max(mean + spread * z, max(0, a + b - n)), min(a, b))
    assert abs(found - clipped) <= 0.5 + 1e-9 * n


@pytest.mark.parametrize(("n", "a", "b"), [(400, 160, 200), (2000, 90, 1000), (300, 250, 120)])
def test_the_normal_quantile_is_near_the_exact_one(n: int, a: int, b: int) -> None:
    z = np.linspace(-3, 3, 61)
    full = np.full(len(z), 1.0)
    found = joint_count_quantiles(n * full, a * full, b * full, z)
    exact = hypergeom(n, a, b).ppf(ndtr(z))
    assert np.abs(found - exact).max() <= 1.0


@settings(deadline=None)
@given(margins(10**6))
def test_counts_rise_with_the_score_and_stay_possible(of: tuple[int, int, int]) -> None:
    n, a, b = of
    z = np.linspace(-9, 9, 40)
    full = np.full(len(z), 1.0)
    found = joint_count_quantiles(n * full, a * full, b * full, z)
    assert np.all(np.diff(found) >= 0)
    assert max(0, a + b - n) <= found.min()
    assert found.max() <= min(a, b)


@settings(deadline=None)
@given(margins(), st.floats(-4, 4))
def test_the_law_is_symmetric_in_the_features(of: tuple[int, int, int], z: float) -> None:
    n, a, b = of
    assert quantile(n, a, b, z) == quantile(n, b, a, z)


@pytest.mark.parametrize("of", [(0, 0, 0), (1, 1, 1), (1, 0, 1), (5, 0, 3), (5, 5, 3), (2, 2, 2)])
def test_margins_that_leave_no_choice(of: tuple[int, int, int]) -> None:
    n, a, b = of
    for z in (-3.0, 0.0, 3.0):
        assert quantile(n, a, b, z) == max(0, a + b - n)
