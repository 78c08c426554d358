"""Ising models: against scikit-learn, IsingFit's rule, and enumeration."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from pipeline.errors import FitError
from pipeline.fitting.loop import fit_model
from pipeline.models.ising.model import Ising
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.conformance.rows import SERIAL
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]


@lru_cache
def draw_rows(n_rows: int, n_features: int, seed: int = 0) -> NDArray[np.uint8]:
    """Draw rows of a sparse network by Gibbs sampling."""
    rng = np.random.default_rng(seed)
    shape = n_features, n_features
    J = np.triu(rng.normal(0, 1.2, shape) * (rng.random(shape) < 2.5 / n_features), 1)
    J += J.T
    X = (rng.random((n_rows, n_features)) < 0.5).astype(np.uint8)
    for _ in range(20):
        for i in range(n_features):
            X[:, i] = rng.random(n_rows) < expit(X @ J[i] - J[i].sum() / 2 - 0.3)
    return X


def fit(X: NDArray[np.uint8], observed: Any = None, weights: Any = None, **more: Any) -> FitState:
    data = DenseData(X, observed, weights=weights)
    return fit_model(Ising(**more), make_memory_rows(data), SERIAL)


@pytest.mark.parametrize("penalty", ["none", "ridge", "lasso"])
def test_coefficients_are_those_of_scikit_learn(penalty: str) -> None:
    X, strength = draw_rows(1500, 7), None if penalty == "none" else 0.02
    params = fit(X, penalty=penalty, strength=strength).params
    scales = X.std(axis=0)
    for i in (0, 5):
        others = np.delete(np.arange(7), i)
        model = LogisticRegression(
            C=np.inf if strength is None else 1 / (len(X) * strength),
            l1_ratio=float(penalty == "lasso"),
            solver="saga" if penalty == "lasso" else "lbfgs",
            tol=1e-9,
            max_iter=10_000,
        ).fit(X[:, others] / scales[others], X[:, i])
        found = params.slopes[i, others] * scales[others]
        np.testing.assert_allclose(found, model.coef_[0], atol=1e-5)
        assert params.thresholds[i] == pytest.approx(model.intercept_[0], abs=1e-5)
        assert (model.coef_ == 0).any() == (penalty == "lasso")


def follow_path(X: Floats, y: Floats, weights: Floats, n_penalties: int) -> tuple[Any, ...]:
    """Coefficients of glmnet's path, and their log-likelihoods: proximal gradient steps."""
    n = weights.sum()
    mean = weights @ X / n
    Z = (X - mean) / np.sqrt(weights @ (X - mean) ** 2 / n)
    gradient = np.abs(Z.T @ (weights * (y - weights @ y / n))) / n
    penalties = gradient.max() * 1e-4 ** np.linspace(0, 1, n_penalties)
    step = 4 * n / np.linalg.eigvalsh(Z.T @ (weights[:, None] * Z))[-1]
    b, b0, found = np.zeros(Z.shape[1]), np.log(weights @ y / (n - weights @ y)), []
    for penalty in penalties:
        ahead, momentum = b, 1.0
        for _ in range(3000):
            residual = weights * (y - expit(Z @ ahead + b0)) / n
            b0 += 4 * residual.sum()
            moved = ahead + step * Z.T @ residual
            moved = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0)
            if np.abs(moved - b).max() < 1e-10 and abs(residual.sum()) < 1e-11:
                break
            after = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead, b, momentum = moved + (momentum - 1) / after * (moved - b), moved, after
        p = expit(Z @ b + b0)
        found.append((b.copy(), float(weights @ np.log(np.where(y > 0, p, 1 - p)))))
    scales = np.sqrt(weights @ (X - mean) ** 2 / n)
    return np.array([b / scales for b, _ in found]), np.array([nats for _, nats in found])


def test_edges_are_those_of_isingfit() -> None:
    """The rule of IsingFit, written out: the path of glmnet, EBIC, and the AND rule."""
    X = draw_rows(1500, 6, seed=3)
    n_penalties, p = 12, X.shape[1]
    patterns, weights = np.unique(X, axis=0, return_counts=True)
    chosen = np.zeros((p, p))
    for i in range(p):
        others = np.delete(np.arange(p), i)
        own = patterns[:, others].astype(float), patterns[:, i].astype(float), weights.astype(float)
        slopes, nats = follow_path(*own, n_penalties)
        n_neighbours = (slopes != 0).sum(axis=1)
        penalty = n_neighbours * np.log(len(X)) + 2 * 0.25 * n_neighbours * np.log(p - 1)
        chosen[i, others] = slopes[np.argmin(-2 * nats + penalty)]
    expected = np.where((chosen != 0) & (chosen.T != 0), (chosen + chosen.T) / 2, 0.0)
    params = fit(X, path=n_penalties).params
    np.testing.assert_allclose(params.couplings, expected, atol=1e-5)
    assert 0 < np.count_nonzero(params.couplings) < p * (p - 1)
    either = fit(X, path=n_penalties, rule="or").params.couplings
    np.testing.assert_allclose(either, (chosen + chosen.T) / 2, atol=1e-5)


def test_wide_data_get_neighbours_that_few_candidates_miss(monkeypatch: Any) -> None:
    X, strength = draw_rows(800, 12), 0.02
    expected = fit(X, strength=strength).params
    monkeypatch.setattr("pipeline.models.ising.model._NARROW", 4)
    monkeypatch.setattr("pipeline.models.ising.model._CANDIDATES", 1)
    found = fit(X, strength=strength)
    np.testing.assert_allclose(found.params.slopes, expected.slopes, atol=1e-6)
    assert found.converged


def test_penalties_that_are_not_fitted_would_not_be_chosen(monkeypatch: Any) -> None:
    X, segments = draw_rows(3000, 10), np.arange(3000) % 2
    ended = []

    def end_waiting(model: Any, own: Any, auxiliary: Any) -> Any:
        found = end(model, own, auxiliary)
        ended.append((auxiliary["is_waiting"].sum(), found[0].is_running.sum()))
        return found

    end = Ising._end_waiting
    monkeypatch.setattr(Ising, "_end_waiting", end_waiting)
    found, by_group = fit(X, path=40).params, fit_groups(X, segments, path=40)[1].params
    assert all(n_started < 0.8 * n_waiting for n_waiting, n_started in ended)
    monkeypatch.setattr("pipeline.models.ising.model._WINDOW", 1e9)
    for params, expected in (
        (found, fit(X, path=40).params),
        (by_group, fit_groups(X, segments, path=40)[1].params),
    ):
        np.testing.assert_array_equal(params.strengths, expected.strengths)
        np.testing.assert_allclose(params.couplings, expected.couplings, atol=1e-9)
    assert len(ended) == 2


def test_a_start_on_a_sample_ends_at_the_same_optimum(monkeypatch: Any) -> None:
    X = draw_rows(1500, 7)
    expected = fit(X, path=20)
    monkeypatch.setattr("pipeline.fitting.sample_start.MIN_ROWS", 1000)
    monkeypatch.setattr("pipeline.fitting.sample_start.MIN_SAMPLE", 300)
    found = fit(X, path=20)
    assert found.diagnostics["sample_rows"] < 400
    np.testing.assert_allclose(found.params.couplings, expected.params.couplings, atol=1e-6)
    np.testing.assert_allclose(found.params.strengths, expected.params.strengths, rtol=1e-9)


def test_bootstrap_draws_are_fits_to_rows_that_count_several_times() -> None:
    X = draw_rows(400, 6)
    found = fit(X, penalty="none", draws=1).params
    # The counts are quantiles of Poisson variables, from the keyed draws of each row.
    uniform = RowRandom(0, 1 << 33).stream("draw 0").uniform(np.arange(400), 1)[:, 0]
    counts = scipy.stats.poisson.ppf(uniform, 1.0).astype(np.int64)
    drawn = fit(np.repeat(X, counts, axis=0), penalty="none").params
    centrality = np.abs(drawn.couplings).sum(axis=0)
    np.testing.assert_allclose(found.centrality_interval, [centrality] * 2, rtol=1e-5)
    np.testing.assert_array_equal(found.stability, 1 - np.eye(6))
    plain = fit(X, penalty="none").params
    np.testing.assert_allclose(found.couplings, plain.couplings, rtol=1e-9)
    np.testing.assert_allclose(found.couplings_error, plain.couplings_error, rtol=1e-6)


def test_edges_that_are_clear_are_stable() -> None:
    X = draw_rows(1500, 7)
    params = fit(X, path=20, draws=40).params
    is_edge = params.couplings != 0
    assert (params.stability[np.abs(params.couplings) > 0.5] == 1).all()
    assert params.stability[~is_edge].max() < 0.8
    centrality = np.abs(params.couplings).sum(axis=1)
    low, high = params.centrality_interval
    assert ((low <= centrality) & (centrality <= high)).all()


def test_likelihoods_and_moments_are_those_of_enumeration() -> None:
    X = draw_rows(1500, 12)
    model, params = Ising(penalty="none"), fit(X, penalty="none").params
    states = (np.arange(1 << 12)[:, None] >> np.arange(12) & 1).astype(np.uint8)
    energies = states @ params.thresholds
    energies += np.einsum("ni,ij,nj->n", states, np.triu(params.couplings), states)
    shares = np.exp(energies - np.logaddexp.reduce(energies))
    found = model.log_likelihood(params, DenseData(states, None).pack(), RowRandom(0)).nats
    np.testing.assert_allclose(np.exp(found), shares, rtol=1e-10)
    # A row whose values are partly missing has the sum over the states.
    seen = np.zeros((1, 12), np.uint8)
    seen[0, [2, 7]] = 1
    row = DenseData(np.ones((1, 12), np.uint8) & seen, seen).pack()
    expected = shares[(states[:, 2] == 1) & (states[:, 7] == 1)].sum()
    assert np.exp(model.log_likelihood(params, row, RowRandom(0)).nats) == pytest.approx(expected)
    drawn = model.sample(params, 100_000, np.random.default_rng(0))
    pairs = drawn.T.astype(float) @ drawn / len(drawn)
    np.testing.assert_allclose(pairs, states.T @ (shares[:, None] * states), atol=0.007)


def enumerate_shares(params: Any) -> tuple[Floats, Floats]:
    """All states, and their probabilities."""
    p = len(params.thresholds)
    states = (np.arange(1 << p)[:, None] >> np.arange(p) & 1).astype(float)
    nats = states @ params.thresholds
    nats += np.einsum("ni,ij,nj->n", states, np.triu(params.couplings), states)
    return states, np.exp(nats - np.logaddexp.reduce(nats))


@pytest.mark.parametrize("settings", [{"penalty": "none"}, {"path": 20}])
def test_maximum_likelihood_matches_the_moments_of_edges(settings: Any) -> None:
    X = draw_rows(1500, 7)
    params = fit(X, refit="likelihood", **settings).params
    states, shares = enumerate_shares(params)
    off = states.T @ (shares[:, None] * states) - X.T.astype(float) @ X / len(X)
    is_edge = (params.couplings != 0) | np.eye(7, dtype=bool)
    assert is_edge.all() == ("penalty" in settings)
    assert np.abs(off[is_edge]).max() < 1e-6
    # The inverse of the Fisher information, whose parameters are thresholds and couplings.
    left, right = np.nonzero(np.triu(params.couplings))
    T = np.hstack([states, states[:, left] * states[:, right]])
    T -= shares @ T
    errors = np.sqrt(np.diagonal(np.linalg.inv((T.T * shares) @ T)) / len(X))
    np.testing.assert_allclose(params.thresholds_error, errors[:7], rtol=1e-5)
    np.testing.assert_allclose(params.couplings_error[left, right], errors[7:], rtol=1e-5)


def test_gibbs_chains_find_the_maximum_of_the_likelihood(monkeypatch: Any) -> None:
    X, settings = draw_rows(1500, 7), {"penalty": "none", "refit": "likelihood"}
    expected = fit(X, **settings).params
    monkeypatch.setattr("pipeline.models.ising.moments.MAX_NEWTON_FEATURES", 0)
    monkeypatch.setattr("pipeline.models.ising.moments._STEPS", 200)
    found = fit(X, **settings).params
    off = np.abs(found.couplings - expected.couplings)[np.triu_indices(7, 1)]
    assert (off < 0.5 * expected.couplings_error[np.triu_indices(7, 1)]).all()


def test_standard_errors_are_those_of_the_sandwich() -> None:
    """Of both coefficients of each coupling together, by influences of the rows."""
    X = draw_rows(1500, 7)
    params = fit(X, penalty="none").params
    influences = np.zeros((len(X), 7, 7))
    for i in range(7):
        others = np.delete(np.arange(7), i)
        Z = np.column_stack([np.ones(len(X)), X[:, others]])
        p = expit(params.thresholds[i] + X[:, others] @ params.slopes[i, others])
        inverse = np.linalg.inv((Z.T * (p * (1 - p))) @ Z)
        influences[:, i, np.append(i, others)] = (X[:, i] - p)[:, None] * Z @ inverse
    both = (influences + influences.transpose(0, 2, 1)) / 2
    errors = np.sqrt((both**2).sum(axis=0))
    np.testing.assert_allclose(params.thresholds_error, np.diagonal(errors), rtol=1e-5)
    np.fill_diagonal(errors, 0.0)
    np.testing.assert_allclose(params.couplings_error, errors, rtol=1e-5)
    refitted = fit(X, path=20, refit="pseudo").params
    is_edge = refitted.couplings != 0
    assert ((refitted.couplings_error > 0) == is_edge).all()
    assert 0 < is_edge.sum() < 42


def test_heat_capacity_of_chains_is_that_of_enumeration(monkeypatch: Any) -> None:
    params, model = fit(draw_rows(1500, 7), penalty="none").params, Ising()
    temperatures = np.array([0.5, 1.0, 2.0])
    exact = model.compute_heat_capacity(params, temperatures)
    _, shares = enumerate_shares(params)
    nats = np.log(shares)
    assert exact[1] == pytest.approx((shares @ nats**2 - (shares @ nats) ** 2) / 7)
    monkeypatch.setattr("pipeline.models.ising.states.MAX_ENUMERATED", 0)
    monkeypatch.setattr("pipeline.models.ising.states._HEAT_CHAINS", 10_000)
    np.testing.assert_allclose(model.compute_heat_capacity(params, temperatures), exact, rtol=0.05)


def fit_groups(
    X: NDArray[np.uint8], segments: Any, weights: Any = None, **more: Any
) -> tuple[Ising, FitState]:
    names = tuple(f"group {g}" for g in range(segments.max() + 1))
    model = Ising(**more).with_structure(Structure(groups=names))
    rows = make_memory_rows(DenseData(X, segments=segments, weights=weights), [250, len(X) - 250])
    return model, fit_model(model, rows, SERIAL)


@lru_cache
def draw_groups() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of two networks in random order; the last feature is constant in the second group."""
    first, second = draw_rows(500, 5, seed=4), draw_rows(300, 5, seed=5)
    second[:, 4] = 1
    order = np.random.default_rng(0).permutation(800)
    return np.vstack([first, second])[order], np.repeat([0, 1], [500, 300])[order]


def test_networks_of_groups_are_those_of_scikit_learn() -> None:
    """With the same penalty for all groups, in units of the deviations of all rows."""
    (X, segments), strength = draw_groups(), 0.02
    _, state = fit_groups(X, segments, strength=strength)
    scales, groups = X.std(axis=0), state.params.groups
    for group, i in ((0, 1), (1, 2)):
        own, others = X[segments == group], np.delete(np.arange(5), i)
        model = LogisticRegression(
            C=1 / (len(own) * strength), l1_ratio=1.0, solver="saga", tol=1e-9, max_iter=10_000
        ).fit(own[:, others] / scales[others], own[:, i])
        found = groups.group_slopes[group, i, others] * scales[others]
        np.testing.assert_allclose(found, model.coef_[0], atol=1e-5)
    assert groups.group_couplings[0].any(axis=1).all()
    assert not groups.group_couplings[1, 4].any()
    (warning,) = state.warnings
    assert (warning.features, warning.segments) == ((4,), (1,))
    assert "constant in some groups" in warning.text


def test_groups_share_the_penalty_with_the_least_sum_of_their_ebic() -> None:
    X, segments = draw_groups()
    (_, state), n_penalties = fit_groups(X, segments, path=6), 6
    own = [X[segments == group] for group in (0, 1)]
    scales, chosen = X.std(axis=0), state.params
    for i in (0, 3):
        covariance = [np.abs(np.cov(rows.T, bias=True)[i]) / scales for rows in own]
        largest = max(np.delete(values, i).max() for values in covariance)
        penalties = largest * 1e-4 ** np.linspace(0, 1, n_penalties)
        ebic = np.zeros(n_penalties)
        fits = [fit_groups(X, segments, strength=penalty)[1].params for penalty in penalties]
        for k, group in product(range(n_penalties), (0, 1)):
            groups, y = fits[k].groups, own[group][:, i]
            p = expit(
                groups.group_thresholds[group, i] + own[group] @ groups.group_slopes[group, i]
            )
            n_neighbours = np.count_nonzero(groups.group_slopes[group, i])
            ebic[k] -= 2 * np.log(np.where(y, p, 1 - p)).sum()
            ebic[k] += n_neighbours * (np.log(len(y)) + 2 * 0.25 * np.log(4))
        best = int(ebic.argmin())
        assert 0 < best < n_penalties - 1
        assert chosen.strengths[i] == pytest.approx(penalties[best])
        expected = fits[best].groups.group_slopes[:, i]
        np.testing.assert_allclose(chosen.groups.group_slopes[:, i], expected, atol=1e-4)
    mean = np.tensordot(np.bincount(segments) / len(X), chosen.groups.group_couplings, 1)
    np.testing.assert_allclose(chosen.couplings, mean, atol=1e-12)


def test_permutation_tests_fit_networks_to_rows_with_new_labels() -> None:
    """The tests of NetworkComparisonTest, written out; half of the rows count twice."""
    (X, segments), n = draw_groups(), 9
    weights = 1 + np.arange(len(X)) % 2
    X, ridge = X[:, :4], {"penalty": "ridge", "strength": 0.05}
    model, state = fit_groups(X, segments, weights, permutations=n, **ridge)
    scales = np.sqrt(np.cov(X.T, fweights=weights, bias=True).diagonal())
    size = weights[segments == 0].sum() / weights.sum()

    def fit_couplings(counts: Any) -> Floats:
        slopes = np.zeros((4, 4))
        for i in range(4):
            others = np.delete(np.arange(4), i)
            logistic = LogisticRegression(C=1 / (counts.sum() * 0.05), tol=1e-10, max_iter=1000)
            logistic.fit(X[:, others] / scales[others], X[:, i], sample_weight=counts)
            slopes[i, others] = logistic.coef_[0] / scales[others]
        return (slopes + slopes.T) / 2

    def compare(first: Any) -> list[Floats]:
        a, b = fit_couplings(first), fit_couplings(weights - first)
        return [np.abs(a - b).max(), np.abs(a).sum() / 2 - np.abs(b).sum() / 2, a - b]

    observed = compare(weights * (segments == 0))
    exceeding = [np.zeros(np.shape(values)) for values in observed]
    for draw in range(n):
        key = RowRandom(0, 1 << 33).stream(f"permutation {draw}")
        uniform = key.uniform(np.arange(len(X)), 1)[:, 0]
        drawn = compare(scipy.stats.binom.ppf(uniform, weights, size))
        for count, own, values in zip(exceeding, drawn, observed, strict=True):
            count += np.abs(own) >= np.abs(values)
    tests = state.params.groups.tests
    assert tests.largest_difference[0] == pytest.approx(observed[0], abs=1e-5)
    assert tests.strength_difference[0] == pytest.approx(observed[1], abs=1e-5)
    expected = [(1 + count) / (1 + n) for count in exceeding]
    assert tests.largest_difference_p[0] == pytest.approx(expected[0])
    assert tests.strength_difference_p[0] == pytest.approx(expected[1])
    off = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(tests.difference_p[0][off], expected[2][off])
    (test,) = state.diagnostics["fit_statistics"]["network_tests"]
    assert test["groups"] == ["group 0", "group 1"]
    (difference,) = model.compare_groups(state.params)
    np.testing.assert_allclose(difference.difference, observed[2], atol=1e-5)


def test_errors_and_likelihoods_of_groups_are_those_of_fits_to_their_rows() -> None:
    X, segments = draw_groups()
    X = X[:, :4]
    model, state = fit_groups(X, segments, penalty="none")
    for group in (0, 1):
        own, found = (
            fit(X[segments == group], penalty="none").params,
            state.params.take_group(group),
        )
        np.testing.assert_allclose(found.couplings, own.couplings, atol=1e-6)
        np.testing.assert_allclose(found.couplings_error, own.couplings_error, rtol=1e-4)
        block = DenseData(X[:9], None).pack(segment=group)
        nats = model.log_likelihood(model.prepare(state.params, None, None), block, None).nats
        expected = model.log_likelihood(model.prepare(own, None, None), block, None).nats
        np.testing.assert_allclose(nats, expected, atol=1e-6)
    (difference,) = model.compare_groups(state.params)
    errors = state.params.groups.group_couplings_error
    z = difference.difference[0, 1] / np.hypot(*errors[:, 0, 1])
    assert difference.p[0, 1] == pytest.approx(2 * scipy.stats.norm.sf(abs(z)))


def test_settings_of_groups_are_refused_without_them() -> None:
    X, segments = draw_groups()
    with pytest.raises(FitError, match=r"compare groups of rows\. Choose them by group"):
        fit(X, permutations=5)
    with pytest.raises(FitError, match="draws cannot be combined with groups"):
        fit_groups(X, segments, draws=5)
    few = np.ones_like(X)
    few[segments == 1, 0] = 0
    rows = make_memory_rows(DenseData(X * few, few, segments))
    model = Ising().with_structure(Structure(groups=("NA", "None")))
    with pytest.raises(FitError, match="Only 0 of 300 rows of the group 'None' have values"):
        fit_model(model, rows, SERIAL)


def test_copies_and_constants_are_named_and_numbers_stay_finite() -> None:
    X = np.column_stack([draw_rows(300, 6), np.arange(300) == 7]).astype(np.uint8)
    X[:, 3], X[:, 4] = X[:, 1], 1
    for settings in ({"penalty": "none"}, {}, {"penalty": "ridge", "strength": 0.1}):
        state = fit(X, **settings)
        assert np.isfinite(state.params.couplings).all()
        assert not state.params.couplings[4].any()
        assert state.converged
        by_text = {warning.text: warning.features for warning in state.warnings}
        assert (4,) in by_text.values()
        is_copy = [features for text, features in by_text.items() if "copies" in text]
        if settings == {"penalty": "none"}:
            assert {1, 3, 6} <= {*is_copy[0]}  # nothing bounds a single one either
            assert np.isnan(state.params.couplings_error[1, 3])
            continue
        assert is_copy == ([] if "strength" in settings else [(1, 3)]), settings


def test_rows_with_missing_values_are_counted() -> None:
    X = draw_rows(600, 6)
    seen = np.ones_like(X)
    seen[:100, 2] = 0
    state = fit(X * seen, seen, penalty="none")
    expected = fit(X[100:], penalty="none")
    np.testing.assert_allclose(state.params.slopes, expected.params.slopes, atol=1e-9)
    (warning,) = state.warnings
    assert warning.text.startswith(
        "100 of 600 rows have missing values and are left out, so 500 are fitted. "
    )
    assert warning.features == (2,)
    seen[100:, 3] = 0
    with pytest.raises(FitError, match="Only 0 of 600 rows have values of all features") as error:
        fit(X * seen, seen)
    assert error.value.message.features == (3, 2)  # the one with most missing values first
