"""Fits that start on a sample of their rows, and take Newton's steps with its information."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from pipeline.data.features import Feature
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting import sample_start
from pipeline.fitting.loop import collect_first_statistics, fit_model, start_fit
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.models.state import FitState
from pipeline.models.structure import Structure
from pipeline.params import get_named_arrays
from tests.support.sample_starts import get_bytes, lower_thresholds, start_on_all_rows
from tests.support.strategies import DenseData, make_memory_rows

SERIAL = SerialExecutor()
N_ROWS, N_ITEMS = 6000, 8


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fits of thousands of rows start on a third of them."""
    lower_thresholds(monkeypatch, N_ROWS)


def draw_rows(
    q: int = 1, missing: float = 0.0, n_groups: int = 1, seed: int = 0, n_rows: int = N_ROWS
) -> DenseData:
    rng = np.random.default_rng(seed)
    weights, offsets = rng.uniform(0.7, 1.8, (N_ITEMS, q)), rng.normal(size=N_ITEMS)
    if q > 1:
        weights[::2, 1] *= -1
    groups = np.sort(rng.integers(0, n_groups, n_rows))  # sorted, as rows often are
    x = rng.standard_normal((n_rows, q)) + 0.3 * groups[:, None]
    X = (rng.random((n_rows, N_ITEMS)) < expit(x @ weights.T + offsets)).astype(np.uint8)
    observed = None if not missing else (rng.random(X.shape) >= missing).astype(np.uint8)
    return DenseData(X, observed, groups if n_groups > 1 else None)


def fit(data: DenseData, model: Any, executor: Any = SERIAL, **options: Any) -> FitState:
    sizes = [len(data.X) // 3] * 2
    rows = make_memory_rows(data, [*sizes, len(data.X) - sum(sizes)])
    return fit_model(model, rows, executor, **options)


def fit_from_all_rows(data: DenseData, model: Any) -> FitState:
    with start_on_all_rows():
        return fit(data, model)


def get_log_likelihood(state: FitState) -> float:
    return float(state.diagnostics["fit_statistics"]["log_likelihood"])


def make_groups(n_groups: int) -> Structure:
    features = tuple(Feature(f"q{k}") for k in range(N_ITEMS))
    return Structure(tuple(f"g{k}" for k in range(n_groups)), features)


@pytest.mark.parametrize(
    ("data", "structure", "settings"),
    [
        (draw_rows(), None, {"n_components": 1}),
        (draw_rows(2, 0.2), None, {"n_components": 2}),
        (draw_rows(), None, {"n_components": 1, "prior_precision": 2.0}),
        (draw_rows(n_groups=3), make_groups(3), {"n_components": 1, "free": "q2"}),
    ],
)
def test_the_optimum_is_that_of_passes_over_all_rows(
    data: DenseData, structure: Structure | None, settings: dict[str, Any]
) -> None:
    model = LatentTrait(**settings, tol=1e-9)
    model = model if structure is None else model.with_structure(structure)
    expected, found = fit_from_all_rows(data, model), fit(data, model)
    assert 1500 < found.diagnostics["sample_rows"] < 2500
    assert "sample_rows" not in expected.diagnostics
    assert found.converged
    assert found.iteration <= 7 < expected.iteration
    assert abs(get_log_likelihood(found) - get_log_likelihood(expected)) < 1e-4
    for name, (_, values) in get_named_arrays(expected.params).items():
        if name.endswith(("weights", "offsets", "trait_mean", "trait_covariance")):
            assert abs(get_named_arrays(found.params)[name][1] - values).max() < 1e-3, name
        if name in ("weights_error", "offsets_error"):
            assert get_named_arrays(found.params)[name][1] == pytest.approx(values, rel=1e-3)


def test_every_executor_gives_the_same_bytes() -> None:
    data, model = draw_rows(missing=0.1), LatentTrait(n_components=1)
    expected = get_bytes(fit(data, model))
    assert get_bytes(fit(data, model, ThreadsExecutor(3))) == expected


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (draw_rows(), LatentTrait(n_components=1)),
        (draw_rows(missing=0.2, seed=1), BernoulliMixture(4, starts=4, errors="none")),
    ],
)
def test_a_resumed_fit_has_the_same_bytes_wherever_it_was_interrupted(
    data: DenseData, model: Any
) -> None:
    states: list[FitState] = []
    expected = get_bytes(fit(data, model, checkpoint=states.append))
    assert len(states) >= 2
    assert all(not state.is_on_sample for state in states)
    for state in (*states[:3], states[-1]):
        assert get_bytes(fit(data, model, state=state)) == expected


def test_a_start_from_an_earlier_fit_takes_only_the_information_from_a_sample() -> None:
    data, model = draw_rows(seed=1), LatentTrait(n_components=1)
    cold = fit(data, model)
    before = fit(DenseData(data.X[: N_ROWS - 300]), model).params
    rows = make_memory_rows(data)
    first = collect_first_statistics(model, rows, SERIAL, 0)
    labels: list[str] = []

    def record(label: str, done: int, total: int, rows: int) -> None:
        labels.append(label)

    state = start_fit(model, first, rows, SERIAL, 0, initial_params=before, progress=record)
    warm = fit(data, model, state=state, progress=record)
    assert not any("on a sample" in label for label in labels)
    assert "information" in labels
    assert warm.iteration <= cold.iteration
    assert abs(get_log_likelihood(warm) - get_log_likelihood(cold)) < 1e-3


class LongFirstStep(LatentTrait):
    """Goes so far in its first step of Newton's method that the rows become impossible."""

    def move_params(self, state: FitState, change: Any, weight: float) -> Any:
        factor = 1 if "damping" in state.acceleration else 1000
        return super().move_params(state, factor * change, weight)

    def objective(self, params: Any, statistics: Any) -> float:
        value = super().objective(params, statistics)
        return value if value > -N_ITEMS else -np.inf


def test_a_step_without_an_objective_is_rejected() -> None:
    data = draw_rows()
    expected, found = (fit(data, kind(n_components=1)) for kind in (LatentTrait, LongFirstStep))
    assert found.converged
    assert found.iteration > expected.iteration
    assert abs(get_log_likelihood(found) - get_log_likelihood(expected)) < 1e-4


class Interruption(Exception):
    pass


def test_a_fit_interrupted_on_the_sample_starts_again() -> None:
    data, model = draw_rows(), LatentTrait(n_components=1)
    expected, n_tasks = get_bytes(fit(data, model)), 0
    saved: list[FitState] = []

    def interrupt(label: str, *_: Any) -> None:
        nonlocal n_tasks
        n_tasks += label.startswith("E-step")
        if n_tasks > 4:
            raise Interruption

    with pytest.raises(Interruption):
        fit(data, model, progress=interrupt, checkpoint=saved.append)
    assert saved == []
    assert get_bytes(fit(data, model)) == expected


def test_a_sample_that_lacks_a_level_grows() -> None:
    data = draw_rows()
    data.X[:, 0] = 0
    data.X[np.random.default_rng(1).permutation(N_ROWS)[:20], 0] = 1
    state = fit(data, LatentTrait(n_components=1))
    assert "sample_rows" not in state.diagnostics  # 80 % of the rows would not be enough
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_start, "LEAST_COUNT", 8)
        patch.setattr(sample_start, "_GROWTH", 2.0)
        state = fit(data, LatentTrait(n_components=1))
    if "sample_rows" in state.diagnostics:
        assert state.diagnostics["sample_rows"] > 3000


def test_a_small_group_is_in_the_sample_or_there_is_none() -> None:
    data = draw_rows(n_groups=3)
    assert data.segments is not None
    data.segments[:-3], data.segments[-3:] = 0, 1
    model = LatentTrait(n_components=1, invariance="scalar").with_structure(make_groups(2))
    assert "sample_rows" not in fit(data, model).diagnostics


@pytest.mark.parametrize(
    "settings",
    [
        {"n_components": None},
        {"n_components": 1, "acceleration": "none"},
        {"n_components": 2, "estimator": "variational"},
    ],
)
def test_other_fits_read_all_rows_from_the_beginning(settings: dict[str, Any]) -> None:
    data = draw_rows(n_rows=1500)
    assert "sample_rows" not in fit(data, LatentTrait(**settings, max_iter=3)).diagnostics


def test_the_sample_of_a_small_split_has_enough_rows() -> None:
    data = draw_rows(n_rows=3 * N_ROWS)
    keep = np.arange(len(data.X)) % 3 == 0
    state = fit(replace(data, keep=keep), LatentTrait(n_components=1))
    assert 1500 < state.diagnostics["sample_rows"] < 2500
