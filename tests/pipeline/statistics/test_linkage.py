"""Parts of features that rows link equal those of the graph of rows and features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.statistics.linkage import Linkage


def link_by_graph(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the smallest feature in each feature's part, −1 without observations."""
    counts = mask.T.astype(np.int64) @ mask
    _, labels = scipy.sparse.csgraph.connected_components(scipy.sparse.coo_array(counts))
    is_seen = np.asarray(mask.any(axis=0)).tolist()
    first = {label: i for i, label in reversed([*enumerate(labels.tolist())]) if is_seen[i]}
    return np.array(
        [first.get(label, -1) if is_seen[i] else -1 for i, label in enumerate(labels.tolist())]
    )


def draw_mask(rng: np.random.Generator, n_rows: int) -> NDArray[np.bool_]:
    n_features, n_forms = rng.integers(1, 40), rng.integers(1, 6)
    forms = rng.integers(0, n_forms, n_features) == rng.integers(0, n_forms, n_rows)[:, None]
    mask: NDArray[np.bool_] = forms & (rng.random(forms.shape) < rng.choice([0.02, 0.2, 0.9]))
    if rng.random() < 0.3:
        mask[rng.integers(n_rows)] |= rng.random(n_features) < 0.3
    return mask


def link(mask: NDArray[np.bool_], segment: int = 0, **more: Any) -> Linkage:
    observed = mask.astype(np.uint8)
    return Linkage.from_block(pack_block(np.zeros_like(observed), observed, segment), **more)


@pytest.mark.parametrize("seed", range(40))
def test_parts_are_those_of_the_graph_in_one_block_or_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_rows = 9000 if seed % 10 == 0 else int(rng.integers(2, 300))
    mask = draw_mask(rng, n_rows)
    whole, cut = link(mask), int(rng.integers(1, n_rows))
    np.testing.assert_array_equal(whole.parts[0], link_by_graph(mask))
    merged = link(mask[:cut]).merge(link(mask[cut:]))
    np.testing.assert_array_equal(merged.parts, whole.parts)
    assert merged.n_rows == n_rows
    again = Linkage.from_arrays(merged.to_arrays())
    np.testing.assert_array_equal(again.parts, merged.parts)


def test_numbers_are_columns_after_the_planes() -> None:
    numbers = np.full((2, 6), np.nan, np.float32)
    numbers[0, :2] = numbers[1, 2:] = 1.0
    observed = np.zeros((6, 3), np.uint8)
    observed[:2, :2] = observed[2:, 2] = 1
    X = np.zeros((6, 3), np.uint8)
    masked = Linkage.from_block(pack_block(X, observed, numbers=numbers))
    np.testing.assert_array_equal(masked.parts, [[0, 0, 2, 0, 2]])
    assert not masked.is_linked
    complete = Linkage.from_block(pack_block(X, numbers=numbers))
    assert complete.is_linked
    alone = Linkage.from_block(pack_block(X[:, :0], numbers=numbers))
    np.testing.assert_array_equal(alone.parts, [[0, 1]])


def test_segments_are_linked_apart_or_together() -> None:
    mask = np.eye(3, dtype=bool)[[0, 1]]
    mask[:, 2] = True
    apart = [link(mask[k : k + 1], segment=k, by_segment=True) for k in range(2)]
    by_segment = apart[1].merge(apart[0])
    np.testing.assert_array_equal(by_segment.segments, [0, 1])
    np.testing.assert_array_equal(by_segment.parts, [[0, -1, 0], [-1, 1, 1]])
    assert [part.segments.tolist() for part in by_segment.split_by_segment()] == [[0], [1]]
    assert link(mask[:1]).merge(link(mask[1:], segment=1)).is_linked
