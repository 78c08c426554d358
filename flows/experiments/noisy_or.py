"""Learn lines and shifted rows with noisy-OR networks.

M. S. Lewicki, T. J. Sejnowski, "Bayesian unsupervised learning of higher order structure", NIPS
1996.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from flows.cli.options import ExecutorOptions, Option, WholeNumber
from flows.cli.summary import make_table
from flows.experiments import base
from flows.experiments.base import (
    Array,
    Bits,
    Experiment,
    group_medians,
    print_results,
    run_trials,
    summarize_run,
    write_results,
    write_table,
)
from flows.experiments.drawing import (
    figure_paths,
    make_panel,
    mark_images,
    mark_texts,
    plot_canvas,
    write_figure,
)
from flows.report.figures.axes import fit_axis, fit_log_axis
from flows.report.figures.colours import COLOURS, GREY
from flows.report.figures.marks import Figure, LegendKey, LineMarks, Mark, PointMarks
from flows.running.flow import run_task
from pipeline.errors import FitError
from pipeline.executors.base import limit_blas_threads
from pipeline.inference.sample import feature_probabilities_by_unit
from pipeline.models.noisy_or import NoisyOr, NoisyOrParams
from pipeline.models.noisy_or.estimation import MIN_LEAK, iter_networks
from pipeline.models.noisy_or.gibbs import enumerate_log_probabilities, sample_posterior_means
from pipeline.models.noisy_or.model import CODE_SWEEPS
from pipeline.random import RowRandom
from storage.examples import (
    EnumeratedCases,
    entropy,
    enumerate_lines,
    enumerate_shifter,
    merge_equal_rows,
)

Labels = NDArray[np.str_]

NAME = "noisy-or"

# Problems

_NO_PATTERN = "none"  # label of lines that form no pattern


class CauseProblem(NamedTuple):
    """A distribution of rows with known causes.

    Attributes
    ----------
    cases
        All cases from which a row can arise.
    layers
        Units of each layer of the network, as in the paper.
    shape
        Height and width of a row as an image.
    built
        The hand-built network; its lowest units are the true causes.
    n_fresh
        Number of fresh rows that measure progress; fewer if there are more states to sum over.
    score_labels
        Computes the share of labels or rows that P(top unit on | row), (n_rows, n_top), identifies.
    """

    name: str
    cases: EnumeratedCases
    layers: tuple[int, int]
    shape: tuple[int, int]
    built: NoisyOrParams
    n_fresh: int
    score_labels: Callable[[Array, Labels], float]

    @property
    def case_indices(self) -> NDArray[np.intp]:
        """Cases that the top units should distinguish, by label."""
        return np.flatnonzero(self.cases.labels != _NO_PATTERN)

    @property
    def labels(self) -> list[str]:
        """Labels in order of appearance."""
        return list(dict.fromkeys(self.cases.labels[self.case_indices].tolist()))


def make_problems() -> tuple[CauseProblem, CauseProblem]:
    """Return both problems: the lines and the shifter."""
    return (
        CauseProblem(
            "lines",
            enumerate_lines(),
            (10, 5),
            (5, 5),
            _build_lines_network(enumerate_lines()),
            2000,
            _score_by_label,
        ),
        CauseProblem(
            "shifter",
            enumerate_shifter(),
            (20, 2),
            (4, 8),
            _build_shifter_network(),
            64,
            _score_by_row,
        ),
    )


def _build_lines_network(cases: EnumeratedCases) -> NoisyOrParams:
    """Build one unit per line, one per pattern, and one that can turn on any line."""
    pixels = np.zeros((5, 5, 10))
    for i in range(5):
        pixels[i, :, i] = pixels[:, i, 5 + i] = 1
    images = cases.X[cases.labels != _NO_PATTERN]
    whole = images @ pixels.reshape(25, 10) == 5
    # The best approximation: top units are independent, but the patterns are not.
    patterns, lines_of_any = np.full(len(images), 0.15), np.full(10, 0.25)
    return _build_network(
        pixels.reshape(25, 10), np.column_stack([whole.T, lines_of_any]), np.append(patterns, 0.55)
    )


def _build_shifter_network() -> NoisyOrParams:
    """Build one unit per bit and direction, and one per direction."""
    features, width = np.arange(32).reshape(4, 8), 8
    pixels = np.zeros((32, 2 * width))
    for direction, shift in enumerate((-1, 1)):
        for i in range(width):
            on = [*features[:2, i], *features[2:, (i + shift) % width]]
            pixels[on, direction * width + i] = 1
    return _build_network(pixels, 0.5 * np.repeat(np.eye(2), width, axis=0), np.full(2, 0.5))


def _build_network(below: Array, above: Array, prior: Array) -> NoisyOrParams:
    leaks = [np.full(len(f), MIN_LEAK) for f in (below, above)]
    return NoisyOrParams.from_probabilities((below, above), (*leaks, prior))


def cosine_to_causes(params: NoisyOrParams, problem: CauseProblem) -> float:
    """Compute the mean cosine between f of the lowest units and the causes, matched one to one."""
    learnt, true = (f / np.linalg.norm(f, axis=0) for f in (params.f[0], problem.built.f[0]))
    cosines = learnt.T @ true
    return float(cosines[scipy.optimize.linear_sum_assignment(-cosines)].mean())


def average_top_units(means: Array, problem: CauseProblem) -> Array:
    """Average P(top unit on | row) by label, (n_labels, n_top).

    `means` holds the hidden units of the labelled cases, (n_labelled, n_hidden).
    """
    return _average_by_label(
        means[:, problem.layers[0] :], problem.cases.labels[problem.case_indices]
    )


def score_top_units(means: Array, problem: CauseProblem) -> float:
    """Compute the share of labels or rows that the top units identify; see `average_top_units`."""
    return problem.score_labels(
        means[:, problem.layers[0] :], problem.cases.labels[problem.case_indices]
    )


def _average_by_label(top: Array, labels: Labels) -> Array:
    return np.array([top[labels == label].mean(axis=0) for label in dict.fromkeys(labels.tolist())])


def _score_by_label(top: Array, labels: Labels) -> float:
    """Count the labels with a unit that is on for them and off for all others."""
    on = _average_by_label(top, labels) > 0.5
    return float((on & (on.sum(axis=0) == 1)).any(axis=1).mean())


def _score_by_row(top: Array, labels: Labels) -> float:
    """Count the rows whose label is identified by the likelier of two units."""
    share = float(((top[:, 0] > top[:, 1]) == (labels == labels[0])).mean())
    return max(share, 1 - share)


# Trials


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
    code_rows
        Rows whose hidden units are reported, (n_code_rows, n_features).
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
        P(unit on | row) for the reported rows, (n_code_rows, n_hidden), by Gibbs sampling.
    """

    epochs: list[int]
    bits: Array
    errors: Array
    bits_at_end: float
    params: NoisyOrParams
    means: Array


def run_noisy_or_trial(trial: NoisyOrTrial) -> NoisyOrResult:
    """Learn from random weights and measure the network during and after learning."""
    layers, epochs = trial.model.layers or (), {*trial.epochs}
    networks = iter_networks(trial.model, layers, trial.X, trial.seed, trial.start)
    bits_by_epoch: dict[int, Array] = {}
    with limit_blas_threads():
        for epoch, params in enumerate(networks, 1):
            if epoch in epochs:
                bits_by_epoch[epoch] = bits_per_row(params, trial.fresh)
        bits_by_epoch[epoch] = bits_per_row(params, trial.fresh)
        bits_at_end = float(trial.probabilities @ bits_per_row(params, trial.rows))
    bits = np.array([*bits_by_epoch.values()])
    errors = bits.std(axis=1, ddof=1) / np.sqrt(len(trial.fresh))
    key = RowRandom(trial.seed, trial.start).stream("asked").key
    code_rows = (trial.code_rows, key, np.arange(len(trial.code_rows)))
    means, _ = sample_posterior_means(params.network, *code_rows, *CODE_SWEEPS)
    return NoisyOrResult([*bits_by_epoch], bits.mean(axis=1), errors, bits_at_end, params, means)


class ProblemResults(NamedTuple):
    """Results of each start of a problem; bits per row of the data and of a hand-built network."""

    problem: CauseProblem
    starts: list[NoisyOrResult]
    entropy: float
    built: float


def bits_per_row(params: NoisyOrParams, X: Bits) -> Array:
    """Compute the exact −log₂ P of each row, (n_samples,)."""
    bits: Array = -enumerate_log_probabilities(params.network, X) / np.log(2)
    return bits


# Figures; the unit of lengths is the width of an image.

_GAP, _SQUARE, _CAPTION = 0.2, 0.6, 1.1
_LEFT, _COLUMN_GAP = 1.7, 0.5
_UNIT_WIDTH = 60.0  # pixels of the page
_FRAME_COLOUR = "#eceff1"


def plot_bits(folder: Path, problems: Sequence[ProblemResults]) -> None:
    """Plot bits per row over epochs, one line per start (figure 4)."""
    note = (
        "Mean of −log₂ P over fresh rows, exact for each row. Epochs learn from 200 rows each: the "
        "lower layer first, then the upper, then both; the last epoch learns from all rows. "
        "Dotted: the entropy of a row, the lower limit of any model. Dashed: a hand-built network "
        "with the same layers."
    )
    title = "Noisy-OR networks: bits per row while they learn"
    paths = figure_paths(folder, f"{NAME}_bits")
    panels = [_plot_curves(results) for results in problems]
    write_figure(*paths, panels=[panels], title=title, note=note)


def _plot_curves(results: ProblemResults) -> Figure:
    x, y = (
        np.concatenate([getattr(start, name) for start in results.starts])
        for name in ("epochs", "bits")
    )
    limits = {"built by hand": results.built, "entropy": results.entropy}
    marks: list[Mark] = [
        LineMarks(
            [np.column_stack([start.epochs, np.log10(start.bits)]) for start in results.starts],
            [f"{COLOURS[0]}99"] * len(results.starts),
            1.2,
        ),
        PointMarks(x.astype(np.float64), np.log10(y), COLOURS[0], size=4.0, opacity=0.6),
    ]
    keys = []
    for (name, limit), colour, dash in zip(
        limits.items(), (COLOURS[1], GREY), ((6, 4), (2, 3)), strict=True
    ):
        ends = np.array([[0.0, np.log10(limit)], [x.max(), np.log10(limit)]])
        marks.append(LineMarks([ends], [colour], dash=dash))
        keys.append(LegendKey(f"{name}, {limit:.2f}", colour, "dash"))
    axes = fit_axis(np.append(0.0, x), "epoch"), fit_log_axis(np.append(y, [*limits.values()]))
    title = f"{results.problem.name}, {len(results.starts)} starts: bits per row"
    return make_panel(title, *axes, marks, keys)


def plot_network(folder: Path, problem: CauseProblem, result: NoisyOrResult, start: int) -> None:
    """Plot the features that units of both layers turn on (figures 2 and 3b)."""
    note = (
        "Top: pixels that a lower unit alone turns on, opaque with probability f = 1. Below: one "
        "row per upper unit; the area of a square is f for the lower unit above it. Right: the "
        "pixels that an upper unit alone turns on through lower units, and squares for the "
        "probability that it is on in rows of each kind. Percent: share of rows in which a unit "
        "is on."
    )
    title = f"Noisy-OR network of the {problem.name}: "
    title += f"start {start}, the best, with {result.bits_at_end:.2f} bits per row"
    panel = _plot_layers(problem, result.params, average_top_units(result.means, problem).T)
    paths = figure_paths(folder, f"{NAME}_{problem.name}_network")
    assert panel.plot is not None
    width = _UNIT_WIDTH * panel.plot.x.high
    write_figure(*paths, panels=[[panel]], title=title, note=note, width=width)


def _plot_layers(problem: CauseProblem, params: NoisyOrParams, on: Array) -> Figure:
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
    step = max(height, _SQUARE) + _GAP
    heights = height + _CAPTION + step * np.arange(n_upper) + max(height, _SQUARE) / 2
    left = _LEFT + (1 + _GAP) * np.arange(n_lower)
    right = left[-1] + (1 + _GAP) * np.arange(1, len(problem.labels) + 2) + _COLUMN_GAP
    corners = [(x, 0.0) for x in left] + [(right[0], y - height / 2) for y in heights]
    texts = {}
    for x, unit in zip(left, order, strict=True):
        texts[x + 0.5, height + 0.2] = f"1.{unit + 1}"
        texts[x + 0.5, height + 0.45] = shares[unit]
    for x, label in zip(right, ("turns on", *problem.labels), strict=True):
        texts[x + 0.5, height + _CAPTION - 0.25] = label
    names = {(0.0, y): f"2.{k + 1}, {shares[n_lower + k]}" for k, y in enumerate(heights)}
    squares = np.hstack([params.f[1][order].T, on])
    centres = np.array([(x + 0.5, y) for y in heights for x in (*left, *right[1:])])
    sides = _UNIT_WIDTH * _SQUARE * np.sqrt(squares.ravel())
    size = (right[-1] + 1 + _GAP, height + _CAPTION + n_upper * step)
    x, y = centres.T
    marks: list[Mark] = [
        *mark_images(np.concatenate([lower[order], upper]), np.array(corners), size),
        PointMarks(x, y, _FRAME_COLOUR, "square", _UNIT_WIDTH * _SQUARE),
        PointMarks(x, y, COLOURS[0], "square", sides),
        mark_texts(texts),
        mark_texts(names, "right"),
    ]
    return plot_canvas(size, marks, _UNIT_WIDTH)


def _order_lower_units(f: Sequence[Array]) -> NDArray[np.intp]:
    """Order lower units by their upper unit, then by the first feature that they turn on."""
    largest = f[0].max(axis=0)
    first = (f[0] > 0.5 * largest).argmax(axis=0)
    return np.lexsort([first, f[1].argmax(axis=1), largest < 0.5])


# The command

_STARTS, _QUICK_STARTS = 10, 2
_EPOCHS, _QUICK_EPOCHS = NoisyOr.epochs, 10
_ROWS = 5000
# Multiples of the epochs per layer at which to measure.
_CHECKPOINT_TIMES: tuple[float, ...] = (1 / 3, 2 / 3, 1, 1.5, 2, 3, 4, 5.5, 7)
_QUICK_CHECKPOINT_TIMES = (1.0, 2.0)
_VALUES = ("bits", "cosine", "identified")


@Option(name="*")
@dataclass(frozen=True)
class NoisyOrOptions(base.ExperimentOptions):
    """Options of `noisy-or`."""

    starts: Annotated[
        WholeNumber | None,
        Option(help="Number of starts per problem. [default: 10, or 2 with --quick]"),
    ] = None

    def check(self) -> None:
        """Also check the number of starts."""
        super().check()
        if self.starts == 0:
            raise FitError("--starts is 0. Choose at least 1.")


def run_noisy_or(options: NoisyOrOptions) -> dict[str, Any]:
    """Learn both problems from every start, and draw the figures."""
    quick, folder = options.quick, Path(options.output)
    n_starts = options.starts or (_QUICK_STARTS if quick else _STARTS)
    arguments = (quick, n_starts, options.seed, options.where)
    problems = run_task("trials", partial(run_noisy_or_trials, *arguments))
    rows = _join_rows(_start_rows, problems)
    medians = group_medians(rows, ("problem", "entropy", "built"), _VALUES)
    write_results(options.output, NAME, rows, medians)
    write_table(folder / f"{NAME}_epochs", _join_rows(_epoch_rows, problems))
    write_table(folder / f"{NAME}_top", _join_rows(_top_unit_rows, problems))
    plot_bits(folder, problems)
    for results in problems:
        best = int(np.argmin([start.bits_at_end for start in results.starts]))
        plot_network(folder, results.problem, results.starts[best], best)
    return {"starts": rows, **summarize_run(options.output, NAME, medians)}


def _join_rows(
    list_rows: Callable[[ProblemResults], list[dict[str, Any]]], problems: Iterable[ProblemResults]
) -> list[dict[str, Any]]:
    return [row for results in problems for row in list_rows(results)]


def run_noisy_or_trials(
    quick: bool, n_starts: int, seed: int, where: ExecutorOptions
) -> list[ProblemResults]:
    """Learn each problem from every start."""
    problems = make_problems()
    trials = [
        trial for problem in problems for trial in _make_trials(problem, quick, n_starts, seed)
    ]
    starts = run_trials(run_noisy_or_trial, trials, len(trials), "starts", where)
    return [
        _collect_results(problem, starts[k * n_starts : (k + 1) * n_starts])
        for k, problem in enumerate(problems)
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
    epochs = (1, *(round(share * n_epochs) for share in times))
    X, fresh = (
        cases.X[rng.choice(len(cases.X), n, p=cases.probabilities)] for n in (_ROWS, n_fresh)
    )
    rows, probabilities = merge_equal_rows(cases)
    code_rows = cases.X[problem.case_indices]
    return [
        NoisyOrTrial(model, X, fresh, rows, probabilities, code_rows, epochs, seed, start)
        for start in range(n_starts)
    ]


def _collect_results(problem: CauseProblem, starts: list[NoisyOrResult]) -> ProblemResults:
    rows, probabilities = merge_equal_rows(problem.cases)
    built = float(probabilities @ bits_per_row(problem.built, rows))
    return ProblemResults(problem, starts, entropy(problem.cases), built)


def _start_rows(results: ProblemResults) -> list[dict[str, Any]]:
    keys = {"problem": results.problem.name, "entropy": results.entropy, "built": results.built}
    return [
        {
            **keys,
            "start": k,
            "bits": start.bits_at_end,
            "cosine": cosine_to_causes(start.params, results.problem),
            "identified": score_top_units(start.means, results.problem),
        }
        for k, start in enumerate(results.starts)
    ]


def _epoch_rows(results: ProblemResults) -> list[dict[str, Any]]:
    return [
        {
            "problem": results.problem.name,
            "start": k,
            "epoch": epoch,
            "bits": float(bits),
            "standard_error": float(error),
        }
        for k, start in enumerate(results.starts)
        for epoch, bits, error in zip(start.epochs, start.bits, start.errors, strict=True)
    ]


def _top_unit_rows(results: ProblemResults) -> list[dict[str, Any]]:
    return [
        {
            "problem": results.problem.name,
            "start": k,
            "label": label,
            "unit": f"2.{unit + 1}",
            "on": float(mean),
        }
        for k, start in enumerate(results.starts)
        for label, means in zip(
            results.problem.labels, average_top_units(start.means, results.problem), strict=True
        )
        for unit, mean in enumerate(means)
    ]


def print_summary(summary: dict[str, Any]) -> None:
    """Print the results of each start, the medians and the paths."""
    table = make_table("problem", "start", *_VALUES, title="bits per row")
    for row in summary["starts"]:
        table.add_row(row["problem"], str(row["start"]), *_format_row(row))
    for row in summary["medians"]:
        table.add_row(row["problem"], "median", *_format_row(row))
    limits = [
        f"{row['problem']}: entropy {row['entropy']:.3f} bits, "
        f"network built by hand {row['built']:.3f}"
        for row in summary["medians"]
    ]
    print_results(summary, table, *limits)


def _format_row(row: Mapping[str, Any]) -> Sequence[str]:
    return f"{row['bits']:.3f}", f"{row['cosine']:.3f}", f"{row['identified']:.0%}"


EXPERIMENT = Experiment(
    """Learn lines and shifted rows with noisy-OR networks (Lewicki & Sejnowski 1996).

Networks of 10 and 5 hidden units learn lines on 5 x 5 pixels, which come in patterns; networks of
20 and 2 units learn pairs of a row of bits and its shifted copy. Writes tables (CSV and JSON) and
figures (PNG and SVG): the bits per row, −log₂ P, over the epochs of every start (the paper's figure
4), and the features that the units of the best start turn on (figures 2 and 3b).

`bits` is the exact average over all possible rows after the last epoch; no model has fewer than the
`entropy`. `built` is a hand-built network with the same layers. `cosine` is the mean cosine between
the lower units and the true causes, matched one to one. `identified` is the share of the four
patterns that have their own upper unit, or the share of shifted rows whose direction the two upper
units identify.
""",
    """Examples:

    python -m flows.experiments noisy-or --quick
    python -m flows.experiments noisy-or --starts 20
""",
    NoisyOrOptions,
    run_noisy_or,
    print_summary,
)
