"""Counts of features, and moments of their pairs with some features, the anchors.

The score of a feature is its level, 0, 1, 2, …, or the value of a continuous feature. Moments are
sums over the rows in which both features of a pair are observed, by segment or with all segments
pooled. All features are anchors if there are not too many; else anchors are spaced evenly, so that
tables grow with the number of features, not with its square.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock, iter_word_ranges
from pipeline.numerics.bits import kernels
from pipeline.statistics.counts import CountsAndMore, FeatureCounts
from pipeline.statistics.measurements import MeasuredCounts
from pipeline.statistics.sums import sum_by_segment

_MAX_CELLS = 1 << 19  # of a table, for all segments
_MIN_ANCHORS = 16
_WORDS_AT_ONCE = 64
_PRIOR_SHARE = 0.005
"""Share of a feature's rows that are added, with their margins, to those of a pair for its means.

A share, not a number, so that rows with a weight of 2 count like two rows.
"""
_MOMENTS = ("pair_rows", "left", "right", "left_squares", "right_squares", "products")


class PairCorrelations(NamedTuple):
    """Correlations of scores of anchors with all features.

    Attributes
    ----------
    values
        Correlations, pooled over segments, 0 where undefined: (n_anchors, n_features).
    rows
        Rows, or their weight, that observe both features of a pair and that the correlation is
        from, of the same shape.
    anchors
        Indices of the anchors, (n_anchors,).
    """

    values: Array
    rows: Array
    anchors: Counts


@dataclass(frozen=True)
class PairMoments(CountsAndMore):
    """Counts of features, and sums over rows for the pairs (i, j) of anchors with features.

    All sums have the shape (n_seen, n_anchors, n_features), and are integers unless there are
    continuous features. With weights, a row counts as many times as its weight in units.
    """

    label: ClassVar[str] = "pair counts"
    counts: FeatureCounts | MeasuredCounts
    segments: Counts  # indices of the segments seen, sorted, (n_seen,); 0 if they are pooled
    pair_rows: NDArray[Any]
    left: NDArray[Any]  # Σ x_i
    right: NDArray[Any]  # Σ x_j
    left_squares: NDArray[Any]  # Σ x_i²
    right_squares: NDArray[Any]  # Σ x_j²
    products: NDArray[Any]  # Σ x_i x_j

    @classmethod
    def from_block(
        cls,
        block: BinaryBlock,
        n_planes: Counts | None = None,
        n_segments: int | None = None,
    ) -> Self:
        """Count one block.

        `n_planes` are the numbers of planes of all features, 0 of continuous ones; None if all are
        binary. `n_segments` is the number of segments, None to pool them.
        """
        if n_planes is None:
            n_planes = np.ones(block.n_features, np.int64)
        anchors = choose_anchors(len(n_planes), n_segments or 1)
        segment = np.array([0 if n_segments is None else block.segment])
        kind = FeatureCounts if block.numbers is None else MeasuredCounts
        counts = kind.from_block(block)
        moments: tuple[NDArray[Any], ...]
        if block.numbers is None:
            moments = _count_planes(block, counts, n_planes, anchors)
        else:
            moments = _sum_scores(block, n_planes, anchors)
        return cls(counts, segment, *(table[None] for table in moments))

    @property
    def is_complete(self) -> bool:
        """Whether no value is missing, of features with levels."""
        return self.counts.is_complete

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        sums = sum_by_segment(self, other, _MOMENTS)
        counts = self.counts.merge(other.counts)  # type: ignore[arg-type]  # of the same kind
        return type(self)(counts, **sums)

    def compute_correlations(self) -> PairCorrelations:
        """Return correlations within segments, averaged over them.

        Means and variances are those of the rows of the pair, with a few rows added that have those
        of the feature, so that pairs with few rows count too.
        """
        n_features = self.products.shape[2]
        anchors = choose_anchors(n_features, len(self.segments))
        n, left, right, left_squares, right_squares, products = (
            getattr(self, name).astype(np.float64) for name in _MOMENTS
        )
        if self.counts.weight_unit != 1:
            unit = self.counts.weight_unit
            n, left, right, left_squares, right_squares, products = (
                unit * table for table in (n, left, right, left_squares, right_squares, products)
            )
        own = partial(_add_margins, n, np.asarray(anchors))
        mean_left, variance_left = own(left, left_squares, is_left=True)
        mean_right, variance_right = own(right, right_squares, is_left=False)
        covariance = products - mean_left * right - mean_right * left + n * mean_left * mean_right
        scale = np.sqrt(variance_left * variance_right)
        is_defined = (scale > 0) & np.isfinite(scale) & np.isfinite(covariance) & (n > 0)
        rows = np.where(is_defined, n, 0.0).sum(axis=0)
        sums = np.divide(covariance, scale, out=np.zeros(n.shape), where=is_defined).sum(axis=0)
        values = np.divide(sums, rows, out=np.zeros(rows.shape), where=rows > 0)
        return PairCorrelations(np.clip(values, -1.0, 1.0), rows, anchors)


def choose_anchors(n_features: int, n_segments: int) -> Counts:
    """Return the features that are paired with all features: all, or some at equal distances."""
    n_anchors = max(_MIN_ANCHORS, _MAX_CELLS // max(n_segments * n_features, 1))
    n_anchors = min(n_anchors, n_features)
    return np.arange(n_anchors) * n_features // max(n_anchors, 1)


def estimate_memory_of_moments(n_features: int, n_segments: int) -> int:
    """Return the bytes of the moments of a task, while they are merged."""
    n_cells = n_segments * len(choose_anchors(n_features, n_segments)) * n_features
    return 2 * 8 * len(_MOMENTS) * n_cells


def _add_margins(
    n: Array, anchors: Counts, sums: Array, squares: Array, *, is_left: bool
) -> tuple[Array, Array]:
    """Return mean and variance of one feature of each pair, in the shape of `n`.

    The margins of a feature are those of the pair with the most rows.
    """
    axis = 2 if is_left else 1
    fullest = np.expand_dims(n.argmax(axis=axis), axis)
    total = np.maximum(np.take_along_axis(n, fullest, axis), 1e-300)
    mean = np.take_along_axis(sums, fullest, axis) / total
    second = np.take_along_axis(squares, fullest, axis) / total
    prior_rows = _PRIOR_SHARE * total
    means = (sums + prior_rows * mean) / (n + prior_rows)
    variances = (squares + prior_rows * second) / (n + prior_rows) - means**2
    return means, np.maximum(variances, 0.0)


def _count_planes(
    block: BinaryBlock, margins: FeatureCounts, n_planes: Counts, anchors: Counts
) -> tuple[Counts, ...]:
    """Return the moments of features with levels, (n_anchors, n_features) each."""
    firsts, words, weights = np.cumsum(n_planes) - n_planes, block.words, block.split_weights()
    has_all = len(anchors) == len(n_planes)
    planes = np.flatnonzero(np.repeat(np.isin(np.arange(len(n_planes)), anchors), n_planes))
    left = words if has_all else words[planes]
    # The sum of 2 c − 1 over the planes c = 1, 2, … that a level reaches is its square.
    odd = 2 * (np.arange(len(words)) - np.repeat(firsts, n_planes)) + 1

    def count(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> Counts:
        table = np.zeros((len(a), len(b)), np.int64)
        kernels.add_joint_counts(a, b, table, weights)
        return table

    def add_planes(table: Counts, axis: int) -> Counts:
        own = n_planes if axis else n_planes[anchors]
        if (own == 1).all():
            return table
        return np.add.reduceat(table, np.cumsum(own) - own, axis=axis)

    shape = (len(anchors), len(n_planes))
    if block.observed_words is None:
        rows = np.full(shape, margins.total)
        by_left = np.tile(margins.ones[0, planes, None], (1, shape[1]))
        by_right = np.tile(margins.ones, (shape[0], 1))
    else:
        mask = block.observed_words[firsts]
        left_mask = mask if has_all else mask[anchors]
        rows, by_left, by_right = count(left_mask, mask), count(left, mask), count(left_mask, words)
    return (
        rows,
        add_planes(by_left, 0),
        add_planes(by_right, 1),
        add_planes(by_left * odd[planes, None], 0),
        add_planes(by_right * odd, 1),
        add_planes(add_planes(count(left, words), 0), 1),
    )


def _sum_scores(block: BinaryBlock, n_planes: Counts, anchors: Counts) -> tuple[Array, ...]:
    """Return the moments of features of which some are continuous, (n_anchors, n_features) each.

    Values are float32, so that sums of squares in float64 have enough digits for a start.
    """
    assert block.numbers is not None
    moments = tuple(np.zeros((len(anchors), len(n_planes))) for _ in _MOMENTS)
    is_continuous, has_levels = n_planes == 0, bool(n_planes.any())
    firsts = (np.cumsum(n_planes) - n_planes)[~is_continuous]
    for part in iter_word_ranges(block, _WORDS_AT_ONCE):
        assert part.numbers is not None
        scores = np.zeros((part.n_samples, len(n_planes)))
        observed = np.ones(scores.shape)
        if has_levels:
            bits, mask = part.unpack_values().astype(np.float64), part.unpack_mask()
            scores[:, ~is_continuous] = np.add.reduceat(bits, firsts, axis=1)
            if mask is not None:
                observed[:, ~is_continuous] = mask[:, firsts]
        numbers = part.numbers.T.astype(np.float64)
        observed[:, is_continuous] = ~np.isnan(numbers)
        scores[:, is_continuous] = np.nan_to_num(numbers)
        weights = np.ones(part.n_samples) if part.weights is None else part.weights
        left_observed = observed[:, anchors] * weights[:, None]
        left = scores[:, anchors] * weights[:, None]
        left_squares = left * scores[:, anchors]
        factors = (
            (left_observed, observed),
            (left, observed),
            (left_observed, scores),
            (left_squares, observed),
            (left_observed, scores**2),
            (left, scores),
        )
        for table, (a, b) in zip(moments, factors, strict=True):
            table += a.T @ b
    return moments
