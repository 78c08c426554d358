"""Commands on a dataset with continuous features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from flows.evaluating import stages
from pipeline.params import get_array
from storage.artifacts.artifacts import load_artifact
from storage.codes.codes import open_codes
from storage.dataset.dataset import open_dataset

N_ROWS = 400
LEVELS = ("no", "perhaps", "yes")
LEVEL_OPTION = "q*:no<perhaps<yes"
ANSWERS = {"q0": LEVELS, "q1": LEVELS}


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
    options = ["--continuous", "age,income", "--levels", LEVEL_OPTION]
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
    data = lb.from_dataframe(people, continuous=["age", "income"], levels=ANSWERS)
    fitted = lb.fit(data, "clipped-pca")
    for name in ("correlation", "loadings", "means", "scales", "thresholds"):
        np.testing.assert_array_equal(stored[name], get_array(fitted.params, name))
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


def test_a_measurement_without_values_is_named(plain_cli, people: pd.DataFrame) -> None:
    """Rows without any value of a measurement can be appended, but not fitted alone."""
    people.iloc[:40].assign(age=None).to_csv("b.csv", index=False)
    options = ["--continuous", "age,income", "--levels", LEVEL_OPTION]
    assert plain_cli("ingest", "b.csv", "--dataset", "b.zarr", *options).code == 0
    words = ["fit", "--components", "1", "--no-report", "--output", "b", "--dataset"]
    done = plain_cli(*words, "b.zarr")
    assert done.code == 2
    assert "error: These features have no observed value: 'age'. Leave them out by" in done.err
    assert plain_cli("ingest", "b.csv", "--dataset", "d.zarr", "--append").code == 0
    done = plain_cli(*words, "d.zarr")
    assert done.code == 0, done.err


@pytest.mark.matrix
def test_new_rows_are_compared_with_the_last_fit(plain_cli, people, tmp_path: Path) -> None:
    fit(plain_cli, "--components", "1", "--no-report")
    done = plain_cli("ingest", "a.csv", "--dataset", "d.zarr", "--append")
    assert done.code == 0, done.err
    summary = fit(plain_cli, "--components", "1")
    drift = summary["drift"]
    assert drift["parameters"]["similarity"] == pytest.approx(1, abs=1e-6)
    assert drift["correlations"]["left_out"] == ["age", "income"]
    report = (Path(summary["artifact"]) / "report.html").read_text()
    assert "without the continuous features age, income" in report


def test_neighbours_leave_out_measurements_and_say_so(plain_cli, people, tmp_path: Path) -> None:
    people.drop(columns=["age", "income"]).to_csv(tmp_path / "b.csv", index=False)
    assert plain_cli("ingest", "b.csv", "--dataset", "b.zarr", "--levels", LEVEL_OPTION).code == 0
    found = {}
    for name in ("b", "d"):
        done = plain_cli("neighbours", "--dataset", f"{name}.zarr", "--output", f"n{name}.zarr")
        assert done.code == 0, done.err
        assert ("distances leave out continuous features: age, income" in done.out) == (name == "d")
        found[name] = open_codes(tmp_path / f"n{name}.zarr")["indices"]
    np.testing.assert_array_equal(found["b"], found["d"])
    people[["age", "income"]].to_csv(tmp_path / "c.csv", index=False)
    assert plain_cli("ingest", "c.csv", "--dataset", "c.zarr", "--continuous", "*").code == 0
    error = plain_cli("neighbours", "--dataset", "c.zarr", "--output", "n.zarr").check_refused()
    assert "c.zarr: all features are continuous" in error
    words = ["--dataset", "d.zarr", "--queries", "e.zarr", "--output", "n.zarr"]
    cut = ["--levels", LEVEL_OPTION, "--map", "age:50.4=1,0=0"]
    people.assign(age=0)[:9].to_csv(tmp_path / "e.csv", index=False)
    done = plain_cli("ingest", "e.csv", "--dataset", "e.zarr", "--continuous", "income", *cut)
    assert done.code == 0, done.err
    error = plain_cli("neighbours", *words).check_refused()
    assert "Feature 'age' has the levels 0<1, but continuous values in d.zarr" in error


def test_samples_have_the_means_of_the_fit(plain_cli, people, tmp_path: Path) -> None:
    fit(plain_cli, "--components", "1", "--no-report")
    done = plain_cli("sample", "--artifact", "a", "--rows", 4000, "--output", "s.zarr")
    assert done.code == 0, done.err
    drawn = open_dataset(tmp_path / "s.zarr")
    assert drawn.feature_levels == open_dataset(tmp_path / "d.zarr").feature_levels
    stored = load_artifact(tmp_path / "a")
    numbers = drawn.read_chunk(0).numbers
    assert numbers is not None
    errors = stored["scales"][[1, 3]] / np.sqrt(4000)
    assert (np.abs(numbers.mean(axis=1) - stored["means"][[1, 3]]) < 4 * errors).all()
    refit = lb.fit(lb.open_dataset(tmp_path / "s.zarr"), "clipped-pca", components=1)
    np.testing.assert_allclose(refit.params.thresholds, stored["thresholds"], atol=0.1)


def test_expected_values_are_in_the_units_of_the_data(plain_cli, people, tmp_path: Path) -> None:
    fit(plain_cli, "--components", "1", "--no-report")
    transform = ["transform", "--dataset", "d.zarr", "--artifact", "a", "--reconstruct"]
    for name in ("expected-levels", "probabilities"):
        done = plain_cli(*transform, name, "--output", f"{name}.zarr")
        assert done.code == 0, done.err
    codes = open_codes(tmp_path / "expected-levels.zarr")
    expected, stored = codes["expected_levels"], load_artifact(tmp_path / "a")
    x = codes["mean"] @ stored["loadings"].T
    for i, name in ((1, "age"), (3, "income")):
        values = stored["means"][i] + stored["scales"][i] * x[:, i]
        np.testing.assert_allclose(expected[:, i], values, rtol=1e-4)
        is_known = people[name].notna()
        assert np.corrcoef(values[is_known], people.loc[is_known, name])[0, 1] > 0.4
    probabilities = open_codes(tmp_path / "probabilities.zarr")["probabilities"]
    assert probabilities.shape == (N_ROWS, 10)  # of the levels of four features
    levels = probabilities[:, 1] + 2 * probabilities[:, 2]
    np.testing.assert_allclose(levels, expected[:, 0], atol=1e-5)
    error = plain_cli(*transform, "levels", "--output", "l.zarr").check_refused()
    assert "Feature 'age' is continuous, so it has no levels. Choose --reconstruct" in error


def check_continuous_scores(model: dict, codes: Path, people: pd.DataFrame) -> None:
    """Compare the scores of measurements with those of the expected values of `transform`."""
    expected = pd.read_csv(codes).filter(like="expected_levels")
    for own in model["continuous"]:
        name = own["feature"]
        table = people.assign(guess=expected[f"expected_levels_{name}"]).dropna(subset=name)
        errors = table[name] - table["guess"]
        assert own["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
        assert own["r2"] == pytest.approx(1 - (errors**2).mean() / table[name].var(ddof=0), 1e-4)
        assert own["correlation"] == pytest.approx(table[name].corr(table["guess"]), rel=1e-4)
    assert model["r2"] == pytest.approx(np.mean([own["r2"] for own in model["continuous"]]))


def test_all_kinds_of_features_are_evaluated(plain_cli, people, tmp_path: Path) -> None:
    fit(plain_cli, "--components", "1", "--no-report", "--set", "errors=none")
    words = ["evaluate", "--dataset", "d.zarr", "--artifact", "a", "--executor", "serial", "--json"]
    done = plain_cli(*words)
    assert done.code == 0, done.err
    (model,) = (m for m in done.json["models"] if m["name"] == "a")
    assert [row["feature"] for row in model["levels"]] == ["q0", "b0", "q1", "b1"]
    assert model["rank_correlation"] > 0.5
    assert [row["feature"] for row in model["continuous"]] == ["age", "income"]
    transform = ["transform", *words[1:5], "--reconstruct", "expected-levels", "--output", "c.csv"]
    assert plain_cli(*transform).code == 0
    check_continuous_scores(model, tmp_path / "c.csv", people)
    shown = plain_cli(*words[:-1], "--details", "--no-baselines").out
    assert "marginals and pairs leave out continuous features: age, income" in shown
    (line,) = (line for line in shown.splitlines() if "measurements: age" in line)
    assert f"R² {model['continuous'][0]['r2']:.4g}" in line
    folds = plain_cli(*words, "--folds", 2)
    assert folds.code == 0, folds.err
    scores = {one["name"]: one for one in folds.json["models"]}
    assert scores["a"]["r2"] > 0.3 > scores["independent features"]["r2"]
    in_sample = {one["name"]: one for one in done.json["models"]}["independent features"]
    assert scores["independent features"]["log_likelihood"] == pytest.approx(
        in_sample["log_likelihood"], abs=0.3
    )
    data = lb.from_dataframe(people, continuous=["age", "income"], levels=ANSWERS)
    own = lb.evaluate(lb.fit(data, "clipped-pca", components=1, errors="none"), data)
    for name in ("wrong_levels", "r2", "correlation"):
        assert own[name] == pytest.approx(model[name])
    assert own["held_out"]["r2"] == pytest.approx(model["held_out"]["r2"])
    assert "held out: age: rmse" in shown


def test_a_scorer_reads_measurements(people) -> None:
    data = lb.from_dataframe(people, continuous=["age", "income"], levels=ANSWERS)
    fitted = lb.fit(data, "clipped-pca", components=1, errors="none")
    scorer, codes = lb.Scorer(fitted), lb.transform(fitted, data)
    for i in (0, 3):  # the age of row 3 is missing
        row = {name: None if pd.isna(v) else v for name, v in people.iloc[i].to_dict().items()}
        assert scorer(row)["mean_1"] == pytest.approx(codes["mean"][i, 0], abs=1e-12)
    shuffled = people[["b1", "income", "q1", "age", "q0", "b0"]]
    np.testing.assert_array_equal(scorer(shuffled)["mean"], codes["mean"])
    assert scorer({"income": 1e5})["mean_1"] > scorer({"income": 10.0})["mean_1"]
    with pytest.raises(ValueError, match=r"row 1 \(counted from 1\) has no observed value"):
        scorer({"age": None})
    with pytest.raises(ValueError, match="column 'age': the value is inf, not a finite number"):
        scorer({"age": np.inf})


def test_a_level_may_have_no_measurement(plain_cli, people, tmp_path: Path) -> None:
    """There are as many planes as features, which have the names in the report."""
    table = people[["q0", "age", "b0"]].assign(age=people["age"].where(people["q0"] != "yes"))
    table.to_csv(tmp_path / "b.csv", index=False)
    options = ["--continuous", "age", "--levels", "q0:no<perhaps<yes"]
    assert plain_cli("ingest", "b.csv", "--dataset", "d.zarr", *options, "--overwrite").code == 0
    summary = fit(plain_cli, "--components", "2", "--set", "errors=none")
    assert summary["warnings"] == []
    report = (Path(summary["artifact"]) / "report.html").read_text()
    assert "Loadings of 3 features on 2 components" in report
    figure = report[report.index("Loadings of 3 features") :].partition("Features in latent")[0]
    assert "age" in figure
    assert "q0&gt;=yes" not in figure


def test_arrays_have_the_features_of_the_fit(people) -> None:
    data = lb.from_dataframe(people, continuous=["age", "income"], levels=ANSWERS)
    fitted = lb.fit(data, "clipped-pca", components=1, errors="none")
    codes = lb.transform(fitted, people.to_numpy(object))["mean"]
    np.testing.assert_array_equal(codes, lb.transform(fitted, data)["mean"])


def test_measurements_that_cannot_be_used_are_named(plain_cli, people, tmp_path: Path) -> None:
    people.to_csv(tmp_path / "a.csv", index=False)
    people.assign(age=7.0).to_csv(tmp_path / "b.csv", index=False)
    options = ["--continuous", "age,income", "--levels", LEVEL_OPTION]
    done = plain_cli("ingest", "b.csv", "--dataset", "b.zarr", *options)
    assert done.code == 0
    assert "measurements with a single value or none: 'age'; --drop-constant" in done.out
    assert "single value" not in plain_cli("ingest", "a.csv", "--dataset", "a.zarr", *options).out
    for model in ("clipped-pca", "bernoulli-mixture"):
        error = plain_cli("fit", "--dataset", "b.zarr", "--model", model).check_refused()
        assert "These features are constant: 'age'. Leave them out by --drop" in error


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["clipped-pca", "bernoulli-mixture"])
def test_measurements_alone(plain_cli, people, tmp_path: Path, model: str) -> None:
    people[["age", "income"]].to_csv(tmp_path / "a.csv", index=False)
    assert plain_cli("ingest", "a.csv", "--dataset", "a.zarr", "--continuous", "*").code == 0
    words = ["fit", "--dataset", "a.zarr", "--model", model, "--components", "1", "--output", "m"]
    done = plain_cli(*words, "--executor", "serial", "--json")
    assert done.code == 0, done.err
    assert "warning" not in done.err
    assert (Path(done.json["artifact"]) / "report.html").exists()
    words = ["--artifact", "m", "--dataset", "a.zarr"]
    done = plain_cli("transform", *words, "--reconstruct", "expected-levels", "--output", "c")
    assert done.code == 0, done.err
    assert plain_cli("sample", "--artifact", "m", "--rows", "9", "--output", "s.zarr").code == 0
    done = plain_cli("evaluate", *words, "--executor", "serial", "--json")
    assert done.code == 0, done.err
    (scores,) = (one for one in done.json["models"] if one["name"] == "m")
    assert 0 < scores["r2"] < 1 if model == "clipped-pca" else scores["r2"] == pytest.approx(0)
    assert "wrong_bits" not in scores
    assert "pairs" not in scores
    warnings = ["neighbours are not compared: all features are continuous"]
    assert scores["warnings"] == warnings
    error = plain_cli("evaluate", *words, "--label", "segment").check_refused()
    assert "--label compares features with levels, but all features are continuous" in error


def test_latent_classes_of_measurements(plain_cli, people, tmp_path: Path) -> None:
    words = ["fit", "--dataset", "d.zarr", "--model", "bernoulli-mixture", "--components", "2"]
    done = plain_cli(*words, "--output", "m", "--executor", "serial", "--json")
    assert done.code == 0, done.err
    stored = load_artifact(tmp_path / "m")
    report = (Path(done.json["artifact"]) / "report.html").read_text()
    assert "deviations 2" in report
    data = lb.from_dataframe(people, continuous=["age", "income"], levels=ANSWERS)
    fitted = lb.fit(data, "bernoulli-mixture", components=2)
    for name in ("probabilities", "means", "deviations", "means_error"):
        np.testing.assert_array_equal(stored[name], get_array(fitted.params, name))
    done = plain_cli("export", "--artifact", "m", "--what", "items", "--output", "i.csv")
    assert done.code == 0, done.err
    items = pd.read_csv(tmp_path / "i.csv").set_index("feature")
    for j, name in enumerate(("age", "income")):
        assert items.loc[name, "means_2"] == pytest.approx(stored["means"][1, j])
        assert items.loc[name, "deviations_error_1"] == pytest.approx(
            stored["deviations_error"][0, j]
        )
    assert items.loc["q1", ["means_1", "means_2"]].isna().all()
    shares = items.loc["q1", [f"level_probabilities_{level}_1" for level in (1, 2, 3)]]
    assert shares.sum() == pytest.approx(1)
    assert items.loc["age", "level_probabilities_1_1":"level_probabilities_3_1"].isna().all()
    words = ["--dataset", "d.zarr", "--artifact", "m", "--executor", "serial"]
    done = plain_cli("evaluate", *words, "--json")
    assert done.code == 0, done.err
    scores = {model["name"]: model["log_likelihood"] for model in done.json["models"]}
    alone = lb.fit(data, "bernoulli-mixture", components=1, smoothing=1.0)
    assert scores["independent features"] == pytest.approx(alone.manifest["objective"], abs=0.1)
    assert scores["m"] > scores["independent features"]
    done = plain_cli("sample", "--artifact", "m", "--rows", 4000, "--output", "s.zarr")
    assert done.code == 0, done.err
    numbers = open_dataset(tmp_path / "s.zarr").read_chunk(0).numbers
    assert numbers is not None
    np.testing.assert_allclose(numbers.mean(axis=1), stored["overall_means"], rtol=0.1)
    row = {name: None if pd.isna(v) else v for name, v in people.iloc[3].to_dict().items()}
    codes = lb.transform(fitted, data)["mean"]
    assert lb.Scorer(fitted)(row)["mean_1"] == pytest.approx(codes[3, 0], abs=1e-12)


@pytest.mark.matrix
def test_baselines_of_many_rows_start_from_a_sample(plain_cli, people, monkeypatch) -> None:
    fit(plain_cli, "--components", "1", "--no-report", "--set", "errors=none")
    found = []
    for n_rows in (100, 10_000):
        monkeypatch.setattr(stages, "_MAX_START_ROWS", n_rows)
        words = ["--dataset", "d.zarr", "--artifact", "a", "--executor", "serial"]
        done = plain_cli("evaluate", *words, "--json")
        assert done.code == 0, done.err
        found.append({model["name"]: model for model in done.json["models"]})
    sampled, full = (models["mixture of 20"] for models in found)
    assert 0 < abs(sampled["log_likelihood"] - full["log_likelihood"]) < 0.5
    assert found[0]["independent features"] == found[1]["independent features"]


def test_all_features_with_levels_are_compared(plain_cli, people) -> None:
    fit(plain_cli, "--components", "1", "--no-report", "--set", "errors=none")
    words = ["evaluate", "--dataset", "d.zarr", "--artifact", "a", "--executor", "serial"]
    done = plain_cli(*words, "--details")
    assert done.code == 0, done.err
    assert "randomly chosen features" not in done.out


@pytest.mark.parametrize(
    ("model_name", "setting"),
    [("blica", "regularization=50"), ("binary-ica-likelihood", "likelihood=ep")],
)
@pytest.mark.matrix
def test_sources_of_measurements(plain_cli, tmp_path: Path, model_name: str, setting: str) -> None:
    rng = np.random.default_rng(1)
    period = np.repeat(np.arange(4), 300)
    sources = rng.standard_normal((1200, 1)) * np.array([0.4, 0.8, 1.6, 3.0])[period, None]
    y = sources @ [[0.8, 1.0, -0.7, 0.6, 0.9]] + rng.standard_normal((1200, 5))
    table = pd.DataFrame(
        {
            "q0": np.array(LEVELS)[np.searchsorted([-0.7, 0.7], y[:, 0])],
            "age": 40 + 10 * y[:, 1],
            "b0": (y[:, 2] > 0).astype(int),
            "income": 8 + y[:, 3],
            "b1": (y[:, 4] > 0.4).astype(int),
            "period": period,
        }
    )
    table.loc[3, "age"] = None
    table.to_csv(tmp_path / "a.csv", index=False)
    options = ["--continuous", "age,income", "--levels", LEVEL_OPTION]
    own, model = ["--dataset", "d.zarr"], ["--artifact", "a", "--executor", "serial"]
    settings = ["--components", 1, "--set", setting, "--output", "a", "--report"]
    output = {}
    for words in (
        ["ingest", "a.csv", *own, *options, "--segment-by", "period"],
        ["fit", *own, "--model", model_name, *settings],
        ["transform", *own, *model, "--reconstruct", "expected-levels", "--output", "c.zarr"],
        ["sample", *model[:2], "--rows", 4000, "--output", "s.zarr"],
        ["export", *model[:2], "--what", "items", "--output", "i.csv"],
        ["evaluate", *own, *model, "--json"],
        ["ingest", "a.csv", *own, "--append"],
        ["fit", *own, "--model", model_name, *settings, "--json"],
    ):
        done = plain_cli(*words)
        assert done.code == 0, done.err
        output[words[0]] = done
    items = pd.read_csv(tmp_path / "i.csv").set_index("feature")
    assert items.loc["age", "number_scales"] == pytest.approx(10, rel=0.2)
    assert items.loc["income", "number_means"] == pytest.approx(8, abs=0.5)
    codes = open_codes(tmp_path / "c.zarr")
    expected = codes["expected_levels"][:, 1]
    is_known = table["age"].notna()
    assert np.corrcoef(expected[is_known], table.loc[is_known, "age"])[0, 1] > 0.7
    drawn = open_dataset(tmp_path / "s.zarr")
    numbers = drawn.read_chunk(0).numbers
    assert numbers is not None
    assert numbers[0].mean() == pytest.approx(40, abs=2)
    (scores,) = (m for m in output["evaluate"].json["models"] if m["name"] == "a")
    assert scores["wrong_levels"] < 0.5
    assert scores["log_likelihood"] < 0
    assert output["fit"].json["drift"]["parameters"]["similarity"] == pytest.approx(1, abs=1e-4)
