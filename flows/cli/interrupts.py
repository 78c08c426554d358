"""Ctrl-C: Python drops an interrupt that comes while an object is deleted, so it is noted too."""

from __future__ import annotations

import signal
import threading

_interrupt_received = threading.Event()


def install_interrupt_handler() -> None:
    """Raise interrupts as ever, but remember that one came; not where they are ignored."""
    _interrupt_received.clear()
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _handle_interrupt)


def can_continue() -> bool:
    """Tell that the run is wanted, to work that asks now and then.

    Raises
    ------
    KeyboardInterrupt
        If one came, which then was dropped.
    """
    if _interrupt_received.is_set():
        raise KeyboardInterrupt
    return True


def _handle_interrupt(*_: object) -> None:
    _interrupt_received.set()
    raise KeyboardInterrupt
