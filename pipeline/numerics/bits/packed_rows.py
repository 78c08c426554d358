"""Rows with the bits of each side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
RowPlaces = NDArray[np.int64]

_kernel = njit(nogil=True, cache=True)


class BitRows(NamedTuple):
    """Rows, 64 features a word, little bit order.

    Attributes
    ----------
    n_features
        Number of features.
    words
        Values, (ceil(n_features / 64), n_rows); 0 where not observed.
    observed
        Mask of the same shape; None where all is observed.
    """

    n_features: int
    words: Words
    observed: Words | None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.words.T)

    @property
    def mask(self) -> Words:
        """The mask, written out."""
        if self.observed is not None:
            return self.observed
        return np.repeat(full_mask_words(self.n_features)[:, None], self.n_rows, axis=1)

    @property
    def has_values(self) -> NDArray[np.bool_]:
        """Tell of which rows something was observed, (n_rows,)."""
        if self.observed is None:
            return np.full(self.n_rows, True)
        return np.asarray(self.observed.any(axis=0))

    def take(self, some: slice | NDArray[np.int64]) -> BitRows:
        """Take some of the rows."""
        observed = None if self.observed is None else self.observed[:, some]
        return BitRows(self.n_features, self.words[:, some], observed)

    def pack_bytes(self) -> tuple[Bytes, Bytes | None]:
        """Give values and mask as they are stored, (n_rows, ceil(n_features / 8)) each."""
        n_bytes = -(-self.n_features // 8)

        def stored(words: Words) -> Bytes:
            return np.ascontiguousarray(words.T).view(np.uint8)[:, :n_bytes]

        return stored(self.words), None if self.observed is None else stored(self.observed)


def unpack_bytes(n_features: int, values: Bytes, mask: Bytes | None) -> BitRows:
    """Undo `PackedRows.pack_bytes`."""

    def words(stored: Bytes) -> Words:
        return np.pad(stored, ((0, 0), (0, -stored.shape[1] % 8))).view(np.uint64).T

    return BitRows(n_features, words(values), None if mask is None else words(mask))


def find_equal_rows(rows: BitRows, known: BitRows) -> tuple[RowPlaces, RowPlaces]:
    """Find the rows that are among known ones, values and masks, and where these are."""
    keys, known_keys = _row_keys(rows), _row_keys(known)
    order = np.argsort(known_keys)
    places = np.searchsorted(known_keys, keys, sorter=order)
    at = order[np.minimum(places, len(order) - 1)]
    same = np.flatnonzero(known_keys[at] == keys)
    return same, at[same]


def _row_keys(rows: BitRows) -> NDArray[np.void]:
    """Give each row, values and mask, as one item, (n_rows,)."""
    both = np.vstack([rows.words, rows.mask]).T
    return np.ascontiguousarray(both).view(f"V{8 * both.shape[1]}").ravel()


def full_mask_words(n_features: int) -> Words:
    """Give the mask of a row of which all is observed, (ceil(n_features / 64),)."""
    mask = np.full(-(-n_features // 64), ~np.uint64(0))
    if n_features % 64:
        mask[-1] >>= np.uint64(64 - n_features % 64)
    return mask


def transpose_bits(words: Words, n_rows: int) -> Words:
    """Transpose a matrix of bits.

    Parameters
    ----------
    words
        Packed bits, 64 rows a word, (n_features, n_words).
    n_rows
        Rows to give, from the first.

    Returns
    -------
    Packed bits, 64 features a word, 0 behind the last, (ceil(n_features / 64), n_rows).
    """
    rows = np.empty((-(-len(words) // 64), 64 * words.shape[1]), np.uint64)
    _transpose(np.ascontiguousarray(words), rows)
    return np.ascontiguousarray(rows[:, :n_rows])


@_kernel
def _transpose(words: Words, rows: Words) -> None:
    block = np.empty(64, np.uint64)
    n_features, n_words = words.shape
    for first in range(0, n_features, 64):
        n_here = min(64, n_features - first)
        for w in range(n_words):
            for i in range(n_here):
                block[i] = words[first + i, w]
            block[n_here:] = 0
            _transpose_block(block)
            rows[first // 64, 64 * w : 64 * w + 64] = block


@_kernel
def _transpose_block(block: Words) -> None:
    """Transpose 64 × 64 bits by halves [Warren, Hacker's Delight, 2nd ed., section 7-3]."""
    mask, width = np.uint64(0xFFFFFFFF), 32
    while width:
        shift = np.uint64(width)
        for first in range(0, 64, 2 * width):
            for i in range(first, first + width):
                change = ((block[i] >> shift) ^ block[i + width]) & mask
                block[i] ^= change << shift
                block[i + width] ^= change
        width //= 2
        mask ^= mask << np.uint64(width)
