"""Continuous columns, from files to the dataset, and to the models that do not take them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy
import zarr

from pipeline.data.features import list_features
from pipeline.errors import FitError
from pipeline.models.registry import find_models
from pipeline.models.support import check_features
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
         "Use --missing VALUE, or leave the feature out of --continuous "),
        ("a,b\n1,2\n0,inf", ["--continuous", "b"],
         "row 2 (data rows counted from 1), column 'b': the value 'inf' is infinite"),
        ("a,b\n1,2\n0,-1e99", ["--continuous", "b"], "too large for 32 bits"),
        ("a,b\n1,'2,5'\n0,1", ["--continuous", "b"], "row 1"),
        ("a,b\n1,2\n0,3", ["--continuous", "c*"],
         "a.csv: --continuous: there is no column 'c*'"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--levels", "b*:2<3"],
         "a.csv: column 'b' is in both --continuous and --levels, --ordinal or --nominal."),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--ordinal", "b"], "name b twice"),
        ("a,b\n1,2\n0,3", ["--continuous", "b,"], "a name is missing beside a comma"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--threshold", "2"], "cannot be combined"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--collapse"], "cannot be combined"),
        ("a,b\n1,2\n0,3", ["--continuous", "b", "--long", "row=a,feature=b"],
         "--continuous need the column with the values"),
    ],
)  # fmt: skip
def test_what_is_no_measurement_is_refused(plain_cli, tmp_path, table, options, message):
    (tmp_path / "a.csv").write_text(table + "\n")
    error = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *options).check_refused()
    assert message in error
    assert not (tmp_path / "d.zarr").exists()


def test_measurements_of_arrays_are_stored(plain_cli, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (70, 5)).astype(float)
    X[:, [1, 3]] = rng.normal(size=(70, 2))
    X[4, [0, 1]], X[6, 3] = np.nan, -9
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    np.savez(tmp_path / "a.npz", X=X, cols=["f0", "f1", "f2", "f3", "f4"])
    zarr.create_array(tmp_path / "z.zarr", data=X)
    numbers = X[:, [1, 3]].astype(np.float32)
    numbers[6, 1] = np.nan
    for name in ("a.npy", "f.npy", "a.npz", "z.zarr"):
        words = ["ingest", name, "--dataset", "d.zarr", "--overwrite", "--missing", "-9"]
        done = plain_cli(*words, "--continuous", "f1,f3", "--drop", "f4")
        assert done.code == 0, done.err
        dataset = open_dataset(tmp_path / "d.zarr")
        assert dataset.feature_names == ("f0", "f1", "f2", "f3")
        np.testing.assert_array_equal(read(tmp_path / "d.zarr"), numbers)
        values, observed = dataset.dense(0)
        np.testing.assert_array_equal(observed == 0, np.isnan(X[:, :4]) | (X[:, :4] == -9))
        np.testing.assert_array_equal(values[:, 2], X[:, 2])
    X[66, 3] = np.inf
    np.save(tmp_path / "a.npy", X)
    words = ["ingest", "a.npy", "--dataset", "e.zarr", "--continuous", "f1,f3"]
    error = plain_cli(*words).check_refused()
    assert "a.npy: row 67 (data rows counted from 1), column 'f3': the value 'inf' is inf" in error
    assert plain_cli(*words, "--drop", "f3").code == 0  # values that are left out are not checked


def test_sparse_formats_have_no_measurements(plain_cli, tmp_path):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(np.eye(3)))
    words = ["ingest", "a.npz", "--dataset", "d.zarr", "--continuous", "f1"]
    error = plain_cli(*words).check_refused()
    assert "a.npz: --continuous needs a dense format" in error


def melt(people, seed=0):
    """Return the table as a long one, with the lines in random order."""
    table = people.assign(person=[f"p{k}" for k in range(N_ROWS)])
    lines = table.melt("person", var_name="item", value_name="value")
    return lines.sample(frac=1, random_state=seed).reset_index(drop=True)


LONG = ["--long", "row=person,feature=item,value=value"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_measurements_of_long_tables_are_stored(plain_cli, people, tmp_path, suffix):
    lines = melt(people).dropna()
    lines["value"] = lines["value"].astype(str)
    halves = lines[:100], lines[100:]
    for name, half in zip("mn", halves, strict=True):
        write = getattr(half, f"to_{suffix}")
        write(tmp_path / f"{name}.{suffix}", index=False)
    files = [f"m.{suffix}", f"n.{suffix}"]
    done = plain_cli("ingest", *files, "--dataset", "d.zarr", *OPTIONS, *LONG)
    assert done.code == 0, done.err
    dataset = open_dataset(tmp_path / "d.zarr")
    assert dataset.feature_names == ("age", "b", "income", "q")
    order = [int(name[1:]) for name in lines["person"].drop_duplicates()]
    numbers = people[["age", "income"]].to_numpy(np.float32)[order]
    np.testing.assert_array_equal(read(tmp_path / "d.zarr"), numbers)
    np.testing.assert_array_equal(dataset.dense(0)[0][:, 1], people["b"].to_numpy()[order])
    # New rows are read as the dataset is, but measurements of its rows stay as they are.
    added = pd.DataFrame([("new", "age", "31.5"), ("new", "q", "yes")], columns=lines.columns)
    getattr(added, f"to_{suffix}")(tmp_path / f"o.{suffix}", index=False)
    words = ["ingest", f"o.{suffix}", "--dataset", "d.zarr", "--append"]
    assert "--merge-by cannot be used" in plain_cli(*words, "--merge-by", "person").check_refused()
    assert plain_cli(*words).code == 0
    np.testing.assert_array_equal(read(tmp_path / "d.zarr")[-1], [31.5, np.nan])


def test_duplicate_measurements_follow_the_rule(plain_cli, tmp_path):
    lines = ["p,a,1.5", "p,b,1", "q,a,2", "q,b,0", "p,a,-4", "q,a,", "p,a,0.5"]
    (tmp_path / "a.csv").write_text("\n".join(["person,item,value", *lines]))
    words = ["ingest", "a.csv", "--dataset", "d.zarr", "--continuous", "a", *LONG]
    error = plain_cli(*words).check_refused()
    assert "a.csv: row 'p', column 'a': there are two entries" in error
    for rule, expected in (("last", [[0.5], [np.nan]]), ("any", [[1.5], [2.0]])):
        assert plain_cli(*words, "--duplicates", rule, "--overwrite").code == 0
        np.testing.assert_array_equal(read(tmp_path / "d.zarr"), expected)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("x", "'x' is not a number"), ("inf", "'inf' is infinite"), ("1e99", "too large for 32 bits")],
)
def test_lines_without_a_number_are_refused(plain_cli, tmp_path, value, problem):
    (tmp_path / "a.csv").write_text(f"person,item,value\np,a,1.5\np,b,1\nq,a,{value}\nq,b,0\n")
    words = ["ingest", "a.csv", "--dataset", "d.zarr", "--continuous", "a", *LONG]
    error = plain_cli(*words).check_refused()
    assert "a.csv: row 3 (data rows counted from 1), column 'value', feature 'a': the" in error
    assert problem in error


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
    assert "--levels, --ordinal or --nominal and --continuous name age twice" in error


def test_models_without_measurements_refuse_them_and_take_cuts(plain_cli, people, tmp_path):
    assert plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *OPTIONS).code == 0
    features = list_features(open_dataset(tmp_path / "d.zarr"))
    for kind in find_models().values():
        if "continuous" not in kind.support.features:
            with pytest.raises(FitError, match="'age' and 1 more have values that are numbers"):
                check_features(kind(), features)
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
