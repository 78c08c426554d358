"""Inverses of information matrices under constraints."""

from __future__ import annotations

import numpy as np
from scipy.linalg import null_space

from pipeline.numerics.information import invert_constrained_information, invert_information


def test_both_ways_to_invert_agree() -> None:
    rng = np.random.default_rng(0)
    scores, constraints = rng.standard_normal((200, 12)), rng.standard_normal((3, 12))
    scores *= 10.0 ** rng.uniform(-2, 2, 12)
    information = scores.T @ scores
    found = invert_constrained_information(information, constraints)
    expected = invert_information(information, null_space(constraints))
    assert found is not None
    deviations = np.sqrt(np.diag(expected.covariance))
    difference = (found - expected.covariance) / np.outer(deviations, deviations)
    np.testing.assert_allclose(difference, 0, atol=1e-9)
    np.testing.assert_allclose(constraints @ found / (abs(constraints) @ abs(found)), 0, atol=1e-9)


def test_constraints_may_fix_what_has_no_information() -> None:
    scores = np.random.default_rng(0).standard_normal((50, 5))
    scores[:, 4] = 0.0
    fixing, other = np.eye(5)[4:], np.eye(5)[:1]
    found = invert_constrained_information(scores.T @ scores, fixing)
    assert found is not None
    np.testing.assert_allclose(found[:4, :4], np.linalg.inv(scores[:, :4].T @ scores[:, :4]))
    np.testing.assert_allclose(found[4], 0, atol=1e-9)
    assert invert_constrained_information(scores.T @ scores, other) is None
