"""Tables of several scales: the scores of all rows, and the items of all scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from flows.exporting.artifacts import make_item_table
from flows.exporting.codes import make_code_table
from flows.exporting.files import BatchedTable
from storage.artifacts.artifacts import Artifact
from storage.codes.codes import Codes
from storage.dataset.dataset import BinaryDataset


class ScaleScores(NamedTuple):
    """The fit of a scale, the codes of all rows, and the dataset as the fit reads it."""

    artifact: Artifact
    codes: Codes
    dataset: BinaryDataset


def make_score_table(scores: Mapping[str, ScaleScores]) -> BatchedTable:
    """Make a table with one line per row: its number and stored columns, and its codes by scale.

    The codes `mean_1` and `sd_1` of the scale N are in the columns `N_mean_1` and `N_sd_1`.
    """
    tables = [make_code_table(own.codes, own.dataset) for own in scores.values()]
    dataset = next(iter(scores.values())).dataset
    n_labels = 1 + (dataset.n_segments > 1) + len(dataset.column_names)
    fields = [*tables[0].schema][:n_labels]
    for name, table in zip(scores, tables, strict=True):
        fields += [own.with_name(f"{name}_{own.name}") for own in [*table.schema][n_labels:]]
    schema = pa.schema(fields)
    return BatchedTable(schema, tables[0].n_rows, _join_batches(schema, tables, n_labels))


def _join_batches(
    schema: pa.Schema, tables: Sequence[BatchedTable], n_labels: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tables side by side; only the first keeps its `n_labels` first columns.

    The batches of the tables may have different lengths.
    """
    sources = [iter(table.batches) for table in tables]
    waiting: list[Any] = [next(source, None) for source in sources]
    while all(waiting):
        n_rows = min(batch.num_rows for batch in waiting)
        parts = [batch.slice(0, n_rows).columns for batch in waiting]
        columns = [*parts[0], *(column for part in parts[1:] for column in part[n_labels:])]
        yield pa.record_batch(columns, schema=schema)
        waiting = [
            batch.slice(n_rows) if batch.num_rows > n_rows else next(source, None)
            for batch, source in zip(waiting, sources, strict=True)
        ]


def make_scale_item_table(scores: Mapping[str, ScaleScores]) -> BatchedTable:
    """Make a table with one line per item and scale, with the columns of all tables of items."""
    tables = []
    for name, own in scores.items():
        table = pa.Table.from_batches(make_item_table(own.artifact).batches)
        scale = pa.array([name] * table.num_rows, pa.string())
        tables.append(table.add_column(0, "scale", scale))
    joined = pa.concat_tables(tables, promote_options="permissive")
    return BatchedTable(joined.schema, joined.num_rows, joined.to_batches())
