"""Differential item functioning: find items that favour one of two groups of rows."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from flows.cli.options import DATA, Option
from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
from pipeline.evaluation.item_bias import (
    GroupTraits,
    count_by_score,
    fit_groups,
    mantel_haenszel,
    run_group_tests,
)
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import collect_first_statistics, initialize_fit
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError

DifTest = Annotated[
    Literal["mantel-haenszel", "likelihood-ratio"],
    Option(group=DATA, help="Test for --dif: by sum scores, or by a fit per item."),
]
_LIKELIHOOD_RATIO = "likelihood-ratio"
_MIN_GROUP_ROWS = 20


class DifGroups(NamedTuple):
    """Two groups of rows: column, test, and the groups' values and names, larger group first."""

    column: str
    test: str
    values: tuple[int, int]
    names: tuple[str, str]


def find_dif_groups(dataset: BinaryDataset, column: str | None, test: str) -> DifGroups | None:
    """Find the two groups that a per-row column defines; the larger one is the reference.

    Raises `DataError` or `FitError` if there is no such column, or it does not define two groups of
    enough rows.
    """
    if column is None:
        if test == _LIKELIHOOD_RATIO:
            raise FitError("{dif_test} needs {dif}. Name a column.")
        return None
    dataset.check_columns([column])
    columns = [dataset.read_row_labels(key, [column])[1][column] for key in range(dataset.n_chunks)]
    values, counts = np.unique(np.concatenate(columns), return_counts=True)
    is_named = values != -1 if column in dataset.levels else np.ones(len(values), bool)
    values, counts = values[is_named], counts[is_named]
    if values.dtype.kind == "f" or len(values) != 2:
        raise DataError(
            f"{{dif}} is {column!r}, but this column of {dataset.path} has {len(values):,} values "
            "instead of two. Choose or store a column with two values."
        )
    larger_first = np.argsort(-counts, kind="stable")
    values, counts = values[larger_first], counts[larger_first]
    names = [str(text) for text in dataset.decode_texts(column, values)]
    for name, count in zip(names, counts, strict=True):
        if count < _MIN_GROUP_ROWS:
            raise DataError(
                f"{{dif}} is {column!r}, but the group {name!r} has only {count} rows in "
                f"{dataset.path}; {_MIN_GROUP_ROWS} are needed. Choose another column."
            )
    return DifGroups(column, test, (int(values[0]), int(values[1])), (names[0], names[1]))


def compute_item_bias(
    groups: DifGroups,
    rows: RowSource,
    names: tuple[str, ...],
    seed: int,
    executor: Executor,
    progress: Progress,
) -> dict[str, Any]:
    """Test all items; list the most biased first."""
    model = GroupTraits(groups.column, groups.values)
    first: Any = collect_first_statistics(model, rows, executor, seed, progress)
    has_missing_values = not first.is_complete
    shared, objective = None, 0.0
    if has_missing_values or groups.test == _LIKELIHOOD_RATIO:
        state = initialize_fit(model, first, seed)
        shared, objective = fit_groups(model, state, rows, executor, progress)
    count = partial(count_by_score, model, shared if has_missing_values else None, RowRandom(seed))
    sums = collect_statistics(count, rows, executor, "sum scores", progress=progress)
    trait: dict[str, Any] = {}
    tests: Any = mantel_haenszel(sums.values["rows"], sums.values["ones"])
    if shared is not None and groups.test == _LIKELIHOOD_RATIO:
        tests = run_group_tests(model, shared, objective, rows, executor, progress)
        mean, log_sd = shared.focal.tolist()
        trait["focal_trait"] = {"mean": mean, "sd": math.exp(log_sd)}
    order = np.argsort(tests.p, kind="stable")
    columns = {name: values[order].tolist() for name, values in tests._asdict().items()}
    items = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {
        "column": groups.column,
        "test": groups.test,
        "reference": groups.names[0],
        "focal": groups.names[1],
        "rows": sums.values["group_rows"].tolist(),
        "has_drawn_answers": has_missing_values and groups.test != _LIKELIHOOD_RATIO,
        **trait,
        "items": [{"feature": names[i], **item} for i, item in zip(order, items, strict=True)],
    }
