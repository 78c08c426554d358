"""Tables of the edges of fitted trees."""

from __future__ import annotations

import pyarrow as pa

from flows.data.datasets import LoadedModel
from flows.exporting.files import BatchedTable, make_table
from pipeline.inference.edges import find_tree_edges, make_edge_columns


def make_edge_table(fitted: LoadedModel) -> BatchedTable:
    """Make a table with one line per edge: tree by tree, the strongest edges first."""
    edges = find_tree_edges(fitted.model, fitted.params, str(fitted.artifact.path))
    columns = make_edge_columns(edges, fitted.feature_names)
    return make_table(
        {
            name: pa.array(
                values, pa.string() if name in ("feature", "parent") else None, from_pandas=True
            )
            for name, values in columns.items()
        }
    )
