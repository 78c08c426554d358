"""Faults set off at an exact task of a run: by its scheduler, or within its own process.

`python -m tests.support.faults COMMAND BLOCK LOG ...` runs a command that interrupts itself at a
block.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
from distributed import Client, SchedulerPlugin


class SchedulerTrap(SchedulerPlugin):
    """Acts once a task of a sweep over the chunks is done; counts the tasks that each worker did.

    `act` runs in the scheduler's process before the next task is given out.
    """

    name = "trap"

    def __init__(self, function: str, sweep: int, task: int, act: Callable[[], object]) -> None:
        self.function, self.sweep, self.task, self.act = function, sweep, task, act
        self.sweeps: list[str] = []
        self.done: Counter[str] = Counter()
        self.sprung = False

    def transition(self, key, start, finish, *args, worker=None, **kwargs) -> None:
        name, _, index = str(key).rpartition("-")
        if finish != "memory" or not name.startswith(self.function):
            return
        self.done[worker] += 1
        if name not in self.sweeps:
            self.sweeps.append(name)
        if not self.sprung and (len(self.sweeps), int(index)) >= (self.sweep, self.task):
            self.sprung = True
            self.act()


def install_trap(client: Client, trap: SchedulerTrap) -> None:
    """Put a trap in the place of the one before; the scheduler does not know this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    if trap.name in client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins)):
        client.unregister_scheduler_plugin(trap.name)
    client.register_plugin(trap)


def fill_disk(folder: Path) -> None:
    """Leave no room on the disk of a folder."""
    with (folder / "filler").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


@contextmanager
def limit_file_size(n_bytes: int) -> Iterator[None]:
    """Make the system refuse longer files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def flip_middle_bit(path: Path) -> None:
    """Change a bit; doing so again mends it."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def interrupt_at(block: int, log: Path) -> None:
    """Let this process send itself an interrupt, and note and slow down each block after that."""
    n_blocks = 0

    def watched(check: Callable[[], None]) -> Callable[[], None]:
        def check_and_count() -> None:
            nonlocal n_blocks
            check()
            n_blocks += 1
            if n_blocks == block:
                os.kill(os.getpid(), signal.SIGINT)
            if n_blocks >= block:
                with log.open("a") as file:
                    file.write(".")
                time.sleep(0.5)

        return check_and_count

    for module in map(
        importlib.import_module, ("pipeline.passes.map_reduce", "pipeline.inference.transform")
    ):
        module.check_cancelled = watched(module.check_cancelled)


if __name__ == "__main__":
    from flows.cli.app import run_app

    command, block, log, *arguments = sys.argv[1:]
    interrupt_at(int(block), Path(log))
    run_app(importlib.import_module(f"flows.{command}").app, arguments)
