"""Conditional probabilities against sums over all rows that there can be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import latentbits as lb
from pipeline.data.features import Feature, make_binary_features
from pipeline.errors import FitError
from pipeline.inference.query import QueryAnswer, answer_query, make_query
from pipeline.models.bernoulli_mixture.gaussians import Gaussians
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.bernoulli_mixture.params import (
    BernoulliMixtureParams,
    ClassRegression,
    GroupWeights,
)
from pipeline.models.capabilities import LogLikelihood
from pipeline.models.clipped_pca.model import ClippedPCA
from pipeline.models.noisy_or.estimation import NoisyOrParams
from pipeline.models.noisy_or.model import NoisyOr
from tests.support.enumerated_noisy_or import enumerated, random_network
from tests.support.enumeration import JointTable, list_states

N = 12
NAMES = [f"f{i}" for i in range(N)]
BINARY = make_binary_features(NAMES)


@pytest.fixture(scope="module")
def params() -> BernoulliMixtureParams:
    rng = np.random.default_rng(4)
    return BernoulliMixtureParams(rng.uniform(0.02, 0.98, (3, N)), np.array([0.5, 0.3, 0.2]))


def enumerate_joint(params: BernoulliMixtureParams, weights: np.ndarray) -> JointTable:
    """Return P(x, k) by the definition."""
    rows, P = list_states((2,) * N), params.probabilities[:, None, :]
    return JointTable(rows, (weights[:, None] * np.where(rows, P, 1 - P).prod(axis=2)).T)


def query(model: Any, params: Any, given: Any, of: Any, **more: Any) -> QueryAnswer:
    joint = more.pop("joint", False)
    features = more.pop("features", BINARY)
    return answer_query(model, params, make_query(features, given, of, joint=joint), **more)


def test_a_mixture_gives_the_sums_over_all_rows(params: BernoulliMixtureParams) -> None:
    table, known = enumerate_joint(params, params.weights), {2: 1, 7: 0}
    answer = query(BernoulliMixture(), params, {"f2": " Yes", "f7": False}, ["f11", "f0"])
    marginal = [table.probability({i: 1}) for i in (11, 0)]
    expected = [table.probability({i: 1}, known) for i in (11, 0)]
    assert answer["feature"].tolist() == ["f11", "f0"]
    assert answer["level"].tolist() == ["1", "1"]
    np.testing.assert_allclose(answer["probability"], expected, rtol=1e-12)
    np.testing.assert_allclose(answer["marginal"], marginal, rtol=1e-12)
    np.testing.assert_allclose(answer["lift"], np.divide(expected, marginal), rtol=1e-12)
    assert answer.log_evidence == pytest.approx(np.log(table.probability(known)), abs=1e-12)
    assert answer.error == 0


def test_joint_probabilities_are_those_of_all_combinations(params: BernoulliMixtureParams) -> None:
    table = enumerate_joint(params, params.weights)
    answer = query(BernoulliMixture(), params, {"f5": "1"}, ["f3", "f1", "f8"], joint=True)
    cells = list(product("01", repeat=3))
    columns = (answer[f"level_{name}"].tolist() for name in ("f3", "f1", "f8"))
    assert list(zip(*columns, strict=True)) == cells
    for n, cell in enumerate(cells):
        levels = dict(zip((3, 1, 8), map(int, cell), strict=True))
        assert answer["probability"][n] == pytest.approx(table.probability(levels, {5: 1}))
        assert answer["marginal"][n] == pytest.approx(table.probability(levels))
    assert "f3=0, f1=0, f8=1  " in repr(answer)


def test_segments_are_mixed_by_their_rows(params: BernoulliMixtureParams) -> None:
    weights = np.array([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]])
    rows = np.array([300, 100])
    mean = rows / 400 @ weights
    groups = GroupWeights(np.array([0, 1]), rows, weights)
    grouped = replace(params, groups=groups, weights=mean)
    for segment, own in ((0, weights[0]), (1, weights[1]), (None, mean)):
        table = enumerate_joint(params, own)
        answer = query(BernoulliMixture(), grouped, {"f2": 1}, ["f4"], segment=segment)
        expected = table.probability({4: 1}, {2: 1})
        np.testing.assert_allclose(answer["probability"], expected, rtol=1e-12)
        np.testing.assert_allclose(np.exp(answer.log_evidence), table.probability({2: 1}))


@pytest.mark.parametrize("groups", [(1, 1, 1), (2, 1)])
def test_noisy_or_gives_the_sums_over_its_causes(groups: tuple[int, ...]) -> None:
    f, leaks = random_network(np.random.default_rng(1), (5, 3))
    numbers = np.array([1, 1, 0]) if groups == (2, 1) else None
    params = NoisyOrParams.from_probabilities([own.T for own in f], leaks, exclusive_groups=numbers)
    rows = list_states((2,) * 5)
    table = JointTable(rows, np.exp(enumerated(f, leaks, rows, groups)[0])[:, None])
    features = make_binary_features("abcde")
    answer = query(NoisyOr(layers=(3,)), params, {"a": 1}, ["d"], features=features)
    np.testing.assert_allclose(answer["probability"], table.probability({3: 1}, {0: 1}))


@pytest.fixture(scope="module")
def survey() -> np.ndarray:
    """Answers of 400 rows to two binary items, and two with three levels."""
    rng = np.random.default_rng(0)
    wish = 1.5 * rng.normal(size=(400, 1)) + rng.logistic(size=(400, 4))
    return (wish > [0, 0.3, -1, -0.5]) + (wish > [9e9, 9e9, 1, 0.5]).astype(int)


def test_latent_traits_with_levels_are_integrated_out(survey: np.ndarray) -> None:
    levels = dict.fromkeys(("q2", "q3"), ("0", "1", "2"))
    names = ("q0", "q1", "q2", "q3")
    dataset = lb.from_numpy(survey, names, levels=levels)
    fitted = lb.fit(dataset, "latent-trait", components=1, max_iter=5)
    points, weights = np.polynomial.hermite_e.hermegauss(101)
    planes = fitted.model.reconstruct(fitted.params, points[:, None])
    q0, q3 = planes[:, 0], planes[:, 4:6]
    middle = planes[:, 2] - planes[:, 3]
    prior = weights / weights.sum()
    posterior = prior * middle * (1 - q0)
    answer = lb.query(fitted, {"q2": 1, "q0": 0}, "q3")
    at_levels = np.column_stack([1 - q3[:, 0], q3[:, 0] - q3[:, 1], q3[:, 1]])
    assert answer["level"].tolist() == ["0", "1", "2"]
    expected = posterior @ at_levels / posterior.sum()
    np.testing.assert_allclose(answer["probability"], expected, rtol=1e-6)
    np.testing.assert_allclose(answer["marginal"], prior @ at_levels, rtol=1e-6)
    assert answer["probability"].sum() == pytest.approx(1, abs=1e-14)
    assert answer.log_evidence == pytest.approx(np.log(posterior.sum()), abs=1e-6)


def test_measurements_are_evidence_by_their_density() -> None:
    features = (Feature("a"), Feature("age", ()), Feature("b", ("low", "mid", "high")))
    at_least = np.array([[0.2, 0.9, 0.5], [0.7, 0.3, 0.1]])  # P(a = 1), P(b ≥ mid), P(b = high)
    params = BernoulliMixtureParams(
        at_least,
        np.array([0.4, 0.6]),
        n_levels=np.array([2, 1, 3]),
        gaussians=Gaussians(
            np.array([[30.0], [50.0]]),
            np.array([[5.0], [10.0]]),
            np.array([42.0]),
            np.array([12.0]),
        ),
    )
    answer = query(BernoulliMixture(), params, {"age": "37.5"}, ["b", "a"], features=features)
    density = params.weights * norm.pdf(37.5, [30, 50], [5, 10])
    posterior = density / density.sum()
    high, mid = at_least[:, 2], at_least[:, 1] - at_least[:, 2]
    expected = [posterior @ own for own in (1 - at_least[:, 1], mid, high, at_least[:, 0])]
    assert answer["level"].tolist() == ["low", "mid", "high", "1"]
    np.testing.assert_allclose(answer["probability"], expected, rtol=1e-9)
    assert answer.log_evidence == pytest.approx(np.log(density.sum()))


def test_impossible_evidence_is_refused_but_impossible_targets_have_no_lift() -> None:
    P = np.array([[0.0, 0.5], [0.0, 0.1]])
    params = BernoulliMixtureParams(P, np.array([0.5, 0.5]))
    features = make_binary_features("ab")
    model = _LiteralMixture(2)
    answer = query(model, params, {"b": 1}, ["a"], features=features)
    assert answer["probability"].tolist() == answer["marginal"].tolist() == [0]
    assert np.isnan(answer["lift"]).all()
    with pytest.raises(FitError, match=r"^given: The evidence is impossible: its probability "):
        query(model, params, {"a": 1}, ["b"], features=features)


class _LiteralMixture(BernoulliMixture):
    """A mixture whose probabilities may be 0."""

    def log_likelihood(self, params: Any, block: Any, rng: Any) -> LogLikelihood:
        X, observed = block.unpack_values(), block.unpack_mask()
        P = np.where(X[:, None] == 1, params.probabilities, 1 - params.probabilities)
        nats = np.log(np.where(observed[:, None], P, 1).prod(axis=2) @ params.weights)
        return LogLikelihood(nats, np.zeros(len(nats)))


class _CompleteMixture(BernoulliMixture):
    """A mixture that takes missing values for zeros."""

    def log_likelihood(self, params: Any, block: Any, rng: Any) -> LogLikelihood:
        return super().log_likelihood(params, replace(block, observed_words=None), rng)


class _EstimatedMixture(BernoulliMixture):
    def log_likelihood(self, params: Any, block: Any, rng: Any) -> LogLikelihood:
        nats = super().log_likelihood(params, block, rng).nats
        return LogLikelihood(nats, np.full(len(nats), 0.2))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            _CompleteMixture(),
            r"levels sum to [\d.e-]+ instead of 1, so the likelihood does not integrate",
        ),
        (_EstimatedMixture(), r"only to ±0\.4 nats, but probabilities need ±0\.01"),
        (ClippedPCA(), r"clipped-pca has no likelihood, .* Fit one of: bernoulli-mixture, "),
    ],
)
def test_models_without_an_accurate_likelihood_are_refused(
    model: Any, message: str, params: BernoulliMixtureParams
) -> None:
    with pytest.raises(FitError, match=message):
        query(model, params, {"f2": 1}, ["f4"])


def test_covariates_are_refused(params: BernoulliMixtureParams) -> None:
    regression = ClassRegression(np.zeros(3), np.zeros((1, 3)), np.zeros(1))
    with pytest.raises(FitError, match=r"^The fit has covariates, so its probabilities differ"):
        query(BernoulliMixture(), replace(params, regression=regression), {}, ["f4"])


@pytest.mark.parametrize(
    ("given", "of", "message"),
    [
        ({"f1": 1}, [], r"^of names no feature\. "),
        ({"f1": 1}, ["fox"], r"^of: The fit has no feature 'fox'\. "),
        ({"f1O": 1}, ["f2"], r"^given: The fit has no feature 'f1O'\. Did you mean 'f1"),
        ({"f1": 2}, ["f2"], r"^given: 'f1' has no level '2'\. Choose one of: 0, 1, yes, .*no, "),
        ({"mood": None}, ["f2"], r"^given: the value of 'mood' is missing\. Leave it out\."),
        ({"mood": "bad"}, ["f2"], r"^given: 'mood' has no level 'bad'\. Choose one of: low, "),
        ({"f1": 1}, ["f2", "f1"], r"^'f1' is in both given and of\. "),
        ({"f1": 1}, ["age"], r"^of: 'age' is continuous, so it has no levels\. "),
        ({"age": "old"}, ["f1"], r"^given: 'age' is continuous, but its value is 'old'\. "),
        ({"age": 1e39}, ["f1"], r"^given: 'age' is continuous, but its value is 1e\+39\. "),
        ({}, [*NAMES, "mood"], r"^of: The features have 12,288 combinations"),
    ],
)
def test_queries_with_mistakes_are_refused(given: Any, of: list[str], message: str) -> None:
    features = (*BINARY, Feature("age", ()), Feature("mood", ("low", "mid", "high")))
    with pytest.raises(FitError, match=message):
        make_query(features, given, of, joint=True)
