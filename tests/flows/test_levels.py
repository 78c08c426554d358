"""Commands on a dataset with ordered levels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from storage.artifacts.artifacts import load_artifact
from storage.codes.codes import open_codes
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from tests.support.data import ArrayBatch, write_arrays

NAMES = [f"q{i}" for i in range(6)]
LEVELS = dict.fromkeys(NAMES[:5], ("no", "perhaps", "yes"))


def draw_answers(n_rows: int = 600, seed: int = 3) -> NDArray[np.uint8]:
    """Draw answers with three levels, the last with two, that share one cause."""
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=(n_rows, 1))
    position = cause + rng.normal(size=(n_rows, len(NAMES)))
    X = (position > -0.5).astype(np.uint8) + (position > 0.7)
    X[:, 5] = position[:, 5] > 0
    return X


@pytest.fixture
def survey(tmp_path: Path) -> BinaryDataset:
    with create_dataset(tmp_path / "survey.zarr", NAMES, feature_levels=LEVELS) as writer:
        writer.add(ArrayBatch(draw_answers(), None, {}))
    return open_dataset(tmp_path / "survey.zarr")


def test_a_cut_is_a_fit_to_binary_rows(cli, tmp_path: Path, survey: BinaryDataset) -> None:
    X = draw_answers()
    X[:, :5] = X[:, :5] >= 2
    names = [f"{name}>=yes" for name in NAMES[:5]] + ["q5"]
    write_arrays(tmp_path / "cut.zarr", X, names=names)
    fit = ("fit", "--components", 2, "--no-report", "--dataset")
    done = cli(*fit, survey.path, "--cut", "q[0-4]>=yes", "--output", tmp_path / "a")
    assert done.code == 0, done.err
    done = cli(*fit, tmp_path / "cut.zarr", "--output", tmp_path / "b")
    assert done.code == 0, done.err
    fits = [load_artifact(tmp_path / name) for name in "ab"]
    assert fits[0].manifest["feature_names"] == names
    for name in fits[0].manifest["arrays"]:
        np.testing.assert_array_equal(fits[0][name], fits[1][name])
    codes = [tmp_path / f"{name}.csv" for name in "ab"]
    for name, path, data in zip("ab", codes, (survey.path, tmp_path / "cut.zarr"), strict=True):
        options = ("--artifact", tmp_path / name, "--dataset", data, "--output", path)
        done = cli("transform", *options)
        assert done.code == 0, done.err
    assert codes[0].read_bytes() == codes[1].read_bytes()


def test_a_cut_needs_the_order_of_the_fit(cli, tmp_path: Path, survey: BinaryDataset) -> None:
    """In reverse order, `q0>=perhaps` is the name of the opposite."""
    cut = ("--cut", "q[0-4]>=perhaps", "--no-report", "--output", tmp_path / "a")
    done = cli("fit", "--components", 1, "--dataset", survey.path, *cut)
    assert done.code == 0, done.err
    levels = dict.fromkeys(LEVELS, ("yes", "perhaps", "no"))
    with create_dataset(tmp_path / "reverse.zarr", NAMES, feature_levels=levels) as writer:
        writer.add(ArrayBatch(draw_answers(60), None, {}))
    for command in (("transform", "--output", tmp_path / "codes.csv"), ("evaluate",)):
        options = ("--artifact", tmp_path / "a", "--dataset", tmp_path / "reverse.zarr")
        done = cli(*command, *options)
        assert done.code == 2
        assert "Feature 'q0' has the levels yes<perhaps<no, but the levels no<perhaps" in done.err
    assert not (tmp_path / "codes.csv").exists()


@pytest.mark.matrix
def test_an_rbm_explains_planes(cli, tmp_path: Path, survey: BinaryDataset) -> None:
    fit = ("fit", "--model", "rbm", "--components", 3, "--set", "max_iter=3", "--json")
    done = cli(*fit, "--dataset", survey.path, "--output", tmp_path / "runs")
    assert done.code == 0, done.err
    names = [f"{name}>={level}" for name in NAMES[:5] for level in ("perhaps", "yes")] + ["q5"]
    manifest = load_artifact(tmp_path / "runs").manifest
    assert manifest["feature_names"] == names
    own = ("--artifact", tmp_path / "runs", "--dataset", survey.path)
    mixture = ("fit", "--model", "bernoulli-mixture", "--components", 2, "--no-report")
    done = cli(*mixture, "--dataset", survey.path, "--output", tmp_path / "classes")
    assert done.code == 0, done.err
    done = cli("evaluate", *own, "--artifact", tmp_path / "classes", "--no-baselines", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["n_features"] == found["n_features_judged"] == len(NAMES)
    assert {"wrong_bits", "wrong_levels"} <= {*found["differences"][0]}
    for model in found["models"]:
        assert model["rows_fitted"] == "all"
        assert [own["feature"] for own in model["levels"]] == NAMES
        assert 0 < model["wrong_levels"] < 1
        assert model["pairs"]["number"] == 10 * 9 + 5 * 3
        assert {*model["pairs"]["largest"][0]["features"]} < {
            *(f"{name}={level}" for name, own in LEVELS.items() for level in own),
            "q5=1",
        }
    done = cli("evaluate", *own, "--no-baselines", "--details")
    assert done.code == 0, done.err
    assert "wrong levels  rank correlation" in done.out
    assert "levels: q0: wrong " in done.out


@pytest.mark.parametrize("model", ["rbm", "latent-trait"])
def test_reconstructed_levels_are_a_dataset(
    cli, tmp_path: Path, survey: BinaryDataset, model: str
) -> None:
    settings = ("--set", "max_iter=3") if model == "rbm" else ()
    fit = ("fit", "--model", model, "--components", 1, *settings, "--no-report")
    done = cli(*fit, "--dataset", survey.path, "--output", tmp_path / "runs")
    assert done.code == 0, done.err
    transform = ("transform", "--artifact", tmp_path / "runs", "--dataset", survey.path)
    for kind in ("probabilities", "levels", "expected-levels"):
        path = tmp_path / f"{kind}.zarr"
        done = cli(*transform, "--reconstruct", kind, "--output", path)
        assert done.code == 0, done.err
    tables = {}
    for kind in ("probabilities", "levels"):
        path = tmp_path / f"{kind}.csv"
        codes = ("--codes", tmp_path / f"{kind}.zarr", "--output", path)
        done = cli("export", "--what", "codes", *codes)
        assert done.code == 0, done.err
        tables[kind] = pd.read_csv(path)
    columns = [f"probabilities_q1={level}" for level in LEVELS["q1"]]
    best = tables["probabilities"][columns].to_numpy().argmax(axis=1)
    np.testing.assert_array_equal(np.array(LEVELS["q1"])[best], tables["levels"]["levels_q1"])
    labelled = open_codes(tmp_path / "probabilities.zarr").to_xarray()
    assert [*labelled["level"].to_numpy()[3:6]] == [f"q1={level}" for level in LEVELS["q1"]]
    done = cli("ingest", tmp_path / "levels.zarr", "--dataset", tmp_path / "likely.zarr")
    assert done.code == 0, done.err
    likely = open_dataset(tmp_path / "likely.zarr")
    assert likely.feature_levels == survey.feature_levels
    for name, codes in zip(NAMES, likely.dense(0)[0].T, strict=True):
        values = np.array(LEVELS.get(name, ("0", "1")))[codes]
        np.testing.assert_array_equal(values, tables["levels"][f"levels_{name}"].astype(str))
    done = cli(*transform, "--reconstruct", "bits", "--output", tmp_path / "bits.zarr")
    assert done.code == 2
    assert "Choose --reconstruct levels." in done.err.replace("\n", " ")
    assert not (tmp_path / "bits.zarr").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--model", "noisy-or"),
            "noisy-or takes binary features, but 'q0' and 4 more have more than two "
            "levels. Cut each in two, such as by --cut 'q0>=perhaps', or use one of ",
        ),
        (("--cut", "q9>=yes"), "--cut 'q9>=yes': no feature is named 'q9'."),
        (("--cut", "q1"), "--cut is 'q1'. Name a feature and the lowest level that counts as 1"),
        (
            ("--cut", "q1>=no"),
            "--cut 'q1>=no': all values of feature 'q1' are at least 'no', its lowest level. "
            "Choose a higher one of no<perhaps<yes.",
        ),
        (
            ("--cut", "q1>=never"),
            "--cut 'q1>=never': feature 'q1' has no level 'never'. It has no<perhaps<yes.",
        ),
        (
            ("--cut", "q1>=yes", "--cut", "q*>=yes"),
            "feature 'q1' twice. Cut it once.",
        ),
    ],
)
def test_bad_cuts_are_refused(
    cli, tmp_path: Path, survey: BinaryDataset, options: tuple[str, ...], message: str
) -> None:
    done = cli("fit", "--dataset", survey.path, "--output", tmp_path / "runs", *options)
    assert done.code == 2
    assert message in done.err.replace("\n", " ")
    assert not (tmp_path / "runs").exists()


def test_other_levels_than_those_of_the_fit_are_refused(
    cli, tmp_path: Path, survey: BinaryDataset
) -> None:
    fit = ("fit", "--model", "rbm", "--components", 2, "--set", "max_iter=1", "--no-report")
    done = cli(*fit, "--dataset", survey.path, "--output", tmp_path / "runs")
    assert done.code == 0, done.err
    write_arrays(tmp_path / "binary.zarr", draw_answers() % 2, names=NAMES)
    own = ("--artifact", tmp_path / "runs", "--dataset", tmp_path / "binary.zarr")
    done = cli("transform", *own, "--output", tmp_path / "codes.csv")
    assert done.code == 2
    assert "Feature 'q0' has the levels 0<1, but the levels no<perhaps<yes in" in done.err
    own_levels = dict.fromkeys(NAMES[:5], ("no", "maybe", "yes"))
    with create_dataset(tmp_path / "other.zarr", NAMES, feature_levels=own_levels) as writer:
        writer.add(ArrayBatch(draw_answers(), None, {}))
    own = ("--artifact", tmp_path / "runs", "--dataset", tmp_path / "other.zarr")
    done = cli("transform", *own, "--output", tmp_path / "codes.csv")
    assert done.code == 2
    assert "Feature 'q0' has the levels no<maybe<yes, but" in done.err.replace("\n", " ")


def test_a_mixture_of_levels_has_a_report(cli, tmp_path: Path, survey: BinaryDataset) -> None:
    fit = ("fit", "--model", "bernoulli-mixture", "--components", 2, "--report")
    done = cli(*fit, "--dataset", survey.path, "--output", tmp_path / "runs")
    assert done.code == 0, done.err
    assert load_artifact(tmp_path / "runs").dims("probabilities") == ("component", "plane")


def test_polychoric_components_go_through_all_commands(
    cli, tmp_path: Path, survey: BinaryDataset
) -> None:
    fit = ("fit", "--components", 1, "--dataset", survey.path, "--output", tmp_path / "runs")
    done = cli(*fit, "--report")
    assert done.code == 0, done.err
    artifact = load_artifact(tmp_path / "runs")
    assert artifact.dims("thresholds") == ("plane",)
    assert artifact["loadings_error"].shape == (6, 1)
    own = ("--artifact", tmp_path / "runs")
    for command in (
        ("transform", *own, "--dataset", survey.path, "--output", tmp_path / "codes.csv"),
        ("sample", *own, "--rows", 300, "--output", tmp_path / "drawn.zarr"),
        ("export", *own, "--what", "items", "--output", tmp_path / "items.csv"),
    ):
        done = cli(*command)
        assert done.code == 0, done.err
    header, first, *_ = (tmp_path / "items.csv").read_text().splitlines()
    assert header.startswith('"feature","loadings_1","loadings_error_1","n_levels","thresholds_1"')
    assert first.startswith('"q0",')
    done = cli("evaluate", *own, "--dataset", tmp_path / "drawn.zarr", "--json")
    assert done.code == 0, done.err


def test_drift_of_polychoric_components_names_planes(
    cli, tmp_path: Path, survey: BinaryDataset
) -> None:
    fit = ("fit", "--components", 1, "--dataset", survey.path, "--output", tmp_path / "runs")
    assert cli(*fit, "--no-report").code == 0
    new = draw_answers(300, seed=4)
    new[:, 1] = np.minimum(3 - new[:, 1], 2)
    with append_dataset(survey.path, NAMES) as writer:
        writer.add(ArrayBatch(new, None, {}))
    done = cli(*fit, "--no-report", "--json")
    assert done.code == 0, done.err
    drift = json.loads(done.out)["drift"]
    assert drift["settings_changed"] == []
    moved = drift["parameters"]["largest_move"]
    assert moved["array"] == "thresholds"
    assert moved["feature"].startswith("q1>=")
    assert drift["correlations"]["rms"] > 2 * drift["correlations"]["rms_by_chance"]
    for pair in drift["correlations"]["largest"]:
        assert any(name.startswith("q1>=") for name in pair["features"])
        assert len({name.partition(">=")[0] for name in pair["features"]}) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "setting", "array", "shape"),
    [
        ("blica", "regularization=50", "level_thresholds", (4, 10)),
        ("binary-ica-likelihood", "likelihood=ep", "level_offsets", (10,)),
    ],
)
def test_sources_of_levels_go_from_a_table_to_a_report(
    cli, tmp_path: Path, model: str, setting: str, array: str, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(7)
    period = np.repeat(np.arange(4), 250)
    deviations = np.array([[2.0, 0.5], [0.5, 2.0], [1.5, 1.5], [0.5, 0.5]])
    sources = rng.normal(size=(1000, 2)) * deviations[period]
    mixing = np.array([[1.0, 0.2], [0.8, -0.7], [-0.9, 0.5], [0.1, 1.0], [0.6, 0.6]])
    outputs = sources @ mixing.T + rng.normal(size=(1000, 5))
    levels = (outputs > -0.8).astype(int) + (outputs > 0.8)
    table = pd.DataFrame(np.array(["no", "perhaps", "yes"])[levels], columns=NAMES[:5])
    table.iloc[:30, 2] = ""
    table["period"] = period
    table.to_csv(tmp_path / "a.csv", index=False)
    ingest = ("--levels", "q*:no<perhaps<yes", "--segment-by", "period")
    data, runs = tmp_path / "a.zarr", tmp_path / "runs"
    fit = ("--model", model, "--components", 2, "--set", setting, "--output", runs, "--report")
    own = ("--artifact", runs, "--dataset", data)
    codes = ("--reconstruct", "probabilities", "--output", tmp_path / "codes.csv")
    for words in (
        ("ingest", tmp_path / "a.csv", "--dataset", data, *ingest),
        ("fit", "--dataset", data, *fit),
        ("transform", *own, *codes),
        ("export", "--artifact", runs, "--what", "items", "--output", tmp_path / "p.csv"),
        ("export", "--artifact", runs, "--what", "groups", "--output", tmp_path / "g.csv"),
    ):
        done = cli(*words)
        assert done.code == 0, done.err
    done = cli("evaluate", *own, "--no-baselines", "--json")
    assert done.code == 0, done.err
    (scores,) = json.loads(done.out)["models"]
    assert 0 < scores["wrong_levels"] < 0.5
    found = load_artifact(runs)
    assert found[array].shape == shape
    cosines = np.abs(found["mixing"].T @ (mixing / np.linalg.norm(mixing, axis=0)))
    assert cosines.max(axis=0).min() > 0.95
    assert not any("thresholds" in name for name in pd.read_csv(tmp_path / "g.csv").columns)
    items = pd.read_csv(tmp_path / "p.csv")
    first, second = (items.filter(regex=rf"^{array}_{c}(_\d)?$") for c in (1, 2))
    steps = np.sign(second.to_numpy() - first.to_numpy())
    assert np.unique(steps) in ([1], [-1])
    shares = pd.read_csv(tmp_path / "codes.csv").filter(like="probabilities_q1=")
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
