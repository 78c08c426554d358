"""Damaged chunks: refused by name, or left out when that is asked for, and recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from storage import load_artifact, open_dataset
from storage.artifacts.artifacts import load_packed
from storage.errors import DamagedChunkError, DataError
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.faults import flip_middle_bit
from tests.support.object_proxy import DENIED, ProxyRequest

N_ROWS, CHUNK_ROWS = 64 * 20, 64
DAMAGED = (3, 11)
X = draw_probit_rows(N_ROWS, 8, 2, seed=3)[0]
MODELS = [
    ("--model", "clipped-pca", "--components", 2),
    ("--model", "latent-trait", "--components", 2),
    ("--model", "blica", "--components", 2, "--set", "regularization=20"),
]
NAMES = ["clipped-pca", "latent-trait", "blica"]


def segments(n_rows: int) -> list[str]:
    return [f"s{n // CHUNK_ROWS % 4}" for n in range(n_rows)]


@pytest.fixture
def damaged(tmp_path) -> Path:
    """A dataset of 20 chunks: one has a wrong bit, of another nothing is left."""
    path = write_arrays(tmp_path / "d.zarr", X, segments=segments(N_ROWS), words_per_chunk=1).path
    flip_middle_bit(chunk(path, 3))
    chunk(path, 11).unlink()
    return path


def chunk(dataset: Path, key: int) -> Path:
    return dataset / "bits" / "c" / "0" / str(key)


def arrays_of(artifact: str) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_artifact(artifact).items()}


@pytest.fixture
def fitted(cli, tmp_path):
    """Fit; return the artifact."""

    def call(dataset: Path, *options: object) -> str:
        done = cli("fit", "--dataset", dataset, "--no-report", *options, "--json")
        assert done.code == 0, done.err
        return done.json["artifact"]

    return call


@pytest.mark.parametrize(
    "model",
    [MODELS[0], *(pytest.param(model, marks=pytest.mark.matrix) for model in MODELS[1:])],
    ids=NAMES,
)
def test_damaged_chunks_are_left_out_and_recorded(cli, fitted, damaged, cluster, model):
    options = (*model, "--skip-corrupt")
    artifact = fitted(damaged, *options, "--executor", "serial")
    manifest = load_artifact(artifact).manifest
    rows = [{"chunk": k, "first_row": CHUNK_ROWS * k, "n_rows": CHUNK_ROWS} for k in DAMAGED]
    assert manifest["skipped_chunks"] == rows
    assert manifest["skip_corrupt"] is True
    assert manifest["n_samples"] == N_ROWS - 2 * CHUNK_ROWS
    told = "2 of 20 chunks, 128 rows, are damaged and left out: 3 (rows 193 to 256), 11 (rows 705"
    assert any(told in warning for warning in manifest["warnings"])
    table = cli("fit", "--dataset", damaged, *options, "--executor", "threads").out
    assert "2 of 20 chunks, 128 rows" in table
    on_threads = table.strip().splitlines()[-1].removeprefix("artifact: ")
    for other in (on_threads, fitted(damaged, *options, "--cluster", cluster)):
        assert arrays_of(other) == arrays_of(artifact)


def test_the_other_rows_are_fitted(fitted, damaged, tmp_path):
    whole = np.ones(N_ROWS, bool)
    for key in DAMAGED:
        whole[CHUNK_ROWS * key : CHUNK_ROWS * (key + 1)] = False
    names = [name for name, kept in zip(segments(N_ROWS), whole, strict=True) if kept]
    rest = write_arrays(tmp_path / "rest.zarr", X[whole], segments=names, words_per_chunk=1).path
    skipping, alone = fitted(damaged, "--skip-corrupt"), fitted(rest, "--skip-corrupt")
    assert arrays_of(skipping) == arrays_of(alone)
    assert load_artifact(alone).manifest["skipped_chunks"] == []


def test_without_the_option_the_first_is_named(cli, damaged):
    done = cli("fit", "--dataset", damaged)
    assert done.code == 2
    assert f"{damaged}: bits: chunk 3 is damaged" in done.message
    given = ("--dataset", damaged, "--artifact", "a", "--output", "z")
    done = cli("transform", *given, "--skip-corrupt")
    assert done.code == 2
    assert "--skip-corrupt" in done.message


def test_sums_beside_the_dataset_are_of_all_chunks(fitted, damaged, monkeypatch):
    monkeypatch.setattr("flows.fitting.checkpoints._MAX_SHARE", 1e3)  # the dataset is tiny
    fitted(damaged, "--skip-corrupt")
    assert not (damaged / "statistics").exists()
    for key in (3, 11):
        write_again = write_arrays(damaged.parent / f"again-{key}.zarr", X, words_per_chunk=1).path
        shutil.copy(chunk(write_again, key), chunk(damaged, key))
    whole = fitted(damaged)
    assert load_artifact(whole).manifest["skipped_chunks"] == []
    assert list((damaged / "statistics").iterdir())
    chunk(damaged, 11).unlink()
    skipping = load_artifact(fitted(damaged, "--skip-corrupt")).manifest
    assert skipping["n_samples"] == N_ROWS - CHUNK_ROWS


@pytest.mark.matrix
def test_a_resumed_fit_leaves_out_the_same(cli, fitted, damaged, monkeypatch):
    """What was mended meanwhile stays out: the first counts were made without it."""
    expected = arrays_of(fitted(damaged, "--skip-corrupt"))
    with monkeypatch.context() as patch:
        patch.setattr("flows.fitting.stages.collect_pass_statistics", interrupted)
        assert cli("fit", "--dataset", damaged, "--skip-corrupt").code == 130
    record = next(Path("runs/d/.unfinished").glob("*/skipped"))
    assert load_packed(record).arrays["skipped"].tolist() == [3, 11]
    flip_middle_bit(chunk(damaged, 3))
    assert arrays_of(fitted(damaged, "--skip-corrupt", "--resume")) == expected
    assert arrays_of(fitted(damaged, "--skip-corrupt")) != expected


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_is_no_damage_is_never_skipped(damaged, monkeypatch):
    reader = open_dataset(damaged).make_reader()
    assert not reader.is_readable(3)
    assert not reader.is_readable(11)
    for error in (PermissionError(13, "no"), OSError(24, "Too many open files"), MemoryError()):
        with monkeypatch.context() as patch:
            patch.setattr("storage.dataset.dataset.BinaryDataset.open_array", failing(error))
            with pytest.raises(DataError, match="cannot be read") as raised:
                reader.is_readable(0)
        assert not isinstance(raised.value, DamagedChunkError)


def failing(error: Exception):
    def fail(*_: object) -> None:
        raise error

    return fail


def refuse_chunks(request: ProxyRequest) -> tuple[int, str] | None:
    return DENIED if "/bits/c/" in request.path else None


@pytest.mark.matrix
def test_a_store_that_refuses_is_no_damage(cli, faulty, faulty_bucket):
    dataset = f"{faulty_bucket}/d.zarr"
    np.savez("x.npz", X=X)
    assert cli("ingest", "x.npz", "--dataset", dataset).code == 0
    options = ("fit", "--dataset", dataset, "--skip-corrupt", "--executor", "serial")
    faulty.fault = refuse_chunks
    done = cli(*options)
    assert done.code == 2
    assert "the store refused access" in done.message
    faulty.fault = lambda request: None
    done = cli(*options, "--no-report", "--json")
    assert done.json["n_samples"] == N_ROWS
    assert load_artifact(done.json["artifact"]).manifest["skipped_chunks"] == []
