"""Counts of ones and joint ones, by segment: int64 and exact.

Arrays have one row per segment seen, so that counts of a block hold only the block's segment. For
cross-validation and the bootstrap, the rows of a segment are dealt to groups, and each group is
counted like a segment with the index segment · n_groups + group.

Pairs that are too many for one table are counted in strips: the pairs of some features with each
other and with all later features, over the rows of all segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Counts
from pipeline.data.blocks import AnnotatedChunk, BinaryBlock, PackedChunk, Tile
from pipeline.data.features import Feature, are_binary, find_first_planes
from pipeline.errors import LEAVE_OUT, FitError, FitWarning
from pipeline.numerics.bits import kernels
from pipeline.statistics.sums import CountStatistics, sum_by_segment, sum_weighted_rows

POOLED_KEY = "pooled"
"""Key of the pair counts in which all segments are pooled."""
StripCounts = Mapping[str, NDArray[Any]]
"""`joint`, (n_strip, n_right). If values are missing, also `pair_rows`, the rows with both features
observed, and in these rows `ones_left` and `ones_right`, the ones of the left and right feature."""
_MAX_BATCH_WORDS, _MAX_BATCH_BYTES = 512, 32 << 20
"""Size of a batch of chunks, which are counted together."""
_FULL_ARRAYS = ("rows", "weights", "full_rows", "full_ones")
_MASKED_ARRAYS = ("pair_rows", "ones_left", "ones_right")
STRIP_COUNTS = ("joint", *_MASKED_ARRAYS)


class WeightedCounts(CountStatistics):
    """Base of counts by segment, in which a row counts as many times as its weight in units.

    Attributes
    ----------
    segments
        Indices of the segments seen, sorted, (n_seen,).
    rows
        Number of rows of each segment, (n_seen,).
    weights
        Sum of the weights of each segment, (n_seen,); None if rows have none.
    weight_unit
        The unit of weights.
    """

    segments: Counts
    rows: Counts
    weights: Counts | None
    weight_unit: float

    @property
    def n_rows(self) -> int:
        """Number of rows read."""
        return int(self.rows.sum())

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return float(self.n_rows if self.weights is None else self.weight_unit * self.weights.sum())


@dataclass(frozen=True)
class FeatureCounts(WeightedCounts):
    """Rows, observed values and ones of every feature."""

    label: ClassVar[str] = "feature counts"
    segments: Counts
    rows: Counts
    # Number of observed values, and of ones among them, (n_seen, n_features).
    observed: Counts
    ones: Counts
    weights: Counts | None = None
    weight_unit: float = 1.0
    has_sampling_weights: bool = False

    @classmethod
    def from_block(cls, block: BinaryBlock) -> Self:
        """Count one block."""
        segment, rows = np.array([block.segment]), np.array([block.n_samples])
        mask, planes = block.observed_words, block.split_weights()
        ones = _count_ones(block.words, planes)
        total = block.n_samples if block.weights is None else block.weights.sum()
        observed = np.full_like(ones, total) if mask is None else _count_ones(mask, planes)
        weights = None if block.weights is None else np.array([total])
        kind = (block.weight_unit, block.has_sampling_weights)
        return cls(segment, rows, observed[None], ones[None], weights, *kind)

    @property
    def total(self) -> int:
        """Number of rows or, with weights, their sum in units."""
        return int((self.rows if self.weights is None else self.weights).sum())

    @property
    def is_complete(self) -> bool:
        """Whether no value is missing."""
        totals = self.rows if self.weights is None else self.weights
        return bool((self.observed == totals[:, None]).all())

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        return replace(self, **sum_by_segment(self, other, ("rows", "observed", "ones", "weights")))


@dataclass(frozen=True)
class CountsAndMore(CountStatistics):
    """Base of statistics that include counts of features, over all rows."""

    counts: FeatureCounts

    @property
    def n_rows(self) -> int:
        """Number of rows read."""
        return self.counts.n_rows

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return self.counts.weight


def pool_margins(counts: FeatureCounts) -> tuple[NDArray[Any], NDArray[Any]]:
    """Count the observed values and the ones of each feature over all segments, (n_features,) each.

    Without weights, and with weights that are whole numbers, the counts are integers. A feature
    that was never observed is refused.
    """
    observed, ones = counts.observed.sum(axis=0), counts.ones.sum(axis=0)
    if (missing := np.flatnonzero(observed == 0)).size:
        raise FitError(
            f"These features have no observed value: {{features}}. {LEAVE_OUT}.", missing.tolist()
        )
    if counts.weight_unit == 1:
        return observed, ones
    return counts.weight_unit * observed, counts.weight_unit * ones


def _count_ones(words: NDArray[np.uint64], planes: NDArray[np.uint64] | None) -> Counts:
    """Return the ones of each feature, (n_features,), each times the weight of its row."""
    if planes is None:
        return kernels.popcounts(words)
    counts: Counts = kernels.joint_counts(words, planes) @ (1 << np.arange(len(planes)))
    return counts


def make_constant_feature_warnings(
    observed: Counts, ones: Counts, consequence: str = "nothing else depends on them"
) -> tuple[FitWarning, ...]:
    """Warn about constant features, given the margins from `pool_margins`."""
    constant = tuple(np.flatnonzero((ones == 0) | (ones == observed)).tolist())
    text = f"constant features, so {consequence}: {{features}}"
    return (FitWarning(text, constant),) if constant else ()


def count_level_rows(
    counts: FeatureCounts, features: Sequence[Feature]
) -> tuple[NDArray[np.float64], ...]:
    """Count the rows, or their weight, at each level of each feature, (n_levels,) each.

    Continuous features have no levels. A feature with levels that was never observed is refused.
    """
    observed, ones = (counts.weight_unit * n.sum(axis=0) for n in (counts.observed, counts.ones))
    level_rows = _split_by_level(observed, ones, features)
    missing = [
        f.name for f, rows in zip(features, level_rows, strict=True) if rows.size and not rows.any()
    ]
    if missing:
        raise FitError(
            f"These features have no observed value: {{features}}. {LEAVE_OUT}.", missing
        )
    return level_rows


def count_group_level_rows(
    counts: FeatureCounts, features: Sequence[Feature]
) -> NDArray[np.float64]:
    """Count the rows, or their weight, in each segment and at each level of all features.

    The result has the shape (n_segments, n_levels).
    """
    by_segment = zip(counts.observed, counts.ones, strict=True)
    return counts.weight_unit * np.array(
        [np.concatenate(_split_by_level(*pair, features)) for pair in by_segment]
    )


def _split_by_level(
    observed: NDArray[Any], ones: NDArray[Any], features: Sequence[Feature]
) -> tuple[NDArray[np.float64], ...]:
    """Return the rows at each level of each feature, given those with each plane."""
    return tuple(
        # Minus the differences of the rows that reach each level: all rows reach the lowest.
        -np.diff(np.concatenate([observed[a : a + 1], ones[a:b], [0]]).astype(np.float64))
        if b > a
        else np.zeros(0)
        for a, b in pairwise(find_first_planes(features))
    )


def make_empty_level_warnings(
    level_rows: Sequence[NDArray[np.float64]], consequence: str
) -> tuple[FitWarning, ...]:
    """Warn about features that have rows at several levels but not at all, by index of feature."""
    n_levels = np.array([len(rows) for rows in level_rows])
    n_present = np.array([np.count_nonzero(rows) for rows in level_rows])
    empty = tuple(np.flatnonzero((n_present > 1) & (n_present < n_levels)).tolist())
    text = f"no row has some levels of these features, so {consequence}: {{features}}"
    return (FitWarning(text, empty),) if empty else ()


def count_rows_by_level(
    counts: FeatureCounts, features: Sequence[Feature]
) -> tuple[NDArray[np.float64], ...]:
    """Count the rows, or their weight, at each level of each feature, (n_levels,) each."""
    if not are_binary(features):
        return count_level_rows(counts, features)
    observed, ones = pool_margins(counts)
    return tuple(np.stack([observed - ones, ones], axis=1).astype(np.float64))


def count_present_levels(level_rows: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Return the number of levels of each feature that rows have, at least 1, (n_features,)."""
    return np.array([max(np.count_nonzero(rows), 1) for rows in level_rows], np.int64)


def warn_about_levels(
    level_rows: Sequence[NDArray[np.float64]], features: Sequence[Feature]
) -> tuple[FitWarning, ...]:
    """Warn about constant features and empty levels in fits that smooth probabilities.

    `level_rows` are those of `count_rows_by_level`.
    """
    consequence = "only the smoothing determines their probabilities"
    total, largest = (np.array([f(r) for r in level_rows]) for f in (np.sum, np.max))
    warnings = (
        *make_constant_feature_warnings(total, largest, consequence),
        *make_empty_level_warnings(level_rows, consequence),
    )
    names = tuple(feature.name for feature in features)
    return tuple(warning.with_names(names) for warning in warnings)


class PairTable(NamedTuple):
    """The 2x2 tables of a set of pairs (i, j), as broadcastable arrays."""

    n: NDArray[Any]  # number of rows in which both features are observed
    # Number of these rows with x_i = 1, with x_j = 1, and with both.
    ones_i: NDArray[Any]
    ones_j: NDArray[Any]
    joint: NDArray[Any]

    def scale(self, unit: float) -> PairTable:
        """Multiply counts by the unit of weights; with a unit of 1, they stay whole numbers."""
        return self if unit == 1 else PairTable(*(unit * counts for counts in self))


@dataclass(frozen=True)
class PairCounts(WeightedCounts):
    """Joint ones of every pair of features; with missing values, pairwise-complete counts.

    Blocks without a mask are counted in `full_rows`, `full_ones` and `joint`, blocks with a mask in
    `pair_rows`, `ones_left`, `ones_right` and `joint`. Merging the two kinds is thus a plain sum.
    """

    label: ClassVar[str] = "pair counts"
    segments: Counts
    rows: Counts
    # Rows, and ones of each feature, in blocks without a mask: (n_seen,), (n_seen, n_features).
    full_rows: Counts
    full_ones: Counts
    joint: Counts  # (n_seen, n_left, n_right)
    # In blocks with a mask: rows with i and j observed, and the ones of i and of j in these rows,
    # each in the shape of `joint`; None if no block had a mask.
    pair_rows: Counts | None = None
    ones_left: Counts | None = None
    ones_right: Counts | None = None
    tile: Tile | None = None  # the features of the last two axes; None means all
    weights: Counts | None = None
    weight_unit: float = 1.0

    @classmethod
    def from_block(cls, block: BinaryBlock, *, pooled: bool) -> Self:
        """Count the pairs of one block that `block.tile` selects.

        With `pooled`, every segment is counted as segment 0.
        """
        return cls.from_parts([replace(block, segment=0) if pooled else block])

    @classmethod
    def from_parts(cls, parts: Sequence[BinaryBlock]) -> Self:
        """Count blocks of different segments, at least one, in the order of the segments."""
        # The tables are allocated once and filled in place, so that no second copy exists.
        first, n = parts[0], len(parts)
        tile = first.tile or Tile((0, first.n_features), (0, first.n_features))
        shape = (n, tile.left[1] - tile.left[0], tile.right[1] - tile.right[0])
        masked = first.observed_words is not None
        by_pair = ("joint", "pair_rows", "ones_left", "ones_right")[: 4 if masked else 1]
        counts = cls(
            segments=np.array([part.segment for part in parts]),
            rows=np.zeros(n, np.int64),
            full_rows=np.zeros(n, np.int64),
            full_ones=np.zeros((n, first.n_features), np.int64),
            tile=first.tile,
            weights=None if first.weights is None else np.zeros(n, np.int64),
            weight_unit=first.weight_unit,
            **{name: np.zeros(shape, np.int64) for name in by_pair},
        )
        for place, part in enumerate(parts):
            counts._add_part(place, part)
        return counts

    def _add_part(self, place: int, block: BinaryBlock) -> None:
        """Add a block to one row of the counts, in place."""
        words, mask, planes = block.words, block.observed_words, block.split_weights()
        total = block.n_samples if block.weights is None else int(block.weights.sum())
        self.rows[place] += block.n_samples
        if self.weights is not None:
            self.weights[place] += total
        add = partial(_add_joint_counts, tile=block.tile, planes=planes)
        add(words, words, self.joint[place])
        if mask is None:
            self.full_rows[place] += total
            self.full_ones[place] += _count_ones(words, planes)
        else:
            assert self.pair_rows is not None
            assert self.ones_left is not None
            assert self.ones_right is not None
            add(mask, mask, self.pair_rows[place])
            add(words, mask, self.ones_left[place])
            add(mask, words, self.ones_right[place])

    @classmethod
    def from_groups(cls, block: BinaryBlock, n_groups: int) -> Self:
        """Count each group of a block's rows; `BinaryBlock.split_into_groups` forms the groups.

        Groups without rows have no counts. A block without rows keeps its first group, so that its
        segment counts as seen.
        """
        return cls.from_parts(_split_into_groups(block, n_groups))

    def add_block(self, block: BinaryBlock, *, pooled: bool) -> Self:
        """Add a block as counted by `from_block`; see `add_block_groups`."""
        return self._add_parts([replace(block, segment=0) if pooled else block])

    def add_block_groups(self, block: BinaryBlock, n_groups: int) -> Self:
        """Add the groups of a block, in place if their segments were seen before.

        Use it only on counts that nobody else holds. It saves the two further tables of all pairs
        that `merge` would allocate.
        """
        return self._add_parts(_split_into_groups(block, n_groups))

    def _add_parts(self, parts: Sequence[BinaryBlock]) -> Self:
        segments = [part.segment for part in parts]
        has_room = parts[0].observed_words is None or self.pair_rows is not None
        if not has_room or not np.isin(segments, self.segments).all():
            return self.merge(self.from_parts(parts))
        for place, part in zip(np.searchsorted(self.segments, segments), parts, strict=True):
            self._add_part(int(place), part)
        return self

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.full_ones.shape[1])

    def merge(self, other: Self) -> Self:
        """Add further rows of the same tile."""
        names = (*_FULL_ARRAYS, "joint", *_MASKED_ARRAYS)
        return replace(self, **sum_by_segment(self, other, names))

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Join the tiles of the upper triangle into the full square."""
        if len(parts) == 1 and parts[0].tile is None:
            return parts[0]
        first = parts[0]
        masked = first.pair_rows is not None
        return cls(
            first.segments,
            first.rows,
            first.full_rows,
            first.full_ones,
            _assemble_square(parts, "joint", "joint"),
            _assemble_square(parts, "pair_rows", "pair_rows") if masked else None,
            _assemble_square(parts, "ones_left", "ones_right") if masked else None,
            _assemble_square(parts, "ones_right", "ones_left") if masked else None,
            weights=first.weights,
            weight_unit=first.weight_unit,
        )

    def margins(self) -> tuple[Counts, Counts]:
        """Return observed values and ones, (n_seen, n_features) each, in units of the weights."""
        ones = np.diagonal(self.joint, axis1=1, axis2=2)
        observed = np.broadcast_to(self.full_rows[:, None], ones.shape)
        if self.pair_rows is not None:
            observed = observed + np.diagonal(self.pair_rows, axis1=1, axis2=2)
        return observed, ones

    def to_feature_counts(self) -> FeatureCounts:
        """Drop the pairs."""
        margins = self.margins()
        return FeatureCounts(self.segments, self.rows, *margins, self.weights, self.weight_unit)

    def table(
        self, segment: int, left: slice = slice(None), right: slice = slice(None)
    ) -> PairTable:
        """Return the tables of pairs (i in left, j in right) for `segments[segment]`."""
        n, ones = self.full_rows[segment], self.full_ones[segment]
        pairs = (segment, left, right)
        table = PairTable(n, ones[left, None], ones[None, right], self.joint[pairs])
        if self.pair_rows is not None:
            assert self.ones_left is not None
            assert self.ones_right is not None
            table = PairTable(
                n + self.pair_rows[pairs],
                table.ones_i + self.ones_left[pairs],
                table.ones_j + self.ones_right[pairs],
                table.joint,
            )
        return table.scale(self.weight_unit)

    def list_grouped_segments(self, n_groups: int) -> Counts:
        """Return the segments whose groups were counted, sorted, (n_segments_seen,)."""
        return np.unique(self.segments // n_groups)

    def sum_weighted_groups(self, n_groups: int, weights: Counts) -> Self:
        """Sum the groups of every segment, multiplied by their weights.

        Weights are at least 0, (n_segments_seen, n_groups), with rows in the order of
        `list_grouped_segments`. The result has one row per segment, even if all its weights are 0.
        If all weights are 1, it equals the counts of `from_block`.
        """
        segments = self.list_grouped_segments(n_groups)
        expected = (len(segments), n_groups)
        if weights.shape != expected or weights.min(initial=0) < 0:
            raise FitError(
                f"`weights` has the shape {weights.shape} and the minimum {weights.min(initial=0)}."
                f" Pass one weight of at least 0 for each group of each segment: {expected}."
            )
        place = np.searchsorted(segments, self.segments // n_groups)
        return self._sum_rows(segments, place, weights[place, self.segments % n_groups])

    def sum_segments(self, labels: NDArray[np.int64]) -> Self:
        """Sum segments with equal labels, (n_seen,); the labels are the segments of the result."""
        segments, place = np.unique(labels, return_inverse=True)
        return self._sum_rows(segments, place, np.ones(len(place), np.int64))

    def take_first_segments(self, n_segments: int) -> Self:
        """Return the counts of the first segments, or of all if there are no more."""
        if len(self.segments) <= n_segments:
            return self
        places = np.arange(n_segments)
        return self._sum_rows(self.segments[places], places, np.ones(n_segments, np.int64))

    def _sum_rows(self, segments: Counts, place: Counts, times: Counts) -> Self:
        """Add row r of the counts, multiplied by times[r], to that of segment segments[place[r]].

        Rows after the last of `times` are left out.
        """
        sums = {
            name: segments
            if name == "segments"
            else sum_weighted_rows(rows, place, times, len(segments))
            for name, rows in self.to_arrays().items()
            if name not in ("weight_unit", "tile")
        }
        return type(self)(tile=self.tile, weight_unit=self.weight_unit, **sums)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore the counts from the arrays of `to_arrays`."""
        counts = super().from_arrays(arrays)
        if counts.tile is None:
            return counts
        return replace(counts, tile=Tile(*map(tuple, arrays["tile"].tolist())))


def make_tiles(n_features: int, n_segments: int, budget: int) -> tuple[Tile | None, ...]:
    """Cut the pairs of features into tiles, so that a task's counts fit into `budget` bytes.

    Return the upper triangle of tiles, or only None if one task can count all pairs.
    """
    # With a mask there are four int64 arrays, held twice while merging.
    side = max(1, int((budget / (8 * 4 * 2 * n_segments)) ** 0.5))
    if side >= n_features:
        return (None,)
    edges = [(a, min(a + side, n_features)) for a in range(0, n_features, side)]
    return tuple(Tile(left, right) for k, left in enumerate(edges) for right in edges[k:])


def _split_into_groups(block: BinaryBlock, n_groups: int) -> list[BinaryBlock]:
    """Deal rows to groups; return the groups with rows, or the first group if there are none."""
    key = block.segment * n_groups
    groups = [
        replace(part, segment=key + g) for g, part in enumerate(block.split_into_groups(n_groups))
    ]
    return [group for group in groups if group.n_samples] or groups[:1]


def _add_joint_counts(
    left: NDArray[np.uint64],
    right: NDArray[np.uint64],
    counts: Counts,
    tile: Tile | None,
    planes: NDArray[np.uint64] | None,
) -> None:
    """Add the joint counts of a tile, in which each row counts as many times as its weight."""
    if tile is None:
        kernels.add_joint_counts(left, right, counts, planes)
    elif left is right and tile.left == tile.right:
        words = left[slice(*tile.left)]
        kernels.add_joint_counts(words, words, counts, planes)
    else:
        kernels.add_joint_counts(left[slice(*tile.left)], right[slice(*tile.right)], counts, planes)


def _assemble_square(parts: Sequence[PairCounts], upper: str, lower: str) -> Counts:
    """Assemble a square from tiles: `upper` at the tile, `lower` transposed across the diagonal."""
    n, first = parts[0].n_features, parts[0].joint
    square = np.zeros((len(first), n, n), np.int64)
    for part in parts:
        assert part.tile is not None
        left, right = slice(*part.tile.left), slice(*part.tile.right)
        square[:, right, left] = getattr(part, lower).transpose(0, 2, 1)
        square[:, left, right] = getattr(part, upper)
    return square


def count_strip(
    features: slice,
    n_features: int,
    total: int,
    masked: bool,
    chunks: Iterable[PackedChunk],
    earlier: StripCounts | None = None,
) -> StripCounts:
    """Count the pairs of a strip of features with each other and with all later features.

    `total` is the number of all rows or, with weights, the sum of their weights in units. `masked`
    tells whether any of these rows has missing values. `chunks` are the chunks to count, and
    `earlier` the counts of the other rows, which may be changed in place. Counts are stored in the
    smallest integers that can hold `total`.
    """
    shape = (features.stop - features.start, n_features - features.start)
    names, dtype = STRIP_COUNTS if masked else ("joint",), _choose_count_type(total, np.uint32)
    if earlier is None:
        counts = {name: np.zeros(shape, dtype) for name in names}
    else:
        counts = {name: earlier[name].astype(dtype, copy=False) for name in names}
    for batch in _iter_chunk_batches(chunks, shape[1]):
        _add_chunks(counts, features, batch)
    stored = _choose_count_type(total, np.uint16)
    return {name: values.astype(stored, copy=False) for name, values in counts.items()}


def make_strip_table(
    strip: StripCounts, features: slice, total: int, ones: NDArray[np.int64]
) -> PairTable:
    """Return the tables of a strip, given `count_strip`'s total and the ones, (n_features,)."""
    if "pair_rows" in strip:
        return PairTable(*(strip[name] for name in (*_MASKED_ARRAYS, "joint")))
    return PairTable(
        np.array(total), ones[features, None], ones[None, features.start :], strip["joint"]
    )


def _iter_chunk_batches(chunks: Iterable[PackedChunk], n_right: int) -> Iterator[list[PackedChunk]]:
    """Join small chunks: adding to a table takes as long as counting a few dozen words."""
    max_words = min(_MAX_BATCH_WORDS, _MAX_BATCH_BYTES // (8 * max(1, n_right)))
    batch: list[PackedChunk] = []
    n_words = 0
    for chunk in chunks:
        width = chunk.words.shape[1]
        if batch and n_words + width > max_words:
            yield batch
            batch, n_words = [], 0
        batch.append(chunk)
        n_words += width
    if batch:
        yield batch


def _add_chunks(counts: StripCounts, features: slice, chunks: Sequence[PackedChunk]) -> None:
    """Add the rows of the chosen split, each as many times as its weight."""
    height, right = features.stop - features.start, slice(features.start, None)
    planes = kernels.split_into_bit_planes(np.concatenate([_place_weights(c) for c in chunks]))
    words = _concatenate_words([chunk.words[right] for chunk in chunks])
    left = words[:height]
    kernels.add_joint_counts(left, words, counts["joint"], planes, is_strip=True)
    if "pair_rows" not in counts:
        return
    masks = _concatenate_words([_get_mask(chunk)[right] for chunk in chunks])
    left_mask = masks[:height]
    kernels.add_joint_counts(left_mask, masks, counts["pair_rows"], planes, is_strip=True)
    kernels.add_joint_counts(left, masks, counts["ones_left"], planes)
    kernels.add_joint_counts(left_mask, words, counts["ones_right"], planes)


def _concatenate_words(words: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return words[0] if len(words) == 1 else np.concatenate(words, axis=1)


def _get_mask(chunk: PackedChunk) -> NDArray[np.uint64]:
    """Return the mask of observed values, even if no value is missing."""
    full = np.broadcast_to(~np.uint64(0), chunk.words.shape)
    return full if chunk.observed is None else chunk.observed


def _place_weights(chunk: PackedChunk) -> NDArray[Any]:
    """Return the weight at each position of the words, (64 n_words,), in units.

    It is 0 for padding and outside of the chosen split, and 1 for rows without weights.
    """
    weights: NDArray[Any] = np.ones(len(chunk.row_numbers), np.uint8)
    if isinstance(chunk, AnnotatedChunk) and chunk.weights is not None:
        weights = chunk.weights
    if chunk.keep is not None:
        weights = weights * chunk.keep
    placed, last = np.zeros(64 * chunk.words.shape[1], weights.dtype), 0
    for _, first_word, n_rows in chunk.blocks.tolist():
        placed[64 * first_word : 64 * first_word + n_rows] = weights[last : last + n_rows]
        last += n_rows
    return placed


def _choose_count_type(total: int, least: type[np.unsignedinteger[Any]]) -> type[np.integer[Any]]:
    """Return the smallest integer type that can hold a total and is no smaller than `least`."""
    if total <= np.iinfo(least).max:
        return least
    return np.uint32 if total <= np.iinfo(np.uint32).max else np.int64
