"""Models of other packages go through every command, by an entry point or by where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.models import registry
from storage import load_artifact, open_codes, open_dataset
from tests.support.data import draw_probit_rows, write_arrays

CLIMBER = "tests.models.climber:Climber"
LABELLED, PREPARED = "tests.models.labelled:Labelled", "tests.models.prepared:PreparedMixture"
NEIGHBOURS = "tests.models.neighbours:Neighbours"
SETTINGS = {
    CLIMBER: (),
    LABELLED: ("--set", "column=party"),
    PREPARED: (),
    NEIGHBOURS: ("--set", "k=3"),
}
"""Options of each, beside the number of components."""
SAMPLES = (PREPARED,)


def matrix(*names: str) -> list[Any]:
    """Models whose tests are for the matrix."""
    return [pytest.param(name, marks=pytest.mark.matrix) for name in names]


every_model = pytest.mark.parametrize("model", [LABELLED, PREPARED, *matrix(CLIMBER, NEIGHBOURS)])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    X = draw_probit_rows(600, 8, 2, seed=1)[0]
    party = np.array(["left", "right"])[(X.sum(axis=1) > 4).astype(int)]
    path = tmp_path_factory.mktemp("elsewhere") / "d.zarr"
    return str(write_arrays(path, X, words_per_chunk=1, columns={"party": party}).path)


def fitted(cli, data, model, *more):
    asked = ("--model", model, "--components", 2, *SETTINGS[model])
    done = cli("fit", "--dataset", data, *asked, "--json", *more)
    assert done.code == 0, done.err
    return done.json["artifact"]


@pytest.fixture(scope="module")
def fits() -> dict[str, str]:
    """The artifact of each model that was fitted."""
    return {}


@pytest.fixture
def artifact(cli, data, fits, model) -> str:
    """A serial fit, which the tests of a model share."""
    if model not in fits:
        output = Path(data).parent / model.rpartition(":")[2]
        fits[model] = fitted(cli, data, model, "--output", output)
    return fits[model]


@pytest.mark.matrix
@every_model
def test_it_is_fitted_and_used(cli, data, model, artifact):
    done = cli("report", "--artifact", artifact, "--output", "page.html", "--label", "party")
    assert done.code == 0, done.err
    assert Path("page.html").is_file()
    done = cli("transform", "--dataset", data, "--artifact", artifact, "--output", "codes.zarr")
    assert done.code == 0, done.err
    assert open_codes("codes.zarr")["mean"].shape == (600, 2)
    done = cli("evaluate", "--dataset", data, "--artifact", artifact, "--no-baselines", "--json")
    assert done.code == 0, done.err
    (found,) = done.json["models"]
    assert 0.5 < found["neighbourhoods"]["trustworthiness"] < 1
    assert ("pairs" in found) == (model in SAMPLES)
    assert any("cannot draw rows" in text for text in found["warnings"]) == (model not in SAMPLES)
    done = cli("evaluate", "--dataset", data, "--artifact", artifact, "--no-baselines")
    assert done.code == 0, done.err
    assert artifact in done.out


@every_model
def test_it_is_sampled_or_refused_in_plain_words(cli, model, artifact):
    done = cli("sample", "--artifact", artifact, "--rows", 100, "--output", "drawn.zarr")
    if model in SAMPLES:
        assert open_dataset("drawn.zarr").n_rows == 100
    else:
        assert done.code == 2
        assert "cannot draw rows" in done.message
        assert not Path("drawn.zarr").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("model", [CLIMBER, LABELLED, *matrix(PREPARED)])
def test_every_executor_gives_the_same_bytes(cli, data, model, artifact, cluster):
    expected = arrays_of(artifact)
    for where in (("--executor", "threads"), ("--cluster", cluster)):
        assert arrays_of(fitted(cli, data, model, *where)) == expected


def arrays_of(artifact):
    return {name: array.tobytes() for name, array in load_artifact(artifact).items()}


@pytest.mark.parametrize("model", [PREPARED])
def test_what_is_prepared_is_stored_and_used(cli, data, artifact):
    stored = load_artifact(artifact)
    assert stored["log_z_error"] > 0
    done = cli("evaluate", "--dataset", data, "--artifact", artifact, "--json")
    (found,) = (model for model in done.json["models"] if model["name"] == artifact)
    assert len(done.json["models"]) > 1  # the simple models beside it
    assert found["kind"] == "estimate"
    # All rows share it, so that it does not shrink with their number.
    assert found["estimation_error"] == pytest.approx(float(stored["log_z_error"]))


def test_a_column_that_is_not_there_is_refused_at_once(cli, data):
    done = cli("fit", "--dataset", data, "--model", LABELLED, "--set", "column=sex")
    assert done.code == 2
    assert "there is no per-row column 'sex'. It has: party." in done.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.models.climber:Nothing", "Use the form package.module:Class"),
        ("tests.models.nowhere:Climber", "Use the form package.module:Class"),
        ("tests.models.climber:ClimberParams", "Derive it from pipeline.models.base.Model"),
    ],
)
def test_what_is_no_model_is_refused(cli, data, name, message):
    done = cli("fit", "--dataset", data, "--model", name)
    assert done.code == 2
    assert message in done.message


@pytest.fixture
def as_in_a_new_process(monkeypatch) -> Iterator[None]:
    """Forget which models were named."""
    monkeypatch.setattr(registry, "_imported_models", {})
    registry._list_entry_points.cache_clear()
    yield
    registry._list_entry_points.cache_clear()


def test_a_package_declares_its_model_by_an_entry_point(
    cli, data, tmp_path, monkeypatch, as_in_a_new_process
):
    folder = tmp_path / "site" / "elsewhere-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    declared = f"[latentbits.models]\nclimber = {CLIMBER}\n"
    (folder / "entry_points.txt").write_text(declared)
    monkeypatch.syspath_prepend(folder.parent)
    fit = ("fit", "--dataset", data, "--model", "climber", "--output", "runs")
    transform = ("transform", "--dataset", data, "--artifact", "runs", "--output", "codes.zarr")
    for words in (fit, transform):  # by its name alone
        done = cli(*words)
        assert done.code == 0, done.err
        monkeypatch.setattr(registry, "_imported_models", {})
    assert open_codes("codes.zarr").n_rows == 600


@pytest.mark.parametrize("model", [LABELLED])
def test_an_artifact_alone_decides_no_import(
    cli, data, artifact, model, monkeypatch, as_in_a_new_process
):
    words = ("transform", "--dataset", data, "--artifact", artifact, "--output", "z.zarr")
    done = cli(*words)
    assert (done.code, "LATENTBITS_MODELS" in done.message) == (2, True)
    monkeypatch.setenv("LATENTBITS_MODELS", model)
    assert cli(*words).code == 0
