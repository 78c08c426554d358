"""Finds the dataset that an option names; examples are made when first asked for."""

from __future__ import annotations

import time
from pathlib import Path

from flows.environment import examples_path
from flows.ingest import ingest_sources
from flows.options import local_path
from pipeline.blocks import Rows
from storage.dataset import BinaryDataset, ChunkReader, open_dataset
from storage.errors import Busy, DataError
from storage.examples import PREFIX, open_example


def dataset_path(name: str) -> Path:
    """Give the folder of a dataset, making an example's first.

    Raises
    ------
    DataError
        If an example is unknown.
    """
    if not name.startswith(PREFIX):
        return local_path(name)
    path = examples_path() / f"{open_example(name).slug}.zarr"
    while not _is_whole(path):
        try:
            ingest_sources([name], path, overwrite=path.exists())
        except Busy:
            time.sleep(0.2)  # another run is making it
    return path


def _is_whole(path: Path) -> bool:
    try:
        open_dataset(path)
    except DataError:
        return False
    return True


def dataset_rows(dataset: BinaryDataset, split: str | None = None) -> Rows:
    """Give a dataset's rows, or those of a split, as a pass takes them."""
    read = ChunkReader(str(dataset.path.resolve()), dataset.digest, split)
    return Rows(read, dataset.n_chunks, dataset.n_features, dataset.n_segments)
