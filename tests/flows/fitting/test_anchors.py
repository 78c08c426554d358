"""Fits whose scale of traits two or more rows choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from pipeline.errors import FitError
from pipeline.params import get_named_arrays
from tests.support.data import draw_probit_rows

N_ROWS, N_ITEMS = 60, 8
NAMES = [f"member {k}" for k in range(N_ROWS - 2)] + ["NA", "Smith, John"]
SETTINGS: dict[str, Any] = {"components": 1, "tol": 1e-4, "prior_precision": 0.5}
ANCHORS = {"member 3": 2.0, "Smith, John": -1.0}


def make_votes(levels: int = 1) -> lb.Dataset:
    """Return votes of named members: one misses all, one misses most, two vote the same."""
    X = sum(draw_probit_rows(N_ROWS, N_ITEMS, 1, seed=seed)[0] for seed in range(1, levels + 1))
    X = np.asarray(X, float)
    X[3], X[N_ROWS - 1], X[4] = levels, 0, levels
    X[5], X[6, 1:] = np.nan, np.nan
    columns: dict[str, Any] = {"name": NAMES, "party": ["left", "right", "NA"] * (N_ROWS // 3)}
    columns["weight"] = [2] * (N_ROWS - 1) + [0]
    return lb.from_numpy(X, keep=columns, levels=[0, 1, 2] if levels > 1 else None)


@pytest.fixture(scope="module")
def votes() -> lb.Dataset:
    return make_votes()


@pytest.fixture(scope="module")
def plain(votes: lb.Dataset) -> lb.Fitted:
    return lb.fit(votes, "latent-trait", **SETTINGS)


@pytest.fixture(scope="module")
def anchored(votes: lb.Dataset) -> lb.Fitted:
    return lb.fit(votes, "latent-trait", anchors=ANCHORS, **SETTINGS)


def find(*names: str) -> list[int]:
    return [NAMES.index(name) for name in names]


def test_anchors_fix_place_scale_and_sign(
    votes: lb.Dataset, plain: lb.Fitted, anchored: lb.Fitted
) -> None:
    before, after = (lb.transform(fitted, votes) for fitted in (plain, anchored))
    x, y = before["mean"][:, 0], after["mean"][:, 0]
    np.testing.assert_allclose(y[find(*ANCHORS)], [2.0, -1.0], atol=1e-6)
    slope, shift = np.polyfit(x, y, 1)
    np.testing.assert_allclose(slope * x + shift, y, atol=1e-6)
    np.testing.assert_allclose(slope**2 * before["variance"], after["variance"], rtol=1e-6)
    nats = [lb.evaluate(f, votes)["log_likelihood"] for f in (plain, anchored)]
    assert nats[0] == pytest.approx(nats[1], abs=1e-9)
    assert anchored.manifest["anchors"] == {"member 3": [2.0], "Smith, John": [-1.0]}
    assert anchored.params.traits.mean[0, 0] == pytest.approx(shift, abs=1e-6)


def test_errors_of_items_follow(plain: lb.Fitted, anchored: lb.Fitted) -> None:
    own, moved = plain.params, anchored.params
    w, b = own.weights[:, 0], own.offsets
    w_error, b_error = own.items_error.weights[:, 0], own.items_error.offsets
    difficulty_error = own.positions_error.difficulty
    slope = float(moved.positions.difficulty[1] - moved.positions.difficulty[0])
    slope /= float(own.positions.difficulty[1] - own.positions.difficulty[0])
    shift = moved.positions.difficulty[0] - slope * own.positions.difficulty[0]
    np.testing.assert_allclose(moved.weights[:, 0], w / slope, rtol=1e-9)
    np.testing.assert_allclose(moved.offsets, b - w * shift / slope, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved.items_error.weights[:, 0], w_error / abs(slope), rtol=1e-9)
    # The error of −b / w tells the covariance of w and b.
    d = -b / w
    covariance = ((w * difficulty_error) ** 2 - b_error**2 - (d * w_error) ** 2) / (2 * d)
    ratio = shift / slope
    expected = np.sqrt(b_error**2 + (ratio * w_error) ** 2 - 2 * ratio * covariance)
    np.testing.assert_allclose(moved.items_error.offsets, expected, rtol=1e-7)
    expected = abs(slope) * difficulty_error
    np.testing.assert_allclose(moved.positions_error.difficulty, expected, rtol=1e-9)


def test_a_fit_with_anchors_is_saved_and_continued(
    votes: lb.Dataset, plain: lb.Fitted, anchored: lb.Fitted, tmp_path: Path
) -> None:
    anchored.save(tmp_path / "fit")
    loaded = lb.load(tmp_path / "fit")
    for name, (_, values) in get_named_arrays(anchored.params).items():
        np.testing.assert_array_equal(get_named_arrays(loaded.params)[name][1], values)
    codes = lb.transform(loaded, votes)["mean"]
    np.testing.assert_allclose(codes[find("member 3")], [[2.0]], atol=1e-6)
    model: Any = plain.model
    state = model.warm_start(_start(plain, votes), anchored.params)
    np.testing.assert_allclose(
        np.abs(state.params.weights), np.abs(plain.params.weights), rtol=1e-6
    )


def _start(fitted: lb.Fitted, votes: lb.Dataset) -> Any:
    from pipeline.data.datasets import make_row_source
    from pipeline.executors.base import SerialExecutor
    from pipeline.fitting.loop import collect_first_statistics, initialize_fit

    rows = make_row_source(votes, None)
    first = collect_first_statistics(fitted.model, rows, SerialExecutor(), 0)
    return initialize_fit(fitted.model, first, 0)


@pytest.mark.matrix
def test_a_short_test_does_not_depend_on_the_scale(
    cli: Any, plain: lb.Fitted, anchored: lb.Fitted, tmp_path: Path
) -> None:
    tables = []
    for name, fitted in (("plain", plain), ("anchored", anchored)):
        fitted.save(tmp_path / name)
        target = tmp_path / f"{name}.csv"
        line = ("export", "--artifact", tmp_path / name, "--output", target)
        assert cli(*line, "--what", "short-test", "--items", 4).code == 0
        tables.append(pd.read_csv(target))
    assert tables[0]["feature"].tolist() == tables[1]["feature"].tolist()
    np.testing.assert_allclose(tables[0]["reliability"], tables[1]["reliability"], rtol=1e-6)


def test_anchors_that_cannot_fix_a_scale_are_refused(votes: lb.Dataset) -> None:
    for anchors, message in {
        "member 3=+1,nobody=-1": "is 'nobody', but no row has this name",
        "member 3=+1,membre 2=-1": "Did you mean 'member 2'",
        "member 3=1,member 2=+1": "have the same position",
        "member 3=1,member 3=2": "has 'member 3' twice",
        "member 3=1": "two rows with one number each",
        "member 3=1:0,NA=0:1,member 2=0:0": "two rows with one number each",
        "member 3": "Write the names of two rows",
        "member 3=one,NA=-1": "is 'one', but must be a number",
        "member 3=inf,NA=-1": "must be a number",
        "member 3=1e308,NA=-1": "must be a number from -1,000,000 to 1,000,000",
        "member 3=1e-9,NA=0": "differ by 1e-06 or more",
        "left=1,NA=-1": "rows have this text in column 'party'",
    }.items():
        with pytest.raises(FitError, match=message):
            lb.fit(votes, "latent-trait", anchors=anchors, **SETTINGS)
    with pytest.raises(FitError, match="not of clipped-pca"):
        lb.fit(votes, "clipped-pca", components=1, anchors=ANCHORS)
    with pytest.raises(FitError, match="both choose the sign of component 1"):
        lb.fit(votes, "latent-trait", orient=["f0=+1"], anchors=ANCHORS, **SETTINGS)
    with pytest.raises(FitError, match="Keep a column of names"):
        lb.fit(np.eye(4), "latent-trait", anchors=ANCHORS, **SETTINGS)


def test_anchors_at_one_position_have_no_effect(votes: lb.Dataset) -> None:
    same = lb.fit(votes, "latent-trait", anchors={"member 3": 1, "member 4": 2}, **SETTINGS)
    assert any("at the same position" in text for text in same.warnings)
    assert same.params.traits is None
    near = lb.fit(votes, "latent-trait", anchors="member 5=1,member 6=2", **SETTINGS)
    assert any("the scale is hardly determined" in text for text in near.warnings)


def test_anchors_of_weight_0_have_no_effect(votes: lb.Dataset) -> None:
    fitted = lb.fit(votes, "latent-trait", weight="weight", anchors=ANCHORS, **SETTINGS)
    assert any("'Smith, John' has the weight 0" in text for text in fitted.warnings)
    assert fitted.params.traits is None


@pytest.mark.matrix
def test_levels_groups_and_several_traits_move(votes: lb.Dataset) -> None:
    graded = make_votes(levels=2)
    own: dict[str, Any]
    for data, own in (
        (graded, SETTINGS),
        (graded, {**SETTINGS, "items": "partial-credit"}),
        (votes, {**SETTINGS, "group": "party"}),
        (votes, {**SETTINGS, "components": 2, "errors": "none"}),
    ):
        fits = [lb.fit(data, "latent-trait", anchors=a, **own) for a in ((), ANCHORS)]
        codes = [lb.transform(fitted, data)["mean"] for fitted in fits]
        np.testing.assert_allclose(codes[1][find(*ANCHORS), 0], [2.0, -1.0], atol=1e-6)
        assert abs(np.corrcoef(codes[0][:, 0], codes[1][:, 0])[0, 1]) == pytest.approx(1, abs=1e-6)
        nats = [lb.evaluate(fitted, data)["log_likelihood"] for fitted in fits]
        assert nats[0] == pytest.approx(nats[1], abs=1e-6)
    places = {"member 3": (1, 0), "Smith, John": (0, 0), "member 9": (0, 1)}
    two = lb.fit(votes, "latent-trait", anchors=places, **own)
    found = lb.transform(two, votes)["mean"][find(*places)]
    np.testing.assert_allclose(found, [*places.values()], atol=1e-3)
    assert lb.evaluate(two, votes)["log_likelihood"] == pytest.approx(nats[0], abs=1e-4)
