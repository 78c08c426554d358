"""Cross-validation: refit models without each fold, and evaluate them on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from flows.cli.errors import format_error, spell_option
from flows.running.flow import StageRunner
from pipeline.data.blocks import RowSource
from pipeline.data.matching import map_fitted_segments
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import (
    LikelihoodMeasure,
    RowFold,
    describe_likelihood,
    describe_reconstruction,
    find_likelihood_measure,
    make_baseline_models,
    match_segments,
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
class _FoldResult:
    """The evaluation of a model on the fold that it was fitted without."""

    measure: LikelihoodMeasure
    sums: Sums
    n_components: int
    warnings: tuple[str, ...]


def check_folds(n_folds: int, label: str | None, models: Sequence[Model]) -> None:
    """Check that models can be cross-validated."""
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


def cross_validate(
    refits: Sequence[ModelToRefit],
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
    models, warnings = [_cross_validate_model(refit, rows, stages) for refit in refits], []
    baselines = make_baseline_models(n_rows - -(-n_rows // n_folds)) if with_baselines else {}
    for name, model in baselines.items():
        try:
            models.append(_cross_validate_model(ModelToRefit(name, model, rows.seed), rows, stages))
        except FitError as error:
            warnings.append(format_error(error))
    return {"n_samples": n_rows, "models": models, "warnings": warnings}


def _cross_validate_model(
    refit: ModelToRefit, rows: CrossValidationRows, stages: StageRunner
) -> dict[str, Any]:
    """Refit a model without each fold in turn, and evaluate it on that fold."""
    results = [
        stages.run(
            f"fold {number} of {refit.name}", partial(_evaluate_fold, fold, number, refit, rows)
        )
        for number, fold in enumerate(rows.folds, start=1)
    ]
    measure, sums = results[0].measure, reduce(Sums.merge, (result.sums for result in results))
    return {
        "name": refit.name,
        "artifact": refit.artifact,
        "model": refit.model.name,
        "n_components": results[0].n_components,
        "rows_fitted": "none",
        **describe_likelihood(measure, sums),
        **describe_reconstruction(sums),
        "folds": [_describe_fold(result) for result in results],
        "warnings": [*_iter_fold_warnings(results)],
    }


def _evaluate_fold(
    fold: RowFold, number: int, refit: ModelToRefit, rows: CrossValidationRows
) -> _FoldResult:
    names = (rows.dataset.feature_names, rows.dataset.segment_names)
    try:
        return _refit_and_score(fold, refit, rows)
    except FitError as error:
        raise error.with_names(*names).with_prefix(f"{refit.name}: fold {number}") from error


def _refit_and_score(fold: RowFold, refit: ModelToRefit, rows: CrossValidationRows) -> _FoldResult:
    dataset, executor, progress = rows.dataset, rows.executor, rows.progress
    names = (dataset.feature_names, dataset.segment_names)
    state = fit_model(
        refit.model, fold.select_training(rows.rows), executor, refit.seed, progress=progress
    )
    segments = map_fitted_segments(state.params, dataset.segment_names)
    subject = match_segments(refit.model, state.params, segments, dataset.segment_names)
    measure = find_likelihood_measure(subject, dataset.n_features)
    held_out = fold.select_held_out(rows.rows)
    sums = score_rows(subject, measure.name, held_out, executor, rows.seed, progress)
    warnings = tuple(warning.render(*names, spell=spell_option) for warning in state.warnings)
    return _FoldResult(measure, sums, int(state.diagnostics["n_components"]), warnings)


def _describe_fold(result: _FoldResult) -> dict[str, Any]:
    likelihood = describe_likelihood(result.measure, result.sums)
    return {"rows": result.sums.n_samples, "n_components": result.n_components, **likelihood}


def _iter_fold_warnings(results: Sequence[_FoldResult]) -> Iterator[str]:
    """Iterate over the warnings of all fits, with the folds that each fit left out."""
    n_components = [str(result.n_components) for result in results]
    if len(set(n_components)) > 1:
        yield f"the number of components differs between folds: {', '.join(n_components)}"
    folds: dict[str, list[str]] = defaultdict(list)
    for number, result in enumerate(results, start=1):
        for text in result.warnings:
            folds[text].append(str(number))
    yield from (f"without fold {', '.join(numbers)}: {text}" for text, numbers in folds.items())
