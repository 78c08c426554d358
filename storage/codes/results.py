"""Results as long as the data, in the making: tasks write their runs of rows, and each is noted.

The arrays are codes (`storage.codes`): Zarr, a checksum for each run of each array, and a manifest
in the end that lists what must exist.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from storage.stores.locations import Place, children, write_text

_PAGE = 64


@dataclass(frozen=True)
class WrittenRuns:
    """A folder of arrays and of notes, which of their runs of rows are done.

    Attributes
    ----------
    folder
        The folder.
    """

    folder: Place

    @property
    def codes(self) -> Place:
        """The arrays."""
        return self.folder / "codes"

    def finished(self) -> list[list[int]]:
        """Give the checksums of the runs that are done: the first so many.

        Those on a page that is damaged, and after it, count as not done.
        """
        done: list[list[int]] = []
        for page in children(self.folder / "finished"):
            if page.suffix == ".partial":  # what a killed writer left
                continue
            noted = _noted(page)
            if not noted or page.name != _page(len(done)):
                break
            done += noted
        return done

    def note(self, finished: Sequence[Sequence[int]]) -> None:
        """Note the last of the runs that are done, given the checksums of all of them.

        They are noted on pages, of which the last one is written again.
        """
        first = (len(finished) - 1) // _PAGE * _PAGE
        page = self.folder / "finished" / _page(first)
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, json.dumps([list(checksums) for checksums in finished[first:]]))


def _page(first: int) -> str:
    """Name the page that begins with a run."""
    return f"{first:09d}"


def _noted(page: Place) -> list[list[int]]:
    """Read a page; nothing where it is damaged."""
    try:
        noted = json.loads(page.read_text(encoding="utf-8"))
        return [[operator.index(checksum) for checksum in checksums] for checksums in noted]
    except (ValueError, TypeError):
        return []
