"""The experiment on noisy-OR networks: its tables, its pictures, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.experiments import noisy_or
from flows.experiments.noisy_or import (
    average_top_units,
    bits_per_row,
    cosine_to_causes,
    make_problems,
    score_top_units,
)
from storage.examples import merge_equal_rows
from tests.flows.experiments.tables import check_picture, run_experiment, table

Call = Callable[..., Any]
LINES, SHIFTER = make_problems()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of one short run with few units, and what it printed."""
    output = tmp_path_factory.mktemp("noisy-or") / "output"
    small = (LINES._replace(layers=(6, 2)), SHIFTER._replace(layers=(5, 2)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(noisy_or, "make_problems", lambda: small)
        patched.setattr(noisy_or, "_QUICK_EPOCHS", 2)
        patched.setattr(noisy_or, "_ROWS", 300)
        printed = run_experiment("noisy-or", output, "--starts", "2", "--json")
    (output.parent / "summary.json").write_text(printed, encoding="utf-8")
    return output


@pytest.mark.matrix
def test_every_start_is_reported(finished: Path) -> None:
    rows = table(finished / "noisy-or")
    assert [(row["problem"], row["start"]) for row in rows] == [
        (name, start) for name in ("lines", "shifter") for start in (0, 1)
    ]
    for row in rows:
        assert row["entropy"] < row["built"]
        assert row["entropy"] < row["bits"]
        assert 0 < row["cosine"] < 1
        assert 0 <= row["identified"] <= 1
    epochs = table(finished / "noisy-or_epochs")
    assert [row["epoch"] for row in epochs] == [1, 2, 4, 15] * 4
    first, last = epochs[0::4], epochs[3::4]
    assert all(a["bits"] > b["bits"] for a, b in zip(first, last, strict=True))
    assert len(table(finished / "noisy-or_top")) == 2 * (4 * 2 + 2 * 2)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["bits", "lines_network", "shifter_network"])
def test_the_picture_can_be_read(finished: Path, name: str) -> None:
    check_picture(finished / f"noisy-or_{name}.png", 400)


@pytest.mark.matrix
def test_the_summary_names_starts_limits_and_files(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((finished.parent / "summary.json").read_text())
    assert summary["files"] == sorted(map(str, finished.iterdir()))
    noisy_or.print_summary(summary)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["problem", "start", "bits", "cosine", "identified"]
    assert lines[2].split()[2] == f"{summary['starts'][0]['bits']:.3f}"
    assert lines[8] == "lines: entropy 6.334 bits, network built by hand 7.148"


@pytest.mark.parametrize("problem", [LINES, SHIFTER], ids=lambda problem: problem.name)
def test_a_network_built_by_hand_has_the_causes_and_explains_every_row(problem: Any) -> None:
    assert cosine_to_causes(problem.built, problem) == pytest.approx(1)
    rows, probabilities = merge_equal_rows(problem.cases)
    surplus = bits_per_row(problem.built, rows[::20]) + np.log2(probabilities[::20])
    assert surplus.max() < 2


def test_what_upper_units_tell() -> None:
    labels = SHIFTER.cases.labels[SHIFTER.case_indices]
    means = np.zeros((len(labels), 22))
    means[labels == "right", 20], means[labels == "left", 21] = 0.9, 0.8
    assert score_top_units(means, SHIFTER) == 1
    np.testing.assert_allclose(average_top_units(means, SHIFTER), [[0, 0.8], [0.9, 0]])
    means[np.flatnonzero(labels == "left")[:64], 20] = 0.9
    assert score_top_units(means, SHIFTER) == 1 - 64 / 512
    patterns = np.zeros((4, 15))
    patterns[:, 10:12] = [[1, 1], [0, 1], [0, 1], [0, 1]]
    assert score_top_units(patterns, LINES) == 0.25
