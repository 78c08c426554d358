"""Codes on their way to a path: they appear there once they are whole."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from storage.format.schema import CODES_FORMAT
from storage.stores.locations import (
    AnyPath,
    check_target_folder,
    clear_folder,
    delete_tree,
    list_children,
    lock_folder,
    replace_folder,
    write_text,
)

_RANGES_PER_PAGE = 64


@dataclass(frozen=True)
class ResumableResults:
    """A folder of arrays and of notes, which of their runs of rows are done.

    Attributes
    ----------
    folder
        The folder.
    """

    folder: AnyPath

    @property
    def codes_folder(self) -> AnyPath:
        """The arrays."""
        return self.folder / "codes"

    def read_finished(self) -> list[list[int]]:
        """Give the checksums of the runs that are done: the first so many.

        Those on a page that is damaged, and after it, count as not done.
        """
        done: list[list[int]] = []
        for page in list_children(self.folder / "finished"):
            if page.suffix == ".partial":  # what a killed writer left
                continue
            noted = _read_page(page)
            if not noted or page.name != _format_page_name(len(done)):
                break
            done += noted
        return done

    def record_finished(self, finished: Sequence[Sequence[int]]) -> None:
        """Note the last of the runs that are done, given the checksums of all of them.

        They are noted on pages, of which the last one is written again.
        """
        first = (len(finished) - 1) // _RANGES_PER_PAGE * _RANGES_PER_PAGE
        page = self.folder / "finished" / _format_page_name(first)
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, json.dumps([list(checksums) for checksums in finished[first:]]))


def _format_page_name(first: int) -> str:
    """Name the page that begins with a run."""
    return f"{first:09d}"


def _read_page(page: AnyPath) -> list[list[int]]:
    """Read a page; nothing where it is damaged."""
    try:
        noted = json.loads(page.read_text(encoding="utf-8"))
        return [[operator.index(checksum) for checksum in checksums] for checksums in noted]
    except (ValueError, TypeError):
        return []


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
