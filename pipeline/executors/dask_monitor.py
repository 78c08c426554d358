"""Notice workers that froze, made no progress or paused, and a scheduler that does not answer.

A frozen process keeps its connections open, so Dask waits for it: a task that runs there, a result
that it holds and a question to the scheduler have no end. Dask restarts workers without a heartbeat
only after 5 to 10 minutes, and never those whose tasks hang. The monitor lets it do so earlier, as
if the worker had been killed: others then compute its tasks and the results that only it held.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker

from pipeline.errors import ClusterLost

R = TypeVar("R")
_CLOSE_SECONDS, _POLL_SECONDS, _MAX_SILENCE, _MIN_SILENCE = 2.0, 1.0, 300.0, 5.0
_MIN_TASK_SECONDS, _TIMES_SLOWEST, _PATIENCE = 300.0, 10, 10
log = logging.getLogger("latentbits")


@dataclass
class ClusterMonitor:
    """Watches a cluster while an executor waits for it.

    Attributes
    ----------
    client
        The client; it is closed when the cluster is lost.
    worker_timeout
        Seconds to wait for a worker, and for an answer of the scheduler or of a worker. After 5
        minutes, a process that is there but silent counts as frozen in any case.
    task_timeout
        Seconds without a finished task after which the tasks of a worker are given to others; None
        takes ten times the slowest task of the run, and at least 5 minutes. Tasks that were taken
        from a worker have ten times as long on the next.
    """

    client: Client
    worker_timeout: float = 60.0
    task_timeout: float | None = None
    _run_name: str = ""
    # Seconds in which the cluster was watched; a command that was suspended did not watch it.
    _clock: float = 0.0
    _checked_at: float = 0.0
    _usable_at: float = 0.0
    _heartbeats: dict[str, tuple[float, float]] = field(default_factory=dict)
    _progress: dict[str, tuple[set[str], float]] = field(default_factory=dict)
    _slowest: float | None = None
    _n_taken: Counter[str] = field(default_factory=Counter)
    _reported: set[tuple[str, str]] = field(default_factory=set)

    @property
    def _max_silence(self) -> float:
        """Seconds without an answer after which a process counts as frozen."""
        return min(max(self.worker_timeout, _MIN_SILENCE), _MAX_SILENCE)

    def start_run(self, name: str) -> None:
        """Watch the tasks whose keys contain this name; those of other runs took other times."""
        self._run_name, self._slowest = name, None
        self._progress.clear()

    def check(self) -> None:
        """Restart workers that hold up tasks; raise `ClusterLost` if no worker is left.

        Call this at least once per second while waiting.
        """
        now, silence = time.monotonic(), self._max_silence
        # The answer about a thousand workers has 0.9 MB and takes the scheduler 6 ms of CPU time.
        interval = max(_POLL_SECONDS, len(self._heartbeats) / 200)
        if now - self._checked_at < min(interval, self.worker_timeout / 4):
            return
        self._clock += min(now - self._checked_at, silence / 2)
        self._checked_at = now
        workers = self.ask("identity", n_workers=-1)["workers"]
        silence = max(silence, len(workers) / 20)  # a thousand workers send one every 6 s
        for address, worker in workers.items():
            if worker["last_seen"] != self._heartbeats.get(address, (None,))[0]:
                self._heartbeats[address] = worker["last_seen"], self._clock
        running = {a for a, worker in workers.items() if worker["status"] == "running"}
        self._usable_at = max([self._usable_at, *(self._heartbeats[a][1] for a in running)])
        if self._clock - self._usable_at > (silence if workers else self.worker_timeout):
            self._raise_no_worker(workers)
        for address in workers.keys() - running:
            if workers[address]["status"] == "paused":
                text = f"worker {_describe_memory(address, workers)} has paused. {_MORE_MEMORY}"
                self._warn_once(address, text)
        for address, (_, heard_at) in self._heartbeats.items():
            if address in workers and self._clock - heard_at > silence:
                self._restart_worker(address, f"has not answered for {silence:.0f} s")
        self._restart_stuck_workers(running)

    def _restart_stuck_workers(self, running: set[str]) -> None:
        """Restart workers that finish none of their tasks, if all of these are of this run."""
        for address, keys in self.ask("processing").items():
            tasks = {key for key in map(str, keys) if self._run_name in key}
            before, since = self._progress.get(address, (set(), self._clock))
            if before - tasks:
                self._slowest = max(self._slowest or 0.0, self._clock - since)
            if before - tasks or not before or len(tasks) < len(keys):
                since = self._clock
            self._progress[address] = tasks, since
            limit = self.worker_timeout if address not in running else self.task_timeout
            if limit is None and self._slowest is not None:
                limit = max(_MIN_TASK_SECONDS, _TIMES_SLOWEST * self._slowest)
            if limit is None:
                continue
            # Tasks that were taken before may be only long; after four workers, Dask gives them up.
            limit *= _PATIENCE ** max((self._n_taken[key] for key in tasks), default=0)
            if self._clock - since > limit and running - {address}:
                problem = f"has finished no task for {limit:.0f} s"
                if self._restart_worker(address, problem):
                    self._n_taken.update(tasks)

    def _restart_worker(self, address: str, problem: str) -> bool:
        """Let Dask take a worker's tasks and results from it; its nanny, if any, restarts it.

        Return whether this was not done before.
        """
        text = f"worker {address} {problem}. Others compute its tasks."
        if is_first := self._warn_once(address, text, "restart"):
            self.client.loop.add_callback(
                self.client.scheduler.restart_workers,
                workers=[address],
                timeout=min(self.worker_timeout, 2 * _MIN_SILENCE),
                wait_for_workers=False,
                on_error="return",
                stimulus_id="latentbits-restart",
            )
        return is_first

    def _warn_once(self, address: str, text: str, kind: str = "pause") -> bool:
        is_first = (address, kind) not in self._reported
        self._reported.add((address, kind))
        if is_first:
            log.warning("warning: %s", text)
        return is_first

    def _raise_no_worker(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        paused = [a for a, worker in workers.items() if worker["status"] == "paused"]
        reason = f"no worker for {self.worker_timeout:g} s"
        if paused:
            names = ", ".join(_describe_memory(address, workers) for address in paused[:3])
            reason = f"all paused as their memory is full: {names}"
        self.close()
        raise make_cluster_lost(reason, _MORE_MEMORY if paused else _START_AGAIN)

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the scheduler; raise `ClusterLost` if it does not answer."""
        seconds = self._max_silence
        with self.detect_loss():
            try:
                call = getattr(self.client.scheduler, operation)
                return self.client.sync(call, **arguments, callback_timeout=seconds)
            except TimeoutError as error:
                reason = f"the scheduler has not answered for {seconds:g} s"
                raise TimeoutError(reason) from error

    def call_on_workers(
        self, function: Callable[..., R], *arguments: Any
    ) -> dict[str, R | Exception]:
        """Call a function on every worker, in the thread of its connections.

        An error is the result of its worker, a `TimeoutError` that of a worker without an answer.
        """
        seconds = self._max_silence
        addresses = self.ask("identity", n_workers=-1)["workers"]

        async def call(address: str) -> R | Exception:
            answers = self.client._run(function, *arguments, workers=[address], on_error="return")
            try:
                value: R | Exception = (await asyncio.wait_for(answers, seconds))[address]
            except (OSError, KeyError) as error:
                return error
            return value

        async def call_all() -> list[R | Exception]:
            return await asyncio.gather(*map(call, addresses))

        with self.detect_loss():
            return dict(zip(addresses, self.client.sync(call_all), strict=True))

    @contextmanager
    def detect_loss(self, future: Future | None = None) -> Iterator[None]:
        """Translate every error of a lost cluster to `ClusterLost`, and close the client.

        What a client raises depends on what it did when its connection ended. An open client would
        wait until the cluster returns. An error of the future's own task is not translated.
        """
        try:
            yield
        except KilledWorker as error:
            raise make_cluster_lost(str(error)) from error
        except Exception as error:
            is_own = future is not None and future.status == "error"
            is_lost = isinstance(error, CancelledError | OSError) or self.client.status != "running"
            if is_own or not is_lost:
                raise
            self.close()
            reason = str(error) if isinstance(error, TimeoutError) else "the scheduler has gone"
            raise make_cluster_lost(reason) from error

    def close(self) -> None:
        """Close the client within seconds, even if the scheduler is frozen."""
        close_client(self.client)


_START_AGAIN = "Start the cluster again."
_MORE_MEMORY = "Start workers with more memory or fewer threads, or ingest smaller chunks."


def close_client(client: Client) -> None:
    """Close a client within seconds, even if its scheduler is frozen."""
    with suppress(Exception):
        client.close(_CLOSE_SECONDS)


def make_cluster_lost(reason: str, remedy: str = _START_AGAIN) -> ClusterLost:
    """Return the error of a lost cluster; `reason` may be text of Dask, of any length."""
    text = " ".join(reason.split())[:200]
    return ClusterLost(f"The cluster or its workers were lost ({text}). {remedy}")


def _describe_memory(address: str, workers: Mapping[str, Mapping[str, Any]]) -> str:
    used, limit = workers[address]["metrics"].get("memory", 0), workers[address]["memory_limit"]
    return f"{address} ({used / 1e9:.2f} of {limit / 1e9:.2f} GB used)"
