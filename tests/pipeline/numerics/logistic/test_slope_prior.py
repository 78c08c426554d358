"""Tests of the prior of slopes that leaves the scale of the traits where it is."""

import numpy as np
import pytest

from pipeline.numerics.logistic.slope_prior import (
    compute_slope_penalty,
    differentiate_penalty_twice,
    limit_precision,
)
from tests.support.slope_penalty import penalize

N_ROWS, SLOPES = 100.0, np.array([0.7, -1.2, 2.0])
PRECISIONS = [0.0, 0.1, 2.0, 50.0]  # the last two outweigh the rows


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_penalty_is_that_of_a_normal_prior_with_the_limited_precision(precision: float) -> None:
    squares, h = float(SLOPES @ SLOPES), 1e-6
    limited = limit_precision(precision, squares, N_ROWS)
    ends = [compute_slope_penalty(precision, squares + step, N_ROWS) for step in (-h, h)]
    assert (ends[1] - ends[0]) / (2 * h) == pytest.approx(limited / 2, rel=1e-5)
    expected = penalize(SLOPES, precision, N_ROWS)
    assert compute_slope_penalty(precision, squares, N_ROWS) == pytest.approx(expected)
    assert limited == precision or limited * squares == pytest.approx(0.036 * N_ROWS)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_second_derivatives_are_those_of_differences(precision: float) -> None:
    h = 1e-3
    steps = h * np.eye(3)

    def score(slopes: np.ndarray) -> float:
        return penalize(slopes, precision, N_ROWS)

    expected = [
        [
            score(SLOPES + a + b)
            - score(SLOPES + a - b)
            - score(SLOPES - a + b)
            + score(SLOPES - a - b)
            for b in steps
        ]
        for a in steps
    ]
    hessian = differentiate_penalty_twice(precision, SLOPES, N_ROWS)
    np.testing.assert_allclose(hessian, np.array(expected) / (4 * h * h), atol=1e-5)
