"""Sums that stay beside a dataset: what is read again, and that results are the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from flows.fitting import checkpoints as kept_module
from flows.fitting.checkpoints import STATISTICS_FOLDER, open_kept_statistics
from pipeline.data.blocks import RowSource, Tile
from pipeline.executors.base import SerialExecutor
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.counts import FeatureCounts, PairCounts
from storage.artifacts.artifacts import load_artifact
from storage.dataset.chunks import clear_chunk_cache
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from tests.support.clusters import LoggedReader
from tests.support.data import ArrayBatch, draw_probit_rows
from tests.support.data import write_arrays as write_rows

N_FEATURES, ROWS_A_CHUNK = 6, 64 * 20
NAMES = [f"f{i}" for i in range(N_FEATURES)]
SPLITS = np.array(["train", "test"])
COUNT = partial(PairCounts.from_block, pooled=False)


def batch(n_chunks: int, seed: int, missing: bool) -> tuple[ArrayBatch, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (n_chunks * ROWS_A_CHUNK, N_FEATURES)
    mask = (rng.random(shape) < 0.9).astype(np.uint8) if missing else None
    X = (rng.random(shape) < 0.4).astype(np.uint8)
    split = SPLITS[rng.integers(0, 2, shape[0])]
    return ArrayBatch(X, mask, {"split": split}), np.array(["a", "b"])[rng.integers(0, 2, shape[0])]


def write(path: Path, parts: list[tuple[int, bool]]) -> BinaryDataset:
    """Write so many chunks, with missing values or without; the first part, then as appends."""
    for seed, (n_chunks, missing) in enumerate(parts):
        writing = (
            append_dataset(path, NAMES)
            if seed
            else create_dataset(path, NAMES, columns=["split"], words_per_chunk=22)
        )
        with writing as writer:
            writer.add(*batch(n_chunks, seed, missing))
    return open_dataset(path)


def counted(
    dataset: BinaryDataset,
    log: Path,
    *,
    split: str | None = None,
    tiles: tuple[Tile | None, ...] = (None,),
    what: str = "pairs",
) -> tuple[dict[str, bytes], int]:
    """Count pairs by segment; return the bytes, and how many chunks were read, once or more."""
    log.write_text("")
    clear_chunk_cache()
    reader = LoggedReader(str(dataset.path), dataset.digest, split, log=str(log))
    rows = RowSource(reader, dataset.rows_per_chunk, N_FEATURES, dataset.n_segments)
    kept = open_kept_statistics(dataset, split, PairCounts, what)
    found = collect_statistics(COUNT, rows, SerialExecutor(), "pairs", tiles, kept=kept)
    arrays = {name: np.asarray(a).tobytes() for name, a in found.to_arrays().items()}
    keys = log.read_text().split()
    assert len(keys) <= len(tiles) * len(set(keys))  # tiles of a task share a read
    return arrays, len(set(keys))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "read"


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small datasets, whose sums would be too large to keep."""
    monkeypatch.setattr(kept_module, "_MAX_SHARE", 1e9)


PARTS = [(3, False), (2, False), (3, True), (1, False), (14, True), (8, False), (1, False)]
TILES = (Tile((0, 3), (0, 6)), Tile((3, 6), (3, 6)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[BinaryDataset]:
    """The first of the parts, the first two, and so on, each written at once."""
    folder = tmp_path_factory.mktemp("whole")
    return [write(folder / f"{k}.zarr", PARTS[:k]) for k in range(1, len(PARTS) + 1)]


@pytest.mark.parametrize(
    ("tiles", "split"),
    [
        ((None,), None),
        (TILES, "train"),
        ((None,), "train"),
        pytest.param(TILES, None, marks=pytest.mark.matrix),
    ],
    ids=["whole", "tiles of a split", "whole of a split", "tiles"],
)
@pytest.mark.matrix
def test_only_appended_chunks_are_read(tmp_path, log, roomy, whole, split, tiles) -> None:
    before, grown = 0, None
    for fresh in whole:
        grown = write(tmp_path / "d.zarr", PARTS[:1]) if grown is None else grown_by(grown)
        assert grown.digest == fresh.digest
        found, _ = counted(grown, log, split=split, tiles=tiles)
        read = sorted(map(int, set(log.read_text().split())))
        alone = f"pairs of {split} in {len(tiles)} tiles"  # which nobody has kept
        expected, n_all = counted(fresh, log, split=split, tiles=tiles, what=alone)
        assert found == expected
        assert n_all == fresh.n_chunks
        assert read == list(range(before, grown.n_chunks))
        assert counted(grown, log, split=split, tiles=tiles) == (expected, 0)
        before = grown.n_chunks
    assert before > 24


def grown_by(dataset: BinaryDataset) -> BinaryDataset:
    """Append the next of the parts."""
    done = next(k for k in range(len(PARTS)) if rows_of(PARTS[: k + 1]) == dataset.n_rows)
    with append_dataset(dataset.path, NAMES) as writer:
        writer.add(*batch(PARTS[done + 1][0], done + 1, PARTS[done + 1][1]))
    return open_dataset(dataset.path)


def rows_of(parts: list[tuple[int, bool]]) -> int:
    return sum(n_chunks for n_chunks, _ in parts) * ROWS_A_CHUNK


class Updates(NamedTuple):
    """A one in the first feature of some rows, whatever it was."""

    rows: np.ndarray

    @property
    def X(self) -> np.ndarray:
        return np.eye(1, N_FEATURES, dtype=np.uint8).repeat(len(self.rows), axis=0)

    observed = property(lambda self: self.X)
    missing = property(lambda self: np.zeros_like(self.X))


@pytest.mark.parametrize(("chunk", "n_read"), [(24, 1), (17, 9), (3, 25)])
def test_chunks_before_an_updated_one_are_not_read(tmp_path, log, roomy, chunk, n_read) -> None:
    dataset = write(tmp_path / "d.zarr", [(27, False)])
    counted(dataset, log)
    assert dataset.n_chunks == 25
    with append_dataset(dataset.path, NAMES) as writer:
        writer.update([Updates(dataset.chunks[chunk, :1] + np.arange(50))], "last", str)
    updated = open_dataset(dataset.path)
    assert updated.digest != dataset.digest
    found, n = counted(updated, log)
    expected, _ = counted(updated, log, what="alone")
    # Two groups of 8 chunks are summed together, a third one is alone, one chunk remains.
    assert (found, n) == (expected, n_read)


@pytest.fixture
def dataset(tmp_path: Path, roomy: None) -> BinaryDataset:
    return write(tmp_path / "d.zarr", [(10, False)])


def kept_folders(dataset: BinaryDataset) -> list[Path]:
    return sorted(Path(str(dataset.path), STATISTICS_FOLDER).iterdir())


def test_other_rows_and_other_counts_are_kept_apart(dataset, log) -> None:
    wholes = [
        counted(dataset, log, **options)[1] for options in ({}, {"split": "test"}, {"what": "x"})
    ]
    assert wholes == [dataset.n_chunks] * 3
    assert len(kept_folders(dataset)) == 3
    assert counted(dataset, log, split="test")[1] == 0


def test_sums_of_other_data_are_not_used(tmp_path: Path, dataset, log) -> None:
    counted(dataset, log)
    with create_dataset(
        tmp_path / "e.zarr", NAMES, columns=["split"], words_per_chunk=22
    ) as writer:
        writer.add(*batch(10, 7, False))
    other = open_dataset(tmp_path / "e.zarr")
    shutil.copytree(dataset.path / STATISTICS_FOLDER, other.path / STATISTICS_FOLDER)
    assert counted(other, log)[1] == other.n_chunks


@pytest.mark.parametrize("harm", ["chunk", "manifest"])
def test_damaged_sums_are_counted_again(dataset, log, harm: str) -> None:
    expected, _ = counted(dataset, log)
    (folder,) = kept_folders(dataset)
    broken = folder / "manifest.json" if harm == "manifest" else folder / "packed" / "c" / "0"
    broken.write_bytes(b"{" + broken.read_bytes()[:-7])
    assert counted(dataset, log) == (expected, dataset.n_chunks)
    if harm == "manifest":
        assert counted(dataset, log) == (expected, 0)


def test_sums_of_other_code_are_dropped(dataset, log, monkeypatch) -> None:
    counted(dataset, log)
    before = kept_folders(dataset)
    monkeypatch.setattr(kept_module, "digest_modules", lambda *modules: "other")
    assert counted(dataset, log)[1] == dataset.n_chunks
    assert len(kept_folders(dataset)) == 1
    assert kept_folders(dataset) != before


def test_sums_that_no_fit_used_for_months_make_room(dataset, log, monkeypatch) -> None:
    counted(dataset, log)
    (first,) = kept_folders(dataset)
    size = json.loads((first / "manifest.json").read_text())["bytes"]
    n_bytes = 8 * int(dataset.chunks[:, 2].sum()) * N_FEATURES
    monkeypatch.setattr(kept_module, "_MAX_SHARE", 1.5 * size / n_bytes)  # for one of two
    for is_used in (True, False):
        for file in first.rglob("*"):
            os.utime(file, (0, time.time() - 91 * 86_400))
        if is_used:
            assert counted(dataset, log)[1] == 0
        assert counted(dataset, log, what="other")[1] == dataset.n_chunks
        assert (kept_folders(dataset) == [first]) == is_used
    assert counted(dataset, log, what="other")[1] == 0
    assert len(kept_folders(dataset)) == 1


def test_no_more_is_kept_than_a_tenth_of_the_data(tmp_path: Path, log) -> None:
    small = write(tmp_path / "small.zarr", [(1, False)])
    for _ in "ab":
        assert counted(small, log)[1] == 1
    assert not (small.path / STATISTICS_FOLDER).exists()


def test_a_folder_that_cannot_be_written_does_no_harm(dataset, log) -> None:
    (dataset.path / STATISTICS_FOLDER).write_text("in the way")
    for _ in "ab":
        assert counted(dataset, log)[1] == dataset.n_chunks


def test_what_hangs_on_parameters_is_not_kept(dataset) -> None:
    kept: Any = open_kept_statistics(dataset, None, FeatureCounts, None)
    assert kept.load(None).n_chunks == 0
    assert not (dataset.path / STATISTICS_FOLDER).exists()


OLD, NEW = slice(9_000), slice(9_000, None)


def arrays_of(artifact: str) -> dict[str, bytes]:
    found = load_artifact(artifact)
    return {name: found[name].tobytes() for name in found}


def log_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the keys of all chunks are added that are read."""
    read: list[int] = []
    read_chunk = BinaryDataset.read_chunk

    def logged(self: BinaryDataset, key: int, *others: Any) -> Any:
        read.append(key)
        return read_chunk(self, key, *others)

    monkeypatch.setattr(BinaryDataset, "read_chunk", logged)
    return read


@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("--model", "blica"), marks=pytest.mark.matrix)],
    ids=["clipped-pca", "blica"],
)
def test_a_refit_reads_what_was_appended_and_gives_the_same_bytes(
    cli, tmp_path: Path, roomy, monkeypatch, options: tuple[str, ...]
) -> None:
    read = log_chunks(monkeypatch)
    X, _ = draw_probit_rows(20_200, 8, 2, seed=4)
    segments = [f"s{k}" for k in np.arange(len(X)) * 4 // 20_000]
    write_rows(tmp_path / "d.zarr", X[:20_000], segments=segments[:20_000], words_per_chunk=35)
    command = ("fit", "--components", "2", "--executor", "serial", "--no-report", "--json")
    command += (*options, "--dataset")
    assert cli(*command, "d.zarr").code == 0
    np.savez("new.npz", X=X[20_000:], segment=segments[20_000:])
    added = cli("ingest", "new.npz", "--dataset", "d.zarr", "--append", "--segment-by", "segment")
    assert added.code == 0, added.err
    before, dataset = max(read), open_dataset(tmp_path / "d.zarr")
    shutil.copytree("d.zarr", "fresh.zarr")
    shutil.rmtree(Path("fresh.zarr", STATISTICS_FOLDER))

    read.clear()
    refit = cli(*command, "d.zarr")
    assert refit.json["drift"]["rows_new"] == 200
    assert set(read) == set(range(before + 1, dataset.n_chunks))
    read.clear()
    fresh = cli(*command, "fresh.zarr")
    assert set(read) == set(range(dataset.n_chunks))
    assert arrays_of(refit.json["artifact"]) == arrays_of(fresh.json["artifact"])
    assert open_dataset("fresh.zarr").digest == dataset.digest


def test_sums_of_weighted_rows_are_kept_for_their_column_alone(
    cli, tmp_path: Path, roomy, monkeypatch
) -> None:
    read = log_chunks(monkeypatch)
    X, _ = draw_probit_rows(9_200, 8, 2, seed=4)
    times = np.random.default_rng(4).integers(0, 300, len(X))
    columns = {"times": times, "other": 1 + times % 2}
    old, new = ({name: a[rows] for name, a in columns.items()} for rows in (OLD, NEW))
    write_rows(tmp_path / "d.zarr", X[OLD], words_per_chunk=35, columns=old)
    command = ("fit", "--components", "2", "--executor", "serial", "--no-report", "--json")
    assert cli(*command, "--dataset", "d.zarr", "--weight", "times").code == 0
    before = max(read)
    with append_dataset(tmp_path / "d.zarr", [f"f{i}" for i in range(8)]) as writer:
        writer.add(ArrayBatch(X[NEW], columns=new))
    dataset = open_dataset(tmp_path / "d.zarr")
    shutil.copytree("d.zarr", "fresh.zarr")
    shutil.rmtree(Path("fresh.zarr", STATISTICS_FOLDER))
    everything = set(range(dataset.n_chunks))

    read.clear()
    refit = cli(*command, "--dataset", "d.zarr", "--weight", "times")
    assert set(read) == everything - set(range(before + 1))
    fresh = cli(*command, "--dataset", "fresh.zarr", "--weight", "times")
    assert arrays_of(refit.json["artifact"]) == arrays_of(fresh.json["artifact"])
    for options in (("--weight", "other"), ()):
        read.clear()
        assert cli(*command, "--dataset", "d.zarr", *options).code == 0
        assert set(read) == everything
