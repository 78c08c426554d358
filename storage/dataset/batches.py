"""Batches of rows on their way into a dataset, and the bits that they consist of.

A batch is packed feature by feature, as chunks are: its bits are in little order, and padding bits
are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from storage.dataset.chunks import Bytes, pack_rows, transpose_packed


class DenseBatch(Protocol):
    """Rows with a byte per value."""

    @property
    def X(self) -> NDArray[np.uint8]:
        """Levels, counted from 0, (n_rows, n_features)."""

    @property
    def observed(self) -> NDArray[np.uint8] | None:
        """Mask of the same shape, 1 = observed; None if all are observed."""

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Per-row columns."""

    @property
    def numbers(self) -> NDArray[np.float32] | None:
        """Values of continuous features, (n_rows, n_continuous), NaN if missing; None if none."""


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one source, bit-packed.

    Attributes
    ----------
    n_rows
        Number of rows.
    levels
        The bits of the levels, which count from 0, from the lowest bit up, (n_bits, n_features,
        n_bytes): one bit if all values are 0 and 1. They are 0 where not observed.
    mask
        1 = observed, (n_features, n_bytes); None if all values are observed.
    columns
        Per-row columns by name, each (n_rows,): integers, `MISSING_INTEGER` where missing; floats,
        NaN where missing; or texts, empty where missing.
    numbers
        Values of the continuous features, (n_rows, n_continuous), NaN where missing; the levels are
        0 there. None if no feature is continuous.
    """

    n_rows: int
    levels: Bytes
    mask: Bytes | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    numbers: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return self.n_rows

    @property
    def X(self) -> NDArray[np.uint8]:
        """Unpack the levels, (n_rows, n_features)."""
        X: NDArray[Any] = unpack_features(self.levels[0], self.n_rows)
        for k in range(1, len(self.levels)):
            X |= unpack_features(self.levels[k], self.n_rows) << k
        return X

    @property
    def observed(self) -> NDArray[np.uint8] | None:
        """Unpack the mask, (n_rows, n_features); None if all values are observed."""
        return None if self.mask is None else unpack_features(self.mask, self.n_rows)


def pack_batch(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None = None,
    columns: Mapping[str, NDArray[Any]] | None = None,
    numbers: NDArray[np.float32] | None = None,
) -> RowBatch:
    """Pack rows with a byte per value; the parameters are as in `DenseBatch`."""
    levels, mask = pack_levels(X), None
    if observed is not None:
        mask = pack_features(observed)
        levels &= mask
    return RowBatch(len(X), levels, mask, columns or {}, numbers)


def pack_levels(X: NDArray[np.uint8], highest: int | None = None) -> Bytes:
    """Pack each bit of levels, as `pack_features` does: to (n_bits, n_features, n_bytes).

    `highest` is the highest level, if it is known.
    """
    highest = int(X.max(initial=0)) if highest is None else highest
    if highest <= 1:
        return pack_features(X)[None]
    return np.stack([pack_features(X >> k & 1) for k in range(highest.bit_length())])


def pack_features(X: NDArray[Any]) -> Bytes:
    """Pack a 0/1 matrix feature by feature: (n_rows, n_features) to (n_features, n_bytes).

    One feature, (n_rows,), becomes (n_bytes,).
    """
    if X.strides[0] <= X.strides[-1]:
        return np.packbits(X.T, axis=-1, bitorder="little")
    return transpose_packed(pack_rows(X), X.shape[1])


def unpack_features(bits: Bytes, n_rows: int) -> NDArray[np.uint8]:
    """Undo `pack_features`, in C order."""
    rows = transpose_packed(bits, n_rows)
    return np.unpackbits(rows, axis=1, count=len(bits), bitorder="little")


def slice_bits(bits: Bytes, start: int, stop: int) -> Bytes:
    """Return a range of bits of the last axis from bit 0 on; may share memory."""
    first, shift = divmod(start, 8)
    part = bits[..., first : -(-stop // 8)]
    if shift:
        shifted: NDArray[Any] = part >> shift
        shifted[..., :-1] |= part[..., 1:] << (8 - shift)
        part = shifted[..., : -(-(stop - start) // 8)]
    return clear_padding(part, stop - start)


def clear_padding(bits: Bytes, n_rows: int) -> Bytes:
    """Return bits that are 0 from this number on; may share memory."""
    if n_rows % 8:
        bits = bits.copy()
        bits[..., -1] &= (1 << n_rows % 8) - 1
    return bits


def make_full_mask(shape: tuple[int, ...], n_rows: int) -> Bytes:
    """Return a mask, (…, n_bytes), of cells that are all observed."""
    return clear_padding(np.full((*shape, -(-n_rows // 8)), 255, np.uint8), n_rows)


def concatenate_bits(parts: Sequence[Bytes], n_rows: Sequence[int]) -> Bytes:
    """Concatenate bits along the last axis, given the number of rows of each part."""
    joined = np.zeros((*parts[0].shape[:-1], -(-sum(n_rows) // 8)), np.uint8)
    start = 0
    for bits, n in zip(parts, n_rows, strict=True):
        first, shift = divmod(start, 8)
        if shift:
            joined[..., first : first + bits.shape[-1]] |= bits << shift
            rest = joined[..., first + 1 : first + 1 + bits.shape[-1]]
            rest |= bits[..., : rest.shape[-1]] >> (8 - shift)
        else:
            joined[..., first : first + bits.shape[-1]] = bits
        start += n
    return joined


def count_bits(bits: Bytes) -> int:
    """Count the ones."""
    return int(np.bitwise_count(bits).sum(dtype=np.int64))
