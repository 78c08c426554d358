import os
import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import log_ndtr
from scipy.stats import norm

from pipeline.errors import FitError
from pipeline.numerics.probit.expectation_propagation import probit_posterior

REFERENCE = Path(__file__).parents[3] / "reference" / "truncated_gaussian.npz"
seeds = st.integers(0, 2**32 - 1)


def low_rank_model(rng, n_features, n_components, communalities=(0.3, 0.9)):
    """Weights with orthogonal columns, rescaled to random communalities, and offsets."""
    directions, _ = np.linalg.qr(rng.normal(size=(n_features, n_components)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    communality = rng.uniform(*communalities, n_features)
    noise = np.sqrt(1 - communality)
    weights = directions * (np.sqrt(communality) / noise)[:, None]
    return weights, -rng.normal(0, 0.7, n_features) / noise


def rows_of(rng, weights, offsets, n_rows):
    """Rows drawn from the model with a standard prior."""
    y = rng.normal(size=(n_rows, weights.shape[1]))
    return (rng.normal(size=(n_rows, len(weights))) < y @ weights.T + offsets).astype(np.uint8)


def random_problem(seed, n_rows=6, n_features=12, n_components=3):
    """Arguments of `probit_posterior` up to `observed`."""
    rng = np.random.default_rng(seed)
    weights, offsets = low_rank_model(rng, n_features, n_components)
    X = rows_of(rng, weights, offsets, n_rows)
    offsets = offsets + weights @ rng.normal(size=n_components)
    weights = weights * np.sqrt(rng.uniform(0.2, 3, n_components))
    return X, weights, offsets, rng.random(X.shape) < 0.7


def integrate_on_grid(X, weights, offsets, half_width=6.0, n_points=241):
    """Moments and log evidence at two components by summation over a grid of the prior."""
    axis = np.linspace(-half_width, half_width, n_points)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    log_density = np.tile(norm.logpdf(grid).sum(axis=1), (len(X), 1))
    for i, offset in enumerate(offsets):
        z = grid @ weights[i] + offset
        log_density += np.where(X[:, i, None], log_ndtr(z), log_ndtr(-z))
    peak = log_density.max(axis=1, keepdims=True)
    density = np.exp(log_density - peak)
    total = density.sum(axis=1)
    mean = density @ grid / total[:, None]
    variance = density @ grid**2 / total[:, None] - mean**2
    return mean, variance, np.log(total) + peak[:, 0] + 2 * np.log(axis[1] - axis[0])


@pytest.mark.parametrize("z", [-1000, -40, -8, -4.7, -1e-3, 0, 0.5, 5, 8.3, 40, 300])
@pytest.mark.parametrize("weight", [0.1, 1, -30, 1000])
def test_one_site_is_exact(z, weight):
    offset = z * np.hypot(1, weight)
    posterior = probit_posterior([[1]], [[weight]], [offset])
    with mp.workdps(40):
        spread = mp.sqrt(1 + mpf(weight) ** 2)
        z = mpf(offset) / spread
        slope = mp.npdf(z) / mp.ncdf(z)
        mean = weight / spread * slope
        variance = 1 - (weight / spread) ** 2 * slope * (slope + z)
        log_evidence = mp.log(mp.ncdf(z))
    assert posterior.mean[0, 0] == pytest.approx(float(mean), rel=1e-11, abs=1e-11)
    assert posterior.variance[0, 0] == pytest.approx(float(variance), rel=1e-8, abs=1e-11)
    assert posterior.log_evidence[0] == pytest.approx(float(log_evidence), rel=1e-9, abs=1e-15)
    assert posterior.correction[0] < 1e-9


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("n_features", "communalities"),
    [(5, (0.1, 0.5)), (16, (0.1, 0.5)), (64, (0.3, 0.9)), (256, (0.3, 0.9)), (256, (0.9, 0.99))],
)
def test_two_components_against_numerical_integration(n_features, communalities):
    rng = np.random.default_rng(n_features)
    weights, offsets = low_rank_model(rng, n_features, 2, communalities)
    X = rows_of(rng, weights, offsets, 12)
    posterior = probit_posterior(X, weights, offsets)
    mean, variance, log_evidence = integrate_on_grid(X, weights, offsets)
    assert posterior.converged.all()
    np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=1e-3)
    np.testing.assert_allclose(posterior.variance, variance, rtol=0, atol=1e-3)
    errors = abs(posterior.log_evidence - log_evidence)
    np.testing.assert_array_less(errors, 1e-3)
    assert errors.mean() < posterior.evidence_error.mean() < 5e-3


@pytest.mark.parametrize("case", ["small", "large"])
def test_ten_components_against_long_gibbs_runs(case):
    with np.load(REFERENCE) as file:
        names = ("X", "weights", "offsets", "prior_mean", "prior_variance")
        X, weights, offsets, prior_mean, prior_variance = (file[f"{case}_{n}"] for n in names)
        mean, variance, mean_error, variance_error = (
            file[f"{case}_{name}"] for name in ("mean", "variance", "mean_error", "variance_error")
        )
    scale = np.sqrt(prior_variance)
    posterior = probit_posterior(X, weights * scale, offsets + weights @ prior_mean)
    # Five standard errors still resolve the tolerance, so that the comparison can fail.
    assert 5 * max((mean_error / scale).max(), (variance_error / prior_variance).max()) < 1e-3
    own_mean = (mean - prior_mean) / scale
    np.testing.assert_array_less(abs(posterior.mean - own_mean), 1e-3)
    np.testing.assert_array_less(abs(posterior.variance - variance / prior_variance), 1e-3)


def test_evidence_of_all_rows_sums_to_one():
    weights, offsets = low_rank_model(np.random.default_rng(3), 8, 3)
    X = np.array(list(product([0, 1], repeat=8)))
    posterior = probit_posterior(X, weights, offsets)
    assert np.exp(posterior.log_evidence).sum() == pytest.approx(1, abs=2e-4)


def test_correction_bounds_the_error_of_few_confident_features():
    rng = np.random.default_rng(8)
    weights, offsets = low_rank_model(rng, 10, 2, (0.9, 0.999))
    X = rows_of(rng, weights, offsets, 20)
    posterior = probit_posterior(X, weights, offsets)
    mean, variance, log_evidence = integrate_on_grid(X, weights, offsets, n_points=601)
    assert abs(posterior.log_evidence - log_evidence).mean() < posterior.evidence_error.mean()
    error = abs(posterior.variance / variance - 1).max(axis=1)
    np.testing.assert_array_less(error, 0.01 + posterior.correction)
    assert np.median(error / posterior.correction) < 0.4
    np.testing.assert_array_less(abs(posterior.mean - mean), 0.03)


@given(seeds)
def test_missing_features_are_as_if_dropped(seed):
    X, *parameters, _ = random_problem(seed)
    weights, offsets = parameters
    kept = np.random.default_rng(seed).random(len(offsets)) < 0.6
    masked = probit_posterior(X, *parameters, np.broadcast_to(kept, X.shape))
    dropped = probit_posterior(X[:, kept], weights[kept], offsets[kept])
    for a, b in zip(masked, dropped, strict=True):
        assert a.tobytes() == b.tobytes()


@given(seeds, st.lists(st.integers(0, 40), max_size=4))
def test_a_row_does_not_depend_on_its_batch(seed, cuts):
    X, *parameters, observed = random_problem(seed, n_rows=40)
    whole = probit_posterior(X, *parameters, observed)
    bounds = [0, *sorted(cuts), 40]
    parts = [
        probit_posterior(X[start:stop], *parameters, observed[start:stop])
        for start, stop in pairwise(bounds)
    ]
    for values, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert np.concatenate(pieces).tobytes() == values.tobytes()


POSTERIORS = """
import hashlib
from tests.pipeline.numerics.probit.test_expectation_propagation import (
    probit_posterior, random_problem
)
posterior = probit_posterior(*random_problem(1, 2000, 64, 7))
print(hashlib.sha256(b"".join(values.tobytes() for values in posterior)).hexdigest())
"""
NORMAL = """
import numpy as np
from pipeline.numerics.gaussian.bivariate_normal import bivariate_normal_cdf_array
h, k, rho = np.random.default_rng(1).uniform(-1, 1, (3, 20_000))
print(bivariate_normal_cdf_array(3 * h, 3 * k, rho).tobytes().hex())
"""


@pytest.mark.matrix
@pytest.mark.parametrize(
    "program",
    [NORMAL, pytest.param(POSTERIORS, marks=pytest.mark.slow)],
    ids=["normal", "posterior"],
)
def test_process_that_compiles_and_one_that_does_not_agree(program, tmp_path):
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[4],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for _ in range(2)
    }
    assert len(digests) == 1


def test_prior_where_nothing_is_observed():
    X, weights, offsets, observed = random_problem(1)
    observed[2] = False
    posterior = probit_posterior(X, weights, offsets, observed)
    np.testing.assert_array_equal(posterior.mean[2], 0)
    np.testing.assert_array_equal(posterior.variance[2], 1)
    assert posterior.log_evidence[2] == 0
    assert posterior.converged[2]


@given(seeds, st.sampled_from([1e-3, 1.0, 30.0, 1e3]), st.sampled_from([0.0, 1.0, 40.0]))
def test_extreme_sites_stay_finite(seed, size, distance):
    rng = np.random.default_rng(seed)
    n_features, n_components = rng.integers(1, 60), rng.integers(1, 8)
    weights = size * rng.normal(size=(n_features, n_components))
    if rng.random() < 0.3:
        weights[:] = weights[0]  # copies of one site are where parallel rounds oscillate
    offsets = distance * np.linalg.norm(weights, axis=1) * rng.normal(size=n_features)
    X = rng.random((3, n_features)) < 0.5
    posterior = probit_posterior(X, weights, offsets)
    assert all(np.isfinite(values).all() for values in posterior)
    assert (posterior.variance > 0).all()
    assert posterior.converged.all()


def test_oscillating_rows_start_again_one_site_at_a_time():
    weights, offsets = np.full((300, 1), 5.0), np.full(300, -2.0)
    X = np.zeros((1, 300), np.uint8)
    X[0, :130] = 1
    posterior = probit_posterior(X, weights, offsets)
    y = np.linspace(0, 1, 20_001)
    density = norm.pdf(y) * np.exp(130 * log_ndtr(5 * y - 2) + 170 * log_ndtr(2 - 5 * y))
    mean = density @ y / density.sum()
    assert posterior.converged[0]
    assert posterior.mean[0, 0] == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "weight"),
    [
        (-0.4, 0.7, 0.3),
        (-0.4, 0.7, 30.0),
        (0.3, 0.3 + 1e-6, 2.0),
        (5.0, 5.5, 30.0),
        (40.0, 60.0, 0.3),
        (-60.0, -40.0, 30.0),
        (-20.0, 25.0, 2.0),
    ],
)
def test_one_level_is_exact_in_the_middle_and_in_the_tails(
    low: float, high: float, weight: float
) -> None:
    """x = w u + noise is a truncated normal, and E(u | x) = w x / (1 + w²)."""
    scale = np.hypot(1.0, weight)
    offsets = -np.array([low, high]) * scale
    posterior = probit_posterior(
        np.array([[0], [1], [2]], np.uint8), np.array([[weight]]), offsets, n_levels=np.array([3])
    )
    bounds = [-np.inf, low, high, np.inf]
    for level in range(3):
        a, b = bounds[level : level + 2]
        peak = np.clip(0.0, a, b)
        t = np.linspace(max(a, peak - 10), min(b, peak + 10), 2_000_001)
        p = np.exp(-0.5 * (t - peak) * (t + peak))
        p[[0, -1]] *= 0.5
        mean = float((p * t).sum() / p.sum())
        variance = float((p * (t - mean) ** 2).sum() / p.sum())
        share = weight / scale
        np.testing.assert_allclose(posterior.mean[level, 0], share * mean, rtol=1e-6, atol=1e-8)
        expected = 1 - share**2 + share**2 * variance
        np.testing.assert_allclose(posterior.variance[level, 0], expected, rtol=1e-5)
    assert posterior.converged.all()


def test_rows_out_of_rounds_are_told():
    X, *parameters, _ = random_problem(7)
    posterior = probit_posterior(X, *parameters, max_rounds=2)
    assert not posterior.converged.any()
    assert (posterior.rounds == 2).all()
    np.testing.assert_array_equal(posterior.evidence_error, -posterior.log_evidence)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": np.full((6, 12), 2)}, r"have the value 2 in row 0, column 0, which is not"),
        ({"levels": np.zeros(12)}, r"bits have shape \(12,\) .* both must be \(n_samples, n_f"),
        ({"observed": np.ones((6, 11), bool)}, r"`observed` \(6, 11\), but both must be"),
        ({"weights": np.zeros((11, 3))}, r"shapes \(11, 3\) and .*12 features need \(12, n_comp"),
        ({"offsets": np.full(12, np.nan)}, r"`offsets` contains NaN"),
        ({"tol": 0.0}, r"`tol` is 0\.0 .*tol must be above 0"),
        ({"max_rounds": 0}, r"`max_rounds` is 0, .*max_rounds at least 1"),
    ],
)
def test_what_is_refused(change, message):
    names = ("levels", "weights", "offsets", "observed")
    arguments = dict(zip(names, random_problem(0), strict=True)) | change
    with pytest.raises(FitError, match=message):
        probit_posterior(**arguments)
