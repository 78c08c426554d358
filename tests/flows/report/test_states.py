"""Figures and tables of hidden states of rows in order."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import latentbits as lb
from flows.report.figures.states import make_state_table, plot_transitions
from flows.report.page import build_report_from_artifact
from storage.artifacts.artifacts import load_artifact


def test_a_report_says_how_long_states_last(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = np.repeat(rng.permuted(np.tile([0, 1, 2], 20)), 10)
    X = (rng.random((600, 6)) < np.eye(3).repeat(2, axis=1)[state] * 0.8 + 0.1) * 1
    values = np.column_stack([X, rng.normal(50.0 * (state == 2), 5)])
    names = [*"abcdef", "size"]
    days = [str(day) for day in range(95, 695)]  # whose texts do not ascend
    data = {"keep": {"day": days, "true": state}, "continuous": ["size"]}
    dataset = lb.from_numpy(values, names, path=tmp_path / "rows.zarr", **data)
    fit = lb.fit(dataset, "hidden-markov", components=3, time="day", n_jobs=1)
    fit.save(tmp_path / "fit")
    artifact = load_artifact(tmp_path / "fit")
    table = make_state_table(artifact)
    assert table is not None
    assert [row[0] for row in table.rows] == ["1", "2", "3"]
    assert table.columns[-1] == "followed by"  # there is a single sequence
    stays = 1 / (1 - np.diag(artifact["transition"]))
    np.testing.assert_allclose([float(row[2]) for row in table.rows], stays, rtol=0.01)
    (figure,) = plot_transitions(artifact)
    assert figure.alt == "Transitions between 3 states: 6 arrows."
    report = build_report_from_artifact(tmp_path / "fit")
    longest = int(stays.argmax()) + 1
    assert any(f"State {longest} lasts longest" in text for text in report.findings)
    leading = r"differs most in the mean of size \(\S+, in all rows 1\d\.\d\), [ef] = 1"
    assert any(re.search(leading, text) for text in report.findings)
    assert not any(own.title.startswith("Positions") for own in report.figures)
    shares = next(own for own in report.figures if own.title == "Share of components")
    assert re.search("by true", shares.alt)
