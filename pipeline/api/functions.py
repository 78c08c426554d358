"""Models in a few lines, for notebooks: `fit`, `transform`, `evaluate`.

`flows` does the same with checkpoints and results on disk. Work runs on `n_jobs` threads, by
default on all CPUs. At a terminal and in a notebook a line tells how far it is once it takes longer
than a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar, get_args
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from pipeline.api.fitted import Codes, Evaluation, Fitted
from pipeline.api.in_python import speaking_python, told_in_python
from pipeline.api.progress_line import telling
from pipeline.data.blocks import Rows
from pipeline.data.features import check_features
from pipeline.data.protocols import Dataset
from pipeline.data.segments import known_segments, segment_indices, unknown_segments
from pipeline.errors import FitError, suggestion
from pipeline.evaluation.evaluate import (
    Subject,
    likelihood_summary,
    measure_of,
    reconstruction_summary,
    score_rows,
)
from pipeline.evaluation.neighbourhoods import MOST_FITTED, MOST_JUDGED, Vote, code_summary
from pipeline.evaluation.prediction import category_names, labels_for, prediction_summary
from pipeline.evaluation.sampled_rows import draw_labelled, draw_rows
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.executors.threads import executor_of
from pipeline.fitting.loop import fit as fit_model
from pipeline.inference.transform import Reconstruction, Transform
from pipeline.learning.convergence import kept_objective
from pipeline.models.base import Model
from pipeline.models.registry import model_class
from pipeline.models.settings import check_types, hyperparameters, takes_none
from pipeline.params import named_arrays
from pipeline.passes.row_ranges import Run, rows_by_chunk, runs_of
from pipeline.random import RowRandom
from pipeline.statistics.labels import columns_to_read

__all__ = ["Codes", "Evaluation", "Fitted", "evaluate", "fit", "likelihood", "transform"]

T = TypeVar("T")

_ROWS_A_RUN = 1 << 16


def fit(
    dataset: Dataset,
    model: str = "clipped-pca",
    *,
    components: int | str | None = None,
    split: str | None = None,
    seed: int = 0,
    n_jobs: int = -1,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Fitted:
    """Fit a model to a dataset.

    Parameters
    ----------
    dataset
        From `storage.open_dataset`, or `latentbits.from_numpy` and `from_dataframe`.
    model
        Name of the model: autoencoder, bernoulli-mixture, binary-ica-likelihood, blica, bottleneck,
        clipped-pca, fastica, kernel-pca, laplacian-eigenmap, latent-trait, linear-ivae, noisy-or,
        rbm, stack, or package.module:Class of one elsewhere.
    components
        Their number, `auto` where the model can choose it, or None for the model's default.
    split
        Fit the rows of this split alone; None takes all, where `flows.fit` would take `train`.
    seed
        Of every random draw.
    n_jobs
        Threads, -1 for as many as there are CPUs; results do not depend on it.
    executor
        Where the work runs instead.
    progress
        Is told how far it is; None shows a line.
    **settings
        The model's own, as `latentbits fit --model NAME --help` lists them: for latent-trait
        `nodes=61`, for one.

    Returns
    -------
    Fitted
        `params` has the model's arrays, such as `params.weights`; `warnings` is what to know first.

    Raises
    ------
    FitError
        If a name or a value cannot be used, or the data cannot be fitted.
    """
    names = (dataset.feature_names, dataset.segment_names)
    executor = executor or executor_of(n_jobs)
    with _speaking(dataset), telling(progress) as told:
        built = _built(model, components, settings)
        rows = _rows(dataset, split, 1 << 30, built.reads_columns())
        state = fit_model(built, rows, executor, seed, progress=told)
    warnings = tuple(told_in_python(notice, *names) for notice in state.warnings)
    convergence, history = built.convergence(state), state.history
    converged = convergence.converged(history)
    named = state.diagnostics.get("objective_is", "objective")
    objective = kept_objective(convergence, history) if history else None
    return Fitted(
        built,
        state.params,
        *names,
        history,
        warnings,
        converged,
        named,
        objective,
        category_names(built, state.params, dataset),
        state.diagnostics.get("fit_statistics", {}),
    )


def transform(
    fitted: Fitted,
    dataset: Dataset,
    *,
    split: str | None = None,
    reconstruct: Reconstruction | None = None,
    seed: int = 0,
    n_jobs: int = -1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Codes:
    """Give the latent codes of all rows in their original order, such as `mean`, and `row`.

    Parameters
    ----------
    fitted
        The model.
    dataset, split
        The rows; features must be those of the fit.
    reconstruct
        Give also `probabilities` of ones given the codes, or the likelier `bits`:
        (n_rows, n_features).
    seed, n_jobs, executor, progress
        As for `fit`.

    Returns
    -------
    Codes
        Arrays by name, a row for every row: mostly `mean`, (n_rows, n_components), with `variance`
        where the model gives it, and `row`, the number of the row in the data.

    Raises
    ------
    FitError
        If the features differ, or the model does not turn codes back into probabilities.
    """
    executor = executor or executor_of(n_jobs)
    with _speaking(dataset), telling(progress) as told:
        subject, rows = _subject(fitted, dataset), _rows(dataset, split)
        if reconstruct not in (None, *get_args(Reconstruction)):
            raise FitError(
                f"reconstruct: Expected 'probabilities', 'bits' or None, got {reconstruct!r}."
            )
        arrays = {name: values for name, (_, values) in named_arrays(subject.params).items()}
        work = Transform(
            fitted.model,
            lambda: arrays,
            RowRandom(seed),
            rows.read,
            _segments(fitted, dataset),
            "float64",
            reconstruct,
        )
        runs = runs_of(rows_by_chunk(rows, executor), _ROWS_A_RUN)
        parts = list(_told(executor.map(work, runs), runs, told))
    return Codes({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def evaluate(
    fitted: Fitted,
    dataset: Dataset,
    *,
    split: str | None = None,
    label: str | None = None,
    fitted_split: str | None = None,
    seed: int = 0,
    n_jobs: int = -1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Say how well a fitted model describes rows; `flows.evaluate` says more.

    Parameters
    ----------
    fitted
        The model.
    dataset, split
        The rows; features must be those of the fit. None takes all splits, where `flows.evaluate`
        would take `test`.
    label
        A per-row column, or `segment`, to be told by the rows with the nearest codes.
    fitted_split
        The split of the dataset that these rows are of; None takes all.
    seed, n_jobs, executor, progress
        As for `fit`.

    Returns
    -------
    Evaluation
        `kind` and value of the likelihood of a row in nats, its standard error, `wrong_bits` and
        `nll_per_bit` of reconstructions, and `prediction` of labels, each where the model gives it;
        `neighbourhoods` of codes, and with a label `neighbour_labels`, unless all codes are the
        same.

    Raises
    ------
    FitError
        If the features differ, or no row has a label to predict.
    """
    executor = executor or executor_of(n_jobs)
    with _speaking(dataset), telling(progress) as told:
        labels = labels_for(fitted.model, fitted.params, fitted.labels, dataset)
        subject = replace(_subject(fitted, dataset), labels=labels)
        rows = _rows(dataset, split, columns=labels.columns if labels else ())
        measure = measure_of(subject, rows.n_features)
        how = (executor, seed, told)
        vote = None if label is None else _vote(dataset, split, fitted_split, label, *how)
        codes = code_summary(subject, subject, draw_rows(rows, MOST_JUDGED, *how), vote, *how)
        sums = score_rows(subject, measure.name, rows, executor, seed, told)
    predicted = prediction_summary(labels, sums.values)
    found = {**likelihood_summary(measure, sums), **reconstruction_summary(sums), **predicted}
    return Evaluation({**found, **codes})


def likelihood(
    fitted: Fitted,
    dataset: Dataset,
    *,
    split: str | None = None,
    seed: int = 0,
    executor: Executor,
    progress: Progress | None = None,
) -> Evaluation:
    """Say how likely rows are and how well they are reconstructed, and no more of `evaluate`.

    Parameters
    ----------
    fitted, dataset, split, seed, executor, progress
        As for `evaluate`.

    Raises
    ------
    FitError
        If the features differ.
    """
    with _speaking(dataset), telling(progress) as told:
        subject, rows = _subject(fitted, dataset), _rows(dataset, split)
        measure = measure_of(subject, rows.n_features)
        sums = score_rows(subject, measure.name, rows, executor, seed, told)
    return Evaluation({**likelihood_summary(measure, sums), **reconstruction_summary(sums)})


def _vote(
    dataset: Dataset, split: str | None, fitted_split: str | None, label: str, *how: Any
) -> Vote:
    """Draw rows whose label is to be told, and those that tell it."""
    columns = columns_to_read(label)
    judged, fitted = (
        draw_labelled(_rows(dataset, name, 0, columns), size, label, dataset, *how)
        for name, size in ((split, MOST_JUDGED), (fitted_split, MOST_FITTED))
    )
    return Vote(label, judged, fitted, apart=False)


def _built(name: str, components: int | str | None, settings: Mapping[str, Any]) -> Model:
    kind = model_class(name)
    known = hyperparameters(kind)
    for key in settings:
        if key not in known:
            raise FitError(
                f"Expected one of {', '.join(known)}, got {key!r}.{suggestion(key, known)}"
            )
    if isinstance(components, str) and components != "auto":
        raise FitError(f"--components: Expected a whole number or 'auto', got {components!r}.")
    values = dict(settings)
    if components is not None:
        values["n_components"] = components
    given = {
        key: None if value == "auto" and takes_none(kind, key) else value
        for key, value in values.items()
    }
    check_types(kind, given)
    return kind(**given)


def _rows(
    dataset: Dataset, split: str | None, memory: int = 0, columns: tuple[str, ...] = ()
) -> Rows:
    read = dataset.reader(split, memory, columns=columns)
    return Rows(read, dataset.n_chunks, len(dataset.feature_names), len(dataset.segment_names))


def _subject(fitted: Fitted, dataset: Dataset) -> Subject:
    """Check the features, and find the segments; warn of those that were not fitted."""
    check_features(fitted.feature_names, dataset.feature_names)
    known = known_segments(fitted.params, fitted.segment_names)
    for text in unknown_segments(known, dataset.segment_names):
        warn(text, stacklevel=3)
    segments = segment_indices(known, dataset.segment_names) if known else np.zeros(0, np.int64)
    return Subject(fitted.model, fitted.params, segments)


def _speaking(dataset: Dataset) -> AbstractContextManager[None]:
    return speaking_python(dataset.feature_names, dataset.segment_names)


def _told(parts: Iterable[T], runs: Sequence[Run], progress: Progress) -> Iterator[T]:
    n_rows = 0
    for done, (run, part) in enumerate(zip(runs, parts, strict=True), start=1):
        n_rows += run.stop - run.start
        progress("transform", done, len(runs), n_rows)
        yield part


def _segments(fitted: Fitted, dataset: Dataset) -> NDArray[np.int64]:
    known = known_segments(fitted.params, fitted.segment_names)
    return segment_indices(known, dataset.segment_names)
