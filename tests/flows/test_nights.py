"""A hundred nights: a file arrives, it is ingested and fitted; some runs are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from storage import load_artifact, open_dataset
from storage.artifacts import retention

N_NIGHTS, N_KILLS, N_KEPT = 100, 5, 5
N_FIRST_ITEMS, N_ITEMS = 8, 10
NEW_ITEM_NIGHTS = (30, 60)
BROKEN_NIGHT = 45
OPTIONS = ("--executor", "serial", "--no-report", "--drift-limit", "0.2")
PCA = ("--model", "clipped-pca", "--components", "2", *OPTIONS)
TRAIT = ("--model", "latent-trait", "--components", "1", *OPTIONS)
INGEST = ("incoming", "--dataset", "d.zarr", "--new", "--keep", "id", "--new-features", "add")
INGEST = (*INGEST, "--absent-features", "missing")

RUN_UNTIL = """
import importlib, os, signal, sys
from flows.cli.app import run_app

limit, folder, command, *arguments = sys.argv[1:]
n_changes = 0

def count_change(event, details):
    global n_changes
    if event == "open":
        path, _, flags = details
        is_change = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
    else:
        path = details[0] if details else ""
        is_change = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
    if is_change and isinstance(path, (str, bytes)):
        path = os.path.abspath(os.fsdecode(path))
        is_change = path.startswith(folder + os.sep)
    if is_change:
        n_changes += 1
        if n_changes == int(limit):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count_change)
try:
    run_app(importlib.import_module(f"flows.{command}").app, arguments)
finally:
    print("changes", n_changes)
"""
"""Runs a command, and kills it before its change number `limit` of files in a folder."""


def run_until(limit: int, command: tuple[str, ...]) -> int:
    """Run a command in a process that is killed at a change; return the number of changes."""
    program = [sys.executable, "-c", RUN_UNTIL, str(limit), os.getcwd(), *command]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    if limit:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return limit
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def kill_at_random(command: tuple[str, ...], rng: np.random.Generator) -> None:
    """Kill a command before one of its changes of files, each with the same probability."""
    shutil.copytree(".", "../before")
    n_changes = run_until(0, command)
    for name in os.listdir():
        shutil.rmtree(name)
    shutil.copytree("../before", ".", dirs_exist_ok=True)
    shutil.rmtree("../before")
    run_until(int(rng.integers(1, n_changes + 1)), command)


def draw_night(night: int, rng: np.random.Generator) -> pa.Table:
    """Draw rows of a Rasch model with different slopes; later nights have more items."""
    slopes = np.linspace(0.6, 1.8, N_ITEMS)
    n_rows = int(rng.integers(150, 400))
    n_items = N_FIRST_ITEMS + sum(night >= first for first in NEW_ITEM_NIGHTS)
    theta = rng.standard_normal(n_rows)
    logits = slopes * (theta[:, None] - np.linspace(-1, 1, N_ITEMS))
    X = (rng.random((n_rows, N_ITEMS)) < 1 / (1 + np.exp(-logits))).astype(np.uint8)
    values = {f"q{j}": X[:, j] for j in range(n_items)}
    return pa.table({**values, "id": [f"{night}-{k}" for k in range(n_rows)]})


def deliver(night: int, table: pa.Table, n_bytes: int | None = None) -> None:
    """Write the file of a night, or its first bytes, as if an hour ago."""
    path = Path(f"incoming/{night:03}.parquet")
    pa.parquet.write_table(table, path)
    if n_bytes is not None:
        path.write_bytes(path.read_bytes()[:n_bytes])
    then = time.time() - 3600
    os.utime(path, (then, then))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and one for temporary files."""
    for name in ("site", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "site"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_nights(cli, site, monkeypatch) -> None:
    rng = np.random.default_rng(20261130)
    monkeypatch.chdir(site)
    monkeypatch.setattr(retention, "_REPLACED_KEPT", 0.0)  # nights take seconds, not a day
    Path("incoming").mkdir()
    tables: list[pa.Table] = []
    killed = rng.choice(np.arange(1, N_NIGHTS - 1), N_KILLS, replace=False)
    for night in range(N_NIGHTS):
        tables.append(draw_night(night, rng))
        deliver(night, tables[-1], 900 if night == BROKEN_NIGHT else None)
        if night == BROKEN_NIGHT + 1:  # the sender completes it
            deliver(BROKEN_NIGHT, tables[BROKEN_NIGHT])
        commands = [
            ("ingest", *INGEST),
            ("fit", "--dataset", "d.zarr", "--output", "runs/pca", *PCA),
        ]
        if night == 0 or night % 5 == 4:  # not every night, as it takes longer
            warm = ("--warm-start",) if night else ()
            trait = ("fit", "--dataset", "d.zarr", "--output", "runs/trait", *TRAIT, *warm)
            commands.append(trait)
        last = int(rng.integers(len(commands))) if night in killed else len(commands) + 1
        commands.append(("runs", "--prune", f"keep={N_KEPT},days=0", "--yes"))
        for command in commands[:last]:
            done = cli(*command)
            is_refused = command[0] == "ingest" and night == BROKEN_NIGHT
            assert done.code == (2 if is_refused else 0), done.err
        if night in killed:
            kill_at_random(commands[last], rng)
    check_rows(tables)
    for name in ("pca", "trait"):
        assert len(os.listdir(f"runs/{name}")) == N_KEPT + 1  # and `latest`
    names = {path.relative_to(site).as_posix() for path in site.rglob("*")}
    assert not [n for n in names if Path(n).name[:1] == "." or n.endswith((".partial", ".lock"))]
    assert sorted(os.listdir()) == ["d.zarr", "incoming", "runs"]
    assert not os.listdir("../temporary")
    check_fits(cli, pa.concat_tables(tables, promote_options="default"))


def check_rows(tables: list[pa.Table]) -> None:
    """Check that the dataset has each row once, with its values."""
    dataset = open_dataset("d.zarr")
    dataset.verify()
    expected = pa.concat_tables(tables, promote_options="default").to_pandas().set_index("id")
    ids = dataset.column("id")
    assert sorted(ids) == sorted(expected.index)
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    found = np.where(observed, X, np.nan)
    values = expected.loc[ids, list(dataset.feature_names)].to_numpy(float)
    np.testing.assert_array_equal(found, values)


def check_fits(cli, table: pa.Table) -> None:
    """Check the last fits against fits to one table of all rows."""
    pa.parquet.write_table(table, "all.parquet")
    assert cli("ingest", "all.parquet", "--dataset", "all.zarr", "--keep", "id").code == 0
    fits = {}
    for name, options in {"pca": PCA, "trait": TRAIT}.items():
        done = cli("fit", "--dataset", "all.zarr", "--output", f"all/{name}", *options)
        assert done.code == 0, done.err
        fits[name] = load_artifact(f"runs/{name}"), load_artifact(f"all/{name}")
    found, expected = fits["pca"]
    assert {n: found[n].tobytes() for n in found} == {n: expected[n].tobytes() for n in expected}
    found, expected = fits["trait"]
    assert found.manifest["objective"] == pytest.approx(expected.manifest["objective"], abs=1e-6)
    for name in ("weights", "offsets"):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-3)
