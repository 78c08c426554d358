"""Batches of rows in random order. The order is keyed by row numbers, so it is reproducible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Bits
from pipeline.data.blocks import BinaryBlock
from pipeline.executors.cancellation import check_cancelled
from pipeline.random import RowRandom

_MAX_UNPACKED_CELLS = 1 << 22  # values that are unpacked at once


class TrainingBatch(NamedTuple):
    """Unpacked rows."""

    # Values and mask, (n_samples, n_features); the mask is None if no value is missing.
    X: Bits
    observed: Bits | None
    rows: NDArray[np.int64]  # original row numbers, (n_samples,); they key the random draws
    segments: NDArray[np.int64]  # index of each row's segment, (n_samples,)
    columns: Mapping[str, NDArray[Any]]  # per-row columns, (n_samples,) each


def iter_shuffled_rows(
    blocks: Iterable[BinaryBlock], size: int, rng: RowRandom
) -> Iterator[TrainingBatch]:
    """Unpack as many rows at once as memory allows, and shuffle them.

    Their number is a multiple of `size` where a block has to be split. The stream `order` of `rng`
    shuffles the rows.
    """
    order = rng.stream("order")
    for portion in _iter_portions(blocks, size):
        rows = np.concatenate([block.rows for block in portion])
        yield _unpack_blocks(portion, np.argsort(order.uniform(rows, 1)[:, 0]))


def split_into_batches(
    rows: TrainingBatch, size: int, is_chosen: NDArray[np.bool_]
) -> Iterator[TrainingBatch]:
    """Split rows into batches of `size`, and reduce each to its chosen rows, if it has any.

    `is_chosen` is (n_samples,). The last batch may be smaller.
    """
    chosen, counts = take_batch_rows(rows, np.flatnonzero(is_chosen)), np.cumsum(is_chosen)
    stops = [*counts[size - 1 :: size].tolist(), len(chosen.rows)]
    for first, stop in pairwise([0, *stops]):
        if first < stop:
            check_cancelled()
            yield take_batch_rows(chosen, slice(first, stop))


def _iter_portions(blocks: Iterable[BinaryBlock], size: int) -> Iterator[list[BinaryBlock]]:
    """Join small blocks and split large ones into portions that are unpacked together."""
    gathered: list[BinaryBlock] = []
    for block in blocks:
        max_rows = size * max(1, _MAX_UNPACKED_CELLS // (size * block.n_features))
        if gathered and sum(b.n_samples for b in gathered) + block.n_samples > max_rows:
            yield gathered
            gathered = []
        if block.n_samples <= max_rows:
            gathered.append(block)
            continue
        for first in range(0, block.n_samples, max_rows):
            yield [block.take_rows(np.arange(first, min(first + max_rows, block.n_samples)))]
    if gathered:
        yield gathered


def _unpack_blocks(blocks: list[BinaryBlock], order: NDArray[np.intp]) -> TrainingBatch:
    """Unpack blocks, with their rows in the given order."""
    masks = [block.unpack_mask() for block in blocks]
    observed = None
    if any(mask is not None for mask in masks):
        pairs = zip(blocks, masks, strict=True)
        filled = [np.ones_like(b.unpack_values()) if m is None else m for b, m in pairs]
        observed = np.concatenate(filled)[order]
    names = blocks[0].columns
    return TrainingBatch(
        np.concatenate([block.unpack_values() for block in blocks])[order],
        observed,
        np.concatenate([block.rows for block in blocks])[order],
        np.repeat([b.segment for b in blocks], [b.n_samples for b in blocks])[order],
        {name: np.concatenate([b.column(name) for b in blocks])[order] for name in names},
    )


def take_batch_rows(batch: TrainingBatch, places: NDArray[np.int64] | slice) -> TrainingBatch:
    """Return some rows of a batch."""
    return TrainingBatch(
        batch.X[places],
        None if batch.observed is None else batch.observed[places],
        batch.rows[places],
        batch.segments[places],
        {name: values[places] for name, values in batch.columns.items()},
    )


def concatenate_batches(parts: Sequence[TrainingBatch]) -> TrainingBatch:
    """Concatenate batches; either all or none of them have a mask."""
    X, observed, rows, segments, columns = zip(*parts, strict=True)
    return TrainingBatch(
        np.concatenate(X),
        None if observed[0] is None else np.concatenate(observed),
        np.concatenate(rows),
        np.concatenate(segments),
        {name: np.concatenate([c[name] for c in columns]) for name in columns[0]},
    )
