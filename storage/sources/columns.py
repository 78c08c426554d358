"""Sources of which only some columns are features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from storage.sources.base import Source, SourceBatch


@dataclass(frozen=True, kw_only=True)
class SelectedSource(Source):
    """Some features of another source."""

    source: Source

    @property
    def tags(self) -> Mapping[str, str]:
        """Those of the whole source."""
        return self.source.tags

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read all features and leave out the others."""
        at = np.flatnonzero(self.source.feature_mask)
        for batch in self.source.iter_batches():
            observed = None if batch.observed is None else batch.observed[:, at]
            yield SourceBatch(np.ascontiguousarray(batch.X[:, at]), observed, batch.columns)

    def check_first_rows(self) -> None:
        """Read the first rows as the whole source does."""
        self.source.check_first_rows()


def select_features(source: Source) -> Source:
    """Leave features out of a source that reads all of them."""
    if source.feature_mask.all():
        return source
    names = tuple(np.array(source.feature_names)[source.feature_mask].tolist())
    return SelectedSource(
        path=source.path,
        options=source.options,
        feature_names=names,
        n_rows=source.n_rows,
        column_names=source.column_names,
        default_segment=source.default_segment,
        default_split=source.default_split,
        source=source,
    )
