"""Evaluation of a latent-trait fit, by stage, against the fit itself.

python -m tests.benchmarks evaluate [ROWS [FEATURES]]

Prints the CPU seconds of the second of two runs on one thread, and their ratio to the fit. A pass
that only unpacks all rows is shown for comparison. As in the `evaluate` command, two baseline
models are fitted and evaluated too. Defaults: 100,000 rows, 100 features; always 2 traits.
"""

import sys
import tempfile
import time
from pathlib import Path

from flows.cli.options import ExecutorOptions
from flows.evaluating.stages import EvaluateOptions, prepare_evaluation, run_evaluation_stages
from flows.fitting.job import prepare_fit
from flows.fitting.options import FitOptions
from flows.fitting.stages import run_fit
from flows.running.flow import StageRunner
from pipeline.data.blocks import BinaryBlock
from pipeline.data.datasets import make_row_source
from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.executors.progress import ignore_progress
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait import LatentTrait
from pipeline.passes.map_reduce import collect_statistics
from pipeline.statistics.sums import Sums
from tests.benchmarks._measure import Table, measure
from tests.benchmarks.task_sizes import write_dataset

SERIAL = ExecutorOptions(name="serial")


def unpack(block: BinaryBlock) -> Sums:
    """Unpack a block and count its ones."""
    ones = float(block.unpack_values().sum())
    return Sums(block.n_samples, float(block.n_samples), ones, {})


def main() -> None:
    """Print the CPU seconds of the fit, of one pass and of each evaluation stage."""
    n_rows, n_features = (*map(int, sys.argv[1:3]), *(100_000, 100)[len(sys.argv[1:3]) :])
    with tempfile.TemporaryDirectory() as folder, limit_blas_threads():
        dataset = write_dataset(Path(folder) / "data.zarr", n_rows, n_features, 2)
        name, output = str(dataset.path), f"{folder}/runs"
        options = FitOptions(
            name, "latent-trait", settings=("errors=none",), output=output, where=SERIAL
        )
        run_fit(prepare_fit(options))
        rows = make_row_source(dataset, memory=1 << 30)
        model, executor = LatentTrait(errors="none"), SerialExecutor()
        works = (
            lambda: fit_model(model, rows, executor, 0),
            lambda: collect_statistics(unpack, rows, executor, "unpack"),
        )
        fit, one_pass = (measure(work, 2, time.process_time)[1] for work in works)
        plan = prepare_evaluation(EvaluateOptions(name, (output,), where=SERIAL))
        for _ in range(2):
            stages = StageRunner(executor, dataset.feature_names, dataset.segment_names)
            run_evaluation_stages(plan, stages, ignore_progress)
    seconds_by_stage = {name: usage["cpu_seconds"] for name, usage in stages.usage.items()}
    total = sum(seconds_by_stage.values())
    parts = [("fit", fit), ("unpacking all rows", one_pass), ("evaluate", total)]
    parts += [(f"  {stage}", seconds) for stage, seconds in seconds_by_stage.items()]
    table = Table("part:<40", "CPU s:8.2f", "ratio to fit:.3f")
    for part, seconds in parts:
        table.add(part, seconds, seconds / fit)
    print(f"evaluate / unpacking all rows: {total / one_pass:.0f}")


if __name__ == "__main__":
    main()
