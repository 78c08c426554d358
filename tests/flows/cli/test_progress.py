"""Progress and log messages: few lines in a log, one bar per kind on a terminal, JSON objects."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from io import StringIO

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from flows.cli import progress
from flows.cli.progress import JsonLineFormatter, ProgressBars, ProgressLines, configure_logging
from flows.cli.progress import log as logger
from pipeline.executors.central_work import enter_stage, label_map, open_central_work, plan_stages


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


def measure(value: int) -> int:
    return abs(value)


def test_stages_of_central_work_are_numbered(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    clock[0] = 6.0
    with (
        caplog.at_level(logging.INFO, "latentbits"),
        open_central_work(map, ProgressLines()) as map_items,
    ):
        planned = plan_stages(map_items, ["choosing", "final fit"])
        for n in (2, 3):  # how many are tried is not known before
            map_tried = label_map(enter_stage(planned, "choosing"), f"{n} components", 2)
            assert list(map_tried(measure, [-1, 2])) == [1, 2]
        assert list(label_map(enter_stage(planned, "final fit", 2), "", 2)(measure, [3, 4]))
    assert caplog.messages[0] == "stage 1 of 2: choosing, 2 components: 0 steps"
    assert caplog.messages[-4:] == [
        "stage 1 of 2: choosing, 3 components: 100%",
        *(f"stage 2 of 2: final fit: {share}" for share in ("0%", "50%", "100%")),
    ]


def test_the_time_left_is_told_once_it_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = ProgressLines()
    with caplog.at_level(logging.INFO, "latentbits"):
        for done in range(90, 95):  # of a run that was resumed
            lines("pairs", done, 100, 1000 * done)
            now[0] += 20
    assert caplog.messages == [
        "pairs: 91%, 50 rows/s",
        "pairs: 92%, 50 rows/s, about 3 min left",
        "pairs: 93%, 50 rows/s, about 2 min left",
        "pairs: 94%, 50 rows/s, about 2 min left",
    ]


@pytest.fixture(autouse=True)
def _plain_afterwards():
    yield
    configure_logging()


def objects(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_fit_tells_each_stage_as_an_object(cli):
    result = cli("fit", "--dataset", "example:digits", "--log-json", "--no-report", "--json")
    assert result.code == 0
    assert result.json["model"] == "clipped-pca"
    told = objects(result.err)
    stages = {line["stage"]: line for line in told if "stage" in line}
    assert stages["pair counts"]["rows"] == 1797
    assert stages["pair counts"]["done"] == stages["pair counts"]["total"]
    for line in told:
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert line["level"] in ("info", "warning", "error")


def test_an_error_is_one_object_with_the_exit_code(cli):
    result = cli("fit", "--log-json", "--dataset", "nowhere.zarr")
    assert result.code == 2
    (line,) = objects(result.err)
    assert (line["level"], line["exit_code"]) == ("error", 2)
    assert line["message"].startswith("nowhere.zarr: there is no such dataset")


def test_without_the_option_messages_are_lines(cli):
    result = cli("fit", "--dataset", "nowhere.zarr")
    assert result.message.startswith("error: nowhere.zarr")


def test_an_unknown_option_is_named_as_before(cli):
    result = cli("fit", "--dataset", "nowhere.zarr", "--lgo-json")
    assert result.code == 2
    assert result.message.startswith("error: Unknown option: --lgo-json.")


def test_a_traceback_stays_on_its_line(caplog):
    with caplog.at_level(logging.ERROR):
        try:
            raise KeyError("x")
        except KeyError:
            logger.propagate = True
            logger.exception("failure")
    text = JsonLineFormatter().format(caplog.records[-1])
    assert "\n" not in text
    assert "KeyError" in json.loads(text)["traceback"]
