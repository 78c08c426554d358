"""Scores and information, against finite differences, shared nodes, and loops over rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import expit, logsumexp

from pipeline.numerics.logistic.asymptotes import Asymptotes
from pipeline.numerics.logistic.categories import scores as scores_module
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    compute_level_probabilities,
    make_level_nodes,
)
from pipeline.numerics.logistic.categories.row_posteriors import (
    SharedNodes,
    compute_level_node_posterior,
)
from pipeline.numerics.logistic.categories.scores import (
    RowRegression,
    RowScoreSums,
    place_asymptotes,
    sum_scores,
)
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    RowPosterior,
    gauss_hermite,
    iter_responsibilities,
    node_posterior,
    node_statistics,
)
from pipeline.numerics.logistic.lattice_nodes import make_even_nodes
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from pipeline.numerics.logistic.logistic_sites import sum_ep_score_products
from tests.pipeline.models.latent_trait.test_ordinal_patterns import compute_hessian

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
STEP = 1e-4
N_ROWS, N_ITEMS = 400, 31  # 155 levels
SLOPES, OFFSETS = np.array([[1.2], [-0.8], [2.0]]), np.array([0.3, -1.0, 0.5])
ASYMPTOTES = Asymptotes(np.array([0.2, 0.1, 0.15]), np.array([0.05, 0.3, 0.1]))


def sum_binary_scores(
    X: Bits,
    observed: Bits | None,
    items: LevelItems,
    posterior: RowPosterior,
    nodes: Nodes | None = None,
    row_weights: Floats | None = None,
    regression: RowRegression | None = None,
) -> RowScoreSums:
    """Return the sums about all weights and offsets of binary items, and about Θ."""
    size, q = items.to_forms().size, items.weights.shape[1]
    size += 0 if regression is None else regression.covariates.shape[1] * q
    return sum_scores(
        X,
        observed,
        items,
        posterior,
        scipy.sparse.eye_array(size, format="csr"),
        nodes=nodes,
        row_weights=row_weights,
        regression=regression,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("q", "n_features", "masked"), [(1, 6, False), (1, 14, True), (2, 5, True)]
)
def test_they_are_the_derivatives(q: int, n_features: int, masked: bool) -> None:
    rng = np.random.default_rng([q, n_features])
    weights = rng.normal(1, 0.4, (n_features, q)) * rng.choice([-1, 1], (n_features, q))
    offsets = rng.normal(0, 0.7, n_features)
    X = (rng.random((40, n_features)) < expit(rng.normal(size=(40, q)) @ weights.T + offsets)) * 1
    X = X.astype(np.uint8)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8) if masked else None
    nodes = gauss_hermite(61, q)
    packed = np.column_stack([weights, offsets]).ravel()

    def log_likelihood(at: Floats) -> Floats:
        w = at.reshape(n_features, q + 1)
        return node_posterior(
            X, observed, LevelItems.from_binary(w[:, :q], w[:, q]), nodes
        ).log_likelihood

    def moved(*places: tuple[int, float]) -> Floats:
        at = packed.copy()
        for place, step in places:
            at[place] += step
        return log_likelihood(at)

    size, h = len(packed), STEP
    scores = np.stack([(moved((i, h)) - moved((i, -h))) / (2 * h) for i in range(size)], axis=1)
    hessian = (
        np.array(
            [
                [
                    sum(
                        s * t * moved((i, s * 10 * h), (j, t * 10 * h)).sum()
                        for s in (1, -1)
                        for t in (1, -1)
                    )
                    for j in range(size)
                ]
                for i in range(size)
            ]
        )
        / (20 * h) ** 2
    )
    items = LevelItems.from_binary(weights, offsets)
    posterior = node_posterior(X, observed, items, nodes)
    found = sum_binary_scores(X, observed, items, posterior)
    np.testing.assert_allclose(found.products, scores.T @ scores, rtol=0, atol=0.01)
    mass = node_statistics(X, observed, items, nodes).mass
    z = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    sigma = expit(weights @ nodes.points.T + offsets[:, None])
    curvature = block_diag(*np.einsum("il,la,lb->iab", mass * sigma * (1 - sigma), z, z))
    np.testing.assert_allclose(found.curvature, curvature, rtol=0, atol=0.01 * curvature.max())
    louis = curvature - found.covariance
    np.testing.assert_allclose(louis, -hessian, rtol=0, atol=0.01 * abs(hessian).max())
    if not masked:
        on_nodes = sum_binary_scores(X, None, items, posterior, nodes)
        np.testing.assert_allclose(on_nodes.products, scores.T @ scores, rtol=0, atol=1e-4)
        np.testing.assert_allclose(on_nodes.curvature, curvature, rtol=1e-10, atol=1e-10)
        louis = curvature - on_nodes.covariance
        np.testing.assert_allclose(louis, -hessian, rtol=0, atol=1e-3 * abs(hessian).max())


@pytest.mark.parametrize("q", [1, 2])
def test_rows_on_nodes_have_the_spread_of_their_responsibilities(q: int) -> None:
    rng = np.random.default_rng(q)
    weights, offsets = rng.normal(1, 0.4, (4, q)), rng.normal(0, 0.7, 4)
    X, nodes = (rng.random((50, 4)) < 0.5).astype(np.uint8), gauss_hermite(7, q)
    z = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    left = X[:, None] - expit(nodes.points @ weights.T + offsets)
    scores = np.einsum("nli,la->nlia", left, z).reshape(len(X), len(z), -1)
    items = LevelItems.from_binary(weights, offsets)
    (_, shares), *_ = iter_responsibilities(X, None, items, nodes)
    posterior = node_posterior(X, None, items, nodes)
    found = sum_binary_scores(X, None, items, posterior, nodes)
    spread = np.einsum("nl,nlp,nlr->pr", shares, scores, scores)
    mean = np.einsum("nl,nlp->np", shares, scores)
    np.testing.assert_allclose(found.covariance + found.products, spread, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.products, mean.T @ mean, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("q", [1, 2])
def test_scores_of_many_features_are_those_of_a_dense_grid(q: int) -> None:
    rng = np.random.default_rng(q)
    n_features = 120
    weights, offsets = rng.standard_normal((n_features, q)), rng.normal(0, 0.7, n_features)
    X = (rng.random((4, n_features)) < expit(rng.normal(size=(4, q)) @ weights.T + offsets)) * 1
    X = X.astype(np.uint8)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    axis = np.arange(-4, 4, 0.08)
    points = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    log_density = -0.5 * (points**2).sum(axis=1)
    nodes = Nodes(points, log_density - logsumexp(log_density))
    items = LevelItems.from_binary(weights, offsets)
    posterior = node_posterior(X, observed, items, nodes)
    found = sum_binary_scores(X, observed, items, posterior)
    z, sigma = np.column_stack([points, np.ones(len(points))]), expit(points @ weights.T + offsets)
    spread = np.zeros_like(found.covariance)
    for row, mask in zip(X, observed, strict=True):
        eta = points @ weights.T + offsets
        log_shares = nodes.log_weights + (mask * (row * eta - np.logaddexp(0, eta))).sum(axis=1)
        shares = np.exp(log_shares - logsumexp(log_shares))
        scores = ((mask * (row - sigma))[:, :, None] * z[:, None]).reshape(len(z), -1)
        spread += (shares[:, None] * scores).T @ scores
    np.testing.assert_allclose(
        found.covariance + found.products, spread, rtol=0, atol=2e-3 * abs(spread).max()
    )
    expected = spread - found.products
    np.testing.assert_allclose(found.covariance, expected, rtol=0, atol=1e-2 * abs(expected).max())


@pytest.mark.parametrize(("q", "n_different"), [(1, 400), (2, 24)])
def test_rows_on_a_lattice_of_modes_have_the_errors_of_a_dense_grid(
    q: int, n_different: int
) -> None:
    rng, n_features, n_rows = np.random.default_rng(q), 104, 1600
    weights, offsets = rng.uniform(0.4, 2, (n_features, q)), rng.normal(0, 0.7, n_features)
    X = rng.random((n_different, n_features)) < expit(
        rng.normal(size=(n_different, q)) @ weights.T + offsets
    )
    counts, row_weights = n_rows // n_different, rng.integers(1, 4, n_different).astype(float)
    axis = np.arange(-4.5, 4.5, 0.09)
    points = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    nodes = Nodes(points, -0.5 * (points**2).sum(axis=1))
    items = LevelItems.from_binary(weights, offsets)
    posterior = node_posterior(X, None, items, nodes)
    rows = np.repeat(np.arange(n_different), counts)
    found = sum_binary_scores(
        X[rows].astype(np.uint8),
        None,
        items,
        posterior.take_rows(rows),
        row_weights=row_weights[rows],
    )
    z, sigma = np.column_stack([points, np.ones(len(points))]), expit(points @ weights.T + offsets)
    covariance, products = np.zeros((2, *found.covariance.shape))
    curvature = np.zeros((n_features, q + 1, q + 1))
    eta = points @ weights.T + offsets
    for row, r in zip(X, counts * row_weights, strict=True):
        log_shares = nodes.log_weights + (row * eta - np.logaddexp(0, eta)).sum(axis=1)
        shares = np.exp(log_shares - logsumexp(log_shares))
        used = shares > 1e-12
        scores = ((row - sigma[used])[:, :, None] * z[used][:, None]).reshape(used.sum(), -1)
        mean = shares[used] @ scores
        scores = np.sqrt(r * shares[used])[:, None] * (scores - mean)
        covariance += scores.T @ scores
        products += r * np.outer(mean, mean)
        slopes = (r * shares[:, None] * sigma * (1 - sigma)).T
        curvature += np.einsum("il,la,lb->iab", slopes, z, z, optimize=True)
    for own, total in (
        (found.covariance, covariance),
        (found.products, products),
        (found.curvature, block_diag(*curvature)),
    ):
        np.testing.assert_allclose(own, total, rtol=0, atol=5e-4 * abs(total).max())
    if q == 1:
        information = block_diag(*curvature) - covariance
        own, exact = (
            np.sqrt(np.diag(np.linalg.inv(matrix)))
            for matrix in (found.curvature - found.covariance, information)
        )
        np.testing.assert_allclose(own, exact, rtol=1e-4)
    none = np.zeros((1, n_features), np.uint8)
    alone = sum_binary_scores(none, None, items, node_posterior(none, None, items, nodes))
    assert np.isfinite(alone.covariance).all()


def test_a_posterior_with_all_mass_on_one_point_has_finite_scores() -> None:
    rng = np.random.default_rng(0)
    weights, offsets = rng.standard_normal((120, 2)), np.zeros(120)
    X = (rng.random((10, 120)) < 0.5).astype(np.uint8)
    posterior = posterior_on_lattice(X, None, TraitItems(weights, offsets))
    posterior.covariance[:] = 1e4 * np.eye(2)  # so that the other points are far away
    found = sum_binary_scores(X, None, LevelItems.from_binary(weights, offsets), posterior)
    assert all(np.isfinite(values).all() for values in found)


def crossed(nodes: Nodes, times: int) -> Nodes:
    """Return the nodes of several pairs of components."""
    found = nodes
    for _ in range(times - 1):
        old, new = np.divmod(np.arange(len(found.points) * len(nodes.points)), len(nodes.points))
        points = np.hstack([found.points[old], nodes.points[new]])
        found = Nodes(points, found.log_weights[old] + nodes.log_weights[new])
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(("q", "n_features", "an_axis"), [(2, 8, 41), (4, 10, 13)])
def test_products_of_scores_are_those_of_the_derivatives(
    q: int, n_features: int, an_axis: int
) -> None:
    rng = np.random.default_rng(q)
    weights, offsets = rng.normal(0, 1, (n_features, q)), rng.normal(0, 0.7, n_features)
    X = (rng.random((30, n_features)) < expit(rng.normal(size=(30, q)) @ weights.T + offsets)) * 1
    X, nodes = X.astype(np.uint8), crossed(gauss_hermite(an_axis, 2), q // 2)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    packed = np.column_stack([weights, offsets])

    def log_likelihood(at: Floats) -> Floats:
        return node_posterior(
            X, observed, LevelItems.from_binary(at[:, :q], at[:, q]), nodes
        ).log_likelihood

    scores = np.empty((len(X), *packed.shape))
    for place in np.ndindex(packed.shape):
        step = np.zeros(packed.shape)
        step[place] = STEP
        ends = log_likelihood(packed + step), log_likelihood(packed - step)
        scores[:, *place] = (ends[0] - ends[1]) / (2 * STEP)
    flat = scores.reshape(len(X), -1)
    found = sum_ep_score_products(X, observed, weights, offsets)
    expected = flat.T @ flat
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * expected.max())


@pytest.mark.parametrize(("q", "is_cumulative"), [(1, True), (1, False), (2, True)])
def test_points_of_rows_give_the_covariances_of_shared_nodes(
    monkeypatch: pytest.MonkeyPatch, q: int, is_cumulative: bool
) -> None:
    rng = np.random.default_rng([q, is_cumulative])
    n_items, m = (N_ITEMS, 4) if q == 1 else (12, 2)
    weights = np.repeat(rng.uniform(0.4, 1.5, (n_items, q)), m, axis=0)
    if not is_cumulative:
        weights *= np.tile(np.arange(1.0, m + 1), n_items)[:, None]
    offsets = np.sort(rng.normal(0, 1.5, (n_items, m)))[:, ::-1].reshape(-1)
    items = LevelItems(weights, offsets, np.full(n_items, m), is_cumulative)
    P = compute_level_probabilities(items, rng.standard_normal((N_ROWS, q)))
    cumulative = P.reshape(N_ROWS, n_items, m + 1).cumsum(axis=2)[:, :, :-1]
    X = (cumulative < rng.random((N_ROWS, n_items, 1))).reshape(N_ROWS, -1).astype(np.uint8)
    observed = np.repeat(rng.random((N_ROWS, n_items)) < 0.9, m, axis=1).astype(np.uint8)
    jacobian = scipy.sparse.csr_array(np.eye(len(offsets) * (q + 1)))
    row_weights = rng.uniform(0.5, 2, N_ROWS)
    covariances, shared = [], SharedNodes.from_lattice(*make_level_nodes(items))
    posterior = compute_level_node_posterior(X, observed, items, shared)
    for limit in (0, 1000):
        monkeypatch.setattr(scores_module, "_MAX_NODE_LEVELS", limit)
        sums = sum_scores(
            X, observed, items, posterior, jacobian, nodes=shared.nodes, row_weights=row_weights
        )
        weighted = sums.covariance
        covariances.append(weighted)
    on_points, on_nodes = covariances
    assert not np.array_equal(on_points, on_nodes)
    np.testing.assert_allclose(on_points, on_nodes, atol=2e-3 * np.abs(on_nodes).max())


def test_few_items_with_covariates_have_the_errors_of_a_numerical_hessian() -> None:
    rng, n_items, m, n = np.random.default_rng(0), 3, 2, 500
    slopes, offsets = np.array([0.8, 1.5, 2.5]), np.tile([1.0, -1.0], n_items)
    covariates, theta = rng.standard_normal((n, 1)), np.array([[0.7]])
    # Items have one slope and two offsets each, and Θ comes last.
    jacobian = np.zeros((2 * m * n_items + 1, 3 * n_items + 1))
    jacobian[range(0, 2 * m * n_items, 2), np.repeat(np.arange(n_items), m)] = 1.0
    jacobian[range(1, 2 * m * n_items, 2), n_items + np.arange(m * n_items)] = 1.0
    jacobian[-1, -1] = 1.0
    at = np.concatenate([slopes, offsets, theta[0]])

    def make_items(free: np.ndarray) -> LevelItems:
        forms = (jacobian @ free)[:-1].reshape(-1, 2)
        return LevelItems(forms[:, :1], forms[:, 1], np.full(n_items, m), True)

    x = covariates @ theta + rng.standard_normal((n, 1))
    P = compute_level_probabilities(make_items(at), x).reshape(n, n_items, m + 1)
    X = P.cumsum(axis=2)[:, :, :-1] < rng.random((n, n_items, 1))
    X = X.reshape(n, -1).astype(np.uint8)
    shared = SharedNodes.from_lattice(*make_level_nodes(make_items(at), 0.5, 4.0))

    def integrate(free: np.ndarray) -> RowPosterior:
        means = covariates * free[-1]
        return compute_level_node_posterior(X, None, make_items(free), shared, means)

    regression = RowRegression(covariates, covariates @ theta)
    sums = sum_scores(
        X,
        None,
        make_items(at),
        integrate(at),
        scipy.sparse.csr_array(jacobian),
        nodes=shared.nodes,
        regression=regression,
    )
    information = sums.curvature - sums.covariance
    hessian = compute_hessian(lambda free: float(integrate(free).log_likelihood.sum()), at)
    found, expected = (np.sqrt(np.diag(np.linalg.inv(H))) for H in (information, -hessian))
    np.testing.assert_allclose(found, expected, rtol=3e-3)


@pytest.mark.parametrize("is_masked", [False, True])
def test_sums_with_asymptotes_are_those_of_loops(is_masked: bool) -> None:
    rng, nodes = np.random.default_rng(0), make_even_nodes(11)
    X = rng.integers(0, 2, (7, 3)).astype(np.uint8)
    observed = (rng.random((7, 3)) < 0.7).astype(np.uint8) if is_masked else None
    mask = np.ones_like(X) if observed is None else observed
    row_weights, clusters = rng.integers(1, 4, 7).astype(float), np.array([0, 0, 1, 1, 2, 2, 2])
    items = LevelItems.from_binary(SLOPES, OFFSETS, ASYMPTOTES)
    jacobian = np.zeros((items.to_forms().size, 12))
    jacobian[place_asymptotes(3, 1).ravel(), np.arange(12)] = 1.0
    sums = sum_scores(
        X,
        observed,
        items,
        node_posterior(X, observed, items, nodes),
        scipy.sparse.csr_array(jacobian),
        nodes=nodes,
        row_weights=row_weights,
        clusters=clusters,
    )

    x, prior, h = nodes.points[:, 0], np.exp(nodes.log_weights), 1e-5
    at = np.column_stack([SLOPES, OFFSETS, *(np.log(p / (1 - p)) for p in ASYMPTOTES)])

    def compute_log_joint(free: np.ndarray, row: int) -> np.ndarray:
        g, s = expit(free[:, 2]), expit(free[:, 3])
        P = g + (1 - s - g) * expit(np.outer(x, free[:, 0]) + free[:, 1])
        answers = np.log(np.where(X[row] == 1, P, 1 - P)) * mask[row]
        return np.asarray(answers.sum(axis=1))

    spread, products, clustered = np.zeros((12, 12)), np.zeros((12, 12)), np.zeros((3, 12))
    for row in range(7):
        scores = np.empty((11, 12))
        for k in range(12):
            step = np.zeros(12)
            step[k] = h
            ends = [compute_log_joint(at + sign * step.reshape(3, 4), row) for sign in (1, -1)]
            scores[:, k] = (ends[0] - ends[1]) / (2 * h)
        share = prior * np.exp(compute_log_joint(at, row))
        share /= share.sum()
        mean = share @ scores
        spread += row_weights[row] * (scores.T * share) @ scores
        products += row_weights[row] * np.outer(mean, mean)
        clustered[clusters[row]] += row_weights[row] * mean
    np.testing.assert_allclose(sums.covariance + sums.products, spread, atol=1e-7)
    np.testing.assert_allclose(sums.products, products, atol=1e-7)
    np.testing.assert_allclose(sums.cluster_scores, clustered, atol=1e-7)
