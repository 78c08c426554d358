"""The experiment of denoising images of bits: its command line and its flow.

M. Sugiyama, "Introduction to statistical machine learning", 2016, figures 36.11 and 36.15.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from flows.cli.options import ExecutorOptions, Json, Option, WholeNumber
from flows.data.datasets import open_dataset_or_example
from flows.experiments import base
from flows.experiments.base import group_medians, run_experiment, summarize_run, write_results
from flows.experiments.denoising.figures import LINEAR, NOISY, DenoisingFigures
from flows.experiments.denoising.trial import (
    NOISE,
    Bits,
    DenoisingResult,
    DenoisingTrial,
    add_noise,
    run_denoising_trial,
    wrong_share,
)
from flows.experiments.tipping.command import open_images
from flows.experiments.tipping.figures import BinaryImages
from flows.running.executors import open_executor
from flows.running.flow import make_lazy_flow, run_task
from pipeline.errors import FitError
from pipeline.models.registry import find_model_class

NAME = "denoising"
OUTPUT = "runs/experiments/denoising"
HELP = """Clean noisy images by models of clean ones, as Sugiyama (2016, figures 36.11 and 36.15).

The images are the 2s of `example:digits`, or the rows of `--dataset`. Models are fitted to 100 of
the first two thirds of the images, another 100 for each seed, and to all of them. In the last
third a random 10 % of the pixels are set to 1, and another 10 % to 0. A model turns these into
codes, and those back into bits; linear PCA is cut at the threshold that is best for the training
images with noise of their own.

`wrong_bits` is the share of wrong bits among those. `wrong_bits_weighed` is that of the likeliest
bits given also the noisy pixels, which noise changes with a probability of 10 %: codes and bits are
found in turn. Leaves tables of all fits and of medians over 5 seeds (CSV and JSON) and figures (PNG
and SVG).
"""
EXAMPLES = """Examples:

    python -m flows.experiments denoising --quick
    python -m flows.ingest usps.npz --dataset usps.zarr --split-by y
    python -m flows.experiments denoising --dataset usps.zarr --split 2 --image-shape 16x16
"""
_LONG_FIT = {"batch": 10, "max_iter": 500, "patience": 500}
_MODELS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("clipped PCA", "clipped-pca", {"constant_features": "keep"}),
    ("latent trait", "latent-trait", {"constant_features": "pin", "prior_precision": 1.0}),
    ("mixture", "bernoulli-mixture", {}),
    ("RBM", "rbm", {}),
    ("RBM, weight decay", "rbm", {"method": "cd", "weight_decay": 0.01, **_LONG_FIT}),
    ("autoencoder", "autoencoder", {}),
    ("autoencoder, flips", "autoencoder", {"corruption": "flip", "noise": NOISE, **_LONG_FIT}),
    ("stack", "stack", {}),
)
"""What models are called, their names, and their settings: chosen by images held out of those to
learn from."""
_N_TRAIN_IMAGES, _COMPONENTS, _SEEDS = 100, 10, 5
_QUICK_SEEDS, _QUICK_ROWS = 1, 150
_VALUES = ("wrong_bits", "wrong_bits_weighed")


class DenoisingCell(NamedTuple):
    """One trial: what is tried, and how many images it learns from."""

    model: str
    n_images: int
    trial: DenoisingTrial


class DenoisingResults(NamedTuple):
    """Rows of the table of all fits, and what came of the first seed, by images and model."""

    rows: list[dict[str, Any]]
    cleaned: dict[tuple[int, str], DenoisingResult]


@Option(name="*")
@dataclass(frozen=True)
class DenoisingOptions(base.ImageExperimentOptions):
    """What this experiment takes beside."""

    output: base.Output = OUTPUT
    components: Annotated[WholeNumber, Option(help="Components of each model.")] = _COMPONENTS

    def check(self) -> None:
        """Refuse also as many components as features, or none."""
        super().check()
        most = open_dataset_or_example(self.dataset or base.EXAMPLE_DATASET).n_features - 1
        if not 1 <= self.components <= most:
            raise FitError(
                f"--components: Expected 1 to {most}, below the number of features, got "
                f"{self.components}."
            )


@make_lazy_flow("experiment-denoising", DenoisingOptions)
def denoising(options: DenoisingOptions) -> dict[str, Any]:
    """Fit, clean and draw; `python -m flows.experiments denoising --help` says more."""
    begun, output, seed = time.perf_counter(), options.output, options.seed
    most = _QUICK_ROWS if options.quick else None
    images = open_images(options.dataset, options.split, options.image_shape, most)
    n_seeds = _QUICK_SEEDS if options.quick else _SEEDS
    train, test = split_images(images)
    given = (train, test, options.components, range(seed, seed + n_seeds), options.where)
    found = run_task("trials", partial(run_denoising_trials, *given))
    middle = group_medians(found.rows, ("images", "model"), _VALUES)
    write_results(output, NAME, found.rows, middle)
    pictures = DenoisingFigures(Path(output), images.name, options.components)
    pictures.plot_errors(found.rows)
    for n_images in dict.fromkeys(row["images"] for row in found.rows):
        cleaned = {name: one for (n, name), one in found.cleaned.items() if n == n_images}
        pictures.plot_images(images.layout, n_images, test, add_noise(test, seed), cleaned)
    return summarize_run(output, NAME, middle, begun)


def split_images(images: BinaryImages) -> tuple[Bits, Bits]:
    """Give the images to learn from, and the last third.

    Raises
    ------
    FitError
        If there are too few, or values are missing.
    """
    if images.block.observed_words is not None:
        raise FitError("Expected images without missing values, got some. Choose other rows.")
    X = images.block.unpack_values()
    if len(X) < 6:
        raise FitError(f"Expected at least 6 images, got {len(X)}. Choose other rows.")
    return np.split(X, [len(X) - len(X) // 3])


def run_denoising_trials(
    train: Bits, test: Bits, n_components: int, seeds: Sequence[int], where: ExecutorOptions
) -> DenoisingResults:
    """Fit all models to each number of images, from every seed."""
    cells = list(_iter_cells(train, test, n_components, seeds))
    found, console = DenoisingResults([], {}), Console(stderr=True)
    with open_executor(**where) as executor:
        tried = executor.map(run_denoising_trial, (cell.trial for cell in cells))
        shown = track(tried, "fits", len(cells), console=console, disable=not sys.stderr.isatty())
        for cell, cleaned in zip(cells, shown, strict=True):
            found.cleaned.setdefault((cell.n_images, cell.model), cleaned)
            found.rows.append(_make_row(cell, cleaned.wrong_bits, cleaned.wrong_bits_weighed))
    return found._replace(rows=list(_iter_rows_with_noisy(found.rows, cells)))


def _iter_cells(
    train: Bits, test: Bits, n_components: int, seeds: Sequence[int]
) -> Iterator[DenoisingCell]:
    built = {
        name: find_model_class(kind)(n_components=n_components, **settings)  # type: ignore[call-arg]
        for name, kind, settings in _MODELS
    }
    for n_images in sorted({min(_N_TRAIN_IMAGES, len(train)), len(train)}):
        for name, model in {LINEAR: n_components, **built}.items():
            for seed in seeds:
                learnt = train[_draw_row_indices(len(train), n_images, seed)]
                trial = DenoisingTrial(model, learnt, test, add_noise(test, seed), seed)
                yield DenoisingCell(name, n_images, trial)


def _draw_row_indices(n_rows: int, n_wanted: int, seed: int) -> Any:
    """Draw so many of the rows, in their order."""
    return np.sort(np.random.default_rng(seed).choice(n_rows, n_wanted, replace=False))


def _make_row(cell: DenoisingCell, *shares: float) -> dict[str, Any]:
    about = {"images": cell.n_images, "model": cell.model, "seed": cell.trial.seed}
    return {**about, **dict(zip(_VALUES, shares, strict=True))}


def _iter_rows_with_noisy(
    rows: Sequence[dict[str, Any]], cells: Sequence[DenoisingCell]
) -> Iterator[dict[str, Any]]:
    """Put the noisy images themselves before the first model of each number of images."""
    for n_images in dict.fromkeys(cell.n_images for cell in cells):
        for cell in cells:
            if (cell.model, cell.n_images) == (LINEAR, n_images):
                wrong = wrong_share(cell.trial.noisy, cell.trial.test)
                yield _make_row(cell._replace(model=NOISY), wrong, wrong)
        yield from (row for row in rows if row["images"] == n_images)


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the medians over seeds and the paths."""
    console = Console(soft_wrap=True, highlight=False)
    title = "medians: share of wrong bits"
    style: Any = {"box": None, "padding": (0, 2, 0, 0), "title_justify": "left"}
    table = Table("images", "model", "from codes", "weighed", title=title, **style)
    for row in summary["medians"]:
        shares = (f"{row[name]:.2%}" for name in _VALUES)
        table.add_row(str(row["images"]), row["model"], *shares)
    console.print(table)
    for path in summary["files"]:
        console.print(path, markup=False)


def main(*, options: DenoisingOptions = DenoisingOptions(), json: Json = False) -> None:
    """Run the flow and print its summary."""
    run_experiment(denoising, options, json, print_summary)
