"""How well a model predicts the labels of rows: accuracy of categories, R² of numbers.

Categories are found by name, as segments are: the codes of texts depend on the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.capabilities import CanPredict
from pipeline.random import RowRandom
from pipeline.statistics.labels import (
    SEGMENT,
    convert_labels_to_numbers,
    get_labels,
    list_columns_to_read,
)

Array = NDArray[np.float64]
PredictionSums = dict[str, NDArray[Any]]

_UNSEEN_CATEGORY = -1


class HasLabels(Protocol):
    """What holds labels: a dataset."""

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments."""

    @property
    def levels(self) -> Mapping[str, Iterable[str]]:
        """Texts of those per-row columns that hold codes of texts, in the order of the codes."""


@dataclass(frozen=True)
class TargetLabels:
    """The labels of a dataset, as a model was fitted to them.

    Attributes
    ----------
    column
        Which labels.
    values
        Those of the dataset that the model knows, rising, (n_known,).
    categories
        The model's index of each, (n_known,); None where the label is a number.
    """

    column: str
    values: Array
    categories: NDArray[np.int64] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """Per-row columns to read along."""
        return list_columns_to_read(self.column)

    def encode_labels(self, block: BinaryBlock) -> Array:
        """Return each row's category (-1 if not fitted) or number; NaN if missing."""
        found = convert_labels_to_numbers(get_labels(block, self.column))
        if self.categories is None:
            return np.where(np.isfinite(found), found, np.nan)
        places = np.searchsorted(self.values, found)
        known = np.append(self.values, np.inf)[places] == found
        categories = np.append(self.categories, _UNSEEN_CATEGORY)[np.where(known, places, -1)]
        return np.where(np.isfinite(found), categories, np.nan)


def name_categories(model: Model, params: Any, data: HasLabels) -> tuple[str, ...]:
    """Name the categories that a model was fitted to; none where it predicts none.

    Parameters
    ----------
    model, params
        What was fitted.
    data
        The dataset fitted.
    """
    values = model.categories(params) if isinstance(model, CanPredict) else None
    if values is None or not isinstance(model, CanPredict):
        return ()
    return name_labels(values, model.column, data)


def name_labels(values: Array, column: str, data: HasLabels) -> tuple[str, ...]:
    """Name labels of a dataset, which are codes of texts, indices of segments or whole numbers.

    Parameters
    ----------
    values
        The labels, (n_labels,).
    column
        The per-row column, or `SEGMENT`.
    data
        The dataset.
    """
    texts = _find_label_texts(column, data)
    if texts is None:
        return tuple(f"{value:.17g}" for value in values.tolist())
    wanted = {int(value) for value in values}
    found = {code: text for code, text in enumerate(texts) if code in wanted}
    return tuple(found[int(value)] for value in values)


def find_target_labels(
    model: Model, params: Any, names: Sequence[str], data: HasLabels
) -> TargetLabels | None:
    """Find the labels that a model predicts in a dataset; None of a model that predicts none.

    Parameters
    ----------
    model, params
        What was fitted.
    names
        Of its categories, from `name_categories`.
    data
        The dataset to judge it by, which has the column.

    Raises
    ------
    FitError
        If the model predicts numbers and the dataset has texts, or the names are not as many as
        its categories.
    """
    if not isinstance(model, CanPredict):
        return None
    texts = _find_label_texts(model.column, data)
    values = model.categories(params)
    if values is None:
        if texts is not None:
            raise FitError(
                f"column {model.column!r}: Expected numbers, as were fitted, got texts. Keep the "
                "column as numbers."
            )
        return TargetLabels(model.column, np.zeros(0), None)
    if not len(names) == len({*names}) == len(values):
        raise FitError(
            f"Expected a name of each of {len(values)} categories, got {len({*names})}. Fit again."
        )
    index = {name: k for k, name in enumerate(names)}
    found = _categories_by_number(index) if texts is None else _categories_by_code(index, texts)
    known = sorted(found)
    categories = np.array([found[value] for value in known], np.int64)
    return TargetLabels(model.column, np.array(known, np.float64), categories)


def _find_label_texts(column: str, data: HasLabels) -> Iterable[str] | None:
    """Return the texts that whole numbers stand for in a dataset; None for plain numbers."""
    return data.segment_names if column == SEGMENT else data.levels.get(column)


def _categories_by_code(index: Mapping[str, int], texts: Iterable[str]) -> dict[float, int]:
    return {float(code): index[text] for code, text in enumerate(texts) if text in index}


def _categories_by_number(index: Mapping[str, int]) -> dict[float, int]:
    """Return the numbers that names spell."""
    found = {}
    for name, category in index.items():
        with suppress(ValueError):
            found[float(name)] = category
    return found


def summarize_predictions(
    labels: TargetLabels | None, model: Model, params: Any, block: BinaryBlock, rng: RowRandom
) -> PredictionSums:
    """Sum what tells how well labels are predicted; nothing of a model that predicts none."""
    if labels is None or not isinstance(model, CanPredict):
        return {}
    wanted = labels.encode_labels(block)
    at = np.flatnonzero(~np.isnan(wanted))
    taken, wanted = block.take_rows(at), wanted[at]
    given = model.predict(params, taken, rng)
    counts = {"labelled": np.array(len(at)), "unlabelled": np.array(block.n_samples - len(at))}
    if labels.categories is None:
        return {**counts, **_sum_squared_errors(wanted, given[:, 0])}
    of_category = np.bincount(wanted[wanted >= 0].astype(np.int64), minlength=given.shape[1])
    hits = wanted == given.argmax(axis=1)
    return {**counts, "hits": np.array(hits.sum()), "of_category": of_category}


def _sum_squared_errors(wanted: Array, given: Array) -> PredictionSums:
    """Sum labels, their squares and the squared errors."""
    sums = {"labels": wanted, "squares": wanted**2, "squared_errors": (wanted - given) ** 2}
    return {name: np.array(values.sum()) for name, values in sums.items()}


def describe_prediction(
    labels: TargetLabels | None, sums: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Describe how well labels are predicted.

    Returns
    -------
    dict
        `prediction`, where the model predicts: `column`; `rows` with a label, and `rows_without`
        one, which are left out; of categories `accuracy` with its `standard_error`, `commonest`,
        the share of the commonest label, and `unseen`, the rows whose label was not fitted, which
        count as wrong; of numbers `r2`, 1 − Σ(y − ŷ)² / Σ(y − ȳ)², None where all y are the same,
        and `rmse`.

    Raises
    ------
    FitError
        If no row has a label.
    """
    if labels is None:
        return {}
    n = int(sums["labelled"])
    if not n:
        raise FitError(
            f"column {labels.column!r}: Expected labels, got none in these rows. Choose others."
        )
    told = {"column": labels.column, "rows": n, "rows_without": int(sums["unlabelled"])}
    found = (
        _describe_number_fit(n, sums) if labels.categories is None else _describe_accuracy(n, sums)
    )
    return {"prediction": {**told, **found}}


def _describe_accuracy(n: int, sums: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    accuracy, seen = float(sums["hits"]) / n, sums["of_category"]
    return {
        "accuracy": accuracy,
        "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / n)),
        "commonest": float(seen.max()) / n,
        "unseen": n - int(seen.sum()),
    }


def _describe_number_fit(n: int, sums: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    lost = float(sums["squared_errors"])
    squares = float(sums["squares"])
    spread = squares - float(sums["labels"]) ** 2 / n
    is_constant = spread <= 1e-12 * squares  # no more than rounding
    return {"r2": None if is_constant else 1 - lost / spread, "rmse": float(np.sqrt(lost / n))}
