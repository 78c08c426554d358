"""The latent-trait model with weights of rows, against R and against repeated rows."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.data.weights import WeightKind
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]

RNG = RowRandom(0)
TWO_PARAMETERS, RASCH = {"n_components": 1}, {"n_components": 1, "equal_slopes": "yes"}


def fit(data: DenseData, kind: WeightKind = "frequency", **settings: Any) -> FitState:
    model = LatentTrait(**{"tol": 1e-9, **settings})
    return fit_model(model, make_memory_rows(data, kind=kind), SerialExecutor())


def read_weighted_rows(name: str) -> DenseData:
    """Read 0/1 columns, and the weights in the last column; rows of weight 0 are left out."""
    with find_reference(f"data/{name}.csv").open() as file:
        values = np.array([*csv.reader(file)][1:], np.float64)
    values = values[values[:, -1] > 0]
    return DenseData(values[:, :-1].astype(np.uint8), weights=values[:, -1])


def read_mirt(name: str, column: str = "value") -> dict[str, Floats]:
    """Read values or standard errors by the name of the parameter, such as `d`."""
    with find_reference(f"01_weights/{name}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row[column] != "NA"]
    names = dict.fromkeys(row["name"] for row in rows)
    return {n: np.array([float(r[column]) for r in rows if r["name"] == n]) for n in names}


@cache
def read_lsat6() -> tuple[DenseData, DenseData]:
    """Read LSAT-6 as patterns with frequencies, and as 1,000 rows."""
    patterns = read_weighted_rows("lsat6_patterns")
    assert patterns.weights is not None
    rows = np.repeat(np.arange(len(patterns.X)), patterns.weights.astype(int))
    return patterns, replace(patterns.take_rows(rows), weights=None)


@pytest.mark.parametrize("errors", ["louis", "sandwich", "crossproduct"])
@pytest.mark.parametrize("settings", [TWO_PARAMETERS, RASCH])
def test_patterns_of_lsat6_have_every_number_of_the_rows(
    settings: dict[str, Any], errors: str
) -> None:
    by_pattern, by_row = (fit(data, errors=errors, **settings) for data in read_lsat6())
    assert len(by_pattern.history) == len(by_row.history)
    np.testing.assert_allclose(by_pattern.history, by_row.history, rtol=1e-12)
    for (name, (_, found)), (_, (_, expected)) in zip(
        get_named_arrays(by_pattern.params).items(),
        get_named_arrays(by_row.params).items(),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=name)
    found, expected = (state.diagnostics["fit_statistics"] for state in (by_pattern, by_row))
    assert {"m2", "rmsea", "aic", "bic", "s_x2_rows"} <= found.keys()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("name", "settings"), [("lsat6_2PL", TWO_PARAMETERS), ("lsat6_Rasch", RASCH)]
)
def test_frequencies_give_the_estimates_of_mirt(name: str, settings: dict[str, Any]) -> None:
    state = fit(read_lsat6()[0], **settings)
    values, errors = read_mirt(f"{name}_patterns"), read_mirt(f"{name}_patterns", "se")
    assert state.params.weights_error is not None
    assert state.params.offsets_error is not None
    if settings == RASCH:
        slopes = np.sqrt(values["COV_11"])
        slopes_error = errors["COV_11"] / (2 * slopes)
    else:
        slopes, slopes_error = values["a1"], errors["a1"]
    np.testing.assert_allclose(state.params.weights[:, 0] - slopes, 0, atol=5e-4)
    np.testing.assert_allclose(state.params.offsets, values["d"], atol=5e-4)
    np.testing.assert_allclose(state.params.weights_error[:, 0] / slopes_error, 1, atol=0.01)
    np.testing.assert_allclose(state.params.offsets_error, errors["d"], rtol=0.01)


@pytest.mark.parametrize(
    ("name", "settings", "log_likelihood"),
    [("2PL", TWO_PARAMETERS, -4411.20392), ("Rasch", RASCH, -4441.49554)],
)
def test_sampling_weights_give_the_estimates_of_mirt_and_sandwich_errors(
    name: str, settings: dict[str, Any], log_likelihood: float
) -> None:
    data = read_weighted_rows("verbal_aggression_weights")
    assert data.weights is not None
    state = fit(data, "sampling", **settings)
    values = read_mirt(f"verbal_aggression_{name}_weighted")
    errors = read_mirt(f"verbal_aggression_{name}_weighted_sandwich_se", "se_sandwich")
    assert state.history[-1] * data.weights.sum() == pytest.approx(log_likelihood, abs=1e-3)
    slopes = np.sqrt(values["COV_11"]) if settings == RASCH else values["a1"]
    np.testing.assert_allclose(state.params.weights[:, 0] - slopes, 0, atol=5e-4)
    np.testing.assert_allclose(state.params.offsets, values["d"], atol=5e-4)
    assert state.diagnostics["errors"] == "sandwich"
    assert state.params.offsets_error is not None
    np.testing.assert_allclose(state.params.offsets_error, errors["d"], rtol=0.01)
    if settings == TWO_PARAMETERS:
        assert state.params.weights_error is not None
        np.testing.assert_allclose(state.params.weights_error[:, 0], errors["a1"], rtol=0.01)
    statistics = state.diagnostics["fit_statistics"]
    assert not {"aic", "bic", "m2", "s_x2_rows"} & statistics.keys()
    assert {"aic_missing", "m2_missing", "s_x2_missing"} <= statistics.keys()


def test_sampling_weights_leave_out_errors_that_have_no_sandwich() -> None:
    data = read_weighted_rows("verbal_aggression_weights")
    state = fit(data, "sampling", n_components=4, tol=1e-3)
    assert state.params.weights_error is None
    assert any("sampling weights" in warning.text for warning in state.warnings)


def test_clusters_add_up_their_scores_before_they_are_squared() -> None:
    """The sandwich by finite differences of the log-likelihood of each cluster."""
    data = read_weighted_rows("verbal_aggression_weights")
    data = DenseData(data.X[:, :6].copy(), weights=data.weights)
    clusters = np.arange(len(data.X)) % 40
    state = fit(replace(data, clusters=clusters), "sampling", **TWO_PARAMETERS)
    assert data.weights is not None
    weights = data.weights / data.weights.mean()

    free = state.params.free_parameters

    def by_row(values: Floats) -> Floats:
        forms = values.reshape(free.shape)
        params = state.params.with_items(weights=forms[:, :-1].copy(), offsets=forms[:, -1].copy())
        return LatentTrait(n_components=1).log_likelihood(params, pack_block(data.X), RNG).nats

    at, step = free.ravel(), 1e-4
    moves = step * np.eye(len(at))
    scores = np.array([(by_row(at + m) - by_row(at - m)) / (2 * step) for m in moves]).T
    totals = np.array([(weights * scores.T)[:, clusters == c].sum(axis=1) for c in range(40)])

    def curvature(a: Floats, b: Floats) -> float:
        corners = by_row(at + a + b) - by_row(at + a - b) - by_row(at - a + b) + by_row(at - a - b)
        return float(weights @ corners) / (4 * (10 * step) ** 2)

    bread = np.array([[curvature(a, b) for a in 10 * moves] for b in 10 * moves])
    inverse = np.linalg.inv(-bread)
    covariance = inverse @ (40 / 39 * totals.T @ totals) @ inverse
    errors = np.sqrt(np.diag(covariance)).reshape(free.shape)
    assert state.params.weights_error is not None
    assert state.params.offsets_error is not None
    np.testing.assert_allclose(state.params.weights_error[:, 0], errors[:, 0], rtol=0.01)
    np.testing.assert_allclose(state.params.offsets_error, errors[:, 1], rtol=0.01)
    alone = fit(data, "sampling", **TWO_PARAMETERS).params.offsets_error
    assert np.abs(state.params.offsets_error / alone - 1).max() > 0.02


def test_clusters_of_one_row_each_are_rows() -> None:
    data = read_weighted_rows("verbal_aggression_weights")
    n = len(data.X)
    clustered = fit(replace(data, clusters=np.arange(n)), "sampling", **TWO_PARAMETERS).params
    alone = fit(data, "sampling", **TWO_PARAMETERS).params
    factor = np.sqrt(n / (n - 1))
    assert clustered.weights_error is not None
    assert alone.weights_error is not None
    np.testing.assert_allclose(clustered.weights_error, factor * alone.weights_error, rtol=1e-3)


def test_rounds_per_row_count_each_row_once() -> None:
    X = read_weighted_rows("verbal_aggression_weights").X
    settings = {"n_components": 4, "tol": 1e-3, "errors": "none"}
    weighted = fit(DenseData(X, weights=np.full(len(X), 3)), **settings)
    repeated = fit(DenseData(np.repeat(X, 3, axis=0)), **settings)
    assert weighted.diagnostics["rounds_per_row"] == repeated.diagnostics["rounds_per_row"] > 1
