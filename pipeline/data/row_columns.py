"""The per-row columns that a fit uses, besides weights and groups.

Everything that fits, transforms, evaluates or reports reads and records them by these methods, so
that a further column is a field here and a line in each of them. A plain number per row needs no
field of blocks: models find it in `BinaryBlock.columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from pipeline.data.blocks import (
    AnnotatedChunk,
    PackedChunk,
    RowSource,
    annotate_chunk,
    start_reading,
)
from pipeline.data.column_coders import ColumnCoder
from pipeline.data.covariates import (
    Covariates,
    have_same_columns,
    list_columns,
    make_covariate_coder,
    read_covariates,
)
from pipeline.data.periods import Periods, make_period_coders


@dataclass(frozen=True)
class RowColumns:
    """The per-row columns of a fit; None stands for those that it does not use.

    Attributes
    ----------
    covariates
        The covariates of the rows.
    periods
        The members and times of the rows.
    """

    covariates: Covariates | None = None
    periods: Periods | None = None

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> Self:
        """Return the columns that a manifest records."""
        return cls(read_covariates(manifest), Periods.read(manifest))

    def describe(self) -> dict[str, Any]:
        """Describe the columns for a manifest."""
        described = {} if self.covariates is None else {"covariates": self.covariates.describe()}
        return described if self.periods is None else {**described, "periods": vars(self.periods)}

    @property
    def roles(self) -> dict[str, str]:
        """What each column is for the fit, by name."""
        own = () if self.covariates is None else self.covariates.columns
        roles = {column.name: "covariates" for column in own}
        if self.periods is not None:
            roles |= {self.periods.row_id: "row ids", self.periods.time: "times"}
        return roles

    def have_same_columns(self, other: RowColumns) -> bool:
        """Return whether two fits use the same columns in the same way."""
        return have_same_columns(self.covariates, other.covariates) and (
            self.periods == other.periods
        )

    def list_columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns to read as they are stored, and those to read as numbers."""
        stored, numbers = list_columns(self.covariates)
        if self.periods is None:
            return stored, numbers
        return (*stored, self.periods.row_id), (*numbers, self.periods.time)

    def add_to_rows(self, rows: RowSource, levels: Mapping[str, Iterable[str]]) -> RowSource:
        """Return rows with what the model needs of the columns, which their reader reads.

        `levels` are the texts of the columns of the dataset.
        """
        coders = self._make_coders(levels)
        return replace(rows, read=_CodingReader(rows.read, coders)) if coders else rows

    def add_to_chunk(self, chunk: PackedChunk, levels: Mapping[str, Iterable[str]]) -> PackedChunk:
        """Return a chunk with what the model needs; parameters as for `add_to_rows`."""
        coders = self._make_coders(levels)
        return _code_chunk(chunk, coders) if coders else chunk

    def _make_coders(self, levels: Mapping[str, Iterable[str]]) -> tuple[ColumnCoder, ...]:
        columns = () if self.covariates is None else self.covariates.columns
        coders = tuple(make_covariate_coder(column, levels) for column in columns)
        return coders if self.periods is None else coders + make_period_coders(self.periods, levels)


def _code_chunk(chunk: PackedChunk, coders: Sequence[ColumnCoder]) -> AnnotatedChunk:
    coded = [coder.encode(chunk.columns[coder.name]) for coder in coders]
    return replace(annotate_chunk(chunk), covariates=np.concatenate(coded, axis=1))


@dataclass(frozen=True)
class _CodingReader:
    """Reads chunks with what the model needs of the columns of their rows, in any process."""

    read: Callable[[int], PackedChunk]
    coders: tuple[ColumnCoder, ...]

    def __call__(self, key: int) -> AnnotatedChunk:
        return _code_chunk(self.read(key), self.coders)

    def read_ahead(self, keys: Iterable[int]) -> None:
        """Start to read the chunks that are needed next."""
        start_reading(self.read, keys)


NO_COLUMNS = RowColumns()
