"""Loading patterns, against R's mirt and against sums over a fine grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.data.features import make_binary_features
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.loading_pattern import LoadingPattern, make_loading_pattern, match_traits
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.pipeline.models.latent_trait.test_confirmatory import read_mirt, read_rows
from tests.support.data import find_reference
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Entries = Sequence[str]
"""Entries of one item per text, such as `10`."""

SIMPLE = ["10"] * 3 + ["01"] * 3


def make_pattern(entries: Entries) -> LoadingPattern:
    return LoadingPattern(tuple("ABCDEFGHIJK"[: len(entries[0])]), tuple(map(tuple, entries)))


def fit(
    data: DenseData, entries: Entries, groups: tuple[str, ...] = (), **settings: Any
) -> FitState:
    features = tuple(f"i{k + 1}" for k in range(len(entries)))
    structure = Structure(groups, make_binary_features(features), pattern=make_pattern(entries))
    model = LatentTrait(**{"tol": 1e-10, **settings}).with_structure(structure)
    return fit_model(model, make_memory_rows(data), SerialExecutor())


def check_against_mirt(state: FitState, path: str, items: Sequence[str], atol: float) -> None:
    expected, params = read_mirt(path), state.params
    q = params.weights.shape[1]
    found, errors, values = [], [], []
    for i, item in enumerate(items):
        for k in range(q):
            values.append(expected["all", item, f"a{k + 1}"])
            found.append(params.weights[i, k])
            errors.append(params.weights_error[i, k])
        values.append(expected["all", item, "d"])
        found.append(params.offsets[i])
        errors.append(params.offsets_error[i])
    for a in range(q):
        for b in range(a):
            values.append(expected["all", "GROUP", f"COV_{a + 1}{b + 1}"])
            found.append(params.trait_covariance[0, a, b])
            errors.append(params.trait_covariance_error[0, a, b])
    value, error, is_estimated = np.array(values).T
    np.testing.assert_allclose(found, value, atol=atol)
    is_free = is_estimated == 1
    np.testing.assert_allclose(np.array(errors)[is_free], error[is_free], rtol=0.01)
    assert not np.array(errors)[~is_free].any()


@pytest.mark.parametrize(
    ("name", "entries", "log_likelihood"),
    [
        ("sim_q2", ["10"] * 4 + ["11"] + ["01"] * 4 + ["11"], -6007.12462),
        ("verbal_aggression_want_do", ["10", "01"] * 12, -3965.26017),
    ],
)
def test_correlated_traits_agree_with_mirt(
    name: str, entries: Entries, log_likelihood: float
) -> None:
    data, structure = read_rows(name)
    state = fit(data, entries)
    statistics = state.diagnostics["fit_statistics"]
    assert statistics["log_likelihood"] == pytest.approx(log_likelihood, abs=1e-3)
    check_against_mirt(state, f"05_loading_patterns/{name}_fit.csv", structure.feature_names, 1e-3)
    (block,) = make_memory_blocks(data)
    codes = LatentTrait().transform(state.params, block, RowRandom(0))
    table = np.genfromtxt(
        find_reference(f"05_loading_patterns/{name}_EAP.csv"), delimiter=",", skip_header=1
    )
    np.testing.assert_allclose(codes["mean"], table[:, 1:3], atol=1e-3)
    np.testing.assert_allclose(np.sqrt(codes["variance"]), table[:, 3:], atol=1e-3)


def read_bifactor_entries(name: str) -> list[str]:
    table = np.genfromtxt(
        find_reference(f"05_loading_patterns/{name}_specific.csv"), delimiter=",", skip_header=1
    )
    return ["1" + "".join(str(int(k == j)) for k in (1, 2, 3)) for j in table[:, 1].astype(int)]


@pytest.mark.parametrize(
    ("name", "log_likelihood"),
    [
        ("sim_bifactor12", -6824.84420),
        pytest.param("SAT12", -9435.05102, marks=pytest.mark.matrix),
    ],
)
def test_bifactor_patterns_agree_with_mirt(name: str, log_likelihood: float) -> None:
    data, structure = read_rows(name)
    entries = read_bifactor_entries(name)
    state = fit(data, entries, tol=1e-12)  # the optimum is flat
    statistics = state.diagnostics["fit_statistics"]
    assert statistics["log_likelihood"] == pytest.approx(log_likelihood, abs=1e-3)
    assert statistics["n_parameters"] == 3 * len(entries)
    # mirt's slopes of SAT12 are of few nodes.
    check_against_mirt(state, f"05_loading_patterns/{name}_fit.csv", structure.feature_names, 3e-3)
    (block,) = make_memory_blocks(data)
    nats = LatentTrait(n_components=4).log_likelihood(state.params, block, RowRandom(0)).nats
    assert nats.sum() == pytest.approx(statistics["log_likelihood"], abs=1e-3)


def simulate_testlets() -> tuple[Bits, Bits]:
    """Values and mask."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((600, 4))
    logits = 1.2 * x[:, :1] + np.repeat(x[:, 1:], 4, axis=1)
    mask = (rng.random(logits.shape) < 0.9).astype(np.uint8)
    return (rng.logistic(size=logits.shape) < logits) & mask, mask


def test_bifactor_patterns_take_weights_groups_and_missing_values() -> None:
    (X, mask), entries = simulate_testlets(), ["1a00"] * 4 + ["10b0"] * 4 + ["100c"] * 4
    data = DenseData(X, mask)
    alone = fit(data, entries)
    twice = DenseData(np.vstack([X, X]), np.vstack([mask, mask]))
    weighted = fit(DenseData(X, mask, weights=np.full(600, 2)), entries)
    repeated = fit(twice, entries)
    for state in (weighted, repeated):
        np.testing.assert_allclose(state.params.weights, alone.params.weights, atol=1e-5)
        errors = alone.params.weights_error / np.sqrt(2)
        np.testing.assert_allclose(state.params.weights_error, errors, rtol=1e-4)
    in_groups = replace(twice, segments=np.repeat([0, 1], 600))
    state = fit(in_groups, entries, ("a", "b"))
    params = state.params
    np.testing.assert_allclose(params.weights, alone.params.weights, atol=1e-3)
    np.testing.assert_allclose(params.trait_covariance, np.tile(np.eye(4), (2, 1, 1)), atol=1e-3)
    # 12 general slopes, 3 testlets, 12 offsets, 4 means and 4 variances
    assert state.diagnostics["fit_statistics"]["n_parameters"] == 12 + 3 + 12 + 8
    assert (params.trait_mean_error[1] > 0).all()
    with pytest.raises(FitError, match="the means of the traits in the groups not unique"):
        fit(in_groups, ["ga00"] * 4 + ["g0b0"] * 4 + ["g00c"] * 4, ("a", "b"))
    for form in ("crossproduct", "sandwich"):
        other = fit(data, entries, errors=form).params
        np.testing.assert_allclose(other.weights_error, alone.params.weights_error, rtol=0.3)


AXIS = np.linspace(-6, 6, 29)
GRID = np.stack(np.meshgrid(AXIS, AXIS, indexing="ij"), axis=-1).reshape(-1, 2)


def simulate(n: int = 300) -> DenseData:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, 2)) @ np.linalg.cholesky([[1, 0.5], [0.5, 1]]).T
    slopes = np.array([entry == "1" for item in SIMPLE for entry in item]).reshape(-1, 2)
    P = scipy.special.expit(x @ (1.5 * slopes).T + np.linspace(-0.8, 0.8, 6))
    return DenseData((rng.random(P.shape) < P).astype(np.uint8))


@pytest.mark.parametrize(
    ("entries", "settings"),
    [
        (SIMPLE, {}),
        (["a0", "10", "10", "0a", "01", "01"], {}),
        (["a0", "a0", "10", "0b", "0b", "01"], {"correlations": "none"}),
        (SIMPLE, {"prior_precision": 0.2}),
    ],
    ids=["correlated", "equal across traits", "equal", "prior"],
)
def test_fits_are_maxima_with_the_errors_of_a_numerical_hessian(
    entries: Entries, settings: dict[str, Any]
) -> None:
    data = simulate()
    state = fit(data, entries, **settings)
    params, slopes = state.params, make_pattern(entries).slopes
    numbers, places = np.unique(slopes[slopes >= 0], return_index=True)
    n_slopes, prior = len(numbers), settings.get("prior_precision", 0.0)
    has_correlation = settings.get("correlations") != "none"
    X, counts = np.unique(data.X, axis=0, return_counts=True)

    def objective(values: Floats) -> float:
        weights = np.zeros(slopes.shape)
        weights[slopes >= 0] = values[np.searchsorted(numbers, slopes[slopes >= 0])]
        r = values[-1] if has_correlation else 0.0
        logits = GRID @ weights.T + values[n_slopes : n_slopes + 6]
        joint = X @ scipy.special.log_expit(logits).T
        joint += (1 - X) @ scipy.special.log_expit(-logits).T
        joint += scipy.stats.multivariate_normal([0, 0], [[1, r], [r, 1]]).logpdf(GRID)
        nats = counts @ scipy.special.logsumexp(joint, axis=1)
        return float(nats - 0.5 * prior * (values[:n_slopes] ** 2).sum())

    def stack(weights: Floats, offsets: Floats, covariance: Floats) -> Floats:
        correlation = covariance[0, 1:, 0] if has_correlation else []
        return np.concatenate([weights[slopes >= 0][places], offsets, correlation])

    at = stack(params.weights, params.offsets, params.trait_covariance)
    assert state.diagnostics["fit_statistics"]["n_parameters"] == len(at)
    h = 2e-3
    steps = h * np.eye(len(at))
    gradient = [(objective(at + step) - objective(at - step)) / (2 * h) for step in steps]
    corners = [[(at + a, at + a + b, at + b) for b in steps] for a in steps]
    center = objective(at)
    single = [objective(at + step) for step in steps]
    hessian = np.array(
        [
            [objective(corner[1]) - single[a] - single[b] + center for b, corner in enumerate(row)]
            for a, row in enumerate(corners)
        ]
    ) / (h * h)
    covariance = np.linalg.inv(-0.5 * (hessian + hessian.T))
    assert np.abs(covariance @ gradient).max() < 1e-3
    errors = stack(params.weights_error, params.offsets_error, params.trait_covariance_error)
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=0.005)


def test_groups_have_their_own_distributions_of_the_traits() -> None:
    data = simulate()
    twice = DenseData(np.vstack([data.X, data.X]), segments=np.repeat([0, 1], len(data.X)))
    alone = fit(data, SIMPLE).params
    for settings, n_added in (({}, 5), ({"invariance": "configural"}, 13)):
        state = fit(twice, SIMPLE, ("a", "b"), **settings)
        params = state.params
        np.testing.assert_allclose(params.weights, alone.weights, atol=1e-4)
        np.testing.assert_allclose(params.trait_mean, 0.0, atol=1e-4)
        expected = np.tile(alone.trait_covariance, (2, 1, 1))
        np.testing.assert_allclose(params.trait_covariance, expected, atol=1e-4)
        assert state.diagnostics["fit_statistics"]["n_parameters"] == 13 + n_added
    state = fit(twice, SIMPLE, ("a", "b"), correlations="none")
    assert state.diagnostics["fit_statistics"]["n_parameters"] == 12 + 4
    errors = state.params.trait_covariance_error
    assert (np.diag(errors[1]) > 0).all()
    assert not errors[0].any()
    assert not errors[1, 0, 1]


@pytest.mark.parametrize(
    ("entries", "settings", "message"),
    [
        (["110", "110", "110"], {}, "no item loads on the trait 'C'"),
        (["11"] * 6, {}, "a constraint is missing. Write 0 for i1 in 'B'"),
        (["11"] * 6, {"correlations": "free"}, "2 constraints are missing"),
        (["11"] * 5 + ["10"], {"correlations": "free"}, "'A', 'B' are not unique"),
        (["10"] * 3 + ["01"] * 2, {"correlations": "none"}, "only i4 and i5 load on the trait 'B'"),
        (["10"] * 3 + ["01"], {}, "only i4 loads on the trait 'B'"),
        (["110"] * 3 + ["101"] * 3, {}, "Write more zeros, or the same label"),
        (SIMPLE, {"rotation": "varimax"}, 'rotation="varimax" cannot be combined with pattern'),
        (SIMPLE, {"equal_slopes": "yes", "n_components": 1}, "equal_slopes=True cannot be"),
        (SIMPLE, {"invariance": "metric"}, "needs groups"),
        (SIMPLE, {"estimator": "sampling"}, "pattern cannot be combined with estimator"),
    ],
)
def test_patterns_that_cannot_be_fitted_are_refused(
    entries: Entries, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FitError, match=message):
        fit(DenseData(np.zeros((4, len(entries)), np.uint8)), entries, **settings)


@pytest.mark.parametrize(
    ("entries", "correlations"),
    [
        (["10"] * 3 + ["01"] * 2, "free"),
        (["10"] * 3 + ["0a"] * 2, "none"),
        (["110"] * 4 + ["101"] * 4, "none"),
        (["ga0"] * 3 + ["g0b"] * 2, "none"),
    ],
)
def test_identified_patterns_are_accepted(entries: Entries, correlations: str) -> None:
    features = tuple(f"i{k}" for k in range(len(entries)))
    structure = Structure((), make_binary_features(features), pattern=make_pattern(entries))
    model = LatentTrait(correlations=correlations).with_structure(structure)  # type: ignore[arg-type]
    assert model.n_components == len(entries[0])


def test_a_pinned_item_counts_as_one_without_loadings() -> None:
    data = simulate()
    data.X[:, 0] = 0
    state = fit(data, SIMPLE, constant_features="keep")
    assert not state.params.weights[0].any()
    with pytest.raises(FitError, match="only i2 and i3 load on the trait 'A'"):
        fit(data, SIMPLE, constant_features="keep", correlations="none")


def test_tables_are_checked() -> None:
    columns = {"F": [1, 0.0, "a"], "item": ["x", "y", "z"], "G": ["0", True, " a "]}
    pattern = make_loading_pattern(columns, ["z", "x", "y"], "t.csv")
    assert pattern == LoadingPattern(("F", "G"), (("a", "a"), ("1", "0"), ("0", "1")))
    assert pattern.slopes.tolist() == [[0, 0], [2, -1], [-1, 5]]
    for changes, message in (
        ({"item": ["x", "y", "y"]}, "t.csv has items twice: y"),
        ({"item": ["x", "y", "u"]}, "t.csv lacks features of the dataset: z"),
        ({"F": [1, 0, 2]}, "the entry of z for the trait 'F' is 2"),
        ({"F": [1, 0, None]}, "the entry of z for the trait 'F' is empty"),
    ):
        with pytest.raises(FitError, match=message):
            make_loading_pattern({**columns, **changes}, ["z", "x", "y"], "t.csv")
    with pytest.raises(FitError, match="has items that the dataset lacks: z"):
        make_loading_pattern(columns, ["x", "y"], "t.csv")
    with pytest.raises(FitError, match="has no column for a trait"):
        make_loading_pattern({"item": ["x"]}, ["x"], "t.csv")
    with pytest.raises(FitError, match="components=3 contradicts pattern, which has 2 traits"):
        match_traits(LatentTrait(n_components=3), pattern, 3)
