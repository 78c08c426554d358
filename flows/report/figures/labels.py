"""What rows are coloured by: a per-row column, or their segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.colours import COLOURS, GREY, MARKERS, MORE_COLOURS, Ramp, blend
from flows.report.figures.marks import Key
from flows.report.figures.rows import CodedRows
from pipeline.statistics.labels import SEGMENT

TOLD_APART = 12
"""Labels that have a colour and marker of their own."""
_STEPS, _FEW_ROWS = 24, 400
_COLOURS = (*COLOURS, *MORE_COLOURS)
_FIRST, _LAST = COLOURS[0], COLOURS[4]


class Labels(NamedTuple):
    """What rows are coloured by.

    Attributes
    ----------
    name
        What it is called.
    values
        Of each row, (n_rows,).
    order
        The values in their order where it means something, such as time; else empty.
    """

    name: str
    values: NDArray[Any]
    order: Sequence[Any] = ()


class Kind(NamedTuple):
    """Rows drawn alike."""

    key: Key
    rows: NDArray[np.intp]


def choose_labels(coded: CodedRows, segments: Sequence[str], name: str | None) -> Labels | None:
    """Give the label asked for; else the first column of few values; else the segments, if any.

    Segments are in the order of the data. Where there is neither and rows are few, it is the first
    column of texts: their names.
    """
    by_segment = Labels(SEGMENT, coded.segments, segments)
    if name in coded.columns:
        values = coded.columns[name]
        numeric = values.dtype.kind in "iuf"
        return Labels(name, values, np.unique(values).tolist() if numeric else ())
    if name is not None:
        return by_segment
    for column, values in coded.columns.items():
        if column != "split" and 2 <= len(set(values.tolist())) <= TOLD_APART:
            return Labels(column, values)
    if len(segments) > 1:
        return by_segment
    few = len(coded.codes) <= _FEW_ROWS
    names = [column for column, texts in coded.columns.items() if texts.dtype.kind in "OUT"]
    named = [column for column in names if few and column != "split"]
    return Labels(named[0], coded.columns[named[0]]) if named else None


def has_names(labels: Labels | None) -> bool:
    """Tell whether labels are too many to be told apart by colour, and in no order."""
    if labels is None or labels.order:
        return False
    return len({str(value) for value in labels.values}) > TOLD_APART


def coloured(labels: Labels | None, n_rows: int) -> tuple[list[Kind], Ramp | None]:
    """Group rows by label; the scale is that of labels in order, too many to be told apart."""
    if labels is None:
        return [Kind(Key("", COLOURS[0]), np.arange(n_rows))], None
    if len(labels.order) > TOLD_APART:
        return _in_order(labels)
    return _told_apart(labels), None


def _in_order(labels: Labels) -> tuple[list[Kind], Ramp]:
    parts = np.array_split(np.asarray(labels.order), min(_STEPS, len(labels.order)))
    colours = [blend(_FIRST, _LAST, k / (len(parts) - 1)) for k in range(len(parts))]
    kinds = [
        Kind(Key("", colour), np.flatnonzero(np.isin(labels.values.astype(part.dtype), part)))
        for part, colour in zip(parts, colours, strict=True)
    ]
    ends = (str(labels.order[0]), str(labels.order[-1]))
    return kinds, Ramp(f"{labels.name} {ends[0]}", ends[1], (_FIRST, _LAST))


def _told_apart(labels: Labels) -> list[Kind]:
    """Give the most frequent labels a look each; the others are grey together, and lie below."""
    texts = np.array([str(value) for value in labels.values], object)
    counts = Counter(texts.tolist())
    n_own = TOLD_APART if len(counts) <= TOLD_APART else TOLD_APART - 1
    frequent = {name for name, _ in counts.most_common(n_own)}
    own = sorted(frequent, key=_natural)
    kinds = [Kind(_look(name, k), np.flatnonzero(texts == name)) for k, name in enumerate(own)]
    others = np.flatnonzero([text not in frequent for text in texts])
    grey = [Kind(Key(f"{len(counts) - n_own} others", GREY), others)] if len(others) else []
    return grey + kinds


def _natural(name: str) -> tuple[float, str]:
    """Sort numbers by size, and before other names."""
    return (float(name), "") if name.isdecimal() else (np.inf, name)


def _look(name: str, k: int) -> Key:
    turn, colour = divmod(k, len(_COLOURS))
    return Key(name, _COLOURS[colour], MARKERS[(colour + 3 * turn) % len(MARKERS)])
