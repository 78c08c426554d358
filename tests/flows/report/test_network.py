"""Figures of networks: places of nodes."""

from __future__ import annotations

import numpy as np

from flows.report.figures.network import place_nodes


def test_nodes_of_a_chain_are_in_its_order() -> None:
    order = np.random.default_rng(0).permutation(9)
    pairs = np.stack([order[:-1], order[1:]], axis=1)
    places = place_nodes(9, pairs, np.ones(8))
    apart = np.linalg.norm(places[order] - places[order[0]], axis=1)
    assert (np.diff(apart) > 0).all()
    assert places.min() >= 0
    assert places.max() == 1


def test_parts_without_a_path_between_them_are_apart() -> None:
    pairs = np.array([[0, 1], [1, 2], [0, 2], [3, 4], [4, 5], [3, 5]])
    places = place_nodes(6, pairs, np.ones(6))
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    assert distances[:3, 3:].min() > max(distances[:3, :3].max(), distances[3:, 3:].max())
    np.testing.assert_array_equal(places, place_nodes(6, pairs, np.ones(6)))
