"""Standard errors of fits whose E-step is no quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import latentbits as lb
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait import fit_design, model
from pipeline.models.latent_trait.group_design import turn_to_principal_axes
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import make_params
from pipeline.models.latent_trait.stages import NodeGrid, find_steep_features
from pipeline.params import get_named_arrays
from tests.pipeline.models.latent_trait.test_model import fitted
from tests.support.strategies import DenseData, make_memory_rows


def limit_parameters(monkeypatch: pytest.MonkeyPatch, n_parameters: int) -> None:
    """Compute errors by item from this number of parameters on."""
    for module in (fit_design, model):
        monkeypatch.setattr(module, "MAX_PARAMETERS", n_parameters)


def drawn(
    n_features: int, q: int, n_rows: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a model on its principal axes, and its weights and offsets; seeds give other rows."""
    rng = np.random.default_rng(q)
    weights = rng.normal(0, 0.2, (n_features, q))
    weights[np.arange(n_features), np.arange(n_features) % q] += rng.uniform(1, 2, n_features)
    offsets = rng.uniform(-1, 1, n_features)
    weights = turn_to_principal_axes(
        make_params(weights * np.linspace(1.6, 0.7, q), offsets)
    ).weights
    if seed:
        rng = np.random.default_rng([seed, q])
    chances = expit(rng.standard_normal((n_rows, q)) @ weights.T + offsets)
    return (rng.random(chances.shape) < chances).astype(np.uint8), weights, offsets


@pytest.mark.matrix
@pytest.mark.parametrize("q", [2, 4])
def test_estimates_are_as_far_from_the_truth_as_their_errors_say(q: int) -> None:
    squares = []
    for seed in range(1, 7):
        X, weights, offsets = drawn(24, q, 3000, seed)
        done = fitted(X, n_components=q, estimator="ep")
        found = done.params
        turned = found.weights * np.sign((found.weights * weights).sum(axis=0))
        off = np.column_stack(
            [
                (turned - weights) / found.weights_error,
                (found.offsets - offsets) / found.offsets_error,
            ]
        )
        squares.append((off**2).mean())
    assert 0.8 < np.sqrt(np.mean(squares)) < 1.2
    assert done.diagnostics["errors"] == ("crossproduct" if q > 3 else "louis")
    assert "fit_statistics" not in done.diagnostics


@pytest.mark.matrix
def test_errors_by_sites_are_those_of_quadrature() -> None:
    X, *_ = drawn(24, 2, 3000)
    by = [fitted(X, n_components=2, estimator=e).params for e in ("ep", "quadrature")]
    np.testing.assert_allclose(by[0].weights_error, by[1].weights_error, rtol=0.05)
    np.testing.assert_allclose(by[0].offsets_error, by[1].offsets_error, rtol=0.05)


@pytest.mark.matrix
@pytest.mark.parametrize("q", [1, 2])
def test_errors_of_many_items_are_those_of_the_full_information(
    q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, *_ = drawn(100, q, 500)
    observed = (np.random.default_rng(9).random(X.shape) < 0.8).astype(np.uint8)
    full = fitted(X, observed, n_components=q, estimator="quadrature").params
    limit_parameters(monkeypatch, 100)
    wide = fitted(X, observed, n_components=q, estimator="quadrature").params
    np.testing.assert_array_equal(wide.weights, full.weights)
    np.testing.assert_allclose(wide.weights_error, full.weights_error, rtol=0.02)
    np.testing.assert_allclose(wide.offsets_error, full.offsets_error, rtol=0.02)


def test_errors_of_many_equal_slopes_are_those_of_the_full_information(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, *_ = drawn(60, 1, 300)
    settings: dict[str, Any] = {"n_components": 1, "equal_slopes": "yes"}
    settings |= {"constant_features": "keep"}
    full = fitted(X, **settings).params
    limit_parameters(monkeypatch, 50)
    wide = fitted(X, **settings).params
    np.testing.assert_allclose(wide.weights_error, full.weights_error, rtol=0.02)
    np.testing.assert_allclose(wide.offsets_error, full.offsets_error, rtol=0.02)


def draw_levels(n_levels: list[int], q: int, n_rows: int, n_continuous: int = 0) -> lb.Dataset:
    """Return ordered items that measure one trait each, and measurements, in three groups."""
    rng = np.random.default_rng(q)
    eta = rng.standard_normal((n_rows, q))[:, np.arange(len(n_levels)) % q]
    eta = eta * rng.uniform(1, 2, len(n_levels)) + rng.logistic(size=eta.shape)
    Y = [
        (column[:, None] > np.sort(rng.normal(0, 1, m - 1))).sum(axis=1)
        for column, m in zip(eta.T, n_levels, strict=True)
    ]
    levels = {f"x{i}": [*range(m)] for i, m in enumerate(n_levels)}
    numbers = eta[:, :n_continuous] + rng.standard_normal((n_rows, n_continuous))
    continuous = [f"y{i}" for i in range(n_continuous)]
    return lb.from_numpy(
        np.column_stack([*Y, numbers]),
        [*levels, *continuous],
        levels=levels,
        continuous=continuous,
        keep={"group": rng.choice(["a", "b", "c"], n_rows), "w": rng.uniform(1, 2, n_rows)},
    )


_MATRIX = pytest.mark.matrix


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (([2, 4, 5] * 10, 1, 300), {}),
        (([4] * 30, 1, 300), {"items": "rating-scale", "equal_slopes": "yes"}),
        pytest.param(([3] * 40, 1, 300), {"items": "nominal"}, marks=_MATRIX),
        pytest.param(([3] * 40, 1, 300), {"items": "partial-credit"}, marks=_MATRIX),
        pytest.param(([3] * 40, 1, 300), {"equal_slopes": "yes"}, marks=_MATRIX),
        pytest.param(([3] * 40, 1, 300), {"prior_precision": 1.0}, marks=_MATRIX),
        pytest.param(([3] * 40, 1, 600, 5), {}, marks=_MATRIX),
        pytest.param(([3] * 40, 2, 600), {"components": 2}, marks=_MATRIX),
        (([2] * 40, 1, 400), {"group": "group"}),
        pytest.param(([3] * 40, 1, 600), {"group": "group"}, marks=_MATRIX),
        pytest.param(
            ([3] * 40, 1, 600), {"group": "group", "invariance": "configural"}, marks=_MATRIX
        ),
    ],
)
def test_errors_of_many_items_with_structure_are_those_of_the_full_information(
    data: tuple[Any, ...], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, settings = draw_levels(*data), {"components": 1, **settings}
    full = lb.fit(dataset, "latent-trait", **settings)
    limit_parameters(monkeypatch, 20)
    wide = lb.fit(dataset, "latent-trait", **settings)
    assert wide.warnings == full.warnings
    found, expected = (get_named_arrays(fitted.params) for fitted in (wide, full))
    for name in expected:
        if name.endswith("_error"):
            pair = found[name][1], expected[name][1]
            np.testing.assert_allclose(*pair, rtol=0.03, err_msg=name)


@pytest.mark.parametrize("n_levels", [2, 3])
def test_many_items_of_several_traits_in_groups_have_no_errors(
    n_levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_parameters(monkeypatch, 20)
    dataset = draw_levels([n_levels] * 12, 2, 400)
    fit = lb.fit(dataset, "latent-trait", components=2, group="group", max_iter=5)
    assert fit.params.weights_error is None
    assert any("20 parameters and groups with several traits" in text for text in fit.warnings)


@pytest.mark.matrix
def test_errors_of_many_items_of_a_pattern_are_nearly_those_of_the_full_information(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = draw_levels([3] * 40, 2, 400)
    items = np.arange(40) % 2
    names = [f"x{i}" for i in range(40)]
    pattern = pd.DataFrame({"feature": names, "a": 1 - items, "b": items})
    full = lb.fit(dataset, "latent-trait", pattern=pattern).params
    limit_parameters(monkeypatch, 20)
    wide = lb.fit(dataset, "latent-trait", pattern=pattern).params
    for name in ("weights_error", "offsets_error", "trait_covariance_error"):
        np.testing.assert_allclose(getattr(wide, name), getattr(full, name), rtol=0.06)


def test_many_ordered_items_with_sampling_weights_have_no_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_parameters(monkeypatch, 5)
    dataset = draw_levels([3] * 6, 1, 200)
    fitted = lb.fit(dataset, "latent-trait", components=1, weight="w", weights="sampling")
    assert fitted.params.weights_error is None
    assert "no standard errors: more than 5 parameters and sampling weights" in fitted.warnings


@pytest.mark.slow
def test_intervals_of_6000_items_cover() -> None:
    covered = []
    for seed in range(1, 7):
        rng = np.random.default_rng(seed)
        slopes, offsets = np.exp(0.3 * rng.standard_normal(6000)), rng.standard_normal(6000)
        p = expit(np.outer(rng.standard_normal(300), slopes) + offsets)
        X = (rng.random(p.shape) < p).astype(np.uint8)
        observed = (rng.random(p.shape) < 0.7).astype(np.uint8)
        found = fitted(X, observed, n_components=1, constant_features="keep").params
        weights = np.abs(found.weights[:, 0])
        off = [(weights - slopes) / found.weights_error[:, 0]]
        off += [(found.offsets - offsets) / found.offsets_error]
        covered.append([np.nanmean(np.abs(deviation) < 1.96) for deviation in off])
    shares = np.mean(covered, axis=0)
    assert ((shares > 0.93) & (shares < 0.97)).all()


@pytest.mark.matrix
@pytest.mark.parametrize("estimator", ["variational", "sampling"])
def test_what_is_no_likelihood_has_no_errors(estimator: str) -> None:
    X, *_ = drawn(24, 2, 300)
    assert fitted(X, estimator=estimator).params.weights_error is None


@pytest.mark.matrix
def test_errors_by_item_of_four_traits_are_nearly_those_of_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, *_ = drawn(24, 4, 1500)
    settings = {"n_components": 4, "tol": 1e-5}
    by_scores = fitted(X, **settings)
    monkeypatch.setattr(model, "_MIN_ROWS_PER_PARAMETER", 100)
    by_item = fitted(X, **settings)
    kinds = [done.diagnostics["errors"] for done in (by_scores, by_item)]
    assert kinds == ["crossproduct", "louis"]
    for name in ("weights_error", "offsets_error"):
        ratios = getattr(by_item.params, name) / getattr(by_scores.params, name)
        assert np.median(ratios) == pytest.approx(1, abs=0.05)
        assert ((ratios > 0.85) & (ratios < 1.15)).mean() > 0.9


def test_too_few_rows_for_errors_of_many_traits_are_told() -> None:
    X, *_ = drawn(24, 7, 150)
    done = fit_model(
        LatentTrait(n_components=7, tol=1e-2), make_memory_rows(DenseData(X)), SerialExecutor(), 0
    )
    text = "no standard errors: fewer than 3 rows per parameter and more than 6 components"
    assert text in [w.text for w in done.warnings]


@pytest.mark.parametrize(("q", "slope"), [(2, 8.0), pytest.param(3, 5.0, marks=pytest.mark.matrix)])
def test_steep_items_that_a_lattice_resolves_have_errors(q: int, slope: float) -> None:
    _, weights, offsets = drawn(20, q, 1)
    weights[5] *= slope / np.linalg.norm(weights[5])
    rng = np.random.default_rng(1)
    chances = expit(rng.standard_normal((4000, q)) @ weights.T + offsets)
    done = fitted((rng.random(chances.shape) < chances).astype(np.uint8), n_components=q)
    found = np.linalg.norm(done.params.weights[5])
    error = np.linalg.norm(done.params.weights_error[5])
    assert abs(found - slope) < 3 * error < 1.5 * slope
    assert done.warnings == ()


@pytest.mark.parametrize("is_complete", [True, False])
def test_items_too_steep_for_any_nodes_are_found(is_complete: bool) -> None:
    weights = np.ones((12, 3))
    weights[5], weights[7] = (1.0, 4.0, 14.0), (0.0, 3.0, 0.5)
    working = NodeGrid(21, 3).make_working_state() | {"has_own_nodes": np.array(1)}
    params = make_params(weights, np.zeros(12))
    assert find_steep_features(params, working, is_complete).tolist() == [5]


@pytest.mark.parametrize("seed", range(5))
def test_two_items_do_not_determine_a_trait(seed: int) -> None:
    """Four parameters, three free cells: the information is singular but for rounding."""
    rng = np.random.default_rng(seed)
    eta = 1.2 * rng.standard_normal((500, 1)) + rng.logistic(size=(500, 2))
    fitted = lb.fit((eta > 0).astype(np.uint8), "latent-trait", components=1)
    (warning,) = (w for w in fitted.warnings if "not identified" in w)
    assert "4 free parameters" in warning
    assert "at most 3" in warning
    assert np.isnan(fitted.params.weights_error).all()
    assert np.isnan(fitted.params.offsets_error).all()


def test_two_measurements_do_not_determine_a_factor() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 1)) + rng.standard_normal((500, 2))
    fitted = lb.fit(
        lb.from_numpy(X, ["a", "b"], continuous=["a", "b"]), "latent-trait", components=1
    )
    assert any("not identified" in warning for warning in fitted.warnings)
    assert np.isnan(fitted.params.weights_error).all()


def test_equal_slopes_of_two_items_are_determined() -> None:
    rng = np.random.default_rng(0)
    eta = 1.2 * rng.standard_normal((500, 1)) + rng.logistic(size=(500, 2))
    fitted = lb.fit((eta > 0).astype(np.uint8), "latent-trait", components=1, equal_slopes="yes")
    assert not any("not identified" in warning for warning in fitted.warnings)
    assert (fitted.params.weights_error < 1).all()
