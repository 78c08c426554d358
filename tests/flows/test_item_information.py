"""Information, short tests and person fit from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.models.capabilities import ItemCurves
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.information import average_reliability
from storage.artifacts.artifacts import load_artifact
from storage.codes.codes import open_codes
from tests.support.data import draw_probit_rows, write_arrays

NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(800, 6, 1, seed=2)
    observed = (np.random.default_rng(0).random(X.shape) < 0.9).astype(np.uint8)
    path = tmp_path_factory.mktemp("information") / "d.zarr"
    return write_arrays(path, X * observed, observed, names=NAMES, words_per_chunk=4).path


@pytest.fixture
def artifact(cli, dataset: Path) -> str:
    command = (
        "fit",
        "--dataset",
        dataset,
        "--model",
        "latent-trait",
        "--components",
        "1",
        "--json",
    )
    return cli(*command).json["artifact"]


def test_information_adds_up(cli, artifact: str) -> None:
    assert (
        cli("export", "--artifact", artifact, "--what", "information", "--output", "t.csv").code
        == 0
    )
    table = pd.read_csv("t.csv")
    assert table["trait"].iloc[[0, -1]].tolist() == [-4, 4]
    of_items = table[[f"information_{name}" for name in NAMES]].sum(axis=1)
    np.testing.assert_allclose(table["information"], of_items, rtol=1e-12)
    np.testing.assert_allclose(table["standard_error"] ** -2, table["information"], rtol=1e-12)
    assert table["expected_score"].between(0, 6).all()


def test_a_short_test_of_all_items_has_the_reliability_of_the_fit(cli, artifact: str) -> None:
    line = ("export", "--artifact", artifact, "--what", "short-test", "--output", "t.csv")
    assert cli(*line, "--items", "6").code == 0
    table = pd.read_csv("t.csv")
    assert sorted(table["feature"]) == NAMES
    assert table["reliability"].is_monotonic_increasing
    fit = load_artifact(artifact)
    slopes, offsets = fit["weights"], fit["offsets"]
    curves = ItemCurves(slopes[:, 0], offsets, LevelItems.from_binary(slopes, offsets))
    expected = average_reliability(lambda z: curves.compute_information(z).sum(axis=1))
    assert table["reliability"].iloc[-1] == pytest.approx(expected)
    recorded = fit.manifest["diagnostics"]["fit_statistics"]["marginal_reliability"]
    assert recorded == pytest.approx(expected)


def test_information_of_items_with_several_levels(cli) -> None:
    rng = np.random.default_rng(1)
    answers = np.outer(rng.normal(size=300), [1.0, 2.0, 1.5, 1.2]) + rng.logistic(size=(300, 4))
    names = ["a", "b", "c", "d"]
    pd.DataFrame(np.digitize(answers, [-1, 1]), columns=names).to_csv("x.csv", index=False)
    assert cli("ingest", "x.csv", "--dataset", "x.zarr", "--ordinal", "*:0-2").code == 0
    line = ("fit", "--dataset", "x.zarr", "--model", "latent-trait", "--components", "1")
    artifact = cli(*line, "--json").json["artifact"]
    line = ("export", "--artifact", artifact, "--output", "t.csv", "--what")
    assert cli(*line, "information").code == 0
    table = pd.read_csv("t.csv")
    of_items = table[[f"information_{name}" for name in names]].sum(axis=1)
    np.testing.assert_allclose(table["information"], of_items, rtol=1e-12)
    assert table["expected_score"].between(0, 8).all()
    assert table["expected_score"].is_monotonic_increasing
    assert cli(*line, "short-test", "--items", "4", "--overwrite").code == 0
    found = load_artifact(artifact).manifest["diagnostics"]["fit_statistics"]
    last = pd.read_csv("t.csv")["reliability"].iloc[-1]
    assert last == pytest.approx(found["marginal_reliability"])


def test_person_fit_stands_beside_the_codes(cli, plain_cli, artifact: str, dataset: Path) -> None:
    line = ("transform", "--dataset", dataset, "--artifact", artifact, "--person-fit")
    assert cli(*line, "--output", "z.zarr").code == 0
    assert plain_cli(*line, "--output", "threads.zarr", "--executor", "threads").code == 0
    codes, on_threads = open_codes(Path("z.zarr")), open_codes(Path("threads.zarr"))
    for name in ("l_z", "infit", "outfit"):
        assert codes[name].shape == (800,)
        np.testing.assert_array_equal(codes[name][:], on_threads[name][:])
    assert abs(codes["l_z"][:].mean()) < 0.5
    assert cli(*line, "--output", "z.csv").code == 0
    assert pd.read_csv("z.csv").columns.tolist() == [
        "row",
        "mean_1",
        "sd_1",
        "l_z",
        "infit",
        "outfit",
        "l_z_star",
    ]


def test_what_has_no_information_is_refused(cli, artifact: str, dataset: Path) -> None:
    two = ("fit", "--dataset", dataset, "--model", "latent-trait", "--components", "2", "--json")
    other = ("fit", "--dataset", dataset, "--json")
    paths = [cli(*command).json["artifact"] for command in (two, other)]
    line = ("export", "--what", "information", "--output", "t.csv")
    assert "The fit has 2 traits." in cli(*line, "--artifact", paths[0]).check_refused()
    assert "no information curves" in cli(*line, "--artifact", paths[1]).check_refused()
    refused = cli(*line, "--artifact", artifact, "--items", "3").check_refused()
    assert "--what short-test and --items need each other" in refused
    line = ("export", "--what", "short-test", "--output", "t.csv", "--artifact", artifact)
    assert "--what short-test and --items need each other" in cli(*line).check_refused()
    assert "Choose 1 to 6." in cli(*line, "--items", "7").check_refused()
    line = ("transform", "--dataset", dataset, "--artifact", paths[1], "--output", "z.zarr")
    assert "has no person fit" in cli(*line, "--person-fit").check_refused()
    assert not Path("t.csv").exists()


def test_expected_scores_count_items_that_point_the_other_way_in_reverse(cli, plain_cli) -> None:
    rng = np.random.default_rng(1)
    eta = np.outer(rng.normal(size=400), [1.2, 2.0, -1.5, 1.2]) + rng.logistic(size=(400, 4))
    table = pd.DataFrame((eta > 0).astype(int), columns=["a", "b", "c", "d"])
    table.to_csv("x.csv", index=False)
    assert cli("ingest", "x.csv", "--dataset", "x.zarr").code == 0
    line = ("fit", "--dataset", "x.zarr", "--model", "latent-trait", "--components", "1")
    artifact = cli(*line, "--json").json["artifact"]
    line = ("export", "--artifact", artifact, "--what", "information", "--output", "t.csv")
    assert "counts these items in reverse, by their slopes: c" in plain_cli(*line).out
    score = pd.read_csv("t.csv")["expected_score"]
    assert score.is_monotonic_increasing
    assert score.between(0, 4).all()
