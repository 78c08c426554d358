"""What a pass over rows leaves: small, mergeable, independent of the number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

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
