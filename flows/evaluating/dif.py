"""Differential item functioning: find items that favour one of two groups of rows."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from flows.cli.options import DATA, Option
from pipeline.data.blocks import RowSource
from pipeline.errors import FitError
from pipeline.evaluation.item_bias import count_by_score, mantel_haenszel, run_group_tests
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.passes.map_reduce import collect_statistics
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
    executor: Executor,
    progress: Progress,
) -> dict[str, Any]:
    """Test all items; list the most biased first."""
    count = partial(count_by_score, groups.column, groups.values)
    sums = collect_statistics(count, rows, executor, "sum scores", progress=progress)
    trait: dict[str, Any] = {}
    tests: Any = mantel_haenszel(sums.values["rows"], sums.values["ones"])
    if groups.test == _LIKELIHOOD_RATIO:
        tests, focal = run_group_tests(groups.column, groups.values, rows, executor, progress)
        trait["focal_trait"] = dict(zip(("mean", "sd"), focal.tolist(), strict=True))
    order = np.argsort(tests.p, kind="stable")
    columns = {name: values[order].tolist() for name, values in tests._asdict().items()}
    items = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {
        "column": groups.column,
        "test": groups.test,
        "reference": groups.names[0],
        "focal": groups.names[1],
        "rows": sums.values["rows"].sum(axis=1).tolist(),
        **trait,
        "items": [{"feature": names[i], **item} for i, item in zip(order, items, strict=True)],
    }
