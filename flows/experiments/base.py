"""Shared by all experiments: options, one-pass fits, samples of rows, tables.

This module does not postpone annotations: other modules build command lines from the annotated
fields of `ExperimentOptions`.
"""

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from flows.cli.errors import spell_option
from flows.cli.options import ExecutorOptions, Option, Seed, Split, Switch, parse_local_path
from flows.cli.progress import report_progress
from flows.cli.summary import print_json
from flows.data.datasets import make_row_source, open_dataset_or_example
from flows.report.figures.images import find_image_layout
from flows.running.executors import check_executor_options, open_executor
from flows.running.flow import Summary
from flows.running.server import run_with_server
from pipeline.data.blocks import BinaryBlock, iter_blocks, pack_block
from pipeline.errors import FitError
from pipeline.fitting.loop import (
    check_seed,
    collect_first_statistics,
    collect_pass_statistics,
    fit_model,
    initialize_fit,
)
from pipeline.models.base import Model
from storage.dataset.dataset import BinaryDataset

TableRow = Mapping[str, Any]

EXAMPLE_DATASET = "example:digits"

ImageShape = Annotated[
    str | None, Option(help="HEIGHTxWIDTH; features named r0c0, r0c1, … are placed by name.")
]
Output = Annotated[str, Option(help="Folder for tables and figures.")]


@Option(name="*")
@dataclass(frozen=True)
class ExperimentOptions:
    """Options of an experiment, which are also the parameters of its flow."""

    output: Output
    quick: Annotated[bool, Switch, Option(help="Run a smaller version that takes minutes.")] = False
    seed: Seed = 0
    where: ExecutorOptions = field(default_factory=ExecutorOptions)

    def check(self) -> None:
        """Check the options before any work starts.

        Raises
        ------
        DataError, FitError
            If an option cannot be used, or contradicts another.
        """
        check_seed(self.seed)
        check_executor_options(**self.where)
        parse_local_path(self.output)


@Option(name="*")
@dataclass(frozen=True)
class ImageExperimentOptions(ExperimentOptions):
    """Options of an experiment on binary images."""

    dataset: Annotated[
        str | None,
        Option(help="Dataset of binary images. [default: the 2s of example:digits]"),
    ] = None
    split: Split = None
    image_shape: ImageShape = None

    def check(self) -> None:
        """Check also the dataset, the image shape and the split.

        Raises
        ------
        DataError, FitError
            If an option cannot be used, or contradicts another.
        """
        super().check()
        if self.split is not None and self.dataset is None:
            raise FitError("{split} needs {dataset}: the example has no splits.", parameter="split")
        find_image_layout(
            open_dataset_or_example(self.dataset or EXAMPLE_DATASET).feature_names, self.image_shape
        )


def run_experiment(
    experiment: Callable[..., Summary],
    options: ExperimentOptions,
    json: bool,
    show: Callable[[Summary], None],
) -> None:
    """Check the options, run a flow and print its summary.

    Raises
    ------
    DataError, FitError
        If an option cannot be used.
    """
    options.check()
    summary = run_with_server(lambda: experiment(**vars(options)))
    if json:
        print_json(summary)
    else:
        show(summary)


@dataclass(frozen=True)
class OnePassFit:
    """A fitted model and the statistics of its only pass."""

    params: Any
    statistics: Any
    warnings: tuple[str, ...]


def fit_one_pass(
    model: Model, dataset: BinaryDataset, seed: int, where: ExecutorOptions
) -> OnePassFit:
    """Fit a one-pass model as `flows.fit` does, and return its statistics too.

    Raises
    ------
    FitError
        If the data cannot be used; features are named.
    """
    rows = make_row_source(dataset)
    names = (dataset.feature_names, dataset.segment_names)
    try:
        with open_executor(**where) as executor, report_progress() as progress:
            state = initialize_fit(
                model, collect_first_statistics(model, rows, executor, seed, progress), seed
            )
            statistics = collect_pass_statistics(model, state, rows, executor, seed, progress)
            done = fit_model(model, rows, executor, seed, state=state, statistics=statistics)
    except FitError as error:
        raise error.with_names(*names) from error
    warnings = tuple(notice.render(*names, spell=spell_option) for notice in done.warnings)
    return OnePassFit(done.params, statistics, warnings)


def draw_rows(dataset: BinaryDataset, n_rows: int, rng: np.random.Generator) -> BinaryBlock:
    """Draw rows of the first chunk, in stored order, as a block of one segment."""
    chunk = dataset.read_chunk(0)
    keep = np.zeros(len(chunk.rows), bool)
    keep[rng.choice(len(keep), min(n_rows, len(keep)), replace=False)] = True
    blocks = [block for block in iter_blocks(replace(chunk, keep=keep)) if block.n_samples]
    masks = [mask for block in blocks if (mask := block.unpack_mask()) is not None]
    observed = np.concatenate(masks) if masks else None
    return pack_block(np.concatenate([block.unpack_values() for block in blocks]), observed)


def write_table(stem: Path, rows: Sequence[TableRow]) -> None:
    """Write rows of named values as `stem`.csv and `stem`.json."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    stem.with_suffix(".json").write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")


def group_medians(
    trials: Sequence[TableRow], keys: Sequence[str], values: Sequence[str]
) -> list[TableRow]:
    """Compute medians over consecutive trials with the same keys.

    If all values of a column are None, its median is None.
    """

    def key(row: TableRow) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    return [
        {**dict(zip(keys, common, strict=True)), **_column_medians(list(group), values)}
        for common, group in groupby(trials, key)
    ]


def _column_medians(trials: Sequence[TableRow], values: Sequence[str]) -> TableRow:
    found = {name: [row[name] for row in trials if row[name] is not None] for name in values}
    return {name: float(np.median(some)) if some else None for name, some in found.items()}


def write_results(
    output: str, name: str, trials: Sequence[TableRow], middle: Sequence[TableRow]
) -> tuple[Path, Path]:
    """Write tables of all trials and of medians; return the paths for the figure."""
    stem = Path(output, name)
    write_table(stem, trials)
    write_table(stem.with_name(f"{name}_medians"), middle)
    return stem.with_suffix(".png"), stem.with_suffix(".svg")


def summarize_run(
    output: str, name: str, middle: Sequence[TableRow], begun: float
) -> dict[str, Any]:
    """Return the medians, the files and the seconds since the start of a run."""
    files = sorted(map(str, Path(output).glob(f"{name}*.*")))
    seconds = round(time.perf_counter() - begun, 3)
    return {"medians": list(middle), "files": files, "seconds": seconds}
