"""Whether work is wanted is known to every thread that does it."""

from __future__ import annotations

import threading

import pytest

from pipeline.executors.base import ThreadsExecutor
from pipeline.executors.cancellation import Cancelled, check_cancelled, run_cancellable


def test_threads_ask_what_their_caller_asks() -> None:
    """The caller waits for an item, and cannot ask by itself."""
    unwanted, noticed = threading.Event(), threading.Event()

    def work(item: int) -> None:
        check_cancelled()
        unwanted.set()
        try:
            check_cancelled()
        except Cancelled:
            noticed.set()
            raise

    def mapped(items: range) -> list[None]:
        return list(ThreadsExecutor(2).map(work, items))

    with pytest.raises(Cancelled):
        run_cancellable(lambda: not unwanted.is_set(), mapped, range(1))
    assert noticed.is_set()


def test_an_interrupt_that_a_thread_learns_of_ends_the_run() -> None:
    """As where the thread that waits was told, and what it was told was dropped."""
    came = threading.Event()

    def wanted() -> bool:
        if came.is_set():
            raise KeyboardInterrupt
        return True

    def work(item: int) -> None:
        came.set()
        check_cancelled()

    with pytest.raises(KeyboardInterrupt):
        run_cancellable(wanted, lambda n: list(ThreadsExecutor(2).map(work, range(n))), 1)
