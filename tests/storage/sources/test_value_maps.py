"""Values other than 0 and 1, and columns that are not features."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import DataError
from storage.sources import (
    ReadOptions,
    format_map,
    open_long_tables,
    open_source,
    parse_continuous,
    parse_levels,
    parse_map,
)
from storage.sources.value_codes import find_map

CALLS = "id,r1,r2\na,Yea,nay\nb, nay ,NAY\nc,paired-yea,\nd,yea,?\n"


def read(path, *maps, **options):
    """The values, 2 where missing, and the names."""
    source = open_source(str(path), ReadOptions(maps=tuple(map(parse_map, maps)), **options))
    batches = list(source.iter_batches())
    for batch in batches:
        assert batch.X.flags.c_contiguous
    values = [b.X + (0 if b.observed is None else 2 * (1 - b.observed)) for b in batches]
    return np.concatenate(values), source.feature_names


def written(path, text):
    path.write_text(text)
    return path


def refused(path, *maps, **options):
    with pytest.raises(DataError) as caught:
        read(path, *maps, **options)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv"])
def test_texts_are_mapped_without_regard_to_case_or_space(tmp_path, suffix):
    path, text = tmp_path / f"calls{suffix}", CALLS
    if suffix == ".tsv":
        text = text.replace(",", "\t")
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    values, names = read(path, "yea=1,paired-yea=1,nay=0", row_columns=("id",))
    assert names == ("r1", "r2")
    assert values.tolist() == [[1, 0], [0, 0], [1, 2], [1, 2]]


def test_the_fast_way_and_the_slow_way_agree(tmp_path):
    rng = np.random.default_rng(0)
    words = rng.choice(["1", "6", "9"], (3000, 4), p=[0.6, 0.3, 0.1])
    lines = "\n".join(map(",".join, words))
    fast = written(tmp_path / "fast.csv", f"a,b,c,d\n{lines}\n")
    slow = written(tmp_path / "slow.csv", f"a,b,c,d\n{lines}\n1.0, 6,9,1\n")
    expected = np.select([words == "1", words == "6"], [1, 0], 2)
    for path in (fast, slow):
        values, _ = read(path, "1=1,6=0", missing=("9",))
        np.testing.assert_array_equal(values[:3000], expected)
    assert values[3000].tolist() == [1, 0, 2, 1]


def test_a_map_may_turn_bits_round_and_name_what_else_is_missing(tmp_path):
    path = written(tmp_path / "a.csv", "a,b\n1,?\n0,na\nNA,?\n,NA\n")
    values, _ = read(path, "b:?=1,na=0", "0=1,1=0")
    assert values.tolist() == [[0, 1], [1, 0], [2, 1], [2, 0]]


def test_some_columns_have_maps_of_their_own(tmp_path):
    path = written(tmp_path / "a.csv", "q1,q2,x\n1,2,yes\n2,1,no\n")
    values, _ = read(path, "q*:1=0,2=1", "x:yes=1,no=0")
    assert values.tolist() == [[0, 1, 1], [1, 0, 0]]
    path = written(tmp_path / "b.csv", "q1,x\n1,1\n2,0\n")
    assert read(path, "q1:1=0,2=1")[0].tolist() == [[0, 1], [1, 0]]


def test_parquet_and_arrays_are_mapped_too(tmp_path):
    columns = {
        "text": pa.array(["y", "n", None]).dictionary_encode(),
        "number": pa.array([1.0, 6.0, float("nan")]),
        "whole": pa.array([6, 1, None]),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    values, _ = read(tmp_path / "a.parquet", "y=1,1=1,n=0,6=0")
    assert values.tolist() == [[1, 1, 0], [0, 0, 1], [2, 2, 2]]
    codes = np.array([[1, 6], [6, 9]])
    np.save(tmp_path / "a.npy", codes)
    np.savez(tmp_path / "a.npz", X=codes)
    for name in ("a.npy", "a.npz"):
        assert read(tmp_path / name, "1=1,6=0", missing=("9",))[0].tolist() == [[1, 0], [0, 2]]
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_array(codes))
    assert "map needs a dense format" in refused(tmp_path / "s.npz", "1=1,6=0")


@given(st.lists(st.sampled_from(["yea", "nay", "?", "Yea", " nay"]), min_size=1, max_size=30))
def test_a_word_means_the_same_wherever_it_stands(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("words") / "a.csv"
    written(path, "column\n" + "\n".join(words) + "\n")
    values, _ = read(path, "yea=1,nay=0")
    meaning = {"yea": 1, "nay": 0, "?": 2}
    assert values[:, 0].tolist() == [meaning[word.strip().lower()] for word in words]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("feature", "expected"), [("b", "b"), ("q12", "q1*"), ("q2", "q*")])
def test_the_most_specific_map_of_a_feature_applies(feature, expected, order):
    maps = [parse_map(f"{columns}:yea=1,nay=0") for columns in ("*", "q*", "b", "q1*")]
    found = find_map(maps[::order], feature)
    assert found is not None
    assert found.columns == expected


def test_a_first_line_of_mapped_values_is_no_header(tmp_path):
    path = written(tmp_path / "a.csv", "yea,nay\nnay,nay\n")
    assert "the first line contains values, not names" in refused(path, "yea=1,nay=0")


def test_what_a_map_misses_is_named_with_counts_and_place(tmp_path):
    path = written(tmp_path / "a.csv", "a,b\nyea,nay\nyea,present\nnay,present\n")
    message = refused(path, "yea=1,nay=0")
    assert message == (
        f"{path}: row 2 (data rows counted from 1), column 'b': the value 'present' is not 'yea', "
        "'nay' or missing. Nearby values: 'present' (2), 'nay' (1). "
        'Add its meaning to map, yes or no, or use missing="VALUE".'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yea", "'yea' is not VALUE=1 or VALUE=0"),
        ("yea=2,nay=0", "'yea=2' is not VALUE=1"),
        ("=1,nay=0", "'=1' is not VALUE=1"),
        ("yea=1,YEA=0", "'YEA' is both 1 and 0"),
        ("yea=1,aye=1", "no value means 0"),
        ("q*:nay=0", "no value means 1"),
    ],
)
def test_maps_that_say_nothing_are_refused(text, message):
    with pytest.raises(DataError, match=r"^map=") as caught:
        parse_map(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_are_compared_as_such():
    assert parse_map("1=0,2=1").find_code(" 2.0 ") == 1
    with pytest.raises(DataError, match=r"^map=\"1=1,1.0=0\": '1.0' is both 1 and 0"):
        parse_map("1=1,1.0=0")


def test_words_of_one_meaning_are_bits(tmp_path):
    path = written(tmp_path / "a.csv", "q1,q2\nyes,0\n No,1\nNA,nein\nTRUE,YES\n")
    source = open_source(str(path), ReadOptions())
    (batch,) = source.iter_batches()
    np.testing.assert_array_equal(batch.X, [[1, 0], [0, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(batch.observed[:, 0], [1, 1, 0, 1])
    assert source.options.words_read == {"yes", "no", "nein"}  # true is no matter of language
    assert read(path, missing=("nein",))[0][2, 1] == 2
    values = pa.array(["no", "yes", None]).dictionary_encode()
    pa.parquet.write_table(pa.table({"a": values, "b": values}), tmp_path / "a.parquet")
    np.testing.assert_array_equal(read(tmp_path / "a.parquet")[0][:, 0], [0, 1, 2])
    with pytest.raises(DataError, match=r"'y' is not 0, 1, .* Use map=\"a:yes=1,y=1,no=0\""):
        read(written(path, "a,b\nyes,1\nno,1\ny,0\n"))
    with pytest.raises(DataError, match="'yes' is not a number"):
        read(written(path, "a,b\nyes,1\nno,1\n"), threshold=0.5)
    values, names = read(written(path, "correct,wrong\n1,0\n0,1\n"))  # words as names
    assert names == ("correct", "wrong")


@pytest.mark.parametrize("kind", ["csv", "parquet", "long"])
def test_texts_of_kept_columns_are_missing_if_an_option_names_them(tmp_path, kind):
    columns = {"a": [1, 0, 9, 1], "party": ["left", " refused", "NA", "9"]}
    path, options = tmp_path / f"a.{kind}", {"missing": ("refused", "9"), "row_columns": ("party",)}
    if kind == "csv":
        path = written(path, "a,party\n1,left\n0, refused\n9,NA\n1,9\n")
    elif kind == "parquet":
        pa.parquet.write_table(pa.table(columns), path)
    else:
        path = written(tmp_path / "a.csv", "n,f,a,party\nr,f,1,left\nrefused,f,0,refused\n")
    options = ReadOptions(**options)
    if kind == "long":
        source = open_long_tables([str(path)], "row=n,feature=f,value=a", None, options)
    else:
        source = open_source(str(path), options)
    (batch,) = source.iter_batches()
    expected = ["left", "", "NA", "9"]  # a row may be called NA or 9
    assert batch.columns["party"].tolist() == expected[: len(batch)]
    assert options.missing_texts == {("party", "refused")}
    if kind == "long":
        assert batch.columns["n"].tolist() == ["r", "refused"]  # names of rows are never missing
    else:
        assert batch.observed.ravel().tolist() == [1, 1, 0, 1]


def test_options_are_proposed_for_the_columns_that_need_them(tmp_path):
    path = tmp_path / "a.csv"
    for names, prefixes in (("q1,q2,b", ("q*:",)), ("x,y,b", ("x:", "y:")), ("x,y", ("",))):
        bit = ",1" * (names.count(",") - 1)
        written(path, f"{names}\ny,n{bit}\nn,y{bit}\n")
        text = refused(path)
        maps = [f"{prefix}y=1,n=0" for prefix in prefixes]
        assert text.endswith("Use " + " ".join(f'map="{own}"' for own in maps) + ".")
        assert read(path, *maps)[0][:, :2].tolist() == [[1, 0], [0, 1]]
    lines = "".join(f"{7 - k % 7},{k % 5 + 1},a,{k % 2}\n" for k in range(14))
    text = refused(written(path, f"code,mood,t,bit\n{lines}"))
    assert 'if the values are ordered, ordinal="code" ordinal="mood" or threshold="T"' in text
    assert 'if they are categories, nominal="code" nominal="mood";' in text
    header = ",".join(f"{'abcdefgh'[k]}{k}" for k in range(8))
    text = refused(written(path, f"{header},b\n{'y,' * 8}1\n{'n,' * 8}0\n"))
    assert text.endswith('map="e4:y=1,n=0", and so on for 3 other columns.')


def test_yes_and_no_write_a_map():
    assert format_map(("yea,aye", "yes"), ("nay",)) == ("*:yea=1,aye=1,yes=1,nay=0",)
    (text,) = format_map(("a:b=c",), ("d",))
    assert parse_map(text).find_code("A:b=c") == 1
    assert format_map((), ()) == ()
    with pytest.raises(DataError, match=r"^yes and no belong together. .* with no\.$"):
        format_map(("yea",), ())
    with pytest.raises(DataError, match=r"^yes and no both contain 'nay'\."):
        format_map(("yea,Nay",), ("nay",))


def test_options_that_contradict_each_other_are_refused():
    yea = parse_map("yea=1,nay=0")
    with pytest.raises(DataError, match=r"^map and threshold cannot be combined"):
        ReadOptions(threshold=1.0, maps=(yea,))
    with pytest.raises(
        DataError, match=r"^map or yes: the values of all features have more than one meaning"
    ):
        ReadOptions(maps=(yea, parse_map("aye=1,no=0")))
    with pytest.raises(DataError, match=r"^missing=\"NAY\": a map reads this value"):
        ReadOptions(missing=("NAY",), maps=(yea,))


def test_features_are_chosen_and_dropped_by_name_and_pattern(tmp_path):
    text = "id,when,q1,q2,age\n17,2020-01-01,1,0,x\n18,2020-01-02,0,1,y\n"
    path = written(tmp_path / "a.csv", text)
    assert read(path, features=("q*",))[1] == ("q1", "q2")
    assert read(path, features=("q*", "age"), drop=("q1", "age"))[1] == ("q2",)
    assert read(path, features=("q*,age",), drop=("q1, age",))[1] == ("q2",)
    assert read(path, features=("q[1,2]",))[1] == ("q1", "q2")
    values, names = read(path, drop=("id", "when"), row_columns=("age",))
    assert (names, values.tolist()) == (("q1", "q2"), [[1, 0], [0, 1]])


def test_arrays_may_hold_anything_where_it_is_dropped(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[7, 1, 0], [8, 0, 1]]))
    values, names = read(tmp_path / "a.npy", drop=("f0",))
    assert (names, values.tolist()) == (("f1", "f2"), [[1, 0], [0, 1]])
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csc_array(np.eye(3)))
    assert read(tmp_path / "s.npz", features=("f[02]",))[0].tolist() == [[1, 0], [0, 0], [0, 1]]


def test_a_name_is_itself_before_it_is_a_pattern(tmp_path):
    path = written(tmp_path / "a.csv", "a[1],a1\n1,0\n")
    assert read(path, drop=("a[1]",))[1] == ("a1",)
    assert read(path, drop=("a[1-9]",))[1] == ("a[1]",)


@pytest.mark.parametrize("name", ["a.csv", "a.npy"])
def test_names_that_fit_nothing_are_refused(tmp_path, name):
    if name == "a.csv":
        path = written(tmp_path / name, "f0,f1\n1,0\n")
    else:
        path = tmp_path / name
        np.save(path, np.eye(2))
    assert refused(path, drop=("f11",)) == (
        f"{path}: drop: there is no column 'f11'. Did you mean 'f1'?"
    )
    assert refused(path, features=("q*",)).endswith("there is no column 'q*'. Columns: f0, f1")
    assert refused(path, drop=("f0,f7",)).endswith("there is no column 'f7'. Columns: f0, f1")
    assert "leave no feature" in refused(path, drop=("f*",))
    assert read(path, drop=("f7",), is_append=True)[1] == ("f0", "f1")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_a_csv_may_be_cut_by_other_marks(tmp_path, mark):
    path = written(tmp_path / "a.csv", "who,a,b\nx y,1,0\nz,0,\n".replace(",", mark))
    values, names = read(path, row_columns=("who",))
    assert (names, values.tolist()) == (("a", "b"), [[1, 0], [0, 2]])


def test_a_csv_that_two_marks_cut_is_refused_with_both(tmp_path):
    path = written(tmp_path / "a.csv", "a;b,c\n1;0,1\n")
    assert refused(path) == (
        f"{path}: the delimiter is ambiguous: 2 columns by commas and 2 columns by semicolons. "
        "Write the file with one delimiter, or quote the names that contain the "
        "other."
    )
    path = written(tmp_path / "b.csv", '"a;b",c\n1,1\n')
    assert read(path)[1] == ("a;b", "c")


def test_missing_texts_are_compared_before_any_map(tmp_path):
    cells = [["1", "2"], ["0", "1"], ["2", "0"]]
    lines = "\n".join(map(",".join, cells))
    expected = [[1, 0], [2, 1], [0, 2]]
    columns = {n: pa.array([float(row[k]) for row in cells]) for k, n in enumerate("ab")}
    texts = {name: column.cast(pa.int8()).cast(pa.string()) for name, column in columns.items()}
    pa.parquet.write_table(pa.table(columns), tmp_path / "numbers.parquet")
    pa.parquet.write_table(pa.table(texts), tmp_path / "texts.parquet")
    np.save(tmp_path / "array.npy", np.array(cells, np.int8))
    written(tmp_path / "fast.csv", f"a,b\n{lines}\n")
    written(tmp_path / "slow.csv", f"a,b\n{lines}\n0.0, 1\n")
    for name in ("numbers.parquet", "texts.parquet", "array.npy", "fast.csv", "slow.csv"):
        values, _ = read(tmp_path / name, "1=1,2=0", missing=("0",))
        assert values[:3].tolist() == expected, name
    assert read(tmp_path / "slow.csv", "1=1,2=0", missing=("0",))[0][3].tolist() == [2, 1]
    path = written(tmp_path / "long.csv", "r,f,v\nx,a,1\nx,b,2\ny,a,0\ny,b,true\n")
    options = ReadOptions(missing=("0",), maps=(parse_map("true=1,1=1,2=0"),))
    (batch,) = open_long_tables(
        [str(path)], "row=r,feature=f,value=v", None, options
    ).iter_batches()
    assert (batch.X + 2 * (1 - batch.observed)).tolist() == [[1, 0], [2, 1]]


def test_a_missing_0_is_not_false_and_a_missing_1_not_true(tmp_path):
    bits = pa.array([True, False, True])
    path = written(tmp_path / "a.csv", "a,b\n1,true\n0,false\n0.0,false\n")
    assert read(path, missing=("0",))[0].tolist() == [[1, 1], [2, 0], [2, 0]]
    assert read(path, missing=("1",))[0].tolist() == [[2, 1], [0, 0], [0, 0]]
    assert read(path, missing=("false",))[0].tolist() == [[1, 1], [0, 2], [0, 2]]
    pa.parquet.write_table(pa.table({"a": bits, "b": [1, 0, 1]}), tmp_path / "a.parquet")
    expected = [[1, 1], [0, 2], [1, 1]]
    assert read(tmp_path / "a.parquet", missing=("0",))[0].tolist() == expected
    np.save(tmp_path / "a.npy", np.array([[True, False]]))
    assert read(tmp_path / "a.npy", missing=("0",))[0].tolist() == [[1, 0]]
    names = {"r": ["x", "y", "z"], "f": ["a", "a", "a"], "v": bits}
    pa.parquet.write_table(pa.table(names), tmp_path / "long.parquet")
    arguments = "row=r,feature=f,value=v", None, ReadOptions(missing=("0",))
    (batch,) = open_long_tables([str(tmp_path / "long.parquet")], *arguments).iter_batches()
    assert batch.X.tolist() == [[1], [0], [1]]
    assert batch.observed is None
    # The words of a map may differ from a missing number that they equal.
    path = written(tmp_path / "b.csv", "a,b\n0,true\ntrue,false\nfalse,0\n")
    values, _ = read(path, "true=1,false=0", missing=("0",))
    assert values.tolist() == [[2, 1], [1, 0], [0, 2]]


def test_a_value_is_not_both_missing_and_mapped():
    for token in ("1", "1.0", " 1 "):
        with pytest.raises(DataError, match="a map reads this value as 0 or 1"):
            ReadOptions(missing=(token,), maps=(parse_map("1=1,2=0"),))


@pytest.mark.parametrize("text", ["0_1", "1_000", "0x1", "１", "infinity"])
def test_only_plain_numbers_are_numbers(tmp_path, text):
    for name, options in {
        "bit": {},
        "threshold": {"threshold": 0.5},
        "level": {"maps": (parse_levels("0<1<2"),)},
        "number": {"maps": tuple(parse_continuous("a"))},
    }.items():
        path = written(tmp_path / f"{name}.csv", f"a,b\n0,1\n1,2\n0,{text}\n1,1\n{text},1\n")
        with pytest.raises(DataError, match=r"row 5 .*'a'"):
            list(open_source(str(path), ReadOptions(features=("a",), **options)).iter_batches())
    assert read(written(tmp_path / "a.csv", "a,b\n 1 ,+1\n1e0,01\n0.,.0\n"))[0].tolist() == [
        *([1, 1], [1, 1], [0, 0]),
    ]
