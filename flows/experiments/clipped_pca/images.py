"""Clipped PCA beside linear PCA on images of bits, such as handwritten digits.

D. D. Lee, H. Sompolinsky, "Learning a continuous hidden variable model for binary data", NIPS 1998
(1999).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.options import ExecutorOptions
from flows.data.datasets import open_dataset_or_example
from flows.experiments.base import draw_rows, fit_one_pass, write_table
from flows.experiments.drawing import (
    ImageRow,
    open_figure,
    plot_bars,
    plot_curves,
    save_images,
    set_log_scales,
)
from flows.experiments.linear_pca import LinearPCA, fit_linear_pca
from flows.report.figures.image_layout import ImageLayout, find_image_layout
from pipeline.data.blocks import BinaryBlock
from pipeline.models.clipped_pca import ClippedPCA, ClippedPCAParams
from pipeline.numerics.metrics import reconstruction_losses
from pipeline.random import RowRandom

Array = NDArray[np.float64]
Reconstructions = Mapping[int, Mapping[str, Array]]

LINEAR, CLIPPED, MARGINS = "linear PCA", "clipped PCA", "margins alone"
_BOTH = (LINEAR, CLIPPED)
_COMPONENTS, _QUICK_COMPONENTS = (5, 10, 20, 50), (5, 20)
_ROWS, _QUICK_ROWS = 500, 100
_SAMPLED_COMPONENTS, _N_SHOWN, _N_BARS = 20, 10, 12
# A certain answer that is wrong would cost infinitely much.
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
        """Clipped PCA with fewer components; what they leave is noise again."""
        return replace(self.params, loadings=self.params.loadings[:, :n_components])

    def reconstruct(self, block: BinaryBlock, n_components: int) -> dict[str, Array]:
        """P(s = 1) of rows given their own components, (n_samples, n_features) of each model."""
        params = self.truncate(n_components)
        codes = self.clipped.transform(params, block, RowRandom(0))["mean"]
        X, observed = block.unpack_values(), block.unpack_mask()
        return {
            LINEAR: self.linear.reconstruct(X, observed, n_components),
            CLIPPED: self.clipped.reconstruct(params, codes),
        }

    def sample(self, n_components: int, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """Rows drawn from each model, (n, n_features)."""
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
    wanted = _QUICK_COMPONENTS if quick else _COMPONENTS
    numbers = sorted({min(p, opened.n_features) for p in wanted})
    clipped = ClippedPCA(numbers[-1], empty_cells="half", constant_features="keep")
    found = fit_one_pass(clipped, opened, seed, where)
    models = PCAPair(fit_linear_pca(found.statistics, numbers[-1]), clipped, found.params)
    rng = np.random.default_rng(seed)
    rows = draw_rows(opened, _QUICK_ROWS if quick else _ROWS, rng)
    codes = {p: models.reconstruct(rows, p) for p in numbers}
    errors = _error_rows(rows, models.linear.mean, codes)
    folder, name = Path(output), opened.path.name.removesuffix(".zarr")
    write_table(folder / "images_spectrum", _spectrum_rows(models))
    write_table(folder / "images_errors", errors)
    pictures = ImageFigures(folder, name, layout)
    pictures.plot_spectra(models)
    pictures.plot_components(models)
    pictures.plot_samples(models, rows, rng)
    pictures.plot_reconstructions(rows, codes)
    pictures.plot_errors(errors, rows.n_samples)
    return {
        "dataset": dataset,
        "n_rows": opened.n_rows,
        "n_features": opened.n_features,
        "n_reconstructed": rows.n_samples,
        "errors": errors,
        "warnings": list(found.warnings),
    }


def _spectrum_rows(models: PCAPair) -> list[dict[str, Any]]:
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


def _error_rows(rows: BinaryBlock, mean: Array, found: Reconstructions) -> list[dict[str, Any]]:
    X, observed = _values_and_mask(rows)
    answers = [(0, MARGINS, np.broadcast_to(mean, X.shape))]
    answers += _list_reconstructions(found)
    return [
        {"components": p, "model": name, **reconstruction_losses(X, observed, probabilities)}
        for p, name, probabilities in answers
    ]


def _list_reconstructions(found: Reconstructions) -> list[tuple[int, str, Array]]:
    return [(p, name, both[name]) for p, both in found.items() for name in _BOTH]


def _values_and_mask(rows: BinaryBlock) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    X, observed = rows.unpack_values(), rows.unpack_mask()
    return X, np.ones(X.shape, bool) if observed is None else observed == 1


@dataclass(frozen=True)
class ImageFigures:
    """Draws the figures of one dataset into a folder."""

    folder: Path
    name: str
    layout: ImageLayout

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"images_{name}.png", self.folder / f"images_{name}.svg"

    def plot_spectra(self, models: PCAPair) -> None:
        """Draw both spectra: leading eigenvalues, then all on a logarithmic scale."""
        shares = models.variance_shares()
        note = (
            "Linear PCA: covariance of the bits. Clipped PCA: tetrachoric correlations."
            f"{_format_negative_note(shares[CLIPPED])} Shares below {_MIN_PLOTTED_SHARE:g} are not drawn."
        )
        title = f"Spectra of {self.name}"
        paths = self._paths("spectra")
        with open_figure(*paths, size=(10, 4), title=title, note=note) as figure:
            bars, curves = figure.subplots(1, 2)
            label = "eigenvalue / total variance"
            leading = {name: values[:_N_BARS] for name, values in shares.items()}
            plot_bars(bars, leading, label, "Leading eigenvalues")
            drawn = {name: values[values > _MIN_PLOTTED_SHARE] for name, values in shares.items()}
            series = {name: (np.arange(1, len(v) + 1), v) for name, v in drawn.items()}
            plot_curves(curves, series, ("rank", label), "All eigenvalues")
            set_log_scales(curves, len(shares[LINEAR]))

    def plot_components(self, models: PCAPair) -> None:
        """Draw the leading eigenvectors and loadings."""
        shares = models.variance_shares()
        columns = {LINEAR: models.linear.vectors, CLIPPED: models.params.loadings}
        rows = [
            ImageRow(
                f"{name}\n{first + 1} to {min(first + _N_SHOWN, values.shape[1])}",
                self.layout.arrange_images(values.T[first : first + _N_SHOWN]),
                [f"{share:.1%}" for share in shares[name][first : first + _N_SHOWN]],
            )
            for name, values in columns.items()
            for first in (0, _N_SHOWN)
            if first < values.shape[1]
        ]
        note = (
            "Eigenvectors of linear PCA, loadings of clipped PCA, each to its own scale: red "
            "positive, white 0, blue negative. Under each: its share of the variance."
        )
        title = f"Leading components of {self.name}"
        paths = self._paths("components")
        save_images(*paths, rows=rows, title=title, note=note, signed=True)

    def plot_samples(self, models: PCAPair, rows: BinaryBlock, rng: np.random.Generator) -> None:
        """Draw rows of the data and of both models."""
        p = min(_SAMPLED_COMPONENTS, models.params.loadings.shape[1])
        shown = [
            ImageRow(
                "data", self.layout.arrange_images(rows.unpack_values()[_choose_spread_rows(rows)])
            )
        ]
        for name, X in models.sample(p, 2 * _N_SHOWN, rng).items():
            images = self.layout.arrange_images(X)
            shown += [ImageRow(name, images[:_N_SHOWN]), ImageRow("", images[_N_SHOWN:])]
        note = (
            f"{p} components. Linear PCA: a Gaussian with the bits' means and variances, "
            "thresholded at ½. Clipped PCA: Gaussians, each thresholded to give its pixel's mean."
        )
        title = f"Images drawn from models of {self.name}"
        save_images(*self._paths("samples"), rows=shown, title=title, note=note)

    def plot_reconstructions(self, rows: BinaryBlock, found: Reconstructions) -> None:
        """Draw rows as each model gives them back, and count their wrong bits."""
        at = _choose_spread_rows(rows)
        X, observed = (values[at] for values in _values_and_mask(rows))
        shown = [ImageRow("data", self.layout.arrange_images(np.where(observed, X, np.nan)))]
        for p, name, answers in _list_reconstructions(found):
            bits = answers[at] > 0.5
            wrong = ((bits != (X == 1)) & observed).sum(axis=1)
            images = self.layout.arrange_images(bits)
            shown.append(ImageRow(f"{name}\n{p} components", images, list(map(str, wrong))))
        note = "Black: P(bit = 1 | components) > ½. Under each: its wrong bits."
        title = f"Reconstructions of {self.name}"
        save_images(*self._paths("reconstructions"), rows=shown, title=title, note=note)

    def plot_errors(self, errors: Sequence[Mapping[str, Any]], n_rows: int) -> None:
        """Draw both measures over the number of components."""
        note = (
            f"{n_rows} rows, among those fitted. Linear PCA: P(bit = 1) = Φ((projection − ½) / σ), "
            "σ² the variance that the components leave. Margins alone: every bit by its mean."
        )
        title, paths = f"Reconstruction errors of {self.name}", self._paths("errors")
        measures = {"wrong_bits": "share of wrong bits", "nll_per_bit": "−log P per bit (nats)"}
        with open_figure(*paths, size=(9, 3.8), title=title, note=note) as figure:
            for axes, measure in zip(figure.subplots(1, 2), measures, strict=True):
                series = {name: _component_series(errors, name, measure) for name in _BOTH}
                axes.axhline(errors[0][measure], color="black", ls=":", lw=0.8, label=MARGINS)
                plot_curves(axes, series, ("components", measures[measure]), "")
                axes.set(ylim=(0, None), xticks=series[LINEAR][0])


def _format_negative_note(shares: Array) -> str:
    below = shares[shares < 0]
    if not below.size:
        return ""
    return (
        f" Estimated pair by pair, they give {len(below)} negative shares, in sum "
        f"−{abs(below.sum()):.2f}; the others exceed 1 by as much."
    )


def _choose_spread_rows(rows: BinaryBlock) -> NDArray[np.intp]:
    """Rows to show: evenly over the rows, which lie by segment, so that all kinds come up."""
    n = min(_N_SHOWN, rows.n_samples)
    return ((np.arange(n) + 0.5) * rows.n_samples / n).astype(np.intp)


def _component_series(
    errors: Sequence[Mapping[str, Any]], model: str, measure: str
) -> tuple[list[int], list[float]]:
    chosen = [row for row in errors if row["model"] == model]
    return [row["components"] for row in chosen], [row[measure] for row in chosen]
