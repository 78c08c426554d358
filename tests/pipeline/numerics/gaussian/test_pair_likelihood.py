import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from pipeline.errors import FitError
from pipeline.numerics.gaussian.pair_tables import (
    MAX_CORRELATION,
    log_cells,
    pair_log_likelihood,
    tetrachoric,
)

DIGITS = 60
LAST = np.nextafter(1, 0)
thresholds = st.floats(-10, 10)
correlations = st.floats(-1, 1, exclude_min=True, exclude_max=True)
positive_cells = st.tuples(*[st.integers(1, 10**6)] * 4)


def table(n11, n10, n01, n00):
    """The counts of a table from its four cells."""
    return n11 + n10 + n01 + n00, n11 + n10, n11 + n01, n11


def likelihood(counts, h, k, rho):
    """Return the log-likelihood of one pair of features, which are the only ones."""
    (value,) = pair_log_likelihood([[count] for count in counts], [h, k], [0], [1], [rho])
    return value


def precise_cells(h, k, rho):
    """∫ φ(x) Φ((ρ x − k) / √(1 − ρ²)) dx from h on, and from it the other cells."""
    h, k, rho = mpf(h), mpf(k), mpf(rho)
    scale = mp.sqrt(1 - rho * rho)
    # The integrand bends where Φ does, and may end within a hair of its start.
    turn = [(k + step * scale) / rho for step in (-30, -8, -2, 0, 2, 8, 30)] if rho else []
    ends = [
        h + step for step in (0, 1e-16, 1e-12, 1e-8, 1e-5, 1e-3, 0.03, 0.2, 1, 3, 6, 10, 16, 30)
    ]
    cuts = sorted(cut for cut in {*turn, *ends} if h <= cut <= h + 30)

    def integrand(x):
        return mp.npdf(x) * mp.ncdf((rho * x - k) / scale)

    peak = max(integrand(cut) for cut in cuts)
    p11 = peak * mp.quad(lambda x: integrand(x) / peak, cuts)
    p10, p01 = mp.ncdf(-h) - p11, mp.ncdf(-k) - p11
    return p11, p10, p01, 1 - p11 - p10 - p01


def relative_errors(h, k, rho):
    with mp.workdps(DIGITS):
        pairs = zip(log_cells(h, k, rho), precise_cells(h, k, rho), strict=True)
        return [abs(float(mp.expm1(mpf(log_p) - mp.log(exact)))) for log_p, exact in pairs]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("h", "k", "rho"),
    [
        (0.3, -0.7, 0.0),
        (0.3, -0.7, 1e-6),
        (1.2, 0.4, 0.35),
        (-2.1, 1.3, -0.6),
        (5.0, 4.0, -0.3),
        (-7.9, 7.8, 0.2),
        (8.0, -8.0, -0.5),
        (8.0, 8.0, 0.7),
        (9.5, -6.0, -0.4),
        (1.0, -0.99, -0.9999),
        (2.0, 2.0, 0.999999),
    ],
)
def test_cells_are_relatively_precise_however_small(h, k, rho):
    assert max(relative_errors(h, k, rho)) < 2e-12


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("h", "k", "rho"),
    [
        (2.0, 2.0, 1 - 1e-9),
        (-3.0, 3.0, -1 + 1e-11),
        (-3.0, 3.0 + 1e-6, -1 + 1e-11),
        (5.1865972297, -5.1865972308, -LAST),
        (8.0, 8.0, LAST),
    ],
)
def test_all_cells_but_one_are_as_precise_near_perfect_correlation(h, k, rho):
    *others, worst = sorted(relative_errors(h, k, rho))
    assert max(others) < 4e-12
    assert worst < 1e-8


@pytest.mark.parametrize("rho", [-1 + 1e-6, -1 + 1e-10, -1 + 1e-12, -1 + 1e-13, -LAST])
@pytest.mark.parametrize(("h", "k"), [(8.0, 8.0), (0.5, 0.25), (-2.0, 2.5)])
def test_cells_beyond_the_smallest_float(h, k, rho):
    """Far out P tends to the density over the slopes of its logarithm (Savage, 1962)."""
    with mp.workdps(DIGITS):
        h_, k_, rho_ = mpf(h), mpf(k), mpf(rho)
        scale = 1 - rho_ * rho_
        slopes = (h_ - rho_ * k_) / scale, (k_ - rho_ * h_) / scale
        exponent = -(h_ * h_ - 2 * rho_ * h_ * k_ + k_ * k_) / (2 * scale)
        constant = mp.log(2 * mp.pi * mp.sqrt(scale) * slopes[0] * slopes[1])
        assert min(slopes) > 1e3
        assert float(log_cells(h, k, rho)[0]) == pytest.approx(
            float(exponent - constant), rel=1e-11, abs=1e-2
        )


@given(thresholds, thresholds, correlations)
def test_cells_are_finite_and_add_up_to_one(h, k, rho):
    cells = log_cells(h, k, rho)
    assert np.isfinite(cells).all()
    assert np.exp(cells).sum() == pytest.approx(1, abs=1e-15)


@given(thresholds, thresholds, correlations)
def test_swaps_and_flips_move_the_cells(h, k, rho):
    assume(h + k != 0 and h != k and rho != 0)  # There two ways to turn a table are as good.
    p11, p10, p01, p00 = log_cells(h, k, rho)
    assert log_cells(k, h, rho).tolist() == [p11, p01, p10, p00]
    assert log_cells(-h, k, -rho).tolist() == [p01, p00, p11, p10]
    assert log_cells(h, -k, -rho).tolist() == [p10, p11, p00, p01]


@pytest.mark.parametrize(("h", "k", "rho"), [(0.4, -0.2, 0.5), (1.5, 1.0, -0.7), (-1, -2, 0.9)])
def test_likelihood_is_that_of_scipy(h, k, rho):
    counts = n11, n10, n01, n00 = np.array([120, 35, 61, 9])
    orthants = [(-h, -k, rho), (-h, k, -rho), (h, -k, -rho), (h, k, rho)]
    shares = [multivariate_normal.cdf([a, b], cov=[[1, r], [r, 1]]) for a, b, r in orthants]
    value = likelihood(table(n11, n10, n01, n00), h, k, rho)
    assert value == pytest.approx(counts @ np.log(shares), rel=1e-6)


@given(positive_cells)
def test_tetrachoric_estimates_give_back_the_shares(counts):
    """Three parameters fit a table exactly, so that Σ count · log(share) is the maximum."""
    n, ones_i, ones_j, joint = table(*counts)
    correlation, _ = tetrachoric(n, ones_i, ones_j, joint)
    assume(abs(correlation) < MAX_CORRELATION)
    h, k = -ndtri(ones_i / n), -ndtri(ones_j / n)
    value = likelihood((n, ones_i, ones_j, joint), h, k, correlation)
    assert value == pytest.approx(counts @ np.log(np.divide(counts, n)), rel=1e-9)


@pytest.mark.parametrize("rho", [-LAST, -0.99, 0.99, LAST])
def test_empty_cells_add_nothing(rho):
    p11, p10, p01, p00 = log_cells(3.0, 3.0, rho)
    both = likelihood(table(2, 0, 0, 7), 3.0, 3.0, rho)
    assert both == pytest.approx(2 * p11 + 7 * p00, rel=1e-15)
    one = likelihood(table(0, 2, 5, 0), 3.0, 3.0, rho)
    assert one == pytest.approx(2 * p10 + 5 * p01, rel=1e-15)
    assert likelihood((0, 0, 0, 0), 3.0, 3.0, rho) == 0


@pytest.mark.parametrize(
    ("counts", "empty", "arguments"),
    [
        ((1.0, 0.3, 0.6, -1e-16), (1.0, 0.3, 0.6, 0.0), (8, 8, -LAST)),
        ((1.0, 0.3, 0.6, np.nextafter(0.3, 1)), (1.0, 0.3, 0.6, 0.3), (8, -8, LAST)),
        ((1.0, 0.6, 0.3, np.nextafter(0.3, 1)), (1.0, 0.6, 0.3, 0.3), (-8, 8, LAST)),
        ((1.0, 0.6, np.nextafter(0.4, 1), 0.0), (1.0, 0.6, 0.4, 0.0), (-8, -8, -LAST)),
    ],
)
def test_a_cell_below_zero_by_rounding_is_empty(counts, empty, arguments):
    expected = likelihood(empty, *arguments)
    assert likelihood(counts, *arguments) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[(name, np.nan) for name in ("h", "k", "rho")],
        *[("rho", bad) for bad in (1.0, -1.0, 1.5, np.inf)],
        *[(name, bad) for name in ("h", "k") for bad in (10.001, -np.inf)],
    ],
)
def test_arguments_out_of_range_are_refused_by_name(name, bad):
    arguments = {"h": 0.1, "k": 0.2, "rho": 0.3} | {name: np.array([[0.5, bad]])}
    refusal = rf"has .*\b{name}={bad}[, ].*thresholds lie within ±10 and corr"
    with pytest.raises(FitError, match=rf"at \(0, 1\) {refusal}"):
        log_cells(**arguments)
    h, k, rho = (np.broadcast_to(values, (1, 2))[0] for values in arguments.values())
    for n, ones in ((10, 5), (0, 0)):
        counts = [[n] * 2, [ones] * 2, [ones] * 2, [ones // 2] * 2]
        with pytest.raises(FitError, match=rf"at \(1,\) {refusal}"):
            pair_log_likelihood(counts, [*h, *k], [0, 1], [2, 3], rho)


@pytest.mark.parametrize(("spread", "strength"), [(0.3, 0.1), (0.3, 0.5), (1.0, 0.9), (4.0, 0.5)])
def test_many_pairs_have_the_likelihood_of_their_cells(spread, strength):
    rng = np.random.default_rng(1)
    thresholds = np.clip(rng.normal(0, spread, 70), -10, 10)
    i, j = np.triu_indices(70, 1)
    kept = rng.random(len(i)) < 0.95
    i, j = i[kept], j[kept]
    rho = np.tanh(rng.normal(0, strength, len(i)))
    cells = log_cells(thresholds[i], thresholds[j], rho)
    counts = rng.multinomial(1000, np.exp(cells) / np.exp(cells).sum(axis=1, keepdims=True))
    values = pair_log_likelihood(table(*counts.T), thresholds, i, j, rho)
    np.testing.assert_allclose(values, (counts * cells).sum(axis=1), rtol=1e-11, atol=1e-9)
