"""Features that rows link: connected parts of the graph of rows and observed features.

`parts` has the smallest feature that each feature is linked with, by any chain of rows and
features; −1 for a feature that was never observed. Parts of several sets of rows are merged without
the rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.compilation import callee

Parts = NDArray[np.int64]
Words = NDArray[np.uint64]

STRIP_WORDS = 64  # words of a feature that are compared at once: 4,096 rows

_kernel = njit(nogil=True, cache=True)
_callee = callee(nogil=True)


def link_features(mask: Words, parts: Parts) -> None:
    """Join the parts of all features that some row observes, in place.

    `mask` has packed rows, (n_features, n_words); `parts` is (n_features,). Reading stops once all
    features are linked.
    """
    _link_features(np.ascontiguousarray(mask), parts)


def merge_parts(parts: Parts, others: Parts) -> Parts:
    """Return the parts that all rows form together, (n_features,)."""
    merged = parts.copy()
    _merge_parts(merged, others)
    return merged


@_callee
def _find_root(parts: Parts, i: int) -> int:
    """Return the smallest feature of a part, and shorten the path to it."""
    while parts[i] != i:
        parts[i] = parts[parts[i]]
        i = parts[i]
    return i


@_callee
def _join(parts: Parts, i: int, j: int) -> int:
    """Join two parts, given their roots, and return their root."""
    root = min(i, j)
    parts[i] = root
    parts[j] = root
    return root


@_callee
def _settle(parts: Parts) -> int:
    """Point every feature to its root; return the number of parts, and of unobserved features."""
    n_parts = 0
    for i in range(len(parts)):
        if parts[i] >= 0:
            parts[i] = _find_root(parts, i)
        if parts[i] < 0 or parts[i] == i:
            n_parts += 1
    return n_parts


@_kernel
def _link_features(mask: Words, parts: Parts) -> None:
    n_features, n_words = mask.shape
    place = np.empty(n_features, np.int64)  # of a part among those of a strip, by its root
    roots = np.empty(n_features, np.int64)
    for first in range(0, n_words, STRIP_WORDS):
        if _settle(parts) == 1 and parts[0] == 0:
            return
        width = min(STRIP_WORDS, n_words - first)
        # Rows that each part observes: parts with a common row are one part.
        n_parts = 0
        place[:] = -1
        for i in range(n_features):
            if mask[i, first : first + width].any():
                if parts[i] < 0:
                    parts[i] = i
                if place[parts[i]] < 0:
                    place[parts[i]] = n_parts
                    roots[n_parts] = parts[i]
                    n_parts += 1
        rows = np.zeros((n_parts, width), np.uint64)
        for i in range(n_features):
            if parts[i] >= 0 and place[parts[i]] >= 0:
                own = rows[place[parts[i]]]
                for w in range(width):
                    own[w] |= mask[i, first + w]
        seen = np.zeros(width, np.uint64)
        n_separate = 0  # the first `n_separate` places of `rows` and `roots` have no common row
        for k in range(n_parts):
            root = roots[k]
            if (rows[k] & seen).any():
                n_kept = 0
                for j in range(n_separate):
                    if (rows[k] & rows[j]).any():
                        rows[k] |= rows[j]
                        root = _join(parts, root, roots[j])
                    else:
                        rows[n_kept] = rows[j]
                        roots[n_kept] = roots[j]
                        n_kept += 1
                n_separate = n_kept
            seen |= rows[k]
            rows[n_separate] = rows[k]
            roots[n_separate] = root
            n_separate += 1
    _settle(parts)


@_kernel
def _merge_parts(parts: Parts, others: Parts) -> None:
    for i in range(len(parts)):
        if others[i] >= 0:
            for j in (i, others[i]):
                if parts[j] < 0:
                    parts[j] = j
            _join(parts, _find_root(parts, i), _find_root(parts, others[i]))
    _settle(parts)
