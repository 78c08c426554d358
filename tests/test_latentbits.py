"""The library's face: what a notebook imports."""

import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pytest

import latentbits as lb
from storage.errors import DataError

ROWS = {
    "id": ["a", "b", "c", "d"],
    "year": [1990, 1990, 1991, 1991],
    "q1": [1, 0, None, 1],
    "q2": [True, False, True, None],
    "q3": ["yea", "nay", "yea", "present"],
}
CHOICE = {"keep": ["id"], "segment_by": "year", "map": ["q3:yea=1,nay=0"], "missing": ["present"]}
EXPECTED = np.array([[1, 1, 1], [0, 0, 0], [np.nan, 1, 1], [1, np.nan, np.nan]])


def values(dataset):
    """All values, NaN where missing."""
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    return np.where(observed, X, np.nan)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_data_frames_become_datasets(kind):
    frame = pa.table(ROWS)
    if kind != "arrow":
        library = pytest.importorskip(kind)
        frame = frame.to_pandas() if kind == "pandas" else library.from_arrow(frame)
    dataset = lb.from_dataframe(frame, **CHOICE)
    assert dataset.feature_names == ("q1", "q2", "q3")
    np.testing.assert_array_equal(values(dataset), EXPECTED)
    assert dataset.column("id").tolist() == ROWS["id"]
    assert dataset.segment_names == ("1990", "1991")


def test_splits_are_stored_as_such(tmp_path):
    frame = pa.table({"a": [1, 0, 1], "b": [0, 1, 1], "part": ["train", "test", "train"]})
    dataset = lb.from_dataframe(frame, split_by="part", path=str(tmp_path / "d.zarr"))
    assert dataset.column("split").tolist() == ["train", "test", "train"]
    assert lb.open_dataset(tmp_path / "d.zarr").digest == dataset.digest


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float32, object])
def test_matrices_become_datasets(dtype):
    X = np.random.default_rng(0).integers(0, 2, (100, 5)).astype(dtype)
    dataset = lb.from_numpy(X, segments=np.arange(100) // 50)
    assert dataset.feature_names == ("f0", "f1", "f2", "f3", "f4")
    assert dataset.n_segments == 2
    np.testing.assert_array_equal(values(dataset), X.astype(float))


def test_nan_is_missing():
    found = values(lb.from_numpy(EXPECTED, feature_names=["a", "b", "c"]))
    np.testing.assert_array_equal(found, EXPECTED)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: lb.from_numpy([[0, 1], [2, 0]]),
            "values: row 2 (data rows counted from 1), column 'f0': Expected 0, 1, true, false",
        ),
        (lambda: lb.from_numpy([0, 1]), "values: Expected a matrix (2 dimensions), got 1."),
        (lambda: lb.from_numpy(np.eye(2), segments=[1]), "segments: Expected 2, one a row"),
        (lambda: lb.from_numpy(np.eye(2), feature_names=["a"]), "feature_names: Expected 2, got 1"),
        (lambda: lb.from_numpy(np.eye(2), feature_names=["a", "a"]), "Expected distinct names"),
        (
            lambda: lb.from_dataframe(pa.table(ROWS), drop=["id", "year"]),
            "Use map='yea=1,nay=0' missing='present'.",
        ),
        (lambda: lb.from_dataframe(pa.table(ROWS), drop=["id", "q9"]), "frame: drop: Expected a"),
        (lambda: lb.from_dataframe(pa.table(ROWS), keep=["name"]), "Check keep, segment_by and"),
        (
            lambda: lb.from_dataframe(pa.table(ROWS), segment_by="q3x"),
            "Expected a per-row column 'q3x'",
        ),
        (lambda: lb.from_dataframe(pa.table(ROWS), segment_by="q1"), "frame: row 3"),
        (
            lambda: lb.from_dataframe(pa.table({"when": pa.array([0], pa.date32()), "b": [1]})),
            "Use keep='when' to keep it.",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_the_argument(make, message):
    with pytest.raises(DataError) as caught:
        make()
    assert message in str(caught.value)
    assert "--" not in str(caught.value)


def test_a_fit_in_four_lines():
    rng = np.random.default_rng(1)
    traits = rng.normal(size=(400, 1))
    X = (traits + rng.normal(size=(400, 6)) > 0).astype(float)
    dataset = lb.from_numpy(X)
    fitted = lb.fit(dataset, "latent-trait", components=1)
    codes = lb.transform(fitted, dataset)["mean"][:, 0]
    assert abs(np.corrcoef(codes, traits[:, 0])[0, 1]) > 0.7
    assert lb.evaluate(fitted, dataset) is not None


def test_importing_costs_nothing_and_names_are_there():
    assert lb.__version__ == version("latentbits")
    assert all(callable(getattr(lb, name)) for name in lb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lb.nothing
    script = "import sys, latentbits; print({'numpy', 'zarr', 'prefect'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
