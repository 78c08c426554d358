"""Outcomes of classes: the command, Python, weights and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from tests.support.data import write_arrays

N_ROWS = 1500
P = np.array([[0.8] * 8, [0.75] * 4 + [0.2] * 4])
PARTIES = np.array(["green", "red", ""], object)


def draw_rows() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    classes = rng.choice(2, N_ROWS, p=[0.6, 0.4])
    X = (rng.random((N_ROWS, 8)) < P[classes]).astype(np.uint8)
    shares = np.array([[0.7, 0.25, 0.05], [0.2, 0.7, 0.1]]).cumsum(axis=1)
    party = (rng.random((N_ROWS, 1)) > shares[classes]).sum(axis=1)
    age = np.round(40 + 10 * classes + 8 * rng.standard_normal(N_ROWS))
    columns = {
        "age": np.where(np.arange(N_ROWS) % 50, age, np.nan),
        "years": np.array([*map(str, age)], object),
        "texts": np.array([str(a) if k % 50 else "NA" for k, a in enumerate(age)], object),
        "party": PARTIES[party],
        "site": np.where(np.arange(N_ROWS) % 2, "a", "b").astype(object),
        "times": rng.integers(1, 4, N_ROWS),
        "name": np.array([f"p{k}" for k in range(N_ROWS)], object),
        "one": np.ones(N_ROWS),
    }
    return X, columns


X, COLUMNS = draw_rows()
FIT = ("--model", "bernoulli-mixture", "--components", 2, "--json")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outcomes") / "d.zarr"
    return write_arrays(path, X, columns=COLUMNS, words_per_chunk=4).path


@pytest.fixture
def evaluated(cli: Any, dataset: Path) -> Any:
    runs = dataset.parent / "runs"
    if not runs.exists():
        assert cli("fit", "--dataset", dataset, *FIT, "--output", runs).code == 0
    line = ("evaluate", "--dataset", dataset, "--artifact", runs, "--no-baselines")
    return lambda *words: cli(*line, *words)


@pytest.mark.parametrize("correction", ["bch", "ml", "none"])
def test_columns_are_compared_between_classes(evaluated: Any, correction: str) -> None:
    words = ("--outcomes", "age,party,years,texts", "--correction", correction)
    done = evaluated(*words, "--json")
    assert done.code == 0, done.err
    (found,) = done.json["outcomes"]
    age, party, years, texts = found["outcomes"]
    assert years["kind"] == texts["kind"] == "mean"  # texts of numbers, as a CSV file has them
    np.testing.assert_allclose(years["estimates"], age["estimates"], atol=0.5)
    assert {**texts, "column": "age"} == age
    assert (age["kind"], age["rows_without"], age["df"]) == ("mean", N_ROWS // 50, 1)
    assert (party["levels"], party["df"]) == (["green", "red"], 1)
    assert party["rows_without"] == np.count_nonzero(COLUMNS["party"] == "")
    distance = np.abs(np.subtract(age["estimates"], [[40], [50]]) / age["errors"]).max()
    assert distance > 3.5 if correction == "none" else distance < 3
    assert age["p"] < 1e-4
    np.testing.assert_allclose(np.sum(found["classification"], axis=1), 1)


def test_the_tables_show_classes(evaluated: Any) -> None:
    text = evaluated("--outcomes", "age, party").out
    assert "age (mean) by class" in text
    assert "party (share of rows) by class" in text
    assert "Wald test that all classes are equal: χ² = " in text
    assert "rows without a value, left out: 30" in text
    assert "bch: corrected for wrong assignments" in text


def test_python_does_the_same_with_the_weights_and_groups_of_the_fit(dataset: Path) -> None:
    """Frequencies are repeated rows, on disk and in memory."""
    again = np.repeat(np.arange(N_ROWS), COLUMNS["times"])
    keep = {name: COLUMNS[name][again] for name in ("age", "party", "site")}
    repeated = lb.from_numpy(X[again], keep=keep)
    common: dict[str, Any] = {"components": 2, "group": "site"}
    outcomes = []
    for data, weight in ((lb.open_dataset(dataset), "times"), (repeated, None)):
        fitted = lb.fit(data, "bernoulli-mixture", weight=weight, **common)
        outcomes.append(lb.evaluate(fitted, data, outcomes=["age", "party"])["outcomes"])
    for found, expected in zip(*outcomes, strict=True):
        for name in ("class_sizes", "estimates", "errors", "chi2"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_classes_of_a_survey_have_larger_errors(dataset: Path) -> None:
    data = lb.open_dataset(dataset)
    found = []
    for weights in ("frequency", "sampling"):
        fitted = lb.fit(data, "bernoulli-mixture", components=2, weight="times", weights=weights)
        found.append(lb.evaluate(fitted, data, outcomes=["age"])["outcomes"][0])
    np.testing.assert_allclose(found[0]["estimates"], found[1]["estimates"], rtol=1e-3)
    assert (np.array(found[1]["errors"]) > 1.2 * np.array(found[0]["errors"])).all()


REFUSALS = {
    "no column": (("--outcomes", "height"), "no per-row column 'height'"),
    "empty": (("--outcomes", ","), "--outcomes names no column."),
    "correction": (("--correction", "ml"), "--correction needs --outcomes or --covariates."),
    "folds": (("--outcomes", "age", "--folds", "2"), "--outcomes cannot be combined with --folds"),
    "texts": (("--outcomes", "name"), "column 'name': There are 1,500 different texts; at most 50"),
    "constant": (("--outcomes", "one"), "column 'one': All rows have the same value."),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_compared_is_refused(evaluated: Any, case: str) -> None:
    words, message = REFUSALS[case]
    refused = evaluated(*words)
    assert refused.code == 2
    assert message in " ".join(refused.err.split())


def test_covariates_explain_classes(cli: Any, dataset: Path) -> None:
    """An outcome must not be a covariate."""
    words = ("--covariates", "years,site=b", "--output", "c")
    assert (fit := cli("fit", "--dataset", dataset, *FIT, *words)).code == 0, fit.err
    done = cli("export", "--artifact", "c", "--what", "coefficients", "--output", "c.csv")
    assert done.code == 0, done.err
    rows = [line.split(",") for line in Path("c.csv").read_text().splitlines()]
    assert [row[:2] for row in rows[1:]] == [
        ['"(intercept)"', "2"],
        ['"years"', "2"],
        ['"site=a"', "2"],
    ]
    assert 0.1 < float(rows[2][2]) < 0.25  # (50 − 40) / 8²
    assert float(rows[2][4]) > 10
    assert abs(float(rows[3][4])) < 3
    report = cli("report", "--artifact", "c", "--output", "r.html")
    assert report.code == 0, report.err
    assert "Log-odds compare each class with the first." in Path("r.html").read_text()
    done = cli("evaluate", "--dataset", dataset, "--artifact", "c", "--outcomes", "years")
    assert done.code == 2
    assert "--outcomes: years is a covariate of the fit." in " ".join(done.err.split())
    done = cli("fit", "--dataset", dataset, *FIT, "--covariates", "age", "--group", "site")
    assert done.code == 2


def test_a_model_without_classes_is_refused(cli: Any, dataset: Path) -> None:
    cli("fit", "--dataset", dataset, "--components", 1, "--output", "p")
    done = cli("evaluate", "--dataset", dataset, "--artifact", "p", "--outcomes", "age")
    assert done.code == 2
    assert "clipped-pca does not assign rows to classes" in " ".join(done.err.split())
