"""Sums of arrays over rows: what the E-step of most models leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray


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
        """Give the only part."""
        (part,) = parts
        return part

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Give all arrays by name."""
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
