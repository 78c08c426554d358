"""Datasets, artifacts and latent codes in Zarr."""

from storage.artifacts import Artifact, load_artifact
from storage.codes import Codes, open_codes
from storage.dataset import BinaryDataset, open_dataset

__all__ = ["Artifact", "BinaryDataset", "Codes", "load_artifact", "open_codes", "open_dataset"]
