"""Items with several levels: against R's mirt, a fine grid, and laws of levels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.features import Feature, make_binary_features, name_planes, split_levels
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows

Floats = NDArray[np.float64]
Levels = NDArray[np.int64]


def read_columns(path: str) -> dict[str, list[str]]:
    with find_reference(path).open() as file:
        rows = [*csv.DictReader(file)]
    return {name: [row[name] for row in rows] for name in rows[0]}


def read_levels(name: str) -> tuple[Levels, tuple[Feature, ...]]:
    """Read levels, -1 where missing."""
    columns = read_columns(f"data/{name}.csv")
    levels = np.array(
        [[-1 if v in ("", "NA") else int(v) for v in own] for own in columns.values()]
    ).T
    return levels, make_features([*columns], levels.max(axis=0) + 1)


def make_features(names: Sequence[str], n_levels: Any) -> tuple[Feature, ...]:
    pairs = zip(names, np.asarray(n_levels).tolist(), strict=True)
    return tuple(Feature(name, tuple(map(str, range(k)))) for name, k in pairs)


def make_data(levels: Levels, features: Sequence[Feature], **columns: Any) -> DenseData:
    X = split_levels(np.maximum(levels, 0).astype(np.uint8), features)
    if (levels >= 0).all():
        return DenseData(X, **columns)
    mask = np.repeat(levels >= 0, [feature.n_planes for feature in features], axis=1)
    return DenseData(X, mask.astype(np.uint8), **columns)


def fit(
    levels: Levels, features: tuple[Feature, ...], columns: Any = None, **settings: Any
) -> FitState:
    settings = {"n_components": 1, "tol": 1e-10, **settings}
    model = LatentTrait(**settings).with_structure(Structure(features=features))
    rows = make_memory_rows(make_data(levels, features, **(columns or {})))
    return fit_model(model, rows, SerialExecutor())


def read_mirt(path: str) -> dict[tuple[str, str], tuple[float, float]]:
    columns = read_columns(path)
    names = zip(columns["item"], columns["name"], strict=True)
    values = [
        (float(v), float("nan" if e == "NA" else e))
        for v, e in zip(columns["value"], columns["se"], strict=True)
    ]
    return dict(zip(names, values, strict=True))


MIRT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "graded": ("graded", {}),
    "gpcm": ("partial-credit", {}),
    "Rasch": ("partial-credit", {"equal_slopes": "yes"}),
}


@pytest.mark.parametrize("case", MIRT_CASES)
def test_science_agrees_with_mirt(case: str) -> None:
    kind, settings = MIRT_CASES[case]
    levels, features = read_levels("Science")
    state = fit(levels, features, items=kind, **settings)
    params, found = state.params, state.diagnostics["fit_statistics"]
    rows = zip(*[*read_columns("07_graded/summary.csv").values()][:3], strict=True)
    expected = {quantity: value for name, quantity, value in rows if name == f"Science {case}"}
    assert found["log_likelihood"] == pytest.approx(float(expected["loglik"]), abs=5e-4)
    assert found["n_parameters"] == 13 if case == "Rasch" else 16
    covariance = np.cov(levels.T)
    alpha = 4 / 3 * (1 - np.trace(covariance) / covariance.sum())
    assert found["alpha"] == pytest.approx(alpha, rel=1e-9)
    assert "alpha_turned" not in found
    reliability = float(expected["marginal reliability"])
    if case != "Rasch":
        assert found["marginal_reliability"] == pytest.approx(reliability, abs=5e-4)

    mirt, slope = read_mirt(f"07_graded/Science_{case}.csv"), params.weights[:, 0]
    offsets = params.level_offsets.reshape(4, 3)
    errors = params.level_offsets_error.reshape(4, 3)
    for i, feature in enumerate(features):
        for j in range(3):
            value, error = mirt[feature.name, f"d{j + 1}"]
            assert offsets[i, j] == pytest.approx(value, abs=1e-3)
            assert errors[i, j] == pytest.approx(error, rel=1e-2)
        if case == "Rasch":
            value, error = mirt["GROUP", "COV_11"]
            assert slope[i] ** 2 == pytest.approx(value, abs=1e-3)
            assert 2 * slope[i] * params.weights_error[i, 0] == pytest.approx(error, rel=1e-2)
        else:
            value, error = mirt[feature.name, "a1"]
            assert slope[i] == pytest.approx(value, abs=1e-3)
            assert params.weights_error[i, 0] == pytest.approx(error, rel=1e-2)

    item_fit = read_columns(f"07_graded/Science_{case}_SX2.csv")
    np.testing.assert_allclose(params.s_x2, np.array(item_fit["S_X2"], float), atol=1e-3)
    np.testing.assert_array_equal(params.s_x2_df, np.array(item_fit["df.S_X2"], float))
    pairs_fit = {
        name: float(v[0]) for name, v in read_columns(f"07_graded/Science_{case}_C2.csv").items()
    }
    assert found["m2_df"] == pairs_fit["df"]
    assert found["srmsr"] == pytest.approx(pairs_fit["SRMSR"], abs=1e-5)
    if case == "graded":  # mirt's C2 of other items is not that of the definition; see below
        for name, value in (("m2", "M2"), ("rmsea", "RMSEA"), ("cfi", "CFI"), ("tli", "TLI")):
            assert found[name] == pytest.approx(pairs_fit[value], abs=1e-3)

    (block,) = make_memory_blocks(make_data(levels, features))
    model = replace(LatentTrait(n_components=1), items=kind)
    codes = model.transform(params, block, RowRandom(0))
    scale = slope[0] if case == "Rasch" else 1.0
    scores = read_columns(f"07_graded/Science_{case}_EAP.csv")
    eap, sd = (np.array(own, np.float64) for own in [*scores.values()][-2:])
    np.testing.assert_allclose(scale * codes["mean"][:, 0], eap, atol=1e-3)
    np.testing.assert_allclose(scale * codes["variance"][:, 0] ** 0.5, sd, atol=1e-3)
    of_test = {
        k: np.array(v, float)
        for k, v in read_columns(f"07_graded/Science_{case}_testinfo.csv").items()
    }
    curves, points = model.get_item_curves(params), of_test["theta"] / scale
    information = curves.compute_information(points).sum(axis=1) / scale**2
    np.testing.assert_allclose(information, of_test["test_information"], atol=1e-3)
    score = curves.compute_expected_score(points)
    np.testing.assert_allclose(score, of_test["expected_score"], atol=2e-3)


@pytest.mark.matrix
def test_two_traits_agree_with_mirt() -> None:
    for name, log_likelihood, communality in (
        ("Science", -1601.96741, 0.3826644),  # a flat optimum, which coarse nodes miss
        ("bfi_EN10", -15413.18746, 0.452857),
    ):
        state = fit(*read_levels(name), n_components=2, tol=1e-8)
        found = state.diagnostics["fit_statistics"]
        assert found["log_likelihood"] == pytest.approx(log_likelihood, abs=1e-3)
        squares = ((state.params.weights[0] / 1.702) ** 2).sum()
        assert squares / (1 + squares) == pytest.approx(communality, abs=1e-2)


def simulate(n_rows: int = 400, kind: str = "graded") -> tuple[Levels, tuple[Feature, ...]]:
    """Draw rows of items with 3, 2, 4 and 3 levels."""
    rng = np.random.default_rng(3)
    x, slopes = rng.standard_normal(n_rows), np.array([1.2, 1.6, 0.8, 1.4])
    cuts = [(-0.5, 0.8), (0.2,), (-1.0, 0.1, 1.2), (-0.2, 0.9)]
    logistic = rng.logistic(size=(n_rows, 4)) + np.outer(x, slopes)
    levels = np.stack([np.searchsorted(c, y) for c, y in zip(cuts, logistic.T, strict=True)]).T
    return levels, make_features("abcd", [3, 2, 4, 3])


def use_shared_nodes(model: Any) -> Any:
    """Let a fit of binary items use the integrator of items with several levels."""
    model.__dict__["_is_binary"] = False
    return model


def test_binary_items_are_as_in_the_binary_model() -> None:
    levels = np.minimum(simulate()[0], 1)
    binary = make_binary_features("abcd")
    state = fit(levels, binary)
    data, structure = make_data(levels, binary), Structure(features=binary)
    (block,) = make_memory_blocks(data)
    for kind in ("graded", "partial-credit"):
        model = LatentTrait(n_components=1, tol=1e-10, items=kind, structure=structure)
        model = use_shared_nodes(model)
        own = fit_model(model, make_memory_rows(data), SerialExecutor())
        nats = [model.log_likelihood(s.params, block, RowRandom(0)).nats for s in (own, state)]
        assert nats[0].mean() == pytest.approx(nats[1].mean(), abs=1e-9)
        np.testing.assert_allclose(own.params.weights, state.params.weights, atol=1e-4)
        np.testing.assert_allclose(own.params.level_offsets, state.params.offsets, atol=1e-4)
        np.testing.assert_allclose(own.params.weights_error, state.params.weights_error, rtol=1e-3)


def test_reversed_levels_change_signs() -> None:
    levels, features = simulate()
    state = fit(levels, features, tol=1e-12)
    tops = np.array([feature.n_planes for feature in features])
    opposite = fit(tops - levels, features, tol=1e-12)
    np.testing.assert_allclose(opposite.params.weights, state.params.weights, atol=1e-4)
    of_items = np.split(state.params.level_offsets, np.cumsum(tops)[:-1])
    reversed_offsets = np.concatenate([-own[::-1] for own in of_items])
    np.testing.assert_allclose(opposite.params.level_offsets, reversed_offsets, atol=1e-4)


@pytest.mark.parametrize("kind", ["graded", "partial-credit", "rating-scale", "nominal"])
def test_an_empty_level_is_reported_and_changes_nothing_else(kind: str) -> None:
    """The empty levels of items are those of a fit without them, apart from their offsets."""
    levels, features = simulate()
    settings = {"items": kind, "equal_slopes": "yes" if kind == "rating-scale" else "no"}
    levels[:, 2] = np.minimum(levels[:, 2], 2)
    merged = fit(levels, make_features("abcd", [3, 2, 3, 3]), **settings)
    for level in (0, 1, 3):
        check_empty_level(levels, features, level, merged, settings)


def check_empty_level(
    levels: Levels,
    features: tuple[Feature, ...],
    level: int,
    merged: FitState,
    settings: dict[str, Any],
) -> None:
    kind, wider = settings["items"], levels.copy()
    wider[:, 2] += levels[:, 2] >= level
    state = fit(wider, features, **settings)
    (warning,) = state.warnings
    assert warning.features == ("c",)
    assert warning.render(name_planes(features)).endswith(
        "features, so these levels count as improbable: 'c'"
    )
    if kind in ("graded", "nominal"):
        ours, theirs = (s.diagnostics["fit_statistics"] for s in (state, merged))
        assert ours["n_parameters"] == theirs["n_parameters"]
        assert ours["log_likelihood"] == pytest.approx(theirs["log_likelihood"], abs=1e-4)
        if kind == "graded" and level != 1:  # else the scores of levels differ
            assert ours["m2"] == pytest.approx(theirs["m2"], rel=1e-4)
        assert state.params.weights[0] == pytest.approx(merged.params.weights[0], abs=1e-4)
    assert np.abs(state.params.level_offsets).max() < 50
    assert np.isfinite(state.params.weights_error).all()


def test_frequencies_are_repeated_rows() -> None:
    levels, features = simulate()
    levels[::9, 1] = -1
    patterns, counts = np.unique(levels, axis=0, return_counts=True)
    weighted = fit(patterns, features, {"weights": counts.astype(np.float64)})
    state = fit(levels, features)
    for name in ("weights", "level_offsets", "weights_error", "infit"):
        ours, theirs = (getattr(s.params, name) for s in (weighted, state))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    ours, theirs = (s.diagnostics["fit_statistics"] for s in (weighted, state))
    for name in ("log_likelihood", "bic", "reliability", "marginal_reliability"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-6)


def test_a_row_that_leaves_no_parameter_free_is_fitted() -> None:
    levels, features = np.zeros((1, 6), np.int64), make_features("abcdef", (2, 3, 3, 2, 4, 2))
    settings = {"nodes": 15, "prior_precision": 1.0, "constant_features": "keep"}
    params = fit(levels, features, n_components=2, **settings).params
    assert not params.weights.any()
    assert (params.offsets < 0).all()
