"""Judges models by rows that they are refitted without: cross-validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from flows.evaluating.named import NO_SEGMENTS
from flows.running.stages import Stages
from pipeline.data.blocks import Rows
from pipeline.data.segments import known_segments, segment_indices
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import (
    Measure,
    Subject,
    baselines,
    likelihood_summary,
    measure_of,
    reconstruction_summary,
    score_rows,
)
from pipeline.evaluation.folds import Fold
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import fit
from pipeline.models.base import Model
from pipeline.models.capabilities import Supervised
from pipeline.passes.row_ranges import rows_by_chunk
from pipeline.statistics.sums import Sums
from storage.dataset.dataset import BinaryDataset

_FEWEST = 2


@dataclass(frozen=True)
class Refit:
    """A model to fit again.

    Attributes
    ----------
    name
        What it is called.
    model, seed
        Its settings.
    artifact
        The fit that these are from, or None of a simple model.
    """

    name: str
    model: Model
    seed: int
    artifact: str | None = None


@dataclass(frozen=True)
class Dealt:
    """Rows that were dealt to folds.

    Attributes
    ----------
    dataset
        Whose rows.
    rows
        All of them; they should stay in memory, as every fold goes over them.
    folds
        The folds.
    executor, seed, progress
        As for `pipeline.passes.collect.collect`; the seed is that of draws of codes.
    """

    dataset: BinaryDataset
    rows: Rows
    folds: Sequence[Fold]
    executor: Executor
    seed: int
    progress: Progress


@dataclass(frozen=True)
class _Judged:
    """What the rows of one fold say of a model that was fitted without them."""

    measure: Measure
    sums: Sums
    n_components: int
    warnings: tuple[str, ...]


def check_folds(n_folds: int, label: str | None, models: Sequence[Model]) -> None:
    """Refuse what cannot be cross-validated.

    Raises
    ------
    FitError
        If folds are too few, or labels are to be predicted or told.
    """
    if n_folds < _FEWEST:
        raise FitError(f"--folds: Expected at least {_FEWEST}, got {n_folds}. Ask for more.")
    if label is not None:
        raise FitError(f"--folds: Expected no --label, got {label!r}. Leave out one of the two.")
    for model in models:
        if isinstance(model, Supervised):
            raise FitError(
                f"--folds: Expected models of features alone, got {model.name}, which predicts "
                "labels. Give rows that were not fitted: --split NAME."
            )


def fold_steps(
    refits: Sequence[Refit], dealt: Dealt, with_baselines: bool, stages: Stages
) -> dict[str, Any]:
    """Cross-validate models, and simple ones beside them where that can be done.

    Parameters
    ----------
    refits
        The models.
    dealt
        The rows.
    with_baselines
        Whether to compare with simple models.
    stages
        Runs the fits, a stage each.

    Raises
    ------
    FitError
        Naming the model and the fold that it could not be fitted to or judged by.
    """
    n_rows, n_folds = sum(rows_by_chunk(dealt.rows, dealt.executor)), len(dealt.folds)
    if n_folds > n_rows:
        raise FitError(
            f"--folds: Expected at most {n_rows}, as many as rows, got {n_folds}. Ask for fewer."
        )
    models, warnings = [_cross_validated(refit, dealt, stages) for refit in refits], []
    simple = baselines(n_rows - -(-n_rows // n_folds)) if with_baselines else {}
    for name, model in simple.items():
        try:
            models.append(_cross_validated(Refit(name, model, dealt.seed), dealt, stages))
        except FitError as error:
            warnings.append(str(error))
    return {"n_samples": n_rows, "models": models, "warnings": warnings}


def _cross_validated(refit: Refit, dealt: Dealt, stages: Stages) -> dict[str, Any]:
    """Fit a model to all folds but one, judge it by that one, and so on with each."""
    judged = [
        stages.run(
            f"fold {number} of {refit.name}", partial(_judged_by, fold, number, refit, dealt)
        )
        for number, fold in enumerate(dealt.folds, start=1)
    ]
    measure, sums = judged[0].measure, reduce(Sums.merge, (one.sums for one in judged))
    return {
        "name": refit.name,
        "artifact": refit.artifact,
        "model": refit.model.name,
        "n_components": judged[0].n_components,
        "rows_fitted": "none",
        **likelihood_summary(measure, sums),
        **reconstruction_summary(sums),
        "folds": [_described(one) for one in judged],
        "warnings": [*_told_by_fold(judged)],
    }


def _judged_by(fold: Fold, number: int, refit: Refit, dealt: Dealt) -> _Judged:
    names = (dealt.dataset.feature_names, dealt.dataset.segment_names)
    try:
        return _refitted(fold, refit, dealt)
    except FitError as error:
        raise FitError(f"{refit.name}: fold {number}: {error.notice.render(*names)}") from error


def _refitted(fold: Fold, refit: Refit, dealt: Dealt) -> _Judged:
    dataset, executor, progress = dealt.dataset, dealt.executor, dealt.progress
    names = (dataset.feature_names, dataset.segment_names)
    state = fit(refit.model, fold.fitted(dealt.rows), executor, refit.seed, progress=progress)
    known = known_segments(state.params, dataset.segment_names)
    segments = segment_indices(known, dataset.segment_names) if known else NO_SEGMENTS
    subject = Subject(refit.model, state.params, segments)
    measure = measure_of(subject, dataset.n_features)
    rows = fold.held_out(dealt.rows)
    sums = score_rows(subject, measure.name, rows, executor, dealt.seed, progress)
    warnings = tuple(notice.render(*names) for notice in state.warnings)
    return _Judged(measure, sums, int(state.diagnostics["n_components"]), warnings)


def _described(judged: _Judged) -> dict[str, Any]:
    found = likelihood_summary(judged.measure, judged.sums)
    return {"rows": judged.sums.n_samples, "n_components": judged.n_components, **found}


def _told_by_fold(judged: Sequence[_Judged]) -> Iterator[str]:
    """Give the warnings of all fits, each with the folds that were left out of them."""
    if len({one.n_components for one in judged}) > 1:
        yield f"components, fold by fold: {', '.join(str(one.n_components) for one in judged)}"
    numbers: dict[str, list[str]] = defaultdict(list)
    for number, one in enumerate(judged, start=1):
        for text in one.warnings:
            numbers[text].append(str(number))
    yield from (f"without fold {', '.join(of)}: {text}" for text, of in numbers.items())
