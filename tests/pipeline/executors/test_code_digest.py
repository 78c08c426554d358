"""Digests of code: what a model imports counts, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.executors.code_digest import (
    _find_source_files,
    _read_source,
    digest_modules,
    digest_package,
)

LIBRARY = {
    "__init__.py": "",
    "alone.py": "import json\nfrom elsewhere import thing\n",
    "user.py": "from lib.room import used\n\ndef f():\n    import lib.late\n",
    "late.py": "x = 1\n",
    "other.py": "y = 1\n",
    "room/__init__.py": "",
    "room/used.py": "from lib import (\n    deep,\n)\n",
    "deep.py": "z = 1\n",
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in LIBRARY.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "lib"


def digests() -> tuple[str, str]:
    for function in (digest_modules, _find_source_files, _read_source):
        function.cache_clear()
    return digest_modules("lib.user"), digest_modules("lib.alone")


@pytest.mark.parametrize(
    "name", ["user.py", "late.py", "room/used.py", "room/__init__.py", "deep.py"]
)
def test_what_a_module_imports_changes_its_digest_alone(library: Path, name: str) -> None:
    before = digests()
    (library / name).write_text(LIBRARY[name] + "# changed\n")
    after = digests()
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_what_it_does_not_import_changes_nothing(library: Path) -> None:
    before, whole = digests(), digest_package("lib")
    (library / "other.py").write_text("y = 2\n")
    (library / "new.py").write_text("")
    digest_package.cache_clear()
    assert digests() == before
    assert digest_package("lib") != whole


def test_models_do_not_depend_on_each_other_nor_on_experiments() -> None:
    """By what importing them loads: a digest covers no less."""
    program = (
        "import sys, pipeline.models.bernoulli_mixture.model\n"
        "print(*(name for name in sys.modules if name.startswith('pipeline.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    for part in ("binary_ica", "latent_trait", "clipped_pca", "trials", "using", "api", "registry"):
        assert not any(f".{part}" in name for name in loaded), part
