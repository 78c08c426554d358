"""How drawn rows are shared out among segments and tasks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import FitError
from pipeline.inference.sample import (
    SamplingTask,
    count_rows_by_segment,
    draw_model_rows,
    iter_sampling_tasks,
)
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import make_params
from pipeline.params import get_named_arrays


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20), st.integers(0, 5000))
def test_segments_keep_their_shares(sizes: list[int], extra: int) -> None:
    shares, n_rows = np.array(sizes, np.float64), 2 * len(sizes) + extra
    counts = count_rows_by_segment(shares, n_rows)
    assert counts.sum() == n_rows
    assert counts.min() >= 2
    exact = n_rows * shares / shares.sum()
    if exact.min() >= 3:  # nobody had to give rows away
        assert np.abs(counts - exact).max() <= 1


def test_as_many_rows_as_were_fitted_give_the_same_segments() -> None:
    sizes = np.random.default_rng(0).integers(2, 1000, 50)
    np.testing.assert_array_equal(count_rows_by_segment(sizes, sizes.sum()), sizes)


def test_too_few_rows_for_the_segments_are_refused() -> None:
    with pytest.raises(FitError, match=r"^rows: 5 rows are too few: .* at least 6"):
        count_rows_by_segment(np.ones(3), 5)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=6), st.integers(1, 1 << 16))
def test_draws_hold_every_row_once(sizes: list[int], n_features: int) -> None:
    segments = np.arange(len(sizes))[::-1] + 10
    draws = [*iter_sampling_tasks(np.array(sizes), segments, n_features)]
    assert [draw.key for draw in draws] == [*range(len(draws))]
    drawn = [np.repeat(draw.segments, draw.n_rows) for draw in draws]
    assert len({len(rows) for rows in drawn[:-1]}) <= 1
    if drawn:
        np.testing.assert_array_equal(np.concatenate(drawn), np.repeat(segments, sizes))


def test_draws_hang_on_seed_and_key_alone() -> None:
    params = make_params(np.ones((9, 2)), np.zeros(9))
    arrays = {name: values for name, (_, values) in get_named_arrays(params).items()}

    def rows(seed: int, key: int, n_rows: int) -> bytes:
        packed = draw_model_rows(LatentTrait(), lambda: arrays, seed, SamplingTask(key, (n_rows,)))
        assert packed.shape == (n_rows, 2)
        return packed.tobytes()

    assert rows(0, 0, 64) == rows(0, 0, 64)
    assert len({rows(seed, key, 64) for seed in (0, 1) for key in (0, 1, 2)}) == 6
