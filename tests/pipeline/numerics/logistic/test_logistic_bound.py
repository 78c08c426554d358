from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit, log_expit, logsumexp

from pipeline.errors import FitError
from pipeline.numerics.bits.kernels import pack_rows
from pipeline.numerics.logistic.logistic_bound import (
    VariationalPosterior,
    variational_e_step,
    variational_row_posterior,
)
from pipeline.numerics.logistic.newton_step import unpack_triangles

seeds = st.integers(0, 2**32 - 1)


def random_model(rng, n_features, q, scale=1.0):
    return scale * rng.normal(size=(n_features, q)), rng.normal(size=n_features)


def draw(rng, weights, offsets, n_samples):
    """Rows of the model, and a mask of which a third is missing."""
    x = rng.normal(size=(n_samples, weights.shape[1]))
    T = rng.random((n_samples, len(weights))) < expit(x @ weights.T + offsets)
    return T.astype(np.uint8), (rng.random(T.shape) < 2 / 3).astype(np.uint8)


def posterior_of(T, observed, weights, offsets, **limits):
    return variational_row_posterior(*packed(T, observed), weights, offsets, **limits)


def statistics_of(T, observed, weights, offsets, **limits):
    return variational_e_step(*packed(T, observed), weights, offsets, **limits)


def packed(T, observed):
    """Arguments `words`, `observed_words` and `n_samples`."""
    if observed is None:
        return pack_rows(T), None, len(T)
    return pack_rows(T * observed), pack_rows(observed), len(T)


def expected_squares(weights, offsets, mean, covariance):
    """⟨(w·x + b)²⟩ of every feature."""
    second = covariance + np.outer(mean, mean)
    quadratic = np.einsum("ik,kl,il->i", weights, second, weights)
    return quadratic + 2 * offsets * (weights @ mean) + offsets**2


def variational_lambda(xi):
    return (0.5 - expit(xi)) / (2 * xi)


def reference_row(t, weights, offsets, tol=1e-4, max_rounds=20):
    """The formulas of the paper, one after the other: mean, covariance, bound and rounds."""
    mean, covariance = np.zeros(weights.shape[1]), np.eye(weights.shape[1])
    bound, rounds, moved = -np.inf, 0, np.inf
    while rounds < max_rounds and moved >= tol:
        xi = np.sqrt(expected_squares(weights, offsets, mean, covariance))
        lam = variational_lambda(xi)
        precision = np.eye(weights.shape[1]) - 2 * weights.T * lam @ weights
        covariance = np.linalg.inv(precision)
        linear = weights.T @ (t - 0.5 + 2 * lam * offsets)
        mean = covariance @ linear
        constants = log_expit(xi) - xi / 2 - lam * xi**2 + (t - 0.5) * offsets + lam * offsets**2
        value = -0.5 * np.linalg.slogdet(precision)[1] + 0.5 * linear @ mean + constants.sum()
        bound, rounds, moved = value, rounds + 1, abs(value - bound)
    return mean, covariance, bound, rounds


def reference_posterior(T, observed, weights, offsets, **limits):
    """Row by row, with missing features left out."""
    keep = np.ones(T.shape, bool) if observed is None else observed.astype(bool)
    rows = [
        reference_row(t[k].astype(float), weights[k], offsets[k], **limits)
        for t, k in zip(T, keep, strict=True)
    ]
    return VariationalPosterior(*(np.array(column) for column in zip(*rows, strict=True)))


def reference_sums(T, observed, weights, offsets, posterior):
    """Σ −2 λ ⟨x̂ x̂ᵀ⟩ as full matrices, and Σ (t − ½) ⟨x̂⟩."""
    n_features, m = len(weights), weights.shape[1] + 1
    curvature, target = np.zeros((n_features, m, m)), np.zeros((n_features, m))
    for n, (mean, covariance) in enumerate(zip(posterior.mean, posterior.covariance, strict=True)):
        extended = np.append(mean, 1)
        second = np.outer(extended, extended)
        second[:-1, :-1] += covariance
        xi = np.sqrt(expected_squares(weights, offsets, mean, covariance))
        present = 1.0 if observed is None else observed[n].astype(float)
        curvature += (-2 * present * variational_lambda(xi))[:, None, None] * second
        target += (present * (T[n] - 0.5))[:, None] * extended
    return curvature, target


def log_likelihood(T, weights, offsets, n_nodes):
    """Log P(t) of every row by Gauss-Hermite integration over one or two components."""
    nodes, node_weights = hermegauss(n_nodes)
    q = weights.shape[1]
    x = np.stack(np.meshgrid(*[nodes] * q), axis=-1).reshape(-1, q)
    log_prior = sum(np.meshgrid(*[np.log(node_weights / node_weights.sum())] * q)).ravel()
    z = x @ weights.T + offsets
    given_x = T @ log_expit(z).T + (1 - T.astype(float)) @ log_expit(-z).T
    return logsumexp(given_x + log_prior, axis=1)


@pytest.mark.few(4)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("n_features", "q"), [(7, 1), (33, 1), (16, 2), (5, 3), (40, 3), (24, 4), (12, 5), (30, 7)]
)
def test_rounds_agree_with_the_formulas(n_features, q, masked):
    rng = np.random.default_rng([n_features, q])
    model = random_model(rng, n_features, q)
    T, mask = draw(rng, *model, 70)
    data = T, mask if masked else None
    for limits in ({}, {"tol": 0, "max_rounds": 3}, {"tol": 0, "max_rounds": 60}):
        found = posterior_of(*data, *model, **limits)
        expected = reference_posterior(*data, *model, **limits)
        np.testing.assert_array_equal(found.rounds, expected.rounds)
        for value, reference in zip(found[:3], expected[:3], strict=True):
            np.testing.assert_allclose(value, reference, rtol=0, atol=1e-11)
        assert limits or len({*expected.rounds}) > 2


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("q", [1, 2, 3, 4, 5])
def test_statistics_are_the_sums_of_the_formulas(q, masked):
    rng = np.random.default_rng(q)
    model = random_model(rng, 19, q)
    T, mask = draw(rng, *model, 203)
    data = T, mask if masked else None
    found = statistics_of(*data, *model)
    posterior = reference_posterior(*data, *model)
    curvature, target = reference_sums(*data, *model, posterior)
    upper = np.triu_indices(q + 1)
    np.testing.assert_allclose(found.curvature, curvature[:, *upper], rtol=1e-11, atol=1e-10)
    np.testing.assert_allclose(found.target, target, rtol=1e-11, atol=1e-10)
    assert found.bound == pytest.approx(posterior.bound.sum(), rel=1e-12)
    assert found.rounds == posterior.rounds.sum()


def test_lambda_is_exact():
    # Without weights ξ is |b|, and the last entry of the curvature is −2 λ(ξ).
    xi = np.concatenate([[0.0, 1e-99, 1e-20], np.geomspace(1e-9, 1e3, 400), [1e6, 1e50]])
    signed = xi * np.where(np.arange(len(xi)) % 2, 1, -1)
    weights, words = np.zeros((len(xi), 1)), np.zeros((len(xi), 1), np.uint64)
    found = variational_e_step(words, None, 1, weights, signed).curvature[:, -1]
    with mp.workdps(40):
        exact = [float(mp.tanh(mpf(x) / 2) / (2 * mpf(x))) if x else 0.25 for x in xi]
    np.testing.assert_allclose(found, exact, rtol=1e-14, atol=0)


def test_the_bound_is_exact_without_weights():
    offsets = np.array([0.0, 0.3, -2.0, 30.0, -800.0])
    T = np.array([[0, 0, 0, 1, 0], [1, 1, 1, 1, 0], [1, 0, 1, 0, 1]], np.uint8)
    posterior = posterior_of(T, None, np.zeros((5, 2)), offsets)
    exact = log_expit((2.0 * T - 1) * offsets).sum(axis=1)
    np.testing.assert_allclose(posterior.bound, exact, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(posterior.mean, np.zeros((3, 2)))
    np.testing.assert_array_equal(posterior.covariance, np.tile(np.eye(2), (3, 1, 1)))


@given(seeds, st.integers(1, 2), st.integers(1, 12))
def test_the_bound_is_below_the_likelihood(seed, q, n_features):
    rng = np.random.default_rng(seed)
    model = random_model(rng, n_features, q)
    T, _ = draw(rng, *model, 10)
    posterior = posterior_of(T, None, *model)
    assert np.all(posterior.bound <= log_likelihood(T, *model, n_nodes=60) + 1e-7)


@pytest.mark.parametrize("q", [1, 2])
def test_the_bound_meets_the_likelihood_as_weights_vanish(q):
    rng = np.random.default_rng(q)
    weights, offsets = random_model(rng, 10, q)
    T, _ = draw(rng, weights, offsets, 50)
    lost = [
        log_likelihood(T, scale * weights, offsets, 60)
        - posterior_of(T, None, scale * weights, offsets).bound
        for scale in (1.0, 0.1, 0.01)
    ]
    # To second order in the weights; 0.1 may also be far from 1 in higher orders.
    assert np.all(lost[1] < lost[0] / 20)
    np.testing.assert_allclose(lost[2], lost[1] / 100, rtol=0.2, atol=1e-9)


@given(seeds, st.integers(1, 5))
def test_no_round_lowers_the_bound(seed, q):
    rng = np.random.default_rng(seed)
    model = random_model(rng, 15, q, scale=3)
    T, mask = draw(rng, *model, 40)
    bounds = [
        posterior_of(T, mask, *model, tol=0, max_rounds=rounds).bound for rounds in range(1, 8)
    ]
    assert all(np.all(after >= before - 1e-12) for before, after in pairwise(bounds))


@given(seeds, st.integers(1, 5), st.sampled_from([0.0, 0.7]))
def test_the_m_step_raises_the_bound(seed, q, prior_precision):
    rng = np.random.default_rng(seed)
    truth = random_model(rng, 12, q)
    T, mask = draw(rng, *truth, 100)
    weights, offsets = random_model(rng, 12, q, scale=0.3)
    limits = {"tol": 1e-10, "max_rounds": 500}
    objectives = []
    for _ in range(4):
        found = statistics_of(T, mask, weights, offsets, **limits)
        objectives.append(found.bound - prior_precision / 2 * np.sum(weights**2))
        matrices = unpack_triangles(found.curvature, q + 1)
        matrices[:, :q, :q] += prior_precision * np.eye(q)
        moved = np.linalg.solve(matrices, found.target[:, :, None])[:, :, 0]
        weights, offsets = moved[:, :q].copy(), moved[:, q].copy()
    assert all(after > before for before, after in pairwise(objectives))


def test_missing_values_are_features_left_out():
    rng = np.random.default_rng(0)
    weights, offsets = random_model(rng, 9, 2)
    T, _ = draw(rng, weights, offsets, 70)
    kept = np.array([0, 2, 3, 7])
    mask = np.zeros_like(T)
    mask[:, kept] = 1
    masked = posterior_of(T, mask, weights, offsets)
    left = posterior_of(T[:, kept], None, weights[kept], offsets[kept])
    for value, expected in zip(masked, left, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-14)
    sums, sums_left = (
        statistics_of(T, mask, weights, offsets),
        statistics_of(T[:, kept], None, weights[kept], offsets[kept]),
    )
    np.testing.assert_allclose(sums.curvature[kept], sums_left.curvature, rtol=1e-11)
    assert not np.delete(sums.curvature, kept, axis=0).any()
    assert not np.delete(sums.target, kept, axis=0).any()


def test_a_row_with_nothing_observed_keeps_the_prior():
    rng = np.random.default_rng(1)
    model = random_model(rng, 8, 3)
    T, mask = draw(rng, *model, 5)
    mask[2] = 0
    posterior = posterior_of(T, mask, *model)
    np.testing.assert_array_equal(posterior.mean[2], np.zeros(3))
    np.testing.assert_array_equal(posterior.covariance[2], np.eye(3))
    assert posterior.bound[2] == 0


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("q", [1, 2, 4])
def test_a_row_has_the_same_bits_in_any_company(q, masked):
    rng = np.random.default_rng(q)
    model = random_model(rng, 21, q, scale=2)
    T, mask = draw(rng, *model, 131)
    whole = posterior_of(T, mask if masked else None, *model)
    assert len({*whole.rounds}) > 3
    for rows in (rng.permutation(131), [17], np.arange(3, 131), np.arange(9)):
        part = posterior_of(T[rows], mask[rows] if masked else None, *model)
        for value, expected in zip(part, whole, strict=True):
            np.testing.assert_array_equal(value, expected[rows])


def test_sums_over_many_rows_are_those_of_their_blocks():
    rng = np.random.default_rng(3)
    model = random_model(rng, 5, 2)
    T, mask = draw(rng, *model, 9001)
    whole = statistics_of(T, mask, *model)
    blocks = [
        statistics_of(T[rows], mask[rows], *model) for rows in np.split(np.arange(9001), [77])
    ]
    for value, first, second in zip(whole, *blocks, strict=True):
        np.testing.assert_allclose(value, first + second, rtol=1e-12, atol=1e-9)
    posterior = posterior_of(T, mask, *model)
    assert whole.bound == pytest.approx(posterior.bound.sum(), rel=1e-12)
    assert whole.rounds == posterior.rounds.sum()


def test_thousands_of_features():
    # The product of all 1 + exp(−ξ) would overflow.
    rng = np.random.default_rng(4)
    model = random_model(rng, 2500, 2, scale=0.05)
    T, _ = draw(rng, *model, 3)
    found, expected = posterior_of(T, None, *model), reference_posterior(T, None, *model)
    np.testing.assert_allclose(found.bound, expected.bound, rtol=1e-12)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-10)


def test_no_rows():
    weights, offsets = np.ones((3, 2)), np.zeros(3)
    words = np.zeros((3, 0), np.uint64)
    found = variational_e_step(words, None, 0, weights, offsets)
    assert (found.bound, found.rounds) == (0, 0)
    assert found.curvature.shape == (3, 6)
    assert not found.curvature.any()
    assert not found.target.any()
    assert variational_row_posterior(words, words, 0, weights, offsets).covariance.shape == (
        0,
        2,
        2,
    )


def test_words_may_lie_anywhere():
    rng = np.random.default_rng(5)
    model = random_model(rng, 4, 2)
    T, _ = draw(rng, *model, 100)
    words = pack_rows(T)
    apart = np.full((4, 6), 2**64 - 1, np.uint64)[:, 1:5:2]
    apart[:] = words
    apart.flags.writeable = False
    expected = variational_e_step(words, None, 100, *model)
    for given_words in (apart, np.asfortranarray(words), np.hstack([words, words])):
        found = variational_e_step(given_words, None, 100, *model)
        np.testing.assert_array_equal(found.curvature, expected.curvature)


WORDS, WEIGHTS, OFFSETS = np.zeros((3, 1), np.uint64), np.ones((3, 2)), np.ones(3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": np.ones((2, 2))}, "Weights and offsets have the shapes"),
        ({"offsets": np.ones(4)}, "Weights and offsets have the shapes"),
        ({"weights": np.full((3, 2), np.nan)}, "Weights or offsets are NaN or infinite"),
        ({"offsets": np.full(3, np.inf)}, "Weights or offsets are NaN or infinite"),
        ({"weights": np.full((3, 2), 1e200)}, "bound of a row is not finite"),
        ({"observed_words": np.zeros((3, 2), np.uint64)}, "`observed_words` has the shape"),
        ({"n_samples": 65}, "`n_samples` is 65, but the words hold 64 samples"),
        ({"n_samples": -1}, "`n_samples` is -1, but the words hold 64 samples"),
        ({"tol": -1e-4}, r"`tol` is .* Choose `tol` at least 0"),
        ({"tol": np.nan}, r"`tol` is .* Choose `tol` at least 0"),
        ({"max_rounds": 0}, r"`max_rounds` is 0.* `max_rounds` at least 1"),
    ],
)
@pytest.mark.parametrize("function", [variational_e_step, variational_row_posterior])
def test_what_does_not_fit_is_refused(function, changed, message):
    arguments = {
        "words": WORDS,
        "observed_words": None,
        "n_samples": 10,
        "weights": WEIGHTS,
        "offsets": OFFSETS,
    }
    with pytest.raises(FitError, match=message):
        function(**arguments | changed)
