"""Groups of rows and known items, against R's mirt and against sums over a fine grid."""

from __future__ import annotations

import csv
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
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.derivatives import differentiate_twice
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows

Floats = NDArray[np.float64]

GRID = np.linspace(-9, 9, 73)
ANCHORS = {
    "sim2g": ("i1", "i2", "i4"),
    "verbal_aggression_gender24": ("S1WantCurse", "S1WantScold", "S1WantShout"),
}
FIRST_GROUPS = {"sim2g": "ref", "verbal_aggression_gender24": "female"}


def fit(data: DenseData, structure: Structure, **settings: Any) -> FitState:
    model = LatentTrait(**{"n_components": 1, "tol": 1e-10, **settings}).with_structure(structure)
    return fit_model(model, make_memory_rows(data), SerialExecutor())


def read_rows(name: str) -> tuple[DenseData, Structure]:
    """Read 0/1 columns, and groups by the column `group` if there is one."""
    with find_reference(f"data/{name}.csv").open() as file:
        header, *lines = csv.reader(file)
    table = np.array(lines)
    items = [item for item in header if item != "group"]
    X = table[:, [header.index(item) for item in items]].astype(np.uint8)
    if "group" not in header:
        return DenseData(X), Structure((), make_binary_features(items))
    first, labels = FIRST_GROUPS[name], table[:, header.index("group")]
    groups = sorted(set(labels.tolist()), key=lambda group: group != first)
    segments = np.array([groups.index(label) for label in labels])
    return DenseData(X, segments=segments), Structure(tuple(groups), make_binary_features(items))


def read_mirt(path: str) -> dict[tuple[str, str, str], tuple[float, float, bool]]:
    """Read value, standard error, NaN if absent, and whether it is estimated, by parameter."""
    with find_reference(path).open() as file:
        rows = [*csv.DictReader(file)]
    errors = [float("nan") if row["se"] == "NA" else float(row["se"]) for row in rows]
    keys = [(row["group"], row["item"], row["name"]) for row in rows]
    values = [
        (float(row["value"]), e, row["est"] == "TRUE") for row, e in zip(rows, errors, strict=True)
    ]
    return dict(zip(keys, values, strict=True))


def list_parameters(state: FitState, structure: Structure) -> dict[Any, tuple[float, float]]:
    """List estimates and standard errors by mirt's names."""
    params, found = state.params, {}
    for g, group in enumerate(structure.groups or ("all",)):
        prefix, place = ("group_", (g,)) if structure.groups else ("", ())
        weights, offsets, weights_error, offsets_error = (
            getattr(params, f"{prefix}{name}")[place]
            for name in ("weights", "offsets", "weights_error", "offsets_error")
        )
        for i, item in enumerate(structure.feature_names):
            slope, offset = (weights[i, 0], weights_error[i, 0]), (offsets[i], offsets_error[i])
            found |= {(group, item, "a1"): slope, (group, item, "d"): offset}
        mean = params.trait_mean[g, 0], params.trait_mean_error[g, 0]
        variance = params.trait_covariance[g, 0, 0], params.trait_covariance_error[g, 0, 0]
        found |= {(group, "GROUP", "MEAN_1"): mean, (group, "GROUP", "COV_11"): variance}
    return found


def check_against_mirt(
    state: FitState, structure: Structure, path: str, has_errors: bool = True
) -> None:
    expected, found = read_mirt(path), list_parameters(state, structure)
    keys = [key for key in expected if key in found]
    assert len(keys) == len(found)
    values = np.array([(*found[key], *expected[key]) for key in keys])
    np.testing.assert_allclose(values[:, 0], values[:, 2], atol=1e-3)
    has_error, is_estimated = ~np.isnan(values[:, 3]), values[:, 4] == 1
    assert has_error.any() == has_errors
    np.testing.assert_allclose(values[has_error, 1], values[has_error, 3], rtol=0.01)
    assert not values[~is_estimated, 1].any()
    assert (values[is_estimated, 1] > 0).all()


@pytest.mark.parametrize("name", FIRST_GROUPS)
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("configural", {"invariance": "configural"}),
        ("metric", {"invariance": "metric"}),
        ("scalar", {"invariance": "scalar"}),
        ("scalar_means_only", {"traits": "mean"}),
        ("scalar_no_impact", {"traits": "standard"}),
        ("anchored", {}),
    ],
)
def test_groups_agree_with_mirt(name: str, case: str, settings: dict[str, str]) -> None:
    data, structure = read_rows(name)
    if case == "anchored":
        free = [item for item in structure.feature_names if item not in ANCHORS[name]]
        settings = {"free": ",".join(free)}
    state = fit(data, structure, **settings)
    with find_reference(f"02_groups/{name}_models.csv").open() as file:
        (expected,) = [row for row in csv.DictReader(file) if row["model"] == case]
    statistics = state.diagnostics["fit_statistics"]
    assert statistics["log_likelihood"] == pytest.approx(float(expected["loglik"]), abs=1e-3)
    assert statistics["n_parameters"] == int(expected["npar"])
    assert statistics["bic"] == pytest.approx(float(expected["BIC"]), abs=2e-3)
    has_errors = case not in ("scalar_means_only", "scalar_no_impact")  # mirt gave none
    check_against_mirt(state, structure, f"02_groups/{name}_{case}.csv", has_errors)


@pytest.mark.parametrize(
    ("traits", "case"),
    [("free", "fixed_items_free_mean_var"), ("standard", "fixed_items_standard_normal")],
)
def test_known_items_agree_with_mirt(traits: str, case: str) -> None:
    data, structure = read_rows("verbal_aggression_new")
    path = "04_fixed_calibration/verbal_aggression_fixed_values.csv"
    with find_reference(path).open() as file:
        known = {row["item"]: (row["a1"], row["d"]) for row in csv.DictReader(file)}
    values = [known.get(item, ("nan", "nan")) for item in structure.feature_names]
    structure = Structure((), structure.features, np.array(values, np.float64))
    state = fit(data, structure, traits=traits)
    check_against_mirt(state, structure, f"04_fixed_calibration/verbal_aggression_{case}.csv")


def simulate(n_items: int = 4) -> DenseData:
    rng = np.random.default_rng(3)
    segments = np.repeat([0, 1], 400)
    x = rng.standard_normal(800) * np.where(segments, 0.8, 1.0) + 0.6 * segments
    slopes, offsets = np.linspace(0.8, 1.6, n_items), np.linspace(-1.0, 1.0, n_items)
    P = scipy.special.expit(x[:, None] * slopes + offsets)
    return DenseData((rng.random(P.shape) < P).astype(np.uint8), segments=segments)


def sum_log_likelihood(data: DenseData, values: Floats) -> float:
    """Sum over a fine grid; values are slopes, offsets, the second group's mean and variance."""
    n = data.X.shape[1]
    slopes, offsets, (mean, variance) = values[:n], values[n : 2 * n], values[2 * n :]
    logits = GRID[:, None] * slopes + offsets
    by_node = data.X @ scipy.special.log_expit(logits).T
    by_node += (1 - data.X) @ scipy.special.log_expit(-logits).T
    assert data.segments is not None
    total = 0.0
    for segment, moments in enumerate(((0.0, 1.0), (mean, variance))):
        prior = scipy.stats.norm.logpdf(GRID, moments[0], np.sqrt(moments[1]))
        joint = by_node[data.segments == segment] + prior + np.log(GRID[1] - GRID[0])
        total += scipy.special.logsumexp(joint, axis=1).sum()
    return float(total)


def test_errors_are_those_of_a_numerical_hessian() -> None:
    data = simulate()
    state = fit(data, Structure(("a", "b"), make_binary_features("ijkl")))
    params = state.params
    traits = [params.trait_mean[1, 0], params.trait_covariance[1, 0, 0]]
    at = np.concatenate([params.weights[:, 0], params.offsets, traits])
    found = state.diagnostics["fit_statistics"]["log_likelihood"]
    assert found == pytest.approx(sum_log_likelihood(data, at), abs=1e-4)
    hessian = differentiate_twice(lambda values: sum_log_likelihood(data, values), at)
    errors = np.concatenate(
        [
            *(params.weights_error[:, 0], params.offsets_error),
            [params.trait_mean_error[1, 0], params.trait_covariance_error[1, 0, 0]],
        ]
    )
    np.testing.assert_allclose(errors, np.sqrt(np.diag(np.linalg.inv(-hessian))), rtol=1e-3)


def test_methods_after_the_fit_use_the_groups() -> None:
    data = simulate()
    state = fit(data, Structure(("a", "b"), make_binary_features("ijkl")))
    model, params, rng = LatentTrait(n_components=1), state.params, RowRandom(0)
    nats, n_close = 0.0, 0
    for block in make_memory_blocks(data):
        nats += model.log_likelihood(params, block, rng).nats.sum()
        codes = model.transform(params, block, rng)
        mean, variance = params.trait_mean[block.segment, 0], codes["mean"].var()
        total = variance + codes["variance"].mean()
        n_close += abs(codes["mean"].mean() - mean) < 0.01
        assert total == pytest.approx(params.trait_covariance[block.segment, 0, 0], abs=0.01)
    assert n_close == 2
    found = state.diagnostics["fit_statistics"]["log_likelihood"]
    assert nats == pytest.approx(found, abs=1e-4)
    segments = np.repeat([0, 1], 20_000)
    drawn = model.sample(params, len(segments), np.random.default_rng(0), segments)
    for segment in (0, 1):
        expected = data.X[data.segments == segment].mean(axis=0)
        np.testing.assert_allclose(drawn[segments == segment].mean(axis=0), expected, atol=0.04)


@pytest.mark.parametrize("q", [1, 2])
def test_equal_groups_have_equal_traits(q: int) -> None:
    data = simulate(8)
    twice = DenseData(np.vstack([data.X, data.X]), segments=np.repeat([0, 1], len(data.X)))
    state = fit(
        twice, Structure(("a", "b"), make_binary_features("ijklmnop")), n_components=q, tol=1e-9
    )
    np.testing.assert_allclose(state.params.trait_mean, 0.0, atol=1e-6)
    np.testing.assert_allclose(
        state.params.trait_covariance, np.tile(np.eye(q), (2, 1, 1)), atol=1e-6
    )
    pooled = fit(DenseData(twice.X), Structure(), n_components=q, tol=1e-9)
    statistics, other = (s.diagnostics["fit_statistics"] for s in (state, pooled))
    assert statistics["log_likelihood"] == pytest.approx(other["log_likelihood"], abs=0.01)
    added = q + q * (q + 1) // 2
    assert statistics["n_parameters"] == other["n_parameters"] + added


def test_bad_input_is_refused() -> None:
    data = simulate()
    structure = Structure(("a", "b"), make_binary_features("ijkl"))
    with pytest.raises(FitError, match="names 'x', but the dataset has no such feature"):
        fit(data, structure, free="i,x")
    with pytest.raises(FitError, match="needs groups"):
        fit(data, Structure(), invariance="metric")
    with pytest.raises(FitError, match="needs groups"):
        fit(data, Structure(), traits="mean")
    with pytest.raises(FitError, match="needs 1 to 3 components"):
        fit(data, structure, n_components=None)
    with pytest.raises(FitError, match="cannot be combined with estimator"):
        fit(data, structure, estimator="ep")
    data.X[400:, 1] = 1
    with pytest.raises(FitError, match="is constant in the group 'b'"):
        fit(data, structure, invariance="metric")
    assert fit(data, structure, tol=1e-3).done  # the first group determines the item


def test_known_slopes_of_all_traits_free_their_distribution() -> None:
    rng = np.random.default_rng(4)
    mean, covariance = np.array([0.5, -0.3]), np.array([[1.2, 0.5], [0.5, 0.8]])
    slopes = np.array([[1.5, 0], [0, 1.5], [1.2, 0.4], [0.3, 1.4], [1, 1], [1.3, -0.5]])
    offsets = np.linspace(-0.5, 0.5, 6)
    x = rng.multivariate_normal(mean, covariance, 4000)
    P = scipy.special.expit(x @ slopes.T + offsets)
    data = DenseData((rng.random(P.shape) < P).astype(np.uint8))
    known = np.column_stack([slopes, offsets])
    known[4:] = np.nan
    state = fit(
        data, Structure((), make_binary_features("abcdef"), known), n_components=2, tol=1e-7
    )
    params = state.params
    np.testing.assert_array_equal(params.weights[:4], slopes[:4])
    np.testing.assert_allclose(params.weights, slopes, atol=0.3)
    np.testing.assert_allclose(params.trait_mean[0], mean, atol=0.1)
    np.testing.assert_allclose(params.trait_covariance[0], covariance, atol=0.25)
    assert state.diagnostics["fit_statistics"]["n_parameters"] == 2 * 3 + 2 + 3
    known[:4, 1] = 0.0  # no known item depends on the second trait
    state = fit(
        data, Structure((), make_binary_features("abcdef"), known), n_components=2, max_iter=3
    )
    assert not state.params.trait_mean.any()
    np.testing.assert_array_equal(state.params.trait_covariance[0], np.eye(2))
