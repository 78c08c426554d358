"""The commands of `.docs/tutorials/commands.md`, run as they stand, and the pictures they leave.

`pytest -m "slow or matrix" tests/acceptance/test_tutorial_commands.py` runs all; `.ci/run` runs the
questionnaire alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.data import find_shared_data

PAGE = Path(__file__).parents[2] / ".docs" / "tutorials" / "commands.md"
PAGE_PICTURES = PAGE.parent / "pictures"
PICTURES = {
    "votes-mixing": "votes/mixing",
    "votes-source-variances": "votes/source-variances-by-segment",
    "questionnaire-weights": "anger/weights",
    "digits-loadings": "pca/loadings",
    "digits-images": "traits/images-over-latent-space",
}


def examples() -> dict[str, str]:
    """Text of each example, by its title."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def run_commands(cli: Callable[..., Any], text: str, folder: Path) -> None:
    """Run the indented commands in this folder, which gets the data sets they name."""
    for name, words in re.findall(r"^    latentbits (\w+) (.+)$", text, re.MULTILINE):
        for source in re.findall(r"\w+\.npz", words):
            if not (folder / source).exists():
                (folder / source).symlink_to(find_shared_data(source))
        done = cli(name, *shlex.split(words))
        assert done.code == 0, f"{name} {words}\n{done.err[-2000:]}"


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"), np.float64)


slow = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "title",
    [
        pytest.param("Roll calls", marks=slow),
        pytest.param("A questionnaire", marks=pytest.mark.matrix),
        pytest.param("Handwritten digits", marks=slow),
    ],
)
def test_the_commands_make_the_pictures(
    plain_cli: Callable[..., Any], title: str, tmp_path: Path
) -> None:
    text = examples()[title]
    run_commands(plain_cli, text, tmp_path)
    named = re.findall(r"pictures/([\w-]+)\.png", text)
    assert named
    for name in named:
        shown = pixels(PAGE_PICTURES / f"{name}.png")
        drawn = pixels(tmp_path / f"{PICTURES[name]}.png")
        assert drawn.shape == shown.shape, name
        # Another processor may round otherwise, and move an edge by a pixel.
        assert np.abs(drawn - shown).mean() < 1.0, name


def test_every_example_is_run_and_every_picture_is_shown() -> None:
    found = examples()
    assert list(found) == ["Roll calls", "A questionnaire", "Handwritten digits"]
    shown = re.findall(r"pictures/([\w-]+)\.png", "".join(found.values()))
    assert sorted(shown) == sorted(PICTURES)
    assert {path.stem for path in PAGE_PICTURES.iterdir()} == set(shown)
