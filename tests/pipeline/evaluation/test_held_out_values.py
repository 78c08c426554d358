"""Values predicted from the other values of their rows, by Bayes' theorem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from scipy.stats import norm

import latentbits as lb
from pipeline.evaluation import held_out_values

NAMES = ["age", "income", "time"]


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 300)
    numbers = rng.normal(np.outer(z, [2.0, 1.0, 1.5]), [1.0, 0.5, 1.0]) * [10, 1e3, 1] + [40, 0, 3]
    numbers[rng.random(numbers.shape) < 0.1] = np.nan
    table = pd.DataFrame(numbers.astype(np.float32), columns=NAMES)
    return table.assign(b0=(rng.random(300) < 0.2 + 0.6 * z) * 1, b1=rng.integers(0, 2, 300))


@pytest.fixture(scope="module")
def fitted(people: pd.DataFrame) -> lb.Fitted:
    data = lb.from_dataframe(people, continuous=NAMES)
    return lb.fit(data, "bernoulli-mixture", components=2, errors="none", seed=1)


def predict(people: pd.DataFrame, fitted: lb.Fitted) -> tuple[np.ndarray, np.ndarray]:
    """Return E(y_j | all other values), and P(y_j ≤ x_j | all other values), (n_rows, 3) each."""
    params = fitted.params
    X, bits = people[NAMES].to_numpy(), people[["b0", "b1"]].to_numpy()[:, None]
    density = norm.logpdf(X[:, None], params.gaussians.means, params.gaussians.deviations)
    density = np.nan_to_num(density, nan=0.0)
    by_bits = np.log(np.where(bits == 1, params.probabilities, 1 - params.probabilities)).sum(2)
    total = np.log(params.weights) + by_bits + density.sum(axis=2)
    log_joint = total[:, :, None] - density
    posterior = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
    posterior /= posterior.sum(axis=1, keepdims=True)
    below = norm.cdf(X[:, None], params.gaussians.means, params.gaussians.deviations)
    return (posterior * params.gaussians.means).sum(axis=1), (posterior * below).sum(axis=1)


def test_predictions_are_conditional_means(people: pd.DataFrame, fitted: lb.Fitted) -> None:
    found = lb.evaluate(fitted, lb.from_dataframe(people, continuous=NAMES))
    held_out, (expected, below) = found["held_out"], predict(people, fitted)
    assert (held_out["rows"], held_out["of"]) == (300, 300)
    for j, own in enumerate(held_out["continuous"]):
        x = people[NAMES[j]].to_numpy()
        seen = ~np.isnan(x)
        errors = x[seen] - expected[seen, j]
        assert own["feature"] == NAMES[j]
        assert own["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)
        assert own["r2"] == pytest.approx(1 - (errors**2).mean() / x[seen].var(), rel=1e-5)
        assert own["correlation"] == pytest.approx(np.corrcoef(x[seen], expected[seen, j])[0, 1])
        is_inside = (below[seen, j] > 0.05) & (below[seen, j] < 0.95)
        assert own["inside_90"] == is_inside.mean()
    assert 0.1 < held_out["r2"] < found["r2"]
    assert held_out["inside_90"] == pytest.approx(0.9, abs=0.05)


def test_some_of_many_features_are_predicted(
    people: pd.DataFrame, fitted: lb.Fitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lb.from_dataframe(people, continuous=NAMES)
    every = lb.evaluate(fitted, data)["held_out"]["continuous"]
    monkeypatch.setattr(held_out_values, "MAX_HELD_OUT_FEATURES", 2)
    some = lb.evaluate(fitted, data)["held_out"]["continuous"]
    assert len(some) == 2
    assert all(own in every for own in some)


@pytest.mark.parametrize("n_levels", [2, 3])
@pytest.mark.parametrize("model", ["tree-mixture", "bernoulli-mixture"])
def test_levels_are_predicted_as_if_they_were_missing(model: str, n_levels: int) -> None:
    rng = np.random.default_rng(4)
    wish = rng.normal(size=(250, 1)) + rng.normal(size=(250, 5))
    X = (wish > 0).astype(float) + (n_levels - 2) * (wish > 1)
    X[rng.random(X.shape) < 0.1] = np.nan
    texts = tuple(map(str, range(n_levels)))
    names = [f"q{i}" for i in range(5)]

    def make(X: np.ndarray) -> Any:
        return lb.from_numpy(X, names, levels=None if n_levels == 2 else texts)

    fitted = lb.fit(make(X), model, components=2, max_iter=5)
    nats, wrong = [], []
    for i in range(5):
        hidden = X.copy()
        hidden[:, i] = np.nan
        codes = lb.transform(fitted, make(hidden), impute="probabilities")
        planes = codes["imputed_probabilities"]
        ones = planes[:, i]
        shares = np.stack([1 - ones, ones], 1) if n_levels == 2 else planes[:, 3 * i : 3 * i + 3]
        seen = ~np.isnan(X[:, i])
        levels = X[seen, i].astype(int)
        nats += (-np.log(shares[seen, levels])).tolist()
        wrong += (shares[seen].argmax(axis=1) != levels).tolist()
    found = lb.evaluate(fitted, make(X))["held_out"]
    assert (found["rows"], found["of"]) == (250, 250)
    assert found["wrong_values"] == np.mean(wrong)
    assert found["nll_per_value"] == pytest.approx(np.mean(nats), rel=1e-9)


def test_measurements_and_levels_are_predicted(people: pd.DataFrame, fitted: lb.Fitted) -> None:
    """Bits by their kinds, given the numbers too."""
    found = lb.evaluate(fitted, lb.from_dataframe(people, continuous=NAMES))["held_out"]
    params, X = fitted.params, people[NAMES].to_numpy()
    density = norm.logpdf(X[:, None], params.gaussians.means, params.gaussians.deviations)
    start = np.log(params.weights) + np.nansum(density, axis=2)
    wrong, nats = [], []
    for i, j in ((0, 1), (1, 0)):
        p, own, other = params.probabilities, people[f"b{i}"], people[f"b{j}"].to_numpy()
        joint = start + np.log(np.where(other[:, None] == 1, p[:, j], 1 - p[:, j]))
        one = softmax(joint, axis=1) @ p[:, i]
        wrong += [(one > 0.5) != own]
        nats += [-np.log(np.where(own == 1, one, 1 - one))]
    assert found["wrong_values"] == np.mean(wrong)
    assert found["nll_per_value"] == pytest.approx(np.mean(nats), rel=1e-9)
