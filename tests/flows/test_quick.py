"""What a command needs not it does not import: help and refusals come without Prefect and Dask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.data import draw_probit_rows, write_arrays

COMMANDS = (
    *("ingest", "fit", "transform", "evaluate", "sample", "report", "experiments"),
    *("neighbours", "export", "query", "serve", "certificates", "compare"),
)
REFUSED = {
    "ingest": (("nowhere.csv", "--dataset", "d.zarr"), "nowhere.csv: "),
    "fit": (("--dataset", "nowhere.zarr"), "nowhere.zarr: "),
    "transform": (("--dataset", "d", "--artifact", "none", "--output", "z"), "none: "),
    "evaluate": (("--dataset", "nowhere.zarr", "--artifact", "none"), "nowhere.zarr: "),
    "compare": (("none", "nowhere"), "none: "),
    "sample": (("--artifact", "none", "--rows", "9", "--output", "s"), "none: "),
    "export": (("--what", "fit", "--artifact", "none", "--output", "f.csv"), "none: "),
    "query": (("--artifact", "none", "--of", "a"), "none: "),
    "neighbours": (("--dataset", "nowhere.zarr", "--output", "n"), "nowhere.zarr: "),
    "report": (("--artifact", "none"), "none: "),
    "experiments": (("clipped-pca", "--dataset", "nowhere.zarr"), "nowhere.zarr: "),
    "serve": ((), "PREFECT_API_URL: "),
}
DEAR = ("prefect", "distributed", "matplotlib", "pyarrow", "sklearn", "uvicorn")
WATCHED = """
import contextlib, io, json, runpy, sys

told = []
for name, *words in json.loads(sys.argv[1]):
    sys.argv, out, err = [name, *words], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(f"flows.{name}", run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            told.append((leaving.code or 0, out.getvalue(), err.getvalue()))
print(json.dumps((told, [*sys.modules])))
"""


def called(*commands: tuple[str, ...], folder: Path) -> tuple[list[tuple[int, str, str]], set[str]]:
    """Call commands in one process; return what each left, and which costly modules were imported.

    What a command left is its exit code, its output and its last message.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(commands)],
        cwd=folder,
        env={**kept, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")},
        stdout=subprocess.PIPE,
        check=True,
    )
    left, imported = json.loads(done.stdout)
    last = [(code, out, "".join(err.strip().splitlines()[-1:])) for code, out, err in left]
    return last, {*imported} & {*DEAR}


def test_help_needs_no_prefect_and_no_dask(tmp_path):
    left, imported = called(*((name, "--help") for name in COMMANDS), folder=tmp_path)
    assert imported == set()
    for name, (code, out, told) in zip(COMMANDS, left, strict=True):
        assert (code, told) == (0, "")
        assert f"Usage: python -m flows.{name}" in out


def test_what_is_wrong_is_told_before_prefect_is_imported(tmp_path):
    commands = ((name, *arguments) for name, (arguments, _) in REFUSED.items())
    left, imported = called(*commands, folder=tmp_path)
    assert imported == set()
    for (_, expected), (code, out, told) in zip(REFUSED.values(), left, strict=True):
        assert (code, out) == (2, "")
        assert told.startswith(f"error: {expected}")
    assert not list((tmp_path / "data").glob("**/*.db"))  # nor was a server started


@pytest.mark.matrix
def test_a_wrong_value_is_told_before_prefect_is_imported(tmp_path):
    (tmp_path / "v.csv").write_text("a,b\n0,1\n1,3\n")
    command = ("ingest", "v.csv", "--dataset", "d.zarr")
    ((code, out, told),), imported = called(command, folder=tmp_path)
    assert (code, out, imported) == (2, "", {"pyarrow"})
    assert told.startswith("error: v.csv: row 2 ")
    assert not (tmp_path / "d.zarr").exists()


@pytest.mark.matrix
def test_a_fit_that_nobody_records_needs_no_prefect(tmp_path):
    write_arrays(tmp_path / "d.zarr", draw_probit_rows(300, 6, 2, seed=1)[0])
    ((code, _, told),), imported = called(("fit", "--dataset", "d.zarr"), folder=tmp_path)
    assert (code, "prefect" in imported) == (0, False), told
    assert list(tmp_path.glob("runs/d/*/report.html"))


def test_a_flow_is_prefects_for_who_imports_it():
    from prefect import Flow

    from flows.export import export
    from flows.fit import fit
    from flows.ingest import ingest
    from flows.neighbours import neighbours
    from flows.report.flow import report
    from flows.transform import transform

    for flow in (export, fit, ingest, neighbours, report, transform):
        assert isinstance(flow, Flow)
        assert flow.name == flow.__name__


@pytest.mark.matrix
def test_a_serial_fit_needs_neither_a_cluster_nor_tables(tmp_path):
    write_arrays(tmp_path / "d.zarr", draw_probit_rows(300, 6, 2, seed=1)[0])
    command = ("fit", "--dataset", "d.zarr", "--executor", "serial")
    ((code, _, told),), imported = called(command, folder=tmp_path)
    assert (code, imported) == (0, set()), told
    assert list(tmp_path.glob("runs/d/*/report.html"))
