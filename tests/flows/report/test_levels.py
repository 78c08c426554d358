"""Figures and tables of features with several levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from flows.report.figures.colours import COLOURS, make_level_colours
from flows.report.figures.marks import BarMarks, LineMarks
from flows.report.page import Report, render_page
from flows.report.pictures import render_picture
from flows.report.tables import make_level_table, make_parameter_table
from latentbits.fitted import build_report

LEVELS = ("no", "perhaps", "yes")
NAMES = ("q0", "q1", "q2", "q3")


def draw_dataset() -> Any:
    rng = np.random.default_rng(5)
    wish = rng.normal(size=(300, 1)) + rng.normal(size=(300, 4))
    codes = (wish > 0.5).astype(int) + (wish > -0.5)
    codes[:, 3] = np.minimum(codes[:, 3], 1)
    return lb.from_numpy(
        np.array(LEVELS, object)[codes],
        NAMES,
        levels=dict.fromkeys(NAMES, LEVELS) | {"q3": LEVELS[:2]},
    )


def make_report(**options: Any) -> Report:
    dataset = draw_dataset()
    return build_report(lb.fit(dataset, **options)._to_loaded_model(), dataset)


def test_levels_of_classes_are_stacked_bars(tmp_path: Path) -> None:
    report = make_report(model="bernoulli-mixture", components=2)
    figures = [f for f in report.figures if f.title.startswith("Levels in component")]
    assert len(figures) == 2
    probabilities = report.fitted.params.level_probabilities
    for figure, expected in zip(figures, probabilities, strict=True):
        assert figure.plot is not None
        (bars,) = (mark for mark in figure.plot.marks if isinstance(mark, BarMarks))
        np.testing.assert_allclose(bars.right - bars.left, expected, atol=1e-12)
        for row in range(4):
            own = bars.y == row
            assert (bars.left[own][0], bars.right[own][-1]) == (0, pytest.approx(1))
        assert [key.name for key in figure.keys] == [*LEVELS]
        assert render_picture(figure, "png").startswith(b"\x89PNG")
    assert render_page(report).count('class="bars"') == 2
    assert make_parameter_table(report.fitted.artifact, None) is None
    table = make_level_table(report.fitted.artifact)
    assert table is not None
    assert table.columns == ("class 1", "class 2")
    expected = [f"{name} = {level}" for name in NAMES[:3] for level in LEVELS]
    assert [name for name, _ in table.rows] == [*expected, "q3 = perhaps"]


def test_levels_of_states_are_named_after_states(tmp_path: Path) -> None:
    fitted = make_report(model="hidden-markov", components=2, max_iter=1).fitted
    table = make_level_table(fitted.artifact)
    assert table is not None
    assert table.columns == ("state 1", "state 2")


def test_two_categories_have_a_bar_each_and_no_lowest_level() -> None:
    rng = np.random.default_rng(6)
    X = np.column_stack(
        [rng.choice(["f", "m"], 80), rng.choice(["None", "a"], 80), rng.choice(LEVELS, 80)]
    ).astype(object)
    for levels, legend in ((None, []), ({"q": LEVELS}, [*LEVELS])):
        own = {"sex": ["f", "m"], "home": ["None", "a"]} | ({} if levels else {"q": LEVELS})
        dataset = lb.from_numpy(X, ["sex", "home", "q"], levels=levels, nominal=own)
        fitted = lb.fit(dataset, "bernoulli-mixture", components=2, errors="none", max_iter=2)
        report = build_report(fitted._to_loaded_model(), dataset)
        figures = [f for f in report.figures if f.title.startswith("Levels in component")]
        for figure in figures:
            assert [key.name for key in figure.keys] == legend
            assert figure.plot is not None
            (bars,) = (mark for mark in figure.plot.marks if isinstance(mark, BarMarks))
            assert (bars.left[:4] == 0).all()
        assert len(figures) == 2


def test_levels_over_a_component_are_curves() -> None:
    report = make_report(model="rbm", components=1, max_iter=2)
    titles = {figure.title: figure for figure in report.figures}
    assert [t for t in titles if t.startswith("Levels of")] == [f"Levels of {n}" for n in NAMES[:3]]
    figure = titles["Levels of q1"]
    assert figure.plot is not None
    (curves,) = (mark for mark in figure.plot.marks if isinstance(mark, LineMarks))
    np.testing.assert_allclose(sum(points[:, 1] for points in curves.points), 1, rtol=1e-9)
    cumulative = titles["Features over the component"].plot
    assert cumulative is not None
    assert cumulative.y.label == "P(at least this level)"
    assert figure.plot.x.label == cumulative.x.label
    pairs = titles["Calibration of pairs"].alt
    assert f"{3 * 9 + 3 * 3:,} pairs" in pairs


def test_colours_of_levels_run_from_blue_to_orange() -> None:
    assert make_level_colours(2) == [colour.lower() for colour in COLOURS[:2]]
    colours = make_level_colours(5)
    assert (colours[0], colours[-1]) == (COLOURS[0].lower(), COLOURS[1].lower())
    assert len({*colours}) == 5
