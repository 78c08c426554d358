"""Numbers of classes, compared in a table, against poLCA; the bootstrap test; stable numbering."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.weights import WeightKind
from pipeline.errors import FitError
from pipeline.executors.base import Executor, SerialExecutor, ThreadsExecutor
from pipeline.fitting.class_numbers import add_class_numbers
from pipeline.fitting.loop import (
    collect_first_statistics,
    fit_model,
    initialize_fit,
    start_fit,
)
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.models.trees.tree_mixture import TreeMixture
from tests.support.data import find_reference
from tests.support.strategies import DenseData, make_memory_rows

SERIAL = SerialExecutor()
P = np.array([[0.85] * 6, [0.85] * 3 + [0.15] * 3, [0.15] * 6])


def draw_rows(shares: tuple[float, ...], n_rows: int = 500, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(shares), n_rows, p=shares)
    return (rng.random((n_rows, P.shape[1])) < P[classes]).astype(np.uint8)


def compare(data: DenseData, executor: Executor = SERIAL, **settings: Any) -> FitState:
    model = BernoulliMixture(n_components=settings.pop("n_components", None), **settings)
    return fit_and_compare(model, data, executor)


def fit_and_compare(model: Any, data: DenseData, executor: Executor = SERIAL) -> FitState:
    rows = make_memory_rows(data)
    return add_class_numbers(model, fit_model(model, rows, executor), rows, executor, 0)


def read_table(state: FitState) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = state.diagnostics["class_numbers"]
    return table


def test_the_table_of_carcinoma_agrees_with_polca() -> None:
    with find_reference("data/carcinoma.csv").open() as file:
        X = np.array([*csv.reader(file)][1:], np.uint8) - 1
    with find_reference("10_latent_classes/summary.csv").open() as file:
        expected = {(row["case"], row["quantity"]): row["value"] for row in csv.DictReader(file)}
    state = compare(DenseData(X), max_components=4, smoothing=1e-6, tol=1e-9, starts=20)
    table = read_table(state)
    assert [line["is_chosen"] for line in table] == [False, False, True, False]
    names = {"llik": "log_likelihood", "bic": "bic", "npar": "n_parameters"}
    for line in table[1:]:
        case = f"carcinoma K={line['components']}"
        for name, own in names.items():
            assert line[own] == pytest.approx(float(expected[case, name]), abs=2e-4)
        entropy = expected[case, "relative entropy (1 - sum -p ln p / (N ln K))"]
        # With four classes, the optimum is flat.
        assert line["relative_entropy"] == pytest.approx(float(entropy), abs=1e-3)
        assert line["starts_at_best"] >= 2
    nats, n = table[2]["log_likelihood"], len(X)
    assert table[2]["adjusted_bic"] == pytest.approx(23 * np.log((n + 2) / 24) - 2 * nats)
    assert table[2]["caic"] == pytest.approx(table[2]["bic"] + 23)
    np.testing.assert_allclose(state.params.weights.min(), table[2]["smallest_class"])


def test_the_bootstrap_test_finds_two_classes_for_any_executor() -> None:
    X = draw_rows((0.6, 0.0, 0.4), 200, seed=3)
    observed = (np.random.default_rng(1).random(X.shape) < 0.9).astype(np.uint8)
    observed[:100, 0] = 0  # one of two forms
    data = DenseData(X, observed)
    serial, threads = (
        compare(data, executor, max_components=3, blrt=9)
        for executor in (SERIAL, ThreadsExecutor(2))
    )
    first, second, third = read_table(serial)
    assert read_table(threads) == read_table(serial)
    assert first["blrt_p"] is None
    assert second["blrt_p"] == 0.1  # less than each of nine draws
    assert third["blrt_p"] > 0.2
    assert second["is_chosen"]
    expected = 2 * (second["log_likelihood"] - first["log_likelihood"])
    assert second["blrt_statistic"] == pytest.approx(expected)


def test_frequencies_count_as_repeated_rows() -> None:
    X = draw_rows((0.6, 0.0, 0.4), 120)
    distinct, counts = np.unique(X, axis=0, return_counts=True)
    counts = np.append(counts, 0)  # a row that does not count
    distinct = np.vstack([distinct, 1 - distinct[:1]])
    weighted = DenseData(distinct, weights=counts)
    tables = [
        read_table(compare(data, max_components=2, blrt=3, tol=1e-9))
        for data in (weighted, DenseData(X))
    ]
    for name in ("log_likelihood", "bic", "smallest_class"):
        own = [[line[name] for line in table] for table in tables]
        np.testing.assert_allclose(own[0], own[1], rtol=1e-5)
    assert tables[0][1]["blrt_p"] == tables[1][1]["blrt_p"] == 0.25


def test_a_chosen_number_is_kept_and_groups_are_drawn() -> None:
    X = draw_rows((0.5, 0.1, 0.4), 150)
    model = BernoulliMixture(n_components=2, blrt=2, starts=2)
    model = model.with_structure(Structure(("u", "v")))
    state = fit_and_compare(model, DenseData(X, segments=np.arange(150) % 2))
    assert len(read_table(state)) == len(state.params.weights) == 2
    assert read_table(state)[1]["n_parameters"] == 2 * 6 + 2


def test_trees_are_compared_too() -> None:
    data = DenseData(draw_rows((0.5, 0.0, 0.5), 300))
    state = fit_and_compare(TreeMixture(n_components=None, max_components=2), data)
    nats = [line["log_likelihood"] for line in read_table(state)]
    assert nats[1] > nats[0]
    assert "blrt_p" not in read_table(state)[0]


REFUSALS: dict[str, tuple[dict[str, Any], WeightKind | None, str]] = {
    "no number": ({"blrt": 9}, None, "there is no largest number of classes"),
    "one": ({"blrt": 9, "max_components": 1}, None, "one class cannot be tested"),
    "too few": ({"max_components": 2, "n_components": 3}, None, "Raise max_components"),
    "rows": ({"max_components": 999}, None, "only 90 rows"),
    "survey": ({"max_components": 3}, "sampling", "BIC cannot choose"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_numbers_that_cannot_be_compared_are_refused(case: str) -> None:
    settings, kind, message = REFUSALS[case]
    data = DenseData(draw_rows((1.0, 0.0, 0.0), 90))
    rows = make_memory_rows(data)
    if kind:
        data = replace(data, weights=np.linspace(1, 2, 90))
        rows = make_memory_rows(data, None, kind)
    with pytest.raises(FitError, match=message):
        fit_model(BernoulliMixture(**{"n_components": None, **settings}), rows, SERIAL)


def test_a_warm_start_keeps_the_numbers_of_classes() -> None:
    model = BernoulliMixture(n_components=2)
    earlier = fit_model(model, make_memory_rows(DenseData(draw_rows((0.7, 0.0, 0.3)))), SERIAL)
    rows = make_memory_rows(DenseData(draw_rows((0.3, 0.0, 0.7), seed=1)))
    first = collect_first_statistics(model, rows, SERIAL, 0)
    state = start_fit(model, first, rows, SERIAL, 0, initial_params=earlier.params)
    again = fit_model(model, rows, SERIAL, state=state).params
    assert earlier.params.weights[0] > 0.6
    assert again.weights[0] < 0.4
    assert np.abs(again.probabilities - earlier.params.probabilities).max() < 0.2
    cold = fit_model(model, rows, SERIAL, state=initialize_fit(model, first, 0)).params
    assert cold.weights[0] > 0.6


def test_errors_of_contrasts_are_those_of_the_numerical_hessian() -> None:
    X = draw_rows((0.6, 0.0, 0.4), 400)[:, 1:5]
    state = compare(DenseData(X), n_components=2, smoothing=1e-6, tol=1e-12, max_iter=5000)
    params = state.params

    def log_likelihood(theta: NDArray[np.float64]) -> float:
        p = 1 / (1 + np.exp(-theta[:8].reshape(2, 4)))
        share = 1 / (1 + np.exp(-theta[8]))
        by_class = np.prod(np.where(X[:, None], p, 1 - p), axis=2)
        return float(np.log(by_class @ [share, 1 - share]).sum())

    p = params.probabilities
    theta = np.append(np.log(p / (1 - p)).ravel(), np.log(params.weights[0] / params.weights[1]))
    steps, size = 1e-3 * np.eye(9), 1e-3
    hessian = [
        [
            sum(s * t * log_likelihood(theta + s * a + t * b) for s in (1, -1) for t in (1, -1))
            for a in steps
        ]
        for b in steps
    ]
    covariance = np.linalg.inv(-np.array(hessian) / (4 * size**2))
    for i in range(4):
        gradient = np.zeros(9)
        slopes = p * (1 - p)
        gradient[i], gradient[4 + i] = slopes[0, i], -slopes[1, i]
        expected = np.sqrt(gradient @ covariance @ gradient)
        assert params.errors.contrasts_error[0, 1, i] == pytest.approx(expected, rel=2e-3)
        assert params.errors.contrasts_error[1, 1, i] == 0
