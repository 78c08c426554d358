"""Whether anybody still waits for what a task computes: a thread cannot be stopped from outside."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_should_continue: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


class Cancelled(RuntimeError):
    """Nobody waits for the task any more."""


def run_cancellable(wanted: Callable[[], bool], function: Callable[[T], R], item: T) -> R:
    """Apply a function that `check_cancelled` ends once this tells so."""
    token = _should_continue.set(wanted)
    try:
        return function(item)
    finally:
        _should_continue.reset(token)


def current_check() -> Callable[[], bool]:
    """Give what tells whether the work of now is wanted: to be asked by other threads for it."""
    return _should_continue.get()


def check_cancelled() -> None:
    """End a task whose run was interrupted or failed elsewhere; to be asked every second or so.

    Raises
    ------
    Unwanted
        If that is so.
    """
    if not current_check()():
        raise Cancelled("Expected the run to go on, but it was interrupted.")
