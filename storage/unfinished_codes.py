"""Codes on their way to a path: they appear there once they are whole."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storage.locations import check_free, claimed, clear, replace_folder, write_text
from storage.schema import CODES_FORMAT


@dataclass(frozen=True)
class UnfinishedCodes:
    """A folder beside the path, kept when a transform is interrupted.

    Attributes
    ----------
    target
        Where the codes shall lie.
    fingerprint
        Digest of everything that decides them: the same transform, the same fingerprint.
    """

    target: Path
    fingerprint: str

    @property
    def folder(self) -> Path:
        """All that is unfinished."""
        return self.target.with_name(f".{self.target.name}.unfinished")

    @property
    def codes(self) -> Path:
        """The arrays."""
        return self.folder / "codes"

    @property
    def params(self) -> Path:
        """The artifact that workers read."""
        return self.folder / "params"

    @contextmanager
    def working(self, resume: bool) -> Iterator[None]:
        """Claim the folder; keep what the same transform left there, or start anew.

        An error before the first run of rows is done leaves nothing behind.

        Raises
        ------
        DataError
            If another process is writing there.
        """
        made = [folder for folder in self.folder.parents if not folder.exists()]
        try:
            with claimed(self.folder):
                self._begin(resume)
                try:
                    yield
                finally:
                    if not self.finished():
                        shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            for folder in made:
                with suppress(OSError):  # something lies there
                    folder.rmdir()

    @contextmanager
    def stopping(self) -> Iterator[Callable[[], bool]]:
        """Give a function that tells tasks, wherever they are, that this was interrupted.

        A thread cannot be stopped from outside, and would keep the command waiting.
        """
        mark = self.folder / f"stopped-{uuid.uuid4().hex}"
        try:
            yield partial(os.path.exists, str(mark.resolve()))
        except BaseException:
            mark.touch()
            raise

    def _begin(self, resume: bool) -> None:
        mark = self.folder / "fingerprint"
        if not (resume and mark.is_file() and mark.read_text() == self.fingerprint):
            clear(self.folder)
        for old in self.folder.glob("stopped-*"):
            old.unlink()
        if not mark.exists():
            write_text(mark, self.fingerprint)
        # The last line may be a part of one.
        write_text(self._journal, "".join(_line(checksums) for checksums in self.finished()))

    @property
    def _journal(self) -> Path:
        return self.folder / "finished"

    def finished(self) -> list[list[int]]:
        """Give the checksums of the runs that are done: the first so many."""
        try:
            lines = self._journal.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def note(self, checksums: Sequence[int]) -> None:
        """Note that the next run is done."""
        with self._journal.open("a") as file:
            file.write(_line(checksums))

    def publish(self, overwrite: bool) -> None:
        """Put the codes, sealed by now, in their place."""
        check_free(self.target, CODES_FORMAT, overwrite)
        replace_folder(self.codes, self.target)
        shutil.rmtree(self.folder, ignore_errors=True)


def _line(checksums: Sequence[int]) -> str:
    return json.dumps(list(checksums)) + "\n"
