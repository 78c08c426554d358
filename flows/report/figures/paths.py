"""The figure and the table of positions over time, and who moved most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import fit_axis
from flows.report.figures.causes import TextTable
from flows.report.figures.colours import COLOURS, MARKERS
from flows.report.figures.marks import (
    AreaMark,
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    Tick,
)
from flows.report.figures.text import format_number, format_shown_count
from pipeline.numerics.gaussian.random_walk import compute_change_variance
from storage.artifacts.artifacts import Artifact

_MAX_PATHS, _MAX_TICKS = 12, 8
_WHO = ": those who moved most"
_NO_CHANGE = 0.005  # of positions, which are shown as 0.00
_NORMAL_QUANTILE = 1.96  # of 97.5 %


class PositionChange(NamedTuple):
    """The change of a member's position from its first to its last period.

    Attributes
    ----------
    name
        The member.
    first, last
        Times of these periods.
    start, end
        Positions then.
    error
        Standard error of the change, given the items.
    """

    name: str
    first: float
    last: float
    start: float
    end: float
    error: float

    @property
    def change(self) -> float:
        """The change."""
        return self.end - self.start

    @property
    def interval(self) -> str:
        """95 % interval of the change."""
        reach = _NORMAL_QUANTILE * self.error
        return f"{format_position(self.change - reach)} to {format_position(self.change + reach)}"

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return abs(self.change) > _NORMAL_QUANTILE * self.error


def format_position(value: float) -> str:
    """Format a position or its error, on the scale of first positions."""
    return f"{value:z,.2f}".replace("-", "−")


def find_changes(artifact: Artifact) -> list[PositionChange]:
    """Return the changes of the members who moved most, if positions change.

    Members with a single period are left out.
    """
    if "member" not in artifact:
        return []
    changes, times = [], artifact["times"][artifact["period"]]
    precision = 1 / artifact["position_error"] ** 2 - 1 / artifact["prior_variance"]
    innovation = float(artifact["innovation_variance"])
    for member in _choose_members(artifact):
        own = np.flatnonzero(artifact["member"] == member)
        if len(own) > 1:
            variance = compute_change_variance(times[own], precision[own].clip(0.0), innovation)
            name = artifact.manifest["periods"]["members"][member]
            first, last = times[own[[0, -1]]].tolist()
            start, end = artifact["position"][own[[0, -1]]].tolist()
            changes.append(PositionChange(name, first, last, start, end, float(np.sqrt(variance))))
    return changes if any(abs(own.change) > _NO_CHANGE for own in changes) else []


def make_change_table(artifact: Artifact) -> TextTable | None:
    """Return the table of the members who moved most; None if positions do not change."""
    changes = find_changes(artifact)
    if not changes:
        return None
    record = artifact.manifest["periods"]
    rows = tuple(
        (
            own.name,
            f"{own.first:.10g}",
            f"{own.last:.10g}",
            *(format_position(value) for value in (own.start, own.end, own.change)),
            own.interval,
        )
        for own in changes
    )
    columns = (
        *(record["row_id"], f"first {record['time']}", f"last {record['time']}"),
        *("position then", "position at the end", "change", "95 % interval"),
    )
    note = format_shown_count(
        "members", len(rows), len(record["members"]), ": those who moved most"
    )
    note += "Intervals are given the items."
    return TextTable("Changes of positions", columns, rows, note)


def plot_paths(artifact: Artifact) -> Iterator[Figure]:
    """Plot the paths of the members who moved most, with their 95 % intervals."""
    if "member" not in artifact:
        return
    record = artifact.manifest["periods"]
    member, position = artifact["member"], artifact["position"]
    times = artifact["times"][artifact["period"]]
    reach = _NORMAL_QUANTILE * artifact["position_error"]
    chosen = _choose_members(artifact)
    means = np.bincount(member, position) / np.bincount(member)
    shown = chosen[np.argsort(-means[chosen], kind="stable")]  # as in the plot, from above
    marks: list[Mark] = []
    keys, values = [], []
    for k, own_member in enumerate(shown.tolist()):
        own, colour = np.flatnonzero(member == own_member), COLOURS[k % len(COLOURS)]
        marker = MARKERS[k // len(COLOURS) % len(MARKERS)]
        name = record["members"][own_member]
        low, high = position[own] - reach[own], position[own] + reach[own]
        facts = [
            (record["row_id"], [name] * len(own)),
            (record["time"], [f"{time:.10g}" for time in times[own]]),
            ("position", [format_number(value, 3) for value in position[own]]),
            ("standard error", [format_number(v / _NORMAL_QUANTILE, 2) for v in reach[own]]),
        ]
        marks.append(AreaMark(times[own], low, high, colour, 0.1))
        marks.append(LineMarks([np.column_stack([times[own], position[own]])], [colour]))
        marks.append(PointMarks(times[own], position[own], colour, marker, 4.0, facts=facts))
        keys.append(LegendKey(name, colour, marker))
        values += [low, high]
    every = artifact["times"][:: len(artifact["times"]) // _MAX_TICKS + 1].tolist()
    ticks = tuple(Tick(time, f"{time:.10g}") for time in every)  # years have no comma
    x = replace(fit_axis(times, record["time"]), ticks=ticks)
    y = fit_axis(np.concatenate(values), "position")
    innovation = format_number(float(artifact["innovation_variance"]), 3)
    note = format_shown_count(
        "members", len(shown), len(record["members"]), ": those who moved most"
    )
    note += f"Shaded are 95 % intervals. Variance of changes in a unit of time: {innovation}."
    alt = f"Positions of {len(shown)} members over time with their 95 % intervals. {note}"
    plot = Plot(x, y, tuple(marks), height=380)
    yield Figure("Positions over time", alt, plot, note=note, keys=tuple(keys))


def _choose_members(artifact: Artifact) -> NDArray[np.int64]:
    """Return the members who moved most, the first one most, with all those of few."""
    member, position = artifact["member"], artifact["position"]
    first = np.flatnonzero(np.append(True, np.diff(member) > 0))
    last = np.append(first[1:], len(member)) - 1
    order = np.argsort(-np.abs(position[last] - position[first]), kind="stable")
    return np.asarray(member[first][order[:_MAX_PATHS]])
