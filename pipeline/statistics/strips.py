"""Pair counts of a strip of features with all that follow, of rows of all segments together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import Chunk
from pipeline.numerics import kernels
from pipeline.statistics.counts import PairTable

Strip = Mapping[str, NDArray[Any]]
"""`joint`, (n_strip, n_right), and where values are missing `pair_rows`, `ones_left` and
`ones_right`: rows with both observed, ones of the left and of the right feature among them."""
_MASKED = ("pair_rows", "ones_left", "ones_right")


def count_strip(
    features: slice, n_features: int, n_samples: int, masked: bool, chunks: Iterable[Chunk]
) -> Strip:
    """Count the pairs of a strip, in place.

    Parameters
    ----------
    features
        The strip; its pairs are those with all features from its first on.
    n_features, n_samples
        Of all data: counts are kept in the smallest integers that hold so many rows.
    masked
        Whether any value is missing.
    chunks
        All chunks.
    """
    shape = (features.stop - features.start, n_features - features.start)
    names = ("joint", *_MASKED) if masked else ("joint",)
    counts = {name: np.zeros(shape, _smallest(n_samples, np.uint32)) for name in names}
    for chunk in chunks:
        _add_chunk(counts, features, chunk)
    return {name: a.astype(_smallest(n_samples, np.uint16)) for name, a in counts.items()}


def strip_table(
    strip: Strip, features: slice, n_samples: int, ones: NDArray[np.int64]
) -> PairTable:
    """Give the tables of a strip, given the rows and the ones of all features where none lacks."""
    if "pair_rows" in strip:
        return PairTable(*(strip[name] for name in (*_MASKED, "joint")))
    return PairTable(
        np.array(n_samples), ones[features, None], ones[None, features.start :], strip["joint"]
    )


def _add_chunk(counts: Strip, features: slice, chunk: Chunk) -> None:
    """Add the rows of a chunk; those left out are left out of the strip, which is enough."""
    wanted, right = _wanted_bits(chunk), chunk.words[features.start :]
    left = chunk.words[features] & wanted
    kernels.add_joint_counts(left, right, counts["joint"])
    if "pair_rows" not in counts:
        return
    observed = chunk.observed
    if observed is None:
        observed = np.broadcast_to(~np.uint64(0), chunk.words.shape)
    left_mask, right_mask = observed[features] & wanted, observed[features.start :]
    kernels.add_joint_counts(left_mask, right_mask, counts["pair_rows"])
    kernels.add_joint_counts(left, right_mask, counts["ones_left"])
    kernels.add_joint_counts(left_mask, right, counts["ones_right"])


def _wanted_bits(chunk: Chunk) -> NDArray[np.uint64]:
    """Give a mask of the rows of the chosen split, (n_words,): padding is not among them."""
    bits, last = np.zeros(64 * chunk.words.shape[1], np.uint8), 0
    for _, first_word, n_rows in chunk.blocks.tolist():
        kept = True if chunk.keep is None else chunk.keep[last : last + n_rows]
        bits[64 * first_word : 64 * first_word + n_rows] = kept
        last += n_rows
    packed: NDArray[np.uint64] = np.packbits(bits, bitorder="little").view(np.uint64)
    return packed


def _smallest(n_samples: int, least: type[np.unsignedinteger[Any]]) -> type[np.integer[Any]]:
    """Give the smallest type, none smaller than this, that holds so many rows."""
    if n_samples <= np.iinfo(least).max:
        return least
    return np.uint32 if n_samples <= np.iinfo(np.uint32).max else np.int64
