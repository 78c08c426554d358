"""Judges the codes of models by their neighbourhoods, on rows that are drawn once for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flows.data.datasets import make_row_source
from flows.fitting.training import TrainingRows
from pipeline.data.blocks import RowSource
from pipeline.data.segments import find_segment_indices
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.neighbourhoods import (
    MAX_QUERY_ROWS,
    MAX_REFERENCE_ROWS,
    NeighbourVote,
    describe_code_quality,
)
from pipeline.evaluation.sampled_rows import SampledRows, draw_dataset_rows, draw_labelled_rows
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.statistics.labels import list_columns_to_read
from storage.dataset.dataset import BinaryDataset


@dataclass(frozen=True)
class SampleSource:
    """Where rows are drawn from, and how.

    Attributes
    ----------
    dataset, split
        The rows to judge by.
    label
        The column to tell, or None.
    executor, seed, progress
        As for `pipeline.passes.map_reduce.collect_statistics`.
    """

    dataset: BinaryDataset
    split: str | None
    label: str | None
    executor: Executor
    seed: int
    progress: Progress


@dataclass(frozen=True)
class EvaluationSample:
    """Rows to judge codes by.

    Attributes
    ----------
    source
        Where they were drawn from.
    judged
        Some of the rows to judge by.
    votes
        Some of those with a label, beside some of the rows that a model was fitted to; by these.
    """

    source: SampleSource
    rows: SampledRows
    votes: Mapping[str, NeighbourVote]


def draw_evaluation_sample(
    source: SampleSource, rows: RowSource, trainings: Sequence[TrainingRows]
) -> EvaluationSample:
    """Draw the rows to judge by, and where a label is to be told some that were fitted.

    Parameters
    ----------
    source
        Where from.
    rows
        The rows to judge by, which may stay in memory.
    trainings
        What models were fitted to.

    Raises
    ------
    FitError
        If there are no rows, or none with a label, or labels are fractions.
    """
    how = (source.executor, source.seed, source.progress)
    votes = {} if source.label is None else _draw_votes(source, source.label, trainings)
    return EvaluationSample(source, draw_dataset_rows(rows, MAX_QUERY_ROWS, *how), votes)


def _draw_votes(
    source: SampleSource, label: str, trainings: Sequence[TrainingRows]
) -> dict[str, NeighbourVote]:
    how = (source.executor, source.seed, source.progress)
    columns = list_columns_to_read(label)
    rows = make_row_source(source.dataset, source.split, columns=columns)
    judged = draw_labelled_rows(rows, MAX_QUERY_ROWS, label, source.dataset, *how)
    votes = {}
    for key, training in {
        _format_training_key(training): training for training in trainings
    }.items():
        rows = training.make_row_source(0, columns)
        fitted = draw_labelled_rows(rows, MAX_REFERENCE_ROWS, label, training.dataset, *how)
        apart = training.find_overlap(source.dataset, source.split) == "none"
        votes[key] = NeighbourVote(label, judged, fitted, apart)
    return votes


def evaluate_codes(
    drawn: EvaluationSample,
    subject: EvaluatedModel,
    segments: Mapping[str, int],
    training: TrainingRows,
) -> dict[str, Any]:
    """Describe the codes of a model, as `pipeline.evaluation.neighbourhoods.describe_code_quality` does.

    Parameters
    ----------
    drawn
        The rows to judge by.
    subject
        The model.
    segments
        Index of each segment that has parameters of its own, by name.
    training
        Rows that were fitted.

    Raises
    ------
    FitError
        If a code is not finite.
    """
    source = drawn.source
    vote = None if source.label is None else drawn.votes[_format_training_key(training)]
    there = replace(
        subject, segments=find_segment_indices(segments, training.dataset.segment_names)
    )
    how = (source.executor, source.seed, source.progress)
    return describe_code_quality(subject, there, drawn.rows, vote, *how)


def _format_training_key(training: TrainingRows) -> str:
    """Name the rows: two artifacts may be fitted to the same."""
    rows = (training.split, training.n_chunks, training.skipped)
    return f"{training.dataset.digest} {rows}"
