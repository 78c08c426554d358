"""Probabilities of levels from those of planes."""

from __future__ import annotations

import numpy as np

from pipeline.data.features import Feature, join_split_planes, make_binary_features, sum_planes
from pipeline.data.level_probabilities import (
    count_levels,
    find_level_probabilities,
    find_likely_levels,
    name_levels,
    order_planes,
)

MOOD = Feature("mood", ("bad", "fair", "good"))
SEX = Feature("sex", ("f", "m"))
FEATURES = (MOOD, Feature("pain"), SEX)


def test_planes_out_of_order_become_a_distribution() -> None:
    planes = np.array([[0.2, 0.7, 0.4, 0.9], [0.6, 0.3, 0.5, 0.1]])
    ordered = order_planes(planes, FEATURES)
    np.testing.assert_array_equal(ordered[0], [0.7, 0.2, 0.4, 0.9])
    np.testing.assert_array_equal(ordered[1], planes[1])
    levels = find_level_probabilities(ordered, count_levels(FEATURES))
    np.testing.assert_allclose(levels[0], [0.3, 0.5, 0.2, 0.6, 0.4, 0.1, 0.9], rtol=1e-12)
    expected = np.stack([levels[:, 1] + 2 * levels[:, 2], levels[:, 4], levels[:, 6]], axis=1)
    np.testing.assert_allclose(sum_planes(planes, FEATURES), expected, rtol=1e-12)
    np.testing.assert_array_equal(find_likely_levels(levels, FEATURES), [[1, 0, 1], [0, 0, 0]])
    assert name_levels((MOOD, SEX))[2:4] == ("mood=good", "sex=f")


def test_impossible_levels_have_no_negative_zero() -> None:
    levels = find_level_probabilities(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([3]))
    np.testing.assert_array_equal(levels, [[0, 0, 1], [1, 0, 0]])
    assert not np.signbit(levels).any()


def test_planes_are_joined_if_all_of_them_are_there() -> None:
    split = {"mood": MOOD.levels, "sex": SEX.levels}
    names = ["mood>=fair", "mood>=good", "pain", "sex"]
    assert join_split_planes(make_binary_features(names), split) == FEATURES
    # One plane that was cut is a feature of its own.
    cut = make_binary_features(["mood>=good", "pain", "mood>=fair"])
    assert join_split_planes(cut, split) == cut
