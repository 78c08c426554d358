"""Patterns with more than three correlated traits, by expectation propagation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
from numpy.typing import NDArray

import latentbits as lb
from pipeline.data.features import Feature, make_binary_features
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.random import RowRandom
from tests.pipeline.models.latent_trait.test_ordinal import Levels, make_data, make_features
from tests.pipeline.models.latent_trait.test_patterns import Entries, make_pattern
from tests.support.strategies import make_memory_blocks, make_memory_rows

Floats = NDArray[np.float64]

N_ROWS, N_TRAITS = 1000, 4
N_LEVELS = [3, 2, 4] * N_TRAITS
FEATURES = make_features([f"i{k + 1}" for k in range(len(N_LEVELS))], N_LEVELS)
SIMPLE = [text for k in range(4) for text in ["0" * k + "1" + "0" * (3 - k)] * 3]
TRAITS = np.repeat(np.arange(N_TRAITS), 3)
SLOPES = np.array([1.4, -1.8, 1.6, 1.5, 1.1, 2.0, 1.2, 1.7, 1.3, 1.0, 1.9, 1.5])
CORRELATION = scipy.linalg.toeplitz([1.0, 0.5, 0.3, 0.2])


def simulate(n_rows: int = N_ROWS) -> Levels:
    """Draw levels, of which some are missing: -1."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((n_rows, N_TRAITS)) @ np.linalg.cholesky(CORRELATION).T
    y = SLOPES * x[:, TRAITS] + rng.logistic(size=(n_rows, len(SLOPES)))
    cuts = [np.linspace(-1.3, 1.0, m - 1) for m in N_LEVELS]
    levels = np.stack([np.searchsorted(c, own) for c, own in zip(cuts, y.T, strict=True)]).T
    return np.where(rng.random(levels.shape) < 0.1, -1, levels)


def fit(
    levels: Levels,
    entries: Entries,
    features: tuple[Feature, ...] = FEATURES,
    groups: tuple[str, ...] = (),
    columns: Any = None,
    **settings: Any,
) -> FitState:
    structure = Structure(groups, features, pattern=make_pattern(entries))
    model = LatentTrait(**settings).with_structure(structure)
    rows = make_memory_rows(make_data(levels, features, **(columns or {})))
    return fit_model(model, rows, SerialExecutor())


@cache
def fit_four_traits() -> FitState:
    return fit(simulate(), SIMPLE)


def test_estimates_are_near_the_truth() -> None:
    state = fit_four_traits()
    params, above = state.params, np.triu_indices(N_TRAITS, 1)
    signs = np.sign([SLOPES[k == TRAITS].sum() for k in range(N_TRAITS)])
    assert (signs == 1).all()
    loads = np.arange(len(SLOPES)), TRAITS
    off = [(params.weights[loads] - SLOPES) / params.weights_error[loads]]
    correlations, errors = params.trait_covariance[0], params.trait_covariance_error[0]
    off.append((correlations[above] - CORRELATION[above]) / errors[above])
    offsets = np.concatenate([-np.linspace(-1.3, 1.0, m - 1) for m in N_LEVELS])
    off.append((params.level_offsets - offsets) / params.level_offsets_error)
    assert np.abs(np.concatenate(off)).max() < 3.5
    assert 0.7 < np.sqrt((np.concatenate(off) ** 2).mean()) < 1.3
    assert errors[above].max() < 0.06
    np.testing.assert_array_equal(np.diag(correlations), 1.0)
    np.testing.assert_array_equal(params.component_correlation, correlations)


def test_the_objective_is_no_exact_likelihood() -> None:
    """Nothing is reported that would need one, such as AIC or a test."""
    state = fit_four_traits()
    assert state.diagnostics["estimator"] == "ep"
    assert state.diagnostics["errors"] == "crossproduct"
    assert not {"log_likelihood", "aic"} & {*state.diagnostics["fit_statistics"]}
    assert not state.warnings


def test_the_pattern_that_drew_the_rows_fits() -> None:
    found = fit_four_traits().diagnostics["fit_statistics"]
    assert found["chi2_df"] == 66 - 12 - 6
    assert found["chi2_p"] > 0.01
    assert found["rmsea"] < 0.03
    assert found["cfi"] > 0.99
    assert found["srmr"] < 0.04


def test_slopes_that_run_away_end_a_stage() -> None:
    """They have no maximum, and every further pass needs finer nodes."""
    state = fit_four_traits()
    structure = Structure((), FEATURES, pattern=make_pattern(SIMPLE))
    model = LatentTrait().with_structure(structure)
    moving = list(np.arange(40.0))
    for diverging, has_converged in (([], False), ([0], True)):
        auxiliary = {**state.auxiliary, "diverging": np.array(diverging, np.int64)}
        criterion = model.get_convergence_criterion(replace(state, auxiliary=auxiliary))
        assert criterion.has_converged(moving) == has_converged


def test_pairs_of_traits_by_quadrature_have_the_same_correlations() -> None:
    found, levels = fit_four_traits().params, simulate()
    chosen = np.isin(TRAITS, [0, 2])
    features = tuple(FEATURES[k] for k in np.flatnonzero(chosen))
    pair = fit(levels[:, chosen], ["10"] * 3 + ["01"] * 3, features).params
    error = pair.trait_covariance_error[0, 0, 1]
    assert found.trait_covariance[0, 0, 2] == pytest.approx(
        pair.trait_covariance[0, 0, 1], abs=0.3 * error
    )
    assert found.trait_covariance_error[0, 0, 2] == pytest.approx(error, rel=0.1)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("entries", "tol"), [(["10"] * 3 + ["01"] * 3, 1e-3), (["10", "11", "10"] + ["01"] * 3, 0.02)]
)
def test_two_traits_are_as_by_quadrature(entries: Entries, tol: float) -> None:
    levels, features = simulate(600)[:, :6], FEATURES[:6]
    settings = {"tol": 1e-9, "errors": "crossproduct"}
    own, exact = (fit(levels, entries, features, estimator=e, **settings) for e in ("ep", "auto"))
    for name in ("weights", "level_offsets", "trait_covariance"):
        ours, theirs = (getattr(state.params, name) for state in (own, exact))
        np.testing.assert_allclose(ours, theirs, atol=tol)
    for name in ("weights_error", "level_offsets_error", "trait_covariance_error"):
        ours, theirs = (getattr(state.params, name) for state in (own, exact))
        np.testing.assert_allclose(ours, theirs, rtol=0.02 + tol)


def test_codes_and_log_likelihoods() -> None:
    params, levels = fit_four_traits().params, simulate()
    (block,) = make_memory_blocks(make_data(levels, FEATURES))
    model = LatentTrait()
    codes = model.transform(params, block, RowRandom(0))
    second = codes["covariance"].mean(axis=0) + np.cov(codes["mean"].T)
    np.testing.assert_allclose(second, params.trait_covariance[0], atol=0.01)
    found = model.log_likelihood(params, block, RowRandom(0))
    error = np.sqrt((found.standard_error**2).sum()) / N_ROWS
    objective = fit_four_traits().history[-1]
    assert found.nats.mean() == pytest.approx(objective, abs=4 * error)


def test_binary_items_have_patterns_of_many_traits() -> None:
    levels = (simulate() >= 1).astype(np.int64)
    features = make_binary_features([f"i{k + 1}" for k in range(12)])
    state = fit(levels, SIMPLE, features)
    off = state.params.trait_covariance[0] - CORRELATION
    assert np.abs(off).max() < 3.5 * state.params.trait_covariance_error[0].max() < 0.5
    assert state.diagnostics["estimator"] == "ep"


@pytest.mark.matrix
def test_groups_differ_in_the_means_and_variances_of_traits() -> None:
    levels = simulate(1500)
    groups = np.arange(1500) % 2
    rng = np.random.default_rng(8)
    # The second group answers as persons with a higher first trait do.
    shifted = SLOPES[:3] * (1.5 * rng.standard_normal((1500, 1)) + 0.7)
    own = np.stack(
        [
            np.searchsorted(np.linspace(-1.3, 1.0, m - 1), y)
            for m, y in zip(N_LEVELS, (shifted + rng.logistic(size=(1500, 3))).T, strict=False)
        ]
    ).T
    levels[groups == 1, :3] = own[groups == 1]
    state = fit(levels, SIMPLE, groups=("a", "b"), columns={"segments": groups})
    assert state.diagnostics["fit_statistics"]["chi2_missing"] == "the fit has groups"
    params = state.params
    assert abs(params.trait_mean[1, 0] - 0.7) < 3 * params.trait_mean_error[1, 0] < 0.5
    off = params.trait_covariance[1, 0, 0] - 1.5**2
    assert abs(off) < 3 * params.trait_covariance_error[1, 0, 0] < 1.8
    assert not params.trait_mean[0].any()


@pytest.mark.matrix
def test_measurements_are_a_factor_analysis() -> None:
    """Without levels, the objective is the log-likelihood of a multivariate normal."""
    rng, names = np.random.default_rng(2), [f"i{k + 1}" for k in range(12)]
    x = rng.standard_normal((400, N_TRAITS)) @ np.linalg.cholesky(CORRELATION).T
    y = 0.8 * x[:, TRAITS] + 0.6 * rng.standard_normal((400, 12))
    pattern = pd.DataFrame({"item": names} | {t: 1 * (k == TRAITS) for k, t in enumerate("ABCD")})
    data = lb.from_numpy(y, names, continuous=names)
    fitted = lb.fit(data, "latent-trait", pattern=pattern)
    params = fitted.params
    scales = params.units.scales
    w = params.weights * scales[:, None]
    covariance = w @ params.trait_covariance[0] @ w.T + np.diag((params.deviations * scales) ** 2)
    nats = scipy.stats.multivariate_normal(y.mean(axis=0), covariance).logpdf(y)
    assert fitted.objective == pytest.approx(nats.mean(), abs=1e-5)
    error = params.trait_covariance_error[0, 0, 1]
    assert abs(params.trait_covariance[0, 0, 1] - 0.5) < 3 * error < 0.2


def test_untidy_items() -> None:
    """A constant item, a level nobody chose, and a trait with two items."""
    levels = simulate(600)
    levels[:, 0], levels[levels[:, 5] == 2, 5] = 1, 3
    with pytest.raises(FitError, match="constant: 'i1'"):
        fit(levels, SIMPLE)
    state = fit(levels, SIMPLE, constant_features="keep", tol=1e-5)
    texts = [warning.text for warning in state.warnings]
    assert any("constant" in text for text in texts)
    assert not state.params.weights[0].any()
    for name in ("weights", "level_offsets", "trait_covariance", "trait_covariance_error"):
        assert np.isfinite(getattr(state.params, name)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "quadrature"}, 'quadrature takes at most 3. Use estimator="auto"'),
        ({"estimator": "sampling"}, "cannot be combined with features that have several levels"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FitError, match=message):
        fit(simulate(20), SIMPLE, **settings)
