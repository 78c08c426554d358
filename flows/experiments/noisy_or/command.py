"""The experiments of the paper behind noisy-OR networks: their command line and their flow.

M. S. Lewicki, T. J. Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS
1996.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from flows.cli.options import ExecutorOptions, Json, Option, WholeNumber
from flows.experiments import base
from flows.experiments.base import (
    group_medians,
    run_experiment,
    summarize_run,
    write_results,
    write_table,
)
from flows.experiments.noisy_or.figures import LearningCurves, plot_bits, plot_network
from flows.experiments.noisy_or.problems import (
    CauseProblem,
    average_top_units,
    cosine_to_causes,
    make_problems,
    score_top_units,
)
from flows.experiments.noisy_or.trial import (
    NoisyOrResult,
    NoisyOrTrial,
    bits_per_row,
    run_noisy_or_trial,
)
from flows.running.executors import open_executor
from flows.running.flow import make_lazy_flow, run_task
from pipeline.errors import FitError
from pipeline.models.noisy_or import NoisyOr
from storage.examples import entropy, merge_equal_rows

NAME = "noisy-or"
OUTPUT = "runs/experiments/noisy-or"
HELP = """Learn lines and shifted rows by noisy-OR networks, as Lewicki & Sejnowski (1996) do.

Networks of 10 and 5 hidden units learn lines on 5 x 5 pixels, which come in patterns; networks of
20 and 2 units learn rows of bits beside themselves shifted. Leaves tables (CSV and JSON) and
figures (PNG and SVG): the bits a row, −log₂ P, over the epochs of every start (the paper's figure
4), and what the units of the best start turn on (figures 2 and 3b).

`bits` is exact, over all rows that there are, after the last epoch. No model has fewer on average
than the entropy; `built` is a network of as many layers built by hand. `cosine` compares what the
lower units turn on with the true causes, each of which is given a unit. `told` is the share of the
four patterns for which one upper unit is on that is off for the others; of shifted rows, the share
whose direction the two upper units tell.
"""
EXAMPLES = """Examples:

    python -m flows.experiments noisy-or --quick
    python -m flows.experiments noisy-or --starts 20
"""
_STARTS, _QUICK_STARTS = 10, 2
_EPOCHS, _QUICK_EPOCHS = NoisyOr.epochs, 10
_ROWS = 5000
# Times the epochs of a layer: where to look.
_CHECKPOINT_TIMES: tuple[float, ...] = (1 / 3, 2 / 3, 1, 1.5, 2, 3, 4, 5.5, 7)
_QUICK_CHECKPOINT_TIMES = (1.0, 2.0)
_VALUES = ("bits", "cosine", "told")


class ProblemResults(NamedTuple):
    """What came of each start of a problem, and the fewest bits a row that any model has."""

    problem: CauseProblem
    starts: list[NoisyOrResult]
    entropy: float
    built: float


@Option(name="*")
@dataclass(frozen=True)
class NoisyOrOptions(base.ExperimentOptions):
    """What this experiment takes beside."""

    output: base.Output = OUTPUT
    starts: Annotated[
        WholeNumber | None, Option(help="Starts of each problem. [default: 10, quick 2]")
    ] = None

    def check(self) -> None:
        """Refuse also no start.

        Raises
        ------
        DataError, FitError
            If an option cannot be used, or contradicts another.
        """
        super().check()
        if self.starts == 0:
            raise FitError("--starts: Expected at least 1, got 0. Give more.")


@make_lazy_flow("experiment-noisy-or", NoisyOrOptions)
def noisy_or(options: NoisyOrOptions) -> dict[str, Any]:
    """Learn and draw; `python -m flows.experiments noisy-or --help` says more."""
    begun, output, quick = time.perf_counter(), options.output, options.quick
    n_starts = options.starts or (_QUICK_STARTS if quick else _STARTS)
    given = (quick, n_starts, options.seed, options.where)
    found = run_task("trials", partial(run_noisy_or_trials, *given))
    rows = [row for one in found for row in _start_rows(one)]
    middle = group_medians(rows, ("problem", "entropy", "built"), _VALUES)
    stem = Path(output, NAME)
    write_results(output, NAME, rows, middle)
    write_table(
        stem.with_name(f"{NAME}_epochs"), [row for one in found for row in _epoch_rows(one)]
    )
    write_table(
        stem.with_name(f"{NAME}_top"), [row for one in found for row in _top_unit_rows(one)]
    )
    plot_bits(
        stem,
        [LearningCurves(one.problem.name, one.starts, one.entropy, one.built) for one in found],
    )
    for one in found:
        best = int(np.argmin([start.bits_at_end for start in one.starts]))
        plot_network(stem, one.problem, one.starts[best], best)
    return {"starts": rows, **summarize_run(output, NAME, middle, begun)}


def run_noisy_or_trials(
    quick: bool, n_starts: int, seed: int, where: ExecutorOptions
) -> list[ProblemResults]:
    """Learn each problem from every start."""
    both, console = make_problems(), Console(stderr=True)
    trials = [trial for problem in both for trial in _make_trials(problem, quick, n_starts, seed)]
    with open_executor(**where) as executor:
        tried = executor.map(run_noisy_or_trial, trials)
        hidden = not sys.stderr.isatty()
        starts = [*track(tried, "starts", len(trials), console=console, disable=hidden)]
    return [
        _collect_results(problem, starts[k * n_starts : (k + 1) * n_starts])
        for k, problem in enumerate(both)
    ]


def _make_trials(
    problem: CauseProblem, quick: bool, n_starts: int, seed: int
) -> list[NoisyOrTrial]:
    """Draw rows to learn from and rows to look at, the same for all starts."""
    cases, rng = problem.cases, np.random.default_rng(seed)
    n_epochs, n_fresh, times = _EPOCHS, problem.n_fresh, _CHECKPOINT_TIMES
    if quick:
        n_epochs, n_fresh, times = _QUICK_EPOCHS, problem.n_fresh // 4, _QUICK_CHECKPOINT_TIMES
    model = NoisyOr(layers=problem.layers, epochs=n_epochs)
    looks = (1, *(round(share * n_epochs) for share in times))
    X, fresh = (
        cases.X[rng.choice(len(cases.X), n, p=cases.probabilities)] for n in (_ROWS, n_fresh)
    )
    rows, probabilities = merge_equal_rows(cases)
    asked = cases.X[problem.case_indices]
    return [
        NoisyOrTrial(model, X, fresh, rows, probabilities, asked, looks, seed, start)
        for start in range(n_starts)
    ]


def _collect_results(problem: CauseProblem, starts: list[NoisyOrResult]) -> ProblemResults:
    rows, probabilities = merge_equal_rows(problem.cases)
    built = float(probabilities @ bits_per_row(problem.built, rows))
    return ProblemResults(problem, starts, entropy(problem.cases), built)


def _start_rows(found: ProblemResults) -> list[dict[str, Any]]:
    about = {"problem": found.problem.name, "entropy": found.entropy, "built": found.built}
    return [
        {
            **about,
            "start": k,
            "bits": start.bits_at_end,
            "cosine": cosine_to_causes(start.params, found.problem),
            "told": score_top_units(start.means, found.problem),
        }
        for k, start in enumerate(found.starts)
    ]


def _epoch_rows(found: ProblemResults) -> list[dict[str, Any]]:
    """List bits of the fresh rows, with their standard error."""
    return [
        {
            "problem": found.problem.name,
            "start": k,
            "epoch": epoch,
            "bits": float(bits),
            "standard_error": float(error),
        }
        for k, start in enumerate(found.starts)
        for epoch, bits, error in zip(start.epochs, start.bits, start.errors, strict=True)
    ]


def _top_unit_rows(found: ProblemResults) -> list[dict[str, Any]]:
    """List how likely top units are on in rows of each label."""
    return [
        {
            "problem": found.problem.name,
            "start": k,
            "label": label,
            "unit": f"2.{unit + 1}",
            "on": float(mean),
        }
        for k, start in enumerate(found.starts)
        for label, means in zip(
            found.problem.labels, average_top_units(start.means, found.problem), strict=True
        )
        for unit, mean in enumerate(means)
    ]


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print what came of each start, the medians, and the paths."""
    console = Console(soft_wrap=True, highlight=False)
    style: Any = {"box": None, "padding": (0, 2, 0, 0), "title_justify": "left"}
    table = Table("problem", "start", *_VALUES, title="bits a row", **style)
    for row in summary["starts"]:
        table.add_row(row["problem"], str(row["start"]), *_format_row(row))
    for row in summary["medians"]:
        table.add_row(row["problem"], "median", *_format_row(row))
    console.print(table)
    for row in summary["medians"]:
        limits = f"entropy {row['entropy']:.3f} bits, network built by hand {row['built']:.3f}"
        console.print(f"{row['problem']}: {limits}")
    for path in summary["files"]:
        console.print(path, markup=False)


def _format_row(row: Mapping[str, Any]) -> Sequence[str]:
    return f"{row['bits']:.3f}", f"{row['cosine']:.3f}", f"{row['told']:.0%}"


def main(*, options: NoisyOrOptions = NoisyOrOptions(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    run_experiment(noisy_or, options, json, print_summary)
