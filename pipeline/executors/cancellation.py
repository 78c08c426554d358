"""Whether anybody still waits for what a task computes: a thread cannot be stopped from outside."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_wanted: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


class Unwanted(RuntimeError):
    """Nobody waits for the task any more."""


def while_wanted(wanted: Callable[[], bool], function: Callable[[T], R], item: T) -> R:
    """Apply a function that `check_wanted` ends once this tells so."""
    token = _wanted.set(wanted)
    try:
        return function(item)
    finally:
        _wanted.reset(token)


def asked() -> Callable[[], bool]:
    """Give what tells whether the work of now is wanted: to be asked by other threads for it."""
    return _wanted.get()


def check_wanted() -> None:
    """End a task whose run was interrupted or failed elsewhere; to be asked every second or so.

    Raises
    ------
    Unwanted
        If that is so.
    """
    if not asked()():
        raise Unwanted("Expected the run to go on, but it was interrupted.")
