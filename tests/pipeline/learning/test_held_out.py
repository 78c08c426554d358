"""Held-out rows: the same in every pass, and some of the repetitions of weighted rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from pipeline.data.blocks import BinaryBlock
from pipeline.learning.held_out import compute_binomial_quantiles, run_e_step_with_held_out
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums
from tests.support.strategies import DenseData, make_memory_blocks

SHARE = 0.1


def sum_ones(block: BinaryBlock) -> Sums:
    """Return the weight of the rows as the objective, and the ones of each feature."""
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    return Sums.from_block(block, block.weight, {"ones": weights @ block.unpack_values()})


def hold_out(data: DenseData, seed: int = 0) -> Sums:
    (block,) = make_memory_blocks(data)
    return run_e_step_with_held_out(sum_ones, SHARE, block, RowRandom(seed))


@pytest.mark.parametrize("weights", [None, np.arange(3000) % 40])
def test_held_out_and_other_rows_are_all_rows(weights: Any) -> None:
    data = DenseData(np.random.default_rng(0).integers(0, 2, (3000, 5), np.uint8), weights=weights)
    found, again = hold_out(data), hold_out(data)
    assert found.objective == again.objective
    total = 3000 if weights is None else weights.sum()
    held_out = float(found.values["held_out_weight"])
    assert found.weight + held_out == total
    assert held_out == found.values["held_out"]
    assert held_out == pytest.approx(SHARE * total, rel=0.1)


def test_repetitions_of_a_row_are_held_out_apart() -> None:
    """A single pattern that stands for many rows is in both parts."""
    data = DenseData(np.ones((1, 2), np.uint8), weights=np.array([100_000]))
    found = hold_out(data)
    assert float(found.values["held_out_weight"]) == pytest.approx(10_000, rel=0.05)
    assert found.values["ones"].tolist() == [found.weight] * 2


def test_quantiles_are_those_of_scipy() -> None:
    rng = np.random.default_rng(1)
    levels, n_trials = rng.random(5000), rng.integers(1, 300, 5000)
    expected = scipy.stats.binom.ppf(levels, n_trials, SHARE)
    np.testing.assert_array_equal(compute_binomial_quantiles(levels, n_trials, SHARE), expected)
