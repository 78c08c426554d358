"""The mixture with covariates of rows, against a dense likelihood and its derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logit, logsumexp, softmax

import latentbits as lb
from pipeline.errors import FitError
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.structure import Structure
from pipeline.params import get_array, get_named_arrays
from tests.support.derivatives import compute_sandwich, differentiate, differentiate_twice
from tests.support.enumeration import impute_by_likelihood

Floats = NDArray[np.float64]
P = np.array([[0.2, 0.7, 0.4, 0.8, 0.15], [0.8, 0.25, 0.6, 0.1, 0.7]])


class Survey(NamedTuple):
    """Rows with missing values, and columns."""

    X: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    columns: dict[str, Any]

    @property
    def predictors(self) -> Floats:
        """1, age, and dummies of the parties against the first in the alphabet."""
        parties = [self.columns["party"] == name for name in ("green", "red")]
        return np.column_stack([np.ones(len(self.X)), self.columns["age"], *parties])

    def take_rows(self, at: Any) -> Survey:
        columns = {name: values[at] for name, values in self.columns.items()}
        return Survey(self.X[at], self.mask[at], columns)

    def fit(self, **more: Any) -> Any:
        values = np.where(self.mask == 1, self.X, np.nan)
        data = lb.from_numpy(values, keep=self.columns)
        settings = {"components": 2, "covariates": ["age", "party"], "tol": 1e-11}
        return lb.fit(data, "bernoulli-mixture", **{**settings, **more})


def draw_survey(n_rows: int = 800, seed: int = 1) -> Survey:
    rng = np.random.default_rng(seed)
    age = np.round(50 + 12 * rng.standard_normal(n_rows))
    party = rng.choice(3, n_rows, p=[0.4, 0.35, 0.25])
    odds = 0.05 * (age - 50) + np.array([-0.6, 0.1, 1.0])[party]
    classes = (rng.random(n_rows) < expit(odds)).astype(int)
    X = (rng.random((n_rows, 5)) < P[classes]).astype(np.uint8)
    columns = {
        "age": age,
        "party": np.array(["blue", "green", "red"], object)[party],
        "times": rng.integers(1, 4, n_rows),
        "survey": 0.2 + 2 * rng.random(n_rows),
        "unit": np.arange(n_rows) % 50,
    }
    return Survey(X, (rng.random(X.shape) < 0.9).astype(np.uint8), columns)


def score_rows(at: Floats, data: Survey) -> Floats:
    """Log-likelihood of each row at log-odds of p, then α and γ of the second component."""
    p = expit(at[:10]).reshape(2, 5)
    odds = np.column_stack([np.zeros(len(data.X)), data.predictors @ at[10:]])
    each = data.X[:, None] * np.log(p) + (1 - data.X[:, None]) * np.log1p(-p)
    joint = (data.mask[:, None] * each).sum(axis=2) + log_softmax(odds, axis=1)
    return np.asarray(logsumexp(joint, axis=1))


def free_parameters(params: Any) -> Floats:
    own = (params.regression.intercepts[1:], params.regression.coefficients[:, 1])
    return np.concatenate([logit(params.probabilities).ravel(), *own])


STEPS = np.array([*[1e-3] * 11, 1e-3 / 50, *[1e-3] * 2])
"""Steps of finite differences; a year of age counts for about 50 of another parameter."""


def check_errors(params: Any, covariance: Floats) -> None:
    p = params.probabilities
    deviations = np.sqrt(np.diag(covariance))
    expected = (p * (1 - p)) * deviations[:10].reshape(2, 5)
    np.testing.assert_allclose(params.errors.probabilities_error, expected, rtol=2e-3)
    np.testing.assert_allclose(params.regression.intercepts_error, [0, deviations[10]], rtol=2e-3)
    np.testing.assert_allclose(
        params.regression.coefficients_error[:, 1], deviations[11:], rtol=2e-3
    )
    assert (params.regression.coefficients_error[:, 0] == 0).all()


def test_estimates_and_errors_are_those_of_the_likelihood() -> None:
    data, s = draw_survey(), 0.4
    fitted = data.fit(smoothing=s)
    params, at = fitted.params, free_parameters(fitted.params)
    assert fitted.manifest["covariates"]["names"] == ("age", "party=green", "party=red")

    def log_posterior(place: Floats) -> float:
        p = expit(place[:10])
        odds = np.column_stack([np.zeros(len(data.X)), data.predictors @ place[10:]])
        prior = np.log(p).sum() + np.log1p(-p).sum()
        prior += log_softmax(odds, axis=1).sum(axis=1).mean()
        return float(score_rows(place, data).sum() + s * prior)

    np.testing.assert_allclose(STEPS * differentiate(log_posterior, at, STEPS), 0.0, atol=2e-5)
    covariance = np.linalg.inv(-differentiate_twice(log_posterior, at, STEPS))
    check_errors(params, covariance)
    fit = fitted.manifest["diagnostics"]["fit_statistics"]
    assert fit["log_likelihood"] == pytest.approx(score_rows(at, data).sum(), abs=1e-7)
    assert fit["n_parameters"] == 14
    odds = np.column_stack([np.zeros(len(data.X)), data.predictors @ at[10:]])
    weights = softmax(odds, axis=1)
    np.testing.assert_allclose(params.weights, weights.mean(axis=0), rtol=1e-9)

    def mean_weight(place: Floats) -> float:
        return float(expit(-data.predictors @ place[10:]).mean())

    gradient = differentiate(mean_weight, at, STEPS)
    error = np.sqrt(gradient @ covariance @ gradient)
    np.testing.assert_allclose(params.errors.weights_error, error, rtol=2e-3)


def test_errors_with_sampling_weights_are_those_of_the_sandwich() -> None:
    data = draw_survey(500)
    params = data.fit(weight="survey", weights="sampling", psu="unit", smoothing=1e-6).params
    weights = data.columns["survey"] / data.columns["survey"].mean()
    at, clusters = free_parameters(params), data.columns["unit"]
    covariance = compute_sandwich(lambda x: score_rows(x, data), at, weights, clusters, STEPS)
    check_errors(params, covariance)


def test_frequencies_are_repeated_rows() -> None:
    data = draw_survey(400)
    repeated = data.take_rows(np.repeat(np.arange(400), data.columns["times"]))
    by_pattern, by_row = data.fit(weight="times"), repeated.fit()
    for name in get_named_arrays(by_row.params):
        found, expected = (get_array(fitted.params, name) for fitted in (by_pattern, by_row))
        if expected is not None:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_covariate_of_groups_gives_the_shares_of_groups() -> None:
    data = draw_survey()
    regression = data.fit(covariates=["party"], smoothing=1e-6)
    grouped = data.fit(covariates=None, group="party", smoothing=1e-6)
    fits = [f.manifest["diagnostics"]["fit_statistics"] for f in (regression, grouped)]
    assert fits[0]["log_likelihood"] == pytest.approx(fits[1]["log_likelihood"], abs=1e-4)
    assert fits[0]["n_parameters"] == fits[1]["n_parameters"]
    params = regression.params
    for name, shares, errors in zip(
        grouped.segment_names,
        grouped.params.groups.group_class_weights,
        grouped.params.groups.group_class_weights_error,
        strict=True,
    ):
        odds = params.regression.intercepts.copy()
        if name != "blue":
            odds += params.regression.coefficients[["green", "red"].index(name)]
        np.testing.assert_allclose(softmax(odds), shares, atol=1e-4)
        if name == "blue":
            slope = shares.prod()
            np.testing.assert_allclose(
                slope * params.regression.intercepts_error[1], errors, rtol=1e-3
            )


def test_rows_have_the_class_weights_of_their_covariates() -> None:
    data = draw_survey()
    fitted = data.fit()
    p, odds = (
        fitted.params.probabilities,
        data.predictors[:, 1:] @ fitted.params.regression.coefficients,
    )
    each = data.X[:, None] * np.log(p) + (1 - data.X[:, None]) * np.log1p(-p)
    joint = (data.mask[:, None] * each).sum(axis=2)
    joint += log_softmax(fitted.params.regression.intercepts + odds, axis=1)
    values = np.where(data.mask == 1, data.X, np.nan)
    rows = lb.from_numpy(values, keep=data.columns)
    codes = lb.transform(fitted, rows)["mean"]
    np.testing.assert_allclose(codes, softmax(joint, axis=1), atol=1e-9)
    nats = lb.evaluate(fitted, rows)["log_likelihood"]
    assert nats == pytest.approx(logsumexp(joint, axis=1).mean(), abs=1e-9)


def test_held_out_rows_choose_the_number_of_components() -> None:
    fitted = draw_survey(2000).fit(components="auto", max_iter=60, tol=1e-6)
    n_components = len(fitted.params.weights)
    assert n_components > 1
    assert fitted.params.regression.coefficients.shape == (3, n_components)


def test_groups_and_covariates_exclude_each_other() -> None:
    with pytest.raises(FitError, match="takes either group or covariates"):
        draw_survey().fit(group="party", covariates=["age"])
    model = BernoulliMixture().with_structure(Structure())
    assert type(model) is BernoulliMixture


def test_missing_values_are_imputed_with_the_covariates_of_the_row() -> None:
    data = draw_survey(300)
    fitted = data.fit()
    at, is_missing = free_parameters(fitted.params), data.mask == 0
    values = np.where(is_missing, np.nan, data.X)
    codes = lb.transform(fitted, lb.from_numpy(values, keep=data.columns), impute="probabilities")
    shares = impute_by_likelihood(
        lambda X, mask: score_rows(at, data._replace(X=X, mask=mask)), data.X, data.mask
    )
    expected = np.where(is_missing, shares, data.X)
    np.testing.assert_allclose(codes["imputed_probabilities"], expected, rtol=1e-8)


@pytest.mark.parametrize(("value", "bit"), [(1e3, 0.0), (1e8, 1.0)])
def test_a_huge_covariate_leaves_coefficients_alone(value: float, bit: float) -> None:
    rng = np.random.default_rng(5)
    z = rng.standard_normal(600)
    probability = np.where(rng.random(600) < expit(1.5 * z), 0.8, 0.2)
    X = (rng.random((600, 6)) < probability[:, None]).astype(float)
    X[0], z[0] = bit, value
    table = pd.DataFrame(X, columns=list("abcdef")).assign(z=z)
    fits = [
        lb.fit(
            lb.from_dataframe(rows, keep=["z"]), "bernoulli-mixture", components=2, covariates=["z"]
        )
        for rows in (table, table[1:])
    ]
    fitted, expected = (fit.params.regression.coefficients for fit in fits)
    np.testing.assert_allclose(fitted, expected, rtol=0.01)
    assert any("row 1 (z is" in warning for warning in fits[0].warnings)
