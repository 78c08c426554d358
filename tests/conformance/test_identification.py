"""What the data cannot determine is said, by the names of the features that it concerns."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import FitError
from tests.conformance.facts import Facts
from tests.conformance.rows import draw_probit_values, make_data, outcome
from tests.support.designs import DESIGNS
from tests.support.strategies import DenseData

UNLINKED = "parts without a common row"
N_ROWS = 600


def lose_by_design(facts: Facts, seen: NDArray[np.bool_]) -> DenseData:
    """Return rows of a probit model without some values."""
    values, segments = draw_probit_values(facts)
    return make_data(facts, values[:N_ROWS], seen, segments[:N_ROWS])


def split_into_forms(facts: Facts) -> NDArray[np.bool_]:
    """Return which values are observed: every other row has the last two features, or others."""
    is_first = np.arange(N_ROWS)[:, None] % 2 == 0
    return np.asarray(is_first == (np.arange(facts.n_features) < facts.n_features - 2))


def test_features_that_no_row_links_are_named(facts: Facts) -> None:
    data = lose_by_design(facts, split_into_forms(facts))
    state = outcome(facts.make_brief(5), data, [200] * 3)
    if isinstance(state, FitError):  # refused, which names the features too
        assert state.message.features
        return
    own = [warning for warning in state.warnings if UNLINKED in warning.text]
    assert len(own) == bool(facts.model.unlinked_effect)
    outside = {4, 5, "f4", "f5"}
    assert all(set(w.features) <= outside and len(w.features) == 2 for w in own)


@pytest.mark.parametrize("design", ["two forms, 2 features link", "ring of 3 forms"])
def test_linked_features_are_not_warned_of(facts: Facts, design: str) -> None:
    seen = DESIGNS[design](N_ROWS, facts.n_features, np.random.default_rng(0))
    state = outcome(facts.make_brief(2), lose_by_design(facts, seen), [200] * 3)
    assert isinstance(state, FitError) or not any(UNLINKED in w.text for w in state.warnings)
