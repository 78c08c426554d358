"""Commands in an installation without extras: the same results, or one line that names the extra.

Packages that only extras need cannot be imported in the process that is started here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import storage
from flows.__main__ import list_commands
from flows.cli.startup import find_module

PROGRAM = """
import json, os, runpy, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import PathFinder
from io import StringIO

hidden, modules, commands = json.load(sys.stdin)
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)
os.environ["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
from flows.fitting.options import FitOptions
from flows.running.flow import run_flow
with redirect_stderr(StringIO()) as err:
    assert run_flow("fit", FitOptions("d.zarr"), lambda: {"done": 1}) == {"done": 1}
results = [(0, err.getvalue(), [])]
del os.environ["PREFECT_API_URL"]
for name, *words in commands:
    sys.argv[1:], code, files = words, 0, os.listdir()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            code = leaving.code or 0
    results.append((code, err.getvalue(), sorted({*os.listdir()} - {*files})))
    print(*words, results[-1], file=sys.stderr)
for name in modules:
    __import__(name, fromlist=["app"])
json.dump(results, sys.stdout)
"""
INGEST = ("flows.ingest", "x.npy", "--dataset", "x.zarr")
FIT = ("flows.fit", "--dataset", "x.zarr", "--components", "2", "--output")
NEEDS: Mapping[tuple[str, ...], str] = {
    ("flows.report", "--artifact", "runs/x"): "report",
    ("flows.experiments", "clipped-pca"): "report",
    ("flows.experiments", "loadings", "--artifact", "runs/x"): "report",
    ("flows.serve",): "flows",
    ("flows.fit", "--dataset", "example:digits", "--cluster", "name"): "flows",
    ("flows.certificates", "folder"): "tls",
    ("flows.fit", "--dataset", "s3://bucket/x"): "stores",
}
"""Commands, and the extra that each needs."""


class CoreResult(NamedTuple):
    """What a command did in an installation without extras."""

    code: int
    err: str
    new_files: list[str]


def find_core_distributions() -> set[str]:
    """The distributions that an installation without extras brings."""
    found, waiting = set(), [("latentbits", frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        found.add(name)
        for text in requires(name) or ():
            one = Requirement(text)
            needed = one.marker is None or any(
                one.marker.evaluate({"extra": extra}) for extra in (extras or {""})
            )
            following = canonicalize_name(one.name)
            if needed and following not in found:
                waiting.append((following, frozenset(one.extras)))
    return found


def find_hidden_packages() -> list[str]:
    core = find_core_distributions()
    assert "numpy" in core
    assert not core & {"prefect", "pydantic", "matplotlib", "cryptography"}
    return [
        package
        for package, names in packages_distributions().items()
        if not core & {*map(canonicalize_name, names)}
    ]


@pytest.fixture(scope="module")
def core_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core")
    np.save(folder / "x.npy", np.random.default_rng(1).integers(0, 2, (200, 6), dtype=np.uint8))
    return folder


@pytest.fixture(scope="module")
def core_results(core_folder: Path) -> Mapping[tuple[str, ...], CoreResult]:
    """The results of all commands, in one process that can import the others too.

    `run_flow` is a run that Prefect should record.
    """
    packages = ("experiments", "report")
    modules = [find_module(name) + ".__main__" * (name in packages) for name in list_commands()]
    commands = [*NEEDS, INGEST, (*FIT, "core")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", PROGRAM],
        input=json.dumps([find_hidden_packages(), modules, commands]),
        capture_output=True,
        text=True,
        cwd=core_folder,
    )
    assert done.returncode == 0, done.stderr
    results = [CoreResult(*result) for result in json.loads(done.stdout)]
    return dict(zip([("run_flow",), *commands], results, strict=True))


def test_a_core_installation_is_small() -> None:
    # The oldest allowed release of distributed also needs urllib3.
    assert len(find_core_distributions() - {"urllib3"}) <= 46


def test_a_fit_is_the_same_without_a_report(
    core_folder: Path, core_results: Mapping[tuple[str, ...], CoreResult], cli: Any
) -> None:
    assert core_results[INGEST].code == 0, core_results[INGEST].err
    done = core_results[*FIT, "core"]
    assert done.code == 0, done.err
    assert "The fit has no report. A report needs the package" in done.err
    assert "pip install 'latentbits[report]'" in done.err
    dataset, output = core_folder / "x.zarr", core_folder / "full"
    full = cli("fit", "--dataset", dataset, "--components", "2", "--output", output)
    assert full.code == 0, full.err
    core, other = (storage.load_artifact(core_folder / name) for name in ("core", "full"))
    assert {name: core[name].tobytes() for name in core} == {n: other[n].tobytes() for n in other}


@pytest.mark.parametrize("words", NEEDS, ids=" ".join)
def test_what_needs_an_extra_names_it(
    core_results: Mapping[tuple[str, ...], CoreResult], words: tuple[str, ...]
) -> None:
    done = core_results[words]
    assert done.code == 2, done.err
    assert f"Run: pip install 'latentbits[{NEEDS[words]}]'" in done.err
    assert len(done.err.splitlines()) == 1
    assert done.new_files == []


def test_a_run_that_prefect_cannot_record_says_so(
    core_results: Mapping[tuple[str, ...], CoreResult],
) -> None:
    err = core_results["run_flow",].err
    assert "PREFECT_API_URL is set, but Prefect is not installed" in err
