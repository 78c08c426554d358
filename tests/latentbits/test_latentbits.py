"""The library's public names: datasets of arrays and data frames, on disk and in memory."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray

import latentbits as lb
import storage
from latentbits import functions as api
from pipeline.errors import FitError
from storage.errors import DataError
from tests.support.data import draw_probit_rows

N_ROWS = 700
NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    values = draw_probit_rows(N_ROWS, len(NAMES), 2, seed=1)[0].astype(float)
    values[np.random.default_rng(0).random(values.shape) < 0.1] = np.nan
    return values


@pytest.fixture(scope="module")
def per_row() -> dict[str, np.ndarray]:
    draws = np.random.default_rng(2)
    segment = np.array(["x", "y", "z"])[draws.integers(0, 3, N_ROWS)]
    return {
        "segment": segment,
        "number": draws.normal(size=N_ROWS),
        "whole": draws.integers(9)[()] + np.arange(N_ROWS),
        "split": np.where(np.arange(N_ROWS) % 3, "train", "test"),
    }


def columns_to_keep(per_row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in per_row.items() if name != "segment"}


def make_in_memory(X: Any, per_row: dict[str, np.ndarray], **options: Any) -> Any:
    return lb.from_numpy(
        X, NAMES, segment=per_row["segment"], keep=columns_to_keep(per_row), **options
    )


def make_frame(X: np.ndarray, per_row: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES).assign(**per_row)


def test_the_names_are_those_of_their_modules() -> None:
    assert lb.load_artifact is storage.load_artifact
    assert lb.open_codes is storage.open_codes
    assert (lb.fit, lb.transform, lb.evaluate) == (api.fit, api.transform, api.evaluate)
    assert lb.__version__ == version("latentbits")
    with pytest.raises(AttributeError, match="module 'latentbits' has no attribute 'nothing'"):
        _ = lb.nothing


@pytest.mark.parametrize("n_jobs", [1, 2, -1])
def test_any_number_of_threads_gives_the_same_bytes(
    X: np.ndarray, per_row: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, n_jobs: int
) -> None:
    monkeypatch.setattr("pipeline.data.datasets._CHUNK_BYTES", 16 * len(NAMES))
    data = make_in_memory(X, per_row)
    here, there = lb.fit(data, components=1), lb.fit(data, components=1, n_jobs=n_jobs)
    assert here.params.loadings.tobytes() == there.params.loadings.tobytes()
    codes = [lb.transform(here, data, n_jobs=n)["mean"].tobytes() for n in (1, n_jobs)]
    assert codes[0] == codes[1]
    assert lb.evaluate(here, data, n_jobs=n_jobs) == lb.evaluate(here, data)


@pytest.mark.parametrize("model", ["clipped-pca", "blica", "bernoulli-mixture"])
def test_memory_and_disk_give_the_same_bytes(
    X: np.ndarray, per_row: dict[str, np.ndarray], tmp_path: Path, model: str
) -> None:
    here = make_in_memory(X, per_row)
    there = make_in_memory(X, per_row, path=tmp_path / "d.zarr")
    assert there.path == tmp_path / "d.zarr"
    fits = [api.fit(data, model, components=1, split="train") for data in (here, there)]
    codes = [api.transform(fits[0], data)["mean"] for data in (here, there)]
    found = [api.evaluate(fits[0], data, split="test", label="split") for data in (here, there)]
    arrays = [[a.tobytes() for _, a in api.get_named_arrays(one.params).values()] for one in fits]
    assert arrays[0] == arrays[1]
    assert codes[0].tobytes() == codes[1].tobytes()
    assert codes[0].shape == (N_ROWS, 1)
    assert found[0] == found[1]


def test_chunks_in_memory_hold_every_row_once(
    X: np.ndarray, per_row: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_in_memory(X, per_row)
    monkeypatch.setattr("pipeline.data.datasets._CHUNK_BYTES", 16 * len(NAMES))
    cut = make_in_memory(X, per_row)
    assert (len(whole.rows_per_chunk), len(cut.rows_per_chunk)) == (1, -(-N_ROWS // 128))
    for name in ("segment_names", "levels", "n_rows"):
        assert getattr(cut, name) == getattr(whole, name)
    fits = [api.fit(data, "clipped-pca", components=1) for data in (whole, cut)]
    codes = [api.transform(fits[0], data) for data in (whole, cut)]
    assert codes[1]["row"].tolist() == list(range(N_ROWS))
    assert codes[0]["mean"].tobytes() == codes[1]["mean"].tobytes()
    np.testing.assert_allclose(fits[0].params.correlation, fits[1].params.correlation, atol=1e-9)


def make_pandas_with_missing(X: np.ndarray, per_row: dict[str, np.ndarray]) -> pd.DataFrame:
    found = make_frame(X, per_row)
    return found.astype({"a": "boolean", "b": "Int8", "c": object})


def make_polars(X: np.ndarray, per_row: dict[str, np.ndarray]) -> Any:
    polars = pytest.importorskip("polars")
    return polars.from_arrow(pa.Table.from_pandas(make_pandas_with_missing(X, per_row)))


def make_arrow(X: np.ndarray, per_row: dict[str, np.ndarray]) -> pa.Table:
    return pa.Table.from_pandas(make_pandas_with_missing(X, per_row), preserve_index=False)


def make_xarray_dataset(X: np.ndarray, per_row: dict[str, np.ndarray]) -> xarray.Dataset:
    bits = {"values": X == 1, "observed": ~np.isnan(X)}
    variables = {name: (("row", "feature"), values) for name, values in bits.items()}
    columns = {name: ("row", values) for name, values in per_row.items()}
    return xarray.Dataset({**variables, **columns}, {"feature": NAMES})


def make_xarray_array(X: np.ndarray, per_row: dict[str, np.ndarray]) -> xarray.DataArray:
    columns = {name: ("row", values) for name, values in per_row.items()}
    return xarray.DataArray(X, {**columns, "feature": NAMES}, ("row", "feature"))


@pytest.mark.parametrize(
    "make",
    [
        make_frame,
        make_pandas_with_missing,
        make_polars,
        make_arrow,
        make_xarray_dataset,
        make_xarray_array,
    ],
)
def test_every_kind_of_frame_gives_the_same_dataset(
    X: np.ndarray, per_row: dict[str, np.ndarray], make: Any
) -> None:
    expected = make_in_memory(X, per_row)
    found: Any = lb.from_dataframe(
        make(X, per_row), segment="segment", keep=[*columns_to_keep(per_row)]
    )
    assert found.feature_names == expected.feature_names == tuple(NAMES)
    assert (found.segment_names, found.levels) == (expected.segment_names, expected.levels)
    for one, other in zip(found.chunks, expected.chunks, strict=True):
        for name in ("words", "observed", "blocks", "rows"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert set(one.columns) == set(other.columns) == set(columns_to_keep(per_row))
        for name in one.columns:
            np.testing.assert_array_equal(one.columns[name], other.columns[name])


def test_what_a_dataset_on_disk_shows_as_xarray_comes_back(
    X: np.ndarray, per_row: dict[str, np.ndarray], tmp_path: Path
) -> None:
    shown = make_in_memory(X, per_row, path=tmp_path / "d.zarr").to_xarray()
    again: Any = lb.from_dataframe(shown, segment="segment", keep=["split"])
    expected: Any = make_in_memory(X, per_row)
    assert again.feature_names == expected.feature_names
    np.testing.assert_array_equal(again.chunks[0].words, expected.chunks[0].words)
    np.testing.assert_array_equal(again.chunks[0].observed, expected.chunks[0].observed)


@pytest.mark.parametrize(
    "values",
    [
        np.array([[1, 0], [0, 1], [1, 1]], np.int64),
        np.array([[True, False], [False, True], [True, True]]),
        [[1.0, False], [0, np.True_], [True, np.float32(1)]],
        np.array([[1, 0], [0, 1], [1, 1]], object),
    ],
)
def test_values_of_every_type_are_the_same_bits(values: Any) -> None:
    found: Any = lb.from_numpy(values)
    assert found.feature_names == ("f0", "f1")
    assert found.chunks[0].words.ravel().tolist() == [0b101, 0b110]
    assert found.chunks[0].observed is None


@pytest.mark.parametrize(
    "values",
    [
        [[1, None], [float("nan"), 1], [pd.NA, 0]],
        np.ma.masked_array([[1, 5], [0, 1], [1, 0]], [[0, 1], [1, 0], [1, 0]]),
    ],
)
def test_missing_values_are_masked_and_packed_as_zeros(values: Any) -> None:
    found: Any = lb.from_numpy(values)
    assert found.chunks[0].words.ravel().tolist() == [0b001, 0b010]
    assert found.chunks[0].observed.ravel().tolist() == [0b001, 0b110]


@pytest.mark.parametrize("bad", [2, -1, 0.5, np.inf, "2", "y", 1j])
@pytest.mark.parametrize("dtype", [None, object])
def test_what_is_no_bit_is_refused_with_its_place(bad: Any, dtype: Any) -> None:
    values = np.array([[0, 1], [1, bad]], object)
    values = values if dtype or isinstance(bad, str | complex) else values.astype(float)
    shown = repr(values[1:, 1].tolist()[0])
    place = r"row 2 \(counted from 1\), column 'q': the value is .*, not 0, 1, True, False or miss"
    with pytest.raises(FitError, match=place) as refused:
        lb.from_numpy(values, ["p", "q"])
    assert f"the value is {shown}," in str(refused.value)
    with pytest.raises(FitError, match=place):
        lb.from_dataframe(pd.DataFrame(values, columns=["p", "q"]))


ONE = np.array([[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lb.from_numpy([0, 1]), "X has 1 dimensions instead of two"),
        (lambda: lb.from_numpy([[0, 1], [1]]), "rows of X have different lengths"),
        (lambda: lb.from_numpy(ONE[:, :1]), "have 1 feature. At least 1 row and 2"),
        (lambda: lb.from_numpy(ONE[:0]), "have no rows. At least 1 row"),
        (lambda: lb.from_numpy(ONE, ["p"]), "feature_names: 1 names for 2 features"),
        (lambda: lb.from_numpy(ONE, ["p", "p"]), "Two features have the name 'p'"),
        (lambda: lb.from_numpy(ONE, segment=["s"]), r"segment has .*\(1,\).* per row: 2 values"),
        (lambda: lb.from_numpy(ONE, segment=["s", None]), "segment: Row 2 .* has no segment"),
        (lambda: lb.from_numpy(ONE, keep={"k": [1]}), "k has .* one value per row: 2 values"),
        (lambda: lb.from_dataframe(ONE), "A numpy.ndarray is not a data frame"),
        (lambda: lb.from_dataframe(pd.DataFrame(ONE), segment="s"), "no column 's'"),
        (lambda: lb.from_dataframe(pd.DataFrame(ONE), keep="k"), r"Pass a list: \['k'\]"),
        (lambda: lb.from_dataframe(xarray.Dataset({"z": ("row", [1])})), "with `values`"),
        (
            lambda: lb.fit(lb.from_numpy(ONE), split="x"),
            "^split: The dataset has no split 'x'. It has: none",
        ),
        (lambda: lb.fit(lb.from_numpy(ONE), "bottleneck", column="x"), "no per-row column 'x'"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_one_line(make: Any, said: str) -> None:
    with pytest.raises(FitError, match=said) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_an_interrupted_dataset_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("storage.dataset.writer.DatasetWriter.finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lb.from_numpy(ONE, path=tmp_path / "d.zarr")
    lb.from_numpy(np.tile(ONE, (4, 1)), path=tmp_path / "d.zarr")
    assert lb.open_dataset(tmp_path / "d.zarr").n_rows == 8


def test_a_path_that_is_taken_stays_as_it_was(tmp_path: Path) -> None:
    lb.from_numpy(np.tile(ONE, (4, 1)), path=tmp_path / "d.zarr")
    with pytest.raises(DataError, match=r"already exists\. Choose another path"):
        lb.from_numpy(ONE, path=tmp_path / "d.zarr")
    assert lb.open_dataset(tmp_path / "d.zarr").n_rows == 8


def test_it_shows_what_it_holds(X: np.ndarray, per_row: dict[str, np.ndarray]) -> None:
    lines = [line.split("  ")[1:] for line in repr(make_in_memory(X, per_row)).splitlines()[1:]]
    said = {name: text.strip() for name, *_, text in lines}
    assert said["rows"] == "700"
    assert said["columns"] == "number, whole, split"
    assert said["missing values"] == "some"


CALLS = {"a": ["yea", "nay", None, "yea"], "b": ["nay", "absent", "yea", "nay"]}
MEANT = [[1, 0], [0, np.nan], [np.nan, 1], [1, 0]]


def unpack_values(dataset: Any) -> np.ndarray:
    (chunk,) = (dataset.make_reader()(key) for key in range(len(dataset.rows_per_chunk)))
    unpacked = [
        np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : dataset.n_rows].T
        for words in (chunk.words, chunk.observed)
    ]
    return np.where(unpacked[1], unpacked[0], np.nan)


@pytest.mark.parametrize("frame_of", [pd.DataFrame, pa.table])
def test_texts_by_a_map(frame_of: Any) -> None:
    frame = frame_of({**CALLS, "age": [3, 4, 5, 6]})
    data = lb.from_dataframe(frame, features=["a", "b"], map={"yea": 1, "nay": 0, "absent": None})
    assert data.feature_names == ("a", "b")
    np.testing.assert_array_equal(unpack_values(data), MEANT)


def test_codes_by_a_map() -> None:
    data = lb.from_numpy([[1, 6], [6, 9], [np.nan, 1], [1, 6]], map={1: 1, 6: 0, 9: None})
    np.testing.assert_array_equal(unpack_values(data), MEANT)


def test_threshold() -> None:
    data = lb.from_numpy([[2, 0.5], [1, np.nan], [np.nan, 9], [1.1, 1]], threshold=1)
    np.testing.assert_array_equal(unpack_values(data), MEANT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"map": {"yea": 1, "nay": 0}},
            r"^row 2 .*column 'b': the value is 'absent', not 'yea', 'nay' or missing",
        ),
        ({"map": {"yea": 1}}, r"^map is {'yea': 1}. It must map some values to 1, some to 0"),
        ({"map": {"yea": 1, "nay": 0}, "threshold": 1.0}, "^map and threshold cannot be combined"),
        (
            {"threshold": 1.0},
            r"^row 1 .*column 'a': the value is 'yea', not a number or missing",
        ),
        (
            {},
            r"'absent', .*\. Use threshold=T, map=\{VALUE: 1, .*continuous=.* not a feature",
        ),
        ({"features": "a"}, r"^features: The value is the text 'a'"),
        ({"features": ["c"]}, "^There is no column 'c'"),
    ],
)
def test_meanings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FitError, match=message):
        lb.from_dataframe(pd.DataFrame(CALLS), **options)


@pytest.mark.parametrize("path", ["storage.py", "pipeline/__init__.py"])
def test_the_import_names_a_local_package_that_hides_ours(tmp_path: Path, path: str) -> None:
    other = tmp_path / path
    other.parent.mkdir(exist_ok=True)
    other.touch()
    name = other.relative_to(tmp_path).parts[0].removesuffix(".py")
    done = subprocess.run(
        [sys.executable, "-c", "import latentbits"], cwd=tmp_path, capture_output=True, text=True
    )
    assert f"ImportError: {other} hides the package {name!r}" in done.stderr
    assert done.returncode == 1


def test_a_local_folder_without_modules_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    subprocess.run([sys.executable, "-c", "import latentbits"], cwd=tmp_path, check=True)
