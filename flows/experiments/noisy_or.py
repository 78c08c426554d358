"""Learn lines and shifted rows with noisy-OR networks.

M. S. Lewicki, T. J. Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS
1996.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.experiments.drawing import COLOURS, open_figure
from flows.experiments.noisy_or_problems import CauseProblem, average_top_units
from pipeline.executors.base import limit_blas_threads
from pipeline.inference.sample import feature_probabilities_by_unit
from pipeline.models.noisy_or import NoisyOr, NoisyOrParams
from pipeline.models.noisy_or.estimation import iter_networks
from pipeline.models.noisy_or.gibbs import enumerate_log_probabilities, sample_posterior_means
from pipeline.models.noisy_or.model import CODE_SWEEPS
from pipeline.random import RowRandom

if TYPE_CHECKING:
    from matplotlib.axes import Axes
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

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
from flows.experiments.noisy_or_problems import (
    cosine_to_causes,
    make_problems,
    score_top_units,
)
from flows.running.executors import open_executor
from flows.running.flow import make_lazy_flow, run_task
from pipeline.errors import FitError
from storage.examples import entropy, merge_equal_rows

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]


class NoisyOrTrial(NamedTuple):
    """One trial: the data to learn from and the rows to examine.

    Attributes
    ----------
    model
        Model settings, including the layers.
    X
        Training rows, (n_samples, n_features).
    fresh
        Fresh rows that measure progress, (n_fresh, n_features).
    rows, probabilities
        All possible rows, (n_rows, n_features), and their probabilities, (n_rows,).
    asked
        Rows whose hidden units are reported, (n_asked, n_features).
    epochs
        Epochs after which to measure, counted from 1; the last epoch is always measured.
    seed, start
        Seed of the draws, and index of the start.
    """

    model: NoisyOr
    X: Bits
    fresh: Bits
    rows: Bits
    probabilities: Array
    code_rows: Bits
    epochs: Sequence[int]
    seed: int
    start: int


class NoisyOrResult(NamedTuple):
    """Results of one start.

    Attributes
    ----------
    epochs, bits, errors
        Mean of −log₂ P over the fresh rows after each measured epoch, and its standard error.
    bits_at_end
        Mean of −log₂ P over all rows, exact.
    params
        The network after the last epoch.
    means
        P(unit on | row) for the reported rows, (n_asked, n_hidden), by Gibbs sampling.
    """

    epochs: list[int]
    bits: Array
    errors: Array
    bits_at_end: float
    params: NoisyOrParams
    means: Array


def run_noisy_or_trial(trial: NoisyOrTrial) -> NoisyOrResult:
    """Learn from random weights and measure the network during and after learning."""
    layers, wanted = trial.model.layers or (), {*trial.epochs}
    networks = iter_networks(trial.model, layers, trial.X, trial.seed, trial.start)
    seen: dict[int, Array] = {}
    with limit_blas_threads():
        for epoch, params in enumerate(networks, 1):
            if epoch in wanted:
                seen[epoch] = bits_per_row(params, trial.fresh)
        seen[epoch] = bits_per_row(params, trial.fresh)
        at_end = float(trial.probabilities @ bits_per_row(params, trial.rows))
    found = np.array([*seen.values()])
    errors = found.std(axis=1, ddof=1) / np.sqrt(len(trial.fresh))
    key = RowRandom(trial.seed, trial.start).stream("asked").key
    asked = (trial.code_rows, key, np.arange(len(trial.code_rows)))
    means, _ = sample_posterior_means(params.network, *asked, *CODE_SWEEPS)
    return NoisyOrResult([*seen], found.mean(axis=1), errors, at_end, params, means)


def bits_per_row(params: NoisyOrParams, X: Bits) -> Array:
    """Compute the exact −log₂ P of each row, (n_samples,)."""
    bits: Array = -enumerate_log_probabilities(params.network, X) / np.log(2)
    return bits


# The unit is the width of an image.
_INCHES, _GAP, _SQUARE, _CAPTION = 0.62, 0.2, 0.6, 1.1
_LEFT, _COLUMN_GAP = 1.7, 0.5
_TICKS = (5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 40)


class LearningCurves(NamedTuple):
    """Learning curves of a problem, the entropy, and the bits per row of a hand-built network."""

    name: str
    starts: Sequence[NoisyOrResult]
    entropy: float
    built: float


def _paths(stem: Path, name: str) -> tuple[Path, Path]:
    path = stem.with_name(f"{stem.name}_{name}.png")
    return path, path.with_suffix(".svg")


def plot_bits(stem: Path, problems: Sequence[LearningCurves]) -> None:
    """Plot bits per row over epochs, one line per start (figure 4)."""
    note = (
        "Mean of −log₂ P over fresh rows, exact for each row. Epochs learn from 200 rows each: the "
        "lower layer first, then the upper, then both; the last learns from all rows. Dotted: the "
        "entropy of a row, which no model can go below. Dashed: a network of as many layers that "
        "was built by hand."
    )
    title = "Noisy-OR networks: bits a row while they learn"
    with open_figure(*_paths(stem, "bits"), size=(10, 4.6), title=title, note=note) as figure:
        for axes, found in zip(figure.subplots(1, len(problems)), problems, strict=True):
            _plot_curves(axes, found)


def _plot_curves(axes: Axes, found: LearningCurves) -> None:
    for start in found.starts:
        style: Any = {"color": COLOURS[0], "marker": "o", "markersize": 2.5, "linewidth": 1}
        axes.plot(start.epochs, start.bits, alpha=0.6, **style)
    label = f"built by hand, {found.built:.2f}"
    axes.axhline(found.built, color=COLOURS[1], ls="--", lw=1, label=label)
    axes.axhline(found.entropy, color="black", ls=":", lw=1, label=f"entropy, {found.entropy:.2f}")
    axes.set(title=f"{found.name}, {len(found.starts)} starts", xlabel="epoch", ylabel="bits a row")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([bits for bits in _TICKS if low <= bits <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.legend()


def plot_network(stem: Path, problem: CauseProblem, learnt: NoisyOrResult, start: int) -> None:
    """Plot the features that units of both layers turn on (figures 2 and 3b)."""
    params, (n_lower, n_upper) = learnt.params, problem.layers
    height, n_columns = problem.shape[0] / problem.shape[1], n_lower + 1 + len(problem.labels)
    step = max(height, _SQUARE) + _GAP
    ends = (n_columns * (1 + _GAP) + _COLUMN_GAP, height + _CAPTION + n_upper * step)
    note = (
        "Top: pixels that a lower unit alone turns on, black with probability f = 1. Below: a row "
        "an upper unit; the area of a square is f for the lower unit above it. Right: the pixels "
        "that an upper unit alone turns on through lower ones, and squares for how likely it is on "
        "in rows of each kind. Percent: rows that a unit is on in."
    )
    title = f"Noisy-OR network of the {problem.name}: "
    title += f"start {start}, the best, with {learnt.bits_at_end:.2f} bits a row"
    size = ((ends[0] + _LEFT) * _INCHES, ends[1] * _INCHES + 1.4)
    paths = _paths(stem, f"{problem.name}_network")
    with open_figure(*paths, size=size, title=title, note=note) as figure:
        axes = figure.add_subplot()
        _plot_layers(axes, problem, params, average_top_units(learnt.means, problem).T)
        axes.set(xlim=(-_LEFT, ends[0]), ylim=(ends[1], -_GAP))
        axes.set_aspect("equal")
        axes.axis("off")


def _plot_layers(axes: Axes, problem: CauseProblem, params: NoisyOrParams, on: Array) -> None:
    """Plot the lower units in a row, and below them one row per upper unit.

    `on` is the probability that an upper unit is on, by label, (n_upper, n_labels).
    """
    (n_lower, n_upper), order = problem.layers, _order_lower_units(params.f)
    height = problem.shape[0] / problem.shape[1]
    lower, upper = (
        f.T.reshape(-1, *problem.shape) for f in feature_probabilities_by_unit(params.f)
    )
    activity = np.zeros(n_lower + n_upper) if params.activity is None else params.activity
    shares = [f"{share:.0%}" for share in activity]
    for column, unit in enumerate(order):
        _plot_image(axes, lower[unit], column, 0)
        _plot_text(axes, f"1.{unit + 1}\n{shares[unit]}", column, height + 0.05)
    top = height + _CAPTION
    for column, label in enumerate(("turns on", *problem.labels)):
        _plot_text(axes, label, _column_position(n_lower, column), top - 0.32)
    for unit in range(n_upper):
        middle = top + max(height, _SQUARE) / 2
        name = f"2.{unit + 1}, {shares[n_lower + unit]}"
        axes.text(-0.2, middle, name, ha="right", va="center")
        for column, f in enumerate(params.f[1][order, unit]):
            _plot_square(axes, f, column, middle)
        _plot_image(axes, upper[unit], _column_position(n_lower, 0), middle - height / 2)
        for column, mean in enumerate(on[unit]):
            _plot_square(axes, mean, _column_position(n_lower, column + 1), middle)
        top += max(height, _SQUARE) + _GAP


def _column_position(n_lower: int, column: int) -> float:
    """Return the position of a column to the right of all lower units."""
    return n_lower + column + _COLUMN_GAP / (1 + _GAP)


def _plot_image(axes: Axes, image: Array, column: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    left, height = column * (1 + _GAP), image.shape[0] / image.shape[1]
    place = (left, left + 1, top + height, top)
    axes.imshow(image, extent=place, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    frame: Any = {"fill": False, "edgecolor": "#999999", "linewidth": 0.5}
    axes.add_patch(Rectangle((left, top), 1, height, **frame))


def _plot_square(axes: Axes, share: float, column: float, middle: float) -> None:
    """Plot a share as a square inside a unit frame."""
    from matplotlib.patches import Rectangle

    centre = column * (1 + _GAP) + 0.5
    frame: Any = {"fill": False, "edgecolor": "#cccccc", "linewidth": 0.5}
    filled: Any = {"facecolor": "black", "linewidth": 0}
    for side, style in ((_SQUARE, frame), (_SQUARE * float(np.sqrt(share)), filled)):
        axes.add_patch(Rectangle((centre - side / 2, middle - side / 2), side, side, **style))


def _plot_text(axes: Axes, text: str, column: float, top: float) -> None:
    axes.text(column * (1 + _GAP) + 0.5, top, text, ha="center", va="top", size=8)


def _order_lower_units(f: Sequence[Array]) -> NDArray[np.intp]:
    """Order lower units by their upper unit, then by the first feature that they turn on."""
    most = f[0].max(axis=0)
    first = (f[0] > 0.5 * most).argmax(axis=0)
    return np.lexsort([first, f[1].argmax(axis=1), most < 0.5])


NAME = "noisy-or"
OUTPUT = "runs/experiments/noisy-or"
HELP = """Learn lines and shifted rows with noisy-OR networks (Lewicki & Sejnowski 1996).

Networks of 10 and 5 hidden units learn lines on 5 x 5 pixels, which come in patterns; networks of
20 and 2 units learn pairs of a row of bits and its shifted copy. Writes tables (CSV and JSON) and
figures (PNG and SVG): the bits per row, −log₂ P, over the epochs of every start (the paper's figure
4), and the features that the units of the best start turn on (figures 2 and 3b).

`bits` is the exact average over all possible rows after the last epoch; no model has fewer than the
`entropy`. `built` is a hand-built network with the same layers. `cosine` is the mean cosine between
the lower units and the true causes, matched one to one. `told` is the share of the four patterns
with an upper unit of their own, or the share of shifted rows whose direction the two upper units
identify.
"""
EXAMPLES = """Examples:

    python -m flows.experiments noisy-or --quick
    python -m flows.experiments noisy-or --starts 20
"""
_STARTS, _QUICK_STARTS = 10, 2
_EPOCHS, _QUICK_EPOCHS = NoisyOr.epochs, 10
_ROWS = 5000
# Multiples of the epochs per layer at which to measure.
_CHECKPOINT_TIMES: tuple[float, ...] = (1 / 3, 2 / 3, 1, 1.5, 2, 3, 4, 5.5, 7)
_QUICK_CHECKPOINT_TIMES = (1.0, 2.0)
_VALUES = ("bits", "cosine", "told")


class ProblemResults(NamedTuple):
    """Results of each start of a problem, and the lowest possible bits per row."""

    problem: CauseProblem
    starts: list[NoisyOrResult]
    entropy: float
    built: float


@Option(name="*")
@dataclass(frozen=True)
class NoisyOrOptions(base.ExperimentOptions):
    """Options of `noisy-or`."""

    output: base.Output = OUTPUT
    starts: Annotated[
        WholeNumber | None,
        Option(help="Number of starts per problem. [default: 10, or 2 with --quick]"),
    ] = None

    def check(self) -> None:
        """Check also the number of starts.

        Raises
        ------
        DataError, FitError
            If an option cannot be used, or contradicts another.
        """
        super().check()
        if self.starts == 0:
            raise FitError("--starts must be at least 1.")


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
    """Draw training rows and fresh rows, which are the same for all starts."""
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
    """List the bits of the fresh rows with their standard errors."""
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
    """List the probability that each top unit is on, by label."""
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
    """Print the results of each start, the medians and the paths."""
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
