"""Every format against the dense matrix it was written from."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.io
import scipy.sparse
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage.sources import (
    ReadOptions,
    arrays,
    base,
    expand_sources,
    find_basket_items,
    number_texts,
    open_source,
)
from storage.sources import csv as tables

# 0, 1 and NaN for a missing value; two columns or more, as blank lines of a table are no rows.
SHAPES = st.tuples(st.integers(1, 13), st.integers(2, 19))
MATRICES = SHAPES.flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.sampled_from((0, 1, np.nan)))
)
FLOATS = hnp.arrays(np.float32, SHAPES, elements=st.floats(-2, 2, width=16) | st.just(np.nan))


@pytest.fixture(autouse=True, scope="module")
def _small_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "BATCH_CELLS", 24)
        patch.setattr(base, "_MIN_BATCH_ROWS", 2)
        patch.setattr(tables, "TABLE_BLOCK_BYTES", 50)
        patch.setattr(number_texts, "NUMBER_BLOCK_BYTES", 20)
        patch.setattr(arrays, "_ENTRIES_AT_ONCE", 5)
        yield


def read(source):
    """All of a source: values with NaN for missing, and its columns."""
    parts, columns = [], {name: [] for name in source.column_names}
    for batch in source.iter_batches():
        assert batch.X.dtype == np.uint8
        assert batch.X.flags.c_contiguous
        assert batch.X.max(initial=0) <= 1
        assert batch.X.shape[1] == len(source.feature_names)
        values = batch.X.astype(float)
        if batch.observed is not None:
            assert batch.observed.max() <= 1
            assert not (batch.X & (1 - batch.observed)).any()
            values[batch.observed == 0] = np.nan
        parts.append(values)
        for name in source.column_names:
            assert len(batch.columns[name]) == len(values)
            columns[name].extend(batch.columns[name].tolist())
    whole = np.concatenate(parts) if parts else np.empty((0, len(source.feature_names)))
    if source.n_rows is not None:
        assert len(whole) == source.n_rows
    return whole, columns


def write_npy(folder, A):
    np.save(folder / "a.npy", A)
    return folder / "a.npy"


def write_npy_fortran(folder, A):
    return write_npy(folder, np.asfortranarray(A.astype(np.float16)))


def write_npz(folder, A):
    np.savez(folder / "a.npz", X=A, other=np.zeros(3))
    return folder / "a.npz"


def write_npz_fortran(folder, A):
    np.savez_compressed(folder / "a.npz", np.asfortranarray(A))
    return folder / "a.npz"


def write_packed(folder, A):
    X, M = np.packbits(A == 1, axis=1), np.packbits(~np.isnan(A), axis=1)
    np.savez(folder / "a.npz", X=X, M=M, shape=np.array(A.shape), G=A)
    return folder / "a.npz"


def _sparse_writer(kind):
    def write(folder, A):
        matrix = scipy.sparse.csr_array(A).asformat(kind)
        scipy.sparse.save_npz(folder / "a.npz", matrix)
        return folder / "a.npz"

    return write


def write_bsr(folder, A):
    block = tuple(next(size for size in (3, 2, 1) if n % size == 0) for n in A.shape)
    scipy.sparse.save_npz(folder / "a.npz", scipy.sparse.bsr_array(A, blocksize=block))
    return folder / "a.npz"


TOKENS = {
    "plain": {0: ["0"], 1: ["1"], 2: ["NA", "", "?"]},
    "odd": {
        0: ["0", "0.0", "false", "FALSE", '"0"', " 0", "0e1"],
        1: ["1", "1.0", "True", "tRUE", '"1"', "1 ", "01"],
        2: ["", "NA", "NaN", "nan", "N/A", "null", "NULL", "None", " ?", '"NA"'],
    },
}


def _table_text(A, delimiter, tokens):
    codes = np.where(np.isnan(A), 2, A).astype(int)
    lines = [delimiter.join(f"c{j}" for j in range(A.shape[1]))]
    for i, row in enumerate(codes):
        words = [tokens[code][(3 * i + j) % len(tokens[code])] for j, code in enumerate(row)]
        lines.append(delimiter.join(words))
    return "\n".join(lines)


def write_csv(folder, A):
    (folder / "a.csv").write_text(_table_text(A, ",", TOKENS["plain"]) + "\n")
    return folder / "a.csv"


def write_csv_odd(folder, A):
    text = _table_text(A, ",", TOKENS["odd"]).replace("\n", "\r\n")
    (folder / "a.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    return folder / "a.csv"


def write_tsv_gz(folder, A):
    text = _table_text(A, "\t", TOKENS["odd"])
    (folder / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return folder / "a.tsv.gz"


def write_parquet(folder, A):
    kinds = [
        pa.float64(),
        pa.bool_(),
        pa.int8(),
        pa.string(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.float32(),
        pa.dictionary(pa.int32(), pa.int64()),
        pa.decimal128(20, 1),
    ]
    columns = {}
    for j, values in enumerate(A.T):
        kind = kinds[j % len(kinds)]
        column = pa.array([None if np.isnan(value) else int(value) for value in values], pa.int64())
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type).dictionary_encode()
        columns[f"c{j}"] = column.cast(kind)
    pa.parquet.write_table(pa.table(columns), folder / "a.parquet", row_group_size=5)
    return folder / "a.parquet"


def _coordinate_text(A, field):
    rng = np.random.default_rng(A.size)
    # Some of the zeros are written out, too.
    listed = np.argwhere((A != 0) | (rng.random(A.shape) < 0.3))
    if field == "pattern":
        listed = np.argwhere(A == 1)
    rng.shuffle(listed)
    lines = [f"%%MatrixMarket matrix coordinate {field} general", "% a comment", ""]
    lines.append(f"{A.shape[0]} {A.shape[1]} {len(listed)}")
    for i, j in listed:
        value = "" if field == "pattern" else f"\t{A[i, j]:g}"
        lines.append(f" {i + 1}  {j + 1}{value} ")
    return "\n".join(lines)


def write_mtx(folder, A):
    (folder / "a.mtx").write_text(_coordinate_text(A, "real"))
    return folder / "a.mtx"


def write_mtx_pattern(folder, A):
    text = _coordinate_text(A, "pattern")
    (folder / "a.mtx.gz").write_bytes(gzip.compress(text.encode()))
    return folder / "a.mtx.gz"


def write_mtx_array(folder, A):
    scipy.io.mmwrite(folder / "a.mtx", A)
    return folder / "a.mtx"


def write_zarr(folder, A):
    array = zarr.create_array(folder / "a.zarr", shape=A.shape, chunks=(4, 5), dtype="f4")
    array[:] = A
    return folder / "a.zarr"


def write_zarr_2(folder, A):
    group = zarr.create_group(folder / "a.zarr", zarr_format=2)
    group.create_array("X", shape=A.shape, chunks=(3, A.shape[1]), dtype="f8")[:] = A
    group.create_array("y", shape=(3,), dtype="i4")
    return folder / "a.zarr"


WRITERS = [
    write_npy,
    write_npy_fortran,
    write_npz,
    write_npz_fortran,
    write_packed,
    *(_sparse_writer(kind) for kind in ("csr", "csc", "coo", "dia")),
    write_bsr,
    write_csv,
    write_csv_odd,
    write_tsv_gz,
    write_parquet,
    write_mtx,
    write_mtx_array,
    write_zarr,
    write_zarr_2,
]


@pytest.mark.parametrize("write", WRITERS)
@given(A=MATRICES)
def test_reads_back_what_was_written(write, A):
    with TemporaryDirectory() as folder:
        source = open_source(str(write(Path(folder), A)))
        values, _ = read(source)
    np.testing.assert_array_equal(values, A)
    assert source.feature_names[1] in ("f1", "c1")


@given(A=MATRICES)
def test_pattern_entries_are_ones(A):
    with TemporaryDirectory() as folder:
        values, _ = read(open_source(str(write_mtx_pattern(Path(folder), A))))
    np.testing.assert_array_equal(values, A == 1)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int8, np.int64, ">i4", ">f8"])
def test_number_types(tmp_path, dtype):
    A = np.eye(5, 7)
    np.save(tmp_path / "a.npy", A.astype(dtype))
    values, _ = read(open_source(str(tmp_path / "a.npy")))
    np.testing.assert_array_equal(values, A)


@given(A=FLOATS, threshold=st.sampled_from((0.0, 0.5, 1.25)), bound=st.sampled_from((-1.5, 0.0)))
def test_threshold(A, threshold, bound):
    dense = [write_npy, write_npz_fortran, write_mtx_array, write_zarr, write_float_csv]
    with TemporaryDirectory() as folder:
        for write in (*dense, _sparse_writer("csr"), _sparse_writer("csc")):
            limit = bound if write in dense else threshold
            path = write(Path(folder), A)
            values, _ = read(open_source(str(path), ReadOptions(threshold=limit)))
            np.testing.assert_array_equal(
                values, np.where(np.isnan(A), np.nan, np.greater(A, limit))
            )


def write_float_csv(folder, A):
    lines = [",".join(f"c{j}" for j in range(A.shape[1]))]
    lines += [",".join(repr(float(value)) for value in row) for row in A]
    (folder / "b.csv").write_text("\n".join(lines))
    return folder / "b.csv"


def test_threshold_on_words_and_numbers_in_one_column(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n0.2,true\n7,false\nNA,-1\n")
    values, _ = read(open_source(str(tmp_path / "a.csv"), ReadOptions(threshold=0.5)))
    np.testing.assert_array_equal(values, [[0, 1], [1, 0], [np.nan, 0]])


def test_missing_tokens_hold_for_text_and_numbers(tmp_path):
    options = ReadOptions(missing=("-9", "refused"))
    (tmp_path / "a.csv").write_text("a,b\n0,-9\nrefused,1\n")
    np.save(tmp_path / "a.npy", np.array([[0, -9], [-9, 1]]))
    pa.parquet.write_table(pa.table({"a": [0, -9], "b": [-9, 1]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.npy", "a.parquet"):
        values, _ = read(open_source(str(tmp_path / name), options))
        np.testing.assert_array_equal(values, [[0, np.nan], [np.nan, 1]])


BASKETS = st.lists(st.lists(st.sampled_from((0, 3, 7, 20, 100)), max_size=4), min_size=1).filter(
    any
)


@given(rows=BASKETS)
def test_baskets(rows):
    distinct = sorted(set().union(*rows))
    A = np.array([[item in row for item in distinct] for row in rows])
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "a.dat")
        Path(path).write_text("".join(" ".join(map(str, row)) + " \n" for row in rows))
        source = open_source(path)
        values, _ = read(source)
        more, _ = read(open_source(path, items=("100", "name", "20", "7", "3", "0")))
        assert find_basket_items([path, path]) == source.feature_names
    assert source.feature_names == tuple(map(str, distinct))
    np.testing.assert_array_equal(values, A)
    everything = [[item in row for item in (100, None, 20, 7, 3, 0)] for row in rows]
    np.testing.assert_array_equal(more, everything)


def test_symmetric_matrix_market(tmp_path):
    A = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0]])
    scipy.io.mmwrite(tmp_path / "dense.mtx", A, symmetry="symmetric")
    scipy.io.mmwrite(tmp_path / "sparse.mtx", scipy.sparse.coo_array(A), symmetry="symmetric")
    for name in ("dense.mtx", "sparse.mtx"):
        assert "symmetric" in (tmp_path / name).read_text().splitlines()[0]
        values, _ = read(open_source(str(tmp_path / name)))
        np.testing.assert_array_equal(values, A)


def test_packed_columns(tmp_path):
    A = np.random.default_rng(0).random((20, 11)) < 0.4
    seg, split, y = np.arange(20) % 3, np.arange(20) // 7, np.arange(20) * 0.5
    np.savez(
        tmp_path / "a.npz",
        X=np.packbits(A, axis=1),
        shape=A.shape,
        seg=seg,
        segnames=np.array([1990, 1995, 2000]),
        split=split.astype(np.int8),
        y=y,
        cols=np.array([f"q{j}" for j in range(11)]),
    )
    source = open_source(str(tmp_path / "a.npz"), ReadOptions(row_columns=("seg",)))
    assert (source.default_segment, source.default_split) == ("seg", "split")
    assert source.feature_names == tuple(f"q{j}" for j in range(11))
    values, columns = read(source)
    np.testing.assert_array_equal(values, A)
    assert columns["seg"] == [str(1990 + 5 * s) for s in seg]
    assert columns["split"] == [("train", "valid", "test")[s] for s in split]
    assert columns["y"] == y.tolist()


def test_dense_npz_columns(tmp_path):
    A = np.eye(6, 4)
    columns = {"who": np.array(list("abcdef")), "raw": np.array([b"x"] * 6), "ok": A[:, 0] == 1}
    np.savez(tmp_path / "a.npz", X=A, cols=np.array(["a,b,c,d,"]), split=np.full(6, 9), **columns)
    source = open_source(str(tmp_path / "a.npz"))
    assert source.feature_names == ("a", "b", "c", "d")
    assert source.default_split is None
    _, found = read(source)
    expected = {"split": [9] * 6, "who": list("abcdef"), "raw": ["x"] * 6, "ok": [1] + [0] * 5}
    assert found == expected


def test_csv_columns_stay_as_written(tmp_path):
    (tmp_path / "a.csv").write_text('id,a,"b, c",age\n007,1,0,NA\n"x, y",0,,12\n')
    source = open_source(str(tmp_path / "a.csv"), ReadOptions(row_columns=("age", "id", "age")))
    assert source.feature_names == ("a", "b, c")
    values, columns = read(source)
    np.testing.assert_array_equal(values, [[1, 0], [0, np.nan]])
    assert columns == {"age": ["NA", "12"], "id": ["007", "x, y"]}


def test_csv_without_header(tmp_path):
    (tmp_path / "a.csv").write_text("1,0,1\n0,0,1\n")
    source = open_source(str(tmp_path / "a.csv"))
    values, _ = read(source)
    assert source.feature_names == ("f0", "f1", "f2")
    np.testing.assert_array_equal(values, [[1, 0, 1], [0, 0, 1]])


def test_numbers_as_header(tmp_path):
    (tmp_path / "a.csv").write_text("0,1,2\n0,0,1\n")
    source = open_source(str(tmp_path / "a.csv"))
    assert source.feature_names == ("0", "1", "2")
    assert read(source)[0].tolist() == [[0, 0, 1]]


def test_parquet_columns(tmp_path):
    table = pa.table(
        {
            "a": [0, 1, 1],
            "who": ["x", None, "y"],
            "n": [3, 4, 5],
            "real": [0.5, None, 2.0],
            "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
            "ok": [True, False, True],
        }
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    wanted = ("who", "n", "real", "kind", "ok")
    _, columns = read(open_source(str(tmp_path / "a.parquet"), ReadOptions(row_columns=wanted)))
    assert columns["who"] == ["x", "", "y"]
    assert columns["n"] == [3, 4, 5]
    assert np.isnan(columns["real"][1])
    assert columns["kind"] == ["u", "v", "u"]
    assert columns["ok"] == [1, 0, 1]


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "a.npz", "a.mtx", "a.parquet", "f.npz"])
def test_no_rows_give_no_batches(tmp_path, name):
    empty = np.empty((0, 3))
    (tmp_path / "a.csv").write_text("a,b,c\n\n")
    np.save(tmp_path / "a.npy", empty)
    np.savez(tmp_path / "f.npz", X=empty)
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(empty))
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate real general\n0 3 0\n")
    pa.parquet.write_table(pa.table({"a": pa.array([], pa.int8())}), tmp_path / "a.parquet")
    assert list(open_source(str(tmp_path / name)).iter_batches()) == []


def test_expand_sources_keeps_order(tmp_path):
    for name in ("b1.csv", "b0.csv", "a.csv", "odd[1].csv"):
        (tmp_path / name).touch()
    found = expand_sources([str(tmp_path / name) for name in ("b*.csv", "a.csv", "odd[1].csv")])
    assert [Path(path).name for path in found] == ["b0.csv", "b1.csv", "a.csv", "odd[1].csv"]
