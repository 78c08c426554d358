"""Ordered levels in sources: each format gives the same levels, fast or slow."""

import ast
import re

import bed_reader
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pyreadstat
import pytest
import scipy.sparse

from pipeline.data.tables import convert_frame
from pipeline.errors import FitError
from storage.errors import DataError
from storage.quoting import quote
from storage.sources import (
    ReadOptions,
    base,
    find_far_levels,
    format_map,
    make_feature_maps,
    open_source,
    parse_continuous,
    parse_levels,
    parse_map,
    parse_ordinal,
)
from storage.sources.long_tables import parse_long_columns

SCALE = ("never", "rarely", "often")


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(base, "BATCH_CELLS", 5 * 64)


def read(path, *maps, **options):
    """The levels, 99 where missing, and the names of the levels."""
    source = open_source(str(path), ReadOptions(maps=maps, **options))
    batches = list(source.iter_batches())
    missing = [0 if b.observed is None else 99 * (1 - b.observed) for b in batches]
    X = np.concatenate([b.X + m for b, m in zip(batches, missing, strict=True)])
    return X.tolist(), source.feature_levels


def write(path, text):
    path.write_text(text)
    return path


def test_integers_are_read_fast_or_slowly(tmp_path):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 12, (500, 2))
    lines = "".join(f"{a - 3},{'' if b == 11 else b}\n" for a, b in codes)
    maps = parse_ordinal("a:-3-8"), parse_ordinal("b:0-10")
    expected = np.where(codes == [-1, 11], 99, codes).tolist()
    assert read(write(tmp_path / "fast.csv", f"a,b\n{lines}"), *maps)[0] == expected
    slow = read(write(tmp_path / "slow.csv", f"a,b\n{lines} 1.0,5\n"), *maps)[0]
    assert slow == [*expected, [4, 5]]
    np.save(tmp_path / "a.npy", codes)
    assert read(tmp_path / "a.npy", parse_ordinal("*:0-11"))[0] == codes.tolist()


def test_words_of_some_columns_and_bits_of_others(tmp_path):
    path = write(tmp_path / "a.csv", "a,b,c\nNever,1,yes\noften,0,no\n?,,yes\n")
    maps = parse_levels("a:never<rarely<often"), parse_map("c:yes=1,no=0")
    values, levels = read(path, *maps)
    assert values == [[0, 1, 1], [2, 0, 0], [99, 99, 1]]
    assert levels == {"a": SCALE}


def test_a_level_may_be_a_word_that_means_missing_elsewhere(tmp_path):
    path = write(tmp_path / "a.csv", "a,b\nnone,1\nsome,none\nall,0\n")
    values, _ = read(path, parse_levels("a:none<some<all"))
    assert values == [[0, 1], [1, 99], [2, 0]]


def test_two_levels_are_bits_with_names(tmp_path):
    path = write(tmp_path / "a.csv", "a,b\nno,yes\nyes,yes\n")
    assert read(path, parse_levels("no<yes")) == (
        [[0, 1], [1, 1]],
        {"a": ("no", "yes"), "b": ("no", "yes")},
    )


def test_dictionaries_have_levels_and_are_nominal_without_an_order(tmp_path):
    indices, bits = pa.array([0, 2, None, 1], pa.int8()), pa.array([1, 0, None, 0], pa.int8())
    columns = {
        "ordered": pa.DictionaryArray.from_arrays(indices, pa.array(SCALE), ordered=True),
        "bits": pa.DictionaryArray.from_arrays(bits, pa.array(["0", "1"]), ordered=True),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    expected = [[0, 1], [2, 0], [99, 99], [1, 0]]
    assert read(tmp_path / "a.parquet") == (expected, {"ordered": SCALE})
    own = read(tmp_path / "a.parquet", parse_levels("ordered:often<rarely<never"))
    assert [row[0] for row in own[0]] == [2, 0, 99, 1]
    columns["ordered"] = pa.DictionaryArray.from_arrays(indices, pa.array(SCALE))
    pa.parquet.write_table(pa.table(columns), tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet") == (expected, {"ordered": SCALE})
    nominal = [open_source(str(tmp_path / n)).nominal_features for n in ("a.parquet", "b.parquet")]
    assert nominal == [frozenset(), {"ordered"}]


@pytest.mark.parametrize(
    ("categories", "is_nominal"),
    [
        (["no", "NA", "?"], True),
        (["no", "yes", "NA"], True),
        (["no", "yes"], False),
        (["nay", "no", "yes"], False),
    ],
)
def test_categories_are_the_same_in_files_and_data_frames(tmp_path, categories, is_nominal):
    column = pd.Categorical(categories * 4, categories)
    frame = pd.DataFrame({"a": column, "b": [0, 1] * (2 * len(categories))})
    frame.to_parquet(tmp_path / "a.parquet")
    source = open_source(str(tmp_path / "a.parquet"), ReadOptions())
    tables = convert_frame(frame, None, ())
    assert (
        source.nominal_features
        == tables.nominal_features
        == {"a"} & ({"a"} if is_nominal else set())
    )
    assert dict(source.feature_levels) == tables.feature_levels


def test_too_many_categories_are_refused_by_name(tmp_path):
    path, column = tmp_path / "a.parquet", pd.Categorical([f"k{i}" for i in range(20)])
    frame = pd.DataFrame({"region": column, "b": [0, 1] * 10})
    frame.to_parquet(path)
    message = r"column 'region' has 20 categories, .* at most 16\. Merge rare .* keep=.*drop="
    with pytest.raises(DataError, match=message):
        read(path)
    assert read(path, drop=("region",))[1] == read(path, row_columns=("region",))[1] == {}
    with pytest.raises(FitError, match=r"^Feature 'region' has 20 levels\. 2 to 16 .* rare ones"):
        convert_frame(frame, None, ())
    column = pd.Categorical([str(i) for i in range(20)])  # numbers may be measurements
    frame.assign(region=column).to_parquet(path)
    assert read(path, parse_continuous("region")[0])[1] == {"region": ()}


WORDS = ["None", "NA", "n/a", "null", "NaN", "?", "1", " - ", "unused", "False", "<18", "a,b:c=d"]


def write_categories(path, kind, indices, categories=WORDS):
    """Write an ordered categorical and a binary column, a few rows per row group."""
    words = [None if index is None else categories[index] for index in indices]
    bits = [k % 2 for k in range(len(words))]
    if kind == "polars":
        column = pl.Series(words, dtype=pl.Enum(categories))
        pl.DataFrame({"a": column, "b": bits}).write_parquet(path, row_group_size=3)
    else:
        column = pd.Categorical(words, categories, ordered=True)
        pd.DataFrame({"a": column, "b": bits}).to_parquet(path, row_group_size=3)
    return path


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_declared_categories_are_levels_whatever_their_names(tmp_path, kind):
    indices = [3, 3, None, 0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
    path = write_categories(tmp_path / "a.parquet", kind, indices)
    values, levels = read(path)
    assert [row[0] for row in values] == [99 if k is None else k for k in indices]
    assert levels == {"a": tuple(WORDS)}
    values, levels = read(path, missing=("n/a", "1", "unused"))
    kept = [word for word in WORDS if word not in ("n/a", "1", "unused")]
    words = [None if k is None else WORDS[k] for k in indices]
    assert [row[0] for row in values] == [kept.index(w) if w in kept else 99 for w in words]
    assert levels == {"a": tuple(kept)}


def test_options_do_not_make_categories_missing(tmp_path):
    path = write_categories(tmp_path / "a.parquet", "pandas", [0, 1, 2], ["no", "NA", "yes"])
    for option in parse_levels("a:no<yes"), parse_map("a:yes=1,no=0"):
        with pytest.raises(DataError, match='If this category means missing, use missing="NA"'):
            read(path, option)
        assert [row[0] for row in read(path, option, missing=("NA",))[0]] == [0, 99, 1]


def test_levels_that_were_exported_are_read_again(tmp_path):
    words = ("None", "NA", "nan")
    path = write(tmp_path / "a.csv", "a,b\nNone,NA\nnA,NaN\nnan,\n")
    values, _ = read(path, feature_maps=make_feature_maps({"a": words, "b": words}))
    assert values == [[0, 1], [1, 2], [2, 99]]
    path = write(tmp_path / "b.csv", "a,b\nNone,NaN\nNaN,\nnone,None\n")
    own = ("None", "nan")
    values, _ = read(path, feature_maps=make_feature_maps({"a": own, "b": own}))
    assert values == [[0, 1], [1, 99], [0, 0]]


def test_the_order_of_categories_is_never_that_of_their_occurrence(tmp_path):
    column = pd.Categorical(["b", "a", None, "c"], ["c", "b", "a"], ordered=True)
    path = tmp_path / "a.parquet"
    pd.DataFrame({"a": column, "x": [0, 1, 0, 1]}).to_parquet(path, use_dictionary=False)
    with pytest.raises(DataError, match=r'does not state the order .* levels="a:LOW'):
        read(path)
    assert read(path, parse_levels("a:c<b<a"))[0] == [[1, 0], [2, 1], [99, 0], [0, 1]]


def write_row_groups(path, *dictionaries):
    """Write a row group for each dictionary, with all of its categories."""
    kind = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    schema = pa.schema([("a", kind), ("b", pa.int8())])
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for words in dictionaries:
            places = pa.array(range(len(words)), pa.int8())
            column = pa.DictionaryArray.from_arrays(places, pa.array(words), ordered=True)
            bits = pa.array([0] * len(words), pa.int8())
            writer.write_table(pa.table([column, bits], schema=schema))
    return path


def test_row_groups_may_lack_categories_but_not_contradict_each_other(tmp_path):
    path = write_row_groups(tmp_path / "a.parquet", ["b", "d"], ["a", "b", "c", "d"], ["d"])
    values, levels = read(path)
    assert [row[0] for row in values] == [1, 3, 0, 1, 2, 3, 3]
    assert levels == {"a": ("a", "b", "c", "d")}
    path = write_row_groups(tmp_path / "b.parquet", ["b", "d"], ["a", "d", "<b", "b"])
    message = 'categories a<d<"<b"<b and, in other rows, b<d. Name their order: levels='
    with pytest.raises(DataError, match=re.escape(message)):
        read(path)


@pytest.mark.parametrize(
    ("values", "far"),
    [
        ([-99, *range(1, 6)], ["-99"]),
        ([*range(1, 6), 99], ["99"]),
        ([*range(11), 98, 99], ["98", "99"]),
        ([-9, -8, 0, 1, 9], ["-9", "-8", "9"]),
        ([*range(1, 6), 8, 9], ["8", "9"]),
        ([*range(1, 6), 9], ["9"]),
        ([-1, *range(1, 5)], ["-1"]),
        ([10, 20, 30, 99], ["99"]),
        (range(11), []),
        ([0, 1, 2, 3, 8], []),
        ([*range(6), 9], []),
        ([*range(7), 9, 10], []),
        ([0, 1, 2, 7, 10], []),
        ([0, 3, 5, 9], []),
        ([1, 2, 3, 7], []),
        ([1, 2, 3, 12], []),
        (range(-1, 5), []),
        (range(-3, 4), []),
        ([-3, -1, 1, 3], []),
        ([-1, 1], []),
        ([1, 9], []),
        ([95, 97, 98, 99], []),
        (["never", "9"], []),
    ],
)
def test_levels_that_may_mean_missing(values, far):
    value_map = make_feature_maps({"a": tuple(map(str, values))})["a"]
    assert [*find_far_levels(value_map)] == far


def write_statistics(path, **options):
    labels = {"q": {1: "never", 2: "rarely", 3: "often", 9: "refused"}, "b": {0: "no", 1: "yes"}}
    table = pd.DataFrame({"q": [1, 3, 2, 9], "b": [0, 1, 1, 0]})
    write = pyreadstat.write_dta if path.suffix == ".dta" else pyreadstat.write_sav
    write(table, str(path), variable_value_labels=labels, **options)
    return path


def test_labels_of_spss_are_levels_of_ordinal_columns(tmp_path):
    options = {"missing_ranges": {"q": [9]}}
    measures = {"variable_measure": {"q": "ordinal", "b": "ordinal"}}
    path = write_statistics(tmp_path / "a.sav", **options, **measures)
    expected = [[0, 0], [2, 1], [1, 1], [99, 0]]
    assert read(path) == (expected, {"q": SCALE})
    path = write_statistics(tmp_path / "b.sav", **options)
    with pytest.raises(DataError, match="column 'q': the value '3' is not 0, 1"):
        read(path)
    assert read(path, parse_ordinal("q")) == (expected, {"q": SCALE})
    assert read(path, parse_ordinal("q:1-3")) == (expected, {"q": ("1", "2", "3")})


def write_labels(path, labels, values=(1, 2, 3, 4, 5), **options):
    """Write a labelled column `q` and a binary one."""
    table = pd.DataFrame({"q": values, "b": [k % 2 for k in range(len(values))]})
    write = pyreadstat.write_dta if path.suffix == ".dta" else pyreadstat.write_sav
    write(table, str(path), variable_value_labels={"q": labels}, **options)
    return path


def read_labels(path, *texts, **options):
    """The values of `q`, read with one or more of the options as text, and its levels."""
    parse = {"ordinal": parse_ordinal, "levels": parse_levels, "map": parse_map}
    maps = [parse[name](text) for name, _, text in (word.partition("=") for word in texts)]
    values, levels = read(path, *maps, **options)
    return [row[0] for row in values], "<".join(levels.get("q", ()))


SHIFTED = {code: str(code - 1) for code in range(1, 6)}
REVERSED = {code: str(6 - code) for code in range(1, 6)}


@pytest.mark.parametrize("suffix", [".sav", ".dta"])
def test_a_column_is_read_by_codes_or_by_labels_but_never_by_both(tmp_path, suffix):
    up, down = [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]
    path = write_labels(tmp_path / f"a{suffix}", SHIFTED)
    assert read_labels(path, "ordinal=q:1-5") == (up, "1<2<3<4<5")
    assert read_labels(path, "ordinal=*:1-5", "map=b:1=1,0=0") == (up, "1<2<3<4<5")
    assert read_labels(path, "levels=q:0<1<2<3<4") == (up, "0<1<2<3<4")
    assert read_labels(path, "ordinal=q") == (up, "0<1<2<3<4")
    with pytest.raises(DataError, match=r"Use ordinal=.* for the codes, or levels=.* for"):
        read_labels(path, "levels=q:1<2<3<4<5")
    path = write_labels(tmp_path / f"b{suffix}", REVERSED)
    assert read_labels(path, "ordinal=q:1-5") == (up, "1<2<3<4<5")
    assert read_labels(path, "levels=q:1<2<3<4<5") == (down, "1<2<3<4<5")
    assert read_labels(path, "ordinal=q") == (up, "5<4<3<2<1")
    for option in "ordinal=q*:1-5", "levels=q*:1<2<3<4<5":
        message = (
            "b%s: column 'q': its codes and its labels are both levels, but different ones. Use "
            'ordinal="q:1-5" for the codes, or levels="q:1<2<3<4<5" for the labels.'
        )
        with pytest.raises(DataError, match=re.escape(message % suffix)):
            read_labels(path, option)


def test_known_levels_of_labelled_columns_are_codes_or_labels(tmp_path):
    def read_known(path, levels, *texts):
        return read_labels(path, *texts, feature_maps=make_feature_maps({"q": tuple(levels)}))[0]

    up, down = [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]
    shifted, reverse = (
        write_labels(tmp_path / f"{len(d)}{d[1]}.sav", d) for d in (SHIFTED, REVERSED)
    )
    assert read_known(shifted, "01234") == up
    assert read_known(shifted, "12345") == up
    assert read_known(reverse, "54321") == up
    assert read_known(reverse, "54321", "ordinal=*") == up
    with pytest.raises(DataError, match="its codes and its labels are both levels"):
        read_known(reverse, "12345", "ordinal=*")
    assert read_known(reverse, "12345", "ordinal=q:1-5") == up
    assert read_known(reverse, "12345", "levels=q:1<2<3<4<5") == down
    words = write_labels(tmp_path / "w.sav", dict(enumerate("abc", 1)), (1, 2, 3))
    assert read_known(words, "cba") == [2, 1, 0]
    with pytest.raises(DataError, match="categories a<b<c, but earlier rows have the levels c<b<a"):
        read_known(words, "cba", "ordinal=q")
    ordered = {"variable_measure": {"q": "ordinal"}}
    words = write_labels(tmp_path / "o.sav", dict(enumerate("abc", 1)), (1, 2, 3), **ordered)
    with pytest.raises(DataError, match="categories a<b<c, but earlier rows have the levels c<b<a"):
        read_known(words, "cba")


def test_maps_and_missing_texts_of_labelled_columns(tmp_path):
    labels = {1: "never", 2: "often", 8: "refused", 9: "NA"}
    path, values = tmp_path / "a.sav", (1, 2, 8, 9)
    write_labels(path, labels, values, variable_measure={"q": "ordinal"})
    assert read_labels(path) == ([0, 1, 2, 3], "never<often<refused<NA")
    for missing in ("8", "9"), ("refused", "NA"), ("8", "NA"):
        assert read_labels(path, missing=missing) == ([0, 1, 99, 99], "never<often")
        assert read_labels(path, "ordinal=q", missing=missing) == ([0, 1, 99, 99], "never<often")
        read_known = read_labels(path, "levels=q:often<never", missing=missing)
        assert read_known == ([1, 0, 99, 99], "often<never")
        assert read_labels(path, "ordinal=q:0-2", missing=missing) == ([1, 2, 99, 99], "0<1<2")
        assert read_labels(path, "map=q:1=1,2=0", missing=missing)[0] == [1, 0, 99, 99]
        assert read_labels(path, "map=q:never=1,often=0", missing=missing)[0] == [1, 0, 99, 99]
    with pytest.raises(DataError, match='Use levels="q:never<refused<NA<often"'):
        read_labels(path, "levels=q:never<often")


def test_codes_without_labels_are_never_those_of_other_labels(tmp_path):
    path = write_labels(tmp_path / "a.sav", {1: "0", 2: "low"}, (1, 2, 3))
    assert read_labels(path, "levels=q:0<low<3") == ([0, 1, 2], "0<low<3")
    path = write_labels(tmp_path / "b.sav", {1: "0", 2: "low"}, (0, 2))
    with pytest.raises(DataError, match="the value '0' is not"):
        read_labels(path, "levels=q:0<low<3")


@pytest.mark.parametrize(
    ("value_map", "remedy"),
    [
        (parse_ordinal("q"), 'ordinal="q:1-9"'),
        (parse_levels("q:never<rarely<often"), 'levels="q:never<rarely<9<often" (check the order)'),
    ],
)
def test_a_code_without_a_label_is_added_to_the_others(tmp_path, value_map, remedy):
    labels = {"q": {1: "never", 2: "rarely", 3: "often"}}
    table = pd.DataFrame({"q": [1, 3, 2, 9], "b": [0, 1, 1, 0]})
    pyreadstat.write_sav(table, str(tmp_path / "a.sav"), variable_value_labels=labels)
    with pytest.raises(DataError) as refusal:
        read(tmp_path / "a.sav", value_map)
    assert f"'9' (1). Use {remedy}, or missing=" in str(refusal.value)


def test_many_numbers_are_measurements(tmp_path):
    numbers = [str(k / 2) for k in range(20)]
    path = write(tmp_path / "a.csv", "age,b\n" + "\n".join(f"{number},1" for number in numbers))
    with pytest.raises(DataError, match='Use continuous="age", because a feature has at most 16'):
        read(path, parse_ordinal("*"))


def test_a_number_that_is_too_high_for_a_level_may_mean_missing(tmp_path):
    path = write(tmp_path / "a.csv", "q,b\n1,0\n999,1\n2,0\n3,\n-998,1\n")
    option = 'Use missing=999 missing="-998", or levels="-998<1<2<3<999" (check the order).'
    with pytest.raises(DataError, match=re.escape(option)):
        read(path, parse_ordinal("*"))
    path = write(tmp_path / "b.csv", "q,b\n1,0\n999,1\n2,0\n3,\n")
    with pytest.raises(DataError, match='Use missing=999, or levels="0<1<2<3<999"'):
        read(path, parse_ordinal("*:0-3"))


def test_an_infinite_number_is_no_level(tmp_path):
    path = write(tmp_path / "a.csv", "q,b\n1,0\ninf,1\n2,0\n")
    for option in ("*", "*:0-4"):
        with pytest.raises(DataError, match=r"row 2 .*, column 'q': the value 'inf' is not"):
            read(path, parse_ordinal(option))


def test_labels_of_stata_are_levels_of_columns_that_are_declared(tmp_path):
    path = write_statistics(tmp_path / "a.dta")
    values, levels = read(path, parse_levels("q:never<rarely<often"), missing=("9",))
    assert (values, levels) == ([[0, 0], [2, 1], [1, 1], [99, 0]], {"q": SCALE})
    assert read(path, parse_ordinal("q"))[1] == {"q": (*SCALE, "refused")}


def test_allele_counts(tmp_path):
    counts = np.array([[0, 2], [1, np.nan], [2, 0]])
    bed_reader.to_bed(tmp_path / "a.bed", counts)
    values, levels = read(tmp_path / "a.bed", parse_levels("0<1<2"))
    assert values == [[0, 2], [1, 99], [2, 0]]
    assert {*levels.values()} == {("0", "1", "2")}


def test_a_sparse_file_has_no_levels(tmp_path):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(np.eye(3)))
    with pytest.raises(DataError, match="levels needs a dense format"):
        read(tmp_path / "a.npz", parse_levels("0<1<2"))


@pytest.mark.parametrize("name", ["a,b", "a:b=1", "<18", '"x", "y"', "none", '50% "off"'])
def test_any_name_and_value_can_be_quoted(tmp_path, name):
    path, other = tmp_path / "a.csv", name + "<"
    pd.DataFrame({name: [name, other, None], "b": [1, 0, 1]}).to_csv(path, index=False)
    texts = f"{quote(name)}:{quote(name)}=1,{quote(other)}=0", f"{quote(other)}<{quote(name)}"
    for value_map in parse_map(texts[0]), parse_levels(f"{quote(name)}:{texts[1]}"):
        assert value_map.columns == name
        assert read(path, value_map)[0] == [[1, 1], [0, 0], [99, 1]]
    (text,) = format_map([quote(name)], [f"x,{quote(other)}"])
    assert parse_map(text).find_code(other) == 0
    assert [m.columns for m in parse_continuous(f"{quote(name)}, z")] == [name, "z"]
    assert parse_ordinal(f"{quote(name)}:1-5").columns == name
    assert parse_ordinal(quote(f"{name}:1-5")).columns == f"{name}:1-5"
    assert parse_long_columns(f"row={quote(name)},feature=f=g").names == [name, "f=g"]


def test_other_quotes_are_part_of_a_value():
    assert parse_levels('5" pipe<"6" pipe"').levels == ('5" pipe', '"6" pipe"')
    assert parse_map('"=1,x"y=0').codes == (('"', 1), ('x"y', 0))


def test_the_options_that_errors_propose_can_be_pasted(tmp_path):
    path, levels = tmp_path / "a.csv", ("<18", "{x}", "65+")
    pd.DataFrame({"a:b": levels, "b": [1, 0, 1]}).to_csv(path, index=False)
    for maps in (), (parse_levels("b:0<1"), parse_levels("low<high")):
        with pytest.raises(DataError) as refusal:
            read(path, *maps)
        proposed = re.search(r"levels=('.*?') \(check", str(refusal.value))
        assert proposed is not None
        own = parse_levels(ast.literal_eval(proposed[1]))
        assert ({*own.levels}, own.columns) == ({*levels}, "a:b")
        assert len(read(path, own, *maps[:1])[0]) == 3
