"""`python -m tests.benchmarks` lists the benchmarks and rejects unknown names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
