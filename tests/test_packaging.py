"""What is distributed: the source distribution, the wheel and the recipe of the conda package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
JUNK = (
    *(".venv/lib/x.py", "build/x.py", "dist/x.whl", "runs/x/manifest.json"),
    *(".docs/_build/index.html", ".docs/jupyter_execute/x.ipynb", ".docs/reference/generated/x.md"),
    *("deploy/.env", "deploy/certificates/node-key.pem"),
    *("flows/__pycache__/x.cpython-311.pyc", "pipeline/__pycache__/x.nbc", "storage/x.nbi"),
    *(".git/config", ".hypothesis/x", ".mypy_cache/x", ".pytest_cache/x", ".ruff_cache/x"),
)
CONDA_NAMES = {
    "dask": "dask-core",
    "docstring-parser": "docstring_parser",
    "matplotlib": "matplotlib-base",
    "typing-extensions": "typing_extensions",
}
"""Packages of PyPI whose names differ on conda-forge."""


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a `wheel` or an `sdist` with the installed setuptools, without a network."""
    program = f"import setuptools.build_meta as s, sys; s.build_{kind}(sys.argv[1])"
    folder.mkdir()
    words = [sys.executable, "-c", program, str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    (found,) = folder.iterdir()
    return found


def list_tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    words = ["git", "ls-files", "-z", "--cached"]
    output = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in output.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with files that working in it leaves behind."""
    folder = tmp_path_factory.mktemp("packaging") / "tree"
    for name in list_tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in JUNK:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture(scope="module")
def source_distribution(tree: Path) -> Path:
    archive = build("sdist", tree, tree.parent / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tree.parent, filter="data")
    return tree.parent / archive.name.removesuffix(".tar.gz")


def test_the_source_distribution_is_the_repository(source_distribution: Path) -> None:
    found = {
        path.relative_to(source_distribution).as_posix()
        for path in source_distribution.rglob("*")
        if path.is_file() and ".egg-info" not in str(path)
    }
    assert found - {"PKG-INFO", "setup.cfg"} == {*list_tracked_files()}


@pytest.mark.matrix
def test_the_wheel_has_the_packages_alone(tree: Path, source_distribution: Path) -> None:
    with ZipFile(build("wheel", tree, tree.parent / "wheel")) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    with ZipFile(build("wheel", source_distribution, tree.parent / "other")) as wheel:
        assert {name: wheel.read(name) for name in wheel.namelist()} == files
    meta = f"latentbits-{PROJECT['version']}.dist-info"
    packages = ("flows", "latentbits", "pipeline", "storage")
    assert {name.split("/")[0] for name in files} == {*packages, meta}
    assert f"{meta}/licenses/LICENSE" in files
    tracked = {name for name in list_tracked_files() if name.split("/")[0] in packages}
    assert {name for name in files if not name.startswith(meta)} == tracked


def parse_conda(texts: list[str]) -> dict[str, str]:
    return {name: bounds for name, _, bounds in (text.partition(" ") for text in texts)}


def parse_pip(texts: list[str]) -> dict[str, str]:
    """Names on conda-forge and version bounds; extras of a requirement do not exist there."""
    required = [Requirement(text) for text in texts]
    return {
        CONDA_NAMES.get(one.name, one.name): ",".join(
            sorted(map(str, one.specifier), key=lambda bound: bound[0], reverse=True)
        )
        for one in required
    }


def test_the_conda_package_has_the_same_requirements() -> None:
    run = parse_conda(RECIPE["requirements"]["run"])
    host = parse_conda(RECIPE["requirements"]["host"])
    assert run.pop("python") == host["python"] == PROJECT["requires-python"]
    assert run == parse_pip(PROJECT["dependencies"])
    extras: dict[str, Any] = PROJECT["optional-dependencies"]
    users = [texts for name, texts in extras.items() if name not in ("all", "docs", "test")]
    expected = parse_pip([text for texts in users for text in texts])
    assert parse_conda(RECIPE["requirements"]["run_constraints"]) == expected


def test_the_conda_package_is_the_same_version_with_the_same_commands() -> None:
    assert RECIPE["context"]["version"] == PROJECT["version"]
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == scripts
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]


@pytest.mark.parametrize("minor", range(11, 15))
def test_constraints_pin_a_package_once(minor: int) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [
        pin
        for pin in map(Requirement, lines)
        if pin.marker is None or pin.marker.evaluate({"python_version": f"3.{minor}"})
    ]
    assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in pins)
    assert len({canonicalize_name(pin.name) for pin in pins}) == len(pins)
