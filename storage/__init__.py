"""Datasets and artifacts in Zarr."""

from storage.artifacts import Artifact, load_artifact
from storage.dataset import BinaryDataset, open_dataset

__all__ = ["Artifact", "BinaryDataset", "load_artifact", "open_dataset"]
