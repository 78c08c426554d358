"""The bottleneck: what it learns, what it leaves out, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import RowSource, pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.learning.batches import TrainingBatch, take_batch_rows
from pipeline.learning.convergence import describe_ending
from pipeline.learning.training import GradientTraining
from pipeline.models.bottleneck import Bottleneck, BottleneckLearner
from pipeline.models.state import FitState
from pipeline.numerics.networks.layered_network import score_gradient
from pipeline.random import RowRandom
from tests.support.strategies import DenseData, StrategyReader, make_memory_rows

Floats = NDArray[np.float64]
SERIAL, RNG = SerialExecutor(), RowRandom(0)
N_FEATURES = 8


def labelled(X: Any, y: NDArray[Any], observed: Any = None, n_chunks: int = 4) -> RowSource:
    """Rows with a column `y`."""
    rows = make_memory_rows(
        DenseData(X, observed), [len(part) for part in np.array_split(X, n_chunks)]
    )
    chunks = [rows.read(key) for key in range(rows.n_chunks)]
    with_labels = (replace(chunk, columns={"y": y[chunk.row_numbers]}) for chunk in chunks)
    return replace(rows, read=StrategyReader(tuple(with_labels)))


def fitted(rows: RowSource, **settings: Any) -> FitState:
    return fit_model(Bottleneck(**{"n_components": 2, "column": "y", **settings}), rows, SERIAL)


def bits(n_rows: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 2, (n_rows, N_FEATURES), dtype=np.uint8)


def hidden(X: Any) -> Floats:
    """Two units, steep enough for bends that no straight line follows."""
    weights = np.random.default_rng(5).standard_normal((N_FEATURES, 2)) * 2
    return 1 / (1 + np.exp(-((X - 0.5) @ weights)))


def predicted(state: FitState, X: Any, observed: Any = None) -> Floats:
    return Bottleneck().predict(state.params, pack_block(X, observed), RNG)


def test_it_finds_the_probabilities_that_labels_were_drawn_by() -> None:
    X = bits(20_000)
    logits = hidden(X) @ np.array([[4.0, -2.0, 0.0], [-1.0, 4.0, 0.0]]) - 1
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    draws = np.random.default_rng(1).random(len(X))
    y = (draws[:, None] > p.cumsum(axis=1)[:, :2]).sum(axis=1)
    state = fitted(labelled(X, 10 * y + 7, n_chunks=1), max_iter=60)
    assert state.params.categories.tolist() == [7, 17, 27]
    found = predicted(state, X)
    assert np.abs(found - p).mean() < 0.02
    np.testing.assert_allclose(found.sum(axis=1), 1)
    entropy = -(p * np.log(p)).sum(axis=1).mean()
    assert max(state.history) == pytest.approx(-entropy, abs=0.04)
    assert state.params.baseline_score < -entropy - 0.1


def test_it_finds_the_mean_of_a_number() -> None:
    X = bits(10_000)
    mean = 1000 + hidden(X) @ [50.0, -30.0]
    y = mean + 5 * np.random.default_rng(1).standard_normal(len(X))
    state = fitted(labelled(X, y, n_chunks=1), max_iter=60)
    assert state.params.categories is None
    assert np.sqrt(((predicted(state, X)[:, 0] - mean) ** 2).mean()) < 1.5
    noise_share = 25 / y.var()
    assert max(state.history) == pytest.approx(-noise_share / 2, rel=0.15)


@pytest.mark.parametrize("missing", ["rows", "values"])
def test_it_learns_though_something_is_missing(missing: str) -> None:
    X, rng = bits(4000), np.random.default_rng(2)
    y = (X[:, 0] ^ 1).astype(np.float64)
    observed = None
    if missing == "rows":
        y[rng.random(len(X)) < 0.5] = np.nan
    else:
        observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
        observed[:, 0] |= rng.random(len(X)) < 0.5
    state = fitted(labelled(X, y, observed), max_iter=15)
    assert state.params.categories.tolist() == [0, 1]
    right = predicted(state, X).argmax(axis=1) != X[:, 0]
    assert right.mean() > 0.99


def test_a_step_goes_along_the_slope_with_missing_values_at_their_means() -> None:
    X, rng = bits(40), np.random.default_rng(6)
    observed, y = (rng.random(X.shape) < 0.6).astype(np.uint8), np.arange(40) % 3
    params = fitted(labelled(X, y, n_chunks=1), max_iter=1).params
    training, at = GradientTraining("momentum", 0.0, 25, 0.1, 0.1, 1, 1, 0.0), np.arange(5, 30)
    working = training.make_working_state(25, len(params.theta))
    learner = BottleneckLearner(params, "y", training, working)
    rows = TrainingBatch(X & observed, observed, np.arange(40), np.zeros(40, np.int64), {"y": y})
    learner.step(take_batch_rows(rows, at))
    inputs = np.where(observed, X, params.means)[at] - params.means
    around = params.network.unflatten(params.theta)
    slope = score_gradient(around, inputs, np.eye(3)[y[at]], True).flatten()
    np.testing.assert_allclose(learner.theta - params.theta, 0.1 * slope, atol=1e-6)
    assert learner.n_rows == 25
    moved = params.add_change(0.1 * slope)
    np.testing.assert_allclose(moved.theta, params.theta + 0.1 * slope)
    blocks = [pack_block(X & observed, observed), pack_block(X)]
    for block, filled in zip(blocks, (np.where(observed, X, params.means), X), strict=True):
        inputs_of_units = filled @ moved.weights + moved.biases
        codes = Bottleneck().transform(moved, block, RNG)["mean"]
        np.testing.assert_allclose(codes, 1 / (1 + np.exp(-inputs_of_units)))


def test_nothing_is_learnt_from_rows_without_a_label() -> None:
    X, rng = bits(1500), np.random.default_rng(4)
    y = np.where(rng.random(len(X)) < 0.3, np.nan, X[:, 1])
    shuffled = X.copy()
    at = np.flatnonzero(np.isnan(y))
    shuffled[at] = X[rng.permutation(at)]  # means of features stay
    found, other = (fitted(labelled(rows, y), max_iter=3) for rows in (X, shuffled))
    assert found.params.weights.tobytes() == other.params.weights.tobytes()
    assert found.history == other.history


@pytest.mark.parametrize(
    ("values", "settings", "is_category"),
    [
        (np.array([0.0, 1.0, 5.0]), {}, True),
        (np.array([0.0, 1.0, 5.5]), {}, False),
        (np.array([0.0, 1.0, 5.5]), {"kind": "category"}, True),
        (np.array([0, 1, 5]), {}, True),
        (np.array([0, 1, 5]), {"kind": "number"}, False),
        (np.arange(1001), {}, False),
        (np.arange(1000), {}, True),
        (np.array([0, 1], np.int32), {}, True),
    ],
)
def test_the_kind_of_the_column_decides(values: Any, settings: Any, is_category: bool) -> None:
    y = values[np.arange(1200) % len(values)]
    state = fitted(labelled(bits(1200), y), max_iter=1, **settings)
    assert state.params.is_category == is_category


SOME = bits(100)
CODES = np.arange(100, dtype=np.int32)


@pytest.mark.parametrize(
    ("X", "y", "settings", "message"),
    [
        (SOME, np.full(100, 3), {}, "Column 'y' has the same label in all rows"),
        (SOME, np.full(100, 2.5), {}, "Column 'y' has the same label in all rows"),
        (SOME, np.full(100, np.nan), {}, "Column 'y' has no labels"),
        (SOME, CODES, {"column": "segment"}, 'only one segment.* column="NAME"'),
        (
            SOME,
            CODES,
            {"kind": "number"},
            "kind=\"number\" needs numbers, but column 'y' has texts",
        ),
        (np.ones_like(SOME), CODES, {}, "All rows have the same values"),
        (SOME, np.arange(100) * 1e200, {}, "Column 'y' has a variance of inf"),
    ],
)
def test_what_cannot_be_learnt_is_refused(X: Any, y: Any, settings: Any, message: str) -> None:
    settings = {"kind": "number" if y.dtype == np.float64 else "auto", **settings}
    with np.errstate(over="ignore"), pytest.raises(FitError, match=message) as refused:
        fitted(labelled(X, y), **settings)
    assert "\n" not in str(refused.value)


def test_too_many_categories_are_refused() -> None:
    X = bits(1100)
    for y, remedy in ((np.arange(1100, dtype=np.int32), r"column\."), (np.arange(1100), "number")):
        with pytest.raises(FitError, match=f"more than 1,000 different labels.*{remedy}"):
            fitted(labelled(X, y), kind="category")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["category", "number"])
def test_steps_that_are_too_long_are_shortened_and_told(kind: Any) -> None:
    X = bits(2000)
    y = (X[:, 0] + 2 * X[:, 1] + 1 * X[:, 2]).astype(np.int64)
    state = fitted(labelled(X, y), kind=kind, rate=1e4)
    told = state.warnings[0].text
    assert "the initial learning rate was too high" in told
    assert np.isfinite(state.params.weights).all()
    assert max(state.history) > state.history[0] + 0.3
    plain = fitted(labelled(X, y), kind=kind)
    assert all(describe_ending(False) in notice.text for notice in plain.warnings)


@pytest.mark.parametrize("kind", ["category", "number"])
def test_training_that_diverges_is_told_and_the_best_pass_kept(kind: Any) -> None:
    X = bits(2000)
    y = (X[:, 0] + 2 * X[:, 1] + 1 * X[:, 2]).astype(np.int64)
    state = fitted(labelled(X, y), kind=kind, rate=1e30, max_iter=10)
    told = [w.text for w in state.warnings]
    assert told[0].startswith("training diverged: no pass was better than the initial parameters.")
    assert told[0].endswith("Use a lower learning rate: {rate=0.05}.")
    assert "stopped before converging, at {max_iter=10}; raise it" in told[1]
    assert np.isfinite(state.params.weights).all()
