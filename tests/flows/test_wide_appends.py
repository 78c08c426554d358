"""Wide files are matched with the dataset, and with each other, by the names of their columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from storage.dataset.dataset import open_dataset

N_ROWS = 80
NAMES = [f"q{k}" for k in range(5)]
FORMATS = ["csv", "tsv", "parquet", "xlsx", "sav", "npz", "folder"]


def make_frame(names: list[str], seed: int = 0) -> pd.DataFrame:
    """A table whose values are determined by row, seed and the name of the column."""
    columns = {}
    for name in names:
        rng = np.random.default_rng([seed, *map(ord, name)])
        columns[name] = rng.integers(0, 2, N_ROWS)
    return pd.DataFrame(columns)


def write(frame: pd.DataFrame, stem: str, kind: str) -> str:
    path = f"{stem}.{kind}"
    if kind in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    elif kind == "npz":
        np.savez(path, X=frame.to_numpy().astype(np.uint8), cols=np.array([*frame.columns]))
    elif kind == "sav":
        pytest.importorskip("pyreadstat").write_sav(frame, path)
    elif kind == "folder":
        path = f"{stem}/part=1/a.parquet"
        Path(path).parent.mkdir(parents=True)
        frame.to_parquet(path, index=False)
    else:
        getattr(frame, {"xlsx": "to_excel", "parquet": "to_parquet"}[kind])(path, index=False)
    return path


def read(names: list[str]) -> np.ndarray:
    """The values of these features, 2 where missing, (n_rows, n_features)."""
    dataset = open_dataset("d.zarr")
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    places = [dataset.feature_names.index(name) for name in names]
    return np.where(observed, X, 2)[:, places]


def ingest(cli: Any, *arguments: Any) -> Any:
    done = cli("ingest", *arguments, "--dataset", "d.zarr", "--json")
    assert done.code == 0, done.err
    return done.json


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_in_another_order_are_matched_by_name(cli, kind: str) -> None:
    first, second = make_frame(NAMES), make_frame(NAMES[::-1], 1)
    ingest(cli, write(first, "a", kind))
    ingest(cli, write(second, "b", kind), "--append")
    assert open_dataset("d.zarr").feature_names == tuple(NAMES)
    np.testing.assert_array_equal(read(NAMES), np.vstack([first, second[NAMES]]))


def test_files_of_one_ingest_are_matched_by_name(cli) -> None:
    frames = [make_frame(NAMES), make_frame(NAMES[::-1], 1), make_frame(sorted(NAMES)[2:], 2)]
    frames[2][["q0", "q1"]] = make_frame(["q0", "q1"], 2)
    for frame in frames:
        frame["sex"] = "f"
    frames[1] = frames[1][["sex", *NAMES[::-1]]]
    kinds = ("csv", "parquet", "csv")
    paths = [
        write(frame, str(k), kind)
        for k, (frame, kind) in enumerate(zip(frames, kinds, strict=True))
    ]
    ingest(cli, *paths, "--keep", "sex")
    np.testing.assert_array_equal(read(NAMES), np.vstack([frame[NAMES] for frame in frames]))


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_new_columns_follow_the_option(cli, kind: str) -> None:
    first, second = make_frame(NAMES), make_frame(["z", *NAMES[::-1], "a"], 1)
    path = write(second, "b", kind)
    ingest(cli, write(first, "a", kind))
    message = cli("ingest", path, "--dataset", "d.zarr", "--append").check_refused()
    assert f"{path}: 'z' is not a feature of" in message
    assert "(in all, 2 are not). Use --new-features add or --new-features ignore" in message
    both = ("ingest", f"a.{kind}", path, "--dataset", "d.zarr", "--append")
    assert f"{path}: 'z' is not a feature of" in cli(*both).check_refused()
    message = cli(*both, "--new-features", "add").check_refused()
    assert f"a.{kind}: there is no column for the feature 'z' of the other files" in message
    ignored = ingest(cli, path, "--append", "--new-features", "ignore")
    assert ignored["features_ignored"] == ["z", "a"]
    added = ingest(cli, path, "--append", "--new-features", "add")
    assert added["features_added"] == ["z", "a"]
    expected = np.full((3 * N_ROWS, 7), 2)
    expected[:N_ROWS, :5], expected[N_ROWS : 2 * N_ROWS, :5] = first, second[NAMES]
    expected[2 * N_ROWS :] = second[[*NAMES, "z", "a"]]
    np.testing.assert_array_equal(read([*NAMES, "z", "a"]), expected)
    open_dataset("d.zarr").verify()


def test_ignored_columns_are_not_read(cli) -> None:
    ingest(cli, write(make_frame(NAMES), "a", "csv"))
    second = make_frame(NAMES, 1).assign(comment="none")
    ingest(cli, write(second, "b", "csv"), "--append", "--new-features", "ignore")
    np.testing.assert_array_equal(read(NAMES)[N_ROWS:], second[NAMES])


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_absent_columns_are_refused_or_missing(cli, kind: str) -> None:
    first, second = make_frame(NAMES), make_frame(["q4", "q2", "z"], 1)
    ingest(cli, write(first, "a", kind))
    append = (write(second, "b", kind), "--append", "--new-features", "add")
    message = cli("ingest", *append, "--dataset", "d.zarr").check_refused()
    assert "there is no column for the feature 'q0' of" in message
    assert "(in all, 3 are absent)" in message
    assert "--absent-features missing" in message
    done = ingest(cli, *append, "--absent-features", "missing")
    (warning,) = done["warnings"]
    assert "has no columns for the features 'q0', 'q1', 'q3'; they are missing" in warning
    found = read([*NAMES, "z"])[N_ROWS:]
    np.testing.assert_array_equal(found[:, [4, 2, 5]], second)
    assert (found[:, [0, 1, 3]] == 2).all()


def test_several_appended_files_may_bring_different_features(cli) -> None:
    ingest(cli, write(make_frame(NAMES), "a", "csv"))
    frames = [make_frame([*NAMES, "x"], 1), make_frame(["y", *NAMES], 2)]
    paths = [write(frame, f"b{k}", "csv") for k, frame in enumerate(frames)]
    options = ("--append", "--new-features", "add", "--absent-features", "missing")
    assert ingest(cli, *paths, *options)["features_added"] == ["x", "y"]
    found = read(["x", "y"])
    np.testing.assert_array_equal(found[N_ROWS : 2 * N_ROWS, 0], frames[0]["x"])
    np.testing.assert_array_equal(found[2 * N_ROWS :, 1], frames[1]["y"])
    assert (found[:N_ROWS] == 2).all()
    assert (found[N_ROWS : 2 * N_ROWS, 1] == 2).all()


def test_levels_and_measurements_are_matched_by_name(cli) -> None:
    names = ["q0", "o", "m", "n"]
    first = make_frame(names).assign(o=["no", "some", "all", ""] * 20, m=np.arange(80) / 4, n=1.5)
    first.loc[3, "n"] = 2
    levels = ("--levels", "o*:no<some<all", "--continuous", "m,n")
    ingest(cli, write(first, "a", "csv"), *levels)
    second = first[["n", "m", "o", "q0"]].assign(o2=["all", "", "no", "some"] * 20, n=7.5)
    ingest(cli, write(second, "b", "csv"), "--append", "--new-features", "add")
    dataset = open_dataset("d.zarr")
    assert dataset.feature_levels["o2"] == ("no", "some", "all")
    dense = np.concatenate([dataset.dense(key)[0] for key in range(dataset.n_chunks)])
    np.testing.assert_array_equal(dense[N_ROWS:, 2], np.arange(80) / 4)
    np.testing.assert_array_equal(dense[N_ROWS:, 3], 7.5)
    assert dense[N_ROWS : N_ROWS + 3, 1].tolist() == [0, 1, 2]
    assert dense[N_ROWS:, 4].tolist()[:4] == [2, 0, 0, 1]
    third = second.drop(columns=["n", "o"])
    options = ("--append", "--absent-features", "missing")
    ingest(cli, write(third, "c", "csv"), *options)
    dataset = open_dataset("d.zarr")
    X, observed = dataset.dense(dataset.n_chunks - 1)
    assert not observed[-N_ROWS:, [1, 3]].any()
    np.testing.assert_array_equal(X[-N_ROWS:, 2], np.arange(80) / 4)


def test_files_of_a_watched_folder_are_matched_by_name(cli) -> None:
    Path("in").mkdir()
    first, second = make_frame(NAMES), make_frame(["z", *NAMES[::-1]], 1)
    for k, frame in enumerate((first, second)):
        path = Path(write(frame, f"in/{k}", "csv"))
        stamp = path.stat().st_mtime - 3600

        os.utime(path, (stamp, stamp))
        options = ("--new", "--new-features", "add")
        ingest(cli, "in", *options)
    np.testing.assert_array_equal(read(NAMES), np.vstack([first, second[NAMES]]))
    np.testing.assert_array_equal(read(["z"])[N_ROWS:, 0], second["z"])
