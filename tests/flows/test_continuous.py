"""Commands on a dataset with continuous features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from storage.artifacts.artifacts import load_artifact

N_ROWS = 400
LEVELS = ("no", "perhaps", "yes")


@pytest.fixture
def people(plain_cli, tmp_path: Path) -> pd.DataFrame:
    """Ages, incomes, answers and habits that share one cause, as a table and as `d.zarr`."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((N_ROWS, 1)) + rng.standard_normal((N_ROWS, 6))
    table = pd.DataFrame(
        {
            "q0": np.array(LEVELS)[np.searchsorted([-0.7, 0.7], y[:, 0])],
            "age": np.round(40 + 10 * y[:, 1], 1),
            "b0": (y[:, 2] > 0).astype(int),
            "income": np.exp(8 + y[:, 3]),
            "q1": np.array(LEVELS)[np.searchsorted([-0.2, 1.0], y[:, 4])],
            "b1": (y[:, 5] > 0.4).astype(int),
        }
    )
    table.loc[3, "age"] = None
    table.to_csv(tmp_path / "a.csv", index=False)
    options = ["--continuous", "age,income", "--levels", "q*:no<perhaps<yes"]
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", *options)
    assert done.code == 0, done.err
    return table


def fit(plain_cli, *options: str):
    words = ["fit", "--dataset", "d.zarr", "--model", "clipped-pca", *options]
    done = plain_cli(*words, "--output", "a", "--executor", "serial", "--json")
    assert done.code == 0, done.err
    return done.json


def test_a_fit_its_codes_and_its_tables(plain_cli, people: pd.DataFrame, tmp_path: Path) -> None:
    summary = fit(plain_cli)
    assert summary["n_components"] == 1
    stored = load_artifact(tmp_path / "a")
    levels = {"q0": LEVELS, "q1": LEVELS}
    data = lb.from_dataframe(people, continuous=["age", "income"], levels=levels)
    fitted = lb.fit(data, "clipped-pca")
    for name in ("correlation", "loadings", "means", "scales", "thresholds"):
        np.testing.assert_array_equal(stored[name], getattr(fitted.params, name))
    words = ["--artifact", "a", "--executor", "serial"]
    done = plain_cli("transform", "--dataset", "d.zarr", *words, "--output", "c.csv")
    assert done.code == 0, done.err
    codes = lb.transform(fitted, data)["mean"][:, 0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "c.csv")["mean_1"], codes, atol=1e-6)
    assert np.corrcoef(codes, people["income"])[0, 1] > 0.4
    done = plain_cli("export", "--artifact", "a", "--what", "items", "--output", "i.csv")
    assert done.code == 0, done.err
    items = pd.read_csv(tmp_path / "i.csv").set_index("feature")
    assert items.loc["age", "means"] == pytest.approx(people["age"].mean(), rel=1e-6)
    assert items.loc["age", "scales"] == pytest.approx(people["age"].std(ddof=0), rel=1e-6)
    assert items.loc["q0", "thresholds_1"] < items.loc["q0", "thresholds_2"]


def test_new_rows_are_compared_with_the_last_fit(plain_cli, people, tmp_path: Path) -> None:
    fit(plain_cli, "--components", "1", "--no-report")
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", "--append")
    assert done.code == 0, done.err
    drift = fit(plain_cli, "--components", "1")["drift"]
    assert drift["parameters"]["similarity"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["evaluate", "--dataset", "d.zarr"], "evaluate does not compare such values"),
        (["sample", "--rows", "9", "--output", "s.zarr"], "rows are drawn without such values"),
        (
            ["transform", "--dataset", "d.zarr", "--reconstruct", "levels", "--output", "c.zarr"],
            "such values are not reconstructed",
        ),
    ],
)
def test_what_is_not_supported_is_refused(plain_cli, people, words, reason: str) -> None:
    fit(plain_cli, "--components", "1", "--no-report", "--set", "errors=none")
    error = plain_cli(*words, "--artifact", "a").check_refused()
    assert f"'age' and 1 more are continuous, but {reason}. Fit without" in error
    assert "such as by --cut 'age>=VALUE'" in error


def test_functions_refuse_what_is_not_supported(people) -> None:
    levels = {"q0": LEVELS, "q1": LEVELS}
    data = lb.from_dataframe(people, continuous=["age", "income"], levels=levels)
    fitted = lb.fit(data, "clipped-pca", components=1, errors="none")
    with pytest.raises(ValueError, match="evaluate does not compare such values"):
        lb.evaluate(fitted, data)
    with pytest.raises(ValueError, match="such values are not reconstructed"):
        lb.transform(fitted, data, reconstruct="probabilities")
    with pytest.raises(ValueError, match="a Scorer does not read such values"):
        lb.Scorer(fitted)


def test_measurements_that_cannot_be_used_are_named(plain_cli, people, tmp_path: Path) -> None:
    people.assign(age=7.0).to_csv(tmp_path / "b.csv", index=False)
    options = ["--continuous", "age,income", "--levels", "q*:no<perhaps<yes"]
    assert plain_cli("ingest", "b.csv", "--dataset", "b.zarr", *options).code == 0
    error = plain_cli("fit", "--dataset", "b.zarr", "--model", "clipped-pca").check_refused()
    assert "These features are constant: 'age'. Leave them out." in error
