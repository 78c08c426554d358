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

from pipeline.executors.progress import Progress, format_amount

log = logging.getLogger("latentbits")
_SECONDS_BETWEEN_LINES = 10.0
_MAX_BAR_LABEL = 40  # a longer one leaves no room for the time left
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
        TextColumn("{task.fields[amount]:>4} {task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bars:
        yield ProgressBars(bars)


class ProgressBars:
    """Shows one bar per kind of pass, with rows per second and the time left."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._pace = Pace()
        self._task_ids: dict[str, TaskID] = {}

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Update the bar of this pass."""
        kind, amount = _get_pass_kind(label), format_amount(done, total, rows)
        if kind not in self._task_ids:
            self._task_ids[kind] = self._bars.add_task(kind, total=None, amount="", rate="")
        bar = self._task_ids[kind]
        if self._pace.update(label, done, total, rows):
            self._bars.reset(bar, total=total or None)
        self._bars.update(
            bar,
            total=total or None,
            completed=done,
            description=label if len(label) <= _MAX_BAR_LABEL else kind,
            amount=amount,
            rate=self._pace.format_rate(),
        )


class ProgressLines:
    """Logs a line every ten seconds, and when the first pass of a kind or a long stage ends."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._last, self._last_kind = time.monotonic(), ""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Log a line if it is due."""
        now = time.monotonic()
        self._pace.update(label, done, total, rows)
        is_done = done == total > 0
        is_long = rows > 0 or self._pace.seconds >= 1
        is_first_end = is_done and is_long and _get_pass_kind(label) != self._last_kind
        if is_first_end or now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last, seconds = now, self._pace.estimate_seconds_left()
            fields = {"stage": label, "done": done, "total": total, "rows": rows}
            parts = [format_amount(done, total, rows), self._pace.format_rate()]
            if seconds:
                fields["seconds_left"] = round(seconds)
                parts.append(f"about {_format_duration(seconds)} left")
            log.info("%s: %s", label, ", ".join(filter(None, parts)), extra={"fields": fields})
        if is_done:
            self._last_kind = _get_pass_kind(label)


def _get_pass_kind(label: str) -> str:
    return label.partition(",")[0]


def _format_duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


class Pace:
    """Rows per second and time left of a pass, by what was done since its first report."""

    def __init__(self) -> None:
        self._kind, self._start, self._first = "", time.monotonic(), (0, 0)
        self._done, self._total, self._rows = 0, 0, 0

    def update(self, label: str, done: int, total: int, rows: int) -> bool:
        """Note what was done; return whether another pass has begun."""
        is_new = _get_pass_kind(label) != self._kind or done < self._done
        if is_new:
            self._kind, self._start = _get_pass_kind(label), time.monotonic()
            self._first = done, rows
        self._done, self._total, self._rows = done, total, rows
        return is_new

    @property
    def seconds(self) -> float:
        """Seconds since the first report."""
        return time.monotonic() - self._start

    def estimate_seconds_left(self) -> float | None:
        """Return the seconds left; None if the total, or the time of two tasks, is unknown."""
        n_done = self._done - self._first[0]
        if n_done < 2 or not self._total:
            return None
        return self.seconds / n_done * (self._total - self._done)

    def format_rate(self) -> str:
        """Format the rate, such as `2.1 M rows/s`; empty for work that reads no rows."""
        if (rows := self._rows - self._first[1]) <= 0:
            return ""
        per_second = rows / max(self.seconds, 1e-9)
        for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if per_second >= size:
                return f"{per_second / size:.1f} {unit} rows/s"
        return f"{per_second:.0f} rows/s"
