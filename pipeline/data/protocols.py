"""What `pipeline.api.functions` is given: datasets and fitted models, as `storage` has them."""

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
    """Rows to work on: `storage.open_dataset` gives one, `pipeline.data.in_memory` another."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments."""

    @property
    def levels(self) -> Mapping[str, Iterable[str]]:
        """Texts of those per-row columns that hold codes of texts."""

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""

    def make_reader(
        self, split: str | None = None, memory: int = 0, *, columns: tuple[str, ...] = ()
    ) -> ReadChunk:
        """Give what reads chunks, or their rows of a split, with per-row columns."""


class StoredArtifact(Protocol):
    """A fitted model on disk: `storage.load_artifact` gives one."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What is recorded beside the arrays."""

    def __getitem__(self, name: str) -> NDArray[Any]: ...
