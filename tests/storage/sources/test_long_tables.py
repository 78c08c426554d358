"""Long tables against the same values in wide tables."""

import gc
import gzip
import signal
import tempfile
import threading
from dataclasses import replace
from math import inf

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import DataError
from storage.sources import ReadOptions, name_index, open_long_tables, parse_map

LONG = "row=call,feature=voter,value=vote"
LINES = [
    ("c1", "USA", "yes"),
    ("c1", "GBR", "no"),
    ("c2", "USA", "?"),
    ("c2", "FRA", "yes"),
    ("c1", "FRA", "yes"),
]
VOTES = ReadOptions(maps=(parse_map("yes=1,no=0"),))


def table(path, lines, header=("call", "voter", "vote")):
    path.write_text("\n".join(",".join(line) for line in (header, *lines)) + "\n")
    return str(path)


def read(*paths, long=LONG, duplicates=None, options=VOTES, features=None):
    """Values, 2 where missing, names of features, and per-row columns."""
    target = {}
    if features is not None:
        target = {"features": features, "find_rows": lambda names: np.full(len(names), -1)}
    source = open_long_tables(paths, long, duplicates, options, **target)
    batches = list(source.iter_batches())
    X = np.concatenate([b.X + (0 if b.observed is None else 2 * (1 - b.observed)) for b in batches])
    columns = {n: [*np.concatenate([b.columns[n] for b in batches])] for n in source.column_names}
    assert source.n_rows == len(X)
    return X.tolist(), source.feature_names, columns


def refused(*paths, **options):
    with pytest.raises(DataError) as caught:
        read(*paths, **options)
    return str(caught.value)


def test_lines_become_rows_in_the_order_of_their_first(tmp_path):
    path = table(tmp_path / "a.csv", LINES)
    X, names, columns = read(path)
    assert names == ("FRA", "GBR", "USA")
    assert X == [[1, 0, 1], [1, 2, 2]]
    assert columns == {"call": ["c1", "c2"]}


def test_several_columns_may_name_rows(tmp_path):
    lines = [("a/b", "c", "1", "x"), ("a", "b/c", "1", "x"), ("a", "c", "1", "y")]
    lines += [("a", "c", "2", "x"), ("a/b", "c", "1", "y")]
    path = table(tmp_path / "a.csv", lines, ("member", "date", "hour", "item"))
    X, names, columns = read(path, long="row=member,row=date,row=hour,feature=item")
    assert (X, names) == ([[1, 1], [1, 0], [0, 1], [1, 0]], ("x", "y"))
    assert columns == {
        "member": ["a/b", "a", "a", "a"],
        "date": ["c", "b/c", "c", "c"],
        "hour": ["1", "1", "1", "2"],
    }


def test_all_kinds_of_files_and_several_of_them(tmp_path):
    expected = read(table(tmp_path / "a.csv", LINES))
    text = (tmp_path / "a.csv").read_text()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.tsv").write_text(text.replace(",", "\t"))
    (tmp_path / "s.csv").write_text(text.replace(",", ";"))
    columns = dict(zip(("call", "voter", "vote"), zip(*LINES, strict=True), strict=True))
    arrays = {name: pa.array(values).dictionary_encode() for name, values in columns.items()}
    pa.parquet.write_table(pa.table(arrays), tmp_path / "a.parquet", row_group_size=2)
    for name in ("a.csv.gz", "a.tsv", "s.csv", "a.parquet"):
        assert read(str(tmp_path / name)) == expected
    parts = [table(tmp_path / f"{k}.csv", LINES[k : k + 2]) for k in (0, 2, 4)]
    assert read(*parts) == expected


@pytest.mark.parametrize("batch_lines", [1, 3, 100])
def test_dictionaries_of_parquet_differ_and_name_what_no_line_has(
    tmp_path, monkeypatch, batch_lines
):
    monkeypatch.setattr("storage.sources.long_tables._BATCH_LINES", batch_lines)
    monkeypatch.setattr("storage.sources.long_tables._MIN_BATCH_LINES", batch_lines)
    expected = read(table(tmp_path / "a.csv", LINES))
    columns = dict(zip(("call", "voter", "vote"), zip(*LINES, strict=True), strict=True))
    kinds = pa.schema([(name, pa.dictionary(pa.int32(), pa.string())) for name in columns])
    with pa.parquet.ParquetWriter(tmp_path / "a.parquet", kinds) as writer:
        for start in range(0, len(LINES), 2):
            parts = {name: values[start : start + 2] for name, values in columns.items()}
            arrays = [
                pa.DictionaryArray.from_arrays(
                    range(len(values), 0, -1), ["nobody", *values[::-1], "never"]
                )
                for values in parts.values()
            ]
            writer.write_table(pa.table(arrays, kinds))
    assert read(str(tmp_path / "a.parquet")) == expected


def test_whole_numbers_name_rows_and_say_values(tmp_path):
    numbers = {"call": [7, 7, 10], "voter": [1, 2, 1], "vote": [1.0, 6.0, None]}
    pa.parquet.write_table(pa.table(numbers), tmp_path / "a.parquet")
    options = ReadOptions(maps=(parse_map("1=1,6=0"),))
    assert read(str(tmp_path / "a.parquet"), options=options) == (
        [[1, 0], [2, 2]],
        ("1", "2"),
        {"call": [7, 10]},
    )


@pytest.mark.parametrize("column", ["call", "voter", "party"])
def test_texts_that_numpy_would_make_equal(tmp_path, column):
    lines = {"call": ["x", "y"], "voter": ["x", "y"], "party": ["x", "y"], "vote": ["yes", "no"]}
    lines[column][1] = "x\0"
    pa.parquet.write_table(pa.table(lines), tmp_path / "a.parquet")
    options = replace(VOTES, row_columns=("party",))
    message = refused(str(tmp_path / "a.parquet"), options=options)
    assert message.endswith(f"column {column!r}: 'x\\x00' contains a NUL character. Remove it.")
    assert "row 2 " in message


def test_a_map_may_turn_true_and_false_round(tmp_path):
    columns = {"call": ["a", "a", "b"], "voter": ["x", "y", "x"], "vote": [True, False, None]}
    pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    for text, expected in (
        ("true=1,false=0", [[1, 0], [2, 2]]),
        ("true=0,false=1", [[0, 1], [2, 2]]),
    ):
        options = ReadOptions(maps=(parse_map(text),))
        assert read(str(tmp_path / "a.parquet"), options=options)[0] == expected


def test_events_are_ones_however_often_and_all_else_is_zero(tmp_path):
    path = table(tmp_path / "a.csv", [("u1", "x"), ("u2", "y"), ("u1", "x")], ("user", "page"))
    found = read(path, long="row=user,feature=page", options=ReadOptions())
    assert found == ([[1, 0], [0, 1]], ("x", "y"), {"user": ["u1", "u2"]})


@given(
    st.lists(
        st.tuples(st.sampled_from([-3, 0, 1, 2, 5, 2**40]), st.sampled_from("abc")), min_size=1
    ),
    st.integers(1, 5),
    st.sampled_from([0, 3, 1 << 19]),
    st.sampled_from([0, 30, 1 << 24]),
    st.booleans(),
)
def test_rows_and_features_are_numbered_over_batches(
    tmp_path_factory, lines, batch_lines, n_waiting, memory, is_text
):
    folder = tmp_path_factory.mktemp("lines")
    numbers, names = (list(column) for column in zip(*lines, strict=True))
    columns = {"call": numbers, "voter": numbers[::-1], "vote": names}
    kinds = {"call": pa.int64(), "voter": pa.string() if is_text else pa.int64()}
    arrays = {n: pa.array(v).cast(kinds.get(n, pa.string())) for n, v in columns.items()}
    pa.parquet.write_table(pa.table(arrays), folder / "a.parquet", row_group_size=batch_lines)
    empty = pa.table(arrays)[:0]
    pa.parquet.write_table(empty, folder / "b.parquet")
    paths = [str(folder / "a.parquet"), str(folder / "b.parquet"), str(folder / "a.parquet")]
    pairs = lines
    features = sorted({str(number) for number in numbers})
    cells = {(pair, str(f)) for pair, f in zip(pairs, numbers[::-1], strict=True)}
    rows = [*dict.fromkeys(pairs)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.sources.long_tables._BATCH_LINES", batch_lines)
        patch.setattr("storage.sources.long_tables._MIN_BATCH_LINES", batch_lines)
        patch.setattr("storage.sources.name_index._MIN_WAITING_ROWS", n_waiting)
        patch.setattr("storage.sources.name_index._MAX_MEMORY", memory)
        long = "row=call,row=vote,feature=voter"
        X, feature_names, row_columns = read(*paths, long=long, options=ReadOptions())
    assert [*zip(row_columns["call"], row_columns["vote"], strict=True)] == rows
    assert feature_names == tuple(features)
    assert [[int((row, f) in cells) for f in features] for row in rows] == X


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.sampled_from("01?"))),
    st.sampled_from(["last", "any"]),
    st.integers(1, 4),
    st.sampled_from([0, 16]),
)
def test_of_several_lines_one_counts(tmp_path_factory, lines, rule, height, dense):
    lines = [("a", "x", "1"), *lines]
    folder = tmp_path_factory.mktemp("lines")
    parts = [
        table(folder / f"{k}.csv", lines[k : k + height]) for k in range(0, len(lines), height)
    ]
    cells = {}
    for row, feature, value in lines:
        before = cells.get((row, feature), "?")
        cells[row, feature] = value if rule == "last" else max(value, before, key="?01".index)
    rows = [*dict.fromkeys(row for row, _, _ in lines)]
    features = sorted({feature for _, feature, _ in lines})
    expected = [["01?".index(cells.get((r, f), "?")) for f in features] for r in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.sources.spool._DENSE_CELLS_PER_ENTRY", dense)
        assert read(*parts, duplicates=rule, options=ReadOptions())[0] == expected


@pytest.mark.parametrize("dense", [0, 16])
@pytest.mark.parametrize("apart", [False, True])
def test_several_lines_are_refused_by_name(tmp_path, monkeypatch, apart, dense):
    monkeypatch.setattr("storage.sources.spool._DENSE_CELLS_PER_ENTRY", dense)
    lines = [*LINES, ("c1", "GBR", "no")]
    cut = 3 if apart else len(lines)
    parts = [lines[:cut], lines[cut:]]
    paths = [table(tmp_path / f"{k}.csv", part) for k, part in enumerate(parts) if part]
    assert refused(*paths) == (
        f"{paths[0]}: row 'c1', column 'GBR': there are two entries. "
        'Remove one of the lines, or use duplicates="last" or duplicates="any".'
    )


def test_no_thread_reads_on_while_an_error_is_handled(tmp_path):
    path = table(tmp_path / "a.csv", [*LINES, ("c1", "GBR", "no")])
    before = set(threading.enumerate())
    with pytest.raises(DataError, match="there are two entries") as caught:
        read(path)
    assert set(threading.enumerate()) <= before, caught.value  # which keeps the variables alive


@pytest.fixture(params=[1 << 24, 0], ids=["in memory", "on disk"])
def memory(request, monkeypatch):
    """The memory for names of rows; without any, all are partitioned to disk."""
    monkeypatch.setattr(name_index, "_MAX_MEMORY", request.param)
    monkeypatch.setattr(name_index, "_MIN_WAITING_ROWS", 0)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("kind", "ids", "expected"),
    [
        (pa.int32(), [7, 0, -12, 7], [7, 0, -12]),
        (pa.uint64(), [7, 2**63 - 1, 7, 0], [7, 2**63 - 1, 0]),
        (pa.uint64(), [7, 2**63, 7, 2**64 - 1], ["7", str(2**63), str(2**64 - 1)]),
        (pa.int64(), [-(2**63), 1, 1, 1], [str(-(2**63)), "1"]),
        (pa.float64(), [7.0, 1e15, 7.0, -3.0], [7, 10**15, -3]),
        (pa.float64(), [7.0, 2.5, 7.0, 0.0], ["7", "2.5", "0"]),
        (pa.float64(), [1e15 + 1, 2.0**53 - 1, 1e15 + 1, 0.0], [10**15 + 1, 2**53 - 1, 0]),
        (pa.float64(), [1e15 + 1, 0.5, 1e15 + 1, 2.0**33], [str(10**15 + 1), "0.5", str(2**33)]),
        (pa.float64(), [0.5, 1e-9, -0.0, 0.0], ["0.5", "1e-9", "0"]),
        (pa.float32(), [0.1, 12345678.0, 2.0, 0.1], ["0.1", "12345678", "2"]),
        (pa.float16(), [7.0, 1024.0, 7.0, 0.0], [7, 1024, 0]),
        (pa.string(), ["None", "nan", "007", "7"], ["None", "nan", "007", "7"]),
        (pa.dictionary(pa.int8(), pa.int64()), [7, 0, 7, 0], [7, 0]),
        (pa.bool_(), [True, False, True, True], [1, 0]),
    ],
)
def test_integers_stay_integers_and_all_else_becomes_text(tmp_path, kind, ids, expected):
    def write(name, kind, ids):
        lines = {"call": pa.array(ids, kind), "voter": ["x", "x", "y", "z"][: len(ids)]}
        pa.parquet.write_table(pa.table(lines), tmp_path / name, row_group_size=2)
        return str(tmp_path / name)

    event = {"long": "row=call,feature=voter", "options": ReadOptions()}
    paths = [write("a.parquet", kind, ids), write("b.parquet", pa.string(), ["7", "007", "last"])]
    assert read(paths[0], **event)[2] == {"call": expected}
    both = [*dict.fromkeys([*map(str, expected), "7", "007", "last"])]
    assert read(*paths, **event)[2] == {"call": both}
    assert {*read(*paths[::-1], **event)[2]["call"]} == {*both}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(pa.float64(), 2.0**53), (pa.float64(), -1e17), (pa.float32(), 2.0**24), (pa.float64(), inf)],
)
@pytest.mark.parametrize("column", ["call", "voter"])
def test_fractions_that_may_stand_for_several_names_are_refused(tmp_path, kind, name, column):
    lines = {"call": pa.array(["a", "b"]), "voter": pa.array(["x", "y"])}
    lines[column] = pa.array([1.0, name], kind)
    pa.parquet.write_table(pa.table(lines), tmp_path / "a.parquet")
    message = refused(str(tmp_path / "a.parquet"), long="row=call,feature=voter")
    assert message.startswith(f"{tmp_path / 'a.parquet'}: column {column!r}: {name:g} names")
    assert message.endswith("Store the names as integers or texts.")


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_number_that_is_missing_names_no_row(tmp_path, value):
    lines = {"call": pa.array([1.0, value], pa.float64()), "voter": ["x", "y"]}
    pa.parquet.write_table(pa.table(lines), tmp_path / "a.parquet")
    message = refused(str(tmp_path / "a.parquet"), long="row=call,feature=voter")
    assert "row 2 (data rows counted from 1), column 'call': the name is missing" in message


def test_many_names_of_features_are_rather_those_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("storage.sources.long_tables._MAX_FEATURES", 2)
    path = table(tmp_path / "a.csv", LINES)
    assert refused(path) == (
        "long: column 'voter' has more than 2 different names. Does it name the rows, and 'call' "
        'the features? Then use long="row=voter,feature=call,value=vote". If it does name '
        'features, select them with features; features="*" selects all.'
    )
    assert read(path, options=replace(VOTES, features=("*",)))[1] == ("FRA", "GBR", "USA")


@pytest.mark.usefixtures("memory")
def test_a_full_disk_is_one_error_that_names_the_place(tmp_path, monkeypatch):
    """A disk of 60 kB, as a limit for the size of files."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    lines = [(f"a rather long name {k}", "xy"[k % 2], "yes") for k in range(10_000)]
    paths = [table(tmp_path / f"{k}.csv", lines) for k in range(2)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        message = refused(*paths, duplicates="last")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    start = f"{tmp_path / 'temporary'}: the entries and the names of rows need at least 0.0 GB ("
    assert message.startswith(start)
    assert message.endswith("Set TMPDIR to a larger disk.")
    gc.collect()
    assert not [*(tmp_path / "temporary").iterdir()]


@pytest.mark.usefixtures("memory")
def test_other_columns_are_kept_where_all_lines_of_a_row_agree(tmp_path):
    header = ("call", "voter", "vote", "year")
    lines = [(*line, "1990" if line[0] == "c1" else "") for line in LINES]
    path = table(tmp_path / "a.csv", lines, header)
    options = ReadOptions(maps=VOTES.maps, row_columns=("year", "call"))
    assert read(path, options=options)[2] == {"call": ["c1", "c2"], "year": ["1990", ""]}
    last = [("c3", "GBR", "no", "1992"), ("c2", "GBR", "no", "1991"), ("c1", "DEU", "no", "1")]
    path = table(tmp_path / "b.csv", [*lines, *last], header)
    others = [table(tmp_path / f"{k}.csv", part, header) for k, part in enumerate([lines, last])]
    for paths, place in (([path], f"{path}: row 7"), (others, f"{others[1]}: row 2")):
        assert refused(*paths, options=options) == (
            f"{place} (data rows counted from 1), column 'year': the text is '1991', but '' "
            "in other lines of the row. Do not keep the column."
        )


def test_folders_tell_columns(tmp_path):
    paths = []
    for year, lines in (("1990", LINES[:2]), ("1991", LINES[2:4])):
        (tmp_path / f"year={year}").mkdir()
        paths.append(table(tmp_path / f"year={year}" / "a.csv", lines))
        columns = dict(zip(("call", "voter", "vote"), zip(*lines, strict=True), strict=True))
        pa.parquet.write_table(pa.table(columns), paths[-1].replace(".csv", ".parquet"))
    options = ReadOptions(maps=VOTES.maps, row_columns=("year",))
    expected = [[2, 0, 1], [1, 2, 2]], ("FRA", "GBR", "USA")
    for kind in ("csv", "parquet"):
        found = read(*(path.replace("csv", kind) for path in paths), options=options)
        assert found == (*expected, {"call": ["c1", "c2"], "year": ["1990", "1991"]})
    by_year = read(*paths, long="row=year,feature=voter,value=vote")
    assert by_year == (*expected, {"year": ["1990", "1991"]})
    table(
        tmp_path / "year=1990" / "a.csv", [("1", "2", "3", "4")], ("call", "voter", "vote", "year")
    )
    assert "column 'year' is both in the file and in the folder's name" in refused(
        *paths, options=options
    )


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.csv").touch()
    assert refused(str(tmp_path / "a.csv")).endswith("the first line is empty.")


def test_other_formats_are_refused(tmp_path):
    path = str(tmp_path / "a.xlsx")
    assert refused(path).startswith(f"{path}: long needs a file with the suffix .csv, .csv.gz")


def test_features_may_be_given_and_others_are_refused(tmp_path):
    path = table(tmp_path / "a.csv", LINES)
    assert read(path, features=("USA", "GBR", "FRA", "DEU"))[0] == [[1, 0, 1, 2], [2, 2, 1, 2]]
    assert "column 'voter': 'GBR' is not a feature of the dataset" in refused(
        path, features=("USA", "FRA")
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ("c3", "USA", "maybe"),
            "column 'vote', feature 'USA': the value 'maybe' is not 'yes', 'no' or missing",
        ),
        (("", "USA", "yes"), "column 'call': the name is missing"),
        (("c3", "", "yes"), "column 'voter': the name is missing"),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path, line, message):
    path = table(tmp_path / "a.csv", [*LINES, line])
    assert refused(path).startswith(f"{path}: row 6 (data rows counted from 1), {message}")


@pytest.mark.parametrize(
    ("long", "message"),
    [
        ("row=call", "write row=COLUMN,feature=COLUMN and"),
        ("row=call,feature=voter,feature=vote", "write row=COLUMN"),
        ("row=call,feature=voter,values=vote", "write row=COLUMN"),
        ("row=,feature=voter", "a column name is missing after an ="),
        ("row=call,feature=voter,value=note", "there is no column 'note'"),
        ("row=call,feature=call,value=vote", "one column has two roles"),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path, long, message):
    assert message in refused(table(tmp_path / "a.csv", LINES), long=long)


@pytest.mark.parametrize("name", ["vote", "voter"])
def test_a_column_that_differs_within_a_row_is_not_kept(tmp_path, name):
    path = table(tmp_path / "a.csv", [("c1", "USA", "1"), ("c1", "GBR", "0")])
    assert refused(path, options=ReadOptions(row_columns=(name,))).startswith(
        f"keep, segment_by or split_by: column {name!r} has the features or values of the long"
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("twice", ["call", "voter", "vote"])
def test_a_column_that_occurs_twice_is_refused(tmp_path, suffix, twice):
    names = ["call", "voter", "vote", twice]
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text(",".join(names) + "\nc1,USA,1,0\nc2,USA,0,1\n")
    else:
        columns = [["c1", "c2"], ["USA", "USA"], [1, 0], [0, 1]]
        pa.parquet.write_table(pa.table(columns, names=names), path)
    assert f"several columns have the name {twice!r}" in refused(str(path))


def test_durations_and_dates_are_no_values(tmp_path):
    for kind in (pa.duration("s"), pa.time64("us"), pa.timestamp("us")):
        values = pa.array([0, 1], pa.int64()).cast(kind)
        columns = {"call": ["c1", "c2"], "voter": ["USA", "USA"], "vote": values}
        pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
        assert f"column 'vote' holds {kind}" in refused(str(tmp_path / "a.parquet"))
