"""Ctrl-C: Python drops an interrupt that comes while an object is deleted, so it is noted too."""

from __future__ import annotations

import signal
import threading

_came = threading.Event()


def note_interrupts() -> None:
    """Raise interrupts as ever, but remember that one came; not where they are ignored."""
    _came.clear()
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)


def goes_on() -> bool:
    """Tell that the run is wanted, to work that asks now and then.

    Raises
    ------
    KeyboardInterrupt
        If one came, which then was dropped.
    """
    if _came.is_set():
        raise KeyboardInterrupt
    return True


def _interrupt(*_: object) -> None:
    _came.set()
    raise KeyboardInterrupt
