"""Lines in the latent plane on which a feature is 1 with probability ½, and places for names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from contourpy import contour_generator
from numpy.typing import NDArray

Array = NDArray[np.float64]

_NAME_POSITIONS = np.linspace(0.05, 0.95, 37)
_NAME_DISTANCE = 0.02  # of a name from its line, as a share of the plane's width
_INNER_SHARE = np.array([0.4, 0.46])  # of the plane's width and height
# Pixels: width of a plot on a phone, where names have the least room; size of a letter.
_PLOT_WIDTH, _LETTER_SIZE = 290.0, np.array([6.5, 13.0])
_VERTICAL_WEIGHT = 3.0  # names are wide, so vertical distances count so much more


class EvenOddsLine(NamedTuple):
    """The line on which a feature is 1 with probability ½.

    Attributes
    ----------
    feature
        Index of the feature.
    points
        Of the line, (n, 2).
    direction
        Unit vector across the line to the side where 1 is more likely, (2,).
    """

    feature: int
    points: Array
    direction: Array


def find_even_odds_lines(x: Array, y: Array, probabilities: Array) -> list[EvenOddsLine]:
    """Find the lines with probability ½, steepest features first.

    Parameters
    ----------
    x, y
        Coordinates of a grid, (n_x,) and (n_y,).
    probabilities
        P(feature = 1) on the grid, (n_features, n_y, n_x).
    """
    found = []
    for i in np.argsort(-np.ptp(probabilities, axis=(1, 2)), kind="stable"):
        pieces: Any = contour_generator(x, y, probabilities[i]).lines(0.5)
        if pieces:
            points = max(pieces, key=len)
            found.append(
                EvenOddsLine(int(i), points, _find_direction(x, y, probabilities[i], points))
            )
    return found


def _find_direction(x: Array, y: Array, probability: Array, points: Array) -> Array:
    """Return the unit gradient at the middle of the line."""
    down, across = np.asarray(np.gradient(probability, y, x))
    middle = points[len(points) // 2]
    at = np.abs(y - middle[1]).argmin(), np.abs(x - middle[0]).argmin()
    gradient = np.array([across[at], down[at]])
    unit: Array = gradient / max(float(np.linalg.norm(gradient)), 1e-300)
    return unit


def choose_name_places(lines: Sequence[EvenOddsLine]) -> Array:
    """Choose a place beside each line, far from other lines and earlier names: (n_lines, 2)."""
    ends = np.vstack([line.points for line in lines])
    middle, size = (ends.min(axis=0) + ends.max(axis=0)) / 2, float(np.ptp(ends)) or 1.0
    others = [_sample_line(line) for line in lines]
    taken = np.zeros((0, 2))
    for k, line in enumerate(lines):
        places = others[k] + _NAME_DISTANCE * size * line.direction
        crossed = np.vstack([*others[:k], *others[k + 1 :], np.full((1, 2), np.inf)])
        room = np.minimum(
            _compute_distances(places, taken), 3 * _compute_distances(places, crossed)
        )
        # Near the edge, a name would be cut off.
        room[(np.abs(places - middle) > _INNER_SHARE * np.ptp(ends, axis=0)).any(axis=1)] -= (
            9 * size
        )
        taken = np.vstack([taken, places[int(np.argmax(room))]])
    return taken


def choose_names_with_room(places: Array, names: Sequence[str], width: float) -> list[int]:
    """Return the indices of names that overlap no earlier chosen name.

    Parameters
    ----------
    places
        Centres of the names, (n_names, 2).
    names
        The names.
    width
        Width of the plot in the units of `places`.
    """
    lengths = [len(name) for name in names]
    halves = (
        width / _PLOT_WIDTH * _LETTER_SIZE * np.column_stack([lengths, np.ones(len(names))]) / 2
    )
    kept: list[int] = []
    for i, place in enumerate(places):
        apart = abs(places[kept] - place) > halves[kept] + halves[i]
        if apart.any(axis=1).all():
            kept.append(i)
    return kept


def _sample_line(line: EvenOddsLine) -> Array:
    at = _NAME_POSITIONS * (len(line.points) - 1)
    steps = np.arange(len(line.points))
    return np.column_stack([np.interp(at, steps, line.points[:, axis]) for axis in (0, 1)])


def _compute_distances(places: Array, others: Array) -> Array:
    """Return the weighted distance of each place to the nearest of `others`."""
    apart = (places[:, None] - others) * np.array([1.0, _VERTICAL_WEIGHT])
    distances: Array = np.linalg.norm(apart, axis=2).min(axis=1, initial=np.inf)
    return distances
