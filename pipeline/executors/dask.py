"""Run items on a Dask cluster: only keys are sent to it, and only results are returned.

The function of a map is sent once, as the result of a separate task. Workers pass it to each other,
and Dask recomputes it if the worker that holds it dies, whereas scattered data would be lost.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, TypeVar

import dask
from distributed import Client, Future, get_worker

from pipeline.errors import ClusterLost, FitError
from pipeline.executors.base import (
    Node,
    Tree,
    choose_span_height,
    iter_results_in_order,
    limit_blas_threads,
    look_ahead,
    push_node,
)
from pipeline.executors.cancellation import check_cancelled, run_cancellable
from pipeline.executors.code_digest import describe_environment
from pipeline.executors.dask_monitor import ClusterMonitor, make_cluster_lost

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F")
_POLL_SECONDS, _PAUSE_SECONDS, _MIN_LATE_SECONDS, _TIMES_MEAN = 1.0, 0.05, 5.0, 3.0
_MAX_ARITY = 8
"""Most results that a task merges."""


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
        Seconds to wait for another worker after all workers were lost; see `ClusterMonitor`.
    task_timeout
        Seconds without a finished task after which others get the tasks of a worker.
    """

    client: Client
    connect: Callable[[], Client] | None = None
    worker_timeout: float = 60.0
    task_timeout: float | None = None

    def __post_init__(self) -> None:
        self._monitor = ClusterMonitor(self.client, self.worker_timeout, self.task_timeout)

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
        self._monitor.start_run(name)
        # Twice as many items as threads keep workers busy while results are returned in order.
        n_ahead = max(4, 2 * len(addresses))
        sent_function = self._submit(_return_function, function, key=f"{name}-function")

        start, n_done = time.monotonic(), 0

        def submit(numbered: tuple[int, T]) -> tuple[Future, int, T]:
            index, item = numbered
            # The same worker may still have an item's chunks in memory; idle workers steal.
            workers = addresses[index % max(len(addresses), 1) :][:1]
            return submit_to(workers, f"{name}-{index}", index, item), index, item

        def submit_to(workers: Sequence[str], key: str, index: int, item: T) -> Future:
            return self._submit(
                _run_task,
                sent_function,
                item,
                key=key,
                priority=-index,
                workers=workers,
                allow_other_workers=True,
            )

        def get_result(submitted: tuple[Future, int, T]) -> R:
            nonlocal n_done
            future, index, item = submitted
            waiting_since = time.monotonic()

            def copy() -> Future | None:
                mean = (waiting_since - start) * len(addresses) / max(n_done, 1)
                if not n_done or not _is_late(waiting_since, mean):
                    return None
                workers, _ = self._find_other_workers({future.key})
                return submit_to(workers, f"copy-{future.key}", index, item) if workers else None

            result: R = self._wait_for_result(future, copy=copy)
            n_done += 1
            return result

        try:
            yield from iter_results_in_order(
                submit, get_result, enumerate(items), n_ahead, lambda pair: pair[0].release()
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

        A thread has neighbouring spans, which often read the same chunks and have the same node
        above them; idle workers steal. It knows only its next spans, because Dask gives up tasks
        that were assigned to four workers that died, even if they had not begun. A slow task holds
        up nothing but the nodes above it. Copies of the last tasks run on idle workers if they take
        clearly longer than others (J. Dean, S. Ghemawat, MapReduce, 2004, section 3.6).
        """
        name = f"{_get_function_name(function)}-{uuid.uuid4().hex[:8]}"
        sent_function = self._submit(_return_function, function, key=f"{name}-function")
        addresses = self._list_thread_addresses()
        self._monitor.start_run(name)
        n_threads = max(len(addresses), 1)
        spans, merges = _plan_tasks(name, sent_function, merge, trees, addresses, max_items)
        roots = [task for task in merges if task.is_root]
        running: dict[Future, Sequence[T]] = {}
        stuck: set[Future] = set()
        n_spans, start, last_end = len(spans), time.monotonic(), time.monotonic()

        def poll() -> None:
            nonlocal last_end
            check_cancelled()
            for future in [*running]:
                if future.status in ("error", "cancelled"):
                    self._wait_for_result(future)  # raises
                elif future.status == "finished":
                    report(running.pop(future))
                    last_end = time.monotonic()

        def are_late() -> bool:
            n_done = n_spans - len(spans) - len(running)
            return n_done > 0 and _is_late(last_end, (last_end - start) * n_threads / n_done)

        def copy(root: _Task) -> Future | None:
            return self._copy_tasks(root, running) if are_late() else None

        try:
            while spans:
                if are_late():
                    workers, _ = self._find_other_workers({future.key for future in running})
                    if workers:
                        stuck.update(running)  # and what waits behind them; the others go on
                        for span in spans:
                            span.workers = workers
                n_busy = len(running.keys() - stuck)
                if n_busy <= 2 * n_threads:
                    n_free = min(4 * n_threads - n_busy, len(spans))
                    last_end = time.monotonic() if n_busy == 0 else last_end
                    running |= self._submit_tasks([spans.popleft() for _ in range(n_free)])
                    merges = self._submit_ready(merges)
                else:
                    time.sleep(_PAUSE_SECONDS)
                    self._monitor.check()
                poll()
            next_root = iter(roots)
            for tree in trees:
                if tree.items:
                    root = next(next_root)
                    result = self._wait_for_result(root.future, poll, partial(copy, root))
                    keys = root.list_span_keys()
                    for future in [future for future in running if future.key in keys]:
                        report(running.pop(future))
                        future.release()  # a copy was faster
                    yield result
                else:
                    yield tree.finish([*tree.nodes])
        finally:
            submitted = [*roots, *(child for task in merges for child in task.children)]
            for future in (sent_function, *running, *(task.future for task in submitted)):
                if future is not None:
                    future.release()

    def _submit_tasks(self, tasks: Sequence[_Task], priority: int = 0) -> dict[Future, Any]:
        """Submit tasks in one message; return their arguments."""
        workers = {task.key: task.workers for task in tasks if task.workers}
        places = {"workers": workers.__getitem__, "allow_other_workers": True} if workers else {}
        with dask.annotate(**places):
            futures = self._submit_all(
                _run_task,
                [task.function for task in tasks],
                [[c.future for c in task.children] or task.argument for task in tasks],
                key=[task.key for task in tasks],
                priority=priority,
            )
        for task, future in zip(tasks, futures, strict=True):
            task.future = future
            for child in task.children:
                child.future = None  # workers may forget what will be merged
        return {task.future: task.argument for task in tasks}

    def _submit_ready(self, merges: list[_Task]) -> list[_Task]:
        """Submit the merges of tasks that have been submitted; return the others."""
        while ready := [m for m in merges if all(c.future is not None for c in m.children)]:
            self._submit_tasks(ready, priority=1)  # so that results do not pile up
            merges = [m for m in merges if m.future is None]
        return merges

    def _copy_tasks(self, root: _Task, late: Collection[Future]) -> Future | None:
        """Submit late spans of a tree, and what merges them, to other workers once more."""
        workers, keys = self._find_other_workers({future.key for future in late})

        def copy(task: _Task) -> _Task:
            children = [copy(child) for child in task.children]
            if task.key not in keys and children == task.children:
                return task
            for child in children:
                # The task that waits for it keeps its result on the cluster.
                child.future = child.future or Future(child.key, self.client)
            copied = replace(task, children=children, key=f"copy-{task.key}", workers=workers)
            self._submit_tasks([copied])
            return copied

        copied_root = copy(root) if workers else root
        return None if copied_root is root else copied_root.future

    def _find_other_workers(self, keys: set[str]) -> tuple[list[str], set[str]]:
        """Return the workers that have none of these tasks, and all tasks of the others."""
        tasks = {a: set(map(str, own)) for a, own in self._monitor.ask("processing").items()}
        others = [address for address, own in tasks.items() if keys.isdisjoint(own)]
        return others, keys.union(*(own for a, own in tasks.items() if a not in others))

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
        large = {"distributed.admin.large-graph-warning-threshold": sys.maxsize}
        with dask.config.set(large), self._monitor.detect_loss():
            futures: list[Future] = self.client.map(function, *iterables, pure=False, **options)
        return futures

    def describe_workers(self) -> dict[str, dict[str, Any]]:
        """Describe the current workers, by address."""
        self._reconnect()
        workers: dict[str, dict[str, Any]] = self._monitor.ask("identity", n_workers=-1)["workers"]
        return workers

    def run_on_workers(self, function: Callable[[], R]) -> dict[str, R]:
        """Call a function on every worker; workers that do not answer have no result."""
        self._reconnect()
        try:
            results = self._monitor.call_on_workers(function)
        except ClusterLost:  # the next map raises
            return {}
        return {k: value for k, value in results.items() if not isinstance(value, Exception)}

    def _reconnect(self) -> None:
        """Connect again if the cluster was lost."""
        if self.client.status == "closed" and self.connect is not None:
            self.client = self.connect()
            self._monitor = ClusterMonitor(self.client, self.worker_timeout, self.task_timeout)

    def _list_thread_addresses(self) -> list[str]:
        """Return the address of each thread's worker, (n_threads,)."""
        counts = sorted(
            (address, worker["nthreads"]) for address, worker in self.describe_workers().items()
        )
        return [address for address, n_threads in counts for _ in range(n_threads)]

    def _wait_for_result(
        self,
        future: Future,
        on_poll: Callable[[], object] = check_cancelled,
        copy: Callable[[], Future | None] = lambda: None,
    ) -> Any:
        """Return the result of a task, or raise its error; watch the cluster meanwhile.

        `copy` may submit a second task with the same result; the first to end is taken.
        """
        seconds, first, second = _POLL_SECONDS, future, None
        try:
            while True:
                if second is not None and second.status == "finished":
                    future = second
                with self._monitor.detect_loss(future):
                    try:
                        is_race = second is not None and future.status == "pending"
                        return future.result(_PAUSE_SECONDS if is_race else seconds)
                    except TimeoutError:
                        if future.status == "error":  # meanwhile, or the task itself raised this
                            return future.result()
                        if future.status == "finished":  # a large result, or its worker is lost
                            seconds *= 2
                on_poll()
                self._monitor.check()
                if future.status == "pending":
                    second = second or copy()
        finally:
            for done in (first, second):
                if done is not None:
                    done.release()


def check_workers(monitor: ClusterMonitor, packages: Sequence[str]) -> None:
    """Refuse a cluster whose workers have other code or libraries than this process."""
    expected = describe_environment(packages)
    answers = monitor.call_on_workers(describe_environment, packages)
    if all(isinstance(versions, TimeoutError) for versions in answers.values()):
        raise make_cluster_lost(f"no worker answered for {monitor.worker_timeout:g} s")
    for worker, versions in answers.items():
        if isinstance(versions, TimeoutError):  # frozen; the monitor restarts it in the first pass
            continue
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


def _is_late(since: float, mean_seconds: float) -> bool:
    """Return whether a task that runs since then takes clearly longer than the mean."""
    return time.monotonic() - since > max(_MIN_LATE_SECONDS, _TIMES_MEAN * mean_seconds)


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


@dataclass(eq=False)
class _Task:
    """A task of a tree: a span of items, or a merge of the results of other tasks."""

    function: Any
    argument: Any = None
    children: list[_Task] = field(default_factory=list)
    key: str = ""
    is_root: bool = False
    workers: Sequence[str] = ()  # the address of the worker that should do it
    future: Future | None = None

    def list_span_keys(self) -> set[str]:
        """Return the keys of the spans that this task merges, or its own if it is one."""
        return set().union(*(c.list_span_keys() for c in self.children)) or {self.key}


def _plan_tasks(
    name: str,
    sent_function: Future,
    merge: Callable[[R, R], R],
    trees: Sequence[Tree[T, R, F]],
    addresses: Sequence[str],
    max_items: int,
) -> tuple[deque[_Task], list[_Task]]:
    """Return the spans, in the order in which threads should get them, and what merges them."""
    spans: deque[_Task] = deque()
    merges: list[_Task] = []
    n_threads = max(len(addresses), 1)
    height = choose_span_height(sum(len(tree.items) for tree in trees), n_threads, max_items)
    arity = min(max(2, max_items), _MAX_ARITY)
    for number, tree in enumerate(trees):
        own = [_Task(sent_function, span.value) for span in tree.list_spans(height)]
        merges += _plan_merges(f"{name}-{number}", merge, tree, own, height, arity)
        bounds = [-(-thread * len(own) // n_threads) for thread in range(n_threads + 1)]
        by_thread = [own[start:stop] for start, stop in pairwise(bounds)]
        for thread, part in enumerate(by_thread):
            arguments = look_ahead(tree, [span.argument for span in part])
            for k, (span, argument) in enumerate(zip(part, arguments, strict=True), bounds[thread]):
                span.key, span.workers = f"{name}-{len(spans) + k:06d}", addresses[thread:][:1]
                span.argument = argument
        turns = zip_longest(*by_thread)
        spans += [span for turn in turns for span in turn if span is not None]
    return spans, merges


def _plan_merges(
    name: str,
    merge: Callable[[R, R], R],
    tree: Tree[T, R, F],
    spans: Sequence[_Task],
    height: int,
    arity: int,
) -> list[_Task]:
    """Return the tasks that merge the spans of a tree, bottom up; the last one finishes it."""
    if not spans:
        return []
    tasks: list[_Task] = []
    tops, position = [], 0
    nodes = tree.list_spans(len(tree.items).bit_length())
    for node in nodes:
        level = spans[position : position + max(1, len(node.value) >> height)]
        position += len(level)
        while len(level) > 1:
            groups = [level[k : k + arity] for k in range(0, len(level), arity)]
            level = [_Task(partial(_merge_values, merge), children=[*own]) for own in groups]
            tasks += level
        tops.append(level[0])
    for k, task in enumerate(tasks):
        task.key = f"merge-{name}-{k}"
    finish = partial(_finish_tree, merge, tree._replace(items=()), [node.height for node in nodes])
    return [*tasks, _Task(finish, None, tops, f"finish-{name}", is_root=True)]


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
