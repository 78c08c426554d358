"""Time, memory and accuracy of BLICA fits for data of different shapes.

python -m tests.benchmarks blica [--large | --wide]

Times are seconds on two threads, most of them after the pair counts are known; memory is in GB.

| column | meaning |
|---|---|
| `counts` | CPU time of the passes that count levels and pairs |
| `correlations` | CPU time of the tetrachoric correlations of all segments |
| `starts` | CPU time of maximising the likelihood from three starting points |
| `fit`, `fit wall` | CPU and wall time of a fit with fixed regularization, both parts included |
| `auto`, `auto wall` | CPU and wall time of a fit that chooses the regularization |
| `auto/counts` | CPU time of the latter fit per CPU time of the passes |
| `chosen` | the regularization that the latter fit chose |
| `fit MCS`, `auto MCS` | mean cosine similarity between estimated and true mixing |
| `peak` | peak memory of the process so far |
| `estimate` | memory that the model estimates for the `auto` fit |

`--large` adds 400,000 rows and 1,000 features (some minutes, 3 GB); `--wide` runs 3,000 features
only.
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
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, initialize_fit
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
from tests.benchmarks._measure import Table
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
COLUMNS = (
    *("counts:.2f", "correlations:.2f", "starts:7.2f", "fit:7.2f", "fit wall:.2f"),
    *("auto:7.2f", "auto wall:.2f", "auto/counts:.1f"),
    *("chosen:8g", "fit MCS:.4f", "auto MCS:.4f", "peak GB:.2f", "estimate GB:.2f"),
)
LARGE, WIDE = [Shape(120, 10, 80, 5000), Shape(1000, 10)], Shape(3000, 10, 5)


class Times(NamedTuple):
    cpu: float
    wall: float


def measure_times(work: Callable[[], Any]) -> tuple[Any, Times]:
    """Call a function; return its result, its CPU time and its wall time."""
    cpu, wall = time.process_time(), time.perf_counter()
    with limit_blas_threads():
        result = work()
    return result, Times(time.process_time() - cpu, time.perf_counter() - wall)


def write_dataset(path: Path, shape: Shape) -> tuple[BinaryDataset, NonstationaryTruth]:
    truth = draw_nonstationary_truth(shape.n_features, shape.n_components, shape.n_segments, seed=0)
    batches = list(draw_nonstationary_rows(truth, shape.rows_per_segment, seed=0))
    X = np.concatenate([batch.X for batch in batches])
    segments = np.concatenate([batch.columns["segment"] for batch in batches])
    return write_arrays(path, X, segments=segments), truth


def count_pairs(model: BLICA, dataset: BinaryDataset) -> tuple[FitState, PairCounts]:
    rows = make_test_row_source(dataset)
    state = initialize_fit(model, collect_first_statistics(model, rows, THREADS, 0), seed=0)
    counts = collect_pass_statistics(model, state, rows, THREADS, seed=0)
    assert isinstance(counts, PairCounts)
    return state, counts


def measure_parts(
    model: BLICA, dataset: BinaryDataset, n_components: int
) -> tuple[Any, list[Times]]:
    """Time the two main parts of a fit, then the fit with a fixed regularization."""
    state, counts = count_pairs(model, dataset)
    segments, correlations = measure_times(
        lambda: estimate_segments(counts, model.min_rows, THREADS.map)
    )
    moments, seeds = segments.moments(REGULARIZATION), state.auxiliary["starts"].tolist()
    _, starts = measure_times(
        lambda: maximise_from_seeds(moments, n_components, seeds, THREADS.map)
    )
    fixed_state, fit_times = measure_times(lambda: model.update(state, counts, THREADS.map, RNG))
    return fixed_state, [correlations, starts, fit_times]


def measure_shape(shape: Shape) -> tuple[float, ...]:
    """Measure one shape; return its line of the table."""
    fixed = BLICA(n_components=shape.n_components, regularization=REGULARIZATION)
    auto = BLICA(n_components=shape.n_components)
    with tempfile.TemporaryDirectory() as folder:
        dataset, truth = write_dataset(Path(folder, "d.zarr"), shape)
        fixed_state, (correlations, starts, fit_times) = measure_parts(
            fixed, dataset, shape.n_components
        )
        auto_inputs, counts = measure_times(lambda: count_pairs(auto, dataset))
    auto_state, auto_times = measure_times(lambda: auto.update(*auto_inputs, THREADS.map, RNG))
    similarities = [
        mean_cosine_similarity(f.params.mixing, truth.mixing) for f in (fixed_state, auto_state)
    ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    estimate = auto.estimate_memory(shape.n_features, shape.n_segments, THREADS.n_threads)
    parts = (counts.cpu, correlations.cpu, starts.cpu, *fit_times, *auto_times)
    parts += (auto_times.cpu / counts.cpu,)
    chosen = auto_state.diagnostics["regularization"]
    return (*shape[:3], *parts, chosen, *similarities, peak / 1e9, estimate / 1e9)


def main() -> None:
    """Print one table for each dimension that varies."""
    shapes = {**SHAPES, **({"large": LARGE} if "--large" in sys.argv[1:] else {})}
    shapes = {"wide": [WIDE]} if "--wide" in sys.argv[1:] else shapes
    measure_shape(Shape(6, 2, 4, 100))  # compile the kernels
    for dimension, shapes_of_table in shapes.items():
        print(f"\n{dimension}")
        table = Table("features:d", "components:d", "segments:d", *COLUMNS)
        for shape in shapes_of_table:
            table.add(*measure_shape(shape))


if __name__ == "__main__":
    main()
