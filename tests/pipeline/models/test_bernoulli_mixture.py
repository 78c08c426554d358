"""The Bernoulli mixture against enumeration, the truth and its own fixed point."""

from __future__ import annotations

import csv
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logit, logsumexp

import latentbits as lb
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.e_step import (
    compute_mixture_terms,
    mixture_posterior,
    sum_mixture_statistics,
)
from pipeline.models.bernoulli_mixture.levels import count_determined_parameters
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams
from pipeline.models.state import FitState
from pipeline.params import get_array
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.derivatives import compute_sandwich, differentiate_twice
from tests.support.enumeration import JointTable, check_rows, list_states
from tests.support.strategies import DenseData, make_memory_rows, tables

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
SERIAL, RNG = SerialExecutor(), RowRandom(0)

WEIGHTS = np.array([0.5, 0.3, 0.2])
PROBABILITIES = np.array(
    [
        [0.9, 0.9, 0.8, 0.1, 0.2, 0.1, 0.5, 0.9],
        [0.1, 0.2, 0.1, 0.9, 0.8, 0.9, 0.5, 0.9],
        [0.9, 0.1, 0.1, 0.1, 0.9, 0.9, 0.2, 0.1],
    ]
)


def params_of(weights: Floats, probabilities: Floats) -> BernoulliMixtureParams:
    return BernoulliMixtureParams(probabilities, weights)


def drawn(n_rows: int, seed: int = 1) -> Bits:
    rng = np.random.default_rng(seed)
    return BernoulliMixture().sample(params_of(WEIGHTS, PROBABILITIES), n_rows, rng)


def fitted(X: Bits, observed: Bits | None = None, **more: Any) -> FitState:
    sizes = [len(X) // 2, len(X) - len(X) // 2]
    return fit_model(
        BernoulliMixture(**more), make_memory_rows(DenseData(X, observed), sizes), SERIAL
    )


def chance(row: Bits, weights: Floats, probabilities: Floats) -> Floats:
    """π_k Π_i P(x_i | k), (n_components,), with nothing saved."""
    return np.array(
        [
            weight * np.prod([p if x else 1 - p for x, p in zip(row, given_k, strict=True)])
            for weight, given_k in zip(weights, probabilities, strict=True)
        ]
    )


def random_params(n_features: int, n_components: int, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    probabilities = rng.uniform(0.01, 0.99, (n_components, n_features))
    return rng.dirichlet(np.ones(n_components)), probabilities


# --- posteriors ----------------------------------------------------------------------------------


@given(data=tables(), n_components=st.integers(1, 5), seed=st.integers(0, 99))
def test_posteriors_are_those_of_enumeration(data: DenseData, n_components: int, seed: int) -> None:
    """A missing value is summed over, both ways."""
    weights, probabilities = random_params(data.X.shape[1], n_components, seed)
    model, params = BernoulliMixture(), params_of(weights, probabilities)
    block = pack_block(data.X[:8], None if data.observed is None else data.observed[:8])
    codes = model.transform(params, block, RNG)["mean"]
    found = model.log_likelihood(params, block, RNG)
    rows = list_states((2,) * data.X.shape[1])
    table = JointTable(rows, np.array([chance(row, weights, probabilities) for row in rows]))
    check_rows(table, data.X[:8], data.mask[:8] == 1, found.nats, codes, atol=1e-9)
    assert not found.standard_error.any()


@given(data=tables(), n_components=st.integers(1, 5), seed=st.integers(0, 99))
def test_sums_are_those_of_dense_matrices(data: DenseData, n_components: int, seed: int) -> None:
    check_sums(data, *random_params(data.X.shape[1], n_components, seed))


@pytest.mark.parametrize(("shape", "p"), [((70, 3), 0.5), ((600, 7), 0.5), ((600, 4), 0.01)])
@pytest.mark.parametrize("observed", [1.0, 0.7, 0.01])
def test_sums_do_not_depend_on_the_digits(
    shape: tuple[int, int], p: float, observed: float
) -> None:
    rng, n_rows = np.random.default_rng(5), 130
    probabilities = np.clip(rng.uniform(0, 2 * p, shape), 1e-4, 0.999).T
    mask = (rng.random((n_rows, shape[0])) < observed).astype(np.uint8)
    X = (rng.random(mask.shape) < probabilities[rng.integers(shape[1], size=n_rows)]) & mask
    data = DenseData(X.astype(np.uint8), None if observed == 1 else mask)
    check_sums(data, rng.dirichlet(np.ones(shape[1])), probabilities)


def check_sums(data: DenseData, weights: Floats, probabilities: Floats) -> None:
    terms = compute_mixture_terms(probabilities, np.log(weights))
    block = pack_block(data.X, data.observed)
    packed = (block.words, block.observed_words, block.n_samples, terms)
    shares, nats = mixture_posterior(*packed)
    logs = np.log(weights) + (data.X & data.mask) @ terms.log_odds + data.mask @ terms.log_absent
    np.testing.assert_allclose(shares, np.exp(log_softmax(logs, axis=1)), atol=1e-9)
    np.testing.assert_allclose(nats, logsumexp(logs, axis=1), rtol=1e-9, atol=1e-12)
    sums = sum_mixture_statistics(*packed)
    assert sums.log_likelihood == pytest.approx(nats.sum(), rel=1e-12)
    np.testing.assert_allclose(sums.mass, shares.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(sums.ones, (data.X & data.mask).T @ shares, atol=1e-9)
    np.testing.assert_allclose(sums.missing, (1.0 - data.mask).T @ shares, atol=1e-9)


def test_rows_far_from_every_component_stay_finite() -> None:
    probabilities = np.full((2, 3000), 1e-6)
    params = params_of(np.array([0.5, 0.5]), probabilities)
    block = pack_block(np.ones((3, 3000), np.uint8))
    model = BernoulliMixture()
    np.testing.assert_allclose(model.transform(params, block, RNG)["mean"], 0.5)
    np.testing.assert_allclose(model.log_likelihood(params, block, RNG).nats, 3000 * np.log(1e-6))


# --- fits ----------------------------------------------------------------------------------------


def test_a_fit_ends_where_an_em_step_by_hand_stays() -> None:
    X, s = drawn(3000), 0.5
    params = fitted(X, n_components=3, smoothing=s, tol=1e-10).params
    joint = np.array([chance(row, params.weights, params.probabilities) for row in X])
    shares = joint / joint.sum(axis=1, keepdims=True)
    mass = shares.sum(axis=0)
    np.testing.assert_allclose((mass + s) / (len(X) + 3 * s), params.weights, atol=1e-4)
    np.testing.assert_allclose(
        (shares.T @ X + s) / (mass[:, None] + 2 * s), params.probabilities, atol=1e-4
    )


def test_the_objective_holds_the_prior() -> None:
    X, s = drawn(400), 2.0
    state, params = fitted(X, smoothing=s), params_of(WEIGHTS, PROBABILITIES)
    model, rows = BernoulliMixture(smoothing=s), make_memory_rows(DenseData(X))
    at = FitState(params, {"held_out": np.array(0.0)}, {"short": np.array(False)})
    sums = collect_pass_statistics(model, at, rows, SERIAL, 0)
    nats = sum(np.log(chance(row, WEIGHTS, PROBABILITIES).sum()) for row in X)
    p = PROBABILITIES
    prior = s * (np.log(p).sum() + np.log(1 - p).sum() + np.log(WEIGHTS).sum())
    assert model.objective(params, sums) == pytest.approx((nats + prior) / len(X))
    assert len(state.history) > 1


def test_copies_of_few_rows_leave_everything_finite() -> None:
    """Steps go towards certainty; the pseudo-counts are what stops them."""
    X = np.repeat(np.eye(4, dtype=np.uint8), 50, axis=0)
    state = fitted(X, n_components=4, smoothing=1e-6, tol=1e-9)
    assert np.isfinite(state.history).all()
    assert 0 < state.params.probabilities.min() < 1e-6
    assert state.params.probabilities.max() < 1


# --- what is refused and told --------------------------------------------------------------------


def test_constant_features_and_needless_components_are_told() -> None:
    X = drawn(200)
    X[:, 4] = 1
    told = fitted(X, n_components=60).warnings
    assert [notice.features for notice in told if "constant" in notice.text] == [(4,)]
    assert any("less than one row" in notice.text for notice in told)


@pytest.mark.parametrize(
    ("kinds", "n_components", "said"),
    [
        (6, None, "2 of 8; their number was found automatically, components=6 avoids them"),
        (40, None, "still gain at 8, where the search for components ends; set a larger number"),
        (6, 8, "2 of 8; choose fewer components"),
        (6, 6, None),
    ],
)
def test_of_the_number_of_components_one_thing_is_advised(
    kinds: int, n_components: int | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BernoulliMixture, "max_held_out_components", 8)
    rng = np.random.default_rng(1)
    patterns = (rng.random((kinds, 24)) < 0.5).astype(np.uint8)
    state = fitted(patterns[rng.integers(kinds, size=400)], n_components=n_components)
    told = [notice.render() for notice in state.warnings if "components" in notice.text]
    assert len(told) == (said is not None)
    assert all(text.endswith(str(said)) for text in told)


@pytest.mark.parametrize(
    ("n_rows", "more", "message"),
    [
        (
            20,
            {"n_components": 21},
            "components is 21, but the dataset has only 20 rows. Choose at most 20",
        ),
        (
            99,
            {"n_components": None},
            "choosing components needs at least 100. Set components to a number.",
        ),
    ],
)
def test_too_few_rows_are_refused(n_rows: int, more: dict[str, Any], message: str) -> None:
    with pytest.raises(FitError, match=message):
        fitted(drawn(n_rows), **more)


@pytest.mark.parametrize("masked", [False, True])
def test_errors_are_those_of_the_hessian(masked: bool) -> None:
    rng = np.random.default_rng(masked)
    P, weights, smoothing = np.full((2, 5), 0.25), np.array([0.6, 0.4]), 0.3
    P[1] = rng.uniform(0.6, 0.9, 5)
    X = (rng.random((900, 5)) < P[rng.choice(2, 900, p=weights)]).astype(np.uint8)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8) if masked else None
    seen = np.ones(X.shape) if observed is None else observed.astype(float)

    def joint(at: Floats) -> Floats:
        log_odds, alpha = at[:10].reshape(2, 5), np.append(at[10:], 0.0)
        each = X[:, None] * log_odds - np.logaddexp(0, log_odds)
        return (seen[:, None] * each).sum(axis=2) + log_softmax(alpha)

    def log_posterior(at: Floats) -> float:
        p, alpha = expit(at[:10]), np.append(at[10:], 0.0)
        prior = np.log(p).sum() + np.log1p(-p).sum() + log_softmax(alpha).sum()
        return float(logsumexp(joint(at), axis=1).sum() + smoothing * prior)

    at = np.append(logit(P).ravel(), np.log(weights[0] / weights[1]))
    covariance = np.linalg.inv(-differentiate_twice(log_posterior, at))
    model, params = BernoulliMixture(smoothing=smoothing), BernoulliMixtureParams(P, weights)
    block, every_row = pack_block(X, observed), {"share": np.array(1.0)}
    sums = model.summarize_information(params, every_row, block, RNG)
    auxiliary = {"weight": np.array(900), "has_sampling_weights": np.array(False)}
    state = FitState(params, auxiliary=auxiliary)
    found = model.finish_information_pass(state, sums).params
    deviations = np.sqrt(np.diag(covariance))
    expected = (P * (1 - P)) * deviations[:10].reshape(2, 5)
    errors, weights_error = found.errors, weights.prod() * deviations[10]
    np.testing.assert_allclose(errors.probabilities_error, expected, rtol=1e-4)
    np.testing.assert_allclose(errors.weights_error, weights_error, rtol=1e-4)
    low, high = logit(errors.probabilities_interval)
    np.testing.assert_allclose((high - low).ravel() / 2, 1.959964 * deviations[:10], rtol=1e-4)


def read_carcinoma() -> tuple[DenseData, DenseData]:
    """Read the ratings as patterns with frequencies, and as rows."""
    text = find_reference("data/carcinoma.csv").read_text().splitlines()[1:]
    X = np.array([line.split(",") for line in text], np.int64) - 1
    patterns, counts = np.unique(X.astype(np.uint8), axis=0, return_counts=True)
    return DenseData(patterns, weights=counts), DenseData(np.repeat(patterns, counts, axis=0))


def test_frequencies_of_patterns_give_the_latent_classes_of_polca() -> None:
    model = BernoulliMixture(n_components=2, smoothing=1e-6, starts=10, tol=1e-9)
    by_pattern, by_row = (
        fit_model(model, make_memory_rows(data), SERIAL) for data in read_carcinoma()
    )
    assert by_pattern.history[-1] * 118 == pytest.approx(-317.2568, abs=1e-3)
    np.testing.assert_allclose(by_pattern.params.weights, [0.5012124, 0.4987876], atol=1e-4)
    share = find_reference("10_latent_classes/carcinoma_K2_se_two_ways.csv").read_text()
    expected = float(share.splitlines()[1].split(",")[5])  # from the Hessian
    assert by_pattern.params.errors.weights_error[0] == pytest.approx(expected, rel=0.01)
    for name in ("weights", "probabilities", "weights_error", "probabilities_error"):
        found, same = (get_array(state.params, name) for state in (by_pattern, by_row))
        np.testing.assert_allclose(found, same, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("errors", "column"), [("louis", "se_hessian"), ("crossproduct", "se_opg")]
)
def test_both_forms_of_errors_are_those_of_polca(errors: Literal["louis"], column: str) -> None:
    """The errors that poLCA prints are those of products of scores; 1 is the second category."""
    model = BernoulliMixture(n_components=2, smoothing=1e-6, starts=10, tol=1e-9, errors=errors)
    patterns, rows = (fit_model(model, make_memory_rows(d), SERIAL) for d in read_carcinoma())
    text = find_reference("10_latent_classes/carcinoma_K2_se_two_ways.csv").read_text()
    for line in csv.DictReader(text.splitlines()):
        if not line[column]:
            continue
        k = int(line["class"]) - 1
        for params in (patterns.params, rows.params):
            if line["kind"] == "share":
                found = params.errors.weights_error[k]
            else:
                found = params.errors.probabilities_error[k, "ABCDEFG".index(line["variable"])]
            assert found == pytest.approx(float(line[column]), rel=0.01), line


def test_patterns_choose_the_number_of_components_that_rows_choose() -> None:
    rng = np.random.default_rng(8)
    kinds = rng.choice(3, 4000, p=WEIGHTS)
    X = (rng.random((4000, 8)) < PROBABILITIES[kinds]).astype(np.uint8)
    patterns, counts = np.unique(X, axis=0, return_counts=True)
    model = BernoulliMixture(n_components=None, starts=3)
    by_row, by_pattern = (
        fit_model(model, make_memory_rows(data), SERIAL)
        for data in (DenseData(X), DenseData(patterns, weights=counts))
    )
    assert len(by_pattern.params.weights) == len(by_row.params.weights) == 4
    np.testing.assert_allclose(
        by_pattern.diagnostics["held_out_scores"],
        by_row.diagnostics["held_out_scores"],
        atol=0.1,
    )


@pytest.mark.parametrize("n_clusters", [None, 50])
def test_errors_with_sampling_weights_are_those_of_the_sandwich(n_clusters: int | None) -> None:
    """The sandwich by finite differences of the log-likelihood of each row."""
    rng = np.random.default_rng(4)
    P = np.array([[0.2, 0.7, 0.4, 0.8], [0.8, 0.3, 0.6, 0.1]])
    X = (rng.random((600, 4)) < P[(rng.random(600) > 0.6).astype(int)]).astype(np.uint8)
    weights = 0.2 + 2 * rng.random(600)
    clusters = None if n_clusters is None else np.arange(600) % n_clusters
    model = BernoulliMixture(n_components=2, smoothing=1e-6, tol=1e-10)
    rows = make_memory_rows(DenseData(X, weights=weights, clusters=clusters), kind="sampling")
    params = fit_model(model, rows, SERIAL).params
    scaled = weights / weights.mean()
    at = np.append(logit(params.probabilities).ravel(), np.log(np.divide(*params.weights)))

    def by_row(place: Floats) -> Floats:
        p, alpha = expit(place[:8]).reshape(2, 4), np.append(place[8:], 0.0)
        each = X[:, None] * np.log(p) + (1 - X[:, None]) * np.log1p(-p)
        return np.asarray(logsumexp(each.sum(axis=2) + log_softmax(alpha), axis=1))

    deviations = np.sqrt(np.diag(compute_sandwich(by_row, at, scaled, clusters)))
    p = params.probabilities
    expected = (p * (1 - p)) * deviations[:8].reshape(2, 4)
    np.testing.assert_allclose(params.errors.probabilities_error, expected, rtol=1e-3)
    np.testing.assert_allclose(
        params.errors.weights_error, params.weights.prod() * deviations[8], rtol=1e-3
    )


def test_a_value_that_rules_out_a_component_does_not_count_for_itself() -> None:
    """P(k | x) of the first component underflows with x_0 = 1, but P(k | x_1) does not."""
    probabilities = np.array([[1e-60, 0.2], [0.5, 0.6]])
    params = BernoulliMixtureParams(probabilities, np.array([0.3, 0.7]))
    X = np.array([[1, 1], [0, 1]], np.uint8)
    found = BernoulliMixture(2).impute(params, pack_block(X), RNG)
    np.testing.assert_allclose(found[:, 0], 0.7 * 0.6 * 0.5 / (0.3 * 0.2 + 0.7 * 0.6), rtol=1e-14)
    np.testing.assert_allclose(found[0, 1], 0.6, rtol=1e-14)
    np.testing.assert_allclose(found[1, 1], (0.3 * 0.2 + 0.35 * 0.6) / 0.65, rtol=1e-14)


@pytest.mark.parametrize(("n_features", "n_components"), [(2, 2), (4, 3)])
def test_components_that_the_cells_do_not_determine_have_no_errors(
    n_features: int, n_components: int
) -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((500, 1)) + rng.random((500, n_features)) > 1).astype(np.uint8)
    fitted = lb.fit(X, "bernoulli-mixture", components=n_components)
    assert any("not identified" in warning for warning in fitted.warnings)
    assert np.isnan(fitted.params.errors.probabilities_error).all()
    assert np.isnan(fitted.params.errors.weights_error).all()
    assert (fitted.params.errors.probabilities_interval == np.array([0, 1])[:, None, None]).all()


def test_cells_determine_enough_components() -> None:
    """Goodman (Biometrika 61, 1974): 4 items determine 13 of the 14 parameters of 3 classes."""
    ranks = [count_determined_parameters(np.full(n, 2), k, 1) for n, k in ((3, 2), (4, 3), (5, 3))]
    assert ranks == [7, 13, 17]
    assert count_determined_parameters(np.array([3, 3]), 2, 1) == 7
    assert count_determined_parameters(np.full(2, 2), 2, 2) == 6  # with groups


def test_a_warm_start_numbers_classes_like_the_most_similar_earlier_ones() -> None:
    model = BernoulliMixture(n_components=3)
    first = np.array([[0.1, 0.2], [0.5, 0.6], [0.9, 0.8]])
    now, weights = first[[2, 0, 1]] + 0.05, np.array([0.5, 0.2, 0.3])
    fresh = FitState(None)
    assert [*model.sort_components(fresh, weights, now)] == [0, 2, 1]
    assert [*model.sort_components(model.keep_order(fresh, first), weights, now)] == [1, 2, 0]
    assert [*model.sort_components(model.keep_order(fresh, now), weights, now)] == [0, 1, 2]


def test_a_few_of_ten_starts_go_on_and_one_finds_all_components() -> None:
    rng = np.random.default_rng(1)
    truth = BernoulliMixtureParams(rng.beta(0.7, 0.7, (8, 16)), rng.dirichlet(np.full(8, 5.0)))
    model = BernoulliMixture(8, errors="none")
    X = model.sample(truth, 1000, rng)
    states = list[FitState]()
    rows = make_memory_rows(DenseData(X))
    state = fit_model(model, rows, SerialExecutor(), checkpoint=states.append)
    assert {len(own.starts) for own in states} == {10, 3, 0}
    assert state.diagnostics["starts"] == 3
    found, expected = (
        model.log_likelihood(params, pack_block(X), RowRandom(0)).nats.sum()
        for params in (state.params, truth)
    )
    assert found > expected
