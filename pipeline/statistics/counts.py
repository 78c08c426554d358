"""Counts of ones and joint ones, by segment: int64 and exact.

Arrays have one row for each segment that was seen, so a block costs its own segment only. For
cross-validation and the bootstrap the rows of a segment are dealt to groups, each counted like a
segment of its own with index segment · n_groups + group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, Tile
from pipeline.errors import FitError, FitWarning
from pipeline.numerics.bits import kernels
from pipeline.statistics.sums import sum_by_segment, sum_weighted_rows

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class FeatureCounts:
    """Rows, observed values and ones of every feature.

    Attributes
    ----------
    segments
        Indices of the segments seen, sorted, (n_seen,).
    rows
        Rows of each, (n_seen,).
    observed, ones
        Observed values and ones among them, (n_seen, n_features).
    """

    label: ClassVar[str] = "feature counts"
    segments: Counts
    rows: Counts
    observed: Counts
    ones: Counts

    @classmethod
    def from_block(cls, block: BinaryBlock) -> Self:
        """Count one block."""
        mask = block.observed_words
        ones = kernels.popcounts(block.words)
        observed = np.full_like(ones, block.n_samples) if mask is None else kernels.popcounts(mask)
        return cls(
            np.array([block.segment]), np.array([block.n_samples]), observed[None], ones[None]
        )

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.rows.sum())

    @property
    def objective(self) -> float:
        """Counts have none."""
        return 0.0

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        return replace(self, **sum_by_segment(self, other, ("rows", "observed", "ones")))

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Return the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        return cls(**arrays)


def pool_margins(first: FeatureCounts) -> tuple[Counts, Counts]:
    """Return the observed values and the ones of each feature in all segments, (n_features,) each.

    Raises
    ------
    FitError
        If a feature was never observed.
    """
    observed, ones = first.observed.sum(axis=0), first.ones.sum(axis=0)
    if (missing := np.flatnonzero(observed == 0)).size:
        raise FitError(
            "Expected observed values in every feature, got none in {features}. "
            "Leave these features out.",
            missing.tolist(),
        )
    return observed, ones


def make_constant_feature_warnings(
    observed: Counts, ones: Counts, consequence: str = "nothing else depends on them"
) -> tuple[FitWarning, ...]:
    """Warn about constant features, found in the margins of `pool_margins`."""
    constant = tuple(np.flatnonzero((ones == 0) | (ones == observed)).tolist())
    text = f"constant, so that {consequence}: {{features}}"
    return (FitWarning(text, constant),) if constant else ()


class PairTable(NamedTuple):
    """The 2x2 tables of a set of pairs (i, j), as broadcastable arrays.

    Attributes
    ----------
    n
        Rows with both observed.
    ones_i, ones_j, joint
        Rows among them with x_i = 1, with x_j = 1, with both.
    """

    n: NDArray[Any]
    ones_i: NDArray[Any]
    ones_j: NDArray[Any]
    joint: NDArray[Any]


@dataclass(frozen=True)
class PairCounts:
    """Joint ones of every pair of features; with missing values, pairwise-complete counts.

    Blocks without a mask enter `full_rows`, `full_ones` and `joint`; blocks with one enter
    `pair_rows`, `ones_left`, `ones_right` and `joint`, so a merge of both kinds stays a plain sum.

    Attributes
    ----------
    segments
        Indices of the segments seen, sorted, (n_seen,).
    rows
        Rows of each, (n_seen,).
    full_rows, full_ones
        Rows, and ones of each feature, in blocks without a mask: (n_seen,), (n_seen, n_features).
    joint
        Joint ones, (n_seen, n_left, n_right).
    pair_rows, ones_left, ones_right
        In blocks with a mask: rows with i and j observed, ones of i among them, ones of j among
        them; each like `joint`, or None where no block had a mask.
    tile
        The features of the last two axes; None means all.
    """

    label: ClassVar[str] = "pair counts"
    segments: Counts
    rows: Counts
    full_rows: Counts
    full_ones: Counts
    joint: Counts
    pair_rows: Counts | None = None
    ones_left: Counts | None = None
    ones_right: Counts | None = None
    tile: Tile | None = None

    @classmethod
    def from_block(cls, block: BinaryBlock, *, pooled: bool) -> Self:
        """Count the pairs of one block.

        `block.tile` says which; pooled are all segments counted as segment 0.
        """
        return cls._from_parts([replace(block, segment=0) if pooled else block])

    @classmethod
    def _from_parts(cls, parts: Sequence[BinaryBlock]) -> Self:
        """Count blocks of different segments, in rising order."""
        # Room for all is made once and filled, so that no other copy of them exists.
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
            **{name: np.zeros(shape, np.int64) for name in by_pair},
        )
        for at, part in enumerate(parts):
            counts._add_part(at, part)
        return counts

    def _add_part(self, at: int, block: BinaryBlock) -> None:
        """Add a block to one row of counts, in place."""
        words, mask = block.words, block.observed_words
        self.rows[at] += block.n_samples
        _add_joint_counts(words, words, block.tile, self.joint[at])
        if mask is None:
            self.full_rows[at] += block.n_samples
            self.full_ones[at] += kernels.popcounts(words)
        else:
            assert self.pair_rows is not None
            assert self.ones_left is not None
            assert self.ones_right is not None
            _add_joint_counts(mask, mask, block.tile, self.pair_rows[at])
            _add_joint_counts(words, mask, block.tile, self.ones_left[at])
            _add_joint_counts(mask, words, block.tile, self.ones_right[at])

    @classmethod
    def from_groups(cls, block: BinaryBlock, n_groups: int) -> Self:
        """Count the groups of one block, which `BinaryBlock.split_into_groups` makes.

        Parameters
        ----------
        block
            The rows; `block.tile` says which pairs.
        n_groups
            Number of groups.

        Returns
        -------
        PairCounts
            One row for each group that has rows, under the index segment · n_groups + group. A
            block without rows keeps its first group, so that its segment counts as seen.
        """
        return cls._from_parts(_split_into_groups(block, n_groups))

    def add_block(self, block: BinaryBlock, *, pooled: bool) -> Self:
        """Add a block, as `from_block` counts it: see `add_block_groups`."""
        return self._add_parts([replace(block, segment=0) if pooled else block])

    def add_block_groups(self, block: BinaryBlock, n_groups: int) -> Self:
        """Add the groups of a block, in place where their segments were seen before.

        For counts that only the caller holds: `merge` would make two further tables of all pairs.
        """
        return self._add_parts(_split_into_groups(block, n_groups))

    def _add_parts(self, parts: Sequence[BinaryBlock]) -> Self:
        segments = [part.segment for part in parts]
        has_room = parts[0].observed_words is None or self.pair_rows is not None
        if not has_room or not np.isin(segments, self.segments).all():
            return self.merge(self._from_parts(parts))
        for at, part in zip(np.searchsorted(self.segments, segments), parts, strict=True):
            self._add_part(int(at), part)
        return self

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.rows.sum())

    @property
    def objective(self) -> float:
        """Counts have none."""
        return 0.0

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.full_ones.shape[1])

    def merge(self, other: Self) -> Self:
        """Add further rows of the same tile."""
        names = ("rows", "full_rows", "full_ones", "joint", "pair_rows", "ones_left", "ones_right")
        return replace(self, **sum_by_segment(self, other, names))

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Join the tiles of the upper triangle to the full square."""
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
        )

    def margins(self) -> tuple[Counts, Counts]:
        """Return observed values and ones of every feature, (n_seen, n_features) each."""
        ones = np.diagonal(self.joint, axis1=1, axis2=2)
        observed = np.broadcast_to(self.full_rows[:, None], ones.shape)
        if self.pair_rows is not None:
            observed = observed + np.diagonal(self.pair_rows, axis1=1, axis2=2)
        return observed, ones

    def table(
        self, segment: int, left: slice = slice(None), right: slice = slice(None)
    ) -> PairTable:
        """Return the tables of pairs (i in left, j in right) of the segment at this place."""
        n, ones = self.full_rows[segment], self.full_ones[segment]
        pairs = (segment, left, right)
        ones_i, ones_j = ones[left, None], ones[None, right]
        if self.pair_rows is None or self.ones_left is None or self.ones_right is None:
            return PairTable(n, ones_i, ones_j, self.joint[pairs])
        return PairTable(
            n + self.pair_rows[pairs],
            ones_i + self.ones_left[pairs],
            ones_j + self.ones_right[pairs],
            self.joint[pairs],
        )

    def list_grouped_segments(self, n_groups: int) -> Counts:
        """Return the segments that these groups belong to, sorted, (n_segments_seen,)."""
        return np.unique(self.segments // n_groups)

    def sum_weighted_groups(self, n_groups: int, weights: Counts) -> Self:
        """Sum the groups of every segment, each with its weight.

        Parameters
        ----------
        n_groups
            What `from_groups` was given.
        weights
            Weight of each group, at least 0, (n_segments_seen, n_groups), one row for each of
            `list_grouped_segments`.

        Returns
        -------
        PairCounts
            One row for each of `list_grouped_segments`, even if all its weights are 0. With all
            weights 1 these are the counts of `from_block`.

        Raises
        ------
        FitError
            If the weights are negative or of another shape.
        """
        segments = self.list_grouped_segments(n_groups)
        expected = (len(segments), n_groups)
        if weights.shape != expected or weights.min(initial=0) < 0:
            raise FitError(
                f"Expected weights of at least 0 and of shape {expected}, got shape "
                f"{weights.shape} and a minimum of {weights.min(initial=0)}. "
                "Give every group of every segment seen one weight."
            )
        place = np.searchsorted(segments, self.segments // n_groups)
        times = weights[place, self.segments % n_groups]
        sums = {
            name: segments
            if name == "segments"
            else sum_weighted_rows(rows, place, times, len(segments))
            for name, rows in self._counts.items()
        }
        return type(self)(tile=self.tile, **sums)

    @property
    def _counts(self) -> dict[str, Counts]:
        names = (field.name for field in fields(self))
        return {name: a for name in names if isinstance(a := getattr(self, name), np.ndarray)}

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        tile = {} if self.tile is None else {"tile": np.array(self.tile, np.int64)}
        return {**self._counts, **tile}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        counts = {name: a for name, a in arrays.items() if name != "tile"}
        tile = Tile(*map(tuple, arrays["tile"].tolist())) if "tile" in arrays else None
        return cls(**counts, tile=tile)


def make_tiles(n_features: int, n_segments: int, budget: int) -> tuple[Tile | None, ...]:
    """Cut the pairs of features so that one task's counts stay within a budget.

    Parameters
    ----------
    n_features, n_segments
        Shape of the counts.
    budget
        Bytes a task may hold.

    Returns
    -------
    tuple of Tile or None
        None alone where one task can count all pairs; else the upper triangle of tiles.
    """
    # Four arrays of int64 with a mask, held twice while merging.
    side = max(1, int((budget / (8 * 4 * 2 * n_segments)) ** 0.5))
    if side >= n_features:
        return (None,)
    edges = [(a, min(a + side, n_features)) for a in range(0, n_features, side)]
    return tuple(Tile(left, right) for k, left in enumerate(edges) for right in edges[k:])


POOLED_KEY = "pooled"
"""What `Model.counted` calls the pairs of all segments as one."""


def _split_into_groups(block: BinaryBlock, n_groups: int) -> list[BinaryBlock]:
    """Deal rows to groups; those without rows are left out, but for the first where all are."""
    key = block.segment * n_groups
    dealt = [
        replace(part, segment=key + g) for g, part in enumerate(block.split_into_groups(n_groups))
    ]
    return [part for part in dealt if part.n_samples] or dealt[:1]


def _add_joint_counts(left: Any, right: Any, tile: Tile | None, counts: Counts) -> None:
    if tile is None:
        kernels.add_joint_counts(left, right, counts)
    elif left is right and tile.left == tile.right:
        words = left[slice(*tile.left)]
        kernels.add_joint_counts(words, words, counts)
    else:
        kernels.add_joint_counts(left[slice(*tile.left)], right[slice(*tile.right)], counts)


def _assemble_square(parts: Sequence[PairCounts], upper: str, lower: str) -> Counts:
    """Lay tiles into the square: `upper` where they lie, `lower` transposed across the diagonal."""
    n, first = parts[0].n_features, parts[0].joint
    square = np.zeros((len(first), n, n), np.int64)
    for part in parts:
        assert part.tile is not None
        left, right = slice(*part.tile.left), slice(*part.tile.right)
        square[:, right, left] = getattr(part, lower).transpose(0, 2, 1)
        square[:, left, right] = getattr(part, upper)
    return square
