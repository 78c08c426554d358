"""Parquet files, and the source that any table of Arrow record batches becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from storage.errors import DataError
from storage.sources.arrow_columns import is_feature_type, make_table_batch
from storage.sources.base import (
    Source,
    SourceBatch,
    check_column_names,
    select_feature_names,
    translate_read_errors,
)
from storage.sources.value_codes import ReadOptions

RecordReader = Callable[[str, Sequence[str], int], Iterator[pa.RecordBatch]]
"""Reads columns of a file, this many rows at a time."""


@dataclass(frozen=True, kw_only=True)
class RecordSource(Source):
    """A table that a library reads as Arrow record batches.

    Attributes
    ----------
    read_records
        Reads the record batches.
    """

    is_streaming = True
    can_select_columns = True

    read_records: RecordReader

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read ranges of rows."""
        names, first_row = [*self.feature_names, *self.column_names], 0
        with translate_read_errors(self.path), closing(self._iter_records(names)) as records:
            for rows in records:
                yield make_table_batch(self, rows, first_row, self.options)
                first_row += rows.num_rows

    def _iter_records(self, names: Sequence[str]) -> Any:
        return self.read_records(self.path, names, self.batch_rows)


def make_record_source(
    path: str, options: ReadOptions, names: Sequence[str], n_rows: int | None, records: RecordReader
) -> RecordSource:
    """Return the source of a table with named columns."""
    check_column_names(path, names)
    row_columns = dict.fromkeys(options.row_columns)
    features = select_feature_names(
        path, [name for name in names if name not in row_columns], options
    )
    return RecordSource(
        path=path,
        options=options,
        feature_names=features,
        n_rows=n_rows,
        column_names=tuple(name for name in row_columns if name in names),
        read_records=records,
    )


def open_parquet(path: str, options: ReadOptions) -> RecordSource:
    """Open a `.parquet` file; this reads its footer."""
    with translate_read_errors(path), pa.parquet.ParquetFile(path) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
    source = make_record_source(path, options, schema.names, n_rows, _iter_parquet)
    for name in source.feature_names:
        if not is_feature_type(schema.field(name).type):
            raise DataError(
                f"{path}: column {name!r} holds {schema.field(name).type}, not booleans, numbers "
                f"or text. Use {{keep={name}}} to keep it as a per-row column."
            )
    return source


def _iter_parquet(path: str, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path, memory_map=True) as file:
        yield from file.iter_batches(n_rows, columns=[*names])
