"""The figure that compares joint shares of pairs of features: in the data, and in the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flows.report.figures.plots import (
    COLOURS,
    GREY,
    Figure,
    add_hover,
    format_number,
    make_square_plot,
)
from flows.report.figures.rows import DatasetSample
from pipeline.evaluation.calibration import ShareComparison

_MAX_PAIRS, _N_WORST_PAIRS = 2000, 300


def plot_calibration(
    seen: DatasetSample, pairs: ShareComparison, feature_names: tuple[str, ...]
) -> Figure:
    """Draw observed over implied shares, those that differ most among them."""
    at = _choose_pairs(pairs.z)
    top = float(max(pairs.observed[at].max(), pairs.implied[at].max(), 1e-3)) * 1.03
    plot = make_square_plot(
        ("share of joint ones in the model", "share in the data"),
        x_range=(-0.02 * top, top),
        y_range=(-0.02 * top, top),
    )
    plot.line([0, top], [0, top], color=GREY, line_dash="dashed")
    named = [[feature_names[seen.features[i]] for i in pairs.features[at, side]] for side in (0, 1)]
    data = {
        "x": pairs.implied[at],
        "y": pairs.observed[at],
        "first": named[0],
        "second": named[1],
        "model": [format_number(value, 3) for value in pairs.implied[at]],
        "data": [format_number(value, 3) for value in pairs.observed[at]],
        "errors": [format_number(value, 2) for value in pairs.z[at]],
    }
    style = {"size": 5, "color": COLOURS[0], "fill_alpha": 0.4, "line_alpha": 0.5}
    marks = plot.scatter("x", "y", source=data, **style)
    fields = [("feature", "first"), ("and", "second"), ("model", "model"), ("data", "data")]
    add_hover(plot, marks, [*fields, ("standard errors apart", "errors")])
    rmse, chance = format_number(pairs.rmse, 2), format_number(pairs.chance_rmse, 2)
    n_shown = f"{len(at):,} of " if len(at) < len(pairs.z) else ""
    note = (
        f"{n_shown}{len(pairs.z):,} pairs of features in {seen.n_rows:,} rows, and in "
        f"{seen.n_drawn:,} drawn from the model. Root mean square difference {rmse}; were the "
        f"model right, it would be about {chance}."
    )
    alt = "Share of rows in which both features of a pair are 1, in the data over the model. "
    return Figure("Calibration of pairs", alt + note, plot, note=note)


def _choose_pairs(z: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose pairs that differ most, and some of all."""
    if len(z) <= _MAX_PAIRS:
        return np.arange(len(z))
    worst = np.argsort(-np.abs(z), kind="stable")[:_N_WORST_PAIRS]
    even = np.linspace(0, len(z) - 1, _MAX_PAIRS - _N_WORST_PAIRS).round().astype(np.intp)
    return np.union1d(worst, even)
