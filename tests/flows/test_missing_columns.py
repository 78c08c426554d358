"""Missing values in kept columns of integers and booleans stay missing, and nothing is rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from latentbits import from_dataframe, from_numpy
from pipeline.errors import FitError
from storage.dataset.dataset import open_dataset

LARGE = 2**53 + 1
N_ROWS = 300


def write_table(path: str, **columns: Any) -> None:
    n_rows = len(next(iter(columns.values())))
    bits = np.random.default_rng(0).integers(0, 2, (n_rows, 3))
    features = {f"q{k}": values for k, values in enumerate(bits.T)}
    pa.parquet.write_table(pa.table({**features, **columns}), path)


def ingest(cli: Any, *arguments: Any, code: int = 0) -> Any:
    done = cli("ingest", *arguments, "--dataset", "d.zarr")
    assert done.code == code, done.err
    return done


def test_nulls_that_come_late_are_missing(cli) -> None:
    ages = [None if row == 250 else row for row in range(N_ROWS)]
    write_table("a.parquet", age=ages, old=[age if age is None else age > 99 for age in ages])
    ingest(cli, "a.parquet", "--keep", "age", "--keep", "old")
    dataset = open_dataset("d.zarr")
    expected = np.array([np.nan if age is None else age for age in ages])
    np.testing.assert_array_equal(dataset.column("age"), expected)
    np.testing.assert_array_equal(dataset.column("old"), np.where(expected > 99, 1, expected * 0))
    dataset.verify()


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.null()], ids=str)
def test_an_append_brings_the_first_nulls(cli, kind) -> None:
    write_table("a.parquet", age=[*range(100)])
    values = [None] * 80 if pa.types.is_null(kind) else [7, None] * 40
    write_table("b.parquet", age=pa.array(values, kind))
    ingest(cli, "a.parquet", "--keep", "age")
    assert open_dataset("d.zarr").column("age").dtype == np.int64
    ingest(cli, "b.parquet", "--append")
    column = open_dataset("d.zarr").column("age")
    assert column[:100].tolist() == [*range(100)]
    expected = [np.nan if value is None else value for value in values]
    np.testing.assert_array_equal(column[100:], expected)
    write_table("c.parquet", age=[*range(70)])
    ingest(cli, "c.parquet", "--append")
    assert open_dataset("d.zarr").column("age")[-70:].tolist() == [*range(70)]


def test_integers_that_floats_round_are_refused_beside_missing_ones(cli) -> None:
    write_table("a.parquet", key=[LARGE, *range(99)])
    write_table("b.parquet", key=[*range(99), None])
    write_table("both.parquet", key=[LARGE, *range(98), None])
    expected = f"Column 'key' contains {LARGE} and missing values"
    assert expected in ingest(cli, "both.parquet", "--keep", "key", code=2).message
    ingest(cli, "a.parquet", "--keep", "key")
    assert expected in ingest(cli, "b.parquet", "--append", code=2).message
    assert open_dataset("d.zarr").column("key")[0] == LARGE
    ingest(cli, "b.parquet", "--keep", "key", "--overwrite")
    assert expected in ingest(cli, "a.parquet", "--append", code=2).message
    write_table("floats.parquet", key=[0.5] * 70)
    ingest(cli, "floats.parquet", "--keep", "key", "--overwrite")
    assert expected in ingest(cli, "a.parquet", "--append", code=2).message


def test_texts_stay_empty_where_numbers_are_missing(cli) -> None:
    write_table("a.parquet", key=["x"] * 70)
    write_table("b.parquet", key=[1, None] * 35)
    write_table("c.parquet", key=[1.5, None] * 35)
    ingest(cli, "a.parquet", "b.parquet", "c.parquet", "--keep", "key")
    assert open_dataset("d.zarr").column("key")[70:].tolist() == ["1", ""] * 35 + ["1.5", ""] * 35


def test_consumers_see_missing_values(cli) -> None:
    group = [None if row == 5 else row % 2 for row in range(200)]
    write_table("a.parquet", group=group, weight=group)
    for option in ("--segment-by", "--split-by"):
        message = ingest(cli, "a.parquet", option, "group", code=2).message
        assert "row 6 of all rows read has no value" in message
    ingest(cli, "a.parquet", "--keep", "group", "--keep", "weight")
    fit = ("fit", "--dataset", "d.zarr", "--components", 1, "--no-report", "--executor", "serial")
    grouped = ("--model", "latent-trait", "--group", "group")
    assert "row 6 has no value in column 'group'" in cli(*fit, *grouped).message
    assert "row 6: the weight in weight is missing" in cli(*fit, "--weight", "weight").message
    assert cli(*fit, "--output", "runs").code == 0
    coded = ("--dataset", "d.zarr", "--artifact", "runs", "--output", "z.zarr")
    assert cli("transform", *coded).code == 0
    export = ("export", "--what", "codes", "--codes", "z.zarr", "--output", "z.parquet")
    assert (done := cli(*export, "--dataset", "d.zarr")).code == 0, done.err
    exported = pa.parquet.read_table("z.parquet").column("group")
    assert exported.type == pa.int64()
    assert exported.to_pylist() == group


def test_equal_rows_with_missing_integers_are_collapsed(cli) -> None:
    columns = {"q0": [1, 0] * 4, "q1": [0, 1] * 4, "age": [None, 5] * 4}
    pa.parquet.write_table(pa.table(columns), "a.parquet")
    ingest(cli, "a.parquet", "--keep", "age", "--collapse")
    np.testing.assert_array_equal(open_dataset("d.zarr").column("age"), [np.nan, 5])


BITS = np.array([[0, 1], [1, 0], [1, 1]])
KEPT = {
    "integers": ([1, None, 3], [1, np.nan, 3]),
    "booleans": ([True, None, False], [1, np.nan, 0]),
    "masked": (np.ma.masked_array([1, 2, 3], [0, 1, 0]), [1, np.nan, 3]),
    "masked texts": (np.ma.masked_array(["a", "b", "c"], [0, 1, 0]), ["a", "", "c"]),
    "all missing": ([None] * 3, [""] * 3),
}


@pytest.mark.parametrize("case", KEPT)
def test_python_keeps_missing_values(case: str, tmp_path: Path) -> None:
    values, expected = KEPT[case]
    dataset: Any = from_numpy(BITS, keep={"a": values}, path=tmp_path / "d.zarr")
    np.testing.assert_array_equal(dataset.column("a"), expected)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frames_keep_missing_values(library: str, tmp_path: Path) -> None:
    if library == "pyarrow":
        make: Any = pa.table
    else:
        make = pytest.importorskip(library).DataFrame
    columns: dict[str, Any] = {"a": [LARGE, None, 3], "b": [True, None, False], "c": [1, None, 3]}
    if library == "pandas":
        array = pytest.importorskip("pandas").array
        dtypes = {"a": "Int64", "b": "boolean", "c": "Int64"}
        columns = {name: array(values, dtypes[name]) for name, values in columns.items()}
    frame = make({"x": BITS[:, 0], "y": BITS[:, 1], **columns})
    options: dict[str, Any] = {"features": ["x", "y"]}
    dataset: Any = from_dataframe(frame, keep=["b", "c"], path=tmp_path / "d.zarr", **options)
    np.testing.assert_array_equal(dataset.column("b"), [1, np.nan, 0])
    np.testing.assert_array_equal(dataset.column("c"), [1, np.nan, 3])
    with pytest.raises(FitError, match=rf"a contains {LARGE}, beside missing values"):
        from_dataframe(frame, keep=["a"], **options)
