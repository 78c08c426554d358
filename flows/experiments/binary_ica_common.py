"""Shared by the experiments on binary ICA: models, data, trials, tables, summaries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from flows.cli.options import ExecutorOptions
from flows.experiments.base import TableRow
from flows.experiments.binary_ica_methods import METHODS
from flows.experiments.binary_ica_trials import SimulatedRows, pack_rows_in_memory
from flows.running.executors import open_executor
from pipeline.executors.base import Executor
from storage.examples import (
    NonstationaryTruth,
    draw_nonstationary_rows,
    draw_nonstationary_truth,
)

_MODELS_PER_SEED = 1000
_CONSOLE_WIDTH = 1000
"""A wide console: long lines instead of truncated numbers."""


class ProblemShape(NamedTuple):
    """Shape of a model and of its data."""

    features: int
    components: int
    segments: int
    rows_per_segment: int | None = None

    def columns(self) -> dict[str, int]:
        """Return the known dimensions, keyed by table column."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def draw_truth(shape: ProblemShape, model: int, seed: int) -> NonstationaryTruth:
    """Draw a model. Each seed gives another model."""
    return draw_nonstationary_truth(*shape[:3], _MODELS_PER_SEED * seed + model)


def draw_simulated_rows(shape: ProblemShape, model: int, seed: int) -> SimulatedRows:
    """Draw a model and rows from it."""
    assert shape.rows_per_segment is not None
    truth = draw_truth(shape, model, seed)
    batches = draw_nonstationary_rows(
        truth, shape.rows_per_segment, _MODELS_PER_SEED * seed + model
    )
    X = np.concatenate([batch.X for batch in batches])
    return SimulatedRows(truth.mixing, pack_rows_in_memory(X, shape.segments), seed)


def run_shape_trials(
    trial: Callable[[Any], TableRow],
    draw: Callable[[ProblemShape, int, int], Any],
    shapes: Sequence[ProblemShape],
    n_models: int,
    seed: int,
    where: ExecutorOptions,
    alone: bool = False,
) -> list[TableRow]:
    """Run trials for models of each shape, optionally one at a time.

    Data are drawn in this process, as late as possible, and sent to the workers.
    """
    cells = [(shape, model) for shape in shapes for model in range(n_models)]
    with open_executor(**where) as executor:
        items = (draw(shape, model, seed) for shape, model in cells)
        results = _run_one_by_one(executor, trial, items) if alone else executor.map(trial, items)
        return [
            {**shape.columns(), "model": model, **result}
            for (shape, model), result in zip(
                cells, _track_progress(results, len(cells)), strict=True
            )
        ]


def _run_one_by_one(
    executor: Executor, trial: Callable[[Any], TableRow], items: Iterable[Any]
) -> Iterator[TableRow]:
    return chain.from_iterable(executor.map(trial, [item]) for item in items)


def _track_progress(results: Iterable[TableRow], total: int) -> Iterator[TableRow]:
    """Yield the results and show a progress bar on a terminal."""
    console = Console(stderr=True)
    yield from track(results, "trials", total, console=console, disable=not sys.stderr.isatty())


def column_values(
    trials: Sequence[TableRow], shapes: Sequence[ProblemShape], column: str
) -> NDArray[np.float64]:
    """Return the values of a column, (n_shapes, n_models); NaN where a value is missing."""
    by_shape = [[t for t in trials if shape.columns().items() <= t.items()] for shape in shapes]
    return np.array([[t[column] for t in found] for found in by_shape], np.float64)


def describe_left_out(shapes: Sequence[ProblemShape]) -> str:
    """Describe, for the note of a figure, which models are not fitted to all shapes."""
    limits = {
        name: " or ".join(f"more than {most} {size}" for size, most in method.size_limits.items())
        for name, method in METHODS.items()
        if not all(method.can_fit(shape.columns()) for shape in shapes)
    }
    told = "; ".join(f"{name} of {limit}" for name, limit in limits.items())
    return f" Left out, as a fit would take longer than minutes: {told}." if told else ""


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the medians and the paths."""
    console = Console(soft_wrap=True, highlight=False, width=_CONSOLE_WIDTH)
    columns = (name.replace("_", " ").replace(" ", "\n") for name in summary["medians"][0])
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for row in summary["medians"]:
        table.add_row(*map(_format_cell, row.values()))
    console.print(table)
    for path in summary["files"]:
        console.print(path, markup=False)


def _format_cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
