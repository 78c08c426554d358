"""Denoise binary images by models of clean images.

M. Sugiyama, "Introduction to statistical machine learning", 2016, figures 36.11 and 36.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from flows.cli.options import ExecutorOptions, Option, WholeNumber
from flows.cli.summary import make_table
from flows.experiments import base
from flows.experiments.base import (
    Array,
    Bits,
    Experiment,
    fit_linear_pca,
    group_medians,
    pack_rows_in_memory,
    print_results,
    run_trials,
    summarize_run,
    write_results,
)
from flows.experiments.drawing import (
    ImageRow,
    figure_paths,
    make_panel,
    save_images,
    write_figure,
)
from flows.experiments.tipping import BinaryImages, open_images
from flows.report.figures.axes import make_axis, make_name_axis
from flows.report.figures.colours import COLOURS, GREY, MARKERS
from flows.report.figures.images import ImageLayout
from flows.report.figures.marks import Figure, LegendKey, LineMarks, Mark, PointMarks, RuleMark
from flows.running.flow import run_task
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, limit_blas_threads
from pipeline.fitting.loop import fit_model
from pipeline.models.base import Model
from pipeline.models.capabilities import check_can_reconstruct
from pipeline.models.registry import find_model_class
from pipeline.numerics.metrics import MIN_PROBABILITY
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts

BitScore = Callable[[Bits], Array]
"""Scores each bit; bits with a score above a threshold are set to 1."""

NOISE = 0.1
"""Share of a row's bits that noise sets to 1, and share that it sets to 0."""
_THRESHOLDS = np.linspace(0.05, 0.95, 91)
_N_STEPS = 10


class DenoisingTrial(NamedTuple):
    """A model to fit to clean rows, and the rows to denoise, (n_samples, n_features).

    `model` is a model, or the number of components of linear PCA. `seed` is also used for the noise
    that chooses the threshold of linear PCA.
    """

    model: Model | int
    train: Bits
    test: Bits
    noisy: Bits
    seed: int


class DenoisingResult(NamedTuple):
    """Denoised rows, (n_samples, n_features), and their shares of wrong bits.

    `bits` are reconstructed from the codes of noisy rows; `weighed` combine the reconstruction with
    the noisy bits, given the noise level.
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
    """Fit clean rows in memory and denoise the noisy ones."""
    if isinstance(trial.model, int):
        bits, probabilities = _denoise_by_linear_pca(trial, trial.model)
    else:
        probabilities = _fit_reconstruction(trial, trial.model)
        bits = _cut_scores(probabilities(trial.noisy), 0.5)
    weighed = _weigh_noisy_bits(probabilities, trial.noisy)
    return DenoisingResult(
        wrong_share(bits, trial.test), wrong_share(weighed, trial.test), bits, weighed
    )


def _fit_reconstruction(trial: DenoisingTrial, model: Model) -> BitScore:
    """Return a function that encodes rows and decodes the codes to P(x = 1)."""
    decoder = check_can_reconstruct(model)
    params = fit_model(
        model, pack_rows_in_memory(trial.train, 1), SerialExecutor(), trial.seed
    ).params

    def probabilities(X: Bits) -> Array:
        with limit_blas_threads():
            codes = model.transform(params, pack_block(X), RowRandom(trial.seed))["mean"]
            return decoder.reconstruct(params, codes)

    return probabilities


def _denoise_by_linear_pca(trial: DenoisingTrial, n_components: int) -> tuple[Bits, BitScore]:
    """Project on the leading components; the threshold is the best one for noisy training rows."""
    counts = PairCounts.from_block(pack_block(trial.train), pooled=True)
    pca = fit_linear_pca(counts, n_components)

    def probabilities(X: Bits) -> Array:
        with limit_blas_threads():
            return pca.reconstruct(X, None, n_components)

    def project(X: Bits) -> Array:
        with limit_blas_threads():
            return pca.project(X, None, n_components)

    scores = project(add_noise(trial.train, trial.seed + 1))
    wrong = [wrong_share(_cut_scores(scores, t), trial.train) for t in _THRESHOLDS]
    best = _THRESHOLDS[int(np.argmin(wrong))]
    return _cut_scores(project(trial.noisy), best), probabilities


def _weigh_noisy_bits(probabilities: BitScore, noisy: Bits) -> Bits:
    """Alternate between the likeliest bits given codes and noisy bits, and new codes given bits.

    Iterated conditional modes (J. Besag, J. R. Stat. Soc. B 48, 1986): noise changes a bit of
    either value with probability `NOISE`, so a noisy bit has log-odds of ± log((1 − r) / r).
    """
    noisy_log_odds = np.log((1 - NOISE) / NOISE) * (2.0 * noisy - 1)
    bits = noisy
    for _ in range(_N_STEPS):
        p = np.clip(probabilities(bits), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        bits = _cut_scores(np.log(p) - np.log1p(-p) + noisy_log_odds, 0.0)
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
        return figure_paths(self.folder, f"denoising_{name}")

    def plot_errors(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Plot the shares of wrong bits of all fits, one panel per number of images."""
        numbers = list(dict.fromkeys(row["images"] for row in rows))
        names = [name for name in dict.fromkeys(row["model"] for row in rows) if name != NOISY]
        note = (
            "One mark per seed, bars at medians. Dotted: median of the noisy images themselves. "
            "From codes: bits decoded from the codes of noisy images. Weighed: the likeliest bits "
            "given codes and noisy bits. Linear PCA from codes: cut at the threshold that is best "
            "for training images with noise."
        )
        title = f"Denoising {self.name}, {self.n_components} components"
        top = 1.05 * max(row["wrong_bits"] for row in rows)
        panels = [
            _plot_errors([row for row in rows if row["images"] == n], names, top, n)
            for n in numbers
        ]
        write_figure(*self._paths("errors"), panels=[panels], title=title, note=note)

    def plot_images(
        self,
        layout: ImageLayout,
        n_images: int,
        clean: Bits,
        noisy: Bits,
        cleaned: Mapping[str, DenoisingResult],
    ) -> None:
        """Plot some images: clean, noisy, and reconstructed by each model."""
        shown = ((np.arange(_N_SHOWN) + 0.5) * len(clean) / _N_SHOWN).astype(np.intp)
        images = {CLEAN: clean, NOISY: noisy, **{name: r.bits for name, r in cleaned.items()}}
        rows = []
        for name, bits in images.items():
            wrong = (bits[shown] != clean[shown]).sum(axis=1)
            captions = [""] * len(shown) if name == CLEAN else [str(count) for count in wrong]
            rows.append(ImageRow(name, layout.arrange_images(bits[shown]), captions))
        note = (
            "Images of the last third, with a random 10 % of the pixels set to 1 and another 10 % "
            f"to 0. Models have {self.n_components} components; their bits are decoded from the "
            "codes of the noisy images. Under each image: its number of wrong bits."
        )
        title = f"Denoising {self.name}, fitted to {n_images:,} clean images"
        paths = self._paths(f"images_{n_images}")
        save_images(*paths, rows=rows, title=title, note=note)


def _plot_errors(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], top: float, n_images: int
) -> Figure:
    """Plot the results of all seeds on one line per model, with a bar at the median."""
    noisy = float(np.median([row["wrong_bits"] for row in rows if row["model"] == NOISY]))
    marks: list[Mark] = [RuleMark("x", noisy, dash=(2, 4))]
    keys = [LegendKey("noisy images", GREY, "dash")]
    for k, (label, measure) in enumerate(_MEASURES.items()):
        lines = [[row[measure] for row in rows if row["model"] == name] for name in names]
        heights = np.arange(len(lines)) + 0.3 * (k - (len(_MEASURES) - 1) / 2)
        x, y = np.concatenate(lines), np.repeat(heights, [len(values) for values in lines])
        bars = [
            np.array([[np.median(values), height - 0.14], [np.median(values), height + 0.14]])
            for values, height in zip(lines, heights, strict=True)
        ]
        marks.append(PointMarks(x, y, COLOURS[k], MARKERS[k], opacity=0.55))
        marks.append(LineMarks(bars, [COLOURS[k]] * len(bars), 2.5))
        keys.append(LegendKey(label, COLOURS[k], MARKERS[k]))
    x_axis, y_axis = make_axis(0.0, top, "share of wrong bits"), make_name_axis(names, is_down=True)
    title, height = f"fitted to {n_images:,} images", 60 + 34 * len(names)
    return make_panel(title, x_axis, y_axis, marks, keys, height)


NAME = "denoising"
_LONG_FIT = {"batch": 10, "max_iter": 500, "patience": 500}
_MODELS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("clipped PCA", "clipped-pca", {"constant_features": "keep"}),
    ("latent trait", "latent-trait", {"constant_features": "keep", "prior_precision": 1.0}),
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
    """Rows of the table of all fits; results of the first seed, by number of images and model."""

    rows: list[dict[str, Any]]
    cleaned: dict[tuple[int, str], DenoisingResult]


@Option(name="*")
@dataclass(frozen=True)
class DenoisingOptions(base.ImageExperimentOptions):
    """Options of `denoising`."""

    components: Annotated[WholeNumber, Option(help="Number of components of each model.")] = (
        _COMPONENTS
    )

    def check(self) -> None:
        """Also check the number of components."""
        super().check()
        limit = self.open_dataset().n_features - 1
        if not 1 <= self.components <= limit:
            raise FitError(
                f"{{components}} is {self.components}, but must lie between 1 and {limit}, below "
                "the number of features."
            )


def run_denoising(options: DenoisingOptions) -> dict[str, Any]:
    """Fit clean images, denoise noisy ones, and draw the figures."""
    output, seed = options.output, options.seed
    max_rows = _QUICK_ROWS if options.quick else None
    images = open_images(options.dataset, options.split, options.image_shape, max_rows)
    n_seeds = _QUICK_SEEDS if options.quick else _SEEDS
    train, test = split_images(images)
    arguments = (train, test, options.components, range(seed, seed + n_seeds), options.where)
    results = run_task("trials", partial(run_denoising_trials, *arguments))
    medians = group_medians(results.rows, ("images", "model"), _VALUES)
    write_results(output, NAME, results.rows, medians)
    figures = DenoisingFigures(Path(output), images.name, options.components)
    figures.plot_errors(results.rows)
    for n_images in dict.fromkeys(row["images"] for row in results.rows):
        cleaned = {name: result for (n, name), result in results.cleaned.items() if n == n_images}
        figures.plot_images(images.layout, n_images, test, add_noise(test, seed), cleaned)
    return summarize_run(output, NAME, medians)


def split_images(images: BinaryImages) -> tuple[Bits, Bits]:
    """Split the images into the first two thirds and the last third."""
    if images.block.observed_words is not None:
        raise FitError("The images have missing values. Choose other rows.")
    X = images.block.unpack_values()
    if len(X) < 6:
        raise FitError(f"There are only {len(X)} images; at least 6 are needed. Choose other rows.")
    train, test = np.split(X, [len(X) - len(X) // 3])
    return train, test


def run_denoising_trials(
    train: Bits, test: Bits, n_components: int, seeds: Sequence[int], where: ExecutorOptions
) -> DenoisingResults:
    """Fit every model to each number of images from every seed."""
    cells, rows = list(_iter_cells(train, test, n_components, seeds)), []
    cleaned: dict[tuple[int, str], DenoisingResult] = {}
    trials = (cell.trial for cell in cells)
    results = run_trials(run_denoising_trial, trials, len(cells), "fits", where)
    for cell, result in zip(cells, results, strict=True):
        cleaned.setdefault((cell.n_images, cell.model), result)
        rows.append(_make_row(cell, result.wrong_bits, result.wrong_bits_weighed))
    return DenoisingResults(list(_iter_rows_with_noisy(rows, cells)), cleaned)


def _iter_cells(
    train: Bits, test: Bits, n_components: int, seeds: Sequence[int]
) -> Iterator[DenoisingCell]:
    models: dict[str, Model | int] = {LINEAR: n_components}
    models |= {
        name: find_model_class(kind)(n_components=n_components, **settings)  # type: ignore[call-arg]
        for name, kind, settings in _MODELS
    }
    for n_images in sorted({min(_N_TRAIN_IMAGES, len(train)), len(train)}):
        for name, model in models.items():
            for seed in seeds:
                rows = np.random.default_rng(seed).choice(len(train), n_images, replace=False)
                chosen, noisy = train[np.sort(rows)], add_noise(test, seed)
                trial = DenoisingTrial(model, chosen, test, noisy, seed)
                yield DenoisingCell(name, n_images, trial)


def _make_row(cell: DenoisingCell, *shares: float) -> dict[str, Any]:
    keys = {"images": cell.n_images, "model": cell.model, "seed": cell.trial.seed}
    return {**keys, **dict(zip(_VALUES, shares, strict=True))}


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


def print_summary(summary: dict[str, Any]) -> None:
    """Print the medians over seeds and the paths."""
    title = "medians: share of wrong bits"
    table = make_table("images", "model", "from codes", "weighed", title=title)
    for row in summary["medians"]:
        shares = (f"{row[name]:.2%}" for name in _VALUES)
        table.add_row(str(row["images"]), row["model"], *shares)
    print_results(summary, table)


EXPERIMENT = Experiment(
    """Denoise images by models of clean images (Sugiyama 2016, figures 36.11 and 36.15).

The images are the 2s of `example:digits`, or the rows of `--dataset`. Models are fitted to 100 of
the first two thirds of the images, another 100 for each seed, and to all of them. In the last
third, a random 10 % of the pixels are set to 1, and another 10 % to 0. A model encodes these images
and decodes the codes to bits; the threshold of linear PCA is the best one for noisy training
images.

`wrong_bits` is the share of wrong bits after decoding. `wrong_bits_weighed` also uses the noisy
pixels, each of which is wrong with a probability of 10 %: bits and codes are estimated in turn.
Writes tables of all fits and of medians over 5 seeds (CSV and JSON) and figures (PNG and SVG).
""",
    """Examples:

    python -m flows.experiments denoising --quick
    python -m flows.ingest usps.npz --dataset usps.zarr --split-by y
    python -m flows.experiments denoising --dataset usps.zarr --split 2 --image-shape 16x16
""",
    DenoisingOptions,
    run_denoising,
    print_summary,
)
