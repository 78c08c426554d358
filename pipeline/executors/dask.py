"""Run items on a Dask cluster: only keys are sent to it, and only results are returned.

The function of a map is sent once, as the result of a separate task. Workers pass it to each other,
and Dask recomputes it if the worker that holds it dies, whereas scattered data would be lost.
"""

from __future__ import annotations

import sys
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import dask
from distributed import Client, Future, KilledWorker, get_worker
from distributed.comm import CommClosedError

from pipeline.errors import ClusterLost, FitError
from pipeline.executors.base import (
    Node,
    Tree,
    choose_span_height,
    iter_results_in_order,
    limit_blas_threads,
    push_node,
)
from pipeline.executors.cancellation import check_cancelled, run_cancellable
from pipeline.executors.code_digest import describe_environment

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F")
_CLOSE_SECONDS, _POLL_SECONDS = 2.0, 1.0


@dataclass
class DaskExecutor:
    """Executor on a cluster; if a worker is lost, the others compute its items again.

    Attributes
    ----------
    client
        The client; it is closed when the cluster is lost.
    connect
        Creates a client for the next map after the cluster was lost; None if that is impossible.
    worker_timeout
        Seconds to wait for another worker after all workers were lost.
    """

    client: Client
    connect: Callable[[], Client] | None = None
    worker_timeout: float = 60.0

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Apply a function to every item; yield the results in the order of the items.

        Raises
        ------
        ClusterLost
            If the scheduler or, for `worker_timeout` seconds, all workers were lost, or several
            workers died while computing the same item.
        """
        name = f"{_get_function_name(function)}-{uuid.uuid4().hex[:8]}"
        addresses = self._list_thread_addresses()
        # Twice as many items as threads keep workers busy while results are returned in order.
        n_ahead = max(4, 2 * len(addresses))
        sent_function = self._submit(_return_function, function, key=f"{name}-function")

        def submit(numbered: tuple[int, T]) -> Future:
            index, item = numbered
            return self._submit(
                _run_task,
                sent_function,
                item,
                key=f"{name}-{index}",
                priority=-index,
                # The same worker may still have an item's chunks in memory; idle workers steal.
                workers=addresses[index % max(len(addresses), 1) :][:1],
                allow_other_workers=True,
            )

        try:
            yield from iter_results_in_order(
                submit, self._wait_for_result, enumerate(items), n_ahead, Future.release
            )
        finally:
            sent_function.release()

    def reduce(
        self,
        function: Callable[[Sequence[T]], R],
        merge: Callable[[R, R], R],
        trees: Sequence[Tree[T, R, F]],
        report: Callable[[Sequence[T]], object],
        max_items: int,
    ) -> Generator[F]:
        """Yield the results of trees, in order; workers merge, and only results reach the client.

        All tasks are submitted at once, as Dask's own tree reduction does: no task waits for the
        client, and a slow one holds up only the nodes above it. A worker has neighbouring spans,
        which often read the same chunks and have the same node above them; idle workers steal.
        """
        name = f"{_get_function_name(function)}-{uuid.uuid4().hex[:8]}"
        addresses = self._list_thread_addresses()
        n_items = sum(len(tree.items) for tree in trees)
        height = choose_span_height(n_items, max(len(addresses), 1), max_items)
        sent_function = self._submit(_return_function, function, key=f"{name}-function")
        started: deque[tuple[Future, dict[Future, Sequence[T]]]] = deque()
        n_spans = 0
        try:
            for number, tree in enumerate(trees):
                spans = [span.value for span in tree.list_spans(height)]
                futures = self._submit_spans(
                    sent_function, spans, f"{name}-{{:06d}}", n_spans, addresses, -number
                )
                n_spans += len(spans)
                blocks, position = tree.list_spans(len(tree.items).bit_length()), 0
                nodes: list[Node[list[Future]]] = []
                for block in blocks:
                    size = max(1, len(block.value) >> height)
                    nodes.append(Node(block.height, futures[position : position + size]))
                    position += size
                merged = self._submit_merges(
                    merge, nodes, f"{name}-{number}", min(max(2, max_items), 8)
                )
                heights = [node.height for node in nodes]
                finish = partial(_finish_tree, merge, tree._replace(items=()), heights)
                key = f"finish-{name}-{number}"
                root = self._submit(_run_task, finish, merged, key=key, priority=1)
                started.append((root, dict(zip(futures, spans, strict=True))))
            del futures, nodes, merged  # workers may forget what is merged
            while started:
                result = self._wait_for_root(*started[0], report)
                started.popleft()
                yield result
        finally:
            for root, own in started:
                for future in (root, *own):
                    future.release()
            sent_function.release()

    def _submit_spans(
        self,
        sent_function: Future,
        spans: Sequence[Sequence[T]],
        key: str,
        first: int,
        addresses: Sequence[str],
        priority: int,
    ) -> list[Future]:
        """Submit the spans of a tree, in one message per worker."""
        futures = []
        n_threads = max(len(addresses), 1)
        places = [k * n_threads // len(spans) for k in range(len(spans))]
        for place, group in groupby(range(len(spans)), lambda k: addresses[places[k] :][:1]):
            own = list(group)
            futures += self._submit_all(
                _run_task,
                [sent_function] * len(own),
                [spans[k] for k in own],
                key=[key.format(first + k) for k in own],
                priority=priority,
                workers=place or None,
                allow_other_workers=bool(place),
            )
        return futures

    def _submit_merges(
        self, merge: Callable[[R, R], R], nodes: Sequence[Node[list[Future]]], name: str, arity: int
    ) -> list[Future]:
        """Merge the values of each node, which are nodes of equal height, on the workers."""
        merge_span = partial(_merge_values, merge)
        values, level = [node.value for node in nodes], 0
        while any(len(own) > 1 for own in values):
            level += 1
            groups = [
                (k, own[first : first + arity])
                for k, own in enumerate(values)
                if len(own) > 1
                for first in range(0, len(own), arity)
            ]
            merged = self._submit_all(
                _run_task,
                [merge_span] * len(groups),
                [group for _, group in groups],
                key=[f"merge-{name}-{level}-{k}" for k in range(len(groups))],
                priority=1,  # than spans, so that their results do not pile up
            )
            values = [own if len(own) == 1 else [] for own in values]
            for (k, _), future in zip(groups, merged, strict=True):
                values[k].append(future)
        return [own[0] for own in values]

    def _wait_for_root(
        self,
        root: Future,
        spans: dict[Future, Sequence[T]],
        report: Callable[[Sequence[T]], object],
    ) -> Any:
        """Return the result of a tree; report its spans as soon as they are done."""

        def report_done() -> None:
            check_cancelled()
            for future in [future for future in spans if future.status == "finished"]:
                report(spans.pop(future))

        value = self._wait_for_result(root, report_done)
        for items in spans.values():
            report(items)
        return value

    def _submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        (future,) = self._submit_all(
            function,
            *([argument] for argument in arguments),
            **{**options, "key": [options["key"]]},
        )
        return future

    def _submit_all(
        self, function: Callable[..., Any], *iterables: Sequence[Any], **options: Any
    ) -> list[Future]:
        """Submit tasks in one message, without Dask's warning about its size."""
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": sys.maxsize}):
            futures: list[Future] = self.client.map(function, *iterables, pure=False, **options)
        return futures

    def describe_workers(self) -> dict[str, dict[str, Any]]:
        """Describe the current workers, by address."""
        with self._raise_cluster_lost(OSError):
            workers: dict[str, dict[str, Any]]
            workers = self._get_client().scheduler_info(n_workers=-1)["workers"]
        return workers

    def run_on_workers(self, function: Callable[[], R]) -> dict[str, R]:
        """Call a function on every worker; workers that do not answer have no result."""
        client = self._get_client()
        results: dict[str, R] = {}
        with suppress(OSError):  # if the cluster was lost, the next map raises
            results = client.run(function, on_error="ignore")
        return results

    def _get_client(self) -> Client:
        """Return the client, or a new one if the cluster was lost."""
        if self.client.status == "closed" and self.connect is not None:
            self.client = self.connect()
        return self.client

    def _list_thread_addresses(self) -> list[str]:
        """Return the address of each thread's worker, (n_threads,)."""
        counts = sorted(
            (address, worker["nthreads"]) for address, worker in self.describe_workers().items()
        )
        return [address for address, n_threads in counts for _ in range(n_threads)]

    def _wait_for_result(
        self, future: Future, on_poll: Callable[[], object] = check_cancelled
    ) -> Any:
        with self._raise_cluster_lost(CommClosedError):
            value = self._get_result(future, on_poll)
        future.release()
        return value

    def _get_result(self, future: Future, on_poll: Callable[[], object]) -> Any:
        """Return the result of a task, or raise its error; without workers, do not wait forever."""
        seconds = _POLL_SECONDS
        while True:
            try:
                return future.result(seconds)
            except TimeoutError:
                if future.status == "error":  # meanwhile, or the task itself raised this error
                    return future.result()
                if future.status == "finished":  # a large result, or one whose worker is lost
                    seconds *= 2
            on_poll()
            if not self.client.scheduler_info(n_workers=0)["n_workers"]:
                self._wait_for_any_worker()

    def _wait_for_any_worker(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=self.worker_timeout)
        except TimeoutError as error:
            raise CommClosedError(f"no worker for {self.worker_timeout:g} s") from error

    @contextmanager
    def _raise_cluster_lost(self, connection_error: type[OSError]) -> Iterator[None]:
        """Raise `ClusterLost`, and close the client, which would wait until the cluster returns."""
        try:
            yield
        except KilledWorker as error:
            raise _make_cluster_lost(error) from error
        except (CancelledError, connection_error) as error:
            self.client.close(_CLOSE_SECONDS)
            raise _make_cluster_lost(error) from error


def _make_cluster_lost(error: BaseException) -> ClusterLost:
    reason = " ".join(str(error).split())[:200]
    return ClusterLost(f"The cluster or its workers were lost ({reason}). Start the cluster again.")


def check_workers(client: Client, packages: Sequence[str]) -> None:
    """Refuse a cluster whose workers have other code or libraries than this process."""
    expected = describe_environment(packages)
    for worker, versions in client.run(describe_environment, packages, on_error="return").items():
        if isinstance(versions, Exception):
            raise FitError(
                f"worker {worker}: latentbits is missing or has another version there "
                f"({' '.join(str(versions).split())[:200]}). Install the version that is here."
            )
        for name, value in expected.items():
            if versions.get(name) != value:
                raise FitError(
                    f"worker {worker}: {name} is {versions.get(name)} there, but {value} here. "
                    "Install the version that is here."
                )


def _return_function(function: Callable[[T], R]) -> Callable[[T], R]:
    return function


def _run_task(function: Callable[[T], R], item: T) -> R:
    worker = get_worker()
    key = worker.get_current_task()

    def should_continue() -> bool:
        """Return whether the worker still wants the task's result.

        The scheduler informs the worker when the client releases the task or dies. Dask documents
        these states ("Worker State Machine"), but offers a task no function to read its own. A
        `distributed.Event` would miss clients that die, and a `WorkerPlugin` would learn the same
        states, but stay on the user's cluster.
        """
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled"

    with limit_blas_threads():
        return run_cancellable(should_continue, function, item)


def _merge_values(merge: Callable[[R, R], R], values: Sequence[R]) -> R:
    """Merge nodes of equal height, of which there are 2, 4, 8, …."""
    nodes: list[Node[R]] = []
    for value in values:
        push_node(nodes, Node(0, value), merge)
    return nodes[0].value


def _finish_tree(
    merge: Callable[[R, R], R], tree: Tree[T, R, F], heights: Sequence[int], values: Sequence[R]
) -> F:
    nodes = list(tree.nodes)
    for node in zip(heights, values, strict=True):
        push_node(nodes, Node(*node), merge)
    return tree.finish(nodes)


def _get_function_name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
