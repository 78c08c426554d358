"""Check the covariates of the rows of a fit, and that its model can use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.covariates import (
    ColumnRequest,
    Covariates,
    CovariateSource,
    check_covariates,
    measure_covariates,
)
from pipeline.data.datasets import Dataset, get_row_columns
from pipeline.data.weights import RowWeights
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import find_models
from pipeline.models.support import check_parts


def measure_row_covariates(
    model: Model,
    dataset: Dataset,
    split: str | None,
    covariates: Sequence[str] | None,
    weights: RowWeights | None,
) -> Covariates | None:
    """Check and measure the covariates of a dataset or split; only their columns are read.

    Parameters
    ----------
    model
        The model to fit.
    dataset, split
        The rows to fit.
    covariates
        Names of per-row columns; `NAME=LEVEL` names the reference level of a column. None if the
        rows have none.
    weights
        The weights of the rows, if they have any.

    Returns
    -------
    Covariates or None
        None without `covariates`.

    Raises
    ------
    ValueError
        If the model cannot use covariates, or a column is missing or has values that cannot be
        used; see `measure_covariates`.
    """
    if covariates is None:
        return None
    check_parts(model, ["covariates"], find_models)
    requests = [_parse_request(text, dataset) for text in covariates]
    names = [request.name for request in requests]
    if not names:
        raise FitError("{covariates} names no column. Name one, or leave it out.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise FitError(f"{{covariates}} names the column {twice[0]!r} twice. Name it once.")
    dataset.check_columns(names)
    return measure_covariates(requests, _make_source(dataset, split, weights))


def check_row_columns(dataset: Dataset, split: str | None) -> None:
    """Check that the rows of a dataset or split have the columns of a fit, and values it has seen.

    Raises
    ------
    ValueError
        If a column is missing, or has values that the fit has not seen; see `check_covariates`.
    """
    row_columns = get_row_columns(dataset)
    dataset.check_columns([*row_columns.roles])
    if row_columns.covariates is not None:
        check_covariates(row_columns.covariates, _make_source(dataset, split, None))


def _parse_request(text: str, dataset: Dataset) -> ColumnRequest:
    """Parse `NAME` or `NAME=LEVEL`; a column may also have an equals sign in its name."""
    text = text.strip()
    name, has_level, level = text.partition("=")
    if not has_level or _has_column(dataset, text):
        return ColumnRequest(text)
    return ColumnRequest(name, level)


def _has_column(dataset: Dataset, name: str) -> bool:
    try:
        dataset.check_columns([name])
    except ValueError:
        return False
    return True


def _make_source(
    dataset: Dataset, split: str | None, weights: RowWeights | None
) -> CovariateSource:
    def iter_weights(own: RowWeights) -> Iterator[NDArray[Any]]:
        for _, values in dataset.iter_numbers(own.column, split):
            yield own.to_units(values).astype(np.float64)

    return CovariateSource(
        partial(dataset.iter_numbers, split=split),
        partial(dataset.iter_codes, split=split),
        dataset.levels,
        None if weights is None else partial(iter_weights, weights),
        weights is None or weights.kind == "frequency",
    )
