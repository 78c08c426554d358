"""Some rows drawn from all, beside the counts of all: for what needs real rows, and not many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitWarning
from pipeline.numerics.bits.packed_rows import BitRows, full_mask_words
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts

_PER_ROW = ("draws", "rows", "X", "observed", "segments", "labels")


@dataclass(frozen=True)
class RowSample:
    """The rows whose keyed draws are the smallest: a sample without replacement.

    Attributes
    ----------
    counts
        Of all rows.
    size
        Rows to keep at the most.
    draws
        Draws of the rows kept, rising, (n_kept,).
    rows
        Their original rows, (n_kept,).
    X, observed
        Their values and mask, (n_kept, n_features).
    segments
        Indices of their segments, (n_kept,).
    labels
        Their labels as numbers, 0 where none were given, (n_kept,).
    """

    label: ClassVar[str] = "row sample"
    counts: FeatureCounts
    size: int
    draws: NDArray[np.float64]
    rows: NDArray[np.int64]
    X: NDArray[np.uint8]
    observed: NDArray[np.uint8]
    segments: NDArray[np.int64]
    labels: NDArray[np.float64]

    @classmethod
    def from_block(
        cls,
        block: BinaryBlock,
        size: int,
        rng: RowRandom,
        labels: NDArray[np.float64] | None = None,
    ) -> Self:
        """Draw from one block, by the stream `sample`; labels of its rows go along."""
        draws = rng.stream("sample").uniform(block.rows, 1)[:, 0]
        at = np.argsort(draws, kind="stable")[:size]
        taken = block.take_rows(at)
        X, mask = taken.unpack_values(), taken.unpack_mask()
        observed = np.ones_like(X) if mask is None else mask
        segments = np.full(len(at), block.segment, np.int64)
        drawn = np.zeros(len(at)) if labels is None else labels[at]
        counts = FeatureCounts.from_block(block)
        return cls(counts, size, draws[at], taken.rows, X, observed, segments, drawn)

    @property
    def n_samples(self) -> int:
        """Number of all rows."""
        return self.counts.n_samples

    @property
    def objective(self) -> float:
        """None: 0."""
        return 0.0

    def merge(self, other: Self) -> Self:
        """Keep the smallest draws of both."""
        both = {n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in _PER_ROW}
        at = np.lexsort((both["rows"], both["draws"]))[: self.size]
        kept = {name: values[at] for name, values in both.items()}
        return type(self)(self.counts.merge(other.counts), self.size, **kept)

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Return the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        own = {f"sample_{name}": getattr(self, name) for name in _PER_ROW}
        return {**self.counts.to_arrays(), "sample_size": np.array(self.size), **own}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        own = {n.removeprefix("sample_"): a for n, a in arrays.items() if n.startswith("sample_")}
        counted = {n: a for n, a in arrays.items() if not n.startswith("sample_")}
        size = int(own.pop("size"))
        return cls(FeatureCounts.from_arrays(counted), size, **own)


Words = NDArray[np.uint64]
Counts = NDArray[np.int64]
_ARRAYS = ("hashes", "words", "observed", "times")


@dataclass(frozen=True)
class DistinctRows:
    """Distinct rows in the order of a keyed hash of what they hold, those of the smallest hashes.

    How rows are cut and ordered does not matter. Where there are more distinct rows than asked
    for, those kept are a sample of them without replacement, and their numbers are still exact.

    Attributes
    ----------
    size
        Distinct rows to keep at the most.
    n_features
        Number of features.
    n_samples
        Number of all rows.
    is_whole
        Whether all distinct rows were kept.
    hashes
        Rising, (n_kept,).
    words, observed
        Values and mask of each, 64 features a word, (n_kept, ceil(n_features / 64)).
    times
        How many rows are like each, (n_kept,).
    """

    label: ClassVar[str] = "distinct rows"
    size: int
    n_features: int
    n_samples: int
    is_whole: bool
    hashes: Words
    words: Words
    observed: Words
    times: Counts

    @classmethod
    def from_block(cls, block: BinaryBlock, size: int, rng: RowRandom) -> Self:
        """Find those of one block, by the stream `distinct rows`."""
        n = block.n_samples
        rows = block.to_packed_rows()
        words, observed = rows.words.T, rows.mask.T
        hashes = rng.stream(cls.label).hash_rows(np.hstack([words, observed]))
        return cls._keep_smallest(
            size, block.n_features, n, True, hashes, words, observed, np.ones(n, np.int64)
        )

    @classmethod
    def _keep_smallest(
        cls,
        size: int,
        n_features: int,
        n_samples: int,
        is_whole: bool,
        hashes: Words,
        words: Words,
        observed: Words,
        times: Counts,
    ) -> Self:
        """Put like rows together, and keep those of the smallest hashes."""
        order = np.argsort(hashes, kind="stable")
        is_new = _is_new_row(order, hashes, words, observed)
        if (is_new[1:] & (np.diff(hashes[order]) == 0)).any():  # rows that differ have one hash
            order = np.lexsort((*observed.T, *words.T, hashes))
            is_new = _is_new_row(order, hashes, words, observed)
        first = np.flatnonzero(is_new)
        kept = order[first[:size]]
        summed = np.add.reduceat(times[order], first)[:size] if len(first) else times
        is_whole = is_whole and len(first) <= size
        return cls(
            size, n_features, n_samples, is_whole, hashes[kept], words[kept], observed[kept], summed
        )

    @property
    def objective(self) -> float:
        """None: 0."""
        return 0.0

    @property
    def n_distinct(self) -> int:
        """Number of distinct rows; where not all were kept, estimated by the largest hash.

        (k − 1) / U, the k-th smallest of n uniform U, is n in the mean (K. Beyer et al., "On
        synopses for distinct-value estimation under multiset operations", SIGMOD 2007).
        """
        if self.is_whole:
            return len(self.times)
        return round((len(self.times) - 1) / (float(self.hashes[-1]) / 2.0**64))

    @property
    def rows(self) -> BitRows:
        """The rows."""
        is_complete = (self.observed == full_mask_words(self.n_features)).all()
        return BitRows(self.n_features, self.words.T, None if is_complete else self.observed.T)

    @property
    def rows_with_values(self) -> tuple[BitRows, Counts]:
        """The rows of which something was observed, and how many are like each."""
        at = np.flatnonzero(self.observed.any(axis=1))
        return self.rows.take(at), self.times[at]

    def merge(self, other: Self) -> Self:
        """Keep the smallest hashes of both."""
        both = (np.concatenate([getattr(self, n), getattr(other, n)]) for n in _ARRAYS)
        n_samples = self.n_samples + other.n_samples
        is_whole = self.is_whole and other.is_whole
        return self._keep_smallest(self.size, self.n_features, n_samples, is_whole, *both)

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Return the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        size, n_features, n_samples = (int(arrays[n]) for n in ("size", "n_features", "n_samples"))
        scalars = size, n_features, n_samples, bool(arrays["is_whole"])
        return cls(*scalars, *(arrays[name] for name in _ARRAYS))


def _is_new_row(order: Counts, hashes: Words, words: Words, observed: Words) -> NDArray[np.bool_]:
    """Return which rows, in this order, differ from the one before."""
    both = np.column_stack([hashes, words, observed])[order]
    differ = np.full(len(order), True)
    differ[1:] = (both[1:] != both[:-1]).any(axis=1)
    return differ


def make_unobserved_row_warnings(first: DistinctRows) -> tuple[FitWarning, ...]:
    """Warn about rows without any value, counted among the distinct rows in the sample."""
    n_unseen = int(first.times.sum() - first.rows_with_values[1].sum())
    text = f"rows of which nothing was observed are not fitted, and have the code 0: {n_unseen:,}"
    return (FitWarning(text),) if n_unseen else ()
