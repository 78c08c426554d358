"""Entries of a matrix in arbitrary order, in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.sources.value_codes import ValueCodes

_ENTRY_DTYPES = (np.int32, np.int32, np.uint8)


class EntryFile:
    """Rows, columns and codes, in runs; the file goes with the object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="latentbits-")
        self._counts: list[int] = []
        self._columns: NDArray[np.int64] | None = None

    @property
    def _path(self) -> Path:
        return Path(self._folder.name) / "entries"

    def add(self, rows: NDArray[Any], columns: NDArray[Any], codes: ValueCodes) -> None:
        """Add a run of entries, (n_entries,) each.

        Raises
        ------
        DataError
            If the disk is full.
        """
        try:
            with self._path.open("ab") as file:
                for values, kind in zip((rows, columns, codes), _ENTRY_DTYPES, strict=True):
                    file.write(np.ascontiguousarray(values, kind).data)
        except OSError as error:
            n_entries = sum(self._counts) + len(rows)
            raise DataError(
                f"{tempfile.gettempdir()}: Expected room for {9 * n_entries / 1e9:.1f} GB of "
                f"entries or more, got: {error.strerror}. Set TMPDIR to a larger disk."
            ) from error
        self._counts.append(len(rows))

    def renumber_columns(self, columns: NDArray[np.int64]) -> None:
        """Give each column the number that stands at its old one."""
        self._columns = columns

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any], ValueCodes]]:
        """Give the runs in order."""
        if not self._counts:
            return
        with self._path.open("rb") as file:
            for count in self._counts:
                rows, columns = (np.fromfile(file, np.int32, count) for _ in range(2))
                codes = np.fromfile(file, np.uint8, count)
                yield rows, columns if self._columns is None else self._columns[columns], codes
