"""Statistics of several starts, summed in the same pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from pipeline.statistics.sums import Statistics


@dataclass(frozen=True)
class MultiStartStatistics:
    """One part for each start, all of the same rows."""

    label: ClassVar[str] = "starts"
    parts: tuple[Statistics, ...]

    @property
    def n_samples(self) -> int:
        """Number of rows summed."""
        return self.parts[0].n_samples

    @property
    def objective(self) -> float:
        """Best objective of all starts, summed over rows."""
        return max(part.objective for part in self.parts)

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        pairs = zip(self.parts, other.parts, strict=True)
        return type(self)(tuple(a.merge(b) for a, b in pairs))

    @classmethod
    def stitch(cls, parts: Sequence[Self]) -> Self:
        """Join all tiles of features, start by start."""
        by_start = zip(*(part.parts for part in parts), strict=True)
        return cls(tuple(type(tiles[0]).stitch(tiles) for tiles in by_start))

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return all arrays by the number of the start and their name."""
        named = enumerate(part.to_arrays() for part in self.parts)
        return {f"{k}-{name}": values for k, arrays in named for name, values in arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Raise: the arrays do not say the type of the parts; use `pass_statistics_from_arrays`."""
        raise NotImplementedError


def pass_statistics_from_arrays(
    kind: type[Statistics], arrays: Mapping[str, NDArray[Any]]
) -> Statistics | MultiStartStatistics:
    """Undo `arrays` of the statistics of a pass, whether it was made with one start or several."""
    prefixes = {name.partition("-")[0] for name in arrays if name.partition("-")[0].isdigit()}
    if not prefixes:
        return kind.from_arrays(arrays)
    parts = [
        {n.removeprefix(f"{k}-"): a for n, a in arrays.items() if n.startswith(f"{k}-")}
        for k in sorted(prefixes, key=int)
    ]
    return MultiStartStatistics(tuple(kind.from_arrays(part) for part in parts))
