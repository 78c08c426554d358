"""Figures of the arrays of an artifact, chosen by their dimensions, and of its convergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import (
    LARGEST_TEXT,
    MAX_COLUMNS,
    fit_axis,
    make_axis,
    make_count_axis,
    make_name_axis,
    plot_curve,
    plot_heat_map,
    select_largest_rows,
)
from flows.report.figures.causes import plot_causes
from flows.report.figures.colours import COLOURS, MARKERS, SIGNS_TEXT
from flows.report.figures.images import MAX_IMAGES, ImageLayout, render_images
from flows.report.figures.levels import plot_component_levels
from flows.report.figures.marks import (
    Figure,
    HoverColumns,
    LegendKey,
    LineMarks,
    Mark,
    Plot,
    PointMarks,
    RuleMark,
)
from flows.report.figures.rows import CodedRows
from flows.report.figures.text import format_number, format_shown_count
from pipeline.data.features import are_binary, read_features
from pipeline.learning.convergence import describe_ending
from pipeline.models.capabilities import HiddenCauses
from pipeline.models.registry import read_vocabulary
from pipeline.models.vocabulary import PLAIN, Vocabulary, format_count, make_plural
from storage.artifacts.artifacts import Artifact

Array = NDArray[np.float64]

CORRELATION_TITLE = "Correlation of features with components"
_MAX_RANKS, _MAX_INTERVALS = 64, 40
# Dimensions of arrays that relate features to components, and their title.
FEATURE_DIMS = (
    (("feature", "component"), ""),
    (("feature", "unit_1"), "Weights of the first layer"),
)
_CRITERIA = {"bic": "BIC", "adjusted_bic": "aBIC", "caic": "CAIC"}
_SEGMENT_DIMS = {"segment", "component"}
_IN_TABLES_ONLY = ("population_mean",)
_NORMAL_QUANTILE = 1.96  # of 97.5 %
_ROW_HEIGHT, _MARK_SIZE = 14, 5
# The axis covers all intervals but a tenth at either end, and 1.5 of their range beyond them.
_TAIL_SHARE, _REACH_SHARE, _MARGIN_SHARE = 0.1, 1.5, 0.04
_SPREAD_SHARE = 0.7  # of a feature's row, over which its components are spread


def plot_parameters(
    artifact: Artifact, layout: ImageLayout | None, causes: HiddenCauses | None = None
) -> Iterator[Figure]:
    """Plot the convergence, the spectrum and the arrays of an artifact.

    `layout` has the positions of features that are pixels; `causes`, the hidden causes of the
    model, are plotted instead of its weights.
    """
    yield from _plot_class_numbers(artifact)
    yield from _plot_history(artifact)
    yield from _plot_spectrum(artifact)
    if causes:
        yield from plot_causes(causes, artifact.manifest["feature_names"], layout)
    # Slopes of nominal items are those of their categories, which have a table.
    is_nominal = "level_weights" in artifact and "is_nominal" in artifact
    for dims, title in () if causes or is_nominal else FEATURE_DIMS:
        for name in _list_distinct_arrays(artifact, set(dims)):
            if name == "weights" and "loadings" in artifact:  # the same in other units
                continue
            values = _orient_array(artifact, name, dims[0])
            yield from plot_feature_array(
                artifact, name, title or _format_title(name), values, layout
            )
    yield from plot_component_levels(artifact)
    for name in _list_distinct_arrays(artifact, _SEGMENT_DIMS):
        values = _orient_array(artifact, name, "segment")
        has_values = np.nan_to_num(values).any()
        if len(values) > 1 and has_values and name not in _IN_TABLES_ONLY:
            yield _plot_segment_array(artifact, name, values)
    for name in _list_distinct_arrays(artifact, {"covariate", "component"}):
        if (ends := _find_intervals(artifact, name)) is not None:
            values = _orient_array(artifact, name, "covariate")
            names = artifact.manifest["covariates"]["names"]
            words, title = read_vocabulary(artifact.manifest), _format_title(name)
            yield _plot_first_intervals(title, values, ends, names, words, "covariate")


def plot_feature_array(
    artifact: Artifact, name: str, title: str, values: Array, layout: ImageLayout | None
) -> Iterator[Figure]:
    """Plot an array (n_features, n_components), and its intervals if it has any."""
    if not values.size:
        return
    draw = partial(_plot_images, layout=layout) if layout else _plot_loadings
    yield draw(artifact, name, title, values)
    ends = None if layout else _find_intervals(artifact, name)
    if ends is not None and np.isfinite(ends).any():
        yield _plot_largest_intervals(artifact, name, values, ends)


def _list_distinct_arrays(artifact: Artifact, dims: set[str]) -> list[str]:
    """List the arrays with these two dimensions, without standard errors and duplicates."""
    names: list[str] = []
    for name in artifact:
        has_dims = len(artifact.dims(name)) == 2 and set(artifact.dims(name)) == dims
        is_candidate = has_dims and not name.endswith("_error")
        if is_candidate and not any(np.array_equal(artifact[name], artifact[n]) for n in names):
            names.append(name)
    return names


def _orient_array(artifact: Artifact, name: str, first: str) -> Array:
    values = artifact[name].astype(np.float64)
    return values if artifact.dims(name)[0] == first else values.T


def _plot_class_numbers(artifact: Artifact) -> Iterator[Figure]:
    """Plot the information criteria of the numbers of classes that a fit compared."""
    table = artifact.manifest["diagnostics"].get("class_numbers", ())
    if len(table) < 2 or "bic" not in table[0]:
        return
    numbers = np.array([line["components"] for line in table], np.float64)
    marks: list[Mark] = []
    criteria = {name: np.array([line[name] for line in table], np.float64) for name in _CRITERIA}
    for name, marker, colour in zip(_CRITERIA, MARKERS, COLOURS, strict=False):
        marks.append(LineMarks([np.column_stack([numbers, criteria[name]])], [colour]))
        marks.append(PointMarks(numbers, criteria[name], colour, marker))
    facts = [
        ("classes", [f"{n:.0f}" for n in numbers]),
        *((_CRITERIA[name], [f"{v:,.1f}" for v in own]) for name, own in criteria.items()),
    ]
    marks.append(HoverColumns(numbers, facts))
    values = np.concatenate([*criteria.values()])
    plot = Plot(
        make_count_axis(len(table), "number of classes"),
        fit_axis(values, "criterion"),
        tuple(marks),
        height=300,
    )
    best = {_CRITERIA[name]: int(numbers[own.argmin()]) for name, own in criteria.items()}
    lowest = ", ".join(f"{name} at {n}" for name, n in best.items())
    keys = tuple(
        LegendKey(text, colour, marker)
        for text, marker, colour in zip(_CRITERIA.values(), MARKERS, COLOURS, strict=False)
    )
    chosen = next(line["components"] for line in table if line["is_chosen"])
    note = f"Lowest: {lowest}. The fit has {chosen} classes."
    yield Figure("Number of classes", f"Information criteria. {note}", plot, note=note, keys=keys)


def _plot_history(artifact: Artifact) -> Iterator[Figure]:
    history = np.array(artifact.manifest["history"], np.float64)
    if len(history) < 2:
        return
    measure = artifact.manifest["diagnostics"].get("objective_is", "objective")
    plot = plot_curve(history, ("pass", f"{measure}, nats per row"))
    first, last = format_number(history[0], 6), format_number(history[-1], 6)
    ending = describe_ending(artifact.manifest["converged"])
    alt = f"The {measure} went from {first} to {last} nats per row in {len(history)} passes; "
    alt += f"{ending}."
    note = f"{first} → {last} nats per row; {ending}."
    objective = artifact.manifest.get("objective")
    if objective is not None and objective > history[-1]:
        best = int(history.argmax()) + 1
        note += f" The parameters are from pass {best}, with {format_number(objective, 6)}."
    n_passes = artifact.manifest["iterations"]
    if n_passes > len(history):
        note += f" {len(history)} of {n_passes} passes; others were rejected or of earlier stages."
    yield Figure("Convergence", alt, plot, note=note)


def _plot_spectrum(artifact: Artifact) -> Iterator[Figure]:
    """Plot eigenvalues, and their bound from parallel analysis if there is one."""
    by_dims = _group_arrays_by_dims(artifact)
    values = by_dims.get(("eigenvalue",), np.zeros(0))[:_MAX_RANKS]
    if len(values) < 2:
        return
    null = by_dims.get(("null_eigenvalue",), np.zeros(0))[:_MAX_RANKS]
    n_components = int(artifact.manifest["n_components"])
    marks: list[Mark] = []
    keys: list[LegendKey] = []
    if len(null):
        bound = np.column_stack([np.arange(1, len(null) + 1), null])
        marks.append(LineMarks([bound], [COLOURS[1]], dash=(6, 6)))
        keys.append(LegendKey("data", COLOURS[0]))
        keys.append(
            LegendKey("95 % of independent features (parallel analysis)", COLOURS[1], "dash")
        )
    if is_cut := n_components < len(values):
        marks.append(RuleMark("x", n_components + 0.5, dash=(2, 4)))
    plot = plot_curve(values, ("rank", "eigenvalue"), *marks)
    shown = np.concatenate([values, null])
    low = min(0.0, float(shown.min())) - 0.03 * float(values.max())
    high = fit_axis(shown).high
    plot = replace(
        plot,
        x=make_count_axis(max(len(values), len(null)), "rank"),
        y=make_axis(low, high, "eigenvalue"),
    )
    reason = "their eigenvalues exceed the dashed line" if len(null) else "as requested"
    place = ", left of the dotted line" * is_cut
    components = format_count(n_components, read_vocabulary(artifact.manifest).component)
    note = f"{components}{place}; {reason}."
    span = f"from {format_number(values[0], 3)} down to {format_number(values[-1], 3)}"
    alt = f"The {len(values)} leading eigenvalues, {span}. {note}"
    yield Figure("Spectrum", alt, plot, note=note, keys=tuple(keys))


def _group_arrays_by_dims(artifact: Artifact) -> dict[tuple[str, ...], Array]:
    return {artifact.dims(name): artifact[name] for name in artifact}


def _format_title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _plot_loadings(artifact: Artifact, name: str, title: str, values: Array) -> Figure:
    features, words = artifact.manifest["feature_names"], read_vocabulary(artifact.manifest)
    n_features, n_components = values.shape
    rows, columns = select_largest_rows(values), slice(MAX_COLUMNS)
    shown, ends = values[rows, columns], _find_intervals(artifact, name)
    heat_map = plot_heat_map(
        shown,
        [features[i] for i in rows],
        words.label_components(shown.shape[1]),
        (words.feature, words.component),
        bool(values.min() < 0),
        {} if ends is None else {"interval": _format_intervals(ends[:, rows, columns])},
    )
    note = format_shown_count(words.features, len(rows), n_features, LARGEST_TEXT)
    note += format_shown_count(words.components, shown.shape[1], n_components, "")
    alt = f"{title} of {n_features} {words.features} on {n_components} {words.components}. "
    alt += _format_leading(shown, rows, features, words)
    return Figure(title, alt, note=note, heading=_translate_title(name, title, words), **heat_map)


def _find_intervals(artifact: Artifact, name: str) -> Array | None:
    """Return the intervals of an array, (2, n_rows, …), or compute them from its errors."""
    interval, error = f"{name}_interval", f"{name}_error"
    if interval in artifact and len(artifact[interval]) == 2:
        ends: Array = artifact[interval]
    elif error in artifact:
        ends = np.stack(
            [artifact[name] + sign * _NORMAL_QUANTILE * artifact[error] for sign in (-1, 1)]
        )
    else:
        return None
    is_transposed = artifact.dims(name)[0] == "component"
    return np.swapaxes(ends, 1, 2) if is_transposed else ends


def _format_intervals(ends: Array) -> list[str]:
    low, high = ends.reshape(2, -1)
    return [format_interval(a, b) for a, b in zip(low, high, strict=True)]


def _plot_largest_intervals(artifact: Artifact, name: str, values: Array, ends: Array) -> Figure:
    rows = select_largest_rows(values, _MAX_INTERVALS)
    names = artifact.manifest["feature_names"]
    features = [names[i] for i in rows]
    words = read_vocabulary(artifact.manifest)
    note = format_shown_count(words.features, len(rows), len(values), LARGEST_TEXT)
    title = _format_title(name)
    figure = plot_intervals(title, values[rows], ends[:, rows], features, words, note=note)
    return replace(figure, heading=f"{_translate_title(name, title, words)}: 95 % intervals")


def _translate_title(name: str, title: str, words: Vocabulary) -> str:
    """Return the title of the figure of an array in other words, if the vocabulary has some."""
    if name == "correlation":
        return f"Correlation of {words.features} with {words.components}"
    return make_plural(words.arrays[name]).capitalize() if name in words.arrays else title


def _format_leading(
    values: Array, rows: NDArray[np.intp], features: Sequence[str], words: Vocabulary
) -> str:
    """List the features with the largest values on the first components."""
    leading = []
    for k in range(min(3, values.shape[1])):
        order = np.argsort(-np.abs(values[:, k]), kind="stable")[:3]
        texts = (f"{features[rows[i]]} {format_number(values[i, k], 2)}" for i in order)
        leading.append(f"{words.name_component(k)}: {', '.join(texts)}")
    return "Largest of " + "; ".join(leading) + "."


def _plot_images(
    artifact: Artifact, name: str, title: str, values: Array, layout: ImageLayout
) -> Figure:
    shown = values.T[:MAX_IMAGES]
    captions = make_captions(artifact, len(shown))
    signed = bool(values.min() < 0)
    words = read_vocabulary(artifact.manifest)
    alt = f"{title} of {len(shown)} {words.components} as images of {layout.height}x{layout.width}."
    scales = np.abs(shown).max(axis=1)
    note = f"Each image has its own scale: {SIGNS_TEXT}. "
    if not signed:
        scales[:] = scales.max()
        note = f"Blue, from 0 to {format_number(scales[0], 3)}. "
    note += format_shown_count(words.components, len(shown), values.shape[1], "")
    images = render_images(layout.arrange_images(shown), captions, scales, signed)
    return Figure(title, alt, images=images, note=note.strip(), width=1060)


def make_captions(artifact: Artifact, n: int) -> list[str]:
    """Number components, with their eigenvalues if there are any."""
    values = _group_arrays_by_dims(artifact).get(("eigenvalue",), np.zeros(0))
    labels = read_vocabulary(artifact.manifest).label_components(n)
    if len(values) < n:
        return labels
    return [
        f"{label}: λ = {format_number(value, 3)}"
        for label, value in zip(labels, values, strict=False)
    ]


def _plot_segment_array(artifact: Artifact, name: str, values: Array) -> Figure:
    """Plot an array (n_segments, n_components): its intervals, or its values as a heat map."""
    names = artifact.manifest["segment_names"]
    indices = artifact["segments"] if "segments" in artifact else np.arange(len(values))
    row_names = [names[int(u)] for u in indices]
    kind = "segment" if artifact.manifest.get("group") is None else "group"
    words = read_vocabulary(artifact.manifest)
    title = f"{_format_title(name.removeprefix('group_'))} by {kind}"
    if (ends := _find_intervals(artifact, name)) is not None:
        return _plot_first_intervals(title, values, ends, row_names, words, kind)
    shown = values[:, :MAX_COLUMNS]
    signed = bool(values.min() < 0)
    heat_map = plot_heat_map(
        shown,
        row_names,
        words.label_components(shown.shape[1]),
        (kind, words.component),
        signed,
    )
    low, high = format_number(values.min(), 3), format_number(values.max(), 3)
    alt = (
        f"{_format_title(name)} of {len(values)} {kind}s and {values.shape[1]} {words.components}, "
    )
    alt += f"from {low} to {high}."
    note = format_shown_count(words.components, shown.shape[1], values.shape[1], "")
    return Figure(title, alt, note=note, **heat_map)


def _plot_first_intervals(
    title: str, values: Array, ends: Array, names: Sequence[str], words: Vocabulary, kind: str
) -> Figure:
    note = format_shown_count(f"{kind}s", min(len(values), _MAX_INTERVALS), len(values))
    rows = slice(_MAX_INTERVALS)
    return plot_intervals(title, values[rows], ends[:, rows], names[rows], words, kind, note)


def plot_correlations(
    artifact: Artifact, coded: CodedRows, values: Array, layout: ImageLayout | None
) -> Iterator[Figure]:
    """Plot correlations of features with codes, unless an array relates features to components.

    `values` are the result of `correlate_features_with_codes`, (n_features, n_components).
    """
    related = {frozenset(dims) for dims, _ in FEATURE_DIMS}
    if not any(frozenset(artifact.dims(name)) in related for name in artifact):
        for figure in plot_feature_array(
            artifact, "correlation", CORRELATION_TITLE, values, layout
        ):
            rows = read_vocabulary(artifact.manifest).rows
            note = f"{figure.note} Of {len(coded.codes):,} {rows}.".strip()
            if not are_binary(read_features(artifact.manifest)):
                note += " Levels count as 0, 1, 2 and so on."
            yield replace(figure, note=note)


def correlate_features_with_codes(coded: CodedRows) -> Array:
    """Return correlations of observed values with codes, (n_features, n_codes); 0 if constant."""
    X, codes = coded.values.astype(np.float64), coded.codes
    observed = np.isfinite(X).astype(np.float64)
    n = np.maximum(observed.sum(axis=0), 1.0)
    X = np.where(observed == 1, X, 0.0)
    sizes = np.abs(X).max(axis=0, initial=0.0)
    X = observed * (X - X.sum(axis=0) / n)
    deviations = np.sqrt((X**2).sum(axis=0) / n)
    X = np.divide(X, deviations, out=np.zeros_like(X), where=deviations > 1e-12 * sizes)
    n = n[:, None]
    variances = np.maximum(observed.T @ codes**2 / n - (observed.T @ codes / n) ** 2, 0.0)
    covariance, zeros = X.T @ codes / n, np.zeros_like(variances)
    correlations: Array = np.divide(
        covariance, np.sqrt(variances), out=zeros, where=variances > 1e-12
    )
    return correlations


def plot_intervals(
    title: str,
    values: Array,
    ends: Array,
    names: Sequence[str],
    words: Vocabulary = PLAIN,
    kind: str = "",
    note: str = "",
) -> Figure:
    """Plot the intervals of the leading components, one per colour at most.

    Values have shape (n_rows, n_components), and lower and upper ends shape
    (2, n_rows, n_components); equal ends mark values that were not estimated. `kind` says what the
    rows are, features if it is empty, and `note` names omitted ones.
    """
    kind = kind or words.feature
    n, n_shown = len(values), min(values.shape[1], len(COLOURS))
    (low, high), n_beyond = _choose_view(values[:, :n_shown], ends[:, :, :n_shown])
    may_be_zero = bool(values.min() < 0 or values.max() > 1)  # not probabilities
    marks: list[Mark] = [RuleMark("x", 0.0)] if may_be_zero else []
    for k in range(n_shown):
        heights = np.arange(n) + _SPREAD_SHARE * ((k + 0.5) / n_shown - 0.5)
        marks += _plot_component(heights, values[:, k], ends[:, :, k], names, kind, k)
    height = _ROW_HEIGHT * n * max(1, n_shown // 2) + 60
    plot = Plot(make_axis(low, high), make_name_axis(names, is_down=True), tuple(marks), height)
    is_estimated = ~np.isnan(ends).any(axis=0) & (ends[0] != ends[1])
    excludes_zero = ((ends[0] > 0) | (ends[1] < 0))[is_estimated]
    note += format_shown_count(words.components, n_shown, values.shape[1])
    if may_be_zero:
        note += f"{int(excludes_zero.sum())} of {excludes_zero.size} intervals exclude 0. "
    note += f"{n_beyond} of {n_shown * n} extend beyond the axis. " if n_beyond else ""
    note = note.strip()
    keys = tuple(LegendKey(words.name_component(k), COLOURS[k], MARKERS[k]) for k in range(n_shown))
    alt = f"{title} of {n} {kind}s with their 95 % intervals. {note}"
    return Figure(f"{title}: 95 % intervals", alt, plot, note=note, keys=keys)


def _choose_view(values: Array, ends: Array) -> tuple[tuple[float, float], int]:
    """Choose the ends of the axis, and count the intervals that exceed them."""
    low, high = (np.where(np.isfinite(end), end, values) for end in ends)
    bottom, top = np.quantile(low, _TAIL_SHARE), np.quantile(high, 1 - _TAIL_SHARE)
    reach = _REACH_SHARE * max(float(top - bottom), 1e-9)
    bottom, top = max(low.min(), bottom - reach), min(high.max(), top + reach)
    margin = _MARGIN_SHARE * (top - bottom)
    return (bottom - margin, top + margin), int(((low < bottom) | (high > top)).sum())


def _plot_component(
    heights: Array, values: Array, ends: Array, names: Sequence[str], kind: str, k: int
) -> tuple[Mark, Mark]:
    low, high = ends
    lines = np.stack([np.column_stack([low, heights]), np.column_stack([high, heights])], axis=1)
    facts = [
        (kind, names),
        ("value", [format_number(value) for value in values]),
        ("interval", [format_interval(a, b) for a, b in zip(low, high, strict=True)]),
    ]
    marks = PointMarks(values, heights, COLOURS[k], MARKERS[k], _MARK_SIZE, facts=facts)
    return LineMarks([*lines], [COLOURS[k]] * len(lines)), marks


def format_interval(low: float, high: float) -> str:
    """Write the ends of an interval; infinite or missing ends are unknown."""
    if low == high:
        return "not estimated"
    if not np.isfinite(low + high):
        return "not determined by the data"
    return f"{format_number(low)} to {format_number(high)}"
