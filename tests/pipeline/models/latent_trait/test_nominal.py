"""Items whose categories have no order: against quadrature in NumPy, and whatever the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

import latentbits as lb
from flows.exporting.columns import read_level_columns
from pipeline.errors import FitError
from storage.artifacts.artifacts import load_artifact

Floats = NDArray[np.float64]

CATEGORIES = ["tv", "radio", "None", "web"]
SLOPES = np.array([[1.5, -1.5, 0.0, 0.0], [-1.0, 1.2, 1.0, -1.2], [0.8, 0.6, -1.9, 0.5]])
OFFSETS = np.array([[0.4, 0.0, -0.4, 0.0], [0.0, 0.3, -0.3, 0.0], [0.5, -0.5, 0.3, -0.3]])
NAMES = ["q0", "q1", "q2"]
ORDERS = (CATEGORIES, ["web", "tv", "None", "radio"])
SETTINGS: dict[str, Any] = {"components": 1, "items": "nominal", "executor": "serial", "tol": 1e-9}


def draw_answers(n_rows: int) -> pd.DataFrame:
    """Draw three nominal answers, a binary and an ordinal one of each row, a tenth missing."""
    rng = np.random.default_rng(4)
    x, noise = rng.standard_normal(n_rows), rng.gumbel(size=(3, n_rows, 4))
    utility = x[:, None] * SLOPES[:, None] + OFFSETS[:, None] + noise
    frame = pd.DataFrame(np.array(CATEGORIES)[utility.argmax(axis=2)].T, columns=NAMES)
    frame["vote"] = (rng.logistic(size=n_rows) < 1.5 * x).astype(int)
    frame["mood"] = np.digitize(x + rng.standard_normal(n_rows), [-0.7, 0.7])
    return frame.mask(rng.random(frame.shape) < 0.1)


def fit(frame: pd.DataFrame, order: list[str], **settings: Any) -> Any:
    levels = {"mood": [0, 1, 2]} if "mood" in frame else None
    data = lb.from_dataframe(frame, nominal=dict.fromkeys(NAMES, order), levels=levels)
    return lb.fit(data, "latent-trait", **{**SETTINGS, **settings})


def read_categories(fitted: Any) -> dict[str, Floats]:
    """Return slope and offset of each level of each item, (n_levels, 2), as the fit has them."""
    items, start, found = fitted.params.items, 0, {}
    for name in fitted.feature_names:
        n_planes = len(fitted.feature_levels.get(name, "01")) - 1
        own = slice(start, start + n_planes)
        forms = np.column_stack([items.level_weights[own, 0], items.level_offsets[own]])
        found[name] = np.vstack([np.zeros(2), forms])
        start += n_planes
    return found


def center(fitted: Any, name: str) -> Floats:
    """Return slopes and offsets by category in a fixed order, minus their means."""
    order = [fitted.feature_levels[name].index(category) for category in CATEGORIES]
    values = read_categories(fitted)[name][order]
    return np.asarray(values - values.mean(axis=0))


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return draw_answers(500)


@pytest.fixture(scope="module")
def fits(frame: pd.DataFrame) -> list[Any]:
    return [fit(frame, order) for order in ORDERS]


def test_likelihood_is_the_integral_of_softmax_curves(frame: pd.DataFrame, fits: list[Any]) -> None:
    z = np.linspace(-9, 9, 1801)
    density = -0.5 * z**2 - 0.5 * np.log(2 * np.pi) + np.log(z[1] - z[0])
    for fitted in fits:
        rows = np.tile(density, (len(frame), 1))
        for name, forms in read_categories(fitted).items():
            log_p = log_softmax(np.outer(z, forms[:, 0]) + forms[:, 1], axis=1)
            levels = fitted.feature_levels.get(name, ("0", "1"))
            values = frame[name].map(lambda own: own if isinstance(own, str) else f"{own:g}")
            for level, own in zip(levels, log_p.T, strict=True):
                rows[values == level] += own
        expected = logsumexp(rows, axis=1).sum()
        found = fitted.manifest["diagnostics"]["fit_statistics"]["log_likelihood"]
        assert found == pytest.approx(expected, rel=1e-8)


def test_the_order_of_categories_changes_nothing(frame: pd.DataFrame, fits: list[Any]) -> None:
    first, other = fits
    assert first.statistics["log_likelihood"] == pytest.approx(
        other.statistics["log_likelihood"], abs=1e-6
    )
    for name, slopes in zip(NAMES, SLOPES, strict=True):
        own = center(first, name)
        np.testing.assert_allclose(center(other, name), own, atol=1e-3)
        np.testing.assert_allclose(own[:, 0], slopes, atol=0.8)  # the truth, with its sign
    codes = [lb.transform(fitted, frame)["mean"] for fitted in fits]
    np.testing.assert_allclose(*codes, atol=1e-3)
    for fitted in fits:
        assert fitted.params.weights[3:, 0].min() > 0  # of vote and mood, which decide the sign
        assert not fitted.warnings


def test_the_sign_of_nominal_items_alone_does_not_depend_on_their_order(
    frame: pd.DataFrame,
) -> None:
    first, other = (fit(frame[NAMES].head(300), order) for order in ORDERS)
    for name in NAMES:
        np.testing.assert_allclose(center(first, name), center(other, name), atol=1e-3)
    assert np.isnan(first.params.fit.infit).all()


def test_what_needs_an_order_is_left_out(frame: pd.DataFrame, fits: list[Any]) -> None:
    fitted = fits[0]
    is_nominal = np.array([True, True, True, False, False])
    np.testing.assert_array_equal(fitted.params.is_nominal, is_nominal)
    positions, errors = fitted.params.positions, fitted.params.positions_error
    for values in (positions.difficulty, errors.difficulty, fitted.params.fit.infit):
        np.testing.assert_array_equal(np.isnan(values), is_nominal)
    statistics = fitted.manifest["diagnostics"]["fit_statistics"]
    assert statistics["m2_missing"] == statistics["s_x2_missing"] == "some items have no order"
    with pytest.raises(FitError, match=r"is of ordered levels, .* are nominal\. Choose eap"):
        lb.transform(fitted, frame, scores="sum")


def test_answers_are_scored_and_chosen_by_category(frame: pd.DataFrame, fits: list[Any]) -> None:
    for fitted in fits:
        scorer, answers = lb.Scorer(fitted), {"q0": "tv", "q1": "None"}
        row = pd.DataFrame([answers]).reindex(columns=frame.columns)
        expected = lb.transform(fitted, row)["mean"][0, 0]
        chosen = scorer.next_items(answers, n=3)
        assert chosen.mean == pytest.approx(expected, abs=1e-6)
        # The mean of Σ_c P_c (a_c − ā)² over the posterior, with a normal one of the same moments.
        nodes, shares = np.polynomial.hermite_e.hermegauss(41)
        z, shares = chosen.mean + chosen.error * nodes, shares / shares.sum()
        forms = read_categories(fitted)["q2"]
        P = np.exp(log_softmax(np.outer(z, forms[:, 0]) + forms[:, 1], axis=1))
        variance = P @ forms[:, 0] ** 2 - (P @ forms[:, 0]) ** 2
        information = dict(zip(chosen.items, chosen.information, strict=True))["q2"]
        assert information == pytest.approx(shares @ variance, rel=0.05)
        score = scorer.predict_score({**answers, "vote": 1, "mood": 2})
        assert (score.score, score.maximum) == (3, 3)  # nominal answers do not count
        assert score.error == pytest.approx(0, abs=1e-6)


def test_other_curves_refuse_nominal_features_by_name(frame: pd.DataFrame) -> None:
    message = (
        r"^Items of items=\"graded\" .* 'q0', 'q1', 'q2'\. "
        r"Use items=\"nominal\" and components=1, or leave them out by drop="
    )
    with pytest.raises(FitError, match=message):
        fit(frame, CATEGORIES, items="graded", components=2)


def test_a_copy_of_an_item_ends_with_a_warning() -> None:
    """Its slopes diverge: before they were bounded, forms overflowed, or the fit took minutes."""
    frame = draw_answers(200)[[*NAMES]]
    frame["copy"] = frame["q0"]
    data = lb.from_dataframe(frame, nominal=dict.fromkeys(frame, CATEGORIES))
    settings = {**SETTINGS, "tol": 1e-4, "errors": "none", "max_iter": 12}
    fitted = lb.fit(data, "latent-trait", **settings)
    (text,) = (text for text in fitted.warnings if "weights diverge" in text)
    assert "'q0', 'copy'" in text
    assert np.isfinite(fitted.objective)
    assert 20 < np.abs(fitted.params.items.level_weights).max() < 100


def test_a_first_category_without_rows_is_not_the_reference_of_tables(tmp_path: Path) -> None:
    frame, table = draw_answers(200), {}
    for order in (CATEGORIES, ["fax", *CATEGORIES]):
        fitted = fit(frame, order, tol=1e-6)
        fitted.save(tmp_path / order[0])
        names, columns = read_level_columns(load_artifact(tmp_path / order[0]))
        values = np.column_stack([own.values for own in columns])
        assert np.isnan(columns[0].error).sum() == (order[0] == "fax") * 3
        table[order[0]] = dict(zip(names, values.tolist(), strict=True))
    assert table["fax"].pop(("q0", "fax")) == [0.0, -18.0]
    for name in NAMES[1:]:
        del table["fax"][(name, "fax")]
    assert table["fax"].keys() == table["tv"].keys()
    for key, own in table["tv"].items():
        np.testing.assert_allclose(table["fax"][key], own, atol=0.02)
