"""How far a pass is: a bar on a terminal, log lines elsewhere, all on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from flows.cli.logs import is_logging_json, log
from pipeline.executors.progress import Progress

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def report_progress() -> Iterator[Progress]:
    """Give a function that is told (label, tasks done, tasks, rows)."""
    if not sys.stderr.isatty() or is_logging_json():
        yield ProgressLines()
        return
    columns = (
        TextColumn("{task.description:>16}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bars:
        yield ProgressBars(bars)


class ProgressBars:
    """A bar for each kind of pass, with rows a second and the time left."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._pace = RowRate()
        self._task_ids: dict[str, TaskID] = {}

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Move the bar."""
        kind = _get_pass_kind(label)
        if kind not in self._task_ids:
            self._task_ids[kind] = self._bars.add_task(label, total=total or None, rate="")
        bar = self._task_ids[kind]
        if done == 0:
            self._pace = RowRate()
            self._bars.reset(bar, total=total or None, description=label)
        self._bars.update(bar, completed=done, rate=self._pace.format_rate(rows))


class ProgressLines:
    """A line every ten seconds, and when the first pass of its kind ends."""

    def __init__(self) -> None:
        self._pace = RowRate()
        self._last, self._last_kind = time.monotonic(), ""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Write a line if it is time."""
        now = time.monotonic()
        if done == 0:
            self._pace = RowRate()
        ended = done == total > 0
        if (
            ended and _get_pass_kind(label) != self._last_kind
        ) or now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            far = f"{done / total:.0%}" if total else f"{rows:,} rows"
            fields = {"stage": label, "done": done, "total": total, "rows": rows}
            pace = self._pace.format_rate(rows)
            told = f"{far}, {pace}" if pace else far
            log.info("%s: %s", label, told, extra={"fields": fields})
        if ended:
            self._last_kind = _get_pass_kind(label)


def _get_pass_kind(label: str) -> str:
    return label.partition(",")[0]


class RowRate:
    """Rows a second since the start of a pass."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def format_rate(self, rows: int) -> str:
        """Write it, such as `2.1 M rows/s`; of central work, which sees no rows, nothing."""
        if not rows:
            return ""
        per_second = rows / max(time.monotonic() - self._start, 1e-9)
        for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if per_second >= size:
                return f"{per_second / size:.1f} {unit} rows/s"
        return f"{per_second:.0f} rows/s"
