"""Probit ICA against brute-force integrals, simulation and SciPy's normal distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from itertools import product

import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp
from scipy.stats import multivariate_normal, norm

from pipeline.data.blocks import pack_block
from pipeline.models.binary_ica.blica import BLICA, BLICAParams
from pipeline.models.binary_ica.segment_correlations import SegmentStatus
from pipeline.random import RowRandom
from tests.pipeline.models.binary_ica import Floats
from tests.support.strategies import Bits

RNG = RowRandom(0)
SCALE = np.sqrt(np.pi / 8)
MIXING = np.array([[0.8, 0.1], [-0.6, 0.5], [0.2, 0.9], [0.0, 0.3], [0.5, -0.7]])
VARIANCES = np.array([[4.0, 0.5], [0.3, 6.0], [1.0, 1.0]])
MEANS = np.array([[0.5, -0.3], [0.0, 1.0], [-2.0, 0.4]])
THRESHOLDS = np.array(
    [[0.3, -0.5, 0.0, 1.2, -0.1], [0.0, 0.4, -1.0, 0.2, 0.7], [-0.8, 0.1, 0.6, 0.0, -0.3]]
)
ROWS = np.array([100, 300, 600])
MODEL = BLICA(n_components=2)


def make_params(
    mixing: Floats = MIXING, thresholds: Floats = THRESHOLDS, status: Sequence[int] = (0, 0, 0)
) -> BLICAParams:
    """Make parameters of segments 0, 2 and 5; arrays that the model does not use are empty."""
    values = {
        "mixing": mixing,
        "source_variances": VARIANCES,
        "source_means": MEANS,
        "thresholds": thresholds,
        "segments": np.array([0, 2, 5]),
        "segment_rows": ROWS,
        "segment_status": np.array(status, np.uint8),
    }
    rest = (f for f in fields(BLICAParams) if f.name not in values and f.default is MISSING)
    return BLICAParams(
        **values,
        **{f.name: np.zeros((0,) * len(f.metadata["dims"])) for f in rest},  # type: ignore[arg-type]
    )


PARAMS = make_params()
PATTERNS = np.array([*product((0, 1), repeat=5)], np.uint8)
all_segments = pytest.mark.parametrize(("place", "segment"), [(0, 0), (1, 2), (2, 5)])


def compute_outputs(place: int, codes: Floats) -> Floats:
    """Return Φ⁻¹(P(x = 1 | z)): √(π/8) A z, shifted so that the thresholds give the margins."""
    power = np.pi / 8 * MIXING**2 @ VARIANCES[place]
    shift = -THRESHOLDS[place] * np.sqrt(1 + power) - SCALE * MIXING @ MEANS[place]
    return SCALE * codes @ MIXING.T + shift


def make_code_grid(place: int) -> tuple[Floats, Floats]:
    """Return Gauss–Hermite nodes for the sources of a segment, and their log weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel()
    return MEANS[place] + np.sqrt(VARIANCES[place]) * grid, np.log(mass / mass.sum())


def compute_joint(place: int, X: Bits, mask: Bits) -> tuple[Floats, Floats]:
    """Return log P(x, z) at the codes of a grid, (n_samples, n_codes), and the codes."""
    codes, log_mass = make_code_grid(place)
    outputs = compute_outputs(place, codes).T
    ones, zeros = X * mask, (1 - X) * mask
    return ones @ log_ndtr(outputs) + zeros @ log_ndtr(-outputs) + log_mass, codes


def compute_correlation(place: int) -> Floats:
    covariance = np.pi / 8 * (MIXING * VARIANCES[place]) @ MIXING.T + np.eye(5)
    deviations = np.sqrt(np.diag(covariance))
    return covariance / deviations / deviations[:, None]


def compute_pair_table(place: int, i: int, j: int) -> Floats:
    """Return P(x_i, x_j), (2, 2), by SciPy's bivariate normal."""
    rho, t = compute_correlation(place)[i, j], THRESHOLDS[place]
    both = multivariate_normal(cov=[[1, rho], [rho, 1]]).cdf([-t[i], -t[j]])
    p_i, p_j = norm.sf(t[[i, j]])
    return np.array([[1 - p_i - p_j + both, p_j - both], [p_i - both, both]])


@all_segments
@pytest.mark.parametrize("masked", [False, True])
def test_codes_are_posterior_moments(place: int, segment: int, masked: bool) -> None:
    """Compare with the posterior summed over a grid of codes."""
    rng = np.random.default_rng(3)
    mask = rng.integers(0, 2, PATTERNS.shape, dtype=np.uint8) if masked else np.ones_like(PATTERNS)
    log_joint, grid = compute_joint(place, PATTERNS, mask)
    posterior = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True))
    mean, second = posterior @ grid, posterior @ grid**2
    block = pack_block(PATTERNS, mask if masked else None, segment)
    codes = MODEL.transform(PARAMS, block, RNG)
    prior = VARIANCES[place]
    np.testing.assert_allclose(codes["mean"] / np.sqrt(prior), mean / np.sqrt(prior), atol=0.02)
    np.testing.assert_allclose(codes["variance"] / prior, (second - mean**2) / prior, atol=0.03)
    assert codes["converged"].all()


@all_segments
@pytest.mark.parametrize("masked", [False, True])
def test_likelihoods_match_integrals_over_sources(place: int, segment: int, masked: bool) -> None:
    mask = np.ones_like(PATTERNS)
    if masked:
        mask = np.random.default_rng(1).integers(0, 2, PATTERNS.shape, dtype=np.uint8)
        mask[0] = 0
    log_joint, _ = compute_joint(place, PATTERNS, mask)
    block = pack_block(PATTERNS, mask if masked else None, segment)
    result = MODEL.log_likelihood(PARAMS, block, RNG).nats
    np.testing.assert_allclose(result, logsumexp(log_joint, axis=1), atol=1e-3)


@all_segments
@pytest.mark.parametrize("masked", [False, True])
def test_composite_likelihoods_are_sums_over_pairs(place: int, segment: int, masked: bool) -> None:
    mask = np.ones_like(PATTERNS)
    if masked:
        mask = np.random.default_rng(1).integers(0, 2, PATTERNS.shape, dtype=np.uint8)
        mask[0] = 0
    expected = np.zeros(32)
    for i, j in zip(*np.triu_indices(5, 1), strict=True):
        log_cells = np.log(compute_pair_table(place, i, j))[PATTERNS[:, i], PATTERNS[:, j]]
        expected += log_cells * mask[:, i] * mask[:, j]
    block = pack_block(PATTERNS, mask if masked else None, segment)
    result = MODEL.composite_log_likelihood(PARAMS, block, RNG)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_reconstruction_matches_probit_of_segment() -> None:
    rng = np.random.default_rng(0)
    codes, segments = rng.standard_normal((30, 2)), rng.choice([0, 2, 5], 30)
    expected = [
        norm.cdf(compute_outputs([0, 2, 5].index(segment), code[None])[0])
        for code, segment in zip(codes, segments, strict=True)
    ]
    np.testing.assert_allclose(MODEL.reconstruct(PARAMS, codes, segments), expected, rtol=1e-9)


def make_mean_params() -> BLICAParams:
    """Make parameters of one segment that has the mean of the three, weighted by rows."""
    shares = ROWS / ROWS.sum()
    rest = {f.name: getattr(PARAMS, f.name) for f in fields(BLICAParams)}
    rest |= {
        "source_variances": (shares @ VARIANCES)[None],
        "source_means": (shares @ MEANS)[None],
        "thresholds": (shares @ THRESHOLDS)[None],
        "segments": np.array([7]),
        "segment_rows": np.array([1]),
        "segment_status": np.zeros(1, np.uint8),
    }
    return BLICAParams(**rest)


def compute_outcomes(params: BLICAParams, segment: int) -> list[Floats]:
    """Return all results of a fitted model for rows of a segment."""
    block, codes = pack_block(PATTERNS, None, segment), np.array([[0.3, -1.0], [2.0, 0.5]])
    return [
        *MODEL.transform(params, block, RNG).values(),
        MODEL.log_likelihood(params, block, RNG).nats,
        MODEL.composite_log_likelihood(params, block, RNG),
        MODEL.reconstruct(params, codes, np.full(2, segment)),
        MODEL.sample(params, 50, np.random.default_rng(0), np.full(50, segment)),
    ]


@pytest.mark.parametrize("unseen", [-1, 1, 99])
def test_unseen_segment_uses_mean_of_others(unseen: int) -> None:
    for result, expected in zip(
        compute_outcomes(PARAMS, unseen), compute_outcomes(make_mean_params(), 7), strict=True
    ):
        np.testing.assert_allclose(result, expected, atol=1e-9)
    codes = np.array([[0.3, -1.0]])
    np.testing.assert_allclose(
        MODEL.reconstruct(PARAMS, codes), MODEL.reconstruct(make_mean_params(), codes), atol=1e-12
    )


def test_excluded_segments_do_not_enter_the_mean() -> None:
    params = make_params(status=(0, SegmentStatus.TOO_SMALL, 0))
    shares = np.array([100, 0, 600]) / 700
    thresholds = shares @ THRESHOLDS
    X = MODEL.sample(params, 100_000, np.random.default_rng(0), np.full(100_000, 1))
    np.testing.assert_allclose(X.mean(axis=0), norm.sf(thresholds), atol=0.008)
