"""Binary ICA by likelihood of many rows starts on a sample of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica import BinaryICALikelihood
from pipeline.models.state import FitState
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth
from tests.support.sample_starts import get_bytes, lower_thresholds, start_on_all_rows
from tests.support.strategies import DenseData, make_memory_rows

N_ROWS, N_SEGMENTS = 12_000, 4


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fits of thousands of rows start on a third of them."""
    lower_thresholds(monkeypatch, N_ROWS)


def draw_rows(missing: float = 0.0) -> DenseData:
    """Draw rows of all segments in random order."""
    truth = draw_nonstationary_truth(6, 2, N_SEGMENTS, 3)
    batches = draw_nonstationary_rows(truth, N_ROWS // N_SEGMENTS, 3)
    X = np.concatenate([batch.X for batch in batches]).astype(np.uint8)
    rng = np.random.default_rng(0)
    order = rng.permutation(N_ROWS)
    observed = (rng.random(X.shape) >= missing).astype(np.uint8) if missing else None
    return DenseData(X[order], observed, np.repeat(np.arange(N_SEGMENTS), len(X) // 4)[order])


def fit(data: DenseData, executor: Any = None, **options: Any) -> FitState:
    rows = make_memory_rows(data, [5000, 4000, 3000])
    return fit_model(BinaryICALikelihood(2), rows, executor or SerialExecutor(), **options)


def fit_from_all_rows(data: DenseData) -> FitState:
    with start_on_all_rows():
        return fit(data)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_the_optimum_is_that_of_passes_over_all_rows(missing: float) -> None:
    data = draw_rows(missing)
    expected, found = fit_from_all_rows(data), fit(data)
    assert 3000 < found.diagnostics["sample_rows"] < 5000
    assert "sample_rows" not in expected.diagnostics
    assert found.converged
    assert found.iteration <= 8
    assert expected.iteration <= 12
    # Each pass moves the variances of priors, so those of more passes differ a little.
    assert found.history[-1] == pytest.approx(expected.history[-1], abs=2 / N_ROWS)
    for name in ("mixing", "mixing_error", "offsets", "log_variances_error"):
        own, others = (getattr(state.params, name) for state in (found, expected))
        np.testing.assert_allclose(own, others, atol=0.02, err_msg=name)
    np.testing.assert_array_equal(found.params.segment_rows, expected.params.segment_rows)


def test_threads_and_resumed_fits_give_the_same_bytes() -> None:
    data, states = draw_rows(), list[FitState]()
    expected = get_bytes(fit(data, checkpoint=states.append))
    assert len(states) >= 2
    assert not any(state.is_on_sample for state in states)
    assert get_bytes(fit(data, ThreadsExecutor(3))) == expected
    for state in states[:2]:
        assert get_bytes(fit(data, state=state)) == expected


def test_a_small_segment_is_in_the_sample_or_there_is_none() -> None:
    data = draw_rows()
    assert data.segments is not None
    data.segments[np.flatnonzero(data.segments == 3)[50:]] = 2
    assert "sample_rows" not in fit(data).diagnostics
