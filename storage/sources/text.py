"""Read text files, plain or gzip-compressed, in blocks of whole lines."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError

TABLE_BLOCK_BYTES = 1 << 23
# A short number takes two bytes as text, but tens of bytes while it is processed.
NUMBER_BLOCK_BYTES = 1 << 21


def open_text(path: str) -> BinaryIO:
    """Open a file for reading, decompressing it if its name ends in `.gz`."""
    if path.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def iter_line_blocks(stream: BinaryIO, n_bytes: int) -> Iterator[bytes]:
    """Yield blocks of whole lines, about `n_bytes` each; every block ends in a line break."""
    unfinished_line = b""
    while data := stream.read(n_bytes):
        end = data.rfind(b"\n") + 1
        if end:
            yield unfinished_line + data[:end]
            unfinished_line = data[end:]
        else:
            unfinished_line += data
    if unfinished_line:
        yield unfinished_line + b"\n"


def parse_numbers(
    path: str, block: bytes, first_line: int, dtype: type[np.int64] | type[np.float64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Parse numbers separated by white space in a block of whole lines.

    Returns all numbers, (n_numbers,), and the count of numbers per line, (n_lines,). Raises
    `DataError` if a word is not a number of this type; the message uses `path` and `first_line`,
    the number of lines before the block.
    """
    characters = np.frombuffer(block, np.uint8)
    word = characters > 32
    begins = word.copy()
    begins[1:] &= ~word[:-1]
    line_ends = np.flatnonzero(characters == 10)
    line_begins = np.concatenate([[0], line_ends[:-1] + 1])
    counts = np.add.reduceat(begins, line_begins, dtype=np.int64)
    # NumPy reads blank text as one zero.
    values = _parse_block(block, dtype) if counts.any() else np.empty(0, dtype)
    if values is None or len(values) != counts.sum():
        raise _make_not_a_number_error(path, block, first_line, dtype)
    return values, counts


def _parse_block(block: bytes, dtype: type[np.int64] | type[np.float64]) -> NDArray[Any] | None:
    """Return all numbers, or None if a word is not a number or is too large."""
    try:
        values: NDArray[Any] = np.fromstring(block, dtype=dtype, sep=" ")
    except ValueError:
        return None
    # NumPy reads an integer that does not fit as the largest one.
    too_large = dtype is np.int64 and (np.abs(values) == np.iinfo(np.int64).max).any()
    return None if too_large else values


def _make_not_a_number_error(
    path: str, block: bytes, first_line: int, dtype: type[np.int64] | type[np.float64]
) -> DataError:
    noun = "a whole number" if dtype is np.int64 else "a number"
    for number, line in enumerate(block.split(b"\n"), start=first_line + 1):
        for word in line.split():
            try:
                dtype(word.decode())
            except (ValueError, OverflowError):
                shown = repr(word[:40].decode(errors="replace"))
                return DataError(f"{path}: line {number}: {shown} is not {noun}. Correct the line.")
    return DataError(f"{path}: a word after line {first_line} is not {noun}. Check the file.")
