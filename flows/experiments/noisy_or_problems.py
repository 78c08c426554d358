"""Problems for noisy-OR networks, with hand-built networks that solve them.

M. S. Lewicki, T. J. Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS
1996.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.noisy_or import NoisyOrParams
from pipeline.models.noisy_or.estimation import MIN_LEAK
from storage.examples import EnumeratedCases, enumerate_lines, enumerate_shifter

Array = NDArray[np.float64]
Labels = NDArray[np.str_]

_NO_PATTERN = "none"  # label of lines that form no pattern


class CauseProblem(NamedTuple):
    """A distribution of rows with known causes.

    Attributes
    ----------
    name
        Name of the problem.
    cases
        All cases from which a row can arise.
    layers
        Units of each layer of the network, as in the paper.
    shape
        Height and width of a row as an image.
    built
        The hand-built network; its lowest units are the true causes.
    n_fresh
        Number of fresh rows that measure progress; fewer if there are more states to sum over.
    told
        Computes the share of labels or rows that P(top unit on | row), (n_rows, n_top), identifies.
    """

    name: str
    cases: EnumeratedCases
    layers: tuple[int, int]
    shape: tuple[int, int]
    built: NoisyOrParams
    n_fresh: int
    score_labels: Callable[[Array, Labels], float]

    @property
    def case_indices(self) -> NDArray[np.intp]:
        """Cases that the top units should distinguish, by label."""
        return np.flatnonzero(self.cases.labels != _NO_PATTERN)

    @property
    def labels(self) -> list[str]:
        """Labels in order of appearance."""
        return list(dict.fromkeys(self.cases.labels[self.case_indices].tolist()))


def make_problems() -> tuple[CauseProblem, CauseProblem]:
    """Return both problems: the lines and the shifter."""
    return (
        CauseProblem(
            "lines",
            enumerate_lines(),
            (10, 5),
            (5, 5),
            _build_lines_network(enumerate_lines()),
            2000,
            _score_by_label,
        ),
        CauseProblem(
            "shifter",
            enumerate_shifter(),
            (20, 2),
            (4, 8),
            _build_shifter_network(),
            64,
            _score_by_row,
        ),
    )


def _build_lines_network(cases: EnumeratedCases) -> NoisyOrParams:
    """Build one unit per line, one per pattern, and one that can turn on any line."""
    pixels = np.zeros((5, 5, 10))
    for i in range(5):
        pixels[i, :, i] = pixels[:, i, 5 + i] = 1
    images = cases.X[cases.labels != _NO_PATTERN]
    whole = images @ pixels.reshape(25, 10) == 5
    # The best approximation: top units are independent, but the patterns are not.
    patterns, lines_of_any = np.full(len(images), 0.15), np.full(10, 0.25)
    return _build_network(
        pixels.reshape(25, 10),
        np.column_stack([whole.T, lines_of_any]),
        np.append(patterns, 0.55),
    )


def _build_shifter_network() -> NoisyOrParams:
    """Build one unit per bit and direction, and one per direction."""
    features, width = np.arange(32).reshape(4, 8), 8
    pixels = np.zeros((32, 2 * width))
    for direction, shift in enumerate((-1, 1)):
        for i in range(width):
            on = [*features[:2, i], *features[2:, (i + shift) % width]]
            pixels[on, direction * width + i] = 1
    return _build_network(pixels, 0.5 * np.repeat(np.eye(2), width, axis=0), np.full(2, 0.5))


def _build_network(below: Array, above: Array, prior: Array) -> NoisyOrParams:
    leaks = [np.full(len(f), MIN_LEAK) for f in (below, above)]
    return NoisyOrParams.from_probabilities((below, above), (*leaks, prior))


def cosine_to_causes(params: NoisyOrParams, problem: CauseProblem) -> float:
    """Compute the mean cosine between f of the lowest units and the causes, matched one to one."""
    learnt, true = (f / np.linalg.norm(f, axis=0) for f in (params.f[0], problem.built.f[0]))
    cosines = learnt.T @ true
    return float(cosines[scipy.optimize.linear_sum_assignment(-cosines)].mean())


def average_top_units(means: Array, problem: CauseProblem) -> Array:
    """Average P(top unit on | row) by label, (n_labels, n_top).

    `means` holds the hidden units of the labelled cases, (n_labelled, n_hidden).
    """
    return _average_by_label(
        means[:, problem.layers[0] :], problem.cases.labels[problem.case_indices]
    )


def score_top_units(means: Array, problem: CauseProblem) -> float:
    """Compute the share of labels or rows that the top units identify; see `average_top_units`."""
    return problem.score_labels(
        means[:, problem.layers[0] :], problem.cases.labels[problem.case_indices]
    )


def _average_by_label(top: Array, labels: Labels) -> Array:
    return np.array([top[labels == label].mean(axis=0) for label in dict.fromkeys(labels.tolist())])


def _score_by_label(top: Array, labels: Labels) -> float:
    """Count the labels with a unit that is on for them and off for all others."""
    on = _average_by_label(top, labels) > 0.5
    return float((on & (on.sum(axis=0) == 1)).any(axis=1).mean())


def _score_by_row(top: Array, labels: Labels) -> float:
    """Count the rows whose label is identified by the likelier of two units."""
    share = float(((top[:, 0] > top[:, 1]) == (labels == labels[0])).mean())
    return max(share, 1 - share)
