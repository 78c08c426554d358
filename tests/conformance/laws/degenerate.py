"""Degenerate columns are refused by name, or fitted with finite numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.fitting.loop import FitState
from pipeline.models.capabilities import CanSample
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, assert_params_are_finite
from tests.conformance.facts import Facts
from tests.conformance.rows import outcome, with_column
from tests.support.strategies import DenseData

DEGENERATE = [
    *("zeros", "ones", "a single one", "duplicated", "complementary"),
    *("never observed", "observed once", "never observed with another"),
    "constant where another is observed",
]
FEW = ("a single one", "duplicated", "never observed with another")


def check_degenerate(model: Any, data: DenseData) -> FitState | None:
    """Fit; None where that is refused for column 2, else everything must be finite."""
    state = outcome(model, data, [100] * 4)
    if isinstance(state, FitError):
        assert 2 in state.message.features
        assert "2" in str(state)
        return None
    assert_params_are_finite(state)
    block = pack_block(data.X[:40], None if data.observed is None else data.observed[:40])
    assert_finite(model.transform(state.params, block, RowRandom(0)))
    if isinstance(model, CanSample):
        assert set(np.unique(model.sample(state.params, 50, np.random.default_rng(0)))) <= {0, 1}
    return state


@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_columns_are_refused_by_name_or_fitted(facts: Facts, kind: str) -> None:
    for model in dict.fromkeys((facts.make(), facts.make_tolerant())):
        check_degenerate(model, with_column(kind))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k in FEW else pytest.mark.matrix) for k in DEGENERATE],
)
def test_they_are_with_other_settings_too(facts: Facts, kind: str) -> None:
    for settings_ in facts.variants:
        if check_degenerate(facts.make(**settings_), with_column(kind)) is None:
            check_degenerate(facts.make_tolerant(**settings_), with_column(kind))


@pytest.mark.parametrize("kind", ["zeros", "ones", "observed once", "never observed"])
def test_a_column_without_information_is_refused_or_warned_of(facts: Facts, kind: str) -> None:
    for model in dict.fromkeys((facts.make(), facts.make_tolerant())):
        state = check_degenerate(model, with_column(kind))
        assert state is None or any(2 in notice.features for notice in state.warnings)


def test_tolerant_settings_accept_a_constant_column(facts: Facts) -> None:
    if facts.tolerant:
        assert check_degenerate(facts.make(), with_column("zeros")) is None
        assert check_degenerate(facts.make_tolerant(), with_column("zeros")) is not None


__all__ = [name for name in globals() if name.startswith("test_")]
