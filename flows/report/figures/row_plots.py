"""Scatter plots of rows by their latent codes, and the labels that colour the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import fit_axis, fit_square_axes, make_name_axis
from flows.report.figures.colours import (
    COLOURS,
    GREY,
    MARKERS,
    MORE_COLOURS,
    ColourRamp,
    blend_colours,
)
from flows.report.figures.marks import (
    Axis,
    AxisChoice,
    AxisOption,
    Figure,
    HoverFacts,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RuleMark,
    TextMarks,
)
from flows.report.figures.rows import CodedRows
from flows.report.figures.text import format_number, shorten_text
from pipeline.models.vocabulary import Vocabulary
from pipeline.statistics.labels import SEGMENT

Array = NDArray[np.float64]

_MAX_HOVER_COLUMNS, _MAX_CHOICES = 6, 12
_POINT_SIZE, _MAX_POINT_SIZE = 6.0, 26.0
_MAX_NAME_LENGTH, _RANGE_PADDING = 24, 0.125
MAX_COLOURED_LABELS = 12
"""Maximum number of labels with their own colour and marker."""
_MAX_COLOUR_STEPS = 24
MAX_NAMED_ROWS = 600
"""Maximum number of rows with names in figures."""
# The tallest picture fits on a page of a journal, about 240 mm, with names of 7 points.
_MAX_POSITION_FIGURES, _MAX_ROWS_PER_FIGURE, _ROW_HEIGHT = 2, 70, 14
_NORMAL_QUANTILE = 1.96  # of 97.5 %
_COLOURS = (*COLOURS, *MORE_COLOURS)
_FIRST_COLOUR, _LAST_COLOUR = COLOURS[0], COLOURS[4]
# Pixels: width of a plot on a phone, where names have the least room; size of a letter.
_PLOT_WIDTH, _LETTER_SIZE = 290.0, np.array([6.5, 13.0])


def plot_strip(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Plot rows along the only component."""
    heights = np.random.default_rng(0).uniform(-1, 1, len(coded.codes))
    note = f" The vertical spread only keeps {coded.words.rows} apart."
    return _scatter_rows(np.column_stack([coded.codes[:, 0], heights]), coded, labels, note)


def plot_plane(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Plot rows by the first two components, with a choice of others."""
    return _scatter_rows(coded.codes[:, :_MAX_CHOICES], coded, labels, "")


def _scatter_rows(
    points: Array, coded: CodedRows, labels: ColourLabels | None, note: str
) -> Figure:
    written_labels = labels if has_too_many_labels(labels) else None
    groups, ramp = group_rows_by_label(None if written_labels else labels, len(points))
    placed_marks = [
        mark_rows(points[group.rows], describe_rows(coded, group.rows), group.key)
        for group in groups
    ]
    if written_labels:
        names, names_note = _label_rows(points, written_labels)
        placed_marks, note = [*placed_marks, names], note + names_note
    marks, places = tuple(mark for mark, _ in placed_marks), [place for _, place in placed_marks]
    n_components, words = coded.codes.shape[1], coded.words
    room = _RANGE_PADDING if written_labels else 0.05
    if n_components == 1:
        x = fit_axis(points[:, 0], words.name_component(0), room)
        y = Axis(-1.3, 1.3, has_lines=False)
        plot = Plot(x, y, marks, height=220)
    else:
        axes = words.name_component(0), words.name_component(1)
        plot = Plot(*fit_square_axes(points[:, :2], axes, room), marks)
    components = words.name_component(0)
    if n_components > 1:
        pair = " and ".join(words.label_components(2))
        components = f"{pair if words.names else f'{words.components} {pair}'} of {n_components}"
    subject = f"Codes of {len(points):,} {coded.words.rows}"
    subject += f", by {labels.name}" if labels else ""
    alt = f"{subject}: {components}."
    choices = _make_axis_choices(points, places, room, words) if n_components > 2 else ()
    return Figure(
        "Rows in latent space",
        alt,
        plot,
        note=(f"{subject}." if choices else alt) + note,
        keys=() if ramp or written_labels or labels is None else tuple(g.key for g in groups),
        ramp=ramp,
        choices=choices,
        heading=f"{coded.words.rows.capitalize()} in latent space",
    )


def plot_positions(
    coded: CodedRows,
    names: ColourLabels,
    labels: ColourLabels | None,
    anchors: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Iterator[Figure]:
    """Plot the positions of named rows on the leading components, sorted, with 95 % intervals.

    Positions have mean 0 and standard deviation 1 over the rows, or the scale of `anchors`, the
    positions of rows by name. `labels` colours the rows. Many rows are divided into several figures
    with the same axes.
    """
    if has_too_many_labels(labels) or (labels and labels.name == names.name):
        labels = None
    groups, ramp = group_rows_by_label(labels, len(coded.codes))
    texts, words = [str(value) for value in names.values], coded.words
    for k in range(min(coded.codes.shape[1], _MAX_POSITION_FIGURES)):
        codes = coded.codes[:, k]
        if (scale := float(codes.std())) == 0:
            continue
        is_anchored = any(len(position) > k for position in anchors.values())
        middle, scale = (0.0, 1.0) if is_anchored else (float(codes.mean()), scale)
        positions = (codes - middle) / scale
        reach = _NORMAL_QUANTILE * np.sqrt(coded.variances[:, k]) / scale
        ends = np.stack([positions - reach, positions + reach], axis=1)
        order = np.argsort(-positions, kind="stable")
        pages = np.array_split(order, -(-len(order) // _MAX_ROWS_PER_FIGURE))
        x = fit_axis(
            np.concatenate([positions, ends.ravel()]), f"position on {words.name_component(k)}"
        )
        title = f"Positions on component {k + 1}"
        heading = f"Positions on {words.name_component(k)}"
        note = f"Positions have mean 0 and standard deviation 1 over the {len(codes):,} "
        note += f"{words.rows} shown."
        if is_anchored:
            fixed = (f"{name} = {position[k]:g}" for name, position in anchors.items())
            note = f"Positions are on the scale of the anchors, {', '.join(fixed)}."
        note += " Lines are 95 % intervals." if np.isfinite(ends).any() else ""
        for number, page in enumerate(pages, start=1):
            part = f", part {number} of {len(pages)}" if len(pages) > 1 else ""
            plot = _plot_position_page(page, texts, positions, ends, groups, x)
            ends_text = f"from {texts[page[0]]} to {texts[page[-1]]}"
            yield Figure(
                f"{title}{part}",
                f"{heading} of {len(page)} {words.rows}{part}, {ends_text}.",
                plot,
                note=note,
                keys=() if ramp or labels is None else tuple(group.key for group in groups),
                ramp=ramp,
                heading=f"{heading}{part}",
            )


def _plot_position_page(
    page: NDArray[np.intp],
    names: Sequence[str],
    positions: Array,
    ends: Array,
    groups: Sequence[RowGroup],
    x: Axis,
) -> Plot:
    height_by_row = {int(row): float(height) for height, row in enumerate(page)}
    marks: list[Mark] = [RuleMark("x", 0.0)]
    for group in groups:
        rows = [int(row) for row in group.rows if int(row) in height_by_row]
        heights = np.array([height_by_row[row] for row in rows])
        lines = [
            np.column_stack([ends[row], [height, height]])
            for row, height in zip(rows, heights, strict=True)
            if np.isfinite(ends[row]).all()
        ]
        facts = [
            ("row", [names[row] for row in rows]),
            ("position", [format_number(positions[row]) for row in rows]),
        ]
        if lines:
            marks.append(LineMarks(lines, [group.key.colour] * len(lines)))
        marks.append(
            PointMarks(positions[rows], heights, group.key.colour, group.key.marker, 5, 1.0, facts)
        )
    y = make_name_axis([names[row] for row in page], is_down=True)
    return Plot(x, y, tuple(marks), _ROW_HEIGHT * len(page) + 60)


def choose_names(
    coded: CodedRows, name: str | None, used_columns: Container[str]
) -> ColourLabels | None:
    """Return the column `name`, or else a column of texts that all differ, if there is one.

    Columns that the fit used, such as weights, and numbers with fractions are not chosen.
    """
    if name is not None:
        return ColourLabels(name, coded.columns[name]) if name in coded.columns else None
    for column, values in _iter_text_columns(coded, used_columns):
        if len({*map(str, values)}) == len(values):
            return ColourLabels(column, values)
    return None


def _iter_text_columns(
    coded: CodedRows, used_columns: Container[str]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the columns of texts that may name rows."""
    for column, values in coded.columns.items():
        is_free = column != "split" and column not in used_columns
        if is_free and values.dtype.kind in "OUT" and not _have_fractions(values):
            yield column, values


def _have_fractions(texts: NDArray[Any]) -> bool:
    """Return whether all texts are numbers or empty, and some number is not whole."""
    try:
        numbers = [float(text) for text in map(str, texts) if text]
    except ValueError:
        return False
    return not all(number.is_integer() for number in numbers)


def _make_axis_choices(
    points: Array, places: list[Array], room: float, words: Vocabulary
) -> tuple[AxisChoice, ...]:
    options = tuple(
        AxisOption(name, fit_axis(points[:, k], name, room), tuple(place[:, k] for place in places))
        for k, name in enumerate(map(words.name_component, range(points.shape[1])))
    )
    return (AxisChoice("across", "x", options, 0), AxisChoice("up", "y", options, 1))


def mark_rows(
    points: Array, facts: HoverFacts, key: LegendKey, opacity: float = 0.7
) -> tuple[Mark, Array]:
    """Return a mark per distinct code, and the positions of the marks in all components.

    The area of a mark is proportional to its number of rows.
    """
    _, first, counts = np.unique(points.round(9), axis=0, return_index=True, return_counts=True)
    mark_facts = [(name, [values[i] for i in first]) for name, values in facts]
    if counts.max(initial=1) > 1:
        mark_facts.append(("identical rows", [str(count) for count in counts]))
    sizes = np.minimum(_POINT_SIZE * np.sqrt(counts), _MAX_POINT_SIZE)
    places = points[first]
    x, y = places[:, :2].T
    return PointMarks(x, y, key.colour, key.marker, sizes, opacity, mark_facts), places


def describe_rows(coded: CodedRows, rows: NDArray[np.intp]) -> HoverFacts:
    """Return the number (from 1), segment and per-row columns of rows, as texts."""
    facts: list[tuple[str, NDArray[Any]]] = [(coded.words.row, coded.rows + 1)]
    if len(set(coded.segments)) > 1:
        facts.append((SEGMENT, coded.segments))
    facts += list(coded.columns.items())[:_MAX_HOVER_COLUMNS]
    return [(name, [str(value) for value in values[rows]]) for name, values in facts]


def _label_rows(points: Array, labels: ColourLabels) -> tuple[tuple[Mark, Array], str]:
    """Write labels at the median of their rows if there is room, frequent labels first."""
    texts = np.array([str(value) for value in labels.values], object)
    names = [name for name, _ in Counter(texts.tolist()).most_common()]
    medians = np.array([np.median(points[texts == name], axis=0) for name in names])
    short_names = [shorten_text(name, _MAX_NAME_LENGTH) for name in names]
    width = float(np.ptp(medians[:, :2], axis=0).max())
    chosen = choose_names_with_room(medians[:, :2], short_names, width)
    places, chosen_names = medians[chosen], [short_names[i] for i in chosen]
    colours = [COLOURS[1]] * len(chosen)
    mark = TextMarks(places[:, 0], places[:, 1], chosen_names, colours, side="above")
    note = " Each name is at the median of its rows."
    if len(chosen) < len(names):
        note += f" {len(chosen):,} of {len(names):,} names have room."
    return (mark, places), note


class ColourLabels(NamedTuple):
    """Labels that colour rows: the name of the column, and the label of each row, (n_rows,).

    `order` has the distinct values if they have a meaningful order such as time; else it is empty.
    """

    name: str
    values: NDArray[Any]
    order: Sequence[Any] = ()


class RowGroup(NamedTuple):
    """Rows with the same colour and marker. `key` has no name if a colour ramp explains colours."""

    name: str
    key: LegendKey
    rows: NDArray[np.intp]


def choose_labels(
    coded: CodedRows,
    segments: Sequence[str],
    name: str | None,
    used_columns: Container[str],
    weight_columns: Container[str],
) -> ColourLabels | None:
    """Return the column `name`, or choose labels if it is None.

    The first choice is a column with few values that are no weights, then the segments in the order
    of the data. If there are few rows, the last choice is a column of texts, which probably names
    the rows; it is not one of `used_columns`, which the fit used as weights, groups or covariates.
    """
    by_segment = ColourLabels(SEGMENT, coded.segments, segments)
    if name in coded.columns:
        values = coded.columns[name]
        is_number = values.dtype.kind in "iuf"
        return ColourLabels(name, values, np.unique(values).tolist() if is_number else ())
    if name is not None:
        return by_segment
    for column, values in coded.columns.items():
        is_free = column != "split" and column not in weight_columns
        if is_free and 2 <= len(set(values.tolist())) <= MAX_COLOURED_LABELS:
            return ColourLabels(column, values)
    if len(segments) > 1:
        return by_segment
    if len(coded.codes) <= MAX_NAMED_ROWS:
        for column, values in _iter_text_columns(coded, used_columns):
            return ColourLabels(column, values)
    return None


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
        return [RowGroup("all rows", LegendKey("", COLOURS[0]), np.arange(n_rows))], None
    if len(labels.order) > MAX_COLOURED_LABELS:
        return _group_by_order(labels)
    return _group_by_frequency(labels), None


def _group_by_order(labels: ColourLabels) -> tuple[list[RowGroup], ColourRamp]:
    steps = np.array_split(np.asarray(labels.order), min(_MAX_COLOUR_STEPS, len(labels.order)))
    colours = [
        blend_colours(_FIRST_COLOUR, _LAST_COLOUR, k / (len(steps) - 1)) for k in range(len(steps))
    ]
    groups = [
        RowGroup(
            str(step[0]) if len(step) == 1 else f"{step[0]} to {step[-1]}",
            LegendKey("", colour),
            np.flatnonzero(np.isin(labels.values.astype(step.dtype), step)),
        )
        for step, colour in zip(steps, colours, strict=True)
    ]
    first, last = str(labels.order[0]), str(labels.order[-1])
    return groups, ColourRamp(f"{labels.name} {first}", last, (_FIRST_COLOUR, _LAST_COLOUR))


def _group_by_frequency(labels: ColourLabels) -> list[RowGroup]:
    """Assign a colour and marker to each frequent label; all others are one grey group below."""
    texts = np.array([str(value) for value in labels.values], object)
    counts = Counter(texts.tolist())
    n_named = MAX_COLOURED_LABELS - (len(counts) > MAX_COLOURED_LABELS)
    names = sorted((name for name, _ in counts.most_common(n_named)), key=_make_sort_key)
    groups = [
        RowGroup(name, _choose_key(name, k), np.flatnonzero(texts == name))
        for k, name in enumerate(names)
    ]
    if len(counts) > n_named:
        grey_rows = np.flatnonzero([text not in names for text in texts])
        others = f"{len(counts) - n_named} others"
        groups.insert(0, RowGroup(others, LegendKey(others, GREY), grey_rows))
    return groups


def _make_sort_key(name: str) -> tuple[float, str]:
    """Return a key that sorts numbers by value, before other names."""
    return (float(name), "") if name.isdecimal() else (np.inf, name)


def _choose_key(name: str, k: int) -> LegendKey:
    turn, colour = divmod(k, len(_COLOURS))
    return LegendKey(name, _COLOURS[colour], MARKERS[(colour + 3 * turn) % len(MARKERS)])


def choose_names_with_room(places: Array, names: Sequence[str], width: float) -> list[int]:
    """Return the indices of the names that do not overlap an earlier chosen name.

    `places` are the centres of the names, (n_names, 2), and `width` is the width of the plot in the
    same units.
    """
    lengths = [len(name) for name in names]
    halves = (
        width / _PLOT_WIDTH * _LETTER_SIZE * np.column_stack([lengths, np.ones(len(names))]) / 2
    )
    chosen: list[int] = []
    for i, place in enumerate(places):
        is_separate = abs(places[chosen] - place) > halves[chosen] + halves[i]
        if is_separate.any(axis=1).all():
            chosen.append(i)
    return chosen
