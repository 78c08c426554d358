"""Weights of rows: repeated rows, absent rows, and survey weights whose size does not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.weights import WeightKind
from pipeline.errors import FitError
from pipeline.fitting.loop import FitState, collect_first_statistics, fit_model
from pipeline.models.capabilities import CanLearnLocally, HasInformationPass
from pipeline.models.support import check_parts
from pipeline.random import RowRandom
from tests.conformance.checks import assert_same, params_of
from tests.conformance.facts import Facts
from tests.conformance.rows import SERIAL, fitted, masked_probit, probit
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows

_COUNTS = ("n_rows", "rows", "weights", "weight_unit")
_NUMBERS_OF_ROWS = (
    *_COUNTS,
    *(f"{part}-{name}" for part in ("counts", "sums") for name in _COUNTS),
    *("values-rounds", "values-empty_rows"),
)


def skip_unless_used(facts: Facts, kind: WeightKind) -> None:
    """Skip a law if the model cannot use such weights."""
    if kind not in facts.model.support.parts:
        pytest.skip(f"{facts.name} takes no {kind} weights")


def make_weighted_rows(facts: Facts, masked: bool) -> DenseData:
    """300 rows, some with missing values, and a whole number for each."""
    whole = probit(facts).take_rows(slice(300))
    data = masked_probit(facts, 300, seed=12) if masked else whole
    return replace(data, segments=None, weights=np.random.default_rng(12).integers(0, 6, 300))


def repeat_rows(data: DenseData) -> DenseData:
    """Repeat every row as many times as its weight says."""
    assert data.weights is not None
    repeated = data.take_rows(np.repeat(np.arange(len(data.X)), data.weights))
    return replace(repeated, weights=None)


def summarize_rows(facts: Facts, data: DenseData, state: FitState) -> list[dict[str, NDArray[Any]]]:
    """All statistics of the rows at a state, without those that count rows."""
    model, rng = facts.make(), RowRandom(0)
    (block,) = make_memory_blocks(data)
    parts = [model.summarize_first(block, rng)]
    if not isinstance(model, CanLearnLocally):
        parts.append(model.summarize(state.params, state.working, block, rng))
    if isinstance(model, HasInformationPass):
        working = model.begin_information_pass(state)
        if working is not None:
            parts.append(model.summarize_information(state.params, working, block, rng))
    return [
        {name: values for name, values in part.to_arrays().items() if name not in _NUMBERS_OF_ROWS}
        for part in parts
    ]


def list_states(facts: Facts) -> list[FitState]:
    return [fitted(facts, **settings_) for settings_ in ({}, *facts.variants)]


@pytest.mark.parametrize("masked", [False, True])
def test_integer_weights_equal_repeated_rows(facts: Facts, masked: bool) -> None:
    skip_unless_used(facts, "frequency")
    data = make_weighted_rows(facts, masked)
    for state in list_states(facts):
        for part, other in zip(
            summarize_rows(facts, data, state),
            summarize_rows(facts, repeat_rows(data), state),
            strict=True,
        ):
            rounded = {name for name in part if name in facts.single_precision}
            exact = [{n: a for n, a in x.items() if n not in rounded} for x in (part, other)]
            assert_same(*exact, rtol=1e-9)
            for name in rounded:
                scale = np.abs(other[name]).max()
                np.testing.assert_allclose(part[name], other[name], atol=1e-6 * scale)


@pytest.mark.parametrize("masked", [False, True])
def test_a_fit_of_weighted_rows_is_that_of_repeated_rows(facts: Facts, masked: bool) -> None:
    skip_unless_used(facts, "frequency")
    data = make_weighted_rows(facts, masked)
    model = facts.make()
    weighted, repeated = (
        fit_model(model, make_memory_rows(rows), SERIAL) for rows in (data, repeat_rows(data))
    )
    assert weighted.history == pytest.approx(repeated.history, rel=1e-9)
    for name, values in params_of(repeated).items():
        within = 1e-4 if name.endswith("_error") else 1e-6  # of inverses
        np.testing.assert_allclose(
            params_of(weighted)[name], values, rtol=within, atol=1e-6, err_msg=name
        )


def test_the_size_of_sampling_weights_does_not_matter(facts: Facts) -> None:
    skip_unless_used(facts, "sampling")
    data, model = make_weighted_rows(facts, masked=False), facts.make()
    weights = 0.3 + np.random.default_rng(1).random(len(data.X))
    once, twice = (
        fit_model(
            model,
            make_memory_rows(replace(data, weights=factor * weights), kind="sampling"),
            SERIAL,
        )
        for factor in (1.0, 2.0)
    )
    assert_same(params_of(once), params_of(twice))


def test_weights_that_the_model_cannot_use_are_refused(facts: Facts) -> None:
    model = facts.make()
    for kind in get_args(WeightKind):
        if kind in model.support.parts:
            check_parts(model, [kind])
            continue
        with pytest.raises(FitError, match=f"{model.name} cannot use weights"):
            check_parts(model, [kind])


def test_weights_of_1_change_nothing(facts: Facts) -> None:
    skip_unless_used(facts, "frequency")
    data, model = probit(facts), facts.make()
    plain, weighted = (
        collect_first_statistics(model, make_memory_rows(rows), SERIAL, 0).to_arrays()
        for rows in (data, replace(data, weights=np.ones(len(data.X))))
    )
    assert_same({name: weighted[name] for name in plain}, plain)
