"""Store equal rows once, with the number of times that they occur."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.dataset.feature_levels import BINARY_LEVELS

FREQUENCY = "frequency"
"""Per-row column with the number of equal rows."""
_ROWS_PER_BATCH = 1 << 14

LabelledBatch = tuple["Batch", NDArray[Any] | None]
"""Rows, and the names of their segments, (n_rows,), or None if there is only one."""


class Batch(NamedTuple):
    """Rows to write; see `storage.dataset.batches.DenseBatch`."""

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    columns: Mapping[str, NDArray[Any]]
    numbers: None = None


@dataclass
class CollapsedRows:
    """Distinct rows in the order of their first appearance.

    Rows are equal if they have the same values, missing values, segment and per-row columns. Memory
    grows with the number of distinct rows only. `n_level_bits` is the number of bits that the
    highest level needs, counted from 0: 1 if all features are binary.
    """

    n_level_bits: int = 1
    _n_features: int = 0
    _has_segments: bool = False
    _dtypes: dict[str, Any] = field(default_factory=dict)
    _counts: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, batch: Any, segments: NDArray[Any] | None) -> None:
        """Add rows, with the names of their segments."""
        self._n_features, self._has_segments = batch.X.shape[1], segments is not None
        observed = np.ones_like(batch.X) if batch.observed is None else batch.observed
        levels = batch.X * observed
        level_bits = (levels >> k & 1 for k in range(self.n_level_bits))
        bits = np.packbits(np.hstack([*level_bits, observed]), axis=1)
        labels = [*batch.columns.values(), *([] if segments is None else [segments])]
        for name, values in batch.columns.items():
            before = self._dtypes.get(name, values.dtype)
            self._dtypes[name] = np.promote_types(before, values.dtype)
        codes = [_encode(values) for values in labels]
        keys = np.hstack([bits, *codes])
        _, firsts, counts = np.unique(keys, axis=0, return_index=True, return_counts=True)
        order = np.argsort(firsts)
        for first, count in zip(firsts[order].tolist(), counts[order].tolist(), strict=True):
            texts = tuple(_hashable(values[first]) for values in labels)
            key = (bits[first].tobytes(), *texts)
            self._counts[key] = self._counts.get(key, 0) + count

    def iter_batches(self) -> Iterator[LabelledBatch]:
        """Yield the distinct rows, with their frequencies as a per-row column."""
        keys, frequencies = [*self._counts], np.array([*self._counts.values()], np.int64)
        n_bits, names = self.n_level_bits, [*self._dtypes]
        n_columns = (n_bits + 1) * self._n_features
        for start in range(0, len(keys), _ROWS_PER_BATCH):
            part = keys[start : start + _ROWS_PER_BATCH]
            packed = np.frombuffer(b"".join(key[0] for key in part), np.uint8)
            bits = np.unpackbits(packed.reshape(len(part), -1), axis=1, count=n_columns)
            X, *higher_bits, observed = np.split(bits, n_bits + 1, axis=1)
            for k, level_bits in enumerate(higher_bits, start=1):
                X |= level_bits << k
            columns = {
                name: _restore([key[1 + k] for key in part], self._dtypes[name])
                for k, name in enumerate(names)
            }
            columns[FREQUENCY] = frequencies[start : start + _ROWS_PER_BATCH]
            segments = np.array([key[-1] for key in part]) if self._has_segments else None
            yield Batch(X, observed, columns), segments


def collapse_rows(
    batches: Iterable[tuple[Any, NDArray[Any] | None]],
    feature_levels: Mapping[str, tuple[str, ...]],
) -> CollapsedRows:
    """Find the distinct rows of batches, each with the names of its segments.

    `feature_levels` has the levels of the features that are not plain 0 and 1.
    """
    n_levels = max(map(len, feature_levels.values()), default=len(BINARY_LEVELS))
    distinct = CollapsedRows((n_levels - 1).bit_length())
    for batch, segments in batches:
        if len(batch.X):
            distinct.add(batch, segments)
    return distinct


def _encode(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return codes that are equal for equal values, as bytes, (n_rows, 8)."""
    if values.dtype.kind in "biuf":
        codes = np.unique(values, return_inverse=True)[1].astype(np.int64)
    else:
        known: dict[Any, int] = {}
        codes = np.array([known.setdefault(value, len(known)) for value in values], np.int64)
    return codes.view(np.uint8).reshape(len(values), 8)


def _hashable(value: Any) -> Any:
    """Return a value that is equal to itself: None for NaN."""
    scalar = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(scalar, float) and np.isnan(scalar) else scalar


def _restore(values: list[Any], dtype: Any) -> NDArray[Any]:
    if dtype.kind == "f":
        return np.array([np.nan if value is None else value for value in values], dtype)
    return np.array(values, dtype)
