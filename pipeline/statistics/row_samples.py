"""Samples of rows, for computations that need real rows but not all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Counts, Words
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitWarning
from pipeline.numerics.bits.packed_rows import BitRows, full_mask_words
from pipeline.random import RowRandom
from pipeline.statistics.counts import CountsAndMore, FeatureCounts
from pipeline.statistics.sums import CountStatistics

_PER_ROW = ("draws", "rows", "X", "observed", "segments", "labels", "covariates", "numbers")
_DISTINCT_ARRAYS = ("hashes", "words", "observed", "times")


@dataclass(frozen=True)
class RowSample(CountsAndMore):
    """The rows with the smallest keyed draws, a sample without replacement; and counts of all rows.

    Attributes
    ----------
    size
        Maximum number of rows in the sample.
    draws, rows
        Draws of the sampled rows, rising, and their original indices, (n_sampled,) each.
    X, observed
        Values and mask of the sampled rows, (n_sampled, n_features).
    segments, labels
        Index of each sampled row's segment, and labels as numbers (0 without labels), (n_sampled,).
    covariates
        Covariates of the sampled rows, (n_sampled, n_covariates).
    numbers
        Values of continuous features of the sampled rows, (n_sampled, n_continuous).
    """

    label: ClassVar[str] = "row sample"
    size: int
    draws: NDArray[np.float64]
    rows: NDArray[np.int64]
    X: NDArray[np.uint8]
    observed: NDArray[np.uint8]
    segments: NDArray[np.int64]
    labels: NDArray[np.float64]
    covariates: NDArray[np.float64]
    numbers: NDArray[np.float32]

    @classmethod
    def from_block(
        cls,
        block: BinaryBlock,
        size: int,
        rng: RowRandom,
        labels: NDArray[np.float64] | None = None,
    ) -> Self:
        """Draw rows of one block, with their labels, by the random stream `sample`."""
        draws = rng.stream("sample").uniform(block.rows, 1)[:, 0]
        places = np.argsort(draws, kind="stable")[:size]
        sample = block.take_rows(places)
        X, mask = sample.unpack_values(), sample.unpack_mask()
        observed = np.ones_like(X) if mask is None else mask
        segments = np.full(len(places), block.segment, np.int64)
        sample_labels = np.zeros(len(places)) if labels is None else labels[places]
        covariates = np.empty((len(places), 0))
        if sample.covariates is not None:
            covariates = sample.covariates
        numbers = np.empty((len(places), 0), np.float32)
        if sample.numbers is not None:
            numbers = sample.numbers.T
        counts = FeatureCounts.from_block(block)
        rows = (draws[places], sample.rows, X, observed, segments, sample_labels)
        return cls(counts, size, *rows, covariates, numbers)

    def merge(self, other: Self) -> Self:
        """Keep the smallest draws of both samples."""
        joined = {n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in _PER_ROW}
        places = np.lexsort((joined["rows"], joined["draws"]))[: self.size]
        sample = {name: values[places] for name, values in joined.items()}
        return type(self)(self.counts.merge(other.counts), self.size, **sample)


@dataclass(frozen=True)
class DistinctRows(CountStatistics):
    """Distinct rows with the smallest keyed hashes of their contents, in the order of the hashes.

    The result does not depend on the order of rows or on chunks. If there are more than `size`
    distinct rows, the ones kept are a sample without replacement; their counts are still exact.

    Attributes
    ----------
    size
        Maximum number of distinct rows to keep.
    n_features, n_rows
        Number of features, and of all rows.
    is_whole
        Whether all distinct rows were kept.
    hashes, times
        Hash of each distinct row, rising, and the number of rows equal to it, (n_kept,) each.
    words, observed
        Values and mask, with 64 features per word, (n_kept, ceil(n_features / 64)).
    """

    label: ClassVar[str] = "distinct rows"
    size: int
    n_features: int
    n_rows: int
    is_whole: bool
    hashes: Words
    words: Words
    observed: Words
    times: Counts

    @classmethod
    def from_block(cls, block: BinaryBlock, size: int, rng: RowRandom) -> Self:
        """Find the distinct rows of one block, with hashes of the random stream `distinct rows`."""
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
        n_rows: int,
        is_whole: bool,
        hashes: Words,
        words: Words,
        observed: Words,
        times: Counts,
    ) -> Self:
        """Count equal rows, and keep the distinct rows with the smallest hashes."""
        order = np.argsort(hashes, kind="stable")
        is_new = _is_new_row(order, hashes, words, observed)
        if (is_new[1:] & (np.diff(hashes[order]) == 0)).any():  # different rows with equal hashes
            order = np.lexsort((*observed.T, *words.T, hashes))
            is_new = _is_new_row(order, hashes, words, observed)
        first = np.flatnonzero(is_new)
        places = order[first[:size]]
        counts = np.add.reduceat(times[order], first)[:size] if len(first) else times
        is_whole = is_whole and len(first) <= size
        per_row = hashes[places], words[places], observed[places], counts
        return cls(size, n_features, n_rows, is_whole, *per_row)

    @property
    def n_distinct(self) -> int:
        """Number of distinct rows; if not all were kept, an estimate from the largest hash.

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
    def weight(self) -> float:
        """Number of rows; rows with weights are not sampled."""
        return float(self.n_rows)

    @property
    def rows_with_values(self) -> tuple[BitRows, Counts]:
        """The distinct rows with an observed value, and their counts."""
        places = np.flatnonzero(self.observed.any(axis=1))
        return self.rows.take(places), self.times[places]

    def merge(self, other: Self) -> Self:
        """Keep the smallest hashes of both."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in _DISTINCT_ARRAYS)
        n_rows = self.n_rows + other.n_rows
        is_whole = self.is_whole and other.is_whole
        arrays = map(np.concatenate, pairs)
        return self._keep_smallest(self.size, self.n_features, n_rows, is_whole, *arrays)


def _is_new_row(order: Counts, hashes: Words, words: Words, observed: Words) -> NDArray[np.bool_]:
    """Return which rows differ from the previous row in this order, (n_rows,)."""
    contents = np.column_stack([hashes, words, observed])[order]
    is_new = np.full(len(order), True)
    is_new[1:] = (contents[1:] != contents[:-1]).any(axis=1)
    return is_new


def make_unobserved_row_warnings(distinct: DistinctRows) -> tuple[FitWarning, ...]:
    """Warn about rows without any observed value, counted among the kept distinct rows."""
    n_unobserved = int(distinct.times.sum() - distinct.rows_with_values[1].sum())
    text = f"rows without any observed value are not fitted and have the code 0: {n_unobserved:,}"
    return (FitWarning(text),) if n_unobserved else ()
