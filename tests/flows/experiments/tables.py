"""Runs of experiments, and the tables and pictures that they leave."""

from __future__ import annotations

import csv
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from flows.cli.app import run_app
from flows.experiments.__main__ import app


def run_experiment(name: str, output: Path, *options: str) -> str:
    """Run the smaller version of an experiment; return what it printed."""
    words = [name, "--quick", "--executor", "serial", "--output", str(output), *options]
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit) as leaving:
        run_app(app, words)
    assert leaving.value.code == 0
    return printed.getvalue()


def table(stem: Path) -> list[dict[str, Any]]:
    """Read a table from its JSON, and see that the CSV says the same."""
    rows = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    texts = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    with stem.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == texts
    return rows


def check_picture(path: Path, min_size: int) -> None:
    """Check that marks are on a light background, none at the edges; an SVG must be beside it."""
    pixels = imread(path)[..., :3]
    assert min(pixels.shape[:2]) > min_size
    assert 0.01 < (pixels.min(axis=2) < 0.9).mean() < 0.8
    for edge in (pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]):
        assert edge.min() == 1
    assert ElementTree.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")
