"""Check and measure the per-row columns of a fit: weights, groups, covariates and periods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.data.covariates import (
    ColumnRequest,
    Covariates,
    CovariateSource,
    check_covariates,
    measure_covariates,
)
from pipeline.data.datasets import Dataset, get_row_columns
from pipeline.data.periods import (
    HasPositions,
    RowPeriods,
    make_period_coders,
    measure_periods,
)
from pipeline.data.weights import (
    ColumnPart,
    RowWeights,
    WeightKind,
    count_clusters,
    measure_weights,
)
from pipeline.errors import FitError

_MIN_GROUP_ROWS = 2


def measure_row_weights(
    dataset: Dataset,
    split: str | None,
    weight: str | None,
    weights: str | None,
    psu: str | None,
) -> RowWeights | None:
    """Check and measure the weights of a dataset or split; only their columns are read.

    Parameters
    ----------
    dataset, split
        The rows to fit.
    weight
        Per-row column that holds the weights; None if all rows count alike.
    weights
        Meaning of the weights; None stands for `frequency`.
    psu
        Per-row column of primary sampling units, if rows were drawn in clusters.

    Returns
    -------
    RowWeights or None
        None without `weight`.

    Raises
    ------
    ValueError
        If the arguments do not fit together, or a column is missing or has values that are no
        weights.
    """
    if weight is None:
        for name, value in (("weights", weights), ("psu", psu)):
            if value is not None:
                raise FitError(f"{{{name}}} needs {{weight=COLUMN}}, the column of the weights.")
        return None
    kind = choose_weight_kind(weights)
    if psu is not None and kind != "sampling":
        raise FitError("{psu} needs {weights=sampling}. Add that, or leave it out.")
    dataset.check_columns([weight] if psu is None else [weight, psu])
    if psu == weight:
        raise FitError(f"{{psu}}: {weight} holds the weights. Choose the column of the units.")
    measured = measure_weights(weight, kind, partial(dataset.iter_numbers, weight, split))
    if psu is None:
        return measured
    count_clusters(psu, partial(_read_clusters, dataset, psu, split, measured))
    return replace(measured, psu=psu)


def _read_clusters(
    dataset: Dataset, psu: str, split: str | None, weights: RowWeights
) -> Iterator[ColumnPart]:
    """Yield the clusters of the rows with a weight above 0."""
    units, numbers = dataset.iter_codes(psu, split), dataset.iter_numbers(weights.column, split)
    for (rows, values), (_, own_numbers) in zip(units, numbers, strict=True):
        is_used = weights.to_units(own_numbers) > 0
        yield rows[is_used], values[is_used]


def choose_weight_kind(weights: str | None) -> WeightKind:
    """Return the meaning of weights that the user names; None stands for `frequency`."""
    kinds: tuple[WeightKind, ...] = get_args(WeightKind)
    for kind in kinds:
        if weights in (None, kind):
            return kind
    raise FitError(f"{{weights}} must be {' or '.join(kinds)}, but is {weights!r}.")


def list_groups(dataset: Dataset, split: str | None, weights: RowWeights | None) -> tuple[str, ...]:
    """Return the names of the groups of rows, and check that each has enough rows.

    Parameters
    ----------
    dataset, split
        The rows to fit; the groups are the segments of the dataset.
    weights
        The weights of the rows, if they have any.

    Raises
    ------
    FitError
        If a group has fewer than 2 rows with a weight above 0.
    """
    names = dataset.segment_names
    n_rows = np.zeros(len(names), np.int64)
    numbers = None if weights is None else dataset.iter_numbers(weights.column, split)
    for _, segments in dataset.iter_segments(split):
        if weights is not None and numbers is not None:
            segments = segments[weights.to_units(next(numbers)[1]) > 0]
        n_rows += np.bincount(segments, minlength=len(names))
    if n_rows.min() < _MIN_GROUP_ROWS:
        name, n = names[int(n_rows.argmin())], int(n_rows.min())
        rows = f"{n} row{'s' * (n != 1)}" + ("" if split is None else f" of the split {split}")
        raise FitError(
            f"The group {name!r} has {rows}, but at least {_MIN_GROUP_ROWS} are needed. Leave its "
            "rows out, or choose another column.",
            parameter="group",
        )
    return names


def measure_row_covariates(
    dataset: Dataset,
    split: str | None,
    covariates: Sequence[str] | None,
    weights: RowWeights | None,
) -> Covariates | None:
    """Check and measure the covariates of a dataset or split; only their columns are read.

    Parameters
    ----------
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
        If a column is missing or has values that cannot be used; see `measure_covariates`.
    """
    if covariates is None:
        return None
    requests = [_parse_request(text, dataset) for text in covariates]
    names = [request.name for request in requests]
    if not names:
        raise FitError("{covariates} names no column. Name one, or leave it out.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise FitError(f"{{covariates}} names the column {twice[0]!r} twice. Name it once.")
    dataset.check_columns(names)
    return measure_covariates(requests, _make_source(dataset, split, weights))


def measure_row_periods(
    dataset: Dataset, split: str | None, row_id: str | None = None, time: str | None = None
) -> RowPeriods | None:
    """Check and sort the members and times of a dataset or split; only their columns are read.

    Parameters
    ----------
    dataset, split
        The rows to fit.
    row_id, time
        Per-row columns of the member of each row, and of its time; None if rows have none.

    Raises
    ------
    ValueError
        If one of the columns is not named or missing, or has values that cannot be used.
    """
    if row_id is None and time is None:
        return None
    if row_id is None or time is None:
        named, other = ("time", "row_id") if row_id is None else ("row_id", "time")
        raise FitError(f"{{{named}}} needs {{{other}}}. Name both columns.", parameter=other)
    dataset.check_columns([row_id, time])
    if row_id == time:
        raise FitError(f"{{time}}: {time} is the column of row ids. Choose another one.")
    return measure_periods(
        row_id,
        time,
        dataset.iter_codes(row_id, split),
        dataset.iter_numbers(time, split),
        dataset.levels.get(row_id),
    )


def check_row_columns(dataset: Dataset, split: str | None, *params: object) -> None:
    """Check that the rows of a dataset or split have the columns of a fit, and values it has seen.

    Parameters
    ----------
    dataset, split
        The rows.
    *params
        Parameters of fits, which may have positions of members at some times only.

    Raises
    ------
    ValueError
        If a column is missing, or has values that a fit has not seen; see `check_covariates`.
    """
    row_columns = get_row_columns(dataset)
    dataset.check_columns([*row_columns.roles])
    if row_columns.covariates is not None:
        check_covariates(row_columns.covariates, _make_source(dataset, split, None))
    if (periods := row_columns.periods) is None:
        return
    coders = make_period_coders(periods, dataset.levels)
    columns = dataset.iter_codes(periods.row_id, split), dataset.iter_numbers(periods.time, split)
    for (rows, ids), (_, times) in zip(*columns, strict=True):
        coded = [coder.encode(own) for coder, own in zip(coders, (ids, times), strict=True)]
        block = replace(
            pack_block(np.zeros((len(rows), 0), np.uint8)),
            row_numbers=rows,
            covariates=np.concatenate(coded, axis=1),
        )
        for own_params in params:
            if isinstance(own_params, HasPositions):
                own_params.find_positions(block)


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
