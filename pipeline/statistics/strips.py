"""Pair counts of a strip of features with all that follow, of rows of all segments together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk
from pipeline.numerics.bits import kernels
from pipeline.statistics.counts import PairTable

StripCounts = Mapping[str, NDArray[Any]]
"""`joint`, (n_strip, n_right), and where values are missing `pair_rows`, `ones_left` and
`ones_right`: rows with both observed, ones of the left and of the right feature among them."""
_MAX_BATCH_WORDS, _MAX_BATCH_BYTES = 512, 32 << 20
"""Of chunks that are counted together."""
_MASKED_ARRAYS = ("pair_rows", "ones_left", "ones_right")


def count_strip(
    features: slice, n_features: int, n_samples: int, masked: bool, chunks: Iterable[PackedChunk]
) -> StripCounts:
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
    names = ("joint", *_MASKED_ARRAYS) if masked else ("joint",)
    counts = {name: np.zeros(shape, _choose_count_type(n_samples, np.uint32)) for name in names}
    for some in _iter_chunk_batches(chunks, shape[1]):
        _add_chunks(counts, features, some)
    return {name: a.astype(_choose_count_type(n_samples, np.uint16)) for name, a in counts.items()}


def make_strip_table(
    strip: StripCounts, features: slice, n_samples: int, ones: NDArray[np.int64]
) -> PairTable:
    """Return the tables of a strip; complete features need only their counts of rows and ones."""
    if "pair_rows" in strip:
        return PairTable(*(strip[name] for name in (*_MASKED_ARRAYS, "joint")))
    return PairTable(
        np.array(n_samples), ones[features, None], ones[None, features.start :], strip["joint"]
    )


def _iter_chunk_batches(chunks: Iterable[PackedChunk], n_right: int) -> Iterator[list[PackedChunk]]:
    """Put small chunks together: adding to a table takes as long as counting a few dozen words."""
    most = min(_MAX_BATCH_WORDS, _MAX_BATCH_BYTES // (8 * max(1, n_right)))
    batch: list[PackedChunk] = []
    n_words = 0
    for chunk in chunks:
        width = chunk.words.shape[1]
        if batch and n_words + width > most:
            yield batch
            batch, n_words = [], 0
        batch.append(chunk)
        n_words += width
    if batch:
        yield batch


def _add_chunks(counts: StripCounts, features: slice, chunks: Sequence[PackedChunk]) -> None:
    """Add the rows of chunks; those left out are left out of the strip, which is enough."""
    height, right = features.stop - features.start, slice(features.start, None)
    wanted = np.concatenate([_make_row_mask(chunk) for chunk in chunks])
    words = _concatenate_words([chunk.words[right] for chunk in chunks])
    left = words[:height] & wanted
    kernels.add_joint_counts(left, words, counts["joint"])
    if "pair_rows" not in counts:
        return
    masks = _concatenate_words([_get_mask(chunk)[right] for chunk in chunks])
    left_mask = masks[:height] & wanted
    kernels.add_joint_counts(left_mask, masks, counts["pair_rows"])
    kernels.add_joint_counts(left, masks, counts["ones_left"])
    kernels.add_joint_counts(left_mask, words, counts["ones_right"])


def _concatenate_words(words: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return words[0] if len(words) == 1 else np.concatenate(words, axis=1)


def _get_mask(chunk: PackedChunk) -> NDArray[np.uint64]:
    """Return the mask of observed values, even if no value is missing."""
    full = np.broadcast_to(~np.uint64(0), chunk.words.shape)
    return full if chunk.observed is None else chunk.observed


def _make_row_mask(chunk: PackedChunk) -> NDArray[np.uint64]:
    """Return a mask of the rows of the chosen split, (n_words,), without padding."""
    bits, last = np.zeros(64 * chunk.words.shape[1], np.uint8), 0
    for _, first_word, n_rows in chunk.blocks.tolist():
        kept = True if chunk.keep is None else chunk.keep[last : last + n_rows]
        bits[64 * first_word : 64 * first_word + n_rows] = kept
        last += n_rows
    packed: NDArray[np.uint64] = np.packbits(bits, bitorder="little").view(np.uint64)
    return packed


def _choose_count_type(
    n_samples: int, least: type[np.unsignedinteger[Any]]
) -> type[np.integer[Any]]:
    """Return the smallest integer type, at least as large as this one, that can count the rows."""
    if n_samples <= np.iinfo(least).max:
        return least
    return np.uint32 if n_samples <= np.iinfo(np.uint32).max else np.int64
