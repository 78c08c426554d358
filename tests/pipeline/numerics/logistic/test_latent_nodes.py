"""Nodes, responsibilities and posteriors against sums over rows and integrals over x."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import dblquad, quad
from scipy.special import expit, logsumexp
from scipy.stats import norm

from pipeline.errors import FitError
from pipeline.executors.base import limit_blas_threads
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    RowPosterior,
    draw_nodes,
    gauss_hermite,
    node_posterior,
    node_statistics,
)

Floats = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)


class Problem(NamedTuple):
    """Arguments of the functions under test, in their order but for the nodes."""

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    items: LevelItems

    @property
    def weights(self) -> Floats:
        return self.items.weights

    @property
    def offsets(self) -> Floats:
        return self.items.offsets

    def rows(self, at) -> Problem:
        observed = None if self.observed is None else self.observed[at]
        return self._replace(X=self.X[at], observed=observed)


def random_problem(seed, n_samples, n_features, n_components, masked, scale=1.0) -> Problem:
    rng = np.random.default_rng(seed)
    weights = scale * rng.standard_normal((n_features, n_components))
    offsets = rng.standard_normal(n_features)
    p = expit(rng.standard_normal((n_samples, n_components)) @ weights.T + offsets)
    observed = (rng.random(p.shape) < 0.8).astype(np.uint8) if masked else None
    items = LevelItems.from_binary(weights, offsets)
    return Problem((rng.random(p.shape) < p).astype(np.uint8), observed, items)


def likelihood(problem: Problem, n: int, x) -> float:
    """P(t_n | x), factor by factor."""
    p = expit(problem.weights @ np.atleast_1d(x) + problem.offsets)
    seen = np.ones(len(p)) if problem.observed is None else problem.observed[n]
    return prod(
        (p_i if t else 1 - p_i) for p_i, t, m in zip(p, problem.X[n], seen, strict=True) if m
    )


def brute_responsibilities(problem: Problem, nodes: Nodes) -> tuple[Floats, Floats]:
    """R_nl and P(t_n) in loops over rows, nodes and features."""
    joint = np.array(
        [
            [np.exp(log_pi) * likelihood(problem, n, x) for x, log_pi in zip(*nodes, strict=True)]
            for n in range(len(problem.X))
        ]
    )
    return joint / joint.sum(axis=1, keepdims=True), joint.sum(axis=1)


@pytest.mark.parametrize(("n_per_axis", "n_components"), [(2, 1), (9, 1), (4, 2), (3, 3)])
def test_nodes_integrate_polynomials_exactly(n_per_axis: int, n_components: int) -> None:
    nodes = gauss_hermite(n_per_axis, n_components)
    assert nodes.points.shape == (n_per_axis**n_components, n_components)
    for powers in product(range(2 * n_per_axis), repeat=n_components):
        moment = prod(0 if power % 2 else prod(range(power - 1, 0, -2)) for power in powers)
        terms = np.exp(nodes.log_weights) * (nodes.points**powers).prod(axis=1)
        assert terms.sum() == pytest.approx(moment, abs=1e-12 * abs(terms).sum())


def test_one_degree_more_is_not_integrated() -> None:
    nodes = gauss_hermite(3, 1)
    assert np.exp(nodes.log_weights) @ nodes.points[:, 0] ** 6 == pytest.approx(9)  # not 15


def test_nodes_ascend_with_the_first_axis_slowest() -> None:
    points = gauss_hermite(4, 3).points
    assert [tuple(point) for point in points] == sorted(tuple(point) for point in points)


def test_the_most_nodes_an_axis_still_make_a_rule() -> None:
    nodes = gauss_hermite(300, 1)
    assert np.isfinite(nodes.log_weights).all()
    moments = np.exp(nodes.log_weights) @ nodes.points ** [0, 2, 4, 10]
    np.testing.assert_allclose(moments, [1, 1, 3, 945], rtol=1e-11)


@pytest.mark.parametrize(
    ("n_per_axis", "n_components", "message"),
    [
        (
            21,
            5,
            r"components is 5, but quadrature takes at most 3\. "
            r'Use estimator="auto"\.',
        ),
        (1, 1, r"nodes is 1 per axis\. Choose from 2 to 300"),
        (301, 1, r"nodes is 301 per axis\. Choose from 2 to 300"),
    ],
)
def test_a_rule_out_of_range_is_refused(n_per_axis, n_components, message) -> None:
    with pytest.raises(FitError, match=message):
        gauss_hermite(n_per_axis, n_components)


def test_random_nodes_are_standard_normal_and_of_equal_weight() -> None:
    nodes = draw_nodes(20_000, 2, np.random.default_rng(0))
    assert logsumexp(nodes.log_weights) == pytest.approx(0, abs=1e-12)
    assert np.ptp(nodes.log_weights) == 0
    np.testing.assert_allclose(nodes.points.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(np.cov(nodes.points.T), np.eye(2), atol=0.05)
    again = draw_nodes(20_000, 2, np.random.default_rng(0))
    assert again.points.tobytes() == nodes.points.tobytes()
    with pytest.raises(FitError, match="nodes is 1"):
        draw_nodes(1, 2, np.random.default_rng(0))


@given(seeds, st.integers(0, 9), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans())
def test_statistics_and_posteriors_are_those_of_loops(
    seed, n_samples, n_features, n_components, masked, drawn
) -> None:
    problem = random_problem(seed, n_samples, n_features, n_components, masked)
    rng = np.random.default_rng(seed)
    nodes = draw_nodes(9, n_components, rng) if drawn else gauss_hermite(3, n_components)
    statistics = node_statistics(*problem, nodes)
    posterior = node_posterior(*problem, nodes)
    R, evidence = (
        brute_responsibilities(problem, nodes)
        if n_samples
        else (np.zeros((0, len(nodes.points))), np.zeros(0))
    )
    seen = np.ones_like(problem.X) if problem.observed is None else problem.observed
    np.testing.assert_allclose(statistics.ones, (problem.X * seen).T @ R, atol=1e-12)
    np.testing.assert_allclose(statistics.mass, seen.T @ R, atol=1e-12)
    np.testing.assert_allclose(posterior.log_likelihood, np.log(evidence), atol=1e-12)
    assert statistics.log_likelihood == pytest.approx(np.log(evidence).sum(), abs=1e-10)
    assert statistics.peak == pytest.approx(R.max(axis=1, initial=0).sum(), abs=1e-10)
    mean = R @ nodes.points
    second = np.einsum("nl,lj,lk->njk", R, nodes.points, nodes.points)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-12)
    np.testing.assert_allclose(
        posterior.covariance, second - mean[:, :, None] * mean[:, None, :], atol=1e-11
    )


@pytest.mark.parametrize("masked", [False, True])
def test_many_batches_add_up(masked: bool) -> None:
    """Responsibilities of a row sum to 1, and statistics of parts to those of the whole."""
    problem = random_problem(0, 700, 5, 2, masked)
    nodes = gauss_hermite(15, 2)  # batches of 256 rows
    whole = node_statistics(*problem, nodes)
    seen = np.ones_like(problem.X) if problem.observed is None else problem.observed
    np.testing.assert_allclose(whole.mass.sum(axis=1), seen.sum(axis=0), rtol=1e-12)
    ones = (problem.X * seen).sum(axis=0)
    np.testing.assert_allclose(whole.ones.sum(axis=1), ones, rtol=1e-12)
    by_row = node_posterior(*problem, nodes).log_likelihood
    assert by_row.sum() == pytest.approx(whole.log_likelihood, rel=1e-12)
    cuts = [0, 3, 256, 600, 700]
    parts = [node_statistics(*problem.rows(slice(*cut)), nodes) for cut in pairwise(cuts)]
    for field, total in zip(zip(*parts, strict=True), whole, strict=True):
        np.testing.assert_allclose(sum(field), total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [node_statistics, node_posterior])
def test_a_mask_without_gaps_changes_nothing(function) -> None:
    problem = random_problem(1, 50, 6, 2, masked=False)
    full = problem._replace(observed=np.ones_like(problem.X))
    nodes = gauss_hermite(7, 2)
    for masked, plain in zip(function(*full, nodes), function(*problem, nodes), strict=True):
        np.testing.assert_allclose(masked, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [node_statistics, node_posterior])
def test_what_lies_under_a_missing_value_does_not_matter(function) -> None:
    problem = random_problem(2, 50, 6, 2, masked=True)
    flipped = problem._replace(X=problem.X ^ (1 - problem.observed))
    assert (flipped.X != problem.X).any()
    nodes = gauss_hermite(7, 2)
    for one, other in zip(function(*flipped, nodes), function(*problem, nodes), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_row_without_any_value_has_the_prior_and_adds_its_mass_and_peak_alone() -> None:
    problem = random_problem(3, 20, 4, 2, masked=True)
    problem.observed[5] = 0
    nodes = gauss_hermite(9, 2)
    posterior = node_posterior(*problem, nodes)
    assert posterior.log_likelihood[5] == pytest.approx(0, abs=1e-13)
    np.testing.assert_allclose(posterior.mean[5], 0, atol=1e-13)
    np.testing.assert_allclose(posterior.covariance[5], np.eye(2), atol=1e-12)
    others = np.arange(20) != 5
    prior = np.exp(nodes.log_weights)
    added = {"rows": prior, "peak": prior.max()}
    without = node_statistics(*problem.rows(others), nodes)._asdict()
    for name, value in node_statistics(*problem, nodes)._asdict().items():
        change = np.asarray(value, float) - without[name]
        np.testing.assert_allclose(change, added.get(name, 0.0), atol=1e-12)


def test_one_component_against_numerical_integration() -> None:
    problem = random_problem(4, 6, 8, 1, masked=True)
    posterior = node_posterior(*problem, gauss_hermite(61, 1))
    for n in range(len(problem.X)):
        integrals = [
            quad(lambda x: norm.pdf(x) * likelihood(problem, n, x) * x**power, -9, 9, epsabs=1e-13)  # noqa: B023
            for power in range(3)
        ]
        evidence, first, second = (value for value, _ in integrals)
        mean = first / evidence
        assert posterior.log_likelihood[n] == pytest.approx(np.log(evidence), abs=1e-8)
        assert posterior.mean[n, 0] == pytest.approx(mean, abs=1e-7)
        assert posterior.covariance[n, 0, 0] == pytest.approx(second / evidence - mean**2, abs=1e-6)


def test_two_components_against_numerical_integration() -> None:
    problem = random_problem(5, 2, 4, 2, masked=False)
    log_likelihood = node_posterior(*problem, gauss_hermite(41, 2)).log_likelihood
    for n in range(len(problem.X)):
        evidence, _ = dblquad(
            lambda y, x: norm.pdf(x) * norm.pdf(y) * likelihood(problem, n, [x, y]),  # noqa: B023
            *(-6, 6, -6, 6),
            epsabs=1e-7,
        )
        assert log_likelihood[n] == pytest.approx(np.log(evidence), abs=1e-5)


@pytest.mark.parametrize(
    ("n_features", "nodes"),
    [
        (20, gauss_hermite(21, 2)),
        (7, gauss_hermite(21, 1)),
        (5, gauss_hermite(7, 3)),
        (2, gauss_hermite(2, 1)),
        (20, draw_nodes(441, 3, np.random.default_rng(0))),
        (20, draw_nodes(200, 27, np.random.default_rng(0))),
    ],
    ids=["441", "21", "343", "2", "441 random", "200 random with 378 products"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_the_bytes_of_a_row_do_not_depend_on_its_company(n_features, nodes, masked) -> None:
    problem = random_problem(6, 400, n_features, nodes.points.shape[1], masked)
    rng = np.random.default_rng(6)
    chosen = [rng.permutation(400)[: rng.integers(1, 400)] for _ in range(15)]
    chosen += [np.arange(start, start + length) for start, length in ((0, 1), (399, 1), (63, 130))]
    with limit_blas_threads():
        whole = node_posterior(*problem, nodes)
        for rows in chosen:
            part = node_posterior(*problem.rows(rows), nodes)
            assert_same_bytes(part, whole.take_rows(rows))


def assert_same_bytes(posterior: RowPosterior, expected: RowPosterior) -> None:
    for field, other in zip(posterior, expected, strict=True):
        assert field.tobytes() == np.ascontiguousarray(other).tobytes()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kernels", "needs"),
    [
        ("SkylakeX", "X86_V4"),
        ("Haswell", "X86_V3"),
    ],
)
def test_nor_do_they_with_the_kernels_of_other_processors(kernels: str, needs: str) -> None:
    """OpenBLAS of some processors sums the rows at the edge of a matrix in another order."""
    if needs not in np.show_config(mode="dicts")["SIMD Extensions"]["found"]:
        pytest.skip(f"this processor cannot run the kernels of {kernels}")
    test = f"{__file__}::{test_the_bytes_of_a_row_do_not_depend_on_its_company.__name__}"
    environment = os.environ | {"OPENBLAS_CORETYPE": kernels}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--noconftest", test],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "12 passed" in run.stdout


def test_steep_slopes_leave_no_negative_variances() -> None:
    problem = random_problem(7, 100, 100, 2, masked=False, scale=100.0)
    nodes = gauss_hermite(9, 2)
    statistics, posterior = node_statistics(*problem, nodes), node_posterior(*problem, nodes)
    assert all(np.isfinite(field).all() for field in (*statistics, *posterior))
    assert np.diagonal(posterior.covariance, axis1=1, axis2=2).min() >= 0
    np.testing.assert_array_equal(posterior.covariance, posterior.covariance.transpose(0, 2, 1))
    np.testing.assert_allclose(statistics.mass.sum(axis=1), 100, rtol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_wide_rows_do_not_underflow(masked: bool) -> None:
    problem = random_problem(8, 5, 3000, 1, masked)
    nodes = gauss_hermite(21, 1)
    eta = problem.weights @ nodes.points.T + problem.offsets[:, None]
    terms = np.where(problem.X[:, :, None], np.log(expit(eta)), np.log(expit(-eta)))
    if problem.observed is not None:
        terms *= problem.observed[:, :, None]
    expected = logsumexp(terms.sum(axis=1) + nodes.log_weights, axis=1)
    assert expected.max() < -745  # where exp underflows
    np.testing.assert_allclose(node_posterior(*problem, nodes).log_likelihood, expected, rtol=1e-12)
    total = node_statistics(*problem, nodes).log_likelihood
    assert total == pytest.approx(expected.sum(), rel=1e-12)
