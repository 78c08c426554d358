"""Strips of feature pairs in storage: rows of square arrays, 0 where others have the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.codes.codes import Codes
from storage.dataset.chunks import get_or_read_chunk


@dataclass(frozen=True)
class StripReader:
    """Reads strips without the zeros before them; every process keeps so many bytes of them."""

    codes: Codes
    memory: int

    def __call__(self, key: int, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Give a strip of all arrays or those named, (n_strip, n_features − first)."""
        return {
            name: self._load_strip(name, key) for name in (self.codes if names is None else names)
        }

    def _load_strip(self, name: str, key: int) -> NDArray[Any]:
        what = (str(self.codes.path), self.codes.manifest["manifest_digest"], name)
        return get_or_read_chunk(what, key, self.memory, partial(self._read_strip, name, key))

    def _read_strip(self, name: str, key: int) -> NDArray[Any]:
        first = key * int(self.codes.manifest["rows_per_chunk"])
        return np.ascontiguousarray(self.codes.read_chunk(key, [name])[name][:, first:])
