"""Labels that colour rows: a per-row column, or their segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.colours import (
    COLOURS,
    GREY,
    MARKERS,
    MORE_COLOURS,
    ColourRamp,
    blend_colours,
)
from flows.report.figures.marks import LegendKey
from flows.report.figures.rows import CodedRows
from pipeline.statistics.labels import SEGMENT

MAX_COLOURED_LABELS = 12
"""At most so many labels have a colour and marker of their own."""
_MAX_COLOUR_STEPS, _MAX_NAMED_ROWS = 24, 400
_COLOURS = (*COLOURS, *MORE_COLOURS)
_FIRST_COLOUR, _LAST_COLOUR = COLOURS[0], COLOURS[4]


class ColourLabels(NamedTuple):
    """Labels that colour rows.

    Attributes
    ----------
    name
        Name of the column.
    values
        Label of each row, (n_rows,).
    order
        The distinct values in order, if they have a meaningful order such as time; else empty.
    """

    name: str
    values: NDArray[Any]
    order: Sequence[Any] = ()


class RowGroup(NamedTuple):
    """Rows with the same colour and marker."""

    key: LegendKey
    rows: NDArray[np.intp]


def choose_labels(
    coded: CodedRows, segments: Sequence[str], name: str | None
) -> ColourLabels | None:
    """Return the column `name`, or else choose labels.

    The choice is the first column with few values; else the segments, in the order of the data;
    else, if there are few rows, the first column of texts, which probably names the rows.
    """
    by_segment = ColourLabels(SEGMENT, coded.segments, segments)
    if name in coded.columns:
        values = coded.columns[name]
        numeric = values.dtype.kind in "iuf"
        return ColourLabels(name, values, np.unique(values).tolist() if numeric else ())
    if name is not None:
        return by_segment
    for column, values in coded.columns.items():
        if column != "split" and 2 <= len(set(values.tolist())) <= MAX_COLOURED_LABELS:
            return ColourLabels(column, values)
    if len(segments) > 1:
        return by_segment
    few = len(coded.codes) <= _MAX_NAMED_ROWS
    names = [column for column, texts in coded.columns.items() if texts.dtype.kind in "OUT"]
    named = [column for column in names if few and column != "split"]
    return ColourLabels(named[0], coded.columns[named[0]]) if named else None


def has_too_many_labels(labels: ColourLabels | None) -> bool:
    """Return whether labels are unordered and too many to distinguish by colour."""
    if labels is None or labels.order:
        return False
    return len({str(value) for value in labels.values}) > MAX_COLOURED_LABELS


def group_rows_by_label(
    labels: ColourLabels | None, n_rows: int
) -> tuple[list[RowGroup], ColourRamp | None]:
    """Group rows by label; many ordered labels share a colour ramp, which is returned too."""
    if labels is None:
        return [RowGroup(LegendKey("", COLOURS[0]), np.arange(n_rows))], None
    if len(labels.order) > MAX_COLOURED_LABELS:
        return _group_by_order(labels)
    return _group_by_frequency(labels), None


def _group_by_order(labels: ColourLabels) -> tuple[list[RowGroup], ColourRamp]:
    parts = np.array_split(np.asarray(labels.order), min(_MAX_COLOUR_STEPS, len(labels.order)))
    colours = [
        blend_colours(_FIRST_COLOUR, _LAST_COLOUR, k / (len(parts) - 1)) for k in range(len(parts))
    ]
    kinds = [
        RowGroup(
            LegendKey("", colour), np.flatnonzero(np.isin(labels.values.astype(part.dtype), part))
        )
        for part, colour in zip(parts, colours, strict=True)
    ]
    ends = (str(labels.order[0]), str(labels.order[-1]))
    return kinds, ColourRamp(f"{labels.name} {ends[0]}", ends[1], (_FIRST_COLOUR, _LAST_COLOUR))


def _group_by_frequency(labels: ColourLabels) -> list[RowGroup]:
    """Assign frequent labels a colour and marker each; the others are one grey group below."""
    texts = np.array([str(value) for value in labels.values], object)
    counts = Counter(texts.tolist())
    n_own = MAX_COLOURED_LABELS if len(counts) <= MAX_COLOURED_LABELS else MAX_COLOURED_LABELS - 1
    frequent = {name for name, _ in counts.most_common(n_own)}
    own = sorted(frequent, key=_make_sort_key)
    kinds = [
        RowGroup(_choose_key(name, k), np.flatnonzero(texts == name)) for k, name in enumerate(own)
    ]
    others = np.flatnonzero([text not in frequent for text in texts])
    grey = (
        [RowGroup(LegendKey(f"{len(counts) - n_own} others", GREY), others)] if len(others) else []
    )
    return grey + kinds


def _make_sort_key(name: str) -> tuple[float, str]:
    """Return a key that sorts numbers by value, before other names."""
    return (float(name), "") if name.isdecimal() else (np.inf, name)


def _choose_key(name: str, k: int) -> LegendKey:
    turn, colour = divmod(k, len(_COLOURS))
    return LegendKey(name, _COLOURS[colour], MARKERS[(colour + 3 * turn) % len(MARKERS)])
