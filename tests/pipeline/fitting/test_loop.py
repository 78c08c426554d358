"""The training loop, with statistics that show what was merged with what."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting.fit_pass import fit_pass
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.learning.convergence import (
    ExpectedGainCriterion,
    ObjectiveCriterion,
    PatienceCriterion,
    is_stage_over,
    warn_about_ending,
)
from pipeline.models.base import Model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.state import FitState
from pipeline.params import array_field
from pipeline.passes.map_reduce import collect_statistics, tree_merge
from pipeline.passes.task_sizes import WorkEstimate
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, PairCounts, make_tiles
from tests.models.climber import Climber
from tests.support.strategies import DenseData, chunkings, make_memory_rows, tables

SERIAL = SerialExecutor()
EXECUTORS = [SERIAL, ThreadsExecutor(1), ThreadsExecutor(3)]


class Trace:
    """Statistics that write down how they were merged, and can be watched being freed."""

    alive: ClassVar[weakref.WeakSet[Trace]] = weakref.WeakSet()

    def __init__(self, text: str, n_rows: int) -> None:
        self.text, self.n_rows = text, n_rows
        self.alive.add(self)

    @classmethod
    def from_block(cls, block: BinaryBlock) -> Trace:
        return cls(str(block.rows[0]), block.n_samples)

    def merge(self, other: Trace) -> Trace:
        return Trace(f"({self.text} {other.text})", self.n_rows + other.n_rows)

    @classmethod
    def stitch(cls, parts: Sequence[Trace]) -> Trace:
        (part,) = parts
        return part


def one_row_chunks(n_rows: int, keep: Sequence[bool] | None = None) -> Any:
    in_split = None if keep is None else np.array(keep)
    return make_memory_rows(DenseData(np.zeros((n_rows, 1), np.uint8), keep=in_split), [1] * n_rows)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_chunks_fold_in_groups_and_groups_merge_in_a_tree(executor: Any) -> None:
    work = WorkEstimate(0, n_chunks=8)
    folded = collect_statistics(Trace.from_block, one_row_chunks(29), executor, "trace", work=work)
    first = "(((((((0 1) 2) 3) 4) 5) 6) 7)"
    second = "(((((((8 9) 10) 11) 12) 13) 14) 15)"
    third = "(((((((16 17) 18) 19) 20) 21) 22) 23)"
    last = "((((24 25) 26) 27) 28)"
    assert folded.text == f"(({first} {second}) ({third} {last}))"
    assert folded.n_rows == 29


@pytest.mark.parametrize("executor", [*EXECUTORS, ThreadsExecutor(1000)])
@pytest.mark.parametrize("n_chunks", [1, 2, 7, 60, 129])
def test_single_chunks_merge_in_the_same_tree_however_many_share_a_task(
    executor: Any, n_chunks: int
) -> None:
    summed = collect_statistics(Trace.from_block, one_row_chunks(n_chunks), executor, "trace")
    assert summed.text == tree_merge(Trace(str(k), 1) for k in range(n_chunks)).text


def test_groups_without_rows_of_the_split_are_passed_over() -> None:
    keep = [k in (3, 5, 20) for k in range(29)]
    assert (
        collect_statistics(Trace.from_block, one_row_chunks(29, keep), SERIAL, "trace").text
        == "((3 5) 20)"
    )


@pytest.mark.parametrize("n_rows", [0, 1, 20])
def test_a_pass_over_no_rows_is_refused(n_rows: int) -> None:
    with pytest.raises(FitError, match=r"There are no rows\. Choose another split\."):
        collect_statistics(
            Trace.from_block, one_row_chunks(n_rows, [False] * n_rows), SERIAL, "trace"
        )


def counted(data: DenseData, sizes: Sequence[int], executor: Any, budget: int) -> PairCounts:
    rows = make_memory_rows(data, sizes)
    cut = make_tiles(rows.n_features, 1, budget)
    summarize = partial(PairCounts.from_block, pooled=True)
    return collect_statistics(summarize, rows, executor, "pairs", cut)


@given(tables(st.integers(1, 9), splits=True), st.integers(1, 9), st.data())
def test_a_tiled_pass_equals_the_whole(data: DenseData, side: int, draw: st.DataObject) -> None:
    if data.keep is not None and not data.keep.any():
        return
    sizes = draw.draw(chunkings(len(data.X)))
    whole = counted(data, sizes, SERIAL, 1 << 30).to_arrays()
    tiled = counted(data, sizes, ThreadsExecutor(2), 64 * side**2).to_arrays()
    assert whole.keys() == tiled.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(tiled[name], values, err_msg=name, strict=True)


@dataclass(frozen=True)
class ShareParams:
    """Share of ones of each feature."""

    share: NDArray[np.float64] = array_field("feature")


@dataclass(frozen=True)
class ShareStatistics:
    """Ones of each feature, and how far the shares are from the data."""

    label: ClassVar[str] = "shares"
    n_rows: int
    ones: NDArray[np.float64]
    objective: float

    @property
    def weight(self) -> float:
        return self.n_rows

    def merge(self, other: ShareStatistics) -> ShareStatistics:
        return ShareStatistics(
            self.n_rows + other.n_rows,
            self.ones + other.ones,
            self.objective + other.objective,
        )

    @classmethod
    def stitch(cls, parts: Sequence[ShareStatistics]) -> ShareStatistics:
        (part,) = parts
        return part


@dataclass(frozen=True)
class Shares(Model):
    """Steps halfway to the share of noisy ones in each pass: an iterative model that converges."""

    name: ClassVar[str] = "shares"
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[Any] = ShareStatistics
    params: ClassVar[type[ShareParams]] = ShareParams
    max_iter: int = 50
    tol: float = 1e-6
    noise: float = 0.0
    n_components: int | None = field(default=None, init=False)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        return FitState(ShareParams(rng.uniform(size=first.ones.shape[1])))

    def summarize(
        self, params: ShareParams, working: Any, block: BinaryBlock, rng: RowRandom
    ) -> ShareStatistics:
        X = block.unpack_values() + self.noise * rng.normal(block.rows, block.n_features)
        objective = -float(((X - params.share) ** 2).sum())
        return ShareStatistics(block.n_samples, X.sum(axis=0), objective)

    def update(
        self, state: FitState, statistics: ShareStatistics, map_items: Any, rng: Any
    ) -> FitState:
        share = (state.params.share + statistics.ones / statistics.n_rows) / 2
        return replace(state, params=ShareParams(share), diagnostics={"n_components": 0})


X = np.random.default_rng(0).integers(0, 2, (300, 3), dtype=np.uint8)
ROWS = make_memory_rows(DenseData(X), [20] * 15)


def test_an_iterative_fit_goes_on_until_it_converges() -> None:
    model = Shares(tol=1e-9)
    state = fit_model(model, ROWS, SERIAL)
    assert 2 < state.iteration == len(state.history) < model.max_iter
    np.testing.assert_allclose(state.params.share, X.mean(axis=0), atol=1e-4)
    assert np.all(np.diff(state.history) > 0)
    last, limit = state.history[-1], -X.var(axis=0).sum()
    assert limit - 1e-9 <= last <= limit < state.history[-4] + 1e-6
    assert state.warnings == ()


@dataclass(frozen=True)
class Stalling(Shares):
    """Stalls in the pass after the second, and forgets it in the last update."""

    name: ClassVar[str] = "stalling"

    def update(
        self, state: FitState, statistics: ShareStatistics, map_items: Any, rng: Any
    ) -> FitState:
        moved = super().update(state, statistics, map_items, rng)
        return replace(moved, auxiliary={"stalled": np.array(len(state.history) == 1)})

    def get_convergence_criterion(self, state: FitState) -> ExpectedGainCriterion:
        return ExpectedGainCriterion(9, 0.1, 1.0, bool(state.auxiliary.get("stalled", False)))


def test_a_fit_says_why_it_ended_whatever_the_last_update_changed() -> None:
    states: list[FitState] = []
    state = fit_model(Stalling(), ROWS, SERIAL, checkpoint=states.append)
    assert state.iteration == 3
    assert not state.converged
    (notice,) = state.warnings
    assert "stopped before converging, because no step raised the objective" in notice.text
    assert fit_model(Stalling(), ROWS, SERIAL, state=states[-1]).warnings == state.warnings


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_resumed_fit_gives_the_same_bytes(executor: Any) -> None:
    states: list[FitState] = []
    model = Shares(noise=0.5, max_iter=6, tol=0.0)
    whole = fit_model(model, ROWS, SERIAL, seed=7, checkpoint=states.append)
    assert [state.iteration for state in states] == [1, 2, 3, 4, 5, 6]
    resumed = fit_model(model, ROWS, executor, seed=7, state=states[2])
    assert resumed.history == whole.history
    assert resumed.params.share.tobytes() == whole.params.share.tobytes()
    assert resumed.warnings == whole.warnings


def test_a_finished_fit_is_not_fitted_again() -> None:
    done = fit_model(Shares(), ROWS, SERIAL)
    told: list[Any] = []
    assert fit_model(Shares(), ROWS, SERIAL, state=done, checkpoint=told.append) == done
    assert told == []


def test_every_pass_draws_anew_and_every_seed() -> None:
    model = Shares(noise=0.5, max_iter=2, tol=0.0)
    first = initialize_fit(model, collect_first_statistics(model, ROWS, SERIAL, 0), 7)
    second = replace(first, iteration=1)
    passes = [
        fit_pass(model, state, ROWS, SERIAL, seed).history[-1]
        for state, seed in ((first, 7), (second, 7), (first, 8))
    ]
    assert len(set(passes)) == 3


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(FitError, match=rf"^seed must be 0 to .*, but is {seed}\."):
        fit_model(Shares(noise=0.5), ROWS, SERIAL, seed)
    fit_model(Shares(noise=0.5, max_iter=2), ROWS, SERIAL, 2**63 - 1)


def test_statistics_collected_before_stand_for_the_first_pass_only() -> None:
    read: list[int] = []

    def reading(key: int) -> Any:
        read.append(key)
        return ROWS.read(key)

    model = Shares(max_iter=2, tol=0.0)
    state = initialize_fit(model, collect_first_statistics(model, ROWS, SERIAL, 0), 0)
    given_statistics = ShareStatistics(10, np.array([10.0, 0.0, 5.0]), -20.0)
    fitted = fit_model(
        model, replace(ROWS, read=reading), SERIAL, state=state, statistics=given_statistics
    )
    assert fitted.history[0] == -2.0
    assert read == [*range(15)]


def test_the_loop_asks_the_executor_alone() -> None:
    class Counting(SerialExecutor):
        items: ClassVar[list[int]] = []

        def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
            listed = list(items)
            self.items.append(len(listed))
            return super().map(function, listed)

    fit_model(Shares(max_iter=2, tol=0.0), ROWS, Counting())
    assert Counting.items == [15, 2, 2]


@pytest.mark.parametrize(
    ("history", "converged", "stopped"),
    [
        ([], False, False),
        ([-1.0], False, False),
        ([-1.0, -1.0 + 2e-3], False, False),
        ([-1.0, -1.0 + 5e-4], False, False),
        ([-1.0, -1.0 + 5e-6], True, False),
        ([-1.0, -0.5, -0.25, -0.125], False, True),
        ([-1.0, -0.5, -0.5, -0.5], False, True),
        ([-0.5, -0.5 + 5e-4, -0.5 + 7e-4, -0.5 + 8e-4], True, True),
        ([-9e3, -9e3 + 5.0, -9e3 + 6.0, -9e3 + 7.0], False, True),
    ],
)
def test_converged_and_stopped_are_different_answers(
    history: Sequence[float], converged: bool, stopped: bool
) -> None:
    convergence = ObjectiveCriterion(max_iter=4, tol=1e-3)
    assert convergence.has_converged(history) == converged
    assert is_stage_over(convergence, history) == (converged or stopped)
    assert bool(warn_about_ending(convergence, history)) == (not converged)


def reads_of(model: Model, rows: RowSource = ROWS) -> tuple[FitState, list[int]]:
    """A fit, and the chunks that it read after its first counts."""
    read: list[int] = []

    def reading(key: int) -> Any:
        read.append(key)
        return rows.read(key)

    state = initialize_fit(model, collect_first_statistics(model, rows, SERIAL, 0), 0)
    return fit_model(model, replace(rows, read=reading), SERIAL, state=state), read


def test_starts_share_their_passes() -> None:
    model = BernoulliMixture(n_components=3, starts=4, max_iter=7)
    whole, read = reads_of(model)
    first = initialize_fit(model, collect_first_statistics(model, ROWS, SERIAL, 0), 0)
    assert len(first.starts) == 4
    # and one pass for errors
    assert len(read) == ROWS.n_chunks * (whole.iteration + 1) <= ROWS.n_chunks * (2 * 7 + 1)
    # Each as if it were alone.
    alone = [fit_model(model, ROWS, SERIAL, state=replace(s, starts=())) for s in first.starts]
    assert whole.history[0] >= max(done.history[-1] for done in alone) - 1e-12
    assert 1 <= whole.diagnostics["starts_at_best"] <= whole.diagnostics["starts"] <= 4


def test_a_fit_with_starts_goes_on_anywhere() -> None:
    states: list[FitState] = []
    model = BernoulliMixture(n_components=2, starts=3, max_iter=9)
    whole = fit_model(model, ROWS, SERIAL, checkpoint=states.append)
    assert any(state.starts for state in states)
    for state in states:
        again = fit_model(model, ROWS, ThreadsExecutor(2), state=state)
        assert again.params.probabilities.tobytes() == whole.params.probabilities.tobytes()


def test_central_steps_read_the_rows_once() -> None:
    told: list[str] = []
    model = Climber()
    state, read = reads_of(model)
    assert read == [*range(ROWS.n_chunks)]
    assert len(state.history) > 5
    assert np.all(np.diff(state.history) > 0)
    first = initialize_fit(model, collect_first_statistics(model, ROWS, SERIAL, 0), 0)
    fit_model(model, ROWS, SERIAL, state=first, progress=lambda label, *_: told.append(label))
    assert any(label.startswith("feature counts, pass 3, -") for label in told)


class Passing(Shares):
    """Walks past the shares of the data, a tenth a pass."""

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        return FitState(ShareParams(np.zeros(first.ones.shape[1])))

    def get_convergence_criterion(self, state: FitState) -> PatienceCriterion:
        return PatienceCriterion(self.max_iter, patience=2)

    def update(self, state: FitState, statistics: Any, map_items: Any, rng: Any) -> FitState:
        return replace(state, params=ShareParams(state.params.share + 0.1))


def test_the_best_pass_is_kept_where_a_stage_waits_for_better() -> None:
    states: list[FitState] = []
    done = fit_model(Passing(), ROWS, SERIAL, checkpoint=states.append)
    best = int(np.argmax(done.history))
    assert 2 < best == len(done.history) - 3
    np.testing.assert_allclose(done.params.share, 0.1 * best)
    again = fit_model(Passing(), ROWS, SERIAL, state=states[best])  # the best is in the checkpoint
    np.testing.assert_array_equal(again.params.share, done.params.share)
    assert done.warnings == ()
