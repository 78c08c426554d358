"""What cannot be read is refused in one line with place and remedy."""

import csv
import datetime
import gzip
import os
import shlex
import shutil
import warnings
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse
import zarr

from flows.cli.errors import spell_option
from storage.errors import DataError
from storage.sources import (
    ReadOptions,
    base,
    expand_sources,
    find_basket_items,
    open_long_tables,
    open_source,
)
from storage.sources import csv as tables

READINGS = 'Define their meaning: map="{0}:{1}=1,{2}=0"{3}, or map="{0}:{1}=0,{2}=1"{3}'
VALUES = "is not 0, 1, true, false or missing"


def refusal(path, options=None, **kwargs):
    """Return the message of reading a whole source, without the folder."""
    with pytest.raises(DataError) as caught:
        list(open_source(str(path), options, **kwargs).iter_batches())
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path.parent) + os.sep, "")


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def hint(around, *values, feature, column=None):
    """Return the advice: the values, both readings of the first two, and the rest as missing."""
    others = "".join(f" {missing(value)}" for value in values[2:])
    role = f'; if they are not a feature, keep="{column}" or drop="{column}"' if column else ""
    order = f', or, if the values are ordered, ordinal="{feature}"' if values[2:] else ""
    order += f', or, if they are categories, nominal="{feature}"' if values[2:] else ""
    return f"Nearby values: {around}. {READINGS.format(feature, *values[:2], others)}{order}{role}."


def missing(value):
    is_number = str(value).replace(".", "").isdecimal()
    return f"missing={value}" if is_number else f'missing="{value}"'


def place(name, row, column):
    return f"{name}: row {row} (data rows counted from 1), column {column!r}"


def test_an_archive_with_two_arrays_of_one_name(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the name
        for values in (np.zeros((2, 3)), np.ones((2, 3))):
            with archive.open("X.npy", "w") as file:
                np.lib.format.write_array(file, values)
    assert refusal(path) == "a.npz: the archive has two arrays named 'X'. Write it again with one."


@pytest.mark.parametrize("bad", ["3", "x", "1 0", "-1", "inf", "0.5"])
def test_first_bad_value_of_a_csv(tmp_path, bad):
    rows = ["1,0,1"] * 40
    rows[16], rows[16 + 5] = f"1,{bad},9", "9,9,9"
    path = written(tmp_path, "data.csv", "id,age,sex\n" + "\n".join([*rows, ""]))
    around = f"Nearby values: '0' (38), {bad!r} (1), '9' (1)"
    remedy = f"Correct it, or read it as missing: {missing(bad)} {missing(9)}."
    expected = f"{place('data.csv', 17, 'age')}: the value {bad!r} {VALUES}. {around}. {remedy}"
    assert refusal(path) == expected


def test_codes_of_categories_get_no_threshold(tmp_path):
    """Roll calls: 1 is yea, 6 nay, 9 absent. No threshold makes the right bits of them."""
    calls = ["1,6"] * 30 + ["6,1"] * 20 + ["9,1"] * 8
    path = written(tmp_path, "votes.csv", "r1,r2\n" + "\n".join([*calls, ""]))
    assert refusal(path) == (
        f"{place('votes.csv', 1, 'r2')}: the value '6' {VALUES}. "
        + hint("'6' (30), '1' (28)", "1", "6", feature="r2", column="r2")
    )
    codes = np.array([line.split(",") for line in calls], int)
    np.save(tmp_path / "votes.npy", codes)
    assert refusal(tmp_path / "votes.npy").endswith(hint("6 (30), 1 (28)", "1", "6", feature="f1"))
    scipy.sparse.save_npz(tmp_path / "votes.npz", scipy.sparse.csr_array(codes * codes))
    advice = hint("36 (30), 1 (28)", "1", "36", feature="f1")
    assert refusal(tmp_path / "votes.npz").endswith(advice)


def test_measured_numbers_get_a_threshold(tmp_path):
    rows = "\n".join(f"{i / 7},{i}" for i in range(20))
    message = refusal(written(tmp_path, "data.csv", "a,b\n" + rows))
    assert message.endswith(
        'Use continuous="a" to keep the numbers, threshold="T" to binarise, or missing="TOKEN"; if '
        'they are not a feature, keep="a" or drop="a". If each line is one value of a long table, '
        'use long="row=a,feature=b".'
    )
    rows = "\n".join(f"{i / 7},{i % 2}" for i in range(40))  # more values than names need
    assert 'Use continuous="a" to' in refusal(written(tmp_path, "data.csv", "a,b\n" + rows))
    rows = "\n".join(f"{i},{i % 2}" for i in range(40))
    assert "if they name the rows" in refusal(written(tmp_path, "data.csv", "a,b\n" + rows))
    lines = "\n".join(f"r{i},{'ab'[i % 2]},{i / 7}" for i in range(40))
    path = written(tmp_path, "data.csv", "row,item,value\n" + lines)
    with pytest.raises(DataError, match='Use continuous="b" to keep the numbers, threshold'):
        open_long_tables([str(path)], "row=row,feature=item,value=value", None, ReadOptions())
    values = np.random.default_rng(0).normal(size=(30, 2))
    np.save(tmp_path / "data.npy", values)
    assert 'Use continuous="f0" to keep' in refusal(tmp_path / "data.npy")
    scipy.sparse.save_npz(tmp_path / "data.npz", scipy.sparse.csr_array(values))
    assert refusal(tmp_path / "data.npz").endswith(
        'Use threshold="T" to binarise, or missing="TOKEN".'
    )


def test_grades_get_a_threshold_under_its_condition(tmp_path):
    rows = "\n".join(f"{i % 5 + 1},{i % 3}" for i in range(20))
    message = refusal(written(tmp_path, "data.csv", "a,b\n" + rows))
    assert message.endswith(
        'Define the meaning of every value: map="VALUE=1,VALUE=0", and missing="VALUE" for the '
        'rest, or, if the values are ordered, ordinal="*" or threshold="T", or, if they are '
        'categories, nominal="*"; if they are not a feature, keep="a" or drop="a".'
    )


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("voter,call", "row=voter,feature=call"),
        ("voter,call,vote", "row=voter,feature=call,value=vote"),
        ("voter,call,vote,year", "row=COLUMN,feature=COLUMN,value=COLUMN"),
        ("a,b,c,d,e,f,g", None),
    ],
)
def test_a_table_of_few_columns_may_be_long(tmp_path, header, named):
    n_columns = header.count(",")
    rows = "\n".join(f"v{i // 30}" + f",c{i % 30}" * n_columns for i in range(90))
    message = refusal(written(tmp_path, "data.csv", f"{header}\n{rows}"))
    advice = f'If each line is one value of a long table, use long="{named}".'
    assert message.endswith(advice) if named else "long=" not in message


def test_a_column_of_names_is_kept_beside(tmp_path):
    rows = "\n".join(f"1,name {i // 2}" for i in range(40))
    message = refusal(written(tmp_path, "data.csv", "a,who\n" + rows))
    assert message.endswith(
        "'name 4' (2), 15 others. A feature has at most 16 categories: merge rare ones in the "
        'file, or use keep="who" to keep them as a per-row column, or drop="who". If '
        'each line is one value of a long table, use long="row=a,feature=who".'
    )


def test_missing_values_are_not_among_those_named(tmp_path):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"a": ["1", "0"], "b": ["y", None]}), path)
    advice = "Nearby values: 'y' (1). Define the meaning of every value: map=\"b:VALUE=1"
    assert advice in refusal(path)


def test_rows_are_counted_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "TABLE_BLOCK_BYTES", 20)
    text = "a,b\n" + "1,0\n" * 100 + "\n1,7\n"
    path = written(tmp_path, "data.csv", text)
    assert refusal(path).startswith(place("data.csv", 101, "b"))
    path = written(tmp_path, "data.csv", text.replace("7", "1") + "1,0,1\n")
    assert refusal(path) == (
        "data.csv: row 102 (data rows counted from 1): the row has 3 columns, "
        "but the table has 2. Correct the row."
    )


def test_word_where_a_threshold_needs_numbers(tmp_path):
    path = written(tmp_path, "data.csv", "a,b\n0.5,2\n0.1,low\n")
    assert refusal(path, ReadOptions(threshold=0.3)) == (
        f"{place('data.csv', 2, 'b')}: the value 'low' is not a number, true, false or "
        'missing. Use missing="TOKEN".'
    )


@pytest.mark.parametrize("row", ["1", "1,0,1"])
def test_ragged_row(tmp_path, row):
    path = written(tmp_path, "data.csv", f"a,b\n1,0\n\n0,1\n{row}\n1,oops\n")
    found = row.count(",") + 1
    assert refusal(path) == (
        f"data.csv: row 3 (data rows counted from 1): the row has {found} columns, "
        "but the table has 2. Correct the row."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line is empty."),
        ("\n1,0\n", "the first line is empty."),
        ("a,b,a,b,c\n", "several columns have the same name: 'a', 'b'. Rename them."),
        (
            "a,,c\n",
            "column 2 has no name. Name it, or write the file without a row index.",
        ),
    ],
)
def test_header(tmp_path, text, message):
    assert refusal(written(tmp_path, "data.csv", text)) == f"data.csv: {message}"


def test_text_that_is_not_utf8(tmp_path):
    path = written(tmp_path, "data.csv", b"a,b,who\n1,0,x\n1,0,\xff\n")
    message = refusal(path, ReadOptions(row_columns=("who",)))
    assert message == (
        "data.csv: line 3: the bytes ff are not UTF-8 text. If the file was written in another "
        'encoding, name it, such as encoding="latin-1", or save the file as UTF-8.'
    )
    message = refusal(written(tmp_path, "b.csv", b"a,\xff\n"))
    assert message.startswith("b.csv: line 1: the bytes ff are not UTF-8 text")


def test_unclosed_quote_does_not_swallow_rows(tmp_path):
    options = ReadOptions(row_columns=("who",))
    path = written(tmp_path, "data.csv", 'a,b,who\n1,0,x\n1,0,"y\n1,1,z\n0,0,u\n')
    assert refusal(path, options) == (
        f"{place('data.csv', 2, 'who')}: there is a line break inside "
        "quotes. Close the quote, or remove the break."
    )
    path = written(tmp_path, "data.csv", 'who,a,b\nx,1,0\nx,1,"0\ny,1,1\n' + "z,0,0\n" * 50)
    assert refusal(path, options).startswith(place("data.csv", 2, "b"))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (
            "a.tsv",
            "a,b",
            "there is one column, which seems to be several separated by commas instead of tabs",
        ),
        ("a.tsv", "a;b", "there is one column, which seems to be several separated by semi"),
        ("a.csv", "0 1", "there is one column, which seems to be several separated by sp"),
    ],
)
def test_another_delimiter(tmp_path, name, line, message):
    assert refusal(written(tmp_path, name, line + "\n")).startswith(f"{name}: {message}")


def test_absent_row_column(tmp_path):
    path = written(tmp_path, "data.csv", "clas,b,id\n1,0,1\n")
    assert refusal(path, ReadOptions(row_columns=("id", "class"))) == (
        "data.csv: there is no column 'class'. Did you mean 'clas'? "
        "Check keep, segment_by and split_by."
    )
    np.save(tmp_path / "a.npy", np.eye(2))
    assert refusal(tmp_path / "a.npy", ReadOptions(row_columns=("class",))) == (
        "a.npy: there is no column 'class'. Check keep, segment_by and split_by."
    )


def test_no_feature_left(tmp_path):
    path = written(tmp_path, "data.csv", "a\n1\n")
    expected = "data.csv: there are no features."
    assert refusal(path, ReadOptions(row_columns=("a",))) == expected
    np.save(tmp_path / "a.npy", np.empty((3, 0)))
    assert refusal(tmp_path / "a.npy") == "a.npy: there are no features."


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"a": [0, 1, None], "b": [1, 5, 6]}), path)
    assert refusal(path) == f"{place('a.parquet', 2, 'b')}: the value 5 {VALUES}. " + hint(
        "1 (1), 5 (1), 6 (1)", "1", "5", "6", feature="b", column="b"
    )
    pa.parquet.write_table(pa.table({"a": [0, None, -(2**63)], "b": [1, 0, 1]}), path)
    assert refusal(path, ReadOptions(row_columns=("a",))) == (
        f"{place('a.parquet', 3, 'a')}: the integer -9223372036854775808 is outside "
        "±9223372036854775807. Store the column as text."
    )
    pa.parquet.write_table(pa.table({"a": [0], "when": [datetime.date(2020, 1, 1)]}), path)
    assert refusal(path) == (
        "a.parquet: column 'when' holds date32[day], not booleans, numbers or text. "
        'Use keep="when" to keep it as a per-row column.'
    )


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ((), "not booleans, numbers or text. Leave it out with drop='{x}'."),
        (("{x}",), "which cannot be kept. Leave it out with drop='{x}'."),
    ],
)
def test_nested_columns_of_parquet_cannot_be_kept(tmp_path, kept, message):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"{x}": [{"y": 1}], "a": [1]}), path)
    found = refusal(path, ReadOptions(row_columns=kept))
    assert found.replace('"', "'").endswith(message)


@pytest.mark.parametrize("value", ["{x}", "'x'", '"x"', "it's", "\\n"])
def test_proposed_texts_are_those_of_the_file(tmp_path, value):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(["abcdefg", *["1010101"] * 20, [value, *"010101"]])
    with pytest.raises(DataError) as caught:
        list(open_source(str(path)).iter_batches())
    proposal = caught.value.render(spell_option).partition("as missing: ")[2]
    option, text = shlex.split(proposal[:-1])
    assert (option, text) == ("--missing", value)
    assert len([*open_source(str(path), ReadOptions(missing=(text,))).iter_batches()]) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_first_bad_number(tmp_path, dtype):
    A = np.zeros((100_000, 50), dtype)
    A[98_000, 7] = A[99_000, 3] = 4
    np.save(tmp_path / "a.npy", A)
    np.savez(tmp_path / "a.npz", A)
    shown = "4.0" if dtype is np.float32 else "4"
    for name in ("a.npy", "a.npz"):
        expected = f"{place(name, 98_001, 'f7')}: the value {shown} {VALUES}. Nearby values: "
        expected += shown.replace("4", "0") + " (6,"
        assert refusal(tmp_path / name).startswith(expected)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_bad_number_in_a_sparse_matrix(tmp_path, kind):
    A = np.zeros((6, 4))
    A[4, 2] = 2
    A[3, 1] = A[4, 3] = 1
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(A).asformat(kind))
    expected = f"{place('a.npz', 5, 'f2')}: the value 2.0 {VALUES}. Nearby values: "
    assert refusal(tmp_path / "a.npz").startswith(expected)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_entry_given_twice(tmp_path, kind):
    matrix = scipy.sparse.coo_array((np.ones(4), ([0, 2, 1, 2], [1, 3, 0, 3])), shape=(3, 5))
    if kind != "coo":
        wide = [1, 0, 3, 3] if kind == "csr" else [1, 0, 2, 2]
        ends = [0, 1, 2, 4] if kind == "csr" else [0, 1, 2, 2, 4, 4]
        make = scipy.sparse.csr_array if kind == "csr" else scipy.sparse.csc_array
        matrix = make((np.ones(4), wide, ends), shape=(3, 5))
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    assert refusal(tmp_path / "a.npz") == (
        f"{place('a.npz', 3, 'f3')}: there are two entries. Sum or remove duplicate entries first."
    )


def test_entry_given_twice_far_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("storage.sources.number_texts.NUMBER_BLOCK_BYTES", 8)
    text = "%%MatrixMarket matrix coordinate real general\n3 20 4\n2 18 0\n3 3 1\n1 1 1\n2 18 1\n"
    path = written(tmp_path, "a.mtx", text)
    assert refusal(path).startswith(place("a.mtx", 2, "f17") + ": there are two entries.")


def test_threshold_that_turns_left_out_zeros_into_ones(tmp_path):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(np.eye(3)))
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1 2 0\n")
    for name in ("a.npz", "a.mtx"):
        message = refusal(tmp_path / name, ReadOptions(threshold=-0.5))
        assert message.startswith(f"{name}: a sparse file leaves out its zeros")
    with pytest.raises(DataError, match="threshold is nan"):
        ReadOptions(threshold=float("nan"))


BANNER = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line is '', but must have the form '%%MatrixMarket matrix"),
        (
            BANNER.replace("real", "complex"),
            "'complex' matrices cannot be read",
        ),
        (BANNER + "% c\n3 4\n", "line 3: '3 4' is not a size line."),
        (BANNER.replace("general", "symmetric") + "3 4 0\n", "a symmetric matrix must be square"),
        (BANNER + "3 4 2\n1 1 1\n\n1 2\n", "line 5: the line must have 3 numbers, but has 2."),
        (BANNER + "3 4 2\n1 1 1\n1 x 1\n", "line 4: 'x' is not a number."),
        (BANNER + "3 4 2\n1 1 1\n1 1-2 1\n", "line 4: '1-2' is not a number."),
        (BANNER + "3 4 2\n1 1 1\n1 2 1_0\n", "line 4: '1_0' is not a number."),
        (BANNER + "3 4 1\n1.5 1 1\n", "the row or column number 1.5 is not a whole number."),
        (
            BANNER + "3 4 1\n4 1 1\n",
            "there is an entry in row 4",
        ),
        (
            BANNER + "3 4 1\n1 0 1\n",
            "there is an entry in row 1",
        ),
        (BANNER + "3 4 2\n1 1 1\n", "the size line states 2 entries, but the file has only 1."),
        (
            BANNER + "3 4 1\n1 1 1\n1 2 1\n",
            "the size line states 1 entries, but the file has more.",
        ),
        (BANNER + "3 4 1\n1 2 3\n", place("", 1, "f1")[2:] + f": the value 3.0 {VALUES}."),
        (
            "%%MatrixMarket matrix array real general\n1 2\n1\n",
            "the size line states 2 entries, but",
        ),
        (
            "%%MatrixMarket matrix array real general\n1 2\n1\n0\n1\n",
            "the size line states 2 entries, but",
        ),
    ],
)
def test_matrix_market(tmp_path, text, message):
    found = refusal(written(tmp_path, "a.mtx", text))
    assert found.startswith("a.mtx: " + message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty."),
        ("1 2\n\n3 a4\n", "line 3: 'a4' is not a whole number."),
        ("1 2\n\n3 -4\n", "line 3: item number -4 is negative. Correct the line."),
        ("1\n2 9999999999999999999\n", "line 2: '9999999999999999999' is not a whole number"),
        ("\n\n", "there are no features."),
    ],
)
def test_baskets(tmp_path, text, message):
    found = refusal(written(tmp_path, "a.dat", text))
    assert found.startswith("a.dat: " + message)


def test_item_unknown_to_the_dataset(tmp_path):
    path = written(tmp_path, "a.dat", "1 2\n\n2 7 1\n")
    assert find_basket_items([str(path)]) == ("1", "2", "7")
    assert refusal(path, items=("1", "2", "9")) == (
        "a.dat: line 3: item 7 is not one of the 3 features. Ingest all files together."
    )


def test_zarr(tmp_path):
    path = tmp_path / "a.zarr"
    zarr.create_array(path, shape=(4,), dtype="i1")
    assert refusal(path) == "a.zarr: the array has 1 dimensions, but a matrix has 2."
    shutil.rmtree(path)
    array = zarr.create_array(path, shape=(9, 4), chunks=(2, 2), dtype="i1")
    array[7, 3] = 5
    assert refusal(path) == f"{place('a.zarr', 8, 'f3')}: the value 5 {VALUES}. " + hint(
        "0 (8), 5 (1)", "0", "5", feature="f3"
    )
    shutil.rmtree(path)
    group = zarr.create_group(path)
    assert refusal(path) == (
        "a.zarr: the group must have one matrix, 'X', but has none. Name the array's own directory."
    )
    group.attrs["format"] = "latentbits-dataset"
    assert refusal(path) == ("a.zarr: this is already a dataset. Use it with dataset.")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"A": np.eye(2), "B": np.eye(2)},
            "the archive must have one matrix, or one named 'X', but has 'A', 'B'",
        ),
        ({"y": np.ones(2)}, "the archive must have one matrix, or one named 'X', but has none."),
        (
            {"X": np.eye(2), "cols": np.array(["a", "a"])},
            "several columns have the same name: 'a'",
        ),
        (
            {"X": np.eye(2), "cols": np.array(["a"] * 3)},
            "the array 'cols' has 3 names for 2",
        ),
        (
            {"X": np.eye(2), "cols": np.array(["a", "b"], object)},
            "the array 'cols' holds object, not numbers or text. Store it as text",
        ),
        (
            {"X": np.eye(2), "y": np.array(["a", 1], object)},
            "the array 'y' holds",
        ),
        ({"X": np.array([["a", "b"]])}, "the values are <U1, not booleans, integers or floats."),
        (
            {"X": np.array([[1j, 0]])},
            "the values are complex128, not booleans, integers or floats.",
        ),
        (
            {"X": np.zeros((3, 1), np.uint8), "shape": np.array([3, 9])},
            "the packed array 'X' is uint8 (3, 1), but must be uint8 (3, 2).",
        ),
    ],
)
def test_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    assert refusal(tmp_path / "a.npz").startswith("a.npz: " + message)


@pytest.mark.parametrize(("name", "highest"), [("split", 2), ("seg", 1)])
def test_label_out_of_range(tmp_path, name, highest):
    packed = {"X": np.zeros((4, 1), np.uint8), "shape": np.array([4, 3])}
    packed |= {name: np.array([0, 1, 7, 8]), "segnames": np.array(["u", "v"])}
    np.savez(tmp_path / "a.npz", **packed)
    assert refusal(tmp_path / "a.npz") == (
        f"a.npz: row 3 (data rows counted from 1): {name} is 7, but must be from 0 to {highest}. "
        f"Correct the array {name!r}."
    )


def test_dimensions(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 2, 2)))
    assert refusal(tmp_path / "a.npy") == "a.npy: the array has 3 dimensions, but a matrix has 2."


def _whole_files(folder):
    A = (np.random.default_rng(0).random((500, 40)) < 0.5).astype(float)
    np.save(folder / "a.npy", A)
    np.savez(folder / "a.npz", A)
    np.savez_compressed(folder / "b.npz", X=np.packbits(A == 1, axis=1), shape=A.shape)
    scipy.sparse.save_npz(folder / "c.npz", scipy.sparse.csr_array(A))
    pa.parquet.write_table(pa.table({f"c{j}": A[:, j] for j in range(40)}), folder / "a.parquet")
    text = "\n".join(",".join(f"{value:g}" for value in row) for row in A)
    (folder / "a.csv.gz").write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "b.npz", "c.npz", "a.parquet", "a.csv.gz"])
def test_damaged_files(tmp_path, name):
    _whole_files(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    for damaged in (b"", b"junk" * 50, whole[: len(whole) // 2], whole[:-60]):
        path.write_bytes(damaged)
        message = refusal(path)
        assert message.startswith(f"{name}: ")
        assert "cannot be read" in message or " is not " in message or "is empty" in message
    if name not in ("a.npy", "a.parquet"):
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 16
        path.write_bytes(flipped)
        refusal(path)


def test_paths(tmp_path):
    absent = tmp_path / "no.csv"
    assert refusal(absent) == "no.csv: there is no such file or Zarr array."
    assert (
        "the suffix '.foo' is unknown. Convert the file to a Zarr array or one of .npy, .npz, .csv,"
        in refusal(written(tmp_path, "data.foo", "1"))
    )
    for suffix, way in {
        ".h5": "latentbits.from_numpy(h5py.File(",
        ".HDF5": "latentbits.from_numpy(h5py.File(",
        ".feather": "latentbits.from_dataframe(pandas.read_feather(",
        ".sas7bdat": "latentbits.from_dataframe(pandas.read_sas(",
        ".rds": "write.csv(DATA, 'data.csv', row.names = FALSE)",
        ".ods": "save it as .xlsx or .csv",
        ".vcf.gz": "Convert it to .bed with PLINK",
        ".txt": "rename it to .csv or .tsv",
    }.items():
        message = refusal(written(tmp_path, f"data{suffix}", "1"))
        assert message.startswith(f"data{suffix}: this format has no reader here. ")
        assert way in message
    folder = tmp_path / "folder"
    folder.mkdir()
    assert refusal(folder) == (
        "folder: this is a folder, not a file or a Zarr array. No file in it ends in .npy, "
        ".npz, .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .mtx, .mtx.gz, .dat, .dat.gz, .xlsx, .sav, "
        ".zsav, .dta, .bed, .h5ad."
    )
    with pytest.raises(DataError, match=r"dat\.txt: there is no such path\. Did you mean .*data"):
        expand_sources([str(tmp_path / "dat.txt")])
    with pytest.raises(DataError, match=r"\*\.zip: there is no such path"):
        expand_sources([str(tmp_path / "*.zip")])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission(tmp_path):
    path = written(tmp_path, "a.csv", "a,b\n1,0\n")
    path.chmod(0)
    assert "Permission denied" in refusal(path)


def test_permission_error_in_words(tmp_path, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tables, "open_text", deny)
    assert refusal(written(tmp_path, "a.csv", "a,b\n")) == (
        "a.csv: the file cannot be read: Permission denied. "
        "Check that it is complete and that its suffix is right."
    )


@pytest.mark.parametrize("names", [["x", "x\0"], ["x\0", "x"]])
def test_texts_that_numpy_would_make_equal(tmp_path, names):
    table = pa.table({"a": [0, 1], "b": [1, 0], "y": names})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    row = names.index("x\0") + 1
    expected = f"{place('a.parquet', row, 'y')}: 'x\\x00' contains a NUL character. Remove it."
    assert refusal(tmp_path / "a.parquet", ReadOptions(row_columns=("y",))) == expected


SPARSE = scipy.sparse.csr_array(np.eye(4))


@pytest.mark.parametrize(
    ("matrix", "name", "values", "message"),
    [
        (SPARSE, "indptr", [1, 1, 2, 3, 4], "the pointers start at 1 instead of 0"),
        (SPARSE, "indptr", [0, 1, 2, 3, 3], "the pointers end at 3, but there are 4 entries"),
        (SPARSE, "data", [1, 1, 1], "the numbers of entries differ: data 3, indices 4"),
        (SPARSE.tocsc(), "indptr", [0, 1, 2, 3, 3], "the pointers end at 3, but there are"),
        (SPARSE.tocsc(), "indptr", [0, 1, 2, 4], "expected 5 whole numbers as pointers"),
        (SPARSE.tocsc(), "indptr", [0, 2, 1, 3, 4], "pointers decrease"),
        (SPARSE.tocoo(), "row", [0, 1, 2, 3, 3], "the numbers of entries differ: data 4, row 5"),
        (SPARSE.todia(), "offsets", [], "the numbers of entries differ: data 1, offsets 0"),
    ],
)
def test_a_sparse_archive_that_contradicts_itself(tmp_path, matrix, name, values, message):
    path = tmp_path / "a.npz"
    scipy.sparse.save_npz(path, matrix)
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, name: np.array(values, arrays[name].dtype)})
    assert f": {message}" in refusal(path)


@pytest.mark.parametrize("shape", [(0, 10**9), (3, 10**9), (10**30, 3), (10**13, 3)])
def test_absurd_sizes(tmp_path, shape):
    """The limits of memory are not tried out: a process that exceeds them may be killed."""
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    assert refusal(tmp_path / "a.npy").startswith("a.npy: the file cannot be read: ")
    n_rows, n_columns = shape
    sizes = f"%%MatrixMarket matrix coordinate pattern general\n{n_rows} {n_columns} 1\n1 1\n"
    assert refusal(written(tmp_path, "a.mtx", sizes)).startswith("a.mtx: ")


@pytest.mark.parametrize("number", ["inf", "nan", "1.5"])
def test_row_numbers_of_a_matrix_market_file(tmp_path, number):
    text = f"%%MatrixMarket matrix coordinate real general\n3 3 2\n{number} 1 1\n2 2 1\n"
    message = f"a.mtx: the row or column number {number} is not a whole number. Check the file."
    assert refusal(written(tmp_path, "a.mtx", text)) == message


def test_an_exception_of_any_type_names_the_file_and_the_row(tmp_path, monkeypatch):
    """Libraries raise exceptions of types that nobody documents."""
    np.save(tmp_path / "a.npy", np.zeros((200, 3)))
    whole = np.load(tmp_path / "a.npy")

    class Breaking:
        def __getitem__(self, rows):
            if rows.start:
                raise TypeError("a type\nthat is wrong.")
            return whole[rows]

    monkeypatch.setattr(base, "BATCH_CELLS", 3 * 64)
    monkeypatch.setattr(np, "load", lambda *args, **kwargs: Breaking())
    assert refusal(tmp_path / "a.npy") == (
        "a.npy: the file cannot be read after row 64: a type that is wrong. "
        "Check that it is complete and that its suffix is right."
    )


def test_damage_that_a_checksum_of_parquet_finds(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"a": [0.0, 1.0] * 50})
    options = {"use_dictionary": False, "compression": None, "write_page_checksum": True}
    pa.parquet.write_table(table, path, **options)
    whole = path.read_bytes()
    part = np.array([1.0, 0.0, 1.0]).tobytes()
    path.write_bytes(whole.replace(part, bytes(len(part)), 1))
    assert refusal(path).startswith("a.parquet: the file cannot be read: ")
