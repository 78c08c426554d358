"""Counts of labels are those of all rows at once."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.statistics import labels
from pipeline.statistics.labels import SEGMENT, LabelCounts, convert_labels_to_numbers


def block(values: NDArray[Any], first_row: int = 0) -> BinaryBlock:
    X = np.ones((len(values), 3), np.uint8)
    return replace(pack_block(X, first_row=first_row), columns={"y": values})


def counted(values: NDArray[Any], n_parts: int = 1) -> LabelCounts:
    parts = [LabelCounts.from_block(block(part), "y") for part in np.array_split(values, n_parts)]
    return reduce(LabelCounts.merge, parts)


@pytest.mark.parametrize("n_parts", [1, 2, 7])
def test_numbers_have_their_moments(n_parts: int) -> None:
    values = 1e6 + np.random.default_rng(0).standard_normal(50)
    values[[3, 40]] = np.nan, np.inf
    known = values[np.isfinite(values)]
    found = counted(values, n_parts)
    expected = [48, known.mean(), known.var() * 48]
    np.testing.assert_allclose(found.moments, expected, rtol=1e-9)
    np.testing.assert_array_equal(found.values, np.sort(known))
    assert found.kinds.tolist() == [0, 48]
    assert found.n_rows == 50


@pytest.mark.parametrize("n_parts", [1, 2, 7])
def test_codes_of_texts_are_counted_but_those_that_are_missing(n_parts: int) -> None:
    codes = np.array([4, 4, -1, 2, 4, 2, -1, 0, 4, 4], np.int32)
    found = counted(codes, n_parts)
    assert dict(zip(found.values, found.rows, strict=True)) == {0: 1, 2: 2, 4: 5}
    assert found.kinds.tolist() == [8, 0]


def test_below_zero_a_whole_number_is_a_label() -> None:
    assert counted(np.array([-1, 5, -1])).values.tolist() == [-1, 5]


def test_segments_are_labels_too() -> None:
    parts = [replace(block(np.arange(n)), segment=s) for s, n in ((3, 5), (1, 2), (3, 1))]
    found = reduce(LabelCounts.merge, [LabelCounts.from_block(part, SEGMENT) for part in parts])
    assert dict(zip(found.values, found.rows, strict=True)) == {1: 2, 3: 6}


def test_of_too_many_the_smallest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MAX_CATEGORIES", 3)
    values = np.random.default_rng(0).permutation(20)
    for n_parts in (1, 4, 20):
        found = counted(values, n_parts)
        assert found.values.tolist() == [0, 1, 2, 3]
        assert found.moments[0] == 20


def test_no_labels_have_no_moments() -> None:
    found = counted(np.full(5, np.nan), 2)
    assert not len(found.values)
    assert found.moments.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(
        convert_labels_to_numbers(np.array([1, -1], np.int32)), [1, np.nan]
    )
