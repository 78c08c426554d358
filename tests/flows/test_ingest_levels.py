"""Ordered categories, from files to the dataset."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyreadstat
import pytest

from storage.dataset.dataset import open_dataset

TEXTS, GRADES = ("no", "perhaps", "yes"), (1, 2, 3, 7)
N_ROWS = 40


@pytest.fixture
def answers(tmp_path: Path) -> pd.DataFrame:
    """A table of two features with three levels, one of four integers, and a binary one."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "q1": rng.choice(TEXTS, N_ROWS),
            "q2": rng.choice(TEXTS, N_ROWS),
            "mood": rng.choice(GRADES, N_ROWS),
            "b": rng.integers(0, 2, N_ROWS),
        }
    )
    table.loc[3, "q1"] = None
    table.to_csv(tmp_path / "a.csv", index=False)
    return table


def read(path):
    """The levels, 9 where missing."""
    dataset = open_dataset(path)
    dataset.verify()
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    return np.where(observed, X, 9)


def encode(table):
    levels = {"q1": TEXTS, "q2": TEXTS, "mood": GRADES, "b": (0, 1)}
    codes = [
        table[name].map(dict(zip(own, range(9), strict=False))) for name, own in levels.items()
    ]
    return np.column_stack([code.fillna(9) for code in codes])


OPTIONS = ["--levels", "q*:no<perhaps<yes", "--ordinal", "mood"]


def test_a_table_of_mixed_features_and_rows_that_are_appended(plain_cli, answers, tmp_path):
    done = plain_cli("ingest", "a.csv", "a.csv", "--dataset", "d.zarr", *OPTIONS, "--json")
    assert done.code == 0, done.err
    assert done.json["n_features_with_levels"] == 3
    dataset = open_dataset(tmp_path / "d.zarr")
    assert dataset.feature_levels == {"q1": TEXTS, "q2": TEXTS, "mood": ("1", "2", "3", "7")}
    np.testing.assert_array_equal(read(tmp_path / "d.zarr"), np.tile(encode(answers), (2, 1)))
    # New rows have no 1 and no "no", but keep the levels of the dataset.
    (tmp_path / "b.csv").write_text("q1,q2,mood,b\nyes,PERHAPS,7,1\n")
    added = plain_cli("ingest", "b.csv", "--dataset", "d.zarr", "--append")
    assert added.code == 0, added.err
    assert read(tmp_path / "d.zarr")[-1].tolist() == [2, 1, 3, 1]
    (tmp_path / "c.csv").write_text("q1,q2,mood,b\nyes,no,1,1\nyes,no,5,1\n")
    error = plain_cli("ingest", "c.csv", "--dataset", "d.zarr", "--append").check_refused()
    assert "row 2 (data rows counted from 1), column 'mood': the value" in error
    assert "--overwrite" in error
    others = ["--levels", "q*:yes<perhaps<no"]
    words = ["ingest", "b.csv", "--dataset", "d.zarr", "--append", *others]
    assert "'q1' has the levels no<perhaps<yes in d.zarr" in plain_cli(*words).check_refused()


def test_the_error_has_the_option_to_paste(plain_cli, answers, tmp_path):
    answers[["q1", "q2"]].to_csv(tmp_path / "a.csv", index=False)
    error = plain_cli("ingest", "a.csv", "--dataset", "d.zarr").check_refused()
    assert "if the values are ordered, --levels 'no<perhaps<yes' (check the order)" in error
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", "--levels", "no<perhaps<yes")
    assert done.code == 0, done.err
    np.testing.assert_array_equal(read(tmp_path / "d.zarr"), encode(answers)[:, :2])


def test_levels_that_no_row_has_are_reported(plain_cli, answers, tmp_path):
    options = ["--levels", "q*:no<perhaps<yes<always", "--ordinal", "mood:0-7", "--json"]
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *options)
    levels = "'mood=4', 'mood=5', 'mood=6'"
    text = f"no row has these levels, but some rows have higher ones: {levels}"
    assert done.json["warnings"] == [text]


def test_ordered_categoricals_of_pandas_and_polars(plain_cli, answers, tmp_path):
    kind = pd.CategoricalDtype(TEXTS, ordered=True)
    table = answers.drop(columns="mood").astype({"q1": kind, "q2": kind})
    table.to_parquet(tmp_path / "a.parquet", row_group_size=7)
    enum = pl.Enum(TEXTS)
    pl.DataFrame(table.astype({"q1": object, "q2": object})).with_columns(
        pl.col("q1", "q2").cast(enum)
    ).write_parquet(tmp_path / "b.parquet")
    expected = encode(answers)[:, [0, 1, 3]]
    for name in ("a", "b"):
        done = plain_cli("ingest", f"{name}.parquet", "--dataset", f"{name}.zarr")
        assert done.code == 0, done.err
        np.testing.assert_array_equal(read(tmp_path / f"{name}.zarr"), expected)
        assert open_dataset(tmp_path / f"{name}.zarr").feature_levels == {"q1": TEXTS, "q2": TEXTS}
    added = plain_cli("ingest", "b.parquet", "--dataset", "a.zarr", "--append")
    assert added.code == 0, added.err
    np.testing.assert_array_equal(read(tmp_path / "a.zarr"), np.tile(expected, (2, 1)))


def test_long_tables_have_levels_too_and_take_new_values(plain_cli, answers, tmp_path):
    long = answers.assign(row=answers.index.map("r{}".format)).melt("row", ["q1", "q2", "mood"])
    long.to_csv(tmp_path / "long.csv", index=False)
    roles = ["--long", "row=row,feature=variable,value=value"]
    done = plain_cli("ingest", "long.csv", "--dataset", "d.zarr", *roles, *OPTIONS)
    assert done.code == 0, done.err
    expected = encode(answers)[:, [2, 0, 1]]  # features are sorted
    np.testing.assert_array_equal(read(tmp_path / "d.zarr"), expected)
    (tmp_path / "more.csv").write_text("row,variable,value\nr3,q1,yes\nr99,mood,7\nr99,q9,no\n")
    more = ["ingest", "more.csv", "--dataset", "d.zarr", "--append", "--merge-by", "row"]
    added = plain_cli(*more, "--new-features", "add")
    assert added.code == 0, added.err
    dataset, values = open_dataset(tmp_path / "d.zarr"), read(tmp_path / "d.zarr")
    assert dataset.feature_levels["q9"] == TEXTS
    assert values[3, :2].tolist() == [expected[3, 0], 2]
    assert values[-1].tolist() == [3, 9, 9, 0]
    (tmp_path / "new.csv").write_text("row,variable,value\nr98,mood,7\n")
    roles = ["--new-features", "add", "--ordinal", "m*"]
    words = ["ingest", "new.csv", "--dataset", "d.zarr", "--append", *roles]
    assert plain_cli(*words).code == 0
    (tmp_path / "new.csv").write_text("row,variable,value\nr97,mood2,7\n")
    assert (
        "feature 'mood2' is new, and its levels are not known" in plain_cli(*words).check_refused()
    )
    (tmp_path / "more.csv").write_text("row,variable,value\nr3,q1,no\n")
    error = plain_cli(*more).check_refused()
    assert "feature 'q1': the value is no, but yes in the dataset" in error
    assert plain_cli(*more, "--duplicates", "any").code == 0
    assert read(tmp_path / "d.zarr")[3, 1] == 2


def test_equal_rows_are_collapsed(plain_cli, answers, tmp_path):
    answers.iloc[[*range(5), 0, 0]].to_csv(tmp_path / "a.csv", index=False)
    options = [*OPTIONS[:2], "--ordinal", "mood:0-7"]
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *options, "--collapse")
    assert done.code == 0, done.err
    expected = encode(answers)[:5]
    expected[:, 2] = answers["mood"][:5]
    np.testing.assert_array_equal(read(tmp_path / "d.zarr"), expected)
    assert open_dataset(tmp_path / "d.zarr").column("frequency").tolist() == [3, 1, 1, 1, 1]


def test_constant_features_are_those_with_one_level(plain_cli, answers, tmp_path):
    answers.assign(q2="yes", b=1).to_csv(tmp_path / "a.csv", index=False)
    words = ["ingest", "a.csv", "--dataset", "d.zarr", *OPTIONS, "--drop-constant"]
    done = plain_cli(*words)
    assert done.code == 0, done.err
    assert open_dataset(tmp_path / "d.zarr").feature_names == ("q1", "mood")


def test_the_manifest_of_a_binary_dataset_does_not_mention_levels(plain_cli, answers, tmp_path):
    answers[["b"]].assign(c=0).to_csv(tmp_path / "b.csv", index=False)
    assert plain_cli("ingest", "b.csv", "--dataset", "d.zarr").code == 0
    manifest = open_dataset(tmp_path / "d.zarr").manifest
    assert not {"levels", "ordinal"} & manifest["ingest"].keys()
    assert "feature_levels" not in manifest
    assert plain_cli("ingest", "b.csv", "--dataset", "e.zarr", "--ordinal", "*").code == 0
    assert open_dataset(tmp_path / "e.zarr").feature_levels == {}


SEVENTEEN = "<".join(map(str, range(17)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--levels", "no<yes<NO"], "the levels 'no' and 'NO' cannot be told apart. Name"),
        (["--levels", "q*:no"], "there is one level, 'no'"),
        (["--levels", "no<<yes"], "a level has no name"),
        (["--levels", SEVENTEEN], "there are 17 levels, but at most 16 are possible"),
        (["--ordinal", "mood:0-16"], "0-16 is not a range of 2 to 16 integers"),
        (["--levels", "r*:no<yes"], "--levels, --ordinal or --nominal: there is no column 'r*'"),
        (["--ordinal", "moods"], "there is no column 'moods'. Did you mean 'mood'?"),
        (["--map", "q9:1=0,0=1"], "--map: there is no column 'q9'. Columns: q1, q2"),
        (["--levels", "no<yes", "--threshold", "1"], "--levels and --threshold cannot be combined"),
        (
            ["--ordinal", "*", "--genotypes", "recessive"],
            "--genotypes recessive and --ordinal cannot be",
        ),
        (
            ["--levels", "no<yes", "--yes", "a", "--no", "b"],
            "the values of all features have more than one meaning",
        ),
        (["--levels", "q*:no<yes"], "the value 'perhaps' is not 'no', 'yes' or missing"),
        (["--levels", "q*:no<yes"], "Use --levels 'q*:no<perhaps<yes' (check the order), or"),
        (["--levels", "no<perhaps<yes"], "Use --ordinal mood:"),
        (["--levels", "*:no<perhaps<yes", "--levels", "mood:1<2"], "Use --ordinal mood:1-"),
        (["--levels", "no<perhaps<yes", "--levels", "mood:1<90"], "Use --levels 'mood:1<2<"),
        (["--levels", "q*:no<perhaps<yes", "--ordinal", "*:0-1"], "Use --ordinal '*:0-"),
        (["--ordinal", "q*"], "is not a whole number from -100 to 149 or missing"),
        (["--ordinal", "q*"], "Use --levels 'q1:no<perhaps<yes' (check the order)"),
        (["--levels", "q*:no<perhaps<yes"], "or, if the values are ordered, --ordinal mood"),
        ([*OPTIONS, "--missing", "yes"], "--missing yes: a map reads this value as a level"),
    ],
)
def test_options_that_make_no_sense(plain_cli, answers, tmp_path, options, message):
    words = ["ingest", "a.csv", "--dataset", "d.zarr", *options]
    assert message in plain_cli(*words).check_refused()
    assert not (tmp_path / "d.zarr").exists()


def test_an_example_with_levels(plain_cli, tmp_path):
    done = plain_cli("ingest", "example:survey:rows=500,items=3", "--dataset", "d.zarr")
    assert done.code == 0, done.err
    levels = read(tmp_path / "d.zarr")
    assert {*levels.ravel().tolist()} == {0, 1, 2, 3, 4}
    assert (np.corrcoef(levels.T) > 0.15).all()


WORDS = ["None", "<18", "n/a", "unused"]
QUOTED = 'None<"<18"<n/a<unused'


def write_answers(path, categories=WORDS):
    """Write an ordered categorical with all words but the last one, and a binary column."""
    column = pd.Categorical(WORDS[:3], categories, ordered=True)
    pd.DataFrame({"a,b": column, "b": [0, 1, 0]}).to_parquet(path)
    lines = {"r": list("xyz"), "f": ["p", "q", "q"], "v": column}
    pd.DataFrame(lines).to_parquet(path.with_name(f"long-{path.name}"))


def test_files_with_opposite_orders_of_categories(plain_cli, tmp_path):
    write_answers(tmp_path / "a.parquet")
    write_answers(tmp_path / "b.parquet", WORDS[::-1])
    write_answers(tmp_path / "c.parquet", WORDS[:3])
    option = f"""--levels '"a,b":{QUOTED}'"""
    message = (
        "b.parquet: column 'a,b' has the categories unused<n/a<\"<18\"<None, but earlier rows have "
        f"the levels {QUOTED}. To read all rows with these, use {option}."
    )
    error = plain_cli("ingest", "a.parquet", "b.parquet", "--dataset", "d.zarr").check_refused()
    assert message in error
    words = ["ingest", "a.parquet", "c.parquet", "--dataset", "d.zarr"]
    assert plain_cli(*words).code == 0
    words = ["ingest", "b.parquet", "--dataset", "d.zarr", "--append"]
    assert message in plain_cli(*words).check_refused()
    assert plain_cli(*words, *shlex.split(option)).code == 0
    assert read(tmp_path / "d.zarr")[:, 0].tolist() == [0, 1, 2] * 3
    assert [*open_dataset(tmp_path / "d.zarr").feature_levels["a,b"]] == WORDS


def test_long_tables_with_declared_categories(plain_cli, tmp_path):
    write_answers(tmp_path / "a.parquet")
    write_answers(tmp_path / "b.parquet", WORDS[::-1])
    long = ["--long", "row=r,feature=f,value=v"]
    done = plain_cli("ingest", "long-a.parquet", "--dataset", "d.zarr", *long)
    assert done.code == 0, done.err
    assert read(tmp_path / "d.zarr").tolist() == [[0, 9], [9, 1], [9, 2]]
    words = ["ingest", "long-b.parquet", "--dataset", "d.zarr", "--append", "--merge-by", "r"]
    error = plain_cli(*words).check_refused()
    assert "column 'v' has the categories unused<n/a" in error
    assert f"use --levels '{QUOTED}'" in error
    table = pd.read_parquet(tmp_path / "long-a.parquet").assign(r=list("uvw"), f=list("pnn"))
    table.to_parquet(tmp_path / "long-c.parquet")
    words = ["ingest", "long-c.parquet", "--dataset", "d.zarr", "--append", "--new-features", "add"]
    done = plain_cli(*words)
    assert done.code == 0, done.err
    assert read(tmp_path / "d.zarr")[3:].tolist() == [[0, 9, 9], [9, 9, 1], [9, 9, 2]]
    assert {*open_dataset(tmp_path / "d.zarr").feature_levels.values()} == {tuple(WORDS)}


def test_codes_for_missing_among_the_levels(plain_cli, tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\n1,0,1\n-99,9,2\n5,1,3\n3,,4\n")
    words = ["ingest", "a.csv", "--dataset", "d.zarr", "--ordinal", "*", "--overwrite"]
    text = "levels that are far from the others: 'a=-99', 'b=9'; if they mean missing, use "
    options = "--missing -99 --missing 9"
    assert text + options in plain_cli(*words, "--json").json["warnings"]
    done = plain_cli(*words, *options.split(), "--json")
    assert (done.code, done.json["warnings"]) == (0, [])
    assert open_dataset(tmp_path / "d.zarr").feature_levels == {
        "a": ("1", "3", "5"),
        "c": ("1", "2", "3", "4"),
    }
    assert read(tmp_path / "d.zarr").tolist() == [[0, 0, 0], [9, 9, 1], [2, 1, 2], [1, 9, 3]]
    added = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", "--append")
    assert added.code == 0, added.err
    assert read(tmp_path / "d.zarr")[5].tolist() == [9, 9, 1]


def test_columns_with_labels_are_mapped_to_bits(plain_cli, tmp_path):
    for name, labels in (("a", {1: "yes", 2: "no"}), ("b", {1: "no", 2: "yes"})):
        table = pd.DataFrame({"q": [1, 2], "x": [0, 1]})
        pyreadstat.write_sav(
            table, str(tmp_path / f"{name}.sav"), variable_value_labels={"q": labels}
        )
    for option, answers in (("q:yes=1,no=0", [1, 0, 0, 1]), ("q:1=1,2=0", [1, 0, 1, 0])):
        options = ["--dataset", "d.zarr", "--overwrite", "--map", option]
        done = plain_cli("ingest", "a.sav", "b.sav", *options)
        assert done.code == 0, done.err
        assert read(tmp_path / "d.zarr")[:, 0].tolist() == answers


def test_labels_that_contradict_the_bits_are_warned_about(plain_cli, tmp_path):
    for name, words in (("a", ("no", "yes")), ("b", ("Yes", "No"))):
        table = pd.DataFrame({"q": [0, 1], "x": [0, 1]})
        labels = {"q": dict(enumerate(words))}
        pyreadstat.write_sav(table, str(tmp_path / f"{name}.sav"), variable_value_labels=labels)
    files = ("ingest", "a.sav", "b.sav", "--dataset", "d.zarr", "--overwrite")
    done = plain_cli(*files)
    assert done.code == 0, done.err
    shown = f"{done.out}{done.err}"
    assert "a.sav: column" not in shown
    assert "b.sav: column 'q' was read by its codes, of which 0 has the label 'Yes'" in shown
    assert "--map q:Yes=1,No=0" in shown
    done = plain_cli(*files, "--map", "q:Yes=1,No=0")
    assert "by its codes" not in f"{done.out}{done.err}"
    assert read(tmp_path / "d.zarr")[:, 0].tolist() == [0, 1, 1, 0]


def test_levels_with_fractions_are_found(plain_cli, tmp_path):
    rng = np.random.default_rng(0)
    scores = {
        "third": rng.integers(0, 4, N_ROWS) / 3,
        "quarter": rng.choice([0, 0.25, 1], N_ROWS),
        "shares": rng.random(N_ROWS),
        "binary": rng.integers(0, 2, N_ROWS).astype(float),
        "none": rng.integers(3, 6, N_ROWS),
    }
    frame = pd.DataFrame({**scores, "plain": rng.integers(1, 4, N_ROWS)})
    frame.loc[4, "third"] = np.nan
    frame.to_csv("a.csv", index=False)
    frame.astype({"third": np.float32}).to_parquet("a.parquet")
    frame.rename_axis("row").reset_index().melt("row").dropna().to_csv("long.csv", index=False)
    options = ("--ordinal", "*:auto", "--ordinal", "plain:0-4")
    for name in ("a.csv", "a.parquet", "long.csv"):
        long = ("--long", "row=row,feature=variable,value=value") * (name == "long.csv")
        done = plain_cli("ingest", name, "--dataset", f"{name}.zarr", *options, *long)
        assert done.code == 0, done.err
        dataset = open_dataset(tmp_path / f"{name}.zarr")
        assert dict(dataset.feature_levels) == {
            "third": ("0", "0.33333334", "0.6666667", "1"),
            "quarter": ("0", "0.25", "1"),
            "shares": (),
            "none": ("3", "4", "5"),
            "plain": ("0", "1", "2", "3", "4"),
        }
        levels = read(tmp_path / f"{name}.zarr")
        place = dataset.feature_names.index("third")
        expected = np.round(frame["third"] * 3).fillna(9).tolist()
        if long:  # the first line of row 4 comes last
            expected.append(expected.pop(4))
        assert levels[:, place].tolist() == expected
    done = plain_cli("ingest", "a.csv", "--dataset", "b.zarr", *options)
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "quarter 0 < 0.25 < 1" in lines
    assert "shares continuous, because of more than 16 values" in lines
    assert not any(line.startswith("plain") for line in lines)
    # Rows that are appended have the same levels.
    again = plain_cli("ingest", "a.csv", "--dataset", "b.zarr", "--append", "--json")
    assert again.json["n_rows"] == 2 * N_ROWS
    frame["quarter"] = 0.5
    frame.to_csv("c.csv", index=False)
    refused = plain_cli("ingest", "c.csv", "--dataset", "b.zarr", "--append")
    assert "column 'quarter': the value '0.5' is not '0', '0.25', '1'" in refused.check_refused()


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([2, 2], (), "--ordinal a:auto: feature 'a' has no other value than 2. Leave it out"),
        (["often", "no"], (), "column 'a': the value 'often' is not a number. Use --missing"),
        ([*range(20)], ("--collapse",), "feature 'a' has more than 16 values, so it is continuous"),
        (
            [0.5, 1],
            ("--continuous", "a"),
            "--levels, --ordinal or --nominal and --continuous name a twice",
        ),
    ],
)
def test_levels_that_cannot_be_found_are_refused(plain_cli, values, options, message):
    pd.DataFrame({"a": values, "b": np.arange(len(values)) % 2}).to_csv("a.csv", index=False)
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", "--ordinal", "a:auto", *options)
    assert message in done.check_refused()
