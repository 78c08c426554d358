"""Find the dataset, the split and the label that options name."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flows.data.ingest import ingest_sources
from flows.running.environment import find_examples_folder
from pipeline.data.blocks import RowSource
from pipeline.statistics.labels import SEGMENT
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError, FolderInUseError
from storage.examples.examples import EXAMPLE_PREFIX, compute_examples_digest, format_example_slug

if TYPE_CHECKING:
    from storage.dataset.dataset import BinaryDataset


def open_dataset_or_example(name: str) -> BinaryDataset:
    """Open a dataset; an example is made where it is not there.

    Raises
    ------
    DataError
        If there is no whole dataset, or an example is unknown or cannot be made.
    """
    if not name.startswith(EXAMPLE_PREFIX):
        return open_dataset(name)
    path = find_examples_folder() / compute_examples_digest() / f"{format_example_slug(name)}.zarr"
    while True:
        with suppress(DataError):
            return open_dataset(path)
        try:
            return ingest_sources([name], path, overwrite=path.exists())
        except FolderInUseError:
            time.sleep(0.2)  # another run is making it


def check_label(dataset: BinaryDataset, name: str | None) -> None:
    """Refuse a label that is neither a per-row column nor the segments.

    Raises
    ------
    DataError
        Naming what there is.
    """
    columns = dataset.column_names
    if name not in (None, SEGMENT, *columns):
        have = ", ".join([*columns, SEGMENT])
        raise DataError(
            f"{dataset.path}: --label: Expected a per-row column, got {name!r}. There are: {have}."
        )


def read_true_mixing(dataset: BinaryDataset) -> NDArray[np.float64]:
    """Give the mixing matrix that a dataset was made with, (n_features, n_components).

    Raises
    ------
    DataError
        If the dataset does not know it, or knows one of other features.
    """
    truth = dataset.attributes.get("truth")
    if not isinstance(truth, Mapping) or "mixing" not in truth:
        raise DataError(
            "--truth: Expected a dataset that knows its truth, such as example:nonstationary, "
            f"got {dataset.path}. Leave out --truth."
        )
    try:
        mixing = np.array(truth["mixing"], np.float64)
    except (TypeError, ValueError, OverflowError):
        mixing = np.empty(0)
    if not np.isfinite(mixing).all() or mixing.ndim != 2 or len(mixing) != dataset.n_features:
        raise DataError(
            f"--truth: Expected a mixing of the {dataset.n_features} features of {dataset.path} "
            f"in its truth, got one of shape {mixing.shape}. Leave out --truth."
        )
    return mixing


def make_row_source(
    dataset: BinaryDataset,
    split: str | None = None,
    memory: int = 0,
    skipped: Sequence[int] = (),
    columns: tuple[str, ...] = (),
) -> RowSource:
    """Give a dataset's rows, or those of a split, as a pass takes them, with per-row columns.

    Every process keeps so many bytes of the chunks that it reads; those skipped have no rows.
    """
    read = dataset.make_reader(split, memory, skipped, columns)
    return RowSource(read, dataset.n_chunks, dataset.n_features, dataset.n_segments)


def digest_leading_chunks(dataset: BinaryDataset, n_chunks: int) -> str:
    """Digest of the leading chunks: equal digest, equal rows in equal segments."""
    blocks = dataset.blocks[dataset.blocks[:, 0] < n_chunks]
    names = dataset.segment_names[: int(blocks[:, 1].max(initial=-1)) + 1]
    layout = [dataset.manifest["stored"], dataset.feature_names, names]
    digest = hashlib.sha256(json.dumps(layout).encode())
    for table in (dataset.chunks[:n_chunks], blocks, dataset.checksums[:n_chunks]):
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()


ALL_ROWS, TRAIN, TEST = "all", "train", "test"


def resolve_split(dataset: BinaryDataset, split: str | None) -> str | None:
    """Name the split that an option means; None and `all` mean all rows.

    A split that is itself called `all` is meant by that.

    Raises
    ------
    DataError
        If the dataset has no such split.
    """
    if split is None or (split == ALL_ROWS and split not in dataset.splits):
        return None
    dataset.find_split_code(split)
    return split


def resolve_fit_split(dataset: BinaryDataset, split: str | None) -> str | None:
    """Do the same for a fit, which takes `train` where there is one and no split is named."""
    if split is None and TRAIN in dataset.splits:
        return TRAIN
    return resolve_split(dataset, split)


def resolve_evaluation_split(dataset: BinaryDataset, split: str | None) -> str | None:
    """Do the same for an evaluation, which takes `test` where there is one and none is named."""
    if split is None and TEST in dataset.splits:
        return TEST
    return resolve_split(dataset, split)


def format_row_count(n_rows: int, split: str | None) -> str:
    """Write how many rows, and which."""
    return f"{n_rows:,}, " + ("all" if split is None else f"split {split}")
