"""The autoencoder against finite differences, linear PCA and rows of known make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import xlogy

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.learning.convergence import describe_ending
from pipeline.models.autoencoder import Autoencoder, AutoencoderParams
from pipeline.models.gradient import (
    corrupt_bits,
    draw_first_layer,
    score_reconstructions,
)
from pipeline.models.state import FitState
from pipeline.numerics.networks.layered_network import propagate_up
from pipeline.random import RowRandom
from tests.support.derivatives import differentiate
from tests.support.strategies import DenseData, make_memory_rows

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
SERIAL, RNG, MODEL = SerialExecutor(), RowRandom(0), Autoencoder()


def kinds(n_rows: int, seed: int, noise: float = 0.05) -> Bits:
    """Rows of 6 random kinds of 24 features, each bit flipped now and then."""
    of_kinds = np.random.default_rng(99).random((6, 24)) < 0.4
    rng = np.random.default_rng(seed)
    rows = of_kinds[rng.integers(0, 6, n_rows)]
    return (rows ^ (rng.random(rows.shape) < noise)).astype(np.uint8)


def fitted(X: Bits, observed: Bits | None = None, **more: Any) -> FitState:
    data = DenseData(X, observed)
    return fit_model(
        Autoencoder(**more), make_memory_rows(data, [len(X) // 2, len(X) - len(X) // 2]), SERIAL
    )


def reconstructed(params: AutoencoderParams, X: Bits, observed: Bits | None = None) -> Floats:
    codes = MODEL.transform(params, pack_block(X, observed), RNG)["mean"]
    return MODEL.reconstruct(params, codes)


def wrong_bits(params: AutoencoderParams, X: Bits, clean: Bits | None = None) -> float:
    return float(((reconstructed(params, X) > 0.5) != (X if clean is None else clean)).mean())


# --- gradients -----------------------------------------------------------------------------------


def change_of(model: Autoencoder, params: AutoencoderParams, block: BinaryBlock) -> Floats:
    """What a task gives for a single step of length 1: the mean slope of its rows."""
    rows = make_memory_rows(DenseData(block.unpack_values(), block.unpack_mask()))
    state = initialize_fit(model, collect_first_statistics(model, rows, SERIAL, 0), 0)
    part = model.learn(params, state.working, lambda: iter([block]), RNG)
    assert part is not None
    return part.values["theta"] / int(part.values["n_fitted"])


def penalty(model: Autoencoder, params: AutoencoderParams, X: Floats) -> float:
    h = propagate_up(params.layers, X)[-1]
    if model.penalty == "l1":
        return float(model.sparsity * h.sum(axis=1).mean())
    mean, rho = h.mean(axis=0), model.target
    return float(
        model.sparsity * (xlogy(rho, rho / mean) + xlogy(1 - rho, (1 - rho) / (1 - mean))).sum()
    )


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("penalised", [{}, {"penalty": "l1"}, {"penalty": "kl", "target": 0.2}])
def test_steps_go_along_the_slope_of_score_less_penalty(loss: Any, penalised: Any) -> None:
    model = Autoencoder(
        3,
        loss,
        sparsity=0.7 if penalised else 0.0,
        optimizer="momentum",
        momentum=0.0,
        rate=1.0,
        batch=40,
        **penalised,
    )
    X = kinds(40, 1)[:, :7]
    observed = (np.random.default_rng(2).random(X.shape) < 0.8).astype(np.uint8)
    shares = np.linspace(0.2, 0.6, 7)
    params = AutoencoderParams(*draw_first_layer(shares, 3, np.random.default_rng(3)), shares)
    known, seen = np.where(observed, X, shares), observed.astype(np.float64)

    def objective(at: AutoencoderParams) -> float:
        scores = score_reconstructions(at.layers, known, seen, squared=loss == "squared")
        return float(scores.mean()) - penalty(model, at, known)

    found = change_of(model, params, pack_block(X, observed))
    slopes = differentiate(lambda change: objective(params.add_change(change)), 0 * found)
    np.testing.assert_allclose(found, slopes, atol=2e-5)


def test_bits_are_flipped_or_masked_by_their_rows_and_passes() -> None:
    X, rows = kinds(3000, 4).astype(np.float32), np.arange(3000)
    assert corrupt_bits(X, None, "none", 0.2, rows, RNG) is X
    flipped, masked = (corrupt_bits(X, None, k, 0.2, rows, RNG) for k in ("flip", "mask"))
    hit = flipped != X
    assert abs(hit.mean() - 0.2) < 0.005
    assert np.abs(hit.mean(axis=0) - 0.2).max() < 0.04
    np.testing.assert_array_equal(masked, np.where(hit, 0, X))
    few = slice(7, 9)
    again = corrupt_bits(X[few], None, "flip", 0.2, rows[few], RNG)
    np.testing.assert_array_equal(again, flipped[few])
    assert (corrupt_bits(X, None, "flip", 0.2, rows, RowRandom(0, 1)) != flipped).mean() > 0.2
    seen = (np.random.default_rng(5).random(X.shape) < 0.5).astype(np.float32)
    filled = np.where(seen, X, np.float32(0.25))
    found = corrupt_bits(filled, seen, "flip", 0.2, rows, RNG)
    np.testing.assert_array_equal(found, np.where(seen, flipped, filled))


def test_clean_rows_should_come_out() -> None:
    """With weights of 0 what comes out is c alone, and its slope the mean error."""
    X, empty = kinds(900, 4), np.zeros(24)
    zeros = AutoencoderParams(np.zeros((24, 2)), empty, np.zeros(2), empty)
    steps = {"optimizer": "momentum", "momentum": 0.0, "rate": 1.0, "batch": 900}
    model = Autoencoder(2, corruption="mask", noise=0.5, **steps)
    moved = zeros.add_change(change_of(model, zeros, pack_block(X)))
    np.testing.assert_allclose(moved.visible_biases, X.mean(axis=0) - 0.5, atol=1e-6)


# --- fits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"loss": "squared"}, {"optimizer": "momentum"}])
def test_rows_of_few_kinds_come_back_from_few_units(settings: dict[str, Any]) -> None:
    X, new = kinds(3000, 5), kinds(1000, 6)
    state = fitted(X, n_components=4, max_iter=40, **settings)
    assert wrong_bits(state.params, new) < 0.06  # 0.05 are noise
    assert ((X.mean(axis=0) > 0.5) != new).mean() > 0.25
    assert all(describe_ending(False) in notice.text for notice in state.warnings)


def test_the_objective_is_the_score_of_rows_held_out() -> None:
    X = kinds(800, 7)  # so few that all rows are judged by
    state = fitted(X, n_components=4, max_iter=30)
    scores = score_reconstructions(state.params.layers, X.astype(np.float64), None)
    assert max(state.history) == pytest.approx(scores.mean(), abs=1e-4)
    assert state.diagnostics == {"n_components": 4, "objective_is": "reconstruction"}


@pytest.mark.parametrize("kind", ["l1", "kl"])
def test_passes_are_judged_by_the_penalty_too(kind: Any) -> None:
    X = kinds(800, 7)
    state = fitted(X, n_components=4, max_iter=5, sparsity=0.5, penalty=kind)
    rows, model = X.astype(np.float64), Autoencoder(sparsity=0.5, penalty=kind)
    scores = score_reconstructions(state.params.layers, rows, None)
    expected = scores.mean() - penalty(model, state.params, rows)
    assert max(state.history) == pytest.approx(expected, abs=0.01)
    assert state.diagnostics["objective_is"] == "reconstruction less penalty"


def test_learning_by_corrupted_rows_takes_noise_away() -> None:
    X, clean = kinds(3000, 8, noise=0.0), kinds(1000, 9, noise=0.0)
    noisy = clean ^ (np.random.default_rng(10).random(clean.shape) < 0.2).astype(np.uint8)
    errors = {
        corruption: wrong_bits(
            fitted(X, n_components=20, max_iter=40, corruption=corruption, noise=0.2).params,
            noisy,
            clean,
        )
        for corruption in ("none", "flip")
    }
    assert errors["flip"] < 0.6 * errors["none"]


def test_penalties_make_codes_sparse() -> None:
    X = kinds(2000, 11)
    settings = ({}, {"sparsity": 3.0, "target": 0.15}, {"sparsity": 1.0, "penalty": "l1"})
    fits = [fitted(X, n_components=8, max_iter=40, **more) for more in settings]
    plain, pulled, small = (MODEL.transform(s.params, pack_block(X), RNG)["mean"] for s in fits)
    assert np.abs(pulled.mean(axis=0) - 0.15).max() < 0.1 < np.abs(plain.mean(axis=0) - 0.15).max()
    assert small.mean() < 0.5 * plain.mean()


def test_missing_values_are_left_out() -> None:
    X, rng = kinds(4000, 12), np.random.default_rng(13)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    noise = rng.integers(0, 2, X.shape, dtype=np.uint8)
    states = [
        fitted(np.where(observed, X, other).astype(np.uint8), observed, n_components=6, max_iter=30)
        for other in (0, noise)
    ]
    np.testing.assert_array_equal(states[0].params.weights, states[1].params.weights)
    guessed = reconstructed(states[0].params, X, observed) > 0.5
    by_margins = np.broadcast_to(X.mean(axis=0) > 0.5, X.shape)
    wrong, of_margins = ((g != X)[observed == 0].mean() for g in (guessed, by_margins))
    assert wrong < 0.5 * of_margins


def test_a_warm_start_begins_at_the_weights_before() -> None:
    state = fitted(kinds(500, 14), n_components=3, max_iter=3)
    other = fitted(kinds(500, 15), n_components=3, max_iter=1)
    assert MODEL.warm_start(other, state.params).params is state.params


# --- what is refused and told --------------------------------------------------------------------


def test_units_by_default_are_as_many_as_features() -> None:
    assert fitted(kinds(100, 17), max_iter=1).diagnostics["n_components"] == 24
