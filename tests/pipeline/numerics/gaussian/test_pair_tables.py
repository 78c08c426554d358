"""Tetrachoric correlations, and the arcsine law."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from scipy.special import ndtr, ndtri
from scipy.stats import hypergeom

from pipeline.errors import FitError
from pipeline.numerics.gaussian import pair_tables as module
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.gaussian.pair_tables import (
    MAX_CORRELATION,
    PairStatus,
    arcsine_correlation,
    joint_count_quantiles,
    sign_correlation,
    tetrachoric,
)

# Only compiled functions can call these.
solve_weak_tables = njit(lambda *arguments: module._solve_weak_tables(*arguments))
solve_correlation = njit(lambda *arguments: module.solve_correlation(*arguments))
ROOT = Path(__file__).parents[4]
COLUMNS = ("n", "ones_i", "ones_j", "joint")
cells = st.tuples(*[st.integers(0, 10**6)] * 4)
positive_cells = st.tuples(*[st.integers(1, 10**6)] * 4)


def table(n11, n10, n01, n00):
    """Arguments of `tetrachoric` from the four cells."""
    return n11 + n10 + n01 + n00, n11 + n10, n11 + n01, n11


def reference(region):
    """Tables and correlations of one region of tests/reference/tetrachoric.csv."""
    with (ROOT / "tests" / "reference" / "tetrachoric.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["region"] == region]
    tables = [np.array([float(row[name]) for row in rows]) for name in COLUMNS]
    return tables, np.array([float(row["correlation"]) for row in rows])


@pytest.mark.parametrize(
    ("region", "tolerance"), [("plain", 1e-13), ("hard", 1e-12), ("counts", 1e-13)]
)
def test_reference_tables(region, tolerance):
    tables, expected = reference(region)
    correlation, status = tetrachoric(*tables)
    assert (status == PairStatus.PLAIN).all()
    np.testing.assert_allclose(correlation, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("rarest", [0.3, 1e-2, 1e-4])
def test_the_series_of_weak_correlations_agrees_with_the_integral(rarest):
    rng, n_tables = np.random.default_rng(0), 64
    found, expected = [], []
    for _ in range(100):
        n = np.full(n_tables, 1e7)
        thresholds = rng.uniform(-1, 1, (2, n_tables)) * ndtri(1 - rarest)
        rho = rng.uniform(-0.3, 0.3, n_tables)
        joint = np.rint(n * bivariate_normal_cdf_array(*-thresholds, rho))
        i, j = np.rint(n * ndtr(-thresholds))
        margins = *module._describe_margins(n, i), *module._describe_margins(n, j)
        lanes = np.empty(module._FIRST_TERM + module._N_TERMS * module._LANES)
        correlation, is_solved = np.empty(n_tables), np.empty(n_tables, np.bool_)
        solve_weak_tables(n, i, j, joint, *margins, lanes, correlation, is_solved)
        for t in np.flatnonzero(is_solved):
            h, factor_i, k, factor_j = (values[t] for values in margins)
            n11, n10, n01 = joint[t], i[t] - joint[t], j[t] - joint[t]
            cells = n11, n10, n01, n[t] - n11 - n10 - n01
            expected.append(solve_correlation(*cells, h, k, 8 * factor_i * factor_j))
            found.append(correlation[t])
    assert len(found) > 0.5 * 100 * n_tables
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@given(positive_cells)
def test_swapping_the_features_changes_nothing(counts):
    n11, n10, n01, n00 = counts
    swapped = tetrachoric(*table(n11, n01, n10, n00))
    assert tetrachoric(*table(*counts)).correlation == swapped.correlation


@given(positive_cells)
def test_flipping_a_feature_flips_the_sign(counts):
    n11, n10, n01, n00 = counts
    correlation = tetrachoric(*table(*counts)).correlation
    assert tetrachoric(*table(n01, n00, n11, n10)).correlation == -correlation
    assert tetrachoric(*table(n10, n11, n00, n01)).correlation == -correlation


@given(cells)
def test_every_table_gets_a_correlation_or_a_reason(counts):
    n11, n10, n01, n00 = counts
    margins = n11 + n10, n01 + n00, n11 + n01, n10 + n00
    correlation, status = tetrachoric(*table(*counts))
    if sum(counts) == 0:
        expected = PairStatus.NO_OBSERVATIONS
    elif min(margins) == 0:
        expected = PairStatus.CONSTANT_FEATURE
    else:
        expected = PairStatus.EMPTY_CELL if min(counts) == 0 else PairStatus.PLAIN
    assert status == expected
    if expected in (PairStatus.PLAIN, PairStatus.EMPTY_CELL):
        assert abs(correlation) <= MAX_CORRELATION
    else:
        assert np.isnan(correlation)


@given(st.integers(2, 499))
def test_closed_form_at_the_medians(joint):
    expected = np.sin(2 * np.pi * (joint / 1000 - 0.25))
    assert tetrachoric(1000, 500, 500, joint).correlation == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 3, 4, 5), -MAX_CORRELATION),
        ((3, 4, 5, 0), -MAX_CORRELATION),
        ((0, 3, 4, 0), -MAX_CORRELATION),
        ((3, 0, 4, 5), MAX_CORRELATION),
        ((3, 4, 0, 5), MAX_CORRELATION),
        ((3, 0, 0, 5), MAX_CORRELATION),
    ],
)
def test_an_empty_cell_puts_the_estimate_on_the_boundary(counts, expected):
    correlation, status = tetrachoric(*table(*counts))
    assert (correlation, status) == (expected, PairStatus.EMPTY_CELL)


def test_half_is_added_to_all_cells_of_tables_with_an_empty_one():
    correlation, status = tetrachoric(*table(0, 30, 40, 50), empty_cells="half")
    assert status == PairStatus.EMPTY_CELL
    assert correlation == tetrachoric(*table(0.5, 30.5, 40.5, 50.5)).correlation
    assert -0.9 < correlation < -0.5


def test_half_leaves_other_tables_alone():
    full, constant = table(1, 30, 40, 50), table(0, 0, 40, 50)
    plain = tetrachoric(*full, empty_cells="half")
    assert plain == tetrachoric(*full)
    undefined = tetrachoric(*constant, empty_cells="half")
    assert np.isnan(undefined.correlation)
    assert undefined.status == PairStatus.CONSTANT_FEATURE


@pytest.mark.parametrize(("joint", "sign"), [(1, -1), (5 * 10**8 - 1, 1)])
def test_roots_beyond_the_limit_are_clipped(joint, sign):
    correlation, status = tetrachoric(10**9, 5 * 10**8, 5 * 10**8, joint)
    assert (correlation, status) == (sign * MAX_CORRELATION, PairStatus.PLAIN)


def test_a_cell_below_zero_by_rounding_is_empty():
    correlation, status = tetrachoric(1.0, 0.3, 0.6, np.nextafter(0.3, 1))
    assert (correlation, status) == (MAX_CORRELATION, PairStatus.EMPTY_CELL)


@pytest.mark.parametrize(
    "bad",
    [
        (10, 5, 5, 6),
        (10, 5, 5, -1),
        (10, 8, 8, 5),
        (10, 11, 5, 3),
        (0, 1, 1, 1),
        (np.nan, 5, 5, 3),
        (10, np.nan, 5, 3),
        (10, 5, np.nan, 3),
        (10, 5, 5, np.nan),
        (np.inf, 5, 5, 3),
    ],
)
def test_impossible_tables_are_refused_by_name(bad):
    arguments = np.transpose([[(10, 5, 5, 2), bad]], (2, 0, 1))
    with pytest.raises(FitError, match=r"The 2 x 2 table at \(0, 1\) has a cell that is neg"):
        tetrachoric(*arguments)


def test_arguments_broadcast_and_may_be_of_any_type_and_layout():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 400, (150, 4, 130))  # More than one buffer of tables.
    n, ones_i, ones_j, joint = table(*np.moveaxis(counts, 1, 0))
    expected = tetrachoric(n, ones_i, ones_j, joint)
    again = tetrachoric(
        np.asfortranarray(n), ones_i.astype(np.uint16), ones_j.astype(float)[::-1][::-1], joint
    )
    np.testing.assert_array_equal(again.correlation, expected.correlation)
    one = tetrachoric(*(x[149, 129] for x in (n, ones_i, ones_j, joint)))
    assert one.correlation == expected.correlation[149, 129]
    column = tetrachoric(2000, ones_i[:, :1], 500, [1, 2, 3])
    assert column.correlation.shape == column.status.shape == (150, 3)
    assert tetrachoric(np.zeros((2, 0)), 0, 0, 0).correlation.shape == (2, 0)
    assert (
        len(module._fill_correlations.signatures) == 1
    )  # Each version would cost seconds of compilation.


def pair_tables(X, M):
    """Arguments of `tetrachoric` for all pairs, each over the rows that observe both."""
    ones, observed = (X & M).astype(float), M.astype(float)
    return observed.T @ observed, ones.T @ observed, observed.T @ ones, ones.T @ ones


@given(st.floats(-1, 1))
def test_the_two_directions_are_inverse(clipped):
    assert sign_correlation(arcsine_correlation(clipped)) == pytest.approx(clipped, abs=1e-7)


@pytest.mark.parametrize("convert", [arcsine_correlation, sign_correlation])
def test_rounding_beyond_one_is_one(convert):
    np.testing.assert_array_equal(convert([[-1 - 1e-15], [1 + 1e-15]]), [[-1], [1]])


@pytest.mark.parametrize("convert", [arcsine_correlation, sign_correlation])
@pytest.mark.parametrize("bad", [np.nan, 1.1, -np.inf])
def test_no_correlation_is_refused(convert, bad):
    with pytest.raises(FitError, match=r"at \(0, 1\)"):
        convert([[0.0, bad]])


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


@pytest.mark.parametrize("of", [(0, 0, 0), (1, 1, 1), (1, 0, 1), (5, 0, 3), (5, 5, 3), (2, 2, 2)])
def test_margins_that_leave_no_choice(of: tuple[int, int, int]) -> None:
    n, a, b = of
    for z in (-3.0, 0.0, 3.0):
        assert quantile(n, a, b, z) == max(0, a + b - n)
