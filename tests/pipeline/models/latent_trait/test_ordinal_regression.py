"""Covariates of rows with items of several levels: against SciPy and the binary model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.special import expit

import latentbits as lb
from pipeline.errors import FitError
from tests.support.derivatives import differentiate_twice

Floats = NDArray[np.float64]
GROUPS = ("East", "West")
NAMES = ["q0", "q1", "q2", "q3"]
GRID = np.linspace(-6, 6, 33)
LOG_PRIOR = -0.5 * GRID**2 - scipy.special.logsumexp(-0.5 * GRID**2)


def draw_answers(n_rows: int = 300, seed: int = 0) -> pd.DataFrame:
    """Draw answers of two groups to items with three levels, and a continuous one."""
    rng = np.random.default_rng(seed)
    group = np.arange(n_rows) % 2
    age, woman = rng.normal(40, 10, n_rows), rng.integers(0, 2, n_rows)
    x = 0.06 * (age - 40) - 0.5 * woman + 0.4 * group + rng.normal(size=n_rows)
    values = 1.2 * x[:, None] + rng.logistic(size=(n_rows, 4))
    levels = np.digitize(values, [-0.8, 0.9])
    table = pd.DataFrame(levels, columns=NAMES).astype(pd.CategoricalDtype(range(3), ordered=True))
    table = table.mask(rng.random(table.shape) < 0.05)
    score = (0.8 * x + rng.normal(size=n_rows)).astype(np.float32)
    return table.assign(score=score, age=age, woman=woman, group=np.array(GROUPS, object)[group])


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return draw_answers()


def fit(table: pd.DataFrame, **settings: Any) -> Any:
    features = [*NAMES, "score"]
    keep = ["age", "woman", "group"]
    data = lb.from_dataframe(table, features=features, keep=keep, continuous=["score"])
    own = {"components": 1, "tol": 1e-10, "covariates": ["age", "woman"], **settings}
    return lb.fit(data, model="latent-trait", **own)


def score_rows(
    table: pd.DataFrame, slopes: Floats, offsets: Floats, deviation: float, x: Floats, z: Floats
) -> Floats:
    """Return log p of rows with traits x, (n_rows, n_nodes), and standardized scores z."""
    total = np.tile(LOG_PRIOR, (len(table), 1))
    for item, name in enumerate(NAMES):
        level = table[name].cat.codes.to_numpy(np.int64)[:, None]
        one, two = (expit(slopes[item] * x + d) for d in offsets[2 * item : 2 * item + 2])
        P = np.where(level == 0, 1 - one, np.where(level == 1, one - two, two))
        total += np.where(level < 0, 0.0, np.log(np.where(level < 0, 1.0, P)))
    mean = slopes[4] * x + offsets[8]
    total += scipy.stats.norm.logpdf(z[:, None], mean, deviation)
    return np.asarray(scipy.special.logsumexp(total, axis=1))


@pytest.mark.parametrize("has_groups", [False, True])
def test_fit_is_the_maximum_of_the_literal_likelihood(
    table: pd.DataFrame, has_groups: bool
) -> None:
    settings = {"group": "group"} if has_groups else {}
    fitted = fit(table, **settings)
    params = fitted.params
    z = (table["score"].to_numpy(np.float64) - params.means[0]) / params.scales[0]
    covariates = table[["age", "woman"]].to_numpy(np.float64)
    is_west = (table["group"] == "West").to_numpy() & has_groups

    def sum_rows(theta: Floats) -> float:
        slopes, offsets, own, traits = np.split(theta, [5, 14, 16])
        mean, sd = traits[:2] if has_groups else (0.0, 1.0)
        x = (covariates @ own)[:, None] + GRID * np.where(is_west, sd, 1.0)[:, None]
        x = x + np.where(is_west, mean, 0.0)[:, None]
        deviations = traits[2:] if has_groups else traits
        total = 0.0
        for rows, deviation in zip((~is_west, is_west), deviations, strict=False):
            total += score_rows(table[rows], slopes, offsets, deviation, x[rows], z[rows]).sum()
        return float(total)

    traits = params.deviations
    errors = params.deviations_error
    if has_groups:
        sd = np.sqrt(params.trait_covariance[1, 0, 0])
        sd_error = params.trait_covariance_error[1, 0, 0] / (2 * sd)
        traits = [params.trait_mean[1, 0], sd, *params.group_deviations[:, 0]]
        errors = [params.trait_mean_error[1, 0], sd_error, *params.group_deviations_error[:, 0]]
    theta = np.concatenate(
        [
            params.weights[:, 0],
            params.level_offsets,
            params.offsets[4:],
            params.coefficients[:, 0],
            traits,
        ]
    )
    found = fitted.manifest["diagnostics"]["fit_statistics"]
    constant = -len(table) * np.log(params.scales[0])
    assert_allclose(found["log_likelihood"], sum_rows(theta) + constant, rtol=1e-7)
    assert found["n_parameters"] == len(theta)
    scale = np.ones(len(theta))
    scale[14] = 0.01  # age has large values
    gradient = scipy.optimize.approx_fprime(
        np.zeros(len(theta)), lambda change: sum_rows(theta + scale * change), 1e-5
    )
    assert np.abs(gradient).max() < 0.05
    hessian = differentiate_twice(sum_rows, theta, 1e-3 * scale)
    expected = np.sqrt(np.diag(np.linalg.inv(-hessian)))
    own = np.concatenate(
        [
            params.weights_error[:, 0],
            params.level_offsets_error,
            params.offsets_error[4:],
            params.coefficients_error[:, 0],
            errors,
        ]
    )
    assert_allclose(own, expected, rtol=0.01)


def test_binary_items_are_those_of_the_binary_model(table: pd.DataFrame) -> None:
    settings = {"components": 1, "tol": 1e-8, "covariates": ["age", "woman"]}
    found = []
    for n_levels in (2, 3):  # the third level has no rows
        kind = pd.CategoricalDtype(range(n_levels), ordered=True)
        cut = table[NAMES].apply(
            lambda item, kind=kind: (item.cat.codes > 0).astype(int).astype(kind)
        )
        rows = pd.concat([cut, table[["age", "woman"]]], axis=1)
        data = lb.from_dataframe(rows, keep=["age", "woman"])
        found.append(lb.fit(data, model="latent-trait", **settings).params)
    binary, own = found
    assert_allclose(own.coefficients, binary.coefficients, atol=1e-3)
    assert_allclose(own.coefficients_error, binary.coefficients_error, rtol=0.01)
    assert_allclose(own.weights, binary.weights, atol=3e-3)
    assert_allclose(own.population_mean, binary.population_mean, atol=3e-3)
    assert_allclose(own.population_covariance, binary.population_covariance, atol=3e-3)


def test_codes_use_the_covariates_of_rows(table: pd.DataFrame) -> None:
    fitted = fit(table, tol=1e-7)
    none = table.iloc[:2].copy()
    none[NAMES], none["score"] = np.nan, np.float32(np.nan)
    none[NAMES] = none[NAMES].astype(pd.CategoricalDtype(range(3), ordered=True))
    none["age"] = [30.0, 70.0]
    none["woman"] = 0
    features = [*NAMES, "score"]
    data = lb.from_dataframe(none, features=features, keep=["age", "woman"], continuous=["score"])
    codes = lb.transform(fitted, data)["mean"][:, 0]
    assert_allclose(np.diff(codes), 40 * fitted.params.coefficients[0, 0], rtol=1e-5)


@pytest.mark.matrix
def test_rows_far_from_the_mean_have_points_of_their_own(table: pd.DataFrame) -> None:
    age = (table["age"] - 40) / 10
    rng = np.random.default_rng(1)
    score = (12 * age + rng.normal(size=len(table))).astype(np.float32)
    fitted = fit(table.assign(score=score), prior_precision=0.1, tol=1e-4)
    assert np.isfinite(fitted.params.coefficients).all()
    assert fitted.objective is not None


def test_other_structures_are_refused(table: pd.DataFrame) -> None:
    with pytest.raises(FitError, match="cannot be combined with invariance"):
        fit(table, group="group", invariance="configural")
