"""Names of the codecs of Zarr arrays: some, such as pickle, run code of whoever wrote the array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from storage.errors import DataError

SAFE_CODECS = frozenset(
    {
        *("bytes", "transpose", "sharding_indexed", "endian"),
        *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd", "pcodec", "zfpy"),
        *("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"),
        *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"),
    }
)
"""Codecs of numbers that compute and nothing else."""


def check_codecs(path: str, described: Mapping[str, Any], known: Set[str]) -> None:
    """Refuse an array of other codecs before a value is read.

    Parameters
    ----------
    path
        What a message calls the array.
    described
        The array's description, of version 2 or 3.
    known
        Names of the codecs to take.

    Raises
    ------
    DataError
        Naming the first that is not known.
    """
    for name in _iter_codec_names(described):
        if name not in known:
            raise DataError(
                f"{path}: Expected an array of numbers with codecs that only compute, got the "
                f"codec {name!r}, which may run code of whoever wrote it. Write it without."
            )


def _iter_codec_names(part: Mapping[str, Any]) -> Iterator[str]:
    """Name the codecs that a description lists, and those within codecs such as shards."""
    listed = [part.get(name) for name in ("codecs", "index_codecs", "filters")]
    flat = [codec for codecs in listed for codec in codecs or ()]
    for codec in filter(None, (*flat, part.get("compressor"))):
        if isinstance(codec, str):
            yield codec
            continue
        yield str(codec.get("name", codec.get("id"))).removeprefix("numcodecs.")
        yield from _iter_codec_names(codec.get("configuration") or {})
