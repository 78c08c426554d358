"""Differential item functioning: which items favour one of two groups of rows."""

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
    Option(group=DATA, help="How to test for that: by sum scores, or by a fit for every item."),
]
_LIKELIHOOD_RATIO = "likelihood-ratio"
_MIN_GROUP_ROWS = 20


class DifGroups(NamedTuple):
    """Two groups of rows: the column, how items are tested, its values and their texts, of the
    larger group first."""

    column: str
    test: str
    values: tuple[int, int]
    names: tuple[str, str]


def find_dif_groups(dataset: BinaryDataset, column: str | None, test: str) -> DifGroups | None:
    """Find the two groups that a per-row column makes; the larger is the reference.

    Raises
    ------
    DataError
        If there is no such column, or it has not two values with rows enough.
    FitError
        If a test is asked for without a column.
    """
    if column is None:
        if test == _LIKELIHOOD_RATIO:
            raise FitError("--dif-test: Expected --dif beside it, got none. Name a column.")
        return None
    dataset.check_columns([column])
    each = [dataset.read_row_labels(key, [column])[1][column] for key in range(dataset.n_chunks)]
    values, counts = np.unique(np.concatenate(each), return_counts=True)
    is_named = values != -1 if column in dataset.levels else np.ones(len(values), bool)
    values, counts = values[is_named], counts[is_named]
    if values.dtype.kind == "f" or len(values) != 2:
        raise DataError(
            f"{dataset.path}: --dif: Expected a column of two groups, got {column!r} of "
            f"{len(values):,} values. Keep a column that has two."
        )
    larger_first = np.argsort(-counts, kind="stable")
    values, counts = values[larger_first], counts[larger_first]
    names = [str(text) for text in dataset.decode_texts(column, values)]
    for name, count in zip(names, counts, strict=True):
        if count < _MIN_GROUP_ROWS:
            raise DataError(
                f"{dataset.path}: --dif: Expected {_MIN_GROUP_ROWS} rows or more of each group, got "
                f"{count} of {column} = {name!r}. Take another column."
            )
    return DifGroups(column, test, (int(values[0]), int(values[1])), (names[0], names[1]))


def compute_item_bias(
    groups: DifGroups,
    rows: RowSource,
    names: tuple[str, ...],
    executor: Executor,
    progress: Progress,
) -> dict[str, Any]:
    """Test the items of all rows, the most biased first."""
    count = partial(count_by_score, groups.column, groups.values)
    sums = collect_statistics(count, rows, executor, "sum scores", progress=progress)
    told: dict[str, Any] = {}
    found: Any = mantel_haenszel(sums.values["rows"], sums.values["ones"])
    if groups.test == _LIKELIHOOD_RATIO:
        found, focal = run_group_tests(groups.column, groups.values, rows, executor, progress)
        told["focal_trait"] = dict(zip(("mean", "sd"), focal.tolist(), strict=True))
    order = np.argsort(found.p, kind="stable")
    columns = {name: values[order].tolist() for name, values in found._asdict().items()}
    items = [dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)]
    return {
        "column": groups.column,
        "test": groups.test,
        "reference": groups.names[0],
        "focal": groups.names[1],
        "rows": sums.values["rows"].sum(axis=1).tolist(),
        **told,
        "items": [{"feature": names[i], **item} for i, item in zip(order, items, strict=True)],
    }
