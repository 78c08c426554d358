"""Fits with known items: `flows.fit --items`."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

import latentbits as lb
from storage.artifacts.artifacts import Artifact, load_artifact
from tests.support.data import find_reference, write_arrays
from tests.support.processes import kill_fit_at

MODEL = ("--model", "latent-trait", "--executor", "serial", "--no-report", "--json")
NAMES = ("a", "b", "c", "d", "e")
SLOPES, OFFSETS = np.array([1.2, 0.8, 1.5, 1.0, 0.7]), np.array([0.5, -0.5, 0.0, 1.0, -1.0])
ITEMS = "feature,slope,offset\na,1.2,0.5\nb,0.8,\nc,1.5,0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows of two groups, and a table of items; the second group has the mean 1, as all have."""
    rng = np.random.default_rng(5)
    is_second = np.arange(600) % 2 == 1
    x = rng.standard_normal(600) + 0.5 + is_second
    P = scipy.special.expit(np.outer(x, SLOPES) + OFFSETS)
    X = (rng.random(P.shape) < P).astype(np.uint8)
    columns = {"school": np.where(is_second, "south", "north").astype(object)}
    columns["count"] = 1 + np.arange(600) % 3
    thirds = np.array(["p", "q", "r"])[np.arange(600) % 3]
    write_arrays(
        tmp_path / "d.zarr", X, None, thirds, columns=columns, names=NAMES, words_per_chunk=4
    )
    Path(tmp_path / "items.csv").write_text(ITEMS)
    return tmp_path


def fit(cli: Any, *options: object, dataset: str = "d.zarr") -> Artifact:
    done = cli("fit", "--dataset", dataset, *MODEL, *options)
    assert done.code == 0, done.err
    return load_artifact(done.json["artifact"])


def get_arrays(artifact: Artifact) -> dict[str, bytes]:
    return {name: artifact[name].tobytes() for name in artifact}


@pytest.mark.parametrize(
    ("case", "traits", "n_features"),
    [
        ("fixed_items_free_mean_var", "free", 24),
        ("fixed_items_standard_normal", "standard", 24),
        ("all_items_fixed_free_mean_var", "free", 16),
        ("everything fixed", "standard", 16),
    ],
)
def test_fixed_calibration_agrees_with_mirt(
    cli, tmp_path, case: str, traits: str, n_features: int
) -> None:
    folder = "04_fixed_calibration/verbal_aggression"
    with find_reference(f"{folder}_fixed_values.csv").open() as file:
        lines = [f"{row['item']},{row['a1']},{row['d']}" for row in csv.DictReader(file)]
    Path("known.csv").write_text("\n".join(["feature,slope,offset", *lines]))
    rows = find_reference("data/verbal_aggression_new.csv").read_text().splitlines()
    Path("new.csv").write_text("\n".join(",".join(r.split(",")[:n_features]) for r in rows))
    assert cli("ingest", "new.csv", "--dataset", "new.zarr").code == 0
    settings = ("--items", "known.csv", "--set", f"traits={traits}", "--set", "tol=1e-10")
    found = fit(cli, *settings, dataset="new.zarr")
    with find_reference("04_fixed_calibration/summary.csv").open() as file:
        expected = {(row["case"], row["quantity"]): row["value"] for row in csv.DictReader(file)}
    name = "loglik of new rows" if case == "everything fixed" else "loglik"
    log_likelihood = float(expected[f"verbal_aggression {case}", name])
    statistics = found.manifest["diagnostics"]["fit_statistics"]
    assert statistics["log_likelihood"] == pytest.approx(log_likelihood, abs=1e-3)
    if case == "everything fixed":
        return
    with find_reference(f"{folder}_{case}.csv").open() as file:
        rows = [*csv.DictReader(file)]
    features = found.manifest["feature_names"]
    places = {"a1": ("weights", (0,)), "d": ("offsets", ())}
    for row in rows:
        if row["name"] in places:
            array, place = places[row["name"]]
            index = (features.index(row["item"]), *place)
        elif row["name"] == "MEAN_1":
            array, index = "trait_mean", (0, 0)
        elif row["name"] == "COV_11":
            array, index = "trait_covariance", (0, 0, 0)
        else:
            continue
        assert found[array][index] == pytest.approx(float(row["value"]), abs=1e-3)
        error = float(row["se"]) if row["est"] == "TRUE" else 0.0
        assert found[f"{array}_error"][index] == pytest.approx(error, rel=0.01)


def test_a_table_an_artifact_and_python_give_the_same_fit(cli, folder) -> None:
    found = fit(cli, "--items", "items.csv")
    digest = hashlib.sha256(Path("items.csv").read_bytes()).hexdigest()
    path = str(Path("items.csv").resolve())
    assert found.manifest["known_items"] == {"path": path, "digest": digest, "n_items": 3}
    assert found["is_known"].tolist() == [[True] * 2, [True, False], [True] * 2, *[[False] * 2] * 2]
    assert found["weights"][:3, 0].tolist() == [1.2, 0.8, 1.5]
    assert found["offsets_error"][0] == 0 < found["offsets_error"][1]
    assert found["trait_mean"][0, 0] == pytest.approx(1.0, abs=0.2)
    table = {"feature": ["c", "b", "a"], "weights_1": [1.5, 0.8, 1.2], "offsets": [0, None, 0.5]}
    for items in (table, "items.csv"):
        fitted = lb.fit("d.zarr", "latent-trait", items=items, n_jobs=1)
        assert fitted.params.weights.tobytes() == found["weights"].tobytes()
        assert fitted.params.trait_mean.tobytes() == found["trait_mean"].tobytes()
    assert fitted.manifest["known_items"]["digest"] == digest
    with pytest.raises(ValueError, match="3 features, but 2 values in the column offset"):
        lb.fit("d.zarr", "latent-trait", items={**table, "offset": [0, 1]})

    first = fit(cli, "--components", 1, "--output", "first")
    by_artifact = fit(cli, "--items", "first", "--set", "tol=1e-10", "--output", "second")
    np.testing.assert_allclose(by_artifact["trait_mean"], 0.0, atol=1e-3)
    np.testing.assert_allclose(by_artifact["trait_covariance"], 1.0, atol=1e-3)
    assert by_artifact["weights"].tobytes() == first["weights"].tobytes()
    assert by_artifact.manifest["known_items"]["path"] == str(first.path.resolve())
    fitted = lb.fit("d.zarr", "latent-trait", items=lb.load("first"), tol=1e-10)
    assert fitted.params.trait_mean.tobytes() == by_artifact["trait_mean"].tobytes()


def test_codes_and_samples_have_the_distribution_of_the_traits(cli, folder) -> None:
    artifact = fit(cli, "--items", "items.csv")
    done = cli("transform", "--dataset", "d.zarr", "--artifact", artifact.path, "--output", "z.csv")
    assert done.code == 0
    assert "not fitted" not in done.out
    with Path("z.csv").open() as file:
        codes = [float(row["mean_1"]) for row in csv.DictReader(file)]
    assert np.mean(codes) == pytest.approx(artifact["trait_mean"][0, 0], abs=0.01)
    line = ("--artifact", artifact.path, "--rows", 5_000, "--output", "s.zarr")
    assert cli("sample", *line).code == 0
    stored, drawn = (
        np.array(lb.open_dataset(name).ones().sum(axis=0)) / n
        for name, n in (("d.zarr", 600), ("s.zarr", 5_000))
    )
    np.testing.assert_allclose(drawn, stored, atol=0.05)


@pytest.mark.matrix
def test_groups_weights_and_resume(cli, folder) -> None:
    """Known items are anchors; all other items and the traits of all groups are estimated."""
    options = ("--items", "items.csv", "--group", "school", "--weight", "count")
    options = (*options, "--set", "invariance=configural", "--set", "tol=1e-9")
    found = fit(cli, *options, "--output", "undisturbed")
    difference = found["trait_mean"][1, 0] - found["trait_mean"][0, 0]
    assert difference == pytest.approx(1.0, abs=0.35)
    assert found["group_weights"][:, 0, 0].tolist() == [1.2, 1.2]
    assert (found["trait_mean_error"] > 0).all()
    line = ("--dataset", "d.zarr", *MODEL, *options)
    kill_fit_at("states/000002/manifest.json", [str(word) for word in line])
    resumed = cli("fit", *line, "--resume")
    assert get_arrays(load_artifact(resumed.json["artifact"])) == get_arrays(found)
    Path("items.csv").write_text(ITEMS.replace("1.2,0.5", "1.3,0.5"))
    other = fit(cli, *options, "--resume")
    assert other["weights"][0, 0] == 1.3


@pytest.mark.matrix
def test_folds_and_nested_fits_keep_known_items(cli, folder) -> None:
    for name, options in (
        ("known", ("--items", "items.csv")),
        ("free", ("--components", 1)),
        ("other", ("--items", "other.csv")),
    ):
        Path("other.csv").write_text("feature,slope,offset\na,1.3,0.5\n")
        fit(cli, *options, "--output", name)
    line = ("evaluate", "--dataset", "d.zarr", "--executor", "serial", "--json", "--artifact")
    (test,) = cli(*line, "known", "--artifact", "free", "--likelihood-ratio").json[
        "likelihood_ratio_tests"
    ]
    assert test["df"] == 10 - (5 + 2)
    refused = cli(*line, "known", "--artifact", "other", "--likelihood-ratio")
    assert "not nested" in refused.check_refused()
    folds = cli(*line, "known", "--artifact", "free", "--folds", 2, "--no-baselines").json
    known, free = (model["log_likelihood"] for model in folds["models"])
    assert 0 < abs(known - free) < 0.05


def test_a_constant_item_may_be_known(cli, folder) -> None:
    X = np.ones((40, 3), np.uint8)
    X[::2, :2] = 0
    X[:3, 0] = 1
    write_arrays(Path("c.zarr"), X, names=["a", "b", "c"])
    Path("c.csv").write_text("feature,slope,offset\nc,1,2\n")
    found = fit(cli, "--items", "c.csv", "--set", "traits=standard", dataset="c.zarr")
    assert found["offsets"][2] == 2
    Path("c.csv").write_text("feature,slope,offset\nc,1,\n")
    line = ("fit", "--dataset", "c.zarr", *MODEL, "--items", "c.csv")
    assert "features are constant: 'c'" in cli(*line).check_refused()


ALL_ZERO = "".join(f"{name},0,1\n" for name in NAMES)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("x,1,0\n", (), "has items that d.zarr lacks: x. Leave them out"),
        ("a,1,0\na,1,0\n", (), "has items twice: a."),
        ("a,one,0\n", (), "slope of a is 'one', which is not a number"),
        ("a,true,0\n", (), "slope of a is 'true', which is not a number"),
        ("a,0x10,0\n", (), "slope of a is '0x10', which is not a number"),
        ("a,1,1_000\n", (), "offset of a is '1_000', which is not a number"),
        ("a,1,inf\n", (), "offset of a is inf. Give a number up to 10,000"),
        ("a,1,-20000\n", (), "offset of a is -20000. Give a number up to 10,000"),
        ("a,1,-1000\n", (), "give the answer 1 to 'a' the probability 0"),
        (ALL_ZERO, (), "all slopes are known to be 0"),
        ("", (), "has no items"),
        (",1,0\n", (), "has a line without a feature"),
        ("a,1,0\n", ("--components", 2), "has 1 slope per item, but --components is 2"),
        ("a,1,0\n", ("--components", "auto"), "--items needs 1 to 3 components"),
        ("a,1,0\n", ("--set", "estimator=ep"), "cannot be combined with --set estimator=ep"),
        ("a,1,0\n", ("--set", "invariance=metric"), "invariance=metric needs groups"),
        ("a,1,0\n", ("--group", "school", "--set", "free=a"), "names 'a', whose slope and offset"),
    ],
)
def test_bad_items_are_refused(cli, folder, table: str, options: tuple, message: str) -> None:
    Path("items.csv").write_text(f"feature,slope,offset\n{table}")
    refused = cli("fit", "--dataset", "d.zarr", *MODEL, "--items", "items.csv", *options)
    assert message in refused.check_refused()
    assert not Path("runs").exists()


def test_a_table_without_its_columns_is_refused(cli, folder) -> None:
    Path("items.csv").write_text("item,a1,d\na,1,0\n")
    line = ("fit", "--dataset", "d.zarr", *MODEL, "--items")
    assert "the columns feature, slope (or weights_1" in cli(*line, "items.csv").check_refused()
    assert "neither a .csv or .parquet table" in cli(*line, "items.txt").check_refused()
    line = ("fit", "--dataset", "d.zarr", "--model", "clipped-pca", "--items", "items.csv")
    assert "clipped-pca cannot be fitted with known items" in cli(*line).check_refused()


def test_items_that_differ_by_group_have_no_single_value(cli, folder) -> None:
    options = ("--group", "school", "--components", 1, "--set", "free=e")
    fit(cli, *options, "--output", "groups")
    refused = cli("fit", "--dataset", "d.zarr", *MODEL, "--items", "groups").check_refused()
    assert "has items that differ between its groups: e." in refused
    mixture = ("--model", "bernoulli-mixture", "--components", 2, "--output", "mixture")
    assert cli("fit", "--dataset", "d.zarr", *mixture, "--no-report").code == 0
    refused = cli("fit", "--dataset", "d.zarr", *MODEL, "--items", "mixture").check_refused()
    assert "is not of latent-trait, so it has no slopes and offsets" in refused


LEVELS = ("--levels", "q*:low<mid<high", "--continuous", "score")


@pytest.fixture
def survey(cli, tmp_path: Path) -> Path:
    """Rows of items with three levels, a binary one and a measurement."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(300)
    levels = (x[:, None] + rng.logistic(size=(300, 3)))[:, :, None] > np.array([-0.5, 0.8])
    lines = ["q1,q2,q3,b,score"]
    for words, y in zip(np.array(["low", "mid", "high"])[levels.sum(axis=2)], x, strict=True):
        lines.append(",".join([*words, str(int(y + rng.logistic() > 0)), f"{50 + 9 * y:.3f}"]))
    Path("survey.csv").write_text("\n".join(lines))
    assert cli("ingest", "survey.csv", "--dataset", "d.zarr", *LEVELS).code == 0
    return tmp_path


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["graded", "partial-credit", "nominal"])
def test_exported_items_with_levels_are_known(cli, survey, kind: str) -> None:
    settings = ("--components", 1, "--set", f"items={kind}", "--set", "tol=1e-7")
    first = fit(cli, *settings, "--output", "first")
    export = ("export", "--artifact", "first", "--what", "items", "--output", "bank.csv")
    assert cli(*export).code == 0
    with Path("bank.csv").open() as file:
        curves = [row["curves"] for row in csv.DictReader(file)]
    assert curves == [kind] * 3 + [""] * 2
    by_table = fit(cli, "--items", "bank.csv", "--set", "tol=1e-7")
    by_artifact = fit(cli, "--items", "first", "--set", "tol=1e-7")
    assert get_arrays(by_table) == get_arrays(by_artifact)
    assert by_table.manifest["known_items"]["n_items"] == 5
    assert by_table.manifest["hyperparameters"]["items"] == kind
    for name in ("weights", "level_offsets", "deviations"):
        np.testing.assert_allclose(by_table[name], first[name], rtol=1e-12)
    np.testing.assert_allclose(by_table["trait_mean"], 0.0, atol=1e-3)
    np.testing.assert_allclose(by_table["trait_covariance"], 1.0, atol=2e-3)
    codes = []
    for index, source in enumerate((("--artifact", "first"), ("--items", "bank.csv"))):
        line = ("transform", "--dataset", "d.zarr", *source, "--output", f"{index}.csv")
        assert cli(*line).code == 0
        with Path(f"{index}.csv").open() as file:
            codes.append(
                [[float(row["mean_1"]), float(row["sd_1"])] for row in csv.DictReader(file)]
            )
    np.testing.assert_allclose(codes[1], codes[0], rtol=1e-5, atol=1e-7)


@pytest.mark.matrix
def test_folds_and_nested_fits_keep_known_levels(cli, survey) -> None:
    Path("bank.csv").write_text(
        "feature,curves,slope,level_offsets_1,level_offsets_2\n"
        "q1,partial-credit,0.9,0.7,-0.4\nq2,partial-credit,0.8,,\n"
    )
    fit(cli, "--items", "bank.csv", "--output", "known")
    fit(cli, "--components", 1, "--set", "items=partial-credit", "--output", "free")
    line = ("evaluate", "--dataset", "d.zarr", "--executor", "serial", "--json", "--artifact")
    line = (*line, "known", "--artifact", "free")
    (test,) = cli(*line, "--likelihood-ratio").json["likelihood_ratio_tests"]
    assert test["df"] == 4 - 2
    folds = cli(*line, "--folds", 2, "--no-baselines").json
    known, free = (model["log_likelihood"] for model in folds["models"])
    assert 0 < abs(known - free) < 0.1


def test_uses_of_known_levels_that_are_refused(cli, survey) -> None:
    fit(cli, "--components", 1, "--set", "max_iter=2", "--output", "first")
    Path("bank.csv").write_text("feature,slope,offset\nq1,1,\nq2,1,\nq3,1,\nb,1,0\nscore,9,50\n")
    line = ("transform", "--dataset", "d.zarr", "--items", "bank.csv", "--output", "z.csv")
    assert "has no offset of q1, but scores need all" in cli(*line).check_refused()
    lines = "q1,2,,1,-1\nq2,1,,1,-1\nq3,1,,1,-1\nb,1,0,,\nscore,9,50,,\n"
    Path("bank.csv").write_text(f"feature,slope,offset,level_offsets_1,level_offsets_2\n{lines}")
    assert "has no deviation of score, but scores need all" in cli(*line).check_refused()
    line = ("export", "--artifact", "first", "--what", "linked-items", "--link-to", "first")
    assert "takes only binary items" in cli(*line, "--output", "l.csv").check_refused()
    settings = ("--items", "first", "--set", "items=nominal")
    refused = cli("fit", "--dataset", "d.zarr", *MODEL, *settings).check_refused()
    assert "has graded items, but --set items=nominal is set" in refused
