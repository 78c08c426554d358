"""Predictions of labels and of values: of a row alone, and what their capabilities say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from pipeline.models.capabilities import CanImpute, CanPredict
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, offered
from tests.conformance.facts import Facts
from tests.conformance.rows import Floats, fitted, masked_probit, probit, with_column
from tests.support.strategies import DenseData


def test_predictions_are_well_formed(facts: Facts) -> None:
    offered(facts, CanPredict)
    for settings_ in ({}, *facts.variants):
        model, params = facts.make(**settings_), fitted(facts, **settings_).params
        categories = model.categories(params)
        found = model.predict(params, probit(facts).take_rows(slice(50)).pack(), RowRandom(0))
        assert_finite({"predicted": found})
        assert found.shape == (50, 1 if categories is None else len(categories))
        if categories is not None:
            assert (np.diff(categories) > 0).all()
            np.testing.assert_allclose(found.sum(axis=1), 1)
            assert found.min() >= 0


def test_predictions_do_not_depend_on_how_rows_are_cut(facts: Facts) -> None:
    offered(facts, CanPredict)
    model, params = facts.make(), fitted(facts).params
    data = with_column(facts, "never observed with another")

    def predicted(at: slice) -> bytes:
        block = data.take_rows(at).pack(first_row=at.start)
        return bytes(model.predict(params, block, RowRandom(0)).tobytes())

    cuts = [slice(0, 1), slice(1, 64), slice(64, 400)]
    assert predicted(slice(0, 400)) == b"".join(map(predicted, cuts))


def test_imputed_probabilities_are_those_of_the_log_likelihood(facts: Facts) -> None:
    offered(facts, CanImpute)
    for settings_ in ({}, *facts.variants):
        model, params = facts.make(**settings_), fitted(facts, **settings_).params
        for segment in (0, 2):
            for data in (probit(facts).take_rows(slice(30)), masked_probit(facts, 60, seed=2)):
                found = model.impute(params, data.pack(segment), RowRandom(0))
                expected = impute_by_enumeration(facts, model, params, data, segment)
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def impute_by_enumeration(
    facts: Facts, model: Any, params: Any, data: DenseData, segment: int
) -> Floats:
    """P(plane = 1 | others) by the log-likelihoods of the rows with each level of a feature."""
    planes, first = [], 0
    for feature in facts.features:
        own, steps = slice(first, first + feature.n_planes), np.arange(feature.n_planes)
        first += feature.n_planes
        nats = []
        for level in range(feature.n_planes + 1):
            X, mask = data.X.copy(), data.mask.copy()
            X[:, own], mask[:, own] = level > steps, 1
            rows = replace(data, X=X, observed=mask).pack(segment)
            nats.append(model.log_likelihood(params, rows, RowRandom(0)).nats)
        shares = scipy.special.softmax(nats, axis=0)
        planes += [shares[c:].sum(axis=0) for c in steps + 1]
    return np.stack(planes, axis=1)


def test_imputed_probabilities_do_not_depend_on_how_rows_are_cut(facts: Facts) -> None:
    offered(facts, CanImpute)
    model, params = facts.make(), fitted(facts).params
    data = masked_probit(facts, 200, seed=4)

    def imputed(at: slice) -> bytes:
        block = data.take_rows(at).pack(first_row=at.start)
        return bytes(model.impute(params, block, RowRandom(0)).tobytes())

    cuts = [slice(0, 1), slice(1, 64), slice(64, 200)]
    assert imputed(slice(0, 200)) == b"".join(map(imputed, cuts))
