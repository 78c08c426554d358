"""Rows as packed bits: the features of a row are contiguous."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.errors import FitError

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
RowPlaces = NDArray[np.int64]

_kernel = njit(nogil=True, cache=True)


class BitRows(NamedTuple):
    """Rows with 64 features per word, little bit order."""

    n_features: int
    words: Words  # values, (ceil(n_features / 64), n_rows); 0 where missing
    observed: Words | None  # mask of the same shape; None if all values are observed

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.words.T)

    @property
    def mask(self) -> Words:
        """The mask, also if all values are observed."""
        if self.observed is not None:
            return self.observed
        return np.repeat(full_mask_words(self.n_features)[:, None], self.n_rows, axis=1)

    @property
    def has_values(self) -> NDArray[np.bool_]:
        """Whether each row has an observed value, (n_rows,)."""
        if self.observed is None:
            return np.full(self.n_rows, True)
        return np.asarray(self.observed.any(axis=0))

    def take(self, rows: slice | NDArray[np.int64]) -> BitRows:
        """Return some of the rows."""
        observed = None if self.observed is None else self.observed[:, rows]
        return BitRows(self.n_features, self.words[:, rows], observed)

    def pack_bytes(self) -> tuple[Bytes, Bytes | None]:
        """Return values and mask as stored bytes, (n_rows, ceil(n_features / 8)) each."""
        n_bytes = -(-self.n_features // 8)

        def to_bytes(words: Words) -> Bytes:
            return np.ascontiguousarray(words.T).view(np.uint8)[:, :n_bytes]

        return to_bytes(self.words), None if self.observed is None else to_bytes(self.observed)


def unpack_bytes(n_features: int, values: Bytes, mask: Bytes | None) -> BitRows:
    """Return the rows of stored bytes, the inverse of `BitRows.pack_bytes`.

    Raises
    ------
    FitError
        If values are stored where a row has none: kernels would count more features than exist.
    """

    def to_words(stored: Bytes) -> Words:
        return np.pad(stored, ((0, 0), (0, -stored.shape[1] % 8))).view(np.uint64).T

    rows = BitRows(n_features, to_words(values), None if mask is None else to_words(mask))
    allowed = full_mask_words(n_features)[:, None]
    if (rows.words & ~rows.mask).any() or (rows.mask & ~allowed).any():
        raise FitError("Stored rows have values of features that do not exist or are missing.")
    return rows


def find_equal_rows(rows: BitRows, known: BitRows) -> tuple[RowPlaces, RowPlaces]:
    """Find rows equal to a known row; return their places, and the places of the known rows."""
    keys, known_keys = _row_keys(rows), _row_keys(known)
    order = np.argsort(known_keys)
    places = np.searchsorted(known_keys, keys, sorter=order)
    nearest = order[np.minimum(places, len(order) - 1)]
    equal = np.flatnonzero(known_keys[nearest] == keys)
    return equal, nearest[equal]


def _row_keys(rows: BitRows) -> NDArray[np.void]:
    """Return the values and mask of each row as one item, (n_rows,)."""
    contents = np.vstack([rows.words, rows.mask]).T
    return np.ascontiguousarray(contents).view(f"V{8 * contents.shape[1]}").ravel()


def full_mask_words(n_features: int) -> Words:
    """Return the mask of a fully observed row, (ceil(n_features / 64),)."""
    mask = np.full(-(-n_features // 64), ~np.uint64(0))
    if n_features % 64:
        mask[-1] >>= np.uint64(64 - n_features % 64)
    return mask


def transpose_bits(words: Words, n_rows: int) -> Words:
    """Transpose bits from 64 rows per word, (n_features, n_words), to 64 features per word.

    The result has the first `n_rows` rows, padded with 0, (ceil(n_features / 64), n_rows).
    """
    rows = np.empty((-(-len(words) // 64), 64 * words.shape[1]), np.uint64)
    _transpose(np.ascontiguousarray(words), rows)
    return np.ascontiguousarray(rows[:, :n_rows])


@_kernel
def _transpose(words: Words, rows: Words) -> None:
    block = np.empty(64, np.uint64)
    n_features, n_words = words.shape
    for first in range(0, n_features, 64):
        n_block = min(64, n_features - first)
        for w in range(n_words):
            for i in range(n_block):
                block[i] = words[first + i, w]
            block[n_block:] = 0
            transpose_block(block)
            for j in range(64):  # compiles in a quarter of the time of an assignment
                rows[first // 64, 64 * w + j] = block[j]


@_kernel
def transpose_block(block: Words) -> None:
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
