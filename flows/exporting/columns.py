"""Convert named arrays to table columns, one per component, next to their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.artifacts.artifacts import Artifact

Array = NDArray[Any]
DimensionLabels = Mapping[str, Sequence[str]]
"""Names of the positions along a dimension; other dimensions are numbered from 1."""


class ArrayGroup(NamedTuple):
    """Arrays of the same dimensions whose columns stand next to each other.

    Attributes
    ----------
    dims
        All dimensions but the first, which are the rows of the table.
    arrays
        The arrays by name, (n_rows, …) each.
    """

    dims: tuple[str, ...]
    arrays: Mapping[str, Array]


def iter_columns(group: ArrayGroup, names: DimensionLabels) -> Iterator[tuple[str, Array]]:
    """Iterate over the named columns of a group, position by position."""
    shape = next(iter(group.arrays.values())).shape[1:]
    for at in np.ndindex(shape):
        if not _is_redundant(group.dims, at):
            labels = [_format_label(dim, k, names) for dim, k in zip(group.dims, at, strict=True)]
            for name, values in group.arrays.items():
                column = np.ascontiguousarray(values[(slice(None), *at)])
                yield "_".join((name, *labels)), column


def _is_redundant(dims: Sequence[str], at: Sequence[int]) -> bool:
    """Return whether a position is on or below the diagonal of a symmetric matrix.

    Diagonals of covariances are the variances, which have columns already; those of correlations
    are 1.
    """
    position = dict(zip(dims, at, strict=True))
    return any(k >= position.get(f"{dim}_j", k + 1) for dim, k in position.items())


def _format_label(dim: str, index: int, names: DimensionLabels) -> str:
    known = names.get(dim.removesuffix("_j"))
    return str(known[index]) if known is not None else str(index + 1)


def list_segment_names(artifact: Artifact) -> list[str]:
    """List the names of the segments with their own parameters, in the order of these."""
    names = artifact.manifest["segment_names"]
    indices = artifact["segments"].tolist() if "segments" in artifact else range(len(names))
    return [names[index] for index in indices]
