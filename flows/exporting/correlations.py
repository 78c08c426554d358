"""The correlations of features that an artifact holds, as a table with a line for each pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flows.exporting.columns import Array, list_segment_names
from flows.exporting.files import BatchedTable
from pipeline.numerics.gaussian.tetrachoric import PairStatus
from storage.artifacts.artifacts import Artifact
from storage.codes.codes import Codes
from storage.errors import DataError

_PAIR_DIMS = ("feature", "feature_j")
_STRIP_ARRAYS = ("correlation", "status")
_PAIRS_PER_BATCH = 1 << 17


def make_correlation_table(artifact: Artifact) -> BatchedTable:
    """Give a line for each pair of features, in each segment where every one has its own.

    Correlations of which the data say nothing are missing, and the status says why.

    Raises
    ------
    DataError
        If the artifact has none.
    """
    if artifact.pairs is not None:
        return _make_table_from_strips(artifact, artifact.pairs)
    arrays = {
        name: values
        for name, values in artifact.items()
        if artifact.dims(name)[-2:] == _PAIR_DIMS and values.size
    }
    if not arrays:
        raise DataError(
            f"{artifact.path}: Expected an artifact with correlations of features, got one of "
            f"{artifact.manifest['model']}. Fit clipped-pca, or blica to segments."
        )
    is_by_segment = artifact.dims(next(iter(arrays)))[:-2] == ("segment",)
    segments = list_segment_names(artifact) if is_by_segment else []
    return _make_table_from_matrices(artifact, arrays, segments)


def _make_table_from_matrices(
    artifact: Artifact, arrays: Mapping[str, Array], segments: list[str]
) -> BatchedTable:
    """Give the pairs of arrays (n_features, n_features), or of those of all segments."""
    names = artifact.manifest["feature_names"]
    p, places = len(names), [*enumerate(segments)] or [(..., None)]
    step = max(1, _PAIRS_PER_BATCH // p)
    ranges = [range(first, min(first + step, p)) for first in range(0, p, step)]

    def batch(place: Any, segment: str | None, firsts: range) -> pa.RecordBatch:
        rows = {name: a[place][firsts.start : firsts.stop] for name, a in arrays.items()}
        return _make_batch(names, firsts, rows, segment)

    batches = (batch(*place, firsts) for place in places for firsts in ranges)
    return BatchedTable(
        batch(*places[0], range(0)).schema, len(places) * (p * (p - 1) // 2), batches
    )


def _make_table_from_strips(artifact: Artifact, pairs: Codes) -> BatchedTable:
    """Give the pairs of strips, reading one at a time."""
    names = artifact.manifest["feature_names"]
    p, step = len(names), max(1, _PAIRS_PER_BATCH // len(names))

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for key in range(pairs.n_chunks):
            strip = pairs.read_chunk(key, _STRIP_ARRAYS)
            height = len(strip["status"])
            for at in range(0, height, step):
                rows = {name: a[at : at + step] for name, a in strip.items()}
                firsts = range(first + at, first + min(at + step, height))
                yield _make_batch(names, firsts, rows, None)
            first += height

    none = {name: a[:0] for name, a in pairs.read_chunk(0, _STRIP_ARRAYS).items()}
    return BatchedTable(
        _make_batch(names, range(0), none, None).schema, p * (p - 1) // 2, batches()
    )


def _make_batch(
    features: Sequence[str], firsts: range, rows: Mapping[str, Array], segment: str | None
) -> pa.RecordBatch:
    """Give the pairs whose first feature is one of these, of rows (n_firsts, n_features)."""
    i, j = np.nonzero(np.arange(len(features)) > np.array(firsts)[:, None])
    names = pa.array(features, pa.string())
    first, second = names.take(pa.array(i + firsts.start)), names.take(pa.array(j))
    found = {"feature_1": first, "feature_2": second}
    if segment is not None:
        found["segment"] = pa.repeat(pa.scalar(segment), len(i))
    return pa.record_batch({**found, **dict(_iter_pair_columns(rows, (i, j)))})


def _iter_pair_columns(
    arrays: Mapping[str, Array], at: tuple[object, ...]
) -> Iterator[tuple[str, pa.Array]]:
    """Give the numbers of pairs, where the data say something of them, and their statuses."""
    statuses = {name: values[at] for name, values in arrays.items() if name.endswith("status")}
    unknown = np.any([a >= PairStatus.CONSTANT_FEATURE for a in statuses.values()], axis=0)
    for name, values in arrays.items():
        if name in statuses:
            words = pa.array([status.name.lower().replace("_", " ") for status in PairStatus])
            yield "status", words.take(pa.array(statuses[name]))
        else:
            yield name.removesuffix("s"), pa.array(values[at], mask=unknown)
