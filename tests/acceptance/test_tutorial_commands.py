"""The commands of tutorials that start from a data file, run as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.support.data import find_reference, find_shared_data

TUTORIALS = Path(__file__).parents[2] / ".docs" / "tutorials"


def run_commands(cli: Callable[..., Any], page: str, folder: Path) -> None:
    """Run the indented commands of a page in this folder, which gets the files they name."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    commands = re.findall(r"^    latentbits (\w+) (.+)$", text, re.MULTILINE)
    assert commands
    for name, words in commands:
        for source in re.findall(r"\w+\.npz", words):
            (folder / source).symlink_to(find_shared_data(source))
        done = cli(name, *shlex.split(words))
        assert done.code == 0, f"{name} {words}\n{done.err[-2000:]}"


def read_pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"), np.float64)


def write_five_scales(folder: Path) -> None:
    """Write the files of the questionnaire with five scales; the gender is drawn."""
    answers = pd.read_csv(find_reference("data/bfi25.csv")).head(400) + 1
    gender = np.random.default_rng(0).choice(["f", "m"], len(answers))
    answers.assign(gender=gender).to_csv(folder / "bfi.csv", index=False)
    table = pd.DataFrame({"item": answers.columns, "scale": answers.columns.str[0]})
    reverse = table["item"].isin(["A1", "C4", "C5", "E1", "E2", "O2", "O5"])
    marked = table.assign(reversed=np.where(reverse, "yes", "no"))
    marked.to_csv(folder / "big5.csv", index=False)


@pytest.mark.matrix
def test_the_commands_of_the_questionnaire_write_its_items(
    plain_cli: Callable[..., Any], tmp_path: Path
) -> None:
    write_five_scales(tmp_path)
    run_commands(plain_cli, "questionnaire.md", tmp_path)
    lines = (tmp_path / "items.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 24


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_roll_calls_draw_their_figure(
    plain_cli: Callable[..., Any], tmp_path: Path
) -> None:
    run_commands(plain_cli, "roll-calls.md", tmp_path)
    shown = read_pixels(TUTORIALS / "pictures" / "votes-mixing.png")
    drawn = read_pixels(tmp_path / "votes" / "mixing.png")
    assert drawn.shape == shown.shape
    # Another processor may round otherwise, and move an edge by a pixel.
    assert np.abs(drawn - shown).mean() < 1.0
