"""Statistics summed over rows: protocol, named sums, sums of scores, and joint statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock


class Statistics(Protocol):
    """Sufficient statistics of some rows.

    `merge` is associative, and commutative up to the rounding of floats; integer counts are exact.
    """

    label: ClassVar[str]
    """Name of the pass that collects these statistics, such as `pair counts`."""

    @property
    def n_rows(self) -> int:
        """Number of rows read."""

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows, which is their number if they have none."""

    @property
    def objective(self) -> float:
        """Objective summed over rows times their weights; 0.0 if the model has none."""

    def merge(self, other: Self) -> Self:
        """Add the statistics of further rows."""

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Join the statistics of all tiles of features; a single part is returned as it is."""

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return everything to store, by name."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore statistics from the arrays of `to_arrays`."""


class UntiledStatistics:
    """Base of dataclasses of statistics: stored field by field, not split into tiles of features.

    Fields are arrays, numbers, mappings of arrays, or other statistics. If the annotation names
    several kinds of statistics, the first that has all stored fields is restored.
    """

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Return the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all fields by name, as arrays; those at their default are left out.

        Entries of mappings, and fields of other statistics, follow the name and a hyphen.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            own = value.to_arrays() if isinstance(value, UntiledStatistics) else value
            if isinstance(own, Mapping):
                arrays |= {f"{f.name}-{name}": array for name, array in own.items()}
            elif not (own is None or (np.isscalar(own) and own == f.default)):
                arrays[f.name] = np.asarray(own)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore statistics from the arrays of `to_arrays`."""
        hints, declared = get_type_hints(cls), fields(cls)  # type: ignore[arg-type]
        values = {f.name: _restore_field(f, hints[f.name], arrays) for f in declared}
        return cls(**{name: value for name, value in values.items() if value is not MISSING})


def _restore_field(f: Field[Any], hint: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the value of a field; `MISSING` if it is at its default."""
    if f.name in arrays:
        value = arrays[f.name]
        return value.item() if hint in (int, float, bool) else value
    prefix = f"{f.name}-"
    own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
    names = {name.partition("-")[0] for name in own}
    for kind in get_args(hint) or (hint,):
        is_kind = isinstance(kind, type) and issubclass(kind, UntiledStatistics)
        if own and is_kind and names <= {part.name for part in fields(kind)}:
            return kind.from_arrays(own)
    return own if f.default is MISSING and f.default_factory is MISSING else MISSING


class CountStatistics(UntiledStatistics):
    """Base of statistics without an objective."""

    @property
    def objective(self) -> float:
        """Return 0: counts have no objective."""
        return 0.0


class MergedMeans(NamedTuple):
    """Means over two sets of rows together, and what their separate squares leave out.

    Attributes
    ----------
    weights, means
        Weights and weighted means of both sets together.
    difference
        Mean of the second set minus mean of the first.
    factor
        Σ w (x − x̄)(y − ȳ) over both sets is the sum over each, and `factor` times the product of
        the differences of x and of y.
    """

    weights: Array
    means: Array
    difference: Array
    factor: Array


def merge_means(
    weights: NDArray[Any], means: Array, other_weights: NDArray[Any], other_means: Array
) -> MergedMeans:
    """Merge means by the formula of Chan, Golub & LeVeque (1983), which loses no digits.

    All arrays have shapes that broadcast with each other; sets without rows have mean 0.
    """
    total = weights + other_weights
    share = np.divide(other_weights, total, out=np.zeros(total.shape), where=total > 0)
    with np.errstate(invalid="ignore"):  # infinite values; they are refused by their extremes
        difference = other_means - means
        return MergedMeans(total, means + share * difference, difference, weights * share)


def sum_by_segment(a: Any, b: Any, names: Sequence[str]) -> dict[str, Any]:
    """Add the named arrays of two statistics, whose rows belong to their `segments`."""
    segments = np.union1d(a.segments, b.segments)
    return {"segments": segments, **{name: _sum_array(segments, a, b, name) for name in names}}


def _sum_array(segments: Counts, a: Any, b: Any, name: str) -> NDArray[Any] | None:
    parts = [(s.segments, getattr(s, name)) for s in (a, b) if getattr(s, name) is not None]
    if not parts:
        return None
    if len(parts) == 2 and len(segments) == len(parts[0][0]) == len(parts[1][0]):
        total: NDArray[Any] = parts[0][1] + parts[1][1]
        return total
    total = np.zeros((len(segments), *parts[0][1].shape[1:]), parts[0][1].dtype)
    for part_segments, counts in parts:
        total[np.searchsorted(segments, part_segments)] += counts
    return total


def sum_weighted_rows(counts: Counts, place: Counts, times: Counts, n_places: int) -> Counts:
    """Add row r of the counts, multiplied by times[r], to row place[r] of the sum."""
    total = np.zeros((n_places, *counts.shape[1:]), np.int64)
    for row in np.flatnonzero(times):
        total[place[row]] += times[row] * counts[row]
    return total


@dataclass(frozen=True)
class Sums(UntiledStatistics):
    """Named arrays, summed over rows."""

    label: ClassVar[str] = "E-step"
    n_rows: int
    weight: float  # sum of the weights of the rows
    objective: float  # objective summed over rows times their weights, nats
    # The sums. Only sums with the same names and shapes can be merged.
    values: Mapping[str, NDArray[Any]]

    @classmethod
    def from_block(
        cls, block: BinaryBlock, objective: float, values: Mapping[str, NDArray[Any]]
    ) -> Self:
        """Return the sums over the rows of a block."""
        return cls(block.n_samples, block.weight, objective, values)

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        return type(self)(
            self.n_rows + other.n_rows,
            self.weight + other.weight,
            self.objective + other.objective,
            {name: value + other.values[name] for name, value in self.values.items()},
        )

    def multiply(self, factor: float) -> Self:
        """Return the sums over rows that are so many times as frequent."""
        values = {name: factor * value for name, value in self.values.items()}
        total = (factor * self.weight, factor * self.objective)
        return replace(self, weight=total[0], objective=total[1], values=values)


@dataclass(frozen=True)
class ClusteredSums(Sums):
    """Named arrays summed over rows, and scores summed over the rows of each cluster."""

    clusters: Counts  # indices of the clusters seen, sorted, (n_seen,)
    scores: Array  # (n_seen, n_parameters)

    @classmethod
    def from_sums(cls, sums: Sums, clusters: Counts, scores: Array) -> Self:
        """Add the scores of clusters to sums."""
        totals = (sums.n_rows, sums.weight, sums.objective, sums.values)
        return cls(*totals, clusters, scores)

    def sum_score_products(self) -> Array:
        """Return n / (n − 1) Σ g gᵀ over the scores g of all n clusters."""
        n = len(self.clusters)
        products: Array = n / (n - 1) * self.scores.T @ self.scores
        return products

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        clusters = np.union1d(self.clusters, other.clusters)
        scores = np.zeros((len(clusters), self.scores.shape[1]))
        for part in (self, other):
            scores[np.searchsorted(clusters, part.clusters)] += part.scores
        total = Sums(*self._sums).merge(Sums(*other._sums))
        return replace(self, **vars(total), clusters=clusters, scores=scores)

    @property
    def _sums(self) -> tuple[int, float, float, Mapping[str, NDArray[Any]]]:
        return self.n_rows, self.weight, self.objective, self.values


@dataclass(frozen=True)
class StepSums(Sums):
    """Sums over the gradient steps that tasks took."""

    label: ClassVar[str] = "steps"


_BY_SEGMENT = ("rows", "own_gradient", "own_information", "mixed_information")


@dataclass(frozen=True)
class ScoreSums(UntiledStatistics):
    """Sums of scores and of their products, which estimate the information.

    The score of a row is the derivative of its log-likelihood by the parameters. Some parameters
    are shared by all rows, others belong to one segment.

    Attributes
    ----------
    log_likelihood, error
        Log-likelihood and its estimated error, nats, summed over rows.
    variance
        Variance of the log-likelihood, nats², if random draws estimate it.
    n_unsettled
        Number of rows whose log-likelihood did not converge.
    gradient, information
        Scores by the shared parameters, (n_shared,), and their products, (n_shared, n_shared).
    segments, rows
        Index of each segment seen, sorted, and its number of rows, (n_seen,).
    own_gradient, own_information
        Scores by the parameters of each segment, (n_seen, n_own), and their products,
        (n_seen, n_own, n_own).
    mixed_information
        Products of scores by segment and shared parameters, (n_seen, n_own, n_shared).
    """

    label: ClassVar[str] = "scores"
    log_likelihood: float
    error: float
    variance: float
    n_unsettled: int
    gradient: Array
    information: Array
    segments: NDArray[np.int64]
    rows: NDArray[np.int64]
    own_gradient: Array
    own_information: Array
    mixed_information: Array

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.rows.sum())

    @property
    def weight(self) -> float:
        """Number of rows; models with these sums take no weights."""
        return float(self.n_rows)

    @property
    def objective(self) -> float:
        """Log-likelihood summed over rows, nats."""
        return self.log_likelihood

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        return type(self)(
            self.log_likelihood + other.log_likelihood,
            self.error + other.error,
            self.variance + other.variance,
            self.n_unsettled + other.n_unsettled,
            self.gradient + other.gradient,
            self.information + other.information,
            **sum_by_segment(self, other, _BY_SEGMENT),
        )

    def multiply(self, factor: float) -> Self:
        """Return the sums over rows that are so many times as frequent."""
        values = {name: factor * value for name, value in vars(self).items()}
        counts = {name: np.rint(values[name]).astype(np.int64) for name in ("n_unsettled", "rows")}
        own = {"segments": self.segments, "variance": factor**2 * self.variance}
        return replace(self, **{**values, **counts, **own})


@dataclass(frozen=True)
class JointStatistics:
    """Several statistics of the same rows, such as one for each start of a fit."""

    label: ClassVar[str] = "parts"
    parts: tuple[Statistics, ...]

    @property
    def n_rows(self) -> int:
        """Number of rows read."""
        return self.parts[0].n_rows

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return self.parts[0].weight

    @property
    def objective(self) -> float:
        """Best objective of all parts, summed over rows."""
        return max(part.objective for part in self.parts)

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        pairs = zip(self.parts, other.parts, strict=True)
        return type(self)(tuple(a.merge(b) for a, b in pairs))

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Join all tiles of features, part by part."""
        tiles_by_part = zip(*(joint.parts for joint in parts), strict=True)
        return cls(tuple(type(tiles[0]).stitch(tiles) for tiles in tiles_by_part))

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays, with the part's number and a hyphen before each name."""
        return {
            f"{k}-{name}": values
            for k, part in enumerate(self.parts)
            for name, values in part.to_arrays().items()
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Raise, as the arrays lack the type of the parts; use `pass_statistics_from_arrays`."""
        raise NotImplementedError


def pass_statistics_from_arrays(
    kind: type[Statistics], arrays: Mapping[str, NDArray[Any]]
) -> Statistics | JointStatistics:
    """Restore the statistics of a pass, of one start or several, from their arrays."""
    prefixes = {name.partition("-")[0] for name in arrays if name.partition("-")[0].isdigit()}
    if not prefixes:
        return kind.from_arrays(arrays)
    parts = [
        {n.removeprefix(f"{k}-"): a for n, a in arrays.items() if n.startswith(f"{k}-")}
        for k in sorted(prefixes, key=int)
    ]
    return JointStatistics(tuple(kind.from_arrays(part) for part in parts))
