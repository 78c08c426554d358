"""Measurements predicted from the other values of their rows, by Bayes' theorem."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
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


def test_binary_features_have_no_held_out_values(people: pd.DataFrame) -> None:
    data = lb.from_dataframe(people[["b0", "b1"]])
    fitted = lb.fit(data, "bernoulli-mixture", components=1, errors="none")
    assert "held_out" not in lb.evaluate(fitted, data)
