"""Known items with several levels, or continuous: against SciPy, and laws of calibrations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

import latentbits as lb
from pipeline.errors import FitError
from tests.pipeline.models.latent_trait.test_ordinal_patterns import compute_hessian
from tests.pipeline.models.latent_trait.test_ordinal_regression import (
    GRID,
    GROUPS,
    LOG_PRIOR,
    NAMES,
    draw_answers,
)

Floats = NDArray[np.float64]
KNOWN_SLOPES, KNOWN_OFFSETS = np.array([1.1, 1.3]), np.array([0.7, -0.8])
SCORE_SLOPE, SCORE_OFFSET, SCORE_DEVIATION = 0.8, 0.1, 1.1
UNKNOWN = [None, None]


def make_bank(kind: str) -> dict[str, list[Any]]:
    """Return an item that is known, one whose slopes are known, and a known continuous one."""
    bank: dict[str, list[Any]] = {
        "feature": ["q0", "score", "q1"],
        "curves": [kind, None, kind],
        "slope": [KNOWN_SLOPES[0], SCORE_SLOPE, KNOWN_SLOPES[1]],
        "offset": [None, SCORE_OFFSET, None],
        "deviations": [None, SCORE_DEVIATION, None],
    }
    if kind == "nominal":
        bank["slope"] = [None, SCORE_SLOPE, None]
        for plane in (1, 2):
            own = (plane * KNOWN_SLOPES).tolist()
            bank[f"level_weights_{plane}_1"] = [own[0], None, own[1]]
    for plane in (1, 2):
        bank[f"level_offsets_{plane}"] = [KNOWN_OFFSETS[plane - 1], None, None]
    return bank


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return draw_answers()


def make_data(table: pd.DataFrame) -> Any:
    features = [*NAMES, "score"]
    keep = ["age", "woman", "group"]
    return lb.from_dataframe(table, features=features, keep=keep, continuous=["score"])


def fit(table: pd.DataFrame, **settings: Any) -> Any:
    return lb.fit(make_data(table), "latent-trait", **{"tol": 1e-11, **settings})


def score_rows(
    table: pd.DataFrame, kind: str, slopes: Floats, offsets: Floats, x: Floats
) -> Floats:
    """Return log p of rows with traits x, (n_rows, n_nodes); slopes and offsets are (4, 2)."""
    total = np.tile(LOG_PRIOR, (len(table), 1))
    for name, a, d in zip(NAMES, slopes, offsets, strict=True):
        level = table[name].cat.codes.to_numpy(np.int64)
        eta = a * x[..., None] + d
        if kind == "graded":
            above = np.pad(expit(eta), ((0, 0), (0, 0), (1, 1)), constant_values=(1, 0))
            above[..., 0], above[..., -1] = 1.0, 0.0
            log_p = np.log(above[..., :-1] - above[..., 1:])
        else:
            log_p = log_softmax(np.pad(eta, ((0, 0), (0, 0), (1, 0))), axis=2)
        own = np.take_along_axis(log_p, np.maximum(level, 0)[:, None, None], axis=2)[..., 0]
        total += np.where(level[:, None] < 0, 0.0, own)
    y = table["score"].to_numpy(np.float64)[:, None]
    total += scipy.stats.norm.logpdf(y, SCORE_SLOPE * x + SCORE_OFFSET, SCORE_DEVIATION)
    return np.asarray(scipy.special.logsumexp(total, axis=1))


CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("graded", {}),
    ("partial-credit", {"group": "group"}),
    ("nominal", {"group": "group", "covariates": ["age"]}),
    ("graded", {"group": "group", "traits": "mean"}),
    ("graded", {"covariates": ["age", "woman"]}),
    ("graded", {"covariates": ["age", "woman"], "traits": "standard"}),
    ("graded", {"prior_precision": 3.0}),
    ("nominal", {}),
)


@pytest.mark.few(3)
@pytest.mark.parametrize(("kind", "settings"), CASES, ids=str)
def test_fit_is_the_maximum_of_the_literal_likelihood(
    table: pd.DataFrame, kind: str, settings: dict[str, Any]
) -> None:
    fitted = fit(table, items=make_bank(kind), **settings)
    params, traits = fitted.params, settings.get("traits", "free")
    is_nominal, n_groups = kind == "nominal", 1 + ("group" in settings)
    group = np.where(table["group"] == GROUPS[1], n_groups - 1, 0)
    covariates = table[settings.get("covariates", [])].to_numpy(np.float64)
    scores = np.array([1.0, 1.0] if kind == "graded" else [1.0, 2.0])
    counts = [4 if is_nominal else 2, 6, n_groups, n_groups, covariates.shape[1]]
    counts[2] *= traits != "standard"
    counts[3] *= traits == "free"

    def sum_rows(theta: Floats) -> float:
        slopes, offsets, mean, sd, own = np.split(theta, np.cumsum(counts)[:-1])
        mean, sd = mean if counts[2] else np.zeros(n_groups), sd if counts[3] else np.ones(n_groups)
        of_free = slopes.reshape(2, 2) if is_nominal else np.outer(slopes, scores)
        of_all = np.concatenate([np.outer(KNOWN_SLOPES, scores), of_free])
        all_offsets = np.concatenate([KNOWN_OFFSETS, offsets]).reshape(4, 2)
        x = (mean[group] + covariates @ own)[:, None] + sd[group][:, None] * GRID
        penalty = 0.5 * settings.get("prior_precision", 0.0) * float(slopes @ slopes)
        return float(score_rows(table, kind, of_all, all_offsets, x).sum()) - penalty

    sd = np.sqrt(params.trait_covariance[:, 0, 0])
    parts = [
        params.level_weights[4:, 0] if is_nominal else params.weights[2:4, 0],
        params.level_offsets[2:],
        params.trait_mean[:, 0][: counts[2]],
        sd[: counts[3]],
        np.empty(0) if params.coefficients is None else params.coefficients[:, 0],
    ]
    errors = [
        params.level_weights_error[4:, 0] if is_nominal else params.weights_error[2:4, 0],
        params.level_offsets_error[2:],
        params.trait_mean_error[:, 0][: counts[2]],
        (params.trait_covariance_error[:, 0, 0] / (2 * sd))[: counts[3]],
        np.empty(0) if params.coefficients is None else params.coefficients_error[:, 0],
    ]
    theta = np.concatenate(parts)
    found = fitted.manifest["diagnostics"]["fit_statistics"]
    penalty = 0.5 * settings.get("prior_precision", 0.0) * float(parts[0] @ parts[0])
    assert_allclose(found["log_likelihood"], sum_rows(theta) + penalty, rtol=1e-6)
    assert found["n_parameters"] == len(theta)
    scale = np.ones(len(theta))
    if len(covariates.T):
        scale[-covariates.shape[1]] = 0.01  # age has large values
    zero = np.zeros(len(theta))
    gradient = scipy.optimize.approx_fprime(zero, lambda h: sum_rows(theta + scale * h), 1e-5)
    assert np.abs(gradient).max() < 0.05
    hessian = compute_hessian(lambda h: sum_rows(theta + scale * h), zero)
    expected = scale * np.sqrt(np.diag(np.linalg.inv(-hessian)))
    assert_allclose(np.concatenate(errors), expected, rtol=0.01)


@pytest.mark.parametrize("kind", ["graded", "partial-credit", "rating-scale", "nominal"])
def test_fits_with_only_known_items_are_the_calibration(table: pd.DataFrame, kind: str) -> None:
    """Rows have the same codes; mean and variance of the calibration's rows are 0 and 1."""
    old, new = table[:150], table[150:]
    settings: dict[str, Any] = {"equal_slopes": "yes"} if kind == "rating-scale" else {}
    settings |= {"components": 1, "tol": 1e-9}
    calibration = fit(old, items=kind, **settings)
    known = fit(new, items=calibration, traits="standard", **settings)
    assert known.model.items == kind
    assert known.manifest["diagnostics"]["fit_statistics"]["n_parameters"] == 0
    for name in ("mean", "variance"):
        codes = [lb.transform(fitted, make_data(new))[name] for fitted in (calibration, known)]
        assert_allclose(codes[1], codes[0], rtol=1e-5, atol=1e-6)
    nats = lb.evaluate(calibration, make_data(new))["log_likelihood"]
    found = known.manifest["diagnostics"]["fit_statistics"]
    assert_allclose(found["log_likelihood"], len(new) * nats, rtol=1e-6)
    for name in ("weights_error", "level_offsets_error", "deviations_error"):
        assert_array_equal(getattr(known.params, name), 0)

    again = fit(old, items=calibration, **settings)
    assert_allclose(again.params.trait_mean, 0.0, atol=2e-3)
    assert_allclose(again.params.trait_covariance, 1.0, atol=4e-3)


def test_the_scale_is_that_of_the_known_items(table: pd.DataFrame) -> None:
    """Items of a shifted and stretched trait give a fit with this mean and variance."""
    calibration = fit(table, components=1)
    params, n = calibration.params, len(NAMES)
    offsets = params.level_offsets.reshape(n, 2) - 0.5 * params.weights[:n] / 2
    bank = {"feature": NAMES, "slope": params.weights[:n, 0] / 2}
    bank |= {f"level_offsets_{plane + 1}": offsets[:, plane] for plane in (0, 1)}
    found = fit(table, items=bank)
    assert_allclose(found.params.trait_mean, 0.5, atol=2e-3)
    assert_allclose(found.params.trait_covariance, 4.0, rtol=2e-3)
    nats, expected = (
        fitted.manifest["diagnostics"]["fit_statistics"]["log_likelihood"]
        for fitted in (found, calibration)
    )
    assert_allclose(nats, expected, rtol=1e-7)


@pytest.mark.matrix
def test_two_traits_keep_the_axes_of_known_items(table: pd.DataFrame) -> None:
    """Traits in another order give the same fit in this order."""
    slopes = np.array([[1.1, 0.3], [0.2, 1.3]])
    bank: dict[str, Any] = {"feature": ["q0", "q1"], "level_offsets_1": [0.7, 0.8]}
    bank["level_offsets_2"] = [-0.8, -0.9]
    fits = []
    for order in ([0, 1], [1, 0]):
        bank |= {f"weights_{k + 1}": slopes[:, m] for k, m in enumerate(order)}
        fits.append(fit(table, items=bank, traits="standard", tol=1e-7).params)
        assert_array_equal(fits[-1].weights[:2], slopes[:, order])
    assert_allclose(fits[1].weights[:, ::-1], fits[0].weights, atol=2e-3)
    assert (fits[0].weights_error[2:] > 0).all()


def test_anchors_are_equal_in_all_groups(table: pd.DataFrame) -> None:
    settings = {"group": "group", "invariance": "configural", "tol": 1e-8}
    params = fit(table, items=make_bank("graded"), **settings).params
    assert_array_equal(params.group_level_offsets[:, :2], np.tile(KNOWN_OFFSETS, (2, 1)))
    assert_allclose(params.group_weights[:, :2, 0], np.tile(KNOWN_SLOPES, (2, 1)))
    assert (params.group_level_offsets[0, 2:] != params.group_level_offsets[1, 2:]).all()
    assert_allclose(params.group_deviations * params.scales, SCORE_DEVIATION)
    with pytest.raises(FitError, match="free names 'q0', whose slope and offset are known"):
        fit(table, items=make_bank("graded"), group="group", free="q0")


def test_thresholds_may_be_known_without_slopes(table: pd.DataFrame) -> None:
    bank = {"feature": ["q0"], "slope": [None], "level_offsets_1": [0.7], "level_offsets_2": [-0.8]}
    params = fit(table, items=bank, tol=1e-6).params
    assert_array_equal(params.level_offsets[:2], KNOWN_OFFSETS)
    assert_array_equal(params.level_offsets_error[:2], 0.0)
    assert params.weights_error[0, 0] > 0
    assert_array_equal(params.trait_covariance, np.ones((1, 1, 1)))


def test_a_known_item_may_be_constant(table: pd.DataFrame) -> None:
    other = table.copy()
    other["q0"] = other["q0"].where(other["q0"].isna(), 0)
    independent, contradicted = fit(other, items=make_bank("graded"), tol=1e-6).warnings
    assert "contradict the data" in contradicted
    assert "no better than independent features" in independent
    bank = {**make_bank("graded"), "level_offsets_1": [None] * 3, "level_offsets_2": [None] * 3}
    with pytest.raises(FitError, match="These features are constant: 'q0'"):
        fit(other, items=bank)


REFUSALS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"n_levels": [4, None, None]}, "q0 has 4 levels, but in the dataset it has 3 levels. Leave"),
    ({"n_levels": [1, None, None]}, "q0 is continuous, but in the dataset it has 3 levels"),
    ({"level_offsets_2": [None] * 3}, "q0 has 2 levels, but in the dataset it has 3 levels"),
    ({"level_offsets_1": [None] * 3}, "q0 has 3 levels, so it needs level_offsets_1 to level_"),
    ({"offset": [None, 0.1, 0.2]}, "q1 has 3 levels, but only one offset. Give level_offsets_1 to"),
    ({"level_offsets_1": [-1, None, None]}, "level_offsets_2, … of graded items must fall"),
    ({"level_offsets_2": [-2e3, None, None]}, "give level 3 of 'q0' the probability 0"),
    ({"level_weights_1_1": [1, None, None]}, "q0 has 3 levels, so it needs level_weights_1_1 to"),
    ({"curves": ["nominal", None, None]}, "q0 has no level_weights_1_1 to level_weights_2_1, but"),
    ({"curves": ["graded", None, "nominal"]}, "items of several kinds: graded, nominal"),
    (
        {"level_weights_1_1": [1, 0, 0], "level_weights_2_1": [2, 0, 0]},
        "1 to level_weights_2_1, but",
    ),
    ({"curves": ["gpcm", None, None]}, "column curves: items must be one of graded, nominal,"),
    ({"deviations": [None, 0, None]}, "deviations of score is 0. Give a number above 0"),
    ({"deviations": [None, 1e-3, None]}, "the known slope, offset or deviation of 'score' does"),
    ({"offset": [None, np.inf, None]}, "offset of score is inf. Give a number up to 10,000"),
    ({"feature": ["q0", "score", "other"]}, "has items that the dataset lacks: other. Leave them"),
)


@pytest.mark.parametrize(("columns", "message"), REFUSALS, ids=str)
def test_bad_items_are_refused(table: pd.DataFrame, columns: Any, message: str) -> None:
    with pytest.raises(FitError) as caught:
        fit(table, items={**make_bank("graded"), **columns})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
