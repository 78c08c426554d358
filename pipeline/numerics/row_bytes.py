"""Rows as parameters hold them, eight features a byte, the first the lowest bit, and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.nearest_rows import RowBits, observed_words

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Places = NDArray[np.int64]


def in_bytes(words: Words, n_features: int) -> Bytes:
    """Cut rows of words, (n_rows, n_words), into bytes, (n_rows, n_bytes)."""
    return np.ascontiguousarray(words).view(np.uint8)[:, : -(-n_features // 8)]


def in_words(rows: Bytes) -> Words:
    """Undo `in_bytes`, and transpose as `RowBits` wants it, (n_words, n_rows)."""
    n, n_bytes = rows.shape
    padded = np.zeros((n, 8 * -(-n_bytes // 8)), np.uint8)
    padded[:, :n_bytes] = rows
    return np.ascontiguousarray(padded.view(np.uint64).T)


def like_rows(rows: RowBits, known: RowBits, n_features: int) -> tuple[Places, Places]:
    """Find the rows that are among known ones, values and masks, and where these are."""
    keys, known_keys = (_keys(side, n_features) for side in (rows, known))
    order = np.argsort(known_keys)
    places = np.searchsorted(known_keys, keys, sorter=order)
    at = order[np.minimum(places, len(order) - 1)]
    same = np.flatnonzero(known_keys[at] == keys)
    return same, at[same]


def _keys(side: RowBits, n_features: int) -> NDArray[np.void]:
    """Give each row as one item, (n_rows,)."""
    both = np.vstack([side.words, observed_words(side, n_features)]).T
    return np.ascontiguousarray(both).view(f"V{8 * both.shape[1]}").ravel()
