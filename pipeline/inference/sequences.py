"""What the rows before and after a row say about it, for fitted models of sequences.

One sweep over the rows links their blocks; then the rows of each block get covariates. Given these,
rows are independent, so codes and likelihoods are those of single rows as with other models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pipeline.data.blocks import BinaryBlock, RowSource, iter_word_ranges
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.base import Model
from pipeline.models.capabilities import HasSequences
from pipeline.passes.arrival_order import BLOCK_WORDS, ReadInOrder, cut_in_arrival_order
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.sums import Statistics


def condition_rows(
    model: Model,
    params: Any,
    rows: RowSource,
    executor: Executor,
    progress: Progress = ignore_progress,
) -> RowSource:
    """Return the rows, in smaller chunks, with what their neighbours say about them.

    Rows of models without sequences are returned as they are.
    """
    if not isinstance(model, HasSequences):
        return rows
    cut = cut_in_arrival_order(rows)
    assert isinstance(cut.read, ReadInOrder)
    condition = link_blocks(model, params, cut, executor, progress)
    return replace(cut, read=replace(cut.read, condition=condition))


def find_sequence_columns(model: Model) -> tuple[str, ...]:
    """Return the per-row columns that tell which rows belong together; none for other models."""
    return model.list_required_columns() if isinstance(model, HasSequences) else ()


def condition_block(model: Model, params: Any, block: BinaryBlock) -> BinaryBlock:
    """Return the rows of a block with what they say about each other, if they are all there are."""
    if not isinstance(model, HasSequences) or not block.n_samples:
        return block
    links = _summarize_block(model, params, block)
    return model.condition(params, model.connect_links(params, links), block)


def iter_conditioned_parts(model: Model, params: Any, block: BinaryBlock) -> Iterator[BinaryBlock]:
    """Yield parts of a block with what the rows of each part say about each other.

    For models without sequences, yield the block as it is.
    """
    is_cut = isinstance(model, HasSequences)
    for part in iter_word_ranges(block, BLOCK_WORDS) if is_cut else (block,):
        yield condition_block(model, params, part)


def link_blocks(
    model: HasSequences,
    params: Any,
    rows: RowSource,
    executor: Executor,
    progress: Progress = ignore_progress,
) -> Callable[[BinaryBlock], BinaryBlock]:
    """Return a function that conditions a block of these rows, which are in arrival order."""
    summarize = partial(_summarize_block, model, params)
    links = collect_statistics(summarize, rows, executor, "links", progress=progress)
    return partial(model.condition, params, model.connect_links(params, links))


def _summarize_block(model: HasSequences, params: Any, block: BinaryBlock) -> Statistics:
    return model.summarize_links(params, {"paths": np.array(1)}, block, RowRandom(0))
