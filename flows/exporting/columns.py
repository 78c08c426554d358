"""Named arrays as columns of a table: one a component, what is known of its error beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.artifacts.artifacts import Artifact

Array = NDArray[Any]
DimensionLabels = Mapping[str, Sequence[str]]
"""What the places along a dimension are called; those of others are counted from 1."""


class ArrayGroup(NamedTuple):
    """Arrays of the same dimensions that belong beside each other.

    Attributes
    ----------
    dims
        All dimensions but the first, that of the rows of the table.
    arrays
        By name, each (n_rows, …).
    """

    dims: tuple[str, ...]
    arrays: Mapping[str, Array]


def iter_columns(quantity: ArrayGroup, names: DimensionLabels) -> Iterator[tuple[str, Array]]:
    """Give the columns of a quantity, of which those of one place stand side by side."""
    shape = next(iter(quantity.arrays.values())).shape[1:]
    for at in np.ndindex(shape):
        if not _is_redundant(quantity.dims, at):
            labels = [
                _format_label(dim, k, names) for dim, k in zip(quantity.dims, at, strict=True)
            ]
            for name, values in quantity.arrays.items():
                column = np.ascontiguousarray(values[(slice(None), *at)])
                yield "_".join((name, *labels)), column


def _is_redundant(dims: Sequence[str], at: Sequence[int]) -> bool:
    """Tell whether a place is on or below the diagonal of a symmetric matrix.

    The diagonal of covariances is the variances, and that of correlations 1.
    """
    place = dict(zip(dims, at, strict=True))
    return any(k >= place.get(f"{dim}_j", k + 1) for dim, k in place.items())


def _format_label(dim: str, index: int, names: DimensionLabels) -> str:
    known = names.get(dim.removesuffix("_j"))
    return str(known[index]) if known is not None else str(index + 1)


def list_segment_names(artifact: Artifact) -> list[str]:
    """Name the segments that have parameters of their own, in the order of these."""
    names = artifact.manifest["segment_names"]
    indices = artifact["segments"].tolist() if "segments" in artifact else range(len(names))
    return [names[index] for index in indices]
