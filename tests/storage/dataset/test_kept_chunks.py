"""The cache of chunks: what stays, what is evicted, and what is read again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.data.blocks import RowSource
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics
from pipeline.models.clipped_pca import ClippedPCA
from storage.dataset import chunks as kept_chunks
from storage.dataset.chunks import clear_chunk_cache, get_or_read_chunk, read_chunks_ahead
from storage.dataset.dataset import BinaryDataset, ChunkReader
from tests.support.clusters import LoggedReader
from tests.support.data import write_arrays


@dataclass
class Bytes:
    nbytes: int


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    clear_chunk_cache()
    yield
    clear_chunk_cache()


@pytest.fixture
def ask() -> Callable[..., list[int]]:
    """Request chunks of 10 bytes; return the keys that had to be read."""

    def asked(rows: str, keys: range, memory: int) -> list[int]:
        read: list[int] = []

        def reading(key: int) -> Bytes:
            read.append(key)
            return Bytes(10)

        for key in keys:
            assert get_or_read_chunk(rows, key, memory, lambda key=key: reading(key)).nbytes == 10
        return read

    return asked


def test_what_fits_is_read_once(ask: Callable[..., list[int]]) -> None:
    assert ask("a", range(5), 50) == [0, 1, 2, 3, 4]
    assert ask("a", range(5), 50) == []


def test_what_does_not_fit_is_read_again_and_the_rest_stays(ask: Callable[..., list[int]]) -> None:
    ask("a", range(5), 39)
    for _ in range(3):
        assert ask("a", range(5), 39) == [3, 4]
    assert sum(chunk.nbytes for chunk in kept_chunks._cache.values()) == 30


def test_other_rows_make_room_oldest_first(ask: Callable[..., list[int]]) -> None:
    ask("a", range(3), 50)
    ask("b", range(4), 50)
    assert ask("b", range(4), 50) == []
    assert set(kept_chunks._cache) == {("a", 2), *(("b", key) for key in range(4))}


def test_without_memory_nothing_is_kept_and_nothing_dropped(ask: Callable[..., list[int]]) -> None:
    ask("a", range(2), 20)
    assert ask("b", range(2), 0) == [0, 1]
    assert ask("b", range(2), 0) == [0, 1]
    assert ask("a", range(2), 20) == []


def test_parts_of_a_chunk_are_worked_on_after_a_single_read(ask: Callable[..., list[int]]) -> None:
    for _ in range(3):
        ask("a", range(7, 8), 0)
    assert ask("a", range(7, 9), 0) == [8]


def test_threads_that_need_the_same_chunk_read_it_once() -> None:
    read: list[int] = []
    begun = threading.Barrier(4)

    def reading() -> Bytes:
        read.append(0)
        time.sleep(0.2)
        return Bytes(10)

    def get_chunk() -> Bytes:
        begun.wait()
        return get_or_read_chunk("a", 0, 0, reading)

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(get_chunk) for _ in range(4)]
    assert len({id(future.result()) for future in found}) == len(read) == 1


def test_a_reader_keeps_whole_chunks_of_its_own_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).integers(0, 2, (300, 7)).astype(np.uint8)
    split = np.where(np.arange(300) % 3, "train", "test")
    dataset = write_arrays(tmp_path / "d.zarr", X, words_per_chunk=2, columns={"split": split})
    read: list[int] = []
    read_chunk = BinaryDataset.read_chunk

    def counted(self: BinaryDataset, key: int, *more: object) -> object:
        read.append(key)
        return read_chunk(self, key, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(BinaryDataset, "read_chunk", counted)
    for split_name in ("train", "test"):
        reader = ChunkReader(str(dataset.path), dataset.digest, split_name, memory=1 << 20)
        for _ in range(3):
            chunks = [reader(key) for key in range(3)]
        kept_rows = np.concatenate([chunk.rows[chunk.keep] for chunk in chunks])
        np.testing.assert_array_equal(kept_rows, np.flatnonzero(split == split_name))
    assert read == [0, 1, 2] * 2


def test_chunks_are_read_ahead_once_and_those_not_needed_are_given_up() -> None:
    read: list[int] = []

    def read_chunk(key: int) -> Bytes:
        read.append(key)
        if read == [2]:
            raise OSError("a store that is busy")
        return Bytes(10)

    read_chunks_ahead("a", [2], 2, read_chunk)
    for keys in ([2, 3], [3, 4], [5, 7]):  # 4 is not needed after all
        read_chunks_ahead("a", keys, 2, read_chunk)
        get_or_read_chunk("a", keys[0], 0, lambda key=keys[0]: read_chunk(key))
    read_chunks_ahead("a", [7, 8], 2, read_chunk)
    assert [*kept_chunks._ahead] == [("a", 7), ("a", 8)]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(read_chunks_ahead, "a", [8, 9], 2, read_chunk).result()
        assert pool.submit(get_or_read_chunk, "a", 8, 0, lambda: Bytes(20)).result().nbytes == 10
    assert [*kept_chunks._ahead] == [("a", 7), ("a", 9)]  # two threads may have four chunks
    for key in (7, 9):
        assert get_or_read_chunk("a", key, 0, lambda: Bytes(20)).nbytes == 10
    assert read[0] == 2
    assert sorted({*read} - {4}) == [2, 3, 5, 7, 8, 9]
    assert len(read) - read.count(4) == 7  # 2 failed the first time


def test_features_are_counted_without_reading(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((300, 3)) < 0.3).astype(np.uint8)
    split = {"split": np.array(["train", "test"])[rng.integers(0, 2, 300)]}
    dataset = write_arrays(tmp_path / "d.zarr", X, columns=split, words_per_chunk=2)
    kept = [*range(128), *range(256, 300)]
    log = tmp_path / "log"

    def count(
        dataset: BinaryDataset, split: str | None = None, skipped: tuple[int, ...] = ()
    ) -> tuple[bool, int]:
        reader = dataset.make_reader(split, skipped=skipped)
        reader = LoggedReader(**vars(reader), log=str(log))
        rows = RowSource(reader, dataset.rows_per_chunk, dataset.n_planes, dataset.n_segments)
        first = collect_first_statistics(ClippedPCA(), rows, SerialExecutor(), 0).to_arrays()
        reads = log.exists()
        log.unlink(missing_ok=True)
        read = replace(rows, read=lambda key: reader(key))
        expected = collect_first_statistics(ClippedPCA(), read, SerialExecutor(), 0).to_arrays()
        for name, values in expected.items():
            np.testing.assert_array_equal(first[name], values, err_msg=name, strict=True)
        log.unlink(missing_ok=True)
        clear_chunk_cache()
        return reads, first["ones"].sum()

    assert count(dataset) == (False, X.sum())
    assert count(dataset, skipped=(1,)) == (False, X[kept].sum())
    assert count(dataset.view_planes(["b"], {}, [1])) == (False, X[:, 1].sum())
    assert count(dataset, split="test") == (True, X[split["split"] == "test"].sum())
    assert count(dataset.segment_by("split")) == (True, X.sum())
    segments = write_arrays(tmp_path / "s.zarr", X, segments=split["split"].tolist())
    assert count(segments) == (True, X.sum())
    observed = (rng.random(X.shape) < 0.9).astype(np.uint8)
    missing = write_arrays(tmp_path / "m.zarr", X, observed, words_per_chunk=2)
    assert count(missing) == (True, (X * observed).sum())
