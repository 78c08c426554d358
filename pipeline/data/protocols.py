"""Protocols of datasets and stored artifacts, which `storage` implements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from pipeline.data.blocks import PackedChunk


class ReadChunk(Protocol):
    """Reads chunks by key."""

    def __call__(self, key: int) -> PackedChunk:
        """Read a chunk."""


class Dataset(Protocol):
    """A dataset on disk (`storage.open_dataset`) or in memory (`pipeline.data.in_memory`)."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments."""

    @property
    def levels(self) -> Mapping[str, Iterable[str]]:
        """Texts of the per-row columns that are stored as codes, in the order of the codes."""

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""

    def make_reader(
        self, split: str | None = None, memory: int = 0, *, columns: tuple[str, ...] = ()
    ) -> ReadChunk:
        """Return a function that reads chunks, or their rows of a split, with per-row columns."""


class StoredArtifact(Protocol):
    """A fitted model on disk, from `storage.load_artifact`: arrays by name, and a manifest."""

    @property
    def path(self) -> Any:
        """Its folder."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Settings, names, results and warnings of the fit."""

    def __getitem__(self, name: str) -> NDArray[Any]: ...
