"""Whether Prefect records a run, in which database, and that an embedded server sends nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flows.running import environment

PROGRAM = """
import flows, json, os, prefect
from flows.running.environment import is_server_configured
settings = prefect.settings.get_current_settings()
print(json.dumps({
    "configured": is_server_configured(),
    "home": str(settings.home),
    "url": settings.api.url,
    "analytics": settings.server.analytics_enabled,
    "do_not_track": os.environ.get("DO_NOT_TRACK"),
}))
"""


def seen(tmp_path: Path, **environment: str) -> dict:
    """What a fresh interpreter sees, with a home folder of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "XDG", "DO_NOT"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, "HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def profile(tmp_path: Path) -> None:
    """A user's own Prefect profile that names a server."""
    (tmp_path / ".prefect").mkdir()
    (tmp_path / ".prefect" / "profiles.toml").write_text(
        'active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://127.0.0.1:4321/api"\n'
    )


@pytest.mark.parametrize(
    ("ephemeral", "url", "installed", "recording"),
    [
        (None, None, True, False),
        ("false", None, True, False),
        ("True", None, True, True),
        ("1", None, False, False),
        (None, "http://127.0.0.1:4321/api", True, True),
        (None, "http://127.0.0.1:4321/api", False, False),
    ],
)
def test_runs_are_recorded_on_request(tmp_path, monkeypatch, ephemeral, url, installed, recording):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "is_prefect_installed", lambda: installed)
    values = {"PREFECT_SERVER_EPHEMERAL_ENABLED": ephemeral, "PREFECT_API_URL": url}
    for name, value in values.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert environment.is_recording() == recording


@pytest.mark.matrix
def test_the_embedded_server_sends_nothing(tmp_path):
    found = seen(tmp_path)
    assert found["configured"] is False
    assert found["analytics"] is False
    assert found["do_not_track"] == "1"
    assert found["home"] == str(tmp_path / ".prefect")


@pytest.mark.matrix
def test_a_server_of_the_environment_is_used(tmp_path):
    found = seen(tmp_path, PREFECT_API_URL="http://127.0.0.1:4321/api")
    assert found["configured"] is True
    assert found["url"] == "http://127.0.0.1:4321/api"
    assert found["home"] == str(tmp_path / ".prefect")


@pytest.mark.matrix
def test_a_server_of_the_profile_is_used(tmp_path):
    profile(tmp_path)
    found = seen(tmp_path)
    assert found["configured"] is True
    assert found["url"] == "http://127.0.0.1:4321/api"
    assert found["home"] == str(tmp_path / ".prefect")


def test_prefect_loads_the_block_without_changing_its_own_environment(tmp_path):
    file = Path(__file__).parents[3] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    (module,) = project["entry-points"]["prefect.collections"].values()
    program = (
        "import os, prefect\n"
        "before = {name for name in os.environ if name.startswith('PREFECT')}\n"
        f"import {module}\n"
        "assert {name for name in os.environ if name.startswith('PREFECT')} == before\n"
        "from prefect.utilities.dispatch import lookup_type\n"
        "print(lookup_type(prefect.blocks.core.Block, 'latentbits-dask-cluster').__name__)\n"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "DaskCluster\n"), done.stderr
