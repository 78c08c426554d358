"""Cross-validation: refit models without each fold, and evaluate them on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from flows.cli.errors import format_error, spell_option
from flows.running.flow import StageRunner
from pipeline.data.blocks import RowSource
from pipeline.data.features import (
    list_features,
    list_features_to_reconstruct,
    list_plane_names,
)
from pipeline.data.matching import map_fitted_segments
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import (
    EvaluatedModel,
    LikelihoodMeasure,
    ModelScores,
    RowFold,
    describe_differences,
    describe_likelihood,
    describe_scores,
    find_likelihood_measure,
    make_baseline_models,
    match_segments,
    score_models,
)
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import fit_model
from pipeline.models.base import Model
from pipeline.models.capabilities import CanPredict, HasSequences
from pipeline.passes.row_ranges import count_rows_by_chunk
from pipeline.statistics.sums import Sums
from storage.dataset.dataset import BinaryDataset

_MIN_FOLDS = 2


@dataclass(frozen=True)
class ModelToRefit:
    """A model to fit again; `artifact` is the path it was loaded from, None for a baseline."""

    name: str
    model: Model
    seed: int
    artifact: str | None = None


@dataclass(frozen=True)
class CrossValidationRows:
    """Rows divided into folds, and the means to read them.

    Attributes
    ----------
    dataset, folds
        The dataset and its folds.
    rows
        All rows; they should stay in memory, as every fold reads them.
    executor, seed, progress
        As for `pipeline.passes.map_reduce.collect_statistics`; the seed is for draws of codes.
    """

    dataset: BinaryDataset
    rows: RowSource
    folds: Sequence[RowFold]
    executor: Executor
    seed: int
    progress: Progress


@dataclass(frozen=True)
class _Refit:
    """A model fitted without a fold."""

    subject: EvaluatedModel
    measure: LikelihoodMeasure
    n_components: int
    warnings: tuple[str, ...]


def check_folds(n_folds: int, label: str | None, models: Sequence[Model], n_rows: int) -> None:
    """Check that models can be cross-validated on some of the rows of a dataset."""
    if n_folds > n_rows:
        raise FitError(
            f"{{folds}} is {n_folds}, but there are only {n_rows} rows. Choose at most {n_rows}."
        )
    if n_folds < _MIN_FOLDS:
        raise FitError(f"{{folds}} is {n_folds}. Choose at least {_MIN_FOLDS}.")
    if label is not None:
        raise FitError("{folds} and {label} cannot be combined.")
    for model in models:
        if isinstance(model, CanPredict):
            raise FitError(
                f"{{folds}} cannot be used with {model.name}, which predicts labels. Evaluate it "
                "on rows that were not fitted, with {split=NAME}."
            )
        if isinstance(model, HasSequences):
            raise FitError(
                f"{{folds}} cannot be used with {model.name}, because leaving out rows cuts their "
                "sequences. Fit a split of whole sequences, and evaluate on another by "
                "{split=NAME}."
            )
        if "periods" in model.support.parts:
            raise FitError(
                "{folds} cannot be used with positions over time: a fit has none at the times of "
                "the rows that it leaves out. Leave out {folds}."
            )


def cross_validate(
    models: Sequence[ModelToRefit],
    rows: CrossValidationRows,
    with_baselines: bool,
    stages: StageRunner,
) -> dict[str, Any]:
    """Cross-validate models, and the baselines too if `with_baselines`; each fit is a stage.

    A baseline that cannot be fitted becomes a warning. Raises `FitError` if a model cannot be
    fitted or evaluated; the message names the model and the fold.
    """
    n_rows, n_folds = sum(count_rows_by_chunk(rows.rows, rows.executor)), len(rows.folds)
    if n_folds > n_rows:
        raise FitError(
            f"{{folds}} is {n_folds}, but there are only {n_rows} rows. Choose at most {n_rows}."
        )
    baselines = {}
    if with_baselines:
        n_training = n_rows - -(-n_rows // n_folds)
        baselines = make_baseline_models(n_training, list_features(rows.dataset))
    models = [*models, *(ModelToRefit(name, m, rows.seed) for name, m in baselines.items())]
    refits: list[dict[str, _Refit]] = []
    scores: list[ModelScores] = []
    warnings: list[str] = []
    for number, fold in enumerate(rows.folds, start=1):
        fitted: dict[str, _Refit] = {}
        for model in models:
            work = partial(_fit_without_fold, fold, number, model, rows)
            try:
                fitted[model.name] = stages.run(f"fold {number} of {model.name}", work)
            except FitError as error:
                if model.artifact is not None:
                    raise
                warnings.append(format_error(error))
        models = [model for model in models if model.name in fitted]
        work_on_fold = partial(_score_fold, fold, number, fitted, rows)
        needed = [f"fold {number} of {name}" for name in fitted]
        scores.append(stages.run(f"score fold {number}", work_on_fold, needed))
        refits.append(fitted)
    merged = reduce(ModelScores.merge, scores)
    descriptions = [
        _describe_model(
            model,
            [fitted[model.name] for fitted in refits],
            [score.models[model.name] for score in scores],
            merged.models[model.name],
        )
        for model in models
    ]
    return {
        "n_samples": n_rows,
        "models": descriptions,
        "differences": describe_differences(descriptions, merged),
        "warnings": warnings,
    }


def _fit_without_fold(
    fold: RowFold, number: int, model: ModelToRefit, rows: CrossValidationRows
) -> _Refit:
    dataset, training = rows.dataset, fold.select_training(rows.rows)
    names = (list_plane_names(dataset), dataset.segment_names)
    try:
        state = fit_model(model.model, training, rows.executor, model.seed, progress=rows.progress)
        segments = map_fitted_segments(state.params, dataset.segment_names)
        subject = match_segments(
            model.model,
            state.params,
            segments,
            dataset.segment_names,
            features=list_features_to_reconstruct(dataset),
        )
        measure = find_likelihood_measure(subject, dataset.n_planes)
    except FitError as error:
        raise error.with_names(*names).with_prefix(f"{model.name}: fold {number}") from error
    warnings = tuple(warning.render(*names, spell=spell_option) for warning in state.warnings)
    return _Refit(subject, measure, int(state.diagnostics["n_components"]), warnings)


def _score_fold(
    fold: RowFold, number: int, refits: Mapping[str, _Refit], rows: CrossValidationRows
) -> ModelScores:
    subjects = {name: (refit.subject, refit.measure.name) for name, refit in refits.items()}
    held_out = fold.select_held_out(rows.rows)
    try:
        return score_models(subjects, held_out, rows.executor, rows.seed, rows.progress)
    except FitError as error:
        raise error.with_prefix(f"fold {number}") from error


def _describe_model(
    model: ModelToRefit, refits: Sequence[_Refit], fold_sums: Sequence[Sums], sums: Sums
) -> dict[str, Any]:
    """Describe the scores of a model, over all folds together and for each fold."""
    return {
        "name": model.name,
        "artifact": model.artifact,
        "model": model.model.name,
        "n_components": refits[0].n_components,
        "rows_fitted": "none",
        **describe_scores(refits[0].subject, refits[0].measure, sums),
        "folds": [
            {
                "rows": fold.n_rows,
                "n_components": refit.n_components,
                **describe_likelihood(refit.measure, fold),
            }
            for refit, fold in zip(refits, fold_sums, strict=True)
        ],
        "warnings": [*_iter_fold_warnings(refits)],
    }


def _iter_fold_warnings(refits: Sequence[_Refit]) -> Iterator[str]:
    """Iterate over the warnings of all fits, with the folds that each fit left out."""
    n_components = [str(refit.n_components) for refit in refits]
    if len(set(n_components)) > 1:
        yield f"the number of components differs between folds: {', '.join(n_components)}"
    folds: dict[str, list[str]] = defaultdict(list)
    for number, refit in enumerate(refits, start=1):
        for text in refit.warnings:
            folds[text].append(str(number))
    yield from (f"without fold {', '.join(numbers)}: {text}" for text, numbers in folds.items())
