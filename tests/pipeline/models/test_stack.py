"""Stacks: their stages, what fine-tuning gains, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.learning.convergence import describe_ending
from pipeline.models.gradient import score_reconstructions
from pipeline.models.stack import Stack, StackParams
from pipeline.models.state import FitState
from pipeline.numerics.networks.layered_network import Layer, propagate_down, propagate_up, sigmoid
from pipeline.random import RowRandom
from tests.support.strategies import DenseData, make_memory_rows

Bits = NDArray[np.uint8]
SERIAL, RNG, MODEL = SerialExecutor(), RowRandom(0), Stack()
SMALL: dict[str, Any] = {"layers": (16, 8, 4), "pretrain": 8, "max_iter": 40}


def kinds(n_rows: int, seed: int, noise: float = 0.05) -> Bits:
    """Rows of 10 random kinds of 24 features, each bit flipped now and then."""
    of_kinds = np.random.default_rng(98).random((10, 24)) < 0.4
    rng = np.random.default_rng(seed)
    rows = of_kinds[rng.integers(0, 10, n_rows)]
    return (rows ^ (rng.random(rows.shape) < noise)).astype(np.uint8)


def fitted(
    X: Bits, observed: Bits | None = None, seen: list[FitState] | None = None, **more: Any
) -> FitState:
    rows = make_memory_rows(DenseData(X, observed), [len(X) // 2, len(X) - len(X) // 2])
    seen = [] if seen is None else seen
    return fit_model(Stack(**more), rows, SERIAL, checkpoint=seen.append)


def begun(X: Bits, **more: Any) -> FitState:
    model = Stack(**more)
    return initialize_fit(
        model, collect_first_statistics(model, make_memory_rows(DenseData(X)), SERIAL, 0), 0
    )


def wrong_bits(params: StackParams, X: Bits) -> float:
    codes = MODEL.transform(params, pack_block(X), RNG)["mean"]
    return float(((MODEL.reconstruct(params, codes) > 0.5) != X).mean())


# --- stages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["rbm", "autoencoder"])
def test_layers_are_learned_one_by_one_then_together(block: Any) -> None:
    states: list[FitState] = []
    X = kinds(1500, 1)
    done = fitted(X, seen=states, block=block, rate=0.03, **SMALL)
    states = [begun(X, block=block, **SMALL), *states]
    assert [int(s.working["stage"]) for s in states[:25:8]] == [0, 1, 2, 3]
    for k, (before, after) in enumerate(zip(states[0:24:8], states[8:32:8], strict=True)):
        changed = [
            any((a != b).any() for a, b in zip(*layers, strict=True))
            for layers in zip(before.params.layers, after.params.layers, strict=True)
        ]
        assert changed == [at == k for at in range(3)]
    for k in range(3):
        history = states[8 * k + 7].history
        assert max(history) > history[0] + 0.5, k  # by what a layer itself brings back
    assert done.iteration == 24 + len(done.history)


@pytest.mark.parametrize("block", ["rbm", "autoencoder"])
def test_fine_tuning_brings_rows_back_better(block: Any) -> None:
    states: list[FitState] = []
    X, new = kinds(3000, 2), kinds(1000, 3)
    done = fitted(X, seen=states, block=block, **SMALL)
    pretrained = states[23].params
    scores = [
        score_reconstructions(p.layers, new.astype(np.float64), None).mean()
        for p in (pretrained, done.params)
    ]
    assert scores[1] > scores[0] + 1
    assert wrong_bits(done.params, new) < 0.07 < 0.7 * wrong_bits(pretrained, new)  # 0.05 are noise
    assert done.diagnostics["before_fine_tuning"] == pytest.approx(scores[0], abs=0.5)
    assert max(done.history) == pytest.approx(scores[1], abs=0.5)
    assert all(describe_ending(False) in notice.text for notice in done.warnings)


def test_without_pretraining_all_begin_at_random() -> None:
    states: list[FitState] = []
    done = fitted(kinds(1500, 4), seen=states, **{**SMALL, "pretrain": 0})
    assert {int(s.working["stage"]) for s in states} == {3}
    assert done.iteration == len(done.history)
    assert max(done.history) > done.history[0] + 2


def test_one_layer_is_an_autoencoder_twice_over() -> None:
    done = fitted(kinds(500, 5), layers=(6,), pretrain=3, max_iter=4)
    assert done.params.sizes == (24, 6)
    assert done.iteration == 7


def test_codes_come_back_through_all_layers() -> None:
    X = kinds(50, 6)
    params = begun(X, **SMALL).params
    layers, rows = params.layers, X.astype(np.float64)
    codes = MODEL.transform(params, pack_block(X), RNG)["mean"]
    np.testing.assert_allclose(codes, propagate_up(layers, rows)[-1], rtol=1e-12)
    expected = sigmoid(propagate_down(layers, propagate_up(layers, rows)[-1])[-1])
    np.testing.assert_allclose(MODEL.reconstruct(params, codes), expected, rtol=1e-12)


def test_steps_of_boltzmann_machines_are_the_same_whichever_value_is_called_1() -> None:
    X, model, turned = kinds(100, 14), Stack(block="rbm", **SMALL), np.arange(24) % 3 == 0
    state = begun(X, block="rbm", **SMALL)
    (w, c, b), sign = state.params.layers[0], np.where(turned, -1, 1)
    layer = Layer(sign[:, None] * w, sign * c, b + w[turned].sum(axis=0))
    means = np.where(turned, 1 - state.params.means, state.params.means)
    other = StackParams.from_layers([layer, *state.params.layers[1:]], means)
    changes = []
    for params, rows in ((state.params, X), (other, X ^ turned)):
        steps = model.learn(params, state.working, partial(iter, [pack_block(rows)]), RNG)
        assert steps is not None
        change = steps.values["theta"] / steps.values["n_fitted"]
        changes.append(params.add_stage_change(0, change).weights[0] - params.weights[0])
    assert np.abs(changes[0]).max() > 0.05
    np.testing.assert_allclose(changes[1], sign[:, None] * changes[0], atol=1e-4)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_features", "settings", "sizes"),
    [
        (300, {}, (300, 256, 128, 16)),
        (20, {}, (20, 20, 20, 16)),
        (20, {"n_components": 3}, (20, 20, 20, 3)),
        (20, {"n_components": 30}, (20, 30, 30, 30)),
        (20, {"layers": (40, 5)}, (20, 40, 5)),
        (20, {"layers": (40, 5), "n_components": 5}, (20, 40, 5)),
    ],
)
def test_sizes_of_layers(n_features: int, settings: Any, sizes: tuple[int, ...]) -> None:
    X = (np.random.default_rng(9).random((60, n_features)) < 0.5).astype(np.uint8)
    params = begun(X, **settings).params
    assert params.sizes == sizes
    assert [w.shape for w in params.weights] == [*pairwise(sizes)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layers": (8, 100)}, "layers has 100 units above 8, more than 10 times as many"),
        ({"layers": (8, 4), "n_components": 3}, "components is 3, but the last of layers is 4"),
    ],
)
def test_layers_that_contradict_components_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(FitError, match=said) as refusal:
        Stack(**settings)
    assert "\n" not in str(refusal.value)


def test_a_first_layer_far_wider_than_the_rows_is_refused() -> None:
    with pytest.raises(
        FitError, match=r"layers has \d+ units above 24, more than 10 times as many"
    ):
        begun(kinds(50, 10), layers=(1000, 4))


def test_a_warm_start_goes_on_with_all_layers() -> None:
    X = kinds(500, 11)
    done = fitted(X, layers=(6, 3), pretrain=2, max_iter=2)
    model, state = Stack(layers=(6, 3)), begun(X, layers=(6, 3))
    again = model.warm_start(state, done.params)
    assert int(again.working["stage"]) == 2
    assert again.params is done.params
    with pytest.raises(
        FitError, match=r"warm_start has layers 6,3, but this one has 5,3. Use layers=\(6, 3\)"
    ):
        model.warm_start(begun(X, layers=(5, 3)), done.params)


# --- doubts --------------------------------------------------------------------------------------


def test_history_begins_anew_with_each_stage() -> None:
    state = replace(begun(kinds(60, 13), **SMALL), history=(-9.0,))
    following = Stack(**SMALL).next_stage(state, None)
    assert following is not None
    assert int(following.working["stage"]) == 1
    assert float(following.working["unlearnt"]) == pytest.approx(-16 * np.log(2))
    assert float(following.working["rate"]) == 0.03
