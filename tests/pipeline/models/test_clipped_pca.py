"""Clipped PCA against data of known loadings, and against SciPy's normal distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.stats import norm

from pipeline.data.blocks import pack_block
from pipeline.data.features import Feature
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import MIN_NOISE, ClippedPCA, ClippedPCAParams, model
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.numerics.gaussian.pair_tables import MAX_CORRELATION, PairStatus
from pipeline.numerics.spectra import linalg
from pipeline.random import RowRandom
from pipeline.statistics import correlations
from tests.support.strategies import Bits, DenseData, draw_probit_data, make_memory_rows

Floats = NDArray[np.float64]


def fitted(X: Bits, observed: Bits | None = None, seed: int = 0, **settings: Any) -> FitState:
    rows = make_memory_rows(DenseData(X, observed))
    return fit_model(ClippedPCA(**settings), rows, SerialExecutor(), seed)


def correlation_of(loadings: Floats) -> Floats:
    """Correlations of the latent normals: 1 on the diagonal whatever the communality."""
    correlation = loadings @ loadings.T
    np.fill_diagonal(correlation, 1.0)
    return correlation


def ring(n_samples: int, n_features: int, rng: np.random.Generator) -> Bits:
    """Section 5 of the paper: s_i = sgn(cos θ_i y_1 + sin θ_i y_2)."""
    angles = 2 * np.pi * np.arange(n_features) / n_features
    y = rng.standard_normal((n_samples, 2))
    return (y @ [np.cos(angles), np.sin(angles)] > 0).astype(np.uint8)


def one_factor_each(n_samples: int, rng: np.random.Generator) -> Bits:
    """64 features, each loading on one of 5 factors, as questionnaires are built."""
    y = rng.standard_normal((n_samples, 5))
    x = np.sqrt(0.5) * (y[:, np.arange(64) % 5] + rng.standard_normal((n_samples, 64)))
    return (x > rng.uniform(-1, 1, 64)).astype(np.uint8)


@lru_cache
def probit(n_samples: int, n_factors: int = 3) -> tuple[Bits, Floats, Floats, Floats]:
    return draw_probit_data(n_samples, 64, n_factors, np.random.default_rng(21))


# --- the number of components --------------------------------------------------------------------

GENERATORS: list[Callable[[int], np.random.BitGenerator]] = [
    np.random.PCG64,
    np.random.MT19937,
    np.random.Philox,
]


@pytest.mark.few(2)
@pytest.mark.parametrize("n_samples", [2000, 20_000])
@pytest.mark.parametrize("generator", GENERATORS)
def test_five_factors_are_found(n_samples: int, generator: Any) -> None:
    for seed in (0, 1):
        rng = np.random.Generator(generator(seed))
        X, *_ = draw_probit_data(n_samples, 64, 5, rng)
        for data in (X, one_factor_each(n_samples, rng)):
            state = fitted(data, seed=seed)
            assert state.params.loadings.shape == (64, 5)
            assert state.diagnostics["n_components"] == 5
            assert state.warnings == ()


def test_rare_values_need_half_counts() -> None:
    """Boundary estimates of empty cells scatter far more than those of independent features do."""
    X, *_ = draw_probit_data(2000, 64, 5, np.random.default_rng(4), max_threshold=2.0)
    found = {
        how: fitted(X, empty_cells=how).diagnostics["n_components"] for how in ("half", "none")
    }
    assert found["half"] == 5 < found["none"]


@pytest.mark.parametrize(("n_features", "correlation"), [(32, "tetrachoric"), (128, "arcsine")])
def test_the_ring_has_two_components(n_features: int, correlation: Any) -> None:
    X = ring(20_000, n_features, np.random.default_rng(0))
    params = fitted(X, correlation=correlation).params
    assert params.loadings.shape == (n_features, 2)
    np.testing.assert_allclose(params.eigenvalues[:2], n_features / 2, rtol=0.03)
    np.testing.assert_allclose((params.loadings**2).sum(axis=1), 1.0, atol=0.03)


@pytest.mark.parametrize(
    ("n_samples", "n_features", "shares", "missing"),
    [(2000, 64, (0.2, 0.8), 0.0), (20_000, 64, (0.02, 0.2), 0.0), (2000, 40, (0.3, 0.7), 0.5)],
)
def test_independent_bits_have_no_component_and_a_warning(
    n_samples: int, n_features: int, shares: tuple[float, float], missing: float
) -> None:
    rng = np.random.default_rng(5)
    X = (rng.random((n_samples, n_features)) < rng.uniform(*shares, n_features)).astype(np.uint8)
    mask = (rng.random(X.shape) >= missing).astype(np.uint8) if missing else None
    state = fitted(X, mask, null_draws=40)
    assert state.params.loadings.shape == (n_features, 0)
    assert any("no eigenvalue stands out" in notice.text for notice in state.warnings)
    codes = ClippedPCA().transform(state.params, pack_block(X[:9]), RowRandom(0))
    assert codes["mean"].shape == (9, 0)
    drawn = ClippedPCA().sample(state.params, 20_000, rng)
    np.testing.assert_allclose(drawn.mean(axis=0), state_shares(state), atol=0.02)


def state_shares(state: FitState) -> Floats:
    return norm.sf(state.params.thresholds)


def test_the_seed_moves_the_null_alone() -> None:
    X, *_ = probit(2000)
    a, b = (fitted(X, seed=seed).params for seed in (0, 1))
    assert (a.null_eigenvalues != b.null_eigenvalues).any()
    np.testing.assert_array_equal(a.correlation, b.correlation)
    np.testing.assert_array_equal(a.loadings, b.loadings)


def test_a_given_number_of_components_needs_no_null() -> None:
    X, *_ = probit(2000)
    chosen, given = fitted(X).params, fitted(X, n_components=3).params
    assert given.null_eigenvalues.shape == (0,)
    assert chosen.null_eigenvalues.shape == (64,)
    np.testing.assert_array_equal(given.loadings, chosen.loadings)


def test_more_components_than_features_are_refused() -> None:
    with pytest.raises(FitError, match=r"components is 5, but the limit is 4, the number of"):
        fitted(probit(2000)[0][:, :4], n_components=5)


# --- estimates -----------------------------------------------------------------------------------


def test_columns_are_scaled_signed_and_orthogonal() -> None:
    params = fitted(probit(2000)[0]).params
    squares = params.loadings.T @ params.loadings
    np.testing.assert_allclose(squares, np.diag(params.eigenvalues[:3]), atol=1e-9)
    largest = np.abs(params.loadings).argmax(axis=0)
    assert np.all(params.loadings[largest, [0, 1, 2]] > 0)
    assert np.all(np.diff(params.eigenvalues) <= 0)
    np.testing.assert_allclose(params.eigenvalues, np.linalg.eigvalsh(params.correlation)[::-1])


@pytest.mark.parametrize(
    ("settings", "masked"),
    [
        ({"n_components": None}, False),
        ({"n_components": 2}, True),
        ({"n_components": 2, "correlation": "arcsine"}, True),
        ({"n_components": None, "repair": "shrink", "empty_cells": "none"}, True),
    ],
)
def test_frequencies_are_repeated_rows_in_every_number(
    settings: dict[str, Any], masked: bool
) -> None:
    X, rng = probit(2000)[0][:400, :12], np.random.default_rng(8)
    observed = (rng.random(X.shape) < 0.9).astype(np.uint8) if masked else None
    data = DenseData(X, observed, weights=rng.integers(0, 20, len(X)))
    copies = replace(data.take_rows(np.repeat(np.arange(len(X)), data.weights)), weights=None)
    weighted, repeated = (
        fit_model(ClippedPCA(**settings), make_memory_rows(rows), SerialExecutor())
        for rows in (data, copies)
    )
    for name, expected in vars(repeated.params).items():
        assert_array_equal(getattr(weighted.params, name), expected, err_msg=name)
    assert weighted.diagnostics == repeated.diagnostics
    assert weighted.warnings == repeated.warnings
    one_each = fit_model(
        ClippedPCA(**settings), make_memory_rows(replace(data, weights=None)), SerialExecutor()
    )
    assert not np.allclose(weighted.params.correlation, one_each.params.correlation, atol=0.02)


def fit_survey(data: DenseData, **settings: Any) -> FitState:
    rows = make_memory_rows(data, kind="sampling")
    return fit_model(ClippedPCA(n_components=2, **settings), rows, SerialExecutor())


@pytest.mark.parametrize(("correlation", "masked"), [("tetrachoric", True), ("arcsine", False)])
def test_a_survey_has_the_estimates_of_frequencies_without_errors(
    correlation: str, masked: bool
) -> None:
    X, rng = probit(20_000)[0][:2000, :12], np.random.default_rng(8)
    observed = (rng.random(X.shape) < 0.9).astype(np.uint8) if masked else None
    data = DenseData(X, observed, weights=rng.integers(1, 20, len(X)))
    survey = fit_survey(replace(data, weights=data.weights / 7), correlation=correlation)
    rows = make_memory_rows(data)
    counted = fit_model(ClippedPCA(n_components=2, correlation=correlation), rows, SerialExecutor())
    assert (counted.params.status == PairStatus.PLAIN).all()
    for name in ("correlation", "thresholds", "loadings"):  # weights are rounded to 2**-20
        expected = getattr(counted.params, name)
        assert_allclose(getattr(survey.params, name), expected, atol=1e-4, err_msg=name)
    for name in ("loadings_error", "thresholds_error", "correlation_error"):
        assert getattr(survey.params, name) is None
    texts = [warning.text for warning in survey.warnings]
    expected_texts = [warning.text for warning in counted.warnings]
    omitted = ["there are no standard errors for sampling weights"]
    assert texts == expected_texts + (omitted if correlation == "tetrachoric" else [])


def test_weights_undo_unequal_probabilities_of_a_survey() -> None:
    X = probit(20_000)[0][:, :12]
    population = fitted(X, n_components=2).params
    chance = np.where(X[:, :6].sum(axis=1) > 3, 0.8, 0.2)
    chosen = np.random.default_rng(9).random(len(X)) < chance
    found = fit_survey(DenseData(X[chosen], weights=1 / chance[chosen])).params
    plain = fitted(X[chosen], n_components=2).params
    pairs_that_choose = np.triu_indices(6, 1)
    shifts, moves = (
        [(getattr(a, name) - getattr(population, name))[part].mean() for a in (found, plain)]
        for name, part in (("correlation", pairs_that_choose), ("thresholds", slice(6)))
    )
    assert np.abs([shifts[0], moves[0]]).max() < 0.02
    assert np.abs([shifts[1], moves[1]]).min() > 0.05


def test_a_survey_does_not_choose_the_number_of_components() -> None:
    data = DenseData(probit(2000)[0], weights=np.full(2000, 0.5))
    with pytest.raises(FitError, match="cannot be chosen with sampling weights"):
        fit_model(ClippedPCA(), make_memory_rows(data, kind="sampling"), SerialExecutor())


def test_segments_are_pooled() -> None:
    X, *_ = probit(2000)
    split = DenseData(X, None, np.random.default_rng(0).integers(0, 4, len(X)))
    apart = fit_model(ClippedPCA(), make_memory_rows(split, [500, 1500]), SerialExecutor())
    np.testing.assert_array_equal(apart.params.correlation, fitted(X).params.correlation)


@pytest.mark.parametrize("correlation", ["tetrachoric", "arcsine"])
def test_strips_and_the_partial_solver_change_nothing(
    correlation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, *_ = probit(2000)
    whole = fitted(X, correlation=correlation).params
    monkeypatch.setattr(correlations, "_PAIRS_PER_TASK", 500)
    monkeypatch.setattr(model, "N_LEADING", 8)
    monkeypatch.setattr(linalg, "FULL_SOLVER", 20)
    part = fitted(X, correlation=correlation).params
    np.testing.assert_array_equal(part.correlation, whole.correlation)
    np.testing.assert_allclose(part.eigenvalues, whole.eigenvalues[:8], rtol=1e-9)
    np.testing.assert_allclose(part.null_eigenvalues, whole.null_eigenvalues[:8], rtol=1e-9)
    np.testing.assert_allclose(part.loadings, whole.loadings, atol=1e-7)


def balanced(rng: np.random.Generator) -> Bits:
    """Rows with exactly one half of ones in every column: each row and its complement."""
    X, *_ = draw_probit_data(4000, 20, 2, rng, max_threshold=0.0)
    return np.vstack([X, 1 - X])


def test_arcsine_is_tetrachoric_where_margins_are_one_half() -> None:
    X = balanced(np.random.default_rng(1))
    one, other = (fitted(X, correlation=name) for name in ("arcsine", "tetrachoric"))
    np.testing.assert_allclose(one.params.correlation, other.params.correlation, atol=1e-9)
    np.testing.assert_array_equal(one.params.thresholds, other.params.thresholds)
    assert one.warnings == other.warnings == ()


def test_arcsine_takes_thresholds_of_zero_and_warns_where_they_are_not() -> None:
    X, loadings, thresholds, _ = probit(20_000)
    state = fitted(X, correlation="arcsine")
    np.testing.assert_array_equal(state.params.thresholds, np.zeros(64))
    (notice,) = state.warnings
    assert "arcsine assumes that half of the values are ones" in notice.text
    uneven = np.flatnonzero(np.abs(X.mean(axis=0) - 0.5) > 0.1)
    assert notice.features == tuple(uneven.tolist())
    truth, even = correlation_of(loadings), np.abs(thresholds) < 0.2
    of_even = np.ix_(even, even)
    np.testing.assert_allclose(state.params.correlation[of_even], truth[of_even], atol=0.07)
    bias = {
        name: np.abs(fitted(X, correlation=name).params.correlation - truth).mean()
        for name in ("arcsine", "tetrachoric")
    }
    assert bias["arcsine"] > 2 * bias["tetrachoric"]


def test_repair_gives_the_nearest_correlation_and_says_how_far() -> None:
    X = probit(2000)[0][:80, :30]
    plain, repaired = (fitted(X, n_components=2, repair=how) for how in ("none", "nearest"))
    assert np.linalg.eigvalsh(plain.params.correlation)[0] < -0.1
    assert np.linalg.eigvalsh(repaired.params.correlation)[0] > -1e-7
    np.testing.assert_array_equal(repaired.params.correlation.diagonal(), 1.0)
    moved = np.linalg.norm(repaired.params.correlation - plain.params.correlation)
    assert repaired.diagnostics["repair_distance"] == pytest.approx(moved)
    assert plain.diagnostics["repair_distance"] == 0.0
    assert moved > 0.1


def test_shrinking_gives_the_least_that_is_definite() -> None:
    X, *_ = probit(60)
    plain, repaired = (
        fitted(X, n_components=2, repair=how, empty_cells="none") for how in ("none", "shrink")
    )
    lowest = np.linalg.eigvalsh(plain.params.correlation)[0]
    assert lowest < -0.1
    assert np.linalg.eigvalsh(repaired.params.correlation)[0] == pytest.approx(0, abs=1e-9)
    share = -lowest / (1 - lowest)
    expected = (1 - share) * plain.params.correlation + share * np.eye(64)
    np.testing.assert_allclose(repaired.params.correlation, expected, atol=1e-12)
    moved = np.linalg.norm(expected - plain.params.correlation)
    assert repaired.diagnostics["repair_distance"] == pytest.approx(moved)


# --- awkward features ----------------------------------------------------------------------------


def test_kept_constant_features_have_loadings_of_zero() -> None:
    X = probit(2000)[0][:, :6].copy()
    X[:, 1], X[:, 4] = 0, 1
    for n_components in (2, 6):
        state = fitted(X, n_components=n_components, constant_features="keep")
        np.testing.assert_array_equal(state.params.loadings[[1, 4]], 0.0)
        # Components are those of the four features that vary, not the axes of those that do not.
        assert (np.abs(state.params.loadings[:, :4]).max(axis=0) > 0.1).all()
        assert state.warnings[0].features == (1, 4)
        assert state.diagnostics["pairs_constant_feature"] == 9
        codes = np.random.default_rng(0).standard_normal((50, n_components))
        shares = ClippedPCA().reconstruct(state.params, codes)
        assert shares[:, 1].max() < 1e-3
        assert shares[:, 4].min() > 1 - 1e-3


def test_constant_features_are_refused_with_the_remedy() -> None:
    X = probit(2000)[0][:, :6].copy()
    X[:, 3] = 1
    with pytest.raises(FitError, match=r"features are constant: 3\. .*constant_features=.keep"):
        fitted(X)


def test_pairs_that_had_to_be_guessed_are_told() -> None:
    X = probit(2000)[0][:, :6].copy()
    mask = np.ones_like(X)
    mask[:1000, 1] = 0
    mask[1000:, 2] = 0  # never seen with 1
    X[1000:, 3] = 1  # does not vary where 1 is seen
    X[:, 5] = X[:, 4]
    state = fitted(X, mask, n_components=1, empty_cells="none")
    found = {notice.features: notice.text for notice in state.warnings}
    assert "pairs never observed together, taken as uncorrelated: 1" in found[1, 2]
    assert "pairs that do not vary where both are observed, taken as uncorrelated: 1" in found[1, 3]
    assert any("pairs with an empty cell: 1" in notice.text for notice in state.warnings)
    assert "pairs of features that are equal wherever both are observed, 1" in found[4, 5]
    status = state.params.status
    assert status[1, 2] == status[2, 1] == PairStatus.NO_OBSERVATIONS
    assert status[1, 3] == PairStatus.CONSTANT_FEATURE
    assert status[4, 5] == PairStatus.EMPTY_CELL
    assert state.params.correlation[1, 2] == state.params.correlation[1, 3] == 0
    assert state.params.correlation[4, 5] == MAX_CORRELATION
    assert state.diagnostics["pairs_plain"] == 12


# --- the fitted model ----------------------------------------------------------------------------


def model_of(loadings: Floats, thresholds: Floats) -> ClippedPCAParams:
    none = np.zeros(0)
    return ClippedPCAParams(loadings, none, thresholds, none)


LOADINGS = np.array([[0.8, 0.1], [-0.6, 0.5], [0.2, 0.9], [0.0, 0.0], [0.5, -0.7]])
THRESHOLDS = np.array([0.3, -0.5, 0.0, 1.2, -0.1])
MODEL, PARAMS = ClippedPCA(n_components=2), model_of(LOADINGS, THRESHOLDS)


def test_reconstruction_is_the_probability_of_the_latent_exceeding_its_threshold() -> None:
    codes = np.random.default_rng(0).standard_normal((30, 2))
    noise = np.sqrt(1 - (LOADINGS**2).sum(axis=1))
    expected = norm.sf(THRESHOLDS, loc=codes @ LOADINGS.T, scale=noise)
    np.testing.assert_allclose(MODEL.reconstruct(PARAMS, codes), expected, rtol=1e-12)


def test_rows_of_loadings_longer_than_one_are_shortened() -> None:
    params = model_of(np.array([[1.2, 0.5], [0.6, 0.0]]), np.array([0.4, 0.0]))
    direction = np.array([1.2, 0.5]) / 1.3
    codes = np.random.default_rng(0).standard_normal((30, 2))
    length, noise = np.sqrt(1 - MIN_NOISE), np.sqrt(MIN_NOISE)
    expected = norm.sf(0.4, loc=length * codes @ direction, scale=noise)
    np.testing.assert_allclose(MODEL.reconstruct(params, codes)[:, 0], expected, rtol=1e-9)
    drawn = MODEL.sample(params, 100_000, np.random.default_rng(1))
    assert drawn[:, 0].mean() == pytest.approx(norm.sf(0.4), abs=0.006)


@pytest.mark.parametrize("masked", [False, True])
def test_codes_are_posterior_moments(masked: bool) -> None:
    """Against the posterior summed over a fine grid of codes."""
    rng = np.random.default_rng(3)
    X = rng.integers(0, 2, (20, 5), dtype=np.uint8)
    mask = rng.integers(0, 2, X.shape, dtype=np.uint8) if masked else np.ones_like(X)
    axis = np.linspace(-6, 6, 241)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    z = (grid @ LOADINGS.T - THRESHOLDS) / np.sqrt(1 - (LOADINGS**2).sum(axis=1))
    log_likelihood = (X * mask) @ norm.logcdf(z).T + ((1 - X) * mask) @ norm.logcdf(-z).T
    posterior = np.exp(log_likelihood - (grid**2).sum(axis=1) / 2)
    posterior /= posterior.sum(axis=1, keepdims=True)
    mean, second = posterior @ grid, posterior @ grid**2
    codes = MODEL.transform(PARAMS, pack_block(X, mask if masked else None), RowRandom(0))
    np.testing.assert_allclose(codes["mean"], mean, atol=0.02)
    np.testing.assert_allclose(codes["variance"], second - mean**2, atol=0.02)


N_FEATURES = 150
SERIAL = SerialExecutor()


@pytest.mark.parametrize("levels", [False, True])
def test_pairs_with_an_empty_cell_have_no_errors(levels: bool) -> None:
    """With a correlation of −0.5, two rare features are hardly ever 1 together."""
    rng = np.random.default_rng(0)
    C = np.eye(6) + 0.3 * (1 - np.eye(6))
    C[0, 1:] = C[1:, 0] = 0
    C[0, 1] = C[1, 0] = -0.5
    x = rng.standard_normal((1000, 6)) @ np.linalg.cholesky(C).T
    X = (x > [1.9, 1.9, 0, 0, 0, 0]).astype(np.uint8)
    features = [Feature(f"f{i}") for i in range(6)]
    if levels:
        X = np.column_stack([X[:, :5], x[:, 5:] > -0.5, x[:, 5:] > 0.5]).astype(np.uint8)
        features[5] = Feature("f5", ("a", "b", "c"))
    adapted: Any = ClippedPCA(n_components=1).with_structure(Structure(features=tuple(features)))
    params = fit_model(adapted, make_memory_rows(DenseData(X)), SerialExecutor()).params
    assert params.status[0, 1] == PairStatus.EMPTY_CELL
    assert abs(params.correlation[0, 1]) < 0.4
    np.testing.assert_array_equal(np.argwhere(np.isnan(params.correlation_error)), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(params.loadings_error)), [0, 1])
