"""Shared by all experiments: options, commands, rows in memory, one-pass fits, linear PCA, tables.

This module does not postpone annotations, because command lines are built from the annotations of
`ExperimentOptions` and `Experiment.make_command`.
"""

import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from flows.cli.errors import spell_option
from flows.cli.options import ExecutorOptions, Json, Option, Seed, Split, Switch, parse_local_path
from flows.cli.progress import report_progress
from flows.cli.summary import print_json
from flows.data.datasets import open_dataset_or_example
from flows.report.figures.images import find_image_layout
from flows.running.executors import check_executor_options, open_executor
from flows.running.flow import Summary, run_flow
from pipeline.data.blocks import BinaryBlock, RowSource, iter_blocks, pack_block
from pipeline.data.datasets import make_row_source
from pipeline.errors import FitError
from pipeline.executors.base import limit_blas_threads
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.loop import check_seed, collect_first_statistics, fit_model, initialize_fit
from pipeline.models.base import Model
from pipeline.numerics.spectra.linalg import leading_eigenpairs
from pipeline.statistics.counts import PairCounts
from storage.dataset.dataset import BinaryDataset
from storage.extras import REPORT_PACKAGES, check_installed
from storage.stores.locations import check_outside_datasets

T = TypeVar("T")
U = TypeVar("U")
Array = NDArray[np.float64]
Bits = NDArray[np.uint8]
TableRow = Mapping[str, Any]

EXAMPLE_DATASET = "example:digits"
_CONSOLE_WIDTH = 1000
"""A wide console breaks long lines instead of truncating numbers."""
_MIN_VARIANCE = 1e-3

ImageShape = Annotated[
    str | None, Option(help="HEIGHTxWIDTH; features named r0c0, r0c1, … are placed by name.")
]


@Option(name="*")
@dataclass(frozen=True)
class ExperimentOptions:
    """Options of every experiment."""

    output: Annotated[
        str,
        Option(
            help="Folder for tables and figures. [default: runs/experiments/NAME]",
            show_default=False,
        ),
    ] = ""
    quick: Annotated[bool, Switch, Option(help="Run a smaller version that takes minutes.")] = False
    seed: Seed = 0
    where: ExecutorOptions = field(default_factory=ExecutorOptions)

    def check(self) -> None:
        """Check the options before any work; raise DataError or FitError if one cannot be used."""
        check_seed(self.seed)
        check_executor_options(**self.where)
        check_outside_datasets(parse_local_path(self.output))


@Option(name="*")
@dataclass(frozen=True)
class ImageExperimentOptions(ExperimentOptions):
    """Options of an experiment on binary images."""

    dataset: Annotated[
        str | None, Option(help="Dataset of binary images. [default: the 2s of example:digits]")
    ] = None
    split: Split = None
    image_shape: ImageShape = None

    def check(self) -> None:
        """Also check the dataset, the image shape and the split."""
        super().check()
        if self.split is not None and self.dataset is None:
            raise FitError("{split} needs {dataset}: the example has no splits.")
        find_image_layout(self.open_dataset().feature_names, self.image_shape)

    def open_dataset(self) -> BinaryDataset:
        """Open the dataset, or the example if none is named."""
        return open_dataset_or_example(self.dataset or EXAMPLE_DATASET)


class Experiment(NamedTuple):
    """An experiment that is a command.

    Attributes
    ----------
    help, examples
        Text above and below the options on the help page.
    options
        Class of its options.
    run
        Does the work, as a flow; takes the options and returns the summary.
    print_summary
        Prints the summary for people.
    """

    help: str
    examples: str
    options: type[ExperimentOptions]
    run: Callable[[Any], Summary]
    print_summary: Callable[[Summary], None]

    def make_command(self, name: str) -> Callable[..., None]:
        """Make the command: it checks the options, runs the flow and prints the summary."""
        default = self.options()

        def main(*, options: self.options = default, json: Json = False) -> None:  # type: ignore[name-defined]
            check_installed(f"The experiment {name}", *REPORT_PACKAGES)
            options = replace(options, output=options.output or f"runs/experiments/{name}")
            options.check()
            start = time.perf_counter()
            summary = run_flow(f"experiment-{name}", options, partial(self.run, options))
            summary["seconds"] = round(time.perf_counter() - start, 3)
            (print_json if json else self.print_summary)(summary)

        return main


@dataclass(frozen=True)
class OnePassFit:
    """A fitted model and the statistics of its only pass."""

    params: Any
    statistics: Any
    warnings: tuple[str, ...]


def fit_one_pass(
    model: Model, dataset: BinaryDataset, seed: int, where: ExecutorOptions
) -> OnePassFit:
    """Fit a one-pass model as `flows.fit` does, and return its statistics too."""
    rows = make_row_source(dataset)
    names = (dataset.feature_names, dataset.segment_names)
    try:
        with open_executor(**where) as executor, report_progress() as progress:
            state = initialize_fit(
                model, collect_first_statistics(model, rows, executor, seed, progress), seed
            )
            statistics = collect_pass_statistics(model, state, rows, executor, seed, progress)
            state = fit_model(model, rows, executor, seed, state=state, statistics=statistics)
    except FitError as error:
        raise error.with_names(*names) from error
    warnings = tuple(warning.render(*names, spell=spell_option) for warning in state.warnings)
    return OnePassFit(state.params, statistics, warnings)


def draw_rows(dataset: BinaryDataset, n_rows: int, rng: np.random.Generator) -> BinaryBlock:
    """Draw rows of the first chunk, in stored order, as a block of one segment."""
    chunk = dataset.read_chunk(0)
    keep = np.zeros(len(chunk.rows), bool)
    keep[rng.choice(len(keep), min(n_rows, len(keep)), replace=False)] = True
    return join_blocks(list(iter_blocks(replace(chunk, keep=keep))))


def join_blocks(blocks: Sequence[BinaryBlock]) -> BinaryBlock:
    """Join the rows of blocks, in order, in one block of one segment."""
    X = np.concatenate([block.unpack_values() for block in blocks])
    if all(block.observed_words is None for block in blocks):
        return pack_block(X)
    masks = (block.unpack_mask() for block in blocks)
    shapes = ((block.n_samples, block.n_features) for block in blocks)
    full = [np.ones(n, np.uint8) if m is None else m for m, n in zip(masks, shapes, strict=True)]
    return pack_block(X, np.concatenate(full))


class _MemoryChunk(NamedTuple):
    """All rows, in memory."""

    words: NDArray[np.uint64]
    blocks: NDArray[np.int64]
    row_numbers: range
    observed: NDArray[np.uint64] | None = None
    columns: Mapping[str, NDArray[Any]] = {}
    keep: NDArray[np.bool_] | None = None
    numbers: NDArray[np.float32] | None = None


def pack_rows_in_memory(X: Bits, n_segments: int) -> RowSource:
    """Pack rows (n_rows, n_features) sorted by segment, with equally many rows per segment."""
    words = [pack_block(rows).words for rows in np.split(X, n_segments)]
    height, width = len(X) // n_segments, words[0].shape[1]
    blocks = [(segment, segment * width, height) for segment in range(n_segments)]
    chunk = _MemoryChunk(np.hstack(words), np.array(blocks), range(len(X)))
    return RowSource((chunk,).__getitem__, [len(X)], X.shape[1], n_segments)


@dataclass(frozen=True)
class LinearPCA:
    """Linear PCA of the bits, the baseline of the experiments; eigenvalues largest first.

    As a model of bits it is a Gaussian with the means of the bits, the leading components, and
    independent noise that restores each feature's variance; a bit is 1 if the Gaussian exceeds ½.
    """

    mean: Array
    variance: Array
    eigenvalues: Array
    vectors: Array

    def reconstruct(self, X: Bits, observed: Bits | None, n_components: int) -> Array:
        """Project rows on the leading components and return P(s = 1), (n_samples, n_features).

        Missing values are replaced by the mean of their feature.
        """
        projected = self.project(X, observed, n_components)
        probabilities: Array = scipy.special.ndtr(
            (projected - 0.5) / np.sqrt(self._noise_variance(n_components))
        )
        return probabilities

    def project(self, X: Bits, observed: Bits | None, n_components: int) -> Array:
        """Project rows on the leading components, and back: (n_samples, n_features)."""
        leading = self.vectors[:, :n_components]
        centred = X - self.mean
        if observed is not None:
            centred = centred * observed
        projected: Array = self.mean + centred @ leading @ leading.T
        return projected

    def sample(self, n_components: int, n_samples: int, rng: np.random.Generator) -> Bits:
        """Draw rows: (n_samples, n_features)."""
        scales = np.sqrt(np.maximum(self.eigenvalues[:n_components], 0.0))
        codes = rng.standard_normal((n_samples, n_components)) * scales
        noise = rng.standard_normal((n_samples, len(self.mean)))
        latent = self.mean + codes @ self.vectors[:, :n_components].T
        return (latent + noise * np.sqrt(self._noise_variance(n_components)) > 0.5).astype(np.uint8)

    def _noise_variance(self, n_components: int) -> Array:
        """Compute the variance of each bit that the leading components do not explain."""
        leading = self.vectors[:, :n_components]
        explained = (leading**2 * self.eigenvalues[:n_components]).sum(axis=1)
        noise: Array = np.maximum(self.variance - explained, _MIN_VARIANCE)
        return noise


def fit_linear_pca(counts: PairCounts, n_components: int) -> LinearPCA:
    """Compute linear PCA exactly from pooled pair counts, without reading the rows again.

    `n_components` is a minimum; with few features, all components are returned.
    """
    table = counts.table(0)
    n = np.maximum(np.broadcast_to(table.n, table.joint.shape), 1)
    covariance = table.joint / n - (table.ones_i / n) * (table.ones_j / n)
    with limit_blas_threads():
        values, vectors = leading_eigenpairs(covariance, n_components)
    return LinearPCA(np.diag(table.joint) / np.diag(n), np.diag(covariance), values, vectors)


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
    columns = {name: [row[name] for row in trials if row[name] is not None] for name in values}
    return {name: float(np.median(known)) if known else None for name, known in columns.items()}


def write_results(
    output: str, name: str, trials: Sequence[TableRow], medians: Sequence[TableRow]
) -> tuple[Path, Path]:
    """Write tables of all trials and of medians; return the paths for the figure."""
    stem = Path(output, name)
    write_table(stem, trials)
    write_table(stem.with_name(f"{name}_medians"), medians)
    return stem.with_suffix(".png"), stem.with_suffix(".svg")


def summarize_run(output: str, name: str, medians: Sequence[TableRow]) -> Summary:
    """Return the medians and the files of a run."""
    return {"medians": list(medians), "files": list_files(output, name)}


def list_files(output: str, *names: str) -> list[str]:
    """List the files in the output folder whose names begin with one of `names`."""
    return sorted(str(path) for name in names for path in Path(output).glob(f"{name}*.*"))


def run_trials(
    function: Callable[[T], U],
    trials: Iterable[T],
    n_trials: int,
    label: str,
    where: ExecutorOptions,
    one_at_a_time: bool = False,
) -> list[U]:
    """Run trials on the workers, optionally one at a time, with a progress bar on a terminal.

    Trials are taken as late as possible, so that their data may be drawn there.
    """
    console, is_hidden = Console(stderr=True), not sys.stderr.isatty()
    with open_executor(**where) as executor:
        results: Iterator[U] = executor.map(function, () if one_at_a_time else trials)
        if one_at_a_time:
            results = chain.from_iterable(executor.map(function, [trial]) for trial in trials)
        return [*track(results, label, n_trials, console=console, disable=is_hidden)]


def print_results(summary: Mapping[str, Any], *parts: Table | str) -> None:
    """Print tables and lines, then the paths of the files."""
    console = Console(soft_wrap=True, highlight=False, emoji=False, width=_CONSOLE_WIDTH)
    for part in (*parts, *summary["files"]):
        console.print(part, markup=False)
