"""The neighbours command: whose neighbours each row has, the same bytes everywhere, refusals."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import open_codes
from storage.codes.codes import ResumableResults
from tests.pipeline.numerics.graphs.test_neighbours import all_distances, nearest
from tests.storage.conftest import files_of, write_dataset
from tests.support.strategies import DenseData

N_ROWS, N_QUERIES, RUN = 300, 70, 60


def drawn(n_rows: int, seed: int) -> DenseData:
    rng = np.random.default_rng(seed)
    X, mask = (rng.random((2, n_rows, 9)) < [[[0.4]], [[0.8]]]).astype(np.uint8)
    return DenseData(X * mask, mask, rng.integers(0, 3, n_rows))


DATA, QUERIES = drawn(N_ROWS, 0), drawn(N_QUERIES, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`d.zarr` with chunks of 256 slots and three segments, `q.zarr`, and `o.zarr` of others."""
    folder = tmp_path_factory.mktemp("neighbours")
    for name, data in (("d", DATA), ("q", QUERIES)):
        segments = data.labels.astype(str)
        write_dataset(folder / f"{name}.zarr", data.X, data.mask, segments, words_per_chunk=4)
    write_dataset(folder / "o.zarr", DATA.X[:, :8])
    return folder


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr("pipeline.passes.row_ranges._MIN_ROWS", RUN)


@pytest.fixture
def found(cli, folder):
    """Call the command; return its summary."""

    def call(*options: object) -> dict[str, Any]:
        done = cli(
            "neighbours", "--dataset", folder / "d.zarr", *options, "--output", "n.zarr", "--json"
        )
        assert done.code == 0, done.err
        return done.json

    return call


@pytest.mark.parametrize("metric", ["hamming", "jaccard"])
def test_neighbours_are_the_nearest_of_all_rows(found, metric):
    summary = found("--metric", metric, "--k", 7)
    codes, rows = open_codes("n.zarr"), np.arange(N_ROWS)
    expected = nearest(all_distances(metric, DATA, DATA), 7, rows, rows)
    assert (summary["n_rows"], summary["k"], codes.n_chunks) == (N_ROWS, 7, N_ROWS // RUN)
    assert codes.dims("indices") == ("row", "neighbour")
    np.testing.assert_array_equal(codes["indices"], expected.indices, strict=True)
    np.testing.assert_array_equal(codes["distances"], expected.distances, strict=True)


def test_queries_have_neighbours_among_the_dataset(found, folder):
    found("--queries", folder / "q.zarr", "--k", N_ROWS)
    codes = open_codes("n.zarr")
    parts = np.full(N_QUERIES, -1), np.arange(N_ROWS)
    expected = nearest(all_distances("hamming", QUERIES, DATA), N_ROWS, *parts)
    np.testing.assert_array_equal(codes["indices"], expected.indices)
    np.testing.assert_array_equal(codes["distances"], expected.distances)


@pytest.mark.matrix
def test_every_executor_gives_the_same_bytes(found, cluster):
    found("--executor", "serial")
    serial = files_of(Path("n.zarr"))
    for options in (("--executor", "threads"), ("--cluster", cluster)):
        found(*options, "--overwrite")
        assert files_of(Path("n.zarr")) == serial, options


def test_an_interrupted_search_resumes_to_the_same_bytes(cli, found, folder, monkeypatch):
    note = ResumableResults.record_finished

    def interrupted(self: ResumableResults, checksums: list[list[int]]) -> None:
        note(self, checksums)
        if len(checksums) == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ResumableResults, "record_finished", interrupted)
        given = ("--dataset", folder / "d.zarr", "--output", "n.zarr")
        assert cli("neighbours", *given).code == 130
    assert [path.name for path in Path().iterdir()] == [".n.zarr.unfinished"]
    first, lost = (Path(f".n.zarr.unfinished/codes/indices/c/{key}/0") for key in (0, 1))
    inode = first.stat().st_ino
    lost.write_bytes(b"")
    found("--resume")
    assert Path("n.zarr/indices/c/0/0").stat().st_ino == inode
    resumed = files_of(Path("n.zarr"))
    found("--overwrite")
    assert files_of(Path("n.zarr")) == resumed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--k", N_ROWS), f"Choose 1 to {N_ROWS - 1}."),
        (("--k", 0), f"Choose 1 to {N_ROWS - 1}."),
        (("--queries", "q.zarr", "--k", N_ROWS + 1), f"Choose 1 to {N_ROWS}."),
        (("--queries", "o.zarr"), "o.zarr: Feature 9 is missing, but 'f8' in "),
        (("--metric", "cosine"), "cosine"),
    ],
)
def test_what_it_refuses(cli, folder, options, message):
    given = [folder / word if str(word).endswith(".zarr") else word for word in options]
    done = cli("neighbours", "--dataset", folder / "d.zarr", *given, "--output", "n.zarr")
    assert message in done.check_refused()
    assert not [*Path().iterdir()]


def test_what_lies_there_stays_and_damage_is_told(cli, found, folder):
    found()
    before = files_of(Path("n.zarr"))
    done = cli("neighbours", "--dataset", folder / "d.zarr", "--output", "n.zarr")
    assert "n.zarr already exists" in done.check_refused()
    assert files_of(Path("n.zarr")) == before
    Path("n.zarr/distances/c/1/0").write_bytes(b"")
    with pytest.raises(Exception, match="distances: chunk 1 is damaged"):
        open_codes("n.zarr").verify()
