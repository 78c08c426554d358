"""Latent codes of all rows, and rows made of them again, a run of rows a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, PackedChunk, RowSource, pack_block
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress
from pipeline.models.base import Model
from pipeline.models.capabilities import check_can_reconstruct
from pipeline.params import params_from_arrays
from pipeline.passes.row_ranges import (
    ROW,
    ArrayDescriptions,
    RowRange,
    count_rows_by_chunk,
    fill_places,
    iter_range_rows,
    split_into_ranges,
)
from pipeline.random import RowRandom

Reconstruction = Literal["probabilities", "bits"]
"""What rows are turned back into: P(x = 1 | codes), or whether it is above ½."""

_ROWS_PER_RANGE = 1 << 16
_CELLS_AT_ONCE = 1 << 18  # seconds of work even where a row takes a millisecond


@dataclass(frozen=True)
class TransformTask:
    """What all tasks share; small enough to send with every one.

    Attributes
    ----------
    model
        Hyperparameters.
    arrays
        Gives the parameters' arrays, where the task is.
    rng
        Draws, keyed by original rows.
    read
        Reads a chunk by its key.
    segments
        The model's index of every segment of the data, (n_segments,).
    dtype
        Type that fractions are stored in.
    reconstruction
        What to make of the codes beside them, under this name; None makes nothing.
    """

    model: Model
    arrays: Callable[[], Mapping[str, NDArray[Any]]]
    rng: RowRandom
    read: Callable[[int], PackedChunk]
    segments: NDArray[np.int64]
    dtype: str
    reconstruction: Reconstruction | None = None

    def __call__(self, run: RowRange) -> dict[str, NDArray[Any]]:
        """Return the codes of a run in original row order, and `row`, the original rows.

        With a reconstruction also its array, (n_samples, n_features).

        Raises
        ------
        FitError
            If a code is not finite.
        Unwanted
            If the run was interrupted.
        """
        params = params_from_arrays(self.model.params, self.arrays())
        codes: dict[str, NDArray[Any]] = {}
        for block, places in self._iter_blocks(run):
            check_cancelled()
            rows = block.rows
            coded = _code_block(self.model, params, block, self.rng, self.reconstruction)
            found = {ROW: rows, **coded}
            stored = {
                name: cast_for_storage(name, a, rows, self.dtype) for name, a in found.items()
            }
            fill_places(codes, run, places, stored)
        return codes

    def _iter_blocks(self, run: RowRange) -> Iterator[tuple[BinaryBlock, NDArray[np.int64]]]:
        """Cut out the run's rows, few at a time, and say where each belongs."""
        for block, at, places in iter_range_rows(self.read, run):
            segment = int(self.segments[block.segment])
            for some in iter_portions(len(at), block.n_features):
                yield replace(block.take_rows(at[some]), segment=segment), places[some]


def transform_rows(
    task: TransformTask, rows: RowSource, executor: Executor, progress: Progress
) -> dict[str, NDArray[Any]]:
    """Compute the codes of all rows in memory, in original row order.

    Raises
    ------
    FitError
        If a code is not finite.
    """
    ranges = split_into_ranges(count_rows_by_chunk(rows, executor), _ROWS_PER_RANGE)
    parts, n_rows = [], 0
    for row_range, part in zip(ranges, executor.map(task, ranges), strict=True):
        parts.append(part)
        n_rows += row_range.stop - row_range.start
        progress("transform", len(parts), len(ranges), n_rows)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def describe_codes(
    model: Model,
    params: Any,
    n_features: int,
    dtype: str,
    reconstruction: Reconstruction | None = None,
) -> ArrayDescriptions:
    """Describe the arrays that `TransformTask` gives, without data."""
    nothing = pack_block(np.empty((0, n_features), np.uint8))
    found = _code_block(model, params, nothing, RowRandom(0), reconstruction)
    return {
        name: (
            ("feature",) if name == reconstruction else model.codes[name],
            values.shape[1:],
            str(cast_for_storage(name, values, nothing.rows, dtype).dtype),
        )
        for name, values in found.items()
    }


def _code_block(
    model: Model,
    params: Any,
    block: BinaryBlock,
    rng: RowRandom,
    reconstruction: Reconstruction | None,
) -> dict[str, NDArray[Any]]:
    """Return the codes of a block's rows, and what they are turned back into."""
    codes = dict(model.transform(params, block, rng))
    if reconstruction is None:
        return codes
    segments = np.full(block.n_samples, block.segment)
    made: NDArray[Any] = check_can_reconstruct(model).reconstruct(params, codes["mean"], segments)
    if reconstruction == "bits":
        made = (made > 0.5).astype(np.uint8)
    return {**codes, reconstruction: made}


def iter_portions(n_rows: int, n_features: int) -> Iterator[slice]:
    """Cut rows so that coding a portion takes seconds at the most."""
    size = max(64, _CELLS_AT_ONCE // n_features)
    for start in range(0, n_rows, size):
        yield slice(start, start + size)


def cast_for_storage(
    name: str, values: NDArray[Any], rows: NDArray[np.int64], dtype: str
) -> NDArray[Any]:
    """Cast values to the type in which they are stored.

    Raises
    ------
    FitError
        If one is not finite.
    """
    if values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if not (finite := np.isfinite(stored)).all():
        at = int(np.argmin(finite.reshape(len(rows), -1).all(axis=1)))
        raise FitError(
            f"row {rows[at] + 1}: Expected finite codes, got others in {name}. "
            "Fit again with other settings."
        )
    return stored
