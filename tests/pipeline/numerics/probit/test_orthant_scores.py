import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp, ndtr

from pipeline.errors import FitError
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
from pipeline.numerics.probit.probit_scores import orthant_scores
from tests.support.derivatives import differentiate
from tests.support.enumeration import list_states

STEEPEST = np.sqrt(np.pi / 8) * 3 * 3  # Of a mixing of 3 and a source of standard deviation 3.
# In units of a standard error from 6 shifts, errors follow Student's t with 5 degrees of freedom:
# 1 in 15,000 is above 12.
N_ERRORS = 12


def factor_model(seed, n_features=6, n_components=2, steepest=1.0):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(-steepest, steepest, (n_features, n_components))
    return weights, rng.normal(0, 0.5, n_features)


def drawn_rows(n_rows, weights, offsets, seed=0):
    """Draw rows of the model; those that differ."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n_rows, weights.shape[1])) @ weights.T + offsets
    return np.unique((latent + rng.normal(size=latent.shape) > 0).astype(np.uint8), axis=0)


def by_quadrature(X, weights, offsets, n_points=161):
    """Log ∫ φ(u) Π Φ(± (w_iᵀ u + b_i)) du by the trapezoidal rule, exact to rounding."""
    axis, step = np.linspace(-8, 8, n_points, retstep=True)
    u = np.stack(np.meshgrid(*[axis] * weights.shape[1]), axis=-1).reshape(-1, weights.shape[1])
    prior = (np.log(step / np.sqrt(2 * np.pi)) - 0.5 * u * u).sum(axis=1)
    inner = u @ weights.T + offsets
    terms = log_ndtr(inner) @ X.T.astype(float) + log_ndtr(-inner) @ (1.0 - X.T)
    return logsumexp(terms + prior[:, None], axis=0)


def differences(function, parameter, step=1e-4):
    """Central differences by every entry, (n_samples, *shape)."""
    shape = parameter.shape
    slopes = differentiate(lambda flat: function(flat.reshape(shape)), parameter.ravel(), step)
    return slopes.reshape(-1, *shape)


def assert_close(slopes, truth, rtol):
    np.testing.assert_allclose(slopes, truth, rtol=0, atol=rtol * abs(truth).max())


def assert_within_error(scores, truth):
    difference = abs(scores.log_likelihood - truth)
    np.testing.assert_array_less(difference, N_ERRORS * scores.error + 1e-13)


@pytest.mark.parametrize("weight", [0.3, STEEPEST])
@pytest.mark.parametrize("offset", [-40.0, -1.0, 0.0, 2.5])
def test_one_feature_is_exact(weight, offset):
    weights, c = np.array([[weight, -weight]]), 1 + 2 * weight**2
    scores = orthant_scores([[1]], weights, [offset])
    z = offset / np.sqrt(c)
    slope = np.exp(-0.5 * (z * z + np.log(2 * np.pi)) - log_ndtr(z)) / np.sqrt(c)
    np.testing.assert_allclose(scores.log_likelihood, [log_ndtr(z)], rtol=1e-12)
    np.testing.assert_allclose(scores.offsets, [[slope]], rtol=1e-8)
    # z = b / √C, and ∂C / ∂w = 2 w.
    np.testing.assert_allclose(scores.weights, [-slope * offset / c * weights], rtol=1e-7, atol=0)
    assert scores.settled.all()


def two_features(weights, offsets):
    """Log P and its derivatives, from those of Φ2, of all four rows."""
    C = np.eye(2) + weights @ weights.T
    d = np.sqrt(np.diag(C))
    sign = 2.0 * list_states((2, 2)) - 1
    b, rho = sign * offsets / d, sign.prod(axis=1) * C[0, 1] / d.prod()
    P = bivariate_normal_cdf_array(b[:, 0], b[:, 1], rho)
    root = np.sqrt(1 - rho**2)
    conditional = ndtr((b[:, ::-1] - rho[:, None] * b) / root[:, None])
    by_b = np.exp(-0.5 * b * b) / np.sqrt(2 * np.pi) * conditional / P[:, None]
    quadratic = (b**2).sum(axis=1) - 2 * rho * b.prod(axis=1)
    by_rho = np.exp(-0.5 * quadratic / root**2) / (2 * np.pi * root * P)
    slopes = sign * by_b / d
    by_C = np.empty((4, 2, 2))
    by_C[:, 0, 1] = by_C[:, 1, 0] = sign.prod(axis=1) * by_rho / d.prod()
    for i in range(2):
        by_C[:, i, i] = -(slopes[:, i] * offsets[i] + by_rho * rho) / C[i, i]
    return np.log(P), slopes, by_C @ weights


@pytest.mark.parametrize("steepest", [1.0, STEEPEST])
def test_two_features_are_the_bivariate_normal(steepest):
    weights, offsets = factor_model(1, n_features=2, steepest=steepest)
    log_p, by_offsets, by_weights = two_features(weights, offsets)
    scores = orthant_scores(list_states((2, 2)), weights, offsets, tol=1e-9, max_points=1 << 17)
    assert_within_error(scores, log_p)
    np.testing.assert_allclose(scores.log_likelihood, log_p, rtol=0, atol=1e-6)
    assert_close(scores.offsets, by_offsets, 1e-5)
    assert_close(scores.weights, by_weights, 1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("n_components", [1, 2])
@pytest.mark.parametrize(("steepest", "rtol"), [(1.0, 1e-5), (STEEPEST, 1e-4)])
def test_against_quadrature(n_components, steepest, rtol):
    weights, offsets = factor_model(3, n_components=n_components, steepest=steepest)
    X = drawn_rows(8, weights, offsets)
    truth = by_quadrature(X, weights, offsets)
    by_offsets = differences(lambda b: by_quadrature(X, weights, b), offsets)
    by_weights = differences(lambda W: by_quadrature(X, W, offsets), weights)
    few = orthant_scores(X, weights, offsets)
    assert few.settled.all()
    assert_within_error(few, truth)
    assert_close(few.offsets, by_offsets, 0.05)
    assert_close(few.weights, by_weights, 0.05)
    many = orthant_scores(X[:1], weights, offsets, tol=1e-9, max_points=1 << 17)
    assert_within_error(many, truth[:1])
    np.testing.assert_allclose(many.log_likelihood, truth[:1], rtol=0, atol=rtol / 10)
    assert_close(many.offsets, by_offsets[:1], rtol)
    assert_close(many.weights, by_weights[:1], rtol)


@pytest.mark.parametrize("steepest", [1.0, STEEPEST])
def test_the_error_is_honest(steepest):
    ratios = []
    for seed in range(8):
        weights, offsets = factor_model(seed, n_components=1, steepest=steepest)
        X = drawn_rows(60, weights, offsets)
        scores = orthant_scores(X, weights, offsets, seed=seed)
        truth = by_quadrature(X, weights, offsets)
        ratios.append(abs(scores.log_likelihood - truth) / scores.error)
    ratios = np.concatenate(ratios)
    assert (ratios <= 3).mean() > 0.94  # 0.97 by Student's t.
    assert 1 < np.sqrt((ratios**2).mean()) < 1.6  # √(5 / 3)


def test_missing_values_are_left_out():
    weights, offsets = factor_model(5)
    X = drawn_rows(8, weights, offsets)
    observed = np.random.default_rng(5).random(X.shape) < 0.6
    scores = orthant_scores(np.where(observed, X, 7), weights, offsets, observed)
    assert not scores.offsets[~observed].any()
    assert not scores.weights[~observed].any()
    for row, (x, seen) in enumerate(zip(X, observed, strict=True)):
        alone = orthant_scores(x[None, seen], weights[seen], offsets[seen])
        error = np.hypot(scores.error[row], alone.error[0])
        assert abs(scores.log_likelihood[row] - alone.log_likelihood[0]) <= N_ERRORS * error
        np.testing.assert_allclose(scores.offsets[row, seen], alone.offsets[0], atol=0.03)
        np.testing.assert_allclose(scores.weights[row, seen], alone.weights[0], atol=0.03)


def test_a_row_without_values_says_nothing():
    scores = orthant_scores([[1, 0]], np.ones((2, 1)), [0.0, 1.0], [[0, 0]])
    assert not any(field.any() for field in scores[:4])
    assert scores.settled.all()


def test_a_result_depends_on_its_row_alone():
    weights, offsets = factor_model(6)
    X = drawn_rows(6, weights, offsets)
    together = orthant_scores(np.vstack([X, X[::2]]), weights, offsets)
    for row, x in enumerate(np.vstack([X, X[::2]])):
        alone = orthant_scores(x[None], weights, offsets)
        for many, one in zip(together[:5], alone[:5], strict=True):
            np.testing.assert_array_equal(many[row], one[0])


def test_points_run_out():
    weights, offsets = factor_model(7, steepest=STEEPEST)
    X = drawn_rows(5, weights, offsets)
    scores = orthant_scores(X, weights, offsets, tol=1e-5, max_points=256)
    assert (scores.error > 1e-5).all()
    assert not scores.settled.any()


ROW, FLAT, ZERO = np.zeros((1, 3)), np.ones((3, 2)), np.zeros(3)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            (np.zeros((1, 21)), np.ones((21, 2)), np.zeros(21)),
            {},
            "at most 20 features, but there are 21. Use expectation propagation",
        ),
        (([[0, 2, 0]], FLAT, ZERO), {}, "value 2 in row 0, column 1, which is not 0 or 1"),
        ((ROW, FLAT[:2], ZERO), {}, r"shapes \(2, 2\) and \(3,\), but there are 3 features"),
        ((ROW, np.ones(3), np.zeros(2)), {}, r"shapes \(3,\) and \(2,\), but there are 3 features"),
        ((ROW, FLAT * np.nan, ZERO), {}, "Weights or offsets are NaN or infinite"),
        ((ROW, FLAT, [0, np.inf, 0]), {}, "Weights or offsets are NaN or infinite"),
        ((ROW, 1e8 * FLAT, ZERO), {}, "not positive definite: it has the eigenvalue"),
        ((ROW, FLAT, [0, 1e4, 0]), {}, "threshold of feature 1 is -5773.50.*, beyond ±1000"),
        ((ROW, FLAT, ZERO), {"tol": 0}, "`tol` is 0 .*above 0 and max_points from 128 to 131072"),
        ((ROW, FLAT, ZERO), {"max_points": 127}, "`max_points` is 127,"),
    ],
)
def test_refusals(arguments, options, message):
    with pytest.raises(FitError, match=message):
        orthant_scores(*arguments, **options)
