"""Judges the codes of models by their neighbourhoods, on rows that are drawn once for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flows.data.datasets import dataset_rows
from flows.fitting.training import Training
from pipeline.blocks import Rows
from pipeline.executors.base import Executor
from pipeline.known_segments import segment_indices
from pipeline.progress import Progress
from pipeline.statistics.labels import SEGMENT
from pipeline.using.drawn_rows import Drawn, code_rows, draw_labelled, draw_rows
from pipeline.using.evaluate import Subject
from pipeline.using.neighbourhoods import (
    MOST_FITTED,
    MOST_JUDGED,
    Vote,
    neighbourhood_summary,
    vote_summary,
)
from storage.dataset import BinaryDataset


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
        As for `pipeline.collect.collect`.
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
        Some of those with a label, beside rows that were fitted, by which these are.
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
    columns = () if label == SEGMENT else (label,)
    rows = dataset_rows(source.dataset, source.split, columns=columns)
    judged = draw_labelled(rows, MOST_JUDGED, label, source.dataset, *how)
    votes = {}
    for key, training in {_key(training): training for training in trainings}.items():
        rows = training.rows(0, columns)
        fitted = draw_labelled(rows, MOST_FITTED, label, training.dataset, *how)
        apart = training.among(source.dataset, source.split) == "none"
        votes[key] = Vote(judged, fitted, apart)
    return votes


def code_summary(
    drawn: DrawnRows, subject: Subject, segments: Mapping[str, int], training: Training
) -> dict[str, Any]:
    """Describe how well the codes of a model keep neighbourhoods, and tell the label.

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

    Returns
    -------
    dict
        `neighbourhoods`, and where there is a label `neighbour_labels`: its `column`,
        `rows_without` one, and what `pipeline.using.neighbourhoods` says of both. Codes that are
        all the same have neither.

    Raises
    ------
    FitError
        If a code is not finite.
    """
    source = drawn.source
    how = (source.executor, source.seed, source.progress)
    kept = neighbourhood_summary(drawn.judged, code_rows(subject, drawn.judged, *how))
    found = {"neighbourhoods": kept} if kept else {}
    if source.label is None:
        return found
    vote = drawn.votes[_key(training)]
    there = replace(subject, segments=segment_indices(segments, training.dataset.segment_names))
    codes = (code_rows(subject, vote.judged, *how), code_rows(there, vote.fitted, *how))
    told = vote_summary(vote, *codes)
    without = drawn.judged.n_rows - vote.judged.n_rows
    labels = {"column": source.label, "rows_without": without, **told}
    return {**found, "neighbour_labels": labels} if told else found


def _key(training: Training) -> str:
    """Name the rows: two artifacts may be fitted to the same."""
    rows = (training.split, training.n_chunks, training.skipped)
    return f"{training.dataset.digest} {rows}"
