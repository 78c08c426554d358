"""Figures of latent codes, and of what the model expects of a row with such codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.data.fitted import LoadedModel
from flows.exporting.artifacts import find_unbounded_weights
from flows.report.figures.drawing import ImageLayout
from flows.report.figures.heat_maps import plot_heat_map
from flows.report.figures.labels import ColourLabels, group_rows_by_label
from flows.report.figures.lines import (
    EvenOddsLine,
    choose_name_places,
    choose_names_with_room,
    find_even_odds_lines,
)
from flows.report.figures.plots import (
    COLOURS,
    GREY,
    NAME_STYLE,
    Figure,
    LegendKey,
    add_hover,
    format_number,
    make_colour_scale,
    make_plot,
    make_square_plot,
)
from flows.report.figures.row_plots import plot_plane, plot_strip
from flows.report.figures.rows import CodedRows
from pipeline.models.capabilities import CanReconstruct, check_can_reconstruct

Array = NDArray[np.float64]

_GRID_SIZE, _N_TILES = 61, 9
_MAX_LINES = 40
_ASPECT_RATIO = 2.0  # width of a plot of curves, its height being 1


def plot_latent_space(
    fitted: LoadedModel, coded: CodedRows, labels: ColourLabels | None, layout: ImageLayout | None
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
    if n_components > 1 and _is_compositional(coded.codes):
        yield _plot_memberships(coded, labels)
    elif n_components == 1:
        yield plot_strip(coded, labels)
    elif n_components > 1:
        yield plot_plane(coded, labels)
    if not isinstance(fitted.model, CanReconstruct):
        return
    if n_components == 1:
        yield _plot_item_curves(fitted, coded)
        # Of items of one trait, where the data tell some of them.
        if "difficulty" in fitted.artifact and not find_unbounded_weights(fitted.artifact).all():
            yield _plot_information(fitted, coded)
    elif n_components == 2 and not _is_compositional(coded.codes):
        yield _plot_image_grid(fitted, coded, layout) if layout else _plot_item_lines(fitted, coded)


def _is_compositional(codes: Array) -> bool:
    """Tell whether codes are shares of one whole, as posterior probabilities of components are."""
    return bool(codes.min() >= 0 and np.allclose(codes.sum(axis=1), 1, atol=1e-4))


def _plot_memberships(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Draw the mean share of each component among the rows of each label."""
    kinds, _ = group_rows_by_label(labels, len(coded.codes))
    names = [kind.key.name or "all rows" for kind in kinds]
    means = np.array([coded.codes[kind.rows].mean(axis=0) for kind in kinds])
    of = labels.name if labels else "rows"
    columns = [str(k + 1) for k in range(means.shape[1])]
    drawn = plot_heat_map(means, names, columns, (of, "component"), signed=False)
    by = f", by {of}" if labels else ""
    alt = f"Mean share of {len(columns)} components among {len(coded.codes):,} rows{by}."
    return Figure("Share of components", alt, note=alt, **drawn)


def _reconstruct_over_component(fitted: LoadedModel, coded: CodedRows) -> tuple[Array, Array]:
    """Give places on the only component, (n_places,), and P(x_i = 1) there, (n_places, n)."""
    low, high = coded.codes.min(), coded.codes.max()
    margin = 0.25 * (high - low) + 0.1
    z = np.linspace(low - margin, high + margin, 121)
    return z, check_can_reconstruct(fitted.model).reconstruct(fitted.params, z[:, None])


def _plot_information(fitted: LoadedModel, coded: CodedRows) -> Figure:
    """Draw what features tell of the component, P'² / (P (1 − P)), and all of them together."""
    z, P = _reconstruct_over_component(fitted, coded)
    information = np.gradient(P, z, axis=0) ** 2 / np.maximum(P * (1 - P), 1e-12)
    unbounded = find_unbounded_weights(fitted.artifact)
    information[:, unbounded] = 0.0
    drawn = np.flatnonzero(~unbounded)
    shown = np.sort(drawn[np.argsort(-information[:, drawn].max(axis=0), kind="stable")])
    whole, shown = information.sum(axis=1), shown[:_MAX_LINES]
    plot = make_plot(("component 1", "information"), height=340)
    names = [fitted.feature_names[i] for i in shown]
    keys, hint = _plot_curves(plot, z, information[:, shown], names, named=False)
    plot.line(z, whole, color=GREY, line_width=2.5)
    at, most = z[whole.argmax()], whole.max()
    note = (
        f"Where it is high, rows are told apart best: all features have {format_number(most, 3)} together "
        f"at {format_number(at, 2)}, a standard error of {format_number(most**-0.5, 2)}."
    )
    if unbounded.any():
        steep = [fitted.feature_names[i] for i in np.flatnonzero(unbounded)]
        note += f" Left out, as their weights have no bound: {_join_names(steep)}."
    alt = f"Information of {len(shown)} features and of all over component 1. {note}"
    told: Any = {
        "note": note,
        "hint": hint,
        "keys": (LegendKey("all features", GREY, "dash"), *keys),
    }
    return Figure("Information over the component", alt, plot, **told)


def _plot_item_curves(fitted: LoadedModel, coded: CodedRows) -> Figure:
    """Draw P(x_i = 1) over one component, for the features that it moves most."""
    z, probabilities = _reconstruct_over_component(fitted, coded)
    moved = np.sort(np.argsort(-np.ptp(probabilities, axis=0), kind="stable")[:_MAX_LINES])
    plot = make_plot(("component 1", "P(feature = 1)"), height=340, y_range=(-0.02, 1.02))
    names = [fitted.feature_names[i] for i in moved]
    keys, hint = _plot_curves(plot, z, probabilities[:, moved], names, named=True)
    alt = f"Probability of 1 over component 1, of {len(moved)} features: {_join_names(names)}."
    shown, total = len(moved), probabilities.shape[1]
    note = f"{shown} of {total:,} features, those that change most." if shown < total else ""
    return Figure("Features over the component", alt, plot, note=note, hint=hint, keys=keys)


def _plot_curves(
    plot: Any, z: Array, values: Array, names: list[str], named: bool
) -> tuple[tuple[LegendKey, ...], str]:
    """Draw a curve for each name; few are named by a key of colours, many beside them if
    they are to be named there.

    Returns the keys, and what pointing at curves shows.
    """
    looks = tuple(LegendKey(name, COLOURS[k % len(COLOURS)]) for k, name in enumerate(names))
    data = {
        "xs": [z] * len(names),
        "ys": [*values.T],
        "feature": names,
        "colour": [look.colour for look in looks],
    }
    lines = plot.multi_line("xs", "ys", source=data, color="colour", line_width=1.6, alpha=0.8)
    add_hover(plot, lines, [("feature", "feature")])
    if len(looks) <= len(COLOURS):
        return looks, ""
    if named:
        _label_curves(plot, z, values.T, looks)
    return (), "Point at a curve for its name."


def _label_curves(plot: Any, z: Array, curves: Array, looks: Sequence[LegendKey]) -> None:
    """Put the name of each curve beside it, in its colour."""
    low, unit = z[0], (z[-1] - z[0]) / _ASPECT_RATIO
    above = np.array([0.0, 1.0])
    scaled = [np.column_stack([(z - low) / unit, p]) for p in curves]
    places = choose_name_places([EvenOddsLine(k, points, above) for k, points in enumerate(scaled)])
    for k in choose_names_with_room(places, [look.name for look in looks], _ASPECT_RATIO):
        (x, y), look = places[k], looks[k]
        at = ([low + unit * x], [y], [look.name])
        plot.text(*at, text_color=look.colour, **NAME_STYLE)


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _make_plane_grid(coded: CodedRows, n: int) -> tuple[Array, Array, Array]:
    """Lay a grid over the codes, with some margin: axes (n,) each, and its points (n², 2)."""
    low, high = coded.codes.min(axis=0), coded.codes.max(axis=0)
    middle, half = (low + high) / 2, 0.55 * max(float((high - low).max()), 1e-3)
    x, y = (np.linspace(at - half, at + half, n) for at in middle)
    return x, y, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _plot_item_lines(fitted: LoadedModel, coded: CodedRows) -> Figure:
    """Draw where features are as likely 1 as 0."""
    x, y, points = _make_plane_grid(coded, _GRID_SIZE)
    probabilities = check_can_reconstruct(fitted.model).reconstruct(fitted.params, points)
    found = find_even_odds_lines(x, y, probabilities.T.reshape(-1, _GRID_SIZE, _GRID_SIZE))[
        :_MAX_LINES
    ]
    plot = make_square_plot(
        ("component 1", "component 2"), x_range=(x[0], x[-1]), y_range=(y[0], y[-1])
    )
    plot.scatter(coded.codes[:, 0], coded.codes[:, 1], size=3, color=COLOURS[5], alpha=0.5)
    names = [fitted.feature_names[line.feature] for line in found]
    data = {
        "xs": [line.points[:, 0] for line in found],
        "ys": [line.points[:, 1] for line in found],
        "feature": names,
    }
    lines = plot.multi_line("xs", "ys", source=data, color=GREY, hover_line_color=COLOURS[1])
    add_hover(plot, lines, [("feature", "feature")])
    if found:
        places = choose_name_places(found)
        named = choose_names_with_room(places, names, x[-1] - x[0])
        shown = [names[k] for k in named]
        plot.text(places[named, 0], places[named, 1], shown, text_color=COLOURS[1], **NAME_STYLE)
    alt = f"Lines where features are as likely 1 as 0, over {len(coded.codes):,} rows: "
    note = (
        "On a line its feature is as likely 1 as 0; its name stands on the side where 1 is the "
        "likelier. Point at a line for its name. Dots are rows."
    )
    n_features = len(fitted.feature_names)
    if len(found) < n_features:
        note += f" {len(found)} of {n_features} features have a line here."
    return Figure("Features in latent space", alt + _join_names(names) + ".", plot, note=note)


def _plot_image_grid(fitted: LoadedModel, coded: CodedRows, layout: ImageLayout) -> Figure:
    """Draw P(x = 1) as an image at each point of a grid."""
    x, y, points = _make_plane_grid(coded, _N_TILES)
    images = layout.arrange_images(
        check_can_reconstruct(fitted.model).reconstruct(fitted.params, points)
    )
    height, width = images.shape[1:]
    # A blank line keeps neighbours apart.
    tiles = np.pad(np.nan_to_num(images), ((0, 0), (0, 1), (0, 1)))
    tiles = tiles.reshape(_N_TILES, _N_TILES, height + 1, width + 1)
    # Bokeh draws the first row at the bottom, as the grid has it; images begin at the top.
    whole = tiles[:, :, ::-1].transpose(0, 2, 1, 3).reshape(_N_TILES * (height + 1), -1)
    ramp, mapper = make_colour_scale(np.ones(1), signed=False)
    step = x[1] - x[0]
    corner, size = (x[0] - step / 2, y[0] - step / 2), step * _N_TILES
    plot = make_square_plot(
        ("component 1", "component 2"),
        x_range=(corner[0], corner[0] + size),
        y_range=(corner[1], corner[1] + size),
    )
    plot.image([whole], *corner, size, size, color_mapper=mapper)
    plot.grid.visible = False
    alt = f"P(feature = 1) as {_N_TILES}x{_N_TILES} images over components 1 and 2."
    note = "Each image shows the probability of 1 of every pixel at its place."
    return Figure("Images over latent space", alt, plot, note=note, ramp=ramp)
