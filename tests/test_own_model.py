"""The model that `.docs/project/own-model.md` adds works as the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentbits import functions as api
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from storage import open_codes, open_dataset
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.processes import start_command

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / ".docs" / "project" / "own-model.md").read_text(encoding="utf-8")


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file that the page tells to save, and data."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "two_kinds.py").write_text(source, encoding="utf-8")
    write_arrays(tmp_path / "d.zarr", draw_probit_rows(3000, 8, 1, seed=2)[0], words_per_chunk=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def list_commands() -> list[list[str]]:
    """Those of the page, on data made page_folder."""
    lines = re.findall(r"^    python -m (flows\.fit .*)$", PAGE, flags=re.MULTILINE)
    return [line.replace("example:digits", "d.zarr").split() for line in lines]


@pytest.mark.matrix
def test_the_commands_of_the_page_work(page_folder: Path, cli: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    fit, show = list_commands()
    with start_command(*fit) as started:  # with worker processes, which find the file as well
        assert started.wait()[0] == 0
    assert cli("fit", *show[1:]).code == 0
    use = (
        "--dataset",
        page_folder / "d.zarr",
        "--artifact",
        page_folder / "runs/d",
        "--output",
        "z.zarr",
    )
    monkeypatch.setenv("LATENTBITS_MODELS", "two_kinds:TwoKinds")
    assert cli("transform", *use).code == 0
    assert open_codes("z.zarr")["mean"].shape == (3000, 2)


def test_it_finds_what_the_mixture_here_finds(page_folder: Path) -> None:
    dataset = open_dataset("d.zarr")
    found = api.fit(dataset, "two_kinds:TwoKinds", smoothing=0.1)
    known = api.fit(dataset, BernoulliMixture.name, components=2)
    assert found.converged
    np.testing.assert_allclose(np.sort(found.params.pi), np.sort(known.params.weights), atol=0.01)
