"""Continuous items next to binary and ordinal ones: against SciPy, scikit-learn and laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.decomposition import FactorAnalysis

import latentbits as lb
from pipeline.data.blocks import pack_block
from pipeline.data.features import Feature, split_values
from pipeline.errors import FitError
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.numerics.logistic.categories.gaussian_items import MIN_DEVIATION, GaussianItems
from pipeline.random import RowRandom
from tests.pipeline.models.latent_trait.test_ordinal_patterns import (
    check_loadings,
    compute_hessian,
    standardize_slopes,
)
from tests.support.derivatives import differentiate_twice

Floats = NDArray[np.float64]
CONTINUOUS = ["income", "stress"]
GRID = np.linspace(-6.5, 6.5, 131)
LOG_PRIOR = -0.5 * GRID**2 - scipy.special.logsumexp(-0.5 * GRID**2)


def draw_survey(n_rows: int = 500, missing: float = 0.1, seed: int = 0) -> pd.DataFrame:
    """Draw rows whose items depend on one trait."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n_rows)
    mood = 1.2 * x + rng.logistic(size=n_rows)
    survey = pd.DataFrame(
        {
            "income": 50 + 10 * (0.8 * x + 0.6 * rng.standard_normal(n_rows)),
            "vote": (1.5 * x + 0.3 + rng.logistic(size=n_rows) > 0).astype(np.float64),
            "mood": (mood > -1).astype(np.float64) + (mood > 0.5) + (mood > 2),
            "stress": -3 + 2 * (-0.5 * x + 0.8 * rng.standard_normal(n_rows)),
        }
    ).astype(np.float32)
    return survey.mask(rng.random(survey.shape) < missing)


def make_data(survey: pd.DataFrame) -> Any:
    continuous = [name for name in survey.columns if name in CONTINUOUS or "y" in name]
    levels = {"mood": [0, 1, 2, 3]} if "mood" in survey else {}
    return lb.from_dataframe(survey, continuous=continuous, levels=levels)


def make_block(survey: pd.DataFrame) -> Any:
    features = [Feature("vote"), Feature("mood", ("0", "1", "2", "3"))]
    levels = survey[["vote", "mood"]].to_numpy(np.float64)
    mask = (~np.isnan(levels)).astype(np.uint8)
    planes, observed = split_values(np.nan_to_num(levels).astype(np.uint8), mask, features)
    numbers = np.ascontiguousarray(survey[CONTINUOUS].to_numpy(np.float32).T)
    return pack_block(planes, observed, numbers=numbers)


def fit(survey: pd.DataFrame, **settings: Any) -> Any:
    settings = {"components": 1, "tol": 1e-10, **settings}
    return lb.fit(make_data(survey), model="latent-trait", **settings)


def pack(params: LatentTraitParams) -> Floats:
    """Return the parameters of a fit to the survey as a vector."""
    assert params.level_offsets is not None
    assert params.deviations is not None
    return np.concatenate(
        [params.weights[:, 0], params.level_offsets, params.offsets[[0, 3]], params.deviations]
    )


def score_survey(theta: Floats, survey: pd.DataFrame, params: LatentTraitParams) -> Floats:
    """Return log p of each row by SciPy's densities on a fine grid."""
    assert params.means is not None
    assert params.scales is not None
    slopes, (vote, *mood), b, sigma = np.split(theta, [4, 8, 10])
    total = np.tile(LOG_PRIOR, (len(survey), 1))
    for place, (item, name) in enumerate(zip((0, 3), CONTINUOUS, strict=True)):
        scale = params.scales[place]
        mean = params.means[place] + scale * (slopes[item] * GRID + b[place])
        y = survey[name].to_numpy(np.float64)[:, None]
        total += np.nan_to_num(scipy.stats.norm.logpdf(y, mean, scale * sigma[place]))
    for item, offsets in ((1, [vote]), (2, mood)):
        curves = [expit(slopes[item] * GRID + d) for d in offsets]
        P = -np.diff([np.ones_like(GRID), *curves, np.zeros_like(GRID)], axis=0)
        level = survey.iloc[:, item].to_numpy(np.float64)
        own = np.log(P)[np.nan_to_num(level).astype(np.int64)]
        total += np.where(np.isnan(level)[:, None], 0.0, own)
    return np.asarray(scipy.special.logsumexp(total, axis=1))


@pytest.fixture(scope="module")
def survey() -> pd.DataFrame:
    return draw_survey()


@pytest.fixture(scope="module")
def fitted(survey: pd.DataFrame) -> Any:
    return fit(survey)


def test_fit_is_the_maximum_of_the_literal_likelihood(survey: pd.DataFrame, fitted: Any) -> None:
    params = fitted.params
    theta = pack(params)

    def sum_rows(theta: Floats) -> float:
        return float(score_survey(theta, survey, params).sum())

    found = fitted.manifest["diagnostics"]["fit_statistics"]
    assert_allclose(sum_rows(theta), found["log_likelihood"], rtol=1e-8)
    gradient = scipy.optimize.approx_fprime(theta, sum_rows, 1e-5)
    assert np.abs(gradient).max() < 0.05
    errors = np.sqrt(np.diag(np.linalg.inv(-differentiate_twice(sum_rows, theta))))
    own = np.concatenate(
        [
            params.weights_error[:, 0],
            params.level_offsets_error,
            params.offsets_error[[0, 3]],
            params.deviations_error,
        ]
    )
    assert_allclose(own, errors, rtol=5e-3)


def test_codes_and_likelihoods_of_rows(survey: pd.DataFrame, fitted: Any) -> None:
    rows = survey.iloc[:40]
    expected = score_survey(pack(fitted.params), rows, fitted.params)
    model, params, rng = fitted.model, fitted.params, RowRandom(0, 0)
    nats = model.log_likelihood(params, make_block(rows), rng).nats
    assert_allclose(nats, expected, atol=1e-6)
    codes = model.transform(params, make_block(rows), rng)
    single = model.transform(params, make_block(rows.iloc[7:8]), rng)
    assert_array_equal(codes["mean"][7:8], single["mean"])


def test_continuous_items_alone_are_factor_analysis() -> None:
    rng = np.random.default_rng(3)
    Y = rng.standard_normal((400, 2)) @ rng.normal(size=(2, 6)) + rng.standard_normal((400, 6))
    survey = pd.DataFrame(5 * Y + 3, columns=[f"y{j}" for j in range(6)]).astype(np.float32)
    fitted = fit(survey, components=2)
    params = fitted.params
    expected = FactorAnalysis(2, tol=1e-12, max_iter=5000).fit(survey.astype(np.float64))
    covariance = params.weights @ params.weights.T + np.diag(params.deviations**2)
    covariance *= np.outer(params.scales, params.scales)
    assert_allclose(covariance, expected.get_covariance(), atol=2e-3)
    log_likelihood = fitted.manifest["diagnostics"]["fit_statistics"]["log_likelihood"]
    assert_allclose(log_likelihood, expected.score(survey) * len(survey), rtol=1e-6)


def test_a_loading_pattern_makes_it_confirmatory_factor_analysis() -> None:
    """The likelihood has a closed form: the covariance of the items is Λ R Λᵀ + Ψ."""
    rng = np.random.default_rng(4)
    x = rng.multivariate_normal(np.zeros(2), [[1, 0.6], [0.6, 1]], 400)
    Y = np.repeat(x, 3, axis=1) + rng.standard_normal((400, 6))
    survey = pd.DataFrame(Y, columns=[f"y{j}" for j in range(6)]).astype(np.float32)
    pattern = pd.DataFrame(
        {"item": survey.columns, "A": ["a", "a", "1", 0, 0, 0], "B": [0, 0, 0, 1, 1, 1]}
    )
    fitted = lb.fit(make_data(survey), model="latent-trait", tol=1e-11, pattern=pattern.astype(str))
    params = fitted.params
    loads = params.weights != 0
    rows = (survey.to_numpy(np.float64) - params.means) / params.scales

    def stack(weights: Floats, offsets: Floats, deviations: Floats, covariance: Floats) -> Floats:
        return np.concatenate([weights[loads][1:], offsets, deviations, covariance[0, 1, :1]])

    def sum_rows(theta: Floats) -> float:
        slopes, offsets, deviations, (r,) = np.split(theta, [5, 11, 17])
        weights = np.zeros((6, 2))
        weights[loads] = np.insert(slopes, 0, slopes[0])
        covariance = weights @ np.array([[1, r], [r, 1]]) @ weights.T + np.diag(deviations**2)
        nats = scipy.stats.multivariate_normal(offsets, covariance).logpdf(rows).sum()
        return float(nats - len(rows) * np.log(params.scales).sum())

    theta = stack(params.weights, params.offsets, params.deviations, params.trait_covariance)
    found = fitted.manifest["diagnostics"]["fit_statistics"]
    assert found["n_parameters"] == len(theta)
    assert_allclose(sum_rows(theta), found["log_likelihood"], atol=1e-3)
    covariance = np.linalg.inv(-compute_hessian(sum_rows, theta))
    gradient = scipy.optimize.approx_fprime(theta, sum_rows, 1e-6)
    assert np.abs(covariance @ gradient).max() < 1e-3
    errors = stack(
        params.weights_error,
        params.offsets_error,
        params.deviations_error,
        params.trait_covariance_error,
    )
    assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=0.01)

    def standardize(theta: Floats) -> Floats:
        slopes, _, deviations, (r,) = np.split(theta, [5, 11, 17])
        weights = np.zeros((6, 2))
        weights[loads] = np.insert(slopes, 0, slopes[0])
        return standardize_slopes(weights, np.array([[1, r], [r, 1]]), deviations**2)

    check_loadings(params, standardize, theta, covariance)


def test_units_of_values_do_not_matter(survey: pd.DataFrame, fitted: Any) -> None:
    other = survey.assign(income=100 - 20 * survey["income"])
    params, own = fit(other).params, fitted.params
    assert_allclose(params.weights[1:], own.weights[1:], atol=1e-4)
    assert_allclose(params.weights[0], -own.weights[0], atol=1e-4)
    assert_allclose(params.deviations, own.deviations, atol=1e-4)


@pytest.mark.parametrize("kind", ["partial-credit", "nominal"])
def test_kinds_of_items(survey: pd.DataFrame, fitted: Any, kind: str) -> None:
    params = fit(survey, items=kind, tol=1e-7).params
    assert_allclose(params.weights[[0, 3]], fitted.params.weights[[0, 3]], atol=0.05)


def test_frequency_weights_are_equal_rows(survey: pd.DataFrame) -> None:
    count = np.random.default_rng(5).integers(1, 4, len(survey)).astype(np.float64)
    repeated = fit(survey.iloc[np.repeat(np.arange(len(survey)), count.astype(np.int64))])
    data = lb.from_dataframe(
        survey.assign(count=count),
        continuous=CONTINUOUS,
        levels={"mood": [0, 1, 2, 3]},
        keep=["count"],
    )
    weighted = lb.fit(
        data, model="latent-trait", components=1, tol=1e-10, weight="count", weights="frequency"
    )
    for name in ("weights", "level_offsets", "deviations", "deviations_error", "infit"):
        expected = getattr(repeated.params, name)
        assert_allclose(getattr(weighted.params, name), expected, atol=2e-4, err_msg=name)


def test_samples_have_the_moments_of_the_data(survey: pd.DataFrame, fitted: Any) -> None:
    rng = np.random.default_rng(1)
    bits, numbers = fitted.model.sample_numbers(fitted.params, 4000, rng)
    drawn = pd.DataFrame(
        {
            "income": numbers[:, 0],
            "vote": bits[:, 0],
            "mood": bits[:, 1:].sum(axis=1),
            "stress": numbers[:, 1],
        }
    )
    assert_allclose(drawn.mean(), survey.mean(), rtol=0.1)
    assert_allclose(drawn.corr(), survey.corr(), atol=0.12)


def test_items_that_the_trait_explains_completely() -> None:
    survey = draw_survey(300, missing=0.0)
    survey["stress"] = survey["income"] * 2
    fitted = fit(survey, tol=1e-7)
    assert (fitted.params.deviations >= MIN_DEVIATION).all()
    assert any("nearly completely" in warning for warning in fitted.manifest["warnings"])


def test_constant_values_are_refused(survey: pd.DataFrame) -> None:
    with pytest.raises(FitError, match=r"constant.*stress"):
        fit(survey.assign(stress=np.float32(2)))


def test_derivatives_of_rows_are_those_of_the_density() -> None:
    rng = np.random.default_rng(0)
    items = GaussianItems(
        rng.normal(size=(3, 2)), rng.normal(size=3), rng.uniform(0.5, 2, 3), np.ones(3)
    )
    y, x = rng.normal(size=(4, 3)), rng.normal(size=(4, 1, 2))

    def score(forms: Floats) -> Floats:
        own = items.with_forms(forms)
        log_p = scipy.stats.norm.logpdf(y, own.compute_means(x[:, 0]).T, own.deviations)
        return np.asarray(log_p.sum(axis=1))

    forms, step = items.to_forms(), 1e-6
    derivatives, _ = items.differentiate_rows(y, np.ones_like(y), x)
    expected = items.score_rows(y, np.ones_like(y), x[:, 0], np.zeros((4, 2, 2)))
    for place in np.ndindex(forms.shape):
        change = np.zeros_like(forms)
        change[place] = step
        numeric = (score(forms + change) - score(forms - change)) / (2 * step)
        form, column = place
        if form % 2 and column < 2:
            continue  # log σ does not depend on x
        factor = x[:, 0, column] if column < 2 else 1.0
        assert_allclose(derivatives[:, form, 0] * factor, numeric, atol=1e-6)
        assert_allclose(expected.reshape(4, *forms.shape)[:, form, column], numeric, atol=1e-6)
