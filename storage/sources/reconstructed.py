"""Rows that a transform turned codes back into: its bits, or its probabilities with a threshold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from storage.codes.codes import Codes, open_codes
from storage.errors import DataError
from storage.sources.arrays import make_number_batch
from storage.sources.base import Source, SourceBatch
from storage.sources.value_codes import ReadOptions


@dataclass(frozen=True, kw_only=True)
class ReconstructedSource(Source):
    """An array of codes, (row, feature), each run of its rows checked against the manifest.

    Attributes
    ----------
    array
        Its name.
    """

    is_streaming = True

    array: str

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read run by run."""
        codes, first = open_codes(self.path), 0
        for key in range(codes.n_chunks):
            values = codes.read_chunk(key, (self.array,))[self.array]
            for start, count in self.iter_row_ranges(len(values)):
                yield make_number_batch(self, values[start : start + count], first + start)
            first += len(values)


def open_reconstructed(path: str, options: ReadOptions) -> ReconstructedSource:
    """Open the bits among codes, or their probabilities where a threshold makes bits of them.

    Raises
    ------
    DataError
        If there are none of the features that the codes are of.
    """
    codes, array = open_codes(path), "bits" if options.threshold is None else "probabilities"
    names = tuple(codes.manifest.get("feature_names", ()))
    if array not in codes or codes.manifest["arrays"][array]["shape"][1:] != [len(names)]:
        raise _make_missing_array_error(codes, array)
    return ReconstructedSource(
        path=path, options=options, feature_names=names, n_rows=codes.n_rows, array=array
    )


def _make_missing_array_error(codes: Codes, array: str) -> DataError:
    return DataError(
        f"{codes.path}: Expected codes with {array} of all features, got {', '.join(codes)}. "
        f"Transform again with --reconstruct {array}."
    )
