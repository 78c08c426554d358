"""Rows drawn from a dataset by (seed, stream, original row), with their labels, and their codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, Rows, block_of
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import Subject
from pipeline.evaluation.prediction import Labelled, label_names
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, silent
from pipeline.inference.transform import as_stored, portions_of
from pipeline.models.base import Model
from pipeline.passes.collect import collect
from pipeline.random import RowRandom
from pipeline.statistics.labels import as_numbers, labels_of
from pipeline.statistics.row_sample import RowSample

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class Drawn(NamedTuple):
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


def draw_rows(
    rows: Rows, size: int, executor: Executor, seed: int, progress: Progress = silent
) -> Drawn:
    """Draw so many rows, or all where there are fewer.

    Parameters
    ----------
    rows, executor, seed, progress
        As for `pipeline.passes.collect.collect`; the seed decides which rows.
    size
        Rows to draw at the most.

    Raises
    ------
    FitError
        If there are no rows.
    """
    draw = partial(RowSample.of_block, size=size, rng=RowRandom(seed))
    return _in_order(collect(draw, rows, executor, "draw rows", progress=progress))


def draw_labelled(
    rows: Rows,
    size: int,
    column: str,
    data: Labelled,
    executor: Executor,
    seed: int,
    progress: Progress = silent,
) -> Drawn:
    """Draw from the rows that have a label; the parameters beside are those of `draw_rows`.

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
    draw = partial(_draw_labelled, size, column, RowRandom(seed))
    sample = collect(draw, rows, executor, "draw rows", progress=progress)
    values, places = np.unique(sample.labels, return_inverse=True)
    if not len(values):
        raise FitError(
            f"--label: Expected labels in column {column!r}, got none in these rows. "
            "Choose another."
        )
    if (values != np.floor(values)).any():
        raise FitError(
            f"--label: Expected texts or whole numbers in column {column!r}, got fractions. "
            "Choose another."
        )
    labels = np.array(label_names(values, column, data), np.str_)[places]
    return _in_order(sample, labels)


def _draw_labelled(size: int, column: str, rng: RowRandom, block: BinaryBlock) -> RowSample:
    labels = as_numbers(labels_of(block, column))
    at = np.flatnonzero(np.isfinite(labels))
    return RowSample.of_block(block.taken(at), size, rng, labels[at])


def _in_order(sample: RowSample, labels: NDArray[np.str_] | None = None) -> Drawn:
    at = np.argsort(sample.rows)
    observed = None if sample.observed.all() else sample.observed[at]
    block = replace(block_of(sample.X[at], observed), rows=sample.rows[at])
    told = np.empty(0, np.str_) if labels is None else labels[at]
    return Drawn(block, sample.segments[at], told, sample.n_samples)


def code_rows(
    subject: Subject, drawn: Drawn, executor: Executor, seed: int, progress: Progress = silent
) -> Array:
    """Give the codes of rows, (n_drawn, n_components), as `flows.transform` would.

    Parameters
    ----------
    subject
        The model; its `segments` are those of the dataset that the rows are of.
    drawn
        The rows.
    executor, seed, progress
        As for `pipeline.passes.collect.collect`; the seed is that of the codes.

    Raises
    ------
    FitError
        If a code is not finite.
    """
    pieces = list(_pieces(subject, drawn))
    code = partial(_codes_of, subject.model, subject.params, RowRandom(seed))
    codes, done = [], 0
    for k, part in enumerate(executor.map(code, [piece for _, piece in pieces]), start=1):
        codes.append(part)
        done += len(part)
        progress("code rows", k, len(pieces), done)
    places = np.concatenate([at for at, _ in pieces])
    found: Array = np.concatenate(codes)[np.argsort(places)]
    return found


def _pieces(subject: Subject, drawn: Drawn) -> Iterator[tuple[Indices, BinaryBlock]]:
    """Cut rows into blocks of one segment of the model's, and say where each row belongs."""
    own = (
        subject.segments[drawn.segments] if len(subject.segments) else np.zeros_like(drawn.segments)
    )
    for segment in np.unique(own):
        at = np.flatnonzero(own == segment)
        for some in portions_of(len(at), drawn.block.n_features):
            yield at[some], replace(drawn.block.taken(at[some]), segment=int(segment))


def _codes_of(model: Model, params: Any, rng: RowRandom, block: BinaryBlock) -> Array:
    codes = model.transform(params, block, rng)["mean"]
    return as_stored("mean", codes, block.rows, "float64")
