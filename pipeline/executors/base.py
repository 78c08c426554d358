"""The executor protocol, the serial and the threaded executor, and parts that executors share."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from pipeline.errors import FitError
from pipeline.executors.cancellation import check_cancelled, current_check, run_cancellable

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F")
_TASKS_PER_THREAD, _SPANS_AHEAD = 8, 32
MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""A map for central work: `Executor.map` or `map`."""


class Node(NamedTuple, Generic[R]):
    """The merged results of 2**height neighbouring items, in a binary tree over all items."""

    height: int
    value: R


def _ignore_following(items: Sequence[Any], following: Sequence[Any]) -> Sequence[Any]:
    return items


class Tree(NamedTuple, Generic[T, R, F]):
    """Items whose results are merged along a fixed binary tree.

    Attributes
    ----------
    items
        The items to do.
    nodes
        Results of earlier items, which precede them: the fewest nodes that hold all of these.
    finish
        Takes the fewest nodes that hold the results of all items, and returns the tree's result.
    is_open
        Whether the last item remains a node of its own, of height −1.
    look_ahead
        Adds to the items of a span what it should know of the items that follow in its thread.
    """

    items: Sequence[T]
    nodes: Sequence[Node[R]]
    finish: Callable[[list[Node[R]]], F]
    is_open: bool = False
    look_ahead: Callable[[Sequence[T], Sequence[T]], Sequence[T]] = _ignore_following

    def list_spans(self, max_height: int) -> list[Node[Sequence[T]]]:
        """Cut the items into spans that are whole nodes of the tree, the largest that exist."""
        first = sum(1 << node.height for node in self.nodes)
        spans, position, stop = [], first, first + len(self.items) - self.is_open
        while position < stop:
            height = min(max_height, (stop - position).bit_length() - 1)
            if position:
                height = min(height, (position & -position).bit_length() - 1)
            start = position - first
            spans.append(Node(height, self.items[start : start + (1 << height)]))
            position += 1 << height
        return [*spans, Node(-1, self.items[-1:])] if self.is_open else spans


def look_ahead(
    tree: Tree[T, R, F], spans: Sequence[Sequence[T]], n_threads: int = 1
) -> list[Sequence[T]]:
    """Return the spans of threads that take turns, each with some of those that follow it there."""
    starts = range(n_threads, n_threads + len(spans))
    following = (spans[k : k + n_threads * _SPANS_AHEAD : n_threads] for k in starts)
    return [
        tree.look_ahead(span, [*chain.from_iterable(later)])
        for span, later in zip(spans, following, strict=True)
    ]


def push_node(nodes: list[Node[R]], node: Node[R], merge: Callable[[R, R], R]) -> None:
    """Add the node of the items that follow, and merge nodes of equal height."""
    height, value = node
    while nodes and nodes[-1].height == height:
        value = merge(nodes.pop().value, value)
        height += 1
    nodes.append(Node(height, value))


def choose_span_height(n_items: int, n_threads: int, max_items: int) -> int:
    """Choose how many neighbouring items, 2**height, a task works through.

    Results do not depend on it, so it may depend on the number of threads. Each thread has several
    tasks, so that all end at the same time.
    """
    n_per_task = max(1, n_items // (_TASKS_PER_THREAD * n_threads))
    return min(n_per_task, max(1, max_items)).bit_length() - 1


class Executor(Protocol):
    """Runs tasks on this thread, on other threads or on a cluster."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a pure function to every item; yield the results in the order of the items.

        Closing the generator cancels running items; see `pipeline.executors.cancellation`.
        """

    def reduce(
        self,
        function: Callable[[Sequence[T]], R],
        merge: Callable[[R, R], R],
        trees: Sequence[Tree[T, R, F]],
        report: Callable[[Sequence[T]], object],
        max_items: int,
    ) -> Generator[F]:
        """Yield the results of trees, in order.

        Parameters
        ----------
        function
            Returns the merged results of a span of neighbouring items that is a node of the tree.
        merge
            Merges the results of neighbouring nodes.
        trees
            The items, and what to do with the results.
        report
            Receives the items of every span that is done.
        max_items
            Number of items that one task may work through.
        """


class LocalExecutor(Executor, Protocol):
    """Base of executors of this process, which merges results in the order of the items."""

    n_threads: int

    def reduce(
        self,
        function: Callable[[Sequence[T]], R],
        merge: Callable[[R, R], R],
        trees: Sequence[Tree[T, R, F]],
        report: Callable[[Sequence[T]], object],
        max_items: int,
    ) -> Generator[F]:
        """Yield the results of trees, in order."""
        n_items = sum(len(tree.items) for tree in trees)
        height = choose_span_height(n_items, self.n_threads, max_items)
        spans = [tree.list_spans(height) for tree in trees]
        arguments = [
            argument
            for tree, own in zip(trees, spans, strict=True)
            for argument in look_ahead(tree, [span.value for span in own], self.n_threads)
        ]
        with closing(self.map(function, arguments)) as values:
            for tree, own in zip(trees, spans, strict=True):
                nodes = list(tree.nodes)
                for (span_height, items), value in zip(own, values, strict=False):
                    push_node(nodes, Node(span_height, value), merge)
                    report(items)
                yield tree.finish(nodes)


class SerialExecutor(LocalExecutor):
    """Executor on the calling thread, the reference for all others."""

    n_threads = 1

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items."""
        with limit_blas_threads():
            for item in items:
                yield function(item)
                check_cancelled()


def count_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ThreadsExecutor(LocalExecutor):
    """Executor on threads of this process; compiled kernels release the interpreter lock."""

    n_threads: int = field(default_factory=count_cpus)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items."""
        end, caller_should_continue = threading.Event(), current_check()

        def should_continue() -> bool:
            """Ask the caller too, because its thread may receive an interrupt late or never."""
            return not end.is_set() and caller_should_continue()

        with limit_blas_threads(), ThreadPoolExecutor(self.n_threads) as pool:

            def submit(item: T) -> Future[R]:
                return pool.submit(run_cancellable, should_continue, function, item)

            try:
                yield from iter_results_in_order(
                    submit, Future.result, items, 2 * self.n_threads, Future.cancel
                )
            finally:
                end.set()  # cancel running items; leaving the pool waits for them


def find_max_workers(n_cpus: int) -> int:
    """Return the largest useful number of workers of a machine; more would only take memory."""
    return 16 * n_cpus


def choose_executor(executor: Executor | str | None, n_jobs: int | None) -> Executor:
    """Return the executor; without one, or with the name of a kind, make it as `make_executor`."""
    if isinstance(executor, str):
        if executor not in ("serial", "threads"):
            raise FitError(
                f"{{executor}} is {executor!r}. Pass serial, threads or an executor object.",
                parameter="executor",
            )
        return make_executor(1 if executor == "serial" else n_jobs or -1)
    return executor or make_executor(n_jobs)


def make_executor(n_jobs: int | None) -> Executor:
    """Return an executor with `n_jobs` threads, as in scikit-learn: None is 1, -1 is all CPUs."""
    if n_jobs == 0:
        text = "{n_jobs} is 0. Choose a number of threads, or -1 for all CPUs."
        raise FitError(text, parameter="n_jobs")
    n_threads = n_jobs or 1
    if n_threads > (most := find_max_workers(count_cpus())):
        raise FitError(
            f"{{n_jobs}} is {n_threads:,}, but this machine has {count_cpus()} CPUs. Choose at "
            f"most {most}, or -1 for all CPUs.",
            parameter="n_jobs",
        )
    if n_threads < 0:
        n_threads = max(1, count_cpus() + 1 + n_threads)
    return SerialExecutor() if n_threads == 1 else ThreadsExecutor(n_threads)


def iter_results_in_order(
    submit: Callable[[T], F],
    get_result: Callable[[F], R],
    items: Iterable[T],
    n_ahead: int,
    discard: Callable[[F], object] = lambda future: None,
) -> Generator[R]:
    """Yield the results in the order of the items, with at most `n_ahead` items submitted.

    Memory therefore does not grow with the number of items. After an error, or when the generator
    is closed, pending items are discarded. `check_cancelled` is called after each result.
    """
    pending: deque[F] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) >= n_ahead:
                yield get_result(pending.popleft())
            check_cancelled()
        while pending:
            yield get_result(pending.popleft())
            check_cancelled()
    finally:
        for future in pending:
            discard(future)


class _BlasThreadLimit:
    """Limits BLAS to one thread in the whole process while it has at least one user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._n_users == 0:
                # OpenBLAS lets only the thread that first set a limit change it, and silently
                # ignores all others.
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits = _find_blas_libraries(len(sys.modules)).limit(limits=1)
            self._n_users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_users -= 1
            if self._n_users == 0:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits.restore_original_limits()
                OpenBLASController.clear_controlling_thread()


@lru_cache(maxsize=1)
def _find_blas_libraries(n_modules: int) -> ThreadpoolController:
    """Find the loaded BLAS libraries, again whenever the number of imported modules changes."""
    return ThreadpoolController()


_blas_thread_limit = _BlasThreadLimit()


def limit_blas_threads() -> AbstractContextManager[None]:
    """Limit BLAS to one thread, so that sums have the same bytes in every executor."""
    return _blas_thread_limit
