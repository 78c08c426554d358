"""Figures of latent codes, and of what the model expects of a row with such codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.data.fitted import Fitted
from flows.report.figures import ImageLayout
from flows.report.labels import Labels, coloured
from flows.report.lines import Line, half_lines, places_of_names
from flows.report.plots import (
    COLOURS,
    GREY,
    Figure,
    Key,
    empty_plot,
    heat_map,
    hovering,
    number,
    ramp_of,
    square_plot,
)
from flows.report.rows import CodedRows
from pipeline.models.capabilities import Reconstructs, reconstructor
from pipeline.statistics.labels import SEGMENT

Array = NDArray[np.float64]

_GRID, _TILES = 61, 9
_MOST_LINES = 40
_WIDE = 2.0  # width of a plot of curves, its height being 1
_NAMES: Any = {"text_font_size": "11px", "text_align": "center", "text_baseline": "middle"}
_SHOWN_COLUMNS = 6
_POINT, _LARGEST = 6.0, 26.0


def latent_figures(
    fitted: Fitted, coded: CodedRows, labels: Labels | None, layout: ImageLayout | None
) -> Iterator[Figure]:
    """Draw codes of rows, then what the model expects where they lie.

    Parameters
    ----------
    fitted
        The fitted model.
    coded
        The rows.
    labels
        What to colour them by.
    layout
        Where every feature lies in an image, if features are pixels.
    """
    n_components = coded.codes.shape[1]
    if n_components > 1 and _are_shares(coded.codes):
        yield _memberships(coded, labels)
    elif n_components == 1:
        yield _strip(coded, labels)
    elif n_components > 1:
        yield _plane(coded, labels)
    if not isinstance(fitted.model, Reconstructs):
        return
    if n_components == 1:
        yield _item_curves(fitted, coded)
        if "difficulty" in fitted.artifact:  # items of one trait
            yield _information_curves(fitted, coded)
    elif n_components == 2 and not _are_shares(coded.codes):
        yield _image_grid(fitted, coded, layout) if layout else _item_lines(fitted, coded)


def _are_shares(codes: Array) -> bool:
    """Tell whether codes are shares of one whole, as posterior probabilities of components are."""
    return bool(codes.min() >= 0 and np.allclose(codes.sum(axis=1), 1, atol=1e-4))


def _memberships(coded: CodedRows, labels: Labels | None) -> Figure:
    """Draw the mean share of each component among the rows of each label."""
    kinds, _ = coloured(labels, len(coded.codes))
    names = [kind.key.name or "all rows" for kind in kinds]
    means = np.array([coded.codes[kind.rows].mean(axis=0) for kind in kinds])
    of = labels.name if labels else "rows"
    columns = [str(k + 1) for k in range(means.shape[1])]
    plot, ramp, width = heat_map(means, names, columns, (of, "component"), signed=False)
    by = f", by {of}" if labels else ""
    alt = f"Mean share of {len(columns)} components among {len(coded.codes):,} rows{by}."
    return Figure("Share of components", alt, plot, note=alt, ramp=ramp, width=width)


def _strip(coded: CodedRows, labels: Labels | None) -> Figure:
    """Draw one component along a line."""
    heights = np.random.default_rng(0).uniform(-1, 1, len(coded.codes))
    plot = empty_plot(("component 1", ""), height=220, y_range=(-1.3, 1.3))
    plot.yaxis.visible = plot.ygrid.visible = False
    spread = " Rows are spread from top to bottom only to keep them apart."
    return _scattered(plot, np.column_stack([coded.codes[:, 0], heights]), coded, labels, spread)


def _plane(coded: CodedRows, labels: Labels | None) -> Figure:
    """Draw the first two components."""
    plot = square_plot(("component 1", "component 2"), match_aspect=True)
    return _scattered(plot, coded.codes[:, :2], coded, labels, "")


def _scattered(
    plot: Any, points: Array, coded: CodedRows, labels: Labels | None, note: str
) -> Figure:
    kinds, ramp = coloured(labels, len(points))
    for kind in kinds:
        if len(kind.rows):
            _mark(plot, points[kind.rows], _facts(coded, kind.rows), kind.key)
    n_components = coded.codes.shape[1]
    which = "component 1" if n_components == 1 else f"components 1 and 2 of {n_components}"
    by = f", by {labels.name}" if labels else ""
    alt = f"Codes of {len(points):,} rows{by}: {which}."
    keys = () if ramp or labels is None else tuple(kind.key for kind in kinds)
    return Figure("Rows in latent space", alt, plot, note=alt + note, keys=keys, ramp=ramp)


def _mark(plot: Any, points: Array, facts: list[tuple[str, list[str]]], key: Key) -> None:
    """Draw rows; those with the same code are one mark, whose area is their number."""
    _, first, counts = np.unique(points.round(9), axis=0, return_index=True, return_counts=True)
    shown = [(name, [values[i] for i in first]) for name, values in facts]
    if counts.max() > 1:
        shown.append(("rows alike", [str(count) for count in counts]))
    sizes = np.minimum(_POINT * np.sqrt(counts), _LARGEST)
    data: dict[str, Any] = {"x": points[first, 0], "y": points[first, 1], "size": sizes}
    # Names of per-row columns may be anything, so they are no names of Bokeh's columns.
    data |= {f"fact{k}": values for k, (_, values) in enumerate(shown)}
    style: Any = {"color": key.colour, "fill_alpha": 0.55, "line_alpha": 0.9, "size": "size"}
    style["line_width"] = 2 if key.marker == "plus" else 1  # it has no area
    marks = plot.scatter("x", "y", source=data, marker=key.marker, **style)
    hovering(plot, marks, [(name, f"fact{k}") for k, (name, _) in enumerate(shown)])


def _facts(coded: CodedRows, rows: NDArray[np.intp]) -> list[tuple[str, list[str]]]:
    """Give what is known of rows, as texts; they are counted from 1."""
    facts: list[tuple[str, NDArray[Any]]] = [("row", coded.rows + 1)]
    if len(set(coded.segments)) > 1:
        facts.append((SEGMENT, coded.segments))
    facts += list(coded.columns.items())[:_SHOWN_COLUMNS]
    return [(name, [str(value) for value in values[rows]]) for name, values in facts]


def _over_component(fitted: Fitted, coded: CodedRows) -> tuple[Array, Array]:
    """Give places on the only component, (n_places,), and P(x_i = 1) there, (n_places, n)."""
    low, high = coded.codes.min(), coded.codes.max()
    margin = 0.25 * (high - low) + 0.1
    z = np.linspace(low - margin, high + margin, 121)
    return z, reconstructor(fitted.model).reconstruct(fitted.params, z[:, None])


def _information_curves(fitted: Fitted, coded: CodedRows) -> Figure:
    """Draw what features tell of the component, P'² / (P (1 − P)), and all of them together."""
    z, P = _over_component(fitted, coded)
    information = np.gradient(P, z, axis=0) ** 2 / np.maximum(P * (1 - P), 1e-12)
    told = np.sort(np.argsort(-information.max(axis=0), kind="stable")[:_MOST_LINES])
    whole, names = information.sum(axis=1), [fitted.feature_names[i] for i in told]
    plot = empty_plot(("component 1", "information"), height=340)
    data = {"xs": [z] * len(told), "ys": [*information[:, told].T], "feature": names}
    lines = plot.multi_line("xs", "ys", source=data, color=COLOURS[0], line_width=1.2, alpha=0.5)
    hovering(plot, lines, [("feature", "feature")])
    plot.line(z, whole, color=COLOURS[1], line_width=2.5)
    at, most = z[whole.argmax()], whole.max()
    note = (
        f"Where it is high, rows are told apart best: all features have {number(most, 3)} together "
        f"at {number(at, 2)}, a standard error of {number(most**-0.5, 2)}."
    )
    keys = (Key("all features", COLOURS[1], "dash"), Key("one feature", COLOURS[0], "dash"))
    alt = f"Information of {len(told)} features and of all over component 1. {note}"
    hint = "Point at a curve for its name."
    return Figure("Information over the component", alt, plot, note=note, hint=hint, keys=keys)


def _item_curves(fitted: Fitted, coded: CodedRows) -> Figure:
    """Draw P(x_i = 1) over one component, for the features that it moves most."""
    z, probabilities = _over_component(fitted, coded)
    moved = np.sort(np.argsort(-np.ptp(probabilities, axis=0), kind="stable")[:_MOST_LINES])
    plot = empty_plot(("component 1", "P(feature = 1)"), height=340, y_range=(-0.02, 1.02))
    names = [fitted.feature_names[i] for i in moved]
    looks = [Key(name, COLOURS[k % len(COLOURS)]) for k, name in enumerate(names)]
    data = {
        "xs": [z] * len(moved),
        "ys": [*probabilities[:, moved].T],
        "feature": names,
        "colour": [look.colour for look in looks],
    }
    lines = plot.multi_line("xs", "ys", source=data, color="colour", line_width=1.6, alpha=0.8)
    hovering(plot, lines, [("feature", "feature")])
    few = len(looks) <= len(COLOURS)
    if not few:
        _name_curves(plot, z, probabilities[:, moved].T, looks)
    alt = f"Probability of 1 over component 1, of {len(moved)} features: {_listed(names)}."
    hint = "" if few else "Point at a curve for its name."
    shown, total = len(moved), probabilities.shape[1]
    note = f"{shown} of {total:,} features, those that change most." if shown < total else ""
    keys = tuple(looks) if few else ()
    return Figure("Features over the component", alt, plot, note=note, hint=hint, keys=keys)


def _name_curves(plot: Any, z: Array, curves: Array, looks: list[Key]) -> None:
    """Put the name of each curve beside it, in its colour."""
    low, unit = z[0], (z[-1] - z[0]) / _WIDE
    above = np.array([0.0, 1.0])
    scaled = [np.column_stack([(z - low) / unit, p]) for p in curves]
    places = places_of_names([Line(k, points, above) for k, points in enumerate(scaled)])
    for (x, y), look in zip(places, looks, strict=True):
        at = ([low + unit * x], [y], [look.name])
        plot.text(*at, text_color=look.colour, **_NAMES)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _plane_grid(coded: CodedRows, n: int) -> tuple[Array, Array, Array]:
    """Lay a grid over the codes, with some margin: axes (n,) each, and its points (n², 2)."""
    low, high = coded.codes.min(axis=0), coded.codes.max(axis=0)
    middle, half = (low + high) / 2, 0.55 * max(float((high - low).max()), 1e-3)
    x, y = (np.linspace(at - half, at + half, n) for at in middle)
    return x, y, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _item_lines(fitted: Fitted, coded: CodedRows) -> Figure:
    """Draw where features are as likely 1 as 0."""
    x, y, points = _plane_grid(coded, _GRID)
    probabilities = reconstructor(fitted.model).reconstruct(fitted.params, points)
    found = half_lines(x, y, probabilities.T.reshape(-1, _GRID, _GRID))[:_MOST_LINES]
    plot = square_plot(("component 1", "component 2"), x_range=(x[0], x[-1]), y_range=(y[0], y[-1]))
    plot.scatter(coded.codes[:, 0], coded.codes[:, 1], size=3, color=COLOURS[5], alpha=0.5)
    names = [fitted.feature_names[line.feature] for line in found]
    data = {
        "xs": [line.points[:, 0] for line in found],
        "ys": [line.points[:, 1] for line in found],
        "feature": names,
    }
    lines = plot.multi_line("xs", "ys", source=data, color=GREY, hover_line_color=COLOURS[1])
    hovering(plot, lines, [("feature", "feature")])
    if found:
        places = places_of_names(found)
        plot.text(places[:, 0], places[:, 1], names, text_color=COLOURS[1], **_NAMES)
    alt = f"Lines where features are as likely 1 as 0, over {len(coded.codes):,} rows: "
    note = (
        "On a line its feature is as likely 1 as 0; its name stands on the side where 1 is the "
        "likelier. Dots are rows."
    )
    n_features = len(fitted.feature_names)
    if len(found) < n_features:
        note += f" {len(found)} of {n_features} features have a line here."
    return Figure("Features in latent space", alt + _listed(names) + ".", plot, note=note)


def _image_grid(fitted: Fitted, coded: CodedRows, layout: ImageLayout) -> Figure:
    """Draw P(x = 1) as an image at each point of a grid."""
    x, y, points = _plane_grid(coded, _TILES)
    images = layout.images(reconstructor(fitted.model).reconstruct(fitted.params, points))
    height, width = images.shape[1:]
    # A blank line keeps neighbours apart.
    tiles = np.pad(np.nan_to_num(images), ((0, 0), (0, 1), (0, 1)))
    tiles = tiles.reshape(_TILES, _TILES, height + 1, width + 1)
    # Bokeh draws the first row at the bottom, as the grid has it; images begin at the top.
    whole = tiles[:, :, ::-1].transpose(0, 2, 1, 3).reshape(_TILES * (height + 1), -1)
    ramp, mapper = ramp_of(np.ones(1), signed=False)
    step = x[1] - x[0]
    corner, size = (x[0] - step / 2, y[0] - step / 2), step * _TILES
    plot = square_plot(
        ("component 1", "component 2"),
        x_range=(corner[0], corner[0] + size),
        y_range=(corner[1], corner[1] + size),
    )
    plot.image([whole], *corner, size, size, color_mapper=mapper)
    plot.grid.visible = False
    alt = f"P(feature = 1) as {_TILES}x{_TILES} images over components 1 and 2."
    note = "Each image shows the probability of 1 of every pixel at its place."
    return Figure("Images over latent space", alt, plot, note=note, ramp=ramp)
