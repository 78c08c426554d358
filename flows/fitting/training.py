"""The rows that a fit was made of, found again, and whether other rows are among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from flows.data.datasets import dataset_rows, leading_digest
from pipeline.data.blocks import Rows
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError

Fitted = Literal["all", "some", "none", "unknown"]
"""How many of the rows that are scored were fitted."""


@dataclass(frozen=True)
class Training:
    """Rows that were fitted: those of a split, or all, of the leading chunks of a dataset."""

    dataset: BinaryDataset
    split: str | None
    n_chunks: int
    skipped: tuple[int, ...] = ()

    @property
    def leading_chunks(self) -> int | None:
        """Number of chunks, or None where they are the whole dataset."""
        return self.n_chunks if self.n_chunks < self.dataset.n_chunks else None

    def rows(self, memory: int, columns: tuple[str, ...] = ()) -> Rows:
        """Give the rows, which may stay in memory, with per-row columns."""
        found = dataset_rows(self.dataset, self.split, memory, self.skipped, columns)
        return replace(found, n_chunks=self.n_chunks)

    def among(self, dataset: BinaryDataset, split: str | None) -> Fitted:
        """Tell how many rows of a split, or of all, are among those that were fitted."""
        shared = min(self.n_chunks, dataset.n_chunks)
        if leading_digest(self.dataset, shared) != leading_digest(dataset, shared):
            return "none"
        if None not in (split, self.split) and split != self.split:
            return "none"
        whole = self.split in (None, split) and dataset.n_chunks == shared and not self.skipped
        return "all" if whole else "some"


def whole_training(dataset: BinaryDataset, split: str | None) -> Training:
    """Give all rows of a split of a dataset as those of a fit."""
    return Training(dataset, split, dataset.n_chunks)


def training_of(manifest: Mapping[str, Any], here: BinaryDataset) -> Training | None:
    """Find the rows that an artifact was fitted to.

    Parameters
    ----------
    manifest
        Of the artifact.
    here
        A dataset that may hold them where the one recorded is not there any more.

    Returns
    -------
    Training or None
        None if they are not to be had: moved, deleted, or changed since.
    """
    recorded = manifest["dataset"]
    n_chunks, digest = int(recorded["n_chunks"]), recorded.get("chunks_digest")
    skipped = tuple(int(part["chunk"]) for part in manifest.get("skipped_chunks", ()))
    for dataset in _candidates(recorded["path"], here):
        if n_chunks <= dataset.n_chunks and leading_digest(dataset, n_chunks) == digest:
            return Training(dataset, manifest["split"], n_chunks, skipped)
    return None


def _candidates(path: str, here: BinaryDataset) -> Iterator[BinaryDataset]:
    yield here
    with suppress(DataError):
        yield open_dataset(path)
