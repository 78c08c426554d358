"""Members and times of rows, where a row holds the answers of one member in one period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.data.column_coders import ColumnCoder, make_level_coder
from pipeline.data.weights import ColumnPart
from pipeline.errors import FitError, FitWarning

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_MIN_TIMES = 4  # that tell how far apart times are
_FAR, _MAX_FAR_SHARE, _MAX_SHOWN = 10.0, 0.05, 5  # times the median gap; of all rows; rows


@dataclass(frozen=True)
class Periods:
    """The members of a fit, and the per-row columns that tell which row is whose, and when.

    Attributes
    ----------
    row_id, time
        Names of the columns.
    members
        The texts of `row_id`, in the order of the first rows of members.
    """

    row_id: str
    time: str
    members: tuple[str, ...]

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> Periods | None:
        """Read the members of a fit from its manifest; None if it has none."""
        if (record := manifest.get("periods")) is None:
            return None
        return cls(record["row_id"], record["time"], tuple(record["members"]))


@dataclass(frozen=True)
class RowPeriods:
    """Members and times of all rows of a fit; `measure_periods` creates it.

    Attributes
    ----------
    columns
        Their columns, and the members.
    member, time, row
        Index of the member, time, and original index of each row, sorted by the first two,
        (n_rows,).
    """

    columns: Periods
    member: Indices
    time: Array
    row: Indices

    def find_first_row(self, name: str) -> int | None:
        """Return the original index of a member's first row; None if there is no such member."""
        if name not in self.columns.members:
            return None
        return int(self.row[np.searchsorted(self.member, self.columns.members.index(name))])

    def make_warnings(self) -> tuple[FitWarning, ...]:
        """Return a warning that names times far from all others, such as codes of missing ones."""
        times = np.unique(self.time)
        gaps = np.diff(times)
        if len(times) < _MIN_TIMES:
            return ()
        cut = int(np.argmax(gaps)) + 1
        is_far = self.time < times[cut]
        if 2 * is_far.sum() > len(is_far):
            is_far = ~is_far
        others, typical = self.time[~is_far], float(np.median(gaps))
        if gaps[cut - 1] <= max(_FAR * typical, np.ptp(others)) or is_far.mean() > _MAX_FAR_SHARE:
            return ()
        shown = np.flatnonzero(is_far)[:_MAX_SHOWN]
        named = [f"{self.time[k]:.10g} (row {self.row[k] + 1})" for k in shown]
        n_more = int(is_far.sum()) - len(shown)
        text = (
            f"times of {self.columns.time} far from all others: {', '.join(named)}"
            f"{f' and {n_more:,} more' * (n_more > 0)}. They are {gaps[cut - 1]:.10g} away, but "
            f"neighbouring times are typically {typical:.10g} apart. If they stand for missing "
            "times, leave out their rows, which make the variance of changes too small"
        )
        return (FitWarning(text, parameter="time"),)


@runtime_checkable
class HasPositions(Protocol):
    """Parameters with the positions of members at some times."""

    def find_positions(self, block: BinaryBlock) -> Indices:
        """Return the index of the position of each row of a block; refuse rows without one."""


def measure_periods(
    row_id: str,
    time: str,
    ids: Iterable[ColumnPart],
    times: Iterable[ColumnPart],
    texts: Iterable[str] | None,
) -> RowPeriods:
    """Check the members and times of all rows, and sort them.

    Parameters
    ----------
    row_id, time
        Names of their columns.
    ids, times
        The columns, part by part.
    texts
        The texts of the codes of `row_id`; None if it holds whole numbers.

    Raises
    ------
    FitError
        If a row has no member or time, or if two rows are of the same member and time.
    """
    all_ids, all_times, all_rows = [], [], []
    for (rows, own_ids), (_, own_times) in zip(ids, times, strict=True):
        is_text = texts is not None
        is_missing = own_ids < 0 if is_text else own_ids != np.rint(own_ids)
        problem = "is empty" if is_text else "is no whole number"
        _refuse("row_id", row_id, rows, is_missing, problem)
        _refuse("time", time, rows, ~np.isfinite(own_times), "is missing or no number")
        all_rows.append(rows)
        all_ids.append(own_ids)
        all_times.append(own_times.astype(np.float64))
    rows, values, when = map(np.concatenate, (all_rows, all_ids, all_times))
    found, first, member = np.unique(values, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    names = name_members(found[np.argsort(first)], texts)
    member = rank[member]
    order = np.lexsort((rows, when, member))
    rows, member, when = rows[order], member[order], when[order]
    is_same = (np.diff(member) == 0) & (np.diff(when) == 0)
    if is_same.any():
        k = int(np.argmax(is_same))
        raise FitError(
            f"{{row_id}}: rows {rows[k] + 1} and {rows[k + 1] + 1} are both of "
            f"{names[member[k]]!r} at {time} {when[k]:.10g}. Join them, or leave one out."
        )
    return RowPeriods(Periods(row_id, time, names), member, when, rows)


def name_members(ids: NDArray[Any], texts: Iterable[str] | None) -> tuple[str, ...]:
    """Return the texts of codes, or of whole numbers if `texts` is None."""
    if texts is None:
        return tuple(f"{number:.0f}" for number in ids.tolist())
    names = [*texts]
    return tuple(names[code] for code in ids.tolist())


def _refuse(
    parameter: str, column: str, rows: Indices, is_wrong: NDArray[np.bool_], problem: str
) -> None:
    if is_wrong.any():
        row = int(rows[np.argmax(is_wrong)]) + 1
        raise FitError(
            f"{{{parameter}}}: row {row}: {column} {problem}. Leave out the row, or choose another "
            "column."
        )


def make_period_coders(
    periods: Periods, levels: Mapping[str, Iterable[str]]
) -> tuple[ColumnCoder, ColumnCoder]:
    """Make the coders of a row's member, −1 if the fit lacks it, and time.

    `levels` are the texts of the columns of the dataset.
    """
    places = np.append(np.arange(len(periods.members)), -1.0)[:, None]
    texts = levels.get(periods.row_id)
    return (
        make_level_coder(periods.row_id, periods.members, places, texts),
        ColumnCoder(periods.time),
    )
