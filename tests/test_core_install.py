"""Commands in an installation without extras: the same results, or one line that names the extra.

Packages that only extras need cannot be imported in the processes that are started here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import storage
from flows.__main__ import list_commands

PROGRAM = """
import json, runpy, sys
from importlib.machinery import PathFinder

hidden = frozenset(json.loads(sys.argv.pop(1)))
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)
{action}
"""
RUN_COMMAND = 'runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
IMPORT_ALL = "for name in sys.argv[1:]: __import__(name, fromlist=['app'])"


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


def find_hidden_packages() -> str:
    core = find_core_distributions()
    assert "numpy" in core
    assert not core & {"prefect", "pydantic", "matplotlib", "cryptography"}
    return json.dumps(
        [
            package
            for package, names in packages_distributions().items()
            if not core & {*map(canonicalize_name, names)}
        ]
    )


def run_without_extras(
    folder: Path, action: str, *words: str | Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(action=action), find_hidden_packages(), *words],
        capture_output=True,
        text=True,
        cwd=folder,
    )


def test_a_core_installation_is_small() -> None:
    # The oldest allowed release of distributed also needs urllib3.
    assert len(find_core_distributions() - {"urllib3"}) <= 46


def test_all_commands_can_be_imported(tmp_path: Path) -> None:
    packages = ("experiments", "report")
    modules = [f"flows.{name}{'.__main__' * (name in packages)}" for name in list_commands()]
    done = run_without_extras(tmp_path, IMPORT_ALL, *modules)
    assert done.returncode == 0, done.stderr


def test_a_fit_is_the_same_without_a_report(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).integers(0, 2, (200, 6), dtype=np.uint8))
    ingest = ("flows.ingest", "x.npy", "--dataset", "x.zarr")
    assert run_without_extras(tmp_path, RUN_COMMAND, *ingest).returncode == 0
    fit = ("fit", "--dataset", "x.zarr", "--components", "2", "--output")
    done = run_without_extras(tmp_path, RUN_COMMAND, *("flows.fit", *fit[1:], "core"))
    assert done.returncode == 0, done.stderr
    assert "The fit has no report. A report needs the package" in done.stderr
    assert "pip install 'latentbits[report]'" in done.stderr
    full = subprocess.run([sys.executable, "-m", "flows.fit", *fit[1:], "full"], cwd=tmp_path)
    assert full.returncode == 0
    core, other = (storage.load_artifact(tmp_path / name) for name in ("core", "full"))
    assert {name: core[name].tobytes() for name in core} == {n: other[n].tobytes() for n in other}


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("report", "--artifact", "runs/x"), "report"),
        (("experiments", "clipped-pca"), "report"),
        (("experiments", "loadings", "--artifact", "runs/x"), "report"),
        (("serve",), "flows"),
        (("fit", "--dataset", "example:digits", "--cluster", "name"), "flows"),
        (("certificates", "folder"), "tls"),
        (("fit", "--dataset", "s3://bucket/x"), "stores"),
    ],
)
def test_what_needs_an_extra_names_it(tmp_path: Path, words: tuple[str, ...], extra: str) -> None:
    name, *options = words
    done = run_without_extras(tmp_path, RUN_COMMAND, f"flows.{name}", *options)
    assert done.returncode == 2, done.stderr
    assert f"Run: pip install 'latentbits[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_run_that_prefect_cannot_record_says_so(tmp_path: Path) -> None:
    program = (
        "import os; os.environ['PREFECT_API_URL'] = 'http://127.0.0.1:9/api'\n"
        "from flows.running.flow import run_flow\n"
        "assert run_flow('fit', None, lambda: {'done': 1}) == {'done': 1}"
    )
    done = run_without_extras(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "PREFECT_API_URL is set, but Prefect is not installed" in done.stderr
