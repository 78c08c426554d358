"""Classes regressed on covariates in three steps, against a general optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

import latentbits as lb
from pipeline.errors import FitError

N_ROWS = 400
P = np.array([[0.85] * 6, [0.85] * 3 + [0.15] * 3, [0.15] * 6])


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, Any, dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    age = np.round(rng.normal(40, 10, N_ROWS))
    sex = rng.integers(0, 2, N_ROWS)
    odds = np.column_stack([np.zeros(N_ROWS), (age - 40) / 10, 1.0 * sex])
    shares = scipy.special.softmax(odds, axis=1)
    classes = (rng.random((N_ROWS, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    X = (rng.random((N_ROWS, 6)) < P[classes]).astype(np.uint8)
    columns = {"age": age, "sex": np.where(sex, "None", "NA").astype(object)}
    columns["copy"], columns["one"] = age * 2 + 1, np.ones(N_ROWS)
    columns["item"] = X[:, 0] * 1.0
    data = lb.from_numpy(X, keep=columns)
    return lb.fit(data, "bernoulli-mixture", components=3), data, columns


@pytest.mark.parametrize("correction", ["ml", "bch", "none"])
def test_coefficients_maximise_the_likelihood(fitted: Any, correction: Any) -> None:
    model, data, columns = fitted
    found = lb.evaluate(
        model, data, covariates=["age", "sex=NA"], correction=correction, reference=2
    )["regression"]
    assert found["names"] == ["(intercept)", "age", "sex=None"]
    posterior = np.asarray(lb.transform(model, data)["mean"])
    s = posterior.argmax(axis=1)
    D = np.stack([posterior[s == k].sum(axis=0) for k in range(3)], axis=1)
    D /= D.sum(axis=1, keepdims=True)
    D = np.eye(3) if correction == "none" else D
    z = np.column_stack([np.ones(N_ROWS), (columns["age"] - 40) / 10, columns["sex"] == "None"])

    def loss(free: np.ndarray) -> float:
        beta = np.insert(free.reshape(3, 2), 1, 0, axis=1)
        log_shares = scipy.special.log_softmax(z @ beta, axis=1)
        if correction == "bch":
            return float(-(np.linalg.inv(D)[s] * log_shares).sum())
        return float(-np.log((np.exp(log_shares) * D[:, s].T).sum(axis=1)).sum())

    best = scipy.optimize.minimize(loss, np.zeros(6), method="BFGS", tol=1e-8).x.reshape(3, 2)
    own = np.array(found["coefficients"])
    assert (own[:, 1] == 0).all()
    scaled = np.vstack([own[0] + 40 * own[1], 10 * own[1], own[2]])
    np.testing.assert_allclose(scaled[:, [0, 2]], best, atol=2e-3)
    assert (np.array(found["errors"])[:, [0, 2]] > 0).all()
    tests = {test["column"]: test for test in found["tests"]}
    assert tests["age"]["df"] == 2
    assert tests["age"]["p"] < 1e-3


def test_errors_do_not_depend_on_the_reference(fitted: Any) -> None:
    """Log-odds of 1 against 2 are those of 2 against 1 with the other sign."""
    model, data, _ = fitted
    found = [
        lb.evaluate(model, data, covariates=["age"], correction="ml", reference=k) for k in (1, 2)
    ]
    one, two = (own["regression"] for own in found)
    assert found[1].tables["covariates"]["class"] == [1, 3, 1, 3]
    for name, sign in (("coefficients", -1), ("errors", 1)):
        left = np.array(one[name])[:, 1]
        np.testing.assert_allclose(left, sign * np.array(two[name])[:, 0], rtol=1e-4)


REFUSALS = {
    "reference": ({"covariates": ["age"], "reference": 4}, "reference is 4, but the fit has 3"),
    "copy": ({"covariates": ["age", "copy"]}, "copy is a linear combination of age"),
    "constant": ({"covariates": ["one"]}, "one is constant"),
    "unknown": ({"covariates": ["height"]}, "height"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_used_is_refused(fitted: Any, case: str) -> None:
    model, data, _ = fitted
    arguments, message = REFUSALS[case]
    with pytest.raises((FitError, ValueError), match=message):
        lb.evaluate(model, data, **arguments)
