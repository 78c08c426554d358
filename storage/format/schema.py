"""The arrays of the on-disk format: names, dimensions, types, meanings and permitted codecs."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import zarr
from numcodecs import Zstd
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core import array_spec
from zarr.core.buffer import Buffer

from storage.errors import DataError
from storage.stores.locations import DATASET_FORMAT, AnyPath, checksum
from storage.stores.object_path import ObjectPath
from storage.stores.object_store import translate_store_errors

SAFE_CODECS = frozenset(
    {
        *("bytes", "transpose", "sharding_indexed", "endian"),
        *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd", "pcodec", "zfpy"),
        *("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"),
        *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"),
    }
)
"""Codecs of numbers that only compute."""


def check_codecs(path: str, metadata: Mapping[str, Any], permitted: Set[str]) -> None:
    """Refuse an array with other codecs, before any value is read.

    Some codecs, such as pickle, run code that the author of the array chose. `metadata` are the
    array's Zarr metadata, of version 2 or 3. Raises `DataError` if a codec is not permitted.
    """
    for name in _iter_codec_names(metadata):
        if name not in permitted:
            raise DataError(
                f"{path}: the codec {name!r} may run code chosen by the author of the array. "
                "Write the array with another codec."
            )


def _iter_codec_names(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the codecs in Zarr metadata, including those nested in others."""
    listed = [part.get(name) for name in ("codecs", "index_codecs", "filters")]
    flat = [codec for codecs in listed for codec in codecs or ()]
    for codec in filter(None, (*flat, part.get("compressor"))):
        if isinstance(codec, str):
            yield codec
            continue
        yield str(codec.get("name", codec.get("id"))).removeprefix("numcodecs.")
        yield from _iter_codec_names(codec.get("configuration") or {})


_ZSTD_LEVEL = 1
_MIN_RAW_BYTES, _MAX_RATIO, _RAW_BLOCK_BYTES = 1 << 16, 0.85, 1 << 17
"""Chunks this large are stored as they are if compression leaves more than a share of them."""
ARTIFACT_FORMAT = "latentbits-artifact"
CODES_FORMAT = "latentbits-codes"
FORMAT_VERSION = 1
DATASET_VERSION = 2
LEVELS_VERSION = 3
NOMINAL_VERSION = 4
"""Version of datasets with features that are not plain 0 and 1; the others stay readable by older
versions of this package."""
REMEDIES = {
    DATASET_FORMAT: "Ingest the dataset again.",
    ARTIFACT_FORMAT: "Fit again.",
    CODES_FORMAT: "Run the command that wrote them again.",
}
"""Advice about damaged or outdated content."""
_MAX_NAME_LENGTH = 200
_OWN_CODECS = ("bytes", "zstd", "crc32c")
_CRC32C_BYTES = 4
MIN_CHUNK_BYTES = 1 << 20
"""Smaller chunks are not worth an object of their own."""


@dataclass(frozen=True)
class ArraySpec:
    """An array of the on-disk format."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    doc: str
    fill_value: int = 0


BITS = ArraySpec(
    "bits",
    ("feature", "byte"),
    "uint8",
    "Values, little bit order: slot s is bit s % 8 of byte s // 8. "
    "0 in padding slots and where no value was observed.",
)
OBSERVED = ArraySpec(
    "observed",
    ("feature", "byte"),
    "uint8",
    "1 = observed. A chunk without missing values is not stored and reads as 1.",
    fill_value=255,
)
ORDER = ArraySpec(
    "order",
    ("slot",),
    "int32",
    "Row within the chunk's arrival order, -1 = padding. Not stored for a chunk of one block.",
    fill_value=-1,
)
CHUNKS = ArraySpec(
    "chunks", ("chunk", "field"), "int64", "first_row, n_rows, n_words of each chunk of `bits`."
)
BLOCKS = ArraySpec(
    "blocks",
    ("block", "field"),
    "int64",
    "chunk, segment, first_word (within the chunk, 64 slots each), n_rows of each block.",
)
FEATURES = ArraySpec(
    "features",
    ("feature", "field"),
    "int64",
    "First plane (row of `bits`), number of planes, and kind (0 binary, 1 ordinal, 2 continuous, "
    "3 nominal) of each feature. Plane c of a feature is 1 if the value is at least level c + 1, "
    "counted from 0. Written unless all features are 0 and 1.",
)
ONES = ArraySpec("ones", ("chunk", "feature"), "int64", "Number of ones per chunk and feature.")


def name_planes(spec: ArraySpec) -> ArraySpec:
    """Return the array `bits` or `ones` for features that have several planes."""
    dims = tuple("plane" if dim == "feature" else dim for dim in spec.dims)
    return replace(spec, dims=dims, doc=spec.doc.replace("feature", "plane"))


CHECKSUMS = ArraySpec(
    "checksums",
    ("chunk", "array"),
    "int64",
    "CRC32C of the decoded chunk of each array in the manifest's `stored` list, -1 = not stored.",
    fill_value=-1,
)
COLUMN_DTYPES = {"int": "int64", "nullable-int": "int64", "float": "float64", "category": "int32"}
MISSING_INTEGER = -(2**63)
"""Stands for a missing value in a column of the kind `nullable-int`."""
MAX_EXACT_INTEGER = 2**53
"""Up to here, floats are as exact as integers: columns with missing values are read as floats."""


def make_column_spec(name: str, kind: str) -> ArraySpec:
    """Return the array of one per-row column, in slot order."""
    missing = f"{MISSING_INTEGER} where missing, " * (COLUMN_DTYPES[kind] == "int64")
    doc = f"Per-row column {name!r} ({kind}), in slot order; {missing}0 in padding slots."
    return ArraySpec(format_array_path(f"columns/{name}"), ("slot",), COLUMN_DTYPES[kind], doc)


def make_values_spec(name: str) -> ArraySpec:
    """Return the array of one continuous feature, in slot order."""
    doc = f"Continuous feature {name!r}, in slot order; NaN where missing, 0 in padding slots."
    return ArraySpec(format_array_path(f"values/{name}"), ("slot",), "float32", doc)


def make_levels_spec(name: str) -> ArraySpec:
    """Return the array of the texts that the codes of one per-row column stand for."""
    doc = f"Texts of per-row column {name!r}: code k is line k, a JSON string in ASCII."
    return ArraySpec(format_array_path(f"levels/{name}"), ("byte",), "uint8", doc)


def format_array_path(name: str) -> str:
    """Return the Zarr path of an array; the name of a column may contain any character."""
    folder, _, column = name.partition("/")
    if not column:
        return name
    safe = quote(column, safe=" ").replace(".", "%2E")
    if len(safe) > _MAX_NAME_LENGTH:
        safe = hashlib.sha256(safe.encode()).hexdigest()
    return f"{folder}/{safe}"


def list_stored_arrays(columns: Iterable[str], continuous: Iterable[str]) -> list[str]:
    """Return the names of the arrays of chunks, given per-row columns and continuous features."""
    rows = [*(f"columns/{name}" for name in columns), *(f"values/{name}" for name in continuous)]
    return [BITS.name, OBSERVED.name, ORDER.name, *rows]


class FastZstdCodec(ZstdCodec):
    """Zstandard that stores chunks as they are if they would hardly become smaller.

    They are read several times as fast. Every reader of Zstandard can read them: it has blocks of
    uncompressed bytes (RFC 8878, section 3.1.1.2.2).
    """

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: array_spec.ArraySpec) -> Buffer | None:
        content = _compress(chunk_bytes.as_numpy_array().data.cast("B"), self.level)
        return chunk_spec.prototype.buffer.from_bytes(content)


def _compress(content: memoryview, level: int = _ZSTD_LEVEL) -> bytes:
    compressed: bytes = Zstd(level=level).encode(content)
    if len(content) < _MIN_RAW_BYTES or len(compressed) <= _MAX_RATIO * len(content):
        return compressed
    return _write_raw_frame(content)


def _write_raw_frame(content: memoryview) -> bytes:
    """Write a Zstandard frame of uncompressed blocks; its header has the size in four bytes."""
    parts: list[bytes | memoryview] = [b"\x28\xb5\x2f\xfd\xa0", len(content).to_bytes(4, "little")]
    for start in range(0, len(content), _RAW_BLOCK_BYTES):
        block = content[start : start + _RAW_BLOCK_BYTES]
        is_last = start + _RAW_BLOCK_BYTES >= len(content)
        parts += [(len(block) << 3 | is_last).to_bytes(3, "little"), block]
    return b"".join(parts)


def _use_fast_codec(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array whose chunks are written as in `create_array`."""
    metadata: Any = array.metadata
    own = array.async_array
    codecs = tuple(
        FastZstdCodec(level=codec.level) if isinstance(codec, ZstdCodec) else codec
        for codec in metadata.codecs
    )
    return zarr.Array(zarr.AsyncArray(replace(metadata, codecs=codecs), own.store_path, own.config))


def open_checked_array(group: zarr.Group, path: str, shape: Sequence[int] | None = None) -> Any:
    """Open an array that `create_array` made; `shape` is the shape that the manifest states.

    Raises `DataError` if dtype, shape or codecs differ from those that this package writes.
    """
    array: Any = group[path]
    check_codecs(path, array.metadata.to_dict(), frozenset(_OWN_CODECS))
    array = _use_fast_codec(array)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path}: the array holds {array.dtype}, not numbers.")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise DataError(
            f"{path}: the shape is {tuple(array.shape)}, but {tuple(shape)} in the manifest."
        )
    return array


def has_chunk(folder: AnyPath, array: Any, *coordinates: int) -> bool:
    """Return whether a chunk of an array in a folder is stored: Zarr reads a missing one as zeros.

    An error, such as a folder that may not be read, is raised: the chunk may exist.
    """
    chunk = _make_chunk_path(folder, array, coordinates)
    if isinstance(chunk, ObjectPath):
        return chunk.is_file()
    try:
        return stat.S_ISREG(chunk.stat().st_mode)  # `is_file` is False for some errors
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_chunk(folder: AnyPath, array: Any, *coordinates: int) -> NDArray[Any] | None:
    """Read one chunk of an array of `create_array`, or return None if it is not stored.

    Zarr would give the same values in several times the CPU time, as it copies them twice more.
    Raises `ValueError` or `RuntimeError` if the chunk is damaged.
    """
    path = _make_chunk_path(folder, array, coordinates)
    values = np.empty(array.chunks, array.dtype.newbyteorder("<"))
    try:
        with _open_content(path) as content:
            compressed, crc = content[:-_CRC32C_BYTES], content[-_CRC32C_BYTES:]
            if checksum(np.frombuffer(compressed, np.uint8)) != int.from_bytes(crc, "little"):
                raise ValueError("the CRC32C of its bytes differs")
            Zstd().decode(compressed, values)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    return values.astype(array.dtype, copy=False)


def write_chunk(folder: AnyPath, array: Any, values: NDArray[Any], *coordinates: int) -> None:
    """Write one chunk of an array of `create_array`, as Zarr would write it.

    `values` may lack the last rows of the first axis. The chunk may lie beyond the array's shape.
    """
    if n_absent := array.chunks[0] - len(values):
        absent = np.full((n_absent, *array.chunks[1:]), array.fill_value, array.dtype)
        values = np.concatenate([values, absent])
    chunk = np.ascontiguousarray(values, array.dtype.newbyteorder("<"))
    content = _compress(chunk.data.cast("B"))
    crc = checksum(np.frombuffer(content, np.uint8)).to_bytes(_CRC32C_BYTES, "little")
    path = _make_chunk_path(folder, array, coordinates)
    with translate_store_errors(folder):
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content + crc)


_free_buffers: list[bytearray] = []
"""Memory for the contents of files, which would be cleared by the kernel if it were allocated."""


@contextmanager
def _open_content(path: AnyPath) -> Iterator[memoryview]:
    """Yield the content of a file or object; that of a file only until the end."""
    if isinstance(path, ObjectPath):
        yield path.read_buffer()
        return
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = _free_buffers.pop() if _free_buffers else bytearray()
        if len(buffer) < size:
            buffer = bytearray(size)
        content, n_read = memoryview(buffer)[:size], 0
        while n_read < size and (n_more := file.readinto(content[n_read:])):
            n_read += n_more
        yield content[:n_read]
    _free_buffers.append(buffer)


def delete_chunks(folder: AnyPath, array: Any, positions: Iterable[int]) -> None:
    """Delete the chunks at these positions along the last axis, whether they are stored or not."""
    lead = [(k,) for k in range(array.cdata_shape[0])] if array.ndim == 2 else [()]
    for coordinates in ((*first, position) for position in positions for first in lead):
        _make_chunk_path(folder, array, coordinates).unlink(missing_ok=True)


def _make_chunk_path(folder: AnyPath, array: Any, coordinates: tuple[int, ...]) -> AnyPath:
    key = f"{array.path}/{array.metadata.encode_chunk_key(coordinates)}"
    return folder / key


def create_array(
    group: zarr.Group, spec: ArraySpec, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> zarr.Array[Any]:
    """Create an array whose chunks are compressed, checksummed, and stored even if all are zero."""
    return group.create_array(
        spec.name,
        shape=shape,
        chunks=chunks,
        dtype=spec.dtype,
        fill_value=spec.fill_value,
        compressors=[FastZstdCodec(level=_ZSTD_LEVEL), Crc32cCodec()],
        dimension_names=spec.dims,
        attributes={"doc": spec.doc},
        config={"write_empty_chunks": True},
    )
