"""Loading patterns of items with several levels, against the literal log-likelihood on a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.data.features import Feature, make_binary_features
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.pipeline.models.latent_trait import test_ordinal, test_patterns
from tests.pipeline.models.latent_trait.test_ordinal import (
    Levels,
    make_data,
    make_features,
    use_shared_nodes,
)
from tests.pipeline.models.latent_trait.test_patterns import Entries, make_pattern
from tests.support.strategies import make_memory_blocks, make_memory_rows

Floats = NDArray[np.float64]

N_LEVELS = [3, 4, 3, 3, 4, 3]
FEATURES = make_features([f"i{k + 1}" for k in range(6)], N_LEVELS)
SIMPLE = ["10"] * 3 + ["01"] * 3
AXIS = np.linspace(-5.5, 5.5, 19)
GRID = np.stack(np.meshgrid(AXIS, AXIS, indexing="ij"), axis=-1).reshape(-1, 2)


def simulate(n_rows: int = 300, correlation: float = 0.5) -> Levels:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((n_rows, 2))
    x[:, 1] = correlation * x[:, 0] + np.sqrt(1 - correlation**2) * x[:, 1]
    slopes = np.array([1.2, 1.6, 1.0, 1.4, 1.1, 1.5])
    y = slopes * np.repeat(x, 3, axis=1) + rng.logistic(size=(n_rows, 6))
    cuts = [np.linspace(-1.2, 1.0, m - 1) for m in N_LEVELS]
    return np.stack([np.searchsorted(c, own) for c, own in zip(cuts, y.T, strict=True)]).T


def fit(
    levels: Levels,
    entries: Entries,
    features: tuple[Feature, ...] = FEATURES,
    columns: Any = None,
    **settings: Any,
) -> FitState:
    structure = Structure(features=features, pattern=make_pattern(entries))
    settings = {"tol": 1e-11, "n_components": len(entries[0]), **settings}
    model = LatentTrait(**settings).with_structure(structure)
    rows = make_memory_rows(make_data(levels, features, **(columns or {})))
    return fit_model(model, rows, SerialExecutor())


def tabulate_probabilities(weights: Floats, offsets: Floats, r: float, kind: str) -> Floats:
    """Return P of the levels of all items at the points of traits with correlation r."""
    points = GRID @ np.linalg.cholesky([[1, r], [r, 1]]).T
    parts, first = [], 0
    for item, n_levels in enumerate(N_LEVELS):
        slope, own = points @ weights[item], offsets[first : first + n_levels - 1]
        first += n_levels - 1
        if kind == "graded":
            above = scipy.special.expit(slope + own[:, None])
            padded = np.vstack([np.ones(len(GRID)), above, np.zeros(len(GRID))])
            parts.append(padded[:-1] - padded[1:])
        else:
            forms = np.vstack([np.zeros(len(GRID)), np.outer(range(1, n_levels), slope)])
            parts.append(scipy.special.softmax(forms + np.append(0, own)[:, None], axis=0))
    return np.vstack(parts)


def sum_log_likelihood(
    levels: Levels, weights: Floats, offsets: Floats, r: float, kind: str
) -> float:
    P, density = (
        tabulate_probabilities(weights, offsets, r, kind),
        np.exp(-0.5 * (GRID**2).sum(axis=1)),
    )
    firsts = np.cumsum([0, *N_LEVELS[:-1]])
    likelihoods = P[levels + firsts].prod(axis=1) @ density / density.sum()
    return float(np.log(likelihoods).sum())


def compute_hessian(function: Callable[[Floats], float], at: Floats, h: float = 2e-3) -> Floats:
    steps = h * np.eye(len(at))
    center, single = function(at), np.array([function(at + step) for step in steps])
    hessian = np.zeros((len(at),) * 2)
    for a in range(len(at)):
        for b in range(a + 1):
            other = function(at - steps[a]) if a == b else function(at + steps[a] + steps[b])
            value = single[a] + other - 2 * center if a == b else other - single[a] - single[b]
            hessian[a, b] = hessian[b, a] = (value if a == b else value + center) / h**2
    return hessian


def standardize_slopes(weights: Floats, correlation: Floats, rest: Any) -> Floats:
    """Return the loadings of the responses Λx + e, and the share of variance due to x."""
    explained = np.diag(weights @ correlation @ weights.T)
    total = explained + rest
    return np.column_stack([weights / np.sqrt(total)[:, None], explained / total]).ravel()


def check_loadings(
    params: Any, standardize: Callable[[Floats], Floats], at: Floats, covariance: Floats
) -> None:
    """Check the standardized loadings, and their errors by numerical derivatives."""
    found = np.column_stack([params.loadings, params.communality]).ravel()
    np.testing.assert_allclose(found, standardize(at), atol=1e-9)
    steps = 1e-5 * np.eye(len(at))
    slopes = np.array([standardize(at + step) - standardize(at - step) for step in steps]) / 2e-5
    expected = np.sqrt(np.einsum("ai,ab,bi->i", slopes, covariance, slopes))
    errors = np.column_stack([params.loadings_error, params.communality_error]).ravel()
    np.testing.assert_allclose(errors, expected, rtol=0.02, atol=1e-9)


def stack_parameters(state: FitState, entries: Entries, suffix: str = "") -> Floats:
    """Return slopes that differ, offsets of planes and, if there is one, the correlation."""
    params, slopes = state.params, make_pattern(entries).slopes
    _, places = np.unique(slopes[slopes >= 0], return_index=True)
    weights = getattr(params, f"weights{suffix}")[slopes >= 0][places]
    correlation = getattr(params, f"trait_covariance{suffix}")[0, 1, 0]
    free = [correlation] if params.trait_covariance_error[0, 1, 0] else []
    return np.concatenate([weights, getattr(params, f"level_offsets{suffix}"), free])


def unpack_parameters(values: Floats, entries: Entries) -> tuple[Floats, Floats, float]:
    slopes = make_pattern(entries).slopes
    numbers, n_planes = np.unique(slopes[slopes >= 0]), sum(N_LEVELS) - 6
    weights = np.zeros(slopes.shape)
    weights[slopes >= 0] = values[np.searchsorted(numbers, slopes[slopes >= 0])]
    offsets = values[len(numbers) : len(numbers) + n_planes]
    return weights, offsets, float(values[-1]) if len(values) > len(numbers) + n_planes else 0.0


@pytest.mark.parametrize(
    ("kind", "entries", "settings"),
    [
        ("graded", ["10", "a0", "11", "0a", "01", "01"], {}),
        ("graded", ["a0", "a0", "10", "01", "01", "01"], {}),
        ("graded", SIMPLE, {"prior_precision": 0.3}),
        ("graded", ["a0", "a0", "10", "01", "01", "01"], {"prior_precision": 0.3}),
        ("partial-credit", ["a0", "a0", "10", "01", "01", "11"], {}),
        ("partial-credit", ["a0", "a0", "10", "01", "01", "01"], {"correlations": "none"}),
    ],
    ids=["equal across traits", "equal", "prior", "equal, prior", "partial", "uncorrelated"],
)
def test_fits_are_maxima_with_the_errors_of_a_numerical_hessian(
    kind: str, entries: Entries, settings: dict[str, Any]
) -> None:
    levels = simulate()
    state = fit(levels, entries, items=kind, **settings)
    precision = settings.get("prior_precision", 0.0)
    n_slopes = len(np.unique(make_pattern(entries).slopes)) - 1

    def objective(values: Floats) -> float:
        penalty = 0.5 * precision * float((values[:n_slopes] ** 2).sum())
        return sum_log_likelihood(levels, *unpack_parameters(values, entries), kind) - penalty

    at, found = stack_parameters(state, entries), state.diagnostics["fit_statistics"]
    assert found["n_parameters"] == len(at)
    nats = objective(at) + 0.5 * precision * (at[:n_slopes] ** 2).sum()
    assert found["log_likelihood"] == pytest.approx(nats, abs=1e-6 * len(levels))
    covariance = np.linalg.inv(-compute_hessian(objective, at))
    steps = 1e-4 * np.eye(len(at))
    gradient = [(objective(at + step) - objective(at - step)) / 2e-4 for step in steps]
    assert np.abs(covariance @ gradient).max() < 1e-3
    errors = stack_parameters(state, entries, "_error")
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=0.01)
    assert not state.params.weights_error[make_pattern(entries).slopes < 0].any()
    if kind != "graded":
        assert state.params.standardized is None
        return

    def standardize(values: Floats) -> Floats:
        weights, _, r = unpack_parameters(values, entries)
        return standardize_slopes(weights, np.array([[1, r], [r, 1]]), 1.702**2)

    check_loadings(state.params, standardize, at, covariance)


def test_an_optimizer_finds_the_same_parameters() -> None:
    levels, entries = simulate(), ["a0", "a0", "10", "01", "01", "01"]
    state = fit(levels, entries)
    at = stack_parameters(state, entries)

    def objective(values: Floats) -> float:
        nats = sum_log_likelihood(levels, *unpack_parameters(values, entries), "graded")
        return -nats / len(levels)

    start = np.concatenate([np.ones(5), 0.8 * at[5:-1], [0.0]])
    found = scipy.optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-5})
    assert -found.fun * len(levels) == pytest.approx(
        state.diagnostics["fit_statistics"]["log_likelihood"], abs=1e-6 * len(levels)
    )
    np.testing.assert_allclose(at, found.x, atol=2e-3)


@pytest.mark.parametrize(
    ("entries", "settings"),
    [
        (SIMPLE, {}),
        (["a0", "10", "10", "0a", "01", "01"], {}),
        (["a0", "a0", "10", "01", "01", "01"], {"prior_precision": 0.2}),
        (["a0", "a0", "10", "0b", "0b", "01"], {"correlations": "none", "errors": "sandwich"}),
    ],
)
def test_binary_items_are_as_in_the_binary_model(
    entries: Entries, settings: dict[str, Any]
) -> None:
    data = test_patterns.simulate()
    binary = test_patterns.fit(data, entries, **settings)
    structure = Structure(features=make_binary_features("abcdef"), pattern=make_pattern(entries))
    model = use_shared_nodes(LatentTrait(tol=1e-10, **settings).with_structure(structure))
    own = fit_model(model, make_memory_rows(data), SerialExecutor())
    for name in ("weights", "trait_covariance", "component_correlation"):
        ours, theirs = (getattr(state.params, name) for state in (own, binary))
        np.testing.assert_allclose(ours, theirs, atol=2e-4)
    np.testing.assert_allclose(own.params.level_offsets, binary.params.offsets, atol=2e-4)
    for name in ("weights_error", "trait_covariance_error"):
        ours, theirs = (getattr(state.params, name) for state in (own, binary))
        np.testing.assert_allclose(ours, theirs, rtol=2e-3)
    ours, theirs = (state.diagnostics["fit_statistics"] for state in (own, binary))
    assert ours["n_parameters"] == theirs["n_parameters"]
    for name in ("log_likelihood", "reliability", "trait_covariance", "aic"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4)


@pytest.mark.parametrize("kind", ["graded", "partial-credit"])
def test_one_trait_is_that_of_the_model_without_a_pattern(kind: str) -> None:
    levels = simulate()
    own = fit(levels, ["1"] * 6, items=kind)
    plain = test_ordinal.fit(levels, FEATURES, items=kind, tol=1e-11)
    for name in ("weights", "level_offsets", "level_difficulty", "weights_error", "s_x2"):
        ours, theirs = (getattr(state.params, name) for state in (own, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    ours, theirs = (state.diagnostics["fit_statistics"] for state in (own, plain))
    for name in ("log_likelihood", "n_parameters", "m2", "m2_df", "marginal_reliability"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4)


def test_patterns_that_only_choose_axes_fit_as_two_free_traits() -> None:
    """A zero, or two zeros and a correlation, take the place of the rotation."""
    levels = simulate(600)
    settings = {"tol": 1e-10, "n_components": 2}
    plain = test_ordinal.fit(levels, FEATURES, **settings)
    for entries, correlations in (
        (["10"] + ["11"] * 5, "none"),
        (["10"] + ["11"] * 4 + ["01"], "free"),
    ):
        own = fit(levels, entries, correlations=correlations, tol=1e-10)
        ours, theirs = (state.diagnostics["fit_statistics"] for state in (own, plain))
        assert ours["n_parameters"] == theirs["n_parameters"]
        for name in ("log_likelihood", "m2", "srmsr"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)
        (block,) = make_memory_blocks(make_data(levels, FEATURES))
        nats = LatentTrait().log_likelihood(own.params, block, RowRandom(0)).nats.sum()
        assert nats == pytest.approx(ours["log_likelihood"], abs=1e-4)


def test_rating_scales_have_one_slope_per_trait() -> None:
    levels = np.minimum(simulate(), 2)
    features = make_features("abcdef", [3] * 6)
    state = fit(levels, ["a0"] * 3 + ["0b"] * 3, features, items="rating-scale")
    # 2 slopes, 6 locations, a common step and a correlation
    assert state.diagnostics["fit_statistics"]["n_parameters"] == 10
    assert len(np.unique(state.params.weights)) == 3
    message = "a and b have different entries for 'A'"
    with pytest.raises(FitError, match=message):
        fit(levels, SIMPLE, features, items="rating-scale")


def test_codes_and_samples_have_the_correlation_of_the_traits() -> None:
    levels = simulate(3000, 0.6)
    state = fit(levels, SIMPLE, tol=1e-7)
    params = state.params
    error = params.trait_covariance_error[0, 0, 1]
    assert abs(params.trait_covariance[0, 0, 1] - 0.6) < 3 * error
    assert error < 0.04
    np.testing.assert_array_equal(params.component_correlation, params.trait_covariance[0])
    data = make_data(levels, FEATURES)
    (block,) = make_memory_blocks(data)
    model = LatentTrait()
    codes = model.transform(params, block, RowRandom(0))
    second = codes["covariance"].mean(axis=0) + np.cov(codes["mean"].T)
    np.testing.assert_allclose(second, params.trait_covariance[0], atol=0.01)
    drawn = model.sample(params, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.corrcoef(data.X.T), atol=0.06)


def test_frequencies_are_repeated_rows() -> None:
    levels = simulate()
    levels[::9, 1] = -1
    state, twice = fit(levels, SIMPLE), fit(np.repeat(levels, 2, axis=0), SIMPLE)
    weighted = fit(levels, SIMPLE, columns={"weights": np.full(len(levels), 2)})
    for name in ("weights", "level_offsets", "weights_error", "trait_covariance_error"):
        ours, theirs = (getattr(s.params, name) for s in (weighted, twice))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    ours = weighted.params.trait_covariance_error[0, 0, 1] * np.sqrt(2)
    assert ours == pytest.approx(state.params.trait_covariance_error[0, 0, 1], rel=1e-3)


def test_sampling_weights_and_clusters_have_the_sandwich() -> None:
    """Two copies of each row, in a cluster, are as informative as one row."""
    levels = simulate()
    structure = Structure(features=FEATURES, pattern=make_pattern(SIMPLE))
    model = LatentTrait(tol=1e-10).with_structure(structure)
    columns = {"weights": np.ones(600), "clusters": np.repeat(np.arange(300), 2)}
    data = make_data(np.repeat(levels, 2, axis=0), FEATURES, **columns)
    clustered = fit_model(model, make_memory_rows(data, kind="sampling"), SerialExecutor())
    plain = fit(levels, SIMPLE, tol=1e-10, errors="sandwich")
    for name in ("weights_error", "level_offsets_error", "trait_covariance_error"):
        ours, theirs = (getattr(state.params, name) for state in (clustered, plain))
        np.testing.assert_allclose(ours, theirs, rtol=0.003)  # n / (n − 1)
    louis = fit(levels, SIMPLE, tol=1e-10).params.trait_covariance_error[0, 0, 1]
    assert plain.params.trait_covariance_error[0, 0, 1] == pytest.approx(louis, rel=0.2)


@pytest.mark.matrix
def test_zeros_instead_of_a_rotation_agree_with_mirt() -> None:
    levels, features = test_ordinal.read_levels("bfi_EN10")
    entries = ["10"] + ["11"] * 4 + ["01"] + ["11"] * 4
    state = fit(levels, entries, features, correlations="free", tol=1e-8)
    nats = state.diagnostics["fit_statistics"]["log_likelihood"]
    assert nats == pytest.approx(-15413.18746, abs=1e-3)


def test_a_pinned_item_counts_as_one_without_loadings() -> None:
    levels = simulate()
    levels[:, 0] = 1
    state = fit(levels, SIMPLE, constant_features="keep")
    assert not state.params.weights[0].any()
    # 5 slopes, 12 offsets of the other items, and a correlation
    assert state.diagnostics["fit_statistics"]["n_parameters"] == 18
    with pytest.raises(FitError, match="only i2 and i3 load on the trait 'A'"):
        fit(levels, SIMPLE, constant_features="keep", correlations="none")


def test_a_warm_start_stays_at_the_maximum() -> None:
    data = make_data(simulate(), FEATURES)
    structure = Structure(features=FEATURES, pattern=make_pattern(SIMPLE))
    model = LatentTrait(tol=1e-9).with_structure(structure)
    rows = make_memory_rows(data)
    state = fit_model(model, rows, SerialExecutor())
    first = collect_first_statistics(model, rows, SerialExecutor(), 0)
    begun = model.warm_start(initialize_fit(model, first, 0), state.params)
    again = fit_model(model, rows, SerialExecutor(), state=begun)
    for name in ("weights", "level_offsets", "trait_covariance"):
        ours, theirs = (getattr(s.params, name) for s in (again, state))
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
    assert again.iteration < state.iteration / 2


@pytest.mark.parametrize(
    ("entries", "settings", "message"),
    [
        (SIMPLE, {"items": "nominal"}, "Nominal items have a slope per level, which pattern"),
        (["11"] * 6, {}, "a constraint is missing. Write 0 for i1 in 'B'"),
        (SIMPLE, {"guessing": "item"}, 'guessing="item" cannot be combined with features'),
        (SIMPLE, {"rotation": "varimax"}, 'rotation="varimax" cannot be combined with pattern'),
    ],
)
def test_patterns_that_cannot_be_fitted_are_refused(
    entries: Entries, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FitError, match=message):
        fit(simulate(10), entries, **settings)
