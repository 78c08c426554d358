"""Standard errors and fit statistics: R's mirt on two data sets, and intervals that cover."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from latentbits import fit, from_numpy
from latentbits.fitted import Fitted
from pipeline.numerics.spectra.rotations import principal_axes
from tests.acceptance.test_two_tables import saved

REFERENCE = Path(__file__).parents[1] / "reference"
ITEMS = pd.read_csv(REFERENCE / "mirt_items.csv")
ITEM_FIT = pd.read_csv(REFERENCE / "mirt_item_fit.csv")
FIT = pd.read_csv(REFERENCE / "mirt_fit.csv").set_index("dataset")
FORMS = {"louis": "", "crossproduct": "_crossprod", "sandwich": "_sandwich"}
# Rows of each pattern of five answers, 00000 to 11111 (R. D. Bock, M. Lieberman, Psychometrika 35
# (1970), table 1, section 7 of the Law School Admission Test).
LSAT_7 = (
    *(12, 19, 1, 7, 3, 19, 3, 17, 10, 5, 3, 7, 7, 23, 8, 28),
    *(7, 39, 11, 34, 14, 51, 15, 90, 6, 25, 7, 35, 18, 136, 32, 308),
)


def fitted(name: str, errors: str = "louis") -> Fitted:
    data = from_numpy(saved(name)["X"])
    return fit(data, "latent-trait", components=1, errors=errors)


@pytest.mark.parametrize("name", ["lsat6", "verbal_aggression"])
def test_fit_statistics_are_those_of_mirt(name: str) -> None:
    done, expected = fitted(name), FIT.loc[name]
    told = done.statistics
    assert told["log_likelihood"] == pytest.approx(expected["log_likelihood"], abs=1e-3)
    for index in ("aic", "bic", "m2", "m2_p", "rmsea", "srmsr", "tli", "cfi"):
        assert told[index] == pytest.approx(expected[index], rel=1e-3, abs=1e-4), index
    assert told["m2_df"] == expected["m2_df"]
    assert told["rmsea_interval"] == pytest.approx(
        [expected["rmsea_5"], expected["rmsea_95"]], rel=1e-2
    )
    assert told["reliability"] == pytest.approx([expected["reliability"]], rel=1e-2)
    items = ITEM_FIT[ITEM_FIT.dataset == name]
    assert done.params.s_x2_df.tolist() == items["s_x2_df"].tolist()
    for column in ("s_x2", "s_x2_p", "infit", "outfit"):
        values = getattr(done.params, column)
        np.testing.assert_allclose(values, items[column], rtol=0.01, atol=5e-4, err_msg=column)


@pytest.mark.parametrize("errors", [*FORMS])
@pytest.mark.parametrize("name", ["lsat6", "verbal_aggression"])
def test_standard_errors_are_those_of_mirt(name: str, errors: str) -> None:
    params, expected = fitted(name, errors).params, ITEMS[ITEMS.dataset == name]
    assert params.weights[:, 0] == pytest.approx(expected["a"].to_numpy(), abs=5e-4)
    assert params.offsets == pytest.approx(expected["d"].to_numpy(), abs=5e-4)
    of_mirt = [expected[f"se_{letter}{FORMS[errors]}"] for letter in "ad"]
    np.testing.assert_allclose(params.weights_error[:, 0], of_mirt[0], rtol=0.005)
    np.testing.assert_allclose(params.offsets_error, of_mirt[1], rtol=0.005)


def test_the_likelihood_of_lsat_7() -> None:
    patterns = (np.arange(32)[:, None] >> np.arange(4, -1, -1)) & 1
    done = fit(from_numpy(patterns.repeat(LSAT_7, axis=0)), "latent-trait", components=1)
    assert done.statistics["log_likelihood"] == pytest.approx(-2658.805, abs=1e-3)


def test_more_rows_than_the_information_takes_give_the_same_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sums over a sample of rows are scaled up."""
    rng = np.random.default_rng(5)
    X = drawn(rng.uniform(0.5, 2, (10, 1)), rng.uniform(-1, 1, 10), 20_000, rng)
    whole = fit(from_numpy(X), "latent-trait", components=1).params
    monkeypatch.setattr("pipeline.models.latent_trait.error_sums.MAX_ROWS", 5000)
    sampled = fit(from_numpy(X), "latent-trait", components=1).params
    assert not np.array_equal(sampled.weights_error, whole.weights_error)
    np.testing.assert_allclose(sampled.weights_error, whole.weights_error, rtol=0.05)
    np.testing.assert_allclose(sampled.offsets_error, whole.offsets_error, rtol=0.05)


def drawn(
    weights: NDArray[np.float64],
    offsets: NDArray[np.float64],
    n_rows: int,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    chances = expit(rng.standard_normal((n_rows, weights.shape[1])) @ weights.T + offsets)
    return (rng.random(chances.shape) < chances).astype(np.uint8)


def covered(seed: int, q: int) -> NDArray[np.bool_]:
    """Whether 95 % intervals of one fit hold the true parameters, (n_features, q + 1)."""
    rng = np.random.default_rng([seed, q])
    weights, offsets = rng.uniform(0.5, 2, (20, q)), rng.uniform(-1.5, 1.5, 20)
    if q > 1:
        signs = rng.choice([-1, 1], weights.shape)
        weights = principal_axes(weights * signs * np.array([1.5, 0.7]))
    params = fit(
        from_numpy(drawn(weights, offsets, 1000, rng)), "latent-trait", components=q
    ).params
    found = params.weights * np.sign((params.weights * weights).sum(axis=0))
    within = abs(found - weights) < 1.96 * params.weights_error
    return np.column_stack([within, abs(params.offsets - offsets) < 1.96 * params.offsets_error])


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("n_sets", "q"),
    [
        (40, 1),
        pytest.param(200, 1, marks=pytest.mark.slow),
        pytest.param(200, 2, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover(n_sets: int, q: int) -> None:
    share = np.mean([covered(seed, q) for seed in range(n_sets)], axis=(0, 1))
    assert ((share > 0.93) & (share < 0.97)).all()


def mixture_covered(seed: int) -> NDArray[np.float64]:
    """Share of a mixture's probabilities and weights that 95 % intervals of one fit hold."""
    rng = np.random.default_rng([seed, 5])
    P, weights = rng.uniform(0.1, 0.9, (3, 20)), np.array([0.5, 0.3, 0.2])
    X = (rng.random((1000, 20)) < P[rng.choice(3, 1000, p=weights)]).astype(np.uint8)
    params = fit(from_numpy(X), "bernoulli-mixture", components=3).params
    orders = (list(order) for order in permutations(range(3)))
    at = min(orders, key=lambda order: ((params.probabilities[order] - P) ** 2).sum())
    low, high = params.errors.probabilities_interval[:, at]
    near = abs(params.weights[at] - weights) < 1.96 * params.errors.weights_error[at]
    return np.array([((low < P) & (high > P)).mean(), near.mean()])


@pytest.mark.matrix
@pytest.mark.parametrize("n_sets", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_intervals_of_a_mixture_cover(n_sets: int) -> None:
    shares = np.mean([mixture_covered(seed) for seed in range(n_sets)], axis=0)
    assert 0.93 < shares[0] < 0.97
    assert abs(shares[1] - 0.95) < 0.02 + 2 * np.sqrt(0.05 / (3 * n_sets))


def clipped_covered(seed: int, missing: float) -> NDArray[np.float64]:
    """Share of clipped PCA's correlations, loadings and thresholds that 95 % intervals hold."""
    rng = np.random.default_rng([seed, 7])
    W = rng.uniform(-1, 1, (20, 2)) * np.array([0.8, 0.5])
    W[:, 0] = abs(W[:, 0])
    C = W @ W.T
    np.fill_diagonal(C, 1)
    values, vectors = np.linalg.eigh(C)
    loadings = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1])
    noise = rng.standard_normal((1000, 20)) * np.sqrt(1 - (W**2).sum(axis=1))
    x = rng.standard_normal((1000, 2)) @ W.T + noise
    thresholds = rng.uniform(-0.8, 0.8, 20)
    X = np.where(rng.random(x.shape) < missing, np.nan, x > thresholds)
    params = fit(from_numpy(X), "clipped-pca", components=2).params
    found = params.loadings * np.sign((params.loadings * loadings).sum(axis=0))
    pairs = np.triu_indices(20, 1)
    moved = [
        (abs(params.correlation - C) / params.correlation_error)[pairs],
        (abs(found - loadings) / params.loadings_error).ravel(),
        abs(params.thresholds - thresholds) / params.thresholds_error,
    ]
    return np.array([(z < 1.96).mean() for z in moved])


@pytest.mark.filterwarnings("ignore:invalid value")  # 0 / 0 on the diagonal
@pytest.mark.parametrize(
    ("n_sets", "missing"),
    [
        (40, 0.0),
        pytest.param(200, 0.0, marks=pytest.mark.slow),
        pytest.param(200, 0.2, marks=pytest.mark.slow),
    ],
)
def test_intervals_of_clipped_pca_cover(n_sets: int, missing: float) -> None:
    shares = np.mean([clipped_covered(seed, missing) for seed in range(n_sets)], axis=0)
    assert ((shares > 0.93) & (shares < 0.97)).all()
