"""What a reader sees at once: no holes on the page, names that do not lie on names, fair scales."""

from __future__ import annotations

import numpy as np
import pytest
from bokeh.models import Text
from flows.report.figures.plots import Figure, empty_plot, ramp_of

from flows.report.figures.intervals import interval_figure
from flows.report.figures.labels import choose_labels
from flows.report.figures.row_plots import plane
from flows.report.figures.rows import CodedRows
from flows.report.layout import NARROW_WIDTH, arrange_figures


@pytest.mark.parametrize("widths", [(520, 520, 1060, 520), (1060, 520, 520, 520), (520,)])
def test_no_narrow_figure_stands_beside_nothing(widths: tuple[int, ...]) -> None:
    plots = [empty_plot(("x", "y"), height=300 + 40 * k) for k in range(len(widths))]
    figures = [
        Figure(str(k), "", p, width=w) for k, (p, w) in enumerate(zip(plots, widths, strict=True))
    ]
    groups = list(arrange_figures(figures))
    shown = [place for group in groups for column in group.columns for place, _ in column]
    assert sorted(shown) == list(range(len(widths)))
    for group in groups:
        assert all(group.columns)
        narrow = {figure.width == NARROW_WIDTH for column in group.columns for _, figure in column}
        assert narrow == {group.kind == "pair"}
        assert len(group.columns) == (2 if group.kind == "pair" else 1)


def test_names_of_many_labels_are_written_where_they_have_room() -> None:
    rng = np.random.default_rng(0)
    names = np.array([f"animal {k}" for k in range(40)], object)
    codes = rng.normal(size=(40, 3))
    codes[1] = codes[0]
    coded = CodedRows(
        codes,
        np.zeros((40, 2), np.float32),
        np.arange(40),
        np.full(40, "all", object),
        {"a": names},
    )
    labels = choose_labels(coded, ("all",), None)
    assert labels is not None
    assert labels.name == "a"
    figure = plane(coded, labels)
    (texts,) = (r for r in figure.plot.renderers if isinstance(r.glyph, Text))
    written = list(texts.data_source.data["name"])
    assert "animal 0" in written
    assert "animal 1" not in written
    assert f"{len(written)} of 40 names have room" in figure.note
    assert figure.keys == ()


def test_an_outlier_leaves_the_scales_to_the_others() -> None:
    values = np.linspace(-1, 1, 12)[:, None]
    values[3] = 50.0
    ramp, mapper = ramp_of(values, signed=True)
    assert (ramp.high, mapper.high) == ("1 or more", 1.0)
    ends = np.stack([values - 0.2, values + 0.2])
    figure = interval_figure("Weights", values, ends, [str(k) for k in range(12)])
    assert figure.plot.x_range.end < 5
    assert "1 of 12 run beyond the picture" in figure.note
