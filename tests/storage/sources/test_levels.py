"""Ordered levels in sources: each format gives the same levels, fast or slow."""

import bed_reader
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pyreadstat
import pytest
import scipy.sparse

from storage.errors import DataError
from storage.sources import (
    ReadOptions,
    base,
    open_source,
    parse_levels,
    parse_map,
    parse_ordinal,
)

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


def test_dictionaries_have_levels_if_they_are_ordered(tmp_path):
    indices = pa.array([0, 2, None, 1], pa.int8())
    columns = {
        "ordered": pa.DictionaryArray.from_arrays(indices, pa.array(SCALE), ordered=True),
        "bits": pa.DictionaryArray.from_arrays(indices, pa.array(["1", "0", "NA"]), ordered=True),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    expected = [[0, 1], [2, 99], [99, 99], [1, 0]]
    assert read(tmp_path / "a.parquet") == (expected, {"ordered": SCALE})
    own = read(tmp_path / "a.parquet", parse_levels("ordered:often<rarely<never"))
    assert [row[0] for row in own[0]] == [2, 0, 99, 1]
    columns["ordered"] = pa.DictionaryArray.from_arrays(indices, pa.array(SCALE))
    pa.parquet.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"column 'ordered': the value 'never' is not 0, 1"):
        read(tmp_path / "b.parquet")


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
