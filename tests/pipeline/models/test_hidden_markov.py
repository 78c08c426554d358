"""The hidden Markov model against sums over all paths, and on rows that a chain drew."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import latentbits as lb
from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import fit_model
from pipeline.inference.sequences import condition_rows
from pipeline.learning.held_out import is_held_out
from pipeline.models.hidden_markov.model import HiddenMarkov, HiddenMarkovParams
from pipeline.models.mixture import find_next_number
from pipeline.models.state import FitState
from pipeline.passes import arrival_order
from pipeline.random import RowRandom
from tests.support.strategies import DenseData, make_memory_rows

Floats = NDArray[np.float64]
SERIAL = SerialExecutor()


def draw_params(n_states: int, n_features: int, seed: int, stay: float = 0.0) -> HiddenMarkovParams:
    rng = np.random.default_rng(seed)
    transition = (1 - stay) * rng.dirichlet(np.ones(n_states), n_states) + stay * np.eye(n_states)
    return HiddenMarkovParams(
        rng.uniform(0.05, 0.95, (n_states, n_features)),
        np.full(n_states, 1 / n_states),
        initial=rng.dirichlet(np.ones(n_states)),
        transition=transition,
    )


def compute_densities(params: HiddenMarkovParams, data: DenseData) -> Floats:
    """P(x_n | k) of the observed values, (n_rows, n_states)."""
    p = params.probabilities
    factors = np.where(data.X[:, None] == 1, p, 1 - p)
    densities: Floats = np.where(data.mask[:, None] == 1, factors, 1.0).prod(axis=2)
    return densities


class Paths:
    """Sums over all paths through sequences that begin at some rows."""

    def __init__(self, params: HiddenMarkovParams, b: Floats, begins: set[int]) -> None:
        n_rows, n_states = b.shape
        paths = np.array([*product(range(n_states), repeat=n_rows)])
        own = np.ones(len(paths))
        for n in range(n_rows):
            z = paths[:, n]
            own *= params.initial[z] if n in begins else params.transition[paths[:, n - 1], z]
            own *= b[n, z]
        self.total = own.sum()
        self.posterior = (
            np.stack([own @ (paths == k) for k in range(n_states)], axis=1) / self.total
        )
        self.best = paths[own.argmax()]
        self.transitions = np.zeros((n_states, n_states))
        for n in set(range(n_rows)) - begins:
            np.add.at(self.transitions, (paths[:, n - 1], paths[:, n]), own / self.total)


def draw_rows(n_rows: int, n_features: int, seed: int) -> DenseData:
    rng = np.random.default_rng(seed)
    X, seen = ((rng.random((n_rows, n_features)) < share) * 1 for share in (0.5, 0.8))
    return DenseData((X * seen).astype(np.uint8), seen.astype(np.uint8), None)


def read_blocks(rows: RowSource) -> list[BinaryBlock]:
    from pipeline.data.blocks import iter_blocks

    return [block for key in range(rows.n_chunks) for block in iter_blocks(rows.read(key))]


@pytest.mark.parametrize("sizes", [[10], [1, 3, 1, 5]])
def test_everything_is_a_sum_over_paths(sizes: list[int]) -> None:
    params, data, model = draw_params(3, 4, seed=0), draw_rows(10, 4, seed=1), HiddenMarkov(3)
    expected = Paths(params, compute_densities(params, data), {0})
    rows = make_memory_rows(data, sizes)
    sums: Any = collect_pass_statistics(model, FitState(params), rows, SERIAL, 0)
    assert sums.objective == pytest.approx(np.log(expected.total), abs=1e-12)
    assert_allclose(sums.values["mass"][0], expected.posterior.sum(axis=0), atol=1e-12)
    assert_allclose(sums.values["transitions"], expected.transitions, atol=1e-12)
    assert_allclose(sums.values["starts"], expected.posterior[0], atol=1e-12)
    ones = expected.posterior.T @ (data.X * data.mask)
    assert_allclose(sums.values["ones"], ones.T, atol=1e-12)
    blocks = read_blocks(condition_rows(model, params, rows, SERIAL))
    codes = [model.transform(params, block, RowRandom(0)) for block in blocks]
    assert_allclose(np.vstack([c["mean"] for c in codes]), expected.posterior, atol=1e-12)
    assert_array_equal(np.concatenate([c["state"] for c in codes]), expected.best + 1)
    nats = [model.log_likelihood(params, block, RowRandom(0)).nats.sum() for block in blocks]
    assert sum(nats) == pytest.approx(np.log(expected.total), abs=1e-12)


def test_sequences_begin_where_the_column_changes_or_a_row_is_left_out() -> None:
    params, data = draw_params(3, 4, seed=0), draw_rows(9, 4, seed=2)
    names = ["None", "None", "None", "b", "c", "c", "c", "c", "c"]
    frame = {f"f{i}": np.where(data.mask[:, i] == 1, data.X[:, i], np.nan) for i in range(4)}
    splits = ["train"] * 6 + ["test"] + ["train"] * 2
    dataset = lb.from_numpy(
        np.column_stack([*frame.values()]), [*frame], keep={"id": names, "split": splits}
    )
    model = HiddenMarkov(3, row_id="id")
    from pipeline.data.datasets import make_row_source

    for split, begins in ((None, {0, 3, 4}), ("train", {0, 3, 4, 6})):
        own = np.array([split in (None, s) for s in splits])
        kept = data.take_rows(np.flatnonzero(own))
        expected = Paths(params, compute_densities(params, kept), begins)
        rows = make_row_source(dataset, split, columns=("id",))
        (block,) = read_blocks(condition_rows(model, params, rows, SERIAL))
        found = model.transform(params, block, RowRandom(0))
        assert_allclose(found["mean"], expected.posterior, atol=1e-12)
        assert_array_equal(found["state"], expected.best + 1)


def test_held_out_rows_are_predicted_from_all_others() -> None:
    params, data, model = draw_params(3, 4, seed=0), draw_rows(10, 4, seed=3), HiddenMarkov(3)
    share = 0.4
    is_out = is_held_out(np.arange(10), share, 7)
    assert 2 <= is_out.sum() <= 6
    b = compute_densities(params, data)
    others = Paths(params, np.where(is_out[:, None], 1.0, b), {0})
    state = FitState(params, working={"held_out": np.array(share)})
    sums: Any = collect_pass_statistics(model, state, make_memory_rows(data, [4, 6]), SERIAL, 7)
    expected = np.log((others.posterior * b).sum(axis=1))[is_out].sum()
    assert sums.values["held_out"] == pytest.approx(expected, abs=1e-12)
    assert sums.objective == pytest.approx(np.log(others.total), abs=1e-12)
    assert sums.n_rows == 10 - is_out.sum()


def sum_in_logarithms(params: HiddenMarkovParams, b: Floats) -> float:
    """Return log P of one sequence by the forward algorithm in logarithms."""
    logs = np.log(params.initial) + np.log(b[0])
    for own in np.log(b[1:]):
        logs = scipy.special.logsumexp(logs[:, None] + np.log(params.transition), axis=0) + own
    return float(scipy.special.logsumexp(logs))


@pytest.fixture(scope="module")
def drawn() -> tuple[HiddenMarkovParams, DenseData]:
    """Rows of three states that last 20 rows on average."""
    truth = draw_params(3, 8, seed=4, stay=0.92)
    X = HiddenMarkov(3).sample(truth, 3000, np.random.default_rng(5))
    return truth, DenseData(X, None, None)


@pytest.fixture(scope="module")
def fitted(drawn: tuple[HiddenMarkovParams, DenseData]) -> FitState:
    return fit_model(HiddenMarkov(3), make_memory_rows(drawn[1]), SERIAL)


def test_a_fit_is_at_least_as_likely_as_the_truth(
    drawn: tuple[HiddenMarkovParams, DenseData], fitted: FitState
) -> None:
    truth, data = drawn
    found = sum_in_logarithms(fitted.params, compute_densities(fitted.params, data))
    assert found >= sum_in_logarithms(truth, compute_densities(truth, data))
    assert fitted.converged
    model = HiddenMarkov(3)
    rows = make_memory_rows(data)
    sums: Any = collect_pass_statistics(model, FitState(fitted.params), rows, SERIAL, 0)
    assert sums.objective == pytest.approx(found, rel=1e-8)
    order = [
        int(np.abs(fitted.params.probabilities - own).sum(axis=1).argmin())
        for own in truth.probabilities
    ]
    assert_allclose(fitted.params.transition[np.ix_(order, order)], truth.transition, atol=0.03)


def test_one_of_ten_starts_finds_states_that_most_starts_miss() -> None:
    truth, model = draw_params(4, 4, seed=6, stay=0.95), HiddenMarkov(4)
    data = DenseData(model.sample(truth, 1500, np.random.default_rng(6)))
    params = fit_model(model, make_memory_rows(data), SERIAL).params
    found, expected = (
        sum_in_logarithms(own, compute_densities(own, data)) for own in (params, truth)
    )
    assert found > expected


def test_results_are_the_same_bytes_however_they_are_computed(
    drawn: tuple[HiddenMarkovParams, DenseData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of chunks, threads, and segments that sort the rows of chunks change nothing."""
    monkeypatch.setattr(arrival_order, "BLOCK_WORDS", 1)
    data = drawn[1].take_rows(slice(1000))
    mixed = DenseData(data.X, None, np.random.default_rng(6).integers(0, 3, 1000))
    sizes = [400, 350, 250]
    model = HiddenMarkov(2, max_iter=4)
    fits = [
        fit_model(model, make_memory_rows(own, sizes), executor)
        for own, executor in ((data, SERIAL), (data, ThreadsExecutor(3)), (mixed, SERIAL))
    ]
    for other in fits[1:]:
        assert other.history == fits[0].history
        assert other.params.transition.tobytes() == fits[0].params.transition.tobytes()


def test_a_fit_that_goes_on_from_a_checkpoint_gives_the_same_bytes(
    drawn: tuple[HiddenMarkovParams, DenseData], fitted: FitState
) -> None:
    states = list[FitState]()
    rows = make_memory_rows(drawn[1])
    fit_model(HiddenMarkov(3), rows, SERIAL, checkpoint=states.append)
    kept = next(state for state in states if not state.starts)
    resumed = fit_model(HiddenMarkov(3), rows, SERIAL, state=kept)
    for name in ("probabilities", "transition", "initial", "weights"):
        assert getattr(resumed.params, name).tobytes() == getattr(fitted.params, name).tobytes()


def test_auto_finds_the_number_of_states(drawn: tuple[HiddenMarkovParams, DenseData]) -> None:
    data = drawn[1].take_rows(slice(1500))
    state = fit_model(HiddenMarkov(None, tol=1e-4), make_memory_rows(data), SERIAL)
    assert state.diagnostics["n_components"] == 3
    assert state.diagnostics["held_out_numbers"] == [1, 2, 4, 8, 3]
    assert len(state.diagnostics["held_out_scores"]) == 5


def test_the_search_goes_on_between_the_best_number_and_its_neighbours() -> None:
    doubled, found = [1, 2, 4, 8, 16, 32], list[int]()
    while (number := find_next_number(np.array(doubled + found), 6, 16, 32)) is not None:
        found.append(number)
    assert found == [12, 24, 20]  # no more, because they would add up to more than 63
    assert find_next_number(np.array([1, 2, 4, 3]), 3, 3, 4) is None


def test_states_without_rows_are_restarted() -> None:
    """Without it, three of the states have no rows, and the fit is 8 nats less likely."""
    params = draw_params(4, 6, seed=0, stay=0.95)
    X = HiddenMarkov(4).sample(params, 100, np.random.default_rng(100))
    state = fit_model(HiddenMarkov(20), make_memory_rows(DenseData(X, None, None)), SERIAL)
    assert (100 * state.params.weights >= 1).all()
    assert 100 * max(state.history) > -445
    assert not state.warnings


def refuse(columns: dict[str, Any], **settings: Any) -> str:
    X = np.random.default_rng(0).integers(0, 2, (6, 3))
    dataset = lb.from_numpy(X, ["a", "b", "c"], keep=columns)
    with pytest.raises(FitError) as error:
        lb.fit(dataset, "hidden-markov", components=2, n_jobs=1, **settings)
    return str(error.value)


def test_sequences_that_are_not_in_order_are_refused() -> None:
    ids, times = [1, 1, 2, 2, 1, 1], [1, 2, 1, 2, 2, 3]
    assert "row 5: its id has begun" in refuse({"id": ids}, row_id="id")
    settings = {"row_id": "id", "time": "t"}
    own = {"id": [1, 1, 2, 2, 3, 3], "t": [1, 2, 1, 1, 2, 3]}
    assert "row 4: t is not after" in refuse(own, **settings)
    assert "'t'" in refuse({"id": ids}, time="t")
    assert "row 2: id is empty" in refuse({"id": ["a", "", "b", "b", "b", "b"]}, row_id="id")
    assert "ignores the order" in refuse({"w": times}, weight="w")


def test_single_rows_are_said_to_have_no_transitions() -> None:
    """Their names are equal as floats; times are in order also below 0."""
    X = np.random.default_rng(0).integers(0, 2, (40, 3))
    own = {"id": (1 << 60) + np.arange(40), "t": np.linspace(-3, 3, 40)}
    dataset = lb.from_numpy(X, ["a", "b", "c"], keep=own)
    fit = lb.fit(dataset, "hidden-markov", components=2, row_id="id", n_jobs=1)
    assert any("every sequence has one row" in text for text in fit.manifest["warnings"])
    fit = lb.fit(dataset, "hidden-markov", components=2, time="t", n_jobs=1)
    assert fit.manifest["diagnostics"]["sequences"] == 1


def test_times_that_are_texts_are_compared_as_numbers() -> None:
    """Codes of texts are in the order of their first appearance."""
    X = np.random.default_rng(0).integers(0, 2, (7, 3))
    own = {"id": [*"aaabbbb"], "t": ["9", "10", "11", "2", "9", "10", "100"]}
    dataset = lb.from_numpy(X, ["a", "b", "c"], keep=own)
    settings = {"components": 2, "row_id": "id", "time": "t", "n_jobs": 1}
    fit = lb.fit(dataset, "hidden-markov", **settings)
    assert fit.manifest["diagnostics"]["sequences"] == 2
    assert lb.transform(fit, dataset)["state"].shape == (7,)
    assert lb.evaluate(fit, dataset)["log_likelihood"]
    assert "row 2: t is not after" in refuse({"t": ["9", "8", "7", "6", "5", "4"]}, time="t")
    assert "'May', which is not a number" in refuse({"t": [*"12345", "May"]}, time="t")
