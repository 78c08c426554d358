"""Latent regression, against reference values, numerical Hessians, and laws of weights."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.data.column_measures import measure_row_covariates, measure_row_weights
from pipeline.data.datasets import MemoryDataset, make_memory_dataset, make_row_source
from pipeline.data.features import make_binary_features
from pipeline.data.row_columns import RowColumns
from pipeline.data.tables import BinaryTable
from pipeline.data.weights import WeightKind
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.derivatives import differentiate_twice

Floats = NDArray[np.float64]

GRID = np.linspace(-7, 7, 33)
NAMES = ("i", "j", "k", "l", "m")
COVARIATES = ("age", "school=South")


class Fit(NamedTuple):
    """A fit, and its rows."""

    state: FitState
    rows: RowSource


def make_dataset(
    X: Any, columns: Mapping[str, Any], groups: Any = None, names: tuple[str, ...] = NAMES
) -> MemoryDataset:
    """Make a dataset; NaN in X is missing."""
    observed = np.isfinite(X).astype(np.uint8)
    bits = np.nan_to_num(X).astype(np.uint8)
    segments = None if groups is None else np.array(groups, object)
    mask = None if observed.all() else observed
    return make_memory_dataset([BinaryTable(bits, mask, names, segments, columns)])


def fit(
    dataset: MemoryDataset,
    covariates: tuple[str, ...],
    known_items: Floats | None = None,
    weight: str | None = None,
    weights: WeightKind = "frequency",
    psu: str | None = None,
    **settings: Any,
) -> Fit:
    model = LatentTrait(**{"n_components": 1, "tol": 1e-10, **settings})
    kind = None if weight is None else weights
    own_weights = measure_row_weights(dataset, None, weight, kind, psu)
    coding = measure_row_covariates(dataset, None, covariates, own_weights)
    groups = dataset.segment_names if len(dataset.segment_names) > 1 else ()
    structure = Structure(
        groups, make_binary_features(dataset.feature_names), known_items, covariates=coding
    )
    rows = make_row_source(dataset.with_row_columns(RowColumns(coding)), weights=own_weights)
    return Fit(fit_model(model.with_structure(structure), rows, SerialExecutor()), rows)


def read_table(path: str) -> list[dict[str, str]]:
    with find_reference(path).open() as file:
        return [*csv.DictReader(file)]


REFERENCES = {"sim_lr": ("x1", "x2", "g"), "verbal_aggression_male": ("male",)}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("case", ["2PL", "Rasch"])
def test_fits_agree_with_reference_values(name: str, case: str) -> None:
    lines = read_table(f"data/{name}.csv")
    items = tuple(column for column in lines[0] if column not in REFERENCES[name])
    X = np.array([[float(line[item]) for item in items] for line in lines])
    texts = {n: np.array([line[n] for line in lines], object) for n in REFERENCES[name]}
    known = None
    if case == "Rasch":
        known = np.column_stack([np.ones(len(items)), np.full(len(items), np.nan)])
    state, rows = fit(make_dataset(X, texts, names=items), REFERENCES[name], known)
    params = state.params
    summary = {
        line["quantity"]: float(line["value"])
        for line in read_table("03_latent_regression/summary.csv")
        if line["case"] == f"{name} {case}"
    }
    found = state.diagnostics["fit_statistics"]
    assert found["log_likelihood"] == pytest.approx(summary["loglik with covariates"], abs=1e-3)
    assert found["n_parameters"] == int(summary["npar"])
    by_name: dict[tuple[str, str], tuple[float, float]] = {}
    for i, item in enumerate(items):
        by_name[item, "a1"] = params.weights[i, 0], params.weights_error[i, 0]
        by_name[item, "d"] = params.offsets[i], params.offsets_error[i]
    variance = params.trait_covariance[0, 0, 0], params.trait_covariance_error[0, 0, 0]
    by_name["GROUP", "COV_11"] = variance
    path = f"03_latent_regression/{name}_{case}_hessian_se.csv"
    expected = {(line["item"], line["name"]): line for line in read_table(path)}
    coefficients = zip(params.coefficients[:, 0], params.coefficients_error[:, 0], strict=True)
    names = [key for key in expected if key[0] == "BETA"]
    by_name |= dict(zip(names, coefficients, strict=True))
    values = np.array([by_name[key] for key in expected])
    targets = np.array(
        [(float(v["ml_value"]), float(v["se_numerical_hessian"])) for v in expected.values()]
    )
    np.testing.assert_allclose(values[:, 0], targets[:, 0], atol=1e-3)
    np.testing.assert_allclose(values[:, 1], targets[:, 1], rtol=0.01)
    codes = read_table(f"03_latent_regression/{name}_{case}_EAP.csv")
    (block,) = iter_blocks(rows.read(0))
    transformed = LatentTrait(n_components=1).transform(params, block, RowRandom(0))
    eap = np.array([(float(line["EAP"]), float(line["SE"])) for line in codes])
    np.testing.assert_allclose(transformed["mean"][:, 0], eap[:, 0], atol=1e-3)
    np.testing.assert_allclose(np.sqrt(transformed["variance"][:, 0]), eap[:, 1], atol=1e-3)


class Rows(NamedTuple):
    """Simulated rows: values, NaN where missing, covariates age and South, groups."""

    X: Floats
    z: Floats
    groups: NDArray[np.int64]

    @property
    def columns(self) -> dict[str, Any]:
        """The covariates as a dataset stores them."""
        schools = np.where(self.z[:, 1] == 1, "South", "North").astype(object)
        return {"age": self.z[:, 0], "school": schools}


def simulate(n: int = 300, q: int = 1, missing: float = 0.0) -> Rows:
    rng = np.random.default_rng(5)
    groups = np.arange(n) * 2 // n
    z = np.column_stack([rng.normal(40, 10, n), rng.random(n) < 0.4])
    effects = np.array([[0.05, 0.0], [0.6, -0.5]])[:, :q]
    x = rng.standard_normal((n, q)) * np.where(groups, 0.8, 1.0)[:, None]
    x += (z - [40, 0]) @ effects + 0.4 * groups[:, None]
    slopes = np.column_stack([np.linspace(0.9, 1.6, 5), np.linspace(-0.8, 1.0, 5)])[:, :q]
    logits = x @ slopes.T + np.linspace(-1.0, 1.0, 5)
    X = (rng.random((n, 5)) < scipy.special.expit(logits)).astype(np.float64)
    X[rng.random(X.shape) < missing] = np.nan
    return Rows(X, z, groups)


def compute_log_likelihood(rows: Rows, slopes: Any, offsets: Any, traits: Floats) -> float:
    """Sum over a fine grid.

    `traits` are mean and variance of both groups, and the coefficients of the covariates.
    """
    z, observed = rows.z - [40, 0], np.isfinite(rows.X)
    means = traits[[0, 2]][rows.groups] + z @ traits[4:]
    sd = np.sqrt(traits[[1, 3]])[rows.groups]
    x = means[:, None] + sd[:, None] * GRID
    log_prior = scipy.stats.norm.logpdf(GRID) + np.log(GRID[1] - GRID[0])
    joint = np.tile(log_prior, (len(x), 1))
    for i in range(rows.X.shape[1]):
        # Offsets are those of rows of age 0.
        logits = np.where(rows.X[:, i] == 1, 1, -1)[:, None] * (
            slopes[i] * (x + 40 * traits[4]) + offsets[i]
        )
        joint += observed[:, i, None] * scipy.special.log_expit(logits)
    return float(scipy.special.logsumexp(joint, axis=1).sum())


CASES = {
    # name: free traits (mean and variance of both groups), known items, settings
    "no groups": ((), None, {}),
    "scalar": ((2, 3), None, {}),
    "means only": ((2,), None, {"traits": "mean"}),
    "known slopes": ((1,), "slopes", {}),
    "anchors": ((0, 1), "anchors", {}),
    "anchors in groups": ((0, 1, 2, 3), "anchors", {}),
    "standard traits": ((), "anchors", {"traits": "standard"}),
    "missing values": ((2, 3), None, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_are_those_of_a_numerical_hessian(case: str) -> None:
    free_traits, known_kind, settings = CASES[case]
    rows = simulate(missing=0.2 if case == "missing values" else 0.0)
    has_groups = bool({2, 3} & set(free_traits))
    if not has_groups:
        rows = rows._replace(groups=np.zeros_like(rows.groups))
    known = None
    if known_kind is not None:
        known = np.full((5, 2), np.nan)
        known[:, 0] = np.linspace(0.9, 1.6, 5)
    if known_kind == "anchors":
        assert known is not None
        known[:, 1] = np.linspace(-1.0, 1.0, 5) - 40 * 0.05 * known[:, 0]
        known[2:] = np.nan
    groups = np.array(["a", "b"], object)[rows.groups] if has_groups else None
    dataset = make_dataset(rows.X, rows.columns, groups)
    # Without a mean to estimate, the traits have mean 0 where the covariates are 0.
    state, _ = fit(dataset, ("age", "school"), known, **settings)
    params = state.params
    mean, variance = params.trait_mean[:, 0], params.trait_covariance[:, 0, 0]
    mean_error, variance_error = (
        params.trait_mean_error[:, 0],
        params.trait_covariance_error[:, 0, 0],
    )
    traits = np.array([mean[0], variance[0], mean[-1], variance[-1], *params.coefficients[:, 0]])
    trait_errors = [mean_error[0], variance_error[0], mean_error[-1], variance_error[-1]]
    is_known = np.zeros((5, 2), np.bool_) if known is None else np.isfinite(known)
    items = np.column_stack([params.weights[:, 0], params.offsets])
    item_errors = np.column_stack([params.weights_error[:, 0], params.offsets_error])
    free = [*free_traits, 4, 5]

    def log_likelihood(point: Floats) -> float:
        own_items, own_traits = items.copy(), traits.copy()
        n_items = int((~is_known).sum())
        own_items[~is_known] = point[:n_items]
        own_traits[free] = point[n_items:]
        return compute_log_likelihood(rows, *own_items.T, own_traits)

    at = np.concatenate([items[~is_known], traits[free]])
    found = state.diagnostics["fit_statistics"]
    tolerance = 5e-3 if case == "missing values" else 1e-3
    assert found["log_likelihood"] == pytest.approx(log_likelihood(at), abs=tolerance)
    assert found["n_parameters"] == len(at)
    errors = np.concatenate(
        [
            item_errors[~is_known],
            np.array([*trait_errors, *params.coefficients_error[:, 0]])[free],
        ]
    )
    steps = 0.02 * errors
    covariance = np.linalg.inv(-differentiate_twice(log_likelihood, at, steps))
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=5e-3)
    for k, step in enumerate(steps):
        moved = at.copy()
        moved[k] += 50 * step
        assert log_likelihood(moved) < log_likelihood(at)


def test_weights_equal_repeated_rows() -> None:
    rows, rng = simulate(), np.random.default_rng(1)
    times = rng.integers(0, 4, len(rows.X))
    columns = {**rows.columns, "times": times}
    repeated = [np.repeat(part, times, axis=0) for part in rows]
    many = Rows(*repeated)
    groups = np.array(["a", "b"], object)
    weighted, _ = fit(
        make_dataset(rows.X, columns, groups[rows.groups]), ("age", "school"), weight="times"
    )
    expected, _ = fit(make_dataset(many.X, many.columns, groups[many.groups]), ("age", "school"))
    for name in ("weights", "offsets", "coefficients", "coefficients_error", "population_mean"):
        found, own = getattr(weighted.params, name), getattr(expected.params, name)
        np.testing.assert_allclose(found, own, rtol=1e-6, atol=1e-6, err_msg=name)
    one, other = (state.diagnostics["fit_statistics"] for state in (weighted, expected))
    assert one["log_likelihood"] == pytest.approx(other["log_likelihood"], rel=1e-9)
    assert one["bic"] == pytest.approx(other["bic"], rel=1e-9)


def test_sampling_weights_give_robust_errors() -> None:
    rows, rng = simulate(), np.random.default_rng(1)
    columns = {**rows.columns, "w": rng.integers(1, 4, len(rows.X)).astype(np.float64)}
    clusters = np.arange(len(rows.X))
    columns |= {"twice": 2 * columns["w"], "unit": clusters}
    dataset = make_dataset(rows.X, columns)
    names = ("age", "school")
    one, two, by_cluster = (
        fit(dataset, names, weight=weight, weights="sampling", psu=psu).state.params
        for weight, psu in (("w", None), ("twice", None), ("w", "unit"))
    )
    np.testing.assert_allclose(one.coefficients_error, two.coefficients_error, rtol=1e-6)
    n = len(rows.X)
    ratio = by_cluster.coefficients_error / one.coefficients_error
    np.testing.assert_allclose(ratio, np.sqrt(n / (n - 1)), rtol=1e-4)


@pytest.mark.parametrize("q", [1, 2])
def test_units_and_reference_level_do_not_change_the_model(q: int) -> None:
    rows = simulate(q=q)
    months = {**rows.columns, "age": 12 * rows.columns["age"]}
    settings = {"n_components": q, "tol": 1e-11}
    one, _ = fit(make_dataset(rows.X, rows.columns), ("age", "school"), **settings)
    other, _ = fit(make_dataset(rows.X, months), ("age", "school=South"), **settings)
    scale = np.array([[1 / 12], [-1.0]])
    for name in ("coefficients", "coefficients_error"):
        found, expected = getattr(other.params, name), getattr(one.params, name)
        own_scale = abs(scale) if name.endswith("error") else scale
        np.testing.assert_allclose(found, expected * own_scale, rtol=2e-3, atol=1e-5)
    shift = one.params.weights @ one.params.coefficients[1]
    np.testing.assert_allclose(other.params.offsets, one.params.offsets + shift, atol=1e-3)
    statistics, others = (f.diagnostics["fit_statistics"] for f in (one, other))
    assert statistics["log_likelihood"] == pytest.approx(others["log_likelihood"], abs=1e-6)


def test_methods_after_the_fit_use_the_covariates() -> None:
    rows = simulate(2000)
    groups = np.array(["a", "b"], object)[rows.groups]
    state, source = fit(make_dataset(rows.X, rows.columns, groups), ("age", "school"))
    model, params = LatentTrait(n_components=1), state.params
    nats, total = 0.0, 0.0
    for block in iter_blocks(source.read(0)):
        nats += model.log_likelihood(params, block, RowRandom(0)).nats.sum()
        codes = model.transform(params, block, RowRandom(0))
        mean, variance = codes["mean"].mean(), codes["mean"].var() + codes["variance"].mean()
        total += abs(mean - params.population_mean[block.segment, 0])
        total += abs(variance - params.population_covariance[block.segment, 0, 0])
    assert total < 0.05  # exact in all groups together
    assert nats == pytest.approx(state.diagnostics["fit_statistics"]["log_likelihood"], abs=1e-3)
    segments = np.repeat([0, 1], 20_000)
    drawn = model.sample(params, len(segments), np.random.default_rng(0), segments)
    for segment in (0, 1):
        expected = rows.X[rows.groups == segment].mean(axis=0)
        np.testing.assert_allclose(drawn[segments == segment].mean(axis=0), expected, atol=0.05)


def test_bad_input_is_refused() -> None:
    rows = simulate()
    groups = np.array(["a", "b"], object)[rows.groups]
    columns = {**rows.columns, "term": rows.groups.astype(np.float64)}
    dataset = make_dataset(rows.X, columns, groups)
    with pytest.raises(FitError, match="covariates: term has hardly any differences within groups"):
        fit(dataset, ("age", "term"))
    with pytest.raises(FitError, match="cannot be combined with invariance"):
        fit(dataset, ("age",), invariance="configural")
    with pytest.raises(FitError, match="need items that all groups share"):
        fit(dataset, ("age",), free=",".join(NAMES))
    with pytest.raises(FitError, match="covariates needs 1 to 3 components"):
        fit(dataset, ("age",), n_components=None)
    with pytest.raises(FitError, match="needs groups"):
        fit(make_dataset(rows.X, columns), ("age",), traits="mean")
    with pytest.raises(FitError, match="covariates cannot be combined with guessing"):
        fit(dataset, ("age",), guessing="item")
    with pytest.raises(FitError, match="covariates cannot be combined with estimator"):
        fit(dataset, ("age",), estimator="ep")
