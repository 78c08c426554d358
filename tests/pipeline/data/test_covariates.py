"""The coding of covariates, and values that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.data.column_measures import (
    check_row_columns,
    measure_row_covariates,
    measure_row_weights,
)
from pipeline.data.covariates import (
    have_same_columns,
    list_columns,
    read_covariates,
)
from pipeline.data.datasets import MemoryDataset, make_memory_dataset
from pipeline.data.row_columns import RowColumns
from pipeline.data.tables import BinaryTable
from pipeline.errors import FitError

N = 8
COLUMNS = {
    "age": np.array([20.0, 30, 25, 41, 22, 37, 58, 33]),
    "text": np.array(["1.5", "2", "0.5", "4", "3", "2", "1", "7"], object),
    "school": np.array([*"NSENSEWW"], object),
    "class": np.array([3, 1, 1, 2, 3, 2, 1, 1]),
    "half": np.array([0.5, 1.5] * 4),
    "same": np.ones(N),
    "w": np.array([1, 1, 1, 1, 1, 1, 0, 1]),
}


def make_dataset(**changes: Any) -> MemoryDataset:
    X = np.eye(N, 3, dtype=np.uint8)
    columns = {**COLUMNS, **{name: np.asarray(values) for name, values in changes.items()}}
    return make_memory_dataset([BinaryTable(X, None, ("a", "b", "c"), None, columns)])


def measure(dataset: MemoryDataset, *names: str, weight: str | None = None) -> Any:
    weights = measure_row_weights(dataset, None, weight, None, None)
    return measure_row_covariates(dataset, None, names, weights)


def code(dataset: MemoryDataset, covariates: Any) -> Any:
    columns, numbers = list_columns(covariates)
    read = dataset.make_reader(columns=columns, number_columns=numbers)
    rows = RowColumns(covariates).add_to_rows(RowSource(read, [N], 3, 1), dataset.levels)
    (block,) = iter_blocks(rows.read(0))
    return block.covariates


def test_numbers_texts_and_levels_are_coded() -> None:
    dataset = make_dataset()
    covariates = measure(dataset, "age", "text", "school=W", "class=2")
    assert covariates.names == (
        *("age", "text", "school=E", "school=N", "school=S"),
        *("class=1", "class=3"),
    )
    Z = code(dataset, covariates)
    schools = (COLUMNS["school"][:, None] == ["E", "N", "S"]).astype(float)
    classes = (COLUMNS["class"][:, None] == [1, 3]).astype(float)
    numbers = np.column_stack([COLUMNS["age"], COLUMNS["text"].astype(float)])
    np.testing.assert_array_equal(Z, np.hstack([numbers, schools, classes]))
    np.testing.assert_allclose(covariates.means, Z.mean(axis=0))
    np.testing.assert_allclose(covariates.deviations, Z.std(axis=0))
    assert measure(dataset, "school").names == ("school=N", "school=S", "school=W")


def test_other_datasets_are_coded_as_the_fit() -> None:
    """The codes of texts differ between datasets."""
    covariates = measure(make_dataset(), "school", "class=1")
    restored = read_covariates({"covariates": covariates.describe()})
    assert have_same_columns(restored, covariates)
    other = make_dataset(school=np.array([*"WWSSEENN"], object))
    columns = RowColumns(covariates)
    check_row_columns(other.with_row_columns(columns), None)
    Z = code(other, restored)
    expected = np.array([*"WWSSEENN"])[:, None] == ["N", "S", "W"]
    np.testing.assert_array_equal(Z[:, :3], expected)
    unknown = make_dataset(school=np.array([*"WWSSEENX"], object))
    with pytest.raises(FitError, match="row 8: school is 'X', but the fit has only E, N, S, W"):
        check_row_columns(unknown.with_row_columns(columns), None)
    assert np.isnan(code(unknown, covariates)[7, :3]).all()
    unknown = make_dataset(**{"class": np.array([3, 1, 1, 4, 3, 2, 1, 1])})
    with pytest.raises(FitError, match="row 4: class is '4', but the fit has only 1, 2, 3"):
        check_row_columns(unknown.with_row_columns(columns), None)


def test_rows_of_weight_0_do_not_count() -> None:
    dataset = make_dataset(age=[*COLUMNS["age"][:6], np.nan, 33])
    covariates = measure(dataset, "age", weight="w")
    assert covariates.means[0] == pytest.approx(np.delete(COLUMNS["age"], 6).mean())
    with pytest.raises(FitError, match="the level 'W' of school has only one row"):
        measure(dataset, "school", weight="w")


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (["age"], {"age": [*COLUMNS["age"][:7], np.nan]}, "row 8: age is missing"),
        (["age"], {"age": [*COLUMNS["age"][:7], np.inf]}, "row 8: age is infinite"),
        (["school"], {"school": np.array([*"NSENSEW", ""], object)}, "row 8: school is missing"),
        (
            ["text"],
            {"text": np.array(["1", "2", "3", "4", "NA"] + ["6"] * 3, object)},
            "row 5: text is missing",
        ),
        (["same"], {}, "same is constant. Leave it out"),
        (["same=1"], {}, "all rows have the same level of same"),
        (["age", "half", "twice"], {"twice": 2 * COLUMNS["half"] - 1}, "twice is a linear combin"),
        (["school=X"], {}, "school has no level 'X'. It has: E, N, S, W"),
        (["half=1"], {}, "row 1: half is no whole number, so it is no level"),
        (["school"], {"school": np.array([*"NSENSEWX"], object)}, "the level 'W' of school has o"),
        (["age", "age"], {}, "names the column 'age' twice"),
        ([], {}, "names no column"),
        (["income"], {}, "no per-row column 'income'"),
    ],
)
def test_bad_values_are_refused(names: list[str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FitError, match=message):
        measure(make_dataset(**changes), *names)
