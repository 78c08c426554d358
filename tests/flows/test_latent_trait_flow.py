"""The latent-trait model from its command line: executors, kills, what it refuses and tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from pipeline.executors.base import SerialExecutor
from pipeline.fitting import sample_start
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from storage.artifacts.artifacts import load_artifact
from storage.dataset.dataset import BinaryDataset, open_dataset
from tests.support.data import draw_probit_rows, make_test_row_source, write_arrays
from tests.support.processes import kill_busiest_worker, kill_fit_at, run_fit_until

LATENT_TRAIT = ("--model", "latent-trait")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(20_000, 12, 2, seed=3)
    return write_arrays(tmp_path_factory.mktemp("trait") / "d.zarr", X, words_per_chunk=10).path


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More chunks than one task reads, but fewer rows."""
    X, _ = draw_probit_rows(6000, 12, 2, seed=3)
    return write_arrays(tmp_path_factory.mktemp("short") / "d.zarr", X, words_per_chunk=10).path


def weights(artifact: str) -> bytes:
    return load_artifact(artifact)["weights"].tobytes()


def repeated(*settings: str) -> Any:
    return pytest.param(settings, marks=pytest.mark.matrix)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "settings",
    [
        ("--components", "4"),
        repeated("--set", "estimator=variational"),
        repeated("--set", "estimator=quadrature", "--set", "nodes=7", "--components", "auto"),
        repeated("--set", "estimator=sampling", "--set", "nodes=40"),
    ],
    ids=["ep", "variational", "quadrature", "sampling"],
)
def test_every_executor_gives_the_same_bytes(cli, short, cluster, settings):
    command = ("fit", "--dataset", short, *LATENT_TRAIT, *settings, "--set", "max_iter=5")
    serial = cli(*command, "--executor", "serial", "--json")
    assert serial.code == 0, serial.err
    for options in (("--executor", "threads"), ("--cluster", cluster)):
        other = cli(*command, *options, "--json")
        assert other.code == 0, other.err
        assert weights(other.json["artifact"]) == weights(serial.json["artifact"])


SETTINGS = {"estimator": "sampling", "nodes": 2000, "max_iter": 6}
SPELLED = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
SLOW = [*LATENT_TRAIT, *SPELLED, "--no-report"]


@pytest.fixture(scope="module")
def undisturbed(dataset) -> bytes:
    done = fit_model(
        LatentTrait(**SETTINGS), make_test_row_source(open_dataset(dataset)), SerialExecutor()
    )
    assert done.iteration > 3
    return done.params.weights.tobytes()


@pytest.mark.matrix
def test_a_worker_killed_during_a_pass_changes_nothing(cli, dataset, undisturbed):
    """The third pass is under way when the state after the second lies on disk."""
    command = ["--dataset", str(dataset), *SLOW, "--workers", "2"]
    assert run_fit_until("states/000002/manifest.json", command, kill_busiest_worker) == 0
    assert weights("runs/d") == undisturbed


@pytest.mark.matrix
def test_a_killed_client_resumes_to_the_same_bytes(cli, dataset, undisturbed):
    command = ["--dataset", str(dataset), *SLOW]
    kill_fit_at("states/000002/manifest.json", command)
    assert not list(Path("runs/d").glob("latent-trait-*"))
    resumed = cli("fit", *command, "--resume", "--json")
    assert resumed.code == 0, resumed.err
    assert weights(resumed.json["artifact"]) == undisturbed


def test_chunks_are_read_once(cli, dataset, monkeypatch):
    read: list[int] = []
    read_chunk = BinaryDataset.read_chunk

    def counted(self: BinaryDataset, key: int, *more: object) -> object:
        read.append(key)
        return read_chunk(self, key, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(BinaryDataset, "read_chunk", counted)
    command = ("fit", "--dataset", dataset, *LATENT_TRAIT, "--no-report", "--json")
    done = cli(*command, "--set", "max_iter=6", "--set", "nodes=7")
    assert done.json["iterations"] >= 6
    np.testing.assert_array_equal(sorted(read), np.arange(-(-20_000 // 640)))


@pytest.mark.parametrize("model", ["latent-trait", "bernoulli-mixture"])
def test_a_fit_that_starts_on_a_sample_is_that_of_python(
    cli: Any, dataset: Path, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sample_start, "MIN_ROWS", 10_000)
    monkeypatch.setattr(sample_start, "MIN_SAMPLE", 5_000)
    run = ("--output", tmp_path, "--executor", "serial", "--no-report", "--json")
    done = cli("fit", "--dataset", dataset, "--model", model, "--components", 2, *run)
    fitted = lb.fit(lb.open_dataset(dataset), model, components=2)
    assert done.json["diagnostics"]["sample_rows"] == fitted.manifest["diagnostics"]["sample_rows"]
    assert load_artifact(done.json["artifact"]).manifest["history"] == [*fitted.manifest["history"]]
    monkeypatch.setattr(sample_start, "MIN_ROWS", 100_000)
    cold = lb.fit(lb.open_dataset(dataset), model, components=2)
    assert done.json["objective"] == pytest.approx(cold.objective, abs=1e-6)
    assert done.json["iterations"] < cold.manifest["iterations"]
