"""Smoothing of random walks, against the joint Gaussian of all positions of a member."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from pipeline.numerics.gaussian.random_walk import (
    ItemPenalty,
    RowGaussian,
    Sites,
    WalkPrior,
    WalkTimes,
    compute_change_variance,
    estimate_walk_prior,
    find_cavities,
    smooth_walk,
)

MEMBER = np.repeat([0, 1, 2, 3], [4, 1, 6, 2])
TIME = np.array([0, 1, 2.5, 7, 3, 0, 1, 2, 3, 4, 9, 4, 5.0])
PRIOR = WalkPrior(0.3, 0.8, 0.2)


def draw_sites(seed: int) -> Sites:
    rng = np.random.default_rng(seed)
    precision = rng.gamma(1.0, 2.0, len(MEMBER))
    precision[2] = 0.0  # a row without values
    return Sites(precision, precision * rng.normal(0, 1, len(MEMBER)))


def list_joint_gaussians() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the indices of each member's states, and the covariance of their positions."""
    found = []
    for member in np.unique(MEMBER):
        own = np.flatnonzero(member == MEMBER)
        since = TIME[own] - TIME[own[0]]
        found.append((own, PRIOR.variance + PRIOR.innovation * np.minimum.outer(since, since)))
    return found


def test_smoothing_equals_the_joint_gaussian() -> None:
    sites, nats, step_square = draw_sites(0), 0.0, 0.0
    mean, variance, cavity_mean, cavity_variance = np.empty((4, len(MEMBER)))
    for own, prior in list_joint_gaussians():
        tau, h = sites.precision[own], sites.linear[own]
        inverse = np.linalg.inv(prior)
        covariance = np.linalg.inv(inverse + np.diag(tau))
        first = inverse @ np.full(len(own), PRIOR.mean)
        mean[own], variance[own] = covariance @ (first + h), np.diag(covariance)
        nats += 0.5 * (first + h) @ covariance @ (first + h) - 0.5 * PRIOR.mean * first.sum()
        nats += 0.5 * (np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(prior)[1])
        for k in range(len(own)):
            without = np.linalg.inv(inverse + np.diag(tau * (np.arange(len(own)) != k)))
            cavity_mean[own[k]] = (without @ (first + h * (np.arange(len(own)) != k)))[k]
            cavity_variance[own[k]] = without[k, k]
            if k:
                c = covariance
                square = c[k, k] + c[k - 1, k - 1] - 2 * c[k, k - 1]
                square += (mean[own[k]] - mean[own[k - 1]]) ** 2
                step_square += square / (TIME[own[k]] - TIME[own[k - 1]])
    found = smooth_walk(WalkTimes.from_states(MEMBER, TIME), PRIOR, sites)
    np.testing.assert_allclose(found.posterior.mean, mean, atol=1e-12)
    np.testing.assert_allclose(found.posterior.variance, variance, rtol=1e-12)
    assert found.log_integral == pytest.approx(nats, abs=1e-11)
    assert found.step_square == pytest.approx(step_square, rel=1e-12)
    cavity = find_cavities(found.posterior, sites)
    np.testing.assert_allclose(cavity.mean, cavity_mean, atol=1e-11)
    np.testing.assert_allclose(cavity.variance, cavity_variance, rtol=1e-11)
    divided = Sites.divide(found.posterior.mean, found.posterior.variance, cavity)
    np.testing.assert_allclose(divided.precision, sites.precision, atol=1e-11)


def test_the_variance_of_a_change_is_that_of_the_joint_gaussian() -> None:
    """With standard first positions."""
    sites = draw_sites(1)
    for own, covariance in list_joint_gaussians():
        prior = covariance + 1 - PRIOR.variance
        joint = np.linalg.inv(np.linalg.inv(prior) + np.diag(sites.precision[own]))
        expected = joint[0, 0] + joint[-1, -1] - 2 * joint[0, -1]
        found = compute_change_variance(TIME[own], sites.precision[own], PRIOR.innovation)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_moved_sites_have_the_same_integral() -> None:
    sites, times = draw_sites(1), WalkTimes.from_states(MEMBER, TIME)
    found = smooth_walk(times, PRIOR, sites)
    deviation = float(np.sqrt(PRIOR.variance))
    prior = WalkPrior(innovation=PRIOR.innovation / PRIOR.variance)
    moved = smooth_walk(times, prior, sites.standardize(PRIOR.mean, deviation))
    # h x − ½ τ x² at x = μ + φ z also has the constant h μ − ½ τ μ².
    constant = float((sites.linear * PRIOR.mean - 0.5 * sites.precision * PRIOR.mean**2).sum())
    assert moved.log_integral + constant == pytest.approx(found.log_integral, abs=1e-11)
    position = PRIOR.mean + deviation * moved.posterior.mean
    np.testing.assert_allclose(position, found.posterior.mean, atol=1e-12)


@pytest.mark.parametrize("innovation", [None, 0.5, 0.0])
def test_the_prior_maximizes_the_integral(innovation: float | None) -> None:
    rng = np.random.default_rng(3)
    member, time = np.repeat(np.arange(40), 5), np.tile(np.arange(5.0), 40)
    steps = np.where(time == 0, rng.normal(0.5, 1.3, 200), rng.normal(0, 0.6, 200))
    x = np.array([steps[5 * (n // 5) : n + 1].sum() for n in range(200)])
    sites = Sites(np.full(200, 4.0), 4.0 * (x + rng.normal(0, 0.5, 200)))
    times = WalkTimes.from_states(member, time)

    def integrate(free: np.ndarray) -> float:
        variance = np.exp(free[1])
        ratio = np.exp(free[2]) if innovation is None else innovation * variance
        prior = WalkPrior(free[0], variance, ratio)
        own = w**2 * (variance + 2 * ratio) + (b + w * free[0]) ** 2  # 2 is the mean age
        return 0.5 * 0.7 * own.sum() - smooth_walk(times, prior, sites).log_integral

    w, b = rng.normal(0, 1, (2, 30))

    n_free = 3 if innovation is None else 2
    best = scipy.optimize.minimize(integrate, np.full(n_free, -0.5), method="Nelder-Mead", tol=1e-9)
    found = estimate_walk_prior(times, sites, WalkPrior(), innovation, ItemPenalty(0.7, w, b))
    assert found.mean == pytest.approx(best.x[0], abs=1e-3)
    assert found.variance == pytest.approx(np.exp(best.x[1]), rel=1e-3)
    if innovation is None:
        assert found.innovation == pytest.approx(np.exp(best.x[2]), rel=2e-3)


def test_members_may_have_any_number_of_states() -> None:
    times = WalkTimes.from_states(np.array([0, 1, 1, 2]), np.array([5.0, 1.0, 4.0, 0.0]))
    assert [own.tolist() for own in times.steps] == [[1, 0, 3], [2]]
    assert times.gaps[1].tolist() == [3.0]
    assert (times.n_members, times.n_steps) == (3, 1)
    none = Sites(np.zeros(4), np.zeros(4))
    found = smooth_walk(times, WalkPrior(innovation=0.5), none)
    assert found.posterior.variance.tolist() == [1.0, 1.0, 2.5, 1.0]
    assert isinstance(find_cavities(found.posterior, none), RowGaussian)
