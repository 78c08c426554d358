"""Relate the classes of a fitted mixture to columns of a dataset; see `numerics.three_step`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.data.covariates import Covariates, are_numbers
from pipeline.data.datasets import Dataset
from pipeline.data.weights import RowWeights, measure_weights
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.prediction import HasLabels, name_labels
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.base import Model
from pipeline.models.capabilities import IsMixture
from pipeline.numerics.three_step import (
    Correction,
    OutcomeTable,
    compare_classes,
    compute_classification_errors,
    estimate_outcome,
)
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.labels import convert_labels_to_numbers
from pipeline.statistics.sums import CountStatistics

_MAX_LEVELS = 50


@dataclass(frozen=True)
class OutcomeSums(CountStatistics):
    """Rows by assigned class and by the values of outcomes.

    Attributes
    ----------
    rows, total
        Number of rows, and the sum of their weights.
    assigned
        Σ_n P(t | x_n) 1[s_n = s], by t and s, (n_classes, n_classes).
    tables
        The rows with each value of each outcome.
    missing
        Number of rows without a value of each outcome, (n_outcomes,).
    """

    label: ClassVar[str] = "outcomes"
    rows: int
    total: float
    assigned: Array
    tables: tuple[OutcomeTable, ...]
    missing: NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return self.total

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        return type(self)(
            self.rows + other.rows,
            self.total + other.total,
            self.assigned + other.assigned,
            tuple(_merge_tables(*pair) for pair in zip(self.tables, other.tables, strict=True)),
            self.missing + other.missing,
        )


def _merge_tables(a: OutcomeTable, b: OutcomeTable) -> OutcomeTable:
    values = np.union1d(a.values, b.values)
    sums = np.zeros((2, len(a.weights), len(values)))
    for part in (a, b):
        sums[:, :, np.searchsorted(values, part.values)] += (part.weights, part.squares)
    return OutcomeTable(values, *sums)


class ClassOutcomes(NamedTuple):
    """Outcomes of the classes of a fitted mixture, and how rows were assigned to classes.

    Attributes
    ----------
    classification
        P(s | t), the probability that a row of class t is assigned to class s, by t and s.
    outcomes
        A description of each outcome.
    """

    classification: list[list[float]]
    outcomes: list[dict[str, Any]]


def split_outcome_columns(
    columns: Sequence[str], data: HasLabels
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of texts, and those to read as numbers.

    Texts are numbers if at least half of the different texts of a column are.
    """
    texts = tuple(
        name for name in columns if name in data.levels and not are_numbers(data.levels[name])
    )
    return texts, tuple(name for name in columns if name not in texts)


def measure_recorded_weights(
    manifest: Mapping[str, Any], dataset: Dataset, split: str | None
) -> RowWeights | None:
    """Measure the weights of rows by the column and the kind that a fit recorded, if any.

    Primary sampling units are left out.

    Raises
    ------
    ValueError
        If the dataset lacks the column, or it has values that are no weights.
    """
    recorded = manifest.get("row_weights")
    if recorded is None:
        return None
    column = recorded["column"]
    dataset.check_columns([column])
    return measure_weights(column, recorded["kind"], partial(dataset.iter_numbers, column, split))


def check_is_mixture(model: Model) -> None:
    """Refuse a model that does not assign rows to classes."""
    if not isinstance(model, IsMixture):
        raise FitError(
            f"{model.name} does not assign rows to classes, so {{outcomes}} cannot be compared "
            "between them. Fit bernoulli-mixture."
        )


def check_are_no_covariates(columns: Sequence[str], covariates: Covariates | None) -> None:
    """Refuse outcomes that the classes of a fit depend on already."""
    for column in () if covariates is None else covariates.columns:
        if column.name in columns:
            raise FitError(
                f"{{outcomes}}: {column.name} is a covariate of the fit. Its coefficients say how "
                "the classes differ. Leave it out."
            )


def check_has_no_covariates(model: Model) -> None:
    """Refuse to regress the classes of a fit that has covariates itself."""
    if model.structure.covariates is not None:
        raise FitError(
            "{covariates}: the fit has covariates itself; its coefficients say how its classes "
            "depend on them. Leave it out, or fit without covariates."
        )


def check_reference_class(reference: int | None, n_classes: int) -> None:
    """Refuse the number of a class, from 1, that a fit does not have."""
    if reference is not None and not 1 <= reference <= n_classes:
        raise FitError(
            f"{{reference}} is {reference}, but the fit has {n_classes} classes. Choose 1 to "
            f"{n_classes}.",
            parameter="reference",
        )


def relate_classes(
    subject: EvaluatedModel,
    rows: RowSource,
    columns: Sequence[str],
    data: HasLabels,
    correction: Correction,
    executor: Executor,
    progress: Progress = ignore_progress,
) -> ClassOutcomes:
    """Estimate the means or proportions of columns in the classes of a mixture.

    Parameters
    ----------
    subject
        The fitted mixture; see `check_is_mixture`.
    rows
        The rows; their reader must read the columns, see `split_outcome_columns`.
    columns
        Per-row columns. Numbers are described by their means, texts by the share of each text.
        Rows without a value are left out.
    data
        The dataset, which names the texts.
    correction
        How to correct for wrong assignments.
    executor, progress
        As for `collect_statistics`.

    Raises
    ------
    FitError
        If a column has too many texts or too few values, or the classes cannot be separated.
    """
    summarize = partial(_summarize_block, subject, tuple(columns))
    sums = collect_statistics(summarize, rows, executor, "outcomes", progress=progress)
    _check_has_classes(sums)
    errors = compute_classification_errors(sums.assigned)
    outcomes = []
    for column, table, missing in zip(columns, sums.tables, sums.missing.tolist(), strict=True):
        try:
            described = _describe_outcome(column, table, data, errors, correction)
        except FitError as error:
            raise error.with_prefix(f"column {column!r}") from None
        outcomes.append({**described, "rows_without": missing})
    return ClassOutcomes(errors.tolist(), outcomes)


def _summarize_block(
    subject: EvaluatedModel, columns: tuple[str, ...], block: BinaryBlock
) -> OutcomeSums:
    values = [convert_labels_to_numbers(block.column(name)) for name in columns]
    posterior = compute_class_posterior(subject, block)
    assigned, n_classes = posterior.argmax(axis=1), posterior.shape[1]
    weights = np.ones(block.n_samples) if block.row_weights is None else block.row_weights
    squares = weights**2 if block.has_sampling_weights else weights
    by_class = np.zeros((n_classes, n_classes))
    for s in range(n_classes):
        own = assigned == s
        by_class[:, s] = weights[own] @ posterior[own]
    tables = tuple(_make_table(v, assigned, weights, squares, n_classes) for v in values)
    missing = np.array([np.count_nonzero(~np.isfinite(v)) for v in values], np.int64)
    return OutcomeSums(block.n_samples, block.weight, by_class, tables, missing)


def compute_class_posterior(subject: EvaluatedModel, block: BinaryBlock) -> Array:
    """Return P(class | x) of the rows of a block of evaluated rows, (n_samples, n_classes)."""
    if len(subject.segments):
        block = replace(block, segment=int(subject.segments[block.segment]))
    posterior: Array = subject.model.transform(subject.params, block, RowRandom(0))["mean"]
    return posterior


def collect_classification_errors(
    subject: EvaluatedModel, rows: RowSource, executor: Executor, progress: Progress
) -> Array:
    """Return P(s | t), the probability that a row of class t is assigned to s, by t and s."""
    summarize = partial(_summarize_block, subject, ())
    sums = collect_statistics(summarize, rows, executor, "classification", progress=progress)
    _check_has_classes(sums)
    return compute_classification_errors(sums.assigned)


def _check_has_classes(sums: OutcomeSums) -> None:
    if len(sums.assigned) < 2:
        raise FitError("{outcomes} needs two or more classes. Fit more {components}.")


def _make_table(
    values: Array, assigned: NDArray[np.intp], weights: Array, squares: Array, n_classes: int
) -> OutcomeTable:
    present = np.isfinite(values)
    distinct, places = np.unique(values[present], return_inverse=True)
    index, size = assigned[present] * len(distinct) + places, n_classes * len(distinct)
    totals, sums_of_squares = (
        np.bincount(index, w[present], size).astype(np.float64).reshape(n_classes, -1)
        for w in (weights, squares)
    )
    return OutcomeTable(distinct, totals, sums_of_squares)


def _describe_outcome(
    column: str, table: OutcomeTable, data: HasLabels, errors: Array, correction: Correction
) -> dict[str, Any]:
    is_text = column in split_outcome_columns([column], data)[0]
    if len(table.values) < 2:
        raise FitError("All rows have the same value. Choose another column.")
    if is_text and len(table.values) > _MAX_LEVELS:
        raise FitError(
            f"There are {len(table.values):,} different texts; at most {_MAX_LEVELS} can be "
            "compared. Choose another column."
        )
    found = estimate_outcome(table, errors, correction, is_text)
    test = compare_classes(found)
    return {
        "column": column,
        "kind": "proportions" if is_text else "mean",
        "levels": list(name_labels(table.values, column, data)) if is_text else None,
        "class_sizes": found.sizes.tolist(),
        "estimates": found.estimates.tolist(),
        "errors": found.errors.tolist(),
        "chi2": test.chi2,
        "df": test.df,
        "p": test.p if test.df else None,
    }
