"""Latent classes of features with several levels, against poLCA and enumeration."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.data.features import Feature, name_planes, split_levels
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.params import get_array
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import DenseData, make_memory_rows

Levels = NDArray[np.uint8]
SERIAL = SerialExecutor()
RNG = RowRandom(0)


def make_features(counts: Sequence[int], names: str = "abcdefghijklmnop") -> tuple[Feature, ...]:
    return tuple(
        Feature(name, tuple(map(str, range(k)))) for name, k in zip(names, counts, strict=False)
    )


def fit_levels(
    X: Levels,
    features: Sequence[Feature],
    mask: Levels | None = None,
    structure: Structure | None = None,
    **settings: Any,
) -> FitState:
    structure = replace(structure or Structure(), features=tuple(features))
    model = BernoulliMixture(**settings).with_structure(structure)
    n_planes = [feature.n_planes for feature in features]
    observed = None if mask is None else np.repeat(mask, n_planes, axis=1)
    planes = split_levels(X, features)
    data = DenseData(planes if observed is None else planes * observed, observed)
    return fit_model(model, make_memory_rows(data), SERIAL)


def simulate(n_rows: int = 400, seed: int = 1) -> tuple[Levels, tuple[Feature, ...]]:
    """Draw two classes of rows with levels of different frequency."""
    rng = np.random.default_rng(seed)
    counts, is_second = [2, 3, 4, 3, 2], rng.random(n_rows) < 0.4
    columns = []
    for k in counts:
        shares = rng.dirichlet(np.full(k, 1.5), 2)
        draws = [rng.choice(k, n_rows, p=own) for own in shares]
        columns.append(np.where(is_second, *draws))
    return np.column_stack(columns).astype(np.uint8), make_features(counts)


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
    features = tuple(
        Feature(item, tuple(map(str, range(k + 1))))
        for item, k in zip(items, X.max(0), strict=True)
    )
    settings = {"n_components": n_classes, "smoothing": 1e-6, "tol": 1e-12, "starts": 20}
    states = [
        fit_levels(X, features, max_iter=5000, errors=errors, **settings)
        for errors in ("louis", "crossproduct")
    ]
    params = states[0].params
    order = np.argsort(-params.weights)
    firsts = np.cumsum([0, *(len(feature.levels) for feature in features)])
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
        model = BernoulliMixture().with_structure(Structure(features=features))
        found = model.log_likelihood(params, pack_block(split_levels(X, features)), RNG).nats.sum()
        assert found == pytest.approx(nats, abs=1e-3)


def test_the_likelihood_is_that_of_all_patterns() -> None:
    X, features = simulate()
    params = fit_levels(X, features, n_components=2, errors="none").params
    counts = [len(feature.levels) for feature in features]
    patterns = np.array([*product(*map(range, counts))], np.uint8)
    model = BernoulliMixture().with_structure(Structure(features=features))
    block = pack_block(split_levels(patterns, features))
    nats = model.log_likelihood(params, block, RNG).nats
    assert np.exp(nats).sum() == pytest.approx(1, abs=1e-12)
    starts = np.cumsum([0, *counts[:-1]])
    probabilities = params.level_probabilities[:, starts + patterns].prod(axis=2)
    np.testing.assert_allclose(np.exp(nats), params.weights @ probabilities, rtol=1e-11)
    posterior = model.transform(params, block, RNG)["mean"]
    joint = (params.weights[:, None] * probabilities).T
    np.testing.assert_allclose(posterior, joint / joint.sum(axis=1, keepdims=True), atol=1e-12)
    # A missing value is summed over.
    mask = np.ones_like(patterns)
    mask[:, 2] = 0
    n_planes = [feature.n_planes for feature in features]
    hidden = pack_block(split_levels(patterns, features), np.repeat(mask, n_planes, axis=1))
    same = (patterns[:, [0, 1, 3, 4]] == patterns[0, [0, 1, 3, 4]]).all(axis=1)
    expected = np.log(np.exp(nats[same]).sum())
    found = model.log_likelihood(params, hidden, RNG).nats[0]
    assert found == pytest.approx(expected, abs=1e-12)


def test_samples_and_reconstructions_have_the_shares_of_levels() -> None:
    X, features = simulate()
    params = fit_levels(X, features, n_components=2, errors="none").params
    model = BernoulliMixture().with_structure(Structure(features=features))
    draws = model.sample(params, 40_000, np.random.default_rng(0))
    np.testing.assert_array_equal(draws, split_levels(X_of(draws, features), features))
    expected = params.weights @ params.probabilities
    np.testing.assert_allclose(draws.mean(axis=0), expected, atol=0.012)
    np.testing.assert_allclose(model.reconstruct(params, np.eye(2)), params.probabilities)


def X_of(planes: Levels, features: Sequence[Feature]) -> Levels:
    firsts = np.cumsum([0, *(feature.n_planes for feature in features[:-1])])
    return np.add.reduceat(planes, firsts, axis=1, dtype=np.uint8)


def test_binary_levels_are_fitted_as_ever() -> None:
    X = simulate()[0][:, [0, 4, 0, 4]].copy()
    X[:, 2:] = X[::-1, 2:]
    plain = fit_model(BernoulliMixture(n_components=2), make_memory_rows(DenseData(X)), SERIAL)
    named = fit_levels(X, [Feature(n, ("no", "yes")) for n in "abcd"], n_components=2)
    np.testing.assert_array_equal(plain.params.probabilities, named.params.probabilities)
    assert named.params.n_levels is None


def test_names_and_the_direction_of_levels_do_not_matter() -> None:
    X, features = simulate()
    settings = {"n_components": 2, "tol": 1e-11, "starts": 1, "max_iter": 3000}
    params = fit_levels(X, features, **settings).params
    renamed = [Feature(f.name, tuple(f"level {v}" for v in f.levels)) for f in features]
    again = fit_levels(X, renamed, **settings).params
    np.testing.assert_array_equal(params.probabilities, again.probabilities)
    counts = np.array([len(feature.levels) for feature in features])
    reverse = fit_levels((counts - 1 - X).astype(np.uint8), features, **settings).params
    order = np.concatenate(
        [
            np.arange(end - 1, end - k - 1, -1)
            for end, k in zip(np.cumsum(counts), counts, strict=True)
        ]
    )
    for name in ("level_probabilities", "level_probabilities_error"):
        expected = get_array(params, name)
        found = get_array(reverse, name)[:, order]
        if not np.allclose(found, expected, rtol=1e-3):
            found = found[::-1]
        np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_merging_levels_is_fitting_merged_rows() -> None:
    X, features = simulate()
    merged = X.copy()
    merged[:, 2] = np.maximum(merged[:, 2], 1) - 1
    own = make_features([2, 3, 3, 3, 2])
    planes = split_levels(X, features)
    kept = [name != "c>=1" for name in name_planes(features)]
    np.testing.assert_array_equal(planes[:, kept], split_levels(merged, own))


def test_an_empty_level_stays_finite_and_is_reported() -> None:
    X, features = simulate()
    X[X[:, 2] == 1, 2] = 2
    state = fit_levels(X, features, n_components=2)
    assert np.isfinite(state.params.level_probabilities).all()
    assert (state.params.level_probabilities > 0).all()
    (warning,) = state.warnings
    assert warning.render(name_planes(features)) == (
        "no row has some levels of these features, so only the smoothing determines their "
        "probabilities: 'c'"
    )


def test_groups_share_the_levels() -> None:
    X, features = simulate(600)
    structure = Structure(("u", "v"), features)
    model = BernoulliMixture(n_components=2, tol=1e-10).with_structure(structure)
    segments = np.arange(600) % 2
    rows = make_memory_rows(DenseData(split_levels(X, features), segments=segments))
    state = fit_model(model, rows, SERIAL)
    assert state.params.groups.group_class_weights.shape == (2, 2)
    pooled = fit_levels(X, features, n_components=2, tol=1e-10).params
    assert state.params.errors.level_probabilities_error.shape == pooled.level_probabilities.shape
    np.testing.assert_allclose(
        np.sort(state.params.level_probabilities, axis=0),
        np.sort(pooled.level_probabilities, axis=0),
        atol=0.05,
    )
