"""A small world of files of ours, for others to have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import outside
from tests.support.outside import Workspace


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return outside.create_workspace(tmp_path_factory.mktemp("small") / "world", ("latent-trait",))


@pytest.fixture
def made(small: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return outside.copy_workspace(small, tmp_path / "world")
