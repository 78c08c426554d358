"""Reads an artifact's arrays where the work is, so that they do not travel with every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from storage.artifacts.artifacts import Artifact, load_artifact
from storage.errors import DataError


@dataclass(frozen=True)
class ArtifactReader:
    """Gives arrays in any process, which keeps them; small enough to send with every task.

    Attributes
    ----------
    path, digest
        The artifact, and what it must be.
    """

    path: str
    digest: str

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ArtifactReader:
        """Read this artifact again."""
        return cls(str(artifact.path.resolve()), artifact.manifest["manifest_digest"])

    def __call__(self) -> Mapping[str, NDArray[Any]]:
        """Give the arrays by name.

        Raises
        ------
        DataError
            If the artifact is not what it was.
        """
        return _load_cached(self.path, self.digest)


@lru_cache(maxsize=1)
def _load_cached(path: str, digest: str) -> Artifact:
    artifact = load_artifact(path)
    if artifact.manifest["manifest_digest"] != digest:
        raise DataError(f"{path}: Expected the artifact as it was at the start, got another.")
    return artifact
