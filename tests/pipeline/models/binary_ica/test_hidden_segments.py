"""BLICA with hidden segments: what it finds, posteriors of rows, and what it refuses."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal, norm

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.inference.sequences import condition_block
from pipeline.models.binary_ica.hidden_segments import (
    HiddenSegmentBLICA,
    HiddenSegmentParams,
    add_chain,
)
from pipeline.models.registry import make_model
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.random import RowRandom
from storage.examples import NonstationaryTruth
from tests.pipeline.models.binary_ica import STAY, draw_hidden, fit_blica
from tests.support.data import make_test_row_source, write_arrays
from tests.support.strategies import DenseData

RNG = RowRandom(0)


def measure_agreement(params: HiddenSegmentParams, data: DenseData) -> float:
    """Share of the rows whose likeliest segment is the true one, up to their order."""
    model = HiddenSegmentBLICA(2)
    rows = condition_block(model, params, pack_block(data.X))
    found = model.transform(params, rows, RNG)["likeliest_segment"] - 1
    orders = permutations(range(len(params.segments)))
    return max(float((np.array(order)[found] == data.segments).mean()) for order in orders)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("hidden")


@lru_cache
def example() -> tuple[NonstationaryTruth, DenseData]:
    return draw_hidden(8_000, 3, seed=1)


def fit_hidden(path, data: DenseData, words_per_chunk: int | None = None, **settings) -> FitState:
    dataset = write_arrays(path, data.X, data.observed, words_per_chunk=words_per_chunk)
    model = make_model("blica", 2, {"segments": "auto", **settings})
    return fit_model(model, make_test_row_source(dataset), SerialExecutor())


@pytest.fixture(scope="module")
def fitted(folder) -> FitState:
    return fit_hidden(folder / "whole.zarr", example()[1], n_segments=3, regularization=200.0)


def test_segments_and_mixing_are_those_of_given_segments(fitted):
    truth, data = example()
    given = fit_blica(data, n_components=2, regularization=200.0)
    known = mean_cosine_similarity(given.params.mixing, truth.mixing)
    assert mean_cosine_similarity(fitted.params.mixing, truth.mixing) >= 0.995 * known
    bound = measure_agreement(add_chain(given.params), data)
    assert bound > 0.93
    assert measure_agreement(fitted.params, data) > bound - 0.01
    assert abs(np.diag(fitted.params.transition).mean() - STAY) < 0.005
    assert (np.diff(fitted.params.segment_rows) <= 0).all()
    assert fitted.params.segment_rows.sum() == len(data.X)
    assert fitted.converged
    assert fitted.diagnostics["n_segments"] == 3


@pytest.mark.matrix
def test_chunks_do_not_matter(folder, fitted):
    cut = fit_hidden(
        folder / "cut.zarr", example()[1], 40, n_segments=3, regularization=200.0
    ).params
    assert np.array_equal(cut.segment_rows, fitted.params.segment_rows)
    np.testing.assert_allclose(cut.mixing, fitted.params.mixing, rtol=1e-9)
    np.testing.assert_allclose(cut.transition, fitted.params.transition, rtol=1e-9)


def test_posteriors_and_likelihoods_are_those_of_all_paths(fitted):
    """Rows by orthant probabilities of SciPy, sequences by enumeration of all paths."""
    params: HiddenSegmentParams = fitted.params
    X = example()[1].X[200:207]
    chances = np.array([[_orthant(params, u, x) for u in range(3)] for x in X])
    paths = np.array([*product(range(3), repeat=len(X))])
    weights = params.initial[paths[:, 0]] * chances[np.arange(len(X)), paths].prod(axis=1)
    weights *= params.transition[paths[:, :-1], paths[:, 1:]].prod(axis=1)
    model = HiddenSegmentBLICA(2)
    rows = condition_block(model, params, pack_block(X))
    nats = model.log_likelihood(params, rows, RNG).nats.sum()
    assert abs(nats - np.log(weights.sum())) < 0.02 * len(X)  # of expectation propagation
    posterior = np.array(
        [[weights[paths[:, n] == u].sum() for u in range(3)] for n in range(len(X))]
    )
    posterior /= weights.sum()
    codes = model.transform(params, rows, RNG)
    assert np.array_equal(codes["likeliest_segment"] - 1, posterior.argmax(axis=1))
    np.testing.assert_allclose(codes["segment_probability"], posterior.max(axis=1), atol=0.02)


def _orthant(params: HiddenSegmentParams, segment: int, x: NDArray[np.uint8]) -> float:
    """P(x) in a segment: signs turn every row into an orthant."""
    signs = 2.0 * x - 1
    model = params.segment_model(segment)
    correlation = model.correlation() * np.outer(signs, signs)
    return float(multivariate_normal(cov=correlation, seed=0).cdf(-signs * model.thresholds))


@pytest.mark.matrix
def test_missing_values_are_left_out(folder):
    """A block without any value tells nothing, and the rows around it keep their segments."""
    truth, data = example()
    observed = (np.random.default_rng(0).random(data.X.shape) < 0.9).astype(np.uint8)
    observed[3000:3100] = 0
    state = fit_hidden(
        folder / "gaps.zarr",
        DenseData(data.X * observed, observed, None),
        n_segments=3,
        regularization=200.0,
    )
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.98


@pytest.mark.matrix
def test_the_number_of_segments_is_found(folder):
    state = fit_hidden(folder / "number.zarr", example()[1], regularization=200.0)
    assert state.diagnostics["n_segments"] == 3
    assert np.argmin(state.diagnostics["segments_bic"]) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_segments": 5}, "segments are given by the dataset"),
        ({"segments": "auto", "n_segments": 2}, "at least 3"),
    ],
    ids=["given", "few"],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(FitError, match=message):
        make_model("blica", 2, settings)


def test_too_few_rows_are_refused(folder):
    X = (np.random.default_rng(0).random((200, 6)) < norm.cdf(0.3)).astype(np.uint8)
    with pytest.raises(FitError, match="200 rows have too few windows"):
        fit_hidden(folder / "few.zarr", DenseData(X, None, None), n_segments=3)


def test_features_that_never_vary_are_refused(folder):
    _, data = example()
    X = data.X[:2000].copy()
    X[:, 2] = 1
    with pytest.raises(FitError, match="vary within no usable segment"):
        fit_hidden(folder / "constant.zarr", DenseData(X, None, None), n_segments=3)


def test_pairs_that_are_never_observed_together_are_refused_by_the_names_of_segments(folder):
    """A search whose fits are refused ends with the refusal of the last one."""
    X = example()[1].X[:2000].copy()
    observed = np.ones_like(X)
    observed[:1000, 4:] = observed[1000:, :2] = 0
    with pytest.raises(FitError, match="Left out: '1', '2', '3'"):
        fit_hidden(folder / "forms.zarr", DenseData(X * observed, observed, None), n_segments=3)
