"""Codes of rows as a table: which row each is of, what was kept of it, and its codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import pyarrow as pa

from flows.data.datasets import digest_leading_chunks
from flows.data.readahead import read_ahead
from flows.exporting.columns import Array, ArrayGroup, iter_columns
from flows.exporting.files import BatchedTable
from flows.exporting.labels import RowLabelReader
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.passes.row_ranges import ROW
from storage.codes.codes import Codes
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError


def find_coded_dataset(codes: Codes, given: BinaryDataset | None) -> BinaryDataset:
    """Give the dataset whose rows codes are of: the one given, or the one that is recorded.

    Raises
    ------
    DataError
        If it is not there, or its leading rows are not those.
    """
    recorded = codes.manifest.get("queries") or codes.manifest["dataset"]
    try:
        dataset = open_dataset(recorded["path"]) if given is None else given
    except DataError as error:
        raise DataError(f"{error} Give --dataset, of whose rows {codes.path} has codes.") from None
    n_chunks = int(recorded["n_chunks"])
    is_shorter = dataset.n_chunks < n_chunks
    if is_shorter or digest_leading_chunks(dataset, n_chunks) != recorded["chunks_digest"]:
        raise DataError(
            f"{dataset.path}: Expected the dataset whose rows {codes.path} has codes of, got "
            "another or a changed one. Give that one, or transform this one."
        )
    return dataset


def make_code_table(
    codes: Codes, dataset: BinaryDataset, progress: Progress = ignore_progress
) -> BatchedTable:
    """Give a line for each row that has codes: its number, what was kept of it, and its codes.

    Parameters
    ----------
    codes
        The codes.
    dataset
        Whose rows they are of.
    progress
        Is told after every batch.
    """
    batches = _iter_batches(codes, dataset, progress)
    first = next(batches)
    return BatchedTable(first.schema, codes.n_rows, chain([first], batches))


def _iter_batches(
    codes: Codes, dataset: BinaryDataset, progress: Progress
) -> Iterator[pa.RecordBatch]:
    labels, n_rows = RowLabelReader(dataset), 0
    progress("export", 0, codes.n_chunks, n_rows)
    chunks = read_ahead(map(codes.read_chunk, range(codes.n_chunks)))
    for done, arrays in enumerate(chunks, start=1):
        n_before, n_rows = n_rows, n_rows + len(next(iter(arrays.values())))
        rows = arrays.pop(ROW, np.arange(n_before, n_rows))
        coded = _make_code_columns(codes, arrays, dataset)
        yield pa.record_batch({**labels(rows, coded), **coded})
        progress("export", done, codes.n_chunks, n_rows)


def _make_code_columns(
    codes: Codes, arrays: Mapping[str, Array], dataset: BinaryDataset
) -> dict[str, Array]:
    names = {"feature": dataset.feature_names}
    quantities = _iter_array_groups({name: codes.dims(name)[1:] for name in arrays}, arrays)
    return dict(chain.from_iterable(iter_columns(quantity, names) for quantity in quantities))


def _iter_array_groups(
    dims: Mapping[str, tuple[str, ...]], arrays: Mapping[str, Array]
) -> Iterator[ArrayGroup]:
    """Put beside the means their standard errors, in place of the variances."""
    has_errors = "mean" in arrays and dims["mean"] == dims.get("variance")
    for name, values in arrays.items():
        if has_errors and name == "mean":
            yield ArrayGroup(dims[name], {name: values, "sd": np.sqrt(arrays["variance"])})
        elif not (has_errors and name == "variance"):
            yield ArrayGroup(dims[name], {name: values})
