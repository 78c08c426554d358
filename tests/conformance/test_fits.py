"""Fits: the same whatever the chunks and the executor, and never backwards."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import FitError
from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.learning.convergence import describe_ending, find_final_objective
from pipeline.models.capabilities import CanLearnLocally, CanWarmStart
from pipeline.params import get_named_arrays
from tests.conformance.checks import assert_same, offered, params_of
from tests.conformance.facts import Facts, widen
from tests.conformance.rows import (
    SERIAL,
    fitted,
    in_chunks,
    masked_probit,
    outcome,
    probit,
    small_tables,
    with_column,
)
from tests.support.strategies import (
    chunkings,
    make_memory_rows,
)


@settings(max_examples=settings.default.max_examples // 2)  # of two fits each
@given(draw=st.data())
def test_chunks_do_not_matter(facts: Facts, draw: st.DataObject) -> None:
    data = draw.draw(small_tables(facts))
    model, sizes = facts.make_tolerant(**facts.finite), draw.draw(chunkings(len(data.X)))
    whole, cut = outcome(model, data), outcome(model, data, sizes)
    if isinstance(whole, FitError) or isinstance(cut, FitError):
        assert str(whole) == str(cut)
    elif whole.iteration <= 1:
        assert_same(params_of(whole), params_of(cut), rtol=1e-9)
    elif not isinstance(model, CanLearnLocally):  # its steps depend on the rows that a task has
        assert cut.history[-1] == pytest.approx(whole.history[-1], abs=model.tol)


def test_threads_give_the_bytes_of_serial(facts: Facts) -> None:
    rows = in_chunks(facts, 10)
    model = facts.make_brief(5, n_components=None)
    before = pickle.dumps(model)
    serial, threads = (
        fit_model(model, rows, executor) for executor in (SERIAL, ThreadsExecutor(3))
    )
    assert pickle.dumps(model) == before  # as each pass sends it to worker processes
    assert threads.history == serial.history
    for key, values in params_of(serial).items():
        assert params_of(threads)[key].tobytes() == values.tobytes(), key


def test_a_warm_start_from_its_own_end_stays_there(facts: Facts) -> None:
    offered(facts, CanWarmStart)
    for settings_ in ({}, *facts.variants):
        done, rows = fitted(facts, **settings_), in_chunks(facts, 2)
        model = facts.make(**{**settings_, "n_components": done.diagnostics["n_components"]})
        begun = model.warm_start(
            initialize_fit(model, collect_first_statistics(model, rows, SERIAL, 0), 0), done.params
        )
        again = fit_model(model, rows, SERIAL, state=begun)
        criterion = model.get_convergence_criterion(begun)
        if criterion.keeps_best:  # it looks around, and returns if that is in vain
            reached = find_final_objective(criterion, done.history)
            assert again.history[0] >= reached - model.tol, settings_
        else:  # where the objective is flat, a fresh extrapolation still finds a little
            # Three cycles of the acceleration show that nothing is left to gain.
            assert again.iteration <= max(10, done.iteration // 5), settings_
            assert again.history[-1] >= done.history[-1] - model.tol, settings_
        assert get_named_arrays(again.params).keys() == get_named_arrays(done.params).keys()


def test_a_fit_that_has_not_converged_says_so(facts: Facts) -> None:
    """Whether it was cut short, could not improve, or ended in one of several stages."""
    rows = make_memory_rows(masked_probit(facts, 120, seed=2))
    for n_passes in (1, 3, 12):
        state = fit_model(facts.make_brief(n_passes), rows, SERIAL)
        words = [w for w in state.warnings if describe_ending(False) in w.text]
        assert bool(words) != state.converged, n_passes


def test_the_seed_alone_decides_the_start(facts: Facts) -> None:
    first = collect_first_statistics(facts.make(), make_memory_rows(probit(facts)), SERIAL, 0)
    starts = [initialize_fit(facts.make(), first, seed=5) for _ in "ab"]
    assert_same(params_of(starts[0]), params_of(starts[1]))
    assert_same(starts[0].auxiliary, starts[1].auxiliary)


def test_the_objective_never_falls(facts: Facts) -> None:
    facts = widen(facts, 12)
    whole = probit(facts).take_rows(slice(0, 1000))
    masked = masked_probit(facts, 1000, seed=5)
    first, even, odd = facts.rising[:1], facts.rising[1::2], facts.rising[2::2]
    for rising, tables in ((first, (whole, masked)), (even, (masked,)), (odd, (whole,))):
        for (settings_, slack), data in product(rising, tables):
            history = fit_model(
                facts.make_brief(100, **settings_), make_memory_rows(data), SERIAL
            ).history
            assert min(np.diff(history), default=0.0) >= -slack, settings_


def test_states_survive_storage(facts: Facts, tmp_path: Path) -> None:
    from flows.fitting.checkpoints import load_state, save_state

    accepted = with_column(facts, "ones" if facts.tolerant else "a single one")
    for state in (
        fitted(facts),
        fit_model(facts.make_brief(20, **facts.tolerant), make_memory_rows(accepted), SERIAL),
    ):
        folder = tmp_path / str(len(state.warnings))
        save_state(folder, state)
        loaded = load_state(facts.make(), folder)
        assert loaded is not None
        assert_same(params_of(loaded), params_of(state))
        for name in ("working", "auxiliary", "acceleration"):
            assert_same(getattr(loaded, name), getattr(state, name))
        bare = {"params": None, "working": {}, "auxiliary": {}, "acceleration": {}}
        assert replace(loaded, **bare) == replace(state, **bare)
