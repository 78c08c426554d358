"""Judges the codes of models by their neighbourhoods, on rows that are drawn once for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flows.data.datasets import dataset_rows
from flows.fitting.training import Training
from pipeline.data.blocks import Rows
from pipeline.data.segments import segment_indices
from pipeline.evaluation.evaluate import Subject
from pipeline.evaluation.neighbourhoods import MOST_FITTED, MOST_JUDGED, Vote, code_summary
from pipeline.evaluation.sampled_rows import Drawn, draw_labelled, draw_rows
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.statistics.labels import columns_to_read
from storage.dataset.dataset import BinaryDataset


@dataclass(frozen=True)
class Source:
    """Where rows are drawn from, and how.

    Attributes
    ----------
    dataset, split
        The rows to judge by.
    label
        The column to tell, or None.
    executor, seed, progress
        As for `pipeline.passes.collect.collect`.
    """

    dataset: BinaryDataset
    split: str | None
    label: str | None
    executor: Executor
    seed: int
    progress: Progress


@dataclass(frozen=True)
class DrawnRows:
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

    source: Source
    judged: Drawn
    votes: Mapping[str, Vote]


def draw(source: Source, rows: Rows, trainings: Sequence[Training]) -> DrawnRows:
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
    votes = {} if source.label is None else _votes(source, source.label, trainings)
    return DrawnRows(source, draw_rows(rows, MOST_JUDGED, *how), votes)


def _votes(source: Source, label: str, trainings: Sequence[Training]) -> dict[str, Vote]:
    how = (source.executor, source.seed, source.progress)
    columns = columns_to_read(label)
    rows = dataset_rows(source.dataset, source.split, columns=columns)
    judged = draw_labelled(rows, MOST_JUDGED, label, source.dataset, *how)
    votes = {}
    for key, training in {_key(training): training for training in trainings}.items():
        rows = training.rows(0, columns)
        fitted = draw_labelled(rows, MOST_FITTED, label, training.dataset, *how)
        apart = training.among(source.dataset, source.split) == "none"
        votes[key] = Vote(label, judged, fitted, apart)
    return votes


def judged_codes(
    drawn: DrawnRows, subject: Subject, segments: Mapping[str, int], training: Training
) -> dict[str, Any]:
    """Describe the codes of a model, as `pipeline.evaluation.neighbourhoods.code_summary` does.

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
    vote = None if source.label is None else drawn.votes[_key(training)]
    there = replace(subject, segments=segment_indices(segments, training.dataset.segment_names))
    how = (source.executor, source.seed, source.progress)
    return code_summary(subject, there, drawn.judged, vote, *how)


def _key(training: Training) -> str:
    """Name the rows: two artifacts may be fitted to the same."""
    rows = (training.split, training.n_chunks, training.skipped)
    return f"{training.dataset.digest} {rows}"
