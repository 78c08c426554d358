"""Smoothing of random walks, against the joint Gaussian of all positions of a member."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from pipeline.numerics.gaussian.random_walk import (
    ItemPenalty,
    RowGaussian,
    Scales,
    Sites,
    WalkTimes,
    compute_change_variance,
    estimate_units,
    find_cavities,
    smooth_walk,
)

MEMBER = np.repeat([0, 1, 2, 3], [4, 1, 6, 2])
TIME = np.array([0, 1, 2.5, 7, 3, 0, 1, 2, 3, 4, 9, 4, 5.0])
INNOVATION = 0.2


def draw_sites(seed: int) -> Sites:
    rng = np.random.default_rng(seed)
    precision = rng.gamma(1.0, 2.0, len(MEMBER))
    precision[2] = 0.0  # a row without values
    return Sites(precision, precision * rng.normal(0, 1, len(MEMBER)))


def list_joint_gaussians(innovation: float = INNOVATION) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the indices of each member's states, and the covariance of their positions."""
    found = []
    for member in np.unique(MEMBER):
        own = np.flatnonzero(member == MEMBER)
        since = TIME[own] - TIME[own[0]]
        found.append((own, 1.0 + innovation * np.minimum.outer(since, since)))
    return found


def test_smoothing_equals_the_joint_gaussian() -> None:
    sites, nats, step_square = draw_sites(0), 0.0, 0.0
    mean, variance, cavity_mean, cavity_variance = np.empty((4, len(MEMBER)))
    for own, prior in list_joint_gaussians():
        tau, h = sites.precision[own], sites.linear[own]
        inverse = np.linalg.inv(prior)
        covariance = np.linalg.inv(inverse + np.diag(tau))
        mean[own], variance[own] = covariance @ h, np.diag(covariance)
        nats += 0.5 * h @ covariance @ h
        nats += 0.5 * (np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(prior)[1])
        for k in range(len(own)):
            without = np.linalg.inv(inverse + np.diag(tau * (np.arange(len(own)) != k)))
            cavity_mean[own[k]] = (without @ (h * (np.arange(len(own)) != k)))[k]
            cavity_variance[own[k]] = without[k, k]
            if k:
                c = covariance
                square = c[k, k] + c[k - 1, k - 1] - 2 * c[k, k - 1]
                square += (mean[own[k]] - mean[own[k - 1]]) ** 2
                step_square += square / (TIME[own[k]] - TIME[own[k - 1]])
    found = smooth_walk(WalkTimes.from_states(MEMBER, TIME), INNOVATION, sites)
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
    sites = draw_sites(1)
    for own, covariance in list_joint_gaussians():
        joint = np.linalg.inv(np.linalg.inv(covariance) + np.diag(sites.precision[own]))
        expected = joint[0, 0] + joint[-1, -1] - 2 * joint[0, -1]
        found = compute_change_variance(TIME[own], sites.precision[own], INNOVATION)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("innovation", [None, 0.5, 0.0])
@pytest.mark.parametrize("n_scales", [1, 2])
def test_the_units_maximize_the_integral(innovation: float | None, n_scales: int) -> None:
    """Against the joint Gaussian of x = μ + φ z at the sites' centres, where sites are normal."""
    rng = np.random.default_rng(3)
    member, time = np.repeat(np.arange(40), 5), np.tile(np.arange(5.0), 40)
    steps = np.where(time == 0, rng.normal(0.5, 1.3, 200), rng.normal(0, 0.6, 200))
    x = np.array([steps[5 * (n // 5) : n + 1].sum() for n in range(200)])
    centre = x + rng.normal(0, 0.5, 200)
    sites, times = Sites(np.full(200, 4.0), 4.0 * centre), WalkTimes.from_states(member, time)
    w, b = rng.normal(0, 1, (2, 30))
    state = np.minimum(time.astype(int) // 2, n_scales - 1)
    scales = Scales(state, np.arange(30) % n_scales)

    def read(free: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        means, deviations = free[:n_scales], np.exp(free[n_scales : 2 * n_scales])
        return means, deviations, np.exp(free[-1]) if innovation is None else innovation

    def integrate(free: np.ndarray) -> float:
        means, deviations, ratio = read(free)
        own = (w * deviations[scales.item]) ** 2 * (1 + 2 * ratio)  # 2 is the mean age
        own += (b + w * means[scales.item]) ** 2
        phi, mu = deviations[state[:5]], means[state[:5]]
        covariance = np.outer(phi, phi) * (1 + ratio * np.minimum.outer(range(5), range(5)))
        joint = scipy.stats.multivariate_normal(mu, covariance + np.eye(5) / 4)
        return float(0.5 * 0.7 * own.sum() - joint.logpdf(centre.reshape(40, 5)).sum())

    start = np.full(2 * n_scales + (innovation is None), -0.5)
    best = scipy.optimize.minimize(integrate, start, method="BFGS", tol=1e-6)
    expected = read(best.x)
    found = estimate_units(times, sites, scales, 0.1, innovation, ItemPenalty(0.7, w, b))
    np.testing.assert_allclose(found.mean, expected[0], atol=1e-3)
    np.testing.assert_allclose(found.deviation, expected[1], rtol=1e-3)
    assert found.innovation == pytest.approx(expected[2], rel=2e-3)


def test_members_may_have_any_number_of_states() -> None:
    times = WalkTimes.from_states(np.array([0, 1, 1, 2]), np.array([5.0, 1.0, 4.0, 0.0]))
    assert times.gap.tolist() == [0.0, 0.0, 3.0, 0.0]
    assert (times.n_members, times.n_steps) == (3, 1)
    none = Sites(np.zeros(4), np.zeros(4))
    found = smooth_walk(times, 0.5, none)
    assert found.posterior.variance.tolist() == [1.0, 1.0, 2.5, 1.0]
    assert isinstance(find_cavities(found.posterior, none), RowGaussian)
