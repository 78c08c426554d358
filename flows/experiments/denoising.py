"""Denoise binary images by models of clean images.

M. Sugiyama, "Introduction to statistical machine learning", 2016, figures 36.11 and 36.15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.experiments.binary_ica_trials import pack_rows_in_memory
from flows.experiments.drawing import (
    COLOURS,
    MARKERS,
    ImageRow,
    open_figure,
    save_images,
)
from flows.experiments.linear_pca import fit_linear_pca
from flows.report.figures.images import ImageLayout
from pipeline.data.blocks import pack_block
from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import fit_model
from pipeline.models.base import Model
from pipeline.models.capabilities import check_can_reconstruct
from pipeline.numerics.metrics import MIN_PROBABILITY
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated

from rich.console import Console
from rich.progress import track
from rich.table import Table

from flows.cli.options import ExecutorOptions, Json, Option, WholeNumber
from flows.data.datasets import open_dataset_or_example
from flows.experiments import base
from flows.experiments.base import group_medians, run_experiment, summarize_run, write_results
from flows.experiments.tipping import open_images
from flows.experiments.tipping_figures import BinaryImages
from flows.running.executors import open_executor
from flows.running.flow import make_lazy_flow, run_task
from pipeline.errors import FitError
from pipeline.models.registry import find_model_class

Array = NDArray[np.float64]
Bits = NDArray[np.uint8]
BitScore = Callable[[Bits], Array]
"""Scores each bit; bits with a score above a threshold are set to 1."""

NOISE = 0.1
"""Share of a row's bits that noise sets to 1, and share that it sets to 0."""
_THRESHOLDS = np.linspace(0.05, 0.95, 91)
_N_STEPS = 10


class DenoisingTrial(NamedTuple):
    """One trial: the model, the training rows and the rows to denoise.

    Attributes
    ----------
    model
        The model, or the number of components of linear PCA.
    train, test
        Clean rows to fit and to test, (n_samples, n_features).
    noisy
        The test rows with the noise of `add_noise`.
    seed
        Seed of the fit, and of the noise used to choose linear PCA's threshold.
    """

    model: Model | int
    train: Bits
    test: Bits
    noisy: Bits
    seed: int


class DenoisingResult(NamedTuple):
    """Results of a trial.

    Attributes
    ----------
    wrong_bits
        Share of wrong bits in the rows reconstructed from the codes of noisy rows.
    wrong_bits_weighed
        The same when the reconstruction is combined with the noisy bits, given the noise level.
    bits, weighed
        The reconstructed rows of both kinds, (n_samples, n_features).
    """

    wrong_bits: float
    wrong_bits_weighed: float
    bits: Bits
    weighed: Bits


def add_noise(X: Bits, seed: int) -> Bits:
    """Set a random tenth of the bits of each row to 1, then another to 0."""
    rng, (n_rows, n_features) = np.random.default_rng(seed), X.shape
    n_set, noisy = round(NOISE * n_features), X.copy()
    order = rng.permuted(np.tile(np.arange(n_features), (n_rows, 1)), axis=1)
    np.put_along_axis(noisy, order[:, :n_set], 1, axis=1)
    np.put_along_axis(noisy, order[:, n_set : 2 * n_set], 0, axis=1)
    return noisy


def wrong_share(bits: Bits, clean: Bits) -> float:
    """Compute the share of bits that differ."""
    return float((bits != clean).mean())


def run_denoising_trial(trial: DenoisingTrial) -> DenoisingResult:
    """Fit clean rows in memory and denoise the noisy ones.

    Raises
    ------
    FitError
        If the rows cannot be fitted, or the model does not turn codes back into probabilities.
    """
    if isinstance(trial.model, int):
        bits, probabilities = _denoise_by_linear_pca(trial, trial.model)
    else:
        probabilities = _fit_reconstruction(trial, trial.model)
        bits = _cut_scores(probabilities(trial.noisy), 0.5)
    weighed = _weigh_noisy_bits(probabilities, trial.noisy)
    wrong, wrong_weighed = (wrong_share(found, trial.test) for found in (bits, weighed))
    return DenoisingResult(wrong, wrong_weighed, bits, weighed)


def _fit_reconstruction(trial: DenoisingTrial, model: Model) -> BitScore:
    """Return a function that encodes rows and decodes the codes to P(x = 1)."""
    made = check_can_reconstruct(model)
    params = fit_model(
        model, pack_rows_in_memory(trial.train, 1), SerialExecutor(), trial.seed
    ).params

    def probabilities(X: Bits) -> Array:
        with limit_blas_threads():
            codes = model.transform(params, pack_block(X), RowRandom(trial.seed))["mean"]
            return made.reconstruct(params, codes)

    return probabilities


def _denoise_by_linear_pca(trial: DenoisingTrial, n_components: int) -> tuple[Bits, BitScore]:
    """Project on the leading components; the threshold is the best one for noisy training rows."""
    counts = PairCounts.from_block(pack_block(trial.train), pooled=True)
    found = fit_linear_pca(counts, n_components)

    def probabilities(X: Bits) -> Array:
        with limit_blas_threads():
            return found.reconstruct(X, None, n_components)

    def projected(X: Bits) -> Array:
        with limit_blas_threads():
            return found.project(X, None, n_components)

    tried = projected(add_noise(trial.train, trial.seed + 1))
    wrong = [wrong_share(_cut_scores(tried, t), trial.train) for t in _THRESHOLDS]
    best = _THRESHOLDS[int(np.argmin(wrong))]
    return _cut_scores(projected(trial.noisy), best), probabilities


def _weigh_noisy_bits(probabilities: BitScore, noisy: Bits) -> Bits:
    """Alternate between the likeliest bits given codes and noisy bits, and new codes given bits.

    Iterated conditional modes (J. Besag, J. R. Stat. Soc. B 48, 1986): noise changes a bit of
    either value with probability `NOISE`, so a noisy bit has log-odds of ± log((1 − r) / r).
    """
    seen = np.log((1 - NOISE) / NOISE) * (2.0 * noisy - 1)
    bits = noisy
    for _ in range(_N_STEPS):
        p = np.clip(probabilities(bits), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        bits = _cut_scores(np.log(p) - np.log1p(-p) + seen, 0.0)
    return bits


def _cut_scores(scores: Array, threshold: float) -> Bits:
    bits: Bits = (scores > threshold).astype(np.uint8)
    return bits


CLEAN, NOISY, LINEAR = "clean", "noisy", "linear PCA"
_N_SHOWN = 8
_MEASURES = {"from codes": "wrong_bits", "weighed against noisy bits": "wrong_bits_weighed"}


@dataclass(frozen=True)
class DenoisingFigures:
    """The figures of the experiment, written to a folder."""

    folder: Path
    name: str
    n_components: int

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"denoising_{name}.png", self.folder / f"denoising_{name}.svg"

    def plot_errors(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Plot the shares of wrong bits of all fits, one panel per number of images."""
        numbers = list(dict.fromkeys(row["images"] for row in rows))
        names = [name for name in dict.fromkeys(row["model"] for row in rows) if name != NOISY]
        note = (
            "A mark a seed, bars at medians; dotted: the noisy images themselves, median. From "
            "codes: bits that the codes of noisy images are turned back into. Weighed: the "
            "likeliest bits given codes and noisy bits. Linear PCA from codes: cut at the "
            "threshold that is best for training images with noise."
        )
        title = f"Denoising {self.name}, {self.n_components} components"
        size = (10, 1.9 + 0.42 * len(names))
        with open_figure(*self._paths("errors"), size=size, title=title, note=note) as figure:
            panels = figure.subplots(1, len(numbers), squeeze=False, sharex=True, sharey=True)[0]
            for axes, n_images in zip(panels, numbers, strict=True):
                _plot_errors(axes, [row for row in rows if row["images"] == n_images], names)
                axes.set_title(f"fitted to {n_images:,} images")
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper right", ncols=len(labels))

    def plot_images(
        self,
        layout: ImageLayout,
        n_images: int,
        clean: Bits,
        noisy: Bits,
        cleaned: Mapping[str, DenoisingResult],
    ) -> None:
        """Plot some images: clean, noisy, and reconstructed by each model."""
        at = ((np.arange(_N_SHOWN) + 0.5) * len(clean) / _N_SHOWN).astype(np.intp)
        drawn = {CLEAN: clean, NOISY: noisy, **{name: one.bits for name, one in cleaned.items()}}
        shown = []
        for name, bits in drawn.items():
            wrong = (bits[at] != clean[at]).sum(axis=1)
            captions = [""] * len(at) if name == CLEAN else [str(count) for count in wrong]
            shown.append(ImageRow(name, layout.arrange_images(bits[at]), captions))
        note = (
            f"Images of the last third. A random 10 % of the pixels set to 1, another 10 % to 0. "
            f"Models of {self.n_components} components; bits that codes of noisy images are turned "
            "back into. Under each: its wrong bits."
        )
        title = f"Denoising {self.name}, fitted to {n_images:,} clean images"
        paths = self._paths(f"images_{n_images}")
        save_images(*paths, rows=shown, title=title, note=note)


def _plot_errors(axes: Axes, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    series = {
        label: [[row[measure] for row in rows if row["model"] == name] for name in names]
        for label, measure in _MEASURES.items()
    }
    _plot_spread(axes, series, names, "share of wrong bits")
    noisy = float(np.median([row["wrong_bits"] for row in rows if row["model"] == NOISY]))
    axes.axvline(noisy, color="black", ls=":", lw=1, label="noisy images")
    axes.set_xlim(left=0)


def _plot_spread(
    axes: Axes, series: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str], label: str
) -> None:
    """Plot the results of all seeds on one line per model, with a bar at the median."""
    for k, (name, lines) in enumerate(series.items()):
        colour, marker = COLOURS[k], MARKERS[k]
        heights = np.arange(len(lines)) + 0.3 * (k - (len(series) - 1) / 2)
        x, y = np.concatenate(lines), np.repeat(heights, [len(values) for values in lines])
        style: Any = {"color": colour, "markersize": 4, "alpha": 0.55, "markeredgewidth": 0}
        axes.plot(x, y, marker, label=name, **style)
        medians = [float(np.median(values)) for values in lines]
        axes.vlines(medians, heights - 0.14, heights + 0.14, color=colour, linewidth=2)
    axes.set(xlabel=label, yticks=range(len(names)), yticklabels=names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


NAME = "denoising"
OUTPUT = "runs/experiments/denoising"
HELP = """Denoise images by models of clean images (Sugiyama 2016, figures 36.11 and 36.15).

The images are the 2s of `example:digits`, or the rows of `--dataset`. Models are fitted to 100 of
the first two thirds of the images, another 100 for each seed, and to all of them. In the last
third a random 10 % of the pixels are set to 1, and another 10 % to 0. A model turns these into
codes and decodes the codes to bits; the threshold of linear PCA is the best one for training images
with noise of their own.

`wrong_bits` is the share of wrong bits after decoding. `wrong_bits_weighed` also uses the noisy
pixels, each of which is wrong with a probability of 10 %: bits and codes are estimated in turn.
Writes tables of all fits and of medians over 5 seeds (CSV and JSON) and figures (PNG and SVG).
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
"""Labels, model names and settings, chosen by validation on held-out training images."""
_N_TRAIN_IMAGES, _COMPONENTS, _SEEDS = 100, 10, 5
_QUICK_SEEDS, _QUICK_ROWS = 1, 150
_VALUES = ("wrong_bits", "wrong_bits_weighed")


class DenoisingCell(NamedTuple):
    """One cell of the table: a model and a number of training images."""

    model: str
    n_images: int
    trial: DenoisingTrial


class DenoisingResults(NamedTuple):
    """Rows of the table of all fits, and the first seed's results by number of images and model."""

    rows: list[dict[str, Any]]
    cleaned: dict[tuple[int, str], DenoisingResult]


@Option(name="*")
@dataclass(frozen=True)
class DenoisingOptions(base.ImageExperimentOptions):
    """Options of `denoising`."""

    output: base.Output = OUTPUT
    components: Annotated[WholeNumber, Option(help="Number of components of each model.")] = (
        _COMPONENTS
    )

    def check(self) -> None:
        """Check also the number of components."""
        super().check()
        most = open_dataset_or_example(self.dataset or base.EXAMPLE_DATASET).n_features - 1
        if not 1 <= self.components <= most:
            raise FitError(
                f"{{components}} is {self.components}, but must lie between 1 and {most}, below "
                "the number of features."
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
    """Split the images into the first two thirds and the last third.

    Raises
    ------
    FitError
        If there are too few, or values are missing.
    """
    if images.block.observed_words is not None:
        raise FitError("The images have missing values. Choose other rows.")
    X = images.block.unpack_values()
    if len(X) < 6:
        raise FitError(f"There are only {len(X)} images; at least 6 are needed. Choose other rows.")
    return np.split(X, [len(X) - len(X) // 3])


def run_denoising_trials(
    train: Bits, test: Bits, n_components: int, seeds: Sequence[int], where: ExecutorOptions
) -> DenoisingResults:
    """Fit every model to each number of images from every seed."""
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
    """Draw row indices without replacement, in ascending order."""
    return np.sort(np.random.default_rng(seed).choice(n_rows, n_wanted, replace=False))


def _make_row(cell: DenoisingCell, *shares: float) -> dict[str, Any]:
    about = {"images": cell.n_images, "model": cell.model, "seed": cell.trial.seed}
    return {**about, **dict(zip(_VALUES, shares, strict=True))}


def _iter_rows_with_noisy(
    rows: Sequence[dict[str, Any]], cells: Sequence[DenoisingCell]
) -> Iterator[dict[str, Any]]:
    """Insert the noisy images before the first model of each number of images."""
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
