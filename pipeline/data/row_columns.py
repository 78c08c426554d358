"""The per-row columns that a fit uses, besides weights and groups.

Everything that fits, transforms, evaluates or reports reads and records them by these methods, so
that a further column is a field here and a line in each of them. A plain number per row needs no
field of blocks: models find it in `BinaryBlock.columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pipeline.data.blocks import PackedChunk, RowSource
from pipeline.data.covariates import (
    Covariates,
    code_chunk,
    code_rows,
    have_same_columns,
    list_columns,
    read_covariates,
)
from pipeline.data.periods import Periods, add_periods, add_periods_to_chunk


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
        return add_periods(code_rows(rows, self.covariates, levels), self.periods, levels)

    def add_to_chunk(self, chunk: PackedChunk, levels: Mapping[str, Iterable[str]]) -> PackedChunk:
        """Return a chunk with what the model needs; parameters as for `add_to_rows`."""
        if self.covariates is not None:
            chunk = code_chunk(chunk, self.covariates, levels)
        if self.periods is not None:
            chunk = add_periods_to_chunk(chunk, self.periods, levels)
        return chunk


NO_COLUMNS = RowColumns()
