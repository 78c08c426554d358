"""Figures of features with several levels: curves over the component, and shares by component."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flows.cli.summary import join_names
from flows.data.datasets import LoadedModel
from flows.report.figures.axes import fit_axis, make_axis, make_name_axis
from flows.report.figures.colours import (
    COLOURS,
    MORE_COLOURS,
    NEGATIVE,
    make_level_colours,
)
from flows.report.figures.marks import (
    BarMarks,
    Figure,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    RuleMark,
)
from flows.report.figures.text import format_number, format_shown_count
from pipeline.data.features import (
    BINARY_LEVELS,
    Feature,
    find_first_planes,
    read_features,
    select_with_levels,
)
from pipeline.data.level_probabilities import (
    count_levels,
    find_level_probabilities,
    order_planes,
)
from pipeline.errors import format_share
from pipeline.models.registry import read_vocabulary
from storage.artifacts.artifacts import Artifact

Array = NDArray[np.float64]

_MAX_CURVES, _MAX_COMPONENTS, _MAX_BARS = 6, 8, 40
_ROW_HEIGHT = 18
_COLOURS = (*COLOURS, *MORE_COLOURS)
_SELECTION = ", those whose levels differ most"
_EDGE_TEXTS = ("lowest level", "highest level")


def plot_level_curves(
    fitted: LoadedModel, z: Array, planes: Array, chosen: Sequence[str] = ()
) -> Iterator[Figure]:
    """Plot P(level) over the only component, for the features whose levels change most.

    Parameters
    ----------
    fitted
        The fit, with features of several levels.
    z, planes
        Positions, (n_grid,), and the probabilities of planes there, (n_grid, n_planes).
    chosen
        Names of the features to choose from; empty for all.
    """
    features = select_with_levels(fitted.dataset_features)
    firsts = find_first_planes(features)
    levels = find_level_probabilities(order_planes(planes, features), count_levels(features))
    ends = np.cumsum(count_levels(features))
    changes = np.add.reduceat(np.ptp(levels, axis=0), ends - count_levels(features))
    several = [
        i
        for i, feature in enumerate(features)
        if feature.kind != "binary" and (not chosen or feature.name in chosen)
    ]
    largest = sorted(several, key=lambda i: -changes[i])[:_MAX_CURVES]
    thresholds = fitted.artifact.get("level_difficulty")
    for i in sorted(largest):
        own = levels[:, ends[i] - len(features[i].levels) : ends[i]]
        places = None if thresholds is None else thresholds[firsts[i] : firsts[i + 1]]
        words = read_vocabulary(fitted.artifact.manifest)
        note = format_shown_count(words.features, len(largest), len(several), _SELECTION)
        yield _plot_curves(features[i], z, own, places, note, words.name_component(0))


def _plot_curves(
    feature: Feature,
    z: Array,
    levels: Array,
    thresholds: Array | None,
    note: str,
    component: str,
) -> Figure:
    """Plot the probability of each level of a feature, (n_grid, n_levels), with its thresholds."""
    keys = _make_keys(feature.levels, "line")
    if feature.kind == "nominal":  # shades would show an order
        keys = tuple(key._replace(colour=_COLOURS[k % len(_COLOURS)]) for k, key in enumerate(keys))
    colours = [key.colour for key in keys]
    curves = LineMarks(
        [np.column_stack([z, column]) for column in levels.T],
        colours,
        2.0,
        facts=[("level", feature.levels)],
    )
    marks: list[Mark] = [curves]
    if thresholds is not None:
        places = thresholds[(thresholds > z[0]) & (thresholds < z[-1])]
        marks = [*(RuleMark("x", float(place), dash=(2, 4)) for place in places), curves]
        texts = [format_number(value, 3) for value in thresholds]
        note = f"Dotted lines are the thresholds, {join_names(texts)}. {note}"
    x, y = fit_axis(z, component, 0.0), make_axis(-0.02, 1.02, "P(level)")
    title = f"Levels of {feature.name}"
    alt = f"Probability of the {len(feature.levels)} levels of {feature.name} over {component}."
    plot = Plot(x, y, tuple(marks), height=300)
    return Figure(title, alt, plot, note=note.strip(), keys=keys)


def plot_component_levels(artifact: Artifact) -> Iterator[Figure]:
    """Plot the probabilities of levels in each component as bars, if there are any."""
    name = "level_probabilities"
    if name not in artifact or artifact.dims(name) != ("component", "level"):
        return
    values, features = artifact[name], select_with_levels(read_features(artifact.manifest))
    if not features:
        return
    rows = _select_rows(values, features)
    ends = np.cumsum(count_levels(features))
    for k, levels in enumerate(values[:_MAX_COMPONENTS]):
        parts = [levels[ends[i] - len(features[i].levels) : ends[i]] for i in rows]
        own = [features[i] for i in rows]
        yield _plot_bars(artifact, k, own, parts, _find_common_levels(features), len(features))


def _select_rows(values: Array, features: Sequence[Feature]) -> list[int]:
    """Return the features whose levels differ most between components, in their order."""
    firsts = np.cumsum(count_levels(features)) - count_levels(features)
    differences = np.add.reduceat(np.ptp(values, axis=0), firsts)
    largest = np.argsort(-differences, kind="stable")
    common = _find_common_levels(features)
    n_rows = np.array([len(f.levels) if _is_drawn_by_name(f, common) else 1 for f in features])
    n_rows = np.cumsum(n_rows[largest])
    return sorted(largest[(n_rows <= _MAX_BARS) | (np.arange(len(largest)) == 0)].tolist())


def _find_common_levels(features: Sequence[Feature]) -> tuple[str, ...]:
    """Return the levels that all ordinal, or else binary, features have; empty if they differ."""
    ordinal, binary = (
        {feature.levels for feature in features if feature.kind == kind}
        for kind in ("ordinal", "binary")
    )
    levels = ordinal or binary
    return levels.pop() if len(levels) == 1 else ()


def _is_drawn_by_name(feature: Feature, common: tuple[str, ...]) -> bool:
    """Return whether each level has a bar with its name: of categories, also if they are two."""
    if feature.kind != "binary" or feature.levels == BINARY_LEVELS:
        return feature.kind == "nominal"
    return not {*feature.levels} <= {*common}


def _plot_bars(
    artifact: Artifact,
    k: int,
    features: Sequence[Feature],
    parts: Sequence[Array],
    common: tuple[str, ...],
    n_features: int,
) -> Figure:
    """Plot one bar per feature, cut into its levels, and one per category of nominal ones.

    `parts` are the probabilities of the levels of each feature, and `common` the common levels.
    """
    words = read_vocabulary(artifact.manifest)
    left, right, names, colours, rows = [], [], list[str](), [], []
    for feature, part in zip(features, parts, strict=True):
        n_levels, is_nominal = len(feature.levels), _is_drawn_by_name(feature, common)
        ends = part if is_nominal else np.cumsum(part)
        right.append(ends)
        left.append(ends - part)
        rows.append(len(names) + np.arange(n_levels) * is_nominal)
        own_names = [feature.name]
        if is_nominal:
            own_names = [f"{feature.name} = {category}" for category in feature.levels]
        names += own_names
        colours.append([NEGATIVE] * n_levels if is_nominal else make_level_colours(n_levels))
    facts = [
        (words.feature, [f.name for f in features for _ in f.levels]),
        ("level", [level for f in features for level in f.levels]),
        ("probability", [format_number(value, 3) for part in parts for value in part]),
    ]
    bars = BarMarks(
        np.concatenate(left),
        np.concatenate(right),
        np.concatenate(rows),
        [colour for own in colours for colour in own],
        facts=facts,
    )
    x, y = make_axis(0.0, 1.0, "P(level)"), make_name_axis(names, is_down=True)
    keys: tuple[LegendKey, ...] = ()
    if not all(_is_drawn_by_name(feature, common) for feature in features):
        keys = _make_keys(common or _EDGE_TEXTS)
    note = ""
    if "weights" in artifact and artifact.dims("weights") == ("component",):
        note = f"{format_share(artifact['weights'][k], 1)} of the rows. "
    note += format_shown_count(words.features, len(features), n_features, _SELECTION)
    title, heading = f"Levels in component {k + 1}", f"Levels in {words.name_component(k)}"
    alt = f"{heading}: probability of each level of {len(features)} features as bars. {note}"
    plot = Plot(x, y, (bars,), _ROW_HEIGHT * len(names) + 60)
    return Figure(title, alt.strip(), plot, note=note.strip(), keys=keys, heading=heading)


def _make_keys(levels: Sequence[str], marker: str = "square") -> tuple[LegendKey, ...]:
    colours = make_level_colours(len(levels))
    return tuple(LegendKey(*key, marker) for key in zip(levels, colours, strict=True))
