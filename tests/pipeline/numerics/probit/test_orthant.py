from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import log_ndtr, logsumexp, ndtr

from pipeline.errors import FitError
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.probit import orthant
from pipeline.numerics.probit.orthant import MAX_FEATURES, log_orthant_probability
from tests.support.enumeration import list_states

seeds = st.integers(0, 2**32 - 1)


def one_factor(loadings):
    """Correlation of w = λ f + √(1 − λ²) e."""
    R = np.outer(loadings, loadings)
    np.fill_diagonal(R, 1)
    return R


def one_factor_truth(X, loadings, thresholds, n_points=20_001):
    """Log ∫ φ(f) Π Φ(± (λ f − t) / √(1 − λ²)) df by the trapezoidal rule around the peak.

    The integrand is analytic and vanishes at both ends, so the rule is exact to rounding.
    """

    def log_integrand(row, f):
        z = (np.multiply.outer(f, loadings) - thresholds) / np.sqrt(1 - loadings**2)
        return log_ndtr(z * (2.0 * row - 1)).sum(axis=1) - 0.5 * (f * f + np.log(2 * np.pi))

    def truth(row):
        f = np.linspace(-100, 100, n_points)
        values = log_integrand(row, f)
        peak = f[values > values.max() - 60]
        f = np.linspace(peak[0] - 0.1, peak[-1] + 0.1, n_points)
        return logsumexp(log_integrand(row, f)) + np.log(f[1] - f[0])

    return np.array([truth(row) for row in X.astype(float)])


def random_correlation(rng, n_features, n_factors=3, noise=0.5):
    factor = rng.normal(size=(n_features, n_factors))
    covariance = factor @ factor.T + noise * np.eye(n_features)
    scale = np.sqrt(np.diag(covariance))
    R = covariance / np.outer(scale, scale)
    np.fill_diagonal(R, 1)
    return (R + R.T) / 2


def random_problem(seed, n_features=6, n_rows=5):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2, (n_rows, n_features)).astype(np.uint8)
    return X, random_correlation(rng, n_features), rng.normal(0, 0.8, n_features)


def assert_within_error(result, truth, tol=1e-4, n_errors=5):
    assert (result.error <= tol).all()
    np.testing.assert_array_less(
        abs(result.log_probability - truth), n_errors * result.error + 1e-11 * (1 + abs(truth))
    )


@pytest.mark.parametrize("threshold", [-1000, -38.5, -30.1, -29.9, -1, 0, 2.5, 29, 31, 400])
def test_one_feature_is_exact(threshold):
    result = log_orthant_probability([[1], [0]], [[1.0]], [threshold])
    with mp.workdps(40):
        smaller = mp.ncdf(-abs(mpf(threshold)))
        truth = [float(mp.log(smaller)), float(mp.log1p(-smaller))]
    truth = truth if threshold > 0 else truth[::-1]
    np.testing.assert_allclose(result.log_probability, truth, rtol=1e-11, atol=1e-300)
    assert (result.error == 0).all()


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-0.99, 0.99))
def test_two_features_are_the_bivariate_normal(h, k, rho):
    result = log_orthant_probability(list_states((2, 2)), [[1, rho], [rho, 1]], [h, k])
    signs = 1 - 2.0 * list_states((2, 2))
    probability = bivariate_normal_cdf_array(
        signs[:, 0] * h, signs[:, 1] * k, signs.prod(axis=1) * rho
    )
    seen = probability > 1e-250
    np.testing.assert_allclose(result.log_probability[seen], np.log(probability[seen]), rtol=1e-13)
    assert (result.error[seen] == 0).all()


def test_two_features_beyond_underflow():
    loadings, thresholds = np.array([0.7, 0.7]), np.array([45.0, 50.0])
    result = log_orthant_probability([[1, 1]], one_factor(loadings), thresholds)
    truth = one_factor_truth(np.array([[1, 1]]), loadings, thresholds)
    assert truth[0] < -1400
    assert_within_error(result, truth)


@pytest.mark.parametrize("n_features", [3, 5, 10, 20])
@pytest.mark.parametrize("communality", [0.5, 0.9])
def test_one_factor_against_quadrature(n_features, communality):
    rng = np.random.default_rng(n_features)
    limit = np.sqrt(communality)
    loadings = rng.uniform(-limit, limit, n_features)
    thresholds = rng.normal(0, 1, n_features)
    X = rng.integers(0, 2, (12, n_features))
    result = log_orthant_probability(X, one_factor(loadings), thresholds)
    assert_within_error(result, one_factor_truth(X, loadings, thresholds))


@pytest.mark.parametrize(
    ("n_features", "rho", "threshold"),
    [(5, 0.5, 8), (5, 0.1, 15), (10, 0.3, 6), (10, 0.1, 10), (20, 0.2, 4), (20, 0.05, 37)],
)
def test_tiny_probabilities(n_features, rho, threshold):
    loadings, thresholds = np.full(n_features, np.sqrt(rho)), np.full(n_features, threshold)
    X = np.vstack([np.ones(n_features), np.arange(n_features) % 2])
    result = log_orthant_probability(X, one_factor(loadings), thresholds)
    truth = one_factor_truth(X, loadings, thresholds)
    assert (truth < np.log(1e-15)).all()
    assert_within_error(result, truth)


def polygon_probability(directions, signs, thresholds):
    """P(signs · (directions g) < signs · thresholds) of a standard normal g in the plane."""
    g = np.linspace(-9, 9, 200_001)
    low, high = np.full(g.shape, -np.inf), np.full(g.shape, np.inf)
    for (along, across), sign, threshold in zip(directions, signs, thresholds, strict=True):
        end = (threshold - along * g) / across
        if sign * across > 0:
            high = np.minimum(high, end)
        else:
            low = np.maximum(low, end)
    density = np.exp(-0.5 * g * g) / np.sqrt(2 * np.pi)
    return (density * np.maximum(ndtr(high) - ndtr(low), 0)).sum() * (g[1] - g[0])


@pytest.mark.parametrize("eigenvalue", [1e-8, 1e-10])
def test_nearly_singular_correlation(eigenvalue):
    rng = np.random.default_rng(0)
    angles, thresholds = rng.uniform(0, np.pi, 5), rng.uniform(-0.5, 0.5, 5)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    R = (1 - eigenvalue) * directions @ directions.T
    np.fill_diagonal(R, 1)
    X = np.unique(rng.normal(size=(200, 2)) @ directions.T > thresholds, axis=0)
    result = log_orthant_probability(X, R, thresholds)
    truth = [polygon_probability(directions, 1 - 2.0 * x, thresholds) for x in X]
    likely = np.array(truth) > 0.01
    assert likely.sum() > 5
    assert (result.error < 1e-3).all()
    difference = abs(result.log_probability - np.log(truth))
    np.testing.assert_array_less(difference[likely], 5 * result.error[likely] + 2e-4)


def test_a_pattern_all_but_impossible_has_a_finite_value_and_a_large_error():
    R = np.array([[1, 0.8, 1 - 1e-9], [0.8, 1, 0.8], [1 - 1e-9, 0.8, 1]])
    result = log_orthant_probability([[1, 0, 0]], R, [3.0, 0.0, -3.0], max_points=64)
    assert result.log_probability[0] < -1e9
    assert np.isfinite(result.error).all()


@given(seeds)
def test_missing_values_are_integrated_out(seed):
    X, R, thresholds = random_problem(seed)
    observed = np.random.default_rng(seed).random(X.shape) < 0.6
    result = log_orthant_probability(np.where(observed, X, 7), R, thresholds, observed, tol=1e-2)
    for row, (x, seen) in enumerate(zip(X, observed, strict=True)):
        alone = log_orthant_probability(
            x[None, seen], R[np.ix_(seen, seen)], thresholds[seen], tol=1e-2
        )
        assert (alone.log_probability[0], alone.error[0]) == tuple(field[row] for field in result)


def test_a_row_without_values_is_certain():
    result = log_orthant_probability([[1, 0]], np.eye(2), [0.0, 0.0], [[0, 0]])
    assert (result.log_probability[0], result.error[0]) == (0, 0)


@given(seeds)
def test_a_result_depends_on_its_row_alone(seed):
    X, R, thresholds = random_problem(seed)
    X = np.vstack([X, X[::2]])
    together = log_orthant_probability(X, R, thresholds, tol=1e-3)
    for row, x in enumerate(X):
        alone = log_orthant_probability(x[None], R, thresholds, tol=1e-3)
        assert (alone.log_probability[0], alone.error[0]) == tuple(field[row] for field in together)


def test_threads_give_the_same_bytes():
    problems = [random_problem(seed) for seed in range(8)]
    serial = [log_orthant_probability(*problem) for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        threaded = [*pool.map(lambda problem: log_orthant_probability(*problem), problems)]
    np.testing.assert_array_equal(serial, threaded)


@given(seeds)
def test_ones_and_zeros_are_mirror_images(seed):
    X, R, thresholds = random_problem(seed)
    mirrored = log_orthant_probability(1 - X, R, -thresholds, tol=1e-2)
    np.testing.assert_array_equal(mirrored, log_orthant_probability(X, R, thresholds, tol=1e-2))


@pytest.mark.matrix
@pytest.mark.parametrize("tol", [1e-2, 1e-3])
def test_the_error_is_honest(tol):
    ratios = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        loadings, thresholds = rng.uniform(-0.95, 0.95, 8), rng.normal(0, 1, 8)
        X = rng.integers(0, 2, (5, 8))
        result = log_orthant_probability(
            X, one_factor(loadings), thresholds, tol=tol, max_points=1024, seed=seed
        )
        truth = one_factor_truth(X, loadings, thresholds, n_points=4001)
        ratios.append((result.log_probability - truth) / result.error)
    ratios = np.concatenate(ratios)
    assert (abs(ratios) <= 4).mean() >= 0.98
    assert 0.7 < np.sqrt((ratios**2).mean()) < 1.4


def test_points_run_out():
    X, R, thresholds = random_problem(3, n_features=10)
    few = log_orthant_probability(X, R, thresholds, tol=1e-9, max_points=64)
    many = log_orthant_probability(X, R, thresholds, tol=1e-9, max_points=4096)
    assert (many.error > 1e-9).all()
    np.testing.assert_array_less(10 * many.error, few.error)


def test_the_lattice_is_among_the_best_of_its_kind():
    """By the worst-case error P2 over all projections to two dimensions."""

    def merits(multiplier):
        k = np.arange(2**12)
        bernoulli = (k / len(k)) ** 2 - k / len(k) + 1 / 6
        pairs = [
            (MAX_FEATURES - lag) * bernoulli * bernoulli[k * pow(multiplier, lag, len(k)) % len(k)]
            for lag in range(1, MAX_FEATURES)
        ]
        return np.array([sum(pairs)[:: 2**coarser].mean() for coarser in range(6)])

    ours = int(orthant._GENERATORS[1])
    rng = np.random.default_rng(0)
    table = np.array([merits(a) for a in [ours, *(8 * rng.integers(2**14, size=60) + 5).tolist()]])
    worst = (table / table.min(axis=0)).max(axis=1)
    assert (worst[1:] > worst[0]).mean() > 0.9


EYE = np.eye(3)
SINGULAR = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1.0]])
SKEW = np.array([[1, 0.2, 0], [0.3, 1, 0], [0, 0, 1]])
ROW = np.zeros((1, 3), np.uint8)
ZERO = np.zeros(3)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            (np.zeros((1, 30)), np.eye(30), np.zeros(30)),
            {},
            "at most 20 features, but there are 30. Use expectation",
        ),
        ((np.zeros(3), EYE, ZERO), {}, r"shape \(3,\) .* must be \(n_samples, n_features\)"),
        ((ROW, EYE, ZERO, np.ones((2, 3))), {}, r"shape \(1, 3\) and `observed` \(2, 3\)"),
        (([[0, 2, 0]], EYE, ZERO), {}, "value 2 in row 0, column 1, which is not 0 or 1"),
        ((ROW, np.eye(2), ZERO), {}, r"shape \(2, 2\) .* 3 features need \(3, 3\) and \(3,\)"),
        ((ROW, EYE, np.zeros(2)), {}, r"\(3, 3\) and the thresholds \(2,\)"),
        ((ROW, EYE, np.array([0, np.inf, 0])), {}, "threshold of feature 1 is inf, beyond ±1000"),
        ((ROW, EYE, np.array([np.nan, 0, 0])), {}, "threshold of feature 0 is nan"),
        ((ROW, SKEW, ZERO), {}, "symmetric .* has 0.2 in row 0, column 1 and 0.3 across"),
        ((ROW, 2 * EYE, ZERO), {}, "unit diagonal, but it has 2.0 in row 0, column 0"),
        ((ROW, np.full((3, 3), np.nan), ZERO), {}, "finite .* has nan"),
        ((ROW, np.where(EYE > 0, 1, np.inf), ZERO), {}, "finite .* has inf"),
        ((ROW, SINGULAR, ZERO), {}, "not positive definite: it has the eigenvalue"),
        ((ROW, np.where(EYE > 0, 1, -0.9), ZERO), {}, "has the eigenvalue -0.8"),
        (
            (ROW, EYE, ZERO),
            {"tol": 0},
            "`tol` is 0 .*tol must be above 0 and max_points from 64 to 131072",
        ),
        ((ROW, EYE, ZERO), {"max_points": 63}, "`max_points` is 63,"),
        ((ROW, EYE, ZERO), {"max_points": 1 << 18}, "`max_points` is 262144,"),
    ],
)
def test_refusals(arguments, options, message):
    with pytest.raises(FitError, match=message):
        log_orthant_probability(*arguments, **options)
