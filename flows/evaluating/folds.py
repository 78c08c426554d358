"""Judges models by rows that they are refitted without: cross-validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from flows.cli.errors import format_error, spell_option
from flows.evaluating.named import NO_SEGMENTS
from flows.running.stages import StageRunner
from pipeline.data.blocks import RowSource
from pipeline.data.segments import find_segment_indices, map_fitted_segments
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import (
    EvaluatedModel,
    LikelihoodMeasure,
    RowFold,
    describe_likelihood,
    describe_reconstruction,
    find_likelihood_measure,
    make_baseline_models,
    score_rows,
)
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import fit_model
from pipeline.models.base import Model
from pipeline.models.capabilities import CanPredict
from pipeline.passes.row_ranges import count_rows_by_chunk
from pipeline.statistics.sums import Sums
from storage.dataset.dataset import BinaryDataset

_MIN_FOLDS = 2


@dataclass(frozen=True)
class ModelToRefit:
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
class CrossValidationRows:
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
        As for `pipeline.passes.map_reduce.collect_statistics`; the seed is that of draws of codes.
    """

    dataset: BinaryDataset
    rows: RowSource
    folds: Sequence[RowFold]
    executor: Executor
    seed: int
    progress: Progress


@dataclass(frozen=True)
class _FoldResult:
    """What the rows of one fold say of a model that was fitted without them."""

    measure: LikelihoodMeasure
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
    if n_folds < _MIN_FOLDS:
        raise FitError(f"--folds: Expected at least {_MIN_FOLDS}, got {n_folds}. Ask for more.")
    if label is not None:
        raise FitError(f"--folds: Expected no --label, got {label!r}. Leave out one of the two.")
    for model in models:
        if isinstance(model, CanPredict):
            raise FitError(
                f"--folds: Expected models of features alone, got {model.name}, which predicts "
                "labels. Give rows that were not fitted: --split NAME."
            )


def cross_validate(
    refits: Sequence[ModelToRefit],
    dealt: CrossValidationRows,
    with_baselines: bool,
    stages: StageRunner,
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
    n_rows, n_folds = sum(count_rows_by_chunk(dealt.rows, dealt.executor)), len(dealt.folds)
    if n_folds > n_rows:
        raise FitError(
            f"--folds: Expected at most {n_rows}, as many as rows, got {n_folds}. Ask for fewer."
        )
    models, warnings = [_cross_validate_model(refit, dealt, stages) for refit in refits], []
    simple = make_baseline_models(n_rows - -(-n_rows // n_folds)) if with_baselines else {}
    for name, model in simple.items():
        try:
            models.append(
                _cross_validate_model(ModelToRefit(name, model, dealt.seed), dealt, stages)
            )
        except FitError as error:
            warnings.append(format_error(error))
    return {"n_samples": n_rows, "models": models, "warnings": warnings}


def _cross_validate_model(
    refit: ModelToRefit, dealt: CrossValidationRows, stages: StageRunner
) -> dict[str, Any]:
    """Fit a model to all folds but one, judge it by that one, and so on with each."""
    judged = [
        stages.run(
            f"fold {number} of {refit.name}", partial(_evaluate_fold, fold, number, refit, dealt)
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
        **describe_likelihood(measure, sums),
        **describe_reconstruction(sums),
        "folds": [_describe_fold(one) for one in judged],
        "warnings": [*_iter_fold_warnings(judged)],
    }


def _evaluate_fold(
    fold: RowFold, number: int, refit: ModelToRefit, dealt: CrossValidationRows
) -> _FoldResult:
    names = (dealt.dataset.feature_names, dealt.dataset.segment_names)
    try:
        return _refit_and_score(fold, refit, dealt)
    except FitError as error:
        raise error.with_names(*names).with_prefix(f"{refit.name}: fold {number}") from error


def _refit_and_score(fold: RowFold, refit: ModelToRefit, dealt: CrossValidationRows) -> _FoldResult:
    dataset, executor, progress = dealt.dataset, dealt.executor, dealt.progress
    names = (dataset.feature_names, dataset.segment_names)
    state = fit_model(
        refit.model, fold.select_training(dealt.rows), executor, refit.seed, progress=progress
    )
    known = map_fitted_segments(state.params, dataset.segment_names)
    segments = find_segment_indices(known, dataset.segment_names) if known else NO_SEGMENTS
    subject = EvaluatedModel(refit.model, state.params, segments)
    measure = find_likelihood_measure(subject, dataset.n_features)
    rows = fold.select_held_out(dealt.rows)
    sums = score_rows(subject, measure.name, rows, executor, dealt.seed, progress)
    warnings = tuple(notice.render(*names, spell=spell_option) for notice in state.warnings)
    return _FoldResult(measure, sums, int(state.diagnostics["n_components"]), warnings)


def _describe_fold(judged: _FoldResult) -> dict[str, Any]:
    found = describe_likelihood(judged.measure, judged.sums)
    return {"rows": judged.sums.n_samples, "n_components": judged.n_components, **found}


def _iter_fold_warnings(judged: Sequence[_FoldResult]) -> Iterator[str]:
    """Give the warnings of all fits, each with the folds that were left out of them."""
    if len({one.n_components for one in judged}) > 1:
        yield f"components, fold by fold: {', '.join(str(one.n_components) for one in judged)}"
    numbers: dict[str, list[str]] = defaultdict(list)
    for number, one in enumerate(judged, start=1):
        for text in one.warnings:
            numbers[text].append(str(number))
    yield from (f"without fold {', '.join(of)}: {text}" for text, of in numbers.items())
