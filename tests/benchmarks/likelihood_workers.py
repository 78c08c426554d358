"""A pass and a whole fit of binary ICA by likelihood on one worker process and on two.

python -m tests.benchmarks.likelihood_workers [FEATURES COMPONENTS]

40 segments of 1,000 rows; 10 features and 10 components unless given.
"""

import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import (
    collect_first_statistics,
    collect_pass_statistics,
    fit_model,
    initialize_fit,
)
from pipeline.models.binary_ica.likelihood import BinaryICALikelihood
from pipeline.numerics.metrics import mean_cosine_similarity
from tests.benchmarks.blica import Shape, write_dataset
from tests.benchmarks.flow_pass import median_seconds
from tests.support.data import make_test_row_source
from tests.support.worker_processes import worker_processes


def main() -> None:
    """Print seconds, ratios and how near the fit comes."""
    n_features, n_components = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (10, 10)
    model = BinaryICALikelihood(n_components)
    with tempfile.TemporaryDirectory() as folder:
        dataset, truth = write_dataset(Path(folder) / "data.zarr", Shape(n_features, n_components))
        rows = make_test_row_source(dataset)
        rows = replace(rows, read=replace(rows.read, memory=1 << 28))  # as fits keep chunks
        state = initialize_fit(model, collect_first_statistics(model, rows, SerialExecutor(), 0), 0)
        passes, fits = {}, {}
        for n in (1, 2):
            with worker_processes(n) as executor:
                passes[n] = median_seconds(
                    partial(collect_pass_statistics, model, state, rows, executor, 0)
                )
                begun = time.perf_counter()
                done = fit_model(model, rows, executor, 0)
                fits[n] = time.perf_counter() - begun
            print(f"{n} worker processes: {passes[n]:.2f} s a pass, {fits[n]:.1f} s a fit")
    print(f"two against one: {passes[1] / passes[2]:.2f}, {fits[1] / fits[2]:.2f} times as fast")
    print(f"MCS {mean_cosine_similarity(done.params.mixing, truth.mixing):.4f}")


if __name__ == "__main__":
    main()
