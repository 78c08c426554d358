"""Results as long as the data, in the making: tasks write their runs of rows, and each is noted.

The arrays are codes (`storage.codes`): Zarr, a checksum for each run of each array, and a manifest
in the end that lists what must exist.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from storage.locations import Place, children, write_text

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
        """Give the checksums of the runs that are done: the first so many."""
        return [
            checksums
            for page in children(self.folder / "finished")
            if page.suffix != ".partial"  # what a killed writer left
            for checksums in json.loads(page.read_text())
        ]

    def note(self, finished: Sequence[Sequence[int]]) -> None:
        """Note the last of the runs that are done, given the checksums of all of them.

        They are noted on pages, of which the last one is written again.
        """
        first = (len(finished) - 1) // _PAGE * _PAGE
        page = self.folder / "finished" / f"{first:09d}"
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, json.dumps([list(checksums) for checksums in finished[first:]]))
