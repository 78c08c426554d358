"""The figure that compares joint shares of pairs of features: in the data, and in the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.axes import make_axis
from flows.report.figures.colours import COLOURS, GREY
from flows.report.figures.marks import Figure, Lines, Plot, Points
from flows.report.figures.rows import Seen
from flows.report.text import format_number
from pipeline.evaluation.calibration import Comparison

_SHOWN, _WORST = 2000, 300


def draw_calibration(seen: Seen, pairs: Comparison, feature_names: tuple[str, ...]) -> Figure:
    """Draw observed over implied shares, those that differ most among them."""
    at = _select_pairs(pairs.z)
    top = float(max(pairs.observed[at].max(), pairs.implied[at].max(), 1e-3)) * 1.03
    x = make_axis(-0.02 * top, top, "share of joint ones in the model")
    y = make_axis(-0.02 * top, top, "share in the data")
    diagonal = Lines([np.array([[0.0, 0.0], [top, top]])], [GREY], 1.0, dash=(6, 6))
    first, second = pairs.features[at].T
    facts = [
        ("feature", [feature_names[seen.features[i]] for i in first]),
        ("and", [feature_names[seen.features[i]] for i in second]),
        ("model", [format_number(value, 3) for value in pairs.implied[at]]),
        ("data", [format_number(value, 3) for value in pairs.observed[at]]),
        ("standard errors apart", [format_number(value, 2) for value in pairs.z[at]]),
    ]
    points = Points(pairs.implied[at], pairs.observed[at], COLOURS[0], opacity=0.5, facts=facts)
    rmse, chance = format_number(pairs.rmse, 2), format_number(pairs.rmse_by_chance, 2)
    n_shown = f"{len(at):,} of " if len(at) < len(pairs.z) else ""
    note = (
        f"{n_shown}{len(pairs.z):,} pairs of features in {seen.n_rows:,} rows, and in "
        f"{seen.n_drawn:,} drawn from the model. Root mean square difference {rmse}; were the "
        f"model right, it would be about {chance}."
    )
    alt = "Share of rows in which both features of a pair are 1, in the data over the model. "
    return Figure("Calibration of pairs", alt + note, Plot(x, y, (diagonal, points)), note=note)


def _select_pairs(z: NDArray[np.float64]) -> NDArray[np.intp]:
    """Select pairs that differ most, and some of all."""
    if len(z) <= _SHOWN:
        return np.arange(len(z))
    worst = np.argsort(-np.abs(z), kind="stable")[:_WORST]
    even = np.linspace(0, len(z) - 1, _SHOWN - _WORST).round().astype(np.intp)
    return np.union1d(worst, even)
