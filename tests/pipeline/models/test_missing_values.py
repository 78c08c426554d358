"""What models make of values that are missing: at random, and by the values of other items.

Reference: the share of ones of the same rows with nothing missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, ndtr

from latentbits import functions as api
from tests.support.data import write_arrays

ROWS, SEEN, ITEMS = 20_000, 4, 8
"""The first items are always seen; the others are missing in many rows."""


def drawn(by_others: bool) -> tuple[np.ndarray, np.ndarray]:
    """One trait; either 45 % are missing, or 80 % where two of the items seen are 1, else 10 %."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(ROWS)
    eta = 1.5 * z[:, None] + np.linspace(-0.5, 0.5, ITEMS)
    X = (rng.random((ROWS, ITEMS)) < expit(eta)).astype(np.uint8)
    many = np.where(X[:, :SEEN].sum(axis=1) >= 2, 0.8, 0.1)
    observed = np.ones_like(X)
    share = many if by_others else np.full(ROWS, 0.45)
    observed[:, SEEN:] = rng.random((ROWS, ITEMS - SEEN)) >= share[:, None]
    return X, observed


def told(X: np.ndarray, observed: np.ndarray, path: Path) -> dict[str, np.ndarray]:
    """Shares of ones of the items that were missing, by model, and their correlations."""
    dataset = write_arrays(path, X * observed, observed)
    pca = api.fit(dataset, "clipped-pca", components=1).params
    quadrature: dict[str, Any] = {"components": 1, "estimator": "quadrature"}
    trait = api.fit(dataset, "latent-trait", **quadrature).params
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    eta = nodes[:, None] * trait.weights[:, 0] + trait.offsets
    shares = weights @ expit(eta) / weights.sum()
    pairs = np.triu_indices(ITEMS - SEEN, 1)
    return {
        "clipped-pca": ndtr(-pca.thresholds)[SEEN:],
        "latent-trait": shares[SEEN:],
        "correlations": pca.correlation[SEEN:, SEEN:][pairs],
    }


@pytest.mark.parametrize("by_others", [False, True])
def test_pairwise_counts_need_values_missing_completely_at_random(
    by_others: bool, tmp_path: Path
) -> None:
    X, observed = drawn(by_others)
    found = told(X, observed, tmp_path / "part.zarr")
    whole = told(X, np.ones_like(X), tmp_path / "whole.zarr")
    truth = X[:, SEEN:].mean(axis=0)
    np.testing.assert_allclose(whole["clipped-pca"], truth, atol=1e-9)
    off = {name: (found[name] - truth).mean() for name in ("clipped-pca", "latent-trait")}
    moved = (found["correlations"] - whole["correlations"]).mean()
    assert abs(off["latent-trait"]) < 0.01
    if by_others:
        assert off["clipped-pca"] < -0.1
        assert moved < -0.08
    else:
        assert abs(off["clipped-pca"]) < 0.01
        assert abs(moved) < 0.01
