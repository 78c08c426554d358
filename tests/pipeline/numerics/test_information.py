"""Inverses of information matrices under constraints."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import null_space

from pipeline.numerics.information import invert_constrained_information, invert_information


def test_both_ways_to_invert_agree() -> None:
    rng = np.random.default_rng(0)
    scores, constraints = rng.standard_normal((200, 12)), rng.standard_normal((3, 12))
    scores *= 10.0 ** rng.uniform(-2, 2, 12)
    information = scores.T @ scores
    found = invert_constrained_information(information, constraints)
    expected = invert_information(information, null_space(constraints))
    assert not found.unidentified_share.any()
    deviations = np.sqrt(np.diag(expected.covariance))
    difference = (found.covariance - expected.covariance) / np.outer(deviations, deviations)
    np.testing.assert_allclose(difference, 0, atol=1e-9)
    np.testing.assert_allclose(
        constraints @ found.covariance / (abs(constraints) @ abs(found.covariance)), 0, atol=1e-9
    )


def test_constraints_may_fix_what_has_no_information() -> None:
    scores = np.random.default_rng(0).standard_normal((50, 5))
    scores[:, 4] = 0.0
    information, fixing = scores.T @ scores, np.eye(5)[4:]
    found = invert_constrained_information(information, fixing)
    assert not found.find_unidentified((5, 1)).any()
    np.testing.assert_allclose(found.covariance[:4, :4], np.linalg.inv(information[:4, :4]))
    np.testing.assert_allclose(found.covariance[4], 0, atol=1e-9)


@pytest.mark.parametrize("least", [0.0, -1e-3])
def test_directions_without_information_have_no_variance(least: float) -> None:
    """As the rotations of traits that have no axes, whose information may be below 0 by chance."""
    rng, p = np.random.default_rng(0), 12
    axes = np.linalg.qr(rng.standard_normal((p, p)))[0]
    information = (axes * np.append([least, 0, 1e-8], rng.uniform(1, 9, p - 3))) @ axes.T
    constraints = rng.standard_normal((2, p))
    found = invert_constrained_information(information, constraints)
    expected = invert_information(information, null_space(constraints))
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-9)
    np.testing.assert_allclose(found.unidentified_share, expected.unidentified_share, atol=1e-9)
    assert found.unidentified_share.sum() > 0.5


def test_no_information_leaves_all_unidentified() -> None:
    found = invert_constrained_information(np.zeros((3, 3)), np.eye(3)[:1])
    assert found.find_unidentified((3, 1)).tolist() == [False, True, True]
    assert not found.covariance.any()
