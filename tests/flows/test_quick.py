"""What a command needs not it does not import: help and refusals come without Prefect and Dask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (
    *("ingest", "fit", "transform", "evaluate", "sample", "report", "experiments"),
    *("serve", "certificates"),
)
REFUSED = {
    "ingest": (("nowhere.csv", "--dataset", "d.zarr"), "nowhere.csv: "),
    "fit": (("--dataset", "nowhere.zarr"), "nowhere.zarr: "),
    "transform": (("--dataset", "d", "--artifact", "none", "--output", "z"), "none: "),
    "evaluate": (("--dataset", "nowhere.zarr", "--artifact", "none"), "nowhere.zarr: "),
    "sample": (("--artifact", "none", "--rows", "9", "--output", "s"), "none: "),
    "report": (("--artifact", "none"), "none: "),
    "experiments": (("clipped-pca", "--dataset", "nowhere.zarr"), "nowhere.zarr: "),
    "serve": ((), "PREFECT_API_URL: "),
}
DEAR = ("prefect", "distributed", "bokeh", "matplotlib", "pyarrow", "sklearn", "uvicorn")
WATCHED = """
import runpy, sys

name, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
finally:
    print("imported:", *sorted(set(sys.modules)), file=sys.stderr)
"""


def called(name: str, *arguments: str, folder: Path) -> tuple[int, str, str, set[str]]:
    """Give exit code, output, the last message and what was imported of the dear packages."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, f"flows.{name}", *arguments],
        cwd=folder,
        env={**kept, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    *told, imported = done.stderr.strip().splitlines()
    assert imported.startswith("imported: ")
    return done.returncode, done.stdout, "".join(told[-1:]), set(imported.split()) & set(DEAR)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_needs_no_prefect_and_no_dask(name, tmp_path):
    code, out, told, imported = called(name, "--help", folder=tmp_path)
    assert (code, told, imported) == (0, "", set())
    assert f"Usage: python -m flows.{name}" in out


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_told_before_prefect_is_imported(name, tmp_path):
    arguments, expected = REFUSED[name]
    code, out, told, imported = called(name, *arguments, folder=tmp_path)
    assert (code, out, imported) == (2, "", set())
    assert told.startswith(f"error: {expected}")
    assert not list((tmp_path / "data").glob("**/*.db"))  # nor was a server started


def test_a_wrong_value_is_told_before_prefect_is_imported(tmp_path):
    (tmp_path / "v.csv").write_text("a,b\n0,1\n1,3\n")
    code, out, told, imported = called("ingest", "v.csv", "--dataset", "d.zarr", folder=tmp_path)
    assert (code, out, imported) == (2, "", {"pyarrow"})
    assert told.startswith("error: v.csv: row 2 ")
    assert not (tmp_path / "d.zarr").exists()


def test_a_flow_is_prefects_for_who_imports_it():
    from prefect import Flow

    from flows.fit import fit
    from flows.ingest import ingest
    from flows.report.flow import report
    from flows.transform import transform

    for flow in (fit, ingest, report, transform):
        assert isinstance(flow, Flow)
        assert flow.name == flow.__name__
