"""Folds: every row is in one, they are of one size, and where rows lie decides nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.evaluation.folds import RowFold, assign_folds
from tests.support.data import draw_probit_rows, make_test_row_source, write_arrays


@given(
    n_folds=st.integers(2, 12),
    n_hands=st.integers(1, 50),
    left=st.integers(0, 11),
    seed=st.integers(0, 2**63 - 1),
)
def test_folds_are_of_one_size(n_folds, n_hands, left, seed):
    n_rows = n_hands * n_folds + left % n_folds
    sizes = np.bincount(assign_folds(np.arange(n_rows), n_folds, seed), minlength=n_folds)
    assert sizes.sum() == n_rows
    assert set(sizes) <= {n_hands, n_hands + 1}


def test_a_row_is_dealt_by_its_number_and_the_seed():
    rows = np.arange(1000)
    folds = assign_folds(rows, 5, 3)
    np.testing.assert_array_equal(assign_folds(rows[::-7], 5, 3), folds[::-7])
    assert 0.1 < (assign_folds(rows, 5, 4) == folds).mean() < 0.3  # a fifth by chance
    assert 0.1 < (folds == rows % 5).mean() < 0.3


def kept(rows: RowSource) -> np.ndarray:
    blocks = [block for key in range(rows.n_chunks) for block in iter_blocks(rows.read(key))]
    return np.sort(np.concatenate([block.rows for block in blocks]))


@pytest.mark.matrix
@pytest.mark.parametrize("split", [None, "test"])
def test_every_row_is_held_out_once_and_else_fitted(tmp_path: Path, split: str | None):
    X, _ = draw_probit_rows(300, 4, 2, seed=0)
    segments = np.array(["a", "b", "c"])[np.arange(300) % 3]
    columns = {"split": np.where(np.arange(300) % 4, "train", "test")}
    rows = make_test_row_source(
        write_arrays(tmp_path / "d.zarr", X, None, segments, 1, columns), split
    )
    assert rows.n_chunks > 1
    everything = kept(rows)
    assert len(everything) == (300 if split is None else 75)
    folds = [RowFold(index, 4, 7) for index in range(4)]
    held_out = [kept(fold.select_held_out(rows)) for fold in folds]
    np.testing.assert_array_equal(np.sort(np.concatenate(held_out)), everything)
    for fold, apart in zip(folds, held_out, strict=True):
        assert len(apart)
        np.testing.assert_array_equal(
            kept(fold.select_training(rows)), np.setdiff1d(everything, apart, assume_unique=True)
        )
