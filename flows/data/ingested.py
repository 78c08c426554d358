"""What there is to say of a dataset once it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from storage.dataset.dataset import BinaryDataset

_MAX_PADDING = 0.1
_MAX_NAMES = 5
_MIN_DISTINCT_SHARE = (
    0.9  # share of the rows with values of their own, from which on values are names
)
_MIN_ROWS, _MAX_ROWS_SEARCHED = 20, 200_000  # rows: at least, and about


def summarize_dataset(dataset: BinaryDataset, seconds: float) -> dict[str, Any]:
    """Describe a dataset in small values."""
    words = int(dataset.chunks[:, 2].sum())
    padding = 1 - dataset.n_rows / (64 * words)
    warned = dataset.n_segments > 1 and padding > _MAX_PADDING
    text = f"padding takes {padding:.0%} of the bits: segments have few rows within a chunk"
    warnings = [text] if warned else []
    return {
        "dataset": str(dataset.path),
        "n_rows": dataset.n_rows,
        "n_features": dataset.n_features,
        "n_segments": dataset.n_segments,
        "n_chunks": dataset.n_chunks,
        "columns": list(dataset.column_names),
        "left_out": list(dataset.manifest["ingest"].get("drop", ())),
        "warnings": [
            *warnings,
            *_warn_about_single_row_segments(dataset),
            *_warn_about_duplicate_names(dataset),
        ],
        "seconds": round(seconds, 3),
    }


def _warn_about_single_row_segments(dataset: BinaryDataset) -> list[str]:
    """Name the segments of one row, from which models of segments learn nothing."""
    _, segments, _, rows = dataset.blocks.T
    lone = np.flatnonzero(np.bincount(segments, rows, dataset.n_segments) == 1)
    if not len(lone):
        return []
    shown = _format_names([dataset.segment_names[segment] for segment in lone])
    return [f"segments of one row: {shown}; models that need segments leave them out"]


def _warn_about_duplicate_names(dataset: BinaryDataset) -> list[str]:
    """Tell of columns that name the rows, but several by one value."""
    shared = {name: _find_duplicate_names(dataset, name) for name in dataset.column_names}
    return [
        f"values of {name} that several rows have: {_format_names(values)}; if they name the rows, "
        "correct them"
        for name, values in shared.items()
        if values
    ]


def _find_duplicate_names(dataset: BinaryDataset, name: str) -> list[str]:
    """Give the values of several rows, if nearly all rows have one of their own; by the first."""
    are_names = name == _find_row_column(dataset)
    if not (are_names or _can_be_names(dataset, name)):
        return []
    counts = Counter(
        value
        for key in range(1 + int(np.searchsorted(dataset.chunks[1:, 0], _MAX_ROWS_SEARCHED)))
        for value in dataset.decode_texts(
            name, dataset.read_row_labels(key, [name])[1][name]
        ).tolist()
    )
    shared = [str(value) for value, n in counts.items() if n > 1 and value != ""]
    return shared if are_names or len(counts) > _MIN_DISTINCT_SHARE * counts.total() else []


def _find_row_column(dataset: BinaryDataset) -> str | None:
    """Give the column that a long table calls its row."""
    if not (long := dataset.manifest["ingest"].get("long")):
        return None
    from storage.sources.long_lines import parse_long_columns  # which imports Arrow

    return parse_long_columns(long).row


def _can_be_names(dataset: BinaryDataset, name: str) -> bool:
    """Leave out numbers that were measured, and texts of which there are too few."""
    if dataset.n_rows < _MIN_ROWS:
        return False
    if name in dataset.levels:
        return dataset.levels[name].pages[-1][0] > _MIN_DISTINCT_SHARE * dataset.n_rows
    return str(dataset.manifest["columns"][name]["kind"]) == "int"


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(map(repr, names[:_MAX_NAMES]))}{more}"
