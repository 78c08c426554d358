"""Sums of arrays over rows: what the E-step of most models leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Statistics(Protocol):
    """Sufficient statistics of some rows.

    `merge` is associative, and commutative up to the rounding of floats; integer counts are exact.
    """

    label: ClassVar[str]
    """What the pass that collects it is called, such as `pair counts`."""

    @property
    def n_samples(self) -> int:
        """Number of rows summed."""

    @property
    def objective(self) -> float:
        """Objective summed over rows, maximised; 0.0 when the model has none."""

    def merge(self, other: Self) -> Self:
        """Add the statistics of further rows."""

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Join the statistics of all tiles of features; one part is returned as it is."""

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Everything to store, by name."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""


Counts = NDArray[np.int64]


def sum_by_segment(a: Any, b: Any, names: Sequence[str]) -> dict[str, Any]:
    """Sum the named arrays of two statistics, a row for each of their `segments`, by segment."""
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
    for seen, counts in parts:
        total[np.searchsorted(segments, seen)] += counts
    return total


def sum_weighted_rows(counts: Counts, place: Counts, times: Counts, n_places: int) -> Counts:
    """Add row r of the counts, times[r] times, to row place[r] of the sum."""
    total = np.zeros((n_places, *counts.shape[1:]), np.int64)
    for row in np.flatnonzero(times):
        total[place[row]] += times[row] * counts[row]
    return total


@dataclass(frozen=True)
class Sums:
    """Named arrays, summed over rows.

    Attributes
    ----------
    n_samples
        Number of rows.
    objective
        Objective summed over rows, nats.
    values
        The sums; those that are merged have the same names and shapes.
    """

    label: ClassVar[str] = "E-step"
    n_samples: int
    objective: float
    values: Mapping[str, NDArray[Any]]

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        return type(self)(
            self.n_samples + other.n_samples,
            self.objective + other.objective,
            {name: value + other.values[name] for name, value in self.values.items()},
        )

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Return the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        scalars = {"n_samples": np.array(self.n_samples), "objective": np.array(self.objective)}
        return {**scalars, **{f"sum_{name}": value for name, value in self.values.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        sums = {name: array for name, array in arrays.items() if name.startswith("sum_")}
        return cls(
            int(arrays["n_samples"]),
            float(arrays["objective"]),
            {name.removeprefix("sum_"): array for name, array in sums.items()},
        )


@dataclass(frozen=True)
class StepSums(Sums):
    """What tasks give of the steps that they took."""

    label: ClassVar[str] = "steps"


Array = NDArray[np.float64]

_BY_SEGMENT = ("rows", "own_gradient", "own_information", "mixed_information")


@dataclass(frozen=True)
class ScoreSums:
    """The score of a row is the derivative of its log-likelihood; products estimate information.

    Attributes
    ----------
    log_likelihood, error
        Nats, summed over rows: the log-likelihood, and what it may be off by.
    variance
        Of the log-likelihood, nats², where it is found by random draws.
    n_unsettled
        Rows whose log-likelihood did not come to rest.
    gradient, information
        Sums of scores, (n_shared,), and of their products, (n_shared, n_shared).
    segments, rows
        Index of each segment seen, sorted, and its rows, (n_seen,).
    own_gradient, own_information
        The same by the parameters of a segment, (n_seen, n_own) and (n_seen, n_own, n_own).
    mixed_information
        Products of the two, (n_seen, n_own, n_shared).
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
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.rows.sum())

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

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Return the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        values: dict[str, Any] = {n: a if a.ndim else a.item() for n, a in arrays.items()}
        return cls(**values)
