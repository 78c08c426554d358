"""Figures of the arrays of an artifact, chosen by their dimensions, and of its convergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import fit_axis, make_axis, make_count_axis, plot_curve
from flows.report.figures.causes import plot_causes
from flows.report.figures.colours import COLOURS, SIGNS_TEXT
from flows.report.figures.heat_maps import (
    LARGEST_TEXT,
    MAX_COLUMNS,
    plot_heat_map,
    select_largest_rows,
)
from flows.report.figures.image_layout import ImageLayout
from flows.report.figures.images import MAX_IMAGES, render_images
from flows.report.figures.intervals import format_interval, plot_intervals
from flows.report.figures.marks import Figure, LegendKey, LineMarks, Mark, RuleMark
from flows.report.figures.rows import CodedRows
from flows.report.figures.text import format_number, format_shown_count
from pipeline.learning.convergence import describe_ending
from pipeline.models.capabilities import HiddenCauses
from storage.artifacts.artifacts import Artifact

Array = NDArray[np.float64]

CORRELATION_TITLE = "Correlation of features with components"
_MAX_RANKS, _MAX_INTERVALS = 64, 40
# Dimensions of arrays that relate features to components, and their title.
FEATURE_DIMS = (
    (("feature", "component"), ""),
    (("feature", "unit_1"), "Weights of the first layer"),
)
_SEGMENT_DIMS = {"segment", "component"}
_NORMAL_QUANTILE = 1.96  # of 97.5 %


def plot_parameters(
    artifact: Artifact, layout: ImageLayout | None, causes: HiddenCauses | None = None
) -> Iterator[Figure]:
    """Plot the convergence, the spectrum and the arrays of an artifact.

    Parameters
    ----------
    artifact
        The artifact.
    layout
        Positions of the features in an image, if they are pixels.
    causes
        Hidden causes of the model; if given, they are plotted instead of its weights.
    """
    yield from _plot_history(artifact)
    yield from _plot_spectrum(artifact)
    if causes:
        yield from plot_causes(causes, artifact.manifest["feature_names"], layout)
    for dims, title in () if causes else FEATURE_DIMS:
        for name in _list_distinct_arrays(artifact, set(dims)):
            values = _orient_array(artifact, name, dims[0])
            yield from plot_feature_array(
                artifact, name, title or _format_title(name), values, layout
            )
    for name in _list_distinct_arrays(artifact, _SEGMENT_DIMS):
        values = _orient_array(artifact, name, "segment")
        if values.size:
            yield _plot_segment_map(artifact, name, values)


def plot_feature_array(
    artifact: Artifact, name: str, title: str, values: Array, layout: ImageLayout | None
) -> Iterator[Figure]:
    """Plot an array (n_features, n_components), and its intervals if it has any."""
    if not values.size:
        return
    draw = partial(_plot_images, layout=layout) if layout else _plot_loadings
    yield draw(artifact, name, title, values)
    if layout is None and (ends := _find_intervals(artifact, name)) is not None:
        yield _plot_largest_intervals(artifact, name, values, ends)


def _list_distinct_arrays(artifact: Artifact, dims: set[str]) -> list[str]:
    """List the arrays with these two dimensions, without standard errors and duplicates."""
    found: list[str] = []
    for name in artifact:
        is_error = name.endswith("_error") and name.removesuffix("_error") in artifact
        if len(artifact.dims(name)) == 2 and set(artifact.dims(name)) == dims and not is_error:
            same = (np.array_equal(artifact[name], artifact[other]) for other in found)
            found += [] if any(same) else [name]
    return found


def _orient_array(artifact: Artifact, name: str, first: str) -> Array:
    values = artifact[name].astype(np.float64)
    return values if artifact.dims(name)[0] == first else values.T


def _plot_history(artifact: Artifact) -> Iterator[Figure]:
    history = np.array(artifact.manifest["history"], np.float64)
    if len(history) < 2:
        return
    named = artifact.manifest["diagnostics"].get("objective_is", "objective")
    plot = plot_curve(history, ("pass", f"{named}, nats per row"))
    first, last = format_number(history[0], 6), format_number(history[-1], 6)
    ended = describe_ending(artifact.manifest["converged"])
    alt = f"The {named} went from {first} to {last} nats per row in {len(history)} passes; {ended}."
    note = f"{first} → {last} nats per row; {ended}."
    kept = artifact.manifest.get("objective")
    if kept is not None and kept > history[-1]:
        best = int(history.argmax()) + 1
        note += f" The parameters are from pass {best}, with {format_number(kept, 6)}."
    n_passes = artifact.manifest["iterations"]
    if n_passes > len(history):
        note += f" {len(history)} of {n_passes} passes; others were rejected or of earlier stages."
    yield Figure("Convergence", alt, plot, note=note)


def _plot_spectrum(artifact: Artifact) -> Iterator[Figure]:
    """Plot eigenvalues, and their bound from parallel analysis if there is one."""
    by_dims = _group_arrays_by_dims(artifact)
    values = by_dims.get(("eigenvalue",), np.zeros(0))[:_MAX_RANKS]
    if not len(values):
        return
    null = by_dims.get(("null_eigenvalue",), np.zeros(0))
    n_kept = int(artifact.manifest["n_components"])
    marks: list[Mark] = []
    keys: list[LegendKey] = []
    if len(null):
        bound = np.column_stack([np.arange(1, len(null) + 1), null])
        marks.append(LineMarks([bound], [COLOURS[1]], dash=(6, 6)))
        keys.append(LegendKey("data", COLOURS[0]))
        keys.append(
            LegendKey("95 % of independent features (parallel analysis)", COLOURS[1], "dash")
        )
    if is_cut := n_kept < len(values):
        marks.append(RuleMark("x", n_kept + 0.5, dash=(2, 4)))
    plot = plot_curve(values, ("rank", "eigenvalue"), *marks)
    low = min(0.0, float(values.min())) - 0.03 * float(values.max())
    high = fit_axis(np.concatenate([values, null])).high
    plot = replace(
        plot,
        x=make_count_axis(max(len(values), len(null)), "rank"),
        y=make_axis(low, high, "eigenvalue"),
    )
    why = "their eigenvalues exceed the dashed line" if len(null) else "as requested"
    note = f"{n_kept} components{', left of the dotted line' * is_cut}; {why}."
    span = f"from {format_number(values[0], 3)} down to {format_number(values[-1], 3)}"
    alt = f"The {len(values)} leading eigenvalues, {span}. {note}"
    yield Figure("Spectrum", alt, plot, note=note, keys=tuple(keys))


def _group_arrays_by_dims(artifact: Artifact) -> dict[tuple[str, ...], Array]:
    return {artifact.dims(name): artifact[name] for name in artifact}


def _format_title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _number_components(values: Array) -> list[str]:
    return [str(k + 1) for k in range(values.shape[1])]


def _plot_loadings(artifact: Artifact, name: str, title: str, values: Array) -> Figure:
    features = artifact.manifest["feature_names"]
    n_features, n_components = values.shape
    rows, columns = select_largest_rows(values), slice(MAX_COLUMNS)
    shown, ends = values[rows, columns], _find_intervals(artifact, name)
    drawn = plot_heat_map(
        shown,
        [features[i] for i in rows],
        _number_components(shown),
        ("feature", "component"),
        bool(values.min() < 0),
        {} if ends is None else {"interval": _format_intervals(ends[:, rows, columns])},
    )
    note = format_shown_count("features", len(rows), n_features, LARGEST_TEXT)
    note += format_shown_count("components", shown.shape[1], n_components, "")
    alt = f"{title} of {n_features} features on {n_components} components. "
    alt += _format_leading(shown, rows, features)
    return Figure(title, alt, note=note, **drawn)


def _find_intervals(artifact: Artifact, name: str) -> Array | None:
    """Return the intervals of an array, (2, n_features, …), or compute them from its errors."""
    interval, error = f"{name}_interval", f"{name}_error"
    if interval in artifact and len(artifact[interval]) == 2:
        ends: Array = artifact[interval]
    elif error in artifact:
        ends = np.stack(
            [artifact[name] + sign * _NORMAL_QUANTILE * artifact[error] for sign in (-1, 1)]
        )
    else:
        return None
    is_turned = artifact.dims(name) == ("component", "feature")
    return np.swapaxes(ends, 1, 2) if is_turned else ends


def _format_intervals(ends: Array) -> list[str]:
    low, high = ends.reshape(2, -1)
    return [format_interval(a, b) for a, b in zip(low, high, strict=True)]


def _plot_largest_intervals(artifact: Artifact, name: str, values: Array, ends: Array) -> Figure:
    rows = select_largest_rows(values, _MAX_INTERVALS)
    features = [artifact.manifest["feature_names"][i] for i in rows]
    note = format_shown_count("features", len(rows), len(values), LARGEST_TEXT)
    return plot_intervals(_format_title(name), values[rows], ends[:, rows], features, note)


def _format_leading(values: Array, rows: NDArray[np.intp], features: Sequence[str]) -> str:
    """List the features with the largest values on the first components."""
    leading = []
    for k in range(min(3, values.shape[1])):
        order = np.argsort(-np.abs(values[:, k]), kind="stable")[:3]
        named = ", ".join(f"{features[rows[i]]} {format_number(values[i, k], 2)}" for i in order)
        leading.append(f"component {k + 1}: {named}")
    return "Largest of " + "; ".join(leading) + "."


def _plot_images(
    artifact: Artifact, name: str, title: str, values: Array, layout: ImageLayout
) -> Figure:
    shown = values.T[:MAX_IMAGES]
    captions = _make_captions(artifact, len(shown))
    signed = bool(values.min() < 0)
    alt = f"{title} of {len(shown)} components as images of {layout.height}x{layout.width}."
    scales = np.abs(shown).max(axis=1)
    note = f"Each image has its own scale: {SIGNS_TEXT}. "
    if not signed:
        scales[:] = scales.max()
        note = f"Blue, from 0 to {format_number(scales[0], 3)}. "
    note += format_shown_count("components", len(shown), values.shape[1], "")
    images = render_images(layout.arrange_images(shown), captions, scales, signed)
    return Figure(title, alt, images=images, note=note.strip(), width=1060)


def _make_captions(artifact: Artifact, n: int) -> list[str]:
    """Number components, with their eigenvalues if there are any."""
    values = _group_arrays_by_dims(artifact).get(("eigenvalue",), np.zeros(0))
    if len(values) < n:
        return [str(k + 1) for k in range(n)]
    return [f"{k + 1}: λ = {format_number(value, 3)}" for k, value in enumerate(values[:n])]


def _plot_segment_map(artifact: Artifact, name: str, values: Array) -> Figure:
    names = artifact.manifest["segment_names"]
    indices = artifact["segments"] if "segments" in artifact else np.arange(len(values))
    shown = values[:, :MAX_COLUMNS]
    signed = bool(values.min() < 0)
    drawn = plot_heat_map(
        shown,
        [names[int(u)] for u in indices],
        _number_components(shown),
        ("segment", "component"),
        signed,
    )
    low, high = format_number(values.min(), 3), format_number(values.max(), 3)
    alt = f"{_format_title(name)} of {len(values)} segments and {values.shape[1]} components, "
    alt += f"from {low} to {high}."
    note = format_shown_count("components", shown.shape[1], values.shape[1], "")
    title = f"{_format_title(name)} by segment"
    return Figure(title, alt, note=note, **drawn)


def plot_correlations(
    artifact: Artifact, coded: CodedRows, values: Array, layout: ImageLayout | None
) -> Iterator[Figure]:
    """Plot correlations of features with codes, unless an array relates features to components.

    Parameters
    ----------
    artifact
        The artifact.
    coded
        Rows with their codes.
    values
        What `correlate_features_with_codes` returns.
    layout
        Positions of the features in an image, if they are pixels.
    """
    related = {frozenset(dims) for dims, _ in FEATURE_DIMS}
    if not any(frozenset(artifact.dims(name)) in related for name in artifact):
        for figure in plot_feature_array(
            artifact, "correlation", CORRELATION_TITLE, values, layout
        ):
            yield replace(figure, note=f"{figure.note} Of {len(coded.codes):,} rows.".strip())


def correlate_features_with_codes(coded: CodedRows) -> Array:
    """Return correlations of observed values with codes, (n_features, n_codes); 0 if constant."""
    X, codes = coded.values.astype(np.float64), coded.codes
    seen = np.isfinite(X).astype(np.float64)
    n = np.maximum(seen.sum(axis=0), 1.0)[:, None]
    X = np.where(seen == 1, X, 0.0)
    share, mean = X.sum(axis=0)[:, None] / n, seen.T @ codes / n
    covariance = X.T @ codes / n - share * mean
    variances = share * (1 - share), np.maximum(seen.T @ codes**2 / n - mean**2, 0.0)
    scale = np.sqrt(variances[0] * variances[1])
    return np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 1e-12)
