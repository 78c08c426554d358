"""Read text files, plain or gzip-compressed, in blocks of whole lines.

All readers get UTF-8: a file in another encoding is converted while it is read.
"""

from __future__ import annotations

import codecs
import gzip
import io
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.quoting import parse_float

TABLE_BLOCK_BYTES = 1 << 23
# A short number takes two bytes as text, but tens of bytes while it is processed.
NUMBER_BLOCK_BYTES = 1 << 21


# A mark of UTF-32 may begin as one of UTF-16 does.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_CONVERTED_CHARACTERS = 1 << 16


def check_encoding_name(name: str | None) -> None:
    """Raise `DataError` if Python does not know an encoding of texts by this name."""
    with suppress(LookupError, UnicodeError, ValueError):
        if name is None or isinstance("".encode(name), bytes):
            return
    raise DataError(
        f"{{encoding={name}}}: there is no such encoding. Use latin-1, cp1252, utf-16 or another "
        "one that Python knows."
    )


def open_text(path: str, encoding: str | None = None) -> BinaryIO:
    """Open a file for reading as UTF-8, decompressing it if its name ends in `.gz`.

    `encoding` is that of a file without a byte-order mark, by default UTF-8.
    """
    stream, encoding = _open_encoded(path, encoding)
    if encoding == "utf-8":
        return stream
    return io.BufferedReader(_Utf8Converter(path, stream, encoding))


def _open_encoded(path: str, encoding: str | None) -> tuple[BinaryIO, str]:
    """Open a file after its byte-order mark, and return its encoding."""
    stream = _open_file(path)
    try:
        start = stream.peek(4)[:4]
        mark = next((mark for mark in _BYTE_ORDER_MARKS if start.startswith(mark)), b"")
        stream.read(len(mark))
    except BaseException:
        stream.close()
        raise
    name = _BYTE_ORDER_MARKS.get(mark, encoding or "utf-8")
    return cast(BinaryIO, stream), codecs.lookup(name).name


def _open_file(path: str) -> Any:
    return gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb")


class _Utf8Converter(io.RawIOBase):
    """A file in another encoding, read as UTF-8."""

    def __init__(self, path: str, stream: BinaryIO, encoding: str) -> None:
        self._path, self._encoding, self._ready = path, encoding, b""
        self._text = io.TextIOWrapper(stream, encoding, newline="")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            try:
                self._ready = self._text.read(_CONVERTED_CHARACTERS).encode()
            except UnicodeError as error:
                check_encoding(self._path, self._encoding)
                raise error  # the file has changed
        part = self._ready[: len(buffer)]
        buffer[: len(part)], self._ready = part, self._ready[len(part) :]
        return len(part)

    def close(self) -> None:
        self._text.close()
        super().close()


def read_text(path: str) -> str:
    """Read a small file of UTF-8, or of UTF-16 with a byte-order mark."""
    with open_text(path) as stream:
        data = stream.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}: line {line} is not UTF-8 text. Save it as UTF-8.") from error


def check_block_encoding(path: str, encoding: str | None, block: bytes) -> None:
    """Raise the error of `check_encoding` if a block of the file is not UTF-8."""
    try:
        block.decode()
    except UnicodeDecodeError:
        check_encoding(path, encoding)


def check_encoding(path: str, encoding: str | None = None) -> None:
    """Raise `DataError` with the first line of a file that is not text of its encoding.

    This reads the file, so that it is for files that cannot be parsed.
    """
    stream, name = _open_encoded(path, encoding)
    with stream:
        decoder, line = codecs.getincrementaldecoder(name)(), 1
        while True:
            data = stream.read(NUMBER_BLOCK_BYTES)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                before = error.object[: error.start].decode(name, "replace")
                raise _make_encoding_error(path, name, line + before.count("\n"), error) from error
            line += text.count("\n")
            if not data:
                return


def warn_about_encoding(path: str, encoding: str) -> list[str]:
    """Warn about a file that begins as UTF-8 with letters beyond ASCII, in another encoding."""
    stream, name = _open_encoded(path, encoding)
    with stream:
        data = stream.read(TABLE_BLOCK_BYTES)
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return []
    has_mark = name != codecs.lookup(encoding).name
    if text.isascii() or has_mark or name == "utf-8":
        return []
    return [f"{path}: the file was read as {name}, but seems to be UTF-8: use {{encoding=utf-8}}"]


def _make_encoding_error(path: str, name: str, line: int, error: UnicodeDecodeError) -> DataError:
    wrong = error.object[error.start : error.end]
    place = f"{path}: line {line}: the bytes {wrong.hex(' ')} are not {name.upper()} text"
    if name != "utf-8":
        return DataError(f"{place}. Check the file, or name its encoding: {{encoding=NAME}}.")
    start = max(0, (error.start & ~1) - 1000)
    guess = _guess_encoding(error.object[start : error.start + 1000])
    return DataError(
        f"{place}. If the file was written in another encoding, name it, such as "
        f"{{encoding={guess}}}, or save the file as UTF-8."
    )


def _guess_encoding(data: bytes) -> str:
    """Guess the encoding of bytes that are not UTF-8, from an even place in a file on."""
    if 0 in data:
        return "utf-16-be" if data[::2].count(0) > data[1::2].count(0) else "utf-16-le"
    # These bytes are rare control characters in Latin-1, but letters and marks in Windows files.
    if any(0x80 <= byte < 0xA0 for byte in data):
        with suppress(UnicodeDecodeError):
            data.decode("cp1252")
            return "cp1252"
    return "latin-1"


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
            text = word.decode(errors="replace")
            try:
                is_number = parse_float(text) is not None and dtype(text) is not None
            except (ValueError, OverflowError):
                is_number = False
            if not is_number:
                shown = repr(word[:40].decode(errors="replace"))
                return DataError(f"{path}: line {number}: {shown} is not {noun}. Correct the line.")
    return DataError(f"{path}: a word after line {first_line} is not {noun}. Check the file.")
