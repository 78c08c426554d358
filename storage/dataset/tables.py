"""Read the tables of a dataset and check them against the manifest, and write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset.feature_levels import Planes
from storage.errors import DamagedChunkError, DataError, is_out_of_memory
from storage.format.schema import (
    BITS,
    FEATURES,
    MIN_CHUNK_BYTES,
    OBSERVED,
    REMEDIES,
    ArraySpec,
    create_array,
    open_checked_array,
)
from storage.stores.locations import DATASET_FORMAT, AnyPath, checksum
from storage.stores.object_store import format_error, make_damage_error

TableArray = NDArray[np.int64]


def make_unreadable_error(place: str, error: Exception) -> DataError:
    """Return a damage error, or a plain one if the machine lacks memory, disk or permission."""
    if isinstance(error, OSError) or is_out_of_memory(error):
        return DataError(f"{place} cannot be read ({format_error(error)}).")
    return DamagedChunkError(
        f"{place} is damaged ({format_error(error)}). Ingest the dataset again."
    )


def make_damaged_dataset_error(folder: AnyPath, error: Exception) -> DataError:
    """Return the error for a dataset that cannot be opened, or for an unreachable store."""
    return make_damage_error(folder, "the dataset", error, REMEDIES[DATASET_FORMAT])


def read_positions(manifest: Mapping[str, Any]) -> TableArray:
    """Return the position of each chunk in the arrays, (n_chunks,)."""
    return np.array(manifest.get("positions", range(manifest["n_chunks"])), np.int64)


def read_table(
    folder: AnyPath, manifest: Mapping[str, Any], group: zarr.Group, name: str
) -> TableArray:
    """Read the rows of a table that the manifest counts, and check them."""
    if name == "ones" and not len(Planes.of_manifest(manifest)):
        return np.empty((manifest["n_chunks"], 0), np.int64)  # no feature has bits
    try:
        table, positions = open_checked_array(group, name), read_positions(manifest)
        if name == FEATURES.name:
            values = np.asarray(table[: len(manifest["feature_names"])])
        elif name == "blocks":
            values = np.asarray(table[: manifest["n_blocks"]])
        else:
            values = np.asarray(table[: positions.max() + 1])[positions]
        if name == "ones":  # an interrupted writer may have added features
            values = np.ascontiguousarray(values[:, : len(Planes.of_manifest(manifest))])
    except DataError as error:
        raise DataError(f"{folder}: {error} Ingest the dataset again.") from error
    except Exception as error:
        raise make_damaged_dataset_error(folder, error) from error
    if checksum(values) != manifest["tables"][name]:
        raise DataError(
            f"{folder}: the table {name} does not match the manifest. Ingest the dataset again."
        )
    n_planes = len(Planes.of_manifest(manifest))
    if name == "ones" and values.shape[1] != n_planes:
        raise DataError(
            f"{folder}: the manifest implies {n_planes} rows of bits, but there are "
            f"{values.shape[1]}. Ingest the dataset again."
        )
    return values


def check_tables(
    folder: AnyPath,
    manifest: Mapping[str, Any],
    chunks: TableArray,
    blocks: TableArray,
    checksums: TableArray,
) -> None:
    """Raise `DataError` if the tables contradict each other or the manifest."""
    for rule, holds in _iter_table_checks(manifest, chunks, blocks, checksums):
        if not holds:
            raise DataError(
                f"{folder}: the tables do not match the manifest, which implies {rule}. "
                "Ingest the dataset again."
            )


def _iter_table_checks(
    manifest: Mapping[str, Any], chunks: TableArray, blocks: TableArray, checksums: TableArray
) -> Iterator[tuple[str, Any]]:
    n_chunks, n_segments = manifest["n_chunks"], len(manifest["segment_names"])
    n_words, n_stored = manifest["words_per_chunk"], len(manifest["stored"])
    yield f"{n_chunks} chunks", chunks.shape == (n_chunks, 3)
    yield f"{manifest['n_blocks']} blocks", blocks.shape == (manifest["n_blocks"], 4)
    yield f"checksums of {n_stored} arrays", checksums.shape == (n_chunks, n_stored)
    starts, ends = chunks[:, 0], chunks[:, :2].sum(axis=1)
    are_consecutive = (
        (chunks[:, 1] > 0).all() and starts[0] == 0 and np.array_equal(starts[1:], ends[:-1])
    )
    yield "consecutive chunks", are_consecutive
    yield f"{manifest['n_rows']} rows in them", int(ends[-1]) == manifest["n_rows"]
    words = chunks[:, 2]
    yield f"chunks of 1 to {n_words} words", ((words >= 1) & (words <= n_words)).all()
    key, segment, first, rows = blocks.T
    yield (
        "blocks of all chunks in order",
        np.array_equal(np.unique(key), np.arange(n_chunks)) and (np.diff(key) >= 0).all(),
    )
    yield f"blocks of {n_segments} segments", ((segment >= 0) & (segment < n_segments)).all()
    are_inside = (first >= 0) & (rows > 0) & (first + (rows + 63) // 64 <= words[key])
    yield "blocks within their chunks", are_inside.all()
    rows_per_chunk = np.bincount(key, rows, n_chunks)
    yield "blocks with the rows of their chunks", np.array_equal(rows_per_chunk, chunks[:, 1])


def check_chunk_shape(name: str, array: Any, manifest: Mapping[str, Any]) -> None:
    """Raise `DataError` if an array's chunks do not have the shape that the manifest implies."""
    n_bytes = 8 * manifest["words_per_chunk"]
    n_features = len(manifest["feature_names"]) - len(manifest.get("added_features", ()))
    n_planes = int(Planes.of_manifest(manifest).firsts[n_features])
    lead = {BITS.name: (n_planes,), OBSERVED.name: (n_features,)}
    expected = (*lead[name], n_bytes) if name in lead else (8 * n_bytes,)
    if array.chunks != expected:
        raise DataError(f"{name} has chunks of {array.chunks} instead of {expected}.")


def place_rows(
    spec: ArraySpec, rows: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Place the rows of a table at the positions of their chunks."""
    placed = np.full((1 + positions.max(), rows.shape[1]), spec.fill_value, np.int64)
    placed[positions] = rows
    return placed


def write_table(group: zarr.Group, spec: ArraySpec, rows: NDArray[np.int64]) -> None:
    """Write a table; what an earlier writer left beyond is overwritten first."""
    if not rows.shape[1]:
        return
    if spec.name not in group:
        height = max(1, MIN_CHUNK_BYTES // (8 * rows.shape[1]))
        create_array(group, spec, rows.shape, (height, rows.shape[1]))
    table: Any = group[spec.name]
    common = tuple(map(max, table.shape, rows.shape))
    if table.shape != common:
        table.resize(common)
    whole = np.full(common, spec.fill_value, np.int64)
    whole[: rows.shape[0], : rows.shape[1]] = rows
    table[:] = whole
    if table.shape != rows.shape:
        table.resize(rows.shape)
