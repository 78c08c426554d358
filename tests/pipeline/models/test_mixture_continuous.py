"""Latent classes of continuous, binary and ordinal features, against scikit-learn and SciPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sklearn.mixture import GaussianMixture

import latentbits as lb
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams
from pipeline.models.state import FitState
from pipeline.params import replace_arrays
from pipeline.random import RowRandom
from tests.support.derivatives import differentiate_twice
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_features, make_model

Floats = NDArray[np.float64]
Parties = tuple[Floats, NDArray[np.bool_], Any]
COUNTS = [0, 2, 3, 0, 2, 0]  # numbers of levels, 0 of continuous features
IS_CONTINUOUS = np.array(COUNTS) == 0
FEATURES = make_features(COUNTS)


def fit(X: Floats, **settings: Any) -> FitState:
    rows = make_memory_rows(make_data(X, COUNTS))
    return fit_model(make_model(BernoulliMixture, COUNTS, **settings), rows, SerialExecutor())


def draw(n_rows: int, seed: int = 0, missing: float = 0.0) -> tuple[Floats, NDArray[np.int64]]:
    """Draw rows of two kinds, and return them with the kinds."""
    rng = np.random.default_rng(seed)
    z = (rng.random(n_rows) < 0.4).astype(np.int64)
    X = rng.standard_normal((n_rows, len(COUNTS)))
    X[:, 0] = np.array([0.0, 3.0])[z] + np.array([1.0, 0.5])[z] * X[:, 0]
    X[:, 3] = np.array([50.0, 20.0])[z] + np.array([10.0, 12.0])[z] * X[:, 3]
    for i, k in ((1, 2), (2, 3), (4, 2)):
        X[:, i] = (rng.random((n_rows, k - 1)) < np.array([0.25, 0.7])[z, None]).sum(axis=1)
    X[rng.random(X.shape) < missing] = np.nan
    return X.astype(np.float32).astype(np.float64), z


def enumerate_kinds(params: BernoulliMixtureParams, X: Floats, log_weights: Floats) -> Floats:
    """Return log P(x, k) by SciPy, (n_rows, n_components)."""
    scores = np.tile(log_weights, (len(X), 1)) if log_weights.ndim == 1 else log_weights.copy()
    firsts = np.cumsum([0, *COUNTS])
    for i, (n_levels, x) in enumerate(zip(COUNTS, X.T, strict=True)):
        for k in range(scores.shape[1]):
            if n_levels:
                shares = params.level_probabilities[k, firsts[i] : firsts[i] + n_levels]
                own = np.log(shares[np.nan_to_num(x).astype(int)])
            else:
                place = int(IS_CONTINUOUS[:i].sum())
                own = scipy.stats.norm.logpdf(
                    x, params.gaussians.means[k, place], params.gaussians.deviations[k, place]
                )
            scores[:, k] += np.where(np.isnan(x), 0.0, own)
    return scores


def check_densities(params: BernoulliMixtureParams, X: Floats) -> None:
    scores = enumerate_kinds(params, X, np.log(params.weights))
    nats = scipy.special.logsumexp(scores, axis=1)
    block, rng = make_data(X, COUNTS).pack(), RowRandom(0)
    model = make_model(BernoulliMixture, COUNTS)
    assert_allclose(model.log_likelihood(params, block, rng).nats, nats, rtol=1e-11, atol=1e-12)
    codes = model.transform(params, block, rng)["mean"]
    assert_allclose(codes, np.exp(scores - nats[:, None]), atol=1e-11)


def test_densities_are_sums_over_kinds() -> None:
    X, z = draw(600, missing=0.1)
    X[5] = np.nan
    state = fit(X, n_components=2)
    check_densities(state.params, X)
    assert state.diagnostics["rows_without_values"] == 1
    assert_allclose(state.params.gaussians.means[:, 0], [0, 3], atol=0.3)
    assert_allclose(state.params.gaussians.deviations[:, 1], [10, 12], atol=2)
    assert_array_equal(state.params.n_levels, [1, 2, 3, 1, 2, 1])
    codes = BernoulliMixture().transform(state.params, make_data(X, COUNTS).pack(), RowRandom(0))[
        "mean"
    ]
    assert (codes.argmax(axis=1) == z).mean() > 0.95


def test_missing_values_of_all_kinds_are_imputed() -> None:
    X, _ = draw(300, missing=0.2)
    names = [feature.name for feature in FEATURES]
    levels = {feature.name: feature.levels for feature in FEATURES if feature.levels}
    continuous = [feature.name for feature in FEATURES if not feature.levels]
    table = pd.DataFrame(X, columns=names).astype(dict.fromkeys(levels, "Int64"))
    data = lb.from_dataframe(table, continuous=continuous, levels=levels)
    fitted = lb.fit(data, "bernoulli-mixture", components=2)
    params = fitted.params
    scores = enumerate_kinds(params, X, np.log(params.weights))
    shares = scipy.special.softmax(scores, axis=1)
    expected, firsts = X.copy(), np.cumsum([0, *COUNTS])
    for i, n_levels in enumerate(COUNTS):
        is_missing = np.isnan(X[:, i])
        if n_levels:
            own = params.level_probabilities[:, firsts[i] : firsts[i + 1]] @ np.arange(n_levels)
        else:
            own = params.gaussians.means[:, int(IS_CONTINUOUS[:i].sum())]
        expected[is_missing, i] = shares[is_missing] @ own
    codes = lb.transform(fitted, data, impute="expected-levels", reconstruct="expected-levels")
    assert_allclose(codes["imputed_expected_levels"], expected, rtol=1e-9)
    reconstructed = np.where(np.isnan(X), codes["expected_levels"], X)
    assert_allclose(reconstructed, expected, rtol=1e-9)
    with pytest.raises(FitError, match=r"'q0' is continuous, so it has no levels\. Choose impute="):
        lb.transform(fitted, data, impute="levels")


def test_a_large_mean_and_the_unit_do_not_matter() -> None:
    """Multiples of 1/16 are exact in 32 bits up to 2e6."""
    X, _ = draw(400)
    X[:, 0] = np.rint(16 * X[:, 0]) / 16
    near = fit(X, n_components=2, tol=1e-9).params
    X[:, 0] += 1e6
    X[:, 3] *= 2.0**-20
    far = fit(X, n_components=2, tol=1e-9).params
    assert_allclose(far.gaussians.means[:, 0] - 1e6, near.gaussians.means[:, 0], atol=1e-7)
    assert_allclose(
        far.gaussians.deviations * [1, 2.0**20, 1], near.gaussians.deviations, rtol=1e-7
    )
    assert_allclose(far.probabilities, near.probabilities, atol=1e-7)
    check_densities(far, X)


def test_standard_errors_are_those_of_the_curvature() -> None:
    """Second differences of the log-likelihood, with next to no prior."""
    X, _ = draw(300)
    params = fit(X, n_components=2, smoothing=1e-6, tol=1e-13, max_iter=5000).params

    def compute_nats(packed: Floats) -> float:
        means, deviations, continuation = np.split(packed[1:], [6, 12])
        q = scipy.special.expit(continuation.reshape(2, 4))
        levels = [[1 - q[:, 0], q[:, 0]], [1 - q[:, 1], q[:, 1] * (1 - q[:, 2]), q[:, 1] * q[:, 2]]]
        flat = [*levels[0], *levels[1], 1 - q[:, 3], q[:, 3]]
        arrays = {
            "means": means.reshape(2, 3),
            "deviations": deviations.reshape(2, 3),
            "level_probabilities": np.column_stack(flat),
        }
        own = replace_arrays(params, arrays)
        log_weights = scipy.special.log_softmax([packed[0], 0.0])
        return float(scipy.special.logsumexp(enumerate_kinds(own, X, log_weights), axis=1).sum())

    center = np.concatenate(
        [
            [np.log(params.weights[0] / params.weights[1])],
            params.gaussians.means.ravel(),
            params.gaussians.deviations.ravel(),
            scipy.special.logit(params.continuation).ravel(),
        ]
    )
    steps = 1e-3 * np.concatenate(
        [[1], np.tile(params.gaussians.deviations.ravel(), 2), np.ones(8)]
    )
    errors = np.sqrt(np.diag(np.linalg.inv(-differentiate_twice(compute_nats, center, steps))))
    assert_allclose(params.gaussians_error.means.ravel(), errors[1:7], rtol=1e-3)
    assert_allclose(params.gaussians_error.deviations.ravel(), errors[7:13], rtol=1e-3)
    assert params.errors.weights_error[0] == pytest.approx(
        errors[0] * params.weights.prod(), rel=1e-3
    )


def test_equal_values_of_a_kind_are_reported() -> None:
    X, z = draw(300)
    X[z == 1, 3] = 7.0
    state = fit(X, n_components=2, smoothing=1e-3)
    (warning,) = state.warnings
    assert "standard deviation" in warning.text
    assert warning.features == ("q3",)
    params = state.params
    bound = 0.01 * params.gaussians.overall_deviations[1]
    assert params.gaussians.deviations[:, 1].min() == pytest.approx(bound)
    assert params.gaussians.overall_deviations[1] == pytest.approx(X[:, 3].std())
    k = params.gaussians.deviations[:, 1].argmin()
    assert np.isnan(params.gaussians_error.deviations[k, 1])
    assert np.isfinite(params.gaussians_error.deviations).sum() == 5


def draw_two_clouds(seed: int, n_features: int) -> lb.Dataset:
    rng = np.random.default_rng(seed)
    centres = 2 * rng.integers(0, 2, 300)
    X = rng.standard_normal((300, n_features)) + centres[:, None]
    names = [f"x{j}" for j in range(n_features)]
    return lb.from_numpy(X, names, continuous=names)


def test_components_of_few_rows_close_together_are_named() -> None:
    settings = {"components": 4, "smoothing": 1e-3, "starts": 3}
    fitted = lb.fit(draw_two_clouds(4, 2), "bernoulli-mixture", **settings)
    (warning,) = (w for w in fitted.warnings if "few rows" in w)
    assert "class 4 with 13.6 rows" in warning
    assert "'x0'" in warning or "'x1'" in warning
    assert "smoothing" in warning


def test_deviations_that_the_smoothing_determines_are_named() -> None:
    X, z = draw(300)
    X[z == 1, 3] = 7.0
    state = fit(X, n_components=2, smoothing=0.1)
    ratios = state.params.gaussians.deviations / state.params.gaussians.overall_deviations
    assert 0.02 < ratios.min() < 0.06  # above the bound
    (warning,) = state.warnings
    assert "{smoothing}" in warning.text
    assert warning.features == ("q3",)


def test_starts_without_collapsed_components_are_preferred() -> None:
    fitted = lb.fit(draw_two_clouds(2, 5), "bernoulli-mixture", components=4, smoothing=0.01)
    rows = 300 * fitted.params.weights
    assert rows.min() > 15  # the highest objective has a component of 8 rows
    assert not any("few rows" in w for w in fitted.warnings)


@pytest.fixture(scope="module")
def two_parties() -> Parties:
    """Rows whose kinds depend on a party, the parties of rows, and a function that fits."""
    X, z = draw(500, missing=0.05)
    is_red = np.random.default_rng(3).random(500) < 0.2 + 0.6 * z
    party = np.where(is_red, "red", "blue").astype(object)
    names = [feature.name for feature in FEATURES]
    levels = {feature.name: feature.levels for feature in FEATURES if len(feature.levels) > 2}
    table = pd.DataFrame(X, columns=names).assign(party=party)
    for feature in FEATURES:
        if feature.levels:
            table[feature.name] = table[feature.name].astype("Int64")
    continuous = [feature.name for feature in FEATURES if not feature.levels]
    data = lb.from_dataframe(table, continuous=continuous, levels=levels, keep=["party"])
    settings = {"components": 2, "smoothing": 1e-6, "tol": 1e-12, "max_iter": 2000}
    return X, is_red, partial(lb.fit, data, "bernoulli-mixture", **settings)


def test_continuous_features_alone_have_a_gaussian_mixture() -> None:
    X, _ = draw(600)
    X = X[:, IS_CONTINUOUS]
    data = lb.from_numpy(X, ["a", "b", "c"], continuous=["a", "b", "c"])
    settings = {"components": 2, "smoothing": 1e-6, "tol": 1e-12, "max_iter": 2000}
    fitted = lb.fit(data, "bernoulli-mixture", **settings)
    params = fitted.params
    other = GaussianMixture(
        2,
        covariance_type="diag",
        tol=1e-12,
        max_iter=2000,
        reg_covar=0,
        weights_init=params.weights,
        means_init=params.gaussians.means,
        precisions_init=params.gaussians.deviations**-2.0,
    ).fit(X)
    assert_allclose(params.gaussians.means, other.means_, rtol=1e-4)
    assert_allclose(params.gaussians.deviations**2, other.covariances_, rtol=1e-4)
    assert_allclose(lb.transform(fitted, data)["mean"], other.predict_proba(X), atol=1e-4)
    assert fitted.manifest["objective"] == pytest.approx(other.score(X), abs=1e-6)
    assert np.isfinite(params.gaussians_error.means).all()


def test_groups_share_the_kinds(two_parties: Parties) -> None:
    X, is_red, fit_parties = two_parties
    fitted = fit_parties(group="party")
    params, names = fitted.params, fitted.manifest["segment_names"]
    groups = np.array([names.index("blue"), names.index("red")])[is_red.astype(int)]
    log_weights = np.log(params.groups.group_class_weights)[groups]
    nats = scipy.special.logsumexp(enumerate_kinds(params, X, log_weights), axis=1)
    found = fitted.manifest["diagnostics"]["fit_statistics"]["log_likelihood"]
    assert found == pytest.approx(nats.sum(), rel=1e-8)
    assert abs(np.diff(params.groups.group_class_weights[:, 0])[0]) > 0.3
    assert np.isfinite(params.gaussians_error.means).all()
