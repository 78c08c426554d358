"""A small world of files of ours, for others to have changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import outside
from tests.support.outside import Workspace


@pytest.fixture(autouse=True, scope="module")
def without_prefect() -> Iterator[None]:
    """Run the stages of flows by themselves: hundreds of calls would take Prefect long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.running.flow.is_prefect_installed", lambda: False)
        yield


@pytest.fixture(scope="module")
def small(without_prefect: None, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return outside.create_workspace(tmp_path_factory.mktemp("small") / "world", ("latent-trait",))


@pytest.fixture
def made(small: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return outside.copy_workspace(small, tmp_path / "world")
