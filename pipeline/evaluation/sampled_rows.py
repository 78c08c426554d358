"""Rows drawn from a dataset by (seed, stream, original row), with their labels, and their codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource, pack_block
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.prediction import HasLabels, name_labels
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.inference.transform import cast_for_storage, iter_portions
from pipeline.models.base import Model
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.labels import convert_labels_to_numbers, get_labels
from pipeline.statistics.row_samples import RowSample

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class SampledRows(NamedTuple):
    """Rows drawn from all.

    Attributes
    ----------
    block
        The rows, in original order.
    segments
        Indices of their segments, (n_drawn,).
    labels
        Texts that say what they are, where a column was asked for; else empty, (n_drawn,).
    n_rows
        The rows that they were drawn from.
    """

    block: BinaryBlock
    segments: Indices
    labels: NDArray[np.str_]
    n_rows: int


def draw_dataset_rows(
    rows: RowSource, size: int, executor: Executor, seed: int, progress: Progress = ignore_progress
) -> SampledRows:
    """Draw so many rows, or all where there are fewer.

    Parameters
    ----------
    rows, executor, seed, progress
        As for `pipeline.passes.map_reduce.collect_statistics`; the seed decides which rows.
    size
        Rows to draw at the most.

    Raises
    ------
    FitError
        If there are no rows.
    """
    draw = partial(RowSample.from_block, size=size, rng=RowRandom(seed))
    return _sort_sample(collect_statistics(draw, rows, executor, "draw rows", progress=progress))


def draw_labelled_rows(
    rows: RowSource,
    size: int,
    column: str,
    data: HasLabels,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> SampledRows:
    """Draw from the rows that have a label; the parameters beside are those of `draw_dataset_rows`.

    Parameters
    ----------
    column
        A per-row column, which the rows are read with, or `SEGMENT`.
    data
        The dataset of the rows.

    Raises
    ------
    FitError
        If no row has a label, or labels are fractions.
    """
    draw = partial(_draw_labelled_block, size, column, RowRandom(seed))
    sample = collect_statistics(draw, rows, executor, "draw rows", progress=progress)
    values, places = np.unique(sample.labels, return_inverse=True)
    if not len(values):
        raise FitError(
            f"The column {column!r} has no label in these rows. Choose another.", parameter="label"
        )
    if (values != np.floor(values)).any():
        raise FitError(
            f"Expected texts or whole numbers in column {column!r}, got fractions. Choose another.",
            parameter="label",
        )
    labels = np.array(name_labels(values, column, data), np.str_)[places]
    return _sort_sample(sample, labels)


def _draw_labelled_block(size: int, column: str, rng: RowRandom, block: BinaryBlock) -> RowSample:
    labels = convert_labels_to_numbers(get_labels(block, column))
    at = np.flatnonzero(np.isfinite(labels))
    return RowSample.from_block(block.take_rows(at), size, rng, labels[at])


def _sort_sample(sample: RowSample, labels: NDArray[np.str_] | None = None) -> SampledRows:
    at = np.argsort(sample.rows)
    observed = None if sample.observed.all() else sample.observed[at]
    block = replace(pack_block(sample.X[at], observed), rows=sample.rows[at])
    told = np.empty(0, np.str_) if labels is None else labels[at]
    return SampledRows(block, sample.segments[at], told, sample.n_samples)


def code_rows(
    subject: EvaluatedModel,
    drawn: SampledRows,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> Array:
    """Return the codes of rows, (n_drawn, n_components), as `flows.transform` would.

    Parameters
    ----------
    subject
        The model; its `segments` are those of the dataset that the rows are of.
    drawn
        The rows.
    executor, seed, progress
        As for `pipeline.passes.map_reduce.collect_statistics`; the seed is that of the codes.

    Raises
    ------
    FitError
        If a code is not finite.
    """
    pieces = list(_split_by_segment(subject, drawn))
    code = partial(_code_piece, subject.model, subject.params, RowRandom(seed))
    codes, done = [], 0
    for k, part in enumerate(executor.map(code, [piece for _, piece in pieces]), start=1):
        codes.append(part)
        done += len(part)
        progress("code rows", k, len(pieces), done)
    places = np.concatenate([at for at, _ in pieces])
    found: Array = np.concatenate(codes)[np.argsort(places)]
    return found


def _split_by_segment(
    subject: EvaluatedModel, drawn: SampledRows
) -> Iterator[tuple[Indices, BinaryBlock]]:
    """Cut rows into blocks of one segment of the model's, and say where each row belongs."""
    own = (
        subject.segments[drawn.segments] if len(subject.segments) else np.zeros_like(drawn.segments)
    )
    for segment in np.unique(own):
        at = np.flatnonzero(own == segment)
        for some in iter_portions(len(at), drawn.block.n_features):
            yield at[some], replace(drawn.block.take_rows(at[some]), segment=int(segment))


def _code_piece(model: Model, params: Any, rng: RowRandom, block: BinaryBlock) -> Array:
    codes = model.transform(params, block, rng)["mean"]
    return cast_for_storage("mean", codes, block.rows, "float64")
