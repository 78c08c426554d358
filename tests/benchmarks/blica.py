"""CPU and wall seconds of BLICA's central step against the shape of the data, and its memory.

python -m tests.benchmarks.blica [--large | --wide]

`correlations` are the tetrachoric ones of all segments and `starts` three maximisations; both are
parts of `fit`, which takes a given regularization and has the wall seconds beside it. `auto` is the
fit that chooses the regularization, 2 halves at a time. `peak` is the largest size of the process
until then, counting included, and `stated` what the latter fit says that it takes, in GB. `--large`
adds 1000 features: some minutes and 3 GB; `--wide` has 3000 features alone.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.executors.base import ThreadsExecutor, limit_blas_threads
from pipeline.fitting.loop import collect_first_statistics, collect_pass_statistics, initialize_fit
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.gaussian_likelihood import maximise_from_seeds
from pipeline.models.binary_ica.segment_correlations import estimate_segments
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.statistics.counts import PairCounts
from storage.dataset.dataset import BinaryDataset
from storage.examples import (
    NonstationaryTruth,
    draw_nonstationary_rows,
    draw_nonstationary_truth,
)
from tests.support.data import make_test_row_source, write_arrays

RNG = np.random.default_rng(0)
THREADS = ThreadsExecutor(2)
REGULARIZATION = 20.0


class Shape(NamedTuple):
    n_features: int
    n_components: int
    n_segments: int = 40
    rows_per_segment: int = 1000


SHAPES = {
    "features": [Shape(n, 5) for n in (10, 20, 50, 100, 200)],
    "segments": [Shape(20, 5, u) for u in (10, 40, 160)],
    "components": [Shape(20, k) for k in (2, 5, 10, 15)],
    "targets": [Shape(10, 10), Shape(100, 10)],
}
LARGE, WIDE = Shape(1000, 10), Shape(3000, 10, 5)


class Spent(NamedTuple):
    cpu: float
    wall: float


def timed(work: Callable[[], Any]) -> tuple[Any, Spent]:
    """Seconds of all threads, and on the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    with limit_blas_threads():
        result = work()
    return result, Spent(time.process_time() - cpu, time.perf_counter() - wall)


def written(path: Path, shape: Shape) -> tuple[BinaryDataset, NonstationaryTruth]:
    truth = draw_nonstationary_truth(shape.n_features, shape.n_components, shape.n_segments, seed=0)
    batches = list(draw_nonstationary_rows(truth, shape.rows_per_segment, seed=0))
    X = np.concatenate([batch.X for batch in batches])
    segments = np.concatenate([batch.columns["segment"] for batch in batches])
    return write_arrays(path, X, segments=segments), truth


def counted(model: BLICA, dataset: BinaryDataset) -> tuple[FitState, PairCounts]:
    rows = make_test_row_source(dataset)
    state = initialize_fit(model, collect_first_statistics(model, rows, THREADS, 0), seed=0)
    counts = collect_pass_statistics(model, state, rows, THREADS, seed=0)
    assert isinstance(counts, PairCounts)
    return state, counts


def in_parts(model: BLICA, dataset: BinaryDataset, n_components: int) -> tuple[Any, list[Spent]]:
    """Fit with all given, after parts of it alone; the state, and what each took."""
    state, counts = counted(model, dataset)
    segments, correlations = timed(lambda: estimate_segments(counts, model.min_rows, THREADS.map))
    moments, seeds = segments.moments(REGULARIZATION), state.auxiliary["starts"].tolist()
    _, starts = timed(lambda: maximise_from_seeds(moments, n_components, seeds, THREADS.map))
    fitted, whole = timed(lambda: model.update(state, counts, THREADS.map, RNG))
    return fitted, [correlations, starts, whole]


def measure(shape: Shape) -> str:
    """Fit one shape, part by part; give its line."""
    given = BLICA(n_components=shape.n_components, regularization=REGULARIZATION)
    auto = BLICA(n_components=shape.n_components)
    with tempfile.TemporaryDirectory() as folder:
        dataset, truth = written(Path(folder, "d.zarr"), shape)
        fitted, (correlations, starts, whole) = in_parts(given, dataset, shape.n_components)
        halves = counted(auto, dataset)
    chosen, choosing = timed(lambda: auto.update(*halves, THREADS.map, RNG))
    similar = [mean_cosine_similarity(f.params.mixing, truth.mixing) for f in (fitted, chosen)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    stated = auto.estimate_memory(shape.n_features, shape.n_segments, THREADS.n_threads)
    return (
        f"{shape.n_features:8d} {shape.n_components:10d} {shape.n_segments:8d} "
        f"{correlations.cpu:12.2f} {starts.cpu:7.2f} {whole.cpu:7.2f} {whole.wall:7.2f} "
        f"{choosing.cpu:7.2f} {choosing.wall:7.2f} "
        f"{chosen.diagnostics['regularization']:8g} {similar[0]:7.4f} {similar[1]:7.4f} "
        f"{peak / 1e9:6.2f} {stated / 1e9:7.2f}"
    )


def main() -> None:
    """Print a table for each way to grow."""
    shapes = {**SHAPES, **({"large": [LARGE]} if "--large" in sys.argv[1:] else {})}
    shapes = {"wide": [WIDE]} if "--wide" in sys.argv[1:] else shapes
    measure(Shape(6, 2, 4, 100))  # compiles
    for growing, cases in shapes.items():
        print(f"\n{growing}")
        print(
            "features components segments correlations  starts     fit   clock    auto   clock   "
            "chosen     mcs    auto   peak  stated"
        )
        for shape in cases:
            print(measure(shape), flush=True)


if __name__ == "__main__":
    main()
