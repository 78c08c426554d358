"""`python -m tests.benchmarks` lists the benchmarks and rejects unknown names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks._markdown import format_tables

ROOT = Path(__file__).parents[1]


def run_benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_help_lists_every_benchmark() -> None:
    done = run_benchmarks("--help")
    assert done.returncode == 0
    for path in (ROOT / "tests" / "benchmarks").glob("[!_]*.py"):
        summary = path.read_text(encoding="utf-8").splitlines()[0].strip('"')
        assert re.search(rf"^{path.stem} +{re.escape(summary)}$", done.stdout, flags=re.MULTILINE)


def test_unknown_name_gives_one_line_error() -> None:
    done = run_benchmarks("no_such_benchmark")
    assert done.returncode == 2
    assert done.stderr == "unknown benchmark: no_such_benchmark; --help lists all\n"


@pytest.mark.matrix
def test_markdown_names_the_machine_and_has_tables() -> None:
    done = run_benchmarks("--markdown", "tetrachoric")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "## tetrachoric"
    assert "| data | M pairs/s | speed vs SciPy |" in lines
    measured = rf"Measured on 20\d\d-\d\d-\d\d in \d+ s: .+, {os.cpu_count()} cores, Python 3"
    assert re.match(measured, lines[-2])


def test_aligned_columns_become_tables() -> None:
    output = (
        "10 rows\n"
        "method      ms per batch  ratio to plain loop\n"
        "plain loop          1.25                 1.00\n"
        "by blocks           0.25                 0.20\n"
        "speed-up: 5.0\n"
    )
    assert format_tables(output).splitlines() == [
        *("| measurement |", "| --- |", "| 10 rows |", ""),
        *("| method | ms per batch | ratio to plain loop |", "| --- | --- | --- |"),
        *("| plain loop | 1.25 | 1.00 |", "| by blocks | 0.25 | 0.20 |", ""),
        *("| measurement |", "| --- |", "| speed-up: 5.0 |"),
    ]
