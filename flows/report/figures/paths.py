"""The figure of positions over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import fit_axis
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
from storage.artifacts.artifacts import Artifact

_MAX_PATHS, _MAX_TICKS = 12, 8
_NORMAL_QUANTILE = 1.96  # of 97.5 %


def plot_paths(artifact: Artifact) -> Iterator[Figure]:
    """Plot the paths of members that have the most periods, with their 95 % intervals."""
    if "member" not in artifact:
        return
    record = artifact.manifest["periods"]
    member, position = artifact["member"], artifact["position"]
    times = artifact["times"][artifact["period"]]
    reach = _NORMAL_QUANTILE * artifact["position_error"]
    shown = _choose_members(member, position)
    marks: list[Mark] = []
    keys, values = [], []
    for k, own_member in enumerate(shown.tolist()):
        own, colour = np.flatnonzero(member == own_member), COLOURS[k % len(COLOURS)]
        marker = MARKERS[k // len(COLOURS) % len(MARKERS)]
        name = record["members"][own_member]
        low, high = position[own] - reach[own], position[own] + reach[own]
        facts = [
            (record["row_id"], [name] * len(own)),
            (record["time"], [f"{time:g}" for time in times[own]]),
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
    note = format_shown_count("members", len(shown), len(record["members"]))
    note += f"Shaded are 95 % intervals. Variance of changes in a unit of time: {innovation}."
    alt = f"Positions of {len(shown)} members over time with their 95 % intervals. {note}"
    plot = Plot(x, y, tuple(marks), height=380)
    yield Figure("Positions over time", alt, plot, note=note, keys=tuple(keys))


def _choose_members(member: NDArray[np.int64], position: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return members with the most periods, from the highest to the lowest mean position."""
    counts = np.bincount(member)
    longest = np.argsort(-counts, kind="stable")[:_MAX_PATHS]
    means = np.bincount(member, position) / np.maximum(counts, 1)
    return np.asarray(longest[np.argsort(-means[longest], kind="stable")])
