"""Mixtures of many rows start on a sample, and take Newton's steps with its information."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting import sample_start
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.state import FitState
from pipeline.params import get_array
from tests.support.sample_starts import lower_thresholds, start_on_all_rows
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS = 6000


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fits of thousands of rows start on a third of them."""
    lower_thresholds(monkeypatch, N_ROWS)


COLUMNS = ("group", "age", "times", "share")
BINARY = [f"f{k}" for k in range(10)]


def draw_rows(missing: float = 0.0, seed: int = 0, n_rows: int = N_ROWS) -> pd.DataFrame:
    """Draw rows of three classes, with features of every kind and further columns."""
    rng = np.random.default_rng(seed)
    z = rng.choice(3, n_rows, p=[0.5, 0.3, 0.2])
    bits = rng.random((n_rows, 10)) < rng.uniform(0.15, 0.85, (3, 10))[z]
    values = np.where(rng.random(bits.shape) < missing, np.nan, bits)
    levels = rng.binomial(3, np.array([0.2, 0.5, 0.8])[z])
    return pd.DataFrame(dict(zip(BINARY, values.T, strict=True))).assign(
        level=pd.Categorical(levels, ordered=True),
        number=np.array([0.0, 1.5, 3.0])[z] + rng.standard_normal(n_rows),
        group=np.where(rng.random(n_rows) < 0.3 + 0.2 * z, "a", "b"),
        age=40 + 10 * (z - 1) + 15 * rng.standard_normal(n_rows),
        times=rng.integers(1, 4, n_rows),
        share=rng.uniform(0.5, 2, n_rows),
    )


def fit(frame: pd.DataFrame, features: Any = BINARY, **options: Any) -> Any:
    frame = frame[[*features, *COLUMNS]]
    continuous = ["number"] if "number" in features else []
    data = lb.from_dataframe(frame, keep=COLUMNS, continuous=continuous)
    return lb.fit(data, "bernoulli-mixture", **{"components": 3, "tol": 1e-9, **options})


def fit_from_all_rows(frame: pd.DataFrame, features: Any = BINARY, **options: Any) -> Any:
    with start_on_all_rows():
        return fit(frame, features, **options)


def get_diagnostics(fitted: Any) -> dict[str, Any]:
    found: dict[str, Any] = fitted.manifest["diagnostics"]
    return found


CASES: list[tuple[float, list[str], dict[str, Any]]] = [
    (0.0, BINARY, {}),
    (0.2, BINARY, {}),
    (0.0, [*BINARY, "level", "number"], {}),
    (0.1, [*BINARY, "level"], {"group": "group"}),
    (0.0, BINARY, {"covariates": ["age", "group"]}),
    (0.0, BINARY, {"weight": "times"}),
    (0.0, BINARY, {"weight": "share", "weights": "sampling"}),
]


@pytest.mark.parametrize(("missing", "features", "options"), CASES)
def test_the_optimum_is_that_of_passes_over_all_rows(
    missing: float, features: list[str], options: dict[str, Any]
) -> None:
    frame = draw_rows(missing)
    expected, found = (run(frame, features, **options) for run in (fit_from_all_rows, fit))
    assert 1500 < get_diagnostics(found)["sample_rows"] < 2500
    assert "sample_rows" not in get_diagnostics(expected)
    assert get_diagnostics(found)["starts"] == 10
    assert found.manifest["iterations"] <= 10 < expected.manifest["iterations"]
    assert found.manifest["objective"] > expected.manifest["objective"] - 1e-9
    for name in ("probabilities", "weights", "probabilities_error"):
        np.testing.assert_allclose(
            get_array(found.params, name), get_array(expected.params, name), atol=5e-4
        )


def test_optima_that_the_sample_cannot_rank_are_compared_on_all_rows() -> None:
    frame = draw_rows(seed=3)
    options = {"components": 8, "starts": 5, "tol": 1e-6}
    expected, found = (run(frame, **options) for run in (fit_from_all_rows, fit))
    assert 1 <= get_diagnostics(found)["starts_at_best"] <= get_diagnostics(found)["starts"] == 5
    assert found.manifest["objective"] > expected.manifest["objective"] - 1e-3


def test_a_class_that_the_sample_hardly_has_is_looked_for_in_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame, cold = draw_rows(), fit_from_all_rows(draw_rows())
    monkeypatch.setattr("pipeline.models.bernoulli_mixture.model.ROWS_PER_CLASS", N_ROWS)
    found = fit(frame)
    assert "sample_rows" not in get_diagnostics(found)
    np.testing.assert_array_equal(found.params.probabilities, cold.params.probabilities)


def test_a_step_that_an_outlying_number_makes_too_long_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample_start, "MIN_SAMPLE", 1000)
    frame, features = draw_rows(seed=18, n_rows=12_000)[:3000], [*BINARY, "number"]
    frame.loc[18, "number"] = 1e4  # not in the sample
    options = {"components": 2, "starts": 1, "tol": 1e-6}
    expected, found = (run(frame, features, **options) for run in (fit_from_all_rows, fit))
    assert "sample_rows" in get_diagnostics(found)
    assert found.manifest["objective"] > expected.manifest["objective"] - 1e-6


def test_the_number_of_components_is_chosen_by_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fit(draw_rows(), components="auto")
    assert "sample_rows" not in get_diagnostics(found)
    assert len(found.params.weights) == 4


def test_starts_that_remain_give_the_same_bytes_in_threads_and_after_a_resume() -> None:
    X = draw_rows(seed=3)[BINARY].to_numpy(np.uint8)
    model, sizes = BernoulliMixture(6, starts=4, errors="none"), [2500, 2000, 1500]
    rows, states = make_memory_rows(DenseData(X), sizes), list[FitState]()
    expected = fit_model(model, rows, SerialExecutor(), checkpoint=states.append)
    assert len(states[0].starts) > 1
    others = [fit_model(model, rows, ThreadsExecutor(3))]
    others += [fit_model(model, rows, SerialExecutor(), state=state) for state in states[:3]]
    for found in others:
        assert found.history == expected.history
        assert found.params.probabilities.tobytes() == expected.params.probabilities.tobytes()
