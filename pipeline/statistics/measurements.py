"""Sums over rows of continuous features, alone and with the planes of other features.

Means and variances come from one pass: those of a block are exact, and blocks are merged by
`pipeline.statistics.sums.merge_means`, so that a large mean costs no digits. Later passes sum
standardized values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature, find_continuous
from pipeline.errors import LEAVE_OUT, FitError
from pipeline.numerics.gaussian.pair_tables import MAX_CORRELATION
from pipeline.numerics.spectra.linalg import leading_eigenvalues
from pipeline.statistics.correlations import (
    CorrelationEstimator,
    draw_independent_levels,
    draw_scores,
    mirror_upper_triangle,
)
from pipeline.statistics.counts import FeatureCounts, PairCounts, PairTable
from pipeline.statistics.sums import Sums, UntiledStatistics, merge_means

_ROWS_AT_ONCE = 4096
_LARGEST = float(np.finfo(np.float64).max)  # not ∞: counts are stored, and must be finite


def _make_empty() -> Array:
    return np.zeros(0)


@dataclass(frozen=True)
class MeasuredCounts(FeatureCounts):
    """Counts of features, and moments of continuous features, (n_continuous,) each.

    Attributes
    ----------
    number_weights
        Sum of the weights of the observed values.
    means, squares
        Mean, and sum of the squared deviations from it times the weights.
    minima, maxima
        Smallest and largest value; if none is observed, the largest float and its negative.
    """

    number_weights: Array = field(default_factory=_make_empty)
    means: Array = field(default_factory=_make_empty)
    squares: Array = field(default_factory=_make_empty)
    minima: Array = field(default_factory=_make_empty)
    maxima: Array = field(default_factory=_make_empty)

    @property
    def is_complete(self) -> bool:
        """Whether no value is missing, of a continuous feature neither."""
        has_numbers = self.number_weights >= self.weight * (1 - 1e-12)  # weights were rounded
        return super().is_complete and bool(has_numbers.all())

    @property
    def is_constant(self) -> NDArray[np.bool_]:
        """Whether all observed values of a continuous feature are equal, (n_continuous,)."""
        is_constant: NDArray[np.bool_] = self.minima == self.maxima
        return is_constant

    @classmethod
    def from_block(cls, block: BinaryBlock) -> Self:
        """Count one block."""
        assert block.numbers is not None
        x = block.numbers.astype(np.float64)
        weights = block.row_weights
        mask = ~np.isnan(x)
        own = mask * (np.ones(block.n_samples) if weights is None else weights)
        total = own.sum(axis=1)
        with np.errstate(invalid="ignore"):  # infinite values; they are refused by their extremes
            means = np.divide(
                (own * np.where(mask, x, 0.0)).sum(axis=1),
                total,
                out=np.zeros(len(x)),
                where=total > 0,
            )
            deviations = np.where(mask, x - means[:, None], 0.0)
            squares = (own * deviations**2).sum(axis=1)
        return replace(
            super().from_block(block),
            number_weights=total,
            means=means,
            squares=squares,
            minima=np.where(mask, x, _LARGEST).min(axis=1, initial=_LARGEST),
            maxima=np.where(mask, x, -_LARGEST).max(axis=1, initial=-_LARGEST),
        )

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        own, others = (self.number_weights, self.means), (other.number_weights, other.means)
        merged = merge_means(*own, *others)
        with np.errstate(invalid="ignore"):
            between = merged.factor * merged.difference**2
        return replace(
            super().merge(other),
            number_weights=merged.weights,
            means=merged.means,
            squares=self.squares + other.squares + between,
            minima=np.minimum(self.minima, other.minima),
            maxima=np.maximum(self.maxima, other.maxima),
        )


def check_numbers(
    counts: MeasuredCounts, features: Sequence[Feature], *, accept_constant: bool = False
) -> None:
    """Refuse continuous features without values, with infinite ones, or with a single one.

    `accept_constant` accepts features with a single value.
    """
    texts = {
        f"These features have no observed value: {{features}}. {LEAVE_OUT}.": (
            counts.number_weights == 0
        ),
        f"These features have infinite values: {{features}}. Make them missing. {LEAVE_OUT}.": ~(
            np.isfinite(counts.minima) & np.isfinite(counts.maxima)
        ),
        f"These features are constant: {{features}}. {LEAVE_OUT}.": counts.is_constant
        & (not accept_constant),
    }
    continuous = find_continuous(features)
    for text, is_bad in texts.items():
        if is_bad.any():
            places = np.flatnonzero(is_bad).tolist()
            raise FitError(text, [features[continuous[place]].name for place in places])


@dataclass(frozen=True)
class MixedStatistics(UntiledStatistics):
    """Sums of a pass over rows with continuous features.

    Attributes
    ----------
    sums
        Sums by name.
    pairs
        Counts of pairs of planes; None after the first pass.
    """

    label: ClassVar[str] = "correlations"
    sums: Sums
    pairs: PairCounts | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows read."""
        return self.sums.n_rows

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return self.sums.weight

    @property
    def objective(self) -> float:
        """Return 0: a pass maximizes the likelihood of each pair by itself."""
        return 0.0

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        pairs = None
        if self.pairs is not None and other.pairs is not None:
            pairs = self.pairs.merge(other.pairs)
        return replace(self, sums=self.sums.merge(other.sums), pairs=pairs)


def standardize_numbers(block: BinaryBlock, means: Array, scales: Array) -> Array:
    """Return (x − mean) / scale of the continuous features, NaN where missing.

    The result has the shape (n_continuous, n_samples).
    """
    assert block.numbers is not None
    standardized: Array = (block.numbers - means[:, None]) / scales[:, None]
    return standardized


def sum_moments(
    block: BinaryBlock,
    means: Array,
    scales: Array,
    left: slice = slice(None),
    right: slice = slice(None),
) -> Mapping[str, Array]:
    """Sum products of standardized continuous features with each other and with planes.

    Parameters
    ----------
    block, means, scales
        The rows, and the moments by which their continuous features are standardized.
    left, right
        The continuous features to take, n_left and n_right.

    Returns
    -------
    mapping
        Sums over the rows where both features are observed: `rows`, `values` and `squares` of the
        left, continuous feature, (n_left, n_right + n_planes); `products`, of the left feature with
        the right one, or with the bit of the right plane, of the same shape; and `ones`, of the
        bits of the planes, (n_left, n_planes).
    """
    z = standardize_numbers(block, means, scales).T
    weights, bits, mask = block.row_weights, block.unpack_values(), block.unpack_mask()
    n_left, n_right, n_planes = len(means[left]), len(means[right]), bits.shape[1]
    shape, names = (n_left, n_right + n_planes), ("rows", "values", "squares", "products")
    sums = {name: np.zeros(shape) for name in names}
    sums["ones"] = np.zeros((n_left, n_planes))
    for start in range(0, len(z), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        observed = ~np.isnan(z[rows])
        own = observed[:, left].astype(np.float64)
        if weights is not None:
            own *= weights[rows, None]
        values = np.where(observed, z[rows], 0.0)
        ones = bits[rows].astype(np.float64)
        both = np.ones_like(ones) if mask is None else mask[rows].astype(np.float64)
        both = np.hstack([observed[:, right].astype(np.float64), both])
        weighted = own * values[:, left]
        is_complete = bool(both.all())
        factors = {"rows": own, "values": weighted, "squares": weighted * values[:, left]}
        for name, factor in factors.items():
            sums[name] += factor.sum(axis=0)[:, None] if is_complete else factor.T @ both
        sums["products"] += weighted.T @ np.hstack([values[:, right], ones])
        sums["ones"] += own.T @ ones
    return sums


class LevelSteps(NamedTuple):
    """How the mean of a latent normal depends on the planes of its feature, (n_planes,) each.

    Attributes
    ----------
    weights
        A row that reaches the plane before plane c, and then plane c or not, moves the mean of the
        latent normal by d. The weight is the standard deviation of this step over all rows.
    variances
        Variance of the latent's mean within levels: the sum of the squared weights of the feature.
    """

    weights: Array
    variances: Array


def describe_level_steps(thresholds: Array, first_planes: Counts) -> LevelSteps:
    """Describe the planes of features with these thresholds, (n_planes,)."""
    n_planes = np.diff(first_planes)
    is_first = np.zeros(len(thresholds), np.bool_)
    is_first[first_planes[:-1]] = True
    reached, density = ndtr(-thresholds), np.exp(-0.5 * thresholds**2) / np.sqrt(2 * np.pi)
    reached_before = np.where(is_first, 1.0, np.roll(reached, 1))
    density_before = np.where(is_first, 0.0, np.roll(density, 1))
    stayed = reached_before - reached
    # Means among the rows that reach plane c, and among those that stay below it.
    is_varying = (reached > 0) & (stayed > 0)
    step = np.divide(density, reached, out=np.zeros_like(density), where=is_varying)
    step -= np.divide(
        density_before - density, stayed, out=np.zeros_like(density), where=is_varying
    )
    weights = step * np.sqrt(reached * stayed / np.maximum(reached_before, 1e-300))
    variances = np.add.reduceat(weights**2, first_planes[:-1])
    return LevelSteps(weights, np.repeat(variances, n_planes))


def draw_mixed_null_spectrum(
    estimate: CorrelationEstimator,
    margins: PairTable,
    first_planes: Counts,
    steps: LevelSteps,
    rows: Array,
    n_leading: int,
    seed: int,
) -> Array:
    """Compute leading eigenvalues for independent features, some of them continuous.

    Pairs of planes are drawn as by `draw_null_spectra`. If features are independent, a polyserial
    correlation is nearly the mean product of the continuous feature with the latent's mean within
    levels, over the variance of this mean; its score is a sum of scores of planes.

    Parameters
    ----------
    estimate, margins, first_planes
        As for `draw_null_spectra`.
    steps
        Description of the planes.
    rows
        Rows where both features are observed, of continuous features with all continuous ones and
        then with those with levels, (n_continuous, n_features).
    n_leading, seed
        Number of eigenvalues, and seed of the draw.
    """
    rng = np.random.default_rng(seed)
    n, firsts, n_planes = len(rows), first_planes[:-1], int(first_planes[-1])
    n_features = n + len(firsts)
    all_rows = np.zeros((n_features, n_features), np.int64)
    all_rows[:n], all_rows[:, :n] = np.rint(rows), np.rint(rows.T)
    own = np.asarray(margins.n)
    all_rows[n:, n:] = own if own.ndim == 0 else own[np.ix_(firsts, firsts)]
    owners = n + np.repeat(np.arange(len(firsts)), np.diff(first_planes))
    scores = draw_scores(all_rows, np.concatenate([owners, np.arange(n)]), rng)
    correlation = np.eye(n_features)
    levels, status = estimate(
        draw_independent_levels(margins, first_planes, scores[:n_planes, :n_planes])
    )
    mirror_upper_triangle(levels, status)
    correlation[n:, n:] = levels
    root = np.sqrt(np.maximum(rows, 1.0))
    pearson = scores[n_planes:, n_planes:] / root[:, :n]
    np.fill_diagonal(pearson, 1.0)
    correlation[:n, :n] = np.clip(pearson, -1.0, 1.0)
    share = np.divide(
        steps.weights, steps.variances, out=np.zeros(n_planes), where=steps.variances > 0
    )
    polyserial = np.add.reduceat(scores[n_planes:, :n_planes] * share, firsts, axis=1) / root[:, n:]
    correlation[:n, n:] = np.clip(polyserial, -MAX_CORRELATION, MAX_CORRELATION)
    correlation[n:, :n] = correlation[:n, n:].T
    return leading_eigenvalues(correlation, n_leading)
