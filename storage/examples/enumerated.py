"""Distributions of binary rows small enough to be written down case by case.

The higher-order lines problem and the shifter problem, after M. S. Lewicki, T. J. Sejnowski,
"Bayesian unsupervised learning of higher order structure", NIPS 1996.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SIDE, _LINE_PROBABILITY = 5, 0.3
# Lines 0 to 4 are the rows from the top, 5 to 9 the columns from the left.
_PATTERNS = {"verticals": [6, 8], "plus": [2, 7], "equals": [1, 3], "square": [0, 4, 5, 9]}
_WIDTH = 8
_SHIFTS = {"left": -1, "right": 1}


class EnumeratedCases(NamedTuple):
    """All cases that a row can come from; several may give the same row.

    Attributes
    ----------
    feature_names
        Names of the features.
    column
        What the labels are called.
    X
        The row of each case, values in {0, 1}, (n_cases, n_features).
    labels
        What is known of each case beside its row, text, (n_cases,).
    probabilities
        Sum to one, (n_cases,).
    """

    feature_names: tuple[str, ...]
    column: str
    X: NDArray[np.uint8]
    labels: NDArray[np.str_]
    probabilities: NDArray[np.float64]


def merge_equal_rows(cases: EnumeratedCases) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Give the rows that can occur, (n_rows, n_features), and their probabilities, (n_rows,)."""
    rows, row_of = np.unique(cases.X, axis=0, return_inverse=True)
    probabilities = np.zeros(len(rows))
    np.add.at(probabilities, row_of, cases.probabilities)
    return rows, probabilities


def entropy(cases: EnumeratedCases) -> float:
    """Entropy of a row in bits: no model of the rows codes them in fewer on average."""
    _, probabilities = merge_equal_rows(cases)
    return -float(probabilities @ np.log2(probabilities))


def enumerate_lines() -> EnumeratedCases:
    """Enumerate the higher-order lines problem: 5 x 5 pixels, row by row; 6.3340 bits.

    With probability ½ one of four patterns of lines is drawn, each as likely as the others:

        verticals    plus         equals       square
        . # . # .    . . # . .    . . . . .    # # # # #
        . # . # .    . . # . .    # # # # #    # . . . #
        . # . # .    # # # # #    . . . . .    # . . . #
        . # . # .    . . # . .    # # # # #    # . . . #
        . # . # .    . . # . .    . . . . .    # # # # #

    so `verticals` is the second and the fourth column, `equals` the second and the fourth row, and
    neither shares a line with `square` or `plus`. Otherwise, with the label `none`, each of the
    five rows and five columns is drawn with probability 0.3, independently. A pixel is on if a
    line through it is. Feature r3c4 is the pixel in row 3, column 4, from 0.
    """
    n_lines = 2 * _SIDE
    drawn = np.zeros((len(_PATTERNS), n_lines), np.uint8)
    for pattern, on in zip(drawn, _PATTERNS.values(), strict=True):
        pattern[on] = 1
    free = _enumerate_rows(n_lines)
    chances = np.where(free, _LINE_PROBABILITY, 1 - _LINE_PROBABILITY).prod(axis=1)
    return EnumeratedCases(
        tuple(f"r{row}c{column}" for row in range(_SIDE) for column in range(_SIDE)),
        "pattern",
        _render_lines(np.concatenate([drawn, free])),
        np.array([*_PATTERNS, *["none"] * len(free)]),
        np.concatenate([np.full(len(drawn), 0.5 / len(drawn)), 0.5 * chances]),
    )


def _render_lines(on: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Draw lines, (n, 10), as pixels, (n, 25)."""
    return (on[:, :_SIDE, None] | on[:, None, _SIDE:]).reshape(len(on), -1)


def enumerate_shifter() -> EnumeratedCases:
    """Enumerate the shifter problem: 4 rows of 8 features; 9 − 1/64 bits.

    A row of 8 fair bits, twice, then the same row shifted by one place with wrap-around, twice.
    The shift is to the `left` (bit i becomes bit i − 1) or to the `right`, as likely. The entropy
    is below the 9 bits of row and direction because 4 of the 256 rows, those of period 1 or 2,
    become the same row both ways.
    """
    row = _enumerate_rows(_WIDTH)
    both_ways = [np.roll(row, by, axis=1) for by in _SHIFTS.values()]
    X = np.concatenate([np.hstack([row, row, shifted, shifted]) for shifted in both_ways])
    parts = ("row", "row_again", "shifted", "shifted_again")
    names = tuple(f"{part}{place}" for part in parts for place in range(_WIDTH))
    return EnumeratedCases(
        names, "shift", X, np.repeat([*_SHIFTS], len(row)), np.full(len(X), 1 / len(X))
    )


def _enumerate_rows(n_features: int) -> NDArray[np.uint8]:
    """All rows of so many bits, (2 ** n_features, n_features)."""
    return (np.arange(1 << n_features)[:, None] >> np.arange(n_features) & 1).astype(np.uint8)
