"""Binary ICA by likelihood with hidden segments: what it finds, and derivatives of sequences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.inference.sequences import condition_block
from pipeline.models.binary_ica.hidden_likelihood import (
    HiddenLikelihoodParams,
    HiddenSegmentLikelihood,
)
from pipeline.models.binary_ica.hidden_segments import SegmentSums
from pipeline.models.registry import make_model
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.random import RowRandom
from tests.pipeline.models.binary_ica import STAY, draw_hidden
from tests.support.data import make_test_row_source, write_arrays
from tests.support.strategies import DenseData, make_memory_rows

RNG = RowRandom(0)
TRUTH, DATA = draw_hidden(4_000, 3, seed=1)


def fit_hidden(
    path, data: DenseData, words_per_chunk: int | None = None, likelihood="auto"
) -> FitState:
    dataset = write_arrays(path, data.X, data.observed, words_per_chunk=words_per_chunk)
    settings = {"segments": "auto", "n_segments": 3, "likelihood": likelihood}
    model = make_model("binary-ica-likelihood", 2, settings)
    return fit_model(model, make_test_row_source(dataset), SerialExecutor())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FitState:
    return fit_hidden(tmp_path_factory.mktemp("hidden") / "whole.zarr", DATA)


def test_mixing_is_that_of_given_segments(fitted):
    model = make_model("binary-ica-likelihood", 2)
    given = fit_model(model, make_memory_rows(DATA), SerialExecutor())
    known = mean_cosine_similarity(given.params.mixing, TRUTH.mixing)
    assert mean_cosine_similarity(fitted.params.mixing, TRUTH.mixing) > 0.99 * known > 0.98
    assert abs(np.diag(fitted.params.transition).mean() - STAY) < 0.005
    assert (np.diff(fitted.params.segment_rows) <= 0).all()
    assert fitted.params.segment_rows.sum() == len(DATA.X)
    assert fitted.converged


def test_objective_is_the_likelihood_of_the_sequence(fitted):
    model = HiddenSegmentLikelihood(2)
    rows = condition_block(model, fitted.params, pack_block(DATA.X))
    nats = model.log_likelihood(fitted.params, rows, RNG).nats
    assert abs(nats.mean() - fitted.history[-1]) < 1e-9


def test_scores_are_derivatives_of_the_likelihood_of_a_sequence(fitted):
    """Central differences, along random directions of A, c, μ and log σ²."""
    model, params, rng = HiddenSegmentLikelihood(2), fitted.params, np.random.default_rng(0)
    block = pack_block(DATA.X[:90], (rng.random((90, 6)) < 0.9).astype(np.uint8))

    def sum_rows(vector: NDArray[np.float64]) -> SegmentSums:
        point = params.point.from_vector(vector)
        return model.summarize(params.with_point(point), {}, block, RNG)

    vector = params.point.to_vector()
    found = sum_rows(vector)
    assert found.scores is not None
    gradient = np.concatenate([found.scores.gradient, found.scores.own_gradient.ravel()])
    for step in 1e-4 * rng.standard_normal((3, len(vector))):
        change = sum_rows(vector + step).objective - sum_rows(vector - step).objective
        assert abs(change - 2 * step @ gradient) < 2e-3 * np.linalg.norm(2 * step) * np.linalg.norm(
            gradient
        )
    assert found.scores.rows.sum() == 90


@pytest.mark.matrix
def test_a_short_fit_returns_to_the_best_point_with_its_chain(tmp_path):
    """However few passes: the objective is that of the parameters."""
    model = replace(HiddenSegmentLikelihood(2), n_segments=3, max_iter=2)
    rows = make_test_row_source(write_arrays(tmp_path / "short.zarr", DATA.X[:2000]))
    state = fit_model(model, rows, SerialExecutor())
    params: HiddenLikelihoodParams = state.params
    block = condition_block(model, params, pack_block(DATA.X[:2000]))
    nats = model.log_likelihood(params, block, RNG).nats
    assert abs(nats.mean() - state.history[-1]) < 1e-9
    assert not state.converged


@pytest.mark.matrix
def test_rows_with_gaps_in_many_chunks(tmp_path):
    """A block without any value tells nothing, and the rows around it keep their segments."""
    observed = (np.random.default_rng(0).random(DATA.X.shape) < 0.95).astype(np.uint8)
    observed[2000:2100] = 0
    gaps = fit_hidden(
        tmp_path / "gaps.zarr", DenseData(DATA.X * observed, observed, None), 40, "ep"
    )
    assert mean_cosine_similarity(gaps.params.mixing, TRUTH.mixing) > 0.98
