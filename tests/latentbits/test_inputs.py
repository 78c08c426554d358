"""Sparse, lazy and chunked inputs: the same bytes as a dense array, without its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import zarr

import latentbits as lb
from pipeline.data import batches
from pipeline.errors import FitError
from tests.support.data import draw_probit_rows

NAMES = [f"f{i}" for i in range(6)]


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return draw_probit_rows(700, len(NAMES), 2, seed=1)[0]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read 64 rows at a time, and pack 128."""
    monkeypatch.setattr("pipeline.data.batches._CELLS_AT_ONCE", 64 * len(NAMES))
    monkeypatch.setattr("pipeline.data.datasets._CHUNK_BYTES", 16 * len(NAMES))


def make_zarr(X: np.ndarray) -> zarr.Array[Any]:
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=X.shape, chunks=(50, 4), dtype=X.dtype
    )
    array[:] = X
    return array


def make_hdf5(X: np.ndarray) -> h5py.Dataset:
    file = h5py.File.in_memory()
    return file.create_dataset("X", data=X, chunks=(50, 4))


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": np.ndarray.tolist,
    "csr array": scipy.sparse.csr_array,
    "coo matrix": scipy.sparse.coo_matrix,
    "dask": lambda X: da.from_array(X, chunks=(99, 4)),
    "zarr": make_zarr,
    "hdf5": make_hdf5,
    "polars": lambda X: pl.DataFrame(X, schema=NAMES),
    "lazy": lambda X: pl.DataFrame(X, schema=NAMES).lazy(),
    "pandas": lambda X: pd.DataFrame(X, columns=NAMES),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_missing", [False, True])
def test_fit_takes_any_kind_of_table(X: np.ndarray, kind: str, has_missing: bool) -> None:
    values = X.astype(float)
    if has_missing:
        values[np.random.default_rng(0).random(values.shape) < 0.1] = np.nan
    table = KINDS[kind](values)
    expected, found = (lb.fit(data, components=1) for data in (values, table))
    assert found.params.loadings.tobytes() == expected.params.loadings.tobytes()
    assert found.feature_names == tuple(NAMES)
    codes = [lb.transform(found, data)["mean"].tobytes() for data in (values, table)]
    assert codes[0] == codes[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("binarize", [None, 0.5, "mean"])
def test_estimators_take_any_kind_of_table(X: np.ndarray, kind: str, binarize: Any) -> None:
    table = KINDS[kind](X.astype(float))
    expected, found = (
        lb.ClippedPCA(n_components=1, binarize=binarize, random_state=0).fit(data)
        for data in (X, table)
    )
    assert found.fitted_.params.loadings.tobytes() == expected.fitted_.params.loadings.tobytes()
    assert found.transform(table).tobytes() == expected.transform(X).tobytes()


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["csr array", "dask", "zarr", "lazy"])
def test_equal_segments_divide_any_kind_of_table(X: np.ndarray, kind: str) -> None:
    options = {"n_components": 1, "n_segments": 3, "random_state": 0}
    expected, found = (lb.BLICA(**options).fit(data) for data in (X, KINDS[kind](X)))
    assert found.fitted_.params.mixing.tobytes() == expected.fitted_.params.mixing.tobytes()


def test_per_row_columns_of_a_lazy_frame(X: np.ndarray, tmp_path: Path) -> None:
    segment = np.array(["x", "y"])[np.arange(len(X)) % 2]
    number = np.where(np.arange(len(X)) < 600, np.arange(len(X)), None)
    frame = pl.DataFrame(X, schema=NAMES).with_columns(
        pl.Series("segment", segment), pl.Series("number", number, strict=False)
    )
    options: dict[str, Any] = {"segment": "segment", "keep": ["number"]}
    eager = lb.from_dataframe(frame, **options)
    lazy = lb.from_dataframe(frame.lazy(), **options)
    stored: Any = lb.from_dataframe(frame.lazy(), **options, path=tmp_path / "rows.zarr")
    assert lazy.segment_names == stored.segment_names == ("x", "y")
    fits = [lb.fit(data, components=1).params.loadings for data in (eager, lazy, stored)]
    np.testing.assert_array_equal(fits[0], fits[1])
    np.testing.assert_allclose(fits[2], fits[0], rtol=1e-9)
    read = [data.make_reader(columns=("number",))(0).columns["number"] for data in (eager, lazy)]
    np.testing.assert_array_equal(*read)
    assert stored.n_rows == len(X)


@pytest.mark.parametrize("kind", ["csr array", "dask", "zarr", "lazy"])
def test_errors_name_the_row_of_the_table(X: np.ndarray, kind: str) -> None:
    values = X.astype(float)
    values[690, 3] = 7
    with pytest.raises(FitError, match=r"^row 691 \(counted from 1\), column 'f3': .* is 7"):
        lb.fit(KINDS[kind](values))


class RecordingArray:
    """An array like those of Zarr, which records how many rows are read at once."""

    def __init__(self, X: np.ndarray) -> None:
        self._X = X
        self.shape, self.dtype, self.chunks = X.shape, X.dtype, (10, 2)
        self.sizes: list[int] = []

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.sizes.append(len(self._X[rows]))
        return self._X[rows]


@pytest.mark.parametrize("to_disk", [False, True])
def test_only_whole_chunks_are_read_and_few_at_once(
    X: np.ndarray, to_disk: bool, tmp_path: Path
) -> None:
    array = RecordingArray(X)
    lb.from_numpy(array, path=tmp_path / "rows.zarr" if to_disk else None)
    assert array.sizes == [60] * 11 + [40]


def test_dask_blocks_are_computed_once_each(X: np.ndarray) -> None:
    computed: list[int] = []

    def record(block: np.ndarray, block_id: tuple[int, int]) -> np.ndarray:
        computed.append(block_id[0])
        return block

    table = da.from_array(X, chunks=(99, len(NAMES))).map_blocks(record, dtype=X.dtype, meta=X[:0])
    lb.from_numpy(table)
    assert sorted(computed) == [*range(8)]


def double(rows: np.ndarray) -> np.ndarray:
    return np.vstack([rows, rows])


LYING_BLOCKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    r"shape \(198, 6\)": double,
    r"shape \(98, 6\)": lambda rows: rows[:98],
    r"shape \(99, 5\)": lambda rows: rows[:, :5],
    "cannot be read: no values": lambda _: raise_error(),
}


def raise_error() -> np.ndarray:
    raise OSError("no values")


@pytest.mark.parametrize("problem", LYING_BLOCKS)
@pytest.mark.parametrize("block", [0, 1])
def test_dask_blocks_of_another_shape_are_refused(X: np.ndarray, problem: str, block: int) -> None:
    def change(rows: np.ndarray, block_info: Any) -> np.ndarray:
        is_lying = block_info[0]["chunk-location"][0] == block
        return LYING_BLOCKS[problem](rows) if is_lying else rows

    array = da.from_array(X[:300], chunks=(99, 6))
    lying = array.map_blocks(change, meta=np.empty((0, 0), X.dtype))
    first = 99 * block
    place = rf"Block {block + 1} of X \(rows {first + 1} to {first + 99}, .*"
    with pytest.raises(FitError, match=place + problem):
        lb.from_numpy(lying)


def test_dask_blocks_may_be_sparse(X: np.ndarray) -> None:
    array = da.from_array(X[:300] == 1, chunks=(99, 6)).map_blocks(scipy.sparse.csr_matrix)
    dense: Any = lb.from_numpy(X[:300] == 1)
    sparse: Any = lb.from_numpy(array)
    both = zip(sparse.iter_tables(), dense.iter_tables(), strict=True)
    assert all(np.array_equal(table.X, own.X) for table, own in both)


def test_a_lazy_frame_that_changes_is_refused(X: np.ndarray) -> None:
    calls: list[int] = []

    def shorten(frame: pl.DataFrame) -> pl.DataFrame:
        calls.append(1)
        return frame.head(90 - len(calls))

    frame = pl.DataFrame(X[:100]).lazy().map_batches(shorten)
    with pytest.raises(FitError, match="88 rows, but had 89 when it was counted"):
        lb.from_dataframe(frame)


def test_a_dask_array_of_unknown_length_is_refused(X: np.ndarray) -> None:
    table = da.from_array(X, chunks=(99, len(NAMES)))
    with pytest.raises(FitError, match=r"length of X is unknown. Call X.compute_chunk_sizes\(\)"):
        lb.fit(table[table[:, 0] == 1])


def test_an_empty_lazy_frame_is_refused() -> None:
    with pytest.raises(FitError, match="have no rows"):
        lb.fit(pl.LazyFrame(schema={"a": pl.Int8, "b": pl.Int8}))


def test_paths_and_examples_are_data(X: np.ndarray, tmp_path: Path) -> None:
    dataset: Any = lb.from_numpy(X, path=tmp_path / "rows.zarr")
    expected = lb.fit(dataset, components=1).params.loadings.tobytes()
    for path in (dataset.path, str(dataset.path)):
        assert lb.fit(path, components=1).params.loadings.tobytes() == expected
    digits: Any = lb.open_dataset("example:digits")
    assert (digits.n_rows, digits.n_features) == (1797, 34)
    assert lb.fit("example:digits", components=1).feature_names == digits.feature_names
    with pytest.raises(ValueError, match=r"example 'digit' is unknown.*Did you mean 'digits'"):
        lb.fit("example:digit")
    with pytest.raises(ValueError, match=r"none\.zarr"):
        lb.fit(tmp_path / "none.zarr")


def test_which_inputs_are_read_in_batches(X: np.ndarray) -> None:
    is_lazy = {name: batches.is_read_in_batches(make(X)) for name, make in KINDS.items()}
    assert [name for name in KINDS if is_lazy[name]] == [
        "csr array",
        "coo matrix",
        "dask",
        "zarr",
        "hdf5",
        "lazy",
    ]


def test_a_missing_0_is_not_false() -> None:
    X = np.array([[0, 1], [2, False], [1, True], [1, 2]], object)
    with pytest.raises(FitError, match=r"row 2 .* the value is False"):
        lb.from_numpy(X, map={0: None, 1: 1, 2: 0})
    with pytest.raises(FitError, match=r"row 2 .* the value is False"):
        lb.from_dataframe(
            pd.DataFrame({"a": [1, 2], "b": [True, False]}), map={0: None, 1: 1, 2: 0}
        )
    dataset = lb.from_numpy(X[:, [0, 0]], map={0: None, 1: 1, 2: 0})
    assert dataset.n_rows == 4


COMPLEX = np.array([[1 + 2j, 0], [0, 1]])
DURATIONS = np.array([[1, 0], [0, 1]], "timedelta64[ns]")


@pytest.mark.parametrize("values", [COMPLEX, DURATIONS, DURATIONS.view("datetime64[ns]")])
def test_complex_numbers_durations_and_dates_are_refused(values: np.ndarray) -> None:
    inputs: list[Any] = [values, pd.DataFrame(values, columns=["a", "b"])]
    inputs += [da.from_array(values), pd.DataFrame({"a": [0, 1], "b": values[0]})]
    if values.dtype.kind == "c":
        inputs.append(scipy.sparse.csr_array(values))
    else:
        inputs.append(pl.DataFrame({"a": values[:, 0], "b": [0, 1]}))
    kinds: tuple[dict[str, Any], ...] = ({}, {"threshold": 0.5}, {"map": {1: 1, 0: 0}})
    for data in inputs:
        make = lb.from_dataframe if hasattr(data, "columns") else lb.from_numpy
        for options in kinds:
            with pytest.raises(FitError, match=f"row 1 .* of type {values.dtype.name[:8]}"):
                make(data, **options)  # type: ignore[operator]
    objects = np.array([[np.complex128(1 + 2j), 0], [0, np.timedelta64(1, "D")]], object)
    for columns in ([0, 0], [1, 1]):
        with pytest.raises(FitError, match="not 0, 1, True, False or missing"):
            lb.from_numpy(objects[:, columns])
    with pytest.raises(FitError, match=r"row 1 .* the value is .* not a number"):
        lb.from_dataframe(pd.DataFrame({"a": values[:, 0], "b": [0, 1]}), continuous=["a"])


def test_words_of_one_meaning_are_bits(X: np.ndarray) -> None:
    plain = pd.DataFrame(X.astype(float), columns=NAMES).mask(lambda x: x.index.to_series() == 3)
    words = plain.replace({1.0: "Yes", 0.0: "no"}).astype(object).where(plain.notna(), None)
    words["f1"] = plain["f1"]  # numbers and words may be mixed
    expected = lb.fit(plain, components=2).params.loadings
    frames = (words, words.astype("category"), pl.DataFrame(words.to_dict("list"), strict=False))
    for frame in frames:
        frame = frame if isinstance(frame, pl.DataFrame) else frame.assign(f1=plain["f1"])
        with pytest.warns(
            UserWarning, match="^words are read as bits: yes as 1; no as 0$"
        ) as found:
            fitted = lb.fit(frame, components=2)
        np.testing.assert_array_equal(fitted.params.loadings, expected)
        assert [own.filename for own in found] == [__file__]
        with pytest.warns(UserWarning, match="words are read"):
            estimator = lb.ClippedPCA(2, random_state=0).fit(frame)
        np.testing.assert_array_equal(estimator.loadings_, expected)
    row = {name: value for name, value in words.iloc[0].items() if value is not None}
    assert lb.Scorer(fitted)(row) == lb.Scorer(fitted)(dict(plain.iloc[0]))
    with pytest.raises(FitError, match=r"^row 1 \(.*the value is 'y', not 0, 1, True"):
        lb.fit(words.assign(f0="y"))


@pytest.mark.parametrize("name", ["*", "^a.*$"])
def test_polars_columns_that_are_patterns_are_refused(name: str) -> None:
    frame = pl.DataFrame({name: ["x", "y"], "a": [0, 1]}, schema_overrides={name: pl.Categorical})
    for own in (frame, frame.lazy()):
        with pytest.raises(FitError, match=r"Polars takes this name for a pattern\. Rename it"):
            lb.from_dataframe(own, features=[name, "a"])


def test_bytes_are_texts() -> None:
    rows = np.array([["yes", "no"], ["no", "yes"], ["1", "0.0"]])
    expected = [[1, 0], [0, 1], [1, 0]]
    for X in (rows.astype("S"), rows.astype("S").astype(object), rows.astype(object)):
        keep = {"party": np.array(["left", "right", ""], "S")}
        with pytest.warns(UserWarning, match="words are read as bits: yes as 1; no as 0"):
            dataset: Any = lb.from_numpy(X, keep=keep)
        (table,) = dataset.iter_tables()
        assert table.X.tolist() == expected
        assert table.columns["party"].tolist() == ["left", "right", ""]
    levels: Any = lb.from_numpy(rows[:2].astype("S"), levels=["no", "yes"])
    assert next(levels.iter_tables()).X.tolist() == expected[:2]
    with pytest.raises(FitError, match=r"^The bytes b'\\xe9' are not UTF-8\. Decode them"):
        lb.from_numpy(np.array([[b"\xe9", b"no"]]))
