"""Hidden units and the features that they turn on, layer by layer: table, sentences, figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.data.datasets import LoadedModel
from flows.report.figures.axes import LARGEST_TEXT, MAX_COLUMNS, plot_heat_map, select_largest_rows
from flows.report.figures.images import MAX_IMAGES, ImageLayout, render_images
from flows.report.figures.marks import Figure
from flows.report.figures.text import format_shown_count
from pipeline.errors import format_share
from pipeline.inference.sample import feature_probabilities_by_unit
from pipeline.models.capabilities import HasHiddenCauses, HiddenCauses

Array = NDArray[np.float64]

# The table lists probabilities of at least 0.01 and a fifth of the largest, up to eight per cell.
_MIN_PROBABILITY, _MIN_SHARE, _MAX_NAMES = 0.01, 0.2, 8
_MORE = " and {:,} more"
_DEEP_COLUMNS = ("by units below", "turned on by")
_NOTE = (
    "Units are named layer.number; layer 1 is next to the data, and numbers follow the components "
    "of the codes. After each name: the probability that the unit alone turns it on, or that it "
    "alone turns the unit on. Probabilities far below the largest are omitted."
)


class TextTable(NamedTuple):
    """A table of texts; the first text of a row is its heading.

    `has_pairs` states whether the first two columns are names, which may need several lines.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    has_pairs: bool = False


def find_causes(fitted: LoadedModel) -> HiddenCauses | None:
    """Return the hidden causes of the model, if it has any."""
    return (
        fitted.model.get_hidden_causes(fitted.params)
        if isinstance(fitted.model, HasHiddenCauses)
        else None
    )


def name_units(causes: HiddenCauses) -> list[list[str]]:
    """Return the names `layer.unit` of the hidden units, a list per layer; both count from 1."""
    widths = [strengths.shape[1] for strengths in causes.strengths]
    return [[f"{k}.{i + 1}" for i in range(n)] for k, n in enumerate(widths, 1)]


def plot_causes(
    causes: HiddenCauses, features: Sequence[str], layout: ImageLayout | None
) -> Iterator[Figure]:
    """Plot the pixels that units turn on as images, other features and lower units as heat maps."""
    names, shares = name_units(causes), iter(_format_shares(causes))
    for k, probabilities in enumerate(feature_probabilities_by_unit(causes.strengths)):
        captions = [f"{unit}: {share}" for unit, share in zip(names[k], shares, strict=False)]
        if layout:
            yield _plot_images(k + 1, captions, probabilities, layout)
        if k or not layout:
            yield _plot_map(k + 1, names[k], names[k - 1] if k else features, causes.strengths[k])


def _plot_images(
    layer: int, captions: Sequence[str], probabilities: Array, layout: ImageLayout
) -> Figure:
    """Plot the probabilities that units turn pixels on, (n_features, n_units)."""
    title = f"Pixels that units of layer {layer} turn on"
    shown = probabilities.T[:MAX_IMAGES]
    ones = np.ones(len(shown))
    images = render_images(layout.arrange_images(shown), captions[:MAX_IMAGES], ones, False)
    through = ", through units below it" if layer > 1 else ""
    note = (
        f"Blue, from 0 to 1: the probability that the unit alone turns a pixel on{through}. Below "
        "each image: the unit, and the share of rows in which it is on. "
    )
    note += format_shown_count("units", len(shown), len(captions), "")
    alt = f"{title}: {len(shown)} images of {layout.height}x{layout.width}."
    return Figure(title, alt, images=images, note=note.strip(), width=1060)


def _plot_map(layer: int, units: Sequence[str], below: Sequence[str], strengths: Array) -> Figure:
    """Plot the probabilities that units turn on the layer below them."""
    target, targets = "feature", "features"
    if layer > 1:
        target, targets = f"unit of layer {layer - 1}", f"units of layer {layer - 1}"
    rows = select_largest_rows(strengths)
    shown, names = strengths[rows, :MAX_COLUMNS], [below[i] for i in rows]
    unit = f"unit of layer {layer}"
    heat_map = plot_heat_map(shown, names, units[:MAX_COLUMNS], (target, unit), is_signed=False)
    title = f"{targets.capitalize()} that units of layer {layer} turn on"
    note = f"Probability that a {unit} alone turns a {target} on. "
    note += format_shown_count(targets, len(rows), len(below), LARGEST_TEXT)
    note += format_shown_count("units", shown.shape[1], len(units), "")
    alt = f"{title}: {len(below)} x {len(units)} probabilities up to {strengths.max():.2f}."
    return Figure(title, alt, note=note.strip(), **heat_map)


def make_unit_table(causes: HiddenCauses, features: Sequence[str]) -> TextTable:
    """List for each hidden unit how often it is on, what it turns on and what turns it on.

    If units exclude each other, a last column names the others of each one's group.
    """
    strengths, layers = causes.strengths, [[], *name_units(causes), []]
    probabilities, shares = feature_probabilities_by_unit(strengths), iter(_format_shares(causes))
    is_deep, rows = len(strengths) > 1, []
    groups, number = causes.exclusive_groups, 0
    names = np.array([name for layer in layers for name in layer])
    for k in range(1, len(layers) - 1):
        for i, unit in enumerate(layers[k]):
            row = [unit, next(shares), _format_strongest(probabilities[k - 1][:, i], features)]
            if is_deep:
                below = strengths[k - 1][:, i] if k > 1 else np.zeros(0)
                above = strengths[k][i] if k < len(strengths) else np.zeros(0)
                row.append(_format_strongest(below, layers[k - 1]))
                row.append(_format_strongest(above, layers[k + 1]))
            if groups is not None:
                is_same = (groups == groups[number]) & (groups > 0) & (names != unit)
                row.append(_join_names(names[is_same]))
            number += 1
            rows.append(tuple(row))
    columns = ("unit", "on in", "turns on", *(_DEEP_COLUMNS if is_deep else ()))
    columns = columns if groups is None else (*columns, "never on with")
    return TextTable("Hidden units", columns, tuple(rows), _NOTE)


def iter_unit_sentences(
    causes: HiddenCauses, features: Sequence[str], max_length: int
) -> Iterator[str]:
    """Yield a sentence for each of the most active units of the first layer.

    `max_length` limits the number of sentences, and of features in each.
    """
    names = name_units(causes)[0]
    probabilities = feature_probabilities_by_unit(causes.strengths)[0]
    shares = _format_shares(causes)
    activity = np.zeros(len(names)) if causes.activity is None else causes.activity[: len(names)]
    for i in np.argsort(-np.asarray(activity), kind="stable")[:max_length]:
        turned_on = _format_strongest(probabilities[:, i], features, max_length, "")
        share = "" if causes.activity is None else f"is on in {shares[i]} of the rows and "
        yield f"Unit {names[i]} {share}turns on {turned_on}."


def _format_shares(causes: HiddenCauses) -> list[str]:
    """Format the share of rows in which each unit is on."""
    if causes.activity is None:
        return ["–"] * sum(strengths.shape[1] for strengths in causes.strengths)
    return [format_share(share, 1) for share in causes.activity]


def _join_names(names: Sequence[str]) -> str:
    """List the first names."""
    n_more = len(names) - _MAX_NAMES
    text = ", ".join(names[:_MAX_NAMES])
    return text + _MORE.format(n_more) if n_more > 0 else text or "–"


def _format_strongest(
    strengths: Array,
    names: Sequence[str],
    max_names: int = _MAX_NAMES,
    more: str = _MORE,
) -> str:
    """List the names with the largest probabilities, without those that are much smaller."""
    order = np.argsort(-strengths.round(2), kind="stable")
    least = max(_MIN_PROBABILITY, _MIN_SHARE * strengths.max(initial=0.0))
    order = order[strengths[order] >= least]
    text = ", ".join(f"{names[i]} {strengths[i]:.2f}" for i in order[:max_names])
    n_more = len(order) - max_names
    return text + more.format(n_more) if n_more > 0 else text or "–"
