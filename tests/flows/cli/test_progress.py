"""What a user sees of a pass: few lines in a log, one bar a kind on a terminal."""

from __future__ import annotations

import logging
from io import StringIO

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from flows.cli import progress
from flows.cli.progress import ProgressBars, ProgressLines
from pipeline.executors.progress import ProgressMap, label_map


def passes(tell: progress.Progress, n_passes: int) -> None:
    for number in range(1, n_passes + 1):
        for done in range(5):
            tell(f"E-step, pass {number}", done, 4, 100 * done)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that each look at the clock takes; change the one entry."""
    step, now = [0.001], [0.0]

    def look() -> float:
        now[0] += step[0]
        return now[0]

    monkeypatch.setattr(progress.time, "monotonic", look)
    return step


def test_short_passes_leave_one_line_a_kind(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    lines = ProgressLines()
    with caplog.at_level(logging.INFO, "latentbits"):
        lines("feature counts", 0, 1, 0)
        lines("feature counts", 1, 1, 400)
        passes(lines, 50)
    assert [line.split(":")[0] for line in caplog.messages] == ["feature counts", "E-step, pass 1"]


def test_long_passes_leave_a_line_every_ten_seconds(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    clock[0] = 2.0
    with caplog.at_level(logging.INFO, "latentbits"):
        passes(ProgressLines(), 5)
    assert 4 <= len(caplog.messages) <= 12
    assert any(line.startswith("E-step, pass 4: ") for line in caplog.messages)


def test_passes_of_a_kind_share_a_bar() -> None:
    column = TextColumn("{task.description} {task.percentage:.0f}")
    with Progress(column, console=Console(file=StringIO())) as bars:
        tell = ProgressBars(bars)
        tell("feature counts", 0, 1, 0)
        tell("feature counts", 1, 1, 400)
        passes(tell, 3)
        assert [task.description for task in bars.tasks] == ["feature counts", "E-step, pass 3"]
        assert all(task.finished for task in bars.tasks)


def test_central_work_is_told_without_a_pace(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    clock[0] = 6.0
    lines = ProgressLines()
    told = label_map(ProgressMap(map, lines), "choose, 5 components", 4)
    with caplog.at_level(logging.INFO, "latentbits"):
        assert list(told(abs, [-1, 2, -3, 4])) == [1, 2, 3, 4]
    assert caplog.messages[0].startswith("choose, 5 components: ")
    assert caplog.messages[-1] == "choose, 5 components: 100%"
    assert not any("rows" in line for line in caplog.messages)
