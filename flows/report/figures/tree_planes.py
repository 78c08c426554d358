"""Planes of a tree of latent-trait models, in which rows are drawn as far as they belong there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from flows.data.datasets import LoadedModel
from flows.report.figures.axes import fit_square_axes
from flows.report.figures.marks import Figure, Mark, Plot
from flows.report.figures.row_plots import (
    ColourLabels,
    describe_rows,
    group_rows_by_label,
    has_too_many_labels,
    mark_rows,
)
from flows.report.figures.rows import CodedRows
from flows.report.figures.text import format_number

_STEPS = np.array([0.05, 0.25, 0.5, 0.75, 1.0])  # of responsibilities, between kinds of ink
_WIDTH, _MAX_OPACITY = 440, 0.8


def plot_tree_planes(
    fitted: LoadedModel, coded: CodedRows, labels: ColourLabels | None
) -> Iterator[Figure]:
    """Plot a plane for each node below the top; the ink of a row is its responsibility."""
    diagnostics, words = fitted.artifact.manifest["diagnostics"], coded.words
    groups, ramp = group_rows_by_label(
        None if has_too_many_labels(labels) else labels, len(coded.codes)
    )
    for node, name in enumerate(diagnostics.get("node_names", [])):
        ink, points = coded.responsibilities[:, node], coded.positions[:, node]
        shown = np.flatnonzero(ink >= _STEPS[0])
        marks: list[Mark] = []
        for low, high in pairwise(_STEPS.tolist()):
            opacity = _MAX_OPACITY * (low + high) / 2
            for group in groups:
                is_drawn = (ink[group.rows] >= low) & (ink[group.rows] < high + (high == 1.0))
                rows = group.rows[is_drawn]
                if rows.size:
                    facts = [
                        *describe_rows(coded, rows),
                        ("responsibility", [f"{own:.2f}" for own in ink[rows]]),
                    ]
                    marks.append(mark_rows(points[rows], facts, group.key, opacity)[0])
        around = points[shown] if shown.size else np.zeros((1, 2))
        axes = fit_square_axes(around, (words.name_component(0), words.name_component(1)))
        n_rows = format_number(diagnostics["node_rows"][node], 3)
        note = (
            f"About {n_rows} {words.rows} of the fit belong to node {name}. The ink of each of "
            f"{len(shown):,} {words.rows} is its responsibility."
        )
        alt = f"{words.rows.capitalize()} in the plane of node {name}. {note}"
        keys = () if ramp or len(groups) == 1 else tuple(group.key for group in groups)
        yield Figure(
            f"Rows in node {name}",
            alt,
            Plot(*axes, tuple(marks)),
            note=note,
            keys=keys,
            ramp=ramp,
            width=_WIDTH,
            heading=f"{words.rows.capitalize()} in node {name}",
        )
