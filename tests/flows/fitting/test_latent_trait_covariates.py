"""The commands after a fit of the latent-trait model with covariates."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import latentbits as lb
from storage.artifacts.artifacts import Artifact, load_artifact
from tests.support.data import write_arrays

SCHOOLS = np.array(["North", "South", "East"], object)
FIT = ("--model", "latent-trait", "--components", 1)
COVARIATES = ("--covariates", "age,school=North")


def write_dataset(folder: Path, n: int, seed: int, schools: Any = SCHOOLS) -> Path:
    """Write answers to six items that depend on age and school."""
    rng = np.random.default_rng(seed)
    age, school = rng.normal(40, 10, n).round(1), rng.integers(0, 3, n)
    x = 0.04 * (age - 40) + np.array([0.0, 0.8, -0.6])[school] + rng.normal(size=n)
    slopes, offsets = np.linspace(0.8, 2.0, 6), np.linspace(-1, 1, 6)
    answers = (rng.random((n, 6)) < expit(x[:, None] * slopes + offsets)).astype(np.uint8)
    columns = {"age": age, "school": schools[school], "sex": np.arange(n) % 2}
    return write_arrays(folder, answers, columns=columns, words_per_chunk=4).path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("covariates")


@pytest.fixture
def fitted(cli: Any, folder: Path) -> Artifact:
    if not (folder / "fits").exists():
        dataset = write_dataset(folder / "d.zarr", 800, 1)
        done = cli("fit", "--dataset", dataset, *FIT, *COVARIATES, "--output", folder / "fits")
        assert done.code == 0
    return load_artifact(folder / "fits")


def test_coefficients_are_a_table(cli: Any, fitted: Artifact) -> None:
    command = ("export", "--artifact", fitted.path, "--what", "coefficients", "--output", "c.csv")
    assert cli(*command).code == 0
    with Path("c.csv").open() as file:
        lines = [*csv.DictReader(file)]
    assert [line["covariate"] for line in lines] == ["age", "school=East", "school=South"]
    values, errors = (
        np.array([float(line[name]) for line in lines]) for name in ("coefficient", "error")
    )
    np.testing.assert_array_equal(values, fitted["coefficients"][:, 0])
    np.testing.assert_array_equal(errors, fitted["coefficients_error"][:, 0])
    assert (abs(values - [0.04, -0.6, 0.8]) < 3 * errors).all()
    np.testing.assert_allclose([float(line["z"]) for line in lines], values / errors)


def test_the_report_and_python_agree(cli: Any, folder: Path, fitted: Artifact) -> None:
    assert cli("report", "--artifact", fitted.path, "--output", "r.html").code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert ">Covariates</h2>" in page
    assert "age, school (against North)" in page
    assert "Coefficients: 95 % intervals" in page
    assert "Population mean" not in page  # a figure of one value
    dataset = lb.open_dataset(folder / "d.zarr")
    own = lb.fit(dataset, "latent-trait", components=1, covariates=["age", "school=North"])
    np.testing.assert_array_equal(own.params.coefficients, fitted["coefficients"])


def test_rows_are_coded_with_their_covariates(cli: Any, folder: Path, fitted: Artifact) -> None:
    """Texts have other codes in the new dataset."""
    other = write_dataset(folder / "other.zarr", 300, 2, schools=SCHOOLS)
    command = ("transform", "--dataset", other, "--artifact", fitted.path, "--output", "z.zarr")
    assert cli(*command).code == 0
    codes = lb.open_codes("z.zarr")["mean"][:]
    dataset = lb.open_dataset(other)
    expected = lb.transform(lb.load(fitted.path), dataset)["mean"]
    np.testing.assert_allclose(codes, expected, atol=1e-6)
    schools = dataset.decode_texts("school", np.concatenate([*_read(dataset, "school")]))
    age = np.concatenate([*_read(dataset, "age")])
    prior = fitted["coefficients"][0, 0] * age
    prior += fitted["coefficients"][1, 0] * (schools == "East")
    prior += fitted["coefficients"][2, 0] * (schools == "South")
    assert np.corrcoef(prior, codes[:, 0])[0, 1] > 0.5
    evaluated = cli("evaluate", "--dataset", other, "--artifact", fitted.path, "--no-baselines")
    assert evaluated.code == 0


def _read(dataset: Any, name: str) -> Any:
    return (values for _, values in dataset.iter_codes(name))


REFUSALS = {
    "model": (("--model", "clipped-pca", *COVARIATES), "cannot use covariates of rows"),
    "column": ((*FIT, "--covariates", "income"), "no per-row column 'income'"),
    "level": ((*FIT, "--covariates", "school=West"), "no level 'West'. It has: East, North"),
    "skip": ((*FIT, *COVARIATES, "--skip-corrupt"), "--covariates cannot be combined with --skip"),
    "start": ((*FIT, "--covariates", "age", "--warm-start"), "has other covariates than this fit"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_options_are_refused(cli: Any, folder: Path, fitted: Artifact, case: str) -> None:
    options, message = REFUSALS[case]
    output = ("--output", folder / "fits")
    refused = cli("fit", "--dataset", folder / "d.zarr", *options, *output)
    assert message in refused.check_refused()


def test_new_levels_are_refused(cli: Any, folder: Path, fitted: Artifact) -> None:
    schools = np.array(["North", "South", "West"], object)
    other = write_dataset(folder / "west.zarr", 100, 3, schools=schools)
    command = ("transform", "--dataset", other, "--artifact", fitted.path, "--output", "w.zarr")
    assert (
        "school is 'West', but the fit has only North, East, South" in cli(*command).check_refused()
    )
