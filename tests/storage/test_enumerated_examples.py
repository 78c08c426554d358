"""Examples whose every row and probability is known, against counts made another way."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from math import fsum, log2

import numpy as np
import pytest
from scipy.stats import chisquare

from storage import examples
from storage.examples import (
    EnumeratedCases,
    compute_examples_digest,
    entropy,
    enumerate_lines,
    enumerate_shifter,
    merge_equal_rows,
    open_example,
)

PICTURES = {
    "verticals": ".#.#. .#.#. .#.#. .#.#. .#.#.",
    "plus": "..#.. ..#.. ##### ..#.. ..#..",
    "equals": "..... ##### ..... ##### .....",
    "square": "##### #...# #...# #...# #####",
}
Distribution = dict[tuple[int, ...], Fraction]


def picture(text: str) -> tuple[int, ...]:
    """Pixels, row by row, of a picture in text."""
    return tuple(int(mark == "#") for mark in text if mark != " ")


def rows_of_lines() -> Distribution:
    """Exact probabilities of all pictures, pixel by pixel and line by line."""
    found: Distribution = Counter()
    for text in PICTURES.values():
        found[picture(text)] += Fraction(1, 8)
    for on in product((0, 1), repeat=10):
        pixels = tuple(max(on[i], on[5 + j]) for i in range(5) for j in range(5))
        found[pixels] += Fraction(3 ** sum(on) * 7 ** (10 - sum(on)), 2 * 10**10)
    return found


def rows_of_shifter() -> Distribution:
    """Exact probabilities of all rows, by slices."""
    found: Distribution = Counter()
    for row in product((0, 1), repeat=8):
        for shifted in (row[1:] + row[:1], row[-1:] + row[:-1]):
            found[row * 2 + shifted * 2] += Fraction(1, 512)
    return found


@pytest.mark.parametrize(
    ("cases", "expected"),
    [(enumerate_lines(), rows_of_lines()), (enumerate_shifter(), rows_of_shifter())],
)
def test_rows_and_entropy_are_those_of_a_count(
    cases: EnumeratedCases, expected: Distribution
) -> None:
    assert sum(expected.values()) == 1
    rows, probabilities = merge_equal_rows(cases)
    found = dict(zip(map(tuple, rows.tolist()), probabilities, strict=True))
    assert found == pytest.approx({row: float(p) for row, p in expected.items()}, rel=1e-12)
    assert entropy(cases) == pytest.approx(-fsum(p * log2(p) for p in expected.values()))


def test_entropies_are_those_that_are_stated() -> None:
    """Four rows of the shifter have probability 1/256, and 504 have 1/512."""
    assert entropy(enumerate_shifter()) == 504 / 512 * 9 + 4 / 256 * 8 == 9 - 1 / 64
    assert entropy(enumerate_lines()) == pytest.approx(6.3340, abs=5e-5)


def test_patterns_are_those_that_are_drawn() -> None:
    cases = enumerate_lines()
    for name, text in PICTURES.items():
        (row,) = cases.X[cases.labels == name]
        assert tuple(row) == picture(text)
    assert Counter(cases.labels.tolist()) == {**dict.fromkeys(PICTURES, 1), "none": 1024}


def test_shifts_wrap_around() -> None:
    cases = enumerate_shifter()
    for at, (left, right) in {0: (7, 1), 3: (2, 4), 7: (6, 0)}.items():
        row = np.eye(8, dtype=np.uint8)[at]
        is_from_row = (cases.X[:, :8] == row).all(axis=1)
        for label, place in (("left", left), ("right", right)):
            (found,) = cases.X[is_from_row & (cases.labels == label)]
            np.testing.assert_array_equal(
                np.flatnonzero(found), [at, 8 + at, 16 + place, 24 + place]
            )


@pytest.mark.parametrize(
    ("name", "cases"), [("lines", enumerate_lines()), ("shifter", enumerate_shifter())]
)
def test_frequencies_are_those_of_the_cases(name: str, cases: EnumeratedCases) -> None:
    """Rows are told apart by pixels and label; those expected less than 5 times count together."""
    (batch,) = open_example(f"example:{name}").iter_batches()
    keys = zip(map(bytes, batch.X), batch.columns[cases.column].tolist(), strict=True)
    drawn, expected = Counter(keys), Counter[tuple[bytes, str]]()
    for row, label, p in zip(cases.X, cases.labels.tolist(), cases.probabilities, strict=True):
        expected[bytes(row), label] += 10_000 * p
    assert drawn.keys() <= expected.keys()
    often = [key for key, times in expected.items() if times >= 5]
    found, wanted = ([counts[key] for key in often] for counts in (drawn, expected))
    if len(often) < len(expected):
        found, wanted = [*found, 10_000 - sum(found)], [*wanted, 10_000 - sum(wanted)]
    assert sum(found) == 10_000
    assert chisquare(found, wanted).pvalue > 0.01


def test_features_and_columns_have_names() -> None:
    made = open_example("example:lines:rows=3")
    assert (made.feature_names[7], len(made.feature_names)) == ("r1c2", 25)
    assert made.column_names == ("pattern",)
    names = open_example("example:shifter:rows=3").feature_names
    assert names[::8] == ("row0", "row_again0", "shifted0", "shifted_again0")
    assert (names[7], len(names)) == ("row7", 32)


def test_seeds_draw_other_rows() -> None:
    first, again, other = (
        next(open_example(f"example:lines:rows=100,seed={seed}").iter_batches())
        for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(first.X, again.X)
    assert (first.X != other.X).any()


def test_other_cases_make_other_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compute_examples_digest()
    monkeypatch.setattr(examples, "__file__", __file__)
    assert compute_examples_digest() != before
