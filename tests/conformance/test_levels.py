"""Features with several levels, or numbers: what their names, units and directions mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.data.features import Feature, find_continuous, find_first_planes, sum_planes
from pipeline.errors import FitError
from pipeline.fitting.loop import FitState, fit_model
from pipeline.models.capabilities import CanReconstruct, CanSample, HasLogLikelihood
from pipeline.models.structure import Structure
from pipeline.models.support import check_features
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, assert_params_are_finite, offered, params_of
from tests.conformance.facts import KINDS, Facts
from tests.conformance.rows import (
    CENTER,
    SCALE,
    SERIAL,
    draw_from,
    draw_probit_values,
    fitted,
    in_chunks,
    make_data,
    probit,
    reverse,
)
from tests.support.strategies import make_memory_rows


def skip_if_binary(facts: Facts) -> None:
    """Skip a law of other features."""
    if facts.is_binary:
        pytest.skip("all features are binary")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "binary"])
def test_kinds_of_features_are_taken_or_refused_by_name(facts: Facts, kind: Any) -> None:
    features = replace(facts, n_levels=KINDS[kind]).features
    if kind in facts.model.support.features:
        check_features(facts.model, features)
        return
    reason = "have values that are numbers" if kind == "continuous" else "more than two levels"
    with pytest.raises(FitError, match=rf"'f1' and 1 more .*{reason}|'f1' and 2 more .*{reason}"):
        check_features(facts.make(), features)


def test_categories_are_taken_or_refused_by_name(facts: Facts) -> None:
    ordinal = replace(facts, n_levels=KINDS["ordinal"]).features
    features = [feature._replace(is_nominal=True) for feature in ordinal]
    if "nominal" in facts.model.support.features:
        check_features(facts.model, features)
        return
    with pytest.raises(
        FitError, match=r"'f1' and 2 more are nominal, without an order\. Leave them"
    ):
        check_features(facts.make(), features)


def test_names_and_order_of_levels_do_not_matter(facts: Facts) -> None:
    skip_if_binary(facts)
    # Curves of latent-trait have an order by default.
    is_nominal = facts.model.name != "latent-trait" and "nominal" in facts.model.support.features
    renamed = [
        Feature(f.name, tuple(f"{level}!" for level in f.levels), is_nominal)
        for f in facts.features
    ]
    model = facts.make().with_structure(Structure(features=tuple(renamed)))
    other = fit_model(model, in_chunks(facts, 2), SERIAL)
    for name, values in params_of(fitted(facts)).items():
        assert params_of(other)[name].tobytes() == values.tobytes(), name


def test_params_have_as_many_planes_and_levels_as_the_features(facts: Facts) -> None:
    skip_if_binary(facts)
    n_planes = int(find_first_planes(facts.features)[-1])
    n_levels = sum(len(feature.levels) for feature in facts.features)
    lengths = {"feature": facts.n_features, "plane": n_planes, "level": n_levels}
    for name, (dims, values) in get_named_arrays(fitted(facts).params).items():
        for dim, size in zip(dims, values.shape, strict=True):
            assert size == lengths.get(dim.removesuffix("_j"), size), name


def test_reversed_values_only_flip_signs(facts: Facts) -> None:
    """Every row has the same expected levels, counted from the other end, and minus its numbers."""
    skip_if_binary(facts)
    offered(facts, CanReconstruct)
    model, expected = facts.make(), []
    other_data = reverse(facts, probit(facts))
    other = fit_model(model, make_memory_rows(other_data, [facts.n_rows // 4] * 4), SERIAL)
    for data, params in ((probit(facts), fitted(facts).params), (other_data, other.params)):
        codes = model.transform(params, data.take_rows(slice(100)).pack(), RowRandom(9))["mean"]
        values = sum_planes(model.reconstruct(params, codes), facts.features)
        if continuous := find_continuous(facts.features):
            values[:, continuous] = (model.reconstruct_numbers(params, codes) - CENTER) / SCALE
        expected.append(values)
    highest = [feature.n_planes for feature in facts.features]
    np.testing.assert_allclose(highest - expected[1], expected[0], atol=5e-3)


def test_densities_of_numbers_integrate_to_probabilities(facts: Facts) -> None:
    """A continuous feature has any value: its density adds up to the chance of all others."""
    offered(facts, HasLogLikelihood)
    continuous = find_continuous(facts.features)
    if not continuous:
        pytest.skip("no feature is continuous")
    model, params = facts.make(), fitted(facts).params
    x = CENTER + SCALE * np.linspace(-8, 8, 801)
    values = np.repeat(draw_probit_values(facts)[0][:1], 1 + len(x), axis=0)
    values[1:, continuous[0]] = x
    seen = np.ones(values.shape, np.bool_)
    seen[0, continuous[0]] = False
    block = make_data(facts, values, seen).pack()
    densities = np.exp(model.log_likelihood(params, block, RowRandom(0)).nats)
    assert np.trapezoid(densities[1:], x) == pytest.approx(densities[0], rel=1e-5)


def test_probabilities_of_numbers_given_other_values_are_uniform(facts: Facts) -> None:
    """If rows are drawn from the model, and codes are computed without the number."""
    offered(facts, CanSample)
    continuous = find_continuous(facts.features)
    if not continuous:
        pytest.skip("no feature is continuous")
    model, params, n_rows = facts.make(), fitted(facts).params, 4000
    segments = np.ones(n_rows, np.int64)
    block = draw_from(facts, params, n_rows, 8, segments).pack(1)
    assert block.numbers is not None
    for k in range(len(continuous)):
        numbers = block.numbers.copy()
        numbers[k] = np.nan
        codes = model.transform(params, replace(block, numbers=numbers), RowRandom(0))
        found = model.number_probabilities(params, codes, block.numbers.T, segments)[:, k]
        edges = np.array([0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])
        expected = np.diff(edges)
        errors = np.sqrt(expected * (1 - expected) / n_rows)
        shares = np.histogram(found, edges)[0] / n_rows
        assert (np.abs(shares - expected) < 5 * errors).all(), shares


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_empty_level_is_bounded_and_reported(facts: Facts, level: int) -> None:
    feature = 2 if facts.features[2].kind == "ordinal" else 3
    if facts.features[feature].kind != "ordinal":
        pytest.skip("no feature has several levels")
    values, segments = draw_probit_values(facts)
    values, segments = values[:600].copy(), segments[:600]
    lower = np.minimum(values[:, feature], 1)
    values[:, feature] = lower + (lower >= level)
    data = make_data(facts, values, segments=segments)
    state: FitState = fit_model(facts.make(), make_memory_rows(data), SERIAL)
    assert_params_are_finite(state)
    block = data.take_rows(slice(40)).pack()
    assert_finite(facts.make().transform(state.params, block, RowRandom(0)))
    assert any(f"f{feature}" in warning.features for warning in state.warnings)
