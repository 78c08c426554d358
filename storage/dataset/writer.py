"""Creates datasets and appends to them: whole at the end, or as if nothing had been."""

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

# Below 8 MiB a chunk's own cost starts to show, above 32 MiB a task's memory does.
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
    """Write a new dataset; an error inside the `with` leaves nothing behind.

    Parameters
    ----------
    path
        Folder of the dataset. An interrupted ingest found there is replaced.
    feature_names
        Names of the features; at least two, all different.
    columns
        Per-row columns to keep; one named `split` gives the splits.
    expected_rows
        Number of rows to come, if known: it sets the chunk size.
    words_per_chunk
        Chunk size in words of 64 rows, instead of the one derived.
    ingest
        Options to remember for a later append.
    attributes
        What to keep beside the data, in JSON values; `BinaryDataset.attributes` gives it back.
    overwrite
        Replace a dataset that is there, once the new one is whole.

    Raises
    ------
    DataError
        If the path is taken, or the features or the attributes cannot be used.
    """
    names = check_feature_names(feature_names)
    described = _copy_as_json(attributes or {})
    target = parse_path(path).resolve()  # what is replaced is the dataset, not a link to it
    check_dataset_target(target, overwrite)  # a file in the way could not even be claimed
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
                attributes=described,
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
    """Tell whether a new dataset replaces one, or refuse a path that is taken.

    Raises
    ------
    DataError
        If something is there that may not be replaced, or the name is that of a file.
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
    """Copy attributes as they will be read, so that what cannot be kept is refused at once."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(attributes, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"attributes: Expected JSON values, got others ({error}). "
            "Give finite numbers, text, lists and mappings."
        ) from None
    return copied


def _make_taken_error(target: AnyPath, overwrite: bool) -> DataError:
    if overwrite:
        return DataError(f"{target}: Expected a dataset to replace, got something else.")
    return DataError(
        f"{target}: Expected a new path, got one that exists. "
        "Use --append to add rows or --overwrite to replace it."
    )


@contextmanager
def append_dataset(path: str | AnyPath, feature_names: Sequence[str]) -> Iterator[DatasetWriter]:
    """Add rows to a dataset as new chunks; until the end it stays what it was.

    Raises
    ------
    DataError
        If the features are not those of the dataset, in its order.
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
            # What cannot be dropped now, the next append drops.
            with suppress(OSError, DataError):
                if holds():
                    _drop_unfinished(open_dataset(base.path))
            raise


def _check_arrays(base: BinaryDataset) -> None:
    """Refuse damage in what an append goes on from, before anything is changed.

    These are descriptions of arrays, and the last texts of each column.
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
    """Delete what an interrupted append left beyond the manifest: other clients would read it."""
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
    # Of local files alone: what an object store holds is whole.
    for part in dataset.path.rglob("*.partial") if isinstance(dataset.path, Path) else ():
        if part.is_file():
            part.unlink()


def check_feature_names(names: Sequence[str]) -> tuple[str, ...]:
    """Refuse fewer than two features and names that stand twice.

    Raises
    ------
    DataError
        Saying which.
    """
    if len(names) < 2:
        raise DataError(f"Expected at least 2 features, got {len(names)}. Check the sources.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Expected different feature names, got {name!r} twice. Rename one.")
        seen.add(name)
    return tuple(names)


def _check_same_features(base: BinaryDataset, names: tuple[str, ...]) -> None:
    if names == base.feature_names:
        return
    if len(names) != base.n_features:
        raise DataError(
            f"--append: Expected the {base.n_features} features of {base.path}, got {len(names)}."
        )
    at = next(i for i, name in enumerate(names) if name != base.feature_names[i])
    raise DataError(
        f"--append: Expected feature {base.feature_names[at]!r} of {base.path} at position "
        f"{at + 1}, got {names[at]!r}. Give the features in the dataset's order."
    )


def _choose_chunk_words(n_features: int, expected_rows: int | None) -> int:
    size = _CHUNK_BYTES
    if expected_rows is not None:
        even = expected_rows * n_features // 8 // _TARGET_CHUNKS
        size = min(max(even, MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    return max(1, size // (8 * n_features))
