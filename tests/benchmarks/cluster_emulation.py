"""Cost of a pass for client and scheduler, with up to 32 worker processes whose tasks sleep.

python -m tests.benchmarks cluster_emulation [WORKERS PIECES]

A scheduler, the workers and this client are processes of this machine, connected by TCP. Sums are
arrays of random bytes. Two ways are compared, alternately: results reach the client, which merges
them, and workers merge them along the tree of `Executor.reduce`. Costs are CPU times, so they hold
on a busy machine, too; pieces per second are the most that client and scheduler could deal with,
if workers were never the limit. The last lines split the cost of a task that returns its result
into a part per task and a part per megabyte.

Defaults: 16 workers, 512 pieces.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray

from pipeline.executors.base import Node, Tree, choose_span_height
from pipeline.executors.dask import DaskExecutor
from pipeline.passes.task_sizes import WorkEstimate, choose_max_pieces
from tests.benchmarks._measure import Table
from tests.support.cluster_processes import start_scheduler, start_worker

MEGABYTES = (0.03, 1, 8)
SLEEP = 0.02  # seconds per piece; the machine itself has too few cores for more than sleep
REPEATS = 2
Sum = NDArray[np.int64]


@lru_cache(maxsize=1)
def draw_sum(n_bytes: int) -> Sum:
    """Draw a sum that cannot be compressed."""
    return np.random.default_rng(0).integers(0, 2**40, n_bytes // 8)


def sum_piece(n_bytes: int, piece: int) -> Sum:
    """Sleep instead of summing a piece."""
    time.sleep(SLEEP)
    return draw_sum(n_bytes)


def sum_span(n_bytes: int, pieces: Sequence[int]) -> Sum:
    """Sleep instead of summing neighbouring pieces."""
    time.sleep(SLEEP * len(pieces))
    return len(pieces) * draw_sum(n_bytes)


def merge_on_client(executor: DaskExecutor, n_bytes: int, n_pieces: int) -> Sum:
    """Return every result to the client, and add them there."""
    return reduce(add, executor.map(partial(sum_piece, n_bytes), range(n_pieces)))


def merge_on_workers(executor: DaskExecutor, n_bytes: int, n_pieces: int) -> Sum:
    """Return only the sum of all pieces to the client."""
    tree = Tree(range(n_pieces), (), sum_nodes)
    max_pieces = choose_max_pieces(WorkEstimate(0, n_bytes))
    return next(executor.reduce(partial(sum_span, n_bytes), add, [tree], len, max_pieces))


def sum_nodes(nodes: Sequence[Node[Sum]]) -> Sum:
    """Add the sums of all nodes."""
    return np.sum([node.value for node in nodes], axis=0)  # type: ignore[no-any-return]


def measure_cpu(client: Client) -> NDArray[np.float64]:
    """Return the CPU seconds of the client and of the scheduler so far."""
    return np.array([time.process_time(), client.run_on_scheduler(time.process_time)])


def main() -> None:
    """Print costs per piece, then those per task and per megabyte."""
    n_workers, n_pieces = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (16, 512)
    ways: dict[str, Callable[[DaskExecutor, int, int], Sum]] = {
        "client": merge_on_client,
        "workers": merge_on_workers,
    }
    costs: dict[str, list[Any]] = {way: [] for way in ways}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(start_scheduler(folder))
        for _ in range(n_workers):
            stack.enter_context(start_worker(address))
        client = stack.enter_context(Client(address, timeout=600, set_as_default=False))
        client.wait_for_workers(n_workers, timeout=600)
        executor = DaskExecutor(client)
        table = Table(
            "MB:5g", "merged on:<9s", "tasks:5d", "client ms:9.2f", "scheduler ms:12.2f",
            "pieces/s:8.0f",
        )  # fmt: skip
        for megabytes in MEGABYTES:
            n_bytes = int(1e6 * megabytes)
            spent = {way: np.zeros(2) for way in ways}
            for repeat in range(1 + REPEATS):  # the first one only imports
                for way, run in ways.items():
                    before = measure_cpu(client)
                    assert run(executor, n_bytes, n_pieces)[0] == n_pieces * draw_sum(n_bytes)[0]
                    if repeat:
                        spent[way] += (measure_cpu(client) - before) / REPEATS / n_pieces
            for way, seconds in spent.items():
                costs[way].append(1e3 * seconds)
                height = choose_span_height(
                    n_pieces, n_workers, choose_max_pieces(WorkEstimate(0, n_bytes))
                )
                n_tasks = n_pieces if way == "client" else n_pieces >> height
                table.add(megabytes, way, n_tasks, *costs[way][-1], 1 / seconds.max())
    per_task, per_megabyte = np.polynomial.polynomial.polyfit(MEGABYTES, costs["client"], 1)
    for name, task, megabyte in zip(("client", "scheduler"), per_task, per_megabyte, strict=True):
        print(f"{name}: {task:.2f} ms per task, {megabyte:.2f} ms per megabyte of results")


if __name__ == "__main__":
    # Workers must find the functions in a module that they can import.
    from tests.benchmarks import cluster_emulation

    cluster_emulation.main()
