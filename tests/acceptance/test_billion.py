"""The script that runs the pipeline on a billion rows, with fewer of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.object_servers import run_s3_server

ROOT = Path(__file__).parents[2]
MODELS = ("clipped-pca", "bernoulli-mixture", "latent-trait")
Table = dict[str, list[str]]


def run_script(
    store: str | Path, n_rows: str, environment: Mapping[str, str], models: tuple[str, ...] = MODELS
) -> tuple[Table, list[str]]:
    """Run the script; return the cells of its table by step, and the commands that it ran."""
    script = ["deploy/billion/run.py", "--store", str(store), "--rows", n_rows]
    done = subprocess.run(
        [sys.executable, *script, "--models", *models],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    commands = [line for line in done.stderr.splitlines() if line.startswith("$ latentbits")]
    return {cells[0]: cells for cells in lines}, commands


def read_check(table: Table, step: str) -> float:
    return float(table[step][-1].split()[-1])


@pytest.mark.slow
def test_estimates_from_ten_million_rows_are_within_their_errors(tmp_path: Path) -> None:
    table, commands = run_script(tmp_path, "1e7", {"LATENTBITS_WORKERS": "2"})
    assert len(commands) == 4 * len(MODELS) + 2
    for model in MODELS:
        assert 0.85 < read_check(table, f"{model}: fit") < 1.15
    assert 0.85 < read_check(table, "clipped-pca: fit again") < 1.15
    assert abs(read_check(table, "latent-trait: codes") - 1) < 0.01


@pytest.mark.matrix
def test_a_run_in_an_object_store_repeats_no_finished_step() -> None:
    with run_s3_server() as server:
        server.create("billion")
        run = ("s3://billion/run", "1e5", server.environment(server.address), ("latent-trait",))
        table, commands = run_script(*run)
        assert 0.8 < read_check(table, "latent-trait: fit") < 1.2
        names = [command.split()[2] for command in commands]
        assert names == ["ingest", "ingest", "fit", "transform"]
        assert run_script(*run) == (table, [])
