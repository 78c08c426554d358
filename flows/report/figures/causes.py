"""What hidden units turn on, layer by layer: a table of units, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.data.fitted import LoadedModel
from flows.report.figures.heat_maps import (
    LARGEST_TEXT,
    MAX_COLUMNS,
    plot_heat_map,
    select_largest_rows,
)
from flows.report.figures.image_layout import ImageLayout
from flows.report.figures.images import MAX_IMAGES, render_images
from flows.report.figures.marks import Figure
from flows.report.figures.text import format_shown_count
from pipeline.inference.hidden_causes import feature_probabilities_by_unit
from pipeline.models.capabilities import HasHiddenCauses, HiddenCauses

Array = NDArray[np.float64]

_MIN_PROBABILITY, _MIN_SHARE, _MAX_NAMED = 0.01, 0.2, 8  # what the table names
_DEEP_COLUMNS = ("by units below", "turned on by")
_NOTE = (
    "Units are layer.number from the data up, in the order of the components of codes. Beside each "
    "name: the probability that the unit alone turns it on, or is turned on by it; those far below "
    "the largest are left out."
)


class TextTable(NamedTuple):
    """A table of the report; `rows` begin with what each is of."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def find_causes(fitted: LoadedModel) -> HiddenCauses | None:
    """Give what hidden units turn on, where the model says so."""
    return (
        fitted.model.get_hidden_causes(fitted.params)
        if isinstance(fitted.model, HasHiddenCauses)
        else None
    )


def name_units(causes: HiddenCauses) -> list[list[str]]:
    """Name hidden units `layer.unit`, both from 1 on, a list a layer."""
    widths = [strengths.shape[1] for strengths in causes.strengths]
    return [[f"{k}.{i + 1}" for i in range(n)] for k, n in enumerate(widths, 1)]


def plot_causes(
    causes: HiddenCauses, features: Sequence[str], layout: ImageLayout | None
) -> Iterator[Figure]:
    """Draw what units turn on: pixels as images, other features and units below as maps."""
    names, shares = name_units(causes), iter(_format_shares(causes))
    for k, caused in enumerate(feature_probabilities_by_unit(causes.strengths)):
        captions = [f"{unit}: {share}" for unit, share in zip(names[k], shares, strict=False)]
        if layout:
            yield _plot_images(k + 1, captions, caused, layout)
        if k or not layout:
            yield _plot_map(k + 1, names[k], names[k - 1] if k else features, causes.strengths[k])


def _plot_images(layer: int, captions: Sequence[str], caused: Array, layout: ImageLayout) -> Figure:
    """Draw the pixels that units turn on, all to the scale of probabilities."""
    title = f"Pixels that units of layer {layer} turn on"
    shown = caused.T[:MAX_IMAGES]
    ones = np.ones(len(shown))
    images = render_images(layout.arrange_images(shown), captions[:MAX_IMAGES], ones, False)
    through = ", through units below it" if layer > 1 else ""
    note = (
        f"Blue from 0 to 1: the probability that the unit alone turns a pixel on{through}. Below "
        "each: the unit, and the share of rows that it is on in. "
    )
    note += format_shown_count("units", len(shown), len(captions), "")
    alt = f"{title}: {len(shown)} images of {layout.height}x{layout.width}."
    return Figure(title, alt, images=images, note=note.strip(), width=1060)


def _plot_map(layer: int, units: Sequence[str], below: Sequence[str], strengths: Array) -> Figure:
    """Draw the probabilities that units turn on what is right below them."""
    kind, kinds = "feature", "features"
    if layer > 1:
        kind, kinds = f"unit of layer {layer - 1}", f"units of layer {layer - 1}"
    rows = select_largest_rows(strengths)
    shown, names = strengths[rows, :MAX_COLUMNS], [below[i] for i in rows]
    by = f"unit of layer {layer}"
    drawn = plot_heat_map(shown, names, units[:MAX_COLUMNS], (kind, by), is_signed=False)
    title = f"{kinds.capitalize()} that units of layer {layer} turn on"
    note = f"Probability that a {by} alone turns a {kind} on. "
    note += format_shown_count(kinds, len(rows), len(below), LARGEST_TEXT)
    note += format_shown_count("units", shown.shape[1], len(units), "")
    alt = f"{title}: {len(below)} x {len(units)} probabilities up to {strengths.max():.2f}."
    return Figure(title, alt, note=note.strip(), **drawn)


def make_unit_table(causes: HiddenCauses, features: Sequence[str]) -> TextTable:
    """Say of every hidden unit how often it is on, what it turns on and what turns it on."""
    strengths, layers = causes.strengths, [[], *name_units(causes), []]
    caused, shares = feature_probabilities_by_unit(strengths), iter(_format_shares(causes))
    nothing, rows = np.zeros(0), []
    is_deep = len(strengths) > 1
    for k in range(1, len(layers) - 1):
        for i, unit in enumerate(layers[k]):
            below = strengths[k - 1][:, i] if k > 1 else nothing
            above = strengths[k][i] if k < len(strengths) else nothing
            near = (
                _format_strongest(below, layers[k - 1]),
                _format_strongest(above, layers[k + 1]),
            )
            turned_on = _format_strongest(caused[k - 1][:, i], features)
            rows.append((unit, next(shares), turned_on, *(near if is_deep else ())))
    columns = ("unit", "on in", "turns on", *(_DEEP_COLUMNS if is_deep else ()))
    return TextTable("Hidden units", columns, tuple(rows), _NOTE)


def iter_unit_sentences(causes: HiddenCauses, features: Sequence[str], most: int) -> Iterator[str]:
    """Say of the units nearest the data that are on most often what they turn on."""
    names, caused = name_units(causes)[0], feature_probabilities_by_unit(causes.strengths)[0]
    shares = _format_shares(causes)
    often = np.zeros(len(names)) if causes.activity is None else causes.activity[: len(names)]
    for i in np.argsort(-np.asarray(often), kind="stable")[:most]:
        turned_on = _format_strongest(caused[:, i], features, most, "")
        share = "" if causes.activity is None else f"is on in {shares[i]} of the rows and "
        yield f"Unit {names[i]} {share}turns on {turned_on}."


def _format_shares(causes: HiddenCauses) -> list[str]:
    """Write in how many of the rows each unit is on."""
    if causes.activity is None:
        return ["–"] * sum(strengths.shape[1] for strengths in causes.strengths)
    return [f"{share:.1%}" for share in causes.activity]


def _format_strongest(
    strengths: Array, names: Sequence[str], most: int = _MAX_NAMED, beyond: str = " and {:,} more"
) -> str:
    """Name those with the largest probabilities, and leave out what is small beside these."""
    order = np.argsort(-strengths.round(2), kind="stable")
    least = max(_MIN_PROBABILITY, _MIN_SHARE * strengths.max(initial=0.0))
    order = order[strengths[order] >= least]
    named = ", ".join(f"{names[i]} {strengths[i]:.2f}" for i in order[:most])
    more = len(order) - most
    return named + beyond.format(more) if more > 0 else named or "–"
