"""Progress and log messages on standard error: bars on a terminal, otherwise text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from pipeline.executors.progress import Progress

log = logging.getLogger("latentbits")
_SECONDS_BETWEEN_LINES = 10.0
_ERRORS_TO_WARN_OF: tuple[type[Exception], ...] = (Exception,)  # none in tests


def configure_logging(as_json: bool = False) -> None:
    """Write the log messages of this program to standard error, one per line."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonLineFormatter())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def is_logging_json() -> bool:
    """Return whether log messages are written as JSON."""
    return any(isinstance(handler.formatter, JsonLineFormatter) for handler in log.handlers)


@contextmanager
def warn_on_error(problem: str, result: str = "fit") -> Iterator[None]:
    """Turn an error into a warning, as it must not lose a finished result, such as a fit."""
    try:
        yield
    except _ERRORS_TO_WARN_OF as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        log.warning("warning: %s (%s). The %s itself is complete.", problem, reason, result)


class JsonLineFormatter(logging.Formatter):
    """Formats a message as a JSON object: time, level, message and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


@contextmanager
def report_progress() -> Iterator[Progress]:
    """Show progress; the function yielded takes (label, tasks done, tasks in total, rows)."""
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
    """Shows one bar per kind of pass, with rows per second and the time left."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._rate = RowRate()
        self._task_ids: dict[str, TaskID] = {}

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Update the bar of this pass."""
        kind = _get_pass_kind(label)
        if kind not in self._task_ids:
            self._task_ids[kind] = self._bars.add_task(label, total=total or None, rate="")
        bar = self._task_ids[kind]
        if done == 0:
            self._rate = RowRate()
            self._bars.reset(bar, total=total or None, description=label)
        self._bars.update(bar, completed=done, rate=self._rate.format(rows))


class ProgressLines:
    """Logs a line every ten seconds, and when the first pass of a kind ends."""

    def __init__(self) -> None:
        self._rate = RowRate()
        self._last, self._last_kind = time.monotonic(), ""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Log a line if it is due."""
        now = time.monotonic()
        if done == 0:
            self._rate = RowRate()
        is_done = done == total > 0
        is_first_end = is_done and _get_pass_kind(label) != self._last_kind
        if is_first_end or now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            share = f"{done / total:.0%}" if total else f"{rows:,} rows"
            fields = {"stage": label, "done": done, "total": total, "rows": rows}
            rate = self._rate.format(rows)
            text = f"{share}, {rate}" if rate else share
            log.info("%s: %s", label, text, extra={"fields": fields})
        if is_done:
            self._last_kind = _get_pass_kind(label)


def _get_pass_kind(label: str) -> str:
    return label.partition(",")[0]


class RowRate:
    """Rows per second since the start of a pass."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def format(self, rows: int) -> str:
        """Format the rate, such as `2.1 M rows/s`; empty for work that reads no rows."""
        if not rows:
            return ""
        per_second = rows / max(time.monotonic() - self._start, 1e-9)
        for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if per_second >= size:
                return f"{per_second / size:.1f} {unit} rows/s"
        return f"{per_second:.0f} rows/s"
