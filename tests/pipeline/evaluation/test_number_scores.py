"""Scores of reconstructed measurements, against whole arrays."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.evaluation.value_scores import (
    ReconstructionSums,
    compute_number_losses,
    describe_number_losses,
)

NAMES = ["age", "income", "height"]


def make_values(n_rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Draw values with some missing, and their reconstructions, (n_rows, 3) each."""
    rng = np.random.default_rng(0)
    values = np.array([40.0, 1e6, -3.0]) + [10.0, 2.0, 0.1] * rng.standard_normal((n_rows, 3))
    values = values.astype(np.float32)
    reconstructed = values + [4.0, 3.0, 0.02] * rng.standard_normal((n_rows, 3))
    values[rng.random(values.shape) < 0.2] = np.nan
    return values, reconstructed


def sum_losses(values: np.ndarray, reconstructed: np.ndarray, cuts: list[int]) -> dict:
    parts = []
    for rows in np.split(np.arange(len(values)), cuts):
        block = pack_block(np.zeros((len(rows), 0), np.uint8), numbers=values[rows].T)
        losses = compute_number_losses(block, reconstructed[rows])
        parts.append(ReconstructionSums(len(rows), len(rows), 0.0, losses))
    return describe_number_losses(reduce(ReconstructionSums.merge, parts).values, NAMES)


@pytest.mark.parametrize("cuts", [[], [1, 60, 61, 200], [0, 150]])
def test_scores_are_those_of_whole_arrays(cuts: list[int]) -> None:
    values, reconstructed = make_values()
    found = sum_losses(values, reconstructed, cuts)
    r2, correlation = [], []
    for i, own in enumerate(found["continuous"]):
        seen = ~np.isnan(values[:, i])
        x, guess = values[seen, i].astype(float), reconstructed[seen, i]
        errors = x - guess
        r2.append(1 - (errors**2).mean() / x.var())
        correlation.append(np.corrcoef(x, guess)[0, 1])
        assert own["feature"] == NAMES[i]
        assert own["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-12)
        assert own["r2"] == pytest.approx(r2[i], rel=1e-9)
        assert own["correlation"] == pytest.approx(correlation[i], rel=1e-9)
    assert r2[1] < 0 < r2[0]
    assert found["r2"] == pytest.approx(np.mean(r2))
    assert found["correlation"] == pytest.approx(np.mean(correlation))


def test_values_without_spread_have_no_correlation() -> None:
    values, reconstructed = make_values()
    values[:, 0], values[:, 1], reconstructed[:, 2] = np.nan, 0.1, 0.7
    found = sum_losses(values, reconstructed, [77])
    unseen, equal, blind = found["continuous"]
    assert unseen == {"feature": "age", "rmse": None, "r2": None, "correlation": None}
    assert equal["rmse"] > 0
    assert equal["r2"] is equal["correlation"] is blind["correlation"] is None
    assert found["r2"] == blind["r2"] < 0
    assert found["correlation"] is None


def test_reconstructions_that_are_not_finite_are_refused() -> None:
    values, reconstructed = make_values(5)
    reconstructed[3, 1] = np.inf
    with pytest.raises(FitError, match="row 4: the expected values are not finite"):
        sum_losses(values, reconstructed, [])
