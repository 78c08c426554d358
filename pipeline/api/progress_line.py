"""Show progress in a terminal or a notebook; elsewhere show nothing."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.executors.progress import Progress, ignore_progress

ShowLine = Callable[[str], None]
"""Shows a line in place of the previous one."""

_QUIET_SECONDS, _UPDATE_SECONDS = 1.0, 0.2


@contextmanager
def show_progress(progress: Progress | None = None) -> Iterator[Progress]:
    """Yield the given progress callback, or one that shows a line until the work ends."""
    screen = _find_screen()
    if progress is not None or screen is None:
        yield progress or ignore_progress
        return
    line = _ProgressLine(screen)
    try:
        yield line
    finally:
        line.clear()


class _ProgressLine:
    """Shows the progress of a pass once the work takes longer than a second."""

    def __init__(self, screen: ShowLine) -> None:
        self._screen = screen
        self._due, self._is_shown = time.monotonic() + _QUIET_SECONDS, False

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        if (now := time.monotonic()) >= self._due:
            self._due, self._is_shown = now + _UPDATE_SECONDS, True
            far = f"{done / total:.0%}" if total else f"{rows:,} rows"
            self._screen(f"{label}: {far}")

    def clear(self) -> None:
        if self._is_shown:
            self._screen("")


def _find_screen() -> ShowLine | None:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return _make_cell_screen()
    return _show_in_terminal if sys.stderr.isatty() else None


def _show_in_terminal(text: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{text[:width]}\x1b[K")
    sys.stderr.flush()


def _make_cell_screen() -> ShowLine:
    """Return a function that shows a line below a notebook cell, next to its other output."""
    from IPython import display

    begin: Any = display.display
    shown: list[Any] = []

    def show(text: str) -> None:
        data = {"text/plain": text}
        if shown:
            shown[0].update(data, raw=True)
        else:
            shown.append(begin(data, raw=True, display_id=True))

    return show
