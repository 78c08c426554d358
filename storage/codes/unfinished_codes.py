"""Resumable results with one entry per row: a record of finished ranges, and unpublished codes."""

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
    """A folder with arrays and a record of the ranges of rows that are finished.

    Tasks write ranges in order. The arrays become codes once their manifest is written.

    Attributes
    ----------
    folder
        The folder.
    """

    folder: AnyPath

    @property
    def codes_folder(self) -> AnyPath:
        """Folder of the arrays."""
        return self.folder / "codes"

    def read_finished(self) -> list[list[int]]:
        """Return the checksums of the finished ranges, from the first range on.

        Ranges recorded on a damaged page, or on a later page, count as unfinished.
        """
        done: list[list[int]] = []
        for page in list_children(self.folder / "finished"):
            if page.suffix == ".partial":  # left by a killed writer
                continue
            checksums_on_page = _read_page(page)
            if not checksums_on_page or page.name != _format_page_name(len(done)):
                break
            done += checksums_on_page
        return done

    def record_finished(self, finished: Sequence[Sequence[int]]) -> None:
        """Record finished ranges, given the checksums of all of them.

        The record is split into pages, so that only the last page is rewritten.
        """
        first = (len(finished) - 1) // _RANGES_PER_PAGE * _RANGES_PER_PAGE
        page = self.folder / "finished" / _format_page_name(first)
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, json.dumps([list(checksums) for checksums in finished[first:]]))


def _format_page_name(first: int) -> str:
    """Return the name of the page that starts at a range."""
    return f"{first:09d}"


def _read_page(page: AnyPath) -> list[list[int]]:
    """Read a page; a damaged one is empty."""
    try:
        checksums_on_page = json.loads(page.read_text(encoding="utf-8"))
        return [
            [operator.index(checksum) for checksum in checksums] for checksums in checksums_on_page
        ]
    except (ValueError, TypeError):
        return []


@dataclass(frozen=True)
class UnfinishedCodes:
    """Codes in progress, in a hidden folder next to their final path.

    The folder survives an interruption.

    Attributes
    ----------
    target
        Final path of the codes.
    fingerprint
        Digest of everything that determines the codes; equal transforms have equal fingerprints.
    """

    target: AnyPath
    fingerprint: str

    @property
    def folder(self) -> AnyPath:
        """The hidden folder."""
        return self.target.with_name(f".{self.target.name}.unfinished")

    @property
    def results(self) -> ResumableResults:
        """The arrays and the record of their finished ranges."""
        return ResumableResults(self.folder)

    @contextmanager
    def claim_work(self, resume: bool) -> Iterator[None]:
        """Lock the folder; with `resume`, keep what the same transform left there.

        An error before the first range is finished leaves nothing behind.

        Raises
        ------
        DataError
            If another process is writing there.
        """
        new_folders = [folder for folder in self.folder.parents if not folder.exists()]
        try:
            with lock_folder(self.folder):
                self._prepare_folder(resume)
                try:
                    yield
                finally:
                    if not self.results.read_finished():
                        delete_tree(self.folder)
        finally:
            for folder in new_folders:
                with suppress(OSError):  # not empty
                    folder.rmdir()

    def _prepare_folder(self, resume: bool) -> None:
        mark = self.folder / "fingerprint"
        text = mark.read_text(encoding="utf-8", errors="replace") if mark.is_file() else ""
        if not resume or text != self.fingerprint:
            clear_folder(self.folder)
        if not mark.exists():
            write_text(mark, self.fingerprint)

    def publish(self, overwrite: bool) -> None:
        """Move the sealed codes to their final path."""
        check_target_folder(self.target, CODES_FORMAT, overwrite)
        replace_folder(self.results.codes_folder, self.target)
        self.discard()

    def discard(self) -> None:
        """Delete the hidden folder."""
        delete_tree(self.folder)
