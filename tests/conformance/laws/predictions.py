"""Predictions of labels: of a row alone, and what its capability says."""

from __future__ import annotations

import numpy as np

from pipeline.models.capabilities import CanPredict
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, offered
from tests.conformance.facts import Facts
from tests.conformance.rows import fitted, probit, with_column


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


__all__ = [name for name in globals() if name.startswith("test_")]
