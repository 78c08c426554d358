"""The rows that a fit was made of, found again, and whether other rows are among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from flows.data.datasets import digest_leading_chunks, make_row_source
from pipeline.data.blocks import RowSource
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError

TrainingOverlap = Literal["all", "some", "none", "unknown"]
"""How many of the rows that are scored were fitted."""


@dataclass(frozen=True)
class TrainingRows:
    """Rows that were fitted: those of a split, or all, of the leading chunks of a dataset."""

    dataset: BinaryDataset
    split: str | None
    n_chunks: int
    skipped: tuple[int, ...] = ()

    @property
    def leading_chunks(self) -> int | None:
        """Number of chunks, or None where they are the whole dataset."""
        return self.n_chunks if self.n_chunks < self.dataset.n_chunks else None

    def make_row_source(self, memory: int, columns: tuple[str, ...] = ()) -> RowSource:
        """Give the rows, which may stay in memory, with per-row columns."""
        found = make_row_source(self.dataset, self.split, memory, self.skipped, columns)
        return replace(found, n_chunks=self.n_chunks)

    def find_overlap(self, dataset: BinaryDataset, split: str | None) -> TrainingOverlap:
        """Tell how many rows of a split, or of all, are among those that were fitted."""
        shared = min(self.n_chunks, dataset.n_chunks)
        if digest_leading_chunks(self.dataset, shared) != digest_leading_chunks(dataset, shared):
            return "none"
        if None not in (split, self.split) and split != self.split:
            return "none"
        whole = self.split in (None, split) and dataset.n_chunks == shared and not self.skipped
        return "all" if whole else "some"


def make_training_rows(dataset: BinaryDataset, split: str | None) -> TrainingRows:
    """Give all rows of a split of a dataset as those of a fit."""
    return TrainingRows(dataset, split, dataset.n_chunks)


def find_training_rows(manifest: Mapping[str, Any], here: BinaryDataset) -> TrainingRows | None:
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
    for dataset in _iter_candidate_datasets(recorded["path"], here):
        if n_chunks <= dataset.n_chunks and digest_leading_chunks(dataset, n_chunks) == digest:
            return TrainingRows(dataset, manifest["split"], n_chunks, skipped)
    return None


def _iter_candidate_datasets(path: str, here: BinaryDataset) -> Iterator[BinaryDataset]:
    yield here
    with suppress(DataError):
        yield open_dataset(path)
