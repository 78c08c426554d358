"""Figures of the latent space: codes of rows, expected features there, and calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.cli.summary import join_names
from flows.data.datasets import LoadedModel
from flows.exporting.columns import find_unbounded_weights
from flows.report.figures.axes import fit_axis, make_axis, plot_heat_map
from flows.report.figures.colours import COLOURS, GREY, ColourScale
from flows.report.figures.images import ImageLayout
from flows.report.figures.levels import plot_level_curves
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
from flows.report.figures.row_plots import (
    ColourLabels,
    choose_names_with_room,
    describe_rows,
    group_rows_by_label,
    has_too_many_labels,
    mark_rows,
    plot_plane,
    plot_strip,
)
from flows.report.figures.rows import CodedRows, DatasetSample
from flows.report.figures.text import format_number
from pipeline.data.features import are_binary, find_continuous, find_nominal, sum_planes
from pipeline.evaluation.calibration import ShareComparison
from pipeline.models.capabilities import (
    CanReconstruct,
    HasItemInformation,
    check_can_reconstruct,
)
from pipeline.models.vocabulary import Vocabulary

Array = NDArray[np.float64]

SHARES = ColourScale(1.0, is_signed=False)
"""Colours of probabilities and other shares."""
_GRID_SIZE, _N_TILES = 61, 9
_MAX_PAIRS, _N_WORST_PAIRS = 2000, 300
_MAX_LINES = 40
_MIN_VISIBLE_SHARE = 0.02  # of the height of a plot that the largest of some curves must have
_ASPECT_RATIO = 2.0  # of a plot of curves, width by height
_NAME_POSITIONS = np.linspace(0.05, 0.95, 37)
_NAME_DISTANCE = 0.02  # of a name from its line, as a share of the plane's width
_INNER_SHARE = np.array([0.4, 0.46])  # of the plane's width and height
_VERTICAL_WEIGHT = 3.0  # names are wide, so vertical distances count three times


def plot_latent_space(
    fitted: LoadedModel,
    coded: CodedRows,
    labels: ColourLabels | None,
    layout: ImageLayout | None,
    chosen: Sequence[str] = (),
) -> Iterator[Figure]:
    """Plot the codes of rows, then the features that the model expects at such codes.

    `labels` colours the rows; `layout` has the positions of features that are pixels. Curves and
    lines are of the `chosen` features, or else of the most informative and of those that divide the
    rows most.
    """
    n_components = coded.codes.shape[1]
    if n_components > 1 and _is_compositional(coded.codes):
        yield _plot_memberships(coded, labels)
    elif n_components == 1:
        yield plot_strip(coded, labels)
    elif n_components > 1:
        yield plot_plane(coded, labels)
    if not isinstance(fitted.model, CanReconstruct) or not fitted.plane_names:
        return
    is_nominal = find_nominal(fitted.features) is not None
    if n_components == 1:
        z, P = _reconstruct_over_component(fitted, coded)
        if len(_find_planes(fitted, chosen)):
            yield _plot_item_curves(fitted, z, P, coded, chosen)
        if not are_binary(fitted.dataset_features):
            yield from plot_level_curves(fitted, z, P, chosen)
        # For items of one trait that each row has, unless all their weights are unbounded.
        has_items = "difficulty" in fitted.artifact and "period" not in fitted.artifact
        if has_items and not find_unbounded_weights(fitted.artifact).all():
            yield _plot_information(fitted, z, P, coded)
    elif n_components == 2 and not _is_compositional(coded.codes) and not is_nominal:
        has_numbers = bool(find_continuous(fitted.features))
        if layout is not None and not has_numbers and not chosen:
            yield _plot_image_grid(fitted, coded, layout)
        else:
            planes = _choose_planes(fitted, coded, chosen)
            yield _plot_item_lines(fitted, coded, labels, planes, not chosen)


def _choose_planes(
    fitted: LoadedModel, coded: CodedRows, chosen: Sequence[str]
) -> NDArray[np.intp]:
    """Return the planes to draw: those of chosen features, or those that divide the rows most.

    The latter have the largest variance of P(1) between the rows, the largest first.
    """
    if chosen:
        return _find_planes(fitted, chosen)
    model = check_can_reconstruct(fitted.model)
    spread = model.reconstruct(fitted.params, coded.codes).var(axis=0)
    return np.argsort(-spread, kind="stable")[:_MAX_LINES]


def _find_planes(fitted: LoadedModel, chosen: Sequence[str]) -> NDArray[np.intp]:
    """Return the planes of chosen features, or all if none is chosen, without nominal ones."""
    is_shown = [
        feature.kind != "nominal" and (not chosen or feature.name in chosen)
        for feature in fitted.features
    ]
    return np.flatnonzero(np.repeat(is_shown, [feature.n_planes for feature in fitted.features]))


def _is_compositional(codes: Array) -> bool:
    """Return whether codes sum to 1, like posterior probabilities of components."""
    return bool(codes.min() >= 0 and np.allclose(codes.sum(axis=1), 1, atol=1e-4))


def _plot_memberships(coded: CodedRows, labels: ColourLabels | None) -> Figure:
    """Plot the mean share of each component among the rows of each label."""
    groups, _ = group_rows_by_label(labels, len(coded.codes))
    groups = [group for group in groups if len(group.rows)]
    names = [group.name for group in groups]
    means = np.array([coded.codes[group.rows].mean(axis=0) for group in groups])
    label_name = labels.name if labels else "rows"
    words = coded.words
    columns = words.label_components(means.shape[1])
    heat_map = plot_heat_map(means, names, columns, (label_name, words.component), is_signed=False)
    grouping = f", by {label_name}" if labels else ""
    alt = f"Mean share of {len(columns)} {words.components} among {len(coded.codes):,} {words.rows}"
    alt += f"{grouping}."
    heading = f"Share of {words.components}"
    return Figure("Share of components", alt, note=alt, heading=heading, **heat_map)


def _reconstruct_over_component(fitted: LoadedModel, coded: CodedRows) -> tuple[Array, Array]:
    """Return a grid on the only component, (n_grid,), and P(x_i = 1) there, (n_grid, n)."""
    low, high = coded.codes.min(), coded.codes.max()
    margin = 0.25 * (high - low) + 0.1
    z = np.linspace(low - margin, high + margin, 121)
    return z, check_can_reconstruct(fitted.model).reconstruct(fitted.params, z[:, None])


def _compute_information(z: Array, P: Array) -> Array:
    """Return the Fisher information of bits on the component, (n_grid, n), given P(bit = 1)."""
    return np.asarray(np.gradient(P, z, axis=0) ** 2 / np.maximum(P * (1 - P), 1e-12))


def _select_informative(z: Array, information: Array, coded: CodedRows) -> NDArray[np.intp]:
    """Return the columns with the most information, (n_grid, n), on average over the rows."""
    near = np.searchsorted(z, coded.codes[:, 0]).clip(max=len(z) - 1)
    mean = np.bincount(near, minlength=len(z)) @ information
    candidates = np.flatnonzero(mean > 0)
    order = np.argsort(-mean[candidates], kind="stable")
    return np.sort(candidates[order[:_MAX_LINES]])


def _plot_information(fitted: LoadedModel, z: Array, P: Array, coded: CodedRows) -> Figure:
    """Plot the Fisher information of features on the component, and its sum."""
    if "n_levels" in fitted.artifact and isinstance(fitted.model, HasItemInformation):
        information = fitted.model.get_item_curves(fitted.params).compute_information(z)
    else:
        information = _compute_information(z, P)
    unbounded = find_unbounded_weights(fitted.artifact)
    information[:, unbounded] = 0.0
    shown, total = _select_informative(z, information, coded), information.sum(axis=1)
    if information.max() < _MIN_VISIBLE_SHARE * total.max():
        shown = shown[:0]
    names = [fitted.feature_names[i] for i in shown]
    words = coded.words
    curves, keys, hint = _plot_curves(z, information[:, shown], names, words)
    total_curve = LineMarks([np.column_stack([z, total])], [GREY], 2.5)
    x, y = fit_axis(z, words.name_component(0)), fit_axis(np.append(0.0, total), "information")
    marks = (curves, total_curve) if names else (total_curve,)
    plot = Plot(x, y, marks, height=340)
    maximum, place = format_number(total.max(), 3), format_number(z[total.argmax()], 2)
    error = format_number(total.max() ** -0.5, 2)
    n_features = len(fitted.feature_names)
    is_part = bool(0 < len(shown) < n_features - unbounded.sum())
    note = f"The {len(shown)} most informative of {n_features:,} {words.features}. " * is_part
    note += (
        f"{words.rows.capitalize()} are distinguished best where information is high. The "
        f"information of all {words.features} together is largest at {place}: {maximum}, a "
        f"standard error of {error}."
    )
    if unbounded.any():
        omitted = [fitted.feature_names[i] for i in np.flatnonzero(unbounded)]
        note += f" Omitted because their weights are unbounded: {join_names(omitted)}."
    alt = (
        f"Information of {len(shown)} {words.features} and of all over {words.name_component(0)}. "
    )
    keys = (LegendKey(f"all {words.features}", GREY, "line"), *keys)
    heading = f"Information over the {words.component}"
    return Figure(
        "Information over the component",
        alt + note,
        plot,
        note=note,
        hint=hint,
        keys=keys,
        heading=heading,
    )


def _plot_item_curves(
    fitted: LoadedModel, z: Array, P: Array, coded: CodedRows, chosen: Sequence[str]
) -> Figure:
    """Plot P(x_i = 1) over the component, (n_grid, n), of the chosen or most informative ones."""
    shown = _find_planes(fitted, chosen)
    if not chosen and len(shown) > _MAX_LINES:
        is_bounded = ~find_unbounded_weights(fitted.artifact)
        owners = np.repeat(is_bounded, [feature.n_planes for feature in fitted.features])
        owners &= np.isin(np.arange(len(owners)), shown)
        shown = _select_informative(z, _compute_information(z, P) * owners, coded)
    names, probabilities = [fitted.plane_names[i] for i in shown], P[:, shown]
    words = coded.words
    curves, keys, hint = _plot_curves(z, probabilities, names, words)
    probability, meaning, noun = f"P({words.feature} = 1)", "1", words.features
    if not are_binary(fitted.dataset_features):
        probability, meaning, noun = "P(at least this level)", "at least each level", "levels"
    x, y = fit_axis(z, words.name_component(0)), make_axis(-0.02, 1.02, probability)
    texts = () if keys else (_label_curves(z, probabilities.T, names, curves.colours),)
    plot = Plot(x, y, (curves, *texts), height=340)
    alt = f"Probability of {meaning} over {words.name_component(0)}, of {len(shown)} {noun}: "
    alt += f"{join_names(names)}."
    n_features = len(_find_planes(fitted, ()))
    note = ""
    if len(shown) < n_features:
        shares = f"{len(shown)} of" if chosen else f"The {len(shown)} most informative of"
        note = f"{shares} {n_features:,} {noun}."
    heading = f"{words.features.capitalize()} over the {words.component}"
    return Figure(
        "Features over the component",
        alt,
        plot,
        note=note,
        hint=hint,
        keys=keys,
        heading=heading,
    )


def _plot_curves(
    z: Array, values: Array, names: list[str], words: Vocabulary
) -> tuple[LineMarks, tuple[LegendKey, ...], str]:
    """Plot a curve per name; return a legend if there are few curves, and else a hint."""
    keys = tuple(LegendKey(name, COLOURS[k % len(COLOURS)]) for k, name in enumerate(names))
    curves = LineMarks(
        [np.column_stack([z, column]) for column in values.T],
        [key.colour for key in keys],
        1.6,
        facts=[(words.feature, names)],
    )
    if len(keys) <= len(COLOURS):
        return curves, keys, ""
    return curves, (), "Point at a curve for its name."


def _label_curves(z: Array, curves: Array, names: Sequence[str], colours: Sequence[str]) -> Mark:
    """Write the name of each curve next to it, in its colour, if there is room."""
    low, unit = z[0], (z[-1] - z[0]) / _ASPECT_RATIO
    upwards = np.array([0.0, 1.0])
    scaled = [np.column_stack([(z - low) / unit, p]) for p in curves]
    places = choose_name_places([EvenOddsLine(k, line, upwards) for k, line in enumerate(scaled)])
    chosen = choose_names_with_room(places, names, _ASPECT_RATIO)
    x, y = low + unit * places[chosen, 0], places[chosen, 1]
    return TextMarks(x, y, [names[k] for k in chosen], [colours[k] for k in chosen])


def _make_plane_grid(coded: CodedRows, n: int) -> tuple[Array, Array, Array]:
    """Return a square grid around the codes: both axes, (n,) each, and its points, (n², 2)."""
    low, high = coded.codes.min(axis=0), coded.codes.max(axis=0)
    middle, half = (low + high) / 2, 0.55 * max(float((high - low).max()), 1e-3)
    x, y = (np.linspace(centre - half, centre + half, n) for centre in middle)
    return x, y, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _plot_item_lines(
    fitted: LoadedModel,
    coded: CodedRows,
    labels: ColourLabels | None,
    planes: NDArray[np.intp],
    is_default: bool,
) -> Figure:
    """Plot the lines on which some planes are 1 with probability ½, over the rows."""
    x, y, points = _make_plane_grid(coded, _GRID_SIZE)
    probabilities = check_can_reconstruct(fitted.model).reconstruct(fitted.params, points)
    grids = probabilities[:, planes].T.reshape(-1, _GRID_SIZE, _GRID_SIZE)
    labels, words = None if has_too_many_labels(labels) else labels, coded.words
    colour, shown = COLOURS[1] if labels is None else GREY, [fitted.plane_names[i] for i in planes]
    line_marks, names = mark_even_odds_lines(x, y, grids, shown, colour, words.feature)
    groups, ramp = group_rows_by_label(labels, len(coded.codes))
    dots = [mark_rows(coded.codes[g.rows], describe_rows(coded, g.rows), g.key)[0] for g in groups]
    axes = (
        make_axis(x[0], x[-1], words.name_component(0)),
        make_axis(y[0], y[-1], words.name_component(1)),
    )
    one, it, noun = f"the {words.feature} is 1", "1 is", words.features
    if not are_binary(fitted.dataset_features):
        one, it, noun = "a level or a higher one is reached", "it is", "levels"
    note = (
        f"On its line, {one} with probability ½; its name is on the side where {it} more likely. "
        f"Marks are {words.rows}."
    )
    if len(names) < (n_all := probabilities.shape[1]):
        which = f", of those that divide the {words.rows} most" if is_default else ""
        note += f" {len(names):,} of {n_all:,} {noun} have a line here{which}."
    alt = f"Lines on which {one} with probability ½, over {len(coded.codes):,} {words.rows}: "
    alt += f"{join_names(names)}." if names else "none."
    hint = "Point at a line for its name."
    plot = Plot(*axes, (*line_marks[:1], *dots, *line_marks[1:]))
    keys = () if ramp or labels is None else tuple(group.key for group in groups)
    title, heading = "Features in latent space", f"{words.features.capitalize()} in latent space"
    return Figure(title, alt, plot, note=note, hint=hint, keys=keys, ramp=ramp, heading=heading)


def _plot_image_grid(fitted: LoadedModel, coded: CodedRows, layout: ImageLayout) -> Figure:
    """Plot P(x = 1), or the expected share of the highest level, as an image at grid points."""
    x, y, points = _make_plane_grid(coded, _N_TILES)
    planes = check_can_reconstruct(fitted.model).reconstruct(fitted.params, points)
    n_planes = [feature.n_planes for feature in fitted.features]
    images = layout.arrange_images(sum_planes(planes, fitted.features) / n_planes)
    names = coded.words.name_component(0), coded.words.name_component(1)
    plot = plot_image_mosaic(images, x, y, names)
    value = "probability of 1"
    if not are_binary(fitted.features):
        value = "expected level, from the lowest (0) to the highest (1),"
    alt = f"The {value} of pixels as {_N_TILES}x{_N_TILES} images over "
    alt += f"{names[0]} and {names[1]}."
    note = f"Each image shows the {value} of every pixel for a {coded.words.row} with these codes."
    return Figure("Images over latent space", alt, plot, note=note, ramp=SHARES.make_ramp())


def plot_image_mosaic(images: Array, x: Array, y: Array, labels: tuple[str, str]) -> Plot:
    """Plot images of shares at the points of a grid.

    Parameters
    ----------
    images
        (n_y n_x, height, width), row after row of the grid; NaN is left blank.
    x, y
        Coordinates of the grid, (n_x,) and (n_y,), in equal steps.
    labels
        Labels of the axes.
    """
    height, width = images.shape[1:]
    # A blank line separates neighbours.
    tiles = np.pad(np.nan_to_num(images), ((0, 0), (0, 1), (0, 1)))
    tiles = tiles.reshape(len(y), len(x), height + 1, width + 1)
    # The grid starts at the bottom, images at the top.
    mosaic = tiles[::-1].transpose(0, 2, 1, 3).reshape(len(y) * (height + 1), -1)
    half = (x[1] - x[0]) / 2
    across, up = (
        replace(make_axis(grid[0] - half, grid[-1] + half, label), has_lines=False)
        for grid, label in zip((x, y), labels, strict=True)
    )
    return Plot(across, up, (RasterMark(mosaic, SHARES),))


def plot_calibration(sample: DatasetSample, pairs: ShareComparison) -> Figure:
    """Plot joint frequencies of pairs in the data against those in the model."""
    shown = _choose_pairs(pairs.z)
    top = float(max(pairs.observed[shown].max(), pairs.implied[shown].max(), 1e-3)) * 1.03
    x = make_axis(-0.02 * top, top, "joint frequency in the model")
    y = make_axis(-0.02 * top, top, "joint frequency in the data")
    diagonal = LineMarks([np.array([[0.0, 0.0], [top, top]])], [GREY], 1.0, dash=(6, 6))
    first, second = pairs.features[shown].T
    words = sample.coded_rows.words
    facts = [
        (words.feature, [sample.paired_names[i] for i in first]),
        ("and", [sample.paired_names[i] for i in second]),
        ("model", [format_number(value, 3) for value in pairs.implied[shown]]),
        ("data", [format_number(value, 3) for value in pairs.observed[shown]]),
        ("standard errors apart", [format_number(value, 2) for value in pairs.z[shown]]),
    ]
    points = PointMarks(
        pairs.implied[shown], pairs.observed[shown], COLOURS[0], opacity=0.5, facts=facts
    )
    rmse, chance = format_number(pairs.rmse, 2), format_number(pairs.chance_rmse, 2)
    count = f"{len(shown):,} of " if len(shown) < len(pairs.z) else ""
    noun = f"levels of {words.features}" if sample.has_levels else words.features
    note = (
        f"{count}{len(pairs.z):,} pairs of {noun} in {sample.n_rows:,} {words.rows} and in "
        f"{sample.n_drawn:,} {words.rows} drawn from the model. The root mean square difference "
        f"is {rmse}; if the model were right, it would be about {chance}."
    )
    both = "with both levels of a pair" if sample.has_levels else "in which both are 1"
    alt = f"Share of {words.rows} {both}, in the data against the model. "
    return Figure("Calibration of pairs", alt + note, Plot(x, y, (diagonal, points)), note=note)


def _choose_pairs(z: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose the pairs that differ most, and evenly spaced others."""
    if len(z) <= _MAX_PAIRS:
        return np.arange(len(z))
    worst = np.argsort(-np.abs(z), kind="stable")[:_N_WORST_PAIRS]
    even = np.linspace(0, len(z) - 1, _MAX_PAIRS - _N_WORST_PAIRS).round().astype(np.intp)
    return np.union1d(worst, even)


def mark_even_odds_lines(
    x: Array,
    y: Array,
    probabilities: Array,
    names: Sequence[str],
    colour: str = COLOURS[1],
    feature: str = "feature",
) -> tuple[list[Mark], list[str]]:
    """Draw the lines with probability ½, with their names if there is room.

    Arguments are those of `find_even_odds_lines`, the names of the features and their colour, and
    the word for a feature.
    Returns the marks, and the names of the features with a line, steepest first.
    """
    lines = find_even_odds_lines(x, y, probabilities)[:_MAX_LINES]
    shown = [names[line.feature] for line in lines]
    points, greys = [line.points for line in lines], [GREY] * len(lines)
    marks: list[Mark] = [LineMarks(points, greys, 1.0, facts=[(feature, shown)])]
    if lines:
        places = choose_name_places(lines)
        chosen = choose_names_with_room(places, shown, x[-1] - x[0])
        across, up = places[chosen].T
        texts = [shown[k] for k in chosen]
        marks.append(TextMarks(across, up, texts, [colour] * len(chosen)))
    return marks, shown


class EvenOddsLine(NamedTuple):
    """The line on which a feature is 1 with probability ½: points, (n, 2).

    `direction` is the unit vector across the line to the side where 1 is more likely.
    """

    feature: int
    points: Array
    direction: Array


def find_even_odds_lines(x: Array, y: Array, probabilities: Array) -> list[EvenOddsLine]:
    """Find the lines with probability ½, steepest features first.

    Parameters
    ----------
    x, y
        Coordinates of a grid, (n_x,) and (n_y,).
    probabilities
        P(feature = 1) on the grid, (n_features, n_y, n_x).
    """
    from contourpy import contour_generator  # of the extra `report`

    lines = []
    for i in np.argsort(-np.ptp(probabilities, axis=(1, 2)), kind="stable"):
        pieces: Any = contour_generator(x, y, probabilities[i]).lines(0.5)
        if pieces:
            points = max(pieces, key=len)
            direction = _find_direction(x, y, probabilities[i], points)
            lines.append(EvenOddsLine(int(i), points, direction))
    return lines


def _find_direction(x: Array, y: Array, probability: Array, points: Array) -> Array:
    """Return the unit gradient at the middle of the line."""
    down, across = np.asarray(np.gradient(probability, y, x))
    middle = points[len(points) // 2]
    index = np.abs(y - middle[1]).argmin(), np.abs(x - middle[0]).argmin()
    gradient = np.array([across[index], down[index]])
    unit: Array = gradient / max(float(np.linalg.norm(gradient)), 1e-300)
    return unit


def choose_name_places(lines: Sequence[EvenOddsLine]) -> Array:
    """Choose a place next to each line, far from other lines and earlier names: (n_lines, 2)."""
    ends = np.vstack([line.points for line in lines])
    middle, size = (ends.min(axis=0) + ends.max(axis=0)) / 2, float(np.ptp(ends)) or 1.0
    samples = [_sample_line(line) for line in lines]
    chosen = np.zeros((0, 2))
    for k, line in enumerate(lines):
        places = samples[k] + _NAME_DISTANCE * size * line.direction
        other_lines = np.vstack([*samples[:k], *samples[k + 1 :], np.full((1, 2), np.inf)])
        room = np.minimum(
            _compute_distances(places, chosen), 3 * _compute_distances(places, other_lines)
        )
        # Near the edge, a name would be cut off.
        is_outer = (np.abs(places - middle) > _INNER_SHARE * np.ptp(ends, axis=0)).any(axis=1)
        room[is_outer] -= 9 * size
        chosen = np.vstack([chosen, places[int(np.argmax(room))]])
    return chosen


def _sample_line(line: EvenOddsLine) -> Array:
    positions = _NAME_POSITIONS * (len(line.points) - 1)
    steps = np.arange(len(line.points))
    return np.column_stack([np.interp(positions, steps, line.points[:, axis]) for axis in (0, 1)])


def _compute_distances(places: Array, others: Array) -> Array:
    """Return the weighted distance of each place to the nearest of `others`."""
    differences = (places[:, None] - others) * np.array([1.0, _VERTICAL_WEIGHT])
    distances: Array = np.linalg.norm(differences, axis=2).min(axis=1, initial=np.inf)
    return distances
