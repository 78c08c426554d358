"""Weights of rows: checked, rounded to exact units, and read with the rows."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.blocks import concatenate_blocks, iter_blocks
from pipeline.data.weights import (
    RowWeights,
    WeightKind,
    digest_weights,
    measure_weights,
    weigh_chunk,
)
from pipeline.errors import FitError
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows


def measure(values: Sequence[Any], kind: WeightKind = "sampling") -> RowWeights:
    parts = [(np.arange(len(values)) + 10, np.array(values))]
    return measure_weights("w", kind, lambda: parts)


def test_whole_numbers_are_kept() -> None:
    weights = measure([3, 0, 2**40, 5], "frequency")
    assert (weights.unit, weights.scale, weights.n_rows) == (1.0, 1.0, 3)
    np.testing.assert_array_equal(weights.to_units(np.array([3, 0, 2**40])), [3, 0, 2**40])
    assert weights.total == 2**40 + 8


def test_sums_of_frequencies_are_never_those_of_a_survey() -> None:
    frequencies, survey = measure([1, 1], "frequency"), measure([1, 1], "sampling")
    assert (frequencies.unit, frequencies.scale) == (survey.unit, survey.scale)
    assert frequencies.key != survey.key


def test_parts_do_not_change_the_digest_of_weights() -> None:
    values = [0.5, 1.25, 0.0, 7.0]
    parts = [(np.arange(n), np.array(part)) for n, part in ((1, values[:1]), (3, values[1:]))]
    assert digest_weights(parts) == measure(values).digest != measure(values[:3]).digest


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30))
def test_rounding_moves_no_weight_by_more_than_a_millionth_of_the_largest(
    values: list[float],
) -> None:
    weights = measure(values)
    units = weights.to_units(np.array(values))
    for unit, value in zip(units.tolist(), values, strict=True):
        error = abs(Fraction(weights.unit) * unit - Fraction(value))
        assert error <= Fraction(max(values)) / 2**20


def test_tiny_weights_have_a_unit_above_0() -> None:
    weights = measure([1e-320, 2e-320, 0.0])
    assert weights.n_rows == 2
    values = weights.scale * weights.to_units(np.array([1e-320, 2e-320]))
    np.testing.assert_allclose(values, [2 / 3, 4 / 3], rtol=1e-3)


def test_sampling_weights_have_a_mean_of_1_and_any_size() -> None:
    once, twice = measure([0.5, 1.25, 0.0, 7.0]), measure([1.0, 2.5, 0.0, 14.0])
    values = once.scale * once.to_units(np.array([0.5, 1.25, 7.0]))
    assert values.mean() == pytest.approx(1.0)
    np.testing.assert_array_equal(
        values, twice.scale * twice.to_units(np.array([1.0, 2.5, 14.0])), strict=True
    )
    assert once.total == 8.75
    assert once.effective_rows == pytest.approx(8.75**2 / (0.25 + 1.5625 + 49))
    assert once.digest != twice.digest


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([1.0, np.nan], "sampling", "row 12: the weight in w is missing"),
        ([1.0, np.inf], "sampling", "row 12: the weight inf in w is infinite"),
        ([1.0, -2.0], "sampling", "row 12: the weight -2 in w is negative"),
        ([1.0, 0.5], "frequency", "row 12: the weight 0.5 in w is not a whole number"),
        ([0.0, 0.0], "frequency", "all weights in w are 0"),
        ([2.0**53, 2.0**53], "frequency", "at most 2\\*\\*53 can be summed exactly"),
        ([2**62, 2**62, 2**62], "frequency", "add up to 1.38e\\+19, but at most"),
        ([1e300, 1.0], "sampling", "add up to 1e\\+300, but at most"),
        (["a", "b"], "frequency", "w contains texts"),
    ],
)
def test_weights_that_mean_nothing_are_refused(
    values: list[Any], kind: WeightKind, message: str
) -> None:
    with pytest.raises(FitError, match=message):
        measure(values, kind)


def test_blocks_carry_the_weights_of_their_rows_through_selection_and_joining() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (300, 4), np.uint8)
    weights = rng.integers(0, 4, 300)
    data = DenseData(X, segments=rng.integers(0, 3, 300), weights=weights)
    blocks = make_memory_blocks(data, [120, 180])
    for block in blocks:
        assert block.weights is not None
        np.testing.assert_array_equal(block.weights, weights[block.rows])
        assert block.weight == weights[block.rows].sum()
        for group in block.split_into_groups(3):
            np.testing.assert_array_equal(group.weights, weights[group.rows])
    joined = concatenate_blocks(blocks)
    np.testing.assert_array_equal(joined.rows, np.flatnonzero(weights))
    np.testing.assert_array_equal(joined.weights, weights[weights > 0])
    np.testing.assert_array_equal(joined.unpack_values(), X[weights > 0])


def test_rows_of_weight_0_outside_of_the_split_stay_outside() -> None:
    X = np.eye(6, dtype=np.uint8)
    keep = np.array([True, True, False, True, False, True])
    data = DenseData(X, keep=keep, weights=np.array([1, 0, 1, 2, 0, 3]))
    rows = make_memory_rows(data)
    (block,) = iter_blocks(rows.read(0))
    np.testing.assert_array_equal(block.rows, [0, 3, 5])
    np.testing.assert_array_equal(block.row_weights, [1.0, 2.0, 3.0], strict=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_short_floats_are_weights_like_long_ones(dtype: type[np.floating]) -> None:
    values = np.array([0.25, 0.1, 900.5], dtype)
    weights, expected = measure(values), measure(values.astype(np.float64))
    assert weights == expected
    np.testing.assert_array_equal(weights.to_units(values), expected.to_units(values.astype(float)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_weights_outside_of_the_split_have_no_influence(value: float) -> None:
    data = DenseData(np.eye(3, dtype=np.uint8), keep=np.array([True, False, True]))
    chunk = make_memory_rows(data).read(0)
    with np.errstate(invalid="raise"):
        weighted = weigh_chunk(chunk, measure([1, 2], "frequency"), np.array([1, value, 2]))
    (block,) = iter_blocks(weighted)
    np.testing.assert_array_equal(block.rows, [0, 2])
    np.testing.assert_array_equal(block.weights, [1, 2])
