"""The experiments of Lee and Sompolinsky (1999): clipped PCA on a ring of spins and on images.

The paper calls Boltzmann machines impractical for most applications. Those without hidden units are
fitted to the same ring, on fewer spins and rows, to compare errors and cost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy
from numpy.typing import NDArray
from rich.table import Table

from flows.cli.options import ExecutorOptions, Option, WholeNumber
from flows.cli.summary import make_table
from flows.data.datasets import open_dataset_or_example
from flows.experiments import base
from flows.experiments.base import (
    Array,
    Bits,
    Experiment,
    LinearPCA,
    draw_rows,
    fit_linear_pca,
    fit_one_pass,
    list_files,
    print_results,
    write_table,
)
from flows.experiments.drawing import (
    ImageRow,
    figure_paths,
    make_panel,
    plot_series,
    save_images,
    write_figure,
)
from flows.report.figures.axes import make_axis
from flows.report.figures.colours import SIGNS_TEXT, ColourScale
from flows.report.figures.images import ImageLayout, find_image_layout
from flows.report.figures.marks import Axis, Figure, RasterMark
from flows.running.executors import open_executor
from flows.running.flow import run_task
from pipeline.data.blocks import BinaryBlock
from pipeline.data.datasets import make_row_source
from pipeline.fitting.loop import fit_model
from pipeline.models.clipped_pca import MIN_NOISE, ClippedPCA, ClippedPCAParams
from pipeline.models.ising.model import Ising
from pipeline.numerics.gaussian.pair_tables import sign_correlation
from pipeline.numerics.metrics import reconstruction_losses
from pipeline.random import RowRandom

# The ring

_SPINS, _CLIPPED = "spins (linear PCA)", "clipped PCA"
_N_ROWS_SHOWN, _N_BARS = 24, 12
_STRIP_PIXELS = 8  # height of a row
_MIN_PLOTTED_VALUE = 1e-6
_MAX_NETWORK_ROWS, _MAX_NETWORK_FEATURES = 20_000, 64
_NETWORKS: Mapping[str, ClippedPCA | Ising] = {
    _CLIPPED: ClippedPCA(n_components=2, correlation="arcsine"),
    "ising, ridge": Ising(penalty="ridge", strength=0.001),
    "ising, no penalty": Ising(penalty="none"),
}


def compare_on_ring(
    output: str, n_rows: int, n_features: int, seed: int, where: ExecutorOptions
) -> dict[str, Any]:
    """Fit two components, and plot their spectra with the spectra of infinitely many rows."""
    name = f"example:ring:rows={n_rows},features={n_features},seed={seed}"
    dataset = open_dataset_or_example(name)
    model = ClippedPCA(n_components=2, correlation="arcsine")
    fit = fit_one_pass(model, dataset, seed, where)
    # Spins are ±1, so their covariance is four times the covariance of the bits.
    spins = 4 * fit_linear_pca(fit.statistics, n_features).eigenvalues
    spectra = {"spins": spins, "clipped_pca": fit.params.eigenvalues, **_limit_spectra(n_features)}
    table = _ring_spectrum_rows(spectra)
    write_table(Path(output, "ring_spectrum"), table)
    rng = np.random.default_rng(seed)
    rows = draw_rows(dataset, _N_ROWS_SHOWN, rng).unpack_values()
    samples = model.sample(fit.params, _N_ROWS_SHOWN, rng)
    _plot_figure(Path(output), rows, samples, spectra, n_rows)
    return {"dataset": name, "n_rows": n_rows, "n_features": n_features, "leading": table[:4]}


def compare_networks_on_ring(
    output: str, n_rows: int, n_features: int, seed: int, where: ExecutorOptions
) -> dict[str, Any]:
    """Fit clipped PCA and networks of pairs, and compare rows drawn from each with the ring."""
    n_rows, n_features = min(n_rows, _MAX_NETWORK_ROWS), min(n_features, _MAX_NETWORK_FEATURES)
    name = f"example:ring:rows={n_rows},features={n_features},seed={seed}"
    rows = make_row_source(open_dataset_or_example(name))
    table = []
    for label, model in _NETWORKS.items():
        start = time.perf_counter()
        with open_executor(**where) as executor:
            params = fit_model(model, rows, executor, seed).params
        seconds = round(time.perf_counter() - start, 3)
        samples = model.sample(params, n_rows, np.random.default_rng(seed))
        table.append({"model": label, "seconds": seconds, **_measure_rows(samples)})
    write_table(Path(output, "ring_networks"), table)
    return {"dataset": name, "n_rows": n_rows, "n_features": n_features, "models": table}


def _measure_rows(X: Bits) -> dict[str, float]:
    """Return the error of the correlations of rows of the ring, and the share of half circles."""
    n_features = X.shape[1]
    exact = scipy.linalg.circulant(sign_correlation(_correlate_hidden(n_features)))
    errors = (np.corrcoef(X, rowvar=False) - exact)[np.triu_indices(n_features, 1)]
    is_half = (np.roll(X, 1, axis=1) != X).sum(axis=1) == 2
    return {"correlation_error": float(np.sqrt(np.mean(errors**2))), "arcs": float(is_half.mean())}


def _correlate_hidden(n_features: int) -> Array:
    """Return the correlations of the first hidden Gaussian with all."""
    return np.cos(2 * np.pi * np.arange(n_features) / n_features)


def _limit_spectra(n_features: int) -> dict[str, Array]:
    """Compute the spectra of infinitely many rows: circulant matrices, by Fourier transforms."""
    hidden = _correlate_hidden(n_features)
    first_rows = {"spins_limit": sign_correlation(hidden), "clipped_pca_limit": hidden}
    return {name: np.sort(np.fft.fft(row).real)[::-1] for name, row in first_rows.items()}


def _ring_spectrum_rows(spectra: Mapping[str, Array]) -> list[dict[str, Any]]:
    ranks = range(len(spectra["spins"]))
    return [
        {"rank": k + 1, **{name: float(values[k]) for name, values in spectra.items()}}
        for k in ranks
    ]


def _plot_figure(
    output: Path, rows: Bits, samples: Bits, spectra: Mapping[str, Array], n_rows: int
) -> None:
    n_features = rows.shape[1]
    title = f"Spins on a ring: {n_features} features, {n_rows:,} rows"
    note = (
        f"Blue: spin +1. The edges of drawn rows flicker because clipped PCA adds a noise of "
        f"{MIN_NOISE:g}. Eigenvalues of clipped PCA beyond the second are sampling error. "
        "Eigenvalues below 10⁻⁶ are not drawn, including negative ones; half of the spins' "
        "eigenvalues are 0, because opposite spins differ only in sign."
    )
    first, last = _plot_leading(spectra, n_features), _plot_all(spectra)
    drawn = f"{len(samples)} rows drawn from clipped PCA, two components"
    strips = [_plot_strips(rows, f"{len(rows)} rows of the data"), _plot_strips(samples, drawn)]
    paths = figure_paths(output, "ring")
    write_figure(*paths, panels=[strips, [first, last]], title=title, note=note)


def _plot_strips(X: Bits, title: str) -> Figure:
    """Plot binary rows (n_rows, n_features) as strips; 1 is blue."""
    strips = X.repeat(_STRIP_PIXELS, axis=0).astype(np.float64)
    strips[_STRIP_PIXELS - 1 :: _STRIP_PIXELS] = 0.0  # separates neighbouring rows
    x = make_axis(0.5, X.shape[1] + 0.5, "feature")
    y = Axis(0.0, 1.0, has_lines=False)
    return make_panel(title, x, y, [RasterMark(strips, ColourScale(1.0, is_signed=False))])


def _plot_leading(spectra: Mapping[str, Array], n_features: int) -> Figure:
    ranks, half = np.arange(1.0, _N_BARS + 1), n_features / 2
    series = {_SPINS: (ranks, spectra["spins"][:_N_BARS])}
    series[_CLIPPED] = (ranks, spectra["clipped_pca"][:_N_BARS])
    more = {f"{n_features} / 2 = {half:g}": (ranks, np.full(_N_BARS, half))}
    title = "Leading eigenvalues: clipped PCA has two"
    return plot_series(title, series, ("rank", "eigenvalue"), more=more)


def _plot_all(spectra: Mapping[str, Array]) -> Figure:
    ranked = {name: _rank_values(values) for name, values in spectra.items()}
    series = {_SPINS: ranked["spins"], _CLIPPED: ranked["clipped_pca"]}
    more = {
        "limit of many rows": ranked["spins_limit"],
        "limit of clipped PCA": ranked["clipped_pca_limit"],
    }
    title, labels = "All eigenvalues: the spins have a continuum", ("rank", "eigenvalue")
    return plot_series(title, series, labels, more=more, logs=(True, True), has_lines=False)


def _rank_values(values: Array, minimum: float = _MIN_PLOTTED_VALUE) -> tuple[Array, Array]:
    """Return the ranks of the values above a minimum, and these values."""
    plotted = values[values > minimum]
    return np.arange(1.0, len(plotted) + 1), plotted


# The images

Reconstructions = Mapping[int, Mapping[str, Array]]

LINEAR, CLIPPED, MARGINS = "linear PCA", "clipped PCA", "margins alone"
_BOTH = (LINEAR, CLIPPED)
_COMPONENTS, _QUICK_COMPONENTS = (5, 10, 20, 50), (5, 20)
_N_SAMPLE_ROWS, _N_QUICK_SAMPLE_ROWS = 500, 100
_SAMPLED_COMPONENTS, _N_SHOWN, _N_IMAGE_BARS = 20, 10, 12
_MIN_PLOTTED_SHARE = 1e-4


@dataclass(frozen=True)
class PCAPair:
    """Both models of one dataset, fitted from the same pair counts."""

    linear: LinearPCA
    clipped: ClippedPCA
    params: ClippedPCAParams

    def variance_shares(self) -> dict[str, Array]:
        """Eigenvalues as shares of the total variance: of the bits, of the hidden Gaussians."""
        return {
            LINEAR: self.linear.eigenvalues / self.linear.variance.sum(),
            CLIPPED: self.params.eigenvalues / len(self.params.thresholds),
        }

    def truncate(self, n_components: int) -> ClippedPCAParams:
        """Return clipped PCA with fewer components; the rest of the variance becomes noise."""
        return replace(self.params, loadings=self.params.loadings[:, :n_components])

    def reconstruct(self, block: BinaryBlock, n_components: int) -> dict[str, Array]:
        """Compute P(s = 1) given each row's own codes, (n_samples, n_features), for both models."""
        params = self.truncate(n_components)
        codes = self.clipped.transform(params, block, RowRandom(0))["mean"]
        X, observed = block.unpack_values(), block.unpack_mask()
        return {
            LINEAR: self.linear.reconstruct(X, observed, n_components),
            CLIPPED: self.clipped.reconstruct(params, codes),
        }

    def sample(self, n_components: int, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """Draw rows from each model, (n, n_features)."""
        return {
            LINEAR: self.linear.sample(n_components, n, rng),
            CLIPPED: self.clipped.sample(self.truncate(n_components), n, rng),
        }


def compare_on_images(
    output: str,
    dataset: str,
    image_shape: str | None,
    quick: bool,
    seed: int,
    where: ExecutorOptions,
) -> dict[str, Any]:
    """Fit both models; compare spectra, components, samples and reconstructions."""
    opened = open_dataset_or_example(dataset)
    layout = find_image_layout(opened.feature_names, image_shape)
    components = _QUICK_COMPONENTS if quick else _COMPONENTS
    numbers = sorted({min(p, opened.n_features) for p in components})
    clipped = ClippedPCA(numbers[-1], empty_cells="half", constant_features="keep")
    fit = fit_one_pass(clipped, opened, seed, where)
    models = PCAPair(fit_linear_pca(fit.statistics, numbers[-1]), clipped, fit.params)
    rng = np.random.default_rng(seed)
    rows = draw_rows(opened, _N_QUICK_SAMPLE_ROWS if quick else _N_SAMPLE_ROWS, rng)
    reconstructions = {p: models.reconstruct(rows, p) for p in numbers}
    errors = _error_rows(rows, models.linear.mean, reconstructions)
    folder, name = Path(output), opened.path.name.removesuffix(".zarr")
    write_table(folder / "images_spectrum", _image_spectrum_rows(models))
    write_table(folder / "images_errors", errors)
    figures = ImageFigures(folder, name, layout)
    figures.plot_spectra(models)
    figures.plot_components(models)
    figures.plot_samples(models, rows, rng)
    figures.plot_reconstructions(rows, reconstructions)
    figures.plot_errors(errors, rows.n_samples)
    return {
        "dataset": dataset,
        "n_rows": opened.n_rows,
        "n_features": opened.n_features,
        "n_reconstructed": rows.n_samples,
        "errors": errors,
        "warnings": list(fit.warnings),
    }


def _image_spectrum_rows(models: PCAPair) -> list[dict[str, Any]]:
    shares = models.variance_shares()
    columns = {
        "linear_pca": models.linear.eigenvalues,
        "clipped_pca": models.params.eigenvalues,
        "linear_pca_share": shares[LINEAR],
        "clipped_pca_share": shares[CLIPPED],
    }
    ranked = enumerate(zip(*columns.values(), strict=True), start=1)
    return [
        {"rank": rank, **dict(zip(columns, map(float, values), strict=True))}
        for rank, values in ranked
    ]


def _error_rows(
    rows: BinaryBlock, mean: Array, reconstructions: Reconstructions
) -> list[dict[str, Any]]:
    X, observed = _values_and_mask(rows)
    margins = (0, MARGINS, np.broadcast_to(mean, X.shape))
    return [
        {"components": p, "model": name, **reconstruction_losses(X, observed, probabilities)}
        for p, name, probabilities in (margins, *_list_reconstructions(reconstructions))
    ]


def _list_reconstructions(reconstructions: Reconstructions) -> list[tuple[int, str, Array]]:
    return [(p, name, both[name]) for p, both in reconstructions.items() for name in _BOTH]


def _values_and_mask(rows: BinaryBlock) -> tuple[Bits, NDArray[np.bool_]]:
    X, observed = rows.unpack_values(), rows.unpack_mask()
    return X, np.ones(X.shape, bool) if observed is None else observed == 1


@dataclass(frozen=True)
class ImageFigures:
    """Draws the figures of one dataset into a folder."""

    folder: Path
    name: str
    layout: ImageLayout

    def _paths(self, name: str) -> tuple[Path, Path]:
        return figure_paths(self.folder, f"images_{name}")

    def plot_spectra(self, models: PCAPair) -> None:
        """Draw both spectra: leading eigenvalues, then all on a logarithmic scale."""
        shares = models.variance_shares()
        note = (
            "Linear PCA: covariance of the bits. Clipped PCA: tetrachoric correlations."
            f"{_format_negative_note(shares[CLIPPED])} Shares below {_MIN_PLOTTED_SHARE:g} "
            "are not drawn."
        )
        title = f"Spectra of {self.name}"
        label = "eigenvalue / total variance"
        ranked = {name: _rank_values(v, _MIN_PLOTTED_SHARE) for name, v in shares.items()}
        leading = {
            name: (np.arange(1.0, len(values[:_N_IMAGE_BARS]) + 1), values[:_N_IMAGE_BARS])
            for name, values in shares.items()
        }
        panels = [
            plot_series("Leading eigenvalues", leading, ("rank", label)),
            plot_series("All eigenvalues", ranked, ("rank", label), logs=(True, True)),
        ]
        write_figure(*self._paths("spectra"), panels=[panels], title=title, note=note)

    def plot_components(self, models: PCAPair) -> None:
        """Draw the leading eigenvectors and loadings."""
        shares = models.variance_shares()
        columns = {LINEAR: models.linear.vectors, CLIPPED: models.params.loadings}
        rows = [
            ImageRow(
                f"{name}, {first + 1} to {min(first + _N_SHOWN, values.shape[1])}",
                self.layout.arrange_images(values.T[first : first + _N_SHOWN]),
                [f"{share:.1%}" for share in shares[name][first : first + _N_SHOWN]],
            )
            for name, values in columns.items()
            for first in (0, _N_SHOWN)
            if first < values.shape[1]
        ]
        note = (
            "Eigenvectors of linear PCA and loadings of clipped PCA. Each image has its own scale: "
            f"{SIGNS_TEXT}. Under each: its share of the variance."
        )
        title = f"Leading components of {self.name}"
        paths = self._paths("components")
        save_images(*paths, rows=rows, title=title, note=note, signed=True)

    def plot_samples(self, models: PCAPair, rows: BinaryBlock, rng: np.random.Generator) -> None:
        """Draw rows of the data and of both models."""
        p = min(_SAMPLED_COMPONENTS, models.params.loadings.shape[1])
        X = rows.unpack_values()[_choose_spread_rows(rows)]
        image_rows = [ImageRow("data", self.layout.arrange_images(X))]
        for name, samples in models.sample(p, 2 * _N_SHOWN, rng).items():
            images = self.layout.arrange_images(samples)
            image_rows += [ImageRow(name, images[:_N_SHOWN]), ImageRow("", images[_N_SHOWN:])]
        note = (
            f"{p} components. Linear PCA: a Gaussian with the bits' means and variances, "
            "thresholded at ½. Clipped PCA: Gaussians, each thresholded to give its pixel's mean."
        )
        title = f"Images drawn from models of {self.name}"
        save_images(*self._paths("samples"), rows=image_rows, title=title, note=note)

    def plot_reconstructions(self, rows: BinaryBlock, reconstructions: Reconstructions) -> None:
        """Plot the rows reconstructed by each model, and count their wrong bits."""
        shown = _choose_spread_rows(rows)
        X, observed = (values[shown] for values in _values_and_mask(rows))
        image_rows = [ImageRow("data", self.layout.arrange_images(np.where(observed, X, np.nan)))]
        for p, name, probabilities in _list_reconstructions(reconstructions):
            bits = probabilities[shown] > 0.5
            wrong = ((bits != (X == 1)) & observed).sum(axis=1)
            images = self.layout.arrange_images(bits)
            image_rows.append(ImageRow(f"{name}, {p} components", images, list(map(str, wrong))))
        note = "Blue: P(bit = 1 | components) > ½. Under each image: its number of wrong bits."
        title = f"Reconstructions of {self.name}"
        save_images(*self._paths("reconstructions"), rows=image_rows, title=title, note=note)

    def plot_errors(self, errors: Sequence[Mapping[str, Any]], n_rows: int) -> None:
        """Plot both errors over the number of components."""
        note = (
            f"{n_rows} of the fitted rows. Linear PCA: P(bit = 1) = Φ((projection − ½) / σ), where "
            "σ² is the variance that the components do not explain. Margins alone: every bit by "
            "its mean."
        )
        title, paths = f"Reconstruction errors of {self.name}", self._paths("errors")
        measures = {"wrong_bits": "share of wrong bits", "nll_per_bit": "−log P per bit (nats)"}
        panels = []
        for measure, label in measures.items():
            series = {name: _component_series(errors, name, measure) for name in _BOTH}
            numbers, _ = series[LINEAR]
            more = {MARGINS: (numbers, [errors[0][measure]] * len(numbers))}
            values = [0.0, *(row[measure] for row in errors)]
            panels.append(
                plot_series("", series, ("components", label), more=more, y_values=values)
            )
        write_figure(*paths, panels=[panels], title=title, note=note)


def _format_negative_note(shares: Array) -> str:
    negative = shares[shares < 0]
    if not negative.size:
        return ""
    return (
        f" Because they are estimated pair by pair, {len(negative)} shares are negative. Their sum "
        f"is −{abs(negative.sum()):.2f}; the sum of the others exceeds 1 by as much."
    )


def _choose_spread_rows(rows: BinaryBlock) -> NDArray[np.intp]:
    """Choose evenly spaced rows; rows are sorted by segment, so all segments appear."""
    n = min(_N_SHOWN, rows.n_samples)
    return ((np.arange(n) + 0.5) * rows.n_samples / n).astype(np.intp)


def _component_series(
    errors: Sequence[Mapping[str, Any]], model: str, measure: str
) -> tuple[list[int], list[float]]:
    rows = [row for row in errors if row["model"] == model]
    return [row["components"] for row in rows], [row[measure] for row in rows]


# The command

_ROWS, _FEATURES = 100_000, 256
_QUICK_ROWS, _QUICK_FEATURES = 5_000, 64


@Option(name="*")
@dataclass(frozen=True)
class ClippedPCAOptions(base.ExperimentOptions):
    """Options of `clipped-pca`."""

    dataset: Annotated[str, Option(help="Dataset of binary images: a folder or an example.")] = (
        "example:digits"
    )
    rows: Annotated[
        WholeNumber | None,
        Option(help="Number of rows of the ring. [default: 100000, or 5000 with --quick]"),
    ] = None
    image_shape: base.ImageShape = None

    def check(self) -> None:
        """Also check the images and their shape."""
        super().check()
        find_image_layout(open_dataset_or_example(self.dataset).feature_names, self.image_shape)


def run_clipped_pca(options: ClippedPCAOptions) -> dict[str, Any]:
    """Run both parts."""
    output, quick = options.output, options.quick
    n_features = _QUICK_FEATURES if quick else _FEATURES
    n_rows = (_QUICK_ROWS if quick else _ROWS) if options.rows is None else options.rows
    ring = (output, n_rows, n_features, options.seed, options.where)
    images = (output, options.dataset, options.image_shape, quick, options.seed, options.where)
    return {
        "ring": run_task("ring", partial(compare_on_ring, *ring)),
        "networks": run_task("networks", partial(compare_networks_on_ring, *ring)),
        "images": run_task("images", partial(compare_on_images, *images)),
        "files": list_files(output, "ring", "images"),
    }


def print_summary(summary: dict[str, Any]) -> None:
    """Print the ring's leading eigenvalues, the images' errors, and the paths."""
    ring, images = summary["ring"], summary["images"]
    warnings = [f"warning: {warning}" for warning in images["warnings"]]
    tables = _make_ring_table(ring), _make_network_table(summary["networks"])
    print_results(summary, *tables, _make_errors_table(images), *warnings)


def _make_ring_table(ring: Mapping[str, Any]) -> Table:
    title = f"ring: {ring['n_rows']:,} rows, {ring['n_features']} features"
    table = make_table("rank", "spins", "clipped PCA", title=title)
    for row in ring["leading"]:
        table.add_row(str(row["rank"]), f"{row['spins']:.4g}", f"{row['clipped_pca']:.4g}")
    return table


def _make_network_table(networks: Mapping[str, Any]) -> Table:
    title = (
        f"rows drawn from fits of {networks['n_rows']:,} rows, {networks['n_features']} features"
    )
    columns = ("model", "seconds", "error of correlations", "half circles")
    table = make_table(*columns, title=title)
    for row in networks["models"]:
        numbers = f"{row['seconds']:.2f}", f"{row['correlation_error']:.3f}", f"{row['arcs']:.1%}"
        table.add_row(row["model"], *numbers)
    return table


def _make_errors_table(images: Mapping[str, Any]) -> Table:
    title = f"{images['dataset']}: {images['n_rows']:,} rows, {images['n_features']} features"
    table = make_table("components", "model", "wrong bits", "nats per bit", title=title)
    for row in images["errors"]:
        losses = (f"{row['wrong_bits']:.2%}", f"{row['nll_per_bit']:.4f}")
        table.add_row(str(row["components"]), row["model"], *losses)
    return table


EXPERIMENT = Experiment(
    """Compare clipped PCA with linear PCA (Lee & Sompolinsky 1999).

The first part uses translation-invariant spins on a ring (the paper's figure 3), which depend on
two hidden Gaussians; networks of pairs (`ising`) are fitted to up to 64 of them and 20,000 rows,
with the error of the correlations of drawn rows and the share of them that are half circles (up to
noise, all are). The second part compares spectra, components, samples, reconstructions and
their errors on images of digits. Writes tables (CSV and JSON) and figures (PNG and SVG). The ring
also works with a million rows: `--rows 1000000`.
""",
    """Examples:

    python -m flows.experiments clipped-pca
    python -m flows.experiments clipped-pca --dataset usps.zarr --image-shape 16x16
""",
    ClippedPCAOptions,
    run_clipped_pca,
    print_summary,
)
