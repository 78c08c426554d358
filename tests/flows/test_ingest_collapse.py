"""Equal rows stored once: `flows.ingest --collapse`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from storage.dataset.dataset import BinaryDataset, open_dataset
from tests.acceptance.test_two_tables import saved


def write_table(path: Path, n_rows: int, seed: int = 0) -> list[list[str]]:
    """Write a table with missing values, years, splits and parties; return its lines."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(np.array(["0", "1", ""]), (n_rows, 4), p=[0.45, 0.45, 0.1])
    years, splits = rng.choice(["1", "2"], n_rows), rng.choice(["train", "test"], n_rows)
    parties = rng.choice(["a", "b", ""], n_rows)
    lines = np.column_stack([cells, years, splits, parties]).tolist()
    header = ["q1", "q2", "q3", "q4", "year", "split", "party"]
    path.write_text("\n".join(map(",".join, [header, *lines])) + "\n", encoding="utf-8")
    return lines


OPTIONS = ("--segment-by", "year", "--split-by", "split", "--keep", "party")


def list_rows(dataset: BinaryDataset, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return the rows in order: cells as in the table, segment and columns."""
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    cells = np.where(observed == 1, X.astype(str), "")
    labels = [dataset.segments(), *(dataset.column(name) for name in columns)]
    return [(*row, *more) for row, *more in zip(cells.tolist(), *labels, strict=True)]


def test_distinct_rows_come_in_order_with_their_numbers(cli, tmp_path) -> None:
    lines = write_table(tmp_path / "t.csv", 70_000)
    done = cli("ingest", "t.csv", "--dataset", "d.zarr", *OPTIONS, "--collapse")
    assert done.code == 0, done.err
    counts = Counter(map(tuple, lines))
    assert f"{len(counts):,} different ones of 70,000" in done.out
    dataset = open_dataset(tmp_path / "d.zarr")
    found = list_rows(dataset, ("split", "party", "frequency"))
    flat = [(*cells, *rest) for cells, *rest in ((row[:4], *row[4:]) for row in found)]
    expected = [(*line, count) for line, count in counts.items()]
    assert [tuple(map(str, row)) for row in flat] == [tuple(map(str, row)) for row in expected]
    dataset.verify()


def test_the_same_table_gives_the_same_bytes(cli, tmp_path) -> None:
    write_table(tmp_path / "t.csv", 5000)
    for name in ("one.zarr", "two.zarr"):
        assert cli("ingest", "t.csv", "--dataset", name, *OPTIONS, "--collapse").code == 0
    one, two = (open_dataset(tmp_path / name) for name in ("one.zarr", "two.zarr"))
    assert one.digest == two.digest


def test_appended_rows_are_collapsed_too(cli, tmp_path) -> None:
    lines = write_table(tmp_path / "a.csv", 3000, seed=1)
    more = write_table(tmp_path / "b.csv", 2000, seed=2)
    assert cli("ingest", "a.csv", "--dataset", "d.zarr", *OPTIONS, "--collapse").code == 0
    assert cli("ingest", "b.csv", "--dataset", "d.zarr", "--append").code == 0
    dataset = open_dataset(tmp_path / "d.zarr")
    n_distinct = [len({*map(tuple, part)}) for part in (lines, more)]
    assert dataset.n_rows == sum(n_distinct)
    assert dataset.column("frequency")[n_distinct[0] :].sum() == 2000


def test_numbers_of_rows_keep_their_type(cli, tmp_path) -> None:
    X = np.array([[0, 1], [0, 1], [1, 1], [0, 1]], np.uint8)
    columns = {"age": np.array([1.5, np.nan, 2.0, np.nan]), "site": np.array([3, 3, 3, 3])}
    np.savez(tmp_path / "t.npz", X=X, **columns)
    done = cli(
        "ingest", "t.npz", "--dataset", "d.zarr", "--collapse", "--keep", "age", "--keep", "site"
    )
    assert done.code == 0, done.err
    dataset = open_dataset(tmp_path / "d.zarr")
    np.testing.assert_array_equal(dataset.column("age"), [1.5, np.nan, 2.0])
    np.testing.assert_array_equal(dataset.column("site"), [3, 3, 3])
    np.testing.assert_array_equal(dataset.column("frequency"), [1, 2, 1])


def test_lsat6_has_few_patterns(cli, tmp_path) -> None:
    np.save(tmp_path / "lsat6.npy", saved("lsat6")["X"])
    assert cli("ingest", "lsat6.npy", "--dataset", "d.zarr", "--collapse").code == 0
    dataset = open_dataset(tmp_path / "d.zarr")
    assert dataset.n_rows <= 32
    assert dataset.column("frequency").sum() == 1000


def test_what_cannot_be_collapsed_is_refused(cli, tmp_path) -> None:
    (tmp_path / "named.csv").write_text("a,b,frequency\n0,1,3\n1,0,3\n", encoding="utf-8")
    line = ("ingest", "named.csv", "--dataset", "d.zarr", "--collapse")
    refused = cli(*line, "--keep", "frequency").check_refused()
    assert "has a per-row column frequency" in refused
    refused = cli(*line, "--long", "row=a,feature=b").check_refused()
    assert "--collapse and --long cannot be combined" in refused
    assert not (tmp_path / "d.zarr").exists()
    (tmp_path / "plain.csv").write_text("a,b\n0,1\n1,0\n", encoding="utf-8")
    assert cli("ingest", "plain.csv", "--dataset", "p.zarr").code == 0
    line = ("ingest", "plain.csv", "--dataset", "p.zarr", "--append", "--collapse")
    assert "--collapse: p.zarr was made without it." in cli(*line).check_refused()
    (tmp_path / "equal.csv").write_text("a,b\n0,1\n0,1\n", encoding="utf-8")
    line = ("ingest", "equal.csv", "--dataset", "e.zarr", "--collapse")
    assert "all rows are equal" in cli(*line).check_refused()
    assert not (tmp_path / "e.zarr").exists()
