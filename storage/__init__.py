"""Datasets, artifacts and latent codes in Zarr."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.artifacts.artifacts import Artifact, load_artifact
    from storage.codes.codes import Codes, open_codes
    from storage.dataset.dataset import BinaryDataset, open_dataset

__all__ = ["Artifact", "BinaryDataset", "Codes", "load_artifact", "open_codes", "open_dataset"]

_MODULES = {
    "Artifact": "artifacts.artifacts",
    "BinaryDataset": "dataset.dataset",
    "Codes": "codes.codes",
    "load_artifact": "artifacts.artifacts",
    "open_codes": "codes.codes",
    "open_dataset": "dataset.dataset",
}


def __getattr__(name: str) -> object:
    """Import a name on first use: Zarr is slow to import, and is not needed to refuse an option."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
