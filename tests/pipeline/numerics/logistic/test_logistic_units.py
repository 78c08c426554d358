"""Probabilities and draws of logistic units in single precision."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from pipeline.numerics.logistic.logistic_units import (
    count_draw_words,
    fill_draws,
    fill_probabilities,
    mean_softplus,
    row_states,
)
from pipeline.random import RowRandom

KEY = RowRandom(3).stream("units").key


def test_probabilities_are_exact_to_single_precision() -> None:
    inputs = np.concatenate([np.linspace(-90, 90, 1001), [-1e30, 1e30, -np.inf, np.inf, 0.0]])
    given, out = inputs.astype(np.float32)[None], np.full((1, len(inputs) + 1), 7, np.float32)
    fill_probabilities(given, len(inputs), out)
    np.testing.assert_allclose(out[0, :-1], expit(given[0].astype(float)), rtol=1e-6, atol=1e-34)
    assert out[0, -1] == 7


@pytest.mark.parametrize("width", [2, 7, 64, 65])
def test_draws_are_those_of_keyed_words(width: int) -> None:
    rows = np.arange(40) * 1000
    inputs = np.random.default_rng(0).standard_normal((40, width)).astype(np.float32)
    out = np.full((40, width + 1), 7, np.float32)
    fill_draws(inputs, width, row_states(KEY, rows), 5, out)
    drawn = RowRandom(3).stream("units").uniform(rows, 5 + count_draw_words(width))[:, 5:]
    words = (drawn * 2.0**53).astype(np.uint64) << np.uint64(11)
    low, high = (words & np.uint64(2**32 - 1)) / 2.0**32, (words >> np.uint64(32)) / 2.0**32
    halves = np.stack([low, high], axis=2).reshape(40, -1)[:, :width]
    assert ((halves < expit(inputs.astype(float))) == out[:, :width]).mean() > 0.999
    assert (out[:, -1] == 7).all()


def test_draws_do_not_depend_on_the_rows_beside() -> None:
    rows = np.arange(9) + 100
    inputs = np.random.default_rng(1).standard_normal((9, 33)).astype(np.float32)
    whole, alone = np.empty_like(inputs), np.empty((1, 33), np.float32)
    fill_draws(inputs, 33, row_states(KEY, rows), 0, whole)
    for n in range(9):
        fill_draws(inputs[n : n + 1], 33, row_states(KEY, rows[n : n + 1]), 0, alone)
        np.testing.assert_array_equal(alone[0], whole[n])


def test_units_are_on_as_often_as_they_should_be() -> None:
    wanted = np.array([0.0, 1e-4, 0.1, 0.5, 0.9, 1.0])
    with np.errstate(divide="ignore"):
        inputs = np.tile(np.log(wanted) - np.log1p(-wanted), (400_000, 1)).astype(np.float32)
    out = np.empty_like(inputs)
    fill_draws(inputs, 6, row_states(KEY, np.arange(len(out))), 0, out)
    np.testing.assert_allclose(out.mean(axis=0), wanted, atol=3e-3)
    assert out[:, 1].mean() == pytest.approx(1e-4, rel=0.5)
    assert np.abs(np.corrcoef(out[:, 2:5].T) - np.eye(3)).max() < 0.01


def test_mean_softplus_of_narrow_and_wide_normals() -> None:
    grid = np.linspace(-10, 10, 20_001)
    mass = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()
    cases = [(m, s) for m in (-30.0, -2.0, 0.0, 0.5, 6.0) for s in (0.0, 0.3, 1.5, 1.6, 4.0, 40.0)]
    mean, deviation = np.array(cases).T
    expected = np.logaddexp(0, mean[:, None] + deviation[:, None] * grid) @ mass
    found = mean_softplus(mean, deviation)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
