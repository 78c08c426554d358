"""The latent-trait model from its command line: executors, kills, what it refuses and tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.artifacts import load_artifact
from storage.dataset import BinaryDataset
from tests.data import probit_rows, write
from tests.processes import fit_reaching, kill_a_worker, kill_fit_at

LATENT_TRAIT = ("--model", "latent-trait")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = probit_rows(20_000, 12, 2, seed=3)
    return write(tmp_path_factory.mktemp("trait") / "d.zarr", X, words_per_chunk=10).path


def weights(artifact: str) -> bytes:
    return load_artifact(artifact)["weights"].tobytes()


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("--set", "estimator=quadrature", "--set", "nodes=7", "--components", "auto"),
        ("--set", "estimator=sampling", "--set", "nodes=40"),
    ],
    ids=["variational", "quadrature", "sampling"],
)
def test_every_executor_gives_the_same_bytes(cli, dataset, settings):
    command = ("fit", "--dataset", dataset, *LATENT_TRAIT, *settings, "--set", "max_iter=5")
    serial = cli(*command, "--executor", "serial", "--json")
    assert serial.code == 0, serial.err
    for options in (("--executor", "threads"), ("--executor", "dask"), ("--workers", "2")):
        other = cli(*command, *options, "--json")
        assert other.code == 0, other.err
        assert weights(other.json["artifact"]) == weights(serial.json["artifact"])


SLOW = (*LATENT_TRAIT, "--set", "estimator=sampling", "--set", "nodes=2000", "--set", "max_iter=6")


@pytest.fixture
def undisturbed(cli, dataset) -> bytes:
    done = cli("fit", "--dataset", dataset, *SLOW, "--output", "undisturbed", "--json")
    assert done.json["iterations"] > 3
    return weights(done.json["artifact"])


def test_a_worker_killed_during_a_pass_changes_nothing(cli, dataset, undisturbed):
    """The third pass is under way when the state after the second lies on disk."""
    command = ["--dataset", str(dataset), *SLOW, "--workers", "2"]
    assert fit_reaching("states/000002/manifest.json", command, kill_a_worker) == 0
    assert weights("runs/d") == undisturbed


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
    done = cli(*command, "--set", "max_iter=6")
    assert done.json["iterations"] >= 6
    np.testing.assert_array_equal(sorted(read), np.arange(-(-20_000 // 640)))
