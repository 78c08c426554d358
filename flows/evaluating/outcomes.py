"""Outcomes of the classes of fitted mixtures: which columns to compare, and the tables of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.options import DATA, ExampleValue, Option, WholeNumber
from flows.cli.summary import format_p, make_table
from flows.evaluating.compared_models import ComparedModel
from pipeline.data.column_measures import measure_row_covariates
from pipeline.data.covariates import Covariates
from pipeline.data.datasets import get_row_columns, make_row_source
from pipeline.data.row_columns import RowColumns
from pipeline.data.weights import RowWeights
from pipeline.errors import FitError, format_share
from pipeline.evaluation.class_covariates import regress_classes
from pipeline.evaluation.class_outcomes import (
    check_are_no_covariates,
    check_has_no_covariates,
    check_is_mixture,
    check_reference_class,
    measure_recorded_weights,
    relate_classes,
    split_outcome_columns,
)
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.numerics.three_step import Correction
from storage.dataset.dataset import BinaryDataset
from storage.quoting import split_quoted, unquote

OutcomeColumns = Annotated[
    str | None,
    Option(
        group=DATA,
        help="Columns, separated by commas, to compare between the classes of a mixture.",
    ),
    ExampleValue("income,region"),
]
OutcomeCorrection = Annotated[
    Correction | None,
    Option(
        group=DATA,
        help="How --outcomes allows for rows in the wrong class. [default: bch]",
    ),
]
ClassCovariates = Annotated[
    str | None,
    Option(
        group=DATA,
        help="Columns to regress the classes of a mixture on; NAME=LEVEL names a reference level.",
    ),
    ExampleValue("age,school=North"),
]
ReferenceClass = Annotated[
    WholeNumber | None,
    Option(group=DATA, help="Class that --covariates compare the others with. [default: 1]"),
    ExampleValue(2),
]
_CORRECTIONS = {
    "bch": "corrected for wrong assignments by weights (Bolck, Croon & Hagenaars)",
    "ml": "corrected for wrong assignments by maximum likelihood (Vermunt)",
    "none": "not corrected for wrong assignments, so differences are too small",
}


class OutcomePlan(NamedTuple):
    """What to relate classes to.

    Attributes
    ----------
    columns
        Columns to compare between classes.
    correction
        How to allow for wrong assignments.
    weights
        Weights of the rows, by model.
    covariates
        What to regress classes on, by model; empty without covariates.
    reference
        Class that others are compared with, from 1.
    """

    columns: tuple[str, ...]
    correction: Correction
    weights: tuple[RowWeights | None, ...]
    covariates: tuple[Covariates, ...]
    reference: int


def plan_outcomes(
    dataset: BinaryDataset,
    split: str | None,
    columns: str | None,
    correction: Correction | None,
    covariates: str | None,
    reference: int | None,
    models: Sequence[ComparedModel],
) -> OutcomePlan | None:
    """Check that columns can be related to the classes of all models; None without columns.

    A fit with row weights needs their column in the dataset.
    """
    if reference is not None and covariates is None:
        raise FitError("{reference} needs {covariates}. Name one or more columns.")
    if columns is None and covariates is None:
        if correction is not None:
            raise FitError("{correction} needs {outcomes} or {covariates}. Name a column.")
        return None
    names = () if columns is None else _parse_names(columns)
    if columns is not None and not names:
        raise FitError("{outcomes} names no column. Separate their names by commas.")
    dataset.check_columns(names)
    check_are_no_covariates(names, get_row_columns(dataset).covariates)
    weights, measured = [], []
    for model in models:
        check_is_mixture(model.subject.model)
        weights.append(measure_recorded_weights(model.manifest, dataset, split))
        if covariates is not None:
            check_has_no_covariates(model.subject.model)
            check_reference_class(reference, model.n_components)
            request = _parse_names(covariates)
            own = measure_row_covariates(dataset, split, request, weights[-1])
            assert own is not None
            measured.append(own)
    return OutcomePlan(names, correction or "bch", tuple(weights), tuple(measured), reference or 1)


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(unquote, split_quoted(text, ",")))))


def compare_outcomes(
    plan: OutcomePlan,
    dataset: BinaryDataset,
    split: str | None,
    models: Sequence[ComparedModel],
    executor: Executor,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Compare the columns between the classes of each model."""
    found = []
    texts, numbers = split_outcome_columns(plan.columns, dataset)
    for k, (model, weights) in enumerate(zip(models, plan.weights, strict=True)):
        rows = make_row_source(
            dataset, split, columns=texts, weights=weights, number_columns=numbers
        )
        regression = None
        try:
            result = relate_classes(
                model.subject, rows, plan.columns, dataset, plan.correction, executor, progress
            )
            if plan.covariates:
                own = plan.covariates[k]
                with_covariates = dataset.with_row_columns(RowColumns(own))
                rows = make_row_source(with_covariates, split, weights=weights)
                run = (plan.correction, plan.reference - 1, executor, progress)
                regression = regress_classes(model.subject, rows, own, *run)
        except FitError as error:
            raise error.with_prefix(model.name) from error
        recorded = model.manifest.get("row_weights") or {}
        found.append(
            {
                "name": model.name,
                "correction": plan.correction,
                **result._asdict(),
                "regression": regression,
                "ignored_psu": recorded.get("psu"),
            }
        )
    return found


def print_outcomes(outcomes: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table of each column: the mean or the shares of its texts in each class."""
    for model in outcomes:
        correction = model["correction"]
        for outcome in model["outcomes"]:
            what = "mean" if outcome["kind"] == "mean" else "share of rows"
            console.print(f"{model['name']}: {outcome['column']} ({what}) by class", markup=False)
            console.print(_make_outcome_table(outcome))
            for line in _iter_outcome_lines(outcome):
                console.print(line, markup=False)
        if regression := model["regression"]:
            text = f"{model['name']}: log-odds of classes against class {regression['reference']}"
            console.print(text, markup=False)
            console.print(_make_regression_table(regression))
            for test in regression["tests"]:
                chi2 = f"χ² = {test['chi2']:.2f}, {test['df']} df, p {format_p(test['p'])}"
                console.print(f"Wald test of {test['column']}: {chi2}", markup=False)
        console.print(f"{correction}: {_CORRECTIONS[correction]}; ±: standard error", markup=False)
        if psu := model["ignored_psu"]:
            text = f"warning: {model['name']}: standard errors do not allow for the units of {psu}"
            console.print(text, markup=False)
        console.print()


def _make_outcome_table(outcome: Mapping[str, Any]) -> Table:
    table = make_table("class", "size", *(outcome["levels"] or [outcome["column"]]), left=())
    parts = zip(outcome["class_sizes"], outcome["estimates"], outcome["errors"], strict=True)
    for k, (size, estimates, errors) in enumerate(parts, start=1):
        pairs = zip(estimates, errors, strict=True)
        cells = (f"{value:.4g} ± {error:.2g}" for value, error in pairs)
        table.add_row(f"{k}", format_share(size, 1), *cells)
    return table


def _make_regression_table(regression: Mapping[str, Any]) -> Table:
    classes = range(1, len(regression["coefficients"][0]) + 1)
    shown = [k for k in classes if k != regression["reference"]]
    table = make_table("covariate", *(f"class {k}" for k in shown), left=("covariate",))
    lines = zip(regression["names"], regression["coefficients"], regression["errors"], strict=True)
    for name, values, errors in lines:
        cells = (
            f"{values[k - 1]:.4g} ± {errors[k - 1]:.2g} (z {values[k - 1] / errors[k - 1]:.2f})"
            for k in shown
        )
        table.add_row(escape(name), *cells)
    return table


def _iter_outcome_lines(outcome: Mapping[str, Any]) -> Iterator[str]:
    if outcome["p"] is not None:
        chi2 = f"χ² = {outcome['chi2']:.2f}, {outcome['df']} df"
        yield f"Wald test that all classes are equal: {chi2}, p {format_p(outcome['p'])}"
    if n := outcome["rows_without"]:
        yield f"rows without a value, left out: {n:,}"
