"""Zarr arrays of version 2 or 3, and the reconstructed rows among latent codes."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.codes.codes import Codes, open_codes
from storage.errors import DataError
from storage.format.schema import CODES_FORMAT, SAFE_CODECS, check_codecs
from storage.sources.absent_chunks import handle_absent_chunks
from storage.sources.arrays import make_dimensions_error, make_number_batch
from storage.sources.base import Source, SourceBatch, make_feature_names
from storage.sources.ordered_levels import make_level_map
from storage.sources.value_codes import ReadOptions, check_numeric
from storage.stores.locations import DATASET_FORMAT, MANIFEST_NAME


@dataclass(frozen=True, kw_only=True)
class ZarrSource(Source):
    """A Zarr matrix, (n_samples, n_features); `array` is its path inside the store."""

    is_streaming = True
    can_be_continuous = True

    array: str

    def _read_batches(self) -> Generator[SourceBatch]:
        """Read whole rows of chunks, so that each chunk is decoded once."""
        array = self._array_and_warning[0]
        n_rows, chunk_rows = array.shape[0], array.chunks[0]
        step = chunk_rows * max(1, self.batch_rows // chunk_rows)
        for first in range(0, n_rows, step):
            values: NDArray[Any] = array[first : min(first + step, n_rows)]
            is_masked = np.ma.isMaskedArray(values)
            observed = (~np.ma.getmaskarray(values)).view(np.uint8) if is_masked else None
            values = np.ma.getdata(values)
            for start, count in self.iter_row_ranges(len(values)):
                own = slice(start, start + count)
                mask = None if observed is None else observed[own]
                yield make_number_batch(self, values[own], first + start, observed=mask)

    def check_first_rows(self) -> None:
        """Check for absent chunks, if they are refused, and read the first rows."""
        _ = self._array_and_warning
        super().check_first_rows()

    def list_warnings(self) -> list[str]:
        """Warn about absent chunks."""
        warning = self._array_and_warning[1]
        return [] if warning is None else [warning]

    @cached_property
    def _array_and_warning(self) -> tuple[Any, str | None]:
        """The array to read, and a warning about absent chunks; the store is listed once."""
        array: zarr.Array[Any] = zarr.open_array(self.path, path=self.array, mode="r")
        return handle_absent_chunks(self.path, array, self.options.absent_chunks)


def is_zarr(path: str) -> bool:
    """Return whether a directory holds Zarr metadata."""
    return any((Path(path) / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def open_zarr(path: str, options: ReadOptions) -> Source:
    """Open a Zarr array, the array `X` of a Zarr group, or reconstructed rows."""
    _check_metadata(path)
    node = zarr.open(path, mode="r")
    if node.attrs.get("format") == CODES_FORMAT:
        return open_reconstructed(path, options)
    array, name = _find_matrix(path, node)
    if array.ndim != 2:
        raise make_dimensions_error(path, array.ndim)
    check_codecs(path, array.metadata.to_dict(), SAFE_CODECS)
    check_numeric(path, array.dtype)
    n_rows, n_features = array.shape
    return ZarrSource(
        path=path,
        options=options,
        feature_names=make_feature_names(n_features),
        n_rows=n_rows,
        array=name,
    )


def _check_metadata(path: str) -> None:
    """Refuse unsafe codecs before Zarr fails to find their data types."""
    for folder in (Path(path), Path(path) / "X"):
        for file in (folder / ".zarray", folder / "zarr.json"):
            if file.is_file():
                check_codecs(path, json.loads(file.read_text(encoding="utf-8")), SAFE_CODECS)


def _find_matrix(path: str, node: zarr.Array[Any] | zarr.Group) -> tuple[zarr.Array[Any], str]:
    if isinstance(node, zarr.Array):
        return node, ""
    if node.attrs.get("format") == DATASET_FORMAT or (Path(path) / MANIFEST_NAME).exists():
        raise DataError(f"{path}: this is already a dataset. Use it with {{dataset}}.")
    names = [name for name, array in node.arrays() if array.ndim == 2]
    if names != ["X"]:
        raise DataError(
            f"{path}: the group must have one matrix, 'X', but has "
            f"{', '.join(map(repr, sorted(names))) or 'none'}. Name the array's own directory."
        )
    array = node["X"]
    assert isinstance(array, zarr.Array)
    return array, "X"


@dataclass(frozen=True, kw_only=True)
class ReconstructedSource(Source):
    """Rows that a transform reconstructed or completed, (row, feature), checked by the manifest.

    `array` is "bits", "levels" or "probabilities", or one of these after "imputed_".
    """

    is_streaming = True

    array: str

    def _read_batches(self) -> Generator[SourceBatch]:
        """Read range by range."""
        codes, first = open_codes(self.path), 0
        for key in range(codes.n_chunks):
            values = codes.read_chunk(key, (self.array,))[self.array]
            for start, count in self.iter_row_ranges(len(values)):
                yield make_number_batch(self, values[start : start + count], first + start)
            first += len(values)


def open_reconstructed(path: str, options: ReadOptions) -> ReconstructedSource:
    """Open the reconstructed or imputed bits or levels, or probabilities if there is a threshold.

    Raises
    ------
    DataError
        If there are none, or both reconstructed and imputed ones.
    """
    codes = open_codes(path)
    levels = codes.manifest.get("feature_levels", {})
    has_levels = not {"levels", "imputed_levels"}.isdisjoint(codes) or any(
        len(own) > 2 for own in levels.values()
    )
    array = "levels" if has_levels else "bits"
    if options.threshold is not None:
        array = "probabilities"
    elif has_levels:
        maps = {
            name: make_level_map(name, own, path, [(str(code), code) for code in range(len(own))])
            for name, own in levels.items()
        }
        options = replace(options, feature_maps={**maps, **options.feature_maps})
    if f"imputed_{array}" in codes:
        if array in codes:
            raise DataError(
                f"{path}: the codes have both {array} and imputed_{array}. Transform again with "
                "only one of {reconstruct} and {impute}."
            )
        array = f"imputed_{array}"
    names = tuple(codes.manifest.get("feature_names", ()))
    if array not in codes or codes.manifest["arrays"][array]["shape"][1:] != [len(names)]:
        raise _make_missing_array_error(codes, array.removeprefix("imputed_"), has_levels)
    return ReconstructedSource(
        path=path, options=options, feature_names=names, n_rows=codes.n_rows, array=array
    )


def _make_missing_array_error(codes: Codes, array: str, has_levels: bool) -> DataError:
    option = "impute" if any(name.startswith("imputed_") for name in codes) else "reconstruct"
    remedy = f"Transform again with {{{option}={array}}}."
    if has_levels and array == "probabilities":  # they have a column for each level
        remedy = f"Transform with {{{option}=levels}}, and leave out {{threshold}}."
    return DataError(
        f"{codes.path}: the codes have {', '.join(codes)}, but not the {array} of all features. "
        f"{remedy}"
    )
