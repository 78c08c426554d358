"""Positions of named rows, and which pole they are at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from flows.report.figures.marks import LineMarks, PointMarks
from flows.report.inputs import FigureOptions
from flows.report.page import Report, build_report_from_artifact
from pipeline.errors import FitError
from pipeline.models.registry import find_models
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import write_fit

NAMES = np.array([f"member {k}" for k in range(90)], object)
PARTY = np.where(np.arange(90) % 3, "left", "right")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("positions")
    X, _ = draw_probit_rows(90, 12, 1, seed=1)
    columns = {"party": PARTY, "name": NAMES}
    dataset = write_arrays(folder / "d.zarr", X, columns=columns)
    return write_fit(folder / "f", find_models()["latent-trait"](n_components=1), dataset)


def drawn(artifact: Path, **options: Any) -> Report:
    return build_report_from_artifact(artifact, FigureOptions(**options))


def positions(report: Report) -> dict[str, tuple[float, float, float]]:
    """Position and ends of the interval of every named row, over all parts."""
    found = {}
    for figure in report.figures:
        if not figure.title.startswith("Positions on component 1"):
            continue
        assert figure.plot is not None
        lines = [m for m in figure.plot.marks if isinstance(m, LineMarks)]
        points = [m for m in figure.plot.marks if isinstance(m, PointMarks)]
        ticks = {tick.place: tick.text for tick in figure.plot.y.ticks}
        for line, point in zip(lines, points, strict=True):
            for ends, x, y in zip(line.points, point.x, point.y, strict=True):
                found[ticks[float(y)]] = (float(x), *ends[:, 0].tolist())
    return found


def test_every_named_row_has_its_position_and_interval(artifact: Path) -> None:
    report = drawn(artifact)
    found = positions(report)
    assert set(found) == set(NAMES)
    x, low, high = np.array([*found.values()]).T
    assert x.mean() == pytest.approx(0, abs=1e-9)
    assert x.std() == pytest.approx(1)
    np.testing.assert_allclose(x - low, high - x)
    assert 0.3 < ((high - low) / 2 / 1.96).mean() < 1.5
    parts = [f for f in report.figures if f.title.startswith("Positions")]
    assert [f.title[-6:] for f in parts] == ["1 of 2", "2 of 2"]
    assert parts[0].plot is not None
    assert parts[1].plot is not None
    assert (parts[0].plot.x, len(parts[0].plot.y.ticks)) == (parts[1].plot.x, 45)
    assert [key.name for key in parts[0].keys] == ["left", "right"]
    tops = [found[tick.text][0] for tick in parts[0].plot.y.ticks]
    assert tops == sorted(tops, reverse=True)


def test_a_named_row_or_feature_is_at_the_chosen_pole(artifact: Path) -> None:
    plain = positions(drawn(artifact))
    top, bottom = max(plain, key=lambda n: plain[n][0]), min(plain, key=lambda n: plain[n][0])
    reversed_report = drawn(artifact, orient=(f"{bottom}=+1",))
    sign = "-" if drawn(artifact).fitted.artifact["weights"][0, 0] > 0 else "+"
    for other in (
        drawn(artifact, orient=(f"{top}=-1",)),
        drawn(artifact, orient=(f"f0={sign}1",)),
        reversed_report,
    ):
        found = positions(other)
        for name, values in plain.items():
            np.testing.assert_allclose(found[name][0], -values[0])
    assert positions(drawn(artifact, orient=(f"{top}=+1",))) == plain
    weights = [report.fitted.artifact["weights"] for report in (drawn(artifact), reversed_report)]
    np.testing.assert_allclose(*(weights[0], -weights[1]))
    assert "Trait 1 is led by" in " ".join(reversed_report.findings)


def test_weights_and_measurements_are_no_names(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(90, 6, 1, seed=1)
    weights, ages = 1 + np.arange(90) / 64, np.arange(90)
    columns = {"weight": weights, "age": ages, "unit": ages, "height": weights, "name": NAMES}
    texts = {name: values.astype(str).astype(object) for name, values in columns.items()}
    dataset = write_arrays(tmp_path / "d.zarr", X, columns=texts)
    model: dict[str, Any] = {"model": "latent-trait", "components": 1, "tol": 1e-2}
    survey = {"weight": "weight", "weights": "sampling", "psu": "unit", "covariates": ["age"]}
    lb.fit(dataset, **model, **survey).save(tmp_path / "survey")
    lb.fit(dataset, **model).save(tmp_path / "plain")
    assert set(positions(drawn(tmp_path / "survey"))) == set(NAMES)
    assert set(positions(drawn(tmp_path / "survey", names="weight"))) == set(texts["weight"])
    assert set(positions(drawn(tmp_path / "plain"))) == set(texts["age"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("member 3", r"Write NAME=\+1 for a positive position on component 1"),
        ("member 3=1", r"Write NAME=\+1"),
        ("member 3=+0", r"Write NAME=\+1"),
        ("member 3=+2", "but the model has 1 component"),
        (
            "membr 3=+1",
            r"no feature has this name\. Did you mean 'member 3'",
        ),
    ],
)
def test_poles_that_do_not_exist_are_refused(artifact: Path, text: str, message: str) -> None:
    with pytest.raises(FitError, match=message):
        drawn(artifact, orient=(text,))


def test_a_component_has_one_pole(artifact: Path) -> None:
    with pytest.raises(FitError, match=r"^orient: component 1 is given twice\."):
        drawn(artifact, orient=("f0=+1", "f1=-1"))


def test_components_whose_sign_has_a_meaning_are_not_reversed(tmp_path: Path) -> None:
    dataset = write_arrays(tmp_path / "d.zarr", draw_probit_rows(60, 5, 1, seed=1)[0])
    model = find_models()["bernoulli-mixture"](n_components=2)
    artifact = write_fit(tmp_path / "f", model, dataset)
    with pytest.raises(FitError, match="has a meaning"):
        drawn(artifact, orient=("f0=+1",))


def test_cutting_lines_are_those_of_the_chosen_features(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(90, 12, 2, seed=1)
    dataset = write_arrays(tmp_path / "d.zarr", X, columns={"party": PARTY, "name": NAMES})
    model = find_models()["latent-trait"](n_components=2, tol=1e-3, errors="none")
    artifact = write_fit(tmp_path / "f", model, dataset)
    for chosen, shown in (
        (("f1", "f1?"), ["f1", "f10", "f11"]),
        ((), [f"f{k}" for k in range(12)]),
    ):
        report = drawn(artifact, features=chosen)
        (figure,) = (f for f in report.figures if f.title == "Features in latent space")
        assert figure.plot is not None
        assert [key.name for key in figure.keys] == ["left", "right"]
        lines, *dots, _ = figure.plot.marks
        assert isinstance(lines, LineMarks)
        assert sum(len(own.x) for own in dots if isinstance(own, PointMarks)) <= 90
        params = report.fitted.params
        names = dict(lines.facts)["item"]
        assert set(names) <= set(shown)
        for name, points in zip(names, lines.points, strict=True):
            item = int(name[1:])
            even = points @ params.weights[item] + params.offsets[item]
            np.testing.assert_allclose(even, 0, atol=0.02)
    with pytest.raises(ValueError, match="no feature 'f99'"):
        drawn(artifact, features=("f99",))


def test_positions_keep_the_scale_of_anchors(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(90, 12, 1, seed=1)
    dataset = write_arrays(tmp_path / "d.zarr", X, columns={"name": NAMES})
    settings: dict[str, Any] = {"components": 1, "tol": 1e-3, "errors": "none"}
    anchors = {"member 1": 1, "member 2": -1}
    fitted = lb.fit(dataset, "latent-trait", anchors=anchors, **settings)
    fitted.save(tmp_path / "f")
    report = drawn(tmp_path / "f")
    found = positions(report)
    assert [found[name][0] for name in anchors] == pytest.approx([1, -1], abs=1e-5)
    (note, *_) = (f.note for f in report.figures if f.title.startswith("Positions"))
    assert "scale of the anchors, member 1 = 1, member 2 = -1" in note
    with pytest.raises(FitError, match="anchors of the fit choose the signs"):
        drawn(tmp_path / "f", orient=("member 1=-1",))
