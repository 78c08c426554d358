"""Draws keyed by seed, pass and original row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.numerics.row_random import draw_uniform, make_row_state
from pipeline.random import RowRandom

ROWS = np.arange(20_000)


@given(st.permutations(range(40)), st.integers(0, 40), st.integers(1, 5))
def test_a_row_draws_the_same_wherever_it_is_worked_on(
    order: list[int], cut: int, n_draws: int
) -> None:
    rng, rows = RowRandom(3, 1), np.array(order)
    whole = rng.uniform(rows, n_draws)
    parts = [rng.uniform(part, n_draws) for part in (rows[:cut], rows[cut:])]
    np.testing.assert_array_equal(np.vstack(parts), whole)
    np.testing.assert_array_equal(whole, rng.uniform(np.arange(40), 5)[rows, :n_draws])


def test_draws_have_the_shape_asked_for_and_lie_inside_the_unit_interval() -> None:
    assert RowRandom(0).uniform(np.empty(0, np.int64), 3).shape == (0, 3)
    assert RowRandom(0).normal(np.arange(4), 0).shape == (4, 0)
    draws = RowRandom(0).uniform(ROWS, 50)
    assert draws.shape == (len(ROWS), 50)
    assert 0 < draws.min() < 1e-5
    assert 1 - 1e-5 < draws.max() < 1


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_draws_are_uniform_and_normal(seed: int) -> None:
    rng = RowRandom(seed)
    assert stats.kstest(rng.uniform(ROWS, 2).ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(rng.normal(ROWS, 2).ravel(), "norm").pvalue > 1e-3


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (RowRandom(0, 0), RowRandom(1, 0)),
        (RowRandom(0, 0), RowRandom(0, 1)),
        (RowRandom(0, 1), RowRandom(1, 0)),
        (RowRandom(5, 7), RowRandom(7, 5)),
    ],
)
def test_another_seed_or_pass_draws_anew(a: RowRandom, b: RowRandom) -> None:
    assert abs(np.corrcoef(a.normal(ROWS, 1)[:, 0], b.normal(ROWS, 1)[:, 0])[0, 1]) < 0.03
    assert not np.isin(a.uniform(ROWS, 3), b.uniform(ROWS, 3)).any()


def test_neighbouring_rows_and_draws_are_uncorrelated() -> None:
    draws = RowRandom(0).normal(ROWS, 6)
    neighbours = np.hstack([draws[:-1], draws[1:]])
    off_diagonal = np.corrcoef(neighbours.T) - np.eye(12)
    assert np.abs(off_diagonal).max() < 0.03


def test_streams_share_no_numbers() -> None:
    rng = RowRandom(3, 1)
    streams = [rng, rng.stream("noise"), rng.stream("order"), rng.stream("noise").stream("order")]
    draws = [stream.uniform(ROWS[:1000], 4) for stream in streams]
    assert len(np.unique(draws)) == 4 * 4000
    np.testing.assert_array_equal(rng.stream("noise").uniform(ROWS[:1000], 4), draws[1])
    for k in range(1, 4):
        correlation = np.corrcoef(draws[0].ravel(), draws[k].ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(4000)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 2**50), st.text())
def test_compiled_code_draws_the_same_numbers(
    seed: int, pass_index: int, row: int, name: str
) -> None:
    rng = RowRandom(seed, pass_index).stream(name)
    state = np.uint64(make_row_state(rng.key, row))
    found = [draw_uniform(state, draw) for draw in range(3)]
    assert found == rng.uniform(np.array([row]), 3)[0].tolist()
