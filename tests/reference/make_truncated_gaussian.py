"""Writes truncated_gaussian.npz: posterior moments at 10 components by long runs of Gibbs sampling.

    python tests/reference/make_truncated_gaussian.py

Model: y ~ N(m, diag(v)), z = W y + b + ε, ε ~ N(0, I), x_i = 1 iff z_i > 0. Given x, z is a
truncated Gaussian. The sampler alternates z | y, x and y | z (Albert & Chib 1993) in many chains
side by side and shares nothing with the package. It averages the first two moments of E(y | z)
conditional on the y of the step before (Rao–Blackwell), which are known in closed form; the
variance of y is that of E(y | z) plus the constant Var(y | z). Standard errors come from the
spread of the means of independent chains.

Two cases, each of two rows drawn from its model; loadings have orthonormal columns rescaled to
communalities uniform on (0.3, 0.9), thresholds are N(0, 0.7²). Case `small` has 64 features and a
standard prior, case `large` 256 features and another prior.

Arrays, for either case: weights, offsets, prior_mean, prior_variance, X, mean, variance, and the
standard errors mean_error and variance_error.
"""

from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri

FILE = Path(__file__).with_name("truncated_gaussian.npz")
N_COMPONENTS = 10
N_CHAINS = 256
N_WARMUP = 1000


def case(rng, n_features, prior_mean, prior_variance, n_rows=2):
    """Parameters and rows of one case."""
    directions, _ = np.linalg.qr(rng.normal(size=(n_features, N_COMPONENTS)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    communality = rng.uniform(0.3, 0.9, n_features)
    noise = np.sqrt(1 - communality)
    weights = directions * (np.sqrt(communality) / noise)[:, None]
    offsets = -rng.normal(0, 0.7, n_features) / noise
    y = prior_mean + np.sqrt(prior_variance) * rng.normal(size=(n_rows, N_COMPONENTS))
    z = y @ weights.T + offsets + rng.normal(size=(n_rows, n_features))
    return {
        "weights": weights,
        "offsets": offsets,
        "prior_mean": prior_mean,
        "prior_variance": prior_variance,
        "X": (z > 0).astype(np.uint8),
    }


def gibbs(rng, parameters, x, n_steps):
    """Mean and variance of y given x, and their standard errors."""
    sign = 2.0 * x - 1
    weights = parameters["weights"] * sign[:, None]  # mirrored: every z is positive
    offsets = parameters["offsets"] * sign
    precision = 1 / parameters["prior_variance"]
    covariance = np.linalg.inv(np.diag(precision) + weights.T @ weights)
    gain = covariance @ weights.T
    constant = covariance @ (precision * parameters["prior_mean"]) - gain @ offsets
    root = np.linalg.cholesky(covariance)
    y = np.tile(parameters["prior_mean"], (N_CHAINS, 1))
    sums = np.zeros((2, N_CHAINS, N_COMPONENTS))
    for step in range(-N_WARMUP, n_steps):
        location = y @ weights.T + offsets
        p = ndtr(location)
        if step >= 0:
            hazard = np.exp(-0.5 * location**2) / (np.sqrt(2 * np.pi) * p)
            centre = (location + hazard) @ gain.T + constant
            spread = (1 - hazard * (location + hazard)) @ (gain.T**2)
            sums += centre, centre**2 + spread
        z = location - ndtri(rng.random(p.shape) * p)
        y = z @ gain.T + constant + rng.normal(size=y.shape) @ root.T
    first, second = sums / n_steps
    mean = first.mean(axis=0)
    # by the delta method: the variance is second − first², linear in small errors of both
    each = second - 2 * mean * first
    variance = each.mean(axis=0) + mean**2 + np.diag(covariance)
    error = [chains.std(axis=0, ddof=1) / np.sqrt(N_CHAINS) for chains in (first, each)]
    return mean, variance, *error


def main():
    rng = np.random.default_rng(20250611)
    n = N_COMPONENTS
    other_prior = rng.normal(0, 0.3, n), rng.uniform(0.5, 1.5, n)
    cases = {
        "small": (case(rng, 64, np.zeros(n), np.ones(n)), 400_000),
        "large": (case(rng, 256, *other_prior), 100_000),
    }
    arrays = {}
    for name, (parameters, n_steps) in cases.items():
        results = [gibbs(rng, parameters, x, n_steps) for x in parameters["X"]]
        for position, field in enumerate(("mean", "variance", "mean_error", "variance_error")):
            parameters[field] = np.array([result[position] for result in results])
        print(name, parameters["mean_error"].max(), parameters["variance_error"].max(), flush=True)
        arrays |= {f"{name}_{field}": values for field, values in parameters.items()}
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
