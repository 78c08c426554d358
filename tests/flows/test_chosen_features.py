"""Fits to some features of a dataset, of which some are reversed.

The reference is always a dataset whose table has only these columns, reversed by hand.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from flows.fitting.job import prepare_fit
from flows.fitting.options import FitOptions
from storage.artifacts.artifacts import load_artifact

N_ROWS = 300
LEVELS = ("no", "perhaps", "yes")
LEVEL_OPTION = "q*:no<perhaps<yes"
CHOICE = ("--features", "q*", "--features", "age", "--features", "b1", "--drop", "q2")
REVERSE = ("--reverse", "q1,age", "--reverse", "b1")
NAMES = ["q0", "q1 (reversed)", "b1 (reversed)", "age (reversed)"]


@pytest.fixture
def tables(plain_cli, tmp_path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All answers, and those of a fit in its order, as tables and as `all.zarr` and `own.zarr`."""
    rng = np.random.default_rng(5)
    y = rng.standard_normal((N_ROWS, 1)) + rng.standard_normal((N_ROWS, 7))
    y[:, [1, 4, 5]] *= -1
    codes = np.stack([np.searchsorted([-0.7, 0.6], column) for column in y.T], axis=1)
    X = pd.DataFrame({"b0": y[:, 0] > 0, "q0": codes[:, 2], "q1": codes[:, 1], "b1": y[:, 4] > 0.3})
    X = X.astype(float)
    X["age"], X["q2"], X["None"] = np.round(y[:, 5], 3), codes[:, 3], (y[:, 6] > 0).astype(float)
    for place, name in enumerate(X):
        X.loc[rng.random(N_ROWS) < 0.05 * (place % 3), name] = np.nan
    X["form"] = np.where(np.arange(N_ROWS) % 3, "A", "B")
    X["w"] = np.arange(N_ROWS) % 4
    own = pd.DataFrame({"q0": X["q0"], "q1 (reversed)": 2 - X["q1"], "b1 (reversed)": 1 - X["b1"]})
    own["age (reversed)"] = -X["age"]
    own[["form", "w"]] = X[["form", "w"]]
    for table, name in ((X, "all"), (own, "own")):
        texts = table.copy()
        for column in [column for column in table if column.startswith("q")]:
            texts[column] = table[column].map(dict(enumerate(LEVELS)))
        texts.to_csv(tmp_path / f"{name}.csv", index=False)
        age = next(column for column in table if column.startswith("age"))
        options = ("--levels", LEVEL_OPTION, "--continuous", age, "--segment-by", "form")
        done = plain_cli(
            "ingest", f"{name}.csv", "--dataset", f"{name}.zarr", *options, "--keep", "w"
        )
        assert done.code == 0, done.err
    return X, own


def fit(cli, dataset: str, output: str, *options: str):
    words = ("fit", "--dataset", f"{dataset}.zarr", "--executor", "serial", "--no-report")
    return cli(*words, "--output", output, *options)


@pytest.mark.parametrize(
    "options", [(), ("--weight", "w"), ("--cut", "q*>=perhaps", "--cut", "age*>=0.5")]
)
def test_a_choice_equals_a_dataset_without_the_others(plain_cli, tables, options, tmp_path) -> None:
    for name, choice in (("all", (*CHOICE, *REVERSE)), ("own", ())):
        done = fit(plain_cli, name, name, *choice, *options)
        assert done.code == 0, done.err
    chosen, own = (load_artifact(tmp_path / name) for name in ("all", "own"))
    assert chosen.manifest["feature_names"] == own.manifest["feature_names"]
    assert chosen.manifest["reversed"] == ["q1", "b1", "age"]
    for name in own.manifest["arrays"]:
        np.testing.assert_array_equal(chosen[name], own[name])
    if options:
        return
    assert chosen.manifest["feature_names"] == NAMES
    results = []
    for name in ("all", "own"):  # of the reversed values and of the original ones
        words = ("--artifact", "all", "--dataset", f"{name}.zarr", "--output", f"{name}.out.csv")
        done = plain_cli("transform", *words, "--reconstruct", "expected-levels")
        assert done.code == 0, done.err
        results.append((tmp_path / f"{name}.out.csv").read_bytes())
        done = plain_cli(
            "evaluate", "--artifact", "all", "--dataset", f"{name}.zarr", "--split", "all", "--json"
        )
        assert done.code == 0, done.err
        measured = done.json["models"][0]
        results.append([measured[key] for key in ("wrong_bits", "levels", "pairs", "marginals")])
    assert results[:2] == results[2:]


def test_a_fit_to_other_features_is_another_fit(plain_cli, tables) -> None:
    model = ("--model", "bernoulli-mixture", "--components", "2", "--set", "starts=1")
    choice = ("--features", "b*")
    done = fit(plain_cli, "all", "runs", *model, *choice)
    assert done.code == 0, done.err
    for other in (("--features", "b1"), (*choice, "--reverse", "b1"), ()):
        done = fit(plain_cli, "all", "runs", *model, *other, "--warm-start")
        assert (done.code, "Fit once without --warm-start." in done.err) == (2, True)
    plans = [
        prepare_fit(FitOptions("all.zarr", output="runs", **own))
        for own in ({}, {"features": ("b*",)}, {"features": ("b*",), "reverse": ("b1",)})
    ]
    assert len({plan.run_folder.work_folder for plan in plans}) == 3


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("--drop ag", "all.zarr: --drop: there is no feature 'ag'. Did you mean 'age'?"),
        ("--features x*", "there is no feature 'x*'. Features: b0, q0, q1, b1, age, …"),
        ("--features q* --reverse age", "there is no feature 'age'. Features: q0, q1, q2"),
        ("--features q* --drop *", "--features and --drop leave no feature."),
        ("--cut q1>=yes --reverse q1", "named 'q1'. Did you mean 'q1 (reversed)'?"),
    ],
)
def test_wrong_names_are_refused(plain_cli, tables, choice, message, tmp_path: Path) -> None:
    done = fit(plain_cli, "all", "runs", *choice.split())
    assert (done.code, message in done.err) == (2, True), done.err
    assert not (tmp_path / "runs").exists()


def test_a_second_feature_of_a_name_is_refused(plain_cli, tables) -> None:
    table = pd.read_csv("own.csv")[["q0", "q1 (reversed)"]].assign(q1="no")
    table.to_csv("both.csv", index=False)
    done = plain_cli("ingest", "both.csv", "--dataset", "both.zarr", "--levels", LEVEL_OPTION)
    assert done.code == 0, done.err
    done = fit(plain_cli, "both", "runs", "--reverse", "q1")
    message = (
        "--reverse would make a second feature 'q1 (reversed)'. Leave out one of them by --drop"
    )
    assert (done.code, message in done.err) == (2, True), done.err


def test_python_does_the_same(plain_cli, tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    X, own = tables
    levels = {name: range(3) for name in ("q0", "q1", "q2", "q1 (reversed)")}

    def convert(table: pd.DataFrame):
        columns = table.drop(columns=["form", "w"])
        present = {name: own for name, own in levels.items() if name in columns}
        continuous = [name for name in columns if name.startswith("age")]
        return lb.from_dataframe(columns, levels=present, continuous=continuous)

    features = {"features": ["q*", "age", "b1"], "drop": "q2", "reverse": ["q1", "age", "b1"]}
    fitted = lb.fit(convert(X), "clipped-pca", components=1, **features)
    expected = lb.fit(convert(own), "clipped-pca", components=1)
    assert [*fitted.feature_names] == NAMES
    np.testing.assert_array_equal(fitted.params.correlation, expected.params.correlation)
    codes = lb.transform(expected, convert(own))["mean"]
    frame = X.drop(columns=["q2"])  # with columns that are no feature of the fit
    for rows in (convert(X), convert(own), frame, frame[["q0", "q1", "b1", "age"]].to_numpy()):
        np.testing.assert_array_equal(lb.transform(fitted, rows)["mean"], codes)
    # Columns that are no features may hold anything.
    small = X[["b0", "b1", "None"]].assign(form=X["form"], age=X["age"])
    names = {"features": ["b*", "None"], "drop": ["b0"], "reverse": "b1"}
    assert [*lb.fit(small, **names).feature_names] == ["b1 (reversed)", "None"]
    scorer = lb.Scorer(fitted)
    row = frame[["age", "q1", "b1"]].iloc[7].to_dict()
    highest = {"age": 0, "q1": 2, "b1": 1}
    reversed_row = {f"{name} (reversed)": highest[name] - value for name, value in row.items()}
    assert scorer(row) == pytest.approx(lb.Scorer(expected)(reversed_row), rel=1e-12)
    scores = scorer(frame[["age", "q1", "b1", "q0"]])["mean"]
    np.testing.assert_allclose(scores, codes, rtol=1e-12)
    with pytest.raises(ValueError, match=r"features: there is no feature 'q8'\. Features: b0"):
        lb.fit(convert(X), features=["q8"])


def test_next_items_read_the_answers_as_they_are() -> None:
    rng = np.random.default_rng(2)
    y = rng.standard_normal((400, 1)) + rng.standard_normal((400, 4))
    names = [f"x{k}" for k in range(4)]
    X = pd.DataFrame((y > 0).astype(int), columns=names).assign(x3=(y[:, 3] < 0).astype(int))
    fitted = lb.fit(X, "latent-trait", components=1)
    (warning,) = [text for text in fitted.warnings if "other way" in text]
    assert "'x3'. In a questionnaire, fit with reverse=\"x3\"; in a test, " in warning
    with pytest.warns(UserWarning, match=r"'x3'\. In a questionnaire, fit with reverse=.x3.;"):
        lb.LatentTrait(n_components=1).fit(X)
    again = lb.fit(X.assign(x3=1 - X["x3"]), "latent-trait", components=1, reverse="x3")
    (warning,) = [text for text in again.warnings if "other way" in text]
    advice = "In a questionnaire, leave x3 out of the reversed items; in a test, check the key"
    assert f"'x3 (reversed)'. {advice}" in warning
    pattern = pd.DataFrame({"item": names, "trait": 1})
    reversed_fit = lb.fit(X, "latent-trait", reverse="x3", pattern=pattern)
    assert not any("other way" in text for text in reversed_fit.warnings)
    by_hand = lb.Scorer(lb.fit(X.assign(x3=1 - X["x3"]), "latent-trait", components=1))
    chosen = lb.Scorer(reversed_fit).next_items({"x3": 1, "x0": 1})
    expected = by_hand.next_items({"x3": 0, "x0": 1})
    assert chosen.items == expected.items
    assert chosen.mean == pytest.approx(expected.mean, abs=1e-6)
