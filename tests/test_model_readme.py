"""The model that `pipeline/models/README.md` adds works as it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pipeline import api
from pipeline.models.bernoulli_mixture import BernoulliMixture
from storage import open_codes, open_dataset
from tests.data import probit_rows, write
from tests.processes import command

ROOT = Path(__file__).parents[1]
README = (ROOT / "pipeline" / "models" / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file that the page tells to save, and data."""
    (source,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "two_kinds.py").write_text(source, encoding="utf-8")
    write(tmp_path / "d.zarr", probit_rows(3000, 8, 1, seed=2)[0], words_per_chunk=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def commands() -> list[list[str]]:
    """Those of the page, on data made here."""
    lines = re.findall(r"^    python -m (flows\.fit .*)$", README, flags=re.MULTILINE)
    return [line.replace("example:digits", "d.zarr").split() for line in lines]


def test_the_commands_of_the_page_work(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert len(commands()) == 2
    for words in commands():
        with command(*words) as started:
            assert started.ended()[0] == 0
    use = ("flows.transform", "--dataset", "d.zarr", "--artifact", "runs/d", "--output", "z.zarr")
    with command(*use, LATENTBITS_MODELS="two_kinds:TwoKinds") as started:
        assert started.ended()[0] == 0
    assert open_codes("z.zarr")["mean"].shape == (3000, 2)


def test_it_finds_what_the_mixture_here_finds(here: Path) -> None:
    dataset = open_dataset("d.zarr")
    found = api.fit(dataset, "two_kinds:TwoKinds", smoothing=0.1)
    known = api.fit(dataset, BernoulliMixture.name, components=2)
    assert found.converged
    np.testing.assert_allclose(np.sort(found.params.pi), np.sort(known.params.weights), atol=0.01)
