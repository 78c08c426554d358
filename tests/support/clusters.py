"""Things that worker processes import in the executor tests."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.executors.cancellation import Cancelled, check_cancelled
from storage.dataset.chunks import Chunk
from storage.dataset.dataset import ChunkReader


@dataclass(frozen=True)
class SlowReader:
    """Reads a chunk, slowly, so that a pass is under way for a while."""

    reader: ChunkReader
    seconds: float

    def __call__(self, key: int) -> Chunk:
        time.sleep(self.seconds)
        return self.reader(key)


@dataclass(frozen=True)
class DeadlyReader:
    """Kills its own process the first time that it reads a certain chunk."""

    reader: ChunkReader
    deadly_key: int
    mark: Path

    def __call__(self, key: int) -> Chunk:
        if key == self.deadly_key and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.reader(key)


@dataclass(frozen=True)
class LoggedReader(ChunkReader):
    """Writes the key of every chunk that it reads on a line of a file."""

    log: str = ""

    def _read(self, key: int) -> Chunk:
        with Path(self.log).open("a") as file:
            file.write(f"{key}\n")
        return super()._read(key)


@dataclass(frozen=True)
class EndlessTask:
    """Returns numbers below 1 at once; with others it goes on until the task is cancelled."""

    log: str

    def __call__(self, number: int) -> int:
        self.mark_path("gave" if number < 1 else "began", number).touch()
        while number > 0:
            try:
                check_cancelled()
            except Cancelled:
                self.mark_path("ended", number).touch()
                raise
            time.sleep(0.01)
        return number

    def mark_path(self, what: str, number: int | str) -> Path:
        return Path(f"{self.log}-{what}-{number}")

    def list_numbers(self, what: str) -> set[str]:
        """Return the numbers that began or ended."""
        pattern = self.mark_path(what, "*")
        return {found.name.rpartition("-")[2] for found in pattern.parent.glob(pattern.name)}
