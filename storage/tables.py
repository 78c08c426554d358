"""A dataset's tables: whether they agree with its manifest, and its arrays with both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.damage import damaged_dataset
from storage.errors import DataError
from storage.locations import Place, checksum
from storage.schema import BITS, OBSERVED, open_own

Table = NDArray[np.int64]


def read_table(folder: Place, manifest: Mapping[str, Any], group: zarr.Group, name: str) -> Table:
    """Read a table whole.

    Raises
    ------
    DataError
        If it is damaged, or not that of the manifest.
    """
    try:
        table = open_own(group, name)
        values = np.asarray(table[: manifest["n_blocks" if name == "blocks" else "n_chunks"]])
    except DataError as error:
        raise DataError(f"{folder}: {error} Ingest the dataset again.") from error
    except Exception as error:
        raise damaged_dataset(folder, error) from error
    if checksum(values) != manifest["tables"][name]:
        raise DataError(
            f"{folder}: {name}: Expected the table of the manifest, got another. "
            "Ingest the dataset again."
        )
    if name == "ones" and values.shape[1] != len(manifest["feature_names"]):
        raise DataError(
            f"{folder}: Expected names of {values.shape[1]} features, got "
            f"{len(manifest['feature_names'])}. Ingest the dataset again."
        )
    return values


def check_tables(
    folder: Place, manifest: Mapping[str, Any], chunks: Table, blocks: Table, checksums: Table
) -> None:
    """Refuse tables that disagree with each other or with the manifest.

    Raises
    ------
    DataError
        Saying what does not agree.
    """
    for expected, agrees in _agreements(manifest, chunks, blocks, checksums):
        if not agrees:
            raise DataError(
                f"{folder}: Expected {expected}, got others. The manifest is not of these tables. "
                "Ingest the dataset again."
            )


def _agreements(
    manifest: Mapping[str, Any], chunks: Table, blocks: Table, checksums: Table
) -> Iterator[tuple[str, Any]]:
    n_chunks, n_segments = manifest["n_chunks"], len(manifest["segment_names"])
    n_words, n_stored = manifest["words_per_chunk"], len(manifest["stored"])
    yield f"{n_chunks} chunks", chunks.shape == (n_chunks, 3)
    yield f"{manifest['n_blocks']} blocks", blocks.shape == (manifest["n_blocks"], 4)
    yield f"checksums of {n_stored} arrays", checksums.shape == (n_chunks, n_stored)
    starts, ends = chunks[:, 0], chunks[:, :2].sum(axis=1)
    follow = (chunks[:, 1] > 0).all() and starts[0] == 0 and np.array_equal(starts[1:], ends[:-1])
    yield "chunks that follow each other", follow
    yield f"{manifest['n_rows']} rows in them", int(ends[-1]) == manifest["n_rows"]
    words = chunks[:, 2]
    yield f"chunks of 1 to {n_words} words", ((words >= 1) & (words <= n_words)).all()
    key, segment, first, rows = blocks.T
    yield (
        "blocks of all chunks in order",
        np.array_equal(np.unique(key), np.arange(n_chunks)) and (np.diff(key) >= 0).all(),
    )
    yield f"blocks of {n_segments} segments", ((segment >= 0) & (segment < n_segments)).all()
    placed = (first >= 0) & (rows > 0) & (first + (rows + 63) // 64 <= words[key])
    yield "blocks within their chunks", placed.all()
    of_chunks = np.bincount(key, rows, n_chunks)
    yield "blocks with the rows of their chunks", np.array_equal(of_chunks, chunks[:, 1])


def check_chunks(name: str, array: Any, manifest: Mapping[str, Any]) -> None:
    """Refuse an array that is not cut as the manifest says.

    Raises
    ------
    DataError
        Saying how it should be cut.
    """
    n_bytes = 8 * manifest["words_per_chunk"]
    is_packed = name in (BITS.name, OBSERVED.name)
    expected = (len(manifest["feature_names"]), n_bytes) if is_packed else (8 * n_bytes,)
    if array.chunks != expected:
        raise DataError(f"{name}: Expected chunks of {expected}, got {array.chunks}.")


def texts_of(where: str, column: Mapping[str, Any], values: NDArray[Any]) -> NDArray[Any]:
    """Write values of a per-row column as text where they are codes of categories.

    Raises
    ------
    DataError
        If there are fewer categories than codes.
    """
    categories = column.get("categories")
    if categories is None:
        return values
    if values.size and not -1 <= values.min() <= values.max() < len(categories):
        raise DataError(
            f"{where}: Expected codes of {len(categories)} categories, got one from "
            f"{values.min()} to {values.max()}. Ingest the dataset again."
        )
    texts: NDArray[np.str_] = np.array([*categories, ""])[values]
    return texts
