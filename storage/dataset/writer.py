"""Create datasets and append to them; a failed attempt leaves everything as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import zarr

from storage.dataset.chunk_writer import DatasetWriter, resize_arrays
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.levels import LevelsWriter, make_codebook
from storage.dataset.tables import make_damaged_dataset_error
from storage.errors import DataError
from storage.format.schema import (
    BLOCKS,
    CHECKSUMS,
    CHUNKS,
    DATASET_FORMAT,
    MIN_CHUNK_BYTES,
    ONES,
    format_array_path,
)
from storage.stores.locations import (
    AnyPath,
    check_folder_name,
    clear_folder,
    delete_tree,
    has_format,
    is_unfinished,
    list_children,
    lock_folder,
    open_group,
    parse_path,
    replace_folder,
    to_zarr_store,
)
from storage.stores.object_store import translate_store_errors

# Smaller chunks cost too much overhead, larger ones too much memory per task.
_CHUNK_BYTES = 8 << 20
_MAX_CHUNK_BYTES, _TARGET_CHUNKS = 32 << 20, 64


@contextmanager
def create_dataset(
    path: str | AnyPath,
    feature_names: Sequence[str],
    *,
    columns: Sequence[str] = (),
    expected_rows: int | None = None,
    words_per_chunk: int | None = None,
    ingest: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Write a new dataset; an error inside the `with` block leaves nothing behind.

    Parameters
    ----------
    path
        Folder of the dataset. The remains of an interrupted ingest are replaced.
    feature_names
        Names of the features; at least two, all different.
    columns
        Per-row columns to store; one named `split` defines the splits.
    expected_rows
        Number of rows to come, if known; it determines the chunk size.
    words_per_chunk
        Chunk size in words of 64 rows, instead of the derived one.
    ingest
        Options to store for a later append.
    attributes
        JSON values to store with the data; see `BinaryDataset.attributes`.
    overwrite
        Replace an existing dataset once the new one is complete.

    Raises
    ------
    DataError
        If the path is taken, or the features or attributes are invalid.
    """
    names = check_feature_names(feature_names)
    json_attributes = _copy_as_json(attributes or {})
    target = parse_path(path).resolve()  # replace the dataset, not a link to it
    check_dataset_target(target, overwrite)  # before locking, which would fail on a file
    with lock_folder(target) as holds, translate_store_errors(target):
        replaces = check_dataset_target(target, overwrite)
        folder = target.with_name(f".{target.name}.replacing") if replaces else target
        folder.mkdir(exist_ok=True)
        try:
            clear_folder(folder)
            writer = DatasetWriter(
                folder,
                zarr.create_group(to_zarr_store(folder), attributes={"format": DATASET_FORMAT}),
                names,
                words_per_chunk or _choose_chunk_words(len(names), expected_rows),
                {name: {} for name in columns},
                ingest=ingest or {},
                attributes=json_attributes,
            )
            yield writer
            if holds():
                writer.finish()
        except BaseException:
            with suppress(DataError):
                if holds():
                    delete_tree(folder)
            raise
        if replaces and holds():
            replace_folder(folder, target)


def check_dataset_target(path: AnyPath, overwrite: bool) -> bool:
    """Return whether a new dataset would replace one; refuse a path that is taken.

    Raises
    ------
    DataError
        If the path may not be replaced, or has the suffix of a file.
    """
    check_folder_name(path)
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise _make_taken_error(target, overwrite)
    replaces = bool(list_children(target)) and not is_unfinished(target, DATASET_FORMAT)
    if replaces and not (overwrite and has_format(target, DATASET_FORMAT)):
        raise _make_taken_error(target, overwrite)
    return replaces


def _copy_as_json(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy attributes by way of JSON, so that invalid values are refused immediately."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(attributes, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Attributes must be JSON values ({error}). "
            "Use finite numbers, text, lists and mappings."
        ) from None
    return copied


def _make_taken_error(target: AnyPath, overwrite: bool) -> DataError:
    if overwrite:
        return DataError(f"{target} is not a dataset, so it is not replaced. Choose another path.")
    return DataError(
        f"{target} already exists. Use {{append}} to add rows or {{overwrite}} to replace it."
    )


@contextmanager
def append_dataset(path: str | AnyPath, feature_names: Sequence[str]) -> Iterator[DatasetWriter]:
    """Append rows to a dataset as new chunks; readers see the old dataset until the end.

    Raises
    ------
    DataError
        If the features differ from those of the dataset, or their order does.
    """
    folder = open_dataset(path).path
    with lock_folder(folder) as holds, translate_store_errors(folder):
        base = open_dataset(path)
        _check_same_features(base, tuple(feature_names))
        _check_arrays(base)
        _drop_unfinished(base)
        group = open_group(base.path, "r+")
        writer = DatasetWriter(
            base.path,
            group,
            base.feature_names,
            int(base.manifest["words_per_chunk"]),
            json.loads(json.dumps(base.manifest["columns"])),
            make_codebook(base.segment_names),
            {
                name: LevelsWriter.continue_levels(levels, group)
                for name, levels in base.levels.items()
            },
            base.manifest["ingest"],
            base,
            base.n_rows,
            base.attributes,
        )
        try:
            yield writer
            if holds():
                writer.finish()
        except BaseException:
            # The next append deletes what cannot be deleted now.
            with suppress(OSError, DataError):
                if holds():
                    _drop_unfinished(open_dataset(base.path))
            raise


def _check_arrays(base: BinaryDataset) -> None:
    """Check what an append builds on, before changing anything.

    These are the metadata of the arrays and the last page of texts of each column.
    """
    base.ones()
    for name, recorded in zip(base.manifest["stored"], base.checksums.T, strict=True):
        try:
            if (recorded >= 0).any():
                base.open_array(name)
        except Exception as error:
            raise make_damaged_dataset_error(base.path, error) from error
    for levels in base.levels.values():
        levels.read_page(-1)


def _drop_unfinished(dataset: BinaryDataset) -> None:
    """Delete what an interrupted append wrote beyond the manifest: other clients would read it."""
    group = open_group(dataset.path, "r+")
    for name, recorded in zip(dataset.manifest["stored"], dataset.checksums.T, strict=True):
        if (recorded < 0).all():
            delete_tree(dataset.path / format_array_path(name))
    resize_arrays(group, dataset.manifest["stored"], dataset.n_chunks)
    for levels in dataset.levels.values():
        levels.truncate(group)
    for spec in (CHUNKS, BLOCKS, ONES, CHECKSUMS):
        table: Any = group[spec.name]
        length = len(dataset.blocks) if spec is BLOCKS else dataset.n_chunks
        table.resize((length, *table.shape[1:]))
    # Only local files: objects are always complete.
    for part in dataset.path.rglob("*.partial") if isinstance(dataset.path, Path) else ():
        if part.is_file():
            part.unlink()


def check_feature_names(names: Sequence[str]) -> tuple[str, ...]:
    """Raise `DataError` if there are fewer than two features, or two with the same name."""
    if len(names) < 2:
        raise DataError(f"A dataset needs at least 2 features, but the sources have {len(names)}.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Two features are named {name!r}. Rename one.")
        seen.add(name)
    return tuple(names)


def _check_same_features(base: BinaryDataset, names: tuple[str, ...]) -> None:
    if names == base.feature_names:
        return
    if len(names) != base.n_features:
        raise DataError(
            f"{base.path} has {base.n_features} features, but the new rows have {len(names)}.",
            parameter="append",
        )
    at = next(i for i, name in enumerate(names) if name != base.feature_names[i])
    raise DataError(
        f"Feature {at + 1} is {names[at]!r}, but {base.feature_names[at]!r} in {base.path}. "
        "Give the features in the dataset's order.",
        parameter="append",
    )


def _choose_chunk_words(n_features: int, expected_rows: int | None) -> int:
    size = _CHUNK_BYTES
    if expected_rows is not None:
        even = expected_rows * n_features // 8 // _TARGET_CHUNKS
        size = min(max(even, MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    return max(1, size // (8 * n_features))
