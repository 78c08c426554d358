"""Random draws keyed by (seed, pass, stream, original row), so that draws are equal on any worker.

`pipeline.numerics.row_random` draws the same numbers in compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
import scipy
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class RowRandom:
    """The random draws of one pass.

    Attributes
    ----------
    seed
        Seed of the fit.
    pass_index
        Number of the pass; every pass has its own draws.
    stream_key
        Identifies the stream; 0 is the unnamed one.
    """

    seed: int
    pass_index: int = 0
    stream_key: int = 0

    def stream(self, name: str) -> RowRandom:
        """Return the stream of this name, whose numbers are independent of all other streams."""
        before = self.stream_key.to_bytes(8, "little")
        digest = blake2b(name.encode(), digest_size=8, key=before).digest()
        return replace(self, stream_key=int.from_bytes(digest, "little"))

    @cached_property
    def key(self) -> np.uint64:
        """The hash of seed, pass and stream, which is passed to kernels instead of this object."""
        with np.errstate(over="ignore"):
            key = _mix_bits(np.uint64(self.seed) * _GOLDEN + np.uint64(self.pass_index))
            if self.stream_key:
                key = _mix_bits(key + np.uint64(self.stream_key))
        return np.uint64(key)

    def uniform(self, rows: NDArray[np.int64], n_draws: int) -> NDArray[np.float64]:
        """Draw from the open interval (0, 1), (n_rows, n_draws)."""
        with np.errstate(over="ignore"):
            state = _mix_bits(rows.astype(np.uint64) * _GOLDEN + self.key)[:, None]
            bits = _mix_bits(state + np.arange(1, n_draws + 1, dtype=np.uint64) * _GOLDEN)
        return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def hash_rows(self, contents: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Draw 64 bits per row, (n_rows,), keyed by the row's contents, (n_rows, n_words)."""
        with np.errstate(over="ignore"):
            state = np.full(len(contents), self.key)
            for word in contents.T:
                state = _mix_bits((state ^ word) * _GOLDEN + np.uint64(1))
        return state

    def normal(self, rows: NDArray[np.int64], n_draws: int) -> NDArray[np.float64]:
        """Draw standard normals, (n_rows, n_draws)."""
        normals: NDArray[np.float64] = scipy.special.ndtri(self.uniform(rows, n_draws))
        return normals


def _mix_bits(words: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """Mix 64 bits so that each input bit flips half of the output bits on average (SplitMix64)."""
    z = np.asarray(words, np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
