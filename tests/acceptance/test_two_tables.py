"""The examples of `.docs/tasks/use-a-fit.md`, on roll calls and a questionnaire."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.data import find_shared_data

ROOT = Path(__file__).parents[2]
EVERY = 40  # roll call of the General Assembly, of 6,203


def commands_about(file: str) -> list[list[str]]:
    """Words of the commands, from that which ingests the file to the end of its block."""
    text = (ROOT / ".docs" / "tasks" / "use-a-fit.md").read_text(encoding="utf-8")
    blocks = re.findall(r"((?:^    latentbits .*\n)+)", text, re.MULTILINE)
    (block,) = (block for block in blocks if f"ingest {file} " in block)
    return [shlex.split(line)[1:] for line in block.splitlines()]


def run_all(cli: Callable[..., Any], file: str) -> None:
    for name, *words in commands_about(file):
        done = cli(name, *words)
        assert done.code == 0, f"{name} {words}\n{done.err[-2000:]}"


def saved(name: str) -> dict[str, Any]:
    """Values, what is observed, and names of the features."""
    with np.load(find_shared_data(f"{name}.npz")) as file:
        n_columns = int(file["shape"][1])
        names = file["cols"].tolist() if "cols" in file else [f"f{k}" for k in range(n_columns)]
        if len(names) == 1:
            names = str(names[0]).rstrip(",").split(",")
        bits = {k: np.unpackbits(file[k], axis=1)[:, :n_columns] for k in ("X", "M") if k in file}
        return {**bits, "names": [*map(str, names)], "y": file.get("y")}


def rows_of(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@pytest.mark.matrix
def test_roll_calls_become_points_with_names(plain_cli: Callable[..., Any]) -> None:
    data = saved("unvotes_core")
    X, seen = data["X"][::EVERY], data["M"][::EVERY]
    with open("calls.csv", "w", encoding="utf-8") as file:
        print("country,call,vote", file=file)
        for k, (votes, there) in enumerate(zip(X, seen, strict=True)):
            for name, vote, here in zip(data["names"], votes, there, strict=True):
                print(f"{name},{k},{('no', 'yes')[vote] if here else 'abstain'}", file=file)
    run_all(plain_cli, "calls.csv")
    points = {row["country"]: float(row["mean_1"]) for row in rows_of("points.csv")}
    assert set(points) == set(data["names"])
    assert np.mean([*points.values()]) == pytest.approx(0, abs=1e-6)
    assert np.std([*points.values()]) == pytest.approx(1, abs=1e-6)
    blocs = [("US", "GB", "IL"), ("CU", "BY", "IR")]
    west, east = ([points[name] for name in bloc if name in points] for bloc in blocs)
    assert len(west) >= 2 <= len(east)
    assert max(west) < min(east) or min(west) > max(east)
    figures = [*Path("figures").glob("*.svg")]
    assert any(">AU<" in figure.read_text(encoding="utf-8") for figure in figures)


@pytest.mark.matrix
def test_a_questionnaire_becomes_a_table_of_items(plain_cli: Callable[..., Any]) -> None:
    data = saved("verbal_aggression")
    with open("anger.csv", "w", encoding="utf-8") as file:
        print(",".join(["person", "gender", *data["names"]]), file=file)
        for k, (answers, y) in enumerate(zip(data["X"], data["y"], strict=True)):
            print(",".join([f"p{k}", "FM"[y], *map(str, answers)]), file=file)
    run_all(plain_cli, "anger.csv")
    items = rows_of("items.csv")
    assert [item["feature"] for item in items] == data["names"]
    assert all(0.3 < float(item["weights_1"]) < 4 for item in items)
