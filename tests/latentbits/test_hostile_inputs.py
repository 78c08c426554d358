"""No exception of another library leaves a public function, whatever it is given."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import xarray
import zarr

import latentbits as lb
from latentbits.fitted import Fitted
from pipeline.errors import FitError
from storage.errors import DataError

X = np.random.default_rng(0).integers(0, 2, (60, 5))
TABLE = pd.DataFrame(X, columns=list("abcde"))


class FailingArray:
    """An array of a library whose reads fail."""

    shape, dtype, chunks = (60, 5), np.dtype("u1"), (20, 5)

    def __getitem__(self, place: object) -> Any:
        raise RuntimeError("the device\nis lost")


class FailingList(list[int]):
    def __iter__(self) -> Any:
        raise RuntimeError("the list is lost")


def make_zarr(folder: Path, damage: Callable[[Path], object]) -> Any:
    array = zarr.create_array(folder / "z", shape=X.shape, chunks=(20, 5), dtype="u1")
    array[:] = X
    damage(folder / "z" / "c" / "1" / "0")
    return array


def replace_by_folder(chunk: Path) -> None:
    chunk.unlink()
    chunk.mkdir()


def close_hdf5(folder: Path) -> Any:
    with h5py.File(folder / "x.h5", "w") as file:
        return file.create_dataset("x", data=X, chunks=(20, 5))


def map_blocks(function: Callable[[Any], Any]) -> Any:
    blocks = dask.array.from_array(X, chunks=(20, 5))
    return blocks.map_blocks(function, dtype=int, meta=np.empty((0, 0), int))


def fail(_: object) -> Any:
    raise RuntimeError("a worker\nis lost")


def make_pipe(folder: Path) -> Path:
    import os

    os.mkfifo(folder / "pipe.csv")
    return folder / "pipe.csv"


def make_loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


def label(attribute: object) -> Any:
    coordinates = {"feature": list("abcde")}
    attributes = {"feature_levels": attribute}
    return xarray.DataArray(X + 7, dims=("row", "feature"), coords=coordinates, attrs=attributes)


HALVES = [0, 1] * 30
INPUTS: dict[str, Callable[[Path], Any]] = {
    "zarr_with_a_damaged_chunk": lambda f: make_zarr(f, lambda chunk: chunk.write_bytes(b"no")),
    "zarr_with_an_empty_chunk": lambda f: make_zarr(f, lambda chunk: chunk.write_bytes(b"")),
    "zarr_with_a_folder_as_chunk": lambda f: make_zarr(f, replace_by_folder),
    "zarr_that_was_deleted": lambda f: make_zarr(f, lambda _: shutil.rmtree(f / "z")),
    "hdf5_that_was_closed": close_hdf5,
    "dask_of_sparse_matrices": lambda _: map_blocks(scipy.sparse.coo_matrix),
    "dask_that_fails": lambda _: map_blocks(fail),
    "dask_of_narrow_blocks": lambda _: map_blocks(lambda block: block[:, :3]),
    "dask_of_texts": lambda _: map_blocks(lambda _: "text"),
    "dask_delayed": lambda _: dask.delayed(X),
    "failing_array": lambda _: FailingArray(),
    "failing_list": lambda _: FailingList([1]),
    "sparse_with_wrong_indices": lambda _: scipy.sparse.csr_matrix(
        (np.ones(60, int), np.full(60, 99), np.arange(61)), shape=(60, 5)
    ),
    "matrix": lambda _: np.matrix(X),
    "structured_array": lambda _: np.zeros((60, 5), [("x", int)]),
    "objects": lambda _: np.full((60, 5), object()),
    "number": lambda _: 3,
    "none": lambda _: None,
    "generator": lambda _: (row for row in X),
    "polars_struct": lambda _: pl.DataFrame({"a": [{"x": 1}] * 60, "b": HALVES}),
    "polars_array": lambda _: pl.DataFrame(
        {"a": [[1, 0]] * 60, "b": HALVES}, schema={"a": pl.Array(pl.Int8, 2), "b": pl.Int8}
    ),
    "polars_lazy_without_its_file": lambda f: pl.scan_csv(f / "nowhere.csv"),
    "polars_lazy_that_fails": lambda _: pl.DataFrame({"a": HALVES}).lazy().map_batches(fail),
    "polars_lazy_without_its_column": lambda _: pl.DataFrame({"a": HALVES}).lazy().select("z"),
    "pandas_columns_of_two_levels": lambda _: pd.DataFrame(
        X, columns=pd.MultiIndex.from_product([["u"], list("abcde")])
    ),
    "pandas_columns_of_tuples": lambda _: TABLE.rename(columns={"a": ("a", 1)}),
    "pandas_arrays": lambda _: TABLE.assign(a=[np.zeros(2)] * 60),
    "arrow_struct": lambda _: pa.table({"a": [{"x": 1}] * 60, "b": HALVES}),
    "xarray_that_fails": lambda _: xarray.DataArray(map_blocks(fail), dims=("row", "feature")),
    "xarray_with_no_json": lambda _: label("{"),
    "xarray_with_a_list": lambda _: label("[1]"),
    "xarray_with_a_number": lambda _: label(3),
    "xarray_with_other_levels": lambda _: label('{"a": ["x", "y"]}'),
    "long_path": lambda _: "x" * 100_000,
    "long_name": lambda _: "x" * 300,
    "null_character": lambda _: "a\0b",
    "surrogate": lambda _: "\ud800",
    "path_below_a_file": lambda _: str(Path(__file__) / "d.zarr"),
    "loop_of_links": make_loop,
    "pipe": make_pipe,
    "device": lambda _: "/dev/null",
    "folder": lambda folder: folder,
    "unusable_url": lambda _: "s3://",
}
OWN_ERRORS = (FitError, DataError)
LEARN_ERRORS = (ValueError, TypeError)
"""scikit-learn checks what estimators get, and asks for these errors."""
FURTHER_ERRORS: dict[str, tuple[type[Exception], ...]] = {
    **dict.fromkeys(
        ("estimator_fit", "estimator_partial_fit", "estimator_transform"), LEARN_ERRORS
    ),
    "save": (NotADirectoryError,),
}


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return lb.fit(TABLE, "latent-trait", components=1)


@pytest.fixture(scope="module")
def scorer(fitted: Fitted) -> lb.Scorer:
    return lb.Scorer(fitted)


Call = Callable[[Fitted, lb.Scorer, Path, Any], object]
CALLS: dict[str, Call] = {
    "fit": lambda *a: lb.fit(a[3], components=1),
    "from_numpy": lambda *a: lb.from_numpy(a[3]),
    "from_dataframe": lambda *a: lb.from_dataframe(a[3]),
    "Scorer": lambda *a: lb.Scorer(a[3]),
    "items": lambda *a: lb.fit(TABLE, "latent-trait", components=1, items=a[3]),
}
OTHER_CALLS: dict[str, Call] = {
    "from_numpy_to_disk": lambda *a: lb.from_numpy(a[3], path=a[2] / "d.zarr"),
    "feature_names": lambda *a: lb.from_numpy(X, feature_names=a[3]),
    "segment": lambda *a: lb.from_numpy(X, segment=a[3]),
    "kept_array": lambda *a: lb.from_numpy(X, keep={"k": a[3]}),
    "kept_arrays": lambda *a: lb.from_numpy(X, keep=a[3]),
    "levels": lambda *a: lb.from_numpy(X, levels=a[3]),
    "continuous": lambda *a: lb.from_numpy(X, continuous=a[3]),
    "kept_columns": lambda *a: lb.from_dataframe(TABLE, keep=a[3]),
    "feature_columns": lambda *a: lb.from_dataframe(TABLE, features=a[3]),
    "open_dataset": lambda *a: lb.open_dataset(a[3]),
    "load": lambda *a: lb.load(a[3]),
    "load_artifact": lambda *a: lb.load_artifact(a[3]),
    "open_codes": lambda *a: lb.open_codes(a[3]),
    "transform": lambda *a: lb.transform(a[0], a[3]),
    "transform_with": lambda *a: lb.transform(a[3], TABLE),
    "evaluate": lambda *a: lb.evaluate(a[0], a[3]),
    "scorer_call": lambda *a: a[1](a[3]),
    "scored_value": lambda *a: a[1]({"a": a[3]}),
    "query": lambda *a: lb.query(a[3], {}, ["a"]),
    "query_given": lambda *a: lb.query(a[0], {"b": a[3]}, ["a"]),
    "query_of": lambda *a: lb.query(a[0], {}, a[3]),
    "link_items": lambda *a: lb.link_items(a[0], a[3]),
    "estimator_fit": lambda *a: lb.ClippedPCA(n_components=1).fit(a[3]),
    "estimator_partial_fit": lambda *a: lb.ClippedPCA(n_components=1).partial_fit(a[3]),
    "estimator_transform": lambda *a: lb.ClippedPCA(n_components=1).fit(X).transform(a[3]),
    "pattern": lambda *a: lb.fit(TABLE, "latent-trait", components=1, pattern=a[3]),
    "covariates": lambda *a: lb.fit(TABLE, "latent-trait", components=1, covariates=a[3]),
    "cut": lambda *a: lb.fit(TABLE, components=1, cut=a[3]),
    "orient": lambda *a: lb.fit(TABLE, components=1, orient=a[3]),
    "components": lambda *a: lb.fit(TABLE, components=a[3]),
    "layers": lambda *a: lb.fit(TABLE, "stack", layers=a[3]),
    "save": lambda *a: a[0].save(a[3]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "n_parts"),
    [
        *((name, 1) for name in CALLS),
        *(pytest.param(name, 3, marks=pytest.mark.matrix) for name in OTHER_CALLS),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in OTHER_CALLS),
    ],
)
def test_inputs_are_used_or_refused_in_one_line(
    call: str, n_parts: int, fitted: Fitted, scorer: lb.Scorer, tmp_path: Path
) -> None:
    """Other calls take the inputs by turns, or all of them."""
    place = [*CALLS, *OTHER_CALLS].index(call)
    for name in [*INPUTS][place % n_parts :: n_parts]:
        make_input = INPUTS[name]
        if name == "failing_list" and call.startswith("estimator"):
            continue  # scikit-learn iterates over the list
        folder = tmp_path / name
        (folder / "work").mkdir(parents=True)
        try:
            (CALLS | OTHER_CALLS)[call](fitted, scorer, folder / "work", make_input(folder))
        except Exception as error:
            if not isinstance(error, (*OWN_ERRORS, *FURTHER_ERRORS.get(call, ()))):
                raise AssertionError(f"{call} of {name}") from error
            message = str(error)
            if isinstance(error, OWN_ERRORS):
                assert message, name
                assert "\n" not in message, name
                assert len(message) < 3000 or name.startswith("long"), name


@pytest.mark.parametrize("name", ["dask_of_sparse_matrices", "matrix"])
def test_values_of_unusual_arrays_are_read(name: str, tmp_path: Path) -> None:
    dataset, expected = lb.from_numpy(INPUTS[name](tmp_path)), lb.from_numpy(X)
    assert dataset.describe() == expected.describe()


def test_a_place_and_a_reason_are_named(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"^Block 1 of X \(rows 1 to 60, .*\) cannot be read: "):
        lb.from_numpy(INPUTS["zarr_with_a_damaged_chunk"](tmp_path))
    with pytest.raises(FitError, match=r"^X cannot be read: .*"):
        lb.from_numpy(close_hdf5(tmp_path))
    with pytest.raises(FitError, match=r"^Column 'a' has the type Struct.*several values per row"):
        lb.from_dataframe(INPUTS["polars_struct"](tmp_path))
    with pytest.raises(FitError, match=r"MultiIndex\. Join them: df\.columns = "):
        lb.from_dataframe(INPUTS["pandas_columns_of_two_levels"](tmp_path))
    with pytest.raises(DataError, match=r"^'x{100}…' is no usable path: File name too long\.$"):
        lb.Scorer("x" * 100_000)


def test_lists_are_layers() -> None:
    from_list = lb.fit(X, "stack", layers=[4, 2], max_iter=2)
    assert from_list.model == lb.fit(X, "stack", layers=(4, 2), max_iter=2).model


def test_mistakes_of_this_program_stay_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TypeError("a mistake")

    monkeypatch.setattr("pipeline.data.tables.convert_to_bits", fail)
    with pytest.raises(TypeError, match="a mistake"):
        lb.from_numpy(X)
    with pytest.raises(TypeError, match="a mistake"):
        lb.from_dataframe(TABLE)
