"""Figures of the latent space: codes of rows, what the model expects there, and its calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.data.fitted import LoadedModel
from flows.exporting.artifacts import find_unbounded_weights
from flows.report.figures.axes import fit_axis, make_axis
from flows.report.figures.colours import COLOURS, GREY, ColourScale
from flows.report.figures.heat_maps import plot_heat_map
from flows.report.figures.image_layout import ImageLayout
from flows.report.figures.labels import ColourLabels, group_rows_by_label
from flows.report.figures.lines import (
    EvenOddsLine,
    choose_name_places,
    choose_names_with_room,
    find_even_odds_lines,
)
from flows.report.figures.marks import (
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RasterMark,
    TextMarks,
)
from flows.report.figures.row_plots import plot_plane, plot_strip
from flows.report.figures.rows import CodedRows, DatasetSample
from flows.report.figures.text import format_number
from pipeline.evaluation.calibration import ShareComparison
from pipeline.models.capabilities import CanReconstruct, check_can_reconstruct

Array = NDArray[np.float64]

_GRID_SIZE, _N_TILES = 61, 9
_MAX_PAIRS, _N_WORST_PAIRS = 2000, 300
_MAX_LINES = 40
_ASPECT_RATIO = 2.0  # of a plot of curves, width by height


def plot_latent_space(
    fitted: LoadedModel, coded: CodedRows, labels: ColourLabels | None, layout: ImageLayout | None
) -> Iterator[Figure]:
    """Plot the codes of rows, then the features that the model expects at such codes.

    Parameters
    ----------
    fitted
        The fitted model.
    coded
        The rows.
    labels
        What colours them.
    layout
        Positions of the features in an image, if they are pixels.
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
        # For items of one trait, unless all their weights are unbounded.
        if "difficulty" in fitted.artifact and not find_unbounded_weights(fitted.artifact).all():
            yield _plot_information(fitted, coded)
    elif n_components == 2 and not _is_compositional(coded.codes):
        yield _plot_image_grid(fitted, coded, layout) if layout else _plot_item_lines(fitted, coded)


def _is_compositional(codes: Array) -> bool:
    """Return whether codes sum to 1, like posterior probabilities of components."""
    return bool(codes.min() >= 0 and np.allclose(codes.sum(axis=1), 1, atol=1e-4))


def _plot_memberships(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Plot the mean share of each component among the rows of each label."""
    kinds, _ = group_rows_by_label(labels, len(coded.codes))
    names = [kind.key.name or "all rows" for kind in kinds]
    means = np.array([coded.codes[kind.rows].mean(axis=0) for kind in kinds])
    of = labels.name if labels else "rows"
    columns = [str(k + 1) for k in range(means.shape[1])]
    drawn = plot_heat_map(means, names, columns, (of, "component"), is_signed=False)
    by = f", by {of}" if labels else ""
    alt = f"Mean share of {len(columns)} components among {len(coded.codes):,} rows{by}."
    return Figure("Share of components", alt, note=alt, **drawn)


def _reconstruct_over_component(fitted: LoadedModel, coded: CodedRows) -> tuple[Array, Array]:
    """Return a grid on the only component, (n_grid,), and P(x_i = 1) there, (n_grid, n)."""
    low, high = coded.codes.min(), coded.codes.max()
    margin = 0.25 * (high - low) + 0.1
    z = np.linspace(low - margin, high + margin, 121)
    return z, check_can_reconstruct(fitted.model).reconstruct(fitted.params, z[:, None])


def _plot_information(fitted: LoadedModel, coded: CodedRows) -> Figure:
    """Plot the Fisher information of features on the component, P'² / (P (1 − P)), and its sum."""
    z, P = _reconstruct_over_component(fitted, coded)
    information = np.gradient(P, z, axis=0) ** 2 / np.maximum(P * (1 - P), 1e-12)
    unbounded = find_unbounded_weights(fitted.artifact)
    information[:, unbounded] = 0.0
    drawn = np.flatnonzero(~unbounded)
    shown = np.sort(drawn[np.argsort(-information[:, drawn].max(axis=0), kind="stable")])
    whole, shown = information.sum(axis=1), shown[:_MAX_LINES]
    names = [fitted.feature_names[i] for i in shown]
    curves, keys, hint = _plot_curves(z, information[:, shown], names)
    total = LineMarks([np.column_stack([z, whole])], [GREY], 2.5)
    x, y = fit_axis(z, "component 1"), fit_axis(np.append(0.0, whole), "information")
    plot = Plot(x, y, (curves, total), height=340)
    most, at = format_number(whole.max(), 3), format_number(z[whole.argmax()], 2)
    error = format_number(whole.max() ** -0.5, 2)
    note = (
        f"Rows are distinguished best where information is high. The features together have at "
        f"most {most}, at {at}: a standard error of {error}."
    )
    if unbounded.any():
        steep = [fitted.feature_names[i] for i in np.flatnonzero(unbounded)]
        note += f" Omitted because their weights are unbounded: {_join_names(steep)}."
    alt = f"Information of {len(shown)} features and of all over component 1. {note}"
    told: Any = {
        "note": note,
        "hint": hint,
        "keys": (LegendKey("all features", GREY, "line"), *keys),
    }
    return Figure("Information over the component", alt, plot, **told)


def _plot_item_curves(fitted: LoadedModel, coded: CodedRows) -> Figure:
    """Plot P(x_i = 1) over the component, for the features that change most."""
    z, probabilities = _reconstruct_over_component(fitted, coded)
    moved = np.sort(np.argsort(-np.ptp(probabilities, axis=0), kind="stable")[:_MAX_LINES])
    names, values = [fitted.feature_names[i] for i in moved], probabilities[:, moved]
    curves, keys, hint = _plot_curves(z, values, names)
    x, y = fit_axis(z, "component 1"), make_axis(-0.02, 1.02, "P(feature = 1)")
    named = () if keys else (_label_curves(z, values.T, names, curves.colours),)
    plot = Plot(x, y, (curves, *named), height=340)
    alt = f"Probability of 1 over component 1, of {len(moved)} features: {_join_names(names)}."
    shown, total = len(moved), probabilities.shape[1]
    note = f"{shown} of {total:,} features, those that change most." if shown < total else ""
    return Figure("Features over the component", alt, plot, note=note, hint=hint, keys=keys)


def _plot_curves(
    z: Array, values: Array, names: list[str]
) -> tuple[LineMarks, tuple[LegendKey, ...], str]:
    """Plot a curve per name.

    Returns the curves, a legend if there are few, and a hint if there are many.
    """
    looks = tuple(LegendKey(name, COLOURS[k % len(COLOURS)]) for k, name in enumerate(names))
    curves = LineMarks(
        [np.column_stack([z, column]) for column in values.T],
        [look.colour for look in looks],
        1.6,
        facts=[("feature", names)],
    )
    if len(looks) <= len(COLOURS):
        return curves, looks, ""
    return curves, (), "Point at a curve for its name."


def _label_curves(z: Array, curves: Array, names: Sequence[str], colours: Sequence[str]) -> Mark:
    """Write the name of each curve beside it, in its colour, if there is room."""
    low, unit = z[0], (z[-1] - z[0]) / _ASPECT_RATIO
    above = np.array([0.0, 1.0])
    scaled = [np.column_stack([(z - low) / unit, p]) for p in curves]
    places = choose_name_places([EvenOddsLine(k, points, above) for k, points in enumerate(scaled)])
    kept = choose_names_with_room(places, names, _ASPECT_RATIO)
    x, y = low + unit * places[kept, 0], places[kept, 1]
    return TextMarks(x, y, [names[k] for k in kept], [colours[k] for k in kept])


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _make_plane_grid(coded: CodedRows, n: int) -> tuple[Array, Array, Array]:
    """Return a square grid around the codes: both axes, (n,) each, and its points, (n², 2)."""
    low, high = coded.codes.min(axis=0), coded.codes.max(axis=0)
    middle, half = (low + high) / 2, 0.55 * max(float((high - low).max()), 1e-3)
    x, y = (np.linspace(at - half, at + half, n) for at in middle)
    return x, y, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _plot_item_lines(fitted: LoadedModel, coded: CodedRows) -> Figure:
    """Plot the lines on which features are 1 with probability ½."""
    x, y, points = _make_plane_grid(coded, _GRID_SIZE)
    probabilities = check_can_reconstruct(fitted.model).reconstruct(fitted.params, points)
    found = find_even_odds_lines(x, y, probabilities.T.reshape(-1, _GRID_SIZE, _GRID_SIZE))[
        :_MAX_LINES
    ]
    rows = PointMarks(*coded.codes.T, COLOURS[5], size=3, opacity=0.5)
    names = [fitted.feature_names[line.feature] for line in found]
    points, facts = [line.points for line in found], [("feature", names)]
    marks: list[Mark] = [rows, LineMarks(points, [GREY] * len(found), 1.0, facts=facts)]
    if found:
        places = choose_name_places(found)
        kept = choose_names_with_room(places, names, x[-1] - x[0])
        shown = [names[k] for k in kept]
        marks.append(TextMarks(*places[kept].T, shown, [COLOURS[1]] * len(kept)))
    axes = make_axis(x[0], x[-1], "component 1"), make_axis(y[0], y[-1], "component 2")
    plot = Plot(*axes, tuple(marks))
    alt = f"Lines on which features are 1 with probability ½, over {len(coded.codes):,} rows: "
    note = (
        "On its line, a feature is 1 with probability ½; its name is on the side where 1 is more "
        "likely. Dots are rows."
    )
    n_features = len(fitted.feature_names)
    if len(found) < n_features:
        note += f" {len(found)} of {n_features} features have a line here."
    hint = "Point at a line for its name."
    alt += f"{_join_names(names)}."
    return Figure("Features in latent space", alt, plot, note=note, hint=hint)


def _plot_image_grid(fitted: LoadedModel, coded: CodedRows, layout: ImageLayout) -> Figure:
    """Plot P(x = 1) as an image at each point of a grid."""
    x, y, points = _make_plane_grid(coded, _N_TILES)
    images = layout.arrange_images(
        check_can_reconstruct(fitted.model).reconstruct(fitted.params, points)
    )
    height, width = images.shape[1:]
    # A blank line separates neighbours.
    tiles = np.pad(np.nan_to_num(images), ((0, 0), (0, 1), (0, 1)))
    tiles = tiles.reshape(_N_TILES, _N_TILES, height + 1, width + 1)
    # The grid starts at the bottom, images at the top.
    whole = tiles[::-1].transpose(0, 2, 1, 3).reshape(_N_TILES * (height + 1), -1)
    scale, half = ColourScale(1.0, is_signed=False), (x[1] - x[0]) / 2
    axes = (
        replace(make_axis(at[0] - half, at[-1] + half, f"component {k}"), has_lines=False)
        for k, at in enumerate((x, y), 1)
    )
    plot = Plot(*axes, (RasterMark(whole, scale),))
    alt = f"P(feature = 1) as {_N_TILES}x{_N_TILES} images over components 1 and 2."
    note = "Each image shows the probability of 1 of every pixel for a row with these codes."
    return Figure("Images over latent space", alt, plot, note=note, ramp=scale.make_ramp())


def plot_calibration(
    sample: DatasetSample, pairs: ShareComparison, feature_names: tuple[str, ...]
) -> Figure:
    """Plot joint frequencies of pairs in the data against those in the model."""
    at = _choose_pairs(pairs.z)
    top = float(max(pairs.observed[at].max(), pairs.implied[at].max(), 1e-3)) * 1.03
    x = make_axis(-0.02 * top, top, "joint frequency in the model")
    y = make_axis(-0.02 * top, top, "joint frequency in the data")
    diagonal = LineMarks([np.array([[0.0, 0.0], [top, top]])], [GREY], 1.0, dash=(6, 6))
    first, second = pairs.features[at].T
    facts = [
        ("feature", [feature_names[sample.features[i]] for i in first]),
        ("and", [feature_names[sample.features[i]] for i in second]),
        ("model", [format_number(value, 3) for value in pairs.implied[at]]),
        ("data", [format_number(value, 3) for value in pairs.observed[at]]),
        ("standard errors apart", [format_number(value, 2) for value in pairs.z[at]]),
    ]
    points = PointMarks(pairs.implied[at], pairs.observed[at], COLOURS[0], opacity=0.5, facts=facts)
    rmse, chance = format_number(pairs.rmse, 2), format_number(pairs.chance_rmse, 2)
    n_shown = f"{len(at):,} of " if len(at) < len(pairs.z) else ""
    note = (
        f"{n_shown}{len(pairs.z):,} pairs of features in {sample.n_rows:,} rows and in "
        f"{sample.n_drawn:,} rows drawn from the model. The root mean square difference is {rmse}; "
        f"if the model were right, it would be about {chance}."
    )
    alt = "Share of rows in which both features of a pair are 1, in the data against the model. "
    return Figure("Calibration of pairs", alt + note, Plot(x, y, (diagonal, points)), note=note)


def _choose_pairs(z: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose the pairs that differ most, and evenly spaced others."""
    if len(z) <= _MAX_PAIRS:
        return np.arange(len(z))
    worst = np.argsort(-np.abs(z), kind="stable")[:_N_WORST_PAIRS]
    even = np.linspace(0, len(z) - 1, _MAX_PAIRS - _N_WORST_PAIRS).round().astype(np.intp)
    return np.union1d(worst, even)
