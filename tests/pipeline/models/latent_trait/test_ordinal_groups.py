"""Groups of rows with items of several levels: against SciPy, and fits that must be equal."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.special import expit

import latentbits as lb
from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.loading_pattern import LoadingPattern
from pipeline.models.structure import Structure
from tests.pipeline.models.latent_trait.test_ordinal import use_shared_nodes
from tests.support.derivatives import differentiate_twice
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]
LEVELS = (2, 3, 4, 3)
NAMES = [f"item{k}" for k in range(len(LEVELS))]
GRID = np.linspace(-7, 7, 33)
LOG_PRIOR = -0.5 * GRID**2 - scipy.special.logsumexp(-0.5 * GRID**2)
GROUPS = ("East", "West")


def draw_answers(n_rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """Draw answers of two groups; the second is better, more variable, and likes item 2."""
    rng = np.random.default_rng(seed)
    group = np.arange(n_rows) % 2
    x = rng.standard_normal(n_rows) * np.array([1.0, 1.4])[group] + 0.6 * group
    answers: dict[str, Any] = {}
    for item, (name, k) in enumerate(zip(NAMES, LEVELS, strict=True)):
        shift = 0.7 * group * (item == 2)
        y = (0.8 + 0.3 * item) * x + shift + rng.logistic(size=n_rows)
        answers[name] = np.digitize(y, np.linspace(-1.2, 1.5, k - 1))
    answers = {
        name: pd.Categorical(values, range(k), ordered=True)
        for (name, values), k in zip(answers.items(), LEVELS, strict=True)
    }
    table = pd.DataFrame(answers).mask(rng.random((n_rows, len(LEVELS))) < 0.05)
    score = (x + rng.normal(size=n_rows) * (1 + 0.5 * group)).astype(np.float32)
    return table.assign(group=np.array(GROUPS, object)[group], score=score)


def fit(table: pd.DataFrame, **settings: Any) -> Any:
    table = table.drop(columns="score")
    data = lb.from_dataframe(table, keep=["group"] if "group" in table else [])
    own = {"components": 1, "tol": 1e-10, **settings}
    return lb.fit(data, model="latent-trait", **own)


def read_levels(table: pd.DataFrame) -> NDArray[np.int64]:
    return np.column_stack([table[name].cat.codes for name in NAMES]).astype(np.int64)


def score_rows(levels: NDArray[np.int64], slopes: Floats, offsets: Floats, x: Floats) -> Floats:
    """Return log p of each row by a fine grid over u, where the trait is `x`."""
    total = np.tile(LOG_PRIOR, (len(levels), 1))
    for item, (a, b) in enumerate(pairwise(np.cumsum([0, *(k - 1 for k in LEVELS)]))):
        curves = [expit(slopes[item] * x + d) for d in offsets[a:b]]
        P = -np.diff([np.ones_like(x), *curves, np.zeros_like(x)], axis=0)
        own = np.log(np.maximum(P, 1e-300))[levels[:, item]]
        total += np.where(levels[:, item, None] < 0, 0.0, own)
    return np.asarray(scipy.special.logsumexp(total, axis=1))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return draw_answers()


CASES: dict[str, dict[str, Any]] = {
    "scalar": {},
    "one free item": {"free": "item2"},
    "metric": {"invariance": "metric"},
    "prior": {"prior_precision": 0.2},
}


@pytest.mark.parametrize("case", CASES)
def test_fit_is_the_maximum_of_the_literal_likelihood(table: pd.DataFrame, case: str) -> None:
    settings = CASES[case]
    params = fit(table, group="group", **settings).params
    has_own_offsets = np.full(len(LEVELS), settings.get("invariance") == "metric")
    has_own_slopes = np.zeros(len(LEVELS), np.bool_)
    has_own_offsets[2] |= (is_free := "free" in settings)
    has_own_slopes[2] = is_free
    planes = np.repeat(np.arange(len(LEVELS)), np.array(LEVELS) - 1)
    own_offsets, has_mean = has_own_offsets[planes], not has_own_offsets.all()
    groups = [read_levels(table[table["group"] == name]) for name in GROUPS]
    patterns = [np.unique(levels, axis=0, return_counts=True) for levels in groups]

    def unpack(theta: Floats) -> tuple[list[Floats], list[Floats], list[Floats]]:
        parts = np.split(
            theta, np.cumsum([4, 8, int(has_own_slopes.sum()), int(own_offsets.sum())])
        )
        slopes, offsets, more_slopes, more_offsets, traits = parts
        other_slopes, other_offsets = slopes.copy(), offsets.copy()
        other_slopes[has_own_slopes], other_offsets[own_offsets] = more_slopes, more_offsets
        mean, log_sd = (traits[0], traits[1]) if has_mean else (0.0, traits[0])
        x = [GRID, mean + np.exp(log_sd) * GRID]
        return [slopes, other_slopes], [offsets, other_offsets], x

    def sum_rows(theta: Floats) -> float:
        parts = zip(patterns, zip(*unpack(theta), strict=True), strict=True)
        penalty = 0.5 * settings.get("prior_precision", 0.0) * float((theta[:4] ** 2).sum())
        return sum(float(n @ score_rows(levels, *own)) for (levels, n), own in parts) - penalty

    assert params.group_weights is not None
    assert params.group_level_offsets is not None
    assert params.trait_mean is not None
    assert params.trait_covariance is not None
    sd = float(np.sqrt(params.trait_covariance[1, 0, 0]))
    traits = [params.trait_mean[1, 0], np.log(sd)] if has_mean else [np.log(sd)]
    theta = np.concatenate(
        [
            params.group_weights[0, :, 0],
            params.group_level_offsets[0],
            params.group_weights[1, has_own_slopes, 0],
            params.group_level_offsets[1, own_offsets],
            traits,
        ]
    )
    gradient = scipy.optimize.approx_fprime(theta, sum_rows, 1e-5)
    assert np.abs(gradient).max() < 0.03
    errors = np.sqrt(np.diag(np.linalg.inv(-differentiate_twice(sum_rows, theta))))
    own_sd_error = params.trait_covariance_error[1, 0, 0] / (2 * sd**2)
    trait_errors = [params.trait_mean_error[1, 0], own_sd_error] if has_mean else [own_sd_error]
    own = np.concatenate(
        [
            params.group_weights_error[0, :, 0],
            params.group_level_offsets_error[0],
            params.group_weights_error[1, has_own_slopes, 0],
            params.group_level_offsets_error[1, own_offsets],
            trait_errors,
        ]
    )
    assert_allclose(own, errors, rtol=0.01)


@pytest.mark.parametrize("kind", ["graded", "nominal"])
def test_configural_fits_are_fits_of_single_groups(table: pd.DataFrame, kind: str) -> None:
    together = fit(table, group="group", invariance="configural", items=kind)
    params, total = together.params, 0.0
    for place, name in enumerate(GROUPS):
        single = fit(table[table["group"] == name].drop(columns="group"), items=kind)
        assert_allclose(params.group_weights[place], single.params.weights, atol=1e-4)
        assert_allclose(params.group_level_offsets[place], single.params.level_offsets, atol=1e-4)
        if kind == "nominal":
            own_weights = params.group_level_weights[place]
            assert_allclose(own_weights, single.params.level_weights, atol=1e-3)
        errors = params.group_level_offsets_error[place]
        assert_allclose(errors, single.params.level_offsets_error, rtol=1e-3)
        total += single.manifest["diagnostics"]["fit_statistics"]["log_likelihood"]
    found = together.manifest["diagnostics"]["fit_statistics"]
    assert_allclose(found["log_likelihood"], total, rtol=1e-8)
    assert found["n_parameters"] == (24 if kind == "graded" else 32)


@pytest.mark.parametrize(
    "settings",
    [
        {"n_components": 2, "tol": 1e-7},
        {"n_components": 2, "tol": 1e-7, "pattern": "10 10 10 10 1b 01 0b 01"},
        {"free": "i1"},
        {"equal_slopes": "yes"},
        {"invariance": "configural"},
    ],
    ids=str,
)
def test_binary_items_are_those_of_the_binary_model(settings: dict[str, Any]) -> None:
    entries = tuple(map(tuple, settings.get("pattern", "").split()))
    pattern = LoadingPattern(("A", "B"), entries) if entries else None
    own_settings = {name: value for name, value in settings.items() if name != "pattern"}
    rng = np.random.default_rng(2)
    n, p = 1200, 8
    group = np.arange(n) % 2
    x = rng.standard_normal((n, 2)) + 0.5 * group[:, None]
    slopes = np.array([[2.0] * 5 + [0.5] * 3, [-0.5] * 3 + [0.5, 0] + [2.0] * 3])
    logits = x @ slopes + rng.logistic(size=(n, p))
    rows = make_memory_rows(DenseData((logits > 0).astype(np.uint8), segments=group))
    features = tuple(Feature(f"i{k}") for k in range(p))
    structure = Structure(groups=GROUPS, features=features, pattern=pattern)
    model = LatentTrait(**{"n_components": 1, "tol": 1e-9, **own_settings})
    binary = fit_model(model.with_structure(structure), rows, SerialExecutor())
    own = fit_model(use_shared_nodes(model.with_structure(structure)), rows, SerialExecutor())
    for name in (
        *("group_weights", "group_offsets", "trait_mean", "trait_covariance"),
        *("group_weights_error", "group_offsets_error", "trait_mean_error"),
        "trait_covariance_error",
    ):
        values = getattr(own.params, name)
        assert_allclose(values, getattr(binary.params, name), atol=5e-3, err_msg=name)
    found, expected = (state.diagnostics["fit_statistics"] for state in (own, binary))
    assert found["n_parameters"] == expected["n_parameters"]
    assert_allclose(found["log_likelihood"], expected["log_likelihood"], rtol=1e-7)


def test_partial_credit_items_have_groups(table: pd.DataFrame) -> None:
    params = fit(table, group="group", items="partial-credit", tol=1e-8).params
    graded = fit(table, group="group", tol=1e-8).params
    assert_allclose(params.trait_mean[1], graded.trait_mean[1], atol=0.1)


def test_nominal_items_of_equal_groups_are_those_of_all_rows(table: pd.DataFrame) -> None:
    settings = {"items": "nominal", "tol": 1e-11}
    # The largest slope is of an item that is reversed; the sum of slopes is positive.
    largest = table["item1"].cat.reorder_categories([2, 1, 0])
    table = table.assign(item1=largest.cat.rename_categories([0, 1, 2]))
    copies = [table.assign(group=name) for name in GROUPS]
    both = fit(pd.concat(copies), group="group", **settings).params
    single = fit(table.drop(columns="group"), **settings).params
    assert_allclose(both.trait_mean, 0.0, atol=1e-4)
    assert_allclose(both.trait_covariance, 1.0, atol=1e-3)
    assert both.weights[1] < 0 < both.weights.sum()
    assert_allclose(both.level_weights, single.level_weights, atol=1e-3)
    np.testing.assert_array_equal(both.group_level_weights[1], both.level_weights)


def test_rating_scales_have_common_steps_in_all_groups(table: pd.DataFrame) -> None:
    settings = {"items": "rating-scale", "equal_slopes": "yes", "tol": 1e-8}
    scalar = fit(table, group="group", **settings).params
    assert_allclose(scalar.group_level_offsets[0], scalar.group_level_offsets[1])
    metric = fit(table, group="group", invariance="metric", **settings).params
    steps = metric.group_level_offsets[:, [1, 2, 6, 7]]
    assert_allclose(2 * steps[:, 0] - steps[:, 1], 2 * steps[:, 2] - steps[:, 3], atol=1e-5)


def test_continuous_items_have_groups(table: pd.DataFrame) -> None:
    data = lb.from_dataframe(table, keep=["group"], continuous=["score"])
    found = {}
    for invariance in ("scalar", "strict"):
        params = lb.fit(
            data, model="latent-trait", components=1, group="group", invariance=invariance
        ).params
        assert_allclose(params.group_weights[0], params.group_weights[1])
        found[invariance] = params.group_deviations[:, 0]
    assert found["strict"][0] == found["strict"][1]
    assert found["scalar"][1] > 1.2 * found["scalar"][0]


@pytest.mark.matrix
def test_executors_give_the_same_bytes(table: pd.DataFrame) -> None:
    data = lb.from_dataframe(table, keep=["group"], continuous=["score"])
    fits = [
        lb.fit(data, model="latent-trait", components=1, group="group", executor=executor).params
        for executor in (SerialExecutor(), ThreadsExecutor(3))
    ]
    for name in ("group_level_offsets", "trait_covariance", "group_level_offsets_error"):
        np.testing.assert_array_equal(getattr(fits[0], name), getattr(fits[1], name))


def test_rows_are_drawn_and_coded_by_group(table: pd.DataFrame) -> None:
    fitted = fit(table, group="group", free="item2")
    params: LatentTraitParams = fitted.params
    rng = np.random.default_rng(0)
    segments = np.repeat([0, 1], 3000)
    X = fitted.model.sample(params, 6000, rng, segments)
    shares = np.stack([X[segments == g].mean(axis=0) for g in (0, 1)])
    for place, name in enumerate(GROUPS):
        levels = pd.DataFrame(read_levels(table[table["group"] == name])).replace(-1, np.nan)
        expected = [levels[k].dropna().ge(c).mean() for k in range(4) for c in range(1, LEVELS[k])]
        assert_allclose(shares[place], expected, atol=0.06)


def test_items_that_are_constant_in_a_group_are_refused(table: pd.DataFrame) -> None:
    other = table.copy()
    other.loc[other["group"] == "West", "item1"] = 1
    with pytest.raises(FitError, match="'item1' is constant in the group 'West'"):
        fit(other, group="group", invariance="metric")


def test_levels_that_one_group_lacks_are_named(table: pd.DataFrame) -> None:
    """Their own offsets have no finite estimate; those that groups share have one."""
    lacking = table.copy()
    is_west = lacking["group"] == "West"
    lacking.loc[is_west & (lacking["item2"] == 3), "item2"] = 2
    text = "no row of the group 'West' has some levels"
    (warning,) = (w for w in fit(lacking, group="group", free="item2").warnings if text in w)
    assert warning.endswith("these levels count as improbable there: 'item2'")
    assert not any(text in w for w in fit(lacking, group="group").warnings)
