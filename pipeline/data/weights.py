"""Weights of rows, as exact integers in units of a common weight."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import (
    AnnotatedChunk,
    PackedChunk,
    RowSource,
    annotate_chunk,
    start_reading,
)
from pipeline.errors import FitError

WeightKind = Literal["frequency", "sampling"]
"""`frequency`: a row stands for that many equal rows. `sampling`: its weight is proportional to the
number of units of the population that it represents."""

_UNITS_OF_LARGEST = 20  # bits of the largest weight, if some weight is no whole number
_SMALLEST_UNIT = -1074  # exponent of the smallest float above 0
_MAX_TOTAL = 1 << 53  # larger sums would not be exact as floats
ColumnPart = tuple[NDArray[np.int64], NDArray[Any]]
"""Original row numbers and values of a per-row column, (n_rows,) each."""


@dataclass(frozen=True)
class RowWeights:
    """The weights of all rows of a fit; `measure_weights` creates it.

    Attributes
    ----------
    column
        Per-row column that holds them.
    kind
        Their meaning.
    unit
        The value in the column that one unit stands for: weights are rounded to multiples of it.
    scale
        The weight of one unit in sums. Frequencies are used as they are; sampling weights are
        scaled to a mean of 1 per row, so that their size has no influence.
    n_rows
        Number of rows whose weight is above 0.
    total
        Sum of the values in the column.
    effective_rows
        (Σ w)² / Σ w², the number of rows with equal weights that would be as informative (L. Kish,
        "Survey Sampling", 1965).
    digest
        SHA-256 of the values.
    psu
        Per-row column of the primary sampling units, the clusters that were drawn as a whole; None
        if rows were drawn one by one.
    """

    column: str
    kind: WeightKind
    unit: float
    scale: float
    n_rows: int
    total: float
    effective_rows: float
    digest: str
    psu: str | None = None

    @property
    def key(self) -> str:
        """Tells sums with these weights apart from other sums over the same rows."""
        return f"{self.column} {self.kind} {self.unit!r} {self.scale!r}"

    def to_units(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Convert values of the column to units, (n_rows,)."""
        return np.rint(values.astype(np.float64) / self.unit).astype(np.int64)

    def describe(self) -> dict[str, Any]:
        """Describe the weights for a manifest."""
        return asdict(self)


def measure_weights(
    column: str, kind: WeightKind, read: Callable[[], Iterable[ColumnPart]]
) -> RowWeights:
    """Check the weights of all rows, and choose their unit.

    Whole numbers are used as they are. If some weight is not whole, the unit is a power of two, and
    rounding to it changes no weight by more than 2**-20 of the largest; weights that are still
    smaller may become 0.

    Parameters
    ----------
    column
        Name of the per-row column, for errors.
    kind
        Meaning of the weights.
    read
        Returns the rows and their weights, part by part; it is called twice.

    Raises
    ------
    FitError
        If a weight is missing, infinite, negative, or not whole although it is a frequency, or if
        all weights are 0.
    """
    largest, approximate_total, is_whole, digest = 0.0, 0.0, True, hashlib.sha256()
    for rows, values in read():
        _check_values(column, kind, rows, values)
        largest = max(largest, float(values.max(initial=0)))
        approximate_total += float(values.sum(dtype=np.float64))
        is_whole = is_whole and bool((values == np.rint(values)).all())
        digest.update(_to_bytes(values))
    if largest == 0:
        raise FitError(f"{{weight}}: all weights in {column} are 0. Choose another column.")
    exponent = max(math.frexp(largest)[1] - _UNITS_OF_LARGEST, _SMALLEST_UNIT)
    unit = 1.0 if is_whole else 2.0**exponent
    if approximate_total / unit > _MAX_TOTAL:
        raise FitError(
            f"{{weight}}: the weights in {column} add up to {approximate_total:.3g}, but at most "
            "2**53 can be summed exactly. Divide them by a constant."
        )
    n_rows, total, squares = 0, 0, 0.0
    for _, values in read():
        units = np.rint(values.astype(np.float64) / unit).astype(np.int64)
        n_rows += int(np.count_nonzero(units))
        total += int(units.sum())
        squares += float((units.astype(np.float64) ** 2).sum())
    scale = 1.0 if kind == "frequency" else n_rows / total
    effective = float(total) ** 2 / squares
    return RowWeights(
        column, kind, unit, scale, n_rows, total * unit, effective, digest.hexdigest()
    )


def count_clusters(column: str, read: Callable[[], Iterable[ColumnPart]]) -> int:
    """Check the clusters of all rows, given as integers or codes of texts, and count them.

    Raises
    ------
    FitError
        If a row has no cluster, the clusters are other numbers, or there is only one.
    """
    seen: NDArray[np.int64] = np.empty(0, np.int64)
    for rows, values in read():
        if values.dtype.kind not in "iu":
            raise FitError(
                f"{{psu}}: {column} contains numbers that are not whole, or missing. Choose a "
                "column of texts or whole numbers."
            )
        if (values < 0).any():
            row = rows[np.argmax(values < 0)] + 1
            raise FitError(f"{{psu}}: row {row} has no unit in {column}. Give every row one.")
        seen = np.union1d(seen, values)
    if len(seen) < 2:
        raise FitError(
            f"{{psu}}: all rows with a weight have the same unit in {column}. Leave it out."
        )
    return len(seen)


def digest_weights(parts: Iterable[ColumnPart]) -> str:
    """Return the digest of weights, part by part, which `RowWeights.digest` is."""
    digest = hashlib.sha256()
    for _, values in parts:
        digest.update(_to_bytes(values))
    return digest.hexdigest()


def _to_bytes(values: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values, np.float64).tobytes()


def _check_values(
    column: str, kind: WeightKind, rows: NDArray[np.int64], values: NDArray[Any]
) -> None:
    if values.dtype.kind not in "fiub":
        raise FitError(f"{{weight}}: {column} contains texts. Choose a column of numbers.")
    problems = {
        "missing; give every row a weight": np.isnan(values),
        "infinite; give every row a finite weight": np.isinf(values),
        "negative; give every row a weight of at least 0": values < 0,
    }
    if kind == "frequency":
        is_whole = values == np.rint(values)
        problems["not a whole number; use {weights=sampling} unless it counts rows"] = ~is_whole
    for problem, is_wrong in problems.items():
        if is_wrong.any():
            k = int(np.argmax(is_wrong))
            shown = "" if np.isnan(values[k]) else f" {values[k]:g}"
            raise FitError(
                f"{{weight}}: row {rows[k] + 1}: the weight{shown} in {column} is {problem}."
            )


def weigh_chunk(chunk: PackedChunk, weights: RowWeights, values: NDArray[Any]) -> AnnotatedChunk:
    """Return a chunk with the weights of its rows, given the values of their column, (n_rows,)."""
    if chunk.keep is not None:
        values = np.where(chunk.keep, values, 0)  # weights of other rows are not checked
    units = weights.to_units(values)
    keep = units > 0
    return replace(
        annotate_chunk(chunk),
        keep=None if keep.all() else keep,
        weights=units,
        weight_unit=weights.scale,
        has_sampling_weights=weights.kind == "sampling",
        clusters=None if weights.psu is None else chunk.columns[weights.psu].astype(np.int64),
    )


@dataclass(frozen=True)
class _WeightedReader:
    """Reads chunks with the weights of their rows, in any process."""

    read: Callable[[int], PackedChunk]
    weights: RowWeights

    def __call__(self, key: int) -> AnnotatedChunk:
        chunk = self.read(key)
        return weigh_chunk(chunk, self.weights, chunk.columns[self.weights.column])

    def read_ahead(self, keys: Iterable[int]) -> None:
        """Start to read the chunks that are needed next."""
        start_reading(self.read, keys)


def weigh_rows(rows: RowSource, weights: RowWeights) -> RowSource:
    """Return rows with weights; their reader must read the column of the weights."""
    return replace(rows, read=_WeightedReader(rows.read, weights))
