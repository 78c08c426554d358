"""Continuous columns, from files to the dataset, and to the models that do not take them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.data.features import list_features
from pipeline.errors import FitError
from pipeline.models.feature_kinds import check_can_have_features
from pipeline.models.registry import find_models
from storage.dataset.dataset import open_dataset

N_ROWS = 60
OPTIONS = ["--continuous", "age,inc*", "--levels", "q*:no<perhaps<yes"]


@pytest.fixture
def people(tmp_path: Path) -> pd.DataFrame:
    """A table with two continuous columns, of which one has missing values."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "q": rng.choice(("no", "perhaps", "yes"), N_ROWS),
            "age": np.round(rng.normal(40, 10, N_ROWS), 2),
            "b": rng.integers(0, 2, N_ROWS),
            "income": rng.exponential(1e4, N_ROWS),
        }
    )
    table.loc[3, "age"] = None
    table.to_csv(tmp_path / "a.csv", index=False)
    return table


def read(path):
    """The continuous values, NaN where missing."""
    dataset = open_dataset(path)
    dataset.verify()
    return np.hstack([dataset.read_chunk(key).numbers for key in range(dataset.n_chunks)]).T


def test_measurements_of_tables_are_stored(plain_cli, people, tmp_path):
    done = plain_cli("ingest", "a.csv", "a.csv", "--dataset", "d.zarr", *OPTIONS, "--json")
    assert done.code == 0, done.err
    assert (done.json["n_features"], done.json["n_continuous_features"]) == (4, 2)
    numbers = people[["age", "income"]].to_numpy(np.float32)
    np.testing.assert_array_equal(read(tmp_path / "d.zarr"), np.tile(numbers, (2, 1)))
    # A Parquet file of numbers and a CSV file that Arrow cannot parse give the same values.
    people.assign(b=people.b.replace({0: "n", 1: "y"})).to_csv(tmp_path / "w.csv", index=False)
    people.to_parquet(tmp_path / "a.parquet")
    words = ["ingest", "w.csv", "--dataset", "w.zarr", *OPTIONS, "--map", "b:y=1,n=0"]
    assert plain_cli(*words).code == 0
    assert plain_cli("ingest", "a.parquet", "--dataset", "p.zarr", *OPTIONS).code == 0
    for name in ("w.zarr", "p.zarr"):
        np.testing.assert_array_equal(read(tmp_path / name), numbers)
    (tmp_path / "b.csv").write_text("q,age,b,income\nyes,?,1,1e3\nno,-9,0, 2.5\n")
    added = plain_cli("ingest", "b.csv", "--dataset", "d.zarr", "--append", "--missing", "-9")
    assert added.code == 0, added.err
    np.testing.assert_array_equal(read(tmp_path / "d.zarr")[-2:], [[np.nan, 1e3], [np.nan, 2.5]])


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("a,b\n1,x\n0,1", ["--continuous", "b"],
         "a.csv: row 1 (data rows counted from 1), column 'b': the value 'x' is not a number. "
         "Use --missing VALUE, or leave the feature out of --continuous."),
        ("a,b\n1,2\n0,inf", ["--continuous", "b"],
         "row 2 (data rows counted from 1), column 'b': the value 'inf' is infinite"),
        ("a,b\n1,2\n0,-1e99", ["--continuous", "b"], "too large for 32 bits"),
        ("a,b\n1,'2,5'\n0,1", ["--continuous", "b"], "row 1"),
        ("a,b\n1,2\n0,3", ["--continuous", "c*"],
         "a.csv: --continuous: there is no column 'c*'"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--levels", "b*:2<3"],
         "a.csv: column 'b' is in both --continuous and --levels or --ordinal."),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--ordinal", "b"], "name b twice"),
        ("a,b\n1,2\n0,3", ["--continuous", "b,"], "a name is missing beside a comma"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--threshold", "2"], "cannot be combined"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--collapse"], "cannot be combined"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--long", "row=a,feature=b"],
         "a.csv: --continuous needs a table with a column per feature"),
    ],
)  # fmt: skip
def test_what_is_no_measurement_is_refused(plain_cli, tmp_path, table, options, message):
    (tmp_path / "a.csv").write_text(table + "\n")
    error = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *options).check_refused()
    assert message in error
    assert not (tmp_path / "d.zarr").exists()


def test_formats_without_columns_have_no_measurements(plain_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    words = ["ingest", "a.npy", "--dataset", "d.zarr", "--continuous", "f1"]
    assert "a.npy: --continuous needs a table" in plain_cli(*words).check_refused()


def test_constant_measurements_can_be_dropped(plain_cli, tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c,d\n1,2.5,7,0\n0,2.5,?,1\n")
    words = ["ingest", "a.csv", "--dataset", "d.zarr", "--continuous", "b,c", "--drop-constant"]
    done = plain_cli(*words, "--json")
    assert done.json["left_out"] == ["b", "c"]


def test_appended_rows_are_read_as_the_dataset_is(plain_cli, people, tmp_path):
    assert plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *OPTIONS).code == 0
    words = ["ingest", "a.csv", "--dataset", "d.zarr", "--append"]
    error = plain_cli(*words, "--continuous", "b").check_refused()
    assert "--continuous: feature 'b' has the levels 0<1 in d.zarr" in error
    error = plain_cli(*words, "--levels", "age:1<2").check_refused()
    assert "--levels or --ordinal and --continuous name age twice" in error


def test_models_without_measurements_refuse_them_and_take_cuts(plain_cli, people, tmp_path):
    assert plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *OPTIONS).code == 0
    features = list_features(open_dataset(tmp_path / "d.zarr"))
    for kind in find_models().values():
        if "continuous" not in kind.feature_kinds:
            with pytest.raises(FitError, match="'age' and 1 more have values that are numbers"):
                check_can_have_features(kind(), features)
    error = plain_cli("fit", "--dataset", "d.zarr", "--model", "fastica").check_refused()
    assert "'q' has more than two levels and 'age' and 1 more have values that are" in error
    assert "such as by --cut 'q>=perhaps' --cut 'age>=VALUE'" in error
    cut = ["--cut", "age>=40", "--cut", "i*>=5e3", "--cut", "q>=yes"]
    words = ["fit", "--dataset", "d.zarr", "--model", "clipped-pca", *cut, "--components", "1"]
    done = plain_cli(*words, "--executor", "serial", "--set", "repair=nearest", "--json")
    assert done.code == 0, done.err
    transform = ["transform", "--dataset", "d.zarr", "--artifact", done.json["artifact"]]
    codes = plain_cli(*transform, "--output", "c.zarr", "--executor", "serial")
    assert codes.code == 0, codes.err
    wrong = plain_cli(*words[:5], "--cut", "age>=old").check_refused()
    assert "'age' is continuous, but 'old' is not a number" in wrong
