"""The origin of an artifact as its manifest records it, and the rows that it was fitted to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from flows.data.datasets import LoadedModel, adapt_to_fit, may_open
from pipeline.data.blocks import RowSource
from pipeline.data.datasets import get_row_columns, make_row_source
from pipeline.data.features import read_features
from pipeline.data.plane_views import view_as_fitted
from pipeline.data.row_columns import RowColumns
from pipeline.data.weights import RowWeights, digest_weights
from storage.artifacts.artifacts import Artifact
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError


def describe_artifact(fitted: LoadedModel) -> dict[str, str]:
    """Identify the artifact of a fit by its path and digest."""
    return {"path": str(fitted.artifact.path.resolve()), "digest": fitted.digest}


def is_of_leading_rows(
    manifest: Mapping[str, Any],
    dataset: BinaryDataset,
    split: str | None,
    skipped: Sequence[int],
    weights: RowWeights | None,
) -> bool:
    """Return whether the fit of a manifest used the leading rows of a dataset or split, or all.

    It must have had the same features; see `find_row_difference` for the rest.
    """
    recorded = manifest["dataset"]
    return find_row_difference(manifest, dataset, split, skipped, weights) is None and recorded.get(
        "chunks_digest"
    ) == dataset.digest_leading_chunks(int(recorded["n_chunks"]))


def find_row_difference(
    manifest: Mapping[str, Any],
    dataset: BinaryDataset,
    split: str | None,
    skipped: Sequence[int],
    weights: RowWeights | None,
) -> str | None:
    """Return what the fit of a manifest had other than the leading rows of a dataset or split.

    `skipped` are the chunks of the dataset that are left out. The rows must also have had the same
    weights, in the same units, and the same covariates. The features may differ.
    """
    recorded = manifest["dataset"]
    n_chunks = int(recorded["n_chunks"])
    if manifest["split"] != split:
        return "another split"
    left_out = [chunk["chunk"] for chunk in manifest.get("skipped_chunks", ())]
    if (
        n_chunks > dataset.n_chunks
        or left_out != [key for key in skipped if key < n_chunks]
        or not has_leading_rows(recorded, dataset)
    ):
        return "other rows or groups, or earlier rows have changed since"
    if not RowColumns.read(manifest).have_same_columns(get_row_columns(dataset)):
        return "other covariates"
    if not _has_same_weights(manifest.get("row_weights"), dataset, split, n_chunks, weights):
        return "other weights"
    return None


def has_leading_rows(recorded: Mapping[str, Any], dataset: BinaryDataset) -> bool:
    """Return whether the dataset of a manifest has the leading rows of a dataset, or all."""
    n_chunks = int(recorded["n_chunks"])
    if "rows_digest" not in recorded:  # of an earlier version
        return bool(recorded.get("chunks_digest") == dataset.digest_leading_chunks(n_chunks))
    return bool(recorded["rows_digest"] == dataset.digest_leading_rows(n_chunks))


def _has_same_weights(
    recorded: Mapping[str, Any] | None,
    dataset: BinaryDataset,
    split: str | None,
    n_chunks: int,
    weights: RowWeights | None,
) -> bool:
    """Return whether the weights of a manifest are those of the leading chunks.

    Digests of chunks do not suffice: a column of texts stores codes, whose texts may have changed.
    """
    if recorded is None or weights is None:
        return recorded is None and weights is None
    names = ("column", "kind", "unit")
    if any(recorded[name] != getattr(weights, name) for name in names):
        return False
    leading = dataset.iter_numbers(weights.column, split, n_chunks)
    return bool(recorded["digest"] == digest_weights(leading))


def compute_fingerprint(provenance: dict[str, Any]) -> str:
    """Digest a provenance, without the paths of datasets and artifacts."""
    names = ("dataset", "queries", "warm_start", "known_items")
    located = {name: provenance[name] for name in names if provenance.get(name)}
    without_paths = {name: {**record, "path": ""} for name, record in located.items()}
    text = json.dumps({**provenance, **without_paths}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


TrainingOverlap = Literal["all", "some", "none", "unknown"]
"""How many of the evaluated rows were fitted."""


@dataclass(frozen=True)
class TrainingRows:
    """The rows that a model was fitted to: a split, or all, of the leading chunks of a dataset."""

    dataset: BinaryDataset
    split: str | None
    n_chunks: int
    skipped: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Identifies the rows: two artifacts may be fitted to the same."""
        return f"{self.dataset.digest} {(self.split, self.n_chunks, self.skipped)}"

    @property
    def leading_chunks(self) -> int | None:
        """Number of chunks, or None if they are the whole dataset."""
        return self.n_chunks if self.n_chunks < self.dataset.n_chunks else None

    def make_row_source(self, memory: int, columns: tuple[str, ...] = ()) -> RowSource:
        """Return the rows; processes may keep `memory` bytes of them."""
        rows = make_row_source(self.dataset, self.split, memory, self.skipped, columns)
        return replace(rows, rows_per_chunk=rows.rows_per_chunk[: self.n_chunks])

    def find_overlap(self, dataset: BinaryDataset, split: str | None) -> TrainingOverlap:
        """Find how many rows of a dataset or split are among the fitted rows."""
        shared = min(self.n_chunks, dataset.n_chunks)
        own, other = (d.with_stored_segments() for d in (self.dataset, dataset))
        if own.digest_leading_chunks(shared) != other.digest_leading_chunks(shared):
            return "none"
        if None not in (split, self.split) and split != self.split:
            return "none"
        has_all = self.split in (None, split) and dataset.n_chunks == shared and not self.skipped
        return "all" if has_all else "some"


def find_training_rows(artifact: Artifact, nearby: BinaryDataset) -> TrainingRows | None:
    """Find the rows that an artifact was fitted to; None if they were moved, deleted or changed.

    `nearby` is another dataset that may contain them, if the recorded one no longer does. The
    recorded one is not opened if it is in another bucket than the artifact and `nearby`.
    """
    manifest = artifact.manifest
    recorded = manifest["dataset"]
    n_chunks, digest = int(recorded["n_chunks"]), recorded.get("chunks_digest")
    skipped = tuple(int(chunk["chunk"]) for chunk in manifest.get("skipped_chunks", ()))
    for candidate in _iter_candidate_datasets(artifact, nearby):
        try:
            dataset = adapt_to_fit(candidate, manifest, str(artifact.path))
        except DataError:
            continue
        fitted = view_as_fitted(dataset, read_features(manifest))  # planes may be its features
        if n_chunks <= dataset.n_chunks and fitted.digest_leading_chunks(n_chunks) == digest:
            return TrainingRows(dataset, manifest["split"], n_chunks, skipped)
    return None


def _iter_candidate_datasets(artifact: Artifact, nearby: BinaryDataset) -> Iterator[BinaryDataset]:
    yield nearby.with_stored_segments()
    path = artifact.manifest["dataset"]["path"]
    if may_open(path, artifact.path, nearby.path):
        with suppress(DataError):
            yield open_dataset(path)
