"""Guessing and slipping: against R's mirt, a fine grid, numerical derivatives and simulations."""

from __future__ import annotations

import csv
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import null_space
from scipy.special import expit, logit, logsumexp
from scipy.stats import beta, lognorm, norm

from pipeline.data.features import make_binary_features
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, start_fit
from pipeline.models.latent_trait.item_priors import parse_prior
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.derivatives import compute_sandwich, differentiate, differentiate_twice
from tests.support.strategies import DenseData, make_memory_blocks, make_memory_rows

Floats = NDArray[np.float64]

GRID = np.linspace(-7, 7, 141)
MIRT_CASES = {
    "norm_logit_g": {"guessing_prior": "normal(-1.5,0.5)"},
    "beta_g": {"guessing_prior": "beta(5,17)"},
    "beta_g_lnorm_a": {"slope_prior": "lognormal(0.2,0.3)", "offset_prior": "normal(0,2)"},
}


def fit(data: DenseData, structure: Structure | None = None, **settings: Any) -> FitState:
    model = LatentTrait(**{"n_components": 1, "guessing": "item", "tol": 1e-10, **settings})
    names = [f"item {k}" for k in range(data.X.shape[1])]
    adapted = model.with_structure(structure or Structure(features=make_binary_features(names)))
    return fit_model(adapted, make_memory_rows(data), SerialExecutor())


def read_columns(path: str) -> dict[str, list[str]]:
    with find_reference(path).open() as file:
        rows = [*csv.DictReader(file)]
    return {name: [row[name] for row in rows] for name in rows[0]}


def read_floats(path: str, *names: str) -> list[Floats]:
    columns = read_columns(path)
    return [np.array(columns[name], np.float64) for name in names]


@pytest.mark.parametrize("case", MIRT_CASES)
def test_three_parameters_agree_with_mirt(case: str) -> None:
    X = np.array([*read_columns("data/SAT12.csv").values()]).T.astype(np.uint8)
    data, folder = DenseData(X), f"06_3pl_priors/SAT12_{case}"
    state = fit(data, **MIRT_CASES[case])
    params, summary = state.params, read_columns("06_3pl_priors/summary.csv")
    expected = {
        quantity: float(value)
        for name, quantity, value in zip(*list(summary.values())[:3], strict=True)
        if name == f"SAT12 {case}"
    }
    found = state.diagnostics["fit_statistics"]
    assert found["log_likelihood"] == pytest.approx(expected["loglik (without prior)"], abs=1e-3)
    assert found["log_prior"] == pytest.approx(expected["log prior"], abs=1e-3)
    assert found["n_parameters"] == 96
    reliability = expected["marginal reliability"]
    assert found["marginal_reliability"] == pytest.approx(reliability, abs=1e-4)

    g = params.guessing
    slopes, offsets, guessing = read_floats(f"{folder}_items.csv", "a1", "d", "g")
    np.testing.assert_allclose(params.weights[:, 0], slopes, atol=5e-4)
    np.testing.assert_allclose(params.offsets, offsets, atol=5e-4)
    np.testing.assert_allclose(g, guessing, atol=5e-4)
    errors = read_floats(f"{folder}_items.csv", "se_a1", "se_d", "se_logit_g")
    ours = (params.weights_error[:, 0], params.offsets_error, params.guessing_error / g / (1 - g))
    for own, error in zip(ours, errors, strict=True):
        np.testing.assert_allclose(own, error, rtol=1e-3)
    assert params.slipping is None
    assert params.trait_mean is None

    model, (block,) = LatentTrait(n_components=1, guessing="item"), make_memory_blocks(data)
    codes = model.transform(params, block, RowRandom(0))
    eap, sd, zh = read_floats(f"{folder}_persons.csv", "EAP", "EAP_SE", "Zh")
    np.testing.assert_allclose(codes["mean"][:, 0], eap, atol=1e-4)
    np.testing.assert_allclose(codes["variance"][:, 0], sd**2, atol=1e-4)
    fit_of_rows = model.person_fit(params, block, codes["mean"])
    np.testing.assert_allclose(fit_of_rows["l_z"], zh, atol=1e-3)
    information = np.array([*read_columns(f"{folder}_iteminfo.csv").values()], np.float64)
    curves = model.get_item_curves(params)
    own = curves.compute_information(information[0])
    np.testing.assert_allclose(own, information[1:].T, atol=1e-4)
    # mirt merges scores with few rows in another way: S-X² agrees where none are merged.
    s_x2, df = read_floats(f"{folder}_itemfit.csv", "S_X2", "df.S_X2")
    is_equal = (np.abs(params.s_x2 - s_x2) < 1e-2) & (params.s_x2_df == df)
    assert is_equal.sum() >= 15
    # The derivatives in mirt's M₂ are those of items without guessing.
    (srmsr,) = read_floats(f"{folder}_M2.csv", "SRMSR")[0]
    assert found["srmsr"] == pytest.approx(srmsr, abs=1e-5)
    assert found["m2_df"] == 432


def simulate(n_rows: int, n_items: int = 5, g: float = 0.2, s: float = 0.1) -> DenseData:
    rng = np.random.default_rng(5)
    x, slopes = rng.standard_normal(n_rows), np.linspace(1.2, 2.4, n_items)
    P = g + (1 - s - g) * expit(np.outer(x, slopes) + np.linspace(-1.0, 1.0, n_items))
    return DenseData((rng.random(P.shape) < P).astype(np.uint8))


def sum_posterior(data: DenseData, values: Floats) -> float:
    """Return log-likelihood plus log prior; values are slopes, offsets, logits of g and s."""
    slopes, offsets, log_g, log_s = values.reshape(4, -1)
    g, s = expit(log_g), expit(log_s)
    P = g + (1 - s - g) * expit(np.outer(GRID, slopes) + offsets)
    mask = np.ones_like(data.X) if data.observed is None else data.observed
    answers = np.hstack([data.X * mask, (1 - data.X) * mask])
    patterns, counts = np.unique(answers, axis=0, return_counts=True)
    by_node = patterns @ np.vstack([np.log(P).T, np.log(1 - P).T])
    joint = by_node + norm.logpdf(GRID) + np.log(GRID[1] - GRID[0])
    log_prior = beta.logpdf([g, s], 5, 17).sum() + lognorm.logpdf(slopes, 0.5, scale=1.5).sum()
    log_prior += norm.logpdf(offsets, 0, 2).sum()
    return float(counts @ logsumexp(joint, axis=1) + log_prior)


def collect(params: LatentTraitParams) -> Floats:
    asymptotes = logit(params.guessing), logit(params.slipping)
    return np.concatenate([params.weights[:, 0], params.offsets, *asymptotes])


PRIORS = {"slope_prior": f"lognormal({np.log(1.5)},0.5)", "offset_prior": "normal(0,2)"}


@pytest.mark.few(1)
@pytest.mark.parametrize("is_masked", [True, False])
def test_four_parameters_are_the_maximum_and_errors_those_of_its_hessian(is_masked: bool) -> None:
    data = simulate(600)
    if is_masked:
        observed = (np.random.default_rng(1).random(data.X.shape) < 0.9).astype(np.uint8)
        data = DenseData(data.X * observed, observed)
    state = fit(data, slipping="item", tol=1e-11, **PRIORS)
    params, n = state.params, data.X.shape[1]
    at = collect(params)
    found = state.diagnostics["fit_statistics"]
    assert found["log_likelihood"] + found["log_prior"] == pytest.approx(sum_posterior(data, at))

    def sum_own_posterior(values: Floats) -> float:
        return sum_posterior(data, values)

    np.testing.assert_allclose(differentiate(sum_own_posterior, at, 1e-3), 0, atol=0.02)
    expected = np.sqrt(np.diag(np.linalg.inv(-differentiate_twice(sum_own_posterior, at))))
    g, s = params.guessing, params.slipping
    expected[2 * n : 3 * n] *= g * (1 - g)
    expected[3 * n :] *= s * (1 - s)
    errors = (params.weights_error[:, 0], params.offsets_error)
    errors += (params.guessing_error, params.slipping_error)
    np.testing.assert_allclose(np.concatenate(errors), expected, rtol=2e-3)


def test_common_asymptotes_of_a_sample_are_found() -> None:
    data = simulate(4000, n_items=10, g=0.25, s=0.08)
    state = fit(data, guessing="common", slipping="common", tol=1e-8)
    params = state.params
    assert np.ptp(params.guessing) == 0
    assert np.ptp(params.slipping) == 0
    for value, error, truth in (
        (params.guessing, params.guessing_error, 0.25),
        (params.slipping, params.slipping_error, 0.08),
    ):
        assert abs(value[0] - truth) < 3 * error[0]
        assert error[0] < 0.03
    distance = params.weights[:, 0] - np.linspace(1.2, 2.4, 10)
    assert (np.abs(distance) < 3 * params.weights_error[:, 0]).all()
    assert state.diagnostics["fit_statistics"]["n_parameters"] == 22


def simulate_groups() -> DenseData:
    rng = np.random.default_rng(3)
    segments = np.repeat([0, 1], 500)
    x = rng.standard_normal(1000) * np.where(segments, 0.8, 1.0) + 0.6 * segments
    P = 0.2 + 0.8 * expit(np.outer(x, np.linspace(1.0, 2.0, 5)) + np.linspace(-1, 1, 5))
    return DenseData((rng.random(P.shape) < P).astype(np.uint8), segments=segments)


def test_groups_share_asymptotes_unless_their_items_are_free() -> None:
    data, structure = simulate_groups(), Structure(("a", "b"), make_binary_features("ijklm"))
    shared = fit(data, structure, tol=1e-8)
    params = shared.params
    np.testing.assert_array_equal(params.group_guessing[0], params.group_guessing[1])
    np.testing.assert_array_equal(params.guessing, params.group_guessing[0])
    assert params.trait_mean[1, 0] == pytest.approx(0.6, abs=0.25)
    assert (params.group_guessing_error > 0).all()
    free = fit(data, structure, free="k", tol=1e-8).params
    has_own = free.group_guessing[0] != free.group_guessing[1]
    np.testing.assert_array_equal(has_own, [False, False, True, False, False])
    # Groups with items of their own are fits of their own.
    separate = fit(data, structure, invariance="configural").params
    assert data.segments is not None
    for group in (0, 1):
        own = fit(DenseData(data.X[data.segments == group])).params
        np.testing.assert_allclose(separate.group_guessing[group], own.guessing, atol=1e-4)
        np.testing.assert_allclose(
            separate.group_guessing_error[group], own.guessing_error, atol=1e-4
        )


def test_methods_after_the_fit_use_the_asymptotes_of_the_groups() -> None:
    data, structure = simulate_groups(), Structure(("a", "b"), make_binary_features("ijklm"))
    settings = {"slipping": "common", "slope_prior": "lognormal(0.4,0.3)", "tol": 1e-7}
    state = fit(data, structure, invariance="configural", **settings)
    model, params = LatentTrait(n_components=1), state.params
    nats = 0.0
    for block in make_memory_blocks(data):
        nats += model.log_likelihood(params, block, RowRandom(0)).nats.sum()
        at_top = model.reconstruct(params, np.array([[40.0]]), np.array([block.segment]))
        np.testing.assert_allclose(at_top[0], 1 - params.group_slipping[block.segment])
        at_bottom = model.reconstruct(params, np.array([[-40.0]]), np.array([block.segment]))
        np.testing.assert_allclose(at_bottom[0], params.group_guessing[block.segment])
    expected = state.diagnostics["fit_statistics"]["log_likelihood"]
    assert nats == pytest.approx(expected, abs=1e-3)
    rng, segments = np.random.default_rng(0), np.repeat([0, 1], 20_000)
    drawn = model.sample(params, len(segments), rng, segments)
    margins = data.X.reshape(2, 500, -1).mean(axis=1)
    np.testing.assert_allclose(drawn.reshape(2, 20_000, -1).mean(axis=1), margins, atol=0.05)


def test_known_items_have_no_asymptotes() -> None:
    known = np.full((5, 2), np.nan)
    known[0] = 1.2, -1.0
    state = fit(simulate_groups(), Structure((), make_binary_features("ijklm"), known), tol=1e-8)
    assert state.params.guessing[0] == 0
    assert state.params.guessing_error[0] == 0
    assert (state.params.guessing[1:] > 0).all()


def test_constant_features_have_no_asymptotes() -> None:
    X = np.column_stack([simulate(400).X, np.ones(400, np.uint8)])
    settings = {"slope_prior": "lognormal(0.5,0.5)", "guessing_prior": "none", "tol": 1e-6}
    state = fit(DenseData(X), constant_features="keep", **settings)
    assert state.params.guessing[-1] == 0
    assert np.isfinite(state.history).all()
    assert not any(5 in w.features for w in state.warnings if "guessing" in w.text)


def test_a_fit_that_begins_at_its_end_stays_there() -> None:
    data = simulate(500)
    state = fit(data)
    model = LatentTrait(n_components=1, guessing="item", tol=1e-10)
    structure = Structure(features=make_binary_features(map(str, range(data.X.shape[1]))))
    adapted = model.with_structure(structure)
    rows = make_memory_rows(data)
    first = collect_first_statistics(adapted, rows, SerialExecutor(), 0)
    start = start_fit(adapted, first, rows, SerialExecutor(), 0, initial_params=state.params)
    again = fit_model(adapted, rows, SerialExecutor(), state=start)
    assert len(again.history) < len(state.history)
    np.testing.assert_allclose(again.params.guessing, state.params.guessing, atol=1e-4)


def test_asymptotes_without_a_prior_that_are_not_determined_are_named() -> None:
    easy = simulate(300, g=0.0, s=0.0)
    state = fit(easy, guessing_prior="none", tol=1e-6)
    (warning,) = [w for w in state.warnings if "the guessing of these features is 0" in w.text]
    zero = list(warning.features)
    assert np.isnan(state.params.guessing_error[zero]).all()
    assert np.isfinite(state.params.weights_error[zero]).all()


@pytest.mark.parametrize(
    ("settings", "parameter"),
    [
        ({"guessing": "item"}, "components"),
        ({"guessing": "item", "n_components": 1, "estimator": "ep"}, "estimator"),
        ({"n_components": 1, "guessing_prior": "beta(2,5)"}, "guessing_prior"),
        ({"n_components": 1, "slope_prior": "normal(0,1)"}, "slope_prior"),
        (
            {"n_components": 1, "guessing": "item", "slipping_prior": "beta(2,5)"},
            "slipping_prior",
        ),
        (
            {
                "n_components": 1,
                "guessing": "item",
                "slope_prior": "normal(0,1)",
                "prior_precision": 1.0,
            },
            "slope_prior",
        ),
    ],
)
def test_settings_that_cannot_be_combined_are_refused(
    settings: dict[str, Any], parameter: str
) -> None:
    with pytest.raises(FitError) as error:
        LatentTrait(**settings).with_structure(Structure())
    assert error.value.message.parameter == parameter


@pytest.mark.parametrize(
    "text", ["beta", "beta(0.5,2)", "beta(5;17)", "lognormal(0,1)", "normal(0,0)", "normal(0,nan)"]
)
def test_a_prior_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(FitError, match="guessing_prior is"):
        LatentTrait(guessing_prior=text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("beta(5, 17)", "guessing_prior"),
        ("normal(-1,0.5)", "guessing_prior"),
        ("lognormal(0.2,0.3)", "slope_prior"),
    ],
)
def test_densities_of_priors_and_their_derivatives(text: str, name: str) -> None:
    families = ("beta", "normal", "lognormal")
    prior = parse_prior(text, name, families)
    assert prior is not None
    x, h = np.array([0.4, 1.3, 2.2]), 1e-5
    density = {
        "beta": lambda x: beta.logpdf(expit(x), 5, 17),
        "normal": lambda x: norm.logpdf(x, -1, 0.5),
        "lognormal": lambda x: lognorm.logpdf(x, 0.3, scale=np.exp(0.2)),
    }[prior.family]
    np.testing.assert_allclose(prior.compute_log_density(x), density(x))
    gradient, curvature = prior.differentiate(x)
    np.testing.assert_allclose(gradient, (density(x + h) - density(x - h)) / (2 * h), rtol=1e-5)
    change = prior.differentiate(x + h)[0] - prior.differentiate(x - h)[0]
    np.testing.assert_allclose(curvature, -change / (2 * h), rtol=1e-5)


@pytest.mark.parametrize("errors", ["louis", "sandwich"])
def test_frequencies_give_every_number_of_the_repeated_rows(errors: str) -> None:
    X, counts = np.unique(simulate(400).X, axis=0, return_counts=True)
    settings = {"guessing": "common", "errors": errors, "tol": 1e-8}
    by_pattern = fit(DenseData(X, weights=counts.astype(np.float64)), **settings)
    by_row = fit(DenseData(np.repeat(X, counts, axis=0)), **settings)
    pairs = [(get_named_arrays(state.params), state) for state in (by_pattern, by_row)]
    (found, pattern_state), (expected, row_state) = pairs
    assert found.keys() == expected.keys()
    for name, (_, values) in expected.items():
        np.testing.assert_allclose(found[name][1], values, rtol=1e-7, atol=1e-7, err_msg=name)
    statistics = row_state.diagnostics["fit_statistics"]
    assert {"m2", "aic", "s_x2_rows", "log_prior"} <= statistics.keys()
    for name, value in statistics.items():
        own = pattern_state.diagnostics["fit_statistics"][name]
        np.testing.assert_allclose(own, value, rtol=1e-7, atol=1e-7, err_msg=name)


def test_sampling_weights_have_robust_errors() -> None:
    data, rng = simulate(500), np.random.default_rng(2)
    weights = rng.integers(1, 4, 500).astype(np.float64)
    settings = {"guessing": "common", "guessing_prior": "none", "tol": 1e-10}
    structure = Structure(features=make_binary_features(map(str, range(data.X.shape[1]))))
    model = LatentTrait(n_components=1, **settings).with_structure(structure)
    weighted = DenseData(data.X, weights=weights)
    rows = make_memory_rows(weighted, kind="sampling")
    state = fit_model(model, rows, SerialExecutor())
    params, n = state.params, data.X.shape[1]
    at = np.concatenate([params.weights[:, 0], params.offsets, logit(params.guessing[:1])])

    patterns, places = np.unique(data.X, axis=0, return_inverse=True)

    def by_row(values: Floats) -> Floats:
        slopes, offsets, g = values[:n], values[n : 2 * n], expit(values[-1])
        P = g + (1 - g) * expit(np.outer(GRID, slopes) + offsets)
        by_node = patterns @ np.log(P).T + (1 - patterns) @ np.log(1 - P).T
        return logsumexp(by_node + norm.logpdf(GRID), axis=1)[places]

    np.testing.assert_allclose(weights @ differentiate(by_row, at, 1e-4), 0, atol=0.05)
    errors = np.sqrt(np.diag(compute_sandwich(by_row, at, weights)))
    assert state.diagnostics["errors"] == "sandwich"
    np.testing.assert_allclose(params.weights_error[:, 0], errors[:n], rtol=5e-3)
    g = params.guessing[0]
    np.testing.assert_allclose(params.guessing_error[0], g * (1 - g) * errors[-1], rtol=5e-3)
    # Clusters of one row each have the same scores.
    single = DenseData(data.X, weights=weights, clusters=np.arange(500))
    clustered = fit_model(model, make_memory_rows(single, kind="sampling"), SerialExecutor())
    ratio = clustered.params.guessing_error / params.guessing_error
    np.testing.assert_allclose(ratio, np.sqrt(500 / 499), rtol=1e-6)


def test_m2_is_that_of_dense_matrices() -> None:
    """M₂ = N eᵀ Q (Qᵀ Ξ Q)⁻¹ Qᵀ e, where the columns of Q are orthogonal to all derivatives."""
    data = simulate(800, n_items=5)
    state = fit(data, guessing="common", tol=1e-8, errors="louis")
    params, n = state.params, 5
    patterns = np.array([*product([0, 1], repeat=n)])
    pairs = np.array([*combinations(range(n), 2)])
    moments = np.hstack([patterns, patterns[:, pairs[:, 0]] * patterns[:, pairs[:, 1]]])
    answers = np.hstack([data.X, data.X[:, pairs[:, 0]] * data.X[:, pairs[:, 1]]])
    shares = norm.pdf(GRID) / norm.pdf(GRID).sum()

    def compute_chances(values: Floats) -> Floats:
        """Return the probability of each pattern."""
        g = expit(values[-1])
        P = g + (1 - g) * expit(np.outer(GRID, values[:n]) + values[n : 2 * n])
        by_node = np.where(patterns[:, None] == 1, P, 1 - P).prod(axis=2)
        return np.asarray(by_node @ shares)

    at = np.concatenate([params.weights[:, 0], params.offsets, logit(params.guessing[:1])])
    expected = compute_chances(at) @ moments
    steps = 1e-5 * np.eye(len(at))
    ends = [(compute_chances(at + e) - compute_chances(at - e)) @ moments for e in steps]
    orthogonal = null_space(np.array(ends) / 2e-5)
    covariance = (moments.T * compute_chances(at)) @ moments - np.outer(expected, expected)
    e = orthogonal.T @ (answers.mean(axis=0) - expected)
    m2 = 800 * e @ np.linalg.solve(orthogonal.T @ covariance @ orthogonal, e)
    found = state.diagnostics["fit_statistics"]
    assert found["m2_df"] == orthogonal.shape[1] == 4
    assert found["m2"] == pytest.approx(m2, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "prior"), [("slope_prior", "normal(0,0.3)"), ("offset_prior", "normal(2,0.3)")]
)
def test_priors_of_items_that_move_the_scale_are_named(name: str, prior: str) -> None:
    data = simulate(300, n_items=20, g=0.2)
    state = fit(data, guessing="common", **{name: prior})
    (warning,) = (w.text for w in state.warnings if "another scale" in w.text)
    assert warning.startswith(f"{{{name}}} outweighs the rows")
    state = fit(data, guessing="common", prior_precision=3.0)
    assert not any("another scale" in w.text for w in state.warnings)
