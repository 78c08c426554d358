"""NumPy arrays inside a zip archive, read as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

ReadRows = Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True)
class NpyHeader:
    """Shape, order and type of a stored array."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def read_member_headers(archive: ZipFile) -> dict[str, NpyHeader]:
    """Read the header of every array of an `.npz` archive, by array name."""
    headers = {}
    for member in archive.namelist():
        if member.endswith(".npy"):
            with archive.open(member) as stream:
                headers[member.removesuffix(".npy")] = read_header(stream)
    return headers


def read_header(stream: IO[bytes]) -> NpyHeader:
    """Read the header of a `.npy` file or member; the stream then stands at the values."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return NpyHeader(*read(stream))


def read_member(archive: ZipFile, name: str) -> NDArray[Any]:
    """Read a small array whole."""
    with archive.open(name + ".npy") as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


@contextmanager
def open_member_rows(archive: ZipFile, name: str) -> Iterator[ReadRows]:
    """Open an array for reading by consecutive runs of rows: `take(first, n_rows)`.

    A Fortran-ordered matrix has no rows to stream: it is unpacked to a temporary file.
    """
    with archive.open(name + ".npy") as stream:
        header = read_header(stream)
        if header.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects")
        if not header.fortran_order:
            yield lambda first, n_rows: _read_rows(stream, name, header, first, n_rows)
            return
    with TemporaryDirectory() as folder:
        path = archive.extract(name + ".npy", folder)
        array = np.load(path, mmap_mode="r")
        yield lambda first, n_rows: array[first : first + n_rows]


def _read_rows(
    stream: IO[bytes], name: str, header: NpyHeader, first: int, n_rows: int
) -> NDArray[Any]:
    """Read the next rows; the archive's checksum is checked after the last one."""
    shape = (n_rows, *header.shape[1:])
    n_bytes = int(np.prod(shape, dtype=np.int64)) * header.dtype.itemsize
    data = stream.read(n_bytes)
    is_last = first + n_rows == header.shape[0]
    if len(data) != n_bytes or (is_last and stream.read(1)):
        raise ValueError(f"array {name!r} is not as long as its header says")
    return np.frombuffer(data, header.dtype).reshape(shape)
