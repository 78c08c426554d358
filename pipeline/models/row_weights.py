"""Check the weights of the rows of a fit, and that its model can use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import get_args

from pipeline.data.datasets import Dataset
from pipeline.data.weights import (
    ColumnPart,
    RowWeights,
    WeightKind,
    count_clusters,
    measure_weights,
)
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import find_models
from pipeline.models.support import check_parts


def measure_row_weights(
    model: Model,
    dataset: Dataset,
    split: str | None,
    weight: str | None,
    weights: str | None,
    psu: str | None,
) -> RowWeights | None:
    """Check and measure the weights of a dataset or split; only their columns are read.

    Parameters
    ----------
    model
        The model to fit.
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
        If the arguments do not fit together, the model cannot use such weights, or a column is
        missing or has values that are no weights.
    """
    if weight is None:
        for name, value in (("weights", weights), ("psu", psu)):
            if value is not None:
                raise FitError(f"{{{name}}} needs {{weight=COLUMN}}, the column of the weights.")
        return None
    kind = _choose_kind(weights)
    if psu is not None:
        if kind != "sampling":
            raise FitError("{psu} needs {weights=sampling}. Add that, or leave it out.")
        check_parts(model, ["clusters"], find_models)
    check_parts(model, [kind], find_models)
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


def _choose_kind(weights: str | None) -> WeightKind:
    kinds: tuple[WeightKind, ...] = get_args(WeightKind)
    for kind in kinds:
        if weights in (None, kind):
            return kind
    raise FitError(f"{{weights}} must be {' or '.join(kinds)}, but is {weights!r}.")
