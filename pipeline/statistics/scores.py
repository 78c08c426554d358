"""Scores of rows by parameters that all segments share and by those of their own, and products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.statistics.by_segment import sum_by_segment

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
        """Give the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Give all arrays by name."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        values: dict[str, Any] = {n: a if a.ndim else a.item() for n, a in arrays.items()}
        return cls(**values)
