"""Codes on their way to a path: they appear there once they are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from storage.codes.results import ResumableResults
from storage.format.schema import CODES_FORMAT
from storage.stores.locations import (
    AnyPath,
    check_target_folder,
    clear_folder,
    delete_tree,
    lock_folder,
    replace_folder,
    write_text,
)


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

    target: AnyPath
    fingerprint: str

    @property
    def folder(self) -> AnyPath:
        """All that is unfinished."""
        return self.target.with_name(f".{self.target.name}.unfinished")

    @property
    def results(self) -> ResumableResults:
        """The arrays, and which of their runs are done."""
        return ResumableResults(self.folder)

    @contextmanager
    def claim_work(self, resume: bool) -> Iterator[None]:
        """Claim the folder; keep what the same transform left there, or start anew.

        An error before the first run of rows is done leaves nothing behind.

        Raises
        ------
        DataError
            If another process is writing there.
        """
        made = [folder for folder in self.folder.parents if not folder.exists()]
        try:
            with lock_folder(self.folder):
                self._prepare_folder(resume)
                try:
                    yield
                finally:
                    if not self.results.read_finished():
                        delete_tree(self.folder)
        finally:
            for folder in made:
                with suppress(OSError):  # something lies there
                    folder.rmdir()

    def _prepare_folder(self, resume: bool) -> None:
        mark = self.folder / "fingerprint"
        text = mark.read_text(encoding="utf-8", errors="replace") if mark.is_file() else ""
        if not resume or text != self.fingerprint:
            clear_folder(self.folder)
        if not mark.exists():
            write_text(mark, self.fingerprint)

    def publish(self, overwrite: bool) -> None:
        """Put the codes, sealed by now, in their place."""
        check_target_folder(self.target, CODES_FORMAT, overwrite)
        replace_folder(self.results.codes_folder, self.target)
        self.discard()

    def discard(self) -> None:
        """Delete all that is unfinished, once nothing needs it any more."""
        delete_tree(self.folder)
