"""Binary ICA by maximum likelihood on two worker processes against one.

python -m tests.benchmarks likelihood_workers [FEATURES COMPONENTS]

Prints wall seconds of one pass (median) and of a whole fit, and the mean cosine similarity between
estimated and true mixing, for 40 segments of 1,000 rows. Default: 10 features, 10 components.
"""

import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import collect_first_statistics, fit_model, initialize_fit
from pipeline.models.binary_ica.likelihood import BinaryICALikelihood
from pipeline.numerics.metrics import mean_cosine_similarity
from tests.benchmarks._measure import measure_median
from tests.benchmarks.blica import Shape, write_dataset
from tests.support.data import make_test_row_source
from tests.support.worker_processes import worker_processes


def main() -> None:
    """Print seconds, speed-ups and the accuracy of the fit."""
    n_features, n_components = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (10, 10)
    model = BinaryICALikelihood(n_components)
    with tempfile.TemporaryDirectory() as folder:
        dataset, truth = write_dataset(Path(folder) / "data.zarr", Shape(n_features, n_components))
        rows = make_test_row_source(dataset)
        rows = replace(rows, read=replace(rows.read, memory=1 << 28))  # cache chunks, as fits do
        state = initialize_fit(model, collect_first_statistics(model, rows, SerialExecutor(), 0), 0)
        pass_seconds, fit_seconds = {}, {}
        for n in (1, 2):
            with worker_processes(n) as executor:
                pass_seconds[n] = measure_median(
                    partial(collect_pass_statistics, model, state, rows, executor, 0)
                )
                start = time.perf_counter()
                fitted_state = fit_model(model, rows, executor, 0)
                fit_seconds[n] = time.perf_counter() - start
            print(
                f"worker processes: {n}, pass {pass_seconds[n]:.2f} s, fit {fit_seconds[n]:.1f} s"
            )
    print(
        f"speed-up of 2 over 1: pass {pass_seconds[1] / pass_seconds[2]:.2f}, "
        f"fit {fit_seconds[1] / fit_seconds[2]:.2f}"
    )
    similarity = mean_cosine_similarity(fitted_state.params.mixing, truth.mixing)
    print(f"mean cosine similarity to the true mixing: {similarity:.4f}")


if __name__ == "__main__":
    main()
