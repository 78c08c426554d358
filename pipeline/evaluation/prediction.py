"""How well a model predicts labels: accuracy for categories, R² for numbers.

Categories are matched by name, as segments are, because the codes of texts depend on the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
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

PredictionSums = dict[str, NDArray[Any]]

_UNSEEN_CATEGORY = -1


class HasLabels(Protocol):
    """A dataset with labels."""

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments."""

    @property
    def levels(self) -> Mapping[str, Iterable[str]]:
        """Texts by code, for each per-row column that stores codes of texts."""


@dataclass(frozen=True)
class TargetLabels:
    """The labels of a dataset, matched with the categories of a fitted model."""

    column: str
    values: Array  # the dataset's labels that the model was fitted to, increasing, (n_fitted,)
    # The model's category of each of these labels, (n_fitted,); None if labels are numbers.
    categories: NDArray[np.int64] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """Per-row columns that must be read with the rows."""
        return list_columns_to_read(self.column)

    def encode_labels(self, block: BinaryBlock) -> Array:
        """Return each row's category (-1 if not fitted) or number; NaN if missing."""
        labels = convert_labels_to_numbers(get_labels(block, self.column))
        if self.categories is None:
            return np.where(np.isfinite(labels), labels, np.nan)
        places = np.searchsorted(self.values, labels)
        is_fitted = np.append(self.values, np.inf)[places] == labels
        categories = np.append(self.categories, _UNSEEN_CATEGORY)[np.where(is_fitted, places, -1)]
        return np.where(np.isfinite(labels), categories, np.nan)


def name_categories(model: Model, params: Any, data: HasLabels) -> tuple[str, ...]:
    """Return the names of a fitted model's categories in its dataset; empty if it has none."""
    values = model.categories(params) if isinstance(model, CanPredict) else None
    if values is None or not isinstance(model, CanPredict):
        return ()
    return name_labels(values, model.column, data)


def name_labels(values: Array, column: str, data: HasLabels) -> tuple[str, ...]:
    """Return the names of labels: codes of texts, indices of segments or whole numbers.

    `column` is a per-row column of the dataset, or `SEGMENT`.
    """
    texts = _find_label_texts(column, data)
    if texts is None:
        return tuple(f"{value:.17g}" for value in values.tolist())
    codes = {int(value) for value in values}
    names = {code: text for code, text in enumerate(texts) if code in codes}
    return tuple(names[int(value)] for value in values)


def find_target_labels(
    model: Model, params: Any, names: Sequence[str], data: HasLabels
) -> TargetLabels | None:
    """Find the labels that a model predicts in a dataset; None if it predicts none.

    `names` are the names of its categories, from `name_categories`. A dataset with texts cannot be
    used if the model was fitted to numbers.
    """
    if not isinstance(model, CanPredict):
        return None
    texts = _find_label_texts(model.column, data)
    values = model.categories(params)
    if values is None:
        if texts is not None:
            raise FitError(
                f"column {model.column!r}: the model was fitted to numbers, but this dataset has "
                "texts. Ingest the column as numbers."
            )
        return TargetLabels(model.column, np.zeros(0), None)
    if not len(names) == len({*names}) == len(values):
        raise FitError(
            f"The model has {len(values)} categories, but {len({*names})} different names for "
            "them. Fit again."
        )
    index = {name: k for k, name in enumerate(names)}
    by_label = _categories_by_number(index) if texts is None else _categories_by_code(index, texts)
    labels = sorted(by_label)
    categories = np.array([by_label[label] for label in labels], np.int64)
    return TargetLabels(model.column, np.array(labels, np.float64), categories)


def _find_label_texts(column: str, data: HasLabels) -> Iterable[str] | None:
    """Return the texts that whole numbers stand for in a dataset; None for plain numbers."""
    return data.segment_names if column == SEGMENT else data.levels.get(column)


def _categories_by_code(index: Mapping[str, int], texts: Iterable[str]) -> dict[float, int]:
    return {float(code): index[text] for code, text in enumerate(texts) if text in index}


def _categories_by_number(index: Mapping[str, int]) -> dict[float, int]:
    categories = {}
    for name, category in index.items():
        with suppress(ValueError):
            categories[float(name)] = category
    return categories


def summarize_predictions(
    labels: TargetLabels | None, model: Model, params: Any, block: BinaryBlock, rng: RowRandom
) -> PredictionSums:
    """Sum hits or squared errors over a block; empty if the model predicts no labels."""
    if labels is None or not isinstance(model, CanPredict):
        return {}
    truth = labels.encode_labels(block)
    rows = np.flatnonzero(~np.isnan(truth))
    labelled, truth = block.take_rows(rows), truth[rows]
    predicted = model.predict(params, labelled, rng)
    counts = {"labelled": np.array(len(rows)), "unlabelled": np.array(block.n_samples - len(rows))}
    if labels.categories is None:
        return {**counts, **_sum_squared_errors(truth, predicted[:, 0])}
    of_category = np.bincount(truth[truth >= 0].astype(np.int64), minlength=predicted.shape[1])
    hits = truth == predicted.argmax(axis=1)
    return {**counts, "hits": np.array(hits.sum()), "of_category": of_category}


def _sum_squared_errors(truth: Array, predicted: Array) -> PredictionSums:
    """Sum the labels, their squares and the squared errors."""
    sums = {"labels": truth, "squares": truth**2, "squared_errors": (truth - predicted) ** 2}
    return {name: np.array(values.sum()) for name, values in sums.items()}


def describe_prediction(
    labels: TargetLabels | None, sums: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Describe how well labels are predicted; empty if the model predicts none.

    Returns
    -------
    dict
        `prediction`, with `column`; the number of `rows` with a label, and of `rows_without` one,
        which are left out. For categories: `accuracy` and its `standard_error`; `commonest`, the
        share of the most frequent label; and `unseen`, the number of rows whose label was not
        fitted, which count as wrong. For numbers: `r2`, 1 − Σ(y − ŷ)² / Σ(y − ȳ)², None if all
        labels are equal; and `rmse`.
    """
    if labels is None:
        return {}
    n = int(sums["labelled"])
    if not n:
        raise FitError(
            f"column {labels.column!r}: none of these rows has a label. Choose other rows."
        )
    counts = {"column": labels.column, "rows": n, "rows_without": int(sums["unlabelled"])}
    describe = _describe_number_fit if labels.categories is None else _describe_accuracy
    return {"prediction": {**counts, **describe(n, sums)}}


def _describe_accuracy(n: int, sums: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    accuracy, counts = float(sums["hits"]) / n, sums["of_category"]
    return {
        "accuracy": accuracy,
        "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / n)),
        "commonest": float(counts.max()) / n,
        "unseen": n - int(counts.sum()),
    }


def _describe_number_fit(n: int, sums: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    errors = float(sums["squared_errors"])
    squares = float(sums["squares"])
    spread = squares - float(sums["labels"]) ** 2 / n
    is_constant = spread <= 1e-12 * squares  # up to rounding errors
    return {"r2": None if is_constant else 1 - errors / spread, "rmse": float(np.sqrt(errors / n))}
