"""Results as long as the data, in the making: tasks write their runs of rows, and each is noted.

The arrays are codes (`storage.codes`): Zarr, a checksum for each run of each array, and a manifest
in the end that lists what must exist.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from storage.stores.locations import AnyPath, list_children, write_text

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
