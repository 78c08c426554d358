"""How rows are cut into tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.errors import FitError
from pipeline.executors.cancellation import Cancelled, run_cancellable
from pipeline.inference.transform import TransformTask, describe_codes
from pipeline.models.clipped_pca import ClippedPCA
from pipeline.params import get_named_arrays
from pipeline.passes.row_ranges import group_ranges, split_into_ranges
from pipeline.random import RowRandom
from tests.support.strategies import DenseData, make_memory_rows


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 40))
def test_runs_hold_every_row_once(n_rows: list[int], size: int) -> None:
    runs = split_into_ranges(n_rows, size)
    owner = np.repeat(np.arange(len(n_rows)), n_rows)
    for key, run in enumerate(runs):
        assert (run.key, run.start) == (key, key * size)
        expected = [(k, sum(n_rows[:k])) for k in np.unique(owner[run.start : run.stop]).tolist()]
        assert list(run.chunks) == expected
    assert [run.stop for run in runs] == [*range(size, sum(n_rows), size), sum(n_rows)][: len(runs)]


@pytest.mark.parametrize(("n_rows", "size"), [([500] * 3, 1), ([1000, 7, 0, 993], 3), ([5], 9)])
def test_groups_of_runs_begin_in_one_chunk(n_rows: list[int], size: int) -> None:
    runs = split_into_ranges(n_rows, size)
    groups = group_ranges(runs)
    assert [run for group in groups for run in group] == runs
    assert all(len({run.chunks[0] for run in group}) == 1 for group in groups)
    assert len(groups) >= min(len(runs), 128)
    assert len(groups) < 300


@dataclass(frozen=True)
class Plain(ClippedPCA):
    """Codes that say which row they are of; past `limit` they are not finite."""

    limit: float = np.inf

    def transform(self, params: Any, block: BinaryBlock, rng: RowRandom) -> dict[str, Any]:
        row = np.where(block.rows < self.limit, block.rows, np.nan).astype(np.float64)
        share = block.unpack_values().mean(axis=1) if block.n_samples else np.zeros(0)
        return {"mean": np.column_stack([row, share]), "segment": np.full(len(row), block.segment)}


def transform(model: Plain, data: DenseData, sizes: list[int]) -> TransformTask:
    params = model.params(*[np.zeros(1)] * 6)
    arrays = {name: values for name, (_, values) in get_named_arrays(params).items()}
    segments = np.array([7, -1, 5])
    rows = make_memory_rows(data, sizes)
    return TransformTask(model, lambda: arrays, RowRandom(0), rows.read, segments, "float32")


def drawn() -> DenseData:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (500, 5), np.uint8)
    return DenseData(X, None, rng.integers(0, 3, len(X)))


@pytest.mark.parametrize("size", [1, 64, 130, 500])
@pytest.mark.parametrize("n_segments", [1, 3])
def test_rows_come_in_their_original_order(
    size: int, n_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.inference.transform._CELLS_AT_ONCE", 5)  # portions of 64 rows
    data, sizes = drawn(), [200, 130, 170]
    data = replace(data, segments=data.labels % n_segments)
    work = transform(Plain(), data, sizes)
    parts = [work(run) for run in split_into_ranges(sizes, size)]
    codes = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert codes["mean"].dtype == np.float32
    assert codes["segment"].dtype == np.int64
    np.testing.assert_array_equal(codes["row"], np.arange(500))
    np.testing.assert_array_equal(codes["mean"][:, 0], np.arange(500))
    np.testing.assert_allclose(codes["mean"][:, 1], data.X.mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(codes["segment"], np.array([7, -1, 5])[data.segments])


@pytest.mark.parametrize("n_segments", [1, 3])
def test_rows_of_a_split_come_in_their_original_order(n_segments: int) -> None:
    keep = np.random.default_rng(1).random(500) < 0.4
    keep[200:330] = False  # a whole chunk
    data = replace(drawn(), keep=keep)
    data, sizes = replace(data, segments=data.labels % n_segments), [200, 130, 170]
    work = transform(Plain(), data, sizes)
    runs = split_into_ranges([int(part.sum()) for part in np.split(keep, [200, 330])], 64)
    codes = np.concatenate([work(run)["row"] for run in runs])
    np.testing.assert_array_equal(codes, np.flatnonzero(keep))


def test_codes_that_are_not_finite_are_refused_by_row() -> None:
    work = transform(Plain(limit=321), drawn(), [200, 300])
    runs = split_into_ranges([200, 300], 100)
    work(runs[2])
    with pytest.raises(FitError, match=r"row 322: the codes in mean are not finite\."):
        work(runs[3])


def test_an_interrupted_run_is_given_up() -> None:
    codes, run = transform(Plain(), drawn(), [500]), split_into_ranges([500], 500)[0]
    assert run_cancellable(lambda: True, codes, run)
    with pytest.raises(Cancelled, match="interrupted"):
        run_cancellable(lambda: False, codes, run)


@dataclass(frozen=True)
class NoParams:
    """Parameters without arrays."""


def test_axes_are_named_as_the_model_declares() -> None:
    class Wide(Plain):
        codes: ClassVar[Mapping[str, tuple[str, ...]]] = {
            "mean": ("component",),
            "covariance": ("component", "component_j"),
            "layer": ("feature",),
            "label": (),
        }

        def transform(self, params: Any, block: BinaryBlock, rng: RowRandom) -> dict[str, Any]:
            n = block.n_samples
            return {
                "mean": np.zeros((n, 3)),
                "covariance": np.zeros((n, 3, 3)),
                "layer": np.zeros((n, 3)),  # as many as components
                "label": np.zeros(n, np.int64),
            }

    assert describe_codes(Wide(), NoParams(), 3, "float32") == {
        "mean": (("component",), (3,), "float32"),
        "covariance": (("component", "component_j"), (3, 3), "float32"),
        "layer": (("feature",), (3,), "float32"),
        "label": ((), (), "int64"),
    }
    assert pack_block(np.zeros((0, 3), np.uint8)).n_samples == 0
