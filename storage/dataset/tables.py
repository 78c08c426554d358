"""The tables of a dataset, each read and checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.dataset.damage import make_damaged_dataset_error
from storage.errors import DataError
from storage.format.schema import open_checked_array
from storage.stores.locations import AnyPath, checksum

TableArray = NDArray[np.int64]


def read_table(
    folder: AnyPath, manifest: Mapping[str, Any], group: zarr.Group, name: str
) -> TableArray:
    """Read as much of a table as the manifest counts.

    Raises
    ------
    DataError
        If it is missing or damaged, or not that of the manifest.
    """
    try:
        table = open_checked_array(group, name)
        values = np.asarray(table[: manifest["n_blocks" if name == "blocks" else "n_chunks"]])
    except DataError as error:
        raise DataError(f"{folder}: {error} Ingest the dataset again.") from error
    except Exception as error:
        raise make_damaged_dataset_error(folder, error) from error
    if checksum(values) != manifest["tables"][name]:
        raise DataError(
            f"{folder}: {name}: Expected the table of the manifest, got another. "
            "Ingest the dataset again."
        )
    if name == "ones" and values.shape[1] != len(manifest["feature_names"]):
        raise DataError(
            f"{folder}: Expected names of {values.shape[1]} features, got "
            f"{len(manifest['feature_names'])}. Ingest the dataset again."
        )
    return values
