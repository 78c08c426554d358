"""The linear iVAE: recovery of the mixing, lower bounds, gradients and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.binary_ica import LinearIVAE
from pipeline.models.binary_ica.linear_ivae import (
    AffineVAE,
    VAEBatch,
    lower_bound_gradient,
    row_lower_bounds,
)
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.random import RowRandom
from storage.examples import (
    NonstationaryTruth,
    draw_nonstationary_rows,
    draw_nonstationary_truth,
)
from tests.support.derivatives import differentiate
from tests.support.strategies import DenseData, make_memory_rows

SERIAL = SerialExecutor()


def draw_example(
    n_components: int, seed: int, n_rows: int = 500, n_segments: int = 20
) -> tuple[DenseData, NonstationaryTruth]:
    truth = draw_nonstationary_truth(6, n_components, n_segments, seed)
    batches = list(draw_nonstationary_rows(truth, n_rows, seed))
    segments = [batch.columns["segment"].astype(np.int64) for batch in batches]
    X = np.concatenate([batch.X for batch in batches])
    return DenseData(X, None, np.concatenate(segments)), truth


def fit(data: DenseData, **settings: Any) -> FitState:
    return fit_model(LinearIVAE(**{"n_components": 2, **settings}), make_memory_rows(data), SERIAL)


def make_random_state(data: DenseData, **settings: Any) -> FitState:
    """Return a state with random parameters that differ between segments."""
    model = LinearIVAE(2, **settings)
    state = initialize_fit(
        model, collect_first_statistics(model, make_memory_rows(data), SERIAL, 0), 0
    )
    change = 0.5 * np.random.default_rng(0).standard_normal(state.params.vae.flatten().size)
    return FitState(state.params.add_change(change), state.working)


def compute_bounds(params: Any, data: DenseData, segment: int = 1) -> Any:
    block = pack_block(data.X[:50], segment=segment)
    return LinearIVAE().lower_bound(params, block, RowRandom(0))


def test_mixing_is_recovered() -> None:
    data, truth = draw_example(2, seed=2)
    state = fit(data, max_iter=15)
    assert mean_cosine_similarity(state.params.mixing, truth.mixing) > 0.95


def test_normalizing_columns_keeps_the_model() -> None:
    data, _ = draw_example(2, seed=0, n_rows=30)
    before = make_random_state(data).params
    after = before.normalize_columns()
    assert not np.allclose(before.mixing, after.mixing)
    np.testing.assert_allclose(
        compute_bounds(after, data), compute_bounds(before, data), rtol=1e-10
    )
    np.testing.assert_allclose(np.linalg.norm(after.mixing, axis=0), 1)
    assert (after.mixing[np.abs(after.mixing).argmax(axis=0), [0, 1]] > 0).all()
    shares = after.segment_rows / after.segment_rows.sum()
    np.testing.assert_allclose(shares @ after.source_means, 0, atol=1e-12)
    assert (np.diff(shares @ after.source_variances) < 0).all()


def test_step_follows_gradient_with_noise_of_rows() -> None:
    data, _ = draw_example(2, seed=0, n_rows=30)
    settings = {"batch": len(data.X), "optimizer": "momentum", "momentum": 0.0}
    model, at = LinearIVAE(2, **settings), make_random_state(data, **settings)
    steps = collect_pass_statistics(model, at, make_memory_rows(data, [250, 350]), SERIAL, seed=5)
    X, places = data.X.astype(np.float64), data.labels
    rows = VAEBatch(X, X - at.params.means, None, places)
    noise = RowRandom(5, pass_index=0).stream("codes").normal(np.arange(len(X)), 2)
    expected = (
        model.default_rates["momentum"] * lower_bound_gradient(at.params.vae, rows, noise).flatten()
    )
    result = steps.to_arrays()["values-theta"] / len(X)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)
    assert np.abs(expected).max() > 1e-3


def test_missing_values_do_not_enter_the_bound() -> None:
    data, _ = draw_example(2, seed=0, n_rows=30)
    params, observed = make_random_state(data).params, np.ones_like(data.X[:50])
    observed[:, 3:] = 0
    result = LinearIVAE().lower_bound(
        params, pack_block(data.X[:50] & observed, observed), RowRandom(0)
    )
    assert len(np.unique(result)) <= 2**3
    assert (result > compute_bounds(params, data, segment=0)).mean() > 0.8


@pytest.mark.parametrize(
    ("settings", "n_segments", "refusal"),
    [
        (
            {},
            1,
            "needs at least 2 segments, but there is 1. Give the segment of each row by segment",
        ),
        ({"n_components": 7}, 20, "components is 7, but there are only 6 features"),
    ],
)
def test_invalid_data_raise(settings: Any, n_segments: int, refusal: str) -> None:
    data, _ = draw_example(2, seed=0, n_rows=30)
    with pytest.raises(FitError, match=refusal):
        fit(DenseData(data.X, None, data.labels % n_segments), **settings)


Floats = NDArray[np.float64]
N_ROWS, N_FEATURES, N_COMPONENTS, N_SEGMENTS = 9, 6, 2, 3
MEANS = np.full(N_FEATURES, 0.3)


def make_vae() -> AffineVAE:
    rng = np.random.default_rng(1)
    of_features, of_segments = (N_FEATURES, N_COMPONENTS), (N_SEGMENTS, N_COMPONENTS)
    shapes = (of_features, (N_FEATURES,), *[of_features] * 2, *[of_segments] * 4)
    return AffineVAE(*(rng.standard_normal(shape) for shape in shapes))


def make_batch(X: Any, segments: Any, observed: Floats | None = None) -> VAEBatch:
    mask = 1.0 if observed is None else observed
    return VAEBatch(X * mask, (X - MEANS) * mask, observed, segments)


def draw_batch(is_masked: bool = False, n_rows: int = N_ROWS) -> VAEBatch:
    rng = np.random.default_rng(2)
    X = (rng.random((n_rows, N_FEATURES)) < 0.5).astype(np.float64)
    observed = (rng.random(X.shape) < 0.7).astype(np.float64) if is_masked else None
    return make_batch(X, np.arange(n_rows) % N_SEGMENTS, observed)


def sample_bounds(at: AffineVAE, rows: VAEBatch, noise: Floats) -> Floats:
    """Return log P(x | z) at a drawn z, minus the exact divergence of q(z) from the prior."""
    u, observed = rows.segments, 1.0 if rows.mask is None else rows.mask
    mean = rows.inputs @ at.code_weights + at.code_offsets[u]
    log_variance = rows.inputs @ at.spread_weights + at.spread_offsets[u]
    z = mean + np.exp(log_variance / 2) * noise
    y = z @ at.mixing.T + at.offsets
    nats = (observed * (rows.X * y - np.logaddexp(0, y))).sum(axis=1)
    away = (mean - at.source_means[u]) ** 2 + np.exp(log_variance)
    scaled = away / np.exp(at.log_variances[u]) + at.log_variances[u] - log_variance - 1
    return np.asarray(nats - scaled.sum(axis=1) / 2)


@pytest.mark.parametrize("is_masked", [False, True])
def test_gradient_matches_finite_differences(is_masked: bool) -> None:
    at, rows = make_vae(), draw_batch(is_masked)
    noise = np.random.default_rng(3).standard_normal((N_ROWS, N_COMPONENTS))

    def bound(flat: Floats) -> float:
        return float(sample_bounds(at.unflatten(flat), rows, noise).mean())

    expected = differentiate(bound, at.flatten(), 1e-6)
    result = lower_bound_gradient(at, rows, noise).flatten()
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-7)
    assert np.abs(result).min() > 1e-6


@pytest.mark.parametrize("is_masked", [False, True])
def test_bounds_match_monte_carlo_means(is_masked: bool) -> None:
    rows, rng = draw_batch(is_masked, 3), np.random.default_rng(4)
    draws = np.array(
        [sample_bounds(make_vae(), rows, rng.standard_normal((3, 2))) for _ in range(2000)]
    )
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(row_lower_bounds(make_vae(), rows) - draws.mean(axis=0)) < 4 * error).all()


def test_bounds_are_below_the_likelihood() -> None:
    at, segment = make_vae(), 1
    X = ((np.arange(2**N_FEATURES)[:, None] >> np.arange(N_FEATURES)) & 1).astype(np.float64)
    result = row_lower_bounds(at, make_batch(X, np.full(len(X), segment)))
    nodes, mass = np.polynomial.hermite_e.hermegauss(60)
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, N_COMPONENTS)
    y = (at.source_means[segment] + np.exp(at.log_variances[segment] / 2) * z) @ at.mixing.T
    y += at.offsets
    given_z = np.exp(X @ y.T - np.logaddexp(0, y).sum(axis=1))
    likelihood = np.log(given_z @ np.outer(mass, mass).ravel() / mass.sum() ** 2)
    assert np.exp(likelihood).sum() == pytest.approx(1)
    assert (result < likelihood).all()
