"""Cancel running tasks: a thread cannot be stopped from outside, so tasks check regularly."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_should_continue: ContextVar[Callable[[], bool]] = ContextVar(
    "should_continue", default=lambda: True
)


class Cancelled(RuntimeError):
    """The result of the task is no longer needed: the run was interrupted, or failed elsewhere."""


def run_cancellable(should_continue: Callable[[], bool], function: Callable[[T], R], item: T) -> R:
    """Call `function(item)`; `check_cancelled` inside raises once `should_continue()` is false."""
    token = _should_continue.set(should_continue)
    try:
        return function(item)
    finally:
        _should_continue.reset(token)


def current_check() -> Callable[[], bool]:
    """Return the running task's cancellation check, so that its helper threads can use it."""
    return _should_continue.get()


def check_cancelled() -> None:
    """Raise `Cancelled` if the task was cancelled; long tasks call this about once per second."""
    if not current_check()():
        raise Cancelled("The run was interrupted.")
