"""CPU time of tasks against estimated work, and their balance across workers.

python -m tests.benchmarks task_sizes [ROWS FEATURES TRAITS]

Three parts:

* CPU seconds of each task in a pass of the latent-trait model by quadrature, and the efficiency
  that these times allow on 2, 16 and 64 workers. The simulation assumes that the scheduling process
  needs 2 ms per task.
* Median wall seconds of a pass on one and on two worker processes, the CPU seconds of each worker,
  and the load average, because wall times mean little on a busy machine.
* CPU nanoseconds per row of several models, with the ratio to `estimate_work` in parentheses,
  without and with missing values.

Defaults: 400,000 rows, 64 features, 2 traits.
"""

import heapq
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.data.datasets import make_row_source
from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.executors.dask import DaskExecutor
from pipeline.executors.usage import measure_usage
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, initialize_fit
from pipeline.models.base import Model
from pipeline.models.bernoulli_mixture import BernoulliMixture
from pipeline.models.capabilities import HasInformationPass
from pipeline.models.kernel_pca import KernelPCA
from pipeline.models.latent_trait import LatentTrait
from pipeline.models.state import FitState
from pipeline.numerics.bits.kernels import pack_rows
from pipeline.random import RowRandom
from storage.dataset.dataset import BinaryDataset
from tests.benchmarks._measure import measure_best, write_rows
from tests.support.worker_processes import worker_processes

SECONDS_PER_TASK, TASKS_AHEAD = 2e-3, 2
REPEATS = 3


def draw_rows(n_rows: int, n_features: int, n_traits: int, seed: int = 0) -> np.ndarray:
    """Draw rows of items that depend on normal traits."""
    rng = np.random.default_rng(seed)
    items = np.random.default_rng(1).standard_normal((n_traits, n_features), np.float32)
    traits = rng.standard_normal((n_rows, n_traits), np.float32)
    p = 1 / (1 + np.exp(-traits @ items))
    return (rng.random((n_rows, n_features), np.float32) < p).astype(np.uint8)


def write_dataset(path: Path, n_rows: int, n_features: int, n_traits: int) -> BinaryDataset:
    """Write rows in chunks of the size that `ingest` chooses."""
    batches = (
        draw_rows(min(100_000, n_rows - first), n_features, n_traits, first)
        for first in range(0, n_rows, 100_000)
    )
    return write_rows(path, n_features, batches, expected_rows=n_rows)


def measure_cpu(executor: DaskExecutor) -> dict[str, float]:
    """Return the CPU seconds of each worker so far."""
    return {a: usage.cpu_seconds for a, usage in executor.run_on_workers(measure_usage).items()}


def compare_workers(model: Model, state: FitState, rows: RowSource) -> None:
    """Print times of passes on one worker and on two, measured alternately."""
    run = partial(collect_pass_statistics, model, state, rows, seed=0)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with worker_processes(1) as one, worker_processes(2) as two:
        executors = {1: one, 2: two}
        for executor in executors.values():
            run(executor=executor)  # import and compile
        cpu_before = {n: measure_cpu(executor) for n, executor in executors.items()}
        for n in [1, 2] * REPEATS:
            start = time.perf_counter()
            run(executor=executors[n])
            seconds[n].append(time.perf_counter() - start)
        for n, executor in executors.items():
            cpu = [
                cpu_seconds - cpu_before[n][a] for a, cpu_seconds in measure_cpu(executor).items()
            ]
            shares = ", ".join(f"{cpu_seconds / REPEATS:.2f}" for cpu_seconds in cpu)
            print(f"{n} worker(s): pass {np.median(seconds[n]):.2f} s, CPU s per worker {shares}")
    ratio = np.median(seconds[1]) / np.median(seconds[2])
    print(f"speed-up of 2 over 1: {ratio:.2f}, load average {os.getloadavg()[0]:.1f}")


@dataclass
class TimingExecutor(SerialExecutor):
    """Serial executor that records the CPU seconds of each task."""

    seconds: list[float] = field(default_factory=list)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Generator[Any]:
        """Apply a function to every item."""
        with limit_blas_threads():
            for item in items:
                start = time.process_time()
                result = function(item)
                self.seconds.append(time.process_time() - start)
                yield result


def simulate(seconds: Sequence[float], n_workers: int) -> float:
    """Return the seconds of a pass if tasks are sent and received in order, as executors do."""
    free, ends, clock = [0.0] * n_workers, [], 0.0
    for k, task in enumerate(seconds):
        if k >= TASKS_AHEAD * n_workers:  # wait for the oldest task
            clock = max(clock, ends[k - TASKS_AHEAD * n_workers])
        clock += SECONDS_PER_TASK
        ends.append(max(clock, heapq.heappop(free)) + task)
        heapq.heappush(free, ends[-1])
    return max(ends)


def print_schedule(model: Model, state: FitState, rows: RowSource) -> None:
    """Print the CPU seconds of the tasks of a pass, and its simulated efficiency."""
    collect_pass_statistics(model, state, rows, SerialExecutor(), 0)
    executor = TimingExecutor()
    collect_pass_statistics(model, state, rows, executor, 0)
    tasks = np.array(executor.seconds)
    spread = np.quantile(tasks, [0.05, 0.5, 0.95])
    print(
        f"{len(tasks)} tasks, {tasks.sum():.1f} CPU s in total; "
        f"5, 50 and 95 % quantiles per task: {spread.round(3)} CPU s"
    )
    for n in (2, 16, 64):
        efficiency = tasks.sum() / n / simulate(tasks, n)
        print(f"simulated on {n} workers: efficiency {efficiency:.2f}")


def compare_estimate(
    model: Model, summarize: Callable[..., Any], state: FitState, block: BinaryBlock
) -> str:
    """Format the CPU time per row of a block, and its ratio to the estimate."""
    run = partial(summarize, state.params, state.working, block, RowRandom(0))
    nanoseconds = 1e9 * measure_best(run, clock=time.process_time) / block.n_samples
    work = model.estimate_work(state.params, state.working, block.n_features, block.n_samples)
    return f"{nanoseconds:8.0f} ns ({nanoseconds / work.nanoseconds:.2f})"


def print_estimates() -> None:
    """Print measured work per model, and its ratio to the estimate."""
    shapes = [(16, 1), (64, 2), (64, 3), (400, 2)]
    cases: list[tuple[Model, int, int]] = [
        (LatentTrait(q, estimator=name), f, q)
        for f, q in shapes
        for name in ("variational", "quadrature", "ep")
    ]
    cases += [(BernoulliMixture(k, starts=1), f, 2) for f in (16, 400) for k in (2, 50)]
    cases += [(KernelPCA(landmarks=n), 64, 2) for n in (100, 1000)]
    print("CPU ns per row (ratio to estimate): a pass, and the pass for standard errors if any")
    for model, n_features, q in cases:
        X = draw_rows(1000, n_features, q)
        mask = np.random.default_rng(2).random(X.shape) < 0.9
        for observed in (None, mask):
            words = pack_rows(X if observed is None else X * observed)
            observed_words = None if observed is None else pack_rows(observed.astype(np.uint8))
            block = BinaryBlock(words, observed_words, len(X), row_numbers=np.arange(len(X)))
            state = initialize_fit(model, model.summarize_first(block, RowRandom(0)), 0)
            texts = [compare_estimate(model, model.summarize, state, block)]
            if isinstance(model, HasInformationPass) and (w := model.begin_information_pass(state)):
                after = replace(state, working=w)
                texts.append(compare_estimate(model, model.summarize_information, after, block))
            kind = getattr(model, "estimator", "")
            missing = "complete" if observed is None else "10 % missing"
            name = f"{model.name:17s} {kind:11s} {n_features:3d} features, {missing:12s}"
            print(f"{name}: {', '.join(texts)}")


def main() -> None:
    """Run all three parts."""
    n_rows, n_features, n_traits = (
        map(int, sys.argv[1:4]) if len(sys.argv) > 3 else (400_000, 64, 2)
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "data.zarr", n_rows, n_features, n_traits)
        rows = make_row_source(dataset, memory=1 << 30)
        model = LatentTrait(n_traits, estimator="quadrature")
        state = initialize_fit(model, collect_first_statistics(model, rows, SerialExecutor(), 0), 0)
        print_schedule(model, state, rows)
        compare_workers(model, state, rows)
    with limit_blas_threads():
        print_estimates()


if __name__ == "__main__":
    main()
