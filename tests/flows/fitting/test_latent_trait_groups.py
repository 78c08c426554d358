"""The commands after a fit of the latent-trait model in groups."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from storage.artifacts.artifacts import Artifact, load_artifact
from tests.support.data import write_arrays
from tests.support.processes import kill_fit_at

CITIES = ("Rome", "Oslo", "Bern")
FIT = ("--model", "latent-trait", "--components", 1, "--group", "city")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers to six items in three cities, whose traits have other means and variances."""
    rng = np.random.default_rng(1)
    city = np.repeat([0, 1, 2], [300, 250, 350])
    x = np.array([0.0, 0.8, -0.6])[city] + np.array([1.0, 1.3, 0.7])[city] * rng.normal(size=900)
    slopes, offsets = rng.uniform(0.8, 2.0, 6), rng.normal(size=6)
    answers = (rng.random((900, 6)) < expit(x[:, None] * slopes + offsets)).astype(np.uint8)
    columns = {"city": np.array(CITIES, object)[city]}
    folder = tmp_path_factory.mktemp("cities")
    return write_arrays(folder / "d.zarr", answers, columns=columns, words_per_chunk=4).path


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fits")


@pytest.fixture
def fitted(cli: Any, dataset: Path, output: Path) -> Artifact:
    if not [*output.iterdir()]:
        assert cli("fit", "--dataset", dataset, *FIT, "--output", output).code == 0
    return load_artifact(output)


def read_csv(path: str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return [*csv.DictReader(file)]


def test_groups_are_a_table(cli: Any, fitted: Artifact) -> None:
    command = ("export", "--artifact", fitted.path, "--what", "groups", "--output", "g.csv")
    assert cli(*command).code == 0
    lines = read_csv("g.csv")
    assert [line["group"] for line in lines] == [*CITIES]
    variance = fitted["trait_covariance"][:, 0, 0]
    expected = {
        "segment_rows": [300, 250, 350],
        "trait_mean_1": fitted["trait_mean"][:, 0],
        "trait_mean_error_1": fitted["trait_mean_error"][:, 0],
        "trait_variance_1": variance,
        "trait_variance_error_1": fitted["trait_covariance_error"][:, 0, 0],
    }
    assert [*lines[0]] == ["group", *expected]
    for name, values in expected.items():
        np.testing.assert_array_equal([float(line[name]) for line in lines], values)
    assert abs(fitted["trait_mean"][:, 0] - [0.0, 0.8, -0.6]).max() < 0.25


def test_a_fit_without_groups_has_no_such_table(cli: Any, dataset: Path) -> None:
    fit = ("fit", "--dataset", dataset, *FIT[:4], "--json")
    artifact = cli(*fit).json["artifact"]
    refused = cli("export", "--artifact", artifact, "--what", "groups", "--output", "g.csv")
    assert "no parameters of groups. Fit with --group COLUMN." in refused.check_refused()


def test_items_have_their_errors_next_to_them(cli: Any, fitted: Artifact) -> None:
    command = ("export", "--artifact", fitted.path, "--what", "items", "--output", "i.csv")
    assert cli(*command).code == 0
    (names, *_) = [[*line] for line in read_csv("i.csv")]
    for city in CITIES:
        place = names.index(f"group_weights_{city}_1")
        assert names[place + 1] == f"group_weights_error_{city}_1"


def test_the_report_shows_each_group(cli: Any, fitted: Artifact) -> None:
    assert cli("report", "--artifact", fitted.path, "--output", "r.html").code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert ">Groups</h2>" in page
    assert re.search(r"Rome</th><td[^>]*>300</td><td[^>]*>0\.0+ <small>\(fixed\)</small>", page)
    assert "Trait mean by group: 95 % intervals" in page
    lowest, highest = fitted["trait_mean"][[2, 1], 0]
    sentence = f"lowest in Bern (−{-lowest:.3g}"
    assert sentence in page
    assert f"highest in Oslo ({highest:.3g}" in page
    assert "group weights" not in page  # equal in all groups


@pytest.mark.matrix
def test_every_executor_and_a_resumed_fit_give_the_same_bytes(
    cli: Any, dataset: Path, fitted: Artifact
) -> None:
    command = ("fit", "--dataset", dataset, *FIT)
    assert cli(*command, "--executor", "serial", "--output", "serial").code == 0
    kill_fit_at("states/000002/manifest.json", [str(word) for word in command[1:]])
    assert cli(*command, "--resume").code == 0
    for folder in ("serial", "runs/d"):
        other = load_artifact(Path(folder))
        assert {name: other[name].tobytes() for name in other} == {
            name: fitted[name].tobytes() for name in fitted
        }


def test_rows_are_drawn_from_their_groups(cli: Any, fitted: Artifact) -> None:
    command = ("sample", "--artifact", fitted.path, "--rows", 3000, "--output", "s.zarr")
    assert cli(*command).code == 0
    assert cli("fit", "--dataset", "s.zarr", *FIT, "--output", "again").code == 0
    again = load_artifact(Path("again"))
    names = again.manifest["segment_names"]
    order = [names.index(city) for city in CITIES]
    change = again["trait_mean"][order, 0] - again["trait_mean"][order[0], 0]
    assert abs(change - fitted["trait_mean"][:, 0]).max() < 0.3
