"""Latent classes of features with several levels, against poLCA and enumeration."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.enumeration import JointTable, check_rows, draw_incomplete_rows, list_states
from tests.support.strategies import make_memory_rows
from tests.support.values import make_data, make_features, make_model

Levels = NDArray[np.uint8]
SERIAL = SerialExecutor()
RNG = RowRandom(0)


COUNTS = [2, 3, 4, 3, 2]


def fit_levels(X: Levels, counts: Sequence[int], **settings: Any) -> FitState:
    model = make_model(BernoulliMixture, counts, **settings)
    return fit_model(model, make_memory_rows(make_data(X, counts)), SERIAL)


def simulate(n_rows: int = 400, seed: int = 1) -> Levels:
    """Draw two classes of rows with levels of different frequency."""
    rng = np.random.default_rng(seed)
    is_second = rng.random(n_rows) < 0.4
    columns = []
    for k in COUNTS:
        shares = rng.dirichlet(np.full(k, 1.5), 2)
        draws = [rng.choice(k, n_rows, p=own) for own in shares]
        columns.append(np.where(is_second, *draws))
    return np.column_stack(columns).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "n_classes", "nats"), [("gss82", 2, -2783.268), ("gss82", 3, None)]
)
def test_survey_answers_agree_with_polca(name: str, n_classes: int, nats: float | None) -> None:
    check_against_polca(name, n_classes, nats)


@pytest.mark.matrix
def test_answers_of_voters_agree_with_polca() -> None:
    check_against_polca("election", 3, None)


def check_against_polca(name: str, n_classes: int, nats: float | None) -> None:
    with find_reference(f"data/{name}.csv").open() as file:
        table = list(csv.reader(file))
    with find_reference(f"10_latent_classes/{name}_K{n_classes}_se_two_ways.csv").open() as file:
        expected = list(csv.DictReader(file))
    items = [*dict.fromkeys(row["variable"] for row in expected if row["variable"])]
    columns = [table[0].index(item) for item in items]
    rows = [[row[c] for c in columns] for row in table[1:]]
    X = np.array([row for row in rows if "NA" not in row], np.uint8) - 1
    counts = (X.max(axis=0) + 1).tolist()
    settings = {"n_components": n_classes, "smoothing": 1e-6, "tol": 1e-12, "starts": 20}
    states = [
        fit_levels(X, counts, max_iter=5000, errors=errors, **settings)
        for errors in ("louis", "crossproduct")
    ]
    params = states[0].params
    order = np.argsort(-params.weights)
    firsts = np.cumsum([0, *counts])
    kinds = {"se_poLCA": states[1].params}
    if (name, n_classes) == ("gss82", 2):
        # If a probability is 0, the reference's Hessian leaves out all levels of that variable.
        kinds["se_hessian"] = states[0].params
    for row in expected:
        k = int(order[int(row["class"]) - 1])
        if row["kind"] == "share":
            assert params.weights[k] == pytest.approx(float(row["value"]), abs=1e-4)
            for column, own in kinds.items():
                assert own.errors.weights_error[k] == pytest.approx(float(row[column]), rel=0.01)
            continue
        level = int(firsts[items.index(row["variable"])]) + int(row["category_or_term"]) - 1
        value = params.level_probabilities[k, level]
        assert value == pytest.approx(float(row["value"]), abs=1e-4)
        if 1e-3 < value < 1 - 1e-3:
            for column, own in kinds.items():
                error = own.errors.level_probabilities_error[k, level]
                assert error == pytest.approx(float(row[column]), rel=0.01), (row, column)
    if nats is not None:
        model = make_model(BernoulliMixture, counts)
        found = model.log_likelihood(params, make_data(X, counts).pack(), RNG).nats.sum()
        assert found == pytest.approx(nats, abs=1e-3)


def test_likelihoods_and_codes_are_those_of_enumeration() -> None:
    params = fit_levels(simulate(), COUNTS, n_components=2, errors="none").params
    rows = list_states(COUNTS)
    levels = np.cumsum([0, *COUNTS[:-1]]) + rows
    joint = params.weights[:, None] * params.level_probabilities[:, levels].prod(axis=2)
    model, (X, seen) = make_model(BernoulliMixture, COUNTS), draw_incomplete_rows(COUNTS, 60)
    block = make_data(X, COUNTS, seen).pack()
    nats, codes = model.log_likelihood(params, block, RNG).nats, model.transform(params, block, RNG)
    check_rows(JointTable(rows, joint.T), X, seen, nats, codes["mean"])


def test_groups_share_the_levels() -> None:
    X = simulate(600)
    structure = Structure(("u", "v"), make_features(COUNTS))
    model = BernoulliMixture(n_components=2, tol=1e-10).with_structure(structure)
    segments = np.arange(600) % 2
    rows = make_memory_rows(make_data(X, COUNTS, segments=segments))
    state = fit_model(model, rows, SERIAL)
    assert state.params.groups.group_class_weights.shape == (2, 2)
    pooled = fit_levels(X, COUNTS, n_components=2, tol=1e-10).params
    assert state.params.errors.level_probabilities_error.shape == pooled.level_probabilities.shape
    np.testing.assert_allclose(
        np.sort(state.params.level_probabilities, axis=0),
        np.sort(pooled.level_probabilities, axis=0),
        atol=0.05,
    )
