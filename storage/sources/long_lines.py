"""The lines of long tables, in runs: of each the columns that are wanted, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from storage.errors import DataError
from storage.object_path import is_url
from storage.sources.base import reading
from storage.sources.remote import local_copy
from storage.sources.text import open_text

_BLOCK_BYTES = 1 << 25
_PARTS = ("row", "feature", "value")


class Columns(NamedTuple):
    """Columns of a long table.

    Attributes
    ----------
    row, feature
        Which name the row and the feature of a line.
    value
        Which has the value; without it a line says 1, and what no line names is 0.
    """

    row: str
    feature: str
    value: str | None = None


def parse_long(text: str) -> Columns:
    """Read `row=COLUMN,feature=COLUMN,value=COLUMN`.

    Raises
    ------
    DataError
        If it is not written so.
    """
    pairs = [pair.partition("=")[::2] for pair in text.split(",")]
    found = {name.strip(): column.strip() for name, column in pairs}
    if len(found) < len(pairs) or not {"row", "feature"} <= found.keys() <= {*_PARTS}:
        raise DataError(
            f"--long {text}: Expected row=COLUMN,feature=COLUMN and value=COLUMN where there are "
            "values."
        )
    if "" in found.values():
        raise DataError(f"--long {text}: Expected a column behind every =, got none.")
    return Columns(**found)


class Lines(NamedTuple):
    """A run of lines of one file, from `first` on."""

    path: str
    first: int
    table: pa.RecordBatch

    def column(self, name: str) -> pa.Array:
        """Give a column's texts."""
        return self.table.column(name)

    def place(self, at: int) -> str:
        """Say where a line stands."""
        return f"{self.path}: row {self.first + at + 1} (data rows counted from 1)"


def read_lines(
    paths: Sequence[str], columns: Columns, others: Sequence[str], seen: dict[str, str]
) -> Iterator[Lines]:
    """Read the columns wanted as text, a run of lines at a time; notes tags of remote files."""
    wanted = [*dict.fromkeys([name for name in columns if name is not None] + [*others])]
    for path in paths:
        first = 0
        with (
            reading(path),
            local_copy(path, seen.get(path)) as (copy, tag),
            _opened(copy, wanted) as batches,
        ):
            if is_url(path):
                seen[path] = tag
            for batch in batches:
                yield Lines(path, first, batch)
                first += batch.num_rows


@contextmanager
def _opened(path: str, wanted: Sequence[str]) -> Iterator[Iterator[pa.RecordBatch]]:
    if path.lower().endswith(".parquet"):
        with pa.parquet.ParquetFile(path, memory_map=True) as file:
            _check_columns(path, wanted, file.schema_arrow.names)
            yield (_as_text(b, wanted) for b in file.iter_batches(columns=[*wanted]))
        return
    from storage.sources.tables import header_of  # which imports Arrow's CSV reader too

    delimiter, names = header_of(path)
    _check_columns(path, wanted, names)
    with open_text(path) as stream:
        yield pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(block_size=_BLOCK_BYTES),
            pa.csv.ParseOptions(delimiter=delimiter),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=[*wanted],
                strings_can_be_null=False,
            ),
        )


def _as_text(batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
    columns = (batch.column(name) for name in wanted)
    texts = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
    return pa.record_batch([text.cast(pa.string()) for text in texts], names=[*wanted])


def _check_columns(path: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise DataError(
                f"{path}: Expected a column {name!r}, got none of that name among "
                f"{', '.join(names[:8])}. Check --long and --keep."
            )
