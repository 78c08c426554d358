"""The correlations of features that an artifact holds, as a table with a line for each pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from flows.exporting.columns import Array, segment_labels
from flows.exporting.files import Table
from pipeline.numerics.tetrachoric import PairStatus
from storage.artifacts import Artifact
from storage.errors import DataError

_PAIR = ("feature", "feature_j")
_PAIRS_AT_ONCE = 1 << 17


def correlation_table(artifact: Artifact) -> Table:
    """Give a line for each pair of features, in each segment where every one has its own.

    Correlations of which the data say nothing are missing, and the status says why.

    Raises
    ------
    DataError
        If the artifact has none.
    """
    arrays = {
        name: values
        for name, values in artifact.items()
        if artifact.dims(name)[-2:] == _PAIR and values.size
    }
    if not arrays:
        raise DataError(
            f"{artifact.path}: Expected an artifact with correlations of features, got one of "
            f"{artifact.manifest['model']}. Fit clipped-pca, or blica to segments."
        )
    is_by_segment = artifact.dims(next(iter(arrays)))[:-2] == ("segment",)
    segments = segment_labels(artifact) if is_by_segment else []
    return _Pairs(tuple(artifact.manifest["feature_names"]), segments, arrays).table()


@dataclass(frozen=True)
class _Pairs:
    """Names, and arrays of pairs: (n_features, n_features), or those of all segments."""

    features: tuple[str, ...]
    segments: list[str]
    arrays: Mapping[str, Array]

    def table(self) -> Table:
        """Give all pairs, segment by segment."""
        p, places = len(self.features), [*range(len(self.segments))] or [None]
        nothing = self._batch(places[0], range(0))
        step = max(1, _PAIRS_AT_ONCE // p)
        ranges = [range(first, min(first + step, p)) for first in range(0, p, step)]
        batches = (self._batch(place, firsts) for place in places for firsts in ranges)
        return Table(nothing.schema, len(places) * (p * (p - 1) // 2), batches)

    def _batch(self, segment: int | None, firsts: range) -> pa.RecordBatch:
        """Give the pairs whose first feature is one of these."""
        i, j = np.nonzero(np.arange(len(self.features)) > np.array(firsts)[:, None])
        i += firsts.start
        names = pa.array(self.features, pa.string())
        found = {"feature_1": names.take(pa.array(i)), "feature_2": names.take(pa.array(j))}
        if segment is not None:
            found["segment"] = pa.repeat(pa.scalar(self.segments[segment]), len(i))
        at = (i, j) if segment is None else (segment, i, j)
        return pa.record_batch({**found, **dict(_values(self.arrays, at))})


def _values(arrays: Mapping[str, Array], at: tuple[object, ...]) -> Iterator[tuple[str, pa.Array]]:
    """Give the numbers of pairs, where the data say something of them, and their statuses."""
    statuses = {name: values[at] for name, values in arrays.items() if name.endswith("status")}
    unknown = np.any([a >= PairStatus.CONSTANT_FEATURE for a in statuses.values()], axis=0)
    for name, values in arrays.items():
        if name in statuses:
            words = pa.array([status.name.lower().replace("_", " ") for status in PairStatus])
            yield "status", words.take(pa.array(statuses[name]))
        else:
            yield name.removesuffix("s"), pa.array(values[at], mask=unknown)
