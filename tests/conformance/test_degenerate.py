"""Degenerate columns are refused by name, or fitted with finite numbers."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import FitError
from pipeline.fitting.loop import FitState
from pipeline.models.capabilities import CanSample
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, assert_params_are_finite, assert_well_formed
from tests.conformance.facts import Facts
from tests.conformance.rows import draw_from, is_reported, outcome, with_column

DEGENERATE = [
    *("zeros", "ones", "a single one", "duplicated", "complementary"),
    *("never observed", "observed once", "never observed with another"),
    "constant where another is observed",
]
WITHOUT_INFORMATION = ("zeros", "ones", "observed once", "never observed")
FEW = ("a single one", "duplicated", "never observed with another")
MORE = ("zeros", "constant where another is observed")


def check_degenerate(facts: Facts, model: Any, kind: str) -> FitState | None:
    """Fit; None where that is refused for column 2, else everything must be finite."""
    data = with_column(facts, kind)
    state = outcome(model, data, [200] * 2)
    if isinstance(state, FitError):
        assert is_reported(facts, 2, state.message.features)
        assert "2" in str(state)
        return None
    assert_params_are_finite(state)
    block = data.take_rows(slice(40)).pack()
    assert_finite(model.transform(state.params, block, RowRandom(0)))
    if isinstance(model, CanSample):
        assert_well_formed(facts, draw_from(facts, state.params, 50, seed=0))
    return state


@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_columns_are_refused_by_name_or_fitted(facts: Facts, kind: str) -> None:
    """A column without information is warned of if it is fitted, by settings that accept it."""
    for settings_ in ({}, facts.tolerant) if facts.tolerant else ({},):
        state = check_degenerate(facts, facts.make_brief(100, **settings_), kind)
        if kind in WITHOUT_INFORMATION and state is not None:
            assert any(is_reported(facts, 2, notice.features) for notice in state.warnings)
        if kind == "zeros" and facts.tolerant:
            assert (state is None) == (not settings_)


@pytest.mark.parametrize(
    "kind",
    [*FEW, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE)],
)
def test_they_are_with_other_settings_too(facts: Facts, kind: str) -> None:
    """Every other setting is tried with a kind of columns, the others with the next."""
    first = (*FEW, *MORE).index(kind) % 2
    for settings_ in facts.variants[first::2] or facts.variants:
        if check_degenerate(facts, facts.make_brief(30, **settings_), kind) is None:
            tolerant = facts.make_brief(30, **{**facts.tolerant, **settings_})
            check_degenerate(facts, tolerant, kind)
